"""The geometry of a launch, checked against the limits of the GPU and the kernel's directives."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cakert.sim.decode.decoder import SHARED_START, place_shared
from cakert.sim.ptx.model import Function, Module
from cakert.sim.targets import (
    MAX_BLOCK,
    MAX_CLUSTER_CTAS,
    MAX_GRID,
    MAX_SHARED_BYTES,
    MAX_THREADS,
)

__all__ = ["Dim3", "Geometry", "geometry"]

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Geometry:
    """What a launch is made of.

    Attributes
    ----------
    grid
        CTAs along x, y, z.
    block
        Threads of a CTA along x, y, z.
    cluster
        CTAs of a cluster along x, y, z; (1, 1, 1) without clusters.
    shared_bytes
        Dynamic shared memory of a CTA.
    """

    grid: Dim3
    block: Dim3
    cluster: Dim3
    shared_bytes: int


def geometry(
    module: Module,
    function: Function,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    cluster: int | Sequence[int] | None,
    shared_bytes: int,
) -> Geometry:
    """Check and complete the geometry of a launch.

    Parameters
    ----------
    module, function
        The kernel, and the module whose static shared memory it may use.
    grid, block, cluster
        An int or up to three, missing extents 1. Without ``cluster`` the kernel's own
        (``.reqnctapercluster``) is taken.
    shared_bytes
        Dynamic shared memory.

    Raises
    ------
    TypeError
        Extents that are no ints.
    ValueError
        Anything out of the limits; names what was allowed.
    """
    found = Geometry(
        grid=_dim3("grid", grid, MAX_GRID),
        block=_dim3("block", block, MAX_BLOCK),
        cluster=_cluster(function, cluster),
        shared_bytes=_shared(module, function, shared_bytes),
    )
    _check_block(function, found.block)
    if any(extent % size for extent, size in zip(found.grid, found.cluster, strict=True)):
        raise ValueError(
            f"grid must be a multiple of the cluster {found.cluster} on each axis, got {found.grid}"
        )
    return found


def _dim3(name: str, value: Any, limits: Dim3) -> Dim3:
    extents: Sequence[Any] = (
        value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    )
    if not 1 <= len(extents) <= 3:
        raise ValueError(f"{name} must have between 1 and 3 extents, got {value!r}")
    try:
        x, y, z = (*(operator.index(extent) for extent in extents), 1, 1)[:3]
    except TypeError:
        raise TypeError(f"{name} must be an int or up to three of them, got {value!r}") from None
    for axis, extent, limit in zip("xyz", (x, y, z), limits, strict=True):
        if not 1 <= extent <= limit:
            raise ValueError(f"{name}.{axis} must be in [1, {limit}], got {extent}")
    return x, y, z


def _directive(function: Function, name: str) -> Dim3 | None:
    values = function.directives.get(name)
    if values is None:
        return None
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def _check_block(function: Function, block: Dim3) -> None:
    threads = math.prod(block)
    if threads > MAX_THREADS:
        raise ValueError(f"block must have at most {MAX_THREADS} threads, got {threads} {block}")
    required = _directive(function, "reqntid")
    if required is not None and block != required:
        raise ValueError(f"block must be {required}, .reqntid of {function.name}, got {block}")
    # The product alone is promised, not each extent (PTX ISA 11.4.2).
    most = _directive(function, "maxntid")
    if most is not None and threads > math.prod(most):
        raise ValueError(
            f"block must have at most {math.prod(most)} threads, .maxntid of {function.name}, "
            f"got {threads} {block}"
        )


def _cluster(function: Function, cluster: int | Sequence[int] | None) -> Dim3:
    required = _directive(function, "reqnctapercluster")
    if cluster is None:
        if required is None and "explicitcluster" in function.directives:
            raise ValueError(f"cluster must be given: {function.name} is .explicitcluster")
        return required or (1, 1, 1)
    size = _dim3("cluster", cluster, (MAX_CLUSTER_CTAS,) * 3)
    if required is not None and size != required:
        raise ValueError(
            f"cluster must be {required}, .reqnctapercluster of {function.name}, got {size}"
        )
    if math.prod(size) > MAX_CLUSTER_CTAS:
        raise ValueError(
            f"cluster must have at most {MAX_CLUSTER_CTAS} CTAs, got {math.prod(size)} {size}"
        )
    return size


def _shared(module: Module, function: Function, shared_bytes: int) -> int:
    try:
        dynamic = operator.index(shared_bytes)
    except TypeError:
        raise TypeError(f"shared_bytes must be an int, got {shared_bytes!r}") from None
    static = place_shared(module, function)[1] - SHARED_START
    if not 0 <= dynamic <= MAX_SHARED_BYTES - static:
        raise ValueError(
            f"shared_bytes must be in [0, {MAX_SHARED_BYTES - static}] ({MAX_SHARED_BYTES} less "
            f"{static} static), got {dynamic}"
        )
    return dynamic
