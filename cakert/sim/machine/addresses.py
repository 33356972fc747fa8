"""Addresses of shared memory: which CTA, which byte.

A shared::cta address is an offset in the window of the executing CTA. A shared::cluster address
carries the rank of a CTA of the cluster, plus one, in bits 24 to 31; zero there means the executing
CTA, because the shared::cta window lies within the shared::cluster window (PTX ISA "State spaces",
shared). A generic address of shared memory is `SHARED_BASE` plus either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cakert.sim.core.shared_memory import RESERVED_BYTES

if TYPE_CHECKING:
    from cakert.sim.machine.cta import Cta
    from cakert.sim.machine.launch import Place

__all__ = [
    "LOCAL_BASE",
    "OFFSET_MASK",
    "PARAM_BASE",
    "RANK_SHIFT",
    "SHARED_BASE",
    "WINDOW_SHIFT",
    "address_space",
    "peer",
    "resolve_shared",
]

# Where the windows of the generic address space begin; all else is global memory.
WINDOW_SHIFT = 48
SHARED_BASE = 1 << WINDOW_SHIFT
LOCAL_BASE = 2 << WINDOW_SHIFT
PARAM_BASE = 3 << WINDOW_SHIFT
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1


def address_space(modifiers: tuple[str, ...]) -> str:
    """The state space that an instruction names: "shared::cta", "shared::cluster" or "generic".

    ``.shared`` alone means ``.shared::cta`` (PTX ISA "State spaces": the default).
    """
    if "shared::cluster" in modifiers:
        return "shared::cluster"
    if "shared" in modifiers or "shared::cta" in modifiers:
        return "shared::cta"
    return "generic"


def peer(cta: Cta, rank: int, where: Place, *, accessed: bool = True) -> Cta:
    """The CTA of a rank in the cluster of ``cta``.

    Parameters
    ----------
    accessed
        Whether its shared memory is used now: an address alone may outlive it.

    Raises
    ------
    Fault
        "cluster-rank": there is no such CTA; "cluster-exit": it has exited, and its shared memory
        with it (PTX ISA: the destination CTA must be executing).
    """
    launch = cta.launch
    if not 0 <= rank < len(cta.cluster):
        launch.fault(
            "cluster-rank",
            f"names CTA {rank} of a cluster of {len(cta.cluster)}.",
            where=where,
            advice="Ranks run from 0 to %cluster_nctarank - 1; check the cluster of the launch.",
        )
        return cta
    target = cta.cluster[rank]
    if accessed and target.exited:
        launch.fault(
            "cluster-exit",
            f"reaches into shared memory of CTA {target.ctaid} (rank {rank}), which has exited.",
            where=where,
            advice="Let no CTA of a cluster exit before the others are done with its shared "
            "memory: end with barrier.cluster.arrive and .wait.",
        )
    return target


def resolve_shared(
    cta: Cta, address: int, space: str, where: Place, *, forgive_offset: bool = False
) -> tuple[Cta, int]:
    """The CTA and the offset in its window that an address names.

    Parameters
    ----------
    cta
        The CTA that executes.
    address
        As the instruction has it.
    space
        From `address_space`.
    forgive_offset
        Take a generic address that is an offset in shared memory for one: hardware does so in
        tcgen05.commit.

    Raises
    ------
    Fault
        "not-shared": the address lies in no window that the instruction may use;
        "shared-offset-as-generic" (noted): the instruction names no state space; and those of
        `peer`.
    """
    if space == "generic":
        if forgive_offset and RESERVED_BYTES <= address <= OFFSET_MASK:
            cta.launch.fault(
                "shared-offset-as-generic",
                f"takes the generic address {address:#x}, which is an offset in shared memory.",
                where=where,
                advice="Convert it with cvta.shared, or name the state space.",
            )
            return cta, address
        if address >> WINDOW_SHIFT != 1:
            cta.launch.fault(
                "not-shared",
                f"address {address:#x} is not in shared memory.",
                where=where,
                advice="Pass the address of a __shared__ variable.",
            )
            return cta, address & OFFSET_MASK
        address -= SHARED_BASE
    rank = address >> RANK_SHIFT
    offset = address & OFFSET_MASK
    if rank == 0:
        return cta, offset
    if space == "shared::cta" and rank - 1 != cta.rank:
        cta.launch.fault(
            "not-shared",
            f"address {address:#x} names CTA {rank - 1} of the cluster, but the instruction takes "
            "addresses of the executing CTA (.shared::cta).",
            where=where,
            advice="Use the .shared::cluster form of the instruction, or the address before mapa.",
        )
        return cta, offset
    return peer(cta, rank - 1, where), offset
