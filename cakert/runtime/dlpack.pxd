# The one owner of dlpack_abi.h.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "dlpack_abi.h" nogil:
    enum:
        CAKE_DLPACK_MAJOR
        CAKE_DLPACK_MINOR
        CAKE_DLPACK_READ_ONLY
        CAKE_DLPACK_SUBBYTE_PADDED

    ctypedef struct CakeDLPackVersion:
        uint32_t major
        uint32_t minor

    ctypedef struct CakeDLDevice:
        int32_t device_type
        int32_t device_id

    ctypedef struct CakeDLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct CakeDLTensor:
        void* data
        CakeDLDevice device
        int32_t ndim
        CakeDLDataType dtype
        int64_t* shape
        int64_t* strides
        uint64_t byte_offset

    ctypedef struct CakeDLManagedTensor:
        CakeDLTensor dl_tensor
        void* manager_ctx
        void (*deleter)(CakeDLManagedTensor*) noexcept

    ctypedef struct CakeDLManagedTensorVersioned:
        CakeDLPackVersion version
        void* manager_ctx
        void (*deleter)(CakeDLManagedTensorVersioned*) noexcept
        uint64_t flags
        CakeDLTensor dl_tensor

    ctypedef struct CakeDLPackExchangeHeader:
        CakeDLPackVersion version
        CakeDLPackExchangeHeader* prev_api

    # The functions set a Python error when they return -1: `except -1`, never `noexcept`.
    ctypedef struct CakeDLPackExchangeAPI:
        CakeDLPackExchangeHeader header
        int (*managed_tensor_from_py_object_no_sync)(
            void*, CakeDLManagedTensorVersioned**) except -1
        int (*dltensor_from_py_object_no_sync)(void*, CakeDLTensor*) except -1
        int (*current_work_stream)(int32_t, int32_t, void**) except -1
