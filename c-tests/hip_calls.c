/* What the library asks of the HIP runtime, counted: which calls, on which device, how many, and in which order. */
#include "calls.h"
#include "shim.h"

/* A process of its own for each test, in which nothing was called before. */
#define FRESH "HIP_SHIM_SCRIPT"
#define VERSION_5 "HIP_SHIM_VERSION=50221153"
#define VERSION_6 "HIP_SHIM_VERSION=60300000"
#define VERSION_7 "HIP_SHIM_VERSION=70000000"


static void nothing(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
}

static void do_nothing(void *data, tgpu_status status) {
    (void)data, (void)status;
}

static void launch(tgpu_kernel k, tgpu_stream s) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    config.stream = s;
    CHECK_OK(tgpu_launch(k, &config, NULL));
}

/* The reaper has looked at everything left before: it has destroyed a stream that was left after it. */
static void let_the_reaper_look(void) {
    tgpu_stream s = NULL;
    long before = count_of("hipStreamDestroy");
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_destroy(s));
    WAIT_UNTIL(count_of("hipStreamDestroy") > before);
}

/* ---- what ends, and when */

static void F17_a_stream_is_destroyed_after_its_work(void) {
    struct gate gate = GATE;
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    hold(s, &gate);
    wait_for_gate(&gate);
    CHECK_OK(tgpu_stream_destroy(s));
    long live = count_of("streams");
    for (int i = 0; i < 10; i++) let_the_reaper_look();
    CHECK_EQ(count_of("hipStreamDestroy"), 10);
    CHECK_EQ(count_of("streams"), live);
    open_gate(&gate);
    WAIT_UNTIL(count_of("hipStreamDestroy") == 11);
    CHECK_EQ(count_of("streams"), live - 1);
}

/* The same where the work is not under way but waits for another stream's. */
static void F17_a_stream_that_waits_for_another_is_destroyed_after_it(void) {
    struct gate gate = GATE;
    tgpu_stream s = NULL, other = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_create(NULL, &other));
    hold(other, &gate);
    CHECK_OK(tgpu_stream_wait_stream(s, other));
    CHECK_OK(tgpu_stream_destroy(s));
    for (int i = 0; i < 10; i++) let_the_reaper_look();
    CHECK_EQ(count_of("hipStreamDestroy"), 10);
    open_gate(&gate);
    WAIT_UNTIL(count_of("hipStreamDestroy") == 11);
    CHECK_OK(tgpu_stream_destroy(other));
}

static void F22_nobody_asks_a_stream_that_is_left_how_far_it_is(void) {
    struct gate gate = GATE;
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    hold(s, &gate);
    CHECK_OK(tgpu_stream_destroy(s));
    for (int i = 0; i < 10; i++) let_the_reaper_look();
    open_gate(&gate);
    WAIT_UNTIL(count_of("hipStreamDestroy") == 11);
    CHECK_EQ(count_of("hipStreamQuery"), 0);
    CHECK_EQ(count_of("markers"), 0);
}

/* A module, whose unloading does not wait, and both kinds of memory. */
static void F17_modules_and_memory_end_after_the_work_that_may_use_them(void) {
    struct gate gate = GATE;
    void *p = NULL, *pinned = NULL;
    tgpu_stream s = NULL;
    tgpu_kernel k = NULL;
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK_OK(tgpu_host_malloc(4096, &pinned));
    CHECK_OK(tgpu_stream_create(NULL, &s));
    hold(s, &gate);
    k = kernel_of(nothing, 0, NULL);
    launch(k, s);
    CHECK_OK(tgpu_module_destroy(module_of_(nothing, 0, NULL)));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_free_deferred(p));
    CHECK_OK(tgpu_host_free(pinned));
    for (int i = 0; i < 10; i++) let_the_reaper_look();
    CHECK_EQ(count_of("hipModuleUnload"), 0);
    CHECK_EQ(count_of("hipFree"), 0);
    CHECK_EQ(count_of("hipHostFree"), 0);
    open_gate(&gate);
    WAIT_UNTIL(count_of("hipModuleUnload") == 1 && count_of("hipFree") == 1 && count_of("hipHostFree") == 1);
    CHECK_EQ(count_of("unloaded in use"), 0);
    CHECK_EQ(count_of("hipStreamQuery"), 0);
    CHECK_OK(tgpu_stream_destroy(s));
}

