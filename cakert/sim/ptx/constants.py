"""Literals and constant expressions (PTX ISA 4.5): evaluated with 64-bit integers or doubles."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass

from cakert.sim.ptx.lexer import Tokens
from cakert.sim.ptx.model import Immediate

__all__ = ["Constant", "expression", "immediate", "integer", "literal"]

WARP_SIZE = 32
_MASK = (1 << 64) - 1
# Parentheses and unary operators in one another; a bound for texts that are no programs.
_MAX_DEPTH = 32
_AFTER_OPERAND = frozenset(",;]})")
# The loosest first, as in C.
_LEVELS: dict[str, int] = {
    name: level
    for level, names in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %")
    )
    for name in names.split()
}
_COMPARISONS: dict[str, Callable[[int | float, int | float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_INTEGER: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A value with its type: "s64", "u64", "f64", or "f32" for a literal ``0f...``."""

    value: int | float
    type: str = "s64"


def literal(tokens: Tokens, index: int) -> Constant:
    """The number that token ``index`` writes."""
    text = tokens.texts[index]
    prefix = text[:2].lower()
    if prefix == "0f":
        return Constant(struct.unpack(">f", bytes.fromhex(text[2:]))[0], "f32")
    if prefix == "0d":
        return Constant(struct.unpack(">d", bytes.fromhex(text[2:]))[0], "f64")
    unsigned = text.endswith("U")
    digits = text.removesuffix("U")
    if prefix in ("0x", "0b"):
        value = int(digits, 0)
    elif not digits.isdigit():
        number = float(digits)
        if math.isinf(number):
            raise tokens.error(index, f"{digits[:60]} is too large for a double")
        return Constant(number, "f64")
    elif len(digits) > 64:
        # int() bounds the digits that it reads: no 64-bit number, octal included, has so many.
        raise tokens.error(index, f"a number of {len(digits)} digits does not fit 64 bits")
    elif digits[0] == "0" and len(digits) > 1:
        if not set(digits) <= set("01234567"):
            raise tokens.error(index, f"{digits} is no octal number")
        value = int(digits, 8)
    else:
        value = int(digits)
    if value > _MASK:
        raise tokens.error(index, f"{digits[:60]} does not fit 64 bits")
    return Constant(value, "u64" if unsigned or value >> 63 else "s64")


def immediate(tokens: Tokens, index: int) -> tuple[Immediate, int]:
    """Read a constant operand at token ``index``.

    Returns
    -------
    tuple
        The operand and the index after it.
    """
    text = tokens.texts[index]
    if text[:2] in ("0f", "0F", "0d", "0D") and tokens.kinds[index + 1] in _AFTER_OPERAND:
        # Bit by bit: a NaN would not keep its payload as a Python float.
        bits = int.from_bytes(bytes.fromhex(text[2:]), "big")
        return Immediate(bits, "f32" if text[1] in "fF" else "f64"), index + 1
    constant, after = expression(tokens, index)
    value = constant.value
    if isinstance(value, float):
        kind, code = ("f32", ">f") if constant.type == "f32" else ("f64", ">d")
        return Immediate(int.from_bytes(struct.pack(code, value), "big"), kind), after
    return Immediate(value & _MASK), after


def integer(tokens: Tokens, index: int, what: str) -> tuple[int, int]:
    """Read a constant integer; returns its value and the index after it."""
    if tokens.kinds[index] not in ("number", "-", "+", "~", "!", "(", "word"):
        raise tokens.expected(index, what)
    constant, after = expression(tokens, index)
    if isinstance(constant.value, float):
        raise tokens.error(index, f"expected {what}, found a floating-point number")
    return constant.value, after


def expression(tokens: Tokens, index: int, depth: int = 0) -> tuple[Constant, int]:
    """Read a constant expression, ``?:`` included; returns its value and the index after it."""
    condition, index = _binary(tokens, index, 0, depth)
    if tokens.kinds[index] != "?":
        return condition, index
    first, index = expression(tokens, index + 1, _deeper(tokens, index, depth))
    index = tokens.take(index, ":", "':' of the conditional expression")
    second, index = expression(tokens, index, _deeper(tokens, index, depth))
    return (first if condition.value else second), index


