/* Streams: which one is current, order, priorities, callbacks, descriptors, streams of others. */
#include "calls.h"
#include "structs.h"
#include "work.h"
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

/* ---- the current stream */

static void F13_a_task_has_one_lease_for_each_device_and_finds_it_again(void) {
    tgpu_stream zero = stream_now(), one;
    tgpu_stream_info info = stream_info(NULL);
    CHECK(zero != NULL);
    CHECK_EQ(info.kind, TGPU_STREAM_LEASED);
    CHECK_EQ(info.device, 0);
    CHECK_SAME(stream_now(), zero);
    CHECK_OK(tgpu_device_set(1));
    one = stream_now();
    CHECK(one != zero);
    CHECK_EQ(stream_info(NULL).device, 1);
    CHECK(stream_id(one) != stream_id(zero));
    CHECK_OK(tgpu_device_set(0));
    CHECK_SAME(stream_now(), zero);
    CHECK_OK(tgpu_device_set(1));
    CHECK_SAME(stream_now(), one);
    CHECK_OK(tgpu_device_set(0));
}

static void F08_the_stream_that_is_set_is_where_the_work_goes(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream lease = stream_now(), s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_SAME(stream_now(), lease); /* creating one changes nothing */
    CHECK_OK(tgpu_stream_set(s));
    CHECK_SAME(stream_now(), s);
    CHECK_EQ(stream_id(NULL), stream_id(s));
    hold(s, &gate);
    note(NULL, &notes, 1); /* behind the gate, if it is on s */
    note(lease, &notes, 2);
    CHECK_OK(tgpu_stream_synchronize(lease));
    CHECK_NOTES(&notes, 2);
    CHECK_STATUS(tgpu_stream_query(NULL), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 2, 1);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_SAME(stream_now(), lease);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void F12_setting_a_stream_makes_its_device_current(void) {
    struct notes notes = {0};
    tgpu_stream s = stream_on(2), lease = stream_now();
    CHECK_OK(tgpu_stream_set(s));
    CHECK_EQ(device_now(), 2);
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(notes.devices[0], 2);
    CHECK_OK(tgpu_device_set(0));
    CHECK_SAME(stream_now(), lease); /* device 0's stream was never touched */
    CHECK_OK(tgpu_device_set(2));
    CHECK_SAME(stream_now(), s); /* and s stays current for its device */
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_EQ(device_now(), 2); /* NULL is about the current device */
    CHECK(stream_now() != s);
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_destroy(s));
}

static void F12_work_on_another_devices_stream_runs_there_and_changes_nothing(void) {
    struct notes notes = {0};
    tgpu_stream s = stream_on(3);
    struct state before = state_now();
    note(s, &notes, 1);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_EQ(notes.devices[0], 3);
    CHECK_STATE(before);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void null_is_the_current_devices_stream_wherever_the_pointers_live(void) {
    struct gate gate = GATE;
    void *there = NULL, *pinned = NULL;
    CHECK_OK(tgpu_host_malloc(64, &pinned));
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_malloc(64, &there));
    CHECK_OK(tgpu_device_set(0));
    hold(NULL, &gate);
    CHECK_OK(tgpu_memset(there, 7, 64, NULL)); /* device 1's memory, device 0's stream: behind the gate */
    CHECK_OK(tgpu_memcpy(pinned, there, 64, NULL));
    memset(pinned, 1, 64);
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(tgpu_synchronize()); /* nothing was queued on device 1 */
    give_every_chance(1);
    CHECK_EQ(((char *)pinned)[63], 1);
    open_gate(&gate);
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(((char *)pinned)[63], 7);
    CHECK_OK(tgpu_free(there));
    CHECK_OK(tgpu_host_free(pinned));
}

static void a_lease_cannot_be_destroyed(void) {
    tgpu_stream lease = stream_now();
    struct state before = state_now();
    CHECK_STATUS(tgpu_stream_destroy(lease), TGPU_ERROR_NOT_PERMITTED);
    CHECK_STATE(before);
    CHECK_OK(tgpu_stream_query(lease));
}

static void a_lease_may_be_set_like_any_stream(void) {
    tgpu_stream lease = stream_now();
    CHECK_OK(tgpu_stream_set(lease));
    CHECK_SAME(stream_now(), lease);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_SAME(stream_now(), lease);
}

static void *give_my_lease_away(void *data) {
    *(tgpu_stream *)data = stream_now();
    return NULL;
}

static void a_lease_ends_with_its_task(void) {
    tgpu_stream gone = NULL;
    on_a_thread(give_my_lease_away, &gone);
    CHECK_REFUSED(tgpu_stream_query(gone), TGPU_ERROR_INVALID_HANDLE, HEX(gone));
    CHECK_REFUSED(tgpu_stream_set(gone), TGPU_ERROR_INVALID_HANDLE, HEX(gone));
    CHECK_STATUS(tgpu_stream_destroy(gone), TGPU_ERROR_INVALID_HANDLE);
}

/* ---- destroyed streams */

