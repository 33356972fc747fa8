"""Arrays in ``.npy`` and ``.npz`` files that nobody vouches for.

Nothing is unpickled, and no element is read before the header was: whoever opens a file knows shape
and type of what is in it, and decides whether to read on.
"""

from __future__ import annotations

import json
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from cakert.cli.argument_specs import DTYPES

Array = npt.NDArray[Any]

INFO = "__cakert__"
"""Entry of a result file that says what its arrays are: JSON in a string without axes."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_RAW_BF16 = np.dtype("V2")  # as numpy stores the arrays of ml_dtypes
_MAX_INFO_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredArray:
    """An array whose header was read.

    Attributes
    ----------
    dtype
        A key of `DTYPES` where it is one of those, else numpy's own name.
    shape
    read
        Reads the elements, C-contiguous and of the type that `dtype` names.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]


def open_array(path: Path, member: str = "") -> StoredArray:
    """Open a ``.npy`` file, or an array of a ``.npz`` file.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is not such a file, it is damaged, it holds Python objects, or `member` is missing,
        superfluous, or not in it.
    """
    _check_regular(path)
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"  # a truncated one, too, unlike zipfile.is_zipfile
    if not zipped:
        if member:
            raise ValueError(f"{path}: not an .npz file, so it has no array {member!r}")
        return _open(path, "")
    if not member:
        raise ValueError(f"{path}: an .npz file: name the array, as @{path}:NAME")
    arrays = open_arrays(path)
    if member not in arrays:
        raise ValueError(
            f"{path}: has no array {member!r}; it has {', '.join(map(repr, arrays)) or 'none'}"
        )
    return arrays[member]


def open_arrays(path: Path) -> dict[str, StoredArray]:
    """Open every array of an ``.npz`` file, by name.

    Raises
    ------
    OSError, ValueError
        As `open_array`.
    """
    _check_regular(path)
    with _damage(path), zipfile.ZipFile(path) as archive:
        entries = archive.namelist()
    names = [entry.removesuffix(".npy") for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: it holds two arrays of one name")
    types = _types(path) if INFO in names else {}
    return {
        name: _open(path, entry, types.get(name))
        for name, entry in zip(names, entries, strict=True)
        if name != INFO
    }


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: not a regular file")  # a device or a pipe may never end


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """One kind of error for whatever the readers of zip, zlib and numpy say of damaged files."""
    try:
        yield
    except (MemoryError, OSError):
        raise
    except Exception as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise ValueError(f"{path}: not a readable NumPy file: {reason}") from problem


@contextmanager
def _stream(path: Path, entry: str) -> Iterator[IO[bytes]]:
    if not entry:
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, archive.open(entry) as file:
        yield file


def _open(path: Path, entry: str, dtype: str | None = None) -> StoredArray:
    """Read a header; `dtype` is what the file says of an array that it stores as bits."""
    with warnings.catch_warnings(), _damage(path), _stream(path, entry) as file:
        # Of headers that Python 2 wrote: they are read all the same.
        warnings.simplefilter("ignore")
        version = np.lib.format.read_magic(file)
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if header is None:
            raise ValueError(f"version {version} of the format")
        shape, _, stored = header(file)
    place = f"{path}:{entry.removesuffix('.npy')}" if entry else str(path)
    if stored.hasobject:
        raise ValueError(f"{place}: it holds Python objects (pickled), which are not read")
    actual = stored.newbyteorder("=")
    if stored == _RAW_BF16 or (dtype == "bf16" and actual == np.uint16):
        actual = DTYPES["bf16"]

    def read() -> Array:
        with warnings.catch_warnings(), _damage(path), _stream(path, entry) as file:
            warnings.simplefilter("ignore")
            values = np.lib.format.read_array(file, allow_pickle=False)
        values = np.ascontiguousarray(values).reshape(shape)
        if stored.isnative or stored.itemsize == 1:
            return values.view(actual)
        return values.astype(stored.newbyteorder("=")).view(actual)

    return StoredArray(_NAMES.get(actual, actual.name), tuple(shape), read)


def _types(path: Path) -> dict[str, str]:
    """The types that a result file of ours gives for its arrays."""
    info = _open(path, f"{INFO}.npy")
    with _damage(path), zipfile.ZipFile(path) as archive:
        if archive.getinfo(f"{INFO}.npy").file_size > _MAX_INFO_BYTES or info.shape != ():
            raise ValueError(f"{INFO} is no string")
        document = json.loads(str(info.read()[()]))
        types = document["dtypes"]
        return {str(name): str(types[name]) for name in types}
