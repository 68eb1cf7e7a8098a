/* Kernels from source: the six of examples/kernels, checked against plain loops, on whatever device is current; and what
 * compiling promises. The same program runs on host devices and, with TASKGPU_BACKENDS, on GPUs. */
#include "work.h"

#include <math.h>
#include <pthread.h>

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) FAIL("%s: %s; run this from the top of the source tree", path, strerror(errno));
    char *text = calloc(1, 1 << 16);
    if (!text) FAIL("no memory");
    size_t length = fread(text, 1, (1 << 16) - 1, f);
    if (length == 0 || !feof(f)) FAIL("%s: cannot be read", path);
    fclose(f);
    return text;
}

/* Compiles one of the examples, with a name expression or none. */
static tgpu_module example(const char *name, const char *expression) {
    char path[256];
    snprintf(path, sizeof path, "examples/kernels/%s", name);
    char *text = read_file(path);
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    tgpu_module m = NULL;
    options.name = name;
    options.name_expressions = &expression;
    options.name_expression_count = expression != NULL;
    CHECK_OK(tgpu_module_compile(text, &options, &m));
    free(text);
    return m;
}

static tgpu_kernel kernel_in(tgpu_module m, const char *name) {
    tgpu_kernel k = NULL;
    CHECK_OK(tgpu_kernel_get(m, name, &k));
    return k;
}

/* Device memory with this in it. */
static void *on_device(const void *host, size_t bytes) {
    void *p = NULL;
    CHECK_OK(tgpu_malloc(bytes, &p));
    if (host) CHECK_OK(tgpu_memcpy(p, host, bytes, NULL));
    else CHECK_OK(tgpu_memset(p, 0, bytes, NULL));
    CHECK_OK(tgpu_synchronize());
    return p;
}

static void to_host(void *host, const void *device, size_t bytes) {
    CHECK_OK(tgpu_memcpy(host, device, bytes, NULL));
    CHECK_OK(tgpu_synchronize());
}

static void *numbers(size_t bytes) {
    void *p = calloc(1, bytes);
    if (!p) FAIL("no memory");
    return p;
}

/* Numbers from -1 to 1, the same each time. */
static float *random_floats(size_t n) {
    float *x = numbers(n * sizeof *x);
    uint32_t seed = 12345;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    return x;
}

static void check_close(const float *is, const float *must, size_t n, float most) {
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(is[i] - must[i]) <= most)) FAIL("[%zu] is %.9g, must be %.9g to %g", i, (double)is[i], (double)must[i], (double)most);
}

static tgpu_launch_config shape(uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz) {
    tgpu_launch_config c = TGPU_LAUNCH_CONFIG_INIT;
    c.grid[0] = gx, c.grid[1] = gy, c.grid[2] = gz;
    c.block[0] = bx, c.block[1] = by, c.block[2] = bz;
    return c;
}

static void saxpy_gives_what_a_loop_gives(void) {
    enum { N = 100003 };
    float *x = random_floats(N), *y = random_floats(N), a = 3;
    uint64_t n = N;
    for (int i = 0; i < N; i++) y[i] = (float)i;
    void *dx = on_device(x, N * sizeof *x), *dy = on_device(y, N * sizeof *y);
    tgpu_module m = example("saxpy.hip", NULL);
    tgpu_kernel k = kernel_in(m, "saxpy");
    void *args[] = {&n, &a, &dx, &dy};
    tgpu_launch_config c = TGPU_LAUNCH_CONFIG_INIT;
    CHECK_OK(tgpu_kernel_suggest(k, n, &c.grid[0], &c.block[0]));
    CHECK_OK(tgpu_launch(k, &c, args));
    for (int i = 0; i < N; i++) y[i] = a * x[i] + y[i];
    float *seen = numbers(N * sizeof *seen);
    to_host(seen, dy, N * sizeof *seen);
    check_close(seen, y, N, 0.01f);
    CHECK_OK(tgpu_free(dx));
    CHECK_OK(tgpu_free(dy));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
    free(x), free(y), free(seen);
}

