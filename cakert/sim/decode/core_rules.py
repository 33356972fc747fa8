"""Instructions that the run loop executes itself: memory, branches, and address conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from cakert.sim.core.lanes import mask_array, mask_of
from cakert.sim.decode.binder import Binder, register_bits
from cakert.sim.machine.addresses import LOCAL_BASE, PARAM_BASE, SHARED_BASE, WINDOW_SHIFT
from cakert.sim.ptx.model import Instruction, LabelRef, Operand, Register, Sink, Vector

__all__ = ["CORE_RULES"]

Fields: TypeAlias = dict[str, Any]

_SPACES = {
    "global": "global",
    "const": "global",
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "local": "local",
    "param": "param",
    "param::entry": "param",
}
_TYPES = (
    {f"{kind}{bits}": (bits // 8, kind == "s") for kind in "bus" for bits in (8, 16, 32, 64)}
    | {"b128": (16, False)}
    | {"f32": (4, False), "f64": (8, False), "f16": (2, False), "bf16": (2, False)}
)
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
# Without effect on values where every access happens in program order of one host thread.
_ORDERS = frozenset({
    "weak", "relaxed", "acquire", "release", "volatile", "mmio", "cta", "cluster", "gpu", "sys",
    "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified",
})  # fmt: skip


def _memory_fields(
    instruction: Instruction, binder: Binder, data: Operand, address: Operand
) -> Fields:
    space, vector, kind = "generic", 1, None
    for modifier in instruction.modifiers:
        if modifier in _SPACES:
            space = _SPACES[modifier]
        elif modifier in _VECTORS:
            vector = _VECTORS[modifier]
        elif modifier in _TYPES:
            kind = modifier
        elif modifier not in _ORDERS and not modifier.startswith(("L1::", "L2::", "level::")):
            binder.fail(f"unknown modifier .{modifier}")
    if kind is None:
        binder.fail("the type is missing")
    source = binder.address(address)
    fields: Fields = {
        "space": space,
        "address": source.row,
        "address_bits": source.bits,
        "offset": source.offset,
        "items": data.items if isinstance(data, Vector) else (data,),
    }
    if kind == "b128":
        if vector > 1:
            binder.fail("no vectors of .b128")
        return {**fields, "vector": 2, "width": 8, "signed": False, "bits": 128}
    width, signed = _TYPES[kind]
    items = fields["items"]
    if len(items) != vector:
        binder.fail(f"{vector} registers are needed, {len(items)} are given")
    widths = {register_bits(item.type) for item in items if isinstance(item, Register)}
    bits = max(widths, default=8 * width)
    if len(widths) > 1 or bits < 8 * width:
        binder.fail(f"registers of {sorted(widths)} bits do not take .{kind}")
    return {**fields, "vector": vector, "width": width, "signed": signed, "bits": bits}


def _finish(fields: Fields, kind: str, row_of: Callable[[Operand, int], int]) -> Fields:
    """Replace the registers of a load or store by their rows."""
    items, bits = fields.pop("items"), fields.pop("bits")
    if bits == 128:
        first = row_of(items[0], 128)
        rows = [first, first + 1]
    else:
        rows = [row_of(item, 64 if bits == 64 else 32) for item in items]
    registers = 64 if bits >= 64 else (16 if bits <= 16 else 32)
    return {"kind": kind, "register_bits": registers, "rows": rows, **fields}


def _load(instruction: Instruction, binder: Binder) -> Fields:
    if not 2 <= len(instruction.operands) <= 3:
        binder.fail("a load has a destination and an address")
    fields = _memory_fields(instruction, binder, *instruction.operands[:2])
    return _finish(
        fields, "load", lambda item, bits: -1 if isinstance(item, Sink) else binder.out(item, bits)
    )


def _store(instruction: Instruction, binder: Binder) -> Fields:
    if not 2 <= len(instruction.operands) <= 3:
        binder.fail("a store has an address and a source")
    address, data = instruction.operands[:2]
    fields = _memory_fields(instruction, binder, data, address)
    if fields["space"] == "param":
        binder.fail("parameters of a kernel are read-only")
    return _finish(fields, "store", binder.row)


def _branch(instruction: Instruction, binder: Binder) -> Fields:
    if len(instruction.operands) != 1 or not isinstance(instruction.operands[0], LabelRef):
        binder.fail("a branch has one label")
    if set(instruction.modifiers) - {"uni"}:
        binder.fail("unknown modifier")
    return {"kind": "branch", "label": instruction.operands[0].name}


def _branch_indexed(instruction: Instruction, binder: Binder) -> Fields:
    if set(instruction.modifiers) - {"idx", "uni"} or len(instruction.operands) != 2:
        binder.fail("brx.idx has an index and a list of labels")
    index, labels = instruction.operands
    if not isinstance(labels, LabelRef):
        binder.fail("brx.idx needs the name of a .branchtargets list")
    return {"kind": "branch-indexed", "address": binder.row(index, 32), "list": labels.name}


def _exit(instruction: Instruction, binder: Binder) -> Fields:
    if set(instruction.modifiers) - {"uni"} or instruction.operands:
        binder.fail("unknown form")
    return {"kind": "exit"}


def _warp_barrier(instruction: Instruction, binder: Binder) -> Fields:
    if instruction.modifiers != ("warp", "sync"):
        binder.fail("unknown form")
    return {"kind": "nothing", "members": binder.row(instruction.operands[0], 32)}


def _active_mask(instruction: Instruction, binder: Binder) -> Fields:
    if instruction.modifiers != ("b32",):
        binder.fail("unknown form")
    return {"kind": "active-mask", "rows": [binder.out(instruction.operands[0], 32)]}


def _convert_address(instruction: Instruction, binder: Binder) -> Fields:
    """``cvta``: generic windows lie at fixed bases, so a conversion adds a constant."""
    modifiers = [m for m in instruction.modifiers if m != "to"]
    back = "to" in instruction.modifiers
    if len(modifiers) != 2 or modifiers[1] not in ("u64", "u32"):
        binder.fail("unknown form")
    bases = {"global": 0, "const": 0, "local": LOCAL_BASE, "param": PARAM_BASE}
    bases |= dict.fromkeys(("shared", "shared::cta", "shared::cluster"), SHARED_BASE)
    space = modifiers[0].removesuffix("::entry")
    if space not in bases or (modifiers[1] == "u32" and bases[space]):
        binder.fail(f"no conversion for .{'.'.join(modifiers)}")
    target, source = instruction.operands
    out = binder.out(target, 64)
    from_row = binder.row(source, 64)
    base = np.uint64(-bases[space] & 0xFFFFFFFFFFFFFFFF if back else bases[space])

    def convert(warp: Any, mask: int) -> None:
        lanes = mask_array(mask)
        warp.file64[out, lanes] = warp.file64[from_row, lanes] + base

    return {"kind": "handler", "handler": convert}


def _is_space(instruction: Instruction, binder: Binder) -> Fields:
    windows = {"shared": 1, "shared::cta": 1, "shared::cluster": 1, "local": 2, "param": 3}
    windows |= {"param::entry": 3, "global": 0, "const": 0}
    if len(instruction.modifiers) != 1 or instruction.modifiers[0] not in windows:
        binder.fail("unknown state space")
    window = windows[instruction.modifiers[0]]
    out = binder.out_predicate(instruction.operands[0])
    row = binder.row(instruction.operands[1], 64)

    def test(warp: Any, mask: int) -> None:
        inside = mask_of(warp.file64[row] >> np.uint64(WINDOW_SHIFT) == window)
        old = int(warp.predicates[out])
        warp.predicates[out] = (old & ~mask) | (inside & mask)

    return {"kind": "handler", "handler": test}


CORE_RULES = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "bra": _branch,
    "brx": _branch_indexed,
    "exit": _exit,
    "ret": _exit,
    "bar.warp": _warp_barrier,
    "activemask": _active_mask,
    "cvta": _convert_address,
    "isspacep": _is_space,
}
