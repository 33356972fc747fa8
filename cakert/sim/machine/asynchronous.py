"""Work that runs beside the warps: copies, tensor-core operations, commits.

The ISA only says that an asynchronous operation completes some time after it was issued, unless
something orders it. An `AsyncEngine` chooses that time by a schedule:

eager
    at once, when it is issued;
lazy
    only when no warp that is resident can go on, one operation at a time: one that a warp waits
    for, as far as operations and waits say so, else the youngest that its order allows;
random
    at seeded random moments between slices of warps, and when nothing else can run.

A kernel whose result depends on the schedule lacks a wait.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import TYPE_CHECKING

from cakert.sim.faults import Where

if TYPE_CHECKING:
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Launch

__all__ = ["SCHEDULES", "AsyncEngine", "Operation"]

SCHEDULES = ("eager", "lazy", "random")

# Random schedule: chance of each operation that may complete to do so between two slices.
_CHANCE = 0.15
# Operations of that many exited CTAs are kept back at most: each keeps a shared memory alive.
_EXITED_CTAS = 8

Range = tuple[int, int]


class Operation:
    """One asynchronous operation.

    Parameters
    ----------
    name
        What reports call it: "cp.async.bulk.tensor".
    where
        The instruction that issued it.
    cta
        Whose shared memory ``reads`` and ``writes`` are about.
    perform
        Does the whole transfer and signals its completion (mbarrier, group counter).
    order
        Operations with an equal key that is not None are performed in order of submission.
    reads, writes
        Ranges (start, nbytes) of shared memory.
    signals
        What its completion brings forward, by any key that a `Wait` may name among its needs
        besides the operation itself: a mbarrier as (CTA, address), a group member.

    Attributes
    ----------
    done
        Whether it has been performed.
    """

    __slots__ = ("cta", "done", "name", "order", "perform", "reads", "signals", "where", "writes")

    def __init__(
        self,
        name: str,
        where: Where,
        cta: Cta,
        perform: Callable[[], None],
        *,
        order: Hashable | None = None,
        reads: Iterable[Range] = (),
        writes: Iterable[Range] = (),
        signals: Iterable[Hashable] = (),
    ) -> None:
        self.name = name
        self.where = where
        self.cta = cta
        self.perform = perform
        self.order = order
        self.reads = tuple(reads)
        self.writes = tuple(writes)
        self.signals = tuple(signals)
        self.done = False

    def __repr__(self) -> str:
        return f"{self.name} of {self.where}"


class AsyncEngine:
    """The operations in flight of one launch.

    Parameters
    ----------
    launch
        Whose ``progress`` counts what happens.
    schedule
        One of `SCHEDULES`.
    seed
        Of the random schedule.
    """

    def __init__(self, launch: Launch, schedule: str, seed: int) -> None:
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
        self.launch = launch
        self.schedule = schedule
        self.random = random.Random(seed ^ 0x5EED)
        # By serial number, oldest first: all in flight, and those that may be performed now.
        self._all: dict[int, Operation] = {}
        self._free: dict[int, Operation] = {}
        self._queues: dict[Hashable, deque[int]] = {}
        self._serial = 0
        self._performing = False
        self._exited: list[Cta] = []

    def __len__(self) -> int:
        """How many operations are in flight."""
        return len(self._all)

    def pending(self) -> list[Operation]:
        """The operations in flight, oldest first."""
        return list(self._all.values())

    def submit(self, operation: Operation) -> None:
        """Take an operation over; under the eager schedule it is done on return."""
        self._serial += 1
        self.launch.progress += 1
        if operation.reads or operation.writes:
            operation.cta.shared.begin_async(operation, operation.reads, operation.writes)
        serial = self._serial
        self._all[serial] = operation
        if operation.order is None:
            self._free[serial] = operation
        else:
            queue = self._queues.setdefault(operation.order, deque())
            queue.append(serial)
            if len(queue) == 1:
                self._free[serial] = operation
        if self.schedule == "eager" and not self._performing:
            # What an operation submits while it is performed comes after it.
            while self._free:
                self._perform(next(iter(self._free)))

    def tick(self) -> None:
        """Complete some operations, as the random schedule decides; others do nothing here."""
        if self.schedule != "random" or not self._free:
            return
        for serial in list(self._free):
            if self.random.random() < _CHANCE and serial in self._free:
                self._perform(serial)

    def perform_one(self, needs: Collection[Hashable] = ()) -> bool:
        """Complete one operation because nothing else can run.

        Parameters
        ----------
        needs
            What warps wait for; the lazy schedule prefers an operation that signals it, or one
            that must precede such an operation.

        Returns
        -------
        bool
            False where none is in flight.
        """
        if not self._free:
            return False
        if self.schedule == "random":
            serial = self.random.choice(list(self._free))
        else:
            serial = self._needed(needs) if needs else max(self._free)
        self._perform(serial)
        return True

    def _needed(self, needs: Collection[Hashable]) -> int:
        for serial, operation in reversed(self._all.items()):
            if operation in needs or any(signal in needs for signal in operation.signals):
                return serial if operation.order is None else self._queues[operation.order][0]
        return max(self._free)

    def drain(self) -> None:
        """Complete everything that is in flight: the end of the launch."""
        while self.perform_one():
            pass

    def cta_exited(self, cta: Cta) -> None:
        """Check what an exited CTA left behind.

        Raises
        ------
        Fault
            "async-write-after-exit": an operation in flight will write its shared memory.
        """
        left = [operation for operation in self.pending() if operation.cta is cta]
        for operation in left:
            if operation.writes:
                self.launch.fault(
                    "async-write-after-exit",
                    f"{operation.name} (line {operation.where.line}) will write shared memory of "
                    f"CTA {cta.ctaid}, which has exited.",
                    where=operation.where,
                    advice="Wait for its mbarrier before the CTA exits.",
                )
            elif operation.reads:
                self.launch.note(
                    "async-read-after-exit",
                    operation.where,
                    f"{operation.name} still reads shared memory when its CTA exits; wait for it "
                    "(cp.async.bulk.wait_group.read 0) before.",
                )
        if left:
            self._exited.append(cta)
            while len(self._exited) > _EXITED_CTAS:
                oldest = self._exited.pop(0)
                self._complete(oldest)
                self.launch.release(oldest)

    def _complete(self, cta: Cta) -> None:
        while True:
            serial = next((s for s, op in self._all.items() if op.cta is cta), None)
            if serial is None:
                return
            order = self._all[serial].order
            self._perform(serial if order is None else self._queues[order][0])

    def _perform(self, serial: int) -> None:
        operation = self._free.pop(serial)
        nested, self._performing = self._performing, True
        try:
            operation.perform()
        finally:
            self._performing = nested
        operation.done = True
        del self._all[serial]
        if operation.reads or operation.writes:
            operation.cta.shared.end_async(operation)
        if operation.order is not None:
            queue = self._queues[operation.order]
            queue.popleft()
            if queue:
                self._free[queue[0]] = self._all[queue[0]]
            else:
                del self._queues[operation.order]
        self.launch.progress += 1
