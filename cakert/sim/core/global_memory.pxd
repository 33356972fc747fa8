"""Global memory of a simulated GPU: host memory, checked against the ranges that were lent."""
from libc.stdint cimport uint8_t, uint64_t


cdef class GlobalMemory:
    cdef uint64_t* starts
    cdef uint64_t* ends
    cdef uint8_t* writable
    cdef list names
    cdef list owners
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef Py_ssize_t last

    cdef uint8_t* resolve(self, uint64_t address, uint64_t nbytes, bint write) noexcept nogil
    cdef Py_ssize_t lower_bound(self, uint64_t address) noexcept nogil
    cdef int reserve(self) except -1
    cpdef str explain(self, uint64_t address, uint64_t nbytes, bint write)
