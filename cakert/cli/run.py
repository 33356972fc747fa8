"""`cakert run`: a kernel on a GPU, or its PTX on the simulator, with arguments given as text."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cakert.cli.console import cta_progress, make_console
from cakert.cli.options import device, extents, seed, size, tolerance, up_to
from cakert.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from cakert.cli.argument_specs import Spec
    from cakert.cli.kernel_files import Image
    from cakert.cli.launch_job import Job
    from cakert.cli.numpy_files import StoredArray
    from cakert.cli.run_result import Ran, Result
    from cakert.sim.gpu import Schedule

_SCHEDULES = ("eager", "lazy", "random")
_MOST_LAUNCHES = 10_000
_LAUNCHES = 100

_EPILOG = """arguments, one --arg for each parameter in order (quote the brackets for your shell):
  'x:f32[64x128]=randn'     an array in device memory; the kernel gets its address
  n:i32=1024                a scalar
  bytes=0100ff              a struct by value, in hexadecimal; or bytes=@FILE
  The name before the colon may be left out (arg0, arg1, ...).
  types: f16 bf16 f32 f64 i8 u8 i16 u16 i32 u32 i64 u64 bool
  initial values of arrays: zeros, ones, iota (0, 1, 2, ...), rand ([0, 1); of integers any),
  rand:LOW:HIGH, randn, nan, a number, @FILE.npy, @FILE.npz:NAME

examples:
  cakert run scale.ptx --device sim:sm_100a --grid 4 --block 256 \\
      --arg 'x:f32[1024]=rand' --arg f32=2 --arg i32=1024
  cakert run scale.cubin scale --grid 4 --block 256 --arg 'x:f32[1024]=rand' \\
      --arg f32=2 --arg i32=1024 --time --out result.npz
  cakert run scale.cubin --device sim:sm_90a ... --compare result.npz --tolerance 1e-6

