/* The library loaded at run time, by a program that is not linked with it, and closed again while it is in use. The
 * variable TASKGPU_LIBRARY names the shared library; the test runner sets it. */
#define CHECK_WITHOUT_LIBRARY
#include "check.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <taskgpu.h>

#define FUNCTIONS(X) \
    X(tgpu_version) X(tgpu_device_count) X(tgpu_device_set) X(tgpu_device_get) X(tgpu_stream_get) X(tgpu_stream_query) X(tgpu_stream_create) \
    X(tgpu_stream_destroy) X(tgpu_stream_add_callback) X(tgpu_synchronize) X(tgpu_malloc) X(tgpu_memset) X(tgpu_free) \
    X(tgpu_free_deferred) X(tgpu_error_info_get)

struct library {
    void *handle;
#define MEMBER_(name) __typeof__(name) *name;
    FUNCTIONS(MEMBER_)
};

static const char *path(void) {
    const char *name = getenv("TASKGPU_LIBRARY");
    if (!name) FAIL("TASKGPU_LIBRARY is not set: it names the shared library, as in `cargo xtask test`");
    return name;
}

static struct library load(int mode) {
    struct library l;
    l.handle = dlopen(path(), mode);
    if (!l.handle) FAIL("dlopen: %s", dlerror());
#define LOOK_UP_(name) \
    *(void **)&l.name = dlsym(l.handle, #name); \
    if (!l.name) FAIL("dlsym: %s", dlerror());
    FUNCTIONS(LOOK_UP_)
    return l;
}

static void use(const struct library *l) {
    void *p = NULL;
    CHECK_EQ(l->tgpu_malloc(1000, &p), TGPU_OK);
    CHECK_EQ(l->tgpu_memset(p, 1, 1000, NULL), TGPU_OK);
    CHECK_EQ(l->tgpu_synchronize(), TGPU_OK);
    CHECK_EQ(l->tgpu_free(p), TGPU_OK);
}

static void loading_runs_nothing_and_needs_no_other_library_of_ours(void) {
    const int modes[] = {RTLD_LAZY | RTLD_LOCAL, RTLD_NOW | RTLD_LOCAL, RTLD_NOW | RTLD_GLOBAL};
    for (int i = 0; i < 3; i++) {
        struct library l = load(modes[i]);
        CHECK_EQ(l.tgpu_version(), TGPU_VERSION);
        CHECK_EQ(thread_count(), 1);
        dlclose(l.handle);
    }
}

static void F11_nonsense_in_the_environment_does_not_break_loading(void) {
    int32_t count = 77;
    struct library l = load(RTLD_NOW);
    CHECK_EQ(l.tgpu_device_count(&count), TGPU_ERROR_ENVIRONMENT);
    CHECK_EQ(count, 77);
    dlclose(l.handle);
}

static void a_program_may_load_the_library_and_use_it(void) {
    struct library l = load(RTLD_NOW);
    int32_t count = 0;
    CHECK_EQ(l.tgpu_device_count(&count), TGPU_OK);
    CHECK_EQ(count, 4);
    use(&l);
    dlclose(l.handle);
}

static void loading_it_again_finds_the_same_state(void) {
    struct library l = load(RTLD_NOW), again;
    tgpu_stream s = NULL;
    tgpu_device d = -1;
    CHECK_EQ(l.tgpu_device_set(2), TGPU_OK);
    CHECK_EQ(l.tgpu_stream_create(NULL, &s), TGPU_OK);
    dlclose(l.handle);
    again = load(RTLD_NOW);
    CHECK(again.tgpu_device_get == l.tgpu_device_get);
    CHECK_EQ(again.tgpu_device_get(&d), TGPU_OK);
    CHECK_EQ(d, 2);
    CHECK_EQ(again.tgpu_stream_query(s), TGPU_OK);
    CHECK_EQ(again.tgpu_stream_destroy(s), TGPU_OK);
    dlclose(again.handle);
}

static atomic_int go_on, called;

static void slow_callback(void *data, tgpu_status status) {
    (void)data;
    while (!go_on) sleep_ms(1);
    CHECK_EQ(status, TGPU_OK);
    called++;
}

static void *uses_it_and_ends_after_it_was_closed(void *data) {
    struct library *l = data;
    tgpu_device d = -1;
    CHECK_EQ(l->tgpu_device_set(3), TGPU_OK);
    use(l);
    called++;
    while (!go_on) sleep_ms(1);
    CHECK_EQ(l->tgpu_device_get(&d), TGPU_OK);
    CHECK_EQ(d, 3);
    use(l);
    return NULL; /* the end of a thread that has a task */
}

static void closing_it_while_it_is_in_use_is_harmless(void) {
    struct library l = load(RTLD_NOW);
    pthread_t threads[4];
    called = 0;
    CHECK_EQ(l.tgpu_device_set(0), TGPU_OK);
    for (int i = 0; i < 4; i++) threads[i] = start_thread(uses_it_and_ends_after_it_was_closed, &l);
    WAIT_UNTIL(called == 4);
    CHECK_EQ(l.tgpu_stream_add_callback(NULL, slow_callback, NULL), TGPU_OK);
    void *p = NULL;
    CHECK_EQ(l.tgpu_malloc(1000, &p), TGPU_OK);
    CHECK_EQ(l.tgpu_free_deferred(p), TGPU_OK);
    dlclose(l.handle);
    go_on = 1;
    for (int i = 0; i < 4; i++) join_thread(threads[i]);
    WAIT_UNTIL(called == 5);
    struct library again = load(RTLD_NOW);
    use(&again);
    dlclose(again.handle); /* and the process ends with it closed */
}

int main(int argc, char **argv) {
    begin(argc, argv);
    RUN_IN_CHILD(loading_runs_nothing_and_needs_no_other_library_of_ours, AS_IT_IS);
    RUN_IN_CHILD(F11_nonsense_in_the_environment_does_not_break_loading, "TASKGPU_VISIBLE_DEVICES=nonsense");
    RUN_IN_CHILD(a_program_may_load_the_library_and_use_it, AS_IT_IS);
    RUN_IN_CHILD(loading_it_again_finds_the_same_state, AS_IT_IS);
    RUN_IN_CHILD(closing_it_while_it_is_in_use_is_harmless, AS_IT_IS);
    return end();
}
