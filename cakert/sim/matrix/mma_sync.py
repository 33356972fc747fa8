"""mma.sync: warp-level matrix multiply-accumulate (PTX ISA 9.7.14.5.14).

``mma.sync.aligned.m16n8kK.row.col`` of f16, bf16, tf32, 8-bit floats and 8-bit integers. Products
are exact, sums are rounded once to the type of D (see formats.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cakert.sim.matrix.binding import FULL_MASK, operands, require_full_warp, vector
from cakert.sim.matrix.formats import TABLES
from cakert.sim.matrix.mma_core import WarpMma
from cakert.sim.ptx.model import Instruction

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.machine.waiting import Wait

__all__ = ["INSTRUCTIONS"]

_FLOATS_8 = ("e4m3", "e5m2")
_INTEGERS_8 = ("s8", "u8")


def _accumulators(a: str, b: str) -> tuple[str, ...]:
    """Types that C and D may have with these types of A and B; empty where there is no such mma."""
    if a == b == "f16":
        return ("f16", "f32")
    if a == b and a in ("bf16", "tf32"):
        return ("f32",)
    if a in _FLOATS_8 and b in _FLOATS_8:
        return ("f16", "f32")
    if a in _INTEGERS_8 and b in _INTEGERS_8:
        return ("s32",)
    return ()


def _bind(instruction: Instruction, binder: Binder) -> Handler:
    modifiers = list(instruction.modifiers)
    saturate = "satfinite" in modifiers
    if saturate:
        modifiers.remove("satfinite")
    if len(modifiers) != 9 or modifiers[:2] != ["sync", "aligned"]:
        binder.fail("expected mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype")
    shape, layout_a, layout_b, dtype, atype, btype, ctype = modifiers[2:]
    if (layout_a, layout_b) != ("row", "col"):
        binder.fail(f"layouts .{layout_a}.{layout_b}; only .row.col is supported")
    if dtype != ctype or dtype not in _accumulators(atype, btype):
        binder.fail(f"types .{dtype}.{atype}.{btype}.{ctype}")
    if saturate and dtype != "s32":
        binder.fail(".satfinite is for integers only")

    table = atype in TABLES
    depth = 8 if atype == "tf32" else 32 if table else 16
    depths = {f"m16n8k{depth}": 4, f"m16n8k{depth // 2}": 2}
    if shape not in depths:
        binder.fail(f"shape .{shape} with .{atype}; expected one of .{', .'.join(depths)}")
    num_a = depths[shape]
    num_c = 2 if dtype == "f16" else 4

    d, a, b, c = operands(instruction, binder, 4)
    plan = WarpMma(
        "table" if table else atype,
        "s32-saturated" if saturate else dtype,
        [int(row) for row in binder.outs(vector(d, binder, num_c, "D"), 32)],
        [int(row) for row in binder.rows(vector(a, binder, num_a, "A"), 32)],
        [int(row) for row in binder.rows(vector(b, binder, num_a // 2, "B"), 32)],
        [int(row) for row in binder.rows(vector(c, binder, num_c, "C"), 32)],
        TABLES[atype] if table else None,
        TABLES[btype] if table else None,
    )
    flops = 2 * 16 * 8 * int(shape.removeprefix("m16n8k"))

    def handler(warp: Warp, mask: int) -> Wait | None:
        if mask != FULL_MASK:
            require_full_warp(warp, mask)
        plan.run(warp.file32)
        counters = warp.cta.launch.counters
        counters["mma-sync-flops"] = counters.get("mma-sync-flops", 0) + flops
        return None

    return handler


INSTRUCTIONS = {"mma.sync": _bind}
