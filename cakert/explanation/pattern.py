"""The pattern that a plan's next run computes, read back from the memory that its kernel reads.

So an updated plan is described as it is now, and no key of it, which may be of the older pattern,
is looked at.
"""

from __future__ import annotations

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
    rows, blocks
        (selected,) int64: every selected cell once, in any order.
    counts
        (rows,) int64.
    order
        (rows,) int64: rows as the grid takes them; None for groups.
    groups
        Where the kernel reads groups.
    """

    rows: Int64s
    blocks: Int64s
    counts: Int64s
    order: Int64s | None
    groups: GroupRecord | None


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
    counts = workspace["row_counts"].to_numpy("int32", (rows,))
    lists = workspace["row_blocks"].to_numpy(index.name, (rows, capacity))
    lists = lists[:, : max(1, int(counts.max()))]
    row, column = np.nonzero(np.arange(lists.shape[1]) < counts[:, None])
    return Selection(
        rows=row,
        blocks=lists[row, column].astype(np.int64),
        counts=counts.astype(np.int64),
        order=workspace["tile_order"].to_numpy("uint32", (rows,)).astype(np.int64),
        groups=None,
    )


def _grouped(
    kv_blocks: int, rows: int, index: np.dtype[Any], workspace: dict[str, Any]
) -> Selection:
    counts = workspace["group_counts"]
    groups = counts.nbytes // 4
    entries = counts.to_numpy("int32", (groups,))
    slots = workspace["group_rows"].to_numpy("uint32", (groups, SLOTS))
    stride = workspace["group_members"].nbytes // groups
    members = workspace["group_members"].to_numpy("uint8", (groups, stride))
    blocks = workspace["group_blocks"].to_numpy(index.name, (groups, stride))
    width = max(2, int(entries.max()))
    members, blocks = members[:, :width].copy(), blocks[:, :width]
    members[(np.arange(width) >= entries[:, None]) | (blocks >= kv_blocks)] = 0

    found_rows, found_blocks, stages = [], [], []
    for slot in (0, 1):
        group, column = np.nonzero(members >> slot & 1)
        found_rows.append(slots[group, slot].astype(np.int64))
        found_blocks.append(blocks[group, column].astype(np.int64))
        # Of the two entries of a stage the second may be none.
        stages.append(np.count_nonzero(members[:, ::2] >> slot & 1, axis=1))
    row = np.concatenate(found_rows)
    if np.any(row == NO_ROW):
        raise AssertionError("a group without a second row selects blocks for it")
    return Selection(
        rows=row,
        blocks=np.concatenate(found_blocks),
        counts=np.bincount(row, minlength=rows),
        order=None,
        groups=GroupRecord(
            stages=np.stack(stages, axis=1).astype(np.int64),
            fetched=np.count_nonzero(members, axis=1).astype(np.int64),
        ),
    )
