"""Attention kernels of the flashinfer wheel, known to work on their GPUs, run right here."""

from __future__ import annotations

import conformance_build
import flashinfer_sm90
import flashinfer_sm100
import numpy as np
import pytest
from conformance_build import Toolchain
from conformance_launch import Memory, drawn, schedules
from helpers import problems

from cakert import reference
from cakert.sim import Gpu


def check(problem: problems.VsaProblem, out: np.ndarray, lse: np.ndarray | None) -> None:
    """Hold a result to the project's bound; `lse` None where a kernel does not give it."""
    expected, expected_lse = reference.attention(
        problem.q,
        problem.k,
        problem.v,
        problem.mask,
        sm_scale=problem.sm_scale,
        block=problem.block,
        kv_block_lens=problem.lens,
    )
    comparison = problems.compare(out, expected, problems.plain(problem))
    assert comparison.passed, comparison
    assert lse is None or problems.lse_close(lse, expected_lse)


@pytest.mark.parametrize("schedule", schedules())
@pytest.mark.parametrize("arch", ["sm_100a", pytest.param("sm_103a", marks=pytest.mark.full)])
@pytest.mark.parametrize("kernel", flashinfer_sm100.KERNELS, ids=lambda kernel: kernel.name)
def test_sm100(
    kernel: flashinfer_sm100.Kernel,
    arch: str,
    schedule: str,
    flashinfer: Toolchain,
    rng: np.random.Generator,
    seed: int,
) -> None:
    problem = problems.make_problem(rng, kernel.kind, poison=kernel.poison, **kernel.problem)
    gpu = Gpu(arch, schedule=drawn(schedule, rng), seed=seed)
    memory = Memory(gpu)
    source = conformance_build.sources() / f"cake_vsa/cake_vsa_{kernel.name}.cu"
    kernel.launch(memory, problem).run(gpu, flashinfer.cuda(source, arch))
    check(problem, memory.read("out"), memory.read("lse"))


def test_counters_of_a_selected_block(flashinfer: Toolchain, rng: np.random.Generator) -> None:
    """What the shapes of blk128_compact's instructions make of a block of 128 keys, exactly.

    Two instances each multiply 64 queries, S = Q K' and O = P V, in steps of K = 16, without .ws:
    half of the array is idle. Q comes from shared memory, P from tensor memory.
    """
    (kernel,) = (one for one in flashinfer_sm100.KERNELS if one.name == "blk128_compact")
    problem = problems.make_problem(rng, kernel.kind, poison=kernel.poison, **kernel.problem)
    gpu = Gpu("sm_100a", schedule=drawn("drawn", rng))
    source = conformance_build.sources() / "cake_vsa/cake_vsa_blk128_compact.cu"
    memory = Memory(gpu)
    report = kernel.launch(memory, problem).run(gpu, flashinfer.cuda(source, "sm_100a"))

    blocks = int(problem.mask.sum())
    instances, m, n, steps, k_bytes = 2, 64, 128, 128 // 16, 32
    multiplications = blocks * instances * 2 * steps
    assert report.counters["tensor-cycles"] == multiplications * n // 2 == 2048 * blocks
    q_bytes = blocks * instances * steps * m * k_bytes
    assert report.counters["mma-shared-bytes"] == multiplications * n * k_bytes + q_bytes
    # An exponential for each score; besides, each of the two threads of a row takes at most one a
    # block, for the factor of its old sum.
    scores = blocks * instances * m * n
    assert scores == 16384 * blocks
    assert scores <= report.exp2 <= scores + blocks * instances * m * 2


@pytest.mark.parametrize("schedule", schedules())
@pytest.mark.parametrize("kernel", flashinfer_sm90.KERNELS, ids=lambda kernel: kernel.id)
def test_sm90(
    kernel: flashinfer_sm90.Kernel,
    schedule: str,
    flashinfer: Toolchain,
    rng: np.random.Generator,
    seed: int,
) -> None:
    problem = problems.make_problem(
        rng,
        "mask",
        M=kernel.tokens[0],
        N=kernel.tokens[1],
        block=flashinfer_sm90.BLOCK,
        heads=(kernel.heads, kernel.heads),
        selected=kernel.selected,
        poison=True,
    )
    gpu = Gpu("sm_90a", schedule=drawn(schedule, rng), seed=seed, ignore=kernel.omits)
    memory = Memory(gpu)
    source = conformance_build.sources() / kernel.source()
    kernel.launch(memory, problem).run(gpu, flashinfer.cuda(source, "sm_90a"))
    check(problem, memory.read("out").swapaxes(0, 1), None)
    if kernel.pool:
        assert not memory.read("queue").any()  # whoever ends last puts it back
    if kernel.slices == 0:
        assert not memory.read("arrivals").any()
