"""Bulk copies of contiguous bytes (PTX ISA 9.7.9.25.4): ``cp{.reduce}.async.bulk``.

Addresses and sizes are multiples of 16 bytes. Every lane that executes one starts its own copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.copies.boxes import Bytes
from cakert.sim.copies.bulk_groups import BulkGroups, groups_of, submit_outgoing
from cakert.sim.copies.hints import bind_cache_policy, require_blackwell
from cakert.sim.copies.modifiers import Modifiers
from cakert.sim.copies.reductions import (
    ELEMENT_TYPES,
    OPERATIONS,
    Combine,
    combination,
    combined,
    in_shared,
)
from cakert.sim.copies.targets import Target, multicast_targets, single_target
from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.addresses import resolve_shared
from cakert.sim.machine.asynchronous import Operation

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta
    from cakert.sim.ptx.model import Instruction

__all__ = ["INSTRUCTIONS"]

_UNIT = 16
_COMPLETE_TX = "mbarrier::complete_tx::bytes"


def _aligned(cta: Cta, where: Where, nbytes: int, *addresses: int) -> bool:
    """Fault "bulk-misaligned"; False where it is ignored, and the copy is then left out."""
    wrong = [f"address {address:#x}" for address in addresses if address % _UNIT]
    if nbytes % _UNIT:
        wrong.insert(0, f"size {nbytes}")
    if not wrong:
        return True
    cta.launch.fault(
        "bulk-misaligned",
        f"copies in bulk with {' and '.join(wrong)}, no multiple of {_UNIT}.",
        where=where,
        advice="Align both ends and the size to 16 bytes.",
    )
    return False


def _start_load(
    name: str, where: Where, source: int, nbytes: int, target: Target, again: bool
) -> None:
    """Global memory -> shared memory of one CTA; ``again`` as of `tma.load`."""
    launch = target.cta.launch

    def perform() -> None:
        data = launch.memory.view(source, nbytes, where)
        target.cta.shared.async_write((target.offset, nbytes), data, where)
        launch.count("bulk-bytes", nbytes)
        if again:
            launch.count("bulk-multicast-bytes", nbytes)
        target.complete(nbytes, where)

    writes = ((target.offset, nbytes),)
    launch.engine.submit(
        Operation(name, where, target.cta, perform, writes=writes, signals=target.signals)
    )


def _start_exchange(
    name: str,
    where: Where,
    cta: Cta,
    source: int,
    nbytes: int,
    target: Target,
    update: Callable[[Bytes], Bytes] | None,
) -> None:
    """Shared memory of this CTA -> shared memory of one of the cluster.

    The operation belongs to the CTA that receives; the range that it reads is registered here,
    because it may be in another shared memory. Reductions (``update``) do not claim what they
    write: several may be under way on the same elements.
    """
    launch = cta.launch

    def perform() -> None:
        data = cta.shared.async_read((source, nbytes), where)
        cta.shared.end_async(reader)
        if update is not None:
            data = update(data)
        target.cta.shared.async_write((target.offset, nbytes), data, where)
        launch.count("bulk-bytes", nbytes)
        launch.count("bulk-cluster-bytes", nbytes)
        target.complete(nbytes, where)

    reader = Operation(name, where, cta, perform)
    cta.shared.begin_async(reader, ((source, nbytes),), ())
    writes = ((target.offset, nbytes),) if update is None else ()
    launch.engine.submit(
        Operation(name, where, target.cta, perform, writes=writes, signals=target.signals)
    )


def _start_store(
    name: str,
    where: Where,
    cta: Cta,
    source: int,
    nbytes: int,
    groups: BulkGroups,
    put: Callable[[Bytes], None],
) -> None:
    """Shared memory of this CTA -> global memory."""

    def take() -> Bytes:
        return cta.shared.async_read((source, nbytes), where)

    submit_outgoing(name, where, cta, groups, (source, nbytes), take, put)


def _bind_copy(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[2:])
    if modifiers.flag("bulk_group"):
        return _bind_store(instruction, binder, modifiers, None)
    return _bind_incoming(instruction, binder, modifiers)


def _refuse_copy_to_self(cta: Cta, where: Where) -> None:
    """An H200 stops at a copy to its own shared memory in a launch without clusters."""
    cta.launch.fault(
        "bulk-without-cluster",
        "copies from shared memory to shared memory in a launch without clusters.",
        where=where,
        advice="Launch with a cluster, or copy with loads and stores; GPUs stop with an illegal "
        "instruction.",
    )


def _bind_incoming(instruction: Instruction, binder: Binder, modifiers: Modifiers) -> Handler:
    source_space, space = _spaces(instruction, binder, modifiers)
    modifiers.one_of("a completion mechanism", _COMPLETE_TX)
    from_global = source_space == "global"
    multicast = modifiers.flag("multicast::cluster")
    hint = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if multicast and (space != "shared::cluster" or not from_global):
        binder.fail(".multicast::cluster is a form of .shared::cluster.global")
    if hint and not from_global:
        binder.fail(".L2::cache_hint needs global memory at one end")
    if not from_global and space != "shared::cluster":
        binder.fail("a copy from shared memory goes to .shared::cluster or .global")
    operands = instruction.operands
    if len(operands) != 4 + multicast + hint:
        binder.fail(f"takes {4 + multicast + hint} operands, got {len(operands)}")
    destination = binder.address(operands[0])
    source = binder.address(operands[1])
    size = binder.row(operands[2], 32)
    barrier = binder.address(operands[3])
    ranks = binder.row(operands[4], 16) if multicast else None
    bind_cache_policy(operands, hint, binder)
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        cta = warp.cta
        for lane in lanes_of(mask):
            start = source.lane(warp, lane)
            nbytes = int(warp.file32[size, lane])
            to, told = destination.lane(warp, lane), barrier.lane(warp, lane)
            targets: list[Target]
            if ranks is None:
                targets = [single_target(cta, to, told, space, where)]
            else:
                chosen = int(warp.file32[ranks, lane]) & 0xFFFF
                targets = multicast_targets(cta, to, told, chosen, where)
            for number, target in enumerate(targets):
                if not _aligned(cta, where, nbytes, target.offset, start):
                    continue
                target.check_barrier(where)
                if not from_global and len(cta.cluster) == 1:
                    _refuse_copy_to_self(cta, where)
                if from_global:
                    _start_load(name, where, start, nbytes, target, number > 0)
                else:
                    _, offset = resolve_shared(cta, start, "shared::cta", where)
                    _start_exchange(name, where, cta, offset, nbytes, target, None)

    return handler


def _spaces(instruction: Instruction, binder: Binder, modifiers: Modifiers) -> tuple[str, str]:
    """(source, destination), which the mnemonic names in the order destination, source."""
    known = ("global", "shared::cta", "shared::cluster")
    named = [name for name in instruction.modifiers if name in known]
    if len(named) != 2:
        binder.fail("expected .destination.source out of .global, .shared::cta, .shared::cluster")
    destination, source = named
    for name in named:
        modifiers.flag(name)
    if destination == "global" or source not in ("global", "shared::cta"):
        binder.fail(f"no such copy: from .{source} to .{destination}")
    return source, destination


def _bind_store(
    instruction: Instruction, binder: Binder, modifiers: Modifiers, operation: str | None
) -> Handler:
    modifiers.one_of("a destination", "global")
    modifiers.one_of("a source", "shared::cta")
    hint = modifiers.flag("L2::cache_hint")
    masked = operation is None and modifiers.flag("cp_mask")
    element, combine = _reduction(modifiers, operation, binder)
    modifiers.finish()
    if masked:
        require_blackwell(binder, ".cp_mask")
    operands = instruction.operands
    if len(operands) != 3 + hint + masked:
        binder.fail(f"takes {3 + hint + masked} operands, got {len(operands)}")
    destination = binder.address(operands[0])
    source = binder.address(operands[1])
    size = binder.row(operands[2], 32)
    bind_cache_policy(operands[: 3 + hint], hint, binder)
    byte_mask = binder.row(operands[-1], 16) if masked else None
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        cta = warp.cta
        for lane in lanes_of(mask):
            address = destination.lane(warp, lane)
            nbytes = int(warp.file32[size, lane])
            _, start = resolve_shared(cta, source.lane(warp, lane), "shared::cta", where)
            if not _aligned(cta, where, nbytes, address, start):
                continue
            chosen = 0xFFFF if byte_mask is None else int(warp.file32[byte_mask, lane])
            put = _writer(cta, where, address, nbytes, chosen, element, combine)
            _start_store(name, where, cta, start, nbytes, groups_of(warp, lane), put)

    return handler


def _writer(
    cta: Cta,
    where: Where,
    address: int,
    nbytes: int,
    chosen: int,
    element: str,
    combine: Combine | None,
) -> Callable[[Bytes], None]:
    """What a store does with its data: overwrite the ``chosen`` bytes of each 16, or reduce."""
    launch = cta.launch

    def put(data: Bytes) -> None:
        memory = launch.memory.view(address, nbytes, where, True)
        if combine is not None:
            memory[...] = combined(combine, element, memory, data)
        else:
            bits = np.array([chosen >> i & 1 for i in range(_UNIT)], np.bool_)
            kept = np.resize(bits, nbytes)
            memory[kept] = data[kept]
        launch.count("bulk-bytes", nbytes)

    return put


def _reduction(
    modifiers: Modifiers, operation: str | None, binder: Binder
) -> tuple[str, Combine | None]:
    """Element type and function of a reduction; ("", None) for a plain copy."""
    if operation is None:
        return "", None
    element = modifiers.one_of("an element type", *ELEMENT_TYPES)
    half = element in ("f16", "bf16")
    noftz = modifiers.flag("noftz")
    if noftz != (half and operation == "add"):
        binder.fail(".noftz belongs to .add of .f16 and .bf16, which need it")
    combine = combination(operation, element)
    if combine is None:
        binder.fail(f"there is no reduction .{operation}.{element}")
    return element, combine


def _bind_reduce(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[3:])
    operation = modifiers.one_of("an operation", *OPERATIONS)
    if modifiers.flag("bulk_group"):
        return _bind_store(instruction, binder, modifiers, operation)
    return _bind_exchange_reduce(instruction, binder, modifiers, operation)


def _bind_exchange_reduce(
    instruction: Instruction, binder: Binder, modifiers: Modifiers, operation: str
) -> Handler:
    modifiers.one_of("a destination", "shared::cluster")
    modifiers.one_of("a source", "shared::cta")
    modifiers.one_of("a completion mechanism", _COMPLETE_TX)
    element, combine = _reduction(modifiers, operation, binder)
    modifiers.finish()
    if combine is None or not in_shared(operation, element):
        binder.fail(f"there is no reduction .{operation}.{element} in shared memory")
    if len(instruction.operands) != 4:
        binder.fail(f"takes 4 operands, got {len(instruction.operands)}")
    destination = binder.address(instruction.operands[0])
    source = binder.address(instruction.operands[1])
    size = binder.row(instruction.operands[2], 32)
    barrier = binder.address(instruction.operands[3])
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        cta = warp.cta
        for lane in lanes_of(mask):
            nbytes = int(warp.file32[size, lane])
            to, told = destination.lane(warp, lane), barrier.lane(warp, lane)
            target = single_target(cta, to, told, "shared::cluster", where)
            _, start = resolve_shared(cta, source.lane(warp, lane), "shared::cta", where)
            if not _aligned(cta, where, nbytes, target.offset, start):
                continue
            target.check_barrier(where)

            def update(data: Bytes, target: Target = target, nbytes: int = nbytes) -> Bytes:
                old = target.cta.shared.async_read((target.offset, nbytes), where)
                return combined(combine, element, old, data)

            _start_exchange(name, where, cta, start, nbytes, target, update)

    return handler


def _bind_prefetch(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[3:])
    modifiers.one_of("a level", "L2")
    modifiers.one_of("a source", "global")
    hint = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if len(instruction.operands) != 2 + hint:
        binder.fail(f"takes {2 + hint} operands, got {len(instruction.operands)}")
    source = binder.address(instruction.operands[0])
    size = binder.row(instruction.operands[1], 32)
    bind_cache_policy(instruction.operands, hint, binder)

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        for lane in lanes_of(mask):
            address, nbytes = source.lane(warp, lane), int(warp.file32[size, lane])
            if _aligned(warp.cta, where, nbytes, address):
                warp.cta.launch.memory.view(address, nbytes, where)

    return handler


INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    "cp.async.bulk": _bind_copy,
    "cp.reduce.async.bulk": _bind_reduce,
    "cp.async.bulk.prefetch": _bind_prefetch,
}
