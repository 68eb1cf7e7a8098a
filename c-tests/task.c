/* Tasks: what they start with, what is theirs, and how they move between threads. */
#include "structs.h"
#include "work.h"

enum { DEVICES = 4 };

static tgpu_task new_task(uint32_t flags) {
    tgpu_task_options options = TGPU_TASK_OPTIONS_INIT;
    tgpu_task task = NULL;
    options.flags = flags;
    CHECK_OK(tgpu_task_create(&options, &task));
    CHECK(task != NULL);
    return task;
}

static tgpu_task swap_in(tgpu_task task) {
    tgpu_task before = NULL;
    CHECK_OK(tgpu_task_swap(task, &before));
    return before;
}

static tgpu_task current(void) {
    tgpu_task task = NULL;
    CHECK_OK(tgpu_task_current(&task));
    return task;
}

static int32_t policy_now(void) {
    int32_t policy = -1;
    CHECK_OK(tgpu_wait_policy_get(&policy));
    return policy;
}

/* ---- what a task starts with */

static void F01_a_task_inherits_what_was_asked_for_and_nothing_else(void) {
    const uint32_t device = TGPU_TASK_INHERIT_DEVICE, policy = TGPU_TASK_INHERIT_WAIT_POLICY, order = TGPU_TASK_INHERIT_ORDER;
    for (uint32_t flags = 0; flags <= (device | policy | order); flags++) {
        CHECK_OK(tgpu_device_set(3));
        CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_BLOCK));
        tgpu_task task = new_task(flags);
        /* Later switches of the creator do not reach it. */
        CHECK_OK(tgpu_device_set(1));
        CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_SPIN));
        swap_in(task);
        CHECK_EQ(device_now(), flags & device ? 3 : 0);
        CHECK_EQ(policy_now(), flags & policy ? TGPU_WAIT_BLOCK : TGPU_WAIT_AUTO);
        CHECK_EQ(stream_info(NULL).kind, TGPU_STREAM_LEASED);
        swap_in(NULL);
        CHECK_EQ(device_now(), 1);
        CHECK_OK(tgpu_task_destroy(task));
    }
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
    CHECK_OK(tgpu_device_set(0));
}

static void a_task_never_inherits_the_creators_stream(void) {
    tgpu_stream s = stream_on(0);
    CHECK_OK(tgpu_stream_set(s));
    tgpu_task task = new_task(TGPU_TASK_INHERIT_DEVICE | TGPU_TASK_INHERIT_ORDER);
    swap_in(task);
    CHECK(stream_now() != s);
    CHECK_EQ(stream_info(NULL).kind, TGPU_STREAM_LEASED);
    swap_in(NULL);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_task_destroy(task));
    CHECK_OK(tgpu_stream_destroy(s));
}

static void the_default_device_is_taken_at_the_first_call_that_needs_one(void) {
    tgpu_task early = new_task(0), late = new_task(0);
    swap_in(early);
    CHECK_EQ(device_now(), 0);
    swap_in(NULL);
    CHECK_OK(tgpu_device_default_set(2));
    swap_in(early);
    CHECK_EQ(device_now(), 0);
    swap_in(late);
    CHECK_EQ(device_now(), 2);
    swap_in(NULL);
    CHECK_OK(tgpu_device_default_set(0));
    CHECK_OK(tgpu_task_destroy(early));
    CHECK_OK(tgpu_task_destroy(late));
}