static void every_call_refuses(tgpu_stream s) {
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_event e = NULL;
    tgpu_scope scope;
    void *p = NULL, *out = (void *)77;
    struct state before = state_now();
    struct notes notes = {0};
    tgpu_kernel k = kernel_of(never_run, 0, NULL);
    CHECK_OK(tgpu_event_create(NULL, &e));
    CHECK_OK(tgpu_malloc(64, &p));
    config.stream = s;
#define DEAD(call) CHECK_REFUSED(call, TGPU_ERROR_INVALID_HANDLE, HEX(s))
    DEAD(tgpu_stream_set(s));
    DEAD(tgpu_stream_query(s));
    DEAD(tgpu_stream_synchronize(s));
    DEAD(tgpu_stream_synchronize_timeout(s, 1));
    DEAD(tgpu_stream_wait_event(s, e));
    DEAD(tgpu_stream_wait_stream(s, NULL));
    DEAD(tgpu_stream_wait_stream(NULL, s));
    DEAD(tgpu_stream_info_get(s, &info));
    DEAD(tgpu_stream_native(s, &out));
    DEAD(tgpu_stream_add_callback(s, never_called, NULL));
    DEAD(tgpu_stream_signal_fd(s, 1));
    DEAD(tgpu_event_record(e, s));
    DEAD(tgpu_scope_enter_stream(s, &scope));
    DEAD(tgpu_malloc_async(64, s, &out));
    DEAD(tgpu_memcpy(p, p, 1, s));
    DEAD(tgpu_memset(p, 1, 1, s));
    DEAD(tgpu_fill(p, "x", 1, 1, s));
    DEAD(tgpu_launch(k, &config, NULL));
    DEAD(try_note(s, &notes, 1));
    CHECK_STATUS(tgpu_stream_destroy(s), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_free_async(p, s), TGPU_ERROR_INVALID_HANDLE);
    CHECK_EQ(info.id, 0);
    CHECK_SAME(out, 77);
    CHECK_STATE(before);
    CHECK_OK(tgpu_free(p)); /* the refused free left it the caller's */
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_OK(tgpu_kernel_destroy(k));
}

static void *every_call_refuses_here_too(void *data) {
    every_call_refuses(data);
    return NULL;
}

static void F15_a_destroyed_stream_is_answered_and_not_followed(void) {
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_destroy(s));
    every_call_refuses(s);
    on_a_thread(every_call_refuses_here_too, s);
    for (int i = 0; i < 100; i++) { /* the place is used again, the handle is not */
        tgpu_stream other = NULL;
        CHECK_OK(tgpu_stream_create(NULL, &other));
        CHECK(other != s);
        CHECK_STATUS(tgpu_stream_query(s), TGPU_ERROR_INVALID_HANDLE);
        CHECK_OK(tgpu_stream_destroy(other));
    }
}

static void F17_destroying_a_stream_lets_its_work_finish(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream s = NULL;
    tgpu_event e = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_event_create(NULL, &e));
    hold(s, &gate);
    for (int i = 0; i < 5; i++) note(s, &notes, i);
    CHECK_OK(tgpu_event_record(e, s));
    CHECK_OK(tgpu_stream_destroy(s)); /* does not block: the gate is closed */
    CHECK_STATUS(tgpu_stream_query(s), TGPU_ERROR_INVALID_HANDLE);
    CHECK_STATUS(tgpu_event_query(e), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_event_synchronize(e));
    CHECK_NOTES(&notes, 0, 1, 2, 3, 4);
    CHECK_OK(tgpu_event_destroy(e));
}

static void a_current_stream_that_is_destroyed_is_answered_until_another_is_set(void) {
    tgpu_stream s = NULL, out = (tgpu_stream)77, other = NULL;
    struct notes notes = {0};
    void *p = (void *)77;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_create(NULL, &other));
    CHECK_OK(tgpu_stream_set(s));
    CHECK_OK(tgpu_stream_destroy(s));
    for (int i = 0; i < 2; i++) {
        CHECK_REFUSED(tgpu_stream_get(&out), TGPU_ERROR_INVALID_HANDLE, "destroyed");
        CHECK_REFUSED(tgpu_stream_query(NULL), TGPU_ERROR_INVALID_HANDLE, "destroyed");
        CHECK_REFUSED(tgpu_synchronize(), TGPU_ERROR_INVALID_HANDLE, "destroyed");
        CHECK_REFUSED(tgpu_malloc_async(10, NULL, &p), TGPU_ERROR_INVALID_HANDLE, "destroyed");
        CHECK_REFUSED(try_note(NULL, &notes, 1), TGPU_ERROR_INVALID_HANDLE, "destroyed");
    }
    CHECK_SAME(out, 77);
    CHECK_EQ(device_now(), 0);
    CHECK_OK(tgpu_device_set(1)); /* other devices are not concerned */
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_device_set(0));
    CHECK_STATUS(tgpu_synchronize(), TGPU_ERROR_INVALID_HANDLE);
    CHECK_OK(tgpu_stream_set(other));
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_stream_destroy(other));
    CHECK_STATUS(tgpu_synchronize(), TGPU_ERROR_INVALID_HANDLE);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_synchronize());
}

