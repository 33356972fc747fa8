"""What the binding functions of the matrix instructions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cakert.sim.ptx.model import Immediate, Instruction, Operand, Vector

if TYPE_CHECKING:
    from cakert.sim.decode.binder import Binder

__all__ = ["FULL_MASK", "immediate", "operands", "require_full_warp", "vector"]

FULL_MASK = 0xFFFFFFFF


def operands(instruction: Instruction, binder: Binder, *counts: int) -> tuple[Operand, ...]:
    """The operands of an instruction, which must have one of the given numbers of them."""
    found = instruction.operands
    if len(found) not in counts:
        expected = " or ".join(str(count) for count in counts)
        binder.fail(f"expected {expected} operands, got {len(found)}")
    return found


def vector(operand: Operand, binder: Binder, count: int, what: str) -> Vector:
    """A list of `count` registers, as the ISA demands it even for one."""
    if not isinstance(operand, Vector) or len(operand.items) != count:
        binder.fail(f"{what} must be a list of {count} registers")
    return operand


def immediate(operand: Operand, binder: Binder, allowed: tuple[int, ...], what: str) -> int:
    """An integer constant out of `allowed`; negative ones stand in 64-bit two's complement."""
    if isinstance(operand, Immediate) and operand.kind == "int":
        bits = operand.bits & 0xFFFFFFFFFFFFFFFF
        value = bits - (1 << 64) if bits >> 63 else bits
        if value in allowed:
            return value
    choices = ", ".join(str(value) for value in allowed)
    return binder.fail(f"{what} must be a constant out of {choices}")


def require_full_warp(warp: Any, mask: int) -> None:
    """Refuse a warp-wide matrix instruction that some lanes do not execute.

    Raises
    ------
    Fault
        "partial-warp": PTX ISA: behaviour is undefined unless all threads of the warp execute the
        same instruction, none having exited.
    """
    if mask != FULL_MASK:
        warp.cta.launch.fault(
            "partial-warp",
            f"only the lanes {mask:#010x} execute this instruction of the whole warp.",
            where=warp.where(),
            advice="Make its guard uniform in the warp, and let no lane exit before.",
        )