def _binary(tokens: Tokens, index: int, level: int, depth: int) -> tuple[Constant, int]:
    left, index = _unary(tokens, index, depth)
    while (found := _LEVELS.get(tokens.kinds[index], -1)) >= level:
        at = index
        right, index = _binary(tokens, at + 1, found + 1, depth)
        left = _apply(tokens, at, left, right)
    return left, index


def _unary(tokens: Tokens, index: int, depth: int) -> tuple[Constant, int]:
    kind = tokens.kinds[index]
    if kind == "number":
        return literal(tokens, index), index + 1
    if kind == "word" and tokens.texts[index] == "WARP_SZ":
        return Constant(WARP_SIZE), index + 1
    depth = _deeper(tokens, index, depth)
    if kind in ("-", "+", "~", "!"):
        operand, after = _unary(tokens, index + 1, depth)
        return _apply_unary(tokens, index, kind, operand), after
    if kind == "(" and tokens.kinds[index + 1] == "dot":
        type_ = tokens.texts[index + 1][1:]
        if type_ not in ("s64", "u64"):
            raise tokens.expected(index + 1, ".s64 or .u64")
        operand, after = _unary(tokens, tokens.take(index + 2, ")"), depth)
        if isinstance(operand.value, float):
            raise tokens.error(index, "a cast of a floating-point number")
        return _wrap(operand.value, type_), after
    if kind == "(":
        inner, after = expression(tokens, index + 1, depth)
        return inner, tokens.take(after, ")")
    raise tokens.expected(index, "a constant")


def _apply_unary(tokens: Tokens, index: int, name: str, operand: Constant) -> Constant:
    value = operand.value
    if name == "!":
        return Constant(int(not value))
    if isinstance(value, float):
        if name == "~":
            raise tokens.error(index, "~ of a floating-point number")
        return Constant(-value if name == "-" else value, operand.type)
    return _wrap({"-": -value, "+": value, "~": ~value}[name], operand.type)


def _apply(tokens: Tokens, index: int, left: Constant, right: Constant) -> Constant:
    """``left`` op ``right``, where token ``index`` is the operator (PTX ISA 4.5.6, table 3)."""
    name = tokens.kinds[index]
    one, two = left.value, right.value
    if name in ("&&", "||"):
        return Constant(int(bool(one and two) if name == "&&" else bool(one or two)))
    if name in ("/", "%") and not two:
        raise tokens.error(index, "a division by zero")
    if isinstance(one, float) or isinstance(two, float):
        return _apply_float(tokens, index, float(one), float(two))
    if name in ("<<", ">>"):
        # Counts of 64 and more shift everything out; Python would build the number.
        count = min(two & _MASK, 64)
        return _wrap(one << count if name == "<<" else one >> count, left.type)
    type_ = "u64" if "u64" in (left.type, right.type) else "s64"
    if type_ == "u64":
        one, two = one & _MASK, two & _MASK
    if name in _COMPARISONS:
        return Constant(int(_COMPARISONS[name](one, two)))
    if name in ("/", "%"):
        quotient = abs(one) // abs(two)
        if (one < 0) != (two < 0):
            quotient = -quotient
        return _wrap(quotient if name == "/" else one - quotient * two, type_)
    return _wrap(_INTEGER[name](one, two), type_)


def _apply_float(tokens: Tokens, index: int, one: float, two: float) -> Constant:
    name = tokens.kinds[index]
    if name in _COMPARISONS:
        return Constant(int(_COMPARISONS[name](one, two)))
    if name == "/":
        return Constant(one / two, "f64")
    if name not in ("+", "-", "*"):
        raise tokens.error(index, f"{name} of a floating-point number")
    return Constant({"+": one + two, "-": one - two, "*": one * two}[name], "f64")


def _wrap(value: int, type_: str) -> Constant:
    value &= _MASK
    return Constant(value - (1 << 64) if type_ == "s64" and value >> 63 else value, type_)


def _deeper(tokens: Tokens, index: int, depth: int) -> int:
    if depth >= _MAX_DEPTH:
        raise tokens.error(index, f"a constant expression nested deeper than {_MAX_DEPTH}")
    return depth + 1
