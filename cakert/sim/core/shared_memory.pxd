"""Shared memory of a simulated CTA, with a shadow that knows what each byte went through."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    # Bits of SharedMemory.state, one byte for each byte of memory.
    WRITTEN = 1     # somebody wrote it since the CTA started
    GENERIC = 2     # the last writer used the generic proxy
    RESERVED = 4    # part of an mbarrier
    COPIED = 8      # the last writer was a cp.async

cdef enum Conflict:
    NO_CONFLICT = 0
    OUT_OF_BOUNDS
    UNINITIALISED
    IN_FLIGHT
    OVERWRITTEN
    UNFENCED
    UNFENCED_COPY


cdef class ProxyClock:
    cdef object buffers
    cdef uint32_t now
    cdef uint32_t* thread_fence
    cdef uint32_t* warp_fence


cdef class SharedMemory:
    cdef readonly object data
    cdef readonly Py_ssize_t size
    cdef object faults                      # callable (name, message, where, advice)
    cdef object buffers
    cdef uint8_t* bytes
    cdef uint8_t* state
    cdef uint16_t* reading
    cdef uint16_t* writing
    cdef uint16_t* writer
    cdef uint32_t* written_at
    cdef ProxyClock clock
    cdef readonly Py_ssize_t rank
    cdef dict in_flight
    cdef dict owners

    cdef Conflict check_load(self, uint64_t address, uint32_t nbytes) noexcept nogil
    cdef Conflict check_store(self, uint64_t address, uint32_t nbytes) noexcept nogil
    cdef void note_store(self, uint64_t address, uint32_t nbytes, uint32_t thread) noexcept nogil
    cdef bint unfenced(self, int64_t at, int64_t issuer) noexcept nogil
    cdef count(self, reads, writes, int step)
    cdef culprit(self, uint64_t address, bint store)
    cdef explain(
        self, Conflict conflict, uint64_t address, uint32_t nbytes, bint store, object where
    )
