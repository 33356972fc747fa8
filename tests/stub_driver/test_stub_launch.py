"""Kernel.launch and Launcher under the stub: what reaches the driver and what does not."""

from __future__ import annotations

import struct

import pytest
from kernel_scripts import run


def test_launch_passes_the_bytes_of_every_argument():
    result = run(
        """
        x, y = array(3, 4), array(5)
        tail = rng.integers(1, 255, 16, dtype=np.uint8).tobytes()
        stream = new_stream()
        kernel = cakert.Library(image)["mix"]
        kernel.launch(FakeCuda(x), -7, FakeCuda(y), 0.375, tail, grid=(9, 2), block=(32, 4, 2),
                      shared_bytes=60000, cluster=(3, 2, 1), pdl=True, cooperative=True,
                      stream=stream)
        kernel.launch(None, np.uint32(4000000000), np.uint64(1 << 63), ctypes.c_float(-2.5), tail,
                      grid=1, block=64)
        report([address_of(x), address_of(y), tail.hex(), stream])
        """
    )
    x, y, tail, stream = result.report
    first, second = result.trace.named("cuLaunchKernelEx")
    pack = lambda code, value: struct.pack(f"<{code}", value).hex()  # noqa: E731
    assert first["params"] == [pack("Q", x), pack("i", -7), pack("Q", y), pack("f", 0.375), tail]
    assert (first["grid"], first["block"]) == ([9, 2, 1], [32, 4, 2])
    assert (first["shared"], first["stream"], first["device"]) == (60000, stream, 0)
    attributes = {attribute[0]: attribute[1:] for attribute in first["attributes"]}
    cluster, pdl, cooperative = 4, 6, 2  # CUlaunchAttributeID
    assert attributes[cluster] == [3, 2, 1]
    assert attributes[pdl][0] == 1 and attributes[cooperative][0] == 1
    assert not first["cold"], "prepare and launch load the code before they launch it"
    zero = pack("Q", 0)
    wide = pack("Q", 1 << 63)
    assert second["params"] == [zero, pack("I", 4000000000), wide, pack("f", -2.5), tail]
    assert second["attributes"] == [] and second["stream"] == 0


WRONG_ARGUMENTS = {
    "x, 1, 2": ("TypeError", "5"),
    "x, 1, x, 0.5, b'', 3": ("TypeError", "5"),
    "x, 1 << 32, x, 0.5, tail": ("ValueError", "argument 1"),
    "x, -(1 << 31) - 1, x, 0.5, tail": ("ValueError", "argument 1"),
    "x, np.int64(1), x, 0.5, tail": ("ValueError", "argument 1"),
    "x, x, x, 0.5, tail": ("ValueError", "argument 1"),
    "x, 1, ctypes.c_int(1), 0.5, tail": ("ValueError", "argument 2"),
    "x, 1, x, 1e39, tail": ("ValueError", "argument 3"),
    "x, 1, x, 0.5, tail[1:]": ("ValueError", "argument 4"),
    "x, 1, x, 0.5, 5": ("ValueError", "argument 4"),
    "x, 1, object(), 0.5, tail": ("TypeError", "argument 2"),
    "x, None, x, 0.5, tail": ("ValueError", "argument 1"),
}


def test_wrong_arguments_raise_before_any_launch():
    calls = ", ".join(
        f"lambda: kernel.{method}({arguments}, grid=1, block=32)"
        for arguments in WRONG_ARGUMENTS
        for method in ("launch", "prepare")
    )
    result = run(
        f"""
        x, tail = FakeCuda(array(4)), bytes(range(1, 17))
        kernel = cakert.Library(image)["mix"]
        report([[failure(call) for call in ({calls})], x.exports, x.releases])
        """
    )
    errors, exports, releases = result.report
    assert len(errors) == 2 * len(WRONG_ARGUMENTS)
    for i, (arguments, (kind, says)) in enumerate(WRONG_ARGUMENTS.items()):
        for error in errors[2 * i : 2 * i + 2]:
            assert error["type"] == kind and says in error["text"], (arguments, error)
    assert exports == releases
    assert not result.trace.named("cuLaunchKernelEx")


