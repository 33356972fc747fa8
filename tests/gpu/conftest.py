"""Fixtures of the GPU tests. They need torch, and a GPU that has cubins (marker `gpu`)."""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cakert import routes, vsa_device
from cakert.runtime import driver

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, absent = [], []
    for item in items:
        ours = HERE in item.path.parents
        if ours:
            item.add_marker(pytest.mark.gpu)
        (absent if ours and not has_kernel(item) else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=absent)


def has_kernel(item: pytest.Item) -> bool:
    """Whether a test's family has a kernel for the shape that its parameters name."""
    given = getattr(getattr(item, "callspec", None), "params", {})
    if "family" not in given:
        return True
    shape = {"R": given.get("block"), "head_dim": given.get("head_dim")}
    return given["family"].partition("-")[0] in routes.families(**shape)


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A hang ends the process with every thread's stack, instead of waiting for ever (F9)."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def much_memory() -> Iterator[None]:
    """One test at a time of those that take tens of GiB, in whichever process (xdist)."""
    path = Path(tempfile.gettempdir()) / f"cakert-much-memory-{os.getuid()}"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        # torch keeps what it was given; nobody else could have it.
        gc.collect()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


# Small problems have fewer rows than a GPU has SMs. With "-2sms" plans take the GPU for one of two
# SMs: a thread block has many groups, or a row of sm90_split is divided among its warpgroups only.
@pytest.fixture(params=[*routes.families(), "sm90_group-2sms", "sm90_split-2sms"])
def family(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every kernel family that the GPU runs, in turn; plans of the test take no other."""
    name, _, small = request.param.partition("-")
    capability = driver.device_capability(0)
    if name not in routes.families(capability):
        pytest.skip(f"{name} has no kernels for compute capability {capability}")
    if small:
        monkeypatch.setattr(vsa_device, "_multiprocessors", lambda device: 2)
    with routes.only(name):
        yield name
