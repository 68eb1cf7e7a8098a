/* The end of a process: whatever is queued, held up or running, it ends, and quietly. Each scenario is a process. */
#include "calls.h"
#include "work.h"

static struct gate never_opened = GATE;

static void some_work(void) {
    struct notes notes = {0};
    for (tgpu_device d = 0; d < 4; d++) {
        CHECK_OK(tgpu_device_set(d));
        note(NULL, &notes, d);
        CHECK_OK(tgpu_synchronize());
    }
    CHECK_OK(tgpu_device_set(0));
}

static void busy_for_a_moment(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
    for (volatile int i = 0; i < 100000; i++) {}
}

static void queue_a_lot(void) {
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_kernel k = kernel_of(busy_for_a_moment, 0, NULL);
    config.grid[0] = 100;
    for (int i = 0; i < 1000; i++) {
        CHECK_OK(tgpu_device_set(i % 4));
        if (is_host(i % 4)) CHECK_OK(tgpu_launch(k, &config, NULL));
        else queue(NULL, busy_for_a_moment, NULL);
    }
}

static void F16_with_nothing_done(void) {
    int32_t count;
    CHECK_OK(tgpu_device_count(&count));
}

static void F16_with_everything_done_and_nothing_given_back(void) {
    some_work();
    make_objects();
}

static void F16_with_work_queued(void) {
    queue_a_lot();
}

static void F16_with_a_kernel_that_never_ends(void) {
    hold(NULL, &never_opened);
    wait_for_gate(&never_opened);
}

static void F16_with_every_thread_of_the_library_held_up(void) {
    for (int i = 0; i < 8; i++) hold(stream_on(i % 4), &never_opened);
    wait_for_gate(&never_opened);
    queue_a_lot();
}

static void F16_with_deferred_frees_and_destroyed_streams_outstanding(void) {
    tgpu_stream s = stream_on(1);
    void *p = NULL, *pinned = NULL;
    CHECK_OK(tgpu_malloc(1 << 20, &p));
    CHECK_OK(tgpu_host_malloc(1 << 20, &pinned));
    hold(s, &never_opened);
    CHECK_OK(tgpu_stream_destroy(s));
    CHECK_OK(tgpu_free_deferred(p));
    CHECK_OK(tgpu_host_free(pinned));
}

static void never_comes(void *data, tgpu_status status) {
    (void)data, (void)status;
}

static void F16_with_callbacks_and_descriptors_outstanding(void) {
    hold(NULL, &never_opened);
    for (int i = 0; i < 100; i++) {
        CHECK_OK(tgpu_stream_add_callback(NULL, never_comes, NULL));
        CHECK_OK(tgpu_stream_signal_fd(NULL, null_device()));
    }
}

static void F16_with_a_task_swapped_in_and_a_scope_open(void) {
    tgpu_task task = NULL;
    tgpu_scope scope;
    CHECK_OK(tgpu_task_create(NULL, &task));
    CHECK_OK(tgpu_task_swap(task, NULL));
    CHECK_OK(tgpu_scope_enter_device(2, &scope));
    some_work();
}

/* ---- handlers that run at exit */

/* Any answer will do, as long as there is one; nothing may hang. */
static void call_everything(void) {
    struct objects o = no_objects();
    int32_t count = 0;
    void *p = NULL;
    tgpu_stream s = NULL;
    for (size_t i = 0; i < sizeof EVERY_CALL / sizeof *EVERY_CALL; i++) {
        union outputs out;
        memset(&out, 0, sizeof out);
        /* The kernels and callbacks that these queue must not run, so they are left out. */
        if (strcmp(EVERY_CALL[i].name, "tgpu_stream_add_callback") == 0 || strcmp(EVERY_CALL[i].name, "tgpu_launch") == 0) continue;
        if (strcmp(EVERY_CALL[i].name, "tgpu_memory_reclaim_hook_add") == 0) continue;
        tgpu_status status = EVERY_CALL[i].call(&o, &out);
        CHECK(strcmp(tgpu_status_name(status), "unknown status") != 0);
        CHECK(status != TGPU_ERROR_INTERNAL);
    }
    CHECK_OK(tgpu_device_count(&count));
    CHECK_EQ(count, 4);
    if (tgpu_stream_create(NULL, &s) == TGPU_OK) CHECK_OK(tgpu_stream_destroy(s));
    if (tgpu_malloc(100, &p) == TGPU_OK) CHECK_OK(tgpu_free_deferred(p));
    check_what_needs_no_runtime();
    check_giving_back_nothing_is_ok();
}

