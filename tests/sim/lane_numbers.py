"""Floating point in rational arithmetic: the yardstick of the lane ops, slow and plain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

RN, RZ, RM, RP, RNA = range(5)
FTZ, SAT, RELU, SATFINITE, INTEGRAL = 8, 16, 32, 64, 128


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    fraction_bits: int
    nan: int
    top_is_number: bool = False  # e4m3: no infinity

    @property
    def width(self):
        return 1 + self.exponent_bits + self.fraction_bits

    @property
    def bias(self):
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def least_exponent(self):
        return 1 - self.bias

    @property
    def greatest(self):
        if self.top_is_number:
            return Fraction(448)
        return Fraction(2) ** self.bias * (2 - Fraction(1, 1 << self.fraction_bits))


F16 = Format(5, 10, 0x7FFF)
BF16 = Format(8, 7, 0x7FFF)
F32 = Format(8, 23, 0x7FFFFFFF)
F64 = Format(11, 52, 0x7FF8 << 48)
TF32 = Format(8, 10, 0x3FFFF)
E4M3 = Format(4, 3, 0x7F, top_is_number=True)
E5M2 = Format(5, 2, 0x7F)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "e4m3": E4M3, "e5m2": E5M2}


@dataclass(frozen=True)
class Number:
    """A value: NaN, or a sign with a magnitude (None: infinite)."""

    sign: int
    magnitude: Fraction | None
    is_nan: bool = False

    @property
    def value(self):
        return -self.magnitude if self.sign else self.magnitude

    @property
    def infinite(self):
        return not self.is_nan and self.magnitude is None


NAN = Number(0, None, True)


def decode(fmt, bits):
    sign = bits >> (fmt.width - 1) & 1
    exponent = bits >> fmt.fraction_bits & ((1 << fmt.exponent_bits) - 1)
    fraction = bits & ((1 << fmt.fraction_bits) - 1)
    top = exponent == (1 << fmt.exponent_bits) - 1
    if fmt.top_is_number:
        if top and fraction == (1 << fmt.fraction_bits) - 1:
            return NAN
    elif top:
        return NAN if fraction else Number(sign, None)
    if exponent == 0:
        scaled, exponent = fraction, 1
    else:
        scaled = fraction + (1 << fmt.fraction_bits)
    return Number(sign, Fraction(scaled) * Fraction(2) ** (exponent - fmt.bias - fmt.fraction_bits))


def floor_log2(x):
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def round_integer(x, sign, mode):
    """A magnitude rounded to an integer, in the direction that `mode` means for its sign."""
    whole = x.numerator // x.denominator
    rest = x - whole
    half = Fraction(1, 2)
    up = {
        RN: rest > half or (rest == half and whole % 2 == 1),
        RNA: rest >= half,
        RZ: False,
        RM: sign == 1 and rest > 0,
        RP: sign == 0 and rest > 0,
    }[mode]
    return whole + up


def round_integral(number, mode):
    if number.is_nan or number.infinite:
        return number
    return Number(number.sign, Fraction(round_integer(number.magnitude, number.sign, mode)))


def encode(fmt, number, extra=0):
    """Bits of a number after rounding and modifiers (a FloatMode of lane_ops.h)."""
    mode = extra & 7
    if number.is_nan:
        return 0 if extra & SAT else fmt.nan
    zero, one = Number(0, Fraction(0)), Number(0, Fraction(1))
    if extra & RELU and (number.sign or number.magnitude == 0):
        number = zero
    if extra & SAT:
        if number.sign or number.magnitude == 0:
            number = zero
        elif number.infinite or number.magnitude > 1:
            number = one
    sign = number.sign << (fmt.width - 1)
    infinity = ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits
    greatest = infinity - 1 if not fmt.top_is_number else 0x7E
    if number.infinite:
        return sign | (greatest if extra & SATFINITE else infinity)
    if number.magnitude == 0:
        return sign
    exponent = max(floor_log2(number.magnitude), fmt.least_exponent)
    quantum = Fraction(2) ** (exponent - fmt.fraction_bits)
    units = round_integer(number.magnitude / quantum, number.sign, mode)
    rounded = units * quantum
    if rounded > fmt.greatest:
        to_infinity = mode in (RN, RNA) or mode == (RM if number.sign else RP)
        return sign | (infinity if to_infinity and not extra & SATFINITE else greatest)
    if extra & FTZ and rounded < Fraction(2) ** fmt.least_exponent:
        return sign
    if rounded == 0:
        return sign
    exponent = max(floor_log2(rounded), fmt.least_exponent)
    units = int(rounded / Fraction(2) ** (exponent - fmt.fraction_bits))
    if units < 1 << fmt.fraction_bits:
        return sign | units
    return sign | ((exponent + fmt.bias) << fmt.fraction_bits) | (units - (1 << fmt.fraction_bits))


def move_nan(source, result, bits):
    """Bits of a NaN in another format: its sign and its leading digits stay; it becomes quiet."""
    digits = bits & ((1 << source.fraction_bits) - 1)
    shift = result.fraction_bits - source.fraction_bits
    digits = digits << shift if shift >= 0 else digits >> -shift
    top = ((1 << result.exponent_bits) - 1) << result.fraction_bits
    sign = bits >> (source.width - 1) << (result.width - 1)
    return sign | top | 1 << (result.fraction_bits - 1) | digits


def flush(fmt, number):
    if number.is_nan or number.infinite:
        return number
    tiny = number.magnitude < Fraction(2) ** fmt.least_exponent
    return Number(number.sign, Fraction(0)) if tiny else number


def negate(a):
    return NAN if a.is_nan else Number(1 - a.sign, a.magnitude)


def add(a, b, mode):
    if a.is_nan or b.is_nan or (a.infinite and b.infinite and a.sign != b.sign):
        return NAN
    if a.infinite or b.infinite:
        return a if a.infinite else b
    total = a.value + b.value
    if total == 0:
        like = a.magnitude == 0 and a.sign == b.sign
        return Number(a.sign if like else int(mode == RM), Fraction(0))
    return Number(int(total < 0), abs(total))


def multiply(a, b):
    if a.is_nan or b.is_nan:
        return NAN
    sign = a.sign ^ b.sign
    if a.infinite or b.infinite:
        return NAN if 0 in (a.magnitude, b.magnitude) else Number(sign, None)
    return Number(sign, a.magnitude * b.magnitude)


def divide(a, b):
    if a.is_nan or b.is_nan or (a.infinite and b.infinite):
        return NAN
    sign = a.sign ^ b.sign
    if b.infinite:
        return Number(sign, Fraction(0))
    if a.infinite or b.magnitude == 0:
        return NAN if a.magnitude == 0 else Number(sign, None)
    return Number(sign, a.magnitude / b.magnitude)


def square_root(a):
    if a.is_nan or a.magnitude == 0:
        return a
    if a.sign:
        return NAN
    if a.infinite:
        return a
    shift = 1200  # far below the last place of any format
    scaled = a.magnitude * 4**shift
    whole = scaled.numerator // scaled.denominator
    root = math.isqrt(whole)
    exact = root * root == whole and scaled.denominator == 1
    return Number(0, (Fraction(root) + (0 if exact else Fraction(1, 2))) / 2**shift)


def extremum(a, b, greater, *, nan=False, xorsign=False, absolute=False):
    sign = a.sign ^ b.sign if xorsign else 0
    if xorsign or absolute:
        a = a if a.is_nan else Number(0, a.magnitude)
        b = b if b.is_nan else Number(0, b.magnitude)
    if nan and (a.is_nan or b.is_nan):
        return NAN
    if a.is_nan or b.is_nan:
        best = b if a.is_nan else a
    else:

        def key(x):
            size = Fraction(10) ** 400 if x.infinite else x.magnitude
            return (-size if x.sign else size, -x.sign)

        best = max(a, b, key=key) if greater else min(a, b, key=key)
    return negate(best) if sign and not best.is_nan else best


def compare(a, b):
    """-1, 0, 1, or None where unordered."""
    if a.is_nan or b.is_nan:
        return None

    def size(x):
        magnitude = Fraction(10) ** 400 if x.infinite else x.magnitude
        return -magnitude if x.sign else magnitude

    return (size(a) > size(b)) - (size(a) < size(b))


def from_float(x):
    if math.isnan(x):
        return NAN
    sign = int(math.copysign(1, x) < 0)
    return Number(sign, None if math.isinf(x) else abs(Fraction(x)))


def to_float(a):
    if a.is_nan:
        return math.nan
    size = math.inf if a.infinite else float(a.magnitude)
    return -size if a.sign else size
