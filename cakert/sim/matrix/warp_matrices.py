"""ldmatrix, stmatrix and movmatrix: 8 x 8 matrices of 16-bit elements (PTX ISA 9.7.14.5.15 to .17).

The 8-bit shapes of sm_100 (``.m16n16``, ``.m8n16``, ``.m16n8``) are not supported.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cakert.sim.machine.addresses import address_space, resolve_shared
from cakert.sim.matrix.binding import FULL_MASK, operands, require_full_warp, vector
from cakert.sim.matrix.mma_core import load_matrices, move_matrix, store_matrices
from cakert.sim.ptx.model import Address, Instruction, Operand

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.machine.waiting import Wait

__all__ = ["INSTRUCTIONS"]

_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_SPACES = {"shared", "shared::cta"}


def _form(instruction: Instruction, binder: Binder) -> tuple[int, bool, str]:
    """Number of matrices, whether ``.trans`` is there, and the state space."""
    # ptxas takes the modifiers in any order, and so do we.
    modifiers = list(instruction.modifiers)
    for required in ("sync", "aligned", "m8n8", "b16"):
        if required not in modifiers:
            binder.fail(f".{required} is missing; only the .m8n8.b16 shapes are supported")
        modifiers.remove(required)
    counts = [modifier for modifier in modifiers if modifier in _COUNTS]
    if len(counts) != 1:
        binder.fail("expected one of .x1, .x2, .x4")
    modifiers.remove(counts[0])
    trans = "trans" in modifiers
    if trans:
        modifiers.remove("trans")
    unknown = [modifier for modifier in modifiers if modifier not in _SPACES]
    if unknown or len(modifiers) > 1:
        binder.fail(f"modifiers .{', .'.join(modifiers)}")
    return _COUNTS[counts[0]], trans, address_space(instruction.modifiers)


def _memory(operand: Operand, binder: Binder) -> Address:
    if not isinstance(operand, Address) or operand.coordinates is not None:
        binder.fail("expected an address in brackets")
    return operand


def _misaligned(warp: Warp, lane: int, address: int) -> None:
    warp.cta.launch.fault(
        "misaligned-address",
        f"lane {lane} gives the row address {address:#x}, which is not a multiple of 16.",
        where=warp.where(),
        advice="Each row of an 8 x 8 matrix is 16 bytes at a multiple of 16.",
    )


def _own_addresses(
    warp: Warp, addresses: NDArray[np.uint64], count: int, space: str
) -> NDArray[np.uint64]:
    """Turn cluster and generic addresses of the CTA's own shared memory into plain ones."""
    own = addresses.copy()
    for lane in range(8 * count):
        target, offset = resolve_shared(warp.cta, int(addresses[lane]), space, warp.where())
        if target is not warp.cta:
            warp.cta.launch.fault(
                "not-shared",
                f"lane {lane} gives an address of another CTA's shared memory.",
                where=warp.where(),
                advice="ldmatrix and stmatrix take addresses of the executing CTA.",
            )
        own[lane] = offset
    return own


def _plain_addresses(
    warp: Warp, addresses: NDArray[np.uint64], count: int, space: str
) -> NDArray[np.uint64]:
    """Row addresses as offsets in the CTA's own window; a fault where not multiples of 16."""
    own = _own_addresses(warp, addresses, count, space)
    for lane in range(8 * count):
        if own[lane] % 16:
            _misaligned(warp, lane, int(own[lane]))
    # Where the fault is ignored, the low bits are.
    return own & ~np.uint64(15)


@lru_cache(maxsize=8192)
def _conflicts(row_addresses: bytes) -> int:
    """Passes through shared memory beyond one a matrix; kernels repeat few patterns.

    A matrix is 8 rows of 16 bytes, one pass of 128 if no two of them lie in the same four banks;
    rows at one address share their pass.

    Parameters
    ----------
    row_addresses
        8 uint64 a matrix.
    """
    chunks = np.frombuffer(row_addresses, np.uint64) >> np.uint64(4)
    passes = (
        max(Counter(chunk % 8 for chunk in set(matrix)).values())
        for matrix in chunks.reshape(-1, 8).tolist()
    )
    return sum(passes) - len(chunks) // 8


def _count_conflicts(warp: Warp, addresses: NDArray[np.uint64], count: int) -> None:
    conflicts = _conflicts(addresses[: 8 * count].tobytes())
    if conflicts:
        counters = warp.cta.launch.counters
        counters["matrix-bank-conflicts"] = counters.get("matrix-bank-conflicts", 0) + conflicts


def _bind_load(instruction: Instruction, binder: Binder) -> Handler:
    count, trans, space = _form(instruction, binder)
    destination, source = operands(instruction, binder, 2)
    rows = np.asarray(
        binder.outs(vector(destination, binder, count, "the destination"), 32), np.int64
    )
    address = binder.address(_memory(source, binder))

    def handler(warp: Warp, mask: int) -> Wait | None:
        if mask != FULL_MASK:
            require_full_warp(warp, mask)
        lanes = address.lanes(warp)
        shared = warp.cta.shared
        if not load_matrices(shared, warp.file32, rows, lanes, trans, warp.where):
            lanes = _plain_addresses(warp, lanes, count, space)
            load_matrices(shared, warp.file32, rows, lanes, trans, warp.where)
        _count_conflicts(warp, lanes, count)
        return None

    return handler


def _bind_store(instruction: Instruction, binder: Binder) -> Handler:
    count, trans, space = _form(instruction, binder)
    destination, source = operands(instruction, binder, 2)
    rows = np.asarray(binder.rows(vector(source, binder, count, "the source"), 32), np.int64)
    address = binder.address(_memory(destination, binder))

    def handler(warp: Warp, mask: int) -> Wait | None:
        if mask != FULL_MASK:
            require_full_warp(warp, mask)
        lanes = address.lanes(warp)
        shared, first = warp.cta.shared, 32 * warp.index
        if not store_matrices(shared, warp.file32, rows, lanes, trans, first, warp.where):
            lanes = _plain_addresses(warp, lanes, count, space)
            store_matrices(shared, warp.file32, rows, lanes, trans, first, warp.where)
        _count_conflicts(warp, lanes, count)
        return None

    return handler


def _bind_move(instruction: Instruction, binder: Binder) -> Handler:
    if instruction.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        binder.fail("expected movmatrix.sync.aligned.m8n8.trans.b16")
    destination, source = operands(instruction, binder, 2)
    row, source_row = binder.out(destination, 32), binder.row(source, 32)

    def handler(warp: Warp, mask: int) -> Wait | None:
        require_full_warp(warp, mask)
        move_matrix(warp.file32, row, source_row)
        return None

    return handler


INSTRUCTIONS = {
    "ldmatrix": _bind_load,
    "stmatrix": _bind_store,
    "movmatrix": _bind_move,
}
