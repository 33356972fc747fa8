"""Versions, capabilities, load failures, several devices, streams and graph capture."""

from __future__ import annotations

import textwrap

import pytest
from helpers.stub import run_with_stub
from launch_abi import launch_params
from tiny_store import write_store

PRELUDE = """
import gc, threading
import numpy as np
import cakert
from helpers.fake_tensor import FakeCuda
from stub_child import (
    begin_capture, context_depth, end_capture, failure, make_current, mark, new_stream, report,
)
from stub_problem import Problem, aligned, rng, run, use_store
def current():
    from cakert.runtime import driver
    return driver.current_device()
"""

WORKS = """
p = Problem()
plan = p.plan()
run(plan, *p.tensors(), out=p.tensors("out")[0])
report(plan["route"])
"""


def run_script(script: str, **options):
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)


@pytest.mark.parametrize("driver", [13000, 13010, 14020])
@pytest.mark.parametrize(
    ("capability", "architecture"), [((9, 0), 90), ((10, 0), 100), ((10, 3), 103)]
)
def test_supported_devices_and_drivers(driver, capability, architecture):
    """The cubin that is loaded is the device's own, sm_103a on (10, 3) among them (F29)."""
    result = run_script(WORKS, driver=driver, capability=capability)
    (load,) = result.trace.named("cuLibraryLoadData")
    assert load["architecture"] == architecture
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert launch["status"] == 0 and launch["kernel"] == result.report


@pytest.mark.parametrize(("driver", "spelled"), [(12080, "12.8"), (12090, "12.9"), (11040, "11.4")])
def test_a_driver_that_is_too_old(driver, spelled):
    result = run_script("report([failure(Problem().plan), context_depth()])", driver=driver)
    error, depth = result.report
    assert "RuntimeError" in error["bases"] and depth == 0
    assert "580" in error["text"] and "newer" in error["text"] and spelled in error["text"]
    assert not result.trace.named("cuLibraryLoadData", "cuLaunchKernelEx")
    assert result.trace.leaks()["blocks"] == 0


@pytest.mark.parametrize("flags", [(), ("-O",), ("-OO",)])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (11, 0), (12, 0), (12, 1)])
def test_unsupported_capabilities(capability, flags):
    """F30: also where assertions are off."""
    result = run_script(
        "report([failure(Problem().plan), __debug__])", capability=capability, python_flags=flags
    )
    error, debug = result.report
    assert debug is (not flags)
    assert error["type"] == "RuntimeError"
    for found in (capability, (9, 0), (10, 0), (10, 3)):
        assert "{}.{}".format(*found) in error["text"], error
    assert not result.trace.named("cuLibraryLoadData", "cuMemAlloc", "cuLaunchKernelEx")


def test_ten_three_without_its_own_cubins(tmp_path):
    """F29: sm_100a code does not run on 10.3, so nothing may be loaded."""
    folder = write_store(tmp_path / "cubins", ("sm_100a",))
    result = run_script(
        f"""
        use_store({str(folder)!r})
        report(failure(Problem().plan))
        """,
        capability=(10, 3),
    )
    error = result.report
    assert error["type"] == "RuntimeError"
    assert "10.3" in error["text"] and "10.0" in error["text"]
    assert not result.trace.named("cuLibraryLoadData", "cuLaunchKernelEx")


def test_ten_three_takes_its_own_of_two(tmp_path):
    folder = write_store(tmp_path / "cubins", ("sm_100a", "sm_103a", "sm_90"))
    result = run_script(f"use_store({str(folder)!r})\n{WORKS}", capability=(10, 3))
    assert [c["architecture"] for c in result.trace.named("cuLibraryLoadData")] == [103]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing", "swapped"])
def test_damaged_cubins_are_refused_before_the_driver_sees_them(tmp_path, damage):
    folder = write_store(tmp_path / "cubins", ("sm_90",))
    path = folder / "vsa_sm90_split_r64_d128_bf16.sm_90a.cubin"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes((folder / "vsa_sm90_split_r64_d96_bf16.sm_90a.cubin").read_bytes())
    result = run_script(f"use_store({str(folder)!r})\nreport(failure(Problem().plan))")
    error = result.report
    assert error["type"] == "CubinError" and "ValueError" in error["bases"]
    assert path.name in error["text"]
    assert not result.trace.named("cuLibraryLoadData", "cuMemAlloc", "cuLaunchKernelEx")


