/* What must hold with several devices in one process. Needs two devices or more; on NVIDIA GPUs it looks at the driver as
 * well. With --measure: the two figures that need two GPUs. Built and run by multi.sh. */
#include "../../c-tests/check.h"
#include <dlfcn.h>
#include <pthread.h>

static const char source[] =
    "extern \"C\" __global__ void add(unsigned *p, unsigned by, unsigned n) {\n"
    "    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    if (i < n) p[i] += by;\n"
    "}\n"
    "extern \"C\" __global__ void nothing() {}\n";

enum { N = 1000, HOPS = 20, TASKS = 100, MOST = 64 };

static int32_t devices;
static tgpu_module module;
static tgpu_kernel add;

static void launch_add(tgpu_kernel k, tgpu_stream s, unsigned *p, unsigned by) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    unsigned n = N;
    config.grid[0] = (N + 127) / 128, config.block[0] = 128, config.stream = s;
    CHECK_OK(tgpu_launch(k, &config, (void *[]){&p, &by, &n}));
}

static int32_t device_of(const void *p) {
    tgpu_pointer_info info = TGPU_POINTER_INFO_INIT;
    CHECK_OK(tgpu_pointer_info_get(p, &info));
    return info.device;
}

/* Zeros on the current device, in the order of the current stream. */
static unsigned *zeros(void) {
    static const unsigned none[N];
    void *p = NULL;
    CHECK_OK(tgpu_malloc(sizeof none, &p));
    CHECK_OK(tgpu_memcpy(p, none, sizeof none, NULL));
    CHECK_EQ(device_of(p), device_now());
    return p;
}

/* All numbers of `p` are `must`, once the current stream has got there. */
static void check_all(const unsigned *p, unsigned must) {
    unsigned back[N];
    CHECK_OK(tgpu_memcpy(back, p, sizeof back, NULL));
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < N; i++) CHECK_EQ(back[i], must);
}

static void *work_on(void *d) {
    CHECK_OK(tgpu_device_set((int32_t)(intptr_t)d));
    unsigned *p = zeros();
    for (unsigned i = 1; i <= 100; i++) launch_add(add, NULL, p, i);
    check_all(p, 5050);
    CHECK_EQ(device_now(), (int32_t)(intptr_t)d);
    CHECK_OK(tgpu_free(p));
    return NULL;
}

static void one_thread_for_each_device(void) {
    pthread_t thread[MOST];
    for (intptr_t d = 0; d < devices; d++) thread[d] = start_thread(work_on, (void *)d);
    for (int32_t d = 0; d < devices; d++) join_thread(thread[d]);
}

static void one_task_for_each_device_on_one_thread(void) {
    tgpu_task task[MOST];
    unsigned *p[MOST];
    for (int32_t d = 0; d < devices; d++) {
        CHECK_OK(tgpu_task_create(NULL, &task[d]));
        CHECK_OK(tgpu_task_swap(task[d], NULL));
        CHECK_OK(tgpu_device_set(d));
        p[d] = zeros();
    }
    for (unsigned i = 1; i <= 100; i++)
        for (int32_t d = 0; d < devices; d++) {
            CHECK_OK(tgpu_task_swap(task[d], NULL));
            CHECK_EQ(device_now(), d);
            launch_add(add, NULL, p[d], i);
        }
    for (int32_t d = 0; d < devices; d++) {
        CHECK_OK(tgpu_task_swap(task[d], NULL));
        check_all(p[d], 5050);
        CHECK_OK(tgpu_free(p[d]));
        CHECK_OK(tgpu_task_destroy(task[d]));
    }
    CHECK_OK(tgpu_task_swap(NULL, NULL));
}

