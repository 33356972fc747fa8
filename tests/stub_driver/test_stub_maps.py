"""Tensor maps: what the sm90 route hands to its kernels, and `runtime.tensormap` by itself."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from helpers.stub import run_with_stub
from launch_abi import MAP, launch_maps, launch_params

PRELUDE = """
import gc
import numpy as np
import cakert
from cakert import routes
from cakert.runtime import tensormap
from helpers.fake_tensor import FakeCuda
from stub_child import (
    begin_capture, context_depth, driver_call, end_capture, fail, failure, make_current, mark,
    new_stream, report,
)
from stub_problem import Problem, run
"""
CLUSTER = 4  # CUlaunchAttributeID
FLOAT16, BFLOAT16 = 6, 9  # CUtensorMapDataType
SWIZZLE_64B, SWIZZLE_128B, PROMOTE_128B = 2, 3, 2


def run_script(script: str, **options):
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)


@pytest.mark.parametrize(
    ("q_heads", "cluster", "threads"), [(24, 1, 288), (6, 2, 288), (3, 4, 160), (1, 8, 160)]
)
def test_rows_that_are_split_are_launched_in_clusters(q_heads, cluster, threads):
    result = run_script(
        f"""
        p = Problem(M=192, N=576, block=64, head_dim=128, q_heads={q_heads}, kv_heads=1)
        plan = p.plan()
        run(plan, *p.tensors(), out=p.tensors("out")[0])
        """
    )
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert launch["kernel"].startswith("cake_vsa_sm90_split_r64_d128_")
    assert launch["attributes"] == ([[CLUSTER, cluster, 1, 1]] if cluster > 1 else [])
    assert (launch["grid"], launch["block"]) == (
        [3 * q_heads * cluster, 1, 1],
        [threads, 1, 1],
    )


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_maps_of_every_variant(block, head_dim, dtype):
    result = run_script(
        f"""
        p = Problem(M={3 * block}, N={9 * block}, block={block}, head_dim={head_dim},
                    dtype={dtype!r}, q_heads=6, kv_heads=3)
        plan = p.plan()
        sets = [p.tensors("q", "k", "v", "out", "lse") for _ in range(2)]
        for q, k, v, out, lse in sets:
            run(plan, q, k, v, out=out, lse=lse, return_lse=True)
        report([[t.address for t in each] for each in sets])
        """
    )
    encodings = result.trace.named("cuTensorMapEncodeTiled")
    assert len(encodings) == 4 and all(call["current"] == 0 for call in encodings)
    launches = result.trace.named("cuLaunchKernelEx")
    panel = 64 if head_dim % 64 == 0 else 32
    row = 2 * head_dim
    family = "sm90_split" if block == 64 else "sm90"
    for launch, addresses in zip(launches, result.report, strict=True):
        assert launch["kernel"].startswith(f"cake_vsa_{family}_r{block}_d{head_dim}_")
        assert [len(bytes.fromhex(text)) for text in launch["params"]] == [160, 128, 128, 128, 128]
        params = launch_params(launch)
        assert [params[name] for name in ("q", "k", "v", "out", "lse")] == addresses
        maps = launch_maps(launch)
        assert [int(each["address"]) for each in maps] == addresses[:4]
        for each, tokens, heads, rows in zip(
            maps,
            (3 * block, 9 * block, 9 * block, 3 * block),
            (6, 3, 3, 6),
            (block, block, block, 64),
            strict=True,
        ):
            assert each["rank"] == 3
            assert each["dims"].tolist() == [head_dim, heads, tokens, 0, 0]
            assert each["strides"].tolist() == [row, row * heads, 0, 0]
            assert each["box"].tolist() == [panel, 1, rows, 0, 0]
            assert each["type"] == (FLOAT16 if dtype == "float16" else BFLOAT16)
            assert each["swizzle"] == (SWIZZLE_128B if panel == 64 else SWIZZLE_64B)
            assert each["promotion"] == PROMOTE_128B
            assert each["interleave"] == each["fill"] == 0


def test_the_portable_route_has_one_parameter_and_no_maps():
    result = run_script(
        """
        p = Problem()
        with routes.only("portable"):
            plan = p.plan()
        run(plan, *p.tensors(), out=p.tensors("out")[0])
        report(plan["route"])
        """
    )
    assert result.report == "cake_vsa_portable_r64_d128_bf16"
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert len(launch["params"]) == 1
    assert not any("TensorMap" in name for name in result.trace.names())


def test_a_run_encodes_nothing_and_leaves_the_plan_as_it_is():
    result = run_script(
        """
        make_current(0)
        p = Problem()
        plan = p.plan()
        first, second = p.tensors("q", "k", "v", "out"), p.tensors("q", "k", "v", "out")
        mark("runs")
        for q, k, v, out in (first, second, first):
            run(plan, q, k, v, out=out)
        mark("end")
        report([[t.address for t in each] for each in (first, second, first)])
        """
    )
    calls = result.trace.after("runs")
    assert not calls.named("cuTensorMapEncodeTiled")
    assert len(calls.named("cuTensorMapReplaceAddress")) == 12
    for launch, addresses in zip(calls.named("cuLaunchKernelEx"), result.report, strict=True):
        assert [int(each["address"]) for each in launch_maps(launch)] == addresses


def test_a_plan_without_a_current_context_encodes_in_its_own():
    """The driver refuses to encode without one; here there is none, or another device's."""
    result = run_script(
        """
        p = Problem()
        assert context_depth() == 0
        plans = [p.plan(device=1)]
        make_current(0)
        plans.append(p.plan(device=1))
        for plan in plans:
            run(plan, *p.tensors(device=1), out=p.tensors("out", device=1)[0])
        report(context_depth())
        """,
        devices=2,
    )
    encodings = result.trace.named("cuTensorMapEncodeTiled")
    assert [call["current"] for call in encodings] == [1] * 8
    assert all(c["current"] == 1 for c in result.trace.named("cuTensorMapReplaceAddress"))
    assert [call["device"] for call in result.trace.named("cuLaunchKernelEx")] == [1, 1]
    assert result.report == 1


