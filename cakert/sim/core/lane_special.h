// Lane ops that are no plain map: packing, predicates, carries, and what crosses lanes.
//
// Each struct is a Body of lane_map.h. SIGNATURE: destinations, a colon, sources; bytes of a
// register, p for a predicate, ? for one that may be absent (row -1).
#ifndef CAKERT_SIM_LANE_SPECIAL_H
#define CAKERT_SIM_LANE_SPECIAL_H

#include "lane_float.h"
#include "lane_integer.h"

// What a shuffle reads from a lane that does not take part: the ISA leaves it undefined.
static const uint32_t POISON = 0xdeadbeefu;

static LANE_INLINE uint32_t source_mask(const uint32_t *predicates, int32_t index, bool negate) {
  return predicates[index] ^ (negate ? ALL_LANES : 0);
}

#define LANE_BODY(NAME, TEXT)                                                          \
  struct NAME {                                                                        \
    static constexpr const char *SIGNATURE = TEXT;                                     \
    static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates, \
                                uint32_t mask)

#define FOR_LANES \
  for (uint32_t left = mask, i; left && ((i = __builtin_ctz(left)), true); left &= left - 1)

// mov of vectors (PTX ISA 9.7.9, "mov"): item 0 is least significant.
static LANE_INLINE uint64_t pack_b64_b32(uint32_t a, uint32_t b) { return (uint64_t(b) << 32) | a; }
static LANE_INLINE uint32_t pack_b32_b16(uint16_t a, uint16_t b) { return (uint32_t(b) << 16) | a; }
static LANE_INLINE uint16_t pack_b16_b8(uint8_t a, uint8_t b) { return uint16_t((b << 8) | a); }
static LANE_INLINE uint32_t pack_b32_b8(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return (uint32_t(d) << 24) | (uint32_t(c) << 16) | (uint32_t(b) << 8) | a;
}
static LANE_INLINE uint64_t pack_b64_b16(uint16_t a, uint16_t b, uint16_t c, uint16_t d) {
  return (uint64_t(d) << 48) | (uint64_t(c) << 32) | (uint64_t(b) << 16) | a;
}
LANE_BODY(UnpackB64B32, "44:8") {
  (void)predicates;
  const uint64_t *from = row_of<uint64_t>(file, op->row[2]);
  uint32_t *low = row_of<uint32_t>(file, op->row[0]);
  uint32_t *high = row_of<uint32_t>(file, op->row[1]);
  if (mask == ALL_LANES) {
    LANE_INDEPENDENT
    for (int i = 0; i < 32; ++i) {
      const uint64_t value = from[i];
      low[i] = uint32_t(value);
      high[i] = uint32_t(value >> 32);
    }
  } else {
    FOR_LANES {
      low[i] = uint32_t(from[i]);
      high[i] = uint32_t(from[i] >> 32);
    }
  }
}
}
;
// Any other unpacking: Count items of Width bits.
template <class From, int Count, int Width>
struct Unpack {
  static constexpr char ITEM = char('0' + Width / 8), SOURCE = char('0' + sizeof(From));
  static constexpr char TWO[] = {ITEM, ITEM, ':', SOURCE, '\0'};
  static constexpr char FOUR[] = {ITEM, ITEM, ITEM, ITEM, ':', SOURCE, '\0'};
  static constexpr const char *SIGNATURE = Count == 2 ? TWO : FOUR;
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *, uint32_t mask) {
    const Element<From> *from = row_of<From>(file, op->row[Count]);
    FOR_LANES {
      const uint64_t value = from[i];
      for (int k = 0; k < Count; ++k)
        row_of<uint32_t>(file, op->row[k])[i] =
            uint32_t((value >> (Width * k)) & ((1ull << Width) - 1));
    }
  }
};

