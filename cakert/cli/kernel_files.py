"""The file of ``cakert run``: its images, and the kernel that is meant, in the best of them.

Cubins, fatbins and host files are read by `cakert.inspect`; PTX stands in a file of its own, beside
a cubin, or in a fatbin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cakert.cli.text import printable
from cakert.cubins.packed import unpack
from cakert.errors import CubinError
from cakert.inspect import CubinRecord, inspect_bytes
from cakert.inspect.compression import LARGEST_IMAGE
from cakert.inspect.demangle import demangle
from cakert.inspect.fatbin import MAGIC, extract, read_ptx
from cakert.inspect.files import read_file
from cakert.inspect.fit import rank

_XZ_MAGIC = b"\xfd7zXZ\0"
_LISTED = 20


@dataclass(frozen=True)
class Image:
    """One cubin or PTX text of a file.

    Attributes
    ----------
    kind
        "cubin" or "ptx".
    target
        "sm_90a"; of a cubin "unknown" where it does not say.
    place
        Where it is, for people: "kernel.cubin", "libmine.so, image 3 (sm_90a)".
    kernels
        Symbols.
    cubin
        The record of a cubin, None of PTX.
    read
        Gives its bytes, decompressed.
    """

    kind: str
    target: str
    place: str
    kernels: tuple[str, ...]
    cubin: CubinRecord | None
    read: Callable[[], bytes]


def read_images(path: Path) -> tuple[Image, ...]:
    """The images of a file.

    Raises
    ------
    OSError
        The file cannot be read.
    CubinError
        It is no cubin, fatbin, host file with fatbins, or PTX (plain or ``.xz``), or damaged.
    ImportError
        An image is compressed, and the package that reads it is missing.
    """
    data = read_file(path)
    if data.startswith(_XZ_MAGIC):
        return (_ptx_image(_unpack(data, path), path),)
    if _is_ptx(data):
        return (_ptx_image(data, path),)
    return _binary_images(data, path)


def _is_ptx(data: bytes) -> bool:
    # A fatbin may have PTX in its first bytes, uncompressed.
    if data.startswith((b"\x7fELF", MAGIC)):
        return False
    return b".version" in data[:4096] and b".target" in data[:4096]


def _unpack(data: bytes, path: Path) -> bytes:
    try:
        text = unpack(data, LARGEST_IMAGE)
    except ValueError as problem:
        raise CubinError(f"{path}: {problem}") from problem
    if not _is_ptx(text):
        raise CubinError(f"{path}: no PTX: it has no .version and .target in its first 4096 bytes")
    return text


def _ptx_image(text: bytes, path: Path) -> Image:
    try:
        record = read_ptx(text)
    except ValueError as problem:
        raise CubinError(f"{path}: {problem}") from problem
    return Image("ptx", record.target, str(path), record.kernels, None, lambda: text)


def _binary_images(data: bytes, path: Path) -> tuple[Image, ...]:
    file = inspect_bytes(data, str(path))
    if file.cubin is not None:
        kernels = tuple(kernel.name for kernel in file.cubin.kernels)
        return (Image("cubin", file.cubin.target, str(path), kernels, file.cubin, lambda: data),)
    images = []
    count = 0
    for fatbin in file.fatbins:
        for number, entry in enumerate(fatbin.entries):
            count += 1
            read = functools.partial(extract, data, str(path), fatbin, number)
            place = f"{path}, image {count} ({entry.arch})"
            if entry.cubin is not None:
                target = entry.arch if entry.cubin.target == "unknown" else entry.cubin.target
                kernels = tuple(kernel.name for kernel in entry.cubin.kernels)
                images.append(Image("cubin", target, place, kernels, entry.cubin, read))
            elif entry.ptx is not None:
                target, kernels = entry.ptx.target, entry.ptx.kernels
                images.append(Image("ptx", target, place, kernels, None, read))
    if not images:
        raise CubinError(f"{path}: it holds neither a cubin nor PTX")
    return tuple(images)


def ptx_beside(path: Path) -> Image | None:
    """The PTX beside a cubin, as ``name.ptx`` or ``name.ptx.xz``; None without one."""
    for suffix in (".ptx", ".ptx.xz"):
        beside = path.with_suffix(suffix)
        if beside != path and beside.exists():
            (image,) = read_images(beside)
            return image
    return None


# --- which image ----------------------------------------------------------------------------------


def targets_text(images: Iterable[Image]) -> str:
    """What there is: "cubins for sm_80, sm_90a; PTX for sm_90"."""
    parts = []
    for kind, title in (("cubin", "cubins for "), ("ptx", "PTX for ")):
        targets = sorted({image.target for image in images if image.kind == kind})
        if targets:
            parts.append(title + ", ".join(map(printable, targets)))
    return "; ".join(parts) or "nothing"


# --- which kernel ---------------------------------------------------------------------------------


def choose(images: tuple[Image, ...], kernel: str | None, path: Path) -> tuple[Image, str]:
    """The kernel that is meant, and the best of the images that hold it.

    Parameters
    ----------
    images
        Those that fit the device.
    kernel
        A symbol, a C++ name, or the beginning of one; None where there is one kernel only.

    Raises
    ------
    ValueError
        It names no kernel, or several; lists those that there are.
    """
    names = list(dict.fromkeys(name for image in images for name in image.kernels))
    symbol = find_kernel(names, kernel, path)
    holders = [image for image in images if symbol in image.kernels]
    return max(holders, key=lambda image: rank(image.target)), symbol


def find_kernel(names: list[str], wanted: str | None, path: Path) -> str:
    """The symbol that `wanted` means, exact spellings before beginnings.

    Raises
    ------
    ValueError
        As `choose`.
    """
    if not names:
        raise ValueError(f"{path}: there is no kernel in it")
    if wanted is None:
        if len(names) > 1:
            raise ValueError(
                f"{path}: there are {len(names)} kernels, name one of them: {_listing(names)}"
            )
        return names[0]
    if wanted in names:
        return wanted
    spellings = {name: demangle(name) or name for name in names}
    exact = [name for name, spelling in spellings.items() if spelling == wanted]
    found = exact or [
        name
        for name, spelling in spellings.items()
        if wanted and (name.startswith(wanted) or spelling.startswith(wanted))
    ]
    # "void scale<float>(...)": people leave the type of the result out.
    found = found or [
        name
        for name, spelling in spellings.items()
        if wanted and spelling.partition(" ")[2].startswith(wanted)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{path}: {wanted!r} names {len(found)} kernels: {_listing(found)}")
    raise ValueError(f"{path}: there is no kernel {wanted!r}; there are: {_listing(names)}")


def _listing(names: list[str]) -> str:
    shown = [printable(demangle(name) or name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        shown.append(f"and {len(names) - _LISTED} more")
    return "; ".join(shown)
