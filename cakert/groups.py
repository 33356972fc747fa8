"""From row lists to groups: which rows share the K and V tiles that a thread block fetches.

A group is up to two rows of one KV head; its kernel computes each row in a *slot* of its own, and
fetches every tile of the union of their lists once. The record that it reads is described in
``cuda/vsa_params.h``. How many groups there are depends on shapes alone, so that an update brings
any pattern into the memory of a plan; which rows make a group depends on the pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert import group_lists

__all__ = ["NO_ROW", "SLOTS", "Groups", "group_shape", "plan_groups"]

Array = npt.NDArray[Any]
Pairs = npt.NDArray[np.uint32]

SLOTS = 8  # of a group in the record (CAKE_VSA_GROUP_ROWS), of which two are used
NO_ROW = np.uint32(0xFFFFFFFF)


@dataclass(frozen=True)
class Groups:
    """Host side of the group record of one pattern.

    Attributes
    ----------
    rows
        (groups, SLOTS) uint32: the row in each slot, or ``NO_ROW``. Slot 0 always has one.
    blocks
        (groups, width), type of the row lists: entries 2i and 2i + 1 are a stage. ``width`` is that
        of the longest group, rounded up to 64 where the stride allows it. Entries that are no block
        are ``kv_blocks``.
    members
        (groups, width) uint8: bit ``slot`` says that the slot's row selects the block.
    counts
        (groups,) int32: entries of each group, even.
    stride
        Entries between two groups on the device: the longest that an update may bring, even.
    tiles
        Tiles of K that are fetched in all, and as many of V.
    """

    rows: npt.NDArray[np.uint32]
    blocks: Array
    members: npt.NDArray[np.uint8]
    counts: npt.NDArray[np.int32]
    stride: int
    tiles: int


def group_shape(
    *,
    num_qo_heads: int,
    num_kv_heads: int,
    q_blocks: int,
    kv_blocks: int,
    capacity: int,
) -> tuple[int, int]:
    """How many groups a problem has, whatever its pattern, and the stride of their lists.

    Parameters
    ----------
    capacity
        Entries of the longest row list (``planner.Pattern.capacity``).
    """
    heads = num_qo_heads // num_kv_heads
    # Each row has as many stages as its length asks for, the union at most two half ones.
    stride = min((kv_blocks + 2) // 2 * 2, 2 * _even(capacity))
    return num_kv_heads * ((heads * q_blocks + 1) // 2), stride


def plan_groups(
    row_blocks: Array,
    row_counts: npt.NDArray[np.int32],
    *,
    kv_blocks: int,
    num_kv_heads: int,
    sms: int,
    capacity: int,
) -> Groups:
    """Pair rows, order the pairs and write their stages.

    Parameters
    ----------
    row_blocks
        (rows, width) uint16 or uint32, contiguous: ascending, unique, padded with ``kv_blocks``.
    row_counts
        (num_qo_heads, q_blocks) int32; rows without entries are taken.
    sms
        SMs of the device: thread block c takes the groups c, c + sms, c + 2 sms, ...
    capacity
        Entries of the longest list that an update may bring.

    Notes
    -----
    The stages of a group: its union in classes by members, each ascending and cut in twos, stage k
    of n at (k + 1/2) / n of the group. So the rows of a group get on evenly, and all groups sweep K
    and V upwards together, which keeps them in L2. Of equal places members 3 go first, then 1. Of
    an odd number of shared blocks the last is fetched for each row, where that spares one of them
    a half stage.

    The same input gives the same record. 7 x 1713 rows of 64 blocks take about 3 ms on one core.
    """
    num_qo_heads, q_blocks = row_counts.shape
    counts = np.ascontiguousarray(row_counts).reshape(-1)
    groups, stride = group_shape(
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        q_blocks=q_blocks,
        kv_blocks=kv_blocks,
        capacity=capacity,
    )
    pairs, shared = _best_pairs(row_blocks, counts, kv_blocks, num_kv_heads, q_blocks)
    first, second = _counts_of(pairs, counts)
    cost = _cost(first, second, shared)
    lengths = _even(first - shared) + _even(second - shared) + _even(shared)
    order = _order(cost, sms)
    pairs = np.ascontiguousarray(pairs.reshape(-1, 2)[order])
    lengths = lengths.reshape(-1)[order]
    # Kernels read a list 64 entries at a time, and ignore what lies past its count: that far it is
    # written, so that no checker of memory has to be told.
    width = min(stride, (max(1, int(lengths.max())) + 63) // 64 * 64)
    blocks, members = group_lists.fill_stages(row_blocks, counts, pairs, kv_blocks, width)
    slots = np.full((groups, SLOTS), NO_ROW, np.uint32)
    slots[:, :2] = pairs
    return Groups(
        rows=slots,
        blocks=blocks,
        members=members,
        counts=lengths.astype(np.int32),
        stride=stride,
        tiles=int((first + second - shared).sum(dtype=np.int64)),
    )


def _even(count: Any) -> Any:
    return count + count % 2


def _fetched_once(first: Array, second: Array, shared: Array) -> Array:
    """How many shared blocks a pair fetches once: the odd one not, if that spares a half stage."""
    spared = shared % 2 & ((first - shared) % 2 | (second - shared) % 2)
    once: Array = shared - spared
    return once


def _cost(first: Array, second: Array, shared: Array) -> Array:
    """Four times what a pair costs: its longer row, and a quarter of the tiles that it fetches.

    A pair takes as long as its longer row. Tiles cost bandwidth beside that; how much, the quarter
    guesses.
    """
    cost: Array = 4 * np.maximum(first, second).astype(np.int64) + (first + second - shared)
    return cost


def _counts_of(pairs: Pairs, counts: npt.NDArray[np.int32]) -> tuple[Array, Array]:
    """List lengths of the rows of pairs, 0 for no row."""
    padded = np.append(counts, np.int32(0))
    first, second = np.moveaxis(np.minimum(pairs, np.uint32(len(counts))), -1, 0)
    return padded[first], padded[second]


def _best_pairs(
    row_blocks: Array,
    counts: npt.NDArray[np.int32],
    kv_blocks: int,
    num_kv_heads: int,
    q_blocks: int,
) -> tuple[Pairs, Array]:
    """The cheapest candidate of every KV head, (num_kv_heads, pairs, 2), and what its pairs share.

    Shared is what they fetch once for both rows.

    The candidates that are named first win ties: the same query block of two heads, neighbouring
    query blocks of a head, rows of about the same length.
    """
    rows = len(counts) // num_kv_heads
    heads = rows // q_blocks
    starts = np.arange(0, len(counts), rows, dtype=np.uint32)[:, None, None]
    candidates = []
    if heads > 1:
        candidates.append(_shifted(_across_heads(heads, q_blocks), starts))
    candidates.append(_shifted(_neighbours(heads, q_blocks), starts))
    if counts.min() != counts.max():
        by_length = _by_length(counts.reshape(num_kv_heads, rows), kv_blocks)
        candidates.append(_shifted(by_length, starts))
    shared, costs = [], []
    for pairs in candidates:
        both = group_lists.count_shared(row_blocks, counts, pairs.reshape(-1, 2), kv_blocks)
        first, second = _counts_of(pairs, counts)
        shared.append(_fetched_once(first, second, both.reshape(num_kv_heads, -1)))
        costs.append(_cost(first, second, shared[-1]).sum(axis=1))
    best = np.argmin(costs, axis=0)
    head = np.arange(num_kv_heads)
    return np.stack(candidates)[best, head], np.stack(shared)[best, head]


def _shifted(pairs: Pairs, starts: Pairs) -> Pairs:
    """Pairs of rows that each KV head numbers from 0, as rows of all."""
    return np.where(pairs == NO_ROW, NO_ROW, pairs + starts)


def _paired(rows: Pairs) -> Pairs:
    """Consecutive rows on the last axis as pairs; a row too many stays alone."""
    if rows.shape[-1] % 2:
        rows = np.concatenate((rows, np.full((*rows.shape[:-1], 1), NO_ROW)), axis=-1)
    return rows.reshape(*rows.shape[:-1], -1, 2)


def _neighbours(heads: int, q_blocks: int) -> Pairs:
    """Query blocks 2i and 2i + 1 of a head; the last ones of two heads, where they are odd."""
    rows = np.arange(heads * q_blocks, dtype=np.uint32).reshape(heads, q_blocks)
    even = q_blocks // 2 * 2
    return np.concatenate((rows[:, :even].reshape(-1, 2), _paired(rows[:, even:].reshape(-1))))


def _across_heads(heads: int, q_blocks: int) -> Pairs:
    """One query block of heads 2j and 2j + 1; neighbours of the last head, where they are odd."""
    rows = np.arange(heads * q_blocks, dtype=np.uint32).reshape(heads, q_blocks)
    even = heads // 2 * 2
    twos = np.stack((rows[0:even:2], rows[1:even:2]), axis=-1).reshape(-1, 2)
    return np.concatenate((twos, _paired(rows[even:].reshape(-1))))


def _by_length(counts: npt.NDArray[np.int32], kv_blocks: int) -> Pairs:
    """Rows of each KV head by falling length, consecutive ones paired."""
    # numpy's stable sort is a radix sort for 16-bit keys and 5 times slower for wider ones.
    key = (kv_blocks - counts).astype(np.uint16 if kv_blocks < 65536 else np.uint32)
    return _paired(np.argsort(key, axis=1, kind="stable").astype(np.uint32))


def _order(cost: Array, sms: int) -> Array:
    """Groups as they are taken: KV heads one after another, the costly groups of each first.

    Thread block c takes the places c, c + sms, c + 2 sms, ... In each round of ``sms`` groups the
    costliest goes to the thread block with the least work so far. Groups of equal cost keep their
    order, for neighbours select alike.
    """
    num_kv_heads, groups = cost.shape
    falling = np.argsort(-cost, axis=1, kind="stable")
    sequence = (falling + np.arange(0, num_kv_heads * groups, groups)[:, None]).reshape(-1)
    flat = cost.reshape(-1)
    if flat.min() == flat.max():
        return sequence
    work = np.zeros(sms, np.int64)
    taken = []  # of each round, by thread block
    for start in range(0, len(sequence), sms):
        round_ = sequence[start : start + sms]
        idle_first = np.argsort(work, kind="stable")[: len(round_)]
        by_block = np.full(sms, -1, np.int64)
        by_block[idle_first] = round_[np.argsort(-flat[round_], kind="stable")]
        work[idle_first] += flat[by_block[idle_first]]
        taken.append(by_block)
    # The last round may be short: its groups belong to the first places, so those who have one
    # become the first thread blocks.
    renamed = np.argsort(taken[-1] < 0, kind="stable")
    return np.concatenate([by_block[renamed] for by_block in taken])[: len(sequence)]
