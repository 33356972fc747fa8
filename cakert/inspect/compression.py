"""Decompression of a fatbin's images, bounded by the size that their header promises.

A header that lies is refused and never followed: the promise itself is limited, first absolutely,
then by what the format can reach from the bytes that are there, and the result must have exactly
the promised size.
"""

from __future__ import annotations

# A hundred times the largest image seen (2.4 MB, in cuRAND 10.4), and what the tool may take.
LARGEST_IMAGE = 300_000_000

# What one byte can become: a zstd block holds at most 128 KiB and takes at least 4 bytes (3 header,
# 1 repeated byte); an LZ4 length grows by 255 a byte. Rounded up, for the frames around them.
_HIGHEST_RATIO = {"zstd": 1 << 15, "lz4": 256}


def decompress(method: str, packed: bytes, size: int) -> bytes:
    """`packed` decompressed.

    Parameters
    ----------
    method
        "zstd" (one frame) or "lz4" (one block without a frame).
    packed
        The compressed bytes, without padding.
    size
        Bytes that must come out.

    Raises
    ------
    ValueError
        The size is impossible, or the data is corrupted or of another size.
    ImportError
        The package for this method is not installed.
    """
    if size > LARGEST_IMAGE:
        raise ValueError(f"{size} bytes decompressed are more than the limit of {LARGEST_IMAGE}")
    if size > len(packed) * _HIGHEST_RATIO[method]:
        raise ValueError(f"{len(packed)} bytes of {method} cannot hold the {size} bytes promised")
    if size == 0:
        raise ValueError("compressed, but with 0 bytes promised")
    data = _zstd(packed, size) if method == "zstd" else _lz4(packed, size)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes decompressed, {size} bytes promised")
    return data


def _missing(method: str) -> ImportError:
    return ImportError(f"compressed with {method}; to read it: pip install 'cakert[inspect]'")


def _zstd(packed: bytes, size: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise _missing("zstd") from None
    try:
        # A frame allocates what it says it holds, whatever the limit given to `decompress`.
        promised = zstandard.frame_content_size(packed)
        if promised not in (-1, size):
            raise ValueError(f"a frame of {promised} bytes, {size} bytes promised")
        return bytes(zstandard.ZstdDecompressor().decompress(packed, max_output_size=size))
    except zstandard.ZstdError as problem:
        raise ValueError(f"not valid zstd: {problem}") from problem


def _lz4(packed: bytes, size: int) -> bytes:
    try:
        import lz4.block
    except ImportError:
        raise _missing("lz4") from None
    try:
        return bytes(lz4.block.decompress(packed, uncompressed_size=size))
    except lz4.block.LZ4BlockError as problem:
        raise ValueError(f"not valid LZ4: {problem}") from problem
