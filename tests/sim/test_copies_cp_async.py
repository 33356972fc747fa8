"""cp.async: sizes, zero fill, groups, arrivals on mbarriers."""

import numpy as np
import pytest
from copies_fakes import ALL, Bench

from cakert.sim.copies.ranges import runs
from cakert.sim.faults import Fault, UnsupportedInstruction

LANES = np.arange(32)
COMMIT = "cp.async.commit_group;"


def source(nbytes=4096, seed=0):
    return np.random.default_rng(seed).integers(1, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize(("cache", "width"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
def test_every_lane_copies_its_bytes(cache, width, schedule):
    bench = Bench(schedule=schedule)
    data = source()
    permuted = np.random.default_rng(1).permutation(32)
    mask = 0xF0F0FF0F
    text = f"cp.async.{cache}.shared::cta.global.L2::128B [%r1], [%rd1+64], {width};"
    address = bench.lend(data)
    bench.issue(text, mask=mask, r1=2048 + width * permuted, rd1=address + 3 * width * LANES)
    bench.launch.engine.drain()
    for lane in range(32):
        got = bench.read_shared(2048 + width * int(permuted[lane]), width)
        first = 64 + 3 * width * lane
        expected = data[first : first + width] if mask >> lane & 1 else np.full(width, 0xFF)
        np.testing.assert_array_equal(got, expected)
    assert bench.launch.counters == {"cp-async-bytes": width * mask.bit_count()}


def test_src_size_fills_with_zeros_and_touches_no_more():
    bench = Bench()
    data = source(32 * 16)
    address = bench.lend(data)
    sizes = LANES % 17
    # The lane that reads nothing has an address that nobody lent.
    addresses = np.where(sizes == 0, 16, address + 16 * LANES)
    text = "cp.async.ca.shared.global [%r1], [%rd1], 16, %r2;"
    bench.issue(text, mask=ALL, r1=2048 + 16 * LANES, rd1=addresses, r2=sizes)
    got = bench.read_shared(2048, 512).reshape(32, 16)
    for lane in range(32):
        n = int(sizes[lane])
        np.testing.assert_array_equal(got[lane, :n], data[16 * lane : 16 * lane + n])
        assert not got[lane, n:].any()
    assert bench.launch.counters == {"cp-async-bytes": int(sizes.sum())}
    # A partial read stops before the end of the memory.
    bench.issue(
        "cp.async.ca.shared.global [%r1], [%rd1], 16, 4;", r1=2048, rd1=address + 32 * 16 - 16
    )
    with pytest.raises(Fault, match="cp-async-size"):
        bench.issue(text, r1=2048, rd1=address, r2=17)


@pytest.mark.parametrize("negated", [False, True])
def test_ignore_src(negated):
    bench = Bench()
    data = source(512)
    address = bench.lend(data)
    holds = 0x00FF00FF
    text = f"cp.async.cg.shared.global [%r1], [%rd1], 16, {'!' if negated else ''}%p1;"
    addresses = address + 16 * LANES
    bench.issue(text, mask=ALL, r1=2048 + 16 * LANES, rd1=addresses, p1=holds)
    got = bench.read_shared(2048, 512).reshape(32, 16)
    for lane in range(32):
        ignored = bool(holds >> lane & 1) != negated
        expected = np.zeros(16) if ignored else data[16 * lane : 16 * lane + 16]
        np.testing.assert_array_equal(got[lane], expected)


def test_cache_policies_are_the_last_operand():
    bench = Bench()
    data = source(512)
    registers = {"r1": 2048, "rd1": bench.lend(data), "rd2": 1}
    bench.issue("cp.async.ca.shared.global.L2::cache_hint [%r1], [%rd1], 8, %rd2;", **registers)
    assert (bench.read_shared(2048, 8) == data[:8]).all()
    text = "cp.async.cg.shared.global.L2::cache_hint.L2::256B [%r1], [%rd1], 16, %r2, %rd2;"
    bench.issue(text, r2=3, **registers)
    assert bench.read_shared(2048, 16).tolist() == [*data[:3], *[0] * 13]


def test_lanes_in_two_allocations_and_out_of_bounds():
    bench = Bench()
    first, second = source(64, 1), source(64, 2)
    one, two = bench.lend(first), bench.lend(second)
    text = "cp.async.cg.shared.global [%r1], [%rd1], 16;"
    bench.issue(text, mask=3, r1=2048 + 16 * LANES, rd1=np.where(LANES == 0, one, two + 16))
    got = bench.read_shared(2048, 32)
    np.testing.assert_array_equal(got, np.concatenate([first[:16], second[16:32]]))
    with pytest.raises(Fault, match="global-out-of-bounds"):
        bench.issue(text, mask=7, r1=2048 + 16 * LANES, rd1=one + 32 * LANES)


@pytest.mark.parametrize(("target", "offset", "what"), [(2056, 0, "shared"), (2048, 8, "global")])
def test_misaligned(target, offset, what):
    bench = Bench()
    address = bench.lend(source(256))
    with pytest.raises(Fault, match=f"{what} address") as raised:
        bench.issue("cp.async.ca.shared.global [%r1], [%rd1], 16;", r1=target, rd1=address + offset)
    assert raised.value.name == "cp-async-misaligned"


def test_the_destination_is_in_the_executing_cta():
    bench = Bench(ctas=2)
    data = source(64)
    text = "cp.async.cg.shared.global [%r1], [%rd1], 16;"
    registers = {"rank": 1, "rd1": bench.lend(data)}
    with pytest.raises(Fault, match="not-shared"):
        bench.issue(text, r1=1 << 24 | 2048, **registers)
    bench.issue(text, r1=2 << 24 | 2048, **registers)
    np.testing.assert_array_equal(bench.read_shared(2048, 16, rank=1), data[:16])


def test_a_pending_count_may_not_overflow():
    bench, address = lazy_bench()
    bench.barrier(1024, count=(1 << 20) - 16)
    copy(bench, address, 0)
    with pytest.raises(Fault, match="mbarrier-count"):
        bench.issue(ARRIVE.format(""), mask=ALL, r1=1024)


def test_data_comes_through_the_generic_proxy_of_the_issuing_thread():
    bench = Bench()
    text = "cp.async.cg.shared.global [%r1], [%rd1], 16;"
    bench.issue(text, warp=1, mask=2, r1=2048, rd1=bench.lend(source(64)))
    with pytest.raises(Fault, match="thread 33 wrote it"):
        bench.shared.async_read((2048, 16), None)


def test_the_destination_is_in_use_until_the_copy_is_done():
    bench = Bench(schedule="lazy")
    text = "cp.async.cg.shared.global [%r1], [%rd1], 16;"
    bench.issue(text, mask=3, r1=2048 + 64 * LANES, rd1=bench.lend(source(64)))
    for place in (2048, 2063, 2112):
        with pytest.raises(Fault, match="shared-in-flight"):
            bench.shared.generic_write(np.array([place]), np.zeros(1, np.uint8), 0, None)
    bench.shared.generic_write(np.array([2064]), np.zeros(1, np.uint8), 0, None)
    bench.launch.engine.drain()
    bench.shared.generic_read(np.array([2048, 2112]), 0, None)


def test_a_late_copy_reads_late():
    bench = Bench(schedule="lazy")
    data = source(64)
    bench.issue("cp.async.cg.shared.global [%r1], [%rd1], 16;", r1=2048, rd1=bench.lend(data))
    data[:16] = 77
    bench.launch.engine.drain()
    assert (bench.read_shared(2048, 16) == 77).all()


# --- groups ------------------------------------------------------------------------------------


def lazy_bench():
    bench = Bench(schedule="lazy")
    return bench, bench.lend(source(4096))


def copy(bench, address, slot, mask=ALL, warp=0):
    text = "cp.async.ca.shared.global [%r1], [%rd1], 4;"
    bench.issue(text, mask=mask, warp=warp, r1=2048 + 128 * slot + 4 * LANES, rd1=address)


def wait(bench, count, mask=ALL, warp=0):
    text = "cp.async.wait_all;" if count is None else f"cp.async.wait_group {count};"
    return bench.issue(text, mask=mask, warp=warp)


def complete_oldest(bench):
    engine = bench.launch.engine
    engine._perform(min(engine._free))


def test_groups_complete_in_order_of_commit():
    bench, address = lazy_bench()
    for slot in range(3):
        copy(bench, address, 2 * slot)
        copy(bench, address, 2 * slot + 1)
        bench.issue(COMMIT, mask=ALL)
    waits = [wait(bench, n) for n in range(3)]
    assert wait(bench, 3) is None
    assert "cp.async.ca" in waits[0].describe() and "line" in waits[0].describe()
    for done in range(1, 7):
        complete_oldest(bench)
        assert [w.ready() for w in waits] == [done >= 6, done >= 4, done >= 2]
    assert wait(bench, 0) is None


def test_the_youngest_group_does_not_stand_for_the_older_ones():
    bench, address = lazy_bench()
    for slot in range(2):
        copy(bench, address, slot)
        bench.issue(COMMIT, mask=ALL)
    blocked = wait(bench, 1)
    bench.launch.engine.perform_one()  # lazy: the second group
    assert not blocked.ready()


def test_uncommitted_copies_need_wait_all():
    bench, address = lazy_bench()
    copy(bench, address, 0)
    assert wait(bench, 0) is None
    blocked = wait(bench, None)
    assert not blocked.ready()
    bench.launch.engine.drain()
    assert blocked.ready()


def test_threads_have_groups_of_their_own():
    bench, address = lazy_bench()
    copy(bench, address, 0, mask=0x0000FFFF)
    bench.issue(COMMIT, mask=0x0000FFFF)
    copy(bench, address, 1, mask=0xFFFF0000)
    bench.issue(COMMIT, mask=0xFFFF0000)
    low, high = wait(bench, 0, 0x0000FFFF), wait(bench, 0, 0xFFFF0000)
    # For each half, the group of the other does not count as a newer one.
    assert wait(bench, 1, 0x0000FFFF) is None and wait(bench, 1, 0xFFFF0000) is None
    assert wait(bench, 0, ALL, warp=1) is None
    complete_oldest(bench)
    assert low.ready() and not high.ready()


def test_part_of_a_warp_may_commit_later():
    bench, address = lazy_bench()
    copy(bench, address, 0)
    bench.issue(COMMIT, mask=0xFF)
    assert wait(bench, 0, 0xFF00) is None
    assert wait(bench, 0, 0xFF) is not None
    bench.issue(COMMIT, mask=0xFFFFFF00)
    assert wait(bench, 0, 0xFF00) is not None
    bench.issue(COMMIT, mask=0xFF)
    assert wait(bench, 1, 0xFF) is not None
    assert wait(bench, 2, 0xFF) is None


def test_a_group_holds_the_copies_of_its_own_thread_only():
    bench, address = lazy_bench()
    copy(bench, address, 0, mask=0xFF)
    bench.issue(COMMIT, mask=ALL)
    assert wait(bench, 0, 0xFF00) is None
    assert wait(bench, 0, 0x80) is not None


def test_an_empty_group_counts():
    bench, address = lazy_bench()
    copy(bench, address, 0)
    bench.issue(COMMIT, mask=ALL)
    bench.issue(COMMIT, mask=ALL)
    assert wait(bench, 1) is not None and wait(bench, 2) is None


# --- mbarriers ---------------------------------------------------------------------------------

ARRIVE = "cp.async.mbarrier.arrive{}.shared::cta.b64 [%r1];"


def test_noinc_arrivals_count_against_the_initial_count():
    bench, address = lazy_bench()
    barrier = bench.barrier(1024, count=64)
    for warp in range(2):
        copy(bench, address, warp, warp=warp)
        bench.issue(ARRIVE.format(".noinc"), mask=ALL, warp=warp, r1=1024)
    assert barrier.pending == 64
    complete_oldest(bench)
    assert (barrier.pending, barrier.phase) == (32, 0)
    complete_oldest(bench)
    assert (barrier.pending, barrier.phase) == (64, 1)


def test_arrivals_without_noinc_leave_the_count_as_it_was():
    bench, address = lazy_bench()
    barrier = bench.barrier(1024, count=32)
    copy(bench, address, 0)
    bench.issue(ARRIVE.format(""), mask=ALL, r1=1024)
    assert barrier.pending == 64
    barrier.arrive(32)
    assert barrier.phase == 0
    bench.launch.engine.drain()
    assert (barrier.pending, barrier.phase) == (32, 1)


def test_an_arrival_waits_for_all_earlier_copies_of_its_lane():
    bench, address = lazy_bench()
    barrier = bench.barrier(1024, count=32)
    copy(bench, address, 0, mask=0xFFFF)
    bench.issue(COMMIT, mask=0xFFFF)
    copy(bench, address, 1, mask=0xFF)
    bench.issue(ARRIVE.format(".noinc"), mask=ALL, r1=1024)
    assert barrier.pending == 16, "lanes without copies arrive at once"
    copy(bench, address, 2)
    complete_oldest(bench)
    assert barrier.pending == 8
    complete_oldest(bench)
    assert barrier.phase == 1, "later copies are not waited for"


def test_lanes_may_name_different_barriers():
    bench, address = lazy_bench()
    low, high = bench.barrier(1024, count=16), bench.barrier(1032, count=16)
    copy(bench, address, 0)
    bench.issue(ARRIVE.format(".noinc"), mask=ALL, r1=1024 + 8 * (LANES >= 16))
    assert low.phase == high.phase == 0
    bench.launch.engine.drain()
    assert low.phase == high.phase == 1


def test_generic_barrier_address():
    bench = Bench()
    barrier = bench.barrier(1024, count=1)
    bench.issue("cp.async.mbarrier.arrive.noinc.b64 [%rd1];", rd1=(1 << 48) + 1024)
    assert barrier.phase == 1


def test_runs_join_neighbours():
    assert runs(np.array([64, 0, 16, 96, 80, 16]), 16) == [(0, 32), (64, 48)]
    assert runs(np.array([7]), 4) == [(7, 4)]


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.cg.shared.global [%r1], [%rd1], 8;",
        "cp.async.ca.shared.global [%r1], [%rd1], 12;",
        "cp.async.ca.shared.global [%r1], [%rd1], %r2;",
        "cp.async.wait_group %r1;",
    ],
)
def test_forms_that_ptxas_refuses(text):
    with pytest.raises(UnsupportedInstruction, match=r"^line \d+: "):
        Bench().bind(text)
