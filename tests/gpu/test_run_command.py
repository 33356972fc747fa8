"""`cakert run` on a GPU, beside the simulator's result of the same kernel; time and failures."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from helpers import cuda_tools

from cakert.cli.main import main
from cakert.runtime import driver
from cakert.runtime.event import Event
from cakert.runtime.memory import Workspace

DATA = Path(__file__).resolve().parents[1] / "data"
SIMULATED = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
WINDOW = struct.pack("<qif", 1000, 50, 0.75).hex()
REVERSE = ["_Z7rev", "--grid", "1", "--block", "64", "--arg", "out:bf16[64]=nan", "--arg",
           "in:bf16[4096]=randn", "--arg", f"bytes={WINDOW}"]  # fmt: skip


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed cubin for sm_90 with its PTX beside it; for others ptxas makes one."""
    folder = tmp_path_factory.mktemp("kernels")
    for name in ("run_kernels.ptx", "run_kernels.cubin"):
        (folder / name).write_bytes((DATA / name).read_bytes())
    major, minor = driver.device_capability(0)
    if (major, minor) != (9, 0):
        ptxas = cuda_tools.find("ptxas")
        if ptxas is None:
            pytest.skip(f"no ptxas to make a cubin for sm_{major}{minor}")
        cuda_tools.output(ptxas, f"-arch=sm_{major}{minor}", folder / "run_kernels.ptx", "-o",
                          folder / "run_kernels.cubin")  # fmt: skip
    return folder / "run_kernels.cubin"


def simulator() -> list[str]:
    return ["--device", f"sim:{SIMULATED[driver.device_capability(0)]}"]


