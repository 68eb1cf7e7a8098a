/* Every call that needs the runtime, to be tried where all of them must give the same answer: inside callbacks, in the
 * child of a fork, where the environment makes no sense. Arguments are good ones, so that nothing else is to blame. */
#ifndef CALLS_H
#define CALLS_H

#include "check.h"

struct objects {
    tgpu_stream stream;
    tgpu_event event;
    tgpu_kernel kernel; /* without arguments */
    tgpu_task task;
    tgpu_module module; /* there are none on host devices yet: not a live one */
    tgpu_scope scope;
    void *memory, *freed, *pinned, *registered; /* 4096 bytes each */
    int fd;
};

/* What the calls write to. All bytes are 0x5a before, and must be after a refusal. */
union outputs {
    unsigned char bytes[1024];
    int32_t number;
    uint64_t numbers[2];
    double real;
    void *pointer;
    tgpu_stream stream;
    tgpu_event event;
    tgpu_task task;
    tgpu_module module;
    tgpu_kernel kernel;
    tgpu_scope scope;
    uint32_t shape[2];
};

typedef tgpu_status (*call_function)(const struct objects *o, union outputs *out);

#define CALLS(X) \
    X(tgpu_backend_info_get, (0, with_size(out, sizeof(tgpu_backend_info)))) \
    X(tgpu_device_count, (&out->number)) \
    X(tgpu_device_get, (&out->number)) \
    X(tgpu_device_set, (0)) \
    X(tgpu_device_default_set, (0)) \
    X(tgpu_device_info_get, (0, with_size(out, sizeof(tgpu_device_info)))) \
    X(tgpu_device_memory, (0, &out->numbers[0], &out->numbers[1])) \
    X(tgpu_device_synchronize, ()) \
    X(tgpu_device_signal_fd, (o->fd)) \
    X(tgpu_device_can_access_peer, (0, 1, &out->number)) \
    X(tgpu_device_enable_peer, (0, 1)) \
    X(tgpu_device_native, (0, &out->numbers[0])) \
    X(tgpu_stream_create, (NULL, &out->stream)) \
    X(tgpu_stream_get, (&out->stream)) \
    X(tgpu_stream_set, (o->stream)) \
    X(tgpu_stream_query, (o->stream)) \
    X(tgpu_stream_synchronize, (o->stream)) \
    X(tgpu_stream_synchronize_timeout, (o->stream, 1000000)) \
    X(tgpu_stream_wait_event, (o->stream, o->event)) \
    X(tgpu_stream_wait_stream, (o->stream, o->stream)) \
    X(tgpu_stream_info_get, (o->stream, with_size(out, sizeof(tgpu_stream_info)))) \
    X(tgpu_stream_import, (0, NULL, &out->stream)) \
    X(tgpu_stream_native, (o->stream, &out->pointer)) \
    X(tgpu_stream_add_callback, (o->stream, never_called, NULL)) \
    X(tgpu_stream_signal_fd, (o->stream, o->fd)) \
    X(tgpu_synchronize, ()) \
    X(tgpu_wait_policy_set, (TGPU_WAIT_BLOCK)) \
    X(tgpu_wait_policy_get, (&out->number)) \
    X(tgpu_event_create, (NULL, &out->event)) \
    X(tgpu_event_record, (o->event, o->stream)) \
    X(tgpu_event_query, (o->event)) \
    X(tgpu_event_synchronize, (o->event)) \
    X(tgpu_event_synchronize_timeout, (o->event, 1000000)) \
    X(tgpu_event_elapsed, (o->event, o->event, &out->real)) \
    X(tgpu_event_signal_fd, (o->event, o->fd)) \
    X(tgpu_event_native, (o->event, &out->pointer)) \
    X(tgpu_scope_enter_device, (0, &out->scope)) \
    X(tgpu_scope_enter_stream, (o->stream, &out->scope)) \
    X(tgpu_scope_leave, (o->scope)) \
    X(tgpu_task_create, (NULL, &out->task)) \
    X(tgpu_task_current, (&out->task)) \
    X(tgpu_task_swap, (o->task, &out->task)) \
    X(tgpu_malloc, (4096, &out->pointer)) \
    X(tgpu_malloc_async, (4096, o->stream, &out->pointer)) \
    X(tgpu_host_malloc, (4096, &out->pointer)) \
    X(tgpu_host_register, (never_registered, 4096)) \
    X(tgpu_memcpy, (o->memory, o->pinned, 4096, o->stream)) \
    X(tgpu_memset, (o->memory, 1, 4096, o->stream)) \
    X(tgpu_fill, (o->memory, "pattern", 8, 512, o->stream)) \
    X(tgpu_pointer_info_get, (o->memory, with_size(out, sizeof(tgpu_pointer_info)))) \
    X(tgpu_memory_trim, (0, 0)) \
    X(tgpu_memory_reclaim_hook_add, (never_a_hook, NULL)) \
    X(tgpu_module_load, ("image", 6, &out->module)) \
    X(tgpu_module_compile, ("source", NULL, &out->module)) \
    X(tgpu_module_prepare, (o->module, 0)) \
    X(tgpu_module_global_get, (o->module, 0, "name", &out->pointer, &out->numbers[1])) \
    X(tgpu_kernel_get, (o->module, "name", &out->kernel)) \
    X(tgpu_kernel_from_host_fn, (never_run, NULL, 0, NULL, &out->kernel)) \
    X(tgpu_kernel_info_get, (o->kernel, 0, with_size(out, sizeof(tgpu_kernel_info)))) \
    X(tgpu_kernel_suggest, (o->kernel, 1000, &out->shape[0], &out->shape[1])) \
    X(tgpu_launch, (o->kernel, &one_block, NULL))

