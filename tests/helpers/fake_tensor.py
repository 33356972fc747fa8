"""Tensors "on a GPU" whose memory is that of a numpy array: producers of DLPack and of
``__cuda_array_interface__``, written with ctypes from the two specifications.

Under the stub driver device memory is host memory, so such a tensor can be planned with, run on
and read back. A producer records what it was asked and counts exports and releases.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import ml_dtypes
import numpy.typing as npt

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL, FLOAT8_E4M3FN = 0, 1, 2, 4, 5, 6, 10
READ_ONLY = 1  # flag of a versioned tensor

_CODES = {"i": INT, "u": UINT, "f": FLOAT, "c": COMPLEX, "b": BOOL}
Signature = Literal["full", "stream", "stream+version", "none"]


class _Device(ctypes.Structure):
    _fields_: ClassVar = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_: ClassVar = [
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class _Tensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_: ClassVar = [
        ("tensor", _Tensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


class _ManagedVersioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype = ctypes.c_int
_capsule_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_NAMES = (b"dltensor", b"dltensor_versioned")  # capsules keep the pointer: these must live on

# Exports that nobody has released: address of the managed tensor -> (producer, what it points to).
_lent: dict[int, tuple[_Producer, object]] = {}


@_Deleter
def _release(address: int) -> None:
    # A second release of one export finds no entry: the count then exceeds the exports.
    producer, _ = _lent.pop(address, (None, None))
    (producer or _Producer.last).releases += 1


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _destroy_capsule(capsule: int) -> None:
    """A capsule that nobody consumed releases its tensor; a consumed one was renamed."""
    for name in _NAMES:
        if _capsule_is_valid(capsule, name):
            _release(_capsule_pointer(capsule, name))


class _Producer:
    """Counts and records, whatever the signature of ``__dlpack__``.

    Attributes
    ----------
    exports, releases
        Capsules made, deleters run.
    requests
        Keyword arguments of each ``__dlpack__`` call that succeeded, as received.
    """

    last: ClassVar[_Producer]

    def __init__(
        self,
        array: npt.NDArray[Any],
        device: int = 0,
        *,
        device_type: int = CUDA,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        null_strides: bool = False,
        byte_offset: int = 0,
        readonly: bool = False,
        versioned: bool = True,
        major: int = 1,
        code: int | None = None,
        bits: int | None = None,
        lanes: int = 1,
        null_deleter: bool = False,
    ) -> None:
        self.array = array
        self.shape = tuple(array.shape if shape is None else shape)
        if strides is None:
            strides = [stride // array.itemsize for stride in array.strides]
        self._strides = None if null_strides else tuple(strides)
        self._device = (device_type, device)
        self._byte_offset = byte_offset
        self._readonly = readonly
        self._versioned = versioned
        self._major = major
        is_bfloat16 = array.dtype == ml_dtypes.bfloat16
        self._code = (
            code if code is not None else BFLOAT if is_bfloat16 else _CODES[array.dtype.kind]
        )
        self._bits = bits if bits is not None else array.itemsize * 8
        self._lanes = lanes
        self._null_deleter = null_deleter
        self.exports = 0
        self.releases = 0
        self.requests: list[dict[str, Any]] = []
        _Producer.last = self

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    @property
    def address(self) -> int:
        """Where the tensor's first element lies."""
        return int(self.array.__array_interface__["data"][0])

    def _export(self, versioned_allowed: bool, request: dict[str, Any]) -> object:
        self.requests.append(request)
        self.exports += 1
        versioned = self._versioned and versioned_allowed
        managed: _Managed | _ManagedVersioned = _ManagedVersioned() if versioned else _Managed()
        ndim = len(self.shape)
        shape = (ctypes.c_int64 * ndim)(*self.shape)
        tensor = managed.tensor
        # A producer with an offset reports the allocation's base, which lies before the element.
        tensor.data = self.address - self._byte_offset
        tensor.byte_offset = self._byte_offset
        tensor.device = _Device(*self._device)
        tensor.dtype = _DataType(self._code, self._bits, self._lanes)
        tensor.ndim = ndim
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        strides = None
        if self._strides is not None:
            strides = (ctypes.c_int64 * ndim)(*self._strides)
            tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        if not self._null_deleter:
            managed.deleter = _release
        if isinstance(managed, _ManagedVersioned):
            managed.major, managed.minor = self._major, 3
            managed.flags = READ_ONLY if self._readonly else 0
        address = ctypes.addressof(managed)
        _lent[address] = (self, (managed, shape, strides))
        return _capsule_new(
            address, _NAMES[versioned], ctypes.cast(_destroy_capsule, ctypes.c_void_p)
        )