def axpy(count: int, rng: np.random.Generator) -> list[str]:
    return ["axpy", "--grid", str(-(-count // 256)), "--block", "256", "--seed",
            str(rng.integers(1 << 30)), "--arg", f"y:f32[{count}]=randn", "--arg",
            f"x:f32[{count}]=rand:-8:8", "--arg", "a:f32=0.7", "--arg",
            f"n:i32={count - 3}"]  # fmt: skip


def run(*arguments: object, status: int = 0) -> None:
    assert main(["run", *map(str, arguments)]) == status


def test_axpy_agrees_with_the_simulator(cubin, tmp_path, rng):
    arguments, out = axpy(3000, rng), tmp_path / "gpu.npz"
    run(cubin, *arguments, "--device", "cuda:0", "--out", out)
    run(cubin, *arguments, *simulator(), "--compare", out)
    with np.load(out) as results:
        y = results["y"]
    run(cubin, *arguments[:-1], "n:i32=0", "--out", tmp_path / "before.npz")
    with np.load(tmp_path / "before.npz") as before:
        wide = before["y"].astype(np.float64)
        wide[:2997] += np.float64(np.float32(0.7)) * before["x"][:2997].astype(np.float64)
    np.testing.assert_allclose(y, wide, rtol=1e-6, atol=1e-6)
    assert (y[2997:] == wide[2997:]).all()


@pytest.mark.parametrize("shared", ["128", "100K"])
def test_a_struct_agrees_with_the_simulator(cubin, tmp_path, shared, rng):
    arguments = [*REVERSE, "--shared", shared, "--seed", str(rng.integers(1 << 30))]
    run(cubin, *arguments, "--out", tmp_path / "gpu.npz")
    run(cubin, *arguments, *simulator(), "--compare", tmp_path / "gpu.npz", "--out",
        tmp_path / "sim.npz")  # fmt: skip
    run(cubin, *arguments, "--compare", tmp_path / "sim.npz")
    with np.load(tmp_path / "gpu.npz") as results:
        out = results["out"].view(ml_dtypes.bfloat16).astype(np.float32)
        source = results["in"].view(ml_dtypes.bfloat16).astype(np.float32)
    expected = (source[1000:1050][::-1] * np.float32(0.75)).astype(ml_dtypes.bfloat16)
    assert (out[:50] == expected.astype(np.float32)).all()
    assert np.isnan(out[50:]).all()


def test_a_difference_is_seen(cubin, tmp_path, rng):
    arguments, out = axpy(300, rng), tmp_path / "r.npz"
    run(cubin, *arguments, "--out", out)
    run(cubin, *arguments[:-1], "n:i32=298", "--compare", out, status=1)


def test_time_of_a_memory_bound_kernel(cubin, tmp_path, capsys, rng):
    """The times make sense, and the results are those of one launch."""
    count = 1 << 24
    arguments = axpy(count, rng)
    run(cubin, *arguments, "--out", tmp_path / "once.npz")
    capsys.readouterr()
    run(cubin, *arguments, "--time", "50", "--json", "--compare", tmp_path / "once.npz")
    time = json.loads(capsys.readouterr().out)["time"]
    print({key: time[key] for key in ("min_us", "median_us", "p80_us", "max_us")})
    assert len(time["microseconds"]) == time["launches"] == 50
    assert 0 < time["min_us"] <= time["median_us"] <= time["p80_us"] <= time["max_us"]
    # Three arrays through memory: faster than any HBM would mean that they came from the cache.
    terabytes = 3 * 4 * count / time["median_us"] / 1e6
    print(f"{terabytes:.2f} TB/s")
    assert 0.2 < terabytes < 9


def test_time_of_a_small_kernel_is_not_that_of_the_host(cubin, capsys):
    run(cubin, "axpy", "--grid", "1", "--block", "32", "--arg", "f32[32]=rand", "--arg",
        "f32[32]=rand", "--arg", "f32=1", "--arg", "i32=32", "--time", "200", "--json")  # fmt: skip
    time = json.loads(capsys.readouterr().out)["time"]
    print({key: time[key] for key in ("min_us", "median_us", "p80_us", "max_us")})
    assert 0.5 < time["median_us"] < 15


def test_an_image_of_a_fatbin(cubin, tmp_path, capsys, rng):
    pytest.importorskip("zstandard")
    pytest.importorskip("lz4")
    from helpers.fatbin_files import entry, fatbin, host_file

    major, minor = driver.device_capability(0)
    parts = fatbin(
        entry("ptx", cubin.with_suffix(".ptx").read_bytes(), method="zstd"),
        entry("elf", cubin.read_bytes(), arch=10 * major + minor, method="zstd"),
    )
    (tmp_path / "x.o").write_bytes(host_file({".nv_fatbin": parts}))
    arguments = axpy(1000, rng)
    run(tmp_path / "x.o", *arguments, "--out", tmp_path / "r.npz")
    assert f"x.o, image 2 (sm_{major}{minor})" in capsys.readouterr().out
    run(tmp_path / "x.o", *arguments, *simulator(), "--compare", tmp_path / "r.npz")


def test_a_kernel_that_fails_is_named(cubin):
    """In a process of its own: the context is lost."""
    done = subprocess.run(
        [sys.executable, "-m", "cakert.cli", "run", str(cubin), "axpy", "--grid", "4194304",
         "--block", "256", "--arg", "f32[16]=rand", "--arg", "f32[16]=rand", "--arg", "f32=1",
         "--arg", "i32=1073741824"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    for words in ("CUDA_ERROR_ILLEGAL_ADDRESS", "kernel axpy, grid 4194304, block 256"):
        assert words in done.stderr


def test_events_measure_work():
    """Clearing sixteen times the memory takes longer, whoever else uses the GPU."""
    memory = Workspace(0, 1 << 30)
    marks = [Event(0) for _ in range(3)]
    memory.clear(stream=0)
    marks[0].record()
    for _ in range(4):
        memory.clear(stream=0)
    marks[1].record()
    for _ in range(64):
        memory.clear(stream=0)
    marks[2].record()
    marks[2].synchronize()
    few, many = marks[1].elapsed_us(marks[0]), marks[2].elapsed_us(marks[1])
    print(f"{few:.1f} us, {many:.1f} us")
    assert many > 4 * few > 0
    assert marks[2].elapsed_us(marks[0]) == pytest.approx(few + many, rel=1e-3)
