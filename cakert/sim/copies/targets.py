"""Where a copy goes and whom it tells: destination CTA and barrier, one or several by multicast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cakert.sim.machine.addresses import OFFSET_MASK, RANK_SHIFT, peer, resolve_shared

if TYPE_CHECKING:
    from cakert.sim.faults import Where
    from cakert.sim.machine.cta import Cta

__all__ = ["Target", "multicast_targets", "single_target"]


@dataclass(frozen=True, slots=True)
class Target:
    """One destination in shared memory with the mbarrier that counts its bytes.

    Attributes
    ----------
    cta, offset
        Whose shared memory, and the address in its window.
    barrier_cta, barrier
        Likewise of the mbarrier object.
    """

    cta: Cta
    offset: int
    barrier_cta: Cta
    barrier: int

    @property
    def signals(self) -> tuple[tuple[Cta, int]]:
        """The mbarrier, as ``Operation.signals`` wants it."""
        return ((self.barrier_cta, self.barrier),)

    def complete(self, nbytes: int, where: Where) -> None:
        """The complete-tx operation (PTX ISA 9.7.13.15.6) of ``nbytes`` copied bytes."""
        self.barrier_cta.mbarriers.at(self.barrier, where).complete_tx(nbytes, where)

    def check_barrier(self, where: Where) -> None:
        """Fault "mbarrier-uninitialised" at issue, where the cause is nearer than at completion."""
        self.barrier_cta.mbarriers.at(self.barrier, where)


def single_target(
    cta: Cta, destination: int, barrier: int, space: str, where: Where, *, pair: bool = False
) -> Target:
    """The target of a copy to one CTA.

    Parameters
    ----------
    destination, barrier
        Addresses as the instruction has them.
    space
        "shared::cta", "shared::cluster" or "generic": of the destination. A barrier may be named
        by a shared::cluster address in any case.
    pair
        ``.cta_group::2``: the barrier may live in the other CTA of the pair.

    Raises
    ------
    Fault
        "copy-barrier-elsewhere": the mbarrier is not in the CTA that receives the data.
    """
    target_cta, offset = resolve_shared(cta, destination, space, where)
    barrier_space = "generic" if space == "generic" else "shared::cluster"
    barrier_cta, barrier_offset = resolve_shared(cta, barrier, barrier_space, where)
    allowed = barrier_cta is target_cta or (pair and barrier_cta.rank == target_cta.rank ^ 1)
    if not allowed:
        cta.launch.fault(
            "copy-barrier-elsewhere",
            f"writes shared memory of CTA rank {target_cta.rank} but names an mbarrier of rank "
            f"{barrier_cta.rank}.",
            where=where,
            advice="The mbarrier must be in the CTA of the destination, or with .cta_group::2 in "
            "its peer.",
        )
    return Target(target_cta, offset, barrier_cta, barrier_offset)


def multicast_targets(
    cta: Cta, destination: int, barrier: int, ranks: int, where: Where, *, pair: bool = False
) -> list[Target]:
    """The targets of ``.multicast::cluster``: the same offsets in every CTA of ``ranks``.

    Parameters
    ----------
    ranks
        The mask operand: bit r is the CTA of rank r.
    pair
        ``.cta_group::2``: of each pair the CTA whose rank has the parity of the mbarrier operand's
        CTA is told (PTX ISA 9.7.9.27.1.2).

    Raises
    ------
    Fault
        "multicast-mask": the mask is zero or names CTAs that the cluster does not have.
    """
    size = len(cta.cluster)
    if ranks == 0 or ranks >> size:
        cta.launch.fault(
            "multicast-mask",
            f"multicasts to the mask {ranks:#06x} in a cluster of {size}.",
            where=where,
            advice="Bit r of the mask is the CTA of rank r; set at least one, and none past the "
            "cluster.",
        )
    own = (barrier >> RANK_SHIFT) & 0xFF
    parity = (own - 1 if own else cta.rank) & 1
    targets = []
    for rank in range(size):
        if not ranks >> rank & 1:
            continue
        told = (rank & ~1) | parity if pair else rank
        targets.append(
            Target(
                peer(cta, rank, where),
                destination & OFFSET_MASK,
                peer(cta, told, where),
                barrier & OFFSET_MASK,
            )
        )
    return targets
