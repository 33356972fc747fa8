"""What a simulated launch did: instructions by pipe and warp role, bytes, findings.

The estimate of cycles is a lower bound for each unit by itself from published rates: enough to see
which one bounds a tile, not a prediction of time. It knows nothing of latency or overlap.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cakert.sim.faults import Where

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["PIPES", "Note", "Report", "pipe_of"]

Counts = NDArray[np.uint64]

PIPES = ("alu", "fma", "xu", "lsu", "tensor", "tma", "branch", "sync", "other")

# The longest prefix of the mnemonic, on dot boundaries, names the pipe; arithmetic depends on the
# type and is told apart in `pipe_of`.
_PREFIXES = {
    "xu": "ex2 lg2 rcp sqrt rsqrt sin cos tanh div",
    "lsu": "ld st ldu atom red shfl ldmatrix stmatrix movmatrix cp.async prefetch prefetchu mapa "
    "tcgen05.ld tcgen05.st multimem st.async red.async",
    "tensor": "mma wmma wgmma.mma_async tcgen05.mma tcgen05.cp tcgen05.shift",
    "tma": "cp.async.bulk cp.reduce.async.bulk prefetch.tensormap st.bulk",
    "branch": "bra brx ret exit call trap brkpt",
    "sync": "bar barrier mbarrier cp.async.mbarrier cp.async.commit_group cp.async.wait_group "
    "cp.async.wait_all cp.async.bulk.commit_group cp.async.bulk.wait_group fence membar vote match "
    "redux elect activemask setmaxnreg nanosleep griddepcontrol clusterlaunchcontrol wgmma tcgen05 "
    "getctarank",
    "alu": "abs neg min max set setp selp slct and or xor not lop3 shf shl shr mov prmt bfe bfi "
    "bfind brev popc clz fns mad24 mul24 mad sad dp2a dp4a szext bmsk cvta isspacep testp copysign "
    "add sub mul addc subc madc cnot rem createpolicy",
    "fma": "fma",
}
_PIPE_BY_PREFIX = {prefix: pipe for pipe, words in _PREFIXES.items() for prefix in words.split()}
_FLOATING = re.compile(r"^(b?f(16|32|64)(x2)?)$")
_ARITHMETIC = ("add", "sub", "mul", "mad")

# Rates of one SM a clock (gpu-facts section 14.1): lanes of the FMA pipe; f32 ex2 of the MUFU and
# its other functions; bytes of shared memory; and warp instructions issued (four schedulers).
_FMA_LANES = 128
_XU_LANES = 16
_EX2_LANES = {"sm_103": 32}
_SHARED_BYTES = 128
_ISSUE = 4
_WARP = 32


def pipe_of(mnemonic: str) -> str:
    """The unit that executes an instruction: one of `PIPES`."""
    parts = mnemonic.split(".")
    if parts[0] == "cvt":
        # Between a float and an integer it is the MUFU's work, within either kind the ALU's.
        kinds = {bool(_FLOATING.match(part)) for part in parts[1:] if re.match(r"^\w*\d", part)}
        return "xu" if len(kinds) == 2 else "alu"
    if parts[0] in _ARITHMETIC and any(_FLOATING.match(part) for part in parts[1:]):
        return "fma"
    for length in range(len(parts), 0, -1):
        pipe = _PIPE_BY_PREFIX.get(".".join(parts[:length]))
        if pipe is not None:
            return pipe
    return "other"


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


@dataclass
class Report:
    """A launch in numbers.

    Attributes
    ----------
    kernel, arch, grid, block, cluster, schedule, seed, sms
        What was launched, and how.
    operations
        (mnemonic, PTX line) of each operation of the kernel.
    counts : (warps, operations) uint64
        Executions, summed over CTAs, by the warp's index in its CTA.
    wavefronts : (warps, operations) uint64
        Passes through shared memory beyond those that the bytes need: bank conflicts.
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
    wavefronts: Counts
    counters: dict[str, int] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    # --- counts -------------------------------------------------------------------------------

    @property
    def instructions(self) -> int:
        """Warp instructions in all."""
        return int(self.counts.sum())

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of shared memory beyond the ideal."""
        return int(self.wavefronts.sum())

    @property
    def exp2(self) -> int:
        """Lanes of ex2: of the counter "exp2" where it is kept, else 32 a warp instruction."""
        if "exp2" in self.counters:
            return self.counters["exp2"]
        return _WARP * self._matching("ex2")

    def by_pipe(self, warps: list[int] | None = None) -> dict[str, int]:
        """Warp instructions of each pipe, of all warps or of some."""
        chosen = self.counts if warps is None else self.counts[warps]
        totals = dict.fromkeys(PIPES, 0)
        for (mnemonic, _), count in zip(self.operations, chosen.sum(axis=0), strict=True):
            totals[pipe_of(mnemonic)] += int(count)
        return totals

    def roles(self) -> dict[str, list[int]]:
        """Warps by role: those that execute the same instructions, named "warps 0-3".

        Instructions that only some lanes or iterations reach count as well, so two warps are of one
        role if neither executes an instruction that the other never does.
        """
        groups: dict[bytes, list[int]] = {}
        for warp, row in enumerate(self.counts):
            groups.setdefault((row > 0).tobytes(), []).append(warp)
        return {_warps(members): members for members in groups.values()}

    def by_role(self) -> dict[str, dict[str, int]]:
        """Warp instructions by role, then by pipe."""
        return {role: self.by_pipe(members) for role, members in self.roles().items()}

    def _matching(self, opcode: str, *, total: Counts | None = None) -> int:
        sums = self.counts.sum(axis=0) if total is None else total
        return sum(
            int(count)
            for (mnemonic, _), count in zip(self.operations, sums, strict=True)
            if mnemonic.split(".")[0] == opcode
        )

    # --- the estimate -------------------------------------------------------------------------

    def cycles(self) -> dict[str, float]:
        """Least cycles of an SM for each unit, if the CTAs are spread evenly over ``sms``.

        Returns
        -------
        dict
            "issue", "fma", "xu" (with ex2 at the rate of the target), "shared" (loads, stores and
            bank conflicts of warps), "tensor" (from the counter "tensor-cycles").
        """
        total = self.counts.sum(axis=0)
        pipes = self.by_pipe()
        ctas = int(np.prod(self.grid))
        sms = min(self.sms, ctas)
        family = self.arch.rstrip("af")
        ex2 = self._matching("ex2", total=total)
        shared = self.bank_conflicts + sum(
            int(count) * _shared_wavefronts(mnemonic)
            for (mnemonic, _), count in zip(self.operations, total, strict=True)
        )
        units = {
            "issue": sum(pipes.values()) / _ISSUE,
            "fma": pipes["fma"] * _WARP / _FMA_LANES,
            "xu": (pipes["xu"] - ex2) * _WARP / _XU_LANES
            + ex2 * _WARP / _EX2_LANES.get(family, _XU_LANES),
            "shared": float(shared),
            "tensor": float(self.counters.get("tensor-cycles", 0)),
        }
        return {unit: cycles / sms for unit, cycles in units.items()}

    @property
    def bound(self) -> str:
        """The unit of `cycles` that takes longest."""
        cycles = self.cycles()
        return max(cycles, key=cycles.__getitem__)

    # --- views --------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data; operations that were never executed are left out."""
        total = self.counts.sum(axis=0)
        return {
            "kernel": self.kernel,
            "arch": self.arch,
            "grid": list(self.grid),
            "block": list(self.block),
            "cluster": list(self.cluster),
            "schedule": self.schedule,
            "seed": self.seed,
            "sms": self.sms,
            "instructions": self.instructions,
            "by_role": self.by_role(),
            "exp2": self.exp2,
            "bank_conflicts": self.bank_conflicts,
            "counters": dict(sorted(self.counters.items())),
            "cycles": self.cycles(),
            "bound": self.bound,
            "operations": [
                {"line": line, "mnemonic": mnemonic, "count": int(count)}
                for (mnemonic, line), count in zip(self.operations, total, strict=True)
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

    def to_json(self, indent: int | None = 2) -> str:
        """`as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=indent)

    def table(self) -> Group:
        """The report for a terminal: ``rich.print(report.table())``."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        pipes = Table(title=f"{self.kernel} on {self.arch}: warp instructions")
        pipes.add_column("role")
        used = [pipe for pipe in PIPES if self.by_pipe()[pipe]]
        for pipe in used:
            pipes.add_column(pipe, justify="right")
        for role, row in self.by_role().items():
            pipes.add_row(role, *(f"{row[pipe]:,}" for pipe in used))
        pipes.add_section()
        whole = self.by_pipe()
        pipes.add_row("all", *(f"{whole[pipe]:,}" for pipe in used))

        numbers = Table(title="counters", show_header=False)
        numbers.add_column()
        numbers.add_column(justify="right")
        numbers.add_row("exp2 lanes", f"{self.exp2:,}")
        numbers.add_row("bank conflicts (wavefronts)", f"{self.bank_conflicts:,}")
        for name, number in sorted(self.counters.items()):
            numbers.add_row(name, f"{number:,}")

        bounds = Table(title="least cycles of an SM by unit")
        for unit in self.cycles():
            bounds.add_column(unit, justify="right")
        bounds.add_column("bound by")
        bounds.add_row(*(f"{cycles:,.0f}" for cycles in self.cycles().values()), self.bound)
        return Group(pipes, numbers, bounds, *(Text(str(note)) for note in self.notes))


def _warps(numbers: list[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    word = "warp" if len(numbers) == 1 else "warps"
    return f"{word} " + ", ".join("-".join(map(str, part)) for part in parts)


def _shared_wavefronts(mnemonic: str) -> int:
    """Passes of 128 bytes that a full warp's access to shared memory needs without conflicts."""
    parts = mnemonic.split(".")
    if parts[0] not in ("ld", "st") or not any(part.startswith("shared") for part in parts):
        return 0
    vector = next((int(part[1:]) for part in parts if re.fullmatch(r"v[248]", part)), 1)
    bits = next((int(m[1]) for part in parts if (m := re.fullmatch(r"[bsuf](\d+)", part))), 32)
    return max(1, vector * bits * _WARP // 8 // _SHARED_BYTES)
