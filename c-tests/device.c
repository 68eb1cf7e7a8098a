/* Devices: the list, whose current one is whose, and what they tell about themselves. */
#include "structs.h"
#include "work.h"
#include <poll.h>
#include <sys/eventfd.h>

enum { DEVICES = 4 };

static tgpu_device_info info_of(tgpu_device d) {
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(d, &info));
    return info;
}

static void counting_devices_starts_no_thread(void) {
    int32_t count = -1, again = -1;
    CHECK_OK(tgpu_device_count(&count));
    CHECK_EQ(count, DEVICES);
    for (tgpu_device d = 0; d < count; d++) info_of(d);
    CHECK_OK(tgpu_device_count(&again));
    CHECK_EQ(again, count);
    CHECK_EQ(thread_count(), 1);
}

/* ---- whose device */

static void *starts_on(void *data) {
    CHECK_EQ(device_now(), *(tgpu_device *)data);
    return NULL;
}

static void F01_a_new_thread_starts_on_the_default_device_whatever_its_creator_does(void) {
    tgpu_device zero = 0;
    CHECK_EQ(device_now(), 0);
    CHECK_OK(tgpu_device_set(3));
    on_a_thread(starts_on, &zero);
    CHECK_EQ(device_now(), 3);
    CHECK_OK(tgpu_device_set(0));
}

static void *switches_a_lot(void *data) {
    tgpu_device own = *(tgpu_device *)data;
    for (int i = 0; i < 2000; i++) {
        tgpu_device d = (own + i) % DEVICES;
        CHECK_OK(tgpu_device_set(d));
        CHECK_EQ(device_now(), d);
    }
    return NULL;
}

static void F02_a_switch_is_seen_by_no_other_task(void) {
    pthread_t threads[DEVICES];
    tgpu_device own[DEVICES] = {0, 1, 2, 3}, zero = 0;
    CHECK_OK(tgpu_device_set(2));
    for (int i = 0; i < DEVICES; i++) threads[i] = start_thread(switches_a_lot, &own[i]);
    for (int i = 0; i < 200; i++) CHECK_EQ(device_now(), 2);
    on_a_thread(starts_on, &zero); /* new tasks neither */
    for (int i = 0; i < DEVICES; i++) join_thread(threads[i]);
    CHECK_EQ(device_now(), 2);
    CHECK_OK(tgpu_device_set(0));
}

struct waiting {
    struct gate gate;
    int has_called; /* makes a call that needs the device before it waits */
    tgpu_device must;
};

static void *looks_after_the_gate(void *data) {
    struct waiting *w = data;
    if (w->has_called) CHECK_EQ(device_now(), 0);
    gate_pass_(&w->gate);
    CHECK_EQ(device_now(), w->must);
    return NULL;
}

static void the_default_device_is_for_tasks_that_have_made_no_call(void) {
    struct waiting early = {GATE, 1, 0}, late = {GATE, 0, 2};
    CHECK_EQ(device_now(), 0);
    pthread_t a = start_thread(looks_after_the_gate, &early), b = start_thread(looks_after_the_gate, &late);
    wait_for_gate(&early.gate), wait_for_gate(&late.gate);
    CHECK_OK(tgpu_device_default_set(2));
    CHECK_EQ(device_now(), 0);
    open_gate(&early.gate), open_gate(&late.gate);
    join_thread(a), join_thread(b);
    on_a_thread(starts_on, &(tgpu_device){2});
    CHECK_OK(tgpu_device_default_set(0));
    on_a_thread(starts_on, &(tgpu_device){0});
}

static tgpu_event made_elsewhere;