static void the_tiled_matrix_product_gives_what_loops_give(void) {
    tgpu_module m = example("matmul.hip", NULL);
    tgpu_kernel k = kernel_in(m, "matmul");
    const int sizes[] = {1, 16, 33, 100};
    for (int s = 0; s < 4; s++) {
        int n = sizes[s];
        size_t count = (size_t)n * (size_t)n;
        float *a = random_floats(2 * count), *b = a + count, *c = numbers(count * sizeof *c), *seen = numbers(count * sizeof *c);
        void *da = on_device(a, count * sizeof *a), *db = on_device(b, count * sizeof *b), *dc = on_device(NULL, count * sizeof *c);
        void *args[] = {&n, &da, &db, &dc};
        uint32_t tiles = (uint32_t)(n + 15) / 16;
        tgpu_launch_config config = shape(tiles, tiles, 1, 16, 16, 1);
        CHECK_OK(tgpu_launch(k, &config, args));
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                for (int l = 0; l < n; l++) c[i * n + j] += a[i * n + l] * b[l * n + j];
        to_host(seen, dc, count * sizeof *seen);
        check_close(seen, c, count, 1e-4f);
        CHECK_OK(tgpu_free(da));
        CHECK_OK(tgpu_free(db));
        CHECK_OK(tgpu_free(dc));
        free(a), free(c), free(seen);
    }
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

/* A template, by two name expressions, with dynamic shared memory. */
static void the_tree_reduction_gives_what_a_loop_gives(void) {
    enum { N = 100001, BLOCKS = 7, THREADS = 128 };
    tgpu_module m = example("reduce.hip", "reduce<double>");
    tgpu_kernel k = kernel_in(m, "reduce<double>");
    double *x = numbers(N * sizeof *x), sums[BLOCKS], sum = 0, must = 0;
    for (int i = 0; i < N; i++) must += x[i] = i % 1000;
    void *dx = on_device(x, N * sizeof *x), *dsums = on_device(NULL, sizeof sums);
    unsigned n = N;
    void *args[] = {&n, &dx, &dsums};
    tgpu_launch_config c = shape(BLOCKS, 1, 1, THREADS, 1, 1);
    c.shared_bytes = THREADS * sizeof(double);
    CHECK_OK(tgpu_launch(k, &c, args));
    to_host(sums, dsums, sizeof sums);
    for (int i = 0; i < BLOCKS; i++) sum += sums[i];
    if (sum != must) FAIL("the sum is %g, must be %g", sum, must); /* whole numbers: exact in any order */
    CHECK_OK(tgpu_free(dx));
    CHECK_OK(tgpu_free(dsums));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
    free(x);
}

static void the_histogram_gives_what_a_loop_gives(void) {
    enum { N = 200003 };
    tgpu_module m = example("histogram.hip", NULL);
    tgpu_kernel k = kernel_in(m, "histogram");
    unsigned char *bytes = numbers(N);
    unsigned counts[256] = {0}, seen[256], n = N;
    for (int i = 0; i < N; i++) counts[bytes[i] = (unsigned char)((unsigned)i * (unsigned)i % 251)]++;
    void *dbytes = on_device(bytes, N), *dcounts = on_device(NULL, sizeof counts);
    void *args[] = {&n, &dbytes, &dcounts};
    tgpu_launch_config c = shape(9, 1, 1, 192, 1, 1);
    CHECK_OK(tgpu_launch(k, &c, args));
    to_host(seen, dcounts, sizeof seen);
    for (int i = 0; i < 256; i++) CHECK_EQ(seen[i], counts[i]);
    CHECK_OK(tgpu_free(dbytes));
    CHECK_OK(tgpu_free(dcounts));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
    free(bytes);
}

static void stencil_loop(int nx, int ny, int nz, float rate, const float *before, float *after) {
    for (int z = 0; z < nz; z++)
        for (int y = 0; y < ny; y++)
            for (int x = 0; x < nx; x++) {
                int i = (z * ny + y) * nx + x;
                after[i] = before[i];
                if (x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1) continue;
                float mean = (before[i - 1] + before[i + 1] + before[i - nx] + before[i + nx] + before[i - nx * ny] + before[i + nx * ny]) / 6;
                after[i] += rate * (mean - before[i]);
            }
}

/* With its constant as it is, and with another value written into it. */
static void the_stencil_gives_what_loops_give(void) {
    enum { NX = 37, NY = 21, NZ = 11, N = NX * NY * NZ };
    tgpu_module m = example("stencil.hip", NULL);
    tgpu_kernel k = kernel_in(m, "stencil");
    float *x = random_floats(N), *must = numbers(N * sizeof *x), *seen = numbers(N * sizeof *x), rate = 0.25f;
    void *dx = on_device(x, N * sizeof *x), *dy = on_device(NULL, N * sizeof *x), *drate = NULL;
    int nx = NX, ny = NY, nz = NZ;
    uint64_t bytes = 0;
    void *args[] = {&nx, &ny, &nz, &dx, &dy};
    tgpu_launch_config c = shape((NX + 31) / 32, (NY + 3) / 4, (NZ + 1) / 2, 32, 4, 2);
    CHECK_OK(tgpu_launch(k, &c, args));
    stencil_loop(NX, NY, NZ, 0.5f, x, must);
    to_host(seen, dy, N * sizeof *seen);
    check_close(seen, must, N, 1e-5f);
    CHECK_OK(tgpu_module_global_get(m, device_now(), "rate", &drate, &bytes));
    CHECK_EQ(bytes, sizeof rate);
    CHECK_OK(tgpu_memcpy(drate, &rate, sizeof rate, NULL));
    CHECK_OK(tgpu_launch(k, &c, args));
    stencil_loop(NX, NY, NZ, rate, x, must);
    to_host(seen, dy, N * sizeof *seen);
    check_close(seen, must, N, 1e-5f);
    CHECK_OK(tgpu_free(dx));
    CHECK_OK(tgpu_free(dy));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
    free(x), free(must), free(seen);
}

static void the_mandelbrot_picture_is_what_loops_paint(void) {
    enum { WIDTH = 150, HEIGHT = 90, MOST = 200 };
    tgpu_module m = example("mandelbrot.hip", NULL);
    tgpu_kernel k = kernel_in(m, "mandelbrot");
    int width = WIDTH, height = HEIGHT, most = MOST, differ = 0;
    float left = -2.2f, top = 1.2f, step = 3.0f / WIDTH;
    int *seen = numbers(WIDTH * HEIGHT * sizeof *seen);
    void *dsteps = on_device(NULL, WIDTH * HEIGHT * sizeof *seen);
    void *args[] = {&width, &height, &left, &top, &step, &most, &dsteps};
    tgpu_launch_config c = shape((WIDTH + 15) / 16, (HEIGHT + 15) / 16, 1, 16, 16, 1);
    CHECK_OK(tgpu_launch(k, &c, args));
    to_host(seen, dsteps, WIDTH * HEIGHT * sizeof *seen);
    for (int row = 0; row < HEIGHT; row++)
        for (int column = 0; column < WIDTH; column++) {
            float cx = left + (float)column * step, cy = top - (float)row * step, x = 0, y = 0;
            int n = 0;
            for (; n < MOST && x * x + y * y <= 4; n++) {
                float next = x * x - y * y + cx;
                y = 2 * x * y + cy;
                x = next;
            }
            differ += seen[row * WIDTH + column] != n;
        }
    /* Points at the very edge take another number of steps where products and sums are rounded together. */
    if (differ > WIDTH * HEIGHT / 100) FAIL("%d of %d points differ", differ, WIDTH * HEIGHT);
    CHECK_OK(tgpu_free(dsteps));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
    free(seen);
}

/* What host devices lack is refused when it is compiled, by a text that names it. */
static void what_host_devices_lack_is_named(void) {
    static const struct {
        const char *body, *name, *what;
    } lacking[] = {
        {"x[0] = __shfl_down_sync(0xffffffffu, x[0], 1);", "__shfl_down_sync", "warp shuffles are not supported on host devices"},
        {"x[0] = __ballot_sync(0xffffffffu, x[0] > 0);", "__ballot_sync", "warp votes"},
        {"x[0] = __shfl(x[0], 1);", "__shfl", "warp shuffles"},
        {"x[0] = __shfl_xor_sync(~0u, x[0], 1);", "__shfl_xor_sync", "warp shuffles"},
        {"x[0] = __ballot(1);", "__ballot", "warp votes and warp synchronization are not supported on host devices"},
        {"x[0] = __any_sync(~0u, 1);", "__any_sync", "warp votes"},
        {"x[0] = __activemask();", "__activemask", "warp votes"},
        {"x[0] = __match_any_sync(~0u, 1);", "__match_any_sync", "warp votes"},
        {"x[0] = __reduce_add_sync(~0u, 1);", "__reduce_add_sync", "warp votes"},
        {"__syncwarp();", "__syncwarp", "warp synchronization"},
        {"x[0] = __lane_id();", "__lane_id", "lanes of a warp"},
        {"x[0] = __syncthreads_or(1);", "__syncthreads_or", "barriers that count are not supported on host devices"},
        {"x[0] = tex2D<float>(0ull, 1.0f, 2.0f);", "tex2D", "textures and surfaces are not supported on host devices"},
        {"x[0] = tex1Dfetch<float>(0ull, 1);", "tex1Dfetch", "textures and surfaces"},
        {"hipTextureObject_t t = 0;", "hipTextureObject_t", "textures and surfaces"},
        {"cudaSurfaceObject_t s = 0;", "cudaSurfaceObject_t", "textures and surfaces"},
        {"surf2Dwrite(x[0], 0ull, 0, 0);", "surf2Dwrite", "textures and surfaces"},
        {"__half h;", "__half", "half-precision numbers are not supported on host devices"},
        {"x[0] = __half2float(x[1]);", "__half2float", "half-precision numbers"},
        {"__nv_bfloat16 b;", "__nv_bfloat16", "bfloat16 numbers"},
        {"x[0] = clock64();", "clock64", "clocks of the device are not supported on host devices"},
        {"__nanosleep(100);", "__nanosleep", "waits inside kernels"},
        {"k<<<1, 1>>>(x);", "<<<", "launches inside kernels"},
        {"atomicAdd((short *)x, (short)1);", "short", "atomic functions take types of 4 or 8 bytes"},
        {"asm(\"mov.u32 %0, %%laneid;\" : \"=r\"(x[0]));", "laneid", ""},
        {"__builtin_amdgcn_s_barrier();", "__builtin_amdgcn_s_barrier", ""},
    };
    static const struct {
        const char *header, *what;
    } headers[] = {{"cooperative_groups.h", "cooperative groups are not supported on host devices"}, {"cuda_fp16.h", "half-precision numbers"},
        {"hip/hip_fp16.h", "half-precision numbers"}, {"cuda_bf16.h", "bfloat16 numbers"}, {"mma.h", "matrix instructions"},
        {"curand_kernel.h", "vendors' libraries"}};
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    if (strcmp(device.backend, "host") != 0) return; /* GPUs have them */
    for (size_t i = 0; i < sizeof lacking / sizeof *lacking; i++) {
        char source[256];
        tgpu_module m = (tgpu_module)77;
        snprintf(source, sizeof source, "extern \"C\" __global__ void k(float *x) {\n    %s\n}\n", lacking[i].body);
        CHECK_REFUSED(tgpu_module_compile(source, NULL, &m), TGPU_ERROR_COMPILE_FAILED, lacking[i].name, lacking[i].what, "kernel:2");
        CHECK_SAME(m, 77);
    }
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        char source[256];
        tgpu_module m = (tgpu_module)77;
        snprintf(source, sizeof source, "#include <%s>\nextern \"C\" __global__ void k(float *x) {}\n", headers[i].header);
        CHECK_REFUSED(tgpu_module_compile(source, NULL, &m), TGPU_ERROR_COMPILE_FAILED, headers[i].header, headers[i].what, "kernel:1");
        CHECK_SAME(m, 77);
    }
}

