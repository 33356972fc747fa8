// Online softmax over the accumulators of mma.sync, one row per (m16 tile, half) of a thread.
#pragma once
#include <math.h>

#include "ptx/math.cuh"

namespace cake {

// Running state of 2 * kMTiles rows. Weights are exp2((s - reference) * scale) with scale > 0.
// The reference follows the running maximum only when it lags by more than 2^kLag in weight: the
// common factor cancels in the final division, and accumulators are seldom rescaled. Weights stay
// below 2^kLag, far inside the range of fp16.
template <int kMTiles>
struct SoftmaxState {
  static constexpr float kLag = 8.0f;

  float maximum[kMTiles][2];  // the reference, in units of s
  float sum[kMTiles][2];      // this thread's share of the sum of weights

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

  // Turns the logits s into weights; `rescale(m, half, factor)` is called when the accumulators
  // of a row have to follow a new reference.
  template <int kNTiles, class Rescale>
  __device__ __forceinline__ void step(float (&s)[kMTiles][kNTiles][4], float scale,
                                       Rescale rescale) {
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
    if (__any_sync(0xFFFFFFFFu, moved)) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float factor =
              ptx::exp2_approx((maximum[m][half] - finite(candidate[m][half])) * scale);
          maximum[m][half] = candidate[m][half];
          sum[m][half] *= factor;
          rescale(m, half, factor);
        }
      }
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
            // Not fma(s, scale, -reference * scale): far from zero the rounding of that product
            // alone is worth powers of two.
            s[m][n][i] = ptx::exp2_approx((s[m][n][i] - reference) * scale);
            part += s[m][n][i];
          }
        }
        sum[m][half] += part;
      }
    }
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
