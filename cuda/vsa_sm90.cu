// Block-sparse attention forward for Hopper: TMA, wgmma, warp-specialised. Compiled once a variant,
// with CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_BF16.
//
// A producer thread streams the K and V tiles of the row's blocks through a ring; each consumer
// warpgroup owns 64 query rows. Within a warpgroup Q K^T of the next block is issued before P V of
// this one, which runs under the next block's softmax; two warpgroups take turns at the tensor core.
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "vsa_params.h"
#include "vsa_sm90_ring.cuh"
#include "vsa_sm90_warpgroup.cuh"
#include "vsa_softmax.cuh"

namespace cake {

constexpr uint32_t kFirstTurn = 3;  // named barriers: the warpgroups' turns at the tensor core

template <class T>
struct Hopper {
  using Softmax = SoftmaxState<1, true>;
  using Math = Warpgroup<T::kBlock, T::kHeadDim, T::kBf16>;
  using Panels = typename T::Panels;
  using Ring = HopperRing<T>;
  // Walking lists is 2 % faster at R = 128 and D = 64, and 2 % slower at D = 128.
  static constexpr bool kCounted = T::kBlock == 128 && T::kHeadDim > 64;
  using Rows = std::conditional_t<kCounted, CountedRows, ListedRows<T::kBlock>>;

  __device__ static void produce(const CakeVsaParams &p, const Ring &ring, const CakeTensorMap *q,
                                 const CakeTensorMap *k, const CakeTensorMap *v) {
    Cursor<T::kKeyStages> keys(1);
    Cursor<T::kValueStages> values(1);
    uint32_t query_parity = 1;
    for (uint32_t item = blockIdx.x; item < p.num_rows; item += gridDim.x) {
      const RowId id = row_of_work_item(p, item);
      if (!id.valid) continue;
      const int kv_head = id.head / (p.num_qo_heads / p.num_kv_heads);
      ptx::mbarrier_wait_asleep(ring.query_empty(), query_parity);
      query_parity ^= 1;
      ptx::mbarrier_expect(ring.query_full(), T::kTileBytes);
      Panels::load(ring.shared + T::kQueryOffset, T::kPanelBytes, q, id.head,
                   id.q_block * T::kBlock, ring.query_full());
      Walk<T::kBlock> walk(p, id.row);
      while (walk.next()) {
        const int token = walk.block * T::kBlock;
        ptx::mbarrier_wait_asleep(ring.key_empty(keys.stage), keys.parity);
        ptx::mbarrier_expect(ring.key_full(keys.stage), T::kTileBytes);
        Panels::load(ring.key(keys.stage), T::kPanelBytes, k, kv_head, token,
                     ring.key_full(keys.stage));
        keys.advance();
        ptx::mbarrier_wait_asleep(ring.value_empty(values.stage), values.parity);
        ptx::mbarrier_expect(ring.value_full(values.stage), T::kTileBytes);
        Panels::load(ring.value(values.stage), T::kPanelBytes, v, kv_head, token,
                     ring.value_full(values.stage));
        values.advance();
      }
      if (!T::kPersistent) return;
    }
  }

  __device__ static void clear_values(uint32_t values, int valid, int thread, uint32_t barrier) {
    Math::template clear_values<T::kPanelBytes>(values, valid, thread, barrier);
  }

  __device__ __forceinline__ static void multiply_keys(typename Math::Logits &s, uint32_t query,
                                                       uint32_t keys) {
    Math::template multiply_keys<T::kPanelBytes, T::kPanelBytes>(s, query, keys);
  }

