/* Allocations and copies.
 *
 * STUB_CUDA_MEMORY  bytes that one device has (8 GiB)
 *
 * Copies run at once. An address inside an allocation is checked against its bounds, a freed one
 * is refused; any other address is taken for memory that a framework lent, and is accepted.
 */
#include "stub_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- allocations ---- */

enum { POISON = 0xCD, FREED_KEPT = 256 };

struct block {
  struct block *next;
  CUdeviceptr address;
  size_t bytes;
  CUdevice device;
  bool stream_ordered;
  bool lent; /* the test's own memory, which the driver is told is the device's */
};

static struct block *live;
static struct block freed[FREED_KEPT]; /* ring: detects double frees and use after free */
static size_t freed_count, used_bytes[STUB_MAX_DEVICES];

static bool contains(const struct block *block, CUdeviceptr address) {
  return block->bytes && address >= block->address && address - block->address < block->bytes;
}

static CUresult check_range(CUdeviceptr address, size_t bytes) {
  CUresult status = CUDA_SUCCESS;
  pthread_mutex_lock(&stub_lock);
  const struct block *block = live;
  while (block && !contains(block, address)) block = block->next;
  if (block && bytes > block->bytes - (address - block->address)) status = CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; !block && i < FREED_KEPT; i++)
    if (contains(&freed[i], address)) status = CUDA_ERROR_ILLEGAL_ADDRESS;
  pthread_mutex_unlock(&stub_lock);
  return bytes && !address ? CUDA_ERROR_INVALID_VALUE : status;
}

static CUresult allocate(CUdeviceptr *address, size_t bytes, CUdevice device, bool ordered) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  size_t limit = (size_t)stub_env_number("STUB_CUDA_MEMORY", device, 1L << 33);
  struct block *block = malloc(sizeof *block);
  void *memory = MAP_FAILED;
  pthread_mutex_lock(&stub_lock);
  if (block && bytes <= limit - used_bytes[device])
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bool fits = memory != MAP_FAILED;
  if (fits) {
    memset(memory, POISON, bytes); /* a fresh allocation holds no useful value */
    *block = (struct block){live, (CUdeviceptr)(uintptr_t)memory, bytes, device, ordered, false};
    live = block;
    used_bytes[device] += bytes;
    *address = block->address;
  }
  pthread_mutex_unlock(&stub_lock);
  if (!fits) free(block);
  return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUdeviceptr address, bool ordered) {
  if (!address) return CUDA_SUCCESS;
  pthread_mutex_lock(&stub_lock);
  struct block **link = &live;
  while (*link && (*link)->address != address) link = &(*link)->next;
  struct block *block = *link;
  /* The driver takes a stream-ordered block in cuMemFree too, never the other way round. */
  bool ok = block && !block->lent && (block->stream_ordered || !ordered);
  if (ok) {
    *link = block->next;
    used_bytes[block->device] -= block->bytes;
    freed[freed_count++ % FREED_KEPT] = *block;
    /* The pages go, the addresses stay taken: no memory that a test lends can ever lie there. */
    mmap((void *)(uintptr_t)address, block->bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    free(block);
  }
  pthread_mutex_unlock(&stub_lock);
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct stub_leaks stub_memory_leaks(void) {
  struct stub_leaks leaks = {0};
  stub_count_streams(&leaks.streams, &leaks.events);
  for (const struct block *block = live; block; block = block->next)
    if (!block->lent) leaks.blocks++, leaks.bytes += block->bytes;
  return leaks;
}

/* For tests, through ctypes: makes host memory known as memory of a device, and forgets it. */
void stub_lend(void *memory, size_t bytes, CUdevice device) {
  struct block *block = malloc(sizeof *block);
  if (!block) abort();
  pthread_mutex_lock(&stub_lock);
  *block = (struct block){live, (CUdeviceptr)(uintptr_t)memory, bytes, device, false, true};
  live = block;
  pthread_mutex_unlock(&stub_lock);
}

void stub_take_back(void *memory) {
  pthread_mutex_lock(&stub_lock);
  struct block **link = &live;
  while (*link && !((*link)->lent && (*link)->address == (CUdeviceptr)(uintptr_t)memory))
    link = &(*link)->next;
  struct block *block = *link;
  if (block) *link = block->next;
  pthread_mutex_unlock(&stub_lock);
  free(block);
}

/* ---- the memory API ---- */

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  STUB_BEGIN("cuMemAlloc");
  STUB_DO(status = stub_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(status = stub_check_unsafe();)
  STUB_DO(status = allocate(address, bytes, stub_current_device(), false);)
  STUB_END("\"bytes\":%zu,\"address\":%lu", bytes, status ? 0ul : (unsigned long)*address);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  STUB_BEGIN("cuMemFree");
  STUB_DO(status = stub_check_unsafe();)
  STUB_DO(status = release(address, false);)
  STUB_END("\"address\":%lu", (unsigned long)address);
}

CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
  STUB_BEGIN("cuMemAllocAsync");
  CUcontext context = NULL;
  STUB_DO(status = stub_check_enqueue(stream);)
  STUB_DO(status = stub_stream_context(stream, &context);)
  STUB_DO(status = allocate(address, bytes, context->device, true);)
  STUB_END("\"bytes\":%zu,\"stream\":%lu,\"device\":%d,\"address\":%lu", bytes, STUB_STREAM(stream),
           context ? context->device : -1, status ? 0ul : (unsigned long)*address);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  STUB_BEGIN("cuMemFreeAsync");
  STUB_DO(status = stub_check_enqueue(stream);)
  STUB_DO(status = release(address, true);)
  STUB_END("\"address\":%lu,\"stream\":%lu", (unsigned long)address, STUB_STREAM(stream));
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  STUB_BEGIN("cuMemGetInfo");
  STUB_DO(status = stub_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(CUdevice device = stub_current_device();
          *total = (size_t)stub_env_number("STUB_CUDA_MEMORY", device, 1L << 33);
          *available = *total - used_bytes[device];)
  STUB_END(NULL);
}

CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address) {
  enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_ORDINAL = 9 };
  STUB_BEGIN("cuPointerGetAttribute");
  pthread_mutex_lock(&stub_lock);
  const struct block *block = live;
  while (block && !contains(block, address)) block = block->next;
  STUB_DO(status = block && (attribute == MEMORY_TYPE || attribute == DEVICE_ORDINAL)
                       ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;)
  STUB_DO(*(int *)value = attribute == MEMORY_TYPE ? 2 : block->device;)
  pthread_mutex_unlock(&stub_lock);
  STUB_END("\"attribute\":%d", attribute);
}

