"""Workspace and DeviceArray on the stub driver, whose device memory is host memory."""

from __future__ import annotations

import textwrap

import pytest
from helpers.stub import run_with_stub

PRELUDE = """
import ctypes, gc, threading
import ml_dtypes
import numpy as np
from cakert.runtime import driver, tensor
from cakert.runtime.memory import DeviceArray, Workspace, copy_to_host
from helpers.fake_tensor import FakeCai, FakeCuda
from stub_child import (
    begin_capture, context_depth, end_capture, failure, make_current, mark, new_stream, report,
)
rng = np.random.default_rng()
def array(*shape): return rng.standard_normal(shape).astype(np.float32)
"""


def run(script: str, **options):
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)


def test_a_workspace_round_trip_and_its_end():
    result = run(
        """
        w = Workspace(1, 4096)
        x, rows = array(5, 7), rng.integers(1, 60000, (6, 10)).astype(np.uint16)
        w.copy_in(x[:, ::2], offset=64)
        w.copy_rows_in(rows, 32, offset=1024)
        back = w.to_numpy(np.float32, (5, 4), offset=64)
        pitched = w.to_numpy("uint16", (6, 16), offset=1024)
        assert np.array_equal(back, x[:, ::2])
        assert np.array_equal(pitched[:, :10], rows)
        assert driver.current_device() == 0 and context_depth() == 0
        report([w.device, w.nbytes, w.pointer % 256])
        mark("end of it")
        del w
        """,
        devices=2,
    )
    assert result.report == [1, 4096, 0]
    assert result.trace.after("end of it").names().count("cuMemFree") == 1
    assert result.trace.leaks()["blocks"] == 0


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ("Workspace(0, -1)", "ValueError", "nbytes"),
        ("Workspace(2, 16)", "ValueError", "[0, 2)"),
        ("Workspace(-1, 16)", "ValueError", "got -1"),
        ("w.copy_in(np.ones(65, np.uint8))", "ValueError", "workspace of 64"),
        ("w.copy_in(np.ones(8, np.uint8), offset=57)", "ValueError", "[57, 65)"),
        ("w.copy_rows_in(np.ones((4, 16), np.uint8), 15)", "ValueError", "at least 16"),
        ("w.copy_rows_in(np.ones((5, 4), np.uint8), 16)", "ValueError", "[0, 68)"),
        ("w.copy_rows_in(np.ones(4, np.uint8), 16)", "ValueError", "2 axes"),
        ("w.to_numpy(np.float32, 17)", "ValueError", "[0, 68)"),
        ("w.copy_in(np.ones(4, np.uint8), 'legacy')", "TypeError", "stream"),
    ],
)
def test_what_a_workspace_refuses(call, kind, says):
    result = run(
        f"""
        w = Workspace(0, 64)
        report([failure(lambda: {call}), context_depth()])
        """,
        devices=2,
    )
    error, depth = result.report
    assert error["type"] == kind and says in error["text"], error
    assert depth == 0


def test_copies_wait_for_themselves_only_where_no_stream_is_given():
    result = run(
        """
        w, x = Workspace(0, 64), array(16)
        stream = new_stream()
        mark("own")
        w.copy_in(x)
        mark("given")
        w.copy_in(x, stream)
        w.copy_rows_in(x.reshape(4, 4), 16, stream)
        mark("end")
        report(stream)
        """
    )
    own, given = result.trace.after("own"), result.trace.after("given")
    (copy,) = own.named("cuMemcpyHtoDAsync")
    (wait,) = own.named("cuStreamSynchronize")
    assert copy["stream"] == wait["stream"] not in (0, 1, 2), "the legacy stream may be captured"
    assert {c["stream"] for c in given.named("cuMemcpyHtoDAsync", "cuMemcpy2DAsync")} == {
        result.report
    }
    assert not given.named("cuStreamSynchronize", "cuCtxSynchronize")


def test_clear_writes_zeros_in_stream_order():
    result = run(
        """
        w = Workspace(0, 64)
        w.copy_in(array(16))
        stream = new_stream()
        mark("given")
        w.clear(stream)
        mark("own")
        w.copy_in(array(4), offset=48)
        zeros = w.to_numpy(np.uint8, 48).tolist()
        w.clear()
        report([stream, zeros, w.to_numpy(np.uint8, 64).tolist(), context_depth()])
        """
    )
    stream, first, all_of_it, depth = result.report
    assert not any(first) and not any(all_of_it) and depth == 0
    given, own = result.trace.after("given"), result.trace.after("own")
    assert given.named("cuMemsetD8Async")[0]["stream"] == stream
    (clear,) = own.named("cuMemsetD8Async")
    assert clear["stream"] not in (0, stream)
    assert own.named("cuStreamSynchronize")[-1]["stream"] == clear["stream"]


