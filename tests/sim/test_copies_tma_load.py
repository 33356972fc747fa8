"""Tensor loads: layout, bounds, accounting, multicast, gather4, and what is refused."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from copies_fakes import ALL, PARAM_BASE, REFUSED_BY_GPUS, Bench
from copies_reference import loaded, swizzled

from cakert.sim.copies.swizzle import SPAN, SWIZZLES
from cakert.sim.copies.tensor_map import TensorMap
from cakert.sim.faults import Fault

LOAD = (
    "cp.async.bulk.tensor.{}d.shared::{}.global{}.mbarrier::complete_tx::bytes{} "
    "[%r1], [%rd1, {{{}}}], [%r2]{};"
)


def load_text(rank, space="cta", mode="", more="", operands="", coordinates=None):
    names = ",".join(f"%r{3 + i}" for i in range(coordinates or rank))
    return LOAD.format(rank, space, mode, more, names, operands)


def random_array(shape, dtype, seed=0):
    """Random and nowhere zero, at a multiple of 64 bytes."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    array = raw[start : start + nbytes].view(dtype).reshape(shape)
    array[...] = rng.integers(1, 120, shape).astype(dtype)
    return array


def map_of(address, array, box, **options):
    names = {"uint8": "uint8", "bfloat16": "bfloat16", "int64": "int64", "float64": "float64"}
    data_type = names.get(array.dtype.name, array.dtype.name)
    return TensorMap.encode(
        data_type, address, array.shape[::-1], array.strides[-2::-1], box, **options
    )


