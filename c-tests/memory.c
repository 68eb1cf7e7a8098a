/* Memory: allocation and freeing in every way, copies and fills, and what happens when there is none left. */
#include "calls.h"
#include "structs.h"
#include "work.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

enum { MIB = 1 << 20 };

static void *device_memory(tgpu_device d, uint64_t bytes) {
    void *p = NULL;
    tgpu_scope scope;
    CHECK_OK(tgpu_scope_enter_device(d, &scope));
    CHECK_OK(tgpu_malloc(bytes, &p));
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK(p != NULL);
    return p;
}

static void *pinned_memory(uint64_t bytes) {
    void *p = NULL;
    CHECK_OK(tgpu_host_malloc(bytes, &p));
    CHECK(p != NULL);
    return p;
}

/* Deferred frees come some time later: a test that compares free memory lets those of the test before it come first. */
static void wait_for_free_memory(tgpu_device d, uint64_t bytes) {
    WAIT_UNTIL(free_memory(d) >= bytes);
    CHECK_EQ(free_memory(d), bytes);
}

static tgpu_pointer_info pointer_info(const void *p) {
    tgpu_pointer_info info = TGPU_POINTER_INFO_INIT;
    CHECK_OK(tgpu_pointer_info_get(p, &info));
    return info;
}

/* ---- allocation */

static void memory_is_aligned_and_does_not_overlap(void) {
    enum { PIECES = 300 };
    char *p[PIECES];
    uint64_t sizes[PIECES];
    for (int i = 0; i < PIECES; i++) {
        sizes[i] = (uint64_t)i * i * 7 % 9000 + 1;
        CHECK_OK(i % 2 ? tgpu_malloc(sizes[i], (void **)&p[i]) : tgpu_malloc_async(sizes[i], NULL, (void **)&p[i]));
        CHECK_EQ((uintptr_t)p[i] % 256, 0);
        CHECK_OK(tgpu_memset(p[i], (uint8_t)i, sizes[i], NULL));
    }
    for (int i = 0; i < PIECES; i++) {
        static unsigned char back[10000];
        CHECK_OK(tgpu_memcpy(back, p[i], sizes[i], NULL));
        CHECK_OK(tgpu_synchronize());
        for (uint64_t b = 0; b < sizes[i]; b++) CHECK_EQ(back[b], (uint8_t)i);
    }
    for (int i = 0; i < PIECES; i++) CHECK_OK(i % 3 ? tgpu_free_async(p[i], NULL) : tgpu_free(p[i]));
    CHECK_OK(tgpu_synchronize());
}

static void no_bytes_are_null_and_fine(void) {
    void *p = (void *)77;
    CHECK_OK(tgpu_malloc(0, &p));
    CHECK_SAME(p, NULL);
    p = (void *)77;
    CHECK_OK(tgpu_malloc_async(0, NULL, &p));
    CHECK_SAME(p, NULL);
    p = (void *)77;
    CHECK_OK(tgpu_host_malloc(0, &p));
    CHECK_SAME(p, NULL);
    CHECK_OK(tgpu_memcpy(NULL, NULL, 0, NULL));
    CHECK_OK(tgpu_memset(NULL, 0, 0, NULL));
    CHECK_OK(tgpu_fill(NULL, NULL, 4, 0, NULL));
    CHECK_OK(tgpu_host_register(NULL, 0));
    check_giving_back_nothing_is_ok();
}

static void F31_what_is_too_large_is_out_of_memory_and_never_a_null_pointer(void) {
    const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 255, UINT64_MAX - 4096, INT64_MAX, UINT64_C(1) << 60, UINT64_C(1) << 50};
    struct state before = state_now();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *p = (void *)77;
        CHECK_REFUSED(tgpu_malloc(sizes[i], &p), TGPU_ERROR_OUT_OF_MEMORY, TEXT(sizes[i]));
        CHECK_REFUSED(tgpu_malloc_async(sizes[i], NULL, &p), TGPU_ERROR_OUT_OF_MEMORY, TEXT(sizes[i]));
        CHECK_REFUSED(tgpu_host_malloc(sizes[i], &p), TGPU_ERROR_OUT_OF_MEMORY, TEXT(sizes[i]));
        CHECK_SAME(p, 77);
        CHECK_STATE(before);
    }
}

static void memory_belongs_to_the_current_device_or_to_the_streams(void) {
    tgpu_stream s = stream_on(3);
    void *a = NULL, *b = NULL, *c = NULL;
    CHECK_OK(tgpu_device_set(2));
    CHECK_OK(tgpu_malloc(100, &a));
    CHECK_OK(tgpu_malloc_async(100, NULL, &b));
    CHECK_OK(tgpu_malloc_async(100, s, &c));
    CHECK_EQ(pointer_info(a).device, 2);
    CHECK_EQ(pointer_info(b).device, 2);
    CHECK_EQ(pointer_info(c).device, 3);
    CHECK_EQ(device_now(), 2);
    CHECK_OK(tgpu_free(a));
    CHECK_OK(tgpu_free(b)); /* any free call takes either kind */
    CHECK_OK(tgpu_free_async(c, s));
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_destroy(s));
}

static void free_memory_goes_down_and_up(void) {
    uint64_t before = free_memory(1), total = 0, free_bytes = 0;
    void *p = device_memory(1, 10 * MIB), *others = NULL;
    CHECK(free_memory(1) <= before - 10 * MIB);
    CHECK_OK(tgpu_device_memory(1, &free_bytes, &total));
    CHECK(free_bytes < total);
    uint64_t zero = free_memory(0);
    CHECK_OK(tgpu_malloc(MIB, &others)); /* each device has its own */
    CHECK_EQ(free_memory(0), zero - MIB);
    CHECK_EQ(free_memory(1), free_bytes);
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_free(others));
    CHECK_EQ(free_memory(1), before);
    CHECK_EQ(free_memory(0), zero);
}