/* ---- contexts and the thread's device */

static void F10_looking_at_devices_opens_no_context(void) {
    int32_t count = 0, can = 0;
    CHECK_OK(tgpu_device_count(&count));
    CHECK_EQ(count, 4);
    for (tgpu_device d = 0; d < count; d++) {
        tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
        CHECK_OK(tgpu_device_info_get(d, &info));
        CHECK_OK(tgpu_device_can_access_peer(d, (d + 1) % count, &can));
    }
    CHECK_EQ(device_now(), 0);
    CHECK_EQ(count_of("contexts"), 0);
}

static void *works_on_device_2(void *data) {
    tgpu_stream s = NULL;
    tgpu_event e = NULL;
    void *p = NULL, *pinned = NULL;
    CHECK_OK(tgpu_device_set(2));
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK_OK(tgpu_host_malloc(4096, &pinned));
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_event_create(NULL, &e));
    launch(kernel_of(nothing, 0, NULL), s);
    CHECK_OK(tgpu_stream_add_callback(s, do_nothing, NULL));
    CHECK_OK(tgpu_event_record(e, s));
    CHECK_OK(tgpu_event_synchronize(e));
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_OK(tgpu_stream_destroy(s));
    CHECK_OK(tgpu_free_deferred(p));
    CHECK_OK(tgpu_host_free(pinned));
    return data;
}

static void F05_no_context_on_a_device_that_nobody_asked_for(void) {
    on_a_thread(works_on_device_2, NULL);
    WAIT_UNTIL(count_of("hipStreamDestroy") == 1 && count_of("hipFree") == 1 && count_of("hipHostFree") == 1 &&
        count_of("hipEventDestroy") >= 1);
    CHECK_EQ(count_of("context 2"), 1);
    CHECK_EQ(count_of("contexts"), 1);
}

/* What may set the thread's device, and what would call back into the test. */
static int is_left_out(const char *name) {
    const char *const names[] = {"tgpu_device_set", "tgpu_stream_set", "tgpu_scope_enter_device", "tgpu_scope_enter_stream",
        "tgpu_scope_leave", "tgpu_task_swap", "tgpu_stream_add_callback", "tgpu_launch", "tgpu_memory_reclaim_hook_add"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) return 1;
    return 0;
}

/* Another library has made another device current. */
static int try_every_call_beside_another_library(const struct objects *o) {
    int failed = 0;
    for (size_t i = 0; i < sizeof EVERY_CALL / sizeof *EVERY_CALL; i++) {
        union outputs out;
        if (is_left_out(EVERY_CALL[i].name)) continue;
        memset(&out, 0, sizeof out);
        for (int device = 3; device >= 0; device -= 3) {
            hip_set_device(device);
            failed += EVERY_CALL[i].call(o, &out) != TGPU_OK;
            if (hip_device() != device) FAIL("%s has made HIP device %d current, which was %d", EVERY_CALL[i].name, hip_device(), device);
        }
    }
    return failed;
}

static void F06_every_call_leaves_the_threads_device_as_it_was(void) {
    struct objects o;
    tgpu_device_set(1);
    tgpu_device_default_set(1);
    o = make_objects();
    o.kernel = kernel_of(nothing, 0, NULL);
    o.module = module_of_(nothing, 0, NULL);
    try_every_call_beside_another_library(&o);
    for (int device = 0; device < 4; device++) {
        hip_set_device(device);
        launch(o.kernel, o.stream);
        CHECK_OK(tgpu_stream_add_callback(o.stream, do_nothing, NULL));
        CHECK_EQ(hip_device(), device);
        check_giving_back_nothing_is_ok();
        CHECK_EQ(hip_device(), device);
    }
    check_cleanup_is_ok(&o);
    CHECK_EQ(hip_device(), 3);
}

/* Every native call that can fail does: what was made current for it is put back all the same. */
static void F06_failing_calls_leave_the_threads_device_as_it_was(void) {
    struct objects o = no_objects();
    CHECK(try_every_call_beside_another_library(&o) > 60);
}