/* ---- bad input */

static tgpu_status create_stream(void *options) {
    tgpu_stream s = NULL;
    tgpu_status status = tgpu_stream_create(options, &s);
    if (status == TGPU_OK) CHECK_OK(tgpu_stream_destroy(s));
    else CHECK_SAME(s, NULL);
    return status;
}

static void stream_options_take_every_struct_size(void) {
    tgpu_stream_options options = TGPU_STREAM_OPTIONS_INIT;
    options.priority = TGPU_PRIORITY_HIGH;
    options.flags = TGPU_STREAM_LEGACY_ORDER;
    check_input_struct(create_stream, &options, sizeof options);
    CHECK_OK(create_stream(NULL));
}

static tgpu_status get_stream_info(void *out) {
    return tgpu_stream_info_get(NULL, out);
}

static void stream_info_takes_every_struct_size(void) {
    check_output_struct(get_stream_info, sizeof(tgpu_stream_info));
}

static void unknown_priorities_and_flags_are_refused(void) {
    const int32_t priorities[] = {-1, 3, 100, INT32_MIN, INT32_MAX};
    tgpu_stream_options options = TGPU_STREAM_OPTIONS_INIT;
    for (size_t i = 0; i < sizeof priorities / sizeof *priorities; i++) {
        options.priority = priorities[i];
        CHECK_REFUSED(create_stream(&options), TGPU_ERROR_INVALID_ARGUMENT, SIGNED(priorities[i]), "priority");
    }
    options.priority = 0;
    for (int bit = 1; bit < 32; bit++) {
        options.flags = UINT32_C(1) << bit | TGPU_STREAM_LEGACY_ORDER;
        CHECK_REFUSED(create_stream(&options), TGPU_ERROR_INVALID_ARGUMENT, "flags");
    }
}

static void stream_calls_refuse_null(void) {
    struct state before = state_now();
#define REFUSED_NULL(call) CHECK_REFUSED(call, TGPU_ERROR_INVALID_ARGUMENT, "NULL")
    REFUSED_NULL(tgpu_stream_create(NULL, NULL));
    REFUSED_NULL(tgpu_stream_get(NULL));
    REFUSED_NULL(tgpu_stream_info_get(NULL, NULL));
    REFUSED_NULL(tgpu_stream_import(0, NULL, NULL));
    REFUSED_NULL(tgpu_stream_native(NULL, NULL));
    REFUSED_NULL(tgpu_stream_add_callback(NULL, NULL, NULL));
    CHECK_STATE(before);
}

/* ---- priorities */

static void F18_the_priority_that_a_stream_got_is_told(void) {
    const int32_t priorities[] = {TGPU_PRIORITY_NORMAL, TGPU_PRIORITY_LOW, TGPU_PRIORITY_HIGH};
    int32_t native[3];
    tgpu_device_info device = TGPU_DEVICE_INFO_INIT;
    for (int i = 0; i < 3; i++) {
        tgpu_stream_options options = TGPU_STREAM_OPTIONS_INIT;
        tgpu_stream s = NULL;
        options.priority = priorities[i];
        CHECK_OK(tgpu_stream_create(&options, &s));
        CHECK_OK(tgpu_device_info_get(0, &device)); /* CUDA tells the range of a device in use only */
        tgpu_stream_info info = stream_info(s);
        CHECK_EQ(info.priority, priorities[i]);
        /* Host devices have all three; GPUs may have no lower one than the normal. */
        if (is_host(0) || info.effective_priority != TGPU_PRIORITY_NORMAL) CHECK_EQ(info.effective_priority, priorities[i]);
        CHECK_EQ(info.kind, TGPU_STREAM_OWNED);
        CHECK_EQ(info.capturing, 0);
        CHECK(info.id != 0);
        CHECK(info.native_priority <= device.priority_least && info.native_priority >= device.priority_greatest);
        native[i] = info.native_priority;
        CHECK_OK(tgpu_stream_destroy(s));
    }
    CHECK(native[2] < native[0] && native[0] <= native[1]); /* as the vendors number them */
    CHECK(!is_host(0) || native[0] < native[1]);
}

static void F18_urgent_work_comes_first(void) {
    const int32_t order[] = {TGPU_PRIORITY_LOW, TGPU_PRIORITY_NORMAL, TGPU_PRIORITY_HIGH};
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream streams[3];
    hold(NULL, &gate); /* the only thread */
    wait_for_gate(&gate);
    for (int i = 0; i < 3; i++) {
        tgpu_stream_options options = TGPU_STREAM_OPTIONS_INIT;
        options.priority = order[i];
        CHECK_OK(tgpu_stream_create(&options, &streams[i]));
        for (int j = 0; j < 3; j++) note(streams[i], &notes, 10 * order[i] + j);
    }
    open_gate(&gate);
    for (int i = 0; i < 3; i++) CHECK_OK(tgpu_stream_synchronize(streams[i]));
    CHECK_NOTES(&notes, 20, 21, 22, 0, 1, 2, 10, 11, 12);
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < 3; i++) CHECK_OK(tgpu_stream_destroy(streams[i]));
}

