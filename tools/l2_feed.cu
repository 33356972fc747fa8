// How fast all SMs pull 16 KiB tiles, a K or V block of 64 x 128 two-byte elements, from L2 into shared
// memory: a ceiling of the benchmark (tools/bench_ceilings.py), for sm_90a, no part of the package.
//
// One thread a block keeps kStages bulk copies in flight, from random places of `tiles` tiles. The
// first word of each tile is added up, so that the host can tell that they came.
#include <stdint.h>

#include "ptx/mbarrier.cuh"

constexpr uint32_t kTileBytes = 16384;
constexpr uint32_t kStages = 6;  // two blocks share an SM
extern "C" __device__ constexpr uint32_t l2_feed_geometry[2] = {32, kStages * kTileBytes};

__device__ __forceinline__ void bulk_load(uint32_t shared, const char *global, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared),
      "l"(global), "n"(kTileBytes), "r"(barrier)
      : "memory");
}

extern "C" __global__ void __launch_bounds__(32)
    l2_feed(const char *base, uint32_t tiles, uint32_t count, uint32_t *sums) {
  extern __shared__ __align__(128) char stages[];
  __shared__ __align__(8) uint64_t barriers[kStages];
  if (threadIdx.x != 0) return;

  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const uint32_t full = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  for (uint32_t stage = 0; stage < kStages; ++stage) cake::ptx::mbarrier_init(full + 8 * stage, 1);
  cake::ptx::mbarrier_init_fence();

  uint32_t state = blockIdx.x * 2654435761u + 12345u;
  uint32_t sum = 0, stage = 0, parity = 1;  // parity 1: no tile has come to this stage yet
  for (uint32_t index = 0; index < count + kStages; ++index) {
    if (index >= kStages) {
      cake::ptx::mbarrier_wait(full + 8 * stage, parity);
      sum += *reinterpret_cast<const uint32_t *>(stages + stage * kTileBytes);
    }
    if (index < count) {
      state = state * 1664525u + 1013904223u;
      const uint64_t tile = (static_cast<uint64_t>(state) * tiles) >> 32;
      cake::ptx::mbarrier_expect(full + 8 * stage, kTileBytes);
      bulk_load(shared + stage * kTileBytes, base + tile * kTileBytes, full + 8 * stage);
    }
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  sums[blockIdx.x] = sum;
}
