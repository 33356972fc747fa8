"""Files that the tests of `cakert inspect` share."""

from __future__ import annotations

import pytest
from helpers import cuda_tools


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """What nvcc makes of kernels.cu, by file name; skips where there is no nvcc 13."""
    if reason := cuda_tools.why_no_compiler():
        pytest.skip(reason)
    return cuda_tools.build_all(tmp_path_factory.mktemp("built"))
