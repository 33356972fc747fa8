"""The tables of a 64-bit ELF file: proven to lie inside it, before anyone follows an offset.

`check_tables` is the gate: counts, offsets and entry sizes are held against the length of the file,
so that whoever reads on (pyelftools, the driver) cannot be sent out of it. `read_sections` is for
files that passed it. Section headers are unpacked here and not enumerated by pyelftools, which
builds a hash table's arrays (sized by the file's own word) for every section of that type.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cakert.errors import CubinError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr, 64 bytes
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr, 64 bytes
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr, 56 bytes
_SYMBOL_SIZE = 24
_SHT_SYMTAB, _SHT_STRTAB, _SHT_NOBITS = 2, 3, 8
_SHN_LORESERVE = 0xFF00

# Far above the name of any kernel; without a limit a table of names that all run to the end of the
# file would cost its length squared.
_LONGEST_NAME = 1 << 16

# ".rela.text.k" holds ".text.k": names share their ends, though no end is shared this often.
_NAME_SHARING = 16


@dataclass(frozen=True, slots=True)
class Section:
    """Header of a section, its name read; sizes and offsets in bytes.

    `data` of the file is ``file[offset : offset + size]``, except where `type` is 8 (NOBITS).
    """

    index: int
    name: str
    type: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


def failure(name: str, reason: str, what: str = "cubin") -> CubinError:
    """The error for a file that is not a usable `what`."""
    return CubinError(f"{name}: not a usable {what}: {reason}")


def check_tables(data: bytes, name: str, what: str = "cubin", machine: int | None = None) -> None:
    """Check that `data` is a 64-bit little-endian ELF file whose tables all lie inside it.

    Parameters
    ----------
    data
        The whole file; it begins with the ELF magic.
    name
        What messages call it.
    what
        What it should be, for messages.
    machine
        The only e_machine to accept; any where None.

    Raises
    ------
    CubinError
        Naming the file and the first thing found wrong.
    """
    if len(data) < _HEADER.size:
        raise failure(
            name, f"{len(data)} bytes end inside the ELF header of {_HEADER.size} bytes", what
        )
    (ident, _, actual, _, _, phoff, shoff, _, ehsize, phentsize, phnum, shentsize, shnum,
     shstrndx) = _HEADER.unpack_from(data)  # fmt: skip
    if ident[4] != 2 or ident[5] != 1:
        reason = f"expected 64-bit little-endian ELF, got class {ident[4]}, data {ident[5]}"
        raise failure(name, reason, what)
    if ident[6] != 1:
        raise failure(name, f"expected ELF ident version 1, got {ident[6]}", what)
    if machine is not None and actual != machine:
        raise failure(name, f"expected machine {machine} (CUDA), got {actual}", what)
    for table, size, expected, count in (
        ("an ELF header", ehsize, _HEADER.size, 1),
        ("a section header", shentsize, _SECTION.size, shnum),
        ("a program header", phentsize, _SEGMENT.size, phnum),
    ):
        if count and size != expected:
            raise failure(name, f"expected {table} of {expected} bytes, got {size}", what)
    if shnum == 0:
        raise failure(name, "it has no sections", what)
    _check_range(data, name, what, "section table", shoff, shnum * _SECTION.size)
    _check_range(data, name, what, "program table", phoff, phnum * _SEGMENT.size)
    _check_sections(data, name, what, shoff, shnum, shstrndx)
    for index in range(phnum):
        _, _, offset, _, _, filesz, _, _ = _SEGMENT.unpack_from(data, phoff + index * _SEGMENT.size)
        _check_range(data, name, what, f"segment {index}", offset, filesz)


def _check_range(data: bytes, name: str, what: str, table: str, offset: int, size: int) -> None:
    # Python integers do not wrap, so offset + size needs no overflow test.
    if offset + size > len(data):
        raise failure(
            name,
            f"{table} at offset {offset} with {size} bytes lies beyond the file's {len(data)} "
            "bytes (truncated or corrupted)",
            what,
        )


def _check_sections(
    data: bytes, name: str, what: str, shoff: int, shnum: int, shstrndx: int
) -> None:
    headers = [_SECTION.unpack_from(data, shoff + i * _SECTION.size) for i in range(shnum)]
    if not 0 < shstrndx < min(shnum, _SHN_LORESERVE) or headers[shstrndx][1] != _SHT_STRTAB:
        reason = f"section {shstrndx} of {shnum} is no string table for section names"
        raise failure(name, reason, what)
    names_size = headers[shstrndx][5]
    for index, header in enumerate(headers):
        sh_name, sh_type, _, _, offset, size, link, _, _, entsize = header
        if sh_type != _SHT_NOBITS:
            _check_range(data, name, what, f"section {index}", offset, size)
        if sh_name and sh_name >= names_size:
            reason = f"section {index} has its name at {sh_name} of {names_size} bytes"
            raise failure(name, reason, what)
        if sh_type == _SHT_SYMTAB and (
            entsize != _SYMBOL_SIZE or link >= shnum or headers[link][1] != _SHT_STRTAB
        ):
            reason = f"symbol table {index} has entries of {entsize} bytes, link {link}"
            raise failure(name, reason, what)


def read_string(table: bytes, offset: int) -> str:
    """The NUL-terminated string at `offset` of a string table, at most 64 KiB of it."""
    end = table.find(b"\0", offset, offset + _LONGEST_NAME)
    return table[offset : end if end >= 0 else offset + _LONGEST_NAME].decode("utf-8", "replace")


def read_sections(data: bytes) -> tuple[Section, ...]:
    """The sections of a file that passed `check_tables`, in the order of their headers.

    Raises
    ------
    ValueError
        Their names are many times longer than the table that holds them.
    """
    fields = _HEADER.unpack_from(data)
    shoff, shnum, shstrndx = fields[6], fields[12], fields[13]
    headers = [_SECTION.unpack_from(data, shoff + i * _SECTION.size) for i in range(shnum)]
    start, size = headers[shstrndx][4], headers[shstrndx][5]
    names = data[start : start + size]
    sections = []
    left = _NAME_SHARING * size
    for index, (at, kind, flags, _, offset, size, link, info, _, _) in enumerate(headers):
        name = read_string(names, at)
        left -= len(name)
        if left < 0:
            raise ValueError("its section names overlap")
        sections.append(Section(index, name, kind, flags, offset, size, link, info))
    return tuple(sections)
