"""The kernel for few rows on the simulator: every division of a row among warpgroups and CTAs."""

import numpy as np
import pytest
from helpers.problems import make_problem
from helpers.sim_runs import check, plan_of, run

import cakert
from cakert import routes, sim

SCHEDULES = ("eager", "lazy", "random")
# SMs of the device, KV blocks, head_dim; and how the two rows below are divided then.
DIVISIONS = [
    (2, 3, 128, 1, 160),
    (2, 70, 64, 1, 288),  # more entries than the producer's lanes
    (4, 3, 96, 2, 160),
    (4, 16, 128, 2, 288),
    (16, 16, 128, 4, 288),
    (16, 18, 96, 4, 288),
    (32, 9, 128, 8, 160),
    (32, 32, 128, 8, 288),
    (32, 33, 64, 8, 288),
]


@pytest.fixture(autouse=True)
def this_kernel():
    """A list of one block would be another one's."""
    with routes.only("sm90_split"):
        yield


@pytest.mark.parametrize(("sms", "kv_blocks", "head_dim", "cluster", "threads"), DIVISIONS)
@pytest.mark.parametrize("kind", ["mask", "lens"])
def test_every_division(seed, sms, kv_blocks, head_dim, cluster, threads, kind):
    rng = np.random.default_rng(seed)
    shape = {"M": 64, "N": 64 * kv_blocks, "heads": (2, 2), "head_dim": head_dim}
    first, second = (make_problem(rng, kind, poison=True, **shape) for _ in range(2))
    schedule = SCHEDULES[int(rng.integers(3))]
    with sim.device("sm_90a", schedule=schedule, seed=seed, sms=sms) as device:
        plan = plan_of(first, device)
        assert plan["route"].startswith("cake_vsa_sm90_split_")
        check(first, *run(plan, first))
        report = device.report
        assert (report.cluster[0], report.block[0]) == (cluster, threads)
        # Fewer blocks than parts: some have nothing to add.
        mask = second.mask & (np.arange(kv_blocks) < 2)
        mask[1] = False
        cakert.update_cake_vsa(plan, block_mask=mask, kv_block_lens=second.lens)
        out, lse = run(plan, second)
        check(second, out, lse, mask=mask)
    assert (out.astype(np.float32)[:, 1] == 0).all()
    assert np.isneginf(lse[:, 1]).all()


@pytest.mark.parametrize("scale", [0.0, -0.7, 3.0])
@pytest.mark.parametrize(("sms", "kv_blocks"), [(2, 6), (32, 9), (16, 16)])
def test_scales_and_logits_far_apart(seed, sms, kv_blocks, scale):
    """References of the parts that differ by more than the range of a weight."""
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng, "mask", M=64, N=64 * kv_blocks, heads=(2, 2), head_dim=128, sm_scale=scale
    )
    problem.k[:] = problem.k * np.repeat(2.0 ** np.arange(kv_blocks), 64)[:, None, None]
    with sim.device("sm_90a", seed=seed, sms=sms) as device:
        check(problem, *run(plan_of(problem, device), problem))


@pytest.mark.parametrize(("sms", "kv_blocks"), [(2, 8), (16, 16), (32, 9)])
def test_schedules_give_the_same_bits(seed, sms, kv_blocks):
    rng = np.random.default_rng(seed)
    problem = make_problem(rng, "mask", M=64, N=64 * kv_blocks, heads=(2, 1), head_dim=64)
    results = set()
    for schedule in (*SCHEDULES, "random"):
        with sim.device("sm_90a", schedule=schedule, seed=seed + len(results), sms=sms) as device:
            out, lse = run(plan_of(problem, device), problem)
        results.add((out.tobytes(), lse.tobytes()))
    assert len(results) == 1


@pytest.mark.parametrize(("sms", "kv_blocks"), [(2, 6), (16, 16), (32, 9)])
def test_a_nan_reaches_its_rows_from_any_part(seed, sms, kv_blocks):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng, "mask", M=64, N=64 * kv_blocks, heads=(2, 2), head_dim=128, selected=(kv_blocks,) * 2
    )
    key = int(rng.integers(64 * kv_blocks))
    problem.k[key, 0, 5] = np.nan
    with sim.device("sm_90a", seed=seed, sms=sms) as device:
        out, lse = run(plan_of(problem, device), problem)
    assert np.isnan(out.astype(np.float32)[:, 0]).all()
    assert np.isnan(lse[:, 0]).all()
    assert np.isfinite(out.astype(np.float32)[:, 1]).all()
