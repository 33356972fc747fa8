"""Arguments of a launch as the bytes of a kernel's ``.param`` space.

PTX knows more of a parameter than the driver tells (``cuKernelGetParamInfo``: sizes): its type. So
an int in place of a float is refused here, where a GPU would run with its bits.
"""

from __future__ import annotations

import operator
import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from cakert.sim.arrays import Array, Lent, refuse_host_array
from cakert.sim.copies.tensor_map import TensorMap
from cakert.sim.decode.decoder import parameter_layout
from cakert.sim.ptx.model import Function, Variable

__all__ = ["layout", "pack"]


def layout(function: Function) -> tuple[tuple[int, int], ...]:
    """Offset and size in bytes of each parameter."""
    return tuple((offset, size) for _, offset, size in parameter_layout(function))


def pack(function: Function, args: Sequence[Any]) -> bytes:
    """The parameter block of a launch.

    Parameters
    ----------
    args
        One a parameter: an Array or Lent (their address, 8 bytes), None (a null pointer), a numpy
        scalar of the parameter's size, an int, a float (4 or 8 bytes only), bytes for structs, a
        tensor map.

    Raises
    ------
    TypeError
        A wrong number of arguments, or a value of a type that no parameter takes.
    ValueError
        A value of another size than its parameter, or out of its range.
    """
    parameters, args = function.parameters, tuple(args)
    if len(args) < len(parameters):
        missing = ", ".join(parameter.name for parameter in parameters[len(args) :])
        raise TypeError(
            f"{function.name} takes {len(parameters)} arguments, got {len(args)}: {missing} missing"
        )
    if len(args) > len(parameters):
        raise TypeError(f"{function.name} takes {len(parameters)} arguments, got {len(args)}")
    places = layout(function)
    block = bytearray(max((offset + size for offset, size in places), default=0))
    for parameter, (offset, size), value in zip(parameters, places, args, strict=True):
        block[offset : offset + size] = _pack_one(parameter, value)
    return bytes(block)


def _pack_one(parameter: Variable, value: Any) -> bytes:
    if isinstance(value, (Array, Lent)):
        _expect_size(parameter, 8, "an address")
        return value.pointer.to_bytes(8, sys.byteorder)
    if value is None:
        _expect_size(parameter, 8, "a null pointer")
        return bytes(8)
    if isinstance(value, np.generic):
        # numpy before float: numpy.float64 derives from float, and its size is its own.
        _expect_size(parameter, value.dtype.itemsize, f"a numpy.{value.dtype.name}")
        _expect_kind(parameter, value.dtype.kind in "fV", f"a numpy.{value.dtype.name}")
        return value.tobytes()
    if isinstance(value, float):
        return _pack_float(parameter, value)
    # Before int: a tensor of one integer has an __index__, and would pass for an address.
    refuse_host_array(parameter.name, value)
    if isinstance(value, (bytes, bytearray, memoryview, TensorMap)):
        data = value.to_bytes() if isinstance(value, TensorMap) else bytes(value)
        _expect_size(parameter, len(data), f"the {type(value).__name__} that was given")
        return data
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{parameter.name} must be an Array, a number, a numpy scalar, bytes, a tensor map or "
            f"None, got {type(value).__name__}"
        ) from None
    return _pack_int(parameter, number)


def _pack_int(parameter: Variable, number: int) -> bytes:
    size = parameter.size
    if size not in (1, 2, 4, 8):
        raise ValueError(
            f"{parameter.name} has {size} bytes, which no int fills (1, 2, 4 or 8): pass bytes"
        )
    _expect_kind(parameter, False, f"the int {number}")
    # nvcc writes .u32 for int as well: what either reading can hold is taken.
    low, high = -(1 << (8 * size - 1)), (1 << 8 * size) - 1
    if not low <= number <= high:
        raise ValueError(
            f"{parameter.name} must be in [{low}, {high}] to fit its {size} bytes, got {number}"
        )
    return (number & high).to_bytes(size, sys.byteorder)


def _pack_float(parameter: Variable, number: float) -> bytes:
    size = parameter.size
    if size not in (4, 8):
        raise ValueError(
            f"{parameter.name} has {size} bytes, and a Python float goes into 4 or 8: pass a numpy "
            "scalar of the parameter's type"
        )
    _expect_kind(parameter, True, f"the float {number!r}")
    try:
        return struct.pack("=f" if size == 4 else "=d", number)
    except OverflowError:
        raise ValueError(
            f"{parameter.name} must be within the range of float32, got {number!r}"
        ) from None


def _expect_size(parameter: Variable, size: int, what: str) -> None:
    if size != parameter.size:
        raise ValueError(f"{parameter.name} has {parameter.size} bytes, {what} has {size}")


def _expect_kind(parameter: Variable, is_float: bool, what: str) -> None:
    """Refuse bits of the other kind; "b" types and structs take either."""
    kind = parameter.type[0]
    if (kind == "f") != is_float and kind in "fsu":
        raise TypeError(f"{parameter.name} is of type .{parameter.type}, got {what}")