/* ---- order */

static void work_of_one_stream_runs_in_order(void) {
    static struct notes notes;
    for (int i = 0; i < 2000; i++) note(NULL, &notes, i);
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(notes.count, 2000);
    for (int i = 0; i < 2000; i++) CHECK_EQ(notes.values[i], i);
}

static void F24_streams_do_not_wait_for_each_other(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream held = NULL, free_one = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &held));
    CHECK_OK(tgpu_stream_create(NULL, &free_one));
    hold(held, &gate);
    note(free_one, &notes, 1);
    CHECK_OK(tgpu_stream_synchronize(free_one)); /* would hang */
    CHECK_NOTES(&notes, 1);
    CHECK_STATUS(tgpu_stream_query(held), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(held));
    CHECK_OK(tgpu_stream_query(held));
    CHECK_OK(tgpu_stream_destroy(held));
    CHECK_OK(tgpu_stream_destroy(free_one));
}

static void F19_a_stream_can_be_put_behind_another_one(void) {
    for (tgpu_device d = 0; d < 2; d++) { /* on the same device and on another one */
        struct gate gate = GATE;
        struct notes notes = {0};
        tgpu_stream a = stream_on(0), b = stream_on(d);
        hold(a, &gate);
        note(a, &notes, 1);
        CHECK_OK(tgpu_stream_wait_stream(b, a));
        note(b, &notes, 2);
        note(a, &notes, 3); /* later than the wait: b does not care */
        give_every_chance(d);
        CHECK_NO_NOTES(&notes);
        open_gate(&gate);
        CHECK_OK(tgpu_stream_synchronize(b));
        CHECK_OK(tgpu_stream_synchronize(a));
        CHECK_EQ(notes.values[0], 1);
        CHECK_EQ(notes.count, 3);
        CHECK_OK(tgpu_stream_destroy(a));
        CHECK_OK(tgpu_stream_destroy(b));
    }
}

static void waiting_for_oneself_does_nothing(void) {
    struct notes notes = {0};
    tgpu_stream lease = stream_now();
    CHECK_OK(tgpu_stream_wait_stream(NULL, NULL));
    CHECK_OK(tgpu_stream_wait_stream(lease, NULL));
    CHECK_OK(tgpu_stream_wait_stream(lease, lease));
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 1);
}

static void streams_may_wait_in_a_ring(void) {
    struct notes notes = {0};
    tgpu_stream s[3] = {stream_on(0), stream_on(1), stream_on(0)};
    for (int round = 0; round < 50; round++)
        for (int i = 0; i < 3; i++) {
            note(s[i], &notes, 3 * round + i);
            CHECK_OK(tgpu_stream_wait_stream(s[(i + 1) % 3], s[i]));
        }
    CHECK_OK(tgpu_stream_synchronize(s[0]));
    for (int i = 0; i < 150; i++) CHECK_EQ(notes.values[i], i);
    for (int i = 0; i < 3; i++) CHECK_OK(tgpu_stream_destroy(s[i]));
}

/* ---- waiting with a limit */

static void F25_a_wait_with_a_limit_ends_and_the_work_goes_on(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    const uint64_t limits[] = {0, 1, 1000000, 20000000};
    for (int32_t policy = TGPU_WAIT_AUTO; policy <= TGPU_WAIT_BLOCK; policy++) {
        gate.open = gate.entered = notes.count = 0;
        CHECK_OK(tgpu_wait_policy_set(policy));
        hold(NULL, &gate);
        note(NULL, &notes, 1);
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
            CHECK_STATUS(tgpu_stream_synchronize_timeout(NULL, limits[i]), TGPU_ERROR_TIMEOUT);
        open_gate(&gate);
        CHECK_OK(tgpu_stream_synchronize_timeout(NULL, UINT64_MAX));
        CHECK_NOTES(&notes, 1);
        CHECK_OK(tgpu_stream_synchronize_timeout(NULL, 0)); /* nothing left to wait for */
    }
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
}

/* ---- callbacks */

struct calls_seen {
    atomic_int count;
    tgpu_status status;
    pthread_t thread;
};

static void count_call(void *data, tgpu_status status) {
    struct calls_seen *seen = data;
    seen->status = status;
    seen->thread = pthread_self();
    atomic_fetch_add(&seen->count, 1);
}

static void a_callback_comes_once_after_the_work_before_it(void) {
    struct gate gate = GATE;
    struct calls_seen seen = {0};
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    hold(s, &gate);
    CHECK_OK(tgpu_stream_add_callback(s, count_call, &seen));
    CHECK_OK(tgpu_stream_destroy(s)); /* it comes all the same */
    give_every_chance(0);
    CHECK_EQ(seen.count, 0);
    open_gate(&gate);
    WAIT_UNTIL(atomic_load(&seen.count));
    CHECK_OK(tgpu_device_synchronize());
    CHECK_EQ(seen.count, 1);
    CHECK_EQ(seen.status, TGPU_OK);
    CHECK(!pthread_equal(seen.thread, pthread_self()));
}

