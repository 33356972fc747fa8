"""Bulk copies and reductions of contiguous bytes."""

import ml_dtypes
import numpy as np
import pytest
from copies_fakes import Bench
from test_copies_tma_load import shared_of
from test_copies_tma_store import UPDATES

from cakert.sim.faults import Fault

TX = "mbarrier::complete_tx::bytes"
BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {
    "f16": np.float16,
    "bf16": BF16,
    "f32": np.float32,
    "f64": np.float64,
    "b32": np.uint32,
    "u32": np.uint32,
    "s32": np.int32,
    "b64": np.uint64,
    "u64": np.uint64,
    "s64": np.int64,
}


def random_bytes(nbytes, seed=0):
    return np.random.default_rng(seed).integers(1, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("space", ["shared::cta", "shared::cluster"])
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_global_to_shared(space, schedule):
    bench = Bench(schedule=schedule)
    data = random_bytes(512)
    barrier = bench.barrier(1024, 256)
    text = f"cp.async.bulk.{space}.global.{TX} [%r1], [%rd1+32], 256, [%r2];"
    bench.issue(text, r1=2064, rd1=bench.lend(data), r2=1024)
    bench.launch.engine.drain()
    assert barrier.phase == 1
    np.testing.assert_array_equal(bench.read_shared(2064, 256), data[32:288])
    assert bench.launch.counters == {"bulk-bytes": 256}


def test_size_from_a_register_and_a_cache_policy():
    bench = Bench()
    data = random_bytes(512)
    barrier = bench.barrier(1024, 2 * 48)
    text = f"cp.async.bulk.shared::cta.global.{TX}.L2::cache_hint [%r1], [%rd1], %r3, [%r2], %rd2;"
    lanes = np.arange(32)
    bench.issue(
        text, mask=5, r1=2048 + 64 * lanes, rd1=bench.lend(data), r2=1024, r3=48, rd2=1 << 60
    )
    assert barrier.phase == 1
    np.testing.assert_array_equal(bench.read_shared(2048, 48), data[:48])
    np.testing.assert_array_equal(bench.read_shared(2048 + 128, 48), data[:48])


def test_multicast():
    bench = Bench(ctas=4)
    data = random_bytes(128)
    barriers = [bench.barrier(1040, 128, rank) for rank in range(4)]
    text = (
        f"cp.async.bulk.shared::cluster.global.{TX}.multicast::cluster "
        "[%r1], [%rd1], 128, [%r2], %rs1;"
    )
    bench.issue(text, rank=2, r1=4096, rd1=bench.lend(data), r2=1040, rs1=0b1011)
    assert [barrier.phase for barrier in barriers] == [1, 1, 0, 1]
    for rank in (0, 1, 3):
        np.testing.assert_array_equal(bench.read_shared(4096, 128, rank), data)


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_shared_to_shared_of_another_cta(schedule):
    bench = Bench(ctas=2, schedule=schedule)
    data = random_bytes(64)
    bench.write_shared(2048, data, rank=0)
    barrier = bench.barrier(1024, 64, rank=1)
    text = f"cp.async.bulk.shared::cluster.shared::cta.{TX} [%r1], [%r2], 64, [%r3];"
    bench.issue(text, r1=shared_of(1, 8192), r2=2048, r3=shared_of(1, 1024))
    if schedule == "lazy":
        with pytest.raises(Fault, match="shared-in-flight"):
            bench.shared.generic_write(np.array([2050]), np.zeros(1, np.uint8), 0, None)
        with pytest.raises(Fault, match="shared-in-flight"):
            bench.ctas[1].shared.generic_read(np.array([8192]), 0, None)
    bench.launch.engine.drain()
    assert barrier.phase == 1
    np.testing.assert_array_equal(bench.read_shared(8192, 64, rank=1), data)
    bench.shared.generic_write(np.array([2050]), np.zeros(1, np.uint8), 0, None)
    bench.ctas[1].shared.generic_read(np.array([8192]), 0, None)


def test_byte_mask_of_a_store():
    bench = Bench()
    target = np.zeros(64, np.uint8)
    data = random_bytes(64)
    bench.write_shared(2048, data)
    text = "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], 64, %rs1;"
    mask = 0b1001_0000_1111_0010
    bench.issue(text, rd1=bench.lend(target), r1=2048, rs1=mask)
    for i in range(64):
        assert target[i] == (data[i] if mask >> (i % 16) & 1 else 0)


REDUCTIONS = [
    *(("add", t) for t in ("u32", "s32", "u64", "f16", "bf16", "f32", "f64")),
    *((op, t) for op in ("min", "max") for t in ("u32", "s32", "u64", "s64", "f16", "bf16")),
    *((op, "u32") for op in ("inc", "dec")),
    *((op, t) for op in ("and", "or", "xor") for t in ("b32", "b64")),
]


@pytest.mark.parametrize(("operation", "element"), REDUCTIONS)
def test_reductions_into_global_memory(operation, element):
    dtype = np.dtype(TYPES[element])
    rng = np.random.default_rng(2)
    low = 1 if dtype.kind == "u" else -90
    old = rng.integers(low, 100, 64 // dtype.itemsize).astype(dtype)
    source = rng.integers(low, 100, 64 // dtype.itemsize).astype(dtype)
    expected = [UPDATES[operation](a, b) for a, b in zip(old, source, strict=True)]
    bench = Bench()
    bench.write_shared(2048, source)
    noftz = ".noftz" if operation == "add" and element in ("f16", "bf16") else ""
    text = (
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{noftz}.{element} "
        "[%rd1], [%r1], 64;"
    )
    bench.issue(text, rd1=bench.lend(old), r1=2048)
    np.testing.assert_array_equal(old.astype(np.float64), np.array(expected, np.float64))


@pytest.mark.parametrize("operation", ["add", "min", "max", "inc", "dec"])
def test_reductions_into_shared_memory(operation):
    bench = Bench(ctas=2, schedule="lazy")
    rng = np.random.default_rng(4)
    old, first, second = (rng.integers(1, 9, 16).astype(np.uint32) for _ in range(3))
    barrier = bench.barrier(1024, 128, rank=1)
    bench.write_shared(4096, old, rank=1)
    bench.write_shared(2048, first)
    bench.write_shared(2112, second)
    text = (
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{TX}.{operation}.u32 "
        "[%r1], [%r2], 64, [%r3];"
    )
    registers = {"r1": shared_of(1, 4096), "r3": shared_of(1, 1024)}
    bench.issue(text, r2=2048, **registers)
    bench.issue(text, r2=2112, **registers)
    bench.launch.engine.drain()
    update = UPDATES[operation]
    # Lazy: the younger one first.
    expected = [update(update(a, c), b) for a, b, c in zip(old, first, second, strict=True)]
    assert bench.read_shared(4096, 64, rank=1).view(np.uint32).tolist() == expected
    assert barrier.phase == 1


@pytest.mark.parametrize(
    ("destination", "offset", "nbytes", "reason"),
    [(2056, 0, 64, "0x808"), (2048, 8, 64, "address"), (2048, 0, 40, "size 40")],
)
def test_misaligned_copies(destination, offset, nbytes, reason):
    bench = Bench()
    data = np.zeros(256, np.uint8)
    address = -(-bench.lend(data) // 16) * 16
    bench.barrier(1024, 64)
    text = f"cp.async.bulk.shared::cta.global.{TX} [%r1], [%rd1], %r3, [%r2];"
    with pytest.raises(Fault, match=reason) as raised:
        bench.issue(text, r1=destination, rd1=address + offset, r2=1024, r3=nbytes)
    assert raised.value.name == "bulk-misaligned"
    text = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r3;"
    with pytest.raises(Fault, match="bulk-misaligned"):
        bench.issue(text, r1=destination, rd1=address + offset, r3=nbytes)
    prefetch = "cp.async.bulk.prefetch.L2.global [%rd1], %r3;"
    if destination == 2048:
        with pytest.raises(Fault, match="bulk-misaligned"):
            bench.issue(prefetch, rd1=address + offset, r3=nbytes)


def test_prefetches_are_checked():
    bench = Bench()
    data = np.zeros(256, np.uint8)
    address = -(-bench.lend(data) // 16) * 16
    bench.issue("cp.async.bulk.prefetch.L2.global [%rd1], 128;", rd1=address)
    with pytest.raises(Fault, match="global-out-of-bounds"):
        bench.issue("cp.async.bulk.prefetch.L2.global [%rd1], 1024;", rd1=address)
    bench.issue("prefetch.global.L2 [%rd1];", rd1=12345)


def test_out_of_bounds_shows_at_the_copy():
    bench = Bench()
    data = np.zeros(272, np.uint8)
    address = -(-bench.lend(data) // 16) * 16
    bench.barrier(1024, 512)
    text = f"cp.async.bulk.shared::cta.global.{TX} [%r1], [%rd1], 512, [%r2];"
    with pytest.raises(Fault, match="global-out-of-bounds"):
        bench.issue(text, r1=2048, rd1=address, r2=1024)
