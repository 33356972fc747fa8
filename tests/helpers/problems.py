"""Problems to verify a kernel with: inputs, patterns, the plain implementation, the comparer.

Everything is numpy on the host, so that the same problem runs on a GPU, on the simulator and
against the reference. The error bound is relative to `plain`, an implementation of the same
precision as the kernels, never a tolerance picked by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import numpy.typing as npt

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

# How a problem's pattern is given to plan.
KINDS = ("mask", "kv_mask", "bsr", "q2k", "q2k_ragged", "lens")


@dataclass(frozen=True)
class VsaProblem:
    """One problem: scalars, inputs, and its pattern twice.

    Attributes
    ----------
    mask
        (num_qo_heads, MB, NB) bool: the pattern for references, whatever `pattern` gives to plan.
    lens
        (NB,) valid tokens of each KV block, or None.
    pattern
        The six pattern arguments of plan by name, numpy or None.
    """

    kind: str
    M: int
    N: int
    block: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    sm_scale: float | None
    q: npt.NDArray
    k: npt.NDArray
    v: npt.NDArray
    mask: npt.NDArray[np.bool_]
    lens: npt.NDArray | None
    pattern: dict[str, npt.NDArray | None] = field(repr=False)

    @property
    def scalars(self) -> dict[str, object]:
        """The keyword arguments of plan, without `device`."""
        return {
            "M": self.M,
            "N": self.N,
            "R": self.block,
            "C": self.block,
            "num_qo_heads": self.num_qo_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "q_data_type": self.dtype,
            "sm_scale": self.sm_scale,
        }


def make_problem(
    rng: np.random.Generator,
    kind: str,
    *,
    M: int = 512,
    N: int = 512,
    block: int = 64,
    heads: tuple[int, int] = (2, 2),
    head_dim: int = 128,
    dtype: str = "bfloat16",
    sm_scale: float | None = None,
    selected: tuple[int, int] | None = None,
    poison: bool = False,
) -> VsaProblem:
    """A random problem of one of `KINDS`; ragged where the kind allows it.

    Parameters
    ----------
    selected
        Smallest and largest number of blocks of a row; (1, NB) if left out.
    poison
        Fill K and V with NaN wherever no query head of the group looks, and past the lengths; one
        block at least is spared for it.
    """
    qo_heads, kv_heads = heads
    mb, nb = M // block, N // block
    low, high = selected or (1, nb)
    rows = {"kv_mask": kv_heads, "bsr": 1}.get(kind, qo_heads)
    if kind == "q2k":
        low = high = high if selected else int(rng.integers(1, nb + 1))
    counts = rng.integers(low, high + 1, (rows, mb))
    order = np.argsort(rng.random((rows, mb, nb)), axis=-1).astype(np.int32)
    small = np.zeros((rows, mb, nb), bool)
    if poison and nb > 1:
        # A block that nobody selects, however many rows look: it comes last in every order.
        spared = rng.integers(nb)
        order = np.take_along_axis(order, np.argsort(order == spared, axis=-1, kind="stable"), -1)
        counts = np.minimum(counts, nb - 1)
        high = min(high, nb - 1)
    np.put_along_axis(small, order, np.arange(nb) < counts[..., None], axis=-1)
    mask = np.repeat(small, qo_heads // rows, axis=0)
    lens = rng.integers(1, block + 1, nb) if kind == "lens" else None

    pattern: dict[str, npt.NDArray | None] = dict.fromkeys(
        ("indptr", "indices", "block_mask", "kv_block_lens", "q2k_indices", "q2k_num")
    )
    if kind in ("mask", "kv_mask", "lens"):
        pattern["block_mask"] = small
        pattern["kv_block_lens"] = lens
    elif kind == "bsr":
        pattern["indptr"], pattern["indices"] = untidy_bsr(rng, small[0])
    else:
        lists = np.ascontiguousarray(order[..., :high])
        if kind == "q2k_ragged":
            lists[np.arange(high) >= counts[..., None]] = -1
            pattern["q2k_num"] = counts.astype(np.int32)
        pattern["q2k_indices"] = lists

    real = DTYPES[dtype]
    q = rng.standard_normal((M, qo_heads, head_dim), np.float32).astype(real)
    k = rng.standard_normal((N, kv_heads, head_dim), np.float32).astype(real)
    v = rng.standard_normal((N, kv_heads, head_dim), np.float32).astype(real)
    if poison:
        seen = mask.reshape(kv_heads, -1, mb, nb).any(axis=(1, 2))
        valid = np.repeat(seen, block, axis=1)
        if lens is not None:
            valid &= (np.arange(block) < lens[:, None]).reshape(-1)
        k[~valid.T] = np.nan
        v[~valid.T] = np.nan
    return VsaProblem(
        kind,
        M,
        N,
        block,
        qo_heads,
        kv_heads,
        head_dim,
        dtype,
        sm_scale,
        q,
        k,
        v,
        mask,
        lens,
        pattern,
    )


def untidy_bsr(
    rng: np.random.Generator, mask: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A BSR pattern of `mask` (MB, NB) with shuffled rows and repeated columns."""
    rows = []
    for row in mask:
        columns = np.flatnonzero(row)
        again = columns[rng.integers(0, len(columns), rng.integers(0, 3))] if len(columns) else []
        rows.append(rng.permutation(np.concatenate((columns, again)).astype(np.int64)))
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    return indptr, np.concatenate(rows)