def test_an_empty_workspace_has_no_memory():
    result = run(
        """
        w = Workspace(0, 0)
        w.clear()
        w.copy_in(np.ones(0))
        report([w.pointer, w.to_numpy(np.float32, (0, 3)).shape])
        """
    )
    assert result.report == [0, [0, 3]]
    assert not result.trace.named("cuMemAlloc", "cuMemFree", "cuMemcpyHtoDAsync", "cuMemcpyDtoH")


def test_out_of_memory_says_how_much_was_asked_for():
    result = run(
        """
        report([failure(lambda: Workspace(0, 12345)),
                failure(lambda: DeviceArray.empty((3, 5), np.float32)), context_depth()])
        """,
        fail={"cuMemAlloc": 2, "cuMemAllocAsync": 2},
    )
    plain, ordered, depth = result.report
    for error, nbytes in ((plain, "12345 bytes on cuda:0"), (ordered, "60 bytes on cuda:0")):
        assert error["type"] == "CudaError" and error["status"] == 2
        assert nbytes in error["text"] and "free tensors" in error["text"]
    assert depth == 0


def test_a_workspace_comes_and_goes_while_another_thread_captures():
    result = run(
        """
        make_current(0)
        stream, outcome = new_stream(), []
        begin_capture(stream)
        def work():
            w = Workspace(0, 256)
            w.copy_in(array(64))
            del w
            outcome.append("done")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        report([outcome, end_capture(stream)])
        """
    )
    assert result.report == [["done"], "CUDA_SUCCESS"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "uint8"])
def test_a_device_array_round_trip(dtype):
    result = run(
        f"""
        dtype = np.dtype(getattr(ml_dtypes, {dtype!r}, None) or {dtype!r})
        x = rng.integers(0, 100, (4, 1, 6)).astype(dtype)
        d = DeviceArray.from_numpy(x[::2])
        assert np.array_equal(d.numpy(), x[::2])
        d.copy_from(x[1::2])
        assert np.array_equal(d.numpy(), x[1::2])
        info = tensor.describe(d)
        report([list(d.shape), d.dtype.name, d.nbytes, d.device, d.stream,
                info.pointer == d.pointer, info.dtype, list(info.strides),
                info.device_type, info.framework, len(d)])
        del d
        """
    )
    shape, name, nbytes, device, stream, same, seen, strides, kind, framework, length = (
        result.report
    )
    assert (shape, name, seen, length) == ([2, 1, 6], dtype, dtype, 2)
    assert nbytes == 12 * {"float32": 4, "int64": 8, "bool": 1, "uint8": 1}.get(dtype, 2)
    assert (device, stream, same, strides, kind, framework) == (0, 0, True, [6, 6, 1], 2, "cakert")
    assert result.trace.leaks()["blocks"] == 0


def test_a_device_array_lives_in_the_order_of_its_stream():
    result = run(
        """
        stream = new_stream(1)
        d = DeviceArray.from_numpy(array(3, 4), device=1, stream=stream)
        again = d.numpy()
        assert (d.device, d.stream) == (1, stream)
        assert tensor.current_stream(d, 1) == stream
        del d
        report([stream, context_depth(), driver.current_device()])
        """,
        devices=2,
    )
    stream, depth, device = result.report
    calls = result.trace.named(
        "cuMemAllocAsync", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemFreeAsync"
    )
    assert len(calls) == 4
    assert {call["stream"] for call in calls} == {stream}
    assert (depth, device) == (0, 0)


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        ("DeviceArray.empty((2, -1), 'float32')", "ValueError", "(2, -1)"),
        ("DeviceArray.empty((1,) * 17, 'float32')", "ValueError", "16"),
        ("DeviceArray.empty(3, object)", "TypeError", "dtype"),
        ("DeviceArray.empty(3, 'float32', device=7)", "ValueError", "[0, 1)"),
        ("DeviceArray((2, 3))", "TypeError", "DeviceArray.empty"),
        ("d.copy_from(array(3, 2))", "ValueError", "(2, 3)"),
        ("d.copy_from(array(2, 3).astype('f8'))", "ValueError", "float64"),
        ("d.__dlpack__(dl_device=(1, 0))", "BufferError", "dl_device"),
        ("d.__dlpack__(copy=True)", "BufferError", "copy"),
        ("d.__dlpack__(stream=0)", "ValueError", "got 0"),
        ("len(DeviceArray.empty((), 'int8'))", "TypeError", "no length"),
    ],
)
def test_what_a_device_array_refuses(call, kind, says):
    result = run(
        f"""
        d = DeviceArray.from_numpy(array(2, 3))
        report(failure(lambda: {call}))
        """
    )
    assert result.report["type"] == kind and says in result.report["text"], result.report


