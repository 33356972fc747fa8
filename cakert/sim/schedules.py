"""Does a kernel's result depend on the schedule? Run it under several, and compare.

No single run shows a race that is no fault by itself: two warps that update one word, or a warp
that reads what another has not replaced yet. Results that differ between schedules do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cakert.sim.faults import Fault

__all__ = ["Comparison", "Outcome", "compare_schedules"]

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
Run: TypeAlias = Callable[[str, int], Arrays]


@dataclass(frozen=True)
class Outcome:
    """What one schedule gave.

    Attributes
    ----------
    schedule, seed
        As of `cakert.sim.Gpu`.
    arrays
        Copies of the results by name; empty where a fault ended the launch.
    fault
        What ended the launch, or None.
    """

    schedule: str
    seed: int
    arrays: Arrays
    fault: Fault | None = None

    @property
    def label(self) -> str:
        """The schedule in a message: "lazy", "random (seed 3)"."""
        return f"random (seed {self.seed})" if self.schedule == "random" else self.schedule


@dataclass(frozen=True)
class Comparison:
    """What several schedules gave; the first is what the others are compared with.

    Attributes
    ----------
    outcomes
        In the order in which they ran.
    """

    outcomes: tuple[Outcome, ...]

    @property
    def agree(self) -> bool:
        """Whether no schedule ended in a fault and all results are equal, bit by bit."""
        return not self.problems()

    @property
    def faults(self) -> list[Fault]:
        """The faults that ended launches."""
        return [outcome.fault for outcome in self.outcomes if outcome.fault is not None]

    def problems(self) -> list[str]:
        """One line for each schedule that ended in a fault or gave another result."""
        lines = [f"{one.label}: {one.fault}" for one in self.outcomes if one.fault is not None]
        ran = [one for one in self.outcomes if one.fault is None]
        for other in ran[1:]:
            lines += [f"{other.label}: {difference}" for difference in _differences(ran[0], other)]
        return lines

    def __str__(self) -> str:
        problems = self.problems()
        if not problems:
            return f"{len(self.outcomes)} schedules agree"
        return "the result depends on the schedule:\n  " + "\n  ".join(problems)


def compare_schedules(
    run: Run,
    *,
    seeds: int = 8,
    schedules: Iterable[tuple[str, int]] | None = None,
) -> Comparison:
    """Run a launch under several schedules.

    Parameters
    ----------
    run
        ``run(schedule, seed)`` makes a `cakert.sim.Gpu` of that schedule and seed, fills its memory
        afresh, launches, and returns the arrays that the kernel wrote, by name. Faults may pass
        through; other exceptions end the comparison.
    seeds
        How many random schedules, with seeds from 0.
    schedules
        (schedule, seed) pairs instead of eager, lazy and the random ones.

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError
        A run returns something else than a mapping.
    ValueError
        There is nothing to compare: fewer than two schedules, or a run that returns no array; or
        the runs return arrays of different names, shapes or dtypes.

    Notes
    -----
    Results are compared bit by bit. Atomic additions of floats in an order that the kernel leaves
    open differ by rounding: compare such results by a tolerance of your own, from
    `Comparison.outcomes`.
    """
    if schedules is None:
        schedules = [("eager", 0), ("lazy", 0), *(("random", seed) for seed in range(seeds))]
    schedules = list(schedules)
    if len(schedules) < 2:
        raise ValueError(f"at least two schedules are needed, got {len(schedules)}")
    outcomes = [_outcome(run, schedule, seed) for schedule, seed in schedules]
    _check_alike([one for one in outcomes if one.fault is None])
    return Comparison(tuple(outcomes))


def _outcome(run: Run, schedule: str, seed: int) -> Outcome:
    try:
        arrays = run(schedule, seed)
    except Fault as fault:
        return Outcome(schedule, seed, {}, fault)
    if not isinstance(arrays, Mapping):
        raise TypeError(
            "run must return the arrays that the kernel wrote, a mapping of names to arrays, got "
            f"{type(arrays).__name__}"
        )
    if not arrays:
        raise ValueError("run must return the arrays that the kernel wrote, got an empty mapping")
    return Outcome(schedule, seed, {name: np.array(array) for name, array in arrays.items()})


def _check_alike(outcomes: list[Outcome]) -> None:
    def form(outcome: Outcome) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        return {name: (array.shape, array.dtype) for name, array in outcome.arrays.items()}

    for other in outcomes[1:]:
        if form(other) != form(outcomes[0]):
            raise ValueError(
                f"run must return arrays of the same names, shapes and dtypes: {form(other)} under "
                f"{other.label}, {form(outcomes[0])} under {outcomes[0].label}"
            )


def _differences(one: Outcome, other: Outcome) -> list[str]:
    found = []
    for name, array in one.arrays.items():
        theirs = other.arrays[name]
        unequal = (_bytes(array) != _bytes(theirs)).any(axis=-1)
        if unequal.any():
            first = tuple(int(i) for i in np.argwhere(unequal)[0])
            found.append(
                f"{int(unequal.sum())} of {array.size} elements of {name} differ from {one.label}, "
                f"the first at {first}: {theirs[first]} instead of {array[first]}"
            )
    return found


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of each element along a last axis: NaN equals NaN, and -0 differs from 0."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.reshape(*array.shape, array.itemsize)
