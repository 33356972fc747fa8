"""Byte addresses of accesses by many lanes, and the ranges that they cover."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cakert.sim.machine.launch import Launch

__all__ = ["byte_addresses", "claimed", "runs"]

Ranges = list[tuple[int, int]]


@lru_cache(maxsize=16)
def _steps(width: int) -> npt.NDArray[np.int64]:
    steps = np.arange(width, dtype=np.int64)
    steps.flags.writeable = False
    return steps


def byte_addresses(starts: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.int64]:
    """Address of every byte of accesses of ``width`` bytes at ``starts``, access after access."""
    return (starts[:, None] + _steps(width)).reshape(-1)


def runs(starts: npt.NDArray[np.int64], width: int) -> Ranges:
    """The (start, nbytes) ranges that accesses of ``width`` bytes cover, neighbours joined."""
    ordered = np.unique(starts)
    if not len(ordered):
        return []
    first = np.concatenate([[0], np.nonzero(np.diff(ordered) > width)[0] + 1])
    last = np.concatenate([first[1:] - 1, [len(ordered) - 1]])
    begins = ordered[first].tolist()
    ends = (ordered[last] + width).tolist()
    return [(begin, end - begin) for begin, end in zip(begins, ends, strict=True)]


def claimed(launch: Launch, ranges: Callable[[], Ranges]) -> Ranges:
    """The ranges that an operation claims while it is in flight.

    Under the eager schedule it is never in flight when a warp runs, and claims nothing.
    """
    return [] if launch.engine.schedule == "eager" else ranges()
