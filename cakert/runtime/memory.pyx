"""Device memory: `Workspace` for the metadata of a plan, `DeviceArray` for tensors.

A workspace is freed by cuMemFree, which waits for every stream: its owner may die while a kernel
still reads it. A device array is allocated and freed in the order of one stream and waits for none.
"""
cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc

import math

import ml_dtypes
import numpy

from cakert.runtime.dlpack cimport (
    CAKE_DLPACK_MAJOR, CAKE_DLPACK_MINOR, CakeDLManagedTensor, CakeDLManagedTensorVersioned,
    CakeDLTensor,
)
from cakert.runtime.driver cimport (
    check, copy_stream, enter_context, enter_relaxed, leave_context, leave_relaxed, may_free,
    raise_status_with,
)
from cakert.runtime.tensor cimport (
    DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED, MAX_NDIM, TensorView, device_text, dtype_code,
    dtype_name, release_view, resolve_stream, tensor_device, view_tensor,
)

from cakert.runtime import driver

cdef enum:
    LEGACY_STREAM = 1                # handle of the legacy default stream in __dlpack__'s terms


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
        if nbytes < 0:
            raise ValueError(f"nbytes must be at least 0; got {nbytes}")
        self.device = device
        self.nbytes = nbytes
        pushed = enter_context(device)
        try:
            if nbytes == 0:
                return
            enter_relaxed(&mode)
            try:
                with nogil:
                    status = cu.cuMemAlloc(&pointer, self.nbytes)
            finally:
                leave_relaxed(mode)
            if status != cu.CUDA_SUCCESS:
                raise_status_with(status, "cuMemAlloc", f"{nbytes} bytes on cuda:{device}")
            self.pointer = pointer
        finally:
            leave_context(pushed)

    def __dealloc__(self):
        cdef cu.CUstreamCaptureMode mode
        cdef int pushed
        if self.pointer == 0 or not may_free():
            return
        try:
            pushed = enter_context(self.device)
            enter_relaxed(&mode)
            with nogil:
                cu.cuMemFree(self.pointer)
            leave_relaxed(mode)
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


