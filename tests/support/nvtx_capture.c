/* An NVTX tool in one file: writes every call it is told of into the file named by NVTX_CAPTURE_FILE.
 *
 * The NVTX library in a process loads the shared object named by NVTX_INJECTION64_PATH and calls its
 * InitializeInjectionNvtx2; the tool then puts its functions into the tables it is given. The few types and numbers of that
 * interface (NVTX version 3, stable since 2018) are declared here, so no header is needed.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    union { uint64_t u64; int64_t i64; double f64; } payload;
    int32_t message_type;
    union { const char *ascii; const void *registered; } message;
} Attributes;

typedef void (*Function)(void);
typedef struct {
    size_t size;
    int (*get_module_function_table)(int module, Function ***table, unsigned *length);
} Callbacks;
typedef const void *(*GetExportTable)(uint32_t id);

enum { EXPORT_CALLBACKS = 1, MODULE_CORE2 = 5 };
enum { MARK = 1, RANGE_START = 2, RANGE_END = 3, RANGE_PUSH = 4, RANGE_POP = 5, REGISTER_STRING = 10, CREATE = 12 };
enum { PAYLOAD_INT64 = 2, MESSAGE_ASCII = 1, MESSAGE_REGISTERED = 3 };

static FILE *out;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *names[4096]; /* a handle is an index here, plus one */
static uintptr_t name_count;
static uint64_t ranges;

static uintptr_t keep(const char *text) {
    if (name_count + 1 >= sizeof names / sizeof *names) abort();
    names[name_count] = strdup(text);
    return ++name_count;
}

static const char *named(const void *handle) { return handle ? names[(uintptr_t)handle - 1] : "-"; }

static long long thread_id(void) { return syscall(SYS_gettid); }

static void say(const char *call, const void *domain, const Attributes *a, uint64_t id) {
    const char *kind = "-", *text = "-";
    if (a && a->message_type == MESSAGE_REGISTERED) kind = "registered", text = named(a->message.registered);
    if (a && a->message_type == MESSAGE_ASCII) kind = "text", text = a->message.ascii;
    fprintf(out, "%s\t%s\t%lld\t%llu\t%s\t%s\t", call, named(domain), thread_id(), (unsigned long long)id, kind, text);
    if (a && a->payload_type == PAYLOAD_INT64) fprintf(out, "%lld\n", (long long)a->payload.i64);
    else fprintf(out, "-\n");
    fflush(out);
}

static void *create(const char *name) {
    pthread_mutex_lock(&lock);
    uintptr_t handle = keep(name);
    say("create", (void *)handle, 0, 0);
    pthread_mutex_unlock(&lock);
    return (void *)handle;
}

static void *register_string(const void *domain, const char *text) {
    pthread_mutex_lock(&lock);
    uintptr_t handle = keep(text);
    Attributes a = {.message_type = MESSAGE_REGISTERED, .message.registered = (void *)handle};
    say("register", domain, &a, 0);
    pthread_mutex_unlock(&lock);
    return (void *)handle;
}

static void locked(const char *call, const void *domain, const Attributes *a, uint64_t id) {
    pthread_mutex_lock(&lock);
    say(call, domain, a, id);
    pthread_mutex_unlock(&lock);
}

static void mark(const void *domain, const Attributes *a) { locked("mark", domain, a, 0); }
static int push(const void *domain, const Attributes *a) { return locked("push", domain, a, 0), 0; }
static int pop(const void *domain) { return locked("pop", domain, 0, 0), 0; }
static void end(const void *domain, uint64_t id) { locked("end", domain, 0, id); }
static uint64_t start(const void *domain, const Attributes *a) {
    uint64_t id = __atomic_add_fetch(&ranges, 1, __ATOMIC_SEQ_CST);
    locked("start", domain, a, id);
    return id;
}

int InitializeInjectionNvtx2(GetExportTable get_export_table) {
    const Callbacks *callbacks = get_export_table(EXPORT_CALLBACKS);
    Function **table = 0;
    unsigned length = 0;
    const char *path = getenv("NVTX_CAPTURE_FILE");
    if (!callbacks || !path || !(out = fopen(path, "a"))) return 0;
    if (!callbacks->get_module_function_table(MODULE_CORE2, &table, &length) || length <= CREATE) return 0;
    *table[MARK] = (Function)mark;
    *table[RANGE_START] = (Function)start;
    *table[RANGE_END] = (Function)end;
    *table[RANGE_PUSH] = (Function)push;
    *table[RANGE_POP] = (Function)pop;
    *table[REGISTER_STRING] = (Function)register_string;
    *table[CREATE] = (Function)create;
    return 1;
}
