"""What each lane op of one lane should give, from the ISA's words, in Python integers.

`oracle(name)` gives an Oracle, or None where the table has a name that nobody wrote one for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import lane_numbers as ln
from lane_numbers import F16, F32, F64, FORMATS, FTZ, INTEGRAL, RELU, SAT, SATFINITE

MODES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Oracle:
    """`compute(extra, *sources)` -> destinations (or a truth); extras to try; tolerance in ulp."""

    compute: Callable
    extras: tuple[int, ...] = (0,)
    ulps: int = 0
    fmt: ln.Format = F32


def signed(x, bits):
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def read(kind, x):
    """A value of integer type `kind` ("s16"); types b are unsigned."""
    bits = int(kind[1:])
    return signed(x, bits) if kind[0] == "s" else x & ((1 << bits) - 1)


def clamp(x, low, high):
    return max(low, min(high, x))


def limits(kind):
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def truncated_division(a, b):
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def integer(fn):
    """fn(width, *typed sources): the result is cut to the destination's width by the caller."""

    def make(kind):
        bits = int(kind[1:])
        return lambda extra, *s: fn(bits, *(read(kind, x) for x in s))

    return make


def low24(kind, x):
    return signed(x, 24) if kind == "s32" else x & 0xFFFFFF


def counts(bits, *given):
    """Position and length of a bit field: an H200 cuts them to 8 bits in the 32-bit forms alone."""
    return given if bits == 64 else tuple(n & 255 for n in given)


def bfe(kind, a, b, c):
    bits = int(kind[1:])
    position, length = counts(bits, b, c)
    top = bits - 1
    a &= (1 << bits) - 1
    fill = 0 if kind[0] == "u" or length == 0 else a >> min(position + length - 1, top) & 1
    result = 0
    for i in range(bits):
        bit = a >> (position + i) & 1 if i < length and position + i <= top else fill
        result |= bit << i
    return result


def bfi(bits, a, b, c, d):
    position, length = counts(bits, c, d)
    result = b
    for i in range(bits):
        if i < length and position + i < bits:
            result = result & ~(1 << (position + i)) | (a >> i & 1) << (position + i)
    return result


def bfind(kind, a):
    value = read(kind, a)
    if value < 0:
        value = ~value
    return value.bit_length() - 1  # -1 is all ones


def fns(mask, base, offset):
    offset = signed(offset, 32)
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else -1
    step = 1 if offset > 0 else -1
    found, at = 0, base
    while 0 <= at < 32:
        found += mask >> at & 1
        if mask >> at & 1 and found == abs(offset):
            return at
        at += step
    return -1


def szext(kind, extra, a, b):
    if extra and b > 31:
        return a
    length = b & 31
    if length == 0:
        return 0
    return signed(a, length) if kind == "s32" else a & ((1 << length) - 1)


def bmsk(extra, a, b):
    first, length = (a, b) if extra else (a & 31, b & 31)
    return sum(1 << i for i in range(32) if first <= i < first + length)


