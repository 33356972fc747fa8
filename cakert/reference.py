"""The oracle: block-sparse attention in float64 on the host, slow and obvious.

Only selected blocks and valid tokens are touched, so whatever lies in the others (NaN, old memory)
cannot reach the result, and memory stays linear in the tokens of one row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert import arrays

__all__ = ["attention"]

Tensor = Any
Float64 = npt.NDArray[np.float64]

# Keys that are taken at a time; bounds the logits of one step to block x 4096 float64.
_KEYS_PER_STEP = 4096


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_mask: Tensor,
    *,
    sm_scale: float | None,
    block: int,
    kv_block_lens: Tensor | None = None,
    rows: npt.ArrayLike | None = None,
) -> tuple[Float64, Float64]:
    """Softmax attention of each query over the valid tokens of its selected blocks.

    Parameters
    ----------
    q
        (M, num_qo_heads, head_dim), any float dtype and framework.
    k, v
        (N, num_kv_heads, head_dim); query head h reads KV head h // (num_qo_heads //
        num_kv_heads).
    block_mask
        (num_qo_heads, MB, NB) or (num_kv_heads, MB, NB), non-zero where selected.
    sm_scale
        Factor of the logits; None means ``1 / sqrt(head_dim)``.
    block
        Tokens of a block, for queries and keys.
    kv_block_lens
        (NB,) valid tokens of each KV block, clamped to [0, block]; None: all.
    rows
        (n,) numbers of the query tokens wanted, for shapes whose whole result would take too
        long; None: all M.

    Returns
    -------
    out
        (n, num_qo_heads, head_dim) float64; zeros where nothing is selected.
    lse
        (n, num_qo_heads) float64, the natural logarithm of the sum of ``exp(sm_scale * q.k)``;
        -inf where nothing is selected.

    Raises
    ------
    ValueError
        Shapes that do not fit together.
    """
    queries, keys, values = arrays.to_numpy(q), arrays.to_numpy(k), arrays.to_numpy(v)
    mask = arrays.to_numpy(block_mask) != 0
    tokens, heads, dim = queries.shape
    group = heads // keys.shape[1]
    q_blocks, kv_blocks = tokens // block, keys.shape[0] // block
    allowed = ((heads, q_blocks, kv_blocks), (keys.shape[1], q_blocks, kv_blocks))
    if keys.shape != values.shape or keys.shape[2] != dim or heads % keys.shape[1]:
        raise ValueError(f"k and v must fit q {queries.shape}, got {keys.shape}, {values.shape}")
    if tokens % block or keys.shape[0] % block:
        raise ValueError(
            f"q and k must have multiples of block = {block} tokens, got {tokens} and "
            f"{keys.shape[0]}"
        )
    if mask.shape not in allowed:
        raise ValueError(
            f"block_mask must have shape {allowed[0]} or {allowed[1]}, got {mask.shape}"
        )
    scale = 1.0 / math.sqrt(dim) if sm_scale is None else float(sm_scale)
    lens = np.full(kv_blocks, block)
    if kv_block_lens is not None:
        lens = arrays.to_numpy(kv_block_lens).clip(0, block)
        if lens.shape != (kv_blocks,):
            raise ValueError(f"kv_block_lens must have shape {(kv_blocks,)}, got {lens.shape}")

    wanted = np.arange(tokens) if rows is None else np.asarray(rows, dtype=np.int64)
    out = np.zeros((len(wanted), heads, dim))
    lse = np.full((len(wanted), heads), -np.inf)
    block_of = wanted // block
    for q_block in np.unique(block_of):
        here = np.flatnonzero(block_of == q_block)
        for head in range(heads):
            mask_head = head if mask.shape[0] == heads else head // group
            selected = np.flatnonzero(mask[mask_head, q_block])
            token = (selected[:, None] * block + np.arange(block))[
                np.arange(block) < lens[selected][:, None]
            ]
            out[here, head], lse[here, head] = _attend(
                queries[wanted[here], head].astype(np.float64),
                keys[:, head // group],
                values[:, head // group],
                token,
                scale,
            )
    return out, lse


def _attend(
    q: Float64,
    keys: npt.NDArray[Any],
    values: npt.NDArray[Any],
    token: npt.NDArray[np.int64],
    scale: float,
) -> tuple[Float64, Float64]:
    """One head: ``q`` (n, head_dim) over the keys at ``token``, by an online softmax."""
    top = np.full(len(q), -np.inf)
    total = np.zeros(len(q))
    out = np.zeros_like(q)
    # inf - inf and inf * 0 are NaN here as in any softmax: such inputs have no other answer.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for start in range(0, len(token), _KEYS_PER_STEP):
            part = token[start : start + _KEYS_PER_STEP]
            logits = scale * (q @ keys[part].astype(np.float64).T)
            new_top = np.maximum(top, logits.max(axis=1))
            weight = np.exp(logits - new_top[:, None])
            keep = np.exp(top - new_top)
            total = total * keep + weight.sum(axis=1)
            out = out * keep[:, None] + weight @ values[part].astype(np.float64)
            top = new_top
        if len(token) == 0:
            return out, top
        return out / total[:, None], top + np.log(total)