WRONG_GEOMETRY = {
    "grid=(1, 65536, 1), block=32": "65535",  # F26
    "grid=(1, 1, 65536), block=32": "65535",
    "grid=1 << 31, block=32": "2147483647",
    "grid=0, block=32": "grid",
    "grid=1, block=(1024, 2)": "512",
    "grid=1, block=513": "512",
    "grid=1, block=(1, 1, 65)": "64",
    "grid=1, block=32, shared_bytes=232449": "232448",
    "grid=1, block=32, shared_bytes=-1": "shared_bytes",
    "grid=3, block=32, cluster=2": "cluster",
    "grid=(1, 2, 3, 4), block=32": "grid",
}


def test_geometry_beyond_the_device_raises_before_any_launch():
    calls = ", ".join(f"lambda: kernel.launch(x, y, 4, {text})" for text in WRONG_GEOMETRY)
    result = run(
        f"""
        x, y = FakeCuda(array(4)), FakeCuda(array(4))
        kernel = cakert.Library(image)["add"]
        report([[failure(call) for call in ({calls})], x.exports, x.releases])
        """
    )
    errors, exports, releases = result.report
    for (geometry, says), error in zip(WRONG_GEOMETRY.items(), errors, strict=True):
        assert error["type"] == "ValueError" and says in error["text"], (geometry, error)
    assert exports == releases
    assert not result.trace.named("cuLaunchKernelEx")


def test_any_status_of_a_launch_becomes_an_exception():
    """F26: nothing leaks, the context stack is as before, and the next launch works."""
    result = run(
        """
        import pickle
        x, y = FakeCuda(array(4)), FakeCuda(array(4))
        launcher = cakert.Library(image)["add"].prepare(x, y, 4, grid=2, block=32)
        errors, before = [], context_depth()
        for status in (700, 1, 719, 999, 123):
            fail(f"cuLaunchKernelEx={status}@1")
            errors.append(failure(lambda: launcher.run(x, y)))
            try:
                fail(f"cuLaunchKernelEx={status}@1")
                launcher.run(x, y)
            except cakert.CudaError as error:
                again = pickle.loads(pickle.dumps(error))
                assert (again.status, str(again)) == (status, str(error))
        launcher.run(x, y)
        report([errors, [x.exports, x.releases], [y.exports, y.releases],
                [before, context_depth()]])
        """
    )
    errors, x_counts, y_counts, depths = result.report
    names = ["ILLEGAL_ADDRESS", "INVALID_VALUE", "LAUNCH_FAILED", "UNKNOWN"]
    for error, name in zip(errors, names, strict=False):
        assert error["type"] == "CudaError" and "RuntimeError" in error["bases"]
        assert f"CUDA_ERROR_{name}" in error["text"] and "cuLaunchKernelEx" in error["text"]
    assert errors[4]["status"] == 123 and "123" in errors[4]["text"]
    assert x_counts[0] == x_counts[1] and y_counts[0] == y_counts[1]
    assert depths[0] == depths[1] == 0
    assert [call["status"] for call in result.trace.named("cuLaunchKernelEx")][-1] == 0


def test_a_prepared_launch_is_one_driver_call():
    result = run(
        """
        x, y, stream = array(4), array(4), new_stream()
        launcher = cakert.Library(image)["add"].prepare(
            FakeCuda(x), FakeCuda(y), 4, grid=2, block=32)
        make_current(0)
        fresh = [(FakeCuda(array(4)), FakeCuda(array(4))) for _ in range(4)]
        mark("runs")
        for first, second in fresh:
            launcher.run(first, second, stream=stream)
        mark("end")
        report([[[t.address, t.exports, t.releases, [r["stream"] for r in t.requests]]
                 for t in pair] for pair in fresh] + [stream])
        """
    )
    *pairs, stream = result.report
    calls = result.trace.after("runs")
    assert set(calls.names()) <= {"cuCtxGetCurrent", "cuLaunchKernelEx"}
    launches = calls.named("cuLaunchKernelEx")
    assert len(launches) == len(pairs) == 4
    for launch, pair in zip(launches, pairs, strict=True):
        assert launch["stream"] == stream
        for parameter, (address, exports, releases, streams) in zip(
            launch["params"][:2], pair, strict=True
        ):
            assert parameter == struct.pack("<Q", address).hex()
            assert exports == releases == 1
            assert streams == [stream], "the producer orders its work before the launch's stream"


