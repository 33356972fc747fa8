"""Will a driver load this on that device, and if it did not, why: the rules, from records.

The rules of cubins and PTX are those of the CUDA C++ Programming Guide ("Binary compatibility",
"PTX compatibility", "Family-specific features") and of the PTX ISA, section 11.1.2 (``.target``).
Which driver branch a toolkit's major release asks for is table 3 of the CUDA Toolkit release notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cakert.errors import cuda_text
from cakert.inspect.records import CubinRecord, PtxRecord

__all__ = ["best_cubin", "ptx_loads_on", "rank", "runs_on", "where", "why_not"]

Capability = tuple[int, int]

# Boards whose code runs nowhere else, and which run no other's; 10.1 is 11.0 since toolkit 13.
_TEGRA = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)})

# Oldest driver branch for Linux of a toolkit's major release.
_BRANCH_OF = {11: "450", 12: "525", 13: "580"}

_TARGET = re.compile(r"(?:sm|compute)_(\d+)(\d)([af]?)")

# CUresults of loading that say something of the image (cuda.h).
_INSUFFICIENT_DRIVER, _NEWER_DRIVER = 35, 36
_INVALID_PTX, _PTX_VERSION, _NOT_FOUND = 218, 222, 500
_OF_THE_IMAGE = frozenset({200, 209, _INVALID_PTX, _PTX_VERSION, 300, _NOT_FOUND})


def _parts(target: str) -> tuple[Capability, str] | None:
    match = _TARGET.fullmatch(target)
    if match is None:
        return None
    return (int(match[1]), int(match[2])), match[3]


def runs_on(target: str, capability: Capability) -> bool | None:
    """Whether machine code for ``target`` runs on a device.

    Parameters
    ----------
    target
        As `CubinRecord.target`: "sm_90", "sm_90a", "sm_100f".
    capability
        Compute capability of the device, e.g. (9, 0).

    Returns
    -------
    bool or None
        None where the target is unknown.
    """
    parts = _parts(target)
    if parts is None:
        return None
    built_for, suffix = parts
    if suffix == "a" or capability in _TEGRA or built_for in _TEGRA:
        return built_for == capability
    # Plain code and code of a family alike: the same major version, this minor one or later.
    return built_for[0] == capability[0] and built_for[1] <= capability[1]


def ptx_loads_on(target: str, capability: Capability) -> bool | None:
    """Whether a driver can compile PTX for ``target`` ("sm_90", "compute_90a") for a device.

    Returns
    -------
    bool or None
        None where the target is unknown. That the driver knows the PTX's ISA version is another
        matter.
    """
    parts = _parts(target)
    if parts is None:
        return None
    built_for, suffix = parts
    if suffix == "a":
        return built_for == capability
    if suffix == "f":
        return built_for[0] == capability[0] and built_for[1] <= capability[1]
    return built_for <= capability


def rank(target: str) -> tuple[int, int, int]:
    """What to sort targets by, of those that load on a device: the largest fits it best.

    A later architecture goes before an earlier one, and of one architecture "a" before "f" before
    neither; an unknown target comes last.
    """
    parts = _parts(target)
    if parts is None:
        return (-1, -1, 0)
    return (*parts[0], ("", "f", "a").index(parts[1]))


def best_cubin(cubins: Iterable[CubinRecord], capability: Capability) -> CubinRecord | None:
    """The cubin that fits a device best by `rank`; None where none runs on it."""
    fitting = [one for one in cubins if not one.relocatable and runs_on(one.target, capability)]
    return max(fitting, key=lambda one: rank(one.target), default=None)


def _named(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def where(target: str) -> str:
    """The compute capabilities that machine code for a target runs on, in words.

    Returns
    -------
    str
        "9.0 alone" for "sm_90a", "8.x from 8.6 on" for "sm_86"; "unknown" where the target is.
    """
    parts = _parts(target)
    if parts is None:
        return "unknown"
    built_for, suffix = parts
    if suffix == "a" or built_for in _TEGRA:
        return f"{_named(built_for)} alone"
    return f"{built_for[0]}.x from {_named(built_for)} on"


def _needs(cubin: CubinRecord) -> str:
    """What a cubin runs on, as in "sm_90a (compute capability 9.0 alone)"."""
    if _parts(cubin.target) is None:
        return f"an unknown architecture (e_flags {cubin.flags:#010x})"
    return f"{cubin.target} (compute capability {where(cubin.target)})"


def _toolkit(text: str) -> tuple[int, int] | None:
    found = re.search(r"release (\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _too_new(cubin: CubinRecord, driver: int) -> str:
    """A sentence where the toolkit's major release is newer than the driver, else ""."""
    release = _toolkit(cubin.toolkit)
    if release is None or release[0] * 1000 <= driver:
        return ""
    branch = _BRANCH_OF.get(release[0])
    wanted = f" (driver {branch} or newer)" if branch else ""
    return (
        f"it was made by toolkit {release[0]}.{release[1]}, and the driver supports CUDA "
        f"{cuda_text(driver)}: update the driver to one for CUDA {release[0]}.0 or newer{wanted}"
    )


