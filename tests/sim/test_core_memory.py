"""Shared and global memory of the simulator: values, bounds, and what the shadow finds."""

from types import SimpleNamespace

import numpy as np
import pytest

from cakert.sim.core.global_memory import GlobalMemory
from cakert.sim.core.shared_memory import ProxyClock, SharedMemory
from cakert.sim.faults import Fault, Where

BASE = 1024
WHERE = Where("kernel", 7, "cp.async.bulk [%r1]", (2, 0, 0), 1)


def warp(index, synchronised=0):
    return SimpleNamespace(index=index, synchronised=synchronised)


def operation(name="copy", where=WHERE):
    return SimpleNamespace(name=name, where=where)


@pytest.fixture
def rng():
    return np.random.default_rng()


@pytest.fixture
def shared():
    return SharedMemory(4096)


def addresses(start, count):
    return np.arange(start, start + count, dtype=np.int64)


def write(memory, start, values, thread=0):
    memory.generic_write(addresses(start, len(values)), values, thread, WHERE)


def named(name):
    return pytest.raises(Fault, match=rf"\[{name}\]")


def test_bytes_come_back(shared, rng):
    values = rng.integers(1, 256, 64, np.uint8)
    places = rng.permutation(4096)[:64] + BASE
    shared.generic_write(places, values, np.arange(64), WHERE)
    np.testing.assert_array_equal(shared.generic_read(places, 0, WHERE), values)
    np.testing.assert_array_equal(shared.data[places], values)


@pytest.mark.parametrize("start", [0, BASE - 1, BASE + 4096 - 15])
def test_the_window_has_ends(shared, rng, start):
    values = rng.integers(1, 256, 16, np.uint8)
    with named("shared-out-of-bounds"):
        shared.async_write((start, 16), values, WHERE)
    with named("shared-out-of-bounds"):
        write(shared, start, values)
    shared.proxy_fence(warp(0), 1)
    shared.async_write((BASE, 4096), np.full(4096, 3, np.uint8), WHERE)
    with named("shared-out-of-bounds"):
        shared.generic_read(addresses(start, 16), 0, WHERE)
    with named("shared-out-of-bounds"):
        shared.async_read((start, 16), WHERE)


def test_memory_nobody_wrote_is_found_byte_by_byte(shared, rng):
    write(shared, BASE, rng.integers(1, 256, 15, np.uint8))
    shared.generic_read(addresses(BASE, 15), 0, WHERE)
    for read in (
        lambda: shared.generic_read(addresses(BASE, 16), 0, WHERE),
        lambda: shared.async_read((BASE + 15, 1), WHERE),
    ):
        with named("uninitialised-shared"):
            read()


def test_a_generic_write_needs_a_fence_of_its_thread(shared, rng):
    values = rng.integers(1, 256, 16, np.uint8)
    write(shared, BASE, values, thread=5)
    with named("missing-proxy-fence"):
        shared.async_read((BASE, 16), WHERE)
    shared.proxy_fence(warp(0), 0xFFFFFFFF & ~(1 << 5))
    with named("missing-proxy-fence"):
        shared.async_read((BASE, 16), WHERE)
    shared.proxy_fence(warp(0), 1 << 5)
    np.testing.assert_array_equal(shared.async_read((BASE, 16), WHERE), values)


def test_a_fence_before_the_write_does_not_count(shared, rng):
    shared.proxy_fence(warp(0), 0xFFFFFFFF)
    write(shared, BASE, rng.integers(1, 256, 16, np.uint8), thread=5)
    with named("missing-proxy-fence"):
        shared.async_read((BASE, 16), WHERE)


def test_a_fence_of_the_issuing_warp_counts_after_it_synchronised(shared, rng):
    write(shared, BASE, rng.integers(1, 256, 16, np.uint8), thread=5)
    shared.proxy_fence(warp(1), 1)  # before it met the writer at a barrier: WHERE is of warp 1
    with named("missing-proxy-fence"):
        shared.async_read((BASE, 16), WHERE)
    shared.proxy_fence(warp(1, synchronised=shared.now()), 1)
    shared.async_read((BASE, 16), WHERE)


