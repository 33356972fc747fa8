"""The text of a tcgen05.mma: kind, collector, operands (PTX ISA 9.7.16.10.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cakert.sim.ptx.model import Address, Immediate, Vector
from cakert.sim.tcgen05.instruction_descriptor import KINDS
from cakert.sim.tcgen05.targets import Modifiers, require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from cakert.sim.decode.binder import AddressSource, Binder, PredicateSource
    from cakert.sim.ptx.model import Instruction, Operand

__all__ = ["MmaForm", "read_form"]


@dataclass(frozen=True, slots=True)
class MmaForm:
    """What the text of an instruction fixes.

    Attributes
    ----------
    kind
        "f16", "tf32", "f8f6f4" or "i8".
    buffer, usage
        Collector buffer ("a", "b0".."b3") and "fill", "use", "lastuse" or "discard".
    d, a_tensor
        Tensor-memory addresses; A has one or lies in shared memory.
    a_row, b_row
        64-bit rows of the shared-memory descriptors.
    word_row
        32-bit row of the instruction descriptor.
    mask_rows
        32-bit rows of the four words of disable-output-lane, or None.
    accumulate
        enable-input-d.
    scale
        scale-input-d: D counts 2**-scale.
    zero_column_row
        64-bit row of the zero-column mask, or None for none or an immediate 0.
    """

    kind: str
    ws: bool
    buffer: str
    usage: str
    d: AddressSource
    a_tensor: AddressSource | None
    a_row: int
    b_row: int
    word_row: int
    mask_rows: npt.NDArray[np.int64] | None
    accumulate: PredicateSource
    scale: int
    zero_column_row: int | None


def read_form(instruction: Instruction, binder: Binder, ws: bool) -> MmaForm:
    """Read an instruction; `UnsupportedInstruction` for what is not simulated.

    Parameters
    ----------
    ws
        Whether it is ``tcgen05.mma.ws``.
    """
    kind, buffer, usage = _modifiers(binder, ws)
    operands = list(instruction.operands)
    if len(operands) < 5:
        binder.fail("needs [d], a, b, idesc and the predicate enable-input-d")
    d, a, b, word = operands[:4]
    rest = operands[4:]
    if not isinstance(d, Address):
        binder.fail("D must be an address in tensor memory")
    if isinstance(b, Address):
        binder.fail("B must be a shared-memory descriptor")
    mask_rows = None
    if isinstance(rest[0], Vector):
        mask_rows = binder.rows(rest.pop(0), 32)
        if ws or len(mask_rows) != 4:
            binder.fail("a lane mask has 4 words, and .ws takes none")
    if not rest:
        binder.fail("needs the predicate enable-input-d")
    accumulate = binder.predicate(rest.pop(0))
    scale = 0
    zero_columns = None
    if rest and ws:
        zero_columns = _zero_columns(rest.pop(0), binder)
    elif rest:
        scale = _scale(rest.pop(0), kind, binder)
    if rest:
        binder.fail("too many operands")
    return MmaForm(
        kind=kind,
        ws=ws,
        buffer=buffer,
        usage=usage,
        d=binder.address(d),
        a_tensor=binder.address(a) if isinstance(a, Address) else None,
        a_row=0 if isinstance(a, Address) else binder.row(a, 64),
        b_row=binder.row(b, 64),
        word_row=binder.row(word, 32),
        mask_rows=mask_rows,
        accumulate=accumulate,
        scale=scale,
        zero_column_row=zero_columns,
    )


def _modifiers(binder: Binder, ws: bool) -> tuple[str, str, str]:
    """Kind, collector buffer and its usage; refuses what is not simulated."""
    require(binder, "tcgen05")
    modifiers = Modifiers(binder, skip=2 if ws else 1)
    for unsupported in ("sp", "block_scale", "ashift"):
        if modifiers.has(unsupported):
            binder.fail(f".{unsupported} is not simulated")
    modifiers.cta_group()
    kind = (modifiers.starting("kind::") or "").removeprefix("kind::")
    if kind not in KINDS:
        binder.fail(f".kind::{kind} is not simulated")
    if kind == "i8":
        require(binder, "kind::i8")
    collector = modifiers.starting("collector::")
    modifiers.end()
    if collector is None:
        return kind, "b0" if ws else "a", "discard"
    parts = collector.split("::")
    buffers = ("b0", "b1", "b2", "b3") if ws else ("a",)
    usages = ("fill", "use", "lastuse", "discard")
    if len(parts) != 3 or parts[1] not in buffers or parts[2] not in usages:
        binder.fail(f"unknown modifier .{collector}")
    return kind, parts[1], parts[2]


def _zero_columns(operand: Operand, binder: Binder) -> int | None:
    if isinstance(operand, Immediate):
        if operand.bits:
            binder.fail("a non-zero zero-column mask is not simulated")
        return None
    return binder.row(operand, 64)


def _scale(operand: Operand, kind: str, binder: Binder) -> int:
    require(binder, "scale-input-d")
    if not isinstance(operand, Immediate) or operand.kind != "int" or not 0 <= operand.bits <= 15:
        binder.fail("scale-input-d must be an immediate in 0..15")
    if kind not in ("f16", "tf32"):
        binder.fail("scale-input-d is for kind::f16 and kind::tf32")
    return operand.bits
