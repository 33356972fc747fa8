#!/usr/bin/env python3
"""Hold the predicted times of `cakert explain` to the measurements on an H200.

    tools/check_explain.py          the recorded ones, to which the model was fitted
    tools/check_explain.py --gpu    other masks, measured on the GPU here

The first prints the table of docs/explain.md, and the error of each kernel that stands in
cakert/explanation/model.py. No GPU is needed; the masks are those of tools/bench_workloads.py. The
second prints the page's other table; it needs torch.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert import plan_cake_vsa, routes, sim
from cakert.explanation import Explanation, explain

BENCH = Path(__file__).resolve().parent.parent / "docs" / "bench" / "h200.json"

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


Mask = npt.NDArray[np.bool_]


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


def benchmark_mask(row: dict[str, Any]) -> Mask:
    """What bench_workloads.make_mask makes for a row of the benchmark's JSON."""
    blocks = row["tokens"] // row["block"]
    rng = np.random.Generator(np.random.Philox(zlib.crc32(row["name"].encode())))
    score = rng.random((row["heads"], blocks, blocks))
    if row["grid"]:
        centres = np.stack(np.meshgrid(*map(np.arange, row["grid"]), indexing="ij"), -1)
        centres = centres.reshape(blocks, -1)
        squared = ((centres[:, None] - centres[None]) ** 2).sum(-1)
        near = np.argsort(squared, axis=1, kind="stable")[:, : row["near"]]
        np.put_along_axis(score, np.broadcast_to(near, (row["heads"], *near.shape)), -1.0, 2)
    counts = rng.integers(row["low"], row["high"] + 1, (row["heads"], blocks))
    lowest = np.sort(np.partition(score, row["high"] - 1, axis=2)[..., : row["high"]], axis=2)
    return score <= np.take_along_axis(lowest, counts[..., None] - 1, 2)


def top_k_mask(heads: int, blocks: int, k: int) -> Mask:
    """`k` random blocks of each row."""
    return np.random.default_rng(0).random((heads, blocks, blocks)).argsort(2) < k


def explained(
    device: Any, mask: Mask, block: int, head_dim: int, only: str | None = None
) -> Explanation:
    heads, q_blocks, kv_blocks = mask.shape
    with routes.only(only) if only else contextlib.nullcontext():
        plan = plan_cake_vsa(
            None, None, mask, None, None, None,
            M=q_blocks * block, N=kv_blocks * block, R=block, C=block, num_qo_heads=heads,
            num_kv_heads=heads, head_dim=head_dim, q_data_type="bfloat16", sm_scale=None,
            device=device,
        )  # fmt: skip
    return explain(plan)


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


# --- other masks ----------------------------------------------------------------------------------


def _random(rng: np.random.Generator, heads: int, rows: int, columns: int, share: float) -> Mask:
    mask = rng.random((heads, rows, columns)) < share
    mask[..., 0] = True  # no row may be empty
    return mask


def _one_dense_head(rng: np.random.Generator) -> Mask:
    mask = _random(rng, 8, 64, 64, 0.06)
    mask[rng.integers(8)] = True
    return mask


def _window(heads: int, blocks: int, width: int) -> Mask:
    at = np.arange(blocks)
    return np.broadcast_to(abs(at[:, None] - at) <= width, (heads, blocks, blocks)).copy()


def _causal(heads: int, blocks: int) -> Mask:
    return np.broadcast_to(np.tri(blocks, dtype=bool), (heads, blocks, blocks)).copy()


def _long_tailed(rng: np.random.Generator, heads: int, blocks: int) -> Mask:
    """Rows of very different lengths: most are short, few are long."""
    counts = np.clip(rng.pareto(1.2, (heads, blocks)) * 4 + 1, 1, blocks).astype(np.int64)
    return rng.random((heads, blocks, blocks)).argsort(2).argsort(2) < counts[..., None]


