/* A HIP runtime that fails: calls that are refused, that lie or never return, and devices that fail while they work. What
 * happens is said to the shim by HIP_SHIM_SCRIPT (tests/hip-shim/src/script.rs). */
#include "shim.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

static void nothing(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
}

static tgpu_status try_launch(tgpu_stream s) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    config.stream = s;
    return tgpu_launch(kernel_of(nothing, 0, NULL), &config, NULL);
}

/* ---- memory */

static int hook_calls;

static void count_hook(void *data, tgpu_device device, uint64_t bytes) {
    (void)data, (void)device, (void)bytes;
    hook_calls++;
}

/* "hipMalloc:1=null", "hipMallocFromPoolAsync:1=null", "hipHostMalloc:1=null" */
static void F31_success_without_memory_is_tried_again(void) {
    void *p = NULL;
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK(p != NULL);
    CHECK_OK(tgpu_malloc_async(4096, NULL, &p));
    CHECK(p != NULL);
    CHECK_OK(tgpu_host_malloc(4096, &p));
    CHECK(p != NULL);
    CHECK_EQ(count_of("hipMalloc"), 2);
    CHECK_EQ(count_of("hipMallocFromPoolAsync"), 2);
    CHECK_EQ(count_of("hipHostMalloc"), 2);
}

static void F31_success_without_memory_is_out_of_memory(void) {
    void *p = (void *)77;
    CHECK_REFUSED(tgpu_malloc(4096, &p), TGPU_ERROR_OUT_OF_MEMORY, "4096", "success and no memory");
    CHECK_REFUSED(tgpu_malloc_async(4096, NULL, &p), TGPU_ERROR_OUT_OF_MEMORY, "4096", "success and no memory");
    CHECK_SAME(p, 77);
}

static void success_without_a_stream_is_an_error(void) {
    tgpu_stream s = (tgpu_stream)77;
    CHECK_REFUSED(tgpu_stream_create(NULL, &s), TGPU_ERROR_BACKEND, "success and NULL");
    CHECK_SAME(s, 77);
}

/* "hipMallocFromPoolAsync:3=2": the third call fails. */
static void F32_one_refusal_is_made_up_for(void) {
    void *p[4];
    for (int i = 0; i < 4; i++) CHECK_OK(tgpu_malloc_async(4096, NULL, &p[i]));
    CHECK_EQ(count_of("hipMallocFromPoolAsync"), 5);
    for (int i = 0; i < 4; i++) CHECK_OK(tgpu_free_async(p[i], NULL));
    CHECK_OK(tgpu_synchronize());
}

/* "hipMallocFromPoolAsync=2": waiting, trimming and the hook are tried once each. */
static void F32_what_goes_on_being_refused_is_given_up(void) {
    void *p = (void *)77;
    CHECK_OK(tgpu_memory_reclaim_hook_add(count_hook, NULL));
    CHECK_REFUSED(tgpu_malloc_async(4096, NULL, &p), TGPU_ERROR_OUT_OF_MEMORY, "4096", "hipErrorOutOfMemory (2)");
    CHECK_SAME(p, 77);
    CHECK_EQ(count_of("hipMallocFromPoolAsync"), 4);
    CHECK(count_of("hipMemPoolTrimTo") >= 1);
    CHECK_EQ(hook_calls, 1);
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK_OK(tgpu_free(p));
}

/* "hipMemGetInfo=1" */
static void F34_memory_without_statistics(void) {
    uint64_t free_bytes = 77, total = 77;
    void *p = NULL;
    CHECK_REFUSED(tgpu_device_memory(0, &free_bytes, &total), TGPU_ERROR_INVALID_ARGUMENT, "hipMemGetInfo");
    CHECK_EQ(free_bytes, 77);
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_malloc_async(4096, NULL, &p));
    CHECK_OK(tgpu_free_async(p, NULL));
    CHECK_REFUSED(tgpu_malloc(UINT64_C(1) << 60, &p), TGPU_ERROR_OUT_OF_MEMORY, TEXT(UINT64_C(1) << 60));
}

/* "hipMemPoolCreate=801" */
static void without_pools_memory_is_ordered_all_the_same(void) {
    struct notes notes = {0};
    void *p = NULL;
    for (int i = 0; i < 10; i++) {
        CHECK_OK(tgpu_malloc_async(4096, NULL, &p));
        CHECK_OK(tgpu_memset(p, i, 4096, NULL));
        note(NULL, &notes, i);
        CHECK_OK(tgpu_free_async(p, NULL));
    }
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9);
    CHECK_EQ(count_of("hipMallocFromPoolAsync"), 0);
}

