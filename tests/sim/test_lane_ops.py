"""Every lane op against its oracle: random bits, masks, aliases, both compilations."""

from __future__ import annotations

import importlib
import zlib

import lane_numbers as ln
import numpy as np
import pytest
from lane_oracles import oracle
from lane_warp_oracles import WARP_ORACLES

lane_ops = importlib.import_module("cakert.sim.core.lane_ops")
NAMES = sorted(lane_ops.LANE_FUNCTIONS)
WIDTHS = {"1": 8, "2": 16, "4": 32, "8": 64}
NUM_ROWS = 16  # of 256 bytes
FORMS = [False, True] if lane_ops.HAS_WIDE else [False]


def specials(bits):
    """Bit patterns that break things: limits, small counts, zeros, infinities, NaN, subnormals."""
    integers = [0, 1, 2, 3, 5, 8, 15, 16, 31, 32, 33, 63, 64, 65, 255, 256, -1, -2, -3]
    integers += [1 << (bits - 1), (1 << (bits - 1)) - 1, (1 << (bits - 1)) + 1]
    patterns = [x & ((1 << bits) - 1) for x in integers]
    for fmt in (ln.F16, ln.BF16, ln.F32, ln.F64):
        copies = bits // fmt.width
        if not copies:
            continue
        infinity = ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits
        one = fmt.bias << fmt.fraction_bits
        half = 1 << (fmt.fraction_bits - 1)
        values = [0, 1, 2, infinity, infinity - 1, infinity | half, infinity | 1, one, one + 1]
        values += [
            one - 1,
            one | half,
            half,
            (1 << fmt.fraction_bits),
            (1 << fmt.fraction_bits) - 1,
        ]
        values += [one + (1 << fmt.fraction_bits) * k for k in (-1, 1, 5, fmt.fraction_bits)]
        for value in values:
            for sign in (0, 1 << (fmt.width - 1)):
                word = value | sign
                patterns.append(sum(word << (fmt.width * i) for i in range(copies)))
    return patterns


SPECIALS = {bits: np.array(specials(bits), np.uint64) for bits in WIDTHS.values()}


def draw(rng, kind):
    """32 source values: random bits, random numbers near one, and special patterns."""
    bits = WIDTHS[kind]
    values = (
        rng.integers(0, 1 << bits, 32, dtype=np.uint64, endpoint=False)
        if bits < 64
        else (rng.integers(0, 2**64 - 1, 32, dtype=np.uint64, endpoint=True))
    )
    choice = rng.integers(0, 4, 32)
    special = rng.choice(SPECIALS[bits], 32)
    numbers = rng.normal(size=(32, 4)) * 4.0 ** rng.integers(-3, 8, (32, 1))
    if bits == 64:
        near = numbers[:, 0].copy().view(np.uint64)
        near = np.where(rng.integers(0, 2, 32) == 0, near, pack_floats(numbers))
    elif bits == 32:
        near = numbers[:, 0].astype(np.float32).view(np.uint32).astype(np.uint64)
        with np.errstate(over="ignore"):
            packed = numbers[:, :2].astype(np.float16).copy().view(np.uint32)[:, 0]
        near = np.where(rng.integers(0, 3, 32) == 0, packed.astype(np.uint64), near)
    elif bits == 16:
        with np.errstate(over="ignore"):
            near = numbers[:, 0].astype(np.float16).view(np.uint16).astype(np.uint64)
    else:
        near = values
    return np.where(choice == 0, special, np.where(choice == 1, near, values)).astype(np.uint64)


def pack_floats(numbers):
    return numbers[:, :2].astype(np.float32).copy().view(np.uint64)[:, 0]


