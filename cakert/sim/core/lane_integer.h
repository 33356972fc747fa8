// Integer arithmetic, logic, shifts and bit fields (PTX ISA 9.7.1, 9.7.2, 9.7.8) on one lane.
#ifndef CAKERT_SIM_LANE_INTEGER_H
#define CAKERT_SIM_LANE_INTEGER_H

#include "lane_map.h"

// The type that holds every product of two T.
template <class T>
struct Wider;
template <>
struct Wider<uint16_t> {
  using type = uint32_t;
};
template <>
struct Wider<int16_t> {
  using type = int32_t;
};
template <>
struct Wider<uint32_t> {
  using type = uint64_t;
};
template <>
struct Wider<int32_t> {
  using type = int64_t;
};
template <>
struct Wider<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct Wider<int64_t> {
  using type = __int128;
};
template <class T>
using Wide = typename Wider<T>::type;
// Arithmetic that wraps: at least 32 bits, so that no uint16_t is promoted to a signed int.
template <class T>
using Wrapping = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;

template <class T>
static LANE_INLINE T int_add(T a, T b) {
  return T(Wrapping<T>(a) + Wrapping<T>(b));
}
template <class T>
static LANE_INLINE T int_sub(T a, T b) {
  return T(Wrapping<T>(a) - Wrapping<T>(b));
}
template <class T>
static LANE_INLINE T mul_lo(T a, T b) {
  return T(Wrapping<T>(a) * Wrapping<T>(b));
}
template <class T>
static LANE_INLINE T mul_hi(T a, T b) {
  return T((Wide<T>(a) * Wide<T>(b)) >> (8 * sizeof(T)));
}
template <class T>
static LANE_INLINE Wide<T> mul_wide(T a, T b) {
  return Wide<T>(a) * Wide<T>(b);
}
template <class T>
static LANE_INLINE T mad_lo(T a, T b, T c) {
  return int_add(mul_lo(a, b), c);
}
template <class T>
static LANE_INLINE T mad_hi(T a, T b, T c) {
  return int_add(mul_hi(a, b), c);
}
template <class T>
static LANE_INLINE Wide<T> mad_wide(T a, T b, Wide<T> c) {
  return int_add<Wide<T>>(mul_wide(a, b), c);
}

static LANE_INLINE int32_t clamp_s32(int64_t value) {
  const int64_t low = std::numeric_limits<int32_t>::min();
  const int64_t high = std::numeric_limits<int32_t>::max();
  return int32_t(value < low ? low : value > high ? high : value);
}
static LANE_INLINE int32_t add_sat_s32(int32_t a, int32_t b) { return clamp_s32(int64_t(a) + b); }
static LANE_INLINE int32_t sub_sat_s32(int32_t a, int32_t b) { return clamp_s32(int64_t(a) - b); }
static LANE_INLINE int32_t mad_hi_sat_s32(int32_t a, int32_t b, int32_t c) {
  return clamp_s32(int64_t(mul_hi(a, b)) + c);
}

// The low 24 bits of an operand, with its sign (mul24, mad24).
static LANE_INLINE int64_t low24(int32_t a) { return int64_t(int32_t(uint32_t(a) << 8) >> 8); }
static LANE_INLINE int64_t low24(uint32_t a) { return int64_t(a & 0xffffffu); }
template <class T>
static LANE_INLINE T mul24_lo(T a, T b) {
  return T(low24(a) * low24(b));
}
template <class T>
static LANE_INLINE T mul24_hi(T a, T b) {
  return T((low24(a) * low24(b)) >> 16);
}
template <class T>
static LANE_INLINE T mad24_lo(T a, T b, T c) {
  return int_add(mul24_lo(a, b), c);
}
template <class T>
static LANE_INLINE T mad24_hi(T a, T b, T c) {
  return int_add(mul24_hi(a, b), c);
}
static LANE_INLINE int32_t mad24_hi_sat(int32_t a, int32_t b, int32_t c) {
  return clamp_s32(int64_t(mul24_hi(a, b)) + c);
}