static void pass_gate_in_callback(void *data, tgpu_status status) {
    CHECK_EQ(status, TGPU_OK);
    gate_pass_(data);
}

static void later_work_waits_for_a_callback(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    CHECK_OK(tgpu_stream_add_callback(NULL, pass_gate_in_callback, &gate));
    note(NULL, &notes, 1);
    wait_for_gate(&gate);
    give_every_chance(0);
    CHECK_EQ(notes.count, 0);
    CHECK_STATUS(tgpu_stream_query(NULL), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 1);
}

static atomic_int calls_so_far;

static void take_a_number(void *data, tgpu_status status) {
    CHECK_EQ(status, TGPU_OK);
    if (*(int *)data != 0) FAIL("called twice");
    *(int *)data = atomic_fetch_add(&calls_so_far, 1) + 1;
}

static void many_callbacks_come_once_each_and_in_order(void) {
    enum { MANY = 2000 };
    static int numbers[MANY];
    for (int i = 0; i < MANY; i++) CHECK_OK(tgpu_stream_add_callback(NULL, take_a_number, &numbers[i]));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(calls_so_far, MANY);
    for (int i = 0; i < MANY; i++) CHECK_EQ(numbers[i], i + 1);
}

static struct objects live;

static void make_every_call_inside(void *data, tgpu_status status) {
    struct calls_seen *seen = data;
    check_every_call_answers(TGPU_ERROR_IN_CALLBACK, "callback", &live);
    CHECK_STATUS(tgpu_free(live.freed), TGPU_ERROR_IN_CALLBACK);
    check_what_needs_no_runtime();
    check_cleanup_is_ok(&live);
    count_call(seen, status);
}

static void F29_inside_a_callback_calls_are_refused_and_cleaning_up_is_fine(void) {
    struct calls_seen seen = {0};
    live = make_objects();
    struct state before = state_now();
    CHECK_REFUSED(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE, "99");
    CHECK_OK(tgpu_stream_add_callback(NULL, make_every_call_inside, &seen));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(seen.count, 1);
    CHECK_STATE(before);
    CHECK_EQ(last_status(), TGPU_ERROR_INVALID_DEVICE); /* what failed in there is not this task's failure */
    CHECK_STATUS(tgpu_stream_query(live.stream), TGPU_ERROR_INVALID_HANDLE); /* and what was destroyed is */
    CHECK_STATUS(tgpu_free(live.memory), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_OK(tgpu_free(live.freed));
    CHECK_OK(tgpu_host_unregister(live.registered));
    free(live.registered);
}

static void cleanup_alone(void *data, tgpu_status status) {
    check_cleanup_is_ok(&live);
    count_call(data, status);
}

static void F05_cleaning_up_in_a_callback_opens_no_device(void) {
    struct calls_seen seen = {0};
    uint64_t before = free_memory(0);
    CHECK_OK(tgpu_device_set(2));
    live = make_objects();
    CHECK_OK(tgpu_stream_add_callback(NULL, cleanup_alone, &seen));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(seen.count, 1);
    CHECK(free_memory(0) >= before); /* what earlier tests left to be freed may have come back meanwhile */
    CHECK_OK(tgpu_free(live.freed));
    CHECK_OK(tgpu_host_unregister(live.registered));
    free(live.registered);
    CHECK_OK(tgpu_device_set(0));
}

static pthread_mutex_t callers_lock = PTHREAD_MUTEX_INITIALIZER;

static void take_the_callers_lock(void *data, tgpu_status status) {
    pthread_mutex_lock(&callers_lock);
    count_call(data, status);
    pthread_mutex_unlock(&callers_lock);
}

static void F29_a_callback_that_waits_for_the_callers_lock_blocks_no_call(void) {
    struct calls_seen seen = {0};
    struct notes notes = {0};
    tgpu_stream s = NULL, other = NULL;
    void *p = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    pthread_mutex_lock(&callers_lock);
    CHECK_OK(tgpu_stream_add_callback(s, take_the_callers_lock, &seen));
    CHECK_OK(tgpu_stream_create(NULL, &other)); /* any call that does not wait for s itself */
    note(s, &notes, 2);
    note(other, &notes, 1);
    CHECK_OK(tgpu_stream_synchronize(other));
    CHECK_OK(tgpu_malloc_async(100, other, &p));
    CHECK_OK(tgpu_free_async(p, other));
    CHECK_OK(tgpu_stream_destroy(other));
    pthread_mutex_unlock(&callers_lock);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_EQ(seen.count, 1);
    CHECK_NOTES(&notes, 1, 2);
    CHECK_OK(tgpu_stream_destroy(s));
}

/* ---- descriptors */

static uint64_t read_count(int fd) {
    uint64_t count = 0;
    struct pollfd p = {fd, POLLIN, 0};
    while (poll(&p, 1, -1) != 1) {}
    if (read(fd, &count, sizeof count) != sizeof count) FAIL("read: %s", strerror(errno));
    return count;
}

static int readable(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, 0) == 1;
}

