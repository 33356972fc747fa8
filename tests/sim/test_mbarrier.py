"""The mbarrier object and its instructions, against the state model of the ISA."""

import random

import numpy as np
import pytest
from machine_fakes import FULL, Bench, FakeCode, FakeWarp, finish, make_launch

from cakert.sim.faults import Fault, UnsupportedInstruction
from cakert.sim.machine import cta as cta_module
from cakert.sim.machine.mbarrier import MAX_COUNT, pending_of, phase_of

AT = 1024


@pytest.fixture
def launch(monkeypatch):
    monkeypatch.setattr(cta_module, "Warp", FakeWarp)
    launch = make_launch(FakeCode())
    assert launch.start_cluster()
    return launch


@pytest.fixture
def table(launch):
    return launch.resident[0].mbarriers


def name_of(info):
    return info.value.name


def test_a_phase_needs_every_arrival_and_every_byte(table):
    barrier = table.init(AT, 2)
    barrier.expect_tx(100)
    barrier.arrive()
    barrier.complete_tx(60)
    barrier.arrive()
    assert barrier.phase == 0 and not barrier.completed(0) and barrier.completed(1)
    barrier.complete_tx(40)
    assert barrier.phase == 1 and barrier.completed(0) and not barrier.completed(1)
    assert (barrier.pending, barrier.tx) == (2, 0)


def test_bytes_may_come_before_they_are_announced(table):
    barrier = table.init(AT, 1)
    barrier.complete_tx(64)
    assert barrier.tx == -64 and barrier.phase == 0
    barrier.expect_tx(64)
    assert barrier.phase == 0
    barrier.arrive()
    assert barrier.phase == 1


def test_states_name_phase_and_pending_count(table):
    barrier = table.init(AT, 3)
    states = [barrier.arrive() for _ in range(7)]
    assert [phase_of(state) for state in states] == [0, 0, 0, 1, 1, 1, 2]
    assert [pending_of(state) for state in states] == [3, 2, 1, 3, 2, 1, 3]
    assert phase_of(17) is None and pending_of(17) is None


def test_arrive_drop_expects_fewer_from_the_next_phase_on(table):
    barrier = table.init(AT, 3)
    barrier.arrive(drop=True)
    barrier.arrive(2)
    assert (barrier.phase, barrier.expected, barrier.pending) == (1, 2, 2)


def test_random_histories_follow_the_model(table):
    rng = random.Random()
    count = rng.randint(1, 5)
    barrier = table.init(AT, count)
    phase, expected, pending, tx = 0, count, count, 0
    for _ in range(500):
        action = rng.choice(["arrive", "expect", "complete"])
        if action == "arrive" and pending:
            barrier.arrive()
            pending -= 1
        elif action == "expect":
            n = rng.randint(1, 200)
            barrier.expect_tx(n)
            tx += n
            continue
        elif action == "complete" and tx > 0:
            n = rng.randint(1, tx)
            barrier.complete_tx(n)
            tx -= n
        else:
            continue
        if pending == 0 and tx == 0:
            phase, pending = phase + 1, expected
        assert (barrier.phase, barrier.pending, barrier.tx) == (phase, pending, tx)
        assert barrier.completed(phase & 1 ^ 1) and not barrier.completed(phase & 1)


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("mbarrier-uninitialised", lambda t: t.at(AT + 8)),
        ("mbarrier-misaligned", lambda t: t.init(AT + 4, 1)),
        ("mbarrier-count", lambda t: t.init(AT + 8, 0)),
        ("mbarrier-count", lambda t: t.init(AT + 8, MAX_COUNT + 1)),
        ("mbarrier-count", lambda t: t.at(AT).arrive(0)),
        ("mbarrier-reinitialised", lambda t: t.init(AT, 2)),
        ("mbarrier-underflow", lambda t: t.at(AT).arrive(3)),
        ("mbarrier-tx-overflow", lambda t: t.at(AT).expect_tx(1 << 20)),
        ("mbarrier-tx-overflow", lambda t: t.at(AT).complete_tx(1 << 20)),
        ("mbarrier-no-complete", lambda t: t.at(AT).arrive(2, no_complete=True)),
        ("shared-out-of-bounds", lambda t: t.init(1 << 20, 1)),
    ],
)
def test_faults(table, name, act):
    table.init(AT, 2)
    with pytest.raises(Fault) as info:
        act(table)
    assert name_of(info) == name


def test_one_arrival_too_many_while_bytes_are_missing(table):
    barrier = table.init(AT, 1)
    barrier.expect_tx(16)
    barrier.arrive()
    with pytest.raises(Fault, match="mbarrier-underflow"):
        barrier.arrive()


