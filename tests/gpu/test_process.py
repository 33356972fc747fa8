"""What only a whole process shows: first launch, fork, README, torch.compile, many launches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from helpers.problems import make_problem  # noqa: E402
from torch_runs import check, inputs_of, plan_of  # noqa: E402

from cakert import run_cake_vsa  # noqa: E402

PRELUDE = """
import torch
from cakert import plan_cake_vsa, run_cake_vsa
mask = torch.ones((2, 4, 4), dtype=torch.bool)
def plan(device="cuda"):
    return plan_cake_vsa(None, None, mask, None, None, None, M=256, N=256, R=64, C=64,
                         num_qo_heads=2, num_kv_heads=2, head_dim=128,
                         q_data_type=torch.bfloat16, sm_scale=None, device=device)
def run(plan, q, k, v, out=None):
    return run_cake_vsa(plan, q, k, v, out=out, lse=None, return_lse=False, backend="cake")
def dense(q, k, v):
    q, k, v = (t.transpose(0, 1).float() for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1)
def inputs():
    return [torch.randn(256, 2, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
def close(a, b):
    assert (a.float() - b).abs().max() < 2e-2, (a.float() - b).abs().max()
"""


def child(script: str, *, timeout: int = 60, **environment: str) -> str:
    """Run a script in a fresh interpreter; a hang fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(script)],
        text=True, capture_output=True, timeout=timeout, check=False,
        env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("loading", ["LAZY", "EAGER"])
def test_f36_first_launch_of_a_process_is_inside_a_capture(loading):
    child(
        """
        tensors = inputs()
        out = torch.empty_like(tensors[0])
        ready = plan()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(ready, *tensors, out)
        graph.replay()
        close(out, dense(*tensors))
        """,
        CUDA_MODULE_LOADING=loading,
    )


def test_f36_first_launch_does_not_wait_for_another_stream():
    child(
        """
        import time
        tensors, ready = inputs(), plan()
        out = torch.empty_like(tensors[0])
        busy, own = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(busy):
            torch.cuda._sleep(2_000_000_000)      # about a second
        start = time.perf_counter()
        with torch.cuda.stream(own):
            run(ready, *tensors, out)
        own.synchronize()
        assert time.perf_counter() - start < 0.3 and not busy.query()
        close(out, dense(*tensors))
        """
    )


def test_without_torch_no_context_is_left_current():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import numpy as np, cakert
                mask = np.ones((1, 2, 2), bool)
                plan = cakert.plan_cake_vsa(
                    None, None, mask, None, None, None, M=128, N=128, R=64, C=64, num_qo_heads=1,
                    num_kv_heads=1, head_dim=64, q_data_type="float16", sm_scale=None, device=0)
                x = np.random.default_rng().standard_normal((128, 1, 64)).astype(np.float16)
                q = cakert.DeviceArray.from_numpy(x)
                out = cakert.run_cake_vsa(plan, q, q, q, out=None, lse=None, return_lse=False,
                                          backend="cake")
                want, _ = cakert.reference.attention(x, x, x, mask, sm_scale=None, block=64)
                assert np.abs(out.numpy() - want).max() < 1e-2
                """
            ),
        ],
        text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_f44_fork():
    out = child(
        """
        import os, sys
        from cakert.runtime import driver
        ready, tensors = plan(), inputs()
        run(ready, *tensors)
        torch.cuda.synchronize()
        child = os.fork()
        if child == 0:
            try:
                run(ready, *tensors)
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        close(run(ready, *tensors), dense(*tensors))
        """
    )
    assert "spawn" in out


def test_f67_the_readme_example_runs(project):
    (code,) = re.findall(
        r"```python\n(import torch.*?)```", (project / "README.md").read_text(), re.DOTALL
    )
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    out, lse = names["out"], names["lse"]
    assert out.shape == (4096, 8, 128) and torch.isfinite(out).all() and torch.isfinite(lse).all()


def test_f68_torch_compile(rng):
    problem = make_problem(rng, "mask", M=256, N=256)
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)

    def layer(q, k, v):
        out = run_cake_vsa(plan, q * 2, k, v, out=None, lse=None, return_lse=False, backend="cake")
        return out + 1

    want = layer(q, k, v)
    assert torch.equal(torch.compile(layer)(q, k, v), want)


@pytest.mark.full
def test_f9_two_thousand_launches_of_random_sizes(rng):
    for _ in range(2000 // 20):
        block = int(rng.choice([64, 128]))
        problem = make_problem(
            rng, "mask", M=block * int(rng.integers(1, 9)), N=block * int(rng.integers(1, 9)),
            block=block, heads=((1, 1), (2, 1), (4, 2), (3, 3))[rng.integers(4)],
            head_dim=int(rng.choice([64, 96, 128])), dtype=str(rng.choice(["float16", "bfloat16"])),
        )  # fmt: skip
        plan, tensors = plan_of(problem, metadata="cpu"), inputs_of(problem)
        outs = [
            run_cake_vsa(plan, *tensors, out=None, lse=None, return_lse=False, backend="cake")
            for _ in range(20)
        ]
        check(problem, outs[0])
        first = outs[0].view(torch.int16)
        assert all(torch.equal(out.view(torch.int16), first) for out in outs[1:])
