"""What the chip does in the same run, and which of it bounds a kernel. Needs torch.

The feed from L2 to shared memory is measured by tools/l2_feed.cu, built with the nvcc at hand.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_timing import Timer
from bench_workloads import Workload

import cakert

ROOT = Path(__file__).resolve().parent.parent
TILE_BYTES, TILES_A_BLOCK, STAGES = 16384, 1024, 6  # of tools/l2_feed.cu and its launch
FOOTPRINTS_MIB = (16, 44, 112)


def ceilings(timer: Timer) -> dict[str, Any]:
    """TFLOP/s, TB/s and microseconds of this run."""
    a, b = (torch.randn((8192, 8192), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    found: dict[str, Any] = {
        "matmul_8192": 2 * 8192**3 / timer.gpu_ms(lambda: a @ b)["ms"] / 1e9,
        "dense_h16_s16384_d128": dense(timer),
    }
    source = torch.empty(1 << 30, dtype=torch.int32, device="cuda").zero_()
    target = torch.empty_like(source)
    copied = timer.gpu_ms(lambda: target.copy_(source), flush=False)
    found["copy_tb_s"] = 2 * source.nbytes / copied["ms"] / 1e9
    found["l2_feed_tb_s"] = reason_or(lambda: l2_feed(timer))
    word = torch.zeros(1, device="cuda")
    found["launch_us"] = {
        "graph": timer.gpu_ms(lambda: word.add_(1))["ms"] * 1e3,
        "kernels": reason_or(lambda: timer.kernels_ms([lambda: word.add_(1)])[0]["ms"] * 1e3),
    }
    return found


def reason_or(measure: Callable[[], Any]) -> Any:
    """What `measure` gives; a ceiling that cannot be had is no reason to stop."""
    try:
        return measure()
    except Exception as problem:
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        return f"not measured: {lines[0][:200]}"


def dense(timer: Timer) -> dict[str, Any]:
    """Dense attention by each backend, TFLOP/s."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shape = (1, 16, 16384, 128)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    work = 4 * 16 * 16384**2 * 128 / 1e9

    def sdpa(backend: Any) -> float:
        with sdpa_kernel(backend):
            call = torch.nn.functional.scaled_dot_product_attention
            return work / timer.gpu_ms(lambda: call(q, k, v))["ms"]

    def flash_attn_4() -> float:
        from flash_attn.cute import flash_attn_func

        tokens_first = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
        return work / timer.gpu_ms(lambda: flash_attn_func(*tokens_first))["ms"]

    return {
        "cudnn": reason_or(lambda: sdpa(SDPBackend.CUDNN_ATTENTION)),
        "flash": reason_or(lambda: sdpa(SDPBackend.FLASH_ATTENTION)),
        "flash_attn_4": reason_or(flash_attn_4),
    }


def l2_feed(timer: Timer) -> dict[str, float]:
    """TB/s of random 16 KiB tiles into shared memory, by the footprint that they come from, MiB."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise RuntimeError("no nvcc")
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "l2_feed.cubin"
        command = [
            nvcc, "-cubin", "-std=c++17", "-O3", "-I", "cuda", "-arch=sm_90a",
            "tools/l2_feed.cu", "-o", str(cubin),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"nvcc: {done.stderr.strip() or done.stdout.strip()}")
        kernel = cakert.Library(cubin)["l2_feed"]
    blocks = 2 * torch.cuda.get_device_properties(0).multi_processor_count
    sums = torch.zeros(blocks, dtype=torch.int32, device="cuda")
    found = {}
    for footprint in FOOTPRINTS_MIB:
        tiles = (footprint << 20) // TILE_BYTES
        words = torch.randint(0, 1 << 30, (tiles, TILE_BYTES // 4), device="cuda").int()
        launcher = kernel.prepare(
            words, tiles, TILES_A_BLOCK, sums,
            grid=blocks, block=32, shared_bytes=STAGES * TILE_BYTES,
        )  # fmt: skip
        call = lambda launcher=launcher, words=words: launcher.run(words, sums)  # noqa: E731
        # Not flushed: what is measured is what L2 delivers while the footprint stays the same.
        took = timer.gpu_ms(call, flush=False)
        if (sums.cpu().numpy().view(np.uint32) != expected_sums(words, blocks)).any():
            raise RuntimeError("tools/l2_feed.cu gave wrong sums")
        found[str(footprint)] = blocks * TILES_A_BLOCK * TILE_BYTES / took["ms"] / 1e9
    return found


def expected_sums(words: torch.Tensor, blocks: int) -> np.ndarray:
    """What tools/l2_feed.cu must write: the first words of each block's tiles, added up."""
    first = words[:, 0].cpu().numpy().astype(np.uint64)
    low = np.uint64(0xFFFFFFFF)
    state = (np.arange(blocks, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(12345)) & low
    total = np.zeros(blocks, np.uint64)
    for _ in range(TILES_A_BLOCK):
        state = (state * np.uint64(1664525) + np.uint64(1013904223)) & low
        total += first[(state * np.uint64(len(first))) >> np.uint64(32)]
    return (total & low).astype(np.uint32)


def tiles_fetched(plan: Any, mask: torch.Tensor) -> int:
    """How many KV blocks a run takes out of L2: fewer than selected where rows share them."""
    known = getattr(plan, "tiles_fetched", None)
    return int(mask.sum() if known is None else known)


def footprint_mib(w: Workload, sms: int) -> float:
    """K and V of the heads that two thread blocks an SM work on at a time, in head order."""
    heads = min(w.heads, math.ceil(2 * sms / w.blocks))
    return heads * w.tokens * w.head_dim * 4 / 2**20


def bounds_ms(
    w: Workload, row: dict[str, Any], sms: int, found: dict[str, Any]
) -> dict[str, float]:
    """The least milliseconds that each ceiling leaves for a measured row."""
    bounds = {"tensor core": row["tflops"] * row["ms"] / found["matmul_8192"]}
    feed = found["l2_feed_tb_s"]
    if isinstance(feed, dict):
        sizes = sorted(feed, key=float)
        rate = np.interp(footprint_mib(w, sms), [float(s) for s in sizes], [feed[s] for s in sizes])
        bounds["L2 feed"] = row["tiles"] * 2 * w.block * w.head_dim * 2 / float(rate) / 1e9
    launch = found["launch_us"]["kernels" if row["clock"] == "kernels" else "graph"]
    if not isinstance(launch, str):
        bounds["launch"] = launch / 1e3
    return bounds
