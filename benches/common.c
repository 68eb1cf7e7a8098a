#include "bench.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int bench_quick;

void bench_die_status(const char *call, tgpu_status status) {
    char detail[1024] = "";
    size_t needed = 0;
    tgpu_error_text(detail, sizeof detail, &needed);
    fprintf(stderr, "%s: %s (%s) %s\n", call, tgpu_status_name(status), tgpu_status_message(status), detail);
    exit(2);
}

void bench_die(const char *what, int error) {
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(2);
}

static double clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
double bench_now(void) { return clock_ns(CLOCK_MONOTONIC); }
double bench_thread_cpu(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
double bench_process_cpu(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

void bench_sleep(double ns) {
    struct timespec left = {.tv_sec = (time_t)(ns / 1e9), .tv_nsec = (long)fmod(ns, 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

samples samples_new(int capacity) {
    samples s = {calloc((size_t)capacity, sizeof(double)), 0, capacity};
    if (s.value == NULL) bench_die("samples", ENOMEM);
    return s;
}
void samples_add(samples *s, double value) {
    if (s->count == s->capacity) bench_die("more samples than asked for", ENOSPC);
    s->value[s->count++] = value;
}
void samples_free(samples *s) {
    free(s->value);
    *s = (samples){0};
}
static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double samples_quantile(samples *s, double q) {
    if (s->count == 0) return NAN;
    qsort(s->value, (size_t)s->count, sizeof(double), by_value);
    double at = q * (s->count - 1);
    int low = (int)at, high = low + 1 < s->count ? low + 1 : low;
    return s->value[low] + (at - low) * (s->value[high] - s->value[low]);
}
double samples_median(samples *s) { return samples_quantile(s, 0.5); }

const char *text(const char *format, ...) {
    char *out = NULL;
    va_list args;
    va_start(args, format);
    int written = vasprintf(&out, format, args);
    va_end(args);
    if (written < 0) bench_die("text", ENOMEM);
    return out;
}
const char *text_time(double ns) {
    if (ns < 999.5) return text("%.1f ns", ns);
    if (ns < 999.5e3) return text("%.2f us", ns / 1e3);
    if (ns < 999.5e6) return text("%.2f ms", ns / 1e6);
    return text("%.2f s", ns / 1e9);
}
static const char *text_three(samples *s) {
    return text("%s / %s / %s", text_time(samples_quantile(s, 0)), text_time(samples_median(s)),
                text_time(samples_quantile(s, 0.9)));
}
const char *text_spread(samples *ours, samples *reference) {
    if (reference == NULL) return text_three(ours);
    return text("%s; reference %s", text_three(ours), text_three(reference));
}

void row_print(const row *r) {
    const char *verdict = "";
    if (r->kind == ROW_AT_MOST) {
        verdict = r->value <= r->limit ? "ok" : text("MISSED by %.2fx", r->value / r->limit);
    } else if (r->kind == ROW_AT_LEAST) {
        verdict = r->value >= r->limit ? "ok" : text("MISSED by %.2fx", r->limit / r->value);
    }
    /* Tabs between the cells: xtask makes the table. */
    printf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r->what, r->ours, r->reference ? r->reference : "",
           r->ratio ? r->ratio : "", r->reach ? r->reach : "", verdict, r->spread ? r->spread : "",
           r->note ? r->note : "");
    fflush(stdout);
}

void row_ratio(const char *what, samples *ours, samples *reference, double at_most, const char *note) {
    double a = samples_median(ours), b = samples_median(reference);
    row r = {
        .what = what,
        .ours = text_time(a),
        .reference = text_time(b),
        .ratio = text("%.3g", a / b),
        .reach = at_most > 0 ? text("at most %gx", at_most) : "",
        .value = a / b,
        .limit = at_most,
        .kind = at_most > 0 ? ROW_AT_MOST : ROW_FOR_COMPARISON,
        .spread = text_spread(ours, reference),
        .note = note,
    };
    row_print(&r);
}

static int read_topology(int cpu, const char *name) {
    const char *path = text("/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    FILE *f = fopen(path, "r");
    int value = -1;
    if (f != NULL) {
        if (fscanf(f, "%d", &value) != 1) value = -1;
        fclose(f);
    }
    return value;
}

int bench_two_cores(int *first, int *second) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 0;
    *first = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) continue;
        if (*first < 0) {
            *first = cpu;
            continue;
        }
        int core = read_topology(cpu, "core_id"), package = read_topology(cpu, "physical_package_id");
        int unknown = core < 0;
        if (unknown || core != read_topology(*first, "core_id") ||
            package != read_topology(*first, "physical_package_id")) {
            *second = cpu;
            return 1;
        }
    }
    return 0;
}

static void pin(pid_t tid, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    /* ESRCH: the thread has ended since it was listed. */
    if (sched_setaffinity(tid, sizeof set, &set) != 0 && errno != ESRCH) bench_die("sched_setaffinity", errno);
}
void bench_pin_self(int cpu) { pin(0, cpu); }

/* Calls visit for every other thread of the process; stops when it answers nonzero, and answers that. */
static int others(int (*visit)(pid_t tid, void *data), void *data) {
    DIR *dir = opendir("/proc/self/task");
    if (dir == NULL) bench_die("/proc/self/task", errno);
    pid_t self = (pid_t)syscall(SYS_gettid);
    int answer = 0;
    for (struct dirent *e; answer == 0 && (e = readdir(dir)) != NULL;) {
        if (!isdigit((unsigned char)e->d_name[0])) continue;
        pid_t tid = (pid_t)atoi(e->d_name);
        if (tid != self) answer = visit(tid, data);
    }
    closedir(dir);
    return answer;
}
struct pinning {
    int cpu, count;
};
static int pin_one(pid_t tid, void *data) {
    struct pinning *p = data;
    pin(tid, p->cpu);
    p->count++;
    return 0;
}
int bench_pin_others(int cpu) {
    struct pinning p = {cpu, 0};
    others(pin_one, &p);
    return p.count;
}
static int is_awake(pid_t tid, void *data) {
    (void)data;
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
    FILE *f = fopen(path, "r");
    if (f == NULL) return 0;
    size_t got = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[got] = 0;
    /* The state follows the name, which is in parentheses and may hold anything. */
    char *end = strrchr(line, ')');
    return end != NULL && end[1] == ' ' && end[2] == 'R';
}
int bench_others_asleep(void) {
    for (int i = 0; i < 2000; i++) {
        if (!others(is_awake, NULL)) return 1;
        bench_sleep(1e6);
    }
    return 0;
}

void futex_wait(_Atomic uint32_t *word, uint32_t while_value) {
    while (atomic_load_explicit(word, memory_order_acquire) == while_value) {
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_value, NULL, NULL, 0);
    }
}
void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }
