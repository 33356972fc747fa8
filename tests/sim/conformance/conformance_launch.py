"""Named memory of a simulated GPU, and a launch on it: what launch records are written with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cakert.sim import Gpu
from cakert.sim.gpu import SCHEDULES

Array = npt.NDArray[Any]


def schedules() -> list[Any]:
    """Parameters of a test: a schedule drawn by the seed; all three with the marker `full`."""
    return ["drawn", *(pytest.param(name, marks=pytest.mark.full) for name in SCHEDULES)]


def drawn(schedule: str, rng: np.random.Generator) -> str:
    """The schedule to run: itself, or one of the three."""
    if schedule != "drawn":
        return schedule
    chosen = str(rng.choice(SCHEDULES))
    print(f"schedule={chosen}")
    return chosen


@dataclass(frozen=True)
class Launch:
    """What `Module.launch` is called with."""

    symbol: str
    grid: tuple[int, int, int]
    threads: int
    arguments: list[Any]
    shared_bytes: int
    cluster: tuple[int, int, int] | None = None

    def run(self, gpu: Gpu, ptx: str) -> Any:
        """Execute it; the report of the simulator."""
        return gpu.load_ptx(ptx).launch(
            self.symbol,
            grid=self.grid,
            block=(self.threads, 1, 1),
            args=self.arguments,
            shared_bytes=self.shared_bytes,
            cluster=self.cluster,
        )


@dataclass(frozen=True)
class View:
    """An array of the GPU seen with other dimensions; what tensor maps are made of.

    Attributes
    ----------
    strides
        Bytes, outermost dimension first.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]


class Memory:
    """Named arrays of a simulated GPU: inputs, and results full of NaN to begin with."""

    def __init__(self, gpu: Gpu):
        self.gpu = gpu
        self.arrays: dict[str, Any] = {}

    def put(self, name: str, array: Array) -> Any:
        """Copy an input to the GPU."""
        self.arrays[name] = self.gpu.array(np.ascontiguousarray(array))
        return self.arrays[name]

    def result(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        """Memory for an output, poisoned."""
        return self.put(name, np.full(shape, np.nan, dtype))

    def read(self, name: str) -> Array:
        """Copy an array back."""
        return np.array(self.arrays[name].numpy())

    def tiled(
        self,
        name: str,
        array: Array,
        see: Callable[[Array], Array],
        box: tuple[int, ...],
        swizzle: str = "128B",
    ) -> Any:
        """Copy an input to the GPU and make a tensor map of it.

        Parameters
        ----------
        see
            Gives the array with the map's dimensions, by reshaping and transposing without a copy.
        box
            Outermost dimension first, as the view's shape.
        """
        device = self.put(name, array)
        view = see(array)
        assert np.shares_memory(view, array)
        seen = View(device.pointer, view.shape, view.strides, array.dtype)
        return self.gpu.tensor_map(seen, box=box, swizzle=swizzle)

    def tiled_result(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        see: Callable[[Array], Array],
        box: tuple[int, ...],
    ) -> Any:
        """The same of memory for an output, poisoned."""
        return self.tiled(name, np.full(shape, np.nan, dtype), see, box)