@pytest.mark.parametrize("status", [200, 209, 218, 222])
@pytest.mark.parametrize("call", ["cuLibraryLoadData", "cuKernelGetFunction"])
def test_failed_loads_of_plan(status, call):
    """F35: status, driver version, toolkit and target of the cubin, capability, what to do."""
    from cakert.errors import STATUS_TABLE

    result = run_script(
        """
        p = Problem()
        first = failure(p.plan)
        report([first, failure(p.plan), context_depth()])
        """,
        fail={call: status},
    )
    *errors, depth = result.report
    name, _, hint = STATUS_TABLE[status]
    for error in errors:
        assert error["type"] == "CudaError" and error["status"] == status
        for part in (name, call, hint, "13.0"):
            assert part in error["text"], (part, error["text"])
        for what, spellings in {
            "target": ("sm_90",),
            "capability": ("(9, 0)", "9.0"),
            "toolkit": ("toolkit 13.0", "V13.0", "release 13.0", "13.0.88"),
        }.items():
            assert any(text in error["text"] for text in spellings), (what, error["text"])
    assert depth == 0 and result.trace.leaks()["blocks"] == 0
    assert not result.trace.named("cuLaunchKernelEx")


def test_a_machine_whose_driver_sees_no_device():
    result = run_script(
        """
        p = Problem()
        report([failure(p.plan), failure(lambda: p.plan("cuda"))])
        """,
        devices=0,
    )
    for error in result.report:
        assert "RuntimeError" in error["bases"]
        assert "device" in error["text"].lower() or "GPU" in error["text"]


def test_devices_that_are_not_there():
    result = run_script(
        """
        p = Problem()
        wrong = 2, "cuda:5", "cpu", -1, None, "gpu"
        report([failure(lambda: p.plan(device)) for device in wrong])
        """,
        devices=2,
    )
    for error in result.report:
        assert error["type"] == "RuntimeError" and "9.0" in error["text"], error
    assert not result.trace.named("cuLibraryLoadData", "cuMemAlloc")


def test_plans_on_two_devices():
    """F37, F59, F63: each device has its own code, memory and launches; the current one stays."""
    result = run_script(
        """
        p = Problem()
        make_current(0)
        depth = context_depth()
        plans = {device: p.plan(device) for device in (1, 0)}
        run_on = lambda device: run(plans[device], *p.tensors(device=device),
                                    out=p.tensors("out", device=device)[0])
        mark("runs")
        for device in (0, 1, 0, 1, 1):
            run_on(device)
        mark("end")
        assert (context_depth(), current()) == (depth, 0)
        out_device = run(plans[1], *p.tensors(device=1)).device
        q, k, v = p.tensors(device=1)
        errors = [failure(lambda: run(plans[0], q, k, v))]
        mixed = p.tensors(device=0)[1]
        errors.append(failure(lambda: run(plans[1], q, mixed, v)))
        assert (context_depth(), current()) == (depth, 0)
        mark("drop")
        plans.clear()
        gc.collect()
        mark("end")
        report([errors, out_device])
        """,
        devices=2,
    )
    errors, out_device = result.report
    for error in errors:
        assert error["type"] == "ValueError"
        assert "cuda:0" in error["text"] and "cuda:1" in error["text"]
    assert out_device == 1
    launches = result.trace.after("runs").named("cuLaunchKernelEx")
    assert [launch["device"] for launch in launches] == [0, 1, 0, 1, 1]
    assert not any(launch["cold"] for launch in result.trace.named("cuLaunchKernelEx"))
    assert len(result.trace.named("cuLibraryLoadData")) == 1, "one library serves both"
    assert {c["current"] for c in result.trace.named("cuFuncLoad")} == {0, 1}
    memory = {c["address"]: c["current"] for c in result.trace.named("cuMemAlloc")}
    for launch in launches:
        assert memory[int(launch_params(launch)["row_blocks"])] == launch["device"]
    freed = result.trace.after("drop").named("cuMemFree")
    assert {call["current"] for call in freed} == {0, 1}
    assert result.trace.leaks()["blocks"] == 0


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "1"])
def test_cuda_means_the_current_device_at_plan_time(device):
    result = run_script(
        f"""
        p = Problem()
        make_current(1)
        plan = p.plan({device!r} if {device!r} != "1" else 1)
        make_current(0)
        run(plan, *p.tensors(device=1), out=p.tensors("out", device=1)[0])
        """,
        devices=2,
    )
    assert [c["device"] for c in result.trace.named("cuLaunchKernelEx")] == [1]


