/* A libcuda.so.1 for tests: what the files of the stub share.
 *
 * Device memory is host memory, a launch executes nothing, and every call is written to a trace.
 * What the real driver checks and users meet (contexts, handles, capture, limits, initialisation,
 * fork) is checked here too, so that a runtime that passes has kept the driver's rules.
 *
 *   stub_state.c    environment, injected failures, trace
 *   stub_symbols.c  cuGetProcAddress
 *   stub_cuda.c     versions, devices, contexts, errors
 *   stub_stream.c   streams, events, capture
 *   stub_memory.c   allocations, copies
 *   stub_library.c  cubin images, kernels, launches
 *   stub_tensormap.c  tensor maps
 *
 * The driver's own cuda.h is not needed: the few types below are its ABI, and
 * test_stub_itself.py compares them with cuda.bindings.
 */
#ifndef STUB_CUDA_H
#define STUB_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The names of cuda.h, with the subset of codes that the stub itself returns. */
typedef int CUresult;
enum {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
};

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct stub_context *CUcontext;
typedef struct stub_stream *CUstream;
typedef struct stub_library *CUlibrary;
typedef struct stub_kernel *CUkernel;
typedef struct stub_function *CUfunction;

enum { STUB_MAX_DEVICES = 16 };

/* ---- stub_state.c ---- */

/* One per API function, static in it; linked at its first call. */
struct stub_call {
  const char *name;
  uint64_t count;
  struct stub_call *next;
  bool linked;
};

enum stub_need { STUB_NEEDS_NOTHING, STUB_NEEDS_INIT };

/* Counts the call; gives the status that it must return without doing anything, or success. */
CUresult stub_enter(struct stub_call *call, enum stub_need need);
/* Writes the trace line; `format` adds JSON members. Returns `status`. */
CUresult stub_leave(struct stub_call *call, CUresult status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define STUB_BEGIN_NEEDING(need, symbol)                \
  static struct stub_call stub_this_call = {.name = symbol}; \
  CUresult status = stub_enter(&stub_this_call, need)
#define STUB_BEGIN(symbol) STUB_BEGIN_NEEDING(STUB_NEEDS_INIT, symbol)
#define STUB_END(...) return stub_leave(&stub_this_call, status, __VA_ARGS__)
#define STUB_DO(...)           \
  if (status == CUDA_SUCCESS) { \
    __VA_ARGS__                \
  }

/* The index-th item of a `;` separated environment variable; the last one repeats. */
const char *stub_env_item(const char *variable, int index, const char *fallback, char *buffer,
                          size_t size);
long stub_env_number(const char *variable, int index, long fallback);

/* What cuInit answers: the first caller owns the driver, its forked child is refused. */
CUresult stub_take_ownership(void);
extern pthread_mutex_t stub_lock; /* guards every table of the stub */

/* ---- stub_cuda.c ---- */

struct stub_context {
  CUdevice device;
  int retained;
};

int stub_device_count(void);
bool stub_is_device(CUdevice device);
void stub_capability(CUdevice device, int *major, int *minor);
long stub_shared_limit(CUdevice device); /* dynamic shared memory a block may opt in to, bytes */
CUcontext stub_current_context(void);    /* of this thread, or NULL */
CUdevice stub_current_device(void);      /* -1 without a context */
long stub_contexts_retained(void);

/* ---- stub_stream.c ---- */

#define STUB_STREAM(stream) (unsigned long)(uintptr_t)(stream) /* for the trace */

/* The context a stream handle belongs to; handles 0, 1 and 2 mean the current one. */
CUresult stub_stream_context(CUstream stream, CUcontext *context);
/* What a real driver answers when work is put on `stream` during somebody's capture. */
CUresult stub_check_enqueue(CUstream stream);
/* What it answers to a call that is forbidden during a capture; such a call spoils the capture. */
CUresult stub_check_unsafe(void);
void stub_count_streams(size_t *streams, size_t *events);

/* ---- stub_memory.c ---- */

struct stub_leaks {
  size_t blocks, bytes, streams, events;
};
struct stub_leaks stub_memory_leaks(void);

/* ---- stub_library.c ---- */

size_t stub_libraries_loaded(void);

#endif