  __device__ static void consume(const CakeVsaParams &p, const Ring &ring, const CakeTensorMap *out,
                                 int group) {
    const int thread = threadIdx.x % 128;
    const int lane = threadIdx.x % 32;
    const uint32_t own = 1 + group;  // named barrier of the warpgroup
    const uint32_t query = ring.shared + T::kQueryOffset + group * 64 * Panels::kWidth;
    const float scale = softmax_scale(p.sm_scale);
    auto release = [&](uint32_t barrier) {
      if (thread == 0) ptx::mbarrier_arrive(barrier);
    };
    if (T::kTurns && group == 1) ptx::barrier_arrive(kFirstTurn, 256);

    Cursor<T::kKeyStages> keys(0);
    Cursor<T::kValueStages> values(0);
    uint32_t query_parity = 0;
    Rows rows(p);
    for (uint32_t item = blockIdx.x; item < p.num_rows; item += gridDim.x) {
      const RowId id = row_id(p, rows.row(item));
      if (!id.valid) {
        rows.turn();
        continue;
      }
      Softmax state;
      typename Math::Output o;
      Math::clear(o);

      ptx::mbarrier_wait(ring.query_full(), query_parity);
      query_parity ^= 1;
      if (!(p.sm_scale > 0.0f)) {
        Math::apply_sign(query, T::kPanelBytes, thread, p.sm_scale, own);
      }

      auto walk = rows.walk(id.row);
      if (walk.next()) {
        typename Math::Logits s;
        typename Math::Weights weights;
        typename Math::Rescale rescale;
        int tokens = walk.tokens;
        ptx::mbarrier_wait(ring.key_full(keys.stage), keys.parity);
        ptx::wgmma_fence();
        multiply_keys(s, query, ring.key(keys.stage));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_own(s[0]);
        release(ring.key_empty(keys.stage));
        keys.advance();
        if (tokens < T::kBlock) mask_keys(s, lane, tokens);
        state.step(s, scale, rescale);
        Math::pack_weights(weights, s);

        while (walk.next()) {
          ptx::mbarrier_wait(ring.key_full(keys.stage), keys.parity);
          if (T::kTurns) ptx::barrier_sync(kFirstTurn + group, 256);
          ptx::wgmma_fence();
          multiply_keys(s, query, ring.key(keys.stage));
          ptx::wgmma_commit();
          ptx::mbarrier_wait(ring.value_full(values.stage), values.parity);
          if (tokens < T::kBlock) clear_values(ring.value(values.stage), tokens, thread, own);
          ptx::wgmma_fence();
          Math::template multiply_values<T::kPanelBytes>(o, weights, ring.value(values.stage));
          ptx::wgmma_commit();
          if (T::kTurns) ptx::barrier_arrive(kFirstTurn + (group ^ 1), 256);
          ptx::wgmma_wait<1>();
          ptx::wgmma_own(s[0]);
          release(ring.key_empty(keys.stage));
          keys.advance();
          tokens = walk.tokens;
          if (tokens < T::kBlock) mask_keys(s, lane, tokens);
          rescale.moved = false;
          state.step(s, scale, rescale);
          ptx::wgmma_wait<0>();
          ptx::wgmma_own(o);
          release(ring.value_empty(values.stage));
          values.advance();
          rescale.apply(o);
          Math::pack_weights(weights, s);
        }
        release(ring.query_empty());
        rows.turn();
        ptx::mbarrier_wait(ring.value_full(values.stage), values.parity);
        if (tokens < T::kBlock) clear_values(ring.value(values.stage), tokens, thread, own);
        ptx::wgmma_fence();
        Math::template multiply_values<T::kPanelBytes>(o, weights, ring.value(values.stage));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_own(o);
        release(ring.value_empty(values.stage));
        values.advance();
      } else {
        rows.turn();
        ptx::barrier_sync(own, 128);  // every warp has seen Q land, or the next would overtake it
        release(ring.query_empty());
      }
      state.finish();
      const uint32_t output = ring.shared + T::kOutputOffset + group * 64 * Panels::kWidth;
      store(p, o, state, output, id, out, group, thread, own, scale);
      if (!T::kPersistent) break;
    }
    if (thread == 0) ptx::tma_store_wait_read();  // of shared memory, which ends with the CTA
  }