/* ---- what a pointer is */

static void a_pointer_tells_what_it_points_into(void) {
    static char registered[5000];
    char *device = device_memory(2, 1000), *pinned = pinned_memory(2000), local;
    tgpu_pointer_info info;
    CHECK_OK(tgpu_host_register(registered + 100, 3000));
    for (int i = 0; i < 2; i++) { /* at the start and inside */
        info = pointer_info(device + i * 999);
        CHECK_EQ(info.kind, TGPU_POINTER_DEVICE);
        CHECK_EQ(info.device, 2);
        CHECK_SAME(info.base, device);
        CHECK_EQ(info.size, 1000);
        info = pointer_info(pinned + i * 1999);
        CHECK_EQ(info.kind, TGPU_POINTER_HOST_PINNED);
        CHECK_SAME(info.base, pinned);
        CHECK_EQ(info.size, 2000);
        info = pointer_info(registered + 100 + i * 2999);
        CHECK_EQ(info.kind, TGPU_POINTER_HOST_REGISTERED);
        CHECK_SAME(info.base, registered + 100);
        CHECK_EQ(info.size, 3000);
    }
    info.kind = 55;
    CHECK_REFUSED(tgpu_pointer_info_get(&local, &info), TGPU_ERROR_NOT_FOUND, HEX(&local));
    CHECK_REFUSED(tgpu_pointer_info_get(NULL, &info), TGPU_ERROR_NOT_FOUND, "");
    CHECK_REFUSED(tgpu_pointer_info_get((void *)UINTPTR_MAX, &info), TGPU_ERROR_NOT_FOUND, HEX(UINTPTR_MAX));
    CHECK_REFUSED(tgpu_pointer_info_get(registered + 99, &info), TGPU_ERROR_NOT_FOUND, HEX(registered + 99));
    CHECK_REFUSED(tgpu_pointer_info_get(registered + 3100, &info), TGPU_ERROR_NOT_FOUND, HEX(registered + 3100));
    CHECK_EQ(info.kind, 55);
    CHECK_OK(tgpu_free(device));
    CHECK_OK(tgpu_host_free(pinned));
    CHECK_OK(tgpu_host_unregister(registered + 100));
    CHECK_STATUS(tgpu_pointer_info_get(device, &info), TGPU_ERROR_NOT_FOUND);
    WAIT_UNTIL(tgpu_pointer_info_get(pinned, &info) == TGPU_ERROR_NOT_FOUND); /* its vendor knows it as long as it is there */
    CHECK_STATUS(tgpu_pointer_info_get(registered + 100, &info), TGPU_ERROR_NOT_FOUND);
}

static void *info_subject;

static tgpu_status get_pointer_info(void *out) {
    return tgpu_pointer_info_get(info_subject, out);
}

static void pointer_info_takes_every_struct_size(void) {
    info_subject = device_memory(1, 100);
    check_output_struct(get_pointer_info, sizeof(tgpu_pointer_info));
    CHECK_OK(tgpu_free(info_subject));
}

/* ---- freeing */

