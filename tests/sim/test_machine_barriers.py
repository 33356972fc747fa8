"""Named barriers, cluster barriers, setmaxnreg, fences and launch control, one by one."""

import numpy as np
import pytest
from machine_fakes import FULL, Bench, finish, run_programs

from cakert.sim.faults import Fault, UnsupportedInstruction
from cakert.sim.machine.registers import launch_registers


def fault_name(act):
    with pytest.raises(Fault) as info:
        act()
    return info.value.name


# --- named barriers -------------------------------------------------------------------------------


def test_bar_sync_takes_all_warps(monkeypatch):
    bench = Bench(monkeypatch, "bar.sync 0", block=(96, 1, 1))
    waits = [bench.step(0, bench.warp(i)) for i in (0, 2)]
    assert not any(wait.ready() for wait in waits)
    assert "not arrived: warps 1" in waits[0].describe()
    assert bench.step(0, bench.warp(1)) is None
    assert all(wait.ready() for wait in waits) and bench.ctas[0].sync_epoch == 1
    # The next use starts afresh.
    assert not bench.step(0, bench.warp(1)).ready() and waits[0].ready()


def test_exited_warps_are_not_waited_for_without_a_count(monkeypatch):
    bench = Bench(monkeypatch, "bar.sync 0", "bar.sync 1, 96", block=(96, 1, 1))
    waits = [bench.step(0, bench.warp(0)), bench.step(1, bench.warp(1))]
    bench.warp(2).live = 0
    bench.ctas[0].warp_exited()
    assert not any(wait.ready() for wait in waits)
    bench.warp(1).live = 0
    bench.ctas[0].warp_exited()
    assert [wait.ready() for wait in waits] == [True, False]


def test_producers_arrive_and_consumers_sync(monkeypatch):
    bench = Bench(
        monkeypatch, "bar.arrive %r1, 96", "barrier.cta.sync.aligned %r1, 96", block=(96, 1, 1)
    )
    for index in range(3):
        bench.set("%r1", 5, bench.warp(index))
    assert bench.step(0, bench.warp(0)) is None
    wait = bench.step(1, bench.warp(1))
    assert not wait.ready()
    assert bench.step(0, bench.warp(2)) is None
    assert wait.ready()


def test_lanes_of_a_warp_may_come_one_by_one_without_aligned(monkeypatch):
    bench = Bench(monkeypatch, "barrier.sync 3, 64", block=(64, 1, 1))
    first = bench.step(0, bench.warp(0), mask=0xFFFF)
    other = bench.step(0, bench.warp(1))
    assert not first.ready() and not other.ready()
    assert bench.step(0, bench.warp(0), mask=0xFFFF0000) is None
    assert first.ready() and other.ready()


def test_reductions(monkeypatch):
    bench = Bench(
        monkeypatch,
        "bar.red.popc.u32 %r2, 1, 64, %p1",
        "bar.red.and.pred %p2, 2, 64, !%p1",
        "barrier.cta.red.or.aligned.pred %p3, 3, 64, %p1",
        block=(64, 1, 1),
    )
    rng = np.random.default_rng()
    masks = [int(mask) for mask in rng.integers(1, 1 << 32, 2)]
    for index, mask in enumerate(masks):
        bench.set("%p1", mask, bench.warp(index))
    for number in range(3):
        wait = bench.step(number, bench.warp(0))
        assert bench.step(number, bench.warp(1)) is None
        finish(wait)
    for warp in (bench.warp(0), bench.warp(1)):
        assert (bench.get("%r2", warp) == sum(mask.bit_count() for mask in masks)).all()
        assert bench.get("%p2", warp) == 0 and bench.get("%p3", warp) == FULL


