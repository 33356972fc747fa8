"""What `describe` reads of numpy arrays and capsules; every capsule is released once."""

from __future__ import annotations

import gc
import itertools

import ml_dtypes
import numpy as np
import pytest
from helpers import fake_tensor
from helpers.fake_tensor import BFLOAT, CPU, CUDA, CUDA_HOST, FLOAT, FakeCuda

from cakert.runtime import tensor

rng = np.random.default_rng()

# numpy's names and ml_dtypes' names of every element type of whole bytes.
NAMES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "float32", "float64", "complex64", "complex128", "bfloat16", "float8_e3m4", "float8_e4m3",
    "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu",
]  # fmt: skip


def fresh(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def host(array: np.ndarray, **options):
    return FakeCuda(array, device_type=CPU, **options)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_arrays_of_every_type(name):
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    array = rng.integers(1, 100, (5, 3)).astype(dtype)
    info = tensor.describe(array)
    assert info.dtype == name
    assert info.pointer == array.ctypes.data
    assert (info.shape, info.strides) == ((5, 3), (3, 1))
    assert (info.device_type, info.device_id, info.framework) == (CPU, 0, "numpy")


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[:, ::2],
        lambda a: a[::-1],
        lambda a: a.T,
        lambda a: a[1:2, 3:],
        lambda a: np.broadcast_to(a[0], (4, 7)),
        lambda a: a[2, 5, ...],
        lambda a: a[:0],
    ],
)
def test_numpy_strides_are_in_elements(view):
    array = view(fresh(6, 7))
    info = tensor.describe(array)
    assert info.shape == array.shape
    for extent, ours, numpys in zip(array.shape, info.strides, array.strides, strict=True):
        assert extent <= 1 or 4 * ours == numpys
    assert info.pointer == array.__array_interface__["data"][0]
    assert info.readonly == (not array.flags.writeable)


@pytest.mark.parametrize("dtype", [">f4", "M8[s]", "U3", object, [("x", "f4"), ("y", "i4")]])
def test_numpy_types_that_dlpack_cannot_say(dtype):
    with pytest.raises(TypeError, match=r"dtype|byte order"):
        tensor.describe(np.empty(3, dtype))


def test_numpy_strides_within_an_element_are_refused():
    record = np.zeros(4, [("x", "f4"), ("y", "i1")])
    with pytest.raises(ValueError, match=r"multiples of the item size \(4 bytes\); got 5"):
        tensor.describe(record["x"])


@pytest.mark.parametrize("shape", [(1,) * 17, (2, 1) * 9])
def test_more_than_sixteen_axes_are_refused(shape):
    array = fresh(int(np.prod(shape))).reshape(shape)
    wide = host(array)
    for obj in (array, wide):
        with pytest.raises(ValueError, match="between 0 and 16"):
            tensor.describe(obj)
    assert wide.exports == wide.releases == 1


@pytest.mark.parametrize(
    "obj", [None, 3, 2.5, "text", b"bytes", [1, 2], {}, object(), np.float32(1), np.ndarray]
)
def test_an_object_that_is_no_tensor(obj):
    with pytest.raises(TypeError, match=r"expected a tensor .*" + type(obj).__qualname__):
        tensor.describe(obj)
    with pytest.raises(TypeError, match=type(obj).__qualname__):
        tensor.current_stream(obj, 0)


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("signature", ["full", "stream", "stream+version", "none"])
def test_every_signature_of_dlpack(signature, versioned):
    """F54."""
    array = fresh(2, 5, 3)[:, 1:, :]
    lent = host(array, signature=signature, versioned=versioned)
    info = tensor.describe(lent)
    assert (info.pointer, info.shape, info.dtype) == (array.ctypes.data, (2, 4, 3), "float32")
    assert info.strides == (15, 3, 1)
    assert lent.exports == lent.releases == 1
    if signature != "none":
        assert lent.requests[0]["stream"] is None, "a host tensor has no stream"
    if signature == "full":
        assert lent.requests[0]["max_version"] == (1, 3)


@pytest.mark.parametrize("offset", [0, 64, 4096])
@pytest.mark.parametrize("versioned", [True, False])
def test_byte_offset_is_added(offset, versioned):
    """F51."""
    array = fresh(7)
    info = tensor.describe(host(array, byte_offset=offset, versioned=versioned))
    assert info.pointer == array.ctypes.data


def test_null_strides_mean_packed():
    info = tensor.describe(host(fresh(3, 4, 5), null_strides=True))
    assert info.strides == (20, 5, 1)


def test_axes_of_extent_one_keep_the_strides_given():
    """F50: what they are does not matter, and they are reported as they are."""
    strides = (128, int(rng.integers(2, 1000)), 1)
    info = tensor.describe(host(fresh(512, 1, 128), strides=strides))
    assert info.strides == strides


@pytest.mark.parametrize("readonly", [True, False])
def test_the_read_only_flag(readonly):
    """F55."""
    assert tensor.describe(host(fresh(3), readonly=readonly)).readonly is readonly


