/* Waiting for a long kernel: what AUTO burns, and what it adds to the wall. */
#include "bench.h"

#define KERNEL_NS 10e6

struct busy {
    double cpu; /* of the worker, inside the kernel */
};

static void busy_block(const tgpu_host_block *block, void *const *args, void *data) {
    struct busy *busy = data;
    (void)block;
    (void)args;
    double cpu = bench_thread_cpu(), end = bench_now() + KERNEL_NS;
    while (bench_now() < end) {
    }
    busy->cpu += bench_thread_cpu() - cpu;
}

struct measure {
    int32_t policy;
    tgpu_stream stream; /* one for each policy: what AUTO learns, it learns from AUTO's waits */
    samples wall;
    double elapsed, waiter, process, kernel;
};

static void wait_once(tgpu_kernel kernel, struct busy *busy, struct measure *m, int count_it) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    OK(tgpu_stream_set(m->stream));
    OK(tgpu_wait_policy_set(m->policy));
    double process = bench_process_cpu(), waiter = bench_thread_cpu(), inside = busy->cpu, start = bench_now();
    OK(tgpu_launch(kernel, &config, NULL));
    OK(tgpu_synchronize());
    double wall = bench_now() - start;
    if (!count_it) return;
    samples_add(&m->wall, wall);
    m->elapsed += wall;
    m->waiter += bench_thread_cpu() - waiter;
    m->process += bench_process_cpu() - process;
    m->kernel += busy->cpu - inside;
}

void row_wait(void) {
    int reps = bench_reps(100, 20), warm = 16;
    struct busy busy = {0};
    tgpu_kernel kernel;
    OK(tgpu_kernel_from_host_fn(busy_block, &busy, 0, NULL, &kernel));
    struct measure automatic = {.policy = TGPU_WAIT_AUTO, .wall = samples_new(reps)};
    struct measure spin = {.policy = TGPU_WAIT_SPIN, .wall = samples_new(reps)};
    OK(tgpu_stream_create(NULL, &automatic.stream));
    OK(tgpu_stream_create(NULL, &spin.stream));
    for (int i = 0; i < warm + reps; i++) {
        wait_once(kernel, &busy, &automatic, i >= warm);
        wait_once(kernel, &busy, &spin, i >= warm);
    }
    double burnt = (automatic.process - automatic.kernel) / automatic.elapsed * 100;
    double burnt_spin = (spin.process - spin.kernel) / spin.elapsed * 100;
    row cpu = {
        .what = "AUTO wait for 10 ms: CPU outside the kernel (SPIN)",
        .ours = text("%.2f %% of a core", burnt),
        .reference = text("%.2f %%", burnt_spin),
        .ratio = text("%.4f", burnt / burnt_spin),
        .reach = "at most 3 % of a core",
        .value = burnt,
        .limit = 3,
        .kind = ROW_AT_MOST,
        .note = text("the waiting thread alone: %.2f %%", automatic.waiter / automatic.elapsed * 100),
    };
    row_print(&cpu);
    row_ratio("AUTO wait for 10 ms: wall (SPIN)", &automatic.wall, &spin.wall, 1.03, NULL);
    OK(tgpu_stream_set(NULL));
    OK(tgpu_stream_destroy(automatic.stream));
    OK(tgpu_stream_destroy(spin.stream));
    OK(tgpu_kernel_destroy(kernel));
}
