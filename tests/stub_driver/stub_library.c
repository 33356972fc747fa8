/* Cubin images, kernels with their parameter layout, and launches that only get checked.
 *
 * STUB_CUDA_PARAM_BYTES  the one parameter of a kernel whose image describes none (160)
 *
 * Of the image only the section headers are read: `.text.<name>` is a kernel, `.nv.info.<name>`
 * holds its parameters and its block limit.
 */
#include "stub_cuda.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMS = 32, MAX_KERNELS = 256, DEFAULT_SHARED = 48 * 1024 };
enum { KERNEL_MAGIC = 0x4b45524e, FUNCTION_MAGIC = 0x46554e43 };

struct param {
  size_t offset, bytes;
};

/* The code of one kernel on one device. CUkernel may be cast to CUfunction for a launch, so both
 * begin with a word that tells them apart. */
struct stub_function {
  unsigned magic;
  struct stub_kernel *kernel;
  CUdevice device;
  bool loaded;
  int dynamic_shared; /* bytes that a launch may ask for */
};

struct stub_kernel {
  unsigned magic;
  char name[256];
  CUlibrary library;
  int param_count, max_threads, cluster[3];
  struct param params[MAX_PARAMS];
  struct stub_function functions[STUB_MAX_DEVICES];
};

struct stub_library {
  struct stub_library *next;
  unsigned architecture; /* 90, 100, 103, ... */
  unsigned kernel_count;
  struct stub_kernel *kernels[MAX_KERNELS];
};

static struct stub_library *libraries;

size_t stub_libraries_loaded(void) {
  size_t count = 0;
  for (const struct stub_library *library = libraries; library; library = library->next) count++;
  return count;
}

/* ---- the image ---- */

/* Records of `.nv.info`: format byte, attribute byte, 16-bit value or size, then the payload. */
static void read_info(struct stub_kernel *kernel, const unsigned char *data, size_t size) {
  enum { SIZED = 4, MAX_THREADS = 0x05, KPARAM_INFO = 0x17, CTA_PER_CLUSTER = 0x3d };
  for (size_t at = 0; at + 4 <= size;) {
    uint16_t value;
    uint32_t words[3];
    memcpy(&value, data + at + 2, 2);
    size_t payload = data[at] == SIZED ? value : 0;
    if (at + 4 + payload > size) return;
    if (payload == sizeof words) {
      memcpy(words, data + at + 4, sizeof words);
      if (data[at + 1] == MAX_THREADS) kernel->max_threads = (int)(words[0] * words[1] * words[2]);
      for (int i = 0; data[at + 1] == CTA_PER_CLUSTER && i < 3; i++)
        kernel->cluster[i] = (int)words[i];
      unsigned ordinal = words[1] & 0xffff; /* offset above it; the size is in bits 18.. of the next */
      if (data[at + 1] == KPARAM_INFO && ordinal < MAX_PARAMS) {
        kernel->params[ordinal] = (struct param){words[1] >> 16, words[2] >> 18};
        if (kernel->param_count <= (int)ordinal) kernel->param_count = (int)ordinal + 1;
      }
    }
    at += 4 + payload;
  }
}

static struct stub_kernel *new_kernel(CUlibrary library, const char *name) {
  struct stub_kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel) abort();
  kernel->magic = KERNEL_MAGIC;
  kernel->library = library;
  kernel->max_threads = 1024;
  snprintf(kernel->name, sizeof kernel->name, "%s", name);
  for (int device = 0; device < STUB_MAX_DEVICES; device++)
    kernel->functions[device] = (struct stub_function){.magic = FUNCTION_MAGIC, .kernel = kernel,
                                                       .device = device,
                                                       .dynamic_shared = DEFAULT_SHARED};
  return kernel;
}

static CUresult read_image(struct stub_library *library, const unsigned char *image) {
  const Elf64_Ehdr *header = (const void *)image;
  enum { EM_CUDA_MACHINE = 190 };
  if (memcmp(image, ELFMAG, SELFMAG) || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_machine != EM_CUDA_MACHINE)
    return CUDA_ERROR_INVALID_IMAGE;
  library->architecture = header->e_flags >> 8 & 0xff;
  const Elf64_Shdr *sections = (const void *)(image + header->e_shoff);
  const char *names = (const char *)image + sections[header->e_shstrndx].sh_offset;
  static const char text[] = ".text.", info[] = ".nv.info.";
  for (int i = 0; i < header->e_shnum && library->kernel_count < MAX_KERNELS; i++) {
    const char *name = names + sections[i].sh_name;
    if (!strncmp(name, text, sizeof text - 1))
      library->kernels[library->kernel_count++] = new_kernel(library, name + sizeof text - 1);
  }
  for (int i = 0; i < header->e_shnum; i++) {
    const char *name = names + sections[i].sh_name;
    if (strncmp(name, info, sizeof info - 1)) continue;
    for (unsigned k = 0; k < library->kernel_count; k++)
      if (!strcmp(library->kernels[k]->name, name + sizeof info - 1))
        read_info(library->kernels[k], image + sections[i].sh_offset, sections[i].sh_size);
  }
  for (unsigned k = 0; k < library->kernel_count; k++)
    if (!library->kernels[k]->param_count) {
      library->kernels[k]->param_count = 1;
      library->kernels[k]->params[0].bytes = stub_env_number("STUB_CUDA_PARAM_BYTES", 0, 160);
    }
  return CUDA_SUCCESS;
}