@pytest.mark.parametrize(
    ("code", "bits", "lanes", "name"),
    [
        (BFLOAT, 16, 2, "bfloat16x2"),
        (FLOAT, 32, 4, "float32x4"),
        (10, 8, 1, "float8_e4m3fn"),
        (17, 4, 2, "float4_e2m1fnx2"),
        (15, 6, 1, "float6_e2m3fn"),
        (3, 64, 1, "opaque64"),
        (FLOAT, 128, 1, "float128"),
        (99, 8, 1, "code99_8"),
    ],
)
def test_names_of_element_types(code, bits, lanes, name):
    """F57: nothing is read as something that it is not."""
    assert tensor.describe(host(fresh(3), code=code, bits=bits, lanes=lanes)).dtype == name


@pytest.mark.parametrize("major", [0, 2, 7])
def test_another_major_version_is_refused_and_released(major):
    lent = host(fresh(3), major=major)
    with pytest.raises(BufferError, match=rf"DLPack {major}\.3.*major version 1"):
        tensor.describe(lent)
    assert lent.exports == lent.releases == 1


def test_a_producer_without_a_deleter():
    lent = host(fresh(3), null_deleter=True)
    assert tensor.describe(lent).shape == (3,)


def test_an_empty_tensor_and_one_without_axes():
    assert tensor.describe(host(fresh(0, 4))).shape == (0, 4)
    scalar = tensor.describe(host(np.float32(2.5).reshape(())))
    assert (scalar.shape, scalar.strides) == ((), ())


@pytest.mark.parametrize(("device_type", "stream"), [(CUDA, 1), (CUDA_HOST, None)])
def test_the_stream_that_a_producer_is_asked_for(device_type, stream):
    """1 is the legacy default stream in DLPack's terms; 0 is not allowed."""
    lent = FakeCuda(fresh(3), 1, device_type=device_type)
    info = tensor.describe(lent)
    assert (info.device_type, info.device_id) == (device_type, 1)
    assert lent.requests[0]["stream"] == stream


class Broken:
    """A producer whose __dlpack__ does what `behaviour` says."""

    def __init__(self, behaviour):
        self.behaviour = behaviour

    def __dlpack_device__(self):
        return (CPU, 0)

    def __dlpack__(self, **keywords):
        return self.behaviour()


def test_what_a_producer_raises_reaches_the_caller():
    def refuse():
        raise BufferError("this tensor requires grad")

    with pytest.raises(BufferError, match="requires grad"):
        tensor.describe(Broken(refuse))


@pytest.mark.parametrize("result", [None, 5, "capsule"])
def test_a_producer_that_returns_no_capsule(result):
    with pytest.raises(TypeError, match="must return a capsule named dltensor_versioned"):
        tensor.describe(Broken(lambda: result))


def test_a_used_capsule_is_refused():
    lent = host(fresh(3))
    producer = Broken(itertools.repeat(lent.__dlpack__(max_version=(1, 3))).__next__)
    assert tensor.describe(producer).shape == (3,)
    with pytest.raises(TypeError, match="used capsule"):
        tensor.describe(producer)
    del producer
    gc.collect()
    assert lent.exports == lent.releases == 1


@pytest.mark.parametrize("versioned", [True, False])
def test_ten_thousand_imports_release_once_each_and_keep_nothing(versioned):
    """F53."""
    import tracemalloc

    array = fresh(4)

    def import_many(count):
        exports = releases = 0
        for _ in range(count):
            lent = host(array, versioned=versioned)
            tensor.describe(lent)
            exports += lent.exports
            releases += lent.releases
        return exports, releases

    before_lent = len(fake_tensor._lent)
    import_many(200)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        counts = import_many(10_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert counts == (10_000, 10_000)
    assert len(fake_tensor._lent) == before_lent
    assert grown < 32 * 1024


class Handle:
    """An object with the attributes given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0, 0),
        (2, 2),
        ((1 << 64) - 1, (1 << 64) - 1),
        (Handle(__cuda_stream__=lambda: (0, 4711)), 4711),
        (Handle(__cuda_stream__=(0, 4712)), 4712),
        (Handle(cuda_stream=4713), 4713),
        (Handle(ptr=4714), 4714),
    ],
)
def test_streams_are_taken_in_every_form(stream, handle):
    assert tensor.stream_of(stream) == handle


@pytest.mark.parametrize(
    ("stream", "error", "says"),
    [
        (True, TypeError, "bool"),
        (1.0, TypeError, "float"),
        (None, TypeError, "NoneType"),
        (Handle(), TypeError, "Handle"),
        (Handle(ptr="7"), TypeError, "Handle"),
        (Handle(__cuda_stream__=lambda: (1, 5)), TypeError, "version 1"),
        (-1, ValueError, "got -1"),
        (1 << 64, ValueError, "18446744073709551616"),
    ],
)
def test_what_is_no_stream(stream, error, says):
    with pytest.raises(error, match=says):
        tensor.stream_of(stream)


def test_frameworks_without_a_current_stream_use_the_legacy_one():
    assert tensor.current_stream(fresh(3), 0) == 0
    assert tensor.current_stream(FakeCuda(fresh(3)), 0) == 0
