"""Which SM computes what: the grids of `routes`, the loops of the kernels, the hardware's dealing.

A step is what a thread block does at a time: a KV block of a row, or a stage of two blocks. The
unit is the same for all rows of a launch, so steps add up.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cakert.cubins.manifest import KernelInfo
from cakert.explanation.pattern import GroupRecord, Selection
from cakert.explanation.records import Load
from cakert.routes import Route

__all__ = [
    "deal",
    "dealt_in_order",
    "dealt_round",
    "finish_us",
    "resident_blocks",
    "split_steps",
    "steps_in_order",
]

Int64s = npt.NDArray[np.int64]

# Of every architecture that there are cubins for (CUDA C++ Programming Guide, "Compute
# Capabilities"): shared memory of an SM, what the system takes of it for each thread block, 32-bit
# registers of an SM, which are given to warps 256 at a time, and the most warps.
_SHARED_BYTES, _SHARED_RESERVED = 228 * 1024, 1024
_REGISTERS, _REGISTER_UNIT = 65536, 256
_WARPS = 64


@dataclass(frozen=True)
class _Dealt:
    steps: Int64s
    items: Int64s


def resident_blocks(kernel: KernelInfo, threads: int) -> int:
    """Thread blocks of a kernel that an SM holds at a time, by its resources."""
    warps = (threads + 31) // 32
    of_warp = -(-kernel.registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    # From sm_90 on the static part has the reserved bytes in front (docs/cubin-tool.md).
    shared = kernel.shared_bytes + _SHARED_RESERVED
    limits = (_REGISTERS // (of_warp * warps), _SHARED_BYTES // shared, _WARPS // warps)
    return max(1, min(limits))


def deal(route: Route, kernel: KernelInfo, selection: Selection, sms: int) -> Load:
    """The load of each SM.

    Parameters
    ----------
    kernel
        The route's kernel, of the manifest.
    """
    threads = route.threads or kernel.threads
    resident = resident_blocks(kernel, threads)
    steps, name = steps_in_order(route, threads, selection, sms)
    items = len(steps) // route.cluster
    grid = route.grid(items, sms) * route.cluster
    # A grid that is as large as its items is dealt by the hardware.
    dealt = dealt_in_order(steps, sms) if grid == len(steps) else dealt_round(steps, sms)
    return Load(
        grid=grid,
        cluster=route.cluster,
        threads=threads,
        resident=resident,
        waves=grid / (resident * sms),
        step=name,
        sm_steps=dealt.steps,
        sm_items=dealt.items,
        longest=int(steps.max()),
    )


def steps_in_order(
    route: Route, threads: int, selection: Selection, sms: int
) -> tuple[Int64s, str]:
    """Steps of each item (row, group, or part of a row) as the launch has them; what a step is."""
    if selection.groups is not None:
        return group_steps(selection.groups), "128 keys of the longer row of a pair"
    if route.cluster > 1 or route.threads is not None:
        parts = split_steps(selection.counts, route.cluster, 2 if threads > 160 else 1)
        return parts.reshape(-1), "a block of keys of a warpgroup"
    counts, order = selection.counts, selection.order
    # Where all rows run at once none looks its number up (vsa_device.make_call).
    in_order = order is None or len(counts) <= sms * route.per_sm
    return counts if in_order else counts[order], "a block of keys of a row"


def group_steps(groups: GroupRecord) -> Int64s:
    """Steps of each group: its rows are computed side by side, the longer one counts."""
    result: Int64s = groups.stages.max(axis=1)
    return result


def split_steps(counts: Int64s, cluster: int, warpgroups: int) -> Int64s:
    """(rows, cluster): thread block c takes entries c, c + cluster, ...; warpgroups in turns."""
    entries = (counts[:, None] + cluster - 1 - np.arange(cluster)) // cluster
    result: Int64s = -(-entries // warpgroups)
    return result


def dealt_round(steps: Int64s, sms: int) -> _Dealt:
    """Thread block c of `sms` takes the items c, c + sms, c + 2 sms, ..."""
    rounds = -(-len(steps) // sms)
    padded = np.zeros(rounds * sms, np.int64)
    padded[: len(steps)] = steps
    items = len(steps) // sms + (np.arange(sms) < len(steps) % sms)
    return _Dealt(padded.reshape(rounds, sms).sum(axis=0), items)


def dealt_in_order(steps: Int64s, sms: int) -> _Dealt:
    """Each item to the SM with the least work so far, the first one of several."""
    if len(steps) <= sms:
        padded = np.zeros(sms, np.int64)
        padded[: len(steps)] = steps
        return _Dealt(padded, (np.arange(sms) < len(steps)).astype(np.int64))
    heap = [(0, sm) for sm in range(sms)]
    total, items = [0] * sms, [0] * sms
    for each in steps.tolist():
        work, sm = heap[0]
        heapq.heapreplace(heap, (work + each, sm))
        total[sm] += each
        items[sm] += 1
    return _Dealt(np.array(total, np.int64), np.array(items, np.int64))


def finish_us(steps: Int64s, sms: int, resident: int, step: float, alone: float) -> float:
    """When the last of the thread blocks ends that the hardware deals, one an item.

    Parameters
    ----------
    steps
        Of each item, in grid order.
    resident
        Thread blocks that an SM holds at a time.
    step, alone
        Microseconds of a step: of an SM that is full, which its thread blocks share, and of a
        thread block at least.

    Notes
    -----
    All slots are filled, an SM after the other, then each item goes where a slot is free first.
    The thread blocks of an SM share it evenly.
    """
    waiting = iter(steps[steps > 0].tolist())
    left: list[list[float]] = [[] for _ in range(sms)]
    for _ in range(resident):
        for slots, item in zip(left, waiting, strict=False):
            slots.append(item)
    since = [0.0] * sms

    def next_end(sm: int) -> tuple[float, int]:
        return since[sm] + min(left[sm]) * max(alone, step * len(left[sm])), sm

    heap = [next_end(sm) for sm in range(sms) if left[sm]]
    heapq.heapify(heap)
    now = 0.0
    while heap:
        now, sm = heapq.heappop(heap)
        shortest = min(left[sm])
        going_on = [each - shortest for each in left[sm] if each - shortest > 1e-9]
        taken = len(left[sm]) - len(going_on)
        left[sm] = [*going_on, *itertools.islice(waiting, taken)]
        since[sm] = now
        if left[sm]:
            heapq.heappush(heap, next_end(sm))
    return now
