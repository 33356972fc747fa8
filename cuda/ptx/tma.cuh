// Tensor copies between global and shared memory (PTX ISA, "cp.async.bulk.tensor") and the fence
// between the generic and the asynchronous proxy.
#pragma once
#include <stdint.h>

#include "vsa_params.h"

namespace cake::ptx {

__device__ __forceinline__ void prefetch_tensor_map(const CakeTensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// True in one lane of the warp, which must be converged. The assembler knows that it is one: a TMA
// instruction under it needs no loop over lanes that might differ in its operands.
__device__ __forceinline__ bool elect() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xFFFFFFFF;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

// Loads the box at (column, head, token); `barrier` counts its bytes.
__device__ __forceinline__ void tma_load(uint32_t shared, const CakeTensorMap *map, int column,
                                         int head, int token, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared),
      "l"(map), "r"(column), "r"(head), "r"(token), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void tma_store(const CakeTensorMap *map, int column, int head, int token,
                                          uint32_t shared) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(column), "r"(head), "r"(token), "r"(shared)
      : "memory");
}

__device__ __forceinline__ void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Until shared memory may be written again: all committed stores have read it.
__device__ __forceinline__ void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Orders this thread's accesses of shared memory before later ones of the asynchronous proxy.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace cake::ptx
