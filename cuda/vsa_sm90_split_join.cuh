// The end of a row in the Hopper kernel for few rows: its parts are joined and stored.
//
// Two warpgroups of a CTA first exchange halves of their outputs through shared memory. Then each CTA
// of a cluster gets a share of the columns from all, and adds them in the order of the parts. What is
// joined counts as `far`: its weights are relative to the reference itself (see SoftmaxState).
#pragma once
#include <stdint.h>

#include "ptx/cluster.cuh"
#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "vsa_params.h"
#include "vsa_sm90_split.cuh"

namespace cake {

__device__ __forceinline__ void put(uint32_t at, const float (&x)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3])
               : "memory");
}
__device__ __forceinline__ void put(uint32_t at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void get(float (&x)[4], uint32_t at) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(at)
               : "memory");
}

template <class T>
struct SplitJoin {
  using Math = typename T::Math;
  using Softmax = typename T::Softmax;
  // Named barriers of the consumers.
  static constexpr uint32_t kPair = 2, kParts = 3, kStore = 4;

  // A row's reference and sum in two words. A sum has no sign: it says whether they are far.
  struct Sums {
    float reference = -INFINITY;
    float signed_sum = 0.0f;
    __device__ __forceinline__ Sums() {}
    __device__ __forceinline__ Sums(const Softmax &state, int half)
        : reference(state.maximum[0][half]),
          signed_sum(__uint_as_float(__float_as_uint(state.sum[0][half]) |
                                     (state.far ? 0x80000000u : 0u))) {}
    __device__ __forceinline__ void get(uint32_t at) {
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(reference), "=f"(signed_sum)
                   : "r"(at)
                   : "memory");
    }
    __device__ __forceinline__ float sum() const { return fabsf(signed_sum); }
    // What weights carry over with to a reference that counts as far.
    __device__ __forceinline__ float factor(float to, float scale) const {
      const bool far = __float_as_uint(signed_sum) >> 31;
      return ptx::exp2_approx(Softmax::lag(reference, far, to, true, scale));
    }
  };

  __device__ __forceinline__ static int row_of(int thread) {
    return thread / 32 * 16 + thread % 32 / 4;
  }

  // A division by the parts of a cluster is a shift: they are 2, 4 or 8.
  __device__ __forceinline__ static uint32_t power(uint32_t parts) { return __ffs(parts) - 1; }

  // What other CTAs will send; by one thread, before the barriers can be used.
  __device__ __forceinline__ static void expect(const SplitShared<T> &shared, uint32_t parts) {
    ptx::mbarrier_expect(shared.sums_full(), (parts - 1) * T::kBlock * 8);
    ptx::mbarrier_expect(shared.parts_full(), (parts - 1) * (T::kOutputBytes >> power(parts)));
  }

  // Joins the outputs of two warpgroups: `half` is that of both in the columns of this one. After
  // state.finish().
  __device__ static void pair(const SplitShared<T> &shared, float (&half)[Math::kDTiles / 2][4],
                              const typename Math::Output &o, Softmax &state, uint32_t group,
                              int thread, float scale) {
    constexpr int kHalf = Math::kDTiles / 2;
    const bool upper = group == 1;
#pragma unroll
    for (int d = 0; d < kHalf; ++d) {
      float other[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        half[d][i] = upper ? o[d + kHalf][i] : o[d][i];
        other[i] = upper ? o[d][i] : o[d + kHalf][i];
      }
      put(shared.pair_output((group ^ 1) * kHalf + d, thread), other);
    }
    Sums own[2], theirs[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      own[h] = Sums(state, h);
      if (thread % 4 == 0) {
        put(shared.pair_sums(group, row_of(thread) + 8 * h), own[h].reference, own[h].signed_sum);
      }
    }
    ptx::barrier_sync(kPair, 256);
    float own_factor[2], their_factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      theirs[h].get(shared.pair_sums(group ^ 1, row_of(thread) + 8 * h));
      const float top = fmaxf(own[h].reference, theirs[h].reference);
      own_factor[h] = own[h].factor(Softmax::finite(top), scale);
      their_factor[h] = theirs[h].factor(Softmax::finite(top), scale);
      state.maximum[0][h] = top;
      state.sum[0][h] = __fmul_rn(own[h].sum(), own_factor[h]) +
                        __fmul_rn(theirs[h].sum(), their_factor[h]);
    }
    state.far = true;
