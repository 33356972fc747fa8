// Exact rounding: what a sum, product or conversion is before a format and a direction are chosen.
//
// Everything here relies on the host's default mode (to nearest even) and on doubles being exact;
// nothing depends on whether the compiler contracts a product and a sum.
#ifndef CAKERT_SIM_LANE_ROUNDING_H
#define CAKERT_SIM_LANE_ROUNDING_H

#include <cfenv>

#include "lane_map.h"

// A value is the sum of a double and an error of at most half a unit in its last place.
struct Exact {
  double value, error;
};

// Knuth's two-sum: a + b = value + error without any rounding.
static LANE_INLINE Exact exact_sum(double a, double b) {
  const double sum = a + b;
  const double part = sum - a;
  return {sum, (a - (sum - part)) + (b - part)};
}

static LANE_INLINE double double_neighbour(double x, bool up) {
  // Of finite x other than zero.
  const int64_t bits = bits_as<int64_t>(x);
  return bits_as<double>(bits + ((bits < 0) == up ? -1 : 1));
}

// The sum rounded to odd: a double that rounds to any format of at most 51 bits, in any direction,
// as the exact sum does (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums").
static LANE_INLINE double round_to_odd(Exact x) {
  if (!(x.error > 0 || x.error < 0)) return x.value;
  if (bits_as<uint64_t>(x.value) & 1) return x.value;
  return double_neighbour(x.value, x.error > 0);
}

// 2^n for -1022 <= n <= 1023.
static LANE_INLINE double power_of_two(int n) { return bits_as<double>(uint64_t(n + 1023) << 52); }

static inline double round_integral(double x, int rounding) {
  switch (rounding) {
    case ROUND_RN:
      return std::nearbyint(x);
    case ROUND_RZ:
      return std::trunc(x);
    case ROUND_RM:
      return std::floor(x);
    case ROUND_RP:
      return std::ceil(x);
    default:
      return std::round(x);
  }
}

// A binary format: precision with the hidden bit, exponents of the least and greatest normal
// number, and the encoding's constants. The sign stands above everything else.
struct F16 {
  enum { PRECISION = 11, LEAST = -14, GREATEST = 15, WIDTH = 16, CANONICAL_NAN = 0x7fff };
  static double max() { return 65504.0; }
};
struct BF16 {
  enum { PRECISION = 8, LEAST = -126, GREATEST = 127, WIDTH = 16, CANONICAL_NAN = 0x7fff };
  static double max() { return 0x1.fep127; }
};
struct F32 {
  enum { PRECISION = 24, LEAST = -126, GREATEST = 127, WIDTH = 32, CANONICAL_NAN = 0x7fffffff };
  static double max() { return 0x1.fffffep127; }
};
struct TF32 {  // 19 bits; a register holds them at the top of 32
  enum { PRECISION = 11, LEAST = -126, GREATEST = 127, WIDTH = 19, CANONICAL_NAN = 0x3ffff };
  static double max() { return 0x1.ffcp127; }
};
struct E4M3 {  // no infinity: its greatest exponent has numbers, and one NaN
  enum { PRECISION = 4, LEAST = -6, GREATEST = 8, WIDTH = 8, CANONICAL_NAN = 0x7f };
  static double max() { return 448.0; }
};
struct E5M2 {
  enum { PRECISION = 3, LEAST = -14, GREATEST = 15, WIDTH = 8, CANONICAL_NAN = 0x7f };
  static double max() { return 57344.0; }
};

// Encodes a double that the format holds exactly (or an infinity).
template <class F>
static LANE_INLINE uint32_t encode(double x) {
  const uint64_t bits = bits_as<uint64_t>(x);
  const uint32_t sign = uint32_t(bits >> 63) << (F::WIDTH - 1);
  const double magnitude = std::fabs(x);
  if (magnitude < power_of_two(F::LEAST))
    return sign | uint32_t(magnitude * power_of_two(F::PRECISION - 1 - F::LEAST));
  if (magnitude > F::max())
    return sign | (uint32_t(F::GREATEST - F::LEAST + 2) << (F::PRECISION - 1));
  const uint32_t exponent = uint32_t(int(bits >> 52 & 0x7ff) - 1023 - F::LEAST + 1);
  const uint32_t fraction =
      uint32_t(bits >> (53 - F::PRECISION)) & ((1u << (F::PRECISION - 1)) - 1);
  return sign | (exponent << (F::PRECISION - 1)) | fraction;
}

