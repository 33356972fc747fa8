"""wgmma.fence, commit_group and wait_group, and what a warp has in flight (PTX ISA 9.7.15.7).

Multiplications belong to a warpgroup, commit groups to each warp. A wait releases the accumulators
of the groups that it covers, as far as no later operation writes the same registers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cakert.sim.machine.asynchronous import Operation
from cakert.sim.machine.waiting import Wait
from cakert.sim.matrix.binding import operands, require_full_warp
from cakert.sim.ptx.model import Immediate, Instruction

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.faults import Where

__all__ = ["INSTRUCTIONS", "Accumulator", "WarpState", "require_arch", "state_of"]


WARPS_PER_WARPGROUP = 4


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Registers of a D operand; equal ones may be chained without a wait.

    Two are equal if they have the same type and the same registers in the same order.
    """

    key: bytes
    dtype: str = field(compare=False)
    columns: int = field(compare=False)
    rows: frozenset[int] = field(compare=False)


@dataclass(slots=True)
class _Group:
    """wgmma operations that one ``wgmma.commit_group`` closed, or that none has closed yet."""

    operations: list[Operation] = field(default_factory=list)
    accumulators: set[Accumulator] = field(default_factory=set)


@dataclass(slots=True)
class WarpState:
    """What one warp has issued; ``issued`` counts its wgmma.mma_async."""

    fenced: bool = False
    issued: int = 0
    open: _Group = field(default_factory=_Group)
    committed: deque[_Group] = field(default_factory=deque)
    # Accumulators that no wait has released, with the number of groups that write each.
    in_flight: Counter[Accumulator] = field(default_factory=Counter)


def state_of(warp: Warp) -> WarpState:
    """What a warp has issued; made, with the check at the CTA's exit, when first asked for."""
    cta = warp.cta
    states: dict[int, WarpState] | None = cta.state.get("wgmma")
    if states is None:
        states = cta.state["wgmma"] = {}
        cta.at_exit.append(lambda: _note_exit(cta))
    state = states.get(warp.index)
    if state is None:
        state = states[warp.index] = WarpState()
    return state


@dataclass(slots=True)
class _Collective:
    """A multiplication that not all four warps have issued yet."""

    operation: Operation
    parts: list[Callable[[], None]] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Warpgroup:
    """Multiplications of a warpgroup in the order of issue.

    Attributes
    ----------
    started
        How many all four warps have issued.
    gathering
        Those that come after.
    """

    started: int = 0
    gathering: deque[_Collective] = field(default_factory=deque)


def join(
    warp: Warp,
    name: str,
    where: Where,
    perform: Callable[[], None],
    reads: Iterable[tuple[int, int]],
) -> Operation:
    """Add one warp's rows to the multiplication that its warpgroup issues together.

    A warpgroup multiplies collectively (PTX ISA 9.7.15, "Asynchronous Warpgroup Level Matrix
    Instructions"): the operation starts when the fourth warp has issued it, and is complete for
    all four at once. Shipped kernels overwrite operands after the wgmma.wait_group of one warp.

    Parameters
    ----------
    perform
        Computes the rows of this warp.
    reads
        Ranges of shared memory that this takes.

    Returns
    -------
    Operation
        The same one for all four warps.

    Raises
    ------
    Fault
        "wgmma-diverged": another warp of the warpgroup issued another instruction in its place.
    """
    cta = warp.cta
    groups: dict[int, _Warpgroup] = cta.state.setdefault("wgmma-warpgroups", {})
    number = warp.index // WARPS_PER_WARPGROUP
    group = groups.setdefault(number, _Warpgroup())
    state = state_of(warp)
    position = state.issued - group.started
    state.issued += 1
    if position == len(group.gathering):
        parts: list[Callable[[], None]] = []

        def multiply() -> None:
            for part in parts:
                part()

        operation = Operation(name, where, cta, multiply, order=("wgmma", cta, number))
        group.gathering.append(_Collective(operation, parts))
    collective = group.gathering[position]
    first = collective.operation.where
    if (first.line, first.text) != (where.line, where.text):
        cta.launch.fault(
            "wgmma-diverged",
            f"another warp of the warpgroup executes `{first.text}` (line {first.line}) in its "
            "place.",
            where=where,
            advice="All four warps of a warpgroup must execute the same wgmma instructions.",
        )
    collective.parts.append(perform)
    collective.reads += reads
    if len(collective.parts) == WARPS_PER_WARPGROUP:
        group.gathering.popleft()
        group.started += 1
        collective.operation.reads = tuple(dict.fromkeys(collective.reads))
        cta.launch.engine.submit(collective.operation)
    return collective.operation


