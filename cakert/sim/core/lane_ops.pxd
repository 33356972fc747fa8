"""Operations on the 32 lanes of a warp: their C form, and the table that the run loop calls."""
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "lane_ops.h" nogil:
    ctypedef struct LaneOp:
        uint16_t function
        uint8_t extra
        uint8_t flags
        int32_t row[6]
        uint64_t immediate
    ctypedef void (*LaneFunction)(
        const LaneOp *op, uint8_t *file, uint32_t *predicates, uint32_t mask
    ) noexcept

# By index; LANE_FUNCTIONS has the names.
cdef LaneFunction* lane_functions