/* "hipDeviceEnablePeerAccess:1=704" */
static void F35_access_that_others_have_enabled_is_success(void) {
    CHECK_OK(tgpu_device_enable_peer(0, 1));
    CHECK_OK(tgpu_device_enable_peer(0, 1));
    CHECK_EQ(hip_peek(), 0);
}

/* ---- calls that never return: "hipStreamSynchronize hangs; hipEventSynchronize hangs; hipDeviceSynchronize hangs" */

static void F25_waits_with_a_limit_end_beside_calls_that_never_return(void) {
    struct gate gate = GATE;
    tgpu_event e = NULL;
    const int32_t policies[] = {TGPU_WAIT_AUTO, TGPU_WAIT_SPIN, TGPU_WAIT_BLOCK};
    CHECK_OK(tgpu_event_create(NULL, &e));
    hold(NULL, &gate);
    CHECK_OK(tgpu_event_record(e, NULL));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tgpu_wait_policy_set(policies[i]));
        CHECK_STATUS(tgpu_stream_synchronize_timeout(NULL, 3000000), TGPU_ERROR_TIMEOUT);
        CHECK_STATUS(tgpu_event_synchronize_timeout(e, 3000000), TGPU_ERROR_TIMEOUT);
    }
    open_gate(&gate);
    CHECK_OK(tgpu_event_synchronize_timeout(e, UINT64_C(60000000000)));
    CHECK_OK(tgpu_stream_synchronize_timeout(NULL, UINT64_C(60000000000)));
    CHECK_OK(tgpu_event_destroy(e));
}

/* ---- devices that fail */

struct callback {
    atomic_int calls;
    tgpu_status status;
};

static void count_callback(void *data, tgpu_status status) {
    struct callback *c = data;
    c->status = status;
    atomic_fetch_add(&c->calls, 1);
}

/* Ways to wait on device 1, each on a thread of its own. */
enum { WAYS = 6 };

struct waiter {
    int way;
    tgpu_stream stream;
    tgpu_event event;
};

static void *waits(void *data) {
    const struct waiter *w = data;
    const uint64_t minute = UINT64_C(60000000000);
    tgpu_status status = TGPU_OK;
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_wait_policy_set(w->way % 3));
    switch (w->way) {
    case 0: status = tgpu_stream_synchronize(w->stream); break;
    case 1: status = tgpu_event_synchronize(w->event); break;
    case 2: status = tgpu_stream_synchronize_timeout(w->stream, minute); break;
    case 3: status = tgpu_event_synchronize_timeout(w->event, minute); break;
    case 4: status = tgpu_device_synchronize(); break;
    default: status = tgpu_stream_synchronize(w->stream);
    }
    if (status != TGPU_ERROR_DEVICE_LOST) FAIL("way %d answered %s", w->way, tgpu_status_name(status));
    if (!strstr(last_text(), "device 1")) FAIL("way %d: %s", w->way, last_text());
    return NULL;
}

/* Device 1 fails at its second launch, behind the gate. The runtime tells, and calls what is queued. */
static void F25_every_wait_ends_when_a_device_fails(void) {
    struct gate gate = GATE;
    struct waiter all[WAYS];
    struct callback called = {0, TGPU_OK};
    struct notes notes = {0};
    pthread_t threads[WAYS];
    tgpu_event e = NULL;
    tgpu_stream s = stream_on(1);
    int fd = eventfd(0, EFD_CLOEXEC);
    struct pollfd readable = {fd, POLLIN, 0};
    void *p = NULL;
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK_OK(tgpu_event_create(NULL, &e));
    hold(s, &gate);
    CHECK_OK(try_launch(s));
    CHECK_OK(tgpu_stream_add_callback(s, count_callback, &called));
    CHECK_OK(tgpu_stream_signal_fd(s, fd));
    CHECK_OK(tgpu_event_record(e, s));
    for (int i = 0; i < WAYS; i++) {
        all[i] = (struct waiter){i, s, e};
        threads[i] = start_thread(waits, &all[i]);
    }
    sleep_ms(20); /* most of them are waiting by now, and those that are not must be answered as well */
    open_gate(&gate);
    for (int i = 0; i < WAYS; i++) join_thread(threads[i]);
    CHECK_EQ(poll(&readable, 1, 60000), 1);
    WAIT_UNTIL(atomic_load(&called.calls) > 0);
    /* The device is lost for good, and says what ran on it; the text is the same for everybody. */
    CHECK_REFUSED(tgpu_synchronize(), TGPU_ERROR_DEVICE_LOST, "device 1", "hipErrorLaunchFailure", "function");
    CHECK_STATUS(tgpu_malloc(4096, &p), TGPU_ERROR_DEVICE_LOST);
    CHECK_STATUS(tgpu_event_query(e), TGPU_ERROR_DEVICE_LOST);
    CHECK_STATUS(try_launch(NULL), TGPU_ERROR_DEVICE_LOST);
    /* What is given back is taken, and others go on. */
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_OK(tgpu_stream_destroy(s));
    CHECK_OK(tgpu_free_deferred(p));
    CHECK_OK(tgpu_device_set(2));
    note(NULL, &notes, 7);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 7);
    CHECK_EQ(atomic_load(&called.calls), 1); /* told of success, if the runtime came with it before anybody had seen the failure */
    close(fd);
}

