"""Binding of one instruction to lane ops: operands to rows, modifiers taken one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from cakert.sim.core.lane_ops import LANE_FUNCTIONS, LANE_SIGNATURES
from cakert.sim.ptx.model import (
    Immediate,
    Instruction,
    NotPredicate,
    Operand,
    Pair,
    Register,
    Sink,
    Vector,
)

__all__ = ["LaneBinder", "LaneBinding", "LaneBuilder", "PredicateIndex", "Row", "Source"]

# LaneOp::flags (core/lane_ops.h).
NEGATE_FIRST, NEGATE_SECOND = 1, 2
COMBINE = {"and": 4, "or": 8, "xor": 16}

# LaneOp::extra of floating-point operations (core/lane_ops.h, FloatMode).
ROUNDINGS = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 4}
FTZ, SAT, RELU, SATFINITE, INTEGRAL = 8, 16, 32, 64, 128


class PredicateIndex(Protocol):
    """What `LaneBinder.predicate` gives: an entry of the warp's predicates, perhaps negated."""

    @property
    def index(self) -> int:
        """Index into the warp's predicates."""

    @property
    def negated(self) -> bool:
        """True for ``!p``."""


class LaneBinder(Protocol):
    """The part of the decoder's binder that lane ops need."""

    @property
    def arch(self) -> str:
        """Target: "sm_100a"."""

    def row(self, operand: Operand, bits: int) -> int:
        """Row of a source; 128 bits: the first of its two rows of 64."""

    def out(self, operand: Operand, bits: int) -> int:
        """Row of a destination; a sink gives a scratch row."""

    def predicate(self, operand: Operand) -> PredicateIndex:
        """A source predicate: a register or its negation."""

    def out_predicate(self, operand: Operand) -> int:
        """Index of a destination predicate; a sink gives a scratch one."""

    def fail(self, reason: str) -> NoReturn:
        """Raise UnsupportedInstruction with the line and the text."""


