"""Precompiled CUDA kernels from Python at the driver's own cost; block-sparse attention first.

Importing this package touches no driver and imports no framework: names are loaded when they
are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = [
    "CubinError",
    "CudaError",
    "DeviceArray",
    "Kernel",
    "Launcher",
    "Library",
    "__version__",
    "check_cake_vsa",
    "explain",
    "inspect",
    "plan_cake_vsa",
    "reference",
    "run_cake_vsa",
    "sim",
    "update_cake_vsa",
]

if TYPE_CHECKING:
    from cakert import inspect, reference, sim
    from cakert.errors import CubinError, CudaError
    from cakert.explanation import explain
    from cakert.runtime.library import Kernel, Launcher, Library
    from cakert.runtime.memory import DeviceArray
    from cakert.vsa import check_cake_vsa, plan_cake_vsa, run_cake_vsa, update_cake_vsa

    __version__: str

_MODULES = ("inspect", "reference", "sim")
_HOMES = {
    "CubinError": "cakert.errors",
    "CudaError": "cakert.errors",
    "DeviceArray": "cakert.runtime.memory",
    "Kernel": "cakert.runtime.library",
    "Launcher": "cakert.runtime.library",
    "Library": "cakert.runtime.library",
    "check_cake_vsa": "cakert.vsa",
    "explain": "cakert.explanation",
    "plan_cake_vsa": "cakert.vsa",
    "run_cake_vsa": "cakert.vsa",
    "update_cake_vsa": "cakert.vsa",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name in _MODULES:
        value: Any = importlib.import_module(f"cakert.{name}")
    elif name == "__version__":
        value = _version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'cakert' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("cakert")
    except metadata.PackageNotFoundError:  # a source tree on sys.path, not installed
        return "0+source"
