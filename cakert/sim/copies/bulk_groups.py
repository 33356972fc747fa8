"""Bulk async-groups: what one thread has issued and committed (PTX ISA 9.7.9.25.3).

A transfer out of shared memory has two moments: its source has been read (what ``.read`` waits
for), and its writes have been made. They are two operations of the engine, so that a kernel which
confuses them is found out by a schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from cakert.sim.copies.modifiers import Modifiers
from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Immediate

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta
    from cakert.sim.ptx.model import Instruction

__all__ = ["INSTRUCTIONS", "BulkGroups", "Outgoing", "groups_of", "submit_outgoing"]

_Data = TypeVar("_Data")


class Outgoing:
    """One transfer out of shared memory.

    Attributes
    ----------
    operation
        The part that reads the source.
    read
        Whether the source has been read.
    done
        Whether the writes have been made as well.
    """

    __slots__ = ("done", "operation", "read")

    operation: Operation

    def __init__(self) -> None:
        self.read = False
        self.done = False


class BulkGroups:
    """The bulk async-groups of one thread.

    Attributes
    ----------
    open
        Transfers that no commit_group has taken yet.
    committed
        Groups in order of commit; finished ones leave from the front.
    """

    __slots__ = ("committed", "open")

    def __init__(self) -> None:
        self.open: list[Outgoing] = []
        self.committed: deque[list[Outgoing]] = deque()

    def commit(self) -> None:
        """Make a group, which may be empty, of the open transfers."""
        self.committed.append(self.open)
        self.open = []

    def unfinished(self, newest: int, read: bool) -> Outgoing | None:
        """A transfer that is older than the ``newest`` groups and not complete, if there is one."""
        while self.committed and all(transfer.done for transfer in self.committed[0]):
            self.committed.popleft()
        for index in range(len(self.committed) - newest):
            for transfer in self.committed[index]:
                if not (transfer.read if read else transfer.done):
                    return transfer
        return None


def groups_of(warp: Warp, lane: int) -> BulkGroups:
    """The groups of a thread; made when it first needs them."""
    table: dict[tuple[int, int], BulkGroups] = warp.cta.state.setdefault("bulk-groups", {})
    key = (warp.index, lane)
    if key not in table:
        table[key] = BulkGroups()
    return table[key]


def submit_outgoing(
    name: str,
    where: Where,
    cta: Cta,
    groups: BulkGroups,
    source: tuple[int, int],
    take: Callable[[], _Data],
    put: Callable[[_Data], None],
) -> None:
    """Start a transfer out of the shared memory of ``cta``.

    Parameters
    ----------
    groups
        Of the issuing thread.
    source
        (start, nbytes) of the shared memory that ``take`` reads.
    take
        Reads the source; its result goes to ``put``, which writes global memory.
    """
    transfer = Outgoing()
    groups.open.append(transfer)
    engine = cta.launch.engine

    def read() -> None:
        data = take()
        transfer.read = True

        def write() -> None:
            put(data)
            transfer.done = True

        engine.submit(Operation(name, where, cta, write, signals=[transfer]))

    transfer.operation = Operation(name, where, cta, read, reads=(source,), signals=[transfer])
    engine.submit(transfer.operation)


def _commit(instruction: Instruction, binder: Binder) -> Handler:
    Modifiers(binder, instruction.modifiers[3:]).finish()

    def commit(warp: Warp, mask: int) -> None:
        for lane in lanes_of(mask):
            groups_of(warp, lane).commit()

    return commit


def _wait(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[3:])
    read = modifiers.flag("read")
    modifiers.finish()
    operand = instruction.operands[0]
    if not isinstance(operand, Immediate):
        binder.fail("the number of groups must be a constant")
    newest = operand.bits

    def wait(warp: Warp, mask: int) -> Wait | None:
        waiting = [(lane, groups_of(warp, lane)) for lane in lanes_of(mask)]

        def blocker() -> tuple[int, Outgoing] | None:
            for lane, groups in waiting:
                transfer = groups.unfinished(newest, read)
                if transfer is not None:
                    return lane, transfer
            return None

        def describe() -> str:
            found = blocker()
            if found is None:
                return "bulk groups that are complete"
            lane, transfer = found
            line = transfer.operation.where.line
            return f"the bulk groups of lane {lane}: {transfer.operation.name} of line {line}"

        if blocker() is None:
            return None

        def needs() -> list[Outgoing]:
            found = blocker()
            return [] if found is None else [found[1]]

        return Wait(lambda: blocker() is None, describe, needs=needs)

    return wait


INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    "cp.async.bulk.commit_group": _commit,
    "cp.async.bulk.wait_group": _wait,
}
