/* Events: points in streams that others wait for. */
#include "calls.h"
#include "structs.h"
#include "work.h"
#include <poll.h>
#include <sys/eventfd.h>

static tgpu_event new_event(void) {
    tgpu_event e = NULL;
    CHECK_OK(tgpu_event_create(NULL, &e));
    CHECK(e != NULL);
    return e;
}

static void an_event_never_recorded_counts_as_reached(void) {
    struct notes notes = {0};
    tgpu_event e = new_event();
    CHECK_OK(tgpu_event_query(e));
    CHECK_OK(tgpu_event_synchronize(e));
    CHECK_OK(tgpu_event_synchronize_timeout(e, 0));
    CHECK_OK(tgpu_stream_wait_event(NULL, e)); /* nothing to wait for */
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_event_destroy(e));
}

static void an_event_is_reached_when_the_work_before_it_is_done(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_event e = new_event();
    hold(NULL, &gate);
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_event_record(e, NULL));
    CHECK_STATUS(tgpu_event_query(e), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_event_synchronize(e));
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_event_query(e));
    CHECK_OK(tgpu_event_destroy(e));
}

static void a_stream_waits_for_an_event_of_the_same_or_another_device(void) {
    for (tgpu_device d = 0; d < 2; d++) {
        struct gate gate = GATE;
        struct notes notes = {0};
        tgpu_stream a = stream_on(0), b = stream_on(d);
        tgpu_event e = new_event();
        hold(a, &gate);
        note(a, &notes, 1);
        CHECK_OK(tgpu_event_record(e, a));
        CHECK_OK(tgpu_stream_wait_event(b, e));
        note(b, &notes, 2);
        give_every_chance(d);
        CHECK_NO_NOTES(&notes);
        CHECK_STATUS(tgpu_stream_query(b), TGPU_NOT_READY);
        open_gate(&gate);
        CHECK_OK(tgpu_stream_synchronize(b));
        CHECK_NOTES(&notes, 1, 2);
        CHECK_EQ(notes.devices[1], d);
        CHECK_OK(tgpu_event_destroy(e));
        CHECK_OK(tgpu_stream_destroy(a));
        CHECK_OK(tgpu_stream_destroy(b));
    }
}

static void work_after_the_record_is_not_waited_for(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream a = stream_on(0);
    tgpu_event e = new_event();
    CHECK_OK(tgpu_event_record(e, a));
    hold(a, &gate);
    CHECK_OK(tgpu_stream_wait_event(NULL, e));
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_synchronize()); /* would hang */
    CHECK_OK(tgpu_event_synchronize(e));
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(a));
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_OK(tgpu_stream_destroy(a));
}

static void a_wait_is_for_the_record_at_the_time_of_the_call(void) {
    struct gate first = GATE, second = GATE;
    struct notes notes = {0};
    tgpu_stream a = stream_on(0), b = stream_on(0), c = stream_on(0);
    tgpu_event e = new_event();
    hold(a, &first);
    CHECK_OK(tgpu_event_record(e, a));
    CHECK_OK(tgpu_stream_wait_event(b, e)); /* the first record */
    note(b, &notes, 1);
    hold(a, &second);
    CHECK_OK(tgpu_event_record(e, a)); /* replaces it */
    CHECK_OK(tgpu_stream_wait_event(c, e)); /* the second record */
    note(c, &notes, 2);
    open_gate(&first);
    CHECK_OK(tgpu_stream_synchronize(b)); /* would hang if it waited for the second */
    CHECK_NOTES(&notes, 1);
    wait_for_gate(&second);
    give_every_chance(0);
    CHECK_NOTES(&notes, 1);
    CHECK_STATUS(tgpu_event_query(e), TGPU_NOT_READY);
    open_gate(&second);
    CHECK_OK(tgpu_stream_synchronize(c));
    CHECK_NOTES(&notes, 1, 2);
    CHECK_OK(tgpu_stream_synchronize(a));
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_OK(tgpu_stream_destroy(a));
    CHECK_OK(tgpu_stream_destroy(b));
    CHECK_OK(tgpu_stream_destroy(c));
}

struct host_wait {
    tgpu_event event;
    int32_t policy;
    _Atomic pid_t thread;
};

static void *waits_on_the_host(void *data) {
    struct host_wait *w = data;
    CHECK_OK(tgpu_wait_policy_set(w->policy));
    w->thread = gettid();
    CHECK_OK(tgpu_event_synchronize(w->event));
    return NULL;
}