static void what_is_not_ours_is_not_freed(void) {
    static char registered[4096];
    char *device = device_memory(1, 1000), *pinned = pinned_memory(1000), *heap = malloc(1000), local;
    struct state before = state_now();
    CHECK_OK(tgpu_host_register(registered, sizeof registered));
    void *const wrong[] = {&local, heap, device + 1, device + 999, device + 1000, device - 1, pinned, registered, pinned + 8, (void *)1,
        (void *)0xdead, (void *)UINTPTR_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_STATUS(tgpu_free(wrong[i]), TGPU_ERROR_INVALID_ARGUMENT);
        CHECK_STATUS(tgpu_free_async(wrong[i], NULL), TGPU_ERROR_INVALID_ARGUMENT);
        CHECK_STATUS(tgpu_free_deferred(wrong[i]), TGPU_ERROR_INVALID_ARGUMENT);
        if (wrong[i] != pinned) CHECK_STATUS(tgpu_host_free(wrong[i]), TGPU_ERROR_INVALID_ARGUMENT);
        if (wrong[i] != registered) CHECK_STATUS(tgpu_host_unregister(wrong[i]), TGPU_ERROR_INVALID_ARGUMENT);
    }
    CHECK_STATUS(tgpu_host_free(device), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_host_unregister(device), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_free((void *)before.stream), TGPU_ERROR_INVALID_ARGUMENT); /* a handle is no memory */
    CHECK_STATE(before);
    CHECK_OK(tgpu_memset(device, 1, 1000, NULL)); /* all still there */
    CHECK_OK(tgpu_memset(pinned, 1, 1000, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_free(device));
    CHECK_OK(tgpu_host_free(pinned));
    CHECK_OK(tgpu_host_unregister(registered));
    free(heap);
}

static void freeing_twice_is_answered(void) {
    tgpu_status (*const ways[])(void *) = {tgpu_free, tgpu_free_deferred};
    uint64_t before = free_memory(0);
    for (int first = 0; first < 3; first++)
        for (int second = 0; second < 3; second++) {
            void *p = device_memory(0, 5000);
            CHECK_OK(first < 2 ? ways[first](p) : tgpu_free_async(p, NULL));
            CHECK_STATUS(second < 2 ? ways[second](p) : tgpu_free_async(p, NULL), TGPU_ERROR_INVALID_ARGUMENT);
        }
    void *p = pinned_memory(5000);
    CHECK_OK(tgpu_host_free(p));
    CHECK_STATUS(tgpu_host_free(p), TGPU_ERROR_INVALID_ARGUMENT);
    wait_for_free_memory(0, before);
}

static void *frees(void *data) {
    tgpu_device d = 3;
    CHECK_OK(tgpu_device_set(d));
    CHECK_OK(tgpu_free(data));
    CHECK_EQ(device_now(), d);
    return NULL;
}

static void *frees_as_its_first_call(void *data) {
    CHECK_OK(tgpu_free(data));
    return NULL;
}

static void F33_memory_goes_back_to_its_own_device_from_any_thread(void) {
    for (tgpu_device d = 0; d < 4; d++) {
        uint64_t before = free_memory(d);
        on_a_thread(frees, device_memory(d, MIB));
        on_a_thread(frees_as_its_first_call, device_memory(d, MIB));
        CHECK_EQ(free_memory(d), before);
    }
}

struct opener {
    struct gate *gate;
    char *memory;
};

static void *opens_later(void *data) {
    struct opener *o = data;
    sleep_ms(30);
    open_gate(o->gate);
    return NULL;
}

static void write_to_it(const tgpu_host_block *block, void *const *args, void *data) {
    char *p = *(char *const *)args[0];
    (void)block, (void)data;
    memset(p, 1, MIB); /* a crash if it has been given back to the system */
}

static void free_waits_for_the_device_of_the_memory(void) {
    struct gate gate = GATE;
    struct opener o = {&gate, device_memory(1, MIB)};
    tgpu_stream s = stream_on(1);
    hold(s, &gate);
    queue(s, write_to_it, o.memory);
    pthread_t thread = start_thread(opens_later, &o);
    CHECK_OK(tgpu_free(o.memory)); /* from device 0, without naming the stream */
    CHECK_OK(tgpu_stream_query(s));
    join_thread(thread);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void a_free_in_stream_order_comes_after_the_work_before_it(void) {
    for (int pooled = 0; pooled < 2; pooled++)
        for (tgpu_device where = 0; where < 2; where++) { /* F33: the stream is one of the memory's device, or of another */
            struct gate gate = GATE;
            tgpu_stream s = stream_on(where);
            void *p = NULL;
            uint64_t before = free_memory(0);
            CHECK_OK(pooled ? tgpu_malloc_async(MIB, NULL, &p) : tgpu_malloc(MIB, &p));
            CHECK_OK(tgpu_stream_wait_stream(s, NULL));
            hold(s, &gate);
            queue(s, write_to_it, p);
            CHECK_OK(tgpu_free_async(p, s)); /* does not block */
            CHECK_STATUS(tgpu_free_async(p, s), TGPU_ERROR_INVALID_ARGUMENT);
            give_every_chance(0);
            if (free_memory(0) >= before) FAIL("freed too early: pooled %d, stream of device %d", pooled, where);
            open_gate(&gate);
            CHECK_OK(tgpu_stream_synchronize(s));
            wait_for_free_memory(0, before);
            CHECK_OK(tgpu_stream_destroy(s));
        }
}

static void memory_freed_in_stream_order_can_be_had_again_at_once(void) {
    void *p = NULL;
    uint64_t before = free_memory(0);
    for (int i = 0; i < 1000; i++) { /* 1 GiB in all, and the stream held up all the time */
        static struct gate gate = GATE;
        if (i == 0) hold(NULL, &gate);
        CHECK_OK(tgpu_malloc_async(MIB, NULL, &p));
        CHECK_OK(tgpu_memset(p, 1, MIB, NULL));
        CHECK_OK(tgpu_free_async(p, NULL));
        if (i == 999) {
            CHECK(free_memory(0) + 20 * MIB > before);
            open_gate(&gate);
        }
    }
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_memory_trim(0, 0));
    CHECK_EQ(free_memory(0), before);
}

static void *defers(void *data) {
    CHECK_OK(tgpu_free_deferred(data)); /* this thread has made no call before, and has no task */
    return NULL;
}

/* The most memory that this process ever had resident. 0 under valgrind. */
static long most_resident_kib(void) {
    char line[256];
    long most = 0;
    if (getenv("TASKGPU_TEST_VALGRIND")) return 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) FAIL("/proc/self/status: %s", strerror(errno));
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &most) == 1) break;
    fclose(f);
    return most;
}

static void many_deferred_frees_beside_many_streams_cost_little(void) {
    enum { FREES = 10000, STREAMS = 1000 };
    static tgpu_stream streams[STREAMS];
    static void *pieces[FREES];
    struct gate gate = GATE;
    uint64_t before = free_memory(0);
    for (int i = 0; i < STREAMS; i++) streams[i] = stream_on(0);
    for (int i = 0; i < FREES; i++) pieces[i] = device_memory(0, 1);
    hold(streams[0], &gate);
    long most = most_resident_kib();
    for (int i = 0; i < FREES; i++) CHECK_OK(tgpu_free_deferred(pieces[i]));
    open_gate(&gate);
    WAIT_UNTIL(free_memory(0) >= before);
    CHECK(most_resident_kib() - most < 16 << 10);
    for (int i = 0; i < STREAMS; i++) CHECK_OK(tgpu_stream_destroy(streams[i]));
}

/* ---- where the system has no thread to give */

static atomic_int no_threads;

/* Stands before the system's, for the library too. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *data) {
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    void *next = dlsym(RTLD_NEXT, "pthread_create");
    if (no_threads) return EAGAIN;
    memcpy(&create, &next, sizeof create);
    return create(thread, attributes, function, data);
}

static void no_thread_to_be_had_is_answered_and_made_up_for_later(void) {
    char *p = device_memory(0, MIB);
    uint64_t free_with_it = free_memory(0);
    no_threads = 1;
    CHECK_REFUSED(tgpu_memset(p, 1, MIB, NULL), TGPU_ERROR_OUT_OF_MEMORY, "thread");
    CHECK_OK(tgpu_synchronize()); /* nothing was queued */
    CHECK_OK(tgpu_free_deferred(p)); /* and nobody is there to take it back */
    no_threads = 0;
    p = device_memory(0, 1);
    CHECK_OK(tgpu_memset(p, 1, 1, NULL));
    CHECK_OK(tgpu_free_deferred(p));
    WAIT_UNTIL(free_memory(0) >= free_with_it + MIB);
}

