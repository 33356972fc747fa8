"""Tensor stores, reductions and scatter4."""

import ml_dtypes
import numpy as np
import pytest
from copies_fakes import PARAM_BASE, Bench
from copies_reference import stored, swizzled
from test_copies_tma_load import map_of, random_array

from cakert.sim.copies.swizzle import SPAN, SWIZZLES
from cakert.sim.copies.tensor_map import TensorMap
from cakert.sim.faults import Fault

BF16 = np.dtype(ml_dtypes.bfloat16)


def store_text(rank, operation=None, mode="", coordinates=None):
    names = ",".join(f"%r{2 + i}" for i in range(coordinates or rank))
    opcode, op = ("cp", "") if operation is None else ("cp.reduce", f".{operation}")
    return (
        f"{opcode}.async.bulk.tensor.{rank}d.global.shared::cta{op}{mode}.bulk_group "
        f"[%rd1, {{{names}}}], [%r1];"
    )


def run_store(array, box, coordinates, start, data, *, operation=None, steps=None, swizzle="none"):
    """Store ``data``, bytes of shared memory from 1024 on, into ``array``; the bench."""
    bench = Bench()
    tensor_map = map_of(bench.lend(array), array, box, swizzle=swizzle, element_strides=steps)
    bench.launch.param_bytes = tensor_map.to_bytes()
    bench.write_shared(1024, data)
    registers = {f"r{2 + i}": at for i, at in enumerate(coordinates)}
    bench.issue(store_text(array.ndim, operation), r1=start, rd1=PARAM_BASE, **registers)
    return bench


