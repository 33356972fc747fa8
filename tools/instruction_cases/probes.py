"""Many instructions on the lanes of one kernel: the form of the arithmetic cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instruction_cases.model import BITS, Case, Rule, segments_of
from instruction_cases.text import FILL, kernel

__all__ = ["Probe", "family", "float_operands", "integer_operands"]


@dataclass(frozen=True)
class Probe:
    """One instruction, or a few.

    Attributes
    ----------
    text
        With {d} for the result, {a}, {b}, {c} for the operands of the family; {p}, {q} are
        predicates, {t}, {u} are scratch of 32 bits, {w} of 64.
    bits
        Of the result: 16, 32 or 64.
    """

    text: str
    bits: int = 32
    rule: Rule = BITS
    label: str = ""

    @property
    def name(self) -> str:
        """The mnemonic, without operands."""
        return self.label or self.text.split()[0]


_REGISTERS = {16: "%h", 32: "%r", 64: "%d"}


def family(name: str, probes: Sequence[Probe], *operands: np.ndarray) -> Case:
    """A kernel that applies each probe to every thread's operands (arrays of equal length)."""
    count = len(operands[0])
    assert count <= 1024, "one thread a lane, one CTA"
    bits = [8 * each.itemsize for each in operands]
    body, source, start = "", [], 0
    names = {"p": "%p1", "q": "%p2", "t": "%r20", "u": "%r21", "w": "%d20"}
    for at, width in ((3, 2), (4, 4), (5, 8)):
        body += f"mul.wide.u32 %d{at}, %r0, {width};\nadd.u64 %d{at + 3}, %d{at}, %d1;\n"
        body += f"add.u64 %d{at}, %d{at}, %d0;\n"
    at_of = {16: 3, 32: 4, 64: 5}
    for letter, values, width in zip("abc", operands, bits, strict=False):
        register = f"{_REGISTERS[width]}1{'abc'.index(letter)}"
        body += f"ld.global.b{width} {register}, [%d{at_of[width] + 3}+{start}];\n"
        names[letter] = register
        source.append(values.view(np.uint8))
        start += values.nbytes
    parts, start = [], 0
    # Wide results first, so that each segment is aligned.
    for probe in sorted(probes, key=lambda probe: -probe.bits):
        result = f"{_REGISTERS[probe.bits]}15"
        body += probe.text.format(**names, d=result) + "\n"
        body += f"st.global.b{probe.bits} [%d{at_of[probe.bits]}+{start}], {result};\n"
        parts.append((probe.name, count, probe.bits // 8, probe.rule))
        start += count * probe.bits // 8
    return Case(
        name, kernel(body, block=count), np.concatenate(source),
        np.full(start, FILL & 255, np.uint8),
        segments_of(parts), block=count, tags={"operands": operands},
    )  # fmt: skip


_SPECIAL = {
    # zero, one, infinity, quiet and signalling NaN, smallest and largest denormal, smallest normal,
    # largest, a tie: each with both signs
    16: (0, 0x3C00, 0x7C00, 0x7E01, 0x7C01, 1, 0x3FF, 0x400, 0x7BFF, 0x3801),
    "bf16": (0, 0x3F80, 0x7F80, 0x7FC1, 0x7F81, 1, 0x7F, 0x80, 0x7F7F, 0x3F81),
    32: (0, 0x3F800000, 0x7F800000, 0x7FC00001, 0x7F800001, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF,
         0x4B000001, 0x3F000000, 0x4F000000, 0x477FF000, 0x387FE000),
    64: (0, 0x3FF0 << 48, 0x7FF0 << 48, (0x7FF8 << 48) + 1, (0x7FF0 << 48) + 1, 1,
         (1 << 52) - 1, 1 << 52, (0x7FF0 << 48) - 1, 0x433 << 52, 0x41E << 52),
}  # fmt: skip


def float_operands(
    rng: np.random.Generator, count: int, kind: int | str = 32, operands: int = 3
) -> tuple[np.ndarray, ...]:
    """Bit patterns: all pairs of special values, raw bits, and numbers of like magnitude.

    ``kind`` is 16 (f16), "bf16", 32 or 64.
    """
    bits = 16 if kind == "bf16" else int(kind)
    dtype = np.dtype(f"<u{bits // 8}")
    special = np.array(_SPECIAL[kind], dtype)
    special = np.concatenate([special, special | dtype.type(1 << (bits - 1))])
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    pairs = pairs[:, rng.permutation(pairs.shape[1])[: count // 3]]
    found = []
    for i in range(operands):
        raw = rng.integers(0, 1 << bits, count, dtype)
        exponent = {16: 10, "bf16": 7, 32: 23, 64: 52}[kind]
        bias = {16: 15, "bf16": 127, 32: 127, 64: 1023}[kind]
        near = rng.integers(bias - 4, bias + 5, count).astype(dtype) << dtype.type(exponent)
        near |= raw & dtype.type((1 << exponent) - 1 | 1 << (bits - 1))
        values = np.where(rng.random(count) < 0.5, raw, near)
        n = pairs.shape[1]
        values[:n] = pairs[i] if i < 2 else rng.choice(special, n)
        found.append(values)
    return tuple(found)


def integer_operands(
    rng: np.random.Generator, count: int, bits: int = 32, operands: int = 3
) -> tuple[np.ndarray, ...]:
    """Bit patterns: extremes, small numbers (shifts, lengths), and raw bits."""
    dtype = np.dtype(f"<u{bits // 8}")
    top = 1 << (bits - 1)
    special = np.array([0, 1, 2 * top - 1, top, top - 1, 31, 32, 33, 63, 64, 255, 256], dtype)
    found = []
    for _ in range(operands):
        values = rng.integers(0, 1 << bits, count, dtype)
        kind = rng.integers(0, 4, count)
        values = np.where(kind == 0, rng.choice(special, count), values)
        found.append(np.where(kind == 1, rng.integers(0, 70, count).astype(dtype), values))
    return tuple(found)
