"""tcgen05.mma and tcgen05.mma.ws: dense, one CTA, A from shared or tensor memory.

PTX ISA 9.7.16.10. An MMA is one operation in the CTA's tensor queue, which
executes in order of issue. Products are exact, the sum over one instruction's K and the old D is
taken in float64 and rounded once: the ISA leaves order and internal rounding open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cakert.sim.faults import Fault
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.matrix import descriptors, formats
from cakert.sim.tcgen05 import cost, instruction_descriptor
from cakert.sim.tcgen05.common import issuing_lane, split_address
from cakert.sim.tcgen05.memory import TensorMemory, tensor_memory
from cakert.sim.tcgen05.mma_form import MmaForm, read_form
from cakert.sim.tcgen05.placement import Bank, Placement, place
from cakert.sim.tcgen05.regions import Access, Region

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.faults import Where
    from cakert.sim.machine.waiting import Wait
    from cakert.sim.matrix.descriptors import SharedDescriptor
    from cakert.sim.ptx.model import Instruction
    from cakert.sim.tcgen05.instruction_descriptor import InstructionDescriptor

__all__ = ["bind_mma", "bind_mma_ws"]

_A_COLUMNS = 8  # K of one instruction is 256 bits of a lane


@dataclass(frozen=True, slots=True, eq=False)
class _Issue:
    """One MMA on its way through the tensor pipe."""

    where: Where
    descriptor: InstructionDescriptor
    placement: Placement
    d_column: int
    a_column: int
    a_shared: SharedDescriptor | None
    b_shared: SharedDescriptor
    accumulate: bool
    scale: int
    disabled: int


def bind_mma(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.mma.cta_group::1.kind::K [d], adesc|[a], bdesc, idesc, {mask,} p {, scale};``."""
    return _bind(instruction, binder, ws=False)


def bind_mma_ws(instruction: Instruction, binder: Binder) -> Handler:
    """``tcgen05.mma.ws.cta_group::1.kind::K [d], adesc|[a], bdesc, idesc, p {, zero-columns};``."""
    return _bind(instruction, binder, ws=True)


def _bind(instruction: Instruction, binder: Binder, ws: bool) -> Handler:
    form = read_form(instruction, binder, ws)

    def handler(warp: Warp, mask: int) -> Wait | None:
        where = binder.where(warp)
        lane = issuing_lane(warp, mask, where, "tcgen05-mma-multiple-lanes")
        _issue(form, warp, lane, where)
        return None

    return handler


def _issue(form: MmaForm, warp: Warp, lane: int, where: Where) -> None:
    cta = warp.cta
    launch = cta.launch
    memory = tensor_memory(cta)
    word = int(warp.file32[form.word_row, lane])
    descriptor = instruction_descriptor.decode(word, form.kind, form.ws, where)
    _check_zero_columns(form, warp, lane, where)
    if descriptor.m == 128 and descriptor.n % 16:
        launch.note(
            "uncertain-mma-shape",
            where,
            f"N = {descriptor.n} with M = 128: the ISA allows steps of 8, CUTLASS takes 16 only; "
            "take a multiple of 16.",
        )
    d_lane, d_column = split_address(form.d.lane(warp, lane))
    placement = place(descriptor.m, descriptor.n, form.ws, d_lane)
    if placement is None:
        _misaligned("D", d_lane, descriptor, form.ws, warp, where)
        return
    b_shared = _shared(int(warp.file64[form.b_row, lane]), descriptor, warp, where, is_a=False)
    a_shared, a_column = None, 0
    reads: tuple[Region, ...] = ()
    a_key: tuple[object, ...]
    if form.a_tensor is None:
        a_shared = _shared(int(warp.file64[form.a_row, lane]), descriptor, warp, where, is_a=True)
        a_key = ("shared", a_shared, word)
    else:
        a_lane, a_column = split_address(form.a_tensor.lane(warp, lane))
        if a_lane != d_lane:
            _misaligned("A", a_lane, descriptor, form.ws, warp, where)
            return
        _check_tensor_major(descriptor, where)
        reads = (Region(placement.lanes, a_column, a_column + _A_COLUMNS),)
        a_key = ("tensor", a_lane, a_column, word)
    writes = (Region(placement.lanes, d_column, d_column + placement.columns),)
    if not memory.check_bounds(reads + writes, where):
        return
    key = a_key if not form.ws else ("shared", b_shared, word)
    _collect(form, memory, key, where, warp)
    _count(form, memory, descriptor, a_shared is not None, warp)

    access = Access(
        "mma",
        where,
        warp.index,
        lane,
        reads=reads,
        writes=writes,
        shape=(form.kind, form.ws, descriptor.m, descriptor.n, d_lane, d_column),
    )
    memory.admit(access)
    memory.fences.check_tensor(warp.index, reads + writes, where)
    memory.pending.append(access)
    issue = _Issue(
        where=where,
        descriptor=descriptor,
        placement=placement,
        d_column=d_column,
        a_column=a_column,
        a_shared=a_shared,
        b_shared=b_shared,
        accumulate=bool(form.accumulate.mask(warp) >> lane & 1),
        scale=form.scale,
        disabled=_lane_mask(form, warp, lane),
    )

    def perform() -> None:
        _multiply(memory, issue, writes, reads)
        access.done = True

    ranges = b_shared.ranges(
        descriptor.n, descriptor.k, descriptor.element_bytes, descriptor.major_b
    )
    if a_shared is not None:
        ranges += a_shared.ranges(
            descriptor.m, descriptor.k, descriptor.element_bytes, descriptor.major_a
        )
    launch.engine.submit(
        Operation("tcgen05.mma", where, cta, perform, order=("tensor", cta), reads=ranges)
    )


