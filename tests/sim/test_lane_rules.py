"""Which lane ops an instruction is: all forms of kernels bind, and they do what it says."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

import numpy as np
import pytest

from cakert.sim.faults import UnsupportedInstruction
from cakert.sim.ptx.model import Immediate, Instruction, NotPredicate, Pair, Register, Sink, Vector

lane_rules = importlib.import_module("cakert.sim.decode.lane_rules")
lane_ops = importlib.import_module("cakert.sim.core.lane_ops")

REGISTER = re.compile(r"(p|rs|rd|rq|r|f|fd)(\d+)$")
TYPES = {"p": "pred", "rs": "b16", "r": "b32", "f": "f32", "rd": "b64", "fd": "f64", "rq": "b128"}
NUM_ROWS = 64  # of 256 bytes; the last ones are scratch


def operand(text):
    text = text.strip()
    if text.startswith("{"):
        return Vector(tuple(operand(t) for t in text[1:-1].split(",")))
    if "|" in text:
        first, second = text.split("|")
        return Pair(operand(first), operand(second))
    if text == "_":
        return Sink()
    if text.startswith("!"):
        return NotPredicate(operand(text[1:]))
    match = REGISTER.match(text)
    if match:
        return Register(text, TYPES[match[1]])
    if text.startswith("0f"):
        return Immediate(int("0x" + text[2:], 16), "f32")
    return Immediate(int(text, 0) & (2**64 - 1))


def statement(text):
    name, _, rest = text.partition(" ")
    opcode, *modifiers = name.split(".")
    operands = tuple(operand(t) for t in re.findall(r"\{[^}]*\}|[^,\s][^,]*", rest))
    return Instruction(opcode, tuple(modifiers), operands, 7, text)


@dataclass
class Predicate:
    index: int
    negated: bool = False


class FakeBinder:
    """Rows by number: r5 is row 5 of 32 bits, rd5 row 20 of 64, p5 predicate 5."""

    def __init__(self, text, arch="sm_100a"):
        self.text, self.arch = text, arch
        self.constants = {}

    def row(self, what, bits):
        if isinstance(what, Immediate):
            row = self.constants.setdefault(
                (what.bits & ((1 << bits) - 1), bits > 32), len(self.constants)
            )
            return 48 + row if bits > 32 else 80 + row
        kind, number = REGISTER.match(what.name).groups()
        wide = kind in ("rd", "fd", "rq")
        assert wide == (bits > 32), f"{what.name} bound with {bits} bits"
        return 20 + int(number) if wide else int(number) + {"rs": 20, "f": 30}.get(kind, 0)

    def out(self, what, bits):
        if isinstance(what, Sink):
            return 60 if bits > 32 else 126
        return self.row(what, bits)

    def predicate(self, what):
        if isinstance(what, NotPredicate):
            return Predicate(int(what.register.name[1:]), True)
        return Predicate(int(what.name[1:]))

    def out_predicate(self, what):
        return 15 if isinstance(what, Sink) else int(what.name[1:])

    def fail(self, reason):
        raise UnsupportedInstruction(f"line 7: `{self.text}`: {reason}")


def bind(text):
    return lane_rules.bind_lane(statement(text), FakeBinder(text))


class Lanes:
    """Executes a statement on 32 lanes."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.file = rng.integers(0, 256, NUM_ROWS * 256, dtype=np.uint8)
        self.r = self.file.view(np.uint32).reshape(-1, 32)
        self.r[20:30] &= 0xFFFF  # rs0 .. rs9
        self.rd = self.file.view(np.uint64).reshape(-1, 32)[20:]
        self.rs, self.f = self.r[20:30], self.r.view(np.float32)[30:40]
        self.f[:] = rng.normal(size=self.f.shape) * 10
        self.p = rng.integers(0, 2**32, 16, dtype=np.uint64).astype(np.uint32)

    def run(self, text, mask=0xFFFFFFFF):
        binder = FakeBinder(text)
        bindings = lane_rules.bind_lane(statement(text), binder)
        for (value, wide), row in binder.constants.items():
            if wide:
                self.file.view(np.uint64).reshape(-1, 32)[48 + row] = value
            else:
                self.r[80 + row] = value
        for b in bindings:
            lane_ops.apply(
                b.name,
                self.file,
                self.p,
                b.rows,
                mask,
                extra=b.extra,
                flags=b.flags,
                immediate=b.immediate,
            )
        return bindings

    def truth(self, index):
        return (int(self.p[index]) >> np.arange(32) & 1).astype(bool)


