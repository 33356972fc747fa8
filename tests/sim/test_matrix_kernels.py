"""The matrix instructions in whole kernels: reader, decoder, warps and engine included."""

import shutil
import struct
import subprocess

import ml_dtypes
import numpy as np
import pytest
from matrix_fakes import hopper_descriptor, tile_place

from cakert.sim.core.global_memory import GlobalMemory
from cakert.sim.decode.decoder import decode
from cakert.sim.faults import Fault
from cakert.sim.machine.launch import run_launch
from cakert.sim.ptx.reader import read

SCHEDULES = ("eager", "lazy", "random")
COLUMNS = 32
A_BYTES, B_BYTES = 64 * 128, COLUMNS * 128


def run(text, arrays, *, threads, arch="sm_90a", schedule="eager", seed=0):
    """Launch one CTA of the only kernel in `text` on numpy arrays."""
    module = read(text)
    (function,) = module.functions.values()
    code = decode(module, function, arch=arch, global_symbols={})
    memory = GlobalMemory()
    for number, array in enumerate(arrays):
        memory.register(array.ctypes.data, array.nbytes, True, f"array {number}", array)
    return run_launch(
        code,
        arch=arch,
        grid=(1, 1, 1),
        block=(threads, 1, 1),
        params=struct.pack(f"{len(arrays)}Q", *(array.ctypes.data for array in arrays)),
        memory=memory,
        sms=1,
        schedule=schedule,
        seed=seed,
    )


