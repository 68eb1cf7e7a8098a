// Every row of the table for NVIDIA GPUs in docs/performance.md: taskgpu, the raw driver and runtime, and PyTorch's c10,
// side by side in one process. Repetitions of the sides are interleaved. Built and run by run.sh.
#include <taskgpu.h>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/Context.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

static void ok(tgpu_status status, const char *call) {
    if (status == TGPU_OK) return;
    char text[2048];
    size_t needed;
    tgpu_error_text(text, sizeof text, &needed);
    std::printf("%s: %s: %s\n", call, tgpu_status_name(status), text);
    std::exit(1);
}
static void cu(int code, const char *call) {
    if (code == 0) return;
    std::printf("%s answered %d\n", call, code);
    std::exit(1);
}
#define OK(call) ok((call), #call)
#define CU(call) cu((int)(call), #call)

static double seconds(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static double now() { return seconds(CLOCK_MONOTONIC); }

struct Side {
    std::vector<double> samples;
    double median() {
        std::sort(samples.begin(), samples.end());
        return samples[samples.size() / 2];
    }
};

static const int REPS = 9;
using Work = std::function<double()>;  // gives nanoseconds, or whatever the row counts

// Interleaves the sides and gives each its samples. The first round is not counted.
static std::vector<Side> measure(const std::vector<Work> &sides) {
    std::vector<Side> result(sides.size());
    for (int r = -1; r < REPS; r++)
        for (size_t i = 0; i < sides.size(); i++) {
            double value = sides[i]();
            if (r >= 0) result[i].samples.push_back(value);
        }
    return result;
}

static Work per_call(long n, std::function<void()> f) {
    return [=] {
        double start = now();
        for (long i = 0; i < n; i++) f();
        return (now() - start) / n * 1e9;
    };
}

static void row(const char *what, const char *unit, Side ours, const char *peer, Side theirs, double limit, const char *reach, double slack = 0) {
    double a = ours.median(), b = theirs.median();
    bool ok = a <= b * limit + slack;
    std::printf("| %s | %.1f (%.1f .. %.1f) %s | %s %.1f (%.1f .. %.1f) | %.3f | %s | %s |\n", what, a, ours.samples.front(),
                ours.samples.back(), unit, peer, b, theirs.samples.front(), theirs.samples.back(), a / b, reach, ok ? "ok" : "**MISSED**");
    std::fflush(stdout);
}

__global__ void raw_empty() {}
__global__ void raw_spin(unsigned long long ns) {
    unsigned long long start, t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    while (t - start < ns);
}
static const char *source = R"(
extern "C" __global__ void empty() {}
extern "C" __global__ void spin(unsigned long long ns) {
    unsigned long long start, t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    while (t - start < ns);
})";

static tgpu_kernel kernel_empty, kernel_spin;
static CUfunction fn_empty, fn_spin;
static CUstream raw_stream;
static tgpu_stream our_stream;

static void raw_launch(CUstream s) { CU(cuLaunchKernel(fn_empty, 1, 1, 1, 1, 1, 1, 0, s, nullptr, nullptr)); }
static void our_launch(tgpu_stream s) {
    tgpu_launch_config c = TGPU_LAUNCH_CONFIG_INIT;
    c.stream = s;
    OK(tgpu_launch(kernel_empty, &c, nullptr));
}
static void raw_spin_launch(CUstream s, unsigned long long ns) {
    void *args[] = {&ns};
    CU(cuLaunchKernel(fn_spin, 1, 1, 1, 1, 1, 1, 0, s, args, nullptr));
}
static void our_spin_launch(tgpu_stream s, unsigned long long ns) {
    tgpu_launch_config c = TGPU_LAUNCH_CONFIG_INIT;
    void *args[] = {&ns};
    c.stream = s;
    OK(tgpu_launch(kernel_spin, &c, args));
}
static void raw_wait(CUstream s) {
    while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY) {
    }
}

