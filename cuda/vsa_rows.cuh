// Reading a row's metadata. Whatever the arrays hold, no address outside the tensors follows from
// them: counts are clamped, an entry outside [0, kv_blocks) becomes a block without keys.
#pragma once
#include "vsa_params.h"

namespace cake {

// What all lanes read alike, and later. From an address that is the same for all of them the assembler
// moves it to a uniform register at once, and so awaits it: it does not know that y is 0.
template <class Word>
__device__ __forceinline__ Word load_ahead(const Word *from) {
  return __ldg(from + threadIdx.y);
}

struct RowId {
  uint32_t row;      // head * q_blocks + q_block
  uint32_t head;
  uint32_t q_block;
  bool valid;
};

__device__ __forceinline__ RowId row_id(const CakeVsaParams &p, uint32_t row) {
  RowId id;
  id.row = row;
  id.valid = id.row < p.num_rows;
  id.head = id.row / p.q_blocks;
  id.q_block = id.row - id.head * p.q_blocks;
  return id;
}

__device__ __forceinline__ uint32_t row_of_item(const CakeVsaParams &p, uint32_t item) {
  return p.tile_order != nullptr ? __ldg(p.tile_order + item) : item;
}

__device__ __forceinline__ RowId row_of_work_item(const CakeVsaParams &p, uint32_t item) {
  return row_id(p, row_of_item(p, item));
}

__device__ __forceinline__ int row_count(const CakeVsaParams &p, uint32_t row) {
  return min(max(__ldg(p.row_counts + row), 0), static_cast<int>(p.row_stride));
}

// Entry i of a row's list of selected KV blocks, i < row_count. All lists together have fewer than
// 2^32 entries (plan sees to it): a 32-bit index saves the attention loops two registers.
__device__ __forceinline__ uint32_t row_block(const CakeVsaParams &p, uint32_t row, int i) {
  const uint32_t entry = row * p.row_stride + i;
  return p.index_bytes == 4 ? __ldg(static_cast<const uint32_t *>(p.row_blocks) + entry)
                            : __ldg(static_cast<const uint16_t *>(p.row_blocks) + entry);
}

// Valid tokens of a block, 0 for an entry that names no block. Only blocks of 64 may be short: the
// contract has kv_block_lens for them alone.
template <int kBlock>
__device__ __forceinline__ int block_tokens(const CakeVsaParams &p, uint32_t block) {
  if (block >= p.kv_blocks) return 0;
  if (kBlock != 64 || p.kv_block_lens == nullptr) return kBlock;
  return min(max(__ldg(p.kv_block_lens + block), 0), kBlock);
}

}  // namespace cake