static void the_device_of_the_task_is_made_the_threads(void) {
    tgpu_scope scope = {0};
    tgpu_stream s = NULL;
    tgpu_task task = NULL, own = NULL;
    for (tgpu_device d = 0; d < 4; d++) {
        CHECK_OK(tgpu_device_set(d));
        CHECK_EQ(hip_device(), d);
    }
    CHECK_OK(tgpu_scope_enter_device(1, &scope));
    CHECK_EQ(hip_device(), 1);
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_EQ(hip_device(), 3);
    s = stream_on(2);
    CHECK_EQ(hip_device(), 3);
    CHECK_OK(tgpu_scope_enter_stream(s, &scope));
    CHECK_EQ(hip_device(), 2);
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_OK(tgpu_stream_set(s));
    CHECK_EQ(hip_device(), 2);
    CHECK_OK(tgpu_task_create(NULL, &task));
    CHECK_OK(tgpu_task_swap(task, &own));
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_task_swap(own, NULL));
    CHECK_EQ(hip_device(), 2);
    CHECK_OK(tgpu_task_swap(task, &own));
    CHECK_EQ(hip_device(), 1);
    CHECK_OK(tgpu_task_swap(own, NULL));
    CHECK_EQ(hip_device(), 2);
    CHECK_OK(tgpu_task_destroy(task));
    CHECK_OK(tgpu_stream_destroy(s));
}

/* ---- how many */

static void looking_at_the_state_calls_nobody(void) {
    tgpu_device d = -1;
    tgpu_stream s = NULL;
    int32_t policy = -1;
    CHECK_OK(tgpu_stream_get(&s)); /* takes a lease */
    long before = count_of("calls");
    for (int i = 0; i < 1000; i++) {
        CHECK_OK(tgpu_device_get(&d));
        CHECK_OK(tgpu_stream_get(&s));
        CHECK_OK(tgpu_wait_policy_get(&policy));
    }
    CHECK_EQ(count_of("calls"), before);
}

static void a_launch_is_one_call_and_a_look_at_the_device(void) {
    tgpu_kernel k = kernel_of(nothing, 0, NULL);
    tgpu_stream other = stream_on(1);
    tgpu_kernel there = NULL;
    launch(k, NULL);
    CHECK_OK(tgpu_kernel_get(module_of_(nothing, 0, NULL), "function", &there));
    launch(there, other);
    CHECK_OK(tgpu_device_synchronize());
    long calls = count_of("calls"), launches = count_of("hipModuleLaunchKernel"), looks = count_of("hipGetDevice");
    for (int i = 0; i < 1000; i++) launch(k, NULL);
    CHECK_EQ(count_of("calls"), calls + 2000);
    CHECK_EQ(count_of("hipModuleLaunchKernel"), launches + 1000);
    CHECK_EQ(count_of("hipGetDevice"), looks + 1000);
    /* F12: on a stream of another device the thread goes there and back. */
    calls = count_of("calls"), looks = count_of("hipSetDevice");
    launch(there, other);
    CHECK_EQ(count_of("calls"), calls + 4);
    CHECK_EQ(count_of("hipSetDevice"), looks + 2);
    CHECK_OK(tgpu_stream_destroy(other));
}

/* One event for each wait, and the same one again. */
static void F14_waits_use_their_events_again_and_never_ask_the_stream(void) {
    tgpu_kernel k = kernel_of(nothing, 0, NULL);
    const int32_t policies[] = {TGPU_WAIT_AUTO, TGPU_WAIT_SPIN, TGPU_WAIT_BLOCK};
    int waits = 0;
    CHECK_OK(tgpu_synchronize());
    long records = count_of("hipEventRecord");
    for (int i = 0; i < 300; i++) {
        CHECK_OK(tgpu_wait_policy_set(policies[i % 3]));
        launch(k, NULL);
        CHECK_OK(tgpu_synchronize()), waits++;
        launch(k, NULL);
        CHECK_OK(tgpu_stream_synchronize_timeout(NULL, UINT64_MAX)), waits++;
    }
    CHECK_EQ(count_of("hipEventRecord"), records + waits);
    CHECK(count_of("events") <= 2);
    CHECK_EQ(count_of("hipStreamQuery"), 0);
    CHECK_EQ(count_of("hipStreamSynchronize"), 0);
    CHECK_EQ(count_of("markers"), 0);
}

