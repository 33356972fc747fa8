"""Masks of known kinds: those of the benchmark again, and others, for tools/check_explain.py."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


def benchmark_mask(row: dict[str, Any]) -> Mask:
    """What bench_workloads.make_mask makes for a row of the benchmark's JSON."""
    blocks = row["tokens"] // row["block"]
    rng = np.random.Generator(np.random.Philox(zlib.crc32(row["name"].encode())))
    score = rng.random((row["heads"], blocks, blocks))
    if row["grid"]:
        centres = np.stack(np.meshgrid(*map(np.arange, row["grid"]), indexing="ij"), -1)
        centres = centres.reshape(blocks, -1)
        squared = ((centres[:, None] - centres[None]) ** 2).sum(-1)
        near = np.argsort(squared, axis=1, kind="stable")[:, : row["near"]]
        np.put_along_axis(score, np.broadcast_to(near, (row["heads"], *near.shape)), -1.0, 2)
    counts = rng.integers(row["low"], row["high"] + 1, (row["heads"], blocks))
    lowest = np.sort(np.partition(score, row["high"] - 1, axis=2)[..., : row["high"]], axis=2)
    return score <= np.take_along_axis(lowest, counts[..., None] - 1, 2)


def top_k_mask(heads: int, blocks: int, k: int) -> Mask:
    """`k` random blocks of each row."""
    return np.random.default_rng(0).random((heads, blocks, blocks)).argsort(2) < k


def _random(rng: np.random.Generator, heads: int, rows: int, columns: int, share: float) -> Mask:
    mask = rng.random((heads, rows, columns)) < share
    mask[..., 0] = True  # no row may be empty
    return mask


def _one_dense_head(rng: np.random.Generator) -> Mask:
    mask = _random(rng, 8, 64, 64, 0.06)
    mask[rng.integers(8)] = True
    return mask


def _window(heads: int, blocks: int, width: int) -> Mask:
    at = np.arange(blocks)
    return np.broadcast_to(abs(at[:, None] - at) <= width, (heads, blocks, blocks)).copy()


def _causal(heads: int, blocks: int) -> Mask:
    return np.broadcast_to(np.tri(blocks, dtype=bool), (heads, blocks, blocks)).copy()


def _long_tailed(rng: np.random.Generator, heads: int, blocks: int) -> Mask:
    """Rows of very different lengths: most are short, few are long."""
    counts = np.clip(rng.pareto(1.2, (heads, blocks)) * 4 + 1, 1, blocks).astype(np.int64)
    return rng.random((heads, blocks, blocks)).argsort(2).argsort(2) < counts[..., None]


def fresh_masks(rng: np.random.Generator) -> Iterator[tuple[str, Mask, dict[str, Any]]]:
    """Name, mask, and what differs from 64-token blocks, head_dim 128, bfloat16, no GQA.

    Of these kinds, with the seeds 1 and 2, are the masks that `tail` was fitted to.
    """
    yield "one dense head of 8", _one_dense_head(rng), {}
    yield "window of 17 blocks, 12 heads", _window(12, 128, 8), {}
    yield "the same, float16", _window(12, 128, 8), {"dtype": "float16"}
    yield "causal, 8 heads", _causal(8, 96), {}
    yield "GQA 32 to 8, 20 %", _random(rng, 32, 64, 64, 0.2), {"kv_heads": 8}
    yield "long-tailed rows, 8 heads", _long_tailed(rng, 8, 128), {}
    yield "4 heads x 1,024 blocks, 5 %", _random(rng, 4, 1024, 1024, 0.05), {}
    yield "32 query by 512 key blocks, 10 %", _random(rng, 8, 32, 512, 0.1), {}
    yield "two rows an SM, 25 %", _random(rng, 4, 64, 64, 0.25), {}
    yield "few rows: 4 x 16, 24 of 128", top_k_mask(4, 128, 24)[:, :16], {}
    yield "few rows, head_dim 64", top_k_mask(4, 128, 24)[:, :16], {"head_dim": 64}
    yield "20 %, head_dim 64", _random(rng, 12, 128, 128, 0.2), {"head_dim": 64}
    yield "20 %, head_dim 96", _random(rng, 12, 128, 128, 0.2), {"head_dim": 96}
    yield "128-token blocks, 15 %", _random(rng, 16, 128, 128, 0.15), {"block": 128}
    yield "128-token blocks, causal", _causal(16, 96), {"block": 128}
    yield "128-token blocks, head_dim 64, 15 %", _random(rng, 16, 128, 128, 0.15), {
        "block": 128, "head_dim": 64,
    }  # fmt: skip
    yield "128-token blocks, head_dim 96, 15 %", _random(rng, 16, 128, 128, 0.15), {
        "block": 128, "head_dim": 96,
    }  # fmt: skip


def other_masks(rng: np.random.Generator) -> Iterator[tuple[str, Mask, dict[str, Any]]]:
    """Kinds of masks to which not even `tail` was fitted."""
    documents = np.zeros((8, 96, 96), bool)
    starts = np.sort(rng.choice(np.arange(4, 92), 5, replace=False))
    for first, last in zip((0, *starts), (*starts, 96), strict=True):
        documents[:, first:last, first:last] = True
    yield "six documents, 8 heads", documents, {}
    few_global = _window(12, 128, 4)
    few_global[:, :4] = True
    yield "window of 9 and 4 global rows", few_global, {}
    dense = _random(rng, 16, 96, 96, 0.1)
    dense[rng.choice(16, 2, replace=False)] = True
    yield "two dense heads of 16", dense, {}
    yield "causal window of 24, 24 heads", np.tril(_window(24, 96, 24)), {}
    uneven = _random(rng, 16, 96, 96, 0.08)
    uneven[rng.integers(16)] = True
    yield "128-token blocks, one dense head of 16", uneven, {"block": 128}
    yield "128-token blocks, documents", np.repeat(documents, 2, 0), {"block": 128}
    yield "128-token blocks, head_dim 96, documents", np.repeat(documents, 2, 0), {
        "block": 128, "head_dim": 96,
    }  # fmt: skip
    yield "one dense head of 8, head_dim 64", _one_dense_head(rng), {"head_dim": 64}


def other_cases(seed: int) -> list[tuple[str, Mask, dict[str, Any]]]:
    """All of both, of one seed."""
    rng = np.random.default_rng(seed)
    return [*fresh_masks(rng), *other_masks(rng)]
