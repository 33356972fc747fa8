"""The pattern that a plan's next run computes, read back from the memory that its kernel reads.

So an updated plan is described as it is now, and no key of it, which may be of the older pattern,
is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.groups import NO_ROW, SLOTS
from cakert.routes import Route
from cakert.validation import Problem

__all__ = ["GroupRecord", "Selection", "read"]

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

_SLAB_ENTRIES = 1 << 22


@dataclass(frozen=True)
class GroupRecord:
    """Groups in the order in which they are taken.

    Attributes
    ----------
    stages
        (groups, 2) int64: stages that the row in each slot computes.
    fetched
        (groups,) int64: tiles of K.
    """

    stages: Int64s
    fetched: Int64s


@dataclass(frozen=True)
class Selection:
    """Which row selects which KV block.

    Attributes
    ----------
    counts
        (rows,) int64.
    order
        (rows,) int64: rows as the grid takes them; None for groups.
    groups
        Where the kernel reads groups.
    cells
        Gives rows and blocks, two int64 arrays of the same length at a time: every selected cell
        once, in any order.
    """

    counts: Int64s
    order: Int64s | None
    groups: GroupRecord | None
    cells: Callable[[], Iterator[tuple[Int64s, Int64s]]]


def read(problem: Problem, route: Route, capacity: int, workspace: dict[str, Any]) -> Selection:
    """Copy a plan's metadata to the host.

    Parameters
    ----------
    capacity
        Entries between two rows' lists.
    workspace
        The plan's memory by name; reading it waits for the work of the device.
    """
    rows = problem.num_qo_heads * problem.q_blocks
    index = np.dtype(np.uint16 if problem.kv_blocks < 65536 else np.uint32)
    if route.grouped:
        return _grouped(problem.kv_blocks, rows, index, workspace)
    counts = workspace["row_counts"].to_numpy("int32", (rows,)).astype(np.int64)
    lists = workspace["row_blocks"].to_numpy(index.name, (rows, capacity))
    width = max(1, int(counts.max()))

    def cells() -> Iterator[tuple[Int64s, Int64s]]:
        for slab in _slabs(rows, width):
            row, column = np.nonzero(np.arange(width) < counts[slab, None])
            yield row + slab.start, lists[slab][row, column].astype(np.int64)

    order = workspace["tile_order"].to_numpy("uint32", (rows,)).astype(np.int64)
    return Selection(counts=counts, order=order, groups=None, cells=cells)


def _slabs(rows: int, width: int) -> Iterator[slice]:
    """Rows of lists, so many that their entries and the int64 positions of these stay small."""
    step = max(1, _SLAB_ENTRIES // width)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _grouped(
    kv_blocks: int, rows: int, index: np.dtype[Any], workspace: dict[str, Any]
) -> Selection:
    counts = workspace["group_counts"]
    groups = counts.nbytes // 4
    entries = counts.to_numpy("int32", (groups,))
    slots = workspace["group_rows"].to_numpy("uint32", (groups, SLOTS))[:, :2]
    stride = workspace["group_members"].nbytes // groups
    members = workspace["group_members"].to_numpy("uint8", (groups, stride))
    blocks = workspace["group_blocks"].to_numpy(index.name, (groups, stride))
    width = max(2, int(entries.max()))
    members, blocks = members[:, :width].copy(), blocks[:, :width]
    members[(np.arange(width) >= entries[:, None]) | (blocks >= kv_blocks)] = 0
    if np.any(members[slots[:, 1] == NO_ROW] & 2):
        raise AssertionError("a group without a second row selects blocks for it")

    def cells() -> Iterator[tuple[Int64s, Int64s]]:
        for slab in _slabs(groups, width):
            for slot in (0, 1):
                group, column = np.nonzero(members[slab] >> slot & 1)
                row = slots[slab, slot][group].astype(np.int64)
                yield row, blocks[slab][group, column].astype(np.int64)

    by_row = np.zeros(rows, np.int64)
    stages = np.zeros((groups, 2), np.int64)
    for slot in (0, 1):
        mine = members >> slot & 1
        there = slots[:, slot] != NO_ROW
        by_row[slots[there, slot]] = np.count_nonzero(mine[there], axis=1)
        # Of the two entries of a stage the second may be none.
        stages[:, slot] = np.count_nonzero(mine[:, ::2], axis=1)
    record = GroupRecord(stages=stages, fetched=np.count_nonzero(members, axis=1).astype(np.int64))
    return Selection(counts=by_row, order=None, groups=record, cells=cells)