enum { COMPILERS = 8 };

static void *compile_one(void *out) {
    static const char source[] = "extern \"C\" __global__ void eight(int *x) { x[threadIdx.x] = 8; }\n";
    CHECK_OK(tgpu_module_compile(source, NULL, out));
    return NULL;
}

static void eight_threads_compile_the_same_source_at_once(void) {
    pthread_t threads[COMPILERS];
    tgpu_module modules[COMPILERS];
    for (int i = 0; i < COMPILERS; i++) threads[i] = start_thread(compile_one, &modules[i]);
    for (int i = 0; i < COMPILERS; i++) join_thread(threads[i]);
    for (int i = 0; i < COMPILERS; i++) {
        int seen[4];
        void *x = on_device(NULL, sizeof seen), *args[] = {&x};
        tgpu_kernel k = kernel_in(modules[i], "eight");
        tgpu_launch_config c = shape(1, 1, 1, 4, 1, 1);
        CHECK_OK(tgpu_launch(k, &c, args));
        to_host(seen, x, sizeof seen);
        for (int j = 0; j < 4; j++) CHECK_EQ(seen[j], 8);
        CHECK_OK(tgpu_free(x));
        CHECK_OK(tgpu_kernel_destroy(k));
        CHECK_OK(tgpu_module_destroy(modules[i]));
    }
}

/* Two modules with a function of one name are two functions. */
static void modules_with_one_name_differ(void) {
    static const char *const sources[] = {"extern \"C\" __global__ void which(int *x) { *x = 1; }\n",
                                          "extern \"C\" __global__ void which(int *x) { *x = 2; }\n"};
    tgpu_module m[2];
    tgpu_kernel k[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tgpu_module_compile(sources[i], NULL, &m[i]));
        k[i] = kernel_in(m[i], "which");
    }
    for (int i = 0; i < 2; i++) {
        int seen = 0;
        void *x = on_device(NULL, sizeof seen), *args[] = {&x};
        tgpu_launch_config c = shape(1, 1, 1, 1, 1, 1);
        CHECK_OK(tgpu_launch(k[i], &c, args));
        to_host(&seen, x, sizeof seen);
        CHECK_EQ(seen, i + 1);
        CHECK_OK(tgpu_free(x));
        CHECK_OK(tgpu_kernel_destroy(k[i]));
        CHECK_OK(tgpu_module_destroy(m[i]));
    }
}

/* Each option is one argument of the compiler, whatever is in it. */
static void options_never_reach_a_shell(void) {
    static const char source[] = "extern \"C\" __global__ void length(int *n) { *n = sizeof(TEXT) - 1; }\n";
    const char *option = "-DTEXT=\"a b; $(touch never-made) 'c' `touch never-made` | d\"";
    int seen = 0, must = (int)(strlen(option) - strlen("-DTEXT=\"\""));
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    tgpu_module m = NULL;
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    if (strcmp(device.backend, "host") != 0) return; /* vendors' compilers are libraries */
    options.options = &option, options.option_count = 1;
    CHECK_OK(tgpu_module_compile(source, &options, &m));
    tgpu_kernel k = kernel_in(m, "length");
    void *x = on_device(NULL, sizeof seen);
    tgpu_launch_config c = shape(1, 1, 1, 1, 1, 1);
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x)));
    to_host(&seen, x, sizeof seen);
    CHECK_EQ(seen, must);
    if (access("never-made", F_OK) == 0) FAIL("an option was run by a shell");
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

