"""How the sm_100a kernels of the flashinfer wheel are launched: one record a kernel.

The facts (tensor-map views, boxes and swizzles; grids; parameter order; metadata layouts) are those
of the wheel's binding and planner sources. Its kernels come in three families:

* "mask": a byte mask (heads, query blocks, KV blocks), or with `bsr` packed int32 columns;
* "lists": row lists of 64-token blocks, for persistent CTAs; the output leaves by TMA;
* "tokens": row lists a query token, for a KV head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from conformance_launch import Launch, Memory
from helpers.problems import VsaProblem

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Kernel:
    """A kernel and a problem for it.

    Attributes
    ----------
    name
        The source is ``cake_vsa_<name>.cu``.
    symbol
        Of the entry point.
    arguments
        From the memory of the simulated GPU, the problem, its kernel and the grid to arguments.
    grid
        Of the problem.
    problem
        Arguments of `helpers.problems.make_problem`, its kind first.
    poison
        Whether K and V are NaN where no list looks. Not where a kernel reads every block, or
        multiplies by zero what lies past a block's length.
    options
        What `arguments` has to know besides.
    """

    name: str
    symbol: str
    threads: int
    shared_bytes: int
    arguments: Callable[[Memory, VsaProblem, Kernel, tuple[int, int, int]], list[Any]]
    grid: Callable[[VsaProblem], tuple[int, int, int]]
    kind: str
    problem: dict[str, Any]
    poison: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def launch(self, memory: Memory, problem: VsaProblem) -> Launch:
        """Allocate, encode the tensor maps, put the arguments in order."""
        grid = self.grid(problem)
        arguments = self.arguments(memory, problem, self, grid)
        return Launch(self.symbol, grid, self.threads, arguments, self.shared_bytes)


def columns_of_64(x: Array) -> Array:
    """(tokens, heads, D) seen as (D / 64, heads, tokens, 64): strided, nothing is copied."""
    tokens, heads, dim = x.shape
    return x.reshape(tokens, heads, dim // 64, 64).transpose(2, 1, 0, 3)


def heads_first(x: Array) -> Array:
    """(tokens, heads, D) seen as (heads, tokens, D)."""
    return x.swapaxes(0, 1)


def q_split(memory: Memory, q: Array, rows: int, split: int) -> Any:
    """All `split` 64-column parts of `rows` tokens of a head in one box."""
    return memory.tiled("q", q, columns_of_64, (split, 1, rows, 64))


def kv_split(memory: Memory, name: str, x: Array) -> Any:
    """64 tokens x 64 columns of a head a box; the column part is an outer coordinate."""
    return memory.tiled(name, x, lambda x: columns_of_64(x).swapaxes(0, 1), (1, 1, 64, 64))


def dense(memory: Memory, name: str, x: Array) -> Any:
    """64 tokens x 64 columns of a head a box; columns past the head's are out of bounds."""
    return memory.tiled(name, x, heads_first, (1, 64, 64))


def scale_log2(problem: VsaProblem) -> np.float32:
    return np.float32(1 / math.sqrt(problem.head_dim) / math.log(2))