// Predicates as data.
template <uint32_t (*Fn)(uint32_t, uint32_t)>
struct PredicateLogic {
  static constexpr const char *SIGNATURE = "p:pp";
  static LANE_INLINE void run(const LaneOp *op, uint8_t *, uint32_t *predicates, uint32_t mask) {
    const uint32_t a = source_mask(predicates, op->row[1], op->flags & NEGATE_FIRST);
    const uint32_t b = source_mask(predicates, op->row[2], op->flags & NEGATE_SECOND);
    write_predicate(predicates, op->row[0], Fn(a, b), mask);
  }
};
LANE_BODY(PredicateMove, "p:p") {
  (void)file;
  write_predicate(predicates, op->row[0],
                  source_mask(predicates, op->row[1], op->flags & NEGATE_FIRST), mask);
}
}
;
LANE_BODY(PredicateSet, "p:") {  // to the truth of LaneOp::immediate
  (void)file;
  write_predicate(predicates, op->row[0], op->immediate ? ALL_LANES : 0, mask);
}
}
;

// d = p ? a : b (selp).
template <class T>
struct Select {
  static constexpr char SIGNATURE[] = {char('0' + sizeof(T)), ':', char('0' + sizeof(T)),
                                       char('0' + sizeof(T)), 'p', '\0'};
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates,
                              uint32_t mask) {
    const Element<T> *a = row_of<T>(file, op->row[1]), *b = row_of<T>(file, op->row[2]);
    Element<T> *to = row_of<T>(file, op->row[0]);
    const uint32_t chosen = source_mask(predicates, op->row[3], op->flags & NEGATE_FIRST);
    if (mask == ALL_LANES) {
      LANE_INDEPENDENT
      for (int i = 0; i < 32; ++i) to[i] = (chosen >> i) & 1 ? a[i] : b[i];
    } else {
      FOR_LANES to[i] = (chosen >> i) & 1 ? a[i] : b[i];
    }
  }
};
// d = (p ? low half of the immediate : 0) | (q ? its high half : 0); q may be absent (set).
LANE_BODY(SelectConstant, "4:p?") {
  const uint32_t first = source_mask(predicates, op->row[1], op->flags & NEGATE_FIRST);
  const uint32_t second = op->row[2] >= 0 ? predicates[op->row[2]] : 0;
  uint32_t *to = row_of<uint32_t>(file, op->row[0]);
  const uint32_t low = uint32_t(op->immediate), high = uint32_t(op->immediate >> 32);
  FOR_LANES to[i] = ((first >> i) & 1 ? low : 0) | ((second >> i) & 1 ? high : 0);
}
}
;

// Extended precision (PTX ISA 9.7.2): LaneOp::extra has 1 to take the carry in, 2 to give it out.
enum CarryUse { CARRY_IN = 1, CARRY_OUT = 2 };
template <class T, bool Subtract>
struct CarryAdd {
  static constexpr char SIGNATURE[] = {char('0' + sizeof(T)), ':', char('0' + sizeof(T)),
                                       char('0' + sizeof(T)), '\0'};
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates,
                              uint32_t mask) {
    const T *a = row_of<T>(file, op->row[1]), *b = row_of<T>(file, op->row[2]);
    T *to = row_of<T>(file, op->row[0]);
    uint32_t out = 0;
    FOR_LANES {
      const Wide<T> carry = op->extra & CARRY_IN ? (predicates[CARRY_PREDICATE] >> i) & 1 : 0;
      const Wide<T> sum = Subtract ? Wide<T>(a[i]) - b[i] - carry : Wide<T>(a[i]) + b[i] + carry;
      to[i] = T(sum);
      out |= uint32_t((sum >> (8 * sizeof(T))) & 1) << i;
    }
    if (op->extra & CARRY_OUT) write_predicate(predicates, CARRY_PREDICATE, out, mask);
  }
};
// T's sign matters to the high half of the product alone.
template <class T, bool High>
struct CarryMad {
  static constexpr char SIGNATURE[] = {char('0' + sizeof(T)), ':',
                                       char('0' + sizeof(T)), char('0' + sizeof(T)),
                                       char('0' + sizeof(T)), '\0'};
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates,
                              uint32_t mask) {
    using U = Element<T>;
    const U *a = row_of<T>(file, op->row[1]), *b = row_of<T>(file, op->row[2]);
    const U *c = row_of<T>(file, op->row[3]);
    U *to = row_of<T>(file, op->row[0]);
    uint32_t out = 0;
    FOR_LANES {
      const U product = U(High ? mul_hi<T>(T(a[i]), T(b[i])) : mul_lo<T>(T(a[i]), T(b[i])));
      const Wide<U> carry = op->extra & CARRY_IN ? (predicates[CARRY_PREDICATE] >> i) & 1 : 0;
      const Wide<U> sum = Wide<U>(product) + c[i] + carry;
      to[i] = U(sum);
      out |= uint32_t((sum >> (8 * sizeof(U))) & 1) << i;
    }
    if (op->extra & CARRY_OUT) write_predicate(predicates, CARRY_PREDICATE, out, mask);
  }
};

