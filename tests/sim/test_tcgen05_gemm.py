"""A GEMM on tcgen05, from CUDA through nvcc's PTX to the result, and its planted faults."""

from __future__ import annotations

import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tcgen05_fakes import idesc

from cakert.sim.faults import Fault

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

SOURCE = Path(__file__).parent / "tcgen05_gemm.cu"
SCHEDULES = ["eager", "lazy", "random"]
K = 64


@functools.cache
def compiled(arch: str, m: int, n: int, ws: bool, bf16: bool, fault: int) -> str:
    word = idesc(m, n, a=int(bf16))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "gemm.ptx"
        command = ["nvcc", "-ptx", f"-arch={arch}", f"-DM={m}", f"-DN={n}", f"-DWS={int(ws)}"]
        command += [f"-DIDESC={word:#x}", f"-DFAULT={fault}", "-o", str(target), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            if "Unsupported gpu architecture" in done.stderr or "is not defined" in done.stderr:
                pytest.skip(f"this nvcc does not know {arch}")
            raise AssertionError(done.stderr)
        return target.read_text()


def run(m=128, n=128, *, ws=False, dtype=ml_dtypes.bfloat16, arch="sm_100a", fault=0, **launch):
    """Run the kernel; returns what it wrote, what is right, and the report."""
    from cakert.sim.core.global_memory import GlobalMemory
    from cakert.sim.decode.decoder import decode
    from cakert.sim.machine.launch import run_launch
    from cakert.sim.ptx.reader import read

    text = compiled(arch, m, n, ws, dtype is ml_dtypes.bfloat16, fault)
    module = read(text)
    code = decode(module, module.functions["gemm"], arch=arch, global_symbols={})
    random = np.random.default_rng(launch.get("seed", 0))
    a = random.standard_normal((m, K)).astype(dtype)
    b = random.standard_normal((n, K)).astype(dtype)
    d = np.full((m, n), np.nan, np.float32)
    memory = GlobalMemory()
    for name, array in (("a", a), ("b", b), ("d", d)):
        memory.register(array.ctypes.data, array.nbytes, True, name, array)
    report = run_launch(
        code,
        arch=arch,
        grid=(1, 1, 1),
        block=(160, 1, 1),
        shared_bytes=(m + n) * 128 + 1024,
        params=struct.pack("3Q", *(array.ctypes.data for array in (a, b, d))),
        memory=memory,
        sms=1,
        **launch,
    )
    return d, 2 * (a.astype(np.float64) @ b.astype(np.float64).T), report


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("m", "n", "ws", "dtype", "arch"),
    [
        (128, 128, False, ml_dtypes.bfloat16, "sm_100a"),
        (128, 64, False, np.float16, "sm_103a"),
        (64, 128, True, ml_dtypes.bfloat16, "sm_103a"),
        (64, 256, True, np.float16, "sm_100a"),
    ],
)
def test_gemm(m, n, ws, dtype, arch, schedule):
    got, exact, report = run(m, n, ws=ws, dtype=dtype, arch=arch, schedule=schedule, seed=1)
    # Four instructions round once each: three half-ulp errors of partial sums beyond the last.
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-4)
    assert report.notes == []
    assert report.counters["mma-shared-bytes"] == 4 * (m + n) * 32


FAULTS = {
    1: ({"missing-proxy-fence"}, SCHEDULES),
    2: ({"tmem-in-flight", "tmem-uninitialised", "tcgen05-uncommitted"}, ["lazy"]),
    3: ({"tmem-leak"}, SCHEDULES),
    4: ({"tmem-store-in-flight"}, SCHEDULES),
    5: ({"tmem-wrong-warp"}, SCHEDULES),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_named(fault):
    names, schedules = FAULTS[fault]
    for schedule in schedules:
        with pytest.raises(Fault) as caught:
            run(fault=fault, schedule=schedule)
        assert caught.value.name in names
        assert caught.value.where is not None
        assert "tcgen05" in caught.value.where.text