static void a_stream_that_was_waited_for_is_known_to_be_idle(void) {
    tgpu_kernel k = kernel_of(nothing, 0, NULL);
    CHECK_OK(tgpu_stream_query(NULL));
    CHECK_EQ(count_of("hipStreamQuery"), 0);
    launch(k, NULL);
    CHECK_OK(tgpu_synchronize());
    long before = count_of("calls");
    CHECK_OK(tgpu_stream_query(NULL));
    CHECK_OK(tgpu_stream_synchronize_timeout(NULL, 0));
    CHECK_EQ(count_of("calls"), before);
    launch(k, NULL); /* and no longer */
    WAIT_UNTIL(tgpu_stream_query(NULL) == TGPU_OK);
    CHECK(count_of("hipStreamQuery") > 0);
    void *native = NULL; /* nor when others may queue on it */
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_stream_native(NULL, &native));
    before = count_of("hipStreamQuery");
    CHECK_OK(tgpu_stream_query(NULL));
    CHECK_EQ(count_of("hipStreamQuery"), before + 1);
}

static void *queues_and_ends(void *data) {
    launch(data, NULL);
    return NULL;
}

static void F14_short_tasks_share_streams_that_nobody_asks(void) {
    tgpu_kernel k = kernel_of(nothing, 0, NULL);
    for (int i = 0; i < 300; i++) on_a_thread(queues_and_ends, k);
    CHECK(count_of("hipStreamCreateWithPriority") <= 33);
    CHECK(count_of("events") <= 64);
    CHECK_EQ(count_of("hipStreamQuery"), 0);
}

static void a_steady_loop_gives_the_system_nothing_back(void) {
    for (int i = 0; i < 200; i++) {
        void *p = NULL;
        CHECK_OK(tgpu_malloc_async(100000, NULL, &p));
        CHECK_OK(tgpu_free_async(p, NULL));
        CHECK_OK(tgpu_synchronize());
    }
    CHECK_OK(tgpu_device_synchronize());
    CHECK_EQ(count_of("pool releases"), 0);
    CHECK_EQ(count_of("hipMalloc"), 0);
}

/* ---- last errors */

static void F27_not_ready_is_left_to_nobody(void) {
    struct gate gate = GATE;
    tgpu_event e = NULL;
    CHECK_OK(tgpu_event_create(NULL, &e));
    hold(NULL, &gate);
    CHECK_OK(tgpu_event_record(e, NULL));
    CHECK_STATUS(tgpu_event_query(e), TGPU_NOT_READY);
    CHECK_EQ(hip_peek(), 0);
    CHECK_STATUS(tgpu_stream_query(NULL), TGPU_NOT_READY);
    CHECK_EQ(hip_peek(), 0);
    CHECK_STATUS(tgpu_stream_synchronize_timeout(NULL, 1000), TGPU_ERROR_TIMEOUT);
    CHECK_EQ(hip_peek(), 0);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_event_destroy(e));
}