static void synchronize_at_exit(void) {
    tgpu_status status = tgpu_synchronize(); /* what is unfinished may be refused, but the wait ends */
    CHECK(strcmp(tgpu_status_name(status), "unknown status") != 0);
    CHECK(tgpu_device_synchronize() != TGPU_ERROR_INTERNAL);
}

static void F16_handlers_at_exit_may_call_in(void) {
    atexit(call_everything); /* runs after the library's own handler */
    some_work();
    atexit(call_everything); /* runs before it */
}

static void F16_handlers_at_exit_may_call_in_first(void) {
    atexit(call_everything);
}

static struct objects for_later;

static void give_back(void) {
    check_cleanup_is_ok(&for_later);
    (void)tgpu_free(for_later.freed); /* answers, if only that the process is going down */
}

static void F16_handlers_at_exit_may_give_everything_back(void) {
    atexit(give_back);
    some_work();
    for_later = make_objects();
}

static void F16_a_wait_at_exit_for_work_that_never_ends_does_end(void) {
    atexit(synchronize_at_exit);
    some_work();
    hold(NULL, &never_opened);
    wait_for_gate(&never_opened);
}

/* ---- other ways to end */

static void *exits(void *data) {
    (void)data;
    some_work();
    exit(0);
}

static void F16_exit_on_another_thread_while_this_one_waits(void) {
    hold(NULL, &never_opened);
    wait_for_gate(&never_opened);
    start_thread(exits, NULL);
    for (;;)
        if (tgpu_synchronize() != TGPU_OK) sleep_ms(1); /* answered again and again, until the process is gone */
}

static void *works_on(void *data) {
    (void)data;
    for (;;) {
        struct notes *notes = calloc(1, sizeof *notes); /* may outlive this thread */
        tgpu_stream s = NULL;
        if (tgpu_stream_create(NULL, &s) != TGPU_OK) return NULL;
        (void)try_note(s, notes, 1);
        (void)tgpu_stream_synchronize(s);
        (void)tgpu_stream_destroy(s);
    }
}

static void F16_other_threads_go_on_calling(void) {
    for (int i = 0; i < 4; i++) start_thread(works_on, NULL);
    sleep_ms(20);
}

static void exits_in_callback(void *data, tgpu_status status) {
    (void)data, (void)status;
    exit(0);
}

static void F16_exit_inside_a_callback(void) {
    CHECK_OK(tgpu_stream_add_callback(NULL, exits_in_callback, NULL));
    for (;;) pause();
}

static void exits_in_kernel(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
    exit(0);
}

static void F16_exit_inside_a_kernel(void) {
    queue(NULL, exits_in_kernel, NULL);
    for (;;) pause();
}

static void *ends_later(void *data) {
    (void)data;
    sleep_ms(20);
    some_work();
    exit(0);
}

static void F16_main_ends_before_another_thread(void) {
    some_work();
    start_thread(ends_later, NULL);
    pthread_exit(NULL);
}

static void F16_quick_exit(void) {
    queue_a_lot();
    fflush(NULL);
    quick_exit(0);
}

static void F16_exit_without_handlers(void) {
    queue_a_lot();
    fflush(NULL);
    _exit(0);
}

/* ---- threads that end */

static pthread_key_t key;

static void call_in_a_key_destructor(void *value) {
    tgpu_device d;
    CHECK_OK(tgpu_device_get(&d)); /* the thread has a task, if need be a new one */
    some_work();
    free(value);
}

