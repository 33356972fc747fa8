"""A stand-in for JAX: immutable arrays on one or more devices, for tests that must not need it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest


class Device:
    """`jax.Device`; `id` counts over all hosts, `local_hardware_id` over this one."""

    def __init__(self, platform: str, device_id: int, local_hardware_id: int | None = None) -> None:
        self.platform, self.id = platform, device_id
        self.local_hardware_id = local_hardware_id


class Array:
    """`jax.Array`: its values can be read, never written."""

    def __init__(self, values: npt.NDArray[Any], *devices: Device) -> None:
        self.hidden = values.copy()
        self.hidden.flags.writeable = False
        self._devices = set(devices)

    shape = property(lambda self: self.hidden.shape)
    dtype = property(lambda self: self.hidden.dtype)

    def devices(self) -> set[Device]:
        return self._devices

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.hidden

    def __ne__(self, other: object) -> Array:  # type: ignore[override]
        return Array(np.asarray(self.hidden != other), *self._devices)

    __hash__ = None  # type: ignore[assignment]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in in `sys.modules` for the length of a test."""
    jax: Any = ModuleType("jax")
    jax.Array = Array
    jax.device_put = lambda a, device: Array(a, device)
    monkeypatch.setitem(sys.modules, "jax", jax)
