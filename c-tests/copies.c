/* Two copies of the library in one process: this program's own, and one loaded from a second file. They share nothing, and
 * each refuses the other's handles. TASKGPU_LIBRARY names the shared library; the test runner sets it. */
#include "calls.h"
#include "work.h"
#include <dlfcn.h>

static struct {
    __typeof__(tgpu_device_set) *device_set;
    __typeof__(tgpu_device_get) *device_get;
    __typeof__(tgpu_stream_create) *stream_create;
    __typeof__(tgpu_stream_query) *stream_query;
    __typeof__(tgpu_stream_destroy) *stream_destroy;
    __typeof__(tgpu_event_create) *event_create;
    __typeof__(tgpu_event_query) *event_query;
    __typeof__(tgpu_event_destroy) *event_destroy;
    __typeof__(tgpu_task_create) *task_create;
    __typeof__(tgpu_task_swap) *task_swap;
    __typeof__(tgpu_task_destroy) *task_destroy;
    __typeof__(tgpu_malloc) *malloc;
    __typeof__(tgpu_free) *free;
    __typeof__(tgpu_synchronize) *synchronize;
} other;

static void *look_up(void *handle, const char *name) {
    void *symbol = dlsym(handle, name);
    if (!symbol) FAIL("dlsym: %s", dlerror());
    return symbol;
}

static void load_a_second_copy(void) {
    const char *name = getenv("TASKGPU_LIBRARY");
    char copy[] = "/tmp/taskgpu-copy-XXXXXX", buffer[65536];
    if (!name) FAIL("TASKGPU_LIBRARY is not set: it names the shared library, as in `cargo xtask test`");
    int to = mkstemp(copy), from = open(name, O_RDONLY | O_CLOEXEC);
    if (to < 0 || from < 0) FAIL("%s or %s: %s", name, copy, strerror(errno));
    for (ssize_t n; (n = read(from, buffer, sizeof buffer)) > 0;)
        if (write(to, buffer, (size_t)n) != n) FAIL("%s: %s", copy, strerror(errno));
    close(from), close(to);
    void *handle = dlopen(copy, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    unlink(copy);
    if (!handle) FAIL("dlopen: %s", dlerror());
#define LOOK_UP_(member) *(void **)&other.member = look_up(handle, "tgpu_" #member)
    LOOK_UP_(device_set), LOOK_UP_(device_get), LOOK_UP_(stream_create), LOOK_UP_(stream_query), LOOK_UP_(stream_destroy);
    LOOK_UP_(event_create), LOOK_UP_(event_query), LOOK_UP_(event_destroy), LOOK_UP_(task_create), LOOK_UP_(task_swap);
    LOOK_UP_(task_destroy), LOOK_UP_(malloc), LOOK_UP_(free), LOOK_UP_(synchronize);
    CHECK(other.device_set != tgpu_device_set);
}

static void each_copy_has_its_own_state(void) {
    tgpu_device d = -1;
    CHECK_OK(tgpu_device_set(1));
    CHECK_OK(other.device_set(2));
    CHECK_EQ(device_now(), 1);
    CHECK_OK(other.device_get(&d));
    CHECK_EQ(d, 2);
    CHECK_OK(other.synchronize());
    CHECK_OK(tgpu_synchronize());
}

static void F15_handles_of_another_copy_are_refused(void) {
    tgpu_stream mine = NULL, theirs = NULL;
    tgpu_event my_event = NULL, their_event = NULL;
    tgpu_task my_task = NULL, their_task = NULL;
    for (int i = 0; i < 50; i++) { /* whatever the slots and generations are */
        CHECK_OK(tgpu_stream_create(NULL, &mine));
        CHECK_OK(other.stream_create(NULL, &theirs));
        CHECK_OK(tgpu_event_create(NULL, &my_event));
        CHECK_OK(other.event_create(NULL, &their_event));
        CHECK_OK(tgpu_task_create(NULL, &my_task));
        CHECK_OK(other.task_create(NULL, &their_task));
        CHECK_REFUSED(tgpu_stream_query(theirs), TGPU_ERROR_INVALID_HANDLE, HEX(theirs));
        CHECK_STATUS(other.stream_query(mine), TGPU_ERROR_INVALID_HANDLE);
        CHECK_STATUS(tgpu_event_query(their_event), TGPU_ERROR_INVALID_HANDLE);
        CHECK_STATUS(other.event_query(my_event), TGPU_ERROR_INVALID_HANDLE);
        CHECK_STATUS(tgpu_task_swap(their_task, NULL), TGPU_ERROR_INVALID_HANDLE);
        CHECK_STATUS(other.task_swap(my_task, NULL), TGPU_ERROR_INVALID_HANDLE);
        CHECK_STATUS(tgpu_stream_destroy(theirs), TGPU_ERROR_INVALID_HANDLE);
        CHECK_STATUS(other.event_destroy(my_event), TGPU_ERROR_INVALID_HANDLE);
        CHECK_OK(tgpu_stream_destroy(mine));
        CHECK_OK(other.stream_destroy(theirs));
        CHECK_OK(tgpu_event_destroy(my_event));
        CHECK_OK(other.event_destroy(their_event));
        CHECK_OK(tgpu_task_destroy(my_task));
        CHECK_OK(other.task_destroy(their_task));
    }
}

static void memory_of_another_copy_is_not_freed(void) {
    void *mine = NULL, *theirs = NULL;
    CHECK_OK(tgpu_malloc(1000, &mine));
    CHECK_OK(other.malloc(1000, &theirs));
    CHECK_STATUS(tgpu_free(theirs), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_STATUS(other.free(mine), TGPU_ERROR_INVALID_ARGUMENT);
    CHECK_OK(tgpu_free(mine));
    CHECK_OK(other.free(theirs));
}

int main(int argc, char **argv) {
    begin(argc, argv);
    load_a_second_copy();
    RUN(each_copy_has_its_own_state);
    RUN(F15_handles_of_another_copy_are_refused);
    RUN(memory_of_another_copy_is_not_freed);
    return end();
}
