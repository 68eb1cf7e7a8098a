/* Which runtimes were looked for, and what became of them. */
#include "work.h"
#include "structs.h"

static tgpu_backend_info backend(int32_t index) {
    tgpu_backend_info info = TGPU_BACKEND_INFO_INIT;
    CHECK_OK(tgpu_backend_info_get(index, &info));
    return info;
}

static void every_runtime_is_reported_found_or_not(void) {
    const char *const names[] = {"hip", "cuda", "host"};
    tgpu_backend_info info = TGPU_BACKEND_INFO_INIT;
    for (int i = 0; i < 3; i++) CHECK(strcmp(backend(i).name, names[i]) == 0);
    CHECK_REFUSED(tgpu_backend_info_get(3, &info), TGPU_ERROR_NOT_FOUND, "3", "2");
    CHECK_REFUSED(tgpu_backend_info_get(INT32_MAX, &info), TGPU_ERROR_NOT_FOUND, "2147483647");
    CHECK_REFUSED(tgpu_backend_info_get(-1, &info), TGPU_ERROR_INVALID_ARGUMENT, "-1");
    CHECK_EQ(info.name[0], 0); /* nothing was written */
}

static void host_devices_are_available_and_used(void) {
    tgpu_backend_info info = backend(2);
    CHECK_EQ(info.available, 1);
    CHECK_EQ(info.device_count, 4);
    CHECK(info.version[0]);
    CHECK_EQ(info.path[0], 0);
    CHECK_EQ(info.reason[0], 0);
}

static void what_was_not_asked_for_says_so(void) {
    for (int i = 0; i < 2; i++) {
        tgpu_backend_info info = backend(i);
        CHECK_EQ(info.available, 0);
        CHECK_EQ(info.device_count, 0);
        CHECK(strstr(info.reason, "TASKGPU_BACKENDS"));
    }
}

static tgpu_status get_backend_info(void *out) {
    return tgpu_backend_info_get(2, out);
}

static void backend_info_takes_every_struct_size(void) {
    check_output_struct(get_backend_info, sizeof(tgpu_backend_info));
}

/* On a machine with that vendor's GPUs there is nothing to see here. */
static void without(int32_t index) {
    int32_t count = 77;
    tgpu_status status = tgpu_device_count(&count);
    tgpu_backend_info info = backend(index);
    if (status == TGPU_OK) {
        CHECK_EQ(info.device_count, count);
        return;
    }
    CHECK_STATUS(status, TGPU_ERROR_NO_DEVICE);
    CHECK_EQ(count, 77);
    CHECK(info.reason[0]); /* the loader's own words, or that there is no device */
    CHECK_EQ(info.device_count, 0);
    CHECK(strstr(last_text(), info.name));
    CHECK(strstr(last_text(), info.reason));
    /* Not only the first call: every later one says the same. */
    CHECK_REFUSED(tgpu_device_set(0), TGPU_ERROR_NO_DEVICE, info.reason);
    CHECK_REFUSED(tgpu_synchronize(), TGPU_ERROR_NO_DEVICE, info.reason);
}

static void only_hip(void) {
    without(0);
}

static void only_cuda(void) {
    without(1);
}

static void a_machine_without_the_vendors_runtime_is_told_why(void) {
    CHECK_CHILD(only_hip, "TASKGPU_BACKENDS=hip");
    CHECK_CHILD(only_cuda, "TASKGPU_BACKENDS=cuda");
    CHECK_CHILD(only_hip, "TASKGPU_BACKENDS=hip", "TASKGPU_VISIBLE_DEVICES=0");
    CHECK_CHILD(only_cuda, "TASKGPU_BACKENDS=cuda", "TASKGPU_VISIBLE_DEVICES=0");
}

static void something_is_there(void) {
    int32_t count = 0;
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    CHECK_OK(tgpu_device_count(&count));
    CHECK(count >= 1);
    CHECK_OK(tgpu_device_info_get(0, &info));
    CHECK(info.backend[0]);
}

static void host_devices_stand_in_where_there_is_no_gpu(void) {
    CHECK_CHILD(something_is_there, "TASKGPU_BACKENDS");
    CHECK_CHILD(something_is_there, "TASKGPU_BACKENDS=auto");
    CHECK_CHILD(something_is_there, "TASKGPU_BACKENDS=hip,host");
    CHECK_CHILD(something_is_there, "TASKGPU_BACKENDS=host,cuda");
}

int main(int argc, char **argv) {
    begin(argc, argv);
    AS_CHILD(only_hip);
    AS_CHILD(only_cuda);
    AS_CHILD(something_is_there);
    RUN(every_runtime_is_reported_found_or_not);
    RUN(host_devices_are_available_and_used);
    RUN(what_was_not_asked_for_says_so);
    RUN(backend_info_takes_every_struct_size);
    RUN(a_machine_without_the_vendors_runtime_is_told_why);
    RUN(host_devices_stand_in_where_there_is_no_gpu);
    return end();
}
