"""Streams, graphs, threads, updates, frameworks: how a plan is used, on the GPU."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from helpers.problems import compare, lse_close, make_problem, plain  # noqa: E402
from torch_runs import check, inputs_of, plan_of, poisoned, to_float, to_torch  # noqa: E402

import cakert  # noqa: E402
from cakert import plan_cake_vsa, routes, run_cake_vsa, update_cake_vsa  # noqa: E402


def run(plan, q, k, v, out=None):
    return run_cake_vsa(plan, q, k, v, out=out, lse=None, return_lse=False, backend="cake")


def same_bits(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def test_repeatable_to_the_bit(rng):
    problem = make_problem(rng, "lens", M=2048, N=4096, heads=(4, 2), selected=(1, 40))
    plan, tensors = plan_of(problem), inputs_of(problem)
    first = run(plan, *tensors)
    for _ in range(20):
        assert same_bits(run(plan, *tensors), first)
    assert same_bits(run(plan_of(problem, metadata="cpu"), *tensors), first)


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_families_agree(rng, block, head_dim, dtype):
    """Within the bound of each other on the same inputs; bits differ, as the order of sums does."""
    families = routes.families(torch.cuda.get_device_capability(), R=block, head_dim=head_dim)
    if len(families) == 1:
        pytest.skip(f"this GPU has kernels of one family only, {families[0]}")
    problem = make_problem(rng, "mask", block=block, heads=(4, 2), head_dim=head_dim, dtype=dtype)
    q, k, v = inputs_of(problem)
    found = {}
    for each in families:
        with routes.only(each):
            plan = plan_of(problem)
        assert plan["route"].startswith(f"cake_vsa_{each}_")
        out, lse = poisoned(problem)
        run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")
        check(problem, out, lse)
        found[each] = out, lse
    out, lse = found.pop("portable")
    for other_out, other_lse in found.values():
        result = compare(to_float(other_out), to_float(out).astype(np.float64), plain(problem))
        assert result.passed, result
        assert lse_close(to_float(other_lse), to_float(lse).astype(np.float64))


@pytest.mark.parametrize("kind", ["mask", "kv_mask", "q2k_ragged", "lens"])
def test_update_then_run_gives_the_bits_of_plan_then_run(rng, kind):
    shape = {"M": 1024, "N": 2048, "heads": (4, 2), "selected": (1, 20)}
    old, new = make_problem(rng, kind, **shape), make_problem(rng, kind, **shape)
    if kind == "q2k_ragged":  # same topk by construction
        assert old.pattern["q2k_indices"].shape == new.pattern["q2k_indices"].shape
    plan, tensors = plan_of(old), inputs_of(new)
    given = {n: to_torch(a) for n, a in new.pattern.items() if a is not None}
    update_cake_vsa(plan, **given)
    out = run(plan, *tensors)
    assert same_bits(out, run(plan_of(new), *tensors))
    check(new, out)
    assert np.array_equal(plan["row_counts"].cpu().numpy(), new.mask.sum(-1))
    cakert.check_cake_vsa(plan)


def test_f40_runs_on_the_current_stream(rng):
    problem = make_problem(rng, "mask", M=512, N=512)
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)
    stale = torch.randn_like(q)
    out = poisoned(problem)[0]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)  # about 50 ms
        stale.copy_(q)
        run(plan, stale, k, v, out)
    assert not side.query(), "run must not wait for the stream"
    side.synchronize()
    check(problem, out)


def test_f41_f36_f47_graph_replays_with_new_values(rng):
    problem = make_problem(rng, "mask", M=512, N=512)
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)
    q2, out, out2 = torch.randn_like(q), torch.empty_like(q), torch.empty_like(q)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # no warm-up: plan has loaded everything
        run(plan, q, k, v, out)
        run(plan, q2, k, v, out2)
    for _ in range(3):
        for tensor in (q, q2, k, v):
            tensor.normal_()
        out.fill_(float("nan"))
        out2.fill_(float("nan"))
        graph.replay()
        assert same_bits(out, run(plan, q, k, v)) and same_bits(out2, run(plan, q2, k, v))


def test_f49_plan_and_update_refuse_a_capture(rng):
    problem = make_problem(rng, "mask", M=256, N=256)
    plan = plan_of(problem)
    mask = torch.from_numpy(problem.mask).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="plan before capture"):
            plan_of(problem, metadata="cpu")
        with pytest.raises(RuntimeError, match="captur"):
            update_cake_vsa(plan, block_mask=mask)
        torch.zeros(1, device="cuda")  # the capture is still sound
    graph.replay()
    torch.cuda.synchronize()


def test_f46_one_plan_on_two_streams(rng):
    problem = make_problem(rng, "mask", M=1024, N=1024)
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)
    queries = [torch.randn_like(q) for _ in range(100)]
    want = [run(plan, each, k, v) for each in queries]
    outs = [torch.full_like(q, float("nan")) for _ in queries]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for index, each in enumerate(queries):
        with torch.cuda.stream(streams[index % 2]):
            run(plan, each, k, v, outs[index])
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(outs, want, strict=True))


def test_f43_run_from_threads(rng):
    problem = make_problem(rng, "mask", M=512, N=512)
    plan, tensors = plan_of(problem), inputs_of(problem)
    want = run(plan, *tensors)
    torch.cuda.synchronize()
    results: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        for _ in range(50):
            results[index] = run(plan, *tensors)
        torch.cuda.synchronize()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == 4 and all(same_bits(each, want) for each in results.values())


def test_a_plan_may_die_while_its_run_is_in_flight(rng):
    problem = make_problem(rng, "mask", M=512, N=512)
    tensors = inputs_of(problem)
    want = run(plan_of(problem), *tensors)
    for _ in range(10):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        plan = plan_of(problem)
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            out = run(plan, *tensors)
        del plan
        other = plan_of(replace(problem, mask=~problem.mask), metadata="cpu")
        side.synchronize()
        assert same_bits(out, want)
        del other


def test_guard_regions_stay_untouched(rng):
    problem = make_problem(rng, "lens", M=256, N=256, heads=(3, 1), head_dim=96)
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)
    size = q.numel()
    room = torch.full((3 * size,), -7.0, dtype=q.dtype, device="cuda")
    out = room[size : 2 * size].view(q.shape)
    lse_size = q.shape[0] * q.shape[1]
    lse_room = torch.full((3 * lse_size,), -7.0, device="cuda")
    lse = lse_room[lse_size : 2 * lse_size].view(q.shape[:2])
    run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")
    check(problem, out, lse)
    for whole, part in ((room, size), (lse_room, lse_size)):
        assert (whole[:part] == -7).all() and (whole[2 * part :] == -7).all()


def test_hostile_lists_read_nothing_foreign(rng, family):
    """Counts and entries that update lets through as repaired, and raw garbage in the lists."""
    problem = make_problem(rng, "q2k", M=256, N=512, selected=(1, 5))
    plan, tensors = plan_of(problem), inputs_of(problem)
    bad = torch.from_numpy(problem.pattern["q2k_indices"]).cuda()
    bad[0, 0, 1:] = torch.tensor([-1, 2**31 - 1, 99, -(2**31)], device="cuda", dtype=torch.int32)
    counts = torch.full((2, 4), 2**31 - 1, dtype=torch.int32, device="cuda")
    update_cake_vsa(plan, q2k_indices=bad, q2k_num=counts)
    mask = problem.mask.copy()
    mask[0, 0] = False
    mask[0, 0, problem.pattern["q2k_indices"][0, 0, 0]] = True
    check(replace(problem, mask=mask), run(plan, *tensors))
    with pytest.raises(ValueError, match="q2k"):
        cakert.check_cake_vsa(plan)


def test_garbage_in_plan_memory_reads_nothing_foreign(rng, family):
    """Past every host check: the kernel's own clamps, with NaN lying right behind K and V."""
    if family == "sm90_group":
        pytest.skip("no row lists; its group record has this test on the simulator only")
    heads, blocks = 2, 5
    rows = 140  # of a head: more than run at once, so that the tile order is read
    problem = make_problem(rng, "lens", M=64 * rows, N=64 * blocks, heads=(heads, heads))
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)
    size = k.numel()
    behind = torch.full((2, 2 * size), float("nan"), dtype=k.dtype, device="cuda")
    behind[0, :size], behind[1, :size] = k.flatten(), v.flatten()
    k, v = behind[0, :size].view(k.shape), behind[1, :size].view(v.shape)

    lists = np.zeros((heads * rows, blocks), np.uint16)
    mask = np.zeros((heads, rows, blocks), bool)
    counts = rng.integers(1, blocks + 1, heads * rows).astype(np.int32)
    counts[1], counts[2] = -5, 2**30  # clamped to 0 and to the width
    for row in range(heads * rows):
        lists[row] = rng.permutation(blocks)
        foreign = rng.random(blocks) < 0.4
        lists[row][foreign] = rng.choice([blocks, blocks + 1, blocks + 4, 65535], foreign.sum())
        used = lists[row][: np.clip(counts[row], 0, blocks)]
        mask[row // rows, row % rows, used[used < blocks]] = True
    lens = np.array([-5, 0, 65, 64, 7], np.int32)
    workspace = plan["workspace"]
    workspace["row_blocks"].copy_in(lists)
    workspace["row_counts"].copy_in(counts)
    workspace["kv_block_lens"].copy_in(lens)
    order = np.arange(heads * rows, dtype=np.uint32)
    order[rows + 1] = 2**32 - 1  # no such row: it is not computed, nothing else is hurt
    workspace["tile_order"].copy_in(order)
    out, lse = poisoned(problem)
    run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")
    skipped = out[64:128, 1]
    assert torch.isnan(skipped).all()
    mask[1, 1] = False
    skipped.zero_()
    lse[64:128, 1] = -float("inf")
    check(replace(problem, mask=mask, lens=lens.clip(0, 64)), out, lse)


def test_run_errors_with_real_tensors(rng):
    problem = make_problem(rng, "mask", M=256, N=256)
    plan, (q, k, v) = plan_of(problem), inputs_of(problem)
    flat = torch.empty(q.numel() + 1, dtype=q.dtype, device="cuda")
    wide = torch.empty((256, 2, 256), dtype=q.dtype, device="cuda")
    for bad, text in (
        (q.half(), "bfloat16"),
        (q.cpu(), "cuda:0"),
        (q[:128], "256"),
        (flat[1:].view(q.shape), "16 bytes"),
        (wide[..., ::2], "strides"),
        (q.transpose(0, 1).contiguous().transpose(0, 1), "strides"),
    ):
        with pytest.raises(ValueError, match=text):
            run(plan, bad, k, v)
    with pytest.raises(ValueError, match="overlaps"):
        run(plan, q, k, v, q)
    with pytest.raises(TypeError, match="q"):
        run(plan, "q", k, v)
    grad = q.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="forward only"):
        run(plan, grad, k, v)
    with torch.no_grad():
        assert same_bits(run(plan, grad, k, v), run(plan, q, k, v))


