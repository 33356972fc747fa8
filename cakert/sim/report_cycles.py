"""Least cycles of each unit of an SM for all the work of a launch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cakert.sim.report_bytes import shared_passes, traffic
from cakert.sim.report_pipes import mma_sync_work, packed, pipe_of, takes_slot
from cakert.sim.report_rates import Rates

__all__ = ["ONLY_ON", "estimate"]

ONLY_ON = {
    "tensor-cycles-sm90": ("wgmma", ("sm_90",)),
    "tensor-cycles": ("tcgen05", ("sm_100", "sm_103")),
}
"""Counters of tensor cores that only some families have: their name, and the families."""

_WARP = 32


def estimate(
    operations: list[tuple[str, int]],
    counts: NDArray[np.uint64],
    lanes: NDArray[np.uint64],
    bank_conflicts: int,
    counters: Mapping[str, int],
    rates: Rates,
) -> dict[str, float]:
    """Cycles by unit if one SM did everything.

    Parameters
    ----------
    operations
        (mnemonic, line) each.
    counts, lanes : (operations,) uint64
        Executions, and lanes all told.
    bank_conflicts
        Passes through shared memory beyond the ideal.
    counters
        Of the launch.
    rates
        Of the target.

    Returns
    -------
    dict
        As of `Report.cycles`.
    """
    issued = 0
    xu = fma = work = 0.0
    for (mnemonic, _), count, executed in zip(
        operations, counts.tolist(), lanes.tolist(), strict=True
    ):
        # A guard that is false in all lanes costs the slot and not the pipe.
        slots = _WARP * min(count, executed)
        pipe = pipe_of(mnemonic)
        issued += count if takes_slot(mnemonic) else 0
        if pipe == "xu":
            rate = rates.exp2 if mnemonic.startswith("ex2.") else rates.xu
            xu += slots * packed(mnemonic) / rate
        elif pipe == "fma":
            fma += slots * packed(mnemonic) / rates.fma
        elif pipe == "tensor" and executed:
            work += count * mma_sync_work(mnemonic)
    moved = traffic(operations, lanes, counters)
    operands = sum(moved["shared"].get(what, 0) for what in ("operands", "tcgen05.cp"))
    shared = shared_passes(operations, counts, lanes) + bank_conflicts + operands / rates.shared
    units = {
        "issue": issued / rates.issue,
        "fma": fma,
        "xu": xu,
        "shared": shared,
        "shared+fills": shared + sum(moved["fills"].values()) / rates.shared,
        "tensor": sum(counters.get(counter, 0) for counter in ONLY_ON) + work / rates.mma_sync,
    }
    if rates.l2 is not None:
        units["l2"] = sum(moved["l2"].values()) / rates.l2
    return units