def split(forms):
    return [text.strip() for text in re.split(r"[;\n]", forms) if text.strip()]


# All of these must bind.
FORMS = """
add.s32 r0, r1, -5; add.u64 rd0, rd1, rd2; add.s16 rs0, rs1, 32; add.sat.s32 r0, r1, r2
add.u16x2 r0, r1, r2; sub.u32 r0, r1, r2; sub.sat.s32 r0, r1, r2; mul.lo.s16 rs0, rs1, 12
mul.hi.u16 rs0, rs1, -21845; mul.wide.s16 r0, rs1, 64; mul.wide.u32 rd0, r1, 4
mul.lo.u64 rd0, rd1, rd2; mad.lo.s32 r0, r1, r2, r3; mad.wide.u16 r0, rs1, rs2, r3
mad.hi.sat.s32 r0, r1, r2, r3; mul24.lo.u32 r0, r1, r2; mad24.hi.sat.s32 r0, r1, r2, r3
sad.u64 rd0, rd1, rd2, rd3; div.s64 rd0, rd1, rd2; div.u16 rs0, rs1, rs2; rem.u32 r0, r1, r2
abs.s64 rd0, rd1; neg.s16 rs0, rs1; min.relu.s32 r0, r1, r2; max.s16x2 r0, r1, r2
max.relu.s16x2 r0, r1, r2; min.u64 rd0, rd1, 3; popc.b64 r0, rd1; clz.b32 r0, r1
brev.b64 rd0, rd1; bfind.u64 r0, rd1; bfind.shiftamt.s32 r0, r1; bfe.s64 rd0, rd1, r2, 8
bfi.b64 rd0, rd1, rd2, 32, 32; fns.b32 r0, r1, r2, r3; dp4a.u32.s32 r0, r1, r2, r3
dp2a.hi.s32.u32 r0, r1, r2, r3; szext.clamp.s32 r0, r1, r2; bmsk.wrap.b32 r0, r1, r2
add.cc.u32 r0, r1, r2; addc.u32 r0, r1, r2; addc.cc.u64 rd0, rd1, rd2; sub.cc.s32 r0, r1, r2
subc.cc.u32 r0, r1, r2; mad.lo.cc.u32 r0, r1, r2, r3; madc.hi.cc.s32 r0, r1, r2, r3
and.b16 rs0, rs1, 1; and.pred p0, p1, p2; not.pred p0, p1; not.b64 rd0, rd1; cnot.b32 r0, r1
lop3.b32 r0, r1, r2, r3, 0x96; lop3.or.b32 r0|p1, r1, r2, r3, 0x3f, p2
lop3.and.b32 _|p1, r1, r2, r3, 0x3f, !p2; shl.b16 rs0, rs1, r2; shr.b64 rd0, rd1, r2
shr.s16 rs0, rs1, 3; shf.l.wrap.b32 r0, r1, r2, r3; shf.r.clamp.b32 r0, r1, r2, 9
prmt.b32 r0, r1, 0, 0xbb99; prmt.b32.f4e r0, r1, r2, r3; mov.b32 r0, 0f3F800000
mov.f32 f0, 0fFF800000; mov.b64 rd0, {r1, r2}; mov.b64 {r1, _}, rd0; mov.b32 r0, {rs1, rs2}
mov.b32 {rs1, rs2}, f0; mov.b64 {rs1, rs2, rs3, rs4}, rd0; mov.b128 rq0, {rd2, rd3}
mov.b128 {rd4, rd5}, rq0; mov.b128 rq2, rq0; mov.pred p0, -1; mov.pred p0, p1; mov.u16 rs0, 5
selp.b32 r0, 16, 0, p1; selp.u16 rs0, 1, rs1, p1; selp.f32 f0, f1, 0f3F800000, !p1
selp.b64 rd0, 0, rd1, p1; selp.u32 r0, r1, r2, 1; slct.f32.s32 f0, f1, f2, r3
slct.ftz.u64.f32 rd0, rd1, rd2, f3; setp.eq.b32 p0, r1, 1; setp.lt.u16 p0, rs1, -2
setp.gtu.ftz.f32 p0|p1, f1, f2; setp.hs.u32 p0, r1, r2; setp.lt.and.s32 p0, r1, r2, !p3
setp.eq.or.f64 p0|p1, fd1, fd2, p3; setp.num.f16 p0, rs1, rs2; setp.neu.f16x2 p0|p1, r1, r2
setp.lt.xor.bf16x2 p0|p1, r1, r2, p0; set.gt.u32.f32 r0, f1, f2; set.lt.and.f32.s32 f0, r1, r2, p1
set.eq.f16.f16 rs0, rs1, rs2; set.le.s32.s32 r0, r1, r2; cvt.s64.s32 rd0, r1; cvt.u16.u32 rs0, r1
cvt.u16.u8 rs0, rs1; cvt.u64.u16 rd0, rs1; cvt.s8.s32 r0, r1; cvt.sat.s8.s32 rs0, r1
cvt.u32.u8 r0, rd1; cvt.s8.s32 rd0, r1; cvt.rn.f32.s32 f0, r1; cvt.rz.f32.u64 f0, rd1
cvt.rzi.ftz.s32.f32 r0, f1; cvt.rni.s64.f64 rd0, fd1; cvt.rpi.u8.f16 r0, rs1; cvt.f32.f16 f0, rs1
cvt.rn.f16.f32 rs0, f1; cvt.rn.relu.bf16.f32 rs0, f1; cvt.rz.satfinite.f16.f32 rs0, f1
cvt.f64.f32 fd0, f1; cvt.rp.f32.f64 f0, fd1; cvt.rni.ftz.f32.f32 f0, f1; cvt.sat.f32.f32 f0, f1
cvt.rna.tf32.f32 r0, f1; cvt.rn.bf16x2.f32 r0, f1, f2; cvt.rn.relu.f16x2.f32 r0, f1, f2
cvt.rz.bf16x2.f32 r0, f1, f2; cvt.rn.satfinite.e4m3x2.f32 rs0, f1, f2
cvt.rn.satfinite.relu.e5m2x2.f16x2 rs0, r1; cvt.rn.f16x2.e4m3x2 r0, rs1; cvt.rn.f16.s16 rs0, rs1
cvt.f32.bf16 f0, rs1; cvt.rn.bf16.s32 rs0, r1; cvt.rn.bf16.f16 rs0, rs1
add.f32 f0, f1, 0f00000000; add.rm.ftz.f32 f0, f1, f2; sub.ftz.sat.f32 f0, f1, f2
mul.rz.f64 fd0, fd1, fd2; add.rm.ftz.f32x2 rd0, rd1, rd2; fma.rn.f32x2 rd0, rd1, rd2, rd3
mul.rn.ftz.f32x2 rd0, rd1, rd2; fma.rn.ftz.sat.f32 f0, f1, f2, f3; fma.rp.f64 fd0, fd1, fd2, fd3
mad.f32 f0, f1, f2, f3; add.rn.bf16x2 r0, r1, r2; add.ftz.sat.f16x2 r0, r1, r2
fma.rn.relu.f16 rs0, rs1, rs2, rs3; fma.rn.relu.bf16x2 r0, r1, r2, r3; mul.f16 rs0, rs1, rs2
add.f32.f16 f0, rs1, f2; div.full.ftz.f32 f0, f1, f2; div.rn.f32 f0, f1, f2
div.approx.f32 f0, f1, f2; div.rm.f64 fd0, fd1, fd2; rcp.approx.ftz.f32 f0, f1; rcp.rn.f32 f0, f1
rcp.rn.f64 fd0, fd1; rcp.approx.ftz.f64 fd0, fd1; sqrt.rn.ftz.f32 f0, f1; sqrt.approx.f32 f0, f1
sqrt.rz.f64 fd0, fd1; rsqrt.approx.ftz.f32 f0, f1; rsqrt.approx.f64 fd0, fd1
ex2.approx.ftz.f32 f0, f1; ex2.approx.f32 f0, f1; ex2.approx.f16x2 r0, r1
ex2.approx.ftz.bf16x2 r0, r1; lg2.approx.ftz.f32 f0, f1; sin.approx.ftz.f32 f0, f1
cos.approx.f32 f0, f1; tanh.approx.f32 f0, f1; tanh.approx.bf16x2 r0, r1; neg.ftz.f32 f0, f1
abs.f64 fd0, fd1; neg.bf16x2 r0, r1; abs.ftz.f16 rs0, rs1; max.f32 f0, f1, f2
max.NaN.f32 f0, f1, f2, f3; min.ftz.xorsign.abs.f32 f0, f1, f2; max.abs.f32 f0, f1, f2, f3
min.NaN.xorsign.abs.bf16x2 r0, r1, r2; max.f64 fd0, fd1, fd2; min.f16 rs0, rs1, rs2
testp.finite.f64 p0, fd1; copysign.f32 f0, f1, f2; shfl.sync.bfly.b32 r0|p1, r1, 1, 31, -1
shfl.sync.idx.b32 r0, r1, 0, 0x1f, 0xffffffff; vote.sync.any.pred p0, !p1, -1
vote.sync.ballot.b32 r0, p1, r2; match.any.sync.b64 r0, rd1, r2; match.all.sync.b32 r0|p1, r1, r2
redux.sync.add.s32 r0, r1, r2; redux.sync.xor.b32 r0, r1, -1
redux.sync.max.abs.NaN.f32 f0, f1, -1; elect.sync _|p0, -1; elect.sync r0|p0, r1
"""
BOUND = split(FORMS)
# And none of these.
REFUSED = """
add.f16.s32 r0, r1, r2; add.sat.u32 r0, r1, r2; mul.s32 r0, r1, r2; mul.wide.s64 rd0, rd1, rd2
add.s32 r0, r1; add.s32 rd0, r1, r2; add.s64 rd0, r1, rd2; mad.wide.cc.u32 rd0, r1, r2, rd3
fma.f32 f0, f1, f2, f3; add.relu.f32 f0, f1, f2; add.sat.f32x2 rd0, rd1, rd2
max.f32x2 rd0, rd1, rd2; ex2.f32 f0, f1; ex2.approx.ftz.f16x2 r0, r1; ex2.approx.f32x2 rd0, rd1
max.xorsign.f32 f0, f1, f2; max.abs.f32 f0, f1, f2; max.NaN.f64 fd0, fd1, fd2; sqrt.f32 f0, f1
div.f32 f0, f1, f2; tanh.f32 f0, f1; setp.lt.b32 p0, r1, r2; setp.ltu.s32 p0, r1, r2
setp.eq.and.s32 p0, r1, r2; setp.lt.f16x2 p0, r1, r2; cvt.f16.f32 rs0, f1; cvt.s32.f32 r0, f1
cvt.rn.f32.f16 f0, rs1; cvt.rn.e4m3x2.f32 rs0, f1, f2; cvt.rs.bf16x2.f32 r0, f1, f2, r3
cvt.rn.satfinite.e2m1x2.f32 rs0, f1, f2; cvt.ftz.f64.f16 fd0, rs1; mov.b64 rd0, {r1, r2, r3}
lop3.b32 r0, r1, r2, r3, r4; lop3.b32 r0|p1, r1, r2, r3, 5; shf.l.b32 r0, r1, r2, r3
shfl.bfly.b32 r0, r1, 1, 31; vote.all.pred p0, p1; redux.sync.add.f32 f0, f1, -1
redux.sync.min.abs.s32 r0, r1, -1; prmt.b32.foo r0, r1, r2, r3; min.relu.u32 r0, r1, r2
neg.u32 r0, r1; not.pred p0, r1, r2
"""