// Lanes that execute a .sync instruction together: those of `left` that give the first one's
// membermask and are in it. Several groups of a warp may execute it at the same time.
static LANE_INLINE uint32_t next_group(const uint32_t *members, uint32_t left) {
  const uint32_t lane = uint32_t(__builtin_ctz(left));
  const uint32_t wanted = members[lane];
  uint32_t group = 1u << lane;
  for (uint32_t i = lane; i < 32; ++i)
    if ((left >> i) & 1 && members[i] == wanted && (wanted >> i) & 1) group |= 1u << i;
  return group;
}

enum ShuffleMode { UP, DOWN, BUTTERFLY, INDEX };
template <ShuffleMode Mode>
struct Shuffle {  // d, p or none; a, b, c, membermask (PTX ISA 9.7.9, shfl.sync)
  static constexpr const char *SIGNATURE = "4?:4444";
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates,
                              uint32_t mask) {
    const uint32_t *a = row_of<uint32_t>(file, op->row[2]);
    const uint32_t *b = row_of<uint32_t>(file, op->row[3]);
    const uint32_t *c = row_of<uint32_t>(file, op->row[4]);
    const uint32_t *members = row_of<uint32_t>(file, op->row[5]);
    uint32_t results[32], in_range = 0;
    for (int32_t lane = 0; lane < 32; ++lane) {
      const int32_t offset = int32_t(b[lane] & 31), clamp = int32_t(c[lane] & 31);
      const int32_t segment = int32_t(c[lane] >> 8 & 31);
      const int32_t first = lane & segment, last = first | (clamp & ~segment);
      int32_t source = 0;
      bool valid = false;
      switch (Mode) {
        case UP:
          source = lane - offset;
          valid = source >= last;
          break;
        case DOWN:
          source = lane + offset;
          valid = source <= last;
          break;
        case BUTTERFLY:
          source = lane ^ offset;
          valid = source <= last;
          break;
        case INDEX:
          source = first | (offset & ~segment);
          valid = source <= last;
          break;
      }
      if (valid) in_range |= 1u << lane;
      source = valid ? source : lane;
      const bool takes_part = (mask & members[lane]) >> source & 1;
      results[lane] = takes_part || source == lane ? a[source] : POISON;
    }
    merge(row_of<uint32_t>(file, op->row[0]), results, mask);
    write_predicate(predicates, op->row[1], in_range, mask);
  }
};

enum VoteMode { VOTE_ALL, VOTE_ANY, VOTE_UNI };
template <VoteMode Mode>
struct Vote {
  static constexpr const char *SIGNATURE = "p:p4";
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates,
                              uint32_t mask) {
    const uint32_t votes = source_mask(predicates, op->row[1], op->flags & NEGATE_FIRST);
    const uint32_t *members = row_of<uint32_t>(file, op->row[2]);
    uint32_t result = 0;
    for (uint32_t left = mask; left;) {
      const uint32_t group = next_group(members, left);
      const bool all = (votes & group) == group, none = (votes & group) == 0;
      if (Mode == VOTE_ALL ? all : Mode == VOTE_ANY ? !none : all || none) result |= group;
      left &= ~group;
    }
    write_predicate(predicates, op->row[0], result, mask);
  }
};
LANE_BODY(Ballot, "4:p4") {
  const uint32_t votes = source_mask(predicates, op->row[1], op->flags & NEGATE_FIRST);
  const uint32_t *members = row_of<uint32_t>(file, op->row[2]);
  uint32_t results[32] = {};
  for (uint32_t left = mask; left;) {
    const uint32_t group = next_group(members, left);
    for (uint32_t i = 0; i < 32; ++i)
      if ((group >> i) & 1) results[i] = votes & group;
    left &= ~group;
  }
  merge(row_of<uint32_t>(file, op->row[0]), results, mask);
}
}
;

