"""A simulated device as `device=` of a plan: the same contract, the same bytes, memory in place."""

from __future__ import annotations

import copy
import gc
import struct
import threading

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from helpers.fake_tensor import CPU, FakeCuda  # noqa: E402
from helpers.problems import make_problem  # noqa: E402
from helpers.sim_runs import check, plan_of, poisoned, run  # noqa: E402

import cakert  # noqa: E402
from cakert import sim, validation  # noqa: E402

SMALL = {"M": 64, "N": 128, "heads": (2, 1), "head_dim": 64}


@pytest.fixture
def rng():
    return np.random.default_rng()


@pytest.fixture
def device():
    with sim.device("sm_100a") as simulated:
        yield simulated


def to_torch(array: np.ndarray) -> torch.Tensor:
    """Shares the memory of the array."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def arguments(problem, **changes):
    out, lse = poisoned(problem)
    return {
        "q": problem.q, "k": problem.k, "v": problem.v, "out": out, "lse": lse,
        "return_lse": True, "backend": "cake", **changes,
    }  # fmt: skip


# --- the device itself ----------------------------------------------------------------------------


def test_what_a_device_says(device):
    assert (str(device), device.arch, device.capability) == ("sim:sm_100a", "sm_100a", (10, 0))
    assert repr(device) == "<simulated device sm_100a>"
    assert device.report is None
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(device)


@pytest.mark.parametrize("arguments", [("sm_80",), ("cuda",)])
def test_a_device_refuses(arguments):
    with pytest.raises(ValueError, match="arch must be one of"), sim.device(*arguments):
        pass


def test_a_device_has_the_options_of_its_gpu():
    options = {"sms": 3, "schedule": "lazy", "seed": 4, "max_operations": 7}
    with sim.device("sm_100a", ignore=["tmem-leak"], **options) as device:
        assert {name: getattr(device.gpu, name) for name in options} == options
        assert device.gpu.ignore == {"tmem-leak"}


@pytest.mark.parametrize("spec", ["sim:sm_100a", "sim", "sm_100a"])
def test_a_simulated_device_has_no_name(spec):
    with pytest.raises(RuntimeError, match=r"device must be a CUDA device .*got 's"):
        validation.parse_device(spec, lambda: [(9, 0)])


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_103a"])
def test_the_kernel_is_the_one_of_the_architecture(rng, arch):
    problem = make_problem(rng, "mask", **SMALL)
    with sim.device(arch, schedule="random", seed=3) as device:
        plan = plan_of(problem, device)
        family = "sm90_split" if arch == "sm_90a" else "portable"
        assert plan["route"] == f"cake_vsa_{family}_r64_d64_bf16"
        assert plan._call.kernel.module.ptx.target == arch
        check(problem, *run(plan, problem))
        assert device.report is not None


# --- frameworks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_torch_and_numpy_give_the_same_bits(rng, device, dtype):
    problem = make_problem(rng, "q2k_ragged", dtype=dtype, **SMALL)
    out, lse = run(plan_of(problem, device), problem)
    check(problem, out, lse)

    pattern = {
        name: None if value is None else torch.from_numpy(value)
        for name, value in problem.pattern.items()
    }
    scalars = {**problem.scalars, "q_data_type": getattr(torch, dtype)}
    plan = cakert.plan_cake_vsa(**pattern, **scalars, device=device)
    assert plan["q2k_indices"] is pattern["q2k_indices"]
    assert isinstance(plan["row_counts"], torch.Tensor)
    assert plan["row_counts"].tolist() == problem.mask.sum(-1).tolist()
    inputs = [to_torch(array) for array in (problem.q, problem.k, problem.v)]
    made, made_lse = cakert.run_cake_vsa(
        plan, *inputs, out=None, lse=None, return_lse=True, backend="cake"
    )
    assert made.dtype is getattr(torch, dtype)
    assert (made.device.type, made.shape) == ("cpu", problem.q.shape)
    assert made.view(torch.int16).numpy().tobytes() == out.tobytes()
    assert made_lse.numpy().tobytes() == lse.tobytes()
    only_out = cakert.run_cake_vsa(
        plan, *inputs, out=None, lse=None, return_lse=False, backend="cake"
    )
    assert torch.equal(only_out, made)


def test_tensors_are_used_where_they_are(rng, device):
    """Views into larger buffers; what surrounds the outputs stays."""
    problem = make_problem(rng, "mask", **SMALL)
    plan = plan_of(problem, device)
    registered = len(device.gpu.memory)
    wanted, wanted_lse = run(plan, problem)
    buffer = torch.full((3, *problem.q.shape), 7.0, dtype=torch.bfloat16)
    lse = torch.full((3, 64, 2), 7.0)
    out = cakert.run_cake_vsa(
        plan, *(to_torch(a) for a in (problem.q, problem.k, problem.v)),
        out=buffer[1], lse=lse[1], return_lse=True, backend="cake",
    )  # fmt: skip
    assert out[0].data_ptr() == buffer[1].data_ptr()
    assert buffer[1].view(torch.int16).numpy().tobytes() == wanted.tobytes()
    assert lse[1].numpy().tobytes() == wanted_lse.tobytes()
    for whole in (buffer, lse):
        assert (whole[::2] == 7).all()
    assert len(device.gpu.memory) == registered  # what was lent is given back


def test_inputs_may_share_memory(rng, device):
    problem = make_problem(rng, "mask", M=128, N=128, heads=(1, 1), head_dim=64)
    plan = plan_of(problem, device)
    x = problem.q
    out, lse = cakert.run_cake_vsa(plan, **arguments(problem, k=x, v=x))
    from dataclasses import replace

    check(replace(problem, k=x, v=x), out, lse)


def test_jax_arrays(rng, device):
    jax = pytest.importorskip("jax")
    problem = make_problem(rng, "mask", **SMALL)
    plan = plan_of(problem, device)
    out, _ = run(plan, problem)
    made = cakert.run_cake_vsa(
        plan, *(jax.numpy.asarray(a) for a in (problem.q, problem.k, problem.v)),
        out=None, lse=None, return_lse=False, backend="cake",
    )  # fmt: skip
    assert isinstance(made, np.ndarray)
    assert made.tobytes() == out.tobytes()


# --- the launch -----------------------------------------------------------------------------------


def test_the_bytes_are_those_of_the_launch_abi(rng, device, monkeypatch):
    """cuda/vsa_params.h, version 1, and the geometry of the manifest."""
    problem = make_problem(rng, "lens", M=128, N=192, heads=(4, 2), head_dim=96, sm_scale=0.25)
    plan = plan_of(problem, device)
    seen = []
    monkeypatch.setattr(
        sim.Module, "launch", lambda self, name, **arguments: seen.append((name, arguments))
    )
    given = arguments(problem)
    cakert.run_cake_vsa(plan, **given)
    packed = plan._call.pack(*(given[name] for name in ("q", "k", "v", "out", "lse")))
    (name, launch), work = seen[0], plan["workspace"]
    assert name == plan["route"] == "cake_vsa_portable_r64_d96_bf16"
    (params,) = launch["args"]
    assert params == packed
    assert len(params) == 160
    tensors = [given[key].ctypes.data for key in ("q", "k", "v", "out", "lse")]
    pattern = [work[key].pointer for key in ("row_blocks", "row_counts", "kv_block_lens")]
    pattern.append(0)  # no tile order: all rows run at once
    fields = struct.unpack("<13Q12IfI", params)
    assert fields[:13] == (*tensors, *pattern, 0, 0, 0, 0)
    assert fields[13:25] == (1, 2, 3, 0, 8, 0, 128, 192, 2, 3, 4, 2)
    assert fields[25:] == (0.25, 0)
    assert (launch["grid"], launch["block"], launch["shared_bytes"]) == (8, 128, 49152)


def test_progress_and_report(rng):
    problem = make_problem(rng, "mask", M=128, N=64, heads=(2, 2), head_dim=64)
    seen = []
    with sim.device("sm_90a", progress=lambda *state: seen.append(state)) as device:
        run(plan_of(problem, device), problem)
        assert isinstance(device.report, sim.Report)
    assert seen[-1] == (4, 4)


def test_faults_reach_the_caller(rng, device):
    """A list that leads out of K: what a kernel would read is not there."""
    problem = make_problem(rng, "mask", M=64, N=64, heads=(1, 1), head_dim=64)
    plan = plan_of(problem, device)
    with pytest.raises(sim.Fault, match="global-out-of-bounds"):
        plan._call.kernel.launch_packed(
            plan._call.pack(*(arguments(problem)[n] for n in ("q", "k", "v", "out", "lse"))),
            (), (), 1, 128, 48 * 1024, 1,
        )  # fmt: skip


def test_threads_may_share_a_plan(rng, device):
    problem = make_problem(rng, "mask", **SMALL)
    plan = plan_of(problem, device)
    wanted, _ = run(plan, problem)
    results = []

    def work():
        results.append(run(plan, problem)[0].tobytes())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [wanted.tobytes()] * 3


# --- the contract ---------------------------------------------------------------------------------


def misaligned(array):
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 16 + 2
    moved = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


REFUSED = {
    "shape": (lambda a: {"q": a["q"][:, :1]}, ValueError, r"q must have the plan's shape \(64, 2"),
    "dtype": (
        lambda a: {"k": a["k"].astype(np.float16)},
        ValueError,
        "k must be bfloat16 as the plan is for bfloat16, got float16",
    ),
    "strides": (
        lambda a: {"v": np.repeat(a["v"], 2, axis=2)[..., ::2]},
        ValueError,
        "v must be contiguous",
    ),
    "alignment": (lambda a: {"q": misaligned(a["q"])}, ValueError, "q must be aligned to 16 bytes"),
    "overlap": (lambda a: {"out": a["q"]}, ValueError, "out overlaps q"),
    "lse overlap": (
        lambda a: {"lse": a["out"].reshape(-1)[:256].view(np.float32).reshape(64, 2)},
        ValueError,
        "lse overlaps out",
    ),
    "read-only": (lambda a: {"out": read_only(a["out"])}, ValueError, "out is read-only"),
    "lse": (lambda a: {"return_lse": False}, ValueError, "lse was given without return_lse"),
    "backend": (lambda a: {"backend": "sim"}, ValueError, 'backend must be "cake"'),
    "type": (lambda a: {"k": [1.0]}, TypeError, "k: expected a tensor"),
    "grad": (
        lambda a: {"q": to_torch(a["q"]).requires_grad_()},
        RuntimeError,
        "q requires grad",
    ),
    "a GPU's": (
        lambda a: {"q": FakeCuda(a["q"])},
        ValueError,
        "q must be on the plan's device sim:sm_100a, got cuda:0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_refuses(rng, device, name):
    change, error, message = REFUSED[name]
    problem = make_problem(rng, "mask", **SMALL)
    plan = plan_of(problem, device)
    given, registered = arguments(problem), len(device.gpu.memory)
    out, lse = given["out"], given["lse"]
    with pytest.raises(error, match=message):
        cakert.run_cake_vsa(plan, **{**given, **change(given)})
    assert np.isnan(out.astype(np.float32)).all()
    assert np.isnan(lse).all()
    assert device.report is None
    assert len(device.gpu.memory) == registered


@pytest.mark.parametrize("name", ["q2k_indices", "q2k_num", "block_mask", "kv_block_lens"])
def test_gpu_metadata_on_a_simulated_plan(rng, device, name):
    kind = "q2k_ragged" if name.startswith("q2k") else "lens"
    problem = make_problem(rng, kind, **SMALL)
    problem.pattern[name] = FakeCuda(problem.pattern[name], 1)
    where = "on" if kind == "q2k_ragged" else "on the CPU or on"
    with pytest.raises(
        ValueError, match=f"{name} must be {where} the plan's device sim:sm_100a, got cuda:1"
    ):
        plan_of(problem, device)


def test_a_foreign_producer_of_dlpack_will_do(rng, device):
    problem = make_problem(rng, "mask", **SMALL)
    plan = plan_of(problem, device)
    wanted, _ = run(plan, problem)
    given = arguments(problem)
    for name in ("q", "k", "v", "out", "lse"):
        given[name] = FakeCuda(given[name], device_type=CPU)
    producers = list(given.values())[:5]
    cakert.run_cake_vsa(plan, **given)
    assert producers[3].array.tobytes() == wanted.tobytes()
    assert all(each.exports == each.releases == 1 for each in producers)


def test_plan_refuses_in_the_usual_order(rng, device):
    problem = make_problem(rng, "mask", **SMALL)
    scalars = {**problem.scalars, "device": device}
    mask = problem.pattern["block_mask"]
    with pytest.raises(ValueError, match="head_dim must be"):
        cakert.plan_cake_vsa(None, None, 3, None, None, None, **{**scalars, "head_dim": 80})
    with pytest.raises(ValueError, match="a pattern must be given"):
        cakert.plan_cake_vsa(None, None, None, None, None, None, **scalars)
    with pytest.raises(ValueError, match="block_mask must have shape"):
        cakert.plan_cake_vsa(None, None, mask[:, :, :1], None, None, None, **scalars)
    with pytest.raises(ValueError, match="selects none"):
        cakert.plan_cake_vsa(None, None, mask & False, None, None, None, **scalars)
    assert len(device.gpu.memory) == 0


# --- life and death -------------------------------------------------------------------------------


def test_a_closed_device_runs_nothing(rng):
    problem = make_problem(rng, "mask", **SMALL)
    with sim.device("sm_100a") as device:
        plan = plan_of(problem, device)
    closed = "the simulated device sim:sm_100a is closed: plan and run inside its with block"
    given = arguments(problem)
    with pytest.raises(RuntimeError, match=closed):
        cakert.run_cake_vsa(plan, **given)
    with pytest.raises(RuntimeError, match=closed):
        plan_of(problem, device)
    with pytest.raises(RuntimeError, match=closed):
        cakert.update_cake_vsa(plan, block_mask=problem.pattern["block_mask"])
    with pytest.raises(RuntimeError, match=closed):
        cakert.check_cake_vsa(plan)
    assert np.isnan(given["lse"]).all()
    assert repr(device) == "<closed simulated device sm_100a>"


def test_an_error_closes_the_device(rng):
    with pytest.raises(ZeroDivisionError), sim.device("sm_90a") as device:
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="closed"):
        device.require_open()


def test_plans_give_their_memory_back(rng, device):
    """The kernel's own variables stay with the device."""
    problem = make_problem(rng, "lens", **SMALL)
    plans = [plan_of(problem, device) for _ in range(3)]
    registered = len(device.gpu.memory)
    del plans
    gc.collect()
    assert len(device.gpu.memory) == registered - 3 * 4


def test_devices_do_not_see_each_other(rng):
    problem = make_problem(rng, "mask", **SMALL)
    with sim.device("sm_90a") as one, sim.device("sm_103a") as two:
        plans = [plan_of(problem, each) for each in (one, two)]
        for plan in plans:
            check(problem, *run(plan, problem))
        assert plans[0]._call.kernel.place == "sim:sm_90a"