static void *use_everything_of_another_device(void *data) {
    tgpu_stream s = data;
    struct notes notes = {0};
    struct state before;
    void *p = NULL, *q = NULL;
    uint64_t a, b;
    int32_t yes;
    CHECK_OK(tgpu_device_set(1));
    before = state_now();
    note(s, &notes, 1);
    CHECK_OK(tgpu_malloc_async(1000, s, &p));
    CHECK_OK(tgpu_memset(p, 1, 1000, s));
    CHECK_OK(tgpu_fill(p, "12345678", 8, 10, s));
    CHECK_OK(tgpu_malloc(1000, &q));
    CHECK_OK(tgpu_memcpy(q, p, 1000, s));
    CHECK_OK(tgpu_free_async(p, s));
    CHECK_OK(tgpu_event_record(made_elsewhere, s));
    CHECK_OK(tgpu_stream_wait_event(s, made_elsewhere));
    CHECK_OK(tgpu_stream_wait_stream(s, NULL));
    CHECK_OK(tgpu_event_synchronize(made_elsewhere));
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_OK(tgpu_stream_query(s));
    CHECK_OK(tgpu_device_memory(3, &a, &b));
    CHECK_OK(tgpu_device_can_access_peer(3, 1, &yes));
    CHECK_OK(tgpu_device_enable_peer(3, 1));
    CHECK_OK(tgpu_memory_trim(3, 0));
    CHECK_OK(tgpu_free(q));
    CHECK_STATE(before);
    CHECK_EQ(notes.devices[0], 3);
    return NULL;
}

static void F06_calls_about_another_device_leave_the_current_one(void) {
    tgpu_stream s = stream_on(3);
    struct state before = state_now();
    CHECK_OK(tgpu_event_create(NULL, &made_elsewhere));
    on_a_thread(use_everything_of_another_device, s);
    CHECK_STATE(before);
    CHECK_OK(tgpu_event_destroy(made_elsewhere));
    CHECK_OK(tgpu_stream_destroy(s));
}

/* ---- bad input */

static void a_device_that_does_not_exist_is_refused_by_every_call(void) {
    const tgpu_device wrong[] = {-1, DEVICES, 1000000, INT32_MIN, INT32_MAX};
    tgpu_kernel k = kernel_of(note_kernel_, 1, (const size_t[]){sizeof(struct note_args_)});
    CHECK_OK(tgpu_device_set(2));
    struct state before = state_now();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tgpu_device d = wrong[i];
        tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
        tgpu_kernel_info kernel_info = TGPU_KERNEL_INFO_INIT;
        uint64_t a = 77, b = 77;
        int32_t yes = 77;
        tgpu_stream s = (tgpu_stream)77;
        tgpu_scope scope;
        memset(&scope, 77, sizeof scope);
#define REFUSED(call) CHECK_REFUSED(call, TGPU_ERROR_INVALID_DEVICE, SIGNED(d), "3")
        REFUSED(tgpu_device_set(d));
        REFUSED(tgpu_device_default_set(d));
        REFUSED(tgpu_device_info_get(d, &info));
        REFUSED(tgpu_device_memory(d, &a, &b));
        REFUSED(tgpu_device_can_access_peer(d, 0, &yes));
        REFUSED(tgpu_device_can_access_peer(0, d, &yes));
        REFUSED(tgpu_device_enable_peer(d, 0));
        REFUSED(tgpu_device_enable_peer(0, d));
        REFUSED(tgpu_device_native(d, &a));
        REFUSED(tgpu_stream_import(d, NULL, &s));
        REFUSED(tgpu_scope_enter_device(d, &scope));
        REFUSED(tgpu_memory_trim(d, 0));
        REFUSED(tgpu_kernel_info_get(k, d, &kernel_info));
        CHECK_STATE(before);
        CHECK_EQ(a, 77), CHECK_EQ(b, 77), CHECK_EQ(yes, 77);
        CHECK_SAME(s, 77);
        CHECK_EQ(info.name[0], 0), CHECK_EQ(kernel_info.max_threads_per_block, 0);
        for (size_t j = 0; j < sizeof scope.opaque / sizeof *scope.opaque; j++) CHECK_EQ(scope.opaque[j], UINT64_C(0x4d4d4d4d4d4d4d4d));
    }
    on_a_thread(starts_on, &(tgpu_device){0}); /* the default has not moved */
    CHECK_OK(tgpu_kernel_destroy(k));
    CHECK_OK(tgpu_device_set(0));
}

