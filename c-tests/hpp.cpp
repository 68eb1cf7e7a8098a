// The C++ layer, include/taskgpu.hpp, on two host devices. Compiles with and without exceptions.
#include "check.hpp"

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>
#include <numeric>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <taskgpu.hpp>
#include <thread>

using namespace std::chrono_literals;
using taskgpu::Buffer;
using taskgpu::Device;
using taskgpu::DeviceScope;
using taskgpu::Event;
using taskgpu::HostBlock;
using taskgpu::Kernel;
using taskgpu::LaunchConfig;
using taskgpu::PinnedBuffer;
using taskgpu::Result;
using taskgpu::Status;
using taskgpu::Stream;
using taskgpu::StreamScope;
using taskgpu::StreamView;
using taskgpu::Task;
using taskgpu::TaskScope;
using taskgpu::TaskView;
using taskgpu::TypedKernel;

namespace taskgpu {
static std::ostream &operator<<(std::ostream &out, Status s) { return out << name(s); }
static std::ostream &operator<<(std::ostream &out, Device d) { return out << "device " << d.index(); }
static std::ostream &operator<<(std::ostream &out, StreamView s) { return out << s.handle(); }
static std::ostream &operator<<(std::ostream &out, TaskView t) { return out << t.handle(); }
} // namespace taskgpu

// ---------------------------------------------------------------------------------------------- what the compiler decides

template <class T>
constexpr bool owner = std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
                       !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T> && std::is_nothrow_destructible_v<T>;
static_assert(owner<Stream> && owner<Event> && owner<Task> && owner<Kernel> && owner<taskgpu::Module>);
static_assert(owner<TypedKernel<int>> && owner<Buffer<int>> && owner<PinnedBuffer<int>>);

template <class T> constexpr bool view = std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(void *);
static_assert(view<StreamView> && view<taskgpu::EventView> && view<TaskView> && view<Device>);
static_assert(sizeof(Stream) == sizeof(void *) && sizeof(TypedKernel<int, float>) == sizeof(void *));
static_assert(std::is_convertible_v<Stream &, StreamView> && !std::is_convertible_v<StreamView, Stream>);

template <class T> constexpr bool stays = !std::is_copy_constructible_v<T> && !std::is_move_constructible_v<T>;
static_assert(stays<DeviceScope> && stays<StreamScope> && stays<TaskScope>);

// A launch with the wrong number or kind of arguments does not compile; one that converts does.
template <class K, class... A> auto launches(int) -> decltype(std::declval<const K &>().launch(LaunchConfig{}, std::declval<A>()...), std::true_type{});
template <class, class...> std::false_type launches(...);
using Saxpy = TypedKernel<float, const float *, float *>;
static_assert(decltype(launches<Saxpy, float, float *, float *>(0))::value);
static_assert(decltype(launches<Saxpy, int, const float *, float *>(0))::value);
static_assert(!decltype(launches<Saxpy, float, const float *, const float *>(0))::value, "const is lost");
static_assert(!decltype(launches<Saxpy, float, double *, float *>(0))::value, "another pointer");
static_assert(!decltype(launches<Saxpy, float, float *>(0))::value, "an argument is missing");
static_assert(!decltype(launches<Saxpy, float, float *, float *, int>(0))::value, "one too many");

// The answers of try_ calls cannot be dropped unseen, and the calls cannot throw.
static_assert(noexcept(Stream::try_create()) && noexcept(Buffer<int>::try_create(1)) && noexcept(taskgpu::try_synchronize()));
static_assert(noexcept(std::declval<Saxpy &>().try_launch(LaunchConfig{}, 1.0f, nullptr, nullptr)));

// ---------------------------------------------------------------------------------------------------------------- helpers

// A kernel that holds its stream until it is let go.
struct Gate {
    std::atomic<bool> open{false};
    static void wait(const HostBlock &, Gate *gate) {
        while (!gate->open.load()) {
            std::this_thread::yield();
        }
    }
    void close(StreamView stream) {
        static const auto kernel = Kernel::from_host<wait>();
        open = false;
        kernel.launch(LaunchConfig{}.on(stream), this);
    }
    ~Gate() { open = true; }
};

static void add_to_each(const HostBlock &b, int *x, int value, std::uint32_t n) {
    for (std::uint32_t t = 0; t < b.block[0]; ++t) {
        const std::uint32_t i = b.index[0] * b.block[0] + t;
        if (i < n) {
            x[i] += value;
        }
    }
}

static taskgpu::StreamInfo current_info() { return StreamView::current().info(); }

static std::uint64_t free_bytes() {
    taskgpu::device_synchronize();
    Device::current().trim_memory();
    return Device::current().memory().free_bytes;
}

