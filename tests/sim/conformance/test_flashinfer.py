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
