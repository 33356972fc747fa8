// Operations on the 32 lanes of a warp: the form in which the run loop calls them.
//
// A lane op reads and writes rows of the warp's register buffer (`file`): row i of 128 bytes holds
// a register of at most 32 bits for every lane, row i of 256 bytes one of 64 bits; narrower values
// sit zero-extended. A predicate is one mask of lanes. Only lanes in `mask` are ever written.
#ifndef CAKERT_SIM_LANE_OPS_H
#define CAKERT_SIM_LANE_OPS_H

#include <cstdint>

struct LaneOp {
  uint16_t function;   // index into the table
  uint8_t extra;       // what the function's family says: rounding, comparison, truth table, ...
  uint8_t flags;       // PredicateFlag
  int32_t row[6];      // destinations first; -1 for a predicate that is not given
  uint64_t immediate;  // constants that are no operand of the instruction
};

typedef void (*LaneFunction)(const LaneOp *op, uint8_t *file, uint32_t *predicates, uint32_t mask);

enum { CARRY_PREDICATE = 0 };  // the condition code CC.CF of add.cc and its like

// LaneOp::flags
enum PredicateFlag {
  NEGATE_FIRST = 1,   // the first predicate source is !p
  NEGATE_SECOND = 2,  // the second one is
  COMBINE_AND = 4,    // a comparison's boolean operation with its predicate source
  COMBINE_OR = 8,
  COMBINE_XOR = 16,
};

// LaneOp::extra of floating-point arithmetic and of conversions: a rounding, and modifiers
enum FloatMode {
  ROUND_RN = 0,  // to nearest, ties to even
  ROUND_RZ = 1,
  ROUND_RM = 2,
  ROUND_RP = 3,
  ROUND_RNA = 4,  // to nearest, ties away from zero
  ROUNDING = 7,
  FTZ = 8,         // subnormal inputs and results become zeros of their sign
  SAT = 16,        // clamp to [0, 1], NaN to +0
  RELU = 32,       // negative results become +0
  SATFINITE = 64,  // infinities and overflows become the greatest finite value
  INTEGRAL = 128,  // .rni and its like: round to an integer in floating point
};

// LaneOp::extra of min and max of floating point (beside FTZ)
enum ExtremumMode { PROPAGATE_NAN = 1, XORSIGN_ABS = 2, ABSOLUTE = 4 };

#endif