/* Waits until a thread that does nothing but wait has used so much processor time that it must be at it. */
static void wait_until_polling(pthread_t thread) {
    struct timespec used = {0, 0};
    clockid_t clock;
    if (pthread_getcpuclockid(thread, &clock) != 0) FAIL("a thread has no clock");
    WAIT_UNTIL(clock_gettime(clock, &used) == 0 && (used.tv_sec > 0 || used.tv_nsec > 300000000));
}

static void a_host_wait_is_for_the_record_then(int32_t policy) {
    struct gate first = GATE, second = GATE;
    tgpu_stream a = stream_on(0), b = stream_on(0);
    struct host_wait w = {new_event(), policy, 0};
    hold(a, &first), hold(b, &second);
    CHECK_OK(tgpu_event_record(w.event, a));
    pthread_t thread = start_thread(waits_on_the_host, &w);
    WAIT_UNTIL(w.thread);
    if (policy == TGPU_WAIT_SPIN)
        wait_until_polling(thread);
    else
        wait_until_asleep(w.thread);
    CHECK_OK(tgpu_event_record(w.event, b));
    open_gate(&first);
    join_thread(thread); /* would hang if it had changed over to the new record */
    CHECK_STATUS(tgpu_event_query(w.event), TGPU_NOT_READY);
    open_gate(&second);
    CHECK_OK(tgpu_stream_synchronize(a));
    CHECK_OK(tgpu_stream_synchronize(b));
    CHECK_OK(tgpu_event_destroy(w.event));
    CHECK_OK(tgpu_stream_destroy(a));
    CHECK_OK(tgpu_stream_destroy(b));
}

static void a_host_wait_is_for_the_record_at_the_time_of_the_call(void) {
    a_host_wait_is_for_the_record_then(TGPU_WAIT_BLOCK);
    a_host_wait_is_for_the_record_then(TGPU_WAIT_SPIN);
}

static void F21_an_event_belongs_to_the_device_where_it_was_recorded_last(void) {
    struct gate gate = GATE;
    tgpu_stream a = stream_on(1), b = stream_on(2);
    tgpu_event e = new_event();
    void *native_1 = NULL, *native_2 = NULL;
    hold(a, &gate);
    CHECK_OK(tgpu_event_record(e, a));
    CHECK_OK(tgpu_event_native(e, &native_1));
    CHECK_STATUS(tgpu_event_query(e), TGPU_NOT_READY);
    CHECK_OK(tgpu_event_record(e, b)); /* replaces the record that is held up */
    CHECK_OK(tgpu_event_synchronize(e));
    CHECK_OK(tgpu_event_native(e, &native_2));
    CHECK(native_1 != native_2);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(a));
    CHECK_OK(tgpu_event_destroy(e));
    CHECK_OK(tgpu_stream_destroy(a));
    CHECK_OK(tgpu_stream_destroy(b));
}

static void F17_waits_already_queued_survive_the_event(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream a = stream_on(0), b = stream_on(1);
    tgpu_event e = new_event();
    hold(a, &gate);
    note(a, &notes, 1);
    CHECK_OK(tgpu_event_record(e, a));
    CHECK_OK(tgpu_stream_wait_event(b, e));
    CHECK_OK(tgpu_event_destroy(e)); /* does not block */
    note(b, &notes, 2);
    give_every_chance(1);
    CHECK_NO_NOTES(&notes);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(b));
    CHECK_NOTES(&notes, 1, 2);
    CHECK_OK(tgpu_stream_destroy(a));
    CHECK_OK(tgpu_stream_destroy(b));
}

static void waits_survive_the_stream_that_was_recorded(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream a = stream_on(0);
    tgpu_event e = new_event();
    hold(a, &gate);
    note(a, &notes, 1);
    CHECK_OK(tgpu_event_record(e, a));
    CHECK_OK(tgpu_stream_destroy(a));
    CHECK_OK(tgpu_stream_wait_event(NULL, e));
    note(NULL, &notes, 2);
    CHECK_STATUS(tgpu_event_query(e), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_event_synchronize(e));
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 1, 2);
    CHECK_OK(tgpu_event_destroy(e));
}

/* ---- waiting with a limit */

