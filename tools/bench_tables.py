#!/usr/bin/env python3
"""Print the tables of docs/performance.md from the JSON of tools/bench_vsa.py.

tools/bench_tables.py docs/bench/h200.json
tools/bench_tables.py docs/bench/h200.json --page docs/performance.md    write them into it
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

OURS = "cakert"
NAMES = {
    "cakert": "cakert",
    "flashinfer_cake": "FlashInfer `cake`",
    "flash_attn_4": "FlashAttention-4",
    "cudnn_bsa": "cuDNN",
    "flex_attention": "FlexAttention",
}
SHAPE = ["heads x tokens, blocks a row", "block, head_dim"]


def describe(row: dict[str, Any]) -> str:
    """A workload in words."""
    blocks = row["tokens"] // row["block"]
    if row["near"]:
        chosen = f"{row['near']} nearest and {row['high'] - row['near']} random"
    elif row["low"] == row["high"]:
        chosen = f"{row['high']}"
    else:
        chosen = f"{row['low']} to {row['high']}"
    return f"{row['heads']} x {row['tokens']:,}, {chosen} of {blocks:,}"


def size(row: dict[str, Any]) -> str:
    return f"{row['block']}, {row['head_dim']}"


def workloads(report: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """The rows of each workload by contender, in the order of the file."""
    grouped: dict[str, dict[str, dict[str, Any]]] = {}
    for row in report["rows"]:
        grouped.setdefault(row["workload"], {})[row["peer"]] = row
    return list(grouped.values())


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rate(row: dict[str, Any]) -> str:
    """TFLOP/s; of a workload that the launch dominates, microseconds say more."""
    if "tflops" not in row:
        return "-"
    return f"{row['ms'] * 1e3:.1f} us" if row["small"] else f"{row['tflops']:.0f}"


def plan_time(row: dict[str, Any]) -> str:
    if "plan_ms" not in row:
        return "-"
    return f"{row['plan_ms']:,.1f}" if row["plan_ms"] < 100 else f"{row['plan_ms']:,.0f}"


def speed(report: dict[str, Any]) -> str:
    """TFLOP/s of each contender, our ratio to the best other one, and our bound."""
    peers = list(dict.fromkeys(row["peer"] for row in report["rows"]))
    rows = []
    for by_peer in workloads(report):
        ours = by_peer[OURS]
        bound = f"{ours['bound']}, {ours['of_bound'] * 100:.0f} %"
        rates = [rate(by_peer[peer]) for peer in peers]
        ratio = f"{ours['ratio_to_best_peer']:.2f}"
        rows.append([describe(ours), size(ours), *rates, ratio, bound])
    return table([*SHAPE, *(NAMES[peer] for peer in peers), "ratio", "nearest bound"], rows)


def plans(report: dict[str, Any]) -> str:
    """Milliseconds of a plan, where ours took longer than one."""
    peers = list(dict.fromkeys(row["peer"] for row in report["rows"]))
    rows = [
        [
            describe(by_peer[OURS]),
            size(by_peer[OURS]),
            *(plan_time(by_peer[peer]) for peer in peers),
        ]
        for by_peer in workloads(report)
        if by_peer[OURS]["plan_ms"] >= 1
    ]
    return table([*SHAPE, *(NAMES[peer] for peer in peers)], rows)


def host(report: dict[str, Any]) -> str:
    """Microseconds of a call on the host."""
    rows = [
        [f"`{name}`", f"{times['min_us']:.1f}", f"{times['median_us']:.1f}"]
        for name, times in report["host"].items()
    ]
    return table(["call", "fastest burst", "median burst"], rows)


def ceilings(report: dict[str, Any]) -> str:
    """What the GPU reached in that run."""
    found = report["ceilings"]
    dense = found["dense_h16_s16384_d128"]
    rows = [
        ["matrix product 8,192 x 8,192 x 8,192, TFLOP/s", f"{found['matmul_8192']:.0f}"],
        *(
            [f"dense attention, 16 x 16,384, head_dim 128: {name}, TFLOP/s", f"{dense[name]:.0f}"]
            for name in dense
            if isinstance(dense[name], float)  # else why it was not measured
        ),
        ["copy in device memory, TB/s", f"{found['copy_tb_s']:.2f}"],
        *(
            [f"random 16 KiB tiles into shared memory, out of {size} MiB, TB/s", f"{value:.1f}"]
            for size, value in found["l2_feed_tb_s"].items()
        ),
        ["empty kernel: its own time, us", f"{found['launch_us']['kernels']:.1f}"],
        ["empty kernel: replay of a graph, by events, us", f"{found['launch_us']['graph']:.1f}"],
    ]
    return table(["ceiling", "measured"], rows)


def run(report: dict[str, Any]) -> str:
    """What was measured, on what."""
    found = report["environment"]
    peers = ", ".join(f"{NAMES[name]} {version}" for name, version in found["peers"].items())
    return (
        f"{found['gpu']}, driver {found['driver']} (CUDA {found['driver_cuda']}), "
        f"torch {found['torch']}, {found['date']}; cakert {found['cakert']}; {peers}."
    )


TABLES = {"run": run, "speed": speed, "ceilings": ceilings, "plans": plans, "host": host}


def fill(page: str, report: dict[str, Any]) -> str:
    """The page with what stands between `<!-- name -->` and `<!-- end -->` made anew.

    Raises
    ------
    ValueError
        The page lacks one of the tables.
    """
    for name, make in TABLES.items():
        filled = f"<!-- {name} -->\n\n{make(report)}\n\n<!-- end -->"
        pattern = rf"<!-- {name} -->(?:(?!<!--).)*<!-- end -->"
        page, count = re.subn(pattern, lambda _, new=filled: new, page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"the page must have one table {name!r}, it has {count}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="JSON of tools/bench_vsa.py")
    parser.add_argument("--page", type=Path, help="Markdown to write the tables into")
    options = parser.parse_args()
    report = json.loads(options.report.read_text())
    if options.page:
        options.page.write_text(fill(options.page.read_text(), report))
    else:
        print("\n\n".join(make(report) for make in TABLES.values()))


if __name__ == "__main__":
    main()
