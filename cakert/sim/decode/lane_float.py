"""Which lane ops floating-point arithmetic is (PTX ISA 9.7.3 to 9.7.5)."""

from __future__ import annotations

from cakert.sim.decode.lane_builder import FTZ, RELU, ROUNDINGS, SAT, LaneBuilder
from cakert.sim.decode.lane_integer import LaneRule

__all__ = [
    "FLOAT_RULES",
    "HALVES",
    "float_arithmetic",
    "float_divide",
    "float_extremum",
    "float_neg_abs",
]

HALVES = ("f16", "f16x2", "bf16", "bf16x2")
DIRECTIONS = ("rn", "rz", "rm", "rp")
TESTS = {"finite": 0, "infinite": 1, "number": 2, "notanumber": 3, "normal": 4, "subnormal": 5}
PROPAGATE_NAN, XORSIGN_ABS, ABSOLUTE = 1, 2, 4


def float_arithmetic(b: LaneBuilder) -> None:
    """``add``, ``sub``, ``mul``, ``fma``, and ``mad``, which is an fma."""
    operation = "fma" if b.opcode == "mad" else b.opcode
    rounding = b.take(*DIRECTIONS)
    ftz, sat, relu = b.flag("ftz"), b.flag("sat"), b.flag("relu")
    kind = b.type("f32", "f64", "f32x2", *HALVES)
    b.count(4 if operation == "fma" else 3)
    out, *sources = b.operands
    extra = ROUNDINGS[rounding or "rn"] | ftz * FTZ | sat * SAT | relu * RELU
    if relu and (operation != "fma" or kind not in HALVES or sat):
        b.fail(".relu is of fma in f16 and bf16, without .sat")
    if (kind in ("f64", "f32x2") and sat) or (kind == "f64" and ftz):
        b.fail(f".{kind} has no such modifier")
    if operation == "fma" and rounding is None and b.opcode == "fma":
        b.fail("fma needs a rounding")
    if kind == "f32x2":
        b.since_sm100(".f32x2")
    if kind in HALVES:
        if extra & 7 or (kind.startswith("bf16") and (ftz or sat)):
            b.fail(f".{kind} has no such modifier")
        if b.peek() == "f32":
            _mixed(b, operation, kind, extra)
            return
        b.emit(f"{operation}.{kind}", [out], sources, extra=extra)
    elif extra & ~FTZ:
        b.emit(f"{operation}.any.{kind}", [out], sources, extra=extra)
    else:
        b.emit(f"{operation}.{'ftz.' if ftz else ''}{kind}", [out], sources)


def _mixed(b: LaneBuilder, operation: str, kind: str, extra: int) -> None:
    # add.f32.f16 d, a, c: the first source is widened (PTX ISA 9.7.5, mixed precision).
    b.type("f32")
    b.since_sm100("mixed precision")
    if operation not in ("add", "sub") or kind.endswith("x2"):
        b.fail(f"mixed precision of {operation}.{kind} is not supported")
    widened = b.scratch()
    b.emit(f"cvt.f32.{kind}", [widened], [b.operands[1]])
    b.emit(f"{operation}.any.f32", [b.operands[0]], [widened, b.operands[2]], extra=extra)


def float_divide(b: LaneBuilder) -> None:
    """``div``: the approximate forms are rounded correctly too; .approx flushes large divisors."""
    choice = b.need("approx", "full", *DIRECTIONS)
    rounding = choice if choice in DIRECTIONS else None
    ftz = b.flag("ftz")
    kind = b.type("f32", "f64")
    b.count(3)
    _check_double(b, kind, rounding, ftz)
    extra = ROUNDINGS[rounding or "rn"] | ftz * FTZ
    form = ("approx." if choice == "approx" else "") + ("ftz." if ftz else "")
    name = f"div.any.{kind}" if extra & ~FTZ else f"div.{form}{kind}"
    b.emit(name, b.operands[:1], b.operands[1:], extra=extra)


def _precision(b: LaneBuilder) -> str | None:
    """The rounding of a form that also exists as an approximation (None)."""
    choice = b.need("approx", *DIRECTIONS)
    return choice if choice in DIRECTIONS else None


def _check_double(b: LaneBuilder, kind: str, rounding: str | None, ftz: bool) -> None:
    if kind == "f64" and (rounding is None or ftz):
        b.fail("f64 has neither .approx nor .ftz here")