static void F25_a_wait_for_an_event_with_a_limit_ends(void) {
    const uint64_t limits[] = {0, 1, 1000000, 20000000};
    for (int32_t policy = TGPU_WAIT_AUTO; policy <= TGPU_WAIT_BLOCK; policy++) {
        struct gate gate = GATE;
        tgpu_event e = new_event();
        CHECK_OK(tgpu_wait_policy_set(policy));
        hold(NULL, &gate);
        CHECK_OK(tgpu_event_record(e, NULL));
        for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
            CHECK_STATUS(tgpu_event_synchronize_timeout(e, limits[i]), TGPU_ERROR_TIMEOUT);
        open_gate(&gate);
        CHECK_OK(tgpu_event_synchronize_timeout(e, UINT64_MAX));
        CHECK_OK(tgpu_event_synchronize_timeout(e, 0));
        CHECK_OK(tgpu_synchronize());
        CHECK_OK(tgpu_event_destroy(e));
    }
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
}

/* ---- time */

static void two_events_measure_the_time_between(void) {
    tgpu_event start = new_event(), end = new_event();
    double forward = -1, backward = 1, same = 1;
    struct gate gate = GATE;
    CHECK_OK(tgpu_event_record(start, NULL));
    hold(NULL, &gate);
    CHECK_OK(tgpu_event_record(end, NULL));
    wait_for_gate(&gate);
    sleep_ms(10);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_event_elapsed(start, end, &forward));
    CHECK_OK(tgpu_event_elapsed(end, start, &backward));
    CHECK_OK(tgpu_event_elapsed(start, start, &same));
    CHECK(forward >= 0.005); /* the gate was closed for longer; by how much is the machine's affair */
    CHECK(forward == -backward);
    CHECK(same == 0);
    CHECK_OK(tgpu_event_destroy(start));
    CHECK_OK(tgpu_event_destroy(end));
}

static void time_that_cannot_be_measured_is_refused(void) {
    tgpu_event_options options = TGPU_EVENT_OPTIONS_INIT;
    tgpu_event here = new_event(), there = new_event(), never = new_event(), untimed = NULL, pending = new_event();
    tgpu_stream s = stream_on(1);
    struct gate gate = GATE;
    double seconds = 77;
    options.flags = TGPU_EVENT_DISABLE_TIMING;
    CHECK_OK(tgpu_event_create(&options, &untimed));
    CHECK_OK(tgpu_event_record(here, NULL));
    CHECK_OK(tgpu_event_record(untimed, NULL));
    CHECK_OK(tgpu_event_record(there, s));
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_OK(tgpu_synchronize());
    hold(NULL, &gate);
    CHECK_OK(tgpu_event_record(pending, NULL));
    CHECK_REFUSED(tgpu_event_elapsed(here, here, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_event_elapsed(here, untimed, &seconds), TGPU_ERROR_INVALID_ARGUMENT, "timing");
    CHECK_REFUSED(tgpu_event_elapsed(untimed, here, &seconds), TGPU_ERROR_INVALID_ARGUMENT, "timing");
    CHECK_REFUSED(tgpu_event_elapsed(here, never, &seconds), TGPU_ERROR_INVALID_ARGUMENT, "never recorded");
    CHECK_REFUSED(tgpu_event_elapsed(never, here, &seconds), TGPU_ERROR_INVALID_ARGUMENT, "never recorded");
    CHECK_REFUSED(tgpu_event_elapsed(here, there, &seconds), TGPU_ERROR_INVALID_ARGUMENT, "0", "1");
    CHECK_STATUS(tgpu_event_elapsed(here, pending, &seconds), TGPU_NOT_READY);
    CHECK_STATUS(tgpu_event_elapsed(pending, here, &seconds), TGPU_NOT_READY);
    CHECK(seconds == 77);
    open_gate(&gate);
    CHECK_OK(tgpu_synchronize());
    CHECK_OK(tgpu_event_elapsed(here, pending, &seconds));
    CHECK_OK(tgpu_event_query(untimed));
    tgpu_event all[] = {here, there, never, untimed, pending};
    for (int i = 0; i < 5; i++) CHECK_OK(tgpu_event_destroy(all[i]));
    CHECK_OK(tgpu_stream_destroy(s));
}

/* ---- descriptors */

static int readable(int fd, int timeout_ms) {
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, timeout_ms) == 1;
}

static void an_eventfd_counts_one_when_the_event_is_reached(void) {
    struct gate gate = GATE, later = GATE;
    tgpu_event e = new_event();
    int fd = eventfd(0, EFD_CLOEXEC), copy = dup(fd);
    uint64_t count = 0;
    hold(NULL, &gate);
    CHECK_OK(tgpu_event_record(e, NULL));
    hold(NULL, &later);
    CHECK_OK(tgpu_event_signal_fd(e, fd));
    close(fd);
    CHECK_OK(tgpu_event_destroy(e)); /* queued is queued */
    give_every_chance(0);
    CHECK(!readable(copy, 0));
    open_gate(&gate);
    CHECK(readable(copy, -1)); /* although later work of the stream is held up */
    CHECK(read(copy, &count, sizeof count) == sizeof count);
    CHECK_EQ(count, 1);
    open_gate(&later);
    CHECK_OK(tgpu_synchronize());
    CHECK(!readable(copy, 0));
    close(copy);
}

