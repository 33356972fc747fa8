# Included by vsa_launch.pyx: the parameters that a kernel takes, and what goes into them.
from libc.stdint cimport uint32_t, uint64_t

from cakert.vsa_params cimport CAKE_MAP_PANEL, CakeTensorMap, CakeVsaParams


cdef int check_layout(str name, tuple layout, bint tensor_maps) except -1:
    """Hold a kernel's parameters, (offset, size) each, to what this module passes."""
    cdef list sizes = [<int>sizeof(CakeVsaParams)]
    cdef str wanted = f"one CakeVsaParams of {sizeof(CakeVsaParams)} bytes"
    if tensor_maps:
        sizes += [<int>sizeof(CakeTensorMap)] * NUM_MAPS
        wanted += f" and {<int>NUM_MAPS} tensor maps of {sizeof(CakeTensorMap)} bytes"
    # Offsets are the assembler's: it aligns a map in the constant bank, not among the parameters.
    if [size for _, size in layout] != sizes:
        raise ValueError(f"{name} must take {wanted}; its parameters (offset, size) are {layout}")
    return 0


cdef dict describe_map(
    str dtype, uint32_t head_dim, uint64_t heads, uint64_t tokens, uint32_t box_tokens
):
    """The map of a packed (tokens, heads, head_dim) tensor, as cuda/vsa_params.h has it."""
    cdef uint32_t panel = CAKE_MAP_PANEL(head_dim)
    cdef uint64_t head_bytes = 2 * head_dim
    return {
        "data_type": dtype,
        "dims": (head_dim, heads, tokens),
        "strides": (head_bytes, head_bytes * heads),
        "box": (panel, 1, box_tokens),
        "swizzle": f"{2 * panel}B",
        "l2_promotion": "128B",
    }
