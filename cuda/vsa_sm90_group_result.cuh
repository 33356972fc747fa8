// The end of a row in the grouped Hopper kernel: joining the parts of a split row, and the store.
#pragma once
#include <stdint.h>

#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "vsa_params.h"
#include "vsa_sm90_group.cuh"
#include "vsa_softmax.cuh"

namespace cake {

template <class T>
struct GroupResult {
  using Ring = GroupRing<T>;
  using Math = typename T::Math;
  using Softmax = typename T::Softmax;
  static constexpr uint32_t kJoin = 1 + T::kMembers;  // named barrier of both warpgroups

  // Adds the second warpgroup's part of a row to the first's, through the shared memory of Q.
  __device__ static void join(const Ring &ring, typename Math::Output &o, Softmax &state,
                              int slot, int thread, float scale) {
    static_assert(T::kHeadDim == 128, "the tiles of Q hold one fp32 output");
    const uint32_t part = ring.query(0) + thread * 4;
    const uint32_t sums = ring.sums() + thread * 4;
    auto put = [](uint32_t at, float x) {
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
    };
    auto get = [](uint32_t at) {
      float x;
      asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
      return x;
    };
    ptx::barrier_sync(kJoin, 256);  // both are done with Q
    if (slot == 1) {
#pragma unroll
      for (int i = 0; i < 4 * Math::kDTiles; ++i) put(part + i * 512, o[i / 4][i % 4]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        put(sums + half * 512, state.maximum[0][half]);
        put(sums + (2 + half) * 512, state.sum[0][half]);
      }
      put(sums + 4 * 512, state.far ? 1.0f : 0.0f);
    }
    ptx::barrier_sync(kJoin, 256);
    if (slot == 0) {
      float theirs[1][2], candidate[1][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        theirs[0][half] = get(sums + half * 512);
        candidate[0][half] = fmaxf(theirs[0][half], state.maximum[0][half]);
      }
      typename Math::Rescale rescale;
      state.move(candidate, scale, rescale);
      rescale.apply(o);
      const bool they_are_far = get(sums + 4 * 512) != 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float to = Softmax::finite(candidate[0][half]);
        const float factor = ptx::exp2_approx(
            Softmax::lag(theirs[0][half], they_are_far, to, state.far, scale));
        state.sum[0][half] += get(sums + (2 + half) * 512) * factor;
#pragma unroll
        for (int d = 0; d < Math::kDTiles; ++d) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            o[d][i] += get(part + (4 * d + i) * 512) * factor;
          }
        }
      }
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(kJoin, 256);  // TMA may write there again
  }

  // Rounds the output and stores it: four lanes hold a row's columns in pairs, exchange them, and
  // write 64 consecutive bytes together.
  __device__ static void store(const CakeVsaParams &p, const typename Math::Output &o,
                               const Softmax &state, uint32_t row, int thread, float scale) {
    const int lane = thread % 32;
    const uint32_t head = row / p.q_blocks;
    const uint64_t first_token = static_cast<uint64_t>(row - head * p.q_blocks) * T::kBlock;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = state.sum[0][half];
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      const uint64_t token = first_token + thread / 32 * 16 + half * 8 + lane / 4;
      const uint64_t at = token * p.num_qo_heads + head;
      if (p.lse != nullptr && lane % 4 == 0) p.lse[at] = state.lse(0, half, scale);
      uint4 *const out = static_cast<uint4 *>(p.out) + at * (T::kHeadDim / 8);
#pragma unroll
      for (int d = 0; d < Math::kDTiles; d += 4) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[i] = ptx::pack2<T::kBf16>(o[d + i][2 * half] * inverse,
                                      o[d + i][2 * half + 1] * inverse);
        }
        // A transpose of 4 x 4 words among four lanes: within pairs of lanes, then between pairs.
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const bool odd = lane & 1;
          const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd ? a[i] : a[i + 1], 1);
          (odd ? a[i] : a[i + 1]) = got;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool high = lane & 2;
          const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, high ? a[i] : a[i + 2], 2);
          (high ? a[i] : a[i + 2]) = got;
        }
        out[d + lane % 4] = make_uint4(a[0], a[1], a[2], a[3]);
      }
    }
  }
};

}  // namespace cake
