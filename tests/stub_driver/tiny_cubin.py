"""The smallest ELF file that reads as a cubin: sections and notes as ptxas 13.0 writes them, one
instruction-sized run of zeros as code. It is loaded and launched under the stub only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB, _SHT_NOTE, _SHT_CUDA_INFO = 1, 2, 3, 7, 0x70000000
_GLOBAL_FUNCTION, _ENTRY_POINT = 0x12, 0x10
_EM_CUDA, _OSABI = 190, 0x41
_KPARAM_INFO, _MAX_THREADS, _CTA_PER_CLUSTER, _SIZED = 0x17, 0x05, 0x3D, 0x04
_CODE = bytes(128)


def _kernel_info(
    sizes: Sequence[int], max_threads: int, cluster: tuple[int, int, int] | None
) -> bytes:
    """`.nv.info.<kernel>`: one KPARAM_INFO record a parameter, naturally aligned offsets."""
    records = struct.pack("<BBH3I", _SIZED, _MAX_THREADS, 12, max_threads, 1, 1)
    if cluster is not None:
        records += struct.pack("<BBH3I", _SIZED, _CTA_PER_CLUSTER, 12, *cluster)
    offset = 0
    for ordinal, size in enumerate(sizes):
        alignment = min(8, size & -size)
        offset += -offset % alignment
        words = (0, offset << 16 | ordinal, size << 18 | 0x1F000)
        records += struct.pack("<BBH3I", _SIZED, _KPARAM_INFO, 12, *words)
        offset += size
    return records


def _tool_note(target: str) -> bytes:
    """`.note.nv.tkinfo`: offsets of five strings, the fifth the assembler's command line."""
    strings = (
        b"",
        b"ptxas",
        b"Cuda compilation tools, release 13.0, V13.0.88",
        b"Build cuda_13.0",
        f"-arch {target} -m 64".encode(),
    )
    table, offsets = b"", []
    for text in strings:
        offsets.append(len(table))
        table += text + b"\0"
    desc = struct.pack("<6I", 2, *offsets) + table
    desc += bytes(-len(desc) % 4)
    name = b"NVIDIA Corp\0"
    return struct.pack("<3I", len(name), len(desc), 2000) + name + desc


def tiny_cubin(
    kernels: Mapping[str, Sequence[int]],
    *,
    target: str = "sm_90",
    max_threads: int = 1024,
    cluster: tuple[int, int, int] | None = None,
) -> bytes:
    """A cubin with these kernels.

    Parameters
    ----------
    kernels
        Kernel name -> sizes of its parameters in bytes.
    target
        "sm_90", "sm_100a", ...
    max_threads
        Threads a block that every kernel may be launched with.
    cluster
        Cluster that every kernel demands, in blocks.
    """
    architecture = int(target.removeprefix("sm_").rstrip("af"))
    sections: list[tuple[str, int, bytes]] = [(".note.nv.tkinfo", _SHT_NOTE, _tool_note(target))]
    for name, sizes in kernels.items():
        sections += [
            (f".text.{name}", _SHT_PROGBITS, _CODE),
            (f".nv.info.{name}", _SHT_CUDA_INFO, _kernel_info(sizes, max_threads, cluster)),
            (f".nv.constant0.{name}", _SHT_PROGBITS, bytes(0x210 + sum(sizes))),
        ]
    symbols, symbol_names = bytes(_SYMBOL.size), b"\0"
    for number, (name, _, _) in enumerate(sections, 2):  # behind the null section and the names
        if name.startswith(".text."):
            at = len(symbol_names)
            symbols += _SYMBOL.pack(at, _GLOBAL_FUNCTION, _ENTRY_POINT, number, 0, len(_CODE))
            symbol_names += name.removeprefix(".text.").encode() + b"\0"
    sections += [(".symtab", _SHT_SYMTAB, symbols), (".strtab", _SHT_STRTAB, symbol_names)]
    names = b"\0"
    table = [_SECTION.pack(*[0] * 10)]
    body = b""

    def place(data: bytes) -> int:
        nonlocal body
        body += bytes(-len(body) % 16)
        offset = _HEADER.size + len(body)
        body += data
        return offset

    name_offsets = []
    for name in (".shstrtab", *(name for name, _, _ in sections)):
        name_offsets.append(len(names))
        names += name.encode() + b"\0"
    entries = [(_SHT_STRTAB, names), *((kind, data) for _, kind, data in sections)]
    for name_offset, (kind, data) in zip(name_offsets, entries, strict=True):
        is_table = kind == _SHT_SYMTAB  # it is linked to the strings behind it
        link, size = (len(table) + 1, _SYMBOL.size) if is_table else (0, 0)
        place_of = place(data)
        table.append(_SECTION.pack(name_offset, kind, 0, 0, place_of, len(data), link, 0, 4, size))
    section_offset = place(b"".join(table))
    ident = b"\x7fELF\x02\x01\x01" + bytes([_OSABI, 8]) + bytes(7)
    flags = architecture << 8 | 0x6000004
    header = _HEADER.pack(
        ident, 2, _EM_CUDA, 1, 0, 0, section_offset, flags, 64, 56, 0, 64, len(table), 1
    )
    return header + body
