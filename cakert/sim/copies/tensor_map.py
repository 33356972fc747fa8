"""Tensor maps: what a tiled tensor copy knows of its tensor (PTX ISA 5.5.8; cuda.h).

Hardware's 128 bytes are opaque. The simulator's own carry the same arguments in a layout of ours,
with a magic number and a checksum, so that a kernel which hands over anything else is found out.
im2col maps are not simulated.
"""

from __future__ import annotations

import operator
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from cakert.sim.copies.swizzle import SWIZZLES
from cakert.sim.copies.tensor_map_rules import Entry, check, innermost_first, outermost_first

__all__ = [
    "DATA_TYPES",
    "INTERLEAVES",
    "L2_PROMOTIONS",
    "OOB_FILLS",
    "TENSOR_MAP_BYTES",
    "DataType",
    "DeviceArray",
    "TensorMap",
]

TENSOR_MAP_BYTES = 128

INTERLEAVES = ("none", "16B", "32B")
L2_PROMOTIONS = ("none", "64B", "128B", "256B")
OOB_FILLS = ("zero", "nan")
"""Names in the order of CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapFloatOOBfill."""


@dataclass(frozen=True, slots=True)
class DataType:
    """One member of CUtensorMapDataType.

    Attributes
    ----------
    name
        Its name in lower case, without CU_TENSOR_MAP_DATA_TYPE_.
    bits
        Of an element.
    floating
        Whether out-of-bounds elements may be NaN.
    ptx
        The type that reductions work on, or None.
    limitation
        Why copies of it are not simulated, or None.
    """

    name: str
    bits: int
    floating: bool
    ptx: str | None
    limitation: str | None = None


_PACKED = "the shared-memory layout of packed sub-byte types is not simulated"
_ROUNDED = "how the copy rounds or flushes its elements is not documented"

DATA_TYPES = (
    DataType("uint8", 8, False, None),
    DataType("uint16", 16, False, None),
    DataType("uint32", 32, False, "u32"),
    DataType("int32", 32, False, "s32"),
    DataType("uint64", 64, False, "u64"),
    DataType("int64", 64, False, "s64"),
    DataType("float16", 16, True, "f16"),
    DataType("float32", 32, True, "f32"),
    DataType("float64", 64, True, "f64"),
    DataType("bfloat16", 16, True, "bf16"),
    DataType("float32_ftz", 32, True, "f32", _ROUNDED),
    DataType("tfloat32", 32, True, "f32", _ROUNDED),
    DataType("tfloat32_ftz", 32, True, "f32", _ROUNDED),
    DataType("16u4_align8b", 4, False, None, _PACKED),
    DataType("16u4_align16b", 4, False, None, _PACKED),
    DataType("16u6_align16b", 6, False, None, _PACKED),
)
"""In the order of CUtensorMapDataType (cuda.h)."""

_BY_NAME = {data_type.name: data_type for data_type in DATA_TYPES}

# A byte pattern can be copied under any type of its size; NumPy's own names where they agree.
_BY_DTYPE = {
    np.dtype(np.uint8): "uint8",
    np.dtype(np.int8): "uint8",
    np.dtype(np.bool_): "uint8",
    np.dtype(np.uint16): "uint16",
    np.dtype(np.int16): "uint16",
    np.dtype(np.uint32): "uint32",
    np.dtype(np.int32): "int32",
    np.dtype(np.uint64): "uint64",
    np.dtype(np.int64): "int64",
    np.dtype(np.float16): "float16",
    np.dtype(np.float32): "float32",
    np.dtype(np.float64): "float64",
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
    np.dtype(ml_dtypes.float8_e4m3fn): "uint8",
    np.dtype(ml_dtypes.float8_e5m2): "uint8",
}

# magic, type, rank, interleave, swizzle, promotion, fill, address, dims - 1, strides, box, steps
_LAYOUT = struct.Struct("<8s6B2xQ5I4Q5H5B")
_MAGIC = b"cakeTMAP"
_CHECKSUM = struct.Struct("<I")


