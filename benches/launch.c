/* Enqueueing an empty kernel, and the round trip to its end. */
#include "bench.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

enum { BURST = 1000, TRIPS = 1000 };
/* How long a busy caller works before it enqueues. */
#define BUSY_NS 1e6
#define IDLE_NS 10e6

static void launch_empty(void) {
    static const tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    OK(tgpu_launch(bench_empty_kernel(), &config, NULL));
}
static void trip(void) {
    launch_empty();
    OK(tgpu_synchronize());
}

void row_burst(void) {
    int reps = bench_reps(301, 61);
    samples ours = samples_new(reps);
    loop_prepare();
    for (int r = 0; r < reps + 2; r++) {
        for (int i = 0; i < 50; i++) trip(); /* the worker is awake */
        double start = bench_now();
        loop_launch(BURST);
        double took = (bench_now() - start) / BURST;
        loop_drain();
        if (r >= 2) samples_add(&ours, took);
    }
    double median = samples_median(&ours);
    row r = {
        .what = "enqueue, bursts of 1,000, worker awake",
        .ours = text_time(median),
        .reach = "at most 300 ns",
        .value = median,
        .limit = 300,
        .kind = ROW_AT_MOST,
        .spread = text_spread(&ours, NULL),
    };
    row_print(&r);
}

/* ---- partners for the references: a thread that answers, by futex or by spinning */

enum { PARKED, FUTEX_ONE_WAY, FUTEX_BACK, SPIN, STOP };
static struct {
    pthread_t thread;
    int cpu; /* -1: wherever the scheduler likes */
    _Alignas(128) _Atomic uint32_t command;
    _Alignas(128) _Atomic uint32_t there;
    _Alignas(128) _Atomic uint32_t back;
} partner;

static void *partner_main(void *arg) {
    if (partner.cpu >= 0) bench_pin_self(partner.cpu);
    for (;;) {
        futex_wait(&partner.command, PARKED);
        uint32_t command = atomic_exchange_explicit(&partner.command, PARKED, memory_order_acq_rel);
        switch (command) {
        case FUTEX_BACK:
            atomic_store_explicit(&partner.back, 1, memory_order_release);
            futex_wake(&partner.back);
            break;
        case SPIN:
            atomic_store_explicit(&partner.back, UINT32_MAX, memory_order_release); /* ready */
            for (uint32_t i = 1; i <= TRIPS; i++) {
                while (atomic_load_explicit(&partner.there, memory_order_acquire) != i) {
                }
                atomic_store_explicit(&partner.back, i, memory_order_release);
            }
            break;
        case STOP: return arg;
        default: break;
        }
    }
}
static void partner_start(int cpu) {
    partner.cpu = cpu;
    SYS(pthread_create(&partner.thread, NULL, partner_main, NULL));
}
static void partner_stop(void) {
    atomic_store_explicit(&partner.command, STOP, memory_order_release);
    futex_wake(&partner.command);
    SYS(pthread_join(partner.thread, NULL));
}
/* What waking a sleeping thread costs the one who wakes it. */
static double reference_wake(void) {
    double start = bench_now();
    atomic_store_explicit(&partner.command, FUTEX_ONE_WAY, memory_order_release);
    futex_wake(&partner.command);
    return bench_now() - start;
}
/* To a sleeping thread and back to this one, asleep meanwhile. */
static double reference_wake_back(void) {
    atomic_store_explicit(&partner.back, 0, memory_order_relaxed);
    double start = bench_now();
    atomic_store_explicit(&partner.command, FUTEX_BACK, memory_order_release);
    futex_wake(&partner.command);
    futex_wait(&partner.back, 0);
    return bench_now() - start;
}
/* One word there, one word back, nobody sleeps or pauses: what the cores' caches alone allow. */
static double reference_spin(void) {
    atomic_store_explicit(&partner.there, 0, memory_order_relaxed);
    atomic_store_explicit(&partner.back, 0, memory_order_relaxed);
    atomic_store_explicit(&partner.command, SPIN, memory_order_release);
    futex_wake(&partner.command);
    while (atomic_load_explicit(&partner.back, memory_order_acquire) != UINT32_MAX) {
    }
    double start = bench_now();
    for (uint32_t i = 1; i <= TRIPS; i++) {
        atomic_store_explicit(&partner.there, i, memory_order_release);
        while (atomic_load_explicit(&partner.back, memory_order_acquire) != i) {
        }
    }
    return (bench_now() - start) / TRIPS;
}