def dot(kinds, count, width, a, b, c):
    total = c
    for i in range(count):
        x = read(f"{kinds[0]}{32 // count}", a >> (32 // count * i))
        total += x * read(f"{kinds[1]}{width}", b >> (width * i))
    return total


def lop3(table, a, b, c):
    return sum(
        (table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1) << i for i in range(32)
    )


PERMUTATIONS = {  # least significant byte first, for selectors 0 to 3 (PTX ISA, prmt)
    1: ("0123", "1234", "2345", "3456"),
    2: ("0765", "1076", "2107", "3210"),
    3: ("0000", "1111", "2222", "3333"),
    4: ("0123", "1123", "2223", "3333"),
    5: ("0000", "0111", "0122", "0123"),
    6: ("0101", "2323", "0101", "2323"),
}


def prmt(mode, a, b, c):
    data = (a | b << 32).to_bytes(8, "little")
    out = []
    for i in range(4):
        if mode:
            out.append(data[int(PERMUTATIONS[mode][c & 3][i])])
        else:
            selector = c >> (4 * i) & 15
            byte = data[selector & 7]
            out.append((0xFF if byte >> 7 else 0) if selector & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def halves(fn, a, b, kind):
    low = fn(read(kind, a), read(kind, b)) & 0xFFFF
    return low | (fn(read(kind, a >> 16), read(kind, b >> 16)) & 0xFFFF) << 16


INTEGER = {
    "add": integer(lambda n, a, b: a + b),
    "sub": integer(lambda n, a, b: a - b),
    "mul.lo": integer(lambda n, a, b: a * b),
    "mad.lo": integer(lambda n, a, b, c: a * b + c),
    "mul.hi": integer(lambda n, a, b: a * b >> n),
    "mad.hi": integer(lambda n, a, b, c: (a * b >> n) + c),
    "mul.wide": integer(lambda n, a, b: a * b),
    "neg": integer(lambda n, a: -a),
    "abs": integer(lambda n, a: abs(a)),
    "sad": integer(lambda n, a, b, c: c + abs(a - b)),
    "div": integer(lambda n, a, b: truncated_division(a, b) if b else -1),
    "rem": integer(lambda n, a, b: a - b * truncated_division(a, b) if b else -1),
    "min": integer(lambda n, a, b: min(a, b)),
    "max": integer(lambda n, a, b: max(a, b)),
    "min.relu": integer(lambda n, a, b: max(0, min(a, b))),
    "max.relu": integer(lambda n, a, b: max(0, a, b)),
    "add.sat": integer(lambda n, a, b: clamp(a + b, -(1 << 31), (1 << 31) - 1)),
    "sub.sat": integer(lambda n, a, b: clamp(a - b, -(1 << 31), (1 << 31) - 1)),
    "mad.hi.sat": integer(lambda n, a, b, c: clamp((a * b >> n) + c, -(1 << 31), (1 << 31) - 1)),
    "popc": integer(lambda n, a: a.bit_count()),
    "clz": integer(lambda n, a: n - a.bit_length()),
    "brev": integer(lambda n, a: int(f"{a:0{n}b}"[::-1], 2)),
    "bfi": integer(bfi),
    "and": integer(lambda n, a, b: a & b),
    "or": integer(lambda n, a, b: a | b),
    "xor": integer(lambda n, a, b: a ^ b),
    "not": integer(lambda n, a: ~a),
    "cnot": integer(lambda n, a: int(a == 0)),
    "mov": integer(lambda n, a: a),
    "mul24.lo": lambda k: lambda e, a, b: low24(k, a) * low24(k, b),
    "mul24.hi": lambda k: lambda e, a, b: low24(k, a) * low24(k, b) >> 16,
    "mad24.lo": lambda k: lambda e, a, b, c: low24(k, a) * low24(k, b) + c,
    "mad24.hi": lambda k: lambda e, a, b, c: (low24(k, a) * low24(k, b) >> 16) + c,
    "mad24.hi.sat": lambda k: (
        lambda e, a, b, c: clamp(
            signed(low24(k, a) * low24(k, b) >> 16, 32) + signed(c, 32), -(1 << 31), (1 << 31) - 1
        )
    ),
    "mad.wide": lambda k: lambda e, a, b, c: read(k, a) * read(k, b) + c,
    "bfe": lambda k: lambda e, a, b, c: bfe(k, a, b, c),
    "bfind": lambda k: lambda e, a: bfind(k, a),
    "bfind.shiftamt": lambda k: (
        lambda e, a: -1 if bfind(k, a) == -1 else int(k[1:]) - 1 - bfind(k, a)
    ),
    "shl": lambda k: lambda e, a, n: a << n if n < int(k[1:]) else 0,
    "shr": lambda k: lambda e, a, n: read(k, a) >> min(n, 64),
    "szext": lambda k: lambda e, a, b: szext(k, e, a, b),
}
EXACT = {
    "add.b16x2": lambda e, a, b: halves(lambda x, y: x + y, a, b, "u16"),
    "fns.b32": lambda e, a, b, c: fns(a, b, c),
    "bmsk.b32": bmsk,
    "lop3.b32": lop3,
    "shf.l.b32": lambda e, a, b, c: (
        (b << 32 | a) << (min(c, 32) if e else c & 31) >> 32 & 0xFFFFFFFF
    ),
    "shf.r.b32": lambda e, a, b, c: (b << 32 | a) >> (min(c, 32) if e else c & 31) & 0xFFFFFFFF,
    "prmt.b32": prmt,
    "prmt.any.b32": prmt,
    "pack.b64.b32": lambda e, a, b: a | b << 32,
    "pack.b32.b16": lambda e, a, b: a | b << 16,
    "pack.b16.b8": lambda e, a, b: a | b << 8,
    "pack.b32.b8": lambda e, a, b, c, d: a | b << 8 | c << 16 | d << 24,
    "pack.b64.b16": lambda e, a, b, c, d: a | b << 16 | c << 32 | d << 48,
    "unpack.b64.b32": lambda e, a: [a & 0xFFFFFFFF, a >> 32],
    "unpack.b32.b16": lambda e, a: [a & 0xFFFF, a >> 16],
    "unpack.b16.b8": lambda e, a: [a & 0xFF, a >> 8],
    "unpack.b32.b8": lambda e, a: [a >> 8 * i & 0xFF for i in range(4)],
    "unpack.b64.b16": lambda e, a: [a >> 16 * i & 0xFFFF for i in range(4)],
    "slct.b32.s32": lambda e, a, b, c: b if c >> 31 else a,
    "slct.b64.s32": lambda e, a, b, c: b if c >> 31 else a,
}
EXTRAS = {
    "szext.s32": (0, 1),
    "szext.u32": (0, 1),
    "bmsk.b32": (0, 1),
    "lop3.b32": (0x96, 0xE8, 0x3C, 0xCA, 0x01, 0x80, 0xFE),
    "shf.l.b32": (0, 1),
    "shf.r.b32": (0, 1),
    "prmt.any.b32": (1, 2, 3, 4, 5, 6),
}

# Floating point -------------------------------------------------------------------------------


def arithmetic(operation, values, mode):
    if operation == "add":
        return ln.add(*values, mode)
    if operation == "sub":
        return ln.add(values[0], ln.negate(values[1]), mode)
    if operation == "mul":
        return ln.multiply(*values)
    if operation == "fma":
        return ln.add(ln.multiply(*values[:2]), values[2], mode)
    if operation == "div":
        return ln.divide(*values)
    if operation == "rcp":
        return ln.divide(ln.Number(0, ln.Fraction(1)), *values)
    return ln.square_root(*values)


def float_result(fmt, operation, extra, sources):
    values = [ln.decode(fmt, x) for x in sources]
    if extra & FTZ:
        values = [ln.flush(fmt, v) for v in values]
    return ln.encode(fmt, arithmetic(operation, values, extra & 7), extra)


def approximate_quotient(extra, a, b):
    """div.approx: a divisor beyond 2^126 counts as infinite (PTX ISA 9.7.3)."""
    divisor = ln.decode(F32, b)
    if not divisor.is_nan and not divisor.infinite and divisor.magnitude > 2**126:
        b = b & 0x80000000 | 0x7F800000
    return float_result(F32, "div", extra, (a, b))


def per_half(fmt, fn):
    """fn(extra, *16-bit sources) on the values of a packed register."""

    def compute(extra, *sources):
        low = fn(extra, *(x & 0xFFFF for x in sources))
        return low | fn(extra, *(x >> 16 for x in sources)) << 16

    return compute


def pair_or_one(kind):
    fmt = FORMATS[kind.removesuffix("x2")]
    return fmt, (lambda fn: per_half(fmt, fn)) if kind.endswith("x2") else (lambda fn: fn)


def min_max(fmt, greater, count):
    def compute(extra, *sources):
        signs = [x >> (fmt.width - 1) for x in sources]
        values = [ln.decode(fmt, x) for x in sources]
        if extra & FTZ:
            values = [ln.flush(fmt, v) for v in values]
        result = values[0]
        for value in values[1:]:
            result = ln.extremum(
                result, value, greater, nan=bool(extra & 1), absolute=bool(extra & 6)
            )
        if extra & 2 and signs[0] != signs[1] and not result.is_nan:
            result = ln.negate(result)
        return ln.encode(fmt, result)

    return compute


def sign_op(fmt, operation):
    def compute(extra, a):
        top = 1 << (fmt.width - 1)
        number = ln.decode(fmt, a)
        if extra & FTZ and not number.is_nan and ln.flush(fmt, number) != number:
            a &= top
        if fmt.width == 16 and number.is_nan:
            return fmt.nan
        return a ^ top if operation == "neg" else a & ~top

    return compute


TESTS = {
    "eq": lambda c: c == 0,
    "ne": lambda c: c is not None and c != 0,
    "lt": lambda c: c == -1,
    "le": lambda c: c in (-1, 0),
    "equ": lambda c: c in (None, 0),
    "neu": lambda c: c != 0,
    "ltu": lambda c: c in (None, -1),
    "leu": lambda c: c != 1,
    "num": lambda c: c is not None,
    "nan": lambda c: c is None,
}


def comparison(test, kind, *, ftz=False, upper=False):
    def compute(extra, a, b):
        if "f" not in kind:
            a, b = read(kind, a), read(kind, b)
            return TESTS[test]((a > b) - (a < b))
        fmt = FORMATS[kind]
        if fmt.width == 16:
            a, b = ((x >> 16 if upper else x & 0xFFFF) for x in (a, b))
        values = [ln.decode(fmt, x) for x in (a, b)]
        if ftz or extra & FTZ:
            values = [ln.flush(fmt, v) for v in values]
        return TESTS[test](ln.compare(*values))

    return compute


def number_class(fmt):
    def compute(extra, a):
        x = ln.decode(fmt, a)
        finite = not x.is_nan and not x.infinite
        small = finite and x.magnitude < ln.Fraction(2) ** fmt.least_exponent
        zero = finite and x.magnitude == 0
        return (
            finite,
            x.infinite,
            not x.is_nan,
            x.is_nan,
            finite and (zero or not small),
            small and not zero,
        )[extra]

    return compute


def guarded(fn, low=-math.inf, pole=None):
    """A math function that gives NaN below its domain and -inf or inf at its pole."""

    def call(x):
        if math.isnan(x) or x < low:
            return math.nan
        if x == 0 and pole is not None:
            return math.copysign(pole, x) if pole > 0 else pole
        try:
            return fn(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return call


FUNCTIONS = {
    "ex2": guarded(lambda x: 2.0**x),
    "lg2": guarded(math.log2, low=0, pole=-math.inf),
    "sin": guarded(math.sin),
    "cos": guarded(math.cos),
    "tanh": guarded(math.tanh),
    "rsqrt": guarded(lambda x: 1 / math.sqrt(x), low=0, pole=math.inf),
}


def function(fmt, fn):
    def compute(extra, a):
        number = ln.decode(fmt, a)
        if extra & FTZ:
            number = ln.flush(fmt, number)
        result = ln.from_float(fn(ln.to_float(number)))
        return ln.encode(fmt, result, extra)

    return compute


def gross(fn):
    def compute(extra, a):
        number = ln.decode(F64, a)
        if number.is_nan:
            return F64.nan
        upper = ln.flush(F64, ln.decode(F64, a >> 32 << 32))
        if upper.is_nan:
            return F64.nan
        result = ln.encode(F64, fn(upper), FTZ)
        return ln.encode(F64, ln.flush(F64, ln.decode(F64, result >> 32 << 32)))

    return compute


def inverse(x):
    return ln.divide(ln.Number(0, ln.Fraction(1)), x)


def half_extras(operation, kind):
    relu = (RELU,) if operation == "fma" else ()
    return (0, *relu) if kind.startswith("bf16") else (0, FTZ, SAT, FTZ | SAT, *relu)


def float_oracle(operation, modifier, kind):
    arithmetic_ops = ("add", "sub", "mul", "fma", "div", "rcp", "sqrt")
    if operation in FUNCTIONS and modifier != "gross":
        fmt, lift = pair_or_one(kind)
        extras = (0,)
        if modifier == "ftz" or (operation == "ex2" and kind.startswith("bf16")):
            extras = (FTZ,)
        elif operation != "ex2" and fmt is F32 and operation != "tanh":
            extras = (0, FTZ)
        return Oracle(lift(function(fmt, FUNCTIONS[operation])), extras, 1, fmt)
    if modifier == "gross":
        fn = inverse if operation == "rcp" else lambda x: inverse(ln.square_root(x))
        return Oracle(gross(fn), (0,), 2 << 32, F64)
    fmt, lift = pair_or_one(kind) if kind != "f32x2" else (F32, None)
    if modifier.startswith("approx"):
        return Oracle(approximate_quotient, (FTZ,) if modifier.endswith("ftz") else (0,), 0, fmt)
    if operation in arithmetic_ops:
        compute = lambda extra, *s: float_result(fmt, operation, extra, s)  # noqa: E731
        if kind == "f32x2":

            def packed(extra, *s):
                low = compute(extra, *(x & 0xFFFFFFFF for x in s))
                return low | compute(extra, *(x >> 32 for x in s)) << 32

            if modifier == "any":
                return Oracle(packed, tuple(m | f for m in MODES for f in (0, FTZ)))
            return Oracle(packed, (FTZ,) if modifier == "ftz" else (0,))
        if modifier == "any":
            modifiers = (0, FTZ, SAT, FTZ | SAT) if fmt is F32 else (0, SAT)
            if operation in ("rcp", "sqrt", "div"):
                modifiers = (0, FTZ) if fmt is F32 else (0,)
            return Oracle(compute, tuple(m | f for m in MODES for f in modifiers), 0, fmt)
        if fmt.width == 16:
            return Oracle(lift(compute), half_extras(operation, kind), 0, fmt)
        return Oracle(compute, (FTZ,) if modifier == "ftz" else (0,), 0, fmt)
    if operation in ("neg", "abs"):
        extras = (FTZ,) if modifier == "ftz" else (0, FTZ) if kind.startswith("f16") else (0,)
        return Oracle(lift(sign_op(fmt, operation)), extras, 0, fmt)
    if operation in ("min", "max", "min3", "max3"):
        compute = min_max(fmt, operation.startswith("max"), 2)
        extras = (0,)
        if modifier == "any" or fmt.width == 16:
            base = (0, 1, 4, 5) if operation.endswith("3") else (0, 1, 2, 3)
            ftz = () if kind.startswith("bf16") else tuple(e | FTZ for e in base)
            extras = (*base, *ftz)
        return Oracle(lift(compute), extras, 0, fmt)
    if operation == "copysign":
        top = 1 << (fmt.width - 1)
        return Oracle(lambda e, a, b: a & top | b & (top - 1), (0,), 0, fmt)
    return None


# Conversions ----------------------------------------------------------------------------------


def convert_integer(result, source, saturate):
    def compute(extra, a):
        value = read(source, a)
        if saturate:
            value = clamp(value, *limits(result))
        return read(result, value)

    return compute


def float_to_integer(result, source):
    fmt = FORMATS[source]

    def compute(extra, a):
        number = ln.decode(fmt, a)
        if number.is_nan:
            wide = source == "f64" or result[1:] == "64"
            return read(result, 1 << (int(result[1:]) - 1)) if wide else 0
        if extra & FTZ and fmt is F32:
            number = ln.flush(fmt, number)
        low, high = limits(result)
        if number.infinite:
            return low if number.sign else high
        number = ln.round_integral(number, extra & 7)
        return clamp(int(number.value), low, high)

    return compute


def integer_to_float(result, source):
    def compute(extra, a):
        value = read(source, a)
        return ln.encode(FORMATS[result], ln.Number(int(value < 0), abs(ln.Fraction(value))), extra)

    return compute


def float_to_float(result, source):
    def compute(extra, a):
        number = ln.decode(FORMATS[source], a)
        if number.is_nan and not extra & SAT and (result == "f64") != (source == "f64"):
            # Of an H200. A conversion with .ftz begins with a multiplication in f32.
            a = F32.nan if extra & FTZ and source == "f32" else a
            return ln.move_nan(FORMATS[source], FORMATS[result], a)
        if extra & FTZ and source == "f32":
            number = ln.flush(F32, number)
        if extra & INTEGRAL:
            number = ln.round_integral(number, extra & 7)
        return ln.encode(FORMATS[result], number, extra if result == "f32" else extra & ~FTZ)

    return compute


def pack(result, source):
    narrow = FORMATS[result[:-2]]
    if source == "f32":

        def compute(extra, a, b):
            high, low = (ln.encode(narrow, ln.decode(F32, x), extra) for x in (a, b))
            return high << narrow.width | low

        return compute
    wide = FORMATS[source[:-2]]

    def convert(extra, a):
        mask = (1 << wide.width) - 1
        high, low = (
            ln.encode(narrow, ln.decode(wide, x), extra) for x in (a >> wide.width, a & mask)
        )
        return high << narrow.width | low

    return convert


def tf32(extra, a):
    number = ln.decode(F32, a)
    if number.is_nan and extra & 7 == 4:
        # An H200 cuts it, and .satfinite then takes it for an infinity: one step down.
        return (a & 0xFFFFE000) - (0x2000 if extra & SATFINITE else 0)
    return ln.encode(ln.TF32, number, extra) << 13


def convert_oracle(name):
    parts = name.split(".")[1:]
    exact = parts[0] == "rn"
    saturate = parts[0] == "sat"
    result, source = parts[-2:]
    integers = [bool(re.fullmatch(r"[us]\d+", x)) for x in (result, source)]
    if result == "tf32":
        extras = (0, 1, 4, RELU, 1 | RELU, SATFINITE, 1 | SATFINITE, 4 | SATFINITE)
        return Oracle(tf32, extras)
    if result.endswith("x2"):
        if result[0] == "e":
            extras = (SATFINITE, SATFINITE | RELU)
        elif source[0] == "e":
            extras = (0, RELU)
        else:
            extras = tuple(m | f | s for m in (0, 1) for f in (0, RELU) for s in (0, SATFINITE))
        return Oracle(pack(result, source), (0,) if exact else extras)
    if all(integers):
        return Oracle(convert_integer(result, source, saturate))
    ftz = (0, FTZ) if "f32" in (result, source) else (0,)
    if integers[0]:
        return Oracle(float_to_integer(result, source), tuple(m | f for m in MODES for f in ftz))
    # NaN bits of f64 are left open, but for what comes from another format.
    fmt = FORMATS[result] if integers[1] or result == source else F32
    if (result, source) == ("f32", "bf16") and exact:
        return Oracle(lambda extra, a: a << 16)
    if exact:
        base = integer_to_float if integers[1] else float_to_float
        return Oracle(base(result, source), (0,), 0, fmt)
    modifiers = [m | f | s for m in MODES for f in ftz for s in (0, SAT)]
    if integers[1]:
        return Oracle(integer_to_float(result, source), tuple(modifiers), 0, fmt)
    if result == source:
        modifiers += [m | INTEGRAL for m in modifiers]
    if FORMATS[result].width == 16:
        modifiers += [m | f for m in (0, 1) for f in (RELU, SATFINITE, RELU | SATFINITE)]
    if result == "f64":
        modifiers = [m for m in modifiers if m & INTEGRAL or m & 7 == 0]
    return Oracle(float_to_float(result, source), tuple(modifiers), 0, fmt)


def oracle(name):
    """The oracle of a lane op that works lane by lane, or None."""
    if name in EXACT:
        return Oracle(EXACT[name], EXTRAS.get(name, (0,)))
    if name.startswith("cvt."):
        return convert_oracle(name)
    *head, kind = name.split(".")
    stem = ".".join(head)
    if stem in INTEGER and re.fullmatch(r"[usb]\d+", kind):
        return Oracle(INTEGER[stem](kind), EXTRAS.get(name, (0,)))
    if stem in INTEGER and kind in ("s16x2", "u16x2"):
        fn = INTEGER[stem](kind[:3])
        return Oracle(lambda e, a, b: halves(lambda x, y: fn(e, x, y), a, b, kind[:3]))
    if head[0] == "setp":
        if kind == "upper":
            return Oracle(comparison(head[1], head[2], upper=True), half_extras("", head[2])[:2])
        extras = (0, FTZ) if kind == "f16" else (0,)
        return Oracle(comparison(head[1], kind, ftz="ftz" in head), extras)
    if head[0] == "testp":
        return Oracle(number_class(FORMATS[kind]), tuple(range(6)))
    if head[0] in ("dp4a", "dp2a"):
        kinds = (head[1][0], kind[0])
        if head[0] == "dp4a":
            return Oracle(lambda e, a, b, c: dot(kinds, 4, 8, a, b, c))
        return Oracle(lambda e, a, b, c: dot(kinds, 2, 8, a, b >> 16 * e, c), (0, 1))
    if head[0] == "slct":

        def by_float(extra, a, b, c):
            number = ln.decode(F32, c)
            if extra & FTZ:
                number = ln.flush(F32, number)
            order = ln.compare(number, ln.Number(0, ln.Fraction(0)))
            return a if order is not None and order >= 0 else b

        return Oracle(by_float, (0, FTZ))
    if kind.removesuffix("x2") in FORMATS:
        return float_oracle(head[0], ".".join(head[1:]), kind)
    return None


assert F16.width == 16
