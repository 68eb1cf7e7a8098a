/* From starting a process to the answer of its first device count. */
#include "bench.h"

#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static double start_to_answer(const char *directory, const char *program, int call_it) {
    int fds[2];
    if (pipe(fds) != 0) bench_die("pipe", errno);
    const char *path = text("%s/%s", directory, program);
    char *argv[] = {(char *)path, call_it ? "count" : NULL, NULL};
    posix_spawn_file_actions_t actions;
    SYS(posix_spawn_file_actions_init(&actions));
    SYS(posix_spawn_file_actions_adddup2(&actions, fds[1], 1));
    SYS(posix_spawn_file_actions_addclose(&actions, fds[0]));
    pid_t pid;
    double start = bench_now();
    SYS(posix_spawn(&pid, path, &actions, NULL, argv, environ));
    close(fds[1]);
    int64_t answer = 0;
    ssize_t got = read(fds[0], &answer, sizeof answer);
    close(fds[0]);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    posix_spawn_file_actions_destroy(&actions);
    if (got != (ssize_t)sizeof answer || status != 0) {
        fprintf(stderr, "%s ended with status %d\n", path, status);
        exit(2);
    }
    return (double)answer - start;
}

void row_startup(void) {
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0) bench_die("/proc/self/exe", errno);
    self[length] = 0;
    *strrchr(self, '/') = 0;
    SYS(setenv("TASKGPU_BACKENDS", "host", 1));
    int reps = bench_reps(301, 61);
    samples ours = samples_new(reps), linked = samples_new(reps), without = samples_new(reps);
    for (int r = 0; r < reps + 2; r++) {
        double a = start_to_answer(self, "probe", 1);
        double b = start_to_answer(self, "probe", 0);
        double c = start_to_answer(self, "probe-without", 0);
        if (r < 2) continue;
        samples_add(&ours, a);
        samples_add(&linked, b);
        samples_add(&without, c);
    }
    double a = samples_median(&ours), b = samples_median(&linked);
    row r = {
        .what = "start to first device count (linked, not called)",
        .ours = text_time(a),
        .reference = text_time(b),
        .ratio = text("%.2f", a / b),
        .reach = "at most 5 ms",
        .value = a,
        .limit = 5e6,
        .kind = ROW_AT_MOST,
        .spread = text_spread(&ours, &linked),
        .note = text("the same program without the library: %s", text_time(samples_median(&without))),
    };
    row_print(&r);
}
