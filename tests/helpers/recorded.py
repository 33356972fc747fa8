"""Small problems that are run on a GPU once and on the simulator ever after.

Inputs come from a seed; only outputs are stored. An *exact* problem has every product, sum and
exp2 exact, so that the order of the sums and the rounding inside a tensor core cannot show:

"one-hot"
    Queries and keys are codes of +-1 and the scale is so large that a row's weights are exactly 0
    or 1: the output is a gathered row of V, or the mean of a few.
"powers"
    The logits are small integers and ``sm_scale * log2(e)`` rounds to 1.0 in float32, so weights
    are powers of two; V holds small integers, and no sum needs more than 24 bits.
"flat"
    ``sm_scale`` is 0: every selected key weighs the same.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from helpers.problems import DTYPES, VsaProblem, make_problem

__all__ = ["CASES", "LN2", "Case", "checksum", "exact_names", "problem_of", "stored_rows"]

# float32(ln 2) * float32(log2 e) is 1.0 after rounding, which is how the kernels prescale.
LN2 = float(np.float32(np.log(2)))

_RANDOM_ROWS = 20


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes
    ----------
    values
        "random", or the name of a kind of exact inputs.
    kind
        Of the pattern, one of ``problems.KINDS``.
    heads
        Query and KV heads.
    family
        Of the kernel that runs it.
    """

    block: int
    head_dim: int
    dtype: str
    values: str
    kind: str
    heads: tuple[int, int]
    seed: int
    family: str

    @property
    def name(self) -> str:
        """For file and test names."""
        heads = f"h{self.heads[0]}x{self.heads[1]}"
        # Recordings of the first family were there before there was a second one.
        family = "" if self.family == "portable" else f"{self.family}_"
        return (
            f"{family}r{self.block}_d{self.head_dim}_{self.dtype}_{self.values.replace('-', '')}"
            f"_{self.kind}_{heads}"
        )


def exact_names() -> tuple[str, ...]:
    """Kinds of exact inputs."""
    return ("one-hot", "powers", "flat")


def _cases(
    family: str,
    first_seed: int,
    blocks: tuple[int, ...] = (64, 128),
    head_dims: tuple[int, ...] = (64, 96, 128),
    rounds: int = 1,
) -> tuple[Case, ...]:
    """Each variant with exact and with random inputs; kinds, heads and exactness take turns."""
    kinds = {
        64: itertools.cycle(("mask", "q2k", "lens", "bsr", "q2k_ragged", "kv_mask", "lens")),
        128: itertools.cycle(("mask", "kv_mask", "bsr")),
    }
    heads = itertools.cycle(((2, 1), (2, 2), (1, 1)))
    exact = itertools.cycle(exact_names())
    variants = list(itertools.product(blocks, head_dims, DTYPES)) * rounds
    return tuple(
        Case(
            block, head_dim, dtype, values, next(kinds[block]), next(heads),
            first_seed + 2 * i + j, family,
        )
        for i, (block, head_dim, dtype) in enumerate(variants)
        for j, values in enumerate((next(exact), "random"))
    )  # fmt: skip


CASES = (
    *_cases("portable", 1000),
    *_cases("sm90", 2000),
    # Few rows: each is split between two warpgroups, or over a cluster of four thread blocks.
    *_cases("sm90_group", 3000, blocks=(64,), head_dims=(128,), rounds=3),
    *_cases("sm90_split", 4000, blocks=(64,), rounds=2),
)


def problem_of(case: Case) -> VsaProblem:
    """The inputs and the pattern of a case."""
    rng = np.random.default_rng(case.seed)
    blocks = 2 if case.block == 64 else 1
    problem = make_problem(
        rng,
        case.kind,
        M=blocks * case.block,
        N=(5 if case.block == 64 else 3) * case.block,
        block=case.block,
        heads=case.heads,
        head_dim=case.head_dim,
        dtype=case.dtype,
    )
    if case.values == "random":
        return problem
    real = DTYPES[case.dtype]
    v = rng.integers(-4, 5, problem.v.shape).astype(real)
    if case.values == "flat":
        return replace(problem, v=v, sm_scale=0.0)
    if case.values == "powers":
        q, k = _few_units(rng, problem.q.shape), _few_units(rng, problem.k.shape)
        return replace(problem, q=q.astype(real), k=k.astype(real), v=v, sm_scale=LN2)
    codes = _codes(rng, case.head_dim)
    keys = rng.permutation(problem.N)[: len(codes)]
    k = codes[rng.integers(0, len(codes), problem.k.shape[:2])]
    k[keys] = codes[: len(keys), None]
    q = codes[rng.integers(0, len(codes), problem.q.shape[:2])]
    return replace(problem, q=q.astype(real), k=k.astype(real), v=v, sm_scale=64.0)


def _few_units(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Vectors with one or two elements of +-1 among the first eight: q.k is in [-2, 2]."""
    values = np.zeros(shape, np.float32)
    for _ in range(2):
        at = rng.integers(0, 8, (*shape[:2], 1))
        np.put_along_axis(values, at, rng.choice((-1.0, 1.0), (*shape[:2], 1)), axis=-1)
    return values


def _codes(rng: np.random.Generator, head_dim: int) -> npt.NDArray[np.float32]:
    """512 vectors of +-1: logits are even integers, and 2 * 64 * log2(e) is exp2's way to 0."""
    bits = (np.arange(512)[:, None] >> np.arange(9)) & 1
    columns = rng.permutation(np.arange(head_dim) % 9)
    return (2.0 * bits[:, columns] - 1.0).astype(np.float32)


def stored_rows(case: Case, problem: VsaProblem) -> npt.NDArray[np.int64]:
    """Query tokens whose outputs are stored: all where inputs are exact, else a sample."""
    if case.values != "random":
        return np.arange(problem.M)
    picked = np.random.default_rng(case.seed + 1).permutation(problem.M)[:_RANDOM_ROWS]
    return np.sort(picked)


def checksum(problem: VsaProblem) -> int:
    """CRC-32 of the inputs: numpy does not promise the same random numbers for ever."""
    value = 0
    for array in (problem.q, problem.k, problem.v, problem.mask):
        value = zlib.crc32(np.ascontiguousarray(array).view(np.uint8), value)
    return value
