// Every lane op by name. Names follow the mnemonics; "any" takes its modifiers from LaneOp::extra.
#ifndef CAKERT_SIM_LANE_TABLE_H
#define CAKERT_SIM_LANE_TABLE_H

#include "lane_convert.h"
#include "lane_special.h"

struct LaneEntry {
  const char *name, *signature;
  LaneFunction base, wide;
};

#define BODY(NAME, ...) \
  {NAME, __VA_ARGS__::SIGNATURE, &Compiled<__VA_ARGS__>::base, &Compiled<__VA_ARGS__>::wide}
#define MAP(NAME, ...) BODY(NAME, MapBody<&__VA_ARGS__>)
#define TEST(NAME, ...) BODY(NAME, CompareBody<&__VA_ARGS__>)
#define BITS3(OP, FN) \
  MAP(OP ".b16", FN<uint16_t>), MAP(OP ".b32", FN<uint32_t>), MAP(OP ".b64", FN<uint64_t>)
#define SIGNED3(OP, FN) \
  MAP(OP ".s16", FN<int16_t>), MAP(OP ".s32", FN<int32_t>), MAP(OP ".s64", FN<int64_t>)
#define UNSIGNED3(OP, FN) \
  MAP(OP ".u16", FN<uint16_t>), MAP(OP ".u32", FN<uint32_t>), MAP(OP ".u64", FN<uint64_t>)
#define INTEGERS6(OP, FN) SIGNED3(OP, FN), UNSIGNED3(OP, FN)
#define WORDS2(OP, FN) MAP(OP ".s32", FN<int32_t>), MAP(OP ".u32", FN<uint32_t>)
#define NARROW4(OP, FN) MAP(OP ".s16", FN<int16_t>), MAP(OP ".u16", FN<uint16_t>), WORDS2(OP, FN)
#define FIELDS4(OP, FN) WORDS2(OP, FN), MAP(OP ".s64", FN<int64_t>), MAP(OP ".u64", FN<uint64_t>)

#define CONVERT_INTEGERS(PREFIX, D, DT, SATURATE)                \
  MAP(PREFIX D ".s8", int_convert<DT, int8_t, SATURATE>),        \
      MAP(PREFIX D ".u8", int_convert<DT, uint8_t, SATURATE>),   \
      MAP(PREFIX D ".s16", int_convert<DT, int16_t, SATURATE>),  \
      MAP(PREFIX D ".u16", int_convert<DT, uint16_t, SATURATE>), \
      MAP(PREFIX D ".s32", int_convert<DT, int32_t, SATURATE>),  \
      MAP(PREFIX D ".u32", int_convert<DT, uint32_t, SATURATE>), \
      MAP(PREFIX D ".s64", int_convert<DT, int64_t, SATURATE>),  \
      MAP(PREFIX D ".u64", int_convert<DT, uint64_t, SATURATE>)
#define CONVERT_ALL_INTEGERS(PREFIX, SATURATE)             \
  CONVERT_INTEGERS(PREFIX, "s8", int8_t, SATURATE),        \
      CONVERT_INTEGERS(PREFIX, "u8", uint8_t, SATURATE),   \
      CONVERT_INTEGERS(PREFIX, "s16", int16_t, SATURATE),  \
      CONVERT_INTEGERS(PREFIX, "u16", uint16_t, SATURATE), \
      CONVERT_INTEGERS(PREFIX, "s32", int32_t, SATURATE),  \
      CONVERT_INTEGERS(PREFIX, "u32", uint32_t, SATURATE), \
      CONVERT_INTEGERS(PREFIX, "s64", int64_t, SATURATE),  \
      CONVERT_INTEGERS(PREFIX, "u64", uint64_t, SATURATE)
#define FLOAT_INTEGER(F, FT, I, IT) \
  MAP("cvt." I "." F, float_to_int<IT, FT>), MAP("cvt." F "." I, int_to_float<FT, IT>)