class Machine:
    """A register buffer with operands in it, and what it should hold after an operation."""

    def __init__(self, rng, name, *, alias):
        self.rng = rng
        outs, ins = lane_ops.LANE_SIGNATURES[name].split(":")
        self.name, self.outs, self.ins = name, outs, ins
        self.file = rng.integers(0, 256, NUM_ROWS * 256, dtype=np.uint8)
        self.file32 = self.file.view(np.uint32).reshape(-1, 32)
        self.file64 = self.file.view(np.uint64).reshape(-1, 32)
        self.predicates = rng.integers(0, 2**32, 8, dtype=np.uint64).astype(np.uint32)
        free = list(rng.permutation(NUM_ROWS))
        free_predicates = list(1 + rng.permutation(7))
        self.sources, self.in_rows = [], []
        for kind in ins:
            if kind in "p?":
                index = int(free_predicates.pop())
                self.in_rows.append(-1 if kind == "?" and rng.integers(0, 2) else index)
                self.sources.append(None)
                continue
            values = draw(rng, kind)
            row = int(free.pop())
            if kind == "8":
                self.file64[row] = values
            else:
                row = 2 * row + int(rng.integers(0, 2))
                self.file32[row] = values
                # Registers wider than the type: cvt reads the low bits alone.
                if name.startswith("cvt.") and kind in "12" and rng.integers(0, 2):
                    self.file32[row] |= np.uint32(0x5A000000)
            self.in_rows.append(row)
            self.sources.append([int(v) for v in values])
        self.out_rows = []
        for kind in outs:
            if kind in "p?":
                index = int(free_predicates.pop())
                self.out_rows.append(-1 if kind == "?" and rng.integers(0, 2) else index)
                continue
            row = int(free.pop())
            row = row if kind == "8" else 2 * row
            same = [
                r
                for k, r in zip(ins, self.in_rows, strict=True)
                if (k == "8") == (kind == "8") and k not in "p?" and r not in self.out_rows
            ]
            self.out_rows.append(int(rng.choice(same)) if alias and same else row)

    def run(self, mask, **fields):
        lane_ops.apply(
            self.name, self.file, self.predicates, self.out_rows + self.in_rows, mask, **fields
        )

    def expected(self, mask, results):
        """The buffers after `results` (a list of 32 a destination) went to the lanes of `mask`."""
        file, predicates = self.file.copy(), self.predicates.copy()
        for kind, row, values in zip(self.outs, self.out_rows, results, strict=True):
            if kind in "p?":
                if row >= 0:
                    kept = int(predicates[row]) & ~mask
                    predicates[row] = kept | (
                        sum(int(bool(v)) << i for i, v in enumerate(values)) & mask
                    )
                continue
            view = file.view(np.uint64 if kind == "8" else np.uint32).reshape(-1, 32)
            bits = 64 if kind == "8" else 32
            for lane in range(32):
                if mask >> lane & 1:
                    view[row, lane] = values[lane] & ((1 << bits) - 1)
        return file, predicates


def masks(rng):
    """Full, none, one lane, random."""
    return [0xFFFFFFFF, int(rng.integers(0, 2**32)), 1 << int(rng.integers(0, 32)), 0]


def destination_value(kind, name, value):
    """A result in its register: 16-bit results sit zero-extended; those of cvt fill 32 bits."""
    bits = 64 if kind == "8" else 32 if kind == "4" else WIDTHS[kind]
    return int(value) & ((1 << bits) - 1)


def combined(machine, truths, flags):
    """p and q of a comparison, with its boolean operation."""
    first, second = truths, [not t for t in truths]
    source = machine.in_rows[-1]
    if source >= 0 and flags & 28:
        c = [bool(int(machine.predicates[source]) >> i & 1) != bool(flags & 1) for i in range(32)]
        op = {4: lambda x, y: x and y, 8: lambda x, y: x or y, 16: lambda x, y: x != y}[flags & 28]
        first, second = ([op(x, y) for x, y in zip(t, c, strict=True)] for t in (first, second))
    return [first, second]


def ulps_apart(fmt, a, b):
    """Distance of two encodings of a format in representable numbers."""

    def order(x):
        top = 1 << (fmt.width - 1)
        return -(x & (top - 1)) if x & top else x

    return abs(order(a) - order(b))


def test_every_function_has_an_oracle():
    missing = [n for n in NAMES if n not in WARP_ORACLES and oracle(n) is None]
    assert not missing
    assert set(WARP_ORACLES) <= set(NAMES)