static void the_macro_for_arguments_passes_them_in_order(void) {
    static const char source[] = "extern \"C\" __global__ void put(int *x, int a, double b) { x[0] = a; x[1] = (int)b; }\n";
    int seen[2], a = 4;
    double b = 5;
    tgpu_module m = NULL;
    CHECK_OK(tgpu_module_compile(source, NULL, &m));
    tgpu_kernel k = kernel_in(m, "put");
    void *x = on_device(NULL, sizeof seen);
    tgpu_launch_config c = shape(1, 1, 1, 1, 1, 1);
    CHECK_EQ(TGPU_ARG_COUNT(&x, &a, &b), 3);
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x, &a, &b)));
    to_host(seen, x, sizeof seen);
    CHECK_EQ(seen[0], 4), CHECK_EQ(seen[1], 5);
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

/* ---- what a launch is checked against */

static tgpu_module compiled(const char *source, const tgpu_compile_options *options) {
    tgpu_module m = NULL;
    CHECK_OK(tgpu_module_compile(source, options, &m));
    return m;
}

static uint64_t static_shared(tgpu_kernel k) {
    tgpu_kernel_info info = TGPU_KERNEL_INFO_INIT;
    CHECK_OK(tgpu_kernel_info_get(k, device_now(), &info));
    return info.static_shared_bytes;
}

static const char REVERSE[] =
    "extern \"C\" __global__ void none(int *x) { *x = 1; }\n"
    "extern \"C\" __global__ void reverse(int *x) {\n"
    "    __shared__ int s[64];\n"
    "    __shared__ double scale[2];\n"
    "    extern __shared__ int more[];\n"
    "    if (threadIdx.x < 2) scale[threadIdx.x] = threadIdx.x + 2;\n"
    "    s[threadIdx.x] = more[threadIdx.x] = x[threadIdx.x];\n"
    "    __syncthreads();\n"
    "    x[threadIdx.x] = s[63 - threadIdx.x] * (int)scale[1] + more[threadIdx.x] * (int)scale[0];\n"
    "}\n";

static void static_shared_memory_counts_at_a_launch(void) {
    enum { STATIC = 64 * 4 + 2 * 8 };
    int seen[64];
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    tgpu_launch_config c = shape(1, 1, 1, 64, 1, 1);
    tgpu_module m = compiled(REVERSE, NULL);
    tgpu_kernel none = kernel_in(m, "none"), k = kernel_in(m, "reverse");
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    CHECK_EQ(static_shared(none), 0);
    CHECK_EQ(static_shared(k), STATIC);
    for (int i = 0; i < 64; i++) seen[i] = i;
    void *x = on_device(seen, sizeof seen);
    const uint64_t most = device.max_shared_per_block;
    const uint64_t over[] = {most - STATIC + 1, most, most + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        c.shared_bytes = over[i];
        struct state before = state_now();
        CHECK_REFUSED(tgpu_launch(k, &c, TGPU_ARGS(&x)), TGPU_ERROR_INVALID_ARGUMENT, "reverse", "shared memory", TEXT(over[i]),
            over[i] > most ? TEXT(most) : TEXT(STATIC));
        CHECK_STATE(before);
    }
    c.shared_bytes = most - STATIC;
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x)));
    to_host(seen, x, sizeof seen);
    for (int i = 0; i < 64; i++) CHECK_EQ(seen[i], (63 - i) * 3 + i * 2);
    c.shared_bytes = most;
    CHECK_OK(tgpu_launch(none, &c, TGPU_ARGS(&x)));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(none));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

/* GPUs' compilers refuse such a kernel; on host devices it is only found too big when it is asked about. */
static void more_static_shared_memory_than_there_is_fits_no_launch(void) {
    static const char source[] = "extern \"C\" __global__ void big(int *x) { __shared__ int s[100000]; s[*x] = 1; *x = s[x[1]]; }\n";
    uint32_t grid = 77, block = 77;
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    tgpu_launch_config c = shape(1, 1, 1, 1, 1, 1);
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    if (strcmp(device.backend, "host") != 0) return;
    tgpu_module m = compiled(source, NULL);
    tgpu_kernel k = kernel_in(m, "big");
    void *x = on_device(NULL, 8);
    CHECK_EQ(static_shared(k), 400000);
    CHECK_REFUSED(tgpu_launch(k, &c, TGPU_ARGS(&x)), TGPU_ERROR_INVALID_ARGUMENT, "big", "400000", TEXT(device.max_shared_per_block));
    CHECK_REFUSED(tgpu_kernel_suggest(k, 1, &grid, &block), TGPU_ERROR_INVALID_ARGUMENT, "big", "400000", TEXT(device.max_shared_per_block));
    CHECK_EQ(grid, 77), CHECK_EQ(block, 77);
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

static const char BOUNDED[] =
    "extern \"C\" __global__ void __launch_bounds__(64) bounded(int *x) { x[threadIdx.x] = (int)(blockDim.x + gridDim.x); }\n";

static void a_refused_launch_says_the_value_the_limit_and_the_kernel(void) {
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    tgpu_kernel_info info = TGPU_KERNEL_INFO_INIT;
    uint32_t grid = 0, block = 0;
    tgpu_module m = compiled(BOUNDED, NULL);
    tgpu_kernel k = kernel_in(m, "bounded");
    int seen[64];
    void *x = on_device(NULL, sizeof seen);
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    CHECK_OK(tgpu_kernel_info_get(k, device_now(), &info));
    CHECK_EQ(info.max_threads_per_block, 64);
    CHECK_EQ(info.warp_size, device.warp_size);
    CHECK_EQ(info.static_shared_bytes, 0);
    CHECK_OK(tgpu_kernel_suggest(k, 1000, &grid, &block));
    CHECK(block >= 1 && block <= 64 && (uint64_t)grid * block >= 1000);
    struct state before = state_now();
    tgpu_launch_config c;
#define REFUSED_LAUNCH(config, args, ...) \
    (c = config, CHECK_REFUSED(tgpu_launch(k, &c, args), TGPU_ERROR_INVALID_ARGUMENT, "bounded", __VA_ARGS__))
    REFUSED_LAUNCH(shape(1, 0, 1, 1, 1, 1), TGPU_ARGS(&x), "grid.y is 0");
    REFUSED_LAUNCH(shape(1, 1, 1, 1, 1, 0), TGPU_ARGS(&x), "block.z is 0");
    REFUSED_LAUNCH(shape(1, 1, device.max_grid[2] + 1, 1, 1, 1), TGPU_ARGS(&x), "grid.z", TEXT(device.max_grid[2] + 1), TEXT(device.max_grid[2]));
    REFUSED_LAUNCH(shape(1, 1, 1, device.max_block[0] + 1, 1, 1), TGPU_ARGS(&x), "block.x", TEXT(device.max_block[0]));
    REFUSED_LAUNCH(shape(1, 1, 1, device.max_threads_per_block / 2 + 1, 2, 1), TGPU_ARGS(&x), TEXT(device.max_threads_per_block / 2 * 2 + 2),
        TEXT(device.max_threads_per_block));
    REFUSED_LAUNCH(shape(1, 1, 1, 64, 1, 1), NULL, "NULL");
    c = shape(1, 1, 1, 13, 5, 1);
    tgpu_status status = tgpu_launch(k, &c, TGPU_ARGS(&x)); /* vendors differ in what they call this */
    CHECK(status == TGPU_ERROR_INVALID_ARGUMENT || status == TGPU_ERROR_LAUNCH_FAILED);
    CHECK(strstr(last_text(), "bounded") && strstr(last_text(), "13, 5, 1") && strstr(last_text(), "64"));
    CHECK_STATE(before);
    c = shape(1, 1, 1, 64, 1, 1);
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x)));
    to_host(seen, x, sizeof seen);
    for (int i = 0; i < 64; i++) CHECK_EQ(seen[i], 65);
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

