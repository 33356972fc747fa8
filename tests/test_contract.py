"""The contract of plan, run, update and check, as far as it needs no driver.

Values that pass every check end at `open_device`: what lies behind it is replaced, by an exception
or by a device in host memory, so that these tests mean the same on every machine.
"""

import copy
import inspect
import pickle
import subprocess
import sys
import threading
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from helpers import fake_cupy, problems
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cakert
from cakert import cubins, routes, vsa, vsa_device
from cakert.runtime import driver, memory

MB, NB = 4, 8
SCALARS = {
    "M": MB * 64,
    "N": NB * 64,
    "R": 64,
    "C": 64,
    "num_qo_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 128,
    "q_data_type": "bfloat16",
    "sm_scale": None,
    "device": 0,
}
PATTERN = dict.fromkeys(
    ("indptr", "indices", "block_mask", "kv_block_lens", "q2k_indices", "q2k_num")
)


def plan(**changes):
    return cakert.plan_cake_vsa(**{**PATTERN, **SCALARS, **changes})


def random_mask(heads=4, q_blocks=MB, kv_blocks=NB):
    rng = np.random.default_rng()
    mask = rng.random((heads, q_blocks, kv_blocks)) < 0.4
    mask[..., rng.integers(0, kv_blocks)] = True
    return mask


def random_q2k(topk=3, ragged=True):
    rng = np.random.default_rng()
    order = np.argsort(rng.random((4, MB, NB)), axis=-1)
    num = rng.integers(1, topk + 1, (4, MB)).astype(np.int32)
    lists = order[..., :topk].astype(np.int32)
    if ragged:
        lists[np.arange(topk) >= num[..., None]] = -1
    return np.ascontiguousarray(lists), num


class ChecksPassed(Exception):
    """Raised where a plan would open the device."""


@pytest.fixture
def no_device(monkeypatch):
    def stop(*_):
        raise ChecksPassed

    monkeypatch.setattr(vsa_device, "open_device", stop)


# -------------------------------------------------------------------------------- signatures


def test_signatures_are_those_of_the_design():
    def names(function, kind):
        return [p.name for p in inspect.signature(function).parameters.values() if p.kind is kind]

    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    keyword = inspect.Parameter.KEYWORD_ONLY
    assert names(cakert.plan_cake_vsa, positional) == list(PATTERN)
    assert names(cakert.plan_cake_vsa, keyword) == list(SCALARS)
    assert names(cakert.run_cake_vsa, positional) == ["plan", "q", "k", "v"]
    assert names(cakert.run_cake_vsa, keyword) == ["out", "lse", "return_lse", "backend"]
    for function in (cakert.plan_cake_vsa, cakert.run_cake_vsa):
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.default is inspect.Parameter.empty
    update = inspect.signature(cakert.update_cake_vsa).parameters
    assert list(update) == ["plan", "block_mask", "q2k_indices", "q2k_num", "kv_block_lens"]
    assert [p.default for p in update.values()][1:] == [None] * 4
    assert list(inspect.signature(cakert.check_cake_vsa).parameters) == ["plan"]


# -------------------------------------------------------------------------- what plan refuses


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"device": "cpu"}, RuntimeError, "device must be a CUDA device .*got 'cpu'"),
        ({"R": 128}, ValueError, "C must equal R"),
        ({"R": 96, "C": 96}, ValueError, "R must be 64 or 128"),
        ({"M": 250}, ValueError, "M must be a positive multiple of R = 64, got 250"),
        ({"N": 3 * 64 + 23}, ValueError, "N must be a positive multiple of C = 64, got 215"),
        ({"head_dim": 256}, ValueError, "head_dim must be"),
        ({"q_data_type": "float8_e4m3fn"}, ValueError, "q_data_type must be"),
        ({"num_kv_heads": 3}, ValueError, "num_qo_heads must be a multiple"),
        ({"sm_scale": float("inf")}, ValueError, "sm_scale must be"),
        ({"block_mask": None}, ValueError, "a pattern must be given"),
        ({"indptr": np.arange(5)}, ValueError, "indptr was given without indices"),
        ({"q2k_num": np.ones((4, 4), np.int32)}, ValueError, "without q2k_indices"),
        ({"q2k_indices": np.ones((4, 4, 2), np.int32)}, ValueError, "excludes block_mask"),
        ({"block_mask": random_mask(3)}, ValueError, "block_mask must have shape"),
        ({"block_mask": random_mask().astype(float)}, ValueError, "bool or uint8, got float64"),
        ({"block_mask": [[True]]}, TypeError, "block_mask must be a tensor"),
        ({"block_mask": np.zeros((4, MB, NB), bool)}, ValueError, "selects none at head 0"),
        ({"kv_block_lens": np.full(NB, 65)}, ValueError, r"entries must be in \[1, C\]"),
        ({"kv_block_lens": np.zeros(NB, np.int64)}, ValueError, r"\[1, 64\], got 0"),
        ({"kv_block_lens": np.full(NB + 1, 3)}, ValueError, "kv_block_lens must have shape"),
    ],
)
def test_plan_refuses(no_device, changes, error, message):
    with pytest.raises(error, match=message):
        plan(**{"block_mask": random_mask(), **changes})


