"""The oracle against torch and against answers known in closed form; and the comparer itself."""

import math

import ml_dtypes
import numpy as np
import pytest
from helpers import problems

from cakert import reference
from cakert.reference import attention

BF16 = ml_dtypes.bfloat16


def normal(*shape):
    return np.random.default_rng().standard_normal(shape)


def full(heads, q_blocks, kv_blocks):
    return np.ones((heads, q_blocks, kv_blocks), bool)


# ----------------------------------------------------------------------------- against torch


def torch_attention(q, k, v, mask, scale, block, lens=None):
    """Dense float64 attention in torch with a token mask."""
    import torch

    group = q.shape[1] // k.shape[1]
    tensors = [torch.from_numpy(x.astype(np.float64)).transpose(0, 1) for x in (q, k, v)]
    q64, k64, v64 = tensors[0], *(x.repeat_interleave(group, 0) for x in tensors[1:])
    allowed = torch.from_numpy(np.repeat(np.repeat(mask, block, 1), block, 2))
    if lens is not None:
        allowed &= torch.from_numpy((np.arange(block) < lens[:, None]).reshape(-1))
    logits = (scale * q64 @ k64.transpose(1, 2)).masked_fill(~allowed, -torch.inf)
    out = torch.softmax(logits, dim=-1).nan_to_num(0.0) @ v64
    return out.transpose(0, 1).numpy(), torch.logsumexp(logits, -1).transpose(0, 1).numpy()


@pytest.mark.parametrize("kind", problems.KINDS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
def test_equals_torch_on_a_dense_mask(kind, heads):  # F21, F22, F25
    pytest.importorskip("torch")
    rng = np.random.default_rng()
    m, n = (256, 512) if heads[1] != 2 else (512, 128)
    scale = float(rng.uniform(-0.5, 0.5))
    p = problems.make_problem(
        rng, kind, M=m, N=n, heads=heads, head_dim=64, dtype="float16", sm_scale=scale
    )
    out, lse = attention(p.q, p.k, p.v, p.mask, sm_scale=scale, block=64, kv_block_lens=p.lens)
    want_out, want_lse = torch_attention(p.q, p.k, p.v, p.mask, scale, 64, p.lens)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, want_out, rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, rtol=0, atol=1e-12)


def test_torch_tensors_are_taken():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(128, 2, 32, dtype=torch.bfloat16) for _ in range(3))
    mask = torch.rand(2, 2, 2) < 0.5
    mask[..., 0] = True
    mine = attention(q, k, v, mask, sm_scale=None, block=64)
    theirs = torch_attention(
        *(x.float().numpy() for x in (q, k, v)), mask.numpy(), 1 / math.sqrt(32), 64
    )
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_long_rows_by_online_softmax(monkeypatch):
    q, k, v = normal(64, 1, 16), normal(640, 1, 16), normal(640, 1, 16)
    q[:3] *= 40  # the running maximum moves
    mask = full(1, 1, 10)
    whole = attention(q, k, v, mask, sm_scale=1.0, block=64)
    for step in (1, 7, 64, 639):
        monkeypatch.setattr(reference, "_KEYS_PER_STEP", step)
        for a, b in zip(attention(q, k, v, mask, sm_scale=1.0, block=64), whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)


def test_some_rows_only():
    rng = np.random.default_rng()
    p = problems.make_problem(rng, "mask", heads=(4, 2), M=512, N=256, head_dim=32)
    out, lse = attention(p.q, p.k, p.v, p.mask, sm_scale=None, block=64)
    rows = rng.permutation(512)[:37]
    some_out, some_lse = attention(p.q, p.k, p.v, p.mask, sm_scale=None, block=64, rows=rows)
    np.testing.assert_allclose(some_out, out[rows], rtol=0, atol=1e-13)
    np.testing.assert_allclose(some_lse, lse[rows], rtol=0, atol=1e-13)


@pytest.mark.parametrize("scale", [None, 0.0, -0.1, 0.5])
def test_scale(scale):  # F62
    q, k, v = normal(128, 2, 64), normal(128, 2, 64), normal(128, 2, 64)
    mask = full(2, 2, 2)
    out, lse = attention(q, k, v, mask, sm_scale=scale, block=64)
    factor = 1 / 8 if scale is None else scale
    weight = np.exp(factor * np.einsum("mhd,nhd->hmn", q, k))
    np.testing.assert_allclose(lse, np.log(weight.sum(-1)).T, rtol=0, atol=1e-12)
    weight /= weight.sum(-1, keepdims=True)
    np.testing.assert_allclose(out, np.einsum("hmn,nhd->mhd", weight, v), rtol=0, atol=1e-12)


