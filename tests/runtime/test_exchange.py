"""The DLPack C exchange interface, offered by types made here with ctypes."""

from __future__ import annotations

import ctypes
import gc
import itertools
import weakref
from typing import ClassVar

import numpy as np
import pytest

from cakert.runtime import tensor

rng = np.random.default_rng()

CPU, FLOAT = 1, 2


class DLTensor(ctypes.Structure):
    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


# PYFUNCTYPE keeps the GIL and raises what the callback raised, as a producer in C would.
Lend = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
Give = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class Table(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("managed_from_object", Give),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", Lend),
        ("current_work_stream", Stream),
    ]


capsule_new = ctypes.pythonapi.PyCapsule_New
capsule_new.restype = ctypes.py_object
capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NAME = b"dlpack_exchange_api"


class Tensor:
    """A tensor over a numpy array; counts what it lent and gave."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        self.lent = self.given = self.released = 0


def fill(obj: Tensor, out: DLTensor) -> None:
    out.data = obj.array.ctypes.data - 256
    out.byte_offset = 256
    out.device_type, out.device_id = CPU, 0
    out.ndim = obj.array.ndim
    out.code, out.bits, out.lanes = FLOAT, 32, 1
    out.shape = ctypes.addressof(obj.shape)
    out.strides = ctypes.addressof(obj.strides)


@Lend
def lend(obj, out):
    fill(obj, out[0])
    obj.lent += 1
    return 0


alive: dict[int, tuple[Managed, Tensor]] = {}


@Deleter
def delete(address):
    _, obj = alive.pop(address)
    obj.released += 1


@Give
def give(obj, out):
    managed = Managed(major=1, minor=3, flags=1, deleter=delete)
    fill(obj, managed.tensor)
    obj.given += 1
    alive[ctypes.addressof(managed)] = managed, obj
    out[0] = ctypes.addressof(managed)
    return 0


streams: list[tuple[int, int]] = []


@Stream
def current(device_type, device_id, out):
    streams.append((device_type, device_id))
    out[0] = 9000 + device_id
    return 0


def table(major: int = 1, prev: Table | None = None, lends: bool = True) -> Table:
    return Table(
        major=major,
        minor=3,
        prev_api=ctypes.addressof(prev) if prev is not None else None,
        managed_from_object=give,
        tensor_from_object=lend if lends else Lend(),
        current_work_stream=current,
    )


serial = itertools.count()


def new_type(api: Table, **attributes) -> type[Tensor]:
    capsule = capsule_new(ctypes.addressof(api), NAME, None)
    attributes = {"__dlpack_c_exchange_api__": capsule, "table": api, **attributes}
    return type(f"Tensor{next(serial)}", (Tensor,), attributes)


def array() -> np.ndarray:
    return rng.standard_normal((3, 8)).astype(np.float32)[:, ::2]


def test_a_view_is_borrowed_where_the_producer_lends_one():
    obj = new_type(table())(array())
    info = tensor.describe(obj)
    assert info.pointer == obj.array.ctypes.data, "byte_offset is added"
    assert (info.shape, info.strides, info.dtype) == ((3, 4), (8, 2), "float32")
    assert (obj.lent, obj.given, info.readonly) == (1, 0, False)


def test_a_producer_that_lends_none_gives_an_owned_tensor():
    obj = new_type(table(lends=False))(array())
    info = tensor.describe(obj)
    assert (info.pointer, info.readonly) == (obj.array.ctypes.data, True)
    assert (obj.lent, obj.given, obj.released) == (0, 1, 1)
    assert not alive


def test_an_older_table_of_our_version_is_found_in_the_chain():
    newest = table(major=3, prev=(middle := table(major=2, prev=(ours := table()))))
    for newer in (newest, middle):  # whose functions must not be called
        newer.tensor_from_object = Lend(lambda obj, out: pytest.fail("a table of another version"))
    obj = new_type(newest, keep=(middle, ours))(array())
    assert tensor.describe(obj).shape == (3, 4)
    assert obj.lent == 1


def test_without_a_table_of_our_version_the_capsule_is_asked():
    class Capsules:
        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **keywords):
            return self.array.__dlpack__(**keywords)

    obj = new_type(
        table(major=2),
        __dlpack__=Capsules.__dlpack__,
        __dlpack_device__=Capsules.__dlpack_device__,
    )(array())
    assert tensor.describe(obj).pointer == obj.array.ctypes.data
    assert obj.lent == obj.given == 0


def test_the_table_is_looked_up_on_the_type():
    obj = Tensor(array())
    api = table()
    obj.__dlpack_c_exchange_api__ = capsule_new(ctypes.addressof(api), NAME, None)
    with pytest.raises(TypeError, match="expected a tensor"):
        tensor.describe(obj)


@pytest.mark.parametrize("value", [None, 5, "dlpack_exchange_api"])
def test_an_attribute_that_is_no_table(value):
    kind = type("Odd", (Tensor,), {"__dlpack_c_exchange_api__": value})
    with pytest.raises(TypeError, match="expected a tensor"):
        tensor.describe(kind(array()))


def test_the_error_of_a_producer_reaches_the_caller():
    # A ctypes callback cannot return with an exception set. PyObject_Size can, and is called with
    # the same first argument: it returns -1 with TypeError set for an object without a length.
    api = table()
    function = ctypes.cast(ctypes.pythonapi.PyObject_Size, ctypes.c_void_p)
    ctypes.memmove(
        ctypes.addressof(api) + Table.tensor_from_object.offset,
        ctypes.byref(function),
        ctypes.sizeof(function),
    )
    with pytest.raises(TypeError, match="has no len"):
        tensor.describe(new_type(api)(array()))


def test_the_current_stream_is_asked_of_the_table():
    obj = new_type(table())(array())
    streams.clear()
    assert tensor.current_stream(obj, 3) == 9003
    assert streams == [(2, 3)]


def test_many_types_are_told_apart():
    """One type's table must not serve another: the cache has one entry before its dictionary."""
    kinds = [new_type(table(lends=bool(i % 2))) for i in range(8)]
    objects = [kind(array()) for kind in kinds]
    order = rng.permutation(np.repeat(np.arange(8), 5))
    for index in order:
        info = tensor.describe(objects[index])
        assert info.pointer == objects[index].array.ctypes.data
    assert [obj.lent for obj in objects] == [0, 5] * 4
    assert [obj.given for obj in objects] == [obj.released for obj in objects] == [5, 0] * 4


def test_types_are_kept_and_objects_are_not():
    """The address of a freed type could be reused by a type without a table."""
    kind = new_type(table())
    obj = kind(array())
    tensor.describe(obj)
    gone = weakref.ref(obj)
    kept = weakref.ref(kind)
    del obj, kind
    gc.collect()
    assert gone() is None
    assert kept() is not None


def test_ten_thousand_owned_views_are_released():
    """F53."""
    obj = new_type(table(lends=False))(array())
    for _ in range(10_000):
        tensor.describe(obj)
    assert obj.given == obj.released == 10_000
    assert not alive