def test_an_ignored_fault_is_noted_and_counted(launch, table):
    launch.ignore = frozenset(["mbarrier-uninitialised"])
    table.at(AT).arrive()
    assert [note.name for note in launch.report().notes] == ["mbarrier-uninitialised"]


def test_a_waiter_two_phases_behind_was_lapped(table):
    barrier = table.init(AT, 1)
    barrier.arrive()
    assert barrier.passed(0) and not barrier.passed(1)
    barrier.arrive()
    with pytest.raises(Fault, match="mbarrier-lapped"):
        barrier.passed(0)


def test_the_memory_of_a_barrier_is_not_for_data(launch, table):
    table.init(AT, 1)
    shared = launch.resident[0].shared
    with pytest.raises(Fault, match="mbarrier-overwritten"):
        shared.generic_write(np.array([AT + 4]), np.array([1], np.uint8), 0, None)
    table.invalidate(AT)
    shared.generic_write(np.array([AT + 4]), np.array([1], np.uint8), 0, None)
    with pytest.raises(Fault, match="mbarrier-uninitialised"):
        table.at(AT)
    with pytest.raises(Fault, match="mbarrier-uninitialised"):
        table.invalidate(AT)


# --- instructions -------------------------------------------------------------------------------


def test_each_lane_arrives_for_itself(monkeypatch):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared::cta.b64 [%r0], 33",
        "mbarrier.arrive.shared::cta.b64 _, [%r0]",
        "mbarrier.arrive.shared::cta.b64 %rd1, [%r0]",
    )
    bench.set("%r0", AT)
    bench.step(0, mask=1)
    bench.step(1, mask=0b111)
    barrier = bench.ctas[0].mbarriers.at(AT)
    assert barrier.pending == 30
    bench.step(2, mask=0b1100)
    assert [pending_of(int(s)) for s in bench.get("%rd1")[2:4]] == [30, 29]
    bench.step(1, mask=0x0FFFFFFF)
    assert (barrier.phase, barrier.pending) == (1, 33)


def test_more_lanes_than_a_phase_takes_complete_several(monkeypatch):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared::cta.b64 [%r0], 8",
        "mbarrier.arrive.shared::cta.b64 _, [%r0]",
    )
    bench.set("%r0", AT)
    bench.step(0, mask=1)
    bench.step(1)
    assert bench.ctas[0].mbarriers.at(AT).phase == 4


def test_lanes_with_their_own_barriers(monkeypatch):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared::cta.b64 [%r0+8], %r1",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0+8], %r2",
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0+8], %r3, 1000",
    )
    lanes = np.arange(32)
    bench.set("%r0", AT + 8 * lanes)
    bench.set("%r1", 1 + lanes % 2)
    bench.set("%r2", 16 * lanes)
    bench.set("%r3", 0)
    bench.step(0)
    bench.step(1)
    table = bench.ctas[0].mbarriers
    assert [table.at(AT + 8 + 8 * lane).pending for lane in (1, 3)] == [1, 1]
    # Lane 0 is through; the others get false rather than hold it up.
    assert bench.step(2) is None and bench.get("%p1") == 1
    wait = bench.step(2, mask=0b110)
    assert not wait.ready() and "32 bytes" in wait.describe()
    table.at(AT + 24).complete_tx(32)
    finish(wait)
    assert bench.get("%p1") == 0b101


@pytest.mark.parametrize("form", ["", ".acquire.cta", ".relaxed.cluster"])
def test_try_wait_by_state_and_parity(monkeypatch, form):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared.b64 [%r0], 1",
        f"mbarrier.test_wait.parity{form}.shared::cta.b64 %p1, [%r0], %r1",
        "mbarrier.arrive.shared::cta.b64 %rd1, [%r0]",
        f"mbarrier.test_wait{form}.shared::cta.b64 %p2, [%r0], %rd1",
        f"mbarrier.try_wait{form}.shared::cta.b64 %p3, [%r0], %rd1",
        "mbarrier.pending_count.b64 %r2, %rd1",
    )
    bench.set("%r0", AT)
    bench.set("%r1", 1)
    bench.step(0, mask=1)
    assert bench.step(1) is None and bench.get("%p1") == FULL  # parity 1: before the first phase
    bench.set("%r1", 0)
    pause = bench.step(1, mask=0xFF)
    assert pause.ready() and bench.get("%p1") == FULL & ~0xFF
    bench.step(2, mask=4)
    assert bench.step(3, mask=4) is None and bench.get("%p2") == 4
    assert bench.step(4, mask=4) is None and bench.get("%p3") == 4
    bench.step(5, mask=4)
    assert bench.get("%r2")[2] == 1
    with pytest.raises(Fault, match="mbarrier-state"):
        bench.step(3, mask=8)


