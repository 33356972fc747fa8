"""Explanations of plans: counts against brute force, every kind of pattern, device and state."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.explanations import flat, plan_of, random_mask
from helpers.stub import run_with_stub

import cakert
from cakert import sim, update_cake_vsa, vsa_device
from cakert.explanation import pattern

# --- counts, by brute force -----------------------------------------------------------------------


SHAPES = {
    # heads, KV heads, query blocks, KV blocks, block, head_dim
    "sm90_group": (4, 2, 67, 21, 64, 128),
    "sm90": (3, 3, 61, 17, 64, 128),
    "sm90 r128": (4, 4, 40, 19, 128, 64),
    "sm90_split": (2, 1, 9, 37, 64, 96),
}


@pytest.mark.parametrize("case", SHAPES)
def test_counts_are_those_of_the_mask(case, rng, h200, monkeypatch):
    monkeypatch.setattr(pattern, "_SLAB_ENTRIES", int(rng.integers(1, 2000)))
    heads, kv_heads, q_blocks, kv_blocks, block, head_dim = SHAPES[case]
    mask = random_mask(rng, heads, q_blocks, kv_blocks, rng.uniform(0.1, 0.7))
    e = cakert.explain(plan_of(h200, mask, block=block, head_dim=head_dim, kv_heads=kv_heads))
    assert e.family == case.split()[0]
    counts = mask.sum(axis=2)
    assert np.array_equal(e.row_counts, counts)
    assert e.density == pytest.approx(mask.mean())
    assert e.head_density == pytest.approx(mask.mean(axis=(1, 2)))
    assert e.heat.shape == (heads, q_blocks, kv_blocks)  # small enough for a patch a cell
    assert np.array_equal(e.heat, mask)
    assert (e.counts.rows, e.counts.empty) == (heads * q_blocks, 0)
    assert (e.counts.least, e.counts.most) == (counts.min(), counts.max())
    ordered = np.sort(counts, axis=None)
    for percent, count in e.counts.quantiles.items():
        assert count == ordered[-(-percent * len(ordered) // 100) - 1]
    by_kv_head = mask.reshape(kv_heads, -1, kv_blocks).any(axis=1)
    assert e.tiles.selected == mask.sum()
    assert e.tiles.distinct == by_kv_head.sum()
    assert e.flops == 4 * head_dim * block * block * int(mask.sum())
    tile = 2 * block * head_dim * 2
    outer = 2 * heads * q_blocks * block * head_dim * 2
    lists = e.traffic.hbm - outer - e.tiles.distinct * tile
    assert 0 < lists <= 13 * mask.sum() + 20 * counts.size
    assert e.traffic.l2 == outer + e.tiles.fetched * tile + lists
    assert e.load.sm_items.sum() == (
        -(-heads // kv_heads * q_blocks // 2) * kv_heads
        if case == "sm90_group"
        else counts.size * e.load.cluster
    )


def test_distinct_tiles_are_those_of_each_kv_head(h200):
    mask = np.zeros((4, 67, 21), bool)
    mask[:2, :, :3] = mask[2:, :, :9] = True
    e = cakert.explain(plan_of(h200, mask, kv_heads=2))
    assert e.tiles.distinct == 3 + 9


def test_large_masks_are_averaged_into_patches(rng, h200):
    mask = random_mask(rng, 2, 150, 211)
    heat = cakert.explain(plan_of(h200, mask)).heat
    assert heat.shape == (2, 96, 96)
    rows = [np.flatnonzero(np.arange(150) * 96 // 150 == patch) for patch in range(96)]
    columns = [np.flatnonzero(np.arange(211) * 96 // 211 == patch) for patch in range(96)]
    for patch in rng.integers(96, size=(40, 2)):
        head = int(rng.integers(2))
        cells = mask[head][np.ix_(rows[patch[0]], columns[patch[1]])]
        assert heat[head, patch[0], patch[1]] == pytest.approx(cells.mean())


def test_tiles_of_groups_are_what_the_plan_says(rng, h200):
    mask = random_mask(rng, 6, 90, 40, 0.4)
    p = plan_of(h200, mask)
    e = cakert.explain(p)
    assert e.family == "sm90_group"
    assert e.tiles.fetched == p.tiles_fetched < e.tiles.selected
    assert e.tiles.overlap == pytest.approx(1 - p.tiles_fetched / mask.sum())
    assert e.traffic.plan == sum(space.nbytes for space in p["workspace"].values())


# --- every kind of pattern, device and state ------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_kinds_of_patterns_agree(arch, rng):
    heads, q_blocks, kv_blocks, topk = 3, 100, 12, 5
    lists = rng.random((1, q_blocks, kv_blocks)).argsort(axis=2)[..., :topk].astype(np.int32)
    lists = np.ascontiguousarray(np.broadcast_to(lists, (heads, q_blocks, topk)))
    num = np.ascontiguousarray(
        np.broadcast_to(rng.integers(1, topk + 1, q_blocks), (heads, q_blocks)), np.int32
    )
    mask = np.zeros((heads, q_blocks, kv_blocks), bool)
    for head, row in np.ndindex(heads, q_blocks):
        mask[head, row, lists[head, row, : num[head, row]]] = True
    indptr = np.concatenate(([0], mask[0].sum(axis=1).cumsum()))
    with sim.device(arch) as device:
        sizes = (q_blocks, kv_blocks)
        found = [
            cakert.explain(plan_of(device, mask)),
            cakert.explain(
                plan_of(device, sizes=sizes, heads=heads, q2k_indices=lists, q2k_num=num)
            ),
            cakert.explain(
                plan_of(
                    device, sizes=sizes, heads=heads, indptr=indptr, indices=np.nonzero(mask[0])[1]
                )
            ),
        ]
    first = found[0].as_dict()
    for other in found[1:]:
        other = other.as_dict()
        assert other["traffic"].pop("plan") > 0  # q2k lists have less to make room for
        assert other == {
            **first,
            "traffic": {k: v for k, v in first["traffic"].items() if k != "plan"},
        }
    assert (found[0].predicted_us is None) == (arch != "sm_90a")


@pytest.mark.parametrize("heads", [2, 6])  # row lists, and groups
def test_an_updated_plan_is_described_as_it_is_now(heads, rng, h200):
    before, after = (random_mask(rng, heads, 70, 24, density) for density in (0.2, 0.6))
    p = plan_of(h200, before)
    old = cakert.explain(p)
    after[1, 7] = False  # an update may bring what plan refuses
    update_cake_vsa(p, block_mask=after)
    new = cakert.explain(p)
    assert np.array_equal(old.row_counts, before.sum(axis=2))
    assert np.array_equal(new.row_counts, after.sum(axis=2))
    assert np.array_equal(new.heat, after)
    assert new.tiles.fetched == p.tiles_fetched
    assert (old.counts.empty, new.counts.empty) == (0, 1)
    assert "1 of " in flat(new) and "empty" in flat(new)
    json.dumps(new.as_dict(), allow_nan=False)


def test_a_plan_whose_rows_are_all_empty(h200):
    p = plan_of(h200, np.ones((2, 70, 4), bool))
    update_cake_vsa(p, block_mask=np.zeros((2, 70, 4), bool))
    e = cakert.explain(p)
    assert (e.tiles.selected, e.tiles.distinct, e.tiles.overlap, e.flops) == (0, 0, 0, 0)
    assert (e.load.most, e.load.imbalance, e.load.busy) == (0, 1, 0)
    json.dumps(e.as_dict(), allow_nan=False)
    assert "140 of 140 rows are empty" in flat(e)


def test_not_inside_a_capture(rng, h200, monkeypatch):
    p = plan_of(h200, random_mask(rng, 1, 3, 3))
    monkeypatch.setattr(vsa_device, "capture_under_way", lambda tensors, device: True)
    with pytest.raises(RuntimeError, match="graph capture"):
        cakert.explain(p)


def test_what_is_no_plan_or_closed(rng):
    with pytest.raises(TypeError, match="plan_cake_vsa returned, got dict"):
        cakert.explain({})
    with sim.device("sm_100a") as device:
        p = plan_of(device, random_mask(rng, 1, 3, 3))
    with pytest.raises(RuntimeError, match="closed"):
        cakert.explain(p)


def test_on_a_gpu_everything_is_read_from_its_memory():
    done = run_with_stub(
        """
        import json
        import numpy as np
        import stub_child
        from cakert import explain, plan_cake_vsa, update_cake_vsa
        rng = np.random.default_rng()
        masks = [rng.random((5, 80, 30)) < d for d in (0.3, 0.5)]
        for mask in masks:
            mask[..., 3] = True
        plan = plan_cake_vsa(None, None, masks[0], None, None, None, M=5120, N=1920, R=64, C=64,
                             num_qo_heads=5, num_kv_heads=5, head_dim=128, q_data_type="float16",
                             sm_scale=None, device="cuda:0")
        first = explain(plan)
        update_cake_vsa(plan, block_mask=masks[1])
        stub_child.mark("explain")
        second = explain(plan)
        for mask, e in zip(masks, (first, second)):
            assert np.array_equal(e.row_counts, mask.sum(axis=2))
            assert np.array_equal(e.heat, mask)
        stub_child.report([second.as_dict(), " ".join(second.text().split())])
        """,
        env={"STUB_CUDA_NAME": "NVIDIA H200"},
    )
    found, text = done.report
    assert found["schema"] == 1
    calls = done.trace.after("explain").names()
    assert {"cuCtxSynchronize", "cuMemcpyDtoH"} <= set(calls)
    assert not {"cuLaunchKernelEx", "cuMemAlloc"} & set(calls)
    assert found["machine"] == {
        "name": "NVIDIA H200", "capability": [9, 0], "sms": 132, "measured": True
    }  # fmt: skip
    assert found["predicted_us"] > 0
    assert "NVIDIA H200 (9.0), 132 SMs" in text
    assert "no GPU was asked" not in text


def test_another_gpu_of_the_same_capability_was_not_measured():
    done = run_with_stub(
        """
        import numpy as np
        import stub_child
        from cakert import explain, plan_cake_vsa
        plan = plan_cake_vsa(None, None, np.ones((5, 80, 3), bool), None, None, None, M=5120, N=192,
                             R=64, C=64, num_qo_heads=5, num_kv_heads=5, head_dim=128,
                             q_data_type="float16", sm_scale=None, device="cuda:0")
        stub_child.report([explain(plan).as_dict(), " ".join(str(explain(plan)).split())])
        """,
        env={"STUB_CUDA_NAME": "NVIDIA GH200 480GB"},
    )
    found, text = done.report
    assert (found["predicted_us"], found["limits"]) == (None, {})
    assert "not measured on NVIDIA GH200 480GB" in text
