"""What plan, run and update do to the driver: memory, geometry, launch parameters, call counts."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest
from helpers.stub import run_with_stub
from launch_abi import PARAMS, launch_params

PRELUDE = """
import gc
import numpy as np
import cakert
from cakert import routes
from helpers.fake_tensor import FakeCai, FakeCuda
from stub_child import (
    address_of, begin_capture, context_depth, driver_call, end_capture, fail, failure,
    make_current, mark, new_stream, report,
)
from stub_problem import Problem, aligned, peek, rng, rows_held, run

def expected_geometry(plan):
    from cakert import cubins
    entry = cubins.store().find(plan["route"], (9, 0))
    kernel = entry.kernel(plan["route"])
    return [kernel.threads, kernel.shared_bytes]
"""

CLUSTER = 4  # CUlaunchAttributeID
LISTS = ("row_blocks", "row_counts", "tile_order")
GROUP_RECORD = ("group_rows", "group_blocks", "group_members", "group_counts")
NO_ALLOCATION_NO_SYNC = {
    "cuMemAlloc", "cuMemFree", "cuMemAllocAsync", "cuMemFreeAsync", "cuCtxSynchronize",
    "cuStreamSynchronize", "cuStreamQuery", "cuEventSynchronize", "cuEventCreate",
    "cuLibraryLoadData", "cuFuncLoad", "cuKernelGetFunction", "cuKernelSetAttribute",
    "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoHAsync", "cuPointerGetAttribute",
}  # fmt: skip


def run_script(script: str, **options):
    return run_with_stub(PRELUDE + textwrap.dedent(script), **options)


def test_the_header_is_read_as_the_compiler_reads_it():
    assert PARAMS.itemsize == 160
    assert PARAMS.fields["version"][1] == 104 and PARAMS.fields["sm_scale"][1] == 152


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_launch_of_every_variant(block, head_dim, dtype):
    """Geometry is exact and every field of the parameter is what was planned."""
    result = run_script(
        f"""
        p = Problem(M={3 * block}, N={9 * block}, block={block}, head_dim={head_dim},
                    dtype={dtype!r}, q_heads=6, kv_heads=3, sm_scale=-0.25)
        mask = p.mask()
        lens = p.lens() if {block} == 64 else None
        plan = p.plan(block_mask=mask, kv_block_lens=lens)
        tensors = p.tensors("q", "k", "v", "out", "lse")
        q, k, v, out, lse = tensors
        mark("run")
        returned = run(plan, q, k, v, out=out, lse=lse, return_lse=True)
        mark("end")
        assert returned[0] is out and returned[1] is lse
        memory = plan["workspace"]
        assert rows_held(plan) == [np.flatnonzero(row).tolist() for row in mask.reshape(18, p.nb)]
        if lens is not None:
            assert (peek(memory["kv_block_lens"].pointer, np.int32, (p.nb,)) == lens).all()
        report([[t.address for t in tensors],
                {{name: w.pointer for name, w in memory.items()}},
                expected_geometry(plan), plan["route"]])
        """
    )
    addresses, memory, (threads, shared), route = result.report
    (launch,) = result.trace.after("run").named("cuLaunchKernelEx")
    assert launch["kernel"] == route
    family, cluster = ("sm90_split", 2) if block == 64 else ("sm90", 1)
    short = "fp16" if dtype == "float16" else "bf16"
    assert route == f"cake_vsa_{family}_r{block}_d{head_dim}_{short}"
    assert (launch["grid"], launch["block"]) == ([18 * cluster, 1, 1], [threads, 1, 1])
    assert launch["attributes"] == ([[CLUSTER, cluster, 1, 1]] if cluster > 1 else [])
    assert (launch["shared"], launch["stream"]) == (shared, 0)
    assert not launch["cold"]
    params = launch_params(launch)
    expected = dict(zip(("q", "k", "v", "out", "lse"), addresses, strict=True))
    assert set(memory) - {"kv_block_lens"} == set(LISTS)
    expected |= {name: memory.get(name, 0) for name in (*LISTS, *GROUP_RECORD)}
    expected["tile_order"] = 0  # all rows run at once
    expected |= {
        "kv_block_lens": memory["kv_block_lens"] if block == 64 else 0,
        "version": 1, "index_bytes": 2, "row_stride": 9, "group_stride": 0, "num_groups": 0,
        "num_rows": 18, "q_tokens": 3 * block, "kv_tokens": 9 * block,
        "q_blocks": 3, "kv_blocks": 9, "num_qo_heads": 6, "num_kv_heads": 3,
        "sm_scale": np.float32(-0.25), "reserved": 0,
    }  # fmt: skip
    assert set(expected) == set(PARAMS.names)
    for name, value in expected.items():
        assert params[name] == value, (name, params[name], value)


def test_launch_of_groups():
    result = run_script(
        """
        p = Problem(M=192, N=576, block=64, head_dim=128, q_heads=6, kv_heads=3)
        mask = p.mask()
        with routes.only("sm90_group"):
            plan = p.plan(block_mask=mask)
        run(plan, *p.tensors(), out=p.tensors("out")[0])
        assert rows_held(plan) == [np.flatnonzero(row).tolist() for row in mask.reshape(18, p.nb)]
        report([{name: w.pointer for name, w in plan["workspace"].items()},
                expected_geometry(plan)])
        """
    )
    memory, (threads, shared) = result.report
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert launch["kernel"] == "cake_vsa_sm90_group_r64_d128_bf16"
    assert (launch["grid"], launch["block"]) == ([9, 1, 1], [threads, 1, 1])
    assert (launch["shared"], launch["attributes"]) == (shared, [])
    assert set(memory) == set(GROUP_RECORD)
    params = launch_params(launch)
    for name in (*LISTS, *GROUP_RECORD):
        assert params[name] == memory.get(name, 0), name
    assert (params["row_stride"], params["group_stride"], params["num_groups"]) == (0, 10, 9)


@pytest.mark.parametrize(
    ("given", "packed"),
    [
        ("None", "1 / np.sqrt(96)"),
        ("0.0", "0.0"),
        ("-3.5", "-3.5"),
        ("1e-30", "1e-30"),
        ("np.float32(0.1)", "0.1"),
    ],
)
def test_the_scale_is_packed_as_given(given, packed):
    result = run_script(
        f"""
        p = Problem(head_dim=96, sm_scale={given})
        run(p.plan(), *p.tensors(), out=p.tensors("out")[0])
        report(float(np.float32({packed})))
        """
    )
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert launch_params(launch)["sm_scale"] == np.float32(result.report)
    assert launch_params(launch)["lse"] == 0


@pytest.mark.parametrize(("family", "strides"), [("sm90_split", (3, 0)), ("sm90_group", (0, 8))])
def test_q2k_lists_are_packed_with_their_own_width(family, strides):
    result = run_script(
        f"""
        p = Problem(head_dim=128, N=512)
        indices, counts = p.q2k(topk=3)
        with routes.only({family!r}):
            plan = p.plan(q2k_indices=FakeCuda(indices), q2k_num=FakeCuda(counts))
        run(plan, *p.tensors(), out=p.tensors("out")[0])
        rows = zip(indices.reshape(-1, 3), counts.ravel(), strict=True)
        assert rows_held(plan) == [np.sort(row[:count]).tolist() for row, count in rows]
        report(plan["row_counts"].shape)
        """
    )
    (launch,) = result.trace.named("cuLaunchKernelEx")
    params = launch_params(launch)
    assert (params["row_stride"], params["group_stride"]) == strides
    assert (params["index_bytes"], params["kv_block_lens"]) == (2, 0)
    assert result.report == [4, 4]


def test_wide_indices_where_16_bits_do_not_hold_them():
    result = run_script(
        """
        p = Problem(M=64, N=64 * 65600, q_heads=1, kv_heads=1, head_dim=64)
        mask = np.zeros((1, 1, p.nb), bool)
        chosen = np.sort(rng.choice(p.nb, 5, replace=False))
        chosen[-1] = p.nb - 1
        mask[0, 0, chosen] = True
        plan = p.plan(block_mask=mask)
        stored = peek(plan["workspace"]["row_blocks"].pointer, np.uint32, (5,))
        assert (stored == np.unique(chosen)).all(), (stored, chosen)
        q = p.tensors("q")[0]
        k = FakeCuda(np.empty(p.shapes()["k"], p.element))    # 0.5 GiB that nobody touches
        run(plan, q, k, k, out=p.tensors("out")[0])
        """
    )
    (launch,) = result.trace.named("cuLaunchKernelEx")
    params = launch_params(launch)
    assert (params["index_bytes"], params["row_stride"]) == (4, 65600)


def test_many_heads_fit_the_grid():
    """F26: the rows lie on grid x, so no limit of 65535 is met."""
    result = run_script(
        """
        p = Problem(M=128, N=64, q_heads=65536, kv_heads=1, head_dim=64)
        plan = p.plan(block_mask=np.ones((1, 2, 1), bool))
        # 1 GiB each of q and out, which nobody touches.
        q, k, v = (FakeCuda(np.empty(p.shapes()[n], p.element)) for n in "qkv")
        out = FakeCuda(np.empty(p.shapes()["out"], p.element))
        run(plan, q, k, v, out=out)
        """
    )
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert (launch["status"], launch["grid"]) == (0, [131072, 1, 1])


def test_a_run_is_one_launch_and_nothing_else():
    result = run_script(
        """
        make_current(0)
        p = Problem()
        plan = p.plan()
        sets = [p.tensors("q", "k", "v", "out", "lse") for _ in range(3)]
        mark("runs")
        for q, k, v, out, lse in sets:
            run(plan, q, k, v, out=out)
            run(plan, q, k, v, out=out, lse=lse, return_lse=True)
        mark("end")
        for tensor in sum(sets, []):
            assert tensor.exports == tensor.releases > 0
            assert {request["stream"] for request in tensor.requests} == {1}
        """
    )
    calls = result.trace.after("runs")
    assert not NO_ALLOCATION_NO_SYNC & set(calls.names())
    # The Hopper routes point their maps at the tensors, which is no work of the GPU.
    allowed = {"cuCtxGetCurrent", "cuTensorMapReplaceAddress", "cuLaunchKernelEx"}
    assert set(calls.names()) <= allowed
    assert len(calls.named("cuLaunchKernelEx")) == 6


def test_run_allocates_what_it_is_not_given():
    result = run_script(
        """
        make_current(0)
        p = Problem()
        plan = p.plan()
        mark("run")
        out, lse = run(plan, *p.tensors(), return_lse=True)
        mark("end")
        report([type(out).__name__, list(out.shape), str(out.dtype), out.pointer,
                type(lse).__name__, list(lse.shape), str(lse.dtype), lse.pointer, out.device])
        """
    )
    kind, shape, dtype, out, lse_kind, lse_shape, lse_dtype, lse, device = result.report
    assert kind == lse_kind == "DeviceArray" and device == 0
    assert (shape, dtype) == ([256, 4, 128], "bfloat16")
    assert (lse_shape, lse_dtype) == ([256, 4], "float32")
    calls = result.trace.after("run")
    allocated = {call["address"]: call["bytes"] for call in calls.named("cuMemAllocAsync")}
    assert allocated == {out: 256 * 4 * 128 * 2, lse: 256 * 4 * 4}
    (launch,) = calls.named("cuLaunchKernelEx")
    assert (launch_params(launch)["out"], launch_params(launch)["lse"]) == (out, lse)
    assert "cuStreamSynchronize" not in calls.names() and "cuMemAlloc" not in calls.names()


def test_a_failed_run_frees_what_it_allocated():
    result = run_script(
        """
        p = Problem()
        plan = p.plan()
        tensors = p.tensors()
        mark("runs")
        fail("cuLaunchKernelEx=700")
        errors = [failure(lambda: run(plan, *tensors, return_lse=True))]
        fail("cuMemAllocAsync=2@2")
        errors.append(failure(lambda: run(plan, *tensors, return_lse=True)))
        gc.collect()
        mark("end")
        fail("")
        run(plan, *tensors, out=p.tensors("out")[0])
        report([errors, [[t.exports, t.releases] for t in tensors], context_depth()])
        """
    )
    (launch, memory), counts, depth = result.report
    assert launch["type"] == memory["type"] == "CudaError" and depth == 0
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in launch["text"]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in memory["text"]
    assert all(exports == releases for exports, releases in counts)
    calls = result.trace.after("runs")
    allocated = [c["address"] for c in calls.named("cuMemAllocAsync") if not c["status"]]
    freed = [c["address"] for c in calls.named("cuMemFreeAsync") if not c["status"]]
    assert len(allocated) == 3 and sorted(allocated) == sorted(freed)


def test_plan_memory_lives_as_long_as_the_plan():
    """And it is bounded: at most 2 bytes for each cell of the mask, plus a few for each row."""
    result = run_script(
        """
        p = Problem(M=64 * 40, N=64 * 56)
        mark("plan")
        plan = p.plan(kv_block_lens=p.lens())
        mark("drop")
        del plan
        gc.collect()
        mark("end")
        """
    )
    allocations = result.trace.after("plan").named("cuMemAlloc")
    freed = result.trace.after("drop").named("cuMemFree")
    assert sorted(c["address"] for c in allocations) == sorted(c["address"] for c in freed)
    rows, blocks = 4 * 40, 56
    assert sum(c["bytes"] for c in allocations) <= 2 * rows * blocks + 16 * rows + 4 * blocks
    leaks = result.trace.leaks()
    assert (leaks["blocks"], leaks["events"]) == (0, 0)


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_plan_without_memory_leaves_nothing_behind(nth):
    result = run_script(
        f"""
        p = Problem()
        fail("cuMemAlloc=2@{nth}")
        error = failure(lambda: p.plan(kv_block_lens=p.lens()))
        gc.collect()
        report([error, context_depth()])
        """
    )
    error, depth = result.report
    assert error["type"] == "CudaError" and depth == 0
    assert "CUDA_ERROR_OUT_OF_MEMORY" in error["text"] and "bytes" in error["text"]
    assert result.trace.leaks()["blocks"] == 0


@pytest.mark.parametrize(
    "call", ["cuMemcpyHtoDAsync", "cuMemcpy2DAsync", "cuStreamSynchronize", "cuFuncLoad"]
)
def test_a_plan_that_fails_late_leaves_nothing_behind(call):
    result = run_script(
        f"""
        p = Problem()
        fail("{call}=719@1")
        error = failure(p.plan)
        gc.collect()
        report([error, context_depth()])
        """
    )
    error, depth = result.report
    assert error["type"] == "CudaError" and depth == 0
    assert "CUDA_ERROR_LAUNCH_FAILED" in error["text"] and call in error["text"]
    assert result.trace.leaks()["blocks"] == 0


@pytest.mark.parametrize("kind", ["mask", "bsr", "q2k"])
@pytest.mark.parametrize("head_dim", [96, 128])
def test_update_allocates_nothing_and_does_not_wait(kind, head_dim):
    result = run_script(
        f"""
        make_current(0)
        p = Problem(head_dim={head_dim})
        lens = p.lens()
        if {kind!r} == "q2k":
            indices, counts = p.q2k()
            plan = p.plan(q2k_indices=FakeCuda(indices), q2k_num=FakeCuda(counts),
                          kv_block_lens=lens)
        elif {kind!r} == "bsr":
            indptr = np.arange(0, 2 * p.mb + 1, 2)
            columns = np.tile([0, p.nb - 1], p.mb)
            plan = p.plan(indptr=indptr, indices=columns, kv_block_lens=lens)
        else:
            plan = p.plan(kv_block_lens=lens)
        memory, lens = plan["workspace"], p.lens()
        before = {{name: w.pointer for name, w in memory.items()}}
        mask = p.mask()
        mark("update")
        if {kind!r} == "q2k":
            # What the plan holds, rewritten in place: update reads it again.
            new_indices, new_counts = p.q2k()
            indices[...], counts[...] = new_indices, new_counts
            cakert.update_cake_vsa(plan)
            cakert.update_cake_vsa(plan, kv_block_lens=lens)
        else:
            cakert.update_cake_vsa(plan, block_mask=mask, kv_block_lens=lens)
        mark("end")
        assert before == {{name: w.pointer for name, w in memory.items()}}
        held = [len(row) for row in rows_held(plan)]
        wanted = counts.ravel() if {kind!r} == "q2k" else mask.sum(axis=2).ravel()
        assert (held == wanted).all()
        assert (np.asarray(plan["row_counts"].numpy() if {kind!r} == "q2k"
                           else plan["row_counts"]).ravel() == wanted).all()
        assert (peek(memory["kv_block_lens"].pointer, np.int32, (p.nb,)) == lens).all()
        cakert.check_cake_vsa(plan)
        """
    )
    if kind != "q2k":  # device metadata is brought to the host in this version
        calls = result.trace.after("update")
        assert not (NO_ALLOCATION_NO_SYNC - {"cuPointerGetAttribute"}) & set(calls.names())


def test_plan_takes_a_snapshot():
    result = run_script(
        """
        p = Problem()
        mask, lens = p.mask(), p.lens()
        kept_mask, kept_lens = mask.copy(), lens.copy()
        plan = p.plan(block_mask=mask, kv_block_lens=lens)
        mask[...] = ~mask
        lens[...] = 65 - lens
        rows = kept_mask.reshape(-1, p.nb)
        assert rows_held(plan) == [np.flatnonzero(row).tolist() for row in rows]
        assert (np.asarray(plan["row_counts"]) == kept_mask.sum(axis=2)).all()
        assert (np.asarray(plan["block_mask"]) == kept_mask).all()
        assert (np.asarray(plan["kv_block_lens"]) == kept_lens).all()
        plan["M"], plan["route"] = 64, "another"
        plan["workspace"].clear()
        gc.collect()
        run(plan, *p.tensors(), out=p.tensors("out")[0])
        """
    )
    (launch,) = result.trace.named("cuLaunchKernelEx")
    assert launch_params(launch)["q_tokens"] == 256
    before = result.trace[: result.trace.index(launch)]
    assert "cuMemFree" not in [call["call"] for call in before], "run still reads that memory"


def test_one_plan_in_two_threads_and_streams():
    """F46: the streams of the launches are those asked for; nothing is shared but the plan."""
    result = run_script(
        """
        import threading
        p = Problem()
        plan = p.plan()
        sets = [p.tensors("q", "k", "v", "out") for _ in range(40)]
        def work(mine):
            for q, k, v, out in mine:
                run(plan, q, k, v, out=out)
        threads = [threading.Thread(target=work, args=(sets[i::4],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report([[t.address for t in row] for row in sets])
        """
    )
    seen = [launch_params(call) for call in result.trace.named("cuLaunchKernelEx")]
    assert sorted([int(s[n]) for n in ("q", "k", "v", "out")] for s in seen) == sorted(
        result.report
    )
    assert len({int(s["group_blocks"]) for s in seen}) == 1