class _Full(_Producer):
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        request = {"stream": stream, "max_version": max_version, "copy": copy}
        return self._export(max_version is not None and max_version[0] >= 1, request)


class _StreamAndVersion(_Producer):
    def __dlpack__(self, stream: Any = None, max_version: tuple[int, int] | None = None) -> object:
        request = {"stream": stream, "max_version": max_version}
        return self._export(max_version is not None and max_version[0] >= 1, request)


class _StreamOnly(_Producer):
    def __dlpack__(self, stream: Any = None) -> object:
        return self._export(False, {"stream": stream})


class _NoArguments(_Producer):
    def __dlpack__(self) -> object:
        return self._export(False, {})


_SIGNATURES: dict[str, type[_Producer]] = {
    "full": _Full,
    "stream+version": _StreamAndVersion,
    "stream": _StreamOnly,
    "none": _NoArguments,
}


def FakeCuda(
    array: npt.NDArray[Any], device: int = 0, *, signature: Signature = "full", **options: Any
) -> Any:
    """A DLPack producer that says its memory, the array's, is on CUDA device `device`.

    Parameters
    ----------
    array
        Lent, not copied. bfloat16 by ml_dtypes.
    signature
        What ``__dlpack__`` takes: everything, (stream), (stream, max_version), or nothing.
    **options
        device_type, shape, strides (in elements), null_strides, byte_offset (bytes from the
        base that is reported to the array), readonly, versioned (False: the old capsule whatever
        is asked, as JAX does), major, code, bits, lanes, null_deleter.
    """
    return _SIGNATURES[signature](array, device, **options)


class FakeCai:
    """A ``__cuda_array_interface__`` producer over a numpy array's memory.

    The interface does not say on which device the memory is, so consumers ask the driver: the
    stub is told, for as long as this object lives.

    Parameters
    ----------
    array
        Lent, not copied. The interface has no bfloat16: such an array is refused.
    device
        Where the driver says that the memory is.
    stream
        The entry of that name: the stream that the data are ready on; None leaves it out.
    with_strides
        Whether the entry is filled for a packed array, too.
    """

    def __init__(
        self,
        array: npt.NDArray[Any],
        device: int = 0,
        *,
        stream: int | None = None,
        readonly: bool = False,
        with_strides: bool = False,
        version: int = 3,
    ) -> None:
        assert array.dtype != ml_dtypes.bfloat16, "no bfloat16 in __cuda_array_interface__"
        self.array = array
        self.reads = 0
        packed = array.flags.c_contiguous and not with_strides
        self._interface: dict[str, Any] = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.__array_interface__["data"][0], readonly),
            "strides": None if packed else array.strides,
            "version": version,
        }
        if stream is not None:
            self._interface["stream"] = stream
        reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        low = array.__array_interface__["data"][0] + sum(min(0, r) for r in reach)
        nbytes = sum(map(abs, reach)) + array.itemsize
        stub, base = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(low)
        stub.stub_lend(base, ctypes.c_size_t(nbytes), device)
        weakref.finalize(self, stub.stub_take_back, base)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.reads += 1
        return dict(self._interface)