def test_jax_and_cupy_tensors(rng):
    jax = pytest.importorskip("jax")
    cupy = pytest.importorskip("cupy")
    if jax.default_backend() != "gpu":
        pytest.skip(f"JAX has no GPU here, only {jax.default_backend()}")
    problem = make_problem(rng, "mask", M=256, N=512, dtype="float16")
    want = run(plan_of(problem), *inputs_of(problem))
    scalars = problem.scalars
    for module in (cupy, jax.numpy):
        mask = module.asarray(problem.mask)
        plan = plan_cake_vsa(None, None, mask, None, None, None, **scalars, device="cuda")
        tensors = [module.asarray(array) for array in (problem.q, problem.k, problem.v)]
        out = run(plan, *tensors)
        assert same_bits(torch.from_dlpack(out).cpu(), want.cpu())
    with pytest.raises(ValueError, match="read-only"):
        run(plan, *tensors, out=module.asarray(problem.q))


def test_device_arrays(rng):
    problem = make_problem(rng, "mask", M=256, N=256)
    want = run(plan_of(problem), *inputs_of(problem))
    tensors = [cakert.DeviceArray.from_numpy(a) for a in (problem.q, problem.k, problem.v)]
    plan = plan_cake_vsa(None, None, problem.mask, None, None, None, **problem.scalars, device=0)
    out = run(plan, *tensors)
    assert np.array_equal(out.numpy().view(np.int16), want.view(torch.int16).cpu().numpy())