/* The variables of all threads of a block are on one stack while the block waits at a barrier: what does not fit goes another way. */
static void kernels_with_much_for_each_thread_give_what_they_should(void) {
    enum { ARRAYS = 20, THREADS = 1024 };
    char source[8192];
    int at = snprintf(source, sizeof source, "extern \"C\" __global__ void much(int n, int *out) { int me = threadIdx.x;"), seen[THREADS];
    for (int i = 0; i < ARRAYS; i++)
        at += snprintf(source + at, sizeof source - at, "int a%d[128]; for (int i = 0; i < 128; i++) a%d[i] = n * %d + i + me;", i, i, i);
    at += snprintf(source + at, sizeof source - at, "__syncthreads(); int sum = 0;");
    for (int i = 0; i < ARRAYS; i++) at += snprintf(source + at, sizeof source - at, "sum += a%d[(me * n + %d) & 127];", i, i);
    snprintf(source + at, sizeof source - at, "__syncthreads(); out[me] = sum; }");
    tgpu_module m = compiled(source, NULL);
    tgpu_kernel k = kernel_in(m, "much");
    void *out = on_device(NULL, sizeof seen);
    tgpu_launch_config c = shape(1, 1, 1, THREADS, 1, 1);
    int n = 3;
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&n, &out)));
    to_host(seen, out, sizeof seen);
    for (int me = 0; me < THREADS; me++) {
        int must = 0;
        for (int i = 0; i < ARRAYS; i++) must += n * i + ((me * n + i) & 127) + me;
        CHECK_EQ(seen[me], must);
    }
    CHECK_OK(tgpu_free(out)), CHECK_OK(tgpu_kernel_destroy(k)), CHECK_OK(tgpu_module_destroy(m));
}

/* ---- what a compiler says, and odd sources */

/* Every error, the first and the last of a long log, with the file's own name, whatever is in that. */
static void a_long_log_comes_back_whole(void) {
    enum { ERRORS = 12, PADDING = 3000 };
    static char source[ERRORS * (PADDING + 100)], text[ERRORS * (PADDING + 1000) * 8];
    size_t at = 0, needed = 0;
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    tgpu_module m = (tgpu_module)77;
    for (int i = 0; i < ERRORS; i++) {
        at += (size_t)snprintf(source + at, sizeof source - at, "__device__ int v%d = nowhere%d_", i, i);
        memset(source + at, 'a' + i, PADDING), at += PADDING;
        at += (size_t)snprintf(source + at, sizeof source - at, ";\n");
    }
    options.name = "my 'odd' $(touch never-made) name.hip";
    CHECK_STATUS(tgpu_module_compile(source, &options, &m), TGPU_ERROR_COMPILE_FAILED);
    CHECK_SAME(m, 77);
    CHECK_OK(tgpu_error_text(text, sizeof text, &needed));
    CHECK(needed <= sizeof text);
    CHECK_EQ(strlen(text) + 1, needed);
    CHECK(needed > ERRORS * PADDING);
    for (int i = 0; i < ERRORS; i++) {
        char place[100], other[100], name[24];
        snprintf(place, sizeof place, "%s:%d:", options.name, i + 1);
        snprintf(other, sizeof other, "%s(%d):", options.name, i + 1); /* as NVRTC writes it */
        snprintf(name, sizeof name, "nowhere%d_", i);
        if ((!strstr(text, place) && !strstr(text, other)) || !strstr(text, name)) FAIL("\"%s\" or \"%s\" is not in %s", place, name, text);
    }
    if (access("never-made", F_OK) == 0) FAIL("a name was run by a shell");
}

static void templates_are_found_by_the_expressions_that_were_asked_for(void) {
    static const char source[] =
        "namespace shapes { template <class T, int N> __global__ void fill(T *x, T by) { x[threadIdx.x] = by + N; } }\n"
        "template <class T> __global__ void fill(T *x, T by) { x[threadIdx.x] = by; }\n"
        "__global__ void plain(double *x, double by) { x[threadIdx.x] = by * 2; }\n";
    static const char *const names[] = {"shapes::fill<double, 3>", "fill<double>", "plain", "shapes::fill<double,-1>"};
    const double musts[] = {8, 5, 10, 4};
    tgpu_compile_options options = TGPU_COMPILE_OPTIONS_INIT;
    options.name_expressions = names, options.name_expression_count = 4;
    tgpu_module m = compiled(source, &options), none = (tgpu_module)77;
    double seen[2], by = 5;
    void *x = on_device(NULL, sizeof seen);
    for (int i = 0; i < 4; i++) {
        tgpu_kernel k = kernel_in(m, names[i]);
        tgpu_launch_config c = shape(1, 1, 1, 2, 1, 1);
        CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x, &by)));
        to_host(seen, x, sizeof seen);
        CHECK(seen[0] == musts[i] && seen[1] == musts[i]);
        CHECK_OK(tgpu_kernel_destroy(k));
    }
    tgpu_kernel k = (tgpu_kernel)77;
    CHECK_REFUSED(tgpu_kernel_get(m, "fill<float>", &k), TGPU_ERROR_NOT_FOUND, "fill<float>");
    CHECK_SAME(k, 77);
    static const char *const wrong[] = {"nowhere<int>"};
    options.name_expressions = wrong, options.name_expression_count = 1;
    CHECK_REFUSED(tgpu_module_compile(source, &options, &none), TGPU_ERROR_COMPILE_FAILED, "nowhere<int>");
    CHECK_SAME(none, 77);
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_module_destroy(m));
}

