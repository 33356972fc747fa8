"""Result files: what is written comes back bit by bit; what differs is said, NaN and all."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from cakert.cli import result_files
from cakert.cli.argument_specs import DTYPES, FLOATS
from cakert.cli.initial_values import Array
from cakert.cli.numpy_files import INFO, open_arrays
from cakert.cli.result_files import Difference, check_target, compare, write

NAN, INF = float("nan"), float("inf")


def held_to(actual: Array, expected: Array, tmp_path, absolute=0.0, relative=0.0) -> Difference:
    """The one array of a run beside that of an .npz file which NumPy wrote."""
    np.savez(tmp_path / "expected.npz", x=expected)
    (found,) = compare(
        {"x": actual}, {"x"}, open_arrays(tmp_path / "expected.npz"),
        absolute=absolute, relative=relative,
    )  # fmt: skip
    return found


# --- comparing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("allowed", [(0, 0), (1e30, 0), (0, 1e30), (1e30, 1e30)])
@pytest.mark.parametrize(
    ("expected", "actual", "passes"),
    [
        (NAN, 0.0, False),
        (0.0, NAN, False),
        (-INF, -INF, True),
        (INF, -INF, False),
        (INF, 1.0, False),
        (1.0, INF, False),
        (NAN, INF, False),
        (INF, NAN, False),
        (NAN, NAN, True),
        (0.0, -0.0, True),
    ],
)
def test_f6_values_that_are_no_numbers(dtype, allowed, expected, actual, passes, tmp_path, rng):
    values = rng.standard_normal((3, 4)).astype(DTYPES[dtype])
    ours, theirs = values.copy(), values.copy()
    ours[1, 2], theirs[1, 2] = actual, expected
    found = held_to(ours, theirs, tmp_path, *allowed)
    assert found.passed is passes
    assert (found.problem, found.count) == ("", 12)
    if passes:
        assert (found.differing, found.not_finite, found.first) == (0, 0, None)
    else:
        assert (found.differing, found.not_finite, found.first) == (1, 1, (1, 2))
        assert (found.actual, found.expected) == (str(actual), str(expected))
    assert found.max_absolute == 0.0


def test_largest_differences_and_the_first(tmp_path):
    expected = np.array([[1.0, -4.0, 0.0], [8.0, NAN, 100.0]], np.float32)
    actual = np.array([[1.0, -4.5, 0.25], [8.0, NAN, 101.0]], np.float32)
    found = held_to(actual, expected, tmp_path)
    assert found == Difference(
        "x", "", 6, 3, 1.0, 0.125, 0, (0, 1), "-4.5", "-4.0"
    )  # fmt: skip
    assert not found.passed
    # What is shown of the differences does not depend on the tolerance.
    for allowed, out in [((0.25, 0), 2), ((0.5, 0), 1), ((1.0, 0), 0), ((0, 0.125), 1),
                         ((0.24, 0.125), 1), ((0.25, 0.125), 0)]:  # fmt: skip
        other = held_to(actual, expected, tmp_path, *allowed)
        assert (other.differing, other.passed) == (out, out == 0)
        assert (other.max_absolute, other.max_relative) == (1.0, 0.125)


def test_relative_to_the_expected_value(tmp_path):
    small, large = np.array([1.0]), np.array([2.0])
    assert held_to(small, large, tmp_path, 0, 0.5).passed
    assert not held_to(large, small, tmp_path, 0, 0.5).passed


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in (*FLOATS, "bool")])
def test_integers_differ_by_one(dtype, tmp_path):
    info = np.iinfo(DTYPES[dtype])
    expected = np.array([info.min, info.max, 1], DTYPES[dtype])
    actual = np.array([info.min, info.max - 1, 1], DTYPES[dtype])
    found = held_to(actual, expected, tmp_path)
    assert (found.differing, found.max_absolute, found.first) == (1, 1.0, (1,))
    assert (found.actual, found.expected) == (str(info.max - 1), str(info.max))
    assert held_to(actual, expected, tmp_path, absolute=1).passed
    assert held_to(expected, expected, tmp_path).passed


def test_a_part_at_a_time(tmp_path, monkeypatch, rng):
    expected = rng.standard_normal((30, 7)).astype(np.float32)
    actual = expected.copy()
    actual[17, 3] += 0.5
    actual[29, 6] = NAN
    whole = held_to(actual, expected, tmp_path)
    monkeypatch.setattr(result_files, "_PART", 8)
    assert held_to(actual, expected, tmp_path) == whole
    assert (whole.first, whole.differing, whole.not_finite) == ((17, 3), 2, 1)


def test_types_of_other_width_are_compared_by_value(tmp_path, rng):
    values = rng.standard_normal(50).astype(ml_dtypes.bfloat16)
    assert held_to(values, values.astype(np.float64), tmp_path).passed
    exact = values.astype(np.float64) * (1 + 2**-9)
    assert not held_to(values, exact, tmp_path).passed
    assert held_to(values, exact, tmp_path, relative=2**-8).passed
    assert held_to(np.array([2**63], np.uint64), np.array([2**63 - 1]), tmp_path).differing == 1
    assert held_to(np.array([True, False]), np.array([1, 0]), tmp_path).passed


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        (np.zeros((2, 3), "f4"), np.zeros((3, 2), "f4"), "shape (2, 3), expected (3, 2)"),
        (np.zeros((2, 3), "f4"), np.zeros(6, "f4"), "shape (2, 3), expected (6,)"),
        (np.zeros(3, "f4"), np.zeros(3, "i4"), "type f32, expected i32"),
        (np.zeros(3, "u2"), np.zeros(3, ml_dtypes.bfloat16), "type u16, expected bf16"),
        (np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, "u2"), "type bf16, expected u16"),
        (np.zeros(3, "f4"), np.zeros(3, "c8"), "type f32, expected complex64"),
        (np.zeros(3, "f4"), np.zeros(3, "U4"), "type f32, expected str128"),
    ],
)
def test_what_cannot_be_compared_fails(actual, expected, problem, tmp_path):
    found = held_to(actual, expected, tmp_path, 1e30, 1e30)
    assert (found.problem, found.passed) == (problem, False)
    assert replace(found, name="", problem="") == Difference("")


def test_missing_arrays(tmp_path, rng):
    ours = {name: rng.standard_normal(4) for name in ("a", "b", "c")}

    def statuses(outputs: set[str], **stored: Array) -> dict[str, str]:
        np.savez(tmp_path / "e.npz", **stored)
        found = compare(ours, outputs, open_arrays(tmp_path / "e.npz"), absolute=0, relative=0)
        return {one.name: one.problem or ("equal" if one.passed else "differs") for one in found}

    assert statuses({"b"}, a=ours["a"], b=ours["b"]) == {"a": "equal", "b": "equal"}
    assert statuses({"b"}, b=-ours["b"]) == {"b": "differs"}
    assert statuses({"b"}, a=-ours["a"], b=ours["b"]) == {"a": "differs", "b": "equal"}
    missing = {"a": "equal", "b": "the file has no such array"}
    assert statuses({"b"}, a=ours["a"]) == missing
    extra = {"b": "equal", "z": "the run has no such array"}
    assert statuses({"b"}, b=ours["b"], z=ours["a"]) == extra
    assert statuses(set()) == {"": "no array of the run is in the file"}


# --- writing --------------------------------------------------------------------------------------


def every_type(rng) -> dict[str, Array]:
    """Names that NumPy's own functions have for arguments among them."""
    arrays = {"file": rng.standard_normal((2, 3)).astype(np.float32)}
    for dtype in DTYPES:
        raw = rng.integers(0, 256, 16 * DTYPES[dtype].itemsize).astype(np.uint8)
        if dtype == "bool":
            raw &= 1
        arrays[f"x_{dtype}"] = raw.view(DTYPES[dtype]).reshape(4, 4)
    for dtype in FLOATS:
        arrays[f"x_{dtype}"][0] = [NAN, INF, -INF, -0.0]
    arrays["allow_pickle"] = np.array([2**64 - 1], np.uint64)
    return arrays


