"""What a plan holds: its keys, its device memory and its launch, on a device in host memory."""

import copy
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest
from helpers import fake_cupy, problems
from helpers.host_device import (
    MB,
    NB,
    SMS,
    device_rows,
    install,
    plan,
    random_mask,
    random_q2k,
    rows_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cakert
from cakert import validation, vsa


@pytest.fixture(params=["sm90_group", "sm90"])
def host_device(request, monkeypatch):
    """Of both ways in which kernels read a pattern."""
    device = install(monkeypatch, request.param)
    device.grouped = request.param == "sm90_group"
    return device


def test_plan_of_a_mask(host_device):
    mask = random_mask()
    snapshot = mask.copy()
    p = plan(block_mask=mask, kv_block_lens=np.arange(1, 9)[::-1], sm_scale=-0.25, device="cuda:1")
    mask[:] = ~mask  # a snapshot was taken
    assert isinstance(p, dict)
    assert {name: p[name] for name in ("M", "N", "R", "C", "mb", "nb")} == {
        "M": 256,
        "N": 512,
        "R": 64,
        "C": 64,
        "mb": 4,
        "nb": 8,
    }
    assert (p["num_qo_heads"], p["num_kv_heads"], p["head_dim"]) == (4, 2, 128)
    assert (p["dtype"], p["sm_scale"]) == ("bfloat16", -0.25)
    assert p["block_mask"].dtype == bool
    assert np.array_equal(p["block_mask"], snapshot)
    counts = snapshot.sum(axis=-1)
    assert p["row_counts"].dtype == np.int32
    assert np.array_equal(p["row_counts"], counts)
    assert type(p["max_selected_blocks"]) is int
    assert p["max_selected_blocks"] == counts.max()
    assert p["uniform_selected_blocks"] is bool(counts.min() == counts.max())
    assert p["indptr"] is p["indices"] is None
    assert p["q2k_indices"] is p["q2k_num"] is None
    assert p["kv_block_lens"].dtype == np.int32
    assert p["kv_block_lens"].tolist() == list(range(8, 0, -1))
    lists = ["row_blocks", "row_counts", "tile_order"]
    if host_device.grouped:
        lists = ["group_rows", "group_blocks", "group_members", "group_counts"]
    work = p["workspace"]
    assert set(work) == {*lists, "kv_block_lens"}

    assert device_rows(p) == rows_of(snapshot)
    assert work["kv_block_lens"].data.view(np.int32).tolist() == list(range(8, 0, -1))
    assert all(set(space.streams) == {77} for space in work.values())
    assert all(space.device == 1 for space in work.values())
    assert host_device.waits == [(77, 1)]
    assert host_device.kernel.loaded == [(1, 98304)]

    frozen = p._call.frozen
    assert {name: frozen[name] for name in ("device", "M", "N", "block", "head_dim")} == {
        "device": 1,
        "M": 256,
        "N": 512,
        "block": 64,
        "head_dim": 128,
    }
    assert (frozen["dtype"], frozen["sm_scale"], frozen["threads"]) == ("bfloat16", -0.25, 128)
    assert frozen["index_bytes"] == 2
    for name, space in work.items():
        assert frozen[name] == space.pointer
        assert space in frozen["keep_alive"]
    if host_device.grouped:
        assert p["route"] == "cake_vsa_sm90_group_r64_d128_bf16"
        assert not frozen.keys() & {"row_blocks", "row_counts", "tile_order", "row_stride"}
        # Whatever the pattern: 2 KV heads of 8 rows, and a union of all blocks with half stages.
        assert (frozen["num_groups"], frozen["group_stride"], frozen["grid"]) == (8, NB + 2, SMS)
        assert work["group_blocks"].nbytes == 2 * 8 * (NB + 2)
        assert work["group_members"].nbytes == 8 * (NB + 2)
        assert counts.max() <= p.tiles_fetched <= counts.sum()
    else:
        assert p["route"] == "cake_vsa_sm90_r64_d128_bf16"
        assert not [name for name in frozen if "group" in name]
        assert (frozen["grid"], frozen["row_stride"]) == (16, NB)
        assert work["row_blocks"].nbytes == 2 * 4 * MB * NB  # full capacity
        assert sorted(work["tile_order"].data.view(np.uint32).tolist()) == list(range(16))
        assert p.tiles_fetched == counts.sum()


def test_groups_of_a_pattern(host_device):
    """Heads of a KV head that select alike fetch once."""
    mask = random_mask(2)
    p = plan(block_mask=mask)
    assert p.tiles_fetched == mask.sum() * (1 if host_device.grouped else 2)
    other = random_mask(2)
    cakert.update_cake_vsa(p, block_mask=other)
    assert p.tiles_fetched == other.sum() * (1 if host_device.grouped else 2)


def test_too_many_entries_of_groups(host_device, monkeypatch):
    # 16 rows of up to 3: 48 entries of rows, but 8 groups of up to 8.
    lists, num = random_q2k()
    given = {"q2k_indices": host_device.on(lists), "q2k_num": host_device.on(num)}
    monkeypatch.setattr(validation, "MAX_LIST_ENTRIES", 64)
    plan(**given)
    monkeypatch.setattr(validation, "MAX_LIST_ENTRIES", 63)
    if not host_device.grouped:
        plan(**given)
        return
    with pytest.raises(ValueError, match="at most 63 entries, got 8 groups of up to 8"):
        plan(**given)
    assert not host_device.kernel.loaded[1:], "it is checked before anything is loaded"


def test_scale_and_dtype_are_kept_as_given(host_device):
    for scale, used in ((None, 128**-0.5), (0.0, 0.0), (np.float32(0.5), 0.5)):
        p = plan(block_mask=random_mask(), sm_scale=scale, q_data_type=ml_dtypes.bfloat16)
        assert p["sm_scale"] is scale
        assert p._call.frozen["sm_scale"] == pytest.approx(used, rel=1e-15)
        assert p["dtype"] is ml_dtypes.bfloat16
        assert p["kv_block_lens"] is None
        assert "kv_block_lens" not in p._call.frozen


@pytest.mark.parametrize("form", ["bool", "uint8", "torch", "cupy", "strided"])
def test_forms_of_a_mask(host_device, form):  # F19
    mask = random_mask()
    given = mask
    if form == "uint8":
        given = mask * np.uint8(3)
    elif form == "torch":
        given = pytest.importorskip("torch").from_numpy(mask)
    elif form == "cupy":
        given = host_device.on(mask)
    elif form == "strided":
        given = np.ascontiguousarray(mask.T).T
    p = plan(block_mask=given)
    assert device_rows(p) == rows_of(mask)
    assert type(p["row_counts"]) is type(given)
    assert type(p["block_mask"]) is type(given)
    values = p["block_mask"].hidden if form == "cupy" else np.asarray(p["block_mask"])
    assert values.dtype == bool
    assert np.array_equal(values, mask)
    assert not np.shares_memory(values, mask)


def test_mask_of_kv_heads(host_device):
    mask = random_mask(2)
    p = plan(block_mask=mask)
    assert device_rows(p) == rows_of(mask)
    assert np.array_equal(p["row_counts"], np.repeat(mask.sum(-1), 2, axis=0))
    assert p["block_mask"].shape == (2, MB, NB)
    one = plan(block_mask=mask[:1], num_kv_heads=1)
    assert one["indptr"].tolist() == [0, *np.cumsum(mask[0].sum(-1))]
    assert one["indices"].tolist() == [b for row in rows_of(mask[:1])[:MB] for b in row]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("framework", ["numpy", "torch", "cupy"])
def test_plan_of_bsr(host_device, dtype, framework):  # F17
    mask = random_mask(1)[0]
    indptr, indices = (a.astype(dtype) for a in problems.untidy_bsr(np.random.default_rng(), mask))
    make = {
        "numpy": lambda a: a,
        "cupy": host_device.on,
        "torch": lambda a: pytest.importorskip("torch").from_numpy(a),
    }[framework]
    p = plan(indptr=make(indptr), indices=make(indices))
    assert device_rows(p) == rows_of(mask[None])
    assert p["block_mask"] is None
    values = [getattr(p[name], "hidden", p[name]) for name in ("indptr", "indices")]
    assert type(p["indptr"]) is type(make(indptr))
    assert [np.asarray(a).dtype for a in values] == [np.int32, np.int32]
    assert values[0].tolist() == [0, *np.cumsum(mask.sum(-1))]
    assert values[1].tolist() == [b for row in rows_of(mask[None])[:MB] for b in row]


def test_mask_wins_over_bsr(host_device):  # F16
    mask = np.zeros((4, MB, NB), bool)
    mask[..., 0] = True
    p = plan(block_mask=mask, indptr=np.arange(MB + 1), indices=np.ones(MB, int))
    assert device_rows(p) == [[0]] * 16
    assert p["indices"].tolist() == [0] * MB


@pytest.mark.parametrize("with_num", [False, True])
def test_plan_of_q2k(host_device, with_num):
    lists, num = random_q2k(ragged=with_num)
    indices = host_device.on(lists)
    counts = host_device.on(num) if with_num else None
    p = plan(q2k_indices=indices, q2k_num=counts)
    assert p["q2k_indices"] is indices
    assert p["block_mask"] is None
    if with_num:
        assert p["q2k_num"] is counts
    else:
        assert isinstance(p["q2k_num"], fake_cupy.Ndarray)
        assert p["q2k_num"].hidden.dtype == np.int32
        assert (p["q2k_num"].hidden == 3).all()
        assert p["uniform_selected_blocks"] is True
        num = np.full_like(num, 3)
    assert np.array_equal(p["row_counts"].hidden, num)
    stride = {"group_stride": 8} if host_device.grouped else {"row_stride": 3}
    assert stride.items() <= p._call.frozen.items()
    flat = zip(lists.reshape(-1, 3), num.reshape(-1), strict=True)
    assert device_rows(p) == [sorted(row[:count].tolist()) for row, count in flat]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(problems.KINDS), st.sampled_from([(1, 1), (3, 1), (4, 2), (8, 2)]))