static void a_huge_source_is_as_good_as_a_small_one(void) {
    enum { BYTES = 6 << 20 };
    static const char line[] = "// This says nothing, and there is much of it.\n";
    static const char end[] = "extern \"C\" __global__ void last(int *x) { *x = __LINE__; }\n";
    char *source = numbers(BYTES + sizeof end);
    int lines = 0, seen = 0;
    size_t at = 0;
    for (; at + sizeof line < BYTES; at += sizeof line - 1, lines++) memcpy(source + at, line, sizeof line - 1);
    memcpy(source + at, end, sizeof end);
    tgpu_module m = compiled(source, NULL);
    tgpu_kernel k = kernel_in(m, "last");
    tgpu_launch_config c = shape(1, 1, 1, 1, 1, 1);
    void *x = on_device(NULL, sizeof seen);
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x)));
    to_host(&seen, x, sizeof seen);
    CHECK_EQ(seen, lines + 1);
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
    free(source);
}

static void a_source_without_anything_in_it_is_a_module_without_kernels(void) {
    static const char *const sources[] = {"", "\n", "// nothing", "__device__ int unused;\n"};
    for (int i = 0; i < 4; i++) {
        tgpu_module m = compiled(sources[i], NULL);
        tgpu_kernel k = (tgpu_kernel)77;
        CHECK_REFUSED(tgpu_kernel_get(m, "k", &k), TGPU_ERROR_NOT_FOUND, "k");
        CHECK_SAME(k, 77);
        CHECK_OK(tgpu_module_destroy(m));
    }
}

/* What kernels are written with besides: qualifiers, structs and vectors by value, constants, templates, lambdas, three
 * dimensions. */
static void the_language_of_real_kernels_is_understood(void) {
    static const char source[] =
        "#define SIDE 4\n"
        "namespace math {\n"
        "template <class T> __device__ __forceinline__ T square(T x) { return x * x; }\n"
        "template <> __device__ int square<int>(int x) { return x * x + 1000; }\n"
        "__device__ __noinline__ float add(const float *__restrict__ x, float y) { return *x + y; }\n"
        "}\n"
        "struct pair { int first; float second; __host__ __device__ float sum() const { return first + second; } };\n"
        "__constant__ int table[3] = {10, 20, 30};\n"
        "__device__ unsigned calls;\n"
        "static constexpr int offset = 7;\n"
        "enum { BIAS = 5 };\n"
        "extern \"C\" {\n"
        "__global__ void __launch_bounds__(SIDE *SIDE *SIDE, 1) all(float *__restrict__ out, const pair p, float4 v, dim3 size, const int2 *pairs) {\n"
        "    __shared__ struct { float x[SIDE][SIDE][SIDE]; } s;\n"
        "    const unsigned x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;\n"
        "    const unsigned i = ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * size.x * size.y * size.z + (z * size.y + y) * size.x + x;\n"
        "    auto twice = [=](float w) { return w * 2 + BIAS; };\n"
        "    s.x[z][y][x] = twice((float)(x + y + z));\n"
        "    __syncthreads();\n"
        "    float sum = 0;\n"
        "#pragma unroll\n"
        "    for (int j = 0; j < SIDE; j++) sum += s.x[j][y][x];\n"
        "    switch (i % 3) {\n"
        "    case 0: sum += table[0]; break;\n"
        "    case 1: sum += table[1]; [[fallthrough]];\n"
        "    default: sum += table[2];\n"
        "    }\n"
        "    sum += p.sum() + v.x + v.w + math::square(2) + math::square(0.5f) + pairs[1].y + offset;\n"
        "    out[i] = math::add(&sum, blockDim.z);\n"
        "    atomicAdd(&calls, 1u);\n"
        "}\n"
        "}\n";
    enum { SIDE = 4, THREADS = SIDE * SIDE * SIDE, BLOCKS = 2 * 3 * 2 };
    struct {
        int first;
        float second;
    } p = {100, 0.25f};
    float v[4] = {1, 2, 3, 4};
    uint32_t size[3] = {SIDE, SIDE, SIDE};
    int pairs[4] = {1, 2, 3, 50};
    static float seen[BLOCKS * THREADS];
    tgpu_module m = compiled(source, NULL);
    tgpu_kernel k = kernel_in(m, "all");
    void *out = on_device(NULL, sizeof seen), *dpairs = on_device(pairs, sizeof pairs), *calls = NULL;
    unsigned called = 0;
    uint64_t bytes = 0;
    tgpu_launch_config c = shape(2, 3, 2, SIDE, SIDE, SIDE);
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&out, &p, v, size, &dpairs)));
    to_host(seen, out, sizeof seen);
    for (int i = 0; i < BLOCKS * THREADS; i++) {
        int x = i % SIDE, y = i / SIDE % SIDE;
        float sum = 0;
        for (int j = 0; j < SIDE; j++) sum += (float)(x + y + j) * 2 + 5;
        sum += i % 3 == 0 ? 10 : i % 3 == 1 ? 50 : 30;
        sum += 100.25f + 5 + 1004 + 0.25f + 50 + 7 + SIDE;
        if (seen[i] != sum) FAIL("[%d] is %g, must be %g", i, (double)seen[i], (double)sum);
    }
    CHECK_OK(tgpu_module_global_get(m, device_now(), "calls", &calls, &bytes));
    to_host(&called, calls, sizeof called);
    CHECK_EQ(called, BLOCKS * THREADS);
    CHECK_OK(tgpu_free(out));
    CHECK_OK(tgpu_free(dpairs));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