def test_a_captured_run_holds_its_maps():
    result = run_script(
        """
        make_current(0)
        p, stream = Problem(), new_stream()
        plan = p.plan()
        q, k, v, out = (cakert.DeviceArray.empty(p.shapes()[n], "bfloat16", 0, stream)
                        for n in ("q", "k", "v", "out"))
        begin_capture(stream)
        mark("captured")
        run(plan, q, k, v, out=out)
        mark("end")
        report([end_capture(stream), [t.pointer for t in (q, k, v, out)]])
        """
    )
    status, addresses = result.report
    assert status == "CUDA_SUCCESS"
    (launch,) = result.trace.after("captured").named("cuLaunchKernelEx")
    assert [int(each["address"]) for each in launch_maps(launch)] == addresses


@pytest.mark.parametrize("nth", [1, 4])
def test_a_plan_whose_maps_are_refused_leaves_nothing_behind(nth):
    result = run_script(
        f"""
        p = Problem(head_dim=96)
        fail("cuTensorMapEncodeTiled=1@{nth}")
        error = failure(p.plan)
        gc.collect()
        report([error, context_depth()])
        """
    )
    error, depth = result.report
    assert error["type"] == "CudaError" and depth == 0
    for part in ("cuTensorMapEncodeTiled", "CUDA_ERROR_INVALID_VALUE", "bfloat16",
                 "dims (96, ", "box (32, 1, 64)", "swizzle 64B", "cuda:0"):  # fmt: skip
        assert part in error["text"], (part, error["text"])
    assert result.trace.leaks()["blocks"] == 0


def test_a_run_whose_maps_are_refused_launches_nothing():
    result = run_script(
        """
        p = Problem()
        plan, tensors = p.plan(), p.tensors()
        fail("cuTensorMapReplaceAddress=201@3")
        mark("failing")
        error = failure(lambda: run(plan, *tensors))
        gc.collect()
        mark("end")
        depth = context_depth()
        run(plan, *tensors, out=p.tensors("out")[0])
        report([error, depth, [[t.exports, t.releases] for t in tensors]])
        """
    )
    error, depth, counts = result.report
    assert error["type"] == "CudaError" and depth == 0
    assert "cuTensorMapReplaceAddress" in error["text"] and "INVALID_CONTEXT" in error["text"]
    assert all(exports == releases for exports, releases in counts)
    calls = result.trace.after("failing")
    assert not calls.named("cuLaunchKernelEx")
    assert len(calls.named("cuMemAllocAsync")) == len(calls.named("cuMemFreeAsync")) == 1
    assert len(result.trace.named("cuLaunchKernelEx")) == 1


