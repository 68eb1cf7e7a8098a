/* bench ROW [--quick]            one row of the table, one result a line, cells separated by tabs
   bench --list                   the rows
   bench --instructions LOOP N    runs a loop N times, for callgrind
   bench --loops                  the loops

   Each row wants a process of its own: some set the environment before the library's first call, some pin its threads.
   `cargo xtask bench` builds all this, runs every row, and makes the table. */
#include "bench.h"

#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    void (*run)(void);
} rows[] = {
    {"calls", row_calls},
    {"lease", row_lease},
    {"burst", row_burst},
    {"idle-enqueue", row_idle_enqueue},
    {"round-trip-pinned", row_round_trip_pinned},
    {"round-trip", row_round_trip},
    {"round-trip-idle", row_round_trip_idle},
    {"saxpy", row_saxpy},
    {"source-saxpy", row_source_saxpy},
    {"source-matmul", row_source_matmul},
    {"source-barriers", row_source_barriers},
    {"source-again", row_source_again},
    {"wait", row_wait},
    {"threads", row_threads},
    {"startup", row_startup},
};
static const struct {
    const char *name, *what;
    void (*run)(long);
} loops[] = {
    {"floor", "the floor: a C function that returns a _Thread_local int", loop_floor},
    {"device_get", "tgpu_device_get", loop_device_get},
    {"stream_get", "tgpu_stream_get", loop_stream_get},
    {"scope", "device scope enter + leave, same device", loop_scope},
    {"task_swap", "tgpu_task_swap there and back", loop_task_swap},
    {"launch", "tgpu_launch of an empty kernel, the enqueueing thread's side", loop_launch},
};
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < COUNT_OF(rows); i++) puts(rows[i].name);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--loops") == 0) {
        for (size_t i = 0; i < COUNT_OF(loops); i++) printf("%s\t%s\n", loops[i].name, loops[i].what);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "--instructions") == 0) {
        for (size_t i = 0; i < COUNT_OF(loops); i++) {
            if (strcmp(argv[2], loops[i].name) != 0) continue;
            loop_prepare();
            loops[i].run(10); /* first calls resolve symbols */
            loops[i].run(atol(argv[3]));
            loop_drain();
            return 0;
        }
    }
    bench_quick = argc == 3 && strcmp(argv[2], "--quick") == 0;
    if (argc == 2 || bench_quick) {
        for (size_t i = 0; i < COUNT_OF(rows); i++) {
            if (strcmp(argv[1], rows[i].name) != 0) continue;
            alarm(600); /* a row that hangs ends, and says so by its signal */
            rows[i].run();
            return 0;
        }
    }
    fprintf(stderr, "usage: bench ROW [--quick] | --list | --instructions LOOP N | --loops\n");
    return 1;
}
