"""Plans to explain: random masks, and their text."""

from __future__ import annotations

import numpy as np

from cakert import plan_cake_vsa


def flat(explanation):
    """The text without its line breaks."""
    assert all(len(line) <= 110 for line in explanation.text().splitlines())
    return " ".join(str(explanation).split())


def random_mask(rng, heads, q_blocks, kv_blocks, density=0.3):
    mask = rng.random((heads, q_blocks, kv_blocks)) < density
    mask[
        np.arange(heads)[:, None],
        np.arange(q_blocks),
        rng.integers(kv_blocks, size=(heads, q_blocks)),
    ] = True
    return mask


def plan_of(device, mask=None, *, block=64, head_dim=128, heads=None, kv_heads=None, **pattern):
    if mask is not None:
        heads, (q_blocks, kv_blocks) = heads or len(mask), mask.shape[1:]
    else:
        q_blocks, kv_blocks = pattern.pop("sizes")
    names = ("indptr", "indices", "kv_block_lens", "q2k_indices", "q2k_num")
    return plan_cake_vsa(
        **{name: pattern.get(name) for name in names},
        block_mask=mask,
        M=q_blocks * block,
        N=kv_blocks * block,
        R=block,
        C=block,
        num_qo_heads=heads,
        num_kv_heads=kv_heads or heads,
        head_dim=head_dim,
        q_data_type="bfloat16",
        sm_scale=None,
        device=device,
    )
