from cuda.bindings cimport cydriver as cu
from libc.stdint cimport uint64_t

cdef enum:
    TENSOR_MAP_BYTES = 128           # of a CUtensorMap
    ADDRESS_ALIGNMENT = 16           # bytes: of the tensor that a map describes

# Encodes a map of a tensor with the device's context current; arguments as of `encode`.
cdef int encode_map(
    cu.CUtensorMap* target, str data_type, uint64_t address, tuple dims, tuple strides, tuple box,
    str swizzle, str l2_promotion, int device,
) except -1
# Points an encoded map at another tensor of the same shape; a context should be current.
cdef int replace_address(cu.CUtensorMap* target, const void* address) except -1
