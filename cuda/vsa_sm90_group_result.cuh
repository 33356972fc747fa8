// The end of a split row in the grouped Hopper kernel: its parts are joined.
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
};

}  // namespace cake
