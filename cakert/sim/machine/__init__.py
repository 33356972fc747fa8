"""The machine: launch loop, CTAs, schedules, asynchronous engine, and what synchronises warps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cakert.sim.machine import (
    barriers,
    clusters,
    fences,
    launch_control,
    mbarrier_instructions,
    registers,
)

__all__ = ["INSTRUCTIONS"]

INSTRUCTIONS: dict[str, Callable[..., Any]] = {
    **barriers.INSTRUCTIONS,
    **clusters.INSTRUCTIONS,
    **fences.INSTRUCTIONS,
    **launch_control.INSTRUCTIONS,
    **mbarrier_instructions.INSTRUCTIONS,
    **registers.INSTRUCTIONS,
}
