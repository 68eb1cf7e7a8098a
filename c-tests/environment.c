/* The environment variables: what they do, and that nonsense in one is an answer and not a crash. */
#include "calls.h"
#include "work.h"

/* ---- nonsense */

static char expected_[2][256]; /* the variable and its value, for a child */

static void expect_from_environment(void) {
    snprintf(expected_[0], sizeof expected_[0], "%s", getenv("TASKGPU_TEST_VARIABLE"));
    snprintf(expected_[1], sizeof expected_[1], "%s", getenv("TASKGPU_TEST_VALUE"));
}

static void *every_thread_is_told(void *data) {
    int32_t count = 77;
    (void)data;
    CHECK_REFUSED(tgpu_device_count(&count), TGPU_ERROR_ENVIRONMENT, expected_[0], expected_[1]);
    CHECK_EQ(count, 77);
    return NULL;
}

static void every_call_tells_of_the_variable(void) {
    struct objects none = no_objects();
    tgpu_backend_info info = TGPU_BACKEND_INFO_INIT;
    (void)info;
    expect_from_environment();
    every_thread_is_told(NULL); /* the first call */
    check_every_call_answers(TGPU_ERROR_ENVIRONMENT, expected_[0], &none);
    every_thread_is_told(NULL);
    on_a_thread(every_thread_is_told, NULL);
    check_what_needs_no_runtime(); /* the library is loaded all the same */
    check_giving_back_nothing_is_ok();
}

static void check_nonsense(const char *variable, const char *value) {
    char set[512], name[512], text[512];
    snprintf(set, sizeof set, "%s=%s", variable, value);
    snprintf(name, sizeof name, "TASKGPU_TEST_VARIABLE=%s", variable);
    snprintf(text, sizeof text, "TASKGPU_TEST_VALUE=%s", value);
    int status = CHILD_STATUS(every_call_tells_of_the_variable, set, name, text);
    if (status != 0) FAIL("with %s: wait status %#x", set, status);
}

static void F11_nonsense_in_a_variable_is_answered_by_every_call(void) {
    static const char *const nonsense[][2] = {
        {"TASKGPU_BACKENDS", "vulkan"},
        {"TASKGPU_BACKENDS", "host,vulkan"},
        {"TASKGPU_BACKENDS", "host,host"},
        {"TASKGPU_BACKENDS", ","},
        {"TASKGPU_BACKENDS", "HOST"},
        {"TASKGPU_VISIBLE_DEVICES", "4"},
        {"TASKGPU_VISIBLE_DEVICES", "-1"},
        {"TASKGPU_VISIBLE_DEVICES", "0,0"},
        {"TASKGPU_VISIBLE_DEVICES", "0,x"},
        {"TASKGPU_VISIBLE_DEVICES", "0,"},
        {"TASKGPU_VISIBLE_DEVICES", "ffffffffffff"},
        {"TASKGPU_VISIBLE_DEVICES", "7461736b"}, /* the start of every host device's UUID */
        {"TASKGPU_VISIBLE_DEVICES", "99999999999999999999"},
        {"TASKGPU_HOST_DEVICES", "0"},
        {"TASKGPU_HOST_DEVICES", "-1"},
        {"TASKGPU_HOST_DEVICES", "many"},
        {"TASKGPU_HOST_DEVICES", "1.5"},
        {"TASKGPU_HOST_DEVICES", "0x4"},
        {"TASKGPU_HOST_DEVICES", "1000000"},
        {"TASKGPU_HOST_DEVICES", "18446744073709551617"},
        {"TASKGPU_HOST_THREADS", "0"},
        {"TASKGPU_HOST_THREADS", "-4"},
        {"TASKGPU_HOST_THREADS", "4 threads"},
        {"TASKGPU_HOST_THREADS", "1000000"},
        {"TASKGPU_HOST_MEMORY", "0"},
        {"TASKGPU_HOST_MEMORY", "-1"},
        {"TASKGPU_HOST_MEMORY", "1GiB"},
        {"TASKGPU_HOST_MEMORY", "99999999999999999999999"},
        {"TASKGPU_WAIT", "sleep"},
        {"TASKGPU_WAIT", "2"},
        {"TASKGPU_WAIT", "Spin"},
        {"TASKGPU_LOG", "loud"},
    };
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) check_nonsense(nonsense[i][0], nonsense[i][1]);
}

static void not_utf8(void) {
    int32_t count;
    CHECK_REFUSED(tgpu_device_count(&count), TGPU_ERROR_ENVIRONMENT, "TASKGPU_");
}

static void a_value_that_is_no_text_is_answered_too(void) {
    CHECK_CHILD(not_utf8, "TASKGPU_WAIT=\xff\xfe");
    CHECK_CHILD(not_utf8, "TASKGPU_BACKENDS=\xc3");
    CHECK_CHILD(not_utf8, "TASKGPU_HOST_DEVICES=\xf0\x9f");
    CHECK_CHILD(not_utf8, "TASKGPU_VISIBLE_DEVICES=\x80");
}

/* ---- sense */

static int32_t count_devices(void) {
    int32_t count = -1;
    CHECK_OK(tgpu_device_count(&count));
    return count;
}

static void one_device(void) {
    CHECK_EQ(count_devices(), 1);
}

static void an_empty_variable_is_as_good_as_none(void) {
    CHECK_CHILD(one_device, "TASKGPU_HOST_DEVICES=", "TASKGPU_WAIT=", "TASKGPU_VISIBLE_DEVICES=", "TASKGPU_HOST_MEMORY=", "TASKGPU_LOG=");
    CHECK_CHILD(one_device, "TASKGPU_HOST_DEVICES", "TASKGPU_HOST_THREADS");
}

