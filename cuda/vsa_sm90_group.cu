// Block-sparse attention forward for Hopper, 64-token blocks: two query blocks share the K and V
// tiles that both select. Compiled once a variant, with CAKE_BLOCK (64), CAKE_HEAD_DIM, CAKE_BF16.
//
// A CTA takes group after group. Two producer warps stream the stages of the groups' union lists, K
// and V apart, through rings; each of two consumer warpgroups owns a row and takes the stages that
// it selects, two tiles at once, as the row kernel takes a block of 128.
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "vsa_params.h"
#include "vsa_sm90_group.cuh"
#include "vsa_sm90_warpgroup.cuh"
#include "vsa_softmax.cuh"

namespace cake {

template <class T>
struct Grouped {
  using Ring = GroupRing<T>;
  using Panels = typename T::Panels;
  using Math = typename T::Math;
  using Softmax = typename T::Softmax;
  using Walk = StageWalk<T::kStages>;

  // The stages of all groups, to a function that every lane of the warp calls with the list, the
  // lane that holds the stage, its position in the CTA's stream and the KV head.
  template <class Each>
  __device__ __forceinline__ static void for_each_stage(const CakeVsaParams &p, Each each) {
    const uint32_t heads = p.num_qo_heads / p.num_kv_heads;
    uint32_t position = 0;
    StageList list(p);
    for (uint32_t group = blockIdx.x; group < p.num_groups; group += gridDim.x) {
      const uint32_t *rows = p.group_rows + group * CAKE_VSA_GROUP_ROWS;
      const uint32_t row = __ldg(rows);
      const int kv_head = row / p.q_blocks / heads;
      list.begin(row, __ldg(rows + 1));
      do {
        list.advance();
        for (uint32_t left = list.present(); left != 0; left &= left - 1, ++position) {
          each(list, __ffs(left) - 1, position, kv_head);
        }
      } while (!list.last());
    }
  }

