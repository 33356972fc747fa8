"""The mbarrier object: phase, expected and pending arrivals, transaction bytes.

The state model is that of PTX ISA "mbarrier", with phases counted in full rather than by their
parity, so that a waiter that was lapped is told::

    init(c):           phase = 0; expected = pending = c; tx = 0
    expect_tx(n):      tx += n                       (does not complete the phase by itself)
    complete_tx(n):    tx -= n;  check
    arrive(c):         pending -= c;  check
    arrive_drop(c):    expected -= c; pending -= c;  check
    check:             if pending == 0 and tx == 0: phase += 1; pending = expected

The object takes 8 bytes of shared memory whose contents are opaque: they are reserved against
data writes for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cakert.sim.faults import Where

if TYPE_CHECKING:
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Place

__all__ = ["MAX_COUNT", "NBYTES", "Mbarrier", "MbarrierTable", "pending_of", "phase_of"]

NBYTES = 8
# Ranges of the counts (PTX ISA "mbarrier": pending, expected and tx-count).
MAX_COUNT = (1 << 20) - 1
MAX_TX = (1 << 20) - 1

# The state that an arrive returns: pending count in bits 0 to 19, phase in 20 to 62, and a mark.
_PHASE_SHIFT = 20
_VALID = 1 << 63

Actor = tuple[int, int, int]  # rank of the CTA in the cluster, warp, line


def phase_of(state: int) -> int | None:
    """The phase in a state that an arrive returned, or None if it is no such state."""
    if not state & _VALID:
        return None
    return (state & ~_VALID) >> _PHASE_SHIFT


def pending_of(state: int) -> int | None:
    """The pending count in a state (``mbarrier.pending_count``), or None as for `phase_of`."""
    return state & MAX_COUNT if state & _VALID else None


class Mbarrier:
    """One mbarrier object.

    Attributes
    ----------
    cta, address
        Where it lives.
    phase
        Phases completed since its initialisation.
    expected, pending
        Arrivals a phase takes, and those still missing in the current one.
    tx
        Bytes announced minus bytes that came, in the current phase.
    """

    __slots__ = (
        "address",
        "arrived",
        "cta",
        "expected",
        "fenced",
        "init_epoch",
        "init_line",
        "init_warp",
        "known",
        "pending",
        "phase",
        "seen",
        "tx",
    )

    def __init__(
        self, cta: Cta, address: int, count: int, *, line: int = 0, warp: int = -1
    ) -> None:
        self.cta = cta
        self.address = address
        self.phase = 0
        self.expected = self.pending = count
        self.tx = 0
        self.init_line = line
        self.init_warp = warp
        self.init_epoch = cta.sync_epoch
        # Whether the initialisation is known to be visible: to other warps, to the async proxy.
        self.seen = False
        self.fenced = False
        # Who arrived in the current phase and how often, and who ever did: for reports.
        self.arrived: dict[Actor, int] = {}
        self.known: set[Actor] = set()

    # --- arrivals and transactions --------------------------------------------------------------

    def arrive(
        self,
        count: int = 1,
        where: Place = None,
        *,
        by: Actor | None = None,
        drop: bool = False,
        no_complete: bool = False,
    ) -> int:
        """Count arrivals.

        Parameters
        ----------
        count
            Arrivals.
        where
            The instruction, for faults.
        by
            Who arrives, for reports; taken from ``where`` if that is a `Where`.
        drop
            Also expect as many fewer from the next phase on (``arrive_drop``).
        no_complete
            The arrival must not complete the phase (``.noComplete``).

        Returns
        -------
        int
            The state before the arrival, 64 bits.

        Raises
        ------
        Fault
            "mbarrier-underflow", "mbarrier-count", "mbarrier-no-complete".
        """
        state = _VALID | self.phase << _PHASE_SHIFT | self.pending
        launch = self.cta.launch
        if not 1 <= count <= MAX_COUNT:
            launch.fault(
                "mbarrier-count",
                f"arrives {count} times on {self}.",
                where=where,
                advice=f"The count must lie in 1 to {MAX_COUNT}.",
            )
            return state
        if count > self.pending:
            launch.fault(
                "mbarrier-underflow",
                f"arrives {count} time(s) on {self}, but phase {self.phase} only misses "
                f"{self.pending} of {self.expected}; {self._who(self.arrived)}.",
                where=where,
                advice="Check the count of mbarrier.init against the threads that arrive in one "
                "phase, and that they wait before they arrive in the next.",
            )
            count = self.pending
        if by is None and isinstance(where, Where):
            by = (self.cta.rank, where.warp, where.line)
        if by is not None:
            self.arrived[by] = self.arrived.get(by, 0) + count
        if drop:
            self.expected -= count
        self.pending -= count
        launch.progress += 1
        if self.pending == 0 and self.tx == 0:
            if no_complete:
                launch.fault(
                    "mbarrier-no-complete",
                    f"would complete phase {self.phase} of {self}.",
                    where=where,
                    advice="Use mbarrier.arrive without .noComplete for the last arrival.",
                )
            self._complete()
        return state

    def expect_tx(self, nbytes: int, where: Place = None) -> None:
        """Announce bytes; Fault "mbarrier-tx-overflow"."""
        self._add(nbytes, where)

    def complete_tx(self, nbytes: int, where: Place = None) -> None:
        """Count bytes that came, and complete the phase if all did; Faults as `expect_tx`."""
        if not self.fenced:
            self.fenced = True
            self.cta.launch.note(
                "mbarrier-init-unfenced",
                where,
                f"the asynchronous proxy uses {self}, and no fence.mbarrier_init (or "
                "fence.proxy.async) followed its initialisation.",
            )
        self._add(-nbytes, where)
        self.cta.launch.progress += 1
        if self.pending == 0 and self.tx == 0:
            self._complete()

    def _add(self, nbytes: int, where: Place) -> None:
        self.tx += nbytes
        if not -MAX_TX <= self.tx <= MAX_TX:
            self.cta.launch.fault(
                "mbarrier-tx-overflow",
                f"brings the transaction count of {self} to {self.tx} bytes, outside +-{MAX_TX}.",
                where=where,
                advice="Announce a phase's bytes once, and let no copy of a later phase complete "
                "on the barrier before.",
            )
            self.tx = max(-MAX_TX, min(self.tx, MAX_TX))

    def _complete(self) -> None:
        self.phase += 1
        self.pending = self.expected
        self.known.update(self.arrived)
        self.arrived = {}

    # --- tests --------------------------------------------------------------------------------

    def completed(self, parity: int) -> bool:
        """Whether the phase of that parity has completed: the current one or the one before."""
        return (self.phase & 1) != (parity & 1)

    def phase_named(self, parity: int) -> int:
        """Number of the phase that a parity names: the current one, or the one before it."""
        return self.phase if (self.phase & 1) == (parity & 1) else self.phase - 1

    def passed(self, phase: int, where: Place = None) -> bool:
        """Whether a phase has completed; Fault "mbarrier-lapped" if the next one has as well.

        A thread may wait for the current phase or the one before. By its parity, one that is
        further behind waits for a phase to come (PTX ISA "mbarrier.test_wait").
        """
        if self.phase > phase + 1:
            self.cta.launch.fault(
                "mbarrier-lapped",
                f"waits for phase {phase} of {self}, but phase {self.phase} is current: on a GPU "
                "the parity names the wrong phase.",
                where=where,
                advice="Nobody may complete a phase before every waiter has seen the one before: "
                "let the waiters arrive on the barrier that its producers wait for.",
            )
        return self.phase > phase

    # --- reports ------------------------------------------------------------------------------

    def __str__(self) -> str:
        line = f", initialised at line {self.init_line}" if self.init_line else ""
        return f"mbarrier {self.address:#x} of CTA {self.cta.ctaid}{line}"

    def describe(self, phase: int) -> str:
        """A clause for the deadlock report: what a waiter for ``phase`` misses."""
        missing = f"{self.pending} of {self.expected} arrivals"
        text = (
            f"phase {phase} (parity {phase & 1}) of {self}: phase {self.phase} is current and "
            f"misses {missing} and {self.tx} bytes; {self._who(self.arrived)}"
        )
        absent = sorted(self.known - set(self.arrived))
        if absent and self.pending:
            text += f"; in earlier phases also {self._actors(absent)}"
        return text

    def _who(self, arrived: dict[Actor, int]) -> str:
        if not arrived:
            return "nobody has arrived in it"
        return "arrived in it: " + ", ".join(
            f"{self._actors([actor])} x{count}" for actor, count in sorted(arrived.items())
        )

    def _actors(self, actors: list[Actor]) -> str:
        def name(actor: Actor) -> str:
            rank, warp, line = actor
            cta = "" if rank == self.cta.rank else f"CTA rank {rank} "
            return f"{cta}warp {warp} (line {line})"

        return ", ".join(name(actor) for actor in actors)


class MbarrierTable:
    """The mbarriers that live in the shared memory of a CTA, by address."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self._barriers: dict[int, Mbarrier] = {}

    def __len__(self) -> int:
        return len(self._barriers)

    def __iter__(self) -> Iterator[Mbarrier]:
        return iter(self._barriers.values())

    def init(
        self, address: int, count: int, where: Place = None, *, line: int = 0, warp: int = -1
    ) -> Mbarrier:
        """Make a barrier.

        Raises
        ------
        Fault
            "mbarrier-misaligned", "mbarrier-count", "mbarrier-reinitialised", or
            "shared-out-of-bounds".
        """
        self._check_alignment(address, where)
        launch = self.cta.launch
        if not 1 <= count <= MAX_COUNT:
            launch.fault(
                "mbarrier-count",
                f"initialises mbarrier {address:#x} with count {count}.",
                where=where,
                advice=f"The count must lie in 1 to {MAX_COUNT}.",
            )
            count = max(1, min(count, MAX_COUNT))
        old = self._barriers.get(address)
        if old is not None:
            launch.fault(
                "mbarrier-reinitialised",
                f"initialises {old} again.",
                where=where,
                advice="Initialise a barrier once, by one thread; use mbarrier.inval first if its "
                "memory is to hold another one.",
            )
            self.cta.shared.release(address, NBYTES)
        if address + NBYTES > self.cta.shared.size:
            launch.fault(
                "shared-out-of-bounds",
                f"initialises an mbarrier at {address:#x}, past the end of the CTA's shared memory "
                f"at {self.cta.shared.size:#x}.",
                where=where,
                advice="Ask for enough dynamic shared memory, and check the index.",
            )
        else:
            owner = f"the mbarrier initialised at line {line}" if line else "an mbarrier"
            self.cta.shared.reserve(address, NBYTES, owner)
        barrier = Mbarrier(self.cta, address, count, line=line, warp=warp)
        self._barriers[address] = barrier
        return barrier

    def invalidate(self, address: int, where: Place = None) -> None:
        """End the life of a barrier (``mbarrier.inval``)."""
        if address in self._barriers:
            self.cta.shared.release(address, NBYTES)
            del self._barriers[address]
            return
        self.at(address, where)

    def at(self, address: int, where: Place = None) -> Mbarrier:
        """The barrier at an offset of the CTA's shared memory.

        Raises
        ------
        Fault
            "mbarrier-uninitialised", or "mbarrier-misaligned".
        """
        barrier = self._barriers.get(address)
        if barrier is not None:
            return barrier
        self._check_alignment(address, where)
        self.cta.launch.fault(
            "mbarrier-uninitialised",
            f"uses mbarrier {address:#x} of CTA {self.cta.ctaid}, which is not initialised; "
            f"{self._nearest(address)}.",
            where=where,
            advice="Let one thread execute mbarrier.init and fence.mbarrier_init, and synchronise "
            "the CTA (the cluster) before any use.",
        )
        # The fault is ignored: behave as a barrier that takes one arrival a phase.
        barrier = Mbarrier(self.cta, address, 1)
        self._barriers[address] = barrier
        return barrier

    def used_by(self, barrier: Mbarrier, cta: Cta, warp: int, where: Place) -> None:
        """Note a use by another warp before anything made the initialisation visible to it."""
        if barrier.seen:
            return
        if self.cta.sync_epoch != barrier.init_epoch:
            barrier.seen = True
        elif barrier.init_warp >= 0 and (cta is not self.cta or warp != barrier.init_warp):
            barrier.seen = True
            self.cta.launch.note(
                "mbarrier-init-unsynchronised",
                where,
                f"warp {warp} uses {barrier}, and no barrier of the CTA or cluster completed since "
                "its initialisation.",
            )

    def fence(self, warp: int) -> None:
        """Make the initialisations by a warp visible to the asynchronous proxy."""
        for barrier in self._barriers.values():
            if barrier.init_warp == warp:
                barrier.fenced = True

    def _check_alignment(self, address: int, where: Place) -> None:
        if address % NBYTES:
            self.cta.launch.fault(
                "mbarrier-misaligned",
                f"mbarrier {address:#x} is not at a multiple of {NBYTES} bytes.",
                where=where,
                advice=f"Give the barriers an alignment of {NBYTES}, and check the index.",
            )

    def _nearest(self, address: int) -> str:
        if not self._barriers:
            return "the CTA has none"
        near = min(self._barriers, key=lambda other: abs(other - address))
        return f"the nearest is {self._barriers[near]}"
