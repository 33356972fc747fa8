/* The launch ABI of every attention kernel: CakeVsaParams by value, and, for families that copy by
 * TMA, four tensor maps behind it: of q, k, v and out. nvcc includes this file for the device side
 * and Cython for the host side, so that both agree by construction. Plain C; all device addresses
 * are 8 bytes wide on our platforms.
 *
 * A "row" is one query block of one query head; rows are numbered  head * q_blocks + q_block.
 * Change anything here: raise the version, rebuild the cubins.
 */
#ifndef CAKE_VSA_PARAMS_H
#define CAKE_VSA_PARAMS_H

#include <stdint.h>

#define CAKE_VSA_PARAMS_VERSION 1

/* A group holds at most this many rows: membership of a block is one bit a row. */
#define CAKE_VSA_GROUP_ROWS 8
#define CAKE_VSA_NO_ROW 0xFFFFFFFFu

typedef struct CakeVsaParams {
  /* Tensors, packed: q and out (q_tokens, num_qo_heads, head_dim), k and v (kv_tokens,
   * num_kv_heads, head_dim) in the 16-bit input type; lse (q_tokens, num_qo_heads) float32,
   * natural logarithm, or null. */
  const void *q;
  const void *k;
  const void *v;
  void *out;
  float *lse;

  /* Selected KV blocks of each row: row r reads row_counts[r] ascending entries at element
   * r * row_stride of row_blocks. Entries are uint16 or uint32 (index_bytes). A kernel clamps
   * the count to [0, row_stride] and treats an entry >= kv_blocks as a block without keys. */
  const void *row_blocks;
  const int32_t *row_counts;

  /* Valid tokens of each KV block (kv_blocks entries), clamped by the kernel to
   * [0, block_tokens]; null when every block is full. */
  const int32_t *kv_block_lens;

  /* Work item i of the grid computes row tile_order[i]; null means row i. */
  const uint32_t *tile_order;

  /* Group record, read by grouped routes only, otherwise null and num_groups 0; such a route reads
   * neither row lists nor tile order, which may then be null. Group g has the rows
   * group_rows[g * CAKE_VSA_GROUP_ROWS + slot] of one KV head, slots that are not used
   * CAKE_VSA_NO_ROW, slot 0 always a row. The group walks the union of its lists: group_counts[g]
   * entries (even) of group_blocks (type of row_blocks) at g * group_stride (even). Bit `slot` of the
   * matching byte of group_members says that the slot's row selects the block; a block of two rows
   * may have two entries, one for each.
   * Entries 2i and 2i + 1 are a stage, fetched together: both have the same members, or the second
   * is padding, kv_blocks with members 0. Stages are not sorted by block: those of one membership
   * ascend, and the memberships are interleaved so that all rows of a group get on evenly. */
  const uint32_t *group_rows;
  const void *group_blocks;
  const uint8_t *group_members;
  const int32_t *group_counts;

  uint32_t version; /* CAKE_VSA_PARAMS_VERSION */
  uint32_t index_bytes; /* 2 or 4 */
  uint32_t row_stride; /* entries between two rows' lists */
  uint32_t group_stride;
  uint32_t num_rows; /* num_qo_heads * q_blocks */
  uint32_t num_groups;
  uint32_t q_tokens; /* M */
  uint32_t kv_tokens; /* N */
  uint32_t q_blocks; /* MB = M / R */
  uint32_t kv_blocks; /* NB = N / C */
  uint32_t num_qo_heads;
  uint32_t num_kv_heads;

  float sm_scale; /* any finite value, zero and negative ones included */
  uint32_t reserved; /* zero */
} CakeVsaParams;

/* The driver's CUtensorMap, whose contents are nobody's business; here, because kernel sources do
 * not include cuda.h. Aligned as by cuda.h of toolkit 13 (64 bytes were enough for toolkit 12). */
#define CAKE_TENSOR_MAP_ALIGNMENT 128

typedef struct CakeTensorMap {
  uint64_t opaque[16];
} __attribute__((aligned(CAKE_TENSOR_MAP_ALIGNMENT))) CakeTensorMap;

/* Rank 3: dimensions (head_dim, heads, tokens) of a packed tensor. A box is CAKE_MAP_PANEL(head_dim)
 * columns of one head, in rows of as many bytes as the swizzle is wide; `block` tokens of q, k and v,
 * CAKE_MAP_OUT_TOKENS of out, which every warpgroup stores on its own. */
#define CAKE_MAP_PANEL(head_dim) ((head_dim) % 64 == 0 ? 64 : 32)
#define CAKE_MAP_OUT_TOKENS 64

#endif