/* Tasks that any thread may take up next. */
static struct hopper {
    tgpu_task task;
    unsigned *p[MOST];
    unsigned hops;
} hoppers[TASKS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int waiting[TASKS], count_waiting, hops_left;

static void *hop(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    for (;;) {
        int mine = -1;
        pthread_mutex_lock(&lock);
        if (hops_left == 0) {
            pthread_mutex_unlock(&lock);
            return NULL;
        }
        if (count_waiting) {
            random = random * 1664525 + 1013904223;
            int at = (int)((random >> 8) % (unsigned)count_waiting);
            mine = waiting[at], waiting[at] = waiting[--count_waiting];
        }
        pthread_mutex_unlock(&lock);
        if (mine < 0) continue;
        struct hopper *h = &hoppers[mine];
        CHECK_OK(tgpu_task_swap(h->task, NULL));
        int32_t here = (int32_t)((unsigned)mine + h->hops) % devices, next = (here + 1) % devices;
        CHECK_EQ(device_now(), here);
        if (!h->p[here]) h->p[here] = zeros();
        launch_add(add, NULL, h->p[here], h->hops + 1);
        CHECK_OK(tgpu_device_set(next));
        CHECK_OK(tgpu_task_swap(NULL, NULL));
        pthread_mutex_lock(&lock);
        h->hops++, hops_left--;
        if (h->hops < HOPS) waiting[count_waiting++] = mine;
        pthread_mutex_unlock(&lock);
    }
}

static void a_hundred_tasks_hop_between_devices_and_threads(void) {
    pthread_t thread[8];
    hops_left = TASKS * HOPS;
    for (int t = 0; t < TASKS; t++) {
        CHECK_OK(tgpu_task_create(NULL, &hoppers[t].task));
        CHECK_OK(tgpu_task_swap(hoppers[t].task, NULL));
        CHECK_OK(tgpu_device_set(t % devices));
        CHECK_OK(tgpu_task_swap(NULL, NULL));
        waiting[count_waiting++] = t;
    }
    for (uintptr_t i = 0; i < 8; i++) thread[i] = start_thread(hop, (void *)(i + 1));
    for (int i = 0; i < 8; i++) join_thread(thread[i]);
    for (int t = 0; t < TASKS; t++) {
        CHECK_OK(tgpu_task_swap(hoppers[t].task, NULL));
        for (int32_t d = 0; d < devices; d++) {
            unsigned must = 0;
            for (unsigned k = 0; k < HOPS; k++)
                if ((int32_t)((unsigned)t + k) % devices == d) must += k + 1;
            if (!hoppers[t].p[d]) continue;
            CHECK_OK(tgpu_device_set(d));
            check_all(hoppers[t].p[d], must);
            CHECK_OK(tgpu_free(hoppers[t].p[d]));
        }
        CHECK_OK(tgpu_task_destroy(hoppers[t].task));
    }
    CHECK_OK(tgpu_task_swap(NULL, NULL));
}

static void scopes_put_back_what_was_before(void) {
    tgpu_stream mine = NULL, there = NULL, now = NULL;
    tgpu_scope outer, inner;
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_get(&mine));
    CHECK_OK(tgpu_scope_enter_device(1, &outer));
    CHECK_EQ(device_now(), 1);
    CHECK_OK(tgpu_stream_create(NULL, &there));
    CHECK_OK(tgpu_scope_leave(outer));
    CHECK_OK(tgpu_scope_enter_stream(there, &outer));
    CHECK_EQ(device_now(), 1);
    CHECK_OK(tgpu_stream_get(&now));
    CHECK_SAME(now, there);
    unsigned *p = zeros();
    CHECK_OK(tgpu_scope_enter_device(0, &inner));
    launch_add(add, there, p, 7); /* on the stream's device, whatever is current */
    CHECK_EQ(device_now(), 0);
    CHECK_OK(tgpu_scope_leave(inner));
    check_all(p, 7);
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_scope_leave(outer));
    CHECK_EQ(device_now(), 0);
    CHECK_OK(tgpu_stream_get(&now));
    CHECK_SAME(now, mine);
    CHECK_OK(tgpu_stream_destroy(there));
}

static pthread_barrier_t both;
static tgpu_kernel fresh;

static void *first_use(void *d) {
    CHECK_OK(tgpu_device_set((int32_t)(intptr_t)d));
    unsigned *p = zeros();
    pthread_barrier_wait(&both);
    launch_add(fresh, NULL, p, 3);
    check_all(p, 3);
    CHECK_OK(tgpu_free(p));
    return NULL;
}

