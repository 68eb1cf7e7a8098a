/* Many threads at once: objects destroyed while others use them, tasks passed around, and no call lost or done twice. */
#include "calls.h"
#include "work.h"

enum { THREADS = 6 };

static atomic_int stop, running;

static void run_threads(void *(*function)(void *), void (*meanwhile)(void)) {
    pthread_t threads[THREADS];
    int numbers[THREADS];
    stop = running = 0;
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        threads[i] = start_thread(function, &numbers[i]);
    }
    WAIT_UNTIL(running == THREADS);
    meanwhile();
    stop = 1;
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
}

static unsigned next_random(unsigned *state) {
    *state = *state * 1103515245 + 12345;
    return *state / 65536;
}

/* What another thread may destroy at any moment is answered either way. */
#define CHECK_ALIVE_OR_GONE(call) check_alive_or_gone_((call), #call, __LINE__)

static tgpu_status check_alive_or_gone_(tgpu_status status, const char *call, int line) {
    if (status != TGPU_OK && status != TGPU_NOT_READY && status != TGPU_ERROR_TIMEOUT && status != TGPU_ERROR_INVALID_HANDLE) {
        fprintf(stderr, "threads.c:%d: in %s: %s answered %s: %s\n", line, running_, call, tgpu_status_name(status), last_text());
        fail_();
    }
    return status;
}

/* ---- streams, events and kernels destroyed in use */

enum { SHARED = 4 };
static _Atomic(tgpu_stream) streams[SHARED];
static _Atomic(tgpu_event) events[SHARED];
static _Atomic(tgpu_kernel) kernels[SHARED];
static atomic_long launched, ran;

static void count_run(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)args, (void)data;
    atomic_fetch_add(&ran, 1);
}

static void count_call(void *data, tgpu_status status) {
    CHECK_EQ(status, TGPU_OK);
    (void)data;
    atomic_fetch_add(&ran, 1);
}

static void *uses_what_is_shared(void *data) {
    unsigned random = (unsigned)*(int *)data + 1;
    tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    tgpu_kernel_info kernel_info = TGPU_KERNEL_INFO_INIT;
    double seconds;
    void *p = NULL;
    running++;
    while (!stop) {
        tgpu_stream s = streams[next_random(&random) % SHARED], t = streams[next_random(&random) % SHARED];
        tgpu_event e = events[next_random(&random) % SHARED], f = events[next_random(&random) % SHARED];
        tgpu_kernel k = kernels[next_random(&random) % SHARED];
        switch (next_random(&random) % 13) {
        case 0: CHECK_ALIVE_OR_GONE(tgpu_stream_query(s)); break;
        case 1: CHECK_ALIVE_OR_GONE(tgpu_stream_synchronize(s)); break;
        case 2: CHECK_ALIVE_OR_GONE(tgpu_stream_wait_stream(s, t)); break;
        case 3: CHECK_ALIVE_OR_GONE(tgpu_event_record(e, s)); break;
        case 4: CHECK_ALIVE_OR_GONE(tgpu_stream_wait_event(s, e)); break;
        case 5: CHECK_ALIVE_OR_GONE(tgpu_event_synchronize_timeout(e, 1000000)); break;
        case 6: CHECK_ALIVE_OR_GONE(tgpu_stream_info_get(s, &info)); break;
        case 7: CHECK_ALIVE_OR_GONE(tgpu_event_query(e)); break;
        case 8:
            if (CHECK_ALIVE_OR_GONE(tgpu_stream_add_callback(s, count_call, NULL)) == TGPU_OK) launched++;
            break;
        case 9: CHECK_ALIVE_OR_GONE(tgpu_kernel_info_get(k, 1, &kernel_info)); break;
        case 10: {
            tgpu_status status = tgpu_event_elapsed(e, f, &seconds); /* may be of two devices, or never recorded */
            CHECK(status <= TGPU_ERROR_INVALID_HANDLE);
            break;
        }
        case 11:
            if (CHECK_ALIVE_OR_GONE(tgpu_malloc_async(100, s, &p)) == TGPU_OK) CHECK_OK(tgpu_free_deferred(p));
            break;
        default:
            config.stream = s;
            if (CHECK_ALIVE_OR_GONE(tgpu_launch(k, &config, NULL)) == TGPU_OK) launched++;
        }
    }
    return NULL;
}

static void make_shared(int i) {
    tgpu_stream s = stream_on(i % 2);
    tgpu_event e = NULL;
    CHECK_OK(tgpu_event_create(NULL, &e));
    streams[i] = s;
    events[i] = e;
    kernels[i] = kernel_of(count_run, 0, NULL);
}

