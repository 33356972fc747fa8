"""Non-bulk asynchronous copies: ``cp.async`` (PTX ISA 9.7.9.25.3).

The lanes of one instruction are one operation. The data is written through the generic proxy of
the issuing threads: other threads see it after a wait and a barrier, the asynchronous proxy after
a fence as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cakert.sim.copies.boxes import Bytes
from cakert.sim.copies.copy_groups import CopyGroups, Record
from cakert.sim.copies.hints import bind_cache_policy
from cakert.sim.copies.modifiers import Modifiers
from cakert.sim.copies.ranges import byte_addresses, claimed, runs
from cakert.sim.core.lanes import mask_array
from cakert.sim.faults import Fault
from cakert.sim.machine.addresses import OFFSET_MASK, resolve_shared
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.ptx.model import Immediate, NotPredicate, Register

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler, PredicateSource
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Launch
    from cakert.sim.ptx.model import Instruction, Operand

__all__ = ["INSTRUCTIONS"]

Lanes = npt.NDArray[np.int64]

# One view of global memory serves all lanes if they lie this close together.
_NEAR = 1 << 24


class _Size:
    """The optional operand after cp-size: src-size, or the predicate ignore-src.

    Parameters
    ----------
    operand
        None where the instruction has neither.
    """

    def __init__(self, operand: Operand | None, full: int, binder: Binder) -> None:
        self.full = full
        self.row: int | None = None
        self.ignored: PredicateSource | None = None
        if operand is None:
            return
        is_predicate = isinstance(operand, Register) and operand.type == "pred"
        if is_predicate or isinstance(operand, NotPredicate):
            self.ignored = binder.predicate(operand)
        else:
            self.row = binder.row(operand, 32)

    def lanes(self, warp: Warp, chosen: npt.NDArray[np.bool_], where: Where) -> Lanes | None:
        """Bytes to read for each chosen lane; None where all read ``full``."""
        if self.ignored is not None:
            ignored = mask_array(self.ignored.mask(warp))[chosen]
            return np.where(ignored, 0, self.full) if ignored.any() else None
        if self.row is None:
            return None
        sizes = warp.file32[self.row][chosen].astype(np.int64)
        if (sizes > self.full).any():
            warp.cta.launch.fault(
                "cp-async-size",
                f"reads {int(sizes.max())} bytes for a copy of {self.full}.",
                where=where,
                advice="src-size may be at most cp-size.",
            )
            sizes = np.minimum(sizes, self.full)
        return None if (sizes == self.full).all() else sizes


@dataclass(frozen=True, slots=True)
class _Transfer:
    """What the executing lanes of one instruction move.

    Attributes
    ----------
    sources, targets
        Global addresses, and offsets in shared memory, of each lane.
    sizes
        Bytes that each lane reads, or None where all read ``width``.
    width
        Bytes that each lane writes.
    threads
        Linear thread of each lane.
    """

    sources: Lanes
    targets: Lanes
    sizes: Lanes | None
    width: int
    threads: Lanes

    def gather(self, launch: Launch, where: Where) -> tuple[Bytes, int]:
        """(lanes, width) bytes, and how many of them were read; the others are zero."""
        if self.sizes is None:
            data = _gather_full(launch, self.sources, self.width, where)
            return data, data.size
        data = np.zeros((len(self.sources), self.width), np.uint8)
        whole = self.sizes == self.width
        if whole.any():
            data[whole] = _gather_full(launch, self.sources[whole], self.width, where)
        for lane in np.nonzero(~whole & (self.sizes > 0))[0].tolist():
            nbytes = int(self.sizes[lane])
            data[lane, :nbytes] = launch.memory.view(int(self.sources[lane]), nbytes, where)
        return data, int(self.sizes.sum())


def _gather_full(launch: Launch, sources: Lanes, width: int, where: Where) -> Bytes:
    first, last = int(sources.min()), int(sources.max())
    if last - first < _NEAR:
        try:
            memory = launch.memory.view(first, last - first + width, where)
        except Fault:
            # Out of bounds, or in two allocations: the lanes tell.
            pass
        else:
            chunks = np.ndarray(((last - first) // width + 1, width), np.uint8, memory)
            return chunks[(sources - first) // width]
    views = [launch.memory.view(int(source), width, where) for source in sources.tolist()]
    return np.stack(views)


def _bind_copy(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[1:])
    cache = modifiers.one_of("a cache operator", "ca", "cg")
    modifiers.one_of("a destination", "shared", "shared::cta")
    modifiers.one_of("a source", "global")
    hint = modifiers.flag("L2::cache_hint")
    modifiers.find("L2::64B", "L2::128B", "L2::256B")
    modifiers.finish()
    operands = instruction.operands
    if len(operands) not in (3 + hint, 4 + hint):
        binder.fail(f"takes {3 + hint} or {4 + hint} operands, got {len(operands)}")
    bind_cache_policy(operands, hint, binder)
    destination = binder.address(operands[0])
    source = binder.address(operands[1])
    width = _copy_size(operands[2], cache, binder)
    size = _Size(operands[3] if len(operands) == 4 + hint else None, width, binder)
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        chosen = mask_array(mask)
        transfer = _Transfer(
            source.lanes(warp)[chosen].astype(np.int64),
            _own_offsets(warp.cta, destination.lanes(warp)[chosen], where),
            size.lanes(warp, chosen, where),
            width,
            32 * warp.index + np.nonzero(chosen)[0],
        )
        if _aligned(warp.cta.launch, transfer, where):
            _submit(warp, Record(name, where, mask), transfer)

    return handler


def _own_offsets(cta: Cta, addresses: npt.NDArray[np.uint64], where: Where) -> Lanes:
    """Offsets in the window of the executing CTA; fault "not-shared" for any other."""
    places = addresses.astype(np.int64)
    for address in places[places > OFFSET_MASK].tolist():
        resolve_shared(cta, address, "shared::cta", where)
    return places & OFFSET_MASK


def _submit(warp: Warp, record: Record, transfer: _Transfer) -> None:
    cta, where = warp.cta, record.where
    launch = cta.launch
    targets, width = transfer.targets, transfer.width

    def perform() -> None:
        data, moved = transfer.gather(launch, where)
        # The operation itself is no longer what its writes must not collide with.
        cta.shared.end_async(operation)
        writers = transfer.threads.repeat(width)
        cta.shared.generic_write(
            byte_addresses(targets, width), data.reshape(-1), writers, where, copied=True
        )
        launch.count("cp-async-bytes", moved)
        record.complete()

    writes = claimed(launch, lambda: runs(targets, width))
    operation = Operation(record.name, where, cta, perform, writes=writes, signals=[record])
    CopyGroups.of(warp).add(record)
    launch.engine.submit(operation)


def _copy_size(operand: Operand, cache: str, binder: Binder) -> int:
    if not isinstance(operand, Immediate):
        binder.fail("cp-size must be a constant")
    allowed = (16,) if cache == "cg" else (4, 8, 16)
    if operand.bits not in allowed:
        binder.fail(f"cp-size of .{cache} must be one of {allowed}, got {operand.bits}")
    return operand.bits


def _aligned(launch: Launch, transfer: _Transfer, where: Where) -> bool:
    """Fault "cp-async-misaligned"; False where it is ignored, and the copy is then left out."""
    width, read = transfer.width, transfer.sources
    if transfer.sizes is not None:
        read = read[transfer.sizes > 0]
    for what, addresses in (("global", read), ("shared", transfer.targets)):
        wrong = addresses[addresses % width != 0]
        if wrong.size:
            launch.fault(
                "cp-async-misaligned",
                f"copies {width} bytes with the {what} address {int(wrong[0]):#x}.",
                where=where,
                advice="Align both addresses to cp-size.",
            )
            return False
    return True


INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {"cp.async": _bind_copy}
