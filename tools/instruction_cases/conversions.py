"""cvt between all kinds of numbers."""

from __future__ import annotations

import numpy as np

from instruction_cases.model import Case
from instruction_cases.probes import Probe, family, float_operands, integer_operands

__all__ = ["cases"]

COUNT = 384
INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def _bits(kind: str) -> int:
    return max(16, int(kind[1:]))


def _may_saturate(source: str, kind: str) -> bool:
    """Whether ptxas takes .sat: only where some source lies outside the range of the result."""
    source_bits, bits = int(source[1:]), int(kind[1:])
    if source[0] == kind[0]:
        return source_bits > bits
    return source[0] == "s" or source_bits >= bits


def _from_single() -> list[Case]:
    a, b = float_operands(np.random.default_rng(40), COUNT, 32, 2)
    to_integers = [
        Probe(f"cvt.{rounding}{extra}.{kind}.f32 {{d}}, {{a}};", _bits(kind))
        for kind in INTEGERS
        for rounding, extra in (("rzi", ""), ("rni", ""), ("rmi", ".ftz"), ("rpi", ".ftz"))
    ]
    packed = [
        Probe(f"cvt.{modifiers}.{kind}.f32 {{d}}, {{a}}, {{b}};")
        for kind in ("f16x2", "bf16x2")
        for modifiers in ("rn", "rz", "rn.relu", "rz.relu")
    ]
    packed += [
        Probe(f"cvt.rn.satfinite{relu}.{kind}.f32 {{d}}, {{a}}, {{b}};", 16)
        for kind in ("e4m3x2", "e5m2x2")
        for relu in ("", ".relu")
    ]
    scalar = [Probe(f"cvt.{modifiers}.tf32.f32 {{d}}, {{a}};") for modifiers in ("rna", "rn", "rz")]
    scalar += [
        Probe(f"cvt.{rounding}{extra}.{kind}.f32 {{d}}, {{a}};", 16)
        for kind in ("f16", "bf16")
        for rounding in ("rn", "rz")
        for extra in (("", ".relu", ".ftz", ".sat") if kind == "f16" else ("", ".relu"))
        if (rounding, extra) != ("rz", ".sat")
    ]
    scalar += [
        Probe(f"cvt.{modifiers}.f32.f32 {{d}}, {{a}};")
        for modifiers in ("rni", "rzi", "rmi", "rpi", "rni.ftz", "sat", "ftz.sat", "rzi.sat")
    ]
    scalar.append(Probe("cvt.f64.f32 {d}, {a};", 64))
    scalar.append(Probe("cvt.ftz.f64.f32 {d}, {a};", 64))
    return [
        family("cvt-f32-integers", to_integers, a, b),
        family("cvt-f32-packed", packed, a, b),
        family("cvt-f32-floats", scalar, a, b),
    ]


def _from_halves() -> list[Case]:
    found = []
    for kind, seed in (("f16", 41), ("bf16", 42)):
        values = float_operands(
            np.random.default_rng(seed), COUNT, 16 if kind == "f16" else kind, 1
        )[0]
        probes = [Probe(f"cvt.f32.{kind} {{d}}, {{a}};")]
        probes += [
            Probe(f"cvt.{rounding}.{result}.{kind} {{d}}, {{a}};", _bits(result))
            for result in ("s32", "u32", "s16", "u16", "s64")
            for rounding in ("rzi", "rni")
        ]
        if kind == "f16":
            probes.append(Probe("cvt.f64.f16 {d}, {a};", 64))
            probes.append(Probe("cvt.rni.f16.f16 {d}, {a};", 16))
            probes.append(Probe("cvt.sat.f32.f16 {d}, {a};"))
            probes += [
                Probe(f"cvt.rn{relu}.f16x2.{each} {{d}}, {{a}};")
                for each in ("e4m3x2", "e5m2x2")
                for relu in ("", ".relu")
            ]
        found.append(family(f"cvt-{kind}", probes, values))
    return found


def _from_integers() -> list[Case]:
    found = []
    for source in ("s32", "u32", "s64", "u64", "s16", "u16"):
        bits = int(source[1:])
        values = integer_operands(np.random.default_rng(50 + bits), 256, bits, 1)[0]
        probes = [
            Probe(f"cvt.{rounding}.{kind}.{source} {{d}}, {{a}};", width)
            for kind, width in (("f32", 32), ("f16", 16), ("bf16", 16))
            for rounding in ("rn", "rz", "rm", "rp")
        ]
        probes.append(Probe(f"cvt.rn.f64.{source} {{d}}, {{a}};", 64))
        probes += [
            Probe(f"cvt{saturate}.{kind}.{source} {{d}}, {{a}};", _bits(kind))
            for kind in INTEGERS
            for saturate in (("", ".sat") if _may_saturate(source, kind) else ("",))
        ]
        # A source narrower than its register.
        probes += [Probe("cvt.s32.s8 {d}, {a};"), Probe("cvt.rn.f32.u8 {d}, {a};")]
        found.append(family(f"cvt-{source}", probes, values))
    return found


def _from_double() -> Case:
    values = float_operands(np.random.default_rng(60), 256, 64, 1)[0]
    # Half of them within the range of float32, where roundings differ.
    low = np.random.default_rng(61).normal(size=128) * 2.0 ** np.arange(-64, 64)
    values[128:] = low.view(np.uint64)
    probes = [
        Probe(f"cvt.{rounding}.f32.f64 {{d}}, {{a}};")
        for rounding in ("rn", "rz", "rm", "rp", "rn.ftz")
    ]
    probes += [
        Probe(f"cvt.{rounding}.{kind}.f64 {{d}}, {{a}};", _bits(kind))
        for kind in ("s32", "u32", "s64", "u64", "s8")
        for rounding in ("rzi", "rni")
    ]
    probes.append(Probe("cvt.rn.f16.f64 {d}, {a};", 16))
    return family("cvt-f64", probes, values)


def cases() -> list[Case]:
    """All of this file."""
    return [*_from_single(), *_from_halves(), *_from_integers(), _from_double()]
