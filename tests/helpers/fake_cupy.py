"""A stand-in for CuPy: "GPU" arrays in host memory, for tests of code that must not import it.

Only what the package may use of CuPy is there, with CuPy's names and meanings.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest


class Device:
    """`cupy.cuda.Device`: a context manager with an id."""

    entered: ClassVar[list[int]] = []

    def __init__(self, device_id: int = 0) -> None:
        self.id = device_id

    def __enter__(self) -> None:
        Device.entered.append(self.id)

    def __exit__(self, *_: object) -> None:
        Device.entered.pop()


class Ndarray:
    """`cupy.ndarray`; values are reachable through `asnumpy` only, as on a GPU."""

    def __init__(self, values: npt.NDArray[Any], device_id: int = 0) -> None:
        self.hidden = values
        self.device = Device(device_id)

    shape = property(lambda self: self.hidden.shape)
    strides = property(lambda self: self.hidden.strides)
    dtype = property(lambda self: self.hidden.dtype)
    itemsize = property(lambda self: self.hidden.itemsize)

    def __ne__(self, other: object) -> Ndarray:  # type: ignore[override]
        return Ndarray(self.hidden != other, self.device.id)

    __hash__ = None  # type: ignore[assignment]

    def set(self, values: npt.NDArray[Any]) -> None:
        assert Device.entered[-1:] == [self.device.id], "cupy writes on the current device"
        np.copyto(self.hidden, values)


class Stream:
    """The current stream; a test sets `capturing`."""

    capturing = False
    ptr = 7

    def is_capturing(self) -> bool:
        return Stream.capturing


def _current_device() -> int:
    return Device.entered[-1] if Device.entered else 0


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Put the stand-in in `sys.modules` for the length of a test."""
    cupy: Any = ModuleType("cupy")
    cupy.ndarray = Ndarray
    cupy.asnumpy = lambda x: x.hidden.copy()
    cupy.asarray = lambda a: Ndarray(a.copy(), _current_device())
    cupy.empty = lambda shape, dtype: Ndarray(np.empty(shape, dtype), _current_device())
    cupy.cuda = ModuleType("cupy.cuda")
    cupy.cuda.Device = Device
    cupy.cuda.get_current_stream = Stream
    monkeypatch.setattr(Stream, "capturing", False)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return cupy
