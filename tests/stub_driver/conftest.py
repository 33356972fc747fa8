"""Make tests/helpers and the modules of this folder importable, however pytest was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

# Its checks shall show their values as those of a test module do.
pytest.register_assert_rewrite("tensor_scripts")
