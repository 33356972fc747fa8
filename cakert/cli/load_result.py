"""What `cakert load` found: records, tables and JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from cakert.cli.console import capability_text, make_table
from cakert.cli.text import printable
from cakert.errors import cuda_text
from cakert.inspect import CubinRecord, Inspection, KernelRecord, PtxRecord
from cakert.inspect.fit import best_cubin, runs_on

if TYPE_CHECKING:
    from rich.console import Console

    from cakert.cli.devices import Device
    from cakert.runtime.library import KernelAttributes, Occupancy


class Image(NamedTuple):
    """What is handed to the driver at once: a cubin, or a fatbin with all its entries."""

    title: str
    data: bytes
    cubins: tuple[CubinRecord, ...]
    ptx: tuple[PtxRecord, ...]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel as the driver has it, and as the file does (None: not in a cubin of the image).

    `problem` says why it could not be loaded, or why its occupancy could not be had.
    """

    name: str
    file: KernelRecord | None
    layout: tuple[tuple[int, int], ...] | None
    attributes: KernelAttributes | None
    threads: int
    occupancy: Occupancy | None
    problem: str


@dataclass(frozen=True)
class LoadedImage:
    """An image with its kernels; `problem` says why the driver refused it as a whole."""

    image: Image
    kernels: tuple[LoadedKernel, ...]
    problem: str

    @property
    def loaded(self) -> bool:
        """Whether the driver took it, and every kernel of it."""
        return not self.problem and all(kernel.attributes for kernel in self.kernels)


# What is shown of a kernel: heading, what the file says, what the driver says.
def _sides(kernel: LoadedKernel) -> list[tuple[str, Any, Any]]:
    file, attributes = kernel.file, kernel.attributes
    if attributes is None:
        return []
    layout = None
    if file is not None:
        layout = tuple((one.offset, one.size) for one in file.parameters)
    return [
        ("registers", file and file.registers, attributes.registers),
        ("shared_bytes", file and file.shared_bytes, attributes.shared_bytes),
        ("local_bytes", file and file.stack_bytes, attributes.local_bytes),
        ("max_threads", file and _most_threads(file), attributes.max_threads),
        ("cluster", file and file.cluster, attributes.cluster),
        ("parameters", layout, kernel.layout),
    ]


def _most_threads(file: KernelRecord) -> int | None:
    bound = file.required_threads or file.max_threads
    return None if bound is None else math.prod(bound)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple) and value and isinstance(value[0], tuple):
        return f"{len(value)}: {max(offset + size for offset, size in value)}"
    if isinstance(value, tuple):
        return "x".join(map(str, value)) if value else "none"
    return str(value)


def _cell(name: str, file: Any, driver: Any) -> str:
    """What the driver says, and what the file says where that is another value."""
    if file is None or file == driver:
        return "" if name == "cluster" and driver is None else _value(driver)
    return f"{_value(driver)} (file: {_value(file)})"


_HEADINGS = {
    "registers": "registers",
    "shared_bytes": "shared",
    "local_bytes": "local",
    "max_threads": "threads",
    "cluster": "cluster",
    "parameters": "parameters",
}


def _occupancy_text(kernel: LoadedKernel) -> str:
    occupancy = kernel.occupancy
    if occupancy is None:
        return printable(kernel.problem)
    text = f"{occupancy.blocks_per_sm} blocks of {kernel.threads}"
    return text if occupancy.clusters is None else f"{text}; {occupancy.clusters} clusters"


def _row(kernel: LoadedKernel) -> list[object]:
    name = kernel.file.demangled if kernel.file is not None else None
    cells: list[object] = [printable(name or kernel.name)]
    if kernel.attributes is None:
        return [*cells, *[""] * (len(_HEADINGS) + 1), printable(kernel.problem)]
    cells += [_cell(*side) for side in _sides(kernel)]
    return [*cells, "sm_{}{}".format(*kernel.attributes.binary_version), _occupancy_text(kernel)]


def _taken_text(image: Image, capability: tuple[int, int]) -> str:
    """Which of several entries the driver has taken, as the rules say."""
    taken = best_cubin(image.cubins, capability)
    if taken is not None:
        return f"cubin for {taken.target}"
    if image.ptx:
        return "PTX, compiled by the driver"
    return ", ".join(f"cubin for {cubin.target}" for cubin in image.cubins)


def show(console: Console, file: Inspection, device: Device, images: list[LoadedImage]) -> None:
    """Print a table for each image, or the reason for which it is not loaded."""
    capability = capability_text((device.capability,))
    title = f"{printable(file.name)} on cuda:{device.ordinal}, {device.name} ({capability})"
    console.print(Text(title, style="bold"), soft_wrap=True)
    for loaded in images:
        place = f"{loaded.image.title}: " if loaded.image.title else ""
        if loaded.problem:
            # Of one image the error line says why.
            reason = f": {loaded.problem}" if len(images) > 1 else ""
            console.print(Text(f"{place}NOT LOADED{reason}"), soft_wrap=True)
            continue
        how = "loaded" if loaded.loaded else "NOT LOADED in part"
        heading = f"{place}{how}: {_taken_text(loaded.image, device.capability)}"
        console.print(Text(heading), soft_wrap=True)
        columns = ["kernel", *_HEADINGS.values(), "code for", "on an SM"]
        rows = [_row(kernel) for kernel in loaded.kernels]
        if rows:
            console.print(make_table(f"kernels: {len(rows)}", columns, rows))


def _kernel_json(kernel: LoadedKernel) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return [plain(one) for one in value] if isinstance(value, tuple) else value

    attributes, occupancy = kernel.attributes, kernel.occupancy
    version = None if attributes is None else "{}.{}".format(*attributes.binary_version)
    return {
        "name": kernel.name,
        "demangled": None if kernel.file is None else kernel.file.demangled,
        "loaded": attributes is not None,
        "problem": kernel.problem or None,
        "binary_version": version,
        "resources": {
            name: {"file": plain(file), "driver": plain(driver)}
            for name, file, driver in _sides(kernel)
        },
        "constant_bytes": None if attributes is None else attributes.constant_bytes,
        "occupancy": None
        if occupancy is None
        else {
            "threads": kernel.threads,
            "blocks_per_sm": occupancy.blocks_per_sm,
            "clusters": occupancy.clusters,
        },
    }


def as_json(
    file: Inspection, device: Device, driver_version: int, images: list[LoadedImage]
) -> dict[str, Any]:
    """The document of ``--json``; docs/load.md describes it."""
    return {
        "schema": 1,
        "file": file.name,
        "device": {
            "ordinal": device.ordinal,
            "name": device.name,
            "capability": capability_text((device.capability,)),
        },
        "driver_cuda": cuda_text(driver_version),
        "images": [
            {
                "place": loaded.image.title or None,
                "targets": [cubin.target for cubin in loaded.image.cubins],
                "ptx_targets": [ptx.target for ptx in loaded.image.ptx],
                "fits": any(runs_on(one.target, device.capability) for one in loaded.image.cubins),
                "loaded": loaded.loaded,
                "problem": loaded.problem or None,
                "kernels": [_kernel_json(kernel) for kernel in loaded.kernels],
            }
            for loaded in images
        ],
    }
