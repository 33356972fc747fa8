"""Python arguments as bytes: every kind, every size, and what is refused."""

from __future__ import annotations

import ctypes
import struct

import ml_dtypes
import numpy as np
import pytest
from helpers.fake_tensor import FakeCuda
from hypothesis import given
from hypothesis import strategies as st

from cakert.runtime.arguments import pack

rng = np.random.default_rng()


def one(value, size):
    return pack([(0, size)], [value])


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int32), ("second", ctypes.c_float))


@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_ints_fit_their_parameter_signed_or_unsigned(size, data):
    low, high = -(1 << (8 * size - 1)), (1 << (8 * size)) - 1
    value = data.draw(st.integers(low, high))
    assert one(value, size) == (value % (high + 1)).to_bytes(size, "little")


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 1 << 70), st.booleans())
def test_ints_out_of_range_name_the_range(size, beyond, negative):
    low, high = -(1 << (8 * size - 1)), (1 << (8 * size)) - 1
    value = low - 1 - beyond if negative else high + 1 + beyond
    with pytest.raises(ValueError, match=rf"argument 0 must be in \[{low}, {high}\].*got {value}"):
        one(value, size)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("value", [True, False])
def test_bools_fill_any_integer(size, value):
    assert one(value, size) == int(value).to_bytes(size, "little")


@given(st.floats(width=32))
def test_floats_into_four_bytes(value):
    assert one(value, 4) == struct.pack("<f", value)


@given(st.floats())
def test_floats_into_eight_bytes(value):
    assert one(value, 8) == struct.pack("<d", value)


def test_floats_are_rounded_to_float32():
    value = float(rng.standard_normal())
    assert one(value, 4) == np.float32(value).tobytes()


@pytest.mark.parametrize("value", [1e39, -3.5e38])
def test_floats_beyond_float32_are_refused(value):
    with pytest.raises(ValueError, match=r"argument 0 must be within .*float32.*got"):
        one(value, 4)


@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_floats_go_into_four_or_eight_bytes_only(size):
    with pytest.raises(ValueError, match=f"4 or 8 bytes.*{size}"):
        one(0.5, size)


@pytest.mark.parametrize(
    "value",
    [
        np.int8(-7), np.uint16(65535), np.int32(-5), np.uint64(1 << 63), np.float16(0.3),
        np.float32(0.7), np.float64(0.1), np.bool_(True), np.complex64(1 + 2j),
        ml_dtypes.bfloat16(1.7), ml_dtypes.float8_e4m3fn(3.5),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_numpy_scalars_have_a_size_of_their_own(value):
    size = value.nbytes
    assert one(value, size) == value.tobytes()
    with pytest.raises(ValueError, match=f"argument 0 must have {2 * size} bytes.*has {size}"):
        one(value, 2 * size)


@pytest.mark.parametrize(
    "value",
    [
        ctypes.c_int8(-3), ctypes.c_uint16(9), ctypes.c_int32(-9), ctypes.c_int64(-(1 << 60)),
        ctypes.c_float(0.25), ctypes.c_double(0.1), ctypes.c_bool(True),
        ctypes.c_void_p(0x1234_5678_9ABC), Pair(-4, 2.5), (ctypes.c_int16 * 5)(1, -2, 3, -4, 5),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_ctypes_values_have_a_size_of_their_own(value):
    size = ctypes.sizeof(value)
    assert one(value, size) == bytes(value)
    with pytest.raises(ValueError, match=f"argument 0 must have {size + 1} bytes"):
        one(value, size + 1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_fill_structs_and_tensor_maps_exactly(kind):
    data = rng.integers(0, 256, 128, dtype=np.uint8).tobytes()
    assert one(kind(data), 128) == data
    for size in (127, 129):
        with pytest.raises(ValueError, match=f"must have {size} bytes.*has 128"):
            one(kind(data), size)


def test_none_is_a_null_pointer():
    assert one(None, 8) == bytes(8)
    with pytest.raises(ValueError, match="null pointer"):
        one(None, 4)


def test_a_struct_is_not_filled_from_an_int():
    with pytest.raises(ValueError, match="argument 0: the kernel's parameter has 12 bytes"):
        one(3, 12)


@pytest.mark.parametrize("versioned", [True, False])
def test_tensors_give_their_address(versioned):
    array = rng.standard_normal((3, 4))
    lent = FakeCuda(array, byte_offset=512, versioned=versioned)
    assert one(lent, 8) == struct.pack("<Q", array.ctypes.data)
    assert one(array[1:], 8) == struct.pack("<Q", array.ctypes.data + 32)
    assert lent.exports == lent.releases == 1
    with pytest.raises(ValueError, match=r"argument 0 must have 4 bytes.*8 of an address"):
        one(lent, 4)


@pytest.mark.parametrize("value", ["text", object(), [1], 1j])
def test_what_no_parameter_takes(value):
    with pytest.raises(TypeError, match=f"argument 0 must be a tensor.*{type(value).__name__}"):
        one(value, 8)


@pytest.mark.parametrize("count", [0, 2, 4])
def test_the_number_of_arguments(count):
    with pytest.raises(TypeError, match=f"takes 3 arguments.*got {count}"):
        pack([(0, 4), (4, 4), (8, 8)], [1] * count)


def test_a_whole_block_with_padding_and_the_index_in_the_message():
    layout = [(0, 1), (4, 4), (8, 8), (16, 2), (24, 16)]
    tail = rng.integers(1, 256, 16, dtype=np.uint8).tobytes()
    assert pack(layout, [True, -2, 0.5, np.int16(-3), tail]) == struct.pack(
        "<?3xidh6x16s", True, -2, 0.5, -3, tail
    )
    with pytest.raises(ValueError, match="argument 3"):
        pack(layout, [True, -2, 0.5, 1 << 16, tail])
    assert pack([], []) == b""