def test_every_kind_of_problem(host_device, kind, heads):  # F21, F22, F25
    rng = np.random.default_rng()
    m, n = rng.integers(1, 6, 2) * 64
    p = problems.make_problem(rng, kind, M=int(m), N=int(n), heads=heads, head_dim=64)
    pattern = {
        name: host_device.on(value) if name.startswith("q2k") and value is not None else value
        for name, value in p.pattern.items()
    }
    made = plan(**{**pattern, **p.scalars})
    assert device_rows(made) == rows_of(p.mask, heads[0])


def test_big_grids(host_device):  # F26
    mask = np.ones((1, 2, 2), bool)
    p = plan(block_mask=mask, M=128, N=128, num_qo_heads=65536, num_kv_heads=1, head_dim=64)
    assert p._call.frozen["grid"] == 131072
    with pytest.raises(ValueError, match="at most 2147483647"):
        plan(block_mask=mask, M=64 * 4096, N=128, num_qo_heads=2**19, num_kv_heads=1)


def test_changing_a_key_has_no_effect(host_device):
    mask = random_mask()
    p = plan(block_mask=mask)
    call = p._call
    p["workspace"].clear()
    for name in list(p):
        p[name] = "changed"
    assert p._call is call
    assert device_rows(p) == rows_of(mask)
    other = random_mask()
    cakert.update_cake_vsa(p, block_mask=other)
    assert device_rows(p) == rows_of(other)
    q = object()
    arguments = cakert.run_cake_vsa(
        p, q, "k", "v", out=None, lse=None, return_lse=True, backend="cake"
    )
    assert arguments == (q, "k", "v", None, None, True)


