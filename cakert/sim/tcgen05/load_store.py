"""tcgen05.ld, tcgen05.ld.red and tcgen05.st (PTX ISA 9.7.16.8).

Both are asynchronous. Hardware honours a true dependency on the registers of a load (PTX ISA
9.7.16.6.4.5), and shipped kernels use them without tcgen05.wait::ld: so a load
delivers at once under every schedule, and only the reuse of its cells before the wait is reported.
The cells of a store are undefined until tcgen05.wait::st.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.core.lanes import mask_array
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.ptx.model import Address, Immediate
from cakert.sim.tcgen05.common import check_whole_warp, split_address, uniform_address
from cakert.sim.tcgen05.memory import tensor_memory
from cakert.sim.tcgen05.reduction import Reduction
from cakert.sim.tcgen05.regions import Access
from cakert.sim.tcgen05.shapes import SHAPES, Shape, shape
from cakert.sim.tcgen05.targets import Modifiers, require

if TYPE_CHECKING:
    import numpy.typing as npt

    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import AddressSource, Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.machine.waiting import Wait
    from cakert.sim.ptx.model import Instruction, Operand

__all__ = ["bind_ld", "bind_ld_red", "bind_st"]

_FULL = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Text:
    """Shape, count and packing of an instruction, as written."""

    name: str
    count: int
    packed: bool


def _read_shape(modifiers: Modifiers, binder: Binder, packing: str | None) -> _Text:
    modifiers.need("sync")
    modifiers.need("aligned")
    name = modifiers.one_of(*SHAPES)
    largest = SHAPES[name][1]
    number = modifiers.starting("x") or "none"
    counts = [f"x{1 << power}" for power in range(8) if 1 << power <= largest]
    if number not in counts:
        binder.fail(f"count .{number}: .{name} takes " + ", ".join(f".{one}" for one in counts))
    packed = packing is not None and modifiers.has(packing)
    return _Text(name, int(number[1:]), packed)


def _half_offset(text: _Text, operands: list[Operand], binder: Binder) -> int:
    """Take the immediate half offset of .16x32bx2, in columns; 0 for the other shapes."""
    if text.name != "16x32bx2":
        return 0
    if not operands or not isinstance(operands[0], Immediate) or operands[0].kind != "int":
        binder.fail(".16x32bx2 needs an immediate half offset")
    operand = operands.pop(0)
    assert isinstance(operand, Immediate)
    return operand.bits - (operand.bits >> 63 << 64)


def _finish_shape(text: _Text, half_offset: int, given: int, binder: Binder) -> Shape:
    result = shape(text.name, text.count, text.packed, half_offset)
    if given != result.registers:
        binder.fail(f".{text.name}.x{text.count} has {result.registers} registers, got {given}")
    return result


def _locate(
    source: AddressSource, layout: Shape, warp: Warp, mask: int, where: Where
) -> tuple[int, int]:
    """Lane and column of a warp's access.

    Fault "tmem-wrong-warp": warp w of the CTA reaches lanes 32*(w % 4) and the 31 after it (PTX
    ISA 9.7.16.8.1); "tmem-misaligned": within them an access starts at the first lane, or, with 16
    lanes, at the first or the seventeenth. Where these are ignored, the address counts as it is.
    """
    check_whole_warp(warp, mask, where)
    lane, column = split_address(uniform_address(source, warp, mask, where))
    quarter = warp.index % 4
    if lane // 32 != quarter:
        warp.cta.launch.fault(
            "tmem-wrong-warp",
            f"warp {warp.index} accesses lane {lane}; it reaches lanes {32 * quarter} to "
            f"{32 * quarter + 31} only.",
            where=where,
            advice="Add (warp % 4) << 21 to the address.",
        )
    if lane % 32 not in ((0,) if layout.lanes == 32 else (0, 16)):
        warp.cta.launch.fault(
            "tmem-misaligned",
            f"the access of {layout.lanes} lanes starts at lane {lane % 32} of its quarter.",
            where=where,
            advice="It must start at lane " + ("0." if layout.lanes == 32 else "0 or 16."),
        )
    return lane, column


def bind_ld(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.ld.sync.aligned.SHAPE.xN{.pack::16b}.b32 r, [taddr] {, half};``."""
    require(binder, "tcgen05")
    modifiers = Modifiers(binder)
    text = _read_shape(modifiers, binder, "pack::16b")
    modifiers.need("b32")
    modifiers.end()
    operands = list(instruction.operands)
    if len(operands) < 2 or not isinstance(operands[1], Address):
        binder.fail("needs registers and [taddr]")
    rows = binder.outs(operands[0], 32)
    source = binder.address(operands[1])
    rest = operands[2:]
    layout = _finish_shape(text, _half_offset(text, rest, binder), len(rows), binder)
    if rest:
        binder.fail("too many operands")
    return _load(binder, layout, source, rows, None, 0)