def test_shapes_that_do_not_fit():
    q, k, v = normal(128, 2, 16), normal(256, 2, 16), normal(256, 2, 16)
    with pytest.raises(ValueError, match=r"block_mask must have shape \(2, 2, 4\)"):
        attention(q, k, v, full(2, 4, 2), sm_scale=None, block=64)  # F25: transposed
    with pytest.raises(ValueError, match="k and v must fit q"):
        attention(q, k, v[:64], full(2, 2, 4), sm_scale=None, block=64)
    with pytest.raises(ValueError, match="multiples of block = 64 tokens, got 120 and 256"):
        attention(q[:120], k, v, full(2, 1, 4), sm_scale=None, block=64)
    with pytest.raises(ValueError, match="multiples of block = 64 tokens, got 128 and 250"):
        attention(q, k[:250], v[:250], full(2, 2, 3), sm_scale=None, block=64)
    with pytest.raises(ValueError, match=r"kv_block_lens must have shape \(4,\), got \(5,\)"):
        attention(q, k, v, full(2, 2, 4), sm_scale=None, block=64, kv_block_lens=np.ones(5, int))


# ------------------------------------------------------------------------------- closed forms


def test_empty_row():  # F1
    q, k, v = normal(256, 2, 32), normal(256, 2, 32), normal(256, 2, 32)
    mask = full(2, 2, 2)
    mask[:, 1] = False
    out, lse = attention(q, k, v, mask, sm_scale=None, block=128)
    assert (out[128:] == 0).all()
    assert (lse[128:] == -np.inf).all()
    assert np.isfinite(out[:128]).all()
    assert np.isfinite(lse[:128]).all()


def test_a_hopeless_token_has_no_weight():  # F2
    q = np.full((256, 2, 128), 200.0)
    k, v = normal(256, 2, 128) * 0.01, normal(256, 2, 128)
    k[0] = -200
    mask = np.zeros((2, 4, 4), bool)
    mask[..., :2] = True
    got, _ = attention(
        q, k, v, mask, sm_scale=1.0, block=64, kv_block_lens=np.array([1, 64, 64, 64])
    )
    mask[..., 0] = False
    alone, _ = attention(q, k, v, mask, sm_scale=1.0, block=64)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, alone, rtol=0, atol=1e-12)
    mask[..., 0] = True
    zero, _ = attention(
        q, k, v, mask, sm_scale=1.0, block=64, kv_block_lens=np.array([0, 64, 64, 64])
    )
    np.testing.assert_allclose(zero, alone, rtol=0, atol=1e-12)


def test_huge_negative_scores_are_uniform():  # F3
    q, k = np.full((512, 2, 128), 30.0), np.full((512, 2, 128), -30.0)
    v = normal(512, 2, 128)
    out, lse = attention(q, k, v, full(2, 4, 4), sm_scale=1.0, block=128)
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(0), out.shape), rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, -115200 + math.log(512), rtol=0, atol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_invalid_tokens_are_not_touched(bad):  # F4
    q, k, v = normal(256, 2, 64), normal(256, 2, 64), normal(256, 2, 64)
    lens = np.array([64, 64, 10, 64])
    clean = attention(q, k, v, full(2, 4, 4), sm_scale=None, block=64, kv_block_lens=lens)
    k[138:192] = v[138:192] = bad
    dirty = attention(q, k, v, full(2, 4, 4), sm_scale=None, block=64, kv_block_lens=lens)
    for a, b in zip(clean, dirty, strict=True):
        assert np.isfinite(a).all()
        assert np.array_equal(a, b)