static void an_eventfd_counts_one_when_the_work_is_done(void) {
    struct gate gate = GATE;
    int fd = eventfd(0, EFD_CLOEXEC), copy = dup(fd);
    hold(NULL, &gate);
    CHECK_OK(tgpu_stream_signal_fd(NULL, fd));
    close(fd); /* the library has its own */
    give_every_chance(0);
    CHECK(!readable(copy));
    open_gate(&gate);
    CHECK_EQ(read_count(copy), 1);
    CHECK_OK(tgpu_stream_signal_fd(NULL, copy));
    CHECK_OK(tgpu_stream_signal_fd(NULL, copy));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(read_count(copy), 2);
    close(copy);
}

static void pipes_and_sockets_get_the_same_eight_bytes(void) {
    int fds[2];
    CHECK(pipe(fds) == 0);
    CHECK_OK(tgpu_stream_signal_fd(NULL, fds[1]));
    CHECK_EQ(read_count(fds[0]), 1);
    close(fds[0]), close(fds[1]);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    CHECK_OK(tgpu_stream_signal_fd(NULL, fds[1]));
    CHECK_EQ(read_count(fds[0]), 1);
    close(fds[0]), close(fds[1]);
}

static void fill_up(int fd) {
    static char bytes[4096];
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    while (write(fd, bytes, sizeof bytes) > 0) {}
    while (write(fd, bytes, 1) > 0) {}
    fcntl(fd, F_SETFL, flags);
}

static void a_full_pipe_or_socket_blocks_nobody(void) {
    int fds[2];
    uint64_t full = UINT64_MAX - 1;
    for (int kind = 0; kind < 2; kind++) {
        struct notes notes = {0};
        CHECK((kind ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds) : pipe(fds)) == 0);
        fill_up(fds[1]); /* and blocking again: a plain write would hang */
        CHECK_OK(tgpu_stream_signal_fd(NULL, fds[1]));
        note(NULL, &notes, 1);
        CHECK_OK(tgpu_synchronize());
        CHECK_NOTES(&notes, 1);
        close(fds[0]), close(fds[1]);
    }
    int fd = eventfd(0, EFD_CLOEXEC);
    CHECK(write(fd, &full, sizeof full) == sizeof full); /* one more would block */
    CHECK_OK(tgpu_stream_signal_fd(NULL, fd));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(read_count(fd), (int64_t)full);
    close(fd);
}

/* A pipe of packets has room for so many writes, however short. Of those who saw the last place one gets it. */
static void the_last_place_in_a_pipe_blocks_nobody_either(void) {
    enum { STREAMS = 8 };
    tgpu_stream streams[STREAMS];
    char packet[8] = {0};
    for (int i = 0; i < STREAMS; i++) streams[i] = stream_on(0);
    for (int round = getenv("TASKGPU_TEST_VALGRIND") ? 50 : 5000; round > 0; round--) {
        int fds[2];
        CHECK_EQ(pipe2(fds, O_CLOEXEC | O_DIRECT | O_NONBLOCK), 0);
        while (write(fds[1], packet, sizeof packet) > 0) {}
        CHECK_EQ(fcntl(fds[1], F_SETFL, O_DIRECT), 0); /* blocking again */
        CHECK_EQ(read(fds[0], packet, sizeof packet), sizeof packet);
        for (int i = 0; i < STREAMS; i++) CHECK_OK(tgpu_stream_signal_fd(streams[i], fds[1]));
        for (int i = 0; i < STREAMS; i++) CHECK_OK(tgpu_stream_synchronize_timeout(streams[i], UINT64_C(30000000000)));
        close(fds[0]), close(fds[1]);
    }
    for (int i = 0; i < STREAMS; i++) CHECK_OK(tgpu_stream_destroy(streams[i]));
}

static void a_reader_that_has_gone_raises_no_sigpipe(void) {
    int fds[2];
    signal(SIGPIPE, SIG_DFL); /* would end the program */
    for (int kind = 0; kind < 2; kind++) {
        CHECK((kind ? socketpair(AF_UNIX, SOCK_STREAM, 0, fds) : pipe(fds)) == 0);
        close(fds[0]);
        CHECK_OK(tgpu_stream_signal_fd(NULL, fds[1]));
        CHECK_OK(tgpu_synchronize());
        close(fds[1]);
    }
}

static void descriptors_that_are_not_open_are_refused(void) {
    struct state before = state_now(); /* first: a runtime may open descriptors of its own */
    int fd = eventfd(0, EFD_CLOEXEC);
    close(fd);
    CHECK_REFUSED(tgpu_stream_signal_fd(NULL, -1), TGPU_ERROR_INVALID_ARGUMENT, "-1");
    CHECK_REFUSED(tgpu_stream_signal_fd(NULL, INT32_MIN), TGPU_ERROR_INVALID_ARGUMENT, "-2147483648");
    CHECK_REFUSED(tgpu_stream_signal_fd(NULL, INT32_MAX), TGPU_ERROR_INVALID_ARGUMENT, "2147483647");
    CHECK_REFUSED(tgpu_stream_signal_fd(NULL, fd), TGPU_ERROR_INVALID_ARGUMENT, SIGNED(fd));
    CHECK_STATE(before);
}