template <class T>
static LANE_INLINE T int_sad(T a, T b, T c) {
  return int_add(c, a > b ? int_sub(a, b) : int_sub(b, a));
}

// Division by zero gives all ones, in div and in rem: what ptxas 13.0 generates for sm_90 (the ISA
// leaves it to the machine). The most negative value over -1 wraps.
template <class T>
static LANE_INLINE T int_div(T a, T b) {
  if (b == 0) return T(~T(0));
  if (std::is_signed<T>::value && b == T(-1)) return int_sub(T(0), a);
  return T(a / b);
}
template <class T>
static LANE_INLINE T int_rem(T a, T b) {
  if (b == 0) return T(~T(0));
  if (std::is_signed<T>::value && b == T(-1)) return T(0);
  return T(a % b);
}

template <class T>
static LANE_INLINE T int_neg(T a) {
  return int_sub(T(0), a);
}
template <class T>
static LANE_INLINE T int_abs(T a) {
  return a < 0 ? int_neg(a) : a;
}
template <class T>
static LANE_INLINE T int_min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
static LANE_INLINE T int_max(T a, T b) {
  return a > b ? a : b;
}
template <class T>
static LANE_INLINE T int_min_relu(T a, T b) {
  return int_max(int_min(a, b), T(0));
}
template <class T>
static LANE_INLINE T int_max_relu(T a, T b) {
  return int_max(int_max(a, b), T(0));
}

// Both halves of a 32-bit register.
template <class T, T (*Fn)(T, T)>
static LANE_INLINE uint32_t int_halves(uint32_t a, uint32_t b) {
  const uint16_t low = uint16_t(Fn(T(uint16_t(a)), T(uint16_t(b))));
  const uint16_t high = uint16_t(Fn(T(uint16_t(a >> 16)), T(uint16_t(b >> 16))));
  return uint32_t(low) | (uint32_t(high) << 16);
}

static LANE_INLINE uint32_t count_ones(uint64_t a) {
  a -= (a >> 1) & 0x5555555555555555ull;
  a = (a & 0x3333333333333333ull) + ((a >> 2) & 0x3333333333333333ull);
  a = (a + (a >> 4)) & 0x0f0f0f0f0f0f0f0full;
  return uint32_t((a * 0x0101010101010101ull) >> 56);
}
template <class T>
static LANE_INLINE uint32_t int_popc(T a) {
  return count_ones(a);
}
template <class T>
static LANE_INLINE uint32_t int_clz(T a) {
  return a == 0 ? 8 * sizeof(T) : uint32_t(__builtin_clzll(a)) - (64 - 8 * uint32_t(sizeof(T)));
}
// The most significant bit that is no sign; all ones where there is none.
template <class T>
static LANE_INLINE uint32_t int_bfind(T a) {
  const std::make_unsigned_t<T> magnitude = std::make_unsigned_t<T>(a < 0 ? ~a : a);
  return magnitude == 0 ? ALL_LANES : 8 * uint32_t(sizeof(T)) - 1 - int_clz(magnitude);
}
template <class T>
static LANE_INLINE uint32_t int_bfind_shift(T a) {
  const uint32_t position = int_bfind(a);
  return position == ALL_LANES ? position : 8 * uint32_t(sizeof(T)) - 1 - position;
}
template <class T>
static LANE_INLINE T int_brev(T a) {
  uint64_t x = a;
  x = ((x >> 1) & 0x5555555555555555ull) | ((x & 0x5555555555555555ull) << 1);
  x = ((x >> 2) & 0x3333333333333333ull) | ((x & 0x3333333333333333ull) << 2);
  x = ((x >> 4) & 0x0f0f0f0f0f0f0f0full) | ((x & 0x0f0f0f0f0f0f0f0full) << 4);
  return T(__builtin_bswap64(x) >> (64 - 8 * sizeof(T)));
}

// Bits below position n, n from 0 to 64.
static LANE_INLINE uint64_t ones_below(uint32_t n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }

