/* What every test program needs: checks that say what they saw, children with another environment, and a watchdog.
 *
 * A program's main is
 *
 *     int main(int argc, char **argv) {
 *         begin(argc, argv);
 *         AS_CHILD(scenario);        // run instead of the tests when the program was started by CHECK_CHILD(scenario, ...)
 *         RUN(what_must_hold);
 *         RUN_IN_CHILD(what_else, "TASKGPU_HOST_THREADS=1");
 *         return end();
 *     }
 *
 * A failed check prints where, what and the values, and ends the program: what follows it would only confuse. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* include this file first */
#endif

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef CHECK_WITHOUT_LIBRARY
#include <taskgpu.h>
#endif

#define HELPER static inline __attribute__((unused))

/* A test that runs longer hangs. */
enum { WATCHDOG_SECONDS = 120, WATCHDOG_SECONDS_VALGRIND = 600 };

static const char *running_ = "(before the first test)";
static const char *child_;
static char program_[4096];
static int passed_;

HELPER void fail_(void) {
    fflush(NULL);
    _exit(1);
}

#define FAIL(...) \
    (fprintf(stderr, "%s:%d: in %s: ", __FILE__, __LINE__, running_), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), fail_())

#define CHECK(condition) ((condition) ? (void)0 : FAIL("does not hold: %s", #condition))

/* Whole numbers and handles: prints both sides. */
#define CHECK_EQ(is, must) check_eq_((int64_t)(is), (int64_t)(must), #is, #must, __FILE__, __LINE__)
#define CHECK_SAME(is, must) check_same_((const void *)(is), (const void *)(must), #is, #must, __FILE__, __LINE__)

HELPER void check_eq_(int64_t is, int64_t must, const char *is_text, const char *must_text, const char *file, int line) {
    if (is == must) return;
    fprintf(stderr, "%s:%d: in %s: %s is %" PRId64 ", must be %s, %" PRId64 "\n", file, line, running_, is_text, is, must_text, must);
    fail_();
}

HELPER void check_same_(const void *is, const void *must, const char *is_text, const char *must_text, const char *file, int line) {
    if (is == must) return;
    fprintf(stderr, "%s:%d: in %s: %s is %p, must be %s, %p\n", file, line, running_, is_text, is, must_text, must);
    fail_();
}

HELPER void watchdog_(int signal_number) {
    (void)signal_number;
    static const char text[] = ": hangs\n";
    /* Only what a signal handler may call. A message that cannot be written is no reason to hang on. */
    if (write(2, running_, strlen(running_)) < 0 || write(2, text, sizeof text - 1) < 0) _exit(125);
    _exit(124);
}

HELPER void set_watchdog_(void) {
    alarm(getenv("TASKGPU_TEST_VALGRIND") ? WATCHDOG_SECONDS_VALGRIND : WATCHDOG_SECONDS);
}

/* True where the devices are those of tests/hip-shim. */
HELPER int on_shim(void) {
    const char *backends = getenv("TASKGPU_BACKENDS");
    return getenv("TASKGPU_TEST_HIP_SHIM") && backends && strcmp(backends, "hip") == 0;
}

HELPER void begin(int argc, char **argv) {
    ssize_t length = readlink("/proc/self/exe", program_, sizeof program_ - 1);
    if (length < 0) FAIL("readlink /proc/self/exe: %s", strerror(errno));
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGALRM, watchdog_);
    set_watchdog_();
    if (argc > 1) {
        child_ = running_ = argv[1];
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        return;
    }
    /* As the test runner sets them, so that a program can be run by hand. Four threads, because a test that holds one
     * stream up must leave threads for others on a machine with one core. */
    setenv("TASKGPU_BACKENDS", "host", 0);
    setenv("TASKGPU_HOST_DEVICES", "4", 0);
    setenv("TASKGPU_HOST_THREADS", "4", 0);
}

HELPER int end(void) {
    if (child_) {
        fprintf(stderr, "there is no scenario %s\n", child_);
        return 1;
    }
    printf("%d passed, 0 failed\n", passed_);
    return 0;
}

/* All of them, or the one that TASKGPU_TEST_ONLY names; without those in the list TASKGPU_TEST_SKIP, " a b c ". */
HELPER int wanted_(const char *test) {
    const char *only = getenv("TASKGPU_TEST_ONLY"), *skip = getenv("TASKGPU_TEST_SKIP");
    size_t length = strlen(test);
    if (only && strcmp(only, test) != 0) return 0;
    for (const char *at = skip; at && (at = strstr(at, test)) != NULL; at++) {
        if (at == skip || at[-1] != ' ' || at[length] != ' ') continue;
        printf("skipped %s\n", test);
        return 0;
    }
    return 1;
}

