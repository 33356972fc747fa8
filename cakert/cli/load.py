"""`cakert load`: load a file on a GPU and show what the driver makes of each kernel, or why not."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from cakert.cli.console import (
    capability_text,
    counting_progress,
    make_console,
    make_table,
)
from cakert.cli.devices import cuda_text
from cakert.cli.options import extents, gpu, size
from cakert.cli.text import printable
from cakert.errors import CudaError
from cakert.inspect import CubinRecord, Inspection, KernelRecord, PtxRecord, inspect_bytes
from cakert.inspect.files import read_file
from cakert.inspect.fit import best_cubin, runs_on, why_not

if TYPE_CHECKING:
    from rich.console import Console

    from cakert.cli.devices import Device
    from cakert.runtime.library import Kernel, KernelAttributes, Library, Occupancy

_EPILOG = """examples:
  cakert load kernel.cubin                     every kernel of it, on the first GPU
  cakert load kernel.cubin --block 256 --shared 65536
  cakert load libmine.so --device 1 --json     every image that the library embeds

exit status: 0 every kernel of every image was loaded, 1 one was not, 2 wrong usage"""

_THREADS = 256
"""Threads a block for occupancy, where neither the user nor the kernel names a number."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = commands.add_parser(
        "load",
        help="load a cubin, a fatbin or a library's images on a GPU, or say why that fails",
        description="Loads the file through the CUDA driver, resolves every kernel, and shows "
        "what the driver reports beside what the file says, with occupancy. Where the driver "
        "refuses it, says why in plain words. Nothing is launched. Sizes are bytes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="cubin, fatbin, or host file that embeds fatbins")
    add("--device", type=gpu, default=0, metavar="N", help="GPU: 1 or cuda:1 (default: 0)")
    add(
        "--block",
        type=extents,
        metavar="X[,Y[,Z]]",
        help="threads a block for the occupancy (default: as many as the kernel is built for, else "
        f"{_THREADS})",
    )
    add(
        "--shared",
        type=size,
        default=0,
        metavar="BYTES",
        help="dynamic shared memory of a block for the occupancy (default: 0)",
    )
    add(
        "--cluster",
        type=extents,
        metavar="X[,Y[,Z]]",
        help="blocks of a cluster for the occupancy (default: what the kernel demands)",
    )
    add("--json", action="store_true", help="print JSON (docs/load.md)")
    parser.set_defaults(run=run)


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


def images_of(data: bytes, file: Inspection) -> list[Image]:
    """What of a file the driver is given, in its order."""
    if file.cubin is not None:
        return [Image("", data, (file.cubin,), ())]
    images = []
    for number, fatbin in enumerate(file.fatbins, 1):
        cubins = tuple(entry.cubin for entry in fatbin.entries if entry.cubin is not None)
        ptx = tuple(entry.ptx for entry in fatbin.entries if entry.ptx is not None)
        place = f"{number}: {printable(fatbin.place)}"
        part = data[fatbin.offset : fatbin.offset + fatbin.size]
        images.append(Image(place, part, cubins, ptx))
    return images


