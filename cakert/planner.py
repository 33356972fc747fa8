"""From a sparsity pattern (mask, BSR or q2k lists) to the row lists that kernels read.

Pure numpy on the host. A *row* is one query block of one query head, numbered
``head * q_blocks + q_block``. Whatever the source, a row's list is ascending, unique and
packed to the left; the count says how many entries are valid, padding is never read.

Value checks have one code path and two outcomes, chosen by :class:`Faults`: a plan raises at the
first fault, an update repairs it (skip, clamp, deduplicate) and remembers the first message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Faults", "Pattern", "from_bsr", "from_mask", "from_q2k", "plan_block_lens"]

Array = npt.NDArray[Any]

# Cells of a mask that are expanded at a time: the int64 positions of a slab then stay in the L2
# cache. Measured on 7 x 1713 x 1713: 64 Ki 27 ms, 256 Ki 25 ms, 1 Mi 25 ms, 4 Mi 40 ms.
_SLAB_CELLS = 1 << 18


class Faults:
    """Collects what is wrong with the values of a pattern.

    Parameters
    ----------
    strict
        True: ``report`` raises ValueError (plan). False: the first message is kept in
        ``first`` and the caller of ``report`` goes on with repaired values (update).
    """

    __slots__ = ("first", "strict")

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.first: str | None = None

    def report(self, message: str) -> None:
        """Raise ValueError(message), or keep it where it is the first."""
        if self.strict:
            raise ValueError(message)
        if self.first is None:
            self.first = message


@dataclass(frozen=True)
class Pattern:
    """Host metadata of one sparsity pattern.

    Attributes
    ----------
    row_blocks
        (rows, width) uint16, or uint32 from 65536 KV blocks on: the selected KV blocks of each row,
        ascending and unique. ``width`` is the largest count (at least 1). Entries past the count
        are ``kv_blocks``, an index that no kernel would follow.
    row_counts
        (num_qo_heads, q_blocks) int32: valid entries of each row.
    tile_order
        (rows,) uint32: rows in the order in which the grid takes them. Within a head the longest
        first, so that the tail of the launch is short; heads stay together, because the rows of a
        head share K and V in L2.
    capacity
        Entries between two rows' lists on the device (the largest list that an update may
        bring): ``kv_blocks`` for a mask and BSR, ``topk`` for q2k.
    shared
        ``(indptr, indices)``, both int32: the canonical BSR pattern, where every query head has the
        same rows; otherwise None.
    """

    row_blocks: Array
    row_counts: npt.NDArray[np.int32]
    tile_order: npt.NDArray[np.uint32]
    capacity: int
    shared: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None

    @property
    def index_bytes(self) -> int:
        """Bytes of one entry of ``row_blocks``: 2 or 4."""
        return int(self.row_blocks.dtype.itemsize)

    @property
    def max_selected(self) -> int:
        """Length of the longest row."""
        return int(self.row_counts.max())

    @property
    def uniform(self) -> bool:
        """Whether all rows have the same length."""
        return bool(self.row_counts.min() == self.row_counts.max())


def from_mask(mask: Array, *, num_qo_heads: int, faults: Faults) -> Pattern:
    """Row lists of a block mask.

    Parameters
    ----------
    mask
        (num_qo_heads, q_blocks, kv_blocks) or (num_kv_heads, q_blocks, kv_blocks), bool or uint8
        (read as ``!= 0``), any strides. A KV head's rows serve all query heads of its group.
    num_qo_heads
        A multiple of ``mask.shape[0]``.
    faults
        Takes "a row selects no block".

    Notes
    -----
    Extra memory: one copy of the mask where its rows cannot be merged without one, and the
    lists themselves. 7 x 1713 x 1713 takes about 25 ms on one core, at 4 % and at 25 % density.
    """
    heads, q_blocks, kv_blocks = mask.shape
    # Bytes, not bools: a foreign bool may hold any non-zero byte, and counting adds bytes up.
    rows = mask.view(np.uint8).reshape(heads * q_blocks, kv_blocks)
    step = max(1, _SLAB_CELLS // kv_blocks)
    counts: npt.NDArray[np.int32] = np.empty(len(rows), np.int32)
    for start in range(0, len(rows), step):
        selected = rows[start : start + step] != 0
        counts[start : start + step] = selected.view(np.uint8).sum(axis=1, dtype=np.int32)
    _report_empty_rows(counts, q_blocks, "block_mask", faults)

    width = max(1, int(counts.max()))
    lists = np.full((len(rows), width), kv_blocks, _index_dtype(kv_blocks))
    columns = np.arange(width, dtype=np.int32)
    for start in range(0, len(rows), step):
        # flatnonzero of bools on one axis is 4-5 times faster than nonzero on two, or of bytes.
        position = np.flatnonzero(rows[start : start + step] != 0)
        count = counts[start : start + step]
        position -= np.repeat(np.arange(0, len(count) * kv_blocks, kv_blocks), count)
        lists[start : start + step][columns < count[:, None]] = position.astype(lists.dtype)
    group = num_qo_heads // heads
    counts = counts.reshape(heads, q_blocks)
    if group > 1:
        lists = np.repeat(lists.reshape(heads, q_blocks, width), group, axis=0)
        lists = lists.reshape(num_qo_heads * q_blocks, width)
        counts = np.repeat(counts, group, axis=0)
    return _pattern(lists, counts, kv_blocks, capacity=kv_blocks)


def from_bsr(
    indptr: Array,
    indices: Array,
    *,
    q_blocks: int,
    kv_blocks: int,
    num_qo_heads: int,
    faults: Faults,
) -> Pattern:
    """Row lists of one BSR pattern that all query heads share.

    Parameters
    ----------
    indptr, indices
        (q_blocks + 1,) and (nnz,), any integer type. Rows may be unsorted and may repeat a column.
    faults
        Takes the range checks of both arrays and "a row selects no block". There is no repair
        for a broken ``indptr``, so it must be strict.

    Notes
    -----
    A dense mask is never made. Every row of the result is as wide as the longest: one full row
    among short ones makes the lists, not the pattern, the size of Hq * MB * NB entries.
    """
    if not faults.strict:
        raise AssertionError("BSR patterns come from plan only, which is strict")
    nnz = len(indices)
    if indptr[0] != 0:
        faults.report(f"indptr must start at 0, got {int(indptr[0])}")
    if indptr[-1] != nnz:
        faults.report(f"indptr must end at len(indices) = {nnz}, got {int(indptr[-1])}")
    falls = np.flatnonzero(indptr[1:] < indptr[:-1])
    if len(falls):
        row = int(falls[0])
        faults.report(
            f"indptr must not fall, got {int(indptr[row])} then {int(indptr[row + 1])} "
            f"at query block {row}"
        )
    bad = np.flatnonzero((indices < 0) | (indices >= kv_blocks))
    if len(bad):
        first = int(bad[0])
        row = int(np.searchsorted(indptr, first, side="right")) - 1
        faults.report(
            f"indices entries must be in [0, NB) = [0, {kv_blocks}), got {int(indices[first])} "
            f"at query block {row} (position {first})"
        )
    counts = np.diff(indptr).astype(np.int32)
    _report_empty_rows(counts, 0, "indptr/indices", faults)

    packed = indices.astype(_index_dtype(kv_blocks))
    rises = packed[1:] > packed[:-1]
    rises[indptr[1:-1] - 1] = True  # between two rows; no row is empty by now
    if not rises.all():
        key = np.repeat(np.arange(q_blocks, dtype=np.int64) * kv_blocks, counts)
        key += packed
        key.sort()
        key = key[np.concatenate(([True], key[1:] != key[:-1]))]
        row_of = key // kv_blocks
        packed = (key - row_of * kv_blocks).astype(packed.dtype)
        counts = np.bincount(row_of, minlength=q_blocks).astype(np.int32)

    width = max(1, int(counts.max()))
    lists = np.full((q_blocks, width), kv_blocks, packed.dtype)
    lists[np.arange(width, dtype=np.int32) < counts[:, None]] = packed
    all_counts = np.tile(counts, (num_qo_heads, 1))
    return Pattern(
        row_blocks=np.tile(lists, (num_qo_heads, 1)),
        row_counts=all_counts,
        tile_order=_tile_order(all_counts, kv_blocks),
        capacity=kv_blocks,
        shared=(_indptr(counts), packed.astype(np.int32)),
    )


def from_q2k(
    q2k_indices: npt.NDArray[np.int32],
    q2k_num: npt.NDArray[np.int32],
    *,
    kv_blocks: int,
    faults: Faults,
) -> Pattern:
    """Row lists of per-head index lists.

    Parameters
    ----------
    q2k_indices
        (num_qo_heads, q_blocks, topk) int32.
    q2k_num
        (num_qo_heads, q_blocks) int32: active entries of each row. Entries past it are not
        read as indices, they may hold anything.
    faults
        Takes, in this order: counts outside [1, topk], active indices outside [0, kv_blocks), a
        row that names a block twice. Repaired: the count is clamped to [0, topk], such an
        index is skipped, a block named twice counts once.
    """
    num_qo_heads, q_blocks, topk = q2k_indices.shape
    counts = np.ascontiguousarray(q2k_num).reshape(-1)
    outside = np.flatnonzero((counts < 1) | (counts > topk))
    if len(outside):
        row = int(outside[0])
        faults.report(
            f"q2k_num entries must be in [1, topk] = [1, {topk}], got {int(counts[row])} "
            f"at {_where(row, q_blocks)}"
        )
        counts = counts.clip(0, topk)

    rows = np.ascontiguousarray(q2k_indices).reshape(-1, topk)
    inside = rows.view(np.uint32) < kv_blocks  # one comparison: negative numbers wrap to large
    active = np.arange(topk, dtype=np.int32) < counts[:, None]
    bad = np.flatnonzero(active & ~inside)
    if len(bad):
        row, column = divmod(int(bad[0]), topk)
        faults.report(
            f"active q2k_indices entries must be in [0, NB) = [0, {kv_blocks}), "
            f"got {int(rows[row, column])} at {_where(row, q_blocks)}, position {column}"
        )
    inside &= active
    lists = np.where(inside, rows, kv_blocks).astype(_index_dtype(kv_blocks))
    if not (lists[:, :-1] <= lists[:, 1:]).all():
        lists.sort(axis=1)
    again = (lists[:, 1:] == lists[:, :-1]) & (lists[:, 1:] != kv_blocks)
    repeats = np.flatnonzero(again)
    if len(repeats):
        row, column = divmod(int(repeats[0]), topk - 1)
        faults.report(
            f"a row of q2k_indices must name each block once, got block "
            f"{int(lists[row, column])} twice at {_where(row, q_blocks)}"
        )
        lists[:, 1:][again] = kv_blocks
        lists.sort(axis=1)
    if len(bad) or len(repeats):
        counts = np.count_nonzero(lists != kv_blocks, axis=1).astype(np.int32)
    width = max(1, int(counts.max()))
    return _pattern(
        np.ascontiguousarray(lists[:, :width]),
        counts.reshape(num_qo_heads, q_blocks).astype(np.int32),
        kv_blocks,
        capacity=topk,
    )


def plan_block_lens(lens: Array, *, block: int, faults: Faults) -> npt.NDArray[np.int32]:
    """Valid tokens of each KV block, checked against [1, block] and clamped to [0, block].

    Parameters
    ----------
    lens
        (kv_blocks,), any integer type and strides.

    Returns
    -------
    (kv_blocks,) int32, never sharing memory with ``lens``.
    """
    bad = np.flatnonzero((lens < 1) | (lens > block))
    if len(bad):
        first = int(bad[0])
        faults.report(
            f"kv_block_lens entries must be in [1, C] = [1, {block}], "
            f"got {int(lens[first])} at KV block {first}"
        )
    return lens.clip(0, block).astype(np.int32)


def _pattern(lists: Array, counts: npt.NDArray[np.int32], kv_blocks: int, capacity: int) -> Pattern:
    return Pattern(
        row_blocks=lists,
        row_counts=counts,
        tile_order=_tile_order(counts, kv_blocks),
        capacity=capacity,
        shared=_shared_rows(lists, counts),
    )


def _index_dtype(kv_blocks: int) -> np.dtype[Any]:
    # kv_blocks itself must fit: it is the padding.
    return np.dtype(np.uint16 if kv_blocks < 65536 else np.uint32)


def _indptr(counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    indptr = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def _tile_order(counts: npt.NDArray[np.int32], kv_blocks: int) -> npt.NDArray[np.uint32]:
    """Rows by falling count within each head, stable: equal counts keep their order."""
    heads, q_blocks = counts.shape
    # numpy's stable sort is a radix sort for 16-bit keys and 5 times slower for wider ones.
    key = (kv_blocks - counts).astype(_index_dtype(kv_blocks))
    order = np.argsort(key, axis=1, kind="stable").astype(np.uint32)
    order += (np.arange(heads, dtype=np.uint32) * np.uint32(q_blocks))[:, None]
    return order.reshape(-1)


def _shared_rows(
    lists: Array, counts: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | None:
    heads, q_blocks = counts.shape
    by_head = lists.reshape(heads, q_blocks, -1)
    for head in range(1, heads):
        same_counts = np.array_equal(counts[0], counts[head])
        if not same_counts or not np.array_equal(by_head[0], by_head[head]):
            return None
    valid = np.arange(lists.shape[1], dtype=np.int32) < counts[0][:, None]
    return _indptr(counts[0]), by_head[0][valid].astype(np.int32)


def _report_empty_rows(
    counts: npt.NDArray[np.int32], q_blocks: int, source: str, faults: Faults
) -> None:
    """``q_blocks`` is 0 where the rows belong to no single head."""
    if counts.all():
        return
    row = int(np.flatnonzero(counts == 0)[0])
    where = _where(row, q_blocks) if q_blocks else f"query block {row}"
    faults.report(f"every row must select at least one KV block, {source} selects none at {where}")


def _where(row: int, q_blocks: int) -> str:
    head, block = divmod(row, q_blocks)
    return f"head {head}, query block {block}"