/* The same where the runtime forgets what is queued: what has found the device lost sees to the callbacks. */
static void F25_callbacks_that_the_runtime_forgets_are_called(void) {
    struct gate gate = GATE;
    struct callback called[3] = {{0, TGPU_OK}, {0, TGPU_OK}, {0, TGPU_OK}};
    tgpu_stream s = stream_on(1);
    CHECK_OK(tgpu_stream_add_callback(s, count_callback, &called[0]));
    CHECK_OK(tgpu_stream_synchronize(s));
    hold(s, &gate);
    CHECK_OK(try_launch(s));
    CHECK_OK(tgpu_stream_add_callback(s, count_callback, &called[1]));
    CHECK_OK(tgpu_stream_add_callback(s, count_callback, &called[2]));
    open_gate(&gate);
    CHECK_STATUS(tgpu_stream_synchronize(s), TGPU_ERROR_DEVICE_LOST);
    for (int i = 1; i < 3; i++) {
        WAIT_UNTIL(atomic_load(&called[i].calls) > 0);
        CHECK_EQ(called[i].status, TGPU_ERROR_DEVICE_LOST);
    }
    CHECK_OK(tgpu_stream_destroy(s));
    sleep_ms(20);
    for (int i = 0; i < 3; i++) CHECK_EQ(atomic_load(&called[i].calls), 1);
    CHECK_EQ(called[0].status, TGPU_OK);
}

/* The code tells the kind of fault: "device 1 faults with 700 after 0 launches". */
static void a_fault_is_named_as_the_runtime_names_it(void) {
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(try_launch(NULL));
    CHECK_REFUSED(tgpu_synchronize(), TGPU_ERROR_DEVICE_LOST, "hipErrorIllegalAddress (700)", "an illegal memory access");
    tgpu_error_info info = TGPU_ERROR_INFO_INIT;
    CHECK_OK(tgpu_error_info_get(&info));
    CHECK_EQ(info.native_code, HIP_ILLEGAL_ADDRESS);
    CHECK_EQ(info.device, 1);
}

static void faults(void) {
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(try_launch(NULL));
    CHECK_OK(tgpu_synchronize());
}

/* Older runtimes: there is no status to give, and nothing of ours turns the end into a hang. */
static void a_runtime_that_ends_the_process_does(void) {
    int status = CHILD_STATUS(faults, "HIP_SHIM_SCRIPT=device 1 aborts after 0 launches");
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(WTERMSIG(status), SIGABRT);
}

/* ---- functions that a runtime lacks */

static char folder[256];

/* A copy of the shim without one function: the name in its table is another one. */
static void make_runtime_without(const char *name) {
    char path[512];
    size_t length = strlen(name), size, found = 0;
    snprintf(folder, sizeof folder, "/tmp/taskgpu-shim-XXXXXX");
    if (!mkdtemp(folder)) FAIL("mkdtemp: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/lib/libamdhip64.so.6", getenv("ROCM_PATH"));
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) FAIL("%s: %s", path, strerror(errno));
    size = (size_t)ftell(f);
    rewind(f);
    char *bytes = malloc(size);
    if (!bytes || fread(bytes, 1, size, f) != size) FAIL("%s cannot be read", path);
    fclose(f);
    for (size_t i = 0; i + length + 2 <= size; i++)
        if (bytes[i] == 0 && memcmp(bytes + i + 1, name, length + 1) == 0) bytes[i + 1] = 'X', found++;
    if (!found) FAIL("%s exports no %s", path, name);
    snprintf(path, sizeof path, "%s/lib", folder);
    if (mkdir(path, 0755) != 0) FAIL("mkdir: %s", strerror(errno));
    snprintf(path, sizeof path, "%s/lib/libamdhip64.so.6", folder);
    f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, size, f) != size || fclose(f) != 0) FAIL("%s cannot be written", path);
    free(bytes);
}

static void remove_runtime(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/lib/libamdhip64.so.6", folder);
    remove(path);
    snprintf(path, sizeof path, "%s/lib", folder);
    remove(path);
    remove(folder);
}