def by_mask(memory: Memory, p: VsaProblem, kernel: Kernel, grid: tuple[int, int, int]) -> list[Any]:
    """Family "mask"."""
    options = kernel.options
    if options.get("layout") == "dense":
        maps = [dense(memory, name, x) for name, x in (("q", p.q), ("k", p.k), ("v", p.v))]
    else:
        q = memory.put("q", p.q)
        if "q_box" in options:
            q = q_split(memory, p.q, *options["q_box"])
        maps = [q, kv_split(memory, "k", p.k), kv_split(memory, "v", p.v)]
    lse = memory.result("lse", (p.M, p.num_qo_heads), np.float32)
    most = int(p.mask.sum(-1).max())
    if options.get("bsr"):
        pattern = np.nonzero(p.mask[0])[1].astype(np.int32)
    else:
        pattern = p.mask.astype(np.uint8)
    counts = [np.int32(p.M // p.block), np.int32(p.N // p.block)]
    if "selected" in options:
        counts.append(np.int32(most))
    if options.get("bsr"):
        counts.append(np.int32(p.num_qo_heads * p.M // p.block))
    return [
        *maps,
        memory.result("out", p.q.shape, p.q.dtype),
        lse,
        lse,  # with a temperature: not asked for
        memory.put("pattern", pattern),
        *counts,
        np.int32(p.num_qo_heads),
        np.int32(p.num_kv_heads),
        scale_log2(p),
        np.float32(1),
        np.int32(1),  # the lse is wanted
        np.int32(0),
    ]


def by_lists(
    memory: Memory, p: VsaProblem, kernel: Kernel, grid: tuple[int, int, int]
) -> list[Any]:
    """Family "lists"."""
    nb = p.N // p.block
    lists = np.argsort(~p.mask, axis=-1, kind="stable").astype(np.int32)
    lens = np.full(nb, p.block) if p.lens is None else p.lens
    tiles = p.num_qo_heads * p.M // p.block
    return [
        memory.tiled("q", p.q, lambda q: columns_of_64(q).swapaxes(1, 2), (2, 64, 1, 64)),
        kv_split(memory, "k", p.k),
        kv_split(memory, "v", p.v),
        memory.tiled_result(
            "out", p.q.shape, p.q.dtype, heads_first, (1, 64, kernel.options["out_columns"])
        ),
        memory.result("lse", (p.M, p.num_qo_heads), np.float32),
        memory.put("lists", lists),
        memory.put("counts", p.mask.sum(-1, dtype=np.int32)),
        memory.put("lens", lens.astype(np.int32)),
        np.int32(nb),
        np.int32(p.M),
        np.int32(p.M // p.block),
        np.int32(tiles),
        np.int32(-(-tiles // grid[0])),
        np.int32(p.num_qo_heads),
        scale_log2(p),
        np.int32(1),  # the lse is wanted
    ]


def by_tokens(
    memory: Memory, p: VsaProblem, kernel: Kernel, grid: tuple[int, int, int]
) -> list[Any]:
    """Family "tokens": one sequence, no pages, not causal, no block scales."""
    group = p.num_qo_heads // p.num_kv_heads
    mask = p.mask[::group]
    topk = int(mask.sum(-1).max())
    blocks = np.argsort(~mask, axis=-1, kind="stable")[..., :topk].astype(np.int32)
    scales = np.ones((1, 1, 1024), np.uint8)
    lse = memory.result("lse", (p.M, p.num_qo_heads), np.float32)
    return [
        q_split(memory, p.q, 128, 2),
        kv_split(memory, "k", p.k),
        memory.tiled("k_scale", scales, np.asarray, (1, 1, 256), "none"),
        kv_split(memory, "v", p.v),
        memory.tiled("v_scale", scales, np.asarray, (1, 1, 256), "none"),
        memory.result("out", p.q.shape, p.q.dtype),
        lse,
        lse,  # with a temperature: not asked for
        memory.put("lists", np.repeat(blocks, p.block, axis=1)),
        memory.put("q_starts", np.array([0, p.M], np.int32)),
        memory.put("k_starts", np.array([0, p.N], np.int32)),
        memory.put("q_offsets", np.zeros(1, np.int32)),
        memory.put("kv_lens", np.array([p.N], np.int32)),
        memory.put("pages", np.zeros(1, np.int32)),
        np.int32(p.M),
        np.int32(p.num_qo_heads),
        np.int32(p.num_kv_heads),
        np.int32(topk),
        np.int32(1),  # sequences
        *(np.int32(0),) * 4,  # uniform length, pages, causal, derived offset
        scale_log2(p),
        *(np.float32(1),) * 3,
        np.int32(1),  # the lse is wanted
        np.int32(0),
    ]


def blocks_by_heads(p: VsaProblem) -> tuple[int, int, int]:
    return p.M // p.block, p.num_qo_heads, 1


KERNELS = (
    Kernel(
        "blk128_compact",
        "kernel_flashinfer_blackwell_vsa_blk128_seed_sm100",
        512,
        134784,
        by_mask,
        blocks_by_heads,
        "mask",
        {"M": 128, "N": 512, "block": 128, "heads": (2, 2)},
        options={"q_box": (64, 2)},
    ),
    Kernel(
        "blk128_fp16_compact",
        "kernel_flashinfer_blackwell_vsa_blk128_fp16_compact_sm100",
        512,
        134784,
        by_mask,
        blocks_by_heads,
        "mask",
        {"M": 256, "N": 384, "block": 128, "heads": (1, 1), "dtype": "float16"},
        options={"q_box": (64, 2)},
    ),
    Kernel(
        "longseq",
        "kernel_flashinfer_blackwell_vsa_longseq_warp_specialized_sm100",
        512,
        201344,
        by_mask,
        blocks_by_heads,
        "mask",
        {"M": 128, "N": 640, "block": 128, "heads": (1, 1), "selected": (3, 3)},
        options={"q_box": (64, 2), "selected": True},
    ),
    Kernel(
        "ultrasparse_bsr",
        "kernel_flashinfer_blackwell_vsa_ultrasparse_bsr_sm100",
        512,
        135424,
        by_mask,
        lambda p: (1, 1, 1),  # persistent: one CTA takes every tile
        "bsr",
        {"M": 128, "N": 896, "block": 128, "heads": (2, 2), "selected": (6, 6)},
        options={"q_box": (128, 2), "selected": True, "bsr": True},
    ),
    Kernel(
        "gqa_mask",
        "kernel_flashinfer_blackwell_vsa_gqa_mask_seed_sm100",
        512,
        134784,
        by_mask,
        # 64 rows an instance, two instances: tokens of a tile times heads of a group.
        lambda p: (p.M // (128 // (p.num_qo_heads // p.num_kv_heads)), p.num_kv_heads, 1),
        "kv_mask",
        {"M": 128, "N": 384, "block": 128, "heads": (4, 1), "selected": (1, 2)},
    ),
    Kernel(
        "head64_native",
        "kernel_flashinfer_blackwell_vsa_head64_native_sm100",
        384,
        108928,
        by_mask,
        lambda p: (2 * p.M // p.block, p.num_qo_heads, 1),
        "mask",
        {"M": 128, "N": 512, "block": 128, "heads": (2, 2), "head_dim": 64},
        options={"q_box": (64, 1)},
    ),
    Kernel(
        "head96_native",
        "kernel_flashinfer_blackwell_vsa_head96_native_sm100",
        384,
        182656,
        by_mask,
        lambda p: (2 * p.M // p.block, p.num_qo_heads, 1),
        "mask",
        {"M": 128, "N": 512, "block": 128, "heads": (1, 1), "head_dim": 96},
        options={"layout": "dense"},
    ),
    Kernel(
        "blk64_persistent",
        "kernel_flashinfer_vsa_blk64_persistent_m64_sm100",
        512,
        183296,
        by_lists,
        lambda p: (2, 1, 1),
        "lens",
        {"M": 128, "N": 448, "block": 64, "heads": (3, 3)},
        poison=False,
        options={"out_columns": 64},
    ),
    Kernel(
        "blk64_persistent_ws_m64n256",
        "kernel_flashinfer_vsa_blk64_persistent_per_head_m64n256_ws_sm100",
        512,
        232448,
        by_lists,
        lambda p: (1, 1, 1),
        "mask",
        {"M": 128, "N": 832, "block": 64, "heads": (1, 1), "selected": (12, 12)},
        options={"out_columns": 32},
    ),
    Kernel(
        "fp16_direct",
        "kernel_minimax_sparse_prefill_union_sm100",
        512,
        201728,
        by_tokens,
        lambda p: (-(-p.M // 256), p.num_qo_heads, 1),
        "kv_mask",
        {
            "M": 384,
            "N": 512,
            "block": 128,
            "heads": (2, 1),
            "dtype": "float16",
            "selected": (2, 2),
        },
        poison=False,
    ),
)