static void outputs_must_not_be_null(void) {
    uint64_t n = 77;
    struct state before = state_now();
#define REFUSED_NULL(call) CHECK_REFUSED(call, TGPU_ERROR_INVALID_ARGUMENT, "NULL")
    REFUSED_NULL(tgpu_device_count(NULL));
    REFUSED_NULL(tgpu_device_get(NULL));
    REFUSED_NULL(tgpu_device_info_get(0, NULL));
    REFUSED_NULL(tgpu_device_memory(0, NULL, &n));
    REFUSED_NULL(tgpu_device_memory(0, &n, NULL));
    REFUSED_NULL(tgpu_device_memory(0, NULL, NULL));
    REFUSED_NULL(tgpu_device_can_access_peer(0, 1, NULL));
    REFUSED_NULL(tgpu_device_native(0, NULL));
    CHECK_EQ(n, 77);
    CHECK_STATE(before);
}

/* ---- facts */

static void a_device_describes_itself(void) {
    for (tgpu_device d = 0; d < DEVICES; d++) {
        tgpu_device_info info = info_of(d);
        uint64_t free_bytes = 0, total = 0, native = 99;
        CHECK_EQ(info.device, d);
        CHECK_EQ(info.ordinal, d);
        CHECK(strcmp(info.backend, on_shim() ? "hip" : "host") == 0);
        CHECK(info.name[0] && info.arch[0]);
        CHECK(info.total_memory > 0);
        CHECK_OK(tgpu_device_memory(d, &free_bytes, &total));
        CHECK_EQ(total, info.total_memory);
        CHECK(free_bytes <= total);
        CHECK(info.compute_units >= 1);
        CHECK_EQ(info.warp_size, 1);
        CHECK(info.max_threads_per_block >= 1);
        for (int i = 0; i < 3; i++) {
            CHECK(info.max_block[i] >= 1 && info.max_block[i] <= info.max_threads_per_block);
            CHECK(info.max_grid[i] >= 1);
        }
        CHECK(info.max_shared_per_block > 0);
        CHECK(info.priority_greatest < info.priority_least); /* three levels, as the vendors number them */
        CHECK(info.memory_pools == 0 || info.memory_pools == 1);
        CHECK_OK(tgpu_device_native(d, &native));
        CHECK_EQ(native, d);
        for (tgpu_device other = 0; other < d; other++) {
            tgpu_device_info other_info = info_of(other);
            CHECK(memcmp(info.uuid, other_info.uuid, sizeof info.uuid) != 0);
            CHECK(strcmp(info.name, other_info.name) != 0);
        }
    }
}

static void F20_the_budget_of_hardware_queues_is_told(void) {
    CHECK(info_of(0).hardware_queues >= 1);
}

static tgpu_status get_device_info(void *out) {
    return tgpu_device_info_get(1, out);
}

static void device_info_takes_every_struct_size(void) {
    check_output_struct(get_device_info, sizeof(tgpu_device_info));
}

/* ---- waiting */

static void *note_and_end(void *data) {
    void **with = data;
    hold(NULL, with[0]);
    note(NULL, with[1], 1);
    return NULL; /* the task ends, its work goes on */
}

static void *opens_later(void *data) {
    sleep_ms(30);
    open_gate(data);
    return NULL;
}

static void synchronizing_a_device_waits_for_the_streams_of_all_tasks(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    void *with[] = {&gate, &notes};
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_create(NULL, &s));
    on_a_thread(note_and_end, with);
    note(s, &notes, 2);
    CHECK_OK(tgpu_stream_destroy(s)); /* even of streams whose handle is gone */
    wait_for_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(NULL)); /* this task's own stream has nothing to wait for */
    CHECK(notes.count < 2);
    pthread_t opener = start_thread(opens_later, &gate);
    CHECK_OK(tgpu_device_synchronize());
    CHECK_EQ(notes.count, 2);
    join_thread(opener);
}

static void synchronizing_a_device_does_not_wait_for_another_one(void) {
    struct gate gate = GATE;
    tgpu_stream s = stream_on(1);
    hold(s, &gate);
    CHECK_OK(tgpu_device_synchronize()); /* would hang */
    CHECK_STATUS(tgpu_stream_query(s), TGPU_NOT_READY);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_OK(tgpu_stream_destroy(s));
}

static uint64_t counted(int fd) {
    uint64_t count = 0;
    struct pollfd p = {fd, POLLIN, 0};
    while (poll(&p, 1, -1) != 1) {}
    CHECK_EQ(read(fd, &count, sizeof count), 8);
    return count;
}

