#!/usr/bin/env python3
"""Measure cakert's block-sparse attention beside that of others, in one run on one GPU.

    tools/bench_vsa.py --out docs/bench/h200.json      every workload, every contender
    tools/bench_vsa.py --only A_h7 --peers cakert      some of it
    tools/bench_vsa.py --warm 6                        FlexAttention compiles in 6 processes first
    tools/bench_vsa.py --family portable               another kernel family than the route's

Forward, batch 1. Kernel times are CUDA events around graph replays, the L2 flushed before each,
median, the contenders' replays taking turns so that a drifting clock meets them alike. Of small
workloads events would measure the launch: there it is the sum of the kernels' own durations.
TFLOP/s count selected blocks only, 4 * D * R * C * (their number). Plan times end when the plan's
GPU work has ended. Host times are microseconds a call in bursts of 256 with a synchronisation
between bursts, so that a full launch queue is not what is measured. Every output is compared with
float64 on a sample of query blocks before it is timed. A contender that is not installed, does not
support a workload or fails is reported with the reason. Needs torch.

A row's bound is the nearest of: the matrix product of this run, the feed from L2 to shared memory
for the K and V tiles that our plan fetches or, of others, that the lists name (who shares tiles
between rows can beat that), and an empty launch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from bench_ceilings import bounds_ms, ceilings, tiles_fetched
from bench_peers import PEERS, Cakert
from bench_timing import Timer
from bench_workloads import (
    GOALS,
    WORKLOADS,
    Workload,
    flops,
    make_inputs,
    make_mask,
    relative_error,
)
from gpu_environment import environment

from cakert import routes
from cakert.cubins import store
from cakert.runtime import tensormap

OURS = "cakert"


# A contender about to be timed: its row, its call, its graph (None of a small workload).
Ready = tuple[dict[str, Any], Callable[[], Any], Any]


class Wrong(Exception):
    """An output too far from float64's."""


def prepare(
    w: Workload, name: str, mask: torch.Tensor, qkv: list[torch.Tensor], timer: Timer
) -> Ready:
    """Plan, run once, check, capture."""
    plan, plan_ms = timer.synchronised_ms(PEERS[name].plan(w, mask))
    call, as_tokens_first = PEERS[name].run(w, plan, qkv)
    error = relative_error(w, mask, qkv, as_tokens_first(call()))
    if not error < 1e-2:
        raise Wrong(f"relative error {error}")
    row = {"relative_error": error, "plan_ms": plan_ms, "tiles": tiles_fetched(plan, mask)}
    if name == OURS:
        row["route"] = plan["route"]
    return row, call, None if w.small else timer.capture(call)


