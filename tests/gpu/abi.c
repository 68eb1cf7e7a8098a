/* What must hold on a real GPU, through the C interface alone. Kernels come from source. Needs a GPU as device 0. */
#include "../../c-tests/check.h"
#include <stdatomic.h>
#include <sys/eventfd.h>

static const char source[] =
    "extern \"C\" __global__ void saxpy(float *y, const float *x, float a, int n) {\n"
    "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) y[i] = a * x[i] + y[i];\n"
    "}\n"
    "extern \"C\" __global__ void spin(unsigned long long ns) {\n"
    "    unsigned long long start, t;\n"
    "    asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(start));\n"
    "    do asm volatile(\"mov.u64 %0, %%globaltimer;\" : \"=l\"(t)); while (t - start < ns);\n"
    "}\n"
    "extern \"C\" __global__ void add(unsigned *p, unsigned by) { *p += by; }\n"
    "extern \"C\" __global__ void write_to_nowhere(unsigned *p) { p[threadIdx.x] = 1; }\n";

static tgpu_module module;
static tgpu_kernel kernel(const char *name) {
    tgpu_kernel k = NULL;
    if (module == NULL) CHECK_OK(tgpu_module_compile(source, NULL, &module));
    CHECK_OK(tgpu_kernel_get(module, name, &k));
    return k;
}

static void launch(tgpu_kernel k, tgpu_stream s, uint32_t grid, uint32_t block, void **args) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    config.grid[0] = grid, config.block[0] = block, config.stream = s;
    CHECK_OK(tgpu_launch(k, &config, args));
}

static void spin_for(tgpu_stream s, unsigned long long ms) {
    unsigned long long ns = ms * 1000000;
    void *args[] = {&ns};
    tgpu_kernel k = kernel("spin");
    launch(k, s, 1, 1, args);
    CHECK_OK(tgpu_kernel_destroy(k));
}

static tgpu_stream a_stream(void) {
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    return s;
}

static void saxpy_from_source_computes_what_a_loop_does(void) {
    enum { N = 100003 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y), *z = malloc(N * sizeof *z), a = 2.5f;
    void *dx = NULL, *dy = NULL;
    int n = N;
    tgpu_kernel k = kernel("saxpy");
    uint32_t grid = 0, block = 0;
    for (int i = 0; i < N; i++) x[i] = (float)i, y[i] = (float)(N - i);
    CHECK_OK(tgpu_malloc_async(N * sizeof *x, NULL, &dx));
    CHECK_OK(tgpu_malloc(N * sizeof *y, &dy));
    CHECK_OK(tgpu_memcpy(dx, x, N * sizeof *x, NULL));
    CHECK_OK(tgpu_memcpy(dy, y, N * sizeof *y, NULL));
    CHECK_OK(tgpu_kernel_suggest(k, N, &grid, &block));
    launch(k, NULL, grid, block, (void *[]){&dy, &dx, &a, &n});
    CHECK_OK(tgpu_memcpy(z, dy, N * sizeof *z, NULL));
    CHECK_OK(tgpu_free_async(dx, NULL));
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < N; i++) CHECK(z[i] == a * x[i] + y[i]);
    CHECK_OK(tgpu_free(dy));
    CHECK_OK(tgpu_kernel_destroy(k));
    free(x), free(y), free(z);
}

