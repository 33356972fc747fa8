"""Library and Kernel under the stub: loading, failures of it, and how long the code stays."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_scripts import run


def test_names_and_layout_come_from_the_driver():
    result = run(
        """
        library = cakert.Library(image)
        kernel = library["mix"]
        report([library.names, kernel.name, kernel.param_layout, kernel is library["mix"],
                failure(lambda: library["other"])])
        """
    )
    names, name, layout, same, missing = result.report
    assert names == ["add", "mix"] and name == "mix" and same
    assert layout == [[0, 8], [8, 4], [16, 8], [24, 4], [28, 16]] or layout == [
        [0, 8], [8, 4], [16, 8], [24, 4], [32, 16],
    ]  # fmt: skip
    assert missing["type"] == "KeyError" and "add, mix" in missing["text"]


def test_a_kernel_keeps_its_library_and_the_last_reference_unloads_it():
    result = run(
        """
        library = cakert.Library(image)
        kernel = library["add"]
        launcher = kernel.prepare(FakeCuda(array(4)), FakeCuda(array(4)), 4, grid=2, block=32)
        mark("library gone")
        del library
        gc.collect()
        mark("kernel gone")
        del kernel
        gc.collect()
        launcher.run(FakeCuda(array(4)), FakeCuda(array(4)))
        mark("launcher gone")
        del launcher
        gc.collect()
        mark("end")
        """
    )
    assert not result.trace.after("library gone").named("cuLibraryUnload")
    assert not result.trace.after("kernel gone").named("cuLibraryUnload")
    assert len(result.trace.after("launcher gone").named("cuLibraryUnload")) == 1
    assert result.trace.leaks()["libraries"] == 0


@pytest.mark.parametrize("status", [200, 209, 218, 222, 2])
@pytest.mark.parametrize("call", ["cuLibraryLoadData", "cuKernelGetFunction", "cuFuncLoad"])
def test_failed_loads_say_what_met_what(call, status):
    """F35: status, driver, image and device are in the message, and what to do."""
    from cakert.errors import STATUS_TABLE

    result = run(
        """
        def load():
            cakert.Library(image, detail="target sm_90").__getitem__("add").load_on(0)
        error = failure(load)
        report([error, context_depth()])
        """,
        fail={call: status},
        driver=12080,
        capability=(9, 0),
    )
    error, depth = result.report
    name, _, hint = STATUS_TABLE[status]
    assert error["type"] == "CudaError" and error["status"] == status
    for part in (name, call, "12.8", "(9, 0)", "sm_90", hint):
        assert part in error["text"], part
    assert hint and depth == 0
    assert result.trace.leaks()["libraries"] == 0, "a failed load leaves nothing behind"


@pytest.mark.parametrize("call", ["cuLibraryGetKernelCount", "cuLibraryEnumerateKernels",
                                  "cuKernelGetName", "cuLibraryGetKernel", "cuKernelGetParamInfo",
                                  "cuKernelGetAttribute", "cuKernelSetAttribute", "cuInit",
                                  "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent",
                                  "cuCtxPushCurrent", "cuDeviceGetCount"])  # fmt: skip
def test_every_other_failing_call_is_named(call):
    result = run(
        """
        def launch():
            kernel = cakert.Library(image)["add"]
            kernel.launch(FakeCuda(array(4)), FakeCuda(array(4)), 4, grid=1, block=32,
                          shared_bytes=50000)
        error = failure(launch)
        gc.collect()
        report([error, context_depth()])
        """,
        fail={call: 802},
    )
    error, depth = result.report
    assert error["type"] == "CudaError" and call in error["text"]
    assert "CUDA_ERROR_SYSTEM_NOT_READY" in error["text"]
    assert depth == 0
    assert not result.trace.named("cuLaunchKernelEx")
    if end := result.trace.named("end of process"):
        assert end[0]["libraries"] == 0


def test_kernel_and_launcher_are_made_by_their_owners_only():
    result = run(
        """
        report([failure(cakert.Kernel), failure(cakert.Launcher),
                failure(lambda: cakert.Library(5)), failure(lambda: cakert.Library())])
        """
    )
    assert [error["type"] for error in result.report] == ["TypeError"] * 4
    assert not result.trace


def test_a_wrong_hash_is_refused_before_the_driver_is_touched():
    result = run(
        """
        import hashlib
        good = hashlib.sha256(image).hexdigest()
        flipped = bytearray(image)
        flipped[len(image) // 2] ^= 1
        errors = [failure(lambda: cakert.Library(bytes(flipped), sha256=good)),
                  failure(lambda: cakert.Library(image[: len(image) // 2])),
                  failure(lambda: cakert.Library(b"")),
                  failure(lambda: cakert.Library(image, sha256=""))]
        mark("accepted")
        cakert.Library(image, sha256=good.upper())
        mark("end")
        report(errors)
        """
    )
    for error in result.report:
        assert error["type"] == "CubinError" and "ValueError" in error["bases"]
    assert len(result.trace.after("accepted").named("cuLibraryLoadData")) == 1
    assert result.trace[0]["call"] == "mark", "nothing before it touched the driver"


def test_layout_of_the_tiny_cubins_is_what_the_product_reads():
    from tiny_cubin import tiny_cubin

    from cakert.cubins import describe_image

    names = tuple(f"k{i}" for i in np.random.default_rng().permutation(5))
    image = tiny_cubin(dict.fromkeys(names, (8, 4)), target="sm_103a")
    info = describe_image(image)
    assert (info.target, info.kernels) == ("sm_103a", names)


@pytest.mark.parametrize("version", [11080, 12020, 12030])
def test_a_driver_without_the_functions_used_is_named(version):
    result = run("report(failure(lambda: cakert.Library(image)))", driver=version)
    assert result.report["type"] == "RuntimeError"
    assert "driver 580 or newer" in result.report["text"]
    assert f"CUDA {version // 1000}.{version % 1000 // 10}" in result.report["text"]
    assert not result.trace.named("cuLibraryLoadData")


def test_an_older_driver_loads_what_it_can():
    assert run("report(cakert.Library(image).names)", driver=12040).report == ["add", "mix"]


def test_an_image_in_which_the_driver_finds_no_kernel_is_refused():
    """As driver 580 treats code for another GPU: it loads, and has no kernels."""
    result = run(
        """
        image = tiny_cubin({"add": (8, 8, 4)}, target="sm_100a")
        report([failure(lambda: cakert.Library(image)), context_depth()])
        """
    )
    error, depth = result.report
    assert error["type"] == "CudaError" and error["status"] == 209 and depth == 0
    for part in ("no kernel", "(9, 0)", "cakert load FILE"):
        assert part in error["text"], (part, error["text"])
    assert result.trace.leaks()["libraries"] == 0