def measure(
    w: Workload, peers: list[str], timer: Timer, found: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row for each contender, measured or with the reason why not."""
    mask, qkv = make_mask(w), make_inputs(w)
    work = flops(w, mask)
    rows: list[dict[str, Any]] = []
    ready: list[Ready] = []
    for name in peers:
        row: dict[str, Any] = {"workload": w.name, "peer": name, **asdict(w)}
        rows.append(row)
        if reason := PEERS[name].missing() or PEERS[name].unsupported(w):
            row["not_measured"] = reason
            continue
        try:
            more, call, graph = prepare(w, name, mask, qkv, timer)
        except Exception as problem:
            if name == OURS:
                raise
            lines = str(problem).strip().splitlines() or [""]
            row["not_measured"] = f"{type(problem).__name__}: {lines[0][:300]}"
            torch.cuda.synchronize()  # raises where the failure has cost us the context
            continue
        row |= more
        ready.append((row, call, graph))
    for (row, _, _), times in zip(ready, clocked(w, ready, timer), strict=True):
        row |= times | {"tflops": work / times["ms"] / 1e9}
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    best = max((r["tflops"] for r in rows if "ms" in r and r["peer"] != OURS), default=None)
    for row in rows:
        if "ms" in row:
            row["ratio_to_best_peer"] = row["tflops"] / best if best else None
            bounds = bounds_ms(w, row, sms, found)
            row["bound"] = max(bounds, key=lambda name: bounds[name])
            row["of_bound"] = bounds[row["bound"]] / row["ms"]
            row["of_matmul"] = row["tflops"] / found["matmul_8192"]
        print(line(row), flush=True)
    return rows


def clocked(w: Workload, ready: list[Ready], timer: Timer) -> list[dict[str, Any]]:
    """Times of the contenders that are ready, in turns."""
    if not ready:
        return []
    clock = "graph replays"
    if w.small:
        try:
            times = timer.kernels_ms([call for _, call, _ in ready])
            return [own | {"clock": "kernels"} for own in times]
        except RuntimeError as problem:
            clock += f", for want of the kernels' own: {problem}"
    graphs = [graph or timer.capture(call) for _, call, graph in ready]
    return [own | {"clock": clock} for own in timer.replays_ms(graphs)]


def line(row: dict[str, Any]) -> str:
    start = f"{row['workload']:27s} {row['peer']:15s} "
    if "ms" not in row:
        return start + row["not_measured"]
    ratio = row["ratio_to_best_peer"]
    return (
        f"{start}{row['ms']:9.4f} ms {row['tflops']:6.1f} TFLOP/s "
        f"ratio_to_best_peer {f'{ratio:.3f}' if ratio else '-':5s}  "
        f"{row['of_bound']:4.0%} of {row['bound']:11s} {row['of_matmul']:4.0%} of matmul  "
        f"plan {row['plan_ms']:8.2f} ms  error {row['relative_error']:.1e}"
    )


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours against what is asked of it, for each workload that was measured."""
    rates: dict[str, dict[str, float]] = {}
    for row in rows:
        if "tflops" in row:
            rates.setdefault(row["workload"], {})[row["peer"]] = row["tflops"]
    table = []
    for name, goal in GOALS.items():
        found = rates.get(name, {})
        others = {peer: rate for peer, rate in found.items() if peer != OURS}
        if goal.own:
            others = {f"own {goal.own}": r for p, r in rates.get(goal.own, {}).items() if p == OURS}
        if OURS not in found or not others:
            continue
        best = max(others, key=lambda peer: others[peer])
        ratio = found[OURS] / others[best]
        table.append(
            {"workload": name, "ours": found[OURS], "best": others[best], "best_peer": best}
            | {"ratio": ratio, "floor": goal.floor, "goal": goal.goal, "met": goal.met(ratio)}
        )
    return table


def print_goals(table: list[dict[str, Any]]) -> None:
    print("\n| workload | ours, TFLOP/s | best peer | ratio | floor | goal | met? |")
    print("|---|---|---|---|---|---|---|")
    for row in table:
        print(
            f"| {row['workload']} | {row['ours']:.1f} | {row['best']:.1f} ({row['best_peer']}) | "
            f"{row['ratio']:.3f} | {row['floor']:.2f} | {row['goal']:.2f} | {row['met']} |"
        )
    print(flush=True)


def host_costs(timer: Timer) -> dict[str, dict[str, float]]:
    """Host cost of one call on a problem that the GPU finishes at once."""
    w = Workload("host", 1, 64, 64, 1, 1)
    mask, qkv = make_mask(w), make_inputs(w)
    plan = Cakert.plan(w, mask)()
    call, _ = Cakert.run(w, plan, qkv)
    a, b = qkv[0].flatten(), qkv[1].flatten()
    out = torch.empty_like(a)
    # The same launch with its parameters frozen: what is left is the driver's own cost.
    frozen = plan._call
    record = next(
        kernel
        for entry in store().fitting(torch.cuda.get_device_capability())
        for kernel in entry.kernels
        if kernel.name == frozen.kernel.name
    )
    tensors = [*qkv, out.view(qkv[0].shape)]
    launcher = frozen.kernel.prepare(
        frozen.pack(*tensors, None),
        *(
            tensormap.encode(**described, global_address=tensor.data_ptr())
            for described, tensor in zip(frozen.maps, tensors, strict=False)
        ),
        grid=1,
        block=record.threads,
        shared_bytes=record.shared_bytes,
    )
    return {
        "run_cake_vsa": timer.host_us(call),
        "Launcher.run, parameters frozen": timer.host_us(launcher.run),
        "torch.add(out=)": timer.host_us(lambda: torch.add(a, b, out=out)),
    }


def warm_up(only: str, processes: int) -> None:
    """Compile FlexAttention in other processes, which leave the results in torch's cache."""
    names = [w.name for w in WORKLOADS if re.search(only, w.name)]
    command = [sys.executable, str(Path(__file__).resolve()), "--compile", "--only"]
    shares = [names[i::processes] for i in range(processes) if names[i::processes]]
    few = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    running = [subprocess.Popen([*command, f"^({'|'.join(share)})$"], env=few) for share in shares]
    for process in running:
        process.wait()


def compile_only(only: str) -> None:
    """The body of a process of `warm_up`."""
    flex = PEERS["flex_attention"]
    for w in WORKLOADS:
        if re.search(only, w.name):
            flex.run(w, flex.plan(w, make_mask(w))(), make_inputs(w))[0]()
    torch.cuda.synchronize()


def measure_all(peers: list[str], only: str, out: Path | None) -> None:
    """Environment, ceilings, a row for each workload and contender, goals, host costs.

    The file is written after each workload, so that what was measured is never lost.
    """
    timer = Timer()
    report: dict[str, Any] = {
        "environment": environment()
        | {"torch": torch.__version__}
        | {"peers": {name: PEERS[name].version() for name in peers if name != OURS}},
        "ceilings": ceilings(timer),
        "rows": [],
    }

    def save() -> None:
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(report, indent=1) + "\n")

    print(report, flush=True)
    for w in WORKLOADS:
        if re.search(only, w.name):
            report["rows"] += measure(w, peers, timer, report["ceilings"])
            report["goals"] = goals(report["rows"])
            torch.cuda.empty_cache()
            save()
    print_goals(goals(report["rows"]))
    report["host"] = host_costs(timer)
    print(report["host"])
    save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression on workload names")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated")
    parser.add_argument("--family", choices=routes.families(), help="default: the route's own")
    parser.add_argument("--warm", type=int, default=0, metavar="N", help="compile in N processes")
    parser.add_argument("--compile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    peers = options.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)}; known: {', '.join(PEERS)}")
    if not torch.cuda.is_available():
        sys.exit("bench_vsa: no CUDA device that torch can use")
    if options.compile:
        compile_only(options.only)
        return
    if options.warm > 0 and "flex_attention" in peers:
        warm_up(options.only, options.warm)
    with routes.only(options.family) if options.family else nullcontext():
        measure_all(peers, options.only, options.out)


if __name__ == "__main__":
    main()