static void atomics_of_every_type_lose_nothing(void) {
    static const char source[] =
        "extern \"C\" __global__ void add(int *i, unsigned *u, unsigned long long *l, float *f, double *d) {\n"
        "    atomicAdd(i, -1); atomicAdd(u, 2u); atomicAdd(l, 1ull << 33); atomicAdd(f, 0.5f); atomicAdd(d, 0.25);\n"
        "    int me = (int)(blockIdx.x * blockDim.x + threadIdx.x);\n"
        "    atomicMax(i + 1, me); atomicMin(i + 2, -me); atomicSub(i + 3, 1); atomicExch(i + 4, 9);\n"
        "    atomicOr(u + 1, 1u << me % 32); atomicAnd(u + 2, ~(1u << me % 32)); atomicXor(u + 3, 1u << me % 32);\n"
        "    atomicInc(u + 4, 6u); atomicDec(u + 5, 6u);\n"
        "    for (int old = i[5], seen; (seen = atomicCAS(i + 5, old, old + 3)) != old;) old = seen;\n"
        "    atomicMax(l + 1, (unsigned long long)me << 40);\n"
        "}\n";
    enum { BLOCKS = 50, THREADS = 64, N = BLOCKS * THREADS };
    int i[6] = {0};
    unsigned u[6] = {0, 0, ~0u, 0, 0, 0};
    unsigned long long l[2] = {0};
    float f = 0;
    double d = 0;
    tgpu_module m = compiled(source, NULL);
    tgpu_kernel k = kernel_in(m, "add");
    void *di = on_device(i, sizeof i), *du = on_device(u, sizeof u), *dl = on_device(l, sizeof l), *df = on_device(&f, sizeof f),
         *dd = on_device(&d, sizeof d);
    tgpu_launch_config c = shape(BLOCKS, 1, 1, THREADS, 1, 1);
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&di, &du, &dl, &df, &dd)));
    to_host(i, di, sizeof i), to_host(u, du, sizeof u), to_host(l, dl, sizeof l), to_host(&f, df, sizeof f), to_host(&d, dd, sizeof d);
    CHECK_EQ(i[0], -N), CHECK_EQ(i[1], N - 1), CHECK_EQ(i[2], 1 - N), CHECK_EQ(i[3], -N), CHECK_EQ(i[4], 9), CHECK_EQ(i[5], 3 * N);
    CHECK_EQ(u[0], 2 * N), CHECK_EQ(u[1], ~0u), CHECK_EQ(u[2], 0), CHECK_EQ(u[3], N / 32 % 2 ? ~0u : 0);
    CHECK_EQ(u[4], N % 7), CHECK_EQ(u[5], (7 - N % 7) % 7); /* from 0 up to 6 and around; from 0 down from 6 */
    CHECK_EQ(l[0], (1ull << 33) * N), CHECK_EQ(l[1], (unsigned long long)(N - 1) << 40);
    CHECK(f == 0.5f * N && d == 0.25 * N);
    CHECK_OK(tgpu_free(di));
    CHECK_OK(tgpu_free(du));
    CHECK_OK(tgpu_free(dl));
    CHECK_OK(tgpu_free(df));
    CHECK_OK(tgpu_free(dd));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

static void the_usual_functions_of_mathematics_give_what_those_of_c_give(void) {
    static const char source[] =
        "extern \"C\" __global__ void compute(const double *x, double *y) {\n"
        "    double v = __ldg(x);\n"
        "    double all[] = {sqrt(v), rsqrt(v), cbrt(v), exp(v), exp2(v), expm1(v), log(v), log2(v), log10(v), log1p(v), sin(v), cos(v), tan(v),\n"
        "        asin(v), acos(v), atan(v), atan2(v, 2.0), sinh(v), cosh(v), tanh(v), pow(v, 3.5), hypot(v, 2.0), erf(v), erfc(v), tgamma(v),\n"
        "        lgamma(v), floor(v), ceil(v), trunc(v), round(v), rint(v), fabs(-v), fmin(v, 0.5), fmax(v, 0.5), fmod(5.0, v), fma(v, v, 1.0),\n"
        "        copysign(v, -1.0), sinpi(v), cospi(v), norm3d(v, 2.0, 3.0), normcdf(v)};\n"
        "    float w = (float)v, few[] = {sqrtf(w), rsqrtf(w), expf(w), __expf(w), logf(w), __logf(w), sinf(w), __sinf(w), cosf(w), powf(w, 2.5f),\n"
        "        __powf(w, 2.5f), fmaf(w, w, 1.0f), __fdividef(w, 3.0f), fminf(w, 0.5f), fabsf(-w), tanhf(w), erff(w), rhypotf(w, 2.0f)};\n"
        "    for (int i = 0; i < (int)(sizeof all / sizeof *all); i++) *y++ = all[i];\n"
        "    for (int i = 0; i < (int)(sizeof few / sizeof *few); i++) *y++ = few[i];\n"
        "    *y++ = min(3, 5) + max(2u, 7u) + abs(-4);\n"
        "    *y++ = __popc(0xf0f0u) + __clz(1) + __ffs(8) + __brev(1u << 31);\n"
        "    if (v < 0) printf(\"%f\\n\", v);\n"
        "}\n";
    const double v = 0.7, pi = acos(-1.0), w = (double)0.7f;
    const double musts[] = {sqrt(v), 1 / sqrt(v), cbrt(v), exp(v), exp2(v), expm1(v), log(v), log2(v), log10(v), log1p(v), sin(v), cos(v), tan(v),
        asin(v), acos(v), atan(v), atan2(v, 2), sinh(v), cosh(v), tanh(v), pow(v, 3.5), hypot(v, 2), erf(v), erfc(v), tgamma(v),
        lgamma(v), 0, 1, 0, 1, 1, v, 0.5, v, fmod(5, v), fma(v, v, 1),
        -v, sin(pi * v), cos(pi * v), sqrt(v * v + 13), 0.5 * erfc(-v / sqrt(2.0)),
        sqrt(w), 1 / sqrt(w), exp(w), exp(w), log(w), log(w), sin(w), sin(w), cos(w), pow(w, 2.5),
        pow(w, 2.5), w * w + 1, w / 3, 0.5, w, tanh(w), erf(w), 1 / hypot(w, 2),
        14, 8 + 31 + 4 + 1};
    enum { DOUBLES = 41, ALL = sizeof musts / sizeof *musts };
    double seen[ALL] = {0};
    tgpu_module m = compiled(source, NULL);
    tgpu_kernel k = kernel_in(m, "compute");
    void *x = on_device(&v, sizeof v), *y = on_device(NULL, sizeof seen);
    tgpu_launch_config c = shape(1, 1, 1, 1, 1, 1);
    CHECK_OK(tgpu_launch(k, &c, TGPU_ARGS(&x, &y)));
    to_host(seen, y, sizeof seen);
    for (int i = 0; i < ALL; i++) {
        double most = (i < DOUBLES ? 1e-13 : 2e-6) * fmax(1, fabs(musts[i]));
        if (!(fabs(seen[i] - musts[i]) <= most)) FAIL("[%d] is %.17g, must be %.17g to %g", i, seen[i], musts[i], most);
    }
    CHECK_OK(tgpu_free(x));
    CHECK_OK(tgpu_free(y));
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

/* A variable that the host may touch too: on host devices and those of the tests it is memory of the process. */
static void managed_variables_are_seen_by_kernel_and_host(void) {
    static const char source[] =
        "__managed__ int counter = 40;\n"
        "extern \"C\" __global__ void count() { atomicAdd(&counter, 1); }\n";
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(device_now(), &device));
    if (strcmp(device.backend, "host") != 0 && !on_shim()) return; /* not every GPU's compiler at run time knows them */
    tgpu_module m = compiled(source, NULL);
    tgpu_kernel k = kernel_in(m, "count");
    tgpu_launch_config c = shape(5, 1, 1, 20, 1, 1);
    void *counter = NULL;
    uint64_t bytes = 0;
    int seen = 0;
    CHECK_OK(tgpu_module_global_get(m, device_now(), "counter", &counter, &bytes));
    CHECK_EQ(bytes, sizeof(int));
    CHECK_EQ(*(int *)counter, 40);
    *(int *)counter = 7;
    CHECK_OK(tgpu_launch(k, &c, NULL));
    to_host(&seen, counter, sizeof seen);
    CHECK_EQ(seen, 107);
    CHECK_EQ(*(int *)counter, 107);
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_module_destroy(m));
}

