"""Operand tiles of matrix instructions: images of shared memory, and what they multiply to.

Both operands are bf16, K-major, 64 deep, in the 128-byte swizzle. Values are small
integers, so that every sum is exact.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DEPTH = 64
ROW_BYTES = 2 * DEPTH


def tile_bytes(rows: int) -> int:
    """Size of a tile in shared memory."""
    return rows * ROW_BYTES


def _places(rows: int) -> NDArray[np.int64]:
    """Index of each element in its tile: (rows, DEPTH)."""
    row, k = np.mgrid[:rows, :DEPTH]
    return (row * ROW_BYTES + 2 * k ^ (row % 8 << 4)) // 2


def images(m: int, n: int, count: int = 1) -> Callable[[np.random.Generator], NDArray[np.uint32]]:
    """Makes ``count`` random images, each of A (m rows) and then B (n rows), as words."""

    def make(rng: np.random.Generator) -> NDArray[np.uint32]:
        shape = (count * (m + n), DEPTH)
        values = rng.integers(1, 5, shape) * rng.choice([-1, 1], shape)
        return values.astype(ml_dtypes.bfloat16).reshape(-1).view(np.uint32)

    return make


def tile(source: NDArray[np.uint32], rows: int, first_row: int = 0) -> NDArray[np.float32]:
    """The operand that begins at a row of an image: (rows, DEPTH)."""
    values = source.view(ml_dtypes.bfloat16)
    return values[first_row * DEPTH + _places(rows)].astype(np.float32)


def product(m: int, n: int, depth: int) -> Callable[[NDArray[np.uint32]], NDArray[np.float32]]:
    """A @ B.T of the first image over the first ``depth`` of K: (m, n) float32."""

    def multiply(source: NDArray[np.uint32]) -> NDArray[np.float32]:
        a, b = tile(source, m), tile(source, n, first_row=m)
        return a[:, :depth] @ b[:, :depth].T

    return multiply


def warpgroup_fragment(d: NDArray[np.float32]) -> NDArray[np.float32]:
    """D of a warpgroup as its 128 threads hold it: (128, N / 2)."""
    thread, i = np.mgrid[:128, : d.shape[1] // 2]
    row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
    return d[row, 8 * (i // 4) + 2 * (thread % 4) + i % 2]
