"""Launch geometry: ints and tuples in, three checked dimensions out. No driver is needed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cakert.runtime.integers import checked_int

__all__ = ["DeviceLimits", "check_block", "check_cluster", "check_grid", "check_shared", "dim3"]

Dim3 = tuple[int, int, int]
MAX_EXTENT = 2**31 - 1
"""Of any axis; what a device allows is asked of it."""
MAX_CLUSTER_BLOCKS = 16
"""Blocks of a cluster, non-portable sizes included (CUDA Programming Guide, clusters)."""


class DeviceLimits(NamedTuple):
    """What a device allows in a launch, from its attributes.

    Attributes
    ----------
    grid, block : tuple[int, int, int]
        Largest extent along x, y, z.
    block_threads : int
        Threads of a block.
    shared_bytes : int
        Shared memory of a block, static and dynamic, after opting in.
    capability : tuple[int, int]
    """

    grid: Dim3
    block: Dim3
    block_threads: int
    shared_bytes: int
    capability: tuple[int, int]


def dim3(name: str, value: int | Sequence[int]) -> Dim3:
    """Return `value` as (x, y, z), missing extents 1.

    Raises
    ------
    TypeError
        Not an int or a sequence of ints.
    ValueError
        Not between one and three extents, or one below 1.
    """
    several = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    extents: Sequence[Any] = value if several else (value,)  # type: ignore[assignment]
    if not 1 <= len(extents) <= 3:
        raise ValueError(f"{name} must have between 1 and 3 extents; got {value!r}")
    x, y, z = (*(checked_int(name, extent, 1, MAX_EXTENT) for extent in extents), 1, 1)[:3]
    return x, y, z


def _check_extents(name: str, dims: Dim3, limits: Dim3) -> None:
    for axis, extent, limit in zip("xyz", dims, limits, strict=True):
        if extent > limit:
            raise ValueError(f"{name}.{axis} must be in [1, {limit}] on this device; got {extent}")


def check_grid(dims: Dim3, limits: DeviceLimits) -> None:
    """Raise ValueError where the grid exceeds the device's limits."""
    _check_extents("grid", dims, limits.grid)


def check_block(dims: Dim3, limits: DeviceLimits, kernel_threads: int) -> None:
    """Raise ValueError where the block exceeds what the device or the kernel's registers allow.

    Parameters
    ----------
    dims : tuple[int, int, int]
    limits : DeviceLimits
    kernel_threads : int
        Threads of a block that the kernel can run with on this device.
    """
    _check_extents("block", dims, limits.block)
    threads = dims[0] * dims[1] * dims[2]
    allowed = min(limits.block_threads, kernel_threads)
    if threads > allowed:
        raise ValueError(
            f"block must have at most {allowed} threads for this kernel on this device; "
            f"got {threads} {dims}"
        )


def check_shared(shared_bytes: int, static_bytes: int, limits: DeviceLimits) -> None:
    """Raise ValueError where dynamic and static shared memory exceed what a block may have."""
    allowed = limits.shared_bytes - static_bytes
    if not 0 <= shared_bytes <= allowed:
        raise ValueError(
            f"shared_bytes must be in [0, {allowed}] on this device ({limits.shared_bytes} less "
            f"{static_bytes} static); got {shared_bytes}"
        )


def check_cluster(dims: Dim3, grid: Dim3, limits: DeviceLimits) -> None:
    """Raise ValueError where the device has no clusters, or the grid is no multiple of one."""
    if limits.capability < (9, 0):
        raise ValueError(
            f"cluster must be None on a device of compute capability {limits.capability}: clusters "
            "need (9, 0)"
        )
    blocks = dims[0] * dims[1] * dims[2]
    if blocks > MAX_CLUSTER_BLOCKS:
        raise ValueError(
            f"cluster must have at most {MAX_CLUSTER_BLOCKS} blocks; got {blocks} {dims}"
        )
    if any(g % c for g, c in zip(grid, dims, strict=True)):
        raise ValueError(f"grid must be a multiple of the cluster {dims} on each axis; got {grid}")
