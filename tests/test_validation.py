"""The checks of scalars, presence and metadata, one by one."""

import math
from fractions import Fraction
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from helpers import fake_cupy
from helpers.host_device import SCALARS

from cakert import validation
from cakert.validation import Problem, check_metadata, check_presence, check_scalars

PROBLEM = Problem(256, 512, 64, 4, 2, 128, "bfloat16", 0.1, 0)


def capabilities():
    return [(10, 3), (9, 0), (10, 0)]


def scalars(**changes):
    return check_scalars(**{**SCALARS, **changes}, capabilities=capabilities)


# ---------------------------------------------------------------------------------- scalars


def test_good_scalars():
    p = scalars()
    assert (p.q_blocks, p.kv_blocks, p.block, p.device) == (4, 8, 64, 0)
    assert p.sm_scale == 1 / math.sqrt(128)
    assert scalars(R=128, C=128).q_blocks == 2
    assert scalars(M=np.int64(640), num_qo_heads=np.int32(6), head_dim=np.uint8(96)).M == 640
    assert scalars(num_qo_heads=65536, num_kv_heads=1, M=128, head_dim=64).num_qo_heads == 65536


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"R": 32, "C": 32}, "R must be 64 or 128, got 32"),
        ({"R": 0, "C": 0}, "R must be 64 or 128, got 0"),
        ({"R": 64.0}, "R must be an integer, got 64.0"),
        ({"R": True}, "R must be an integer, got True"),
        ({"R": "64"}, "R must be an integer, got '64'"),
        ({"C": 128}, "C must equal R = 64, got 128"),
        ({"C": None}, "C must be an integer, got None"),
        ({"M": 0}, "M must be a positive multiple of R = 64, got 0"),  # F58
        ({"N": 0}, "N must be a positive multiple of C = 64, got 0"),
        ({"M": -64}, "M must be a positive multiple of R = 64, got -64"),
        ({"N": 3 * 64 + 23}, "N must be a positive multiple of C = 64, got 215"),  # F11
        ({"M": 192, "R": 128, "C": 128}, "M must be a positive multiple of R = 128, got 192"),
        ({"N": 2**31}, "N must be at most 2147483647, got 2147483648"),
        ({"num_qo_heads": 2**19 + 4}, "num_qo_heads must be at most 524288, got 524292"),
        ({"M": [256]}, r"M must be an integer, got \[256\]"),
        ({"num_qo_heads": 0}, "num_qo_heads must be positive, got 0"),
        ({"num_kv_heads": -1}, "num_kv_heads must be positive, got -1"),
        ({"num_kv_heads": 3}, "num_qo_heads must be a multiple of num_kv_heads, got 4 and 3"),
        ({"num_kv_heads": 8}, "num_qo_heads must be a multiple of num_kv_heads, got 4 and 8"),
        ({"num_qo_heads": 2**19, "M": 64 * 4096}, "must be at most 2147483647"),  # F26
        ({"head_dim": 80}, "head_dim must be 64, 96 or 128, got 80"),
        ({"head_dim": 128.0}, "head_dim must be an integer"),
        ({"q_data_type": "float32"}, "q_data_type must be float16 or bfloat16, got 'float32'"),
        ({"sm_scale": float("nan")}, "sm_scale must be None or a finite float32 number, got nan"),
        ({"sm_scale": float("-inf")}, "sm_scale must be .* got -inf"),
    ],
)
def test_bad_scalars(changes, message):
    with pytest.raises(ValueError, match=message):
        scalars(**changes)