@pytest.mark.parametrize(
    ("tensors", "kind", "says"),
    [
        ("x,", "TypeError", "2"),
        ("x, y, y", "TypeError", "2"),
        ("x, 3", "TypeError", ""),
        ("x, FakeCuda(array(4), device=1)", "ValueError", "cuda:1"),
        ("x, array(4)", "ValueError", "CPU"),
        ("FakeCuda(array(4).astype(np.float64)), y", "ValueError", "float64"),
        ("FakeCuda(array(4), lanes=2), y", "ValueError", "float32x2"),
    ],
)
def test_a_prepared_launch_checks_its_tensors(tensors, kind, says):
    result = run(
        f"""
        x, y = FakeCuda(array(4)), FakeCuda(array(4))
        launcher = cakert.Library(image)["add"].prepare(x, y, 4, grid=2, block=32)
        error = failure(lambda: launcher.run({tensors}))
        report([error, x.exports, x.releases, y.exports, y.releases])
        """,
        devices=2,
    )
    error, *counts = result.report
    assert error["type"] == kind and says in error["text"], error
    assert counts[0] == counts[1] and counts[2] == counts[3]
    assert not result.trace.named("cuLaunchKernelEx")


def test_tensors_on_another_device_than_the_current_one():
    """F37, F59: stream 0 of cuda:1 is handle 0, which would mean the current context's."""
    result = run(
        """
        def pair(device): return FakeCuda(array(4), device), FakeCuda(array(4), device)
        kernel = cakert.Library(image)["add"]
        zero, one = pair(0), pair(1)
        make_current(0)
        depth = context_depth()
        launchers = {
            device: kernel.prepare(*tensors, 4, grid=2, block=32, shared_bytes=50000 + device)
            for device, tensors in ((1, one), (0, zero))
        }
        mark("runs")
        for device in (1, 0, 1, 0):
            launchers[device].run(*pair(device))
        mark("end")
        assert (context_depth(), current()) == (depth, 0)
        report(failure(lambda: kernel.launch(zero[0], one[1], 4, grid=1, block=32)))
        """,
        devices=2,
    )
    assert result.report["type"] == "ValueError"
    assert "cuda:0" in result.report["text"] and "cuda:1" in result.report["text"]
    launches = result.trace.after("runs").named("cuLaunchKernelEx")
    assert [launch["device"] for launch in launches] == [1, 0, 1, 0]
    assert not any(launch["cold"] for launch in launches), "code is loaded on each device"
    loads = result.trace.named("cuFuncLoad")
    assert sorted(load["current"] for load in loads) == [0, 1]
    shared = {
        call["device"]: call["value"]
        for call in result.trace.named("cuKernelSetAttribute")
        if call["attribute"] == 8
    }
    assert shared == {0: 50000, 1: 50001}


def test_fresh_threads_and_threads_on_another_device():
    """F43."""
    result = run(
        """
        x, y = FakeCuda(array(4)), FakeCuda(array(4))
        launcher = cakert.Library(image)["add"].prepare(x, y, 4, grid=2, block=32)
        seen = []
        def work(device):
            if device is not None:
                make_current(device)
            before = context_depth()
            launcher.run(FakeCuda(array(4)), FakeCuda(array(4)))
            seen.append([device, context_depth() - before, current()])
        mark("threads")
        for device in (None, 1, 0):
            thread = threading.Thread(target=work, args=(device,))
            thread.start()
            thread.join()
        report(seen)
        """,
        devices=2,
    )
    assert result.report == [[None, 0, 0], [1, 0, 1], [0, 0, 0]]
    launches = result.trace.after("threads").named("cuLaunchKernelEx")
    assert [launch["device"] for launch in launches] == [0, 0, 0]
    assert len({launch["thread"] for launch in launches}) == 3


