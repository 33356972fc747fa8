"""Clusters: ``barrier.cluster``, ``mapa``, ``getctarank`` (PTX ISA "barrier.cluster", "mapa")."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.addresses import (
    OFFSET_MASK,
    RANK_SHIFT,
    SHARED_BASE,
    peer,
    resolve_shared,
)
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Instruction

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.machine.cta import Cta

__all__ = ["INSTRUCTIONS", "ClusterBarrier"]

_NO_TICKET = -1


class ClusterBarrier:
    """The barrier of a cluster: every thread that has not exited arrives, then waits.

    Attributes
    ----------
    phase : int
        How often it has completed.
    """

    def __init__(self, cluster: list[Cta]) -> None:
        self.cluster = cluster
        self.phase = 0
        # (rank, warp) -> lanes that arrived in this phase; and each lane's phase to wait for.
        self._arrived: dict[tuple[int, int], int] = {}
        self._tickets: dict[tuple[int, int], list[int]] = {}
        self._lines: dict[tuple[int, int], int] = {}

    def arrive(self, warp: Warp, mask: int, line: int) -> None:
        """``barrier.cluster.arrive``; Fault "cluster-barrier-double-arrival"."""
        key = (warp.cta.rank, warp.index)
        tickets = self._tickets.setdefault(key, [_NO_TICKET] * 32)
        for lane in lanes_of(mask):
            if tickets[lane] != _NO_TICKET:
                warp.cta.launch.fault(
                    "cluster-barrier-double-arrival",
                    f"lane {lane} arrives at the cluster barrier again (line {self._lines[key]} "
                    "before) without a barrier.cluster.wait between.",
                    where=warp.where,
                )
            tickets[lane] = self.phase
        self._arrived[key] = self._arrived.get(key, 0) | mask
        self._lines[key] = line
        warp.cta.launch.progress += 1
        self.recheck()

    def wait(self, warp: Warp, mask: int) -> Wait | None:
        """``barrier.cluster.wait``; Fault "cluster-barrier-no-arrival"."""
        tickets = self._tickets.setdefault((warp.cta.rank, warp.index), [_NO_TICKET] * 32)
        lanes = lanes_of(mask)
        if any(tickets[lane] == _NO_TICKET for lane in lanes):
            warp.cta.launch.fault(
                "cluster-barrier-no-arrival",
                "waits at the cluster barrier without barrier.cluster.arrive before.",
                where=warp.where,
            )
        phase = max(tickets[lane] for lane in lanes)

        def finish() -> None:
            for lane in lanes:
                tickets[lane] = _NO_TICKET

        if self.phase > phase:
            finish()
            return None
        return Wait(lambda: self.phase > phase, self.describe, finish)

    def recheck(self) -> None:
        """Complete the phase if every live thread of the cluster has arrived."""
        if not self._arrived:
            return
        for cta in self.cluster:
            for warp in cta.warps:
                if warp.live & ~self._arrived.get((cta.rank, warp.index), 0):
                    return
        self.phase += 1
        self._arrived.clear()
        for cta in self.cluster:
            cta.sync_epoch += 1
            cta.launch.progress += 1

    def describe(self) -> str:
        """A clause for the deadlock report."""
        absent = [
            f"warp {warp.index} of CTA {cta.ctaid} (rank {cta.rank})"
            for cta in self.cluster
            for warp in cta.warps
            if warp.live & ~self._arrived.get((cta.rank, warp.index), 0)
        ]
        return f"the barrier of the cluster; not arrived: {', '.join(absent) or 'nobody'}"


def _bind_barrier(instruction: Instruction, binder: Binder) -> Handler:
    form = re.fullmatch(
        r"barrier\.cluster\.(arrive(\.release|\.relaxed)?|wait(\.acquire)?)(\.aligned)?",
        instruction.name,
    )
    if form is None or instruction.operands:
        binder.fail("unknown form of barrier.cluster")
    line = instruction.line

    def arrive(warp: Warp, mask: int) -> None:
        warp.cta.cluster_barrier.arrive(warp, mask, line)

    def wait(warp: Warp, mask: int) -> Wait | None:
        blocked: Wait | None = warp.cta.cluster_barrier.wait(warp, mask)
        return blocked

    return arrive if form[1].startswith("arrive") else wait


def _bind_mapa(instruction: Instruction, binder: Binder) -> Handler:
    form = re.fullmatch(r"mapa(\.shared::cluster)?\.(u32|u64)", instruction.name)
    if form is None or len(instruction.operands) != 3:
        binder.fail("expected mapa{.shared::cluster}.{u32,u64} d, a, rank")
    space = "shared::cluster" if form[1] else "generic"
    base = 0 if form[1] else SHARED_BASE
    bits = int(form[2][1:])
    out = binder.out(instruction.operands[0], bits)
    source = binder.row(instruction.operands[1], bits)
    ranks = binder.row(instruction.operands[2], 32)

    def handler(warp: Warp, mask: int) -> None:
        file = warp.file32 if bits == 32 else warp.file64
        for lane in lanes_of(mask):
            rank = int(warp.file32[ranks, lane])
            address = int(file[source, lane])
            # Also checks that a generic address lies in shared memory.
            resolve_shared(warp.cta, address, space, warp.where)
            peer(warp.cta, rank, warp.where, accessed=False)
            file[out, lane] = base + (rank + 1 << RANK_SHIFT | address & OFFSET_MASK)

    return handler


def _bind_getctarank(instruction: Instruction, binder: Binder) -> Handler:
    form = re.fullmatch(r"getctarank(\.shared::cluster)?\.(u32|u64)", instruction.name)
    if form is None or len(instruction.operands) != 2:
        binder.fail("expected getctarank{.shared::cluster}.{u32,u64} d, a")
    space = "shared::cluster" if form[1] else "generic"
    bits = int(form[2][1:])
    out = binder.out(instruction.operands[0], 32)
    source = binder.row(instruction.operands[1], bits)

    def handler(warp: Warp, mask: int) -> None:
        row = np.array((warp.file32 if bits == 32 else warp.file64)[source])
        for lane in lanes_of(mask):
            cta, _ = resolve_shared(warp.cta, int(row[lane]), space, warp.where)
            warp.file32[out, lane] = cta.rank

    return handler


INSTRUCTIONS = {
    "barrier.cluster": _bind_barrier,
    "mapa": _bind_mapa,
    "getctarank": _bind_getctarank,
}
