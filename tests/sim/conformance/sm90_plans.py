"""Metadata of the wheel's sm_90a kernels, in numpy: the layouts are theirs, the planning is ours.

Small kernels take ``plan``, 1750 int16 by value: a row an item (thread block), -1 where nothing
stands. Persistent kernels take ``meta`` in global memory, 144 int32 a tile, and a by-value header
of 144 x 12 int16 with the beginning of each CTA's first tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PLAN_WORDS = 1750
TILE_WORDS = 144
HEADER_CTAS, HEADER_WORDS, HEADER_POSITIONS = 144, 12, 2
SEQUENCE_AT, OWN_AT, OWN_WORDS = 8, 76, 34

Mask = npt.NDArray[np.bool_]


def small_plan(mask: Mask, capacity: int, slices: int = 1) -> tuple[npt.NDArray[np.int16], int]:
    """Rows of a small kernel, and their number.

    Parameters
    ----------
    mask
        (heads, MB, NB).
    capacity
        Blocks that a row holds.
    slices
        1: a row is ``[count, blocks...]``, one for each query block. More: so many rows for each
        query block, a thread-block cluster, ``[count | slice << 4 | slices << 10, query block,
        blocks...]``; slices may be empty. 0: the same, in as many slices as the blocks need.
    """
    rows = []
    for tile, selected in enumerate(mask.reshape(-1, mask.shape[-1])):
        blocks = np.flatnonzero(selected)
        parts = slices or max(1, -(-len(blocks) // capacity))
        for part, some in enumerate(np.array_split(blocks, parts)):
            assert len(some) <= capacity
            row = np.full(capacity, -1)
            row[: len(some)] = some
            head = [len(some)] if slices == 1 else [len(some) | part << 4 | parts << 10, tile]
            rows.append(np.concatenate((head, row)))
    flat = np.concatenate(rows)
    plan = np.full(PLAN_WORDS, -1, np.int16)
    plan[: len(flat)] = flat
    return plan, len(rows)


@dataclass(frozen=True)
class Tile:
    """One unit of work of a persistent kernel.

    Attributes
    ----------
    info
        (head, first query block, second query block, mode): mode 0 is a pair of query blocks, one
        for each consumer warpgroup; 1 is one query block whose positions the two share.
    positions
        (block, block or -1, warpgroups): what is loaded together, and the consumers of it as bits.
    """

    info: tuple[int, int, int, int]
    positions: list[tuple[int, int, int]]

    def row(self, tile_count: int) -> npt.NDArray[np.int32]:
        """The 144 words."""
        words = np.zeros(TILE_WORDS, np.uint32)
        words[0:4] = self.info
        words[4] = len(self.positions)
        blocks = np.array([position[:2] for position in self.positions]) & 0xFFFF
        words[SEQUENCE_AT : SEQUENCE_AT + len(blocks)] = blocks[:, 0] | blocks[:, 1] << 16
        for consumer in range(2):
            own = [
                number << 3 | (second >= 0) << 2 | consumers
                for number, (_, second, consumers) in enumerate(self.positions)
                if consumers >> consumer & 1
            ]
            words[5 + consumer] = len(own)
            halves = np.array(own + [0] * (len(own) % 2), np.uint32).reshape(-1, 2)
            start = OWN_AT + consumer * OWN_WORDS
            words[start : start + len(halves)] = halves[:, 0] | halves[:, 1] << 16
        words[7] = tile_count
        return words.view(np.int32)


def pairs(blocks: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
    """Blocks two by two; -1 behind an odd one."""
    padded = [*blocks.tolist(), -1]
    return [(padded[i], padded[i + 1]) for i in range(0, len(blocks), 2)]


def split_tile(head: int, query_block: int, selected: Mask) -> Tile:
    """One query block: positions alternate between the consumers."""
    positions = [(*two, 1 << i % 2) for i, two in enumerate(pairs(np.flatnonzero(selected)))]
    return Tile((head, query_block, query_block, 1), positions)


def pair_tile(head: int, first: int, second: int, selected: Mask) -> Tile:
    """Two query blocks, one for each consumer; common blocks are loaded once, for both.

    Positions of the three kinds take turns, so that neither consumer waits for long: the ring of
    loads holds three of them.
    """
    a, b = selected[first], selected[second]
    kinds = [(3, pairs(np.flatnonzero(a & b)))]
    kinds += [(1, pairs(np.flatnonzero(a & ~b))), (2, pairs(np.flatnonzero(b & ~a)))]
    positions = [
        (*of_kind[turn], consumers)
        for turn in range(max(len(of_kind) for _, of_kind in kinds))
        for consumers, of_kind in kinds
        if turn < len(of_kind)
    ]
    return Tile((head, first, second, 0), positions)


def tiles_of(mask: Mask, mode: str) -> list[Tile]:
    """Every query block of every head once, as "split" or "pair" tiles."""
    heads, mb, _ = mask.shape
    if mode == "split":
        return [split_tile(h, qb, mask[h, qb]) for h in range(heads) for qb in range(mb)]
    return [pair_tile(h, qb, qb + 1, mask[h]) for h in range(heads) for qb in range(0, mb, 2)]


@dataclass(frozen=True)
class PersistentPlan:
    """Arguments of a persistent kernel: tile rows, header, rows between CTAs."""

    meta: npt.NDArray[np.int32]
    header: npt.NDArray[np.int16]
    stride: int


def persistent_plan(tiles: list[Tile], ctas: int, pool: int = 0) -> PersistentPlan:
    """Tiles dealt out in turn; the last `pool` of them are taken at run time by whoever is free.

    Row ``cta * stride + i`` is the i-th tile of a CTA. With a pool, its rows follow, then a row of
    zeros for each CTA: a CTA that takes one of those has finished.
    """
    fixed, taken = tiles[: len(tiles) - pool], tiles[len(tiles) - pool :]
    lists = [fixed[cta::ctas] for cta in range(ctas)]
    stride = len(lists[0])
    meta = np.zeros((ctas * stride + (pool + ctas if pool else 0), TILE_WORDS), np.int32)
    header = np.zeros((HEADER_CTAS, HEADER_WORDS), np.int16)
    for cta, own in enumerate(lists):
        for i, tile in enumerate(own):
            meta[cta * stride + i] = tile.row(len(own) if i == 0 else bool(pool))
        early = own[0].positions[:HEADER_POSITIONS]
        start = [*own[0].info, len(early), *(block for p in early for block in p[:2])]
        header[cta, : len(start)] = start
    for i, tile in enumerate(taken):
        meta[ctas * stride + i] = tile.row(1)
    return PersistentPlan(meta, header.reshape(-1), stride)
