"""Which lane ops comparisons, selections and moves are (PTX ISA 9.7.6, 9.7.7, 9.7.9)."""

from __future__ import annotations

from cakert.sim.decode.lane_builder import (
    COMBINE,
    FTZ,
    LaneBuilder,
    Row,
    register_bits,
)
from cakert.sim.decode.lane_float import HALVES
from cakert.sim.decode.lane_integer import BITS, INTEGERS, LaneRule, sized
from cakert.sim.ptx.model import Immediate, NotPredicate, Operand, Register, Vector

__all__ = ["SELECT_RULES"]

INTEGER_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs")
FLOAT_TESTS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu")
# The names that have no lane op of their own: the same comparison with the operands exchanged.
EXCHANGED = {"gt": "lt", "ge": "le", "gtu": "ltu", "geu": "leu", "hi": "lo", "hs": "ls"}
UNSIGNED = {"lo": "lt", "ls": "le"}
# What set writes where the comparison holds.
TRUE = {
    "u32": 0xFFFFFFFF,
    "s32": 0xFFFFFFFF,
    "f32": 0x3F800000,
    "u16": 0xFFFF,
    "s16": 0xFFFF,
    "f16": 0x3C00,
    "bf16": 0x3F80,
}
# Total bits -> items of a vector in mov -> the lane ops that pack and unpack it.
PACKINGS = {
    (16, 2): "b16.b8",
    (32, 2): "b32.b16",
    (32, 4): "b32.b8",
    (64, 2): "b64.b32",
    (64, 4): "b64.b16",
}


def _comparison(
    b: LaneBuilder,
    test: str,
    kind: str,
    *,
    combine: str | None,
    outs: tuple[Operand | Row, Operand | Row | None],
    sources: tuple[Operand, Operand],
    predicate: Operand | None,
) -> None:
    """Emit one comparison; of both values where `kind` is packed."""
    ftz = b.flag("ftz")
    if test in EXCHANGED:
        test, sources = EXCHANGED[test], (sources[1], sources[0])
    flags = COMBINE[combine] if combine else 0
    if kind in HALVES:
        if ftz and kind.startswith("bf16"):
            b.fail(f".{kind} has no .ftz")
        base = f"setp.{test}.{kind.removesuffix('x2')}"
        steps: list[tuple[str, tuple[Operand | Row | None, Operand | Row | None]]]
        steps = [(base, outs)]
        if kind.endswith("x2"):
            # p is of the low values, q of the high ones: q first where p is a source as well.
            steps = [(base, (outs[0], None)), (f"{base}.upper", (outs[1], None))]
            if _same_predicate(outs[0], predicate):
                steps.reverse()
        for name, destinations in steps:
            extra = FTZ if ftz else 0
            b.emit(name, destinations, [*sources, predicate], extra=extra, flags=flags)
        return
    if kind[0] == "f":
        if ftz and kind != "f32":
            b.fail(f".{kind} has no .ftz")
        name = f"setp.{test}.{'ftz.' if ftz else ''}{kind}"
    else:
        if test in UNSIGNED:
            test, kind = UNSIGNED[test], f"u{kind[1:]}"
        if kind[0] == "b" and test not in ("eq", "ne"):
            b.fail(f".{kind} has no order")
        name = f"setp.{test}.{sized(kind) if test in ('eq', 'ne') else kind}"
    b.emit(name, outs, [*sources, predicate], flags=flags)


def _same_predicate(out: Operand | Row | None, source: Operand | None) -> bool:
    register = source.register if isinstance(source, NotPredicate) else source
    return register is not None and out == register


def _test(b: LaneBuilder, kind: str) -> str:
    tests = (*FLOAT_TESTS, "num", "nan") if "f" in kind else INTEGER_TESTS
    test = b.modifiers.pop(0) if b.modifiers else ""
    if test not in tests:
        b.fail(f"no comparison .{test} of .{kind}")
    return test


