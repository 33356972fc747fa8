"""The report of real launches against what their tiles need, worked out by hand."""

import numpy as np
import pytest
from helpers.problems import make_problem
from helpers.sim_runs import plan_of, run

from cakert import routes, sim

ROWS, DIM, KEYS = 64, 128, 64
TILE = ROWS * DIM * 2
KV = 2 * KEYS * DIM * 2


def report_of(blocks, arch="sm_90a"):
    """Of the portable kernel on one query block and as many KV blocks as it selects."""
    problem = make_problem(
        np.random.default_rng(7), "mask", M=ROWS, N=KEYS * blocks, block=64, heads=(1, 1),
        head_dim=DIM, dtype="bfloat16", selected=(blocks, blocks),
    )  # fmt: skip
    assert problem.mask.sum() == blocks
    with routes.only("portable"), sim.device(arch, seed=0) as device:
        run(plan_of(problem, device), problem)
        return device.report


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
@pytest.mark.parametrize("blocks", [1, 3])
def test_portable_kernel(arch, blocks):
    report = report_of(blocks, arch)
    flops = blocks * 4 * DIM * ROWS * KEYS
    assert report.counters["mma-sync-flops"] == flops
    assert report.cycles()["tensor"] == pytest.approx(flops / (0.62 * 4096))
    moved = report.bytes_by_memory()
    assert moved["fills"] == {"cp.async": TILE + blocks * KV}
    assert moved["l2"]["cp.async"] == TILE + blocks * KV
    assert moved["l2"]["st"] == TILE + 4 * ROWS  # out and lse
    # Each of the four warps reads all of K and V, and its rows of Q.
    assert moved["shared"]["ldmatrix"] == TILE + 4 * blocks * KV
    assert report.counters.get("matrix-bank-conflicts", 0) == 0
    # A weight each, and rescaling factors: each of the 128 threads has its two rows'.
    assert 0 <= report.exp2 - blocks * ROWS * KEYS <= 2 * 128 * blocks
    assert report.jobs() == {"warps 0-3": ["cp.async", "MMA", "exp2", "stores"]}
    assert report.targets() == ("sm_90", "sm_100", "sm_103")


def test_a_block_of_the_portable_kernel_is_what_its_documentation_says():
    """docs/kernels.md: 1,024 clocks of reads and 256 of fills against some 820 of mma.sync."""
    few, many = report_of(1).cycles(), report_of(3).cycles()
    block = {unit: (many[unit] - few[unit]) / 2 for unit in few}
    assert block["tensor"] == pytest.approx(826, abs=1)
    assert 1024 <= block["shared"] < 1.05 * 1024
    assert block["shared+fills"] - block["shared"] == 256
    assert block["l2"] == pytest.approx(KV / 32.5, rel=0.02)
    assert max(block, key=block.__getitem__) == "shared+fills"
