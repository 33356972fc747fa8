"""A sparsity pattern from a .npy or .npz file, for `cakert explain`: read with suspicion."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cakert.cli.numpy_files import check_regular

Array = npt.NDArray[Any]

# Of a file, and of the lists planned from it (2 bytes each or 4): what a machine has room for.
MOST_ENTRIES = 2**30
_NAMES = ("block_mask", "q2k_indices", "q2k_num", "indptr", "indices", "kv_block_lens")
_NPY, _ZIP = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")
# What numpy and zipfile raise for damaged files.
_DAMAGE = (
    EOFError, KeyError, NotImplementedError, OSError, OverflowError, RuntimeError, SyntaxError,
    TypeError, UnicodeError, ValueError, lzma.LZMAError, struct.error, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class PatternFile:
    """Arrays as `plan_cake_vsa` takes them; None where the file has none.

    Attributes
    ----------
    block_mask
        Of 2 or 3 axes, bool.
    """

    block_mask: Array | None = None
    q2k_indices: Array | None = None
    q2k_num: Array | None = None
    indptr: Array | None = None
    indices: Array | None = None
    kv_block_lens: Array | None = None


def read_pattern(path: Path) -> PatternFile:
    """Read a file.

    Parameters
    ----------
    path
        A .npy file with a mask, or a .npz file with arrays of the names of `PatternFile`.

    Raises
    ------
    OSError
        It cannot be read.
    ValueError
        It is damaged, too large, or holds something else; names the file.
    """
    check_regular(path)
    with path.open("rb") as file:
        magic = file.read(6)
        try:
            if magic == _NPY:
                file.seek(0)
                found = {"block_mask": _array("it", file, path.stat().st_size)}
            elif magic[:4] in _ZIP:
                found = _arrays(path)
            else:
                raise ValueError("it is neither a .npy nor a .npz file")
            arrays = {name: _checked(name, array) for name, array in found.items()}
        except _DAMAGE as problem:
            raise ValueError(f"{path}: {str(problem) or type(problem).__name__}") from problem
    return PatternFile(**arrays)


def _array(name: str, file: IO[bytes], size: int) -> Array:
    """An array of .npy form, once its header promises no more than the `size` of the file."""
    version = np.lib.format.read_magic(file)
    shape, _, dtype = (
        np.lib.format.read_array_header_1_0(file)
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0(file)
    )
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are not read")
    count = 1
    for each in shape:
        count *= each
    _check_size(name, shape, count)
    if count * dtype.itemsize > size:
        raise ValueError(
            f"{name} should have {count * dtype.itemsize} bytes for shape {shape} of {dtype}, but "
            f"the file has {size}"
        )
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file that have a name of ours."""
    found: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        sizes = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in _NAMES:
            if name in sizes:
                with archive.open(sizes[name]) as member:
                    found[name] = _array(name, member, sizes[name].file_size)
    if not found:
        have = ", ".join(map(ascii, sorted(sizes)[:8])) or "nothing"
        raise ValueError(
            f"it must hold block_mask, or q2k_indices, or indptr and indices; it has {have}"
        )
    return found


def _check_size(name: str, shape: tuple[int, ...], count: int) -> None:
    if count > MOST_ENTRIES:
        raise ValueError(
            f"{name} must have at most {MOST_ENTRIES} entries, got {count} in shape {shape}"
        )
    if count == 0:
        raise ValueError(f"{name} must not be empty, got shape {shape}")


def _checked(name: str, array: Array) -> Array:
    """An array in the form that plan takes; shapes that depend on others are left to plan."""
    _check_size(name, array.shape, array.size)
    if name == "block_mask":
        if array.dtype.name not in ("bool", *_INTEGERS):
            raise ValueError(f"a mask must be bool or of integers, got {array.dtype}")
        if array.ndim not in (2, 3):
            raise ValueError(
                "a mask must have shape (heads, MB, NB), or (MB, NB) for all heads, got shape "
                f"{array.shape}"
            )
        return np.asarray(array != 0)
    if array.dtype.name not in ("int32", "int64"):
        raise ValueError(f"{name} must be int32 or int64, got {array.dtype}")
    if name.startswith("q2k"):
        axes = 3 if name == "q2k_indices" else 2
        if array.ndim != axes:
            raise ValueError(f"{name} must have {axes} axes, got shape {array.shape}")
        # Entries past a row's count may hold anything; out of range they stay.
        limits = np.iinfo(np.int32)
        return np.ascontiguousarray(array.clip(limits.min, limits.max), np.int32)
    if array.ndim != 1:
        raise ValueError(f"{name} must have one axis, got shape {array.shape}")
    return np.asarray(array)
