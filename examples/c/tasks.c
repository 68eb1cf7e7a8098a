/* A task that moves between threads, as the tasks of a language runtime or a fiber library do: device, streams, scopes and
 * last error follow the task, and the threads it runs on keep their own.
 *
 *   cc tasks.c -ltaskgpu -lpthread && TASKGPU_HOST_DEVICES=4 ./a.out
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <taskgpu.h>

#define CHECK(call) do { tgpu_status s_ = (call); tgpu_error_info i_ = TGPU_ERROR_INFO_INIT; \
    if (s_ != TGPU_OK) { tgpu_error_info_get(&i_); fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, \
        tgpu_status_name(s_), i_.text); exit(1); } } while (0)

enum { BYTES = 1 << 20 };
static int wrong; /* the two threads take turns, so nothing here needs a lock */
#define EXPECT(what, is) (printf("  %-68s %s\n", what, (is) ? "yes" : "NO"), wrong += !(is))

/* What the task remembers between its steps. A real runtime keeps this on the task's own stack. */
static tgpu_task task;
static tgpu_device last_device;
static tgpu_stream own_stream, stream_outside;
static tgpu_scope scope;
static void *memory;
static unsigned char result[BYTES];

static void first_half_of_the_task(void) {
    tgpu_device d;
    CHECK(tgpu_device_get(&d));
    EXPECT("a new task starts on the default device", d == 0);
    CHECK(tgpu_device_set(last_device));
    CHECK(tgpu_stream_get(&stream_outside)); /* its lease on that device */
    CHECK(tgpu_stream_create(NULL, &own_stream));
    CHECK(tgpu_scope_enter_stream(own_stream, &scope)); /* left in the other half */
    CHECK(tgpu_malloc_async(BYTES, NULL, &memory));
    CHECK(tgpu_memset(memory, 42, BYTES, NULL)); /* on the current stream: own_stream */
    EXPECT("a mistake of the task is answered", tgpu_device_set(9999) == TGPU_ERROR_INVALID_DEVICE);
}

static void second_half_of_the_task(void) {
    tgpu_device d;
    tgpu_stream s;
    tgpu_error_info error = TGPU_ERROR_INFO_INIT;
    size_t differ = 0;
    CHECK(tgpu_device_get(&d));
    CHECK(tgpu_stream_get(&s));
    CHECK(tgpu_error_info_get(&error));
    EXPECT("its device came along", d == last_device);
    EXPECT("its current stream came along", s == own_stream);
    EXPECT("its last error came along", error.status == TGPU_ERROR_INVALID_DEVICE);
    CHECK(tgpu_memcpy(result, memory, BYTES, NULL)); /* still own_stream: after the memset */
    CHECK(tgpu_synchronize());
    for (size_t i = 0; i < BYTES; i++) differ += result[i] != 42;
    EXPECT("what the first half queued is there", differ == 0);
    CHECK(tgpu_free_async(memory, NULL));
    CHECK(tgpu_scope_leave(scope));
    CHECK(tgpu_stream_get(&s));
    EXPECT("the scope entered on the other thread is left on this one", s == stream_outside);
    CHECK(tgpu_stream_destroy(own_stream));
}

static void *other_thread(void *data) {
    tgpu_task before;
    tgpu_device d;
    tgpu_error_info error = TGPU_ERROR_INFO_INIT;
    (void)data;
    puts("thread 2 takes the task:");
    CHECK(tgpu_device_set(0)); /* this thread's own task has a device of its own */
    CHECK(tgpu_task_swap(task, &before));
    second_half_of_the_task();
    CHECK(tgpu_task_swap(before, NULL));
    CHECK(tgpu_device_get(&d));
    CHECK(tgpu_error_info_get(&error));
    EXPECT("after it, the thread has its own device again", d == 0);
    EXPECT("the task's error is not the thread's", error.status == TGPU_OK);
    return NULL;
}

static void *impatient_thread(void *data) {
    (void)data;
    puts("thread 3 tries to take it meanwhile:");
    EXPECT("a task runs on one thread at a time", tgpu_task_swap(task, NULL) == TGPU_ERROR_TASK_BUSY);
    return NULL;
}

static void run_thread(void *(*f)(void *)) {
    pthread_t t;
    int failed = pthread_create(&t, NULL, f, NULL);
    if (failed) fprintf(stderr, "pthread_create: %s\n", strerror(failed)), exit(1);
    pthread_join(t, NULL);
}

int main(void) {
    tgpu_task before;
    tgpu_device d;
    int32_t devices;
    CHECK(tgpu_device_count(&devices));
    last_device = devices - 1; /* with one device, all of them are the same one */
    CHECK(tgpu_task_create(NULL, &task));

    puts("thread 1 starts the task:");
    CHECK(tgpu_task_swap(task, &before));
    first_half_of_the_task();
    run_thread(impatient_thread);
    CHECK(tgpu_task_swap(before, NULL));
    CHECK(tgpu_device_get(&d));
    puts("thread 1 has given it away:");
    EXPECT("the thread's own device is what it was", d == 0);

    run_thread(other_thread);
    CHECK(tgpu_task_destroy(task));
    printf("%d wrong\n", wrong);
    return wrong != 0;
}
