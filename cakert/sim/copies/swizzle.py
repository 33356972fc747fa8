"""Where a swizzled tensor copy puts each byte of shared memory (PTX ISA 5.5.7, "Swizzling Modes").

Every mode exchanges chunks inside a line of 128 bytes by an XOR of address bits with the number of
the line: a function of the absolute shared address, so a destination away from the natural
boundary starts inside the pattern ("base offset" of the ISA). Each XOR is its own inverse.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["SPAN", "SWIZZLES", "granule", "swizzle_address"]

SWIZZLES = (
    "none",
    "32B",
    "64B",
    "128B",
    "128B_ATOM_32B",
    "128B_ATOM_32B_FLIP_8B",
    "128B_ATOM_64B",
)
"""Names in the order of CUtensorMapSwizzle (cuda.h)."""

SPAN = {
    "none": 0,
    "32B": 32,
    "64B": 64,
    "128B": 128,
    "128B_ATOM_32B": 128,
    "128B_ATOM_32B_FLIP_8B": 128,
    "128B_ATOM_64B": 128,
}
"""Bytes that a row of the box may have at most, or 0 for no limit."""

# (address bits that are changed, as the shift of the line number; mask of the line number)
_XOR = {
    "none": (),
    "32B": ((4, 1),),
    "64B": ((4, 3),),
    "128B": ((4, 7),),
    "128B_ATOM_32B": ((5, 3),),
    # The ISA: as 32-byte atoms, and the halves of each 16 bytes change places "at every alternate
    # shared memory line"; the odd lines, as those the first of which is not swizzled either.
    "128B_ATOM_32B_FLIP_8B": ((5, 3), (3, 1)),
    "128B_ATOM_64B": ((6, 1),),
}

_Address = TypeVar("_Address", int, npt.NDArray[np.int64])


def swizzle_address(address: _Address, mode: str) -> _Address:
    """Physical shared address of the byte that an unswizzled box would have at ``address``.

    Parameters
    ----------
    address
        Shared addresses in bytes (not offsets from the destination).
    mode
        One of `SWIZZLES`.
    """
    line = address >> 7
    for shift, mask in _XOR[mode]:
        address = address ^ ((line & mask) << shift)
    return address


def granule(mode: str) -> int:
    """Bytes that stay together, in order, under a mode: the largest unit that may be moved."""
    return 8 if mode.endswith("FLIP_8B") else 16
