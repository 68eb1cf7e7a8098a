/* Many short threads: what is left of them. */
#include "bench.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

enum { AT_ONCE = 16, FIRST = 1000, DEVICES = 4, KNOWN = 1 << 17 };

static double resident_mib(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long all, resident;
    if (f == NULL || fscanf(f, "%ld %ld", &all, &resident) != 2) bench_die("/proc/self/statm", errno);
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

struct short_thread {
    tgpu_device device;
    uint64_t stream_id;
};

static void *short_thread(void *arg) {
    struct short_thread *t = arg;
    static const tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
    tgpu_stream_info info = TGPU_STREAM_INFO_INIT;
    OK(tgpu_device_set(t->device));
    OK(tgpu_launch(bench_empty_kernel(), &config, NULL));
    OK(tgpu_synchronize());
    OK(tgpu_stream_info_get(NULL, &info));
    t->stream_id = info.id;
    return NULL;
}

/* The ids seen so far: an id names one native stream and is never used again, so that their number is the number of
   streams made. Open addressing; an id is never 0. */
static uint64_t known[KNOWN];
static int known_count;
static void know(uint64_t id) {
    for (uint64_t at = id * 0x9e3779b97f4a7c15u >> 47;; at = (at + 1) % KNOWN) {
        if (known[at] == id) return;
        if (known[at] == 0) {
            known[at] = id;
            known_count++;
            return;
        }
    }
}

void row_threads(void) {
    int total = bench_reps(100000, 10000);
    SYS(setenv("TASKGPU_HOST_DEVICES", text("%d", DEVICES), 1));
    int32_t devices = 0;
    OK(tgpu_device_count(&devices));
    (void)bench_empty_kernel();
    pthread_t thread[AT_ONCE];
    struct short_thread state[AT_ONCE];
    double rss_first = 0, rss_most = 0, start = bench_now();
    int streams_first = 0;
    for (int done = 0; done < total;) {
        int now = total - done < AT_ONCE ? total - done : AT_ONCE;
        if (done < FIRST && FIRST - done < now) now = FIRST - done;
        for (int i = 0; i < now; i++) {
            state[i].device = (done + i) % devices;
            SYS(pthread_create(&thread[i], NULL, short_thread, &state[i]));
        }
        for (int i = 0; i < now; i++) {
            SYS(pthread_join(thread[i], NULL));
            know(state[i].stream_id);
        }
        done += now;
        if (done == FIRST) {
            rss_first = resident_mib();
            streams_first = known_count;
        } else if (done > FIRST) {
            double rss = resident_mib();
            if (rss > rss_most) rss_most = rss;
        }
    }
    double rss_end = resident_mib(), each = (bench_now() - start) / total;
    row memory = {
        .what = text("%d short threads: resident memory", total),
        .ours = text("%.2f MiB", rss_end),
        .reference = text("%.2f MiB after %d", rss_first, FIRST),
        .ratio = text("%.3f", rss_end / rss_first),
        .reach = "flat (1 MiB more)",
        .value = rss_end - rss_first,
        .limit = 1,
        .kind = ROW_AT_MOST,
        .note = text("%d at a time on %d devices, %s each; most seen %.2f MiB", AT_ONCE, (int)devices, text_time(each),
                     rss_most),
    };
    row_print(&memory);
    row streams = {
        .what = text("%d short threads: streams made", total),
        .ours = text("%d", known_count),
        .reference = text("%d after %d", streams_first, FIRST),
        .ratio = text("%.3f", (double)known_count / streams_first),
        .reach = text("flat (%d more)", AT_ONCE),
        .value = known_count - streams_first,
        .limit = AT_ONCE,
        .kind = ROW_AT_MOST,
    };
    row_print(&streams);
}
