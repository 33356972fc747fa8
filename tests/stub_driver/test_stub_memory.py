"""DeviceArray and Workspace under the stub: allocation order, copies, exports, other devices."""

from __future__ import annotations

import textwrap

import pytest
from helpers.stub import run_with_stub

PRELUDE = """
import gc, threading
import ml_dtypes, numpy as np
import cakert
from cakert import DeviceArray
from cakert.runtime.memory import Workspace
from helpers.fake_tensor import FakeCai, FakeCuda
from stub_child import (
    begin_capture, context_depth, end_capture, fail, failure, make_current, mark, new_stream,
    report,
)
from stub_problem import peek, rng
"""


def run_script(script: str, **options):
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64", "bool", "complex64"])
def test_arrays_come_back_as_they_went(dtype):
    result = run_script(
        f"""
        dtype = np.dtype(getattr(ml_dtypes, {dtype!r}, None) or {dtype!r})
        data = (rng.integers(1, 100, (6, 5, 8)) % 7).astype(dtype)
        strided = data[::-2, :, 1::3]
        for source in (data, strided, strided.transpose(2, 0, 1), data[0, 0, 0], data[:0]):
            array = DeviceArray.from_numpy(source)
            assert array.shape == source.shape and array.dtype == dtype
            back = array.numpy()
            assert back.dtype == dtype and (back == source).all()
        array = DeviceArray.empty((3, 5, 2), {dtype!r})
        assert (array.numpy().view(np.uint8) != 0).any()          # the stub's poison
        array.copy_from(np.ascontiguousarray(strided[:, :, :2]))
        assert (array.numpy() == strided[:, :, :2]).all()
        report([failure(lambda: array.copy_from(data)), failure(lambda: len(
            DeviceArray.from_numpy(data[0, 0, 0]))), array.nbytes, dtype.itemsize])
        del array, source
        gc.collect()
        """
    )
    shape, length, nbytes, itemsize = result.report
    assert shape["type"] == "ValueError" and "(6, 5, 8)" in shape["text"]
    assert length["type"] == "TypeError" and nbytes == 30 * itemsize
    assert result.trace.leaks()["blocks"] == 0
    allocated = result.trace.named("cuMemAllocAsync")
    assert len(allocated) == len(result.trace.named("cuMemFreeAsync")) > 4
    assert not result.trace.named("cuMemAlloc", "cuMemFree")


def test_everything_happens_on_the_stream_of_the_array():
    result = run_script(
        """
        make_current(0)
        stream = new_stream()
        data = rng.standard_normal((4, 3))
        mark("life")
        array = DeviceArray.from_numpy(data, stream=stream)
        assert (array.numpy() == data).all()
        del array
        gc.collect()
        mark("end")
        report(stream)
        """
    )
    calls = result.trace.after("life")
    on_stream = [call["stream"] for call in calls if "stream" in call]
    assert on_stream and set(on_stream) == {result.report}
    assert "cuCtxSynchronize" not in calls.names()


def test_exports_are_ordered_and_keep_the_memory():
    result = run_script(
        """
        make_current(0)
        mine, theirs = new_stream(), new_stream()
        array = DeviceArray.from_numpy(rng.standard_normal(8).astype(np.float32), 0, mine)
        for name, stream in {"theirs": theirs, "mine": mine, "none": -1}.items():
            mark(name)
            array.__dlpack__(stream=stream, max_version=(1, 0))
        mark("default")
        array.__dlpack__()
        mark("refused")
        errors = [failure(lambda: array.__dlpack__(stream=s)) for s in (0, -2)]
        errors += [failure(lambda: array.__dlpack__(copy=True)),
                   failure(lambda: array.__dlpack__(dl_device=(1, 0)))]
        mark("capsule")
        capsule = array.__dlpack__(stream=-1)
        pointer = array.pointer
        del array
        gc.collect()
        kept = peek(pointer, np.float32, (8,))
        mark("capsule gone")
        del capsule
        gc.collect()
        mark("end")
        report([mine, theirs, errors])
        """
    )
    mine, theirs, errors = result.report
    waits = result.trace.after("theirs").named("cuStreamWaitEvent")
    assert [call["stream"] for call in waits] == [theirs]
    assert [c["stream"] for c in result.trace.after("theirs").named("cuEventRecord")] == [mine]
    for quiet in ("mine", "none", "refused"):
        assert not result.trace.after(quiet)
    assert [c["stream"] for c in result.trace.after("default").named("cuStreamWaitEvent")] == [1]
    assert [error["type"] for error in errors] == ["ValueError"] * 2 + ["BufferError"] * 2
    assert not result.trace.after("capsule").named("cuMemFreeAsync")
    assert len(result.trace.after("capsule gone").named("cuMemFreeAsync")) == 1
    leaks = result.trace.leaks()
    assert (leaks["events"], leaks["blocks"]) == (0, 0)


