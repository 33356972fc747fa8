"""What a PTX module says, as plain data: the reader makes it, the decoder consumes it.

Nothing here knows how an instruction is executed. Names follow the PTX ISA (section 4, "Syntax",
and section 5, "State Spaces, Types, and Variables").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "Address",
    "Function",
    "Immediate",
    "Instruction",
    "LabelRef",
    "Module",
    "NotPredicate",
    "Operand",
    "Pair",
    "Register",
    "Sink",
    "Special",
    "Symbol",
    "Variable",
    "Vector",
]


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a function.

    Attributes
    ----------
    name
        Unique in the function: registers of an inner scope carry its number (``p0`` -> ``p0@3``).
    type
        As declared, without the dot: "pred", "b16", "f32", "b64", "b128", ...
    """

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant.

    Attributes
    ----------
    bits
        The value as the bits of ``kind``: two's complement in 64 bits for "int", the encoding of
        the number for "f32" (``0f3F800000``) and "f64" (``0d...`` and decimal literals).
    kind
        "int", "f32" or "f64".
    """

    bits: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Symbol:
    """The address of a variable or of a parameter, plus a constant offset in bytes."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A special register, with its percent sign: ``%tid.x``, ``%laneid``, ``%clock64``."""

    name: str


@dataclass(frozen=True, slots=True)
class Sink:
    """The bit bucket ``_``."""


@dataclass(frozen=True, slots=True)
class LabelRef:
    """A label as an operand; ``Function.labels`` says where it stands."""

    name: str


@dataclass(frozen=True, slots=True)
class NotPredicate:
    """A negated predicate as an operand: ``!p``."""

    register: Register


@dataclass(frozen=True, slots=True)
class Pair:
    """Two destinations joined by a bar: ``p|q`` of setp, ``d|p`` of shfl, ``_|p`` of elect."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Vector:
    """A list in braces: ``{%r1, %r2}``; in an address, the coordinates of a tensor."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Address:
    """A memory operand in brackets: ``[%rd1+16]``, ``[sym]``, ``[map, {%r1, %r2}]``.

    Attributes
    ----------
    base
        Register, Symbol or Immediate.
    offset
        Bytes, added to the base.
    coordinates
        The list after the base in a tensor operand, else None.
    """

    base: Operand
    offset: int = 0
    coordinates: Vector | None = None


Operand: TypeAlias = (
    Register
    | Immediate
    | Symbol
    | Special
    | Sink
    | LabelRef
    | NotPredicate
    | Pair
    | Vector
    | Address
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    opcode
        Up to the first dot: "mbarrier".
    modifiers
        What follows, split at dots: ("try_wait", "parity", "acquire", "cta", "shared::cta", "b64").
    operands
        In the order of the text.
    line
        Its line in the PTX text, from 1.
    text
        The statement as written, spaces collapsed, without the semicolon.
    guard
        The predicate that enables it, or None.
    guard_negated
        True for ``@!p``.
    """

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    text: str
    guard: Register | None = None
    guard_negated: bool = False

    @property
    def name(self) -> str:
        """The whole mnemonic, dots included."""
        return ".".join((self.opcode, *self.modifiers))


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or a parameter.

    Attributes
    ----------
    space
        "param", "shared", "global", "const" or "local".
    type
        Element type without the dot.
    align
        Bytes.
    size
        Bytes; 0 for an unsized ``.extern`` array.
    init
        The initial bytes, or None where there is none (a part of them may be given: zero-padded).
    extern
        True for ``.extern`` (dynamic shared memory).
    """

    name: str
    space: str
    type: str
    align: int
    size: int
    init: bytes | None = None
    extern: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """One kernel (``.entry``).

    Attributes
    ----------
    body
        The instructions in order.
    labels
        Label name -> index into ``body`` of the instruction that follows it (``len(body)`` at the
        end). Labels of an inner scope carry its number, as registers do.
    branch_targets
        ``.branchtargets`` lists: label -> labels.
    registers
        Every register that is declared or used, by unique name.
    variables
        Variables declared in the body (static shared memory, ``.local`` depots).
    directives
        Performance directives: "maxntid": (128, 1, 1), "minnctapersm": (3,), "maxnreg": (168,),
        "reqntid", "reqnctapercluster", "explicitcluster": ()...
    line
        Line of ``.entry``.
    """

    name: str
    parameters: tuple[Variable, ...]
    body: tuple[Instruction, ...]
    labels: dict[str, int]
    registers: dict[str, Register]
    variables: tuple[Variable, ...]
    directives: dict[str, tuple[int, ...]]
    line: int
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Module:
    """A PTX file: version (9, 0), target "sm_100a", its variables and kernels by name."""

    version: tuple[int, int]
    target: str
    variables: dict[str, Variable]
    functions: dict[str, Function]
