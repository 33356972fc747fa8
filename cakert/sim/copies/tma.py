"""Tensor copies: the transfers themselves (PTX ISA "cp.async.bulk.tensor").

Every copy reads its source when the engine performs it, not when it is issued: a source that is
overwritten too early shows under the schedules that complete late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cakert.sim.copies.boxes import Box, Bytes, box_of, shared_image
from cakert.sim.copies.bulk_groups import BulkGroups, submit_outgoing
from cakert.sim.copies.ranges import claimed
from cakert.sim.copies.reductions import Combine, combination, combined
from cakert.sim.copies.targets import Target
from cakert.sim.copies.tensor_map import TENSOR_MAP_BYTES
from cakert.sim.machine.addresses import PARAM_BASE, WINDOW_SHIFT
from cakert.sim.machine.asynchronous import Operation

if TYPE_CHECKING:
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Launch

__all__ = ["SHARED_ALIGNMENT", "Request", "combination_of", "load", "read_box", "store"]

SHARED_ALIGNMENT = 128
"""Of the shared address of a tensor copy (CUDA programming guide, tensor memory access)."""

_PARAM_WINDOW = PARAM_BASE >> WINDOW_SHIFT
_MAP_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What one instruction asks of a tensor.

    Attributes
    ----------
    box
        Of the tensor map.
    corners
        Coordinates of each box that is copied, innermost first: one, or the four rows of
        ``.tile::gather4`` and ``.tile::scatter4``. In shared memory they follow one another.
    """

    box: Box
    corners: tuple[tuple[int, ...], ...]

    @classmethod
    def tile(cls, box: Box, coordinates: Sequence[int]) -> Request:
        """``.tile``: one box at ``coordinates``."""
        return cls(box, (tuple(coordinates),))

    @classmethod
    def rows(cls, box: Box, coordinates: Sequence[int]) -> Request:
        """``.tile::gather4`` and ``.tile::scatter4``: {column, row0, row1, row2, row3}."""
        column, *rows = coordinates
        return cls(box, tuple((column, row) for row in rows))

    @property
    def nbytes(self) -> int:
        """Bytes in shared memory, out-of-bounds elements included (measured on an H200)."""
        return self.box.nbytes * len(self.corners)

    def gather(self, launch: Launch, where: Where) -> tuple[Bytes, int]:
        """Read global memory.

        Returns
        -------
        (nbytes,) uint8
            The dense boxes, with out-of-bounds elements filled.
        int
            Bytes that were read.
        """
        parts = [self._gather_one(corner, launch, where) for corner in self.corners]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([part for part, _ in parts]), sum(moved for _, moved in parts)

    def _gather_one(
        self, corner: tuple[int, ...], launch: Launch, where: Where
    ) -> tuple[Bytes, int]:
        clip = self.box.clip(corner)
        if clip is None:
            return self.box.fill.copy(), 0
        source = clip.view(launch.memory.view(clip.address, clip.span, where))
        if clip.shape == self.box.shape:
            return np.ascontiguousarray(source).reshape(-1), self.box.nbytes
        dense = self.box.fill.copy()
        dense.reshape(self.box.shape)[clip.region] = source
        return dense, clip.nbytes

    def scatter(self, dense: Bytes, combine: Combine | None, launch: Launch, where: Where) -> int:
        """Write global memory; out-of-bounds elements are skipped.

        Parameters
        ----------
        dense : (nbytes,) uint8
            Box after box.
        combine
            The reduction, or None to overwrite.

        Returns
        -------
        int
            Bytes that were written.
        """
        boxes = dense.reshape(len(self.corners), *self.box.shape)
        moved = 0
        for corner, values in zip(self.corners, boxes, strict=True):
            clip = self.box.clip(corner)
            if clip is None:
                continue
            memory = launch.memory.view(clip.address, clip.span, where, True)
            target = clip.view(memory)
            source = values[clip.region]
            moved += clip.nbytes
            if combine is None:
                target[...] = source
            elif clip.may_overlap:
                # Elements that share bytes must see each other's result.
                for row in np.ndindex(target.shape[:-1]):
                    self._reduce(target[row], source[row], combine)
            else:
                self._reduce(target, source, combine)
        return moved

    def _reduce(self, target: Bytes, source: Bytes, combine: Combine) -> None:
        element = self.box.tensor_map.type.ptx
        assert element is not None
        flat = combined(combine, element, target, source)
        target[...] = flat.reshape(target.shape)


