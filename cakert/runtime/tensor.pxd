# Any framework's tensor as a plain C view, and the stream that its framework works on.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from cuda.bindings cimport cydriver as cu

cdef enum:
    MAX_NDIM = 16

# DLPack codes that callers compare with (DLPack 1.3).
cdef enum:
    DL_CPU = 1
    DL_CUDA = 2
    DL_CUDA_HOST = 3
    DL_CUDA_MANAGED = 13
    DL_INT = 0
    DL_UINT = 1
    DL_FLOAT = 2
    DL_BFLOAT = 4
    DL_COMPLEX = 5
    DL_BOOL = 6

cdef struct TensorView:
    void* data              # byte_offset already added; NULL only where the tensor is empty
    int32_t device_type
    int32_t device_id
    uint8_t code
    uint8_t bits
    uint16_t lanes
    int32_t ndim
    int32_t readonly
    int64_t shape[16]
    int64_t strides[16]     # in elements; always filled in
    void* owner             # what release_view gives back; NULL for a borrowed view
    int32_t owner_kind

# What a launch needs of a tensor, without shape and strides.
cdef struct PointerView:
    void* data
    void* owner
    int32_t owner_kind
    int32_t device_type
    int32_t device_id
    uint8_t code
    uint8_t bits
    uint16_t lanes

# Fills `view` from a DLPack exchange API, a capsule, __cuda_array_interface__ or a numpy array.
# `stream` is the stream that will read the tensor: producers that are asked by capsule order
# it after their own work. On success the caller owes one release_view.
cdef int view_tensor(object obj, cu.CUstream stream, TensorView* view) except -1
cdef void release_view(TensorView* view) noexcept
# The same for a PointerView: the launch path, which copies no shape.
cdef int point_at(object obj, cu.CUstream stream, PointerView* view) except -1
cdef void release_pointer(PointerView* view) noexcept
cdef bint is_packed(const TensorView* view) noexcept nogil  # C-contiguous, size-1 axes ignored

# Where the tensor lies, asked without ordering any stream.
cdef int tensor_device(object obj, int32_t* device_type, int32_t* device_id) except -1
# Whether `obj` offers one of the interfaces above; asks its type only.
cdef bint is_tensor(object obj) except -1
# Whether the producer may reuse the memory as soon as it is released, without regard to the stream
# that reads it (XLA knows its own streams only): then a launch has to be waited for.
cdef bint must_outlive_launch(object obj) except -1
# "float32", "bfloat16", "float32x2" (two lanes).
cdef str dtype_name(uint8_t code, uint8_t bits, uint16_t lanes)
# The DLPack type of a numpy dtype's name; TypeError for a type that DLPack cannot say.
cdef int dtype_code(str name, uint8_t* code, uint8_t* bits) except -1
# "cuda:1", "the CPU", ...
cdef str device_text(int32_t device_type, int32_t device_id)

# The stream to launch on: `stream` where it is not None (int, __cuda_stream__, torch or CuPy
# stream), else the current stream of the framework that owns `tensor`.
cdef int resolve_stream(object stream, object tensor, int device, cu.CUstream* out) except -1
