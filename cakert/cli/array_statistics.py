"""What the values of an array are like: counts, extremes, mean, a histogram.

Arrays are read in parts, so that no copy of a large one is made in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_PART = 1 << 20
_BINS = 10
_BAR = 40

Number = int | float


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of one width; both are empty where there is nothing to count.

    Attributes
    ----------
    edges
        One more than bins; the last bin has its upper edge.
    counts
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]

    def lines(self) -> list[str]:
        """One line a bin, in ASCII: its range, its count, a bar."""
        most = max(self.counts, default=1)
        width = len(str(most))
        # As many digits as it takes to tell the edges apart.
        digits = next(
            (n for n in range(4, 17) if len({f"{e:.{n}g}" for e in self.edges}) == len(self.edges)),
            17,
        )
        texts = [f"{edge:.{digits}g}" for edge in self.edges]
        room = max(map(len, texts), default=0)
        return [
            f"{low:>{room}} to {high:>{room}}  {count:>{width}}  "
            f"{'#' * math.ceil(_BAR * count / most)}".rstrip()
            for low, high, count in zip(texts, texts[1:], self.counts, strict=False)
        ]


@dataclass(frozen=True)
class Statistics:
    """Of the elements of one array; all but the counts are of the finite ones, None without any.

    Attributes
    ----------
    count
        Elements.
    nan, infinite, zero
        How many of them are that.
    minimum, maximum
        Integers of integer types, exactly.
    mean, deviation
        In double precision; None, too, where they overflow it.
    """

    count: int
    nan: int
    infinite: int
    zero: int
    minimum: Number | None
    maximum: Number | None
    mean: float | None
    deviation: float | None
    histogram: Histogram


def finite_or_none(value: float) -> float | None:
    """A number that JSON can hold."""
    return float(value) if math.isfinite(value) else None


def changed(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> int:
    """How many elements have other bytes."""
    one, other = (
        np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
        for array in (before, after)
    )
    rows = range(0, len(one), _PART)
    return sum(
        int((one[at : at + _PART] != other[at : at + _PART]).any(axis=1).sum()) for at in rows
    )


def describe(array: npt.NDArray[Any]) -> Statistics:
    """Count and sum up.

    Parameters
    ----------
    array
        Of a type of `cakert.cli.argument_specs.DTYPES`, with at least one element.
    """
    floats = array.dtype.kind not in "iub"
    nan = infinite = zero = finite = 0
    total = 0.0
    minimum: Number | None = None
    maximum: Number | None = None
    with np.errstate(over="ignore", invalid="ignore"):
        for part in _parts(array):
            wide = part.astype(np.float64)
            nan += int(np.isnan(wide).sum())
            infinite += int(np.isinf(wide).sum())
            zero += int((wide == 0).sum())
            if floats:
                part = wide = wide[np.isfinite(wide)]
            if part.size == 0:
                continue
            finite += part.size
            total += float(wide.sum())
            least, most = part.min().item(), part.max().item()
            minimum = least if minimum is None else min(minimum, least)
            maximum = most if maximum is None else max(maximum, most)
        if minimum is None or maximum is None:
            return Statistics(array.size, nan, infinite, zero, None, None, None, None,
                              Histogram((), ()))  # fmt: skip
        mean = total / finite
        squares, counts = 0.0, np.zeros(_BINS, np.int64)
        low, high = float(minimum), float(maximum)
        for part in _parts(array):
            wide = part.astype(np.float64)
            wide = wide[np.isfinite(wide)]
            squares += float(((wide - mean) ** 2).sum())
            counts += _count(wide, low, high)
    return Statistics(
        count=array.size,
        nan=nan,
        infinite=infinite,
        zero=zero,
        minimum=int(minimum) if array.dtype.kind == "b" else minimum,
        maximum=int(maximum) if array.dtype.kind == "b" else maximum,
        mean=finite_or_none(mean),
        deviation=finite_or_none(math.sqrt(squares / finite)),
        histogram=_histogram(low, high, counts),
    )


def histogram(values: npt.NDArray[np.float64]) -> Histogram:
    """Of finite numbers."""
    low, high = float(values.min()), float(values.max())
    return _histogram(low, high, _count(values, low, high))


def _parts(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    flat = array.reshape(-1)
    for at in range(0, flat.size, _PART):
        yield flat[at : at + _PART]


def _count(values: npt.NDArray[np.float64], low: float, high: float) -> npt.NDArray[np.int64]:
    width = high - low
    if width == 0 or not math.isfinite(width):
        return np.array([values.size] + [0] * (_BINS - 1))
    bins = ((values - low) / width * _BINS).astype(np.int64)
    return np.bincount(np.minimum(bins, _BINS - 1), minlength=_BINS)


def _histogram(low: float, high: float, counts: npt.NDArray[np.int64]) -> Histogram:
    width = high - low
    if width == 0 or not math.isfinite(width):
        # One value, or a range that double precision cannot divide: one bin.
        return Histogram((low, high), (int(counts.sum()),))
    edges = (*(low + width * (at / _BINS) for at in range(_BINS)), high)
    return Histogram(edges, tuple(counts.tolist()))
