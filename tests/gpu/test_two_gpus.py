"""Plans, kernels and memory of two GPUs in one process; skipped where there is one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from helpers.problems import make_problem  # noqa: E402
from torch_runs import check, inputs_of, plan_of, poisoned  # noqa: E402

import cakert  # noqa: E402
from cakert import cubins, plan_cake_vsa, run_cake_vsa, update_cake_vsa  # noqa: E402
from cakert.cli.main import main  # noqa: E402
from cakert.runtime import driver  # noqa: E402


@pytest.fixture(autouse=True)
def two_devices():
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here")
    torch.cuda.set_device(0)


def plan_on(problem, device):
    return plan_of(problem, device=device, metadata=device)


def run_on(problem, plan, device):
    q, k, v = inputs_of(problem, device)
    out, lse = poisoned(problem, device)
    run_cake_vsa(plan, q, k, v, out=out, lse=lse, return_lse=True, backend="cake")
    assert out.device == torch.device(device)
    check(problem, out, lse)
    return out


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 1, 0)])
def test_f37_one_after_the_other(rng, order, family):
    del family
    problem = make_problem(rng, "mask", block=64)
    outs = []
    for device in order:
        plan = plan_of(problem, device=f"cuda:{device}", metadata="cpu")
        outs.append(run_on(problem, plan, f"cuda:{device}").cpu())
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert torch.cuda.current_device() == 0 and driver.current_device() == 0


def test_f37_plans_of_both_live_side_by_side(rng):
    problem, other = (make_problem(rng, kind, block=64) for kind in ("mask", "q2k"))
    plans = [plan_on(one, f"cuda:{i}") for i, one in enumerate((problem, other))]
    for _ in range(3):
        for device, (one, plan) in enumerate(zip((problem, other), plans, strict=True)):
            run_on(one, plan, f"cuda:{device}")
    assert torch.cuda.current_device() == 0


def test_f37_update_of_the_second(rng):
    before, after = (make_problem(rng, "mask", block=64) for _ in range(2))
    plan = plan_on(before, "cuda:1")
    update_cake_vsa(plan, block_mask=torch.from_numpy(after.mask).to("cuda:1"))
    run_on(after, plan, "cuda:1")


def test_f43_threads_of_both(rng):
    problems = [make_problem(rng, "mask", block=64) for _ in range(2)]
    plans = [plan_on(one, f"cuda:{i}") for i, one in enumerate(problems)]
    failed = []

    def work(device: int) -> None:
        try:
            # The thread's current device is the other one.
            torch.cuda.set_device(1 - device)
            for _ in range(20):
                run_on(problems[device], plans[device], f"cuda:{device}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(device,)) for device in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed and not any(thread.is_alive() for thread in threads), failed


def test_f59_f63_tensors_of_another_gpu_are_refused(rng):
    problem = make_problem(rng, "mask", block=64)
    plan = plan_of(problem, device="cuda:0")
    q, k, v = inputs_of(problem, "cuda:1")
    options = {"out": None, "lse": None, "return_lse": False, "backend": "cake"}
    with pytest.raises(ValueError, match=r"cuda:1"):
        run_cake_vsa(plan, q, k, v, **options)
    with pytest.raises(ValueError, match=r"cuda:1"):
        run_cake_vsa(plan, q.to("cuda:0"), k, v.to("cuda:0"), **options)
    mask = torch.from_numpy(problem.mask).to("cuda:1")
    with pytest.raises(ValueError, match=r"cuda:[01]"):
        plan_cake_vsa(None, None, mask, None, None, None, **problem.scalars, device="cuda:0")


def test_current_device_means_the_one_of_the_moment(rng):
    problem = make_problem(rng, "mask", block=64)
    with torch.cuda.device(1):
        plan = plan_of(problem, device="cuda", metadata="cpu")
    run_on(problem, plan, "cuda:1")


def test_a_kernel_serves_both_and_its_attributes_are_each_devices():
    entry = cubins.store().fitting(driver.device_capability(0))[0]
    kernel = cakert.Library(cubins.store().read(entry))[entry.kernels[0].name]
    known = entry.kernels[0]
    for device in (1, 0):
        assert kernel.attributes(device).registers == known.registers
        occupancy = kernel.occupancy(known.threads, known.shared_bytes, device=device)
        assert occupancy.blocks_per_sm >= 1
    assert driver.current_device() == 0


def test_device_arrays_of_both(rng):
    values = rng.standard_normal((64, 8)).astype(np.float32)
    arrays = [cakert.DeviceArray.from_numpy(values, device=device) for device in (0, 1)]
    assert [array.device for array in arrays] == [0, 1]
    for array in arrays:
        assert np.array_equal(array.numpy(), values)
        assert torch.equal(torch.from_dlpack(array).cpu(), torch.from_numpy(values))


def test_load_on_the_second(capsys):
    store = cubins.store()
    entry = store.fitting(driver.device_capability(1))[0]
    assert main(["load", str(store.root / entry.file), "--device", "1"]) == 0
    assert "cuda:1" in capsys.readouterr().out
