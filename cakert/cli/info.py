"""`cakert info`: versions, driver, devices, shipped cubins, or what is in a given cubin."""

from __future__ import annotations

import argparse
import hashlib
import platform
from importlib import metadata
from pathlib import Path

from cakert import __version__
from cakert.cli.console import capability_text, make_console, make_table
from cakert.cli.devices import Machine, look_around
from cakert.cli.text import printable
from cakert.cubins import TARGETS_OF, CubinStore, describe_image, store
from cakert.errors import MINIMUM_DRIVER, CubinError, cuda_text
from cakert.inspect.files import read_file
from cakert.inspect.fit import where

_EPILOG = """examples:
  cakert info                  versions, driver, GPUs, and the shipped cubins
  cakert info kernel.cubin     target and kernels of a cubin (cakert inspect says more)

exit status: 0 well, 1 a cubin is damaged, or a file is none, 2 wrong usage"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "info",
        help="driver, devices and cubins here, or the contents of a cubin",
        description="Without files: versions, driver, GPUs, and the shipped cubins, each of them "
        "verified against the manifest. With files: target, kernels and toolkit of each. "
        "`cakert doctor` says how to mend what does not work.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="CUBIN", help="cubin to describe")
    parser.set_defaults(run=run)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _driver_text(machine: Machine) -> str:
    if machine.driver_version is None:
        return machine.problem
    problem = f" ({machine.problem})" if machine.problem else ""
    return f"CUDA {cuda_text(machine.driver_version)}{problem}"


def _too_old(machine: Machine, cubins: CubinStore) -> str:
    """A sentence where the driver is older than the toolkit's major release, else ""."""
    major = int(cubins.toolkit["release"].split(".")[0])
    if machine.driver_version is None or machine.driver_version >= major * 1000:
        return ""
    return (
        f"this driver is too old for cubins of toolkit {cubins.toolkit['release']}: "
        f"it offers {_driver_text(machine)}, they need CUDA {major}.0 "
        f"(driver {MINIMUM_DRIVER} or newer)"
    )


def _verified(cubins: CubinStore) -> dict[str, int]:
    """Read every cubin and its PTX; returns the size of each cubin in bytes.

    Raises
    ------
    CubinError
        From the first one that is not the file that was shipped.
    """
    sizes = {}
    for entry in cubins.entries:
        sizes[entry.file] = len(cubins.read(entry))
        cubins.ptx(entry)
    return sizes


def show_installation() -> int:
    """Print versions, devices and cubins; 1 where a cubin is not what the manifest says."""
    from cakert.sim import ARCHITECTURES

    console = make_console()
    machine = look_around()
    rows: list[list[object]] = [
        ["cakert", __version__],
        ["cuda-bindings", _version("cuda-bindings")],
        ["numpy", _version("numpy")],
        ["Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"],
        ["driver", _driver_text(machine)],
    ]
    console.print(make_table("versions", ["what", "found"], rows))

    cubins = store()
    if machine.devices:
        rows = []
        for device in machine.devices:
            fitting = len(cubins.fitting(device.capability))
            note = f"{fitting} of {len(cubins.entries)}" if fitting else "none"
            capability = capability_text((device.capability,))
            rows.append([f"cuda:{device.ordinal}", device.name, capability, note])
        console.print(make_table("devices", ["device", "name", "capability", "cubins"], rows))
    if warning := _too_old(machine, cubins):
        console.print(warning, markup=False)

    sizes = _verified(cubins)
    rows = []
    for target in sorted({entry.target for entry in cubins.entries}):
        entries = [entry for entry in cubins.entries if entry.target == target]
        kernels = [kernel for entry in entries for kernel in entry.kernels]
        runs_on = tuple(c for c, targets in sorted(TARGETS_OF.items()) if target in targets)
        rows.append(
            [
                target,
                capability_text(runs_on),
                ", ".join(sorted({entry.family for entry in entries})),
                len(entries),
                max(kernel.registers for kernel in kernels),
                max(kernel.shared_bytes + kernel.static_shared_bytes for kernel in kernels) // 1024,
                sum(kernel.spill_loads + kernel.spill_stores for kernel in kernels),
                sum(sizes[entry.file] for entry in entries) // 1024,
            ]
        )
    columns = ["target", "capability", "families", "cubins", "max registers", "max shared KiB",
               "spilled bytes", "KiB"]  # fmt: skip
    title = f"{len(cubins.entries)} cubins, all as in the manifest"
    console.print(make_table(title, columns, rows))
    console.print(
        f"assembled by CUDA toolkit {cubins.toolkit['version']} ({cubins.toolkit['build']}); "
        f"supported compute capabilities: {capability_text(cubins.capabilities)}",
        markup=False,
    )
    console.print(
        f"simulator: runs the PTX of these cubins on the CPU as {', '.join(ARCHITECTURES)} "
        "(cakert demo --device sim:sm_100a)",
        markup=False,
    )
    return 0


def show_files(files: list[Path]) -> int:
    """Print what each cubin holds, and whether it is one of those that were shipped."""
    try:
        shipped = {entry.sha256: entry.file for entry in store().entries}
    except CubinError:
        shipped = {}  # describing a file needs no intact installation
    rows: list[list[object]] = []
    for path in files:
        data = read_file(path)
        info = describe_image(data, str(path))
        target = info.target
        if target == "unknown":
            target = f"unknown (e_flags {info.flags:#010x})"
        rows.append(
            [
                printable(path.name),
                target,
                where(info.target),
                "\n".join(map(printable, info.kernels)) or "none",
                printable(info.toolkit),
                shipped.get(hashlib.sha256(data).hexdigest(), "no"),
            ]
        )
    columns = ["file", "target", "runs on", "kernels", "assembled by", "shipped as"]
    make_console().print(make_table("cubins", columns, rows))
    return 0


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    return show_files(args.files) if args.files else show_installation()