def test_plan_refuses_bsr(no_device):  # F15
    indptr, indices = problems.untidy_bsr(np.random.default_rng(), random_mask(1)[0])
    with pytest.raises(ChecksPassed):
        plan(indptr=indptr, indices=indices)
    for bad in (NB, -1):
        broken = indices.copy()
        broken[2] = bad
        with pytest.raises(ValueError, match=rf"indices entries must be in \[0, NB\).*got {bad} "):
            plan(indptr=indptr, indices=broken)
    for position, name in ((0, "start at 0"), (-1, r"end at len\(indices\)")):
        broken = indptr.copy()
        broken[position] += 1
        with pytest.raises(ValueError, match=f"indptr must {name}"):
            plan(indptr=broken, indices=indices)
    broken = indptr.copy()
    broken[1] = broken[2] + 1
    with pytest.raises(ValueError, match="indptr must not fall"):
        plan(indptr=broken, indices=indices)
    broken = indptr.copy()
    broken[1] = 0
    with pytest.raises(ValueError, match="selects none at query block 0"):
        plan(indptr=broken, indices=indices)


def test_plan_refuses_q2k(no_device, monkeypatch):  # F14, F15, F17, F18, F23
    fake_cupy.install(monkeypatch)
    on = fake_cupy.Ndarray
    lists, num = random_q2k()
    with pytest.raises(ChecksPassed):
        plan(q2k_indices=on(lists), q2k_num=on(num))
    cases = [
        (np.empty((4, MB, 0), np.int32), None, r"topk .*\[1, NB\] = \[1, 8\], got 0"),
        (np.ones((4, MB, 9), np.int32), None, r"\[1, 8\], got 9"),
        (lists.astype(np.int64), num, "q2k_indices must be int32, got int64"),
        (lists, num.astype(np.int64), "q2k_num must be int32, got int64"),
        (np.repeat(lists, 2, axis=2)[..., ::2], num, "q2k_indices must be contiguous"),
        (lists, np.repeat(num, 2, axis=1)[:, ::2], "q2k_num must be contiguous"),
        (lists, np.full_like(num, 4), r"q2k_num entries must be in \[1, topk\]"),
        (lists, np.zeros_like(num), r"q2k_num entries must be in \[1, topk\]"),
        (np.where(lists < 0, lists, NB), num, r"active q2k_indices entries must be in \[0, NB\)"),
        (lists, None, r"\[0, NB\) = \[0, 8\), got -1"),  # the padding is active now
        (np.full_like(lists, 5), np.full_like(num, 2), "each block once, got block 5 twice"),
    ]
    num[0, 0], lists[0, 0] = 2, [1, 0, -1]
    for indices, counts, message in cases:
        with pytest.raises(ValueError, match=message):
            plan(q2k_indices=on(indices), q2k_num=None if counts is None else on(counts))
    with pytest.raises(
        ValueError, match="q2k_indices must be on the plan's device cuda:0, got cpu"
    ):
        plan(q2k_indices=lists, q2k_num=num)
    with pytest.raises(ValueError, match="plan's device cuda:0, got cuda:1"):
        plan(q2k_indices=on(lists, 1), q2k_num=on(num))
    with pytest.raises(ValueError, match="128"):
        plan(q2k_indices=on(lists), R=128, C=128)