/* Each call returns while a kernel of another stream still runs. */
static void nothing_waits_for_a_running_kernel_that_says_it_does_not(void) {
    tgpu_stream busy = a_stream(), other = a_stream(), more = NULL;
    tgpu_event event = NULL;
    tgpu_task task = NULL;
    tgpu_scope scope;
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    tgpu_kernel add = kernel("add");
    void *p = NULL, *pinned = NULL, *async = NULL, *deferred = NULL;
    unsigned by = 1;
    uint64_t free_bytes, total;
    CHECK_OK(tgpu_malloc(64, &p));
    CHECK_OK(tgpu_malloc(64, &deferred));
    CHECK_OK(tgpu_host_malloc(64, &pinned));
    CHECK_OK(tgpu_malloc_async(64, other, &async));
    CHECK_OK(tgpu_memset(p, 0, 64, other));
    launch(add, other, 1, 1, (void *[]){&p, &by});
    spin_for(busy, 1);
    CHECK_OK(tgpu_device_synchronize());
    spin_for(busy, 300);
#define STILL_RUNS(call) (CHECK_OK(call), CHECK_STATUS(tgpu_stream_query(busy), TGPU_NOT_READY))
    STILL_RUNS(tgpu_device_set(0));
    STILL_RUNS(tgpu_scope_enter_device(0, &scope));
    STILL_RUNS(tgpu_scope_leave(scope));
    STILL_RUNS(tgpu_task_create(NULL, &task));
    STILL_RUNS(tgpu_task_swap(task, NULL));
    STILL_RUNS(tgpu_task_swap(NULL, NULL));
    STILL_RUNS(tgpu_task_destroy(task));
    STILL_RUNS(tgpu_stream_create(NULL, &more));
    STILL_RUNS(tgpu_stream_destroy(more));
    STILL_RUNS(tgpu_stream_info_get(busy, &info));
    STILL_RUNS(tgpu_event_create(NULL, &event));
    STILL_RUNS(tgpu_event_record(event, busy));
    CHECK_STATUS(tgpu_event_query(event), TGPU_NOT_READY);
    STILL_RUNS(tgpu_memset(p, 0, 64, other));
    STILL_RUNS(tgpu_fill(p, "0123456789abcdef", 16, 4, other));
    STILL_RUNS(tgpu_memcpy(pinned, p, 64, other));
    launch(add, other, 1, 1, (void *[]){&p, &by});
    STILL_RUNS(tgpu_stream_synchronize(other));
    STILL_RUNS(tgpu_free_async(async, other));
    STILL_RUNS(tgpu_free_deferred(deferred));
    STILL_RUNS(tgpu_stream_synchronize(other));
    STILL_RUNS(tgpu_device_memory(0, &free_bytes, &total));
    STILL_RUNS(tgpu_host_free(pinned));
    STILL_RUNS(tgpu_event_destroy(event));
    CHECK_STATUS(tgpu_stream_synchronize_timeout(busy, 1000000), TGPU_ERROR_TIMEOUT);
    STILL_RUNS(tgpu_stream_destroy(other));
    CHECK_OK(tgpu_stream_synchronize(busy));
    CHECK_OK(tgpu_stream_destroy(busy));
    CHECK_OK(tgpu_kernel_destroy(add));
    CHECK_OK(tgpu_free(p));
}

static atomic_int called, told;
static void tell(void *data, tgpu_status status) {
    (void)data;
    told = status;
    called++;
}

static void callbacks_and_descriptors_are_told_once(void) {
    int fd = eventfd(0, EFD_CLOEXEC);
    uint64_t count = 0;
    tgpu_stream s = a_stream();
    called = 0;
    spin_for(s, 20);
    CHECK_OK(tgpu_stream_add_callback(s, tell, NULL));
    CHECK_OK(tgpu_stream_signal_fd(s, fd));
    CHECK_EQ(called, 0);
    CHECK_EQ(read(fd, &count, sizeof count), sizeof count);
    CHECK_EQ(count, 1);
    CHECK_EQ(called, 1);
    CHECK_EQ(told, TGPU_OK);
    CHECK_OK(tgpu_stream_destroy(s));
    close(fd);
}

