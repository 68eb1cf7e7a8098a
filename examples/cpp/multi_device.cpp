// Using multiple GPUs from C++: examples/c/multi_device.c with owners instead of create and destroy, and exceptions instead
// of statuses. One thread per device; the device and the stream that are current belong to the thread.
//
//   c++ -std=c++17 multi_device.cpp -ltaskgpu -lpthread && TASKGPU_HOST_DEVICES=4 ./a.out
#include <chrono>
#include <cstdio>
#include <exception>
#include <taskgpu.hpp>
#include <thread>
#include <vector>

constexpr std::uint32_t n = 1 << 20;
constexpr int rounds = 100;

// y = a*x + y, for every kind of device: it is compiled for each when it is needed there.
constexpr char source[] = R"(
extern "C" __global__ void saxpy(float a, const float *x, float *y, unsigned count) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] += a * x[i];
}
)";
using Saxpy = taskgpu::TypedKernel<float, const float *, float *, std::uint32_t>;

struct Answer {
    double computed = 0, expected = 0;
    std::uint32_t wrong = 0;
    std::chrono::duration<double> busy{}; // from the device's first to its last event
    std::exception_ptr error;
};

Answer use_one_device(taskgpu::Device device, const Saxpy &kernel) {
    taskgpu::DeviceScope scope(device); // for this thread, to the end of this function
    taskgpu::Stream copies, compute;
    taskgpu::Event start, uploaded, computed, end;
    taskgpu::PinnedBuffer<float> x(n), y(n); // pinned host memory: copies do not block this thread
    taskgpu::Buffer<float> dev_x(n, copies), dev_y(n, copies);
    const float a = static_cast<float>(device.index() % 8 + 1);
    for (std::uint32_t i = 0; i < n; ++i) {
        x[i] = static_cast<float>(i % 1000);
        y[i] = static_cast<float>(i % 7);
    }

    // Nothing here waits for the device: it is queued, and `compute` starts when `copies` has uploaded.
    start.record(copies);
    dev_x.copy_from(x.data(), n, copies);
    dev_y.copy_from(y.data(), n, copies);
    uploaded.record(copies);
    compute.wait(uploaded);
    const taskgpu::LaunchConfig shape = kernel.suggest(n).on(compute);
    for (int i = 0; i < rounds; ++i) {
        kernel.launch(shape, a, dev_x.data(), dev_y.data(), n); // argument types are checked by the compiler
    }
    computed.record(compute);
    copies.wait(computed); // the result goes back when it is there
    dev_y.copy_to(y.data(), n, copies);
    end.record(copies);
    copies.synchronize();

    Answer answer;
    answer.busy = taskgpu::elapsed(start, end);
    for (std::uint32_t i = 0; i < n; ++i) { // small whole numbers: exact in float
        const float expected = static_cast<float>(i % 7) + rounds * a * static_cast<float>(i % 1000);
        answer.wrong += y[i] != expected;
        answer.computed += y[i];
        answer.expected += expected;
    }
    return answer; // streams, events and memory end here, in the order of their work
}

int main() try {
    const taskgpu::DeviceRange devices = taskgpu::devices();
    const taskgpu::Module module = taskgpu::Module::compile(source);
    const Saxpy kernel = taskgpu::Kernel::get<float, const float *, float *, std::uint32_t>(module, "saxpy"); // one for all
    for (taskgpu::Device device : devices) {
        module.prepare(device); // now, and not at the first launch there
    }
    std::vector<Answer> answers(devices.size());
    std::vector<std::thread> threads;

    const auto begin = std::chrono::steady_clock::now();
    for (taskgpu::Device device : devices) {
        threads.emplace_back([&kernel, device, &answer = answers[static_cast<std::size_t>(device.index())]] {
            try {
                answer = use_one_device(device, kernel);
            } catch (...) {
                answer.error = std::current_exception();
            }
        });
    }
    for (std::thread &t : threads) {
        t.join();
    }
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;

    std::uint32_t wrong = 0;
    std::chrono::duration<double> busy{};
    for (taskgpu::Device device : devices) {
        const Answer &answer = answers[static_cast<std::size_t>(device.index())];
        if (answer.error) {
            std::rethrow_exception(answer.error);
        }
        const taskgpu::DeviceInfo info = device.info();
        std::printf("device %d (%s, %s): sum %.0f, expected %.0f, %u of %u values wrong, busy %.1f ms\n", device.index(),
                    info.backend, info.name, answer.computed, answer.expected, answer.wrong, n, answer.busy.count() * 1e3);
        busy += answer.busy;
        wrong += answer.wrong;
    }
    std::printf("overlap: %.1f ms busy in %.1f ms of wall time, preparation included: %.2f of %zu devices at work at once\n",
                busy.count() * 1e3, wall.count() * 1e3, busy / wall, devices.size());
    return wrong != 0;
} catch (const taskgpu::Error &e) {
    std::fprintf(stderr, "multi_device: %s\n", e.what());
    if (e.function()[0] != '\0') {
        std::fprintf(stderr, "  %s: %s answered %s\n", e.backend(), e.function(), e.native_name());
    }
    return 1;
}
