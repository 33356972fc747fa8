"""Floating-point arithmetic on random bit patterns and on pairs of special values."""

from __future__ import annotations

import numpy as np

from instruction_cases.model import Case, Rule
from instruction_cases.probes import Probe, family, float_operands

__all__ = ["cases"]

ROUNDINGS = ("rn", "rz", "rm", "rp")
EXACT = 512


def _nan(element: str) -> Rule:
    return Rule("nan", element)


def _single() -> Case:
    """f32: the NaN of add, sub, mul, fma, min and max is 0x7fffffff (PTX ISA 9.7.3)."""
    probes = []
    for operation in ("add", "sub", "mul", "fma"):
        sources = "{a}, {b}, {c}" if operation == "fma" else "{a}, {b}"
        forms = [f"{rounding}{extra}" for rounding in ROUNDINGS for extra in ("", ".ftz")]
        forms += ["rn.sat", "rn.ftz.sat"]
        probes += [Probe(f"{operation}.{form}.f32 {{d}}, {sources};") for form in forms]
    extras = ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs")
    for operation in ("min", "max"):
        probes += [Probe(f"{operation}{extra}.f32 {{d}}, {{a}}, {{b}};") for extra in extras]
    for operation in ("abs", "neg"):
        forms = [f"{operation}{extra}.f32" for extra in ("", ".ftz")]
        probes += [Probe(f"{form} {{d}}, {{a}};", rule=_nan("f32")) for form in forms]
    probes.append(Probe("copysign.f32 {d}, {a}, {b};"))
    return family("f32", probes, *float_operands(np.random.default_rng(1), EXACT))


def _division() -> Case:
    """f32 operations that are rounded correctly by a sequence of instructions."""
    probes = []
    for rounding in ROUNDINGS:
        for extra in ("", ".ftz"):
            form = f"{rounding}{extra}.f32"
            probes.append(Probe(f"div.{form} {{d}}, {{a}}, {{b}};", rule=_nan("f32")))
            probes.append(Probe(f"rcp.{form} {{d}}, {{a}};", rule=_nan("f32")))
            probes.append(Probe(f"sqrt.{form} {{d}}, {{a}};", rule=_nan("f32")))
    return family("f32-division", probes, *float_operands(np.random.default_rng(2), 256, 32, 2))


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu",
                "num", "nan")  # fmt: skip


def comparisons(kind: str, names: tuple[str, ...], extra: str = "") -> Probe:
    """Bit i of the result is what the comparison names[i] says."""
    text = "mov.b32 {d}, 0;"
    for i, name in enumerate(names):
        text += (
            f" setp.{name}{extra}.{kind} {{p}}, {{a}}, {{b}}; selp.b32 {{t}}, {1 << i}, 0, {{p}};"
        )
        text += " or.b32 {d}, {d}, {t};"
    return Probe(text, label=f"setp{extra}.{kind}")


def _comparing() -> list[Case]:
    probes = [comparisons("f32", _COMPARISONS), comparisons("f32", _COMPARISONS, ".ftz")]
    text = "mov.b32 {d}, 0;"
    for i, name in enumerate(("finite", "infinite", "number", "notanumber", "normal", "subnormal")):
        text += f" testp.{name}.f32 {{p}}, {{a}}; selp.b32 {{t}}, {1 << i}, 0, {{p}};"
        text += " or.b32 {d}, {d}, {t};"
    probes.append(Probe(text, label="testp.f32"))
    probes.append(Probe("set.lt.u32.f32 {d}, {a}, {b};"))
    probes.append(Probe("set.geu.f32.f32 {d}, {a}, {b};"))
    probes.append(Probe("slct.f32.f32 {d}, {a}, {b}, {c};"))
    probes.append(Probe("slct.ftz.u32.f32 {d}, {a}, {b}, {c};"))
    found = [family("f32-compare", probes, *float_operands(np.random.default_rng(3), EXACT))]
    for kind, seed in (("f16", 4), ("bf16", 5)):
        operands = float_operands(
            np.random.default_rng(seed), EXACT, 16 if kind == "f16" else kind, 2
        )
        found.append(family(f"{kind}-compare", [comparisons(kind, _COMPARISONS)], *operands))
    return found


def _double() -> Case:
    """f64 passes payloads of NaN on, in a way that the ISA leaves open."""
    probes = []
    for operation in ("add", "mul", "fma", "div", "rcp", "sqrt"):
        sources = {"fma": "{a}, {b}, {c}", "rcp": "{a}", "sqrt": "{a}"}.get(operation, "{a}, {b}")
        for rounding in ROUNDINGS:
            text = f"{operation}.{rounding}.f64 {{d}}, {sources};"
            probes.append(Probe(text, 64, _nan("f64")))
    probes += [
        Probe(f"{each}.f64 {{d}}, {{a}}, {{b}};", 64, _nan("f64")) for each in ("min", "max")
    ]
    probes.append(comparisons("f64", _COMPARISONS))
    return family("f64", probes, *float_operands(np.random.default_rng(6), 192, 64))


