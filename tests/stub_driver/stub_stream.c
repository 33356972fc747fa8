/* Streams, events and stream capture with the rules that a capture imposes on other calls. */
#include "stub_cuda.h"

#include <stdlib.h>

enum capture { CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_INVALIDATED = 2 };
enum capture_mode { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };

struct stub_stream {
  struct stub_stream *next;
  CUcontext context;
  bool blocking; /* the legacy stream waits for it, and it for the legacy stream */
  enum capture capture;
  enum capture_mode mode;
  pthread_t capturer;
};

static struct stub_stream *streams;
static size_t events;
static _Thread_local enum capture_mode thread_mode = MODE_GLOBAL;

void stub_count_streams(size_t *stream_count, size_t *event_count) {
  *event_count = events;
  for (const struct stub_stream *stream = streams; stream; stream = stream->next) ++*stream_count;
}

static bool is_default(CUstream stream) { return (uintptr_t)stream <= 2; }

CUresult stub_stream_context(CUstream stream, CUcontext *context) {
  if (is_default(stream)) {
    *context = stub_current_context();
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  }
  pthread_mutex_lock(&stub_lock);
  struct stub_stream *known = streams;
  while (known && known != stream) known = known->next;
  pthread_mutex_unlock(&stub_lock);
  if (!known) return CUDA_ERROR_INVALID_HANDLE;
  *context = known->context;
  return CUDA_SUCCESS;
}

/* A capture that the calling thread must not disturb with an unsafe call, or NULL. */
static struct stub_stream *disturbed_capture(void) {
  struct stub_stream *stream = streams;
  for (; stream; stream = stream->next) {
    if (stream->capture != CAPTURE_ACTIVE || stream->mode == MODE_RELAXED) continue;
    bool own = pthread_equal(stream->capturer, pthread_self());
    if (thread_mode == MODE_GLOBAL ? own || stream->mode == MODE_GLOBAL
                                   : thread_mode == MODE_THREAD_LOCAL && own)
      return stream;
  }
  return NULL;
}

