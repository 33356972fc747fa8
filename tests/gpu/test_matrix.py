"""Every variant against the float64 reference: all of it with `--full`, a few of each otherwise.

Each test runs on every kernel family that the GPU has (fixture `family`).
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from helpers.problems import compare, lse_close, make_problem, sample_rows  # noqa: E402
from torch_runs import check, inputs_of, plan_of, poisoned, run_and_check, to_float  # noqa: E402

from cakert import plan_cake_vsa, reference, run_cake_vsa  # noqa: E402

pytestmark = pytest.mark.usefixtures("family")

HEADS = ((8, 8), (8, 2), (8, 1), (6, 3), (1, 1))
KINDS = {
    64: ("mask", "kv_mask", "bsr", "q2k", "q2k_ragged", "lens"),
    128: ("mask", "kv_mask", "bsr"),
}
MATRIX = [
    (block, head_dim, dtype, heads, kind)
    for block, head_dim, dtype, heads in itertools.product(
        (64, 128), (64, 96, 128), ("float16", "bfloat16"), HEADS
    )
    for kind in KINDS[block]
]


@pytest.mark.full
@pytest.mark.parametrize(("block", "head_dim", "dtype", "heads", "kind"), MATRIX)
def test_full_matrix(rng, block, head_dim, dtype, heads, kind):
    problem = make_problem(
        rng,
        kind,
        M=block * int(rng.integers(2, 6)),
        N=block * int(rng.integers(2, 9)),
        block=block,
        heads=heads,
        head_dim=head_dim,
        dtype=dtype,
        poison=True,
    )
    run_and_check(problem)


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_kernel(rng, block, head_dim, dtype):
    heads = HEADS[rng.integers(len(HEADS))]
    kind = KINDS[block][rng.integers(len(KINDS[block]))]
    problem = make_problem(
        rng, kind, block=block, heads=heads, head_dim=head_dim, dtype=dtype, poison=True
    )
    run_and_check(problem, metadata="cuda" if rng.random() < 0.5 else "cpu")


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("shape", [(256, 1024), (1024, 256), (64, 1280), (1280, 64), (64, 4096)])
def test_query_and_key_lengths_differ(rng, shape, head_dim):
    M, N = shape
    run_and_check(make_problem(rng, "mask", M=M, N=N, heads=(4, 2), head_dim=head_dim))


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("scale", [None, 0.0, 0.5, 0.03, -0.1, -1.0, 1e-30])
def test_scales(rng, block, head_dim, scale):
    kind = "lens" if block == 64 else "mask"
    dtype = ("float16", "bfloat16")[rng.integers(2)]
    problem = make_problem(
        rng, kind, block=block, heads=(4, 2), head_dim=head_dim, dtype=dtype, sm_scale=scale
    )
    run_and_check(problem)


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize(
    ("dtype", "value", "scale"),
    [
        ("float16", 5736.0, None),
        ("float16", 1789.0, 1.0),
        ("bfloat16", 2e4, None),
        ("bfloat16", 1.0, 1e37),
        ("bfloat16", 0.0, 3e38),
        ("bfloat16", 0.5, -3e38),
    ],
)
def test_equal_logits_however_large_weigh_the_same(rng, block, dtype, value, scale):
    problem = make_problem(
        rng, "mask", M=block, N=4 * block, block=block, dtype=dtype, selected=(3, 3)
    )
    q, k, v = inputs_of(problem)
    q.fill_(value)
    k.fill_(value)
    plan = plan_of(replace(problem, sm_scale=scale))
    out, lse = run_cake_vsa(plan, q, k, v, out=None, lse=None, return_lse=True, backend="cake")
    chosen = torch.from_numpy(np.repeat(problem.mask[:, 0], block, axis=-1)).cuda()  # (heads, N)
    mean = torch.einsum("hn,nhd->hd", chosen.double(), v.double()) / chosen.sum(-1)[:, None]
    assert (out.double() - mean).abs().max() < 2**-7
    value = float(q[0, 0, 0])  # as the type rounds it
    logit = 128 * value * value * (128**-0.5 if scale is None else scale)
    want = logit + np.log(3 * block)
    if abs(want) > np.finfo(np.float32).max:
        assert torch.isinf(lse).all()
    else:
        assert ((lse.double() - want).abs() <= 1e-3 + 1e-6 * abs(want)).all()


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("scale", [None, 0.0, -1.0])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_selected_nan_reaches_exactly_what_it_should(rng, block, scale, where):
    problem = make_problem(rng, "mask", block=block, N=8 * block, M=2 * block, sm_scale=scale)
    array = getattr(problem, where).copy()
    array[rng.integers(len(array)), rng.integers(2), rng.integers(128)] = np.nan
    problem = replace(problem, **{where: array})
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)
    out, lse = run_cake_vsa(plan, q, k, v, out=None, lse=None, return_lse=True, backend="cake")
    want, want_lse = reference.attention(
        problem.q, problem.k, problem.v, problem.mask, sm_scale=scale, block=block
    )
    assert np.array_equal(np.isnan(to_float(out)), np.isnan(want))
    assert np.array_equal(np.isnan(to_float(lse)), np.isnan(want_lse))


@pytest.mark.full
@pytest.mark.parametrize(
    ("heads", "tokens", "block", "selected"),
    [((7, 7), 109632, 64, 64), ((16, 16), 16384, 128, 32), ((8, 2), 32768, 64, 200)],
)
def test_large(rng, heads, tokens, block, selected):
    problem = make_problem(
        rng, "mask", M=tokens, N=tokens, block=block, heads=heads, selected=(selected, selected)
    )
    plan = plan_of(problem)
    q, k, v = inputs_of(problem)
    out, lse = poisoned(problem)
    run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
    check(problem, out, lse, sample_rows(rng, problem, 4096))


@pytest.mark.full
@pytest.mark.usefixtures("much_memory")
def test_offsets_beyond_32_bits(rng):
    """F27: 2**31 elements in each tensor; the last query block selects the last KV block.

    One query block of each head is compared, 4,096 rows, the tensors' ends among them. Both the
    float64 result and the plain implementation are made on the GPU: the host has no room for them.
    """
    tokens, heads, head_dim = 262144, 64, 128
    blocks = tokens // 64
    g = torch.Generator("cuda").manual_seed(int(rng.integers(2**31)))
    q, k, v = (
        torch.randn((tokens, heads, head_dim), generator=g, device="cuda", dtype=torch.bfloat16)
        for _ in range(3)
    )
    lists = torch.randint(0, blocks - 1, (heads, blocks, 2), generator=g, device="cuda")
    lists[..., 1] = blocks - 1
    plan = plan_cake_vsa(
        None, None, None, None, lists.int().contiguous(), None,
        M=tokens, N=tokens, R=64, C=64, num_qo_heads=heads, num_kv_heads=heads,
        head_dim=head_dim, q_data_type=torch.bfloat16, sm_scale=None, device="cuda",
    )  # fmt: skip
    out = torch.full_like(q, float("nan"))
    lse = torch.full((tokens, heads), float("nan"), device="cuda")
    run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")

    picked = rng.integers(0, blocks, heads)
    picked[[0, 1, -2, -1]] = [0, blocks - 1, 0, blocks - 1]
    got, want, plain, got_lse, want_lse = [], [], [], [], []
    for head, row in enumerate(picked.tolist()):
        here = slice(row * 64, row * 64 + 64)
        keys = torch.cat([torch.arange(b * 64, b * 64 + 64) for b in lists[head, row].tolist()])
        kk, vv = k[keys, head], v[keys, head]
        scores = q[here, head].double() @ kk.double().T * head_dim**-0.5
        want.append(torch.softmax(scores, -1) @ vv.double())
        want_lse.append(torch.logsumexp(scores, -1))
        rounded = (q[here, head].float() @ kk.float().T).bfloat16().float() * head_dim**-0.5
        weights = torch.softmax(rounded, -1).bfloat16().float()
        plain.append((weights @ vv.float()).bfloat16())
        got.append(out[here, head])
        got_lse.append(lse[here, head])
    result = compare(
        to_float(torch.cat(got)), torch.cat(want).cpu().numpy(), to_float(torch.cat(plain))
    )
    assert result.passed, result
    assert lse_close(to_float(torch.cat(got_lse)), torch.cat(want_lse).cpu().numpy())


@pytest.mark.usefixtures("much_memory")
def test_many_heads(rng):
    """F26: heads are not on a grid axis with 65535 places."""
    problem = make_problem(
        rng, "q2k", M=128, N=128, heads=(65536, 1024), head_dim=64, selected=(1, 1)
    )
    plan = plan_of(problem)
    q, k, v = inputs_of(problem)
    out, lse = poisoned(problem)
    run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
    rows = np.array([0, 63, 64, 127])
    check(problem, out, lse, rows)
