// Block-sparse attention forward for Hopper: TMA, wgmma, warp-specialised. Compiled once a variant,
// with CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_BF16.
//
// A producer thread streams the K and V tiles of the row's blocks through a ring; each consumer
// warpgroup owns 64 query rows. Within a warpgroup the next block's Q K^T runs while the softmax of
// this one is computed, and P V behind it; two warpgroups take turns at the tensor core.
#include <float.h>

#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "vsa_params.h"
#include "vsa_sm90_ring.cuh"
#include "vsa_softmax.cuh"

namespace cake {

constexpr uint32_t kFirstTurn = 3;  // named barriers: the warpgroups' turns at the tensor core
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

template <class T>
struct Hopper {
  static constexpr int kSTiles = T::kBlock / 8;
  static constexpr int kDTiles = T::kHeadDim / 8;
  static constexpr int kKSteps = T::kHeadDim / 16;  // of Q K^T
  static constexpr int kPSteps = T::kBlock / 16;    // of P V

  using Ring = HopperRing<T>;
  using RowWalk = Walk<T::kBlock>;

  __device__ static void load_tile(uint32_t shared, const CakeTensorMap *map, int head, int token,
                                   uint32_t barrier) {
#pragma unroll
    for (int panel = 0; panel < T::kPanels; ++panel) {
      ptx::tma_load(shared + panel * T::kPanelBytes, map, panel * T::kPanel, head, token, barrier);
    }
  }

  __device__ static void produce(const CakeVsaParams &p, const Ring &ring, const CakeTensorMap *q,
                                 const CakeTensorMap *k, const CakeTensorMap *v) {
    Cursor<T::kKeyStages> keys(1);
    Cursor<T::kValueStages> values(1);
    uint32_t query_parity = 1;
    for (uint32_t item = blockIdx.x; item < p.num_rows; item += gridDim.x) {
      const RowId id = row_of_work_item(p, item);
      if (!id.valid) continue;
      const int kv_head = id.head / (p.num_qo_heads / p.num_kv_heads);
      ptx::mbarrier_wait(ring.query_empty(), query_parity);
      query_parity ^= 1;
      ptx::mbarrier_expect(ring.query_full(), T::kTileBytes);
      load_tile(ring.shared + T::kQueryOffset, q, id.head, id.q_block * T::kBlock,
                ring.query_full());
      RowWalk walk(p, id.row);
      while (walk.next()) {
        const int token = walk.block * T::kBlock;
        ptx::mbarrier_wait(ring.key_empty(keys.stage), keys.parity);
        ptx::mbarrier_expect(ring.key_full(keys.stage), T::kTileBytes);
        load_tile(ring.key(keys.stage), k, kv_head, token, ring.key_full(keys.stage));
        keys.advance();
        ptx::mbarrier_wait(ring.value_empty(values.stage), values.parity);
        ptx::mbarrier_expect(ring.value_full(values.stage), T::kTileBytes);
        load_tile(ring.value(values.stage), v, kv_head, token, ring.value_full(values.stage));
        values.advance();
      }
      if (!T::kPersistent) return;
    }
  }

  using Logits = float[1][kSTiles][4];
  using Output = float[kDTiles][4];

  // s = Q K^T; not waited for.
  __device__ __forceinline__ static void multiply_keys(Logits &s, uint32_t query, uint32_t keys) {
    constexpr int kStepsPerPanel = T::kPanel / 16;
#pragma unroll
    for (int k = 0; k < kKSteps; ++k) {
      const uint32_t offset = k / kStepsPerPanel * T::kPanelBytes + k % kStepsPerPanel * 32;
      ptx::wgmma_ss<T::kBlock, T::kBf16>(
          s[0], ptx::wgmma_descriptor<T::kWidth>(query + offset, 16, 8 * T::kWidth),
          ptx::wgmma_descriptor<T::kWidth>(keys + offset, 16, 8 * T::kWidth), k > 0);
    }
  }

  // o += P V; not waited for.
  __device__ __forceinline__ static void multiply_values(Output &o, const uint32_t (&weights)[kPSteps][4],
                                                         uint32_t values) {
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) {
      ptx::wgmma_rs<T::kHeadDim, T::kBf16>(
          o, weights[k],
          ptx::wgmma_descriptor<T::kWidth>(values + k * 16 * T::kWidth, T::kPanelBytes,
                                           8 * T::kWidth));
    }
  }

  __device__ __forceinline__ static void mask_keys(Logits &s, int lane, int valid) {
#pragma unroll
    for (int n = 0; n < kSTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + lane % 4 * 2 + i % 2 >= valid) s[0][n][i] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ static void pack_weights(uint32_t (&weights)[kPSteps][4], const Logits &s) {
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) {
      weights[k][0] = ptx::pack2<T::kBf16>(s[0][2 * k][0], s[0][2 * k][1]);
      weights[k][1] = ptx::pack2<T::kBf16>(s[0][2 * k][2], s[0][2 * k][3]);
      weights[k][2] = ptx::pack2<T::kBf16>(s[0][2 * k + 1][0], s[0][2 * k + 1][1]);
      weights[k][3] = ptx::pack2<T::kBf16>(s[0][2 * k + 1][2], s[0][2 * k + 1][3]);
    }
  }