static char never_registered[4096];
static const tgpu_launch_config one_block = TGPU_LAUNCH_CONFIG_INIT;

HELPER void never_called(void *data, tgpu_status status) {
    (void)data;
    FAIL("the callback of a refused call was called with %s", tgpu_status_name(status));
}

HELPER void never_run(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
    FAIL("the kernel of a refused launch ran");
}

HELPER void never_a_hook(void *data, tgpu_device device, uint64_t bytes) {
    (void)data, (void)device, (void)bytes;
    FAIL("the hook of a refused call was called");
}

/* An output struct that says how large it is. */
HELPER void *with_size(union outputs *out, size_t size) {
    memcpy(out, &size, sizeof size);
    return out;
}

#define CALL_FUNCTION_(name, arguments) \
    HELPER tgpu_status try_##name(const struct objects *o, union outputs *out) { \
        (void)o, (void)out; \
        return name arguments; \
    }
CALLS(CALL_FUNCTION_)

static const struct {
    const char *name;
    call_function call;
} EVERY_CALL[] = {
#define CALL_ENTRY_(name, arguments) {#name, try_##name},
    CALLS(CALL_ENTRY_)};

/* Makes every call that needs the runtime and checks that all are refused alike, say why, and write nothing. */
HELPER void check_every_call_answers(tgpu_status must, const char *word, const struct objects *o) {
    for (size_t i = 0; i < sizeof EVERY_CALL / sizeof *EVERY_CALL; i++) {
        union outputs out;
        memset(&out, 0x5a, sizeof out);
        tgpu_status is = EVERY_CALL[i].call(o, &out);
        if (is != must)
            FAIL("%s answered %s, must be %s: %s", EVERY_CALL[i].name, tgpu_status_name(is), tgpu_status_name(must), last_text());
        if (last_status() != must || !strstr(last_text(), word))
            FAIL("%s: the text lacks \"%s\": %s: %s", EVERY_CALL[i].name, word, tgpu_status_name(last_status()), last_text());
        /* The first word may be a struct_size, which with_size wrote. */
        int written = out.numbers[0] != UINT64_C(0x5a5a5a5a5a5a5a5a) && out.numbers[0] > sizeof out;
        for (size_t b = sizeof out.numbers[0]; b < sizeof out; b++) written |= out.bytes[b] != 0x5a;
        if (written) FAIL("%s was refused and wrote its output", EVERY_CALL[i].name);
    }
}