/* Where the runtime keeps it: before 7.0 any call overwrites it. */
static void F28_an_error_of_others_is_neither_taken_nor_blamed_on_us(void) {
    tgpu_kernel k = kernel_of(nothing, 0, NULL);
    void *p = NULL;
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK_EQ(hip_int("hipSetDevice", 99), HIP_INVALID_DEVICE);
    CHECK_EQ(hip_peek(), HIP_INVALID_DEVICE);
    launch(k, NULL);
    CHECK_OK(tgpu_memset(p, 1, 4096, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_free(p));
    CHECK_EQ(hip_peek(), HIP_INVALID_DEVICE);
    CHECK_STATUS(tgpu_malloc(UINT64_C(1) << 60, &p), TGPU_ERROR_OUT_OF_MEMORY);
    CHECK(hip_peek() == 0 || hip_peek() == HIP_INVALID_DEVICE); /* ours took its place, and was taken back */
}

/* ---- memory */

/* Memory of another library is known as what it is, whatever number the runtime's version has for that. */
static void memory_of_others_is_what_the_runtimes_version_says(void) {
    int (*allocate)(void **, size_t), (*pin)(void **, size_t, unsigned);
    tgpu_pointer_info info = TGPU_POINTER_INFO_INIT;
    void *device = NULL, *pinned = NULL;
    char text[16] = "from the host", back[16] = "";
    AS_FUNCTION_(allocate, "hipMalloc");
    AS_FUNCTION_(pin, "hipHostMalloc");
    CHECK_OK(tgpu_device_set(1));
    CHECK_EQ(allocate(&device, 4096), 0);
    CHECK_EQ(pin(&pinned, 4096, 0), 0);
    CHECK_OK(tgpu_pointer_info_get(device, &info));
    CHECK_EQ(info.kind, TGPU_POINTER_DEVICE);
    CHECK_EQ(info.device, 1);
    CHECK_SAME(info.base, device);
    CHECK_EQ(info.size, 4096);
    CHECK_OK(tgpu_pointer_info_get(pinned, &info));
    CHECK_EQ(info.kind, TGPU_POINTER_HOST_PINNED);
    CHECK_STATUS(tgpu_pointer_info_get(text, &info), TGPU_ERROR_NOT_FOUND);
    CHECK_OK(tgpu_memcpy(device, text, sizeof text, NULL));
    CHECK_OK(tgpu_memcpy(pinned, device, sizeof text, NULL));
    CHECK_OK(tgpu_memcpy(back, pinned, sizeof text, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(strcmp(text, back), 0);
    CHECK_EQ(hip_peek(), 0);
}

/* The runtime counts the threads of a grid along each axis with 32 bits. */
static void more_threads_than_the_runtime_can_count_are_refused(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel k = kernel_of(nothing, 0, NULL);
    launch(k, NULL); /* the first launch takes another way */
    CHECK_OK(tgpu_synchronize());
    struct state before = state_now();
    long launches = count_of("hipModuleLaunchKernel");
    config.grid[0] = 1 << 22, config.block[0] = 1024;
    CHECK_REFUSED(tgpu_launch(k, &config, NULL), TGPU_ERROR_INVALID_ARGUMENT, "launch of", TEXT(UINT64_C(1) << 32), TEXT(UINT32_MAX), "in x");
    CHECK_EQ(count_of("hipModuleLaunchKernel"), launches);
    CHECK_STATE(before);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_kernel_destroy(k));
}

/* Memory of another library that both sides may touch: kernels, copies and fills take it, and it is not ours to free. */
static void managed_memory_of_others_is_used_like_any(void) {
    int (*allocate)(void **, size_t, unsigned), (*give_back)(void *);
    static const char source[] = "extern \"C\" __global__ void add(int *x, int by) { x[threadIdx.x] += by; }\n";
    enum { N = 64 };
    tgpu_pointer_info info = TGPU_POINTER_INFO_INIT;
    tgpu_module m = NULL;
    tgpu_kernel k = NULL;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    int back[N], *x = NULL, by = 5, pattern = 1000;
    void *device = NULL;
    AS_FUNCTION_(allocate, "hipMallocManaged");
    AS_FUNCTION_(give_back, "hipFree");
    CHECK_OK(tgpu_device_set(1));
    CHECK_EQ(allocate((void **)&x, sizeof back, 1), 0);
    CHECK_OK(tgpu_pointer_info_get(x + 3, &info));
    if (strcmp(getenv("HIP_SHIM_VERSION"), "6") > 0) {
        CHECK_EQ(info.kind, TGPU_POINTER_DEVICE);
        CHECK_EQ(info.device, 1);
    } else { /* the runtime calls it the host's */
        CHECK_EQ(info.kind, TGPU_POINTER_HOST_PINNED);
    }
    CHECK_SAME(info.base, x);
    CHECK_EQ(info.size, sizeof back);
    for (int i = 0; i < N; i++) x[i] = i;
    CHECK_OK(tgpu_module_compile(source, NULL, &m));
    CHECK_OK(tgpu_kernel_get(m, "add", &k));
    config.block[0] = N;
    CHECK_OK(tgpu_launch(k, &config, TGPU_ARGS(&x, &by)));
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < N; i++) CHECK_EQ(x[i], i + 5);
    CHECK_OK(tgpu_malloc(sizeof back, &device));
    CHECK_OK(tgpu_memcpy(device, x, sizeof back, NULL));
    CHECK_OK(tgpu_fill(x, &pattern, sizeof pattern, N / 2, NULL));
    CHECK_OK(tgpu_memcpy(back, x, sizeof back, NULL));
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < N; i++) CHECK_EQ(back[i], i < N / 2 ? 1000 : i + 5);
    CHECK_OK(tgpu_memcpy(x, device, sizeof back, NULL));
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < N; i++) CHECK_EQ(x[i], i + 5);
    CHECK_STATUS(tgpu_free(x), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_host_free(x), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(give_back(x), 0);
    CHECK_OK(tgpu_free(device));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
    CHECK_EQ(hip_peek(), 0);
}