def test_what_is_written_comes_back_bit_by_bit(tmp_path, rng):
    arrays = every_type(rng)
    path = tmp_path / "r.npz"
    write(path, arrays, {"kernel": "k", "seed": 3})
    stored = open_arrays(path)
    assert list(stored) == list(arrays)
    for name, array in arrays.items():
        back = stored[name].read()
        assert (back.dtype, back.shape, back.tobytes()) == (
            array.dtype, array.shape, array.tobytes()
        )  # fmt: skip
    found = compare(arrays, set(arrays), stored, absolute=0, relative=0)
    assert len(found) == len(arrays)
    assert all(one.passed for one in found)
    # And for whoever has NumPy only, as docs/run.md says.
    with np.load(path) as file:
        bits = file["x_bf16"].view(ml_dtypes.bfloat16)
        assert bits.tobytes() == arrays["x_bf16"].tobytes()
        info = json.loads(str(file[INFO]))
    assert (info["schema"], info["kernel"], info["seed"]) == (1, "k", 3)
    assert info["dtypes"]["x_bf16"] == "bf16"
    assert info["dtypes"]["file"] == "f32"


def test_two_writes_give_the_same_bytes(tmp_path, rng):
    arrays = every_type(rng)
    for name in ("a.npz", "b.npz"):
        write(tmp_path / name, arrays, {})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch, rng):
    path = tmp_path / "r.npz"
    write(path, {"x": rng.standard_normal(4)}, {})
    before = path.read_bytes()
    real, calls = np.lib.format.write_array, []

    def fails_at_the_second(file, array, **options):
        calls.append(array)
        if len(calls) == 2:
            raise OSError("No space left on device")
        real(file, array, **options)

    monkeypatch.setattr(np.lib.format, "write_array", fails_at_the_second)
    with pytest.raises(OSError, match="No space left"):
        write(path, {"x": rng.standard_normal(4), "y": rng.standard_normal(4)}, {})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["r.npz"]


