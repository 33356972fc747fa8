"""A thread block of a simulated launch, and the barrier state of its cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cakert.sim.core.shared_memory import ProxyClock, SharedMemory
from cakert.sim.core.warp import Warp
from cakert.sim.machine.barriers import NamedBarriers
from cakert.sim.machine.clusters import ClusterBarrier
from cakert.sim.machine.mbarrier import MbarrierTable
from cakert.sim.machine.registers import RegisterPool

if TYPE_CHECKING:
    from cakert.sim.core.global_memory import GlobalMemory
    from cakert.sim.machine.launch import Launch

__all__ = ["Cta", "make_cluster"]

Triple = tuple[int, int, int]


class Cta:
    """A thread block.

    Attributes
    ----------
    launch : Launch
    ctaid : (int, int, int)
        Position in the grid.
    rank : int
        In its cluster (``%cluster_ctarank``).
    cluster : list of Cta
        All CTAs of the cluster by rank, itself among them.
    smid : int
        The SM it runs on (``%smid``).
    shared : SharedMemory
    mbarriers : MbarrierTable
    barriers : NamedBarriers
    cluster_barrier : ClusterBarrier
        The same object for all CTAs of a cluster.
    registers : RegisterPool
    tmem : object or None
        Tensor memory, once somebody made it.
    warps : list of Warp
    state : dict
        What instruction families keep for each CTA: ``state["bulk-groups"]``.
    at_exit : list of callable
        Called when its last thread has exited: checks of the families.
    sync_epoch : int
        How many barriers of the CTA or the cluster have completed.
    exited : bool
    """

    def __init__(
        self, launch: Launch, ctaid: Triple, rank: int, smid: int, clock: ProxyClock
    ) -> None:
        self.launch = launch
        self.ctaid = ctaid
        self.rank = rank
        self.smid = smid
        self.cluster: list[Cta] = [self]
        self.num_threads = launch.num_threads
        self.num_warps = -(-launch.num_threads // 32)
        self.state: dict[str, Any] = {}
        self.at_exit: list[Callable[[], None]] = []
        self.sync_epoch = 0
        self.exited = False
        self.tmem: Any = None
        nbytes = launch.static_shared + launch.shared_bytes
        self.shared = SharedMemory(nbytes, launch.fault, rank=rank, clock=clock)
        self.mbarriers = MbarrierTable(self)
        self.barriers = NamedBarriers(self)
        self.cluster_barrier: ClusterBarrier
        self.registers = RegisterPool(self, self.num_warps, launch.registers_per_thread)
        self.warps: list[Warp] = []

    @property
    def global_memory(self) -> GlobalMemory:
        """The memory of the GPU."""
        return self.launch.memory

    @property
    def live_warps(self) -> int:
        """How many warps have lanes that have not exited."""
        return sum(1 for warp in self.warps if warp.live)

    def start(self) -> None:
        """Make the warps; the cluster must be complete."""
        self.warps = [
            Warp(self, index, self.launch.code, self.num_threads) for index in range(self.num_warps)
        ]

    def warp_exited(self) -> None:
        """Let barriers that counted on an exited warp see that; end the CTA with its last warp."""
        self.launch.progress += 1
        self.barriers.recheck()
        self.cluster_barrier.recheck()
        if self.live_warps == 0:
            self.exited = True
            for check in self.at_exit:
                check()
            self.launch.engine.cta_exited(self)

    def release(self) -> None:
        """Drop what takes memory: CTAs and their parts form cycles, and grids can be large."""
        self.warps = []
        self.tmem = None
        self.state.clear()
        self.at_exit.clear()
        del self.shared


def make_cluster(launch: Launch, index: int, smids: list[int]) -> list[Cta]:
    """Start the CTAs of a cluster.

    Parameters
    ----------
    index
        Of the cluster in the grid, x fastest.
    smids
        SM of each CTA.
    """
    clusters = [extent // size for extent, size in zip(launch.grid, launch.cluster, strict=True)]
    corner = unravel(index, (clusters[0], clusters[1], clusters[2]))
    cluster = []
    clock = ProxyClock()
    for rank, smid in enumerate(smids):
        inner = unravel(rank, launch.cluster)
        x, y, z = (c * s + i for c, s, i in zip(corner, launch.cluster, inner, strict=True))
        cluster.append(Cta(launch, (x, y, z), rank, smid, clock))
    barrier = ClusterBarrier(cluster)
    for cta in cluster:
        cta.cluster = cluster
        cta.cluster_barrier = barrier
    for cta in cluster:
        cta.start()
    return cluster


def unravel(index: int, shape: Triple) -> Triple:
    """Coordinates (x, y, z) of a linear number, x fastest."""
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])
