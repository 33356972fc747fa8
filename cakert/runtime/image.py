"""The first look at a kernel image: that it is one, and that all of it is there.

Standard library only and a few microseconds; the store (`cakert.cubins`) checks what is inside.
"""

from __future__ import annotations

import hashlib
import struct

from cakert.errors import CubinError

__all__ = ["check_image", "check_sha256"]

_ELF_MAGIC = b"\x7fELF"
_ELF_CLASS64_LITTLE = b"\x02\x01"
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_EM_CUDA = 190
_SHT_NOBITS = 8
_FATBIN_MAGIC = 0xBA55ED50
_FATBIN_HEADER = struct.Struct("<IHHQ")


def check_sha256(data: bytes, expected: str, name: str) -> None:
    """Raise CubinError where the SHA-256 of `data` is not `expected` (hexadecimal)."""
    if not isinstance(expected, str):
        raise TypeError(f"sha256 must be a string of hexadecimal digits, got {expected!r}")
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected.lower():
        raise CubinError(
            f"{name}: SHA-256 must be {expected or '(empty)'}; the bytes have {actual}"
        )


def check_image(data: bytes, name: str) -> None:
    """Raise CubinError where `data` is no complete cubin or fatbin.

    Parameters
    ----------
    data : bytes
    name : str
        File name for the message.
    """
    if not data:
        raise CubinError(f"{name}: the image is empty (0 bytes)")
    if data.startswith(_ELF_MAGIC):
        _check_elf(data, name)
    elif len(data) >= 4 and int.from_bytes(data[:4], "little") == _FATBIN_MAGIC:
        _check_fatbin(data, name)
    elif b".version" in data[:4096] and b".target" in data[:4096]:
        raise CubinError(
            f"{name}: this is PTX text, and cakert compiles nothing at run time: assemble it with "
            "ptxas for the GPU's target and load the cubin"
        )
    else:
        raise CubinError(
            f"{name}: not a cubin (no ELF header) and no fatbin; the {len(data)} bytes start with "
            f"{data[:8]!r}"
        )


def _check_elf(data: bytes, name: str) -> None:
    if len(data) < _ELF_HEADER.size:
        raise CubinError(
            f"{name}: truncated: an ELF header has {_ELF_HEADER.size} bytes, the file {len(data)}"
        )
    # Fields by position: e_ident, type, machine, version, entry, then the two tables.
    fields = _ELF_HEADER.unpack_from(data)
    ident, machine = fields[0], fields[2]
    program_offset, section_offset = fields[5], fields[6]
    program_size, program_count, section_size, section_count = fields[9:13]
    if ident[4:6] != _ELF_CLASS64_LITTLE:
        raise CubinError(f"{name}: a cubin is a 64-bit little-endian ELF file; this one is not")
    if machine != _EM_CUDA:
        raise CubinError(
            f"{name}: an ELF file for machine {machine}; a cubin is for machine {_EM_CUDA} (CUDA)"
        )
    if section_offset == 0 or section_count == 0:
        raise CubinError(f"{name}: the ELF file has no sections, so no kernel")
    ends = [
        ("program header table", program_offset + program_size * program_count),
        ("section header table", section_offset + section_size * section_count),
    ]
    for part, end in ends:
        if end > len(data):
            raise CubinError(
                f"{name}: truncated: the {part} ends at byte {end}, the file has {len(data)}"
            )
    if section_size < _SECTION_HEADER.size:
        raise CubinError(
            f"{name}: a section header has {_SECTION_HEADER.size} bytes, here {section_size}"
        )
    for index in range(section_count):
        header = _SECTION_HEADER.unpack_from(data, section_offset + index * section_size)
        kind, offset, size = header[1], header[4], header[5]
        if kind != _SHT_NOBITS and offset + size > len(data):
            raise CubinError(
                f"{name}: truncated: section {index} ends at byte {offset + size}, the file has "
                f"{len(data)}"
            )


def _check_fatbin(data: bytes, name: str) -> None:
    if len(data) < _FATBIN_HEADER.size:
        raise CubinError(
            f"{name}: truncated: a fatbin header has {_FATBIN_HEADER.size} bytes, the file "
            f"{len(data)}"
        )
    _, _, header_size, payload_size = _FATBIN_HEADER.unpack_from(data)
    if header_size + payload_size > len(data):
        raise CubinError(
            f"{name}: truncated: the fatbin's header says {header_size + payload_size} bytes, the "
            f"file has {len(data)}"
        )