/* Patterns longer than the vendor's fills are doubled by copies, of which one must not say what memory it is. */
static void every_kind_of_memory_is_filled(void) {
    static unsigned char host[4096] __attribute__((aligned(4096)));
    unsigned char pattern[16];
    void *places[3] = {NULL, NULL, host}, *back = NULL;
    CHECK_OK(tgpu_malloc(sizeof host, &places[0]));
    CHECK_OK(tgpu_host_malloc(sizeof host, &places[1]));
    CHECK_OK(tgpu_host_register(host, sizeof host));
    CHECK_OK(tgpu_host_malloc(sizeof host, &back));
    for (int i = 0; i < 16; i++) pattern[i] = (unsigned char)(i * 11 + 1);
    for (int p = 0; p < 3; p++)
        for (uint64_t size = 1; size <= 16; size *= 2) {
            CHECK_OK(tgpu_fill(places[p], pattern, size, sizeof host / size, NULL));
            CHECK_OK(tgpu_memcpy(back, places[p], sizeof host, NULL));
            CHECK_OK(tgpu_synchronize());
            for (size_t i = 0; i < sizeof host; i++) CHECK_EQ(((unsigned char *)back)[i], pattern[i % size]);
        }
    CHECK_OK(tgpu_host_unregister(host));
    CHECK_OK(tgpu_host_free(back));
    CHECK_OK(tgpu_host_free(places[1]));
    CHECK_OK(tgpu_free(places[0]));
}

/* ---- what others do with streams */

static void F18_a_range_without_low_is_told(void) {
    tgpu_stream_options options = TGPU_STREAM_OPTIONS_INIT;
    tgpu_stream low = NULL, high = NULL;
    options.priority = TGPU_PRIORITY_LOW;
    CHECK_OK(tgpu_stream_create(&options, &low));
    options.priority = TGPU_PRIORITY_HIGH;
    CHECK_OK(tgpu_stream_create(&options, &high));
    CHECK_EQ(stream_info(low).priority, TGPU_PRIORITY_LOW);
    CHECK_EQ(stream_info(low).effective_priority, TGPU_PRIORITY_NORMAL);
    CHECK_EQ(stream_info(high).effective_priority, TGPU_PRIORITY_HIGH);
    CHECK_OK(tgpu_stream_destroy(low));
    CHECK_OK(tgpu_stream_destroy(high));
}

/* A stream that was imported and destroyed by its owner is a bad handle, and the device goes on. */
static void F15_an_imported_stream_that_its_owner_has_destroyed_costs_nobody_the_device(void) {
    int (*create)(void **, unsigned), (*destroy)(void *);
    void *native = NULL;
    tgpu_stream s = NULL;
    AS_FUNCTION_(create, "hipStreamCreateWithFlags");
    AS_FUNCTION_(destroy, "hipStreamDestroy");
    CHECK_OK(tgpu_device_set(0));
    CHECK_EQ(create(&native, 1), 0);
    CHECK_OK(tgpu_stream_import(0, native, &s));
    CHECK_EQ(destroy(native), 0);
    CHECK_STATUS(tgpu_stream_synchronize(s), TGPU_ERROR_INVALID_HANDLE);
    launch(kernel_of(nothing, 0, NULL), NULL);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_stream_destroy(s));
}

/* Somebody captures a stream of ours while helpers and other calls are at work. */
static void F39_a_capture_gets_what_was_queued_and_nothing_else(void) {
    int (*begin_capture)(void *, int), (*end_capture)(void *, void **), (*destroy)(void *);
    tgpu_kernel k = kernel_of(nothing, 0, NULL);
    tgpu_stream s = NULL, other = NULL;
    void *native = NULL, *graph = NULL, *p = NULL, *pinned = NULL;
    AS_FUNCTION_(begin_capture, "hipStreamBeginCapture");
    AS_FUNCTION_(end_capture, "hipStreamEndCapture");
    AS_FUNCTION_(destroy, "hipGraphDestroy");
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_create(NULL, &other));
    launch(k, s);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_OK(tgpu_malloc(4096, &p));
    CHECK_OK(tgpu_host_malloc(4096, &pinned));
    CHECK_OK(tgpu_stream_native(s, &native));
    CHECK_EQ(begin_capture(native, 0), 0); /* the strictest mode */
    launch(k, s);
    CHECK_STATUS(tgpu_stream_query(s), TGPU_ERROR_CAPTURING);
    CHECK_STATUS(tgpu_stream_synchronize(s), TGPU_ERROR_CAPTURING);
    CHECK_STATUS(tgpu_stream_add_callback(s, do_nothing, NULL), TGPU_ERROR_CAPTURING);
    CHECK_EQ(stream_info(s).capturing, 1);
    launch(k, other);
    CHECK_OK(tgpu_stream_synchronize(other));
    CHECK_OK(tgpu_free_deferred(p));
    CHECK_OK(tgpu_host_free(pinned));
    let_the_reaper_look();
    launch(k, s);
    CHECK_EQ(end_capture(native, &graph), 0);
    CHECK_EQ(count_of("captured"), 2);
    CHECK_EQ(count_of("spoilt"), 0);
    CHECK_EQ(destroy(graph), 0);
    CHECK_OK(tgpu_stream_destroy(s));
    CHECK_OK(tgpu_stream_destroy(other));
}

