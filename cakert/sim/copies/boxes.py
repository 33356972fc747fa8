"""The geometry of one tiled copy: which bytes of the tensor, which bytes of shared memory.

In shared memory the box is dense, dimension 0 fastest, then swizzled by absolute
address; rows narrower than the swizzle lie as far apart as its width, the gaps untouched. In the
tensor the part of a box that lies within bounds is itself a box, because each dimension is clipped
on its own: it is one strided NumPy view.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cakert.sim.copies.swizzle import SPAN, granule, swizzle_address
from cakert.sim.copies.tensor_map import TensorMap

__all__ = ["Box", "Clip", "SharedImage", "box_of", "shared_image"]

Bytes = npt.NDArray[np.uint8]

# What CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA writes for every float type, measured on
# an H200; cuda.h says only that it is a special NaN.
_NAN_FILL = 0x7FF7

_LINE = 128
_PATTERN = 1024


@dataclass(frozen=True, slots=True)
class Clip:
    """The part of a box that lies inside its tensor.

    Attributes
    ----------
    address
        Of its first byte in global memory.
    span
        Bytes from there to the end of its last element.
    shape, strides
        Outermost dimension first, the last one the bytes of a row: the view of global memory.
    region
        Index of the same bytes in the dense box.
    may_overlap
        Whether elements of the view might share bytes, as they do under broadcast strides.
    """

    address: int
    span: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    region: tuple[slice, ...]
    may_overlap: bool

    @property
    def nbytes(self) -> int:
        """Bytes that the copy moves to or from global memory."""
        return math.prod(self.shape)

    def view(self, memory: Bytes) -> Bytes:
        """The strided view of ``memory``, the ``span`` bytes from ``address``."""
        return np.ndarray(self.shape, np.uint8, memory, 0, self.strides)


@dataclass(frozen=True, slots=True)
class Box:
    """What all copies through one map have in common.

    Attributes
    ----------
    tensor_map
        The map.
    counts
        Elements that a copy takes in each dimension, innermost first: ceil(box / step).
    shape
        The dense box in bytes, outermost dimension first; the last entry is a row.
    nbytes
        Of the box in shared memory.
    fill
        The box when every element is out of bounds, (nbytes,).
    """

    tensor_map: TensorMap
    counts: tuple[int, ...]
    shape: tuple[int, ...]
    nbytes: int
    fill: Bytes

    @property
    def rank(self) -> int:
        """Dimensions of the tensor."""
        return self.tensor_map.rank

    def clip(self, coordinates: Sequence[int]) -> Clip | None:
        """The part inside the tensor of the box at ``coordinates``; None where there is none.

        Parameters
        ----------
        coordinates
            In elements, innermost dimension first; may be negative.
        """
        tensor_map = self.tensor_map
        size = tensor_map.type.bits // 8
        address = tensor_map.global_address
        span = 1
        shape, strides, region = [], [], []
        may_overlap = False
        extent = 0
        for i, at in enumerate(coordinates):
            step = 1 if i == 0 else tensor_map.element_strides[i]
            stride = size if i == 0 else tensor_map.strides[i - 1]
            # Elements at + j * step for j in [low, high) are inside [0, dim).
            low = 0 if at >= 0 else -(at // step)
            high = min(self.counts[i], -((at - tensor_map.dims[i]) // step))
            if high <= low:
                return None
            address += (at + low * step) * stride
            count = high - low
            if i == 0:
                shape.append(count * size)
                strides.append(1)
                region.append(slice(low * size, high * size))
                extent = span = count * size
            else:
                shape.append(count)
                strides.append(step * stride)
                region.append(slice(low, high))
                if count > 1:
                    may_overlap |= step * stride < extent
                    span += (count - 1) * step * stride
                    extent = span
        return Clip(
            address,
            span,
            tuple(reversed(shape)),
            tuple(reversed(strides)),
            tuple(reversed(region)),
            may_overlap,
        )


@lru_cache(maxsize=256)
def box_of(data: bytes) -> Box:
    """The box of an encoded map; ValueError where the bytes are none."""
    tensor_map = TensorMap.from_bytes(data)
    steps = (1, *tensor_map.element_strides[1:])
    counts = tuple(-(-n // step) for n, step in zip(tensor_map.box, steps, strict=True))
    row = counts[0] * tensor_map.type.bits // 8
    shape = (*reversed(counts[1:]), row)
    nbytes = math.prod(shape)
    return Box(tensor_map, counts, shape, nbytes, _fill(tensor_map, nbytes))


def _fill(tensor_map: TensorMap, nbytes: int) -> Bytes:
    if tensor_map.oob_fill == "zero":
        return np.zeros(nbytes, np.uint8)
    return np.full(nbytes // 2, _NAN_FILL, "<u2").view(np.uint8)


@dataclass(frozen=True, slots=True)
class SharedImage:
    """How ``nbytes`` of a dense box lie in shared memory from some address on.

    Attributes
    ----------
    nbytes
        Of the box.
    permutation
        For a box that covers whole lines: unit i of shared memory holds unit ``permutation[i]``
        of the box (units of 8 bytes). None where there is nothing to exchange.
    offsets
        For any other box: byte i of the box lies at the line of the destination plus
        ``offsets[i]``.
    """

    nbytes: int
    permutation: npt.NDArray[np.int64] | None
    offsets: npt.NDArray[np.int64] | None

    def place(self, start: int) -> tuple[int, int] | npt.NDArray[np.int64]:
        """Addresses for `SharedMemory.async_read` and `async_write`, of what `arrange` gives."""
        if self.offsets is None:
            return start, self.nbytes
        return self.offsets + (start - start % _PATTERN)

    def range(self, start: int) -> tuple[int, int]:
        """(start, nbytes) of the bytes that the copy touches, for the engine."""
        if self.offsets is None:
            return start, self.nbytes
        base = start - start % _PATTERN
        low, high = int(self.offsets.min()), int(self.offsets.max())
        return base + low, high - low + 1

    def arrange(self, dense: Bytes) -> Bytes:
        """Box order -> the order of `place`; its own inverse."""
        if self.permutation is None:
            return dense
        return dense.view(np.uint64)[self.permutation].view(np.uint8)


@lru_cache(maxsize=256)
def shared_image(nbytes: int, phase: int, swizzle: str, row: int) -> SharedImage:
    """Layout of a box of ``nbytes`` whose destination is ``phase`` bytes past a 1024-byte boundary.

    The patterns of all modes repeat every 1024 bytes, so nothing else of the address matters.

    Parameters
    ----------
    row
        Bytes of a row of the box.
    """
    if swizzle == "none":
        return SharedImage(nbytes, None, None)
    if row < SPAN[swizzle]:
        place = np.arange(nbytes)
        return SharedImage(
            nbytes,
            None,
            swizzle_address(phase + place // row * SPAN[swizzle] + place % row, swizzle),
        )
    if nbytes % _LINE or phase % _LINE:
        return SharedImage(nbytes, None, swizzle_address(phase + np.arange(nbytes), swizzle))
    # An XOR within the line is a permutation of the line, and its own inverse.
    unit = granule(swizzle)
    starts = phase + np.arange(0, nbytes, unit, dtype=np.int64)
    units = (swizzle_address(starts, swizzle) - phase) // 8
    if unit == 16:
        units = np.stack([units, units + 1], axis=1).reshape(-1)
    return SharedImage(nbytes, units, None)
