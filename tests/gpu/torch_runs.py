"""Runs a `VsaProblem` through plan and run on torch tensors, and holds the result to the bound."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers.problems import VsaProblem, compare, lse_close, plain

from cakert import plan_cake_vsa, reference, run_cake_vsa


def to_torch(array: np.ndarray, device: str = "cuda") -> torch.Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).to(device).view(torch.bfloat16)
    return torch.from_numpy(array).to(device)


def to_float(tensor: torch.Tensor) -> np.ndarray:
    return tensor.float().cpu().numpy()


def plan_of(problem: VsaProblem, *, device: str = "cuda", metadata: str = "cuda") -> dict[str, Any]:
    """The problem's plan; q2k tensors always lie on the device, the rest on `metadata`."""
    pattern = {
        name: None
        if value is None
        else to_torch(value, device if name.startswith("q2k") else metadata)
        for name, value in problem.pattern.items()
    }
    try:
        return plan_cake_vsa(**pattern, **problem.scalars, device=device)
    except RuntimeError as error:
        # Of the family that the test forces (fixture `family`), not of the package.
        if re.match(r"no \w+ kernel for", str(error)):
            pytest.skip(str(error))
        raise


def inputs_of(problem: VsaProblem, device: str = "cuda") -> tuple[torch.Tensor, ...]:
    return tuple(to_torch(array, device) for array in (problem.q, problem.k, problem.v))


def poisoned(problem: VsaProblem, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    """`out` and `lse` full of NaN: an element that is not written shows."""
    dtype = getattr(torch, problem.dtype)
    out = torch.full(problem.q.shape, float("nan"), dtype=dtype, device=device)
    lse = torch.full(problem.q.shape[:2], float("nan"), dtype=torch.float32, device=device)
    return out, lse


def check(
    problem: VsaProblem,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
    rows: np.ndarray | None = None,
) -> None:
    """Assert the error bound of the design, on all query tokens or on `rows`."""
    ref, ref_lse = reference.attention(
        problem.q,
        problem.k,
        problem.v,
        problem.mask,
        sm_scale=problem.sm_scale,
        block=problem.block,
        kv_block_lens=problem.lens,
        rows=rows,
    )
    picked = slice(None) if rows is None else torch.from_numpy(rows).to(out.device)
    result = compare(to_float(out[picked]), ref, plain(problem, rows))
    assert result.passed, f"{problem}: {result}"
    if lse is not None:
        assert lse_close(to_float(lse[picked]), ref_lse), f"{problem}: lse"


def run_and_check(problem: VsaProblem, *, metadata: str = "cuda") -> torch.Tensor:
    """Both ways to run, with and without LSE; the outputs must be the same bits."""
    plan = plan_of(problem, metadata=metadata)
    q, k, v = inputs_of(problem)
    out, lse = poisoned(problem)
    got = run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")
    assert got[0] is out and got[1] is lse
    alone = run_cake_vsa(
        plan, q, k, v, out=poisoned(problem)[0], lse=None, return_lse=False, backend="cake"
    )
    check(problem, out, lse)
    assert torch.equal(alone.view(torch.int16), out.view(torch.int16))
    return out