  // Rounds the output into shared memory and stores it from there.
  __device__ static void store(const CakeVsaParams &p, typename Math::Output &o,
                               const Softmax &state,
                               uint32_t rows, const RowId &id, const CakeTensorMap *out, int group,
                               int thread, uint32_t barrier, float scale) {
    const int lane = thread % 32;
    const int warp_row = thread / 32 * 16;
    const uint64_t first_token = static_cast<uint64_t>(id.q_block) * T::kBlock + group * 64;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = state.sum[0][half];
      inverse[half] = sum == 0.0f ? 0.0f : 1.0f / sum;
      const int row = warp_row + half * 8 + lane / 4;
      if (p.lse != nullptr && lane % 4 == 0) {
        p.lse[(first_token + row) * p.num_qo_heads + id.head] = state.lse(0, half, scale);
      }
    }
    if (thread == 0) ptx::tma_store_wait_read();  // the last row's output has left
    ptx::barrier_sync(barrier, 128);
    // stmatrix: lane l gives the address of row l % 8 of matrix l / 8; matrices in the order
    // (rows 0-7, columns 0-7), (rows 8-15, columns 0-7), the same eight columns further.
    const int row = warp_row + lane % 16;
#pragma unroll
    for (int d = 0; d < Math::kDTiles; d += 2) {
      const int column = (d + lane / 16) * 8;
      uint32_t at = rows + column / Panels::kPanel * T::kPanelBytes +
                    row * Panels::kWidth + column % Panels::kPanel * 2;
      at ^= (at >> 7 & (Panels::kWidth / 16 - 1)) << 4;
      ptx::stmatrix_x4(at, ptx::pack2<T::kBf16>(o[d][0] * inverse[0], o[d][1] * inverse[0]),
                       ptx::pack2<T::kBf16>(o[d][2] * inverse[1], o[d][3] * inverse[1]),
                       ptx::pack2<T::kBf16>(o[d + 1][0] * inverse[0], o[d + 1][1] * inverse[0]),
                       ptx::pack2<T::kBf16>(o[d + 1][2] * inverse[1], o[d + 1][3] * inverse[1]));
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(barrier, 128);
    if (thread == 0) {
#pragma unroll
      for (int panel = 0; panel < Panels::kPanels; ++panel) {
        ptx::tma_store(out, panel * Panels::kPanel, id.head, first_token,
                       rows + panel * T::kPanelBytes);
      }
      ptx::tma_store_commit();
    }
  }

  __device__ static void run(const CakeVsaParams &p, const CakeTensorMap *q, const CakeTensorMap *k,
                             const CakeTensorMap *v, const CakeTensorMap *out) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring = {static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
    if (threadIdx.x == 0) {
      ptx::prefetch_tensor_map(q);
      ptx::prefetch_tensor_map(k);
      ptx::prefetch_tensor_map(v);
      ptx::mbarrier_init(ring.query_full(), 1);
      ptx::mbarrier_init(ring.query_empty(), T::kGroups);
      for (int stage = 0; stage < T::kKeyStages; ++stage) {
        ptx::mbarrier_init(ring.key_full(stage), 1);
        ptx::mbarrier_init(ring.key_empty(stage), T::kGroups);
      }
      for (int stage = 0; stage < T::kValueStages; ++stage) {
        ptx::mbarrier_init(ring.value_full(stage), 1);
        ptx::mbarrier_init(ring.value_empty(stage), T::kGroups);
      }
      ptx::mbarrier_init_fence();
    }
    __syncthreads();
    // Through shfl, so that the assembler knows that a warp has one role.
    const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 128, 0);
    if (group == T::kGroups) {
      if constexpr (T::kMoveRegisters) ptx::give_registers<40>();
      if (threadIdx.x == T::kGroups * 128) produce(p, ring, q, k, v);
    } else {
      if constexpr (T::kMoveRegisters) ptx::take_registers<232>();
      consume(p, ring, out, group);
    }
  }
};

}  // namespace cake

#define CAKE_FAMILY sm90
#include "vsa_names.cuh"

using Traits = cake::HopperTraits<CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_BF16>;

extern "C" __constant__ const uint32_t CAKE_GEOMETRY[2] = {Traits::kThreads, Traits::kSharedBytes};

extern "C" __global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtas)
    CAKE_KERNEL(const __grid_constant__ CakeVsaParams params,
                const __grid_constant__ CakeTensorMap q, const __grid_constant__ CakeTensorMap k,
                const __grid_constant__ CakeTensorMap v, const __grid_constant__ CakeTensorMap out) {
  cake::Hopper<Traits>::run(params, &q, &k, &v, &out);
}
