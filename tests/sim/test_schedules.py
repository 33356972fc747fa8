"""`compare_schedules`: which differences it finds, and what it says of them."""

from __future__ import annotations

import numpy as np
import pytest

from cakert.sim import Fault
from cakert.sim.schedules import compare_schedules


def test_all_schedules_run_once_in_order():
    seen = []

    def run(schedule, seed):
        seen.append((schedule, seed))
        return {"out": np.arange(3)}

    comparison = compare_schedules(run, seeds=2)
    assert seen == [("eager", 0), ("lazy", 0), ("random", 0), ("random", 1)]
    assert comparison.agree and comparison.problems() == [] and comparison.faults == []
    assert str(comparison) == "4 schedules agree"


def test_a_difference_names_schedule_array_and_element():
    def run(schedule, seed):
        out = np.full((2, 3), 7.0, np.float32)
        out[1, 2] += schedule == "random" and seed == 1
        return {"same": np.ones(4), "out": out}

    comparison = compare_schedules(run, seeds=2)
    assert not comparison.agree
    assert comparison.problems() == [
        "random (seed 1): 1 of 6 elements of out differ from eager, the first at (1, 2): "
        "8.0 instead of 7.0"
    ]
    assert str(comparison).startswith("the result depends on the schedule:\n  random (seed 1)")


def test_bits_are_compared():
    nan, zero = np.array([np.nan]), np.array([0.0])
    schedules = [("eager", 0), ("lazy", 0)]
    assert compare_schedules(lambda *_: {"out": nan}, schedules=schedules).agree
    signs = {"eager": zero, "lazy": -zero}
    assert not compare_schedules(lambda name, _: {"out": signs[name]}, schedules=schedules).agree


def test_results_are_copied():
    out = np.zeros(1)

    def run(schedule, seed):
        out[0] += 1
        return {"out": out}

    assert not compare_schedules(run, seeds=1).agree


def test_a_fault_is_an_outcome():
    def run(schedule, seed):
        if schedule == "eager":
            raise Fault("deadlock", "nothing goes on.")
        return {"out": np.full(1, seed)}

    comparison = compare_schedules(run, seeds=2)
    assert [fault.name for fault in comparison.faults] == ["deadlock"]
    assert comparison.problems() == [
        "eager: [deadlock] nothing goes on.",
        "random (seed 1): 1 of 1 elements of out differ from lazy, the first at (0,): 1 instead of "
        "0",
    ]


def test_other_errors_pass_through():
    with pytest.raises(ZeroDivisionError):
        compare_schedules(lambda schedule, seed: {"out": np.zeros(1 // seed)})


@pytest.mark.parametrize(
    "run",
    [
        lambda schedule, seed: {schedule: np.zeros(1)},
        lambda schedule, seed: {"out": np.zeros(len(schedule))},
        lambda schedule, seed: {"out": np.zeros(1, "f4" if schedule == "lazy" else "f8")},
    ],
)
def test_unlike_results_are_refused(run):
    with pytest.raises(ValueError, match="same names, shapes and dtypes"):
        compare_schedules(run, seeds=0)


@pytest.mark.parametrize("result", [None, np.zeros(3), [("out", np.zeros(1))]])
def test_runs_return_arrays_by_name(result):
    with pytest.raises(TypeError, match=f"mapping of names .*got {type(result).__name__}"):
        compare_schedules(lambda *_: result)


def test_runs_return_something():
    with pytest.raises(ValueError, match=r"run must return the arrays .*empty mapping"):
        compare_schedules(lambda *_: {})


def test_one_schedule_is_no_comparison():
    with pytest.raises(ValueError, match="at least two schedules"):
        compare_schedules(lambda *_: {}, schedules=[("eager", 0)])
