"""A file of any kind that holds cubins -> `Inspection`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cakert.cubins.elf import check_tables, failure, read_sections
from cakert.cubins.image import check_image
from cakert.errors import CubinError
from cakert.inspect import archive
from cakert.inspect.cubin import inspect_cubin
from cakert.inspect.fatbin import MAGIC, extract, read_fatbins
from cakert.inspect.records import Fatbin, Inspection

_EM_CUDA = 190
_SHT_NOBITS = 8

# Where nvcc puts them in host files: linked code, and code that nvlink is still to link.
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


def inspect_bytes(data: bytes, name: str) -> Inspection:
    """What is in a cubin, a fatbin, or a host file with fatbins (object, program, archive, ...).

    Parameters
    ----------
    data
        The whole file.
    name
        What the result and messages call it.

    Raises
    ------
    CubinError
        It is none of these, or malformed; names the file and the reason.
    ImportError
        It is compressed, and the package that reads it is not installed (``cakert[inspect]``).
    """
    if data[:4] == MAGIC:
        return Inspection(name, "fatbin", len(data), None, read_fatbins(data, name))
    if data[:8] == archive.MAGIC:
        return Inspection(name, "archive", len(data), None, _fatbins_of_archive(data, name))
    if data[:8] == archive.THIN_MAGIC:
        reason = "a thin archive has the names of its members and not their bytes"
        raise failure(name, reason, "archive")
    if _is_host(data):
        fatbins = _fatbins_of_host(data, name)
        if not fatbins:
            reason = f"this ELF file has no section {' or '.join(_FATBIN_SECTIONS)}"
            raise failure(name, f"{reason}, so it embeds no GPU code", "host file")
        return Inspection(name, "host", len(data), None, fatbins)
    check_image(data, name)
    return Inspection(name, "cubin", len(data), inspect_cubin(data, name), ())


def _is_host(data: bytes) -> bool:
    """Whether it is an ELF file of another machine than a GPU."""
    machine = data[18:20]
    return (
        data[:4] == b"\x7fELF"
        and len(machine) == 2
        and int.from_bytes(machine, "little") != _EM_CUDA
    )


def _fatbins_of_host(data: bytes, name: str) -> tuple[Fatbin, ...]:
    check_tables(data, name, "host file")
    fatbins: list[Fatbin] = []
    try:
        sections = read_sections(data)
    except ValueError as problem:
        raise failure(name, str(problem), "host file") from problem
    for section in sections:
        if section.name in _FATBIN_SECTIONS and section.type != _SHT_NOBITS and section.size:
            part = data[section.offset : section.offset + section.size]
            fatbins += read_fatbins(part, name, section.name, section.offset)
    return tuple(fatbins)


def _fatbins_of_archive(data: bytes, name: str) -> tuple[Fatbin, ...]:
    """Those of all members; members without any, and of another kind, are passed over."""
    try:
        members = archive.read_members(data)
    except ValueError as problem:
        raise failure(name, str(problem), "archive") from problem
    fatbins: list[Fatbin] = []
    for member in members:
        part = data[member.offset : member.offset + member.size]
        if not _is_host(part):
            continue
        # Of a file that may be damaged: one line, and nothing that steers a terminal.
        title = member.name if member.name.isprintable() else ascii(member.name)
        for fatbin in _fatbins_of_host(part, f"{name}({title})"):
            offset = member.offset + fatbin.offset
            fatbins.append(replace(fatbin, offset=offset, member=member.name))
    if not fatbins:
        reason = f"no member has a section {' or '.join(_FATBIN_SECTIONS)}"
        raise failure(name, f"{reason}, so it embeds no GPU code", "archive")
    return tuple(fatbins)


def cubin_images(data: bytes, file: Inspection) -> Iterator[bytes]:
    """The bytes of each cubin of a file, decompressed, in the order of ``file.cubins``.

    Parameters
    ----------
    data
        What `file` was read from.

    Raises
    ------
    CubinError, ImportError
        As `inspect_bytes`.
    """
    if file.cubin is not None:
        yield data
    for fatbin in file.fatbins:
        for number, entry in enumerate(fatbin.entries):
            if entry.cubin is not None:
                yield extract(data, file.name, fatbin, number)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file: a device or a pipe may never end.

    Raises
    ------
    OSError
        The file cannot be read.
    CubinError
        It is something else than a regular file.
    """
    file = Path(path)
    if not stat.S_ISREG(file.stat().st_mode):
        raise CubinError(f"{file}: not a regular file")
    return file.read_bytes()


def inspect_file(path: str | os.PathLike[str]) -> Inspection:
    """As `inspect_bytes`, from a file.

    Raises
    ------
    OSError
        The file cannot be read.
    CubinError, ImportError
        As `inspect_bytes`.
    """
    return inspect_bytes(read_file(path), os.fspath(path))