static void F17_a_deferred_free_blocks_nobody_and_comes_after_what_is_queued(void) {
    struct gate gate = GATE;
    tgpu_stream s = stream_on(1);
    char *p = device_memory(1, MIB), *q = device_memory(1, MIB);
    uint64_t with_both = free_memory(1);
    struct state before = state_now();
    hold(s, &gate);
    queue(s, write_to_it, p);
    queue(s, write_to_it, q);
    CHECK_REFUSED(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE, "99");
    CHECK_OK(tgpu_free_deferred(p));
    on_a_thread(defers, q);
    CHECK_STATUS(tgpu_free_deferred(p), TGPU_ERROR_INVALID_ARGUMENT);
    give_every_chance(1);
    CHECK_EQ(free_memory(1), with_both);
    CHECK_STATE(before);
    CHECK_EQ(last_status(), TGPU_ERROR_INVALID_DEVICE);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(s));
    wait_for_free_memory(1, with_both + 2 * MIB);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void F17_pinned_memory_lives_until_the_work_that_uses_it_is_done(void) {
    struct gate gate = GATE;
    char *pinned = pinned_memory(MIB);
    hold(NULL, &gate);
    queue(NULL, write_to_it, pinned);
    CHECK_OK(tgpu_host_free(pinned)); /* does not block */
    give_every_chance(0);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
}

static void F17_frees_wait_for_the_work_of_destroyed_streams(void) {
    struct gate gate = GATE;
    tgpu_stream s = stream_on(1);
    char *p = device_memory(1, MIB), *pinned = pinned_memory(MIB);
    uint64_t with = free_memory(1);
    hold(s, &gate);
    queue(s, write_to_it, p);
    queue(s, write_to_it, pinned);
    CHECK_OK(tgpu_stream_destroy(s));
    CHECK_OK(tgpu_free_deferred(p));
    CHECK_OK(tgpu_host_free(pinned));
    give_every_chance(1);
    CHECK_EQ(free_memory(1), with);
    open_gate(&gate); /* a crash, if either is gone */
    wait_for_free_memory(1, with + MIB);
}

/* ---- copies */

static void check_bytes(const char *p, uint64_t from, uint64_t to, int value) {
    for (uint64_t i = from; i < to; i++)
        if ((unsigned char)p[i] != value) FAIL("byte %" PRIu64 " is %d, must be %d", i, (unsigned char)p[i], value);
}

static void copies_go_between_any_two_kinds_of_memory(void) {
    enum { BYTES = 3 * MIB + 7, KINDS = 5 };
    static char ordinary[2][BYTES], registered[2][BYTES];
    char *memory[2][KINDS];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tgpu_host_register(registered[i], BYTES));
        memory[i][0] = ordinary[i];
        memory[i][1] = registered[i];
        memory[i][2] = pinned_memory(BYTES);
        memory[i][3] = device_memory(0, BYTES);
        memory[i][4] = device_memory(2, BYTES);
    }
    char *in = pinned_memory(BYTES), *out = pinned_memory(BYTES);
    for (int to = 0; to < KINDS; to++)
        for (int from = 0; from < KINDS; from++) {
            char *src = memory[0][from], *dst = memory[1][to];
            for (int i = 0; i < BYTES; i++) in[i] = (char)(i * 31 + to * 7 + from);
            memset(out, 0, BYTES);
            CHECK_OK(tgpu_memcpy(src, in, BYTES, NULL));
            CHECK_OK(tgpu_memcpy(dst, src, BYTES, NULL));
            CHECK_OK(tgpu_memcpy(out, dst, BYTES, NULL));
            CHECK_OK(tgpu_synchronize());
            CHECK(memcmp(in, out, BYTES) == 0);
        }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tgpu_host_unregister(registered[i]));
        CHECK_OK(tgpu_host_free(memory[i][2]));
        CHECK_OK(tgpu_free(memory[i][3]));
        CHECK_OK(tgpu_free(memory[i][4]));
    }
    CHECK_OK(tgpu_host_free(in));
    CHECK_OK(tgpu_host_free(out));
}

static void a_copy_moves_its_bytes_and_no_others(void) {
    char *device = device_memory(0, 4096), *host = pinned_memory(4096);
    const uint64_t sizes[] = {1, 2, 3, 7, 8, 15, 16, 63, 64, 65, 255, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t at = 0; at < 9; at++) {
            CHECK_OK(tgpu_memset(device, 1, 4096, NULL));
            CHECK_OK(tgpu_memset(host, 2, 4096, NULL));
            CHECK_OK(tgpu_memcpy(device + at, host + 5, sizes[i], NULL));
            CHECK_OK(tgpu_memcpy(host, device, 4096, NULL));
            CHECK_OK(tgpu_synchronize());
            check_bytes(host, 0, at, 1);
            check_bytes(host, at, at + sizes[i], 2);
            check_bytes(host, at + sizes[i], 4096, 1);
        }
    CHECK_OK(tgpu_free(device));
    CHECK_OK(tgpu_host_free(host));
}

static void nothing_is_copied_inside_the_call(void) {
    struct gate gate = GATE;
    char *device = device_memory(0, 4096), *pinned = pinned_memory(4096);
    memset(pinned, 1, 4096);
    hold(NULL, &gate);
    CHECK_OK(tgpu_memcpy(device, pinned, 4096, NULL)); /* returns although the gate is closed */
    CHECK_OK(tgpu_memset(device, 9, 1, NULL));
    CHECK_OK(tgpu_memcpy(pinned, device, 4096, NULL));
    memset(pinned, 3, 4096); /* so this is what is copied */
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(pinned[0], 9);
    check_bytes(pinned, 1, 4096, 3);
    CHECK_OK(tgpu_free(device));
    CHECK_OK(tgpu_host_free(pinned));
}

