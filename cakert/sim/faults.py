"""What the simulator refuses: text it cannot read, and kernels that do what no GPU promises.

Every fault has a short name (``uninitialised-shared``) that a caller can filter by, and says
where it happened and what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fault", "PtxError", "SimError", "UnsupportedInstruction", "Where"]


class SimError(RuntimeError):
    """Something went wrong in a simulated launch."""


class PtxError(ValueError):
    """The PTX text cannot be read; the message begins with its line."""


class UnsupportedInstruction(PtxError):
    """An instruction, or a form of one, that the simulator does not execute."""


@dataclass(frozen=True, slots=True)
class Where:
    """Place of an event in a launch.

    Attributes
    ----------
    kernel
        Name of the kernel.
    line
        Line in the PTX text.
    text
        The instruction as written.
    cta
        (x, y, z) of the thread block.
    warp
        Index in the thread block, or -1 where no warp is at fault.
    """

    kernel: str
    line: int
    text: str
    cta: tuple[int, int, int]
    warp: int

    def __str__(self) -> str:
        warp = f", warp {self.warp}" if self.warp >= 0 else ""
        return f"{self.kernel} line {self.line} `{self.text}`, CTA {self.cta}{warp}"


class Fault(SimError):
    """A kernel did what the ISA leaves undefined, or will never finish.

    Attributes
    ----------
    name
        Kebab-case name of the kind: "deadlock", "missing-proxy-fence", ...
    where
        Where it was noticed, or None for the launch as a whole.
    """

    def __init__(
        self, name: str, message: str, *, where: Where | None = None, advice: str = ""
    ) -> None:
        self.name = name
        self.where = where
        self.advice = advice
        place = f"{where}: " if where is not None else ""
        hint = f" {advice}" if advice else ""
        super().__init__(f"[{name}] {place}{message}{hint}")