def test_parameters_of_another_layout_are_refused():
    """A cubin that is not of this launch ABI never gets to a launch."""
    result = run_script(
        """
        from tiny_cubin import tiny_cubin
        import dataclasses
        from cakert import vsa_device
        p = Problem()
        errors = []
        for sizes in ((160,), (160, 128, 128, 128), (160, 128, 128, 128, 64), (152, *[128] * 4)):
            library = cakert.Library(tiny_cubin({"odd": sizes}, max_threads=160))
            vsa_device.load_kernel = lambda name, entry, device: library["odd"]
            errors.append(failure(p.plan)["text"])
        library = cakert.Library(tiny_cubin({"odd": (160, *[128] * 4)}, max_threads=160))
        with routes.only("portable"):
            errors.append(failure(p.plan)["text"])
        report(errors)
        """
    )
    *with_maps, without = result.report
    for text in with_maps:
        assert "odd must take one CakeVsaParams of 160 bytes and 4 tensor maps of 128 bytes" in text
    assert "odd must take one CakeVsaParams of 160 bytes; its" in without


# --- the module by itself -------------------------------------------------------------------------


def test_encode_and_readdress():
    result = run_script(
        """
        encoded = tensormap.encode(
            "float32", 0x1000, [96, 3, 7, 2], [384, 1152, 8064], [8, 1, 4, 2], swizzle="32B",
            l2_promotion="256B")
        report([encoded.hex(), tensormap.readdress(encoded, 0x2340).hex(),
                tensormap.encode("uint8", 0x1000, (256,), (), (64,)).hex(), context_depth()])
        """
    )
    *maps, depth = result.report
    first, moved, flat = (np.frombuffer(bytes.fromhex(text), MAP)[0] for text in maps)
    assert depth == 0
    assert (first["rank"], first["type"], first["swizzle"], first["promotion"]) == (4, 7, 1, 3)
    assert first["dims"].tolist() == [96, 3, 7, 2, 0]
    assert first["strides"].tolist() == [384, 1152, 8064, 0]
    assert first["box"].tolist() == [8, 1, 4, 2, 0]
    assert (first["address"], moved["address"]) == (0x1000, 0x2340)
    assert [moved[name].tolist() for name in MAP.names[2:]] == [
        first[name].tolist() for name in MAP.names[2:]
    ]
    assert (flat["rank"], flat["type"], flat["swizzle"]) == (1, 0, 0)


REFUSED = {
    "encode('float8', 16, (64,), (), (64,))": ("ValueError", "data_type must be one of uint8, "),
    "encode('uint8', 16, (64,), (), (64,), swizzle='96B')": ("ValueError", "swizzle must be one"),
    "encode('uint8', 16, (64,), (), (64,), l2_promotion='1B')": ("ValueError", "l2_promotion must"),
    "encode('uint8', 24, (64,), (), (64,))": ("ValueError", "multiple of 16 bytes"),
    "encode('uint8', 0, (64,), (), (64,))": ("ValueError", "not null, got 0x0"),
    "encode('uint8', 16, (64, 2), (), (64, 2))": ("ValueError", "strides one less"),
    "encode('uint8', 16, (64,), (), (64, 1))": ("ValueError", "box as many"),
    "encode('uint8', 16, (), (), ())": ("ValueError", "1 to 5 entries"),
    "encode('uint8', 16, (64, 2), (24,), (64, 2))": ("CudaError", "strides (24,) bytes"),
    "encode('uint8', 16, (64,), (), (257,))": ("CudaError", "box (257,)"),
    "encode('uint8', 16, (-1,), (), (64,))": ("OverflowError", "negative"),
    "encode('uint8', 16, (64,), (), (64,), device=3)": ("ValueError", "device must be in [0, 1)"),
    "readdress(bytes(127), 16)": ("ValueError", "tensor_map must have 128 bytes, got 127"),
    "readdress(bytes(128), 8)": ("ValueError", "multiple of 16 bytes"),
    "readdress(bytes(128), 16)": ("CudaError", "cuTensorMapReplaceAddress"),
}


def test_what_the_module_refuses():
    calls = ", ".join(f"lambda: tensormap.{call}" for call in REFUSED)
    result = run_script(f"report([[failure(call) for call in ({calls})], context_depth()])")
    errors, depth = result.report
    for (call, (kind, says)), error in zip(REFUSED.items(), errors, strict=True):
        assert error["type"] == kind and says in error["text"], (call, error)
    assert depth == 0
