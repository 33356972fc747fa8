"""Counts and moments against NumPy on the whole array; histograms that lose no value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cakert.cli import array_statistics
from cakert.cli.argument_specs import DTYPES, FLOATS
from cakert.cli.array_statistics import changed, describe, histogram


def sample(dtype: str, rng) -> np.ndarray:
    if dtype not in FLOATS:
        info = np.iinfo(DTYPES[dtype]) if dtype != "bool" else None
        low, high = (info.min, info.max) if info else (0, 1)
        return rng.integers(low, high, (9, 11), endpoint=True, dtype=DTYPES[dtype])
    values = rng.standard_normal((9, 11)).astype(DTYPES[dtype])
    values[0, :6] = [0, -0.0, math.nan, math.inf, -math.inf, math.nan]
    return values


@pytest.mark.parametrize("part", [1 << 20, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_statistics(dtype, part, rng, monkeypatch):
    monkeypatch.setattr(array_statistics, "_PART", part)
    values = sample(dtype, rng)
    wide = values.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    found = describe(values)
    assert found.count == 99
    assert found.zero == (wide == 0).sum()
    assert (found.nan, found.infinite) == ((2, 2) if dtype in FLOATS else (0, 0))
    assert found.mean == pytest.approx(finite.mean(), rel=1e-9)
    assert found.deviation == pytest.approx(finite.std(), rel=1e-9)
    if dtype in FLOATS:
        assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    else:
        assert (found.minimum, found.maximum) == (int(values.min()), int(values.max()))
        assert type(found.minimum) is int
    counts, edges = np.histogram(finite, 10)
    np.testing.assert_allclose(found.histogram.edges, edges, rtol=1e-9, atol=1e-12)
    assert sum(found.histogram.counts) == finite.size
    # A value on an edge may fall to either side of it by rounding.
    if dtype == "f32":
        assert list(found.histogram.counts) == counts.tolist()


@pytest.mark.parametrize(
    "values",
    [
        np.full(5, math.nan),
        np.array([math.inf, -math.inf, math.nan], np.float32),
    ],
)
def test_nothing_finite(values):
    found = describe(values)
    assert (found.minimum, found.maximum, found.mean, found.deviation) == (None,) * 4
    assert found.histogram.edges == found.histogram.counts == ()
    assert found.histogram.lines() == []


def test_values_that_overflow_double_precision():
    found = describe(np.array([-1.7e308, 1.7e308, 1.7e308]))
    assert (found.minimum, found.maximum) == (-1.7e308, 1.7e308)
    assert found.deviation is None
    assert found.histogram.counts == (3,)
    tiny = describe(np.array([0.0, 5e-324, 5e-324]))
    assert sum(tiny.histogram.counts) == 3


def test_one_value():
    found = describe(np.full((3, 3), 2.5, np.float32))
    assert (found.histogram.edges, found.histogram.counts) == ((2.5, 2.5), (9,))
    assert (found.mean, found.deviation) == (2.5, 0.0)


def test_lines_of_a_histogram():
    lines = histogram(np.array([1.0, 1.0, 1.0, 1.0, 3.0, 11.0])).lines()
    assert len(lines) == 10
    assert lines[0] == " 1 to  2  4  " + "#" * 40
    assert lines[1] == " 2 to  3  0"
    assert lines[2] == " 3 to  4  1  " + "#" * 10
    assert lines[9] == "10 to 11  1  " + "#" * 10
    close = histogram(np.array([100000.0, 100000.5])).lines()
    assert close[0].startswith("   100000 to 100000.05  1  #")
    assert all(line.isascii() for line in lines + close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_changed_elements_by_their_bytes(dtype, rng):
    before = sample(dtype, rng)
    assert changed(before, before.copy()) == 0
    after = before.copy()
    after.view(np.uint8).reshape(99, -1)[[5, 50, 98], -1] ^= 1
    assert changed(before, after) == 3


def test_changed_sees_bits():
    zeros = np.zeros(4, np.float32)
    assert changed(zeros, -zeros) == 4
    nan = np.full(4, math.nan, np.float32)
    assert changed(nan, nan.copy()) == 0