static void replace_shared(void) {
    unsigned random = 99;
    for (int round = 0; round < 1500; round++) {
        int i = (int)(next_random(&random) % SHARED);
        tgpu_stream s = streams[i];
        tgpu_event e = events[i];
        tgpu_kernel k = kernels[i];
        CHECK_OK(tgpu_stream_destroy(s)); /* destroyed first, replaced later: the others run into it */
        CHECK_OK(tgpu_event_destroy(e));
        CHECK_OK(tgpu_kernel_destroy(k));
        make_shared(i);
    }
}

static void F15_destroying_what_other_threads_use_is_safe_and_loses_no_work(void) {
    launched = ran = 0;
    for (int i = 0; i < SHARED; i++) make_shared(i);
    run_threads(uses_what_is_shared, replace_shared);
    for (tgpu_device d = 0; d < 2; d++) { /* waits for the work of destroyed streams too */
        CHECK_OK(tgpu_device_set(d));
        CHECK_OK(tgpu_device_synchronize());
    }
    CHECK_OK(tgpu_device_set(0));
    CHECK_EQ(ran, launched);
    CHECK(launched > 0);
    for (int i = 0; i < SHARED; i++) {
        CHECK_OK(tgpu_stream_destroy(streams[i]));
        CHECK_OK(tgpu_event_destroy(events[i]));
        CHECK_OK(tgpu_kernel_destroy(kernels[i]));
    }
}

static atomic_int destroyed;

static void *destroys_the_same(void *data) {
    (void)data;
    running++;
    while (!stop)
        for (int i = 0; i < SHARED; i++) {
            tgpu_stream s = streams[i];
            if (!s) continue;
            tgpu_status status = tgpu_stream_destroy(s);
            if (status == TGPU_OK) destroyed++;
            else CHECK_EQ(status, TGPU_ERROR_INVALID_HANDLE);
        }
    return NULL;
}

static void publish_streams(void) {
    for (int round = 0; round < 3000; round++) {
        tgpu_stream s = NULL;
        int before = destroyed;
        CHECK_OK(tgpu_stream_create(NULL, &s));
        streams[round % SHARED] = s;
        WAIT_UNTIL(destroyed > before || (sched_yield(), destroyed > before));
        CHECK_EQ(destroyed, before + 1);
    }
}

static void only_one_of_many_destroys_succeeds(void) {
    for (int i = 0; i < SHARED; i++) streams[i] = NULL;
    destroyed = 0;
    run_threads(destroys_the_same, publish_streams);
    CHECK_EQ(destroyed, 3000);
}

/* ---- what is destroyed goes as fast as it comes */

static void *makes_and_destroys(void *data) {
    for (int i = 0; i < 100000; i++) {
        tgpu_stream s = NULL;
        void *p = NULL, *q = NULL;
        CHECK_OK(tgpu_host_malloc(64, &p));
        CHECK_OK(tgpu_host_free(p));
        CHECK_OK(tgpu_malloc(64, &q));
        CHECK_OK(tgpu_free_deferred(q));
        CHECK_OK(tgpu_stream_create(NULL, &s));
        CHECK_OK(tgpu_stream_destroy(s));
    }
    return data;
}

static void F14_threads_that_make_and_destroy_in_a_loop_cost_no_memory(void) {
    pthread_t threads[THREADS];
    long before = resident_kib();
    if (!is_host(0)) return; /* what a stream of a vendor's weighs is not ours */
    for (int i = 0; i < THREADS; i++) threads[i] = start_thread(makes_and_destroys, NULL);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    if (resident_kib() > before + 65536) FAIL("resident memory went from %ld KiB to %ld KiB", before, resident_kib());
}

/* ---- tasks passed around */

enum { TASKS = 8 };
static _Atomic(tgpu_task) tasks[TASKS];
static struct {
    tgpu_device device;
    tgpu_stream stream;
    int32_t policy;
    tgpu_scope scope;
    int in_scope;
    atomic_int holders;
} remembered[TASKS];