def wgmma_kernel(*, fence=True, proxy_fence=True, wait=True, a_registers=False):
    """D = A * B^T over K = 64 with 128B-swizzled K-major tiles that arrive as images in global."""
    d = ", ".join(f"%f{i}" for i in range(COLUMNS // 2))
    descriptor = hopper_descriptor(0, 16, 1024, 128)
    lines = [
        ".version 9.0",
        ".target sm_90a",
        ".address_size 64",
        ".visible .entry gemm(.param .u64 p0, .param .u64 p1)",
        ".maxntid 128, 1, 1",
        "{",
        ".reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .f32 %f<32>; .reg .pred %p<4>;",
        f".shared .align 1024 .b8 tiles[{A_BYTES + B_BYTES}];",
        "ld.param.u64 %rd1, [p0];",
        "ld.param.u64 %rd2, [p1];",
        "mov.u32 %r1, %tid.x;",
        "mov.u32 %r2, tiles;",
        "shl.b32 %r3, %r1, 4;",
        "cvt.u64.u32 %rd3, %r3;",
        "add.s64 %rd4, %rd1, %rd3;",
        "add.s32 %r4, %r2, %r3;",
    ]
    for step in range((A_BYTES + B_BYTES) // 2048):
        lines += [
            f"ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%rd4+{2048 * step}];",
            f"st.shared.v4.u32 [%r4+{2048 * step}], {{%r10, %r11, %r12, %r13}};",
        ]
    lines += ["fence.proxy.async.shared::cta;"] * proxy_fence
    lines += [
        "bar.sync 0;",
        "shr.u32 %r5, %r2, 4;",
        "cvt.u64.u32 %rd5, %r5;",
        f"add.s64 %rd6, %rd5, {descriptor};",
        f"add.s64 %rd7, %rd6, {A_BYTES >> 4};",
    ]
    if a_registers:
        lines += [f"mov.b32 %r{16 + i}, 0x3F803F80;" for i in range(4)]
    lines += ["wgmma.fence.sync.aligned;"] * fence
    for step in range(4):
        a = "{%r16, %r17, %r18, %r19}" if a_registers else "%rd6"
        trans = "0" if a_registers else "0, 0"
        lines += [
            f"wgmma.mma_async.sync.aligned.m64n{COLUMNS}k16.f32.bf16.bf16 {{{d}}}, {a}, %rd7, "
            f"{int(step > 0)}, 1, 1, {trans};",
            "add.s64 %rd6, %rd6, 2;",
            "add.s64 %rd7, %rd7, 2;",
        ]
    lines += ["wgmma.commit_group.sync.aligned;"]
    lines += ["wgmma.wait_group.sync.aligned 0;"] * wait
    lines += [f"mul.wide.u32 %rd8, %r1, {2 * COLUMNS};", "add.s64 %rd9, %rd2, %rd8;"]
    lines += [f"st.global.f32 [%rd9+{4 * i}], %f{i};" for i in range(COLUMNS // 2)]
    return "\n".join([*lines, "ret;", "}"])


def wgmma_arrays():
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((rows, 64)).astype(ml_dtypes.bfloat16) for rows in (64, COLUMNS))
    image = np.zeros((A_BYTES + B_BYTES) // 2, np.uint16)
    for matrix, start in ((a, 0), (b, A_BYTES)):
        for mn, k in np.ndindex(matrix.shape):
            place = tile_place(mn, k, 2, swizzle=128, major="k", lbo=16, sbo=1024)
            image[(start + place) // 2] = matrix[mn, k].view(np.uint16)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    return image, np.zeros((128, COLUMNS // 2), np.float32), exact


def gathered(out):
    """Registers of the 128 threads -> D, by PTX ISA 9.7.15.5.1."""
    d = np.empty((64, COLUMNS))
    for t, i in np.ndindex(out.shape):
        row = 16 * (t // 32) + (t % 32) // 4 + 8 * ((i // 2) % 2)
        d[row, 8 * (i // 4) + 2 * (t % 4) + i % 2] = out[t, i]
    return d


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wgmma_gemm(schedule):
    image, out, exact = wgmma_arrays()
    report = run(wgmma_kernel(), [image, out], threads=128, schedule=schedule)
    assert np.abs(gathered(out) - exact).max() < 1e-5
    assert not report.notes
    assert report.counters["tensor-cycles-sm90"] == 4 * COLUMNS // 2


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_wgmma_with_a_in_registers(schedule):
    image, out, _ = wgmma_arrays()
    run(wgmma_kernel(a_registers=True), [image, out], threads=128, schedule=schedule)
    tile = image[A_BYTES // 2 :].view(ml_dtypes.bfloat16).astype(np.float64)
    # A of ones: each column of D is the sum of a row of B, which the swizzle only permutes.
    sums = tile.reshape(COLUMNS, 64).sum(axis=1)
    assert np.abs(gathered(out) - sums).max() < 1e-5


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("missing", "fault"),
    [
        ("fence", "wgmma-no-fence"),
        ("proxy_fence", "missing-proxy-fence"),
        ("wait", "register-in-flight"),
    ],
)
def test_what_wgmma_needs(schedule, missing, fault):
    image, out, _ = wgmma_arrays()
    with pytest.raises(Fault) as caught:
        run(wgmma_kernel(**{missing: False}), [image, out], threads=128, schedule=schedule)
    assert caught.value.name == fault


CUDA = r"""
#include <cstdint>
extern "C" __global__ void tile(const uint4* a, const uint4* b, float* d, uint4* t) {
  // a: 16 x 16 bf16, b: 16 x 8 bf16 (k-major rows), d: 16 x 8, t: a transposed
  __shared__ __align__(16) uint4 sm[16 * 2 + 16 + 32];
  int lane = threadIdx.x;
  sm[lane] = a[lane];
  if (lane < 16) sm[32 + lane] = b[lane];
  __syncwarp();
  uint32_t base = (uint32_t)__cvta_generic_to_shared(sm);
  uint32_t pa = base + ((lane % 16) * 2 + lane / 16) * 16, pb = base + (32 + lane % 16) * 16;
  uint32_t a0, a1, a2, a3, b0, b1;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a0), "=r"(a1), "=r"(a2), "=r"(a3) : "r"(pa));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(b0), "=r"(b1) : "r"(pb));
  float c[4] = {1.f, 2.f, 3.f, 4.f};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
               "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  int g = lane / 4, m = 2 * (lane % 4);
  d[g * 8 + m] = c[0]; d[g * 8 + m + 1] = c[1];
  d[(g + 8) * 8 + m] = c[2]; d[(g + 8) * 8 + m + 1] = c[3];
  // Block (i, j) of a goes, transposed, to block (j, i): one half by .trans, one by movmatrix.
  uint32_t out = base + (48 + (lane % 8 + (lane / 8 % 2) * 8) * 2 + lane / 16) * 16;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(a0));
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(a2));
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};"
               :: "r"(out), "r"(a0), "r"(a2) : "memory");
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};"
               :: "r"(out + 16), "r"(a1), "r"(a3) : "memory");
  __syncwarp();
  t[lane] = sm[48 + lane];
}
"""


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_warp_matrices_as_nvcc_compiles_them(tmp_path, arch):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    source = tmp_path / "tile.cu"
    source.write_text(CUDA)
    target = tmp_path / "tile.ptx"
    subprocess.run([nvcc, "-ptx", f"-arch={arch}", str(source), "-o", str(target)], check=True)
    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((16, 16), (16, 8)))
    d, t = np.zeros((16, 8), np.float32), np.zeros((16, 16), ml_dtypes.bfloat16)
    run(target.read_text(), [a, b, d, t], threads=32, arch=arch)
    start = np.tile([1.0, 2.0], (16, 4))
    start[8:] += 2
    exact = a.astype(np.float64) @ b.astype(np.float64) + start
    assert np.abs(d - exact).max() < 1e-5
    assert (t.view(np.uint16) == a.view(np.uint16).T).all()
