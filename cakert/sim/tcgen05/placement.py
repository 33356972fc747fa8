"""Where A and D of a tcgen05.mma lie in tensor memory (PTX ISA 9.7.16.10.5).

Layouts D (M = 128), F (M = 64), E (M = 64, .ws) and G (M = 32, .ws). With .ws and a small M the
datapath works in two halves or four quarters, *banks*: each multiplies the rows of A in its own
lanes with its own part of the columns of B.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cakert.sim.tcgen05.regions import lane_mask

__all__ = ["Bank", "Placement", "place"]


@dataclass(frozen=True, slots=True, eq=False)
class Bank:
    """One part of the datapath.

    Attributes
    ----------
    lanes
        Index of the lanes of rows 0..M-1, of A and of D.
    lane_numbers
        (M,) the same, spelled out.
    n_start, n_stop
        Columns of B that it multiplies; D column n stands in tensor-memory column n - n_start.
    """

    lanes: slice | npt.NDArray[np.int64]
    lane_numbers: npt.NDArray[np.int64]
    n_start: int
    n_stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """All banks of an MMA.

    Attributes
    ----------
    lanes
        128-bit mask of the lanes in use.
    columns
        Columns of tensor memory that D takes.
    """

    banks: tuple[Bank, ...]
    lanes: int
    columns: int


@lru_cache(maxsize=64)
def place(m: int, n: int, ws: bool, base_lane: int) -> Placement | None:
    """The placement of an m x n accumulator at a lane; None where that lane is not allowed.

    M = 64 without .ws may start at lane 0 or 16 (two accumulators then interleave); every other
    form starts at lane 0.
    """
    if m == 64 and not ws:
        if base_lane not in (0, 16):
            return None
        rows = np.arange(64)
        lanes = rows % 16 + 32 * (rows // 16) + base_lane
        mask = sum(lane_mask(32 * quarter + base_lane, 16) for quarter in range(4))
        return Placement((Bank(lanes, lanes, 0, n),), mask, n)
    if base_lane != 0:
        return None
    count = 128 // m
    width = n // count
    banks = tuple(
        Bank(
            slice(m * bank, m * (bank + 1)),
            np.arange(m * bank, m * (bank + 1)),
            width * bank,
            width * (bank + 1),
        )
        for bank in range(count)
    )
    return Placement(banks, lane_mask(0, 128), width)