/* For calls that CUDA forbids during a capture: they fail and spoil the capture. */
CUresult stub_check_unsafe(void) {
  pthread_mutex_lock(&stub_lock);
  struct stub_stream *stream = disturbed_capture();
  if (stream) stream->capture = CAPTURE_INVALIDATED;
  pthread_mutex_unlock(&stub_lock);
  return stream ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* The legacy stream waits for every blocking stream, so it is unusable while one captures. */
static CUresult check_legacy(CUstream stream, bool spoils) {
  CUcontext context;
  CUresult status = stub_stream_context(stream, &context);
  if (status != CUDA_SUCCESS || (uintptr_t)stream > 1) return status;
  pthread_mutex_lock(&stub_lock);
  struct stub_stream *other = streams;
  while (other && !(other->context == context && other->blocking &&
                    other->capture == CAPTURE_ACTIVE))
    other = other->next;
  if (other && spoils) other->capture = CAPTURE_INVALIDATED;
  pthread_mutex_unlock(&stub_lock);
  return other ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult stub_check_enqueue(CUstream stream) { return check_legacy(stream, true); }

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  STUB_BEGIN("cuStreamCreate");
  struct stub_stream *created = NULL;
  STUB_DO(status = stub_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(created = calloc(1, sizeof *created);
          status = created ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;)
  STUB_DO(pthread_mutex_lock(&stub_lock); created->context = stub_current_context();
          created->blocking = !(flags & 1);
          created->next = streams; streams = created; pthread_mutex_unlock(&stub_lock);
          *stream = created;)
  STUB_END("\"flags\":%u,\"stream\":%lu", flags, STUB_STREAM(created));
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  STUB_BEGIN("cuStreamDestroy");
  pthread_mutex_lock(&stub_lock);
  struct stub_stream **link = &streams;
  while (*link && *link != stream) link = &(*link)->next;
  STUB_DO(status = *link ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(*link = stream->next; free(stream);)
  pthread_mutex_unlock(&stub_lock);
  STUB_END("\"stream\":%lu", STUB_STREAM(stream));
}

/* A captured stream has nothing to wait for: that fails and spoils the capture in every mode. */
static CUresult check_not_captured(CUstream stream) {
  if (is_default(stream) || stream->capture == CAPTURE_NONE) return CUDA_SUCCESS;
  stream->capture = CAPTURE_INVALIDATED;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult cuStreamSynchronize(CUstream stream) {
  STUB_BEGIN("cuStreamSynchronize");
  CUcontext context;
  STUB_DO(status = stub_check_unsafe();)
  STUB_DO(status = stub_stream_context(stream, &context);)
  STUB_DO(status = check_not_captured(stream);)
  STUB_END("\"stream\":%lu", STUB_STREAM(stream));
}

CUresult cuStreamQuery(CUstream stream) {
  STUB_BEGIN("cuStreamQuery");
  CUcontext context;
  STUB_DO(status = stub_check_unsafe();)
  STUB_DO(status = stub_stream_context(stream, &context);)
  STUB_END("\"stream\":%lu", STUB_STREAM(stream));
}

CUresult cuCtxSynchronize(void) {
  STUB_BEGIN("cuCtxSynchronize");
  STUB_DO(status = stub_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(status = stub_check_unsafe();)
  STUB_END(NULL);
}

CUresult cuStreamIsCapturing(CUstream stream, int *capture) {
  STUB_BEGIN("cuStreamIsCapturing");
  CUcontext context;
  STUB_DO(status = check_legacy(stream, false);)
  STUB_DO(status = stub_stream_context(stream, &context);)
  STUB_DO(*capture = is_default(stream) ? CAPTURE_NONE : stream->capture;)
  STUB_END("\"stream\":%lu", STUB_STREAM(stream));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  STUB_BEGIN("cuStreamBeginCapture");
  CUcontext context;
  STUB_DO(status = is_default(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                      : stub_stream_context(stream, &context);)
  STUB_DO(stream->capture = CAPTURE_ACTIVE; stream->mode = mode;
          stream->capturer = pthread_self();)
  STUB_END("\"stream\":%lu,\"mode\":%d", STUB_STREAM(stream), mode);
}

CUresult cuStreamEndCapture(CUstream stream, void **graph) {
  enum { INVALIDATED = 901 };
  STUB_BEGIN("cuStreamEndCapture");
  CUcontext context;
  STUB_DO(status = is_default(stream) ? CUDA_ERROR_INVALID_VALUE
                                      : stub_stream_context(stream, &context);)
  STUB_DO(status = stream->capture == CAPTURE_ACTIVE        ? CUDA_SUCCESS
                   : stream->capture == CAPTURE_INVALIDATED ? INVALIDATED
                                                            : CUDA_ERROR_INVALID_VALUE;
          stream->capture = CAPTURE_NONE; *graph = NULL;)
  STUB_END("\"stream\":%lu", STUB_STREAM(stream));
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  STUB_BEGIN("cuThreadExchangeStreamCaptureMode");
  int asked = *mode;
  STUB_DO(*mode = (int)thread_mode; thread_mode = asked;)
  STUB_END("\"mode\":%d", asked);
}

/* ---- events: time passes by STUB_CUDA_EVENT_NS from one record to the next, by the n-th item of the
 * list from the n-th record of a timing event to its successor (500000; the last item repeats) ---- */

struct stub_event {
  bool timing, recorded;
  int64_t nanoseconds;
};

static int64_t event_clock; /* nanoseconds */
static int timed_records;

CUresult cuEventCreate(void **event, unsigned flags) {
  enum { DISABLE_TIMING = 2 };
  STUB_BEGIN("cuEventCreate");
  struct stub_event *created = NULL;
  STUB_DO(status = stub_current_context() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;)
  STUB_DO(created = calloc(1, sizeof *created);
          status = created ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;)
  STUB_DO(created->timing = !(flags & DISABLE_TIMING); *event = created;
          __atomic_fetch_add(&events, 1, __ATOMIC_RELAXED);)
  STUB_END("\"flags\":%u", flags);
}

CUresult cuEventDestroy_v2(void *event) {
  STUB_BEGIN("cuEventDestroy");
  STUB_DO(free(event); __atomic_fetch_sub(&events, 1, __ATOMIC_RELAXED);)
  STUB_END(NULL);
}

CUresult cuEventRecord(void *event, CUstream stream) {
  STUB_BEGIN("cuEventRecord");
  struct stub_event *mark = event;
  STUB_DO(status = event ? stub_check_enqueue(stream) : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(if (mark->timing) {
    pthread_mutex_lock(&stub_lock);
    mark->recorded = true;
    mark->nanoseconds = event_clock;
    event_clock += stub_env_number("STUB_CUDA_EVENT_NS", timed_records++, 500000);
    pthread_mutex_unlock(&stub_lock);
  })
  STUB_END("\"stream\":%lu", STUB_STREAM(stream));
}

CUresult cuStreamWaitEvent(CUstream stream, void *event, unsigned flags) {
  STUB_BEGIN("cuStreamWaitEvent");
  STUB_DO(status = event ? stub_check_enqueue(stream) : CUDA_ERROR_INVALID_HANDLE;)
  STUB_END("\"stream\":%lu,\"flags\":%u", STUB_STREAM(stream), flags);
}

CUresult cuEventSynchronize(void *event) {
  STUB_BEGIN("cuEventSynchronize");
  STUB_DO(status = event ? stub_check_unsafe() : CUDA_ERROR_INVALID_HANDLE;)
  STUB_END(NULL);
}

CUresult cuEventQuery(void *event) {
  STUB_BEGIN("cuEventQuery");
  STUB_DO(status = event ? stub_check_unsafe() : CUDA_ERROR_INVALID_HANDLE;)
  STUB_END(NULL);
}

CUresult cuEventElapsedTime(float *milliseconds, void *start, void *end) {
  STUB_BEGIN("cuEventElapsedTime");
  const struct stub_event *first = start, *last = end;
  STUB_DO(status = start && end ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(status = first->timing && last->timing && first->recorded && last->recorded
                       ? CUDA_SUCCESS
                       : CUDA_ERROR_INVALID_HANDLE;)
  STUB_DO(*milliseconds = (float)(last->nanoseconds - first->nanoseconds) / 1e6f;)
  STUB_END(NULL);
}
