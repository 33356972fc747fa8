// Block-sparse attention forward for every target we ship: mma.sync and cp.async only, one CTA a
// row (query block of a head). Compiled once a variant, with CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_BF16.
//
// A warp owns 16 * kMTiles query rows and multiplies them with every key of a tile. Blocks of 128
// use two m-tiles a warp, because each warp reads every K and V tile from shared memory again;
// blocks of 64 use one, hold Q in registers and fit more CTAs on an SM. docs/kernels.md has the
// measurements behind these choices.
#include "ptx/cp_async.cuh"
#include "ptx/math.cuh"
#include "ptx/mma.cuh"
#include "vsa_params.h"
#include "vsa_rows.cuh"
#include "vsa_softmax.cuh"
#include "vsa_tile.cuh"

namespace cake {

template <int kBlock_, int kHeadDim_, bool kBf16_>
struct PortableTraits {
  static constexpr int kBlock = kBlock_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kBf16 = kBf16_;

  // The assembler spills in other places for sm_100 and sm_103; what is chosen by kBlackwell below
  // is tuned on sm_90 and merely free of spills on the others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  static constexpr bool kBlackwell = true;
#else
  static constexpr bool kBlackwell = false;
#endif

  // Warps
  static constexpr int kMTiles = kBlock == 64 ? 1 : 2;
  static constexpr int kWarpRows = 16 * kMTiles;
  static constexpr int kThreads = 32 * (kBlock / kWarpRows);
  static constexpr int kMinCtas = kBlock == 128 ? 2 : kHeadDim == 64 && !kBlackwell ? 4 : 3;
  static constexpr bool kQueryInRegisters = kBlock == 64;

  // Keys: a pipeline stage holds kKeyTile of them, softmax works on kStep at a time.
  static constexpr bool kSmallSteps = kBlackwell && kHeadDim == 128;
  static constexpr int kKeyTile = 64;
  static constexpr int kTilesPerBlock = kBlock / kKeyTile;
  static constexpr int kStep = kSmallSteps ? 32 : 64;
  static constexpr int kKUnroll = kBlock == 128 && kHeadDim == 128 ? 4 : kHeadDim / 16;  // spills
  static constexpr int kStages = 2;

  // Shared memory, bytes. Q that moves to registers borrows the stage that is filled last.
  static constexpr int kQueryBytes = kBlock * kHeadDim * 2;
  static constexpr int kTileBytes = kKeyTile * kHeadDim * 2;
  static constexpr int kStageBytes = 2 * kTileBytes;  // K, then V
  static constexpr int kQueryOffset = (kStages - (kQueryInRegisters ? 1 : 0)) * kStageBytes;
  static constexpr int kFeedOffset = kStages * kStageBytes + (kQueryInRegisters ? 0 : kQueryBytes);
  // A thread's Feed waits in shared memory between tiles where the loop would spill otherwise.
  static constexpr bool kParkFeed = kHeadDim == 128;
  static constexpr int kFeedBytes = 16;
  static constexpr int kSharedBytes = kFeedOffset + (kParkFeed ? kThreads * kFeedBytes : 0);

  static_assert(kKeyTile % kStep == 0 && kStep % 16 == 0, "mma steps are 16 keys deep");
  static_assert(!kQueryInRegisters || kQueryBytes <= kStageBytes, "Q fits the borrowed stage");
};

template <class T>
struct Portable {
  static constexpr int kKSteps = T::kHeadDim / 16;    // of Q K^T
  static constexpr int kDTiles = T::kHeadDim / 8;     // n-tiles of P V
  static constexpr int kSTiles = T::kStep / 8;        // n-tiles of Q K^T
  using Layout = TileLayout<T::kHeadDim>;
  using Loader = TileLoader<T::kKeyTile, T::kHeadDim, T::kThreads>;
  using QueryLoader = TileLoader<T::kBlock, T::kHeadDim, T::kThreads>;

  // What a thread needs once a tile.
  struct __align__(16) Feed {
    Loader loader;       // of K and V tiles
    uint32_t row;        // whose list is walked
    uint32_t lane_keys;  // the lane's ldmatrix offset in a K tile
  };
  static_assert(sizeof(Feed) == T::kFeedBytes, "shared memory is sized by the traits");

