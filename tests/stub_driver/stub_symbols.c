/* cuGetProcAddress and the table behind it.
 *
 * STUB_CUDA_ABSENT  comma separated functions that this driver does not have
 *
 * A name that the table lacks gets a function that answers "not supported", so that a loader
 * that asks for all functions of its toolkit is content with the few that the stub has.
 */
#include "stub_cuda.h"

#include <stdlib.h>
#include <string.h>

/* X(name that is asked for, function, version of the first driver that has it) */
#define STUB_SYMBOLS(X)                                                               \
  X(cuInit, cuInit, 2000)                                                             \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020)                                     \
  X(cuGetErrorName, cuGetErrorName, 6000)                                             \
  X(cuGetErrorString, cuGetErrorString, 6000)                                         \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000)                                         \
  X(cuDeviceGet, cuDeviceGet, 2000)                                                   \
  X(cuDeviceGetName, cuDeviceGetName, 2000)                                           \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020)                                      \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040)                                       \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000)                                 \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000)                         \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000)                   \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000)                     \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000)                                      \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000)                                        \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                                           \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                                           \
  X(cuCtxGetDevice, cuCtxGetDevice, 2000)                                             \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000)                                         \
  X(cuMemAlloc, cuMemAlloc_v2, 3020)                                                  \
  X(cuMemFree, cuMemFree_v2, 3020)                                                    \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020)                                          \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020)                                            \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020)                                              \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020)                                              \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020)                                              \
  X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020)                                              \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020)                                    \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020)                                    \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020)                                    \
  X(cuMemcpy2D, cuMemcpy2D_v2, 3020)                                                  \
  X(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, 3020)                                        \
  X(cuMemsetD8, cuMemsetD8_v2, 3020)                                                  \
  X(cuMemsetD8Async, cuMemsetD8Async, 3020)                                           \
  X(cuPointerGetAttribute, cuPointerGetAttribute, 4000)                               \
  X(cuStreamCreate, cuStreamCreate, 2000)                                             \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000)                                        \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000)                                   \
  X(cuStreamQuery, cuStreamQuery, 2000)                                               \
  X(cuStreamWaitEvent, cuStreamWaitEvent, 3020)                                       \
  X(cuStreamIsCapturing, cuStreamIsCapturing, 10000)                                  \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010)                             \
  X(cuStreamEndCapture, cuStreamEndCapture, 10000)                                    \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010)      \
  X(cuEventCreate, cuEventCreate, 2000)                                               \
  X(cuEventDestroy, cuEventDestroy_v2, 4000)                                          \
  X(cuEventRecord, cuEventRecord, 2000)                                               \
  X(cuEventSynchronize, cuEventSynchronize, 2000)                                     \
  X(cuEventQuery, cuEventQuery, 2000)                                                 \
  X(cuEventElapsedTime, cuEventElapsedTime, 2000)                                     \
  X(cuLibraryLoadData, cuLibraryLoadData, 12000)                                      \
  X(cuLibraryUnload, cuLibraryUnload, 12000)                                          \
  X(cuLibraryGetKernel, cuLibraryGetKernel, 12000)                                    \
  X(cuLibraryGetKernelCount, cuLibraryGetKernelCount, 12040)                          \
  X(cuLibraryEnumerateKernels, cuLibraryEnumerateKernels, 12040)                      \
  X(cuKernelGetName, cuKernelGetName, 12030)                                          \
  X(cuKernelGetLibrary, cuKernelGetLibrary, 12050)                                    \
  X(cuKernelGetFunction, cuKernelGetFunction, 12000)                                  \
  X(cuKernelGetParamInfo, cuKernelGetParamInfo, 12040)                                \
  X(cuKernelGetAttribute, cuKernelGetAttribute, 12000)                                \
  X(cuKernelSetAttribute, cuKernelSetAttribute, 12000)                                \
  X(cuFuncLoad, cuFuncLoad, 12040)                                                    \
  X(cuFuncGetAttribute, cuFuncGetAttribute, 2020)                                     \
  X(cuFuncSetAttribute, cuFuncSetAttribute, 9000)                                     \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                      \
    cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050)                                \
  X(cuOccupancyMaxActiveClusters, cuOccupancyMaxActiveClusters, 11070)                \
  X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled, 12000)                            \
  X(cuTensorMapReplaceAddress, cuTensorMapReplaceAddress, 12000)                      \
  X(cuLaunchKernelEx, cuLaunchKernelEx, 11060)

/* The table needs addresses only; the prototypes stand with the definitions. */
#define STUB_DECLARE(name, function, version) void function(void);
STUB_SYMBOLS(STUB_DECLARE)

static const struct {
  const char *name;
  void (*function)(void);
  int version;
} symbols[] = {
#define STUB_ROW(name, function, version) {#name, function, version},
    STUB_SYMBOLS(STUB_ROW)};

static CUresult not_supported(void) {
  STUB_BEGIN_NEEDING(STUB_NEEDS_NOTHING, "unknown function");
  STUB_DO(status = CUDA_ERROR_NOT_SUPPORTED;)
  STUB_END(NULL);
}

static bool is_absent(const char *name) {
  const char *list = getenv("STUB_CUDA_ABSENT");
  size_t length = strlen(name);
  for (const char *item = list; item && *item; item = strchr(item, ',')) {
    if (*item == ',') item++;
    if (strcspn(item, ",") == length && !strncmp(item, name, length)) return true;
  }
  return false;
}

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                             int *symbol_status) {
  (void)flags; /* legacy and per-thread default streams are one here */
  enum { FOUND = 0, NO_SYMBOL = 1, OLD_DRIVER = 2 } found = FOUND;
  void (*address)(void) = (void (*)(void))not_supported;
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
    if (!strcmp(symbols[i].name, name)) {
      address = symbols[i].function;
      if (symbols[i].version > stub_env_number("STUB_CUDA_DRIVER", 0, 13000)) found = OLD_DRIVER;
    }
  /* The stub has no second versions: what a later toolkit redefined is unknown to it. */
  if (version >= 13000 && (!strcmp(name, "cuCtxGetDevice") || !strcmp(name, "cuCtxSynchronize")))
    address = (void (*)(void))not_supported;
  if (!strcmp(name, "cuGetProcAddress")) address = (void (*)(void))cuGetProcAddress_v2;
  if (is_absent(name)) found = NO_SYMBOL;
  *function = found == FOUND ? (void *)address : NULL;
  if (symbol_status) *symbol_status = found;
  return found == FOUND ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
