/* Tensor maps: the values they were encoded from, in a layout of the stub's own.
 *
 * The driver checks the values and the context, and never looks at the tensor (driver 580 on an
 * H200). launch_abi.py reads the layout back.
 */
#include "stub_cuda.h"

#include <string.h>

struct map {
  uint64_t magic, address, dims[5], strides[4];
  uint32_t box[5], rank;
  uint8_t type, interleave, swizzle, promotion, fill, padding[3];
  uint8_t unused[8];
};

static const uint64_t MAP_MAGIC = 0x50414d4255545343;

enum { MAP_ALIGNMENT = 64, MAX_BOX = 256, MAX_RANK = 5 };

_Static_assert(sizeof(struct map) == 128, "as long as a CUtensorMap");

static CUresult check_map(const struct map *target, const void *address) {
  if (!stub_current_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return !target || (uintptr_t)target % MAP_ALIGNMENT || !address || (uintptr_t)address % 16
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

static CUresult fill_map(struct map *target, unsigned rank, const uint64_t *dims,
                         const uint64_t *strides, const uint32_t *box, const uint32_t *steps) {
  if (rank < 1 || rank > MAX_RANK) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned axis = 0; axis < rank; axis++) {
    if (!dims[axis] || dims[axis] > 1ull << 32 || !box[axis] || box[axis] > MAX_BOX ||
        steps[axis] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    if (axis && (strides[axis - 1] % 16 || strides[axis - 1] >= 1ull << 40))
      return CUDA_ERROR_INVALID_VALUE;
    target->dims[axis] = dims[axis];
    target->box[axis] = box[axis];
    if (axis) target->strides[axis - 1] = strides[axis - 1];
  }
  target->rank = rank;
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(struct map *target, int type, unsigned rank, void *address,
                                const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                const uint32_t *steps, int interleave, int swizzle, int promotion,
                                int fill) {
  STUB_BEGIN("cuTensorMapEncodeTiled");
  struct map encoded = {.magic = MAP_MAGIC,
                        .address = (uintptr_t)address,
                        .type = (uint8_t)type,
                        .interleave = (uint8_t)interleave,
                        .swizzle = (uint8_t)swizzle,
                        .promotion = (uint8_t)promotion,
                        .fill = (uint8_t)fill};
  STUB_DO(status = check_map(target, address);)
  STUB_DO(status = fill_map(&encoded, rank, dims, strides, box, steps);)
  STUB_DO(memcpy(target, &encoded, sizeof encoded);)
  STUB_END("\"address\":%lu,\"rank\":%u", (unsigned long)(uintptr_t)address, rank);
}

CUresult cuTensorMapReplaceAddress(struct map *target, void *address) {
  STUB_BEGIN("cuTensorMapReplaceAddress");
  STUB_DO(status = check_map(target, address);)
  STUB_DO(status = target->magic == MAP_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;)
  STUB_DO(target->address = (uintptr_t)address;)
  STUB_END("\"address\":%lu", (unsigned long)(uintptr_t)address);
}
