from libc.stdint cimport int64_t, uint8_t, uint64_t

cdef class Workspace:
    cdef readonly int device
    cdef readonly uint64_t pointer
    cdef readonly size_t nbytes

    cdef int check_range(self, size_t offset, size_t nbytes) except -1

cdef class DeviceArray:
    cdef readonly tuple shape
    cdef readonly object dtype       # numpy.dtype
    cdef readonly size_t nbytes
    cdef readonly uint64_t pointer   # 0 where the array is empty
    cdef readonly int device
    cdef readonly uint64_t stream    # of the allocation; the memory is freed in its order
    cdef object stream_owner         # keeps the object that the stream came from
    cdef int64_t extents[16]         # of `shape`, for DLPack
    cdef int64_t packed[16]          # strides in elements
    cdef uint8_t code
    cdef uint8_t bits
