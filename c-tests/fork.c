/* Fork: what a child is told, and that a process that only counted may still fork. */
#include "calls.h"
#include "work.h"

/* Runs a function in a child of fork and checks that it comes to its end. */
static void in_forked_child(void (*function)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) FAIL("fork: %s", strerror(errno));
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60); /* is not inherited */
        function();
        exit(0); /* with everything that runs at exit */
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) FAIL("waitpid: %s", strerror(errno));
    if (status != 0) FAIL("the child ended with wait status %#x", status);
}

static struct objects live;

static void use_everything(void) {
    struct notes notes = {0};
    int32_t count = 0;
    CHECK_OK(tgpu_device_count(&count));
    CHECK_EQ(count, 4);
    for (tgpu_device d = 0; d < count; d++) {
        CHECK_OK(tgpu_device_set(d));
        note(NULL, &notes, d);
        CHECK_OK(tgpu_synchronize());
        CHECK_EQ(notes.devices[d], d);
    }
    struct objects o = make_objects();
    check_cleanup_is_ok(&o);
}

static void every_call_says_forked(void) {
    check_every_call_answers(TGPU_ERROR_FORKED, "fork", &live);
    check_what_needs_no_runtime();
}

static void giving_back_is_fine(void) {
    int32_t count;
    CHECK_REFUSED(tgpu_device_count(&count), TGPU_ERROR_FORKED, "fork");
    check_cleanup_is_ok(&live);
    check_cleanup_is_ok(&live); /* nothing was done, so twice is fine too */
    CHECK_OK(tgpu_free(live.freed));
    CHECK_OK(tgpu_free_async(live.freed, live.stream));
    check_giving_back_nothing_is_ok();
    CHECK_EQ(last_status(), TGPU_ERROR_FORKED);
}

static void say_forked_and_fork_again(void) {
    every_call_says_forked();
    in_forked_child(every_call_says_forked);
    in_forked_child(giving_back_is_fine);
}

/* ---- processes that have not used a device: each starts afresh */

static void counts_first(void) {
    int32_t count = 0;
    CHECK_OK(tgpu_device_count(&count));
}

static void F10_a_process_that_only_counted_may_fork(void) {
    counts_first();
    in_forked_child(use_everything);
    in_forked_child(use_everything);
    use_everything(); /* and so may the parent go on */
    live = make_objects();
    in_forked_child(every_call_says_forked); /* until it has used a device itself */
}

static void a_process_that_only_asked_may_fork(void) {
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    tgpu_backend_info backend = TGPU_BACKEND_INFO_INIT;
    int32_t yes, policy;
    tgpu_device d;
    CHECK_OK(tgpu_device_info_get(0, &info));
    CHECK_OK(tgpu_backend_info_get(0, &backend));
    CHECK_OK(tgpu_device_can_access_peer(0, 1, &yes));
    CHECK_OK(tgpu_device_get(&d));
    CHECK_OK(tgpu_device_default_set(1));
    CHECK_OK(tgpu_wait_policy_get(&policy));
    CHECK_STATUS(tgpu_device_set(99), TGPU_ERROR_INVALID_DEVICE);
    in_forked_child(use_everything);
}

static void a_process_that_has_called_nothing_may_fork(void) {
    in_forked_child(use_everything);
    use_everything();
}

static void two_generations_after_a_count(void) {
    in_forked_child(use_everything);
}

static void F10_a_grandchild_after_a_count_may_work_too(void) {
    counts_first();
    in_forked_child(two_generations_after_a_count);
}

static void nonsense_is_still_nonsense(void) {
    int32_t count;
    CHECK_REFUSED(tgpu_device_count(&count), TGPU_ERROR_ENVIRONMENT, "TASKGPU_WAIT");
}

static void F10_a_child_is_told_of_nonsense_in_the_environment(void) {
    nonsense_is_still_nonsense();
    in_forked_child(nonsense_is_still_nonsense);
}

/* ---- processes that have */

static void F10_after_a_device_was_used_every_call_says_forked(void) {
    use_everything();
    live = make_objects();
    in_forked_child(every_call_says_forked);
    in_forked_child(giving_back_is_fine);
    in_forked_child(say_forked_and_fork_again);
    use_everything(); /* the parent does not notice */
    check_cleanup_is_ok(&live);
}