/* ---- libraries ---- */

/* A cubin runs on its major version, from its minor version on. */
static bool fits(const struct stub_library *library, CUdevice device) {
  int major, minor, arch = (int)library->architecture;
  stub_capability(device, &major, &minor);
  return arch / 10 == major && arch % 10 <= minor;
}

/* Driver 580 loads an image without code for any of its devices, and finds no kernel in it. */
static bool fits_a_device(const struct stub_library *library) {
  for (CUdevice device = 0; stub_is_device(device); device++)
    if (fits(library, device)) return true;
  return false;
}

static bool is_library(CUlibrary library) {
  pthread_mutex_lock(&stub_lock);
  const struct stub_library *known = libraries;
  while (known && known != library) known = known->next;
  pthread_mutex_unlock(&stub_lock);
  return known && library;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit_options,
                           void **jit_values, unsigned jit_count, int *options, void **values,
                           unsigned count) {
  (void)jit_options, (void)jit_values, (void)values;
  STUB_BEGIN("cuLibraryLoadData");
  struct stub_library *created = NULL;
  STUB_DO(status = code && library ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;)
  STUB_DO(status = stub_check_unsafe();) /* loading may allocate and synchronise */
  STUB_DO(created = calloc(1, sizeof *created);
          status = created ? read_image(created, code) : CUDA_ERROR_OUT_OF_MEMORY;)
  if (status != CUDA_SUCCESS) free(created);
  STUB_DO(pthread_mutex_lock(&stub_lock); created->next = libraries; libraries = created;
          pthread_mutex_unlock(&stub_lock); *library = created;)
  STUB_END("\"jit_options\":%u,\"options\":%u,\"option\":%d,\"architecture\":%u", jit_count, count,
           count ? options[0] : -1, status ? 0 : created->architecture);
}

