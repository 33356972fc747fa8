"""Directives beside variables: tuning hints of a kernel, pragmas, and what is skipped whole.

A directive that is not named here or by its reader is an error: it might change what is executed.
"""

from __future__ import annotations

from cakert.sim.ptx.constants import integer
from cakert.sim.ptx.lexer import Tokens

__all__ = ["read_performance_directives", "read_pragma", "skip_block", "skip_statement"]

# Three extents, of which the ones left out are 1 (PTX ISA 11.4, 11.7).
_EXTENTS = frozenset([".maxntid", ".reqntid", ".reqnctapercluster"])
_NUMBERS = frozenset([".minnctapersm", ".maxnctapersm", ".maxnreg", ".maxclusterrank"])
_FLAGS = frozenset([".explicitcluster", ".noreturn", ".blocksareclusters"])


def read_performance_directives(
    tokens: Tokens, index: int
) -> tuple[dict[str, tuple[int, ...]], int]:
    """Read what stands between a kernel's parameters and its body.

    Returns
    -------
    tuple
        Name without the dot -> its numbers (none for a flag), and the index after the last one.
    """
    directives: dict[str, tuple[int, ...]] = {}
    while tokens.kinds[index] == "dot":
        name = tokens.texts[index]
        if name == ".pragma":
            index = read_pragma(tokens, index)
            continue
        if name[1:] in directives:
            raise tokens.error(index, f"directive {name} stands twice")
        if name in _EXTENTS:
            values, after = _read_numbers(tokens, index, 3)
            values.extend([1] * (3 - len(values)))
        elif name in _NUMBERS:
            values, after = _read_numbers(tokens, index, 1)
        elif name in _FLAGS:
            values, after = [], index + 1
        else:
            raise tokens.error(index, f"directive {name} is not known at a kernel")
        directives[name[1:]] = tuple(values)
        index = after
    return directives, index


def read_pragma(tokens: Tokens, index: int) -> int:
    """Read ``.pragma "...", ...;`` at token ``index``: hints to an optimiser (PTX ISA 11.4)."""
    while True:
        index = tokens.take(index + 1, "string", "a string")
        if tokens.kinds[index] != ",":
            return tokens.take(index, ";", "',' or ';'")


def skip_statement(tokens: Tokens, index: int) -> int:
    """The index after the next semicolon, before which no brace may stand."""
    while tokens.kinds[index] != ";":
        if tokens.kinds[index] in ("{", "}", "end"):
            raise tokens.expected(index, "';'")
        index += 1
    return index + 1


def skip_block(tokens: Tokens, index: int) -> int:
    """The index after the "}" that closes the "{" at token ``index``."""
    start = index
    index = tokens.take(index, "{")
    depth = 1
    while depth:
        kind = tokens.kinds[index]
        if kind == "end":
            raise tokens.expected(index, f"'}}' for the '{{' on line {tokens.line(start)}")
        depth += (kind == "{") - (kind == "}")
        index += 1
    return index


def _read_numbers(tokens: Tokens, index: int, most: int) -> tuple[list[int], int]:
    """At least one and at most ``most`` positive numbers after the directive at ``index``."""
    name = tokens.texts[index]
    values: list[int] = []
    while not values or (tokens.kinds[index] == "," and len(values) < most):
        value, after = integer(tokens, index + 1, f"a number for {name}")
        if not 0 <= value < 1 << 31:
            raise tokens.error(index + 1, f"{name} of {value}")
        values.append(value)
        index = after
    return values, index