def test_scalars_are_checked_in_order():
    broken = {
        "R": 32,
        "C": 32,
        "M": 1,
        "N": 1,
        "num_qo_heads": 0,
        "num_kv_heads": 0,
        "head_dim": 1,
        "q_data_type": "int8",
        "sm_scale": "x",
        "device": "cpu",
    }
    repairs = [
        ("R", 128, "R must be"),
        ("C", 128, "C must equal"),
        ("M", 128, "M must be"),
        ("N", 128, "N must be"),
        ("num_qo_heads", 2, "num_qo_heads must be"),
        ("num_kv_heads", 2, "num_kv_heads must be"),
        ("head_dim", 64, "head_dim must be"),
        ("q_data_type", "float16", "q_data_type must be"),
        ("sm_scale", 1, "sm_scale must be"),
    ]
    for name, good, message in repairs:
        with pytest.raises(ValueError, match=f"^{message}"):
            scalars(**broken)
        broken[name] = good
    with pytest.raises(RuntimeError, match=r"^device must be"):
        scalars(**broken)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_dtype_forms(name):
    scalar = getattr(ml_dtypes if name == "bfloat16" else np, name)
    for form in (name, scalar, np.dtype(scalar)):
        assert validation.parse_dtype(form) == name


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_torch_dtypes(name):
    torch = pytest.importorskip("torch")
    assert validation.parse_dtype(getattr(torch, name)) == name


@pytest.mark.parametrize(
    "bad",
    [None, "f2", "half", "torch.float16", "", float, np.float32, np.int16, 16, "bf16", object()],
)
def test_bad_dtypes(bad):
    with pytest.raises(ValueError, match="q_data_type must be float16 or bfloat16, got "):
        validation.parse_dtype(bad)


def test_bad_torch_dtype():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"got torch\.float32"):
        validation.parse_dtype(torch.float32)


@pytest.mark.parametrize(
    "value",
    [
        0,
        0.0,
        -0.0,
        -0.1,
        0.03,
        3,
        np.float32(0.25),
        np.float16(-2),
        np.int8(-3),
        np.array(0.5),
        ml_dtypes.bfloat16(0.75),
        Fraction(1, 8),
        1e-44,
        3e38,
    ],
)
def test_scale_forms(value):  # F62
    result = validation.parse_scale(value, 64)
    assert type(result) is float
    assert result == float(value)


def test_torch_scale():
    torch = pytest.importorskip("torch")
    assert validation.parse_scale(torch.tensor(-0.5), 64) == -0.5
    assert validation.parse_scale(torch.tensor(0.25, dtype=torch.bfloat16), 64) == 0.25
    with pytest.raises(ValueError, match="sm_scale"):
        validation.parse_scale(torch.tensor([0.5]).bool()[0], 64)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_default_scale(head_dim):
    assert validation.parse_scale(None, head_dim) == pytest.approx(head_dim**-0.5, rel=1e-15)


@pytest.mark.parametrize(
    "bad",
    [
        True,
        np.bool_(False),
        "0.5",
        b"1",
        np.nan,
        np.inf,
        -np.inf,
        1e39,
        -1e300,
        10**400,
        1j,
        np.complex64(1),
        np.array([0.5, 1]),
        [],
        object(),
    ],
)
def test_bad_scales(bad):
    with pytest.raises(ValueError, match="sm_scale must be None or a finite float32 number, got"):
        validation.parse_scale(bad, 64)


class CupyDevice:
    id = 2


def jax_device(**fields):
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    ("spec", "index"),
    [
        ("cuda", None),
        ("cuda:0", 0),
        ("cuda:11", 11),
        (0, 0),
        (3, 3),
        (np.int64(1), 1),
        (CupyDevice(), 2),
        (jax_device(platform="gpu", id=9, local_hardware_id=1), 1),
        (jax_device(platform="cuda", id=4), 4),
        (jax_device(platform="gpu", id=4, local_hardware_id=None), 4),
    ],
)
def test_device_forms(spec, index):
    assert validation.parse_device(spec, capabilities) == index


def test_torch_devices():
    torch = pytest.importorskip("torch")
    assert validation.parse_device(torch.device("cuda"), capabilities) is None
    assert validation.parse_device(torch.device("cuda:1"), capabilities) == 1
    for bad in ("cpu", "meta", "mps"):
        with pytest.raises(RuntimeError, match=f"got device\\(type='{bad}'"):
            validation.parse_device(torch.device(bad), capabilities)


@pytest.mark.parametrize(
    "spec",
    [
        "cpu",
        "cuda:",
        "cuda:-1",
        "cuda:x",
        "cuda:1:2",
        "cuda0",
        "gpu",
        "",
        -1,
        True,
        np.bool_(True),
        1.0,
        None,
        object(),
        jax_device(platform="cpu", id=0),
        jax_device(platform="tpu", id=0),
        [0],
    ],
)
def test_bad_devices(spec):
    with pytest.raises(RuntimeError) as error:
        validation.parse_device(spec, capabilities)
    message = str(error.value)
    assert "9.0 (SM90), 10.0 (SM100), 10.3 (SM103)" in message
    assert repr(spec) in message
    assert 'or what "with cakert.sim.device(...) as device" gives' in message


