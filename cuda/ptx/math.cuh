// Scalar arithmetic that CUDA C++ does not name exactly.
#pragma once
#include <stdint.h>

namespace cake::ptx {

// 2^x within 2 ulp; exp2(-inf) is +0, subnormal results are flushed (PTX ISA, 9.7.3.21).
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to nearest even and packed, `low` in the lower half.
template <bool kBf16>
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  uint32_t packed;
  if constexpr (kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

}  // namespace cake::ptx
