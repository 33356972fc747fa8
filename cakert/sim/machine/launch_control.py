"""``clusterlaunchcontrol``: a running CTA takes over clusters that have not started.

PTX ISA "clusterlaunchcontrol.try_cancel" and ".query_cancel". The response is opaque to kernels:
here its four words are x, y, z of the first CTA of the cluster, and 1 where the request succeeded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.core.lanes import lanes_of
from cakert.sim.faults import Where
from cakert.sim.machine.addresses import resolve_shared
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.ptx.model import Instruction, Vector

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Launch

__all__ = ["INSTRUCTIONS"]

RESPONSE_BYTES = 16
# Random schedule: chance that a request fails although clusters are left (hardware may do so).
_REFUSAL = 0.1
_FAILED = "clc-failed"


class _Request:
    """One try_cancel: decided once, when the first of its responses is written."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._response: np.ndarray | None = None

    def response(self) -> np.ndarray:
        if self._response is None:
            engine = self.launch.engine
            refuse = engine.schedule == "random" and engine.random.random() < _REFUSAL
            first = None if refuse else self.launch.cancel_cluster()
            words = (0, 0, 0, 0) if first is None else (*first, 1)
            self._response = np.array(words, np.uint32).view(np.uint8)
        return self._response


def _bind_try_cancel(instruction: Instruction, binder: Binder) -> Handler:
    form = re.fullmatch(
        r"clusterlaunchcontrol\.try_cancel\.async(\.shared::cta)?"
        r"\.mbarrier::complete_tx::bytes(\.multicast::cluster::all)?\.b128",
        instruction.name,
    )
    if form is None or len(instruction.operands) != 2:
        binder.fail("unknown form of clusterlaunchcontrol.try_cancel")
    space = "shared::cta" if form[1] else "generic"
    multicast = form[2] is not None
    destination = binder.address(instruction.operands[0])
    mbarrier = binder.address(instruction.operands[1])

    def handler(warp: Warp, mask: int) -> None:
        cta, launch, where = warp.cta, warp.cta.launch, warp.where()
        for lane in lanes_of(mask):
            failed = cta.state.get(_FAILED)
            if failed is not None:
                launch.fault(
                    "clc-after-failure",
                    f"asks for another cluster after a request was seen to fail (line {failed}).",
                    where=where,
                    advice="Leave the loop at the first response that is not a success.",
                )
            _, offset = resolve_shared(cta, destination.lane(warp, lane), space, where)
            _, barrier = resolve_shared(cta, mbarrier.lane(warp, lane), space, where)
            if offset % RESPONSE_BYTES:
                launch.fault(
                    "clc-misaligned",
                    f"the response at {offset:#x} is not at a multiple of {RESPONSE_BYTES} bytes.",
                    where=where,
                )
            request = _Request(launch)
            for target in cta.cluster if multicast else [cta]:
                _submit(target, offset, barrier, request, where)

    return handler


def _submit(target: Cta, offset: int, barrier: int, request: _Request, where: Where) -> None:
    def perform() -> None:
        target.shared.async_write((offset, RESPONSE_BYTES), request.response(), where)
        target.mbarriers.at(barrier, where).complete_tx(RESPONSE_BYTES, where)

    request.launch.engine.submit(
        Operation(
            "clusterlaunchcontrol.try_cancel",
            where,
            target,
            perform,
            writes=[(offset, RESPONSE_BYTES)],
            signals=[(target, barrier)],
        )
    )


def _bind_is_canceled(instruction: Instruction, binder: Binder) -> Handler:
    if instruction.modifiers[2:] != ("pred", "b128") or len(instruction.operands) != 2:
        binder.fail("unknown form of clusterlaunchcontrol.query_cancel.is_canceled")
    out = binder.out_predicate(instruction.operands[0])
    row = binder.row(instruction.operands[1], 128)
    line = instruction.line

    def handler(warp: Warp, mask: int) -> None:
        success = 0
        for lane in lanes_of(mask):
            if warp.file64[row + 1, lane] >> np.uint64(32):
                success |= 1 << lane
            else:
                warp.cta.state.setdefault(_FAILED, line)
        warp.predicates[out] = int(warp.predicates[out]) & ~mask | success

    return handler


def _bind_first_ctaid(instruction: Instruction, binder: Binder) -> Handler:
    form = re.fullmatch(
        r"clusterlaunchcontrol\.query_cancel\.get_first_ctaid(::[xyz]|\.v4)\.b32\.b128",
        instruction.name,
    )
    if form is None or len(instruction.operands) != 2:
        binder.fail("unknown form of clusterlaunchcontrol.query_cancel.get_first_ctaid")
    destination, response = instruction.operands
    if form[1] == ".v4":
        if not isinstance(destination, Vector) or len(destination.items) != 4:
            binder.fail("expected a vector of four registers")
        wanted = list(enumerate(binder.outs(destination, 32)))
    else:
        wanted = [("xyz".index(form[1][2:]), binder.out(destination, 32))]
    row = binder.row(response, 128)

    def handler(warp: Warp, mask: int) -> None:
        for lane in lanes_of(mask):
            words = warp.file64[row : row + 2, lane].copy().view(np.uint32)
            if not words[3]:
                warp.cta.launch.fault(
                    "clc-not-canceled",
                    "asks for the CTA of a request that failed.",
                    where=warp.where,
                    advice="Guard it by the predicate of query_cancel.is_canceled.",
                )
            for word, out in wanted:
                # The fourth word of .v4 is undefined; zero is as good as any.
                warp.file32[out, lane] = words[word] if word < 3 else 0

    return handler


INSTRUCTIONS = {
    "clusterlaunchcontrol.try_cancel": _bind_try_cancel,
    "clusterlaunchcontrol.query_cancel.is_canceled": _bind_is_canceled,
    "clusterlaunchcontrol.query_cancel.get_first_ctaid": _bind_first_ctaid,
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::x": _bind_first_ctaid,
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::y": _bind_first_ctaid,
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::z": _bind_first_ctaid,
}