def test_checks_run_in_order(no_device, monkeypatch):
    """Everything is wrong at once; each repair shows the next complaint."""
    fake_cupy.install(monkeypatch)
    lists, num = random_q2k(ragged=False)
    lists[:, 0, 0], lists[:, 1, 1] = NB, lists[:, 1, 0]
    num[:] = 3
    num[3, 3] = 9
    wrong = {
        "head_dim": 1,
        "block_mask": 3,
        "q2k_indices": fake_cupy.Ndarray(lists),
        "q2k_num": fake_cupy.Ndarray(num),
        "kv_block_lens": np.zeros(NB, np.int16),
    }
    sound = np.argsort(np.random.default_rng().random((4, MB, NB)), axis=-1)[..., :3]
    lens = np.zeros(NB, np.int32)

    def in_range():
        for row in lists[:, 0]:
            row[0] = next(block for block in range(NB) if block not in row)

    def repair_counts():
        num[3, 3] = 3

    def repair_lists():
        lists[:] = sound

    steps = [
        ("head_dim must be", lambda: wrong.update(head_dim=64)),
        ("q2k_indices excludes block_mask", lambda: wrong.update(block_mask=None)),
        ("kv_block_lens must be int32 or int64", lambda: wrong.update(kv_block_lens=lens)),
        ("q2k_num entries must be", repair_counts),
        ("active q2k_indices entries must be", in_range),
        ("must name each block once", repair_lists),
        ("kv_block_lens entries must be", lambda: lens.fill(1)),
    ]
    for message, repair in steps:
        with pytest.raises(ValueError, match=message):
            plan(**wrong)
        repair()
    with pytest.raises(ChecksPassed):
        plan(**wrong)


def test_capture(no_device, monkeypatch):  # F49
    fake_cupy.install(monkeypatch)
    mask = fake_cupy.Ndarray(random_mask())
    with pytest.raises(ChecksPassed):
        plan(block_mask=mask)
    monkeypatch.setattr(fake_cupy.Stream, "capturing", True)
    with pytest.raises(RuntimeError, match="plan before capture"):
        plan(block_mask=mask)
    with pytest.raises(ValueError, match="M must be"):  # scalars first
        plan(block_mask=mask, M=1)
    with pytest.raises(ChecksPassed):  # not CuPy's business
        plan(block_mask=random_mask())


def test_capture_in_torch(no_device, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="plan before capture"):
        plan(block_mask=random_mask())


def test_capture_of_the_legacy_stream(no_device, monkeypatch):
    monkeypatch.setattr(driver, "initialised", lambda: True)
    monkeypatch.setattr(driver, "is_capturing", lambda stream: stream == 0)
    with pytest.raises(RuntimeError, match="plan before capture"):
        plan(block_mask=random_mask())


# ------------------------------------------------------------------------- opening the device


class Store:
    """A cubin store with files for some capabilities."""

    capabilities = ((9, 0), (10, 0), (10, 3))
    missing = False

    def find(self, name, capability):
        return None if self.missing else SimpleNamespace(name=name, capability=capability)


@pytest.fixture
def fake_driver(monkeypatch):
    """A driver that answers; a test sets the answers."""
    state = SimpleNamespace(count=2, capability=(9, 0), version=13000, store=Store())
    monkeypatch.setattr(driver, "device_count", lambda: state.count)
    monkeypatch.setattr(driver, "device_capability", lambda index: state.capability)
    monkeypatch.setattr(driver, "device_name", lambda index: "Fake GPU")
    monkeypatch.setattr(driver, "driver_version", lambda: state.version)
    monkeypatch.setattr(driver, "current_device", lambda: 1)
    monkeypatch.setattr(cubins, "store", lambda: state.store)

    def stop(name, entry):
        state.loaded = (name, entry.capability)
        raise ChecksPassed

    monkeypatch.setattr(vsa_device, "load_kernel", stop)
    return state


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (10, 3)])
def test_supported_devices(fake_driver, capability):
    fake_driver.capability = capability
    with pytest.raises(ChecksPassed):
        plan(block_mask=random_mask(), device="cuda:1", head_dim=96, q_data_type=np.float16)
    assert fake_driver.loaded == ("cake_vsa_portable_r64_d96_fp16", capability)


@pytest.mark.parametrize("capability", [(8, 0), (11, 0), (12, 0), (12, 1)])
def test_unsupported_devices(fake_driver, capability):  # F30
    fake_driver.capability = capability
    with pytest.raises(RuntimeError) as error:
        plan(block_mask=random_mask())
    message = str(error.value)
    assert f"Fake GPU has compute capability {capability[0]}.{capability[1]}" in message
    assert "9.0 (SM90), 10.0 (SM100), 10.3 (SM103)" in message