exit status: 0 well, 1 the kernel failed, an array differs, or something does not fit the file or
the device, 2 wrong usage. docs/run.md has the grammar, the JSON and what is compared how."""


def _argument(text: str) -> Spec:
    from cakert.cli.argument_specs import parse

    try:
        return parse(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "run",
        help="run a kernel of a file on a GPU or the simulator, with arguments given here",
        description="Runs a kernel of a cubin, fatbin or host file on a GPU, or its PTX on the "
        "simulator. Arguments are checked against the kernel's parameters before anything is "
        "launched. Prints what the arrays hold after one launch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="cubin, fatbin, host file, .ptx or .ptx.xz")
    add("kernel", nargs="?", metavar="KERNEL",
        help="symbol, C++ name, or the beginning of one (default: the only kernel)")  # fmt: skip
    add("--device", type=device, metavar="DEVICE",
        help="cuda:N; sim:sm_90a, sim:sm_100a or sim:sm_103a for the simulator (default: the "
        "first GPU that the file fits)")  # fmt: skip
    add("--grid", type=extents, required=True, metavar="X[,Y[,Z]]", help="blocks, as 4 or 4,2")
    add("--block", type=extents, required=True, metavar="X[,Y[,Z]]", help="threads of a block")
    add("--cluster", type=extents, metavar="X[,Y[,Z]]",
        help="blocks of a cluster (default: the kernel's own)")  # fmt: skip
    add("--shared", type=size, default=0, metavar="BYTES",
        help="dynamic shared memory of a block, as 4096 or 4K (default: 0)")  # fmt: skip
    add("--arg", type=_argument, action="append", default=[], dest="arguments", metavar="ARG",
        help="an argument, see below")  # fmt: skip
    add("--seed", type=seed, default=0, help="of random values and schedules (default: 0)")
    add("--time", type=up_to(_MOST_LAUNCHES), nargs="?", const=_LAUNCHES, metavar="N",
        help=f"time N more launches by events (default: {_LAUNCHES}); on a GPU")  # fmt: skip
    add("--out", type=Path, metavar="RESULT.npz", help="write the arrays after one launch")
    add("--overwrite", action="store_true", help="let --out replace a file")
    add("--compare", type=Path, metavar="OTHER.npz", help="compare the arrays with those of a file")
    add("--tolerance", type=tolerance, metavar="ABS", help="allowed difference (default: 0)")
    add("--relative", type=tolerance, metavar="REL",
        help="allowed part of the expected value, besides ABS (default: 0)")  # fmt: skip
    add("--schedule", choices=_SCHEDULES, help="of the simulator (default: eager)")
    add("--report", action="store_true", help="print the simulator's report")
    add("--json", action="store_true", help="print JSON (docs/run.md)")
    parser.set_defaults(run=run, usage_error=parser.error)


def check_usage(args: argparse.Namespace) -> None:
    """Check what argparse cannot; exits with 2 and one sentence."""
    fail: Callable[[str], None] = args.usage_error
    simulated = isinstance(args.device, str)
    if args.time is not None and simulated:
        fail("argument --time: the simulator knows no time of a GPU; --report has estimates")
    for option in ("schedule", "report"):
        if getattr(args, option) and not simulated:
            fail(f"argument --{option}: of the simulator alone: give --device sim:sm_100a")
    for option in ("tolerance", "relative"):
        if getattr(args, option) is not None and args.compare is None:
            fail(f"argument --{option}: goes with --compare")
    if args.overwrite and args.out is None:
        fail("argument --overwrite: goes with --out")
    for read, name in ((args.compare, "the file of --compare"), (args.file, "FILE")):
        if args.out is not None and read is not None and args.out.resolve() == read.resolve():
            fail(f"argument --out: must not be {name}, which would be lost")


def _job(args: argparse.Namespace, names: list[str], image: Image, symbol: str) -> Job:
    """The launch, its values drawn; sizes were checked before."""
    from cakert.cli.launch_job import Job, make_arguments

    return Job(
        image=image,
        symbol=symbol,
        arguments=make_arguments(args.arguments, names, args.seed),
        grid=args.grid,
        block=args.block,
        cluster=args.cluster,
        shared_bytes=args.shared,
    )


def _on_gpu(args: argparse.Namespace, names: list[str], images: tuple[Image, ...]) -> Ran:
    from cakert.cli.kernel_files import choose
    from cakert.cli.launch_job import check_geometry, check_sizes
    from cakert.cli.run_gpu import WARM_UP, execute, flush_bytes, pick_device
    from cakert.cli.run_result import Ran, Timing, Where

    gpu, fitting = pick_device(args.device, images, args.file)
    image, symbol = choose(fitting, args.kernel, args.file)
    assert image.cubin is not None
    if image.cubin.relocatable:
        raise ValueError(f"{image.place}: it is still to be linked (nvcc -rdc=true)")
    record = next(kernel for kernel in image.cubin.kernels if kernel.name == symbol)
    if record.parameters or record.parameter_bytes is not None:
        # Else the file does not say, and the launch holds the arguments to what the driver says.
        check_sizes(symbol, args.arguments, names, [one.size for one in record.parameters])
    check_geometry(record, args.grid, args.block, args.cluster)
    job = _job(args, names, image, symbol)
    arrays, times = execute(job, gpu, args.time or 0)
    timing = None
    if times is not None:
        timing = Timing(times, WARM_UP, flush_bytes(gpu.ordinal))
    where = Where(f"cuda:{gpu.ordinal}", gpu.name, gpu.capability, None)
    return Ran(job, where, arrays, timing, None)


def _on_simulator(
    args: argparse.Namespace, names: list[str], images: tuple[Image, ...], console: Console
) -> Ran:
    from cakert.cli.kernel_files import choose
    from cakert.cli.launch_job import check_sizes
    from cakert.cli.run_result import Ran, Where
    from cakert.cli.run_simulator import check_kinds, execute, load, pick_images
    from cakert.sim import Gpu

    arch = args.device.removeprefix("sim:")
    schedule: Schedule = args.schedule or "eager"
    fitting = pick_images(images, arch, args.file)
    image, symbol = choose(fitting, args.kernel, args.file)
    gpu = Gpu(arch, schedule=schedule, seed=args.seed)
    module = load(image, symbol, gpu)
    sizes = [nbytes for _, nbytes in module.parameters(symbol)]
    check_sizes(symbol, args.arguments, names, sizes)
    check_kinds(module, symbol, args.arguments, names)
    job = _job(args, names, image, symbol)
    with cta_progress(console, disable=args.json) as progress:
        arrays, report = execute(job, module, progress)
    return Ran(job, Where(args.device, None, gpu.capability, schedule), arrays, None, report)


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    check_usage(args)
    from cakert.cli.argument_specs import name_all
    from cakert.cli.kernel_files import read_images
    from cakert.cli.numpy_files import open_arrays
    from cakert.cli.result_files import check_target
    from cakert.cli.run_result import as_json, show

    try:
        names = name_all(args.arguments)
    except ValueError as problem:
        args.usage_error(f"argument --arg: {problem}")
    if args.out is not None:
        check_target(args.out, args.overwrite)
    expected = None if args.compare is None else open_arrays(args.compare)
    images = read_images(args.file)
    console = make_console()
    if isinstance(args.device, str):
        from cakert.sim import Fault

        try:
            ran = _on_simulator(args, names, images, console)
        except Fault as fault:
            # Its lines are a list of who waits for what: kept, unlike those of other errors.
            lines = map(printable, str(fault).splitlines())
            print("cakert: error: " + "\n".join(lines), file=sys.stderr)
            return 1
    else:
        ran = _on_gpu(args, names, images)
    result = _finish(args, ran, expected)
    if args.json:
        print(json.dumps(as_json(result, with_report=args.report), indent=2, allow_nan=False))
    else:
        show(result, console, with_report=args.report)
    return 0 if result.passed else 1


def _finish(args: argparse.Namespace, ran: Ran, expected: dict[str, StoredArray] | None) -> Result:
    """Write and compare what was asked for; written first, for a comparison may fail."""
    from cakert.cli.result_files import check_target, compare, write
    from cakert.cli.run_result import Result, count_changes

    if args.out is not None:
        check_target(args.out, args.overwrite)  # it may be there by now
        facts = {"kernel": ran.job.symbol, "device": ran.where.name, "seed": args.seed}
        write(args.out, ran.arrays, facts)
    changes = count_changes(ran.job, ran.arrays)
    differences = None
    if expected is not None:
        outputs = {name for name, changed in changes.items() if changed}
        differences = compare(
            ran.arrays,
            outputs,
            expected,
            absolute=args.tolerance or 0.0,
            relative=args.relative or 0.0,
        )
    return Result(
        path=args.file,
        ran=ran,
        seed=args.seed,
        changes=changes,
        compared_with=args.compare,
        differences=differences,
        written=args.out,
    )