#define HOST(address) (void *)(uintptr_t)(address)
enum kind { SYNCHRONOUS, STREAM_ORDERED };

static CUresult check_copy(enum kind kind, CUstream stream) {
  if (kind == STREAM_ORDERED) return stub_check_enqueue(stream);
  return stub_current_context() ? stub_check_unsafe() : CUDA_ERROR_INVALID_CONTEXT;
}

/* One body for the linear copies: NULL checks and bounds on the sides that are on the device. */
#define STUB_COPY(symbol, function, kind, stream, to_type, from_type, to_device, from_device, ...) \
  CUresult function(to_type to, from_type from, size_t bytes __VA_ARGS__) {                        \
    STUB_BEGIN(symbol);                                                                            \
    STUB_DO(status = check_copy(kind, stream);)                                                    \
    STUB_DO(if (to_device) status = check_range((CUdeviceptr)(uintptr_t)to, bytes);)               \
    STUB_DO(if (from_device) status = check_range((CUdeviceptr)(uintptr_t)from, bytes);)           \
    STUB_DO(memmove(HOST(to), HOST(from), bytes);)                                                 \
    STUB_END("\"to\":%lu,\"from\":%lu,\"bytes\":%zu,\"stream\":%lu",                               \
             (unsigned long)(uintptr_t)to, (unsigned long)(uintptr_t)from, bytes, STUB_STREAM(stream)); \
  }