#define FLOAT_INTEGERS(F, FT)                                                      \
  FLOAT_INTEGER(F, FT, "s8", int8_t), FLOAT_INTEGER(F, FT, "u8", uint8_t),         \
      FLOAT_INTEGER(F, FT, "s16", int16_t), FLOAT_INTEGER(F, FT, "u16", uint16_t), \
      FLOAT_INTEGER(F, FT, "s32", int32_t), FLOAT_INTEGER(F, FT, "u32", uint32_t), \
      FLOAT_INTEGER(F, FT, "s64", int64_t), FLOAT_INTEGER(F, FT, "u64", uint64_t)
#define DOUBLE_INTEGER(I, IT) \
  MAP("cvt." I ".f64", float_to_int<IT, F64>), MAP("cvt.f64." I, int_to_double<IT>)
#define FLOAT_FLOATS(D, DT)                                                                     \
  MAP("cvt." D ".f16", convert_float<DT, F16>), MAP("cvt." D ".bf16", convert_float<DT, BF16>), \
      MAP("cvt." D ".f32", convert_float<DT, F32>), MAP("cvt." D ".f64", convert_float<DT, F64>)

#define HALF_UNARY(OP, FN)                                                                  \
  MAP(OP ".f16", halves1<uint16_t, FN<F16>>), MAP(OP ".f16x2", halves1<uint32_t, FN<F16>>), \
      MAP(OP ".bf16", halves1<uint16_t, FN<BF16>>), MAP(OP ".bf16x2", halves1<uint32_t, FN<BF16>>)
#define HALF_BINARY(OP, FN)                                                                 \
  MAP(OP ".f16", halves2<uint16_t, FN<F16>>), MAP(OP ".f16x2", halves2<uint32_t, FN<F16>>), \
      MAP(OP ".bf16", halves2<uint16_t, FN<BF16>>), MAP(OP ".bf16x2", halves2<uint32_t, FN<BF16>>)
#define HALF_TERNARY(OP, FN)                                                                \
  MAP(OP ".f16", halves3<uint16_t, FN<F16>>), MAP(OP ".f16x2", halves3<uint32_t, FN<F16>>), \
      MAP(OP ".bf16", halves3<uint16_t, FN<BF16>>), MAP(OP ".bf16x2", halves3<uint32_t, FN<BF16>>)
#define HALF_EXTREMUM(OP, MAX)                                      \
  MAP(OP ".f16", halves2<uint16_t, half_extremum<F16, MAX>>),       \
      MAP(OP ".f16x2", halves2<uint32_t, half_extremum<F16, MAX>>), \
      MAP(OP ".bf16", halves2<uint16_t, half_extremum<BF16, MAX>>), \
      MAP(OP ".bf16x2", halves2<uint32_t, half_extremum<BF16, MAX>>)
#define HALF_FUNCTION(OP, FN)                                      \
  MAP(OP ".f16", halves1<uint16_t, half_function<F16, FN>>),       \
      MAP(OP ".f16x2", halves1<uint32_t, half_function<F16, FN>>), \
      MAP(OP ".bf16", halves1<uint16_t, half_function<BF16, FN>>), \
      MAP(OP ".bf16x2", halves1<uint32_t, half_function<BF16, FN>>)

#define FLOAT_ARITHMETIC(OP, NAME)                                                 \
  MAP(OP ".f32", float_op<NAME, false>), MAP(OP ".ftz.f32", float_op<NAME, true>), \
      MAP(OP ".f64", double_op<NAME>), MAP(OP ".any.f64", double_any<NAME>)
#define PAIR2(OP, NAME)                                   \
  BODY(OP ".f32x2", PairBody<&float_op<NAME, false>, 2>), \
      BODY(OP ".ftz.f32x2", PairBody<&float_op<NAME, true>, 2>)

#define COMPARE_FLOAT(OP, FN)                                                                      \
  TEST("setp." OP ".f32", FN<float>), TEST("setp." OP ".ftz.f32", compare_ftz<FN<float>>),         \
      TEST("setp." OP ".f64", FN<double>), TEST("setp." OP ".f16", half_compare<F16, FN<double>>), \
      TEST("setp." OP ".f16.upper", half_compare_upper<F16, FN<double>>),                          \
      TEST("setp." OP ".bf16", half_compare<BF16, FN<double>>),                                    \
      TEST("setp." OP ".bf16.upper", half_compare_upper<BF16, FN<double>>)