// Rounds a double to a format, by LaneOp::extra (a FloatMode). Not inlined: half the table calls
// it, and what is common has a form of its own.
template <class F>
static LANE_OUTLINE uint32_t narrow(double x, int mode) {
  if (x != x) return mode & SAT ? 0 : uint32_t(F::CANONICAL_NAN);
  if (mode & RELU && x <= 0) x = 0;
  if (mode & SAT) x = x > 0 ? (x < 1 ? x : 1) : 0;
  const int rounding = mode & ROUNDING;
  if (std::fabs(x) <= std::numeric_limits<double>::max() && x != 0) {
    int exponent = int(bits_as<uint64_t>(x) >> 52 & 0x7ff) - 1023;
    if (exponent < F::LEAST) exponent = F::LEAST;
    if (exponent > F::GREATEST + 1) exponent = F::GREATEST + 1;
    const int quantum = exponent - (F::PRECISION - 1);
    double rounded = round_integral(x * power_of_two(-quantum), rounding) * power_of_two(quantum);
    if (rounded == 0) rounded = std::copysign(0.0, x);
    if (std::fabs(rounded) > F::max()) {
      const bool up = rounding == ROUND_RN || rounding == ROUND_RNA ||
                      rounding == (x > 0 ? ROUND_RP : ROUND_RM);
      rounded = std::copysign(up ? HUGE_VAL : F::max(), x);
    }
    if (mode & FTZ && std::fabs(rounded) < power_of_two(F::LEAST)) rounded = std::copysign(0.0, x);
    x = rounded;
  }
  if (mode & SATFINITE && std::fabs(x) > F::max()) x = std::copysign(F::max(), x);
  return encode<F>(x);
}

// The value of a format's bits.
template <class F>
static LANE_INLINE double widen(uint32_t bits) {
  const uint32_t sign = bits >> (F::WIDTH - 1) & 1;
  const int exponent = int(bits >> (F::PRECISION - 1)) & ((1 << (F::WIDTH - F::PRECISION)) - 1);
  const uint32_t fraction = bits & ((1u << (F::PRECISION - 1)) - 1);
  double magnitude;
  if (exponent > F::GREATEST - F::LEAST + 1)
    magnitude = fraction ? std::numeric_limits<double>::quiet_NaN() : HUGE_VAL;
  else if (exponent == 0)
    magnitude = fraction * power_of_two(F::LEAST - (F::PRECISION - 1));
  else
    magnitude = (fraction + (1u << (F::PRECISION - 1))) *
                power_of_two(exponent - 1 + F::LEAST - (F::PRECISION - 1));
  return sign ? -magnitude : magnitude;
}
template <>
LANE_INLINE double widen<E4M3>(uint32_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = int(bits >> 3 & 15);
  const uint32_t fraction = bits & 7;
  const double magnitude =
      exponent == 0 ? fraction * 0x1p-9 : (fraction + 8) * power_of_two(exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}
template <>
LANE_INLINE double widen<F32>(uint32_t bits) {
  return double(bits_as<float>(bits));
}

// The exact sum in single precision. An exact zero of unlike terms is -0 in ROUND_RM alone.
static LANE_INLINE float round_sum_f32(double a, double b, int rounding) {
  const Exact sum = exact_sum(a, b);
  if (!(std::fabs(sum.value) <= std::numeric_limits<double>::max())) return float(sum.value);
  if (sum.value == 0) {
    const bool like = std::signbit(a) == std::signbit(b);
    return like ? float(a) : rounding == ROUND_RM ? -0.0f : 0.0f;
  }
  return bits_as<float>(narrow<F32>(round_to_odd(sum), rounding));
}

// Arithmetic under a direction, by the host's own rounding mode. Volatile operands keep the
// compiler from moving the operation across the changes of mode.
class Direction {
 public:
  explicit Direction(int rounding) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    std::fesetround(modes[rounding & 3]);
  }
  ~Direction() { std::fesetround(FE_TONEAREST); }
};

enum Operation { ADD, SUB, MUL, DIV, SQRT };
template <class T, Operation Op>
static T directed(T a, T b, int rounding) {
  volatile T x = a, y = b, result;
  const Direction scope(rounding);
  switch (Op) {
    case ADD:
      result = x + y;
      break;
    case SUB:
      result = x - y;
      break;
    case MUL:
      result = x * y;
      break;
    case DIV:
      result = x / y;
      break;
    case SQRT:
      result = std::sqrt(T(x));
      break;
  }
  return result;
}
static inline double directed_fma(double a, double b, double c, int rounding) {
  volatile double x = a, y = b, z = c, result;
  const Direction scope(rounding);
  result = std::fma(double(x), double(y), double(z));
  return result;
}

#endif