@cython.final
@cython.no_gc_clear                  # __dealloc__ frees on the stream that stream_owner keeps
cdef class DeviceArray:
    """A packed array in device memory, allocated and freed in the order of a stream.

    Made by `empty` and `from_numpy`; read by every framework through ``__dlpack__`` and
    ``__cuda_array_interface__``.

    Attributes
    ----------
    shape : tuple[int, ...]
    dtype : numpy.dtype
        ml_dtypes' types included (bfloat16, float8).
    nbytes : int
    pointer : int
        Device address, 256-byte aligned; 0 where the array is empty.
    device : int
    stream : int
        Handle of the stream that the array belongs to. Work on other streams must be ordered
        before the array is released.
    """

    def __cinit__(self, *args, **keywords):
        if args or keywords:
            raise TypeError("a DeviceArray is made by DeviceArray.empty or .from_numpy")

    def __init__(self, *args, **keywords):
        raise TypeError("a DeviceArray is made by DeviceArray.empty or .from_numpy")

    @staticmethod
    def empty(shape, dtype, device=None, stream=None):
        """Allocate an array whose elements are undefined.

        Parameters
        ----------
        shape : int or tuple of int
            At most 16 axes.
        dtype : numpy dtype, its name, or "bfloat16" and the other names of ml_dtypes
        device : int, optional
            CUDA device; the current one by default.
        stream : int, stream object or None, optional
            The stream that the array belongs to; None is the legacy default stream.

        Returns
        -------
        DeviceArray

        Raises
        ------
        TypeError
            A type that DLPack has no code for.
        ValueError
            A negative extent, too many axes, no such device.
        CudaError
            The driver's status, CUDA_ERROR_OUT_OF_MEMORY among them.
        """
        cdef DeviceArray self = DeviceArray.__new__(DeviceArray)
        cdef cu.CUdeviceptr pointer = 0
        cdef cu.CUstream handle = NULL
        cdef cu.CUresult status
        cdef int axis, pushed
        cdef int64_t stride = 1
        self.shape = tuple([int(n) for n in ((shape,) if isinstance(shape, int) else shape)])
        if len(self.shape) > MAX_NDIM or any([n < 0 for n in self.shape]):
            raise ValueError(
                f"shape must have at most {<int>MAX_NDIM} extents, none negative; got {self.shape}"
            )
        self.dtype = as_dtype(dtype)
        dtype_code(self.dtype.name, &self.code, &self.bits)
        for axis in range(len(self.shape) - 1, -1, -1):
            self.extents[axis] = self.shape[axis]
            self.packed[axis] = stride
            stride *= self.extents[axis]
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        self.device = driver.current_device() if device is None else device
        resolve_stream(stream, None, self.device, &handle)
        self.stream = <size_t>handle
        self.stream_owner = stream
        pushed = enter_context(self.device)
        try:
            if self.nbytes == 0:
                return self
            with nogil:
                status = cu.cuMemAllocAsync(&pointer, self.nbytes, handle)
            if status != cu.CUDA_SUCCESS:
                raise_status_with(
                    status, "cuMemAllocAsync", f"{self.nbytes} bytes on cuda:{self.device}"
                )
            self.pointer = pointer
        finally:
            leave_context(pushed)
        return self

    @staticmethod
    def from_numpy(array, device=None, stream=None):
        """Allocate an array and copy a host array into it.

        Parameters
        ----------
        array : numpy.ndarray
            Any strides; the copy is packed.
        device, stream
            See `empty`.

        Returns
        -------
        DeviceArray
        """
        cdef object source = numpy.asarray(array)
        cdef DeviceArray self = DeviceArray.empty(source.shape, source.dtype, device, stream)
        self.copy_from(source)
        return self

    def __dealloc__(self):
        cdef int pushed
        if self.pointer == 0 or not may_free():
            return
        try:
            pushed = enter_context(self.device)
            cu.cuMemFreeAsync(self.pointer, <cu.CUstream><size_t>self.stream)
            leave_context(pushed)
        except RuntimeError:
            pass                     # a lost context took its memory along

    def __repr__(self):
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device})"

    def __len__(self):
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def copy_from(self, array):
        """Copy a host array of the same shape and type into this one, on the array's stream.

        Parameters
        ----------
        array : numpy.ndarray
            Any strides. It may be changed as soon as the call returns.

        Raises
        ------
        ValueError
            Another shape or type.
        """
        cdef object source = numpy.asarray(array)
        if source.shape != self.shape or source.dtype != self.dtype:
            raise ValueError(
                f"array must be {self.dtype} of shape {self.shape}; got {source.dtype} of shape "
                f"{source.shape}"
            )
        if self.nbytes:
            # A handle of 0 means the legacy stream here, not "wait on a stream of your own".
            copy_rows(
                self.device, self.pointer, numpy.ascontiguousarray(source), self.nbytes,
                self.nbytes, 1, self.stream,
            )

    def numpy(self):
        """Copy out to a new host array, after the work on the array's stream.

        Returns
        -------
        numpy.ndarray
        """
        cdef object result = numpy.empty(self.shape, self.dtype)
        if self.nbytes:
            read_back(
                self.device, <void*><size_t>result.ctypes.data, self.pointer, self.nbytes,
                <cu.CUstream><size_t>self.stream,
            )
        return result

    @property
    def __cuda_array_interface__(self):
        name = self.dtype.name
        if self.dtype.kind == "V":
            raise AttributeError(f"__cuda_array_interface__ has no type code for {name}")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": self.stream or LEGACY_STREAM,
        }

    def __dlpack_device__(self):
        return (DL_CUDA, self.device)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device is not None and tuple(dl_device) != (DL_CUDA, self.device):
            raise BufferError(
                f"dl_device must be {(<int>DL_CUDA, self.device)}, where the array is; got "
                f"{tuple(dl_device)}"
            )
        if copy:
            raise BufferError("copy must be False or None: __dlpack__ lends the memory itself")
        order_consumer(self, stream)
        if max_version is not None and max_version[0] >= CAKE_DLPACK_MAJOR:
            return versioned_capsule(self)
        return unversioned_capsule(self)