def test_unsupported_device_under_optimisation():  # F30
    code = """
import numpy as np, cakert
from cakert import cubins
from cakert.runtime import driver
assert False, "asserts are off"
driver.device_count = lambda: 1
driver.device_capability = lambda index: (12, 0)
driver.device_name = lambda index: "Fake GPU"
class Store: capabilities = ((9, 0),)
cubins.store = Store
try:
    cakert.plan_cake_vsa(None, None, np.ones((1, 2, 2), bool), None, None, None, M=128, N=128,
        R=64, C=64, num_qo_heads=1, num_kv_heads=1, head_dim=64, q_data_type="float16",
        sm_scale=None, device=0)
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True
    )
    assert "compute capability 12.0" in done.stdout
    assert "9.0 (SM90)" in done.stdout


def test_device_index(fake_driver):
    with pytest.raises(RuntimeError, match=r"got cuda:2: this machine has 2 CUDA device"):
        plan(block_mask=random_mask(), device=2)
    fake_driver.count = 0
    for spec in (0, "cuda"):
        with pytest.raises(RuntimeError, match=r"this machine has (0|no) CUDA device"):
            plan(block_mask=random_mask(), device=spec)


def test_old_driver(fake_driver):
    fake_driver.version = 12080
    with pytest.raises(RuntimeError, match=r"need driver 580 or newer, got .* CUDA 12\.8"):
        plan(block_mask=random_mask())


def test_missing_cubin(fake_driver):
    fake_driver.store.missing = True
    with pytest.raises(RuntimeError, match=r"no cubin has kernel cake_vsa_portable_r64_d128_bf16"):
        plan(block_mask=random_mask())


def test_current_device(fake_driver, monkeypatch):
    """ "cuda" is the current device, and equals its indexed form for q2k tensors."""
    fake_cupy.install(monkeypatch)
    lists, num = random_q2k()
    for spec in ("cuda", "cuda:1"):
        with pytest.raises(ChecksPassed):
            plan(
                q2k_indices=fake_cupy.Ndarray(lists, 1),
                q2k_num=fake_cupy.Ndarray(num, 1),
                device=spec,
            )
    with pytest.raises(ValueError, match="plan's device cuda:1, got cuda:0"):
        plan(q2k_indices=fake_cupy.Ndarray(lists, 0), device="cuda")
    torch = pytest.importorskip("torch")
    # torch may have chosen a device that it has not made current yet.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(ChecksPassed):
        plan(q2k_indices=fake_cupy.Ndarray(lists, 0), q2k_num=fake_cupy.Ndarray(num), device="cuda")


# ----------------------------------------------------------- a device in host memory: the plan


class HostWorkspace:
    """`Workspace` over host memory, poisoned; remembers the streams of its copies."""

    alive = 0

    def __init__(self, device, nbytes):
        self.device, self.nbytes = device, nbytes
        self.data = np.full(nbytes, 0xA5, np.uint8)
        self.pointer = self.data.ctypes.data
        self.streams = []
        HostWorkspace.alive += 1

    def copy_in(self, array, stream=None):
        self.streams.append(stream)
        self.data[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def copy_rows_in(self, array2d, pitch_bytes, stream=None):
        self.streams.append(stream)
        rows = np.ascontiguousarray(array2d).view(np.uint8)
        assert rows.shape[1] <= pitch_bytes
        self.data.reshape(len(rows), pitch_bytes)[:, : rows.shape[1]] = rows


class HostCall:
    """`VsaCall`: keeps what it was made of; a run gives back its arguments."""

    def __init__(self, kernel, **frozen):
        self.kernel, self.frozen = kernel, frozen

    def run(self, *arguments):
        return arguments


class HostKernel:
    def __init__(self):
        self.loaded = []

    def load_on(self, device, shared_bytes=0):
        self.loaded.append((device, shared_bytes))


@pytest.fixture
def host_device(monkeypatch):
    cupy = fake_cupy.install(monkeypatch)
    record = SimpleNamespace(threads=128, shared_bytes=98304)
    entry = SimpleNamespace(kernel=lambda name: record)
    device = SimpleNamespace(kernel=HostKernel(), waits=[], cupy=cupy, on=fake_cupy.Ndarray)

    def open_device(problem, index):
        device.index = index
        route = routes.choose(
            (9, 0), R=problem.block, head_dim=problem.head_dim, dtype=problem.dtype
        )
        return route, entry

    launch = ModuleType("cakert.vsa_launch")
    launch.VsaCall = HostCall
    monkeypatch.setitem(sys.modules, "cakert.vsa_launch", launch)
    monkeypatch.setattr(memory, "Workspace", HostWorkspace)
    monkeypatch.setattr(vsa_device, "open_device", open_device)
    monkeypatch.setattr(vsa_device, "load_kernel", lambda name, entry: device.kernel)
    monkeypatch.setattr(vsa_device, "stream_of", lambda tensor, index: 77)
    monkeypatch.setattr(vsa_device, "wait", lambda *args: device.waits.append(args))
    return device


def device_rows(p):
    """The row lists that a kernel would read, (head, query block) -> list."""
    frozen = p._call.frozen
    work = p._held.workspace
    counts = work["row_counts"].data.view(np.int32)
    stride = frozen["row_stride"]
    entries = work["row_blocks"].data.view(np.uint16 if frozen["index_bytes"] == 2 else np.uint32)
    lists = entries.reshape(len(counts), stride)
    assert (counts >= 0).all()
    assert (counts <= stride).all()
    return [row[:count].tolist() for row, count in zip(lists, counts, strict=True)]


def rows_of(mask, heads=4):
    return [
        np.flatnonzero(mask[head // (heads // len(mask)), block]).tolist()
        for head in range(heads)
        for block in range(mask.shape[1])
    ]


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
    assert p["route"] == "cake_vsa_portable_r64_d128_bf16"
    assert set(p["workspace"]) == {"row_blocks", "row_counts", "tile_order", "kv_block_lens"}

    assert device_rows(p) == rows_of(snapshot)
    work = p["workspace"]
    assert work["row_blocks"].nbytes == 2 * 4 * MB * NB  # full capacity
    assert work["kv_block_lens"].data.view(np.int32).tolist() == list(range(8, 0, -1))
    order = work["tile_order"].data.view(np.uint32)
    assert sorted(order.tolist()) == list(range(16))
    assert all(space.streams == [77] for space in work.values())
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
    assert (frozen["grid"], frozen["row_stride"], frozen["index_bytes"]) == (16, NB, 2)
    for name in ("row_blocks", "row_counts", "tile_order", "kv_block_lens"):
        assert frozen[name] == work[name].pointer
        assert work[name] in frozen["keep_alive"]


def test_scale_and_dtype_are_kept_as_given(host_device):
    for scale, used in ((None, 128**-0.5), (0.0, 0.0), (np.float32(0.5), 0.5)):
        p = plan(block_mask=random_mask(), sm_scale=scale, q_data_type=ml_dtypes.bfloat16)
        assert p["sm_scale"] is scale
        assert p._call.frozen["sm_scale"] == pytest.approx(used, rel=1e-15)
        assert p["dtype"] is ml_dtypes.bfloat16
        assert p["kv_block_lens"] is None
        assert p._call.frozen["kv_block_lens"] == 0


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
    assert p._call.frozen["row_stride"] == 3
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
        plan(block_mask=mask, M=128, N=128, num_qo_heads=2**30, num_kv_heads=1)


def test_changing_a_key_has_no_effect(host_device):
    mask = random_mask()
    p = plan(block_mask=mask)
    call = p._call
    for name in list(p):
        p[name] = "changed"
    p["workspace"] = {}
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


# ------------------------------------------------------------------------------------- update


def equal_plans(a, b):
    """Whether a kernel would read the same from both."""
    work_a, work_b = a._held.workspace, b._held.workspace
    same = all(
        np.array_equal(work_a[name].data, work_b[name].data)
        for name in work_a
        if name != "row_blocks"
    )
    return same and device_rows(a) == device_rows(b)


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
    update(r"kv_block_lens entries must be in \[1, C\].*got 0 at KV block 0", kv_block_lens=lens)
    clamped = p["workspace"]["kv_block_lens"].data.view(np.int32)
    assert clamped.tolist() == [0, 64, 0, 64, 1, 2, 3, 64]
    cakert.update_cake_vsa(p)
    cakert.check_cake_vsa(p)

    p = plan(block_mask=random_mask())
    mask = random_mask()
    mask[2, 1] = False
    update("block_mask selects none at head 2, query block 1", block_mask=mask)
    assert device_rows(p) == rows_of(mask)


def test_update_in_a_capture(host_device, monkeypatch):
    mask = host_device.on(random_mask())
    p = plan(block_mask=mask)
    rows = device_rows(p)
    monkeypatch.setattr(fake_cupy.Stream, "capturing", True)
    with pytest.raises(RuntimeError, match="cannot be captured"):
        cakert.update_cake_vsa(p, block_mask=host_device.on(random_mask()))
    assert device_rows(p) == rows


# -------------------------------------------------------------------------------- run and check


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
