"""Which lane ops a ``cvt`` is (PTX ISA 9.7.9)."""

from __future__ import annotations

from cakert.sim.decode.lane_builder import (
    FTZ,
    INTEGRAL,
    RELU,
    ROUNDINGS,
    SAT,
    SATFINITE,
    LaneBuilder,
    Row,
    register_bits,
)
from cakert.sim.decode.lane_integer import LaneRule
from cakert.sim.ptx.model import Operand

__all__ = ["CONVERT_RULES"]

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGRAL_ROUNDINGS = {"rni": 0, "rzi": 1, "rmi": 2, "rpi": 3}
# Destination and source of the packed conversions -> roundings and modifiers that they may have.
PACKED: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("f16x2", "f32"): (("rn", "rz"), ("relu", "satfinite")),
    ("bf16x2", "f32"): (("rn", "rz"), ("relu", "satfinite")),
    ("e4m3x2", "f32"): (("rn",), ("satfinite", "relu")),
    ("e5m2x2", "f32"): (("rn",), ("satfinite", "relu")),
    ("e4m3x2", "f16x2"): (("rn",), ("satfinite", "relu")),
    ("e5m2x2", "f16x2"): (("rn",), ("satfinite", "relu")),
    ("f16x2", "e4m3x2"): (("rn",), ("relu",)),
    ("f16x2", "e5m2x2"): (("rn",), ("relu",)),
}
# Digits of the mantissa and of the exponent: a conversion to a format that has as many of both is
# exact, and takes no rounding.
DIGITS = {"f16": (11, 5), "bf16": (8, 8), "f32": (24, 8), "f64": (53, 11)}


def convert(b: LaneBuilder) -> None:
    """``cvt``."""
    source = b.type(*INTEGERS, *FLOATS, "f16x2", "e4m3x2", "e5m2x2")
    result = b.type(*INTEGERS, *FLOATS, "tf32", "f16x2", "bf16x2", "e4m3x2", "e5m2x2")
    if (result, source) in PACKED:
        _packed(b, result, source)
    elif result == "tf32" and source == "f32":
        _tf32(b)
    elif result in INTEGERS and source in INTEGERS:
        _integers(b, result, source)
    elif result in INTEGERS and source in FLOATS:
        rounding = INTEGRAL_ROUNDINGS[b.need(*INTEGRAL_ROUNDINGS)]
        extra = rounding | _ftz(b, result, source)
        b.flag("sat")  # a result out of range is clamped anyway
        _narrowest(b, f"cvt.{result}.{source}", result, source, extra)
    elif result in FLOATS and source in INTEGERS:
        rounding = ROUNDINGS[b.need("rn", "rz", "rm", "rp")]
        extra = rounding | _ftz(b, result, source) | (SAT if b.flag("sat") else 0)
        fast = extra & ~FTZ == 0 and result == "f32" and source in ("s32", "u32")
        name = f"cvt.{'rn.' if fast else ''}{result}.{source}"
        _narrowest(b, name, result, source, 0 if fast else extra)
    elif result in FLOATS and source in FLOATS:
        _floats(b, result, source)
    else:
        b.fail(f"there is no cvt from .{source} to .{result} here")


def _ftz(b: LaneBuilder, result: str, source: str) -> int:
    if not b.flag("ftz"):
        return 0
    if "f32" not in (result, source):
        b.fail(".ftz goes with .f32")
    return FTZ


def _packed(b: LaneBuilder, result: str, source: str) -> None:
    roundings, modifiers = PACKED[result, source]
    extra = ROUNDINGS[b.need(*roundings)]
    extra |= RELU if "relu" in modifiers and b.flag("relu") else 0
    saturate = "satfinite" in modifiers and b.flag("satfinite")
    if result[0] == "e" and not saturate:
        b.fail(f".{result} needs .satfinite")
    extra |= SATFINITE if saturate else 0
    b.count(3 if source == "f32" else 2)
    fast = extra == 0 and source == "f32"
    name = f"cvt.{'rn.' if fast else ''}{result}.{source}"
    b.emit(name, b.operands[:1], b.operands[1:], extra=extra)


def _tf32(b: LaneBuilder) -> None:
    rounding = b.need("rna", "rn", "rz")
    relu = rounding != "rna" and b.flag("relu")
    extra = ROUNDINGS[rounding] | (RELU if relu else 0) | (SATFINITE if b.flag("satfinite") else 0)
    b.count(2)
    b.emit("cvt.tf32.f32", b.operands[:1], b.operands[1:], extra=extra)


def _integers(b: LaneBuilder, result: str, source: str) -> None:
    saturate = b.flag("sat")
    _narrowest(b, f"cvt.{'sat.' if saturate else ''}{result}.{source}", result, source, 0)


def _floats(b: LaneBuilder, result: str, source: str) -> None:
    exact = all(d >= s for d, s in zip(DIGITS[result], DIGITS[source], strict=True))
    integral = b.take(*INTEGRAL_ROUNDINGS)
    extra = _ftz(b, result, source) | (SAT if b.flag("sat") else 0)
    if integral is not None:
        if result != source:
            b.fail("an integral rounding keeps the type")
        extra |= INTEGRAL | INTEGRAL_ROUNDINGS[integral]
    elif not exact:
        extra |= ROUNDINGS[b.need("rn", "rz", "rm", "rp")]
    if not exact and result in ("f16", "bf16") and source == "f32":
        extra |= RELU if b.flag("relu") else 0
        extra |= SATFINITE if b.flag("satfinite") else 0
    pairs = (("f16", "f32"), ("bf16", "f32"), ("f32", "bf16"))
    fast = extra == 0 and (result, source) in pairs
    name = f"cvt.{'rn.' if fast else ''}{result}.{source}"
    b.count(2)
    b.emit(name, b.operands[:1], b.operands[1:], extra=extra)


def _narrowest(b: LaneBuilder, name: str, result: str, source: str, extra: int) -> None:
    """Emit a conversion whose registers may be wider than its types (PTX ISA 9.4.1).

    A result is extended to its register by its own sign; a source is cut to its type.
    """
    b.count(2)
    out, origin = b.operands
    bits_out, bits_in = int(result.lstrip("subf")), int(source.lstrip("subf"))
    start: Operand | Row = origin
    if bits_in < 64 and register_bits(origin, bits_in) == 64:
        start = b.scratch()
        b.emit("cvt.u32.u64", [start], [origin])
    register = register_bits(out, max(bits_out, 16))
    if bits_out < 64 and register == 64:
        if result in FLOATS:
            b.fail("a result of floating point must fill its register")
        middle = b.scratch()
        b.emit(name, [middle], [start], extra=extra)
        b.emit(f"cvt.{result[0]}64.{result[0]}32", [out], [middle])
        return
    if result in ("s8", "s16") and register == 16:
        # 16-bit registers sit zero-extended: cut what the sign extension put above them.
        row = b.out_row(out, 16)
        b.emit(name, [row], [start], extra=extra)
        b.emit("mov.b16", [row], [row])
        return
    b.emit(name, [out], [start], extra=extra)


CONVERT_RULES: dict[str, LaneRule] = {"cvt": convert}
