"""What the tests of explanations share."""

from __future__ import annotations

import os

import numpy as np
import pytest

from cakert import sim


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers in every run; the seed is printed with a failure, CAKERT_SEED repeats it."""
    seed = int(os.environ.get("CAKERT_SEED", np.random.SeedSequence().entropy % 2**32))
    print(f"CAKERT_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def h200():
    with sim.device("sm_90a", sms=132) as device:
        yield device