static void with_order_the_first_work_comes_after_the_creators(void) {
    struct gate on_0 = GATE, on_1 = GATE;
    struct notes notes = {0};
    tgpu_stream one = stream_on(1);
    hold(NULL, &on_0);
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_stream_set(one)); /* a stream of one's own counts as well */
    hold(NULL, &on_1);
    note(NULL, &notes, 2);
    tgpu_task ordered = new_task(TGPU_TASK_INHERIT_ORDER), free_one = new_task(0);
    note(NULL, &notes, 9); /* after the creation: not waited for, but in order on its stream */
    CHECK_OK(tgpu_device_set(0));

    swap_in(free_one);
    note(NULL, &notes, 3);
    CHECK_OK(tgpu_synchronize()); /* without the flag nothing is waited for */
    CHECK_NOTES(&notes, 3);
    swap_in(ordered);
    note(NULL, &notes, 4);
    CHECK_OK(tgpu_device_set(2)); /* the creator held nothing there */
    note(NULL, &notes, 5);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 3, 5);
    give_every_chance(0);
    CHECK_NOTES(&notes, 3, 5);
    open_gate(&on_0);
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 3, 5, 1, 4);
    CHECK_OK(tgpu_device_set(1)); /* its first lease there comes only now, and is ordered all the same */
    note(NULL, &notes, 6);
    give_every_chance(1);
    CHECK_NOTES(&notes, 3, 5, 1, 4);
    open_gate(&on_1);
    CHECK_OK(tgpu_synchronize());
    CHECK(notes.values[4] == 2);
    swap_in(NULL);
    CHECK_OK(tgpu_stream_synchronize(one));
    CHECK_EQ(notes.count, 7);
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_destroy(one));
    CHECK_OK(tgpu_task_destroy(ordered));
    CHECK_OK(tgpu_task_destroy(free_one));
}

/* ---- whose state */

struct travelling {
    tgpu_task task;
    tgpu_device device;
    tgpu_stream stream, lease;
};

static void *finds_its_state_here(void *data) {
    struct travelling *t = data;
    struct notes notes = {0};
    CHECK_OK(tgpu_device_set(1)); /* F03: the thread is on another device */
    struct state own = state_now();
    swap_in(t->task);
    CHECK_EQ(device_now(), t->device);
    CHECK_SAME(stream_now(), t->stream);
    CHECK_EQ(policy_now(), TGPU_WAIT_BLOCK);
    CHECK(strstr(last_text(), "44"));
    CHECK_SAME(current(), t->task);
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(notes.devices[0], t->device);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_SAME(stream_now(), t->lease);
    CHECK_OK(tgpu_stream_set(t->stream));
    swap_in(NULL);
    CHECK_STATE(own);
    return NULL;
}

static void F03_a_task_keeps_its_state_on_whatever_thread_it_runs(void) {
    struct travelling t = {.task = new_task(0), .device = 2};
    struct state before = state_now();
    swap_in(t.task);
    CHECK_OK(tgpu_device_set(2));
    t.lease = stream_now();
    CHECK_OK(tgpu_stream_create(NULL, &t.stream));
    CHECK_OK(tgpu_stream_set(t.stream));
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_BLOCK));
    CHECK_REFUSED(tgpu_device_set(44), TGPU_ERROR_INVALID_DEVICE, "44");
    swap_in(NULL);
    CHECK_STATE(before);
    for (int i = 0; i < 3; i++) on_a_thread(finds_its_state_here, &t);
    swap_in(t.task);
    CHECK_EQ(device_now(), 2);
    CHECK_SAME(stream_now(), t.stream);
    swap_in(NULL);
    CHECK_OK(tgpu_task_destroy(t.task));
    CHECK_OK(tgpu_stream_destroy(t.stream));
}

static void F04_state_is_the_tasks_and_never_the_threads(void) {
    enum { TASKS = 16 };
    tgpu_task tasks[TASKS];
    tgpu_stream streams[TASKS];
    for (int i = 0; i < TASKS; i++) {
        tasks[i] = new_task(0);
        swap_in(tasks[i]);
        CHECK_OK(tgpu_device_set(i % DEVICES));
        CHECK_OK(tgpu_wait_policy_set(i % 3));
        streams[i] = stream_now();
    }
    for (int round = 0; round < 50; round++) {
        int i = round * 7 % TASKS;
        swap_in(tasks[i]);
        CHECK_EQ(device_now(), i % DEVICES);
        CHECK_EQ(policy_now(), i % 3);
        CHECK_SAME(stream_now(), streams[i]);
        CHECK_SAME(current(), tasks[i]);
    }
    swap_in(NULL);
    for (int i = 0; i < TASKS; i++) CHECK_OK(tgpu_task_destroy(tasks[i]));
}

