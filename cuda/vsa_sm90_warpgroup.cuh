// What a consumer warpgroup of the Hopper kernels does with its 64 query rows: kKeys keys at a time,
// operands in panels of swizzled rows (see HopperPanels).
#pragma once
#include <stdint.h>

#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "vsa_params.h"
#include "vsa_softmax.cuh"

namespace cake {

// A tile is kept in panels of kPanel columns, each row as wide as the swizzle.
template <int kHeadDim>
struct HopperPanels {
  static constexpr int kPanel = CAKE_MAP_PANEL(kHeadDim);
  static constexpr int kWidth = kPanel * 2;
  static constexpr int kPanels = kHeadDim / kPanel;

  // Loads a box of all panels, `panel_bytes` apart, from (head, token); `barrier` counts the bytes.
  __device__ __forceinline__ static void load(uint32_t shared, int panel_bytes,
                                              const CakeTensorMap *map, int head, int token,
                                              uint32_t barrier) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      ptx::tma_load(shared + panel * panel_bytes, map, panel * kPanel, head, token, barrier);
    }
  }
};

template <int kKeys, int kHeadDim, bool kBf16>
struct Warpgroup {
  using Panels = HopperPanels<kHeadDim>;
  using Operand = ptx::WgmmaOperand<Panels::kWidth>;
  static constexpr int kDTiles = kHeadDim / 8;
  static constexpr int kPSteps = kKeys / 16;  // of P V

  using Logits = float[1][kKeys / 8][4];
  using Weights = uint32_t[kPSteps][4];
  using Output = float[kDTiles][4];

  // s = Q K^T; not waited for. The panels of the two lie kQueryPanelBytes and kKeyPanelBytes apart.
  template <int kQueryPanelBytes, int kKeyPanelBytes>
  __device__ __forceinline__ static void multiply_keys(Logits &s, uint32_t query, uint32_t keys) {
    constexpr int kStepsPerPanel = Panels::kPanel / 16;
    const Operand a(query, 16), b(keys, 16);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint32_t panel = k / kStepsPerPanel, offset = k % kStepsPerPanel * 32;
      ptx::wgmma_ss<kKeys, kBf16>(s[0], a.at(panel * kQueryPanelBytes + offset),
                                  b.at(panel * kKeyPanelBytes + offset), k > 0);
    }
  }

  // o += P V; not waited for.
  template <int kPanelBytes>
  __device__ __forceinline__ static void multiply_values(Output &o, const Weights &weights,
                                                         uint32_t values) {
    const Operand b(values, kPanelBytes);
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) {
      ptx::wgmma_rs<kHeadDim, kBf16>(o, weights[k], b.at(k * 16 * Panels::kWidth));
    }
  }

  // The weights as operand A of P V: the accumulators of Q K^T, rounded and packed in pairs.
  __device__ __forceinline__ static void pack_weights(Weights &weights, const Logits &s) {
#pragma unroll
    for (int k = 0; k < kPSteps; ++k) {
      weights[k][0] = ptx::pack2<kBf16>(s[0][2 * k][0], s[0][2 * k][1]);
      weights[k][1] = ptx::pack2<kBf16>(s[0][2 * k][2], s[0][2 * k][3]);
      weights[k][2] = ptx::pack2<kBf16>(s[0][2 * k + 1][0], s[0][2 * k + 1][1]);
      weights[k][3] = ptx::pack2<kBf16>(s[0][2 * k + 1][2], s[0][2 * k + 1][3]);
    }
  }

  __device__ __forceinline__ static void clear(Output &o) {
#pragma unroll
    for (int d = 0; d < kDTiles; ++d) o[d][0] = o[d][1] = o[d][2] = o[d][3] = 0.0f;
  }

  // How the output follows the references of the softmax: seldom.
  struct Rescale {
    float factor[2];
    bool moved = false;
    __device__ __forceinline__ void operator()(int, int half, float f) {
      factor[half] = f;
      moved = true;
    }
    __device__ __forceinline__ void apply(Output &o) {
      if (!moved) return;
#pragma unroll
      for (int d = 0; d < kDTiles; ++d) {
        o[d][0] *= factor[0];
        o[d][1] *= factor[0];
        o[d][2] *= factor[1];
        o[d][3] *= factor[1];
      }
    }
  };

  // The warpgroup's 64 rows of Q times the sign of sm_scale, in shared memory.
  __device__ static void apply_sign(uint32_t query, int panel_bytes, int thread, float sm_scale,
                                    uint32_t barrier) {
    for (int i = thread; i < 64 * kHeadDim / 2; i += 128) {
      constexpr int kWords = 64 * Panels::kWidth / 4;  // of a panel
      const uint32_t at = query + i / kWords * panel_bytes + i % kWords * 4;
      uint32_t pair;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at) : "memory");
      pair = times_sign<kBf16>(pair, sm_scale);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
    }
    ptx::fence_async_shared();
    ptx::barrier_sync(barrier, 128);
  }
};

}  // namespace cake