#define RUN(test) \
    do { \
        if (child_ || !wanted_(#test)) break; \
        running_ = #test; \
        set_watchdog_(); \
        test(); \
        passed_++; \
        printf("ok %s\n", #test); \
    } while (0)

/* The same in a process of its own, with the variables set as listed. */
#define RUN_IN_CHILD(test, ...) \
    do { \
        AS_CHILD(test); \
        if (child_ || !wanted_(#test)) break; \
        running_ = #test; \
        set_watchdog_(); \
        CHECK_CHILD(test, __VA_ARGS__); \
        passed_++; \
        printf("ok %s\n", #test); \
    } while (0)

#define AS_CHILD(scenario) \
    do { \
        if (child_ && strcmp(child_, #scenario) == 0) { \
            scenario(); \
            return 0; \
        } \
    } while (0)

/* Runs this program again as `scenario`, with NAME=VALUE set and NAME unset as listed, and gives its wait status. */
#define CHILD_STATUS(scenario, ...) child_status_(#scenario, (const char *const[]){__VA_ARGS__, NULL})
#define CHECK_CHILD(scenario, ...) \
    do { \
        int status_ = CHILD_STATUS(scenario, __VA_ARGS__); \
        if (status_ != 0) FAIL("%s ended with wait status %#x", #scenario, status_); \
    } while (0)
/* For a child that shall have the environment of this program. */
#define AS_IT_IS "TASKGPU_TEST_SAME=1"

extern char **environ;

HELPER int child_status_(const char *scenario, const char *const *changes) {
    char *argv[3] = {program_, (char *)(uintptr_t)scenario, NULL};
    size_t count = 0, n = 0;
    pid_t pid;
    int status;
    while (environ[count]) count++;
    for (const char *const *c = changes; *c; c++) count++;
    char **env = calloc(count + 1, sizeof *env);
    if (!env) FAIL("no memory");
    for (char **e = environ; *e; e++) {
        int replaced = 0;
        for (const char *const *c = changes; *c; c++) {
            size_t name = strcspn(*c, "=");
            replaced |= strncmp(*e, *c, name) == 0 && (*e)[name] == '=';
        }
        if (!replaced) env[n++] = *e;
    }
    for (const char *const *c = changes; *c; c++)
        if (strchr(*c, '=')) env[n++] = (char *)(uintptr_t)*c;
    fflush(NULL);
    int error = posix_spawn(&pid, program_, NULL, NULL, argv, env);
    if (error) FAIL("posix_spawn: %s", strerror(error));
    free(env);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) FAIL("waitpid: %s", strerror(errno));
    return status;
}

HELPER void sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

/* For what happens on its own some time later. The watchdog ends what never happens. */
#define WAIT_UNTIL(condition) \
    do { \
    } while (!(condition) && (sleep_ms(1), 1))

HELPER pthread_t start_thread(void *(*function)(void *), void *data) {
    pthread_t thread;
    int error = pthread_create(&thread, NULL, function, data);
    if (error) FAIL("pthread_create: %s", strerror(error));
    return thread;
}

HELPER void join_thread(pthread_t thread) {
    int error = pthread_join(thread, NULL);
    if (error) FAIL("pthread_join: %s", strerror(error));
}

/* Runs a function on a thread of its own, from its first call to its end. */
HELPER void on_a_thread(void *(*function)(void *), void *data) {
    join_thread(start_thread(function, data));
}

/* Resident memory of this process, from the second number of /proc/self/statm. 0 under valgrind, which keeps freed memory. */
HELPER long resident_kib(void) {
    if (getenv("TASKGPU_TEST_VALGRIND")) return 0;
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) FAIL("/proc/self/statm cannot be read");
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

HELPER int thread_count(void) {
    char line[256];
    int threads = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) FAIL("/proc/self/status: %s", strerror(errno));
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Threads: %d", &threads) == 1) break;
    fclose(f);
    return threads;
}

/* Waits until a thread of this process sleeps: then it is inside the call that it was about to make. */
HELPER void wait_until_asleep(pid_t thread) {
    char path[64], line[512];
    for (;;) {
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
        FILE *f = fopen(path, "r");
        if (!f || !fgets(line, sizeof line, f)) FAIL("%s cannot be read", path);
        fclose(f);
        char *state = strrchr(line, ')'); /* "pid (name) S ..." */
        if (state && state[1] && state[2] == 'S') return;
        sleep_ms(1);
    }
}

#ifndef CHECK_WITHOUT_LIBRARY

/* The text of the last failure. Valid until this thread asks again. */
HELPER const char *last_text(void) {
    static _Thread_local char text[16384];
    size_t needed = 0;
    text[0] = 0;
    tgpu_error_text(text, sizeof text, &needed);
    return text;
}

HELPER int last_status(void) {
    tgpu_error_info info = TGPU_ERROR_INFO_INIT;
    return tgpu_error_info_get(&info) == TGPU_OK ? info.status : -1;
}

#define CHECK_STATUS(call, must) check_status_((call), (must), #call, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_STATUS(call, TGPU_OK)

HELPER void check_status_(tgpu_status is, tgpu_status must, const char *call, const char *file, int line) {
    if (is == must) return;
    fprintf(stderr, "%s:%d: in %s: %s answered %s, must be %s; last failure: %s\n", file, line, running_, call,
        tgpu_status_name(is), tgpu_status_name(must), last_text());
    fail_();
}

/* A call that must be refused, and the words its text must have: the value and the limit. */
#define CHECK_REFUSED(call, must, ...) \
    check_refused_((call), (must), #call, __FILE__, __LINE__, (const char *const[]){__VA_ARGS__, NULL})

HELPER void check_refused_(tgpu_status is, tgpu_status must, const char *call, const char *file, int line, const char *const *words) {
    check_status_(is, must, call, file, line);
    if (last_status() != must) {
        fprintf(stderr, "%s:%d: in %s: %s answered %s, but the last failure is %s: %s\n", file, line, running_, call,
            tgpu_status_name(is), tgpu_status_name(last_status()), last_text());
        fail_();
    }
    for (; *words; words++) {
        if (strstr(last_text(), *words)) continue;
        fprintf(stderr, "%s:%d: in %s: %s: the text lacks \"%s\": %s\n", file, line, running_, call, *words, last_text());
        fail_();
    }
}

/* A number as text, for the words of CHECK_REFUSED. */
#define TEXT(number) text_((char[24]){0}, "%" PRIu64, (uint64_t)(number))
#define SIGNED(number) text_((char[24]){0}, "%" PRId64, (uint64_t)(int64_t)(number))
#define HEX(pointer) text_((char[24]){0}, "%#" PRIx64, (uint64_t)(uintptr_t)(pointer))

HELPER const char *text_(char *to, const char *format, uint64_t number) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(to, 24, format, number);
#pragma GCC diagnostic pop
    return to;
}

/* What a failed call must leave as it was. */
struct state {
    tgpu_device device;
    tgpu_stream stream;
    int32_t policy;
    tgpu_task task;
};

HELPER struct state state_now(void) {
    struct state now;
    CHECK_OK(tgpu_device_get(&now.device));
    CHECK_OK(tgpu_stream_get(&now.stream));
    CHECK_OK(tgpu_wait_policy_get(&now.policy));
    CHECK_OK(tgpu_task_current(&now.task));
    return now;
}

#define CHECK_STATE(before) check_state_(before, __FILE__, __LINE__)

HELPER void check_state_(struct state before, const char *file, int line) {
    struct state now = state_now();
    if (now.device == before.device && now.stream == before.stream && now.policy == before.policy && now.task == before.task) return;
    fprintf(stderr, "%s:%d: in %s: the state has changed: device %d, was %d; stream %p, was %p; policy %d, was %d; task %p, was %p\n",
        file, line, running_, now.device, before.device, (void *)now.stream, (void *)before.stream, now.policy, before.policy,
        (void *)now.task, (void *)before.task);
    fail_();
}

HELPER tgpu_device device_now(void) {
    tgpu_device d = -1;
    CHECK_OK(tgpu_device_get(&d));
    return d;
}

HELPER tgpu_stream stream_now(void) {
    tgpu_stream s = NULL;
    CHECK_OK(tgpu_stream_get(&s));
    return s;
}

HELPER tgpu_stream_info stream_info(tgpu_stream s) {
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    CHECK_OK(tgpu_stream_info_get(s, &info));
    return info;
}

HELPER uint64_t stream_id(tgpu_stream s) {
    return stream_info(s).id;
}

/* A new stream on a device; the task stays where it is. */
HELPER tgpu_stream stream_on(tgpu_device d) {
    tgpu_stream s = NULL;
    tgpu_scope scope;
    CHECK_OK(tgpu_scope_enter_device(d, &scope));
    CHECK_OK(tgpu_stream_create(NULL, &s));
    CHECK_OK(tgpu_scope_leave(scope));
    return s;
}

HELPER uint64_t free_memory(tgpu_device d) {
    uint64_t free_bytes = 0, total = 0;
    CHECK_OK(tgpu_device_memory(d, &free_bytes, &total));
    return free_bytes;
}

#endif
#endif
