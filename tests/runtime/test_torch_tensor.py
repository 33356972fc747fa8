"""torch tensors on the CPU: by the exchange interface and by capsule."""

from __future__ import annotations

import gc
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from cakert.runtime import tensor

torch = pytest.importorskip("torch")

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip


class Capsules:
    """A torch tensor whose type offers capsules only, as in torch before 2.10."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **keywords):
        return self.tensor.__dlpack__(**keywords)


class Subclass(torch.Tensor):
    pass


def check(info, expected):
    assert info.pointer == expected.data_ptr()
    assert info.shape == tuple(expected.shape)
    assert info.dtype == str(expected.dtype).removeprefix("torch.")
    for extent, ours, theirs in zip(expected.shape, info.strides, expected.stride(), strict=True):
        assert extent <= 1 or ours == theirs
    assert (info.device_type, info.device_id, info.readonly) == (1, 0, False)


@pytest.mark.parametrize("wrap", [lambda t: t, Capsules], ids=["exchange", "capsule"])
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype(name, wrap):
    source = torch.randint(1, 100, (4, 6, 5)).to(getattr(torch, name))[1:, ::2].transpose(0, 2)
    check(tensor.describe(wrap(source)), source)


@pytest.mark.parametrize("wrap", [lambda t: t, Capsules], ids=["exchange", "capsule"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 1, 7), (1,) * 12])
def test_every_shape(shape, wrap):
    source = torch.randn(shape)
    check(tensor.describe(wrap(source)), source)


def test_the_framework_is_found_along_the_bases():
    plain = torch.randn(3)
    for obj in (plain, torch.nn.Parameter(plain), plain.as_subclass(Subclass)):
        info = tensor.describe(obj)
        assert info.framework == "torch"
        assert info.pointer == obj.data_ptr()


def test_the_current_stream_without_cuda_is_the_legacy_one():
    assert tensor.current_stream(torch.randn(3), 0) == 0


def test_layouts_without_an_address_raise_torchs_error():
    with pytest.raises(RuntimeError):
        tensor.describe(torch.randn(3, 3).to_sparse())


def test_ten_thousand_views_keep_nothing():
    """F53."""
    source = torch.randn(4, 5)

    def view_many(count):
        for _ in range(count):
            tensor.describe(source[1:])

    view_many(200)
    tracemalloc.start()
    try:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        view_many(10_000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 32 * 1024


FIELDS = {
    ("CakeDLTensor", "DLTensor"): ("data", "device", "ndim", "dtype", "shape", "strides",
                                   "byte_offset"),
    ("CakeDLDevice", "DLDevice"): ("device_type", "device_id"),
    ("CakeDLDataType", "DLDataType"): ("code", "bits", "lanes"),
    ("CakeDLPackVersion", "DLPackVersion"): ("major", "minor"),
    ("CakeDLManagedTensor", "DLManagedTensor"): ("dl_tensor", "manager_ctx", "deleter"),
    ("CakeDLManagedTensorVersioned", "DLManagedTensorVersioned"): (
        "version", "manager_ctx", "deleter", "flags", "dl_tensor"),
    ("CakeDLPackExchangeHeader", "DLPackExchangeAPIHeader"): ("version", "prev_api"),
    ("CakeDLPackExchangeAPI", "DLPackExchangeAPI"): (
        "header", "managed_tensor_allocator", "managed_tensor_from_py_object_no_sync",
        "managed_tensor_to_py_object_no_sync", "dltensor_from_py_object_no_sync",
        "current_work_stream"),
}  # fmt: skip


def test_our_abi_is_that_of_torchs_header(tmp_path):
    """Sizes and offsets of every struct, compared by a compiler that sees both headers."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "a source install needs a C++ compiler, and so does this test"
    theirs = Path(torch.__file__).parent / "include" / "ATen" / "dlpack.h"
    ours = Path(tensor.__file__).parent / "dlpack_abi.h"
    lines = [
        "#include <cstddef>",
        f'#include "{theirs}"',
        f'#include "{ours}"',
        '#define SAME(a, b) static_assert((a) == (b), #a " differs from " #b)',
        "SAME(CAKE_DLPACK_MAJOR, DLPACK_MAJOR_VERSION);",
        "SAME(CAKE_DLPACK_READ_ONLY, DLPACK_FLAG_BITMASK_READ_ONLY);",
        "SAME(CAKE_DLPACK_SUBBYTE_PADDED, DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);",
    ]
    for (mine, other), names in FIELDS.items():
        lines.append(f"SAME(sizeof({mine}), sizeof({other}));")
        lines += [f"SAME(offsetof({mine}, {n}), offsetof({other}, {n}));" for n in names]
    source = tmp_path / "abi.cpp"
    source.write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