static void descriptors_that_cannot_be_written_to_are_refused(void) {
    int ends[2], only_a_name = open("/", O_PATH | O_CLOEXEC);
    tgpu_event e = NULL;
    CHECK_EQ(pipe(ends), 0);
    CHECK(only_a_name >= 0);
    CHECK_OK(tgpu_event_create(NULL, &e));
    const int wrong[] = {ends[0], only_a_name};
    for (int i = 0; i < 2; i++) {
        CHECK_REFUSED(tgpu_stream_signal_fd(NULL, wrong[i]), TGPU_ERROR_INVALID_ARGUMENT, SIGNED(wrong[i]), "writing");
        CHECK_REFUSED(tgpu_event_signal_fd(e, wrong[i]), TGPU_ERROR_INVALID_ARGUMENT, SIGNED(wrong[i]), "writing");
        close(wrong[i]);
    }
    close(ends[1]);
    CHECK_OK(tgpu_event_destroy(e));
}

static void descriptors_do_not_leak(void) {
    CHECK_OK(tgpu_synchronize()); /* first: a runtime may open descriptors of its own */
    int fd = eventfd(0, EFD_CLOEXEC), next;
    for (int i = 0; i < 3000; i++) { /* more than a process may have open, usually */
        CHECK_OK(tgpu_stream_signal_fd(NULL, fd));
        if (i % 100 == 99) CHECK_OK(tgpu_synchronize());
    }
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(read_count(fd), 3000);
    next = dup(fd);
    CHECK(next < fd + 16);
    close(next), close(fd);
}

/* ---- streams of others */

static void a_native_stream_comes_back_as_the_same_stream(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream s = NULL, imported = NULL, again = NULL;
    void *native = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_native(s, &native));
    CHECK_OK(tgpu_stream_import(0, native, &imported));
    CHECK_OK(tgpu_stream_import(0, native, &again));
    CHECK_EQ(stream_info(imported).kind, TGPU_STREAM_IMPORTED);
    CHECK_EQ(stream_info(imported).device, 0);
    CHECK_EQ(stream_id(again), stream_id(imported));
    hold(imported, &gate);
    note(s, &notes, 1);
    note(again, &notes, 2);
    note(imported, &notes, 3);
    CHECK_STATUS(tgpu_stream_query(s), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(imported));
    CHECK_NOTES(&notes, 1, 2, 3);
    CHECK_OK(tgpu_stream_destroy(imported)); /* the handle goes, the stream stays */
    CHECK_STATUS(tgpu_stream_query(imported), TGPU_ERROR_INVALID_HANDLE);
    note(again, &notes, 4);
    CHECK_OK(tgpu_stream_destroy(again));
    note(s, &notes, 5);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_NOTES(&notes, 1, 2, 3, 4, 5);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void an_imported_stream_can_be_current(void) {
    struct notes notes = {0};
    tgpu_stream s = stream_on(2), imported = NULL;
    void *native = NULL;
    CHECK_OK(tgpu_stream_native(s, &native));
    CHECK_OK(tgpu_stream_import(2, native, &imported));
    CHECK_OK(tgpu_stream_set(imported));
    CHECK_EQ(device_now(), 2);
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_stream_destroy(imported));
    CHECK_STATUS(tgpu_synchronize(), TGPU_ERROR_INVALID_HANDLE);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_destroy(s));
}

static void F09_the_legacy_streams_of_two_devices_are_two_streams(void) {
    tgpu_stream zero = NULL, zero_again = NULL, one = NULL;
    struct notes notes = {0};
    CHECK_OK(tgpu_stream_import(0, NULL, &zero));
    CHECK_OK(tgpu_stream_import(0, (void *)1, &zero_again));
    CHECK_OK(tgpu_stream_import(1, NULL, &one));
    CHECK_EQ(stream_id(zero), stream_id(zero_again));
    CHECK(stream_id(zero) != stream_id(one));
    CHECK(zero != one);
    CHECK_EQ(stream_info(one).device, 1);
    note(one, &notes, 1);
    CHECK_OK(tgpu_stream_synchronize(one));
    CHECK_EQ(notes.devices[0], 1);
    CHECK_OK(tgpu_stream_destroy(zero));
    CHECK_OK(tgpu_stream_destroy(zero_again));
    CHECK_OK(tgpu_stream_destroy(one));
}

static void the_legacy_stream_keeps_its_identity_between_imports(void) {
    tgpu_stream first = NULL, second = NULL;
    struct gate gate = GATE;
    CHECK_OK(tgpu_stream_import(3, NULL, &first));
    hold(first, &gate);
    CHECK_OK(tgpu_stream_destroy(first));
    CHECK_OK(tgpu_stream_import(3, NULL, &second));
    CHECK_STATUS(tgpu_stream_query(second), TGPU_NOT_READY); /* it is the stream that is held */
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(second));
    CHECK_OK(tgpu_stream_destroy(second));
}