// Position or length of a bit field. The ISA has them in 0..255; of others sm_90 takes the low 8
// bits in the 32-bit forms, while its sequences for 64 bits shift by the whole count.
template <class T>
static LANE_INLINE uint32_t field_count(uint32_t n) {
  return sizeof(T) > 4 ? int_min(n, 255u) : n & 0xff;
}
template <class T>
static LANE_INLINE T int_bfe(T a, uint32_t b, uint32_t c) {
  const uint32_t width = 8 * sizeof(T);
  const uint32_t position = field_count<T>(b), length = field_count<T>(c);
  const uint64_t bits = std::make_unsigned_t<T>(a);
  const uint64_t field = (position >= 64 ? 0 : bits >> position) & ones_below(length);
  const uint32_t top = position + length - 1 < width - 1 ? position + length - 1 : width - 1;
  const bool sign = std::is_signed<T>::value && length > 0 && ((bits >> (top & 63)) & 1);
  // Bits of the field that lie past the operand's end are copies of its sign too.
  const uint32_t taken = position >= width ? 0 : int_min(length, width - position);
  return T(field | (sign ? ~ones_below(taken) : 0));
}
template <class T>
static LANE_INLINE T int_bfi(T a, T b, uint32_t c, uint32_t d) {
  const uint32_t position = field_count<T>(c), length = field_count<T>(d);
  if (position >= 8 * sizeof(T)) return b;
  const uint64_t field = ones_below(length) << position;
  return T((uint64_t(b) & ~field) | ((uint64_t(a) << position) & field));
}
static LANE_INLINE uint32_t int_fns(uint32_t bits, uint32_t base, int32_t offset) {
  if (offset == 0) return base < 32 && ((bits >> base) & 1) ? base : ALL_LANES;
  int64_t left = (offset < 0 ? -int64_t(offset) : int64_t(offset)) - 1;
  for (int64_t at = base; at >= 0 && at < 32; at += offset < 0 ? -1 : 1)
    if ((bits >> at) & 1 && left-- == 0) return uint32_t(at);
  return ALL_LANES;
}

// LaneOp::extra: 1 where counts past the width clamp (.clamp), 0 where they wrap.
template <bool Signed>
static LANE_INLINE uint32_t int_szext(const LaneOp &op, uint32_t a, uint32_t b) {
  if (op.extra && b >= 32) return a;
  const uint32_t length = b & 31;
  const uint32_t kept = a & uint32_t(ones_below(length));
  const bool sign = Signed && length > 0 && ((a >> (length - 1)) & 1);
  return sign ? kept | ~uint32_t(ones_below(length)) : kept;
}
static LANE_INLINE uint32_t int_bmsk(const LaneOp &op, uint32_t a, uint32_t b) {
  if (op.extra && a >= 32) return 0;
  const uint32_t length = op.extra && b >= 32 ? 32 : b & 31;
  return uint32_t(ones_below(length) << (a & 31));
}

// Sum of products of bytes; A and B say whether a's and b's are signed.
template <class A, class B>
static LANE_INLINE uint32_t int_dp4a(uint32_t a, uint32_t b, uint32_t c) {
  int32_t sum = 0;
  for (int i = 0; i < 4; ++i)
    sum += int32_t(A(uint8_t(a >> (8 * i)))) * int32_t(B(uint8_t(b >> (8 * i))));
  return c + uint32_t(sum);
}
// Halves of a times two bytes of b: the low two, or with LaneOp::extra the high two.
template <class A, class B>
static LANE_INLINE uint32_t int_dp2a(const LaneOp &op, uint32_t a, uint32_t b, uint32_t c) {
  if (op.extra) b >>= 16;
  const int64_t low = int64_t(A(uint16_t(a))) * B(uint8_t(b));
  const int64_t high = int64_t(A(uint16_t(a >> 16))) * B(uint8_t(b >> 8));
  return c + uint32_t(low + high);
}

template <class T>
static LANE_INLINE T bit_and(T a, T b) {
  return T(a & b);
}
template <class T>
static LANE_INLINE T bit_or(T a, T b) {
  return T(a | b);
}
template <class T>
static LANE_INLINE T bit_xor(T a, T b) {
  return T(a ^ b);
}
template <class T>
static LANE_INLINE T bit_not(T a) {
  return T(~a);
}
template <class T>
static LANE_INLINE T logical_not(T a) {
  return T(a == 0);
}
template <class T>
static LANE_INLINE T bit_copy(T a) {
  return a;
}