@dataclass(frozen=True, slots=True)
class LaneBinding:
    """One lane op with its operands.

    Attributes
    ----------
    name, function
        Its name and index in the table of ``cakert.sim.core.lane_ops``.
    rows
        Destinations first, as its signature says; -1 for an absent predicate.
    extra, flags, immediate
        The fields of ``LaneOp``.
    touched32
        Rows of 32-bit registers that it reads or writes, each once.
    """

    name: str
    function: int
    rows: tuple[int, ...]
    extra: int
    flags: int
    immediate: int
    touched32: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row (or a predicate) that is known already: a scratch, a half of a b128 register."""

    index: int


Source = Operand | Row | None

_WIDTH = re.compile(r"[a-z]+(\d+)(x2)?$")


def register_bits(operand: Operand, default: int) -> int:
    """Declared width of a register in bits, at least 16; `default` for any other operand."""
    if not isinstance(operand, Register):
        return default
    match = _WIDTH.match(operand.type)
    if match is None:
        return default
    return max(int(match[1]) * (2 if match[2] else 1), 16)


class LaneBuilder:
    """Collects the lane ops of one instruction.

    Rules take the modifiers that they know (`take`, `type`); what is left over at `finish` is a
    form that nobody has written, and fails.
    """

    def __init__(self, instruction: Instruction, binder: LaneBinder) -> None:
        self.instruction = instruction
        self.opcode = instruction.opcode
        self.operands = instruction.operands
        self.modifiers = list(instruction.modifiers)
        self.binder = binder
        self.bindings: list[LaneBinding] = []

    def fail(self, reason: str) -> NoReturn:
        """Refuse the instruction."""
        self.binder.fail(reason)

    def take(self, *names: str) -> str | None:
        """Take the first modifier that is one of `names`, or none."""
        for name in self.modifiers:
            if name in names:
                self.modifiers.remove(name)
                return name
        return None

    def flag(self, name: str) -> bool:
        """Take a modifier; whether it was there."""
        return self.take(name) is not None

    def need(self, *names: str) -> str:
        """Take one of `names`, which the instruction must have."""
        name = self.take(*names)
        if name is None:
            self.fail(f"it needs one of .{', .'.join(names)}")
        return name

    def type(self, *allowed: str) -> str:
        """Take the last modifier: the type, one of `allowed`."""
        if not self.modifiers or self.modifiers[-1] not in allowed:
            actual = f".{self.modifiers[-1]}" if self.modifiers else "none"
            self.fail(f"expected a type of .{', .'.join(allowed)}, got {actual}")
        return self.modifiers.pop()

    def since_sm100(self, what: str) -> None:
        """Refuse what older targets lack."""
        if int("".join(c for c in self.binder.arch if c.isdigit())) < 100:
            self.fail(f"{what} needs sm_100 or later, not {self.binder.arch}")

    def peek(self) -> str:
        """The last modifier, or an empty string."""
        return self.modifiers[-1] if self.modifiers else ""

    def count(self, *allowed: int) -> None:
        """Check the number of operands."""
        if len(self.operands) not in allowed:
            wanted = " or ".join(map(str, allowed))
            self.fail(f"expected {wanted} operands, got {len(self.operands)}")

    def pair(self, operand: Operand) -> tuple[Operand, Operand | None]:
        """The two destinations of ``d|p``, or one and None."""
        if isinstance(operand, Pair):
            return operand.first, operand.second
        return operand, None

    def items(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The operands of a vector of `count`."""
        if not isinstance(operand, Vector) or len(operand.items) != count:
            self.fail(f"expected a vector of {count}")
        return operand.items

    def out_row(self, operand: Operand, bits: int) -> Row:
        """The row of a destination that a later lane op of the instruction reads again."""
        return Row(self._out(operand, bits))

    def scratch(self, bits: int = 32) -> Row:
        """A row that nobody reads after this instruction."""
        return Row(self.binder.out(Sink(), bits))

    def scratch_predicate(self) -> Row:
        """A predicate that nobody reads after this instruction."""
        return Row(self.binder.out_predicate(Sink()))

    def emit(
        self,
        name: str,
        outs: Sequence[Source],
        sources: Sequence[Source],
        *,
        extra: int = 0,
        flags: int = 0,
        immediate: int = 0,
    ) -> None:
        """Add the lane op `name`; its signature says how each operand is bound."""
        kinds_out, kinds_in = LANE_SIGNATURES[name].split(":")
        if len(outs) != len(kinds_out) or len(sources) != len(kinds_in):
            self.fail(f"{name} has operands {LANE_SIGNATURES[name]!r}")
        rows: list[int] = []
        touched: dict[int, None] = {}
        predicates = 0
        # Sources first: a predicate constant is an op of its own that has to come before.
        bound_sources: list[int] = []
        for kind, source in zip(kinds_in, sources, strict=True):
            if kind in "p?":
                index, negated = self._predicate(source)
                if negated:
                    flags |= NEGATE_FIRST if predicates == 0 else NEGATE_SECOND
                predicates += 1
                bound_sources.append(index)
            else:
                bound_sources.append(self._source(source, 8 * int(kind)))
        for kind, out in zip(kinds_out, outs, strict=True):
            rows.append(self._predicate_out(out) if kind in "p?" else self._out(out, 8 * int(kind)))
        rows += bound_sources
        for kind, row in zip(kinds_out + kinds_in, rows, strict=True):
            if kind == "8":
                touched |= {2 * row: None, 2 * row + 1: None}
            elif kind not in "p?":
                touched[row] = None
        self.bindings.append(
            LaneBinding(
                name, LANE_FUNCTIONS[name], tuple(rows), extra, flags, immediate, tuple(touched)
            )
        )

    def finish(self) -> tuple[LaneBinding, ...]:
        """The lane ops in order, when every modifier has been taken."""
        if self.modifiers:
            self.fail(f"modifier .{self.modifiers[0]} of {self.opcode} is not supported here")
        return tuple(self.bindings)

    def _source(self, source: Source, bits: int) -> int:
        if isinstance(source, Row):
            return source.index
        if source is None or isinstance(source, Vector | Pair | Sink | NotPredicate):
            self.fail("an operand is of the wrong kind")
        if register_bits(source, bits) < bits and bits > 16:
            self.fail(f"a source register is narrower than {bits} bits")
        if register_bits(source, bits) > max(bits, 32):
            self.fail(f"a source register is wider than {bits} bits")
        return self.binder.row(source, bits)

    def _out(self, out: Source, bits: int) -> int:
        if isinstance(out, Row):
            return out.index
        if out is None or isinstance(out, Vector | Pair | NotPredicate | Immediate):
            self.fail("a destination is of the wrong kind")
        if (register_bits(out, bits) > 32) != (bits > 32):
            self.fail(f"a destination register does not have {bits} bits")
        return self.binder.out(out, bits)

    def _predicate(self, source: Source) -> tuple[int, bool]:
        if source is None:
            return -1, False
        if isinstance(source, Row):
            return source.index, False
        if isinstance(source, Immediate):
            constant = self.scratch_predicate()
            self.emit("set.pred", [constant], [], immediate=int(source.bits != 0))
            return constant.index, False
        bound = self.binder.predicate(source)
        return bound.index, bound.negated

    def _predicate_out(self, out: Source) -> int:
        if out is None:
            return -1
        return out.index if isinstance(out, Row) else self.binder.out_predicate(out)
