#!/usr/bin/env python3
"""Measure cakert's block-sparse attention beside FlexAttention, in one run on one GPU.

    tools/bench_vsa.py --out docs/bench/h200.json      every workload, every contender
    tools/bench_vsa.py --only A_h7 --peers cakert      some of it
    tools/bench_vsa.py --family portable               another kernel family than the route's

Forward, batch 1. Kernel times are CUDA events around graph replays, the L2 flushed before each,
median, the contenders' replays taking turns so that a drifting clock meets them alike; TFLOP/s
count selected blocks only, 4 * D * R * C * (their number). Plan times end when the plan's GPU work
has ended. Host times are
microseconds a call in bursts of 256 with a synchronisation between bursts, so that a full launch
queue is not what is measured. Every output is compared with float64 on a sample of query blocks
before it is timed. Needs torch; masks and inputs are seeded by the workload's name.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_environment import environment

import cakert
from cakert import routes
from cakert.cubins import store
from cakert.runtime import tensormap


@dataclass(frozen=True)
class Workload:
    """A random pattern: each query block of each head selects `low` to `high` KV blocks.

    With a `grid` the blocks are cubes of a video's latent, and `near` of the selected ones are
    those whose centres are nearest.
    """

    name: str
    heads: int
    tokens: int
    block: int
    low: int
    high: int
    head_dim: int = 128
    near: int = 0
    grid: tuple[int, ...] = ()

    @property
    def blocks(self) -> int:
        return self.tokens // self.block


WORKLOADS = (
    Workload("A_h7_m109632_n109632_k64", 7, 109632, 64, 64, 64),
    Workload("A_h7_m32768_n32768_k64", 7, 32768, 64, 64, 64),
    Workload("A_h7_m16384_n16384_k32", 7, 16384, 64, 32, 32),
    Workload("A_h8_m4096_n4096_k32", 8, 4096, 64, 32, 32),
    Workload("A_h7_m4096_ragged1to16", 7, 4096, 64, 1, 16),
    Workload("A_h7_m109632_ragged1to64", 7, 109632, 64, 1, 64),
    Workload("A_h7_m16384_n16384_k32_D64", 7, 16384, 64, 32, 32, 64),
    Workload("A_h7_m16384_n16384_k32_D96", 7, 16384, 64, 32, 32, 96),
    Workload("B_h16_s16384_d50", 16, 16384, 128, 64, 64),
    Workload("B_h16_s16384_d25", 16, 16384, 128, 32, 32),
    Workload("B_h16_s16384_d10", 16, 16384, 128, 13, 13),
    Workload("B_h16_s32768_d25", 16, 32768, 128, 64, 64),
    Workload("B_h16_s80000_d10", 16, 80000, 128, 62, 62),
    Workload("B_h16_s16384_d25_D64", 16, 16384, 128, 32, 32, 64),
    Workload("B_h16_s16384_d25_D96", 16, 16384, 128, 32, 32, 96),
    Workload("C_video_h12_near56_rand8", 12, 76800, 64, 64, 64, near=56, grid=(5, 12, 20)),
)


def make_mask(w: Workload) -> torch.Tensor:
    """Boolean (heads, blocks, blocks) on the GPU."""
    rng = np.random.Generator(np.random.Philox(zlib.crc32(w.name.encode())))
    score = torch.from_numpy(rng.random((w.heads, w.blocks, w.blocks)))
    if w.grid:
        centres = np.stack(np.meshgrid(*map(np.arange, w.grid), indexing="ij"), -1)
        centres = centres.reshape(w.blocks, -1)
        squared = ((centres[:, None] - centres[None]) ** 2).sum(-1)
        near = torch.from_numpy(np.argsort(squared, axis=1, kind="stable")[:, : w.near])
        score.scatter_(2, near.expand(w.heads, -1, -1), -1.0)  # before all others
    rank = score.cuda().argsort(2).argsort(2)
    counts = torch.from_numpy(rng.integers(w.low, w.high + 1, (w.heads, w.blocks))).cuda()
    return rank < counts[..., None]


def make_inputs(w: Workload) -> list[torch.Tensor]:
    """q, k, v (tokens, heads, head_dim), standard normal, bf16."""
    g = torch.Generator("cuda").manual_seed(zlib.crc32(w.name.encode()))
    shape = (w.tokens, w.heads, w.head_dim)
    return [torch.randn(shape, generator=g, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def relative_error(
    w: Workload, mask: torch.Tensor, qkv: list[torch.Tensor], out: torch.Tensor
) -> float:
    """Frobenius norm of the error over that of the float64 result, on eight query blocks."""
    rng = np.random.default_rng(zlib.crc32(w.name.encode()))
    error = norm = 0.0
    for head, row in zip(rng.integers(0, w.heads, 8), rng.integers(0, w.blocks, 8), strict=True):
        keys = mask[head, row].repeat_interleave(w.block)
        tokens = slice(row * w.block, (row + 1) * w.block)
        q, k, v = qkv[0][tokens, head].double(), *(t[keys, head].double() for t in qkv[1:])
        want = torch.softmax(q @ k.T / math.sqrt(w.head_dim), -1) @ v
        error += float(((out[tokens, head].double() - want) ** 2).sum())
        norm += float((want**2).sum())
    return math.sqrt(error / norm)


class Cakert:
    """Plan and run, as a user calls them."""

    @staticmethod
    def plan(w: Workload, mask: torch.Tensor) -> Callable[[], Any]:
        return lambda: cakert.plan_cake_vsa(
            None, None, mask, None, None, None,
            M=w.tokens, N=w.tokens, R=w.block, C=w.block, num_qo_heads=w.heads,
            num_kv_heads=w.heads, head_dim=w.head_dim, q_data_type=torch.bfloat16, sm_scale=None,
            device="cuda",
        )  # fmt: skip

    @staticmethod
    def run(w: Workload, plan: Any, qkv: list[torch.Tensor]) -> tuple[Callable[[], Any], Any]:
        out = torch.full_like(qkv[0], float("nan"))

        def call() -> torch.Tensor:
            return cakert.run_cake_vsa(
                plan, *qkv, out=out, lse=None, return_lse=False, backend="cake"
            )

        return call, lambda result: result


class Flex:
    """torch.compile(flex_attention) with a BlockMask of full blocks only."""

    compiled: Any = None

    @staticmethod
    def plan(w: Workload, mask: torch.Tensor) -> Callable[[], Any]:
        from torch.nn.attention.flex_attention import BlockMask

        def make() -> Any:
            count = mask.sum(-1, dtype=torch.int32)
            lists = torch.sort(mask.byte(), dim=-1, descending=True, stable=True).indices.int()
            return BlockMask.from_kv_blocks(
                torch.zeros_like(count)[None], torch.zeros_like(lists)[None], count[None],
                lists[None], BLOCK_SIZE=(w.block, w.block), seq_lengths=(w.tokens, w.tokens),
                compute_q_blocks=False,
            )  # fmt: skip

        return make

    @staticmethod
    def run(w: Workload, plan: Any, qkv: list[torch.Tensor]) -> tuple[Callable[[], Any], Any]:
        from torch.nn.attention.flex_attention import flex_attention

        if Flex.compiled is None:
            torch._dynamo.config.recompile_limit = 256
            Flex.compiled = torch.compile(flex_attention, dynamic=False)
        options = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
        options = options if w.block == 64 else {}
        # Its own layout, (batch, heads, tokens, head_dim), packed outside the clock.
        q, k, v = (t.transpose(0, 1).contiguous()[None] for t in qkv)

        def call() -> torch.Tensor:
            with torch.no_grad():
                return Flex.compiled(q, k, v, block_mask=plan, kernel_options=options)

        return call, lambda result: result[0].transpose(0, 1)


PEERS: dict[str, Any] = {"cakert": Cakert, "flex_attention": Flex}


class Timer:
    """GPU and host clocks."""

    def __init__(self) -> None:
        self.buffer = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def gpu_ms(
        self, calls: list[Callable[[], Any]], budget_ms: float = 400.0
    ) -> list[dict[str, float]]:
        """Median, fastest and 80th percentile of each call's graph replays, milliseconds."""
        graphs = []
        for call in calls:
            call()
            torch.cuda.synchronize()
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                call()

        def samples(count: int) -> list[list[float]]:
            pairs: list[list[Any]] = [[] for _ in graphs]
            for _ in range(count):
                for graph, own in zip(graphs, pairs, strict=True):
                    self.buffer.zero_()
                    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
                    start.record()
                    graph.replay()
                    end.record()
                    own.append((start, end))
            torch.cuda.synchronize()
            return [sorted(start.elapsed_time(end) for start, end in own) for own in pairs]

        round_ms = sum(times[1] + 0.08 for times in samples(3))
        return [
            {
                "ms": statistics.median(times),
                "min_ms": times[0],
                "p80_ms": times[len(times) * 4 // 5],
                "samples": len(times),
            }
            for times in samples(int(min(100, max(15, budget_ms / round_ms))))
        ]

    @staticmethod
    def host_us(call: Callable[[], Any], bursts: int = 30, calls: int = 256) -> dict[str, float]:
        """Microseconds a call on the host, fastest and median burst."""
        times = []
        for _ in range(bursts):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            times.append((time.perf_counter() - start) / calls * 1e6)
        torch.cuda.synchronize()
        return {"min_us": min(times), "median_us": statistics.median(times)}

    @staticmethod
    def synchronised_ms(call: Callable[[], Any], count: int = 5) -> float:
        """Median wall clock of a call up to the end of its GPU work, milliseconds."""
        times = []
        for _ in range(count):
            torch.cuda.synchronize()
            start = time.perf_counter()
            kept = call()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
            del kept  # freeing a plan is not planning
        return statistics.median(times)


def ceilings(timer: Timer) -> dict[str, float]:
    """What the chip does in this run: a matrix product and dense attention, TFLOP/s."""
    a, b = (torch.randn((8192, 8192), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found = {"matmul_8192": 2 * 8192**3 / timer.gpu_ms([lambda: a @ b])[0]["ms"] / 1e9}
    q, k, v = (
        torch.randn((1, 16, 16384, 128), device="cuda", dtype=torch.bfloat16) for _ in range(3)
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    dense = timer.gpu_ms([lambda: attend(q, k, v)])[0]["ms"]
    found["dense_sdpa_h16_s16384"] = 4 * 16 * 16384**2 * 128 / dense / 1e9
    return found


def measure(w: Workload, peers: list[str], timer: Timer) -> list[dict[str, Any]]:
    mask, qkv = make_mask(w), make_inputs(w)
    flops = 4 * w.head_dim * w.block**2 * float(mask.sum())
    rows: list[dict[str, Any]] = []
    calls = []
    for name in peers:
        make_plan = PEERS[name].plan(w, mask)
        plan = make_plan()
        call, as_tokens_first = PEERS[name].run(w, plan, qkv)
        error = relative_error(w, mask, qkv, as_tokens_first(call()))
        if not error < 1e-2:
            raise SystemExit(f"{name} is wrong on {w.name}: {error}")
        calls.append(call)
        rows.append(
            {"workload": w.name, "peer": name, **asdict(w), "relative_error": error}
            | {"plan_ms": timer.synchronised_ms(make_plan)}
            | ({"route": plan["route"]} if name == "cakert" else {})
        )
    for row, times in zip(rows, timer.gpu_ms(calls), strict=True):
        row |= times
        row["tflops"] = flops / row["ms"] / 1e9
        row["ratio_to_first"] = row["tflops"] / rows[0]["tflops"]
        print(
            f"{w.name:32s} {row['peer']:15s} {row['ms']:8.3f} ms {row['tflops']:6.1f} TFLOP/s "
            f"({row['ratio_to_first']:.2f})   plan {row['plan_ms']:8.2f} ms   "
            f"error {row['relative_error']:.1e}",
            flush=True,
        )
    return rows


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression on workload names")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated")
    parser.add_argument("--family", choices=routes.families(), help="default: the route's own")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    peers = options.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)}; known: {', '.join(PEERS)}")
    if not torch.cuda.is_available():
        sys.exit("bench_vsa: no CUDA device that torch can use")

    with routes.only(options.family) if options.family else nullcontext():
        report = measure_all(peers, options.only)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def measure_all(peers: list[str], only: str) -> dict[str, Any]:
    """The report: environment, ceilings, a row for each workload and contender, host costs."""
    timer = Timer()
    report: dict[str, Any] = {
        "environment": environment() | {"torch": torch.__version__},
        "ceilings": ceilings(timer),
    }
    print(report, flush=True)
    report["rows"] = []
    for w in WORKLOADS:
        if re.search(only, w.name):
            report["rows"] += measure(w, peers, timer)
    report["host"] = host_costs(timer)
    print(report["host"])
    return report


if __name__ == "__main__":
    main()
