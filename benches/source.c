/* Kernels from source on host devices: as fast as loops compiled ahead, at little cost where threads wait for each other,
   and compiled once. The loops are in ahead.c. KERNELS is the folder of the examples' kernels. */
#include "ahead.h"
#include "bench.h"

#include <math.h>
#include <string.h>

#define REST_NS 20e6
#define SAXPY_BYTES (64u << 20)
#define SAXPY_COUNT (SAXPY_BYTES / sizeof(float))
enum { ORDER = 1024, TILE = 16, BLOCKS = 64 };

static char *example(const char *name) {
    FILE *f = fopen(text("%s/%s", KERNELS, name), "rb");
    char *source = calloc(1, 1 << 16);
    if (f == NULL || source == NULL || fread(source, 1, (1 << 16) - 1, f) == 0) {
        fprintf(stderr, "%s/%s cannot be read\n", KERNELS, name);
        exit(2);
    }
    fclose(f);
    return source;
}

static tgpu_kernel kernel_of(const char *source, const char *name) {
    tgpu_module module;
    tgpu_kernel kernel;
    OK(tgpu_module_compile(source, NULL, &module));
    OK(tgpu_kernel_get(module, name, &kernel));
    OK(tgpu_module_destroy(module));
    return kernel;
}

static float *device_floats(size_t count) {
    void *p;
    OK(tgpu_malloc(count * sizeof(float), &p));
    float *floats = p; /* host devices' memory is the program's */
    for (size_t i = 0; i < count; i++) floats[i] = (float)(i % 101) / 101;
    return floats;
}

static double time_launch(tgpu_kernel kernel, const tgpu_launch_config *config, void *const *args) {
    double start = bench_now();
    OK(tgpu_launch(kernel, config, args));
    OK(tgpu_synchronize());
    return bench_now() - start;
}

static void check_same(const char *what, const float *ours, const float *theirs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(ours[i] - theirs[i]) <= 1e-3f * (1 + fabsf(theirs[i])))) {
            fprintf(stderr, "%s: [%zu] is %g, not %g\n", what, i, (double)ours[i], (double)theirs[i]);
            exit(2);
        }
    }
}

/* Pairs of times and the median of their ratios: how fast we are, as a part of the reference. */
struct pairs {
    samples ours, reference, ratio;
};
static struct pairs pairs_new(int count) {
    return (struct pairs){samples_new(count), samples_new(count), samples_new(count)};
}
static void pairs_add(struct pairs *p, double ours, double reference) {
    samples_add(&p->ours, ours);
    samples_add(&p->reference, reference);
    samples_add(&p->ratio, reference / ours);
}
static void pairs_print(struct pairs *p, const char *what, const char *note) {
    double r = samples_median(&p->ratio);
    row line = {
        .what = what,
        .ours = text_time(samples_median(&p->ours)),
        .reference = text_time(samples_median(&p->reference)),
        .ratio = text("%.3f of its speed", r),
        .reach = "at least 0.9",
        .value = r,
        .limit = 0.9,
        .kind = ROW_AT_LEAST,
        .spread = text_spread(&p->ours, &p->reference),
        .note = note,
    };
    row_print(&line);
}

void row_source_saxpy(void) {
    int count = bench_reps(30, 6), warm = 2;
    float *x = device_floats(SAXPY_COUNT), *y = device_floats(SAXPY_COUNT), a = 0.5f;
    float *seen = calloc(SAXPY_COUNT, sizeof *seen);
    if (seen == NULL) bench_die("calloc", 12);
    memcpy(seen, y, SAXPY_BYTES);
    tgpu_kernel kernel = kernel_of(example("saxpy.hip"), "saxpy");
    uint64_t n = SAXPY_COUNT;
    void *args[] = {&n, &a, &x, &y};
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    OK(tgpu_kernel_suggest(kernel, n, &config.grid[0], &config.block[0]));
    struct pairs p = pairs_new(count);
    for (int i = 0; i < warm + count; i++) {
        bench_sleep(REST_NS); /* neither side pays for the other's threads that still spin */
        double ours = time_launch(kernel, &config, args);
        bench_sleep(REST_NS);
        double start = bench_now();
        ahead_saxpy(n, a, x, y);
        double theirs = bench_now() - start;
        for (int twice = 0; twice < 2; twice++) ahead_saxpy(n, a, x, seen);
        if (i >= warm) pairs_add(&p, ours, theirs);
    }
    check_same("saxpy from source", y, seen, SAXPY_COUNT);
    pairs_print(&p, "saxpy from source, 64 MiB (gcc -O3 -march=native -fopenmp)",
                text("%u blocks of %u, as suggested", config.grid[0], config.block[0]));
}

void row_source_matmul(void) {
    int count = bench_reps(15, 3), warm = 1, n = ORDER;
    size_t numbers = (size_t)n * (size_t)n;
    float *a = device_floats(numbers), *b = device_floats(numbers), *c = device_floats(numbers);
    float *theirs_c = calloc(numbers, sizeof *theirs_c);
    if (theirs_c == NULL) bench_die("calloc", 12);
    tgpu_kernel kernel = kernel_of(example("matmul.hip"), "matmul");
    void *args[] = {&n, &a, &b, &c};
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    config.grid[0] = config.grid[1] = ORDER / TILE;
    config.block[0] = config.block[1] = TILE;
    struct pairs p = pairs_new(count);
    for (int i = 0; i < warm + count; i++) {
        bench_sleep(REST_NS);
        double ours = time_launch(kernel, &config, args);
        bench_sleep(REST_NS);
        double start = bench_now();
        ahead_matmul(n, a, b, theirs_c);
        double theirs = bench_now() - start;
        if (i >= warm) pairs_add(&p, ours, theirs);
    }
    check_same("matrix product from source", c, theirs_c, numbers);
    pairs_print(&p, "matrix product from source, 1024 x 1024 in tiles (the same)",
                text("%.1f GFLOP/s", 2.0 * n * n * n / samples_median(&p.ours)));
}

