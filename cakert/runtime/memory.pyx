"""Device memory: `Workspace` for the metadata of a plan, `DeviceArray` for tensors.

A workspace is freed by cuMemFree, which waits for every stream: its owner may die while a kernel
still reads it. A device array is allocated and freed in the order of one stream and waits for none.
"""
cimport cython
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int32_t, int64_t

import math

import ml_dtypes
import numpy

from cakert.runtime.driver cimport (
    check, copy_stream, enter_context, enter_relaxed, leave_context, leave_relaxed, may_free,
    raise_status_with,
)
from cakert.runtime.tensor cimport (
    DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, TensorView, device_text, dtype_name, release_view,
    resolve_stream, tensor_device, view_tensor,
)

from cakert.runtime import driver
from cakert.runtime.integers import MAX_BYTES, checked_int


cdef object as_dtype(object dtype):
    """numpy.dtype of a name or type, ml_dtypes' names ("bfloat16") included."""
    if isinstance(dtype, str) and not hasattr(numpy, dtype) and hasattr(ml_dtypes, dtype):
        return numpy.dtype(getattr(ml_dtypes, dtype))
    return numpy.dtype(dtype)


cdef bint is_pinned(const void* host) except -1:
    """Whether a copy from `host` is asynchronous to the host: page-locked memory only."""
    cdef int kind = 0
    cdef cu.CUresult status = cu.cuPointerGetAttribute(
        &kind, cu.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, <cu.CUdeviceptr><size_t>host
    )
    return status == cu.CUDA_SUCCESS  # pageable memory is unknown to the driver


