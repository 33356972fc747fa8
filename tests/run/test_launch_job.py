"""Arguments and geometry are held to the kernel before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cakert.cli.argument_specs import parse
from cakert.cli.launch_job import check_geometry, check_sizes, dims_text
from cakert.inspect import inspect_file

DATA = Path(__file__).resolve().parents[1] / "data"
RECORDS = {kernel.name: kernel for kernel in inspect_file(DATA / "run_kernels.cubin").cubin.kernels}
AXPY = RECORDS["axpy"]
REVERSE = RECORDS["_Z7reverseI13__nv_bfloat16EvPT_PKS1_6Window"]
CLUSTERED = replace(AXPY, name="clustered", cluster=(2, 2, 1))
SMALL = replace(AXPY, name="small", max_cluster=4)


def check(record, *texts: str) -> None:
    specs = [parse(text) for text in texts]
    names = [f"a{number}" for number in range(len(specs))]
    check_sizes(record.name, specs, names, [parameter.size for parameter in record.parameters])


def test_arguments_that_fit():
    check(AXPY, "f32[4]=rand", "u8[1]=0", "f32=1", "i32=1")
    check(AXPY, "u64=0", "bytes=0011223344556677", "u32=1", "f32=1")
    check(REVERSE, "bf16[4]=nan", "bf16[4]=rand", "bytes=" + "00" * 16)
    check_sizes("none", [], [], [])


@pytest.mark.parametrize(
    ("record", "texts", "reason"),
    [
        (AXPY, ["f32[4]=rand"] * 2 + ["f32=1"],
         "axpy takes 4 arguments (of 8, 8, 4, 4 bytes), got 3 --arg"),
        (AXPY, ["f32[4]=rand"] * 2 + ["f32=1", "i32=1", "i32=1"], "got 5 --arg"),
        (AXPY, ["f32[4]=rand"] * 2 + ["f64=1", "i32=1"],
         "argument 2 (a2): the parameter of axpy has 4 bytes, f64 has 8"),
        (AXPY, ["f32[4]=rand"] * 2 + ["f32=1", "i64=1"],
         "argument 3 (a3): the parameter of axpy has 4 bytes, i64 has 8"),
        (AXPY, ["f32=1", "f32[4]=rand", "f32=1", "i32=1"],
         "argument 0 (a0): the parameter of axpy has 8 bytes, f32 has 4"),
        (AXPY, ["f32[4]=rand"] * 4,
         "argument 2 (a2): the parameter of axpy has 4 bytes, the address of an array has 8"),
        (REVERSE, ["bf16[4]=nan"] * 3, "has 16 bytes, the address of an array has 8; pass a struct "
         "by value as bytes=HEX or bytes=@FILE"),
        (REVERSE, ["bf16[4]=nan"] * 2 + ["bytes=00ff"], "has 16 bytes, the struct has 2"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(record, texts, reason):
    with pytest.raises(ValueError, match=r".") as caught:
        check(record, *texts)
    assert reason in str(caught.value)


def test_a_tensor_map_gets_a_hint():
    with pytest.raises(ValueError, match=r"a tensor map cannot be made here: use cakert\.runtime"):
        check_sizes("k", [parse("f32[4]=rand")], ["q"], [128])


def test_a_kernel_without_parameters_takes_none():
    with pytest.raises(ValueError, match=r"^k takes 0 arguments, got 1 --arg$"):
        check_sizes("k", [parse("i32=4")], ["n"], [])


@pytest.mark.parametrize(
    ("record", "grid", "block", "cluster"),
    [
        (AXPY, (3,), (256,), None),
        (AXPY, (3,), (16, 16), (3,)),
        (REVERSE, (5, 2), (64,), None),
        (REVERSE, (5, 2), (64, 1, 1), (1, 1)),
        (CLUSTERED, (4, 2), (32,), None),
        (CLUSTERED, (4, 2), (32,), (2, 2)),
        (SMALL, (4,), (32,), (4,)),
    ],
)
def test_geometry_that_fits(record, grid, block, cluster):
    check_geometry(record, grid, block, cluster)


@pytest.mark.parametrize(
    ("record", "grid", "block", "cluster", "reason"),
    [
        (AXPY, (3,), (257,), None, "--block: axpy was compiled for at most 256 threads, got 257"),
        (AXPY, (3,), (32, 9), None, "at most 256 threads, got 32x9 = 288"),
        (REVERSE, (3,), (32,), None, "demands 64x1x1, got 32"),
        (REVERSE, (3,), (8, 8), None, "demands 64x1x1, got 8x8"),
        (CLUSTERED, (4, 3), (32,), None, "--grid: must be a multiple of the cluster 2x2x1"),
        (CLUSTERED, (4, 4), (32,), (4,), "--cluster: clustered demands 2x2x1, got 4"),
        (SMALL, (8,), (32,), (8,), "--cluster: small was compiled for at most 4 blocks, got 8"),
        (AXPY, (3,), (32,), (2,), "--grid: must be a multiple of the cluster 2x1x1 on each axis"),
    ],
)
def test_geometry_that_does_not_fit(record, grid, block, cluster, reason):
    with pytest.raises(ValueError, match=r"^--") as caught:
        check_geometry(record, grid, block, cluster)
    assert reason in str(caught.value)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_cluster_of_zeros_demands_nothing(axis):
    """As the bytes of a damaged file may say."""
    record = replace(AXPY, cluster=tuple(0 if at == axis else 2 for at in range(3)))
    check_geometry(record, (3,), (32,), None)
    check_geometry(record, (4,), (32,), (2,))


def test_extents_in_words():
    assert dims_text((4, 2)) == "4x2"
