"""Runs a `VsaProblem` on a simulated device, and holds the result to the bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import cakert
from helpers.problems import DTYPES, VsaProblem, compare, lse_close, plain

__all__ = ["check", "plan_of", "poisoned", "run"]


def plan_of(problem: VsaProblem, device: Any) -> dict[str, Any]:
    """The problem's plan on a simulated device, numpy all through."""
    return cakert.plan_cake_vsa(**problem.pattern, **problem.scalars, device=device)


def poisoned(problem: VsaProblem) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """`out` and `lse` full of NaN: an element that is not written shows."""
    return (
        np.full(problem.q.shape, np.nan, DTYPES[problem.dtype]),
        np.full(problem.q.shape[:2], np.nan, np.float32),
    )


def run(
    plan: dict[str, Any], problem: VsaProblem
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Run on the problem's own inputs, into poisoned outputs; the inputs must not change."""
    inputs = problem.q, problem.k, problem.v
    before = [array.tobytes() for array in inputs]
    out, lse = poisoned(problem)
    result = cakert.run_cake_vsa(plan, *inputs, out=out, lse=lse, return_lse=True, backend="cake")
    assert result[0] is out
    assert result[1] is lse
    assert [array.tobytes() for array in inputs] == before
    return out, lse


def check(
    problem: VsaProblem, out: npt.NDArray[Any], lse: npt.NDArray[np.float32], mask: Any = None
) -> None:
    """Assert the error bound of the design, for the problem's mask or another."""
    from dataclasses import replace

    problem = problem if mask is None else replace(problem, mask=mask)
    ref, ref_lse = cakert.reference.attention(
        problem.q, problem.k, problem.v, problem.mask,
        sm_scale=problem.sm_scale, block=problem.block, kv_block_lens=problem.lens,
    )  # fmt: skip
    result = compare(out, ref, plain(problem))
    assert result.passed, result
    assert lse_close(lse, ref_lse)
