"""What every tcgen05 handler needs: one issuing lane, one address for the warp, its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.core.lanes import first_lane, mask_array

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import AddressSource
    from cakert.sim.faults import Where

__all__ = ["check_whole_warp", "issuing_lane", "split_address", "uniform_address"]


def issuing_lane(warp: Warp, mask: int, where: Where, name: str) -> int:
    """The lane that issues an instruction of the tensor pipe.

    Every executing thread issues an operation of its own, so several lanes repeat it: legal, and
    surely a bug. Fault ``name``; where that is ignored, the lowest lane issues once.
    """
    if mask & (mask - 1):
        warp.cta.launch.fault(
            name,
            f"{mask.bit_count()} lanes execute it, and each one issues an operation of its own.",
            where=where,
            advice="Let one thread issue: elect.sync, or a test of the thread index.",
        )
    return first_lane(mask)


def check_whole_warp(warp: Warp, mask: int, where: Where) -> None:
    """Fault "tcgen05-divergent-warp" where a guard disables lanes of a ``.sync.aligned`` form."""
    if mask != warp.live:
        warp.cta.launch.fault(
            "tcgen05-divergent-warp",
            f"lanes {mask:#010x} of {warp.live:#010x} execute a .sync.aligned instruction.",
            where=where,
            advice="All threads of the warp must execute it, under one predicate value.",
        )


def uniform_address(source: AddressSource, warp: Warp, mask: int, where: Where) -> int:
    """Tensor-memory address of a warp; fault "tcgen05-divergent-address" where lanes differ."""
    lanes = source.lanes(warp)
    first = int(lanes[first_lane(mask)])
    different = np.nonzero((lanes != first) & mask_array(mask))[0]
    if different.size:
        lane = int(different[0])
        warp.cta.launch.fault(
            "tcgen05-divergent-address",
            f"address {first:#x} in lane {first_lane(mask)}, {int(lanes[lane]):#x} in lane {lane}.",
            where=where,
            advice="taddr must be the same in all threads of the warp; the lane field names the "
            "quarter, not the thread.",
        )
    return first


def split_address(address: int) -> tuple[int, int]:
    """Lane and column of a tensor-memory address (PTX ISA 9.7.16.1.1)."""
    return address >> 16 & 0xFFFF, address & 0xFFFF
