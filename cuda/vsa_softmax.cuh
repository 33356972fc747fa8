// Online softmax over the accumulators of mma.sync, one row per (m16 tile, half) of a thread.
#pragma once
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "ptx/math.cuh"

namespace cake {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// The scale of the softmax, which is positive: the sign of sm_scale, 0 included, goes into q.
__device__ __forceinline__ float softmax_scale(float sm_scale) {
  return sm_scale == 0.0f ? kLog2E : fminf(fabsf(sm_scale) * kLog2E, FLT_MAX);
}

// Two elements of q times -1 (sm_scale < 0) or times 0, where NaN and infinity give NaN.
template <bool kBf16>
__device__ __forceinline__ uint32_t times_sign(uint32_t pair, float sm_scale) {
  if (sm_scale < 0.0f) return pair ^ 0x80008000u;
  constexpr uint32_t kExponents = kBf16 ? 0x7F807F80u : 0x7C007C00u;
  return __vcmpeq2(pair & kExponents, kExponents) & 0x7FFF7FFFu;
}

// Takes keys from `valid` on out of the logits of kNTiles * 8 keys.
template <int kMTiles, int kNTiles>
__device__ __forceinline__ void mask_keys(float (&s)[kMTiles][kNTiles][4], int lane, int valid) {
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (n * 8 + lane % 4 * 2 + i % 2 >= valid) s[m][n][i] = -INFINITY;
      }
    }
  }
}

// Running state of 2 * kMTiles rows. Weights are exp2((s - reference) * scale) with scale > 0: the
// common factor cancels in the final division. The reference follows the running maximum only when it
// lags by more than 2^kLag in weight, so accumulators are seldom rescaled. Weights stay near 2^kLag at
// most, far inside the range of fp16.
//
// With kFused a weight is exp2(fma(s, scale, -base)), base = reference * scale rounded: an instruction
// less. All weights of a row share the error of its base, half an ulp, which the division cancels but
// for the rounding of the weights between: they are rounded to 16 bits, their sum is not. From
// kFarBase on (`far`) that would show where one key has all the weight, so there the reference is
// subtracted first.
template <int kMTiles, bool kFused>
struct SoftmaxState {
  static constexpr float kLag = 8.0f;
  static constexpr float kFarBase = 64.0f;

  float maximum[kMTiles][2];                 // the reference, in units of s
  float sum[kMTiles][2];                     // this thread's share of the sum of weights
  float base[kFused ? kMTiles : 1][2] = {};  // 0 while far
  bool far = !kFused;                        // of some row of the warp

  __device__ SoftmaxState() {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      maximum[m][0] = maximum[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0.0f;
    }
  }

  // A row without keys so far has the reference -inf: exp2 then needs a finite stand-in.
  __device__ static float finite(float reference) {
    return reference == -INFINITY ? 0.0f : reference;
  }

  // log2 of the factor that weights with one reference carry over to another. The base of a side
  // counts as it was rounded, unless that side is far.
  __device__ __forceinline__ static float lag(float from, bool from_far, float to, bool to_far,
                                              float scale) {
    if (!kFused || (from_far && to_far) || from == -INFINITY) return (from - to) * scale;
    if (from_far) return fmaf(from, scale, -__fmul_rn(to, scale));
    if (to_far) return -fmaf(to, scale, -__fmul_rn(from, scale));
    return __fmul_rn(from, scale) - __fmul_rn(to, scale);
  }

  // Moves the references to `candidate`.
  template <class Rescale>
  __device__ __forceinline__ void move(const float (&candidate)[kMTiles][2], float scale,
                                       Rescale &&rescale) {
    const bool was_far = far;
    if constexpr (kFused) {
      float reach = 0.0f;
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        reach = fmaxf(reach, fmaxf(fabsf(finite(candidate[m][0])), fabsf(finite(candidate[m][1]))));
      }
      far = __any_sync(0xFFFFFFFFu, reach * scale > kFarBase);
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float to = finite(candidate[m][half]);
        const float factor = ptx::exp2_approx(lag(maximum[m][half], was_far, to, far, scale));
        maximum[m][half] = candidate[m][half];
        if constexpr (kFused) base[m][half] = far ? 0.0f : __fmul_rn(to, scale);
        sum[m][half] *= factor;
        rescale(m, half, factor);
      }
    }
  }

  // Turns the logits s into weights; `rescale(m, half, factor)` is called when the accumulators
  // of a row have to follow a new reference.
  template <int kNTiles, class Rescale>
  __device__ __forceinline__ void step(float (&s)[kMTiles][kNTiles][4], float scale,
                                       Rescale &&rescale) {
    float candidate[kMTiles][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = fmaxf(s[m][0][2 * half], s[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kNTiles; ++n) {
          top = fmaxf(top, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
        candidate[m][half] = fmaxf(top, maximum[m][half]);
        moved |= (candidate[m][half] - maximum[m][half]) * scale > kLag;
      }
    }
    if (__any_sync(0xFFFFFFFFu, moved)) move(candidate, scale, rescale);
    if constexpr (kFused) {
      if (far) subtract_reference(s);
    }
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float reference = finite(maximum[m][half]);
        float part = 0.0f;  // summed apart: a long row would lose its low bits
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            if constexpr (kFused) {
              s[m][n][i] = ptx::exp2_approx(fmaf(s[m][n][i], scale, -base[m][half]));
            } else {
              s[m][n][i] = ptx::exp2_approx((s[m][n][i] - reference) * scale);
            }
            part += s[m][n][i];
          }
        }
        sum[m][half] += part;
      }
    }
  }

  template <int kNTiles>
  __device__ __forceinline__ void subtract_reference(float (&s)[kMTiles][kNTiles][4]) const {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float reference = finite(maximum[m][half]);
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
          s[m][n][2 * half] -= reference;
          s[m][n][2 * half + 1] -= reference;
        }
      }
    }
  }

  // Logarithm of a row's sum, natural.
  __device__ __forceinline__ static float lse(float reference, float sum, float scale) {
    return sum == 0.0f ? -INFINITY : (reference * scale + log2f(sum)) * kLn2;
  }
  // After finish().
  __device__ __forceinline__ float lse(int m, int half, float scale) const {
    return lse(maximum[m][half], sum[m][half], scale);
  }

  // Joins the four threads that share a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] += __shfl_xor_sync(0xFFFFFFFFu, sum[m][half], 1);
        sum[m][half] += __shfl_xor_sync(0xFFFFFFFFu, sum[m][half], 2);
      }
    }
  }
};

}  // namespace cake
