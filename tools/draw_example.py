#!/usr/bin/env python3
"""Write the mask of docs/explain.md's example: a video's neighbourhoods, and one dense head.

tools/draw_example.py mask.npy
cakert explain mask.npy --out docs/pictures/explain.svg
"""

from __future__ import annotations

import sys

import numpy as np


def example() -> np.ndarray:
    """(8, 60, 240) bool: 60 query blocks, a quarter of a latent of 5 x 6 x 8 blocks."""
    grid = np.stack(np.meshgrid(*map(np.arange, (5, 6, 8)), indexing="ij"), -1).reshape(-1, 3)
    squared = ((grid[:60, None] - grid[None]) ** 2).sum(-1)
    near = np.argsort(squared, axis=1, kind="stable")
    mask = np.zeros((8, 60, 240), bool)
    for head in range(8):
        np.put_along_axis(mask[head], near[:, : 8 + 3 * head], True, axis=1)
    mask[2] = True
    return mask


if __name__ == "__main__":
    np.save(sys.argv[1], example())
