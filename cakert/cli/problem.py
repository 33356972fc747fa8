"""The demo's problem: inputs from a seed, the plain implementation, the error bound.

The bound is relative to an implementation of the kernels' own precision, not a tolerance picked by
hand: at most twice its error against the float64 reference, plus 1e-5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Problem:
    """Shapes as in ``plan_cake_vsa``; every query block selects `topk` random KV blocks.

    Attributes
    ----------
    q
        (tokens_q, heads, head_dim) in the 16-bit type, standard normal before rounding.
    k, v
        (tokens_kv, kv_heads, head_dim) likewise.
    block_mask
        (heads, tokens_q // block, tokens_kv // block) bool.
    """

    block: int
    head_dim: int
    dtype: str
    q: npt.NDArray[Any]
    k: npt.NDArray[Any]
    v: npt.NDArray[Any]
    block_mask: npt.NDArray[np.bool_]

    @property
    def shape_text(self) -> str:
        """Shapes in one line for a table."""
        tokens_q, heads, _ = self.q.shape
        tokens_kv, kv_heads, _ = self.k.shape
        kv = "" if kv_heads == heads else f" ({kv_heads} KV)"
        return (
            f"{heads} heads{kv}, {tokens_q} x {tokens_kv} tokens, head_dim {self.head_dim}, "
            f"{self.dtype}"
        )

    @property
    def pattern_text(self) -> str:
        """The selected part in one line for a table."""
        selected, total = int(self.block_mask.sum()), self.block_mask.size
        return (
            f"{selected} of {total} blocks of {self.block} x {self.block} ({selected / total:.0%})"
        )


def make_problem(
    *,
    heads: int,
    kv_heads: int,
    tokens_q: int,
    tokens_kv: int,
    topk: int,
    block: int,
    head_dim: int,
    dtype: str,
    seed: int,
) -> Problem:
    """Draw a problem; the same arguments give the same bits."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> npt.NDArray[Any]:
        return rng.standard_normal(shape, dtype=np.float32).astype(DTYPES[dtype])

    shape = (heads, tokens_q // block, tokens_kv // block)
    block_mask = np.zeros(shape, dtype=np.bool_)
    chosen = rng.random(shape).argsort(axis=-1)[..., :topk]
    np.put_along_axis(block_mask, chosen, True, axis=-1)
    return Problem(
        block=block,
        head_dim=head_dim,
        dtype=dtype,
        q=normal(tokens_q, heads, head_dim),
        k=normal(tokens_kv, kv_heads, head_dim),
        v=normal(tokens_kv, kv_heads, head_dim),
        block_mask=block_mask,
    )


def plain_attention(problem: Problem) -> npt.NDArray[np.float64]:
    """Attention as a straightforward 16-bit implementation computes it.

    S = q k^T rounded to the input type, softmax in float32 over the selected keys, P rounded to
    the input type, P V accumulated in float32, the output rounded.

    Returns
    -------
    numpy.ndarray
        (tokens_q, heads, head_dim), the rounded values as float64.
    """
    real = DTYPES[problem.dtype]
    block = problem.block
    group = problem.q.shape[1] // problem.k.shape[1]
    scale = np.float32(1 / math.sqrt(problem.head_dim))
    out = np.empty(problem.q.shape, dtype=real)
    for head, rows in enumerate(problem.block_mask):
        keys = problem.k[:, head // group].astype(np.float32)
        values = problem.v[:, head // group].astype(np.float32)
        for row, selected in enumerate(rows):
            queries = slice(row * block, (row + 1) * block)
            token = np.repeat(selected, block)
            q = problem.q[queries, head].astype(np.float32)
            logits = (q @ keys[token].T).astype(real).astype(np.float32) * scale
            weight = np.exp(logits - logits.max(axis=1, keepdims=True))
            weight = (weight / weight.sum(axis=1, keepdims=True)).astype(real)
            out[queries, head] = (weight.astype(np.float32) @ values[token]).astype(real)
    return out.astype(np.float64)


@dataclass(frozen=True)
class Verdict:
    """Largest and Frobenius error of a result against the reference, each with its bound."""

    max_error: float
    max_bound: float
    fro_error: float
    fro_bound: float

    @property
    def passed(self) -> bool:
        """Whether both errors are within their bounds; a NaN is not."""
        return self.max_error <= self.max_bound and self.fro_error <= self.fro_bound


def judge(
    out: npt.NDArray[Any], reference: npt.NDArray[np.float64], plain: npt.NDArray[np.float64]
) -> Verdict:
    """Hold a result to the bound that the plain implementation gives."""
    error = np.abs(out.astype(np.float64) - reference)
    plain_error = np.abs(plain - reference)
    return Verdict(
        max_error=float(error.max()),
        max_bound=2 * float(plain_error.max()) + 1e-5,
        fro_error=float(np.linalg.norm(error)),
        fro_bound=2 * float(np.linalg.norm(plain_error)) + 1e-5,
    )
