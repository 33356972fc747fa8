"""What the whole suite shares: the markers `gpu` and `full`, the project's folder, numbers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also run the tests marked `full`")


def why_no_gpu() -> str:
    """The reason to skip GPU tests here; empty where they can run."""
    from cakert.cubins import store
    from cakert.errors import CudaError, DriverNotFoundError
    from cakert.runtime import driver

    supported = store().capabilities
    try:
        found = [driver.device_capability(index) for index in range(driver.device_count())]
    except DriverNotFoundError:
        return "no NVIDIA driver"
    except CudaError as problem:
        return f"the NVIDIA driver does not work here: {problem}"
    if not found:
        return "the NVIDIA driver sees no GPU"
    if not set(found).intersection(supported):
        return f"compute capability {found[0]} has no cubins, only {list(supported)}"
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full") and "full" not in config.getoption("-m"):
        full = [item for item in items if item.get_closest_marker("full")]
        if full:
            config.hook.pytest_deselected(items=full)
            items[:] = [item for item in items if not item.get_closest_marker("full")]
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    # The driver is asked only where a test needs it: importing and collecting must not touch it.
    if on_gpu and (reason := why_no_gpu()):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def project() -> Path:
    """The repository's root (the tests need not run against the package that stands there)."""
    return PROJECT


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers in every run; the seed is printed with a failure, CAKERT_SEED repeats it."""
    seed = int(os.environ.get("CAKERT_SEED", np.random.SeedSequence().entropy % 2**32))
    print(f"CAKERT_SEED={seed}")
    return np.random.default_rng(seed)
