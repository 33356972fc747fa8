"""What the scripts of `run_with_stub` use inside their process.

Marks and injected failures go straight to the stub by ctypes, never through the package. None of
these functions initialises the driver, those of the last group excepted.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

REPORT = "REPORT "  # as in helpers/stub.py, which this process need not import


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The stub itself; the loader finds the copy that the bindings use."""
    return ctypes.CDLL("libcuda.so.1")


def report(value: Any) -> None:
    """Hand a JSON value to the test: `StubResult.report`."""
    print(f"\n{REPORT}{json.dumps(value)}", flush=True)


def mark(text: str) -> None:
    """Write a line into the trace; `Trace.after` finds the calls behind it."""
    library().stub_mark(text.encode())


def fail(rules: str) -> None:
    """Replace the injected failures; calls are counted anew, so ``@1`` is the next one."""
    library().stub_fail(rules.encode())


def context_depth() -> int:
    """How many contexts this thread has pushed and not popped."""
    return int(library().stub_context_depth())


def failure(call: Callable[[], object]) -> dict[str, Any]:
    """Type, message and bases of the exception that `call` raises; it must raise one."""
    try:
        value = call()
    except BaseException as error:
        return {
            "type": type(error).__name__,
            "bases": [base.__name__ for base in type(error).__mro__],
            "text": str(error),
            "status": getattr(error, "status", None),
            "name": getattr(error, "name", None),
        }
    raise AssertionError(f"no exception was raised; the call returned {value!r:.200}")


def address_of(array: npt.NDArray[Any]) -> int:
    """Address of an array's first element."""
    return int(array.__array_interface__["data"][0])


# The calls below use the driver like a framework beside the package would.


def driver_call(name: str, *arguments: object) -> Any:
    """Call a function of cuda.bindings.driver; its results without the status, which must be 0."""
    from cuda.bindings import driver

    status, *results = getattr(driver, name)(*arguments)
    assert status == driver.CUresult.CUDA_SUCCESS, f"{name}: {status!r}"
    return results[0] if len(results) == 1 else tuple(results)


def make_current(device: int) -> None:
    """Set the device's primary context in this thread, as a framework's set_device does."""
    driver_call("cuInit", 0)
    driver_call("cuCtxSetCurrent", driver_call("cuDevicePrimaryCtxRetain", device))


def new_stream(device: int = 0, *, blocking: bool = False) -> int:
    """Handle of a new stream of `device`; the current context stays what it was."""
    driver_call("cuInit", 0)
    driver_call("cuCtxPushCurrent", driver_call("cuDevicePrimaryCtxRetain", device))
    stream = int(driver_call("cuStreamCreate", 0 if blocking else 1))
    driver_call("cuCtxPopCurrent")
    return stream


def begin_capture(stream: int, mode: int = 0) -> None:
    """Begin a capture on `stream`; mode 0 is global, 1 thread local, 2 relaxed."""
    from cuda.bindings import driver

    capture_mode = driver.CUstreamCaptureMode(mode)
    driver_call("cuStreamBeginCapture", driver.CUstream(stream), capture_mode)


def end_capture(stream: int) -> str:
    """End it; the name of the status, which is an error where the capture was spoiled."""
    from cuda.bindings import driver

    return str(driver.cuStreamEndCapture(driver.CUstream(stream))[0].name)
