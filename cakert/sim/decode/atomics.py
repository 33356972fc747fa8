"""``atom`` and ``red``: read-modify-write of shared and global memory, lane after lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from cakert.sim.core.lanes import lanes_of
from cakert.sim.decode.binder import Binder, Handler, register_bits
from cakert.sim.faults import Where
from cakert.sim.machine.addresses import resolve_shared
from cakert.sim.ptx.model import Instruction, Vector

__all__ = ["INSTRUCTIONS"]

Values: TypeAlias = npt.NDArray[Any]
Combine: TypeAlias = Callable[[Values, Values, Values], Values]

_DTYPES = {
    "b32": np.uint32, "b64": np.uint64, "u32": np.uint32, "u64": np.uint64, "s32": np.int32,
    "s64": np.int64, "f32": np.float32, "f64": np.float64, "f16": np.float16,
    "f16x2": np.float16, "bf16": ml_dtypes.bfloat16, "bf16x2": ml_dtypes.bfloat16,
    "b16": np.uint16, "u16": np.uint16,
}  # fmt: skip
_IGNORED = frozenset(
    ["relaxed", "acquire", "release", "acq_rel", "sc", "cta", "cluster", "gpu", "sys", "noftz"]
)
_SPACES = frozenset(["global", "shared", "shared::cta", "shared::cluster"])
_OFFSET = (1 << 48) - 1


def _increment(old: Values, limit: Values, _: Values) -> Values:
    return np.where(old >= limit, np.zeros_like(old), old + np.ones_like(old))


def _decrement(old: Values, limit: Values, _: Values) -> Values:
    return np.where((old == 0) | (old > limit), limit, old - np.ones_like(old))


def _flushed(values: Values) -> Values:
    """Subnormal numbers as zeros of their sign."""
    tiny = np.abs(values) < np.finfo(np.float32).smallest_normal
    return np.where(tiny, np.copysign(np.float32(0), values), values)


def _add_flushing(old: Values, new: Values, _: Values) -> Values:
    return _flushed(_flushed(old) + _flushed(new))


_OPERATIONS: dict[str, Combine] = {
    "add": lambda old, new, _: old + new,
    "min": lambda old, new, _: np.fmin(old, new),
    "max": lambda old, new, _: np.fmax(old, new),
    "and": lambda old, new, _: old & new,
    "or": lambda old, new, _: old | new,
    "xor": lambda old, new, _: old ^ new,
    "exch": lambda old, new, _: new,
    "cas": lambda old, compare, new: np.where(old == compare, new, old),
    "inc": _increment,
    "dec": _decrement,
}


def _bind(instruction: Instruction, binder: Binder) -> Handler:
    space, operation, kind, vector = "", "", "", 1
    for modifier in instruction.modifiers:
        if modifier in _SPACES:
            space = modifier
        elif modifier in _OPERATIONS:
            operation = modifier
        elif modifier in _DTYPES:
            kind = modifier
        elif modifier in ("v2", "v4", "v8"):
            vector = int(modifier[1:])
        elif modifier not in _IGNORED and not modifier.startswith("L2::"):
            binder.fail(f"unknown modifier .{modifier}")
    if not operation or not kind:
        binder.fail("the operation or the type is missing")
    operands = list(instruction.operands)
    returns = instruction.opcode == "atom"
    target = operands.pop(0) if returns else None
    address = binder.address(operands.pop(0))
    needed = 2 if operation == "cas" else 1
    if len(operands) not in (needed, needed + 1):
        binder.fail(f"{operation} takes {needed} value(s)")
    bits = register_bits(kind)
    wide = bits == 64

    def rows_of(operand: Any) -> list[int]:
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != vector:
            binder.fail(f"{vector} registers are needed, {len(items)} are given")
        return [binder.row(item, bits) for item in items]

    sources = [rows_of(operand) for operand in operands[:needed]]
    outs = [] if target is None else list(binder.outs(target, bits))
    dtype = np.dtype(_DTYPES[kind])
    combine = _OPERATIONS[operation]
    # add.f32 flushes subnormal numbers in global memory alone (PTX ISA 9.7.13, atom).
    in_global = _add_flushing if (operation, kind) == ("add", "f32") else combine
    nbytes = vector * bits // 8

    def execute(warp: Any, mask: int) -> None:
        file = warp.file64 if wide else warp.file32
        where = binder.where(warp)
        for lane in lanes_of(mask):
            at = address.lane(warp, lane)
            if at % nbytes:
                warp.cta.launch.fault(
                    "misaligned-address", f"lane {lane} accesses {nbytes} bytes at {at:#x}.",
                    where=where, advice="Atomics must be aligned to their size.",
                )  # fmt: skip
            old = _read(warp, space, at, nbytes, where).view(dtype)
            values = [
                np.ascontiguousarray(file[rows, lane]).view(np.uint8).reshape(vector, -1)
                [:, : bits // 8].reshape(-1).view(dtype)
                for rows in sources
            ]  # fmt: skip
            with np.errstate(over="ignore", invalid="ignore"):
                change = in_global if _shared(warp, space, at) is None else combine
                new = change(old, values[0], values[-1]).astype(dtype)
            _write(warp, space, at, new.view(np.uint8), where, 32 * warp.index + lane)
            if outs:
                words = np.zeros((vector, 8 if wide else 4), np.uint8)
                words[:, : bits // 8] = old.view(np.uint8).reshape(vector, -1)
                file[outs, lane] = words.reshape(-1).view(file.dtype)
        warp.cta.launch.progress += 1

    return execute


def _shared(warp: Any, space: str, address: int) -> tuple[Any, int] | None:
    """The shared memory that an address means, and the offset in it; None for global memory."""
    if space == "global" or (not space and address >> 48 != 1):
        return None
    cta, offset = resolve_shared(warp.cta, address & _OFFSET, "shared::cluster", warp.where)
    return cta.shared, offset


def _read(warp: Any, space: str, address: int, nbytes: int, where: Where) -> Values:
    shared = _shared(warp, space, address)
    if shared is None:
        return np.array(warp.cta.launch.memory.view(address, nbytes, where))
    memory, offset = shared
    value: Values = memory.generic_read(np.arange(offset, offset + nbytes), 0, where)
    return value


def _write(warp: Any, space: str, address: int, value: Values, where: Where, thread: int) -> None:
    shared = _shared(warp, space, address)
    if shared is None:
        warp.cta.launch.memory.view(address, value.size, where, write=True)[:] = value
    else:
        memory, offset = shared
        places = np.arange(offset, offset + value.size)
        memory.generic_write(places, value, thread, where, rank=warp.cta.rank)


INSTRUCTIONS = {"atom": _bind, "red": _bind}
