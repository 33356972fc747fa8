"""Registers that go to shared memory on their own: ``st.async``, ``red.async``; and ``st.bulk``.

PTX ISA 9.7.9.12, 9.7.13.7 and 9.7.9.13. The lanes of a warp that go to one CTA and one mbarrier
are one operation. The ISA does not name the proxy of ``st.async``; a read of its data by the
asynchronous proxy needs no fence here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cakert.sim.copies.boxes import Bytes
from cakert.sim.copies.hints import require_blackwell
from cakert.sim.copies.modifiers import Modifiers
from cakert.sim.copies.ranges import byte_addresses, runs
from cakert.sim.copies.reductions import OPERATIONS, Combine, combination, combined, in_shared
from cakert.sim.copies.targets import Target, single_target
from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.addresses import address_space, resolve_shared
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.ptx.model import Immediate

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import AddressSource, Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.ptx.model import Instruction

__all__ = ["INSTRUCTIONS"]

_COMPLETE_TX = "mbarrier::complete_tx::bytes"
_WORDS = ("b32", "u32", "s32", "f32")
_DOUBLES = ("b64", "u64", "s64", "f64")


class _Remote:
    """Destination and mbarrier operands of a warp, and the lanes that share them."""

    def __init__(
        self, destination: AddressSource, barrier: AddressSource, space: str, width: int
    ) -> None:
        self.destination = destination
        self.barrier = barrier
        self.space = space
        self.width = width

    def groups(
        self, warp: Warp, mask: int, where: Where
    ) -> list[tuple[Target, npt.NDArray[np.int64], list[int]]]:
        """(target, offset of each lane, lanes), one entry for each CTA and mbarrier."""
        found: dict[tuple[int, int, int], tuple[Target, list[int], list[int]]] = {}
        for lane in lanes_of(mask):
            target = single_target(
                warp.cta,
                self.destination.lane(warp, lane),
                self.barrier.lane(warp, lane),
                self.space,
                where,
            )
            if target.offset % self.width:
                warp.cta.launch.fault(
                    "shared-misaligned",
                    f"lane {lane} stores {self.width} bytes at {target.offset:#x}.",
                    where=where,
                    advice="Align the address to the size of the access.",
                )
                continue
            key = (target.cta.rank, target.barrier_cta.rank, target.barrier)
            _, offsets, lanes = found.setdefault(key, (target, [], []))
            offsets.append(target.offset)
            lanes.append(lane)
        for target, _, _ in found.values():
            target.check_barrier(where)
        return [
            (target, np.array(offsets, np.int64), lanes)
            for target, offsets, lanes in found.values()
        ]


def _remote(binder: Binder, instruction: Instruction, width: int) -> _Remote:
    if len(instruction.operands) != 3:
        binder.fail(f"takes 3 operands, got {len(instruction.operands)}")
    space = address_space(instruction.modifiers)
    destination = binder.address(instruction.operands[0])
    return _Remote(destination, binder.address(instruction.operands[2]), space, width)


def _bind_store(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[1:])
    modifiers.find("weak", "cluster")
    modifiers.find("shared::cluster")
    modifiers.one_of("a completion mechanism", _COMPLETE_TX)
    vector = int((modifiers.find("v2", "v4") or "v1")[1])
    bits = 32 if modifiers.find(*_WORDS) else 64
    if bits == 64:
        modifiers.one_of("a type", *_DOUBLES)
    modifiers.finish()
    if bits * vector > 128:
        binder.fail("stores at most 16 bytes")
    width = bits * vector // 8
    remote = _remote(binder, instruction, width)
    rows = binder.rows(instruction.operands[1], bits)
    if len(rows) != vector:
        binder.fail(f"takes {vector} source register(s), got {len(rows)}")
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        # (lanes, elements) of the sources, copied now: the registers are free at once.
        values = (warp.file32 if bits == 32 else warp.file64)[rows].T
        for target, offsets, lanes in remote.groups(warp, mask, where):
            data = np.ascontiguousarray(values[lanes]).view(np.uint8).reshape(-1)
            _submit_store(name, where, target, offsets, width, data)

    return handler


def _submit_store(
    name: str,
    where: Where,
    target: Target,
    offsets: npt.NDArray[np.int64],
    width: int,
    data: Bytes,
) -> None:
    launch = target.cta.launch

    def perform() -> None:
        target.cta.shared.async_write(byte_addresses(offsets, width), data, where)
        launch.count("bulk-bytes", len(data))
        launch.count("bulk-cluster-bytes", len(data))
        target.complete(len(data), where)

    writes = runs(offsets, width)
    launch.engine.submit(
        Operation(name, where, target.cta, perform, writes=writes, signals=target.signals)
    )


def _bind_reduce(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[1:])
    modifiers.find("relaxed")
    modifiers.find("cluster")
    modifiers.find("shared::cluster")
    modifiers.one_of("a completion mechanism", _COMPLETE_TX)
    operation = modifiers.one_of("an operation", *OPERATIONS)
    element = modifiers.one_of("a type", "b32", "u32", "s32", "u64", "s64")
    modifiers.finish()
    if element == "s64" and operation == "add":
        element = "u64"  # the same sum in two's complement
    combine = combination(operation, element)
    if combine is None or not in_shared(operation, element):
        binder.fail(f"there is no reduction .{operation}.{element} in shared memory")
    bits = int(element[1:])
    remote = _remote(binder, instruction, bits // 8)
    row = binder.row(instruction.operands[1], bits)
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        values = (warp.file32 if bits == 32 else warp.file64)[row]
        for target, offsets, lanes in remote.groups(warp, mask, where):
            data = np.ascontiguousarray(values[lanes]).view(np.uint8)
            _submit_reduce(name, where, target, offsets, data, element, combine)

    return handler


def _submit_reduce(
    name: str,
    where: Where,
    target: Target,
    offsets: npt.NDArray[np.int64],
    data: Bytes,
    element: str,
    combine: Combine,
) -> None:
    launch = target.cta.launch
    width = len(data) // len(offsets)

    def perform() -> None:
        shared = target.cta.shared
        # One after the other: lanes may go to the same element.
        for lane, start in enumerate(offsets.tolist()):
            source = data[lane * width : (lane + 1) * width]
            old = shared.async_read((start, width), where)
            shared.async_write((start, width), combined(combine, element, old, source), where)
        launch.count("bulk-bytes", len(data))
        launch.count("bulk-cluster-bytes", len(data))
        target.complete(len(data), where)

    # Atomic, so it claims no range: others may be under way on the same elements.
    launch.engine.submit(Operation(name, where, target.cta, perform, signals=target.signals))


def _bind_bulk(instruction: Instruction, binder: Binder) -> Handler:
    """``st.bulk``: zeros, written by the executing thread through the generic proxy."""
    require_blackwell(binder, "st.bulk")
    modifiers = Modifiers(binder, instruction.modifiers[1:])
    modifiers.flag("weak")
    space = modifiers.find("shared::cta") or "generic"
    modifiers.finish()
    operands = instruction.operands
    if len(operands) != 3:
        binder.fail(f"takes 3 operands, got {len(operands)}")
    destination = binder.address(operands[0])
    size = binder.row(operands[1], 64)
    if not isinstance(operands[2], Immediate) or operands[2].bits:
        binder.fail("the value must be the constant 0")

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        for lane in lanes_of(mask):
            target, start = resolve_shared(warp.cta, destination.lane(warp, lane), space, where)
            nbytes = int(warp.file64[size, lane])
            if start % 8 or nbytes % 8:
                warp.cta.launch.fault(
                    "bulk-misaligned",
                    f"zeroes {nbytes} bytes at {start:#x}; both must be multiples of 8.",
                    where=where,
                )
                continue
            places = np.arange(start, start + nbytes, dtype=np.int64)
            zeros = np.zeros(nbytes, np.uint8)
            target.shared.generic_write(
                places, zeros, 32 * warp.index + lane, where, rank=warp.cta.rank
            )

    return handler


INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    "st.async": _bind_store,
    "red.async": _bind_reduce,
    "st.bulk": _bind_bulk,
}
