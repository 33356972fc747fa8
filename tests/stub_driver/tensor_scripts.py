"""What the scripts about the tensors of a run begin with, and how their errors are checked."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from helpers.stub import StubResult, run_with_stub
from launch_abi import launch_params

PRELUDE = """
import gc
import numpy as np, ml_dtypes
import cakert
from helpers.fake_tensor import CPU, FLOAT, FLOAT8_E4M3FN, FakeCai, FakeCuda
from stub_child import address_of, failure, make_current, mark, new_stream, report
from stub_problem import Problem, aligned, rng, run

def refused(p, plan, name, bad, **keywords):
    # What run says to good tensors but one, and how often each was exported and released.
    names = ("q", "k", "v", "out", "lse") if "return_lse" in keywords else ("q", "k", "v", "out")
    tensors = dict(zip(names, p.tensors(*names)))
    tensors[name] = bad
    memory = getattr(bad, "array", bad)
    before = memory.tobytes()
    error = failure(lambda: run(plan, **tensors, **keywords))
    assert memory.tobytes() == before
    return [error, [[t.exports, t.releases] for t in tensors.values() if hasattr(t, "exports")]]
"""


def run_script(script: str, **options: Any) -> StubResult:
    """`run_with_stub` of the prelude and `script`."""
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)


def refuse_each(
    cases: list[tuple[str, str]], setup: str, keywords: str = "", **options: Any
) -> list[str]:
    """Run every (name, expression of a bad tensor) in one process; the errors, in order.

    Each must be a ValueError that names the tensor, before any launch, with every capsule of
    good and bad tensors released.
    """
    calls = ", ".join(f"refused(p, plan, {name!r}, {bad}{keywords})" for name, bad in cases)
    result = run_script(f"{textwrap.dedent(setup)}\nreport([{calls}])", **options)
    assert not launched_addresses(result)
    for case, (error, counts) in zip(cases, result.report, strict=True):
        assert error["type"] == "ValueError" and case[0] in words(error["text"]), (case, error)
        assert all(exports == releases for exports, releases in counts), (case, counts)
    return [error["text"] for error, _ in result.report]


def words(text: str) -> set[str]:
    """The words of a message."""
    return set(re.findall(r"\w+", text))


def launched_addresses(result: StubResult) -> list[list[int]]:
    """Addresses of q, k, v, out and lse in each launch."""
    names = ("q", "k", "v", "out", "lse")
    return [
        [int(launch_params(call)[name]) for name in names]
        for call in result.trace.named("cuLaunchKernelEx")
    ]
