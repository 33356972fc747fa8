"""Every constraint of cuTensorMapEncodeTiled, the bytes of a map, and maps of arrays."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from cakert.sim.copies.tensor_map import DATA_TYPES, L2_PROMOTIONS, TensorMap

GOOD = {
    "data_type": "bfloat16",
    "global_address": 1 << 20,
    "dims": (96, 300, 7),
    "strides": (192, 192 * 300),
    "box": (64, 32, 1),
    "element_strides": (1, 1, 1),
}


def encode(**changes):
    return TensorMap.encode(**(GOOD | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data_type": "half"}, r"data_type must be one of uint8, .*, got 'half'"),
        ({"swizzle": "96B"}, r"swizzle must be one of .*, got '96B'"),
        ({"interleave": "64B"}, r"interleave must be one of none, 16B, 32B, got '64B'"),
        ({"l2_promotion": "32B"}, r"l2_promotion must be one of .*, got '32B'"),
        ({"oob_fill": "one"}, r"oob_fill must be one of zero, nan, got 'one'"),
        (
            {"dims": (), "strides": (), "box": (), "element_strides": ()},
            r"dims must have 1 to 5 entries, got 0",
        ),
        ({"dims": (64,) * 6}, r"dims must have 1 to 5 entries, got 6"),
        ({"strides": (192,)}, r"strides must have 2 entries for rank 3, got 1"),
        ({"box": (64, 32)}, r"box must have 3 entries for rank 3, got 2"),
        ({"element_strides": (1,) * 4}, r"element_strides must have 3 entries .*, got 4"),
        ({"global_address": (1 << 20) + 8}, r"global_address must be .* a multiple of 16, got 0x"),
        ({"global_address": 0}, r"global_address must be a non-zero"),
        (
            {"global_address": (1 << 20) + 16, "interleave": "32B", "swizzle": "32B"},
            r"global_address must be .* a multiple of 32 with interleave 32B",
        ),
        ({"dims": (96, 0, 7)}, r"dims\[1\] must be in 1\.\.2\^32, got 0"),
        ({"dims": (96, 300, (1 << 32) + 1)}, r"dims\[2\] must be in 1\.\.2\^32, got 4294967297"),
        ({"strides": (200, 57600)}, r"strides\[0\] must be a multiple of 16 below 2\^40, got 200"),
        ({"strides": (192, 1 << 40)}, r"strides\[1\] must be a multiple of 16 below 2\^40"),
        ({"strides": (-192, 57600)}, r"strides\[0\] must be a multiple of 16"),
        (
            {"strides": (208, 57600), "interleave": "32B", "swizzle": "32B"},
            r"strides\[0\] must be a multiple of 32 .* with interleave 32B, got 208",
        ),
        ({"box": (64, 257, 1)}, r"box\[1\] must be in 1\.\.256, got 257"),
        ({"box": (64, 32, 0)}, r"box\[2\] must be in 1\.\.256, got 0"),
        ({"box": (12, 32, 1)}, r"box\[0\] must span a multiple of 16 bytes, got 12 \(24 bytes\)"),
        ({"element_strides": (1, 9, 1)}, r"element_strides\[1\] must be in 1\.\.8, got 9"),
        ({"element_strides": (1, 1, 0)}, r"element_strides\[2\] must be in 1\.\.8, got 0"),
        ({"swizzle": "64B"}, r"box\[0\] must span at most 64 bytes with swizzle 64B, got 128"),
        ({"swizzle": "32B"}, r"box\[0\] must span at most 32 bytes with swizzle 32B, got 128"),
        (
            {"swizzle": "128B_ATOM_64B", "box": (72, 32, 1)},
            r"box\[0\] must span at most 128 bytes with swizzle 128B_ATOM_64B, got 144",
        ),
        ({"interleave": "32B", "swizzle": "64B"}, r"swizzle must be 32B with interleave 32B"),
        (
            {
                "interleave": "16B",
                "dims": (96, 300),
                "strides": (192,),
                "box": (64, 32),
                "element_strides": (1, 1),
            },
            r"dims must have at least 3 entries with interleave 16B, got 2",
        ),
        ({"data_type": "uint16", "oob_fill": "nan"}, r"oob_fill must be zero for data type uint16"),
        ({"data_type": "16u4_align16b"}, r"dims\[0\] must be a multiple of 128 for .*, got 96"),
        (
            {"data_type": "16u6_align16b", "dims": (128, 300, 7)},
            r"box\[0\] must be 128 for data type 16u6_align16b, got 64",
        ),
        (
            {"data_type": "16u4_align8b", "dims": (97, 300, 7)},
            r"dims\[0\] must be a multiple of 2 for data type 16u4_align8b, got 97",
        ),
        (
            {
                "data_type": "16u4_align16b",
                "dims": (128, 300, 7),
                "box": (128, 1, 1),
                "swizzle": "64B",
            },
            r"swizzle must be one of none, 128B, 128B_ATOM_32B for data type 16u4_align16b",
        ),
        (
            {
                "data_type": "16u6_align16b",
                "dims": (128, 300, 7),
                "box": (128, 1, 1),
                "interleave": "16B",
            },
            r"interleave must be none for data type 16u6_align16b, got 16B",
        ),
        (
            {"data_type": "16u6_align16b", "global_address": (1 << 20) + 16},
            r"global_address must be .* 32 for data type 16u6_align16b",
        ),
    ],
)
def test_a_broken_constraint_is_named(changes, message):
    encode()
    with pytest.raises(ValueError, match=message):
        encode(**changes)


def test_limits_themselves_are_allowed():
    encode(dims=(96, 1 << 32, 7), strides=(0, (1 << 40) - 16), element_strides=(8, 8, 1))
    encode(box=(256, 256, 256), data_type="uint8")
    encode(swizzle="128B", box=(64, 1, 1))
    encode(element_strides=None)


def test_bytes_bring_every_field_back():
    rng = np.random.default_rng(11)
    for rank, swizzle, promotion in itertools.product(range(1, 6), ("none", "128B"), L2_PROMOTIONS):
        tensor_map = TensorMap.encode(
            "float16",
            16 * int(rng.integers(1, 1 << 44)),
            rng.integers(1, 1 << 32, rank, dtype=np.int64),
            16 * rng.integers(0, 1 << 36, rank - 1, dtype=np.int64),
            (64, *rng.integers(1, 257, rank - 1)),
            rng.integers(1, 9, rank),
            swizzle=swizzle,
            l2_promotion=promotion,
            oob_fill="nan",
        )
        data = tensor_map.to_bytes()
        assert len(data) == 128
        assert TensorMap.from_bytes(data) == tensor_map


def test_bytes_of_something_else_are_refused():
    data = bytearray(encode().to_bytes())
    with pytest.raises(ValueError, match="no tensor map"):
        TensorMap.from_bytes(bytes(128))
    with pytest.raises(ValueError, match="128 bytes, got 127"):
        TensorMap.from_bytes(bytes(data[:-1]))
    for position in (20, 60, 90, 127):
        data[position] ^= 4
        with pytest.raises(ValueError, match="changed"):
            TensorMap.from_bytes(bytes(data))
        data[position] ^= 4


class Array:
    """What the memory of the simulated GPU looks like, from a NumPy view."""

    def __init__(self, view):
        self.pointer = view.__array_interface__["data"][0]
        self.shape, self.strides, self.dtype = view.shape, view.strides, view.dtype


def aligned(shape, dtype):
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.__array_interface__["data"][0] % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def test_map_of_an_array_reverses_the_dimensions():
    view = aligned((5, 40, 2, 96), ml_dtypes.bfloat16).transpose(0, 2, 1, 3)
    tensor_map = TensorMap.for_array(
        Array(view), box=(1, 1, 16, 64), element_strides=(1, 1, 2, 1), swizzle="128B"
    )
    assert tensor_map.data_type == "bfloat16"
    assert tensor_map.dims == (96, 40, 2, 5)
    assert tensor_map.strides == (2 * 192, 192, 40 * 2 * 192)
    assert tensor_map.box == (64, 16, 1, 1)
    assert tensor_map.element_strides == (1, 2, 1, 1)
    assert tensor_map.global_address == Array(view).pointer


def test_map_of_a_vector():
    tensor_map = TensorMap.for_array(Array(aligned((100,), np.float32)), box=(32,))
    assert (tensor_map.dims, tensor_map.strides, tensor_map.box) == ((100,), (), (32,))


def test_arrays_that_no_map_describes():
    array = aligned((8, 32), np.float32)
    with pytest.raises(ValueError, match="contiguous in its last dimension"):
        TensorMap.for_array(Array(array.T), box=(4, 4))
    with pytest.raises(ValueError, match="box must have an entry for each of 2 dimensions"):
        TensorMap.for_array(Array(array), box=(4,))
    with pytest.raises(ValueError, match="element_strides must have an entry for each of 2"):
        TensorMap.for_array(Array(array), box=(4, 4), element_strides=(1,))
    for box in (8, None, (4.0, 4)):
        with pytest.raises(TypeError, match="box must be a sequence of 2 ints, got"):
            TensorMap.for_array(Array(array), box=box)
    with pytest.raises(ValueError, match="data_type must be given"):
        TensorMap.for_array(Array(aligned((8, 32), np.complex64)), box=(4, 4))


def test_a_data_type_has_the_size_of_an_element():
    array = aligned((8, 32), np.float16)
    with pytest.raises(
        ValueError,
        match=r"^data_type float32 has 4 bytes, an element of the array has 2: view it with",
    ):
        TensorMap.for_array(Array(array), box=(4, 8), data_type="float32")
    for data_type in ("uint16", "bfloat16"):
        tensor_map = TensorMap.for_array(Array(array), box=(4, 8), data_type=data_type)
        assert tensor_map.data_type == data_type
    with pytest.raises(ValueError, match="data_type must be one of"):
        TensorMap.for_array(Array(array), box=(4, 8), data_type="half")


@pytest.mark.parametrize(
    ("view", "options", "message"),
    [
        (None, {"box": (257, 1, 64)}, r"box\[0\] must be in 1\.\.256, got 257"),
        (None, {"box": (1, 0, 64)}, r"box\[1\] must be in 1\.\.256, got 0"),
        (None, {"box": (1, 1, 12)}, r"box\[2\] must span a multiple of 16 bytes, got 12"),
        (None, {"swizzle": "64B"}, r"box\[2\] must span at most 64 bytes with swizzle 64B"),
        (None, {"element_strides": (9, 1, 1)}, r"element_strides\[0\] must be in 1\.\.8, got 9"),
        (np.s_[:, :0], {}, r"shape\[1\] must be in 1\.\.2\^32, got 0"),
        (np.s_[::-1], {}, r"strides\[0\] must be a multiple of 16 below 2\^40, got -"),
        (np.s_[:, ::-1], {}, r"strides\[1\] must be a multiple of 16 below 2\^40, got -"),
    ],
)
def test_messages_count_as_the_array_does(view, options, message):
    array = aligned((3, 40, 64), np.float16)
    array = array if view is None else array[view]
    with pytest.raises(ValueError, match=message):
        TensorMap.for_array(Array(array), **{"box": (1, 1, 64), **options})


def test_types_that_are_encoded_but_not_copied_say_why():
    reasons = {t.name: t.limitation for t in DATA_TYPES}
    assert "sub-byte" in reasons["16u4_align8b"]
    assert "round" in reasons["tfloat32"]
    assert reasons["float32"] is None
    assert encode().limitation is None
    assert "interleaved" in encode(interleave="16B").limitation