static void swapping_gives_the_task_before(void) {
    tgpu_task own = current(), a = new_task(0), b = new_task(0);
    CHECK_SAME(swap_in(a), own);
    CHECK_SAME(swap_in(b), a);
    CHECK_SAME(swap_in(b), b); /* in already */
    CHECK_SAME(swap_in(own), b); /* by its handle */
    CHECK_SAME(current(), own);
    CHECK_OK(tgpu_task_swap(a, NULL));
    CHECK_SAME(swap_in(NULL), a); /* by NULL */
    CHECK_SAME(swap_in(NULL), own);
    CHECK_OK(tgpu_task_destroy(a));
    CHECK_OK(tgpu_task_destroy(b));
}

/* ---- refused swaps */

static void *finds_it_busy(void *data) {
    tgpu_task out = (tgpu_task)77;
    struct state before = state_now();
    CHECK_REFUSED(tgpu_task_swap(data, &out), TGPU_ERROR_TASK_BUSY, HEX(data));
    CHECK_SAME(out, 77);
    CHECK_STATE(before);
    return NULL;
}

static void a_task_is_current_on_one_thread_at_a_time(void) {
    tgpu_task task = new_task(0);
    swap_in(task);
    on_a_thread(finds_it_busy, task);
    CHECK_SAME(current(), task);
    swap_in(NULL);
    CHECK_OK(tgpu_task_destroy(task));
}

static void *is_not_permitted(void *data) {
    tgpu_task out = (tgpu_task)77;
    struct state before = state_now();
    CHECK_REFUSED(tgpu_task_swap(data, &out), TGPU_ERROR_NOT_PERMITTED, HEX(data));
    CHECK_SAME(out, 77);
    CHECK_STATE(before);
    CHECK_STATUS(tgpu_task_destroy(data), TGPU_ERROR_NOT_PERMITTED);
    return NULL;
}

static void a_threads_own_task_runs_on_its_thread_only(void) {
    tgpu_task own = current(), task = new_task(0);
    on_a_thread(is_not_permitted, own);
    swap_in(task);
    on_a_thread(is_not_permitted, own); /* not even while it is swapped out */
    swap_in(own);
    CHECK_STATUS(tgpu_task_destroy(own), TGPU_ERROR_NOT_PERMITTED);
    CHECK_SAME(current(), own);
    CHECK_OK(tgpu_task_destroy(task));
}

static void *gives_its_own_task(void *data) {
    *(tgpu_task *)data = current();
    return NULL;
}

static void a_threads_own_task_ends_with_it(void) {
    tgpu_task gone = NULL;
    on_a_thread(gives_its_own_task, &gone);
    CHECK_REFUSED(tgpu_task_swap(gone, NULL), TGPU_ERROR_INVALID_HANDLE, HEX(gone));
    CHECK_STATUS(tgpu_task_destroy(gone), TGPU_ERROR_INVALID_HANDLE);
}

static void F15_a_destroyed_task_is_answered_and_not_followed(void) {
    tgpu_task task = new_task(0), out = (tgpu_task)77;
    struct state before = state_now();
    CHECK_OK(tgpu_task_destroy(task));
    CHECK_REFUSED(tgpu_task_swap(task, &out), TGPU_ERROR_INVALID_HANDLE, HEX(task));
    CHECK_STATUS(tgpu_task_destroy(task), TGPU_ERROR_INVALID_HANDLE);
    CHECK_SAME(out, 77);
    CHECK_STATE(before);
}

/* ---- the end of a task */