@pytest.mark.parametrize("text", BOUND)
def test_known_forms_bind_and_run(text):
    lanes = Lanes()
    before = lanes.file.copy(), lanes.p.copy()
    bindings = lanes.run(text, mask=0)  # every index in range; no lane, no change but constants
    assert bindings
    np.testing.assert_array_equal(lanes.p, before[1])
    for b in bindings:
        kinds = lane_ops.LANE_SIGNATURES[b.name].replace(":", "")
        wanted = set()
        for kind, row in zip(kinds, b.rows, strict=True):
            if kind == "8":
                wanted |= {2 * row, 2 * row + 1}
            elif kind not in "p?":
                wanted.add(row)
        assert set(b.touched32) == wanted
        assert len(b.touched32) == len(wanted)
        assert b.function == lane_ops.LANE_FUNCTIONS[b.name]


def test_the_list_of_forms_was_split_well():
    assert len(BOUND) > 150
    assert all(re.match(r"[a-z0-9]+\.[\w.]+ ", t) for t in BOUND), BOUND


@pytest.mark.parametrize("text", split(REFUSED))
def test_other_forms_are_refused_by_line(text):
    with pytest.raises(UnsupportedInstruction, match="line 7"):
        bind(text)


@pytest.mark.parametrize(
    "text",
    [
        "add.f32x2 rd0, rd1, rd2",
        "max.f32 f0, f1, f2, f3",
        "redux.sync.max.f32 f0, f1, -1",
        "add.f32.f16 f0, rs1, f2",
    ],
)
def test_forms_that_hopper_lacks(text):
    assert lane_rules.bind_lane(statement(text), FakeBinder(text, "sm_103a"))
    with pytest.raises(UnsupportedInstruction, match="sm_100 or later"):
        lane_rules.bind_lane(statement(text), FakeBinder(text, "sm_90a"))


