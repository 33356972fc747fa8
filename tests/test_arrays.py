"""Tensors of the frameworks: what they are, and their way to numpy and back."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from helpers import fake_cupy, fake_jax

from cakert import arrays

DTYPES = ["bool", "uint8", "int32", "int64", "float16", "float32", "bfloat16"]


def random_array(name, shape=(3, 4, 5)):
    rng = np.random.default_rng()
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return rng.integers(0, 2 if name == "bool" else 100, shape).astype(dtype)


@pytest.mark.parametrize("name", DTYPES)
def test_numpy(name):
    a = random_array(name)
    view = a.transpose(2, 0, 1)[::2]
    info = arrays.inspect(view)
    assert info == arrays.ArrayInfo("numpy", ("cpu", 0), name, (3, 3, 4), (2, 20, 5))
    assert not info.contiguous
    assert arrays.inspect(a).contiguous
    assert arrays.device_of(a) == ("cpu", 0)
    assert arrays.dtype_name(a) == name
    assert arrays.to_numpy(view) is view
    assert arrays.from_numpy(a, like=view) is a
    fresh = arrays.empty(like=view, shape=(2, 3), dtype="bfloat16")
    assert (fresh.shape, fresh.dtype) == ((2, 3), ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", DTYPES)
def test_torch_round_trip(name):
    torch = pytest.importorskip("torch")
    a = random_array(name)
    tensor = arrays.from_numpy(a.copy(), like=torch.empty(1))
    assert tensor.dtype is getattr(torch, name)
    assert tuple(tensor.shape) == a.shape
    back = arrays.to_numpy(tensor)
    assert back.dtype == a.dtype
    assert np.array_equal(back, a)
    tensor.zero_()
    assert not back.any(), "memory is shared"
    tensor.copy_(arrays.from_numpy(a.copy(), like=tensor))

    view = tensor.permute(2, 0, 1)[::2]
    info = arrays.inspect(view)
    assert info == arrays.ArrayInfo("torch", ("cpu", 0), name, (3, 3, 4), (2, 20, 5))
    expected = arrays.to_numpy(tensor).transpose(2, 0, 1)[::2]
    assert np.array_equal(arrays.to_numpy(view), expected)


def test_torch_lazy_bits_and_gradients():
    torch = pytest.importorskip("torch")
    z = torch.randn(5, dtype=torch.complex64)
    assert np.array_equal(arrays.to_numpy(z.conj()), z.numpy().conj())
    assert np.array_equal(arrays.to_numpy(z.conj().imag), -z.imag.numpy())
    x = torch.nn.Parameter(torch.randn(3, 2))
    assert np.array_equal(arrays.to_numpy(x), x.detach().numpy())
    assert arrays.framework_of(x) == "torch"


def test_torch_tensors_that_have_no_place():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"mask must be a dense tensor, got layout torch\.sparse"):
        arrays.inspect(torch.eye(3).to_sparse(), "mask")
    assert arrays.device_of(torch.empty(2, device="meta")) == ("meta", 0)


def test_empty_like_torch():
    torch = pytest.importorskip("torch")
    for dtype in ("float16", "bfloat16", "float32"):
        fresh = arrays.empty(like=torch.empty(3), shape=(4, 2), dtype=dtype)
        assert isinstance(fresh, torch.Tensor)
        assert (tuple(fresh.shape), fresh.dtype) == ((4, 2), getattr(torch, dtype))
        assert fresh.is_contiguous()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_as_bool_and_overwrite(framework):
    a = np.random.default_rng().integers(0, 3, (4, 6)).astype(np.uint8)
    tensor = a
    if framework == "torch":
        tensor = pytest.importorskip("torch").from_numpy(a)
    flags = arrays.as_bool(tensor)
    assert arrays.framework_of(flags) == framework
    assert arrays.dtype_name(flags) == "bool"
    expected = a != 0
    a[:] = 0
    assert np.array_equal(arrays.to_numpy(flags), expected), "a copy, not a view"

    target = arrays.from_numpy(np.zeros((2, 3), np.int32), like=tensor)
    values = np.random.default_rng().integers(1, 9, (2, 3)).astype(np.int32)
    assert arrays.overwrite(target, values) is target
    assert np.array_equal(arrays.to_numpy(target), values)


def test_cupy(monkeypatch):
    fake_cupy.install(monkeypatch)
    a = random_array("int32")
    x = fake_cupy.Ndarray(a[:, ::2], device_id=1)
    info = arrays.inspect(x)
    assert info == arrays.ArrayInfo("cupy", ("cuda", 1), "int32", (3, 2, 5), (20, 10, 1))
    assert np.array_equal(arrays.to_numpy(x), a[:, ::2])
    assert not np.shares_memory(arrays.to_numpy(x), a)
    made = arrays.from_numpy(a, like=x)
    assert (made.device.id, arrays.framework_of(made)) == (1, "cupy")
    assert arrays.overwrite(made, 2 * a) is made
    assert np.array_equal(made.hidden, 2 * a)
    fresh = arrays.empty(like=x, shape=(7,), dtype="bfloat16")
    assert (fresh.device.id, fresh.shape, fresh.dtype) == (1, (7,), ml_dtypes.bfloat16)
    assert np.array_equal(arrays.as_bool(x).hidden, a[:, ::2] != 0)


def test_jax(monkeypatch):
    fake_jax.install(monkeypatch)
    gpu, cpu = fake_jax.Device("gpu", 9, local_hardware_id=1), fake_jax.Device("cpu", 0)
    a = random_array("bfloat16")
    x = fake_jax.Array(a, gpu)
    info = arrays.inspect(x)
    assert info == arrays.ArrayInfo("jax", ("cuda", 1), "bfloat16", (3, 4, 5), (20, 5, 1))
    assert info.contiguous
    assert np.array_equal(arrays.to_numpy(x), a)
    made = arrays.from_numpy(a, like=x)
    assert made.devices() == {gpu}
    replaced = arrays.overwrite(made, a + a)
    assert replaced is not made, "JAX arrays are immutable"
    assert np.array_equal(replaced.hidden, a + a)
    assert arrays.device_of(fake_jax.Array(a, cpu)) == ("cpu", 0)
    assert arrays.device_of(fake_jax.Array(a, fake_jax.Device("cuda", 3))) == ("cuda", 3)
    assert arrays.device_of(fake_jax.Array(a, gpu, cpu))[0] == "jax array over 2 devices"


@pytest.mark.parametrize(
    "value", [[1, 2], 3, 1.5, "mask", None, np.float32(2), np.ndarray, object()]
)
def test_what_is_no_tensor(value):
    with pytest.raises(
        TypeError, match=f"block_mask must be a tensor .*got {type(value).__name__}"
    ):
        arrays.framework_of(value, "block_mask")


class Producer:
    """A DLPack producer on the CPU that nobody knows."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **keywords):
        return self.values.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


