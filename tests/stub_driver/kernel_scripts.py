"""What the scripts about Library, Kernel and Launcher begin with."""

from __future__ import annotations

import textwrap
from typing import Any

from helpers.stub import StubResult, run_with_stub

# One image with a kernel of five parameters and one of three; tensors in "GPU" memory.
PRELUDE = """
import ctypes, gc, threading
import numpy as np
import cakert
from helpers.fake_tensor import FakeCai, FakeCuda
from stub_child import (
    address_of, begin_capture, context_depth, driver_call, end_capture, fail, failure,
    make_current, mark, new_stream, report,
)
from tiny_cubin import tiny_cubin

rng = np.random.default_rng()
image = tiny_cubin({"mix": (8, 4, 8, 4, 16), "add": (8, 8, 4)}, max_threads=512)
def array(*shape): return rng.standard_normal(shape).astype(np.float32)
def current():
    from cakert.runtime import driver
    return driver.current_device()
"""


def run(script: str, **options: Any) -> StubResult:
    """`run_with_stub` of the prelude and `script`."""
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)
