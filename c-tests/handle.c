/* Handles that are none: garbage, halves, changed bits, other kinds. Answered on any thread, never followed. */
#include "calls.h"
#include "work.h"

/* One call for each kind, which changes nothing if the handle is good. */
static tgpu_status use_stream(void *h) {
    return tgpu_stream_query(h);
}
static tgpu_status use_event(void *h) {
    return tgpu_event_query(h);
}
static tgpu_status use_kernel(void *h) {
    tgpu_kernel_info info = TGPU_KERNEL_INFO_INIT;
    return tgpu_kernel_info_get(h, host_device(), &info);
}
static tgpu_status use_task(void *h) {
    tgpu_task before = NULL;
    tgpu_status status = tgpu_task_swap(h, &before);
    if (status == TGPU_OK) CHECK_OK(tgpu_task_swap(before, NULL));
    return status;
}
static tgpu_status use_module(void *h) {
    return tgpu_module_prepare(h, 0);
}
static tgpu_status destroy_stream(void *h) {
    return tgpu_stream_destroy(h);
}
static tgpu_status destroy_event(void *h) {
    return tgpu_event_destroy(h);
}
static tgpu_status destroy_kernel(void *h) {
    return tgpu_kernel_destroy(h);
}
static tgpu_status destroy_task(void *h) {
    return tgpu_task_destroy(h);
}
static tgpu_status destroy_module(void *h) {
    return tgpu_module_destroy(h);
}

enum { KINDS = 5, MODULE = 4 };
static const struct {
    const char *name;
    tgpu_status (*use)(void *), (*destroy)(void *);
} KIND[KINDS] = {
    {"stream", use_stream, destroy_stream}, {"event", use_event, destroy_event}, {"kernel", use_kernel, destroy_kernel},
    {"task", use_task, destroy_task}, {"module", use_module, destroy_module}};

/* A live one of each kind; host devices have no modules. */
static void *live[KINDS];

static void make_live(void) {
    CHECK_OK(tgpu_stream_create(NULL, (tgpu_stream *)&live[0]));
    CHECK_OK(tgpu_event_create(NULL, (tgpu_event *)&live[1]));
    live[2] = kernel_of(never_run, 0, NULL);
    CHECK_OK(tgpu_task_create(NULL, (tgpu_task *)&live[3]));
}

static void check_live(void) {
    for (int kind = 0; kind < MODULE; kind++) CHECK_OK(KIND[kind].use(live[kind]));
}

static void check_garbage(int kind, void *h) {
    if (h) CHECK_REFUSED(KIND[kind].use(h), TGPU_ERROR_INVALID_HANDLE, HEX(h));
    if (h) CHECK_STATUS(KIND[kind].destroy(h), TGPU_ERROR_INVALID_HANDLE);
}

static void *check_all_garbage(void *data) {
    static char memory[64];
    char local;
    (void)data;
    for (int kind = 0; kind < KINDS; kind++) {
        void *const garbage[] = {(void *)1, (void *)2, (void *)0xdead, (void *)0xdeadbeef, (void *)UINTPTR_MAX, (void *)(UINTPTR_MAX / 2), memory,
            &local, (void *)(uintptr_t)check_all_garbage, (void *)(UINTPTR_MAX << 48), (void *)(UINTPTR_MAX << 12), (void *)INTPTR_MIN};
        for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) check_garbage(kind, garbage[i]);
    }
    return NULL;
}

static void F15_made_up_handles_are_answered(void) {
    struct state before = state_now();
    check_all_garbage(NULL);
    on_a_thread(check_all_garbage, NULL);
    check_live();
    CHECK_STATE(before);
}

static void F15_a_handle_with_one_bit_changed_is_another_one(void) {
    for (int kind = 0; kind < MODULE; kind++)
        for (int bit = 0; bit < 64; bit++) {
            uintptr_t changed = (uintptr_t)live[kind] ^ (uintptr_t)1 << bit;
            /* The one it becomes may happen to live: this thread's lease or own task. */
            tgpu_task own = NULL;
            CHECK_OK(tgpu_task_current(&own));
            if (changed == (uintptr_t)stream_now() || changed == (uintptr_t)own) continue;
            check_garbage(kind, (void *)changed);
        }
    check_live();
}