def test_threads_share_a_launcher_and_the_lock_is_released_in_the_driver():
    result = run(
        """
        import time
        x, y = FakeCuda(array(4)), FakeCuda(array(4))
        launcher = cakert.Library(image)["add"].prepare(x, y, 4, grid=2, block=32)
        fresh = [(FakeCuda(array(4)), FakeCuda(array(4))) for _ in range(4)]
        threads = [threading.Thread(target=launcher.run, args=pair) for pair in fresh]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report([time.monotonic() - begin, [[t.address for t in pair] for pair in fresh]])
        """,
        env={"STUB_CUDA_DELAY": "cuLaunchKernelEx=500"},
    )
    elapsed, pairs = result.report
    assert elapsed < 1.8, "four launches of 0.5 s each must overlap"
    passed = {tuple(call["params"][:2]) for call in result.trace.named("cuLaunchKernelEx")}
    assert passed == {tuple(struct.pack("<Q", a).hex() for a in pair) for pair in pairs}


def test_the_producer_of_an_array_interface_is_ordered_and_read():
    """The interface's stream must be finished for, or waited on by, the launch's stream."""
    result = run(
        """
        make_current(0)
        theirs, ours = new_stream(), new_stream()
        kernel = cakert.Library(image)["add"]
        x, y = FakeCai(array(4), stream=theirs), FakeCai(array(4), stream=ours)
        kernel.load_on(0)
        mark("launch")
        kernel.launch(x, y, 4, grid=1, block=32, stream=ours)
        mark("end")
        report([address_of(x.array), address_of(y.array), theirs, ours])
        """
    )
    x, y, theirs, ours = result.report
    calls = result.trace.after("launch")
    (launch,) = calls.named("cuLaunchKernelEx")
    assert launch["params"][:2] == [struct.pack("<Q", a).hex() for a in (x, y)]
    before = calls[: calls.index(launch)]
    waits = [
        call
        for call in before
        if (call["call"] == "cuStreamWaitEvent" and call["stream"] == ours)
        or (call["call"] == "cuStreamSynchronize" and call["stream"] == theirs)
    ]
    assert waits, f"nothing orders stream {theirs} before {ours}"
    recorded = [call["stream"] for call in before if call["call"] == "cuEventRecord"]
    assert ours not in recorded, "a stream need not wait for itself"
    assert result.trace.leaks()["events"] == 0


def test_loaded_code_can_be_launched_in_a_capture():
    """F36: after prepare a launch calls nothing that a capture forbids."""
    result = run(
        """
        make_current(0)
        stream = new_stream()
        launcher = cakert.Library(image)["add"].prepare(
            FakeCuda(array(4)), FakeCuda(array(4)), 4, grid=1, block=32)
        begin_capture(stream)
        launcher.run(FakeCuda(array(4)), FakeCuda(array(4)), stream=stream)
        report(end_capture(stream))
        """
    )
    assert result.report == "CUDA_SUCCESS"
    assert [call["cold"] for call in result.trace.named("cuLaunchKernelEx")] == [False]


def test_repeated_runs_release_every_import():
    """F53."""
    result = run(
        """
        import tracemalloc
        from helpers import fake_tensor
        launcher = cakert.Library(image)["add"].prepare(
            FakeCuda(array(4)), FakeCuda(array(4)), 4, grid=1, block=32)
        exports = releases = 0
        data = array(4), array(4)
        def many(count):
            global exports, releases
            for _ in range(count):
                x, y = FakeCuda(data[0]), FakeCuda(data[1], versioned=False)
                launcher.run(x, y)
                exports += x.exports + y.exports
                releases += x.releases + y.releases
        many(200)
        tracemalloc.start()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        many(9800)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        report([exports, releases, grown, len(fake_tensor._lent)])
        """,
        env={"STUB_CUDA_TRACE": ""},
    )
    exports, releases, grown, lent = result.report
    assert exports == releases == 20000
    assert lent == 0 and grown < 64 * 1024