/* In a process of its own: the device is gone for it afterwards. */
static void F25_a_fault_ends_every_wait_and_names_the_candidates(void) {
    tgpu_stream guilty = a_stream(), innocent = a_stream();
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    tgpu_kernel k = kernel("write_to_nowhere");
    void *nowhere = (void *)(uintptr_t)0x10, *p = NULL;
    char text[4096], id[32];
    size_t needed;
    int fd = eventfd(0, EFD_CLOEXEC);
    uint64_t count = 0;
    CHECK_OK(tgpu_malloc(64, &p));
    CHECK_OK(tgpu_stream_info_get(guilty, &info));
    spin_for(guilty, 50); /* so that all is queued when it happens */
    launch(k, guilty, 1, 32, (void *[]){&nowhere});
    CHECK_OK(tgpu_stream_add_callback(guilty, tell, NULL));
    CHECK_OK(tgpu_stream_signal_fd(guilty, fd));
    CHECK_STATUS(tgpu_stream_synchronize(guilty), TGPU_ERROR_DEVICE_LOST);
    CHECK_OK(tgpu_error_text(text, sizeof text, &needed));
    snprintf(id, sizeof id, "stream %" PRIu64, info.id);
    if (!strstr(text, id) || !strstr(text, "write_to_nowhere")) FAIL("the text names neither stream nor kernel: %s", text);
    CHECK_EQ(read(fd, &count, sizeof count), sizeof count);
    WAIT_UNTIL(called == 1);
    CHECK_EQ(told, TGPU_ERROR_DEVICE_LOST);
    CHECK_STATUS(tgpu_stream_synchronize(innocent), TGPU_ERROR_DEVICE_LOST);
    CHECK_STATUS(tgpu_memset(p, 0, 64, innocent), TGPU_ERROR_DEVICE_LOST);
    CHECK_STATUS(tgpu_device_synchronize(), TGPU_ERROR_DEVICE_LOST);
    CHECK_OK(tgpu_stream_destroy(innocent));
    CHECK_OK(tgpu_stream_destroy(guilty));
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void F16_a_process_may_exit_with_work_queued(void) {
    for (int i = 0; i < 100; i++) spin_for(NULL, 5);
}

static void F10_a_child_of_a_used_process_is_told(void) {
    pid_t child;
    int status = -1;
    tgpu_stream s = a_stream();
    child = fork();
    if (child == 0) {
        tgpu_device d;
        int32_t n;
        _exit(tgpu_device_get(&d) == TGPU_ERROR_FORKED && tgpu_device_count(&n) == TGPU_ERROR_FORKED &&
                      tgpu_synchronize() == TGPU_ERROR_FORKED && tgpu_stream_destroy(s) == TGPU_OK
                  ? 0
                  : 1);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_OK(tgpu_stream_destroy(s));
}

/* With TASKGPU_BACKENDS=cuda,host: the last device is the CPU. Copies and event waits cross between the two. */
static void devices_of_two_backends_keep_order_and_copy(void) {
    enum { N = 1 << 20 };
    int32_t count = 0;
    tgpu_stream gpu = NULL, cpu = NULL;
    void *on_gpu = NULL, *on_cpu = NULL;
    unsigned *host = malloc(N * sizeof *host);
    tgpu_event event = NULL;
    unsigned one = 1;
    CHECK_OK(tgpu_device_count(&count));
    CHECK(count >= 2);
    CHECK_OK(tgpu_malloc(N * sizeof *host, &on_gpu));
    gpu = a_stream();
    CHECK_OK(tgpu_device_set(count - 1));
    cpu = a_stream();
    CHECK_OK(tgpu_malloc(N * sizeof *host, &on_cpu));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_event_create(NULL, &event));
    for (unsigned round = 1; round <= 5; round++) {
        spin_for(gpu, 20);
        CHECK_OK(tgpu_fill(on_gpu, &round, sizeof round, N, gpu));
        /* The CPU's stream waits for the GPU's event, and copies from its memory. */
        CHECK_OK(tgpu_event_record(event, gpu));
        CHECK_OK(tgpu_stream_wait_event(cpu, event));
        CHECK_OK(tgpu_memcpy(on_cpu, on_gpu, N * sizeof *host, cpu));
        CHECK_OK(tgpu_fill(on_cpu, &one, sizeof one, 1, cpu));
        /* The GPU's stream waits for the CPU's, and copies back. */
        CHECK_OK(tgpu_stream_wait_stream(gpu, cpu));
        CHECK_OK(tgpu_memset(on_gpu, 0, N * sizeof *host, gpu));
        CHECK_OK(tgpu_memcpy(on_gpu, on_cpu, N * sizeof *host, gpu));
        CHECK_OK(tgpu_memcpy(host, on_gpu, N * sizeof *host, gpu));
        CHECK_OK(tgpu_stream_synchronize(gpu));
        CHECK_EQ(host[0], 1);
        for (int i = 1; i < N; i++) CHECK_EQ(host[i], round);
    }
    CHECK_OK(tgpu_free(on_gpu));
    CHECK_OK(tgpu_free(on_cpu));
    free(host);
}

int main(int argc, char **argv) {
    int alone = argc > 1 && strcmp(argv[1], "--alone") == 0;
    setenv("TASKGPU_BACKENDS", "cuda", 0);
    begin(alone ? 1 : argc, argv);
    RUN(saxpy_from_source_computes_what_a_loop_does);
    RUN(callbacks_and_descriptors_are_told_once);
    if (alone) return end();
    RUN(nothing_waits_for_a_running_kernel_that_says_it_does_not);
    RUN(F10_a_child_of_a_used_process_is_told);
    RUN_IN_CHILD(F25_a_fault_ends_every_wait_and_names_the_candidates, "TASKGPU_BACKENDS=cuda");
    RUN_IN_CHILD(F16_a_process_may_exit_with_work_queued, "TASKGPU_BACKENDS=cuda");
    RUN_IN_CHILD(devices_of_two_backends_keep_order_and_copy, "TASKGPU_BACKENDS=cuda,host");
    return end();
}