#pragma unroll
    for (int d = 0; d < kHalf; ++d) {
      float other[4];
      get(other, shared.pair_output(group * kHalf + d, thread));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        half[d][i] = fmaf(other[i], their_factor[i / 2], half[d][i] * own_factor[i / 2]);
      }
    }
  }

  // Joins the parts of a cluster and stores the row; `o` is the output of this CTA in the tiles from
  // `first` on. After cluster_arrive() with the barriers initialised.
  template <int kTiles>
  __device__ static void cluster(const CakeVsaParams &p, const SplitShared<T> &shared,
                                 const Part &part, const float (&o)[kTiles][4],
                                 const Softmax &state, int first, const RowId &id, int thread,
                                 float scale) {
    const int row = row_of(thread);
    const uint32_t tiles = Math::kDTiles >> power(part.count);  // of a CTA's columns
    ptx::cluster_wait();
    if (first == 0) {
      for (uint32_t to = thread % 4; to < part.count; to += 4) {
        const uint32_t barrier = ptx::cluster_address(shared.sums_full(), to);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const Sums own(state, h);
          const uint32_t at = shared.part_sums(part.number, row + 8 * h);
          if (to == part.number) {
            put(at, own.reference, own.signed_sum);
          } else {
            ptx::cluster_store(ptx::cluster_address(at, to), own.reference, own.signed_sum, barrier);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint32_t owner = (first + i) * part.count / Math::kDTiles;
      const uint32_t at = shared.part_output(part.number * tiles + first + i - owner * tiles, thread);
      if (owner == part.number) {
        put(at, o[i]);
      } else {
        ptx::cluster_store(ptx::cluster_address(at, owner), o[i],
                           ptx::cluster_address(shared.parts_full(), owner));
      }
    }
    ptx::barrier_sync(kParts, part.groups * 128);  // what this CTA has put itself
    ptx::mbarrier_wait_cluster(shared.sums_full(), 0);

    // Four lanes share a row: each looks after every fourth part, and hands its factor round.
    constexpr int kEach = T::kMaxParts / 4;
    float factor[2][T::kMaxParts], inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Sums sums[kEach];
      float top = -INFINITY, sum = 0.0f, own[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const uint32_t of = 4 * i + thread % 4;
        if (of < part.count) sums[i].get(shared.part_sums(of, row + 8 * h));
        top = fmaxf(top, sums[i].reference);
      }
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        own[i] = sums[i].factor(Softmax::finite(top), scale);
        sum += sums[i].sum() * own[i];
      }
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      inverse[h] = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int i = 0; i < T::kMaxParts; ++i) {
        factor[h][i] = __shfl_sync(0xFFFFFFFFu, own[i / 4], i % 4, 4);
      }
      if (p.lse != nullptr && part.number == 0 && part.group == 0 && thread % 4 == 0) {
        const uint64_t token = static_cast<uint64_t>(id.q_block) * T::kBlock + row + 8 * h;
        p.lse[token * p.num_qo_heads + id.head] = Softmax::lse(top, sum, scale);
      }
    }
    ptx::mbarrier_wait_cluster(shared.parts_full(), 0);
    for (uint32_t tile = part.group; tile < tiles; tile += part.groups) {
      float x[4] = {0.0f, 0.0f, 0.0f, 0.0f}, each[T::kMaxParts][4];
#pragma unroll
      for (int i = 0; i < T::kMaxParts; ++i) {
        if (i < part.count) get(each[i], shared.part_output(i * tiles + tile, thread));
      }
#pragma unroll
      for (int i = 0; i < T::kMaxParts; ++i) {
        if (i < part.count) {
#pragma unroll
          for (int j = 0; j < 4; ++j) x[j] = fmaf(each[i][j], factor[j / 2][i], x[j]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint64_t token = static_cast<uint64_t>(id.q_block) * T::kBlock + row + 8 * h;
        uint32_t *const out = static_cast<uint32_t *>(p.out) +
                              (token * p.num_qo_heads + id.head) * (T::kHeadDim / 2);
        out[(part.number * tiles + tile) * 4 + thread % 4] =
            ptx::pack2<T::kBf16>(x[2 * h] * inverse[h], x[2 * h + 1] * inverse[h]);
      }
    }
  }

  // Rounds and stores the columns of a row that no other CTA has a part of. Every warp turns its 16
  // rows round in shared memory, in the place of Q, and writes whole pieces of them.
  template <int kTiles>
  __device__ static void store(const CakeVsaParams &p, const SplitShared<T> &shared,
                               const Part &part, const float (&o)[kTiles][4], const Softmax &state,
                               int first, const RowId &id, int thread, float scale) {
    const uint64_t first_token = static_cast<uint64_t>(id.q_block) * T::kBlock;
    ptx::barrier_sync(kStore, part.groups * 128);  // nobody reads Q any more
    float inverse[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = state.sum[0][h];
      inverse[h] = sum == 0.0f ? 0.0f : 1.0f / sum;
    }
    Math::template stage<kTiles, T::kPanelBytes>(shared.query(), o, inverse, first, thread);
    if (part.group == 0) Math::store_lse(p, state, id.head, first_token, thread, scale);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kTiles / 2; ++i) {
      const int piece = i * 32 + thread % 32;
      const int row = thread / 32 * 16 + piece / kTiles;
      const int column = (first + piece % kTiles) * 8;
      uint4 x;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                   : "r"(Math::template staged<T::kPanelBytes>(shared.query(), row, column))
                   : "memory");
      const uint64_t at = (first_token + row) * p.num_qo_heads + id.head;
      static_cast<uint4 *>(p.out)[at * (T::kHeadDim / 8) + column / 8] = x;
    }
  }
};

}  // namespace cake
