"""``setmaxnreg``: registers that warpgroups hand to each other (PTX ISA "setmaxnreg").

A CTA gets a pool of registers at its launch, as many as its warps have then. ``setmaxnreg.dec``
gives a warp's surplus back to the pool, ``setmaxnreg.inc`` takes from it and waits until the pool
has enough. Warps that exit keep theirs: that they return them is promised nowhere, and kernels that
counted on it have been seen to hang (flashinfer issue 4533).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cakert.sim.faults import Where
from cakert.sim.machine.waiting import Wait
from cakert.sim.ptx.model import Immediate, Instruction

if TYPE_CHECKING:
    from cakert.sim.core.warp import Warp
    from cakert.sim.decode.binder import Binder, Handler
    from cakert.sim.machine.cta import Cta

__all__ = ["INSTRUCTIONS", "RegisterPool", "launch_registers"]

REGISTERS_PER_SM = 65536
WARPS_PER_WARPGROUP = 4
# Registers are given out in units of 8 a thread (CUDA occupancy tables, all of 9.x and 10.x).
UNIT = 8


def launch_registers(directives: Mapping[str, tuple[int, ...]]) -> int | None:
    """Registers a thread that a kernel is launched with, as its directives bound them.

    Parameters
    ----------
    directives
        Of the kernel: "maxnreg", "maxntid" (or "reqntid") and "minnctapersm".

    Returns
    -------
    int or None
        A multiple of 8, at most 256; None without a bound. ptxas 13.0 ignores setmaxnreg then, and
        likewise where ``.maxntid`` stands alone ("unable to determine register count at entry").
    """
    if "maxnreg" in directives:
        count = directives["maxnreg"][0]
        return min(-(-count // UNIT) * UNIT, 256)
    threads = directives.get("reqntid") or directives.get("maxntid")
    if threads is None or "minnctapersm" not in directives:
        return None
    resident = max(directives["minnctapersm"][0], 1)
    return min(REGISTERS_PER_SM // (math.prod(threads) * resident) // UNIT * UNIT, 256)


class RegisterPool:
    """The registers of a CTA, in registers a thread of one warp.

    Parameters
    ----------
    cta
    num_warps
    per_thread
        From `launch_registers`.

    Attributes
    ----------
    free
        What the pool holds: a warp that goes from 40 to 168 registers a thread takes 128.
    """

    def __init__(self, cta: Cta, num_warps: int, per_thread: int | None) -> None:
        self.cta = cta
        self.per_thread = per_thread
        self.held = [per_thread or 0] * num_warps
        self.history: list[list[tuple[str, int, int]]] = [[] for _ in range(num_warps)]
        self.free = 0

    def request(self, warp: Warp, kind: str, count: int) -> Wait | None:
        """Execute ``setmaxnreg`` in a warp.

        Parameters
        ----------
        kind
            "inc" or "dec".
        count
            Registers a thread.

        Raises
        ------
        Fault
            "setmaxnreg-divergent", "setmaxnreg-unsynchronised", "setmaxnreg-direction".
        """
        launch = self.cta.launch
        where = warp.where()
        if self.per_thread is None:
            launch.note(
                "setmaxnreg-ignored",
                where,
                "has no effect: nothing bounds the registers of the kernel; give it .maxnreg or "
                ".minnctapersm (__launch_bounds__(threads, 1)).",
            )
            return None
        index = warp.index
        self._check_warpgroup(index, kind, count, where)
        held = self.held[index]
        if (count > held) if kind == "dec" else (count < held):
            launch.fault(
                "setmaxnreg-direction",
                f".{kind} to {count} registers a thread, but the warp has {held}.",
                where=where,
                advice=f"The kernel starts with {self.per_thread} registers a thread.",
            )
            return None
        if kind == "dec":
            self.free += held - count
            self.held[index] = count
            launch.progress += 1
            return None
        need = count - held

        def take() -> None:
            self.free -= need
            self.held[index] = count
            launch.progress += 1

        if self.free >= need:
            take()
            return None
        return Wait(lambda: self.free >= need, lambda: self._describe(need, count), take)

    def _check_warpgroup(self, index: int, kind: str, count: int, where: Where) -> None:
        first = index // WARPS_PER_WARPGROUP * WARPS_PER_WARPGROUP
        group = range(first, min(first + WARPS_PER_WARPGROUP, len(self.held)))
        turn = len(self.history[index])
        fault = self.cta.launch.fault
        for other in group:
            past = self.history[other]
            if len(past) > turn and past[turn][:2] != (kind, count):
                fault(
                    "setmaxnreg-divergent",
                    f"warp {other} of the warpgroup executed .{past[turn][0]} {past[turn][1]} "
                    f"(line {past[turn][2]}) instead.",
                    where=where,
                    advice="All warps of a warpgroup must execute the same setmaxnreg.",
                )
            if len(past) < turn:
                fault(
                    "setmaxnreg-unsynchronised",
                    f"warp {other} of the warpgroup has not executed the one before yet.",
                    where=where,
                    advice="Synchronise the warpgroup between two setmaxnreg.",
                )
        self.history[index].append((kind, count, where.line))

    def _describe(self, need: int, count: int) -> str:
        held = ", ".join(str(registers) for registers in self.held)
        return (
            f"{need} more registers a thread (to {count}), of which the CTA's pool has "
            f"{self.free}; warps hold {held}; other warps would have to execute setmaxnreg.dec"
        )


def _bind_setmaxnreg(instruction: Instruction, binder: Binder) -> Handler:
    kind = instruction.modifiers[0] if instruction.modifiers else ""
    if kind not in ("inc", "dec") or instruction.modifiers[1:] != ("sync", "aligned", "u32"):
        binder.fail("expected setmaxnreg.{inc,dec}.sync.aligned.u32")
    operand = instruction.operands[0]
    if not isinstance(operand, Immediate):
        binder.fail("the register count must be a constant")
    count = operand.bits
    if not 24 <= count <= 256 or count % UNIT:
        binder.fail(f"the register count must be a multiple of 8 from 24 to 256, got {count}")

    def handler(warp: Warp, mask: int) -> Wait | None:
        del mask  # .aligned: every live lane
        wait: Wait | None = warp.cta.registers.request(warp, kind, count)
        return wait

    return handler


INSTRUCTIONS = {"setmaxnreg": _bind_setmaxnreg}
