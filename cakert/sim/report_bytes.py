"""Bytes of a launch by the memory they go through, and passes through shared memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cakert.sim.report_pipes import access_of

__all__ = ["shared_passes", "traffic"]

Totals = NDArray[np.uint64]

_PASS = 128


def traffic(
    operations: list[tuple[str, int]], lanes: Totals, counters: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Bytes by memory, then by what moves them.

    Parameters
    ----------
    operations
        (mnemonic, line) each.
    lanes : (operations,) uint64
        Lanes in which each was executed.
    counters
        Of the launch.

    Returns
    -------
    dict
        * "l2": between SMs and L2. Loads, stores and atomics count what their lanes ask for, so a
          load that hits L1 or shares a sector with another lane counts as well; generic ones are
          here under names of their own, wherever they went. TMA and bulk copies count what they
          move; a multicast counts once.
        * "shared": loads, stores, atomics and matrices by warps, and the operands that tensor cores
          fetch ("operands").
        * "fills": what asynchronous copies move into and out of shared memory. TMA's and bulk
          copies' bytes without the out-of-bounds elements that are filled in.
        * "local": of local memory.
    """
    found: dict[str, dict[str, int]] = {"l2": {}, "shared": {}, "fills": {}, "local": {}}

    def add(memory: str, what: str, nbytes: int) -> None:
        if nbytes:
            found[memory][what] = found[memory].get(what, 0) + nbytes

    for (mnemonic, _), executed in zip(operations, lanes.tolist(), strict=True):
        access = access_of(mnemonic) if executed else None
        if access is None:
            if executed and mnemonic.startswith("tcgen05.cp."):
                add("shared", "tcgen05.cp", executed * _copied(mnemonic))
        elif access.space == "generic":
            add("l2", f"generic {access.kind}", executed * access.nbytes)
        elif access.space in ("global", "shared", "local"):
            memory = "l2" if access.space == "global" else access.space
            add(memory, access.kind, executed * access.nbytes)

    count = counters.get
    bulk, exchanged = count("bulk-bytes", 0), count("bulk-cluster-bytes", 0)
    add("l2", "cp.async", count("cp-async-bytes", 0))
    add("l2", "TMA loads", count("tma-load-bytes", 0) - count("tma-multicast-bytes", 0))
    add("l2", "TMA stores", count("tma-store-bytes", 0))
    add("l2", "bulk copies", bulk - exchanged - count("bulk-multicast-bytes", 0))
    add("shared", "operands", count("wgmma-shared-bytes", 0) + count("mma-shared-bytes", 0))
    add("fills", "cp.async", count("cp-async-bytes", 0))
    add("fills", "TMA loads", count("tma-load-bytes", 0))
    add("fills", "TMA stores", count("tma-store-bytes", 0))
    # One SM reads what another writes.
    add("fills", "bulk copies", bulk + exchanged)
    return {memory: dict(sorted(moved.items())) for memory, moved in found.items()}


def _copied(mnemonic: str) -> int:
    """Bytes that a tcgen05.cp reads."""
    shape = re.search(r"\.(\d+)x(\d+)b\b", mnemonic)
    return int(shape[1]) * int(shape[2]) // 8 if shape is not None else 0


def shared_passes(operations: list[tuple[str, int]], counts: Totals, lanes: Totals) -> int:
    """Least passes of 128 bytes through shared memory of warps' accesses, without conflicts.

    A pass serves no more than 32 lanes and 128 bytes; lanes that are off need none.
    """
    passes = 0
    for (mnemonic, _), count, executed in zip(
        operations, counts.tolist(), lanes.tolist(), strict=True
    ):
        access = access_of(mnemonic) if executed else None
        if access is not None and access.space == "shared":
            # Executions with no lane at all are among `count` too, hence the minimum.
            needed = -(-executed * max(access.nbytes, 4) // _PASS)
            passes += max(needed, min(count, executed))
    return passes
