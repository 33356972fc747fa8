"""What a simulated launch did: instructions by pipe and warp role, bytes, cycles, findings.

The estimate of cycles is a lower bound for each unit by itself from published or measured rates:
enough to see which one bounds a tile, not a prediction of time. It knows nothing of latency or
overlap.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cakert.sim.faults import Where
from cakert.sim.report_bytes import traffic
from cakert.sim.report_cycles import ONLY_ON, estimate
from cakert.sim.report_pipes import PIPES, job_of, mma_sync_work, packed, pipe_of
from cakert.sim.report_rates import FAMILIES, family_of, rates_of
from cakert.sim.report_roles import group

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["PIPES", "SCHEMA", "Note", "Report", "pipe_of"]

Counts = NDArray[np.uint64]

SCHEMA = 1
"""Of `Report.as_dict`: raised when a key changes its meaning or goes."""


@dataclass(slots=True)
class Note:
    """A finding that did not end the launch.

    Attributes
    ----------
    name
        Kebab-case, as of faults.
    where
        First place, or None for the launch as a whole.
    message
        What was found.
    count
        How often at that place.
    """

    name: str
    where: Where | None
    message: str
    count: int = 1

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where is not None else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"[{self.name}] {place}{self.message}{times}"


@dataclass(repr=False)
class Report:
    """A launch in numbers.

    Attributes
    ----------
    kernel, arch, grid, block, cluster, schedule, seed, sms
        What was launched, and how.
    operations
        (mnemonic, PTX line) of each operation of the kernel.
    counts : (warps, operations) uint64
        Executions, summed over CTAs, by the warp's index in its CTA. One whose guard was false in
        all lanes counts: it is issued.
    lanes : (warps, operations) uint64
        Lanes in which they were executed.
    wavefronts : (warps, operations) uint64
        Passes of loads and stores through shared memory beyond those that the bytes need.
    counters
        Other numbers by name: "tma-load-bytes", "tensor-cycles", ...
    notes
        Findings.
    """

    kernel: str
    arch: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    schedule: str
    seed: int
    sms: int
    operations: list[tuple[str, int]]
    counts: Counts
    lanes: Counts
    wavefronts: Counts
    counters: dict[str, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    # --- counts -------------------------------------------------------------------------------

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return math.prod(self.grid)

    @property
    def instructions(self) -> int:
        """Warp instructions in all."""
        return int(self.counts.sum())

    @property
    def bank_conflicts(self) -> int:
        """Passes through shared memory beyond the ideal, of loads, stores, ldmatrix, stmatrix."""
        return int(self.wavefronts.sum()) + self.counters.get("matrix-bank-conflicts", 0)

    @property
    def exp2(self) -> int:
        """Results of ex2 (lanes that executed one, twice for a packed pair)."""
        return sum(
            executed * packed(mnemonic)
            for (mnemonic, _), executed in zip(
                self.operations, self.lanes.sum(axis=0).tolist(), strict=True
            )
            if mnemonic.startswith("ex2.")
        )

    def bytes_by_memory(self) -> dict[str, dict[str, int]]:
        """Bytes through "l2", "shared" (by warps and tensor cores), "fills", "local".

        "fills" are what asynchronous copies move into and out of shared memory. See
        `cakert.sim.report_bytes.traffic` for what is counted how.
        """
        return traffic(self.operations, self.lanes.sum(axis=0), self.counters)

    def by_pipe(self, warps: list[int] | None = None) -> dict[str, int]:
        """Warp instructions of each pipe, of all warps or of some."""
        chosen = self.counts if warps is None else self.counts[warps]
        totals = dict.fromkeys(PIPES, 0)
        for (mnemonic, _), count in zip(self.operations, chosen.sum(axis=0).tolist(), strict=True):
            totals[pipe_of(mnemonic)] += count
        return totals

    # --- roles --------------------------------------------------------------------------------

    def roles(self) -> dict[str, list[int]]:
        """Warps by role, named "warps 0-3": those that run the same code.

        See `cakert.sim.report_roles.group`.
        """
        reached = np.where(self.lanes > 0, self.counts, np.uint64(0))
        return {_warps(members): members for members in group(reached)}

    def by_role(self) -> dict[str, dict[str, int]]:
        """Warp instructions by role, then by pipe."""
        return {role: self.by_pipe(members) for role, members in self.roles().items()}

    def jobs(self) -> dict[str, list[str]]:
        """What each role is there for: the jobs of which it does at least a tenth.

        Jobs are "bulk loads" (TMA's among them), "cp.async", "MMA", "exp2", "tensor memory" (loads
        and stores of it), "stores" (to global memory), "bulk stores".
        """
        roles = self.roles()
        work: dict[str, dict[str, int]] = {
            job: dict.fromkeys(roles, 0)
            for job in (
                "bulk loads", "cp.async", "MMA", "exp2", "tensor memory", "stores", "bulk stores"
            )
        }  # fmt: skip
        for index, (mnemonic, _) in enumerate(self.operations):
            job = job_of(mnemonic)
            if job is not None:
                for role, members in roles.items():
                    work[job][role] += int(self.lanes[members, index].sum())
        return {
            role: [
                job
                for job, shares in work.items()
                if shares[role] and 10 * shares[role] >= sum(shares.values())
            ]
            for role in roles
        }

    # --- the estimate -------------------------------------------------------------------------

    def cycles(self, target: str | None = None, *, parts: int | None = None) -> dict[str, float]:
        """Least cycles of an SM for each unit.

        Parameters
        ----------
        target
            Whose rates: "sm_90", "sm_100", "sm_103"; None for the launch's own.
        parts
            What to divide the whole launch by: ``report.ctas``, or its tiles. None for the SMs that
            it can use, the CTAs spread evenly over them.

        Returns
        -------
        dict
            * "issue": the schedulers, without moves, cvta and ld.param, which ptxas all but
              always does away with; its other work on PTX is not modelled.
            * "fma": f32 and 16-bit arithmetic (f64 is not told apart).
            * "xu": the MUFU, with ex2 at the rate of the target.
            * "shared": accesses of warps with their bank conflicts, and operands of tensor cores.
            * "shared+fills": the same if asynchronous copies use the same port, which no source
              settles (docs/simulator.md). Never the bound.
            * "tensor": mma.sync, wgmma and tcgen05.mma together.
            * "l2": only where the bandwidth is known.

            The ALU, TMA and latency are not estimated.

        Raises
        ------
        ValueError
            Not a target, or one that lacks the tensor instructions of the kernel; fewer than one
            part.
        """
        if parts is not None and parts < 1:
            raise ValueError(f"parts must be at least 1, got {parts}")
        family = family_of(self.arch if target is None else target)
        for counter, (what, families) in ONLY_ON.items():
            if self.counters.get(counter) and family not in families:
                raise ValueError(f"{self.kernel} uses {what}, which {family} does not have")
        units = estimate(
            self.operations,
            self.counts.sum(axis=0),
            self.lanes.sum(axis=0),
            self.bank_conflicts,
            self.counters,
            rates_of(family),
        )
        divisor = min(self.sms, self.ctas) if parts is None else parts
        return {unit: cycles / divisor for unit, cycles in units.items()}

    @property
    def bound(self) -> str:
        """The unit of `cycles` that takes longest, on the launch's own target."""
        return self.bound_on(self.arch)

    def bound_on(self, target: str) -> str:
        """The unit of ``cycles(target)`` that takes longest; "shared+fills" is left out."""
        cycles = self.cycles(target)
        del cycles["shared+fills"]
        return max(cycles, key=cycles.__getitem__)

    def targets(self) -> tuple[str, ...]:
        """The families that have the kernel's tensor instructions: what `cycles` takes."""
        used = [
            families for counter, (_, families) in ONLY_ON.items() if self.counters.get(counter)
        ]
        return tuple(name for name in FAMILIES if all(name in families for families in used))

    def remarks(self, target: str | None = None) -> list[str]:
        """What is assumed, unknown or left out in `cycles` for this launch."""
        rates = rates_of(self.arch if target is None else target)
        found = []
        if any(mma_sync_work(mnemonic) for mnemonic, _ in self.operations):
            found.append(rates.remarks["tensor"])
        moved = self.bytes_by_memory()
        if moved["l2"]:
            found.append(f"L2: {rates.remarks['l2']}")
        if any(what.startswith("generic") for what in moved["l2"]):
            found.append("generic accesses count as L2's, wherever they went")
        if moved["fills"]:
            found.append(
                "whether asynchronous copies share the port of shared memory is unknown: "
                "shared+fills is if they do"
            )
        return found

    # --- views --------------------------------------------------------------------------------

    def as_dict(self, *, tiles: int | None = None) -> dict[str, Any]:
        """The report as plain data; operations that were never executed are left out.

        Parameters
        ----------
        tiles
            Of the launch, for cycles per tile.
        """
        columns = zip(
            self.operations,
            self.counts.sum(axis=0).tolist(),
            self.lanes.sum(axis=0).tolist(),
            self.wavefronts.sum(axis=0).tolist(),
            strict=True,
        )
        pipes, jobs = self.by_role(), self.jobs()
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "arch": self.arch,
            "grid": list(self.grid),
            "block": list(self.block),
            "cluster": list(self.cluster),
            "schedule": self.schedule,
            "seed": self.seed,
            "sms": self.sms,
            "instructions": self.instructions,
            "roles": [
                {"name": role, "warps": warps, "jobs": jobs[role], "pipes": pipes[role]}
                for role, warps in self.roles().items()
            ],
            "exp2": self.exp2,
            "bank_conflicts": self.bank_conflicts,
            "bytes": self.bytes_by_memory(),
            "counters": dict(sorted(self.counters.items())),
            "bound": self.bound,
            "targets": {
                target: {
                    "bound": self.bound_on(target),
                    "cycles_per_sm": self.cycles(target),
                    "cycles_per_cta": self.cycles(target, parts=self.ctas),
                    "cycles_per_tile": None if tiles is None else self.cycles(target, parts=tiles),
                    "remarks": self.remarks(target),
                }
                for target in self.targets()
            },
            "operations": [
                {
                    "line": line,
                    "mnemonic": mnemonic,
                    "pipe": pipe_of(mnemonic),
                    "count": count,
                    "lanes": lanes,
                    "bank_conflicts": conflicts,
                }
                for (mnemonic, line), count, lanes, conflicts in columns
                if count
            ],
            "notes": [
                {
                    "name": note.name,
                    "line": note.where.line if note.where is not None else None,
                    "where": str(note.where) if note.where is not None else None,
                    "message": note.message,
                    "count": note.count,
                }
                for note in self.notes
            ],
        }

    def to_json(self, indent: int | None = 2, *, tiles: int | None = None) -> str:
        """`as_dict` as JSON."""
        return json.dumps(self.as_dict(tiles=tiles), indent=indent)

    def table(self, *, tiles: int | None = None) -> Group:
        """The report for a terminal: ``rich.print(report.table())``; ``tiles`` as of `as_dict`."""
        from cakert.sim.report_view import table

        return table(self, tiles)

    def __repr__(self) -> str:
        grid = "x".join(map(str, self.grid))
        notes = f", {len(self.notes)} notes" if self.notes else ""
        return (
            f"<Report of {self.kernel} on {self.arch}: grid {grid}, "
            f"{self.instructions:,} warp instructions, bound by {self.bound}{notes}>"
        )


def _warps(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    word = "warp" if len(numbers) == 1 else "warps"
    return f"{word} " + ", ".join("-".join(map(str, part)) for part in parts)
