"""A GPU that executes PTX on the CPU, and finds what a GPU would not tell.

It knows nothing of attention. :class:`Gpu` runs any PTX; :func:`device` gives plans a device. Names
are loaded when they are first used, so that reading PTX needs nothing but the reader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = [
    "ARCHITECTURES",
    "Array",
    "Comparison",
    "Fault",
    "Gpu",
    "Lent",
    "Module",
    "PtxError",
    "Report",
    "SimError",
    "SimulatedDevice",
    "TensorMap",
    "UnsupportedInstruction",
    "Where",
    "compare_schedules",
    "device",
]

if TYPE_CHECKING:
    from cakert.sim.arrays import Array, Lent
    from cakert.sim.copies.tensor_map import TensorMap
    from cakert.sim.faults import Fault, PtxError, SimError, UnsupportedInstruction, Where
    from cakert.sim.gpu import Gpu, Module
    from cakert.sim.plan_device import SimulatedDevice, device
    from cakert.sim.report import Report
    from cakert.sim.schedules import Comparison, compare_schedules
    from cakert.sim.targets import ARCHITECTURES

_HOMES = {
    "ARCHITECTURES": "targets",
    "Array": "arrays",
    "Comparison": "schedules",
    "Fault": "faults",
    "Gpu": "gpu",
    "Lent": "arrays",
    "Module": "gpu",
    "PtxError": "faults",
    "Report": "report",
    "SimError": "faults",
    "SimulatedDevice": "plan_device",
    "TensorMap": "copies.tensor_map",
    "UnsupportedInstruction": "faults",
    "Where": "faults",
    "compare_schedules": "schedules",
    "device": "plan_device",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cakert.sim' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"cakert.sim.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
