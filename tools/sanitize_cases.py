#!/usr/bin/env python3
"""A small set of runs for compute-sanitizer: every kernel once, each kind of pattern, odd inputs.

    compute-sanitizer --tool racecheck tools/sanitize_cases.py
    compute-sanitizer --tool initcheck tools/sanitize_cases.py --no-garbage

Inputs and outputs are DeviceArrays, so that no framework's kernels run under the checker.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.problems import KINDS, VsaProblem, compare, make_problem, plain

import cakert
from cakert import routes, vsa_device
from cakert.runtime import driver


def run(problem: VsaProblem) -> None:
    pattern = {
        name: cakert.DeviceArray.from_numpy(array)
        if array is not None and name.startswith("q2k")
        else array
        for name, array in problem.pattern.items()
    }
    plan = cakert.plan_cake_vsa(**pattern, **problem.scalars, device=0)
    q, k, v = (cakert.DeviceArray.from_numpy(a) for a in (problem.q, problem.k, problem.v))
    poison = None
    if "_sm90_" in plan["route"]:
        # initcheck does not see what TMA stores: fresh memory would count as never written.
        poison = cakert.DeviceArray.from_numpy(np.full(problem.q.shape, np.nan, problem.q.dtype))
    out, _ = cakert.run_cake_vsa(
        plan, q, k, v, out=poison, lse=None, return_lse=True, backend="cake"
    )
    ref, _ = cakert.reference.attention(
        problem.q, problem.k, problem.v, problem.mask,
        sm_scale=problem.sm_scale, block=problem.block, kv_block_lens=problem.lens,
    )  # fmt: skip
    result = compare(out.numpy(), ref, plain(problem))
    print(plan["route"], problem.kind, result, flush=True)
    assert result.passed


def run_garbage(rng: np.random.Generator) -> None:
    """Lists, counts and lengths that no plan would write, straight into the plan's memory."""
    problem = make_problem(rng, "lens", M=256, N=320)
    plan = cakert.plan_cake_vsa(**problem.pattern, **problem.scalars, device=0)
    for memory in plan["workspace"].values():
        memory.copy_in(rng.integers(0, 256, memory.nbytes, dtype=np.uint8))
    q, k, v = (cakert.DeviceArray.from_numpy(a) for a in (problem.q, problem.k, problem.v))
    out = cakert.run_cake_vsa(plan, q, k, v, out=None, lse=None, return_lse=False, backend="cake")
    print("garbage in the plan's memory:", out.numpy().shape, flush=True)


def run_family(rng: np.random.Generator, family: str, *, garbage: bool) -> None:
    kinds = itertools.cycle(KINDS)
    for block, head_dim, dtype in itertools.product(
        (64, 128), (64, 96, 128), ("float16", "bfloat16")
    ):
        if family not in routes.families(R=block, head_dim=head_dim):
            continue
        kind = next(kinds) if block == 64 else ("mask", "kv_mask", "bsr")[rng.integers(3)]
        scale = (None, 0.0, -0.3)[rng.integers(3)]
        run(
            make_problem(
                rng, kind, M=2 * block, N=4 * block, block=block, heads=(2, 1),
                head_dim=head_dim, dtype=dtype, sm_scale=scale, poison=True,
            )
        )  # fmt: skip
    if garbage:
        run_garbage(rng)


def main() -> None:
    rng = np.random.default_rng()
    garbage = "--no-garbage" not in sys.argv  # rows that garbage leaves out are never written
    families = routes.families(driver.device_capability(0))
    for family in families:
        with routes.only(family):
            run_family(rng, family, garbage=garbage)
    # For two SMs a thread block has many rows or groups, or divides a row among its warpgroups.
    vsa_device._multiprocessors = lambda device: 2
    for family in ("sm90", "sm90_group", "sm90_split"):
        if family in families:
            with routes.only(family):
                run_family(rng, family, garbage=garbage)


if __name__ == "__main__":
    main()