def sample_rows(
    rng: np.random.Generator, problem: VsaProblem, count: int = 4096
) -> npt.NDArray[np.int64]:
    """Query tokens to compare where all would take too long; all where there are few.

    First and last token, both edges of up to `count` / 4 random tiles, the rest at random.
    """
    if count >= problem.M:
        return np.arange(problem.M)
    tiles = rng.permutation(problem.M // problem.block)[: count // 4] * problem.block
    edges = np.unique(np.concatenate(([0, problem.M - 1], tiles, tiles + problem.block - 1)))
    rest = rng.permutation(np.setdiff1d(np.arange(problem.M), edges))
    return np.sort(np.concatenate((edges, rest[: max(0, count - len(edges))])))


def plain(
    problem: VsaProblem, rows: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.float32]:
    """Attention as a straightforward half-precision implementation computes it.

    From the rounded inputs: S = q k^T accumulated in float32 and rounded to the input dtype;
    softmax in float32 over the selected valid keys; P rounded to the input dtype; P V accumulated
    in float32; the output rounded. Returns its values as float32, (n, num_qo_heads, head_dim).
    """
    p = problem
    real = DTYPES[p.dtype]
    scale = np.float32(1 / math.sqrt(p.head_dim) if p.sm_scale is None else p.sm_scale)
    lens = np.full(p.N // p.block, p.block) if p.lens is None else p.lens
    wanted = np.arange(p.M) if rows is None else rows
    out = np.zeros((len(wanted), p.num_qo_heads, p.head_dim), np.float32)
    for q_block in np.unique(wanted // p.block):
        here = np.flatnonzero(wanted // p.block == q_block)
        for head in range(p.num_qo_heads):
            token = np.concatenate(
                [
                    np.arange(b * p.block, b * p.block + lens[b])
                    for b in np.flatnonzero(p.mask[head, q_block])
                ]
                or [np.empty(0, np.int64)]
            )
            if len(token) == 0:
                continue
            kv_head = head // (p.num_qo_heads // p.num_kv_heads)
            q = p.q[wanted[here], head].astype(np.float32)
            s = (q @ p.k[token, kv_head].astype(np.float32).T).astype(real).astype(np.float32)
            s *= scale
            weight = np.exp(s - s.max(axis=1, keepdims=True))
            weight /= weight.sum(axis=1, keepdims=True)
            weight = weight.astype(real).astype(np.float32)
            out[here, head] = weight @ p.v[token, kv_head].astype(np.float32)
    return out.astype(real).astype(np.float32)


@dataclass(frozen=True)
class Comparison:
    """Largest and Frobenius error, and what each may be at most."""

    max_error: float
    max_bound: float
    fro_error: float
    fro_bound: float

    @property
    def passed(self) -> bool:
        # Written so that a NaN error fails.
        return self.max_error <= self.max_bound and self.fro_error <= self.fro_bound

    def __str__(self) -> str:
        return (
            f"max error {self.max_error:.3g} (bound {self.max_bound:.3g}), "
            f"Frobenius {self.fro_error:.3g} (bound {self.fro_bound:.3g})"
        )


def errors(actual: npt.ArrayLike, expected: npt.ArrayLike) -> tuple[float, float]:
    """Largest and Frobenius difference in float64.

    Equal infinities and a NaN where one is expected differ by 0; any other mismatch of NaN or
    infinity is an infinite error.
    """
    a = np.asarray(actual).astype(np.float64)
    b = np.asarray(expected).astype(np.float64)
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: actual {a.shape}, expected {b.shape}")
    if a.size == 0:
        raise ValueError("nothing to compare")
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(a - b))
    difference[np.isnan(difference)] = np.inf
    return float(difference.max()), float(np.linalg.norm(difference.reshape(-1)))


def compare(
    out: npt.ArrayLike, ref64: npt.NDArray[np.float64], plain_out: npt.ArrayLike
) -> Comparison:
    """Hold `out` to the bound: twice the error of the plain implementation, plus 1e-5."""
    max_error, fro_error = errors(out, ref64)
    plain_max, plain_fro = errors(plain_out, ref64)
    if not math.isfinite(plain_max):
        raise ValueError("the plain implementation is not finite where the reference is: no bound")
    return Comparison(max_error, 2 * plain_max + 1e-5, fro_error, 2 * plain_fro + 1e-5)


def lse_close(actual: npt.ArrayLike, expected: npt.NDArray[np.float64]) -> bool:
    """Whether each LSE is within 1e-3 + 4 ulp (float32) of the expected one; -inf equals -inf."""
    a = np.asarray(actual, dtype=np.float64)
    if a.shape != expected.shape:
        raise ValueError(f"shapes differ: actual {a.shape}, expected {expected.shape}")
    finite = np.isfinite(expected)
    bound = 1e-3 + 4 * np.spacing(np.abs(expected[finite]).astype(np.float32)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.abs(a[finite] - expected[finite]) <= bound
    equal = (a[~finite] == expected[~finite]) | (np.isnan(a[~finite]) & np.isnan(expected[~finite]))
    return bool(near.all() and equal.all())
