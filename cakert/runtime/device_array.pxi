# Included by memory.pyx: the array that frameworks read, and its two exports.
cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

import math

import numpy

from cakert.runtime.integers import checked_shape

from cakert.runtime.dlpack cimport (
    CAKE_DLPACK_MAJOR, CAKE_DLPACK_MINOR, CakeDLManagedTensor, CakeDLManagedTensorVersioned,
    CakeDLTensor,
)
from cakert.runtime.driver cimport (
    check, enter_context, leave_context, may_free, raise_status_with,
)
from cakert.runtime.tensor cimport DL_CUDA, MAX_NDIM, dtype_code, resolve_stream

from cakert.runtime import driver

cdef enum:
    LEGACY_STREAM = 1                # handle of the legacy default stream in __dlpack__'s terms


# Memory whose stream was being captured when its array died: (device, pointer, stream, owner of the
# stream). A free there would end up in the graph or break the capture; it waits for the next array.
cdef list retired = []


cdef bint free_in_order(int device, cu.CUdeviceptr pointer, cu.CUstream stream) except -1:
    """Free in the order of the stream; False where a capture forbids it now."""
    cdef cu.CUstreamCaptureStatus capture = cu.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cu.CUresult status
    cdef int pushed = enter_context(device)
    try:
        status = cu.cuStreamIsCapturing(stream, &capture)
        if (
            status == cu.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            or capture != cu.CU_STREAM_CAPTURE_STATUS_NONE
        ):
            return False
        if status != cu.CUDA_SUCCESS:
            stream = NULL            # the caller's handle is gone: behind all that is under way
        with nogil:
            cu.cuMemFreeAsync(pointer, stream)
    finally:
        leave_context(pushed)
    return True


cdef int free_retired() except -1:
    global retired
    cdef list waiting = retired
    retired = []
    for device, pointer, stream, owner in waiting:
        try:
            if free_in_order(device, pointer, <cu.CUstream><size_t>stream):
                continue
        except RuntimeError:
            pass                     # a lost context took its memory along; the others wait on
        else:
            retired.append((device, pointer, stream, owner))
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
        self.dtype = as_dtype(dtype)
        self.shape = checked_shape(shape, self.dtype.itemsize, MAX_NDIM)
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
        if retired:
            free_retired()
        pushed = enter_context(self.device)
        try:
            if self.nbytes == 0:
                return self
            # A graph would own the memory: it could neither be freed here nor replayed twice.
            if driver.is_capturing(<size_t>handle):
                raise RuntimeError(
                    "a DeviceArray cannot be allocated on a stream that is being captured: "
                    "allocate before capture (for a run, pass out and lse)"
                )
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
        if self.pointer == 0 or not may_free():
            return
        try:
            if not free_in_order(self.device, self.pointer, <cu.CUstream><size_t>self.stream):
                retired.append((self.device, self.pointer, self.stream, self.stream_owner))
        except RuntimeError:
            pass                     # a lost context took its memory along

    @property
    def stream_object(self):
        """What the array's stream was given as; keeps a stream alive that it does not own."""
        return self.stream if self.stream_owner is None else self.stream_owner

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
