"""The stub driver keeps the rules of the real one; what the other tests here rest on.

Everything goes through cuda.bindings' own loader and structures, so the stub's idea of the ABI is
compared with the bindings', not with itself.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers.stub import SOURCES, run_with_stub
from tiny_cubin import tiny_cubin


def test_error_names_and_texts_are_those_of_cuda():
    from cuda.bindings import driver

    source = (SOURCES / "stub_cuda.c").read_text()
    table = re.findall(r'\{(\d+), "(CUDA_\w+)", "', source)
    assert len(table) > 25
    for code, name in table:
        assert driver.CUresult(int(code)).name == name
    header = (SOURCES / "stub_cuda.h").read_text()
    enumerated = re.findall(r"^  (CUDA_\w+) = (\d+),", header, re.MULTILINE)
    assert len(enumerated) > 12
    for name, code in enumerated:
        assert getattr(driver.CUresult, name).value == int(code)


def test_device_attribute_numbers_are_those_of_cuda():
    from cuda.bindings import driver

    source = (SOURCES / "stub_cuda.c").read_text()
    rows = re.findall(r"case (\d+): .*break; */\* ([A-Z_]+),? ?", source)
    assert len(rows) >= 12
    for number, name in rows:
        # Some numbers have two names, and which one an enum shows depends on the interpreter.
        named = [
            attribute
            for attribute, member in driver.CUdevice_attribute.__members__.items()
            if member == int(number)
        ]
        wanted = f"CU_DEVICE_ATTRIBUTE_{name.rstrip('_')}"
        assert any(attribute.startswith(wanted) for attribute in named), (number, name)


@pytest.mark.parametrize(
    ("sizes", "offsets"), [((8, 4, 8), (0, 8, 16)), ((160,), (0,)), ((1, 2, 4), (0, 2, 4))]
)
def test_launch_records_what_the_bindings_pass(sizes, offsets):
    payload = [bytes(np.random.default_rng().integers(1, 256, size).tolist()) for size in sizes]
    image = tiny_cubin({"first": (4,), "wanted": sizes}, max_threads=256)
    result = run_with_stub(
        f"""
        import ctypes
        from cuda.bindings import driver as d
        from stub_child import driver_call as call, make_current, report

        make_current(0)
        library = call("cuLibraryLoadData", bytes.fromhex({image.hex()!r}), [], [], 0, [], [], 0)
        assert call("cuLibraryGetKernelCount", library) == 2
        kernel = call("cuLibraryGetKernel", library, b"wanted")
        payload = [bytes.fromhex(text) for text in {[p.hex() for p in payload]!r}]
        buffers = [ctypes.create_string_buffer(p, len(p)) for p in payload]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        config = d.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = 7, 3, 2
        config.blockDimX, config.blockDimY, config.blockDimZ = 64, 2, 1
        config.sharedMemBytes = 1024
        attribute = d.CUlaunchAttribute()
        attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster = attribute.value.clusterDim
        cluster.x, cluster.y, cluster.z = 7, 3, 1
        config.attrs, config.numAttrs = [attribute], 1
        function = d.CUfunction(int(kernel))
        call("cuLaunchKernelEx", config, function, ctypes.addressof(pointers), 0)
        layout = [call("cuKernelGetParamInfo", kernel, i) for i in range({len(sizes)})]
        past = d.cuKernelGetParamInfo(kernel, {len(sizes)})[0].name
        report([layout, past])
        """
    )
    assert result.report == [
        [list(pair) for pair in zip(offsets, sizes, strict=True)],
        "CUDA_ERROR_INVALID_VALUE",
    ]
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert launch["params"] == [p.hex() for p in payload]
    assert (launch["grid"], launch["block"], launch["shared"]) == ([7, 3, 2], [64, 2, 1], 1024)
    assert launch["attributes"] == [[4, 7, 3, 1]]
    assert launch["kernel"] == "wanted" and launch["cold"] is True and launch["device"] == 0


def test_memory_rules():
    result = run_with_stub(
        """
        import numpy as np
        from cuda.bindings import driver as d
        from stub_child import driver_call as call, make_current, report

        statuses = []
        say = lambda answer: statuses.append(answer[0].name)
        say(d.cuMemAlloc(64))                     # before cuInit
        call("cuInit", 0)
        say(d.cuMemAlloc(64))                     # without a context
        make_current(0)
        kept = call("cuMemAlloc", 96)
        block = call("cuMemAlloc", 64)
        data = np.random.default_rng().integers(1, 255, 65).astype(np.uint8)
        back = np.empty(64, np.uint8)
        call("cuMemcpyHtoD", block, data.ctypes.data, 64)
        call("cuMemcpyDtoH", back.ctypes.data, block, 64)
        assert (back == data[:64]).all()
        say(d.cuMemcpyHtoD(block, data.ctypes.data, 65))          # past the end
        pitched = d.CUDA_MEMCPY2D()
        pitched.srcMemoryType = d.CUmemorytype.CU_MEMORYTYPE_HOST
        pitched.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE
        pitched.srcHost, pitched.srcPitch = data.ctypes.data, 5
        pitched.dstDevice, pitched.dstPitch = block, 16
        pitched.WidthInBytes, pitched.Height = 5, 4
        call("cuMemcpy2DAsync", pitched, 0)
        call("cuMemcpyDtoH", back.ctypes.data, block, 64)
        assert (back.reshape(4, 16)[:, :5] == data[:20].reshape(4, 5)).all()
        assert (back.reshape(4, 16)[:, 5:].ravel() == data[:64].reshape(4, 16)[:, 5:].ravel()).all()
        call("cuMemsetD8Async", block, 7, 10, 0)
        call("cuMemFree", block)
        say(d.cuMemFree(block))                                   # twice
        say(d.cuMemcpyDtoH(back.ctypes.data, block, 1))           # after it was freed
        say(d.cuMemAlloc(1 << 40))
        report(statuses)
        """
    )
    assert result.report == [
        "CUDA_ERROR_NOT_INITIALIZED",
        "CUDA_ERROR_INVALID_CONTEXT",
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_INVALID_VALUE",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ]
    leaks = result.trace.leaks()
    assert (leaks["blocks"], leaks["bytes"]) == (1, 96)


def test_capture_rules():
    result = run_with_stub(
        """
        from cuda.bindings import driver as d
        from stub_child import begin_capture, end_capture, make_current, new_stream, report

        make_current(0)
        side, blocking = new_stream(), new_stream(blocking=True)
        capturing = lambda stream: [str(x) for x in d.cuStreamIsCapturing(stream)]
        said = []
        begin_capture(side)
        said += [int(d.cuStreamIsCapturing(side)[1]), int(d.cuStreamIsCapturing(blocking)[1])]
        said += [d.cuMemcpyDtoDAsync(0, 0, 0, 0)[0].name]       # legacy: side does not block
        said += [end_capture(side)]
        begin_capture(side)
        said += [d.cuMemAlloc(64)[0].name, end_capture(side)]
        begin_capture(blocking)
        said += [d.cuStreamIsCapturing(0)[0].name, end_capture(blocking)]
        begin_capture(blocking)
        said += [d.cuMemsetD8Async(0, 0, 0, 0)[0].name, end_capture(blocking)]
        begin_capture(side)
        relaxed = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        previous = d.cuThreadExchangeStreamCaptureMode(relaxed)[1]
        said += [d.cuMemAlloc(64)[0].name, end_capture(side), int(previous)]
        report(said)
        """
    )
    assert result.report == [
        1, 0, "CUDA_SUCCESS", "CUDA_SUCCESS",
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "CUDA_SUCCESS",
        "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        "CUDA_SUCCESS", "CUDA_SUCCESS", 0,
    ]  # fmt: skip


def test_launch_rules():
    image = tiny_cubin({"small": (8,)}, max_threads=128)
    result = run_with_stub(
        f"""
        import ctypes
        from cuda.bindings import driver as d
        from stub_child import driver_call as call, make_current, report

        make_current(0)
        library = call("cuLibraryLoadData", bytes.fromhex({image.hex()!r}), [], [], 0, [], [], 0)
        kernel = call("cuLibraryGetKernel", library, b"small")
        buffer = ctypes.c_uint64(5)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))

        def launch(grid, block, shared=0, stream=0):
            config = d.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.blockDimX, config.blockDimY, config.blockDimZ = block
            config.sharedMemBytes, config.hStream = shared, d.CUstream(stream)
            function = d.CUfunction(int(kernel))
            return d.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0)[0].name

        said = [
            launch((1, 1, 1), (128, 1, 1)),
            launch((1, 65536, 1), (32, 1, 1)),
            launch((0, 1, 1), (32, 1, 1)),
            launch((1, 1, 1), (129, 1, 1)),
            launch((1, 1, 1), (32, 1, 1), shared=49153),
            launch((1, 1, 1), (32, 1, 1), stream=12345),
        ]
        dynamic = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        said.append(d.cuKernelSetAttribute(dynamic, 232449, kernel, 0)[0].name)
        call("cuKernelSetAttribute", dynamic, 49153, kernel, 0)
        said.append(launch((1, 1, 1), (32, 1, 1), shared=49153))
        call("cuLibraryUnload", library)
        said.append(launch((1, 1, 1), (32, 1, 1)))
        report(said)
        """
    )
    value, handle = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_INVALID_HANDLE"
    assert result.report == [
        "CUDA_SUCCESS", value, value, value, value, handle, value, "CUDA_SUCCESS", handle,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("capability", "target", "loads"),
    [
        ((9, 0), "sm_90", True),
        ((10, 3), "sm_100", True),
        ((10, 0), "sm_103a", False),
        ((12, 0), "sm_90a", False),
    ],
)
def test_code_runs_on_its_architecture_only(capability, target, loads):
    result = run_with_stub(
        f"""
        from cuda.bindings import driver as d
        from stub_child import driver_call as call, make_current, report

        make_current(0)
        image = bytes.fromhex({tiny_cubin({"k": (4,)}, target=target).hex()!r})
        library = call("cuLibraryLoadData", image, [], [], 0, [], [], 0)
        report(d.cuKernelGetFunction(call("cuLibraryGetKernel", library, b"k"))[0].name)
        """,
        capability=capability,
    )
    assert result.report == ("CUDA_SUCCESS" if loads else "CUDA_ERROR_NO_BINARY_FOR_GPU")


def test_failures_are_injected_by_count():
    result = run_with_stub(
        """
        from cuda.bindings import driver as d
        from stub_child import fail, report

        d.cuInit(0)
        said = [d.cuDeviceGetCount()[0].value for _ in range(3)]
        said += [d.cuDeviceGetName(9, 0)[0].value for _ in range(3)]
        fail("cuDeviceGetCount=46@1")
        said += [d.cuDeviceGetCount()[0].value for _ in range(2)]
        report(said)
        """,
        fail="cuDeviceGetCount=999@2,cuDeviceGetName=802@2+",
    )
    assert result.report == [0, 999, 0, 0, 802, 802, 46, 0]


def test_functions_that_the_driver_lacks():
    result = run_with_stub(
        """
        from cuda.bindings import driver as d
        from stub_child import failure, report

        d.cuInit(0)
        report([
            failure(lambda: d.cuDeviceGetName(9, 0)),                    # named by the environment
            failure(lambda: d.cuKernelGetParamInfo(d.CUkernel(8), 0)),   # came with 12.4
            d.cuProfilerStart()[0].name,                                 # unknown to the stub
        ])
        """,
        driver=12020,
        env={"STUB_CUDA_ABSENT": "cuDeviceTotalMem,cuDeviceGetName"},
    )
    named, newer, unknown = result.report
    assert "RuntimeError" in named["bases"] and "cuDeviceGetName" in named["text"]
    assert "RuntimeError" in newer["bases"] and "cuKernelGetParamInfo" in newer["text"]
    assert unknown == "CUDA_ERROR_NOT_SUPPORTED"


def test_a_forked_child_cannot_use_the_driver_of_its_parent():
    result = run_with_stub(
        """
        import os
        from cuda.bindings import driver as d
        from stub_child import report

        d.cuInit(0)
        reader, writer = os.pipe()
        if os.fork() == 0:
            statuses = f"{d.cuInit(0)[0].name} {d.cuDeviceGetCount()[0].name}"
            os.write(writer, statuses.encode())
            os._exit(0)
        os.wait()
        report(os.read(reader, 4096).decode().split())
        """
    )
    assert result.report == ["CUDA_ERROR_NOT_INITIALIZED"] * 2


def test_a_hang_fails():
    with pytest.raises(AssertionError, match="no end within 1 s"):
        run_with_stub("import os, time; os.fork(); time.sleep(60)", timeout=1)
