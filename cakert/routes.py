"""Which kernel runs a problem: a pure function of device and shapes, never of the pattern.

Threads and shared memory of a kernel stand in the cubin manifest, next to the code they belong
to; here is only what the host decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Route", "choose", "considered", "families", "only"]

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
        Clusters on grid x, from the number of work items (rows, which are query heads x query
        blocks, or groups of rows) and that of the device's SMs.
    cluster
        Thread blocks of a cluster, which share a row; 1 where each is on its own.
    threads
        Of a thread block, where it has fewer than the manifest says its kernel takes; else None.
    tensor_maps
        Whether the kernel takes tensor maps of q, k, v and out behind CakeVsaParams.
    per_sm
        Thread blocks that run on an SM at a time, at least.
    grouped
        Whether the kernel reads the group record (`groups`) and not the row lists.
    """

    name: str
    family: str
    grid: Callable[[int, int], int]
    cluster: int
    threads: int | None
    tensor_maps: bool
    per_sm: int
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
    per_sm: int
    grouped: bool = False
    # `Route.cluster` and `Route.threads`, from the numbers of rows, of KV blocks and of SMs, and
    # head_dim.
    split: Callable[[int, int, int, int], tuple[int, int | None]] = lambda *sizes: (1, None)
    # Whether it is the better one of those that come after it, from the numbers of rows, of KV
    # blocks and of SMs.
    suits: Callable[[int, int, int], bool] = lambda rows, kv_blocks, sms: True
    # The same in words.
    when: str = "always"


def _one_row_an_sm(rows: int, kv_blocks: int, sms: int) -> bool:
    """Where a list is done sooner by several warpgroups: there is an SM for every row.

    Measured, as the thresholds below (docs/kernels.md, "Which kernel").
    """
    return rows <= sms and kv_blocks > 1


def _pays_in_groups(rows: int, kv_blocks: int, sms: int) -> bool:
    """Where a thread block for two rows beats one for each.

    Up to two rows an SM all rows run at once, one a thread block, and start sooner.
    """
    del kv_blocks
    return rows > 2 * sms


def _split_rows(rows: int, kv_blocks: int, sms: int, head_dim: int) -> tuple[int, int]:
    """Over how many thread blocks and warpgroups the list of each of few rows is split.

    Clusters of four and more do not find room on all SMs, whose number in a GPC varies, and those
    left over would run after the others.
    """
    most = min(kv_blocks, 8 if head_dim % 64 == 0 else 4)
    parts = 1
    while 2 * parts <= most and 2 * parts * rows <= (sms if parts == 1 else sms // 2):
        parts *= 2
    return parts, 288 if kv_blocks >= 4 * parts else 160


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
        name="sm90_split",
        capabilities=frozenset({(9, 0)}),
        blocks=frozenset({64}),
        head_dims=frozenset({64, 96, 128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_row,
        tensor_maps=True,
        per_sm=1,
        split=_split_rows,
        suits=_one_row_an_sm,
        when="with at most one row an SM, and two KV blocks or more",
    ),
    _Family(
        name="sm90_group",
        capabilities=frozenset({(9, 0)}),
        blocks=frozenset({64}),
        head_dims=frozenset({128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_sm,
        tensor_maps=True,
        per_sm=1,
        grouped=True,
        suits=_pays_in_groups,
        when="with more than two rows an SM",
    ),
    _Family(
        name="sm90",
        capabilities=frozenset({(9, 0)}),
        blocks=frozenset({64}),
        head_dims=frozenset({64, 96, 128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_row,
        tensor_maps=True,
        per_sm=2,
    ),
    _Family(
        name="sm90",
        capabilities=frozenset({(9, 0)}),
        blocks=frozenset({128}),
        head_dims=frozenset({64, 96, 128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_sm,
        tensor_maps=True,
        per_sm=1,
    ),
    _Family(
        name="portable",
        capabilities=frozenset({(9, 0), (10, 0), (10, 3)}),
        blocks=frozenset({64, 128}),
        head_dims=frozenset({64, 96, 128}),
        dtypes=frozenset({"float16", "bfloat16"}),
        grid=_block_per_row,
        tensor_maps=False,
        per_sm=2,
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


def considered(
    capability: tuple[int, int],
    *,
    R: int,
    head_dim: int,
    rows: int,
    kv_blocks: int,
    sms: int,
) -> tuple[tuple[str, str, bool], ...]:
    """Each family by preference: name, when it is taken in words, and whether it is here.

    "Here" is the problem, given as to :func:`choose`; :func:`only` is not looked at. A family has
    one entry: of a line of the table that device and shapes admit, if there is one.
    """
    result: dict[str, tuple[str, str, bool]] = {}
    for family in _FAMILIES:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(family.capabilities))
        if capability not in family.capabilities:
            answer = (family.name, f"on compute capability {known}", False)
        elif R not in family.blocks:
            answer = (family.name, f"with blocks of {_listed(family.blocks)} tokens", False)
        elif head_dim not in family.head_dims:
            answer = (family.name, f"with head_dim {_listed(family.head_dims)}", False)
        else:
            result[family.name] = (family.name, family.when, family.suits(rows, kv_blocks, sms))
            continue
        result.setdefault(family.name, answer)
    return tuple(result.values())


def _listed(numbers: frozenset[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def choose(
    capability: tuple[int, int],
    *,
    R: int,
    head_dim: int,
    dtype: str,
    rows: int,
    kv_blocks: int,
    sms: int,
) -> Route:
    """The route of a problem.

    Parameters
    ----------
    capability
        Compute capability of the device, e.g. (9, 0).
    R
        Tokens of a block, 64 or 128.
    dtype
        "float16" or "bfloat16".
    rows
        Query heads x query blocks.
    kv_blocks
        KV blocks, selected or not.
    sms
        SMs of the device.

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
            and (wanted is not None or family.suits(rows, kv_blocks, sms))
        ):
            name = f"cake_vsa_{family.name}_r{R}_d{head_dim}_{_SHORT[dtype]}"
            cluster, threads = family.split(rows, kv_blocks, sms, head_dim)
            return Route(
                name=name,
                family=family.name,
                grid=family.grid,
                cluster=cluster,
                threads=threads,
                tensor_maps=family.tensor_maps,
                per_sm=family.per_sm,
                grouped=family.grouped,
            )
    considered = [family for family in _FAMILIES if wanted in (None, family.name)]
    known = sorted({capability for family in considered for capability in family.capabilities})
    kernel = "kernel" if wanted is None else f"{wanted} kernel"
    raise RuntimeError(
        f"no {kernel} for compute capability {capability[0]}.{capability[1]}, R = {R}, "
        f"head_dim = {head_dim}, {dtype}; capabilities with kernels: "
        + ", ".join(f"{major}.{minor}" for major, minor in known)
    )
