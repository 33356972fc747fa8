"""The instruction descriptor of tcgen05.mma: 32 bits that say formats, majors and shape.

PTX ISA 9.7.16.4.2, table "Instruction descriptor format", and 9.7.16.2.1 for the shapes.
ptxas checks none of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from cakert.sim.faults import Fault

if TYPE_CHECKING:
    from cakert.sim.faults import Where

__all__ = ["ADVICE", "KINDS", "DescriptorError", "InstructionDescriptor", "decode", "parse"]

Major = Literal["k", "mn"]

ADVICE = 'Build it by the table "Instruction descriptor" of the PTX ISA (tcgen05).'
"""What a fault tells about a descriptor that is not valid."""

KINDS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
    "i8": {0: "u8", 1: "s8"},
}
"""Kind -> code in the A and B format fields -> element."""

_D_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}
_ELEMENT_BYTES = {"f16": 2, "tf32": 4, "f8f6f4": 1, "i8": 1}
_NARROW = frozenset({"e2m3", "e3m2", "e2m1"})


class DescriptorError(ValueError):
    """A field that no instruction of this kind allows."""


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """A decoded descriptor.

    Attributes
    ----------
    d, a, b
        Formats: "f32", "f16" or "s32"; "f16", "bf16", "tf32", "e4m3", "e5m2", "u8", "s8".
    negate_a, negate_b
        Whether the operand is negated.
    major_a, major_b
        "k" or "mn".
    m, n, k
        The shape; K is 256 bits of A.
    saturate
        Integers: clamp to the range of s32 instead of wrapping.
    element_bytes
        Of A and B.
    """

    d: str
    a: str
    b: str
    negate_a: bool
    negate_b: bool
    major_a: Major
    major_b: Major
    m: int
    n: int
    k: int
    saturate: bool
    element_bytes: int


def _allowed_n(kind: str, ws: bool) -> tuple[int, ...]:
    if ws:
        return (64, 128, 256)
    if kind == "i8":
        return (8, 16, 24, *range(32, 257, 16))
    return tuple(range(8, 257, 8))


@lru_cache(maxsize=256)
def parse(word: int, kind: str, ws: bool) -> InstructionDescriptor:
    """Decode a descriptor of cta_group::1.

    Parameters
    ----------
    word
        The 32-bit operand.
    kind
        "f16", "tf32", "f8f6f4" or "i8".
    ws
        Whether the instruction is ``tcgen05.mma.ws``.

    Raises
    ------
    DescriptorError
        Names the field, its bits and what is allowed.
    """

    def field(low: int, count: int) -> int:
        return word >> low & ((1 << count) - 1)

    def need(ok: bool, name: str, low: int, count: int, allowed: str) -> None:
        if not ok:
            bits = f"bit {low}" if count == 1 else f"bits {low}-{low + count - 1}"
            raise DescriptorError(f"{name} ({bits}) is {field(low, count)}: {allowed}")

    where = f"for kind::{kind}{' .ws' if ws else ''}"
    need(field(2, 1) == 0, "sparsity", 2, 1, "sparse MMAs need the .sp form")
    need(field(0, 2) == 0, "sparsity selector", 0, 2, "must be 0 for a dense MMA")
    need(kind == "i8" or not field(3, 1), "saturate", 3, 1, f"must be 0 {where}")
    need(field(6, 1) == 0, "reserved field", 6, 1, "must be 0")
    need(field(23, 1) == 0, "reserved field", 23, 1, "must be 0")
    need(field(29, 1) == 0, "reserved field", 29, 1, "must be 0")
    d_formats, formats = _D_FORMATS[kind], KINDS[kind]
    need(field(4, 2) in d_formats, "D format", 4, 2, f"expected {d_formats} {where}")
    for name, low in (("A format", 7), ("B format", 10)):
        need(field(low, 3) in formats, name, low, 3, f"expected {formats} {where}")
    d, a, b = d_formats[field(4, 2)], formats[field(7, 3)], formats[field(10, 3)]
    if d == "f16" and "bf16" in (a, b):
        raise DescriptorError(
            f"D format (bits 4-5) is f16 with {a} x {b}: an f16 D takes f16 operands"
        )
    if kind == "f16" and a != b:
        raise DescriptorError(f"A format {a} (bits 7-9) and B format {b} (bits 10-12) must agree")
    for name, low in (("negate A", 13), ("negate B", 14)):
        need(kind != "i8" or not field(low, 1), name, low, 1, f"must be 0 {where}")
    m, n = field(24, 5) << 4, field(17, 6) << 3
    allowed_m = (32, 64, 128) if ws else (64, 128)
    if m not in allowed_m:
        raise DescriptorError(
            f"M (bits 24-28) is {m}: expected one of {allowed_m} {where}, cta_group::1"
        )
    if n not in _allowed_n(kind, ws):
        raise DescriptorError(
            f"N (bits 17-22) is {n}: expected one of {_allowed_n(kind, ws)} {where}, cta_group::1"
        )
    need(ws or field(30, 2) == 0, "maximum shift", 30, 2, "B reuse with a shift is for .ws")
    element_bytes = _ELEMENT_BYTES[kind]
    return InstructionDescriptor(
        d=d,
        a=a,
        b=b,
        negate_a=bool(field(13, 1)),
        negate_b=bool(field(14, 1)),
        major_a="mn" if field(15, 1) else "k",
        major_b="mn" if field(16, 1) else "k",
        m=m,
        n=n,
        k=32 // element_bytes,
        saturate=bool(field(3, 1)),
        element_bytes=element_bytes,
    )


def decode(word: int, kind: str, ws: bool, where: Where) -> InstructionDescriptor:
    """Decode a descriptor for an instruction at ``where``.

    Raises
    ------
    Fault
        "instruction-descriptor-invalid" and "unsupported-format", which cannot be ignored: there
        is no multiplication to go on with.
    """
    try:
        descriptor = parse(word, kind, ws)
    except DescriptorError as error:
        raise Fault(
            "instruction-descriptor-invalid",
            f"descriptor {word:#010x}: {error}.",
            where=where,
            advice=ADVICE,
        ) from error
    narrow = _NARROW & {descriptor.a, descriptor.b}
    if narrow:
        raise Fault(
            "unsupported-format",
            f"{', '.join(sorted(narrow))} operands (packed to 6 or 4 bits) are not simulated.",
            where=where,
            advice="Use e4m3 or e5m2.",
        )
    return descriptor
