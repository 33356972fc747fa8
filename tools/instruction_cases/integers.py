"""Integer arithmetic and bits."""

from __future__ import annotations

import numpy as np

from instruction_cases.floats import comparisons
from instruction_cases.model import Case
from instruction_cases.probes import Probe, family, integer_operands

__all__ = ["cases"]

_ORDER = ("eq", "ne", "lt", "le", "gt", "ge")
_THREE = "{d}, {a}, {b}, {c};"
_TWO = "{d}, {a}, {b};"


def _words() -> list[Case]:
    arithmetic = [
        Probe(f"{name} {_TWO}")
        for name in (
            "add.s32",
            "add.sat.s32",
            "sub.sat.s32",
            "mul.lo.u32",
            "mul.hi.u32",
            "mul.hi.s32",
            "mul24.lo.u32",
            "mul24.lo.s32",
            "mul24.hi.u32",
            "mul24.hi.s32",
            "div.u32",
            "rem.u32",
            "min.s32",
            "max.u32",
        )
    ]
    # -2^31 / -1 overflows, which the ISA leaves open: divisors of signed divisions are positive.
    arithmetic += [
        Probe(
            "or.b32 {t}, {b}, 1; and.b32 {t}, {t}, 0x7fffffff; " + name + " {d}, {a}, {t};",
            label=name,
        )
        for name in ("div.s32", "rem.s32")
    ]
    arithmetic += [
        Probe(f"{name} {_THREE}")
        for name in (
            "mad.lo.s32",
            "mad.hi.s32",
            "mad.hi.u32",
            "mad.hi.sat.s32",
            "sad.s32",
            "sad.u32",
            "mad24.lo.s32",
            "mad24.hi.sat.s32",
            "dp4a.s32.s32",
            "dp4a.u32.s32",
            "dp4a.u32.u32",
            "dp2a.lo.s32.s32",
            "dp2a.hi.u32.s32",
            "slct.s32.s32",
        )
    ]
    arithmetic += [Probe(f"{name} {_TWO}", 64) for name in ("mul.wide.s32", "mul.wide.u32")]
    arithmetic += [
        Probe("add.cc.u32 {t}, {a}, {b}; addc.u32 {d}, {c}, {a};", label="addc"),
        Probe("sub.cc.u32 {t}, {a}, {b}; subc.u32 {d}, {c}, {a};", label="subc"),
        Probe("mad.lo.cc.u32 {t}, {a}, {b}, {c}; madc.hi.u32 {d}, {a}, {b}, {c};", label="madc"),
        comparisons("s32", _ORDER),
        comparisons("u32", (*_ORDER, "lo", "ls", "hi", "hs")),
    ]
    bits = [
        Probe(f"{name} {_TWO}")
        for name in (
            "shl.b32",
            "shr.u32",
            "shr.s32",
            "and.b32",
            "bmsk.clamp.b32",
            "bmsk.wrap.b32",
            "szext.clamp.s32",
            "szext.wrap.u32",
        )
    ]
    bits += [
        Probe(f"{name} {_THREE}")
        for name in (
            "bfe.u32",
            "bfe.s32",
            "shf.l.wrap.b32",
            "shf.l.clamp.b32",
            "shf.r.wrap.b32",
            "shf.r.clamp.b32",
        )
    ]
    bits += [Probe("bfi.b32 {d}, {a}, {c}, {b}, {c};"), Probe("bfi.b32 {d}, {a}, {c}, {b}, 9;")]
    bits += [
        Probe(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table:#x};", label=f"lop3 {table:#x}")
        for table in (0x96, 0xE8, 0xCA, 0x1B, 0x40)
    ]
    bits += [
        Probe(f"prmt.b32{mode} {_THREE}")
        for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
    ]
    bits += [
        Probe(f"{name} {{d}}, {{a}};")
        for name in (
            "popc.b32",
            "clz.b32",
            "brev.b32",
            "bfind.u32",
            "bfind.s32",
            "abs.s32",
            "bfind.shiftamt.u32",
            "neg.s32",
            "not.b32",
            "bfind.shiftamt.s32",
            "cnot.b32",
        )
    ]
    # fns: the base is a bit of the word, and the count is small.
    bits.append(
        Probe(
            "and.b32 {t}, {b}, 31; and.b32 {u}, {c}, 7; sub.s32 {u}, {u}, 3; "
            "fns.b32 {d}, {a}, {t}, {u};",
            label="fns",
        )
    )
    rng = np.random.default_rng(70)
    return [
        family("integer-arithmetic", arithmetic, *integer_operands(rng, 384)),
        family("bits", bits, *integer_operands(rng, 384)),
    ]


def _other_widths() -> list[Case]:
    rng = np.random.default_rng(71)
    long = [
        Probe(f"{name} {_TWO}", 64)
        for name in (
            "mul.hi.u64",
            "mul.hi.s64",
            "mul.lo.s64",
            "div.u64",
            "rem.u64",
            "min.s64",
            "max.u64",
        )
    ]
    long += [
        Probe(f"cvt.u32.u64 {{t}}, {{b}}; {name} {{d}}, {{a}}, {{t}};", 64, label=name)
        for name in ("shl.b64", "shr.u64", "shr.s64")
    ]
    long += [
        Probe(
            "cvt.u32.u64 {t}, {b}; cvt.u32.u64 {u}, {c}; " + name + " {d}, {a}, {t}, {u};",
            64,
            label=name,
        )
        for name in ("bfe.u64", "bfe.s64")
    ]
    long += [
        Probe(f"{name} {{d}}, {{a}};") for name in ("popc.b64", "clz.b64", "bfind.u64", "bfind.s64")
    ]
    long.append(Probe("brev.b64 {d}, {a};", 64))
    long.append(Probe("mad.hi.s64 {d}, {a}, {b}, {c};", 64))
    short = [
        Probe(f"{name} {_TWO}", 16)
        for name in (
            "add.u16",
            "mul.lo.u16",
            "mul.hi.s16",
            "mul.hi.u16",
            "min.s16",
            "max.u16",
            "div.u16",
            "rem.u16",
        )
    ]
    short += [
        Probe(f"cvt.u32.u16 {{t}}, {{b}}; {name} {{d}}, {{a}}, {{t}};", 16, label=name)
        for name in ("shl.b16", "shr.u16", "shr.s16")
    ]
    short += [Probe(f"{name} {_TWO}") for name in ("mul.wide.s16", "mul.wide.u16")]
    short.append(Probe("mad.lo.s16 {d}, {a}, {b}, {c};", 16))
    short.append(Probe("neg.s16 {d}, {a};", 16))
    return [
        family("integers-64", long, *integer_operands(rng, 192, 64)),
        family("integers-16", short, *integer_operands(rng, 192, 16)),
    ]


def cases() -> list[Case]:
    """All of this file."""
    return [*_words(), *_other_widths()]
