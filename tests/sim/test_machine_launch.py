"""The launch loop: every CTA runs, waits end, and what does not go on is explained."""

import gc
import weakref

import pytest
from machine_fakes import run_programs

from cakert.sim.faults import Fault, Where
from cakert.sim.machine import scheduler
from cakert.sim.machine.asynchronous import Operation
from cakert.sim.machine.waiting import Wait

SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
schedules = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)


def operation(cta, perform, **options):
    where = Where("fake", 7, "copy", cta.ctaid, 0)
    cta.launch.engine.submit(Operation("copy", where, cta, perform, **options))


@schedules
@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 3, 2)])
def test_every_warp_of_every_cta_runs_once(monkeypatch, schedule, seed, grid):
    seen = []
    done = []

    def program(warp):
        yield from [None] * 50
        seen.append((warp.cta.ctaid, warp.index))

    report = run_programs(
        monkeypatch, program, grid=grid, block=(80, 1, 1), schedule=schedule, seed=seed,
        progress=lambda now, total: done.append((now, total)),
    )  # fmt: skip
    number = grid[0] * grid[1] * grid[2]
    assert len(seen) == len(set(seen)) == 3 * number
    assert {ctaid for ctaid, _ in seen} == {
        (x, y, z) for x in range(grid[0]) for y in range(grid[1]) for z in range(grid[2])
    }
    assert report.counts.shape == (3, 2) and report.counts[:, 0].tolist() == [50 * number] * 3
    assert done[0] == (0, number) and done[-1] == (number, number)


@schedules
def test_a_wait_ends_when_another_warp_lets_it(monkeypatch, schedule, seed):
    log = []

    def program(warp):
        flags = warp.cta.state.setdefault("flags", set())
        if warp.index == 0:
            yield Wait(lambda: 2 in flags, lambda: "warp 2", lambda: log.append("woken"))
            log.append("after")
        yield from [None] * 100
        flags.add(warp.index)
        warp.cta.launch.progress += 1

    run_programs(monkeypatch, program, block=(96, 1, 1), schedule=schedule, seed=seed)
    assert log == ["woken", "after"]


@schedules
def test_a_change_that_nobody_announced_is_no_deadlock(monkeypatch, schedule, seed):
    """`progress` only spares polls; a family that forgets it must not fail a kernel."""
    flags = set()

    def program(warp):
        if warp.index == 0:
            yield Wait(lambda: 1 in flags, lambda: "warp 1")
        else:
            yield Wait(lambda: False, lambda: "nobody") if warp.index == 9 else None
            flags.add(1)
            yield Wait(lambda: 2 in flags, lambda: "warp 0")
        flags.add(2)

    run_programs(monkeypatch, program, block=(64, 1, 1), schedule=schedule, seed=seed)


@schedules
def test_lazy_completes_an_operation_only_when_nobody_runs(monkeypatch, schedule, seed):
    order = []

    def program(warp):
        done = warp.cta.state.setdefault("done", [])
        if warp.index == 0:
            operation(warp.cta, lambda: done.append(1) or order.append("copy"))
            yield Wait(lambda: done, lambda: "the copy")
        else:
            yield from [None] * 30_000
            order.append("computed")

    run_programs(monkeypatch, program, block=(64, 1, 1), schedule=schedule, seed=seed)
    assert order == (["computed", "copy"] if schedule == "lazy" else ["copy", "computed"])


@schedules
def test_a_loop_of_tests_sees_a_lazy_operation(monkeypatch, schedule, seed):
    def program(warp):
        done = []
        operation(warp.cta, lambda: done.append(1))
        while not done:
            yield Wait.pause(lambda: "a test")

    run_programs(monkeypatch, program, schedule=schedule, seed=seed)


@schedules
def test_a_loop_on_memory_sees_operations_and_ctas_that_come_later(monkeypatch, schedule, seed):
    monkeypatch.setattr(scheduler, "_SLICE", 500)
    written = set()

    def program(warp):
        x = warp.cta.ctaid[0]
        operation(warp.cta, lambda: written.add(x))
        while not written >= {0, 1, 2}:
            yield None

    run_programs(monkeypatch, program, grid=(3, 1, 1), schedule=schedule, seed=seed)


@schedules
def test_ctas_that_wait_for_each_other_are_resident_together(monkeypatch, schedule, seed):
    arrived = set()

    def program(warp):
        arrived.add(warp.cta.ctaid)
        warp.cta.launch.progress += 1
        yield Wait(lambda: len(arrived) == 8, lambda: "the other CTAs")

    run_programs(monkeypatch, program, grid=(8, 1, 1), sms=8, schedule=schedule, seed=seed)