static void *sets_a_key(void *data) {
    (void)data;
    pthread_setspecific(key, malloc(1));
    some_work();
    return NULL;
}

static void destructors_of_thread_data_may_call_in(void) {
    long warm = 0;
    pthread_key_create(&key, call_in_a_key_destructor);
    for (int i = 0; i < 300; i++) {
        on_a_thread(sets_a_key, NULL);
        if (i == 100) warm = resident_kib();
    }
    CHECK(resident_kib() < warm + 4096);
}

static void *is_cancelled(void *data) {
    tgpu_scope scope;
    CHECK_OK(tgpu_scope_enter_device(2, &scope));
    stream_now();
    *(atomic_int *)data = 1;
    while (pause() != 0) {}
    return NULL;
}

static void a_cancelled_thread_gives_its_streams_back(void) {
    uint64_t first = 0;
    for (int i = 0; i < 100; i++) {
        atomic_int ready = 0;
        pthread_t thread = start_thread(is_cancelled, (void *)&ready);
        WAIT_UNTIL(ready);
        pthread_cancel(thread);
        join_thread(thread);
    }
    CHECK_OK(tgpu_device_set(2));
    first = stream_id(NULL);
    CHECK(first < 20); /* the same few were used all the time */
}

/* ---- a destructor of this program: runs after the handlers */

static int destructor_calls_in;

__attribute__((destructor)) static void at_the_very_end(void) {
    if (destructor_calls_in) call_everything();
}

static void F16_destructors_of_the_program_may_call_in(void) {
    destructor_calls_in = 1;
    some_work();
    queue_a_lot();
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN_IN_CHILD(F16_with_nothing_done, AS_IT_IS);
    RUN_IN_CHILD(F16_with_everything_done_and_nothing_given_back, AS_IT_IS);
    RUN_IN_CHILD(F16_with_work_queued, AS_IT_IS);
    RUN_IN_CHILD(F16_with_a_kernel_that_never_ends, AS_IT_IS);
    RUN_IN_CHILD(F16_with_every_thread_of_the_library_held_up, AS_IT_IS);
    RUN_IN_CHILD(F16_with_deferred_frees_and_destroyed_streams_outstanding, AS_IT_IS);
    RUN_IN_CHILD(F16_with_callbacks_and_descriptors_outstanding, AS_IT_IS);
    RUN_IN_CHILD(F16_with_a_task_swapped_in_and_a_scope_open, AS_IT_IS);
    RUN_IN_CHILD(F16_handlers_at_exit_may_call_in, AS_IT_IS);
    RUN_IN_CHILD(F16_handlers_at_exit_may_call_in_first, AS_IT_IS);
    RUN_IN_CHILD(F16_handlers_at_exit_may_give_everything_back, AS_IT_IS);
    RUN_IN_CHILD(F16_a_wait_at_exit_for_work_that_never_ends_does_end, AS_IT_IS);
    RUN_IN_CHILD(F16_exit_on_another_thread_while_this_one_waits, AS_IT_IS);
    RUN_IN_CHILD(F16_other_threads_go_on_calling, AS_IT_IS);
    RUN_IN_CHILD(F16_exit_inside_a_callback, AS_IT_IS);
    RUN_IN_CHILD(F16_exit_inside_a_kernel, AS_IT_IS);
    RUN_IN_CHILD(F16_main_ends_before_another_thread, AS_IT_IS);
    RUN_IN_CHILD(F16_quick_exit, AS_IT_IS);
    RUN_IN_CHILD(F16_exit_without_handlers, AS_IT_IS);
    RUN_IN_CHILD(F16_destructors_of_the_program_may_call_in, AS_IT_IS);
    RUN_IN_CHILD(destructors_of_thread_data_may_call_in, AS_IT_IS);
    RUN_IN_CHILD(a_cancelled_thread_gives_its_streams_back, AS_IT_IS);
    return end();
}
