"""A plan -> its explanation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cakert import cubins, vsa_device
from cakert.explanation import model, pattern, schedule
from cakert.explanation.reasons import main_reason, notes_of, why_this_family
from cakert.explanation.records import (
    QUANTILES,
    Explanation,
    Machine,
    RowCounts,
    Shape,
    Tiles,
    Traffic,
)
from cakert.validation import Device, is_simulated
from cakert.vsa import CakeVsaPlan

__all__ = ["describe", "explain"]

_PATCHES = 96  # of the heat map, on a side


def explain(plan: dict[str, Any]) -> Explanation:
    """Say what a plan's next run does, and what takes the time.

    Parameters
    ----------
    plan
        From :func:`cakert.plan_cake_vsa`, of any kind of pattern, on a GPU or a simulated device.

    Returns
    -------
    An :class:`~cakert.explanation.Explanation` to ``print``, to ``draw``, or to read.

    Raises
    ------
    TypeError
        ``plan`` is not one.
    RuntimeError
        A graph capture is under way; the plan's simulated device is closed.
    CudaError
        The driver failed.

    Notes
    -----
    After an update it describes the pattern of that update, which is what runs: everything is read
    from the plan's device memory, so it waits for all work of the device. A simulated sm_90a device
    with 132 SMs stands for an H200, the only GPU with a prediction of time.
    """
    if not isinstance(plan, CakeVsaPlan):
        raise TypeError(f"plan must be what plan_cake_vsa returned, got {type(plan).__name__}")
    device = plan._held.device
    vsa_device.require_open(device)
    if vsa_device.capture_under_way((), device):
        raise RuntimeError(
            "explain was called inside a CUDA graph capture: it copies the plan's memory to the "
            "host, explain before or after"
        )
    return describe(plan, _machine_of(device))


def describe(plan: CakeVsaPlan, machine: Machine) -> Explanation:
    """The explanation of a plan whose device stands for `machine`."""
    held = plan._held
    problem, route = held.problem, held.route
    simulated = is_simulated(held.device)
    entry = cubins.store().find(route.name, machine.capability)
    if entry is None:
        raise AssertionError(f"no cubin has the kernel of a plan, {route.name}")
    selection = pattern.read(problem, route, held.capacity, held.workspace)
    shape = Shape(
        q_tokens=problem.M,
        kv_tokens=problem.N,
        block=problem.block,
        q_blocks=problem.q_blocks,
        kv_blocks=problem.kv_blocks,
        num_qo_heads=problem.num_qo_heads,
        num_kv_heads=problem.num_kv_heads,
        head_dim=problem.head_dim,
        dtype=problem.dtype,
    )
    load = schedule.deal(route, entry.kernel(route.name), selection, machine.sms)
    by_head = selection.counts.reshape(shape.num_qo_heads, shape.q_blocks)
    selected = int(selection.counts.sum())
    groups = selection.groups
    heat, needed = _patches(shape, selection)
    tiles = Tiles(
        selected=selected,
        fetched=selected if groups is None else int(groups.fetched.sum()),
        groups=0 if groups is None else len(groups.fetched),
        distinct=int(np.count_nonzero(needed)),
    )
    tile = 2 * shape.block * shape.head_dim * 2  # K and V, 16-bit
    outer = 2 * shape.num_qo_heads * shape.q_tokens * shape.head_dim * 2  # q and out
    plan_bytes = sum(int(space.nbytes) for space in held.workspace.values())
    lists = _list_bytes(shape, tiles, len(selection.counts))
    traffic = Traffic(
        hbm=outer + tiles.distinct * tile + lists,
        l2=outer + tiles.fetched * tile + lists,
        plan=plan_bytes,
    )
    flops = 4 * shape.head_dim * shape.block**2 * selected
    rates = model.rates_of(machine)
    costs = model.costs_of(machine, route.family, shape.block, shape.head_dim)
    finish = None
    if costs is not None and costs.alone:
        steps, _ = schedule.steps_in_order(route, load.threads, selection, machine.sms)
        finish = schedule.finish_us(steps, machine.sms, load.resident, costs.step, costs.alone)
    limits = model.limits_of(
        shape,
        machine,
        load,
        rates,
        costs,
        finish_us=finish,
        flops=flops,
        tile_bytes=tiles.fetched * tile,
        hbm_bytes=traffic.hbm,
    )
    predicted = bound = None
    if costs is not None:
        bound = max(limits, key=lambda name: limits[name])
        predicted = limits[bound]
    why, passed_over = why_this_family(route, shape, machine)
    head_density = by_head.mean(axis=1) / shape.kv_blocks
    counts = _row_counts(selection.counts)
    cause, reason = main_reason(machine, counts, load, tiles, limits, costs, bound, head_density)
    return Explanation(
        route=route.name,
        family=route.family,
        why=why,
        passed_over=passed_over,
        machine=machine,
        shape=shape,
        density=selected / (by_head.size * shape.kv_blocks),
        head_density=head_density,
        row_counts=by_head,
        heat=heat,
        counts=counts,
        tiles=tiles,
        load=load,
        traffic=traffic,
        flops=flops,
        limits=limits,
        predicted_us=predicted,
        error=None if costs is None else costs.error,
        bound=bound,
        cause=cause,
        reason=reason,
        notes=(
            *notes_of(shape, machine, rates, costs, load.imbalance),
            *([f"no GPU was asked: {held.device} stands for it"] if simulated else []),
        ),
    )


def _machine_of(device: Device) -> Machine:
    """The GPU that a plan is on, or that its simulated device stands for."""
    if is_simulated(device):
        for known in model.DEVICES.values():
            if (known.capability, known.sms) == (device.capability, device.multiprocessors):
                return known  # the first of its capability: the H200 of 9.0
        return Machine(str(device), device.capability, device.multiprocessors, measured=False)
    from cakert.runtime import driver

    name = str(driver.device_name(device))
    sms = int(driver.device_multiprocessors(device))
    h200 = model.DEVICES["h200"]
    return Machine(
        name, driver.device_capability(device), sms, (name, sms) == (h200.name, h200.sms)
    )


def _row_counts(counts: npt.NDArray[np.int64]) -> RowCounts:
    rows = len(counts)
    ordered = np.sort(counts)
    return RowCounts(
        rows=rows,
        empty=int(np.count_nonzero(counts == 0)),
        least=int(ordered[0]),
        mean=float(counts.mean()),
        most=int(ordered[-1]),
        quantiles={each: int(ordered[-(-each * rows // 100) - 1]) for each in QUANTILES},
    )


def _patches(
    shape: Shape, selection: pattern.Selection
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Density of patches of the cells of each query head; the blocks that a KV head needs."""
    high, wide = (min(size, _PATCHES) for size in (shape.q_blocks, shape.kv_blocks))
    q_patch = np.arange(shape.q_blocks) * high // shape.q_blocks
    kv_patch = np.arange(shape.kv_blocks) * wide // shape.kv_blocks
    group = shape.num_qo_heads // shape.num_kv_heads
    found = np.zeros(shape.num_qo_heads * high * wide, np.int64)
    needed = np.zeros((shape.num_kv_heads, shape.kv_blocks), np.bool_)
    for rows, blocks in selection.cells():
        head, q_block = np.divmod(rows, shape.q_blocks)
        needed[head // group, blocks] = True
        cell = (head * high + q_patch[q_block]) * wide + kv_patch[blocks]
        found += np.bincount(cell, minlength=len(found))
    size = np.bincount(q_patch)[:, None] * np.bincount(kv_patch)
    return found.reshape(-1, high, wide) / size, needed


def _list_bytes(shape: Shape, tiles: Tiles, rows: int) -> int:
    """What of the plan's memory a run has to read: entries in use, and a few words a row."""
    index = 2 if shape.kv_blocks < 65536 else 4
    if tiles.groups:
        return tiles.fetched * (index + 1) + tiles.groups * (4 + 8)
    return tiles.selected * index + rows * 8