def test_barrier_faults(monkeypatch):
    bench = Bench(
        monkeypatch,
        "bar.arrive 1, 128",
        "bar.sync 1, 64",
        "bar.red.popc.u32 %r2, 1, 128, %p1",
        "bar.sync 2, 40",
        "bar.sync 3, 160",
        "bar.sync %r3, 64",
        block=(128, 1, 1),
    )
    bench.step(0, bench.warp(0))
    assert fault_name(lambda: bench.step(0, bench.warp(0))) == "barrier-double-arrival"
    assert fault_name(lambda: bench.step(1, bench.warp(1))) == "barrier-count"
    assert fault_name(lambda: bench.step(2, bench.warp(1))) == "barrier-mixed"
    assert fault_name(lambda: bench.step(3, bench.warp(1))) == "barrier-count"
    assert fault_name(lambda: bench.step(4, bench.warp(1))) == "barrier-count"
    bench.set("%r3", 16)
    assert fault_name(lambda: bench.step(5)) == "barrier-id"
    bench.set("%r3", np.arange(32) % 2)
    assert fault_name(lambda: bench.step(5)) == "barrier-divergent"


@pytest.mark.parametrize(
    "line",
    ["bar.sync 16", "bar.arrive 1", "bar.red.xor.pred %p1, 1, %p2", "bar.sync.aligned 1",
     "bar.red.popc.pred %p1, 1, %p2", "barrier.cluster.wait.release", "fence.proxy.sync",
     "fence.acq_rel.warp", "setmaxnreg.inc.sync.aligned.u32 44", "mapa.shared::cta.u32 %r1, %r2, 1",
     "clusterlaunchcontrol.try_cancel.async.b128 [%r1], [%r2]", "nanosleep.u64 4"],
)  # fmt: skip
def test_unknown_forms_are_refused(monkeypatch, line):
    with pytest.raises(UnsupportedInstruction, match="line 6"):
        Bench(monkeypatch, line)


# --- clusters -------------------------------------------------------------------------------------


def test_cluster_barrier_takes_all_live_threads(monkeypatch):
    bench = Bench(
        monkeypatch,
        "barrier.cluster.arrive.release.aligned",
        "barrier.cluster.wait.acquire.aligned",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        block=(64, 1, 1),
    )
    warps = [bench.warp(index, rank) for rank in (0, 1) for index in (0, 1)]
    for warp in warps[:3]:
        bench.step(0, warp)
    waits = [bench.step(1, warp) for warp in warps[:3]]
    assert not any(wait.ready() for wait in waits)
    assert "warp 1 of CTA (1, 0, 0) (rank 1)" in waits[0].describe()
    warps[3].live = 0
    bench.ctas[1].warp_exited()
    for wait in waits:
        finish(wait)
    assert [cta.sync_epoch for cta in bench.ctas] == [1, 1]


def test_cluster_barrier_phases_of_one_thread(monkeypatch):
    bench = Bench(monkeypatch, "barrier.cluster.arrive.relaxed", "barrier.cluster.wait")
    assert fault_name(lambda: bench.step(1)) == "cluster-barrier-no-arrival"
    assert bench.step(0, mask=1) is None
    assert fault_name(lambda: bench.step(0, mask=3)) == "cluster-barrier-double-arrival"
    wait = bench.step(1, mask=1)
    assert not wait.ready()
    bench.step(0, mask=FULL & ~1)
    assert wait.ready()
    assert bench.step(1, mask=FULL & ~1) is None


# --- setmaxnreg -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directives", "registers"),
    [
        ({"maxntid": (384, 1, 1), "minnctapersm": (1,)}, 168),
        ({"maxntid": (512, 1, 1), "minnctapersm": (1,)}, 128),
        ({"maxntid": (128, 1, 1), "minnctapersm": (2,)}, 256),
        ({"maxntid": (64, 3, 1), "minnctapersm": (4,)}, 80),
        ({"maxnreg": (100,)}, 104),
        ({"maxntid": (384, 1, 1)}, None),
        ({}, None),
    ],
)
def test_registers_of_a_launch(directives, registers):
    """168 for 384 threads is what ptxas 13.0 reports, and that it ignores the last two."""
    assert launch_registers(directives) == registers