def _check_zero_columns(form: MmaForm, warp: Warp, lane: int, where: Where) -> None:
    """Fault "unsupported-zero-column-mask", which cannot be ignored."""
    if form.zero_column_row is not None and int(warp.file64[form.zero_column_row, lane]):
        raise Fault(
            "unsupported-zero-column-mask",
            "a non-zero zero-column mask is not simulated.",
            where=where,
            advice="Pass 0, or no mask.",
        )


def _check_tensor_major(descriptor: InstructionDescriptor, where: Where) -> None:
    """Fault "instruction-descriptor-invalid", which cannot be ignored."""
    if descriptor.major_a != "k":
        raise Fault(
            "instruction-descriptor-invalid",
            "A major (bit 15) is 1, but A in tensor memory is K-major.",
            where=where,
            advice=instruction_descriptor.ADVICE,
        )


def _misaligned(
    what: str, lane: int, descriptor: InstructionDescriptor, ws: bool, warp: Warp, where: Where
) -> None:
    """Fault "tmem-misaligned"; where that is ignored, the multiplication is left out."""
    allowed = "0 or 16, the same for A and D" if descriptor.m == 64 and not ws else "0"
    warp.cta.launch.fault(
        "tmem-misaligned",
        f"{what} of M = {descriptor.m}{' .ws' if ws else ''} starts at lane {lane}.",
        where=where,
        advice=f"It must start at lane {allowed}.",
    )


def _shared(
    word: int, descriptor: InstructionDescriptor, warp: Warp, where: Where, *, is_a: bool
) -> SharedDescriptor:
    launch = warp.cta.launch
    shared = descriptors.decode(word, blackwell=True, where=where, launch=launch)
    descriptors.check(
        shared,
        descriptor.m if is_a else descriptor.n,
        descriptor.k,
        descriptor.element_bytes,
        descriptor.major_a if is_a else descriptor.major_b,
        size=warp.cta.shared.size,
        where=where,
        launch=launch,
    )
    return shared


def _lane_mask(form: MmaForm, warp: Warp, lane: int) -> int:
    if form.mask_rows is None:
        return 0
    words = warp.file32[form.mask_rows, lane]
    return sum(int(word) << (32 * index) for index, word in enumerate(words))


def _collect(
    form: MmaForm, memory: TensorMemory, key: tuple[object, ...], where: Where, warp: Warp
) -> None:
    """Follow the collector buffers: a hint for reuse, so values never depend on them.

    Fault "tcgen05-collector-unfilled": ``use`` or ``lastuse`` of a buffer that the same operand
    did not fill.
    """
    if form.usage in ("use", "lastuse") and memory.collectors.get(form.buffer) != key:
        warp.cta.launch.fault(
            "tcgen05-collector-unfilled",
            f"collector::{form.buffer}::{form.usage}, but no MMA since its last discard or lastuse "
            "filled that buffer with this operand.",
            where=where,
            advice="The first MMA with the operand needs ::fill.",
        )
    if form.usage in ("fill", "use"):
        memory.collectors[form.buffer] = key
    else:
        memory.collectors.pop(form.buffer, None)