static void exits_at_once(void) {
}

static void a_child_that_calls_nothing_ends_quietly(void) {
    use_everything();
    for (int i = 0; i < 20; i++) in_forked_child(exits_at_once);
}

static void a_new_program(void) {
    use_everything();
}

static void execs(void) {
    char *const argv[] = {program_, (char *)"a_new_program", NULL};
    execv(program_, argv);
    _exit(99);
}

static void exec_in_the_child_starts_afresh(void) {
    use_everything();
    in_forked_child(execs);
}

static void with_a_task_swapped_in_and_a_scope_open(void) {
    tgpu_task task = NULL;
    tgpu_scope scope;
    use_everything();
    live = make_objects();
    CHECK_OK(tgpu_task_create(NULL, &task));
    CHECK_OK(tgpu_task_swap(task, NULL));
    CHECK_OK(tgpu_scope_enter_device(2, &scope));
    live.scope = scope;
    in_forked_child(every_call_says_forked);
    in_forked_child(giving_back_is_fine);
    CHECK_EQ(device_now(), 2);
    CHECK_OK(tgpu_scope_leave(scope));
    CHECK_OK(tgpu_task_swap(NULL, NULL));
    CHECK_OK(tgpu_task_destroy(task));
}

static void forks_itself(void *data, tgpu_status status) {
    (void)status;
    in_forked_child(every_call_says_forked);
    *(atomic_int *)data = 1;
}

static void a_callback_may_fork(void) {
    atomic_int done = 0;
    use_everything();
    live = make_objects();
    CHECK_OK(tgpu_stream_add_callback(NULL, forks_itself, (void *)&done));
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(done, 1);
}

/* ---- with other threads in the middle of everything: their locks stay locked in the child */

static atomic_int stop;

static void *keeps_busy(void *data) {
    unsigned i = *(unsigned *)data;
    while (!stop) {
        tgpu_stream s = NULL;
        tgpu_event e = NULL;
        tgpu_task task = NULL;
        void *p = NULL, *q = NULL;
        tgpu_status ignored;
        CHECK_OK(tgpu_device_set((tgpu_device)(i++ % 4)));
        CHECK_OK(tgpu_stream_create(NULL, &s));
        CHECK_OK(tgpu_event_create(NULL, &e));
        CHECK_OK(tgpu_task_create(NULL, &task));
        CHECK_OK(tgpu_malloc(1000, &p));
        CHECK_OK(tgpu_malloc_async(1000, s, &q));
        CHECK_OK(tgpu_memset(p, 1, 1000, s));
        CHECK_OK(tgpu_event_record(e, s));
        ignored = tgpu_device_set(99);
        (void)ignored;
        CHECK_OK(tgpu_stream_synchronize(s));
        CHECK_OK(tgpu_free_async(q, s));
        CHECK_OK(tgpu_free_deferred(p));
        CHECK_OK(tgpu_task_destroy(task));
        CHECK_OK(tgpu_event_destroy(e));
        CHECK_OK(tgpu_stream_destroy(s));
    }
    return NULL;
}

static void F10_a_child_of_a_busy_process_is_told_and_does_not_hang(void) {
    pthread_t threads[4];
    unsigned seeds[4] = {0, 1, 2, 3};
    use_everything();
    live = make_objects();
    for (int i = 0; i < 4; i++) threads[i] = start_thread(keeps_busy, &seeds[i]);
    for (int i = 0; i < 100; i++) in_forked_child(i % 2 ? every_call_says_forked : giving_back_is_fine);
    stop = 1;
    for (int i = 0; i < 4; i++) join_thread(threads[i]);
    check_cleanup_is_ok(&live);
}

static void *asks_again_and_again(void *data) {
    (void)data;
    while (!stop) {
        int32_t count;
        tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
        tgpu_kernel k = NULL;
        CHECK_OK(tgpu_device_count(&count));
        CHECK_OK(tgpu_device_info_get(1, &info));
        CHECK_OK(tgpu_kernel_from_host_fn(never_run, NULL, 0, NULL, &k));
        CHECK_OK(tgpu_kernel_destroy(k));
    }
    return NULL;
}

