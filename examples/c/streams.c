/* Streams: what is queued on one runs in order, what is queued on two may overlap, and an event makes one wait for the
 * other. Streams have a priority, and tell which one they got.
 *
 *   cc streams.c -ltaskgpu && ./a.out
 */
#include <stdio.h>
#include <stdlib.h>
#include <taskgpu.h>

#define CHECK(call) do { tgpu_status s_ = (call); tgpu_error_info i_ = TGPU_ERROR_INFO_INIT; \
    if (s_ != TGPU_OK) { tgpu_error_info_get(&i_); fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
        tgpu_status_name(s_), i_.text); exit(1); } } while (0)

enum { N = 1 << 19, STEPS = 60 };

/* x = x * factor + add, for every kind of device. */
static const char source[] =
    "extern \"C\" __global__ void step(unsigned *x, unsigned n, unsigned factor, unsigned add) {\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) x[i] = x[i] * factor + add;\n"
    "}\n";
static tgpu_kernel kernel;

static void queue_step(tgpu_stream s, void *x, uint32_t factor, uint32_t add) {
    uint32_t n = N;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    CHECK(tgpu_kernel_suggest(kernel, n, &config.grid[0], &config.block[0]));
    config.stream = s;
    CHECK(tgpu_launch(kernel, &config, TGPU_ARGS(&x, &n, &factor, &add))); /* copied: they may go away now */
}

static int expect(const char *what, void *dev, uint32_t expected) {
    static uint32_t host[N];
    uint32_t wrong = 0;
    CHECK(tgpu_memcpy(host, dev, sizeof host, NULL));
    CHECK(tgpu_synchronize()); /* the current stream, on which that copy is */
    for (uint32_t i = 0; i < N; i++) wrong += host[i] != expected;
    printf("%s: %u, expected %u, %u of %d values wrong\n", what, host[0], expected, wrong, N);
    return wrong != 0;
}

int main(void) {
    tgpu_module module;
    uint32_t expected = 1;
    void *x;
    int wrong = 0;
    CHECK(tgpu_module_compile(source, NULL, &module));
    CHECK(tgpu_kernel_get(module, "step", &kernel));
    CHECK(tgpu_malloc(N * sizeof(uint32_t), &x));

    /* Order on one stream: each step sees what the one before it wrote. */
    tgpu_stream a, b;
    CHECK(tgpu_stream_create(NULL, &a));
    CHECK(tgpu_stream_create(NULL, &b));
    CHECK(tgpu_fill(x, &expected, sizeof expected, N, a));
    for (uint32_t i = 0; i < STEPS; i++) queue_step(a, x, 3, i), expected = expected * 3 + i;
    tgpu_status now = tgpu_stream_query(a);
    printf("stream a after queueing %d steps: %s\n", STEPS, tgpu_status_name(now)); /* most likely not ready yet */
    if (now != TGPU_OK && now != TGPU_NOT_READY) CHECK(now);
    CHECK(tgpu_stream_synchronize(a));
    wrong += expect("in order on one stream", x, expected);

    /* Order between two streams: without the event, b might start before a is done. The host does not wait at all. */
    tgpu_event a_done;
    CHECK(tgpu_event_create(NULL, &a_done));
    for (uint32_t i = 0; i < STEPS; i++) queue_step(a, x, 5, i), expected = expected * 5 + i;
    CHECK(tgpu_event_record(a_done, a));
    CHECK(tgpu_stream_wait_event(b, a_done));
    for (uint32_t i = 0; i < STEPS; i++) queue_step(b, x, 7, i), expected = expected * 7 + i;
    CHECK(tgpu_stream_synchronize(b));
    wrong += expect("b after a, by an event", x, expected);

    /* The same in one call, and a stream made current: NULL as a stream means the current one. */
    queue_step(b, x, 2, 1), expected = expected * 2 + 1;
    CHECK(tgpu_stream_set(a));
    CHECK(tgpu_stream_wait_stream(NULL, b));
    queue_step(NULL, x, 2, 1), expected = expected * 2 + 1;
    wrong += expect("a after b, made current", x, expected);
    CHECK(tgpu_stream_set(NULL)); /* back to the thread's own stream */

    /* Priorities. All of low is queued before high, and yet the device turns to high whenever it has a choice. */
    static const char *const names[] = {"normal", "low", "high"};
    tgpu_stream_options options = {.struct_size = sizeof options};
    tgpu_stream low, high;
    tgpu_event begin, low_done, high_done;
    void *y;
    double low_s, high_s;
    options.priority = TGPU_PRIORITY_LOW;
    CHECK(tgpu_stream_create(&options, &low));
    options.priority = TGPU_PRIORITY_HIGH;
    CHECK(tgpu_stream_create(&options, &high));
    for (int i = 0; i < 2; i++) {
        tgpu_stream_info info = {.struct_size = sizeof info};
        CHECK(tgpu_stream_info_get(i ? high : low, &info));
        printf("stream %llu: asked for %s, got %s (the vendor's %d)\n", (unsigned long long)info.id, names[info.priority],
               names[info.effective_priority], info.native_priority);
    }
    CHECK(tgpu_event_create(NULL, &begin));
    CHECK(tgpu_event_create(NULL, &low_done));
    CHECK(tgpu_event_create(NULL, &high_done));
    CHECK(tgpu_malloc(N * sizeof(uint32_t), &y));
    CHECK(tgpu_memset(y, 0, N * sizeof(uint32_t), high));
    CHECK(tgpu_event_record(begin, high));
    for (uint32_t i = 0; i < STEPS; i++) queue_step(low, x, 3, i), expected = expected * 3 + i;
    CHECK(tgpu_event_record(low_done, low));
    for (uint32_t i = 0; i < STEPS; i++) queue_step(high, y, 1, 1);
    CHECK(tgpu_event_record(high_done, high));
    CHECK(tgpu_event_synchronize(low_done));
    CHECK(tgpu_event_synchronize(high_done));
    CHECK(tgpu_event_elapsed(begin, low_done, &low_s));
    CHECK(tgpu_event_elapsed(begin, high_done, &high_s));
    printf("%d steps each: low, queued first, is done after %.1f ms; high after %.1f ms\n", STEPS, low_s * 1e3, high_s * 1e3);
    wrong += expect("low", x, expected);
    wrong += expect("high", y, STEPS);

    CHECK(tgpu_event_destroy(a_done));
    CHECK(tgpu_event_destroy(begin));
    CHECK(tgpu_event_destroy(low_done));
    CHECK(tgpu_event_destroy(high_done));
    CHECK(tgpu_stream_destroy(a));
    CHECK(tgpu_stream_destroy(b));
    CHECK(tgpu_stream_destroy(low));
    CHECK(tgpu_stream_destroy(high));
    CHECK(tgpu_free(x));
    CHECK(tgpu_free(y));
    CHECK(tgpu_kernel_destroy(kernel));
    CHECK(tgpu_module_destroy(module));
    return wrong != 0;
}
