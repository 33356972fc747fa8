"""What compilers write: nvcc where it is installed, and LLVM's text with debug data."""

from __future__ import annotations

import re
import subprocess

import pytest
from cubin_toolchain import find_toolchain

from cakert.sim.ptx import read
from cakert.sim.ptx.model import Address, LabelRef, Symbol, Vector

SOURCE = r"""
#include <cstdio>
__constant__ float weights[4] = {1.5f, -2.0f, 0.25f};
__constant__ short small[2][3] = {{1, -2, 3}, {4, 5, 6}};
__device__ unsigned counter = 7;
extern __shared__ __align__(128) unsigned char dynamic[];

__device__ void wait(unsigned bar, unsigned parity) {
  asm volatile("{\n .reg .pred P1;\n LAB_WAIT:\n"
               " mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
               " @P1 bra DONE;\n bra LAB_WAIT;\n DONE:\n }" :: "r"(bar), "r"(parity));
}
extern "C" __global__ void waits(unsigned bar) { wait(bar, 0); wait(bar + 8, 1); }

extern "C" __global__ void staged(float *out, const float *in) {
  __shared__ float tile[2][32];
  tile[threadIdx.y][threadIdx.x] = in[threadIdx.x] * weights[threadIdx.x & 3];
  dynamic[threadIdx.x] = small[threadIdx.y & 1][threadIdx.x % 3];
  __syncthreads();
  out[threadIdx.x] = tile[1 - threadIdx.y][31 - threadIdx.x] + dynamic[0];
  atomicAdd(&counter, 1u);
}

extern "C" __global__ void indexed(int *out, const int *in) {
  int held[16];
  for (int i = 0; i < 16; ++i) held[i] = in[i];
  for (int i = 0; i < 16; ++i) held[in[i] & 15] += i;
  out[threadIdx.x] = held[in[threadIdx.x] & 15];
}

extern "C" __global__ void __launch_bounds__(64, 2) __cluster_dims__(2, 1, 1)
jumps(int *out, const int *in) {
  int v = in[threadIdx.x];
  asm volatile("{\n ts: .branchtargets L0, L1, L0;\n brx.idx %1, ts;\n L0: mov.b32 %0, 5;\n"
               " bra END;\n L1: mov.b32 %0, 7;\n END:\n }" : "+r"(v) : "r"(out[0]));
  switch (out[1]) {
    case 0: v = v * 3; break;
    case 1: out[7] = v / 3; v = 1; break;
    case 2: __syncthreads(); v -= out[9]; break;
    case 3: v = __shfl_xor_sync(~0u, v, 3); break;
  }
  out[threadIdx.x] = v;
}

__device__ __noinline__ int twice(int value) { return value * 2 + clock(); }
extern "C" __global__ void calls(int *out, int (*chosen)(int)) {
  printf("%d %f\n", twice(out[0]), 1.5);
  out[1] = chosen(out[2]);
}
"""