def test_other_opcodes_are_not_lane_ops():
    for text in ("bra r0", "ld.global.u32 r0, r1", "bar.sync 0", "activemask.b32 r0"):
        assert bind(text) is None


def test_exchanged_comparisons():
    lanes = Lanes(1)
    a, b = lanes.r[1].astype(np.int64), lanes.r[2].astype(np.int64)
    lanes.r[2, :4] = lanes.r[1, :4]
    a, b = lanes.r[1].copy(), lanes.r[2].copy()
    for test, wanted in (("gt", a > b), ("ge", a >= b), ("hi", a > b), ("ls", a <= b)):
        lanes.run(f"setp.{test}.u32 p1|p2, r1, r2")
        np.testing.assert_array_equal(lanes.truth(1), wanted)
        np.testing.assert_array_equal(lanes.truth(2), ~wanted)
    signed = a.view(np.int32) > b.view(np.int32)
    held = lanes.truth(3)
    lanes.run("setp.gt.and.s32 p3, r1, r2, !p3")
    np.testing.assert_array_equal(lanes.truth(3), signed & ~held)


def test_packed_comparison_whose_destination_is_its_source():
    for dest, order in (("p4|p5", (4, 5)), ("p5|p4", (5, 4))):
        lanes = Lanes(2)
        a, b = (lanes.r[i].view(np.float16).reshape(32, 2).copy() for i in (1, 2))
        c = lanes.truth(4)
        lanes.run(f"setp.ltu.or.f16x2 {dest}, r1, r2, p4")
        less = ~(a >= b)
        np.testing.assert_array_equal(lanes.truth(order[0]), less[:, 0] | c)
        np.testing.assert_array_equal(lanes.truth(order[1]), less[:, 1] | c)


