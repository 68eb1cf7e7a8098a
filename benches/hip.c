/* hip LOOP N      runs a loop N times on the HIP runtime of tests/hip-shim, for callgrind
   hip --loops     the loops
   hip --times     nanoseconds of each call, the least of many batches

   HIP_SHIM_EMPTY makes the runtime's launch do nothing, so that what is left is what the library costs above it. */
#include "../c-tests/shim.h"

#define LOOP __attribute__((noinline, noclone))

typedef int (*launch_function)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static launch_function bare_launch;
static int (*bare_look)(int *);
static tgpu_kernel kernel;
static void *native_stream;
static int argument;
static void *arguments[] = {&argument};

static void empty(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
}

static void prepare(void) {
    const size_t sizes[] = {sizeof argument};
    tgpu_stream s = NULL;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    AS_FUNCTION_(bare_launch, "hipModuleLaunchKernel");
    AS_FUNCTION_(bare_look, "hipGetDevice");
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_get(&s));
    kernel = kernel_of(empty, 1, sizes);
    CHECK_OK(tgpu_launch(kernel, &config, arguments));
    CHECK_OK(tgpu_stream_native(s, &native_stream));
}

LOOP static void loop_bare(long n) {
    int code = 0;
    for (long i = 0; i < n; i++) code |= bare_launch(NULL, 1, 1, 1, 1, 1, 1, 0, native_stream, arguments, NULL);
    CHECK_EQ(code, 0);
}

LOOP static void loop_look(long n) {
    int code = 0, device = 0;
    for (long i = 0; i < n; i++) code |= bare_look(&device);
    CHECK_EQ(code, 0);
}

LOOP static void loop_launch(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    for (long i = 0; i < n; i++) status |= tgpu_launch(kernel, &config, arguments);
    CHECK_OK(status);
}

LOOP static void loop_device_get(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_device d;
    for (long i = 0; i < n; i++) status |= tgpu_device_get(&d);
    CHECK_OK(status);
}

LOOP static void loop_stream_get(long n) {
    tgpu_status status = TGPU_OK;
    tgpu_stream s;
    for (long i = 0; i < n; i++) status |= tgpu_stream_get(&s);
    CHECK_OK(status);
}

static const struct {
    const char *name, *what;
    void (*run)(long);
} loops[] = {
    {"bare", "a bare hipModuleLaunchKernel that does nothing", loop_bare},
    {"look", "a bare hipGetDevice", loop_look},
    {"launch", "tgpu_launch on a HIP device, both of them inside", loop_launch},
    {"device_get", "tgpu_device_get on a HIP device", loop_device_get},
    {"stream_get", "tgpu_stream_get on a HIP device", loop_stream_get},
};
enum { LOOPS = sizeof loops / sizeof *loops, BATCH = 20000, BATCHES = 50 };

static double nanoseconds(void (*run)(long)) {
    double least = 1e18;
    for (int i = 0; i < BATCHES; i++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        run(BATCH);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double each = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / BATCH;
        if (each < least) least = each;
    }
    return least;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--loops") == 0) {
        for (int i = 0; i < LOOPS; i++) printf("%s\t%s\n", loops[i].name, loops[i].what);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--times") == 0) {
        prepare();
        for (int i = 0; i < LOOPS; i++) printf("%s\t%.1f\n", loops[i].name, nanoseconds(loops[i].run));
        return 0;
    }
    for (int i = 0; argc == 3 && i < LOOPS; i++) {
        if (strcmp(argv[1], loops[i].name) != 0) continue;
        prepare();
        loops[i].run(10);
        loops[i].run(atol(argv[2]));
        return 0;
    }
    fprintf(stderr, "usage: hip LOOP N | --loops | --times\n");
    return 1;
}