@pytest.fixture(scope="module", params=["", "-lineinfo", "-G"])
def module(request, tmp_path_factory):
    toolchain = find_toolchain()
    if toolchain is None:
        pytest.skip("no nvcc on PATH, in CUDA_HOME or from the wheels of the extra [cubins]")
    folder = tmp_path_factory.mktemp("nvcc")
    (folder / "toys.cu").write_text(SOURCE)
    flags = ["-ptx", "-arch=sm_90a", *request.param.split()]
    run = subprocess.run(
        [toolchain.nvcc, *flags, "toys.cu"], cwd=folder, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return read((folder / "toys.ptx").read_text()), request.param


def test_nvcc_kernels_are_all_there(module):
    read_, _ = module
    assert set(read_.functions) == {"waits", "staged", "indexed", "jumps", "calls"}
    assert read_.target == "sm_90a"
    directives = read_.functions["jumps"].directives
    assert directives["maxntid"] == (64, 1, 1)
    assert directives["minnctapersm"] == (2,)
    assert directives["explicitcluster"] == ()
    assert directives["reqnctapercluster"] == (2, 1, 1)


def test_nvcc_variables(module):
    read_, _ = module
    sizes = {name: (each.space, each.size) for name, each in read_.variables.items()}
    assert sizes["weights"] == ("const", 16)
    assert sizes["counter"] == ("global", 4)
    assert read_.variables["counter"].init == (7).to_bytes(4, "little")
    assert read_.variables["weights"].init[:12].hex() == "0000c03f000000c00000803e"
    assert read_.variables["small"].init[:4] == b"\1\0\xfe\xff"
    assert read_.variables["dynamic"].extern
    assert read_.variables["dynamic"].align == 128
    assert any((each.init or b"").startswith(b"%d %f\n") for each in read_.variables.values())
    everywhere = [*read_.functions["staged"].variables, *read_.variables.values()]
    assert [each.size for each in everywhere if "tile" in each.name] == [256]
    (depot,) = (each for each in read_.functions["indexed"].variables if each.space == "local")
    assert depot.size >= 64


def test_nvcc_inline_assembly_has_its_own_labels(module):
    read_, flags = module
    if flags == "-G":
        pytest.skip("without inlining both waits are one device function")
    function = read_.functions["waits"]
    waits = [each for each in function.body if each.opcode == "mbarrier"]
    assert len(waits) == 2
    guards = [each.guard for each in function.body if each.guard is not None]
    assert len(set(guards)) == 2
    loops = [each.operands[0].name for each in function.body if each.opcode == "bra"]
    assert len(set(loops)) == 4
    for name, wait in zip((loops[1], loops[3]), waits, strict=True):
        assert function.body[function.labels[name]] is wait


def test_nvcc_branch_tables(module):
    read_, _ = module
    function = read_.functions["jumps"]
    # The switch may or may not be a table of its own.
    jump = next(each for each in function.body if each.opcode == "brx")
    table = jump.operands[1]
    assert isinstance(table, LabelRef)
    first, second, third = function.branch_targets[table.name]
    moves = [function.body[function.labels[name]].text for name in (first, second)]
    assert [move.split(", ")[1] for move in moves] == ["5", "7"]
    assert third == first


def test_nvcc_calls(module):
    read_, _ = module
    calls = [each for each in read_.functions["calls"].body if each.opcode == "call"]
    named = {each.operands[1].name for each in calls if isinstance(each.operands[1], Symbol)}
    assert "vprintf" in named
    indirect = [each for each in calls if isinstance(each.operands[-1], LabelRef)]
    assert len(indirect) == 1
    assert all(isinstance(each.operands[0], Vector) for each in calls)
    assert any(re.match("_Z5twicei", name) for name in named)


LLVM = """\
//
// Generated by LLVM NVPTX Back-End
//

.version 8.7
.target sm_90a, debug
.address_size 64

	// .globl	rows                    // -- Begin function rows
.extern .shared .align 16 .b8 global_smem[];
                                        // @rows
.visible .entry rows(
	.param .u64 .ptr .global .align 1 rows_param_0,
	.param .u32 rows_param_1
)
.reqntid 128
{
	.reg .pred 	%p<3>;
	.reg .b16 	%rs<2>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<4>;
	.loc	1 18 0                          // rows.py:18:0
$L__func_begin0:
	.loc	1 18 0                          // rows.py:18:0

// %bb.0:
	ld.param.b64 	%rd1, [rows_param_0];
$L__tmp0:
	.loc	1 24 26                         // rows.py:24:26
	mov.u32 	%r1, %ctaid.x;
	setp.lt.s32 	%p1, %r1, 5;
	// begin inline asm
	mov.u32 %r5, 0x0;
	mov.u32 %r6, 0x0;
	@%p1 ld.global.v2.b32 { %r5, %r6 }, [ %rd1 + 0 ];
	@!%p1 mov.u32 %r6, 0x0;
	// end inline asm
	st.shared.v2.b32 	[global_smem+8], {%r5, %r6};
	{ .reg .b16 tmp; mov.b32 {tmp, %rs1}, %r5; }
	{ .reg .b16 tmp; mov.b32 {%rs1, tmp}, %r6; }
	shfl.sync.bfly.b32	%r7|%p2, %r5, 16, 31, -1;
	ret;
$L__tmp1:
$L__func_end0:
                                        // -- End function
}
	.file	1 "/home/x/rows.py"
	.section	.debug_abbrev
	{
.b8 1                                   // Abbreviation Code
.b8 17                                  // DW_TAG_compile_unit }
.b8 0                                   // EOM(3)
	}
	.section	.debug_info
	{
.b32 69                                 // Length of Unit
.b32 .debug_abbrev                      // Offset Into Abbrev. Section
.b64 $L__func_begin0
	}
	.section	.debug_macinfo	{	}
"""


def test_llvm_text_with_debug_information():
    module = read(LLVM)
    function = module.functions["rows"]
    assert (module.version, module.target) == ((8, 7), "sm_90a")
    assert function.directives == {"reqntid": (128, 1, 1)}
    assert len(function.body) == 12
    load = function.body[5]
    assert load.text == "@%p1 ld.global.v2.b32 { %r5, %r6 }, [ %rd1 + 0 ]"
    assert LLVM.splitlines()[load.line - 1].strip() == load.text + ";"
    assert function.body[7].operands[0] == Address(Symbol("global_smem"), 8)
    assert function.labels == {
        "$L__func_begin0": 0,
        "$L__tmp0": 1,
        "$L__tmp1": 12,
        "$L__func_end0": 12,
    }
    halves = [each.operands[0].items for each in function.body if each.name == "mov.b32"]
    assert [[half.name for half in pair] for pair in halves] == [
        ["tmp@1", "%rs1"],
        ["%rs1", "tmp@2"],
    ]
