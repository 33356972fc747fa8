"""A decoded kernel: what the run loop of a warp executes."""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cakert.sim.core.lane_ops cimport LaneOp

cdef enum Kind:
    LANE = 0        # a C function on 32 lanes
    BRANCH
    BRANCH_INDEXED
    EXIT
    NOTHING         # fences, hints; also what only gathers lanes (bar.warp.sync)
    LOAD
    STORE
    HANDLER         # a Python closure
    ACTIVE_MASK

cdef enum Space:
    GENERIC_SPACE = 0
    GLOBAL_SPACE
    SHARED_SPACE
    LOCAL_SPACE
    PARAM_SPACE

cdef enum Flag:
    LEADER = 1      # a branch may lead here: lanes that went apart may meet
    ALIGNED = 2     # needs every live lane of the warp
    MEMBERS = 4     # needs the lanes of the mask in row `members`
    GUARDED = 8
    GUARD_NEGATED = 16
    SIGNED = 32     # a load extends the sign
    SYNCHRONISES = 64  # after it the warp knows what others did before theirs

cdef enum:
    MAX_VECTOR = 8

cdef struct Op:
    uint8_t kind
    uint8_t flags
    uint8_t space
    uint8_t width           # bytes of one element in memory
    uint8_t vector          # elements of a load or store
    uint8_t register_bits   # 16, 32, 64: registers of a load or store
    uint8_t address_bits    # 32 or 64: register that holds the address
    int32_t guard           # predicate
    int32_t members         # row of the membermask
    int32_t address         # row of the base address
    int32_t target          # operation to branch to, or the first entry of the target table
    int32_t num_targets
    int32_t rows[MAX_VECTOR]
    int32_t touched_begin   # rows of 32-bit registers read or written: [begin, end)
    int32_t touched_end
    int64_t offset
    LaneOp lane


cdef class Code:
    cdef readonly str kernel
    cdef readonly list operations       # (mnemonic, PTX line, text) of each operation
    cdef readonly list handlers         # Python closures by operation, or None
    cdef readonly list specials         # (special register, row): filled when a warp starts
    cdef readonly object template       # initial bytes of a warp's register file
    cdef readonly Py_ssize_t num_predicates
    cdef readonly Py_ssize_t local_bytes
    cdef readonly dict properties       # what the launch needs to know; see decode.binder
    cdef Op* ops
    cdef Py_ssize_t count
    cdef int32_t* touched
    cdef int32_t* targets
