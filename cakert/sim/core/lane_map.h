// Applies a scalar function to the 32 lanes of a warp.
//
// `Map<&f>` turns `D f(A, B, ...)` into a LaneFunction whose rows are d, a, b, ...; a first
// parameter of type `const LaneOp &` gives f the operation's modifiers. Types say the width of the
// rows. Each function is compiled twice on x86: for every CPU, and for those with AVX2 and FMA.
#ifndef CAKERT_SIM_LANE_MAP_H
#define CAKERT_SIM_LANE_MAP_H

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lane_ops.h"

#if defined(__GNUC__)
#define LANE_INLINE inline __attribute__((always_inline))
#define LANE_OUTLINE __attribute__((noinline))
#else
#define LANE_INLINE inline
#define LANE_OUTLINE
#endif

#if defined(__GNUC__) && !defined(__clang__)
// Rows are equal or disjoint, and lane i depends on lane i only.
#define LANE_INDEPENDENT _Pragma("GCC ivdep")
#else
#define LANE_INDEPENDENT
#endif

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>
#define LANE_WIDE __attribute__((target("avx2,fma,popcnt,lzcnt,bmi,bmi2")))
static inline bool wide_lanes_supported() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
#else
#define LANE_WIDE
static inline bool wide_lanes_supported() { return false; }
#endif

static const uint32_t ALL_LANES = 0xffffffffu;

template <class To, class From>
static LANE_INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "a change of type, not of size");
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

// The unsigned integer of a type's size, and the element of the rows that hold the type.
template <size_t Size>
using Bits = std::conditional_t<
    Size == 1, uint8_t,
    std::conditional_t<Size == 2, uint16_t, std::conditional_t<Size == 4, uint32_t, uint64_t>>>;
template <class T>
using Element = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;

template <class T>
static LANE_INLINE Element<T> *row_of(uint8_t *file, int32_t row) {
  return reinterpret_cast<Element<T> *>(file) + static_cast<ptrdiff_t>(row) * 32;
}
template <class T>
static LANE_INLINE T lane_value(Element<T> element) {
  return bits_as<T>(static_cast<Bits<sizeof(T)>>(element));
}
template <class T>
static LANE_INLINE Element<T> lane_element(T value) {
  return bits_as<Bits<sizeof(T)>>(value);
}

// Copies the lanes in `mask`.
template <class E>
static LANE_INLINE void merge(E *to, const E *from, uint32_t mask) {
  LANE_INDEPENDENT
  for (int i = 0; i < 32; ++i) to[i] = (mask >> i) & 1 ? from[i] : to[i];
}

static LANE_INLINE void write_predicate(uint32_t *predicates, int32_t index, uint32_t value,
                                        uint32_t mask) {
  if (index >= 0) predicates[index] = (predicates[index] & ~mask) | (value & mask);
}

// Packs 32 truths (0 or -1 each) into a mask of lanes.
static LANE_INLINE uint32_t pack_truths(const int32_t *truths) {
  uint32_t bits = 0;
#if defined(__x86_64__) && defined(__GNUC__)
  for (int i = 0; i < 32; i += 4) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i *>(truths + i));
    bits |= static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(four))) << i;
  }
#else
  for (int i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(truths[i] & 1) << i;
#endif
  return bits;
}

// Of a function's type: its rows, their kinds, and how it is called on a lane of them.
template <class Result, class... A>
struct Rows {
  using D = Result;
  using Pointers = std::tuple<const Element<A> *...>;
  using Sequence = std::index_sequence_for<A...>;
  static constexpr size_t COUNT = sizeof...(A);
  static constexpr char SIGNATURE[] = {('0' + sizeof(D)), ':', ('0' + sizeof(A))..., '\0'};
  static constexpr char PREDICATE_SIGNATURE[] = {'p', '?', ':', ('0' + sizeof(A))..., '?', '\0'};

  template <size_t... I>
  static LANE_INLINE Pointers sources(uint8_t *file, const LaneOp &op, int first,
                                      std::index_sequence<I...>) {
    return Pointers(row_of<A>(file, op.row[first + I])...);
  }
  template <auto Fn, size_t... I>
  static LANE_INLINE D call(const LaneOp &op, const Pointers &from, int lane,
                            std::index_sequence<I...>) {
    (void)op;
    if constexpr (std::is_invocable<decltype(Fn), const LaneOp &, A...>::value)
      return Fn(op, lane_value<A>(std::get<I>(from)[lane])...);
    else
      return Fn(lane_value<A>(std::get<I>(from)[lane])...);
  }
};
template <class Function>
struct Shape;
template <class D, class... A>
struct Shape<D (*)(A...)> {
  using type = Rows<D, A...>;
};
template <class D, class... A>
struct Shape<D (*)(const LaneOp &, A...)> {
  using type = Rows<D, A...>;
};
template <auto Fn>
using RowsOf = typename Shape<decltype(Fn)>::type;

// The two compilations of a `static void run(op, file, predicates, mask)` of type Body.
template <class Body>
struct Compiled {
  static void base(const LaneOp *op, uint8_t *file, uint32_t *predicates, uint32_t mask) {
    Body::run(op, file, predicates, mask);
  }
  LANE_WIDE static void wide(const LaneOp *op, uint8_t *file, uint32_t *predicates, uint32_t mask) {
    Body::run(op, file, predicates, mask);
  }
};

