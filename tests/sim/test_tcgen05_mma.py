"""tcgen05.mma: where operands are read and where D lands, by loops over the ISA's tables."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tcgen05_fakes import FULL, Bench, idesc, put_k_major, sdesc

from cakert.sim.faults import Fault, UnsupportedInstruction

A_AT, B_AT = 4096, 65536
F16, BF16 = np.float16, ml_dtypes.bfloat16


def issue(bench: Bench, ws: bool = False, *, kind="f16", a="%rd0", tail="", collector="", **lanes):
    """One MMA into [%r500]; %rd0, %rd1: A, B; %r501: descriptor; %p0: accumulate."""
    bench.one(
        f"tcgen05.mma{'.ws' if ws else ''}.cta_group::1.kind::{kind}{collector} "
        f"[%r500], {a}, %rd1, %r501, {tail or '%p0'};",
        **lanes,
    )


def d_cell(m: int, n: int, row: int, column: int, ws: bool) -> tuple[int, int]:
    """Lane and column of D[row, column]: figures of PTX ISA 9.7.16.10.5, layouts D, E, F, G."""
    if m == 128:
        return row, column
    if m == 64 and not ws:
        return row % 16 + 32 * (row // 16), column
    if m == 64:
        return (row, column) if column < n // 2 else (row + 64, column - n // 2)
    part = column // (n // 4)
    return row + 32 * part, column - part * (n // 4)


def matrices(m: int, n: int, k: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.standard_normal((m, k)), random.standard_normal((n, k))


def put(bench: Bench, a: np.ndarray | None, b: np.ndarray) -> None:
    """Operands to shared memory, K-major without a swizzle, and their descriptors."""
    if a is not None:
        raw = np.ascontiguousarray(a).view(np.uint8)
        bench.set("%rd0", put_k_major(bench.cta.shared, A_AT, raw))
    raw = np.ascontiguousarray(b).view(np.uint8)
    bench.set("%rd1", put_k_major(bench.cta.shared, B_AT, raw))


def ready(m, n, *, ws=False, dtype=BF16, column=0, lane=0, accumulate=False, **kw) -> Bench:
    bench = Bench(**kw)
    bench.alloc(512)
    bench.set("%r500", lane << 16 | column)
    bench.set("%r501", idesc(m, n, a=0 if dtype == F16 else 1))
    bench.set("%p0", accumulate)
    return bench


NON_WS = [(m, n, False) for m in (64, 128) for n in range(8, 257, 8)]
WS = [(m, n, True) for m in (32, 64, 128) for n in (64, 128, 256)]


@pytest.mark.parametrize(("m", "n", "ws"), NON_WS[::3] + NON_WS[-1:] + WS)
def test_where_d_lands(m, n, ws):
    bench = ready(m, n, ws=ws, column=40)
    before = bench.fill()
    a, b = (matrix.astype(BF16) for matrix in matrices(m, n))
    put(bench, a, b)
    issue(bench, ws)
    expected = before.copy()
    product = a.astype(np.float64) @ b.astype(np.float64).T
    bits = product.astype(np.float32).view(np.uint32)
    for row in range(m):
        for column in range(n):
            lane, at = d_cell(m, n, row, column, ws)
            expected[lane, 40 + at] = bits[row, column]
    assert (bench.memory.cells == expected).all()


def test_two_accumulators_of_64_rows_interleave():
    bench = ready(64, 32)
    before = bench.fill()
    a, b = (matrix.astype(BF16) for matrix in matrices(64, 32))
    put(bench, a, b)
    issue(bench)
    bench.set("%r500", 16 << 16)
    issue(bench)
    half = bench.memory.cells.reshape(4, 2, 16, 512)[:, :, :, :32]
    assert (half[:, 0] == half[:, 1]).all()
    assert (bench.memory.cells[:, 32:] == before[:, 32:]).all()


@pytest.mark.parametrize("lane", [1, 8, 17, 32, 64])
def test_lanes_that_no_accumulator_starts_at(lane):
    for m, ws in ((64, False), (128, False), (64, True), (32, True)):
        bench = ready(m, 64, lane=lane)
        put(bench, *(matrix.astype(BF16) for matrix in matrices(m, 64)))
        with pytest.raises(Fault) as caught:
            issue(bench, ws)
        assert caught.value.name == "tmem-misaligned"
        assert caught.value.advice.startswith("It must start at lane 0")
        bench.launch.ignore.add("tmem-misaligned")
        before = bench.memory.cells.copy()
        issue(bench, ws)  # left out
        assert (bench.memory.cells == before).all()


@pytest.mark.parametrize(("m", "n", "ws"), [(128, 64, False), (64, 48, False), *WS])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_a_from_tensor_memory(m, n, ws, dtype):
    """Each bank of lanes holds rows of its own, and multiplies its own columns of B."""
    bench = ready(m, n, ws=ws, dtype=dtype, column=256)
    bench.fill()
    random = np.random.default_rng(3)
    stored = random.standard_normal((128, 16)).astype(dtype)  # a row for each lane
    # Column c holds k = 2c in its low half, 2c + 1 in its high half (PTX ISA 9.7.16.10.5).
    raw = stored.view(np.uint16).astype(np.uint32)
    for lane in range(128):
        for column in range(8):
            value = raw[lane, 2 * column] | raw[lane, 2 * column + 1] << 16
            bench.memory.cells[lane, 100 + column] = value
    b = random.standard_normal((n, 16)).astype(dtype)
    put(bench, None, b)
    bench.set("%r502", 100)
    issue(bench, ws, a="[%r502]")
    for row in range(m):
        for column in range(n):
            lane, at = d_cell(m, n, row, column, ws)
            exact = stored[lane].astype(np.float64) @ b[column].astype(np.float64)
            got = bench.memory.cells[lane, 256 + at : 257 + at].view(np.float32)[0]
            assert got == np.float32(exact)


def test_a_in_tensor_memory_starts_at_the_lane_of_d():
    for d_lane, a_lane in ((0, 16), (16, 0)):
        bench = ready(64, 64, lane=d_lane, column=256)
        before = bench.fill()
        put(bench, None, matrices(64, 64)[1].astype(BF16))
        bench.set("%r502", a_lane << 16)
        with pytest.raises(Fault, match=f"A of M = 64 starts at lane {a_lane}") as caught:
            issue(bench, a="[%r502]")
        assert caught.value.name == "tmem-misaligned"
        assert (bench.memory.cells == before).all()
        bench.set("%r502", d_lane << 16)
        issue(bench, a="[%r502]")


def mn_major(bench: Bench, matrix: np.ndarray, at: int) -> int:
    """16-bit matrix (mn, 16) MN-major, swizzled 128B, as TMA writes 64-column boxes.

    Box g holds columns 64g.. as 16 rows (k) of 128 bytes; chunk c of row k lies at c ^ (k % 8).
    """
    raw = matrix.view(np.uint16)
    for mn in range(raw.shape[0]):
        for k in range(16):
            place = (mn // 64) * 16 * 128 + k * 128
            chunk = (mn % 64) // 8 ^ (k % 8)
            where = at + place + chunk * 16 + mn % 8 * 2
            bench.cta.shared.data[where : where + 2] = raw[mn, k : k + 1].view(np.uint8)
    return sdesc(at, lbo=16 * 128, sbo=1024, swizzle=2)


def test_mn_major_operands_through_the_swizzle():
    bench = ready(128, 128)
    bench.fill()
    a, b = (matrix.astype(BF16) for matrix in matrices(128, 128))
    bench.set("%rd0", mn_major(bench, a, A_AT))
    bench.set("%rd1", mn_major(bench, b, B_AT))
    bench.set("%r501", idesc(128, 128, a_mn=1, b_mn=1))
    issue(bench)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert (bench.memory.cells[:, :128].view(np.float32) == exact.astype(np.float32)).all()


def test_k_major_swizzled_with_an_advance_along_k():
    bench = ready(128, 64)
    bench.fill()
    a, b = matrices(128, 64, k=64)
    for at, matrix, name in ((A_AT, a.astype(BF16), "%rd0"), (B_AT, b.astype(BF16), "%rd1")):
        raw = matrix.view(np.uint8)
        for row in range(len(raw)):
            for chunk in range(8):
                place = at + row * 128 + (chunk ^ row % 8) * 16
                bench.cta.shared.data[place : place + 16] = raw[row, 16 * chunk : 16 * chunk + 16]
        bench.set(name, sdesc(at + 64, lbo=16, sbo=1024, swizzle=2))
    issue(bench)
    part = slice(32, 48)
    exact = a.astype(BF16)[:, part].astype(float) @ b.astype(BF16)[:, part].astype(float).T
    assert (bench.memory.cells[:, :64].view(np.float32) == exact.astype(np.float32)).all()


@pytest.mark.parametrize("scale", [None, 0, 3, 15])
def test_accumulate_and_scale_input_d(scale):
    bench = ready(128, 64, accumulate=True)
    old = np.random.default_rng(5).standard_normal((128, 512)).astype(np.float32)
    bench.fill()
    bench.memory.cells[:] = old.view(np.uint32)
    a, b = (matrix.astype(BF16) for matrix in matrices(128, 64))
    put(bench, a, b)
    issue(bench, tail="%p0" if scale is None else f"%p0, {scale}")
    exact = a.astype(float) @ b.astype(float).T + old[:, :64] * 2.0 ** -(scale or 0)
    assert (bench.memory.cells[:, :64].view(np.float32) == exact.astype(np.float32)).all()
    put(bench, a, b)
    issue(bench, tail="!%p0")
    exact = a.astype(float) @ b.astype(float).T
    assert (bench.memory.cells[:, :64].view(np.float32) == exact.astype(np.float32)).all()


@pytest.mark.parametrize("m", [64, 128])
def test_disabled_lanes_keep_their_cells(m):
    bench = ready(m, 64)
    before = bench.fill()
    put(bench, *(matrix.astype(BF16) for matrix in matrices(m, 64)))
    words = [0x0000FFF0, 0, 0xFFFFFFFF, 0x80000001]
    for index, word in enumerate(words):
        bench.set(f"%r{510 + index}", word)
    issue(bench, tail="{%r510, %r511, %r512, %r513}, %p0")
    full = bench.memory.cells.copy()
    used = {row % 16 + 32 * (row // 16) if m == 64 else row for row in range(m)}
    for lane in range(128):
        kept = lane not in used or words[lane // 32] >> lane % 32 & 1
        assert (full[lane, :64] == before[lane, :64]).all() == bool(kept), lane


def test_disabled_lanes_need_no_accumulator():
    bench = ready(128, 64)
    a, b = (matrix.astype(BF16) for matrix in matrices(128, 64))
    put(bench, a, b)
    for index, word in enumerate((0, 0, FULL, FULL)):
        bench.set(f"%r{510 + index}", word)
    tail = "{%r510, %r511, %r512, %r513}, %p0"
    issue(bench, tail=tail)
    bench.set("%p0", True)
    issue(bench, tail=tail)
    exact = 2 * (a.astype(float) @ b.astype(float).T)[:64]
    got = bench.memory.cells[:64, :64].view(np.float32)
    np.testing.assert_allclose(got, exact, rtol=2e-7)
    assert bench.memory.written[:64, :64].all() and not bench.memory.written[64:].any()
    bench.set("%r512", FULL - 1)  # lane 64 takes part, and nobody wrote it
    with pytest.raises(Fault, match="accumulator D") as caught:
        issue(bench, tail=tail)
    assert caught.value.name == "tmem-uninitialised"


def test_f16_accumulator_takes_low_halves():
    bench = ready(128, 64, dtype=F16, accumulate=True)
    bench.fill()
    old = np.random.default_rng(1).standard_normal((128, 64)).astype(F16)
    bench.memory.cells[:, :64] = old.view(np.uint16) | np.uint32(0xABCD0000)
    a, b = (matrix.astype(F16) for matrix in matrices(128, 64))
    put(bench, a, b)
    bench.set("%r501", idesc(128, 64, a=0, d=0))
    issue(bench)
    exact = a.astype(float) @ b.astype(float).T + old.astype(float)
    low = (bench.memory.cells[:, :64] & 0xFFFF).astype(np.uint16).view(F16)
    assert (low == exact.astype(F16)).all()


def test_negated_operands():
    bench = ready(128, 64)
    bench.fill()
    a, b = (matrix.astype(BF16) for matrix in matrices(128, 64))
    put(bench, a, b)
    exact = (a.astype(float) @ b.astype(float).T).astype(np.float32)
    for fields, sign in (({"negate_a": 1}, -1), ({"negate_b": 1}, -1)):
        bench.set("%r501", idesc(128, 64, **fields))
        issue(bench)
        assert (bench.memory.cells[:, :64].view(np.float32) == sign * exact).all()


def test_tf32_ignores_the_low_mantissa():
    bench = ready(128, 64)
    bench.fill()
    a, b = (matrix.astype(np.float32) for matrix in matrices(128, 64, k=8))
    put(bench, a, b)
    bench.set("%r501", idesc(128, 64, a=2))
    issue(bench, kind="tf32")
    cut = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b)]
    exact = cut[0].astype(float) @ cut[1].astype(float).T
    assert (bench.memory.cells[:, :64].view(np.float32) == exact.astype(np.float32)).all()


@pytest.mark.parametrize(
    ("code_a", "type_a", "code_b", "type_b"),
    [
        (0, ml_dtypes.float8_e4m3fn, 1, ml_dtypes.float8_e5m2),
        (1, ml_dtypes.float8_e5m2, 0, ml_dtypes.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("from_tensor", [False, True])
def test_f8(code_a, type_a, code_b, type_b, from_tensor):
    bench = ready(128, 64, column=256)
    bench.fill()
    a, b = matrices(128, 64, k=32)
    a, b = a.astype(type_a), b.astype(type_b)
    put(bench, a, b)
    if from_tensor:
        raw = a.view(np.uint8).astype(np.uint32)
        for column in range(8):
            bench.memory.cells[:, column] = sum(
                raw[:, 4 * column + byte] << (8 * byte) for byte in range(4)
            )
        bench.set("%r502", 0)
    bench.set("%r501", idesc(128, 64, a=code_a, b=code_b))
    issue(bench, kind="f8f6f4", a="[%r502]" if from_tensor else "%rd0")
    exact = a.astype(float) @ b.astype(float).T
    got = bench.memory.cells[:, 256:320].view(np.float32)
    assert (got == exact.astype(np.float32)).all()


@pytest.mark.parametrize("saturate", [0, 1])
def test_i8(saturate):
    bench = ready(128, 64, accumulate=True)
    bench.fill()
    old = np.random.default_rng(2).integers(-(1 << 31), 1 << 31, (128, 64))
    old[0] = 2**31 - 1
    bench.memory.cells[:, :64] = old.astype(np.int32).view(np.uint32)
    random = np.random.default_rng(0)
    a = random.integers(-128, 128, (128, 32)).astype(np.int8)
    a[0] = 100
    b = random.integers(1, 256, (64, 32)).astype(np.uint8)
    put(bench, a, b)
    bench.set("%r501", idesc(128, 64, a=1, b=0, d=2, saturate=saturate))
    issue(bench, kind="i8")
    exact = a.astype(np.int64) @ b.astype(np.int64).T + old
    if saturate:
        exact = np.clip(exact, -(2**31), 2**31 - 1)
    assert (bench.memory.cells[:, :64] == (exact & 0xFFFFFFFF).astype(np.uint32)).all()
    with pytest.raises(UnsupportedInstruction, match="sm_103a"):
        issue(Bench(arch="sm_103a"), kind="i8")


def test_infinities_and_nans_go_through():
    bench = ready(128, 64)
    bench.fill()
    a, b = (matrix.astype(BF16) for matrix in matrices(128, 64))
    a[0, 0], a[1, 1] = np.inf, np.nan
    put(bench, a, b)
    issue(bench)
    got = bench.memory.cells[:, :64].view(np.float32)
    assert np.isinf(got[0]).all()
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[2:]).all()


def test_uninitialised_accumulator_and_operand():
    bench = ready(128, 64, accumulate=True)
    put(bench, *(matrix.astype(BF16) for matrix in matrices(128, 64)))
    with pytest.raises(Fault, match="accumulator D") as caught:
        issue(bench)
    assert caught.value.name == "tmem-uninitialised"
    bench = ready(128, 64)
    put(bench, *(matrix.astype(BF16) for matrix in matrices(128, 64)))
    bench.set("%r502", 256)
    with pytest.raises(Fault, match="operand A") as caught:
        issue(bench, a="[%r502]")
    assert caught.value.name == "tmem-uninitialised"


def test_columns_outside_the_allocation():
    bench = Bench()
    bench.alloc(64)
    bench.set("%r500", 32)
    bench.set("%r501", idesc(128, 64))
    bench.set("%p0", False)
    put(bench, *(matrix.astype(BF16) for matrix in matrices(128, 64)))
    with pytest.raises(Fault) as caught:
        issue(bench)
    assert caught.value.name == "tmem-out-of-bounds"


def test_many_lanes_issue():
    bench = ready(128, 64)
    put(bench, *(matrix.astype(BF16) for matrix in matrices(128, 64)))
    with pytest.raises(Fault, match="32 lanes") as caught:
        bench.run("tcgen05.mma.cta_group::1.kind::f16 [%r500], %rd0, %rd1, %r501, %p0;", mask=FULL)
    assert caught.value.name == "tcgen05-mma-multiple-lanes"


FORMS = {
    "ashift": "tcgen05.mma.cta_group::1.kind::f16.ashift [%r0], [%r1], %rd1, %r2, %p0;",
    "cta_group::2": "tcgen05.mma.cta_group::2.kind::f16 [%r0], %rd0, %rd1, %r2, %p0;",
    "mxf4": "tcgen05.mma.cta_group::1.kind::mxf4 [%r0], %rd0, %rd1, %r2, %p0;",
    "sp": "tcgen05.mma.sp.cta_group::1.kind::f16 [%r0], %rd0, %rd1, [%r3], %r2, %p0;",
    "zero-column": "tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r2, %p0, 5;",
    "descriptor": "tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, [%r1], %r2, %p0;",
    "0..15": "tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r2, %p0, 16;",
    "collector::a": (
        "tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::fill [%r0], %rd0, %rd1, %r2, %p0;"
    ),
    "4 words": "tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r2, {%r1, %r1}, %p0;",
}


@pytest.mark.parametrize("text", FORMS)
def test_forms_that_are_refused(text):
    with pytest.raises(UnsupportedInstruction, match=text):
        Bench().bind(FORMS[text])


def test_zero_column_mask_of_zero():
    bench = ready(64, 64, ws=True)
    bench.fill()
    put(bench, *(matrix.astype(BF16) for matrix in matrices(64, 64)))
    issue(bench, True, tail="%p0, 0")
    bench.set("%rd3", 0)
    issue(bench, True, tail="%p0, %rd3")
    bench.set("%rd3", 1 << 39)
    with pytest.raises(Fault) as caught:
        issue(bench, True, tail="%p0, %rd3")
    assert caught.value.name == "unsupported-zero-column-mask"


def test_scale_input_d_needs_a_target_that_has_it():
    text = "tcgen05.mma.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r2, %p0, 1;"
    with pytest.raises(UnsupportedInstruction, match="sm_110a"):
        Bench(arch="sm_110a").bind(text)
    Bench(arch="sm_103a").bind(text)


def test_collector_use_needs_a_fill_of_the_same_operand():
    bench = ready(128, 64)
    bench.fill()
    put(bench, *(matrix.astype(BF16) for matrix in matrices(128, 64)))
    issue(bench, collector=".collector::a::fill")
    issue(bench, collector=".collector::a::use")
    issue(bench, collector=".collector::a::lastuse")
    with pytest.raises(Fault) as caught:
        issue(bench, collector=".collector::a::use")
    assert caught.value.name == "tcgen05-collector-unfilled"
    issue(bench, collector=".collector::a::fill")
    bench.set("%rd0", sdesc(A_AT + 16 * 128 * 2, lbo=2048, sbo=128))
    with pytest.raises(Fault) as caught:
        issue(bench, collector=".collector::a::use")
    assert caught.value.name == "tcgen05-collector-unfilled"


@pytest.mark.parametrize(
    ("m", "n", "ws", "tensor", "cycles", "nbytes"),
    [
        (128, 64, False, False, 48, 6144),
        (128, 64, False, True, 32, 2048),
        (128, 128, False, False, 64, 8192),
        (64, 64, False, False, 32, 4096),
        (64, 256, False, False, 128, 10240),
        (64, 256, True, True, 76, 8192),
        (64, 256, True, False, 80, 10240),
        (128, 256, True, True, 138, 8192),
    ],
)
def test_cycles_are_those_measured(m, n, ws, tensor, cycles, nbytes):
    bench = ready(m, n, ws=ws, column=256)
    bench.fill()
    put(bench, *(matrix.astype(BF16) for matrix in matrices(m, n)))
    bench.memory.cells[:, :8] = 0
    bench.set("%r502", 0)
    issue(bench, ws, a="[%r502]" if tensor else "%rd0")
    assert bench.launch.counters == {"tensor-cycles": cycles, "mma-shared-bytes": nbytes}


def test_alternating_collectors_are_faster():
    bench = ready(64, 256, ws=True, column=256)
    bench.fill()
    bench.memory.cells[:, :8] = 0
    bench.set("%r502", 0)
    put(bench, None, matrices(64, 256)[1].astype(BF16))
    for buffer in ("b0", "b1", "b0"):
        issue(bench, True, a="[%r502]", collector=f".collector::{buffer}::discard")
    assert bench.launch.counters["tensor-cycles"] == 76 + 64 + 64