@cython.final
@cython.no_gc
cdef class Workspace:
    """Plain device memory that outlives every kernel launched on it.

    Parameters
    ----------
    device : int
        CUDA device.
    nbytes : int
        Size in bytes; 0 allocates nothing and has pointer 0.

    Attributes
    ----------
    device : int
    nbytes : int
    pointer : int
        Device address, 256-byte aligned.

    Raises
    ------
    ValueError
        No such device, or a negative size.
    CudaError
        The driver's status, CUDA_ERROR_OUT_OF_MEMORY among them.

    Notes
    -----
    Freeing waits for all work of the device. It is safe while another thread captures a graph.
    """

    def __cinit__(self, int device, nbytes):
        cdef cu.CUdeviceptr pointer = 0
        cdef cu.CUresult status
        cdef cu.CUstreamCaptureMode mode
        cdef int pushed
        self.device = device
        self.nbytes = checked_int("nbytes", nbytes, 0, MAX_BYTES)
        pushed = enter_context(device)
        try:
            if nbytes == 0:
                return
            enter_relaxed(&mode)
            try:
                with nogil:
                    status = cu.cuMemAlloc(&pointer, self.nbytes)
                self.pointer = pointer   # at once: what fails from here on must not lose it
            finally:
                leave_relaxed(mode)
            if status != cu.CUDA_SUCCESS:
                raise_status_with(status, "cuMemAlloc", f"{nbytes} bytes on cuda:{device}")
        finally:
            leave_context(pushed)

    def __dealloc__(self):
        cdef cu.CUstreamCaptureMode mode
        cdef int pushed
        if self.pointer == 0 or not may_free():
            return
        try:
            pushed = enter_context(self.device)
            try:
                enter_relaxed(&mode)
                with nogil:
                    cu.cuMemFree(self.pointer)
                leave_relaxed(mode)
            finally:
                leave_context(pushed)
        except RuntimeError:
            pass                     # a lost context took its memory along

    def __repr__(self):
        return f"Workspace(device={self.device}, nbytes={self.nbytes})"

    cdef int check_range(self, size_t offset, size_t nbytes) except -1:
        if offset > self.nbytes or nbytes > self.nbytes - offset:
            raise ValueError(
                f"bytes [{offset}, {offset + nbytes}) do not lie in a workspace of {self.nbytes}"
            )
        return 0

    def copy_in(self, array, stream=None, *, size_t offset=0):
        """Copy a host array into the workspace.

        Parameters
        ----------
        array : numpy.ndarray
            Any shape and type; its elements are copied in C order.
        stream : int, stream object or None, optional
            The stream to copy on; the call returns when `array` may be changed again. None copies
            on a stream of its own and returns when the data has arrived; it is ordered after
            nothing else.
        offset : int, optional
            First byte of the workspace that is written.
        """
        cdef object source = numpy.ascontiguousarray(array)
        cdef size_t nbytes = source.nbytes
        self.check_range(offset, nbytes)
        if nbytes:
            copy_rows(
                self.device, self.pointer + offset, source, nbytes, nbytes, 1, stream
            )

    def copy_rows_in(self, array2d, size_t pitch_bytes, stream=None, *, size_t offset=0):
        """Copy the rows of a host array to device rows `pitch_bytes` apart.

        Parameters
        ----------
        array2d : numpy.ndarray, (rows, columns)
            Any type; bytes between a row's end and the next row keep their value.
        pitch_bytes : int
            Distance of two rows in the workspace, at least the bytes of a row.
        stream, offset
            See `copy_in`.
        """
        cdef object source = numpy.ascontiguousarray(array2d)
        cdef size_t width, rows
        if source.ndim != 2:
            raise ValueError(f"array2d must have 2 axes; got shape {source.shape}")
        rows = source.shape[0]
        width = source.shape[1] * source.itemsize
        if pitch_bytes < width:
            raise ValueError(
                f"pitch_bytes must be at least {width}, the bytes of a row; got {pitch_bytes}"
            )
        if rows == 0 or width == 0:
            return
        self.check_range(offset, (rows - 1) * pitch_bytes + width)
        copy_rows(self.device, self.pointer + offset, source, width, pitch_bytes, rows, stream)

    def clear(self, stream=None):
        """Write zeros everywhere.

        Parameters
        ----------
        stream : int, stream object or None, optional
            The stream to write on; None as in `copy_in`.
        """
        cdef cu.CUstream handle = NULL
        cdef cu.CUstreamCaptureMode mode
        cdef cu.CUresult status
        cdef int pushed
        if self.nbytes == 0:
            return
        pushed = enter_context(self.device)
        try:
            enter_relaxed(&mode)
            try:
                if stream is None:
                    handle = copy_stream(self.device)
                else:
                    resolve_stream(stream, None, self.device, &handle)
                    refuse_capture(handle)
                with nogil:
                    status = cu.cuMemsetD8Async(self.pointer, 0, self.nbytes, handle)
                check(status, "cuMemsetD8Async")
                if stream is None:
                    with nogil:
                        status = cu.cuStreamSynchronize(handle)
                    check(status, "cuStreamSynchronize")
            finally:
                leave_relaxed(mode)
        finally:
            leave_context(pushed)

    def to_numpy(self, dtype, shape, *, size_t offset=0):
        """Copy out to a new host array, after all work of the device.

        Parameters
        ----------
        dtype : numpy dtype or its name
        shape : int or tuple of int
        offset : int, optional
            First byte that is read.

        Returns
        -------
        numpy.ndarray
        """
        cdef object result = numpy.empty(shape, as_dtype(dtype))
        cdef size_t nbytes = result.nbytes
        cdef void* host = <void*><size_t>result.ctypes.data
        cdef cu.CUdeviceptr source = self.pointer + offset
        cdef cu.CUresult status
        cdef int pushed
        self.check_range(offset, nbytes)
        if nbytes == 0:
            return result
        pushed = enter_context(self.device)
        try:
            # The writer may be on any stream, non-blocking ones included.
            with nogil:
                status = cu.cuCtxSynchronize()
            check(status, "cuCtxSynchronize")
            with nogil:
                status = cu.cuMemcpyDtoH(host, source, nbytes)
            check(status, "cuMemcpyDtoH")
        finally:
            leave_context(pushed)
        return result


cdef int refuse_capture(cu.CUstream handle) except -1:
    if driver.is_capturing(<size_t>handle):
        raise RuntimeError(
            "a host array cannot be copied, nor memory cleared for one, on a stream that is being "
            "captured, a replay would do it again: copy before capture"
        )
    return 0


