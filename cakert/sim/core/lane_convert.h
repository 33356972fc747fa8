// Conversions from, to and between floating-point formats (PTX ISA 9.7.9, cvt) on one lane.
//
// LaneOp::extra is a FloatMode.
#ifndef CAKERT_SIM_LANE_CONVERT_H
#define CAKERT_SIM_LANE_CONVERT_H

#include "lane_half.h"
#include "lane_integer.h"

// Register contents of a format, and its values as double (exact).
template <class F>
struct Stored;
template <>
struct Stored<F16> {
  using type = uint16_t;
};
template <>
struct Stored<BF16> {
  using type = uint16_t;
};
template <>
struct Stored<F32> {
  using type = uint32_t;
};
struct F64;
template <>
struct Stored<F64> {
  using type = double;
};
template <class F>
using Register = typename Stored<F>::type;

// .ftz concerns inputs and results in f32 only.
template <class F>
static LANE_INLINE double float_input(const LaneOp &op, Register<F> a) {
  const double x = widen<F>(a);
  const bool subnormal = std::is_same<F, F32>::value && std::fabs(x) < power_of_two(F::LEAST);
  return op.extra & FTZ && subnormal ? std::copysign(0.0, x) : x;
}
template <>
LANE_INLINE double float_input<F64>(const LaneOp &, double a) {
  return a;
}

template <class F>
static LANE_INLINE Register<F> float_output(double x, int mode) {
  return Register<F>(narrow<F>(x, std::is_same<F, F32>::value ? mode : mode & ~FTZ));
}
template <>
LANE_INLINE double float_output<F64>(double x, int mode) {
  return mode & SAT ? saturated(x) : x;
}

// A NaN keeps its sign and its leading digits where one of the formats is f64, and becomes quiet.
// Elsewhere it is canonical. (What sm_90 gives; the ISA leaves it open.)
template <class S>
static LANE_INLINE double widen_nan(uint32_t bits) {
  const uint64_t sign = uint64_t(bits >> (S::WIDTH - 1)) << 63;
  const uint64_t fraction = bits & ((1u << (S::PRECISION - 1)) - 1);
  return bits_as<double>(sign | 0x7ff8000000000000ull | fraction << (53 - S::PRECISION));
}
template <class D>
static LANE_INLINE Register<D> narrow_nan(double x) {
  const uint64_t bits = bits_as<uint64_t>(x) | 0x7ff8000000000000ull;
  const uint32_t magnitude =
      uint32_t(bits >> (53 - D::PRECISION)) & ((1u << (D::WIDTH - 1)) - 1);
  return Register<D>(uint32_t(bits >> 63) << (D::WIDTH - 1) | magnitude);
}

template <class D, class S>
static LANE_INLINE Register<D> convert_float(const LaneOp &op, Register<S> a) {
  double x = float_input<S>(op, a);
  if constexpr (std::is_same<D, F64>::value != std::is_same<S, F64>::value) {
    if (x != x) {
      if (op.extra & SAT) return 0;
      if constexpr (std::is_same<S, F64>::value) return narrow_nan<D>(x);
      // .ftz is a multiplication in f32 ahead of the conversion: its NaN is canonical.
      else return widen_nan<S>(op.extra & FTZ ? uint32_t(S::CANONICAL_NAN) : uint32_t(a));
    }
  }
  if (op.extra & INTEGRAL) x = round_integral(x, op.extra & ROUNDING);
  return float_output<D>(x, op.extra);
}
// A register holds the 19 bits of tf32 at its top. On sm_90 .rna is integer arithmetic that cuts a
// NaN short, to an infinity where its digits stood at the end; other roundings give 0x7fffe000.
static LANE_INLINE uint32_t convert_tf32(const LaneOp &op, float a) {
  if (a != a && (op.extra & ROUNDING) == ROUND_RNA) {
    const uint32_t cut = bits_as<uint32_t>(a) & 0xffffe000u;
    return op.extra & SATFINITE ? cut - 0x2000u : cut;  // one step down, as from an infinity
  }
  return narrow<TF32>(double(a), op.extra) << 13;
}

