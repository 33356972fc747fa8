/* Versions, devices, contexts and error names.
 *
 * STUB_CUDA_DRIVER      driver version as cuDriverGetVersion gives it (13000)
 * STUB_CUDA_DEVICES     number of devices (1)
 * STUB_CUDA_CAPABILITY  major.minor of each device, `;` separated, the last one repeats (9.0)
 * STUB_CUDA_NAME        device names, likewise
 * STUB_CUDA_SMS         multiprocessors, likewise (132)
 * STUB_CUDA_L2          bytes of the L2 cache, likewise (52428800)
 * STUB_CUDA_COMPUTE_MODE  CUcomputemode, likewise (0)
 * STUB_CUDA_SHARED      shared memory a block may opt in to, bytes, likewise (232448)
 */
#include "stub_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- initialisation, versions, errors ---- */

CUresult cuInit(unsigned flags) {
  STUB_BEGIN_NEEDING(STUB_NEEDS_NOTHING, "cuInit");
  STUB_DO(status = stub_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;)
  STUB_DO(status = stub_take_ownership();)
  STUB_END("\"flags\":%u", flags);
}

CUresult cuDriverGetVersion(int *version) {
  STUB_BEGIN_NEEDING(STUB_NEEDS_NOTHING, "cuDriverGetVersion");
  STUB_DO(*version = (int)stub_env_number("STUB_CUDA_DRIVER", 0, 13000);)
  STUB_END(NULL);
}

