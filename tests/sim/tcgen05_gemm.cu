// D (M x N, f32) = A (M x 64) * B (N x 64)^T in 16-bit types, by one CTA of 160 threads: warps 0..3
// load the operands with generic stores and read D, warp 4 allocates tensor memory and issues.
// Compiled to PTX by test_tcgen05_gemm.py with -DM=.. -DN=.. -DWS=.. -DIDESC=.. and one planted
// FAULT each: 1 no proxy fence, 2 no commit wait, 3 no dealloc, 4 no wait::st, 5 wrong quarter.
#include <cstdint>

#ifndef FAULT
#define FAULT 0
#endif

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// K-major, 128-byte swizzle, rows of 128 bytes, 8-row groups 1024 bytes apart.
__device__ inline uint64_t descriptor(uint32_t address) {
  return uint64_t(address >> 4) | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 46 | uint64_t(2) << 61;
}

template <int kRows>
__device__ inline void load(uint32_t tile, const uint4* source) {
  for (int chunk = threadIdx.x; chunk < kRows * 8; chunk += 128) {
    const int row = chunk / 8, column = chunk % 8;
    const uint4 v = source[chunk];
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(
                     tile + row * 128 + ((column ^ (row & 7)) << 4)),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }
}

extern "C" __global__ void __launch_bounds__(160) gemm(const uint4* a, const uint4* b, float* d) {
  extern __shared__ uint8_t dynamic[];
  __shared__ uint32_t slot;
  __shared__ __align__(8) uint64_t done;
  const uint32_t base = (shared_address(dynamic) + 1023) & ~1023u;
  const uint32_t tile_a = base, tile_b = base + M * 128;
  const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);

  if (warp == 4) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 256;" ::"r"(
                     shared_address(&slot))
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
    if (threadIdx.x == 128) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&done)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
  } else {
    load<M>(tile_a, a);
    load<N>(tile_b, b);
#if FAULT != 1
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  const uint32_t tensor = slot;

  if (warp == 4) {
    asm volatile(
        "{\n .reg .pred leader, add;\n .reg .b64 da, db;\n elect.sync _|leader, 0xFFFFFFFF;\n"
        " setp.ne.b32 add, 0, 0;\n mov.b64 da, %1;\n mov.b64 db, %2;\n"
#if WS
#define STEP "@leader tcgen05.mma.ws.cta_group::1.kind::f16 [%0], da, db, %3, add;\n"
#else
#define STEP "@leader tcgen05.mma.cta_group::1.kind::f16 [%0], da, db, %3, add;\n"
#endif
#define ADVANCE " setp.eq.b32 add, 0, 0;\n add.s64 da, da, 2;\n add.s64 db, db, 2;\n"
        STEP ADVANCE STEP ADVANCE STEP ADVANCE STEP
        "@leader tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%4];\n}" ::"r"(
            tensor),
        "l"(descriptor(tile_a)), "l"(descriptor(tile_b)), "r"(IDESC), "r"(shared_address(&done))
        : "memory");
  } else {
#if FAULT != 2
    asm volatile(
        "{\n .reg .pred p;\nAGAIN_%=:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n"
        " @!p bra AGAIN_%=;\n}" ::"r"(shared_address(&done))
        : "memory");
#endif
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const int quarter = FAULT == 5 ? 0 : warp;
    constexpr int kColumns = WS ? N / 2 : N;
    for (int column = 0; column < kColumns; column += 16) {
      const uint32_t source = tensor + (uint32_t(quarter) << 21) + column;
      uint32_t r[16];
#define LIST(r)                                                                                    \
  "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]), "=r"(r[4]), "=r"(r[5]), "=r"(r[6]), "=r"(r[7]),  \
      "=r"(r[8]), "=r"(r[9]), "=r"(r[10]), "=r"(r[11]), "=r"(r[12]), "=r"(r[13]), "=r"(r[14]),     \
      "=r"(r[15])
      asm volatile(
          "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
          "%11, %12, %13, %14, %15}, [%16];\n tcgen05.wait::ld.sync.aligned;"
          : LIST(r)
          : "r"(source)
          : "memory");
      // The way through tensor memory again: store doubled, read back.
      for (int i = 0; i < 16; ++i) r[i] = __float_as_uint(2.0f * __uint_as_float(r[i]));
      asm volatile(
          "tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
          "%10, %11, %12, %13, %14, %15};"
#if FAULT != 4
          "\n tcgen05.wait::st.sync.aligned;"
#endif
          ::"r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(r[4]), "r"(r[5]), "r"(r[6]), "r"(r[7]),
          "r"(r[8]), "r"(r[9]), "r"(r[10]), "r"(r[11]), "r"(r[12]), "r"(r[13]), "r"(r[14]),
          "r"(r[15]), "r"(source)
          : "memory");
      asm volatile(
          "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, "
          "%11, %12, %13, %14, %15}, [%16];\n tcgen05.wait::ld.sync.aligned;"
          : LIST(r)
          : "r"(source)
          : "memory");
      const int row = WS ? threadIdx.x % 64 : threadIdx.x;
      const int first = WS ? threadIdx.x / 64 * kColumns + column : column;
      for (int i = 0; i < 16; ++i) d[row * N + first + i] = __uint_as_float(r[i]);
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  }
  __syncthreads();
#if FAULT != 3
  if (warp == 4) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 256;" ::"r"(tensor));
  }
#endif
}
