// cp.async: 16-byte asynchronous copies from global to shared memory (PTX ISA, 9.7.9.25).
#pragma once
#include <stdint.h>

namespace cake::ptx {

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies `bytes` (0 or 16) from global memory and fills the rest of the 16 bytes with zeros; with
// 0 nothing is read. Bypasses L1 (.cg): a KV tile is read once by a CTA.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void *global, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace cake::ptx