#define ALL_FAIL \
    "HIP_SHIM_SCRIPT=hipStreamCreateWithPriority=1;hipEventCreateWithFlags=1;hipMalloc=1;hipHostMalloc=1;hipHostRegister=1;" \
    "hipModuleLoadData=1;hipMemGetInfo=1;hipDeviceSynchronize=1;hipMallocFromPoolAsync=1;hipDeviceEnablePeerAccess=1;" \
    "hipDeviceCanAccessPeer=1;hipMemPoolTrimTo=1;hipMemPoolCreate=1;hipStreamIsCapturing=1"

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN_IN_CHILD(F17_a_stream_is_destroyed_after_its_work, FRESH);
    RUN_IN_CHILD(F17_a_stream_that_waits_for_another_is_destroyed_after_it, FRESH);
    RUN_IN_CHILD(F22_nobody_asks_a_stream_that_is_left_how_far_it_is, FRESH);
    RUN_IN_CHILD(F17_modules_and_memory_end_after_the_work_that_may_use_them, FRESH);
    RUN_IN_CHILD(F10_looking_at_devices_opens_no_context, FRESH);
    RUN_IN_CHILD(F05_no_context_on_a_device_that_nobody_asked_for, FRESH);
    RUN_IN_CHILD(F06_every_call_leaves_the_threads_device_as_it_was, FRESH);
    RUN_IN_CHILD(F06_failing_calls_leave_the_threads_device_as_it_was, ALL_FAIL);
    RUN_IN_CHILD(the_device_of_the_task_is_made_the_threads, FRESH);
    RUN_IN_CHILD(looking_at_the_state_calls_nobody, FRESH);
    RUN_IN_CHILD(a_launch_is_one_call_and_a_look_at_the_device, FRESH);
    RUN_IN_CHILD(F14_waits_use_their_events_again_and_never_ask_the_stream, FRESH);
    RUN_IN_CHILD(a_stream_that_was_waited_for_is_known_to_be_idle, FRESH);
    RUN_IN_CHILD(F14_short_tasks_share_streams_that_nobody_asks, FRESH);
    RUN_IN_CHILD(a_steady_loop_gives_the_system_nothing_back, FRESH);
    RUN_IN_CHILD(F27_not_ready_is_left_to_nobody, VERSION_5);
    RUN_IN_CHILD(F27_not_ready_is_left_to_nobody, VERSION_7);
    RUN_IN_CHILD(F28_an_error_of_others_is_neither_taken_nor_blamed_on_us, VERSION_7);
    RUN_IN_CHILD(memory_of_others_is_what_the_runtimes_version_says, VERSION_5);
    RUN_IN_CHILD(memory_of_others_is_what_the_runtimes_version_says, VERSION_6);
    RUN_IN_CHILD(more_threads_than_the_runtime_can_count_are_refused, FRESH);
    RUN_IN_CHILD(managed_memory_of_others_is_used_like_any, VERSION_5);
    RUN_IN_CHILD(managed_memory_of_others_is_used_like_any, VERSION_6);
    RUN_IN_CHILD(every_kind_of_memory_is_filled, FRESH);
    RUN_IN_CHILD(F18_a_range_without_low_is_told, "HIP_SHIM_SCRIPT=priorities 0 to -1");
    RUN_IN_CHILD(F15_an_imported_stream_that_its_owner_has_destroyed_costs_nobody_the_device, FRESH);
    RUN_IN_CHILD(F39_a_capture_gets_what_was_queued_and_nothing_else, FRESH);
    return end();
}
