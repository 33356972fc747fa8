// Arithmetic of f16 and bf16, one or two to a register (PTX ISA 9.7.4, 9.7.5), on one lane.
//
// Values are widened to double, where sums and products are exact or known with their error, and
// rounded once. F is the format; R is uint16_t for one value and uint32_t for a pair.
#ifndef CAKERT_SIM_LANE_HALF_H
#define CAKERT_SIM_LANE_HALF_H

#include "lane_float.h"

template <class F>
static LANE_INLINE double half_input(const LaneOp &op, uint32_t bits) {
  if (op.extra & FTZ && !(bits & (0x7fffu ^ ((1u << (F::PRECISION - 1)) - 1)))) bits &= 0x8000u;
  return widen<F>(bits & 0xffff);
}

template <class F>
static LANE_INLINE uint32_t half_add(const LaneOp &op, uint32_t a, uint32_t b) {
  return narrow<F>(round_to_odd(exact_sum(half_input<F>(op, a), half_input<F>(op, b))), op.extra);
}
template <class F>
static LANE_INLINE uint32_t half_sub(const LaneOp &op, uint32_t a, uint32_t b) {
  return narrow<F>(round_to_odd(exact_sum(half_input<F>(op, a), -half_input<F>(op, b))), op.extra);
}
template <class F>
static LANE_INLINE uint32_t half_mul(const LaneOp &op, uint32_t a, uint32_t b) {
  return narrow<F>(half_input<F>(op, a) * half_input<F>(op, b), op.extra);
}
template <class F>
static LANE_INLINE uint32_t half_fma(const LaneOp &op, uint32_t a, uint32_t b, uint32_t c) {
  const double product = half_input<F>(op, a) * half_input<F>(op, b);
  return narrow<F>(round_to_odd(exact_sum(product, half_input<F>(op, c))), op.extra);
}
template <class F>
static LANE_INLINE uint32_t half_neg(const LaneOp &op, uint32_t a) {
  return narrow<F>(-half_input<F>(op, a), op.extra);
}
template <class F>
static LANE_INLINE uint32_t half_abs(const LaneOp &op, uint32_t a) {
  return narrow<F>(std::fabs(half_input<F>(op, a)), op.extra);
}
template <class F, bool Max>
static LANE_INLINE uint32_t half_extremum(const LaneOp &op, uint32_t a, uint32_t b) {
  return narrow<F>(extremum_any<double, Max>(op, half_input<F>(op, a), half_input<F>(op, b)),
                   ROUND_RN);
}
template <class F, double (*Fn)(double)>
static LANE_INLINE uint32_t half_function(const LaneOp &op, uint32_t a) {
  return narrow<F>(Fn(half_input<F>(op, a)), op.extra);
}

// Both values of a register, or one with the upper half zero.
template <class R, uint32_t (*Fn)(const LaneOp &, uint32_t)>
static LANE_INLINE R halves1(const LaneOp &op, R a) {
  uint32_t result = Fn(op, a & 0xffff);
  if (sizeof(R) > 2) result |= Fn(op, uint32_t(a) >> 16) << 16;
  return R(result);
}
template <class R, uint32_t (*Fn)(const LaneOp &, uint32_t, uint32_t)>
static LANE_INLINE R halves2(const LaneOp &op, R a, R b) {
  uint32_t result = Fn(op, a & 0xffff, b & 0xffff);
  if (sizeof(R) > 2) result |= Fn(op, uint32_t(a) >> 16, uint32_t(b) >> 16) << 16;
  return R(result);
}
template <class R, uint32_t (*Fn)(const LaneOp &, uint32_t, uint32_t, uint32_t)>
static LANE_INLINE R halves3(const LaneOp &op, R a, R b, R c) {
  uint32_t result = Fn(op, a & 0xffff, b & 0xffff, c & 0xffff);
  if (sizeof(R) > 2)
    result |= Fn(op, uint32_t(a) >> 16, uint32_t(b) >> 16, uint32_t(c) >> 16) << 16;
  return R(result);
}

// Comparisons: of a single value or the lower ones of two pairs, and of the upper ones.
template <class F, bool (*Fn)(double, double)>
static LANE_INLINE bool half_compare(const LaneOp &op, uint16_t a, uint16_t b) {
  return Fn(half_input<F>(op, a), half_input<F>(op, b));
}
template <class F, bool (*Fn)(double, double)>
static LANE_INLINE bool half_compare_upper(const LaneOp &op, uint32_t a, uint32_t b) {
  return Fn(half_input<F>(op, a >> 16), half_input<F>(op, b >> 16));
}

#endif
