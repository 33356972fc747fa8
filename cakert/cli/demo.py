"""`cakert demo`: plan and run a block-sparse attention problem, and hold it to the reference."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cakert.cli.console import capability_text, cta_progress, make_console, make_table
from cakert.cli.options import device_or_cpu, positive, seed

if TYPE_CHECKING:
    from rich.console import Console

    from cakert.cli.devices import Device
    from cakert.cli.problem import Problem, Verdict

_REPEATS = 50
_SIMULATED = "sm_100a"
"""What runs without a GPU: the target that fewest people have at hand."""

_EPILOG = """examples:
  cakert demo                                       on the best GPU, else on the simulator
  cakert demo --device cuda:1 --tokens-q 4096 --tokens-kv 4096 --topk 16 --heads 8
  cakert demo --device sim:sm_90a --dtype float16
  cakert demo --device cpu                          the reference alone

exit status: 0 within the bound, 1 out of it or failed, 2 wrong usage"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "demo",
        help="run block-sparse attention here and compare it with the reference",
        description="Draws a random problem, plans and runs it on a GPU that the package has "
        "cubins for, and compares the result with a float64 reference. Without such a GPU the "
        f"kernel for {_SIMULATED} runs on the simulator.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--device",
        type=device_or_cpu,
        help=f"cuda:N; sim:sm_90a, sim:sm_100a or sim:sm_103a for the simulator; cpu for the "
        f"reference alone (default: the best GPU, else sim:{_SIMULATED})",
    )
    add("--heads", type=positive, default=2, help="query heads (default: %(default)s)")
    add("--kv-heads", type=positive, help="key/value heads, a divisor of --heads (default: same)")
    add("--tokens-q", type=positive, default=256, help="query tokens (default: %(default)s)")
    add("--tokens-kv", type=positive, default=512, help="key tokens (default: %(default)s)")
    add("--topk", type=positive, default=3, help="KV blocks a query block selects (default: 3)")
    add("--block", type=int, choices=(64, 128), default=64, help="tokens a block (default: 64)")
    add("--head-dim", type=int, choices=(64, 96, 128), default=128, help="(default: 128)")
    add("--dtype", choices=("float16", "bfloat16"), default="bfloat16", help="(default: bfloat16)")
    add("--seed", type=seed, default=0, help="seed of inputs and pattern (default: 0)")
    parser.set_defaults(run=run, parser=parser)


def check_shapes(args: argparse.Namespace) -> None:
    """Check what argparse cannot; exits with 2 and one sentence where the shapes do not fit."""
    fail: Callable[[str], None] = args.parser.error
    for name in ("tokens_q", "tokens_kv"):
        tokens = getattr(args, name)
        if tokens % args.block:
            option = name.replace("_", "-")
            fail(f"argument --{option}: must be a multiple of --block {args.block}, got {tokens}")
    if args.topk > args.tokens_kv // args.block:
        fail(
            f"argument --topk: must be in [1, {args.tokens_kv // args.block}], the KV blocks that "
            f"there are, got {args.topk}"
        )
    if args.heads % (args.kv_heads or args.heads):
        fail(f"argument --kv-heads: must divide --heads {args.heads}, got {args.kv_heads}")


def pick_device(wanted: int | str | None, console: Console) -> Device | str:
    """The GPU to run on, "cpu", or the simulator by name, after saying why where it stands in.

    Raises
    ------
    RuntimeError
        The device that the user asked for cannot run the kernels.
    """
    if isinstance(wanted, str):
        return wanted
    from cakert.cli.devices import look_around
    from cakert.cubins import store

    machine = look_around()
    if not machine.devices:
        if wanted is not None:
            raise RuntimeError(f"--device cuda:{wanted}: {machine.problem}")
        console.print(f"No GPU to run on: {machine.problem}.", markup=False)
        return f"sim:{_SIMULATED}"
    cubins = store()
    supported = machine.supported(cubins)
    names = f"compute capabilities with cubins: {capability_text(cubins.capabilities)}"
    if wanted is None:
        if supported:
            return supported[0]
        found = ", ".join(f"{d.name} ({capability_text((d.capability,))})" for d in machine.devices)
        console.print(f"No GPU to run on: found {found}; {names}.", markup=False)
        return f"sim:{_SIMULATED}"
    device = machine.device(wanted)
    if device not in supported:
        found = f"{device.name} has compute capability {capability_text((device.capability,))}"
        raise RuntimeError(f"--device cuda:{wanted}: {found}; {names}")
    return device


def run_on_gpu(problem: Problem, device: Device, console: Console) -> int:
    """Plan, run, compare and time; 1 where the result is out of bounds."""
    import cakert
    from cakert.runtime import driver

    plan = _plan(problem, f"cuda:{device.ordinal}")
    q, k, v = (
        cakert.DeviceArray.from_numpy(array, device=device.ordinal)
        for array in (problem.q, problem.k, problem.v)
    )
    # The first run gives the result; those that are timed write the same values again.
    out = cakert.run_cake_vsa(plan, q, k, v, out=None, lse=None, return_lse=False, backend="cake")
    driver.synchronize(device.ordinal)
    start = time.perf_counter()
    for _ in range(_REPEATS):
        cakert.run_cake_vsa(plan, q, k, v, out=out, lse=None, return_lse=False, backend="cake")
    driver.synchronize(device.ordinal)
    micros = (time.perf_counter() - start) / _REPEATS * 1e6

    return _show(
        console,
        problem,
        plan,
        _judge(problem, out.numpy()),
        device=f"cuda:{device.ordinal} {device.name} ({capability_text((device.capability,))})",
        time=[
            "time a run",
            f"{micros:.1f} us (host clock over {_REPEATS} runs, launches included)",
        ],
    )


