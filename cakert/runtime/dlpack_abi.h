/* The binary interface of DLPack 1.3, written from its specification. Names carry a prefix of their
 * own, so that a test can include this file beside a framework's header and compare the layouts. */
#ifndef CAKE_DLPACK_ABI_H
#define CAKE_DLPACK_ABI_H

#include <stdint.h>

#define CAKE_DLPACK_MAJOR 1
#define CAKE_DLPACK_MINOR 3

/* Bits of CakeDLManagedTensorVersioned.flags. */
#define CAKE_DLPACK_READ_ONLY 1u
#define CAKE_DLPACK_SUBBYTE_PADDED 4u

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint32_t major;
  uint32_t minor;
} CakeDLPackVersion;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} CakeDLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} CakeDLDataType;

typedef struct {
  void *data;
  CakeDLDevice device;
  int32_t ndim;
  CakeDLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; null means packed in producers older than 1.2 */
  uint64_t byte_offset;
} CakeDLTensor;

/* What a capsule named "dltensor" holds. */
typedef struct CakeDLManagedTensor {
  CakeDLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct CakeDLManagedTensor *self);
} CakeDLManagedTensor;

/* What a capsule named "dltensor_versioned" holds. Every field before dl_tensor keeps its place in
 * later major versions, so that the deleter can be called whatever the version is. */
typedef struct CakeDLManagedTensorVersioned {
  CakeDLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct CakeDLManagedTensorVersioned *self);
  uint64_t flags;
  CakeDLTensor dl_tensor;
} CakeDLManagedTensorVersioned;

/* The C exchange interface: the capsule "dlpack_exchange_api" on a tensor type. Functions return 0,
 * or -1 with a Python error set. "No sync" leaves the data on the producer's current stream. */
typedef struct CakeDLPackExchangeHeader {
  CakeDLPackVersion version;
  struct CakeDLPackExchangeHeader *prev_api; /* an older version of the table, or null */
} CakeDLPackExchangeHeader;

typedef struct {
  CakeDLPackExchangeHeader header;
  int (*managed_tensor_allocator)(CakeDLTensor *prototype, CakeDLManagedTensorVersioned **out,
                                  void *error_context,
                                  void (*set_error)(void *error_context, const char *kind,
                                                    const char *message));
  int (*managed_tensor_from_py_object_no_sync)(void *object, CakeDLManagedTensorVersioned **out);
  int (*managed_tensor_to_py_object_no_sync)(CakeDLManagedTensorVersioned *tensor, void **out);
  /* Null where the producer cannot lend a view; shape and strides are borrowed from `object`. */
  int (*dltensor_from_py_object_no_sync)(void *object, CakeDLTensor *out);
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void **out);
} CakeDLPackExchangeAPI;

#ifdef __cplusplus
}
#endif

#endif
