"""The contract of plan as far as it needs no driver: signatures, refusals, order, devices.

Values that pass every check end at `open_device`, which is replaced by an exception, so that these
tests mean the same on every machine.
"""

import inspect
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import fake_cupy, problems
from helpers.host_device import MB, NB, PATTERN, SCALARS, plan, random_mask, random_q2k

import cakert
from cakert import cubins, vsa_device
from cakert.runtime import driver


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
    # Whatever driver this machine has: other tests of the process may have used it.
    monkeypatch.setattr(driver, "initialised", lambda: False)
    monkeypatch.setattr(driver, "device_count", lambda: state.count)
    monkeypatch.setattr(driver, "device_capability", lambda index: state.capability)
    monkeypatch.setattr(driver, "device_name", lambda index: "Fake GPU")
    monkeypatch.setattr(driver, "device_multiprocessors", lambda index: 132)
    monkeypatch.setattr(driver, "driver_version", lambda: state.version)
    monkeypatch.setattr(driver, "current_device", lambda: 1)
    monkeypatch.setattr(cubins, "store", lambda: state.store)

    def stop(name, entry, device):
        state.loaded = (name, entry.capability)
        raise ChecksPassed

    monkeypatch.setattr(vsa_device, "load_kernel", stop)
    return state


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (10, 3)])
def test_supported_devices(fake_driver, capability):
    fake_driver.capability = capability
    with pytest.raises(ChecksPassed):
        plan(block_mask=random_mask(), device="cuda:1", head_dim=96, q_data_type=np.float16)
    family = "sm90_split" if capability == (9, 0) else "portable"
    assert fake_driver.loaded == (f"cake_vsa_{family}_r64_d96_fp16", capability)


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
    with pytest.raises(
        RuntimeError, match=r"no cubin has kernel cake_vsa_sm90_split_r64_d128_bf16"
    ):
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


def test_current_device_of_torch(fake_driver, monkeypatch):
    torch = pytest.importorskip("torch")
    fake_cupy.install(monkeypatch)
    lists, num = random_q2k()
    # torch may have chosen a device that it has not made current yet.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(ChecksPassed):
        plan(q2k_indices=fake_cupy.Ndarray(lists, 0), q2k_num=fake_cupy.Ndarray(num), device="cuda")