def shared_bytes(dtype, seed=3, nbytes=16384):
    values = np.random.default_rng(seed).integers(1, 100, nbytes // np.dtype(dtype).itemsize)
    return values.astype(dtype).view(np.uint8)


def equal(left, right):
    np.testing.assert_array_equal(left.astype(np.float64), right.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, BF16, np.float32, np.float64])
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_every_swizzle_and_element_size(swizzle, dtype):
    dtype = np.dtype(dtype)
    inner = (SPAN[swizzle] or 64) // dtype.itemsize
    data = shared_bytes(dtype)
    memory = dict(enumerate(data.tolist(), 1024))
    for start, corner in ((2048, (0, 0)), (1024 + 640, (inner // 2, 21)), (2048, (-3, -5))):
        array = random_array((40, 2 * inner), dtype)
        expected = stored(array, memory, (inner, 17), corner, (1, 1), swizzle, start)
        run_store(array, (inner, 17), corner, start, data, swizzle=swizzle)
        equal(array, expected)


def test_random_boxes_with_steps():
    rng = np.random.default_rng(6)
    data = shared_bytes(np.float16, nbytes=65536)
    memory = dict(enumerate(data.tolist(), 1024))
    for _ in range(30):
        rank = int(rng.integers(1, 6))
        shape = (*rng.integers(1, 6, rank - 1), 24)
        box = (int(rng.choice([8, 16, 24])), *(int(n) for n in rng.integers(1, 6, rank - 1)))
        corner = [int(rng.integers(-9, 25)), *(int(c) for c in rng.integers(-4, 6, rank - 1))]
        steps = (1, *(int(s) for s in rng.integers(1, 4, rank - 1)))
        array = random_array(shape, np.float16, seed=int(rng.integers(1000)))
        expected = stored(array, memory, box, corner, steps, "none", 2048)
        run_store(array, box, corner, 2048, data, steps=steps)
        equal(array, expected)


def inc(old, source):
    return 0 if old >= source else old + 1


def dec(old, source):
    return source if old == 0 or old > source else old - 1


UPDATES = {
    "add": lambda old, source: old + source,
    "min": min,
    "max": max,
    "inc": inc,
    "dec": dec,
    "and": lambda old, source: old & source,
    "or": lambda old, source: old | source,
    "xor": lambda old, source: old ^ source,
}
REDUCTIONS = [
    *((operation, np.uint32) for operation in UPDATES),
    *((operation, np.int32) for operation in ("add", "min", "max", "and", "or", "xor")),
    *((operation, np.uint64) for operation in ("add", "min", "max", "and", "or", "xor")),
    *((operation, np.int64) for operation in ("min", "max", "and", "or", "xor")),
    *((operation, dtype) for operation in ("add", "min", "max") for dtype in (np.float16, BF16)),
    ("add", np.float32),
    ("add", np.float64),
]


@pytest.mark.parametrize(("operation", "dtype"), REDUCTIONS)
def test_reductions(operation, dtype):
    dtype = np.dtype(dtype)
    array = random_array((7, 32), dtype)
    box = (128 // dtype.itemsize, 5)
    data = shared_bytes(dtype)
    memory = dict(enumerate(data.tolist(), 1024))

    def update(old, source):
        return np.asarray(UPDATES[operation](old, source)).astype(dtype)

    for corner in ((0, 1), (-3, 4)):
        expected = stored(array, memory, box, corner, (1, 1), "128B", 2048, update)
        run_store(array, box, corner, 2048, data, operation=operation, swizzle="128B")
        equal(array, expected)


@pytest.mark.parametrize(
    ("operation", "data_type"),
    [("add", "uint8"), ("add", "int64"), ("min", "float32"), ("inc", "int32"), ("xor", "float16")],
)
def test_reductions_that_do_not_exist(operation, data_type):
    array = random_array((8, 64), np.uint8)
    bench = Bench()
    tensor_map = TensorMap.encode(data_type, bench.lend(array), (8, 8), (64,), (16, 2))
    bench.launch.param_bytes = tensor_map.to_bytes()
    bench.write_shared(2048, np.ones(1024, np.uint8))
    with pytest.raises(Fault, match="tma-reduction-type"):
        bench.issue(store_text(2, operation), rd1=PARAM_BASE, r1=2048, r2=0, r3=0)


def test_additions_round_and_flush_as_the_isa_says():
    tiny = np.float32(1e-39)
    array = random_array((1, 4), np.float32)
    array[:] = [[tiny, 1.0, -tiny, np.float32(2.0) ** -126]]
    source = np.array([1.5, 2.0**-24, -0.0, -(2.0**-126) * 0.75], np.float32)
    run_store(array, (4, 1), (0, 0), 1024, source, operation="add")
    assert array[0, :2].tolist() == [1.5, 1.0]
    assert array[0, 2] == 0 and np.signbit(array[0, 2])
    assert array[0, 3] == np.float32(2.0) ** -126
    half = random_array((1, 8), np.float16)
    half[:] = [[1, 2, 3, 4, 2048, 6, 7, np.float16(6e-8)]]
    source = np.array([0.00048828125, 1, 1, 1, 3, 1, 1, 6e-8], np.float16)
    run_store(half, (8, 1), (0, 0), 1024, source, operation="add")
    assert half[0, 0] == 1.0 and half[0, 4] == 2052 and half[0, 7] == np.float16(1.2e-7)


def test_a_nan_loses_against_a_number():
    array = random_array((1, 8), np.float16)
    array[:] = [[np.nan, 1, np.nan, -0.0, 0.0, 3, -4, 5]]
    source = np.array([2, np.nan, np.nan, 0.0, -0.0, 2, -3, 5], np.float16)
    run_store(array, (8, 1), (0, 0), 1024, source, operation="min")
    assert array[0, :2].tolist() == [2, 1] and np.isnan(array[0, 2])
    assert np.signbit(array[0, 3:5]).all()
    assert array[0, 5:].tolist() == [2, -4, 5]


def test_a_reduction_into_broadcast_rows_adds_up():
    array = random_array((4, 16), np.float32)
    before = array.copy()
    bench = Bench()
    tensor_map = TensorMap.encode("float32", bench.lend(array), (16, 8), (0,), (16, 5))
    bench.launch.param_bytes = tensor_map.to_bytes()
    rows = np.random.default_rng(1).integers(1, 50, (5, 16)).astype(np.float32)
    bench.write_shared(2048, rows)
    bench.issue(store_text(2, "add"), rd1=PARAM_BASE, r1=2048, r2=0, r3=0)
    equal(array[0], before[0] + rows.sum(axis=0))
    equal(array[1:], before[1:])


@pytest.mark.parametrize("operation", [None, "add"])
@pytest.mark.parametrize("swizzle", ["none", "64B"])
def test_scatter_of_four_rows(operation, swizzle):
    array = random_array((30, 48), np.float16)
    before = array.copy()
    data = shared_bytes(np.float16)
    bench = Bench()
    tensor_map = map_of(bench.lend(array), array, (32, 1), swizzle=swizzle)
    bench.launch.param_bytes = tensor_map.to_bytes()
    bench.write_shared(1024, data)
    rows = (7, -1, 29, 2)
    text = store_text(2, operation, ".tile::scatter4", coordinates=5)
    registers = {f"r{3 + i}": row for i, row in enumerate(rows)}
    bench.issue(text, rd1=PARAM_BASE, r1=2048, r2=24, **registers)
    places = [swizzled(2048 + i, swizzle) - 1024 for i in range(256)]
    values = data[places].view(np.float16).reshape(4, 32)
    for i, row in enumerate(rows):
        if row >= 0:
            before[row, 24:] = values[i, :24] + (before[row, 24:] if operation else 0)
    equal(array, before)
    assert bench.launch.counters == {"tma-store-bytes": 3 * 48}


def test_what_a_store_refuses():
    array = random_array((8, 32), np.float32)
    data = shared_bytes(np.float32)
    with pytest.raises(Fault, match="tma-misaligned"):
        run_store(array, (32, 2), (0, 0), 1024 + 64, data)
    with pytest.raises(Fault, match="uninitialised-shared"):
        run_store(array, (32, 2), (0, 0), 1024 + 16384, data)
    bench = Bench()
    bench.launch.memory.register(array.__array_interface__["data"][0], array.nbytes, False, "input")
    tensor_map = map_of(array.__array_interface__["data"][0], array, (32, 2))
    bench.launch.param_bytes = tensor_map.to_bytes()
    bench.write_shared(2048, data)
    with pytest.raises(Fault, match="read-only"):
        bench.issue(store_text(2), rd1=PARAM_BASE, r1=2048, r2=0, r3=0)


def test_generic_writes_need_a_fence_before_the_store():
    array = random_array((8, 32), np.float32)
    bench = Bench()
    bench.launch.param_bytes = map_of(bench.lend(array), array, (32, 2)).to_bytes()
    places = np.arange(2048, 2304)
    bench.shared.generic_write(places, np.ones(256, np.uint8), 40, None)
    text = store_text(2)
    with pytest.raises(Fault, match="missing-proxy-fence"):
        bench.issue(text, rd1=PARAM_BASE, r1=2048, r2=0, r3=0)


@pytest.mark.parametrize("corner", [(-8, 2), (8, -1)])
@pytest.mark.parametrize("operation", [None, "add"])
def test_an_h200_refuses_stores_that_begin_before_the_tensor(corner, operation):
    array = random_array((8, 64), np.float16)
    bench = Bench(ignore=())
    bench.launch.param_bytes = map_of(bench.lend(array), array, (32, 4), swizzle="64B").to_bytes()
    bench.write_shared(1024, shared_bytes(np.float16))
    before = array.copy()
    with pytest.raises(Fault, match="tma-negative-store"):
        bench.issue(store_text(2, operation), r1=2048, rd1=PARAM_BASE, r2=corner[0], r3=corner[1])
    equal(array, before)
    bench.issue(store_text(2, operation), r1=2048, rd1=PARAM_BASE, r2=56, r3=6)
    assert not np.array_equal(array, before)