static void a_module_is_first_used_on_all_devices_at_once(void) {
    pthread_t thread[MOST];
    for (int round = 0; round < 5; round++) {
        char text[sizeof source + 32];
        tgpu_module m = NULL;
        /* A source of its own, so that no cache has it. */
        snprintf(text, sizeof text, "// %d %d\n%s", (int)getpid(), round, source);
        CHECK_OK(tgpu_module_compile(text, NULL, &m));
        CHECK_OK(tgpu_kernel_get(m, "add", &fresh));
        CHECK(pthread_barrier_init(&both, NULL, (unsigned)devices) == 0);
        for (intptr_t d = 0; d < devices; d++) thread[d] = start_thread(first_use, (void *)d);
        for (int32_t d = 0; d < devices; d++) join_thread(thread[d]);
        pthread_barrier_destroy(&both);
        CHECK_OK(tgpu_kernel_destroy(fresh));
        CHECK_OK(tgpu_module_destroy(m));
    }
}

static void copy_there_and_back(size_t bytes) {
    unsigned char *out = malloc(bytes), *back = malloc(bytes);
    void *a = NULL, *b = NULL;
    for (size_t i = 0; i < bytes; i++) out[i] = (unsigned char)(i * 31 + 7);
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_malloc(bytes, &b));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_malloc(bytes, &a));
    CHECK_OK(tgpu_memcpy(a, out, bytes, NULL));
    CHECK_OK(tgpu_memcpy(b, a, bytes, NULL));
    CHECK_OK(tgpu_memcpy(back, b, bytes, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK(memcmp(out, back, bytes) == 0);
    CHECK_OK(tgpu_free(b)); /* with the other device current */
    CHECK_OK(tgpu_free(a));
    CHECK_EQ(device_now(), 0);
    free(out), free(back);
}

static void copies_between_devices_arrive_with_and_without_peer_access(void) {
    int32_t can = 0;
    for (size_t bytes = 1; bytes <= 64u << 20; bytes *= 64) copy_there_and_back(bytes);
    CHECK_OK(tgpu_device_can_access_peer(0, 1, &can));
    if (!can) return;
    CHECK_OK(tgpu_device_enable_peer(0, 1));
    CHECK_OK(tgpu_device_enable_peer(1, 0));
    CHECK_OK(tgpu_device_enable_peer(0, 1)); /* F35 */
    for (size_t bytes = 1; bytes <= 64u << 20; bytes *= 64) copy_there_and_back(bytes);
}

static void *free_it(void *p) {
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_free_async(p, NULL)); /* behind a stream of device 0, memory of device 1 */
    CHECK_OK(tgpu_synchronize());
    return NULL;
}

static void F33_memory_is_freed_from_the_wrong_thread_and_device(void) {
    void *p = NULL;
    for (int i = 0; i < 50; i++) {
        CHECK_OK(tgpu_device_set(1));
        CHECK_OK(i % 2 ? tgpu_malloc(1 << 20, &p) : tgpu_malloc_async(1 << 20, NULL, &p));
        CHECK_OK(tgpu_synchronize());
        on_a_thread(free_it, p);
    }
    CHECK_OK(tgpu_device_set(0));
}

/* ---- what the driver says */

static void *driver(const char *name) {
    static void *cuda;
    if (!cuda) cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    return cuda ? dlsym(cuda, name) : NULL;
}

static int on_nvidia(void) {
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(0, &info));
    return strcmp(info.backend, "cuda") == 0;
}

static int has_context(int32_t d) {
    uint64_t native = 0;
    unsigned flags = 0;
    int active = -1;
    int (*state)(int, unsigned *, int *);
    *(void **)&state = driver("cuDevicePrimaryCtxGetState");
    CHECK(state != NULL);
    CHECK_OK(tgpu_device_native(d, &native));
    CHECK_EQ(state((int)native, &flags, &active), 0);
    return active;
}

static void F05_no_context_where_only_the_first_device_is_used(void) {
    if (!on_nvidia()) return;
    unsigned *p = zeros();
    tgpu_module m = NULL;
    tgpu_kernel k = NULL;
    CHECK_OK(tgpu_module_compile(source, NULL, &m));
    CHECK_OK(tgpu_kernel_get(m, "add", &k));
    launch_add(k, NULL, p, 1);
    check_all(p, 1);
    CHECK_OK(tgpu_free(p));
    CHECK_EQ(has_context(0), 1);
    for (int32_t d = 1; d < devices; d++) CHECK_EQ(has_context(d), 0);
}

static tgpu_device_info info_of(int32_t d) {
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(d, &info));
    return info;
}

