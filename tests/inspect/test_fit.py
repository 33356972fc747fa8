"""What loads where, and the sentence for what does not."""

from __future__ import annotations

import dataclasses

import pytest

from cakert.cubins import TARGETS_OF, store
from cakert.errors import STATUS_TABLE
from cakert.inspect import CubinRecord, PtxRecord, inspect_file
from cakert.inspect.fit import best_cubin, ptx_loads_on, rank, runs_on, where, why_not


def cubin(target: str, **fields) -> CubinRecord:
    values = {
        "target": target,
        "toolkit": "Cuda compilation tools, release 13.0, V13.0.88",
        "flags": 0x6005A04,
        "abi_version": 8,
        "relocatable": False,
        "size": 1000,
        "global_bytes": 0,
        "constant_banks": (),
        "kernels": ("some kernel",),
    }
    return CubinRecord(**{**values, **fields})


@pytest.mark.parametrize(
    ("target", "runs", "does_not"),
    [
        ("sm_90", [(9, 0)], [(8, 9), (10, 0), (12, 0)]),
        ("sm_90a", [(9, 0)], [(10, 0)]),
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(8, 7), (7, 5), (9, 0)]),
        ("sm_86", [(8, 6), (8, 9)], [(8, 0), (8, 7)]),
        ("sm_87", [(8, 7)], [(8, 6), (8, 9)]),
        ("sm_100", [(10, 0), (10, 3)], [(9, 0), (11, 0), (12, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3), (9, 0), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(9, 0), (10, 1), (12, 0)]),
        ("sm_101a", [(10, 1)], [(10, 0), (10, 3), (11, 0)]),
        ("sm_103a", [(10, 3)], [(10, 0)]),
        ("sm_103f", [(10, 3)], [(10, 0)]),
        ("sm_120f", [(12, 0), (12, 1)], [(10, 0)]),
    ],
)
def test_where_machine_code_runs(target, runs, does_not):
    assert all(runs_on(target, capability) for capability in runs)
    assert not any(runs_on(target, capability) for capability in does_not)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("sm_80", "8.x from 8.0 on"),
        ("sm_87", "8.7 alone"),
        ("sm_90a", "9.0 alone"),
        ("sm_103f", "10.x from 10.3 on"),
        ("unknown", "unknown"),
    ],
)
def test_where_machine_code_runs_in_words(target, text):
    assert where(target) == text


def test_it_agrees_with_the_stores_table():
    for capability, targets in TARGETS_OF.items():
        assert all(runs_on(target, capability) for target in targets)


@pytest.mark.parametrize("target", ["unknown", "", "sm_", "sm_9", "gfx90a"])
def test_an_unknown_target_is_not_judged(target):
    assert runs_on(target, (9, 0)) is None and ptx_loads_on(target, (9, 0)) is None


@pytest.mark.parametrize(
    ("target", "loads", "does_not"),
    [
        ("compute_80", [(8, 0), (9, 0), (12, 0)], [(7, 5)]),
        ("compute_86", [(8, 6), (9, 0)], [(8, 0)]),
        ("sm_90a", [(9, 0)], [(10, 0), (8, 0)]),
        ("compute_100f", [(10, 0), (10, 3)], [(12, 0), (9, 0)]),
    ],
)
def test_where_ptx_is_compiled(target, loads, does_not):
    assert all(ptx_loads_on(target, capability) for capability in loads)
    assert not any(ptx_loads_on(target, capability) for capability in does_not)


def test_the_best_image_of_several():
    several = [cubin(target) for target in ("sm_80", "sm_90", "sm_90a", "sm_100f", "sm_103a")]
    assert best_cubin(several, (9, 0)).target == "sm_90a"
    assert best_cubin(several, (8, 9)).target == "sm_80"
    assert best_cubin(several, (10, 0)).target == "sm_100f"
    assert best_cubin(several, (10, 3)).target == "sm_103a"
    assert best_cubin(several, (12, 0)) is None
    linkable = dataclasses.replace(several[1], relocatable=True)
    assert best_cubin([linkable], (9, 0)) is None
    order = ["unknown", "sm_80", "sm_90", "sm_90a", "sm_100f", "sm_100a", "sm_103"]
    assert sorted(set(order), key=rank) == order


def test_the_shipped_cubins_are_known():
    for target in ("sm_90", "sm_90a", "sm_100a", "sm_103a"):
        entry = next(entry for entry in store().entries if entry.target == target)
        assert inspect_file(store().root / entry.file).cubin.target == target
        capability = {"sm_90": (9, 0), "sm_90a": (9, 0), "sm_100a": (10, 0), "sm_103a": (10, 3)}
        assert runs_on(target, capability[target])


@pytest.mark.parametrize("status", [200, 209, 300])
def test_no_code_for_the_device(status):
    images = (cubin("sm_100a"), cubin("sm_80"))
    text = why_not(status, images, (PtxRecord("9.0", "sm_100", ("k",)),), (9, 0), 13000)
    for part in ("sm_100a (compute capability 10.0 alone)", "sm_80 (compute capability 8.x from",
                 "PTX for sm_100", "9.0", "sm_90"):  # fmt: skip
        assert part in text, (part, text)
    only = (PtxRecord("9.0", "sm_100a", ("k",)),)
    assert "no machine code" in why_not(status, (), only, (9, 0), 13000)
    empty = why_not(status, (cubin("sm_90", kernels=()),), (), (9, 0), 13000)
    assert empty == "it holds no kernel" == why_not(status, (), (), (9, 0), 13000)
    assert "0x06005a04" in why_not(status, (cubin("unknown"),), (), (9, 0), 13000)


def test_a_driver_that_is_too_old():
    text = why_not(200, (cubin("sm_90"),), (), (9, 0), 12080)
    for part in ("toolkit 13.0", "CUDA 12.8", "580"):
        assert part in text, (part, text)
    older = cubin("sm_90", toolkit="release 12.9")
    assert "12.9" not in why_not(200, (older,), (), (9, 0), 12040), "same major: it loads"
    assert "update" in why_not(35, (cubin("sm_90"),), (), (9, 0), 12080)
    assert "update" in why_not(36, (older,), (), (9, 0), 13000)


def test_code_that_is_to_be_linked():
    for status in (200, 209, 500):
        text = why_not(status, (cubin("sm_90", relocatable=True),), (), (9, 0), 13000)
        assert "-rdc=true" in text and "nvlink" in text
    assert why_not(500, (cubin("sm_90"),), (), (9, 0), 13000) == ""


def test_a_fitting_image_that_is_refused():
    text = why_not(200, (cubin("sm_90a"),), (), (9, 0), 13000)
    assert "damaged" in text and "SHA-256" in text and "sm_90a" in text


def test_ptx_that_cannot_be_compiled():
    held = (PtxRecord("9.1", "sm_80", ("k",)),)
    newer = why_not(222, (cubin("sm_100a"),), held, (9, 0), 13000)
    assert "9.1 for sm_80" in newer and "CUDA 13.0" in newer and "update" in newer
    broken = why_not(218, (), held, (9, 0), 13000)
    assert "9.1 for sm_80" in broken and "build a cubin for sm_90" in broken
    silent = why_not(209, (), held, (9, 0), 13000)
    assert "malformed or newer than the driver (CUDA 13.0)" in silent


@pytest.mark.parametrize(
    "status", sorted(set(STATUS_TABLE) - {35, 36, 200, 209, 218, 222, 300, 500})
)
def test_of_other_failures_the_file_says_nothing(status):
    assert why_not(status, (cubin("sm_100a"),), (), (9, 0), 13000) == ""
