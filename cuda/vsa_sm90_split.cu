// Block-sparse attention forward for Hopper, 64-token blocks, few rows: the CTAs of a cluster share a
// row. Compiled once a variant, with CAKE_BLOCK (64), CAKE_HEAD_DIM, CAKE_BF16.
//
// A producer warp streams the K and V tiles of the CTA's part of the list, every so many blocks,
// through rings; one or two consumer warpgroups take them in turns, and issue Q K^T of the next block
// before P V of this one. The parts of a row are joined through shared memory, that of the CTA and
// that of the cluster. Made for a short way from the launch to the first copy, and from the last one
// to the end.
#include "ptx/cluster.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "vsa_params.h"
#include "vsa_rows.cuh"
#include "vsa_sm90_split.cuh"
#include "vsa_sm90_split_join.cuh"
#include "vsa_sm90_warpgroup.cuh"
#include "vsa_softmax.cuh"

namespace cake {

constexpr uint32_t kSigned = 1;  // named barrier: Q has its sign

template <class T>
struct Split {
  using Shared = SplitShared<T>;
  using Panels = typename T::Panels;
  using Math = typename T::Math;
  using Softmax = typename T::Softmax;
  using Join = SplitJoin<T>;

  // What the producer reads of a row's list, 32 blocks at a time, one a lane: part, part + parts, ...
  struct List {
    uint32_t entry = 0, block = 0, count = 0;
    __device__ __forceinline__ List() {}
    // The first blocks, together with the count: what lies past it is read in vain.
    __device__ __forceinline__ List(const CakeVsaParams &p, uint32_t row, const Part &part)
        : entry(part.number + threadIdx.x % 32 * part.count) {
      read(p, row);
      count = row_count(p, row);
    }
    __device__ __forceinline__ void read(const CakeVsaParams &p, uint32_t row) {
      block = row_block(p, row, min(entry, p.row_stride - 1));
    }
    // Whether there are more.
    __device__ __forceinline__ bool next(const CakeVsaParams &p, uint32_t row, const Part &part) {
      entry += 32 * part.count;
      const bool more = __any_sync(0xFFFFFFFFu, entry < count);
      if (more) read(p, row);
      return more;
    }
  };

  // The blocks of a list go to the warpgroups in turns.
  __device__ static void produce(const CakeVsaParams &p, const Shared &shared,
                                 const CakeTensorMap *k, const CakeTensorMap *v, uint32_t row,
                                 uint32_t kv_head, List list, const Part &part) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t number = 0;
    auto wait_for = [&](uint32_t empty) {
      if (number >= T::kStages) ptx::mbarrier_wait(empty, number / T::kStages & 1 ^ 1);
    };
    auto tell = [&](int tokens) {
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.tokens(number)), "r"(tokens) : "memory");
    };
    bool more = true;
    while (more) {
      const int tokens = list.entry < list.count ? block_tokens<T::kBlock>(p, list.block) : 0;
      const uint32_t here = list.block;
      more = list.next(p, row, part);
#pragma unroll 1
      for (uint32_t left = __ballot_sync(0xFFFFFFFFu, tokens > 0); left != 0; left &= left - 1) {
        const int at = __ffs(left) - 1;
        const int token = __shfl_sync(0xFFFFFFFFu, here, at) * T::kBlock;
        const int valid = __shfl_sync(0xFFFFFFFFu, tokens, at);
        const uint32_t stage = number % T::kStages;
        if (ptx::elect()) {
          wait_for(shared.key_empty(stage));
          tell(valid);
          ptx::mbarrier_expect(shared.key_full(stage), T::kTileBytes);
          Panels::load(shared.key(stage), T::kPanelBytes, k, kv_head, token,
                       shared.key_full(stage));
          wait_for(shared.value_empty(stage));
          ptx::mbarrier_expect(shared.value_full(stage), T::kTileBytes);
          Panels::load(shared.value(stage), T::kPanelBytes, v, kv_head, token,
                       shared.value_full(stage));
        }
        __syncwarp();
        ++number;
      }
    }