static void sixteen_devices(void) {
    CHECK_EQ(count_devices(), 16);
    CHECK_OK(tgpu_device_set(15));
}

static void host_devices_sets_how_many_there_are(void) {
    CHECK_CHILD(one_device, "TASKGPU_HOST_DEVICES=1");
    CHECK_CHILD(sixteen_devices, "TASKGPU_HOST_DEVICES=16");
}

static tgpu_device_info info_of(tgpu_device d) {
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_info_get(d, &info));
    return info;
}

static void device_2_then_device_0(void) {
    struct notes notes = {0};
    CHECK_EQ(count_devices(), 2);
    CHECK_EQ(info_of(0).ordinal, 2);
    CHECK_EQ(info_of(1).ordinal, 0);
    CHECK_EQ(info_of(0).device, 0);
    CHECK_REFUSED(tgpu_device_set(2), TGPU_ERROR_INVALID_DEVICE, "2", "1");
    note(NULL, &notes, 1); /* the list's first device is where a task starts */
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(notes.devices[0], 2);
}

static void visible_devices_picks_and_orders(void) {
    char by_uuid[128] = "TASKGPU_VISIBLE_DEVICES=", reversed[256] = "TASKGPU_VISIBLE_DEVICES=GPU-";
    CHECK_CHILD(device_2_then_device_0, "TASKGPU_VISIBLE_DEVICES=2,0");
    CHECK_CHILD(device_2_then_device_0, "TASKGPU_VISIBLE_DEVICES= 2 , 0 ");
    tgpu_device_info two = info_of(2);
    for (int i = 0; i < 16; i++) {
        snprintf(by_uuid + strlen(by_uuid), 3, "%02x", two.uuid[i]);
        snprintf(reversed + strlen(reversed), 4, "%02X%s", two.uuid[i], i == 3 || i == 5 || i == 7 || i == 9 ? "-" : "");
    }
    strcat(by_uuid, ",0");
    strcat(reversed, ",0");
    CHECK_CHILD(device_2_then_device_0, by_uuid);
    CHECK_CHILD(device_2_then_device_0, reversed); /* as the vendors' tools print it */
}

static void host_memory_sets_what_each_device_has(void) {
    uint64_t free_bytes, total;
    for (tgpu_device d = 0; d < 4; d++) {
        CHECK_OK(tgpu_device_memory(d, &free_bytes, &total));
        CHECK_EQ(total, 1 << 20);
        CHECK_EQ(free_bytes, total);
        CHECK_EQ(info_of(d).total_memory, total);
    }
}

static void policy_is(int32_t must) {
    int32_t policy = -1;
    CHECK_OK(tgpu_wait_policy_get(&policy));
    CHECK_EQ(policy, must);
    tgpu_task task = NULL;
    CHECK_OK(tgpu_task_create(NULL, &task));
    CHECK_OK(tgpu_wait_policy_set(TGPU_WAIT_AUTO));
    CHECK_OK(tgpu_task_swap(task, NULL));
    CHECK_OK(tgpu_wait_policy_get(&policy));
    CHECK_EQ(policy, must);
}

static void tasks_spin(void) {
    policy_is(TGPU_WAIT_SPIN);
}

static void tasks_block(void) {
    policy_is(TGPU_WAIT_BLOCK);
}

static void tasks_wait_by_themselves(void) {
    policy_is(TGPU_WAIT_AUTO);
}

static void wait_sets_what_tasks_start_with(void) {
    CHECK_CHILD(tasks_spin, "TASKGPU_WAIT=spin");
    CHECK_CHILD(tasks_block, "TASKGPU_WAIT=block");
    CHECK_CHILD(tasks_wait_by_themselves, "TASKGPU_WAIT=auto");
    CHECK_CHILD(tasks_wait_by_themselves, "TASKGPU_WAIT");
}

static void host_threads_sets_how_many_run_kernels(void) {
    struct gate gate = GATE;
    struct notes notes = {0};
    tgpu_stream s = stream_on(1);
    hold(NULL, &gate);
    wait_for_gate(&gate);
    note(s, &notes, 1); /* another device, but the only thread is busy */
    sleep_ms(20);
    CHECK_EQ(notes.count, 0);
    open_gate(&gate);
    CHECK_OK(tgpu_stream_synchronize(s));
    CHECK_NOTES(&notes, 1);
    CHECK_OK(tgpu_synchronize());
}

static void variables_are_read_once(void) {
    CHECK_EQ(count_devices(), 4);
    setenv("TASKGPU_HOST_DEVICES", "nonsense", 1);
    setenv("TASKGPU_BACKENDS", "hip", 1);
    CHECK_EQ(count_devices(), 4);
    CHECK_OK(tgpu_device_set(3));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    AS_CHILD(every_call_tells_of_the_variable);
    AS_CHILD(not_utf8);
    AS_CHILD(one_device);
    AS_CHILD(sixteen_devices);
    AS_CHILD(device_2_then_device_0);
    AS_CHILD(tasks_spin);
    AS_CHILD(tasks_block);
    AS_CHILD(tasks_wait_by_themselves);
    RUN(F11_nonsense_in_a_variable_is_answered_by_every_call);
    RUN(a_value_that_is_no_text_is_answered_too);
    RUN(an_empty_variable_is_as_good_as_none);
    RUN(host_devices_sets_how_many_there_are);
    RUN(visible_devices_picks_and_orders);
    RUN_IN_CHILD(host_memory_sets_what_each_device_has, "TASKGPU_HOST_MEMORY=1048576");
    RUN(wait_sets_what_tasks_start_with);
    RUN_IN_CHILD(host_threads_sets_how_many_run_kernels, "TASKGPU_HOST_THREADS=1");
    RUN_IN_CHILD(variables_are_read_once, AS_IT_IS);
    return end();
}
