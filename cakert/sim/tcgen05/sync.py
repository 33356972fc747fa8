"""tcgen05.commit, tcgen05.wait and tcgen05.fence (PTX ISA 9.7.16.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.addresses import OFFSET_MASK, address_space, peer, resolve_shared
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Address
from cakert.sim.tcgen05.common import check_whole_warp
from cakert.sim.tcgen05.memory import TensorMemory, tensor_memory
from cakert.sim.tcgen05.targets import Modifiers, require

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta
    from cakert.sim.ptx.model import Instruction
    from cakert.sim.tcgen05.regions import Access

__all__ = ["bind_commit", "bind_fence_after", "bind_fence_before", "bind_wait_ld", "bind_wait_st"]


def bind_commit(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.commit.cta_group::1.mbarrier::arrive::one{.shared::cluster}{.multicast::cluster}``.

    Covers every tensor operation that the executing thread issued before; when they are done, one
    arrival with count 1 is made on the mbarrier, or on that of each CTA in the multicast mask.
    """
    require(binder, "tcgen05")
    modifiers = Modifiers(binder)
    modifiers.cta_group()
    modifiers.need("mbarrier::arrive::one")
    space = address_space(instruction.modifiers)
    modifiers.has("shared::cluster")
    multicast = modifiers.has("multicast::cluster")
    modifiers.need("b64")
    modifiers.end()
    operands = instruction.operands
    if len(operands) != (2 if multicast else 1) or not isinstance(operands[0], Address):
        binder.fail("needs [mbar]" + (", mask" if multicast else ""))
    address = binder.address(operands[0])
    mask_row = binder.row(operands[1], 16) if multicast else None

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        for lane in lanes_of(mask):
            place = address.lane(warp, lane)
            ranks = None if mask_row is None else int(warp.file32[mask_row, lane])
            _commit(warp, lane, _targets(warp.cta, place, space, ranks, where), where)
        return None

    return handler


def _targets(
    cta: Cta, address: int, space: str, ranks: int | None, where: Where
) -> list[tuple[Cta, int]]:
    """The CTAs whose mbarrier arrives, each with the offset of it in its window."""
    if ranks is None:
        return [resolve_shared(cta, address, space, where, forgive_offset=True)]
    offset = address & OFFSET_MASK
    return [(peer(cta, rank, where), offset) for rank in lanes_of(ranks)]


def _commit(warp: Warp, lane: int, targets: list[tuple[Cta, int]], where: Where) -> None:
    memory = tensor_memory(warp.cta)
    covered = memory.uncommitted(warp.index, lane)
    # Those of other threads are not tracked (PTX ISA "tcgen05.commit"): nothing holds it back.
    own = any(one.tensor and (one.warp, one.lane) == (warp.index, lane) for one in memory.pending)
    for access in covered:
        access.committed = where
    for cta, offset in targets:
        cta.mbarriers.at(offset, where)  # not initialised: a fault here, not when it fires

    def perform() -> None:
        memory.retire(covered)
        memory.fences.completed(covered)
        for cta, offset in targets:
            cta.mbarriers.at(offset, where).arrive(1, where)

    warp.cta.launch.engine.submit(
        Operation(
            "tcgen05.commit",
            where,
            warp.cta,
            perform,
            order=("tensor", warp.cta) if own else None,
            signals=targets,
        )
    )


def bind_wait_ld(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.wait::ld.sync.aligned;``: the loads of the warp are done."""
    return _wait(instruction, binder, "ld")


def bind_wait_st(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.wait::st.sync.aligned;``: the stores of the warp are done."""
    return _wait(instruction, binder, "st")


def _wait(instruction: Instruction, binder: Binder, kind: str) -> Handler:
    require(binder, "tcgen05")
    modifiers = Modifiers(binder)
    modifiers.need("sync")
    modifiers.need("aligned")
    modifiers.end()
    if instruction.operands:
        binder.fail("takes no operands")

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        check_whole_warp(warp, mask, where)
        memory = tensor_memory(warp.cta)
        accesses = memory.outstanding(kind, warp.index)
        if not accesses:
            return None

        def ready() -> bool:
            return all(access.done for access in accesses)

        def finish() -> None:
            _waited(warp, memory, accesses)

        if ready():
            finish()
            return None
        return Wait(
            ready,
            lambda: f"tcgen05.wait::{kind} waits for {len(accesses)} accesses",
            finish,
            needs=lambda: [access for access in accesses if not access.done],
        )

    return handler


def _waited(warp: Warp, memory: TensorMemory, accesses: list[Access]) -> None:
    memory.retire(accesses)
    memory.fences.waited(warp.index, accesses)


def bind_fence_before(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.fence::before_thread_sync;``."""
    _plain(instruction, binder)

    def handler(warp: Warp, mask: int) -> Wait | None:
        del mask
        tensor_memory(warp.cta).fences.before_thread_sync(warp.index)
        return None

    return handler


def bind_fence_after(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.fence::after_thread_sync;``."""
    _plain(instruction, binder)

    def handler(warp: Warp, mask: int) -> Wait | None:
        del mask
        tensor_memory(warp.cta).fences.after_thread_sync(warp.index)
        return None

    return handler


def _plain(instruction: Instruction, binder: Binder) -> None:
    require(binder, "tcgen05")
    Modifiers(binder).end()
    if instruction.operands:
        binder.fail("takes no operands")