class DeviceArray(Protocol):
    """What `TensorMap.for_array` reads of an array; strides in bytes, outermost first."""

    @property
    def pointer(self) -> int:
        """Address of the first element."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements in each dimension."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours in each dimension."""

    @property
    def dtype(self) -> Any:
        """Anything that NumPy takes for a dtype."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The arguments of cuTensorMapEncodeTiled; every sequence is innermost dimension first.

    Attributes
    ----------
    data_type
        Name in `DATA_TYPES`.
    global_address
        Of the element with all coordinates zero.
    dims
        Elements in each of 1 to 5 dimensions.
    strides
        Bytes between neighbours in dimensions 1 and up (one entry less than ``dims``); dimension
        0 is contiguous.
    box
        Elements that one copy traverses in each dimension.
    element_strides
        Step of the traversal: a copy takes ``ceil(box / step)`` elements. Entry 0 is ignored
        without interleave.
    interleave, swizzle, l2_promotion, oob_fill
        Names in `INTERLEAVES`, `SWIZZLES`, `L2_PROMOTIONS`, `OOB_FILLS`.
    """

    data_type: str
    global_address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: str = "none"
    swizzle: str = "none"
    l2_promotion: str = "none"
    oob_fill: str = "zero"

    @classmethod
    def encode(
        cls,
        data_type: str,
        global_address: int,
        dims: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        element_strides: Sequence[int] | None = None,
        *,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        oob_fill: str = "zero",
    ) -> TensorMap:
        """Check the arguments as cuTensorMapEncodeTiled does; attributes as of the class.

        Parameters
        ----------
        element_strides
            All ones where it is not given.

        Raises
        ------
        ValueError
            A constraint is broken; the message names the argument, what it must be and its value.
        """
        steps = (1,) * len(dims) if element_strides is None else tuple(map(int, element_strides))
        tensor_map = cls(
            data_type,
            int(global_address),
            tuple(map(int, dims)),
            tuple(map(int, strides)),
            tuple(map(int, box)),
            steps,
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
        )
        return tensor_map._checked(innermost_first)

    def _checked(self, entry: Entry) -> TensorMap:
        """The map itself; ValueError where it is none, with entries called by ``entry``."""
        for what, value, names in (
            ("data_type", self.data_type, tuple(_BY_NAME)),
            ("interleave", self.interleave, INTERLEAVES),
            ("swizzle", self.swizzle, SWIZZLES),
            ("l2_promotion", self.l2_promotion, L2_PROMOTIONS),
            ("oob_fill", self.oob_fill, OOB_FILLS),
        ):
            if value not in names:
                raise ValueError(f"{what} must be one of {', '.join(names)}, got {value!r}")
        check(self, entry)
        return self

    @classmethod
    def for_array(
        cls,
        array: DeviceArray,
        *,
        box: Sequence[int],
        element_strides: Sequence[int] | None = None,
        data_type: str | None = None,
        interleave: str = "none",
        swizzle: str = "none",
        l2_promotion: str = "none",
        oob_fill: str = "zero",
    ) -> TensorMap:
        """Map of an array on the GPU, in NumPy's order of dimensions.

        Parameters
        ----------
        array
            Its last dimension is the innermost one (coordinate 0 of the instructions) and must be
            contiguous. Views (transposed, split, sliced) serve to describe other orders.
        box, element_strides
            Outermost dimension first, like ``array.shape``.
        data_type
            Name in `DATA_TYPES`; by default that of ``array.dtype``.

        Raises
        ------
        TypeError
            ``box`` or ``element_strides`` is no sequence of ints.
        ValueError
            As `encode`, with entries counted outermost first as well; also where the innermost
            stride is not the size of an element, where the dtype has no data type of its own, or
            where the one given has another size.
        """
        dtype = np.dtype(array.dtype)
        if data_type is None:
            data_type = _BY_DTYPE.get(dtype)
            if data_type is None:
                raise ValueError(f"data_type must be given for an array of dtype {dtype}")
        elif data_type in _BY_NAME:
            # A packed type has no bytes of its own for an element.
            size, rest = divmod(_BY_NAME[data_type].bits, 8)
            if size and not rest and size != dtype.itemsize:
                raise ValueError(
                    f"data_type {data_type} has {size} bytes, an element of the array has "
                    f"{dtype.itemsize}: view it with another dtype"
                )
        rank = len(array.shape)
        extents = _entries("box", box, rank)
        steps = (1,) * rank
        if element_strides is not None:
            steps = _entries("element_strides", element_strides, rank)
        if rank and array.shape[-1] > 1 and array.strides[-1] != dtype.itemsize:
            raise ValueError(
                f"array must be contiguous in its last dimension: its stride must be "
                f"{dtype.itemsize} bytes, got {array.strides[-1]}"
            )
        tensor_map = cls(
            data_type,
            array.pointer,
            tuple(array.shape[::-1]),
            tuple(array.strides[-2::-1]) if rank > 1 else (),
            extents[::-1],
            steps[::-1],
            interleave,
            swizzle,
            l2_promotion,
            oob_fill,
        )
        return tensor_map._checked(outermost_first(rank))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def type(self) -> DataType:
        """The entry of `DATA_TYPES`."""
        return _BY_NAME[self.data_type]

    @property
    def limitation(self) -> str | None:
        """Why copies through this map are not simulated, or None where they are."""
        if self.interleave != "none":
            return "interleaved layouts are not simulated"
        return self.type.limitation

    def to_bytes(self) -> bytes:
        """The 128 bytes that a kernel gets; see the module's docstring."""
        fill = 5 - self.rank
        body = _LAYOUT.pack(
            _MAGIC,
            list(_BY_NAME).index(self.data_type),
            self.rank,
            INTERLEAVES.index(self.interleave),
            SWIZZLES.index(self.swizzle),
            L2_PROMOTIONS.index(self.l2_promotion),
            OOB_FILLS.index(self.oob_fill),
            self.global_address,
            *(dim - 1 for dim in self.dims),
            *(0,) * fill,
            *self.strides,
            *(0,) * fill,
            *self.box,
            *(0,) * fill,
            *self.element_strides,
            *(0,) * fill,
        )
        body = body.ljust(TENSOR_MAP_BYTES - _CHECKSUM.size, b"\0")
        return body + _CHECKSUM.pack(zlib.crc32(body))

    @classmethod
    def from_bytes(cls, data: bytes) -> TensorMap:
        """The map that `to_bytes` wrote.

        Raises
        ------
        ValueError
            The bytes are no tensor map of the simulator, or were changed since.
        """
        if len(data) != TENSOR_MAP_BYTES:
            raise ValueError(f"a tensor map has {TENSOR_MAP_BYTES} bytes, got {len(data)}")
        if not data.startswith(_MAGIC):
            raise ValueError("the bytes are no tensor map of the simulator")
        body = data[: -_CHECKSUM.size]
        if _CHECKSUM.unpack(data[-_CHECKSUM.size :])[0] != zlib.crc32(body):
            raise ValueError("the tensor map was changed after it was encoded")
        fields = _LAYOUT.unpack_from(body)
        rank = fields[2]
        return cls(
            data_type=DATA_TYPES[fields[1]].name,
            global_address=fields[7],
            dims=tuple(last + 1 for last in fields[8 : 8 + rank]),
            strides=fields[13 : 13 + rank - 1],
            box=fields[17 : 17 + rank],
            element_strides=fields[22 : 22 + rank],
            interleave=INTERLEAVES[fields[3]],
            swizzle=SWIZZLES[fields[4]],
            l2_promotion=L2_PROMOTIONS[fields[5]],
            oob_fill=OOB_FILLS[fields[6]],
        )


def _entries(name: str, values: Sequence[int], rank: int) -> tuple[int, ...]:
    """One int a dimension, as given."""
    try:
        entries = tuple(operator.index(value) for value in values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of {rank} ints, got {values!r}") from None
    if len(entries) != rank:
        raise ValueError(f"{name} must have an entry for each of {rank} dimensions, got {entries}")
    return entries
