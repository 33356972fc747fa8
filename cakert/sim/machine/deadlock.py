"""Why a launch does not go on, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from cakert.sim.core.lanes import lanes_of
from cakert.sim.faults import Fault

if TYPE_CHECKING:
    from cakert.sim.machine.launch import Launch

__all__ = ["deadlock", "explain", "livelock"]

_MAX_LINES = 40


def explain(launch: Launch) -> list[str]:
    """One line for each group of warps that wait at the same instruction for the same thing."""
    groups: dict[tuple[tuple[int, int, int], int, int, str], list[int]] = {}
    texts: dict[int, list[str]] = {}
    for _, line, text in launch.code.operations:
        texts.setdefault(line, []).append(text)
    for cta in launch.resident:
        for warp in cta.warps:
            for wait, line, mask in warp.waits():
                reason = "other lanes of the warp to come here" if wait is None else wait.describe()
                key = (cta.ctaid, line, mask, reason)
                groups.setdefault(key, []).append(warp.index)
    lines = []
    for (ctaid, line, mask, reason), warps in groups.items():
        lanes = "" if mask == 0xFFFFFFFF else f" lanes {ranges(lanes_of(mask))}"
        place = f"line {line} `{'; '.join(texts.get(line, []))}`"
        lines.append(f"CTA {ctaid} warp {ranges(warps)}{lanes}, {place}: waits for {reason}")
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    return lines


def ranges(numbers: list[int]) -> str:
    """Ascending numbers in short: "0-3, 8"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def deadlock(launch: Launch) -> NoReturn:
    """Raise the fault "deadlock" with who waits for what."""
    lines = explain(launch)
    if launch.finished + len(launch.resident) < launch.num_ctas:
        waiting = launch.num_ctas - launch.finished - len(launch.resident)
        lines.append(f"{waiting} CTAs have not started: all {launch.sms} SMs are taken")
    raise Fault(
        "deadlock",
        f"{launch.kernel}: no warp can go on and no operation is in flight.\n  "
        + "\n  ".join(lines)
        + "\n",
        advice="Find who should have arrived, and check the phases on both sides.",
    )


def livelock(launch: Launch, operations: int) -> None:
    """Raise the fault "livelock", unless it is ignored."""
    lines = [
        f"CTA {cta.ctaid} warp {warp.index}, line {launch.code.operations[warp.pc][1]} "
        f"`{launch.code.operations[warp.pc][2]}`"
        for cta in launch.resident
        for warp in cta.warps
        if warp.live
    ]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    launch.fault(
        "livelock",
        f"{launch.kernel}: warps ran about {operations} operations and nothing happened that "
        "anybody could wait for.\n  " + "\n  ".join([*lines, *explain(launch)]) + "\n",
        advice="If the kernel only computes for that long, raise max_operations.",
    )
