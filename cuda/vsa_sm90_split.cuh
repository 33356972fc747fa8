// Tiles and shared memory of the Hopper kernel for few rows.
#pragma once
#include <stdint.h>

#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "vsa_params.h"
#include "vsa_rows.cuh"
#include "vsa_sm90_warpgroup.cuh"
#include "vsa_softmax.cuh"

namespace cake {

template <int kHeadDim_, bool kBf16_>
struct SplitTraits {
  static constexpr int kBlock = 64;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kBf16 = kBf16_;

  // One or two consumer warpgroups, as launched; the producer warp comes behind them.
  static constexpr int kMaxThreads = 2 * 128 + 32;
  // Every CTA of a cluster gets whole tiles of 8 columns of the result.
  static constexpr int kMaxParts = kHeadDim % 64 == 0 ? 8 : 4;

  using Panels = HopperPanels<kHeadDim>;
  using Math = Warpgroup<kBlock, kHeadDim, kBf16>;
  using Softmax = SoftmaxState<1, true>;
  static constexpr int kPanelBytes = kBlock * Panels::kWidth;
  static constexpr int kTileBytes = Panels::kPanels * kPanelBytes;
  static constexpr int kOutputBytes = kBlock * kHeadDim * 4;
  static constexpr int kStages = 4;  // of K, and as many of V

  static constexpr int kQueryOffset = 0;
  static constexpr int kKeyOffset = kTileBytes;
  static constexpr int kValueOffset = kKeyOffset + kStages * kTileBytes;
  static constexpr int kPairOffset = kValueOffset + kStages * kTileBytes;
  static constexpr int kPartOffset = kPairOffset + kOutputBytes;
  static constexpr int kSumOffset = kPartOffset + kOutputBytes;
  static constexpr int kBarrierOffset = kSumOffset + (2 + kMaxParts) * kBlock * 8;
  static constexpr int kBarriers = 5 + 4 * kStages;
  static constexpr int kTokenOffset = kBarrierOffset + kBarriers * 8;
  static constexpr int kTokens = 2 * kStages;
  static constexpr int kSharedBytes = (kTokenOffset + 4 * kTokens + 127) / 128 * 128;
  static_assert(kSharedBytes <= 232448, "shared memory of a CTA");
};

// Addresses in shared memory.
template <class T>
struct SplitShared {
  uint32_t shared;
  __device__ uint32_t query() const { return shared + T::kQueryOffset; }
  __device__ uint32_t key(int stage) const { return shared + T::kKeyOffset + stage * T::kTileBytes; }
  __device__ uint32_t value(int stage) const {
    return shared + T::kValueOffset + stage * T::kTileBytes;
  }
  __device__ uint32_t barrier(int i) const { return shared + T::kBarrierOffset + 8 * i; }
  __device__ uint32_t query_full() const { return barrier(0); }
  __device__ uint32_t sums_full() const { return barrier(1); }
  __device__ uint32_t parts_full() const { return barrier(2); }
  __device__ uint32_t key_full(int stage) const { return barrier(3 + stage); }
  __device__ uint32_t value_full(int stage) const { return barrier(3 + T::kStages + stage); }
  __device__ uint32_t key_empty(int stage) const { return barrier(3 + 2 * T::kStages + stage); }
  __device__ uint32_t value_empty(int stage) const { return barrier(3 + 3 * T::kStages + stage); }
  // V of the warpgroup's block has zeros past its end. No named barrier: racecheck loses track of
  // those of both warpgroups where each has had another number of its own.
  __device__ uint32_t cleared(int group) const { return barrier(3 + 4 * T::kStages + group); }
  __device__ void init() const {
    for (int i = 0; i < T::kBarriers - 2; ++i) ptx::mbarrier_init(barrier(i), 1);
    for (int group = 0; group < 2; ++group) ptx::mbarrier_init(cleared(group), 128);
    ptx::mbarrier_init_fence();
  }
  // Tokens of the i-th block, 0 for the end. A slot comes round again only after two rounds of K's
  // stages, when nobody reads it any more.
  __device__ uint32_t tokens(uint32_t i) const {
    return shared + T::kTokenOffset + i % T::kTokens * 4;
  }
  // Four accumulators of a thread in tile `tile`: from one warpgroup to the other, and from a CTA
  // to another, where `tile` counts the tiles of its columns through all parts.
  __device__ uint32_t pair_output(uint32_t tile, uint32_t thread) const {
    return shared + T::kPairOffset + (tile * 128 + thread) * 16;
  }
  __device__ uint32_t part_output(uint32_t tile, uint32_t thread) const {
    return shared + T::kPartOffset + (tile * 128 + thread) * 16;
  }
  // Reference and sum of a row, likewise.
  __device__ uint32_t pair_sums(uint32_t group, uint32_t row) const {
    return shared + T::kSumOffset + (group * T::kBlock + row) * 8;
  }
  __device__ uint32_t part_sums(uint32_t part, uint32_t row) const {
    return shared + T::kSumOffset + ((2 + part) * T::kBlock + row) * 8;
  }
};

// Where a warpgroup stands among those that share a row.
struct Part {
  uint32_t number, count;  // of the CTA in the cluster
  uint32_t group, groups;  // of the warpgroup in the CTA; the producer's is `groups`
  __device__ __forceinline__ Part()
      : number(ptx::cluster_rank()), count(ptx::cluster_size()),
        // Through shfl, so that the assembler knows that a warp has one role.
        group(__shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0)), groups(blockDim.x / 128) {}
};

}  // namespace cake
