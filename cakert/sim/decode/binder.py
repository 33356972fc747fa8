"""Operands of an instruction -> rows of the register file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from cakert.sim.decode.layout import RegisterLayout
from cakert.sim.faults import UnsupportedInstruction, Where
from cakert.sim.ptx.model import (
    Address,
    Immediate,
    Instruction,
    NotPredicate,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

__all__ = ["AddressSource", "Binder", "Handler", "PredicateSource", "register_bits"]

Warp: TypeAlias = Any
Handler: TypeAlias = Callable[[Any, int], Any]

_ALL_LANES = 0xFFFFFFFF


def register_bits(kind: str) -> int:
    """Bits of a register or instruction type: "f32" -> 32, "f16x2" -> 32, "b128" -> 128."""
    if kind in ("f16x2", "bf16x2", "u16x2", "s16x2"):
        return 32
    if kind in ("f32x2", "b32x2"):
        return 64
    digits = "".join(c for c in kind.removeprefix("bf") if c.isdigit())
    return int(digits)


@dataclass(frozen=True, slots=True)
class PredicateSource:
    """A predicate operand: a number in `Warp.predicates`, or a constant."""

    index: int
    negated: bool = False
    constant: int | None = None

    def mask(self, warp: Warp) -> int:
        """Lanes in which the predicate holds."""
        if self.constant is not None:
            return self.constant
        value = int(warp.predicates[self.index])
        return ~value & _ALL_LANES if self.negated else value


@dataclass(frozen=True, slots=True)
class AddressSource:
    """A memory operand: a row that holds the base, and an offset in bytes."""

    row: int
    bits: int
    offset: int

    def lanes(self, warp: Warp) -> npt.NDArray[np.uint64]:
        """Addresses of the 32 lanes, as uint64."""
        if self.bits == 64:
            wide: npt.NDArray[np.uint64] = warp.file64[self.row]
            return wide + np.uint64(self.offset & 0xFFFFFFFFFFFFFFFF)
        narrow: npt.NDArray[np.uint32] = warp.file32[self.row]
        return (narrow + np.uint32(self.offset & 0xFFFFFFFF)).astype(np.uint64)

    def lane(self, warp: Warp, lane: int) -> int:
        """Address of one lane."""
        if self.bits == 64:
            return (int(warp.file64[self.row, lane]) + self.offset) & 0xFFFFFFFFFFFFFFFF
        return (int(warp.file32[self.row, lane]) + self.offset) & 0xFFFFFFFF


class Binder:
    """What a rule needs to bind one instruction.

    Parameters
    ----------
    instruction, kernel, arch
        The instruction; name of its kernel; target of the simulated GPU ("sm_100a").
    layout
        Rows of the kernel's registers.
    symbols
        Address of every variable and parameter that the kernel can name: offset in its window for
        shared, local and param, an address of global memory otherwise.
    """

    def __init__(
        self,
        instruction: Instruction,
        *,
        kernel: str,
        arch: str,
        layout: RegisterLayout,
        symbols: Mapping[str, int],
    ) -> None:
        self.instruction = instruction
        self.kernel = kernel
        self.arch = arch
        self.line = instruction.line
        self.layout = layout
        self._symbols = symbols
        self.touched: set[int] = set()

    def fail(self, reason: str) -> NoReturn:
        """Refuse the instruction: UnsupportedInstruction with its line."""
        raise UnsupportedInstruction(f"line {self.line}: `{self.instruction.text}`: {reason}")

    def where(self, warp: Warp) -> Where:
        """The place of this instruction in a running warp."""
        return Where(
            self.kernel, self.line, self.instruction.text, tuple(warp.cta.ctaid), warp.index
        )

    def bits(self, operand: Operand) -> int:
        """Width of a register operand; 64 for symbols, 32 for special registers and the sink."""
        if isinstance(operand, Register):
            return register_bits(operand.type)
        if isinstance(operand, (Symbol, Immediate)):
            return 64
        return 32

    def row(self, operand: Operand, bits: int) -> int:
        """Row of a source operand: of 64-bit rows for ``bits`` 64 (and the first of 128)."""
        if isinstance(operand, Register):
            return self._register(operand, bits)
        if isinstance(operand, Immediate):
            return self.layout.constant(self._constant(operand, bits), bits)
        if isinstance(operand, Symbol):
            return self.layout.constant(self.address_of(operand), bits)
        if isinstance(operand, Special):
            if bits > 32:
                self.fail(f"{operand.name} has 32 bits, not {bits}")
            return self.layout.special(operand.name)
        return self.fail(f"{type(operand).__name__} cannot be a source of {bits} bits")

    def rows(self, operand: Operand, bits: int) -> npt.NDArray[np.int64]:
        """Rows of a vector of sources; a single operand counts as a vector of one."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return np.array([self.row(item, bits) for item in items], np.int64)

    def out(self, operand: Operand, bits: int) -> int:
        """Row of a destination; the sink gives a row that nobody reads."""
        if isinstance(operand, Sink):
            return self.layout.scratch64 if bits > 32 else self.layout.scratch32
        if isinstance(operand, Register):
            return self._register(operand, bits)
        return self.fail(f"{type(operand).__name__} cannot be a destination")

    def outs(self, operand: Operand, bits: int) -> npt.NDArray[np.int64]:
        """Rows of a vector of destinations."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        return np.array([self.out(item, bits) for item in items], np.int64)

    def predicate(self, operand: Operand) -> PredicateSource:
        """A predicate that is read: ``p``, ``!p``, or a constant (0 is false)."""
        if isinstance(operand, NotPredicate):
            return PredicateSource(self._predicate(operand.register), negated=True)
        if isinstance(operand, Immediate):
            return PredicateSource(0, constant=_ALL_LANES if operand.bits else 0)
        if isinstance(operand, Register):
            return PredicateSource(self._predicate(operand))
        return self.fail(f"{type(operand).__name__} cannot be a predicate")

    def out_predicate(self, operand: Operand) -> int:
        """Number of a predicate that is written."""
        if isinstance(operand, Sink):
            return self.layout.scratch_predicate
        if isinstance(operand, Register):
            return self._predicate(operand)
        return self.fail(f"{type(operand).__name__} cannot be a predicate destination")

    def address(self, operand: Operand) -> AddressSource:
        """A memory operand."""
        if not isinstance(operand, Address):
            self.fail(f"{type(operand).__name__} is no address")
        base = operand.base
        if isinstance(base, Register):
            bits = register_bits(base.type)
            if bits not in (32, 64):
                self.fail(f"an address register must have 32 or 64 bits, not {bits}")
            return AddressSource(self._register(base, bits), bits, operand.offset)
        if isinstance(base, Symbol):
            return AddressSource(
                self.layout.constant(self.address_of(base), 64), 64, operand.offset
            )
        if isinstance(base, Immediate):
            return AddressSource(self.layout.constant(base.bits, 64), 64, operand.offset)
        return self.fail(f"{type(base).__name__} cannot be the base of an address")

    def address_of(self, symbol: Symbol) -> int:
        """Address of a variable or parameter."""
        if symbol.name not in self._symbols:
            self.fail(f"{symbol.name} is not a variable of this module")
        return self._symbols[symbol.name] + symbol.offset

    def _register(self, register: Register, bits: int) -> int:
        if register.type == "pred":
            self.fail(f"{register.name} is a predicate; a register of {bits} bits is needed")
        own = register_bits(register.type)
        if max(own, 32) != max(bits, 32):
            self.fail(f"{register.name} has {own} bits; {bits} are needed")
        row = self.layout.register(register.name, own)
        if own <= 32:
            self.touched.add(row)
        else:
            self.touched.update(range(2 * row, 2 * row + own // 32))
        return row

    def _predicate(self, register: Register) -> int:
        if register.type != "pred":
            self.fail(f"{register.name} is no predicate")
        return self.layout.predicate(register.name)

    def _constant(self, immediate: Immediate, bits: int) -> int:
        if immediate.kind == "f64" and bits == 32:
            value = np.array(immediate.bits, np.uint64).view(np.float64)
            return int(value.astype(np.float32).view(np.uint32))
        if immediate.kind == "f32" and bits == 64:
            narrow = np.array(immediate.bits, np.uint32).view(np.float32)
            return int(narrow.astype(np.float64).view(np.uint64))
        return immediate.bits
