"""Which thread holds which element of a matrix operand.

All maps are for one warp: g = lane / 4 and c = lane % 4 are the "groupID" and "threadID_in_group"
of the PTX ISA. Registers of 32 bits hold `per_register` elements, the first in the low bits: 1 of
tf32, 2 of a 16-bit type, 4 of an 8-bit type. With that the figures of the ISA for every type are
one formula (PTX ISA 9.7.14.5.4 to .8 for mma.m16n8k*, 9.7.15.5.1.1 for wgmma, whose warp w holds
rows 16w..16w+15 in the layout of mma.m16n8k*).

Arguments may be integers or integer arrays that broadcast.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "a_fragment",
    "a_matrix",
    "accumulator_fragment",
    "accumulator_matrix",
    "accumulator_registers",
    "b_fragment",
    "matrix_fragment",
]

Index = TypeVar("Index", int, NDArray[np.int64])
Number = TypeVar("Number", bound=np.generic)


def a_fragment(
    lane: Index, register: Index, element: Index, per_register: int
) -> tuple[Index, Index]:
    """Place of an element of A (16 x K, row-major in registers).

    Parameters
    ----------
    lane
        0..31.
    register
        0..3, or 0..1 in the shapes with half the K (m16n8k8 of 16-bit types, m16n8k4 of tf32).
    element
        Index in the register, low bits first.
    per_register
        1, 2 or 4 elements a register.

    Returns
    -------
    (row, k)
    """
    group, member = lane // 4, lane % 4
    row = group + 8 * (register % 2)
    k = per_register * member + element + 4 * per_register * (register // 2)
    return row, k


def b_fragment(
    lane: Index, register: Index, element: Index, per_register: int
) -> tuple[Index, Index]:
    """Place of an element of B (K x 8, column-major in registers); arguments as in `a_fragment`.

    Returns
    -------
    (k, column)
    """
    group, member = lane // 4, lane % 4
    return per_register * member + element + 4 * per_register * register, group


def accumulator_fragment(lane: Index, index: Index) -> tuple[Index, Index]:
    """Place of accumulator element `index` of a lane, for C and D of 16 x N.

    One element is one register of f32 or s32; of f16, elements 2i and 2i+1 are the low and high
    halves of register i.

    Returns
    -------
    (row, column)
    """
    group, member = lane // 4, lane % 4
    return group + 8 * ((index // 2) % 2), 8 * (index // 4) + 2 * member + index % 2


def matrix_fragment(lane: Index, half: Index, *, trans: bool) -> tuple[Index, Index]:
    """Place of a 16-bit element of an 8 x 8 matrix of ldmatrix, stmatrix and movmatrix.

    Parameters
    ----------
    half
        0 for the low, 1 for the high 16 bits of the lane's register.
    trans
        The instruction has ``.trans``.

    Returns
    -------
    (row, column)
        Row: the 16 bytes that one address names (PTX ISA 9.7.14.5.15).
    """
    group, pair = lane // 4, 2 * (lane % 4) + half
    return (pair, group) if trans else (group, pair)


@lru_cache(maxsize=16)
def _a_places(registers: int, per_register: int) -> NDArray[np.intp]:
    """Where element (row, k) lies in the gathered registers, as flat indices."""
    register, lane, element = np.meshgrid(
        np.arange(registers), np.arange(32), np.arange(per_register), indexing="ij"
    )
    row, k = a_fragment(lane, register, element, per_register)
    places = np.empty((16, 2 * per_register * registers), np.intp)
    places[row, k] = np.arange(register.size).reshape(register.shape)
    places.flags.writeable = False
    return places


def a_matrix(elements: NDArray[Number]) -> NDArray[Number]:
    """Arrange the elements of A's registers as a matrix.

    Parameters
    ----------
    elements
        (registers, 32, per_register): the registers' elements, low bits first.

    Returns
    -------
    (16, K) with K = 2 * per_register * registers
    """
    registers, _, per_register = elements.shape
    return elements.reshape(-1)[_a_places(registers, per_register)]


def accumulator_matrix(elements: NDArray[Number]) -> NDArray[Number]:
    """Arrange accumulators (N/2, 32) as a matrix (16, N); inverse of `accumulator_registers`."""
    columns = 2 * elements.shape[0]
    # axes: column block, row half, column parity, group, member
    parts = elements.reshape(columns // 8, 2, 2, 8, 4)
    return parts.transpose(1, 3, 0, 4, 2).reshape(16, columns)


def accumulator_registers(matrix: NDArray[Number]) -> NDArray[Number]:
    """Arrange a matrix (16, N) as accumulators (N/2, 32) by `accumulator_fragment`."""
    columns = matrix.shape[1]
    # axes: row half, group, column block, member, column parity
    parts = matrix.reshape(2, 8, columns // 8, 4, 2)
    return parts.transpose(2, 0, 4, 1, 3).reshape(columns // 2, 32)
