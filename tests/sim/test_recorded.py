"""The simulator against outputs that an H200 computed (tools/record_gpu_outputs.py).

Exact inputs must agree bit for bit. On random ones both are within the error bound, and 99.9 % of
all elements within two units in the last place of each other: ptxas contracts, and the rounding
inside a tensor core is not published. A single fp16 case may have a few more: its weights round
differently here and there, which shows in outputs that happen to be small.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from helpers.problems import DTYPES, compare, lse_close, plain
from helpers.recorded import CASES, checksum, problem_of, stored_rows
from helpers.sim_runs import check, plan_of, run
from helpers.stub import run_with_stub

import cakert
from cakert import routes, sim
from cakert.cubins import store

DATA = Path(__file__).parent / "data" / "h200_outputs"
AGAIN = "record again: tools/record_gpu_outputs.py on a GPU of compute capability 9.0"


def ordered(bits: np.ndarray) -> np.ndarray:
    """16-bit floats as integers in the order of their values: neighbours differ by 1."""
    signed = bits.astype(np.int32)
    return np.where(signed & 0x8000, -(signed & 0x7FFF), signed)


def near(bits: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Where two arrays of 16-bit floats are at most two units in the last place apart."""
    return np.abs(ordered(bits) - ordered(others)) <= 2


@functools.cache
def simulated(case):
    """The problem, the simulator's output and lse, and the kernel's name."""
    problem = problem_of(case)
    with (
        routes.only(case.family),
        sim.device("sm_90a", schedule="random", seed=case.seed) as device,
    ):
        plan = plan_of(problem, device)
        return problem, *run(plan, problem), plan["route"]


def exact_output(problem) -> np.ndarray:
    """What the kernel's arithmetic gives where no sum rounds.

    The reciprocal and the product are rounded to float32, the result to 16 bits. The kernel scales
    weights by a power of two, which changes none of the three.
    """
    p, real = problem, DTYPES[problem.dtype]
    lens = np.full(p.N // p.block, p.block) if p.lens is None else p.lens
    valid = (np.arange(p.block) < lens[:, None]).reshape(-1)
    scale = np.float32(abs(p.sm_scale) or 1) * np.float32(np.log2(np.e))
    out = np.empty(p.q.shape, real)
    for head in range(p.num_qo_heads):
        kv_head = head // (p.num_qo_heads // p.num_kv_heads)
        k, v = (a[:, kv_head].astype(np.float64) for a in (p.k, p.v))
        token = np.repeat(np.repeat(p.mask[head], p.block, axis=0), p.block, axis=1) & valid
        s = p.q[:, head].astype(np.float64) @ k.T * np.sign(p.sm_scale)
        s = np.where(token, s, -np.inf)
        weight = np.exp2((s - s.max(axis=1, keepdims=True)) * float(scale))
        weight[weight < 2.0**-126] = 0
        assert np.isin(np.frexp(weight)[0], (0, 0.5)).all(), "weights must be powers of two"
        inverse = np.float32(1) / weight.sum(axis=1, keepdims=True).astype(np.float32)
        out[:, head] = ((weight @ v).astype(np.float32) * inverse).astype(real)
    return out


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.values != "random"], ids=lambda case: case.name
)
def test_exact_inputs_are_exact(case):
    """No recording is needed to know these bits; the recording proves that a GPU has them too."""
    problem = problem_of(case)
    with (
        routes.only(case.family),
        sim.device("sm_90a", schedule="random", seed=case.seed) as device,
    ):
        out, _ = run(plan_of(problem, device), problem)
    assert out.tobytes() == exact_output(problem).tobytes()


def test_every_recording_has_a_case():
    assert {path.stem for path in DATA.glob("*.npz")} == {case.name for case in CASES}
    assert len({case.name for case in CASES}) == len(CASES) >= 20
    assert sum(path.stat().st_size for path in DATA.glob("*.npz")) < 800_000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_recorded(case):
    path = DATA / f"{case.name}.npz"
    assert path.exists(), f"no recording: {AGAIN}"
    with np.load(path) as file:
        recorded = {name: file[name] for name in file.files}
    kernel = str(recorded["kernel"])
    entry = store().find(kernel, (9, 0))
    assert entry is not None, f"{kernel} is no kernel any more: {AGAIN}"
    assert entry.sha256 == str(recorded["cubin_sha256"]), f"the cubin is another one: {AGAIN}"
    problem, out, lse, route = simulated(case)
    assert checksum(problem) == int(recorded["checksum"]), f"numpy drew other inputs: {AGAIN}"
    assert route == kernel
    rows = stored_rows(case, problem)
    bits, wanted = out.view(np.uint16)[rows], recorded["out"]
    if case.values != "random":
        differ = np.argwhere(bits != wanted)
        assert len(differ) == 0, f"{len(differ)} elements differ, the first at {differ[0]}"
        # lg2.approx and a contraction stand between the sum and its logarithm.
        assert np.allclose(lse[rows], recorded["lse"], rtol=1e-6, atol=1e-6)
        return
    check(problem, out, lse)
    ref, ref_lse = cakert.reference.attention(
        problem.q, problem.k, problem.v, problem.mask,
        sm_scale=problem.sm_scale, block=problem.block, kv_block_lens=problem.lens,
    )  # fmt: skip
    theirs = wanted.view(DTYPES[case.dtype])
    assert compare(theirs, ref[rows], plain(problem, rows)).passed
    assert lse_close(recorded["lse"], ref_lse[rows])
    assert near(bits, wanted).mean() >= 0.996


def test_nearly_all_random_outputs_are_within_two_units_of_the_recorded():
    parts = []
    for case in CASES:
        path = DATA / f"{case.name}.npz"
        if case.values == "random":
            problem, out, _, _ = simulated(case)
            with np.load(path) as file:
                parts.append(near(out.view(np.uint16)[stored_rows(case, problem)], file["out"]))
    assert np.concatenate([part.reshape(-1) for part in parts]).mean() >= 0.999


def test_the_tool_writes_every_case(tmp_path, project):
    """Under the stub driver, which executes nothing: what it writes is complete, not right."""
    script = f"""
import sys
sys.path.insert(0, {str(project / "tools")!r})
sys.argv = ["record_gpu_outputs.py", "--out", {str(tmp_path)!r}]
import record_gpu_outputs
sys.exit(record_gpu_outputs.main())
"""
    (tmp_path / "old.npz").write_bytes(b"")
    run_with_stub(script, capability=(9, 0))
    assert {path.stem for path in tmp_path.glob("*.npz")} == {case.name for case in CASES}
    for case in CASES:
        problem = problem_of(case)
        with np.load(tmp_path / f"{case.name}.npz") as file:
            assert set(file.files) == {
                "out", "lse", "checksum", "kernel", "cubin_sha256", "gpu", "driver",
            }  # fmt: skip
            assert int(file["checksum"]) == checksum(problem)
            assert len(file["out"]) == len(stored_rows(case, problem)) == len(file["lse"])
    refused = run_with_stub(script, capability=(10, 0), check=False)
    assert refused.returncode == 1
    assert "needs capability (9, 0), found (10, 0)" in refused.stderr