CUresult cuLibraryUnload(CUlibrary library) {
  STUB_BEGIN("cuLibraryUnload");
  STUB_DO(status = is_library(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = stub_check_unsafe();)
  STUB_DO(pthread_mutex_lock(&stub_lock); struct stub_library **link = &libraries;
          while (*link != library) link = &(*link)->next;
          *link = library->next;
          for (unsigned k = 0; k < library->kernel_count; k++) {
            library->kernels[k]->magic = 0; /* kept, so that a use of it is seen */
          } free(library);
          pthread_mutex_unlock(&stub_lock);)
  STUB_END(NULL);
}

CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
  STUB_BEGIN("cuLibraryGetKernelCount");
  STUB_DO(status = is_library(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(*count = fits_a_device(library) ? library->kernel_count : 0;)
  STUB_END(NULL);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
  STUB_BEGIN("cuLibraryEnumerateKernels");
  STUB_DO(status = is_library(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(for (unsigned k = 0; k < count && k < library->kernel_count; k++)
            kernels[k] = library->kernels[k];)
  STUB_END("\"count\":%u", count);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  STUB_BEGIN("cuLibraryGetKernel");
  STUB_DO(status = is_library(library) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;)
  if (status == CUDA_ERROR_NOT_FOUND && is_library(library))
    for (unsigned k = 0; k < library->kernel_count; k++)
      if (!strcmp(library->kernels[k]->name, name)) {
        *kernel = library->kernels[k];
        status = CUDA_SUCCESS;
      }
  STUB_END("\"kernel\":\"%s\"", name);
}

/* ---- kernels ---- */

static bool is_kernel(CUkernel kernel) { return kernel && kernel->magic == KERNEL_MAGIC; }
static bool is_function(CUfunction function) {
  return function && function->magic == FUNCTION_MAGIC && is_kernel(function->kernel);
}

static const char *name_of(CUkernel kernel) { return is_kernel(kernel) ? kernel->name : ""; }

static CUresult check_architecture(const struct stub_kernel *kernel, CUdevice device) {
  return fits(kernel->library, device) ? CUDA_SUCCESS : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel) {
  STUB_BEGIN("cuKernelGetName");
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(*name = kernel->name;)
  STUB_END("\"kernel\":\"%s\"", name_of(kernel));
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel) {
  STUB_BEGIN("cuKernelGetLibrary");
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(*library = kernel->library;)
  STUB_END("\"kernel\":\"%s\"", name_of(kernel));
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes) {
  STUB_BEGIN("cuKernelGetParamInfo");
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  // Undocumented; driver 580 on an H200 answers so.
  STUB_DO(status = stub_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(status = index < (size_t)kernel->param_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;)
  STUB_DO(*offset = kernel->params[index].offset; if (bytes) *bytes = kernel->params[index].bytes;)
  STUB_END("\"kernel\":\"%s\",\"index\":%zu", name_of(kernel), index);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  STUB_BEGIN("cuKernelGetFunction");
  CUdevice device = stub_current_device();
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(status = stub_check_unsafe();)
  STUB_DO(status = check_architecture(kernel, device);)
  STUB_DO(*function = &kernel->functions[device];)
  STUB_END("\"kernel\":\"%s\"", name_of(kernel));
}

CUresult cuFuncLoad(CUfunction function) {
  STUB_BEGIN("cuFuncLoad");
  STUB_DO(status = is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = function->device == stub_current_device() ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(function->loaded = true;)
  STUB_END("\"kernel\":\"%s\"", is_function(function) ? function->kernel->name : "");
}

enum { MAX_THREADS_PER_BLOCK = 0, SHARED_SIZE_BYTES = 1, CONST_SIZE_BYTES = 2, LOCAL_SIZE_BYTES = 3,
       NUM_REGS = 4, BINARY_VERSION = 6, MAX_DYNAMIC_SHARED = 8, SHARED_CARVEOUT = 9,
       CLUSTER_WIDTH = 11, CLUSTER_DEPTH = 13, NON_PORTABLE_CLUSTER = 14 };

static CUresult get_attribute(const struct stub_function *function, int attribute, int *value) {
  switch (attribute) {
    case MAX_THREADS_PER_BLOCK: *value = function->kernel->max_threads; break;
    case SHARED_SIZE_BYTES: case CONST_SIZE_BYTES: case LOCAL_SIZE_BYTES: *value = 0; break;
    case NUM_REGS: *value = 128; break;
    case BINARY_VERSION: *value = (int)function->kernel->library->architecture; break;
    case MAX_DYNAMIC_SHARED: *value = function->dynamic_shared; break;
    case CLUSTER_WIDTH: case CLUSTER_WIDTH + 1: case CLUSTER_DEPTH:
      *value = function->kernel->cluster[attribute - CLUSTER_WIDTH]; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

static CUresult set_attribute(struct stub_function *function, int attribute, int value) {
  if (attribute == SHARED_CARVEOUT || attribute == NON_PORTABLE_CLUSTER) return CUDA_SUCCESS;
  if (attribute != MAX_DYNAMIC_SHARED || value < 0 || value > stub_shared_limit(function->device))
    return CUDA_ERROR_INVALID_VALUE;
  function->dynamic_shared = value;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
  STUB_BEGIN("cuKernelGetAttribute");
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(status = get_attribute(&kernel->functions[device], attribute, value);)
  STUB_END("\"kernel\":\"%s\",\"attribute\":%d,\"device\":%d", name_of(kernel), attribute, device);
}

CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
  STUB_BEGIN("cuKernelSetAttribute");
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = stub_is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;)
  STUB_DO(status = set_attribute(&kernel->functions[device], attribute, value);)
  STUB_END("\"kernel\":\"%s\",\"attribute\":%d,\"value\":%d,\"device\":%d", name_of(kernel),
           attribute, value, device);
}

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
  STUB_BEGIN("cuFuncGetAttribute");
  STUB_DO(status = is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = get_attribute(function, attribute, value);)
  STUB_END("\"attribute\":%d", attribute);
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
  STUB_BEGIN("cuFuncSetAttribute");
  STUB_DO(status = is_function(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = set_attribute(function, attribute, value);)
  STUB_END("\"attribute\":%d,\"value\":%d", attribute, value);
}

/* ---- launches ---- */

struct launch_attribute {
  int id, padding;
  uint32_t value[16];
};

struct launch_config { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  const struct launch_attribute *attributes;
  unsigned attribute_count;
};

static CUresult check_launch(const struct launch_config *config, const struct stub_function *code) {
  uint64_t threads = 1;
  for (int axis = 0; axis < 3; axis++) {
    if (!config->grid[axis] || config->grid[axis] > (axis ? 65535u : 2147483647u))
      return CUDA_ERROR_INVALID_VALUE;
    if (!config->block[axis] || config->block[axis] > (axis == 2 ? 64u : 1024u))
      return CUDA_ERROR_INVALID_VALUE;
    threads *= config->block[axis];
  }
  if (threads > (uint64_t)code->kernel->max_threads) return CUDA_ERROR_INVALID_VALUE;
  return (int64_t)config->shared_bytes > code->dynamic_shared ? CUDA_ERROR_INVALID_VALUE
                                                              : CUDA_SUCCESS;
}

/* What limits occupancy here: 2,048 threads and the shared memory of an SM. */
static int blocks_per_sm(const struct stub_function *code, int threads, size_t shared) {
  int blocks = 2048 / threads;
  long room = stub_shared_limit(code->device) + 1024;
  return shared && (long)(room / shared) < blocks ? (int)(room / shared) : blocks;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared) {
  STUB_BEGIN("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  struct stub_kernel *kernel = (void *)function; /* a CUkernel may be cast, as in a launch */
  CUdevice device = stub_current_device();
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(status = threads > 0 && threads <= kernel->max_threads ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_INVALID_VALUE;)
  STUB_DO(*blocks = blocks_per_sm(&kernel->functions[device], threads, shared);)
  STUB_END("\"kernel\":\"%s\",\"threads\":%d,\"shared\":%zu", name_of(kernel), threads, shared);
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                      const struct launch_config *config) {
  STUB_BEGIN("cuOccupancyMaxActiveClusters");
  enum { CLUSTER_DIMENSION = 4 };
  struct stub_kernel *kernel = (void *)function;
  CUdevice device = stub_current_device();
  unsigned blocks = 0;
  STUB_DO(status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(for (unsigned i = 0; i < config->attribute_count; i++) {
    const uint32_t *dims = config->attributes[i].value;
    if (config->attributes[i].id == CLUSTER_DIMENSION) blocks = dims[0] * dims[1] * dims[2];
  } status = blocks ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;)
  STUB_DO(int threads = (int)(config->block[0] * config->block[1] * config->block[2]);
          *clusters = (int)stub_env_number("STUB_CUDA_SMS", device, 132) *
                      blocks_per_sm(&kernel->functions[device], threads, config->shared_bytes) /
                      (int)blocks;)
  STUB_END("\"kernel\":\"%s\",\"blocks\":%u", name_of(kernel), blocks);
}

static void append_hex(char **out, char *end, const unsigned char *bytes, size_t count) {
  for (size_t i = 0; i < count && *out + 3 < end; i++) *out += sprintf(*out, "%02x", bytes[i]);
}

/* JSON arrays of the parameters' bytes in hex and of the attributes as [id, word, word, word]. */
static void describe(const struct launch_config *config, const struct stub_kernel *kernel,
                     void **params, char *out, size_t size) {
  char *end = out + size - 256;
  out += sprintf(out, "\"params\":[");
  for (int i = 0; params && i < kernel->param_count; i++) {
    out += sprintf(out, i ? ",\"" : "\"");
    append_hex(&out, end, params[i], kernel->params[i].bytes);
    *out++ = '"';
  }
  out += sprintf(out, "],\"attributes\":[");
  for (unsigned i = 0; i < config->attribute_count && out < end; i++) {
    const struct launch_attribute *attribute = &config->attributes[i];
    out += sprintf(out, "%s[%d,%u,%u,%u]", i ? "," : "", attribute->id, attribute->value[0],
                   attribute->value[1], attribute->value[2]);
  }
  sprintf(out, "]");
}

CUresult cuLaunchKernelEx(const struct launch_config *config, CUfunction function, void **params,
                          void **extra) {
  STUB_BEGIN("cuLaunchKernelEx");
  static _Thread_local char description[80 * 1024];
  struct stub_kernel *kernel = (void *)function;
  CUcontext context = NULL;
  bool cold = false;
  STUB_DO(if (is_function(function)) kernel = function->kernel;
          status = is_kernel(kernel) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = stub_stream_context(config->stream, &context);)
  STUB_DO(status = check_architecture(kernel, context->device);)
  STUB_DO(struct stub_function *code = &kernel->functions[context->device];
          cold = !code->loaded; /* the first use of lazily loaded code */
          code->loaded = true; status = check_launch(config, code);)
  STUB_DO(status = params || extra || !kernel->param_count ? stub_check_enqueue(config->stream)
                                                           : CUDA_ERROR_INVALID_VALUE;)
  snprintf(description, sizeof description, "\"params\":[],\"attributes\":[]");
  STUB_DO(describe(config, kernel, params, description, sizeof description);)
  STUB_END("\"kernel\":\"%s\",\"device\":%d,\"stream\":%lu,\"grid\":[%u,%u,%u],"
           "\"block\":[%u,%u,%u],\"shared\":%u,\"cold\":%s,%s",
           name_of(kernel), context ? context->device : -1, STUB_STREAM(config->stream),
           config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1],
           config->block[2], config->shared_bytes, cold ? "true" : "false", description);
}
