/* Scopes: a device or stream for a while, then exactly what was before. */
#include "work.h"

enum { WORDS = sizeof(tgpu_scope) / sizeof(uint64_t) };

static tgpu_scope enter_device(tgpu_device d) {
    tgpu_scope scope;
    CHECK_OK(tgpu_scope_enter_device(d, &scope));
    return scope;
}

static tgpu_scope enter_stream(tgpu_stream s) {
    tgpu_scope scope;
    CHECK_OK(tgpu_scope_enter_stream(s, &scope));
    return scope;
}

static void F07_a_device_scope_restores_the_device(void) {
    for (tgpu_device from = 0; from < 4; from++)
        for (tgpu_device to = 0; to < 4; to++) {
            CHECK_OK(tgpu_device_set(from));
            struct state before = state_now();
            tgpu_scope scope = enter_device(to);
            CHECK_EQ(device_now(), to);
            CHECK_EQ(stream_info(NULL).device, to);
            CHECK_OK(tgpu_scope_leave(scope));
            CHECK_STATE(before);
        }
    CHECK_OK(tgpu_device_set(0));
}

static void F08_a_stream_scope_puts_the_work_on_that_stream(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream s = stream_on(1);
    struct state before = state_now();
    tgpu_scope scope = enter_stream(s);
    CHECK_EQ(device_now(), 1);
    CHECK_SAME(stream_now(), s);
    hold(s, &gate);
    note(NULL, &notes, 1); /* behind the gate, if it is on s */
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_STATE(before);
    note(NULL, &notes, 2);
    CHECK_OK(tgpu_synchronize());
    CHECK_NOTES(&notes, 2);
    CHECK_EQ(notes.devices[0], 0);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_NOTES(&notes, 2, 1);
    CHECK_EQ(notes.devices[1], 1);
    CHECK_OK(tgpu_stream_destroy(s));
}

static void F07_a_stream_scope_restores_the_streams_of_both_devices(void) {
    tgpu_stream zero = stream_on(0), one = stream_on(1), inner = stream_on(1);
    CHECK_OK(tgpu_stream_set(one));
    CHECK_OK(tgpu_stream_set(zero));
    struct state before = state_now();
    tgpu_scope scope = enter_stream(inner);
    CHECK_OK(tgpu_stream_set(NULL)); /* whatever happens inside */
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_device_set(3));
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_STATE(before);
    CHECK_OK(tgpu_device_set(1));
    CHECK_SAME(stream_now(), one);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_device_set(0));
    CHECK_OK(tgpu_stream_set(NULL));
    tgpu_stream all[] = {zero, one, inner};
    for (int i = 0; i < 3; i++) CHECK_OK(tgpu_stream_destroy(all[i]));
}

static void a_stream_scope_with_null_is_the_lease(void) {
    tgpu_stream lease = stream_now(), s = stream_on(0);
    CHECK_OK(tgpu_stream_set(s));
    tgpu_scope scope = enter_stream(NULL);
    CHECK_SAME(stream_now(), lease);
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_SAME(stream_now(), s);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_stream_destroy(s));
}

static void scopes_nest(void) {
    enum { DEEP = 1000 };
    static tgpu_scope scopes[DEEP];
    struct state before = state_now();
    for (int i = 0; i < DEEP; i++) scopes[i] = enter_device(i % 4);
    for (int i = DEEP - 1; i >= 0; i--) {
        CHECK_EQ(device_now(), i % 4);
        CHECK_OK(tgpu_scope_leave(scopes[i]));
    }
    CHECK_STATE(before);
}

static void out_of_order_nothing_is_restored(void) {
    tgpu_scope outer = enter_device(1), inner = enter_device(2);
    struct state before = state_now();
    CHECK_REFUSED(tgpu_scope_leave(outer), TGPU_ERROR_SCOPE_MISMATCH, "scope");
    CHECK_STATE(before);
    CHECK_OK(tgpu_scope_leave(inner)); /* and the right order still works */
    CHECK_EQ(device_now(), 1);
    CHECK_REFUSED(tgpu_scope_leave(inner), TGPU_ERROR_SCOPE_MISMATCH, "scope");
    CHECK_EQ(device_now(), 1);
    CHECK_OK(tgpu_scope_leave(outer));
    CHECK_EQ(device_now(), 0);
    CHECK_REFUSED(tgpu_scope_leave(outer), TGPU_ERROR_SCOPE_MISMATCH, "scope");
    CHECK_REFUSED(tgpu_scope_leave(inner), TGPU_ERROR_SCOPE_MISMATCH, "scope");
    CHECK_EQ(device_now(), 0);
}