static void *swaps_tasks(void *data) {
    unsigned random = (unsigned)*(int *)data + 7;
    running++;
    while (!stop) {
        int i = (int)(next_random(&random) % TASKS);
        tgpu_status status = tgpu_task_swap(tasks[i], NULL);
        if (status == TGPU_ERROR_TASK_BUSY) continue;
        CHECK_STATUS(status, TGPU_OK);
        CHECK_EQ(atomic_fetch_add(&remembered[i].holders, 1), 0); /* nobody else has it */
        CHECK_EQ(device_now(), remembered[i].device);
        if (remembered[i].stream) CHECK_SAME(stream_now(), remembered[i].stream);
        int32_t policy = -1;
        CHECK_OK(tgpu_wait_policy_get(&policy));
        CHECK_EQ(policy, remembered[i].policy);
        if (remembered[i].in_scope) {
            CHECK_OK(tgpu_scope_leave(remembered[i].scope));
            remembered[i].in_scope = 0;
        } else if (next_random(&random) % 3 == 0) {
            CHECK_OK(tgpu_scope_enter_device((tgpu_device)(next_random(&random) % 4), &remembered[i].scope));
            remembered[i].in_scope = 1;
        } else {
            CHECK_OK(tgpu_device_set((tgpu_device)(next_random(&random) % 4)));
        }
        CHECK_OK(tgpu_wait_policy_set((int32_t)(next_random(&random) % 3)));
        CHECK_OK(tgpu_wait_policy_get(&remembered[i].policy));
        remembered[i].device = device_now();
        remembered[i].stream = stream_now();
        atomic_fetch_sub(&remembered[i].holders, 1);
        CHECK_OK(tgpu_task_swap(NULL, NULL));
        CHECK_EQ(device_now(), 0); /* the thread's own task never moved */
    }
    return NULL;
}

static void let_them(void) {
    sleep_ms(700);
}

static void F04_tasks_swapped_between_threads_keep_their_state(void) {
    for (int i = 0; i < TASKS; i++) {
        tgpu_task task = NULL;
        CHECK_OK(tgpu_task_create(NULL, &task));
        tasks[i] = task;
    }
    run_threads(swaps_tasks, let_them);
    for (int i = 0; i < TASKS; i++) CHECK_OK(tgpu_task_destroy(tasks[i]));
}

static void *swaps_dying_tasks(void *data) {
    unsigned random = (unsigned)*(int *)data + 3;
    running++;
    while (!stop) {
        tgpu_status status = tgpu_task_swap(tasks[next_random(&random) % TASKS], NULL);
        if (status == TGPU_ERROR_TASK_BUSY || status == TGPU_ERROR_INVALID_HANDLE) continue;
        CHECK_STATUS(status, TGPU_OK);
        CHECK_OK(tgpu_device_set((tgpu_device)(next_random(&random) % 4)));
        stream_now();
        CHECK_OK(tgpu_synchronize());
        CHECK_OK(tgpu_task_swap(NULL, NULL));
    }
    return NULL;
}

static void replace_tasks(void) {
    for (int round = 0; round < 20000; round++) {
        tgpu_task old = tasks[round % TASKS], task = NULL;
        CHECK_OK(tgpu_task_destroy(old)); /* current somewhere, maybe */
        CHECK_OK(tgpu_task_create(NULL, &task));
        tasks[round % TASKS] = task;
    }
}

static void tasks_may_be_destroyed_while_threads_swap_them(void) {
    for (int i = 0; i < TASKS; i++) {
        tgpu_task task = NULL;
        CHECK_OK(tgpu_task_create(NULL, &task));
        tasks[i] = task;
    }
    run_threads(swaps_dying_tasks, replace_tasks);
    for (int i = 0; i < TASKS; i++) CHECK_OK(tgpu_task_destroy(tasks[i]));
}

/* ---- leases */

enum { MOST_IDS = 4096 };
static atomic_int in_use[MOST_IDS];

static void *lives_shortly(void *data) {
    CHECK_OK(tgpu_device_set(*(int *)data % 4));
    uint64_t id = stream_id(NULL);
    CHECK(id < MOST_IDS);
    CHECK_EQ(atomic_fetch_add(&in_use[id], 1), 0); /* F13: no other live task has it */
    queue(NULL, count_run, NULL);
    CHECK_OK(tgpu_synchronize());
    CHECK_EQ(stream_id(NULL), id);
    atomic_fetch_sub(&in_use[id], 1);
    return NULL;
}

static void *starts_short_lives(void *data) {
    for (int i = 0; i < 500; i++) on_a_thread(lives_shortly, data);
    return NULL;
}

static void F13_leases_are_exclusive_among_many_threads(void) {
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) numbers[i] = i, threads[i] = start_thread(starts_short_lives, &numbers[i]);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
}

/* ---- memory */

