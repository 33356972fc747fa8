"""What the tests of explanations share."""

from __future__ import annotations

import pytest

from cakert import sim


@pytest.fixture
def h200():
    with sim.device("sm_90a", sms=132) as device:
        yield device