def test_an_asynchronous_write_over_a_generic_one_needs_the_fence(shared, rng):
    values = rng.integers(1, 256, 16, np.uint8)
    write(shared, BASE, values, thread=5)
    with named("missing-proxy-fence"):
        shared.async_write((BASE, 16), values, WHERE)
    shared.proxy_fence(warp(0), 1 << 5)
    shared.async_write((BASE, 16), values, WHERE)


def test_a_writer_of_another_cta_fences_for_itself(rng):
    clock = ProxyClock()
    own, other = (SharedMemory(4096, rank=rank, clock=clock) for rank in (0, 1))
    values = rng.integers(1, 256, 16, np.uint8)
    own.generic_write(addresses(BASE, 16), values, 3, WHERE, rank=1)
    own.proxy_fence(warp(0), 1 << 3)  # thread 3 of the wrong CTA
    with pytest.raises(Fault, match=r"missing-proxy-fence.*thread 3 of CTA 1"):
        own.async_read((BASE, 16), WHERE)
    other.proxy_fence(warp(0), 1 << 3)
    np.testing.assert_array_equal(own.async_read((BASE, 16), WHERE), values)


def test_hundreds_of_readers_in_flight_are_counted(shared, rng):
    write(shared, BASE, rng.integers(1, 256, 16, np.uint8))
    for _ in range(256):
        shared.begin_async(operation(), [(BASE, 16)], [])
    with named("shared-in-flight"):
        write(shared, BASE, np.ones(1, np.uint8))


def test_what_the_asynchronous_proxy_wrote_needs_no_fence(shared, rng):
    values = rng.integers(1, 256, 16, np.uint8)
    write(shared, BASE, values, thread=5)
    shared.proxy_fence(warp(0), 1 << 5)
    shared.async_write((BASE, 16), values[::-1].copy(), WHERE)
    np.testing.assert_array_equal(shared.async_read(addresses(BASE, 16), WHERE), values[::-1])


def test_accesses_that_an_operation_in_flight_forbids(shared, rng):
    values = rng.integers(1, 256, 64, np.uint8)
    write(shared, BASE, values)
    reader, writer = operation("mma"), operation("load")
    shared.begin_async(reader, [(BASE, 16)], [])
    shared.begin_async(writer, [], [(BASE + 32, 16)])
    shared.generic_read(addresses(BASE, 16), 0, WHERE)
    with pytest.raises(Fault, match=r"shared-in-flight.*mma \(line 7.*will read"):
        write(shared, BASE + 15, values[:1])
    with pytest.raises(Fault, match=r"shared-in-flight.*load \(line 7.*will write"):
        shared.generic_read(addresses(BASE + 47, 1), 0, WHERE)
    with named("shared-in-flight"):
        shared.begin_async(operation(), [], [(BASE + 8, 16)])
    with named("shared-in-flight"):
        shared.begin_async(operation(), [(BASE + 40, 1)], [])
    shared.begin_async(operation(), [(BASE + 8, 16)], [])
    shared.end_async(writer)
    shared.generic_read(addresses(BASE + 47, 1), 0, WHERE)


def test_overlapping_readers_are_counted(shared, rng):
    write(shared, BASE, rng.integers(1, 256, 16, np.uint8))
    first, second = operation(), operation()
    shared.begin_async(first, [(BASE, 16)], [])
    shared.begin_async(second, [(BASE, 16)], [])
    shared.end_async(first)
    with named("shared-in-flight"):
        write(shared, BASE, np.ones(1, np.uint8))
    shared.end_async(second)
    shared.end_async(second)
    write(shared, BASE, np.ones(1, np.uint8))