def test_the_random_schedule_lets_try_wait_fail_now_and_then(monkeypatch):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared.b64 [%r0], 1",
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0], 0",
        schedule="random",
    )
    bench.set("%r0", AT)
    bench.step(0, mask=1)
    spins = [bench.step(1).ready() for _ in range(200)]
    assert any(spins) and not all(spins)


def test_a_blocked_waiter_that_is_lapped_is_told_where(monkeypatch):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared.b64 [%r0], 1",
        "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r0], 0",
    )
    bench.set("%r0", AT)
    bench.step(0, mask=1)
    wait = bench.step(1)
    barrier = bench.ctas[0].mbarriers.at(AT)
    barrier.arrive()
    barrier.arrive()
    with pytest.raises(Fault, match="try_wait") as info:
        wait.ready()
    assert name_of(info) == "mbarrier-lapped"


def test_remote_arrivals_in_a_cluster(monkeypatch):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared::cta.b64 [%r0], 2",
        "mapa.shared::cluster.u32 %r1, %r0, 1",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1]",
        "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r1], 64",
        "mbarrier.arrive.shared::cta.b64 _, [%r1]",
        "mapa.u64 %rd1, %rd0, 1",
        "mbarrier.complete_tx.relaxed.cluster.b64 [%rd1], 64",
        "getctarank.shared::cluster.u32 %r2, %r1",
        "mapa.shared::cluster.u32 %r3, %r0, 2",
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
    )
    bench.set("%r0", AT)
    bench.set("%rd0", (1 << 48) + AT)
    bench.step(0, bench.warp(0, rank=0), mask=1)
    bench.set("%r0", AT, bench.warp(0, rank=1))
    bench.step(0, bench.warp(0, rank=1), mask=1)
    for number in (1, 2, 3):
        bench.step(number, mask=1)
    local, remote = (cta.mbarriers.at(AT) for cta in bench.ctas)
    assert (local.pending, local.tx) == (2, 0)
    assert (remote.pending, remote.tx) == (1, 64)
    bench.step(7, mask=1)
    assert bench.get("%r2")[0] == 1
    bench.step(5, mask=1)
    bench.step(6, mask=1)
    assert remote.tx == 0
    with pytest.raises(Fault, match="not-shared"):
        bench.step(4, mask=1)
    with pytest.raises(Fault, match="cluster-rank"):
        bench.step(8, mask=1)
    bench.ctas[1].exited = True
    with pytest.raises(Fault, match="cluster-exit"):
        bench.step(2, mask=1)


def test_notes_on_initialisation_that_nothing_made_visible(monkeypatch):
    bench = Bench(
        monkeypatch,
        "mbarrier.init.shared::cta.b64 [%r0], 1",
        "mbarrier.arrive.shared::cta.b64 _, [%r0]",
        "fence.mbarrier_init.release.cluster",
        block=(64, 1, 1),
    )
    for warp in (bench.warp(0), bench.warp(1)):
        bench.set("%r0", [AT, *[AT + 8] * 31], warp)
    bench.step(0, mask=3)
    bench.ctas[0].mbarriers.at(AT).complete_tx(0)
    bench.step(1, bench.warp(1), mask=1)
    names = [note.name for note in bench.launch.report().notes]
    assert names == ["mbarrier-init-unfenced", "mbarrier-init-unsynchronised"]
    bench.step(2, mask=1)
    bench.ctas[0].sync_epoch += 1
    bench.ctas[0].mbarriers.at(AT + 8).complete_tx(0)
    bench.step(1, bench.warp(1), mask=2)
    assert len(bench.launch.report().notes) == 2


@pytest.mark.parametrize(
    "line",
    [
        "mbarrier.arrive.shared::cluster.b64 %rd1, [%r0]",
        "mbarrier.try_wait.parity.shared::cluster.b64 %p1, [%r0], 0",
        "mbarrier.expect_tx.release.cta.shared::cta.b64 [%r0], 4",
        "mbarrier.init.shared::cta.b32 [%r0], 4",
        "mbarrier.arrive.noComplete.shared::cta.b64 _, [%r0]",
        "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r0], 0, 5",
        "mbarrier.arrive.sometimes.shared::cta.b64 _, [%r0]",
    ],
)
def test_forms_that_do_not_exist_are_refused_with_their_line(monkeypatch, line):
    with pytest.raises(UnsupportedInstruction, match="line 6"):
        Bench(monkeypatch, line)