def test_message_without_cubins():
    with pytest.raises(RuntimeError, match=r"\(no cubins installed\), or what .* gives, got 'cpu'"):
        validation.parse_device("cpu", list)


# --------------------------------------------------------------------------------- presence

MASK = np.ones((4, 4, 8), bool)
INDPTR = np.arange(5)
INDICES = np.array([0, 3, 1, 7])
LENS = np.array([64, 3, 9, 64, 1, 2, 64, 5])
ABSENT = dict.fromkeys(
    ("indptr", "indices", "block_mask", "kv_block_lens", "q2k_indices", "q2k_num")
)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a pattern must be given"),
        ({"kv_block_lens": LENS}, "a pattern must be given"),
        ({"indptr": INDPTR}, "indptr was given without indices"),
        ({"indices": INDICES}, "indices was given without indptr"),
        ({"block_mask": MASK, "indptr": INDPTR}, "indptr was given without indices"),
        ({"q2k_num": MASK}, "q2k_num was given without q2k_indices"),
        ({"q2k_num": MASK, "block_mask": MASK}, "q2k_num was given without q2k_indices"),
        ({"q2k_indices": MASK, "block_mask": MASK}, "q2k_indices excludes block_mask"),  # F16
        (
            {"q2k_indices": MASK, "indptr": INDPTR, "indices": INDICES},
            "q2k_indices excludes indptr/indices",
        ),
    ],
)
def test_presence(given, message):
    with pytest.raises(ValueError, match=message):
        check_presence(PROBLEM, **{**ABSENT, **given})


def test_presence_of_128_token_blocks():
    problem = Problem(256, 512, 128, 4, 2, 128, "bfloat16", 0.1, 0)
    for name in ("kv_block_lens", "q2k_indices"):
        with pytest.raises(ValueError, match=f"{name} needs 64-token blocks, got R = C = 128"):
            check_presence(problem, **{**ABSENT, "block_mask": MASK, name: LENS})


@pytest.mark.parametrize(
    "given",
    [
        {"block_mask": MASK},
        {"indptr": INDPTR, "indices": INDICES},
        {"block_mask": MASK, "indptr": INDPTR, "indices": INDICES, "kv_block_lens": LENS},
        {"q2k_indices": MASK, "q2k_num": MASK, "kv_block_lens": LENS},
    ],
)
def test_good_presence(given):
    check_presence(PROBLEM, **{**ABSENT, **given})


# --------------------------------------------------------------------------------- metadata


def never():
    raise AssertionError("CPU metadata must not ask for the device")