static void a_scope_that_was_left_is_not_taken_for_a_later_one(void) {
    tgpu_scope outer = enter_device(1);
    CHECK_OK(tgpu_scope_leave(outer));
    tgpu_scope again = enter_device(2);
    struct state before = state_now();
    CHECK_REFUSED(tgpu_scope_leave(outer), TGPU_ERROR_SCOPE_MISMATCH, "scope");
    CHECK_STATE(before);
    CHECK_OK(tgpu_scope_leave(again));
}

static void *may_not_leave(void *data) {
    CHECK_OK(tgpu_device_set(3));
    struct state before = state_now();
    CHECK_REFUSED(tgpu_scope_leave(*(tgpu_scope *)data), TGPU_ERROR_SCOPE_MISMATCH, "scope");
    CHECK_STATE(before);
    tgpu_scope own = enter_device(2); /* nor with a scope of its own open */
    CHECK_REFUSED(tgpu_scope_leave(*(tgpu_scope *)data), TGPU_ERROR_SCOPE_MISMATCH, "scope");
    CHECK_OK(tgpu_scope_leave(own));
    CHECK_STATE(before);
    return NULL;
}

static void F07_another_thread_cannot_leave_a_scope(void) {
    tgpu_scope scope = enter_device(1);
    on_a_thread(may_not_leave, &scope);
    CHECK_EQ(device_now(), 1);
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_EQ(device_now(), 0);
}

static void another_task_of_the_same_thread_cannot_leave_a_scope(void) {
    tgpu_task task = NULL;
    tgpu_scope scope = enter_device(1), inside;
    CHECK_OK(tgpu_task_create(NULL, &task));
    CHECK_OK(tgpu_task_swap(task, NULL));
    struct state before = state_now();
    CHECK_REFUSED(tgpu_scope_leave(scope), TGPU_ERROR_SCOPE_MISMATCH, "task");
    CHECK_STATE(before);
    inside = enter_device(2);
    CHECK_OK(tgpu_task_swap(NULL, NULL));
    CHECK_REFUSED(tgpu_scope_leave(inside), TGPU_ERROR_SCOPE_MISMATCH, "task");
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_EQ(device_now(), 0);
    CHECK_OK(tgpu_task_destroy(task)); /* with a scope open: gone with the task */
}

struct moving {
    tgpu_task task;
    tgpu_scope scope;
    tgpu_stream stream;
};

static void *leaves_it_there(void *data) {
    struct moving *m = data;
    CHECK_OK(tgpu_device_set(3));
    CHECK_OK(tgpu_task_swap(m->task, NULL));
    CHECK_SAME(stream_now(), m->stream);
    CHECK_OK(tgpu_scope_leave(m->scope));
    CHECK_EQ(device_now(), 0);
    CHECK_OK(tgpu_task_swap(NULL, NULL));
    CHECK_EQ(device_now(), 3);
    return NULL;
}

static void F07_a_scope_moves_with_its_task(void) {
    struct moving m = {.stream = stream_on(2)};
    CHECK_OK(tgpu_task_create(NULL, &m.task));
    CHECK_OK(tgpu_task_swap(m.task, NULL));
    m.scope = enter_stream(m.stream);
    CHECK_OK(tgpu_task_swap(NULL, NULL));
    CHECK_EQ(device_now(), 0);
    on_a_thread(leaves_it_there, &m);
    CHECK_OK(tgpu_task_destroy(m.task));
    CHECK_OK(tgpu_stream_destroy(m.stream));
}