@pytest.mark.parametrize("version", ["(1, 0)", "(1, 3)", "(0, 8)", "None"])
def test_capsules_keep_the_array_until_they_end(version):
    """Consumed or dropped, a capsule gives its reference back exactly once."""
    result = run(
        f"""
        import sys
        class Consumer:  # a type that the runtime knows by capsules only
            def __init__(self, source): self.source = source
            def __dlpack_device__(self): return self.source.__dlpack_device__()
            def __dlpack__(self, **keywords):
                return self.source.__dlpack__(stream=keywords["stream"], max_version={version})
        d = DeviceArray.from_numpy(array(2, 3))
        before = sys.getrefcount(d)
        capsule = d.__dlpack__(max_version={version})
        name = repr(capsule)
        held = sys.getrefcount(d) - before
        del capsule
        dropped = sys.getrefcount(d) - before
        consumer = Consumer(d)
        more = sys.getrefcount(d)
        info = tensor.describe(consumer)
        report([name, held, dropped, sys.getrefcount(d) - more, info.pointer == d.pointer,
                info.readonly])
        """
    )
    name, held, dropped, consumed, same, readonly = result.report
    assert ("dltensor_versioned" in name) == (version in ("(1, 0)", "(1, 3)"))
    assert (held, dropped, consumed, same, readonly) == (1, 0, 0, True, False)


@pytest.mark.parametrize(
    ("own", "consumer", "waits"),
    [
        ("0", "None", False),
        ("0", "1", False),
        ("0", "-1", False),
        ("0", "other", True),
        ("stream", "other", True),
        ("stream", "1", True),
        ("stream", "None", True),
        ("stream", "stream", False),
        ("stream", "-1", False),
    ],
)
def test_consumers_are_ordered_by_an_event(own, consumer, waits):
    result = run(
        f"""
        stream, other = new_stream(), new_stream()
        d = DeviceArray.empty((2, 3), "bfloat16", stream={own})
        mark("export")
        d.__dlpack__(stream={consumer})
        mark("end")
        report([d.stream, {consumer}])
        """
    )
    ours, theirs = result.report
    calls = result.trace.after("export")
    assert [call["stream"] for call in calls.named("cuEventRecord")] == [ours] * waits
    expected = [1 if theirs is None else theirs] * waits
    assert [call["stream"] for call in calls.named("cuStreamWaitEvent")] == expected
    assert not calls.named("cuStreamSynchronize", "cuCtxSynchronize")
    assert result.trace.leaks()["events"] == 0


def test_the_array_interface_names_the_stream():
    result = run(
        """
        stream = new_stream()
        plain = DeviceArray.from_numpy(array(2, 3)).__cuda_array_interface__
        on_stream = DeviceArray.from_numpy(array(2, 3), stream=stream).__cuda_array_interface__
        bf16 = DeviceArray.empty(3, "bfloat16")
        report([plain["version"], plain["typestr"], list(plain["shape"]), plain["stream"],
                on_stream["stream"] == stream, hasattr(bf16, "__cuda_array_interface__")])
        """
    )
    assert result.report == [3, "<f4", [2, 3], 1, True, False]


@pytest.mark.parametrize(
    "view", ["x", "x[:, ::2]", "x[::-1]", "x.transpose(2, 0, 1)", "x[1, 2, 3]", "x[:0]"]
)
@pytest.mark.parametrize("kind", ["FakeCuda", "FakeCai"])
def test_copies_to_the_host_of_any_strides(kind, view):
    result = run(
        f"""
        base = DeviceArray.from_numpy(array(4, 5, 6))
        # The stub's device memory can be read here: a numpy view of it with the strides wanted.
        memory = (ctypes.c_float * 120).from_address(base.pointer)
        x = np.frombuffer(memory, np.float32).reshape(4, 5, 6)
        source = np.asarray({view})
        result = copy_to_host({kind}(source))
        report([result.shape == source.shape, bool(np.array_equal(result, source)),
                result.flags.c_contiguous, bool(np.shares_memory(result, x))])
        """
    )
    assert result.report == [True, True, True, False]


def test_copies_to_the_host_refuse_host_tensors():
    result = run("report(failure(lambda: copy_to_host(array(3))))")
    assert result.report["type"] == "ValueError" and "the CPU" in result.report["text"]


def test_memory_that_is_alive_at_exit_is_left_to_the_driver():
    """F45: no call into a driver that may be shutting down, and no message."""
    result = run(
        """
        class Holder:
            def __del__(self): self.workspace.nbytes
        holder = Holder()
        holder.workspace, holder.array = Workspace(0, 64), DeviceArray.empty(3, "float32")
        holder.me = holder
        mark("exit")
        """
    )
    assert result.stderr == ""
    assert not result.trace.named("cuMemFree", "cuMemFreeAsync")
