"""Python arguments as the bytes of a kernel's parameters.

The driver reports offset and size of each parameter, not its type: a value whose own size is
known (numpy, ctypes, bytes) must match it, a Python int must fit it, a Python float goes into 4 or
8 bytes.
"""
import ctypes
import math
import sys

from libc.string cimport memcpy, memset

from cakert.runtime.tensor cimport TensorView, is_tensor, release_view, view_tensor

# ctypes has no public base class for "any C value"; every one of its types derives from this one.
cdef object CTYPES_DATA = ctypes._SimpleCData.__mro__[1]


cdef bint is_numpy_scalar(object value) except -1:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


cdef bint is_scalar(object value) except -1:
    if value is None or isinstance(value, (int, float, bytes, bytearray, memoryview)):
        return True
    return isinstance(value, CTYPES_DATA) or is_numpy_scalar(value)


cdef int check_count(str name, Py_ssize_t expected, Py_ssize_t given) except -1:
    if expected != given:
        raise TypeError(
            f"{name} takes {expected} arguments, the parameters of the kernel; got {given}"
        )
    return 0


cdef Py_ssize_t block_bytes(tuple layout) except -1:
    return max([offset + size for offset, size in layout], default=0)


cdef int size_mismatch(Py_ssize_t index, size_t size, object value, object got) except -1:
    raise ValueError(
        f"argument {index} must have {size} bytes, the size of the kernel's parameter; "
        f"{type(value).__qualname__} has {got}"
    )


cdef int pack_scalar(object value, char* out, size_t size, Py_ssize_t index) except -1:
    # numpy before float: numpy.float64 derives from float, and its size is its own.
    if is_numpy_scalar(value):
        return pack_bytes(value.tobytes(), value, out, size, index)
    if isinstance(value, CTYPES_DATA):
        return pack_bytes(bytes(value), value, out, size, index)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return pack_bytes(bytes(value), value, out, size, index)
    if value is None:
        if size != 8:
            return size_mismatch(index, size, value, "the 8 of a null pointer")
        memset(out, 0, size)
        return 0
    if isinstance(value, int):
        return pack_int(value, out, size, index)
    if isinstance(value, float):
        return pack_float(value, out, size, index)
    raise TypeError(
        f"argument {index} must be a tensor, a number, a numpy or ctypes scalar, bytes or None; "
        f"got {type(value).__module__}.{type(value).__qualname__}"
    )


cdef int pack_bytes(
    bytes data, object value, char* out, size_t size, Py_ssize_t index
) except -1:
    if <size_t>len(data) != size:
        return size_mismatch(index, size, value, len(data))
    memcpy(out, <const char*>data, size)
    return 0


cdef int pack_int(object value, char* out, size_t size, Py_ssize_t index) except -1:
    cdef object width = 8 * size     # a Python int: the ranges of 8 bytes overflow C arithmetic
    cdef object low, high
    if size not in (1, 2, 4, 8):
        raise ValueError(
            f"argument {index}: the kernel's parameter has {size} bytes, which no int fills; pass "
            "bytes or a ctypes structure of that size"
        )
    # The sign of the parameter is unknown: what either reading can hold is taken.
    low, high = -(1 << (width - 1)), (1 << width) - 1
    if not low <= value <= high:
        raise ValueError(
            f"argument {index} must be in [{low}, {high}] to fit the {size} bytes of the kernel's "
            f"parameter; got {value}"
        )
    return pack_bytes((int(value) & high).to_bytes(size, sys.byteorder), value, out, size, index)


cdef int pack_float(double value, char* out, size_t size, Py_ssize_t index) except -1:
    cdef float single
    if size == 8:
        memcpy(out, &value, 8)
        return 0
    if size != 4:
        raise ValueError(
            f"argument {index}: a Python float goes into 4 or 8 bytes, the kernel's parameter has "
            f"{size}; pass a numpy scalar of the parameter's type"
        )
    single = <float>value
    if math.isinf(single) and not math.isinf(value):
        raise ValueError(
            f"argument {index} must be within the range of float32 (3.4e38); got {value!r}"
        )
    memcpy(out, &single, 4)
    return 0


def pack(layout, args):
    """Pack arguments as a launch would, into the bytes of the whole parameter block.

    Parameters
    ----------
    layout : sequence of (int, int)
        Offset and size in bytes of each parameter, ascending, as `Kernel.param_layout` has them.
    args : sequence
        One argument a parameter; tensors, on the CPU too, give their 8-byte address.

    Returns
    -------
    bytes
        From offset 0 to the end of the last parameter; padding is zero.

    Raises
    ------
    TypeError
        Wrong number of arguments, or a value of a type that no parameter takes.
    ValueError
        A value of another size than the parameter, or out of its range.
    """
    cdef Py_ssize_t index
    cdef size_t offset, size
    cdef TensorView view
    cdef bytearray block
    cdef char* start
    layout = tuple(layout)
    args = tuple(args)
    check_count("the kernel", len(layout), len(args))
    block = bytearray(block_bytes(layout))
    start = block
    for index in range(len(layout)):
        offset, size = layout[index]
        if is_scalar(args[index]) or not is_tensor(args[index]):
            pack_scalar(args[index], start + offset, size, index)
            continue
        if size != 8:
            size_mismatch(index, size, args[index], "the 8 of an address")
        view_tensor(args[index], NULL, &view)
        memcpy(start + offset, &view.data, 8)
        release_view(&view)
    return bytes(block)
