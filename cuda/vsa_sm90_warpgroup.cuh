// What a consumer warpgroup of the Hopper kernels does with its 64 query rows: kKeys keys at a time,
// operands in panels of swizzled rows (see HopperPanels).
#pragma once
#include <stdint.h>

#include "ptx/math.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/stmatrix.cuh"
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

  // Zeroes the rows of a tile of V from `valid` on: 0 x NaN is NaN in the tensor core.
  template <int kPanelBytes>
  __device__ static void clear_values(uint32_t values, int valid, int thread, uint32_t barrier) {
    clear_values<kPanelBytes>(values, valid, thread);
    ptx::barrier_sync(barrier, 128);
  }
  // The same without the barrier that must follow.
  template <int kPanelBytes>
  __device__ static void clear_values(uint32_t values, int valid, int thread) {
    constexpr int kChunks = Panels::kWidth / 16;
    for (int i = thread; i < Panels::kPanels * kKeys * kChunks; i += 128) {
      const int row = i / kChunks % kKeys;
      if (row >= valid) {
        const uint32_t at = values + i / (kChunks * kKeys) * kPanelBytes + row * Panels::kWidth +
                            i % kChunks * 16;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
      }
    }
    ptx::fence_async_shared();
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
    apply_sign(query, panel_bytes, thread, sm_scale);
    ptx::barrier_sync(barrier, 128);
  }
  // The same without the barrier that must follow.
  __device__ static void apply_sign(uint32_t query, int panel_bytes, int thread, float sm_scale) {
    for (int i = thread; i < 64 * kHeadDim / 2; i += 128) {
      constexpr int kWords = 64 * Panels::kWidth / 4;  // of a panel
      const uint32_t at = query + i / kWords * panel_bytes + i % kWords * 4;
      uint32_t pair;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(at) : "memory");
      pair = times_sign<kBf16>(pair, sm_scale);
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(pair) : "memory");
    }
    ptx::fence_async_shared();
  }

  // Where an element of 64 rows lies that stage() has written, or TMA loaded.
  template <int kPanelBytes>
  __device__ __forceinline__ static uint32_t staged(uint32_t rows, int row, int column) {
    const uint32_t at = rows + column / Panels::kPanel * kPanelBytes + row * Panels::kWidth +
                        column % Panels::kPanel * 2;
    return at ^ (at >> 7 & (Panels::kWidth / 16 - 1)) << 4;
  }

  // Rounds the output of 64 tokens times `inverse`, in the tiles of 8 columns from `first` on, into
  // shared memory as TMA stores it.
  template <int kTiles, int kPanelBytes>
  __device__ __forceinline__ static void stage(uint32_t rows, const float (&o)[kTiles][4],
                                               const float (&inverse)[2], int first, int thread) {
    // stmatrix: lane l gives the address of row l % 8 of matrix l / 8; matrices in the order
    // (rows 0-7, columns 0-7), (rows 8-15, columns 0-7), the same eight columns further.
    const int lane = thread % 32;
#pragma unroll
    for (int d = 0; d < kTiles; d += 2) {
      ptx::stmatrix_x4(staged<kPanelBytes>(rows, thread / 32 * 16 + lane % 16,
                                           (first + d + lane / 16) * 8),
                       ptx::pack2<kBf16>(o[d][0] * inverse[0], o[d][1] * inverse[0]),
                       ptx::pack2<kBf16>(o[d][2] * inverse[1], o[d][3] * inverse[1]),
                       ptx::pack2<kBf16>(o[d + 1][0] * inverse[0], o[d + 1][1] * inverse[0]),
                       ptx::pack2<kBf16>(o[d + 1][2] * inverse[1], o[d + 1][3] * inverse[1]));
    }
  }

  // Where lse is wanted, of 64 tokens; after state.finish().
  __device__ __forceinline__ static void store_lse(const CakeVsaParams &p,
                                                   const SoftmaxState<1, true> &state,
                                                   uint32_t head, uint64_t first_token, int thread,
                                                   float scale) {
    if (p.lse == nullptr || thread % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint64_t token = first_token + thread / 32 * 16 + half * 8 + thread % 32 / 4;
      p.lse[token * p.num_qo_heads + head] = state.lse(0, half, scale);
    }
  }

  // Rounds the output of 64 tokens and stores it, and lse, after state.finish(): four lanes hold a
  // row's columns in pairs, exchange them, and write 64 consecutive bytes together.
  __device__ static void store(const CakeVsaParams &p, const Output &o,
                               const SoftmaxState<1, true> &state, uint32_t head,
                               uint64_t first_token, int thread, float scale) {
    const int lane = thread % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = state.sum[0][half];
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      const uint64_t token = first_token + thread / 32 * 16 + half * 8 + lane / 4;
      const uint64_t at = token * p.num_qo_heads + head;
      if (p.lse != nullptr && lane % 4 == 0) p.lse[at] = state.lse(0, half, scale);
      uint4 *const out = static_cast<uint4 *>(p.out) + at * (kHeadDim / 8);
#pragma unroll
      for (int d = 0; d < kDTiles; d += 4) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          a[i] = ptx::pack2<kBf16>(o[d + i][2 * half] * inverse,
                                   o[d + i][2 * half + 1] * inverse);
        }
        // A transpose of 4 x 4 words among four lanes: within pairs of lanes, then between pairs.
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const bool odd = lane & 1;
          const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd ? a[i] : a[i + 1], 1);
          (odd ? a[i] : a[i + 1]) = got;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool high = lane & 2;
          const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, high ? a[i] : a[i + 2], 2);
          (high ? a[i] : a[i + 2]) = got;
        }
        out[d + lane % 4] = make_uint4(a[0], a[1], a[2], a[3]);
      }
    }
  }
};

}  // namespace cake