static void check_first_is(const char *variable) {
    /* The UUID that the parent saw under the index that is first here. */
    tgpu_device_info first = info_of(0);
    const char *must = getenv("MULTI_FIRST");
    char is[33] = "";
    for (int i = 0; i < 16; i++) snprintf(is + 2 * i, 3, "%02x", first.uuid[i]);
    if (!must || strcmp(is, must) != 0) FAIL("%s: device 0 is %s, must be %s", variable, is, must ? must : "told");
}

static void only_the_second(void) {
    int32_t count = 0;
    CHECK_OK(tgpu_device_count(&count));
    CHECK_EQ(count, 1);
    check_first_is("visible");
}

static void the_second_first(void) {
    int32_t count = 0;
    CHECK_OK(tgpu_device_count(&count));
    CHECK_EQ(count, 2);
    check_first_is("visible");
}

static void devices_are_picked_by_index_and_uuid(void) {
    tgpu_device_info second = info_of(1);
    char uuid[64] = "", first[64] = "MULTI_FIRST=", variable[160];
    for (int i = 0; i < 16; i++) snprintf(uuid + 2 * i, 3, "%02x", second.uuid[i]);
    strcat(first, uuid);
    CHECK_CHILD(only_the_second, "TASKGPU_VISIBLE_DEVICES=1", first);
    CHECK_CHILD(the_second_first, "TASKGPU_VISIBLE_DEVICES=1,0", first);
    snprintf(variable, sizeof variable, "TASKGPU_VISIBLE_DEVICES=GPU-%s", uuid);
    CHECK_CHILD(only_the_second, variable, first);
    if (on_nvidia()) CHECK_CHILD(only_the_second, "CUDA_VISIBLE_DEVICES=1", first);
}

/* ---- figures */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { REPETITIONS = 15, COPIES = 8 };
static const uint64_t COPY = 256u << 20;

/* Bytes in a second from device 0 to device 1: ours, or the driver's on our stream. */
static double copy_rate(void *to, const void *from, int raw) {
    double start = now();
    if (raw) {
        int (*copy)(uint64_t, void *, uint64_t, void *, size_t, void *), (*context)(void **, int);
        uint64_t native = 0;
        void *contexts[2] = {NULL, NULL}, *stream = NULL;
        tgpu_stream s = NULL;
        *(void **)&copy = driver("cuMemcpyPeerAsync");
        *(void **)&context = driver("cuDevicePrimaryCtxRetain");
        for (int32_t d = 0; d < 2; d++) {
            CHECK_OK(tgpu_device_native(d, &native));
            CHECK_EQ(context(&contexts[d], (int)native), 0);
        }
        CHECK_OK(tgpu_stream_get(&s));
        CHECK_OK(tgpu_stream_native(s, &stream));
        start = now();
        for (int i = 0; i < COPIES; i++)
            CHECK_EQ(copy((uint64_t)(uintptr_t)to, contexts[1], (uint64_t)(uintptr_t)from, contexts[0], COPY, stream), 0);
    } else
        for (int i = 0; i < COPIES; i++) CHECK_OK(tgpu_memcpy(to, from, COPY, NULL));
    CHECK_OK(tgpu_synchronize());
    return (double)COPY * COPIES / (now() - start);
}

static void measure_copies(const char *state) {
    void *from = NULL, *to = NULL;
    double rate[2][REPETITIONS];
    int nvidia = on_nvidia();
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_malloc(COPY, &to));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_malloc(COPY, &from));
    for (int r = -1; r < REPETITIONS; r++)
        for (int raw = 0; raw < 2; raw++) {
            double is = copy_rate(to, from, raw && nvidia);
            if (r >= 0) rate[raw][r] = is;
        }
    for (int raw = 0; raw < 2; raw++) qsort(rate[raw], REPETITIONS, sizeof(double), compare);
    double ours = rate[0][REPETITIONS / 2], theirs = rate[1][REPETITIONS / 2];
    printf("| `tgpu_memcpy` between two devices, %s | %.1f (%.1f .. %.1f) GB/s | %s %.1f (%.1f .. %.1f) | %.3f | 0.95 | %s |\n", state, ours / 1e9,
        rate[0][0] / 1e9, rate[0][REPETITIONS - 1] / 1e9, nvidia ? "cuMemcpyPeerAsync" : "the same", theirs / 1e9, rate[1][0] / 1e9, rate[1][REPETITIONS - 1] / 1e9, ours / theirs,
        ours >= 0.95 * theirs ? "ok" : "**MISSED**");
    CHECK_OK(tgpu_free(from));
    CHECK_OK(tgpu_free(to));
}

