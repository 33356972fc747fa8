// Tiles, shared memory and list walking of the grouped Hopper kernel; what its roles have in common.
#pragma once
#include <stdint.h>

#include "vsa_params.h"
#include "vsa_rows.cuh"
#include "vsa_sm90_warpgroup.cuh"

namespace cake {

template <int kHeadDim_, bool kBf16_>
struct GroupTraits {
  static constexpr int kBlock = 64;
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr bool kBf16 = kBf16_;

  static constexpr int kMembers = 2;  // rows of a group, a consumer warpgroup each
  static constexpr int kThreads = (kMembers + 1) * 128;
  static constexpr int kProducerRegisters = 56;
  static constexpr int kConsumerRegisters = 224;

  // A stage holds two tiles, the rows of the second below those of the first: 128 keys.
  using Panels = HopperPanels<kHeadDim>;
  using Math = Warpgroup<2 * kBlock, kHeadDim, kBf16>;
  using Softmax = SoftmaxState<1, true>;
  static constexpr int kTileBytes = kBlock * kHeadDim * 2;
  static constexpr int kTilePanelBytes = kBlock * Panels::kWidth;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr int kPanelBytes = 2 * kTilePanelBytes;
  static constexpr int kStages = 3;  // of K, and as many of V

  static constexpr int kQueryOffset = 0;
  static constexpr int kKeyOffset = kMembers * kTileBytes;
  static constexpr int kValueOffset = kKeyOffset + kStages * kStageBytes;
  static constexpr int kBarrierOffset = kValueOffset + kStages * kStageBytes;
  static constexpr int kStageBarriers = 16;  // that a stage has room for
  static constexpr int kSharedBytes = kBarrierOffset + (kStages + 1) * kStageBarriers * 8;
  static_assert(kSharedBytes <= 232448, "shared memory of a CTA");
};

// Addresses of the ring. The barriers of a stage lie together, so that what a step needs is one
// register and constants.
template <class T>
struct GroupRing {
  uint32_t shared;
  __device__ uint32_t query(int slot) const { return shared + T::kQueryOffset + slot * T::kTileBytes; }
  __device__ uint32_t key(int stage) const { return shared + T::kKeyOffset + stage * T::kStageBytes; }
  __device__ uint32_t value(int stage) const {
    return shared + T::kValueOffset + stage * T::kStageBytes;
  }
  __device__ uint32_t barrier(int stage, int i) const {
    return shared + T::kBarrierOffset + (stage * T::kStageBarriers + i) * 8;
  }
  // Fillings of a stage take turns between two barriers (see Stage).
  __device__ uint32_t key_full(int stage, int filling) const { return barrier(stage, filling); }
  __device__ uint32_t value_full(int stage, int filling) const { return barrier(stage, 2 + filling); }
  __device__ uint32_t key_empty(int stage) const { return barrier(stage, 4); }
  __device__ uint32_t value_empty(int stage) const { return barrier(stage, 5); }
  // A short tile of V has landed, and is to be cleared past its end.
  __device__ uint32_t value_landed(int stage) const { return barrier(stage, 6); }
  // The n-th stage of a member, counted by itself, has been issued: completes at turn n % kStages.
  __device__ uint32_t key_issued(int slot, int turn) const { return barrier(turn, 7 + slot); }
  __device__ uint32_t value_issued(int slot, int turn) const {
    return barrier(turn, 7 + T::kMembers + slot);
  }
  __device__ uint32_t query_full(int slot) const { return barrier(T::kStages, slot); }

  __device__ void init() const {
    for (int slot = 0; slot < T::kMembers; ++slot) ptx::mbarrier_init(query_full(slot), 1);
    for (int stage = 0; stage < T::kStages; ++stage) {
      for (int i = 0; i < 7 + 2 * T::kMembers; ++i) {
        const bool counts_members = i == 4 || i == 5;
        ptx::mbarrier_init(barrier(stage, i), counts_members ? T::kMembers : 1);
      }
    }
    ptx::mbarrier_init_fence();
  }
};

// The stages of the groups that a CTA works on, 32 at a time, one a lane; the next 32 are fetched
// ahead. Every warp of the CTA walks them alike.
struct StageList {
  const CakeVsaParams &p;
  uint32_t block[2];
  uint32_t members[2];  // slots that have a row and want the block, which there is
  int tokens[2];        // 0 where there are none
  int count = 0;        // entries of the group at hand
  uint32_t slots = 0;   // of the group at hand that have a row, a bit each: the role sets them
  uint32_t next_group;
  int next_base = 0;
  int next_count = 0;
  uint32_t next_blocks[2];  // two words, or halves of the first: work on them would await them
  uint32_t next_members = 0;

