"""`cakert load`: load a file on a GPU and show what the driver makes of each kernel, or why not."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cakert.cli.console import capability_text, counting_progress, make_console
from cakert.cli.load_result import Image, LoadedImage, LoadedKernel, as_json, show
from cakert.cli.options import extents, gpu, size
from cakert.cli.text import printable
from cakert.errors import CudaError, cuda_text
from cakert.inspect import Inspection, KernelRecord, inspect_bytes
from cakert.inspect.files import read_file
from cakert.inspect.fit import best_cubin, why_not

if TYPE_CHECKING:
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
    if not machine.devices:
        raise RuntimeError(
            f"a GPU is needed to load a file: {machine.problem} (`cakert inspect` needs none)"
        )
    assert machine.driver_version is not None  # who sees devices has asked it
    return machine.device(ordinal), machine.driver_version


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
