/* What the library asks of the HIP runtime, counted: which calls, on which device, how many, and in which order. */
#include "calls.h"
#include "shim.h"

/* A process of its own for each test, in which nothing was called before. */
#define FRESH "HIP_SHIM_SCRIPT"

static void nothing(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
}

static void do_nothing(void *data, tgpu_status status) {
    (void)data, (void)status;
}

/* The reaper has looked at everything left before: it has destroyed a stream that was left after it. */
static void let_the_reaper_look(void) {
    tgpu_stream s = NULL;
    long before = count_of("hipStreamDestroy");
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_destroy(s));
    WAIT_UNTIL(count_of("hipStreamDestroy") > before);
}

/* ---- what ends, and when */

static void F17_a_stream_is_destroyed_after_its_work(void) {
    struct gate gate = GATE;
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    hold(s, &gate);
    wait_for_gate(&gate);
    CHECK_OK(tgpu_stream_destroy(s));
    long live = count_of("streams");
    for (int i = 0; i < 10; i++) let_the_reaper_look();
    CHECK_EQ(count_of("hipStreamDestroy"), 10);
    CHECK_EQ(count_of("streams"), live);
    open_gate(&gate);
    WAIT_UNTIL(count_of("hipStreamDestroy") == 11);
    CHECK_EQ(count_of("streams"), live - 1);
}

/* The same where the work is not under way but waits for another stream's. */
static void F17_a_stream_that_waits_for_another_is_destroyed_after_it(void) {
    struct gate gate = GATE;
    tgpu_stream s = NULL, other = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_stream_create(NULL, &other));
    hold(other, &gate);
    CHECK_OK(tgpu_stream_wait_stream(s, other));
    CHECK_OK(tgpu_stream_destroy(s));
    for (int i = 0; i < 10; i++) let_the_reaper_look();
    CHECK_EQ(count_of("hipStreamDestroy"), 10);
    open_gate(&gate);
    WAIT_UNTIL(count_of("hipStreamDestroy") == 11);
    CHECK_OK(tgpu_stream_destroy(other));
}

static void F22_nobody_asks_a_stream_that_is_left_how_far_it_is(void) {
    struct gate gate = GATE;
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    hold(s, &gate);
    CHECK_OK(tgpu_stream_destroy(s));
    for (int i = 0; i < 10; i++) let_the_reaper_look();
    open_gate(&gate);
    WAIT_UNTIL(count_of("hipStreamDestroy") == 11);
    CHECK_EQ(count_of("hipStreamQuery"), 0);
    CHECK_EQ(count_of("markers"), 0);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN_IN_CHILD(F17_a_stream_is_destroyed_after_its_work, FRESH);
    RUN_IN_CHILD(F17_a_stream_that_waits_for_another_is_destroyed_after_it, FRESH);
    RUN_IN_CHILD(F22_nobody_asks_a_stream_that_is_left_how_far_it_is, FRESH);
    return end();
}