static const LaneEntry LANE_ENTRIES[] = {
    // Integer arithmetic
    BITS3("add", int_add),
    BITS3("sub", int_sub),
    BITS3("mul.lo", mul_lo),
    BITS3("mad.lo", mad_lo),
    BITS3("neg", int_neg),
    SIGNED3("abs", int_abs),
    MAP("add.sat.s32", add_sat_s32),
    MAP("sub.sat.s32", sub_sat_s32),
    MAP("add.b16x2", int_halves<uint16_t, int_add<uint16_t>>),
    INTEGERS6("mul.hi", mul_hi),
    INTEGERS6("mad.hi", mad_hi),
    NARROW4("mul.wide", mul_wide),
    NARROW4("mad.wide", mad_wide),
    MAP("mad.hi.sat.s32", mad_hi_sat_s32),
    WORDS2("mul24.lo", mul24_lo),
    WORDS2("mul24.hi", mul24_hi),
    WORDS2("mad24.lo", mad24_lo),
    WORDS2("mad24.hi", mad24_hi),
    MAP("mad24.hi.sat.s32", mad24_hi_sat),
    INTEGERS6("sad", int_sad),
    INTEGERS6("div", int_div),
    INTEGERS6("rem", int_rem),
    INTEGERS6("min", int_min),
    INTEGERS6("max", int_max),
    MAP("min.relu.s32", int_min_relu<int32_t>),
    MAP("max.relu.s32", int_max_relu<int32_t>),
    MAP("min.s16x2", int_halves<int16_t, int_min<int16_t>>),
    MAP("max.s16x2", int_halves<int16_t, int_max<int16_t>>),
    MAP("min.u16x2", int_halves<uint16_t, int_min<uint16_t>>),
    MAP("max.u16x2", int_halves<uint16_t, int_max<uint16_t>>),
    MAP("min.relu.s16x2", int_halves<int16_t, int_min_relu<int16_t>>),
    MAP("max.relu.s16x2", int_halves<int16_t, int_max_relu<int16_t>>),
    MAP("popc.b32", int_popc<uint32_t>),
    MAP("popc.b64", int_popc<uint64_t>),
    MAP("clz.b32", int_clz<uint32_t>),
    MAP("clz.b64", int_clz<uint64_t>),
    FIELDS4("bfind", int_bfind),
    FIELDS4("bfind.shiftamt", int_bfind_shift),
    MAP("brev.b32", int_brev<uint32_t>),
    MAP("brev.b64", int_brev<uint64_t>),
    FIELDS4("bfe", int_bfe),
    MAP("bfi.b32", int_bfi<uint32_t>),
    MAP("bfi.b64", int_bfi<uint64_t>),
    MAP("fns.b32", int_fns),
    MAP("szext.s32", int_szext<true>),
    MAP("szext.u32", int_szext<false>),
    MAP("bmsk.b32", int_bmsk),
    MAP("dp4a.u32.u32", int_dp4a<uint8_t, uint8_t>),
    MAP("dp4a.u32.s32", int_dp4a<uint8_t, int8_t>),
    MAP("dp4a.s32.u32", int_dp4a<int8_t, uint8_t>),
    MAP("dp4a.s32.s32", int_dp4a<int8_t, int8_t>),
    MAP("dp2a.u32.u32", int_dp2a<uint16_t, uint8_t>),
    MAP("dp2a.u32.s32", int_dp2a<uint16_t, int8_t>),
    MAP("dp2a.s32.u32", int_dp2a<int16_t, uint8_t>),
    MAP("dp2a.s32.s32", int_dp2a<int16_t, int8_t>),
    BODY("add.carry.b32", CarryAdd<uint32_t, false>),
    BODY("add.carry.b64", CarryAdd<uint64_t, false>),
    BODY("sub.carry.b32", CarryAdd<uint32_t, true>),
    BODY("sub.carry.b64", CarryAdd<uint64_t, true>),
    BODY("mad.lo.carry.b32", CarryMad<uint32_t, false>),
    BODY("mad.lo.carry.b64", CarryMad<uint64_t, false>),
    BODY("mad.hi.carry.u32", CarryMad<uint32_t, true>),
    BODY("mad.hi.carry.u64", CarryMad<uint64_t, true>),
    BODY("mad.hi.carry.s32", CarryMad<int32_t, true>),
    BODY("mad.hi.carry.s64", CarryMad<int64_t, true>),

    // Logic, shifts, moves
    BITS3("and", bit_and),
    BITS3("or", bit_or),
    BITS3("xor", bit_xor),
    BITS3("not", bit_not),
    BITS3("cnot", logical_not),
    BITS3("mov", bit_copy),
    BITS3("shl", shift_left),
    MAP("lop3.b32", bit_lop3),
    INTEGERS6("shr", shift_right),
    MAP("shf.l.b32", funnel_left),
    MAP("shf.r.b32", funnel_right),
    MAP("prmt.b32", permute),
    MAP("prmt.any.b32", permute_mode),
    MAP("pack.b64.b32", pack_b64_b32),
    MAP("pack.b32.b16", pack_b32_b16),
    MAP("pack.b16.b8", pack_b16_b8),
    MAP("pack.b32.b8", pack_b32_b8),
    MAP("pack.b64.b16", pack_b64_b16),
    BODY("unpack.b64.b32", UnpackB64B32),
    BODY("unpack.b32.b16", Unpack<uint32_t, 2, 16>),
    BODY("unpack.b16.b8", Unpack<uint16_t, 2, 8>),
    BODY("unpack.b32.b8", Unpack<uint32_t, 4, 8>),
    BODY("unpack.b64.b16", Unpack<uint64_t, 4, 16>),
    BODY("and.pred", PredicateLogic<bit_and<uint32_t>>),
    BODY("or.pred", PredicateLogic<bit_or<uint32_t>>),
    BODY("xor.pred", PredicateLogic<bit_xor<uint32_t>>),
    BODY("mov.pred", PredicateMove),
    BODY("set.pred", PredicateSet),
    BODY("selp.b16", Select<uint16_t>),
    BODY("selp.b32", Select<uint32_t>),
    BODY("selp.b64", Select<uint64_t>),
    BODY("select.constant", SelectConstant),
    MAP("slct.b32.s32", select_signed<uint32_t>),
    MAP("slct.b64.s32", select_signed<uint64_t>),
    MAP("slct.b32.f32", select_float<uint32_t>),
    MAP("slct.b64.f32", select_float<uint64_t>),

    // Comparison; gt and ge are lt and le with the operands exchanged
    TEST("setp.eq.b16", int_eq<uint16_t>),
    TEST("setp.eq.b32", int_eq<uint32_t>),
    TEST("setp.eq.b64", int_eq<uint64_t>),
    TEST("setp.ne.b16", int_ne<uint16_t>),
    TEST("setp.ne.b32", int_ne<uint32_t>),
    TEST("setp.ne.b64", int_ne<uint64_t>),
    TEST("setp.lt.s16", int_lt<int16_t>),
    TEST("setp.lt.u16", int_lt<uint16_t>),
    TEST("setp.lt.s32", int_lt<int32_t>),
    TEST("setp.lt.u32", int_lt<uint32_t>),
    TEST("setp.lt.s64", int_lt<int64_t>),
    TEST("setp.lt.u64", int_lt<uint64_t>),
    TEST("setp.le.s16", int_le<int16_t>),
    TEST("setp.le.u16", int_le<uint16_t>),
    TEST("setp.le.s32", int_le<int32_t>),
    TEST("setp.le.u32", int_le<uint32_t>),
    TEST("setp.le.s64", int_le<int64_t>),
    TEST("setp.le.u64", int_le<uint64_t>),
    COMPARE_FLOAT("eq", float_eq),
    COMPARE_FLOAT("ne", float_ne),
    COMPARE_FLOAT("lt", float_lt),
    COMPARE_FLOAT("le", float_le),
    COMPARE_FLOAT("equ", float_equ),
    COMPARE_FLOAT("neu", float_neu),
    COMPARE_FLOAT("ltu", float_ltu),
    COMPARE_FLOAT("leu", float_leu),
    COMPARE_FLOAT("num", float_num),
    COMPARE_FLOAT("nan", float_nan),
    TEST("testp.f32", is_class<float>),
    TEST("testp.f64", is_class<double>),

    // Floating point
    FLOAT_ARITHMETIC("add", ADD),
    FLOAT_ARITHMETIC("sub", SUB),
    FLOAT_ARITHMETIC("mul", MUL),
    FLOAT_ARITHMETIC("div", DIV),
    MAP("add.any.f32", add_any),
    MAP("sub.any.f32", sub_any),
    MAP("mul.any.f32", mul_any),
    MAP("div.any.f32", div_any),
    MAP("div.approx.f32", div_approx<false>),
    MAP("div.approx.ftz.f32", div_approx<true>),
    MAP("rcp.any.f32", rcp_any),
    MAP("sqrt.any.f32", sqrt_any),
    MAP("fma.f32", float_fma<false>),
    MAP("fma.ftz.f32", float_fma<true>),
    MAP("fma.any.f32", fma_any),
    MAP("fma.f64", double_fma),
    MAP("fma.any.f64", double_fma_any),
    MAP("rcp.any.f64", double_rcp_any),
    MAP("sqrt.any.f64", double_sqrt_any),
    MAP("rcp.gross.f64", rcp_gross),
    MAP("rsqrt.gross.f64", rsqrt_gross),
    MAP("rsqrt.f64", rsqrt_of),
    MAP("ex2.f32", ex2_f32<false>),
    MAP("ex2.ftz.f32", ex2_f32<true>),
    MAP("lg2.f32", approximate<log2_of>),
    MAP("sin.f32", approximate<sin_of>),
    MAP("cos.f32", approximate<cos_of>),
    MAP("tanh.f32", approximate<tanh_of>),
    MAP("rsqrt.f32", approximate<rsqrt_of>),
    MAP("neg.f32", float_neg<float>),
    MAP("neg.ftz.f32", neg_ftz),
    MAP("neg.f64", float_neg<double>),
    MAP("abs.f32", float_abs<float>),
    MAP("abs.ftz.f32", abs_ftz),
    MAP("abs.f64", float_abs<double>),
    MAP("copysign.f32", copy_sign<float>),
    MAP("copysign.f64", copy_sign<double>),
    MAP("min.f32", extremum<float, false>),
    MAP("max.f32", extremum<float, true>),
    MAP("min.any.f32", extremum_any<float, false>),
    MAP("max.any.f32", extremum_any<float, true>),
    MAP("min3.f32", extremum3<false>),
    MAP("max3.f32", extremum3<true>),
    MAP("min3.any.f32", extremum3_any<false>),
    MAP("max3.any.f32", extremum3_any<true>),
    MAP("min.f64", extremum<double, false>),
    MAP("max.f64", extremum<double, true>),
    BODY("add.any.f32x2", PairBody<&add_any, 2>),
    BODY("sub.any.f32x2", PairBody<&sub_any, 2>),
    BODY("mul.any.f32x2", PairBody<&mul_any, 2>),
    BODY("fma.any.f32x2", PairBody<&fma_any, 3>),
    PAIR2("add", ADD),
    PAIR2("sub", SUB),
    PAIR2("mul", MUL),
    BODY("fma.f32x2", PairBody<&float_fma<false>, 3>),
    BODY("fma.ftz.f32x2", PairBody<&float_fma<true>, 3>),
    HALF_BINARY("add", half_add),
    HALF_BINARY("sub", half_sub),
    HALF_BINARY("mul", half_mul),
    HALF_TERNARY("fma", half_fma),
    HALF_UNARY("neg", half_neg),
    HALF_UNARY("abs", half_abs),
    HALF_EXTREMUM("min", false),
    HALF_EXTREMUM("max", true),
    HALF_FUNCTION("ex2", exp2_of),
    HALF_FUNCTION("tanh", tanh_of),

    // Conversion
    CONVERT_ALL_INTEGERS("cvt.", false),
    CONVERT_ALL_INTEGERS("cvt.sat.", true),
    FLOAT_INTEGERS("f16", F16),
    FLOAT_INTEGERS("bf16", BF16),
    FLOAT_INTEGERS("f32", F32),
    DOUBLE_INTEGER("s8", int8_t),
    DOUBLE_INTEGER("u8", uint8_t),
    DOUBLE_INTEGER("s16", int16_t),
    DOUBLE_INTEGER("u16", uint16_t),
    DOUBLE_INTEGER("s32", int32_t),
    DOUBLE_INTEGER("u32", uint32_t),
    DOUBLE_INTEGER("s64", int64_t),
    DOUBLE_INTEGER("u64", uint64_t),
    MAP("cvt.rn.f32.s32", int_to_f32_rn<int32_t>),
    MAP("cvt.rn.f32.u32", int_to_f32_rn<uint32_t>),
    FLOAT_FLOATS("f16", F16),
    FLOAT_FLOATS("bf16", BF16),
    FLOAT_FLOATS("f32", F32),
    FLOAT_FLOATS("f64", F64),
    MAP("cvt.tf32.f32", convert_tf32),
    MAP("cvt.rn.f16.f32", f16_rn),
    MAP("cvt.rn.bf16.f32", bf16_rn),
    MAP("cvt.rn.f32.bf16", bf16_to_f32),
    MAP("cvt.rn.f16x2.f32", pack_f16_rn),
    MAP("cvt.rn.bf16x2.f32", pack_bf16_rn),
    MAP("cvt.f16x2.f32", pack_float<F16>),
    MAP("cvt.bf16x2.f32", pack_float<BF16>),
    MAP("cvt.e4m3x2.f32", pack_float<E4M3>),
    MAP("cvt.e5m2x2.f32", pack_float<E5M2>),
    MAP("cvt.e4m3x2.f16x2", convert_pair<E4M3, F16>),
    MAP("cvt.e5m2x2.f16x2", convert_pair<E5M2, F16>),
    MAP("cvt.f16x2.e4m3x2", convert_pair<F16, E4M3>),
    MAP("cvt.f16x2.e5m2x2", convert_pair<F16, E5M2>),

    // Across lanes
    BODY("shfl.up", Shuffle<UP>),
    BODY("shfl.down", Shuffle<DOWN>),
    BODY("shfl.bfly", Shuffle<BUTTERFLY>),
    BODY("shfl.idx", Shuffle<INDEX>),
    BODY("vote.all", Vote<VOTE_ALL>),
    BODY("vote.any", Vote<VOTE_ANY>),
    BODY("vote.uni", Vote<VOTE_UNI>),
    BODY("vote.ballot", Ballot),
    BODY("match.any.b32", MatchAny<uint32_t>),
    BODY("match.any.b64", MatchAny<uint64_t>),
    BODY("match.all.b32", MatchAll<uint32_t>),
    BODY("match.all.b64", MatchAll<uint64_t>),
    BODY("redux.add.b32", Reduce<uint32_t, fold<uint32_t, int_add<uint32_t>>>),
    BODY("redux.min.s32", Reduce<int32_t, fold<int32_t, int_min<int32_t>>>),
    BODY("redux.max.s32", Reduce<int32_t, fold<int32_t, int_max<int32_t>>>),
    BODY("redux.min.u32", Reduce<uint32_t, fold<uint32_t, int_min<uint32_t>>>),
    BODY("redux.max.u32", Reduce<uint32_t, fold<uint32_t, int_max<uint32_t>>>),
    BODY("redux.and.b32", Reduce<uint32_t, fold<uint32_t, bit_and<uint32_t>>>),
    BODY("redux.or.b32", Reduce<uint32_t, fold<uint32_t, bit_or<uint32_t>>>),
    BODY("redux.xor.b32", Reduce<uint32_t, fold<uint32_t, bit_xor<uint32_t>>>),
    BODY("redux.min.f32", Reduce<float, extremum_any<float, false>>),
    BODY("redux.max.f32", Reduce<float, extremum_any<float, true>>),
    BODY("elect", Elect),
};

enum { NUM_LANE_FUNCTIONS = sizeof(LANE_ENTRIES) / sizeof(LANE_ENTRIES[0]) };

#undef BODY
#undef MAP
#undef TEST

#endif
