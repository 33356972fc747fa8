"""Global memory of a simulated GPU: host memory, checked against the ranges that were lent.

An address of the simulated GPU is the address of the host memory behind it, so arrays of torch
and numpy serve as device memory without a copy. Every access must lie within one registered range.
"""
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.string cimport memmove

import numpy as np

from cakert.sim.faults import Fault


cdef class GlobalMemory:
    """The ranges of host memory that kernels of one GPU may touch."""

    def __cinit__(self):
        self.names = []
        self.owners = []
        self.count = 0
        self.capacity = 0
        self.last = 0

    def __dealloc__(self):
        PyMem_Free(self.starts)
        PyMem_Free(self.ends)
        PyMem_Free(self.writable)

    def __len__(self):
        return self.count

    def register(self, uint64_t address, uint64_t nbytes, bint writable, str name, owner=None):
        """Lend a range to kernels.

        Parameters
        ----------
        address : int
            First byte, an address of this process.
        nbytes : int
            At least 1.
        writable : bool
        name : str
            What messages call it.
        owner : object, optional
            Kept alive until `unregister`.

        Raises
        ------
        ValueError
            The range is empty or overlaps one that is registered.
        """
        cdef Py_ssize_t at = self.lower_bound(address)
        if nbytes == 0 or address == 0:
            raise ValueError(f"{name}: cannot lend {nbytes} bytes at {address:#x}")
        cdef Py_ssize_t other = at
        if at > 0 and self.ends[at - 1] > address:
            other = at - 1
        if other < at or (at < self.count and self.starts[at] < address + nbytes):
            raise ValueError(
                f"{name}: [{address:#x}, {address + nbytes:#x}) overlaps {self.names[other]}, "
                "which is lent already"
            )
        self.reserve()
        memmove(&self.starts[at + 1], &self.starts[at], (self.count - at) * sizeof(uint64_t))
        memmove(&self.ends[at + 1], &self.ends[at], (self.count - at) * sizeof(uint64_t))
        memmove(&self.writable[at + 1], &self.writable[at], self.count - at)
        self.starts[at] = address
        self.ends[at] = address + nbytes
        self.writable[at] = writable
        self.names.insert(at, name)
        self.owners.insert(at, owner)
        self.count += 1
        self.last = 0

    def unregister(self, uint64_t address):
        """Take a range back; KeyError where none starts at ``address``."""
        cdef Py_ssize_t at = self.lower_bound(address)
        if at >= self.count or self.starts[at] != address:
            raise KeyError(f"no range of global memory starts at {address:#x}")
        self.count -= 1
        memmove(&self.starts[at], &self.starts[at + 1], (self.count - at) * sizeof(uint64_t))
        memmove(&self.ends[at], &self.ends[at + 1], (self.count - at) * sizeof(uint64_t))
        memmove(&self.writable[at], &self.writable[at + 1], self.count - at)
        del self.names[at]
        del self.owners[at]
        self.last = 0

    def view(self, uint64_t address, uint64_t nbytes, where=None, bint write=False):
        """Bytes [address, address + nbytes) as a numpy view; Fault "global-out-of-bounds"."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        cdef uint8_t* at = self.resolve(address, nbytes, write)
        if at == NULL:
            raise Fault(
                "global-out-of-bounds", self.explain(address, nbytes, write), where=where,
                advice="Check the index, and that the tensor is as large as the kernel assumes.",
            )
        return np.asarray(<uint8_t[:nbytes]>at)

    cdef uint8_t* resolve(self, uint64_t address, uint64_t nbytes, bint write) noexcept nogil:
        cdef Py_ssize_t at = self.last
        if at >= self.count or address < self.starts[at] or address >= self.ends[at]:
            at = self.lower_bound(address + 1) - 1
            if at < 0 or address >= self.ends[at]:
                return NULL
            self.last = at
        if nbytes > self.ends[at] - address or (write and not self.writable[at]):
            return NULL
        return <uint8_t*>address

    cpdef str explain(self, uint64_t address, uint64_t nbytes, bint write):
        """Say why an access is refused, with the nearest range."""
        verb = "writes" if write else "reads"
        text = f"{verb} {nbytes} byte(s) of global memory at {address:#x}"
        if self.count == 0:
            return f"{text}; no memory was lent to the GPU."
        cdef Py_ssize_t at = max(self.lower_bound(address + 1) - 1, 0)
        cdef uint64_t before = 0
        if address >= self.ends[at] and at + 1 < self.count:
            before = self.starts[at + 1] - address
            if before < address - self.ends[at]:
                at += 1
        name = self.names[at]
        start, end = self.starts[at], self.ends[at]
        if address < start:
            return f"{text}, {start - address} byte(s) before {name}."
        if address >= end:
            return f"{text}, {address - end} byte(s) past the end of {name} ({end - start} bytes)."
        if address + nbytes > end:
            return f"{text}, across the end of {name} ({end - start} bytes)."
        return f"{text}, which is {name}, lent read-only."

    cdef Py_ssize_t lower_bound(self, uint64_t address) noexcept nogil:
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.count
        cdef Py_ssize_t middle
        while low < high:
            middle = (low + high) // 2
            if self.starts[middle] < address:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int reserve(self) except -1:
        if self.count < self.capacity:
            return 0
        cdef Py_ssize_t capacity = 2 * self.capacity + 16
        cdef uint64_t* starts = <uint64_t*>PyMem_Realloc(self.starts, capacity * sizeof(uint64_t))
        if starts == NULL:
            raise MemoryError()
        self.starts = starts
        cdef uint64_t* ends = <uint64_t*>PyMem_Realloc(self.ends, capacity * sizeof(uint64_t))
        if ends == NULL:
            raise MemoryError()
        self.ends = ends
        cdef uint8_t* writable = <uint8_t*>PyMem_Realloc(self.writable, capacity)
        if writable == NULL:
            raise MemoryError()
        self.writable = writable
        self.capacity = capacity
        return 0
