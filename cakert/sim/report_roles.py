"""Warps of a CTA by role: which of them run the same code."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["group"]

# A warp of a role often does a little more than its fellows: the first one initialises barriers.
_ALIEN_SHARE = 0.1


def group(counts: NDArray[np.uint64]) -> list[list[int]]:
    """Group warps whose executions are, but for a tenth, of instructions that the others reach too.

    How often an instruction is executed does not matter, so warps with fewer blocks than others are
    of their role; a warp that only runs the common beginning is not.

    Parameters
    ----------
    counts : (warps, operations) uint64
        Executions.

    Returns
    -------
    list of list of int
        Warps of each group, in order.
    """
    groups: list[tuple[list[int], NDArray[np.float64]]] = []
    for warp, executions in enumerate(counts.astype(np.float64)):
        for members, union in groups:
            if max(_alien(executions, union), _alien(union, executions)) <= _ALIEN_SHARE:
                members.append(warp)
                union += executions
                break
        else:
            groups.append(([warp], executions.copy()))
    return [members for members, _ in groups]


def _alien(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Share of the executions of ``one`` at instructions that ``other`` never reaches."""
    total = float(one.sum())
    # A warp that did nothing has nothing in common with one that did.
    return float(one[other == 0].sum()) / total if total else float(other.any())
