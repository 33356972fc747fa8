"""What the tests of `cakert run` share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers in every run; the seed is printed with a failure, CAKERT_SEED repeats it."""
    seed = int(os.environ.get("CAKERT_SEED", np.random.SeedSequence().entropy % 2**32))
    print(f"CAKERT_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A folder of its own with run_kernels.cubin and run_kernels.ptx."""
    for file in DATA.glob("run_kernels.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path
