"""Prefetches: checked, and otherwise without effect (PTX ISA 9.7.9.16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cakert.sim.copies.modifiers import Modifiers
from cakert.sim.copies.tma import read_box
from cakert.sim.core.lanes import lanes_of

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.ptx.model import Instruction

__all__ = ["INSTRUCTIONS"]


def _bind_line(instruction: Instruction, binder: Binder) -> Handler:
    """``prefetch`` of a cache line: a hint, which may name any address."""
    modifiers = Modifiers(binder, instruction.modifiers)
    if instruction.opcode == "prefetchu":
        modifiers.one_of("a level", "L1")
    else:
        modifiers.find("global", "local")
        modifiers.one_of("a level", "L1", "L2", "L2::evict_last", "L2::evict_normal")
    modifiers.finish()
    binder.address(instruction.operands[0])

    def handler(warp: Warp, mask: int) -> None:
        del warp, mask

    return handler


def _bind_map(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers)
    modifiers.one_of("an object", "tensormap")
    space = modifiers.find("const", "param")
    modifiers.finish()
    source = binder.address(instruction.operands[0])
    # The address of a parameter is an offset; its generic address lies in the window of .param.
    base = 3 << 48 if space == "param" else 0

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        for lane in lanes_of(mask):
            address = source.lane(warp, lane)
            read_box(warp.cta.launch, address | base, where)

    return handler


def _bind(instruction: Instruction, binder: Binder) -> Handler:
    if "tensormap" in instruction.modifiers:
        return _bind_map(instruction, binder)
    return _bind_line(instruction, binder)


INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    "prefetch": _bind,
    "prefetchu": _bind_line,
}