static void F38_a_thousand_copies_cost_no_memory(void) {
    char *a = device_memory(0, MIB), *b = device_memory(1, MIB), *host = malloc(MIB);
    long warm = 0;
    memset(host, 1, MIB);
    for (int i = 0; i < 1500; i++) {
        CHECK_OK(tgpu_memcpy(a, host, MIB, NULL));
        CHECK_OK(tgpu_memcpy(b, a, MIB, NULL));
        CHECK_OK(tgpu_memcpy(host, b, MIB, NULL));
        if (i % 20 == 0) CHECK_OK(tgpu_synchronize());
        if (i == 500) warm = resident_kib();
    }
    CHECK_OK(tgpu_synchronize());
    if (resident_kib() > warm + 8192) FAIL("resident memory went from %ld KiB to %ld KiB", warm, resident_kib());
    CHECK_OK(tgpu_free(a));
    CHECK_OK(tgpu_free(b));
    free(host);
}

/* ---- fills */

static void patterns_of_every_size_are_filled_in(void) {
    unsigned char pattern[16], *host = pinned_memory(40000);
    char *device = device_memory(1, 40000);
    for (int i = 0; i < 16; i++) pattern[i] = (unsigned char)(i * 11 + 1);
    for (uint64_t size = 1; size <= 16; size *= 2)
        for (uint64_t count = 1; count < 2400; count = count * 2 + 1) {
            CHECK_OK(tgpu_memset(device, 0xee, 40000, NULL));
            CHECK_OK(tgpu_fill(device + 16, pattern, size, count, NULL));
            CHECK_OK(tgpu_memcpy(host, device, 40000, NULL));
            CHECK_OK(tgpu_synchronize());
            for (uint64_t i = 0; i < 40000; i++) {
                unsigned char must = i < 16 || i >= 16 + size * count ? 0xee : pattern[(i - 16) % size];
                if (host[i] != must) FAIL("size %" PRIu64 ", count %" PRIu64 ": byte %" PRIu64 " is %d, must be %d", size, count, i, host[i], must);
            }
        }
    CHECK_OK(tgpu_free(device));
    CHECK_OK(tgpu_host_free(host));
}

static void a_pattern_is_read_during_the_call(void) {
    struct gate gate = GATE;
    uint64_t *pinned = pinned_memory(8 * 100), pattern = 0x0102030405060708;
    hold(NULL, &gate);
    CHECK_OK(tgpu_fill(pinned, &pattern, sizeof pattern, 100, NULL));
    pattern = 0;
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < 100; i++) CHECK_EQ(pinned[i], 0x0102030405060708);
    CHECK_OK(tgpu_host_free(pinned));
}

/* Nothing that touches pinned memory only waits for the stream. */
static void pinned_memory_is_copied_and_filled_behind_what_holds_the_stream(void) {
    enum { BYTES = 1 << 20 };
    struct gate gate = GATE;
    unsigned char *from = pinned_memory(BYTES), *to = pinned_memory(BYTES), *filled = pinned_memory(BYTES);
    const unsigned char pattern[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    memset(from, 7, BYTES), memset(to, 1, BYTES), memset(filled, 1, BYTES);
    hold(NULL, &gate);
    CHECK_OK(tgpu_memset(filled, 5, BYTES, NULL));
    CHECK_OK(tgpu_memcpy(to, from, BYTES, NULL));
    CHECK_OK(tgpu_fill(filled + 16, pattern, sizeof pattern, BYTES / sizeof pattern - 1, NULL));
    CHECK_EQ(to[0], 1), CHECK_EQ(filled[0], 1);
    memset(from, 9, BYTES); /* it is read when the copy's turn comes */
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < BYTES; i++) CHECK_EQ(to[i], 9), CHECK_EQ(filled[i], i < 16 ? 5 : pattern[i % 16]);
    CHECK_OK(tgpu_host_free(from)), CHECK_OK(tgpu_host_free(to)), CHECK_OK(tgpu_host_free(filled));
}

/* ---- bad input */