def test_an_mbarrier_cannot_be_overwritten(shared):
    shared.reserve(BASE + 8, 8, "the mbarrier of line 12")
    with pytest.raises(Fault, match=r"mbarrier-overwritten.*line 12"):
        write(shared, BASE + 15, np.ones(1, np.uint8))
    with named("mbarrier-overwritten"):
        shared.async_write((BASE, 16), np.ones(16, np.uint8), WHERE)
    shared.release(BASE + 8, 8)
    write(shared, BASE + 15, np.ones(1, np.uint8))


def test_an_ignored_fault_lets_the_access_happen(rng):
    seen = []
    memory = SharedMemory(256, lambda name, message, **place: seen.append(name))
    values = rng.integers(1, 256, 4, np.uint8)
    memory.generic_write(addresses(BASE + 254, 4), values, 0, WHERE)
    assert seen == ["shared-out-of-bounds"] * 2
    np.testing.assert_array_equal(memory.data[-2:], values[:2])
    assert memory.generic_read(addresses(BASE, 1), 0, WHERE)[0] == 0xFF
    assert seen[-1] == "uninitialised-shared"


def lend(memory, array, writable=True, name="array"):
    memory.register(array.ctypes.data, array.nbytes, writable, name, array)
    return array.ctypes.data


def test_global_ranges(rng):
    memory = GlobalMemory()
    block = rng.integers(1, 256, 4096, np.uint8)
    first = block[:1000]
    second = block[1000:2000]
    start = lend(memory, first, name="first")
    lend(memory, second, writable=False, name="second")
    np.testing.assert_array_equal(memory.view(start + 10, 20), first[10:30])
    memory.view(start + 10, 20, write=True)[:] = 7
    assert (first[10:30] == 7).all()
    with pytest.raises(Fault, match=r"global-out-of-bounds.*across the end of first"):
        memory.view(start + 999, 2)
    with pytest.raises(Fault, match="second, lent read-only"):
        memory.view(start + 1000, 2, write=True)
    with pytest.raises(Fault, match=r"0 byte.s. past the end of second"):
        memory.view(start + 2000, 1)
    with pytest.raises(Fault, match=r"1 byte.s. before first"):
        memory.view(start - 1, 1)
    memory.unregister(start)
    with pytest.raises(Fault):
        memory.view(start, 1)
    assert len(memory) == 1


def test_a_message_names_the_nearer_range(rng):
    memory = GlobalMemory()
    block = rng.integers(1, 256, 4096, np.uint8)
    start = lend(memory, block[:1024], name="first")
    lend(memory, block[2048:], name="second")
    with pytest.raises(Fault, match=r"8 byte.s. past the end of first"):
        memory.view(start + 1032, 4)
    with pytest.raises(Fault, match=r"8 byte.s. before second"):
        memory.view(start + 2040, 4)


def test_many_ranges_are_found_whatever_the_order(rng):
    memory = GlobalMemory()
    block = rng.integers(1, 256, 64 * 100, np.uint8)
    order = rng.permutation(100)
    for number in order:
        lend(memory, block[64 * number : 64 * number + 48], name=f"range {number}")
    for number in rng.permutation(100):
        at = block.ctypes.data + 64 * int(number)
        np.testing.assert_array_equal(memory.view(at, 48), block[64 * number : 64 * number + 48])
        with pytest.raises(Fault):
            memory.view(at + 48, 1)


def test_ranges_do_not_overlap(rng):
    memory = GlobalMemory()
    block = rng.integers(1, 256, 256, np.uint8)
    lend(memory, block[64:128])
    for part in (block[:65], block[127:], block[80:90], block):
        with pytest.raises(ValueError, match="overlaps array, which is lent already"):
            lend(memory, part)
    with pytest.raises(ValueError, match="cannot lend"):
        memory.register(block.ctypes.data, 0, True, "empty")
    with pytest.raises(KeyError):
        memory.unregister(block.ctypes.data)