#pragma unroll 1
    for (uint32_t group = 0; group < part.groups; ++group, ++number) {
      if (lane == 0) {
        wait_for(shared.key_empty(number % T::kStages));
        tell(0);
        ptx::mbarrier_arrive(shared.key_full(number % T::kStages));
      }
    }
  }

  // A block of the rings, as the consumers see it.
  struct Block {
    Shared shared;
    uint32_t number;
    int tokens = 0;
    __device__ __forceinline__ uint32_t stage() const { return number % T::kStages; }
    __device__ __forceinline__ uint32_t parity() const { return number / T::kStages & 1; }
    // Whether there is one.
    __device__ __forceinline__ bool wait() {
      ptx::mbarrier_wait(shared.key_full(stage()), parity());
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tokens) : "r"(shared.tokens(number)) : "memory");
      tokens = ptx::uniform(tokens);
      return tokens > 0;
    }
    __device__ __forceinline__ void wait_values() const {
      ptx::mbarrier_wait(shared.value_full(stage()), parity());
    }
  };

  template <int kGroups, bool kPlain>
  __device__ static void consume(const CakeVsaParams &p, const Shared &shared, const RowId &id,
                                 Part part) {
    part.groups = kGroups;
    const int thread = threadIdx.x % 128;
    const int lane = threadIdx.x % 32;
    const float scale = softmax_scale(p.sm_scale);
    auto release = [&](uint32_t barrier) {
      if (thread == 0) ptx::mbarrier_arrive(barrier);
    };
    auto multiply_keys = [&](typename Math::Logits &s, const Block &block) {
      ptx::wgmma_fence();
      Math::template multiply_keys<T::kPanelBytes, T::kPanelBytes>(s, shared.query(),
                                                                   shared.key(block.stage()));
      ptx::wgmma_commit();
    };
    uint32_t cleared = 0;  // parity
    auto multiply_values = [&](typename Math::Output &o, const typename Math::Weights &weights,
                               const Block &block) {
      block.wait_values();
      const uint32_t values = shared.value(block.stage());
      if (!kPlain && block.tokens < T::kBlock) {
        Math::template clear_values<T::kPanelBytes>(values, block.tokens, thread);
        ptx::mbarrier_arrive(shared.cleared(part.group));
        ptx::mbarrier_wait(shared.cleared(part.group), cleared);
        cleared ^= 1;
      }
      ptx::wgmma_fence();
      Math::template multiply_values<T::kPanelBytes>(o, weights, values);
      ptx::wgmma_commit();
    };

    Softmax state;
    typename Math::Output o;
    Math::clear(o);
    ptx::mbarrier_wait(shared.query_full(), 0);
    if (!kPlain && !(p.sm_scale > 0.0f)) {
      if (part.group == 0) {
        Math::apply_sign(shared.query(), T::kPanelBytes, thread, p.sm_scale);
      }
      ptx::barrier_sync(kSigned, kGroups * 128);
    }
    Block block = {shared, part.group};
    if (block.wait()) {
      typename Math::Logits s;
      typename Math::Weights weights;
      typename Math::Rescale rescale;
      multiply_keys(s, block);
      ptx::wgmma_wait<0>();
      ptx::wgmma_own(s[0]);
      release(shared.key_empty(block.stage()));
      if (!kPlain && block.tokens < T::kBlock) mask_keys(s, lane, block.tokens);
      state.step(s, scale, rescale);
      Math::pack_weights(weights, s);
      Block next = {shared, block.number + kGroups};
#pragma unroll 1
      while (next.wait()) {
        multiply_keys(s, next);
        multiply_values(o, weights, block);
        ptx::wgmma_wait<1>();
        ptx::wgmma_own(s[0]);
        release(shared.key_empty(next.stage()));
        if (!kPlain && next.tokens < T::kBlock) mask_keys(s, lane, next.tokens);
        rescale.moved = false;
        state.step(s, scale, rescale);
        ptx::wgmma_wait<0>();
        ptx::wgmma_own(o);
        release(shared.value_empty(block.stage()));
        rescale.apply(o);
        Math::pack_weights(weights, s);
        block = next;
        next.number += kGroups;
      }
      multiply_values(o, weights, block);
      state.finish();
      ptx::wgmma_wait<0>();
      ptx::wgmma_own(o);
    }
    if constexpr (kGroups == 2) {
      float half[Math::kDTiles / 2][4];
      Join::pair(shared, half, o, state, part.group, thread, scale);
      end(p, shared, part, half, state, part.group * (Math::kDTiles / 2), id, thread, scale);
    } else {
      end(p, shared, part, o, state, 0, id, thread, scale);
    }
  }

  template <int kTiles>
  __device__ __forceinline__ static void end(const CakeVsaParams &p, const Shared &shared,
                                             const Part &part, const float (&o)[kTiles][4],
                                             const Softmax &state, int first, const RowId &id,
                                             int thread, float scale) {
    if (part.count > 1) {
      Join::cluster(p, shared, part, o, state, first, id, thread, scale);
    } else {
      Join::store(p, shared, part, o, state, first, id, thread, scale);
    }
  }

  __device__ static void run(const CakeVsaParams &p, const CakeTensorMap *q, const CakeTensorMap *k,
                             const CakeTensorMap *v) {
    extern __shared__ __align__(1024) char memory[];
    const Shared shared = {static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
    const Part part;
    const uint32_t row = row_of_item(p, ptx::cluster_number());
    if (row >= p.num_rows) return;
    const bool producer = part.group == part.groups;
    RowId id;
    List list;
    uint32_t kv_head;
    if (producer) {
      list = List(p, row, part);
      kv_head = row_id(p, row).head;
      if (p.num_qo_heads != p.num_kv_heads) kv_head /= p.num_qo_heads / p.num_kv_heads;
    } else {
      id = row_id(p, row);
    }
    if (threadIdx.x / 32 == 0) {
      if (ptx::elect()) {
        shared.init();
        if (part.count > 1) Join::expect(shared, part.count);
      }
    } else if (threadIdx.x / 32 == 1) {
      if (ptx::elect()) {
        ptx::prefetch_tensor_map(k);
        ptx::prefetch_tensor_map(v);
      }
    }
    // One barrier for both roles: to synccheck two that meet are one that some threads missed.
    __syncthreads();
    if (producer) {
      produce(p, shared, k, v, row, ptx::uniform(kv_head), list, part);
      return;
    }
    if (threadIdx.x / 32 == 0) {
      const int head = ptx::uniform(id.head), first_token = ptx::uniform(id.q_block * T::kBlock);
      if (ptx::elect()) {
        ptx::mbarrier_expect(shared.query_full(), T::kTileBytes);
        Panels::load(shared.query(), T::kPanelBytes, q, head, first_token, shared.query_full());
      }
    }
    if (part.count > 1) ptx::cluster_arrive();  // the barriers of the join are ready
    // The common case has a path of its own: code to jump over is code to wait for.
    const bool plain = p.kv_block_lens == nullptr && p.sm_scale > 0.0f;
    if (part.groups == 1) {
      plain ? consume<1, true>(p, shared, id, part) : consume<1, false>(p, shared, id, part);
    } else {
      plain ? consume<2, true>(p, shared, id, part) : consume<2, false>(p, shared, id, part);
    }
  }
};

}  // namespace cake

#define CAKE_FAMILY sm90_split
#include "vsa_names.cuh"

static_assert(CAKE_BLOCK == 64, "the block of this family");
using Traits = cake::SplitTraits<CAKE_HEAD_DIM, CAKE_BF16>;

extern "C" __constant__ const uint32_t CAKE_GEOMETRY[2] = {Traits::kMaxThreads, Traits::kSharedBytes};

extern "C" __global__ void __launch_bounds__(Traits::kMaxThreads, 1)
    CAKE_KERNEL(const __grid_constant__ CakeVsaParams params,
                const __grid_constant__ CakeTensorMap q, const __grid_constant__ CakeTensorMap k,
                const __grid_constant__ CakeTensorMap v, const __grid_constant__ CakeTensorMap out) {
  cake::Split<Traits>::run(params, &q, &k, &v);
}