class Loader:
    """Loads images on one device, with the geometry that occupancy is asked for."""

    def __init__(self, device: Device, driver_version: int, args: argparse.Namespace) -> None:
        self.device = device
        self.driver_version = driver_version
        self.args = args

    def _reason(self, image: Image, problem: CudaError) -> str:
        reason = why_not(
            problem.status, image.cubins, image.ptx, self.device.capability, self.driver_version
        )
        call = f"{problem.call}: {problem.name} ({problem.status})"
        return f"{call}: {reason or problem.hint or 'no reason is known'} ({self._facts(image)})"

    def _facts(self, image: Image) -> str:
        """What a report of the failure needs to name, whatever its reason."""
        held = [f"{one.target} by {printable(one.toolkit)}" for one in image.cubins]
        held += [f"PTX {one.version} for {one.target}" for one in image.ptx]
        versions = f"driver for CUDA {cuda_text(self.driver_version)}"
        capability = capability_text((self.device.capability,))
        code = ", ".join(dict.fromkeys(held)) or "neither a cubin nor PTX"
        return f"file: {code}; {versions}; device: {capability}"

    def load(self, image: Image) -> LoadedImage:
        """Load an image and each kernel of it; what the driver refuses is a result."""
        from cakert.runtime.library import Library

        try:
            library = Library(image.data)
        except CudaError as problem:
            return LoadedImage(image, (), self._reason(image, problem))
        taken = best_cubin(image.cubins, self.device.capability)
        records = {kernel.name: kernel for kernel in taken.kernels} if taken is not None else {}
        kernels = tuple(self._load(image, library, name, records.get(name)) for name in library)
        return LoadedImage(image, kernels, "")

    def _load(
        self, image: Image, library: Library, name: str, record: KernelRecord | None
    ) -> LoadedKernel:
        ordinal = self.device.ordinal
        try:
            kernel = library[name]
            kernel.load_on(ordinal)
            attributes = kernel.attributes(ordinal)
            layout = kernel.param_layout
        except CudaError as problem:
            reason = self._reason(image, problem)
            return LoadedKernel(name, record, None, None, 0, None, reason)
        block = self.args.block or self._own_block(record, attributes)
        occupancy, problem_text = self._occupancy(kernel, block)
        threads = math.prod(block)
        return LoadedKernel(name, record, layout, attributes, threads, occupancy, problem_text)

    def _own_block(
        self, record: KernelRecord | None, attributes: KernelAttributes
    ) -> tuple[int, ...]:
        """What the kernel was built for; of its bounds the block of most threads."""
        if record is not None and record.required_threads is not None:
            return record.required_threads
        if record is not None and record.max_threads is not None:
            return (min(math.prod(record.max_threads), attributes.max_threads),)
        return (min(_THREADS, attributes.max_threads),)

    def _occupancy(self, kernel: Kernel, block: tuple[int, ...]) -> tuple[Occupancy | None, str]:
        try:
            return (
                kernel.occupancy(block, self.args.shared, self.args.cluster, self.device.ordinal),
                "",
            )
        except (CudaError, ValueError) as problem:
            return None, f"no occupancy: {problem}"


def find_device(ordinal: int) -> tuple[Device, int]:
    """A GPU and the driver's version; RuntimeError with the reason where there is no such GPU."""
    from cakert.cli.devices import look_around

    machine = look_around()
    for device in machine.devices:
        if device.ordinal == ordinal:
            assert machine.driver_version is not None  # who sees devices has asked it
            return device, machine.driver_version
    if machine.devices:
        raise RuntimeError(
            f"--device {ordinal}: must be in [0, {len(machine.devices)}), the GPUs of this machine"
        )
    raise RuntimeError(
        f"a GPU is needed to load a file: {machine.problem} (`cakert inspect` needs none)"
    )


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


def run(args: argparse.Namespace) -> int:
    """Entry of the sub-command."""
    # The file first: what is wrong with it is to be heard on a machine without a GPU as well.
    data = read_file(args.file)
    file = inspect_bytes(data, str(args.file))
    device, driver_version = find_device(args.device)
    loader = Loader(device, driver_version, args)
    console = make_console()
    images = []
    parts = images_of(data, file)
    with counting_progress(console, "loading", "images", disable=args.json) as progress:
        for done, image in enumerate(parts):
            progress(done, len(parts))
            images.append(loader.load(image))
    if args.json:
        print(json.dumps(as_json(file, device, driver_version, images), indent=2))
    else:
        show(console, file, device, images)
    failed = [one for one in images if not one.loaded]
    if not failed:
        return 0
    what = f"{len(failed)} of {len(images)} images" if len(images) > 1 else "the image"
    reasons = [failed[0].problem, *(kernel.problem for kernel in failed[0].kernels)]
    reason = next(filter(None, reasons))
    error = printable(f"cakert: error: {args.file}: {what} not loaded: {reason}")
    print(error, file=sys.stderr)
    return 1
