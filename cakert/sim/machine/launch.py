"""One launch of a kernel: its CTAs, its findings, its counters, and `run_launch`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cakert.sim.faults import Fault, Where
from cakert.sim.machine.asynchronous import AsyncEngine
from cakert.sim.machine.cta import Cta, Triple, make_cluster, unravel
from cakert.sim.machine.registers import launch_registers
from cakert.sim.machine.scheduler import make_scheduler
from cakert.sim.report import Note, Report

if TYPE_CHECKING:
    from cakert.sim.core.code import Code
    from cakert.sim.core.global_memory import GlobalMemory

__all__ = ["MAX_OPERATIONS", "NOTED", "Launch", "Place", "run_launch"]

# A place in the kernel, or how to find it out: most are never needed.
Place: TypeAlias = Where | Callable[[], Where] | None

# Operations of all warps without a sign of progress before a launch counts as a livelock.
MAX_OPERATIONS = 200_000_000

# What the ISA forbids, but compilers in wide use emit and hardware is known to forgive: recorded in
# the report, not raised. Triton 3.6 does both, FlashInfer's gqa_mask kernel the first.
NOTED = frozenset(["cp-async-unfenced", "shared-offset-as-generic"])

_MAX_THREADS = 1024
_MAX_CLUSTER = 16
# Bytes of shared memory of a CTA on sm_90, sm_100 and sm_103 (CUDA programming guide).
_MAX_SHARED = 232448


class Launch:
    """The state of a launch.

    Attributes
    ----------
    code, kernel, arch
        The decoded kernel, its name, and the target ("sm_100a").
    grid, block, cluster
        Extents (x, y, z); the cluster in CTAs.
    shared_bytes, static_shared
        Dynamic and static shared memory of a CTA in bytes.
    param_bytes
        The parameter block.
    memory
        Global memory.
    sms
        How many CTAs may be resident.
    engine
        Asynchronous work.
    random
        Seeded numpy generator for whatever the ISA leaves open.
    counters
        Numbers for the report, by name.
    clock
        Operations executed by all warps so far, roughly, plus naps: ``%clock64`` and
        ``%globaltimer`` read it.
    progress
        Counts everything that another warp may have waited for: arrivals, completions, exits.
        Whoever changes what a `Wait` may depend on adds one.
    """

    def __init__(
        self,
        code: Code,
        *,
        arch: str,
        grid: Triple,
        block: Triple,
        cluster: Triple,
        shared_bytes: int,
        params: bytes,
        memory: GlobalMemory,
        sms: int,
        schedule: str,
        seed: int,
        ignore: Iterable[str] = (),
        max_operations: int = MAX_OPERATIONS,
    ) -> None:
        self.code = code
        self.kernel = code.kernel
        self.arch = arch
        self.grid = grid
        self.block = block
        self.cluster = cluster
        self.shared_bytes = shared_bytes
        self.static_shared = int(code.properties.get("static_shared", 0))
        self.param_bytes = params
        self.memory = memory
        self.sms = sms
        self.schedule = schedule
        self.seed = seed
        self.ignore = frozenset(ignore) | NOTED
        self.max_operations = max_operations
        self._check_shape()
        self.num_threads = math.prod(block)
        self.registers_per_thread = launch_registers(code.properties.get("directives", {}))
        self.clock = 0
        self.progress = 0
        self.random = np.random.default_rng(seed)
        self.engine = AsyncEngine(self, schedule, seed)
        self.counters: dict[str, int] = {}
        self.resident: list[Cta] = []
        self.finished = 0
        self.cluster_size = math.prod(cluster)
        self.num_ctas = math.prod(grid)
        self._next_cluster = 0
        self._num_clusters = self.num_ctas // self.cluster_size
        self._free_sms = list(range(max(sms, self.cluster_size)))[::-1]
        self._notes: dict[tuple[str, str, int], Note] = {}
        num_operations = len(code.operations)
        num_warps = -(-self.num_threads // 32)
        self.counts = np.zeros((num_warps, num_operations), np.uint64)
        self.lanes = np.zeros((num_warps, num_operations), np.uint64)
        self.wavefronts = np.zeros((num_warps, num_operations), np.uint64)

    def _check_shape(self) -> None:
        for name, extents in (
            ("grid", self.grid),
            ("block", self.block),
            ("cluster", self.cluster),
        ):
            if any(extent < 1 for extent in extents):
                raise ValueError(f"{name} must be three positive numbers, got {extents}")
        if math.prod(self.block) > _MAX_THREADS:
            raise ValueError(
                f"a block has at most {_MAX_THREADS} threads, got {math.prod(self.block)}"
            )
        if math.prod(self.cluster) > _MAX_CLUSTER:
            raise ValueError(
                f"a cluster has at most {_MAX_CLUSTER} CTAs, got {math.prod(self.cluster)}"
            )
        if any(extent % size for extent, size in zip(self.grid, self.cluster, strict=True)):
            raise ValueError(f"grid {self.grid} is not a multiple of the cluster {self.cluster}")
        self._check_directives()
        nbytes = self.static_shared + self.shared_bytes
        if self.shared_bytes < 0 or nbytes > _MAX_SHARED:
            raise ValueError(
                f"shared memory of a CTA: {self.static_shared} bytes static and "
                f"{self.shared_bytes} dynamic; it has {_MAX_SHARED} in all"
            )
        if self.sms < 1:
            raise ValueError(f"sms must be at least 1, got {self.sms}")

    def _check_directives(self) -> None:
        directives = self.code.properties.get("directives", {})
        required = directives.get("reqntid")
        if required is not None and (*required, 1, 1)[:3] != tuple(self.block):
            raise ValueError(f"{self.kernel} requires blocks of {required}, got {self.block}")
        most = directives.get("maxntid")
        if most is not None and math.prod(self.block) > math.prod(most):
            raise ValueError(
                f"{self.kernel} takes at most {math.prod(most)} threads a block, "
                f"got {math.prod(self.block)}"
            )

    # --- findings -----------------------------------------------------------------------------

    def fault(self, name: str, message: str, *, where: Place = None, advice: str = "") -> None:
        """Raise a `Fault`, or record it as a note if the caller of the launch ignores that name."""
        if name not in self.ignore:
            raise Fault(name, message, where=_place(where), advice=advice)
        self.note(name, where, message)

    def note(self, name: str, where: Place, message: str) -> None:
        """Record a finding that does not end the launch; once a name and line, with a count."""
        place = _place(where)
        key = (name, place.text, place.line) if place is not None else (name, "", 0)
        note = self._notes.get(key)
        if note is None:
            self._notes[key] = Note(name, place, message)
        else:
            note.count += 1

    def count(self, name: str, amount: int) -> None:
        """Add to a counter of the report."""
        self.counters[name] = self.counters.get(name, 0) + amount

    # --- CTAs ---------------------------------------------------------------------------------

    def start_cluster(self) -> bool:
        """Start the next cluster of the grid, if there is one and SMs are free for it."""
        if self._next_cluster >= self._num_clusters or len(self._free_sms) < self.cluster_size:
            return False
        smids = [self._free_sms.pop() for _ in range(self.cluster_size)]
        self.resident += make_cluster(self, self._next_cluster, smids)
        self._next_cluster += 1
        return True

    def cancel_cluster(self) -> Triple | None:
        """Take a cluster that has not started off the grid; the ``%ctaid`` of its first CTA."""
        if self._next_cluster >= self._num_clusters:
            return None
        index = self._next_cluster
        self._next_cluster += 1
        self.finished += self.cluster_size
        clusters = tuple(g // c for g, c in zip(self.grid, self.cluster, strict=True))
        position = unravel(index, (clusters[0], clusters[1], clusters[2]))
        x, y, z = (p * c for p, c in zip(position, self.cluster, strict=True))
        return x, y, z

    def retire(self, cta: Cta) -> None:
        """Forget a CTA that has exited, after adding up its counts."""
        self.resident.remove(cta)
        self._free_sms.append(cta.smid)
        self.finished += 1
        for warp in cta.warps:
            self.counts[warp.index] += warp.counts[: self.counts.shape[1]]
            self.lanes[warp.index] += warp.lanes[: self.lanes.shape[1]]
            self.wavefronts[warp.index] += warp.wavefronts[: self.wavefronts.shape[1]]
        self.release(cta)

    def release(self, cta: Cta) -> None:
        """Free the memory of a cluster that has exited, unless work in flight needs it still."""
        cluster = cta.cluster
        if all(peer.exited for peer in cluster) and not any(
            operation.cta in cluster for operation in self.engine.pending()
        ):
            for peer in cluster:
                peer.release()

    def report(self) -> Report:
        """What the launch was and did."""
        return Report(
            kernel=self.kernel,
            arch=self.arch,
            grid=self.grid,
            block=self.block,
            cluster=self.cluster,
            schedule=self.schedule,
            seed=self.seed,
            sms=self.sms,
            operations=[(mnemonic, line) for mnemonic, line, *_ in self.code.operations],
            counts=self.counts,
            lanes=self.lanes,
            wavefronts=self.wavefronts,
            counters=dict(self.counters),
            notes=list(self._notes.values()),
        )


def _place(where: Place) -> Where | None:
    return where() if callable(where) else where


def run_launch(
    code: Code,
    *,
    arch: str,
    grid: Triple,
    block: Triple,
    cluster: Triple = (1, 1, 1),
    shared_bytes: int = 0,
    params: bytes = b"",
    memory: GlobalMemory,
    sms: int,
    schedule: str = "eager",
    seed: int = 0,
    ignore: Iterable[str] = (),
    progress: Callable[[int, int], None] | None = None,
    max_operations: int = MAX_OPERATIONS,
) -> Report:
    """Run a kernel to its end.

    Parameters
    ----------
    code
        From `cakert.sim.decode.decoder.decode`.
    arch
        Target of the GPU: "sm_90a", "sm_100a", "sm_103a".
    grid, block, cluster
        Extents (x, y, z).
    shared_bytes
        Dynamic shared memory of a CTA.
    params
        The parameter block.
    memory
        Global memory.
    sms
        CTAs that may be resident at a time; a cluster always is as a whole.
    schedule, seed
        See `cakert.sim.machine.asynchronous`; the seed also interleaves the warps under "random".
    ignore
        Names of faults that are noted in the report instead of raised.
    progress
        ``progress(done, total)``, called when CTAs have finished.
    max_operations
        Livelock limit: operations of all warps in a row during which nothing happened that
        anybody could wait for. Plain stores do not count as happenings, so a kernel that computes
        for longer between two barriers needs a higher limit.

    Returns
    -------
    Report

    Raises
    ------
    Fault
        "deadlock", "livelock", and whatever the kernel does that the ISA leaves undefined.
    """
    launch = Launch(
        code,
        arch=arch,
        grid=grid,
        block=block,
        cluster=cluster,
        shared_bytes=shared_bytes,
        params=params,
        memory=memory,
        sms=sms,
        schedule=schedule,
        seed=seed,
        ignore=ignore,
        max_operations=max_operations,
    )
    make_scheduler(launch, progress).run()
    return launch.report()
