"""Shared-memory matrix descriptors of wgmma and tcgen05: decoding, checks, element addresses.

Sources: PTX ISA 9.7.15.5.1.2.2 (wgmma) and 9.7.16.4.1 (tcgen05) for the fields, the canonical
layouts of 9.7.15.5.1.2.1.3 for the addresses. The swizzle is an XOR on absolute shared-memory
address bits, the same that TMA applies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cakert.sim.faults import Where

__all__ = ["Major", "SharedDescriptor", "check", "decode"]

Major = Literal["k", "mn"]

# Code of the swizzle field -> (log2 of the 16-byte chunks of a row, atoms of 32 bytes).
_HOPPER_SWIZZLES = {0: (0, False), 1: (3, False), 2: (2, False), 3: (1, False)}
_BLACKWELL_SWIZZLES = {
    0: (0, False),
    1: (3, True),
    2: (3, False),
    4: (2, False),
    6: (1, False),
}
_CACHE_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class SharedDescriptor:
    """Where an operand tile lies in shared memory.

    Attributes
    ----------
    start
        Shared address of the first element, a multiple of 16.
    lbo, sbo
        Leading and stride dimension byte offsets.
    swizzle_bits
        0 none, 1 32B, 2 64B, 3 128B.
    base_offset
        As in the descriptor; `decode` refuses all but 0.
    atom_32b
        The 128B mode that permutes chunks of 32 bytes instead of 16 (tcgen05, MN-major 32-bit
        elements).
    """

    start: int
    lbo: int
    sbo: int
    swizzle_bits: int
    base_offset: int = 0
    atom_32b: bool = False

    @property
    def width(self) -> int:
        """Bytes of a swizzle row; 16 without a swizzle."""
        return 16 << self.swizzle_bits

    @property
    def pattern(self) -> int:
        """Bytes after which the swizzle pattern repeats; the tile starts at a multiple of it."""
        if self.swizzle_bits == 0:
            return 16
        return self.width * (4 if self.atom_32b else 8)

    def addresses(
        self, rows_mn: int, k: int, element_bytes: int, major: Major
    ) -> NDArray[np.int64]:
        """Byte address of each element of one instruction's operand.

        Parameters
        ----------
        rows_mn
            Rows of A or columns of B.
        k
            Depth of the instruction (16 for 16-bit types).
        element_bytes
            1, 2 or 4.
        major
            "k": K-major, "mn": MN-major ("transposed").

        Returns
        -------
        (rows_mn, k) int64, read-only
        """
        return _byte_addresses(self, rows_mn, k, element_bytes, major)[..., 0]

    def byte_addresses(
        self, rows_mn: int, k: int, element_bytes: int, major: Major
    ) -> NDArray[np.int64]:
        """Address of each byte: (rows_mn, k, element_bytes) int64, C-contiguous, read-only."""
        return _byte_addresses(self, rows_mn, k, element_bytes, major)

    def ranges(
        self,
        rows_mn: int,
        k: int,
        element_bytes: int,
        major: Major,
        rows: tuple[int, int] | None = None,
    ) -> tuple[tuple[int, int], ...]:
        """The bytes that the instruction reads, as (start, nbytes) ranges in ascending order.

        `rows` = (first, end) restricts them to a part of the rows.
        """
        return _ranges(self, rows_mn, k, element_bytes, major, rows or (0, rows_mn))


@lru_cache(maxsize=_CACHE_ENTRIES)
def _byte_addresses(
    descriptor: SharedDescriptor, rows_mn: int, k: int, element_bytes: int, major: Major
) -> NDArray[np.int64]:
    width = descriptor.width
    lbo, sbo = descriptor.lbo, descriptor.sbo
    mn = np.arange(rows_mn, dtype=np.int64)[:, None]
    depth = np.arange(k, dtype=np.int64)[None, :]
    if major == "k":
        offset = mn % 8 * width + mn // 8 * sbo
        along = depth * element_bytes
        if descriptor.swizzle_bits == 0:
            offset = offset + along // 16 * lbo + along % 16
        else:
            offset = offset + along
    else:
        # A row of the pattern runs along MN; depth 8 (4 with 32-byte atoms) makes a pattern.
        rows_of_pattern = 4 if descriptor.atom_32b else 8
        per_row = width // element_bytes
        group, inside = mn // per_row, mn % per_row
        step, line = depth // rows_of_pattern, depth % rows_of_pattern
        # PTX ISA: without a swizzle the two strides change places.
        group_stride, step_stride = (sbo, lbo) if descriptor.swizzle_bits == 0 else (lbo, sbo)
        offset = inside * element_bytes + group * group_stride + line * width + step * step_stride
    linear = descriptor.start + offset
    if descriptor.atom_32b:
        element = linear ^ (((linear >> 7) & 3) << 5)
    else:
        element = linear ^ (((linear >> 7) & ((1 << descriptor.swizzle_bits) - 1)) << 4)
    result = element[..., None] + np.arange(element_bytes, dtype=np.int64)
    result.flags.writeable = False
    return result


@lru_cache(maxsize=_CACHE_ENTRIES)
def _ranges(
    descriptor: SharedDescriptor,
    rows_mn: int,
    k: int,
    element_bytes: int,
    major: Major,
    rows: tuple[int, int],
) -> tuple[tuple[int, int], ...]:
    addresses = _byte_addresses(descriptor, rows_mn, k, element_bytes, major)
    used = np.unique(addresses[rows[0] : rows[1]])
    breaks = np.flatnonzero(np.diff(used) != 1) + 1
    starts = used[np.concatenate(([0], breaks))]
    ends = used[np.concatenate((breaks - 1, [used.size - 1]))] + 1
    return tuple((int(a), int(b - a)) for a, b in zip(starts, ends, strict=True))


def decode(
    word: int, *, blackwell: bool, where: Where | Callable[[], Where], launch: Any
) -> SharedDescriptor:
    """Decode a descriptor.

    Parameters
    ----------
    word
        The 64-bit operand.
    blackwell
        True for tcgen05, False for wgmma: their swizzle fields and constants differ.
    where
        The instruction, or a function that returns it.
    launch
        Raises the faults.

    Raises
    ------
    Fault
        "descriptor-invalid": a reserved bit, the fixed constant, the swizzle code, a base offset,
        or a tile that does not start on the natural boundary of its swizzle.
    """
    descriptor, problems = _parse(word, blackwell)
    for problem in problems:
        _refuse(word, problem, where, launch)
    return descriptor


def check(
    descriptor: SharedDescriptor,
    rows_mn: int,
    k: int,
    element_bytes: int,
    major: Major,
    *,
    size: int,
    where: Where | Callable[[], Where],
    launch: Any,
) -> None:
    """Check a decoded descriptor against the operand that the instruction reads through it.

    Parameters
    ----------
    size
        End of the CTA's shared window.

    Raises
    ------
    Fault
        "descriptor-invalid": the operand leaves its swizzle row or the CTA's shared memory.
    """
    problem = _operand_problem(descriptor, rows_mn, k, element_bytes, major, size)
    if problem is not None:
        _refuse(None, problem, where, launch)


def _refuse(
    word: int | None, problem: str, where: Where | Callable[[], Where], launch: Any
) -> None:
    place = where() if callable(where) else where
    text = f"Matrix descriptor {word:#018x}: " if word is not None else "Matrix descriptor: "
    launch.fault(
        "descriptor-invalid",
        text + problem,
        where=place,
        advice="Build it from the tile's shared address, strides and swizzle (PTX ISA, "
        "descriptors of matrices in shared memory).",
    )


@lru_cache(maxsize=_CACHE_ENTRIES)
def _parse(word: int, blackwell: bool) -> tuple[SharedDescriptor, tuple[str, ...]]:
    problems = []

    def bits(first: int, last: int) -> int:
        return (word >> first) & ((1 << (last - first + 1)) - 1)

    reserved = [(14, 15), (30, 31)]
    reserved += [(53, 60)] if blackwell else [(46, 48), (52, 61)]
    problems += [
        f"reserved bits {first}-{last} are {bits(first, last):#x}, expected 0 (a carry out of the "
        "field below, or fields of another architecture)."
        for first, last in reserved
        if bits(first, last)
    ]
    if blackwell and bits(46, 48) != 0b001:
        problems.append(f"bits 46-48 are {bits(46, 48):#05b}, expected the constant 0b001.")
    if blackwell and bits(52, 52):
        problems.append("bit 52 (absolute leading-dimension address) belongs to K = 48 bytes only.")
    code = bits(61, 63) if blackwell else bits(62, 63)
    swizzles = _BLACKWELL_SWIZZLES if blackwell else _HOPPER_SWIZZLES
    if code not in swizzles:
        problems.append(f"swizzle code {code} in bits 61-63, expected one of {sorted(swizzles)}.")
    swizzle_bits, atom_32b = swizzles.get(code, (0, False))
    descriptor = SharedDescriptor(
        start=bits(0, 13) << 4,
        lbo=bits(16, 29) << 4,
        sbo=bits(32, 45) << 4,
        swizzle_bits=swizzle_bits,
        base_offset=bits(49, 51),
        atom_32b=atom_32b,
    )
    # An advance along the row leaves the row where it is: only the row's start must be aligned.
    row_start = descriptor.start - descriptor.start % descriptor.width
    misalignment = row_start % descriptor.pattern
    if descriptor.base_offset:
        problems.append(
            f"base offset (bits 49-51) is {descriptor.base_offset}; only 0 is modelled: start the "
            f"tile at a multiple of {descriptor.pattern} bytes."
        )
    elif misalignment:
        problems.append(
            f"start address {descriptor.start:#x} lies in row {misalignment // descriptor.width} "
            f"of its {descriptor.width}-byte swizzle pattern and the base offset is 0: the tile "
            f"must start at a multiple of {descriptor.pattern} bytes."
        )
    return descriptor, tuple(problems)


@lru_cache(maxsize=_CACHE_ENTRIES)
def _operand_problem(
    descriptor: SharedDescriptor,
    rows_mn: int,
    k: int,
    element_bytes: int,
    major: Major,
    size: int,
) -> str | None:
    if descriptor.atom_32b and (element_bytes != 4 or major != "mn"):
        return (
            "the 128B swizzle with 32-byte atoms is for MN-major 32-bit elements, not for "
            f"{major.upper()}-major ones of {8 * element_bytes} bits."
        )
    within = descriptor.start % descriptor.width
    if major == "k" and descriptor.swizzle_bits and within + k * element_bytes > descriptor.width:
        return (
            f"the K extent of {k * element_bytes} bytes from byte {within} of a swizzle row leaves "
            f"that row of {descriptor.width} bytes."
        )
    if (
        major == "mn"
        and descriptor.swizzle_bits
        and within
        and within + rows_mn * element_bytes > descriptor.width
    ):
        return (
            f"an MN-major operand of {rows_mn * element_bytes} bytes along MN starts at byte "
            f"{within} of a swizzle row of {descriptor.width} bytes and leaves it."
        )
    addresses = _byte_addresses(descriptor, rows_mn, k, element_bytes, major)
    low, high = int(addresses.min()), int(addresses.max()) + 1
    if high > size:
        return (
            f"the operand of {rows_mn} x {k} elements spans [{low:#x}, {high:#x}), beyond the end "
            f"of the CTA's shared memory at {size:#x}."
        )
    return None
