"""The portable kernel's PTX on the simulator: every variant, all three targets, within the bound.

Schedules and shapes are drawn; the full matrix runs all of them with `--full`.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
from helpers.problems import KINDS, make_problem
from helpers.sim_runs import check, plan_of, run

import cakert
from cakert import sim

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")
SCHEDULES = ("eager", "lazy", "random")
HEADS = ((2, 2), (2, 1), (1, 1), (3, 1))
KINDS_OF = {64: KINDS, 128: ("mask", "kv_mask", "bsr")}
VARIANTS = list(itertools.product((64, 128), (64, 96, 128), ("float16", "bfloat16")))


@pytest.fixture
def seed():
    """Printed where a test fails; CAKERT_SEED repeats it."""
    return int(os.environ.get("CAKERT_SEED", np.random.SeedSequence().entropy % 2**32))


def draw(rng, values):
    return values[int(rng.integers(len(values)))]


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("block", "head_dim", "dtype"), VARIANTS)
def test_every_variant(seed, arch, block, head_dim, dtype):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng,
        draw(rng, KINDS_OF[block]),
        M=block,
        N=block * int(rng.integers(2, 4)),
        block=block,
        heads=draw(rng, ((1, 1), (2, 1))) if block == 64 else (1, 1),
        head_dim=head_dim,
        dtype=dtype,
        selected=(1, 2),
        poison=True,
    )
    with sim.device(arch, schedule=draw(rng, SCHEDULES), seed=seed) as device:
        plan = plan_of(problem, device)
        check(problem, *run(plan, problem))
    assert plan["route"].startswith(f"cake_vsa_portable_r{block}_d{head_dim}_")


@pytest.mark.parametrize("scale", [0.0, -0.4, 1e-30, 2.0])
def test_scales(seed, scale):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng, "lens", M=64, N=192, heads=(1, 1), head_dim=64, sm_scale=scale, selected=(2, 3)
    )
    with sim.device(draw(rng, ARCHITECTURES), schedule=draw(rng, SCHEDULES), seed=seed) as device:
        check(problem, *run(plan_of(problem, device), problem))


def test_schedules_give_the_same_bits(seed):
    rng = np.random.default_rng(seed)
    problem = make_problem(rng, "mask", M=128, N=256, heads=(2, 1), head_dim=64)
    results = []
    for schedule in SCHEDULES:
        with sim.device("sm_100a", schedule=schedule, seed=seed) as device:
            out, lse = run(plan_of(problem, device), problem)
        results.append((out.tobytes(), lse.tobytes()))
    assert len(set(results)) == 1


def test_update_runs_the_new_pattern(seed):
    rng = np.random.default_rng(seed)
    problem = make_problem(rng, "mask", M=128, N=192, heads=(2, 1), head_dim=64)
    other = make_problem(rng, "mask", M=128, N=192, heads=(2, 1), head_dim=64)
    with sim.device(draw(rng, ARCHITECTURES), seed=seed) as device:
        plan = plan_of(problem, device)
        cakert.update_cake_vsa(plan, block_mask=other.pattern["block_mask"])
        out, lse = run(plan, problem)
        cakert.check_cake_vsa(plan)
        check(problem, out, lse, mask=other.mask)
        # The same bits as a plan of the new pattern.
        fresh = plan_of(replace(problem, pattern=other.pattern), device)
        again, _ = run(fresh, problem)
    assert out.tobytes() == again.tobytes()


def test_rows_that_an_update_empties_give_zeros(seed):
    rng = np.random.default_rng(seed)
    problem = make_problem(rng, "mask", M=128, N=128, heads=(1, 1), head_dim=64)
    empty = problem.mask.copy()
    empty[0, 1] = False
    with sim.device(draw(rng, ARCHITECTURES), seed=seed) as device:
        plan = plan_of(problem, device)
        cakert.update_cake_vsa(plan, block_mask=empty)
        out, lse = run(plan, problem)
        with pytest.raises(ValueError, match="selects none"):
            cakert.check_cake_vsa(plan)
    assert not out[64:].astype(np.float32).any()
    assert (lse[64:] == -np.inf).all()
    check(problem, out, lse, mask=empty)


@pytest.mark.full
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("block", "head_dim", "dtype"), VARIANTS)
def test_full_matrix(seed, schedule, arch, block, head_dim, dtype):
    """Every kind of pattern and group of heads, ragged, with NaN wherever nobody may look."""
    rng = np.random.default_rng(seed)
    with sim.device(arch, schedule=schedule, seed=seed) as device:
        for kind, heads in itertools.product(KINDS_OF[block], HEADS):
            problem, other = (
                make_problem(
                    rng, kind, M=2 * block, N=4 * block, block=block, heads=heads,
                    head_dim=head_dim, dtype=dtype, poison=poison,
                )
                for poison in (True, False)
            )  # fmt: skip
            plan = plan_of(problem, device)
            check(problem, *run(plan, problem))
            if kind in ("mask", "kv_mask", "lens"):
                cakert.update_cake_vsa(
                    plan,
                    block_mask=other.pattern["block_mask"],
                    kv_block_lens=other.pattern["kv_block_lens"],
                )
                check(other, *run(plan, other))