BOUND = {"maxntid": (384, 1, 1), "minnctapersm": (1,)}


def test_inc_waits_for_registers(monkeypatch):
    bench = Bench(
        monkeypatch,
        "setmaxnreg.dec.sync.aligned.u32 24",
        "setmaxnreg.inc.sync.aligned.u32 240",
        block=(384, 1, 1),
        directives=BOUND,
    )
    pool = bench.ctas[0].registers
    waits = [bench.step(1, bench.warp(4 + i)) for i in range(8)]
    assert not any(wait.ready() for wait in waits)
    assert "72 more registers a thread (to 240)" in waits[0].describe()
    for index in range(4):
        assert bench.step(0, bench.warp(index)) is None
    for wait in waits:
        finish(wait)
    assert pool.held == [24] * 4 + [240] * 8 and pool.free == 0


def test_more_registers_than_the_pool_has(monkeypatch):
    bench = Bench(
        monkeypatch,
        "setmaxnreg.dec.sync.aligned.u32 40",
        "setmaxnreg.inc.sync.aligned.u32 240",
        block=(384, 1, 1),
        directives=BOUND,
    )
    for index in range(4):
        bench.step(0, bench.warp(index))
    waits = [bench.step(1, bench.warp(4 + index)) for index in range(8)]
    assert waits[:7] == [None] * 7 and not waits[7].ready()


def test_setmaxnreg_faults(monkeypatch):
    bench = Bench(
        monkeypatch,
        "setmaxnreg.dec.sync.aligned.u32 40",
        "setmaxnreg.dec.sync.aligned.u32 48",
        "setmaxnreg.dec.sync.aligned.u32 200",
        block=(384, 1, 1),
        directives=BOUND,
    )
    bench.step(0, bench.warp(0))
    assert fault_name(lambda: bench.step(1, bench.warp(1))) == "setmaxnreg-divergent"
    assert fault_name(lambda: bench.step(0, bench.warp(0))) == "setmaxnreg-unsynchronised"
    assert fault_name(lambda: bench.step(2, bench.warp(4))) == "setmaxnreg-direction"


def test_without_a_bound_setmaxnreg_does_nothing(monkeypatch):
    bench = Bench(monkeypatch, "setmaxnreg.inc.sync.aligned.u32 240")
    assert bench.step(0) is None
    assert [note.name for note in bench.launch.report().notes] == ["setmaxnreg-ignored"]


# --- fences and other small ones ------------------------------------------------------------------

NOTHING = """
fence.acq_rel.cta; fence.sc.sys; fence.gpu; fence.acquire.cluster; fence.proxy.alias
fence.acquire.sync_restrict::shared::cluster.cluster
fence.release.sync_restrict::shared::cta.cluster
fence.proxy.async.global; fence.proxy.tensormap::generic.release.gpu
fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128
membar.gl; membar.cta; membar.sys; griddepcontrol.wait; griddepcontrol.launch_dependents
pmevent 3; discard.global.L2 [%rd1], 128; applypriority.global.L2::evict_normal [%rd1], 128
""".replace("\n", ";").split(";")


@pytest.mark.parametrize("line", [line.strip() for line in NOTHING if line.strip()])
def test_fences_that_need_do_nothing(monkeypatch, line):
    assert Bench(monkeypatch, line).step(0) is None


@pytest.mark.parametrize(
    "line",
    ["fence.proxy.async", "fence.proxy.async.shared::cta", "fence.proxy.async.shared::cluster",
     "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster"],
)  # fmt: skip
def test_proxy_fence_counts_for_shared_memory(monkeypatch, line):
    bench = Bench(monkeypatch, line)
    cta = bench.ctas[0]
    # Thread 3 writes, and its warp fences: lanes of the same warp.
    cta.shared.generic_write(np.array([1024]), np.array([7], np.uint8), 3, bench.warp().where())
    where = bench.warp().where()
    assert fault_name(lambda: cta.shared.async_read((1024, 1), where)) == "missing-proxy-fence"
    bench.step(0)
    assert cta.shared.async_read((1024, 1), where) == [7]


