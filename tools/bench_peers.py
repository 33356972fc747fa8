"""The benchmark's contenders: cakert and the attention of others, by their public APIs.

Each is a class with `module` (what must be installed), `unsupported(w)` (a reason, or ""),
`plan(w, mask)` (gives the call that makes a plan from a boolean mask on the GPU) and
`run(w, plan, qkv)`, which packs the inputs into the contender's own layout, outside the clock, and
gives the call and what turns its result into (tokens, heads, head_dim). Needs torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from bench_workloads import Workload

import cakert

Run = tuple[Callable[[], Any], Callable[[Any], torch.Tensor]]


def index_lists(mask: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ascending lists of selected blocks, int32 (heads, blocks, width), and their counts."""
    count = mask.sum(-1, dtype=torch.int32)
    lists = torch.sort(mask.byte(), dim=-1, descending=True, stable=True).indices[..., :width]
    return lists.int().contiguous(), count


def heads_first(qkv: list[torch.Tensor]) -> list[torch.Tensor]:
    """Packed (1, heads, tokens, head_dim)."""
    return [t.transpose(0, 1).contiguous()[None] for t in qkv]


class Contender:
    """What all of them share."""

    module = "torch"
    package = "torch"

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run here, or an empty string."""
        try:
            found = importlib.util.find_spec(cls.module) is not None
        except Exception as problem:  # of the parent package's own import
            return f"not installed: {cls.module}: {type(problem).__name__}: {problem}"[:300]
        return "" if found else f"not installed: no module {cls.module}"

    @classmethod
    def version(cls) -> str:
        """Of the installed package; why there is none otherwise."""
        try:
            return cls.missing() or importlib.metadata.version(cls.package)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    @classmethod
    def unsupported(cls, w: Workload) -> str:
        del w
        return ""


class Cakert(Contender):
    """Plan and run, as a user calls them."""

    module = package = "cakert"

    @staticmethod
    def plan(w: Workload, mask: torch.Tensor) -> Callable[[], Any]:
        return lambda: cakert.plan_cake_vsa(
            None, None, mask, None, None, None,
            M=w.tokens, N=w.tokens, R=w.block, C=w.block, num_qo_heads=w.heads,
            num_kv_heads=w.heads, head_dim=w.head_dim, q_data_type=torch.bfloat16, sm_scale=None,
            device="cuda",
        )  # fmt: skip

    @staticmethod
    def run(w: Workload, plan: Any, qkv: list[torch.Tensor]) -> Run:
        out = torch.full_like(qkv[0], float("nan"))

        def call() -> torch.Tensor:
            return cakert.run_cake_vsa(
                plan, *qkv, out=out, lse=None, return_lse=False, backend="cake"
            )

        return call, lambda result: result


class Flex(Contender):
    """torch.compile(flex_attention) with a BlockMask of full blocks only."""

    compiled: Any = None

    @staticmethod
    def plan(w: Workload, mask: torch.Tensor) -> Callable[[], Any]:
        from torch.nn.attention.flex_attention import BlockMask

        def make() -> Any:
            lists, count = index_lists(mask, w.blocks)
            return BlockMask.from_kv_blocks(
                torch.zeros_like(count)[None], torch.zeros_like(lists)[None], count[None],
                lists[None], BLOCK_SIZE=(w.block, w.block), seq_lengths=(w.tokens, w.tokens),
                compute_q_blocks=False,
            )  # fmt: skip

        return make

    @staticmethod
    def run(w: Workload, plan: Any, qkv: list[torch.Tensor]) -> Run:
        from torch.nn.attention.flex_attention import flex_attention

        if Flex.compiled is None:
            torch._dynamo.config.recompile_limit = 256
            torch._dynamo.config.accumulated_recompile_limit = 256
            Flex.compiled = torch.compile(flex_attention, dynamic=False)
        options = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
        options = options if w.block == 64 else {}
        q, k, v = heads_first(qkv)

        def call() -> torch.Tensor:
            with torch.no_grad():
                return Flex.compiled(q, k, v, block_mask=plan, kernel_options=options)

        return call, lambda result: result[0].transpose(0, 1)


class CudnnBsa(Contender):
    """cudnn.block_sparse_attention: CuTe DSL kernels of cuDNN's frontend."""

    module, package = "cudnn.block_sparse_attention", "nvidia-cudnn-frontend"

    @staticmethod
    def plan(w: Workload, mask: torch.Tensor) -> Callable[[], Any]:
        return lambda: [t[None] for t in index_lists(mask, w.high)]

    @staticmethod
    def run(w: Workload, plan: Any, qkv: list[torch.Tensor]) -> Run:
        from cudnn.block_sparse_attention import block_sparse_attention_forward

        lists, count = plan
        options: dict[str, Any] = {"sparse_block_size": w.block}
        # Of 128-token blocks the form with one fixed count is the faster; of 64-token blocks it
        # would fill a tensor of counts in every call.
        if w.low == w.high and w.block == 128:
            options["block_sparse_num"] = w.high
        else:
            options["q2k_block_nums"] = count
        q, k, v = heads_first(qkv)

        def call() -> Any:
            return block_sparse_attention_forward(q, k, v, lists, **options)

        return call, lambda result: result["o_tensor"][0].transpose(0, 1)