static void what_cannot_be_imported_is_refused(void) {
    tgpu_stream s = stream_on(1), out = (tgpu_stream)77;
    void *native = NULL;
    struct state before = state_now();
    CHECK_OK(tgpu_stream_native(s, &native));
    CHECK_REFUSED(tgpu_stream_import(0, native, &out), TGPU_ERROR_INVALID_ARGUMENT, HEX(native)); /* another device's */
    CHECK_REFUSED(tgpu_stream_import(0, (void *)2, &out), TGPU_ERROR_INVALID_ARGUMENT, "2"); /* the per-thread one */
    CHECK_REFUSED(tgpu_stream_import(0, (void *)0xdead, &out), TGPU_ERROR_INVALID_ARGUMENT, "0xdead");
    CHECK_SAME(out, 77);
    CHECK_STATE(before);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void ids_are_never_used_again(void) {
    uint64_t last = 0;
    for (int i = 0; i < 200; i++) {
        tgpu_stream s = NULL;
        CHECK_OK(tgpu_stream_create(NULL, &s));
        CHECK(stream_id(s) > last);
        last = stream_id(s);
        CHECK_OK(tgpu_stream_destroy(s));
    }
}

/* ---- many */

static void a_device_holds_ten_thousand_streams_without_a_thread_for_each(void) {
    enum { MANY = 10000 };
    static tgpu_stream streams[MANY];
    static struct notes notes[4];
    static atomic_int sum;
    struct notes first = {0};
    note(NULL, &first, 1);
    CHECK_OK(tgpu_synchronize());
    for (int i = 0; i < MANY; i++) CHECK_OK(tgpu_stream_create(NULL, &streams[i]));
    for (int i = 0; i < MANY; i++) note(streams[i], &notes[i / 4 % 4], i);
    CHECK(thread_count() < 50);
    for (int i = 0; i < MANY; i++) CHECK_OK(tgpu_stream_synchronize(streams[i]));
    for (int i = 0; i < 4; i++) sum += notes[i].count;
    CHECK_EQ(sum, MANY);
    for (int i = 0; i < MANY; i++) CHECK_OK(tgpu_stream_destroy(streams[i]));
    CHECK(thread_count() < 50);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(F13_a_task_has_one_lease_for_each_device_and_finds_it_again);
    RUN(F08_the_stream_that_is_set_is_where_the_work_goes);
    RUN(F12_setting_a_stream_makes_its_device_current);
    RUN(F12_work_on_another_devices_stream_runs_there_and_changes_nothing);
    RUN(null_is_the_current_devices_stream_wherever_the_pointers_live);
    RUN(a_lease_cannot_be_destroyed);
    RUN(a_lease_may_be_set_like_any_stream);
    RUN(a_lease_ends_with_its_task);
    RUN(F15_a_destroyed_stream_is_answered_and_not_followed);
    RUN(F17_destroying_a_stream_lets_its_work_finish);
    RUN(a_current_stream_that_is_destroyed_is_answered_until_another_is_set);
    RUN(stream_options_take_every_struct_size);
    RUN(stream_info_takes_every_struct_size);
    RUN(unknown_priorities_and_flags_are_refused);
    RUN(stream_calls_refuse_null);
    RUN(F18_the_priority_that_a_stream_got_is_told);
    RUN_IN_CHILD(F18_urgent_work_comes_first, "TASKGPU_HOST_THREADS=1");
    RUN(work_of_one_stream_runs_in_order);
    RUN(F24_streams_do_not_wait_for_each_other);
    RUN(F19_a_stream_can_be_put_behind_another_one);
    RUN(waiting_for_oneself_does_nothing);
    RUN(streams_may_wait_in_a_ring);
    RUN(F25_a_wait_with_a_limit_ends_and_the_work_goes_on);
    RUN(a_callback_comes_once_after_the_work_before_it);
    RUN(later_work_waits_for_a_callback);
    RUN(many_callbacks_come_once_each_and_in_order);
    RUN(F29_inside_a_callback_calls_are_refused_and_cleaning_up_is_fine);
    RUN(F05_cleaning_up_in_a_callback_opens_no_device);
    RUN(F29_a_callback_that_waits_for_the_callers_lock_blocks_no_call);
    RUN(an_eventfd_counts_one_when_the_work_is_done);
    RUN(pipes_and_sockets_get_the_same_eight_bytes);
    RUN(a_full_pipe_or_socket_blocks_nobody);
    RUN_IN_CHILD(the_last_place_in_a_pipe_blocks_nobody_either, "TASKGPU_HOST_THREADS=8");
    RUN(a_reader_that_has_gone_raises_no_sigpipe);
    RUN(descriptors_that_are_not_open_are_refused);
    RUN(descriptors_that_cannot_be_written_to_are_refused);
    RUN(descriptors_do_not_leak);
    RUN(a_native_stream_comes_back_as_the_same_stream);
    RUN(an_imported_stream_can_be_current);
    RUN(F09_the_legacy_streams_of_two_devices_are_two_streams);
    RUN(the_legacy_stream_keeps_its_identity_between_imports);
    RUN(what_cannot_be_imported_is_refused);
    RUN(ids_are_never_used_again);
    RUN(a_device_holds_ten_thousand_streams_without_a_thread_for_each);
    return end();
}
