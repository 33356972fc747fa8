"""Tensor memory of a CTA: cells, allocation, and the accesses in flight.

128 lanes x 512 columns of 32 bits (PTX ISA 9.7.16.1, "Tensor Memory"). One CTA per SM is
assumed: each CTA has a whole tensor memory. Two co-resident CTAs that compete for columns would add
waits, never values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from cakert.sim.faults import Fault
from cakert.sim.tcgen05.fences import Fences
from cakert.sim.tcgen05.regions import ALL_LANES, COLUMNS, LANES, Access, Region

if TYPE_CHECKING:
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta

__all__ = ["POISON", "Allocation", "TensorMemory", "check_exit", "tensor_memory"]

POISON = 0xFFFFFFFF
"""What fresh cells and registers in flight hold: NaN as f32, f16, bf16, e4m3 and e5m2."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Columns ``base <= column < base + columns``, and the tcgen05.alloc that took them."""

    base: int
    columns: int
    where: Where


class TensorMemory:
    """Cells, allocations and accesses in flight of one CTA.

    Attributes
    ----------
    cells
        (128, 512) uint32.
    written
        (128, 512) bool: what somebody wrote since its column was allocated.
    pending
        Accesses that another one may still race with, in order of issue.
    collectors
        Collector buffer ("a", "b0".."b3") -> the operand it was filled from.
    last_ws_buffer
        Collector buffer of the latest tcgen05.mma.ws: naming two in turn is faster
        (`cakert.sim.tcgen05.cost`).
    """

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.cells = np.full((LANES, COLUMNS), POISON, np.uint32)
        self.written = np.zeros((LANES, COLUMNS), np.bool_)
        self.pending: list[Access] = []
        self.collectors: dict[str, tuple[object, ...]] = {}
        self.last_ws_buffer: str | None = None
        self.fences = Fences(cta.launch)
        self.allocations: dict[int, Allocation] = {}
        self._allocated = np.zeros(COLUMNS, np.bool_)
        self._smallest = COLUMNS
        self._relinquished: Where | None = None
        self._freed: dict[int, Where] = {}

    def check_allocation(self, columns: int, where: Where) -> None:
        """Check what tcgen05.alloc demands before any column is looked for.

        Faults "tmem-alloc-grows", "tmem-alloc-after-relinquish", and "tmem-alloc-size", which
        cannot be ignored: there is no such allocation to go on with (PTX ISA 9.7.16.7.1).
        """
        fault = self.cta.launch.fault
        if not 32 <= columns <= COLUMNS or columns & (columns - 1):
            raise Fault(
                "tmem-alloc-size",
                f"allocates {columns} columns.",
                where=where,
                advice="Allocate a power of two from 32 to 512.",
            )
        if self._relinquished is not None:
            fault(
                "tmem-alloc-after-relinquish",
                f"allocates after the CTA gave up its permit at line {self._relinquished.line}.",
                where=where,
                advice="Move tcgen05.relinquish_alloc_permit after the last tcgen05.alloc.",
            )
        if columns > self._smallest:
            fault(
                "tmem-alloc-grows",
                f"allocates {columns} columns after an allocation of {self._smallest}: "
                "successive allocations of a CTA must not grow.",
                where=where,
                advice="Allocate the largest part first.",
            )

    def allocate(self, columns: int, where: Where) -> int | None:
        """Take columns; their contents are undefined.

        Returns
        -------
        The first column, or None while too few adjacent columns are free.
        """
        base = self._room(columns)
        if base is not None:
            self._allocated[base : base + columns] = True
            self.cells[:, base : base + columns] = POISON
            self.written[:, base : base + columns] = False
            self.allocations[base] = Allocation(base, columns, where)
            self._smallest = columns
        return base

    def has_room(self, columns: int) -> bool:
        """Whether `allocate` would find that many columns."""
        return self._room(columns) is not None

    def _room(self, columns: int) -> int | None:
        for base in range(0, COLUMNS - columns + 1, columns):
            if not self._allocated[base : base + columns].any():
                return base
        return None

    def relinquish(self, where: Where) -> None:
        """Give up the right to allocate."""
        self._relinquished = where

    def free(self, base: int, columns: int, where: Where) -> None:
        """Free one allocation; faults "tmem-double-free", "tmem-dealloc-range", "tmem-in-flight".

        Parameters
        ----------
        base
            Tensor-memory address as tcgen05.alloc returned it.
        columns
            Its size as allocated.
        """
        fault = self.cta.launch.fault
        allocation = self.allocations.get(base)
        if allocation is None:
            earlier = self._freed.get(base)
            if earlier is not None:
                fault(
                    "tmem-double-free",
                    f"address {base:#x} was already freed at line {earlier.line}.",
                    where=where,
                    advice="One warp frees each allocation, once.",
                )
            else:
                fault(
                    "tmem-dealloc-range",
                    f"no allocation begins at address {base:#x}; there are "
                    + (
                        ", ".join(self._describe(one) for one in self.allocations.values())
                        or "none"
                    )
                    + ".",
                    where=where,
                    advice="Pass the address that tcgen05.alloc wrote.",
                )
            return
        if columns != allocation.columns:
            fault(
                "tmem-dealloc-range",
                f"frees {columns} columns of {self._describe(allocation)}.",
                where=where,
                advice="Free exactly what was allocated.",
            )
        everything = Region(ALL_LANES, base, base + allocation.columns)
        self.admit(Access("dealloc", where, where.warp, -1, writes=(everything,)))
        self._allocated[base : base + allocation.columns] = False
        self._freed[base] = where
        del self.allocations[base]
        self.cta.launch.progress += 1  # a blocked tcgen05.alloc may go on

    @staticmethod
    def _describe(allocation: Allocation) -> str:
        return (
            f"{allocation.columns} columns at {allocation.base:#x} (allocated at line "
            f"{allocation.where.line})"
        )

    def check_bounds(self, regions: tuple[Region, ...], where: Where) -> bool:
        """Fault "tmem-out-of-bounds" unless every column is allocated; False where ignored."""
        for region in regions:
            inside = region.start >= 0 and region.stop <= COLUMNS and region.lanes <= ALL_LANES
            if inside and self._allocated[region.start : region.stop].all():
                continue
            self.cta.launch.fault(
                "tmem-out-of-bounds",
                f"accesses {region}; allocated: "
                + (", ".join(self._describe(one) for one in self.allocations.values()) or "nothing")
                + ".",
                where=where,
                advice="Allocate enough columns, and offset from the address of tcgen05.alloc.",
            )
            return False
        return True

    def check_written(self, regions: tuple[Region, ...], where: Where, what: str) -> None:
        """Fault "tmem-uninitialised" unless every cell was written since its allocation."""
        missing = self._unwritten(regions)
        if missing is not None:
            self.cta.launch.fault(
                "tmem-uninitialised",
                f"{what} reads lane {missing[0]}, column {missing[1]}, which nobody wrote.",
                where=where,
                advice="The first MMA of an accumulation needs enable-input-d = false.",
            )

    def check_loaded(self, regions: tuple[Region, ...], where: Where) -> None:
        """Check what a tcgen05.ld reads.

        A load of cells that nobody wrote at all is the fault "tmem-uninitialised". One that also
        reads written cells is a note: shipped kernels load a wider shape than the accumulator and
        drop the rest, and what is left of it is NaN.
        """
        missing = self._unwritten(regions)
        if missing is None:
            return
        message = f"the load reads lane {missing[0]}, column {missing[1]}, which nobody wrote."
        cells = (self.written[one.lane_indices(), one.start : one.stop] for one in regions)
        if any(state.any() for state in cells):
            self.cta.launch.note("tmem-uninitialised", where, message)
        else:
            self.cta.launch.fault(
                "tmem-uninitialised",
                message,
                where=where,
                advice="Wait for the MMA or the store that writes these columns, and check the "
                "address.",
            )

    def _unwritten(self, regions: tuple[Region, ...]) -> tuple[int, int] | None:
        """Lane and column of a cell that nobody wrote, or None."""
        for region in regions:
            index = region.lane_indices()
            state = self.written[index, region.start : region.stop]
            if not state.all():
                row, column = np.argwhere(~state)[0]
                lane = index.start + row if isinstance(index, slice) else index[row]
                return int(lane), int(region.start + column)
        return None

    def admit(self, access: Access) -> None:
        """Fault where an access races with one in flight; the access itself is not recorded.

        "tmem-store-in-flight" (no wait::st yet), "tmem-in-flight" (an operation of the tensor
        pipe whose commit has not arrived) and "tcgen05-uncommitted" (no commit covers it at all).
        Two things that the ISA does not promise, but shipped kernels rely on, are notes:
        "tcgen05-missing-wait-ld" (PTX ISA 9.7.16.6.4.5), and "relies-on-in-order-tensor-pipe" for
        operations of the tensor pipe that overlap without one accumulator and shape (9.7.16.6.4).
        """
        overwritten = []
        for other in self.pending:
            region = access.hazard(other)
            if region is None:
                continue
            first = f"line {other.where.line} `{other.where.text}` (warp {other.warp})"
            if other.kind == "st":
                self.cta.launch.fault(
                    "tmem-store-in-flight",
                    f"touches {region} while the store of {first} has no tcgen05.wait::st.",
                    where=access.where,
                    advice="The storing warp must execute tcgen05.wait::st before it hands over.",
                )
            elif other.kind == "ld":
                # A register of the load that was used since orders it too: not a fault.
                overwritten.append(other)
                self.cta.launch.note(
                    "tcgen05-missing-wait-ld",
                    access.where,
                    f"overwrites {region} while the load of {first} has no tcgen05.wait::ld; safe "
                    "only if every register of the load was used before.",
                )
            elif access.tensor:
                self._note_order(access, other, region)
            elif other.committed is None:
                self.cta.launch.fault(
                    "tcgen05-uncommitted",
                    f"touches {region} of {first}, which no tcgen05.commit of its thread covers.",
                    where=access.where,
                    advice="Commit to an mbarrier in the thread that issued it, and wait for that.",
                )
            else:
                self.cta.launch.fault(
                    "tmem-in-flight",
                    f"touches {region} of {first} before its commit at line "
                    f"{other.committed.line} has arrived.",
                    where=access.where,
                    advice="Wait for the mbarrier of that commit first (check its parity).",
                )
        if overwritten:
            self.retire(overwritten)

    def add_load(self, access: Access) -> None:
        """Record a load; it takes the place of an older one of the warp that had no wait either."""
        self.pending = [
            one
            for one in self.pending
            if (one.kind, one.warp, one.reads) != ("ld", access.warp, access.reads)
        ]
        self.pending.append(access)

    def _note_order(self, access: Access, other: Access, region: Region) -> None:
        same_thread = (access.warp, access.lane) == (other.warp, other.lane)
        promised = other.kind == "cp" and access.kind == "mma"
        promised |= other.kind == access.kind == "mma" and other.shape == access.shape
        if not (promised and same_thread):
            self.cta.launch.note(
                "relies-on-in-order-tensor-pipe",
                access.where,
                f"shares {region} with line {other.where.line} `{other.where.text}`, not waited "
                + (
                    "for: the ISA orders MMAs of one accumulator and shape only."
                    if same_thread
                    else "for, and of another thread: the ISA does not order the two."
                ),
            )

    def uncommitted(self, warp: int, lane: int) -> list[Access]:
        """Operations of the tensor pipe that a commit of this thread covers."""
        return [
            access
            for access in self.pending
            if access.tensor
            and access.committed is None
            and (access.warp, access.lane) == (warp, lane)
        ]

    def outstanding(self, kind: str, warp: int) -> list[Access]:
        """Loads ("ld") or stores ("st") of a warp that have not been waited for."""
        return [one for one in self.pending if one.kind == kind and one.warp == warp]

    def retire(self, accesses: list[Access]) -> None:
        """Take accesses off the list of those in flight."""
        gone = {id(access) for access in accesses}
        self.pending = [access for access in self.pending if id(access) not in gone]


def tensor_memory(cta: Cta) -> TensorMemory:
    """The tensor memory of a CTA, made at first use; leaks are looked for when the CTA ends."""
    if cta.tmem is None:
        cta.tmem = TensorMemory(cta)
        cta.at_exit.append(lambda: check_exit(cta))
    return cast(TensorMemory, cta.tmem)


def check_exit(cta: Cta) -> None:
    """Fault "tmem-leak" where a CTA ends with columns allocated; among ``cta.at_exit``."""
    memory = cta.tmem
    if memory is None:
        return
    for allocation in list(memory.allocations.values()):
        cta.launch.fault(
            "tmem-leak",
            f"the CTA ended with {allocation.columns} columns at {allocation.base:#x} allocated.",
            where=allocation.where,
            advice="Every path to the end needs tcgen05.dealloc.",
        )