// What is freed without a stream is freed by a helper thread after the device's work, so it may take a moment.
static bool comes_back_to(std::uint64_t before) {
    for (int i = 0; i < 10000 && free_bytes() != before; ++i) {
        std::this_thread::sleep_for(1ms);
    }
    EQUAL(free_bytes(), before);
    return free_bytes() == before;
}

static bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// ----------------------------------------------------------------------------------------------------------------- errors

TEST(statuses_have_the_names_and_sentences_of_c) {
    EQUAL(std::string(name(Status::timeout)), "TGPU_ERROR_TIMEOUT");
    EQUAL(std::string(message(Status::ok)), tgpu_status_message(TGPU_OK));
    CHECK(name(static_cast<Status>(12345)) != nullptr);
}

TEST(a_failed_try_form_answers_and_leaves_the_details) {
    EQUAL(Device(77).try_make_current(), Status::invalid_device);
    const taskgpu::Error e = taskgpu::Error::last(Status::invalid_device);
    EQUAL(e.status(), Status::invalid_device);
    CHECK(has(e.text(), "77"));
    CHECK(has(e.what(), "TGPU_ERROR_INVALID_DEVICE"));
    CHECK(has(e.what(), e.text()));
    EQUAL(std::string(e.backend()), "");
    EQUAL(e.native_code(), 0);
    const Result<taskgpu::DeviceInfo> info = Device(-1).try_info();
    CHECK(!info);
    EQUAL(info.status(), Status::invalid_device);
}

TEST(an_error_of_another_status_is_not_taken_for_the_last_one) {
    EQUAL(Device(78).try_make_current(), Status::invalid_device);
    const taskgpu::Error e = taskgpu::Error::last(Status::timeout);
    EQUAL(e.status(), Status::timeout);
    CHECK(!has(e.what(), "78"));
    EQUAL(std::string(e.text()), message(Status::timeout));
}

TEST(an_error_names_device_and_stream) {
    const DeviceScope scope(Device(1));
    EQUAL(Buffer<char>::try_create(std::size_t{1} << 60).status(), Status::out_of_memory);
    const taskgpu::Error e = taskgpu::Error::last(Status::out_of_memory);
    EQUAL(e.device(), 1);
    CHECK(has(e.what(), "on device 1"));
    CHECK(has(e.text(), std::to_string(std::uint64_t{1} << 60)));
    EQUAL(e.detail().status, TGPU_ERROR_OUT_OF_MEMORY);
}

#if TASKGPU_HPP_EXCEPTIONS

template <class F> static std::string caught(Status expected, F f) {
    try {
        f();
    } catch (const taskgpu::Error &e) {
        EQUAL(e.status(), expected);
        const taskgpu::Error copy = e;
        EQUAL(std::string(copy.what()), e.what());
        EQUAL(std::string(copy.text()), std::string(e.text()));
        return e.what();
    }
    CHECK(!"an exception was expected");
    return {};
}

TEST(throwing_forms_throw_the_details) {
    CHECK(has(caught(Status::invalid_device, [] { Device(79).make_current(); }), "79"));
    CHECK(has(caught(Status::invalid_device, [] { (void)Device(80).info(); }), "80"));
    CHECK(has(caught(Status::invalid_device, [] { DeviceScope scope(Device(81)); }), "81"));
    caught(Status::out_of_memory, [] { Buffer<int> b(std::size_t{1} << 60); });
    caught(Status::invalid_handle, [] { Stream::adopt(nullptr).release(); throw taskgpu::Error(Status::invalid_handle, ""); });
    std::runtime_error *base = nullptr;
    try {
        Device(82).make_current();
    } catch (std::runtime_error &e) {
        base = &e;
    }
    CHECK(base != nullptr);
}

TEST(counts_that_do_not_fit_are_named_with_their_limit) {
    Buffer<int> b(10);
    int host[11] = {};
    CHECK(has(caught(Status::invalid_argument, [&] { b.copy_from(host, 11); }), "11 elements, the limit is 10"));
    CHECK(has(caught(Status::invalid_argument, [&] { b.copy_to(host, 11); }), "11 elements, the limit is 10"));
    const std::size_t huge = SIZE_MAX / 2;
    const std::string limit = std::to_string(SIZE_MAX / sizeof(int));
    CHECK(has(caught(Status::invalid_argument, [&] { Buffer<int> c(huge); }), limit));
    CHECK(has(caught(Status::invalid_argument, [&] { PinnedBuffer<int> c(huge); }), limit));
    CHECK(has(caught(Status::invalid_argument, [&] { taskgpu::copy(host, host, huge); }), limit));
}

TEST(a_scope_is_left_when_an_exception_passes) {
    Device(0).make_current();
    try {
        const DeviceScope scope(Device(1));
        EQUAL(Device::current(), Device(1));
        throw 3;
    } catch (int) {
    }
    EQUAL(Device::current(), Device(0));
}

