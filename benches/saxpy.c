/* y = a * x + y, once as a host kernel and once under OpenMP. Both loops are in this file, compiled with the same flags
   (-O3 -fopenmp), and run on the same memory, so that what differs is who spreads them over the cores. A row for comparison
   has OpenMP on memory from malloc. */
#include "bench.h"

#define BYTES (64u << 20)
#define COUNT (BYTES / sizeof(float))
#define PER_BLOCK 65536u
#define BLOCKS (unsigned)((COUNT + PER_BLOCK - 1) / PER_BLOCK)
#define REST_NS 20e6

static void saxpy(float a, const float *restrict x, float *restrict y, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = a * x[i] + y[i];
}

struct saxpy_args {
    float a;
    const float *x;
    float *y;
    uint64_t n, per_block;
};

static void saxpy_block(const tgpu_host_block *block, void *const *args, void *data) {
    const struct saxpy_args *p = args[0];
    uint64_t first = block->index[0] * p->per_block;
    uint64_t last = first + p->per_block < p->n ? first + p->per_block : p->n;
    (void)data;
    if (first < last) saxpy(p->a, p->x + first, p->y + first, last - first);
}

static double time_kernel(tgpu_kernel kernel, struct saxpy_args *args, uint32_t grid) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    void *list[] = {args};
    config.grid[0] = grid;
    double start = bench_now();
    OK(tgpu_launch(kernel, &config, list));
    OK(tgpu_synchronize());
    return bench_now() - start;
}

static double time_openmp(float a, const float *restrict x, float *restrict y) {
    double start = bench_now();
#pragma omp parallel for
    for (size_t i = 0; i < COUNT; i++) y[i] = a * x[i] + y[i];
    return bench_now() - start;
}

static void check(const float *y, float expected, const char *who) {
    for (size_t i = 0; i < COUNT; i++) {
        if (y[i] != expected) {
            fprintf(stderr, "saxpy by %s: y[%zu] is %g, not %g\n", who, i, (double)y[i], (double)expected);
            exit(2);
        }
    }
}

void row_saxpy(void) {
    int pairs = bench_reps(30, 6), warm = 2;
    void *dx, *dy;
    OK(tgpu_malloc(BYTES, &dx));
    OK(tgpu_malloc(BYTES, &dy));
    float *x = malloc(BYTES), *y = malloc(BYTES), *seen = malloc(BYTES);
    if (x == NULL || y == NULL || seen == NULL) bench_die("malloc", 12);
    for (size_t i = 0; i < COUNT; i++) x[i] = 1, y[i] = 0;
    OK(tgpu_memcpy(dx, x, BYTES, NULL));
    OK(tgpu_memcpy(dy, y, BYTES, NULL));
    OK(tgpu_synchronize());

    size_t size = sizeof(struct saxpy_args);
    tgpu_kernel kernel;
    OK(tgpu_kernel_from_host_fn(saxpy_block, NULL, 1, &size, &kernel));
    struct saxpy_args args = {2, dx, dy, COUNT, PER_BLOCK}, suggested = args;
    uint32_t grid, block;
    OK(tgpu_kernel_suggest(kernel, COUNT, &grid, &block));
    suggested.per_block = block;

    samples ours = samples_new(pairs), reference = samples_new(pairs), ratio = samples_new(pairs);
    samples shape = samples_new(pairs), shape_ratio = samples_new(pairs);
    samples other = samples_new(pairs), other_ratio = samples_new(pairs);
    for (int i = 0; i < warm + pairs; i++) {
        /* OpenMP's threads spin for a while after a loop, ours may as well: neither side pays for the other's. */
        bench_sleep(REST_NS);
        double kernel_ns = time_kernel(kernel, &args, BLOCKS);
        bench_sleep(REST_NS);
        double openmp_ns = time_openmp(2, dx, dy);
        bench_sleep(REST_NS);
        double suggested_ns = time_kernel(kernel, &suggested, grid);
        bench_sleep(REST_NS);
        double elsewhere_ns = time_openmp(2, x, y);
        if (i < warm) continue;
        samples_add(&ours, kernel_ns);
        samples_add(&reference, openmp_ns);
        samples_add(&ratio, openmp_ns / kernel_ns);
        samples_add(&shape, suggested_ns);
        samples_add(&shape_ratio, openmp_ns / suggested_ns);
        samples_add(&other, elsewhere_ns);
        samples_add(&other_ratio, elsewhere_ns / kernel_ns);
    }
    /* Every element of the device's y was touched three times a turn, of the malloc y once. */
    OK(tgpu_memcpy(seen, dy, BYTES, NULL));
    OK(tgpu_synchronize());
    check(seen, 6.0f * (float)(warm + pairs), "the kernel");
    check(y, 2.0f * (float)(warm + pairs), "OpenMP");

    double r = samples_median(&ratio);
    row first = {
        .what = "saxpy over 64 MiB (gcc -O3 -fopenmp)",
        .ours = text_time(samples_median(&ours)),
        .reference = text_time(samples_median(&reference)),
        .ratio = text("%.3f of its speed", r),
        .reach = "at least 0.95",
        .value = r,
        .limit = 0.95,
        .kind = ROW_AT_LEAST,
        .spread = text_spread(&ours, &reference),
        .note = text("%u blocks of %u, median of %d interleaved pairs", BLOCKS, PER_BLOCK, pairs),
    };
    row_print(&first);
    row second = {
        .what = "saxpy in the suggested shape (the same)",
        .ours = text_time(samples_median(&shape)),
        .reference = text_time(samples_median(&reference)),
        .ratio = text("%.3f of its speed", samples_median(&shape_ratio)),
        .kind = ROW_FOR_COMPARISON,
        .spread = text_spread(&shape, &reference),
        .note = text("%u blocks of %u", grid, block),
    };
    row_print(&second);
    row third = {
        .what = "saxpy over 64 MiB (OpenMP on malloc memory)",
        .ours = text_time(samples_median(&ours)),
        .reference = text_time(samples_median(&other)),
        .ratio = text("%.3f of its speed", samples_median(&other_ratio)),
        .kind = ROW_FOR_COMPARISON,
        .spread = text_spread(&ours, &other),
    };
    row_print(&third);
    OK(tgpu_kernel_destroy(kernel));
    OK(tgpu_free(dx));
    OK(tgpu_free(dy));
    free(x);
    free(y);
    free(seen);
}
