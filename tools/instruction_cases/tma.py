"""Tensor copies: where each byte goes, what lies outside the tensor, how many bytes are counted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from instruction_cases.model import BITS, Bytes, Case, MapSpec, Rule, segments_of
from instruction_cases.text import FILL, copy_words, kernel, wait

__all__ = ["cases"]

SPAN = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
SIZES = {"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "float16": 2, "bfloat16": 2,
         "float32": 4, "float64": 8, "int32": 4}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """Shape of a tensor and of a box, innermost first, in elements; the tensor is dense."""

    data_type: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str = "none"
    fill: str = "zero"
    steps: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return SIZES[self.data_type]

    @property
    def strides(self) -> tuple[int, ...]:
        """Rows rounded up to 16 bytes, which tensor maps need."""
        row = -(-self.dims[0] * self.size // 16) * 16
        return tuple(row * math.prod(self.dims[1:i]) for i in range(1, len(self.dims)))

    @property
    def nbytes(self) -> int:
        """Of the tensor."""
        row = -(-self.dims[0] * self.size // 16) * 16
        return row * math.prod(self.dims[1:])

    @property
    def box_bytes(self) -> int:
        """Bytes that a copy of the box counts."""
        steps = (1, *self.steps[1:]) if self.steps else (1,) * len(self.box)
        return self.size * math.prod(-(-n // s) for n, s in zip(self.box, steps, strict=True))

    @property
    def region(self) -> int:
        """Bytes of shared memory that are looked at: enough for any pitch that rows might have."""
        pitch = max(self.box[0] * self.size, SPAN[self.swizzle])
        return 1024 + -(-pitch * math.prod(self.box[1:]) // 1024) * 1024

    def map(self, buffer: str) -> MapSpec:
        """Its tensor map."""
        steps = self.steps or (1,) * len(self.dims)
        return MapSpec(
            buffer, self.data_type, self.dims, self.strides, self.box, steps, self.swizzle,
            self.fill,
        )  # fmt: skip


def _coordinates(rank: int) -> tuple[str, str]:
    """Parameters, and the text that loads them into %r10 and up."""
    params = ", ".join(f".param .s32 p_c{i}" for i in range(rank))
    loads = "".join(f"ld.param.s32 %r{10 + i}, [p_c{i}];\n" for i in range(rank))
    return params, loads


def load_text(rank: int) -> str:
    """Fill, load at p_at, wait for p_tx bytes, dump flag and region."""
    params, loads = _coordinates(rank)
    at = ", ".join(f"%r{10 + i}" for i in range(rank))
    body = (
        loads
        + "ld.param.u32 %r3, [p_region];\nld.param.u32 %r4, [p_at];\nld.param.u32 %r5, [p_tx];\n"
        + copy_words("fill", "shared %r1", "fill", "%r3")
        + "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra ready;\n"
        + "mbarrier.init.shared::cta.b64 [%r2], 1;\nready:\nfence.proxy.async.shared::cta;\n"
        + "bar.sync 0;\n@%p0 bra issued;\nadd.u32 %r6, %r1, %r4;\n"
        + "mbarrier.arrive.expect_tx.shared::cta.b64 %d3, [%r2], %r5;\n"
        + f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile"
        + f".mbarrier::complete_tx::bytes [%r6], [%d2, {{{at}}}], [%r2];\nissued:\n"
        + wait("waiting")
        + "bar.sync 0;\n@!%p0 st.global.b32 [%d0], %r84;\nadd.u64 %d0, %d0, 16;\n"
        + copy_words("dump", "global %d0", "shared %r1", "%r3")
    )
    scalars = f".param .u32 p_region, .param .u32 p_at, .param .u32 p_tx, {params}"
    return kernel(body, params=scalars, map_=True)


def store_text(rank: int, instruction: str) -> str:
    """Shared memory is the input; one store or reduction from p_at; the tensor is the output."""
    params, loads = _coordinates(rank)
    at = ", ".join(f"%r{10 + i}" for i in range(rank))
    body = (
        loads
        + "ld.param.u32 %r3, [p_region];\nld.param.u32 %r4, [p_at];\n"
        + copy_words("fill", "shared %r1", "global %d1", "%r3")
        + "fence.proxy.async.shared::cta;\nbar.sync 0;\nsetp.ne.u32 %p0, %r0, 0;\n@%p0 bra done;\n"
        + f"add.u32 %r6, %r1, %r4;\n{instruction} [%d2, {{{at}}}], [%r6];\n"
        + "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\ndone:\n"
    )
    return kernel(body, params=f".param .u32 p_region, .param .u32 p_at, {params}", map_=True)


def numbered(tensor: Tensor) -> Bytes:
    """A tensor whose elements tell their own place."""
    count = tensor.nbytes // tensor.size
    index = np.arange(1, count + 1, dtype=np.uint64)
    if tensor.size == 1:
        index = index * 7 % 251
    elif tensor.size == 8:
        index |= (index ^ np.uint64(0x5555)) << np.uint64(32)
    return index.astype(f"<u{tensor.size}").view(np.uint8)


def _load(name: str, tensor: Tensor, at: Sequence[int], destination: int = 0) -> Case:
    region = tensor.region + destination
    return Case(
        f"tma-load {name}", load_text(len(tensor.dims)), numbered(tensor),
        np.full(16 + region, FILL & 255, np.uint8),
        segments_of([("completed", 4, 4, BITS), ("shared", region // 4, 4, BITS)]),
        (np.uint32(region), np.uint32(destination), np.uint32(tensor.box_bytes),
         *map(np.int32, at)),
        tensor.map("in"), shared_bytes=region + 1024,
    )  # fmt: skip


def loads() -> list[Case]:
    """Types, swizzles, narrow rows, destinations, bounds, fills and steps."""
    found = []
    for data_type, swizzle in itertools.product(("uint8", "uint16", "uint32", "uint64"), SPAN):
        size = SIZES[data_type]
        full = (SPAN[swizzle] or 64) // size
        for row in sorted({full, full // 2, max(16 // size, full // 4)}):
            tensor = Tensor(data_type, (full + 32 // size, 19), (row, 9), swizzle)
            kind = "full" if row == full else f"narrow{row * size}"
            found.append(_load(f"2d {data_type} {swizzle} {kind}", tensor, (32 // size, 3)))
    for swizzle, destination in itertools.product(SPAN, (128, 384, 768, 896)):
        for row in (SPAN[swizzle] or 64, 16):
            tensor = Tensor("uint16", (64, 16), (row // 2, 7), swizzle)
            name = f"2d at+{destination} {swizzle} row{row}"
            found.append(_load(name, tensor, (0, 2), destination))
    shapes = {
        2: ((24, 10), (16, 4)),
        3: ((24, 6, 5), (16, 3, 2)),
        4: ((24, 4, 3, 4), (16, 2, 2, 2)),
    }
    for rank, (dims, box) in shapes.items():
        for i in range(rank):
            for word, value in (("low", -(box[i] // 2)), ("high", dims[i] - box[i] // 2),
                                ("before", -box[i] - 8), ("beyond", dims[i] + 8)):  # fmt: skip
                at = [8] + [1] * (rank - 1)
                at[i] = value
                swizzle = ("32B", "none", "32B", "none")[i]
                tensor = Tensor("uint16", dims, box, swizzle)
                found.append(_load(f"{rank}d dim{i} {word} {swizzle}", tensor, at))
        tensor = Tensor("uint16", dims, box, "32B")
        found.append(_load(f"{rank}d all low", tensor, [-8] + [-1] * (rank - 1)))
        found.append(_load(f"{rank}d all high", tensor, [dims[0] - 8, *(d - 1 for d in dims[1:])]))
    for data_type, fill in itertools.product(("float16", "bfloat16", "float32", "float64"),
                                             ("nan", "zero")):  # fmt: skip
        size = SIZES[data_type]
        tensor = Tensor(data_type, (40 // size * 2, 6), (64 // size, 4), "64B", fill)
        found.append(_load(f"2d fill {data_type} {fill}", tensor, (-16 // size, 4)))
    for steps in ((1, 2), (1, 3), (1, 8), (2, 1), (2, 2)):
        tensor = Tensor("uint16", (40, 24), (32, 8), "64B", steps=steps)
        for word, at in (("inside", (8, 3)), ("low", (-8, -3)), ("high", (24, 20))):
            found.append(_load(f"2d steps{steps[0]}{steps[1]} {word}", tensor, at))
    tensor = Tensor("uint32", (12, 7, 6), (8, 4, 5), "32B", steps=(1, 2, 3))
    found.append(_load("3d steps123", tensor, (4, -1, -1)))
    return found + _odd_coordinates()


def _odd_coordinates() -> list[Case]:
    """Boxes that do not start at a multiple of 16 bytes in a row: the GPU refuses them."""
    found = []
    for data_type, swizzle in (("uint16", "none"), ("uint16", "128B"), ("uint32", "32B")):
        size = SIZES[data_type]
        row = (SPAN[swizzle] or 64) // size
        for at in (1, -1, 8 // size):
            tensor = Tensor(data_type, (2 * row, 12), (row, 4), swizzle)
            found.append(_load(f"2d {data_type} {swizzle} column {at}", tensor, (at, 2)))
    return found


_REDUCTIONS = {
    "uint32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"),
    "int32": ("add", "min", "max"), "float32": ("add",), "uint64": ("add", "min", "max"),
    "float16": ("add", "min", "max"), "bfloat16": ("add", "min", "max"),
}  # fmt: skip
_ELEMENTS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}


def _values(tensor: Tensor, count: int, rng: np.random.Generator) -> Bytes:
    """Numbers of the type of the tensor whose sums are exact, and non-zero."""
    if tensor.data_type in _ELEMENTS:
        numbers = rng.integers(1, 25, count) * rng.choice((-1.0, 1.0), count) / 8
        if tensor.data_type == "bfloat16":
            high = numbers.astype(np.float32).view(np.uint32) >> 16
            return high.astype(np.uint16).view(np.uint8)
        dtype = {2: np.float16, 4: np.float32}[tensor.size]
        return numbers.astype(dtype).view(np.uint8)
    return rng.integers(1, 250, count).astype(f"<u{tensor.size}").view(np.uint8)


def _store(
    name: str, tensor: Tensor, at: Sequence[int], operation: str = "", source: int = 0
) -> Case:
    rank = len(tensor.dims)
    region = tensor.region + source
    shape = f"{rank}d.global.shared::cta"
    rng = np.random.default_rng(len(name) + region)
    if operation:
        instruction = f"cp.reduce.async.bulk.tensor.{shape}.{operation}.tile.bulk_group"
        data = _values(tensor, region // tensor.size, rng)
        before = _values(tensor, tensor.nbytes // tensor.size, rng)
    else:
        instruction = f"cp.async.bulk.tensor.{shape}.tile.bulk_group"
        data = numbered(Tensor(tensor.data_type, (region // tensor.size,), (1,)))
        before = np.full(tensor.nbytes, FILL & 255, np.uint8)
    rule = Rule("nan", _ELEMENTS[tensor.data_type]) if tensor.data_type in _ELEMENTS else BITS
    return Case(
        f"tma-{operation or 'store'} {name}", store_text(rank, instruction), data, before,
        segments_of([("tensor", tensor.nbytes // tensor.size, tensor.size, rule)]),
        (np.uint32(region), np.uint32(source), *map(np.int32, at)),
        tensor.map("out"), shared_bytes=region + 1024,
    )  # fmt: skip


def stores() -> list[Case]:
    """Stores and reductions, narrow rows and bounds among them."""
    found = []
    for swizzle, span in SPAN.items():
        full = span or 64
        for row in sorted({full, full // 2, 16}):
            tensor = Tensor("uint16", (80, 12), (row // 2, 6), swizzle)
            found.append(_store(f"2d {swizzle} row{row}", tensor, (8, 3)))
            found.append(_store(f"2d {swizzle} row{row} at+384", tensor, (8, 3), source=384))
    for word, at in (("low", (-8, -2)), ("high", (64, 9)), ("beyond", (88, 2))):
        found.append(_store(f"2d {word}", Tensor("uint16", (80, 12), (32, 6), "64B"), at))
    tensor = Tensor("uint32", (12, 7, 5), (8, 4, 3), "32B")
    found += [_store(f"3d {at}", tensor, at) for at in ((4, 1, 1), (-4, 5, -1), (8, -3, 4))]
    found.append(
        _store("2d steps", Tensor("uint16", (80, 24), (32, 8), "64B", steps=(1, 3)), (8, 5))
    )
    for data_type, operations in _REDUCTIONS.items():
        for operation in operations:
            tensor = Tensor(
                data_type, (128 // SIZES[data_type], 8), (64 // SIZES[data_type], 5), "64B"
            )
            at = 96 // SIZES[data_type]
            found.append(_store(f"2d {data_type}", tensor, (at, 4), operation))
    narrow = Tensor("float32", (16, 8), (8, 5), "128B")
    found.append(_store("2d float32 narrow", narrow, (4, 2), "add"))
    odd = Tensor("uint16", (80, 12), (32, 6), "64B")
    found.append(_store("2d column 3", odd, (3, 2)))
    found.append(_store("2d column 3", odd, (3, 2), "add"))
    return found


def cases() -> list[Case]:
    """All of this file."""
    return loads() + stores()
