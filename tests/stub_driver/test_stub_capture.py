"""Captures of other threads and libraries: what loads, copies and dies beside them."""

from __future__ import annotations

import textwrap

import pytest
from helpers.stub import run_with_stub

PRELUDE = """
import gc
import numpy as np
import cakert
from cakert import DeviceArray
from stub_child import (
    begin_capture, driver_call, end_capture, failure, make_current, mark, new_stream, report,
)
from tiny_cubin import tiny_cubin

rng = np.random.default_rng()
def array(*shape): return rng.standard_normal(shape).astype(np.float32)
make_current(0)
"""


def run(script: str):
    return run_with_stub(PRELUDE + textwrap.dedent(script))


def test_code_is_loaded_and_unloaded_beside_a_capture():
    result = run(
        """
        stream = new_stream(blocking=False)
        begin_capture(stream)
        library = cakert.Library(tiny_cubin({"add": (8, 8, 4)}, max_threads=512))
        library["add"].load_on(0, 60000)
        del library
        gc.collect()
        report(end_capture(stream))
        """
    )
    assert result.report == "CUDA_SUCCESS"
    assert len(result.trace.named("cuLibraryUnload")) == 1


def test_an_array_may_die_beside_a_capture_and_is_freed_later():
    result = run(
        """
        dying = DeviceArray.from_numpy(array(300))
        own = new_stream(blocking=True)
        inside = DeviceArray.empty(5, "float32", stream=own)
        begin_capture(own)
        del dying, inside
        gc.collect()
        mark("died")
        status = end_capture(own)
        del status
        DeviceArray.empty(3, "float32")
        report(0)
        """
    )
    calls = [call["call"] for call in result.trace if "call" in call]
    assert calls.count("cuMemFreeAsync") == 3
    assert result.trace.leaks()["blocks"] == 0


def test_a_host_array_is_not_copied_into_a_graph():
    result = run(
        """
        stream = new_stream(blocking=False)
        target = DeviceArray.empty(64, "float32", stream=stream)
        begin_capture(stream)
        error = failure(lambda: target.copy_from(array(64)))
        report([error, end_capture(stream)])
        """
    )
    error, status = result.report
    assert error["type"] == "RuntimeError" and "copy before capture" in error["text"]
    assert status == "CUDA_SUCCESS"
    assert not [c for c in result.trace.named("cuMemcpyHtoDAsync") if c.get("stream", 0) > 2]


def test_memory_is_not_cleared_into_a_graph_nor_beside_one():
    result = run(
        """
        from cakert.runtime.memory import Workspace

        memory, reports = Workspace(0, 64), []
        for blocking in (False, True):    # the stream itself; one that the legacy stream waits for
            stream = new_stream(blocking=blocking)
            begin_capture(stream)
            error = failure(lambda: memory.clear(0 if blocking else stream))
            reports.append([error, end_capture(stream)])
        report(reports)
        """
    )
    for error, status in result.report:
        assert error["type"] == "RuntimeError" and "copy before capture" in error["text"]
        assert status == "CUDA_SUCCESS"
    assert not result.trace.named("cuMemsetD8Async")


def test_outputs_keep_the_stream_of_their_inputs_alive():
    result = run(
        """
        from cakert import arrays

        from cuda.bindings import driver

        class Stream:
            def __init__(self): self.handle = new_stream()
            def __cuda_stream__(self): return (0, self.handle)
            def __del__(self): driver_call("cuStreamDestroy", driver.CUstream(self.handle))

        like = DeviceArray.from_numpy(array(8), stream=Stream())
        out = arrays.empty(like=like, shape=(4,), dtype="float32")
        del like
        gc.collect()
        mark("kept")
        shape = out.numpy().shape
        del out
        gc.collect()
        report(shape)
        """
    )
    assert result.report == [4]
    names = result.trace.after("kept").names()
    assert names.index("cuMemFreeAsync") < names.index("cuStreamDestroy")


def test_plan_and_update_see_a_capture_on_the_stream_of_an_array():
    result = run(
        """
        from cakert import plan_cake_vsa, update_cake_vsa
        mask = np.ones((1, 2, 3), bool)
        stream = new_stream(blocking=False)
        on_stream = DeviceArray.from_numpy(mask, stream=stream)
        def plan(mask):
            return plan_cake_vsa(None, None, mask, None, None, None, M=128, N=192, R=64, C=64,
                                 num_qo_heads=1, num_kv_heads=1, head_dim=64, q_data_type="float16",
                                 sm_scale=None, device=0)
        ready = plan(on_stream)
        begin_capture(stream)
        mark("inside")
        errors = [failure(lambda: plan(on_stream)),
                  failure(lambda: update_cake_vsa(ready, block_mask=on_stream)),
                  failure(lambda: update_cake_vsa(ready, block_mask=mask))]
        mark("over")
        report([errors, end_capture(stream)])
        """
    )
    errors, status = result.report
    assert "plan before capture" in errors[0]["text"]
    assert all("cannot be captured" in error["text"] for error in errors[1:])
    assert status == "CUDA_SUCCESS"
    assert not any("Memcpy" in name for name in result.trace.after("inside").names())


