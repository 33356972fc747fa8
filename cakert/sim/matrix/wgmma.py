"""wgmma: warpgroup matrix multiply-accumulate of sm_90a (PTX ISA 9.7.15).

Warp w of a warpgroup brings rows 16w to 16w+15 of the 64; the four warps multiply together, once
the last of them has issued the instruction. The multiplication is an asynchronous operation: it
reads its operands and writes D when the engine performs it, so what a kernel overwrites too early
shows under the lazy schedule; A registers are compared with what they held at the issue. From issue
until a ``wgmma.wait_group`` that covers it, its D registers are marked busy, even if it has been
performed: the ISA forbids the access.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cakert.sim.faults import Where
from cakert.sim.machine.waiting import Wait
from cakert.sim.matrix import descriptors, formats, fragments, wgmma_groups
from cakert.sim.matrix.binding import immediate, operands, require_full_warp, vector
from cakert.sim.matrix.wgmma_groups import (
    Accumulator,
    WarpState,
    join,
    require_arch,
    state_of,
)
from cakert.sim.ptx.model import Instruction, Vector

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler

__all__ = ["INSTRUCTIONS"]

_TYPES = {
    # (type of A, type of B): depth K, types of D, transposable
    ("f16", "f16"): (16, ("f16", "f32"), True),
    ("bf16", "bf16"): (16, ("f32",), True),
    ("tf32", "tf32"): (8, ("f32",), False),
    ("e4m3", "e4m3"): (32, ("f16", "f32"), False),
    ("e4m3", "e5m2"): (32, ("f16", "f32"), False),
    ("e5m2", "e4m3"): (32, ("f16", "f32"), False),
    ("e5m2", "e5m2"): (32, ("f16", "f32"), False),
}


@dataclass(frozen=True, slots=True)
class _Source:
    """One operand in shared memory."""

    element: str
    rows: int
    depth: int
    major: descriptors.Major

    @property
    def element_bytes(self) -> int:
        return formats.ELEMENT_BYTES[self.element]

    def open(
        self, word: int, warp: Warp, where: Callable[[], Where]
    ) -> descriptors.SharedDescriptor:
        """Decode and check the descriptor of this operand."""
        launch = warp.cta.launch
        descriptor = descriptors.decode(word, blackwell=False, where=where, launch=launch)
        descriptors.check(
            descriptor,
            self.rows,
            self.depth,
            self.element_bytes,
            self.major,
            size=warp.cta.shared.size,
            where=where,
            launch=launch,
        )
        return descriptor

    def read(
        self,
        descriptor: descriptors.SharedDescriptor,
        rows: slice,
        warp: Warp,
        where: Where,
    ) -> NDArray[np.float64]:
        """Fetch rows of the operand: (rows, depth)."""
        places = descriptor.byte_addresses(self.rows, self.depth, self.element_bytes, self.major)
        places = places[rows]
        raw = warp.cta.shared.async_read(places.reshape(-1), where)
        return formats.decode(raw.reshape(places.shape[0], -1), self.element)


def _uniform(warp: Warp, row: int, what: str) -> int:
    """The value of a 64-bit operand that must be the same in all lanes."""
    raw = warp.file64[row].tobytes()
    if raw != 32 * raw[:8]:
        warp.cta.launch.fault(
            "wgmma-not-uniform",
            f"{what} differs between the lanes of the warp.",
            where=warp.where(),
            advice="All threads of the warpgroup must pass the same descriptor.",
        )
    return int.from_bytes(raw[:8], "little")


def _bind_mma_async(instruction: Instruction, binder: Binder) -> Handler:
    require_arch(binder)
    modifiers = instruction.modifiers
    if len(modifiers) != 7 or modifiers[:3] != ("mma_async", "sync", "aligned"):
        binder.fail("expected wgmma.mma_async.sync.aligned.shape.dtype.atype.btype")
    shape, dtype, atype, btype = modifiers[3:]
    if (atype, btype) not in _TYPES:
        binder.fail(f"types .{atype}.{btype}")
    depth, dtypes, transposable = _TYPES[atype, btype]
    if dtype not in dtypes:
        binder.fail(f"accumulator type .{dtype} with .{atype}.{btype}")
    columns = _columns(shape, depth, binder)

    from_registers = len(instruction.operands) > 1 and isinstance(instruction.operands[1], Vector)
    num_trans = (1 if from_registers else 2) if transposable else 0
    found = operands(instruction, binder, 6 + num_trans)
    num_d = columns // (2 if dtype == "f32" else 4)
    d_rows = np.asarray(binder.outs(vector(found[0], binder, num_d, "D"), 32), np.int64)
    accumulator = Accumulator(
        dtype.encode() + d_rows.tobytes(), dtype, columns, frozenset(d_rows.tolist())
    )
    if len(accumulator.rows) != num_d:
        binder.fail("D names a register twice")
    b_word = binder.row(found[2], 64)
    scale_d = binder.predicate(found[3])
    sign = 1
    for operand, what in ((found[4], "imm-scale-a"), (found[5], "imm-scale-b")):
        sign *= immediate(operand, binder, (1, -1), what)
    trans = [immediate(operand, binder, (0, 1), "imm-trans") for operand in found[6:]]
    b_source = _Source(btype, columns, depth, "mn" if trans and trans[-1] else "k")
    a_source = _Source(atype, 64, depth, "mn" if len(trans) == 2 and trans[0] else "k")
    if from_registers:
        a_rows = np.asarray(binder.rows(vector(found[1], binder, 4, "A"), 32), np.int64)
        a_word = -1
    else:
        a_rows = np.empty(0, np.int64)
        a_word = binder.row(found[1], 64)
    shared_bytes = columns * 32 // 4 + (0 if from_registers else 16 * 32)
    name = f"wgmma.mma_async {shape}"
    line = binder.line

    def read_a_registers(
        warp: Warp, issued: NDArray[np.uint32], where: Where
    ) -> NDArray[np.float64]:
        held = warp.file32[a_rows]
        _check_a_registers(warp, issued, held, where)
        return fragments.a_matrix(formats.decode(held.view(np.uint8).reshape(4, 32, 4), atype))

    def handler(warp: Warp, mask: int) -> Wait | None:
        require_full_warp(warp, mask)
        where = binder.where(warp)
        launch = warp.cta.launch
        state = state_of(warp)
        _check_issue(warp, state, accumulator, a_rows, where)
        enabled = scale_d.mask(warp) & mask
        if enabled not in (0, mask):
            launch.fault(
                "wgmma-not-uniform",
                "scale-d differs between the lanes of the warp.",
                where=where,
                advice="Compute the predicate from values that are uniform in the warpgroup.",
            )
        own = slice(16 * (warp.index % 4), 16 * (warp.index % 4) + 16)
        b_tile = b_source.open(_uniform(warp, b_word, "b-desc"), warp, lambda: where)
        reads = list(b_tile.ranges(columns, depth, b_source.element_bytes, b_source.major))
        a_tile: descriptors.SharedDescriptor | None = None
        if not from_registers:
            a_tile = a_source.open(_uniform(warp, a_word, "a-desc"), warp, lambda: where)
            reads += a_tile.ranges(
                64, depth, a_source.element_bytes, a_source.major, (own.start, own.stop)
            )

        a_issued = warp.file32[a_rows]

        def perform() -> None:
            with np.errstate(all="ignore"):
                if a_tile is None:
                    a = read_a_registers(warp, a_issued, where)
                else:
                    a = a_source.read(a_tile, own, warp, where)
                b = b_source.read(b_tile, slice(None), warp, where)
                _accumulate(warp, a, b, d_rows, dtype, sign, add=bool(enabled))

        state.open.operations.append(join(warp, name, where, perform, reads))
        if accumulator not in state.open.accumulators:
            state.open.accumulators.add(accumulator)
            state.in_flight[accumulator] += 1
            warp.mark_busy(d_rows, line)
        counters = launch.counters
        # 4096 FLOP a clock for an SM (H100: 989 TFLOP/s of 132 SMs) make N/2 cycles for the four
        # warps together; K halves with the rate for tf32 and doubles with it for 8-bit types.
        counters["tensor-cycles-sm90"] = counters.get("tensor-cycles-sm90", 0) + columns // 8
        counters["wgmma-shared-bytes"] = counters.get("wgmma-shared-bytes", 0) + shared_bytes
        return None

    return handler


def _columns(shape: str, depth: int, binder: Binder) -> int:
    """N of a shape ``m64nNkK``."""
    if shape.startswith("m64n") and shape.endswith(f"k{depth}"):
        digits = shape.removeprefix("m64n").removesuffix(f"k{depth}")
        if digits.isdecimal() and int(digits) % 8 == 0 and 8 <= int(digits) <= 256:
            return int(digits)
    return binder.fail(f"shape .{shape}; expected .m64nNk{depth} with N a multiple of 8 up to 256")


def _accumulate(
    warp: Warp,
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    d_rows: NDArray[np.int64],
    dtype: str,
    sign: int,
    *,
    add: bool,
) -> None:
    """D = sign * A @ B.T (+ D), for the 16 rows of one warp; `b` is (N, K)."""
    file = warp.file32
    total = fragments.accumulator_registers((a if sign > 0 else -a) @ b.T)
    if dtype == "f32":
        if add:
            total = total + file[d_rows].view(np.float32)
        file[d_rows] = formats.encode(total, "f32")
        return
    # Elements 2i and 2i+1 are the halves of register i: (registers, half, lane).
    total = total.reshape(-1, 2, 32)
    if add:
        words = file[d_rows].view(np.float16).reshape(-1, 32, 2)
        total = total + words.transpose(0, 2, 1)
    halves = formats.encode(total, "f16").astype(np.uint32)
    file[d_rows] = halves[:, 0] | halves[:, 1] << np.uint32(16)


def _check_issue(
    warp: Warp,
    state: WarpState,
    accumulator: Accumulator,
    a_rows: NDArray[np.int64],
    where: Where,
) -> None:
    """The rules on registers and fences that hold when an instruction is issued."""
    launch = warp.cta.launch
    if not state.fenced:
        launch.fault(
            "wgmma-no-fence",
            "this warp has not executed wgmma.fence before its first wgmma.mma_async.",
            where=where,
            advice="Execute wgmma.fence.sync.aligned after writing registers that wgmma reads.",
        )
        state.fenced = True
    if warp.index | 3 >= len(warp.cta.warps):
        launch.fault(
            "wgmma-partial-warpgroup",
            f"warps {warp.index & ~3} to {warp.index | 3} make a warpgroup, but the CTA has "
            f"{len(warp.cta.warps)} warps.",
            where=where,
            advice="Launch a multiple of 128 threads.",
        )
    for other in state.in_flight:
        if other != accumulator and not other.rows.isdisjoint(accumulator.rows):
            launch.fault(
                "wgmma-accumulator-shape",
                "D shares registers with the accumulator of a wgmma in flight "
                f"(N = {other.columns}, .{other.dtype}) but is not the same operand.",
                where=where,
                advice="Only the same accumulator of the same shape may be chained; put "
                "wgmma.wait_group before.",
            )
    if a_rows.size:
        for other in (*state.in_flight, accumulator):
            if not other.rows.isdisjoint(a_rows.tolist()):
                launch.fault(
                    "register-in-flight",
                    "A is read from registers that a wgmma in flight writes.",
                    where=where,
                    advice="Wait for the accumulator with wgmma.wait_group, then convert it.",
                )


def _check_a_registers(
    warp: Warp, issued: NDArray[np.uint32], held: NDArray[np.uint32], where: Where
) -> None:
    """Fault "wgmma-operand-overwritten" where A registers changed since the issue.

    The ISA forbids the write until a wgmma.wait_group covers the operation (PTX ISA 9.7.15.7.2).
    Where the fault is ignored, the new values are multiplied.

    Parameters
    ----------
    issued, held
        (4, 32) uint32: the registers at the issue of the instruction and when it is performed.
    """
    changed = np.argwhere(issued != held)
    if changed.size:
        register, lane = (int(index) for index in changed[0])
        warp.cta.launch.fault(
            "wgmma-operand-overwritten",
            f"register {register} of A of this wgmma.mma_async (line {where.line}) held "
            f"{int(issued[register, lane]):#010x} in lane {lane} when it was issued, and was "
            f"overwritten with {int(held[register, lane]):#010x} while it was in flight.",
            where=where,
            advice="Write registers of A only after a wgmma.wait_group that covers it.",
        )


INSTRUCTIONS = {"wgmma.mma_async": _bind_mma_async, **wgmma_groups.INSTRUCTIONS}