  // Zeroes the rows of a V tile from `valid` on: 0 x NaN is NaN in the tensor core.
  __device__ static void clear_values(uint32_t values, int valid, int thread, uint32_t barrier) {
    constexpr int kChunks = T::kWidth / 16;
    for (int i = thread; i < T::kPanels * T::kBlock * kChunks; i += 128) {
      const int row = i / kChunks % T::kBlock;
      if (row >= valid) {
        const uint32_t at = values + i / (kChunks * T::kBlock) * T::kPanelBytes + row * T::kWidth +
                            i % kChunks * 16;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
      }
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(barrier, 128);
  }

  // Two elements times -1 (scale < 0) or times 0, where NaN and infinity give NaN.
  __device__ static uint32_t times_sign(uint32_t pair, float scale) {
    if (scale < 0.0f) return pair ^ 0x80008000u;
    constexpr uint32_t kExponents = T::kBf16 ? 0x7F807F80u : 0x7C007C00u;
    return __vcmpeq2(pair & kExponents, kExponents) & 0x7FFF7FFFu;
  }

  // The warpgroup's rows of Q times sign(scale), so that the softmax may assume a positive scale.
  __device__ static void apply_scale_sign(char *rows, int thread, float scale, uint32_t barrier) {
    for (int panel = 0; panel < T::kPanels; ++panel) {
      uint32_t *words = reinterpret_cast<uint32_t *>(rows + panel * T::kPanelBytes);
      for (int i = thread; i < 64 * T::kWidth / 4; i += 128) words[i] = times_sign(words[i], scale);
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(barrier, 128);
  }

  __device__ static void consume(const CakeVsaParams &p, const Ring &ring, char *shared,
                                 const CakeTensorMap *out, int group) {
    const int thread = threadIdx.x % 128;
    const int lane = threadIdx.x % 32;
    const uint32_t own = 1 + group;  // named barrier of the warpgroup
    const uint32_t query = ring.shared + T::kQueryOffset + group * 64 * T::kWidth;
    char *const query_rows = shared + T::kQueryOffset + group * 64 * T::kWidth;
    const float scale_log2 = p.sm_scale == 0.0f ? kLog2E : fminf(fabsf(p.sm_scale) * kLog2E, FLT_MAX);
    auto release = [&](uint32_t barrier) {
      if (thread == 0) ptx::mbarrier_arrive(barrier);
    };
    if (T::kTurns && group == 1) ptx::barrier_arrive(kFirstTurn, 256);

    Cursor<T::kKeyStages> keys(0);
    Cursor<T::kValueStages> values(0);
    uint32_t query_parity = 0;
    for (uint32_t item = blockIdx.x; item < p.num_rows; item += gridDim.x) {
      const RowId id = row_of_work_item(p, item);
      if (!id.valid) continue;
      SoftmaxState<1> state;
      Output o;
#pragma unroll
      for (int d = 0; d < kDTiles; ++d) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0.0f;

      ptx::mbarrier_wait(ring.query_full(), query_parity);
      query_parity ^= 1;
      if (!(p.sm_scale > 0.0f)) apply_scale_sign(query_rows, thread, p.sm_scale, own);

      RowWalk walk(p, id.row);
      if (walk.next()) {
        Logits s;
        uint32_t weights[kPSteps][4];
        float factor[2];
        auto keep_factor = [&](int, int half, float f) { factor[half] = f; };

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
        state.step(s, scale_log2, keep_factor);
        pack_weights(weights, s);

        while (walk.next()) {
          factor[0] = factor[1] = 1.0f;
          ptx::mbarrier_wait(ring.key_full(keys.stage), keys.parity);
          if (T::kTurns) ptx::barrier_sync(kFirstTurn + group, 256);
          ptx::wgmma_fence();
          multiply_keys(s, query, ring.key(keys.stage));
          ptx::wgmma_commit();
          ptx::mbarrier_wait(ring.value_full(values.stage), values.parity);
          if (tokens < T::kBlock) clear_values(ring.value(values.stage), tokens, thread, own);
          ptx::wgmma_fence();
          multiply_values(o, weights, ring.value(values.stage));
          ptx::wgmma_commit();
          if (T::kTurns) ptx::barrier_arrive(kFirstTurn + (group ^ 1), 256);
          ptx::wgmma_wait<1>();
          ptx::wgmma_own(s[0]);
          release(ring.key_empty(keys.stage));
          keys.advance();
          tokens = walk.tokens;
          if (tokens < T::kBlock) mask_keys(s, lane, tokens);
          state.step(s, scale_log2, keep_factor);
          ptx::wgmma_wait<0>();
          ptx::wgmma_own(o);
          release(ring.value_empty(values.stage));
          values.advance();
#pragma unroll
          for (int d = 0; d < kDTiles; ++d) {
            o[d][0] *= factor[0];
            o[d][1] *= factor[0];
            o[d][2] *= factor[1];
            o[d][3] *= factor[1];
          }
          pack_weights(weights, s);
        }
        release(ring.query_empty());
        ptx::mbarrier_wait(ring.value_full(values.stage), values.parity);
        if (tokens < T::kBlock) clear_values(ring.value(values.stage), tokens, thread, own);
        ptx::wgmma_fence();
        multiply_values(o, weights, ring.value(values.stage));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::wgmma_own(o);
        release(ring.value_empty(values.stage));
        values.advance();
      } else {
        release(ring.query_empty());
      }
      state.finish();
      store(p, o, state, ring.shared + T::kOutputOffset + group * 64 * T::kWidth, id, out, group,
            thread, own, scale_log2);
      if (!T::kPersistent) break;
    }
    if (thread == 0) ptx::tma_store_wait_read();  // of shared memory, which ends with the CTA
  }

  // Rounds the output into shared memory and stores it from there.
  __device__ static void store(const CakeVsaParams &p, Output &o, const SoftmaxState<1> &state,
                               uint32_t rows, const RowId &id, const CakeTensorMap *out, int group,
                               int thread, uint32_t barrier, float scale_log2) {
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
        p.lse[(first_token + row) * p.num_qo_heads + id.head] =
            sum == 0.0f ? -INFINITY : (state.maximum[0][half] * scale_log2 + log2f(sum)) * kLn2;
      }
    }
    if (thread == 0) ptx::tma_store_wait_read();  // the last row's output has left
    ptx::barrier_sync(barrier, 128);
    // stmatrix: lane l gives the address of row l % 8 of matrix l / 8; matrices in the order
    // (rows 0-7, columns 0-7), (rows 8-15, columns 0-7), the same eight columns further.
    const int row = warp_row + lane % 16;
#pragma unroll
    for (int d = 0; d < kDTiles; d += 2) {
      const int column = (d + lane / 16) * 8;
      uint32_t at = rows + column / T::kPanel * T::kPanelBytes + row * T::kWidth +
                    column % T::kPanel * 2;
      at ^= (at >> 7 & (T::kWidth / 16 - 1)) << 4;
      ptx::stmatrix_x4(at, ptx::pack2<T::kBf16>(o[d][0] * inverse[0], o[d][1] * inverse[0]),
                       ptx::pack2<T::kBf16>(o[d][2] * inverse[1], o[d][3] * inverse[1]),
                       ptx::pack2<T::kBf16>(o[d + 1][0] * inverse[0], o[d + 1][1] * inverse[0]),
                       ptx::pack2<T::kBf16>(o[d + 1][2] * inverse[1], o[d + 1][3] * inverse[1]));
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(barrier, 128);
    if (thread == 0) {
#pragma unroll
      for (int panel = 0; panel < T::kPanels; ++panel) {
        ptx::tma_store(out, panel * T::kPanel, id.head, first_token, rows + panel * T::kPanelBytes);
      }
      ptx::tma_store_commit();
    }
  }

  __device__ static void run(const CakeVsaParams &p, const CakeTensorMap *q, const CakeTensorMap *k,
                             const CakeTensorMap *v, const CakeTensorMap *out) {
    extern __shared__ __align__(1024) char shared[];
    const Ring ring = {static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
    if (threadIdx.x == 0) {
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
      consume(p, ring, shared, out, group);
    }
  }
};

}  // namespace cake

#define CAKE_PASTE(block, head_dim, type, suffix) cake_vsa_sm90_r##block##_d##head_dim##_##type##suffix
#define CAKE_NAME(block, head_dim, type, suffix) CAKE_PASTE(block, head_dim, type, suffix)
#if CAKE_BF16
#define CAKE_TYPE bf16
#else
#define CAKE_TYPE fp16
#endif

using Traits = cake::HopperTraits<CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_BF16>;

extern "C" __constant__ const uint32_t CAKE_NAME(CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_TYPE, _geometry)[2] = {
    Traits::kThreads, Traits::kSharedBytes};

extern "C" __global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtas)
    CAKE_NAME(CAKE_BLOCK, CAKE_HEAD_DIM, CAKE_TYPE, )(const __grid_constant__ CakeVsaParams params,
                                                     const __grid_constant__ CakeTensorMap q,
                                                     const __grid_constant__ CakeTensorMap k,
                                                     const __grid_constant__ CakeTensorMap v,
                                                     const __grid_constant__ CakeTensorMap out) {
  cake::Hopper<Traits>::run(params, &q, &k, &v, &out);
}