@pytest.mark.parametrize("name", ["bool", "uint8", "int32", "int64", "float16"])
def test_unknown_dlpack_producer(name):
    a = random_array(name)
    view = a.transpose(2, 0, 1)[::2]
    x = Producer(view)
    info = arrays.inspect(x)
    assert info == arrays.ArrayInfo("other", ("cpu", 0), name, (3, 3, 4), (2, 20, 5))
    assert np.array_equal(arrays.to_numpy(x), view)
    assert arrays.from_numpy(a, like=x) is a
    assert arrays.as_bool(x).dtype == bool


@pytest.mark.parametrize(
    ("shape", "strides", "packed"),
    [
        ((4, 3), (3, 1), True),
        ((4, 1), (1, 77), True),
        ((1, 3), (5, 1), True),
        ((4, 3), (4, 1), False),
        ((4, 3), (1, 4), False),
        ((4, 3), (-3, 1), False),
        ((0, 3), (9, 9), True),
        ((), (), True),
    ],
)
def test_contiguous(shape, strides, packed):
    info = arrays.ArrayInfo("numpy", ("cpu", 0), "int32", shape, strides)
    assert info.contiguous == packed


def test_no_framework_is_imported():
    code = (
        "import sys, numpy as np; from cakert import arrays\n"
        "a = arrays.to_numpy(np.ones(3)); arrays.empty(like=a, shape=(2,), dtype='float16')\n"
        "print([m for m in ('torch', 'jax', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
