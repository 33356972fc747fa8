"""Launch geometry: what an int or a tuple means, and the limits of a device."""

from __future__ import annotations

import numpy as np
import pytest

from cakert.runtime.geometry import (
    DeviceLimits,
    check_block,
    check_cluster,
    check_grid,
    check_shared,
    dim3,
)

LIMITS = DeviceLimits((2**31 - 1, 65535, 65535), (1024, 1024, 64), 1024, 232448, (9, 0))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, (7, 1, 1)),
        (np.int64(7), (7, 1, 1)),
        ((7,), (7, 1, 1)),
        ([2, 3], (2, 3, 1)),
        ((2, 3, 4), (2, 3, 4)),
        ((np.int32(5), np.int64(6)), (5, 6, 1)),
    ],
)
def test_dim3(value, expected):
    dims = dim3("grid", value)
    assert dims == expected
    assert all(type(extent) is int for extent in dims)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError), (-1, ValueError), ((), ValueError), ((1, 2, 3, 4), ValueError),
        ((1, 0), ValueError), (1.5, TypeError), ((1, 2.0), TypeError), ("123", TypeError),
        (None, TypeError), ((True, 1), TypeError), (np.array([2, 3]), TypeError),
    ],
)  # fmt: skip
def test_what_is_no_geometry(value, error):
    with pytest.raises(error, match="block must"):
        dim3("block", value)


def test_the_limits_themselves_are_allowed():
    check_grid((2**31 - 1, 65535, 65535), LIMITS)
    check_block((1024, 1, 1), LIMITS, 1024)
    check_block((4, 4, 64), LIMITS, 1024)
    check_shared(232448 - 1024, 1024, LIMITS)
    check_cluster((2, 4, 2), (4, 8, 6), LIMITS)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: check_grid((1, 65536, 1), LIMITS), r"grid.y must be in \[1, 65535\].*got 65536"),
        (lambda: check_grid((2**31, 1, 1), LIMITS), r"grid.x must be in \[1, 2147483647\]"),
        (lambda: check_block((1, 1, 65), LIMITS, 1024), r"block.z must be in \[1, 64\].*got 65"),
        (lambda: check_block((32, 33, 1), LIMITS, 1024), "at most 1024 threads.*got 1056"),
        (lambda: check_block((32, 9, 1), LIMITS, 256), "at most 256 threads.*got 288"),
        (lambda: check_shared(232448, 1, LIMITS), r"\[0, 232447\].*got 232448"),
        (lambda: check_shared(-1, 0, LIMITS), "got -1"),
        (lambda: check_cluster((3, 1, 1), (4, 1, 1), LIMITS), "multiple of the cluster"),
        (lambda: check_cluster((17, 1, 1), (17, 1, 1), LIMITS), "at most 16 blocks; got 17"),
        (
            lambda: check_cluster((2, 1, 1), (2, 1, 1), LIMITS._replace(capability=(8, 9))),
            r"\(8, 9\).*need \(9, 0\)",
        ),
    ],
)
def test_beyond_the_limits(call, says):
    with pytest.raises(ValueError, match=says):
        call()
