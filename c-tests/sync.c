/* Waiting: for what, how, and that nothing keeps a wait from ending. */
#include "work.h"

static const int32_t POLICIES[] = {TGPU_WAIT_AUTO, TGPU_WAIT_SPIN, TGPU_WAIT_BLOCK};

static int32_t policy_now(void) {
    int32_t policy = -1;
    CHECK_OK(tgpu_wait_policy_get(&policy));
    return policy;
}

static void F26_synchronize_returns_when_the_work_is_done_and_not_before(void) {
    for (int p = 0; p < 3; p++) {
        CHECK_OK(tgpu_wait_policy_set(POLICIES[p]));
        for (int i = 0; i < 300; i++) {
            struct notes notes = {0};
            void *device = NULL;
            int host = 0;
            CHECK_OK(tgpu_malloc_async(sizeof host, NULL, &device));
            CHECK_OK(tgpu_fill(device, &i, sizeof i, 1, NULL));
            note(NULL, &notes, i);
            CHECK_OK(tgpu_memcpy(&host, device, sizeof host, NULL));
            CHECK_OK(tgpu_free_async(device, NULL));
            CHECK_OK(tgpu_synchronize());
            CHECK_EQ(host, i);
            CHECK_NOTES(&notes, i);
        }
    }
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
}

static void synchronize_waits_for_the_current_stream_only(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream other = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &other));
    hold(other, &gate);
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_synchronize()); /* would hang */
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_device_set(0));
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(other));
    CHECK_OK(tgpu_stream_destroy(other));
}

static void synchronizing_an_unused_stream_returns_at_once(void) {
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_OK(tgpu_stream_query(s));
    CHECK_OK(tgpu_stream_destroy(s));
}

/* ---- policies */

static void *starts_with_auto(void *data) {
    (void)data;
    CHECK_EQ(policy_now(), TGPU_WAIT_AUTO);
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_SPIN));
    return NULL;
}

static void the_wait_policy_belongs_to_the_task(void) {
    for (int p = 0; p < 3; p++) {
        CHECK_OK(tgpu_wait_policy_set(POLICIES[p]));
        CHECK_EQ(policy_now(), POLICIES[p]);
        CHECK_OK(tgpu_device_set(p)); /* and not to the device */
        CHECK_EQ(policy_now(), POLICIES[p]);
        on_a_thread(starts_with_auto, NULL);
        CHECK_EQ(policy_now(), POLICIES[p]);
    }
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
    CHECK_OK(tgpu_device_set(0));
}

static void unknown_policies_are_refused(void) {
    const int32_t wrong[] = {-1, 3, 4, INT32_MIN, INT32_MAX};
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_BLOCK));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_REFUSED(tgpu_wait_policy_set(wrong[i]), TGPU_ERROR_INVALID_ARGUMENT, SIGNED(wrong[i]));
        CHECK_EQ(policy_now(), TGPU_WAIT_BLOCK);
    }
    CHECK_REFUSED(tgpu_wait_policy_get(NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
}

/* ---- what must not keep a wait from ending */

static atomic_int signals_seen;

static void count_signal(int number) {
    (void)number;
    atomic_fetch_add(&signals_seen, 1);
}

struct waiter {
    int32_t policy;
    int what; /* 0 stream, 1 device, 2 event, 3 timeout */
    struct gate *gate;
    atomic_int waiting, done;
};

static void *waits(void *data) {
    struct waiter *w = data;
    tgpu_event e = NULL;
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_wait_policy_set(w->policy));
    CHECK_OK(tgpu_event_create(NULL, &e));
    hold(NULL, w->gate);
    CHECK_OK(tgpu_event_record(e, NULL));
    w->waiting = 1;
    if (w->what == 0) CHECK_OK(tgpu_synchronize());
    if (w->what == 1) CHECK_OK(tgpu_device_synchronize());
    if (w->what == 2) CHECK_OK(tgpu_event_synchronize(e));
    if (w->what == 3) CHECK_OK(tgpu_stream_synchronize_timeout(NULL, UINT64_C(3600000000000)));
    CHECK(w->gate->open);
    w->done = 1;
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_event_destroy(e));
    return NULL;
}

