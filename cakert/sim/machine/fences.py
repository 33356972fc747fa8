"""Fences, hints, and instructions that end or delay a thread.

Simulated warps see each other's generic accesses in the order in which they happen, so fences of
the generic proxy need do nothing. ``fence.proxy.async`` is kept account of: shared memory that was
written through the generic proxy must not be read by asynchronous operations without it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cakert.sim.core.lanes import lanes_of
from cakert.sim.faults import Fault
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Instruction

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler

__all__ = ["INSTRUCTIONS"]

_SCOPES = r"(cta|cluster|gpu|sys)"
# Form -> number of operands; these do nothing that the simulator could show.
_NOTHING = {
    rf"fence(\.(sc|acq_rel|acquire|release))?\.{_SCOPES}": 0,
    r"fence\.acquire\.sync_restrict::shared::cluster\.cluster": 0,
    r"fence\.release\.sync_restrict::shared::cta\.cluster": 0,
    r"fence\.proxy\.alias": 0,
    r"fence\.proxy\.async\.global": 0,
    rf"fence\.proxy\.tensormap::generic\.release\.{_SCOPES}": 0,
    rf"fence\.proxy\.tensormap::generic\.acquire\.{_SCOPES}": 2,
    r"membar\.(cta|gl|sys|proxy\.alias)": 0,
    # Grids of the simulator run one after the other: the one before has completed.
    r"griddepcontrol\.(wait|launch_dependents)": 0,
    r"pmevent(\.mask)?": 1,
    r"discard(\.global)?\.L2": 2,
    r"applypriority(\.global)?\.L2::evict_normal": 2,
}
_PROXY_FENCE = re.compile(
    r"fence\.proxy\.async("
    r"(\.shared::cta|\.shared::cluster|\.shared)?"
    r"|::generic\.acquire\.sync_restrict::shared::cluster\.cluster"
    r"|::generic\.release\.sync_restrict::shared::cta\.cluster)"
)


def _nothing(warp: Warp, mask: int) -> None:
    del warp, mask


def _bind_nothing(instruction: Instruction, binder: Binder) -> Handler:
    if not any(
        re.fullmatch(form, instruction.name) and len(instruction.operands) == operands
        for form, operands in _NOTHING.items()
    ):
        binder.fail(f"unknown form of {instruction.opcode}")
    return _nothing


def _bind_fence(instruction: Instruction, binder: Binder) -> Handler:
    if instruction.name == "fence.mbarrier_init.release.cluster" and not instruction.operands:
        return _mbarrier_init
    if _PROXY_FENCE.fullmatch(instruction.name) and not instruction.operands:
        return _proxy_fence
    return _bind_nothing(instruction, binder)


def _mbarrier_init(warp: Warp, mask: int) -> None:
    del mask
    warp.cta.mbarriers.fence(warp.index)


def _proxy_fence(warp: Warp, mask: int) -> None:
    warp.cta.shared.proxy_fence(warp, mask)
    warp.cta.mbarriers.fence(warp.index)


def _bind_nanosleep(instruction: Instruction, binder: Binder) -> Handler:
    if instruction.modifiers != ("u32",) or len(instruction.operands) != 1:
        binder.fail("expected nanosleep.u32 t")
    row = binder.row(instruction.operands[0], 32)

    def handler(warp: Warp, mask: int) -> Wait:
        nap = max(int(warp.file32[row, lane]) for lane in lanes_of(mask))
        # Time only passes with work: let the nap count, or a loop on a clock would last for ever.
        warp.cta.launch.clock += nap
        return Wait.pause(lambda: f"the end of a nap of {nap} ns")

    return handler


def _bind_trap(instruction: Instruction, binder: Binder) -> Handler:
    if instruction.modifiers or instruction.operands:
        binder.fail(f"{instruction.opcode} takes nothing")

    def handler(warp: Warp, mask: int) -> None:
        lanes = ", ".join(map(str, lanes_of(mask)))
        raise Fault("trap", f"the kernel stops itself in lanes {lanes}.", where=warp.where())

    return handler


INSTRUCTIONS = {
    "fence": _bind_fence,
    "membar": _bind_nothing,
    "griddepcontrol": _bind_nothing,
    "pmevent": _bind_nothing,
    "discard": _bind_nothing,
    "applypriority": _bind_nothing,
    "nanosleep": _bind_nanosleep,
    "trap": _bind_trap,
    "brkpt": _bind_trap,
}