static void what_runs_over_the_end_is_refused_with_both_numbers(void) {
    char *p = device_memory(0, 1000), *pinned = pinned_memory(1000), host[2000] = {0};
    struct state before = state_now();
    const uint64_t over[] = {1001, 2000, UINT64_C(1) << 40, UINT64_MAX / 2};
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        CHECK_REFUSED(tgpu_memset(p, 1, over[i], NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(over[i]), "1000");
        CHECK_REFUSED(tgpu_memset(pinned, 1, over[i], NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(over[i]), "1000");
        CHECK_REFUSED(tgpu_fill(p, host, 1, over[i], NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(over[i]), "1000");
        CHECK_REFUSED(tgpu_memcpy(p, host, over[i], NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(over[i]), "1000");
        CHECK_REFUSED(tgpu_memcpy(host, p, over[i], NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(over[i]), "1000");
        CHECK_REFUSED(tgpu_memcpy(pinned, p, over[i], NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(over[i]), "1000");
    }
    CHECK_REFUSED(tgpu_memset(p + 999, 1, 2, NULL), TGPU_ERROR_INVALID_ARGUMENT, "2", "1");
    CHECK_OK(tgpu_host_register(host, 1000));
    CHECK_REFUSED(tgpu_memset(host, 1, 1001, NULL), TGPU_ERROR_INVALID_ARGUMENT, "1001", "1000");
    CHECK_REFUSED(tgpu_fill(host + 500, host, 1, 501, NULL), TGPU_ERROR_INVALID_ARGUMENT, "501", "500");
    CHECK_OK(tgpu_memcpy(pinned, host + 500, 1000, NULL)); /* a copy may go on in what is not registered */
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_host_unregister(host));
    CHECK_REFUSED(tgpu_memcpy(p + 500, host, 501, NULL), TGPU_ERROR_INVALID_ARGUMENT, "501", "500");
    CHECK_STATUS(tgpu_memset(p, 1, UINT64_MAX, NULL), TGPU_ERROR_INVALID_ARGUMENT); /* round the end of the address space */
    CHECK_STATUS(tgpu_memcpy(p, host, UINT64_MAX, NULL), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(tgpu_memcpy(host, p, UINT64_MAX - 10, NULL), TGPU_ERROR_INVALID_ARGUMENT);
    for (uint64_t size = 2; size <= 16; size *= 2) { /* count * size wraps to something small */
        CHECK_STATUS(tgpu_fill(p, host, size, UINT64_MAX / size + 2, NULL), TGPU_ERROR_INVALID_ARGUMENT);
        CHECK_STATUS(tgpu_fill(p, host, size, UINT64_MAX, NULL), TGPU_ERROR_INVALID_ARGUMENT);
    }
    CHECK_STATE(before);
    CHECK_OK(tgpu_memset(p + 999, 1, 1, NULL)); /* the last byte is fine */
    CHECK_OK(tgpu_fill(p + 992, host, 8, 1, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_host_free(pinned));
}

static void null_and_foreign_pointers_are_refused(void) {
    static char ordinary[4096];
    char *p = device_memory(0, 1000), pattern[16] = {0};
    struct state before = state_now();
    CHECK_REFUSED(tgpu_memcpy(NULL, p, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_memcpy(p, NULL, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_memset(NULL, 1, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_fill(NULL, pattern, 1, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_fill(p, NULL, 1, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_malloc(10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_malloc_async(10, NULL, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_host_malloc(10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_host_register(NULL, 10), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_memory_reclaim_hook_add(NULL, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    /* Fills are for memory that is known: nobody can say how large any other is. */
    CHECK_REFUSED(tgpu_memset(ordinary, 1, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, HEX(ordinary));
    CHECK_REFUSED(tgpu_fill(ordinary, pattern, 1, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, HEX(ordinary));
    CHECK_REFUSED(tgpu_memset((void *)0xdead, 1, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "0xdead");
    CHECK_REFUSED(tgpu_memset((void *)(UINTPTR_MAX - 4), 1, 10, NULL), TGPU_ERROR_INVALID_ARGUMENT, "10");
    CHECK_REFUSED(tgpu_host_register((void *)(UINTPTR_MAX - 4), 10), TGPU_ERROR_INVALID_ARGUMENT, "10");
    CHECK_STATE(before);
    CHECK_OK(tgpu_free(p));
}

static void pattern_sizes_and_alignments_that_make_no_sense_are_refused(void) {
    const uint64_t sizes[] = {0, 3, 5, 6, 7, 9, 12, 15, 17, 32, 64, UINT64_MAX};
    char *p = device_memory(0, 1000), pattern[64] = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CHECK_REFUSED(tgpu_fill(p, pattern, sizes[i], 1, NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(sizes[i]), "16");
        CHECK_REFUSED(tgpu_fill(p, pattern, sizes[i], 0, NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(sizes[i]));
    }
    for (uint64_t size = 2; size <= 16; size *= 2)
        for (uint64_t at = 1; at < size; at++)
            CHECK_REFUSED(tgpu_fill(p + at, pattern, size, 1, NULL), TGPU_ERROR_INVALID_ARGUMENT, TEXT(size), HEX(p + at));
    CHECK_OK(tgpu_free(p));
}

static void registering_refuses_what_overlaps(void) {
    static char memory[10000];
    char *pinned = pinned_memory(1000), *device = device_memory(0, 1000);
    CHECK_OK(tgpu_host_register(memory + 1000, 1000));
    const struct {
        char *at;
        uint64_t bytes;
    } wrong[] = {{memory + 1000, 1000}, {memory + 1999, 1}, {memory, 1001}, {memory, 5000}, {memory + 1500, 5000}, {pinned, 10}, {pinned + 10, 10},
        {device, 10}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_REFUSED(tgpu_host_register(wrong[i].at, wrong[i].bytes), TGPU_ERROR_INVALID_ARGUMENT, HEX(wrong[i].at), TEXT(wrong[i].bytes));
    CHECK_OK(tgpu_host_register(memory, 1000)); /* side by side is fine */
    CHECK_OK(tgpu_host_register(memory + 2000, 1000));
    CHECK_STATUS(tgpu_host_unregister(memory + 500), TGPU_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < 3; i++) CHECK_OK(tgpu_host_unregister(memory + 1000 * i));
    CHECK_STATUS(tgpu_host_unregister(memory), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_OK(tgpu_host_register(memory, 1000)); /* and again */
    CHECK_OK(tgpu_host_unregister(memory));
    CHECK_OK(tgpu_host_free(pinned));
    CHECK_OK(tgpu_free(device));
}

/* ---- out of memory: in processes with 1 MiB for each device */

#define LITTLE_MEMORY "TASKGPU_HOST_MEMORY=1048576"

static int hook_calls;
static tgpu_device hook_device;
static uint64_t hook_bytes;
static void *hook_frees;

static void count_hook(void *data, tgpu_device device, uint64_t bytes) {
    CHECK_SAME(data, &hook_calls);
    hook_calls++;
    hook_device = device;
    hook_bytes = bytes;
    if (hook_frees) {
        CHECK_OK(tgpu_free(hook_frees)); /* everything may be called in a hook */
        hook_frees = NULL;
    }
}

static void F32_running_out_is_answered_and_harmless(void) {
    void *all = NULL, *p = (void *)77;
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_malloc(MIB, &all)); /* to the last byte */
    CHECK_EQ(free_memory(1), 0);
    struct state before = state_now();
    for (int i = 0; i < 3; i++) {
        CHECK_REFUSED(tgpu_malloc(1, &p), TGPU_ERROR_OUT_OF_MEMORY, "1", "1048576", "device 1");
        CHECK_REFUSED(tgpu_malloc_async(1, NULL, &p), TGPU_ERROR_OUT_OF_MEMORY, "1", "1048576", "device 1");
        CHECK_REFUSED(tgpu_malloc(MIB + 1, &p), TGPU_ERROR_OUT_OF_MEMORY, "1048577");
    }
    CHECK_SAME(p, 77);
    CHECK_STATE(before);
    CHECK_OK(tgpu_device_set(2)); /* another device has its own */
    CHECK_OK(tgpu_malloc(MIB, &p));
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_free(all));
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_malloc(MIB, &all)); /* and freed memory is there again */
    CHECK_OK(tgpu_free(all));
}

static void F32_the_hook_is_called_once_and_may_help(void) {
    void *all = NULL, *p = (void *)77;
    CHECK_OK(tgpu_memory_reclaim_hook_add(count_hook, &hook_calls));
    CHECK_OK(tgpu_device_set(3));
    CHECK_OK(tgpu_malloc(MIB, &all));
    CHECK_EQ(hook_calls, 0);
    CHECK_REFUSED(tgpu_malloc(1000, &p), TGPU_ERROR_OUT_OF_MEMORY, "1000"); /* it does not help */
    CHECK_EQ(hook_calls, 1);
    CHECK_EQ(hook_device, 3);
    CHECK_EQ(hook_bytes, 1000);
    CHECK_REFUSED(tgpu_malloc_async(2000, NULL, &p), TGPU_ERROR_OUT_OF_MEMORY, "2000");
    CHECK_EQ(hook_calls, 2);
    CHECK_EQ(hook_bytes, 2000);
    hook_frees = all; /* it does */
    CHECK_OK(tgpu_malloc(3000, &p));
    CHECK_EQ(hook_calls, 3);
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_malloc(MIB, &all));
    hook_frees = all;
    CHECK_OK(tgpu_malloc_async(MIB, NULL, &p));
    CHECK_EQ(hook_calls, 4);
    CHECK_OK(tgpu_free(p));
    CHECK_EQ(device_now(), 3);
}

static void allocate_in_the_hook(void *data, tgpu_device device, uint64_t bytes) {
    void *p = NULL;
    (void)bytes;
    hook_calls++;
    CHECK_EQ(device, 0);
    CHECK_STATUS(tgpu_malloc(1, &p), TGPU_ERROR_OUT_OF_MEMORY); /* calls no hooks */
    CHECK_OK(tgpu_device_set(1)); /* switches and failures of a hook are the task's, as anywhere */
    CHECK_OK(tgpu_malloc(MIB, &p));
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_memory_reclaim_hook_add(count_hook, &hook_calls)); /* no lock is held */
    (void)data;
}

static void F32_a_hook_may_allocate_and_does_not_call_itself(void) {
    void *all = NULL, *p = NULL;
    CHECK_OK(tgpu_memory_reclaim_hook_add(allocate_in_the_hook, NULL));
    CHECK_OK(tgpu_malloc(MIB, &all));
    CHECK_STATUS(tgpu_malloc(10, &p), TGPU_ERROR_OUT_OF_MEMORY);
    CHECK(hook_calls == 1 || hook_calls == 2); /* the added hook may be called now or the next time */
    CHECK_OK(tgpu_free(all));
}

static void memory_on_its_way_back_is_waited_for(void) {
    for (int way = 0; way < 3; way++)
        for (int pooled = 0; pooled < 2; pooled++) {
            struct gate gate = GATE;
            struct opener o = {&gate, NULL};
            void *p = NULL, *all = NULL;
            CHECK_OK(pooled ? tgpu_malloc_async(MIB, NULL, &p) : tgpu_malloc(MIB, &p));
            if (way == 0) CHECK_OK(tgpu_free_async(p, NULL)); /* done, and in the pool */
            if (way == 1) {
                hold(NULL, &gate);
                CHECK_OK(tgpu_free_async(p, NULL)); /* held up */
            }
            if (way == 2) {
                hold(NULL, &gate);
                CHECK_OK(tgpu_free_deferred(p));
            }
            pthread_t thread = start_thread(opens_later, &o);
            CHECK_OK(tgpu_malloc(MIB, &all)); /* all of it, and of another kind */
            CHECK_OK(tgpu_free(all));
            join_thread(thread);
            CHECK_OK(tgpu_synchronize());
            CHECK_EQ(free_memory(0), MIB);
        }
}

static void pieces_that_the_pool_holds_do_not_stand_in_the_way(void) {
    void *p[64], *all = NULL;
    for (int i = 0; i < 64; i++) CHECK_OK(tgpu_malloc_async(MIB / 64, NULL, &p[i]));
    for (int i = 0; i < 64; i++) CHECK_OK(tgpu_free_async(p[i], NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_malloc(MIB, &all));
    CHECK_OK(tgpu_free(all));
    for (int i = 0; i < 64; i++) CHECK_OK(tgpu_malloc_async(MIB / 64, NULL, &p[i]));
    for (int i = 0; i < 64; i++) CHECK_OK(tgpu_free_async(p[i], NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_memory_trim(0, UINT64_MAX)); /* keeps everything */
    CHECK_OK(tgpu_memory_trim(0, MIB / 2));
    CHECK_OK(tgpu_memory_trim(0, 0));
    CHECK_EQ(free_memory(0), MIB);
}

static void *fights_for_memory(void *data) {
    unsigned random = *(unsigned *)data;
    int got = 0;
    for (int i = 0; i < 500; i++) {
        void *p = NULL;
        random = random * 1103515245 + 12345;
        uint64_t bytes = random / 65536 % (600 * 1024) + 1;
        tgpu_status status = random & 32768 ? tgpu_malloc(bytes, &p) : tgpu_malloc_async(bytes, NULL, &p);
        if (status == TGPU_ERROR_OUT_OF_MEMORY) continue;
        CHECK_STATUS(status, TGPU_OK);
        CHECK(p != NULL);
        got++;
        CHECK_OK(tgpu_memset(p, 1, bytes, NULL));
        switch (random / 1024 % 3) {
        case 0: CHECK_OK(tgpu_free(p)); break;
        case 1: CHECK_OK(tgpu_free_async(p, NULL)); break;
        default: CHECK_OK(tgpu_free_deferred(p));
        }
    }
    CHECK(got > 0);
    return NULL;
}

static void F32_many_threads_that_run_out_do_not_block_each_other(void) {
    pthread_t threads[6];
    unsigned seeds[6] = {1, 22, 333, 4444, 55555, 666666};
    void *all = NULL;
    CHECK_OK(tgpu_memory_reclaim_hook_add(count_hook, &hook_calls));
    for (int i = 0; i < 6; i++) threads[i] = start_thread(fights_for_memory, &seeds[i]);
    for (int i = 0; i < 6; i++) join_thread(threads[i]);
    CHECK_OK(tgpu_malloc(MIB, &all)); /* nothing was lost */
    CHECK_OK(tgpu_free(all));
}

/* ---- many threads */

static void *launches_and_frees(void *data) {
    tgpu_device d = *(tgpu_device *)data;
    struct notes notes = {0};
    CHECK_OK(tgpu_device_set(d));
    for (int i = 0; i < 1000; i++) {
        void *p = NULL;
        CHECK_OK(tgpu_malloc_async(4096 + 100 * (uint64_t)i, NULL, &p));
        CHECK_OK(tgpu_memset(p, 1, 4096, NULL));
        note(NULL, &notes, i);
        CHECK_OK(tgpu_free_async(p, NULL));
        if (i % 100 == 0) CHECK_OK(tgpu_device_synchronize());
    }
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(notes.count, 1000);
    return NULL;
}

static void F30_launches_and_ordered_frees_of_many_threads_do_not_deadlock(void) {
    pthread_t threads[8];
    tgpu_device devices[8];
    for (int i = 0; i < 8; i++) {
        devices[i] = i % 2;
        threads[i] = start_thread(launches_and_frees, &devices[i]);
    }
    for (int i = 0; i < 8; i++) join_thread(threads[i]);
}

static void free_again(tgpu_device d, uint64_t before) {
    uint64_t bytes = 0, total = 0;
    WAIT_UNTIL((sleep_ms(1), CHECK_OK(tgpu_device_memory(d, &bytes, &total)), bytes >= before));
}

/* A program that shuts itself in after its first calls, from calls that it does not know to be ours. */
static void what_was_left_is_freed_in_a_sandbox_that_was_entered_later(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    uint64_t before = 0, total = 0;
    void *p = device_memory(0, MIB);
    CHECK_OK(tgpu_memset(p, 1, MIB, NULL));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_device_memory(0, &before, &total));
    CHECK_OK(tgpu_free_deferred(p));
    free_again(0, before + MIB);
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) return; /* not here */
    for (int i = 0; i < 10; i++) {
        p = device_memory(0, MIB);
        CHECK_OK(tgpu_memset(p, 1, MIB, NULL));
        CHECK_OK(tgpu_free_deferred(p));
    }
    free_again(0, before + MIB);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(memory_is_aligned_and_does_not_overlap);
    RUN(no_bytes_are_null_and_fine);
    RUN(F31_what_is_too_large_is_out_of_memory_and_never_a_null_pointer);
    RUN(memory_belongs_to_the_current_device_or_to_the_streams);
    RUN(free_memory_goes_down_and_up);
    RUN(a_pointer_tells_what_it_points_into);
    RUN(pointer_info_takes_every_struct_size);
    RUN(what_is_not_ours_is_not_freed);
    RUN(freeing_twice_is_answered);
    RUN(F33_memory_goes_back_to_its_own_device_from_any_thread);
    RUN(free_waits_for_the_device_of_the_memory);
    RUN(a_free_in_stream_order_comes_after_the_work_before_it);
    RUN(memory_freed_in_stream_order_can_be_had_again_at_once);
    RUN(F17_a_deferred_free_blocks_nobody_and_comes_after_what_is_queued);
    RUN(F17_pinned_memory_lives_until_the_work_that_uses_it_is_done);
    RUN(F17_frees_wait_for_the_work_of_destroyed_streams);
    RUN(copies_go_between_any_two_kinds_of_memory);
    RUN(a_copy_moves_its_bytes_and_no_others);
    RUN(nothing_is_copied_inside_the_call);
    RUN(F38_a_thousand_copies_cost_no_memory);
    RUN(patterns_of_every_size_are_filled_in);
    RUN(a_pattern_is_read_during_the_call);
    RUN(pinned_memory_is_copied_and_filled_behind_what_holds_the_stream);
    RUN(what_runs_over_the_end_is_refused_with_both_numbers);
    RUN(null_and_foreign_pointers_are_refused);
    RUN(pattern_sizes_and_alignments_that_make_no_sense_are_refused);
    RUN(registering_refuses_what_overlaps);
    RUN_IN_CHILD(many_deferred_frees_beside_many_streams_cost_little, AS_IT_IS);
    RUN_IN_CHILD(no_thread_to_be_had_is_answered_and_made_up_for_later, AS_IT_IS);
    RUN_IN_CHILD(what_was_left_is_freed_in_a_sandbox_that_was_entered_later, AS_IT_IS);
    RUN_IN_CHILD(F32_running_out_is_answered_and_harmless, LITTLE_MEMORY);
    RUN_IN_CHILD(F32_the_hook_is_called_once_and_may_help, LITTLE_MEMORY);
    RUN_IN_CHILD(F32_a_hook_may_allocate_and_does_not_call_itself, LITTLE_MEMORY);
    RUN_IN_CHILD(memory_on_its_way_back_is_waited_for, LITTLE_MEMORY);
    RUN_IN_CHILD(pieces_that_the_pool_holds_do_not_stand_in_the_way, LITTLE_MEMORY);
    RUN_IN_CHILD(F32_many_threads_that_run_out_do_not_block_each_other, LITTLE_MEMORY);
    RUN(F30_launches_and_ordered_frees_of_many_threads_do_not_deadlock);
    return end();
}
