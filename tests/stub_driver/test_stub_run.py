"""`cakert run` with the stub as its driver: what is uploaded and launched, and what a failure says.

The stub executes nothing, so the arrays come back as they went.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from helpers.run_docs import hold_to_the_docs
from helpers.stub import StubResult, run_with_stub
from tiny_cubin import tiny_cubin

from cakert.cli.argument_specs import parse
from cakert.cli.initial_values import make_array

DATA = Path(__file__).resolve().parents[1] / "data"
CUBIN = str(DATA / "run_kernels.cubin")
AXPY = [CUBIN, "axpy", "--grid", "4,3", "--block", "128,2", "--arg", "y:f32[1000]=randn", "--arg",
        "x:f32[10x100]=rand", "--arg", "a:f32=0.5", "--arg", "n:i32=-2"]  # fmt: skip


def command(*arguments: object, **stub) -> StubResult:
    argv = ["run", *map(str, arguments)]
    script = f"import sys; from cakert.cli.main import main; sys.exit(main({argv!r}))"
    return run_with_stub(script, check=False, **stub)


def error_of(done: StubResult) -> str:
    assert done.returncode == 1, done.stdout
    assert done.stdout == ""
    assert done.stderr.startswith("cakert: error: ")
    assert done.stderr.count("\n") == 1
    assert not done.trace.named("cuLaunchKernelEx") or "cuLaunch" in done.stderr
    return done.stderr


def assert_nothing_leaks(done: StubResult) -> None:
    leaks = done.trace.leaks()
    assert (leaks["blocks"], leaks["events"], leaks["libraries"]) == (0, 0, 0)


def test_one_launch_with_the_bytes_of_the_arguments(tmp_path):
    out = tmp_path / "r.npz"
    done = command(*AXPY, "--shared", "2K", "--cluster", "2,1,1", "--seed", 5, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (launch,) = done.trace.named("cuLaunchKernelEx")
    assert (launch["kernel"], launch["device"], launch["stream"]) == ("axpy", 0, 0)
    assert (launch["grid"], launch["block"], launch["shared"]) == ([4, 3, 1], [128, 2, 1], 2048)
    assert launch["attributes"] == [[4, 2, 1, 1]]
    first, second = (int.from_bytes(bytes.fromhex(text), "little") for text in launch["params"][:2])
    assert first != second != 0
    assert launch["params"][2:] == [struct.pack("<f", 0.5).hex(), struct.pack("<i", -2).hex()]
    with np.load(out) as results:
        for number, spec in enumerate(("y:f32[1000]=randn", "x:f32[10x100]=rand")):
            expected = make_array(parse(spec), 5, number)
            assert results[spec[0]].tobytes() == expected.tobytes()
            assert results[spec[0]].shape == expected.shape
    assert "The kernel changed no array." in done.stdout
    assert "Stub GPU (cuda:0)" in done.stdout
    assert f"{CUBIN}: cubin for sm_90" in done.stdout
    assert not done.trace.named("cuEventCreate", "cuMemAlloc")
    assert_nothing_leaks(done)


def test_a_struct_goes_as_it_is():
    window = struct.pack("<qif", 5, 20, 0.5)
    done = command(
        CUBIN, "_Z7rev", "--grid", "1", "--block", "64", "--arg", "bf16[64]=nan", "--arg",
        "bf16[64]=rand", "--arg", f"bytes={window.hex()}", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (launch,) = done.trace.named("cuLaunchKernelEx")
    assert launch["params"][2] == window.hex()
    found = json.loads(done.stdout)
    assert found["device"] == {"name": "cuda:0", "product": "Stub GPU", "capability": [9, 0],
                               "schedule": None}  # fmt: skip
    assert found["arguments"][0]["values"]["nan"] == 64


def test_names_in_an_error_cannot_steer_the_terminal(tmp_path):
    file = tmp_path / "k.cubin"
    file.write_bytes(tiny_cubin({"k\x9b2Jred": (8,)}))
    error = error_of(command(file, "--grid", 1, "--block", 1))
    assert r"k\x9b2Jred takes 1 arguments" in error
    error = error_of(command(file, "--grid", 1, "--block", 1, "--arg", "u8[1]=0",
                             fail={"cuLaunchKernelEx": 700}))  # fmt: skip
    assert r"k\x9b2Jred" in error and "\x9b" not in error


# --- time -----------------------------------------------------------------------------------------


def test_time(project):
    # Every second interval lies between the two events of a launch.
    times = [12.0, 10.0, 30.0, 11.0, 20.0]
    marks = ";".join(f"{int(1000 * time)};777" for time in times)
    done = command(
        *AXPY, "--time", 5, "--json", env={"STUB_CUDA_EVENT_NS": marks, "STUB_CUDA_L2": "65536"}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "Time" in hold_to_the_docs(project, found)
    time = found["time"]
    assert time["microseconds"] == pytest.approx(times, rel=1e-3)
    assert (time["min_us"], time["max_us"]) == pytest.approx((10, 30), rel=1e-3)
    assert (time["median_us"], time["p80_us"]) == pytest.approx((12, 22), rel=1e-3)
    assert sum(time["histogram"]["counts"]) == time["launches"] == 5
    assert time["flushed_bytes"] == 4 * 65536

    # The results are copied out before any launch but the first, the arrays in again after that.
    order = [name for name in done.trace.names() if name in (
        "cuLaunchKernelEx", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD8Async",
        "cuEventRecord")]  # fmt: skip
    upload, fetch, launch = ["cuMemcpyHtoDAsync"], ["cuMemcpyDtoHAsync"], ["cuLaunchKernelEx"]
    timed = ["cuMemsetD8Async", "cuEventRecord", *launch, "cuEventRecord"]
    assert order == (
        upload * 2 + launch + fetch * 2 + upload * 2 + launch * time["warm_up"] + timed * 5
    )
    # Nobody waits in between: the host would be timed.
    queued = done.trace[[c["call"] for c in done.trace].index("cuMemsetD8Async") :]
    waits = [i for i, c in enumerate(queued) if c["call"].endswith("Synchronize")]
    assert waits[0] > max(i for i, c in enumerate(queued) if c["call"] == "cuLaunchKernelEx")
    launches = done.trace.named("cuLaunchKernelEx")
    assert len({json.dumps([c["params"], c["grid"], c["stream"]]) for c in launches}) == 1
    assert_nothing_leaks(done)


def test_time_in_tables():
    done = command(
        *AXPY, "--time", 2, env={"STUB_CUDA_EVENT_NS": "12340;1;23450;1", "STUB_CUDA_L2": "0"}
    )
    assert done.returncode == 0, done.stderr
    for word in ("12.34", "23.45", "2 launches by events\n", "times in us"):
        assert word in done.stdout


# --- devices --------------------------------------------------------------------------------------


def test_the_first_gpu_that_the_file_fits():
    done = command(*AXPY, devices=3, capability=[(8, 0), (10, 0), (9, 0)])
    assert done.returncode == 0, done.stderr
    (launch,) = done.trace.named("cuLaunchKernelEx")
    assert launch["device"] == 2
    assert "Stub GPU (cuda:2)" in done.stdout


def test_a_gpu_by_its_number():
    done = command(*AXPY, "--device", "cuda:1", devices=2)
    assert done.returncode == 0, done.stderr
    (launch,) = done.trace.named("cuLaunchKernelEx")
    assert launch["device"] == 1


def test_the_image_that_fits_is_loaded(tmp_path):
    pytest.importorskip("zstandard")
    pytest.importorskip("lz4")
    from helpers.fatbin_files import entry, fatbin, host_file

    data = Path(CUBIN).read_bytes()
    ptx = (DATA / "run_kernels.ptx").read_bytes()
    other = data[:48] + (0x06005004).to_bytes(4, "little") + data[52:]  # e_flags of sm_80
    other = other.replace(b"-arch sm_90", b"-arch sm_80")
    parts = fatbin(
        entry("elf", other, arch=80), entry("ptx", ptx), entry("elf", data, method="lz4")
    )
    path = tmp_path / "x.o"
    path.write_bytes(host_file({".nv_fatbin": parts}))
    done = command(path, *AXPY[1:])
    assert done.returncode == 0, done.stderr
    assert f"{path}, image 3 (sm_90): cubin for sm_90" in done.stdout
    (loaded,) = done.trace.named("cuLibraryLoadData")
    assert loaded["architecture"] == 90
    assert "has cubins for sm_80, sm_90; PTX for sm_90" in error_of(
        command(path, *AXPY[1:], capability=(10, 0))
    )


PTX = [str(DATA / "run_kernels.ptx"), *AXPY[1:]]


@pytest.mark.parametrize(
    ("stub", "cases"),
    [
        ({"capability": (8, 0)},
         [(AXPY, "no GPU to run it on: found Stub GPU (8.0); it has cubins for sm_90. PTX runs "
           "without one: --device sim:sm_90a"),
          ([*AXPY, "--device", "0"], "--device cuda:0: Stub GPU (8.0) loads no image of")]),
        ({"devices": 2},
         [([*AXPY, "--device", "2"], "--device cuda:2: must be in [0, 2)"),
          ([*PTX, "--device", "0"], "this is PTX text"),
          (PTX, "give --device sim:sm_90a")]),
        ({"env": {"STUB_CUDA_DEVICES": "0"}},
         [(AXPY, "no GPU to run it on: an NVIDIA driver is there, but it sees no GPU; it has"),
          ([*AXPY, "--device", "0"], "--device cuda:0: an NVIDIA driver is there, but")]),
    ],
)  # fmt: skip
def test_devices_that_do_not_do(stub, cases):
    done = in_one_process([(arguments, "") for arguments, _ in cases], **stub)
    for (status, out, err), (_, reason) in zip(done.report, cases, strict=True):
        assert (status, out) == (1, "")
        assert reason in err
        assert err.count("\n") == 1
    assert not done.trace.named("cuLaunchKernelEx")


# --- mistakes, in one process ---------------------------------------------------------------------

LOOP = """
import contextlib, gc, io, json, sys
from cakert.cli.main import main
from stub_child import fail, library, mark, report