def set_predicate(b: LaneBuilder) -> None:
    """``setp``."""
    kind = b.type(*INTEGERS, *BITS, "f32", "f64", *HALVES)
    test = _test(b, kind)
    combine = b.take(*COMBINE)
    b.count(3 if combine is None else 4)
    first, second = b.pair(b.operands[0])
    if kind.endswith("x2") and second is None:
        b.fail("a packed comparison has two destinations")
    _comparison(
        b,
        test,
        kind,
        combine=combine,
        outs=(first, second),
        sources=(b.operands[1], b.operands[2]),
        predicate=b.operands[3] if combine else None,
    )


def set_value(b: LaneBuilder) -> None:
    """``set``: a comparison, and a constant where it holds."""
    kind = b.type(*INTEGERS, *BITS, "f32", "f64", "f16", "bf16")
    result = b.type(*TRUE)
    test = _test(b, kind)
    combine = b.take(*COMBINE)
    b.count(3 if combine is None else 4)
    truth = b.scratch_predicate()
    _comparison(
        b,
        test,
        kind,
        combine=combine,
        outs=(truth, None),
        sources=(b.operands[1], b.operands[2]),
        predicate=b.operands[3] if combine else None,
    )
    b.emit("select.constant", b.operands[:1], [truth, None], immediate=TRUE[result])


def select(b: LaneBuilder) -> None:
    """``selp``."""
    kind = b.type(*INTEGERS, *BITS, "f32", "f64")
    b.count(4)
    if kind[1:] == "16":
        b.emit("selp.b16", b.operands[:1], b.operands[1:])
    else:
        b.emit(f"selp.{sized(kind)}", b.operands[:1], b.operands[1:])


def select_by_sign(b: LaneBuilder) -> None:
    """``slct``: by the sign of a third operand."""
    by = b.type("s32", "f32")
    kind = b.type(*INTEGERS, *BITS, "f32", "f64")
    ftz = b.flag("ftz")
    if ftz and by != "f32":
        b.fail(".ftz goes with .f32")
    b.count(4)
    name = f"slct.{sized(kind)}.{by}"
    b.emit(name, b.operands[:1], b.operands[1:], extra=FTZ if ftz else 0)


def move(b: LaneBuilder) -> None:
    """``mov``: registers, constants, addresses, predicates, and vectors to scalars and back."""
    kind = b.type(*INTEGERS, *BITS, "b128", "f32", "f64", "pred")
    b.count(2)
    out, source = b.operands
    if kind == "pred":
        if isinstance(source, Immediate):
            b.emit("set.pred", [out], [], immediate=int(source.bits != 0))
        else:
            b.emit("mov.pred", [out], [source])
        return
    bits = int(kind[1:])
    if bits == 128:
        _move128(b, out, source)
    elif isinstance(source, Vector):
        b.emit(f"pack.{_packing(b, bits, source)}", [out], source.items)
    elif isinstance(out, Vector):
        b.emit(f"unpack.{_packing(b, bits, out)}", out.items, [source])
    else:
        b.emit(f"mov.b{bits}", [out], [source])


def _packing(b: LaneBuilder, bits: int, vector: Vector) -> str:
    name = PACKINGS.get((bits, len(vector.items)))
    if name is None:
        b.fail(f"no vector of {len(vector.items)} items in {bits} bits")
    return name


def _move128(b: LaneBuilder, out: Operand, source: Operand) -> None:
    """Two moves of 64 bits; a b128 register is two consecutive rows."""

    def halves(operand: Operand, *, destination: bool) -> list[Operand | Row]:
        if isinstance(operand, Vector):
            return list(b.items(operand, 2))
        if not isinstance(operand, Register) or register_bits(operand, 0) != 128:
            b.fail("a .b128 operand is a register or a vector of two")
        bind = b.binder.out if destination else b.binder.row
        row = bind(operand, 128)
        return [Row(row), Row(row + 1)]

    outs = halves(out, destination=True)
    for destination, origin in zip(outs, halves(source, destination=False), strict=True):
        b.emit("mov.b64", [destination], [origin])


SELECT_RULES: dict[str, LaneRule] = {
    "setp": set_predicate,
    "set": set_value,
    "selp": select,
    "slct": select_by_sign,
    "mov": move,
}
