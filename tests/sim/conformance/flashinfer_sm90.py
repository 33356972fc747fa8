"""How the sm_90a kernels of the flashinfer wheel are launched: one record a kernel.

Tensors are (heads, tokens, 128) bfloat16 with 64-token blocks. Threads, shared memory, cluster and
symbol stand in the wheel's manifest; tensor-map boxes and parameter order in its binding sources.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from conformance_build import sm90_manifest
from conformance_launch import Launch, Memory
from helpers.problems import VsaProblem
from sm90_plans import persistent_plan, small_plan, tiles_of

Array = npt.NDArray[Any]

BLOCK = 64


@dataclass(frozen=True)
class Kernel:
    """A stage of the manifest and a problem for it.

    Attributes
    ----------
    tokens
        Queries and keys.
    selected
        Smallest and largest number of blocks of a row.
    capacity
        Blocks that a plan row of a small kernel holds; 0 for the persistent kernels.
    slices
        As `sm90_plans.small_plan` takes it: rows of a query block, 0 for "split" kernels.
    mode
        Kind of tiles of a persistent kernel.
    ctas
        Of a persistent kernel.
    pool
        Tiles that CTAs of the queue kernel take at run time.
    omits
        Faults that the shipped kernel has, by name: they are noted instead of raised.
    """

    stage: str
    tokens: tuple[int, int]
    selected: tuple[int, int]
    heads: int = 1
    capacity: int = 0
    slices: int = 1
    mode: str = ""
    ctas: int = 1
    pool: int = 0
    omits: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.stage}-{self.mode}" if self.mode else self.stage

    def source(self) -> str:
        """Path of the CUDA source below the folder of sources."""
        return str(sm90_manifest()[self.stage]["translation_units"]["device"]).removeprefix("csrc/")

    def launch(self, memory: Memory, problem: VsaProblem) -> Launch:
        """Allocate, plan, encode the tensor maps, put the arguments in order."""
        record = sm90_manifest()[self.stage]
        limits = record["launch"]
        fixed = [
            rows_of_64(memory, "q", problem.q, 2),
            rows_of_64(memory, "k", problem.k, 2 if self.capacity else 1),
            groups_of_8(memory, "v", problem.v),
            memory.result("out", heads_first(problem.q).shape, problem.q.dtype),
        ]
        scalars = [
            np.int32(problem.M),
            np.int32(problem.N),
            np.float32(1 / math.sqrt(problem.head_dim) / math.log(2)),
        ]
        if self.capacity:
            plan, items = small_plan(problem.mask, self.capacity, self.slices)
            arguments = [*fixed, plan.tobytes(), *scalars]
            if self.slices == 0:
                tiles = problem.num_qo_heads * problem.M // BLOCK
                arguments += [
                    memory.result("partial_out", (items, BLOCK, 128), np.float32),
                    memory.result("partial_stats", (items, 2, BLOCK), np.float32),
                    memory.put("arrivals", np.zeros(tiles, np.uint32)),
                ]
        else:
            plan = persistent_plan(tiles_of(problem.mask, self.mode), self.ctas, self.pool)
            items = self.ctas
            arguments = [
                *fixed,
                memory.put("meta", plan.meta),
                plan.header.tobytes(),
                np.int32(plan.stride),
                *scalars,
                memory.put("queue", np.zeros(64, np.int32)),
                memory.put("timeline", np.zeros(8, np.uint64)),
            ]
        return Launch(
            record["kernel_symbol"],
            (items, 1, 1),
            limits["block"][0],
            arguments,
            limits["dynamic_smem_bytes"],
            tuple(limits["cluster"]) if limits["cluster"][0] > 1 else None,
        )


def heads_first(x: Array) -> Array:
    """(tokens, heads, D) to the kernels' (heads, tokens, D)."""
    return np.ascontiguousarray(x.swapaxes(0, 1))


def rows_of_64(memory: Memory, name: str, x: Array, split: int) -> Any:
    """Box of 64 rows of all heads' tokens and `split` 64-column parts."""
    return memory.tiled(
        name,
        heads_first(x),
        lambda x: x.reshape(-1, 2, 64).swapaxes(0, 1),
        (split, 64, 64),
    )


def groups_of_8(memory: Memory, name: str, x: Array) -> Any:
    """Box of 8 groups of 8 rows and both 64-column parts."""
    return memory.tiled(
        name,
        heads_first(x),
        lambda x: x.reshape(-1, 8, 2, 64).transpose(2, 0, 1, 3),
        (2, 8, 8, 64),
    )


# The persistent kernels multiply by both halves of a K stage, whether a block was loaded there or
# not, and mask the logits afterwards.
UNLOADED_KEYS = ("uninitialised-shared",)

KERNELS = (
    Kernel("small_k1", (128, 256), (1, 1), capacity=1),
    Kernel("small_k3", (64, 320), (1, 3), heads=2, capacity=3),
    Kernel("small_k4", (64, 320), (1, 4), heads=2, capacity=4),
    Kernel("small_k6", (64, 512), (1, 6), heads=2, capacity=6),
    Kernel("small_k4s", (64, 640), (1, 9), heads=2, capacity=4, slices=0),
    Kernel("small_k6s", (64, 832), (7, 12), capacity=6, slices=0),
    Kernel("small_k2c4", (64, 512), (1, 7), capacity=2, slices=4),
    Kernel("small_k3c3", (64, 640), (2, 9), capacity=3, slices=3),
    Kernel("small_k3c6", (64, 832), (6, 12), capacity=3, slices=6),
    Kernel("small_k4c2", (64, 576), (1, 8), capacity=4, slices=2),
    Kernel("small_k4c4", (64, 576), (4, 8), capacity=4, slices=4),
    Kernel("small_k6c2", (64, 704), (5, 10), capacity=6, slices=2),
    Kernel("attention", (192, 640), (1, 9), mode="split", omits=UNLOADED_KEYS),
    Kernel("attention", (256, 448), (1, 6), mode="pair", omits=UNLOADED_KEYS),
    Kernel(
        "attention_queue", (320, 448), (3, 3), mode="split", ctas=2, pool=3, omits=UNLOADED_KEYS
    ),
)
