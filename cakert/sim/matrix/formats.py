"""What the bits of matrix elements mean, and how sums are rounded.

Products of elements are exact in float64, and so are their sums for all but extreme spreads of
exponents: a tensor core's accumulation order and internal rounding are unspecified (PTX ISA
9.7.15.5.2), so the simulator rounds once, at the end, to nearest even.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["CANONICAL_NAN_F16", "CANONICAL_NAN_F32", "ELEMENT_BYTES", "TABLES", "decode", "encode"]

ELEMENT_BYTES = {
    "f16": 2,
    "bf16": 2,
    "tf32": 4,
    "e4m3": 1,
    "e5m2": 1,
    "s8": 1,
    "u8": 1,
}

# NVIDIA's arithmetic returns these for every NaN (PTX ISA 9.7.3: "canonical NaN").
CANONICAL_NAN_F32 = 0x7FFFFFFF
CANONICAL_NAN_F16 = 0x7FFF

# tf32 has 10 mantissa bits; the tensor core does not look at the 13 below.
_TF32_MASK = np.uint32(0xFFFFE000)

_ALL_BYTES = np.arange(256, dtype=np.uint8)

TABLES: dict[str, NDArray[np.float64]] = {
    "e4m3": _ALL_BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float64),
    "e5m2": _ALL_BYTES.view(ml_dtypes.float8_e5m2).astype(np.float64),
    "s8": _ALL_BYTES.view(np.int8).astype(np.float64),
    "u8": _ALL_BYTES.astype(np.float64),
}
"""The value of each byte of the 8-bit types."""


def decode(raw: NDArray[np.uint8], element: str) -> NDArray[np.float64]:
    """Convert elements to float64, exactly.

    Parameters
    ----------
    raw
        (..., n * bytes) uint8, C-contiguous, little-endian.
    element
        A key of `ELEMENT_BYTES`.

    Returns
    -------
    (..., n) float64
    """
    if element == "bf16":
        wide = raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).astype(np.float64)
    if element == "f16":
        return raw.view(np.float16).astype(np.float64)
    if element == "tf32":
        return (raw.view(np.uint32) & _TF32_MASK).view(np.float32).astype(np.float64)
    return TABLES[element][raw]


def encode(values: NDArray[np.float64], element: str) -> NDArray[np.uint32] | NDArray[np.uint16]:
    """Round to "f32" (uint32 bits) or "f16" (uint16 bits), to nearest even, NaN made canonical.

    Overflow gives an infinity. Callers silence numpy's warnings of it.
    """
    if element == "f32":
        bits = values.astype(np.float32).view(np.uint32)
        nan = np.isnan(values)
        if nan.any():
            bits[nan] = CANONICAL_NAN_F32
        return bits
    if element == "f16":
        halves = values.astype(np.float16).view(np.uint16)
        nan = np.isnan(values)
        if nan.any():
            halves[nan] = CANONICAL_NAN_F16
        return halves
    raise ValueError(f"no encoding of {element!r}: expected f32 or f16")
