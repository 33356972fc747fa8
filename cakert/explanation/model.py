"""The time of a launch: rates that were measured, and the few constants of each kernel.

Everything is microseconds of one kernel with a cold L2, on an H200. The model is the largest of a
few limits, each of which has a physical meaning; docs/explain.md holds it to the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cakert.explanation.records import Load, Machine, Shape

__all__ = [
    "DEVICES",
    "Costs",
    "Rates",
    "costs_of",
    "footprint_mib",
    "limits_of",
    "rates_of",
    "start_us",
]


@dataclass(frozen=True)
class Rates:
    """What a GPU can do at most.

    Attributes
    ----------
    tensor
        TFLOP/s of 16-bit products with fp32 accumulation.
    hbm
        TB/s.
    l2
        MiB that tiles come from, and TB/s at which they arrive in shared memory; empty: unknown.
    source
        Where the numbers are from.
    """

    tensor: float
    hbm: float
    l2: tuple[tuple[float, float], ...]
    source: str


@dataclass(frozen=True)
class Costs:
    """Constants of a kernel.

    Attributes
    ----------
    start
        From the launch to the first product but for the fill, and from the last one to the end.
    turn
        From the last step of a group to the first of the next one.
    step
        A step of an SM that is full of thread blocks: time by steps, however many run at once.
    alone
        A step of a thread block that has its SM to itself.
    join
        Putting the parts of a cluster together.
    tail
        What a step takes of `step` on SMs that are still at work when others are done: power that
        these leave raises the clock.
    error
        Smallest and largest ``predicted / measured - 1`` of all measurements (docs/explain.md).
    uneven
        Largest `Load.imbalance` among them, where a kernel deals its work itself.
    """

    start: float
    step: float
    error: tuple[float, float]
    turn: float = 0.0
    alone: float = 0.0
    join: float = 0.0
    tail: float = 1.0
    uneven: float = math.inf


DEVICES: dict[str, Machine] = {
    "h200": Machine("NVIDIA H200", (9, 0), 132, measured=True),
    "h100": Machine("NVIDIA H100", (9, 0), 132, measured=False),
    "b200": Machine("NVIDIA B200", (10, 0), 148, measured=False),
    "b300": Machine("NVIDIA B300", (10, 3), 148, measured=False),
}
"""GPUs that can be named without having one."""

_RATES = {
    # docs/bench/h200.json, "ceilings": a product of 8192 x 8192 matrices, a copy of 4 GiB (reads
    # and writes), random 16 KiB tiles by TMA out of so many MiB.
    "NVIDIA H200": Rates(
        tensor=687.2,
        hbm=2.764,
        l2=((16, 9.084), (44, 8.956), (112, 6.083)),
        source="measured",
    ),
    # NVIDIA's data sheets (H100 SXM; HGX B200 and B300), dense. No kernel reaches them.
    "NVIDIA H100": Rates(tensor=989, hbm=3.35, l2=(), source="data sheet"),
    "NVIDIA B200": Rates(tensor=2250, hbm=8.0, l2=(), source="data sheet"),
    "NVIDIA B300": Rates(tensor=2250, hbm=8.0, l2=(), source="data sheet"),
}

# How much of the L2 feed the grouped kernel reaches where that bounds it: 0.89 to 0.91 of it on
# three workloads (docs/kernels.md, "What bounds it").
_OF_L2 = 0.9

# All SMs filling their rings at once with what is not in L2: 5,600 clocks at 1.79 GHz, read in the
# kernel (docs/kernels.md, "What bounds it"). A problem that moves less fills less.
_FILL = 3.1

# (family, R, head_dim). Sources: docs/bench/h200.json; the tables of few rows in docs/kernels.md,
# "sm90_split"; clocks that were read in kernels, the same page.
# sm90_group: `start` 2,600 clocks (8,200 with the fill), `turn` 2,900; `step` fitted to the JSON.
# sm90, R = 128: `start` taken from sm90_group; `step` fitted to the JSON.
# sm90, R = 64: `alone` is the slope between 16 and 64 entries in the column "a row a CTA", `start`
# what is left of its other lines (fitted together where there is no line of 64 entries); `step`
# fitted to the JSON and, for head_dim 128, to the table of "Which kernel".
# sm90_split: `join` 3,000 clocks; `start` and `step` fitted to its column.
# `tail`: fitted to the masks of tools/check_explain.py --gpu with the seeds 1 and 2.
# `error` is found by tools/check_explain.py and rounded away from 0.
_COSTS = {
    ("sm90_group", 64, 128): Costs(
        start=1.5, turn=1.6, step=1.84, tail=0.75, uneven=3.04, error=(-0.08, 0.09)
    ),
    ("sm90", 64, 64): Costs(start=3.2, step=0.319, alone=0.56, error=(-0.03, 0.07)),
    ("sm90", 64, 96): Costs(start=3.2, step=0.394, alone=0.63, error=(-0.04, 0.10)),
    ("sm90", 64, 128): Costs(start=3.4, step=0.55, alone=0.715, error=(-0.13, 0.11)),
    ("sm90", 128, 64): Costs(start=1.5, step=1.209, uneven=1.21, error=(-0.02, 0.01)),
    ("sm90", 128, 96): Costs(start=1.5, step=1.551, tail=0.55, uneven=1.25, error=(-0.03, 0.02)),
    ("sm90", 128, 128): Costs(start=1.5, step=1.74, tail=0.5, uneven=1.26, error=(-0.05, 0.04)),
    ("sm90_split", 64, 64): Costs(start=3.0, step=0.75, join=1.7, error=(-0.04, 0.14)),
    ("sm90_split", 64, 96): Costs(start=3.3, step=0.80, join=1.7, error=(-0.04, 0.08)),
    ("sm90_split", 64, 128): Costs(start=3.6, step=0.88, join=1.7, error=(-0.18, 0.07)),
}


def rates_of(machine: Machine) -> Rates | None:
    """Rates of a GPU; None where none are known."""
    return _RATES.get(machine.name)


def costs_of(machine: Machine, family: str, block: int, head_dim: int) -> Costs | None:
    """Constants of a kernel; None where it was not measured on this GPU."""
    return _COSTS.get((family, block, head_dim)) if machine.measured else None


def footprint_mib(shape: Shape, sms: int) -> float:
    """K and V of the KV heads that two thread blocks an SM work on at a time, in head order."""
    rows = shape.q_blocks * shape.num_qo_heads // shape.num_kv_heads
    heads = min(shape.num_kv_heads, math.ceil(2 * sms / rows))
    return heads * shape.kv_tokens * shape.head_dim * 4 / 2**20


def start_us(costs: Costs, load: Load, hbm_us: float) -> float:
    """What a launch takes besides its steps, given what the memory takes."""
    return costs.start + min(hbm_us, _FILL) + (costs.join if load.cluster > 1 else 0)


def limits_of(
    shape: Shape,
    machine: Machine,
    load: Load,
    rates: Rates | None,
    costs: Costs | None,
    *,
    finish_us: float | None,
    flops: int,
    tile_bytes: int,
    hbm_bytes: int,
) -> dict[str, float]:
    """Microseconds by the name of what limits, as of ``Explanation.limits``.

    Parameters
    ----------
    finish_us
        When the last thread block ends, counted from the first steps, where the hardware deals
        them (`schedule.finish_us`); None where the kernel does.
    tile_bytes
        Of K and V that thread blocks fetch.
    hbm_bytes
        That must come from or go to memory.
    """
    limits: dict[str, float] = {}
    if rates is not None:
        limits["tensor core"] = flops / rates.tensor / 1e6
        if rates.l2:
            sizes, speeds = zip(*rates.l2, strict=True)
            speed = float(np.interp(footprint_mib(shape, machine.sms), sizes, speeds))
            limits["L2"] = tile_bytes / (speed * _OF_L2) / 1e6
        limits["HBM"] = hbm_bytes / rates.hbm / 1e6
    if costs is not None:
        start = start_us(costs, load, limits.get("HBM", _FILL))
        spent = load.sm_steps * costs.step + load.sm_items * costs.turn
        limits["even steps"] = start + float(spent.mean())
        uneven = float(spent.mean()) + costs.tail * float(spent.max() - spent.mean())
        limits["longest SM"] = start + (uneven if finish_us is None else finish_us)
    return limits
