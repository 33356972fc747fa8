"""The constraints of cuTensorMapEncodeTiled, one by one (its comment in cuda.h of CUDA 13.0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from cakert.sim.copies.swizzle import SPAN

if TYPE_CHECKING:
    from cakert.sim.copies.tensor_map import TensorMap

__all__ = ["Entry", "check", "innermost_first", "outermost_first"]

# What a message calls entry i, counted as in cuda.h, of the argument of a name.
Entry: TypeAlias = Callable[[str, int], str]

_ALIGN_16B = ("16u4_align16b", "16u6_align16b")
_SWIZZLES_OF = {
    "16u6_align16b": ("none", "128B", "128B_ATOM_32B", "128B_ATOM_64B"),
    "16u4_align16b": ("none", "128B", "128B_ATOM_32B"),
}


def innermost_first(name: str, i: int) -> str:
    """The entry as cuda.h counts it: "box[0]" is that of the contiguous dimension."""
    return f"{name}[{i}]"


def outermost_first(rank: int) -> Entry:
    """Entries as numpy counts those of an array of ``rank`` dimensions, "dims" being its shape."""

    def entry(name: str, i: int) -> str:
        # The contiguous dimension has no entry in strides.
        i += name == "strides"
        return f"{'shape' if name == 'dims' else name}[{rank - 1 - i}]"

    return entry


def check(tensor_map: TensorMap, entry: Entry = innermost_first) -> None:
    """Raise ValueError for the first constraint that a map breaks.

    The driver reports CUDA_ERROR_INVALID_VALUE and no more; the messages here name the argument,
    its range and its value. Sequences of the map are innermost first, as in cuda.h; ``entry`` tells
    how the messages count.
    """
    _check_rank(tensor_map)
    _check_address(tensor_map)
    _check_dims(tensor_map, entry)
    _check_strides(tensor_map, entry)
    _check_box(tensor_map, entry)
    _check_element_strides(tensor_map, entry)
    _check_swizzle(tensor_map, entry)
    _check_fill(tensor_map)


def _refuse(argument: str, must: str, value: object) -> NoReturn:
    raise ValueError(f"{argument} must {must}, got {value}")


def _check_rank(tensor_map: TensorMap) -> None:
    rank = tensor_map.rank
    if not 1 <= rank <= 5:
        _refuse("dims", "have 1 to 5 entries", rank)
    if tensor_map.interleave != "none" and rank < 3:
        _refuse("dims", f"have at least 3 entries with interleave {tensor_map.interleave}", rank)
    for name, values, expected in (
        ("strides", tensor_map.strides, rank - 1),
        ("box", tensor_map.box, rank),
        ("element_strides", tensor_map.element_strides, rank),
    ):
        if len(values) != expected:
            _refuse(name, f"have {expected} entries for rank {rank}", len(values))


def _granularity(tensor_map: TensorMap) -> tuple[int, str]:
    """Bytes that the address and the strides must be multiples of, and why."""
    if tensor_map.interleave == "32B":
        return 32, " with interleave 32B"
    if tensor_map.data_type in _ALIGN_16B:
        return 32, f" for data type {tensor_map.data_type}"
    return 16, ""


def _check_address(tensor_map: TensorMap) -> None:
    multiple, why = _granularity(tensor_map)
    address = tensor_map.global_address
    if not 0 < address < 1 << 64 or address % multiple:
        must = f"be a non-zero 64-bit address, a multiple of {multiple}{why}"
        _refuse("global_address", must, f"{address:#x}")


def _check_dims(tensor_map: TensorMap, entry: Entry) -> None:
    for i, dim in enumerate(tensor_map.dims):
        if not 1 <= dim <= 1 << 32:
            _refuse(entry("dims", i), "be in 1..2^32", dim)
    multiple = 1
    if tensor_map.data_type in _ALIGN_16B:
        multiple = 128
    elif tensor_map.data_type == "16u4_align8b":
        multiple = 2
    if tensor_map.dims[0] % multiple:
        must = f"be a multiple of {multiple} for data type {tensor_map.data_type}"
        _refuse(entry("dims", 0), must, tensor_map.dims[0])


def _check_strides(tensor_map: TensorMap, entry: Entry) -> None:
    multiple, why = _granularity(tensor_map)
    for i, stride in enumerate(tensor_map.strides):
        if not 0 <= stride < 1 << 40 or stride % multiple:
            _refuse(entry("strides", i), f"be a multiple of {multiple} below 2^40{why}", stride)


def _check_box(tensor_map: TensorMap, entry: Entry) -> None:
    for i, extent in enumerate(tensor_map.box):
        if not 1 <= extent <= 256:
            _refuse(entry("box", i), "be in 1..256", extent)
    if tensor_map.data_type in _ALIGN_16B and tensor_map.box[0] != 128:
        _refuse(entry("box", 0), f"be 128 for data type {tensor_map.data_type}", tensor_map.box[0])
    bits = tensor_map.box[0] * tensor_map.type.bits
    if tensor_map.interleave == "none" and bits % 128:
        _refuse(
            entry("box", 0),
            "span a multiple of 16 bytes",
            f"{tensor_map.box[0]} ({bits / 8:g} bytes)",
        )


def _check_element_strides(tensor_map: TensorMap, entry: Entry) -> None:
    for i, step in enumerate(tensor_map.element_strides):
        if not 1 <= step <= 8:
            _refuse(entry("element_strides", i), "be in 1..8", step)


def _check_swizzle(tensor_map: TensorMap, entry: Entry) -> None:
    swizzle, interleave = tensor_map.swizzle, tensor_map.interleave
    if interleave == "32B" and swizzle != "32B":
        _refuse("swizzle", "be 32B with interleave 32B", swizzle)
    span = SPAN[swizzle]
    inner = tensor_map.box[0] * tensor_map.type.bits // 8
    if interleave == "none" and span and inner > span:
        _refuse(
            entry("box", 0), f"span at most {span} bytes with swizzle {swizzle}", f"{inner} bytes"
        )
    if tensor_map.data_type == "16u6_align16b" and interleave != "none":
        _refuse("interleave", "be none for data type 16u6_align16b", interleave)
    allowed = _SWIZZLES_OF.get(tensor_map.data_type)
    if allowed is not None and swizzle not in allowed:
        must = f"be one of {', '.join(allowed)} for data type {tensor_map.data_type}"
        _refuse("swizzle", must, swizzle)


def _check_fill(tensor_map: TensorMap) -> None:
    if tensor_map.oob_fill == "nan" and not tensor_map.type.floating:
        must = f"be zero for data type {tensor_map.data_type}, which is not floating point"
        _refuse("oob_fill", must, tensor_map.oob_fill)
