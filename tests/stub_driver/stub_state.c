/* Environment, injected failures, counters and the trace.
 *
 * STUB_CUDA_TRACE  file to which one JSON object per call is appended
 * STUB_CUDA_FAIL   name=status[@n|@n+],...  the n-th call only, from the n-th on, or every call
 * STUB_CUDA_DELAY  name=milliseconds,...    sleeps inside the call
 */
#define _GNU_SOURCE
#include "stub_cuda.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RULES = 64, LINE_BYTES = 96 * 1024 };

struct rule {
  char name[64];
  long value;
  uint64_t first, last; /* calls it holds for, counted from 1 */
};

struct rules {
  struct rule items[MAX_RULES];
  int count;
};

pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER;

static struct rules failures, delays;
static struct stub_call *all_calls;
static pid_t owner_pid; /* process that called cuInit; 0 before */
static bool ended;
static int trace_file = -1;

const char *stub_env_item(const char *variable, int index, const char *fallback, char *buffer,
                          size_t size) {
  const char *text = getenv(variable);
  if (!text || !*text) return fallback;
  for (const char *next; index > 0 && (next = strchr(text, ';')); index--) text = next + 1;
  snprintf(buffer, size, "%.*s", (int)strcspn(text, ";"), text);
  return buffer;
}

long stub_env_number(const char *variable, int index, long fallback) {
  char buffer[32];
  const char *text = stub_env_item(variable, index, NULL, buffer, sizeof buffer);
  return text ? strtol(text, NULL, 0) : fallback;
}

static void parse_rules(struct rules *rules, const char *text) {
  rules->count = 0;
  while (text && *text && rules->count < MAX_RULES) {
    struct rule *rule = &rules->items[rules->count];
    char at = 0, plus = 0;
    unsigned long long first = 1;
    int fields = sscanf(text, "%63[^=]=%ld%c%llu%c", rule->name, &rule->value, &at, &first, &plus);
    if (fields >= 2) {
      bool ranged = fields >= 4 && at == '@';
      rule->first = ranged ? first : 1;
      rule->last = ranged && !(fields == 5 && plus == '+') ? first : UINT64_MAX;
      rules->count++;
    }
    text = strchr(text, ',');
    if (text) text++;
  }
}

static long match_rule(const struct rules *rules, const char *name, uint64_t nth) {
  for (int i = 0; i < rules->count; i++) {
    const struct rule *rule = &rules->items[i];
    if (!strcmp(rule->name, name) && rule->first <= nth && nth <= rule->last) return rule->value;
  }
  return 0;
}

CUresult stub_take_ownership(void) {
  if (!owner_pid) owner_pid = getpid();
  return owner_pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult stub_enter(struct stub_call *call, enum stub_need need) {
  pthread_mutex_lock(&stub_lock);
  if (!call->linked) {
    call->next = all_calls;
    all_calls = call;
    call->linked = true;
  }
  uint64_t nth = ++call->count;
  long delay = match_rule(&delays, call->name, nth);
  CUresult status = (CUresult)match_rule(&failures, call->name, nth);
  pthread_mutex_unlock(&stub_lock);
  if (delay > 0) nanosleep(&(struct timespec){delay / 1000, delay % 1000 * 1000000}, NULL);
  if (status != CUDA_SUCCESS || need == STUB_NEEDS_NOTHING) return status;
  if (ended) return CUDA_ERROR_DEINITIALIZED;
  /* A forked child inherits the memory but not the device: the driver refuses everything. */
  return owner_pid == getpid() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static void write_line(const char *name, CUresult status, const char *format, va_list values) {
  static _Thread_local char line[LINE_BYTES];
  int used = snprintf(line, sizeof line,
                      "{\"call\":\"%s\",\"status\":%d,\"pid\":%d,\"thread\":%ld,\"current\":%d", name,
                      status, (int)getpid(), (long)syscall(SYS_gettid), stub_current_device());
  if (format && *format) {
    line[used++] = ',';
    int more = vsnprintf(line + used, sizeof line - used - 2, format, values);
    int room = (int)sizeof line - used - 3;
    used += more < room ? more : room;
  }
  line[used++] = '}';
  line[used++] = '\n';
  /* One write to an O_APPEND file: whole lines, in order, also across threads and processes. */
  if (write(trace_file, line, used) != used) abort();
}

CUresult stub_leave(struct stub_call *call, CUresult status, const char *format, ...) {
  if (trace_file >= 0) {
    va_list values;
    va_start(values, format);
    write_line(call->name, status, format, values);
    va_end(values);
  }
  return status;
}

static void trace_event(const char *name, const char *format, ...) {
  if (trace_file < 0) return;
  va_list values;
  va_start(values, format);
  write_line(name, CUDA_SUCCESS, format, values);
  va_end(values);
}

__attribute__((constructor)) static void open_trace(void) {
  const char *path = getenv("STUB_CUDA_TRACE");
  if (path && *path) trace_file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  parse_rules(&failures, getenv("STUB_CUDA_FAIL"));
  parse_rules(&delays, getenv("STUB_CUDA_DELAY"));
}

__attribute__((destructor)) static void summarise(void) {
  ended = true;
  if (owner_pid != getpid()) return;
  struct stub_leaks leaks = stub_memory_leaks();
  trace_event("end of process",
              "\"blocks\":%zu,\"bytes\":%zu,\"streams\":%zu,\"events\":%zu,\"libraries\":%zu,"
              "\"contexts\":%ld",
              leaks.blocks, leaks.bytes, leaks.streams, leaks.events, stub_libraries_loaded(),
              stub_contexts_retained());
}

/* ---- what a test script calls through ctypes (tests/helpers/stub.py) ---- */

void stub_mark(const char *text) { trace_event("mark", "\"text\":\"%s\"", text); }

/* Replaces the rules of STUB_CUDA_FAIL; counting restarts, so that @1 means the next call. */
void stub_fail(const char *text) {
  pthread_mutex_lock(&stub_lock);
  parse_rules(&failures, text);
  for (struct stub_call *call = all_calls; call; call = call->next) call->count = 0;
  pthread_mutex_unlock(&stub_lock);
}
