#!/usr/bin/env python3
"""Hold the predicted times of `cakert explain` to the measurements on an H200.

    tools/check_explain.py          the recorded ones
    tools/check_explain.py --gpu    masks of tools/explain_masks.py, measured on the GPU here

The first prints the table of docs/explain.md, and the error of each kernel that stands in
cakert/explanation/model.py. No GPU is needed. The second prints its part of that table for this
GPU, and keeps it with ``--out docs/bench/explain.json``; it needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explain_masks import Mask, benchmark_mask, other_cases, top_k_mask

from cakert import plan_cake_vsa, routes, sim
from cakert.explanation import Explanation, explain

BENCH = Path(__file__).resolve().parent.parent / "docs" / "bench" / "h200.json"
# What `--gpu --out` wrote.
OTHERS = BENCH.with_name("explain.json")

# docs/kernels.md, "sm90_split": heads, tokens, top-k, head_dim, us of a row a CTA (`sm90`), us of
# `sm90_split` (None: not measured, or not its route).
FEW_ROWS = (
    (1, 64, 1, 128, 4.2, None),
    (1, 512, 8, 128, 9.2, 6.5),
    (1, 1024, 16, 128, 15.4, 7.1),
    (2, 1024, 8, 128, 9.9, 7.8),
    (4, 1024, 16, 128, 15.9, 11.0),
    (1, 4096, 64, 128, 49.7, 21.3),
    (8, 1024, 4, 128, 8.4, 7.9),
    (4, 2048, 16, 128, 16.7, 13.4),
    (1, 1024, 16, 64, 12.7, 5.8),
    (8, 1024, 4, 64, 6.5, 6.2),
    (4, 2048, 16, 64, 13.7, 10.9),
    (1, 1024, 16, 96, 14.0, 6.4),
    (8, 1024, 4, 96, 7.3, 7.4),
    (4, 2048, 16, 96, 15.1, 12.2),
)
# docs/kernels.md, "Which kernel": workload of the benchmark, us of a row a CTA by events.
ROW_A_CTA = (
    ("A_h8_m4096_n4096_k32", 73.2),
    ("A_h7_m4096_ragged1to16", 35.3),
    ("A_h7_m109632_ragged1to64", 1912.0),
    ("C_video_h12_near56_rand8", 4012.0),
)


@dataclass(frozen=True)
class Case:
    """A measurement, and what the model says of it; times in microseconds of the kernel alone."""

    name: str
    source: str
    measured: float
    explanation: Explanation

    @property
    def predicted(self) -> float:
        assert self.explanation.predicted_us is not None
        return self.explanation.predicted_us

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def kernel(self) -> tuple[str, int, int]:
        shape = self.explanation.shape
        return self.explanation.family, shape.block, shape.head_dim


def explained(
    device: Any, mask: Mask, block: int, head_dim: int, only: str | None = None
) -> Explanation:
    with routes.only(only) if only else contextlib.nullcontext():
        return explain(plan_of(device, mask, {"block": block, "head_dim": head_dim}))


def plan_of(device: Any, mask: Mask, options: dict[str, Any]) -> dict[str, Any]:
    """A plan; `options` are what differs from 64-token blocks, head_dim 128, bfloat16, no GQA."""
    heads, q_blocks, kv_blocks = mask.shape
    block = options.get("block", 64)
    return plan_cake_vsa(
        None, None, mask, None, None, None,
        M=q_blocks * block, N=kv_blocks * block, R=block, C=block, num_qo_heads=heads,
        num_kv_heads=options.get("kv_heads", heads), head_dim=options.get("head_dim", 128),
        q_data_type=options.get("dtype", "bfloat16"), sm_scale=None, device=device,
    )  # fmt: skip


def cases(bench: Path = BENCH) -> Iterator[Case]:
    """Every measurement that there is of kernels for 9.0."""
    report = json.loads(bench.read_text())
    launch = report["ceilings"]["launch_us"]
    # What a graph replay and events hold besides the kernel.
    besides = launch["graph"] - launch["kernels"]
    slower = dict(ROW_A_CTA)
    with sim.device("sm_90a", sms=132) as device:
        for row in (row for row in report["rows"] if row["peer"] == "cakert"):
            mask = benchmark_mask(row)
            found = explained(device, mask, row["block"], row["head_dim"])
            if (found.route, found.tiles.fetched) != (row["route"], row["tiles"]):
                raise AssertionError(f"{row['name']} is another mask, or runs another kernel")
            us = row["ms"] * 1e3 - (0 if row["clock"] == "kernels" else besides)
            yield Case(row["name"], "benchmark", us, found)
            if row["name"] in slower:
                found = explained(device, mask, row["block"], row["head_dim"], "sm90")
                yield Case(row["name"], "kernels.md", slower[row["name"]] - besides, found)
        for heads, tokens, k, head_dim, by_row, by_split in FEW_ROWS:
            name = f"{heads} x {tokens}, top-{k}, D = {head_dim}"
            mask = top_k_mask(heads, tokens // 64, k)
            found = explained(device, mask, 64, head_dim, "sm90")
            yield Case(name, "kernels.md", by_row, found)
            if by_split is not None:
                yield Case(name, "kernels.md", by_split, explained(device, mask, 64, head_dim))


def recorded_cases(record: Path = OTHERS) -> Iterator[Case]:
    """The other masks as they were measured; raises where a seed gives another mask today."""
    report = json.loads(record.read_text())
    masks = other_cases(report["seed"])
    with sim.device("sm_90a", sms=132) as device:
        for row, (name, mask, options) in zip(report["rows"], masks, strict=True):
            if (row["name"], row["selected"]) != (name, int(mask.sum())):
                raise AssertionError(f"{row['name']}: seed {report['seed']} gives another mask")
            yield Case(name, "other masks", row["us"], explain(plan_of(device, mask, options)))


def measure(seed: int) -> tuple[list[Case], dict[str, Any]]:
    """Plan, explain and time the other masks on the current GPU; cases, and what to keep."""
    import torch
    from bench_timing import Timer
    from gpu_environment import environment

    from cakert import run_cake_vsa

    timer = Timer()
    launch = json.loads(BENCH.read_text())["ceilings"]["launch_us"]
    besides = launch["graph"] - launch["kernels"]
    found, rows = [], []
    for name, mask, options in other_cases(seed):
        plan = plan_of("cuda", mask, options)
        make = {"dtype": getattr(torch, options.get("dtype", "bfloat16")), "device": "cuda"}
        q = torch.randn(plan["M"], plan["num_qo_heads"], plan["head_dim"], **make)
        k, v = (
            torch.randn(plan["N"], plan["num_kv_heads"], plan["head_dim"], **make) for _ in "kv"
        )
        outputs = {"out": torch.empty_like(q), "lse": None, "return_lse": False}
        run = functools.partial(run_cake_vsa, plan, q, k, v, **outputs, backend="cake")
        # As the benchmark's: its long ones by graph replays, its short ones by the kernels alone.
        explanation = explain(plan)
        short = explanation.predicted_us is None or explanation.predicted_us < 20
        times = timer.kernels_ms([run])[0] if short else timer.gpu_ms(run)
        us = round(times["ms"] * 1e3 - (0 if short else besides), 2)
        found.append(Case(name, "this GPU", us, explanation))
        rows.append({"name": name, "selected": int(mask.sum()), "us": us})
    return found, {"environment": environment(), "seed": seed, "rows": rows}


def table(found: list[Case]) -> list[str]:
    """Lines of Markdown."""
    lines = [
        "| workload | kernel | source | measured, us | predicted, us | off | bound |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in found:
        family, block, head_dim = case.kernel
        lines.append(
            f"| {case.name} | {family}, {block}, {head_dim} | {case.source} | "
            f"{case.measured:,.1f} | {case.predicted:,.1f} | {case.off:+.1%} | "
            f"{case.explanation.bound} |"
        )
    return lines


def errors(found: list[Case]) -> dict[tuple[str, int, int], tuple[float, float, int]]:
    """Smallest and largest error of each kernel, and how many measurements it is over."""
    by_kernel: dict[tuple[str, int, int], list[float]] = {}
    for case in found:
        by_kernel.setdefault(case.kernel, []).append(case.off)
    return {kernel: (min(each), max(each), len(each)) for kernel, each in by_kernel.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true", help="measure other masks on the GPU here")
    parser.add_argument("--seed", type=int, default=4, help="of these masks (default: 4)")
    parser.add_argument("--out", type=Path, help="keep these measurements as JSON")
    args = parser.parse_args()
    if args.gpu:
        found, report = measure(args.seed)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    else:
        found = [*cases(), *recorded_cases()]
    print("\n".join(table(found)))
    for kernel, (low, high, count) in errors(found).items():
        print(kernel, f"{low:+.3f} {high:+.3f} over {count}")


if __name__ == "__main__":
    main()