struct first_launch {
    tgpu_kernel kernel;
    tgpu_stream stream;
    volatile int *x;
};

static void *launch_first(void *data) {
    struct first_launch *f = data;
    tgpu_launch_config c = shape(1, 1, 1, 1, 1, 1);
    c.stream = f->stream;
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_launch(f->kernel, &c, TGPU_ARGS(&f->x)));
    return NULL;
}

/* A launch that found its stream before that was destroyed queues on it however long the code takes to load, and the code
 * stays until the kernel has run. */
static void F15_code_stays_for_a_launch_whose_stream_was_destroyed_while_it_loaded(void) {
    static const char text[] = "extern \"C\" int usleep(unsigned);\n"
                               "extern \"C\" long read(int, void *, unsigned long), write(int, const void *, unsigned long);\n"
                               "__attribute__((constructor)) static void loaded() {\n"
                               "    char c = 0;\n"
                               "    if (write(%d, &c, 1) != 1 || read(%d, &c, 1) != 1) __builtin_trap();\n"
                               "}\n"
                               "__device__ int of_one_device; // so each has code of its own\n"
                               "extern \"C\" __global__ void spin(volatile int *x) {\n"
                               "    x[1] = 1;\n"
                               "    while (!x[0]) usleep(1000);\n"
                               "    x[2] = 1;\n"
                               "}\n";
    char source[1024], c = 0;
    int loading[2], go[2];
    struct first_launch f = {0};
    tgpu_module m = NULL;
    if (!is_host(0) || !is_host(1)) return; /* only their code has constructors */
    CHECK(pipe(loading) == 0 && pipe(go) == 0);
    snprintf(source, sizeof source, text, loading[1], go[0]);
    CHECK_EQ(write(go[1], &c, 1), 1); /* built for device 0 at once */
    CHECK_OK(tgpu_module_compile(source, NULL, &m));
    CHECK_EQ(read(loading[0], &c, 1), 1);
    f.kernel = kernel_in(m, "spin");
    CHECK_OK(tgpu_device_set(1));
    f.x = on_device(NULL, 3 * sizeof *f.x);
    CHECK_OK(tgpu_stream_create(NULL, &f.stream));
    pthread_t thread = start_thread(launch_first, &f);
    CHECK_EQ(read(loading[0], &c, 1), 1);
    CHECK_OK(tgpu_stream_destroy(f.stream));
    sleep_ms(100); /* time to take the stream apart, which must not be */
    CHECK_EQ(write(go[1], &c, 1), 1);
    join_thread(thread);
    WAIT_UNTIL(f.x[1] == 1);
    CHECK_OK(tgpu_kernel_destroy(f.kernel));
    CHECK_OK(tgpu_module_destroy(m));
    sleep_ms(100); /* the same for the code */
    f.x[0] = 1;
    CHECK_OK(tgpu_device_synchronize());
    CHECK_EQ(f.x[2], 1);
    CHECK_OK(tgpu_free((void *)f.x));
    CHECK_OK(tgpu_device_set(0));
    close(loading[0]), close(loading[1]), close(go[0]), close(go[1]);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(saxpy_gives_what_a_loop_gives);
    RUN(the_tiled_matrix_product_gives_what_loops_give);
    RUN(the_tree_reduction_gives_what_a_loop_gives);
    RUN(the_histogram_gives_what_a_loop_gives);
    RUN(the_stencil_gives_what_loops_give);
    RUN(the_mandelbrot_picture_is_what_loops_paint);
    RUN(what_host_devices_lack_is_named);
    RUN(eight_threads_compile_the_same_source_at_once);
    RUN(modules_with_one_name_differ);
    RUN(options_never_reach_a_shell);
    RUN(the_macro_for_arguments_passes_them_in_order);
    RUN(static_shared_memory_counts_at_a_launch);
    RUN(more_static_shared_memory_than_there_is_fits_no_launch);
    RUN(a_refused_launch_says_the_value_the_limit_and_the_kernel);
    RUN(a_long_log_comes_back_whole);
    RUN(templates_are_found_by_the_expressions_that_were_asked_for);
    RUN(a_huge_source_is_as_good_as_a_small_one);
    RUN(kernels_with_much_for_each_thread_give_what_they_should);
    RUN(a_source_without_anything_in_it_is_a_module_without_kernels);
    RUN(the_language_of_real_kernels_is_understood);
    RUN(atomics_of_every_type_lose_nothing);
    RUN(the_usual_functions_of_mathematics_give_what_those_of_c_give);
    RUN(managed_variables_are_seen_by_kernel_and_host);
    RUN(F15_code_stays_for_a_launch_whose_stream_was_destroyed_while_it_loaded);
    return end();
}