def test_merge_of_complementary_masks():  # F5
    q, k, v = normal(512, 2, 32), normal(512, 2, 32), normal(512, 2, 32)
    mask = np.random.default_rng().random((2, 4, 4)) < 0.5
    mask[:, 0] = True
    both = attention(q, k, v, full(2, 4, 4), sm_scale=None, block=128)
    (out_a, lse_a), (out_b, lse_b) = (
        attention(q, k, v, m, sm_scale=None, block=128) for m in (mask, ~mask)
    )
    lse = np.logaddexp(lse_a, lse_b)
    out = np.exp(lse_a - lse)[..., None] * out_a + np.exp(lse_b - lse)[..., None] * out_b
    np.testing.assert_allclose(out, both[0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(lse, both[1], rtol=0, atol=1e-12)


def test_one_block_only():  # F10
    q, k, v = normal(512, 2, 64), normal(512, 2, 64), normal(512, 2, 64)
    mask = np.zeros((2, 4, 4), bool)
    mask[..., 0] = True
    first = attention(q, k, v, mask, sm_scale=None, block=128)
    small = attention(q, k[:128], v[:128], full(2, 4, 1), sm_scale=None, block=128)
    dense = attention(q, k, v, full(2, 4, 4), sm_scale=None, block=128)
    assert np.abs(first[0] - dense[0]).max() > 1e-3
    k[128:], v[128:] = normal(384, 2, 64), normal(384, 2, 64)
    again = attention(q, k, v, mask, sm_scale=None, block=128)
    for a, b, c in zip(first, small, again, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_padding_has_no_part():  # F12, F13
    q, k, v = np.ones((64, 1, 128)), np.full((128, 1, 128), -1.0), normal(128, 1, 128)
    k[65:], v[65:] = 0, 1000
    out, lse = attention(
        q, k, v, full(1, 1, 2), sm_scale=None, block=64, kv_block_lens=np.array([64, 1])
    )
    np.testing.assert_allclose(out, np.broadcast_to(v[:65].mean(0), out.shape), atol=1e-12)
    np.testing.assert_allclose(lse, -math.sqrt(128) + math.log(65), atol=1e-12)

    q, k, v = normal(256, 2, 128), normal(256, 2, 128), normal(256, 2, 128)
    lens = np.array([17, 64, 1, 63])
    valid = (np.arange(64) < lens[:, None]).reshape(-1)
    k[~valid], v[~valid] = 30, 1000
    out, lse = attention(q, k, v, full(2, 4, 4), sm_scale=None, block=64, kv_block_lens=lens)
    logits = np.einsum("mhd,nhd->hmn", q, k[valid]) / math.sqrt(128)
    weight = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, np.einsum("hmn,nhd->mhd", weight, v[valid]), atol=1e-12)
    np.testing.assert_allclose(lse, np.log(np.exp(logits).sum(-1)).T, atol=1e-12)


@pytest.mark.parametrize(("block", "lse"), [(64, 4.15888), (128, 4.85203)])
def test_lse_is_a_natural_logarithm(block, lse):  # F60
    zero = np.zeros((2 * block, 1, 64), BF16)
    v = normal(2 * block, 1, 64)
    mask = np.eye(2, dtype=bool)[None]
    out, got = attention(zero, zero, v, mask, sm_scale=None, block=block)
    np.testing.assert_allclose(got, lse, atol=5e-6)
    np.testing.assert_allclose(out[:block, 0], np.tile(v[:block, 0].mean(0), (block, 1)))


# ------------------------------------------------------------------- the helpers that judge


@pytest.mark.parametrize("kind", problems.KINDS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_plain_is_within_its_own_precision(kind, dtype):
    p = problems.make_problem(np.random.default_rng(), kind, heads=(4, 2), dtype=dtype, poison=True)
    rows = problems.sample_rows(np.random.default_rng(), p, 100)
    ref, _ = attention(
        p.q, p.k, p.v, p.mask, sm_scale=None, block=64, kv_block_lens=p.lens, rows=rows
    )
    assert np.isfinite(ref).all(), "poison must not be selected"
    out = problems.plain(p, rows)
    result = problems.compare(out, ref, out)
    assert result.passed
    ulp = 2.0**-10 if dtype == "float16" else 2.0**-7
    assert 0 < result.max_error < 4 * ulp * np.abs(ref).max()
    wrong = out.copy()
    wrong[len(rows) // 2, 1] *= 1.3
    assert not problems.compare(wrong, ref, out).passed
    np.testing.assert_allclose(problems.plain(p)[rows], out, rtol=4 * ulp, atol=ulp)


def test_poison_covers_all_that_is_not_seen():
    p = problems.make_problem(
        np.random.default_rng(), "lens", heads=(4, 2), selected=(1, 1), M=128, poison=True
    )
    seen = p.mask.reshape(2, 2, 2, 8).any(axis=(1, 2))
    for head in range(2):
        for block in range(8):
            nan = np.isnan(p.k[block * 64 : block * 64 + 64, head].astype(np.float32)).all(axis=-1)
            start = p.lens[block] if seen[head, block] else 0
            assert nan[start:].all()
            assert not nan[:start].any()


@pytest.mark.parametrize(
    ("expected", "actual", "passes"),
    [
        (np.nan, 0.0, False),
        (0.0, np.nan, False),
        (-np.inf, -np.inf, True),
        (-np.inf, np.inf, False),
        (-np.inf, -1e30, False),
        (0.0, np.inf, False),
        (np.inf, 1.0, False),
        (1.0, 1.0 + 1e-7, True),
        (1.0, 1.1, False),
    ],
)
def test_the_comparer(expected, actual, passes):  # F6
    values = normal(50)
    ref, got = values.copy(), values.copy()
    ref[17], got[17] = expected, actual
    assert problems.compare(got, ref, ref).passed == passes
    assert problems.lse_close(got, ref) == passes


def test_the_comparer_refuses_to_compare_nothing():
    with pytest.raises(ValueError, match="shapes differ"):
        problems.compare(normal(4), normal(2, 2), normal(2, 2))
    with pytest.raises(ValueError, match="nothing to compare"):
        problems.compare(np.empty(0), np.empty(0), np.empty(0))
    with pytest.raises(ValueError, match="no bound"):
        problems.compare(normal(3), normal(3), np.array([1.0, np.nan, 2.0]))


def test_the_frobenius_bound_catches_what_the_largest_error_hides():
    ref = normal(1000)
    plain = ref.copy()
    plain[5] += 0.1
    many = ref + 0.15
    result = problems.compare(many, ref, plain)
    assert result.max_error <= result.max_bound
    assert not result.passed


def test_sampled_rows():
    rng = np.random.default_rng()
    p = problems.make_problem(rng, "mask", M=4096, N=128, heads=(1, 1), head_dim=64)
    rows = problems.sample_rows(rng, p, 256)
    assert len(rows) == len(set(rows.tolist())) == 256
    assert {0, 4095} <= set(rows.tolist())
    assert np.isin(rows % 64, [0, 63]).sum() >= 2 * 64
    assert np.array_equal(problems.sample_rows(rng, p, 4096), np.arange(4096))