def test_a_plan_cannot_be_copied(host_device):
    p = plan(block_mask=random_mask())
    for function in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="plan again"):
            function(p)


def test_plans_from_several_threads(host_device):
    masks = [random_mask() for _ in range(16)]
    plans = [None] * 16

    def work(i):
        plans[i] = plan(block_mask=masks[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for p, mask in zip(plans, masks, strict=True):
        assert device_rows(p) == rows_of(mask)


def test_run_refuses(host_device):
    p = plan(block_mask=random_mask())
    options = {"out": None, "lse": None, "return_lse": False}
    for backend in ("cuda", "", None, "CAKE"):
        with pytest.raises(ValueError, match=f'backend must be "cake", got {backend!r}'):  # F8
            cakert.run_cake_vsa(p, 1, 2, 3, **options, backend=backend)
    for impostor in (dict(p), p.copy(), None, 3):
        with pytest.raises(TypeError, match=f"got {type(impostor).__name__}"):
            cakert.run_cake_vsa(impostor, 1, 2, 3, **options, backend="cake")
        with pytest.raises(TypeError, match="plan must be what plan_cake_vsa returned"):
            cakert.update_cake_vsa(impostor)
        with pytest.raises(TypeError, match="plan must be what plan_cake_vsa returned"):
            cakert.check_cake_vsa(impostor)


def test_the_plan_is_a_dict_with_a_type():
    assert issubclass(vsa.CakeVsaPlan, dict)