def test_lop3_with_a_predicate():
    lanes = Lanes(3)
    a, b, c, q = lanes.r[1].copy() & 1, lanes.r[2].copy() & 1, lanes.r[3].copy() & 1, lanes.truth(2)
    lanes.r[1], lanes.r[2], lanes.r[3] = a, b, c
    lanes.run("lop3.or.b32 r1|p1, r1, r2, r3, 0x80, !p2")
    np.testing.assert_array_equal(lanes.r[1], a & b & c)
    np.testing.assert_array_equal(lanes.truth(1), (a & b & c != 0) | ~q)


def test_conversions_between_registers_of_other_widths():
    lanes = Lanes(4)
    word = lanes.r[1].copy()
    low = word.astype(np.uint8).view(np.int8)
    lanes.run("cvt.s8.s32 rd0, r1")
    np.testing.assert_array_equal(lanes.rd[0].view(np.int64), low)
    lanes.run("cvt.s8.s32 r2, r1")
    np.testing.assert_array_equal(lanes.r[2].view(np.int32), low)
    lanes.run("cvt.s8.s32 rs2, r1")
    np.testing.assert_array_equal(lanes.rs[2], low.astype(np.int16).view(np.uint16))
    lanes.run("cvt.sat.s16.s32 rs3, r1")
    wanted = np.clip(word.view(np.int32), -32768, 32767).astype(np.int16).view(np.uint16)
    np.testing.assert_array_equal(lanes.rs[3], wanted)
    wide = lanes.rd[1].copy()
    lanes.run("cvt.u32.u8 r2, rd1")
    np.testing.assert_array_equal(lanes.r[2], wide & 255)


