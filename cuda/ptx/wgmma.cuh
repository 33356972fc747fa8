// Warpgroup matrix instructions of sm_90a: D (64 x N, fp32) = A B + D, K = 16 a step (PTX ISA,
// "Asynchronous warpgroup level matrix instructions").
//
// A thread t of the warpgroup holds of D: register i at row 16 * (t / 32) + t % 32 / 4 + i / 2 % 2 * 8,
// column i / 4 * 8 + t % 4 * 2 + i % 2, the layout of mma.sync for each of its four warps. A from
// registers has the same layout, packed in pairs.
#pragma once
#include <stdint.h>

namespace cake::ptx {

// A value that all lanes hold, so told to the assembler, which then computes with it once a warp.
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xFFFFFFFFu, x, 0); }

// A swizzled operand in shared memory, in rows of kWidth bytes (128 or 64) that lie one behind the
// other, and the descriptors of its parts. `leading`, used by operands that are contiguous along M or
// N only, is the distance of the pieces of kWidth bytes.
template <int kWidth>
struct WgmmaOperand {
  static_assert(kWidth == 128 || kWidth == 64, "the swizzles in use");
  uint32_t low;
  static constexpr uint64_t kHigh =
      (kWidth == 128 ? 1ull : 2ull) << 62 | static_cast<uint64_t>(8 * kWidth >> 4) << 32;
  __device__ __forceinline__ WgmmaOperand(uint32_t address, uint32_t leading)
      : low(uniform((address & 0x3FFFF) >> 4 | leading >> 4 << 16)) {}
  // The descriptor of what lies `offset` bytes further.
  __device__ __forceinline__ uint64_t at(uint32_t offset) const { return kHigh | (low + offset / 16); }
};

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads or writes of registers that an instruction in flight owns.
template <int kTiles>
__device__ __forceinline__ void wgmma_own(float (&d)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(d[n][i])::"memory");
  }
}

#define CAKE_D(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define CAKE_D4(n) CAKE_D(n), CAKE_D(n + 1), CAKE_D(n + 2), CAKE_D(n + 3)
#define CAKE_D8 CAKE_D4(0), CAKE_D4(4)
#define CAKE_D12 CAKE_D8, CAKE_D4(8)
#define CAKE_D16 CAKE_D12, CAKE_D4(12)
#define CAKE_R32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CAKE_R48 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, " \
  "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define CAKE_R64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, " \
  "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, " \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// S (64 x N) = or += Q K^T: both operands in shared memory, contiguous along the head dimension.
#define CAKE_WGMMA_SS(N, TYPE, REGS, OUTS, A, B, P)                                              \
  asm volatile("{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %" P ", 0;\n"                  \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, %" A  \
               ", %" B ", accumulate, 1, 1, 0, 0;\n}"                                             \
               : OUTS                                                                            \
               : "l"(a), "l"(b), "r"(accumulate))

template <int N, bool kBf16>
__device__ __forceinline__ void wgmma_ss(float (&d)[N / 8][4], uint64_t a, uint64_t b,
                                         uint32_t accumulate) {
  static_assert(N == 64 || N == 128, "N is a block of keys");
  if constexpr (N == 64 && kBf16) {
    CAKE_WGMMA_SS(64, "bf16", CAKE_R32, CAKE_D8, "32", "33", "34");
  } else if constexpr (N == 64) {
    CAKE_WGMMA_SS(64, "f16", CAKE_R32, CAKE_D8, "32", "33", "34");
  } else if constexpr (kBf16) {
    CAKE_WGMMA_SS(128, "bf16", CAKE_R64, CAKE_D16, "64", "65", "66");
  } else {
    CAKE_WGMMA_SS(128, "f16", CAKE_R64, CAKE_D16, "64", "65", "66");
  }
}

// O (64 x N) += P V: P in registers; V in shared memory, contiguous along N.
#define CAKE_WGMMA_RS(N, TYPE, REGS, OUTS, A0, A1, A2, A3, B)                                    \
  asm volatile("{\n.reg .pred always;\nsetp.eq.b32 always, 0, 0;\n"                                \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGS "}, {%"   \
               A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B ", always, 1, 1, 1;\n}"                     \
               : OUTS                                                                            \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

template <int N, bool kBf16>
__device__ __forceinline__ void wgmma_rs(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(N == 64 || N == 96 || N == 128, "N is the head dimension");
  if constexpr (N == 64 && kBf16) {
    CAKE_WGMMA_RS(64, "bf16", CAKE_R32, CAKE_D8, "32", "33", "34", "35", "36");
  } else if constexpr (N == 64) {
    CAKE_WGMMA_RS(64, "f16", CAKE_R32, CAKE_D8, "32", "33", "34", "35", "36");
  } else if constexpr (N == 96 && kBf16) {
    CAKE_WGMMA_RS(96, "bf16", CAKE_R48, CAKE_D12, "48", "49", "50", "51", "52");
  } else if constexpr (N == 96) {
    CAKE_WGMMA_RS(96, "f16", CAKE_R48, CAKE_D12, "48", "49", "50", "51", "52");
  } else if constexpr (kBf16) {
    CAKE_WGMMA_RS(128, "bf16", CAKE_R64, CAKE_D16, "64", "65", "66", "67", "68");
  } else {
    CAKE_WGMMA_RS(128, "f16", CAKE_R64, CAKE_D16, "64", "65", "66", "67", "68");
  }
}

#undef CAKE_WGMMA_SS
#undef CAKE_WGMMA_RS
#undef CAKE_D
#undef CAKE_D4
#undef CAKE_D8
#undef CAKE_D12
#undef CAKE_D16
#undef CAKE_R32
#undef CAKE_R48
#undef CAKE_R64

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace cake::ptx
