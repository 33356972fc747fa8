"""Masks of lanes as numbers, lists and arrays."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

__all__ = ["first_lane", "lanes_of", "mask_array", "mask_of"]


def first_lane(mask: int) -> int:
    """Lowest lane of a non-empty mask."""
    if not mask:
        raise ValueError("an empty mask has no first lane")
    return (mask & -mask).bit_length() - 1


@functools.lru_cache(maxsize=4096)
def _lanes(mask: int) -> tuple[int, ...]:
    return tuple(lane for lane in range(32) if mask >> lane & 1)


def lanes_of(mask: int) -> list[int]:
    """Lanes of a mask, ascending."""
    return list(_lanes(mask))


@functools.lru_cache(maxsize=4096)
def mask_array(mask: int) -> npt.NDArray[np.bool_]:
    """The mask as 32 booleans; read-only."""
    array: npt.NDArray[np.bool_] = (mask >> np.arange(32)) & 1 == 1
    array.flags.writeable = False
    return array


def mask_of(array: npt.NDArray[np.bool_]) -> int:
    """The lanes in which an array of 32 booleans holds, as a mask."""
    packed = np.packbits(array, bitorder="little").view(np.uint32)
    return int(packed[0])
