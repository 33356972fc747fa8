"""Values of the special registers that keep them during a launch (PTX ISA "Special Registers")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["VARYING", "is_special", "special_value"]

Values: TypeAlias = npt.NDArray[np.uint32]

# These change while a kernel runs: `mov` reads them when it is executed.
VARYING = frozenset(
    ["%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"]
)

_AXES = {"x": 0, "y": 1, "z": 2, "w": 3}


def _thread_index(cta: Any, threads: npt.NDArray[np.int64], axis: int) -> Any:
    x, y, _ = cta.launch.block
    return (threads % x, threads // x % y, threads // (x * y), 0 * threads)[axis]


def _cluster_index(cta: Any, axis: int) -> int:
    """Coordinate of the CTA within its cluster."""
    return int(cta.ctaid[axis] % cta.launch.cluster[axis])


_VECTORS: dict[str, Callable[[Any, npt.NDArray[np.int64], int], Any]] = {
    "%tid": _thread_index,
    "%ntid": lambda cta, threads, axis: cta.launch.block[axis],
    "%ctaid": lambda cta, threads, axis: cta.ctaid[axis],
    "%nctaid": lambda cta, threads, axis: cta.launch.grid[axis],
    "%cluster_ctaid": lambda cta, threads, axis: _cluster_index(cta, axis),
    "%cluster_nctaid": lambda cta, threads, axis: cta.launch.cluster[axis],
    "%clusterid": lambda cta, threads, axis: cta.ctaid[axis] // cta.launch.cluster[axis],
    "%nclusterid": lambda cta, threads, axis: cta.launch.grid[axis] // cta.launch.cluster[axis],
}

_SCALARS: dict[str, Callable[[Any, npt.NDArray[np.int64]], Any]] = {
    "%laneid": lambda cta, threads: threads % 32,
    "%warpid": lambda cta, threads: threads // 32,
    "%nwarpid": lambda cta, threads: 64,
    "%smid": lambda cta, threads: cta.smid,
    "%nsmid": lambda cta, threads: cta.launch.sms,
    "%gridid": lambda cta, threads: 1,
    "%cluster_ctarank": lambda cta, threads: cta.rank,
    "%cluster_nctarank": lambda cta, threads: len(cta.cluster),
    "%is_explicit_cluster": lambda cta, threads: int(len(cta.cluster) > 1),
    "%dynamic_smem_size": lambda cta, threads: cta.launch.shared_bytes,
    "%total_smem_size": lambda cta, threads: cta.shared.size - 1024,
    "%aggr_smem_size": lambda cta, threads: cta.shared.size - 1024,
    "%reserved_smem_offset_begin": lambda cta, threads: 0,
    "%reserved_smem_offset_end": lambda cta, threads: 1024,
    "%reserved_smem_offset_cap": lambda cta, threads: 1024,
    "%lanemask_eq": lambda cta, threads: 1 << (threads % 32),
    "%lanemask_le": lambda cta, threads: (2 << (threads % 32)) - 1,
    "%lanemask_lt": lambda cta, threads: (1 << (threads % 32)) - 1,
    "%lanemask_ge": lambda cta, threads: 0xFFFFFFFF ^ ((1 << (threads % 32)) - 1),
    "%lanemask_gt": lambda cta, threads: 0xFFFFFFFF ^ ((2 << (threads % 32)) - 1),
}


def is_special(name: str) -> bool:
    """Whether `special_value` knows the register."""
    base, _, axis = name.partition(".")
    return (not axis and name in _SCALARS) or (axis in _AXES and base in _VECTORS)


def special_value(cta: Any, name: str, threads: npt.NDArray[np.int64]) -> Values:
    """The register's value in each of the threads.

    Parameters
    ----------
    cta
        With ``ctaid``, ``rank``, ``cluster``, ``smid``, ``shared`` and ``launch`` (``grid``,
        ``block``, ``cluster``: three numbers each; ``sms``, ``shared_bytes``).
    name
        As in the text: "%tid.x".
    threads
        (n,) linear numbers of the threads in the CTA.

    Returns
    -------
    (n,) uint32
    """
    base, _, axis = name.partition(".")
    if axis:
        value = _VECTORS[base](cta, threads, _AXES[axis])
    else:
        value = _SCALARS[name](cta, threads)
    return np.broadcast_to(np.asarray(value, np.int64), threads.shape).astype(np.uint32)
