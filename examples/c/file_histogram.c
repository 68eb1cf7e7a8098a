/* Counts the bytes of a file on all devices: each gets a slice of the file, a thread and two streams, and works through
 * its slice in pieces. While one piece is counted, the next one is copied and the one after that is read from the disk.
 *
 *   cc file_histogram.c -ltaskgpu -lpthread && TASKGPU_HOST_DEVICES=4 ./a.out FILE
 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <taskgpu.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call) do { tgpu_status s_ = (call); tgpu_error_info i_ = TGPU_ERROR_INFO_INIT; \
    if (s_ != TGPU_OK) { tgpu_error_info_get(&i_); fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
        tgpu_status_name(s_), i_.text); exit(1); } } while (0)

enum { BLOCKS = 16, THREADS = 256, BINS = 256, MIN_PIECE = 16 << 10, MAX_PIECE = 4 << 20 };

/* Each block counts its part of the piece in its shared memory, then adds that to the totals of the device. */
static const char source[] =
    "extern \"C\" __global__ void count_bytes(const unsigned char *bytes, unsigned long long n, unsigned long long *totals) {\n"
    "    __shared__ unsigned mine[256];\n"
    "    for (unsigned v = threadIdx.x; v < 256; v += blockDim.x) mine[v] = 0;\n"
    "    __syncthreads();\n"
    "    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    for (; i < n; i += (unsigned long long)gridDim.x * blockDim.x) atomicAdd(&mine[bytes[i]], 1u);\n"
    "    __syncthreads();\n"
    "    for (unsigned v = threadIdx.x; v < 256; v += blockDim.x)\n"
    "        if (mine[v] != 0) atomicAdd(&totals[v], (unsigned long long)mine[v]);\n"
    "}\n";

typedef struct { /* what one thread is told, and what it answers */
    pthread_t thread;
    tgpu_device device;
    uint64_t offset, bytes;
    uint64_t counts[BINS];
    double busy;     /* seconds from the device's first to its last event */
    double finished; /* when it was done */
} slice;

static tgpu_kernel kernel; /* one for all devices */
static const char *path;
static int file;
static pthread_barrier_t all_ready;
static atomic_uint_fast64_t bytes_copied; /* for the progress line */
static atomic_int slices_done;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void read_fully(unsigned char *to, uint64_t bytes, uint64_t offset) {
    while (bytes > 0) {
        ssize_t got = pread(file, to, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            fprintf(stderr, "file_histogram: %s: %s at byte %" PRIu64 "\n", path,
                    got < 0 ? strerror(errno) : "the file became shorter while it was read", offset);
            exit(1);
        }
        to += got, offset += (uint64_t)got, bytes -= (uint64_t)got;
    }
}

static void *count_slice(void *data) {
    slice *w = data;
    uint64_t piece = w->bytes / 8 < MIN_PIECE ? MIN_PIECE : w->bytes / 8 > MAX_PIECE ? MAX_PIECE : w->bytes / 8;
    tgpu_stream copies, counting;
    tgpu_event start, end, copied[2], counted[2];
    void *pinned[2], *on_device[2], *totals;

    CHECK(tgpu_device_set(w->device)); /* for this thread; what follows is on this device */
    CHECK(tgpu_stream_create(NULL, &copies));
    CHECK(tgpu_stream_create(NULL, &counting));
    CHECK(tgpu_event_create(NULL, &start));
    CHECK(tgpu_event_create(NULL, &end));
    CHECK(tgpu_malloc(BINS * sizeof(uint64_t), &totals));
    for (int i = 0; i < 2; i++) {
        tgpu_event_options no_timing = {.struct_size = sizeof no_timing, .flags = TGPU_EVENT_DISABLE_TIMING};
        CHECK(tgpu_event_create(&no_timing, &copied[i]));
        CHECK(tgpu_event_create(&no_timing, &counted[i]));
        CHECK(tgpu_host_malloc(piece, &pinned[i]));
        CHECK(tgpu_malloc(piece, &on_device[i]));
    }

    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    config.grid[0] = BLOCKS;
    config.block[0] = THREADS;
    config.stream = counting;
    pthread_barrier_wait(&all_ready);

    CHECK(tgpu_event_record(start, counting));
    CHECK(tgpu_memset(totals, 0, BINS * sizeof(uint64_t), counting));
    uint64_t n, in_flight[2] = {0, 0};
    int i = 0; /* which of the two buffers */
    for (uint64_t at = 0; at < w->bytes; at += n, i = !i) {
        n = w->bytes - at < piece ? w->bytes - at : piece;
        CHECK(tgpu_event_synchronize(copied[i])); /* the pinned buffer is free again (never recorded: at once) */
        atomic_fetch_add(&bytes_copied, in_flight[i]);
        read_fully(pinned[i], n, w->offset + at);
        CHECK(tgpu_stream_wait_event(copies, counted[i])); /* and so is the one on the device */
        CHECK(tgpu_memcpy(on_device[i], pinned[i], n, copies));
        CHECK(tgpu_event_record(copied[i], copies));
        CHECK(tgpu_stream_wait_event(counting, copied[i]));
        CHECK(tgpu_launch(kernel, &config, TGPU_ARGS(&on_device[i], &n, &totals)));
        CHECK(tgpu_event_record(counted[i], counting));
        in_flight[i] = n;
    }
    CHECK(tgpu_memcpy(w->counts, totals, BINS * sizeof(uint64_t), counting));
    CHECK(tgpu_event_record(end, counting));
    CHECK(tgpu_stream_synchronize(counting));
    w->finished = now();
    atomic_fetch_add(&bytes_copied, in_flight[0] + in_flight[1]);
    CHECK(tgpu_event_elapsed(start, end, &w->busy));

    for (i = 0; i < 2; i++) {
        CHECK(tgpu_free(on_device[i]));
        CHECK(tgpu_host_free(pinned[i]));
        CHECK(tgpu_event_destroy(counted[i]));
        CHECK(tgpu_event_destroy(copied[i]));
    }
    CHECK(tgpu_free(totals));
    CHECK(tgpu_event_destroy(start));
    CHECK(tgpu_event_destroy(end));
    CHECK(tgpu_stream_destroy(copies));
    CHECK(tgpu_stream_destroy(counting));
    atomic_fetch_add(&slices_done, 1);
    return NULL;
}

