"""One warp of a simulated CTA."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from cakert.sim.core.code cimport Code, Op
from cakert.sim.core.global_memory cimport GlobalMemory
from cakert.sim.core.shared_memory cimport SharedMemory

cdef enum PathState:
    READY = 0       # can go on
    GATHERING = 1   # waits for other lanes of the warp at its instruction
    WAITING = 2     # waits for something outside


cdef class Warp:
    cdef readonly object cta
    cdef readonly Py_ssize_t index
    cdef readonly Code code
    cdef readonly object file32
    cdef readonly object file64
    cdef readonly object predicates
    cdef readonly object counts             # executions of each operation, uint64
    cdef readonly object lanes              # lanes in which it was executed, uint64
    cdef readonly object wavefronts         # shared-memory wavefronts beyond the ideal, uint64
    cdef readonly uint32_t live
    cdef readonly uint32_t synchronised
    cdef readonly Py_ssize_t pc             # of the operation being executed
    cdef object file
    cdef object busy_array
    cdef object local_array
    cdef object parameters
    cdef uint8_t* registers
    cdef uint32_t* preds
    cdef uint64_t* executed
    cdef uint64_t* executed_lanes
    cdef uint64_t* extra_wavefronts
    cdef uint8_t* busy
    cdef Py_ssize_t num_busy
    cdef dict busy_lines
    cdef uint8_t* local
    cdef const uint8_t* params
    cdef uint64_t params_size
    cdef SharedMemory shared
    cdef GlobalMemory memory
    cdef uint32_t first_thread
    cdef bint rotate

    cdef Py_ssize_t num_paths
    cdef int32_t path_pc[32]
    cdef uint32_t path_mask[32]
    cdef int32_t path_state[32]
    cdef list path_waits

    cdef Py_ssize_t select(self)
    cdef bint gathered(self, Py_ssize_t path)
    cdef bint at_warp_barrier(self, Py_ssize_t path)
    cdef release_barrier(self, Py_ssize_t path)
    cdef int check_members(self, Op* op, uint32_t active) except -1
    cdef Py_ssize_t merge(self, Py_ssize_t path)
    cdef bint lower_ready(self, Py_ssize_t path)
    cdef drop(self, Py_ssize_t path)
    cdef Py_ssize_t add(self, int32_t pc, uint32_t mask, int32_t state, object wait) except -1
    cdef int branch_indexed(self, Py_ssize_t path, Op* op, uint32_t active) except -1
