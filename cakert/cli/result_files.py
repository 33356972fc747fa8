"""Results of a run: written to an ``.npz`` file, and compared with one.

bfloat16 has no type in NumPy's format: such arrays are stored as the uint16 of their bits, and the
entry `INFO` says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cakert.cli.argument_specs import DTYPES, FLOATS
from cakert.cli.array_statistics import finite_or_none
from cakert.cli.numpy_files import INFO, StoredArray

Array = npt.NDArray[Any]

SCHEMA = 1
_PART = 1 << 18


# --- writing --------------------------------------------------------------------------------------


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse a result file that could not be written, before anything runs.

    Raises
    ------
    ValueError
        Its folder is missing, it is a folder itself, or it exists and may not be overwritten.
    """
    folder = _target(path).parent
    if not folder.is_dir():
        raise ValueError(f"--out {path}: there is no folder {folder}")
    if _target(path).is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"--out {path}: not a regular file")
    if path.exists() and not overwrite:
        raise ValueError(f"--out {path}: the file exists; --overwrite replaces it")


def _target(path: Path) -> Path:
    """What a link leads to, so that it stays one; of links in a circle one of them."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write(path: Path, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """Write all arrays; the file appears when it is complete, and not at all on a failure.

    Parameters
    ----------
    arrays
        By name; of the types of `DTYPES`.
    facts
        What else is to be remembered of the run; values that JSON holds.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    info = {
        "schema": SCHEMA,
        "dtypes": {name: names[array.dtype] for name, array in arrays.items()},
        **facts,
    }
    stored = {
        name: array.view(np.uint16) if array.dtype == DTYPES["bf16"] else array
        for name, array in arrays.items()
    }
    # In the same folder: a rename is atomic within a file system only.
    target = _target(path)
    unfinished = target.with_name(f".{target.name[:50]}.{os.getpid()}.unfinished")
    try:
        # Not np.savez: it has arguments of its own, which may be the names of arrays.
        with zipfile.ZipFile(unfinished, "x") as archive:
            for name, array in [*stored.items(), (INFO, np.array(json.dumps(info)))]:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        unfinished.replace(target)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if isinstance(problem, OSError) and problem.errno and problem.filename is None:
            problem.filename = os.fspath(path)  # a full disk is known by its number alone
        raise


# --- comparing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One array of a run beside the one of its name in a file.

    Attributes
    ----------
    name
    problem
        Why the two cannot be compared; "" where they could. The numbers are None then.
    count, differing
        Elements, and those of them that are out of tolerance.
    max_absolute, max_relative
        Largest |actual - expected|, and largest ratio of that to |expected| where that is not 0,
        of elements that are finite on both sides; None without any.
    not_finite
        Elements out of tolerance that are NaN or infinite on at least one side.
    first
        Index of the first element out of tolerance, or None.
    actual, expected
        The values there, as text.
    """

    name: str
    problem: str = ""
    count: int | None = None
    differing: int | None = None
    max_absolute: float | None = None
    max_relative: float | None = None
    not_finite: int | None = None
    first: tuple[int, ...] | None = None
    actual: str | None = None
    expected: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the arrays could be compared and all elements are within the tolerance."""
        return self.problem == "" and self.differing == 0


def compare(
    arrays: Mapping[str, Array],
    outputs: set[str],
    expected: Mapping[str, StoredArray],
    *,
    absolute: float,
    relative: float,
) -> list[Difference]:
    """Hold the arrays of a run to those of a file.

    Every array of the file must be one of the run's; every output of the run must be in the file.

    Parameters
    ----------
    arrays
        Of the run, by name.
    outputs
        Names of those that the kernel wrote.
    expected
        The file's.
    absolute, relative
        An element passes where ``|actual - expected| <= absolute + relative * |expected|``, both
        finite; where both are NaN; and where both are the same infinity.
    """
    found = []
    for name in [*arrays, *(name for name in expected if name not in arrays)]:
        if name not in expected:
            if name in outputs:
                found.append(Difference(name, "the file has no such array"))
        elif name not in arrays:
            found.append(Difference(name, "the run has no such array"))
        else:
            found.append(_compare_one(name, arrays[name], expected[name], absolute, relative))
    if not found:
        found.append(Difference("", "no array of the run is in the file"))
    return found


def _compare_one(
    name: str, actual: Array, expected: StoredArray, absolute: float, relative: float
) -> Difference:
    mine = next(key for key, dtype in DTYPES.items() if dtype == actual.dtype)
    if expected.shape != actual.shape:
        return Difference(name, f"shape {actual.shape}, expected {expected.shape}")
    if expected.dtype not in DTYPES or (expected.dtype in FLOATS) != (mine in FLOATS):
        return Difference(name, f"type {mine}, expected {expected.dtype}")
    # 64-bit integers and double precision both fit its significand (80 bits or more on Linux).
    theirs = expected.read().reshape(-1)
    ours = actual.reshape(-1)
    differing = not_finite = 0
    first: int | None = None
    largest: float | None = None
    ratio: float | None = None
    with np.errstate(all="ignore"):
        for at in range(0, ours.size, _PART):
            one = _wide(ours[at : at + _PART])
            other = _wide(theirs[at : at + _PART])
            gap = np.abs(one - other)
            finite = np.isfinite(one) & np.isfinite(other)
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            wrong = ~(same | (finite & (gap <= absolute + relative * np.abs(other))))
            differing += int(wrong.sum())
            not_finite += int((wrong & ~finite).sum())
            if first is None and wrong.any():
                first = at + int(wrong.argmax())
            if finite.any():
                largest = max(largest or 0.0, float(gap[finite].max()))
            rated = finite & (other != 0)
            if rated.any():
                ratio = max(ratio or 0.0, float((gap[rated] / np.abs(other[rated])).max()))
    place = None if first is None else np.unravel_index(first, actual.shape)
    return Difference(
        name=name,
        count=actual.size,
        differing=differing,
        max_absolute=None if largest is None else finite_or_none(largest),
        max_relative=None if ratio is None else finite_or_none(ratio),
        not_finite=not_finite,
        first=None if place is None else tuple(int(index) for index in place),
        actual=None if first is None else _text(ours[first]),
        expected=None if first is None else _text(theirs[first]),
    )


def _wide(values: Array) -> npt.NDArray[np.longdouble]:
    if values.dtype == DTYPES["bf16"]:
        values = values.astype(np.float32)
    return values.astype(np.longdouble)


def _text(value: Any) -> str:
    return str(value.item())
