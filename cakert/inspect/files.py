"""A file of any kind that holds cubins -> `Inspection`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cakert.cubins.elf import check_tables, failure, read_sections
from cakert.cubins.image import check_image
from cakert.errors import CubinError
from cakert.inspect.cubin import inspect_cubin
from cakert.inspect.fatbin import MAGIC, read_fatbins
from cakert.inspect.records import Fatbin, Inspection

_EM_CUDA = 190
_SHT_NOBITS = 8

# Where nvcc puts them in host files: linked code, and code that nvlink is still to link.
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


def inspect_bytes(data: bytes, name: str) -> Inspection:
    """What is in a cubin, a fatbin, or a host ELF file (object, library, program) with fatbins.

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
    machine = data[18:20]
    if data[:4] == b"\x7fELF" and machine and int.from_bytes(machine, "little") != _EM_CUDA:
        return _inspect_host(data, name)
    check_image(data, name)
    return Inspection(name, "cubin", len(data), inspect_cubin(data, name), ())


def _inspect_host(data: bytes, name: str) -> Inspection:
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
    if not fatbins:
        reason = f"this ELF file has no section {' or '.join(_FATBIN_SECTIONS)}"
        raise failure(name, f"{reason}, so it embeds no GPU code", "host file")
    return Inspection(name, "host", len(data), None, tuple(fatbins))


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
