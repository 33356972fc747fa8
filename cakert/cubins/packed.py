"""PTX as it stands beside a cubin: one xz stream, unpacked within bounds."""

from __future__ import annotations

import lzma

LARGEST_PTX = 64 << 20
"""Bytes; a hundred times what the largest kernel of the package has."""

_LARGEST_DICTIONARY = 128 << 20  # what a decoder may take; preset 9 needs 65 MiB


def unpack(packed: bytes, limit: int = LARGEST_PTX) -> bytes:
    """The bytes of exactly one xz stream.

    Parameters
    ----------
    limit
        Most bytes that it may give.

    Raises
    ------
    ValueError
        It is no such stream, ends early, has bytes behind it, or gives more than `limit`.
    """
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_LARGEST_DICTIONARY)
    try:
        data = decoder.decompress(packed, max_length=limit + 1)
    except (lzma.LZMAError, EOFError) as problem:
        raise ValueError(f"not valid xz: {problem}") from problem
    if len(data) > limit:
        raise ValueError(f"not valid xz of PTX: it unpacks to more than {limit} bytes")
    if not decoder.eof:
        raise ValueError(
            f"not valid xz: truncated, it ends after {len(packed)} bytes, inside the stream"
        )
    if decoder.unused_data:
        raise ValueError(f"not valid xz: {len(decoder.unused_data)} bytes behind its end")
    return data
