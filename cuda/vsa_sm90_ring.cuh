// Tiles, shared memory and the ring of the Hopper kernels; what the roles have in common.
#pragma once
#include <stdint.h>

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

}  // namespace cake