/* Every call that gives something back, on objects that exist: OK everywhere, and no trace in the last error. */
HELPER void check_cleanup_is_ok(const struct objects *o) {
    tgpu_status before = last_status();
    CHECK_OK(tgpu_event_destroy(o->event));
    CHECK_OK(tgpu_kernel_destroy(o->kernel));
    CHECK_OK(tgpu_stream_destroy(o->stream));
    CHECK_OK(tgpu_task_destroy(o->task));
    CHECK_OK(tgpu_free_deferred(o->memory));
    CHECK_OK(tgpu_host_free(o->pinned));
    CHECK_EQ(last_status(), before);
}

/* Giving back nothing is OK everywhere, even where nothing ever worked. */
HELPER void check_giving_back_nothing_is_ok(void) {
    CHECK_OK(tgpu_stream_destroy(NULL));
    CHECK_OK(tgpu_event_destroy(NULL));
    CHECK_OK(tgpu_task_destroy(NULL));
    CHECK_OK(tgpu_module_destroy(NULL));
    CHECK_OK(tgpu_kernel_destroy(NULL));
    CHECK_OK(tgpu_free(NULL));
    CHECK_OK(tgpu_free_async(NULL, NULL));
    CHECK_OK(tgpu_free_deferred(NULL));
    CHECK_OK(tgpu_host_free(NULL));
    CHECK_OK(tgpu_host_unregister(NULL));
}

/* The calls that need no runtime: they answer everywhere. */
HELPER void check_what_needs_no_runtime(void) {
    tgpu_error_info info = TGPU_ERROR_INFO_INIT;
    size_t needed;
    CHECK_EQ(tgpu_version(), TGPU_VERSION);
    CHECK_EQ(tgpu_abi_version(), TGPU_ABI_VERSION);
    CHECK(strlen(tgpu_version_string()) > 0);
    CHECK(strlen(tgpu_status_name(TGPU_ERROR_FORKED)) > 0);
    CHECK(strlen(tgpu_status_message(TGPU_ERROR_FORKED)) > 0);
    CHECK_OK(tgpu_error_info_get(&info));
    CHECK_OK(tgpu_error_text(NULL, 0, &needed));
}

HELPER int null_device(void) {
    static int fd = -1;
    if (fd < 0) fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0) FAIL("/dev/null: %s", strerror(errno));
    return fd;
}

/* One of each, on the current device. */
HELPER struct objects make_objects(void) {
    struct objects o;
    memset(&o, 0, sizeof o);
    CHECK_OK(tgpu_stream_create(NULL, &o.stream));
    CHECK_OK(tgpu_event_create(NULL, &o.event));
    CHECK_OK(tgpu_event_record(o.event, o.stream));
    CHECK_OK(tgpu_kernel_from_host_fn(never_run, NULL, 0, NULL, &o.kernel));
    CHECK_OK(tgpu_task_create(NULL, &o.task));
    CHECK_OK(tgpu_malloc(4096, &o.memory));
    CHECK_OK(tgpu_malloc(4096, &o.freed));
    CHECK_OK(tgpu_host_malloc(4096, &o.pinned));
    o.registered = aligned_alloc(4096, 4096);
    CHECK_OK(tgpu_host_register(o.registered, 4096));
    CHECK_OK(tgpu_stream_synchronize(o.stream));
    o.fd = null_device();
    return o;
}

/* Handles for where nothing can be made: what counts comes before they are looked at. */
HELPER struct objects no_objects(void) {
    static char memory[4096];
    struct objects o;
    memset(&o, 0, sizeof o);
    o.memory = o.pinned = memory;
    o.fd = null_device();
    return o;
}

#endif
