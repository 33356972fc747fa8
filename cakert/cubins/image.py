"""Is this a cubin, and what does it say about itself.

`check_image` proves that every table of the ELF file lies inside it (cakert/cubins/elf.py) before
pyelftools or the driver follows an offset. `describe_image` reads target, kernels and toolkit.

Layout relied upon (ptxas 13.0; 12.8 for sm_100 and later): EI_OSABI 0x41, architecture in bits 8-15
of e_flags. The suffix of the target is not there (sm_90 and sm_90a have equal flags), it stands in
the command line that ptxas records in ``.note.nv.tkinfo``.

ABI 7 (ptxas 11.8 to 12.9 for sm_90a and before; compared with cuobjdump): EI_OSABI 0x33,
architecture in bits 0-7, that of the PTX in bits 16-23, bit 11 for the suffix "a", and ten times
the toolkit's release in e_version. There is no note.
"""

from __future__ import annotations

import io
import re
import struct
from typing import NamedTuple

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile
from elftools.elf.notes import iter_notes

from cakert.cubins.elf import Section, check_tables, failure, read_sections

_SHT_NOTE = 7
_EM_CUDA = 190
_OSABI_CUDA_13 = 0x41
_OSABI_CUDA_12, _ABI_7 = 0x33, 7
_ABI_7_SUFFIX_A = 1 << 11

# Numbers that bits 8-15 of e_flags may hold (architectures that toolkit 13.0 assembles for).
_KNOWN_ARCHITECTURES = frozenset({75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121})

# Likewise of toolkits 11.8 to 12.9, in ABI 7.
_ABI_7_ARCHITECTURES = frozenset({35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90})

_TKINFO_TYPE = 2000
_TKINFO_HEADER = struct.Struct("<6I")  # version, then offsets of object, tool, version, build, args


class ImageInfo(NamedTuple):
    """What a cubin says about itself.

    Attributes
    ----------
    target
        Architecture with its suffix ("sm_90a") where ``.note.nv.tkinfo`` or, in ABI 7, e_flags name
        it; the bare architecture where the note is missing; "unknown" where e_flags contradict the
        note, or hold no known number and there is no note.
    kernels
        Entry points, in file order.
    toolkit
        Assembler as it names itself ("Cuda compilation tools, release 13.0, V13.0.88"); in ABI 7
        "release 12.8"; else "unknown".
    flags
        Raw e_flags.
    """

    target: str
    kernels: tuple[str, ...]
    toolkit: str
    flags: int


def _not_elf(data: bytes) -> str:
    """Why bytes without the ELF magic are no cubin, in the user's terms."""
    if not data:
        return "the file is empty"
    if re.match(rb"\s*(//[^\n]*\n\s*)*\.version\b", data[:4096]):
        return (
            "this is PTX text (cakert run runs it on the simulator); assemble it with ptxas first"
        )
    if data[:4] == b"\x50\xed\x55\xba":
        return "this is a fatbin (cakert inspect lists it); extract the cubin with cuobjdump first"
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
        raise failure(name, _not_elf(data))
    check_tables(data, name, machine=_EM_CUDA)


def _read_tkinfo(elf: ELFFile, sections: tuple[Section, ...]) -> tuple[str, str] | None:
    """(assembler's version line, its command line) from ``.note.nv.tkinfo``, None without one."""
    section = next((one for one in sections if one.name == ".note.nv.tkinfo"), None)
    if section is None or section.type != _SHT_NOTE:
        return None
    for note in iter_notes(elf, section.offset, section.size):
        desc = note["n_descdata"]
        kind: object = note["n_type"]  # the name of a known type, the number of any other
        if kind != _TKINFO_TYPE or len(desc) < _TKINFO_HEADER.size:
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
        sections = read_sections(data)
        note = _read_tkinfo(elf, sections)
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
        raise failure(name, f"{type(problem).__name__} while reading it: {problem}") from problem
    names = [section.name for section in sections]
    present = set(names)
    kernels = tuple(
        section.removeprefix(".text.")
        for section in names
        # Only an entry point has a parameter bank; device functions have .text alone.
        if section.startswith(".text.")
        and f".nv.constant0.{section.removeprefix('.text.')}" in present
    )
    if data[7] == _OSABI_CUDA_12 and data[8] == _ABI_7:
        # From the bytes: pyelftools gives e_version as a name where it has one.
        release, tenth = divmod(int.from_bytes(data[20:24], "little"), 10)
        return ImageInfo(_target_abi_7(flags), kernels, f"release {release}.{tenth}", flags)
    toolkit, arguments = note or ("unknown", "")
    return ImageInfo(_target(data[7], flags, arguments), kernels, toolkit or "unknown", flags)


def _target(osabi: int, flags: int, arguments: str) -> str:
    architecture = flags >> 8 & 0xFF
    if osabi != _OSABI_CUDA_13:
        return "unknown"
    # The last -arch counts, as for ptxas itself.
    named = re.findall(r"-arch[ =](sm_(\d+)[af]?)(?=\s|$)", arguments)
    if not named:
        return f"sm_{architecture}" if architecture in _KNOWN_ARCHITECTURES else "unknown"
    target, number = named[-1]
    return target if int(number) == architecture else "unknown"


def _target_abi_7(flags: int) -> str:
    architecture = flags & 0xFF
    if architecture not in _ABI_7_ARCHITECTURES:
        return "unknown"
    return f"sm_{architecture}{'a' if flags & _ABI_7_SUFFIX_A else ''}"