static void a_descriptor_counts_one_when_all_tasks_work_on_the_device_is_done(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    void *with[] = {&gate, &notes};
    uint64_t count = 0;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_device_signal_fd(fd)); /* nothing to wait for */
    CHECK_EQ(counted(fd), 1);
    CHECK_OK(tgpu_stream_create(NULL, &s));
    on_a_thread(note_and_end, with); /* the work of a task that has ended */
    note(s, &notes, 2);
    CHECK_OK(tgpu_device_signal_fd(fd));
    give_every_chance(0);
    CHECK_EQ(read(fd, &count, sizeof count), -1);
    open_gate(&gate);
    CHECK_EQ(counted(fd), 1);
    CHECK_EQ(notes.count, 2);
    CHECK_OK(tgpu_stream_destroy(s));
    CHECK_REFUSED(tgpu_device_signal_fd(-1), TGPU_ERROR_INVALID_ARGUMENT, "-1");
    close(fd);
}

static void a_devices_descriptor_does_not_wait_for_later_work_nor_for_another_device(void) {
    int fd = eventfd(0, EFD_CLOEXEC);
    for (tgpu_device d = 0; d < 2; d++) {
        struct gate gate = GATE;
        tgpu_stream s = stream_on(d);
        if (d == 1) hold(s, &gate);
        CHECK_OK(tgpu_device_signal_fd(fd));
        if (d == 0) hold(s, &gate);
        CHECK_EQ(counted(fd), 1); /* would hang */
        open_gate(&gate);
        CHECK_OK(tgpu_stream_synchronize(s));
        CHECK_OK(tgpu_stream_destroy(s));
    }
    close(fd);
}

/* ---- peers */

static void F35_enabling_peer_access_twice_is_fine(void) {
    for (int i = 0; i < 3; i++) CHECK_OK(tgpu_device_enable_peer(1, 2));
}

static void host_devices_reach_each_other_but_are_no_peers_of_themselves(void) {
    int32_t yes = 77;
    CHECK_OK(tgpu_device_can_access_peer(0, 1, &yes));
    CHECK_EQ(yes, 1);
    CHECK_OK(tgpu_device_can_access_peer(1, 1, &yes));
    CHECK_EQ(yes, 0);
    CHECK_REFUSED(tgpu_device_enable_peer(1, 1), TGPU_ERROR_INVALID_ARGUMENT, "1");
}

static void F05_using_one_device_touches_no_other(void) {
    struct notes notes = {0};
    uint64_t before[DEVICES];
    void *p = NULL;
    for (tgpu_device d = 0; d < DEVICES; d++) before[d] = free_memory(d);
    CHECK_OK(tgpu_device_set(3));
    CHECK_OK(tgpu_malloc(1 << 20, &p));
    note(NULL, &notes, 1);
    CHECK_OK(tgpu_synchronize());
    CHECK(free_memory(3) < before[3]);
    for (tgpu_device d = 0; d < 3; d++) CHECK_EQ(free_memory(d), before[d]);
    CHECK_EQ(notes.devices[0], 3);
    CHECK_OK(tgpu_free(p));
    CHECK_OK(tgpu_device_set(0));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN(counting_devices_starts_no_thread);
    RUN(F01_a_new_thread_starts_on_the_default_device_whatever_its_creator_does);
    RUN(F02_a_switch_is_seen_by_no_other_task);
    RUN(the_default_device_is_for_tasks_that_have_made_no_call);
    RUN(F06_calls_about_another_device_leave_the_current_one);
    RUN(a_device_that_does_not_exist_is_refused_by_every_call);
    RUN(outputs_must_not_be_null);
    RUN(a_device_describes_itself);
    RUN(F20_the_budget_of_hardware_queues_is_told);
    RUN(device_info_takes_every_struct_size);
    RUN(synchronizing_a_device_waits_for_the_streams_of_all_tasks);
    RUN(synchronizing_a_device_does_not_wait_for_another_one);
    RUN(a_descriptor_counts_one_when_all_tasks_work_on_the_device_is_done);
    RUN(a_devices_descriptor_does_not_wait_for_later_work_nor_for_another_device);
    RUN(F35_enabling_peer_access_twice_is_fine);
    RUN(host_devices_reach_each_other_but_are_no_peers_of_themselves);
    RUN(F05_using_one_device_touches_no_other);
    return end();
}
