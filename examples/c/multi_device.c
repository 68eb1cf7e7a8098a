/* Using multiple GPUs: one thread per device. The device and the stream that are current belong to the thread, so that
 * each thread writes a program for one device, and the devices work at the same time.
 *
 *   cc multi_device.c -ltaskgpu -lpthread && TASKGPU_HOST_DEVICES=4 ./a.out
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <taskgpu.h>
#include <time.h>

#define CHECK(call) do { tgpu_status s_ = (call); tgpu_error_info i_ = TGPU_ERROR_INFO_INIT; \
    if (s_ != TGPU_OK) { tgpu_error_info_get(&i_); fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
        tgpu_status_name(s_), i_.text); exit(1); } } while (0)

enum { N = 1 << 20, ROUNDS = 100 };

/* y = a*x + y, for every kind of device: it is compiled for each when it is needed there. */
static const char source[] =
    "extern \"C\" __global__ void saxpy(float a, const float *x, float *y, unsigned n) {\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) y[i] += a * x[i];\n"
    "}\n";

typedef struct { /* what one thread is told, and what it answers */
    pthread_t thread;
    tgpu_device device;
    double computed, expected, busy; /* busy: seconds from the device's first to its last event */
    uint32_t wrong;
} work;
static tgpu_kernel kernel; /* one for all devices */
static pthread_barrier_t all_together;

static void *use_one_device(void *data) {
    work *w = data;
    float *x, *y, a = (float)(w->device % 8 + 1);
    void *dev_x, *dev_y;
    tgpu_stream copies, compute;
    tgpu_event start, uploaded, computed, end;
    uint32_t n = N;

    CHECK(tgpu_device_set(w->device)); /* for this thread; what follows is on this device */
    CHECK(tgpu_stream_create(NULL, &copies));
    CHECK(tgpu_stream_create(NULL, &compute));
    CHECK(tgpu_event_create(NULL, &start));
    CHECK(tgpu_event_create(NULL, &uploaded));
    CHECK(tgpu_event_create(NULL, &computed));
    CHECK(tgpu_event_create(NULL, &end));
    CHECK(tgpu_host_malloc(N * sizeof(float), (void **)&x)); /* pinned: copies do not block this thread */
    CHECK(tgpu_host_malloc(N * sizeof(float), (void **)&y));
    CHECK(tgpu_malloc(N * sizeof(float), &dev_x));
    CHECK(tgpu_malloc(N * sizeof(float), &dev_y));
    for (uint32_t i = 0; i < N; i++) x[i] = (float)(i % 1000), y[i] = (float)(i % 7);
    pthread_barrier_wait(&all_together);

    /* Nothing here waits for the device: it is queued, and `compute` starts when `copies` has uploaded. */
    CHECK(tgpu_event_record(start, copies));
    CHECK(tgpu_memcpy(dev_x, x, N * sizeof(float), copies));
    CHECK(tgpu_memcpy(dev_y, y, N * sizeof(float), copies));
    CHECK(tgpu_event_record(uploaded, copies));
    CHECK(tgpu_stream_wait_event(compute, uploaded));

    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    CHECK(tgpu_kernel_suggest(kernel, N, &config.grid[0], &config.block[0]));
    config.stream = compute;
    for (int i = 0; i < ROUNDS; i++) CHECK(tgpu_launch(kernel, &config, TGPU_ARGS(&a, &dev_x, &dev_y, &n)));
    CHECK(tgpu_event_record(computed, compute));

    CHECK(tgpu_stream_wait_event(copies, computed)); /* and the result goes back when it is there */
    CHECK(tgpu_memcpy(y, dev_y, N * sizeof(float), copies));
    CHECK(tgpu_event_record(end, copies));
    CHECK(tgpu_stream_synchronize(copies));
    pthread_barrier_wait(&all_together);

    CHECK(tgpu_event_elapsed(start, end, &w->busy));
    for (uint32_t i = 0; i < N; i++) { /* small whole numbers: exact in float */
        float expected = (float)(i % 7) + ROUNDS * a * (float)(i % 1000);
        w->wrong += y[i] != expected;
        w->computed += y[i], w->expected += expected;
    }
    CHECK(tgpu_free(dev_x));
    CHECK(tgpu_free(dev_y));
    CHECK(tgpu_host_free(x));
    CHECK(tgpu_host_free(y));
    CHECK(tgpu_event_destroy(start));
    CHECK(tgpu_event_destroy(uploaded));
    CHECK(tgpu_event_destroy(computed));
    CHECK(tgpu_event_destroy(end));
    CHECK(tgpu_stream_destroy(copies));
    CHECK(tgpu_stream_destroy(compute));
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(void) {
    tgpu_module module;
    int32_t devices;
    uint32_t wrong = 0;
    double busy = 0;
    CHECK(tgpu_device_count(&devices));
    CHECK(tgpu_module_compile(source, NULL, &module));
    CHECK(tgpu_kernel_get(module, "saxpy", &kernel));
    for (int32_t d = 0; d < devices; d++) CHECK(tgpu_module_prepare(module, d)); /* now, and not at the first launch there */

    work *all = calloc((size_t)devices, sizeof *all);
    if (!all || pthread_barrier_init(&all_together, NULL, (unsigned)devices + 1)) return perror("multi_device"), 1;
    for (int32_t d = 0; d < devices; d++) {
        all[d].device = d;
        if (pthread_create(&all[d].thread, NULL, use_one_device, &all[d])) return perror("pthread_create"), 1;
    }
    pthread_barrier_wait(&all_together);
    double begin = now();
    pthread_barrier_wait(&all_together);
    double wall = now() - begin;
    for (int32_t d = 0; d < devices; d++) pthread_join(all[d].thread, NULL);

    for (int32_t d = 0; d < devices; d++) {
        tgpu_device_info info = {.struct_size = sizeof info};
        CHECK(tgpu_device_info_get(d, &info));
        printf("device %d (%s, %s): sum %.0f, expected %.0f, %u of %d values wrong, busy %.1f ms\n", d, info.backend,
               info.name, all[d].computed, all[d].expected, all[d].wrong, N, all[d].busy * 1e3);
        busy += all[d].busy, wrong += all[d].wrong;
    }
    printf("overlap: %.1f ms busy in %.1f ms of wall time: %.2f of %d devices at work at once\n", busy * 1e3, wall * 1e3,
           busy / wall, devices);
    CHECK(tgpu_kernel_destroy(kernel));
    CHECK(tgpu_module_destroy(module));
    pthread_barrier_destroy(&all_together);
    free(all);
    return wrong != 0;
}
