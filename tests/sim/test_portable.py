"""The PTX of our kernels on the simulator: every variant on each of its targets, within the bound.

`portable` runs on all three, the Hopper families on their own. Schedules and shapes are drawn; the
full matrix runs all of them with `--full`.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from helpers.problems import KINDS, make_problem
from helpers.sim_runs import check, plan_of, run

import cakert
from cakert import routes, sim

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")
HOPPER = tuple(name for name in routes.families((9, 0)) if name != "portable")
SHARING = ("sm90_group", "sm90_split")
TARGETS = (
    *(("portable", arch) for arch in ARCHITECTURES),
    *((name, "sm_90a") for name in HOPPER),
)
SCHEDULES = ("eager", "lazy", "random")
HEADS = ((2, 2), (2, 1), (1, 1), (3, 1))
KINDS_OF = {64: KINDS, 128: ("mask", "kv_mask", "bsr")}
VARIANTS = [
    (*target, block, head_dim, dtype)
    for target, block, head_dim, dtype in itertools.product(
        TARGETS, (64, 128), (64, 96, 128), ("float16", "bfloat16")
    )
    if target[0] in routes.families(R=block, head_dim=head_dim)
]
EVERY_VARIANT = pytest.mark.parametrize(("family", "arch", "block", "head_dim", "dtype"), VARIANTS)
FAMILIES = pytest.mark.parametrize("family", ["portable", *HOPPER])


def draw(rng, values):
    return values[int(rng.integers(len(values)))]


def head_dim_of(family, block=64):
    """The smallest that the family has for a block size."""
    return min(each for each in (64, 96, 128) if family in routes.families(R=block, head_dim=each))


def arch_of(rng, family):
    return draw(rng, [arch for each, arch in TARGETS if each == family])


@contextmanager
def device_of(family, arch, **options):
    """A simulated device whose plans take kernels of one family."""
    with routes.only(family), sim.device(arch, **options) as device:
        yield device


@EVERY_VARIANT
def test_every_variant(seed, family, arch, block, head_dim, dtype):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng,
        draw(rng, KINDS_OF[block]),
        # Two rows for the one SM: a persistent kernel takes both with the same CTA.
        M=2 * block if family in HOPPER else block,
        N=block * int(rng.integers(2, 4)),
        block=block,
        heads=draw(rng, ((1, 1), (2, 1))) if block == 64 else (1, 1),
        head_dim=head_dim,
        dtype=dtype,
        selected=(1, 2),
        poison=True,
    )
    # Kernels that share rows out differently on few SMs and on many.
    sms = draw(rng, (1, 8)) if family in SHARING else 1
    options = {"schedule": draw(rng, SCHEDULES), "seed": seed, "sms": sms}
    with device_of(family, arch, **options) as device:
        plan = plan_of(problem, device)
        check(problem, *run(plan, problem))
    assert plan["route"].startswith(f"cake_vsa_{family}_r{block}_d{head_dim}_")


@pytest.mark.parametrize(
    ("family", "block"),
    [("portable", 64), ("sm90", 64), ("sm90", 128), ("sm90_group", 64), ("sm90_split", 64)],
)
@pytest.mark.parametrize("scale", [0.0, -0.4, 1e-30, 2.0])
def test_scales(seed, family, block, scale):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng, "lens" if block == 64 else "mask", M=2 * block if family in SHARING else block,
        N=3 * block, block=block, heads=(1, 1),
        head_dim=128 if family == "sm90_group" else draw(rng, (64, 96)), sm_scale=scale,
        selected=(2, 3),
    )  # fmt: skip
    arch = draw(rng, ARCHITECTURES) if family == "portable" else "sm_90a"
    options = {"schedule": draw(rng, SCHEDULES), "seed": seed, "sms": draw(rng, (1, 8))}
    with device_of(family, arch, **options) as device:
        check(problem, *run(plan_of(problem, device), problem))


@pytest.mark.parametrize(
    ("family", "arch", "block"),
    [
        ("portable", "sm_100a", 64),
        ("sm90", "sm_90a", 64),
        ("sm90", "sm_90a", 128),
        ("sm90_group", "sm_90a", 64),
        ("sm90_split", "sm_90a", 64),
    ],
)
def test_schedules_give_the_same_bits(seed, family, arch, block):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng, "mask", M=128, N=4 * block, block=block, heads=(2, 1),
        head_dim=head_dim_of(family, block),
    )  # fmt: skip
    results = []
    sms = draw(rng, (1, 8))
    for schedule in SCHEDULES:
        with device_of(family, arch, schedule=schedule, seed=seed, sms=sms) as device:
            out, lse = run(plan_of(problem, device), problem)
        results.append((out.tobytes(), lse.tobytes()))
    assert len(set(results)) == 1


def test_families_agree(seed):
    """Not bit for bit: they step through keys and rescale differently."""
    rng = np.random.default_rng(seed)
    problem = make_problem(rng, "lens", M=64, N=256, heads=(2, 1), head_dim=128, dtype="float16")
    found = []
    sms = draw(rng, (1, 8))
    for family in routes.families((9, 0), R=64, head_dim=128):
        with device_of(family, "sm_90a", seed=seed, sms=sms) as device:
            out, lse = run(plan_of(problem, device), problem)
        check(problem, out, lse)
        found.append((out.astype(np.float32), lse))
    one, one_lse = found.pop()
    assert len(found) == 3
    for two, two_lse in found:
        assert np.abs(one - two).max() < 2e-2
        assert np.allclose(one_lse, two_lse, rtol=0, atol=2e-3)


@FAMILIES
def test_update_runs_the_new_pattern(seed, family):
    rng = np.random.default_rng(seed)
    shape = {"M": 128, "N": 192, "heads": (2, 1), "head_dim": head_dim_of(family)}
    problem = make_problem(rng, "mask", **shape)
    other = make_problem(rng, "mask", **shape)
    sms = draw(rng, (1, 8))
    with device_of(family, arch_of(rng, family), seed=seed, sms=sms) as device:
        plan = plan_of(problem, device)
        cakert.update_cake_vsa(plan, block_mask=other.pattern["block_mask"])
        out, lse = run(plan, problem)
        cakert.check_cake_vsa(plan)
        check(problem, out, lse, mask=other.mask)
        # The same bits as a plan of the new pattern.
        fresh = plan_of(replace(problem, pattern=other.pattern), device)
        again, _ = run(fresh, problem)
    assert out.tobytes() == again.tobytes()


@pytest.mark.parametrize(
    ("family", "block"), sorted({(family, block) for family, _, block, _, _ in VARIANTS})
)
def test_rows_that_an_update_empties_give_zeros(seed, family, block):
    rng = np.random.default_rng(seed)
    problem = make_problem(
        rng, "mask", M=2 * block, N=2 * block, block=block, heads=(1, 1),
        head_dim=head_dim_of(family, block),
    )  # fmt: skip
    empty = problem.mask.copy()
    empty[0, 1] = False
    sms = draw(rng, (1, 8))
    with device_of(family, arch_of(rng, family), seed=seed, sms=sms) as device:
        plan = plan_of(problem, device)
        cakert.update_cake_vsa(plan, block_mask=empty)
        out, lse = run(plan, problem)
        with pytest.raises(ValueError, match="selects none"):
            cakert.check_cake_vsa(plan)
    assert not out[block:].astype(np.float32).any()
    assert (lse[block:] == -np.inf).all()
    check(problem, out, lse, mask=empty)


@pytest.mark.parametrize("lens", [True, False])
@pytest.mark.parametrize("sms", [1, 3, 8])
def test_garbage_in_a_group_record_hangs_nothing(seed, sms, lens):
    """Blocks, members, rows and counts that no plan would write, small enough to be followed."""
    rng = np.random.default_rng(seed)
    heads, blocks = 2, 9
    problem = make_problem(
        rng, "lens" if lens else "mask", M=256, N=64 * blocks, heads=(heads, heads)
    )
    schedule = draw(rng, SCHEDULES)
    with device_of("sm90_group", "sm_90a", schedule=schedule, seed=seed, sms=sms) as device:
        plan = plan_of(problem, device)
        work = plan["workspace"]
        groups = work["group_counts"].nbytes // 4
        entries = work["group_members"].nbytes
        rows = np.full((groups, 8), 2**32 - 1, np.uint32)
        rows[:, :2] = rng.permutation(2 * groups).reshape(groups, 2) % (heads * 4 + 3)
        rows[rng.random(rows.shape) < 0.2] = heads * 4
        work["group_rows"].copy_in(rows)
        foreign = np.array([*range(blocks), blocks, blocks + 1, 65535], np.uint16)
        work["group_blocks"].copy_in(rng.choice(foreign, entries))
        some = rng.choice(np.array([0, 1, 2, 3, 3, 7, 255], np.uint8), entries)
        work["group_members"].copy_in(some)
        counts = rng.choice(np.array([-5, 0, 1, 2, 5, 7, 2**30], np.int32), groups)
        work["group_counts"].copy_in(counts)
        if lens:
            work["kv_block_lens"].copy_in(rng.integers(-5, 70, blocks).astype(np.int32))
        out, _ = run(plan, problem)
    named = np.isin(np.arange(heads * 4), rows)
    written = ~np.isnan(out.astype(np.float32)).reshape(4, 64, heads, -1)
    assert not written.transpose(2, 0, 1, 3).reshape(heads * 4, -1)[~named].any()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_many_rows_that_an_update_empties_leave_no_warp_behind(seed, head_dim):
    """Row after row on one thread block: no warp may miss that a row's Q landed."""
    rng = np.random.default_rng(seed)
    shape = {"M": 8 * 128, "N": 256, "block": 128, "heads": (1, 1), "head_dim": head_dim}
    problem = make_problem(rng, "mask", **shape)
    for family, draws in (("sm90", 24 if head_dim == 64 else 10), ("portable", 3)):
        for i in range(draws):
            options = {"schedule": "random", "seed": seed + i, "sms": 1}
            with device_of(family, "sm_90a", **options) as device:
                plan = plan_of(problem, device)
                mask = problem.mask & (np.arange(8) % 3 == i % 3)[None, :, None]
                cakert.update_cake_vsa(plan, block_mask=mask)
                out, lse = run(plan, problem)
            assert (np.isneginf(lse).reshape(8, 128).all(axis=1) == ~mask[0].any(axis=-1)).all()
            check(problem, out, lse, mask=mask)


@pytest.mark.full
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("family", "arch", "block", "head_dim", "dtype", "sms"),
    [
        (*variant, sms)
        for variant in VARIANTS
        # Fewer than there are rows, and one for each.
        for sms in ((1, 8) if variant[0] in SHARING else (None,))
    ],
)
def test_full_matrix(seed, schedule, family, arch, block, head_dim, dtype, sms):
    """Every kind of pattern and group of heads, ragged, with NaN wherever nobody may look."""
    rng = np.random.default_rng(seed)
    with device_of(family, arch, schedule=schedule, seed=seed, sms=sms) as device:
        for kind, heads in itertools.product(KINDS_OF[block], HEADS):
            problem, other = (
                make_problem(
                    rng, kind, M=2 * block, N=4 * block, block=block, heads=heads,
                    head_dim=head_dim, dtype=dtype, poison=poison,
                )
                for poison in (True, False)
            )  # fmt: skip
            plan = plan_of(problem, device)
            check(problem, *run(plan, problem))
            if kind in ("mask", "kv_mask", "lens"):
                cakert.update_cake_vsa(
                    plan,
                    block_mask=other.pattern["block_mask"],
                    kv_block_lens=other.pattern["kv_block_lens"],
                )
                check(other, *run(plan, other))