static void calls() {
    volatile long sink = 0;
    tgpu_device d;
    tgpu_stream s;
    int cd;
    auto r = measure({per_call(300000, [&] { OK(tgpu_device_get(&d)); }), per_call(300000, [&] { CU(cudaGetDevice(&cd)); })});
    row("`tgpu_device_get`", "ns", r[0], "cudaGetDevice", r[1], 1 / 8., "1/8, or 4 ns x 2", 0);
    r = measure({per_call(300000, [&] { OK(tgpu_stream_get(&s)); }),
                 per_call(300000, [&] { sink += (long)c10::cuda::getCurrentCUDAStream().stream(); })});
    row("`tgpu_stream_get`", "ns", r[0], "c10 getCurrentCUDAStream().stream()", r[1], 1 / 15., "1/15");
    r = measure({per_call(100000, [&] { tgpu_scope sc; OK(tgpu_scope_enter_device(0, &sc)); OK(tgpu_scope_leave(sc)); }),
                 per_call(100000, [&] { c10::cuda::CUDAGuard g(0); })});
    row("device scope, same device", "ns", r[0], "c10 CUDAGuard", r[1], 1 / 3., "1/3");
    auto pooled = c10::cuda::getStreamFromPool();
    r = measure({per_call(100000, [&] { tgpu_scope sc; OK(tgpu_scope_enter_stream(our_stream, &sc)); OK(tgpu_scope_leave(sc)); }),
                 per_call(100000, [&] { c10::cuda::CUDAStreamGuard g(pooled); })});
    row("stream scope", "ns", r[0], "c10 CUDAStreamGuard", r[1], 1 / 5., "1/5");
    // A lease: what the first look at the current stream costs in a new task, beside a task that never looks.
    const int N = 2000;
    auto tasks = [&](bool look) {
        std::vector<tgpu_task> t(N);
        for (auto &x : t) OK(tgpu_task_create(nullptr, &x));
        double start = now();
        for (auto &x : t) {
            OK(tgpu_task_swap(x, nullptr));
            if (look) OK(tgpu_stream_get(&s));
            OK(tgpu_task_destroy(x));
            OK(tgpu_task_swap(nullptr, nullptr));
        }
        return (now() - start) / N * 1e9;
    };
    r = measure({[&] { return tasks(true) - tasks(false); }, per_call(20000, [&] { sink += (long)c10::cuda::getStreamFromPool().id(); }),
                 per_call(300, [&] { CUstream t; CU(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING)); CU(cuStreamDestroy(t)); })});
    row("stream lease, warm pool", "ns", r[0], "c10 getStreamFromPool (shared)", r[1], 1, "1");
    row("stream lease, warm pool", "ns", r[0], "create + destroy", r[2], 1 / 30., "1/30");
}

static void launches() {
    auto burst = [](long n, auto launch, auto drain) {
        return Work([=] {
            double start = now();
            for (long i = 0; i < n; i++) launch();
            double host = now() - start;
            drain();
            return host / n * 1e9;
        });
    };
    auto whole = [](long n, auto launch, auto drain) {
        return Work([=] {
            double start = now();
            for (long k = 0; k < 10; k++) {
                for (long i = 0; i < n; i++) launch();
                drain();
            }
            return (now() - start) / (10 * n) * 1e9;
        });
    };
    auto ours = [] { our_launch(our_stream); };
    auto raw = [] { raw_launch(raw_stream); };
    auto drain_ours = [] { OK(tgpu_stream_synchronize(our_stream)); };
    auto drain_raw = [] { CU(cuStreamSynchronize(raw_stream)); };
    auto r = measure({whole(1000, ours, drain_ours), whole(1000, raw, drain_raw)});
    row("`tgpu_launch`, the queue is the limit", "ns", r[0], "cuLaunchKernel", r[1], 1.02, "1.02");
    r = measure({burst(100, ours, drain_ours), burst(100, raw, drain_raw)});
    row("`tgpu_launch`, host time, queue empty", "ns", r[0], "cuLaunchKernel", r[1], 1, "+ 60 ns", 60);
    for (int T : {1, 2, 4, 8, 16}) {
        auto rate = [T](bool our) {
            return Work([=] {
                std::vector<std::thread> threads;
                std::atomic<int> ready{0};
                std::vector<CUstream> raw(T);
                std::vector<tgpu_stream> mine(T);
                for (auto &s : raw) CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
                for (auto &s : mine) OK(tgpu_stream_create(nullptr, &s));
                const int N = 10000;
                for (int t = 0; t < T; t++)
                    threads.emplace_back([&, t] {
                        CU(cudaSetDevice(0));
                        ready++;
                        while (ready < T + 1) {
                        }
                        for (int i = 0; i < N; i++) {
                            our ? our_launch(mine[t]) : raw_launch(raw[t]);
                            if (i % 1000 == 999) our ? OK(tgpu_stream_synchronize(mine[t])) : CU(cuStreamSynchronize(raw[t]));
                        }
                    });
                while (ready < T) {
                }
                double start = now();
                ready++;
                for (auto &t : threads) t.join();
                double took = now() - start;
                for (auto &s : raw) CU(cuStreamDestroy(s));
                for (auto &s : mine) OK(tgpu_stream_destroy(s));
                return took / (double(T) * N) * 1e9;
            });
        };
        r = measure({rate(true), rate(false)});
        std::string what = std::to_string(T) + " threads launching on their own streams, time for each launch in total";
        row(what.c_str(), "ns", r[0], "cuLaunchKernel", r[1], 1 / 0.98, "1/0.98");
    }
}

