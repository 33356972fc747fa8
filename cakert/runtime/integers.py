"""Integers from callers: numpy's welcome, floats and bools not, out of range a sentence."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

__all__ = ["checked_int", "checked_shape"]

# Largest size_t that no address computation overflows.
MAX_BYTES = 2**63 - 1


def checked_int(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int in [low, high].

    Raises
    ------
    TypeError
        Not an integer; a bool is none.
    ValueError
        Out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be in [{low}, {high}], got {number}")
    return number


def checked_shape(value: Any, itemsize: int, max_ndim: int) -> tuple[int, ...]:
    """Return a shape as a tuple of ints whose array is at most `MAX_BYTES`.

    Parameters
    ----------
    value : int or iterable of int
    itemsize : int
        Bytes of an element.
    max_ndim : int

    Raises
    ------
    TypeError, ValueError
        As `checked_int`; too many axes; too many bytes.
    """
    axes = tuple(value) if isinstance(value, Iterable) else (value,)
    shape = tuple(
        checked_int(f"an extent of shape {axes}", extent, 0, MAX_BYTES) for extent in axes
    )
    if len(shape) > max_ndim:
        raise ValueError(f"shape must have at most {max_ndim} extents, got {shape}")
    nbytes = itemsize
    for extent in shape:
        nbytes *= extent
    if nbytes > MAX_BYTES:
        raise ValueError(f"shape must give at most {MAX_BYTES} bytes, got {nbytes} for {shape}")
    return shape