def test_mode_of_the_file_is_that_of_the_umask(tmp_path, rng):
    mask = os.umask(0o027)
    try:
        write(tmp_path / "r.npz", {"x": rng.standard_normal(4)}, {})
    finally:
        os.umask(mask)
    assert (tmp_path / "r.npz").stat().st_mode & 0o777 == 0o640


def test_targets(tmp_path):
    check_target(tmp_path / "new.npz", False)
    (tmp_path / "old.npz").write_bytes(b"mine")
    check_target(tmp_path / "old.npz", True)
    for path, overwrite, reason in [
        (tmp_path / "old.npz", False, "the file exists; --overwrite replaces it"),
        (tmp_path, True, "not a regular file"),
        (tmp_path / "none" / "r.npz", True, "there is no folder"),
    ]:
        with pytest.raises(ValueError, match=reason):
            check_target(path, overwrite)
    assert (tmp_path / "old.npz").read_bytes() == b"mine"


def test_a_link_stays_one(tmp_path, rng):
    """Its target is what is written, whether it is there or not."""
    values = rng.standard_normal(4)
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "latest.npz", tmp_path / "folder" / "r.npz"
    link.symlink_to("folder/r.npz")
    for _ in range(2):
        check_target(link, target.exists())
        write(link, {"x": values}, {})
        assert link.is_symlink()
        assert (open_arrays(target)["x"].read() == values).all()
    with pytest.raises(ValueError, match="the file exists"):
        check_target(link, False)
    for name, to, reason in [
        ("astray", "none/r.npz", "no folder"),
        ("circle", "circle", "regular"),
    ]:
        (tmp_path / name).symlink_to(to)
        with pytest.raises(ValueError, match=reason):
            check_target(tmp_path / name, True)


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(*args, **keywords):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(result_files.np.lib.format, "write_array", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*r\.npz'"):
        write(tmp_path / "r.npz", {"x": np.zeros(4)}, {})
    assert not list(tmp_path.iterdir())


def test_the_longest_name(tmp_path, rng):
    path = tmp_path / ("r" * 251 + ".npz")
    write(path, {"x": rng.standard_normal(4)}, {})
    assert open_arrays(path)


@pytest.mark.parametrize("info", ["{", "[]", "3", '{"schema": 1}', '{"dtypes": 5}', None])
def test_a_result_file_that_lies_about_its_types(tmp_path, info, rng):
    stored = {INFO: np.array(info) if info is not None else np.zeros(3)}
    np.savez(tmp_path / "r.npz", x=rng.standard_normal(3), **stored)
    with pytest.raises(ValueError, match=r"r\.npz: not a readable NumPy file"):
        open_arrays(tmp_path / "r.npz")
