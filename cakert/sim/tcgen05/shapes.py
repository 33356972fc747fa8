"""Register maps of tcgen05.ld and tcgen05.st (PTX ISA 9.7.16.2.3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cakert.sim.tcgen05.regions import Region, lane_mask

__all__ = ["SHAPES", "Shape", "shape"]

SHAPES: dict[str, tuple[int, int, int, int]] = {
    "32x32b": (32, 128, 1, 1),
    "16x64b": (16, 128, 1, 2),
    "16x128b": (16, 64, 2, 4),
    "16x256b": (16, 32, 4, 8),
    "16x32bx2": (16, 128, 1, 1),
}
"""Shape -> lanes, largest count, registers per count, columns per count."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Where the registers of a warp lie, relative to the address.

    Attributes
    ----------
    lane, column
        (registers, 32) int64: of register r of thread t. With packing the column of the low half;
        the high half lies in the next column.
    lanes
        How many lanes are touched.
    spans
        Ranges of columns that are touched.
    packed
        Two columns of 16 bits a register.
    direct
        True for .32x32b without packing: register r is column r, thread t is lane t.
    """

    lane: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    lanes: int
    spans: tuple[tuple[int, int], ...]
    packed: bool
    direct: bool

    @property
    def registers(self) -> int:
        """Registers of each thread."""
        return len(self.lane)

    def regions(self, lane: int, column: int) -> tuple[Region, ...]:
        """Cells that an access at an address covers."""
        mask = lane_mask(lane, self.lanes)
        return tuple(Region(mask, column + start, column + stop) for start, stop in self.spans)

    def load(self, cells: npt.NDArray[np.uint32], lane: int, column: int) -> npt.NDArray[np.uint32]:
        """(registers, 32) uint32 from the cells at an address."""
        if self.direct:
            return cells[lane : lane + 32, column : column + self.registers].T
        low = cells[self.lane + lane, self.column + column]
        if not self.packed:
            return low
        high = cells[self.lane + lane, self.column + column + 1]
        return (low & np.uint32(0xFFFF)) | (high << np.uint32(16))

    def store(
        self,
        cells: npt.NDArray[np.uint32],
        lane: int,
        column: int,
        values: npt.NDArray[np.uint32],
    ) -> None:
        """Write (registers, 32) uint32 to the cells at an address."""
        if self.direct:
            cells[lane : lane + 32, column : column + self.registers] = values.T
        elif not self.packed:
            cells[self.lane + lane, self.column + column] = values
        else:
            cells[self.lane + lane, self.column + column] = values & np.uint32(0xFFFF)
            cells[self.lane + lane, self.column + column + 1] = values >> np.uint32(16)


@lru_cache(maxsize=128)
def shape(name: str, count: int, packed: bool, half_offset: int) -> Shape:
    """The map of ``.name.xcount``, with packing, and the half offset of .16x32bx2 in columns."""
    lanes, _, per_count, columns_per_count = SHAPES[name]
    registers = per_count * count
    width = 2 if packed else 1
    thread = np.arange(32)[None, :]
    register = np.arange(registers)[:, None]
    zero = np.zeros((registers, 32), np.int64)
    if name == "32x32b":
        lane, column = thread + zero, register + zero
    elif name == "16x64b":
        lane = thread // 4 + 8 * (thread & 1) + zero
        column = 2 * register + (thread >> 1 & 1)
    elif name == "16x128b":
        lane = thread // 4 + 8 * (register & 1)
        column = 4 * (register >> 1) + (thread & 3)
    elif name == "16x256b":
        lane = thread // 4 + 8 * (register >> 1 & 1)
        column = 8 * (register >> 2) + 2 * (thread & 3) + (register & 1)
    else:
        lane, column = thread % 16 + zero, register + zero
    column = column * width
    extent = columns_per_count * count * width
    spans: tuple[tuple[int, int], ...] = ((0, extent),)
    if name == "16x32bx2":
        column = column + thread // 16 * half_offset
        spans = ((0, extent), (half_offset, half_offset + extent))
    direct = name == "32x32b" and not packed
    return Shape(lane, column, lanes, spans, packed, direct)
