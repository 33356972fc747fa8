"""The instructions of tensor copies (PTX ISA 9.7.9.27.1): operands, forms, checks at issue.

Every lane that executes such an instruction starts a copy of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cakert.sim.copies import tma
from cakert.sim.copies.boxes import Box
from cakert.sim.copies.bulk_groups import groups_of
from cakert.sim.copies.hints import bind_cache_policy, require_blackwell
from cakert.sim.copies.modifiers import Modifiers
from cakert.sim.copies.reductions import OPERATIONS
from cakert.sim.copies.targets import Target, multicast_targets, single_target
from cakert.sim.core.lanes import lanes_of
from cakert.sim.machine.addresses import resolve_shared
from cakert.sim.ptx.model import Address

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import AddressSource, Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Launch
    from cakert.sim.ptx.model import Instruction, Operand

__all__ = ["INSTRUCTIONS"]

_COLUMN_BYTES = 16
_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")
_COMPLETE_TX = "mbarrier::complete_tx::bytes"


class _Tensor:
    """The operand ``[map, {coordinates}]``.

    Parameters
    ----------
    rows_mode
        ``.tile::gather4`` or ``.tile::scatter4``: a column and four rows.
    """

    def __init__(self, operand: Operand, binder: Binder, rank: int, rows_mode: bool) -> None:
        if not isinstance(operand, Address) or operand.coordinates is None:
            binder.fail("expected a tensor operand [map, {coordinates}]")
        self.rank = rank
        self.rows_mode = rows_mode
        self.map: AddressSource = binder.address(operand)
        self.coordinates: npt.NDArray[np.int64] = binder.rows(operand.coordinates, 32)
        expected = 5 if rows_mode else rank
        if len(self.coordinates) != expected:
            binder.fail(f"takes {expected} coordinates, got {len(self.coordinates)}")
        if rows_mode and rank != 2:
            binder.fail("gather4 and scatter4 are forms of .2d")

    def request(
        self, warp: Warp, lane: int, where: Where, *, store: bool = False
    ) -> tma.Request | None:
        """What a lane asks for; None where a fault was ignored."""
        launch = warp.cta.launch
        box = tma.read_box(launch, self.map.lane(warp, lane), where)
        if box is None:
            return None
        if box.rank != self.rank:
            launch.fault(
                "tma-rank-mismatch",
                f"copies {self.rank} dimension(s) through a tensor map of rank {box.rank}.",
                where=where,
                advice="The map and the instruction must agree on the number of dimensions.",
            )
            return None
        if self.rows_mode and box.counts[1] != 1:
            launch.fault(
                "tma-box-mismatch",
                f"gathers or scatters rows through a box of {box.counts[1]} rows.",
                where=where,
                advice="Encode the tensor map with one row in its box (PTX ISA 5.5.3.4.1).",
            )
            return None
        values = warp.file32[self.coordinates, lane].view(np.int32).tolist()
        _check_coordinates(launch, box, values, where, store=store and not self.rows_mode)
        make = tma.Request.rows if self.rows_mode else tma.Request.tile
        return make(box, values)


def _check_coordinates(
    launch: Launch, box: Box, values: list[int], where: Where, *, store: bool
) -> None:
    """Refuse what an H200 refuses as an illegal instruction; the ISA does not say so.

    Columns are measured for .tile loads and stores of 2, 4 and 8 byte elements, with and without a
    swizzle; negative coordinates of a store in every dimension of rank 2 and 3.
    """
    bits = box.tensor_map.type.bits
    if values[0] * bits % (8 * _COLUMN_BYTES):
        launch.fault(
            "tma-coordinate-misaligned",
            f"starts at column {values[0]} of {bits // 8}-byte elements, which is no multiple of "
            f"{_COLUMN_BYTES} bytes.",
            where=where,
            advice="The innermost coordinate must be a multiple of 16 bytes; GPUs stop with an "
            "illegal instruction.",
        )
    if store and min(values) < 0:
        launch.fault(
            "tma-negative-store",
            f"stores to coordinates {tuple(values)}.",
            where=where,
            advice="A store may end outside of its tensor, but must not begin before it; GPUs stop "
            "with an illegal instruction.",
        )


def _check_aligned(cta: Cta, address: int, where: Where) -> None:
    if address % tma.SHARED_ALIGNMENT:
        cta.launch.fault(
            "tma-misaligned",
            f"copies a tensor to or from shared memory at {address:#x}, which is no multiple of "
            f"{tma.SHARED_ALIGNMENT}.",
            where=where,
            advice="Align the buffer: 128 bytes, or 1024 (512, 256) for a swizzle of 128 (64, 32).",
        )


def _rank(modifiers: Modifiers) -> int:
    return int(modifiers.one_of("the number of dimensions", *_DIMENSIONS)[0])


def _mode(modifiers: Modifiers, rows_mode: str, binder: Binder) -> bool:
    """Whether the copy takes four rows; ``.tile`` is the default."""
    mode = modifiers.find("tile", rows_mode)
    if mode != rows_mode:
        return False
    require_blackwell(binder, f".{rows_mode}")
    return True


def _bind_copy(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[3:])
    if modifiers.flag("bulk_group"):
        return _bind_store(instruction, binder, modifiers, None)
    return _bind_load(instruction, binder, modifiers)


def _bind_load(instruction: Instruction, binder: Binder, modifiers: Modifiers) -> Handler:
    rank = _rank(modifiers)
    space = modifiers.one_of("a destination", "shared::cta", "shared::cluster")
    modifiers.one_of("a source", "global")
    modifiers.one_of("a completion mechanism", _COMPLETE_TX)
    rows_mode = _mode(modifiers, "tile::gather4", binder)
    multicast = modifiers.flag("multicast::cluster")
    group = modifiers.find("cta_group::1", "cta_group::2")
    if group is not None:
        require_blackwell(binder, f".{group}")
    pair = group == "cta_group::2"
    hint = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if multicast and space != "shared::cluster":
        binder.fail(".multicast::cluster needs the destination .shared::cluster")
    operands = instruction.operands
    if len(operands) != 3 + multicast + hint:
        binder.fail(f"takes {3 + multicast + hint} operands, got {len(operands)}")
    destination = binder.address(operands[0])
    tensor = _Tensor(operands[1], binder, rank, rows_mode)
    barrier = binder.address(operands[2])
    ranks = binder.row(operands[3], 16) if multicast else None
    bind_cache_policy(operands, hint, binder)
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        for lane in lanes_of(mask):
            request = tensor.request(warp, lane, where)
            if request is None:
                continue
            to, told = destination.lane(warp, lane), barrier.lane(warp, lane)
            targets: list[Target]
            if ranks is None:
                targets = [single_target(warp.cta, to, told, space, where, pair=pair)]
            else:
                chosen = int(warp.file32[ranks, lane]) & 0xFFFF
                targets = multicast_targets(warp.cta, to, told, chosen, where, pair=pair)
            for number, target in enumerate(targets):
                _check_aligned(target.cta, target.offset, where)
                target.check_barrier(where)
                tma.load(name, where, request, target, again=number > 0)

    return handler


def _bind_store(
    instruction: Instruction, binder: Binder, modifiers: Modifiers, operation: str | None
) -> Handler:
    rank = _rank(modifiers)
    modifiers.one_of("a destination", "global")
    modifiers.one_of("a source", "shared::cta")
    rows_mode = _mode(modifiers, "tile::scatter4", binder)
    hint = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    operands = instruction.operands
    if len(operands) != 2 + hint:
        binder.fail(f"takes {2 + hint} operands, got {len(operands)}")
    tensor = _Tensor(operands[0], binder, rank, rows_mode)
    source = binder.address(operands[1])
    bind_cache_policy(operands, hint, binder)
    name = instruction.name

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        for lane in lanes_of(mask):
            request = tensor.request(warp, lane, where, store=True)
            if request is None:
                continue
            combine = None
            if operation is not None:
                combine = tma.combination_of(request.box, operation)
                if combine is None:
                    _refuse_reduction(warp.cta, operation, request.box, where)
                    continue
            _, start = resolve_shared(warp.cta, source.lane(warp, lane), "shared::cta", where)
            _check_aligned(warp.cta, start, where)
            tma.store(name, where, request, warp.cta, start, groups_of(warp, lane), combine)

    return handler


def _refuse_reduction(cta: Cta, operation: str, box: Box, where: Where) -> None:
    cta.launch.fault(
        "tma-reduction-type",
        f"reduces with .{operation} through a tensor map of {box.tensor_map.data_type}, for which "
        "PTX has no such operation.",
        where=where,
        advice="Encode the map with a type that the operation takes.",
    )


def _bind_reduce(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[4:])
    modifiers.one_of("a completion mechanism", "bulk_group")
    operation = modifiers.one_of("an operation", *OPERATIONS)
    return _bind_store(instruction, binder, modifiers, operation)


def _bind_prefetch(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = Modifiers(binder, instruction.modifiers[4:])
    rank = _rank(modifiers)
    modifiers.one_of("a level", "L2")
    modifiers.one_of("a source", "global")
    rows_mode = _mode(modifiers, "tile::gather4", binder)
    hint = modifiers.flag("L2::cache_hint")
    modifiers.finish()
    if len(instruction.operands) != 1 + hint:
        binder.fail(f"takes {1 + hint} operands, got {len(instruction.operands)}")
    tensor = _Tensor(instruction.operands[0], binder, rank, rows_mode)
    bind_cache_policy(instruction.operands, hint, binder)

    def handler(warp: Warp, mask: int) -> None:
        where = binder.where(warp)
        for lane in lanes_of(mask):
            tensor.request(warp, lane, where)

    return handler


INSTRUCTIONS: dict[str, Callable[[Instruction, Binder], Handler]] = {
    "cp.async.bulk.tensor": _bind_copy,
    "cp.reduce.async.bulk.tensor": _bind_reduce,
    "cp.async.bulk.prefetch.tensor": _bind_prefetch,
}
