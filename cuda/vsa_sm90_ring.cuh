// Tiles, shared memory and the ring of the Hopper kernels; what the roles have in common.
#pragma once
#include <stdint.h>

#include <type_traits>

#include "ptx/wgmma.cuh"
#include "vsa_params.h"
#include "vsa_rows.cuh"
#include "vsa_sm90_warpgroup.cuh"

namespace cake {

template <int kBlock_, int kHeadDim_, bool kBf16_>
struct HopperTraits {
  static constexpr int kBlock = kBlock_;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kBf16 = kBf16_;

  static constexpr int kGroups = kBlock / 64;  // consumer warpgroups
  // Registers move from the producer to the consumers by warpgroup; a single consumer needs none.
  static constexpr bool kMoveRegisters = kGroups == 2;
  static constexpr int kProducerThreads = kMoveRegisters ? 128 : 32;
  static constexpr int kThreads = kGroups * 128 + kProducerThreads;
  // CTAs of an SM: as many as registers allow without spills.
  static constexpr int kMinCtas = kGroups == 2 ? 1 : kHeadDim == 128 ? 2 : 3;

  using Panels = HopperPanels<kHeadDim>;
  static constexpr int kPanelBytes = kBlock * Panels::kWidth;
  static constexpr int kTileBytes = Panels::kPanels * kPanelBytes;
  static constexpr int kKeyStages = 2;
  static constexpr int kValueStages = 2;
  static constexpr bool kTurns = kGroups == 2;
  // A CTA that has an SM to itself takes row after row, so that a row's first loads run behind the
  // end of the one before. CTAs that share an SM hide each other's, and the hardware balances them.
  static constexpr bool kPersistent = kGroups == 2;

  static constexpr int kQueryOffset = 0;
  static constexpr int kKeyOffset = kTileBytes;
  static constexpr int kValueOffset = kKeyOffset + kKeyStages * kTileBytes;
  static constexpr int kOutputOffset = kValueOffset + kValueStages * kTileBytes;
  static constexpr int kBarrierOffset = kOutputOffset + kTileBytes;
  static constexpr int kBarriers = 2 + 2 * kKeyStages + 2 * kValueStages;
  static constexpr int kSharedBytes = kBarrierOffset + (8 * kBarriers + 127) / 128 * 128;
};

// Addresses of the ring; a barrier has 8 bytes.
template <class T>
struct HopperRing {
  uint32_t shared;
  __device__ uint32_t key(int stage) const { return shared + T::kKeyOffset + stage * T::kTileBytes; }
  __device__ uint32_t value(int stage) const {
    return shared + T::kValueOffset + stage * T::kTileBytes;
  }
  __device__ uint32_t barrier(int i) const { return shared + T::kBarrierOffset + 8 * i; }
  __device__ uint32_t query_full() const { return barrier(0); }
  __device__ uint32_t query_empty() const { return barrier(1); }
  __device__ uint32_t key_full(int stage) const { return barrier(2 + stage); }
  __device__ uint32_t key_empty(int stage) const { return barrier(2 + T::kKeyStages + stage); }
  __device__ uint32_t value_full(int stage) const {
    return barrier(2 + 2 * T::kKeyStages + stage);
  }
  __device__ uint32_t value_empty(int stage) const {
    return barrier(2 + 2 * T::kKeyStages + T::kValueStages + stage);
  }
};

// Where a thread stands in a ring of kStages; `parity` is that of the phase it waits for next.
template <int kStages>
struct Cursor {
  int stage = 0;
  uint32_t parity;
  __device__ explicit Cursor(uint32_t p) : parity(p) {}
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Walks the blocks of a row that have keys. Producer and consumers do it alike. Entries are read one
// ahead; the first together with the count, which halves the wait before a row's first copy.
template <int kBlock>
struct Walk {
  const CakeVsaParams &p;
  uint32_t row;
  uint32_t ahead;
  int count;
  int i = -1;
  uint32_t block = 0;
  int tokens = 0;
  __device__ Walk(const CakeVsaParams &params, uint32_t r)
      : p(params), row(r), ahead(row_block(params, r, 0)), count(row_count(params, r)) {}
  __device__ bool next() {
    while (++i < count) {
      block = ahead;
      ahead = row_block(p, row, min(i + 1, count - 1));
      tokens = block_tokens<kBlock>(p, block);
      if (tokens > 0) return true;
    }
    return false;
  }
};

// The rows of a CTA to its consumers, each list walked entry by entry.
template <int kBlock>
struct ListedRows {
  const CakeVsaParams &p;
  __device__ explicit ListedRows(const CakeVsaParams &params) : p(params) {}
  __device__ uint32_t row(uint32_t item) const { return row_of_item(p, item); }
  __device__ Walk<kBlock> walk(uint32_t row) const { return {p, row}; }
  __device__ void turn() {}
};

// The same where no block is short: of a row its consumers need but the number of blocks with keys.
// That of the next row is counted while this one is computed, and no step has anything to load.
struct CountedRows {
  struct Counted {
    int left;
    static constexpr int tokens = 128;
    __device__ bool next() { return left-- > 0; }
  };
  const CakeVsaParams &p;
  uint32_t row_at_hand;   // at first, and after turn(), the one that row() gives
  uint32_t row_behind;    // the row after it
  int count = 0;          // of its list's entries
  uint32_t narrow = 0, wide = 0;  // this lane's entry of 2 or 4 bytes: one register would await it
  int length = 0;

  __device__ explicit CountedRows(const CakeVsaParams &params)
      : p(params), row_at_hand(ptx::uniform(read_row(blockIdx.x))),
        row_behind(read_row(blockIdx.x + gridDim.x)) {
    read();
    turn();
  }
  __device__ uint32_t read_row(uint32_t item) const {
    if (item >= p.num_rows) return CAKE_VSA_NO_ROW;
    return p.tile_order != nullptr ? load_ahead(p.tile_order + item) : item;
  }
  // What turn() counts, read ahead.
  __device__ void read() {
    if (row_at_hand >= p.num_rows) return;
    count = load_ahead(p.row_counts + row_at_hand);
    const uint32_t at = row_at_hand * p.row_stride + min(threadIdx.x % 32, p.row_stride - 1);
    if (p.index_bytes == 4) {
      wide = __ldg(static_cast<const uint32_t *>(p.row_blocks) + at);
    } else {
      narrow = __ldg(static_cast<const uint16_t *>(p.row_blocks) + at);
    }
  }
  // Once for each item of the CTA; from here on the next row is read.
  __device__ uint32_t row(uint32_t item) {
    const uint32_t mine = row_at_hand;
    row_at_hand = ptx::uniform(row_behind);
    row_behind = read_row(item + 2 * gridDim.x);
    read();
    return mine;
  }
  __device__ Counted walk(uint32_t) const { return {length}; }
  // Counts the blocks of the row that comes next, after the walk.
  __device__ void turn() {
    length = 0;
    if (row_at_hand >= p.num_rows) return;
    const int lane = threadIdx.x % 32;
    const int listed = ptx::uniform(min(max(count, 0), static_cast<int>(p.row_stride)));
    uint32_t block = p.index_bytes == 4 ? wide : narrow;
#pragma unroll 1
    for (int base = 0; base < listed; base += 32) {
      if (base != 0) block = row_block(p, row_at_hand, min(base + lane, listed - 1));
      length += __popc(__ballot_sync(0xFFFFFFFFu, base + lane < listed && block < p.kv_blocks));
    }
    length = ptx::uniform(length);
  }
};

}  // namespace cake
