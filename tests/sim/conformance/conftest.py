"""Fixtures of the conformance tests: kernels of other projects, compiled here, on the simulator.

`tools/get_conformance.sh` fetches them. Without them, or without nvcc, the tests skip with the
reason; nothing of theirs is in this repository.
"""

from __future__ import annotations

import os
import zlib

import numpy as np
import pytest
from conformance_build import Toolchain, why_unavailable


@pytest.fixture(scope="session")
def toolchain(tmp_path_factory: pytest.TempPathFactory) -> Toolchain:
    """Turns the fetched sources into PTX, once a session for each kernel and target."""
    return Toolchain(tmp_path_factory.mktemp("conformance"))


@pytest.fixture
def flashinfer(toolchain: Toolchain) -> Toolchain:
    """The toolchain where the kernels of the flashinfer wheel can be compiled; skips elsewhere."""
    if reason := why_unavailable("flashinfer"):
        pytest.skip(reason)
    return toolchain


@pytest.fixture
def triton(toolchain: Toolchain) -> Toolchain:
    """The toolchain where Triton's compiler can be used; skips elsewhere."""
    if reason := why_unavailable("triton"):
        pytest.skip(reason)
    return toolchain


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Another one in every run, shown with a failure; CAKERT_SEED repeats it. Varies by test."""
    drawn = int(os.environ.get("CAKERT_SEED", np.random.SeedSequence().entropy % 2**32))
    print(f"CAKERT_SEED={drawn}")
    return drawn ^ zlib.crc32(request.node.name.encode())


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)