def test_moves_of_128_bits_and_vectors():
    lanes = Lanes(5)
    a, b = lanes.rd[4].copy(), lanes.rd[5].copy()
    lanes.run("mov.b128 rq0, {rd4, rd5}")
    lanes.run("mov.b128 rq2, rq0")
    lanes.run("mov.b128 {rd7, rd6}, rq2")
    np.testing.assert_array_equal(lanes.rd[7], a)
    np.testing.assert_array_equal(lanes.rd[6], b)
    lanes.run("mov.b64 {_, r3}, rd7")
    np.testing.assert_array_equal(lanes.r[3], a >> np.uint64(32))


def test_constants_are_cut_to_the_type():
    lanes = Lanes(6)
    a = lanes.rs[1].copy()
    lanes.run("mul.hi.u16 rs0, rs1, -21845")
    np.testing.assert_array_equal(lanes.rs[0], a * np.uint32(65536 - 21845) >> 16)
    lanes.run("selp.u32 r0, r1, r2, 1")
    np.testing.assert_array_equal(lanes.r[0], lanes.r[1])
    lanes.run("set.gt.f32.f32 f0, f1, f2")
    np.testing.assert_array_equal(lanes.f[0], (lanes.f[1] > lanes.f[2]).astype(np.float32))


def test_quotients_of_large_divisors():
    """div.approx gives zeros beyond 2^126, not at it; div.full and div.rn know no such range."""
    lanes = Lanes(8)
    b = np.array([0x7E800000, 0x7E800001, 0x7F7FFFFF, 0x7F800000], np.uint32).view(np.float32)
    b = np.concatenate([b, -b])
    a = np.array([3e37, -3e37, np.inf, np.nan], np.float32)
    lanes.f[1], lanes.f[2] = np.repeat(a, 8), np.tile(b, 4)
    with np.errstate(all="ignore"):
        exact = lanes.f[1] / lanes.f[2]
        beyond = np.where(
            np.abs(lanes.f[2]) > 2.0**126, np.copysign(np.inf, lanes.f[2]), lanes.f[2]
        )
        wanted = lanes.f[1] / beyond
    for form, quotients in (
        ("approx", wanted), ("approx.ftz", wanted), ("full", exact), ("rn.ftz", exact)
    ):  # fmt: skip
        lanes.run(f"div.{form}.f32 f0, f1, f2")
        number = ~np.isnan(quotients)
        np.testing.assert_array_equal(
            lanes.f[0].view(np.uint32), np.where(number, quotients.view(np.uint32), 0x7FFFFFFF)
        )