cdef int order_consumer(DeviceArray array, object stream) except -1:
    """Make a consumer's stream, in the terms of __dlpack__, wait for the array's own stream."""
    cdef size_t consumer
    cdef cu.CUstream handle = <cu.CUstream><size_t>array.stream
    cdef cu.CUevent event = NULL
    cdef int pushed
    if stream is None:
        stream = LEGACY_STREAM
    if stream == -1:
        return 0
    if stream == 0 or stream < -1:
        raise ValueError(
            f"stream must be None, -1 (no ordering), 1, 2 or a handle above 2; got {stream}"
        )
    consumer = stream
    if consumer == (array.stream or <uint64_t>LEGACY_STREAM):
        return 0
    pushed = enter_context(array.device)
    try:
        check(cu.cuEventCreate(&event, cu.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
        try:
            check(cu.cuEventRecord(event, handle), "cuEventRecord")
            check(cu.cuStreamWaitEvent(<cu.CUstream>consumer, event, 0), "cuStreamWaitEvent")
        finally:
            check(cu.cuEventDestroy(event), "cuEventDestroy")
    finally:
        leave_context(pushed)
    return 0


cdef void describe_array(DeviceArray array, CakeDLTensor* tensor) noexcept:
    tensor.data = <void*><size_t>array.pointer
    tensor.device.device_type = DL_CUDA
    tensor.device.device_id = array.device
    tensor.ndim = <int>len(array.shape)
    tensor.dtype.code = array.code
    tensor.dtype.bits = array.bits
    tensor.dtype.lanes = 1
    # Borrowed from the array, which manager_ctx keeps alive.
    tensor.shape = array.extents
    tensor.strides = array.packed
    tensor.byte_offset = 0


cdef void drop_versioned(CakeDLManagedTensorVersioned* managed) noexcept with gil:
    if managed.manager_ctx != NULL:
        Py_DECREF(<object>managed.manager_ctx)
    free(managed)


cdef void drop_unversioned(CakeDLManagedTensor* managed) noexcept with gil:
    if managed.manager_ctx != NULL:
        Py_DECREF(<object>managed.manager_ctx)
    free(managed)


cdef void end_versioned(object capsule) noexcept:
    # A consumer renames the capsule and owns the tensor from then on.
    cdef CakeDLManagedTensorVersioned* managed
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        managed = <CakeDLManagedTensorVersioned*>PyCapsule_GetPointer(
            capsule, "dltensor_versioned"
        )
        managed.deleter(managed)


cdef void end_unversioned(object capsule) noexcept:
    cdef CakeDLManagedTensor* managed
    if PyCapsule_IsValid(capsule, "dltensor"):
        managed = <CakeDLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        managed.deleter(managed)


cdef object versioned_capsule(DeviceArray array):
    cdef CakeDLManagedTensorVersioned* managed = <CakeDLManagedTensorVersioned*>malloc(
        sizeof(CakeDLManagedTensorVersioned)
    )
    if managed == NULL:
        raise MemoryError
    managed.version.major = CAKE_DLPACK_MAJOR
    managed.version.minor = CAKE_DLPACK_MINOR
    managed.flags = 0
    managed.deleter = drop_versioned
    describe_array(array, &managed.dl_tensor)
    managed.manager_ctx = <void*>array
    Py_INCREF(array)
    try:
        return PyCapsule_New(managed, "dltensor_versioned", end_versioned)
    except BaseException:
        drop_versioned(managed)
        raise


cdef object unversioned_capsule(DeviceArray array):
    cdef CakeDLManagedTensor* managed = <CakeDLManagedTensor*>malloc(sizeof(CakeDLManagedTensor))
    if managed == NULL:
        raise MemoryError
    managed.deleter = drop_unversioned
    describe_array(array, &managed.dl_tensor)
    managed.manager_ctx = <void*>array
    Py_INCREF(array)
    try:
        return PyCapsule_New(managed, "dltensor", end_unversioned)
    except BaseException:
        drop_unversioned(managed)
        raise


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
    cdef cu.CUresult status
    cdef int pushed = enter_context(device)
    try:
        with nogil:
            status = cu.cuMemcpyDtoHAsync(host, source, nbytes, stream)
        check(status, "cuMemcpyDtoHAsync")
        with nogil:
            status = cu.cuStreamSynchronize(stream)
        check(status, "cuStreamSynchronize")
    finally:
        leave_context(pushed)
    return 0