  // Streams K, or V. A stage's second tile is loaded even if it is none, from behind the tensor,
  // where zeros are read: its products need no branch.
  template <bool kValues>
  __device__ static void produce(const CakeVsaParams &p, const Ring &ring,
                                 const CakeTensorMap *map) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t sent = 0;  // stages issued for the member that this lane stands for
    for_each_stage(p, [&](const StageList &list, int at, uint32_t position, int head) {
      const uint32_t index = position % T::kStages, fillings = position / T::kStages;
      int token[2];
      bool is_short = false;
      uint32_t members = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        token[half] =
            min(__shfl_sync(0xFFFFFFFFu, list.block[half], at), p.kv_blocks) * T::kBlock;
        const int tokens = __shfl_sync(0xFFFFFFFFu, list.tokens[half], at);
        const uint32_t wanted = __shfl_sync(0xFFFFFFFFu, list.members[half], at);
        if (tokens > 0) members |= wanted;
        if (wanted != 0 && tokens < T::kBlock) is_short = true;
      }
      if (lane == 0) {
        const uint32_t empty = kValues ? ring.value_empty(index) : ring.key_empty(index);
        const uint32_t full = !kValues   ? ring.key_full(index, fillings & 1)
                              : is_short ? ring.value_landed(index)
                                         : ring.value_full(index, fillings & 1);
        const uint32_t stage = kValues ? ring.value(index) : ring.key(index);
        ptx::mbarrier_wait_asleep(empty, (fillings & 1) ^ 1);
        ptx::mbarrier_expect(full, T::kStageBytes);
        Panels::load(stage, T::kPanelBytes, map, head, token[0], full);
        Panels::load(stage + T::kTilePanelBytes, T::kPanelBytes, map, head, token[1], full);
        // On behalf of those that do not want it.
        const uint32_t others = T::kMembers - __popc(members);
        if (others != 0) ptx::mbarrier_arrive(empty, others);
      }
      __syncwarp();
      if (members >> lane & 1) {
        ptx::mbarrier_arrive(kValues ? ring.value_issued(lane, sent % T::kStages)
                                     : ring.key_issued(lane, sent % T::kStages));
        ++sent;
      }
    });
  }

  // Zeroes the rows of short V tiles past their end, before any member sees them: 0 x NaN is NaN in
  // the tensor core.
  __device__ static void clear_values(const CakeVsaParams &p, const Ring &ring) {
    constexpr int kChunks = Panels::kWidth / 16;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t parities = 0;  // of the phase to wait for, a bit a stage
    for_each_stage(p, [&](const StageList &list, int at, uint32_t position, int) {
      const uint32_t index = position % T::kStages, fillings = position / T::kStages;
      int first[2];  // row to clear
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int tokens = __shfl_sync(0xFFFFFFFFu, list.tokens[half], at);
        const bool wanted = __shfl_sync(0xFFFFFFFFu, list.members[half], at) != 0;
        first[half] = wanted ? tokens : T::kBlock;
      }
      if (first[0] == T::kBlock && first[1] == T::kBlock) return;
      ptx::mbarrier_wait_asleep(ring.value_landed(index), parities >> index & 1);
      parities ^= 1u << index;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t rows = ring.value(index) + half * T::kTilePanelBytes;
        const uint32_t chunks = Panels::kPanels * (T::kBlock - first[half]) * kChunks;
        for (uint32_t i = lane; i < chunks; i += 32) {
          const uint32_t to = rows + i % Panels::kPanels * T::kPanelBytes +
                              first[half] * Panels::kWidth + i / Panels::kPanels * 16;
          asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
        }
      }
      ptx::fence_async_shared();
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ring.value_full(index, fillings & 1));
    });
  }

  __device__ __forceinline__ static void mask(typename Math::Logits &s, int lane,
                                              const Stage &stage) {
    if (stage.full()) return;
    using Half = float[1][T::kBlock / 8][4];
    mask_keys(reinterpret_cast<Half &>(s[0][0]), lane, stage.tokens(0));
    mask_keys(reinterpret_cast<Half &>(s[0][T::kBlock / 8]), lane, stage.tokens(1));
  }

  // What a consumer warpgroup asks of the ring. Its first thread releases a stage for all: between its
  // waits and a release the warpgroup has multiplied together, so that every warp has waited, too.
  struct Member {
    Ring ring;
    int slot;
    int thread;  // of the warpgroup
    __device__ uint32_t wait_keys(const Stage &stage) const {
      if (!stage.close()) {
        ptx::mbarrier_wait(ring.key_issued(slot, stage.turn()), stage.turn_parity());
      }
      ptx::mbarrier_wait(ring.key_full(stage.index(), stage.filling()), stage.parity());
      return ring.key(stage.index());
    }
    __device__ uint32_t wait_values(const Stage &stage) const {
      if (!stage.close()) {
        ptx::mbarrier_wait(ring.value_issued(slot, stage.turn()), stage.turn_parity());
      }
      ptx::mbarrier_wait(ring.value_full(stage.index(), stage.filling()), stage.parity());
      return ring.value(stage.index());
    }
    __device__ void release_keys(const Stage &stage) const {
      if (thread == 0) ptx::mbarrier_arrive(ring.key_empty(stage.index()));
    }
    __device__ void release_values(const Stage &stage) const {
      if (thread == 0) ptx::mbarrier_arrive(ring.value_empty(stage.index()));
    }
  };

  __device__ static void consume(const CakeVsaParams &p, const Ring &ring,
                                 const CakeTensorMap *q_map, int slot) {
    const int thread = threadIdx.x % 128;
    const int lane = threadIdx.x % 32;
    const uint32_t own = 1 + slot;  // named barrier of the warpgroup
    const Member member = {ring, slot, thread};
    const float scale = softmax_scale(p.sm_scale);
    auto row_of = [&](uint32_t group, int of) {
      return group < p.num_groups ? load_ahead(p.group_rows + group * CAKE_VSA_GROUP_ROWS + of)
                                  : CAKE_VSA_NO_ROW;
    };
    auto load_query = [&](uint32_t row) {
      if (thread == 0 && row < p.num_rows) {
        ptx::mbarrier_expect(ring.query_full(slot), T::kTileBytes);
        Panels::load(ring.query(slot), T::kTilePanelBytes, q_map, row / p.q_blocks,
                     row % p.q_blocks * T::kBlock, ring.query_full(slot));
      }
    };

    uint32_t row = ptx::uniform(row_of(blockIdx.x, slot));
    uint32_t other = ptx::uniform(row_of(blockIdx.x, slot ^ 1));
    Walk walk(p, slot);
    // Q and the list of the group that comes next.
    auto begin = [&]() {
      load_query(row);
      walk.list.begin(slot == 0 ? row : other, slot == 0 ? other : row);
      walk.advance();
    };
    begin();
    uint32_t query_parity = 0;
    for (uint32_t group = blockIdx.x; group < p.num_groups; group += gridDim.x) {
      const uint32_t next_row = row_of(group + gridDim.x, slot);
      const uint32_t next_other = row_of(group + gridDim.x, slot ^ 1);
      const uint32_t at = row;
      auto turn = [&]() {
        row = ptx::uniform(next_row);
        other = ptx::uniform(next_other);
        begin();
      };
      Stage stage, next;
      bool more = walk.next(stage);
      if (at >= p.num_rows) {  // no row, and no stages
        turn();
      } else {
        Softmax state;
        typename Math::Output o;
        Math::clear(o);
        ptx::mbarrier_wait(ring.query_full(slot), query_parity);
        query_parity ^= 1;
        if (!(p.sm_scale > 0.0f)) {
          Math::apply_sign(ring.query(slot), T::kTilePanelBytes, thread, p.sm_scale, own);
        }
        if (!more) {
          ptx::barrier_sync(own, 128);  // every warp has seen this row's Q land
          turn();
        }
        while (more) {
          typename Math::Logits s;
          typename Math::Weights weights;
          typename Math::Rescale rescale;
          const uint32_t first_keys = member.wait_keys(stage);
          ptx::wgmma_fence();
          Math::template multiply_keys<T::kTilePanelBytes, T::kPanelBytes>(s, ring.query(slot),
                                                                           first_keys);
          ptx::wgmma_commit();
          more = walk.next(next);
          ptx::wgmma_wait<0>();
          ptx::wgmma_own(s[0]);
          member.release_keys(stage);
          mask(s, lane, stage);
          state.step(s, scale, rescale);
          rescale.apply(o);
          Math::pack_weights(weights, s);
          // A stage of V is held while the next of K is awaited, for which the other member must get
          // on: it can as long as the rings reach that far.
          while (more && next.near()) {
            const uint32_t keys = member.wait_keys(next);
            ptx::wgmma_fence();
            Math::template multiply_keys<T::kTilePanelBytes, T::kPanelBytes>(s, ring.query(slot),
                                                                             keys);
            ptx::wgmma_commit();
            const uint32_t values = member.wait_values(stage);
            ptx::wgmma_fence();
            Math::template multiply_values<T::kPanelBytes>(o, weights, values);
            ptx::wgmma_commit();
            const Stage last = stage;
            stage = next;
            more = walk.next(next);
            ptx::wgmma_wait<1>();
            ptx::wgmma_own(s[0]);
            member.release_keys(stage);
            mask(s, lane, stage);
            rescale.moved = false;
            state.step(s, scale, rescale);
            ptx::wgmma_wait<0>();
            ptx::wgmma_own(o);
            member.release_values(last);
            rescale.apply(o);
            Math::pack_weights(weights, s);
          }
          const uint32_t last_values = member.wait_values(stage);
          ptx::wgmma_fence();
          Math::template multiply_values<T::kPanelBytes>(o, weights, last_values);
          ptx::wgmma_commit();
          if (!more) {
            ptx::barrier_sync(own, 128);  // every warp is done with Q
            turn();
          }
          ptx::wgmma_wait<0>();
          ptx::wgmma_own(o);
          member.release_values(stage);
          stage = next;
        }
        state.finish();
        const uint32_t head = at / p.q_blocks;
        const uint64_t first_token = static_cast<uint64_t>(at - head * p.q_blocks) * T::kBlock;
        Math::store(p, o, state, head, first_token, thread, scale);
      }
    }
  }

  __device__ static void run(const CakeVsaParams &p, const CakeTensorMap *q, const CakeTensorMap *k,
                             const CakeTensorMap *v) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring = {static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
    if (threadIdx.x == 0) {
      ptx::prefetch_tensor_map(q);
      ptx::prefetch_tensor_map(k);
      ptx::prefetch_tensor_map(v);
      ring.init();
    }
    __syncthreads();
    // Through shfl, so that the assembler knows that a warp has one role.
    const int role = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
    if (role == T::kMembers) {
      ptx::give_registers<T::kProducerRegisters>();
      const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32 % 4, 0);
      if (warp == 0) produce<false>(p, ring, k);
      if (warp == 1) produce<true>(p, ring, v);
      if (warp == 2 && p.kv_block_lens != nullptr) clear_values(p, ring);
    } else {
      ptx::take_registers<T::kConsumerRegisters>();
      consume(p, ring, q, role);
    }
  }
};

}  // namespace cake

#define CAKE_FAMILY sm90_group
#include "vsa_names.cuh"

static_assert(CAKE_BLOCK == 64, "the block of this family");
using Traits = cake::GroupTraits<CAKE_HEAD_DIM, CAKE_BF16>;

extern "C" __constant__ const uint32_t CAKE_GEOMETRY[2] = {Traits::kThreads, Traits::kSharedBytes};

extern "C" __global__ void __launch_bounds__(Traits::kThreads, 1)
    CAKE_KERNEL(const __grid_constant__ CakeVsaParams params,
                const __grid_constant__ CakeTensorMap q, const __grid_constant__ CakeTensorMap k,
                const __grid_constant__ CakeTensorMap v, const __grid_constant__ CakeTensorMap out) {
  cake::Grouped<Traits>::run(params, &q, &k, &v);
}
