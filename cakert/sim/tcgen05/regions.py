"""Rectangles of tensor memory, and who is accessing them.

Every tcgen05 access covers a set of lanes over a range of columns, so a lane mask of 128 bits and
two column numbers say it all: an overlap test is an integer AND, with no per-cell state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cakert.sim.faults import Where

__all__ = [
    "ALL_LANES",
    "COLUMNS",
    "LANES",
    "Access",
    "Region",
    "column_mask",
    "lane_mask",
    "overlap",
]

LANES = 128
COLUMNS = 512
ALL_LANES = (1 << LANES) - 1


@dataclass(frozen=True, slots=True)
class Region:
    """Some lanes over columns ``start <= column < stop``.

    Attributes
    ----------
    lanes
        Bit i set: lane i belongs to the region.
    """

    lanes: int
    start: int
    stop: int

    def lane_indices(self) -> slice | npt.NDArray[np.int64]:
        """The lanes as an index: a slice where they are adjacent."""
        low = (self.lanes & -self.lanes).bit_length() - 1
        high = self.lanes.bit_length()
        if self.lanes == (1 << high) - (1 << low):
            return slice(low, high)
        return np.array([lane for lane in range(low, high) if self.lanes >> lane & 1])

    def __str__(self) -> str:
        low = (self.lanes & -self.lanes).bit_length() - 1
        return f"lanes {low}..{self.lanes.bit_length() - 1}, columns {self.start}..{self.stop - 1}"


def lane_mask(first: int, count: int) -> int:
    """Mask of ``count`` adjacent lanes from ``first``."""
    return ((1 << count) - 1) << first


def overlap(left: tuple[Region, ...], right: tuple[Region, ...]) -> Region | None:
    """A region that both have in common, or None."""
    for a in left:
        for b in right:
            if a.start < b.stop and b.start < a.stop and a.lanes & b.lanes:
                return Region(a.lanes & b.lanes, max(a.start, b.start), min(a.stop, b.stop))
    return None


def column_mask(regions: tuple[Region, ...]) -> int:
    """512-bit mask of the columns of regions."""
    mask = 0
    for region in regions:
        mask |= (1 << region.stop) - (1 << region.start)
    return mask


@dataclass(eq=False, slots=True)
class Access:
    """One asynchronous tcgen05 operation, from its issue until nobody can race with it.

    A load ends with wait::ld, a store with wait::st, and an operation of the tensor pipe when a
    commit that covers it has arrived on its mbarrier (PTX ISA 9.7.16.6.2, "Asynchronous
    operations").

    Attributes
    ----------
    kind
        "ld", "st", "mma" or "cp".
    warp, lane
        The issuing thread; lane is -1 for ld and st, which a whole warp issues.
    shape
        What must be equal for two MMAs to be pipelined: the accumulator and the shape; () for
        other kinds.
    committed
        The commit that covers it, or None so far.
    done
        Set when the operation has been performed.
    columns
        512-bit mask of the columns that it touches: tells most pairs apart at once.
    """

    kind: str
    where: Where
    warp: int
    lane: int
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()
    shape: tuple[object, ...] = ()
    committed: Where | None = None
    done: bool = False
    columns: int = field(init=False)

    def __post_init__(self) -> None:
        self.columns = column_mask(self.reads) | column_mask(self.writes)

    @property
    def tensor(self) -> bool:
        """Whether the tensor pipe executes it: ordered among its like, ended by a commit."""
        return self.kind in ("mma", "cp")

    def hazard(self, other: Access) -> Region | None:
        """Cells that one of the two writes and the other one touches."""
        if not self.columns & other.columns:
            return None
        return (
            overlap(self.writes, other.writes)
            or overlap(self.writes, other.reads)
            or overlap(self.reads, other.writes)
        )