def _halves(kind: str, seed: int) -> list[Case]:
    """Both halves of x2 work alike, so the scalar forms are a sample."""
    element = kind.removesuffix("x2")
    probes = []
    half = element == "f16"
    for operation in ("add", "sub", "mul", "fma"):
        sources = "{a}, {b}, {c}" if operation == "fma" else "{a}, {b}"
        rounding = ".rn"
        extras = ["", ".ftz", ".sat", ".ftz.sat"] if half else [""]
        if operation == "fma":
            extras += [".relu", ".ftz.relu"] if half else [".relu"]
        probes += [Probe(f"{operation}{rounding}{x}.{kind} {{d}}, {sources};") for x in extras]
    for operation in ("min", "max"):
        extras = ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"] + ([".ftz"] if half else [])
        probes += [Probe(f"{operation}{x}.{kind} {{d}}, {{a}}, {{b}};") for x in extras]
    for operation in ("abs", "neg"):
        probes.append(Probe(f"{operation}.{kind} {{d}}, {{a}};", rule=_nan(element)))
    packed = kind.endswith("x2")
    if not packed:
        probes = [Probe(p.text, 16, p.rule) for p in probes]
    rng = np.random.default_rng(seed)
    operands = float_operands(rng, EXACT if packed else 256, 16 if half else "bf16")
    if packed:  # neighbours, in another order, so that the halves differ
        other = [each[rng.permutation(len(each))] for each in operands]
        operands = tuple(np.stack([x, y], 1).reshape(-1).view(np.uint32)[:256]
                         for x, y in zip(operands, other, strict=True))  # fmt: skip
    return [family(kind, probes, *operands)]


# (instruction, largest error: relative, absolute; where it holds). Of the PTX ISA's descriptions;
# the simulator rounds the exact result, which adds half a unit in the last place.
_HALF_UNIT = 2.0**-24
_APPROXIMATIONS = (
    ("ex2.approx.f32", 2.0**-22, 2.0**-148, "any"),
    ("ex2.approx.ftz.f32", 2.0**-22, 0.0, "exponents"),
    ("rcp.approx.f32", 2.0**-23, 2.0**-148, "any"),
    ("rcp.approx.ftz.f32", 2.0**-23, 0.0, "any"),
    ("sqrt.approx.f32", 2.0**-23, 2.0**-148, "any"),
    ("sqrt.approx.ftz.f32", 2.0**-23, 0.0, "any"),
    ("rsqrt.approx.f32", 2.0**-22.9, 0.0, "any"),
    ("rsqrt.approx.ftz.f32", 2.0**-22.9, 0.0, "any"),
    ("tanh.approx.f32", 2.0**-10.987, 0.0, "any"),
    ("lg2.approx.f32", 2.0**-22, 2.0**-22, "any"),
    ("lg2.approx.ftz.f32", 2.0**-22, 2.0**-22, "any"),
    ("sin.approx.f32", 0.0, 2.0**-20.5, "angles"),
    ("sin.approx.ftz.f32", 0.0, 2.0**-20.5, "angles"),
    ("cos.approx.f32", 0.0, 2.0**-20.5, "angles"),
    ("cos.approx.ftz.f32", 0.0, 2.0**-20.5, "angles"),
)


def _approximations() -> list[Case]:
    found = []
    for domain, seed in (("any", 20), ("exponents", 21), ("angles", 22)):
        rng = np.random.default_rng(seed)
        count = 1024 if domain == "any" else 512
        bits = float_operands(rng, count, 32, 1)[0]
        if domain == "exponents":
            bits[64:] = rng.uniform(-160, 130, count - 64).astype(np.float32).view(np.uint32)
        elif domain == "angles":
            bits[64:] = rng.uniform(-6.28, 6.28, count - 64).astype(np.float32).view(np.uint32)
            values = bits[:64].view(np.float32)
            bits[:64][np.isfinite(values) & (np.abs(values) > 6.28)] = 0
        probes = [
            Probe(f"{name} {{d}}, {{a}};",
                  rule=Rule("near", "f32", relative + _HALF_UNIT if relative else 0.0, absolute))
            for name, relative, absolute, where in _APPROXIMATIONS
            if where == domain or (domain == "exponents" and name.startswith("ex2"))
        ]  # fmt: skip
        found.append(family(f"approximations-{domain}", probes, bits))
    return found


def _approximate_division() -> Case:
    """div.approx is 0 for a finite a and 2^126 < |b| < 2^128 (PTX ISA); else within 2 ulp."""
    rng = np.random.default_rng(23)
    a, b = float_operands(rng, EXACT, 32, 2)
    rule = Rule("near", "f32", 2.0**-22 + _HALF_UNIT, 2.0**-148)
    forms = ("approx.f32", "approx.ftz.f32", "full.f32", "full.ftz.f32")
    probes = [Probe(f"div.{form} {{d}}, {{a}}, {{b}};", rule=rule) for form in forms]
    return family("division-approximate", probes, a, b)


def _half_approximations() -> list[Case]:
    rng = np.random.default_rng(24)
    tables = {
        "f16": (("ex2.approx.f16", 2.0**-9.9), ("tanh.approx.f16", 2.0**-10.987)),
        "bf16": (("ex2.approx.ftz.bf16", 2.0**-7), ("tanh.approx.bf16", 2.0**-8)),
    }
    found = []
    for element, table in tables.items():
        values = float_operands(rng, EXACT, 16 if element == "f16" else element, 1)[0]
        unit, least = (2.0**-11, 2.0**-24) if element == "f16" else (2.0**-8, 0.0)
        probes = [
            Probe(f"{name} {{d}}, {{a}};", 16, Rule("near", element, error + unit, least))
            for name, error in table
        ]
        found.append(family(f"approximations-{element}", probes, values))
    return found


def cases() -> list[Case]:
    """All of this file."""
    found = [_single(), _division(), *_comparing(), _double()]
    for seed, kind in enumerate(("f16", "bf16", "f16x2", "bf16x2"), 10):
        found += _halves(kind, seed)
    return [*found, *_approximations(), _approximate_division(), *_half_approximations()]