/* Sleeps as long as the workers need to fall asleep; a busy caller then works on its own for a while, so that only the
 * worker is asleep and cold, not the caller too. */
static void let_workers_sleep(int caller_busy) {
    bench_sleep(IDLE_NS);
    bench_others_asleep();
    if (!caller_busy) return;
    double start = bench_now();
    while (bench_now() - start < BUSY_NS) {
    }
}

static void idle_enqueue(const char *what, const char *reach, int caller_busy) {
    int reps = bench_reps(201, 41);
    samples ours = samples_new(reps), reference = samples_new(reps);
    loop_prepare();
    partner_start(-1);
    for (int r = 0; r < reps + 2; r++) {
        let_workers_sleep(caller_busy);
        double start = bench_now();
        launch_empty();
        double took = bench_now() - start;
        loop_drain();
        let_workers_sleep(caller_busy);
        double wake = reference_wake();
        if (r < 2) continue;
        samples_add(&ours, took);
        samples_add(&reference, wake);
    }
    partner_stop();
    double a = samples_median(&ours), b = samples_median(&reference);
    row r = {
        .what = what,
        .ours = text_time(a),
        .reference = text_time(b),
        .ratio = text("%.2f", a / b),
        .reach = reach,
        .value = a,
        .limit = b + 1000,
        .kind = reach != NULL ? ROW_AT_MOST : ROW_FOR_COMPARISON,
        .spread = text_spread(&ours, &reference),
    };
    row_print(&r);
}

void row_idle_enqueue(void) {
    idle_enqueue("enqueue, worker asleep (one futex wake)", "at most the wake + 1 us", 1);
    idle_enqueue("enqueue, the caller asleep for 10 ms too (the same)", NULL, 0);
}

/* Samples of TRIPS round trips and of as many hand-offs. Each side starts when the other's threads sleep. */
static void back_to_back(int cpu_self, int cpu_partner, int pin_library, samples *ours, samples *reference, int reps) {
    cpu_set_t all;
    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof all, &all) != 0) bench_die("sched_getaffinity", errno);
    partner_start(cpu_partner);
    for (int r = 0; r < reps + 2; r++) {
        bench_others_asleep();
        if (pin_library) {
            bench_pin_self(cpu_self);
            bench_pin_others(cpu_partner);
        }
        for (int i = 0; i < 100; i++) trip();
        double start = bench_now();
        for (int i = 0; i < TRIPS; i++) trip();
        double took = (bench_now() - start) / TRIPS;
        bench_others_asleep();
        bench_pin_self(cpu_self);
        double hand_off = reference_spin();
        if (!pin_library && sched_setaffinity(0, sizeof all, &all) != 0) bench_die("sched_setaffinity", errno);
        if (r < 2) continue;
        samples_add(ours, took);
        samples_add(reference, hand_off);
    }
    partner_stop();
}

static void row_back_to_back(const char *what, int pinned, double at_most) {
    int a, b, reps = bench_reps(101, 21);
    if (!bench_two_cores(&a, &b)) {
        row r = {.what = what, .ours = "needs two cores", .kind = ROW_FOR_COMPARISON};
        row_print(&r);
        return;
    }
    samples ours = samples_new(reps), reference = samples_new(reps);
    loop_prepare();
    back_to_back(a, b, pinned, &ours, &reference, reps);
    row_ratio(what, &ours, &reference, at_most, NULL);
}

void row_round_trip_pinned(void) {
    /* Two threads on two cores: with more workers than one they would share the second core. */
    SYS(setenv("TASKGPU_HOST_THREADS", "1", 1));
    row_back_to_back("round trip, back to back, pinned (bare spin hand-off)", 1, 4);
}
void row_round_trip(void) {
    row_back_to_back("round trip, back to back, not pinned (the same)", 0, 15);
}

void row_round_trip_idle(void) {
    int reps = bench_reps(201, 41);
    samples ours = samples_new(reps), reference = samples_new(reps);
    loop_prepare();
    partner_start(-1);
    for (int r = 0; r < reps + 2; r++) {
        bench_sleep(IDLE_NS);
        double start = bench_now();
        trip();
        double took = bench_now() - start;
        bench_sleep(IDLE_NS);
        double wake = reference_wake_back();
        if (r < 2) continue;
        samples_add(&ours, took);
        samples_add(&reference, wake);
    }
    partner_stop();
    row_ratio("round trip after 10 ms idle (futex there and back)", &ours, &reference, 1.5, NULL);
}