def root(b: LaneBuilder) -> None:
    """``rcp`` and ``sqrt``."""
    rounding = _precision(b)
    ftz = b.flag("ftz")
    kind = b.type("f32", "f64")
    b.count(2)
    extra = ROUNDINGS[rounding or "rn"] | ftz * FTZ
    name = f"{b.opcode}.any.{kind}"
    if (b.opcode, kind, rounding, ftz) == ("rcp", "f64", None, True):
        name, extra = "rcp.gross.f64", 0
    else:
        _check_double(b, kind, rounding, ftz)
    b.emit(name, b.operands[:1], b.operands[1:], extra=extra)


def reciprocal_root(b: LaneBuilder) -> None:
    """``rsqrt``."""
    b.need("approx")
    ftz = b.flag("ftz")
    kind = b.type("f32", "f64")
    b.count(2)
    name = "rsqrt.gross.f64" if kind == "f64" and ftz else f"rsqrt.{kind}"
    extra = FTZ if ftz and kind == "f32" else 0
    b.emit(name, b.operands[:1], b.operands[1:], extra=extra)


def exponential(b: LaneBuilder) -> None:
    """``ex2`` (PTX ISA "ex2")."""
    b.need("approx")
    ftz = b.flag("ftz")
    kind = b.type("f32", *HALVES)
    b.count(2)
    if kind != "f32" and ftz != kind.startswith("bf16"):
        b.fail("bf16 needs .ftz, f16 has none")
    name = f"ex2.{'ftz.' if ftz and kind == 'f32' else ''}{kind}"
    b.emit(name, b.operands[:1], b.operands[1:], extra=FTZ if ftz else 0)


def approximation(b: LaneBuilder) -> None:
    """``lg2``, ``sin``, ``cos`` and ``tanh``."""
    b.need("approx")
    is_tanh = b.opcode == "tanh"
    ftz = not is_tanh and b.flag("ftz")
    kind = b.type("f32", *(HALVES if is_tanh else ()))
    b.count(2)
    b.emit(f"{b.opcode}.{kind}", b.operands[:1], b.operands[1:], extra=FTZ if ftz else 0)


def float_neg_abs(b: LaneBuilder) -> None:
    """``neg`` and ``abs``."""
    ftz = b.flag("ftz")
    kind = b.type("f32", "f64", *HALVES)
    b.count(2)
    if ftz and (kind == "f64" or kind.startswith("bf16")):
        b.fail(f".{kind} has no .ftz")
    name = f"{b.opcode}.{'ftz.' if ftz and kind == 'f32' else ''}{kind}"
    b.emit(name, b.operands[:1], b.operands[1:], extra=FTZ if ftz else 0)


def float_extremum(b: LaneBuilder) -> None:
    """``min`` and ``max`` of two operands, or of three in f32."""
    ftz, propagate = b.flag("ftz"), b.flag("NaN")
    xorsign, absolute = b.flag("xorsign"), b.flag("abs")
    kind = b.type("f32", "f64", *HALVES)
    three = len(b.operands) == 4
    b.count(3, 4)
    if three and (kind != "f32" or xorsign):
        b.fail("three operands are of .f32, without .xorsign")
    if three:
        b.since_sm100("a minimum or maximum of three")
    if (xorsign and not absolute) or (absolute and not (xorsign or three)):
        b.fail("the modifier is .xorsign.abs, or .abs with three operands")
    if (kind == "f64" and (ftz or propagate or xorsign)) or (kind.startswith("bf16") and ftz):
        b.fail(f".{kind} has no such modifier")
    extra = ftz * FTZ | propagate * PROPAGATE_NAN
    extra |= XORSIGN_ABS if xorsign else ABSOLUTE if absolute else 0
    name = f"{b.opcode}{'3' if three else ''}.{'any.' if extra and kind == 'f32' else ''}{kind}"
    b.emit(name, b.operands[:1], b.operands[1:], extra=extra)


def test_property(b: LaneBuilder) -> None:
    """``testp``."""
    test = TESTS[b.need(*TESTS)]
    kind = b.type("f32", "f64")
    b.count(2)
    b.emit(f"testp.{kind}", [b.operands[0], None], [b.operands[1], None], extra=test)


def copy_sign(b: LaneBuilder) -> None:
    """``copysign``."""
    kind = b.type("f32", "f64")
    b.count(3)
    b.emit(f"copysign.{kind}", b.operands[:1], b.operands[1:])


FLOAT_RULES: dict[str, LaneRule] = {
    "fma": float_arithmetic,
    "rcp": root,
    "sqrt": root,
    "rsqrt": reciprocal_root,
    "ex2": exponential,
    "lg2": approximation,
    "sin": approximation,
    "cos": approximation,
    "tanh": approximation,
    "testp": test_property,
    "copysign": copy_sign,
}