static void a_part_of_a_handle_is_none(void) {
    for (int kind = 0; kind < MODULE; kind++) {
        uintptr_t h = (uintptr_t)live[kind];
        check_garbage(kind, (void *)(h & UINT32_MAX)); /* an int in between */
        check_garbage(kind, (void *)(uintptr_t)(intptr_t)(int32_t)h);
        check_garbage(kind, (void *)(h >> 32));
        check_garbage(kind, (void *)(h & ~(uintptr_t)UINT32_MAX));
        check_garbage(kind, (void *)(h << 8));
    }
    check_live();
}

static void a_handle_has_bits_that_no_pointer_has(void) {
    for (int kind = 0; kind < MODULE; kind++) {
        uintptr_t top = (uintptr_t)live[kind] >> 48;
        CHECK(top != 0 && top != 0xffff);
    }
}

static void a_handle_of_another_kind_is_refused_and_named(void) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int other = 0; other < MODULE; other++) {
            if (kind == other) continue;
            CHECK_REFUSED(KIND[kind].use(live[other]), TGPU_ERROR_INVALID_HANDLE, KIND[kind].name, KIND[other].name);
            CHECK_STATUS(KIND[kind].destroy(live[other]), TGPU_ERROR_INVALID_HANDLE);
        }
    check_live();
}

static void a_handle_is_no_memory_and_memory_is_no_handle(void) {
    void *p = NULL;
    CHECK_OK(tgpu_malloc(100, &p));
    for (int kind = 0; kind < KINDS; kind++) {
        check_garbage(kind, p);
        if (kind < MODULE) CHECK_STATUS(tgpu_free(live[kind]), TGPU_ERROR_INVALID_ARGUMENT);
        if (kind < MODULE) CHECK_STATUS(tgpu_memset(live[kind], 0, 1, NULL), TGPU_ERROR_INVALID_ARGUMENT);
    }
    CHECK_OK(tgpu_free(p));
    check_live();
}

static void destroying_twice_hits_nobody_else(void) {
    for (int i = 0; i < 200; i++)
        for (int kind = 0; kind < MODULE; kind++) {
            void *old = live[kind];
            CHECK_OK(KIND[kind].destroy(old));
            CHECK_STATUS(KIND[kind].destroy(old), TGPU_ERROR_INVALID_HANDLE);
            make_live(); /* in the same place, most likely */
            CHECK(live[kind] != old);
            CHECK_STATUS(KIND[kind].destroy(old), TGPU_ERROR_INVALID_HANDLE);
            CHECK_REFUSED(KIND[kind].use(old), TGPU_ERROR_INVALID_HANDLE, "destroyed");
            check_live();
            for (int other = 0; other < MODULE; other++)
                if (other != kind) CHECK_OK(KIND[other].destroy(live[other]));
            make_live();
        }
}

static void handles_are_never_given_twice(void) {
    enum { MANY = 200000 };
    static uintptr_t seen[MANY];
    for (int i = 0; i < MANY; i++) {
        tgpu_event e = NULL;
        CHECK_OK(tgpu_event_create(NULL, &e));
        seen[i] = (uintptr_t)e;
        CHECK_OK(tgpu_event_destroy(e));
        if (i > 0) CHECK(seen[i] != seen[i - 1]);
        if (i > 0) CHECK(seen[i] != seen[0]);
        if (i % 1000 == 0) CHECK_STATUS(tgpu_event_query((tgpu_event)seen[i / 2]), TGPU_ERROR_INVALID_HANDLE);
    }
}

int main(int argc, char **argv) {
    begin(argc, argv);
    make_live();
    RUN(F15_made_up_handles_are_answered);
    RUN(F15_a_handle_with_one_bit_changed_is_another_one);
    RUN(a_part_of_a_handle_is_none);
    RUN(a_handle_has_bits_that_no_pointer_has);
    RUN(a_handle_of_another_kind_is_refused_and_named);
    RUN(a_handle_is_no_memory_and_memory_is_no_handle);
    RUN(destroying_twice_hits_nobody_else);
    RUN(handles_are_never_given_twice);
    return end();
}