static void a_task_destroyed_while_current_goes_on_until_it_is_swapped_out(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_task task = new_task(0), out = (tgpu_task)77;
    swap_in(task);
    CHECK_OK(tgpu_device_set(2));
    tgpu_stream lease = stream_now();
    hold(NULL, &gate);
    CHECK_OK(tgpu_task_destroy(task));
    CHECK_EQ(device_now(), 2); /* the state is still there */
    CHECK_SAME(stream_now(), lease);
    note(NULL, &notes, 1);
    CHECK_REFUSED(tgpu_task_current(&out), TGPU_ERROR_INVALID_HANDLE, "destroyed"); /* the handle is not */
    CHECK_SAME(out, 77);
    CHECK_STATUS(tgpu_task_destroy(task), TGPU_ERROR_INVALID_HANDLE);
    CHECK_SAME(swap_in(NULL), NULL); /* nothing to swap back in */
    CHECK_STATUS(tgpu_stream_query(lease), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_task_swap(task, NULL), TGPU_ERROR_INVALID_HANDLE);
    open_gate(&gate);
    CHECK_OK(tgpu_device_set(2));
    CHECK_OK(tgpu_device_synchronize()); /* its work finishes */
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_device_set(0));
}

static void *destroys_it(void *data) {
    CHECK_OK(tgpu_task_destroy(data));
    return NULL;
}

static void a_task_may_be_destroyed_by_another_thread_while_current(void) {
    tgpu_task task = new_task(0);
    swap_in(task);
    CHECK_OK(tgpu_device_set(3));
    on_a_thread(destroys_it, task);
    CHECK_EQ(device_now(), 3);
    CHECK_SAME(swap_in(NULL), NULL);
    CHECK_EQ(device_now(), 0);
}

static void *ends_with_it_swapped_in(void *data) {
    swap_in(data);
    CHECK_OK(tgpu_device_set(3));
    return NULL;
}

static void a_thread_that_ends_gives_its_swapped_in_task_back(void) {
    tgpu_task task = new_task(0);
    on_a_thread(ends_with_it_swapped_in, task);
    swap_in(task); /* not busy */
    CHECK_EQ(device_now(), 3);
    swap_in(NULL);
    CHECK_OK(tgpu_task_destroy(task));
}

static void *ends_with_it_destroyed(void *data) {
    swap_in(data);
    stream_now();
    CHECK_OK(tgpu_task_destroy(data));
    return NULL;
}

static void a_thread_may_end_with_a_destroyed_task_swapped_in(void) {
    for (int i = 0; i < 100; i++) on_a_thread(ends_with_it_destroyed, new_task(0));
}

static void a_tasks_leases_end_with_it_and_its_work_finishes(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_event e = NULL;
    tgpu_task task = new_task(0);
    swap_in(task);
    tgpu_stream lease = stream_now();
    hold(NULL, &gate);
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_event_create(NULL, &e));
    CHECK_OK(tgpu_event_record(e, NULL));
    swap_in(NULL);
    CHECK_STATUS(tgpu_stream_query(lease), TGPU_NOT_READY); /* still valid */
    CHECK_OK(tgpu_task_destroy(task)); /* does not block */
    CHECK_REFUSED(tgpu_stream_query(lease), TGPU_ERROR_INVALID_HANDLE, HEX(lease));
    open_gate(&gate);
    CHECK_OK(tgpu_event_synchronize(e)); /* how to wait for the work of a task that is gone */
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_event_destroy(e));
}

/* ---- leases */

static void F13_two_live_tasks_never_share_a_stream(void) {
    enum { TASKS = 200 };
    tgpu_task tasks[TASKS];
    uint64_t ids[TASKS];
    for (int i = 0; i < TASKS; i++) {
        tasks[i] = new_task(0);
        swap_in(tasks[i]);
        ids[i] = stream_id(NULL);
        for (int j = 0; j < i; j++) CHECK(ids[j] != ids[i]);
    }
    swap_in(NULL);
    for (int j = 0; j < TASKS; j++) CHECK(stream_id(NULL) != ids[j]);
    for (int i = 0; i < TASKS; i++) CHECK_OK(tgpu_task_destroy(tasks[i]));
}