def _count(
    form: MmaForm,
    memory: TensorMemory,
    descriptor: InstructionDescriptor,
    a_shared: bool,
    warp: Warp,
) -> None:
    reused = form.usage in ("use", "lastuse")
    fetched = cost.shared_bytes(
        descriptor.m,
        descriptor.n,
        a_shared=a_shared,
        a_reused=reused and not form.ws,
        b_reused=reused and form.ws,
    )
    alternating = memory.last_ws_buffer not in (None, form.buffer)
    if form.ws:
        memory.last_ws_buffer = form.buffer
    launch = warp.cta.launch
    launch.count("mma-shared-bytes", fetched)
    launch.count(
        "tensor-cycles",
        cost.cycles(
            descriptor.m,
            descriptor.n,
            ws=form.ws,
            fetched=fetched,
            kept=form.usage != "discard",
            alternating=alternating,
        ),
    )


def _operand(
    shared: SharedDescriptor,
    rows: int,
    descriptor: InstructionDescriptor,
    memory: TensorMemory,
    where: Where,
    *,
    is_a: bool,
) -> npt.NDArray[np.float64]:
    """(rows, K) float64 operand from shared memory, through the async proxy."""
    size = descriptor.element_bytes
    major = descriptor.major_a if is_a else descriptor.major_b
    addresses = shared.byte_addresses(rows, descriptor.k, size, major)
    raw = memory.cta.shared.async_read(addresses.reshape(-1), where)
    values = formats.decode(raw, descriptor.a if is_a else descriptor.b)
    values = values.reshape(rows, descriptor.k)
    return -values if (descriptor.negate_a if is_a else descriptor.negate_b) else values


def _multiply(
    memory: TensorMemory, issue: _Issue, writes: tuple[Region, ...], reads: tuple[Region, ...]
) -> None:
    descriptor = issue.descriptor
    if issue.accumulate:
        enabled = [Region(one.lanes & ~issue.disabled, one.start, one.stop) for one in writes]
        memory.check_written(
            tuple(one for one in enabled if one.lanes), issue.where, "the accumulator D"
        )
    memory.check_written(reads, issue.where, "operand A")
    b = _operand(issue.b_shared, descriptor.n, descriptor, memory, issue.where, is_a=False)
    a = None
    if issue.a_shared is not None:
        a = _operand(issue.a_shared, descriptor.m, descriptor, memory, issue.where, is_a=True)
    with np.errstate(over="ignore", invalid="ignore"):
        for bank in issue.placement.banks:
            rows = a if a is not None else _tensor_operand(memory, bank, issue)
            _write(memory, bank, issue, rows @ b[bank.n_start : bank.n_stop].T)


def _tensor_operand(memory: TensorMemory, bank: Bank, issue: _Issue) -> npt.NDArray[np.float64]:
    """(M, K) float64 operand of a bank: element k in bits k*width.. of the lane's 256 bits."""
    descriptor = issue.descriptor
    cells = memory.cells[bank.lanes, issue.a_column : issue.a_column + _A_COLUMNS]
    raw = np.ascontiguousarray(cells).view(np.uint8)
    values = formats.decode(raw.reshape(-1), descriptor.a).reshape(descriptor.m, descriptor.k)
    return -values if descriptor.negate_a else values


def _write(
    memory: TensorMemory, bank: Bank, issue: _Issue, product: npt.NDArray[np.float64]
) -> None:
    columns = slice(issue.d_column, issue.d_column + bank.n_stop - bank.n_start)
    if issue.accumulate:
        old = _decode_d(memory.cells[bank.lanes, columns], issue.descriptor.d)
        product = product + (old * 2.0**-issue.scale if issue.scale else old)
    bits = _encode_d(product, issue.descriptor)
    if not issue.disabled:
        memory.cells[bank.lanes, columns] = bits
        memory.written[bank.lanes, columns] = True
        return
    enabled = np.array([not issue.disabled >> int(lane) & 1 for lane in bank.lane_numbers])
    memory.cells[bank.lane_numbers[enabled], columns] = bits[enabled]
    memory.written[bank.lane_numbers[enabled], columns] = True


def _decode_d(cells: npt.NDArray[np.uint32], element: str) -> npt.NDArray[np.float64]:
    """Old D as float64; 16-bit elements take the low half of a cell (as CUTLASS has it)."""
    contiguous = np.ascontiguousarray(cells)
    if element == "f32":
        return contiguous.view(np.float32).astype(np.float64)
    if element == "s32":
        return contiguous.view(np.int32).astype(np.float64)
    return (contiguous & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float64)


def _encode_d(
    values: npt.NDArray[np.float64], descriptor: InstructionDescriptor
) -> npt.NDArray[np.uint32]:
    if descriptor.d == "s32":
        # Sums of int8 products and an s32 are exact in float64.
        if descriptor.saturate:
            values = np.clip(values, -(2.0**31), 2.0**31 - 1)
        return (values.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
    return formats.encode(values, descriptor.d).astype(np.uint32)