static void waits() {
    auto r = measure({per_call(2000, [] { our_launch(our_stream); OK(tgpu_stream_synchronize(our_stream)); }),
                      per_call(2000, [] { raw_launch(raw_stream); raw_wait(raw_stream); })});
    row("AUTO: launch + synchronize of an empty kernel", "ns", r[0], "cuStreamQuery spin", r[1], 1.05, "1.05");
    // 10 ms: learn first.
    for (int i = 0; i < 16; i++) our_spin_launch(our_stream, 10000000), OK(tgpu_stream_synchronize(our_stream));
    double cpu_ours = 0, wall_ours = 0;
    r = measure({[&] {
                     double w = now(), c = seconds(CLOCK_PROCESS_CPUTIME_ID);
                     our_spin_launch(our_stream, 10000000), OK(tgpu_stream_synchronize(our_stream));
                     w = now() - w, c = seconds(CLOCK_PROCESS_CPUTIME_ID) - c;
                     cpu_ours += c, wall_ours += w;
                     return w * 1e6;
                 },
                 [&] { double w = now(); raw_spin_launch(raw_stream, 10000000); CU(cuStreamSynchronize(raw_stream)); return (now() - w) * 1e6; }});
    row("AUTO: wait on a 10 ms kernel, wall", "us", r[0], "cuStreamSynchronize", r[1], 1.02, "1.02");
    std::printf("| AUTO: wait on a 10 ms kernel, CPU of the process | %.2f %% of a core | | | at most 3 %% | %s |\n", cpu_ours / wall_ours * 100,
                cpu_ours / wall_ours <= 0.03 ? "ok" : "**MISSED**");
    std::vector<unsigned long long> mixed;
    for (int i = 0; i < 200; i++) mixed.push_back(20000 + (i * 7919ull % 100) * 9800);
    auto series = [](std::vector<unsigned long long> times, int how) {
        return Work([=] {
            double start = now();
            for (auto ns : times) {
                if (how == 0) our_spin_launch(our_stream, ns), OK(tgpu_stream_synchronize(our_stream));
                else raw_spin_launch(raw_stream, ns), raw_wait(raw_stream);
            }
            return (now() - start) / times.size() * 1e6;
        });
    };
    std::vector<std::pair<std::string, std::vector<unsigned long long>>> kinds = {{"mixed 20 us to 1 ms", mixed}};
    for (unsigned long long us : {20, 50, 100, 300, 1000}) kinds.push_back({"steady " + std::to_string(us) + " us", std::vector<unsigned long long>(100, us * 1000)});
    for (auto &kind : kinds) {
        double c = seconds(CLOCK_PROCESS_CPUTIME_ID), w = now();
        series(kind.second, 0)();
        c = seconds(CLOCK_PROCESS_CPUTIME_ID) - c, w = now() - w;
        r = measure({series(kind.second, 0), series(kind.second, 1)});
        std::string what = "AUTO: " + kind.first + " kernels, CPU " + std::to_string((int)(c / w * 100 + .5)) + " %";
        row(what.c_str(), "us", r[0], "cuStreamQuery spin", r[1], 1.03, "1.03");
    }
}

