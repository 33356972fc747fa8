"""Operands of instructions (PTX ISA 6)."""

from __future__ import annotations

from cakert.sim.ptx.constants import immediate, integer
from cakert.sim.ptx.lexer import Tokens
from cakert.sim.ptx.model import (
    Address,
    Immediate,
    NotPredicate,
    Operand,
    Pair,
    Register,
    Sink,
    Symbol,
    Vector,
)
from cakert.sim.ptx.scopes import Names

__all__ = ["read_operands", "read_predicate"]

_SINK = Sink()
_CONSTANT_STARTS = frozenset(["number", "-", "+", "~", "("])


def read_operands(
    tokens: Tokens, index: int, names: Names, *, lists: bool
) -> tuple[list[Operand], int]:
    """Read operands up to the semicolon of their instruction.

    Parameters
    ----------
    tokens, index
        Where the first operand, or the semicolon, stands.
    names
        What is declared there.
    lists
        True where parentheses hold arguments, as in ``call``, rather than constant expressions.

    Returns
    -------
    tuple
        The operands and the index of the semicolon.
    """
    kinds = tokens.kinds
    operands: list[Operand] = []
    if kinds[index] == ";":
        return operands, index
    while True:
        if lists and kinds[index] == "(":
            items, index = _read_list(tokens, index, names, ")")
            operands.append(Vector(items))
        else:
            operand, index = _read_operand(tokens, index, names)
            operands.append(operand)
        kind = kinds[index]
        if kind == ";":
            return operands, index
        if kind != ",":
            raise tokens.expected(index, "',' or ';'")
        index += 1


def read_predicate(tokens: Tokens, index: int, names: Names) -> Register:
    """The predicate register that token ``index`` names."""
    tokens.take(index, "word", "a predicate")
    found = names.find(index)
    if not isinstance(found, Register) or found.type != "pred":
        raise tokens.error(index, f"'{tokens.texts[index]}' is no predicate register")
    return found


def _read_operand(tokens: Tokens, index: int, names: Names) -> tuple[Operand, int]:
    kind = tokens.kinds[index]
    if kind == "[":
        return _read_address(tokens, index, names)
    if kind == "{":
        items, index = _read_list(tokens, index, names, "}")
        operand: Operand = Vector(items)
    else:
        operand, index = _read_simple(tokens, index, names)
    if tokens.kinds[index] == "|":
        second, index = _read_simple(tokens, index + 1, names)
        return Pair(operand, second), index
    return operand, index


def _read_simple(tokens: Tokens, index: int, names: Names) -> tuple[Operand, int]:
    """A name, a constant or a negated predicate."""
    kind = tokens.kinds[index]
    if kind == "word":
        text = tokens.texts[index]
        if text == "_":
            return _SINK, index + 1
        if text != "WARP_SZ":
            found = names.find(index)
            index += 1
            if isinstance(found, Symbol) and tokens.kinds[index] in ("+", "-"):
                offset, index = _read_offset(tokens, index)
                return Symbol(found.name, found.offset + offset), index
            return found, index
    elif kind == "!":
        if tokens.kinds[index + 1] == "word":
            return NotPredicate(read_predicate(tokens, index + 1, names)), index + 2
        raise tokens.expected(index + 1, "a predicate")
    elif kind not in _CONSTANT_STARTS:
        raise tokens.expected(index, "an operand")
    return immediate(tokens, index)


def _read_list(
    tokens: Tokens, index: int, names: Names, closing: str
) -> tuple[tuple[Operand, ...], int]:
    """The items between token ``index``, which opens a list, and its ``closing``."""
    items: list[Operand] = []
    index += 1
    if closing == ")" and tokens.kinds[index] == closing:
        return (), index + 1
    while True:
        item, index = _read_simple(tokens, index, names)
        items.append(item)
        kind = tokens.kinds[index]
        if kind == closing:
            return tuple(items), index + 1
        if kind != ",":
            raise tokens.expected(index, f"',' or '{closing}'")
        index += 1


def _read_address(tokens: Tokens, index: int, names: Names) -> tuple[Address, int]:
    """``[base]``, ``[base+offset]`` or ``[base, {coordinates}]`` at token ``index``."""
    kinds = tokens.kinds
    index += 1
    base: Operand
    offset = 0
    coordinates = None
    if kinds[index] == "word" and tokens.texts[index] != "WARP_SZ":
        base = names.find(index)
        if not isinstance(base, (Register, Symbol)):
            raise tokens.expected(index, "a register or a variable")
        index += 1
        if kinds[index] in ("+", "-"):
            offset, index = _read_offset(tokens, index)
    else:
        address, index = integer(tokens, index, "an address")
        base = Immediate(address & ((1 << 64) - 1))
    if kinds[index] == ",":
        index = tokens.take(index + 1, "{", "'{' of the coordinates") - 1
        items, index = _read_list(tokens, index, names, "}")
        coordinates = Vector(items)
    return Address(base, offset, coordinates), tokens.take(index, "]")


def _read_offset(tokens: Tokens, index: int) -> tuple[int, int]:
    """The signed number that follows a base: the sign at token ``index`` is an operator."""
    value, index = integer(tokens, index, "an offset")
    # Offsets wrap at 64 bits like the address itself: 0xfffffffffffffff0 is -16.
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value, index