found = []
for number, (arguments, rules) in enumerate(json.loads(sys.argv[1])):
    fail(rules)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    fail("")
    gc.collect()
    found.append([status, out.getvalue(), err.getvalue()])
    mark(str(number))
report(found)
"""


def in_one_process(cases: list[tuple[list[str], str]], **stub) -> StubResult:
    given = json.dumps([[["run", *map(str, arguments)], rules] for arguments, rules in cases])
    return run_with_stub(LOOP, arguments=[given], **stub)


MISTAKES = [
    (AXPY[:-2], "axpy takes 4 arguments (of 8, 8, 4, 4 bytes), got 3 --arg"),
    ([*AXPY[:-1], "n:i64=1"], "argument 3 (n): the parameter of axpy has 4 bytes, i64 has 8"),
    ([*AXPY, "--block", "257"], "axpy was compiled for at most 256 threads, got 257"),
    ([*AXPY, "--block", "2048"], "at most 256 threads"),
    ([*AXPY, "--grid", "1,1,65536"], "grid.z must be in [1, 65535] on this device; got 65536"),
    ([*AXPY, "--block", "1,1,65"], "block.z must be in [1, 64] on this device; got 65"),
    ([*AXPY, "--shared", "228K"], "shared_bytes must be in [0, 232448] on this device"),
    ([*AXPY, "--cluster", "3"], "--grid: must be a multiple of the cluster 3x1x1"),
    ([*AXPY, "--grid", "32", "--cluster", "32"], "cluster must have at most 16 blocks; got 32"),
    ([CUBIN, "--grid", "1", "--block", "1"], "there are 2 kernels, name one of them"),
]


def test_mistakes_are_found_before_anything_is_launched():
    done = in_one_process([(arguments, "") for arguments, _ in MISTAKES])
    for (status, out, err), (_, reason) in zip(done.report, MISTAKES, strict=True):
        assert (status, out) == (1, "")
        assert err.startswith("cakert: error: ")
        assert err.count("\n") == 1
        assert reason in err
    assert not done.trace.named("cuLaunchKernelEx")
    assert_nothing_leaks(done)


FAILURES = [
    ("cuLibraryLoadData", 209, 1),
    ("cuLibraryGetKernel", 400, 1),
    ("cuMemAllocAsync", 2, 2),
    ("cuMemcpyHtoDAsync", 700, 1),
    ("cuKernelGetParamInfo", 999, 1),
    ("cuFuncLoad", 209, 1),
    ("cuLaunchKernelEx", 701, 1),
    ("cuCtxSynchronize", 700, 1),
    ("cuMemcpyDtoHAsync", 716, 1),
    ("cuMemcpyHtoDAsync", 700, 3),
    ("cuMemAlloc", 2, 1),
    ("cuEventCreate", 2, 3),
    ("cuLaunchKernelEx", 719, 3),
    ("cuMemsetD8Async", 700, 2),
    ("cuEventRecord", 700, 2),
    ("cuCtxSynchronize", 718, 2),
    ("cuEventElapsedTime", 700, 1),
]


def test_failures_of_the_driver_are_named(tmp_path):
    out = tmp_path / "r.npz"
    arguments = [*AXPY, "--time", "2", "--out", str(out)]
    cases = [(arguments, f"{call}={status}@{nth}") for call, status, nth in FAILURES]
    done = in_one_process(cases, env={"STUB_CUDA_L2": "4096"})
    for (status, text, err), (call, code, _) in zip(done.report, FAILURES, strict=True):
        assert (status, text) == (1, ""), call
        assert err.startswith(f"cakert: error: {call} failed with CUDA_ERROR_"), call
        assert f"({code})" in err
        assert err.count("\n") == 1
    assert not out.exists()
    assert_nothing_leaks(done)
    # From the launch on, the message says what was launched.
    for (_, _, err), (call, _, _) in list(zip(done.report, FAILURES, strict=True))[7:]:
        assert "kernel axpy, grid 4x3, block 128x2" in err, call


def test_a_kernel_without_arrays(tmp_path):
    """It runs on the first GPU; on another one nothing would say where."""
    arguments = [CUBIN, "axpy", "--grid", "1", "--block", "1", "--arg", "u64=0", "--arg", "u64=0",
                 "--arg", "f32=1", "--arg", "i32=0"]  # fmt: skip
    done = in_one_process([(arguments, ""), ([*arguments, "--device", "1"], "")], devices=2)
    (status, text, _), (other, _, err) = done.report
    assert (status, other) == (0, 1)
    assert "arrays after one launch" not in text
    assert "needs at least one array" in err
    assert [call["device"] for call in done.trace.named("cuLaunchKernelEx")] == [0]


def test_code_to_be_linked_is_refused(tmp_path):
    data = bytearray(Path(CUBIN).read_bytes())
    data[16:18] = struct.pack("<H", 1)  # e_type: ET_REL
    path = tmp_path / "part.cubin"
    path.write_bytes(data)
    assert "part.cubin: it is still to be linked" in error_of(command(path, *AXPY[1:]))


def test_a_file_that_says_nothing_of_parameters_is_left_to_the_driver(tmp_path):
    path = tmp_path / "bare.cubin"
    path.write_bytes(Path(CUBIN).read_bytes().replace(b".nv.info.axpy", b".nv.nope.axpy"))
    done = command(path, *AXPY[1:])
    # The stub takes it for a kernel of one parameter.
    assert "axpy takes 1 arguments, the parameters of the kernel; got 4" in error_of(done)
    assert_nothing_leaks(done)


def test_no_framework_is_imported():
    argv = ["run", *AXPY]
    done = run_with_stub(
        f"import sys; from cakert.cli.main import main; assert main({argv!r}) == 0; "
        "assert not {'torch', 'jax', 'cupy'} & set(sys.modules)"
    )
    assert "Stub GPU" in done.stdout