class FlashAttention4(Contender):
    """flash_attn.cute with block_sparse_tensors."""

    module, package = "flash_attn.cute", "flash-attn-4"

    @staticmethod
    def plan(w: Workload, mask: torch.Tensor) -> Callable[[], Any]:
        from flash_attn.cute.block_sparsity import BlockSparseTensorsTorch

        def make() -> Any:
            lists, count = index_lists(mask, w.blocks)
            return BlockSparseTensorsTorch(
                torch.zeros_like(count)[None], torch.zeros_like(lists)[None], count[None],
                lists[None], block_size=(w.block, w.block),
            )  # fmt: skip

        return make

    @staticmethod
    def run(w: Workload, plan: Any, qkv: list[torch.Tensor]) -> Run:
        del w
        from flash_attn.cute import flash_attn_func

        q, k, v = (t[None] for t in qkv)  # its layout is ours

        def call() -> Any:
            return flash_attn_func(q, k, v, block_sparse_tensors=plan)

        return call, lambda result: (result[0] if isinstance(result, tuple) else result)[0]


class FlashInferCake(Contender):
    """FlashInfer's kernels for Hopper; a 128-token mask runs as one of 64-token blocks."""

    module, package = "flashinfer", "flashinfer-python"
    workspace: Any = None

    @classmethod
    def unsupported(cls, w: Workload) -> str:
        if w.head_dim != 128:
            return "head_dim 128 only"
        if w.high * (w.block // 64) > 64:
            return "at most 64 selected blocks of 64 tokens"
        return ""

    @staticmethod
    def plan(w: Workload, mask: torch.Tensor) -> Callable[[], Any]:
        from flashinfer.sparse import VariableBlockSparseAttentionWrapper

        parts = w.block // 64
        mask = mask.repeat_interleave(parts, 1).repeat_interleave(parts, 2)
        sizes = torch.full(mask.shape[:2], 64, dtype=torch.int32, device="cuda")
        if FlashInferCake.workspace is None:
            FlashInferCake.workspace = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

        def make() -> Any:
            wrapper = VariableBlockSparseAttentionWrapper(FlashInferCake.workspace, backend="cake")
            wrapper.plan(
                mask, sizes, sizes, w.heads, w.heads, w.head_dim, q_data_type=torch.bfloat16
            )
            return wrapper

        return make

    @staticmethod
    def run(w: Workload, plan: Any, qkv: list[torch.Tensor]) -> Run:
        q, k, v = (t[0] for t in heads_first(qkv))
        out = torch.full_like(q, float("nan")).view(-1, 1, w.head_dim)

        def call() -> Any:
            return plan.run(q, k, v, out=out)

        return call, lambda result: result.view(w.heads, w.tokens, w.head_dim).transpose(0, 1)


PEERS: dict[str, Any] = {
    "cakert": Cakert,
    "flashinfer_cake": FlashInferCake,
    "cudnn_bsa": CudnnBsa,
    "flash_attn_4": FlashAttention4,
    "flex_attention": Flex,
}
