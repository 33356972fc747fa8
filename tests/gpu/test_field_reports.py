"""Inputs that broke other runtimes, on the GPU; numbers are those of the field reports."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from helpers.problems import DTYPES, make_problem  # noqa: E402
from torch_runs import check, inputs_of, plan_of, poisoned, run_and_check, to_torch  # noqa: E402

from cakert import check_cake_vsa, plan_cake_vsa, run_cake_vsa, update_cake_vsa  # noqa: E402


def run(plan, q, k, v, problem=None, **options):
    options = {"out": None, "lse": None, "return_lse": True, "backend": "cake"} | options
    return run_cake_vsa(plan, q, k, v, **options)


def plan_mask(mask, *, block, head_dim=128, kv_heads=None, lens=None, scale=None, dtype="bfloat16"):
    heads, mb, nb = mask.shape
    return plan_cake_vsa(
        None, None, mask, lens, None, None,
        M=mb * block, N=nb * block, R=block, C=block, num_qo_heads=heads,
        num_kv_heads=kv_heads or heads, head_dim=head_dim, q_data_type=dtype, sm_scale=scale,
        device="cuda",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["mask", "q2k_ragged"])
def test_f1_rows_emptied_by_update_are_zero(rng, kind):
    problem = make_problem(rng, kind, heads=(2, 2), selected=(2, 5))
    plan = plan_of(problem)
    q, k, v = inputs_of(problem)
    mask = problem.mask.copy()
    mask[:, 1] = False
    if kind == "mask":
        update_cake_vsa(plan, block_mask=torch.from_numpy(mask).cuda())
    else:
        counts = torch.from_numpy(problem.pattern["q2k_num"]).cuda()
        counts[:, 1] = 0
        update_cake_vsa(plan, q2k_num=counts)
    out, lse = poisoned(problem)
    run(plan, q, k, v, out=out, lse=lse)
    assert (out[64:128] == 0).all() and (lse[64:128] == -math.inf).all()
    check(replace(problem, mask=mask), out, lse)
    with pytest.raises(ValueError, match=r"q2k_num|row"):
        check_cake_vsa(plan)


@pytest.mark.parametrize("value", [1, 64])
def test_f2_a_huge_negative_score_has_no_weight(rng, value):
    problem = make_problem(rng, "lens", M=256, N=256, sm_scale=1.0)
    lens = np.array([value, 64, 64, 64])
    mask = np.zeros((2, 4, 4), bool)
    mask[:, :, :2] = True
    q = np.full_like(problem.q, 200)
    k = (0.01 * problem.k.astype(np.float32)).astype(q.dtype)
    k[:value] = -200
    problem = replace(
        problem, q=q, k=k, mask=mask, lens=lens,
        pattern=problem.pattern | {"block_mask": mask, "kv_block_lens": lens},
    )  # fmt: skip
    out = run_and_check(problem)
    alone = replace(problem, mask=mask & (np.arange(4) == 1))
    check(alone, out)


def test_f3_equal_scores_far_below_zero(rng):
    problem = make_problem(rng, "mask", block=128, sm_scale=1.0, selected=(4, 4))
    problem = replace(problem, q=np.full_like(problem.q, 30), k=np.full_like(problem.k, -30))
    plan = plan_of(problem)
    out, lse = run(plan, *inputs_of(problem))
    mean = torch.from_numpy(problem.v.astype(np.float64).mean(axis=0)).cuda()
    assert (out.double() - mean).abs().max() < 2**-8 * mean.abs().max() + 1e-3
    assert (lse - (-115200 + math.log(512))).abs().max() <= 0.05


@pytest.mark.parametrize("fill", [math.nan, math.inf])
def test_f4_what_lies_past_a_length_does_not_matter(rng, fill):
    problem = make_problem(rng, "lens", M=256, N=256, selected=(4, 4))
    lens = np.array([64, 64, 10, 64])
    k, v = problem.k.copy(), problem.v.copy()
    k[138:192] = v[138:192] = fill
    problem = replace(
        problem, k=k, v=v, lens=lens, pattern=problem.pattern | {"kv_block_lens": lens}
    )
    run_and_check(problem)


def test_f5_complementary_masks_merge_by_lse(rng):
    problem = make_problem(rng, "mask", block=128, selected=(4, 4))
    q, k, v = inputs_of(problem)
    first = np.zeros_like(problem.mask)
    first[:, :, :2] = True
    first[:, 0] = True
    second = ~first
    whole, whole_lse = run(plan_of(problem), q, k, v)
    a, lse_a = run(plan_mask(first, block=128), q, k, v)
    plan = plan_of(problem)
    update_cake_vsa(plan, block_mask=second)
    b, lse_b = run(plan, q, k, v)
    total = torch.logaddexp(lse_a, lse_b)
    merged = a.double() * (lse_a - total).exp()[..., None].double()
    merged += b.double() * (lse_b - total).exp()[..., None].double()
    assert torch.isfinite(merged).all()
    assert (merged - whole.double()).abs().max() < 0.02
    assert (total - whole_lse).abs().max() < 2e-3


@pytest.mark.parametrize("block", [64, 128])
def test_f7_neighbouring_rows_of_different_lengths(rng, block):
    mask = rng.random((2, 8, 8)) < 0.5
    mask[:, :, 0] = True
    mask[0, 2], mask[0, 3] = np.arange(8) < 5, True
    mask[1, 2], mask[1, 3] = np.arange(8) < 1, True
    problem = make_problem(rng, "mask", M=8 * block, N=8 * block, block=block)
    problem = replace(problem, mask=mask, pattern=problem.pattern | {"block_mask": mask})
    run_and_check(problem)


def test_f10_unselected_blocks_do_not_count(rng):
    problem = make_problem(rng, "mask", block=128)
    mask = np.zeros_like(problem.mask)
    mask[:, :, 0] = True
    problem = replace(problem, mask=mask, pattern=problem.pattern | {"block_mask": mask})
    first = run_and_check(problem)
    k, v = problem.k.copy(), problem.v.copy()
    k[128:] = v[128:] = np.nan
    second = run_and_check(replace(problem, k=k, v=v))
    assert torch.equal(first.view(torch.int16), second.view(torch.int16))


def test_f12_a_block_with_one_valid_token(rng):
    dtype = DTYPES["bfloat16"]
    q = torch.ones((64, 1, 128), dtype=torch.bfloat16, device="cuda")
    k = torch.zeros((128, 1, 128), dtype=torch.bfloat16, device="cuda")
    k[:65] = -1
    values = rng.standard_normal((128, 1, 128)).astype(dtype)
    values[65:] = 1000
    plan = plan_mask(np.ones((1, 1, 2), bool), block=64, lens=np.array([64, 1]))
    out, lse = run(plan, q, k, to_torch(values))
    mean = torch.from_numpy(values[:65].astype(np.float64).mean(axis=0)).cuda()
    assert (out.double() - mean).abs().max() < 4e-3
    assert (lse - (-(128**0.5) + math.log(65))).abs().max() < 2e-3


@pytest.mark.parametrize(("block", "head_dim"), [(64, 64), (64, 96), (64, 128), (128, 128)])
def test_f60_lse_is_the_natural_logarithm(rng, block, head_dim):
    v = torch.randn((2 * block, 1, head_dim), device="cuda").half()
    q, k = torch.zeros_like(v), torch.zeros_like(v)
    mask = np.eye(2, dtype=bool)[None]
    plan = plan_mask(mask, block=block, head_dim=head_dim, dtype="float16")
    _, lse = run(plan, q, k, v)
    assert (lse - math.log(block)).abs().max() < 1e-4


def test_f39_ones_give_exactly_one(rng):
    problem = make_problem(rng, "lens", M=512, N=512, heads=(4, 2))
    one = np.ones_like(problem.k)
    problem = replace(problem, q=np.ones_like(problem.q), k=one, v=one)
    out, lse = run(plan_of(problem), *inputs_of(problem))
    assert (out == 1).all()
    tokens = (problem.mask * problem.lens).sum(axis=-1)  # (heads, MB)
    want = np.repeat(128**0.5 + np.log(tokens), 64, axis=1).T
    assert np.abs(lse.cpu().numpy() - want).max() < 2e-3


def test_f21_heads_of_a_group_may_differ(rng):
    mask = np.zeros((4, 4, 4), bool)
    mask[np.arange(4), :, np.arange(4)] = True
    problem = make_problem(rng, "mask", M=256, N=256, heads=(4, 2))
    run_and_check(replace(problem, mask=mask, pattern=problem.pattern | {"block_mask": mask}))


def test_f24_more_blocks_than_a_peer_allows(rng):
    problem = make_problem(rng, "mask", M=80 * 64, N=80 * 64, heads=(1, 1), head_dim=64)
    mask = problem.mask.copy()
    mask[0, 5] = True
    run_and_check(replace(problem, mask=mask, pattern=problem.pattern | {"block_mask": mask}))


def test_f19_masks_of_any_place_and_type_are_the_same(rng):
    problem = make_problem(rng, "mask", block=128, heads=(2, 2))
    tensors = inputs_of(problem)
    host = torch.from_numpy(problem.mask)
    outs = [
        run(plan_mask(mask, block=128), *tensors, return_lse=False)
        for mask in (
            host.cuda(),
            host,
            host.to(torch.uint8),
            host.to(torch.uint8).cuda(),
            host.numpy(),
        )
    ]
    for out in outs[1:]:
        assert torch.equal(out, outs[0])
    check(problem, outs[0])
