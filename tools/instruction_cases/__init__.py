"""Single instructions that a GPU is asked about once, and the simulator ever after.

Each case is a small kernel in PTX for sm_90a with its inputs; `record_gpu_instructions.py` runs all
of them on a GPU, `tests/sim/test_recorded_instructions.py` runs them on the simulator.
"""

from __future__ import annotations

from functools import cache

from instruction_cases import (
    conversions,
    copies,
    floats,
    integers,
    matrices,
    tma,
    warps,
    wgmma,
)
from instruction_cases.model import Case

__all__ = ["GROUPS", "all_cases"]

GROUPS = {
    "tma": tma.cases,
    "copies": copies.cases,
    "matrices": matrices.cases,
    "wgmma": wgmma.cases,
    "floats": floats.cases,
    "conversions": conversions.cases,
    "integers": integers.cases,
    "warps": warps.cases,
}


@cache
def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    found: dict[str, Case] = {}
    for make in GROUPS.values():
        for case in make():
            assert case.name not in found, f"two cases are named {case.name}"
            found[case.name] = case
    return found
