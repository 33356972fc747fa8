"""Fatbins: the container that nvcc puts cubins and PTX into.

NVIDIA publishes no layout. This one was read off files that nvcc and fatbinary 13.0 wrote from one
kernel with one option changed at a time (target, ``-compress-mode``, ``-G``, ``-rdc``), beside
``cuobjdump -lelf -lptx``. All numbers are little-endian:

* fatbin: u32 magic 0xBA55ED50, u16 version 1, u16 size of this header (16), u64 bytes that follow.
* entry: u16 kind (1 PTX, 2 ELF, 8 LTO), u16 version 0x101, u32 size of this header, u64 bytes of
  the image with its padding, u32 compressed bytes (0 where not compressed), u32 unread, 2 x u16 ISA
  version (of PTX: minor, major), u32 architecture number, u32 offset of the file name, u32 its
  length, u64 flags, u64 unread, u64 decompressed bytes.
* flags: bit 13 LZ4, bit 15 zstd, bit 20 suffix "a", bit 21 suffix "f".
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from cakert.cubins.elf import failure
from cakert.errors import CubinError
from cakert.inspect.compression import decompress
from cakert.inspect.cubin import inspect_cubin
from cakert.inspect.records import Fatbin, FatbinEntry, PtxRecord

MAGIC = b"\x50\xed\x55\xba"

_FATBIN = struct.Struct("<4sHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")  # 64 bytes
_VERSION, _ENTRY_VERSION = 1, 0x101
_KINDS = {1: "ptx", 2: "elf", 8: "lto"}
_LZ4, _ZSTD = 1 << 13, 1 << 15
_SUFFIX = {0: "", 1 << 20: "a", 1 << 21: "f"}

# Enough for the directives: they stand at the top. Entry points are looked for in the whole text.
_PTX_HEAD = 1 << 16
_PTX_VERSION = re.compile(rb"^[ \t]*\.version\s+(\d+\.\d+)", re.MULTILINE)
_PTX_TARGET = re.compile(rb"^[ \t]*\.target\s+(\w+)", re.MULTILINE)
_NOT_ZERO = re.compile(rb"[^\0]")
_PTX_ENTRY = re.compile(rb"\.entry\s+([\w$%]+)")


class _Header(NamedTuple):
    """The header of an entry."""

    kind: int
    version: int
    header_size: int
    size: int
    compressed_size: int
    options: int
    isa_minor: int
    isa_major: int
    number: int
    name_offset: int
    name_size: int
    flags: int
    unread: int
    decompressed_size: int


def read_fatbins(data: bytes, name: str, section: str = "", start: int = 0) -> tuple[Fatbin, ...]:
    """The fatbins in `data`, one after the other, with nothing but zeros between them.

    Parameters
    ----------
    data
        A fatbin file, or the section of a host file that holds fatbins.
    name
        What messages call it.
    section, start
        What the records are to say of their place: section, and offset of `data` in the file.

    Raises
    ------
    CubinError
        Naming the file and the first thing found wrong.
    ImportError
        An image is compressed and the package that reads it is not installed.
    """
    fatbins = []
    offset = 0
    while found := _NOT_ZERO.search(data, offset):
        offset = found.start()
        fatbin = _read_fatbin(data, name, section, offset)
        fatbins.append(Fatbin(section, start + offset, fatbin[0], fatbin[1]))
        offset += fatbin[0]
    if not fatbins:
        raise failure(name, "it holds nothing but zeros", "fatbin")
    return tuple(fatbins)


def _read_fatbin(
    data: bytes, name: str, section: str, offset: int
) -> tuple[int, tuple[FatbinEntry, ...]]:
    """Size in the file, and the entries, of the fatbin that begins at `offset`."""
    place = f"the fatbin at offset {offset}" + (f" of {section}" if section else "")
    left = len(data) - offset
    if left < _FATBIN.size:
        raise failure(name, f"{place} ends inside its header ({left} bytes left)", "fatbin")
    magic, version, header_size, size = _FATBIN.unpack_from(data, offset)
    if magic != MAGIC:
        raise failure(name, f"{place} begins with {magic!r}, expected {MAGIC!r}", "fatbin")
    if version != _VERSION or header_size < _FATBIN.size:
        reason = f"{place} has version {version} and a header of {header_size} bytes"
        raise failure(name, f"{reason}, expected 1 and 16", "fatbin")
    if header_size + size > left:
        reason = f"{place} has {header_size} + {size} bytes, {left} are left"
        raise failure(name, f"{reason} (truncated or corrupted)", "fatbin")
    entries: list[FatbinEntry] = []
    at, end = offset + header_size, offset + header_size + size
    view = memoryview(data)  # a slice of bytes for each entry would copy all that follow it
    while at < end:
        title = f"entry {len(entries)} of {place}"
        try:
            entry, used = _read_entry(view[at:end], f"{name}: {title}")
        except ImportError as problem:
            raise ImportError(f"{name}: {title} is {problem}") from None
        except CubinError:
            raise
        except ValueError as problem:
            raise failure(name, f"{title}: {problem}", "fatbin") from problem
        entries.append(entry)
        at += used
    return header_size + size, tuple(entries)


def extract(data: bytes, name: str, fatbin: Fatbin, number: int) -> bytes:
    """The bytes of one image, decompressed; of PTX without the zeros behind the text.

    Parameters
    ----------
    data
        The whole file that `fatbin` was read from.
    name
        What messages call it.
    number
        Index in ``fatbin.entries``.

    Raises
    ------
    CubinError
        The file is no longer the one that was read.
    ImportError
        As `read_fatbins`.
    """
    view = memoryview(data)[fatbin.offset : fatbin.offset + fatbin.size]
    try:
        at = _FATBIN.unpack_from(view)[2]
        for _ in range(number):
            header = _read_header(view[at:])
            at += header.header_size + header.size
        return _read_image(view[at:], _read_header(view[at:]))
    except (struct.error, ValueError) as problem:
        raise failure(name, f"entry {number}: {problem}", "fatbin") from problem


def _read_header(data: memoryview) -> _Header:
    """The header of the entry at the beginning of `data`; the entry lies inside it."""
    if len(data) < _ENTRY.size:
        raise ValueError(f"its header ends after {len(data)} of {_ENTRY.size} bytes")
    header = _Header(*_ENTRY.unpack_from(data))
    if header.version != _ENTRY_VERSION or header.header_size < _ENTRY.size:
        raise ValueError(
            f"expected version 0x101 and a header of 64 bytes or more, got version "
            f"{header.version:#x} and {header.header_size} bytes"
        )
    if header.header_size + header.size > len(data):
        raise ValueError(
            f"{header.header_size} + {header.size} bytes, {len(data)} are left "
            "(truncated or corrupted)"
        )
    if header.name_size and header.name_offset + header.name_size > header.header_size:
        raise ValueError("its file name lies beyond its header")
    return header


def _read_image(data: memoryview, header: _Header) -> bytes:
    compression, stored = _stored(header)
    image = bytes(data[header.header_size : header.header_size + stored])
    kind = _KINDS.get(header.kind, "unknown")
    # What else there is besides cubins and PTX is not read, so there is nothing to decompress.
    if kind in ("elf", "ptx") and compression != "none":
        image = decompress(compression, image, header.decompressed_size)
    return image.rstrip(b"\0") if kind == "ptx" else image


def _read_entry(data: memoryview, name: str) -> tuple[FatbinEntry, int]:
    """The entry at the beginning of `data`, and the bytes that it takes."""
    header = _read_header(data)
    image = _read_image(data, header)
    compression, stored = _stored(header)
    kind = _KINDS.get(header.kind, "unknown")
    file_name = bytes(data[header.name_offset : header.name_offset + header.name_size])
    entry = FatbinEntry(
        kind=kind,
        arch=_arch(header),
        compression=compression,
        stored_size=stored,
        size=len(image) if kind in ("elf", "ptx") else header.decompressed_size or stored,
        file_name=file_name.decode("utf-8", "replace"),
        cubin=inspect_cubin(image, name) if kind == "elf" else None,
        ptx=read_ptx(image) if kind == "ptx" else None,
    )
    return entry, header.header_size + header.size


def _stored(header: _Header) -> tuple[str, int]:
    """How the image is compressed, and the bytes it takes without padding."""
    method = {0: "none", _LZ4: "lz4", _ZSTD: "zstd"}.get(header.flags & (_LZ4 | _ZSTD))
    if method is None:
        raise ValueError(f"flags {header.flags:#x} name two compressions")
    if method == "none":
        return method, header.size
    if header.compressed_size > header.size:
        raise ValueError(f"{header.compressed_size} compressed bytes in {header.size}")
    return method, header.compressed_size


def _arch(header: _Header) -> str:
    suffix = _SUFFIX.get(header.flags & (1 << 20 | 1 << 21))
    if suffix is None:
        raise ValueError(f"flags {header.flags:#x} name two suffixes of the architecture")
    return f"{'sm' if header.kind == 2 else 'compute'}_{header.number}{suffix}"


def read_ptx(text: bytes) -> PtxRecord:
    """Version, target and entry points of PTX.

    Raises
    ------
    ValueError
        It has no ``.version`` and ``.target`` at its top.
    """
    head = text[:_PTX_HEAD]
    version, target = _PTX_VERSION.search(head), _PTX_TARGET.search(head)
    if version is None or target is None:
        raise ValueError(f"no PTX: it has no .version and .target, it begins with {text[:16]!r}")
    return PtxRecord(
        version=version[1].decode(),
        target=target[1].decode(),
        kernels=tuple(match.decode() for match in _PTX_ENTRY.findall(text)),
    )