def why_not(
    status: int,
    cubins: tuple[CubinRecord, ...],
    ptx: tuple[PtxRecord, ...],
    capability: Capability,
    driver: int,
) -> str:
    """The reason, in plain words, for which a driver refused an image; "" where none is known.

    Parameters
    ----------
    status
        The CUresult of loading it, or of loading a kernel of it.
    cubins, ptx
        What the image holds.
    capability
        Compute capability of the device.
    driver
        What cuDriverGetVersion gives: 13000 for CUDA 13.0.

    Notes
    -----
    From what the file says; a fitting image that the driver refuses all the same has bytes that
    only its driver can judge, and that is what the sentence then says.
    """
    device = f"the device has compute capability {_named(capability)}"
    newest = f"CUDA {cuda_text(driver)}"
    too_new = next(filter(None, (_too_new(cubin, driver) for cubin in cubins)), "")
    if status in (_INSUFFICIENT_DRIVER, _NEWER_DRIVER):
        return too_new or "the driver is too old for this call: update it"
    if status not in _OF_THE_IMAGE:
        return ""
    if cubins and all(cubin.relocatable for cubin in cubins):
        return (
            "it is code to be linked (nvcc -rdc=true): link it first, with nvcc -dlink -cubin or "
            "nvlink"
        )
    if status == _NOT_FOUND:
        return ""
    if not any(one.kernels for one in cubins) and not any(one.kernels for one in ptx):
        return "it holds no kernel"
    fitting = best_cubin(cubins, capability)
    compiled = tuple(one for one in ptx if ptx_loads_on(one.target, capability))
    if fitting is None and compiled:
        versions = ", ".join(sorted({f"ISA {one.version} for {one.target}" for one in compiled}))
        cause = {
            _PTX_VERSION: f"is newer than the driver ({newest}) knows: update the driver",
            _INVALID_PTX: "the driver could not compile",
        }.get(status, f"is malformed or newer than the driver ({newest}) knows: update the driver")
        return (
            f"no machine code in it runs on this device ({_named(capability)}), and its PTX "
            f"({versions}) {cause}; or build a cubin for sm_{capability[0]}{capability[1]}"
        )
    if fitting is None:
        held = ", ".join(dict.fromkeys(_needs(cubin) for cubin in cubins if not cubin.relocatable))
        targets = ", ".join(dict.fromkeys(one.target for one in ptx))
        holds = f"it holds machine code for {held}" if held else "it holds no machine code"
        if targets:
            holds += f", and PTX for {targets}"
        return f"{holds}; {device}: build it for sm_{capability[0]}{capability[1]}"
    if too_new:
        return too_new
    if status == _PTX_VERSION:
        return f"it is of a form newer than the driver ({newest}) knows: update the driver"
    return (
        f"it has machine code for {_needs(fitting)}, {device}, and its tables are sound: its "
        "contents are damaged, or of a form that this driver does not know. Compare its SHA-256 "
        "with that of the file that was built"
    )
