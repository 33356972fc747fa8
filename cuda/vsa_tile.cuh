// A tile of 16-bit elements in shared memory: rows of kHeadDim elements, row-major, the 16-byte
// chunks of a row permuted so that ldmatrix (8 rows, one chunk column) and 16-byte stores touch
// every bank once.
#pragma once
#include <stdint.h>

#include "ptx/cp_async.cuh"

namespace cake {

template <int kHeadDim>
struct TileLayout {
  static_assert(kHeadDim % 32 == 0, "a row is a whole number of 64-byte pieces");
  static constexpr int kPitch = kHeadDim * 2;  // bytes
  // Chunks are permuted within groups of kSpan. A row of 96 elements is 12 chunks: it has groups
  // of 4, and two neighbouring rows (192 bytes apart) already lie in different bank halves.
  static constexpr int kSpan = kHeadDim % 64 == 0 ? 8 : 4;
  static constexpr int kGroups = kHeadDim / 8 / kSpan;
  static constexpr int kGroupBytes = kSpan * 16;

  __device__ static constexpr int key(int row) { return kSpan == 8 ? row & 7 : (row >> 1) & 3; }

  // Byte offset of chunk `chunk` < kSpan of a row.
  __device__ static constexpr uint32_t offset(int row, int chunk) {
    return row * kPitch + ((chunk ^ key(row)) << 4);
  }

  // The address of chunk 2 * pair + bit, from that of chunk `bit` of the same row. The keys repeat
  // every 16 rows, so whole 16-row steps may be added to either.
  __device__ static constexpr uint32_t chunk_pair(uint32_t address, int pair) {
    constexpr int kPairs = kSpan / 2;
    return (address ^ ((pair % kPairs) << 5)) + (pair / kPairs) * kGroupBytes;
  }

  // What a lane adds to a tile's address for ldmatrix.x4 over 16 rows x 2 chunks. The two registers
  // of an operand B have to come out side by side: mma takes them as an aligned pair.
  // Matrices (rows 0-7, chunk 0) (8-15, 0) (0-7, 1) (8-15, 1): operand A of a [row][k] tile, and
  // with .trans two operands B of a [k][n] tile.
  __device__ static constexpr uint32_t lane_offset_rows_first(int lane) {
    return offset(lane % 16, lane / 16);
  }
  // Matrices (rows 0-7, chunk 0) (0-7, 1) (8-15, 0) (8-15, 1): two operands B of an [n][k] tile.
  __device__ static constexpr uint32_t lane_offset_chunks_first(int lane) {
    return offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }
};

// Copies kRows rows from global memory, kThreads threads together.
template <int kRows, int kHeadDim, int kThreads>
struct TileLoader {
  using Layout = TileLayout<kHeadDim>;
  static constexpr int kRowsPerPass = kThreads / Layout::kSpan;
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(kRows % kRowsPerPass == 0 && kRowsPerPass % 16 == 0, "keys repeat every pass");

  uint32_t shared_off;  // this thread's first chunk in the tile, bytes
  uint32_t global_off;  // and in the source

  // `column` is the byte offset of the tile's columns in a row of the source.
  __device__ static TileLoader of_thread(int thread, uint32_t row_bytes, uint32_t column) {
    const int row = thread / Layout::kSpan;
    const int chunk = thread % Layout::kSpan;
    return {Layout::offset(row, chunk), row * row_bytes + column + chunk * 16};
  }

  // `source` is the first row; rows from `valid_rows` on become zeros and are not read.
  __device__ __forceinline__ void load(uint32_t tile, const char *source, uint32_t row_bytes,
                                       int valid_rows) const {
    const char *from = source + global_off;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass, from += kRowsPerPass * row_bytes) {
      // shared_off lies in this thread's row of the first pass
      const int end = (valid_rows - pass * kRowsPerPass) * Layout::kPitch;
      const uint32_t bytes = static_cast<int>(shared_off) < end ? 16 : 0;
#pragma unroll
      for (int group = 0; group < Layout::kGroups; ++group) {
        ptx::cp_async_16(
            tile + shared_off + pass * kRowsPerPass * Layout::kPitch + group * Layout::kGroupBytes,
            from + group * Layout::kGroupBytes, bytes);
      }
    }
  }
};

}  // namespace cake