  using Accumulator = float[T::kMTiles][kDTiles][4];

  // Q in shared memory times sign(scale), so that the softmax may assume a positive scale. Every
  // thread mends the chunks that it copied.
  __device__ static void apply_scale_sign(uint32_t thread, char *query, float scale) {
    if (scale > 0.0f) return;
    const QueryLoader loader = QueryLoader::of_thread(thread, 0, 0);
    for (int pass = 0; pass < QueryLoader::kPasses; ++pass) {
      for (int group = 0; group < Layout::kGroups; ++group) {
        uint4 *chunk = reinterpret_cast<uint4 *>(
            query + loader.shared_off + pass * QueryLoader::kRowsPerPass * Layout::kPitch +
            group * Layout::kGroupBytes);
        const uint4 value = *chunk;
        *chunk = {times_sign<T::kBf16>(value.x, scale), times_sign<T::kBf16>(value.y, scale),
                  times_sign<T::kBf16>(value.z, scale), times_sign<T::kBf16>(value.w, scale)};
      }
    }
  }

  // s = Q K^T for kStep keys that start at `keys` (address of the lane's first ldmatrix row).
  template <class Query>
  __device__ __forceinline__ static void multiply_keys(float (&s)[T::kMTiles][kSTiles][4],
                                                       const Query &query, uint32_t keys) {
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kSTiles; ++n) {
        s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
      }
    }
#pragma unroll(T::kKUnroll)
    for (int k = 0; k < kKSteps; ++k) {
      uint32_t a[T::kMTiles][4];
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) query.fragment(a[m], m, k);
#pragma unroll
      for (int n = 0; n < kSTiles; n += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4(b, Layout::chunk_pair(keys, k) + n * 8 * Layout::kPitch);
#pragma unroll
        for (int m = 0; m < T::kMTiles; ++m) {
          ptx::mma_m16n8k16<T::kBf16>(s[m][n], a[m], b[0], b[1]);
          ptx::mma_m16n8k16<T::kBf16>(s[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // o += P V; the weights in s are rounded to the input type.
  __device__ __forceinline__ static void multiply_values(
      Accumulator &o, const float (&s)[T::kMTiles][kSTiles][4], uint32_t values) {
#pragma unroll
    for (int k = 0; k < T::kStep / 16; ++k) {
      uint32_t a[T::kMTiles][4];
#pragma unroll
      for (int m = 0; m < T::kMTiles; ++m) {
        a[m][0] = ptx::pack2<T::kBf16>(s[m][2 * k][0], s[m][2 * k][1]);
        a[m][1] = ptx::pack2<T::kBf16>(s[m][2 * k][2], s[m][2 * k][3]);
        a[m][2] = ptx::pack2<T::kBf16>(s[m][2 * k + 1][0], s[m][2 * k + 1][1]);
        a[m][3] = ptx::pack2<T::kBf16>(s[m][2 * k + 1][2], s[m][2 * k + 1][3]);
      }
#pragma unroll
      for (int d = 0; d < kDTiles; d += 2) {
        uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, Layout::chunk_pair(values, d / 2) + k * 16 * Layout::kPitch);
#pragma unroll
        for (int m = 0; m < T::kMTiles; ++m) {
          ptx::mma_m16n8k16<T::kBf16>(o[m][d], a[m], b[0], b[1]);
          ptx::mma_m16n8k16<T::kBf16>(o[m][d + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  struct QueryFragments {
    uint32_t address;  // the lane's chunk of the warp's first 16 rows
    uint32_t held[T::kQueryInRegisters ? T::kMTiles : 1][T::kQueryInRegisters ? kKSteps : 1][4];

    __device__ explicit QueryFragments(uint32_t lane_address) : address(lane_address) {
      if constexpr (T::kQueryInRegisters) {
#pragma unroll
        for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
          for (int k = 0; k < kKSteps; ++k) read(held[m][k], m, k);
        }
      }
    }
    __device__ __forceinline__ void read(uint32_t (&a)[4], int m, int k) const {
      ptx::ldmatrix_x4(a, Layout::chunk_pair(address, k) + m * 16 * Layout::kPitch);
    }
    __device__ __forceinline__ void fragment(uint32_t (&a)[4], int m, int k) const {
      if constexpr (T::kQueryInRegisters) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = held[m][k][i];
      } else {
        read(a, m, k);
      }
    }
  };

  // Divides by the sums and writes the warp's rows, through shared memory so that a row leaves in
  // 16-byte pieces. `tile` is the warp's own part of the query tile.
  __device__ static void store(const CakeVsaParams &p, const Accumulator &o,
                               const SoftmaxState<T::kMTiles, false> &state, char *tile, int lane,
                               uint64_t first_token, uint32_t head, float scale_log2) {
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = m * 16 + half * 8 + lane / 4;
        const float sum = state.sum[m][half];
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
        for (int d = 0; d < kDTiles; ++d) {
          const uint32_t pair = ptx::pack2<T::kBf16>(o[m][d][2 * half] * inverse,
                                                     o[m][d][2 * half + 1] * inverse);
          char *chunk = tile + Layout::offset(row, d % Layout::kSpan) +
                        d / Layout::kSpan * Layout::kGroupBytes;
          *reinterpret_cast<uint32_t *>(chunk + lane % 4 * 4) = pair;
        }
        if (p.lse != nullptr && lane % 4 == 0) {
          p.lse[(first_token + row) * p.num_qo_heads + head] = state.lse(m, half, scale_log2);
        }
      }
    }
    __syncwarp();
    constexpr int kChunks = T::kHeadDim / 8;
    uint4 *out = static_cast<uint4 *>(p.out);
    for (int i = lane; i < T::kMTiles * 16 * kChunks; i += 32) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      out[((first_token + row) * p.num_qo_heads + head) * kChunks + chunk] =
          *reinterpret_cast<const uint4 *>(tile + Layout::offset(row, chunk % Layout::kSpan) +
                                           chunk / Layout::kSpan * Layout::kGroupBytes);
    }
  }

  __device__ static void run(const CakeVsaParams &p) {
    extern __shared__ __align__(1024) char shared[];
    const int thread = threadIdx.x;
    const int lane = thread % 32;
    const int warp_row = thread / 32 * T::kWarpRows;

    const RowId id = row_of_work_item(p, blockIdx.x);
    if (!id.valid) return;
    const uint32_t stages = ptx::shared_address(shared);
    const uint32_t query_tile = stages + T::kQueryOffset;
    {
      const uint32_t q_bytes = p.num_qo_heads * Layout::kPitch;
      const char *q = static_cast<const char *>(p.q) +
                      static_cast<uint64_t>(id.q_block) * T::kBlock * q_bytes;
      QueryLoader::of_thread(thread, q_bytes, id.head * Layout::kPitch)
          .load(query_tile, q, q_bytes, T::kBlock);
      ptx::cp_async_commit();
    }

    // Tiles are loaded kStages - 1 ahead of the loop, list entries one load ahead of their use.
    const uint32_t kv_bytes = p.num_kv_heads * Layout::kPitch;
    Feed feed = {Loader::of_thread(thread, kv_bytes,
                                   id.head / (p.num_qo_heads / p.num_kv_heads) * Layout::kPitch),
                 id.row, Layout::lane_offset_chunks_first(lane)};
    Feed *const parked = reinterpret_cast<Feed *>(shared + T::kFeedOffset) + thread;
    if constexpr (T::kParkFeed) *parked = feed;
    const int tiles = row_count(p, id.row) * T::kTilesPerBlock;
    uint32_t block = tiles > 0 ? row_block(p, id.row, 0) : 0;
    int valid[T::kStages];  // keys of the tiles in flight, oldest first

    auto load = [&](int tile, uint32_t stage) {
      int keys = 0;
      if (tile < tiles) {
        const int sub = tile % T::kTilesPerBlock;
        const int tokens = block_tokens<T::kBlock>(p, block);
        keys = min(max(tokens - sub * T::kKeyTile, 0), T::kKeyTile);
        // An entry that names no block has no keys: any readable address will do.
        const uint64_t token =
            (tokens > 0 ? static_cast<uint64_t>(block) * T::kBlock : 0) + sub * T::kKeyTile;
        const uint64_t offset = token * kv_bytes;
        feed.loader.load(stage, static_cast<const char *>(p.k) + offset, kv_bytes, keys);
        feed.loader.load(stage + T::kTileBytes, static_cast<const char *>(p.v) + offset, kv_bytes,
                         keys);
        if (sub == T::kTilesPerBlock - 1 && tile + 1 < tiles) {
          block = row_block(p, feed.row, tile / T::kTilesPerBlock + 1);
        }
      }
      ptx::cp_async_commit();
      return keys;
    };

#pragma unroll
    for (int i = 0; i < T::kStages - 1; ++i) valid[i] = load(i, stages + i * T::kStageBytes);

    ptx::cp_async_wait<T::kStages - 1>();
    apply_scale_sign(thread, shared + T::kQueryOffset, p.sm_scale);
    __syncthreads();
    // Clamped: the product of the largest scales is no float.
    const float scale_log2 = softmax_scale(p.sm_scale);

    const uint32_t lane_values = Layout::lane_offset_rows_first(lane);
    const QueryFragments query(query_tile + warp_row * Layout::kPitch + lane_values);

    Accumulator o;
#pragma unroll
    for (int m = 0; m < T::kMTiles; ++m) {
#pragma unroll
      for (int d = 0; d < kDTiles; ++d) {
        o[m][d][0] = o[m][d][1] = o[m][d][2] = o[m][d][3] = 0.0f;
      }
    }
    SoftmaxState<T::kMTiles, false> state;

    uint32_t stage = stages;
    for (int tile = 0; tile < tiles; ++tile) {
      if constexpr (T::kParkFeed) feed = *parked;
      ptx::cp_async_wait<T::kStages - 2>();
      __syncthreads();  // the tile is there, and every warp has left the stage that is filled next
      const uint32_t filled = stage == stages ? stages + (T::kStages - 1) * T::kStageBytes
                                              : stage - T::kStageBytes;
      valid[T::kStages - 1] = load(tile + T::kStages - 1, filled);

#pragma unroll
      for (int step = 0; step < T::kKeyTile; step += T::kStep) {
        float s[T::kMTiles][kSTiles][4];
        const uint32_t lane_keys = T::kParkFeed ? parked->lane_keys : feed.lane_keys;
        multiply_keys(s, query, stage + lane_keys + step * Layout::kPitch);
        if (valid[0] < step + T::kStep) mask_keys(s, lane, valid[0] - step);
        state.step(s, scale_log2, [&](int m, int half, float factor) {
#pragma unroll
          for (int d = 0; d < kDTiles; ++d) {
            o[m][d][2 * half] *= factor;
            o[m][d][2 * half + 1] *= factor;
          }
        });
        multiply_values(o, s, stage + lane_values + T::kTileBytes + step * Layout::kPitch);
      }

#pragma unroll
      for (int i = 0; i < T::kStages - 1; ++i) valid[i] = valid[i + 1];
      stage = stage == stages + (T::kStages - 1) * T::kStageBytes ? stages : stage + T::kStageBytes;
    }

    state.finish();
    __syncthreads();  // shared memory is free for the output
    // Asked again rather than held: the loop has no register to spare.
    const RowId mine = row_of_work_item(p, blockIdx.x);
    if (!mine.valid) return;
    store(p, o, state, shared + T::kQueryOffset + warp_row * Layout::kPitch, lane,
          static_cast<uint64_t>(mine.q_block) * T::kBlock + warp_row, mine.head, scale_log2);
  }
};

}  // namespace cake

// extern "C" names carry the variant: cake_vsa_portable_r64_d128_bf16.
#define CAKE_FAMILY portable
#include "vsa_names.cuh"

using Traits = cake::PortableTraits<CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_BF16>;

extern "C" __constant__ const uint32_t CAKE_GEOMETRY[2] = {Traits::kThreads, Traits::kSharedBytes};

extern "C" __global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtas)
    CAKE_KERNEL(const __grid_constant__ CakeVsaParams params) {
  cake::Portable<Traits>::run(params);
}
