"""Is this a cubin, and what does it say about itself.

`check_image` proves that every table of the ELF file lies inside it before pyelftools or the
driver follows an offset. `describe_image` reads target, kernels and toolkit.

Layout relied upon (ptxas 13.0): EI_OSABI 0x41, architecture in bits 8-15 of e_flags. The suffix of
the target is not there (sm_90 and sm_90a have equal flags), it stands in the command line that
ptxas records in ``.note.nv.tkinfo``.
"""

from __future__ import annotations

import io
import re
import struct
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from cakert.errors import CubinError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr, 64 bytes
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr, 64 bytes
_SEGMENT = struct.Struct("<IIQQQQQQ")  # Elf64_Phdr, 56 bytes
_SYMBOL_SIZE = 24
_SHT_SYMTAB, _SHT_STRTAB, _SHT_NOBITS = 2, 3, 8
_SHN_LORESERVE = 0xFF00
_EM_CUDA = 190
_OSABI_CUDA_13 = 0x41

# Numbers that bits 8-15 of e_flags may hold (architectures that toolkit 13.0 assembles for).
_KNOWN_ARCHITECTURES = frozenset({75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})

_TKINFO_TYPE = 2000
_TKINFO_HEADER = struct.Struct("<6I")  # version, then offsets of object, tool, version, build, args


class ImageInfo(NamedTuple):
    """What a cubin says about itself.

    Attributes
    ----------
    target
        Architecture with its suffix ("sm_90a") where ``.note.nv.tkinfo`` names it; the bare
        architecture where only e_flags does; "unknown" where the flags hold no known number or
        contradict the note.
    kernels
        Entry points, in file order.
    toolkit
        Assembler as it names itself ("Cuda compilation tools, release 13.0, V13.0.88"), or
        "unknown".
    flags
        Raw e_flags.
    """

    target: str
    kernels: tuple[str, ...]
    toolkit: str
    flags: int


def _fail(name: str, reason: str) -> CubinError:
    return CubinError(f"{name}: not a usable cubin: {reason}")


def _not_elf(data: bytes) -> str:
    """Why bytes without the ELF magic are no cubin, in the user's terms."""
    if not data:
        return "the file is empty"
    if re.match(rb"\s*(//[^\n]*\n\s*)*\.version\b", data[:4096]):
        return "this is PTX text; assemble it with ptxas first"
    if data[:4] == b"\x50\xed\x55\xba":
        return "this is a fatbin; extract the cubin with cuobjdump first"
    return f"no ELF header, the file begins with {data[:8]!r} ({len(data)} bytes)"


def check_image(data: bytes, name: str) -> None:
    """Check that `data` is a 64-bit CUDA ELF image whose tables all lie inside it.

    e_version, the ABI version and unknown flags are not judged: toolkits have used several.

    Parameters
    ----------
    data
        The whole file.
    name
        What messages call it.

    Raises
    ------
    CubinError
        Naming the file and the first thing found wrong.
    """
    if data[:4] != b"\x7fELF":
        raise _fail(name, _not_elf(data))
    if len(data) < _HEADER.size:
        raise _fail(name, f"{len(data)} bytes end inside the ELF header of {_HEADER.size} bytes")
    (ident, _, machine, _, _, phoff, shoff, _, ehsize, phentsize, phnum, shentsize, shnum,
     shstrndx) = _HEADER.unpack_from(data)  # fmt: skip
    if ident[4] != 2 or ident[5] != 1:
        raise _fail(
            name, f"expected 64-bit little-endian ELF, got class {ident[4]}, data {ident[5]}"
        )
    if ident[6] != 1:
        raise _fail(name, f"expected ELF ident version 1, got {ident[6]}")
    if machine != _EM_CUDA:
        raise _fail(name, f"expected machine {_EM_CUDA} (CUDA), got {machine}")
    for what, size, expected, count in (
        ("an ELF header", ehsize, _HEADER.size, 1),
        ("a section header", shentsize, _SECTION.size, shnum),
        ("a program header", phentsize, _SEGMENT.size, phnum),
    ):
        if count and size != expected:
            raise _fail(name, f"expected {what} of {expected} bytes, got {size}")
    if shnum == 0:
        raise _fail(name, "it has no sections")
    _check_range(data, name, "section table", shoff, shnum * _SECTION.size)
    _check_range(data, name, "program table", phoff, phnum * _SEGMENT.size)
    _check_sections(data, name, shoff, shnum, shstrndx)
    for index in range(phnum):
        _, _, offset, _, _, filesz, _, _ = _SEGMENT.unpack_from(data, phoff + index * _SEGMENT.size)
        _check_range(data, name, f"segment {index}", offset, filesz)


