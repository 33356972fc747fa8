"""Fixtures of the simulator's tests."""

import os

import numpy as np
import pytest


@pytest.fixture
def seed():
    """Printed where a test fails; CAKERT_SEED repeats it."""
    return int(os.environ.get("CAKERT_SEED", np.random.SeedSequence().entropy % 2**32))
