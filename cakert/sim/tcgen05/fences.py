"""tcgen05.fence: which hand-overs between threads lack one.

The ISA asks for ``fence::before_thread_sync`` after wait::ld / wait::st on the giving side and for
``fence::after_thread_sync`` on the taking side (PTX ISA 9.7.16.6.4). The kernels of
flashinfer 0.7 omit some and run right, so a missing one is a note, never a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.tcgen05.regions import COLUMNS, Access, Region, column_mask

if TYPE_CHECKING:
    from cakert.sim.faults import Where
    from cakert.sim.machine.launch import Launch

__all__ = ["Fences"]


class Fences:
    """A clock of hand-overs: columns remember when, and warps when they fenced last.

    Lanes are left out: kernels hand over columns, and a note needs no more.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._clock = 0
        self._after: dict[int, int] = {}
        self._completed = np.zeros(COLUMNS, np.int64)
        self._unfenced: dict[int, int] = {}
        self._handed = np.zeros(COLUMNS, np.int64)

    def before_thread_sync(self, warp: int) -> None:
        """``tcgen05.fence::before_thread_sync`` of a warp."""
        self._unfenced.pop(warp, None)

    def after_thread_sync(self, warp: int) -> None:
        """``tcgen05.fence::after_thread_sync`` of a warp."""
        self._clock += 1
        self._after[warp] = self._clock

    def completed(self, accesses: list[Access]) -> None:
        """A commit arrived: what these operations wrote is there for others."""
        self._clock += 1
        for access in accesses:
            for region in access.writes:
                self._completed[region.start : region.stop] = self._clock

    def waited(self, warp: int, accesses: list[Access]) -> None:
        """wait::ld or wait::st: the columns are the next one's."""
        self._clock += 1
        for access in accesses:
            regions = access.reads + access.writes
            self._unfenced[warp] = self._unfenced.get(warp, 0) | column_mask(regions)
            for region in regions:
                self._handed[region.start : region.stop] = self._clock

    def check_load(self, warp: int, regions: tuple[Region, ...], where: Where) -> None:
        """Note a load of what an MMA wrote, with no fence since its commit."""
        latest = max(int(self._completed[one.start : one.stop].max()) for one in regions)
        if latest > self._after.get(warp, 0):
            self._launch.note(
                "tcgen05-missing-fence",
                where,
                "reads what an MMA wrote without tcgen05.fence::after_thread_sync since its "
                "commit; fence after the wait for its mbarrier.",
            )

    def check_tensor(self, warp: int, regions: tuple[Region, ...], where: Where) -> None:
        """Note an MMA on columns that other warps loaded or stored, with a fence missing."""
        mask = column_mask(regions)
        giver = next(
            (one for one, columns in self._unfenced.items() if one != warp and columns & mask), None
        )
        if giver is not None:
            self._launch.note(
                "tcgen05-missing-fence",
                where,
                f"uses columns that warp {giver} loaded or stored without "
                "tcgen05.fence::before_thread_sync after its wait; that warp should fence before "
                "it arrives on the barrier.",
            )
        others = any(one != warp for one in self._after) or giver is not None
        latest = max(int(self._handed[one.start : one.stop].max()) for one in regions)
        if others and latest > self._after.get(warp, 0):
            self._launch.note(
                "tcgen05-missing-fence",
                where,
                "uses columns that another warp loaded or stored without "
                "tcgen05.fence::after_thread_sync since; fence after the wait for that warp.",
            )