def run_on_simulator(problem: Problem, arch: str, console: Console) -> int:
    """Plan and run the shipped kernel's PTX on the CPU, and compare; 1 where it is wrong."""
    import cakert
    from cakert import sim

    console.print(
        f"Running the kernel for {arch} on the simulator (PTX on the CPU; --device cpu runs the "
        "reference alone).",
        markup=False,
    )
    start = time.perf_counter()
    with cta_progress(console) as progress, sim.device(arch, progress=progress) as device:
        plan = _plan(problem, device)
        out = cakert.run_cake_vsa(
            plan, problem.q, problem.k, problem.v,
            out=None, lse=None, return_lse=False, backend="cake",
        )  # fmt: skip
    seconds = time.perf_counter() - start
    return _show(
        console,
        problem,
        plan,
        _judge(problem, out),
        device=f"simulated {arch} ({capability_text((device.capability,))})",
        time=["time", f"{seconds:.1f} s (host clock, one run on the CPU: not a GPU's time)"],
    )


def _plan(problem: Problem, device: Any) -> dict[str, Any]:
    import cakert

    tokens_q, heads, head_dim = problem.q.shape
    tokens_kv, kv_heads, _ = problem.k.shape
    return cakert.plan_cake_vsa(
        None,
        None,
        problem.block_mask,
        None,
        None,
        None,
        M=tokens_q,
        N=tokens_kv,
        R=problem.block,
        C=problem.block,
        num_qo_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        q_data_type=problem.dtype,
        sm_scale=None,
        device=device,
    )


def _judge(problem: Problem, out: Any) -> Verdict:
    import cakert
    from cakert.cli.problem import judge, plain_attention

    reference, _ = cakert.reference.attention(
        problem.q, problem.k, problem.v, problem.block_mask, sm_scale=None, block=problem.block
    )
    return judge(out, reference, plain_attention(problem))


def _show(
    console: Console,
    problem: Problem,
    plan: dict[str, Any],
    verdict: Verdict,
    *,
    device: str,
    time: list[object],
) -> int:
    """Print the table of a kernel's run; returns the exit status."""
    rows: list[list[object]] = [
        ["device", device],
        ["kernel", plan["route"]],
        ["problem", problem.shape_text],
        ["selected", problem.pattern_text],
        ["largest error", f"{verdict.max_error:.3g} (bound {verdict.max_bound:.3g})"],
        ["Frobenius error", f"{verdict.fro_error:.3g} (bound {verdict.fro_bound:.3g})"],
        time,
        ["result", "within the bound" if verdict.passed else "WRONG: out of the bound"],
    ]
    console.print(make_table("block-sparse attention", ["what", "value"], rows))
    return 0 if verdict.passed else 1


def run_reference(problem: Problem, console: Console) -> int:
    """Compute the reference, and the error that 16-bit arithmetic makes against it."""
    import cakert
    from cakert.cli.problem import judge, plain_attention

    console.print("Running the reference on the CPU (numpy, float64).", markup=False)
    start = time.perf_counter()
    out, lse = cakert.reference.attention(
        problem.q, problem.k, problem.v, problem.block_mask, sm_scale=None, block=problem.block
    )
    seconds = time.perf_counter() - start
    plain = plain_attention(problem)
    verdict = judge(plain, out, plain)
    rounding = f"a plain {problem.dtype} computation is off by at most {verdict.max_error:.3g}"
    rows: list[list[object]] = [
        ["device", "CPU"],
        ["kernel", "none: cakert.reference"],
        ["problem", problem.shape_text],
        ["selected", problem.pattern_text],
        ["output", f"mean {out.mean():+.5f}, standard deviation {out.std():.5f}"],
        ["log-sum-exp", f"{lse.min():.4f} to {lse.max():.4f}"],
        ["16-bit rounding", rounding],
        ["time", f"{seconds * 1e3:.1f} ms (host clock, one run)"],
    ]
    console.print(make_table("block-sparse attention", ["what", "value"], rows))
    return 0


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    check_shapes(args)
    from cakert.cli.problem import make_problem

    console = make_console()
    device = pick_device(args.device, console)
    problem = make_problem(
        heads=args.heads,
        kv_heads=args.kv_heads or args.heads,
        tokens_q=args.tokens_q,
        tokens_kv=args.tokens_kv,
        topk=args.topk,
        block=args.block,
        head_dim=args.head_dim,
        dtype=args.dtype,
        seed=args.seed,
    )
    if device == "cpu":
        return run_reference(problem, console)
    if isinstance(device, str):
        return run_on_simulator(problem, device.removeprefix("sim:"), console)
    return run_on_gpu(problem, device, console)
