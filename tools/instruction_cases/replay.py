"""Recordings against the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from cakert.sim import Fault
from instruction_cases.model import Bytes, Case, disagreements
from instruction_cases.recording import Recording
from instruction_cases.runners import Runner

__all__ = ["AGAIN", "Verdict", "judge", "stale"]

AGAIN = "record again: tools/record_gpu_instructions.py on a GPU of compute capability 9.0"


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes
    ----------
    problem
        Empty where recording and simulation agree; else the first disagreement.
    detail
        A line for each segment that disagrees.
    """

    case: str
    problem: str = ""
    detail: tuple[str, ...] = ()


def stale(case: Case, recording: Recording) -> str:
    """Why the recording says nothing of this case; empty where it does."""
    entry = recording.entries.get(case.name)
    if entry is None:
        return f"the recording has no such case: {AGAIN}"
    if entry.ptx_sha256 != case.ptx_sha256:
        return f"the PTX is another one than was recorded: {AGAIN}"
    if entry.checksum != case.checksum or len(entry.output) not in (0, len(case.before)):
        return f"the inputs are other ones than were recorded: {AGAIN}"
    return ""


def judge(case: Case, recording: Recording, runner: Runner) -> Verdict:
    """Run a case on the simulator and compare."""
    if problem := stale(case, recording):
        return Verdict(case.name, problem)
    recorded = recording.entries[case.name].output
    try:
        simulated = runner.run(case)
    except Fault as fault:
        refused = "" if not len(recorded) else " ".join(f"Fault: {fault}".split())
        return Verdict(case.name, refused[:300])
    except Exception as error:  # whatever it is, it belongs into the table
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Verdict(case.name, text[:300])
    if not len(recorded):
        return Verdict(case.name, "an illegal instruction on the GPU, executed by the simulator")
    lines = []
    for segment in case.segments:
        wrong = disagreements(case, segment, recorded, simulated)
        if len(wrong):
            at = int(wrong[0])
            first = slice(
                segment.start + at * segment.size, segment.start + (at + 1) * segment.size
            )
            lines.append(
                f"{segment.name}: {len(wrong)} of {segment.count}, first at {at}: "
                f"GPU {_hex(recorded[first])}, simulated {_hex(simulated[first])}"
                + _operands(case, at)
            )
    return Verdict(case.name, lines[0] if lines else "", tuple(lines))


def _hex(raw: Bytes) -> str:
    return "0x" + raw[::-1].tobytes().hex()


def _operands(case: Case, at: int) -> str:
    """The operands of a lane, where the case is a family of probes."""
    operands = case.tags.get("operands", ())
    if not operands:
        return ""
    return " of " + ", ".join(_hex(each[at : at + 1].view("u1")) for each in operands)