enum { LAUNCHES = 20000 };
static tgpu_kernel nothing;

static void *launch_many(void *d) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    CHECK_OK(tgpu_device_set((int32_t)(intptr_t)d));
    CHECK_OK(tgpu_launch(nothing, &config, NULL));
    CHECK_OK(tgpu_synchronize());
    pthread_barrier_wait(&both);
    pthread_barrier_wait(&both);
    for (int i = 0; i < LAUNCHES; i++) {
        CHECK_OK(tgpu_launch(nothing, &config, NULL));
        if (i % 1000 == 999) CHECK_OK(tgpu_synchronize());
    }
    return NULL;
}

static double launch_rate(int32_t on) {
    pthread_t thread[MOST];
    CHECK(pthread_barrier_init(&both, NULL, (unsigned)on + 1) == 0);
    for (intptr_t d = 0; d < on; d++) thread[d] = start_thread(launch_many, (void *)d);
    /* All are ready; none starts before the clock is read. */
    pthread_barrier_wait(&both);
    double start = now();
    pthread_barrier_wait(&both);
    for (int32_t d = 0; d < on; d++) join_thread(thread[d]);
    double rate = (double)LAUNCHES * on / (now() - start);
    pthread_barrier_destroy(&both);
    return rate;
}

static void measure_launches(void) {
    double one[REPETITIONS], all[REPETITIONS];
    CHECK_OK(tgpu_kernel_get(module, "nothing", &nothing));
    for (int r = 0; r < REPETITIONS; r++) one[r] = launch_rate(1), all[r] = launch_rate(devices);
    qsort(one, REPETITIONS, sizeof(double), compare), qsort(all, REPETITIONS, sizeof(double), compare);
    printf("| launches a second, %d devices driven at once | %.3f (%.3f .. %.3f) M/s | one device %.3f (%.3f .. %.3f) | %.3f | | |\n", devices,
        all[REPETITIONS / 2] / 1e6, all[0] / 1e6, all[REPETITIONS - 1] / 1e6, one[REPETITIONS / 2] / 1e6, one[0] / 1e6, one[REPETITIONS - 1] / 1e6,
        all[REPETITIONS / 2] / one[REPETITIONS / 2]);
}

int main(int argc, char **argv) {
    int measure = argc > 1 && strcmp(argv[1], "--measure") == 0;
    begin(measure ? 1 : argc, argv);
    AS_CHILD(only_the_second);
    AS_CHILD(the_second_first);
    CHECK_OK(tgpu_device_count(&devices));
    if (devices < 2) {
        printf("there is %d device; these tests need two of them\n", devices);
        return 77;
    }
    if (devices > MOST) devices = MOST;
    if (!measure) RUN_IN_CHILD(F05_no_context_where_only_the_first_device_is_used, AS_IT_IS);
    CHECK_OK(tgpu_module_compile(source, NULL, &module));
    CHECK_OK(tgpu_kernel_get(module, "add", &add));
    if (measure) {
        int32_t can = 0;
        measure_copies("as they are found");
        CHECK_OK(tgpu_device_can_access_peer(0, 1, &can));
        if (can) {
            CHECK_OK(tgpu_device_enable_peer(0, 1));
            CHECK_OK(tgpu_device_enable_peer(1, 0));
            measure_copies("with peer access");
        }
        measure_launches();
        return 0;
    }
    RUN(one_thread_for_each_device);
    RUN(one_task_for_each_device_on_one_thread);
    RUN(a_hundred_tasks_hop_between_devices_and_threads);
    RUN(scopes_put_back_what_was_before);
    RUN(a_module_is_first_used_on_all_devices_at_once);
    RUN(copies_between_devices_arrive_with_and_without_peer_access);
    RUN(F33_memory_is_freed_from_the_wrong_thread_and_device);
    RUN(devices_are_picked_by_index_and_uuid);
    CHECK_OK(tgpu_kernel_destroy(add));
    CHECK_OK(tgpu_module_destroy(module));
    return end();
}
