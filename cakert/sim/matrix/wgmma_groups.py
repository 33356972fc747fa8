"""wgmma.fence, commit_group and wait_group, and what a warp has in flight (PTX ISA 9.7.15.7).

Commit groups are kept for each warp. A wait releases the accumulators of the groups that it covers,
as far as no later operation writes the same registers.
"""

from __future__ import annotations

from collections import Counter, deque
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

__all__ = ["INSTRUCTIONS", "Accumulator", "WarpState", "require_arch", "state_of"]


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
    """What one warp has issued."""

    fenced: bool = False
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
                "covers; their results are lost.",
            )


def require_arch(binder: Binder) -> None:
    """Refuse wgmma where the architecture has none (gpu-facts 1.3)."""
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
                "have not completed"
            ),
            finish,
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