static void signals_do_not_end_a_wait(void) {
    struct sigaction action = {0};
    action.sa_handler = count_signal; /* without SA_RESTART: system calls are interrupted */
    sigaction(SIGUSR1, &action, NULL);
    for (int what = 0; what < 4; what++)
        for (int p = 0; p < 3; p++) {
            struct gate gate = GATE;
            struct waiter w = {POLICIES[p], what, &gate, 0, 0};
            int seen = signals_seen;
            pthread_t thread = start_thread(waits, &w);
            WAIT_UNTIL(w.waiting);
            for (int i = 0; i < 20; i++) {
                pthread_kill(thread, SIGUSR1);
                sleep_ms(1);
            }
            CHECK(!w.done);
            CHECK(signals_seen > seen);
            open_gate(&gate);
            join_thread(thread);
        }
    signal(SIGUSR1, SIG_DFL);
}

static void F24_a_waiting_thread_holds_nobody_up(void) {
    for (int what = 0; what < 3; what++)
        for (int p = 0; p < 3; p++) {
            struct gate gate = GATE;
            struct waiter w = {POLICIES[p], what, &gate, 0, 0};
            struct notes notes = {0};
            tgpu_stream s = NULL;
            tgpu_event e = NULL;
            tgpu_task task = NULL;
            void *memory = NULL, *pinned = NULL;
            pthread_t thread = start_thread(waits, &w);
            WAIT_UNTIL(w.waiting);
            wait_for_gate(&gate);
            /* Everything that does not itself wait for that stream goes on, on the same device and on others. */
            for (tgpu_device d = 0; d < 2; d++) {
                CHECK_OK(tgpu_device_set(d));
                s = stream_on(d);
                CHECK_OK(tgpu_event_create(NULL, &e));
                CHECK_OK(tgpu_task_create(NULL, &task));
                CHECK_OK(tgpu_task_swap(task, NULL));
                CHECK_OK(tgpu_task_swap(NULL, NULL));
                CHECK_OK(tgpu_malloc(1000, &memory));
                CHECK_OK(tgpu_host_malloc(1000, &pinned));
                note(s, &notes, 1);
                CHECK_OK(tgpu_event_record(e, s));
                CHECK_OK(tgpu_stream_synchronize(s));
                CHECK_OK(tgpu_event_synchronize(e));
                CHECK_OK(tgpu_stream_destroy(s));
                CHECK_OK(tgpu_event_destroy(e));
                CHECK_OK(tgpu_task_destroy(task));
                CHECK_OK(tgpu_free_deferred(memory));
                CHECK_OK(tgpu_host_free(pinned));
            }
            CHECK_OK(tgpu_device_set(0));
            CHECK(!w.done);
            CHECK_EQ(notes.count, 2);
            open_gate(&gate);
            join_thread(thread);
        }
}

static void *synchronizes(void *data) {
    CHECK_OK(tgpu_stream_synchronize(data));
    return NULL;
}

static void F24_many_threads_wait_for_one_stream(void) {
    struct gate gate = GATE;
    pthread_t threads[16];
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    hold(s, &gate);
    for (int i = 0; i < 16; i++) threads[i] = start_thread(synchronizes, s);
    wait_for_gate(&gate);
    open_gate(&gate);
    for (int i = 0; i < 16; i++) join_thread(threads[i]);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void F22_waits_of_every_length_end(void) {
    /* AUTO goes from polling to sleeping and back: neither may miss the end. */
    for (int i = 0; i < 60; i++) {
        struct gate gate = GATE;
        struct waiter w = {TGPU_WAIT_AUTO, i % 3, &gate, 0, 0};
        pthread_t thread = start_thread(waits, &w);
        WAIT_UNTIL(w.waiting);
        sleep_ms(i % 5);
        open_gate(&gate);
        join_thread(thread);
    }
}

static void F23_short_waits_come_thick_and_fast(void) {
    struct notes notes = {0};
    for (int p = 0; p < 3; p++) {
        CHECK_OK(tgpu_wait_policy_set(POLICIES[p]));
        for (int i = 0; i < 1000; i++) {
            note(NULL, &notes, i);
            CHECK_OK(tgpu_synchronize());
            CHECK_EQ(notes.count, 1000 * p + i + 1);
        }
    }
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(F26_synchronize_returns_when_the_work_is_done_and_not_before);
    RUN(synchronize_waits_for_the_current_stream_only);
    RUN(synchronizing_an_unused_stream_returns_at_once);
    RUN(the_wait_policy_belongs_to_the_task);
    RUN(unknown_policies_are_refused);
    RUN(signals_do_not_end_a_wait);
    RUN(F24_a_waiting_thread_holds_nobody_up);
    RUN(F24_many_threads_wait_for_one_stream);
    RUN(F22_waits_of_every_length_end);
    RUN(F23_short_waits_come_thick_and_fast);
    return end();
}
