"""tcgen05.alloc, tcgen05.dealloc, tcgen05.relinquish_alloc_permit (PTX ISA 9.7.16.7.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.core.lanes import first_lane
from cakert.sim.machine.addresses import address_space, resolve_shared
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Address
from cakert.sim.tcgen05.common import check_whole_warp
from cakert.sim.tcgen05.memory import TensorMemory, tensor_memory
from cakert.sim.tcgen05.targets import Modifiers, require

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.ptx.model import Instruction

__all__ = ["bind_alloc", "bind_dealloc", "bind_relinquish"]


def _modifiers(binder: Binder) -> Modifiers:
    require(binder, "tcgen05")
    modifiers = Modifiers(binder)
    modifiers.cta_group()
    modifiers.need("sync")
    modifiers.need("aligned")
    return modifiers


def bind_alloc(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.alloc.cta_group::1.sync.aligned{.shared::cta}.b32 [dst], nCols;``."""
    modifiers = _modifiers(binder)
    space = address_space(instruction.modifiers)
    modifiers.has("shared::cta")
    modifiers.need("b32")
    modifiers.end()
    if len(instruction.operands) != 2:
        binder.fail("needs [dst], nCols")
    destination, count = instruction.operands
    if not isinstance(destination, Address):
        binder.fail("the destination must be an address")
    address = binder.address(destination)
    columns_row = binder.row(count, 32)

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        check_whole_warp(warp, mask, where)
        lane = first_lane(mask)
        columns = int(warp.file32[columns_row, lane])
        memory = tensor_memory(warp.cta)
        memory.check_allocation(columns, where)
        place = address.lane(warp, lane)

        def write(base: int) -> None:
            target, offset = resolve_shared(warp.cta, place, space, where)
            target.shared.generic_write(
                np.arange(offset, offset + 4, dtype=np.int64),
                np.array([base], "<u4").view(np.uint8),
                32 * warp.index + lane,
                where,
            )

        base = memory.allocate(columns, where)
        if base is not None:
            write(base)
            return None
        return _wait_for_columns(memory, columns, where, write)

    return handler


def _wait_for_columns(
    memory: TensorMemory, columns: int, where: Where, write: Callable[[int], None]
) -> Wait:
    def ready() -> bool:
        return memory.has_room(columns)

    def finish() -> None:
        base = memory.allocate(columns, where)
        assert base is not None
        write(base)

    def describe() -> str:
        taken = ", ".join(
            f"{one.columns} at {one.base:#x} since line {one.where.line}"
            for one in memory.allocations.values()
        )
        return f"tcgen05.alloc waits for {columns} free columns of tensor memory (taken: {taken})"

    return Wait(ready, describe, finish)


def bind_dealloc(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.dealloc.cta_group::1.sync.aligned.b32 taddr, nCols;``."""
    modifiers = _modifiers(binder)
    modifiers.need("b32")
    modifiers.end()
    if len(instruction.operands) != 2:
        binder.fail("needs taddr, nCols")
    base_row, columns_row = (binder.row(operand, 32) for operand in instruction.operands)

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        check_whole_warp(warp, mask, where)
        lane = first_lane(mask)
        tensor_memory(warp.cta).free(
            int(warp.file32[base_row, lane]), int(warp.file32[columns_row, lane]), where
        )
        return None

    return handler


def bind_relinquish(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;``."""
    _modifiers(binder).end()
    if instruction.operands:
        binder.fail("takes no operands")

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        check_whole_warp(warp, mask, where)
        tensor_memory(warp.cta).relinquish(where)
        return None

    return handler