def run_load(array, box, coordinates, start, *, ignore=REFUSED_BY_GPUS, **options):
    """A load into fresh shared memory; (bench, barrier)."""
    bench = Bench(ignore=ignore)
    tensor_map = map_of(bench.lend(array), array, box, **options)
    bench.launch.param_bytes = tensor_map.to_bytes()
    steps = options.get("element_strides") or (1,) * array.ndim
    counts = [-(-n // s) for n, s in zip(box, (1, *steps[1:]), strict=True)]
    nbytes = int(np.prod(counts)) * array.dtype.itemsize
    barrier = bench.barrier(1024, nbytes)
    registers = {f"r{3 + i}": at for i, at in enumerate(coordinates)}
    bench.issue(load_text(array.ndim), r1=start, rd1=PARAM_BASE, r2=1024, **registers)
    return bench, barrier


def check_load(array, box, coordinates, start, *, fill=0, **options):
    bench, barrier = run_load(array, box, coordinates, start, **options)
    steps = (1, *(options.get("element_strides") or (1,) * array.ndim)[1:])
    expected = loaded(array, box, coordinates, steps, options.get("swizzle", "none"), start, fill)
    places = np.array(sorted(expected))
    got = bench.shared.data[places]
    np.testing.assert_array_equal(got, [expected[place] for place in sorted(expected)])
    assert barrier.phase == 1, "the barrier counts the full box"
    return bench


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32", "int64"])
@pytest.mark.parametrize("swizzle", SWIZZLES)
def test_every_swizzle_and_element_size(swizzle, dtype):
    dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    inner = (SPAN[swizzle] or 64) // dtype.itemsize
    array = random_array((40, 2 * inner), dtype)
    for start, corner in ((2048, (0, 0)), (3072 + 384, (inner // 2, 21)), (2048, (-3, -5))):
        check_load(array, (inner, 17), corner, start, swizzle=swizzle)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_bounds_are_clipped_in_each_dimension(rank):
    shape = (3, 4, 3, 5, 16)[5 - rank :]
    box = (8, 3, 2, 2, 2)[:rank]
    array = random_array(shape, np.float32, seed=rank)
    for axis in range(rank):
        extent = shape[::-1][axis]
        for at in (-box[axis] - 1, -box[axis], -box[axis] + 1, -1, extent - 1, extent, extent + 9):
            corner = [0] * rank
            corner[axis] = at
            check_load(array, box, corner, 2048)


def test_random_boxes():
    rng = np.random.default_rng(5)
    for _ in range(30):
        rank = int(rng.integers(2, 5))
        shape = (*rng.integers(1, 7, rank - 1), 24)
        box = (int(rng.choice([8, 16, 24])), *(int(n) for n in rng.integers(1, 8, rank - 1)))
        corner = [int(rng.integers(-9, 25)), *(int(c) for c in rng.integers(-4, 8, rank - 1))]
        steps = (1, *(int(s) for s in rng.integers(1, 4, rank - 1)))
        array = random_array(shape, np.float16, seed=int(rng.integers(1000)))
        check_load(array, box, corner, 2048, element_strides=steps)


def test_the_first_element_stride_is_ignored():
    array = random_array((9, 32), np.float16)
    check_load(array, (16, 4), (3, 2), 2048, element_strides=(7, 1))


@pytest.mark.parametrize(
    ("dtype", "nan"), [(np.float16, 0x7FF7), (ml_dtypes.bfloat16, 0x7FF7), (np.float32, 0x7FF77FF7)]
)
def test_nan_fill(dtype, nan):
    array = random_array((10, 32), dtype)
    word = np.array(nan, f"u{array.dtype.itemsize}").view(dtype)
    bench = check_load(array, (8, 4), (28, 8), 2048, fill=word, oob_fill="nan")
    box = bench.read_shared(2048, 32 * array.dtype.itemsize).view(dtype).reshape(4, 8)
    assert np.isnan(box[2:].astype(float)).all() and np.isnan(box[:, 4:].astype(float)).all()
    assert not np.isnan(box[:2, :4].astype(float)).any()


def test_broadcast_and_split_views():
    # Head dimension split in two, as a 4D map over [rows, heads, d]: (64, rows, heads, d / 64).
    array = random_array((20, 3, 128), ml_dtypes.bfloat16)
    bench = Bench()
    address = bench.lend(array)
    tensor_map = TensorMap.encode(
        "bfloat16", address, (64, 20, 3, 2), (768, 256, 128), (64, 16, 1, 2), swizzle="128B"
    )
    bench.launch.param_bytes = tensor_map.to_bytes()
    barrier = bench.barrier(1024, 4096)
    bench.issue(load_text(4), r1=2048, rd1=PARAM_BASE, r2=1024, r3=0, r4=2, r5=1, r6=0)
    assert barrier.phase == 1
    got = bench.shared.data[[swizzled(2048 + i, "128B") for i in range(4096)]]
    halves = got.view(ml_dtypes.bfloat16).reshape(2, 16, 64)
    for half in range(2):
        expected = array[2:18, 1, 64 * half : 64 * half + 64]
        np.testing.assert_array_equal(halves[half].astype(float), expected.astype(float))
    # A stride of zero repeats a row.
    tensor_map = TensorMap.encode("bfloat16", address, (64, 20), (0,), (64, 3))
    bench.launch.param_bytes = tensor_map.to_bytes()
    bench.issue(load_text(2), r1=16384, rd1=PARAM_BASE, r2=1024, r3=0, r4=0)
    rows = bench.read_shared(16384, 384).view(ml_dtypes.bfloat16).reshape(3, 64)
    np.testing.assert_array_equal(
        rows.astype(float), np.stack([array[0, 0, :64]] * 3).astype(float)
    )


def test_counters_count_bytes_of_global_memory():
    bench = check_load(random_array((10, 32), np.float32), (32, 8), (0, 6), 2048)
    assert bench.launch.counters == {"tma-load-bytes": 4 * 32 * 4}


def test_each_lane_issues_its_own_copy():
    array = random_array((32, 16), np.float32)
    bench = Bench()
    bench.launch.param_bytes = map_of(bench.lend(array), array, (16, 1)).to_bytes()
    barrier = bench.barrier(1024, 3 * 64)
    lanes = np.arange(32)
    bench.issue(
        load_text(2), mask=0b1011, r1=2048 + 128 * lanes, rd1=PARAM_BASE, r2=1024, r3=0, r4=lanes
    )
    assert barrier.phase == 1
    for lane in range(4):
        got = bench.read_shared(2048 + 128 * lane, 64)
        assert (got.view(np.float32) == array[lane]).all() == (lane != 2)


def test_maps_in_global_memory_and_refused_places():
    array = random_array((8, 32), np.float32)
    bench = Bench()
    data = map_of(bench.lend(array), array, (32, 2)).to_bytes()
    holder = random_array((256,), np.uint8)
    holder[64:192] = np.frombuffer(data, np.uint8)
    at = bench.lend(holder) + 64
    barrier = bench.barrier(1024, 256)
    registers = {"r1": 2048, "r2": 1024, "r3": 0, "r4": 3}
    bench.issue(load_text(2), rd1=at, **registers)
    assert barrier.phase == 1
    np.testing.assert_array_equal(bench.read_shared(2048, 256).view(np.float32), array[3:5].ravel())
    for place, reason in (
        ((1 << 48) + 2048, "shared memory"),
        (2 << 48, "local memory"),
        (PARAM_BASE + 64, "past the parameters"),
        (PARAM_BASE, "no tensor map"),
        (at + 16, "multiple of 64"),
    ):
        with pytest.raises(Fault, match=reason) as raised:
            bench.issue(load_text(2), rd1=place, **registers)
        assert raised.value.name == "tensor-map-invalid"
    with pytest.raises(Fault, match="global-out-of-bounds"):
        bench.issue(load_text(2), rd1=4096, **registers)


def test_a_changed_map_is_found_out():
    array = random_array((8, 32), np.float32)
    bench = Bench()
    data = bytearray(map_of(bench.lend(array), array, (32, 2)).to_bytes())
    data[30] ^= 1
    bench.launch.param_bytes = bytes(data)
    bench.barrier(1024, 256)
    with pytest.raises(Fault, match="changed after it was encoded"):
        bench.issue(load_text(2), rd1=PARAM_BASE, r1=2048, r2=1024, r3=0, r4=0)


@pytest.mark.parametrize(
    ("name", "start", "rank", "options"),
    [
        ("tma-misaligned", 2048 + 64, 2, {}),
        ("tma-rank-mismatch", 2048, 3, {}),
        ("tensor-map-unsupported", 2048, 2, {"data_type": "tfloat32"}),
        ("shared-out-of-bounds", 1024 + (1 << 17), 2, {}),
        ("mbarrier-uninitialised", 2048, 2, {"barrier": 1032}),
    ],
)
def test_faults_of_a_load(name, start, rank, options):
    array = random_array((8, 32), np.float32)
    bench = Bench()
    tensor_map = TensorMap.encode(
        options.get("data_type", "float32"), bench.lend(array), (32, 8), (128,), (32, 2)
    )
    bench.launch.param_bytes = tensor_map.to_bytes()
    bench.barrier(1024, 256)
    with pytest.raises(Fault) as raised:
        bench.issue(
            load_text(rank),
            rd1=PARAM_BASE,
            r1=start,
            r2=options.get("barrier", 1024),
            **{f"r{3 + i}": 0 for i in range(rank)},
        )
    assert raised.value.name == name


@pytest.mark.parametrize("swizzle", [mode for mode in SWIZZLES if mode != "none"])
def test_rows_narrower_than_the_swizzle_lie_as_far_apart_as_it(swizzle):
    array = random_array((8, 32), np.float16)
    bench = check_load(array, (SPAN[swizzle] // 4, 5), (8, -1), 2048 + 128, swizzle=swizzle)
    gaps = bench.shared.data[2048 + 128 : 2048 + 128 + 5 * SPAN[swizzle]].reshape(-1, 16)
    assert (gaps == 0xFF).all(axis=1).sum() >= 5 * SPAN[swizzle] // 32


def test_a_late_copy_reads_the_source_late():
    array = random_array((8, 32), np.float32)
    bench = Bench(schedule="lazy")
    bench.launch.param_bytes = map_of(bench.lend(array), array, (32, 8)).to_bytes()
    barrier = bench.barrier(1024, 1024)
    bench.issue(load_text(2), rd1=PARAM_BASE, r1=2048, r2=1024, r3=0, r4=0)
    assert barrier.phase == 0
    with pytest.raises(Fault, match="shared-in-flight"):
        bench.shared.generic_read(np.array([2050]), 0, None)
    array[2] = 1000
    bench.launch.engine.drain()
    assert barrier.phase == 1
    assert (bench.read_shared(2048 + 256, 128).view(np.float32) == 1000).all()
    bench.shared.generic_read(np.array([2050]), 0, None)


# --- clusters ----------------------------------------------------------------------------------


def cluster_bench(ctas=4, **options):
    array = random_array((16, 32), np.float32)
    bench = Bench(ctas=ctas, **options)
    bench.launch.param_bytes = map_of(bench.lend(array), array, (32, 4)).to_bytes()
    return bench, array


def shared_of(rank, offset):
    return (rank + 1) << 24 | offset


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_multicast_goes_to_every_cta_of_the_mask(schedule):
    bench, array = cluster_bench(schedule=schedule)
    barriers = [bench.barrier(1032, 512, rank) for rank in range(4)]
    text = load_text(2, "cluster", more=".multicast::cluster", operands=", %rs1")
    bench.issue(text, rank=1, rd1=PARAM_BASE, r1=2048, r2=1032, r3=0, r4=5, rs1=0b1101)
    bench.launch.engine.drain()
    assert [barrier.phase for barrier in barriers] == [1, 0, 1, 1]
    for rank in (0, 2, 3):
        got = bench.read_shared(2048, 512, rank).view(np.float32)
        np.testing.assert_array_equal(got, array[5:9].ravel())
    assert (bench.read_shared(2048, 512, 1) == 0xFF).all()


def test_multicast_of_a_pair_tells_the_cta_with_the_parity_of_the_barrier():
    bench, _ = cluster_bench()
    barriers = [bench.barrier(1032, 1024, rank) for rank in range(4)]
    text = load_text(2, "cluster", more=".multicast::cluster.cta_group::2", operands=", %rs1")
    registers = {"rd1": PARAM_BASE, "r1": 2048, "r3": 0, "r4": 5, "rs1": 0b1111}
    bench.issue(text, rank=3, r2=shared_of(0, 1032), **registers)
    assert [barrier.phase for barrier in barriers] == [1, 0, 1, 0]
    bench.issue(text, rank=3, r2=1032, **registers)
    assert [barrier.phase for barrier in barriers] == [1, 1, 1, 1]


def test_destination_in_another_cta():
    bench, array = cluster_bench()
    barrier = bench.barrier(1032, 512, 2)
    registers = {"rd1": PARAM_BASE, "r1": shared_of(2, 4096), "r3": 0, "r4": 0}
    bench.issue(load_text(2, "cluster"), rank=0, r2=shared_of(2, 1032), **registers)
    assert barrier.phase == 1
    np.testing.assert_array_equal(
        bench.read_shared(4096, 512, 2).view(np.float32), array[:4].ravel()
    )
    with pytest.raises(Fault, match="not-shared"):
        bench.issue(load_text(2, "cta"), rank=0, r2=1032, **registers)


@pytest.mark.parametrize(
    ("group", "fine"), [("", False), (".cta_group::1", False), (".cta_group::2", True)]
)
def test_a_barrier_in_the_peer_needs_a_cta_group_of_two(group, fine):
    bench, _ = cluster_bench()
    barrier = bench.barrier(1032, 512, 0)
    far = bench.barrier(1032, 512, 3)
    registers = {"rd1": PARAM_BASE, "r1": 4096, "r3": 0, "r4": 0}
    text = load_text(2, "cluster", more=group)
    if fine:
        bench.issue(text, rank=1, r2=shared_of(0, 1032), **registers)
        assert barrier.phase == 1
    else:
        with pytest.raises(Fault, match="copy-barrier-elsewhere"):
            bench.issue(text, rank=1, r2=shared_of(0, 1032), **registers)
    with pytest.raises(Fault, match="copy-barrier-elsewhere"):
        bench.issue(text, rank=1, r2=shared_of(3, 1032), **registers)
    assert far.phase == 0


@pytest.mark.parametrize("mask", [0, 0b10000])
def test_multicast_masks_that_name_nobody(mask):
    bench, _ = cluster_bench()
    bench.barrier(1032, 512)
    text = load_text(2, "cluster", more=".multicast::cluster", operands=", %rs1")
    with pytest.raises(Fault, match="multicast-mask"):
        bench.issue(text, rd1=PARAM_BASE, r1=2048, r2=1032, r3=0, r4=0, rs1=mask)


# --- gather4 -----------------------------------------------------------------------------------

GATHER = load_text(2, mode=".tile::gather4", coordinates=5)


@pytest.mark.parametrize("swizzle", ["none", "128B", "128B_ATOM_32B_FLIP_8B"])
def test_gather_of_four_rows(swizzle):
    array = random_array((30, 96), np.float16)
    for start, column, rows in itertools.product(
        (2048, 2048 + 512), (0, 64, -16), ((3, 29, 0, 3), (-1, 5, 30, 1 << 30))
    ):
        bench = Bench()
        tensor_map = map_of(bench.lend(array), array, (64, 1), swizzle=swizzle)
        bench.launch.param_bytes = tensor_map.to_bytes()
        barrier = bench.barrier(1024, 512)
        registers = {f"r{4 + i}": row for i, row in enumerate(rows)}
        bench.issue(GATHER, rd1=PARAM_BASE, r1=start, r2=1024, r3=column, **registers)
        assert barrier.phase == 1
        places = [swizzled(start + i, swizzle) for i in range(512)]
        got = bench.shared.data[places].view(np.float16).reshape(4, 64)
        for i, row in enumerate(rows):
            for j in range(64):
                inside = 0 <= row < 30 and 0 <= column + j < 96
                assert got[i, j] == (array[row, column + j] if inside else 0)


def test_gather_needs_a_box_of_one_row():
    array = random_array((30, 64), np.float16)
    bench = Bench()
    bench.launch.param_bytes = map_of(bench.lend(array), array, (64, 4)).to_bytes()
    bench.barrier(1024, 512)
    with pytest.raises(Fault, match="tma-box-mismatch"):
        bench.issue(GATHER, rd1=PARAM_BASE, r1=2048, r2=1024, r3=0, r4=0, r5=1, r6=2, r7=3)


def test_all_lanes_may_gather():
    array = random_array((128, 64), np.float16)
    bench = Bench()
    bench.launch.param_bytes = map_of(bench.lend(array), array, (64, 1)).to_bytes()
    barrier = bench.barrier(1024, 32 * 512)
    rows = {f"r{4 + i}": 4 * np.arange(32) + i for i in range(4)}
    bench.issue(
        GATHER, mask=ALL, rd1=PARAM_BASE, r1=2048 + 512 * np.arange(32), r2=1024, r3=0, **rows
    )
    assert barrier.phase == 1
    got = bench.read_shared(2048, 32 * 512).view(np.float16)
    np.testing.assert_array_equal(got, array.ravel())


@pytest.mark.parametrize(("dtype", "column"), [(np.float16, 4), (np.float16, -1), (np.float32, 2)])
@pytest.mark.parametrize("swizzle", ["none", "64B"])
def test_columns_that_an_h200_refuses(dtype, column, swizzle):
    array = random_array((8, 64), dtype)
    bench = Bench(ignore=())
    box = (64 // array.itemsize, 4)
    bench.launch.param_bytes = map_of(bench.lend(array), array, box, swizzle=swizzle).to_bytes()
    bench.barrier(1024, 256)
    operands = {"rd1": PARAM_BASE, "r1": 2048, "r2": 1024, "r4": 0}
    with pytest.raises(Fault, match=r"tma-coordinate-misaligned.*16 bytes"):
        bench.issue(load_text(2), r3=column, **operands)
    bench.issue(load_text(2), r3=-16 // array.itemsize, **operands)
