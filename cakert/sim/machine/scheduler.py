"""Which warp runs next, and when asynchronous work completes instead.

Two policies. `InOrder` (schedules eager and lazy) gives the warps of the resident CTAs long slices
in turn, and starts another CTA only when those stand still: fast, and the same every time. `Seeded`
(schedule random) draws the warp and a short slice, with several CTAs at a time.

Both look for what can go on in the same order: a warp; an operation in flight; a CTA that has not
started. When there is none of the three, the launch is deadlocked. A kernel may also poll memory,
a clock, or test_wait for ever without standing still; so when the warps have run for some rounds
without `Launch.progress`, one operation completes or one CTA starts all the same (both may happen
at any time), and when neither is left and ``max_operations`` have passed, it is a livelock.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from cakert.sim.core.warp import BLOCKED, EXITED
from cakert.sim.machine.deadlock import deadlock, livelock

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Launch

__all__ = ["InOrder", "Scheduler", "Seeded", "make_scheduler"]

Progress = Callable[[int, int], None]

# Slice of an in-order warp: long against the cost of changing warps.
_SLICE = 10_000
# Rounds in which warps used up their slices without progress, before something else happens. Long
# loops of pure arithmetic must not make the lazy schedule less lazy.
_BUSY_ROUNDS = 32
# Rounds in which every warp only tested and gave up its turn; the second makes sure that a test
# follows the last change.
_SPIN_ROUNDS = 2
# Slices of tests and naps in a row, for each warp, that change nothing before it is a livelock.
_SPIN_LIMIT = 20_000
# Clock ticks of a slice that ended early.
_SHORT_SLICE = 16

_RANDOM_MEAN_SLICE = 30.0
_RANDOM_MAX_SLICE = 200
_RANDOM_CTAS = 4
# Slices for each warp after which another CTA starts beside those: they may poll for it.
_SLICES_TO_START = 2_000


class _Seat:
    """A warp and what the scheduler knows of it."""

    __slots__ = ("blocked", "cta", "polled", "warp")

    def __init__(self, cta: Cta, warp: Warp) -> None:
        self.cta = cta
        self.warp = warp
        self.blocked = False
        self.polled = -1


class Scheduler(ABC):
    """Runs a launch to its end.

    Parameters
    ----------
    launch
    progress
        Called with the CTAs that are done and all there are.
    """

    def __init__(self, launch: Launch, progress: Progress | None = None) -> None:
        self.launch = launch
        self.seats: list[_Seat] = []
        self._progress = progress
        self._known: set[int] = set()
        self._idle_operations = 0
        self._spins = 0

    @abstractmethod
    def turn(self) -> None:
        """Run some warps, or make something happen that lets them run."""

    def run(self) -> None:
        """Run until every CTA has exited and every operation is complete."""
        launch = self.launch
        if self._progress is not None:
            self._progress(0, launch.num_ctas)
        while launch.resident or self.start():
            self.turn()
        launch.engine.drain()

    # --- steps that the policies share --------------------------------------------------------

    def start(self) -> bool:
        """Start the next cluster and seat its warps."""
        before = len(self.launch.resident)
        if not self.launch.start_cluster():
            return False
        for cta in self.launch.resident[before:]:
            self.seats += [_Seat(cta, warp) for warp in cta.warps]
        return True

    def can_run(self, seat: _Seat, *, force: bool = False) -> bool:
        """Whether a warp may go on; polls what it waits for if anything happened since."""
        if seat.blocked:
            progress = self.launch.progress
            if seat.polled == progress and not force:
                return False
            seat.polled = progress
            if not seat.warp.poll():
                return False
            seat.blocked = False
        return True

    def run_slice(self, seat: _Seat, budget: int) -> int:
        """Run a warp for a slice and put away what has exited; the status of the warp."""
        launch, warp = self.launch, seat.warp
        before = launch.progress
        status = warp.run(budget)
        ticks = budget if status not in (BLOCKED, EXITED) else min(budget, _SHORT_SLICE)
        launch.clock += ticks
        if status == EXITED:
            self.seats.remove(seat)
            seat.cta.warp_exited()
            if seat.cta.exited:
                launch.retire(seat.cta)
                if self._progress is not None:
                    self._progress(launch.finished, launch.num_ctas)
        elif status == BLOCKED:
            seat.blocked = True
            seat.polled = -1
        else:
            # Paths that wait beside the one that used the slice up.
            warp.poll()
        self._watch(before, ticks, spun=status == BLOCKED)
        return status

    def make_something_happen(self, *, spinning: bool) -> None:
        """Complete an operation, or start a CTA; Fault where neither is left and nobody runs."""
        launch = self.launch
        if not spinning and any(self.can_run(seat, force=True) for seat in self.seats):
            return
        if not launch.engine.perform_one(self._needs()) and not self.start() and not spinning:
            deadlock(launch)

    def _needs(self) -> set[Hashable]:
        """What blocked warps say that they wait for; only the lazy schedule asks."""
        if self.launch.engine.schedule != "lazy":
            return set()
        return {
            need
            for seat in self.seats
            for wait, _, _ in seat.warp.waits()
            if wait is not None and wait.needs is not None
            for need in wait.needs()
        }

    def _watch(self, before: int, ticks: int, *, spun: bool) -> None:
        if self.launch.progress != before:
            self._idle_operations = 0
            self._spins = 0
            return
        self._idle_operations += ticks
        self._spins += spun
        if self._idle_operations > self.launch.max_operations or self._spins > _SPIN_LIMIT * max(
            len(self.seats), 1
        ):
            livelock(self.launch, self._idle_operations)
            self._idle_operations = self._spins = 0


class InOrder(Scheduler):
    """Warps in turn, in long slices; CTAs one after the other unless they wait for each other."""

    def __init__(self, launch: Launch, progress: Progress | None = None) -> None:
        super().__init__(launch, progress)
        self._quiet_busy = 0
        self._quiet_spin = 0
        self._rounds = 0

    def turn(self) -> None:
        """One round over all seats."""
        before = self.launch.progress
        ran = busy = False
        if self._rounds >= _BUSY_ROUNDS:
            # They may poll for a CTA that has not started, progressing all the while; twice as
            # many, or a grid barrier would take a round for each CTA of the grid.
            self._rounds = 0
            for _ in range(len(self.launch.resident)):
                if not self.start():
                    break
        for seat in list(self.seats):
            if self.can_run(seat):
                ran = True
                if self.run_slice(seat, _SLICE) not in (BLOCKED, EXITED):
                    busy = True
        self._rounds += busy
        if not ran:
            self._quiet_busy = self._quiet_spin = 0
            self.make_something_happen(spinning=False)
        elif self.launch.progress != before:
            self._quiet_busy = self._quiet_spin = 0
        elif busy:
            self._quiet_busy += 1
            if self._quiet_busy >= _BUSY_ROUNDS:
                self._quiet_busy = 0
                self.make_something_happen(spinning=True)
        else:
            self._quiet_spin += 1
            if self._quiet_spin >= _SPIN_ROUNDS:
                self.make_something_happen(spinning=True)


class Seeded(Scheduler):
    """A random warp for a random slice, with operations completing in between."""

    def __init__(self, launch: Launch, progress: Progress | None = None) -> None:
        super().__init__(launch, progress)
        self.random = random.Random(launch.seed)
        self._quiet = 0
        self._slices = 0

    def turn(self) -> None:
        """One slice of one warp."""
        launch = self.launch
        while len(launch.resident) < min(launch.sms, _RANDOM_CTAS) and self.start():
            pass
        self._slices += 1
        if self._slices > _SLICES_TO_START * max(len(self.seats), 1):
            self._slices = 0
            self.start()
        launch.engine.tick()
        seat = self._pick()
        if seat is None:
            self._quiet = 0
            self.make_something_happen(spinning=False)
            return
        before = launch.progress
        length = min(int(self.random.expovariate(1 / _RANDOM_MEAN_SLICE)) + 1, _RANDOM_MAX_SLICE)
        self.run_slice(seat, length)
        if launch.progress != before:
            self._quiet = 0
            return
        self._quiet += 1
        if self._quiet > _BUSY_ROUNDS * max(len(self.seats), 1):
            self._quiet = 0
            self.make_something_happen(spinning=True)

    def _pick(self) -> _Seat | None:
        seats = self.seats
        if not seats:
            return None
        for _ in range(2):
            seat = self.random.choice(seats)
            if self.can_run(seat):
                return seat
        first = self.random.randrange(len(seats))
        for step in range(len(seats)):
            seat = seats[(first + step) % len(seats)]
            if self.can_run(seat):
                return seat
        return None


def make_scheduler(launch: Launch, progress: Progress | None = None) -> Scheduler:
    """The scheduler of a launch's schedule."""
    policy = Seeded if launch.schedule == "random" else InOrder
    return policy(launch, progress)
