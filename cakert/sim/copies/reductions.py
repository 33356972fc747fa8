"""Element operations of ``cp.reduce.async.bulk``, its tensor form, and ``red.async``.

The combinations are those that ptxas 13.0 accepts (PTX ISA 9.7.9.25.4.2). Additions round to
nearest even; ``add.f32`` flushes subnormal inputs and results to zero with their sign, as the ISA
says of reductions in global memory; ``inc`` and ``dec`` wrap at the operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["ELEMENT_TYPES", "OPERATIONS", "Combine", "combination", "combined", "in_shared"]

Array = npt.NDArray[Any]
Combine = Callable[[Array, Array], Array]
"""(old, source) -> new, arrays of the element type of equal shape."""

ELEMENT_TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "b32": np.dtype(np.uint32),
    "u32": np.dtype(np.uint32),
    "s32": np.dtype(np.int32),
    "b64": np.dtype(np.uint64),
    "u64": np.dtype(np.uint64),
    "s64": np.dtype(np.int64),
}
"""PTX type -> numpy dtype of an element."""

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")

_TYPES = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}

_SHARED_TYPES = {
    "add": ("u32", "s32", "u64"),
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32",),
    "or": ("b32",),
    "xor": ("b32",),
}


def _flushed(values: Array) -> Array:
    tiny = np.finfo(np.float32).tiny
    return np.where(np.abs(values) < tiny, np.copysign(np.float32(0), values), values)


def _add_f32(old: Array, source: Array) -> Array:
    with np.errstate(all="ignore"):
        return _flushed(_flushed(old) + _flushed(source))


def _add(old: Array, source: Array) -> Array:
    with np.errstate(all="ignore"):
        total: Array = old + source
    return total


def _float_extreme(pick_first: Callable[[Array, Array], Array]) -> Combine:
    """min/max of floats: a NaN loses against a number, and -0 counts as less than +0 (PTX min)."""

    def combine(old: Array, source: Array) -> Array:
        wide_old, wide = old.astype(np.float32), source.astype(np.float32)
        with np.errstate(all="ignore"):
            first = pick_first(wide_old, wide)
        return np.where((first | np.isnan(wide)) & ~np.isnan(wide_old), old, source)

    return combine


def _is_less(left: Array, right: Array) -> Array:
    both_zero = (left == 0) & (right == 0)
    less: Array = (left < right) | (both_zero & np.signbit(left))
    return less


def _is_greater(left: Array, right: Array) -> Array:
    return _is_less(right, left)


def _inc(old: Array, source: Array) -> Array:
    return np.where(old >= source, 0, old + 1).astype(old.dtype)


def _dec(old: Array, source: Array) -> Array:
    return np.where((old == 0) | (old > source), source, old - 1).astype(old.dtype)


_INTEGER: dict[str, Combine] = {
    "add": _add,
    "min": np.minimum,
    "max": np.maximum,
    "inc": _inc,
    "dec": _dec,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def combination(operation: str, element: str) -> Combine | None:
    """The function of an operation ("add") on a PTX type ("bf16"); None where PTX has none."""
    if element not in _TYPES.get(operation, ()):
        return None
    if not element.startswith(("f", "bf")):
        return _INTEGER[operation]
    if operation == "add":
        return _add_f32 if element == "f32" else _add
    return _float_extreme(_is_less if operation == "min" else _is_greater)


def in_shared(operation: str, element: str) -> bool:
    """Whether the operation exists with a destination in shared memory."""
    return element in _SHARED_TYPES.get(operation, ())


def combined(
    combine: Combine, element: str, old: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Apply ``combine`` to bytes that hold elements of a PTX type."""
    dtype = ELEMENT_TYPES[element]
    new = combine(np.ascontiguousarray(old).view(dtype), np.ascontiguousarray(source).view(dtype))
    return np.ascontiguousarray(new.astype(dtype, copy=False)).view(np.uint8)