static void *looks_pointers_up(void *data) {
    tgpu_pointer_info info = TGPU_POINTER_INFO_INIT;
    while (!stop) CHECK_STATUS(tgpu_pointer_info_get(data, &info), TGPU_ERROR_NOT_FOUND);
    return NULL;
}

/* As a thread for finalizers does: it never had a task. */
enum { TO_DESTROY = 3000 };
static tgpu_event events_left[TO_DESTROY];
static tgpu_task tasks_left[TO_DESTROY];
static atomic_int handed;

static void *only_destroys(void *data) {
    for (int i = 0; !stop;) {
        if (i == handed) continue;
        CHECK_EQ(tgpu_event_destroy(events_left[i]), TGPU_OK);
        CHECK_EQ(tgpu_task_destroy(tasks_left[i]), TGPU_OK);
        CHECK(tgpu_free_deferred(data) != TGPU_OK);
        i++;
    }
    return NULL;
}

static void works_or_says_forked(void) {
    int32_t count = 0;
    tgpu_status status = tgpu_device_count(&count);
    if (status == TGPU_OK) use_everything();
    else CHECK_STATUS(status, TGPU_ERROR_FORKED);
}

static void F10_a_child_forked_while_others_count_does_not_hang(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) threads[i] = start_thread(asks_again_and_again, NULL);
    for (int i = 0; i < 100; i++) in_forked_child(works_or_says_forked); /* the first ones during the search for devices */
    stop = 1;
    for (int i = 0; i < 4; i++) join_thread(threads[i]);
}

static void F10_a_child_forked_while_others_look_pointers_up_does_not_hang(void) {
    int32_t count = 0, unknown;
    pthread_t threads[2];
    CHECK_OK(tgpu_device_count(&count));
    for (int i = 0; i < 2; i++) threads[i] = start_thread(looks_pointers_up, &unknown);
    for (int i = 0; i < 100; i++) in_forked_child(works_or_says_forked);
    stop = 1;
    for (int i = 0; i < 2; i++) join_thread(threads[i]);
}

static void F10_a_child_forked_while_others_only_destroy_does_not_hang(void) {
    int unknown;
    pthread_t thread = start_thread(only_destroys, &unknown);
    for (int i = 0; i < TO_DESTROY; i++) {
        CHECK_OK(tgpu_event_create(NULL, &events_left[i]));
        CHECK_OK(tgpu_task_create(NULL, &tasks_left[i]));
        handed = i + 1;
        if (i % 30 == 0) in_forked_child(works_or_says_forked);
    }
    stop = 1;
    join_thread(thread);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    AS_CHILD(a_new_program);
    RUN_IN_CHILD(F10_a_process_that_only_counted_may_fork, AS_IT_IS);
    RUN_IN_CHILD(a_process_that_only_asked_may_fork, AS_IT_IS);
    RUN_IN_CHILD(a_process_that_has_called_nothing_may_fork, AS_IT_IS);
    RUN_IN_CHILD(F10_a_grandchild_after_a_count_may_work_too, AS_IT_IS);
    RUN_IN_CHILD(F10_a_child_is_told_of_nonsense_in_the_environment, "TASKGPU_WAIT=nonsense");
    RUN_IN_CHILD(F10_after_a_device_was_used_every_call_says_forked, AS_IT_IS);
    RUN_IN_CHILD(a_child_that_calls_nothing_ends_quietly, AS_IT_IS);
    RUN_IN_CHILD(exec_in_the_child_starts_afresh, AS_IT_IS);
    RUN_IN_CHILD(with_a_task_swapped_in_and_a_scope_open, AS_IT_IS);
    RUN_IN_CHILD(a_callback_may_fork, AS_IT_IS);
    RUN_IN_CHILD(F10_a_child_of_a_busy_process_is_told_and_does_not_hang, AS_IT_IS);
    RUN_IN_CHILD(F10_a_child_forked_while_others_count_does_not_hang, AS_IT_IS);
    RUN_IN_CHILD(F10_a_child_forked_while_others_look_pointers_up_does_not_hang, AS_IT_IS);
    RUN_IN_CHILD(F10_a_child_forked_while_others_only_destroy_does_not_hang, AS_IT_IS);
    return end();
}
