"""tcgen05.cp: shared memory to tensor memory (PTX ISA 9.7.16.9).

The source is a K-major tile of 16-byte rows (.128b) or 32-byte rows (.256b), found by a
shared-memory descriptor. ``.warpx2`` and ``.warpx4`` repeat it in the lanes of several warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.machine.asynchronous import Operation
from cakert.sim.matrix import descriptors
from cakert.sim.ptx.model import Address
from cakert.sim.tcgen05.common import issuing_lane, split_address
from cakert.sim.tcgen05.memory import tensor_memory
from cakert.sim.tcgen05.regions import Access, Region
from cakert.sim.tcgen05.targets import Modifiers, require

if TYPE_CHECKING:
    import numpy.typing as npt

    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.machine.waiting import Wait
    from cakert.sim.ptx.model import Instruction

__all__ = ["bind_cp", "bind_shift"]


@dataclass(frozen=True, slots=True, eq=False)
class _Form:
    """Where rows go.

    Attributes
    ----------
    lanes
        (copies, rows): lane of each row, relative to the address, in each copy.
    row_bytes
        16 or 32.
    """

    lanes: npt.NDArray[np.int64]
    row_bytes: int


_ROWS = np.arange(128)
_FORMS: dict[tuple[str, str | None], _Form] = {
    ("128x256b", None): _Form(_ROWS[None], 32),
    ("128x128b", None): _Form(_ROWS[None], 16),
    # One row into each quarter: the lane that tcgen05.shift leaves to be refilled.
    ("4x256b", None): _Form(32 * _ROWS[None, :4], 32),
    ("64x128b", "warpx2::02_13"): _Form(_ROWS[None, :64] + np.array([[0], [64]]), 16),
    ("64x128b", "warpx2::01_23"): _Form(
        _ROWS[None, :64] % 32 + 64 * (_ROWS[None, :64] // 32) + np.array([[0], [32]]), 16
    ),
    ("32x128b", "warpx4"): _Form(_ROWS[None, :32] + np.array([[0], [32], [64], [96]]), 16),
}


def bind_cp(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.cp.cta_group::1.SHAPE{.MULTICAST} [taddr], sdesc;``."""
    require(binder, "tcgen05")
    modifiers = Modifiers(binder)
    modifiers.cta_group()
    shape = modifiers.one_of(*{name for name, _ in _FORMS})
    multicast = modifiers.starting("warpx")
    if modifiers.starting("b8x16") is not None:
        binder.fail("copies that unpack 6-bit or 4-bit elements are not simulated")
    modifiers.end()
    form = _FORMS.get((shape, multicast))
    if form is None:
        binder.fail(f".{shape} does not go with .{multicast}")
    operands = instruction.operands
    if len(operands) != 2 or not isinstance(operands[0], Address):
        binder.fail("needs [taddr], descriptor")
    target = binder.address(operands[0])
    descriptor_row = binder.row(operands[1], 64)
    rows = form.lanes.shape[1]
    columns = form.row_bytes // 4

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        lane = issuing_lane(warp, mask, where, "tcgen05-cp-multiple-lanes")
        cta = warp.cta
        launch = cta.launch
        memory = tensor_memory(cta)
        first, column = split_address(target.lane(warp, lane))
        if first and (shape != "4x256b" or first >= 32):
            launch.fault(
                "tmem-misaligned",
                f"the copy starts at lane {first}.",
                where=where,
                advice="It must start " + ("below lane 32." if shape == "4x256b" else "at lane 0."),
            )
        word = int(warp.file64[descriptor_row, lane])
        source = descriptors.decode(word, blackwell=True, where=where, launch=launch)
        descriptors.check(
            source, rows, form.row_bytes, 1, "k", size=cta.shared.size, where=where, launch=launch
        )
        lanes = form.lanes + first
        covered = sum(1 << int(one) for one in lanes.reshape(-1))
        region = Region(covered, column, column + columns)
        if not memory.check_bounds((region,), where):
            return None
        access = Access("cp", where, warp.index, lane, writes=(region,), shape=(shape,))
        memory.admit(access)
        memory.fences.check_tensor(warp.index, (region,), where)
        memory.pending.append(access)

        def perform() -> None:
            addresses = source.addresses(rows, form.row_bytes, 1, "k")
            raw = cta.shared.async_read(addresses.reshape(-1), where)
            cells = np.ascontiguousarray(raw).view("<u4").reshape(rows, columns)
            for copy in lanes:
                memory.cells[copy, column : column + columns] = cells
                memory.written[copy, column : column + columns] = True
            access.done = True

        ranges = source.ranges(rows, form.row_bytes, 1, "k")
        launch.engine.submit(
            Operation("tcgen05.cp", where, cta, perform, order=("tensor", cta), reads=ranges)
        )
        return None

    return handler


def bind_shift(instruction: Instruction, binder: Binder) -> Handler:
    """Refuse ``tcgen05.shift.down``: no source settles which lanes one instruction moves."""
    del instruction
    require(binder, "tcgen05.shift")
    binder.fail("tcgen05.shift is not simulated")