/* The same with a plain loop, to check the devices' counts against. */
static void count_plainly(uint64_t bytes, uint64_t counts[BINS]) {
    unsigned char *buffer = malloc(MAX_PIECE);
    if (!buffer) perror("file_histogram"), exit(1);
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < MAX_PIECE ? bytes - at : MAX_PIECE;
        read_fully(buffer, n, at);
        for (uint64_t i = 0; i < n; i++) counts[buffer[i]]++;
    }
    free(buffer);
}

int main(int argc, char **argv) {
    uint64_t counts[BINS] = {0}, expected[BINS] = {0}, bytes, counted = 0;
    struct stat st;
    tgpu_module module;
    int32_t devices;
    int wrong = 0;
    double busy = 0;

    if (argc != 2) return fprintf(stderr, "usage: file_histogram FILE\n"), 2;
    path = argv[1];
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &st) != 0) return fprintf(stderr, "file_histogram: %s: %s\n", path, strerror(errno)), 1;
    if (!S_ISREG(st.st_mode)) return fprintf(stderr, "file_histogram: %s: not a regular file\n", path), 1;
    bytes = (uint64_t)st.st_size;

    CHECK(tgpu_device_count(&devices));
    CHECK(tgpu_module_compile(source, NULL, &module));
    CHECK(tgpu_kernel_get(module, "count_bytes", &kernel));
    for (int32_t d = 0; d < devices; d++) CHECK(tgpu_module_prepare(module, d)); /* before anybody looks at the clock */
    slice *all = calloc((size_t)devices, sizeof *all);
    if (!all || pthread_barrier_init(&all_ready, NULL, (unsigned)devices + 1)) return perror("file_histogram"), 1;
    uint64_t share = bytes / (uint64_t)devices, rest = bytes % (uint64_t)devices, offset = 0;
    for (int32_t d = 0; d < devices; d++) { /* a file smaller than the number of devices: some slices are empty */
        all[d].device = d;
        all[d].offset = offset;
        all[d].bytes = share + ((uint64_t)d < rest);
        offset += all[d].bytes;
        int failed = pthread_create(&all[d].thread, NULL, count_slice, &all[d]);
        if (failed) return fprintf(stderr, "file_histogram: pthread_create: %s\n", strerror(failed)), 1;
    }
    double begin = now(), end = begin;
    pthread_barrier_wait(&all_ready);
    if (isatty(STDERR_FILENO)) {
        while (atomic_load(&slices_done) < devices) {
            struct timespec tenth = {0, 100000000};
            nanosleep(&tenth, NULL);
            double part = bytes ? (double)atomic_load(&bytes_copied) / (double)bytes : 1.0;
            fprintf(stderr, "\r%3.0f%% of %.1f MiB, %.1f s\033[K", part * 100, (double)bytes / (1 << 20), now() - begin);
        }
        fprintf(stderr, "\r\033[K");
    }
    for (int32_t d = 0; d < devices; d++) {
        pthread_join(all[d].thread, NULL);
        if (all[d].finished > end) end = all[d].finished;
    }
    double wall = end - begin;

    begin = now();
    count_plainly(bytes, expected);
    double plain = now() - begin + 1e-9;
    for (int32_t d = 0; d < devices; d++) {
        uint64_t sum = 0;
        for (int v = 0; v < BINS; v++) counts[v] += all[d].counts[v], sum += all[d].counts[v];
        printf("device %d: bytes %" PRIu64 " to %" PRIu64 ", counted %" PRIu64 ", busy %.1f ms\n", d, all[d].offset,
               all[d].offset + all[d].bytes, sum, all[d].busy * 1e3);
        counted += sum, busy += all[d].busy;
    }
    int top = 0;
    for (int v = 0; v < BINS; v++) {
        if (counts[v] > counts[top]) top = v;
        if (counts[v] != expected[v]) {
            fprintf(stderr, "byte 0x%02x: counted %" PRIu64 ", the plain loop %" PRIu64 "\n", (unsigned)v, counts[v], expected[v]);
            wrong++;
        }
    }
    printf("%s: %" PRIu64 " bytes, counted %" PRIu64 ", %d of %d counts wrong", path, bytes, counted, wrong, BINS);
    if (bytes) printf("; most frequent: 0x%02x, %.1f%%", (unsigned)top, 100.0 * (double)counts[top] / (double)bytes);
    printf("\n%.1f MB/s (reading included; a plain loop after it: %.1f MB/s); overlap: %.1f ms busy in %.1f ms of wall time: %.2f of %d "
           "devices at work at once\n", (double)bytes / wall * 1e-6, (double)bytes / plain * 1e-6, busy * 1e3, wall * 1e3,
           busy / wall, devices);
    CHECK(tgpu_kernel_destroy(kernel));
    CHECK(tgpu_module_destroy(module));
    pthread_barrier_destroy(&all_ready);
    free(all);
    close(file);
    return wrong != 0;
}
