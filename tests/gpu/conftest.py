"""Fixtures of the GPU tests. They need torch, and a GPU that has cubins (marker `gpu`)."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cakert import routes
from cakert.runtime import driver

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A hang ends the process with every thread's stack, instead of waiting for ever (F9)."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(params=routes.families())
def family(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every kernel family that the GPU runs, in turn; plans of the test take no other."""
    capability = driver.device_capability(0)
    if request.param not in routes.families(capability):
        pytest.skip(f"{request.param} has no kernels for compute capability {capability}")
    with routes.only(request.param):
        yield request.param


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Fresh numbers in every run; the seed is printed with a failure, CAKERT_SEED repeats it."""
    seed = int(os.environ.get("CAKERT_SEED", np.random.SeedSequence().entropy % 2**32))
    print(f"CAKERT_SEED={seed}")
    return np.random.default_rng(seed)
