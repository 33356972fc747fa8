// Thread block clusters and distributed shared memory (PTX ISA, "barrier.cluster", "mapa",
// "st.async").
#pragma once
#include <stdint.h>

namespace cake::ptx {

// Of a CTA in its cluster, of a cluster in the grid, and CTAs of a cluster: a kernel launched without
// clusters has those of one CTA.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_number() {
  uint32_t number;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
  return number;
}
__device__ __forceinline__ uint32_t cluster_size() {
  uint32_t size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
}

// A barrier of all threads of the cluster that have not exited. It orders no writes, which spares
// every thread a fence; mbarriers behind mbarrier_init_fence() can be used after it. Whoever arrives
// must wait before it exits, whoever exits without waiting must not arrive.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What another CTA of the cluster has at the address `shared` of this one.
__device__ __forceinline__ uint32_t cluster_address(uint32_t shared, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}

// Stores to a CTA of the cluster, whose `barrier` counts the bytes.
__device__ __forceinline__ void cluster_store(uint32_t there, const float (&x)[4],
                                              uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          there),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void cluster_store(uint32_t there, float x, float y, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(there),
      "f"(x), "f"(y), "r"(barrier)
      : "memory");
}

// mbarrier_wait() for what other CTAs of the cluster have stored.
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

}  // namespace cake::ptx