def test_arrays_of_another_device_leave_the_current_one_alone():
    result = run_script(
        """
        make_current(0)
        depth = context_depth()
        data = rng.standard_normal((5, 4))
        array = DeviceArray.from_numpy(data, device=1)
        workspace = Workspace(1, 96)
        workspace.copy_in(np.arange(1, 13.0))
        assert (workspace.to_numpy("float64", 12) == np.arange(1, 13.0)).all()
        assert (array.numpy() == data).all()
        made = DeviceArray.empty(3, "float32")
        report([array.device, array.__dlpack_device__(), made.device, workspace.device])
        del array, workspace, made
        gc.collect()
        assert context_depth() == depth
        """,
        devices=2,
    )
    assert result.report == [1, [2, 1], 0, 1]
    assert [c["current"] for c in result.trace.named("cuMemAlloc", "cuMemFree")] == [1, 1]
    assert result.trace.leaks()["blocks"] == 0


def test_pitched_rows_of_a_workspace():
    result = run_script(
        """
        workspace = Workspace(0, 7 * 16)
        before = peek(workspace.pointer, np.uint8, (7, 16))
        rows = rng.integers(1, 255, (7, 5), dtype=np.uint16)
        workspace.copy_rows_in(rows, 16, 0)
        stored = peek(workspace.pointer, np.uint8, (7, 16))
        assert (stored[:, :10] == rows.view(np.uint8).reshape(7, 10)).all()
        assert (stored[:, 10:] == before[:, 10:]).all()
        report([failure(lambda: workspace.copy_rows_in(rows, 8)),
                failure(lambda: workspace.copy_rows_in(rows, 20)),
                failure(lambda: workspace.copy_in(np.ones(15))),
                failure(lambda: workspace.to_numpy("uint8", 113)),
                failure(lambda: Workspace(0, -1)), failure(lambda: Workspace(1, 16)),
                Workspace(0, 0).pointer])
        """
    )
    *errors, pointer = result.report
    assert [error["type"] for error in errors] == ["ValueError"] * 6 and pointer == 0


def test_memory_may_be_freed_while_another_thread_captures():
    result = run_script(
        """
        make_current(0)
        stream = new_stream()
        workspace = Workspace(0, 1024)
        begin_capture(stream)
        def work():
            global workspace
            other = Workspace(0, 64)
            other.copy_in(np.arange(1, 9.0), new_stream())
            del workspace, other
            gc.collect()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        report(end_capture(stream))
        """
    )
    assert result.report == "CUDA_SUCCESS"
    assert result.trace.leaks()["blocks"] == 0


@pytest.mark.parametrize("call", ["cuMemAllocAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",
                                  "cuStreamSynchronize"])  # fmt: skip
def test_failed_copies_and_allocations(call):
    result = run_script(
        f"""
        def work():
            DeviceArray.from_numpy(rng.standard_normal(100)).numpy()
        fail("{call}=700@1")
        error = failure(work)
        gc.collect()
        report([error, context_depth()])
        """
    )
    error, depth = result.report
    assert error["type"] == "CudaError" and depth == 0
    assert call in error["text"] and "CUDA_ERROR_ILLEGAL_ADDRESS" in error["text"]
    assert result.trace.leaks()["blocks"] == 0


def test_out_of_memory_says_how_much_was_wanted():
    result = run_script(
        """
        report([failure(lambda: DeviceArray.empty((1000, 1000), "float32")),
                failure(lambda: Workspace(0, 2_000_000))])
        """,
        env={"STUB_CUDA_MEMORY": "1000000"},
    )
    for error, wanted in zip(result.report, ("4000000", "2000000"), strict=True):
        assert error["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert wanted in error["text"] and "cuda:0" in error["text"]
        assert "empty the framework's cache" in error["text"]


def test_a_device_array_is_a_tensor_of_run_and_of_launch():
    """The demo's way: arrays of the package in, an array of the package out, one stream."""
    result = run_script(
        """
        from stub_problem import Problem, run
        make_current(0)
        p, stream = Problem(), new_stream()
        plan = p.plan()
        q, k, v, out = (DeviceArray.from_numpy(p.array(n), 0, stream)
                        for n in ("q", "k", "v", "out"))
        mark("run")
        run(plan, q, k, v, out=out)
        mark("end")
        report(stream)
        """
    )
    calls = result.trace.after("run")
    assert [c["stream"] for c in calls.named("cuLaunchKernelEx")] == [result.report]
    allowed = {"cuCtxGetCurrent", "cuTensorMapReplaceAddress", "cuLaunchKernelEx"}
    assert set(calls.names()) <= allowed
