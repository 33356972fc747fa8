"""update_cake_vsa and check_cake_vsa: another pattern in the memory of a plan."""

import numpy as np
import pytest
from helpers import fake_cupy, fake_jax, problems
from helpers.host_device import (
    MB,
    NB,
    HostWorkspace,
    device_rows,
    equal_plans,
    install,
    plan,
    random_mask,
    random_q2k,
    rows_of,
)

import cakert


@pytest.fixture(params=["sm90_group", "sm90"])
def host_device(request, monkeypatch):
    """Of both ways in which kernels read a pattern."""
    return install(monkeypatch, request.param)


def test_update_of_a_mask_equals_a_new_plan(host_device):
    p = plan(block_mask=random_mask())
    work, before = dict(p["workspace"]), dict(p)
    counts, total = p["row_counts"], HostWorkspace.alive
    for heads in (4, 2, 4):
        mask = random_mask(heads)
        cakert.update_cake_vsa(p, block_mask=mask)
        cakert.check_cake_vsa(p)
        assert p["row_counts"] is counts  # live, in place
        assert np.array_equal(counts, np.repeat(mask.sum(-1), 4 // heads, axis=0))
        assert HostWorkspace.alive == total, "update allocates nothing"
        assert device_rows(p) == rows_of(mask)
        assert equal_plans(p, plan(block_mask=mask))
        total = HostWorkspace.alive
    assert all(p["workspace"][name] is space for name, space in work.items())
    for name, value in before.items():
        assert p[name] is value


def test_update_of_an_immutable_framework(host_device, monkeypatch):
    fake_jax.install(monkeypatch)
    gpu = fake_jax.Device("gpu", 0)
    p = plan(block_mask=fake_jax.Array(random_mask(), gpu))
    for _ in range(2):
        mask = random_mask()
        cakert.update_cake_vsa(p, block_mask=fake_jax.Array(mask, gpu))
        assert isinstance(p["row_counts"], fake_jax.Array)
        assert np.array_equal(p["row_counts"].hidden, mask.sum(-1))
        assert device_rows(p) == rows_of(mask)


def test_update_of_bsr_takes_a_mask(host_device):
    indptr, indices = problems.untidy_bsr(np.random.default_rng(), random_mask(1)[0])
    p = plan(indptr=indptr, indices=indices)
    mask = random_mask()
    cakert.update_cake_vsa(p, block_mask=mask.astype(np.uint8))
    assert equal_plans(p, plan(block_mask=mask))


def test_update_of_q2k(host_device):
    on = host_device.on
    lists, num = random_q2k()
    held, held_num = on(lists.copy()), on(num.copy())
    p = plan(q2k_indices=held, q2k_num=held_num)
    other, other_num = random_q2k()
    cakert.update_cake_vsa(p, q2k_indices=on(other), q2k_num=on(other_num))
    assert equal_plans(p, plan(q2k_indices=on(other), q2k_num=on(other_num)))
    assert np.array_equal(p["row_counts"].hidden, other_num)
    assert p["q2k_indices"] is held

    # In-place changes of the plan's own tensors count from the next update on.
    again, again_num = random_q2k()
    held.hidden[:], held_num.hidden[:] = again, again_num
    assert np.array_equal(p["row_counts"].hidden, other_num)
    cakert.update_cake_vsa(p)
    assert equal_plans(p, plan(q2k_indices=on(again), q2k_num=on(again_num)))

    # A tensor that is not given is the one that the plan holds.
    fewer = np.maximum(again_num - 1, 1)
    cakert.update_cake_vsa(p, q2k_num=on(fewer))
    assert equal_plans(p, plan(q2k_indices=on(again), q2k_num=on(fewer)))
    shuffled = again.copy()
    shuffled[0, 0, : again_num[0, 0]] = shuffled[0, 0, : again_num[0, 0]][::-1]
    shuffled[1, 0, 0] = next(block for block in range(NB) if block not in again[1, 0])
    cakert.update_cake_vsa(p, q2k_indices=on(shuffled))
    cakert.check_cake_vsa(p)  # the counts are those that the plan holds
    assert equal_plans(p, plan(q2k_indices=on(shuffled), q2k_num=on(again_num)))


def test_update_of_lengths(host_device):
    rng = np.random.default_rng()
    mask = random_mask()
    p = plan(block_mask=mask, kv_block_lens=np.full(NB, 64))
    lens = rng.integers(1, 65, NB)
    cakert.update_cake_vsa(p, kv_block_lens=lens)
    assert equal_plans(p, plan(block_mask=mask, kv_block_lens=lens))
    other = random_mask()
    cakert.update_cake_vsa(p, block_mask=other)  # lengths stay
    assert equal_plans(p, plan(block_mask=other, kv_block_lens=lens))

    without = plan(block_mask=mask)
    with pytest.raises(ValueError, match="plan with kv_block_lens full of C = 64"):
        cakert.update_cake_vsa(without, kv_block_lens=lens)
    wide = plan(block_mask=random_mask(4, 2, 4), R=128, C=128)
    with pytest.raises(ValueError, match="kv_block_lens needs 64-token blocks"):
        cakert.update_cake_vsa(wide, kv_block_lens=lens)


def test_update_of_lengths_alone_reads_no_lists(host_device):
    on = host_device.on
    lists, num = random_q2k()
    held = on(lists.copy())
    p = plan(q2k_indices=held, q2k_num=on(num), kv_block_lens=np.full(NB, 9))
    rows = device_rows(p)
    held.hidden[:] = 0
    cakert.update_cake_vsa(p, kv_block_lens=np.full(NB, 3))
    assert device_rows(p) == rows
    assert (p["workspace"]["kv_block_lens"].data.view(np.int32) == 3).all()


def test_update_refuses_another_kind_or_shape(host_device):
    on = host_device.on
    lists, num = random_q2k()
    of_mask = plan(block_mask=random_mask())
    of_q2k = plan(q2k_indices=on(lists), q2k_num=on(num))
    rows = device_rows(of_mask), device_rows(of_q2k)
    cases = [
        (of_mask, {"q2k_indices": on(lists)}, "update it with block_mask, got q2k_indices"),
        (of_mask, {"q2k_num": on(num)}, "update it with block_mask, got q2k_num"),
        (of_mask, {}, "update_cake_vsa needs block_mask"),
        (of_mask, {"block_mask": random_mask(4, NB, MB)}, "block_mask must have shape"),
        (of_mask, {"block_mask": random_mask().astype(int)}, "block_mask must be bool or uint8"),
        (of_q2k, {"block_mask": random_mask()}, "update it with q2k_indices, got block_mask"),
        (of_q2k, {"q2k_indices": on(lists[..., :2].copy())}, "keep the plan's topk = 3, got 2"),
        (of_q2k, {"q2k_indices": on(lists, 1)}, "plan's device cuda:0, got cuda:1"),
        (of_q2k, {"q2k_num": on(num.astype(np.int64))}, "q2k_num must be int32, got int64"),
        (of_q2k, {"q2k_num": on(num.T)}, "q2k_num must be contiguous"),
    ]
    for p, tensors, message in cases:
        with pytest.raises(ValueError, match=message):
            cakert.update_cake_vsa(p, **tensors)
    with pytest.raises(TypeError, match="block_mask must be a tensor"):
        cakert.update_cake_vsa(of_mask, block_mask=[[1]])
    assert (device_rows(of_mask), device_rows(of_q2k)) == rows


def test_update_repairs_and_check_tells(host_device):  # F1, F23
    on = host_device.on
    lists, num = random_q2k(ragged=False)
    num[:] = 3
    p = plan(q2k_indices=on(lists), q2k_num=on(num), kv_block_lens=np.full(NB, 64))
    cakert.check_cake_vsa(p)

    def update(message, **tensors):
        cakert.update_cake_vsa(p, **tensors)
        for _ in range(2):  # until the next update
            with pytest.raises(ValueError, match=message):
                cakert.check_cake_vsa(p)

    bad = lists.copy()
    bad[1, 2] = [NB, 4, -7]
    update(r"active q2k_indices entries must be in \[0, NB\).*got 8", q2k_indices=on(bad))
    assert device_rows(p)[MB + 2] == [4]
    assert p["row_counts"].hidden[1, 2] == 1
    bad[1, 2] = [6, 1, 6]
    update("each block once, got block 6 twice at head 1", q2k_indices=on(bad))
    assert device_rows(p)[MB + 2] == [1, 6]
    counts = num.copy()
    counts[0, 0], counts[3, 1] = 0, 99
    update(r"q2k_num entries must be in \[1, topk\].*got 0 at head 0", q2k_num=on(counts))
    assert device_rows(p)[0] == []
    assert device_rows(p)[3 * MB + 1] == sorted(lists[3, 1].tolist())
    lens = np.array([0, 65, -5, 64, 1, 2, 3, 2**40])
    # Lengths alone do not mend the counts, which are still in use; plan would name those first.
    update(r"q2k_num entries must be in \[1, topk\].*got 0 at head 0", kv_block_lens=lens)
    clamped = p["workspace"]["kv_block_lens"].data.view(np.int32)
    assert clamped.tolist() == [0, 64, 0, 64, 1, 2, 3, 64]
    cakert.update_cake_vsa(p)
    with pytest.raises(ValueError, match=r"kv_block_lens entries must be.*got 0 at KV block 0"):
        cakert.check_cake_vsa(p)
    cakert.update_cake_vsa(p, kv_block_lens=np.full(NB, 64))
    cakert.check_cake_vsa(p)

    p = plan(block_mask=random_mask())
    mask = random_mask()
    mask[2, 1] = False
    update("block_mask selects none at head 2, query block 1", block_mask=mask)
    assert device_rows(p) == rows_of(mask)


def test_counts_and_lengths_in_one_update(host_device):
    on = host_device.on
    lists, num = random_q2k()
    p = plan(q2k_indices=on(lists), q2k_num=on(num), kv_block_lens=np.full(NB, 64))
    fewer, lens = np.ones_like(num), np.arange(1, NB + 1)
    cakert.update_cake_vsa(p, q2k_num=on(fewer), kv_block_lens=lens)
    fresh = plan(q2k_indices=on(lists), q2k_num=on(fewer), kv_block_lens=lens)
    assert equal_plans(p, fresh)


def test_a_tensor_with_a_stream_decides_before_numpy(host_device):
    torch = pytest.importorskip("torch")
    p = plan(block_mask=random_mask(), kv_block_lens=np.full(NB, 64))
    host_device.sources.clear()
    lens = torch.full((NB,), 63)
    cakert.update_cake_vsa(p, block_mask=random_mask(), kv_block_lens=lens)
    (source,) = host_device.sources
    assert source is lens


def test_rereading_lists_in_a_capture(host_device, monkeypatch):
    lists, num = random_q2k()
    p = plan(q2k_indices=host_device.on(lists), q2k_num=host_device.on(num))
    monkeypatch.setattr(fake_cupy.Stream, "capturing", True)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        cakert.update_cake_vsa(p)


def test_update_outside_the_inference_mode_of_plan(host_device):
    torch = pytest.importorskip("torch")
    with torch.inference_mode():
        p = plan(block_mask=torch.from_numpy(random_mask()))
    mask = random_mask()
    cakert.update_cake_vsa(p, block_mask=torch.from_numpy(mask))
    assert np.array_equal(p["row_counts"].numpy(), mask.sum(-1))


def test_update_in_a_capture(host_device, monkeypatch):
    mask = host_device.on(random_mask())
    p = plan(block_mask=mask)
    rows = device_rows(p)
    monkeypatch.setattr(fake_cupy.Stream, "capturing", True)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        cakert.update_cake_vsa(p, block_mask=host_device.on(random_mask()))
    assert device_rows(p) == rows
