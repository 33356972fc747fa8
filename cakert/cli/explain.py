"""`cakert explain`: which kernel a mask gets and why, what it costs, and a picture of it."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cakert.cli.options import gpu, positive, up_to

if TYPE_CHECKING:
    from cakert.cli.mask_file import PatternFile
    from cakert.explanation import Explanation

_NAMED = ("h200", "h100", "b200", "b300")
_MOST_SMS = 1024  # several times those of any GPU; each takes memory, and a number in the JSON

_EPILOG = """MASK is a .npy file with a mask, bool or integers (not 0: selected), of shape
(heads, MB, NB) or, for all heads, (MB, NB); or a .npz file with block_mask; or q2k_indices and, if
need be, q2k_num; or indptr and indices (BSR, for all heads); each with kv_block_lens, if need be.

examples:
  cakert explain mask.npy                       as on an H200; no GPU is needed
  cakert explain mask.npy --out why.svg         and a picture (.svg or .png)
  cakert explain lists.npz --kv-blocks 512 --json
  cakert explain mask.npy --device cuda:0       plan it on that GPU

exit status: 0 well, 1 the file or the pattern cannot be planned, 2 wrong usage"""


def _device(text: str) -> int | str:
    """A name of `_NAMED`, or the index of ``cuda:1`` or ``1``."""
    if text in _NAMED:
        return text
    try:
        return gpu(text)
    except argparse.ArgumentTypeError:
        names = ", ".join(_NAMED)
        raise argparse.ArgumentTypeError(
            f"must be {names}, or cuda:0, cuda:1, ..., got {text!r}"
        ) from None


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "explain",
        help="which kernel runs a mask, why, and what takes the time",
        description="Plans a sparsity pattern and says which kernel runs it and why, its density, "
        "row counts, sharing, load of the SMs, bytes, what bounds it and the predicted time.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("mask", type=Path, metavar="MASK", help=".npy or .npz file")
    add(
        "--device",
        type=_device,
        default="h200",
        help="h200, h100, b200 or b300, without needing one; or cuda:N (default: h200)",
    )
    add("--sms", type=up_to(_MOST_SMS), help="SMs of a named device (default: as built)")
    add("--block", type=int, choices=(64, 128), default=64, help="tokens a block (default: 64)")
    add("--head-dim", type=int, choices=(64, 96, 128), default=128, help="(default: 128)")
    add("--dtype", choices=("float16", "bfloat16"), default="bfloat16", help="(default: bfloat16)")
    add("--heads", type=positive, help="query heads (default: of the mask, 1 for one of 2 axes)")
    add("--kv-heads", type=positive, help="key/value heads, a divisor of --heads (default: same)")
    add("--kv-blocks", type=positive, help="KV blocks, for q2k lists and BSR, which do not say")
    add("--out", type=Path, metavar="FILE", help="draw it, too: .svg or .png")
    add("--json", action="store_true", help="print JSON (docs/explain.md)")
    parser.set_defaults(run=run, usage_error=parser.error)


def _plan_arguments(args: argparse.Namespace, pattern: PatternFile) -> dict[str, Any]:
    """The arguments of plan but the device; what they have to fulfil is left to plan."""
    import numpy as np

    from cakert.cli.mask_file import MOST_ENTRIES

    mask, heads = pattern.block_mask, args.heads
    if mask is not None:
        q_blocks, kv_blocks = mask.shape[-2:]
        if mask.ndim == 2:
            heads = heads or 1
            mask = np.broadcast_to(mask, (args.kv_heads or heads, q_blocks, kv_blocks))
        else:
            heads = heads or len(mask)
        if args.kv_blocks not in (None, kv_blocks):
            args.usage_error(f"argument --kv-blocks: the mask has {kv_blocks}")
    else:
        if pattern.q2k_indices is not None:
            heads = heads or pattern.q2k_indices.shape[0]
            q_blocks = pattern.q2k_indices.shape[1]
        else:
            heads = heads or 1
            q_blocks = 1 if pattern.indptr is None else max(1, len(pattern.indptr) - 1)
        if args.kv_blocks is None:
            args.usage_error(
                "q2k lists and BSR do not say how many KV blocks there are: --kv-blocks"
            )
        kv_blocks = args.kv_blocks
    # The lists of a plan are as long as an update may make them.
    entries = heads * q_blocks * kv_blocks
    if entries > MOST_ENTRIES:
        raise ValueError(
            f"heads * query blocks * KV blocks must be at most {MOST_ENTRIES} here, got {entries}"
        )
    return {
        "indptr": pattern.indptr,
        "indices": pattern.indices,
        "block_mask": mask,
        "kv_block_lens": pattern.kv_block_lens,
        "q2k_indices": pattern.q2k_indices,
        "q2k_num": pattern.q2k_num,
        "M": q_blocks * args.block,
        "N": kv_blocks * args.block,
        "R": args.block,
        "C": args.block,
        "num_qo_heads": heads,
        "num_kv_heads": args.kv_heads or heads,
        "head_dim": args.head_dim,
        "q_data_type": args.dtype,
        "sm_scale": None,
    }


def _refuse_empty_rows(pattern: PatternFile) -> None:
    """Say how many rows select nothing, where plan would name the first only."""
    import numpy as np

    mask = pattern.block_mask
    if mask is None:
        return
    empty = np.argwhere(~mask.any(axis=-1))
    if len(empty):
        *head, block = map(int, empty[0])
        where = f"head {head[0]}, query block {block}" if head else f"query block {block}"
        raise ValueError(
            f"every row must select at least one KV block: {len(empty):,} of "
            f"{mask.size // mask.shape[-1]:,} rows select none, the first at {where}"
        )


@contextlib.contextmanager
def _explained(args: argparse.Namespace, arguments: dict[str, Any]) -> Iterator[Explanation]:
    """Plan on the device, or on a simulated one that stands for it, and explain."""
    import dataclasses

    import cakert
    from cakert.explanation.describe import describe
    from cakert.explanation.model import DEVICES
    from cakert.sim.targets import ARCHITECTURES

    if isinstance(args.device, int):
        arguments = _uploaded(arguments, args.device)
        yield cakert.explain(cakert.plan_cake_vsa(**arguments, device=f"cuda:{args.device}"))
        return
    machine = DEVICES[args.device]
    if args.sms not in (None, machine.sms):
        # Another part than the one that rates and constants are of.
        name = f"{machine.name} with {args.sms} SMs"
        machine = dataclasses.replace(machine, name=name, sms=args.sms, measured=False)
    (arch,) = (name for name, a in ARCHITECTURES.items() if a.capability == machine.capability)
    with cakert.sim.device(arch, sms=machine.sms) as device:
        plan: Any = cakert.plan_cake_vsa(**arguments, device=device)
        yield describe(plan, machine)


def _uploaded(arguments: dict[str, Any], device: int) -> dict[str, Any]:
    """q2k lists on the GPU, where plan wants them."""
    import cakert

    lists = {
        name: cakert.DeviceArray.from_numpy(arguments[name], device=device)
        for name in ("q2k_indices", "q2k_num")
        if arguments[name] is not None
    }
    return {**arguments, **lists}


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    from cakert.cli.mask_file import read_pattern

    if args.sms is not None and isinstance(args.device, int):
        args.usage_error("argument --sms: a GPU that is there says it itself")
    if args.out is not None:
        from cakert.explanation.picture import check_path

        check_path(args.out)  # before the work
    pattern = read_pattern(args.mask)
    _refuse_empty_rows(pattern)
    with _explained(args, _plan_arguments(args, pattern)) as explanation:
        if args.out is not None:
            explanation.draw(args.out)
        if args.json:
            print(json.dumps(explanation.as_dict(), indent=2, allow_nan=False))
        else:
            print(explanation.text())
    return 0