TEST(sync_waits_also_when_the_callable_throws) {
    Gate gate;
    std::atomic<bool> ran{false};
    int caught_value = 0;
    std::thread opener;
    try {
        taskgpu::sync([&] {
            gate.close(StreamView{});
            StreamView{}.add_callback([&] { ran = true; });
            opener = std::thread([&] {
                std::this_thread::sleep_for(20ms);
                gate.open = true;
            });
            throw 7;
        });
    } catch (int e) {
        caught_value = e;
        CHECK(ran.load());
    }
    EQUAL(caught_value, 7);
    opener.join();
}

TEST(the_value_of_a_failed_result_throws) {
    caught(Status::invalid_device, [] { (void)Device(83).try_info().value(); });
}

#else

// Has to fork before the runtime is in use, so it runs first.
static void throwing_forms_abort_without_exceptions() {
    int out[2];
    CHECK(pipe(out) == 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(out[1], STDERR_FILENO);
        Device(84).make_current();
        _exit(0);
    }
    close(out[1]);
    char text[1024] = {};
    std::size_t length = 0;
    for (ssize_t got; length < sizeof text - 1 && (got = read(out[0], text + length, sizeof text - 1 - length)) > 0;) {
        length += static_cast<std::size_t>(got);
    }
    close(out[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(has(text, "taskgpu: TGPU_ERROR_INVALID_DEVICE") && has(text, "84"));
}

#endif

TEST(destructors_leave_the_last_error_alone) {
    EQUAL(Device(90).try_make_current(), Status::invalid_device);
    {
        Stream stream;
        Event event;
        Buffer<int> buffer(10, stream);
        PinnedBuffer<int> pinned(10);
        const auto kernel = Kernel::from_host<add_to_each>();
        Task task;
        // Handles destroyed behind the owners' backs: their destructors are answered INVALID_HANDLE.
        CHECK(tgpu_stream_destroy(stream.handle()) == TGPU_OK);
        CHECK(tgpu_event_destroy(event.handle()) == TGPU_OK);
        CHECK(tgpu_task_destroy(task.handle()) == TGPU_OK);
        CHECK(tgpu_kernel_destroy(kernel.handle()) == TGPU_OK);
    }
    CHECK(has(taskgpu::Error::last(Status::invalid_device).text(), "90"));
}

// ---------------------------------------------------------------------------------------------------------------- devices

TEST(devices_can_be_walked_and_indexed) {
    const taskgpu::DeviceRange devices = taskgpu::devices();
    EQUAL(devices.size(), 2u);
    tgpu_device expected = 0;
    for (Device d : devices) {
        EQUAL(d, devices[static_cast<std::size_t>(expected)]);
        EQUAL(d.info().device, expected++);
        CHECK(d.info().total_memory > 0);
        CHECK(d.memory().free_bytes <= d.memory().total_bytes);
    }
    EQUAL(expected, 2);
    CHECK(Device(0) != Device(1));
    Device(0).enable_access(Device(1));
    CHECK(Device(0).can_access(Device(1)));
}

TEST(a_device_scope_restores_device_and_stream) {
    Device(0).make_current();
    Stream mine;
    mine.make_current();
    {
        const DeviceScope to_one(Device(1));
        EQUAL(Device::current(), Device(1));
        {
            const DeviceScope back(Device(0));
            StreamView::reset_current();
            CHECK(StreamView::current() != mine);
        }
        EQUAL(Device::current(), Device(1));
    }
    EQUAL(Device::current(), Device(0));
    EQUAL(StreamView::current(), StreamView(mine));
    StreamView::reset_current();
}

TEST(a_stream_scope_takes_its_device_along) {
    Device(0).make_current();
    const StreamView before = StreamView::current();
    Result<Stream> there = [] {
        const DeviceScope scope(Device(1));
        return Stream::try_create();
    }();
    CHECK(there);
    {
        StreamScope scope(*there);
        EQUAL(Device::current(), Device(1));
        EQUAL(StreamView::current(), StreamView(*there));
        scope.leave();
        EQUAL(Device::current(), Device(0));
        EQUAL(scope.try_leave(), Status::ok);
    }
    EQUAL(StreamView::current(), before);
    auto entered = StreamScope::try_enter(*there);
    CHECK(entered);
    EQUAL(Device::current(), Device(1));
}

TEST(scopes_left_out_of_order_restore_nothing) {
    Device(0).make_current();
    auto outer = DeviceScope::try_enter(Device(1));
    {
        const DeviceScope inner(Device(0));
        EQUAL(outer->try_leave(), Status::scope_mismatch);
        EQUAL(Device::current(), Device(0));
    }
    EQUAL(Device::current(), Device(1));
    EQUAL(outer->try_leave(), Status::ok);
    EQUAL(Device::current(), Device(0));
    EQUAL(DeviceScope::try_enter(Device(99)).status(), Status::invalid_device);
}

// ---------------------------------------------------------------------------------------------------------------- streams

TEST(a_moved_from_owner_is_answered_and_never_means_the_current_stream) {
    Stream a;
    const StreamView handle = a;
    Stream b = std::move(a);
    EQUAL(StreamView(b), handle);
    CHECK(b && !a);
    EQUAL(a.try_synchronize(), Status::invalid_handle);
    EQUAL(a.try_make_current(), Status::invalid_handle);
    EQUAL(StreamView{}.try_wait(a), Status::invalid_handle);
    const auto kernel = Kernel::from_host<add_to_each>();
    EQUAL(kernel.try_launch(LaunchConfig{}.on(a), nullptr, 0, 0), Status::invalid_handle);
    a = std::move(b);
    EQUAL(StreamView(a), handle);
    EQUAL(a.try_synchronize(), Status::ok);

    Event e;
    Event f = std::move(e);
    EQUAL(e.try_record(), Status::invalid_handle);
    Task t;
    Task u = std::move(t);
    EQUAL(TaskScope::try_enter(t).status(), Status::invalid_handle);
    auto k = Kernel::from_host<add_to_each>();
    const auto l = std::move(k);
    EQUAL(k.try_launch(LaunchConfig{}, nullptr, 0, 0), Status::invalid_handle);
}

TEST(assigning_an_owner_destroys_what_it_had) {
    Stream a;
    const StreamView old = a;
    a = Stream(taskgpu::Priority::high);
    EQUAL(old.try_synchronize(), Status::invalid_handle);
    EQUAL(a.info().priority, TGPU_PRIORITY_HIGH);
    const StreamView kept = a;
    Stream &self = a;
    a = std::move(self);
    EQUAL(StreamView(a), kept);
    const tgpu_stream released = a.release();
    CHECK(!a);
    EQUAL(StreamView(released), kept);
    EQUAL(Stream::adopt(released).info().kind, TGPU_STREAM_OWNED);
    EQUAL(kept.try_synchronize(), Status::invalid_handle);
}

TEST(a_native_stream_comes_back_as_the_same_stream) {
    Stream a;
    const Stream b = Stream::import_native(Device::current(), a.native());
    const Stream c = Stream::import_native(Device::current(), a.native());
    EQUAL(b.info().kind, TGPU_STREAM_IMPORTED);
    EQUAL(b.native(), a.native());
    EQUAL(b.info().id, c.info().id);
}

TEST(waits_with_a_timeout_tell_whether_it_was_over) {
    Stream stream;
    Event event;
    CHECK(event.done());
    Gate gate;
    gate.close(stream);
    event.record(stream);
    CHECK(!stream.idle());
    CHECK(!event.done());
    CHECK(!stream.synchronize_for(2ms));
    CHECK(!stream.synchronize_for(-5s));
    CHECK(!event.synchronize_for(std::chrono::duration<double>(0.002)));
    CHECK(!event.synchronize_for(0s));
    CHECK(!event.synchronize_for(std::chrono::duration<float>(NAN)));
    gate.open = true;
    CHECK(stream.synchronize_for(100h));
    CHECK(event.synchronize_for(std::chrono::duration<double>(1e300)));
    CHECK(stream.synchronize_for(std::chrono::hours::max()));
    CHECK(stream.idle() && event.done());
}

TEST(durations_become_nanoseconds_rounded_up_and_clamped) {
    using taskgpu::detail::nanoseconds;
    EQUAL(nanoseconds(3ns), 3u);
    EQUAL(nanoseconds(2s), 2000000000u);
    EQUAL(nanoseconds(std::chrono::duration<double, std::nano>(0.25)), 1u);
    EQUAL(nanoseconds(std::chrono::duration<std::int64_t, std::pico>(1001)), 2u);
    EQUAL(nanoseconds(-1ns), 0u);
    EQUAL(nanoseconds(std::chrono::nanoseconds::max()), static_cast<std::uint64_t>(INT64_MAX));
    EQUAL(nanoseconds(std::chrono::hours::max()), UINT64_MAX);
    EQUAL(nanoseconds(std::chrono::duration<double>(INFINITY)), UINT64_MAX);
}

TEST(an_event_orders_two_streams) {
    Stream a, b;
    Event a_done;
    Gate gate;
    std::atomic<int> order{0};
    int first = 0, second = 0;
    gate.close(a);
    a.add_callback([&] { first = ++order; });
    a_done.record(a);
    b.wait(a_done);
    b.add_callback([&] { second = ++order; });
    CHECK(!b.synchronize_for(5ms));
    gate.open = true;
    b.synchronize();
    EQUAL(first, 1);
    EQUAL(second, 2);
    gate.close(b);
    a.wait(b);
    CHECK(!a.synchronize_for(5ms));
    gate.open = true;
    a.synchronize();
}

TEST(elapsed_is_a_duration_and_pending_is_no_value) {
    Stream stream;
    Event start, end;
    Gate gate;
    start.record(stream);
    start.synchronize(); // so that it lies before the time that is waited
    gate.close(stream);
    end.record(stream);
    EQUAL(taskgpu::try_elapsed(start, end).status(), Status::not_ready);
    std::this_thread::sleep_for(3ms);
    gate.open = true;
    end.synchronize();
    CHECK(taskgpu::elapsed(start, end) >= 3ms);
    const Event untimed(taskgpu::EventOptions{false});
    untimed.record(stream);
    untimed.synchronize();
    CHECK(!taskgpu::try_elapsed(start, untimed));
}

TEST(signal_fd_counts_up_after_the_work) {
    Stream stream;
    const int fd = eventfd(0, EFD_NONBLOCK);
    std::uint64_t value = 0;
    Gate gate;
    gate.close(stream);
    stream.signal_fd(fd);
    CHECK(read(fd, &value, sizeof value) < 0);
    gate.open = true;
    Event event;
    event.record(stream);
    event.synchronize();
    event.signal_fd(fd);
    taskgpu::device_signal_fd(fd);
    for (std::uint64_t sum = 0; sum < 3; sum += read(fd, &value, sizeof value) > 0 ? value : 0) {
        std::this_thread::yield();
    }
    close(fd);
    EQUAL(stream.try_signal_fd(-1), Status::invalid_argument);
}

// -------------------------------------------------------------------------------------------------------------- callbacks

TEST(a_callable_is_called_once_and_released_once) {
    Stream stream;
    auto token = std::make_shared<int>(0);
    const std::weak_ptr<int> watch = token;
    Status seen = Status::internal;
    stream.add_callback([token = std::move(token), &seen](Status s) {
        ++*token;
        seen = s;
        if (*token != 1 || token.use_count() != 1) {
            std::abort();
        }
    });
    stream.synchronize();
    EQUAL(seen, Status::ok);
    CHECK(watch.expired());
}

TEST(a_callback_that_is_refused_is_released_and_not_called) {
    Stream stream;
    const StreamView gone = stream;
    stream = Stream();
    auto token = std::make_shared<int>(0);
    EQUAL(gone.try_add_callback([token] { std::abort(); }), Status::invalid_handle);
    EQUAL(token.use_count(), 1);
}

static int calls_of_plain_function = 0;
static void plain_function() { ++calls_of_plain_function; }

TEST(callbacks_take_functions_lvalues_move_only_callables_and_c) {
    Stream stream;
    int sum = 0;
    const auto lvalue = [&sum] { sum += 1; };
    stream.add_callback(lvalue);
    stream.add_callback([&sum, p = std::make_unique<int>(10)] { sum += *p; });
    stream.add_callback(plain_function);
    stream.add_callback([](void *data, tgpu_status) { *static_cast<int *>(data) += 100; }, &sum);
    Status inside = Status::ok;
    stream.add_callback([&inside] { inside = taskgpu::try_synchronize(); });
    stream.synchronize();
    EQUAL(sum, 111);
    EQUAL(calls_of_plain_function, 1);
    EQUAL(inside, Status::in_callback);
}

TEST(owners_may_end_inside_a_callback) {
    Stream stream;
    const std::uint64_t before = free_bytes();
    Buffer<int> buffer(1 << 20, stream);
    stream.add_callback([b = std::move(buffer), e = Event()] {});
    stream.synchronize();
    CHECK(comes_back_to(before));
}

// ----------------------------------------------------------------------------------------------------------------- memory

TEST(a_buffer_copies_fills_and_moves) {
    Stream stream;
    PinnedBuffer<int> in(1000), out(1000);
    std::iota(in.begin(), in.end(), 5);
    Buffer<int> a(1000, stream);
    a.copy_from(in.data(), 1000, stream);
    Buffer<int> b = std::move(a);
    CHECK(a.empty() && a.data() == nullptr);
    EQUAL(b.size(), 1000u);
    EQUAL(b.size_bytes(), 4000u);
    b.copy_to(out.data(), 1000, stream);
    stream.synchronize();
    CHECK(std::memcmp(in.data(), out.data(), 4000) == 0);
    b.fill_with(-3, stream);
    taskgpu::copy(out.data(), b.data() + 10, 500, stream);
    stream.synchronize();
    EQUAL(out[0], -3);
    EQUAL(out[499], -3);
    EQUAL(out[500], 505);
    EQUAL(a.try_copy_from(in.data(), 1, stream), Status::invalid_argument);
    EQUAL(taskgpu::pointer_info(b.data() + 3).size, 4000u);
    EQUAL(taskgpu::pointer_info(out.data()).kind, TGPU_POINTER_HOST_PINNED);
    int local = 0;
    EQUAL(taskgpu::try_pointer_info(&local).status(), Status::not_found);
}

struct Sixteen {
    std::uint64_t a, b;
};

TEST(fill_takes_values_of_up_to_16_bytes) {
    Stream stream;
    Buffer<Sixteen> s(100, stream);
    Buffer<char> c(7, stream);
    s.fill_with({1, 2}, stream);
    taskgpu::fill(c.data(), 'x', 7, stream);
    Sixteen last{};
    char text[8] = {};
    taskgpu::copy(&last, s.data() + 99, 1, stream);
    c.copy_to(text, 7, stream);
    stream.synchronize();
    CHECK(last.a == 1 && last.b == 2);
    EQUAL(std::string(text), "xxxxxxx");
}

TEST(a_buffer_gives_its_memory_back_whatever_became_of_its_stream) {
    Device(1).make_current();
    const std::uint64_t before = free_bytes();
    {
        Buffer<int> on_current(1 << 20);
        EQUAL(on_current.stream(), StreamView::current());
        CHECK(free_bytes() < before);
    }
    CHECK(comes_back_to(before));
    {
        Stream gone;
        Buffer<int> outlives(1 << 20, gone);
        gone = Stream();
    }
    CHECK(comes_back_to(before));
    {
        Buffer<int> from_a_task_that_ended;
        std::thread([&] {
            Device(1).make_current();
            from_a_task_that_ended = Buffer<int>(1 << 20);
        }).join();
        EQUAL(from_a_task_that_ended.try_free(), Status::invalid_handle);
        CHECK(!from_a_task_that_ended.empty());
        EQUAL(from_a_task_that_ended.size(), std::size_t{1} << 20);
    }
    CHECK(comes_back_to(before));
    {
        Buffer<int> freed(1 << 20), replaced(1 << 20), adopted;
        freed.free();
        CHECK(freed.empty());
        EQUAL(freed.try_free(), Status::ok);
        replaced = Buffer<int>(10);
        Buffer<int> other(1 << 20);
        const StreamView stream = other.stream();
        int *raw = other.release();
        adopted = Buffer<int>::adopt(raw, 1 << 20, stream);
    }
    CHECK(comes_back_to(before));
    Device(0).make_current();
}

TEST(a_buffer_is_freed_after_the_work_of_its_stream) {
    const auto kernel = Kernel::from_host<add_to_each>();
    const std::uint32_t n = 1 << 20;
    Stream stream, other;
    Gate gate;
    {
        Buffer<int> b(n, stream);
        b.fill_with(1, stream);
        gate.close(stream);
        kernel.launch(kernel.suggest(n).on(stream), b.data(), 1, n);
    }
    taskgpu::synchronize();
    // Were the block free already, one of these would be it, and the kernel would write into it.
    std::vector<Buffer<int>> others;
    for (int i = 0; i < 8; ++i) {
        others.emplace_back(n, other).fill_with(50, other);
    }
    other.synchronize();
    gate.open = true;
    stream.synchronize();
    PinnedBuffer<int> out(n);
    for (const Buffer<int> &c : others) {
        c.copy_to(out.data(), n, other);
        other.synchronize();
        CHECK(std::accumulate(out.begin(), out.end(), std::int64_t{0}) == std::int64_t{50} * n);
    }
}

TEST(empty_buffers_are_fine) {
    Buffer<int> none, zero(0);
    PinnedBuffer<int> pinned(0);
    CHECK(zero.data() == nullptr);
    zero.copy_from(nullptr, 0);
    zero.fill_with(1);
    zero.free();
    none = std::move(zero);
    EQUAL(none.try_free(), Status::ok);
    CHECK(pinned.begin() == pinned.end());
}

TEST(pinned_memory_is_freed_once) {
    const int *first = nullptr;
    const int *second = nullptr;
    {
        PinnedBuffer<int> a(100), b(200);
        first = a.data();
        second = b.data();
        a = std::move(b);
        EQUAL(a.data(), second);
        EQUAL(b.size(), 0u);
        EQUAL(taskgpu::try_pointer_info(first).status(), Status::not_found);
        EQUAL(taskgpu::pointer_info(second).size, 800u);
        a = PinnedBuffer<int>::adopt(a.release(), 200);
    }
    EQUAL(taskgpu::try_pointer_info(second).status(), Status::not_found);
}

TEST(sizes_that_overflow_are_refused) {
    EQUAL(Buffer<int>::try_create(SIZE_MAX).status(), Status::invalid_argument);
    EQUAL(PinnedBuffer<int>::try_create(SIZE_MAX / 2).status(), Status::invalid_argument);
    int x = 0;
    EQUAL(taskgpu::try_copy(&x, &x, SIZE_MAX / 2), Status::invalid_argument);
}

// ---------------------------------------------------------------------------------------------------------------- kernels

struct Mixed {
    char c;
    double d;
    std::uint16_t s[3];
};

static void store_mixed(const HostBlock &, Mixed m, std::uint8_t small, Mixed *out, std::uint8_t *small_out) noexcept {
    *out = m;
    *small_out = small;
}

static void count_call(const HostBlock &, std::atomic<int> *calls) { calls->fetch_add(1); }

static std::atomic<int> calls_without_arguments{0};
static void no_arguments(const HostBlock &b) {
    calls_without_arguments += static_cast<int>(b.block[0] * b.block[1] * b.block[2]);
}

extern "C" void scale_in_c(const tgpu_host_block *, void *const *args, void *data) {
    float *x = *static_cast<float *const *>(args[0]);
    *x = *x * *static_cast<const float *>(args[1]) + *static_cast<float *>(data);
}

TEST(typed_kernels_get_their_arguments_as_a_call_would) {
    Stream stream;
    Mixed out{};
    std::uint8_t small = 0;
    const auto kernel = Kernel::from_host<store_mixed>();
    static_assert(std::is_same_v<decltype(kernel), const TypedKernel<Mixed, std::uint8_t, Mixed *, std::uint8_t *>>);
    Mixed in{'q', 2.5, {1, 2, 3}};
    kernel.launch(LaunchConfig{}.on(stream), in, std::uint8_t{200}, &out, &small);
    in = Mixed{}; // a launch has copied it
    stream.synchronize();
    EQUAL(out.c, 'q');
    EQUAL(out.d, 2.5);
    EQUAL(out.s[2], 3);
    EQUAL(int{small}, 200);
}

TEST(a_launch_runs_every_block_once) {
    Stream stream;
    const auto kernel = Kernel::from_host<add_to_each>();
    const std::uint32_t n = 100003;
    Buffer<int> b(n, stream);
    std::vector<int> host(n);
    b.fill_with(1, stream);
    const LaunchConfig shape = kernel.suggest(n).on(stream);
    CHECK(std::uint64_t{shape.grid.x} * shape.block.x >= n);
    for (int i = 0; i < 10; ++i) {
        kernel.launch(shape, b.data(), i, n);
    }
    b.copy_to(host.data(), n, stream);
    stream.synchronize();
    int wrong = 0;
    for (int v : host) {
        wrong += v != 46;
    }
    EQUAL(wrong, 0);
    const auto counter = Kernel::from_host<count_call>();
    std::atomic<int> calls{0};
    counter.launch({taskgpu::Dim3(3, 5, 7), 1, 0, stream}, &calls);
    stream.synchronize();
    EQUAL(calls.load(), 105);
    CHECK(counter.info(Device(0)).max_threads_per_block > 0);
}

TEST(kernels_from_c_functions_and_without_arguments) {
    float x = 2, data = 0.5f;
    const auto kernel = Kernel::from_host<float *, float>(scale_in_c, &data);
    kernel.launch({}, &x, 3); // an int for a float: converted, as in a call
    taskgpu::synchronize();
    EQUAL(x, 6.5f);
    const Kernel &untyped = kernel;
    untyped.launch({}, &x, 2.0f);
    taskgpu::synchronize();
    EQUAL(x, 13.5f);
    const auto none = Kernel::from_host<no_arguments>();
    none.launch({1, taskgpu::Dim3(2, 3, 4)});
    taskgpu::synchronize();
    EQUAL(calls_without_arguments.load(), 24);
    const Kernel moved = Kernel::from_host<>(scale_in_c);
    CHECK(moved);
}

TEST(shapes_are_checked_with_their_limit) {
    const auto kernel = Kernel::from_host<no_arguments>();
    EQUAL(kernel.try_launch({0, 1}), Status::invalid_argument);
    EQUAL(kernel.try_launch({1, 4000000000u}), Status::invalid_argument);
    CHECK(has(taskgpu::Error::last(Status::invalid_argument).text(), "4000000000"));
    EQUAL(kernel.try_launch({1, 1, std::uint64_t{1} << 50}), Status::invalid_argument);
    EQUAL(Kernel::try_from_host<int>(nullptr).status(), Status::invalid_argument);
}

static void tell_device(const HostBlock &b, std::int32_t *device) { *device = b.device; }

TEST(a_launch_on_a_stream_of_another_device_runs_there) {
    Device(0).make_current();
    auto there = [] {
        const DeviceScope scope(Device(1));
        return Stream();
    }();
    std::int32_t device = -1;
    const auto kernel = Kernel::from_host<tell_device>();
    kernel.launch(LaunchConfig{}.on(there), &device);
    there.synchronize();
    EQUAL(device, 1);
    EQUAL(Device::current(), Device(0));
}

// ------------------------------------------------------------------------------------------------------------- sync, tasks

TEST(sync_answers_what_the_callable_answers_when_the_work_is_done) {
    Gate gate;
    std::atomic<bool> ran{false};
    const auto queue = [&] {
        ran = false;
        gate.close(StreamView{});
        StreamView{}.add_callback([&] { ran = true; });
        std::thread([&] {
            std::this_thread::sleep_for(5ms);
            gate.open = true;
        }).detach();
    };
    taskgpu::sync(queue);
    CHECK(ran.load());
    EQUAL(taskgpu::sync([&] { return queue(), 42; }), 42);
    CHECK(ran.load());
    int x = 0;
    int &ref = taskgpu::sync([&]() -> int & { return x; });
    CHECK(&ref == &x);
    const std::unique_ptr<int> p = taskgpu::sync([] { return std::make_unique<int>(9); });
    EQUAL(*p, 9);
    const Stream s = taskgpu::sync([] { return Stream(); });
    CHECK(s);
    EQUAL(taskgpu::try_sync([&] { return queue(), Status::ok; }), Status::ok);
    CHECK(ran.load());
    EQUAL(taskgpu::try_sync([&] { return queue(), Status::not_found; }), Status::not_found);
    CHECK(ran.load());
}

TEST(a_task_takes_its_state_from_thread_to_thread) {
    Device(0).make_current();
    Task task;
    StreamView stream;
    const TaskView own = TaskView::current();
    {
        const TaskScope scope(task);
        EQUAL(TaskView::current(), TaskView(task));
        Device(1).make_current();
        stream = StreamView::current();
        std::thread([&] { EQUAL(TaskScope::try_enter(task).status(), Status::task_busy); }).join();
    }
    EQUAL(TaskView::current(), own);
    EQUAL(Device::current(), Device(0));
    std::thread([&] {
        {
            const auto scope = TaskScope::try_enter(task);
            CHECK(scope);
            EQUAL(Device::current(), Device(1));
            EQUAL(StreamView::current(), stream);
        }
        EQUAL(Device::current(), Device(0));
        const TaskView before = taskgpu::swap_task(task);
        EQUAL(Device::current(), Device(1));
        EQUAL(taskgpu::swap_task(before), TaskView(task));
    }).join();
}

TEST(a_task_scope_falls_back_to_the_threads_own_task) {
    const TaskView own = TaskView::current();
    Task outer, inner;
    (void)taskgpu::swap_task(outer);
    {
        const TaskScope scope(inner);
        outer = Task(); // the one to return to is destroyed
    }
    EQUAL(TaskView::current(), own);
}

TEST(a_task_inherits_what_it_is_told_to) {
    Device(1).make_current();
    taskgpu::set_wait_policy(taskgpu::WaitPolicy::block);
    Task heir(taskgpu::TaskOptions{true, true, true}), other;
    Device(0).make_current();
    taskgpu::set_wait_policy(taskgpu::WaitPolicy::automatic);
    {
        const TaskScope scope(heir);
        EQUAL(Device::current(), Device(1));
        CHECK(taskgpu::wait_policy() == taskgpu::WaitPolicy::block);
    }
    const TaskScope scope(other);
    EQUAL(Device::current(), Device(0));
    CHECK(taskgpu::wait_policy() == taskgpu::WaitPolicy::automatic);
}

TEST(a_task_may_start_after_its_creators_work) {
    Device(0).make_current();
    Gate gate;
    gate.close(StreamView{});
    Task ordered(taskgpu::TaskOptions{false, false, true}), free;
    {
        const TaskScope scope(free);
        taskgpu::synchronize(); // does not wait for the gate, or this would hang
    }
    const TaskScope scope(ordered);
    StreamView{}.add_callback([] {});
    CHECK(!StreamView{}.synchronize_for(5ms));
    gate.open = true;
    StreamView{}.synchronize();
}

TEST(each_thread_has_a_stream_of_its_own) {
    const auto mine = current_info().id;
    std::uint64_t theirs = 0;
    std::thread([&] { theirs = current_info().id; }).join();
    CHECK(mine != theirs);
    CHECK(StreamView{}.info().id == mine);
    EQUAL(current_info().kind, TGPU_STREAM_LEASED);
}

int main(int argc, char **argv) {
    setenv("TASKGPU_BACKENDS", "host", 1);
    setenv("TASKGPU_HOST_DEVICES", "2", 1);
    setenv("TASKGPU_HOST_THREADS", "3", 1); // a closed gate holds one, also where there is one core
#if !TASKGPU_HPP_EXCEPTIONS
    const check::Test first{"throwing_forms_abort_without_exceptions", throwing_forms_abort_without_exceptions};
    check::tests().insert(check::tests().begin(), first);
#endif
    return check::run(argc, argv);
}
