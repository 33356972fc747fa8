# The launch ABI of cuda/vsa_params.h; fields that no host code sets are left out.
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

cdef extern from "vsa_params.h":
    enum:
        CAKE_VSA_PARAMS_VERSION
        CAKE_MAP_OUT_TOKENS

    uint32_t CAKE_MAP_PANEL(uint32_t head_dim)

    ctypedef struct CakeTensorMap:
        uint64_t opaque[16]

    ctypedef struct CakeVsaParams:
        const void* q
        const void* k
        const void* v
        void* out
        float* lse
        const void* row_blocks
        const int32_t* row_counts
        const int32_t* kv_block_lens
        const uint32_t* tile_order
        const uint32_t* group_rows
        const void* group_blocks
        const uint8_t* group_members
        const int32_t* group_counts
        uint32_t version
        uint32_t index_bytes
        uint32_t row_stride
        uint32_t group_stride
        uint32_t num_rows
        uint32_t num_groups
        uint32_t q_tokens
        uint32_t kv_tokens
        uint32_t q_blocks
        uint32_t kv_blocks
        uint32_t num_qo_heads
        uint32_t num_kv_heads
        float sm_scale