def _note_exit(cta: Any) -> None:
    """Note wgmma operations that a CTA leaves unwaited when it exits."""
    for index, state in cta.state["wgmma"].items():
        left = [*(op for group in state.committed for op in group.operations)]
        left += state.open.operations
        if left:
            cta.launch.note(
                "wgmma-exit-in-flight",
                left[-1].where,
                f"warp {index} exits with {len(left)} wgmma operations that no wgmma.wait_group "
                "covers; their results are lost. Execute wgmma.wait_group 0 before the end.",
            )


def require_arch(binder: Binder) -> None:
    """Refuse wgmma where the architecture has none (PTX ISA 9.7.15)."""
    if binder.arch != "sm_90a":
        binder.fail(f"wgmma exists on sm_90a only, the target is {binder.arch}")


def _bind_fence(instruction: Instruction, binder: Binder) -> Handler:
    require_arch(binder)
    if instruction.modifiers != ("fence", "sync", "aligned"):
        binder.fail("expected wgmma.fence.sync.aligned")
    operands(instruction, binder, 0)

    def handler(warp: Warp, mask: int) -> Wait | None:
        require_full_warp(warp, mask)
        state_of(warp).fenced = True
        return None

    return handler


def _bind_commit(instruction: Instruction, binder: Binder) -> Handler:
    require_arch(binder)
    if instruction.modifiers != ("commit_group", "sync", "aligned"):
        binder.fail("expected wgmma.commit_group.sync.aligned")
    operands(instruction, binder, 0)

    def handler(warp: Warp, mask: int) -> Wait | None:
        require_full_warp(warp, mask)
        state = state_of(warp)
        # An empty group counts too (PTX ISA 9.7.15.7.2).
        state.committed.append(state.open)
        state.open = _Group()
        return None

    return handler


def _bind_wait(instruction: Instruction, binder: Binder) -> Handler:
    require_arch(binder)
    if instruction.modifiers != ("wait_group", "sync", "aligned"):
        binder.fail("expected wgmma.wait_group.sync.aligned")
    (operand,) = operands(instruction, binder, 1)
    if not isinstance(operand, Immediate) or operand.kind != "int" or operand.bits >> 31:
        binder.fail("the number of groups must be a constant that is not negative")
    newest = operand.bits

    def handler(warp: Warp, mask: int) -> Wait | None:
        require_full_warp(warp, mask)
        state = state_of(warp)
        covered = list(state.committed)[: max(len(state.committed) - newest, 0)]
        awaited = [operation for group in covered for operation in group.operations]

        def ready() -> bool:
            return all(operation.done for operation in awaited)

        def finish() -> None:
            _release(warp, state, len(covered))

        if ready():
            finish()
            return None
        pending = sum(not operation.done for operation in awaited)
        return Wait(
            ready,
            lambda: (
                f"wgmma.wait_group {newest}: {pending} wgmma operations of warp {warp.index} "
                "have not completed (each needs all four warps of the warpgroup)"
            ),
            finish,
            needs=lambda: [operation for operation in awaited if not operation.done],
        )

    return handler


def _release(warp: Warp, state: WarpState, count: int) -> None:
    """Forget the oldest `count` groups; registers that no later operation writes become free."""
    for _ in range(count):
        for accumulator in state.committed.popleft().accumulators:
            state.in_flight[accumulator] -= 1
            if state.in_flight[accumulator] == 0:
                del state.in_flight[accumulator]
                free = accumulator.rows.difference(*(other.rows for other in state.in_flight))
                warp.clear_busy(np.array(sorted(free), np.int64))


INSTRUCTIONS = {
    "wgmma.fence": _bind_fence,
    "wgmma.commit_group": _bind_commit,
    "wgmma.wait_group": _bind_wait,
}
