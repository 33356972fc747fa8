"""Named barriers: ``bar`` and ``barrier`` (PTX ISA "barrier").

A barrier counts threads in units of warps. With ``.aligned`` (and ``bar``, which implies it) a warp
arrives as a whole. Without it, lanes may arrive one after the other, and the warp counts in full as
soon as each of its live lanes has arrived.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cakert.sim.core.lanes import first_lane, lanes_of
from cakert.sim.faults import Where
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Immediate, Instruction

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.machine.cta import Cta

__all__ = ["INSTRUCTIONS", "NUM_BARRIERS", "NamedBarriers"]

NUM_BARRIERS = 16
_WARP = 32


class _Round:
    """One use of a barrier, from its first arrival to its completion."""

    __slots__ = ("arrived", "count", "done", "kind", "lines", "popc", "votes")

    def __init__(self, kind: str, count: int | None) -> None:
        self.kind = kind
        self.count = count
        self.arrived: dict[int, int] = {}
        self.lines: dict[int, int] = {}
        self.done = False
        # Of bar.red: threads whose predicate was true, and threads that took part.
        self.popc = 0
        self.votes = 0


class NamedBarriers:
    """The sixteen barriers of a CTA."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self._rounds: dict[int, _Round] = {}

    def arrive(
        self, warp: Warp, mask: int, number: int, count: int | None, *, red: bool, line: int
    ) -> _Round:
        """Count the lanes of ``mask`` in.

        Parameters
        ----------
        number
            0 to 15.
        count
            Threads that the barrier takes, or None for all of the CTA.
        red
            Whether the instruction reduces a predicate.

        Raises
        ------
        Fault
            "barrier-id", "barrier-count", "barrier-mixed", "barrier-double-arrival".
        """
        fault = self.cta.launch.fault
        if not 0 <= number < NUM_BARRIERS:
            fault(
                "barrier-id",
                f"barrier {number} does not exist.",
                where=warp.where,
                advice="Use 0 to 15.",
            )
            number %= NUM_BARRIERS
        if count is not None:
            self._check_count(warp, number, count)
        kind = "red" if red else "sync"
        current = self._rounds.get(number)
        if current is None:
            current = self._rounds[number] = _Round(kind, count)
        if self._taken(current.count) != self._taken(count):
            fault(
                "barrier-count",
                f"barrier {number} is used with {self._threads(count)} here and with "
                f"{self._threads(current.count)} by {self._who(current)}.",
                where=warp.where,
                advice="All that meet at a barrier must give the same thread count.",
            )
        if current.kind != kind:
            fault(
                "barrier-mixed",
                f"barrier {number} is a reduction for some and not for others "
                f"({self._who(current)}).",
                where=warp.where,
                advice="Do not mix red with sync or arrive on one barrier.",
            )
        before = current.arrived.get(warp.index, 0)
        if before & mask:
            fault(
                "barrier-double-arrival",
                f"warp {warp.index} arrives at barrier {number} again (first at line "
                f"{current.lines[warp.index]}) before it completed; so far {self._who(current)} "
                f"of {self._threads(count)}.",
                where=warp.where,
                advice="Alternate between two barrier ids, or wait for the consumers first.",
            )
        current.arrived[warp.index] = before | mask
        current.lines[warp.index] = line
        self.cta.launch.progress += 1
        return current

    def try_complete(self, current: _Round) -> bool:
        """Complete a round if enough have arrived; whether it is complete."""
        if current.done:
            return True
        warps = self.cta.warps
        arrived = 0
        for index, lanes in current.arrived.items():
            missing = warps[index].live & ~lanes
            arrived += lanes.bit_count() if missing else _WARP
        # Warps that have exited are not waited for by a barrier of the whole CTA.
        gone = sum(_WARP for w in warps if not w.live and w.index not in current.arrived)
        needed = current.count if current.count is not None else _WARP * len(warps) - gone
        if arrived < needed:
            return False
        number = next(n for n, other in self._rounds.items() if other is current)
        if arrived > needed:
            self.cta.launch.fault(
                "barrier-count",
                f"{arrived} threads arrived at barrier {number}, which takes {needed}: "
                f"{self._who(current)}.",
                where=self._latest(current),
                advice="Check the thread count against the warps that take part.",
            )
        current.done = True
        del self._rounds[number]
        self.cta.sync_epoch += 1
        self.cta.launch.progress += 1
        return True

    def recheck(self) -> None:
        """Look at every open barrier again: a warp has exited."""
        for current in list(self._rounds.values()):
            self.try_complete(current)

    def describe(self, number: int, current: _Round) -> str:
        """A clause for the deadlock report."""
        absent = [
            str(warp.index)
            for warp in self.cta.warps
            if warp.live & ~current.arrived.get(warp.index, 0)
        ]
        who = f"; not arrived: warps {', '.join(absent)}" if absent else ""
        return (
            f"barrier {number} of {self._threads(current.count)}; arrived: "
            f"{self._who(current)}{who}"
        )

    def _check_count(self, warp: Warp, number: int, count: int) -> None:
        most = _WARP * self.cta.num_warps
        if count % _WARP or not 0 < count <= most:
            self.cta.launch.fault(
                "barrier-count",
                f"barrier {number} is used with {count} threads.",
                where=warp.where,
                advice=f"The count must be a multiple of {_WARP} from {_WARP} to the {most} "
                "threads of the CTA.",
            )

    def _latest(self, current: _Round) -> Where:
        """Where the last warp that arrived did so."""
        index, line = list(current.lines.items())[-1]
        launch = self.cta.launch
        text = next((text for _, at, text in launch.code.operations if at == line), "")
        return Where(launch.kernel, line, text, self.cta.ctaid, index)

    def _taken(self, count: int | None) -> int:
        """Threads that a barrier takes: without a count, those of all warps."""
        return 32 * self.cta.num_warps if count is None else count

    def _threads(self, count: int | None) -> str:
        return "all threads of the CTA" if count is None else f"{count} threads"

    def _who(self, current: _Round) -> str:
        if not current.arrived:
            return "nobody"
        return ", ".join(
            f"warp {index} (line {current.lines[index]})" for index in sorted(current.arrived)
        )