static const struct {
  CUresult code;
  const char *name, *text;
} error_table[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_text(CUresult code, bool name, const char **text) {
  for (size_t i = 0; i < sizeof error_table / sizeof *error_table; i++)
    if (error_table[i].code == code) {
      *text = name ? error_table[i].name : error_table[i].text;
      return CUDA_SUCCESS;
    }
  *text = NULL;
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **text) { return error_text(error, true, text); }
CUresult cuGetErrorString(CUresult error, const char **text) {
  return error_text(error, false, text);
}

/* ---- devices ---- */

int stub_device_count(void) {
  long count = stub_env_number("STUB_CUDA_DEVICES", 0, 1);
  return count < 0 ? 0 : count > STUB_MAX_DEVICES ? STUB_MAX_DEVICES : (int)count;
}

void stub_capability(CUdevice device, int *major, int *minor) {
  char buffer[32];
  const char *text = stub_env_item("STUB_CUDA_CAPABILITY", device, "9.0", buffer, sizeof buffer);
  if (sscanf(text, "%d.%d", major, minor) != 2) *major = 9, *minor = 0;
}

long stub_shared_limit(CUdevice device) {
  return stub_env_number("STUB_CUDA_SHARED", device, 232448);
}

bool stub_is_device(CUdevice device) { return device >= 0 && device < stub_device_count(); }

CUresult cuDeviceGetCount(int *count) {
  STUB_BEGIN("cuDeviceGetCount");
  STUB_DO(*count = stub_device_count();)
  STUB_END(NULL);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  STUB_BEGIN("cuDeviceGet");
  STUB_DO(status = stub_is_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(*device = ordinal;)
  STUB_END("\"device\":%d", ordinal);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
  STUB_BEGIN("cuDeviceGetName");
  char buffer[256];
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(snprintf(name, length, "%s",
                   stub_env_item("STUB_CUDA_NAME", device, "Stub GPU", buffer, sizeof buffer));)
  STUB_END("\"device\":%d", device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  STUB_BEGIN("cuDeviceTotalMem");
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(*bytes = (size_t)stub_env_number("STUB_CUDA_MEMORY", device, 1L << 33);)
  STUB_END("\"device\":%d", device);
}

CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
  STUB_BEGIN("cuDeviceGetUuid");
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(memset(uuid, 0x5c, 16); uuid[15] = (unsigned char)device;)
  STUB_END("\"device\":%d", device);
}

/* An attribute that is not listed is an error: a test that needs it adds it with its value. */
static CUresult device_attribute(CUdevice device, int attribute, int *value) {
  int major, minor;
  stub_capability(device, &major, &minor);
  switch (attribute) {
    case 1: *value = 1024; break;                 /* MAX_THREADS_PER_BLOCK */
    case 2: case 3: *value = 1024; break;         /* MAX_BLOCK_DIM_X, _Y */
    case 4: *value = 64; break;                   /* MAX_BLOCK_DIM_Z */
    case 5: *value = 2147483647; break;           /* MAX_GRID_DIM_X */
    case 6: case 7: *value = 65535; break;        /* MAX_GRID_DIM_Y, _Z */
    case 8: *value = 49152; break;                /* MAX_SHARED_MEMORY_PER_BLOCK */
    case 10: *value = 32; break;                  /* WARP_SIZE */
    case 12: *value = 65536; break;               /* MAX_REGISTERS_PER_BLOCK */
    case 13: *value = 1980000; break;             /* CLOCK_RATE, kHz */
    case 16: *value = (int)stub_env_number("STUB_CUDA_SMS", device, 132); break;
    case 20: *value = (int)stub_env_number("STUB_CUDA_COMPUTE_MODE", device, 0); break;
    case 36: *value = 2619000; break;             /* MEMORY_CLOCK_RATE, kHz */
    case 37: *value = 5120; break;                /* GLOBAL_MEMORY_BUS_WIDTH, bits */
    case 38: *value = (int)stub_env_number("STUB_CUDA_L2", device, 52428800); break; /* L2_CACHE_SIZE */
    case 39: *value = 2048; break;                /* MAX_THREADS_PER_MULTIPROCESSOR */
    case 41: *value = 1; break;                   /* UNIFIED_ADDRESSING */
    case 75: *value = major; break;               /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = minor; break;               /* COMPUTE_CAPABILITY_MINOR */
    case 81: *value = (int)stub_shared_limit(device) + 1024; break; /* per multiprocessor */
    case 97: *value = (int)stub_shared_limit(device); break;        /* per block, opt in */
    case 111: *value = 1024; break;               /* RESERVED_SHARED_MEMORY_PER_BLOCK */
    case 115: *value = 1; break;                  /* MEMORY_POOLS_SUPPORTED */
    case 120: *value = 1; break;                  /* CLUSTER_LAUNCH */
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  STUB_BEGIN("cuDeviceGetAttribute");
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(status = device_attribute(device, attribute, value);)
  STUB_END("\"device\":%d,\"attribute\":%d", device, attribute);
}

/* ---- contexts: one primary context a device, a stack of current ones a thread ---- */

enum { STACK_DEPTH = 64 };
static struct stub_context contexts[STUB_MAX_DEVICES];
static _Thread_local struct {
  CUcontext items[STACK_DEPTH];
  int depth;
} stack;

CUcontext stub_current_context(void) { return stack.depth ? stack.items[stack.depth - 1] : NULL; }

CUdevice stub_current_device(void) {
  CUcontext context = stub_current_context();
  return context ? context->device : -1;
}

int stub_context_depth(void) { return stack.depth; } /* for tests, through ctypes */

long stub_contexts_retained(void) {
  long total = 0;
  for (int i = 0; i < STUB_MAX_DEVICES; i++) total += contexts[i].retained;
  return total;
}

static bool is_context(CUcontext context) {
  return context >= contexts && context < contexts + STUB_MAX_DEVICES && context->retained > 0;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  STUB_BEGIN("cuDevicePrimaryCtxRetain");
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(pthread_mutex_lock(&stub_lock); contexts[device].device = device;
          contexts[device].retained++; pthread_mutex_unlock(&stub_lock);
          *context = &contexts[device];)
  STUB_END("\"device\":%d", device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  STUB_BEGIN("cuDevicePrimaryCtxRelease");
  STUB_DO(status = stub_is_device(device) && contexts[device].retained ? CUDA_SUCCESS
                                                                  : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(contexts[device].retained--;)
  STUB_END("\"device\":%d", device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  STUB_BEGIN("cuDevicePrimaryCtxGetState");
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(*flags = 0; *active = contexts[device].retained > 0;)
  STUB_END("\"device\":%d", device);
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  STUB_BEGIN("cuCtxPushCurrent");
  STUB_DO(status = is_context(context) && stack.depth < STACK_DEPTH ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(stack.items[stack.depth++] = context;)
  STUB_END(NULL);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  STUB_BEGIN("cuCtxPopCurrent");
  STUB_DO(status = stack.depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(CUcontext top = stack.items[--stack.depth]; if (context) *context = top;)
  STUB_END(NULL);
}

CUresult cuCtxSetCurrent(CUcontext context) {
  STUB_BEGIN("cuCtxSetCurrent");
  STUB_DO(status = !context || is_context(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(if (stack.depth) stack.depth--; if (context) stack.items[stack.depth++] = context;)
  STUB_END(NULL);
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  STUB_BEGIN("cuCtxGetCurrent");
  STUB_DO(*context = stub_current_context();)
  STUB_END(NULL);
}

CUresult cuCtxGetDevice(CUdevice *device) {
  STUB_BEGIN("cuCtxGetDevice");
  STUB_DO(status = stub_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(*device = stub_current_device();)
  STUB_END(NULL);
}
