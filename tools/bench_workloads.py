"""The benchmark's workloads: patterns, inputs, the error check and what is asked of each.

Masks and inputs are seeded by the workload's name. Needs torch.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Workload:
    """A random pattern: each query block of each head selects `low` to `high` KV blocks.

    With a `grid` the blocks are cubes of a video's latent, and `near` of the selected ones are
    those whose centres are nearest. A workload so `small` that events would measure the launch
    is measured by its kernels' own durations.
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
    small: bool = False

    @property
    def blocks(self) -> int:
        return self.tokens // self.block

    @property
    def seed(self) -> int:
        return zlib.crc32(self.name.encode())


WORKLOADS = (
    Workload("A_h7_m109632_n109632_k64", 7, 109632, 64, 64, 64),
    Workload("A_h7_m32768_n32768_k64", 7, 32768, 64, 64, 64),
    Workload("A_h7_m16384_n16384_k32", 7, 16384, 64, 32, 32),
    Workload("A_h8_m4096_n4096_k32", 8, 4096, 64, 32, 32),
    Workload("A_h7_m4096_ragged1to16", 7, 4096, 64, 1, 16),
    Workload("A_h7_m109632_ragged1to64", 7, 109632, 64, 1, 64),
    Workload("A_h7_m16384_n16384_k32_D64", 7, 16384, 64, 32, 32, 64),
    Workload("A_h7_m16384_n16384_k32_D96", 7, 16384, 64, 32, 32, 96),
    Workload("A_h8_m2048_n2048_k8", 8, 2048, 64, 8, 8, small=True),
    Workload("A_h8_m1024_n1024_k4", 8, 1024, 64, 4, 4, small=True),
    Workload("A_h1_m1024_n1024_k16", 1, 1024, 64, 16, 16, small=True),
    Workload("A_h1_m64_n64_k1", 1, 64, 64, 1, 1, small=True),
    Workload("B_h16_s16384_d50", 16, 16384, 128, 64, 64),
    Workload("B_h16_s16384_d25", 16, 16384, 128, 32, 32),
    Workload("B_h16_s16384_d10", 16, 16384, 128, 13, 13),
    Workload("B_h16_s32768_d25", 16, 32768, 128, 64, 64),
    Workload("B_h16_s80000_d10", 16, 80000, 128, 62, 62),
    Workload("B_h16_s16384_d25_D64", 16, 16384, 128, 32, 32, 64),
    Workload("B_h16_s16384_d25_D96", 16, 16384, 128, 32, 32, 96),
    Workload("C_video_h12_near56_rand8", 12, 76800, 64, 64, 64, near=56, grid=(5, 12, 20)),
    Workload("C_video_h12_near64_rand8", 12, 76800, 64, 72, 72, near=64, grid=(5, 12, 20)),
)


@dataclass(frozen=True)
class Goal:
    """Our TFLOP/s over the best peer's, or over our own on the workload `own`."""

    floor: float
    goal: float
    own: str = ""

    def met(self, ratio: float) -> str:
        return "goal" if ratio >= self.goal else "floor" if ratio >= self.floor else "no"


GOALS = {
    "A_h7_m109632_n109632_k64": Goal(1.00, 1.05),
    "A_h7_m32768_n32768_k64": Goal(0.97, 1.03),
    "A_h7_m16384_n16384_k32": Goal(0.97, 1.03),
    "A_h8_m4096_n4096_k32": Goal(0.97, 1.10),
    "A_h7_m4096_ragged1to16": Goal(0.97, 1.10),
    "A_h7_m109632_ragged1to64": Goal(0.97, 1.10),
    "A_h8_m2048_n2048_k8": Goal(0.95, 1.05),
    "A_h8_m1024_n1024_k4": Goal(0.95, 1.05),
    "A_h1_m1024_n1024_k16": Goal(0.95, 1.05),
    "A_h1_m64_n64_k1": Goal(0.95, 1.05),
    "B_h16_s16384_d50": Goal(0.95, 1.03),
    "B_h16_s16384_d25": Goal(0.95, 1.03),
    "B_h16_s16384_d10": Goal(0.95, 1.03),
    "B_h16_s32768_d25": Goal(0.95, 1.03),
    "B_h16_s80000_d10": Goal(0.95, 1.03),
    "B_h16_s16384_d25_D64": Goal(1.00, 1.15),
    "B_h16_s16384_d25_D96": Goal(0.80, 0.90, own="B_h16_s16384_d25"),
    "C_video_h12_near56_rand8": Goal(1.05, 1.20),
    "C_video_h12_near64_rand8": Goal(1.05, 1.20),
}


def make_mask(w: Workload) -> torch.Tensor:
    """Boolean (heads, blocks, blocks) on the GPU."""
    rng = np.random.Generator(np.random.Philox(w.seed))
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
    g = torch.Generator("cuda").manual_seed(w.seed)
    shape = (w.tokens, w.heads, w.head_dim)
    return [torch.randn(shape, generator=g, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def flops(w: Workload, mask: torch.Tensor) -> float:
    """Of the selected blocks only: 4 * D * R * C * (their number)."""
    return 4 * w.head_dim * w.block**2 * float(mask.sum())


def relative_error(
    w: Workload, mask: torch.Tensor, qkv: list[torch.Tensor], out: torch.Tensor
) -> float:
    """Frobenius norm of the error over that of the float64 result, on eight query blocks."""
    rng = np.random.default_rng(w.seed)
    error = norm = 0.0
    for head, row in zip(rng.integers(0, w.heads, 8), rng.integers(0, w.blocks, 8), strict=True):
        keys = mask[head, row].repeat_interleave(w.block)
        tokens = slice(row * w.block, (row + 1) * w.block)
        q, k, v = qkv[0][tokens, head].double(), *(t[keys, head].double() for t in qkv[1:])
        want = torch.softmax(q @ k.T / math.sqrt(w.head_dim), -1) @ v
        error += float(((out[tokens, head].double() - want) ** 2).sum())
        norm += float((want**2).sum())
    return math.sqrt(error / norm)
