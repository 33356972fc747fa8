"""What Triton's compiler makes of tl.dot for three targets, against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from conformance_build import Toolchain
from conformance_launch import Launch, Memory, drawn, schedules
from helpers.problems import compare

from cakert.sim import Gpu

ARCHES = {"sm_90a": 90, "sm_100a": 100, "sm_103a": 103}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

TARGETS = [
    "sm_90a",
    "sm_100a",
    pytest.param("sm_103a", marks=pytest.mark.full),
]

Array = npt.NDArray[Any]


@dataclass
class Session:
    """A simulated GPU for one test, and Triton's kernels on it."""

    toolchain: Toolchain
    arch: str
    gpu: Gpu

    def __post_init__(self) -> None:
        self.memory = Memory(self.gpu)

    def run(self, name: str, grid: tuple[int, int, int], arguments: list[Any]) -> None:
        kernel = self.toolchain.triton(name, ARCHES[self.arch])
        nothing = [np.uint64(0)] * kernel.hidden_pointers
        launch = Launch(
            kernel.name, grid, kernel.threads, [*arguments, *nothing], kernel.shared_bytes
        )
        launch.run(self.gpu, kernel.ptx)


@pytest.fixture(params=schedules())
def schedule(request: pytest.FixtureRequest, rng: np.random.Generator) -> str:
    return drawn(request.param, rng)


@pytest.fixture(params=TARGETS)
def session(request: pytest.FixtureRequest, triton: Toolchain, schedule: str, seed: int) -> Session:
    return Session(triton, request.param, Gpu(request.param, schedule=schedule, seed=seed))


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, np.float32).astype(BFLOAT16)


@pytest.mark.parametrize(
    ("name", "tile", "shape"),
    [("matmul", (128, 64), (144, 80, 208)), ("matmul_small", (32, 32), (48, 48, 80))],
)
def test_matmul(
    session: Session,
    rng: np.random.Generator,
    name: str,
    tile: tuple[int, int],
    shape: tuple[int, int, int],
) -> None:
    rows, columns, depth = shape
    a, b = normal(rng, rows, depth), normal(rng, depth, columns)
    memory = session.memory
    arguments = [
        memory.put("a", a),
        memory.put("b", b),
        memory.result("c", (rows, columns), BFLOAT16),
        *map(np.int32, (rows, columns, depth)),
    ]
    session.run(name, (-(-rows // tile[0]), -(-columns // tile[1]), 1), arguments)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    plain = (a.astype(np.float32) @ b.astype(np.float32)).astype(BFLOAT16)
    comparison = compare(memory.read("c"), exact, plain)
    assert comparison.passed, comparison


def test_attention(session: Session, rng: np.random.Generator) -> None:
    tokens, keys, dim = 150, 200, 64
    q, k, v = (normal(rng, length, dim) for length in (tokens, keys, keys))
    memory = session.memory
    arguments = [
        *(memory.put(name, x) for name, x in (("q", q), ("k", k), ("v", v))),
        memory.result("out", (tokens, dim), BFLOAT16),
        np.int32(tokens),
        np.int32(keys),
        np.float32(1 / math.sqrt(dim) / math.log(2)),
    ]
    session.run("attention", (-(-tokens // 128), 1, 1), arguments)
    exact = softmax_times(q.astype(np.float64), k, v, np.dtype(np.float64))
    plain = softmax_times(q.astype(np.float32), k, v, BFLOAT16)
    comparison = compare(memory.read("out"), exact, plain)
    assert comparison.passed, comparison


def softmax_times(q: Array, k: Array, v: Array, rounded: np.dtype[Any]) -> Array:
    """Attention in q's precision; logits, probabilities and result rounded as told."""
    real = q.dtype
    score = (q @ k.astype(real).T).astype(rounded).astype(real) / math.sqrt(q.shape[1])
    weight = np.exp(score - score.max(1, keepdims=True))
    weight = (weight / weight.sum(1, keepdims=True)).astype(rounded).astype(real)
    return (weight @ v.astype(real)).astype(rounded).astype(np.float64)