def _check_range(data: bytes, name: str, what: str, offset: int, size: int) -> None:
    # Python integers do not wrap, so offset + size needs no overflow test.
    if offset + size > len(data):
        raise _fail(
            name,
            f"{what} at offset {offset} with {size} bytes lies beyond the file's {len(data)} "
            "bytes (truncated or corrupted)",
        )


def _check_sections(data: bytes, name: str, shoff: int, shnum: int, shstrndx: int) -> None:
    headers = [_SECTION.unpack_from(data, shoff + i * _SECTION.size) for i in range(shnum)]
    if not 0 < shstrndx < min(shnum, _SHN_LORESERVE) or headers[shstrndx][1] != _SHT_STRTAB:
        raise _fail(name, f"section {shstrndx} of {shnum} is no string table for section names")
    names_size = headers[shstrndx][5]
    for index, header in enumerate(headers):
        sh_name, sh_type, _, _, offset, size, link, _, _, entsize = header
        if sh_type != _SHT_NOBITS:
            _check_range(data, name, f"section {index}", offset, size)
        if sh_name and sh_name >= names_size:
            raise _fail(name, f"section {index} has its name at {sh_name} of {names_size} bytes")
        if sh_type == _SHT_SYMTAB and (
            entsize != _SYMBOL_SIZE or link >= shnum or headers[link][1] != _SHT_STRTAB
        ):
            raise _fail(name, f"symbol table {index} has entries of {entsize} bytes, link {link}")


def _read_tkinfo(elf: ELFFile) -> tuple[str, str] | None:
    """(assembler's version line, its command line) from ``.note.nv.tkinfo``, None without one."""
    section = elf.get_section_by_name(".note.nv.tkinfo")
    if section is None or not hasattr(section, "iter_notes"):
        return None
    for note in section.iter_notes():
        desc = note["n_descdata"]
        if note["n_type"] != _TKINFO_TYPE or len(desc) < _TKINFO_HEADER.size:
            continue
        offsets = _TKINFO_HEADER.unpack_from(desc)
        strings = desc[_TKINFO_HEADER.size :]
        version, arguments = (
            strings[offsets[i] :].split(b"\0", 1)[0].decode("utf-8", "replace") for i in (3, 5)
        )
        return version, arguments
    return None


def describe_image(data: bytes, name: str = "cubin") -> ImageInfo:
    """Target, kernels and toolkit of a cubin.

    Raises
    ------
    CubinError
        As `check_image`, and where the contents of a section cannot be read.
    """
    check_image(data, name)
    try:
        elf = ELFFile(io.BytesIO(data))
        sections = [section.name for section in elf.iter_sections()]
        note = _read_tkinfo(elf)
        flags = int(elf["e_flags"])
    except (
        ELFError,
        ConstructError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        struct.error,
    ) as problem:
        # A file that passed check_image may still hold nonsense inside a section.
        raise _fail(name, f"{type(problem).__name__} while reading it: {problem}") from problem
    present = set(sections)
    kernels = tuple(
        section.removeprefix(".text.")
        for section in sections
        # Only an entry point has a parameter bank; device functions have .text alone.
        if section.startswith(".text.")
        and f".nv.constant0.{section.removeprefix('.text.')}" in present
    )
    toolkit, arguments = note or ("unknown", "")
    return ImageInfo(_target(data[7], flags, arguments), kernels, toolkit or "unknown", flags)


def _target(osabi: int, flags: int, arguments: str) -> str:
    architecture = flags >> 8 & 0xFF
    if osabi != _OSABI_CUDA_13 or architecture not in _KNOWN_ARCHITECTURES:
        return "unknown"
    # The last -arch counts, as for ptxas itself.
    named = re.findall(r"-arch[ =](sm_(\d+)[af]?)(?=\s|$)", arguments)
    if not named:
        return f"sm_{architecture}"
    target, number = named[-1]
    return target if int(number) == architecture else "unknown"