def fresh_masks(rng: np.random.Generator) -> Iterator[tuple[str, Mask, dict[str, Any]]]:
    """Name, mask, and what differs from 64-token blocks, head_dim 128, bfloat16, no GQA.

    Of these kinds, with the seeds 1 and 2, are the masks that `tail` was fitted to.
    """
    yield "one dense head of 8", _one_dense_head(rng), {}
    yield "window of 17 blocks, 12 heads", _window(12, 128, 8), {}
    yield "the same, float16", _window(12, 128, 8), {"dtype": "float16"}
    yield "causal, 8 heads", _causal(8, 96), {}
    yield "GQA 32 to 8, 20 %", _random(rng, 32, 64, 64, 0.2), {"kv_heads": 8}
    yield "long-tailed rows, 8 heads", _long_tailed(rng, 8, 128), {}
    yield "4 heads x 1,024 blocks, 5 %", _random(rng, 4, 1024, 1024, 0.05), {}
    yield "32 query by 512 key blocks, 10 %", _random(rng, 8, 32, 512, 0.1), {}
    yield "two rows an SM, 25 %", _random(rng, 4, 64, 64, 0.25), {}
    yield "few rows: 4 x 16, 24 of 128", top_k_mask(4, 128, 24)[:, :16], {}
    yield "few rows, head_dim 64", top_k_mask(4, 128, 24)[:, :16], {"head_dim": 64}
    yield "20 %, head_dim 64", _random(rng, 12, 128, 128, 0.2), {"head_dim": 64}
    yield "20 %, head_dim 96", _random(rng, 12, 128, 128, 0.2), {"head_dim": 96}
    yield "128-token blocks, 15 %", _random(rng, 16, 128, 128, 0.15), {"block": 128}
    yield "128-token blocks, causal", _causal(16, 96), {"block": 128}
    yield "128-token blocks, head_dim 64, 15 %", _random(rng, 16, 128, 128, 0.15), {
        "block": 128, "head_dim": 64,
    }  # fmt: skip
    yield "128-token blocks, head_dim 96, 15 %", _random(rng, 16, 128, 128, 0.15), {
        "block": 128, "head_dim": 96,
    }  # fmt: skip


def other_masks(rng: np.random.Generator) -> Iterator[tuple[str, Mask, dict[str, Any]]]:
    """Kinds of masks to which not even `tail` was fitted."""
    documents = np.zeros((8, 96, 96), bool)
    starts = np.sort(rng.choice(np.arange(4, 92), 5, replace=False))
    for first, last in zip((0, *starts), (*starts, 96), strict=True):
        documents[:, first:last, first:last] = True
    yield "six documents, 8 heads", documents, {}
    few_global = _window(12, 128, 4)
    few_global[:, :4] = True
    yield "window of 9 and 4 global rows", few_global, {}
    dense = _random(rng, 16, 96, 96, 0.1)
    dense[rng.choice(16, 2, replace=False)] = True
    yield "two dense heads of 16", dense, {}
    yield "causal window of 24, 24 heads", np.tril(_window(24, 96, 24)), {}
    uneven = _random(rng, 16, 96, 96, 0.08)
    uneven[rng.integers(16)] = True
    yield "128-token blocks, one dense head of 16", uneven, {"block": 128}
    yield "128-token blocks, documents", np.repeat(documents, 2, 0), {"block": 128}
    yield "128-token blocks, head_dim 96, documents", np.repeat(documents, 2, 0), {
        "block": 128, "head_dim": 96,
    }  # fmt: skip
    yield "one dense head of 8, head_dim 64", _one_dense_head(rng), {"head_dim": 64}


def measured_cases(seed: int) -> Iterator[Case]:
    """The fresh masks, each planned, explained and timed on the current GPU."""
    import torch
    from bench_timing import Timer

    from cakert import run_cake_vsa

    timer = Timer()
    launch = json.loads(BENCH.read_text())["ceilings"]["launch_us"]
    besides = launch["graph"] - launch["kernels"]
    rng = np.random.default_rng(seed)
    for name, mask, options in (*fresh_masks(rng), *other_masks(rng)):
        heads, q_blocks, kv_blocks = mask.shape
        block, head_dim = options.get("block", 64), options.get("head_dim", 128)
        kv_heads, dtype = options.get("kv_heads", heads), options.get("dtype", "bfloat16")
        plan = plan_cake_vsa(
            None, None, mask, None, None, None,
            M=q_blocks * block, N=kv_blocks * block, R=block, C=block, num_qo_heads=heads,
            num_kv_heads=kv_heads, head_dim=head_dim, q_data_type=dtype, sm_scale=None,
            device="cuda",
        )  # fmt: skip
        make = {"dtype": getattr(torch, dtype), "device": "cuda"}
        q = torch.randn(q_blocks * block, heads, head_dim, **make)
        k, v = (torch.randn(kv_blocks * block, kv_heads, head_dim, **make) for _ in range(2))
        out = torch.empty_like(q)

        options = {"out": out, "lse": None, "return_lse": False, "backend": "cake"}
        run = functools.partial(run_cake_vsa, plan, q, k, v, **options)
        # As the benchmark's: its long ones by graph replays, its short ones by the kernels alone.
        found = explain(plan)
        short = found.predicted_us is None or found.predicted_us < 20
        times = timer.kernels_ms([run])[0] if short else timer.gpu_ms(run)
        yield Case(name, "this GPU", times["ms"] * 1e3 - (0 if short else besides), found)


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
    parser.add_argument("--gpu", action="store_true", help="measure new masks on the GPU here")
    parser.add_argument("--seed", type=int, default=3, help="of the new masks (default: 3)")
    args = parser.parse_args()
    found = list(measured_cases(args.seed) if args.gpu else cases())
    print("\n".join(table(found)))
    for kernel, (low, high, count) in errors(found).items():
        print(kernel, f"{low:+.3f} {high:+.3f} over {count}")


if __name__ == "__main__":
    main()
