"""Which lane ops integer arithmetic, logic and shifts are (PTX ISA 9.7.1, 9.7.2, 9.7.8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from cakert.sim.decode.lane_builder import COMBINE, NEGATE_FIRST, LaneBuilder
from cakert.sim.ptx.model import Immediate

__all__ = [
    "INTEGERS",
    "INTEGER_RULES",
    "integer_arithmetic",
    "integer_extremum",
    "integer_multiply",
    "integer_neg_abs",
    "sized",
]

LaneRule: TypeAlias = Callable[[LaneBuilder], None]

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
WORDS = ("u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
CARRY_IN, CARRY_OUT = 1, 2
PERMUTES = {"f4e": 1, "b4e": 2, "rc8": 3, "ecl": 4, "ecr": 5, "rc16": 6}


def sized(kind: str) -> str:
    """The untyped form of a type: where signed and unsigned arithmetic agree."""
    return f"b{kind[1:]}"


def integer_arithmetic(b: LaneBuilder) -> None:
    """``add`` and ``sub`` of integers."""
    carry_out = b.flag("cc")
    saturate = b.flag("sat")
    kind = b.type(*INTEGERS, "u16x2", "s16x2")
    b.count(3)
    out, *sources = b.operands
    if carry_out:
        _carry(b, f"{b.opcode}.carry", kind, CARRY_OUT)
    elif saturate:
        if kind != "s32":
            b.fail("only .s32 saturates")
        b.emit(f"{b.opcode}.sat.s32", [out], sources)
    elif kind.endswith("x2"):
        if b.opcode != "add":
            b.fail("there is no packed sub")
        b.emit("add.b16x2", [out], sources)
    else:
        b.emit(f"{b.opcode}.{sized(kind)}", [out], sources)


def _carry(b: LaneBuilder, name: str, kind: str, use: int) -> None:
    if kind not in WORDS:
        b.fail("extended precision is of 32 or 64 bits")
    out, *sources = b.operands
    kind = kind if name.startswith("mad.hi") else sized(kind)
    b.emit(f"{name}.{kind}", [out], sources, extra=use)


def with_carry(b: LaneBuilder) -> None:
    """``addc`` and ``subc``."""
    use = CARRY_IN | (CARRY_OUT if b.flag("cc") else 0)
    b.count(3)
    _carry(b, f"{b.opcode[:3]}.carry", b.type(*WORDS), use)


def integer_multiply(b: LaneBuilder) -> None:
    """``mul``, ``mad`` and ``madc`` of integers."""
    part = b.need("lo", "hi", "wide")
    carry_out = b.flag("cc")
    saturate = b.flag("sat")
    kind = b.type(*INTEGERS)
    b.count(3 if b.opcode == "mul" else 4)
    out, *sources = b.operands
    if carry_out or b.opcode == "madc":
        if part == "wide" or b.opcode == "mul":
            b.fail("no such form with a carry")
        use = (CARRY_IN if b.opcode == "madc" else 0) | (CARRY_OUT if carry_out else 0)
        _carry(b, f"mad.{part}.carry", kind, use)
    elif saturate:
        if (b.opcode, part, kind) != ("mad", "hi", "s32"):
            b.fail("only mad.hi.s32 saturates")
        b.emit("mad.hi.sat.s32", [out], sources)
    elif part == "wide" and kind[1:] == "64":
        b.fail(".wide is of 16 or 32 bits")
    else:
        b.emit(f"{b.opcode}.{part}.{sized(kind) if part == 'lo' else kind}", [out], sources)


def multiply24(b: LaneBuilder) -> None:
    """``mul24`` and ``mad24``."""
    part = b.need("lo", "hi")
    saturate = b.flag("sat")
    kind = b.type("u32", "s32")
    b.count(3 if b.opcode == "mul24" else 4)
    out, *sources = b.operands
    if saturate and (b.opcode, part, kind) != ("mad24", "hi", "s32"):
        b.fail("only mad24.hi.s32 saturates")
    b.emit(f"{b.opcode}.{part}.{'sat.' if saturate else ''}{kind}", [out], sources)


def integer_extremum(b: LaneBuilder) -> None:
    """``min`` and ``max`` of integers."""
    relu = b.flag("relu")
    kind = b.type(*INTEGERS, "u16x2", "s16x2")
    b.count(3)
    if relu and kind not in ("s32", "s16x2"):
        b.fail(".relu is of .s32 and .s16x2")
    b.emit(f"{b.opcode}.{'relu.' if relu else ''}{kind}", b.operands[:1], b.operands[1:])


def typed(*kinds: str, operands: int) -> LaneRule:
    """A rule for instructions whose lane op has their own name and type."""

    def rule(b: LaneBuilder) -> None:
        kind = b.type(*kinds)
        b.count(operands)
        b.emit(f"{b.opcode}.{kind}", b.operands[:1], b.operands[1:])

    return rule


def logic(b: LaneBuilder) -> None:
    """``and``, ``or``, ``xor``, ``not``: of registers or predicates."""
    kind = b.type(*BITS, "pred")
    b.count(2 if b.opcode == "not" else 3)
    out, *sources = b.operands
    if (b.opcode, kind) == ("not", "pred"):
        b.emit("mov.pred", [out], sources, flags=NEGATE_FIRST)
    else:
        b.emit(f"{b.opcode}.{kind}", [out], sources)


def integer_neg_abs(b: LaneBuilder) -> None:
    """``neg`` and ``abs`` of integers."""
    kind = b.type("s16", "s32", "s64")
    b.count(2)
    name = f"neg.{sized(kind)}" if b.opcode == "neg" else f"abs.{kind}"
    b.emit(name, b.operands[:1], b.operands[1:])


def lop3(b: LaneBuilder) -> None:
    """``lop3``, perhaps with a predicate ``(d != 0) BoolOp q``."""
    combine = b.take("and", "or", "xor")
    b.type("b32")
    b.count(5 if combine is None else 6)
    table = b.operands[4]
    if not isinstance(table, Immediate) or not 0 <= table.bits <= 255:
        b.fail("the truth table must be a constant from 0 to 255")
    first, second = b.pair(b.operands[0])
    if (combine is None) != (second is None):
        b.fail("a boolean operation goes with a predicate destination")
    out = b.out_row(first, 32)
    b.emit("lop3.b32", [out], b.operands[1:4], extra=table.bits)
    if combine is not None:
        b.emit(
            "setp.ne.b32",
            [second, None],
            [out, Immediate(0), b.operands[5]],
            flags=COMBINE[combine],
        )


def shift(b: LaneBuilder) -> None:
    """``shl`` and ``shr``: counts past the width shift everything out."""
    kinds = BITS if b.opcode == "shl" else (*BITS, *INTEGERS)
    kind = b.type(*kinds)
    b.count(3)
    if b.opcode == "shr" and kind[0] == "b":
        kind = f"u{kind[1:]}"
    b.emit(f"{b.opcode}.{kind}", b.operands[:1], b.operands[1:])


def funnel_shift(b: LaneBuilder) -> None:
    """``shf``."""
    side = b.need("l", "r")
    clamp = b.need("clamp", "wrap") == "clamp"
    b.type("b32")
    b.count(4)
    b.emit(f"shf.{side}.b32", b.operands[:1], b.operands[1:], extra=int(clamp))


def permute(b: LaneBuilder) -> None:
    """``prmt`` in its seven modes, the mode behind the type."""
    mode = b.take(*PERMUTES)
    b.type("b32")
    b.count(4)
    name = "prmt.b32" if mode is None else "prmt.any.b32"
    b.emit(name, b.operands[:1], b.operands[1:], extra=PERMUTES.get(mode or "", 0))


def find_bit(b: LaneBuilder) -> None:
    """``bfind``."""
    shift_amount = b.flag("shiftamt")
    kind = b.type(*WORDS)
    b.count(2)
    name = f"bfind.{'shiftamt.' if shift_amount else ''}{kind}"
    b.emit(name, b.operands[:1], b.operands[1:])


def extend(b: LaneBuilder) -> None:
    """``szext`` and ``bmsk``."""
    clamp = b.need("clamp", "wrap") == "clamp"
    kind = b.type(*(("u32", "s32") if b.opcode == "szext" else ("b32",)))
    b.count(3)
    b.emit(f"{b.opcode}.{kind}", b.operands[:1], b.operands[1:], extra=int(clamp))


def dot_product(b: LaneBuilder) -> None:
    """``dp4a`` and ``dp2a``."""
    second = b.type("u32", "s32")
    first = b.type("u32", "s32")
    high = b.opcode == "dp2a" and b.need("lo", "hi") == "hi"
    b.count(4)
    b.emit(f"{b.opcode}.{first}.{second}", b.operands[:1], b.operands[1:], extra=int(high))


# add, sub, mul, mad, min, max, neg, abs and div are shared with floating point: lane_rules.
INTEGER_RULES: dict[str, LaneRule] = {
    "addc": with_carry,
    "subc": with_carry,
    "madc": integer_multiply,
    "mul24": multiply24,
    "mad24": multiply24,
    "sad": typed(*INTEGERS, operands=4),
    "rem": typed(*INTEGERS, operands=3),
    "popc": typed("b32", "b64", operands=2),
    "clz": typed("b32", "b64", operands=2),
    "brev": typed("b32", "b64", operands=2),
    "bfe": typed(*WORDS, operands=4),
    "bfi": typed("b32", "b64", operands=5),
    "fns": typed("b32", operands=4),
    "cnot": typed(*BITS, operands=2),
    "bfind": find_bit,
    "szext": extend,
    "bmsk": extend,
    "dp4a": dot_product,
    "dp2a": dot_product,
    "and": logic,
    "or": logic,
    "xor": logic,
    "not": logic,
    "lop3": lop3,
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "prmt": permute,
}