static void an_event_that_has_been_reached_signals_at_once(void) {
    tgpu_event never = new_event(), reached = new_event();
    int fd = eventfd(0, EFD_CLOEXEC);
    uint64_t count = 0;
    CHECK_OK(tgpu_event_signal_fd(never, fd));
    CHECK(read(fd, &count, sizeof count) == sizeof count);
    CHECK_OK(tgpu_event_record(reached, NULL));
    CHECK_OK(tgpu_event_synchronize(reached));
    CHECK_OK(tgpu_event_signal_fd(reached, fd));
    CHECK(readable(fd, -1));
    CHECK(read(fd, &count, sizeof count) == sizeof count);
    CHECK_EQ(count, 1);
    close(fd);
    CHECK_REFUSED(tgpu_event_signal_fd(never, fd), TGPU_ERROR_INVALID_ARGUMENT, SIGNED(fd));
    CHECK_REFUSED(tgpu_event_signal_fd(reached, -1), TGPU_ERROR_INVALID_ARGUMENT, "-1");
    CHECK_OK(tgpu_event_destroy(never));
    CHECK_OK(tgpu_event_destroy(reached));
}

static void a_reader_that_has_gone_raises_no_sigpipe(void) {
    struct gate gate = GATE;
    tgpu_event e = new_event();
    int fds[2];
    signal(SIGPIPE, SIG_DFL);
    CHECK(pipe(fds) == 0);
    close(fds[0]);
    CHECK_OK(tgpu_event_signal_fd(e, fds[1])); /* written by the calling thread */
    hold(NULL, &gate);
    CHECK_OK(tgpu_event_record(e, NULL));
    CHECK_OK(tgpu_event_signal_fd(e, fds[1])); /* written by another one */
    open_gate(&gate);
    CHECK_OK(tgpu_device_synchronize());
    close(fds[1]);
    CHECK_OK(tgpu_event_destroy(e));
}

/* ---- bad input */