@pytest.mark.parametrize(
    "given",
    [
        {"block_mask": MASK},
        {"block_mask": MASK[:2].astype(np.uint8)},
        {"block_mask": np.asfortranarray(MASK)},
        {"indptr": INDPTR.astype(np.int32), "indices": INDICES},
        {"indptr": INDPTR, "indices": np.empty(0, np.int32)},
        {"kv_block_lens": LENS[::-1]},
    ],
)
def test_good_metadata(given):
    check_metadata(PROBLEM, never, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"indptr": INDPTR[:4]}, r"indptr must have shape \(MB \+ 1,\) = \(5,\), got \(4,\)"),
        ({"indptr": INDPTR[None]}, r"indptr must have shape"),
        ({"indptr": INDPTR.astype(np.int16)}, "indptr must be int32 or int64, got int16"),
        ({"indptr": INDPTR.astype(np.float32)}, "indptr must be int32 or int64, got float32"),
        ({"indices": INDICES[None]}, r"indices must have one axis, got shape \(1, 4\)"),
        ({"indices": INDICES.astype(np.uint32)}, "indices must be int32 or int64, got uint32"),
        (
            {"block_mask": MASK.transpose(0, 2, 1)},  # F25
            r"block_mask must have shape .* = \(4, 4, 8\) or \(2, 4, 8\), got \(4, 8, 4\)",
        ),
        ({"block_mask": MASK[0]}, r"got \(4, 8\)"),
        ({"block_mask": MASK[:3]}, r"got \(3, 4, 8\)"),
        ({"block_mask": MASK.astype(np.int32)}, "block_mask must be bool or uint8, got int32"),
        ({"kv_block_lens": np.ones(9, int)}, r"kv_block_lens must have shape \(NB,\) = \(8,\)"),
        ({"kv_block_lens": np.ones(8)}, "kv_block_lens must be int32 or int64, got float64"),
        ({"q2k_indices": MASK[0]}, r"q2k_indices must have shape .* = \(4, 4, topk\)"),
        ({"q2k_indices": MASK[:2]}, r"= \(4, 4, topk\), got \(2, 4, 8\)"),
        (
            {"q2k_indices": np.ones((4, 4, 0), np.int32)},  # F14
            r"topk .* must be in \[1, NB\] = \[1, 8\], got 0",
        ),
        ({"q2k_indices": np.ones((4, 4, 9), np.int32)}, r"= \[1, 8\], got 9"),
        ({"q2k_indices": np.ones((4, 4, 3), np.int64)}, "q2k_indices must be int32, got int64"),
        (
            {"q2k_indices": np.ones((4, 4, 3), np.int32)},
            r"q2k_indices must be on the plan's device cuda:0, got cpu:0",
        ),
        ({"q2k_num": np.ones((4, 5), np.int32)}, r"q2k_num must have shape .* = \(4, 4\)"),
        ({"q2k_num": np.ones((4, 4), np.int64)}, "q2k_num must be int32, got int64"),  # F17
    ],
)
def test_bad_metadata(given, message):
    with pytest.raises(ValueError, match=message):
        check_metadata(PROBLEM, never, **given)


@pytest.mark.parametrize(
    "name", ["indptr", "indices", "block_mask", "kv_block_lens", "q2k_indices", "q2k_num"]
)
def test_what_is_no_tensor(name):
    for value in ([[1]], 3, "x"):
        with pytest.raises(TypeError, match=f"^{name} must be a tensor"):
            check_metadata(PROBLEM, never, **{name: value})


def test_devices(monkeypatch):
    fake_cupy.install(monkeypatch)
    on = fake_cupy.Ndarray
    lists = np.arange(4 * 4 * 3, dtype=np.int32).reshape(4, 4, 3)
    num = np.ones((4, 4), np.int32)
    good = {
        "block_mask": MASK,
        "indptr": INDPTR,
        "indices": INDICES,
        "kv_block_lens": LENS,
        "q2k_indices": lists,
        "q2k_num": num,
    }
    for name, value in good.items():
        check_metadata(PROBLEM, lambda: 1, **{name: on(value, 1)})
        with pytest.raises(
            ValueError, match=f"{name} must be on .*the plan's device cuda:1, got cuda:0"
        ):
            check_metadata(PROBLEM, lambda: 1, **{name: on(value, 0)})


def test_q2k_must_be_contiguous(monkeypatch):  # F18
    fake_cupy.install(monkeypatch)
    wide = np.arange(4 * 4 * 6, dtype=np.int32).reshape(4, 4, 6)
    for name, value in (("q2k_indices", wide[:, :, ::2]), ("q2k_num", wide[0, :, :4])):
        with pytest.raises(ValueError, match=f"{name} must be contiguous, got strides"):
            check_metadata(PROBLEM, lambda: 0, **{name: fake_cupy.Ndarray(value)})


def test_topk_of_an_update(monkeypatch):
    fake_cupy.install(monkeypatch)
    lists = fake_cupy.Ndarray(np.ones((4, 4, 3), np.int32))
    check_metadata(PROBLEM, lambda: 0, q2k_indices=lists, topk=3)
    with pytest.raises(ValueError, match="keep the plan's topk = 4, got 3"):
        check_metadata(PROBLEM, lambda: 0, q2k_indices=lists, topk=4)


def test_other_device_types():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="on the CPU or on the plan's device cuda:0, got meta:0"):
        check_metadata(
            PROBLEM, never, block_mask=torch.ones(4, 4, 8, dtype=torch.bool, device="meta")
        )