#define COMMA ,
STUB_COPY("cuMemcpyHtoD", cuMemcpyHtoD_v2, SYNCHRONOUS, NULL, CUdeviceptr, const void *, 1, 0)
STUB_COPY("cuMemcpyDtoH", cuMemcpyDtoH_v2, SYNCHRONOUS, NULL, void *, CUdeviceptr, 0, 1)
STUB_COPY("cuMemcpyDtoD", cuMemcpyDtoD_v2, SYNCHRONOUS, NULL, CUdeviceptr, CUdeviceptr, 1, 1)
STUB_COPY("cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2, STREAM_ORDERED, stream, CUdeviceptr,
          const void *, 1, 0, COMMA CUstream stream)
STUB_COPY("cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2, STREAM_ORDERED, stream, void *, CUdeviceptr,
          0, 1, COMMA CUstream stream)
STUB_COPY("cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2, STREAM_ORDERED, stream, CUdeviceptr,
          CUdeviceptr, 1, 1, COMMA CUstream stream)

/* CUDA_MEMCPY2D of cuda.h; one side of it is the other's mirror. */
struct copy_side {
  size_t x_bytes, y;
  int memory_type; /* 1 host, 2 device, 4 unified */
  void *host;
  CUdeviceptr device;
  void *array;
  size_t pitch;
};
struct copy_2d {
  struct copy_side from, to;
  size_t width_bytes, height;
};

static CUresult resolve_side(const struct copy_side *side, size_t width, size_t height, char **at) {
  if (side->memory_type != 1 && side->memory_type != 2) return CUDA_ERROR_INVALID_VALUE;
  if (side->pitch < side->x_bytes + width && height > 1) return CUDA_ERROR_INVALID_VALUE;
  size_t offset = side->y * side->pitch + side->x_bytes;
  bool on_device = side->memory_type == 2;
  *at = on_device ? (char *)HOST(side->device + offset) : (char *)side->host + offset;
  if (!on_device || !width || !height) return CUDA_SUCCESS;
  return check_range(side->device + offset, (height - 1) * side->pitch + width);
}

static CUresult copy_2d(const struct copy_2d *copy) {
  char *to, *from;
  CUresult status = resolve_side(&copy->to, copy->width_bytes, copy->height, &to);
  STUB_DO(status = resolve_side(&copy->from, copy->width_bytes, copy->height, &from);)
  STUB_DO(for (size_t row = 0; row < copy->height; row++)
            memmove(to + row * copy->to.pitch, from + row * copy->from.pitch, copy->width_bytes);)
  return status;
}

#define COPY_2D_TRACE(copy, stream)                                                             \
  "\"width\":%zu,\"height\":%zu,\"to_pitch\":%zu,\"from_pitch\":%zu,\"to\":%lu,\"stream\":%lu", \
      (copy)->width_bytes, (copy)->height, (copy)->to.pitch, (copy)->from.pitch,                \
      (unsigned long)(copy)->to.device, STUB_STREAM(stream)

CUresult cuMemcpy2D_v2(const struct copy_2d *copy) {
  STUB_BEGIN("cuMemcpy2D");
  STUB_DO(status = check_copy(SYNCHRONOUS, NULL);)
  STUB_DO(status = copy_2d(copy);)
  STUB_END(COPY_2D_TRACE(copy, NULL));
}

CUresult cuMemcpy2DAsync_v2(const struct copy_2d *copy, CUstream stream) {
  STUB_BEGIN("cuMemcpy2DAsync");
  STUB_DO(status = check_copy(STREAM_ORDERED, stream);)
  STUB_DO(status = copy_2d(copy);)
  STUB_END(COPY_2D_TRACE(copy, stream));
}

CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t bytes) {
  STUB_BEGIN("cuMemsetD8");
  STUB_DO(status = check_copy(SYNCHRONOUS, NULL);)
  STUB_DO(status = check_range(address, bytes);)
  STUB_DO(memset(HOST(address), value, bytes);)
  STUB_END("\"to\":%lu,\"bytes\":%zu", (unsigned long)address, bytes);
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
  STUB_BEGIN("cuMemsetD8Async");
  STUB_DO(status = check_copy(STREAM_ORDERED, stream);)
  STUB_DO(status = check_range(address, bytes);)
  STUB_DO(memset(HOST(address), value, bytes);)
  STUB_END("\"to\":%lu,\"bytes\":%zu,\"stream\":%lu", (unsigned long)address, bytes,
           STUB_STREAM(stream));
}