def bind_ld_red(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.ld.red.sync.aligned.SHAPE.xN.{min,max}{.abs}{.NaN}.TYPE r, red, [taddr];``.

    .16x32bx2 has a half offset after the address, as for tcgen05.ld; ptxas takes the type before
    or after the operation.
    """
    require(binder, "tcgen05.ld.red")
    modifiers = Modifiers(binder, skip=2)
    text = _read_shape(modifiers, binder, None)
    if text.name not in ("32x32b", "16x32bx2") or text.count < 2:
        binder.fail("ld.red takes .32x32b and .16x32bx2 from .x2")
    reduction = Reduction(
        maximum=modifiers.one_of("min", "max") == "max",
        absolute=modifiers.has("abs"),
        propagate_nan=modifiers.has("NaN"),
        type=modifiers.one_of("f32", "u32", "s32"),
    )
    if reduction.type != "f32" and (reduction.absolute or reduction.propagate_nan):
        binder.fail(".abs and .NaN are for .f32")
    modifiers.end()
    operands = list(instruction.operands)
    if len(operands) < 3 or not isinstance(operands[2], Address):
        binder.fail("needs registers, the reduced register and [taddr]")
    rows = binder.outs(operands[0], 32)
    reduced = binder.out(operands[1], 32)
    source = binder.address(operands[2])
    rest = operands[3:]
    layout = _finish_shape(text, _half_offset(text, rest, binder), len(rows), binder)
    if rest:
        binder.fail("too many operands")
    return _load(binder, layout, source, rows, reduction, reduced)


def _load(
    binder: Binder,
    layout: Shape,
    source: AddressSource,
    rows: npt.NDArray[np.int64],
    reduction: Reduction | None,
    reduced: int,
) -> Handler:
    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        lane, column = _locate(source, layout, warp, mask, where)
        memory = tensor_memory(warp.cta)
        regions = layout.regions(lane, column)
        if not memory.check_bounds(regions, where):
            return None
        access = Access("ld", where, warp.index, -1, reads=regions, done=True)
        memory.admit(access)
        memory.check_loaded(regions, where)
        memory.fences.check_load(warp.index, regions, where)
        memory.add_load(access)
        values = layout.load(memory.cells, lane, column)
        _set(warp, rows, values, mask)
        if reduction is not None:
            _set(warp, np.array([reduced]), reduction.apply(values)[None], mask)
        return None

    return handler


def _set(
    warp: Warp, rows: npt.NDArray[np.int64], values: npt.NDArray[np.uint32], mask: int
) -> None:
    if mask == _FULL:
        warp.file32[rows] = values
    else:
        lanes = np.nonzero(mask_array(mask))[0]
        warp.file32[rows[:, None], lanes] = values[:, lanes]


def bind_st(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.st.sync.aligned.SHAPE.xN{.unpack::16b}.b32 [taddr], {half,} r;``."""
    require(binder, "tcgen05")
    modifiers = Modifiers(binder)
    text = _read_shape(modifiers, binder, "unpack::16b")
    modifiers.need("b32")
    modifiers.end()
    operands = list(instruction.operands)
    if len(operands) < 2 or not isinstance(operands[0], Address):
        binder.fail("needs [taddr] and registers")
    target = binder.address(operands[0])
    rest = operands[1:]
    half_offset = _half_offset(text, rest, binder)
    if len(rest) != 1:
        binder.fail("needs one list of registers")
    rows = binder.rows(rest[0], 32)
    layout = _finish_shape(text, half_offset, len(rows), binder)

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        lane, column = _locate(target, layout, warp, mask, where)
        memory = tensor_memory(warp.cta)
        regions = layout.regions(lane, column)
        if not memory.check_bounds(regions, where):
            return None
        access = Access("st", where, warp.index, -1, writes=regions)
        memory.admit(access)
        memory.pending.append(access)
        values = warp.file32[rows]

        def perform() -> None:
            layout.store(memory.cells, lane, column, values)
            for region in regions:
                memory.written[region.lane_indices(), region.start : region.stop] = True
            access.done = True

        operation = Operation(
            "tcgen05.st",
            where,
            warp.cta,
            perform,
            order=("tcgen05.st", warp),
            signals=[access],
        )
        warp.cta.launch.engine.submit(operation)
        return None

    return handler