cdef int copy_rows(
    int device, cu.CUdeviceptr target, object source, size_t width, size_t pitch, size_t rows,
    object stream,
) except -1:
    """Copy `rows` packed rows of `width` bytes to device rows `pitch` bytes apart."""
    cdef cu.CUstream handle = NULL
    cdef cu.CUDA_MEMCPY2D geometry
    cdef const void* host = <const void*><size_t>source.ctypes.data
    cdef cu.CUstreamCaptureMode mode
    cdef cu.CUresult status
    cdef bint wait = stream is None
    cdef int pushed = enter_context(device)
    try:
        enter_relaxed(&mode)
        try:
            if wait:
                handle = copy_stream(device)
            else:
                resolve_stream(stream, None, device, &handle)
                wait = is_pinned(host)   # the copy would read it after this call's return
                refuse_capture(handle)
            if rows == 1:
                with nogil:
                    status = cu.cuMemcpyHtoDAsync(target, host, width, handle)
                check(status, "cuMemcpyHtoDAsync")
            else:
                geometry.srcXInBytes = geometry.srcY = 0
                geometry.srcMemoryType = cu.CU_MEMORYTYPE_HOST
                geometry.srcHost = host
                geometry.srcDevice = 0
                geometry.srcArray = NULL
                geometry.srcPitch = width
                geometry.dstXInBytes = geometry.dstY = 0
                geometry.dstMemoryType = cu.CU_MEMORYTYPE_DEVICE
                geometry.dstHost = NULL
                geometry.dstDevice = target
                geometry.dstArray = NULL
                geometry.dstPitch = pitch
                geometry.WidthInBytes = width
                geometry.Height = rows
                with nogil:
                    status = cu.cuMemcpy2DAsync(&geometry, handle)
                check(status, "cuMemcpy2DAsync")
            if wait:
                with nogil:
                    status = cu.cuStreamSynchronize(handle)
                check(status, "cuStreamSynchronize")
        finally:
            leave_relaxed(mode)
    finally:
        leave_context(pushed)
    return 0


def copy_to_host(object tensor):
    """Copy a tensor that lies on a CUDA device to a new host array.

    Parameters
    ----------
    tensor : tensor
        Any object that `cakert.runtime.tensor.describe` reads, of any strides, in CUDA memory.

    Returns
    -------
    numpy.ndarray
        C-contiguous, after the work on the stream of the tensor's framework.

    Raises
    ------
    TypeError
        No tensor, or an element type without a numpy dtype.
    ValueError
        Not in CUDA memory.
    """
    cdef TensorView view
    cdef cu.CUstream handle = NULL
    cdef int32_t device_type = 0
    cdef int32_t device_id = 0
    cdef int64_t low = 0
    cdef int64_t high = 0
    cdef int64_t reach
    cdef int axis
    tensor_device(tensor, &device_type, &device_id)
    if device_type not in (DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED):
        raise ValueError(
            f"tensor must be in CUDA memory; it is on {device_text(device_type, device_id)}"
        )
    resolve_stream(None, tensor, device_id, &handle)
    view_tensor(tensor, handle, &view)
    try:
        dtype = as_dtype(dtype_name(view.code, view.bits, view.lanes))
        shape = tuple([view.shape[axis] for axis in range(view.ndim)])
        if math.prod(shape) == 0:
            return numpy.empty(shape, dtype)
        # The span from the lowest to the highest element, in one copy: strides are undone on the
        # host.
        for axis in range(view.ndim):
            reach = (view.shape[axis] - 1) * view.strides[axis]
            if reach < 0:
                low += reach
            else:
                high += reach
        span = numpy.empty(high - low + 1, dtype)
        read_back(
            device_id, <void*><size_t>span.ctypes.data,
            <cu.CUdeviceptr><size_t>view.data + low * <int64_t>dtype.itemsize, span.nbytes, handle,
        )
        strides = tuple([view.strides[axis] * dtype.itemsize for axis in range(view.ndim)])
        return numpy.ascontiguousarray(
            numpy.ndarray(shape, dtype, span, -low * dtype.itemsize, strides)
        ).reshape(shape)
    finally:
        release_view(&view)


cdef int read_back(
    int device, void* host, cu.CUdeviceptr source, size_t nbytes, cu.CUstream stream
) except -1:
    """Copy device memory to pageable memory on a stream, and wait."""
    cdef cu.CUstreamCaptureMode mode
    cdef cu.CUresult status
    cdef int pushed = enter_context(device)
    try:
        enter_relaxed(&mode)
        try:
            if driver.is_capturing(<size_t>stream):
                raise RuntimeError(
                    "device memory cannot be read on a stream that is being captured: copy before "
                    "capture"
                )
            with nogil:
                status = cu.cuMemcpyDtoHAsync(host, source, nbytes, stream)
            check(status, "cuMemcpyDtoHAsync")
            with nogil:
                status = cu.cuStreamSynchronize(stream)
            check(status, "cuStreamSynchronize")
        finally:
            leave_relaxed(mode)
    finally:
        leave_context(pushed)
    return 0


include "device_array.pxi"