static void memory() {
    CUmemoryPool pool;
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CU(cuMemPoolCreate(&pool, &props));
    cuuint64_t keep = UINT64_MAX;
    CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    auto r = measure({per_call(5000, [] { void *p; OK(tgpu_malloc_async(4096, our_stream, &p)); OK(tgpu_free_async(p, our_stream)); }),
                      per_call(5000, [&] { CUdeviceptr p; CU(cuMemAllocFromPoolAsync(&p, 4096, pool, raw_stream)); CU(cuMemFreeAsync(p, raw_stream)); })});
    row("`tgpu_malloc_async` + `tgpu_free_async`, 4 KiB", "ns", r[0], "the raw pair", r[1], 1.05, "1.05");
}

static void callbacks() {
    static std::atomic<int> done;
    int fd = eventfd(0, 0);
    auto r = measure({per_call(1000, [] {
                          done = 0;
                          our_launch(our_stream);
                          OK(tgpu_stream_add_callback(our_stream, [](void *, tgpu_status) { done = 1; }, nullptr));
                          while (!done) {
                          }
                      }),
                      per_call(1000, [] {
                          done = 0;
                          raw_launch(raw_stream);
                          CU(cuLaunchHostFunc(raw_stream, [](void *) { done = 1; }, nullptr));
                          while (!done) {
                          }
                      }),
                      per_call(1000, [&] {
                          uint64_t count;
                          our_launch(our_stream);
                          OK(tgpu_stream_signal_fd(our_stream, fd));
                          if (read(fd, &count, sizeof count) != sizeof count) std::exit(1);
                      }),
                      per_call(1000, [&] {
                          uint64_t count;
                          raw_launch(raw_stream);
                          CU(cuLaunchHostFunc(raw_stream, [](void *p) { uint64_t one = 1; if (write(*(int *)p, &one, 8) != 8) std::abort(); }, &fd));
                          if (read(fd, &count, sizeof count) != sizeof count) std::exit(1);
                      })});
    row("callback to the host", "ns", r[0], "cuLaunchHostFunc", r[1], 1.1, "1.1");
    row("`tgpu_stream_signal_fd`, read", "ns", r[2], "cuLaunchHostFunc that writes", r[3], 1.1, "1.1");
    close(fd);
}

static void first_work() {
    auto thread = [](auto body) {
        return Work([=] {
            double start = now();
            for (int i = 0; i < 200; i++) std::thread(body).join();
            return (now() - start) / 200 * 1e6;
        });
    };
    auto r = measure({thread([] { OK(tgpu_device_set(0)); our_launch(nullptr); OK(tgpu_synchronize()); }), thread([] {
                          CU(cudaSetDevice(0));
                          cudaStream_t s;
                          CU(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
                          raw_launch(s);
                          CU(cudaStreamSynchronize(s));
                          CU(cudaStreamDestroy(s));
                      })});
    row("a new thread's first work: launch, wait, exit", "us", r[0], "with a stream of its own", r[1], 0.7, "0.7");
}

int main() {
    CU(cudaSetDevice(0));
    CU(cudaFree(nullptr));
    CU(cuInit(0));
    at::globalContext().lazyInitDevice(at::kCUDA);
    CU(cudaGetFuncBySymbol((cudaFunction_t *)&fn_empty, (void *)raw_empty));
    CU(cudaGetFuncBySymbol((cudaFunction_t *)&fn_spin, (void *)raw_spin));
    CU(cuStreamCreate(&raw_stream, CU_STREAM_NON_BLOCKING));
    OK(tgpu_device_set(0));
    tgpu_device_info info = TGPU_DEVICE_INFO_INIT;
    OK(tgpu_device_info_get(0, &info));
    OK(tgpu_stream_create(nullptr, &our_stream));
    tgpu_module module;
    OK(tgpu_module_compile(source, nullptr, &module));
    OK(tgpu_kernel_get(module, "empty", &kernel_empty));
    OK(tgpu_kernel_get(module, "spin", &kernel_spin));
    our_launch(our_stream), raw_launch(raw_stream), our_spin_launch(our_stream, 1000), raw_spin_launch(raw_stream, 1000);
    CU(cuCtxSynchronize());
    std::printf("%s, taskgpu %s; median (least .. most) of %d\n\n| what | taskgpu | beside | ratio | reach | |\n|---|---|---|---|---|---|\n", info.name,
                tgpu_version_string(), REPS);
    calls();
    launches();
    waits();
    memory();
    callbacks();
    first_work();
}
