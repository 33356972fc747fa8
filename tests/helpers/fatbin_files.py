"""Writers of small fatbins and host files, so that tests can lie in any field of them."""

from __future__ import annotations

import struct

import lz4.block
import zstandard

KINDS = {"ptx": 1, "elf": 2, "lto": 8}
METHODS = {"none": 0, "lz4": 1 << 13, "zstd": 1 << 15}
SUFFIXES = {"": 0, "a": 1 << 20, "f": 1 << 21}
ENTRY_FORMAT = "<HHIQIIHHIIIQQQ"


def compress(method: str, image: bytes) -> bytes:
    if method == "zstd":
        return zstandard.ZstdCompressor().compress(image)
    if method == "lz4":
        return lz4.block.compress(image, store_size=False)
    return image


def entry(
    image_kind: str,
    image: bytes,
    *,
    arch: int = 90,
    suffix: str = "",
    method: str = "none",
    file_name: bytes = b"",
    **lies: int,
) -> bytes:
    """An entry as fatbinary writes it, but for the header fields given in `lies`."""
    stored = compress(method, image)
    padded = stored + bytes(-len(stored) % 8)
    name = file_name + bytes(-len(file_name) % 8)
    fields = {
        "kind": KINDS[image_kind],
        "version": 0x101,
        "header_size": 64 + len(name),
        "size": len(padded),
        "compressed_size": 0 if method == "none" else len(stored),
        "options": 0,
        "isa_minor": 0,
        "isa_major": 9,
        "number": arch,
        "name_offset": 64 if name else 0,
        "name_size": len(file_name),
        "flags": 0x11 | METHODS[method] | SUFFIXES[suffix],
        "unread": 0,
        "decompressed_size": 0 if method == "none" else len(image),
    }
    unknown = lies.keys() - fields.keys()
    assert not unknown, unknown
    return struct.pack(ENTRY_FORMAT, *{**fields, **lies}.values()) + name + padded


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<4sHHQ", b"\x50\xed\x55\xba", 1, 16, len(body)) + body


def host_file(sections: dict[str, bytes], machine: int = 62) -> bytes:
    """A relocatable ELF file (x86-64 unless told otherwise) with these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in sections) + b".shstrtab\0"
    headers = [bytes(64)]
    body = b""
    for name, data in {**sections, ".shstrtab": names}.items():
        kind = 3 if name == ".shstrtab" else 1
        at = names.index(b"\0" + name.encode() + b"\0") + 1
        place = 64 + len(body)
        headers.append(struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, place, len(data), 0, 0, 8, 0))
        body += data + bytes(-len(data) % 8)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    counts = (64, 56, 0, 64, len(headers), len(headers) - 1)
    head = struct.pack("<16sHHIQQQI6H", ident, 1, machine, 1, 0, 0, 64 + len(body), 0, *counts)
    return head + body + b"".join(headers)


def archive(members: dict[str, bytes], **lies: bytes) -> bytes:
    """A static library as GNU ar writes it; `lies` replace the size field of the member named."""
    long_names = b"".join(name.encode() + b"/\n" for name in members if len(name) > 15)
    parts = {"/": b"index of the linker", **({"//": long_names} if long_names else {}), **members}
    file = b"!<arch>\n"
    place = 0
    for name, data in parts.items():
        field = name.encode() + (b"" if name in ("/", "//") else b"/")
        if len(field) > 16:
            field = f"/{place}".encode()
            place += len(name) + 2
        size = lies.get(name.partition(".")[0], str(len(data)).encode())
        file += field.ljust(16) + b"0".ljust(12) + b"0     0     644     " + size.ljust(10)
        file += b"`\n" + data + b"\n" * (len(data) % 2)
    return file