static void F13_a_new_task_gets_an_idle_stream_before_one_that_is_held_up(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_task held = new_task(0);
    swap_in(held);
    CHECK_OK(tgpu_device_set(1));
    hold(NULL, &gate);
    swap_in(NULL);
    CHECK_OK(tgpu_task_destroy(held)); /* its stream goes back with the gate closed */
    for (int i = 0; i < 20; i++) {
        tgpu_task task = new_task(0);
        swap_in(task);
        CHECK_OK(tgpu_device_set(1));
        note(NULL, &notes, i);
        CHECK_OK(tgpu_synchronize()); /* would hang behind the gate */
        swap_in(NULL);
        CHECK_OK(tgpu_task_destroy(task));
    }
    open_gate(&gate);
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_device_synchronize());
    CHECK_OK(tgpu_device_set(0));
}

static void F13_held_up_streams_are_shared_with_no_live_task(void) {
    /* More tasks than the pool keeps, all ended with work that is held up: new tasks still get streams, and two that live
     * at the same time never the same one. */
    enum { TASKS = 80 };
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream gated = stream_on(2);
    tgpu_event e = NULL;
    tgpu_task tasks[TASKS];
    uint64_t ids[TASKS];
    CHECK_OK(tgpu_event_create(NULL, &e));
    hold(gated, &gate);
    CHECK_OK(tgpu_event_record(e, gated));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < TASKS; i++) {
            tasks[i] = new_task(0);
            swap_in(tasks[i]);
            CHECK_OK(tgpu_device_set(2));
            ids[i] = stream_id(NULL);
            for (int j = 0; j < i; j++) CHECK(ids[j] != ids[i]);
            CHECK_OK(tgpu_stream_wait_event(NULL, e)); /* held up without taking a thread */
            note(NULL, &notes, i);
        }
        swap_in(NULL);
        for (int i = 0; i < TASKS; i++) CHECK_OK(tgpu_task_destroy(tasks[i]));
    }
    CHECK_EQ(notes.count, 0);
    open_gate(&gate);
    CHECK_OK(tgpu_device_set(2));
    CHECK_OK(tgpu_device_synchronize());
    CHECK_OK(tgpu_device_set(0));
    CHECK_EQ(notes.count, 2 * TASKS);
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_OK(tgpu_stream_destroy(gated));
}

struct short_life {
    tgpu_device device;
    uint64_t id;
    struct notes notes;
};

static void *a_short_life(void *data) {
    struct short_life *life = data;
    CHECK_OK(tgpu_device_set(life->device));
    life->notes.count = 0;
    note(NULL, &life->notes, 1);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&life->notes, 1);
    life->id = stream_id(NULL);
    return NULL;
}

static void F14_twenty_thousand_short_threads_use_a_few_streams_and_no_more_memory(void) {
    enum { THREADS = 20000, WARM = 1000, AT_ONCE = 4, MOST = 64 };
    static struct short_life lives[AT_ONCE];
    uint64_t seen[MOST];
    int count = 0;
    long warm = 0;
    for (int i = 0; i < THREADS; i += AT_ONCE) {
        pthread_t threads[AT_ONCE];
        if (i == WARM) warm = resident_kib();
        for (int j = 0; j < AT_ONCE; j++) {
            lives[j].device = j;
            threads[j] = start_thread(a_short_life, &lives[j]);
        }
        for (int j = 0; j < AT_ONCE; j++) {
            int k = 0;
            join_thread(threads[j]);
            while (k < count && seen[k] != lives[j].id) k++;
            if (k < count) continue;
            if (count == MOST) FAIL("after %d threads: more than %d streams", i, MOST);
            seen[count++] = lives[j].id;
        }
    }
    if (resident_kib() > warm + 8192) FAIL("resident memory went from %ld KiB to %ld KiB", warm, resident_kib());
}

