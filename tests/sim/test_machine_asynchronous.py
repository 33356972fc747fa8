"""The asynchronous engine: when operations complete under each schedule."""

import numpy as np
import pytest
from machine_fakes import FakeCode, FakeWarp, make_launch

from cakert.sim.faults import Fault, Where
from cakert.sim.machine import cta as cta_module
from cakert.sim.machine.asynchronous import Operation

WHERE = Where("fake", 7, "copy", (0, 0, 0), 0)
SCHEDULES = ["eager", "lazy", "random"]


@pytest.fixture
def start(monkeypatch):
    def start(schedule, seed=0):
        monkeypatch.setattr(cta_module, "Warp", FakeWarp)
        launch = make_launch(FakeCode(), schedule=schedule, seed=seed)
        assert launch.start_cluster()
        return launch, launch.resident[0]

    return start


def submit(launch, cta, log, name, **options):
    operation = Operation(name, WHERE, cta, lambda: log.append(name), **options)
    launch.engine.submit(operation)
    return operation


def test_eager_is_done_on_return(start):
    launch, cta = start("eager")
    log = []
    assert submit(launch, cta, log, "a").done and log == ["a"] and not len(launch.engine)


def test_lazy_takes_the_youngest_that_its_order_allows(start):
    launch, cta = start("lazy")
    log = []
    for name, order in [("a", None), ("m1", "mma"), ("m2", "mma"), ("b", None), ("m3", "mma")]:
        submit(launch, cta, log, name, order=order)
    launch.engine.tick()
    assert log == [] and len(launch.engine) == 5
    while launch.engine.perform_one():
        pass
    assert log == ["b", "m1", "m2", "m3", "a"]


def test_lazy_takes_what_must_precede_an_operation_that_is_needed(start):
    launch, cta = start("lazy")
    log = []
    submit(launch, cta, log, "m1", order="mma")
    needed = submit(launch, cta, log, "m2", order="mma")
    submit(launch, cta, log, "signal", signals=["group"])
    submit(launch, cta, log, "b")
    assert launch.engine.perform_one({needed}) and log == ["m1"]
    assert launch.engine.perform_one({needed}) and log == ["m1", "m2"]
    assert launch.engine.perform_one({"group"}) and log == ["m1", "m2", "signal"]


def test_lazy_takes_the_youngest_where_none_is_needed(start):
    launch, cta = start("lazy")
    log = []
    for name in "abc":
        submit(launch, cta, log, name)
    assert launch.engine.perform_one({"signalled by none"}) and log == ["c"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(5))
def test_order_is_kept_and_everything_completes(start, schedule, seed):
    launch, cta = start(schedule, seed)
    log = []
    for number in range(30):
        submit(launch, cta, log, (number % 3, number), order=f"queue {number % 3}")
        launch.engine.tick()
    launch.engine.drain()
    assert len(log) == 30
    for queue in range(3):
        own = [number for which, number in log if which == queue]
        assert own == sorted(own)


def test_random_differs_by_seed_and_repeats_by_seed(start):
    def order(seed):
        launch, cta = start("random", seed)
        log = []
        for number in range(20):
            submit(launch, cta, log, number)
            launch.engine.tick()
        launch.engine.drain()
        return log

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


@pytest.mark.parametrize("order", [None, "q"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_operation_may_submit_another(start, schedule, order):
    launch, cta = start(schedule)
    log = []

    def first():
        submit(launch, cta, log, "second", order=order)
        log.append("first")

    launch.engine.submit(Operation("first", WHERE, cta, first, order=order))
    launch.engine.drain()
    assert log == ["first", "second"]


def test_ranges_are_watched_while_in_flight(start):
    launch, cta = start("lazy")
    submit(launch, cta, [], "copy", writes=[(1024, 64)])
    with pytest.raises(Fault, match="shared-in-flight"):
        cta.shared.generic_write(np.array([1030]), np.array([1], np.uint8), 0, WHERE)
    launch.engine.drain()
    cta.shared.generic_write(np.array([1030]), np.array([1], np.uint8), 0, WHERE)


def test_writes_must_not_outlive_their_cta(start):
    launch, cta = start("lazy")
    submit(launch, cta, [], "copy", writes=[(1024, 64)])
    cta.warps[0].live = 0
    with pytest.raises(Fault, match="line 7") as info:
        cta.warp_exited()
    assert info.value.name == "async-write-after-exit" and cta.exited


def test_stores_complete_after_their_cta_and_are_noted_if_they_read(start):
    launch, cta = start("lazy")
    log = []
    submit(launch, cta, log, "store", reads=[(1024, 64)])
    submit(launch, cta, log, "write out")
    cta.warps[0].live = 0
    cta.warp_exited()
    assert log == []
    launch.engine.drain()
    assert sorted(log) == ["store", "write out"]
    assert [note.name for note in launch.report().notes] == ["async-read-after-exit"]


def test_only_some_exited_ctas_keep_operations_back(monkeypatch):
    monkeypatch.setattr(cta_module, "Warp", FakeWarp)
    launch = make_launch(FakeCode(), schedule="lazy", grid=(20, 1, 1))
    log = []
    for number in range(20):
        assert launch.start_cluster()
        cta = launch.resident[0]
        submit(launch, cta, log, ("a", number), order=number)
        submit(launch, cta, log, ("b", number), order=number)
        cta.warps[0].live = 0
        cta.warp_exited()
        launch.retire(cta)
    assert log == [(name, number) for number in range(12) for name in "ab"]


def test_unknown_schedule():
    with pytest.raises(ValueError, match="eager, lazy, random"):
        make_launch(FakeCode(), schedule="sometimes")