static void *passes_memory_on(void *data) {
    static _Atomic(void *) box[4];
    unsigned random = (unsigned)*(int *)data + 5;
    tgpu_pointer_info info = TGPU_POINTER_INFO_INIT;
    CHECK_OK(tgpu_device_set(*(int *)data % 4));
    for (int i = 0; i < 3000; i++) {
        void *p = NULL;
        CHECK_OK(next_random(&random) % 2 ? tgpu_malloc(5000, &p) : tgpu_malloc_async(5000, NULL, &p));
        CHECK_OK(tgpu_memset(p, 1, 5000, NULL));
        CHECK_OK(tgpu_synchronize());
        p = atomic_exchange(&box[next_random(&random) % 4], p); /* what another thread on another device allocated */
        if (!p) continue;
        CHECK_OK(tgpu_pointer_info_get(p, &info));
        CHECK_SAME(info.base, p);
        CHECK_EQ(info.size, 5000);
        CHECK_OK(tgpu_memset(p, 2, 5000, NULL));
        switch (next_random(&random) % 3) {
        case 0: CHECK_OK(tgpu_free_async(p, NULL)); break;
        case 1: CHECK_OK(tgpu_synchronize()), CHECK_OK(tgpu_free(p)); break;
        default: CHECK_OK(tgpu_synchronize()), CHECK_OK(tgpu_free_deferred(p));
        }
    }
    for (int i = 0; i < 4; i++) CHECK_OK(tgpu_free(atomic_exchange(&box[i], NULL)));
    return NULL;
}

static void F33_memory_is_passed_between_threads_and_devices(void) {
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) numbers[i] = i, threads[i] = start_thread(passes_memory_on, &numbers[i]);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
}

static void *frees_the_same(void *data) {
    void *const *p = data;
    int done = 0;
    for (int i = 0; i < 200; i++) done += tgpu_free_deferred(p[i]) == TGPU_OK;
    return (void *)(intptr_t)done;
}

static void only_one_of_many_frees_succeeds(void) {
    pthread_t threads[THREADS];
    void *p[200], *done = NULL;
    intptr_t sum = 0;
    for (int i = 0; i < 200; i++) CHECK_OK(tgpu_malloc(256, &p[i]));
    for (int i = 0; i < THREADS; i++) threads[i] = start_thread(frees_the_same, p);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &done);
        sum += (intptr_t)done;
    }
    CHECK_EQ(sum, 200);
}

/* ---- one stream, many threads */

static atomic_int next_ticket;

static void take_ticket(const tgpu_host_block *block, void *const *args, void *data) {
    (void)block, (void)data;
    **(int *const *)args[0] = atomic_fetch_add(&next_ticket, 1);
}

static void *queues_on_one_stream(void *data) {
    enum { MINE = 2000 };
    int *tickets = calloc(MINE, sizeof *tickets);
    for (int i = 0; i < MINE; i++) queue(data, take_ticket, &tickets[i]);
    CHECK_OK(tgpu_stream_synchronize(data));
    for (int i = 1; i < MINE; i++) CHECK(tickets[i] > tickets[i - 1]); /* each thread's own order is kept */
    free(tickets);
    return NULL;
}

static void many_threads_may_queue_on_one_stream(void) {
    pthread_t threads[THREADS];
    tgpu_stream s = stream_on(1);
    for (int i = 0; i < THREADS; i++) threads[i] = start_thread(queues_on_one_stream, s);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    CHECK_EQ(next_ticket, THREADS * 2000);
    CHECK_OK(tgpu_stream_destroy(s));
}

/* ---- the first call, made by many threads at once */

static pthread_barrier_t barrier;

static void *makes_the_first_call(void *data) {
    int32_t count = 0;
    (void)data;
    pthread_barrier_wait(&barrier);
    CHECK_OK(tgpu_device_count(&count));
    CHECK_EQ(count, 4);
    lives_shortly(data);
    return NULL;
}

static void the_first_call_may_come_from_many_threads(void) {
    pthread_t threads[16];
    int numbers[16];
    pthread_barrier_init(&barrier, NULL, 16);
    for (int i = 0; i < 16; i++) numbers[i] = i, threads[i] = start_thread(makes_the_first_call, &numbers[i]);
    for (int i = 0; i < 16; i++) join_thread(threads[i]);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    for (int i = 0; i < 5; i++) RUN_IN_CHILD(the_first_call_may_come_from_many_threads, AS_IT_IS);
    RUN(F15_destroying_what_other_threads_use_is_safe_and_loses_no_work);
    RUN(only_one_of_many_destroys_succeeds);
    RUN_IN_CHILD(F14_threads_that_make_and_destroy_in_a_loop_cost_no_memory, AS_IT_IS);
    RUN(F04_tasks_swapped_between_threads_keep_their_state);
    RUN(tasks_may_be_destroyed_while_threads_swap_them);
    RUN(F33_memory_is_passed_between_threads_and_devices);
    RUN(only_one_of_many_frees_succeeds);
    RUN(many_threads_may_queue_on_one_stream);
    RUN_IN_CHILD(F13_leases_are_exclusive_among_many_threads, AS_IT_IS);
    return end();
}
