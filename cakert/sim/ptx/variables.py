"""Declarations of variables and parameters (PTX ISA 5.1 to 5.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from cakert.sim.ptx.constants import integer
from cakert.sim.ptx.initializers import read_initializer
from cakert.sim.ptx.lexer import Tokens
from cakert.sim.ptx.model import Variable

__all__ = ["REGISTER_TYPES", "TYPE_SIZES", "read_parameters", "read_variables", "skip_parentheses"]

#: Bytes of an element, by type without the dot.
TYPE_SIZES: dict[str, int] = {
    **{f"{kind}{8 * size}": size for kind in "bus" for size in (1, 2, 4, 8)},
    "b128": 16,
    "f16": 2,
    "f16x2": 4,
    "f32": 4,
    "f64": 8,
}
#: What a register may be.
REGISTER_TYPES: frozenset[str] = frozenset(TYPE_SIZES) | {"pred"}
_VECTOR_LENGTHS = {".v2": 2, ".v4": 4, ".v8": 8}
# Nothing on a GPU is larger; a bound for texts that are no programs.
_MAX_BYTES = 1 << 40
_MAX_DIMS = 16


@dataclass(frozen=True, slots=True)
class _Kind:
    """What stands before the names of a declaration."""

    space: str
    type: str
    length: int
    align: int


def read_variables(
    tokens: Tokens,
    index: int,
    add: Callable[[int], str],
    *,
    extern: bool = False,
) -> tuple[list[Variable], int]:
    """Read a declaration, from its state space (token ``index``) to its semicolon.

    Parameters
    ----------
    tokens, index
        Where the declaration stands.
    add
        Declares the name that a token gives; returns the unique one.
    extern
        True after ``.extern``.

    Returns
    -------
    tuple
        The variables and the index after the semicolon.
    """
    kind, index = _read_kind(tokens, index)
    variables = []
    while True:
        at = tokens.take(index, "word", "a variable's name") - 1
        name = add(at)
        dims, index = _read_dims(tokens, index + 1)
        init = None
        if tokens.kinds[index] == "=":
            if kind.space not in ("global", "const"):
                raise tokens.error(index, f"a .{kind.space} variable cannot have an initial value")
            shape = [*dims, kind.length] if kind.length > 1 else dims
            element = TYPE_SIZES[kind.type]
            init, index = read_initializer(tokens, index + 1, kind.type, element, shape)
            if dims and dims[0] == 0:
                dims[0] = len(init) // (element * prod(shape[1:]))
        if not extern and 0 in dims:
            raise tokens.error(at, f"array '{tokens.texts[at]}' needs a size")
        size = _size(tokens, at, kind, dims)
        variables.append(Variable(name, kind.space, kind.type, kind.align, size, init, extern))
        if tokens.kinds[index] != ",":
            return variables, tokens.take(index, ";", "',' or ';'")
        index += 1


def read_parameters(
    tokens: Tokens, index: int, add: Callable[[int], str]
) -> tuple[list[Variable], int]:
    """Read a kernel's parameter list, whose "(" is token ``index``, to its ")"."""
    parameters: list[Variable] = []
    index += 1
    if tokens.kinds[index] == ")":
        return parameters, index + 1
    while True:
        if tokens.texts[index] != ".param":
            raise tokens.expected(index, ".param")
        kind, index = _read_kind(tokens, index)
        if tokens.texts[index] == ".ptr":
            index = _skip_pointee(tokens, index + 1)
        at = tokens.take(index, "word", "a parameter's name") - 1
        name = add(at)
        dims, index = _read_dims(tokens, index + 1)
        if 0 in dims:
            raise tokens.error(at, f"parameter '{tokens.texts[at]}' needs a size")
        size = _size(tokens, at, kind, dims)
        parameters.append(Variable(name, "param", kind.type, kind.align, size))
        if tokens.kinds[index] != ",":
            return parameters, tokens.take(index, ")", "',' or ')'")
        index += 1


def _read_kind(tokens: Tokens, index: int) -> tuple[_Kind, int]:
    """State space, alignment, vector length and type; the space has been checked."""
    space = tokens.texts[index][1:]
    type_, length, align = "", 1, 0
    index += 1
    while not type_:
        word = tokens.texts[tokens.take(index, "dot", "a type") - 1]
        if word == ".align":
            align, index = _read_align(tokens, index)
            continue
        index += 1
        if word == ".attribute":
            # Where the host may see the variable: nothing for a kernel (PTX ISA 5.4.8).
            index = skip_parentheses(tokens, index)
        elif word in _VECTOR_LENGTHS:
            length = _VECTOR_LENGTHS[word]
        elif word[1:] in TYPE_SIZES:
            type_ = word[1:]
        else:
            raise tokens.error(index - 1, f"a variable of type {word} is not supported")
    if tokens.texts[index] == ".align":
        align, index = _read_align(tokens, index)
    return _Kind(space, type_, length, align or TYPE_SIZES[type_] * length), index


def _read_align(tokens: Tokens, index: int) -> tuple[int, int]:
    """Read ``.align N``, which begins at token ``index``."""
    align, after = integer(tokens, index + 1, "an alignment")
    if not 0 < align <= 1 << 20 or align & (align - 1):
        raise tokens.error(index, f"an alignment of {align}: no power of two")
    return align, after


def skip_parentheses(tokens: Tokens, index: int) -> int:
    """The index after the ")" that closes the "(" at token ``index``."""
    start = index
    index = tokens.take(index, "(")
    depth = 1
    while depth:
        kind = tokens.kinds[index]
        if kind in ("end", ";", "{", "}"):
            raise tokens.expected(index, f"')' for the '(' on line {tokens.line(start)}")
        depth += (kind == "(") - (kind == ")")
        index += 1
    return index


def _skip_pointee(tokens: Tokens, index: int) -> int:
    """After ``.ptr``: space and alignment of what a parameter points to, which bind nothing."""
    if tokens.texts[index] in (".const", ".global", ".local", ".shared"):
        index += 1
    if tokens.texts[index] == ".align":
        _, index = _read_align(tokens, index)
    return index


def _read_dims(tokens: Tokens, index: int) -> tuple[list[int], int]:
    """The brackets after a name; an empty pair, allowed first, counts 0."""
    dims: list[int] = []
    while tokens.kinds[index] == "[":
        if tokens.kinds[index + 1] == "]" and not dims:
            dims.append(0)
            index += 2
            continue
        if len(dims) == _MAX_DIMS:
            raise tokens.error(index, f"an array of more than {_MAX_DIMS} dimensions")
        size, after = integer(tokens, index + 1, "an array size")
        if not 0 < size <= _MAX_BYTES:
            raise tokens.error(index + 1, f"an array size of {size}")
        dims.append(size)
        index = tokens.take(after, "]")
    return dims, index


def _size(tokens: Tokens, index: int, kind: _Kind, dims: list[int]) -> int:
    size = TYPE_SIZES[kind.type] * kind.length * prod(dims)
    if size > _MAX_BYTES:
        raise tokens.error(index, f"'{tokens.texts[index]}' of {size} bytes")
    return size