static void F14_a_hundred_thousand_tasks_cost_no_memory(void) {
    long warm = 0;
    for (int i = 0; i < 100000; i++) {
        tgpu_task task = new_task(TGPU_TASK_INHERIT_ORDER);
        swap_in(task);
        CHECK_OK(tgpu_device_set(i % DEVICES));
        stream_now();
        swap_in(NULL);
        CHECK_OK(tgpu_task_destroy(task));
        if (i % 250 == 0) sleep_ms(1); /* the library's own thread takes apart what is left, and may lag on a busy machine */
        if (i == 30000) warm = resident_kib();
    }
    if (resident_kib() > warm + 8192) FAIL("resident memory went from %ld KiB to %ld KiB", warm, resident_kib());
}

/* ---- bad input */

static tgpu_status create_task(void *options) {
    tgpu_task task = NULL;
    tgpu_status status = tgpu_task_create(options, &task);
    if (status == TGPU_OK) CHECK_OK(tgpu_task_destroy(task));
    else CHECK_SAME(task, NULL);
    return status;
}

static void task_options_take_every_struct_size(void) {
    tgpu_task_options options = TGPU_TASK_OPTIONS_INIT;
    options.flags = TGPU_TASK_INHERIT_DEVICE;
    check_input_struct(create_task, &options, sizeof options);
    CHECK_OK(create_task(NULL));
}

static void unknown_flags_and_null_are_refused(void) {
    tgpu_task_options options = TGPU_TASK_OPTIONS_INIT;
    struct state before = state_now();
    for (int bit = 3; bit < 32; bit++) {
        options.flags = UINT32_C(1) << bit | TGPU_TASK_INHERIT_DEVICE;
        CHECK_REFUSED(create_task(&options), TGPU_ERROR_INVALID_ARGUMENT, "flags");
    }
    CHECK_REFUSED(tgpu_task_create(NULL, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_task_current(NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_STATE(before);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(F01_a_task_inherits_what_was_asked_for_and_nothing_else);
    RUN(a_task_never_inherits_the_creators_stream);
    RUN(the_default_device_is_taken_at_the_first_call_that_needs_one);
    RUN(with_order_the_first_work_comes_after_the_creators);
    RUN(F03_a_task_keeps_its_state_on_whatever_thread_it_runs);
    RUN(F04_state_is_the_tasks_and_never_the_threads);
    RUN(swapping_gives_the_task_before);
    RUN(a_task_is_current_on_one_thread_at_a_time);
    RUN(a_threads_own_task_runs_on_its_thread_only);
    RUN(a_threads_own_task_ends_with_it);
    RUN(F15_a_destroyed_task_is_answered_and_not_followed);
    RUN(a_task_destroyed_while_current_goes_on_until_it_is_swapped_out);
    RUN(a_task_may_be_destroyed_by_another_thread_while_current);
    RUN(a_thread_that_ends_gives_its_swapped_in_task_back);
    RUN(a_thread_may_end_with_a_destroyed_task_swapped_in);
    RUN(a_tasks_leases_end_with_it_and_its_work_finishes);
    RUN(F13_two_live_tasks_never_share_a_stream);
    RUN(F13_a_new_task_gets_an_idle_stream_before_one_that_is_held_up);
    RUN(F13_held_up_streams_are_shared_with_no_live_task);
    /* Alone, where the tests before have left no streams. */
    RUN_IN_CHILD(F14_twenty_thousand_short_threads_use_a_few_streams_and_no_more_memory, AS_IT_IS);
    RUN(F14_a_hundred_thousand_tasks_cost_no_memory);
    RUN(task_options_take_every_struct_size);
    RUN(unknown_flags_and_null_are_refused);
    return end();
}
