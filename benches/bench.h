/* What the benches share: clocks, order statistics, pinning, a futex, and the one way to print a row. */
#ifndef BENCH_H
#define BENCH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "taskgpu.h"

/* Ends the row with the call's text and the library's own words: a bench that went wrong has no figure. */
#define OK(call)                                                         \
    do {                                                                 \
        tgpu_status ok_status = (call);                                  \
        if (ok_status != TGPU_OK) bench_die_status(#call, ok_status);    \
    } while (0)
/* The same for the system's calls, which answer 0 for success. */
#define SYS(call)                                                        \
    do {                                                                 \
        int sys_error = (call);                                          \
        if (sys_error != 0) bench_die(#call, sys_error);                 \
    } while (0)

_Noreturn void bench_die_status(const char *call, tgpu_status status);
_Noreturn void bench_die(const char *what, int error);

extern int bench_quick; /* --quick: fewer repetitions, for trying things out */
static inline int bench_reps(int full, int quick) { return bench_quick ? quick : full; }

/* ---- clocks, in nanoseconds */
double bench_now(void);         /* CLOCK_MONOTONIC: one clock for all processes and threads */
double bench_thread_cpu(void);  /* of the calling thread */
double bench_process_cpu(void); /* of all threads of the process */
void bench_sleep(double ns);

/* ---- order statistics */
typedef struct samples {
    double *value;
    int count;
    int capacity;
} samples;
samples samples_new(int capacity);
void samples_add(samples *s, double value);
void samples_free(samples *s);
double samples_quantile(samples *s, double q); /* sorts */
double samples_median(samples *s);

/* ---- rows */
typedef struct row {
    const char *what;
    const char *ours, *reference, *ratio, *reach; /* "" where there is none */
    double value, limit;                          /* what the verdict is about */
    enum { ROW_AT_MOST, ROW_AT_LEAST, ROW_FOR_COMPARISON } kind;
    const char *spread; /* min / median / p90 of ours, then of the reference */
    const char *note;
} row;
void row_print(const row *r);
/* The common kind: medians of two sets of times, and a limit on their ratio (0: only for comparison). */
void row_ratio(const char *what, samples *ours, samples *reference, double at_most, const char *note);
/* A string that lives until the process ends. */
const char *text(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *text_time(double ns);
const char *text_spread(samples *ours, samples *reference);

/* ---- threads and cores */
int bench_two_cores(int *first, int *second); /* two cores this process may use, not siblings; 0 if there are none */
void bench_pin_self(int cpu);
int bench_pin_others(int cpu); /* every other thread of the process; answers how many */
/* Waits until every other thread of the process sleeps; 0 if one did not within two seconds. */
int bench_others_asleep(void);

void futex_wait(_Atomic uint32_t *word, uint32_t while_value);
void futex_wake(_Atomic uint32_t *word);

/* ---- the loops that are both timed and counted in instructions (loops.c) */
int floor_get(void); /* libfloor.so: the floor */
void loop_floor(long n);
void loop_device_get(long n);
void loop_stream_get(long n);
void loop_scope(long n);
void loop_task_swap(long n);
void loop_launch(long n);
void loop_prepare(void); /* the task and the kernel they use; once, before any of them */
void loop_drain(void);   /* what loop_launch queued */

/* A kernel that does nothing, and a launch of one block of it on the current stream. */
tgpu_kernel bench_empty_kernel(void);

/* ---- the rows */
void row_calls(void);
void row_lease(void);
void row_burst(void);
void row_idle_enqueue(void);
void row_round_trip_pinned(void);
void row_round_trip(void);
void row_round_trip_idle(void);
void row_saxpy(void);
void row_source_saxpy(void);
void row_source_matmul(void);
void row_source_barriers(void);
void row_source_again(void);
void row_wait(void);
void row_threads(void);
void row_startup(void);

#endif
