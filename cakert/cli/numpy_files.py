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
_MAX_HEADER_BYTES = 1 << 16  # NumPy reads none above 10,000 bytes


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
    check_regular(path)
    with path.open("rb") as file:
        zipped = file.read(2) == b"PK"  # a truncated one, too, unlike zipfile.is_zipfile
    if not zipped:
        if member:
            raise ValueError(f"{path}: not an .npz file, so it has no array {member!r}")
        return _open(path, "")
    if not member:
        raise ValueError(f"{path}: an .npz file: name the array, as @{path}:NAME")
    with _opened(path) as archive:
        entries = _entries(path, archive)
        if member not in entries:
            there = ", ".join(map(repr, entries)) or "none"
            raise ValueError(f"{path}: has no array {member!r}; it has {there}")
        # Not the others, which may be of any kind.
        return _open(path, entries[member], _types(path, archive).get(member), archive)


def open_arrays(path: Path) -> dict[str, StoredArray]:
    """Open every array of an ``.npz`` file, by name.

    Raises
    ------
    OSError, ValueError
        As `open_array`.
    """
    check_regular(path)
    with _opened(path) as archive:
        entries = _entries(path, archive)
        types = _types(path, archive)
        return {
            name: _open(path, entry, types.get(name), archive) for name, entry in entries.items()
        }


def _entries(path: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    """The entry of each array, by its name."""
    entries = archive.namelist()
    found = {entry.removesuffix(".npy"): entry for entry in entries}
    if len(found) < len(entries):
        raise ValueError(f"{path}: it holds two arrays of one name")
    found.pop(INFO, None)
    return found


def check_regular(path: Path) -> None:
    """Raise ValueError for what is no file: a device or a pipe may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: not a regular file")


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
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    with _damage(path):
        archive = zipfile.ZipFile(path)
    with archive:
        yield archive


@contextmanager
def _stream(path: Path, entry: str, archive: zipfile.ZipFile | None = None) -> Iterator[IO[bytes]]:
    if not entry:
        with path.open("rb") as file:
            yield file
    elif archive is not None:
        with archive.open(entry) as file:
            yield file
    else:
        with zipfile.ZipFile(path) as own, own.open(entry) as file:
            yield file


class _Head:
    """A stream that gives no header of gigabytes, which a small zip file may hold."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes."""
        if not 0 <= size <= _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        return self._stream.read(size)


def _open(
    path: Path, entry: str, dtype: str | None = None, archive: zipfile.ZipFile | None = None
) -> StoredArray:
    """Read a header.

    Parameters
    ----------
    dtype
        What the file says of an array that it stores as bits.
    archive
        The file if it is open already: to open it takes time for each of its entries.
    """
    with warnings.catch_warnings(), _damage(path), _stream(path, entry, archive) as stream:
        file = _Head(stream)
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


def _types(path: Path, archive: zipfile.ZipFile) -> dict[str, str]:
    """The types that a result file of ours gives for its arrays; of other files none."""
    entry = f"{INFO}.npy"
    if entry not in archive.namelist():
        return {}
    info = _open(path, entry, None, archive)
    with _damage(path):
        if archive.getinfo(entry).file_size > _MAX_INFO_BYTES or info.shape != ():
            raise ValueError(f"{INFO} is no string")
        document = json.loads(str(info.read()[()]))
        types = document["dtypes"]
        return {str(name): str(types[name]) for name in types}