@schedules
def test_too_few_sms_for_a_grid_barrier_is_a_deadlock(monkeypatch, schedule, seed):
    arrived = set()

    def program(warp):
        arrived.add(warp.cta.ctaid)
        yield Wait(lambda: len(arrived) == 8, lambda: "the other CTAs")

    with pytest.raises(Fault, match="1 CTAs have not started: all 7 SMs are taken") as info:
        run_programs(monkeypatch, program, grid=(8, 1, 1), sms=7, schedule=schedule, seed=seed)
    assert info.value.name == "deadlock"


@schedules
def test_a_deadlock_says_who_waits_for_what(monkeypatch, schedule, seed):
    def program(warp):
        if warp.index == 2:
            return
        barrier = f"barrier {warp.index // 4}"
        yield Wait(lambda: False, lambda: barrier)

    with pytest.raises(Fault) as info:
        run_programs(monkeypatch, program, block=(240, 1, 1), schedule=schedule, seed=seed)
    text = str(info.value)
    assert info.value.name == "deadlock"
    assert "CTA (0, 0, 0) warp 0-1, 3, line 1 `first`: waits for barrier 0" in text
    assert "warp 7 lanes 0-15, line 1 `first`: waits for barrier 1" in text


@schedules
def test_endless_polling_is_a_livelock(monkeypatch, schedule, seed):
    def program(warp):
        while True:
            yield None

    with pytest.raises(Fault, match="line 1 `first`") as info:
        run_programs(
            monkeypatch, program, schedule=schedule, seed=seed, max_operations=500_000
        )  # fmt: skip
    assert info.value.name == "livelock"


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[::2])
def test_endless_tests_are_a_livelock(monkeypatch, schedule, seed):
    def program(warp):
        while True:
            yield Wait.pause(lambda: "a phase that never ends")

    with pytest.raises(Fault, match=r"a phase that never ends|line 1") as info:
        run_programs(monkeypatch, program, schedule=schedule, seed=seed)
    assert info.value.name == "livelock"


def test_random_interleaving_differs_by_seed_and_repeats(monkeypatch):
    def run(seed):
        log = []

        def program(warp):
            for _ in range(20):
                yield None
                log.append((warp.cta.ctaid[0], warp.index))

        run_programs(
            monkeypatch, program, grid=(3, 1, 1), block=(64, 1, 1), schedule="random", seed=seed
        )
        return log

    assert run(5) == run(5)
    assert len({tuple(run(seed)) for seed in range(4)}) == 4
    assert len({cta for cta, _ in run(5)[:40]}) > 1, "several CTAs run at a time"


@schedules
def test_checks_at_the_exit_of_a_cta(monkeypatch, schedule, seed):
    left = []

    def program(warp):
        if warp.index == 0:
            warp.cta.at_exit.append(lambda: left.append(warp.cta.ctaid))
        yield None

    run_programs(
        monkeypatch, program, grid=(4, 1, 1), block=(64, 1, 1), schedule=schedule, seed=seed
    )
    assert sorted(left) == [(x, 0, 0) for x in range(4)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": (0, 1, 1)}, "grid must be three positive numbers"),
        ({"block": (2048, 1, 1)}, "at most 1024 threads, got 2048"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "not a multiple of the cluster"),
        ({"sms": 0}, "sms must be at least 1"),
        ({"cluster": (17, 1, 1), "grid": (17, 1, 1)}, "at most 16 CTAs, got 17"),
        ({"directives": {"maxntid": (64, 2, 1)}, "block": (129, 1, 1)}, "at most 128 threads"),
        ({"directives": {"reqntid": (64,)}, "block": (32, 2, 1)}, "requires blocks of"),
        ({"shared_bytes": 232449}, "232449 dynamic; it has 232448 in all"),
    ],
)
def test_shapes_that_no_launch_has(monkeypatch, options, message):
    with pytest.raises(ValueError, match=message):
        run_programs(monkeypatch, lambda warp: iter(()), **options)


@schedules
def test_exited_ctas_are_freed(monkeypatch, schedule, seed):
    memories = []

    def program(warp):
        memories.append(weakref.ref(warp.cta.shared.data))
        operation(warp.cta, lambda: None)
        assert sum(memory() is not None for memory in memories) <= 16
        yield None

    gc.disable()
    try:
        run_programs(monkeypatch, program, grid=(60, 1, 1), schedule=schedule, seed=seed)
    finally:
        gc.enable()
    assert len(memories) == 60


def test_clusters_are_resident_as_a_whole(monkeypatch):
    seen = {}

    def program(warp):
        cta = warp.cta
        seen[cta.ctaid] = (cta.rank, tuple(other.ctaid for other in cta.cluster))
        yield None

    run_programs(monkeypatch, program, grid=(4, 2, 1), cluster=(2, 2, 1), sms=1)
    assert seen[3, 1, 0] == (3, ((2, 0, 0), (3, 0, 0), (2, 1, 0), (3, 1, 0)))
    assert len(seen) == 8
