"""A small attention problem for the scripts of `run_with_stub`: patterns, tensors, plan and run.

Imported in the child only. Nothing here imports cakert before it is used, so that a script can
look at what importing does.
"""

from __future__ import annotations

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from helpers.fake_tensor import FakeCuda
from helpers.group_record import rows_of_record

Array = npt.NDArray[Any]
rng = np.random.default_rng()


def aligned(shape: tuple[int, ...], dtype: Any, *, offset: int = 0) -> Array:
    """Random values, never zero, whose address is `offset` bytes past a multiple of 256."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    memory = np.empty(count * dtype.itemsize + 512, np.uint8)
    start = -int(memory.__array_interface__["data"][0]) % 256 + offset
    result = memory[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
    result[...] = (rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)).astype(dtype)
    return result


@dataclasses.dataclass(frozen=True)
class Problem:
    """Sizes of a problem; the defaults have M != N, MB != NB and Hq != Hkv."""

    M: int = 256
    N: int = 448
    block: int = 64
    q_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    dtype: str = "bfloat16"
    sm_scale: float | None = 0.37

    @property
    def mb(self) -> int:
        return self.M // self.block

    @property
    def nb(self) -> int:
        return self.N // self.block

    @property
    def element(self) -> np.dtype[Any]:
        return np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)

    def mask(self) -> Array:
        """(Hq, MB, NB) bool; every row selects something, no two rows need agree."""
        mask = rng.random((self.q_heads, self.mb, self.nb)) < 0.4
        chosen = rng.integers(0, self.nb, mask.shape[:2])
        np.put_along_axis(mask, chosen[..., None], True, axis=2)
        return mask

    def q2k(self, topk: int = 3) -> tuple[Array, Array]:
        """(indices int32 (Hq, MB, topk), counts int32 (Hq, MB)); -1 past the counts."""
        order = rng.random((self.q_heads, self.mb, self.nb)).argsort(axis=2)
        counts = rng.integers(1, topk + 1, (self.q_heads, self.mb)).astype(np.int32)
        indices = order[..., :topk].astype(np.int32)
        indices[np.arange(topk) >= counts[..., None]] = -1
        return np.ascontiguousarray(indices), counts

    def lens(self) -> Array:
        return rng.integers(1, self.block + 1, self.nb).astype(np.int32)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        q = (self.M, self.q_heads, self.head_dim)
        kv = (self.N, self.kv_heads, self.head_dim)
        return {"q": q, "k": kv, "v": kv, "out": q, "lse": (self.M, self.q_heads)}

    def array(self, name: str, *, offset: int = 0) -> Array:
        dtype = np.float32 if name == "lse" else self.element
        return aligned(self.shapes()[name], dtype, offset=offset)

    def tensors(self, *names: str, device: int = 0, **options: Any) -> list[Any]:
        """Fresh producers, q k v by default."""
        return [FakeCuda(self.array(name), device, **options) for name in names or ("q", "k", "v")]

    def plan(self, device: Any = 0, **metadata: Any) -> Any:
        """plan_cake_vsa with a random mask where no pattern is given."""
        import cakert

        if not metadata.keys() & {"indptr", "block_mask", "q2k_indices"}:
            metadata["block_mask"] = self.mask()
        names = ("indptr", "indices", "block_mask", "kv_block_lens", "q2k_indices", "q2k_num")
        return cakert.plan_cake_vsa(
            *(metadata.get(name) for name in names),
            M=self.M,
            N=self.N,
            R=self.block,
            C=self.block,
            num_qo_heads=self.q_heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            q_data_type=self.dtype,
            sm_scale=self.sm_scale,
            device=device,
        )


def run(
    plan: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    backend: str = "cake",
) -> Any:
    """run_cake_vsa with the arguments that most tests leave alone."""
    import cakert

    return cakert.run_cake_vsa(
        plan, q, k, v, out=out, lse=lse, return_lse=return_lse, backend=backend
    )


def peek(address: int, dtype: Any, shape: tuple[int, ...]) -> Array:
    """A copy of device memory, which under the stub is the process' own."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    data = ctypes.string_at(address, count * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(shape)


def rows_held(plan: Any) -> list[list[int]]:
    """The lists in a plan's device memory, row after row, as its kernel would read them."""
    memory, rows = plan["workspace"], plan["num_qo_heads"] * plan["mb"]
    index = np.dtype(np.uint16 if plan["nb"] < 65536 else np.uint32)

    def whole(name: str, dtype: Any, lines: int) -> Array:
        count = memory[name].nbytes // np.dtype(dtype).itemsize
        return peek(memory[name].pointer, dtype, (lines, count // lines))

    if "group_rows" in memory:
        groups = memory["group_counts"].nbytes // 4
        return rows_of_record(
            whole("group_rows", np.uint32, groups),
            whole("group_blocks", index, groups),
            whole("group_members", np.uint8, groups),
            whole("group_counts", np.int32, groups)[:, 0],
            num_rows=rows,
            kv_blocks=plan["nb"],
        )
    counts = whole("row_counts", np.int32, rows)[:, 0]
    order = whole("tile_order", np.uint32, rows)[:, 0]
    assert sorted(order.tolist()) == list(range(rows))
    lists = whole("row_blocks", index, rows)
    return [row[:count].tolist() for row, count in zip(lists, counts, strict=True)]


def use_store(folder: str) -> None:
    """Let plans find their cubins in another folder than the package's."""
    from cakert import cubins

    replacement = cubins.CubinStore(Path(folder))
    cubins.store = lambda: replacement  # type: ignore[assignment]