def test_trap_stops_the_launch(monkeypatch):
    bench = Bench(monkeypatch, "trap")
    assert fault_name(lambda: bench.step(0, mask=4)) == "trap"


def test_a_nap_passes_time(monkeypatch):
    bench = Bench(monkeypatch, "nanosleep.u32 %r1")
    bench.set("%r1", 5000)
    assert bench.step(0).ready() and bench.launch.clock == 5000


# --- cluster launch control -----------------------------------------------------------------------

CLC = (
    "mbarrier.init.shared::cta.b64 [%r0], 1",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 16",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
    "[%r1], [%r0]",
    "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r2, %r3, %r4, _}, %q1",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r5, %q1",
)


def clc_step(bench):
    """Ask for a cluster, wait, and load the response into %q1 of lane 0."""
    bench.step(1, mask=1)
    bench.step(2, mask=1)
    bench.launch.engine.drain()
    response = bench.ctas[0].shared.data[1040:1056].view(np.uint64)
    row = bench.rows["%q1"]
    bench.warp().file64[row : row + 2, 0] = response
    bench.step(3, mask=1)
    return bench.get("%p1") & 1


@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_a_cta_takes_over_the_rest_of_the_grid(monkeypatch, schedule):
    bench = Bench(monkeypatch, *CLC, grid=(2, 3, 1), schedule=schedule)
    bench.set("%r0", 1024)
    bench.set("%r1", 1040)
    bench.step(0, mask=1)
    taken = []
    while clc_step(bench):
        bench.step(4, mask=1)
        bench.step(5, mask=1)
        x, y, z = (int(bench.get(f"%r{i}")[0]) for i in (2, 3, 4))
        assert bench.get("%r5")[0] == y
        taken.append((x, y, z))
    assert taken == [(1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (1, 2, 0)]
    assert bench.ctas[0].mbarriers.at(1024).phase == 6
    assert fault_name(lambda: bench.step(4, mask=1)) == "clc-not-canceled"
    assert fault_name(lambda: bench.step(2, mask=1)) == "clc-after-failure"
    assert not bench.launch.start_cluster()


def test_random_schedule_refuses_now_and_then(monkeypatch):
    def taken(seed):
        bench = Bench(monkeypatch, *CLC, grid=(20, 1, 1), schedule="random", seed=seed)
        bench.set("%r0", 1024)
        bench.set("%r1", 1040)
        bench.step(0, mask=1)
        count = 0
        while clc_step(bench):
            count += 1
        return count

    assert len({taken(seed) for seed in range(8)}) > 1


def test_multicast_answers_every_cta_of_the_cluster(monkeypatch):
    line = CLC[2].replace(".b128 ", ".multicast::cluster::all.b128 ")
    bench = Bench(monkeypatch, *CLC[:2], line, grid=(4, 1, 1), cluster=(2, 1, 1), schedule="lazy")
    for rank in (0, 1):
        bench.set("%r0", 1024, bench.warp(0, rank))
        bench.step(0, bench.warp(0, rank), mask=1)
        bench.step(1, bench.warp(0, rank), mask=1)
    bench.set("%r1", 1040)
    bench.step(2, mask=1)
    bench.launch.engine.drain()
    for cta in bench.ctas:
        assert cta.shared.data[1040:1056].view(np.uint32).tolist() == [2, 0, 0, 1]
        assert cta.mbarriers.at(1024).phase == 1


def test_cancelled_ctas_count_as_finished(monkeypatch):
    ran = []

    def program(warp):
        ran.append(warp.cta.ctaid)
        while warp.cta.launch.cancel_cluster() is not None:
            yield None

    run_programs(monkeypatch, program, grid=(9, 1, 1), sms=1)
    assert ran == [(0, 0, 0)]
