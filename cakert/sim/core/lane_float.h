// Floating-point arithmetic in f32, f64, f32x2, f16 and bf16 (PTX ISA 9.7.3 to 9.7.5) on one lane.
//
// NaN results of f32, f16 and bf16 are canonical (0x7fffffff, 0x7fff). Approximate functions return
// the correctly rounded value, or next to it: well within the errors that the ISA allows.
#ifndef CAKERT_SIM_LANE_FLOAT_H
#define CAKERT_SIM_LANE_FLOAT_H

#include "lane_rounding.h"

static LANE_INLINE float canonical(float x) {
  return x == x ? x : bits_as<float>(uint32_t(F32::CANONICAL_NAN));
}
static LANE_INLINE double canonical(double x) { return x; }
static LANE_INLINE float flush(float x) {
  const uint32_t bits = bits_as<uint32_t>(x);
  return bits & 0x7f800000u ? x : bits_as<float>(bits & 0x80000000u);
}
static LANE_INLINE float flush_if(int mode, float x) { return mode & FTZ ? flush(x) : x; }
static LANE_INLINE double flush_if(int, double x) { return x; }
static LANE_INLINE float saturated(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
static LANE_INLINE double saturated(double x) { return x > 0 ? (x < 1 ? x : 1.0) : 0.0; }

template <class T>
static LANE_INLINE T finish(T x, int mode) {
  x = flush_if(mode, canonical(x));
  return mode & SAT ? saturated(x) : x;
}

// To nearest, without modifiers but FTZ: the forms that compilers write.
template <Operation Op, bool Ftz>
static LANE_INLINE float float_op(float a, float b) {
  const int mode = Ftz ? FTZ : 0;
  a = flush_if(mode, a);
  b = flush_if(mode, b);
  return finish(Op == ADD ? a + b : Op == SUB ? a - b : Op == MUL ? a * b : a / b, mode);
}
// div.approx multiplies by a reciprocal that is flushed to zero: beyond 2^126 the divisor might as
// well be infinite (PTX ISA 9.7.3, div).
template <bool Ftz>
static LANE_INLINE float div_approx(float a, float b) {
  const uint32_t bits = bits_as<uint32_t>(b), magnitude = bits & 0x7fffffffu;
  const bool flushed = magnitude > 0x7e800000u && magnitude < 0x7f800000u;
  const uint32_t divisor = flushed ? (bits & 0x80000000u) | 0x7f800000u : bits;
  return float_op<DIV, Ftz>(a, bits_as<float>(divisor));
}
template <bool Ftz>
static LANE_INLINE float float_fma(float a, float b, float c) {
  const int mode = Ftz ? FTZ : 0;
  return finish(std::fma(flush_if(mode, a), flush_if(mode, b), flush_if(mode, c)), mode);
}
template <Operation Op>
static LANE_INLINE double double_op(double a, double b) {
  return Op == ADD ? a + b : Op == SUB ? a - b : Op == MUL ? a * b : a / b;
}
static LANE_INLINE double double_fma(double a, double b, double c) { return std::fma(a, b, c); }

// With every rounding and modifier, by LaneOp::extra.
static LANE_INLINE float add_any(const LaneOp &op, float a, float b) {
  a = flush_if(op.extra, a);
  b = flush_if(op.extra, b);
  return finish(op.extra & ROUNDING ? round_sum_f32(a, b, op.extra & ROUNDING) : a + b, op.extra);
}
static LANE_INLINE float sub_any(const LaneOp &op, float a, float b) {
  // Not add_any(a, -b) with b NaN in mind: the result is canonical either way.
  return add_any(op, a, -b);
}
static LANE_INLINE float round_f32(double exact, int rounding) {
  return bits_as<float>(narrow<F32>(exact, rounding));
}
static LANE_INLINE float mul_any(const LaneOp &op, float a, float b) {
  a = flush_if(op.extra, a);
  b = flush_if(op.extra, b);
  // The product of two floats is exact in double.
  const int rounding = op.extra & ROUNDING;
  return finish(rounding ? round_f32(double(a) * double(b), rounding) : a * b, op.extra);
}
static LANE_INLINE float fma_any(const LaneOp &op, float a, float b, float c) {
  a = flush_if(op.extra, a);
  b = flush_if(op.extra, b);
  c = flush_if(op.extra, c);
  const int rounding = op.extra & ROUNDING;
  return finish(rounding ? round_sum_f32(double(a) * double(b), c, rounding) : std::fma(a, b, c),
                op.extra);
}
static LANE_INLINE float div_any(const LaneOp &op, float a, float b) {
  a = flush_if(op.extra, a);
  b = flush_if(op.extra, b);
  const int rounding = op.extra & ROUNDING;
  return finish(rounding ? directed<float, DIV>(a, b, rounding) : a / b, op.extra);
}
static LANE_INLINE float rcp_any(const LaneOp &op, float a) { return div_any(op, 1.0f, a); }
static LANE_INLINE float sqrt_any(const LaneOp &op, float a) {
  a = flush_if(op.extra, a);
  const int rounding = op.extra & ROUNDING;
  return finish(rounding ? directed<float, SQRT>(a, a, rounding) : std::sqrt(a), op.extra);
}
template <Operation Op>
static LANE_INLINE double double_any(const LaneOp &op, double a, double b) {
  return finish(directed<double, Op>(a, b, op.extra & ROUNDING), op.extra);
}
static LANE_INLINE double double_fma_any(const LaneOp &op, double a, double b, double c) {
  return finish(directed_fma(a, b, c, op.extra & ROUNDING), op.extra);
}
static LANE_INLINE double double_rcp_any(const LaneOp &op, double a) {
  return directed<double, DIV>(1.0, a, op.extra & ROUNDING);
}
static LANE_INLINE double double_sqrt_any(const LaneOp &op, double a) {
  return directed<double, SQRT>(a, a, op.extra & ROUNDING);
}

// Approximate functions of f32. ex2: PTX ISA "ex2", within 2 ulp.
static LANE_INLINE float exp2_f32(float a) {
  // Past these bounds the result is 0 or infinite, and the exponent below stays in range.
  float x = a > -152.0f ? a : -152.0f;
  x = x < 129.0f ? x : 129.0f;
  const double shift = 0x1.8p52;
  const double shifted = double(x) + shift;  // the nearest integer, in its low bits
  const double t = (double(x) - (shifted - shift)) * 0x1.62e42fefa39efp-1;
  // Taylor series of e^t, |t| <= ln(2)/2: the first term left out is below 2^-57.
  double p = 1.0 / 6227020800.0;
  p = p * t + 1.0 / 479001600.0;
  p = p * t + 1.0 / 39916800.0;
  p = p * t + 1.0 / 3628800.0;
  p = p * t + 1.0 / 362880.0;
  p = p * t + 1.0 / 40320.0;
  p = p * t + 1.0 / 5040.0;
  p = p * t + 1.0 / 720.0;
  p = p * t + 1.0 / 120.0;
  p = p * t + 1.0 / 24.0;
  p = p * t + 1.0 / 6.0;
  p = p * t + 0.5;
  p = p * t + 1.0;
  p = p * t + 1.0;
  const double scaled = bits_as<double>(bits_as<uint64_t>(p) + (bits_as<uint64_t>(shifted) << 52));
  const uint32_t bits = bits_as<uint32_t>(float(scaled));
  return bits_as<float>(a == a ? bits : uint32_t(F32::CANONICAL_NAN));
}
template <bool Ftz>
static LANE_INLINE float ex2_f32(float a) {
  return Ftz ? flush(exp2_f32(flush(a))) : exp2_f32(a);
}
template <double (*Fn)(double)>
static LANE_INLINE float approximate(const LaneOp &op, float a) {
  return finish(float(Fn(double(flush_if(op.extra, a)))), op.extra);
}
static inline double log2_of(double x) { return std::log2(x); }
static inline double sin_of(double x) { return std::sin(x); }
static inline double cos_of(double x) { return std::cos(x); }
static inline double tanh_of(double x) { return std::tanh(x); }
static inline double rsqrt_of(double x) { return 1.0 / std::sqrt(x); }
static inline double exp2_of(double x) { return std::exp2(x); }

// rcp and rsqrt.approx.ftz.f64 see and give the upper 32 bits of a double.
static LANE_INLINE double upper_half(double x) {
  if (x != x) return x;
  const uint64_t bits = bits_as<uint64_t>(x) & 0xffffffff00000000ull;
  return bits_as<double>(bits & 0x7ff0000000000000ull ? bits : bits & 0x8000000000000000ull);
}
static LANE_INLINE double rcp_gross(double a) { return upper_half(1.0 / upper_half(a)); }
static LANE_INLINE double rsqrt_gross(double a) {
  return upper_half(1.0 / std::sqrt(upper_half(a)));
}

template <class T>
static LANE_INLINE T float_neg(T a) {
  return -a;
}
template <class T>
static LANE_INLINE T float_abs(T a) {
  return std::fabs(a);
}
static LANE_INLINE float neg_ftz(float a) { return -flush(a); }
static LANE_INLINE float abs_ftz(float a) { return std::fabs(flush(a)); }
template <class T>
static LANE_INLINE T copy_sign(T a, T b) {
  return std::copysign(b, a);
}

// An order of all numbers in which -0 < +0.
static LANE_INLINE int32_t order_of(float x) {
  const int32_t bits = bits_as<int32_t>(x);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
static LANE_INLINE int64_t order_of(double x) {
  const int64_t bits = bits_as<int64_t>(x);
  return bits ^ ((bits >> 63) & 0x7fffffffffffffffll);
}
// The greater (or lesser) operand; one NaN gives the other operand, two give NaN.
template <class T, bool Max>
static LANE_INLINE T extremum(T a, T b) {
  const bool first = Max ? order_of(a) > order_of(b) : order_of(a) < order_of(b);
  const T number = first ? a : b;
  return canonical(a != a ? b : b != b ? a : number);
}
template <class T, bool Max>
static LANE_INLINE T extremum_any(const LaneOp &op, T a, T b) {
  a = flush_if(op.extra, a);
  b = flush_if(op.extra, b);
  const bool negative = (op.extra & XORSIGN_ABS) && std::signbit(a) != std::signbit(b);
  if (op.extra & (XORSIGN_ABS | ABSOLUTE)) {
    a = std::fabs(a);
    b = std::fabs(b);
  }
  if (op.extra & PROPAGATE_NAN && (a != a || b != b)) return canonical(T(NAN));
  const T result = extremum<T, Max>(a, b);
  return negative && result == result ? -result : result;
}
template <bool Max>
static LANE_INLINE float extremum3(float a, float b, float c) {
  return extremum<float, Max>(extremum<float, Max>(a, b), c);
}
template <bool Max>
static LANE_INLINE float extremum3_any(const LaneOp &op, float a, float b, float c) {
  return extremum_any<float, Max>(op, extremum_any<float, Max>(op, a, b), c);
}

// Comparisons: ordered ones are false, unordered ones (ltu) true where an operand is NaN.
template <class T>
static LANE_INLINE bool float_eq(T a, T b) {
  return a == b;
}
template <class T>
static LANE_INLINE bool float_ne(T a, T b) {
  return a < b || a > b;
}
template <class T>
static LANE_INLINE bool float_lt(T a, T b) {
  return a < b;
}
template <class T>
static LANE_INLINE bool float_le(T a, T b) {
  return a <= b;
}
template <class T>
static LANE_INLINE bool float_equ(T a, T b) {
  return !(a < b || a > b);
}
template <class T>
static LANE_INLINE bool float_neu(T a, T b) {
  return !(a == b);
}
template <class T>
static LANE_INLINE bool float_ltu(T a, T b) {
  return !(a >= b);
}
template <class T>
static LANE_INLINE bool float_leu(T a, T b) {
  return !(a > b);
}
template <class T>
static LANE_INLINE bool float_num(T a, T b) {
  return a == a && b == b;
}
template <class T>
static LANE_INLINE bool float_nan(T a, T b) {
  return a != a || b != b;
}
template <bool (*Fn)(float, float)>
static LANE_INLINE bool compare_ftz(float a, float b) {
  return Fn(flush(a), flush(b));
}

enum NumberClass { FINITE, INFINITE, NUMBER, NOT_A_NUMBER, NORMAL, SUBNORMAL };  // LaneOp::extra
template <class T>
static LANE_INLINE bool is_class(const LaneOp &op, T a) {
  const T magnitude = std::fabs(a), least = std::numeric_limits<T>::min();
  const bool finite = magnitude <= std::numeric_limits<T>::max();
  switch (op.extra) {
    case FINITE:
      return finite;
    case INFINITE:
      return !finite && a == a;
    case NUMBER:
      return a == a;
    case NOT_A_NUMBER:
      return a != a;
    case NORMAL:
      return finite && (magnitude >= least || a == 0);  // the ISA counts zeros as normal
    default:
      return magnitude < least && a != 0;
  }
}

template <class T>
static LANE_INLINE T select_float(const LaneOp &op, T a, T b, float c) {
  return flush_if(op.extra, c) >= 0 ? a : b;
}

#endif
