#!/usr/bin/env python3
"""Draw the README's plot from the JSON of tools/bench_vsa.py.

    tools/plot_bench.py docs/bench/h200.json docs/bench/h200.svg

Needs matplotlib (extra `bench`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLOURS = {
    "cakert": "#76b900",
    "flashinfer_cake": "#1f6fb4",
    "cudnn_bsa": "#e08214",
    "flash_attn_4": "#9467bd",
    "flex_attention": "#8c8c8c",
}


def title(row: dict[str, Any]) -> str:
    selected = str(row["high"]) if row["low"] == row["high"] else f"{row['low']}..{row['high']}"
    if row.get("near"):
        selected = f"the {row['near']} nearest and {row['high'] - row['near']} random"
    return (
        f"{row['tokens']} tokens, {row['heads']} heads, {selected} of "
        f"{row['tokens'] // row['block']} blocks\nR = {row['block']}, D = {row['head_dim']}"
    )


def rate(row: dict[str, Any]) -> str:
    """What stands beside a bar; of a workload that a launch dominates microseconds say more."""
    text = f"{row['tflops']:.0f}" if row["tflops"] >= 10 else f"{row['tflops']:.1f}"
    return f"{text} ({row['ms'] * 1e3:.1f} us)" if row.get("small") else text


def draw(report: dict[str, Any], target: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "cakert"  # the same bytes for the same numbers
    from matplotlib import pyplot

    rows = report["rows"]
    names = list(dict.fromkeys(row["workload"] for row in rows))
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    inches = max(0.62, 0.14 * len(peers) + 0.1)  # a workload's
    figure, axes = pyplot.subplots(figsize=(9, inches * len(names) + 1.4))
    height = 0.8 / len(peers)
    text = 7 if len(peers) < 4 else 6
    labelled: set[str] = set()
    for place, peer in enumerate(peers):
        for index, name in enumerate(names):
            row = next((r for r in rows if (r["workload"], r["peer"]) == (name, peer)), None)
            if row is None:
                continue
            y = index + (place - (len(peers) - 1) / 2) * height
            if "tflops" not in row:
                axes.text(4, y, "-", va="center", fontsize=text, color=COLOURS.get(peer))
                continue
            label = None if peer in labelled else peer
            labelled.add(peer)
            axes.barh(y, row["tflops"], height, color=COLOURS.get(peer), label=label)
            axes.text(row["tflops"] + 4, y, rate(row), va="center", fontsize=text)
    first = {row["workload"]: row for row in reversed(rows)}
    axes.set_yticks(range(len(names)), [title(first[name]) for name in names], fontsize=7)
    axes.set_ylim(len(names) - 0.45, -0.55)
    environment = report["environment"]
    axes.set_xlabel("TFLOP/s of selected blocks (bf16, forward)")
    axes.set_title(
        f"{environment['gpu']}, {environment['date']}, torch {environment['torch']}",
        fontsize=9,
        pad=20,
    )
    axes.spines[["top", "right"]].set_visible(False)
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0}
    axes.legend(frameon=False, fontsize=7, ncols=len(peers), **place)
    figure.tight_layout()
    figure.savefig(target, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path, help="JSON of tools/bench_vsa.py")
    parser.add_argument("target", type=Path, help="SVG to write")
    options = parser.parse_args()
    draw(json.loads(options.report.read_text()), options.target)


if __name__ == "__main__":
    main()