def test_nan_of_conversions():
    """As an H200 has them."""
    lanes = Lanes(9)
    for text, given, wanted in (
        ("cvt.rna.tf32.f32 r0, f1", 0xFF800001, 0xFF800000),
        ("cvt.rna.tf32.f32 r0, f1", 0x7FC02001, 0x7FC02000),
        ("cvt.rn.tf32.f32 r0, f1", 0xFFC00001, 0x7FFFE000),
        ("cvt.rz.tf32.f32 r0, f1", 0x7F800001, 0x7FFFE000),
        ("cvt.ftz.f64.f32 fd0, f1", 0xFFC00001, 0x7FFFFFFFE0000000),
        ("cvt.f64.f32 fd0, f1", 0xFF800001, 0xFFF8000020000000),
        ("cvt.f64.f16 fd0, rs1", 0xFC01, 0xFFF8040000000000),
        ("cvt.f64.f16 fd0, rs1", 0x7C9A, 0x7FFA680000000000),
        ("cvt.f32.bf16 f0, rs1", 0x7F81, 0x7F810000),
        ("cvt.rm.f32.f64 f0, fd1", 0xFFF0000000000001, 0xFFC00000),
        ("cvt.rn.f16.f64 rs0, fd1", 0x7FF0000000000001, 0x7E00),
        ("cvt.rn.sat.f32.f64 f0, fd1", 0xFFF0000000000001, 0),
    ):
        out, source = (FakeBinder("").row(o, 64 if "d" in o.name else 32)
                       for o in statement(text).operands)  # fmt: skip
        wide = lanes.file.view(np.uint64).reshape(-1, 32)
        (wide if "fd1" in text else lanes.r)[source] = given
        lanes.run(text)
        np.testing.assert_array_equal((wide if "fd0" in text else lanes.r)[out], wanted, text)


def test_bit_fields_past_255():
    """Counts that the ISA does not have: an H200 cuts them to 8 bits where operands are words."""
    lanes = Lanes(10)
    wide, word = lanes.rd[1].copy(), lanes.r[1].copy()
    lanes.run("bfe.u64 rd0, rd1, 256, 8")
    np.testing.assert_array_equal(lanes.rd[0], 0)
    lanes.run("bfe.s64 rd0, rd1, 256, 8")
    np.testing.assert_array_equal(lanes.rd[0].view(np.int64), wide.view(np.int64) >> 63)
    lanes.run("bfe.u64 rd0, rd1, 4, 256")
    np.testing.assert_array_equal(lanes.rd[0], wide >> np.uint64(4))
    lanes.run("bfi.b64 rd0, rd2, rd1, 256, 8")
    np.testing.assert_array_equal(lanes.rd[0], wide)
    lanes.run("bfe.u32 r0, r1, 256, 264")
    np.testing.assert_array_equal(lanes.r[0], word & 255)


def test_mixed_precision_and_fma():
    lanes = Lanes(7)
    with np.errstate(all="ignore"):
        half = lanes.rs[1].astype(np.uint16).view(np.float16).astype(np.float32)
        wanted = half + lanes.f[2]
    lanes.run("add.f32.f16 f0, rs1, f2")
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(lanes.f[0][~nan], wanted[~nan])
    assert np.isnan(lanes.f[0][nan]).all()


def shipped():
    """PTX of the package, by file."""
    from cakert import cubins

    store = cubins.store()
    return [pytest.param(entry, id=entry.file) for entry in store.entries]


@pytest.mark.parametrize("entry", shipped())
def test_instructions_of_the_shipped_kernels_bind(entry):
    """Whatever has the opcode of a lane op is one, in each kernel of the package."""
    ptx = importlib.import_module("cakert.sim.ptx")
    binder_module = importlib.import_module("cakert.sim.decode.binder")
    layout_module = importlib.import_module("cakert.sim.decode.layout")
    from cakert import cubins

    module = ptx.read(cubins.store().ptx(entry))
    bound = 0
    for function in module.functions.values():
        layout = layout_module.RegisterLayout()
        names = [v.name for v in (*function.parameters, *function.variables)]
        symbols = dict.fromkeys([*names, *module.variables], 1024)
        for instruction in function.body:
            binder = binder_module.Binder(
                instruction,
                kernel=function.name,
                arch=module.target,
                layout=layout,
                symbols=symbols,
            )
            bindings = lane_rules.bind_lane(instruction, binder)
            bound += bindings is not None
    assert bound > 100
