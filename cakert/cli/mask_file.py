"""A sparsity pattern from a .npy or .npz file, for `cakert explain`: read with suspicion."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.validation import MAX_LIST_ENTRIES

Array = npt.NDArray[Any]

_NAMES = ("block_mask", "q2k_indices", "q2k_num", "indptr", "indices", "kv_block_lens")
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
    with path.open("rb") as file:
        magic = file.read(6)
    try:
        if magic == b"\x93NUMPY":
            # Mapped, a header that promises more than the file has is an error, not an allocation.
            found = {"block_mask": np.load(path, mmap_mode="r", allow_pickle=False)}
        elif magic[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
            found = _arrays(path)
        else:
            raise ValueError("it is neither a .npy nor a .npz file")
        arrays = {name: _checked(name, array) for name, array in found.items()}
    except (ValueError, EOFError, KeyError, NotImplementedError, RuntimeError, SyntaxError,
            UnicodeError, zipfile.BadZipFile, zlib.error) as problem:  # fmt: skip
        raise ValueError(f"{path}: {problem}") from problem
    return PatternFile(**arrays)


def _arrays(path: Path) -> dict[str, Array]:
    """The arrays of a .npz file that have a name of ours, none larger than what is planned."""
    found: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        sizes = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for name in _NAMES:
            if name not in sizes:
                continue
            info = sizes[name]
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                shape, _, dtype = (
                    np.lib.format.read_array_header_1_0(member)
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0(member)
                )
                count = 1
                for size in shape:
                    count *= size
                _check_size(name, shape, count)
                if count * dtype.itemsize > info.file_size:
                    raise ValueError(
                        f"{name} should have {count * dtype.itemsize} bytes for shape {shape}, "
                        f"the file has {info.file_size}"
                    )
            with archive.open(info) as member:
                found[name] = np.lib.format.read_array(member, allow_pickle=False)
    if not found:
        have = ", ".join(map(ascii, sorted(sizes)[:8])) or "nothing"
        raise ValueError(
            f"it must hold block_mask, or q2k_indices, or indptr and indices; it has {have}"
        )
    return found


def _check_size(name: str, shape: tuple[int, ...], count: int) -> None:
    if count > MAX_LIST_ENTRIES:
        raise ValueError(
            f"{name} must have at most {MAX_LIST_ENTRIES} entries, got {count} in shape {shape}"
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
