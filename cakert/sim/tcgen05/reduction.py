"""The reduction of tcgen05.ld.red: minimum or maximum over the registers of a thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Reduction"]

_CANONICAL_NAN = np.uint32(0x7FFFFFFF)
_SIGN = np.uint32(0x80000000)


@dataclass(frozen=True, slots=True)
class Reduction:
    """One minimum or maximum.

    Attributes
    ----------
    maximum
        Else the minimum.
    absolute
        Reduce absolute values (f32).
    propagate_nan
        A NaN makes the result NaN; otherwise NaNs are left out (PTX ISA 9.7.3, max and min).
    type
        "f32", "u32" or "s32".
    """

    maximum: bool
    absolute: bool
    propagate_nan: bool
    type: str

    def apply(self, values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Reduce (registers, 32) uint32 over the registers: (32,) uint32."""
        pick = np.max if self.maximum else np.min
        if self.type == "u32":
            return np.asarray(pick(values, axis=0), np.uint32)
        if self.type == "s32":
            signed = np.asarray(pick(values.view(np.int32), axis=0), np.int32)
            return signed.view(np.uint32)
        bits = np.ascontiguousarray(values)
        if self.absolute:
            bits = bits & ~_SIGN
        # As sign-and-magnitude integers floats order themselves, -0 below +0.
        keys = np.where(bits & _SIGN, ~bits, bits | _SIGN)
        nan = (bits & ~_SIGN) > np.uint32(0x7F800000)
        neutral = np.uint32(0) if self.maximum else np.uint32(0xFFFFFFFF)
        best = np.asarray(pick(np.where(nan, neutral, keys), axis=0), np.uint32)
        result = np.where(best & _SIGN, best & ~_SIGN, ~best)
        lost = nan.any(axis=0) if self.propagate_nan else nan.all(axis=0)
        return np.where(lost, _CANONICAL_NAN, result).astype(np.uint32)