def read_box(launch: Launch, address: int, where: Where) -> Box | None:
    """The box of the tensor map at a generic address, read now.

    Parameters
    ----------
    address
        In the parameters of the kernel, or in global or constant memory.

    Returns
    -------
    Box or None
        None where a fault was ignored.

    Raises
    ------
    Fault
        "tensor-map-invalid", or "tensor-map-unsupported" for a map whose copies are not simulated.
    """
    data = _map_bytes(launch, address, where)
    reason = ""
    if address % _MAP_ALIGNMENT:
        reason = f"it is not at a multiple of {_MAP_ALIGNMENT} bytes"
    elif data is None:
        window = "shared" if address >> WINDOW_SHIFT == 1 else "local"
        if address >> WINDOW_SHIFT == _PARAM_WINDOW:
            window = "parameter memory past the parameters of the kernel, not in .param"
        reason = f"it lies in {window} memory, where no tensor map may be"
    else:
        try:
            box = box_of(data)
        except ValueError as error:
            reason = str(error)
        else:
            if box.tensor_map.limitation is None:
                return box
            launch.fault(
                "tensor-map-unsupported",
                f"copies through {box.tensor_map}: {box.tensor_map.limitation}.",
                where=where,
            )
            return None
    launch.fault(
        "tensor-map-invalid",
        f"uses the tensor map at {address:#x}: {reason}.",
        where=where,
        advice="Pass the map of Gpu.tensor_map as a __grid_constant__ parameter, aligned to 64 "
        "bytes, and take its address.",
    )
    return None


def _map_bytes(launch: Launch, address: int, where: Where) -> bytes | None:
    window = address >> WINDOW_SHIFT
    if window == 0:
        return launch.memory.view(address, TENSOR_MAP_BYTES, where).tobytes()
    if window != _PARAM_WINDOW:
        return None
    offset = address & ((1 << WINDOW_SHIFT) - 1)
    data = bytes(launch.param_bytes[offset : offset + TENSOR_MAP_BYTES])
    return data if len(data) == TENSOR_MAP_BYTES else None


def load(name: str, where: Where, request: Request, target: Target, *, again: bool = False) -> None:
    """Start a copy from a tensor to the shared memory of one CTA.

    The mbarrier of the target receives the bytes of the full box.

    Parameters
    ----------
    again
        Another CTA of a multicast gets the same bytes, which are read from L2 once.
    """
    box = request.box
    launch = target.cta.launch
    image = shared_image(
        request.nbytes, target.offset % 1024, box.tensor_map.swizzle, box.shape[-1]
    )
    place = image.place(target.offset)

    def perform() -> None:
        dense, moved = request.gather(launch, where)
        target.cta.shared.async_write(place, image.arrange(dense), where)
        launch.count("tma-load-bytes", moved)
        if again:
            launch.count("tma-multicast-bytes", moved)
        target.complete(request.nbytes, where)

    writes = claimed(launch, lambda: [image.range(target.offset)])
    launch.engine.submit(
        Operation(name, where, target.cta, perform, writes=writes, signals=target.signals)
    )


def store(
    name: str,
    where: Where,
    request: Request,
    cta: Cta,
    source: int,
    groups: BulkGroups,
    combine: Combine | None = None,
) -> None:
    """Start a copy, or a reduction, from the shared memory of a CTA to a tensor.

    Parameters
    ----------
    source
        Offset in the shared memory of ``cta``.
    groups
        Of the issuing thread.
    """
    launch = cta.launch
    image = shared_image(
        request.nbytes, source % 1024, request.box.tensor_map.swizzle, request.box.shape[-1]
    )
    place = image.place(source)

    def take() -> Bytes:
        return image.arrange(cta.shared.async_read(place, where))

    def put(dense: Bytes) -> None:
        launch.count("tma-store-bytes", request.scatter(dense, combine, launch, where))

    submit_outgoing(name, where, cta, groups, image.range(source), take, put)


def combination_of(box: Box, operation: str) -> Combine | None:
    """The reduction on the element type of a map; None where PTX has none."""
    element = box.tensor_map.type.ptx
    if element is None:
        return None
    if operation in ("and", "or", "xor"):
        element = "b" + element[1:] if element[0] in "us" else element
    return combination(operation, element)