def close(machine, check, results, mask):
    """Whether approximate results are near enough, part by part of a packed register."""
    kind, row = machine.outs, machine.out_rows[0]
    view = machine.file64 if kind == "8" else machine.file32
    parts = max(1, (64 if kind == "8" else WIDTHS[kind]) // check.fmt.width)
    width, cut = check.fmt.width, (1 << check.fmt.width) - 1
    for lane in range(32):
        if not mask >> lane & 1:
            continue
        actual, wanted = int(view[row, lane]), results[0][lane]
        if (actual ^ wanted) >> (parts * width):
            return False
        for part in range(parts):
            a, w = (x >> (width * part) & cut for x in (actual, wanted))
            nan = ln.decode(check.fmt, w).is_nan
            if nan != ln.decode(check.fmt, a).is_nan:
                return False
            if not nan and ulps_apart(check.fmt, a, w) > check.ulps:
                return False
        view[row, lane] = wanted
    return True


@pytest.mark.parametrize("name", [n for n in NAMES if n not in WARP_ORACLES])
def test_lane_by_lane(name):
    check = oracle(name)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    compares = lane_ops.LANE_SIGNATURES[name].startswith("p?:")
    for extra in check.extras:
        for trial, mask in enumerate(masks(rng)):
            machine = Machine(rng, name, alias=bool(trial % 2) or mask == 0xFFFFFFFF)
            flags = int(rng.choice([0, 4, 8, 16, 5, 9, 17])) if compares else 0
            given = [s for s in machine.sources if s is not None]
            values = [check.compute(extra, *lane) for lane in zip(*given, strict=True)]
            if compares:
                results = combined(machine, values, flags)
            else:
                lists = [v if isinstance(v, list) else [v] for v in values]
                results = [
                    [destination_value(kind, name, v[i]) for v in lists]
                    for i, kind in enumerate(machine.outs)
                ]
            file, predicates = machine.expected(mask, results)
            before = machine.file.copy(), machine.predicates.copy()
            for wide in FORMS:
                machine.file[:], machine.predicates[:] = before
                machine.run(mask, extra=extra, flags=flags, wide=wide)
                if check.ulps or check.fmt is ln.F64:
                    assert close(machine, check, results, mask), (extra, wide)
                np.testing.assert_array_equal(machine.file, file, err_msg=f"{extra=} {wide=}")
                np.testing.assert_array_equal(machine.predicates, predicates)


@pytest.mark.parametrize("name", sorted(WARP_ORACLES))
def test_whole_warp(name):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for trial in range(40):
        machine = Machine(rng, name, alias=bool(trial % 2))
        mask = masks(rng)[trial % 4] if trial % 4 != 3 else 0xFFFFFFFF
        file, predicates, fields = WARP_ORACLES[name](machine, mask, rng)
        before = machine.file.copy(), machine.predicates.copy()
        for wide in FORMS:
            machine.file[:], machine.predicates[:] = before
            machine.run(mask, wide=wide, **fields)
            np.testing.assert_array_equal(machine.file, file, err_msg=f"{fields} {mask:#x}")
            np.testing.assert_array_equal(machine.predicates, predicates)


@pytest.mark.parametrize("form", FORMS)
def test_ex2_is_correctly_rounded_but_for_a_few(form):
    """ISA: at most 2 ulp over the whole range."""
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [rng.uniform(-150, 129, 40_000), rng.normal(size=20_000), rng.normal(size=4_000) * 1e-4]
    ).astype(np.float32)
    file = np.zeros(512, np.uint8)
    rows = file.view(np.float32).reshape(-1, 32)
    result = np.empty_like(x)
    for start in range(0, len(x), 32):
        rows[0] = x[start : start + 32]
        lane_ops.apply("ex2.f32", file, np.zeros(1, np.uint32), [1, 0], 2**32 - 1, wide=form)
        result[start : start + 32] = rows[1]
    with np.errstate(over="ignore", under="ignore"):
        wanted = np.exp2(x.astype(np.float64)).astype(np.float32)
    apart = np.abs(result.view(np.int32).astype(np.int64) - wanted.view(np.int32))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= 2


def test_apply_refuses_rows_out_of_range():
    file, predicates = np.zeros(512, np.uint8), np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="row"):
        lane_ops.apply("add.b32", file, predicates, [0, 1, 4], 1)
    with pytest.raises(ValueError, match="row"):
        lane_ops.apply("add.b64", file, predicates, [0, 1, 2], 1)
    with pytest.raises(ValueError, match="row"):
        lane_ops.apply("mov.pred", file, predicates, [0, -1], 1)
    with pytest.raises(ValueError, match="rows"):
        lane_ops.apply("add.b32", file, predicates, [0, 1], 1)