// Out of range clamps; NaN is 0, or the lone top bit for f64 sources and 64-bit results.
template <class D, class S>
static LANE_INLINE auto float_to_int(const LaneOp &op, Register<S> a) {
  using Extended =
      std::conditional_t<(sizeof(D) > 4), D,
                         std::conditional_t<std::is_signed<D>::value, int32_t, uint32_t>>;
  using Limits = std::numeric_limits<D>;
  double x = float_input<S>(op, a);
  if (x != x) {
    const bool top = std::is_same<S, F64>::value || sizeof(D) > 4;
    return Extended(D(top ? std::make_unsigned_t<D>(1) << (8 * sizeof(D) - 1) : 0));
  }
  x = round_integral(x, op.extra & ROUNDING);
  // 2^(bits of D) and its negative are doubles even where D's own limits are not.
  const double end = power_of_two(Limits::digits);
  if (x >= end) return Extended(Limits::max());
  if (x <= (Limits::is_signed ? -end : 0.0)) return Extended(Limits::min());
  return Extended(D(x));
}

template <class S>
static LANE_INLINE Exact exact_integer(S a) {
  const int64_t high = int64_t(a) >> 32;
  const double upper = std::is_signed<S>::value ? double(high) : double(uint64_t(a) >> 32);
  return exact_sum(upper * 0x1p32, double(uint32_t(uint64_t(a))));
}
template <class D, class S>
static LANE_INLINE Register<D> int_to_float(const LaneOp &op, S a) {
  return float_output<D>(round_to_odd(exact_integer(a)), op.extra);
}
template <class S>
static LANE_INLINE double int_to_double(const LaneOp &op, S a) {
  Exact x = exact_integer(a);
  const int rounding = op.extra & ROUNDING;
  const bool down = rounding == ROUND_RM || (rounding == ROUND_RZ && x.value > 0);
  const bool up = rounding == ROUND_RP || (rounding == ROUND_RZ && x.value < 0);
  if ((x.error < 0 && down) || (x.error > 0 && up)) x.value = double_neighbour(x.value, up);
  return op.extra & SAT ? saturated(x.value) : x.value;
}
template <class S>
static LANE_INLINE float int_to_f32_rn(S a) {
  return float(a);
}

static LANE_INLINE uint16_t f16_rn(float a) {
  const uint32_t bits = bits_as<uint32_t>(a), magnitude = bits & 0x7fffffffu;
  // Adding 1/2 leaves a subnormal's multiple of 2^-24 in the low bits, rounded.
  const uint32_t subnormal =
      bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - bits_as<uint32_t>(0.5f);
  const uint32_t normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result |= (bits >> 16) & 0x8000u;
  return uint16_t(magnitude > 0x7f800000u ? 0x7fffu : result);
}
static LANE_INLINE uint16_t bf16_rn(float a) {
  const uint32_t bits = bits_as<uint32_t>(a);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : rounded);
}
static LANE_INLINE uint32_t pack_f16_rn(float a, float b) {
  return (uint32_t(f16_rn(a)) << 16) | f16_rn(b);
}
static LANE_INLINE uint32_t pack_bf16_rn(float a, float b) {
  return (uint32_t(bf16_rn(a)) << 16) | bf16_rn(b);
}
// A shift: NaN, signalling ones too, keep all their bits. Not a float, lest the host make it quiet.
static LANE_INLINE uint32_t bf16_to_f32(uint16_t a) { return uint32_t(a) << 16; }

// Two floats to a pair: a above b.
template <class F>
static LANE_INLINE auto pack_float(const LaneOp &op, float a, float b) {
  using R = Bits<F::WIDTH / 4>;
  return R((narrow<F>(float_input<F32>(op, bits_as<uint32_t>(a)), op.extra) << F::WIDTH) |
           narrow<F>(float_input<F32>(op, bits_as<uint32_t>(b)), op.extra));
}
// A pair of one width to a pair of the other.
template <class D, class S>
static LANE_INLINE Bits<D::WIDTH / 4> convert_pair(const LaneOp &op, Bits<S::WIDTH / 4> a) {
  const uint32_t low = uint32_t(a) & ((1u << S::WIDTH) - 1);
  const uint32_t high = uint32_t(a) >> S::WIDTH;
  return Bits<D::WIDTH / 4>((narrow<D>(widen<S>(high), op.extra) << D::WIDTH) |
                            narrow<D>(widen<S>(low), op.extra));
}

#endif
