/* What a call costs that only touches the task's own state, and what a new task costs. */
#include "bench.h"

#include <pthread.h>

#define CALLS 20000

static double time_loop(void (*loop)(long)) {
    double start = bench_now();
    loop(CALLS);
    return (bench_now() - start) / CALLS;
}

void row_calls(void) {
    static const struct {
        const char *what;
        void (*loop)(long);
        double at_most;
    } cases[] = {
        {"tgpu_device_get", loop_device_get, 2},
        {"tgpu_stream_get", loop_stream_get, 2},
        {"device scope enter + leave, same device", loop_scope, 8},
        {"tgpu_task_swap there and back", loop_task_swap, 8},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    int reps = bench_reps(501, 101);
    loop_prepare();
    samples reference = samples_new(reps), ours[CASES];
    for (int c = 0; c < CASES; c++) ours[c] = samples_new(reps);
    /* The worker went to sleep again after loop_prepare's launch: from here on one thread runs. */
    bench_others_asleep();
    for (int r = 0; r < reps + 2; r++) {
        double floor = time_loop(loop_floor), times[CASES];
        for (int c = 0; c < CASES; c++) times[c] = time_loop(cases[c].loop);
        if (r < 2) continue; /* the first two warm the caches and the clock */
        samples_add(&reference, floor);
        for (int c = 0; c < CASES; c++) samples_add(&ours[c], times[c]);
    }
    for (int c = 0; c < CASES; c++) row_ratio(cases[c].what, &ours[c], &reference, cases[c].at_most, NULL);
}

/* ---- the first use of a stream in a new task */

enum { TASKS = 32 };
static uint64_t warm_ids[4096];
static int warm_count, cold_count;

/* The pool is warm if no lease makes a stream: count the ids that the warm-up had not seen. */
static void note_id(tgpu_stream s, int warming) {
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    OK(tgpu_stream_info_get(s, &info));
    for (int i = 0; i < warm_count; i++) {
        if (warm_ids[i] == info.id) return;
    }
    cold_count += !warming;
    if (warm_count < (int)(sizeof warm_ids / sizeof warm_ids[0])) warm_ids[warm_count++] = info.id;
}

static void lease_in_tasks(samples *times) {
    tgpu_task task[TASKS];
    tgpu_stream s[TASKS];
    for (int i = 0; i < TASKS; i++) OK(tgpu_task_create(NULL, &task[i]));
    for (int i = 0; i < TASKS; i++) {
        OK(tgpu_task_swap(task[i], NULL));
        double start = bench_now();
        tgpu_status status = tgpu_stream_get(&s[i]);
        double took = bench_now() - start;
        OK(status);
        OK(tgpu_task_swap(NULL, NULL));
        if (times != NULL) samples_add(times, took);
    }
    for (int i = 0; i < TASKS; i++) note_id(s[i], times == NULL);
    for (int i = 0; i < TASKS; i++) OK(tgpu_task_destroy(task[i]));
}

static void *nothing(void *arg) { return arg; }

static void *lease_in_thread(void *took) {
    tgpu_stream s;
    double start = bench_now();
    tgpu_status status = tgpu_stream_get(&s);
    *(double *)took = bench_now() - start;
    OK(status);
    note_id(s, 0);
    return NULL;
}

void row_lease(void) {
    int rounds = bench_reps(60, 10);
    samples task = samples_new(rounds * TASKS), thread = samples_new(rounds * TASKS),
            reference = samples_new(rounds * TASKS);
    tgpu_stream s;
    OK(tgpu_stream_get(&s));
    note_id(s, 1);
    lease_in_tasks(NULL);
    for (int r = 0; r < rounds; r++) {
        bench_sleep(3e6); /* what the library does for the ended tasks in the background is over */
        lease_in_tasks(&task);
        bench_sleep(3e6);
        for (int i = 0; i < TASKS; i++) {
            pthread_t t;
            double start = bench_now();
            SYS(pthread_create(&t, NULL, nothing, NULL));
            SYS(pthread_join(t, NULL));
            samples_add(&reference, bench_now() - start);
        }
        for (int i = 0; i < TASKS; i++) {
            pthread_t t;
            double took;
            SYS(pthread_create(&t, NULL, lease_in_thread, &took));
            SYS(pthread_join(t, NULL));
            samples_add(&thread, took);
        }
    }
    const char *note = cold_count == 0 ? NULL : text("%d of %d leases made a new stream", cold_count, rounds * TASKS * 2);
    row_ratio("stream lease in a new tgpu_task (pthread create + join)", &task, &reference, 0.1, note);
    row_ratio("stream lease in a new thread (the same)", &thread, &reference, 0.1, note);
}
