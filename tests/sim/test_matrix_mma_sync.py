import itertools

import ml_dtypes
import numpy as np
import pytest
from matrix_fakes import FULL, Machine, registers, vec

from cakert.sim.faults import Fault, UnsupportedInstruction

TYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}


def a_place(lane, i, per, half_k):
    """Row and column of element a_i, from the tables of PTX ISA 9.7.14.5.5 to .8."""
    group, member = lane >> 2, lane % 4
    register, element = i // per, i % per
    row = group if register in (0, 2) else group + 8
    column = member * per + element + (0 if register < 2 else half_k)
    return row, column


def b_place(lane, i, per, half_k):
    group, member = lane >> 2, lane % 4
    register, element = i // per, i % per
    return member * per + element + (0 if register == 0 else half_k), group


class Case:
    """One form, bound, with fresh random operands of finite values."""

    def __init__(self, shape, types, *, saturate=False, in_place=True):
        dtype, self.atype, self.btype, _ = types.split(".")
        self.dtype = dtype
        depth = int(shape.split("k")[1])
        self.depth = depth
        bits = {"f16": 16, "bf16": 16, "tf32": 32}.get(self.atype, 8)
        self.per = 32 // bits
        self.num_a = 16 * depth * bits // 1024
        self.machine = Machine("sm_100a")
        kind = "b32"
        num_c = 2 if dtype == "f16" else 4
        self.d = registers("d", num_c, kind)
        self.a = registers("a", self.num_a)
        self.b = registers("b", self.num_a // 2)
        self.c = self.d if in_place else registers("c", num_c, kind)
        sat = "satfinite." if saturate else ""
        self.handler = self.machine.bind(
            f"mma.sync.aligned.{shape}.row.col.{sat}{types}",
            *(vec(x) for x in (self.d, self.a, self.b, self.c)),
        )
        (self.warp,) = self.machine.start()

    def load(self, a, b, c):
        """Put matrices into registers, element by element."""
        size = 4 // self.per
        for name, matrix, dtype, place in (
            ("a", a, TYPES[self.atype], a_place),
            ("b", b, TYPES[self.btype], b_place),
        ):
            regs = getattr(self, name)
            half_k = 4 * self.per
            raw = np.ascontiguousarray(matrix.astype(dtype))
            for lane, i in itertools.product(range(32), range(len(regs) * self.per)):
                row, column = place(lane, i, self.per, half_k)
                value = int.from_bytes(raw[row, column].tobytes(), "little")
                words = self.warp.file32[self.warp.row(regs[i // self.per])]
                if i % self.per == 0:
                    words[lane] = 0
                words[lane] |= np.uint32(value << (8 * size * (i % self.per)))
        self._accumulators(c, store=True)

    def _accumulators(self, matrix, *, store):
        regs = self.c if store else self.d
        half = self.dtype == "f16"
        out = np.zeros((16, 8), np.uint32)
        for lane, i in itertools.product(range(32), range(4)):
            row = (lane >> 2) + (0 if i < 2 else 8)
            column = (lane % 4) * 2 + (i & 1)
            words = self.warp.file32[self.warp.row(regs[i // 2 if half else i])]
            shift = 16 * (i & 1) if half else 0
            mask = 0xFFFF << shift if half else FULL
            if store:
                value = int.from_bytes(np.asarray(matrix[row, column]).tobytes(), "little")
                words[lane] = (int(words[lane]) & ~mask & FULL) | value << shift
            else:
                out[row, column] = (int(words[lane]) & mask) >> shift
        return out

    def run(self):
        self.handler(self.warp, FULL)
        return self._accumulators(None, store=False)


FLOAT_FORMS = [
    ("m16n8k16", "f32.bf16.bf16.f32"),
    ("m16n8k8", "f32.bf16.bf16.f32"),
    ("m16n8k16", "f32.f16.f16.f32"),
    ("m16n8k8", "f32.f16.f16.f32"),
    ("m16n8k16", "f16.f16.f16.f16"),
    ("m16n8k8", "f16.f16.f16.f16"),
    ("m16n8k8", "f32.tf32.tf32.f32"),
    ("m16n8k4", "f32.tf32.tf32.f32"),
    ("m16n8k32", "f32.e4m3.e4m3.f32"),
    ("m16n8k32", "f32.e4m3.e5m2.f32"),
    ("m16n8k16", "f32.e5m2.e4m3.f32"),
    ("m16n8k32", "f16.e5m2.e5m2.f16"),
]


def random_operand(rng, shape, dtype):
    """Values of a wide range of exponents, subnormals included."""
    scale = {np.float16: 10, ml_dtypes.bfloat16: 30}.get(dtype, 3)
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-scale, 4, shape)
    return values.astype(dtype).astype(np.float64)


@pytest.mark.parametrize(("shape", "types"), FLOAT_FORMS)
@pytest.mark.parametrize("in_place", [True, False])
def test_floating_point_forms(shape, types, in_place):
    rng = np.random.default_rng(hash_of(shape, types, in_place))
    case = Case(shape, types, in_place=in_place)
    a = random_operand(rng, (16, case.depth), TYPES[case.atype])
    b = random_operand(rng, (case.depth, 8), TYPES[case.btype])
    if case.atype == "tf32":
        a, b = (to_tf32(x) for x in (a, b))
    result = np.float16 if case.dtype == "f16" else np.float32
    c = rng.standard_normal((16, 8)).astype(result)
    case.load(a, b, c)
    got = case.run().astype(np.uint16 if case.dtype == "f16" else np.uint32).view(result)
    exact = a @ b + c
    terms = np.abs(a) @ np.abs(b) + np.abs(c)
    assert (np.abs(got - exact.astype(result).astype(np.float64)) <= 2.0**-48 * terms).mean() > 0.99
    unit = 2.0**-11 if case.dtype == "f16" else 2.0**-24
    assert (np.abs(got.astype(np.float64) - exact) <= unit * np.abs(exact) + 2.0**-45 * terms).all()
    flops = case.machine.launch.counters["mma-sync-flops"]
    assert flops == 2 * 16 * 8 * case.depth


def hash_of(*parts):
    return sum(ord(ch) * (i + 1) for i, ch in enumerate(str(parts)))


def to_tf32(values):
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(np.float64)


@pytest.mark.parametrize("types", ["f32.f16.f16.f32", "f32.bf16.bf16.f32", "f16.f16.f16.f16"])
def test_any_bit_pattern_agrees_with_ieee(types):
    rng = np.random.default_rng(5)
    case = Case("m16n8k8", types)
    dtype = TYPES[case.atype]
    result = np.float16 if case.dtype == "f16" else np.float32
    seen = 0
    for _ in range(20):
        a = rng.integers(0, 65536, (16, 8), np.uint16).view(dtype)
        b = rng.integers(0, 65536, (8, 8), np.uint16).view(dtype)
        # One product a row and column, so that the exact result is one rounding away.
        a[:, 1:] = 0
        c = np.zeros((16, 8), result)
        c[::2] = rng.standard_normal((8, 8)).astype(result)
        case.load(a, b, c)
        got = case.run().astype(np.uint16 if case.dtype == "f16" else np.uint32)
        with np.errstate(all="ignore"):
            total = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
            expected = total.astype(result)
        nan = np.isnan(expected)
        seen += int(nan.sum())
        canonical = 0x7FFF if case.dtype == "f16" else 0x7FFFFFFF
        assert (got[nan] == canonical).all()
        assert (got[~nan] == expected.view(got.dtype)[~nan]).all()
    assert seen > 0


def test_subnormals_and_rounding_of_f16_accumulators():
    rng = np.random.default_rng(6)
    case = Case("m16n8k8", "f16.f16.f16.f16")
    a = np.zeros((16, 8))
    b = np.zeros((8, 8))
    a[:, 0] = rng.choice([2.0**-14, 3 * 2.0**-24, 1.5, 255.0], 16)
    b[0] = rng.choice([2.0**-9, 2.0**-10, 2.0**-11, 3 * 2.0**-11, 257.0], 8)
    c = (rng.integers(0, 65536, (16, 8), np.uint16) & 0xBFFF).view(np.float16)
    case.load(a, b, c)
    got = case.run().astype(np.uint16)
    with np.errstate(over="ignore"):
        expected = (np.outer(a[:, 0], b[0]) + c.astype(np.float64)).astype(np.float16)
    assert (got == expected.view(np.uint16)).all()


@pytest.mark.parametrize(
    ("shape", "types"),
    [
        ("m16n8k32", "s32.s8.s8.s32"),
        ("m16n8k32", "s32.u8.s8.s32"),
        ("m16n8k16", "s32.s8.u8.s32"),
    ],
)
@pytest.mark.parametrize("saturate", [False, True])
def test_integer_forms(shape, types, saturate):
    rng = np.random.default_rng(7)
    case = Case(shape, types, saturate=saturate)
    info_a, info_b = (np.iinfo(TYPES[t]) for t in (case.atype, case.btype))
    a = rng.integers(info_a.min, info_a.max + 1, (16, case.depth))
    b = rng.integers(info_b.min, info_b.max + 1, (case.depth, 8))
    c = rng.choice([2**31 - 1, -(2**31), 12345, -7], (16, 8)).astype(np.int32)
    case.load(a, b, c)
    got = case.run().view(np.int32)
    exact = a @ b + c.astype(np.int64)
    assert (exact != exact.astype(np.int32)).any()
    expected = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact
    assert (got == expected.astype(np.int32)).all()


@pytest.mark.parametrize(
    "name",
    [
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32",
        "mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k64.row.col.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
        "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.kind::mxf8f6f4.f32.bf16.bf16.f32",
        "mma.sync.m16n8k16.row.col.f32.bf16.bf16.f32",
    ],
)
def test_unknown_forms_are_named(name):
    machine = Machine()
    operands = [vec(registers(n, k)) for n, k in (("d", 4), ("a", 4), ("b", 2), ("d", 4))]
    with pytest.raises(UnsupportedInstruction, match="line 7"):
        machine.bind(name, *operands)


def test_wrong_number_of_registers_is_refused():
    operands = [vec(registers(n, k)) for n, k in (("d", 4), ("a", 2), ("b", 2), ("d", 4))]
    with pytest.raises(UnsupportedInstruction, match="A must be a list of 4"):
        Machine().bind("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", *operands)


def test_partial_warp_is_a_fault():
    case = Case("m16n8k16", "f32.bf16.bf16.f32")
    with pytest.raises(Fault, match="partial-warp"):
        case.handler(case.warp, 0x7FFFFFFF)
