"""Tensor maps: what tensor copies (TMA) know of a tensor, in 128 bytes that a kernel gets by value.

Encoding is a computation of the driver on the values given: it reads no memory of the tensor. It
needs a current context all the same (driver 580), so the device's primary one is made current.
Maps here are tiled, without interleave, with element strides of 1, and read zeros out of bounds.
"""
from cuda.bindings cimport cydriver as cu
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from cakert.runtime.driver cimport (
    enter_context, ensure_init, leave_context, raise_status_with,
)

cdef enum:
    MAX_RANK = 5

cdef dict DATA_TYPES = {
    "uint8": cu.CU_TENSOR_MAP_DATA_TYPE_UINT8,
    "uint16": cu.CU_TENSOR_MAP_DATA_TYPE_UINT16,
    "float16": cu.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    "bfloat16": cu.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    "float32": cu.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
}
cdef dict SWIZZLES = {
    "none": cu.CU_TENSOR_MAP_SWIZZLE_NONE,
    "32B": cu.CU_TENSOR_MAP_SWIZZLE_32B,
    "64B": cu.CU_TENSOR_MAP_SWIZZLE_64B,
    "128B": cu.CU_TENSOR_MAP_SWIZZLE_128B,
}
cdef dict L2_PROMOTIONS = {
    "none": cu.CU_TENSOR_MAP_L2_PROMOTION_NONE,
    "64B": cu.CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
    "128B": cu.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    "256B": cu.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
}


cdef int choose(str what, dict table, str name) except -1:
    found = table.get(name)
    if found is None:
        raise ValueError(f"{what} must be one of {', '.join(table)}, got {name!r}")
    return found


cdef int check_address(uint64_t address) except -1:
    # The driver's own answer to both is CUDA_ERROR_INVALID_VALUE, which names nothing.
    if address == 0 or address % ADDRESS_ALIGNMENT != 0:
        raise ValueError(
            f"global_address must be a multiple of {<int>ADDRESS_ALIGNMENT} bytes and not null, "
            f"got {address:#x}"
        )
    return 0


cdef int encode_map(
    cu.CUtensorMap* target, str data_type, uint64_t address, tuple dims, tuple strides, tuple box,
    str swizzle, str l2_promotion, int device,
) except -1:
    cdef uint64_t dim_values[MAX_RANK]
    cdef uint64_t stride_values[MAX_RANK]
    cdef uint32_t box_values[MAX_RANK]
    cdef uint32_t steps[MAX_RANK]
    cdef int rank = <int>len(dims)
    cdef int kind = choose("data_type", DATA_TYPES, data_type)
    cdef int pattern = choose("swizzle", SWIZZLES, swizzle)
    cdef int promotion = choose("l2_promotion", L2_PROMOTIONS, l2_promotion)
    cdef int axis, pushed
    cdef cu.CUresult status
    if not 1 <= rank <= MAX_RANK or len(strides) != rank - 1 or len(box) != rank:
        raise ValueError(
            f"dims must have 1 to {<int>MAX_RANK} entries, box as many and strides one less, got "
            f"dims {dims}, strides {strides}, box {box}"
        )
    check_address(address)
    for axis in range(rank):
        dim_values[axis] = dims[axis]
        box_values[axis] = box[axis]
        steps[axis] = 1
        if axis > 0:
            stride_values[axis - 1] = strides[axis - 1]
    ensure_init()
    pushed = enter_context(device)
    try:
        status = cu.cuTensorMapEncodeTiled(
            target, <cu.CUtensorMapDataType>kind, rank, <void*>address, dim_values, stride_values,
            box_values, steps, cu.CU_TENSOR_MAP_INTERLEAVE_NONE, <cu.CUtensorMapSwizzle>pattern,
            <cu.CUtensorMapL2promotion>promotion, cu.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    finally:
        leave_context(pushed)
    if status != cu.CUDA_SUCCESS:
        raise_status_with(
            status,
            "cuTensorMapEncodeTiled",
            f"a map of {data_type}, dims {dims}, strides {strides} bytes, box {box}, swizzle "
            f"{swizzle}, address {address:#x}, on cuda:{device}",
        )
    return 0


cdef int replace_address(cu.CUtensorMap* target, const void* address) except -1:
    cdef cu.CUresult status
    check_address(<uint64_t>address)
    status = cu.cuTensorMapReplaceAddress(target, <void*>address)
    if status != cu.CUDA_SUCCESS:
        raise_status_with(status, "cuTensorMapReplaceAddress", f"address {<uint64_t>address:#x}")
    return 0


def encode(
    str data_type not None, uint64_t global_address, dims, strides, box, *,
    str swizzle not None="none", str l2_promotion not None="none", int device=0,
):
    """A tensor map for a ``__grid_constant__ const CUtensorMap`` parameter, as bytes.

    Parameters
    ----------
    data_type : str
        "uint8", "uint16", "float16", "bfloat16" or "float32".
    global_address : int
        Of the tensor on the device; a multiple of 16.
    dims : sequence of int
        Elements in each of 1 to 5 dimensions, the innermost one first.
    strides : sequence of int
        Bytes between neighbours in dimensions 1 and up, so one entry less.
    box : sequence of int
        Elements that one copy takes in each dimension.
    swizzle : str
        "none", "32B", "64B" or "128B".
    l2_promotion : str
        "none", "64B", "128B" or "256B".
    device : int
        Whose driver context encodes it.

    Raises
    ------
    ValueError
        An argument out of its table, or an address that is not aligned.
    CudaError
        The driver refuses the values.
    """
    cdef cu.CUtensorMap encoded
    encode_map(
        &encoded, data_type, global_address, tuple(dims), tuple(strides), tuple(box), swizzle,
        l2_promotion, device,
    )
    return (<char*>&encoded)[:TENSOR_MAP_BYTES]


def readdress(bytes tensor_map not None, uint64_t global_address, *, int device=0):
    """The map of another tensor with the same dims and strides.

    Parameters
    ----------
    tensor_map : bytes
        What `encode` gave.
    global_address : int
        Of the other tensor; a multiple of 16.

    Raises
    ------
    ValueError
        The bytes are not of a map's size, or the address is not aligned.
    CudaError
        The driver refuses them.
    """
    cdef cu.CUtensorMap target
    cdef int pushed
    if len(tensor_map) != TENSOR_MAP_BYTES:
        raise ValueError(
            f"tensor_map must have {<int>TENSOR_MAP_BYTES} bytes, got {len(tensor_map)}"
        )
    memcpy(&target, <const char*>tensor_map, TENSOR_MAP_BYTES)
    ensure_init()
    pushed = enter_context(device)
    try:
        replace_address(&target, <const void*>global_address)
    finally:
        leave_context(pushed)
    return (<char*>&target)[:TENSOR_MAP_BYTES]