#define CHECK_WITHOUT(name, scenario) \
    do { \
        static char setting_[300]; \
        make_runtime_without(name); \
        snprintf(setting_, sizeof setting_, "ROCM_PATH=%s", folder); \
        int status_ = CHILD_STATUS(scenario, setting_, "LACKS=" name); \
        remove_runtime(); \
        if (status_ != 0) FAIL("without %s %s ended with wait status %#x", name, #scenario, status_); \
    } while (0)

static void is_turned_off(void) {
    int32_t count = 77;
    CHECK_REFUSED(tgpu_device_count(&count), TGPU_ERROR_NO_DEVICE, getenv("LACKS"), "ROCm 5.2 or newer");
    CHECK_EQ(count, 77);
    CHECK_REFUSED(tgpu_device_count(&count), TGPU_ERROR_NO_DEVICE, getenv("LACKS"));
}

static void works_without(void) {
    int (*create)(void **, unsigned);
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    void *p = NULL, *native = NULL;
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_device_info_get(0, &info));
    CHECK_EQ(strcmp(info.arch, "gfx90a:sramecc+:xnack-"), 0);
    CHECK_OK(tgpu_malloc_async(4096, NULL, &p));
    CHECK_OK(tgpu_memset(p, 1, 4096, NULL));
    CHECK_OK(tgpu_free_async(p, NULL));
    CHECK_OK(tgpu_memory_trim(0, 0));
    CHECK_OK(try_launch(NULL));
    AS_FUNCTION_(create, "hipStreamCreateWithFlags");
    CHECK_EQ(create(&native, 1), 0);
    CHECK_OK(tgpu_stream_import(0, native, &s));
    CHECK_REFUSED(tgpu_stream_import(1, native, &s), TGPU_ERROR_INVALID_ARGUMENT, "HIP device 0");
    CHECK_OK(tgpu_synchronize());
}

static void without_a_function_that_is_needed_the_text_names_it(void) {
    CHECK_WITHOUT("hipEventQuery", is_turned_off);
    CHECK_WITHOUT("hipModuleLaunchKernel", is_turned_off);
}

static void without_one_of_newer_runtimes_the_rest_works(void) {
    CHECK_WITHOUT("hipMemPoolCreate", works_without);
    CHECK_WITHOUT("hipMallocFromPoolAsync", works_without);
    CHECK_WITHOUT("hipFreeAsync", works_without);
    CHECK_WITHOUT("hipStreamGetDevice", works_without);
    CHECK_WITHOUT("hipGetDevicePropertiesR0600", works_without);
    CHECK_WITHOUT("hipDeviceGetUuid", works_without);
    CHECK_WITHOUT("hipStreamWaitValue32", works_without);
}

#define SCRIPT(text) "HIP_SHIM_SCRIPT=" text

int main(int argc, char **argv) {
    begin(argc, argv);
    AS_CHILD(faults);
    AS_CHILD(is_turned_off);
    AS_CHILD(works_without);
    RUN_IN_CHILD(F31_success_without_memory_is_tried_again, SCRIPT("hipMalloc:1=null;hipMallocFromPoolAsync:1=null;hipHostMalloc:1=null"));
    RUN_IN_CHILD(F31_success_without_memory_is_out_of_memory, SCRIPT("hipMalloc=null;hipMallocFromPoolAsync=null"));
    RUN_IN_CHILD(success_without_a_stream_is_an_error, SCRIPT("hipStreamCreateWithPriority=null"));
    RUN_IN_CHILD(F32_one_refusal_is_made_up_for, SCRIPT("hipMallocFromPoolAsync:3=2"));
    RUN_IN_CHILD(F32_what_goes_on_being_refused_is_given_up, SCRIPT("hipMallocFromPoolAsync=2"));
    RUN_IN_CHILD(F34_memory_without_statistics, SCRIPT("hipMemGetInfo=1"));
    RUN_IN_CHILD(without_pools_memory_is_ordered_all_the_same, SCRIPT("hipMemPoolCreate=801"));
    RUN_IN_CHILD(F35_access_that_others_have_enabled_is_success, SCRIPT("hipDeviceEnablePeerAccess:1=704"));
    RUN_IN_CHILD(F25_waits_with_a_limit_end_beside_calls_that_never_return,
        SCRIPT("hipStreamSynchronize hangs;hipEventSynchronize hangs;hipDeviceSynchronize hangs"));
    RUN_IN_CHILD(F25_every_wait_ends_when_a_device_fails, SCRIPT("device 1 faults after 1 launches"));
    RUN_IN_CHILD(F25_callbacks_that_the_runtime_forgets_are_called, SCRIPT("device 1 faults silently after 1 launches"));
    RUN_IN_CHILD(a_fault_is_named_as_the_runtime_names_it, SCRIPT("device 1 faults with 700 after 0 launches"));
    RUN(a_runtime_that_ends_the_process_does);
    RUN(without_a_function_that_is_needed_the_text_names_it);
    RUN(without_one_of_newer_runtimes_the_rest_works);
    return end();
}