// LaneOp::extra: the truth table; bit 4a + 2b + c of it is the result.
static LANE_INLINE uint32_t bit_lop3(const LaneOp &op, uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t lut = op.extra;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t minterm = (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    result |= minterm & (0u - ((lut >> i) & 1));
  }
  return result;
}

template <class T>
static LANE_INLINE T shift_left(T a, uint32_t n) {
  const uint32_t width = 8 * sizeof(T);
  return T(n >= width ? 0 : Wrapping<T>(a) << (n & (width - 1)));
}
template <class T>
static LANE_INLINE T shift_right(T a, uint32_t n) {
  const uint32_t width = 8 * sizeof(T);
  const T sign = T(a < 0 ? -1 : 0);
  return n >= width ? sign : T(a >> (n & (width - 1)));
}
// Funnel shifts of the pair {b, a}; LaneOp::extra is 1 for .clamp.
static LANE_INLINE uint32_t funnel_left(const LaneOp &op, uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t pair = (uint64_t(b) << 32) | a;
  const uint32_t n = op.extra ? int_min(c, 32u) : c & 31;
  return uint32_t((pair << n) >> 32);
}
static LANE_INLINE uint32_t funnel_right(const LaneOp &op, uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t pair = (uint64_t(b) << 32) | a;
  const uint32_t n = op.extra ? int_min(c, 32u) : c & 31;
  return uint32_t(pair >> n);
}

static LANE_INLINE uint32_t byte_of(uint64_t pair, uint32_t index) {
  return uint32_t(pair >> (8 * (index & 7))) & 0xff;
}
// Default mode: four selectors of four bits; bit 3 replicates the sign of the byte.
static LANE_INLINE uint32_t permute(uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t pair = (uint64_t(b) << 32) | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = c >> (4 * i);
    uint32_t byte = byte_of(pair, selector);
    if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
enum PermuteMode { F4E = 1, B4E, RC8, ECL, ECR, RC16 };  // LaneOp::extra
static LANE_INLINE uint32_t permute_mode(const LaneOp &op, uint32_t a, uint32_t b, uint32_t c) {
  const uint64_t pair = (uint64_t(b) << 32) | a;
  const uint32_t n = c & 3;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t index = 0;
    switch (op.extra) {
      case F4E:
        index = n + i;
        break;
      case B4E:
        index = n + 8 - i;
        break;
      case RC8:
        index = n;
        break;
      case ECL:
        index = i > n ? i : n;
        break;
      case ECR:
        index = i < n ? i : n;
        break;
      default:
        index = 2 * (n & 1) + (i & 1);
        break;
    }
    result |= byte_of(pair, index) << (8 * i);
  }
  return result;
}

template <class T>
static LANE_INLINE bool int_eq(T a, T b) {
  return a == b;
}
template <class T>
static LANE_INLINE bool int_ne(T a, T b) {
  return a != b;
}
template <class T>
static LANE_INLINE bool int_lt(T a, T b) {
  return a < b;
}
template <class T>
static LANE_INLINE bool int_le(T a, T b) {
  return a <= b;
}

template <class T>
static LANE_INLINE T select_signed(T a, T b, int32_t c) {
  return c >= 0 ? a : b;
}

// Integer to integer: T(a) after clamping a to T's range where Saturate.
template <class D, class S, bool Saturate>
static LANE_INLINE auto int_convert(S a) {
  using Extended =
      std::conditional_t<(sizeof(D) > 4), D,
                         std::conditional_t<std::is_signed<D>::value, int32_t, uint32_t>>;
  if (Saturate) {
    const __int128 value = a;
    const __int128 low = std::numeric_limits<D>::min(), high = std::numeric_limits<D>::max();
    return Extended(D(value < low ? low : value > high ? high : value));
  }
  return Extended(D(a));
}

#endif