def test_devices_of_two_kinds():
    """The same plan call loads what each device needs."""
    result = run_script(
        """
        p = Problem()
        for device in (0, 1):
            run(p.plan(device), *p.tensors(device=device),
                out=p.tensors("out", device=device)[0])
        report(failure(lambda: p.plan(2)))
        """,
        devices=3,
        capability=[(9, 0), (10, 0), (8, 6)],
    )
    assert [c["architecture"] for c in result.trace.named("cuLibraryLoadData")] == [90, 100]
    assert result.report["type"] == "RuntimeError" and "8.6" in result.report["text"]


def test_threads_with_another_current_device():
    """F43."""
    result = run_script(
        """
        p = Problem()
        plan, seen = p.plan(0), []
        def work(device):
            if device is not None:
                make_current(device)
            run(plan, *p.tensors(), out=p.tensors("out")[0])
            seen.append([context_depth(), current()])
        for device in (None, 1):
            thread = threading.Thread(target=work, args=(device,))
            thread.start()
            thread.join()
        report(seen)
        """,
        devices=2,
    )
    assert result.report == [[0, 0], [1, 1]]
    assert [c["device"] for c in result.trace.named("cuLaunchKernelEx")] == [0, 0]


@pytest.mark.parametrize("metadata", ["host", "device"])
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("first_use", [True, False])
def test_plan_inside_a_capture(metadata, blocking, first_use):
    """F49: it works, or says "plan before capture" at once; and it leaves nothing behind."""
    result = run_script(
        f"""
        p = Problem()
        make_current(0)
        stream = new_stream(blocking={blocking})
        if not {first_use}:
            p.plan()
            gc.collect()
        mask = p.mask()
        begin_capture(stream)
        try:
            plan = p.plan(block_mask=FakeCuda(mask) if {metadata!r} == "device" else mask)
            outcome = None
        except Exception as error:
            outcome = [[base.__name__ for base in type(error).__mro__], str(error)]
            plan = None
        status = end_capture(stream)
        if plan is None:
            gc.collect()
            mark("failed")
        else:
            out = p.tensors("out")[0]
            run(plan, *p.tensors(), out=out)
        report([outcome, status])
        """
    )
    outcome, status = result.report
    if outcome is None:
        assert status == "CUDA_SUCCESS", "a plan that works must not spoil the capture"
        assert len(result.trace.named("cuLaunchKernelEx")) == 1
    else:
        bases, text = outcome
        assert "RuntimeError" in bases and "plan before capture" in text, outcome
        assert result.trace.leaks()["blocks"] == 0


def test_the_first_run_of_a_process_may_be_captured():
    """F36, F41: plan has loaded everything; run enqueues on the captured stream only."""
    result = run_script(
        """
        p = Problem()
        make_current(0)
        plan = p.plan()
        stream = new_stream(blocking=True)
        from cakert.runtime.memory import DeviceArray
        on_stream = [DeviceArray.empty(p.shapes()[n], "bfloat16", 0, stream)
                     for n in ("q", "k", "v", "out")]
        mark("capture")
        begin_capture(stream)
        q, k, v, out = on_stream
        run(plan, q, k, v, out=out)
        run(plan, q, k, v, out=out)
        report([end_capture(stream), stream, [t.pointer for t in on_stream]])
        """
    )
    status, stream, pointers = result.report
    assert status == "CUDA_SUCCESS"
    launches = result.trace.after("capture").named("cuLaunchKernelEx")
    assert [launch["stream"] for launch in launches] == [stream] * 2
    assert not any(launch["cold"] for launch in launches)
    for launch in launches:
        params = launch_params(launch)
        assert [int(params[name]) for name in ("q", "k", "v", "out")] == pointers


def test_an_output_that_run_makes_is_on_the_launch_stream():
    result = run_script(
        """
        from cakert.runtime.memory import DeviceArray
        p = Problem()
        make_current(0)
        plan, stream = p.plan(), new_stream()
        q, k, v = (DeviceArray.empty(p.shapes()[n], "bfloat16", 0, stream) for n in "qkv")
        mark("run")
        out = run(plan, q, k, v)
        mark("drop")
        made = out.pointer
        del out
        gc.collect()
        mark("end")
        report([stream, made])
        """
    )
    stream, made = result.report
    calls = result.trace.after("run")
    (allocation,) = calls.named("cuMemAllocAsync")
    assert (allocation["stream"], allocation["address"]) == (stream, made)
    assert [call["stream"] for call in calls.named("cuLaunchKernelEx")] == [stream]
    (release,) = result.trace.after("drop").named("cuMemFreeAsync")
    assert (release["stream"], release["address"]) == (stream, made)