// d = Fn(a, ...) lane by lane.
template <auto Fn>
struct MapBody {
  using R = RowsOf<Fn>;
  using Sequence = typename R::Sequence;
  static constexpr const char *SIGNATURE = R::SIGNATURE;
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *, uint32_t mask) {
    using D = typename R::D;
    const LaneOp local = *op;  // a copy: stores to the file could alias the original
    const auto from = R::sources(file, local, 1, Sequence());
    Element<D> *to = row_of<D>(file, local.row[0]);
    if (mask == ALL_LANES) {
      LANE_INDEPENDENT
      for (int i = 0; i < 32; ++i)
        to[i] = lane_element<D>(R::template call<Fn>(local, from, i, Sequence()));
    } else if ((mask & (mask - 1)) == 0) {  // one lane: the leader of a role
      if (mask == 0) return;
      const int i = __builtin_ctz(mask);
      to[i] = lane_element<D>(R::template call<Fn>(local, from, i, Sequence()));
    } else {
      Element<D> results[32];
      LANE_INDEPENDENT
      for (int i = 0; i < 32; ++i)
        results[i] = lane_element<D>(R::template call<Fn>(local, from, i, Sequence()));
      merge(to, results, mask);
    }
  }
};

// p, q = Fn(a, ...), not Fn(a, ...), each combined with a predicate source c (PTX ISA, setp). Rows:
// p, q or -1, a, ..., c or -1.
template <auto Fn>
struct CompareBody {
  using R = RowsOf<Fn>;
  using Sequence = typename R::Sequence;
  static constexpr const char *SIGNATURE = R::PREDICATE_SIGNATURE;
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates,
                              uint32_t mask) {
    const LaneOp local = *op;
    const auto from = R::sources(file, local, 2, Sequence());
    int32_t truths[32];
    LANE_INDEPENDENT
    for (int i = 0; i < 32; ++i)
      truths[i] = R::template call<Fn>(local, from, i, Sequence()) ? -1 : 0;
    uint32_t first = pack_truths(truths);
    uint32_t second = ~first;
    const int32_t source = local.row[2 + R::COUNT];
    if (source >= 0) {
      const uint32_t c = predicates[source] ^ (local.flags & NEGATE_FIRST ? ALL_LANES : 0);
      if (local.flags & COMBINE_AND) {
        first &= c;
        second &= c;
      } else if (local.flags & COMBINE_OR) {
        first |= c;
        second |= c;
      } else if (local.flags & COMBINE_XOR) {
        first ^= c;
        second ^= c;
      }
    }
    write_predicate(predicates, local.row[0], first, mask);
    write_predicate(predicates, local.row[1], second, mask);
  }
};
// Calls Fn on floats, with the operation where it wants that.
template <auto Fn, class... A>
static LANE_INLINE float call_floats(const LaneOp &op, A... a) {
  (void)op;
  if constexpr (std::is_invocable<decltype(Fn), const LaneOp &, A...>::value)
    return Fn(op, a...);
  else
    return Fn(a...);
}

// d = Fn(a, ...) on both floats of a 64-bit register: a row is 64 floats in order.
template <auto Fn, size_t Sources>
struct PairBody;
template <auto Fn>
struct PairBody<Fn, 2> {
  static constexpr const char *SIGNATURE = "8:88";
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *, uint32_t mask) {
    const LaneOp local = *op;
    const uint32_t *a = reinterpret_cast<uint32_t *>(row_of<uint64_t>(file, local.row[1]));
    const uint32_t *b = reinterpret_cast<uint32_t *>(row_of<uint64_t>(file, local.row[2]));
    uint64_t *to = row_of<uint64_t>(file, local.row[0]);
    uint32_t results[64];
    LANE_INDEPENDENT
    for (int i = 0; i < 64; ++i)
      results[i] =
          bits_as<uint32_t>(call_floats<Fn>(local, bits_as<float>(a[i]), bits_as<float>(b[i])));
    uint64_t pairs[32];
    std::memcpy(pairs, results, sizeof(pairs));
    if (mask == ALL_LANES)
      std::memcpy(to, pairs, sizeof(pairs));
    else
      merge(to, pairs, mask);
  }
};
template <auto Fn>
struct PairBody<Fn, 3> {
  static constexpr const char *SIGNATURE = "8:888";
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *, uint32_t mask) {
    const LaneOp local = *op;
    const uint32_t *a = reinterpret_cast<uint32_t *>(row_of<uint64_t>(file, local.row[1]));
    const uint32_t *b = reinterpret_cast<uint32_t *>(row_of<uint64_t>(file, local.row[2]));
    const uint32_t *c = reinterpret_cast<uint32_t *>(row_of<uint64_t>(file, local.row[3]));
    uint64_t *to = row_of<uint64_t>(file, local.row[0]);
    uint32_t results[64];
    LANE_INDEPENDENT
    for (int i = 0; i < 64; ++i)
      results[i] = bits_as<uint32_t>(
          call_floats<Fn>(local, bits_as<float>(a[i]), bits_as<float>(b[i]), bits_as<float>(c[i])));
    uint64_t pairs[32];
    std::memcpy(pairs, results, sizeof(pairs));
    if (mask == ALL_LANES)
      std::memcpy(to, pairs, sizeof(pairs));
    else
      merge(to, pairs, mask);
  }
};

#endif