static void a_failed_enter_changes_nothing(void) {
    tgpu_scope scope;
    tgpu_stream dead = stream_on(1);
    CHECK_OK(tgpu_stream_destroy(dead));
    tgpu_scope outer = enter_device(1);
    struct state before = state_now();
    memset(&scope, 0x5a, sizeof scope);
    CHECK_REFUSED(tgpu_scope_enter_device(4, &scope), TGPU_ERROR_INVALID_DEVICE, "4", "3");
    CHECK_REFUSED(tgpu_scope_enter_device(-1, &scope), TGPU_ERROR_INVALID_DEVICE, "-1");
    CHECK_REFUSED(tgpu_scope_enter_stream(dead, &scope), TGPU_ERROR_INVALID_HANDLE, HEX(dead));
    CHECK_REFUSED(tgpu_scope_enter_device(2, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    CHECK_REFUSED(tgpu_scope_enter_stream(NULL, NULL), TGPU_ERROR_INVALID_ARGUMENT, "NULL");
    for (int i = 0; i < WORDS; i++) CHECK_EQ(scope.opaque[i], UINT64_C(0x5a5a5a5a5a5a5a5a));
    CHECK_STATE(before);
    CHECK_OK(tgpu_scope_leave(outer)); /* still the innermost one */
    CHECK_EQ(device_now(), 0);
}

static void bytes_that_are_no_scope_are_answered(void) {
    tgpu_scope garbage;
    struct state before = state_now();
    for (int fill = 0; fill < 256; fill++) {
        memset(&garbage, fill, sizeof garbage);
        CHECK_STATUS(tgpu_scope_leave(garbage), TGPU_ERROR_SCOPE_MISMATCH);
    }
    CHECK_STATE(before);
}

static void a_damaged_scope_is_answered_and_the_task_goes_on(void) {
    for (int word = 0; word < WORDS; word++)
        for (int bit = 0; bit < 64; bit++) {
            tgpu_scope scope = enter_device(1), damaged = scope;
            damaged.opaque[word] ^= UINT64_C(1) << bit;
            /* It may be noticed or not; it must not crash, and the task must be usable. */
            tgpu_status status = tgpu_scope_leave(damaged);
            CHECK(device_now() >= 0 && device_now() < 4);
            if (status != TGPU_OK) {
                CHECK_EQ(device_now(), 1);
                CHECK_OK(tgpu_scope_leave(scope));
            }
            CHECK_OK(tgpu_device_set(1));
            CHECK_OK(tgpu_stream_set(NULL));
            CHECK_OK(tgpu_device_set(0));
            CHECK_OK(tgpu_stream_set(NULL));
            CHECK_OK(tgpu_synchronize());
        }
}

static void a_stream_destroyed_inside_a_scope_is_answered_after_it(void) {
    tgpu_stream s = stream_on(0), inner = stream_on(0);
    CHECK_OK(tgpu_stream_set(s));
    tgpu_scope scope = enter_stream(inner);
    CHECK_OK(tgpu_stream_destroy(s));
    CHECK_OK(tgpu_stream_destroy(inner));
    CHECK_STATUS(tgpu_synchronize(), TGPU_ERROR_INVALID_HANDLE);
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_REFUSED(tgpu_synchronize(), TGPU_ERROR_INVALID_HANDLE, HEX(s)); /* exactly what was before: and that is gone */
    CHECK_EQ(device_now(), 0);
    CHECK_OK(tgpu_stream_set(NULL));
    CHECK_OK(tgpu_synchronize());
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(F07_a_device_scope_restores_the_device);
    RUN(F08_a_stream_scope_puts_the_work_on_that_stream);
    RUN(F07_a_stream_scope_restores_the_streams_of_both_devices);
    RUN(a_stream_scope_with_null_is_the_lease);
    RUN(scopes_nest);
    RUN(out_of_order_nothing_is_restored);
    RUN(a_scope_that_was_left_is_not_taken_for_a_later_one);
    RUN(F07_another_thread_cannot_leave_a_scope);
    RUN(another_task_of_the_same_thread_cannot_leave_a_scope);
    RUN(F07_a_scope_moves_with_its_task);
    RUN(a_failed_enter_changes_nothing);
    RUN(bytes_that_are_no_scope_are_answered);
    RUN(a_damaged_scope_is_answered_and_the_task_goes_on);
    RUN(a_stream_destroyed_inside_a_scope_is_answered_after_it);
    return end();
}
