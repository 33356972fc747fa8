"""Which kernel runs a problem: a pure function of device and shapes, never of the pattern.

Threads and shared memory of a kernel stand in the cubin manifest, next to the code they belong
to; here is only what the host decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Route", "choose", "families", "only"]

# How dtypes are spelled in kernel names.
_SHORT = {"float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Route:
    """A kernel and the shape of its grid.

    Attributes
    ----------
    name
        Name of the kernel; its cubin is found by it.
    family
        Kernel source that it comes from.
    grid
        Thread blocks on grid x, from the number of work items (rows, which are query heads x query
        blocks, or groups of rows) and that of the device's SMs.
    tensor_maps
        Whether the kernel takes tensor maps of q, k, v and out behind CakeVsaParams.
    grouped
        Whether the kernel reads the group record (`groups`) and not the row lists.
    """

    name: str
    family: str
    grid: Callable[[int, int], int]
    tensor_maps: bool
    grouped: bool


@dataclass(frozen=True)
class _Family:
    """One line of the table: where a family of kernels may be used."""

    name: str
    capabilities: frozenset[tuple[int, int]]
    blocks: frozenset[int]
    head_dims: frozenset[int]
    dtypes: frozenset[str]
    grid: Callable[[int, int], int]
    tensor_maps: bool
    grouped: bool = False


def _block_per_row(rows: int, sms: int) -> int:
    """One thread block a row: the hardware hands out rows in grid order, which is tile order."""
    del sms
    return rows


def _block_per_sm(items: int, sms: int) -> int:
    """A thread block for each SM, which takes every so many rows of the tile order, or groups."""
    return min(items, sms)


# The first line that takes a problem is its route.
_FAMILIES = (
    _Family(
        name="sm90_group",
        capabilities=frozenset({(9, 0)}),
        blocks=frozenset({64}),
        head_dims=frozenset({128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_sm,
        tensor_maps=True,
        grouped=True,
    ),
    _Family(
        name="sm90",
        capabilities=frozenset({(9, 0)}),
        blocks=frozenset({64}),
        head_dims=frozenset({64, 96, 128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_row,
        tensor_maps=True,
    ),
    _Family(
        name="sm90",
        capabilities=frozenset({(9, 0)}),
        blocks=frozenset({128}),
        head_dims=frozenset({64, 96, 128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_sm,
        tensor_maps=True,
    ),
    _Family(
        name="portable",
        capabilities=frozenset({(9, 0), (10, 0), (10, 3)}),
        blocks=frozenset({64, 128}),
        head_dims=frozenset({64, 96, 128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_row,
        tensor_maps=False,
    ),
)

_only: ContextVar[str | None] = ContextVar("only", default=None)


def families(
    capability: tuple[int, int] | None = None,
    *,
    R: int | None = None,
    head_dim: int | None = None,
) -> tuple[str, ...]:
    """All families, or those with kernels for what is given, the preferred one first."""
    names = (
        family.name
        for family in _FAMILIES
        if (capability is None or capability in family.capabilities)
        and (R is None or R in family.blocks)
        and (head_dim is None or head_dim in family.head_dims)
    )
    return tuple(dict.fromkeys(names))


@contextmanager
def only(family: str) -> Iterator[None]:
    """Let plans of this thread take no other family, where kernels are compared.

    For tests and tools: no part of the contract, and plans made before keep their kernel.

    Raises
    ------
    ValueError
        There is no such family.
    """
    if family not in families():
        raise ValueError(f"family must be one of {', '.join(families())}, got {family!r}")
    token = _only.set(family)
    try:
        yield
    finally:
        _only.reset(token)


def choose(capability: tuple[int, int], *, R: int, head_dim: int, dtype: str) -> Route:
    """The route of a problem.

    Parameters
    ----------
    capability
        Compute capability of the device, e.g. (9, 0).
    R
        Tokens of a block, 64 or 128.
    dtype
        "float16" or "bfloat16".

    Raises
    ------
    RuntimeError
        No kernel takes it; names the problem and the capabilities that have kernels.
    """
    wanted = _only.get()
    for family in _FAMILIES:
        if (
            wanted in (None, family.name)
            and capability in family.capabilities
            and R in family.blocks
            and head_dim in family.head_dims
            and dtype in family.dtypes
        ):
            name = f"cake_vsa_{family.name}_r{R}_d{head_dim}_{_SHORT[dtype]}"
            return Route(name, family.name, family.grid, family.tensor_maps, family.grouped)
    considered = [family for family in _FAMILIES if wanted in (None, family.name)]
    known = sorted({capability for family in considered for capability in family.capabilities})
    kernel = "kernel" if wanted is None else f"{wanted} kernel"
    raise RuntimeError(
        f"no {kernel} for compute capability {capability[0]}.{capability[1]}, R = {R}, "
        f"head_dim = {head_dim}, {dtype}; capabilities with kernels: "
        + ", ".join(f"{major}.{minor}" for major, minor in known)
    )
