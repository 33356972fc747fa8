"""cp.async-groups, waits for them, and their arrivals on mbarriers (PTX ISA 9.7.9.25.3, 9.7.13.15).

Groups belong to threads. The threads of a warp mostly do the same, so what they issue and commit
together is kept once, with the mask of the threads that it concerns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cakert.sim.copies.modifiers import Modifiers
from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.addresses import address_space, resolve_shared
from cakert.sim.machine.mbarrier import MAX_COUNT
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Immediate

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.machine.mbarrier import Mbarrier
    from cakert.sim.ptx.model import Instruction

__all__ = ["INSTRUCTIONS", "CopyGroups", "Record"]


class Record:
    """One cp.async instruction of a warp.

    Attributes
    ----------
    name, where
        For reports.
    mask
        The lanes that issued it.
    done
        Whether the data has been written.
    """

    __slots__ = ("_listeners", "done", "mask", "name", "where")

    def __init__(self, name: str, where: Where, mask: int) -> None:
        self.name = name
        self.where = where
        self.mask = mask
        self.done = False
        self._listeners: list[Callable[[], None]] = []

    def complete(self) -> None:
        """Note that the data has been written, and tell who asked."""
        self.done = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def when_done(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once at completion."""
        self._listeners.append(listener)


class CopyGroups:
    """What the threads of a warp have in flight.

    Attributes
    ----------
    open
        (record, lanes whose next commit takes it).
    committed
        (records, lanes that committed), in order; a lane's groups are the entries with its bit.
    """

    __slots__ = ("committed", "open")

    def __init__(self) -> None:
        self.open: list[tuple[Record, int]] = []
        self.committed: list[tuple[list[Record], int]] = []

    @classmethod
    def of(cls, warp: Warp) -> CopyGroups:
        """The groups of a warp; made when it first needs them."""
        table: dict[int, CopyGroups] = warp.cta.state.setdefault("cp-async", {})
        groups = table.get(warp.index)
        if groups is None:
            groups = table[warp.index] = cls()
        return groups

    def add(self, record: Record) -> None:
        """Take a new copy in; forget those that nothing can wait for any more."""
        if len(self.open) > 64:
            self.open = [entry for entry in self.open if not entry[0].done]
        self.open.append((record, record.mask))

    def commit(self, mask: int) -> None:
        """``commit_group`` of the lanes of ``mask``."""
        taken = [record for record, lanes in self.open if lanes & mask]
        self.open = [(record, lanes & ~mask) for record, lanes in self.open if lanes & ~mask]
        # Finished groups in front hold nobody up, and no count reaches past them.
        while self.committed and all(record.done for record in self.committed[0][0]):
            self.committed.pop(0)
        self.committed.append((taken, mask))

    def blocking(self, mask: int, newest: int) -> Record | None:
        """An unfinished copy of a lane of ``mask`` in a group older than its ``newest`` ones."""
        seen = dict.fromkeys(lanes_of(mask), 0)
        left = mask
        for records, lanes in reversed(self.committed):
            old = 0
            for lane in lanes_of(lanes & left):
                if seen[lane] >= newest:
                    old |= 1 << lane
                seen[lane] += 1
            if old:
                for record in records:
                    if not record.done and record.mask & old:
                        return record
        return None

    def unfinished(self, mask: int) -> list[Record]:
        """All copies of lanes of ``mask`` that have not completed, committed or not."""
        found = [record for records, _ in self.committed for record in records]
        found += [record for record, _ in self.open]
        distinct = {id(record): record for record in found if not record.done}
        return [record for record in distinct.values() if record.mask & mask]


def _wait(blocking: Callable[[], Record | None], what: str) -> Wait | None:
    def describe() -> str:
        record = blocking()
        if record is None:
            return f"{what}, which are complete"
        return f"{what}: {record.name} of line {record.where.line} has not completed"

    if blocking() is None:
        return None
    return Wait(lambda: blocking() is None, describe, needs=lambda: [blocking()])


def _bind_commit(instruction: Instruction, binder: Binder) -> Handler:
    Modifiers(binder, instruction.modifiers[2:]).finish()

    def handler(warp: Warp, mask: int) -> None:
        CopyGroups.of(warp).commit(mask)

    return handler


def _bind_wait_group(instruction: Instruction, binder: Binder) -> Handler:
    Modifiers(binder, instruction.modifiers[2:]).finish()
    operand = instruction.operands[0]
    if not isinstance(operand, Immediate):
        binder.fail("the number of groups must be a constant")
    newest = operand.bits

    def handler(warp: Warp, mask: int) -> Wait | None:
        groups = CopyGroups.of(warp)
        return _wait(lambda: groups.blocking(mask, newest), "cp.async-groups")

    return handler


def _bind_wait_all(instruction: Instruction, binder: Binder) -> Handler:
    Modifiers(binder, instruction.modifiers[2:]).finish()

    def handler(warp: Warp, mask: int) -> Wait | None:
        groups = CopyGroups.of(warp)
        groups.commit(mask)  # wait_all is commit_group and wait_group 0
        return _wait(lambda: groups.blocking(mask, 0), "all cp.async")

    return handler


def _bind_arrive(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[3:])
    no_increment = modifiers.flag("noinc")
    modifiers.find("shared", "shared::cta")
    modifiers.one_of("a type", "b64")
    modifiers.finish()
    address = binder.address(instruction.operands[0])
    space = address_space(instruction.modifiers)

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        groups = CopyGroups.of(warp)
        pending = groups.unfinished(mask)
        for at, lanes in _by_address(mask, address.lanes(warp).tolist()):
            cta, offset = resolve_shared(warp.cta, at, space, where)
            barrier = cta.mbarriers.at(offset, where)
            if not no_increment:
                _expect_more(barrier, lanes.bit_count(), where)
            for part, records in _by_records(lanes, pending):
                _arrive_after(barrier, part.bit_count(), records, where)

    return handler


def _expect_more(barrier: Mbarrier, count: int, where: Where) -> None:
    """Raise the pending count of the current phase, which the arrivals will lower again."""
    total = barrier.pending + count
    if total > MAX_COUNT:
        barrier.cta.launch.fault(
            "mbarrier-count",
            f"raises the pending count of {barrier} to {total}, above {MAX_COUNT}.",
            where=where,
        )
        return
    barrier.pending = total


def _by_address(mask: int, addresses: list[int]) -> list[tuple[int, int]]:
    """(address, lanes) of the lanes in ``mask``."""
    found: dict[int, int] = {}
    for lane in lanes_of(mask):
        found[addresses[lane]] = found.get(addresses[lane], 0) | 1 << lane
    return list(found.items())


def _by_records(mask: int, records: list[Record]) -> list[tuple[int, list[Record]]]:
    """(lanes, the records that they wait for), lanes with the same records together."""
    parts = [mask]
    for record in records:
        parts = [
            piece for part in parts for piece in (part & record.mask, part & ~record.mask) if piece
        ]
    return [(part, [record for record in records if record.mask & part]) for part in parts]


def _arrive_after(barrier: Mbarrier, count: int, records: list[Record], where: Where) -> None:
    """Arrive ``count`` times once all ``records`` have completed."""
    left = len(records)
    if not left:
        barrier.arrive(count, where)
        return

    def one_done() -> None:
        nonlocal left
        left -= 1
        if not left:
            barrier.arrive(count, where)

    for record in records:
        record.when_done(one_done)


INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    "cp.async.commit_group": _bind_commit,
    "cp.async.wait_group": _bind_wait_group,
    "cp.async.wait_all": _bind_wait_all,
    "cp.async.mbarrier.arrive": _bind_arrive,
}
