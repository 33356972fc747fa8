"""Initial values of variables (PTX ISA 5.4.4): constants in nested braces -> bytes."""

from __future__ import annotations

import struct
from math import prod

from cakert.sim.ptx.constants import expression, immediate
from cakert.sim.ptx.lexer import Tokens

__all__ = ["read_initializer"]

# More than any constant bank or table of a kernel; a bound for texts that are no programs.
_MAX_BYTES = 1 << 26


def read_initializer(
    tokens: Tokens, index: int, type_: str, size: int, shape: list[int]
) -> tuple[bytes, int]:
    """Read what follows the "=" of a declaration.

    Parameters
    ----------
    tokens, index
        Where the value stands.
    type_, size
        Type of an element without the dot, and its bytes.
    shape
        Extents, outermost first; empty for a scalar, first 0 where the value gives the extent.

    Returns
    -------
    tuple
        The bytes, little-endian, up to the last row that is given, and the index after the value.
    """
    if type_ in ("f16", "f16x2"):
        raise tokens.error(index, f"no initial value is allowed for type .{type_}")
    return _read_level(tokens, index, type_, size, shape)


def _read_level(
    tokens: Tokens, index: int, type_: str, size: int, shape: list[int]
) -> tuple[bytes, int]:
    if not shape:
        return _read_element(tokens, index, type_, size)
    stride = size * prod(shape[1:])
    index = tokens.take(index, "{", "'{' of an array's initial value")
    data = bytearray()
    count = 0
    if tokens.kinds[index] == "}":
        return b"", index + 1
    while True:
        if shape[0] and count == shape[0]:
            raise tokens.error(index, f"more than {shape[0]} initial values")
        if count * stride > _MAX_BYTES:
            raise tokens.error(index, f"an initial value of more than {_MAX_BYTES >> 20} MiB")
        data.extend(bytes(count * stride - len(data)))
        item, index = _read_level(tokens, index, type_, size, shape[1:])
        data.extend(item)
        count += 1
        if tokens.kinds[index] != ",":
            break
        index += 1
    if shape[0] == 0 and count * stride <= _MAX_BYTES:
        # The extent is the number of rows, so the last one is filled up too.
        data.extend(bytes(count * stride - len(data)))
    return bytes(data), tokens.take(index, "}", "',' or '}'")


def _read_element(tokens: Tokens, index: int, type_: str, size: int) -> tuple[bytes, int]:
    if tokens.kinds[index] == "word" and tokens.texts[index] != "WARP_SZ":
        raise tokens.error(
            index, f"an address ('{tokens.texts[index]}') as an initial value is not supported"
        )
    if type_ in ("f32", "f64"):
        constant, after = expression(tokens, index)
        if not isinstance(constant.value, float):
            raise tokens.error(index, f"a .{type_} needs a floating-point initial value")
        value, after = immediate(tokens, index)
        if (value.kind, type_) == ("f64", "f32"):
            try:
                return struct.pack("<f", constant.value), after
            except OverflowError as problem:
                raise tokens.error(index, f"{constant.value} is too large for .f32") from problem
        if (value.kind, type_) == ("f32", "f64"):
            return struct.pack("<d", constant.value), after
        return value.bits.to_bytes(size, "little"), after
    value, after = immediate(tokens, index)
    if value.kind != "int" and 8 * size != int(value.kind[1:]):
        raise tokens.error(index, f"a floating-point number as the initial value of a .{type_}")
    # A negative number fills 16 bytes with its sign; narrow types keep the low bits.
    signed = value.bits - (1 << 64) if size > 8 and value.bits >> 63 else value.bits
    return (signed & ((1 << (8 * size)) - 1)).to_bytes(size, "little"), after