def test_planning_beside_the_capture_of_another_thread():
    """The planning thread has no current context: it must look at the plan's own device."""
    result = run(
        """
        import threading
        from cakert import plan_cake_vsa, update_cake_vsa
        from cuda.bindings import driver
        driver_call("cuCtxPopCurrent")
        mask = np.ones((1, 2, 3), bool)
        on_device = DeviceArray.from_numpy(mask, device=0)
        def plan(mask):
            return plan_cake_vsa(None, None, mask, None, None, None, M=128, N=192, R=64, C=64,
                                 num_qo_heads=1, num_kv_heads=1, head_dim=64, q_data_type="float16",
                                 sm_scale=None, device=0)
        ready = plan(mask)

        def beside(call):
            begun, done, status = threading.Event(), threading.Event(), []
            def capture():
                make_current(0)
                stream = new_stream(blocking=True)
                begin_capture(stream, 1)
                begun.set()
                done.wait()
                status.append(end_capture(stream))
            thread = threading.Thread(target=capture)
            thread.start()
            begun.wait()
            error = failure(call)
            done.set()
            thread.join()
            return error["text"], status[0]

        report([beside(lambda: plan(on_device)), beside(lambda: plan(mask)),
                beside(lambda: update_cake_vsa(ready, block_mask=on_device)),
                beside(lambda: update_cake_vsa(ready, block_mask=mask))])
        """
    )
    texts, statuses = zip(*result.report, strict=True)
    assert set(statuses) == {"CUDA_SUCCESS"}
    assert all("plan before capture" in text for text in texts[:2]), texts
    assert all("cannot be captured" in text for text in texts[2:]), texts


def test_no_array_is_allocated_inside_a_capture():
    result = run(
        """
        stream = new_stream(blocking=False)
        begin_capture(stream)
        error = failure(lambda: DeviceArray.empty(4, "float32", stream=stream))
        report([error, end_capture(stream)])
        """
    )
    error, status = result.report
    assert error["type"] == "RuntimeError" and "allocate before capture" in error["text"]
    assert status == "CUDA_SUCCESS" and not result.trace.named("cuMemAllocAsync")


@pytest.mark.parametrize("module", ["jax", "tensorflow"])
def test_a_launch_on_jax_arrays_is_waited_for(module):
    result = run(
        f"""
        from helpers.fake_tensor import FakeCuda
        kernel = cakert.Library(tiny_cubin({{"add": (8, 8, 4)}}, max_threads=512))["add"]
        def lend(foreign):
            lent = FakeCuda(array(64))
            if foreign:
                lent.__class__ = type("Array", (type(lent),), {{"__module__": {module!r}}})
            return lent
        for foreign in (False, True):
            launcher = kernel.prepare(lend(False), lend(foreign), 7, grid=1, block=64)
            mark(str(foreign))
            launcher.run(lend(False), lend(foreign))
            mark("end")
        report(0)
        """
    )
    assert "cuStreamSynchronize" not in result.trace.after("False").names()
    names = result.trace.after("True").names()
    assert names.index("cuLaunchKernelEx") < names.index("cuStreamSynchronize")


def test_a_run_on_jax_arrays_is_waited_for():
    """XLA reuses a released array without regard to our stream; others order by streams."""
    result = run(
        """
        from helpers.fake_tensor import FakeCuda
        from stub_problem import Problem

        def Array(values):
            lent = FakeCuda(values)
            lent.__class__ = type("Array", (type(lent),), {"__module__": "jax"})
            return lent

        p = Problem()
        plan = p.plan()
        out = FakeCuda(p.array("out"))
        def go(kind):
            mark(kind.__name__)
            inputs = [kind(p.array(name)) for name in ("q", "k", "v")]
            cakert.run_cake_vsa(plan, *inputs, out=out, lse=None, return_lse=False, backend="cake")
        go(FakeCuda)
        go(Array)
        report(0)
        """
    )
    assert "cuStreamSynchronize" not in result.trace.after("FakeCuda").names()
    names = result.trace.after("Array").names()
    assert names.index("cuLaunchKernelEx") < names.index("cuStreamSynchronize")