  __device__ explicit StageList(const CakeVsaParams &params) : p(params), next_group(blockIdx.x) {
    fetch();
  }
  __device__ void fetch() {
    if (next_group >= p.num_groups) return;
    if (next_base == 0) next_count = load_ahead(p.group_counts + next_group);
    const uint32_t stages = p.group_stride / 2;
    const uint32_t at = next_group * stages + min(next_base / 2 + threadIdx.x % 32, stages - 1);
    const bool wide = p.index_bytes == 4;
    const uint32_t *words = static_cast<const uint32_t *>(p.group_blocks) + (wide ? 2 * at : at);
    next_blocks[0] = __ldg(words);
    if (wide) next_blocks[1] = __ldg(words + 1);
    next_members = __ldg(reinterpret_cast<const uint16_t *>(p.group_members) + at);
  }
  __device__ void advance() {
    if (next_base == 0) {
      count = ptx::uniform(min(max(next_count, 0), static_cast<int>(p.group_stride)));
    }
    const int entry = next_base + static_cast<int>(threadIdx.x % 32) * 2;
    const bool wide = p.index_bytes == 4;
    block[0] = wide ? next_blocks[0] : next_blocks[0] & 0xFFFF;
    block[1] = wide ? next_blocks[1] : next_blocks[0] >> 16;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool listed = entry + half < count && block[half] < p.kv_blocks;
      members[half] = listed ? next_members >> 8 * half & slots : 0;
      tokens[half] = members[half] != 0 ? block_tokens<64>(p, block[half]) : 0;
    }
    next_base += 64;
    if (next_base >= count) {
      next_base = 0;
      next_group += gridDim.x;
    }
    fetch();
  }
  // For the group that the next advance() begins, its rows in slots 0 and 1.
  __device__ void begin(uint32_t row0, uint32_t row1) {
    slots = (row0 < p.num_rows ? 1 : 0) | (row1 < p.num_rows ? 2 : 0);
  }
  // Lanes whose stage has a key.
  __device__ uint32_t present() const {
    return __ballot_sync(0xFFFFFFFFu, tokens[0] > 0 || tokens[1] > 0);
  }
  // Whether the 32 at hand are their group's last.
  __device__ bool last() const { return next_base == 0; }
};

// A stage as one member sees it, in a word.
struct Stage {
  uint32_t word = 0;
  // Valid tokens of its two tiles, 0 for one that the member does not want.
  __device__ int tokens(int half) const { return word >> 7 * half & 0x7F; }
  __device__ bool full() const { return (word & 0x3FFF) == (64 | 64 << 7); }
  // Which of the stage's two barriers counts this filling, and the parity of its phase there.
  __device__ uint32_t filling() const { return word >> 14 & 1; }
  __device__ uint32_t parity() const { return word >> 15 & 1; }
  // Whether the rings reach from the member's stage before to this one.
  __device__ bool near() const { return word >> 16 & 1; }
  // Whether one ring does. Then the filling before the last, which has the barrier and the other
  // parity, has been read by its members; further off it might not even have landed.
  __device__ bool close() const { return word >> 17 & 1; }
  __device__ uint32_t index() const { return word >> 18 & 7; }
  // The member's own count of stages: index and parity.
  __device__ uint32_t turn() const { return word >> 21 & 7; }
  __device__ uint32_t turn_parity() const { return word >> 24 & 1; }
};

// The stages that one member of a group wants.
template <int kStages>
struct StageWalk {
  StageList list;
  uint32_t slot;
  uint32_t position = 0;  // of the first stage after the 32 at hand
  uint32_t last = 0;      // of the member's last one
  uint32_t turns = 0;     // stages of the member so far, those at hand included
  uint32_t mine = 0;      // lanes whose stage the member wants and has not taken
  uint32_t word = 0;      // this lane's stage
  __device__ StageWalk(const CakeVsaParams &p, uint32_t s) : list(p), slot(s) {}

  __device__ void advance() {
    list.advance();
    const uint32_t before = (1u << threadIdx.x % 32) - 1;
    const uint32_t present = list.present();
    const uint32_t tokens = (list.members[0] >> slot & 1 ? list.tokens[0] : 0) |
                            (list.members[1] >> slot & 1 ? list.tokens[1] : 0) << 7;
    mine = __ballot_sync(0xFFFFFFFFu, tokens != 0);
    const uint32_t at = position + __popc(present & before);
    const uint32_t turn = turns + __popc(mine & before);
    const uint32_t shuffled = __shfl_sync(0xFFFFFFFFu, at, 31 - __clz(mine & before));
    const uint32_t gap = at - ((mine & before) != 0 ? shuffled : last);
    // Until a stage's third filling no barrier has had a phase before.
    const bool close = at < 2 * kStages || (turn != 0 && gap <= kStages);
    word = tokens | (at / kStages & 1) << 14 | (at / kStages >> 1 & 1) << 15 |
           (turn != 0 && gap <= 2 * kStages) << 16 | close << 17 |
           at % kStages << 18 | turn % kStages << 21 | (turn / kStages & 1) << 24;
    if (mine != 0) last = __shfl_sync(0xFFFFFFFFu, at, 31 - __clz(mine));
    position += __popc(present);
    turns += __popc(mine);
  }
  __device__ bool next(Stage &stage) {
    while (mine == 0) {
      if (list.last()) return false;
      advance();
    }
    stage.word = __shfl_sync(0xFFFFFFFFu, word, __ffs(mine) - 1);
    mine &= mine - 1;
    return true;
  }
};

}  // namespace cake