/* The same exchange between the threads of a block, three times: with barriers in the kernel and in a member function, which
   become the ends of loops, and in an operator, so that each thread has to be a coroutine. */
static const char EXCHANGE[] =
    "extern \"C\" __global__ void exchange(const float *in, float *out) {\n"
    "    __shared__ float s[2][THREADS];\n"
    "    int me = threadIdx.x;\n"
    "    float x = in[blockIdx.x * THREADS + me];\n"
    "    for (int round = 0; round < BARRIERS; round++) {\n"
    "        s[round % 2][me] = x;\n"
    "        __syncthreads();\n"
    "        float next = s[round % 2][(me + 1) % THREADS];\n"
    "        for (int i = 0; i < STEPS; i++) x = x * 0.5f + next;\n"
    "    }\n"
    "    out[blockIdx.x * THREADS + me] = x;\n"
    "}\n"
    "#ifdef MEMBER\n"
    "struct exchanger {\n"
    "    float s[2][THREADS];\n"
    "    __device__ float MEMBER(int round, float x) {\n"
    "        s[round % 2][threadIdx.x] = x;\n"
    "        __syncthreads();\n"
    "        return s[round % 2][(threadIdx.x + 1) % THREADS];\n"
    "    }\n"
    "};\n"
    "extern \"C\" __global__ void exchange_in_members(const float *in, float *out) {\n"
    "    __shared__ exchanger e;\n"
    "    int me = threadIdx.x;\n"
    "    float x = in[blockIdx.x * THREADS + me];\n"
    "    for (int round = 0; round < BARRIERS; round++) {\n"
    "        float next = e.MEMBER(round, x);\n"
    "        for (int i = 0; i < STEPS; i++) x = x * 0.5f + next;\n"
    "    }\n"
    "    out[blockIdx.x * THREADS + me] = x;\n"
    "}\n"
    "#endif\n";

static void row_exchange(const char *what, const char *member, double at_most) {
    int count = bench_reps(30, 6), warm = 2;
    size_t numbers = (size_t)BLOCKS * AHEAD_THREADS;
    const char *source =
        text("#define THREADS %d\n#define BARRIERS %d\n#define STEPS %d\n%s%s", AHEAD_THREADS, AHEAD_BARRIERS, AHEAD_STEPS,
             member ? text("#define MEMBER %s\n", member) : "", EXCHANGE);
    tgpu_kernel kernel = kernel_of(source, member ? "exchange_in_members" : "exchange");
    float *in = device_floats(numbers), *out = device_floats(numbers), *theirs_out = calloc(numbers, sizeof *out);
    if (theirs_out == NULL) bench_die("calloc", 12);
    void *args[] = {&in, &out};
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    config.grid[0] = BLOCKS;
    config.block[0] = AHEAD_THREADS;
    samples ours = samples_new(count), reference = samples_new(count);
    for (int i = 0; i < warm + count; i++) {
        double a = time_launch(kernel, &config, args);
        double start = bench_now();
        ahead_exchange(BLOCKS, in, theirs_out);
        double b = bench_now() - start;
        if (i < warm) continue;
        samples_add(&ours, a / BLOCKS);
        samples_add(&reference, b / BLOCKS);
    }
    check_same(what, out, theirs_out, numbers);
    row_ratio(what, &ours, &reference, at_most,
              text("%d barriers with %d operations between two; one worker, %d blocks, time of one", AHEAD_BARRIERS,
                   2 * AHEAD_STEPS, BLOCKS));
}

void row_source_barriers(void) {
    setenv("TASKGPU_HOST_THREADS", "1", 1);
    row_exchange("256 threads and barriers, from source (loops between barriers, gcc -O3 -march=native)", NULL, 5);
    row_exchange("the same with a barrier in a member function (the same loops)", "next", 5);
    row_exchange("the same with a barrier in an operator: coroutines (the same loops)", "operator()", 5);
}

void row_source_again(void) {
    int count = bench_reps(2000, 200);
    const char *names[] = {"saxpy.hip", "matmul.hip"};
    for (int which = 0; which < 2; which++) {
        const char *source = example(names[which]);
        samples ours = samples_new(count), first = samples_new(1);
        for (int i = 0; i <= count; i++) {
            tgpu_module module;
            double start = bench_now();
            OK(tgpu_module_compile(source, NULL, &module));
            samples_add(i == 0 ? &first : &ours, bench_now() - start);
            OK(tgpu_module_destroy(module));
        }
        row line = {
            .what = text("tgpu_module_compile of %s again (the first time)", names[which]),
            .ours = text_time(samples_median(&ours)),
            .reference = text_time(samples_median(&first)),
            .reach = "at most 5 us",
            .value = samples_median(&ours),
            .limit = 5e3,
            .kind = ROW_AT_MOST,
            .spread = text_spread(&ours, NULL),
        };
        row_print(&line);
    }
}
