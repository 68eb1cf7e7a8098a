/* One loop for each call that is both timed (calls.c, launch.c) and counted in instructions. Each is a function of its
   own, never inlined, because callgrind counts what happens inside functions named loop_*. */
#include "bench.h"

#define LOOP __attribute__((noinline, noclone))

static tgpu_task other_task;
static tgpu_kernel empty_kernel;

static void empty(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block;
    (void)args;
    (void)data;
}

tgpu_kernel bench_empty_kernel(void) {
    if (empty_kernel == NULL) OK(tgpu_kernel_from_host_fn(empty, NULL, 0, NULL, &empty_kernel));
    return empty_kernel;
}

void loop_prepare(void) {
    tgpu_device d;
    tgpu_stream s;
    OK(tgpu_device_set(0));
    OK(tgpu_device_get(&d));
    OK(tgpu_stream_get(&s));
    OK(tgpu_task_create(NULL, &other_task));
    /* The other task has a device and a stream as well: swapping it in is what a runtime does with a task that works. */
    OK(tgpu_task_swap(other_task, NULL));
    OK(tgpu_device_set(0));
    OK(tgpu_stream_get(&s));
    OK(tgpu_task_swap(NULL, NULL));
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    OK(tgpu_launch(bench_empty_kernel(), &config, NULL));
    OK(tgpu_synchronize());
}

LOOP void loop_floor(long n) {
    int sum = 0;
    for (long i = 0; i < n; i++) sum += floor_get();
    if (sum != 0) bench_die("floor_get", 0);
}

LOOP void loop_device_get(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_device d;
    for (long i = 0; i < n; i++) status |= tgpu_device_get(&d);
    OK(status);
}

LOOP void loop_stream_get(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_stream s;
    for (long i = 0; i < n; i++) status |= tgpu_stream_get(&s);
    OK(status);
}

LOOP void loop_scope(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_scope scope;
    for (long i = 0; i < n; i++) {
        status |= tgpu_scope_enter_device(0, &scope);
        status |= tgpu_scope_leave(scope);
    }
    OK(status);
}

LOOP void loop_task_swap(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_task previous;
    for (long i = 0; i < n; i++) {
        status |= tgpu_task_swap(other_task, &previous);
        status |= tgpu_task_swap(previous, NULL);
    }
    OK(status);
}

LOOP void loop_launch(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel kernel = empty_kernel;
    for (long i = 0; i < n; i++) status |= tgpu_launch(kernel, &config, NULL);
    OK(status);
}

void loop_drain(void) { OK(tgpu_synchronize()); }