static void events_have_a_native_handle_once_they_are_recorded(void) {
    tgpu_event e = new_event();
    void *native = (void *)77;
    CHECK_REFUSED(tgpu_event_native(e, &native), TGPU_ERROR_INVALID_ARGUMENT, "recorded");
    CHECK_SAME(native, 77);
    CHECK_OK(tgpu_event_record(e, NULL));
    CHECK_REFUSED(tgpu_event_native(e, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_OK(tgpu_event_native(e, &native));
    CHECK(native && native != (void *)77);
    CHECK_OK(tgpu_event_destroy(e));
}

static void a_native_handle_goes_on_naming_the_event(void) {
    struct gate gate = GATE;
    tgpu_stream s = stream_on(0);
    struct host_wait w = {new_event(), TGPU_WAIT_BLOCK, 0};
    void *before = NULL, *after = NULL;
    hold(s, &gate);
    CHECK_OK(tgpu_event_record(w.event, s));
    CHECK_OK(tgpu_event_native(w.event, &before));
    pthread_t thread = start_thread(waits_on_the_host, &w);
    WAIT_UNTIL(w.thread);
    wait_until_asleep(w.thread);
    CHECK_OK(tgpu_event_record(w.event, s)); /* while somebody waits for the record before */
    CHECK_OK(tgpu_event_native(w.event, &after));
    CHECK_SAME(after, before);
    open_gate(&gate);
    join_thread(thread);
    CHECK_OK(tgpu_event_destroy(w.event));
    CHECK_OK(tgpu_stream_destroy(s));
}

static tgpu_status create_event(void *options) {
    tgpu_event e = NULL;
    tgpu_status status = tgpu_event_create(options, &e);
    if (status == TGPU_OK) CHECK_OK(tgpu_event_destroy(e));
    else CHECK_SAME(e, NULL);
    return status;
}

static void event_options_take_every_struct_size(void) {
    tgpu_event_options options = TGPU_EVENT_OPTIONS_INIT;
    options.flags = TGPU_EVENT_DISABLE_TIMING;
    check_input_struct(create_event, &options, sizeof options);
    CHECK_OK(create_event(NULL));
}

static void unknown_flags_are_refused(void) {
    tgpu_event_options options = TGPU_EVENT_OPTIONS_INIT;
    for (int bit = 1; bit < 32; bit++) {
        options.flags = UINT32_C(1) << bit;
        CHECK_REFUSED(create_event(&options), TGPU_ERROR_INVALID_ARGUMENT, "flags");
    }
    CHECK_REFUSED(tgpu_event_create(NULL, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
}

static void every_call_refuses(tgpu_event e) {
    double seconds = 77;
    void *native = (void *)77;
    tgpu_event live = new_event();
    struct state before = state_now();
#define DEAD(call) CHECK_REFUSED(call, TGPU_ERROR_INVALID_HANDLE, e ? HEX(e) : "NULL")
    DEAD(tgpu_event_record(e, NULL));
    DEAD(tgpu_event_query(e));
    DEAD(tgpu_event_synchronize(e));
    DEAD(tgpu_event_synchronize_timeout(e, 1));
    DEAD(tgpu_event_elapsed(e, e, &seconds));
    DEAD(tgpu_event_signal_fd(e, 1));
    DEAD(tgpu_event_native(e, &native));
    DEAD(tgpu_stream_wait_event(NULL, e));
    CHECK_OK(tgpu_event_record(live, NULL));
    DEAD(tgpu_event_elapsed(e, live, &seconds));
    DEAD(tgpu_event_elapsed(live, e, &seconds));
    if (e) CHECK_STATUS(tgpu_event_destroy(e), TGPU_ERROR_INVALID_HANDLE);
    CHECK(seconds == 77);
    CHECK_SAME(native, 77);
    CHECK_STATE(before);
    CHECK_OK(tgpu_event_destroy(live));
}

static void *every_call_refuses_here_too(void *data) {
    every_call_refuses(data);
    return NULL;
}

static void F15_a_destroyed_event_is_answered_and_not_followed(void) {
    tgpu_event e = new_event();
    CHECK_OK(tgpu_event_record(e, NULL));
    CHECK_OK(tgpu_event_destroy(e));
    every_call_refuses(e);
    on_a_thread(every_call_refuses_here_too, e);
}

static void null_is_no_event(void) {
    every_call_refuses(NULL);
}

/* ---- many */

static void F38_events_recorded_and_forgotten_cost_no_memory(void) {
    long after_first = 0;
    for (int i = 0; i < 60000; i++) {
        tgpu_event e = new_event();
        CHECK_OK(tgpu_event_record(e, NULL));
        CHECK_OK(tgpu_stream_wait_event(NULL, e));
        CHECK_OK(tgpu_event_destroy(e));
        if (i % 250 == 0) CHECK_OK(tgpu_synchronize());
        if (i % 250 == 0) sleep_ms(1); /* the library's own thread takes apart what is left, and may lag on a busy machine */
        if (i == 20000) after_first = resident_kib();
    }
    CHECK_OK(tgpu_synchronize());
    if (resident_kib() > after_first + 8192) FAIL("resident memory went from %ld KiB to %ld KiB", after_first, resident_kib());
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(an_event_never_recorded_counts_as_reached);
    RUN(an_event_is_reached_when_the_work_before_it_is_done);
    RUN(a_stream_waits_for_an_event_of_the_same_or_another_device);
    RUN(work_after_the_record_is_not_waited_for);
    RUN(a_wait_is_for_the_record_at_the_time_of_the_call);
    RUN(a_host_wait_is_for_the_record_at_the_time_of_the_call);
    RUN(F21_an_event_belongs_to_the_device_where_it_was_recorded_last);
    RUN(F17_waits_already_queued_survive_the_event);
    RUN(waits_survive_the_stream_that_was_recorded);
    RUN(F25_a_wait_for_an_event_with_a_limit_ends);
    RUN(two_events_measure_the_time_between);
    RUN(time_that_cannot_be_measured_is_refused);
    RUN(an_eventfd_counts_one_when_the_event_is_reached);
    RUN(an_event_that_has_been_reached_signals_at_once);
    RUN(a_reader_that_has_gone_raises_no_sigpipe);
    RUN(events_have_a_native_handle_once_they_are_recorded);
    RUN(a_native_handle_goes_on_naming_the_event);
    RUN(event_options_take_every_struct_size);
    RUN(unknown_flags_are_refused);
    RUN(F15_a_destroyed_event_is_answered_and_not_followed);
    RUN(null_is_no_event);
    RUN(F38_events_recorded_and_forgotten_cost_no_memory);
    return end();
}
