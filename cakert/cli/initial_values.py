"""Argument specifications -> values: arrays from a seed or a file, scalars, structs.

The values of an argument depend on the seed and its number, not on the other arguments.
"""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from cakert.cli.argument_specs import (
    DTYPES,
    FLOATS,
    MAX_STRUCT_BYTES,
    ArraySpec,
    BytesSpec,
    FileRef,
    ScalarSpec,
    rounded,
)
from cakert.cli.numpy_files import open_array

Array = npt.NDArray[Any]

# Bits of a significand: uniform numbers are multiples of 2 ** -bits, so that none rounds up to 1.
_SIGNIFICAND = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_PART = 1 << 20
"""Floats drawn at a time, in 64 bits each: no array needs to fit into memory five times."""


def make_array(spec: ArraySpec, seed: int, number: int) -> Array:
    """The initial values of an array; `number` is its place among the arguments.

    Raises
    ------
    OSError, ValueError
        A file that cannot be read, or that holds another shape or type; numbers that the type
        cannot count up to.
    """
    dtype, initial = DTYPES[spec.dtype], spec.initial
    rng = np.random.default_rng([seed, number])
    if isinstance(initial, FileRef):
        return _from_file(spec, initial)
    if isinstance(initial, tuple):
        return _uniform(spec, rng, *initial)
    if initial == "iota":
        return _iota(spec)
    if initial == "rand":
        if spec.dtype in FLOATS:
            return _uniform(spec, rng, 0.0, 1.0)
        raw = np.frombuffer(rng.bytes(spec.nbytes), np.uint8)
        return (raw & 1 if spec.dtype == "bool" else raw).view(dtype).reshape(spec.shape)
    if initial == "randn":
        wide = np.float64 if spec.dtype == "f64" else np.float32
        return rng.standard_normal(spec.shape, dtype=wide).astype(dtype)
    fill = {"zeros": 0, "ones": 1, "nan": math.nan}.get(str(initial), initial)
    return np.full(spec.shape, fill, dtype)


def _uniform(spec: ArraySpec, rng: np.random.Generator, low: Any, high: Any) -> Array:
    dtype = DTYPES[spec.dtype]
    drawn: Array
    if spec.dtype not in FLOATS:
        drawn = rng.integers(low, high, spec.shape, dtype=dtype)
        return drawn
    bits = _SIGNIFICAND[spec.dtype]
    drawn = np.empty(spec.shape, dtype)
    flat = drawn.reshape(-1)
    for at in range(0, flat.size, _PART):
        part = flat[at : at + _PART]
        steps = rng.integers(0, 1 << bits, part.size, dtype=np.uint64)
        part[:] = (low + (high - low) * (steps / 2.0**bits)).astype(dtype)
    return drawn


def _iota(spec: ArraySpec) -> Array:
    count = math.prod(spec.shape)
    if spec.dtype in FLOATS:
        fits = math.isfinite(rounded(spec.dtype, count - 1))
    else:
        bits = 8 * DTYPES[spec.dtype].itemsize - (spec.dtype[0] == "i")
        fits = count <= (2 if spec.dtype == "bool" else 1 << bits)
    if not fits:
        raise ValueError(f"{spec}: {spec.dtype} cannot hold {count - 1}, the last number of iota")
    values = np.arange(count, dtype=np.float64 if spec.dtype in FLOATS else np.int64)
    return values.astype(DTYPES[spec.dtype]).reshape(spec.shape)


def _from_file(spec: ArraySpec, source: FileRef) -> Array:
    stored = open_array(Path(source.path), source.member)
    expected = (spec.dtype, spec.shape)
    if (stored.dtype, stored.shape) != expected:
        shape = "x".join(map(str, stored.shape))
        raise ValueError(
            f"{source}: expected {spec.type_text}, the file holds {stored.dtype}[{shape}]"
        )
    return stored.read()


def make_scalar(spec: ScalarSpec) -> np.generic:
    """A number as a scalar of its type; floats are rounded to it."""
    value: Array = np.array(spec.value, np.float64 if spec.dtype in FLOATS else None)
    return cast(np.generic, value.astype(DTYPES[spec.dtype])[()])


def make_bytes(spec: BytesSpec) -> bytes:
    """The bytes of a struct.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, is empty, or larger than any kernel's parameters.
    """
    if isinstance(spec.source, bytes):
        return spec.source
    path = Path(spec.source.path)
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError(f"{path}: not a regular file")  # a device or a pipe may never end
    if not 1 <= about.st_size <= MAX_STRUCT_BYTES:
        raise ValueError(
            f"{path}: a struct must have 1 to {MAX_STRUCT_BYTES} bytes, the file has "
            f"{about.st_size}"
        )
    return path.read_bytes()