# --- instructions -----------------------------------------------------------------------------

# bar{.cta}.op and barrier{.cta}.op{.aligned}
_FORM = re.compile(
    r"(?P<opcode>bar|barrier)(\.cta)?\.(?P<op>sync|arrive|red\.(?P<red>popc|and|or))"
    r"(?P<aligned>\.aligned)?(?P<type>\.u32|\.pred)?"
)


def _bind_barrier(instruction: Instruction, binder: Binder) -> Handler:
    form = _FORM.fullmatch(instruction.name)
    if form is None or (form["opcode"] == "bar" and form["aligned"]):
        binder.fail("unknown form of barrier")
    red = form["red"]
    if form["type"] != {None: None, "popc": ".u32"}.get(red, ".pred"):
        binder.fail("the type of a barrier is .u32 for red.popc, .pred for red.and and red.or")
    operands = list(instruction.operands)
    out = predicate = None
    if red is not None:
        if len(operands) not in (3, 4):
            binder.fail("expected 3 or 4 operands")
        first = operands.pop(0)
        out = binder.out(first, 32) if red == "popc" else binder.out_predicate(first)
        predicate = binder.predicate(operands.pop())
    arrive_only = form["op"] == "arrive"
    if len(operands) not in ((2,) if arrive_only else (1, 2)):
        binder.fail("expected a barrier and a thread count")
    if isinstance(operands[0], Immediate) and not 0 <= operands[0].bits < NUM_BARRIERS:
        binder.fail(f"barrier {operands[0].bits} does not exist; use 0 to 15")
    number_row = binder.row(operands[0], 32)
    count_row = binder.row(operands[1], 32) if len(operands) == 2 else None
    line = instruction.line

    def arrive(warp: Warp, mask: int) -> tuple[int, _Round]:
        numbers = warp.file32[number_row]
        lane = first_lane(mask)
        number = int(numbers[lane])
        count = None if count_row is None else int(warp.file32[count_row, lane])
        if any(
            int(numbers[other]) != number
            or (count_row is not None and int(warp.file32[count_row, other]) != count)
            for other in lanes_of(mask)
        ):
            warp.cta.launch.fault(
                "barrier-divergent",
                "lanes of the warp give different barriers or thread counts.",
                where=warp.where,
                advice="Compute both from values that are uniform in the warp.",
            )
        current = warp.cta.barriers.arrive(
            warp, mask, number, count, red=red is not None, line=line
        )
        if predicate is not None:
            current.popc += (predicate.mask(warp) & mask).bit_count()
            current.votes += mask.bit_count()
        return number, current

    def handler(warp: Warp, mask: int) -> Wait | None:
        number, current = arrive(warp, mask)
        barriers: NamedBarriers = warp.cta.barriers

        def finish() -> None:
            if out is None:
                return
            if red == "popc":
                row = warp.file32[out]
                for lane in lanes_of(mask):
                    row[lane] = current.popc
                return
            true = current.popc == current.votes if red == "and" else current.popc > 0
            old = int(warp.predicates[out])
            warp.predicates[out] = old | mask if true else old & ~mask

        complete = barriers.try_complete(current)
        if arrive_only:
            return None
        if complete:
            finish()
            return None
        return Wait(
            lambda: barriers.try_complete(current),
            lambda: barriers.describe(number, current),
            finish,
        )

    return handler


INSTRUCTIONS = {
    f"{opcode}.{op}": _bind_barrier
    for opcode in ("bar", "bar.cta", "barrier", "barrier.cta")
    for op in ("sync", "arrive", "red")
}
