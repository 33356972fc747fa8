"""The explanation in sentences: why this kernel, and what takes the time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cakert import routes
from cakert.explanation.model import Costs, Rates, footprint_mib, start_us
from cakert.explanation.records import Load, Machine, RowCounts, Shape, Tiles

__all__ = ["main_reason", "notes_of", "why_this_family"]

# From where on a cause is named: part of the time that the start takes, part of the SMs that are
# idle, and how much longer the longest SM takes than the mean.
_START, _IDLE, _IMBALANCE = 0.4, 0.1, 1.15


def why_this_family(
    route: routes.Route, shape: Shape, machine: Machine
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Why the route was taken, and why each family before it was not."""
    rows = shape.num_qo_heads * shape.q_blocks
    here = (
        f"{rows:,} rows on {machine.sms} SMs, {shape.kv_blocks:,} KV blocks, "
        f"R = {shape.block}, head_dim {shape.head_dim}"
    )
    passed_over: list[tuple[str, str]] = []
    for name, when, suits in routes.considered(
        machine.capability,
        R=shape.block,
        head_dim=shape.head_dim,
        rows=rows,
        kv_blocks=shape.kv_blocks,
        sms=machine.sms,
    ):
        if name == route.family:
            if not suits:
                return f"routes.only() asked for it; else it is taken {when}", tuple(passed_over)
            taken = "whatever is left" if when == "always" else f"problems {when}"
            return f"takes {taken}; here: {here}", tuple(passed_over)
        reason = "left out by routes.only()" if suits else f"only {when}"
        passed_over.append((name, reason))
    raise AssertionError(f"{route.family} is no family of the table")


def main_reason(
    machine: Machine,
    counts: RowCounts,
    load: Load,
    tiles: Tiles,
    limits: dict[str, float],
    costs: Costs | None,
    bound: str | None,
    head_density: npt.NDArray[np.float64],
) -> tuple[str, str]:
    """Cause and sentence, as of ``Explanation``."""
    idle = 1 - load.busy / machine.sms
    if costs is None or bound is None:
        if idle >= _IDLE and not _mostly_uneven(load, machine):
            return "idle SMs", _idle(counts, load, machine)
        if load.imbalance >= _IMBALANCE:
            return "imbalance", _imbalance(load, head_density)
        return "unknown", (
            "the SMs have about the same work; what bounds this kernel was not measured on this GPU"
        )
    time = limits[bound]
    if bound == "L2":
        return "L2", (
            f"K and V tiles come out of L2 no faster: {tiles.fetched:,} are fetched for "
            f"{tiles.selected:,} that are selected, {_sharing(tiles)}"
        )
    if bound == "HBM":
        return "HBM", "memory cannot deliver faster what the rows need once"
    if bound == "tensor core":
        return "tensor core", "the tensor cores can multiply no faster"
    start = start_us(costs, load, limits["HBM"])
    if start >= _START * time:
        return "start", (
            f"the problem is small: starting and ending the kernel takes {start:.1f} of "
            f"{time:.1f} us"
        )
    if idle >= _IDLE:
        if _mostly_uneven(load, machine):
            return "imbalance", _imbalance(load, head_density)
        return "idle SMs", _idle(counts, load, machine)
    longer = limits["longest SM"] / limits["even steps"]
    if min(longer, load.imbalance) >= _IMBALANCE:
        return "imbalance", _imbalance(load, head_density)
    rate = f"the kernel's own rate, {limits['tensor core'] / time:.0%} of the tensor core's"
    if load.longest * costs.alone > load.most * costs.step:
        return "steps", (
            f"the longest row has {load.longest:,} steps, most of them with little beside it on "
            f"its SM: {costs.alone:.2f} us each, where rows side by side take {costs.step:.2f}; "
            f"{rate}"
        )
    turn = f" and {costs.turn:.2f} us a pair of rows" if costs.turn else ""
    return "steps", f"all SMs are busy to the end, at {costs.step:.2f} us a step{turn}: {rate}"


def _mostly_uneven(load: Load, machine: Machine) -> bool:
    """Whether SMs without work cost less than uneven work among those that have some."""
    return load.busy > 0 and load.imbalance > (machine.sms / load.busy) ** 2


def _idle(counts: RowCounts, load: Load, machine: Machine) -> str:
    few = "too few rows"
    if counts.empty:
        few = f"{counts.empty:,} of {counts.rows:,} rows select nothing"
    return f"{few}: {load.busy} of {machine.sms} SMs have work, the longest has {load.most:,} steps"


def _imbalance(load: Load, head_density: npt.NDArray[np.float64]) -> str:
    text = (
        f"the work is unevenly spread: the longest SM has {load.most:,} steps, the mean is "
        f"{load.mean:,.1f} ({load.imbalance:.2f} times)"
    )
    if load.longest > load.mean:
        text += f"; a single row or pair has {load.longest:,}, which cannot be divided"
    densest = int(head_density.argmax())
    if head_density[densest] >= 2 * head_density.mean():
        times = head_density[densest] / head_density.mean()
        text += f"; head {densest} is {times:.1f} times as dense as the mean"
    return text


def _sharing(tiles: Tiles) -> str:
    if not tiles.groups:
        return "and this kernel shares none between rows"
    return f"the rows of a pair share {tiles.overlap:.0%}"


def notes_of(
    shape: Shape, machine: Machine, rates: Rates | None, costs: Costs | None, imbalance: float
) -> tuple[str, ...]:
    """What the numbers assume."""
    notes = []
    if costs is None:
        what = "this kernel was not" if machine.measured else "no kernel was"
        notes.append(f"no predicted time: {what} measured on {machine.name} ({machine.sms} SMs)")
    else:
        if imbalance > costs.uneven + 0.05:
            notes.append(
                "no measured mask was as uneven as this one (the longest SM took up to "
                f"{costs.uneven:.2f} times the mean): the error may be larger"
            )
        if shape.dtype != "bfloat16":
            notes.append("the constants were measured with bfloat16")
    if rates is None:
        notes.append("no limits: the rates of this GPU are not known here")
    elif rates.source != "measured":
        notes.append("tensor core and HBM limits are those of the data sheet, which none reaches")
    elif rates.l2 and footprint_mib(shape, machine.sms) > rates.l2[-1][0]:
        notes.append(
            f"the L2 feed was measured out of at most {rates.l2[-1][0]:.0f} MiB; here rows choose "
            f"from {footprint_mib(shape, machine.sms):.0f} MiB at a time: it may be slower"
        )
    return tuple(notes)