template <class T>
struct MatchAny {
  static constexpr char SIGNATURE[] = {'4', ':', char('0' + sizeof(T)), '4', '\0'};
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *, uint32_t mask) {
    const T *a = row_of<T>(file, op->row[1]);
    const uint32_t *members = row_of<uint32_t>(file, op->row[2]);
    uint32_t results[32] = {};
    for (uint32_t left = mask; left;) {
      const uint32_t group = next_group(members, left);
      for (uint32_t i = 0; i < 32; ++i)
        for (uint32_t j = 0; j < 32; ++j)
          if ((group >> i) & (group >> j) & 1 && a[i] == a[j]) results[i] |= 1u << j;
      left &= ~group;
    }
    merge(row_of<uint32_t>(file, op->row[0]), results, mask);
  }
};
template <class T>
struct MatchAll {
  static constexpr char SIGNATURE[] = {'4', '?', ':', char('0' + sizeof(T)), '4', '\0'};
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *predicates,
                              uint32_t mask) {
    const T *a = row_of<T>(file, op->row[2]);
    const uint32_t *members = row_of<uint32_t>(file, op->row[3]);
    uint32_t results[32] = {}, equal = 0;
    for (uint32_t left = mask; left;) {
      const uint32_t group = next_group(members, left);
      bool same = true;
      for (uint32_t i = 0; i < 32; ++i)
        if ((group >> i) & 1) same &= a[i] == a[__builtin_ctz(group)];
      if (same) equal |= group;
      for (uint32_t i = 0; i < 32; ++i)
        if ((group >> i) & 1) results[i] = same ? group : 0;
      left &= ~group;
    }
    merge(row_of<uint32_t>(file, op->row[0]), results, mask);
    write_predicate(predicates, op->row[1], equal, mask);
  }
};

// One value of all lanes of a group, folded from its lowest lane up.
template <class T, T (*Fn)(const LaneOp &, T, T)>
struct Reduce {
  static constexpr const char *SIGNATURE = "4:44";
  static LANE_INLINE void run(const LaneOp *op, uint8_t *file, uint32_t *, uint32_t mask) {
    const LaneOp local = *op;
    const uint32_t *a = row_of<T>(file, op->row[1]);
    const uint32_t *members = row_of<uint32_t>(file, op->row[2]);
    uint32_t results[32] = {};
    for (uint32_t left = mask; left;) {
      const uint32_t group = next_group(members, left);
      T value = bits_as<T>(a[__builtin_ctz(group)]);
      // Once with itself: a lone lane's modifiers apply too. Sums and xor must not.
      if (std::is_same<T, float>::value) value = Fn(local, value, value);
      for (uint32_t i = __builtin_ctz(group) + 1; i < 32; ++i)
        if ((group >> i) & 1) value = Fn(local, value, bits_as<T>(a[i]));
      for (uint32_t i = 0; i < 32; ++i)
        if ((group >> i) & 1) results[i] = bits_as<uint32_t>(value);
      left &= ~group;
    }
    merge(row_of<uint32_t>(file, op->row[0]), results, mask);
  }
};
template <class T, T (*Fn)(T, T)>
static LANE_INLINE T fold(const LaneOp &, T a, T b) {
  return Fn(a, b);
}

LANE_BODY(Elect, "4?:4") {  // the lowest lane: its number, and a predicate that is true in it
  const uint32_t *members = row_of<uint32_t>(file, op->row[2]);
  uint32_t results[32] = {}, leaders = 0;
  for (uint32_t left = mask; left;) {
    const uint32_t group = next_group(members, left);
    leaders |= group & (0u - group);
    for (uint32_t i = 0; i < 32; ++i)
      if ((group >> i) & 1) results[i] = uint32_t(__builtin_ctz(group));
    left &= ~group;
  }
  merge(row_of<uint32_t>(file, op->row[0]), results, mask);
  write_predicate(predicates, op->row[1], leaders, mask);
}
}
;

#endif
