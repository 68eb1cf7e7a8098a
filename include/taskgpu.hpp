// taskgpu.hpp: C++17 over taskgpu.h. Header-only; link libtaskgpu as for C.
// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Owners and views
//   Stream, Event, Task, Module, Kernel, Buffer<T> and PinnedBuffer<T> own what they hold: they move, do not copy, and
//   destroy it at their end. StreamView, EventView, TaskView and Device are one word each, copied freely, and own nothing;
//   an owner converts to its view. An owner that was moved from holds nothing, and calls on it answer
//   Status::invalid_handle (they never fall back to the current stream). StreamView{} is the current stream of the calling
//   task's current device, at the moment of each call.
//
// Errors: each operation has two forms
//   f()      answers the value and throws taskgpu::Error on failure.
//   try_f()  is noexcept and answers Status, or Result<T> (a Status or a value) where there is a value.
//   A constructor that can fail has its try_ form as a static function: Stream::try_create(), DeviceScope::try_enter().
//   After a try_ form failed, Error::last(status) gives the details, as long as the task has had no other failure.
//   Answers that are no failures (not done yet, time is over) are `false`, never an exception.
//   Compiled with -fno-exceptions, f() prints the error to stderr and aborts where it would throw; try_f() is the same.
//   Objects compiled with and without exceptions may be linked together.
//
// Destructors never throw, never block and never change the task's last error. One exception: a scope destroyed out of
//   order (see DeviceScope) restores nothing, and that failure is recorded.
//
// Cost: every function is inline and makes the one C call it is named after. What allocates or makes a second call says so.
//
// Threads: every call may be made from any thread; one owner must not be moved or destroyed while another thread uses it.
//   Device, stream, scopes and last error belong to the calling task (see taskgpu.h), not to these objects.
//
// All of this mixes with the C interface: handle() gives the C handle, adopt() takes one over, release() gives it up.

#ifndef TASKGPU_HPP
#define TASKGPU_HPP

#include "taskgpu.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

static_assert(TGPU_ABI_VERSION == 1, "taskgpu.hpp and taskgpu.h are of different versions");

#if defined(__cpp_exceptions) || defined(__EXCEPTIONS) || defined(_CPPUNWIND)
#define TASKGPU_HPP_EXCEPTIONS 1
#else
#define TASKGPU_HPP_EXCEPTIONS 0
#endif

#if defined(__GNUC__)
#define TASKGPU_HPP_COLD __attribute__((cold, noinline))
#else
#define TASKGPU_HPP_COLD
#endif

namespace taskgpu {
// Two names for the linker, so that objects with and without exceptions do not share the functions that differ.
#if TASKGPU_HPP_EXCEPTIONS
inline namespace throwing {
#else
inline namespace aborting {
#endif

// ---------------------------------------------------------------------------------------------------------------- errors

// The answer of a call. An open set: a newer library may answer values that have no name here.
enum class [[nodiscard]] Status : tgpu_status {
    ok = TGPU_OK,
    not_ready = TGPU_NOT_READY,
    invalid_argument = TGPU_ERROR_INVALID_ARGUMENT,
    invalid_handle = TGPU_ERROR_INVALID_HANDLE,
    invalid_device = TGPU_ERROR_INVALID_DEVICE,
    no_device = TGPU_ERROR_NO_DEVICE,
    out_of_memory = TGPU_ERROR_OUT_OF_MEMORY,
    not_supported = TGPU_ERROR_NOT_SUPPORTED,
    not_found = TGPU_ERROR_NOT_FOUND,
    not_permitted = TGPU_ERROR_NOT_PERMITTED,
    timeout = TGPU_ERROR_TIMEOUT,
    compile_failed = TGPU_ERROR_COMPILE_FAILED,
    invalid_image = TGPU_ERROR_INVALID_IMAGE,
    launch_failed = TGPU_ERROR_LAUNCH_FAILED,
    device_lost = TGPU_ERROR_DEVICE_LOST,
    capturing = TGPU_ERROR_CAPTURING,
    in_callback = TGPU_ERROR_IN_CALLBACK,
    task_busy = TGPU_ERROR_TASK_BUSY,
    scope_mismatch = TGPU_ERROR_SCOPE_MISMATCH,
    forked = TGPU_ERROR_FORKED,
    environment = TGPU_ERROR_ENVIRONMENT,
    backend = TGPU_ERROR_BACKEND,
    internal = TGPU_ERROR_INTERNAL
};

// "TGPU_ERROR_INVALID_DEVICE"; never null.
inline const char *name(Status status) noexcept { return tgpu_status_name(static_cast<tgpu_status>(status)); }

// One English sentence; never null.
inline const char *message(Status status) noexcept { return tgpu_status_message(static_cast<tgpu_status>(status)); }

// A failed call: its status, and what the library and the vendor said about it.
class Error : public std::runtime_error {
public:
    // A failure with a text of the caller's own.
    Error(Status status, std::string_view text) : Error(status, no_detail(status), text) {}

    // What the calling task's last error says about `status`. If the last error is of another status (answers, destroy and
    // free calls leave none behind), only the status is told. Allocates.
    TASKGPU_HPP_COLD static Error last(Status status) {
        tgpu_error_info info = no_detail(status);
        if (tgpu_error_info_get(&info) != TGPU_OK || info.status != static_cast<tgpu_status>(status)) {
            return Error(status, message(status));
        }
        std::size_t needed = 0;
        std::string text = info.text;
        if (tgpu_error_text(nullptr, 0, &needed) == TGPU_OK && needed > text.size() + 1) {
            text.assign(needed, '\0');
            if (tgpu_error_text(&text[0], text.size(), &needed) == TGPU_OK) {
                text.resize(std::char_traits<char>::length(text.c_str()));
            } else {
                text = info.text;
            }
        }
        return Error(status, info, text);
    }

    Status status() const noexcept { return static_cast<Status>(detail_.status); }
    // The whole text, compiler logs included. what() is the status name, the place and this text.
    std::string_view text() const noexcept { return std::string_view(what()).substr(text_at_); }
    // "hip", "cuda", "host", or "" where no vendor was asked.
    const char *backend() const noexcept { return detail_.backend; }
    // The vendor's code, its name and the vendor function that answered it; 0 and "" where no vendor was asked.
    std::int64_t native_code() const noexcept { return detail_.native_code; }
    const char *native_name() const noexcept { return detail_.native_name; }
    const char *function() const noexcept { return detail_.function; }
    // -1: no device concerned.
    std::int32_t device() const noexcept { return detail_.device; }
    // 0: no stream concerned.
    std::uint64_t stream_id() const noexcept { return detail_.stream_id; }
    // All of it as C gives it (its text is cut to the array).
    const tgpu_error_info &detail() const noexcept { return detail_; }

private:
    Error(Status status, const tgpu_error_info &detail, std::string_view text)
        : std::runtime_error(prefix(status, detail).append(text)), detail_(detail),
          text_at_(std::string_view(what()).size() - text.size()) {}

    static tgpu_error_info no_detail(Status status) noexcept {
        tgpu_error_info info{};
        info.struct_size = sizeof info;
        info.status = static_cast<tgpu_status>(status);
        info.device = -1;
        return info;
    }

    static std::string prefix(Status status, const tgpu_error_info &detail) {
        std::string out = name(status);
        if (detail.device >= 0) {
            out += " on device " + std::to_string(detail.device);
        }
        if (detail.stream_id != 0) {
            out += ", stream " + std::to_string(detail.stream_id);
        }
        return out += ": ";
    }

    tgpu_error_info detail_;
    std::size_t text_at_;
};

namespace detail {

[[noreturn]] TASKGPU_HPP_COLD inline void raise(const Error &error) {
#if TASKGPU_HPP_EXCEPTIONS
    throw error;
#else
    std::fprintf(stderr, "taskgpu: %s\n", error.what());
    std::abort();
#endif
}

[[noreturn]] TASKGPU_HPP_COLD inline void fail(Status status) { raise(Error::last(status)); }

// For destroy and free calls, which leave the task's last error alone: it would tell of another failure.
[[noreturn]] TASKGPU_HPP_COLD inline void fail_unrecorded(Status status) { raise(Error(status, message(status))); }

[[noreturn]] TASKGPU_HPP_COLD inline void fail_count(const char *what, std::size_t count, std::size_t limit) {
    raise(Error(Status::invalid_argument,
                std::string(what) + ": " + std::to_string(count) + " elements, the limit is " + std::to_string(limit)));
}

inline void check(Status status) {
    if (status != Status::ok) {
        fail(status);
    }
}

constexpr Status to_status(tgpu_status status) noexcept { return static_cast<Status>(status); }

// A value that no handle has: what a moved-from owner holds, so that a call on it is answered, not misdirected.
template <class Handle> Handle no_handle() noexcept { return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(1)); }

// Rounds up: a wait never ends early. Negative and NaN: 0. Longer than 584 years: as long as can be.
template <class Rep, class Period> std::uint64_t nanoseconds(std::chrono::duration<Rep, Period> time) noexcept {
    const long double ns = std::chrono::duration<long double, std::nano>(time).count();
    if (!(ns > 0)) {
        return 0;
    }
    if (ns >= 18446744073709551615.0L) {
        return UINT64_MAX;
    }
    const std::uint64_t whole = static_cast<std::uint64_t>(ns);
    return static_cast<long double>(whole) < ns ? whole + 1 : whole;
}

} // namespace detail

// A value, or the status that says why there is none.
template <class T> class [[nodiscard]] Result {
public:
    Result(Status failure) noexcept : status_(failure) {}
    template <class... A>
    explicit Result(std::in_place_t, A &&...a) : status_(Status::ok), value_(std::in_place, std::forward<A>(a)...) {}

    explicit operator bool() const noexcept { return value_.has_value(); }
    Status status() const noexcept { return status_; }

    // Only where there is a value.
    T &operator*() &noexcept { return *value_; }
    const T &operator*() const &noexcept { return *value_; }
    T &&operator*() &&noexcept { return *std::move(value_); }
    T *operator->() noexcept { return &*value_; }
    const T *operator->() const noexcept { return &*value_; }

    // The value, else throws Error::last(status()).
    T &value() & {
        need();
        return *value_;
    }
    const T &value() const & {
        need();
        return *value_;
    }
    T &&value() && {
        need();
        return *std::move(value_);
    }

private:
    void need() const {
        if (!value_) {
            detail::fail(status_);
        }
    }

    Status status_;
    std::optional<T> value_;
};

namespace detail {
template <class T> Result<T> result(tgpu_status status, T value) noexcept {
    if (status != TGPU_OK) {
        return to_status(status);
    }
    return Result<T>(std::in_place, std::move(value));
}

// A wait that may run out of time, or a question whose "not yet" is an answer.
inline Result<bool> answer(tgpu_status status, tgpu_status no) noexcept {
    if (status == no) {
        return Result<bool>(std::in_place, false);
    }
    return result(status, true);
}
} // namespace detail

// --------------------------------------------------------------------------------------------------------------- devices

using DeviceInfo = tgpu_device_info;
using StreamInfo = tgpu_stream_info;
using KernelInfo = tgpu_kernel_info;
using PointerInfo = tgpu_pointer_info;

struct MemoryInfo {
    std::uint64_t free_bytes;
    std::uint64_t total_bytes;
};

// An index into the process's device list.
class Device {
public:
    constexpr Device() noexcept = default;
    constexpr explicit Device(tgpu_device index) noexcept : index_(index) {}

    // The calling task's current device.
    static Result<Device> try_current() noexcept {
        tgpu_device d = 0;
        const tgpu_status s = tgpu_device_get(&d);
        return detail::result(s, Device(d));
    }
    static Device current() { return try_current().value(); }

    constexpr tgpu_device index() const noexcept { return index_; }

    // Makes it the calling task's current device, until changed. DeviceScope does so for a block.
    Status try_make_current() const noexcept { return detail::to_status(tgpu_device_set(index_)); }
    void make_current() const { detail::check(try_make_current()); }

    // Makes it the device that tasks of the process start with from now on.
    Status try_make_default() const noexcept { return detail::to_status(tgpu_device_default_set(index_)); }
    void make_default() const { detail::check(try_make_default()); }

    Result<DeviceInfo> try_info() const noexcept {
        DeviceInfo out{};
        out.struct_size = sizeof out;
        const tgpu_status s = tgpu_device_info_get(index_, &out);
        return detail::result(s, out);
    }
    DeviceInfo info() const { return try_info().value(); }

    Result<MemoryInfo> try_memory() const noexcept {
        MemoryInfo out{};
        const tgpu_status s = tgpu_device_memory(index_, &out.free_bytes, &out.total_bytes);
        return detail::result(s, out);
    }
    MemoryInfo memory() const { return try_memory().value(); }

    // Gives unused pool memory above `keep_bytes` back to the device.
    Status try_trim_memory(std::uint64_t keep_bytes = 0) const noexcept {
        return detail::to_status(tgpu_memory_trim(index_, keep_bytes));
    }
    void trim_memory(std::uint64_t keep_bytes = 0) const { detail::check(try_trim_memory(keep_bytes)); }

    // Whether kernels on this device can address memory of `peer`.
    Result<bool> try_can_access(Device peer) const noexcept {
        std::int32_t out = 0;
        const tgpu_status s = tgpu_device_can_access_peer(index_, peer.index_, &out);
        return detail::result(s, out != 0);
    }
    bool can_access(Device peer) const { return try_can_access(peer).value(); }

    Status try_enable_access(Device peer) const noexcept {
        return detail::to_status(tgpu_device_enable_peer(index_, peer.index_));
    }
    void enable_access(Device peer) const { detail::check(try_enable_access(peer)); }

    // The vendor's number of the device.
    Result<std::uint64_t> try_native() const noexcept {
        std::uint64_t out = 0;
        const tgpu_status s = tgpu_device_native(index_, &out);
        return detail::result(s, out);
    }
    std::uint64_t native() const { return try_native().value(); }

    friend constexpr bool operator==(Device a, Device b) noexcept { return a.index_ == b.index_; }
    friend constexpr bool operator!=(Device a, Device b) noexcept { return a.index_ != b.index_; }

private:
    tgpu_device index_ = 0;
};

// The process's devices. Not a container: an iterator is an index.
class DeviceRange {
public:
    class iterator {
    public:
        using value_type = Device;
        using difference_type = std::ptrdiff_t;
        using pointer = const Device *;
        using reference = Device;
        using iterator_category = std::input_iterator_tag;
        constexpr iterator() noexcept = default;
        constexpr explicit iterator(tgpu_device index) noexcept : index_(index) {}
        constexpr Device operator*() const noexcept { return Device(index_); }
        constexpr iterator &operator++() noexcept {
            ++index_;
            return *this;
        }
        constexpr iterator operator++(int) noexcept { return iterator(index_++); }
        friend constexpr bool operator==(iterator a, iterator b) noexcept { return a.index_ == b.index_; }
        friend constexpr bool operator!=(iterator a, iterator b) noexcept { return a.index_ != b.index_; }

    private:
        tgpu_device index_ = 0;
    };

    constexpr explicit DeviceRange(std::int32_t count = 0) noexcept : count_(count) {}
    constexpr iterator begin() const noexcept { return iterator(0); }
    constexpr iterator end() const noexcept { return iterator(count_); }
    constexpr std::size_t size() const noexcept { return static_cast<std::size_t>(count_); }
    constexpr bool empty() const noexcept { return count_ == 0; }
    constexpr Device operator[](std::size_t i) const noexcept { return Device(static_cast<tgpu_device>(i)); }

private:
    std::int32_t count_;
};

// Counting creates no context on any device.
inline Result<DeviceRange> try_devices() noexcept {
    std::int32_t count = 0;
    const tgpu_status s = tgpu_device_count(&count);
    return detail::result(s, DeviceRange(count));
}
inline DeviceRange devices() { return try_devices().value(); }

// Waits for everything on the task's current device, other tasks' work included.
inline Status try_device_synchronize() noexcept { return detail::to_status(tgpu_device_synchronize()); }
inline void device_synchronize() { detail::check(try_device_synchronize()); }

// Adds 1 to a descriptor after what is queued now on our streams of the current device.
inline Status try_device_signal_fd(int fd) noexcept { return detail::to_status(tgpu_device_signal_fd(fd)); }
inline void device_signal_fd(int fd) { detail::check(try_device_signal_fd(fd)); }

// ------------------------------------------------------------------------------------------------------ events, streams

class EventView;
class StreamView;

enum class Priority : std::int32_t {
    normal = TGPU_PRIORITY_NORMAL,
    low = TGPU_PRIORITY_LOW,
    high = TGPU_PRIORITY_HIGH
};

struct StreamOptions {
    Priority priority = Priority::normal;
    bool legacy_order = false; // ordered with the vendor's legacy default stream
};

struct EventOptions {
    bool timing = true; // without: elapsed() is not possible, and waiting may be cheaper
};

namespace detail {

tgpu_stream raw(StreamView stream) noexcept;
tgpu_event raw(EventView event) noexcept;

// What a callable becomes on its way through C: a box that runs once and is then gone.
template <class F> struct CallbackBox {
    F call;

    // noexcept: an exception must not pass through the library; it ends the program here, with its name.
    static void run(void *data, tgpu_status status) noexcept {
        std::unique_ptr<CallbackBox> self(static_cast<CallbackBox *>(data));
        if constexpr (std::is_invocable_v<F &, Status>) {
            self->call(to_status(status));
        } else {
            self->call();
        }
    }
};

// What EventView and Event can do.
template <class Self> class EventCalls {
public:
    // Marks the work queued on `stream` so far; replaces an earlier record.
    Status try_record(StreamView stream) const noexcept;
    Status try_record() const noexcept { return to_status(tgpu_event_record(h(), nullptr)); }
    void record(StreamView stream) const;
    void record() const { check(try_record()); }

    // True once the recorded work is done, and for an event never recorded.
    Result<bool> try_done() const noexcept { return answer(tgpu_event_query(h()), TGPU_NOT_READY); }
    bool done() const { return try_done().value(); }

    Status try_synchronize() const noexcept { return to_status(tgpu_event_synchronize(h())); }
    void synchronize() const { check(try_synchronize()); }

    // False if the time was over first; the work goes on.
    template <class Rep, class Period>
    Result<bool> try_synchronize_for(std::chrono::duration<Rep, Period> time) const noexcept {
        return answer(tgpu_event_synchronize_timeout(h(), nanoseconds(time)), TGPU_ERROR_TIMEOUT);
    }
    template <class Rep, class Period> bool synchronize_for(std::chrono::duration<Rep, Period> time) const {
        return try_synchronize_for(time).value();
    }

    // Adds 1 to an eventfd (or writes 8 bytes to a pipe) once the recorded work is done, or has failed.
    Status try_signal_fd(int fd) const noexcept { return to_status(tgpu_event_signal_fd(h(), fd)); }
    void signal_fd(int fd) const { check(try_signal_fd(fd)); }

    Result<void *> try_native() const noexcept {
        void *out = nullptr;
        const tgpu_status s = tgpu_event_native(h(), &out);
        return result(s, out);
    }
    void *native() const { return try_native().value(); }

private:
    tgpu_event h() const noexcept { return static_cast<const Self *>(this)->handle(); }
};

// What StreamView and Stream can do.
template <class Self> class StreamCalls {
public:
    // Makes it the current stream of its device, and that device the task's current one, until changed.
    Status try_make_current() const noexcept { return to_status(tgpu_stream_set(h())); }
    void make_current() const { check(try_make_current()); }

    // True when everything queued so far is done.
    Result<bool> try_idle() const noexcept { return answer(tgpu_stream_query(h()), TGPU_NOT_READY); }
    bool idle() const { return try_idle().value(); }

    Status try_synchronize() const noexcept { return to_status(tgpu_stream_synchronize(h())); }
    void synchronize() const { check(try_synchronize()); }

    // False if the time was over first; the work goes on.
    template <class Rep, class Period>
    Result<bool> try_synchronize_for(std::chrono::duration<Rep, Period> time) const noexcept {
        return answer(tgpu_stream_synchronize_timeout(h(), nanoseconds(time)), TGPU_ERROR_TIMEOUT);
    }
    template <class Rep, class Period> bool synchronize_for(std::chrono::duration<Rep, Period> time) const {
        return try_synchronize_for(time).value();
    }

    // Later work on this stream waits for what the event has recorded, or for what is queued on `other` now.
    Status try_wait(EventView event) const noexcept;
    Status try_wait(StreamView other) const noexcept;
    void wait(EventView event) const;
    void wait(StreamView other) const;

    Result<StreamInfo> try_info() const noexcept {
        StreamInfo out{};
        out.struct_size = sizeof out;
        const tgpu_status s = tgpu_stream_info_get(h(), &out);
        return result(s, out);
    }
    StreamInfo info() const { return try_info().value(); }

    Result<void *> try_native() const noexcept {
        void *out = nullptr;
        const tgpu_status s = tgpu_stream_native(h(), &out);
        return result(s, out);
    }
    void *native() const { return try_native().value(); }

    // Calls `f(Status)` or `f()` exactly once after the work queued so far, also when the device fails, on a thread of
    // the library. It must not block or throw, and calls that need the runtime answer Status::in_callback inside it.
    // Later work on the stream waits for it. Allocates a box for the callable and frees it after the call; if the call
    // here fails, `f` is destroyed and never called. A C function with a pointer goes through without a box.
    template <class F> Status try_add_callback(F &&f) const noexcept(std::is_nothrow_constructible_v<std::decay_t<F>, F>) {
        using Box = CallbackBox<std::decay_t<F>>;
        static_assert(std::is_invocable_v<std::decay_t<F> &, Status> || std::is_invocable_v<std::decay_t<F> &>,
                      "a callback is called as f(taskgpu::Status) or f()");
        std::unique_ptr<Box> box(new (std::nothrow) Box{std::forward<F>(f)});
        if (!box) {
            return Status::out_of_memory;
        }
        const tgpu_status s = tgpu_stream_add_callback(h(), &Box::run, box.get());
        if (s == TGPU_OK) {
            box.release(); // it runs, or has run, and frees itself
        }
        return to_status(s);
    }
    template <class F> void add_callback(F &&f) const { check(try_add_callback(std::forward<F>(f))); }
    Status try_add_callback(tgpu_callback f, void *data) const noexcept {
        return to_status(tgpu_stream_add_callback(h(), f, data));
    }
    void add_callback(tgpu_callback f, void *data) const { check(try_add_callback(f, data)); }

    // Adds 1 to an eventfd (or writes 8 bytes to a pipe) once the work queued so far is done, or has failed.
    Status try_signal_fd(int fd) const noexcept { return to_status(tgpu_stream_signal_fd(h(), fd)); }
    void signal_fd(int fd) const { check(try_signal_fd(fd)); }

private:
    tgpu_stream h() const noexcept { return static_cast<const Self *>(this)->handle(); }
};

} // namespace detail

class EventView : public detail::EventCalls<EventView> {
public:
    constexpr explicit EventView(tgpu_event handle) noexcept : handle_(handle) {}
    constexpr tgpu_event handle() const noexcept { return handle_; }
    friend constexpr bool operator==(EventView a, EventView b) noexcept { return a.handle_ == b.handle_; }
    friend constexpr bool operator!=(EventView a, EventView b) noexcept { return a.handle_ != b.handle_; }

private:
    tgpu_event handle_;
};

class StreamView : public detail::StreamCalls<StreamView> {
public:
    // The current stream of the calling task's current device, at the moment of each call.
    constexpr StreamView() noexcept = default;
    constexpr explicit StreamView(tgpu_stream handle) noexcept : handle_(handle) {}

    // The stream that is current now, by name: stays the same stream when the task switches.
    static Result<StreamView> try_current() noexcept {
        tgpu_stream out = nullptr;
        const tgpu_status s = tgpu_stream_get(&out);
        return detail::result(s, StreamView(out));
    }
    static StreamView current() { return try_current().value(); }

    // The task goes back to its own leased stream on the current device. (What StreamView{}.make_current() does.)
    static Status try_reset_current() noexcept { return detail::to_status(tgpu_stream_set(nullptr)); }
    static void reset_current() { detail::check(try_reset_current()); }

    constexpr tgpu_stream handle() const noexcept { return handle_; }
    friend constexpr bool operator==(StreamView a, StreamView b) noexcept { return a.handle_ == b.handle_; }
    friend constexpr bool operator!=(StreamView a, StreamView b) noexcept { return a.handle_ != b.handle_; }

private:
    tgpu_stream handle_ = nullptr;
};

namespace detail {

inline tgpu_stream raw(StreamView stream) noexcept { return stream.handle(); }
inline tgpu_event raw(EventView event) noexcept { return event.handle(); }

template <class Self> Status EventCalls<Self>::try_record(StreamView stream) const noexcept {
    return to_status(tgpu_event_record(h(), raw(stream)));
}
template <class Self> void EventCalls<Self>::record(StreamView stream) const { check(try_record(stream)); }
template <class Self> Status StreamCalls<Self>::try_wait(EventView event) const noexcept {
    return to_status(tgpu_stream_wait_event(h(), raw(event)));
}
template <class Self> Status StreamCalls<Self>::try_wait(StreamView other) const noexcept {
    return to_status(tgpu_stream_wait_stream(h(), raw(other)));
}
template <class Self> void StreamCalls<Self>::wait(EventView event) const { check(try_wait(event)); }
template <class Self> void StreamCalls<Self>::wait(StreamView other) const { check(try_wait(other)); }

// One handle, destroyed once. `Destroy` is the C function.
template <class Handle, tgpu_status (*Destroy)(Handle)> class Owned {
public:
    explicit Owned(Handle handle) noexcept : handle_(handle) {}
    Owned(Owned &&other) noexcept : handle_(other.release()) {}
    Owned &operator=(Owned &&other) noexcept {
        if (this != &other) {
            destroy();
            handle_ = other.release();
        }
        return *this;
    }
    ~Owned() { destroy(); }

    Handle get() const noexcept { return handle_; }
    bool holds() const noexcept { return handle_ != no_handle<Handle>(); }
    Handle release() noexcept { return std::exchange(handle_, no_handle<Handle>()); }

private:
    void destroy() noexcept {
        if (holds()) {
            // A handle that somebody destroyed behind our back is answered, and there is nobody to tell.
            (void)Destroy(handle_);
        }
    }
    Handle handle_;
};

} // namespace detail

// Owns an event.
class Event : public detail::EventCalls<Event> {
public:
    static Result<Event> try_create(EventOptions options = {}) noexcept {
        tgpu_event_options o{};
        o.struct_size = sizeof o;
        o.flags = options.timing ? 0u : static_cast<std::uint32_t>(TGPU_EVENT_DISABLE_TIMING);
        tgpu_event out = nullptr;
        const Status s = detail::to_status(tgpu_event_create(&o, &out));
        if (s != Status::ok) {
            return s;
        }
        return Result<Event>(std::in_place, adopt(out));
    }
    explicit Event(EventOptions options = {}) : Event(try_create(options).value()) {}

    static Event adopt(tgpu_event handle) noexcept { return Event(handle); }
    tgpu_event release() noexcept { return owned_.release(); }
    tgpu_event handle() const noexcept { return owned_.get(); }
    explicit operator bool() const noexcept { return owned_.holds(); }
    operator EventView() const noexcept { return EventView(handle()); }

private:
    explicit Event(tgpu_event handle) noexcept : owned_(handle) {}
    detail::Owned<tgpu_event, tgpu_event_destroy> owned_;
};

// Time between two recorded events of one device. Not done yet: try_elapsed() answers Status::not_ready, elapsed() throws it.
inline Result<std::chrono::duration<double>> try_elapsed(EventView start, EventView end) noexcept {
    double seconds = 0;
    const tgpu_status s = tgpu_event_elapsed(start.handle(), end.handle(), &seconds);
    return detail::result(s, std::chrono::duration<double>(seconds));
}
inline std::chrono::duration<double> elapsed(EventView start, EventView end) { return try_elapsed(start, end).value(); }

// Owns a stream. Destroyed: work already queued finishes.
class Stream : public detail::StreamCalls<Stream> {
public:
    // On the task's current device.
    static Result<Stream> try_create(StreamOptions options = {}) noexcept {
        tgpu_stream_options o{};
        o.struct_size = sizeof o;
        o.priority = static_cast<std::int32_t>(options.priority);
        o.flags = options.legacy_order ? static_cast<std::uint32_t>(TGPU_STREAM_LEGACY_ORDER) : 0u;
        tgpu_stream out = nullptr;
        const Status s = detail::to_status(tgpu_stream_create(&o, &out));
        if (s != Status::ok) {
            return s;
        }
        return Result<Stream>(std::in_place, adopt(out));
    }
    explicit Stream(StreamOptions options = {}) : Stream(try_create(options).value()) {}
    explicit Stream(Priority priority) : Stream(StreamOptions{priority, false}) {}

    // Wraps a vendor's stream, which stays the vendor's: destroying the wrapper only forgets it.
    static Result<Stream> try_import(Device device, void *native) noexcept {
        tgpu_stream out = nullptr;
        const Status s = detail::to_status(tgpu_stream_import(device.index(), native, &out));
        if (s != Status::ok) {
            return s;
        }
        return Result<Stream>(std::in_place, adopt(out));
    }
    static Stream import_native(Device device, void *native) { return try_import(device, native).value(); }

    static Stream adopt(tgpu_stream handle) noexcept { return Stream(handle); }
    tgpu_stream release() noexcept { return owned_.release(); }
    tgpu_stream handle() const noexcept { return owned_.get(); }
    explicit operator bool() const noexcept { return owned_.holds(); }
    operator StreamView() const noexcept { return StreamView(handle()); }

private:
    explicit Stream(tgpu_stream handle) noexcept : owned_(handle) {}
    detail::Owned<tgpu_stream, tgpu_stream_destroy> owned_;
};

// ---------------------------------------------------------------------------------------------------------- synchronizing

// Waits for the task's current stream.
inline Status try_synchronize() noexcept { return detail::to_status(tgpu_synchronize()); }
inline void synchronize() { detail::check(try_synchronize()); }

// Calls `f` and then waits for the stream that is current after it, also when `f` throws (its exception goes on; a failure of
// that wait is then in the task's last error only). Work that `f` put on other streams is not waited for.
// Answers what `f` answers.
template <class F> decltype(auto) sync(F &&f) {
    using R = std::invoke_result_t<F>;
    const auto run = [&f]() -> R {
#if TASKGPU_HPP_EXCEPTIONS
        try {
            return std::forward<F>(f)();
        } catch (...) {
            (void)tgpu_synchronize();
            throw;
        }
#else
        return std::forward<F>(f)();
#endif
    };
    if constexpr (std::is_void_v<R>) {
        run();
        synchronize();
    } else if constexpr (std::is_reference_v<R>) {
        R out = run();
        synchronize();
        return static_cast<R>(out);
    } else {
        R out = run();
        synchronize();
        return out;
    }
}

// The same for callables that answer Status and do not throw: the first failure of the two. It waits in any case.
template <class F> Status try_sync(F &&f) noexcept {
    static_assert(std::is_same_v<std::invoke_result_t<F>, Status>, "try_sync takes a callable that answers taskgpu::Status");
    const Status first = std::forward<F>(f)();
    const Status second = try_synchronize();
    return first != Status::ok ? first : second;
}

// How the calling task waits.
enum class WaitPolicy : std::int32_t {
    automatic = TGPU_WAIT_AUTO, // polls briefly, then sleeps
    spin = TGPU_WAIT_SPIN,
    block = TGPU_WAIT_BLOCK
};

inline Status try_set_wait_policy(WaitPolicy policy) noexcept {
    return detail::to_status(tgpu_wait_policy_set(static_cast<std::int32_t>(policy)));
}
inline void set_wait_policy(WaitPolicy policy) { detail::check(try_set_wait_policy(policy)); }
inline Result<WaitPolicy> try_wait_policy() noexcept {
    std::int32_t out = 0;
    const tgpu_status s = tgpu_wait_policy_get(&out);
    return detail::result(s, static_cast<WaitPolicy>(out));
}
inline WaitPolicy wait_policy() { return try_wait_policy().value(); }

// ----------------------------------------------------------------------------------------------------------------- scopes

namespace detail {

// A scope of the calling task, left at the end of the block. Neither copied nor moved: scopes nest like the blocks do.
class Scope {
public:
    Scope(const Scope &) = delete;
    Scope &operator=(const Scope &) = delete;
    ~Scope() {
        if (inside_) {
            (void)tgpu_scope_leave(scope_);
        }
    }

    // Leaves now instead of at the end of the block. Out of order, or in another task: Status::scope_mismatch, and nothing
    // is restored; the end of the block tries again.
    Status try_leave() noexcept {
        if (!inside_) {
            return Status::ok;
        }
        const Status s = to_status(tgpu_scope_leave(scope_));
        inside_ = s != Status::ok;
        return s;
    }
    void leave() { check(try_leave()); }

protected:
    Scope() noexcept = default;
    explicit Scope(const tgpu_scope &scope) noexcept : scope_(scope), inside_(true) {}
    tgpu_scope scope_{};
    bool inside_ = false;
};

} // namespace detail

// Makes a device current for the calling task until the end of the block, then restores device and stream exactly.
class DeviceScope : public detail::Scope {
    struct Key {
        explicit Key() = default;
    };

public:
    explicit DeviceScope(Device device) {
        detail::check(detail::to_status(tgpu_scope_enter_device(device.index(), &scope_)));
        inside_ = true;
    }
    static Result<DeviceScope> try_enter(Device device) noexcept {
        tgpu_scope scope{};
        const Status s = detail::to_status(tgpu_scope_enter_device(device.index(), &scope));
        if (s != Status::ok) {
            return s;
        }
        return Result<DeviceScope>(std::in_place, Key{}, scope);
    }
    DeviceScope(Key, const tgpu_scope &scope) noexcept : Scope(scope) {}
};

// Makes a stream current, and its device with it, until the end of the block.
class StreamScope : public detail::Scope {
    struct Key {
        explicit Key() = default;
    };

public:
    explicit StreamScope(StreamView stream) {
        detail::check(detail::to_status(tgpu_scope_enter_stream(stream.handle(), &scope_)));
        inside_ = true;
    }
    static Result<StreamScope> try_enter(StreamView stream) noexcept {
        tgpu_scope scope{};
        const Status s = detail::to_status(tgpu_scope_enter_stream(stream.handle(), &scope));
        if (s != Status::ok) {
            return s;
        }
        return Result<StreamScope>(std::in_place, Key{}, scope);
    }
    StreamScope(Key, const tgpu_scope &scope) noexcept : Scope(scope) {}
};

// ------------------------------------------------------------------------------------------------------------------ tasks

struct TaskOptions {
    // What the new task takes over from the one that creates it.
    bool inherit_device = false;
    bool inherit_wait_policy = false;
    bool inherit_order = false; // its first work on each device waits for what the creator's current stream there held
};

class TaskView {
public:
    constexpr explicit TaskView(tgpu_task handle) noexcept : handle_(handle) {}

    // The task that is current on this thread; a thread's own task has a handle too.
    static Result<TaskView> try_current() noexcept {
        tgpu_task out = nullptr;
        const tgpu_status s = tgpu_task_current(&out);
        return detail::result(s, TaskView(out));
    }
    static TaskView current() { return try_current().value(); }

    constexpr tgpu_task handle() const noexcept { return handle_; }
    friend constexpr bool operator==(TaskView a, TaskView b) noexcept { return a.handle_ == b.handle_; }
    friend constexpr bool operator!=(TaskView a, TaskView b) noexcept { return a.handle_ != b.handle_; }

private:
    tgpu_task handle_;
};

// Owns a task: device, streams, wait policy, scopes and last error that follow a fiber or coroutine between threads.
class Task {
public:
    static Result<Task> try_create(TaskOptions options = {}) noexcept {
        tgpu_task_options o{};
        o.struct_size = sizeof o;
        o.flags = (options.inherit_device ? static_cast<std::uint32_t>(TGPU_TASK_INHERIT_DEVICE) : 0u) |
                  (options.inherit_wait_policy ? static_cast<std::uint32_t>(TGPU_TASK_INHERIT_WAIT_POLICY) : 0u) |
                  (options.inherit_order ? static_cast<std::uint32_t>(TGPU_TASK_INHERIT_ORDER) : 0u);
        tgpu_task out = nullptr;
        const Status s = detail::to_status(tgpu_task_create(&o, &out));
        if (s != Status::ok) {
            return s;
        }
        return Result<Task>(std::in_place, adopt(out));
    }
    explicit Task(TaskOptions options = {}) : Task(try_create(options).value()) {}

    static Task adopt(tgpu_task handle) noexcept { return Task(handle); }
    tgpu_task release() noexcept { return owned_.release(); }
    tgpu_task handle() const noexcept { return owned_.get(); }
    explicit operator bool() const noexcept { return owned_.holds(); }
    operator TaskView() const noexcept { return TaskView(handle()); }

private:
    explicit Task(tgpu_task handle) noexcept : owned_(handle) {}
    detail::Owned<tgpu_task, tgpu_task_destroy> owned_;
};

// Makes `next` the thread's current task and answers the one before. For runtimes; blocks of code take TaskScope.
inline Result<TaskView> try_swap_task(TaskView next) noexcept {
    tgpu_task previous = nullptr;
    const tgpu_status s = tgpu_task_swap(next.handle(), &previous);
    return detail::result(s, TaskView(previous));
}
inline TaskView swap_task(TaskView next) { return try_swap_task(next).value(); }

// Makes a task current on this thread until the end of the block, then gives the thread the task it had before; if that one
// was destroyed meanwhile, the thread's own. Fails with Status::task_busy while the task is current on another thread.
class TaskScope {
    struct Key {
        explicit Key() = default;
    };

public:
    explicit TaskScope(TaskView task) { detail::check(detail::to_status(tgpu_task_swap(task.handle(), &previous_))); }
    static Result<TaskScope> try_enter(TaskView task) noexcept {
        tgpu_task previous = nullptr;
        const Status s = detail::to_status(tgpu_task_swap(task.handle(), &previous));
        if (s != Status::ok) {
            return s;
        }
        return Result<TaskScope>(std::in_place, Key{}, previous);
    }
    TaskScope(Key, tgpu_task previous) noexcept : previous_(previous) {}
    TaskScope(const TaskScope &) = delete;
    TaskScope &operator=(const TaskScope &) = delete;
    ~TaskScope() {
        if (tgpu_task_swap(previous_, nullptr) != TGPU_OK) {
            (void)tgpu_task_swap(nullptr, nullptr);
        }
    }

private:
    tgpu_task previous_ = nullptr;
};

// ----------------------------------------------------------------------------------------------------------------- memory

namespace detail {
template <class T> struct Same { using type = T; };
template <class T> using same_t = typename Same<T>::type;
template <class T> constexpr std::size_t max_count = SIZE_MAX / sizeof(T);
template <class T>
constexpr bool fillable = sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16;
} // namespace detail

// Copies `count` elements in the order of `stream`, between any two of host and devices. Asynchronous: both ends stay
// valid until it is done.
template <class T>
Status try_copy(T *to, const detail::same_t<T> *from, std::size_t count, StreamView stream = {}) noexcept {
    static_assert(std::is_trivially_copyable_v<T>, "only trivially copyable types can be copied bytewise");
    if (count > detail::max_count<T>) {
        return Status::invalid_argument;
    }
    return detail::to_status(tgpu_memcpy(to, from, count * sizeof(T), stream.handle()));
}
template <class T> void copy(T *to, const detail::same_t<T> *from, std::size_t count, StreamView stream = {}) {
    if (count > detail::max_count<T>) {
        detail::fail_count("taskgpu::copy", count, detail::max_count<T>);
    }
    detail::check(try_copy(to, from, count, stream));
}

// Writes `count` copies of `value` (of 1, 2, 4, 8 or 16 bytes) in the order of `stream`.
template <class T>
Status try_fill(T *to, const detail::same_t<T> &value, std::size_t count, StreamView stream = {}) noexcept {
    static_assert(std::is_trivially_copyable_v<T> && detail::fillable<T>, "fill takes values of 1, 2, 4, 8 or 16 bytes");
    return detail::to_status(tgpu_fill(to, std::addressof(value), sizeof(T), count, stream.handle()));
}
template <class T> void fill(T *to, const detail::same_t<T> &value, std::size_t count, StreamView stream = {}) {
    detail::check(try_fill(to, value, count, stream));
}

// What the library or a vendor knows about a pointer; Status::not_found for anything else.
inline Result<PointerInfo> try_pointer_info(const void *p) noexcept {
    PointerInfo out{};
    out.struct_size = sizeof out;
    const tgpu_status s = tgpu_pointer_info_get(p, &out);
    return detail::result(s, out);
}
inline PointerInfo pointer_info(const void *p) { return try_pointer_info(p).value(); }

// Owns device memory for `size()` elements, with contents undefined. Allocated and freed in the order of one stream: it may
// be used there at once, elsewhere after waiting for that stream, and what else still uses it must be ordered before that
// stream when the buffer ends (set_stream() names another). If the stream is gone by then, it is freed after everything
// that is queued on its device.
template <class T> class Buffer {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "device memory holds trivially copyable types");

public:
    using value_type = T;

    // Holds nothing; size 0.
    Buffer() noexcept = default;

    // On the device of `stream`. With the current stream, makes a second call: the buffer remembers which stream that was.
    static Result<Buffer> try_create(std::size_t count, StreamView stream = {}) noexcept {
        if (count > detail::max_count<T>) {
            return Status::invalid_argument;
        }
        tgpu_stream s = stream.handle();
        if (s == nullptr) {
            const Status got = detail::to_status(tgpu_stream_get(&s));
            if (got != Status::ok) {
                return got;
            }
        }
        void *p = nullptr;
        const Status made = detail::to_status(tgpu_malloc_async(count * sizeof(T), s, &p));
        if (made != Status::ok) {
            return made;
        }
        return Result<Buffer>(std::in_place, adopt(static_cast<T *>(p), count, StreamView(s)));
    }
    explicit Buffer(std::size_t count, StreamView stream = {}) : Buffer(create_or_fail(count, stream)) {}

    // Takes over memory of tgpu_malloc or tgpu_malloc_async, to be freed in the order of `stream`.
    static Buffer adopt(T *data, std::size_t count, StreamView stream) noexcept {
        Buffer out;
        out.data_ = data;
        out.size_ = count;
        out.stream_ = stream;
        return out;
    }
    // Gives the memory up without freeing it.
    T *release() noexcept {
        size_ = 0;
        return std::exchange(data_, nullptr);
    }

    Buffer(Buffer &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), stream_(other.stream_) {}
    Buffer &operator=(Buffer &&other) noexcept {
        if (this != &other) {
            drop();
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
            stream_ = other.stream_;
        }
        return *this;
    }
    ~Buffer() { drop(); }

    // Frees now, in the order of stream(), and tells whether that went well. On failure the buffer keeps its memory.
    Status try_free() noexcept {
        const Status s = detail::to_status(tgpu_free_async(data_, stream_.handle()));
        if (s == Status::ok) {
            (void)release();
        }
        return s;
    }
    void free() {
        const Status s = try_free();
        if (s != Status::ok) {
            detail::fail_unrecorded(s);
        }
    }

    // Device addresses: not for the host to follow.
    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    bool empty() const noexcept { return size_ == 0; }

    // The stream in whose order the memory is freed.
    StreamView stream() const noexcept { return stream_; }
    void set_stream(StreamView stream) noexcept { stream_ = stream; }

    // Copies `count` elements into the buffer, or out of it; the other end may be host or device memory. More than size():
    // Status::invalid_argument. Asynchronous: the other end stays valid until it is done.
    Status try_copy_from(const T *from, std::size_t count, StreamView stream = {}) noexcept {
        return count > size_ ? Status::invalid_argument : try_copy(data_, from, count, stream);
    }
    void copy_from(const T *from, std::size_t count, StreamView stream = {}) {
        fits("taskgpu::Buffer::copy_from", count);
        detail::check(try_copy_from(from, count, stream));
    }
    Status try_copy_to(T *to, std::size_t count, StreamView stream = {}) const noexcept {
        return count > size_ ? Status::invalid_argument : try_copy(to, data_, count, stream);
    }
    void copy_to(T *to, std::size_t count, StreamView stream = {}) const {
        fits("taskgpu::Buffer::copy_to", count);
        detail::check(try_copy_to(to, count, stream));
    }

    // Writes `value` to all elements.
    Status try_fill_with(const T &value, StreamView stream = {}) noexcept { return try_fill(data_, value, size_, stream); }
    void fill_with(const T &value, StreamView stream = {}) { detail::check(try_fill_with(value, stream)); }

private:
    static Buffer create_or_fail(std::size_t count, StreamView stream) {
        if (count > detail::max_count<T>) {
            detail::fail_count("taskgpu::Buffer", count, detail::max_count<T>);
        }
        return try_create(count, stream).value();
    }
    void fits(const char *what, std::size_t count) const {
        if (count > size_) {
            detail::fail_count(what, count, size_);
        }
    }
    void drop() noexcept {
        if (data_ != nullptr && tgpu_free_async(data_, stream_.handle()) != TGPU_OK) {
            (void)tgpu_free_deferred(data_); // the stream is gone, or this is a callback
        }
    }

    T *data_ = nullptr;
    std::size_t size_ = 0;
    StreamView stream_;
};

// Owns pinned host memory for `size()` elements, with contents undefined: copies to and from it do not block the caller.
// Copies still queued when it ends finish.
template <class T> class PinnedBuffer {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>, "pinned memory holds trivially copyable types");

public:
    using value_type = T;

    PinnedBuffer() noexcept = default;
    static Result<PinnedBuffer> try_create(std::size_t count) noexcept {
        if (count > detail::max_count<T>) {
            return Status::invalid_argument;
        }
        void *p = nullptr;
        const Status s = detail::to_status(tgpu_host_malloc(count * sizeof(T), &p));
        if (s != Status::ok) {
            return s;
        }
        return Result<PinnedBuffer>(std::in_place, adopt(static_cast<T *>(p), count));
    }
    explicit PinnedBuffer(std::size_t count) : PinnedBuffer(create_or_fail(count)) {}

    // Takes over memory of tgpu_host_malloc.
    static PinnedBuffer adopt(T *data, std::size_t count) noexcept {
        PinnedBuffer out;
        out.data_ = data;
        out.size_ = count;
        return out;
    }
    T *release() noexcept {
        size_ = 0;
        return std::exchange(data_, nullptr);
    }

    PinnedBuffer(PinnedBuffer &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    PinnedBuffer &operator=(PinnedBuffer &&other) noexcept {
        if (this != &other) {
            (void)tgpu_host_free(data_);
            data_ = std::exchange(other.data_, nullptr);
            size_ = std::exchange(other.size_, 0);
        }
        return *this;
    }
    ~PinnedBuffer() { (void)tgpu_host_free(data_); }

    T *data() noexcept { return data_; }
    const T *data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
    bool empty() const noexcept { return size_ == 0; }
    T &operator[](std::size_t i) noexcept { return data_[i]; }
    const T &operator[](std::size_t i) const noexcept { return data_[i]; }
    T *begin() noexcept { return data_; }
    T *end() noexcept { return data_ + size_; }
    const T *begin() const noexcept { return data_; }
    const T *end() const noexcept { return data_ + size_; }

private:
    static PinnedBuffer create_or_fail(std::size_t count) {
        if (count > detail::max_count<T>) {
            detail::fail_count("taskgpu::PinnedBuffer", count, detail::max_count<T>);
        }
        return try_create(count).value();
    }

    T *data_ = nullptr;
    std::size_t size_ = 0;
};

// ------------------------------------------------------------------------------------------------------- modules, kernels

using HostBlock = tgpu_host_block;

// A number of blocks or threads in up to three dimensions. `Dim3 d = 64` is 64 x 1 x 1.
struct Dim3 {
    constexpr Dim3(std::uint32_t x_ = 1, std::uint32_t y_ = 1, std::uint32_t z_ = 1) noexcept : x(x_), y(y_), z(z_) {}
    std::uint32_t x, y, z;
};

// The shape of a launch, and where it runs: LaunchConfig{grid, block}, LaunchConfig{grid, block, shared_bytes, stream}.
struct LaunchConfig {
    Dim3 grid = {};                 // blocks
    Dim3 block = {};                // threads of a block
    std::uint64_t shared_bytes = 0; // dynamic shared memory of a block
    StreamView stream = {};

    LaunchConfig on(StreamView s) const noexcept { return LaunchConfig{grid, block, shared_bytes, s}; }
};

namespace detail {

template <class T>
constexpr bool is_kernel_arg =
    std::is_trivially_copyable_v<T> && !std::is_reference_v<T> && !std::is_array_v<T> && !std::is_const_v<T>;

// The arguments must outlive this call only: a launch copies them before it returns.
template <class... Args> Status launch(tgpu_kernel kernel, const LaunchConfig &config, const Args &...args) noexcept {
    tgpu_launch_config c{};
    c.struct_size = sizeof c;
    c.grid[0] = config.grid.x;
    c.grid[1] = config.grid.y;
    c.grid[2] = config.grid.z;
    c.block[0] = config.block.x;
    c.block[1] = config.block.y;
    c.block[2] = config.block.z;
    c.shared_bytes = config.shared_bytes;
    c.stream = config.stream.handle();
    void *const pointers[] = {const_cast<void *>(static_cast<const void *>(std::addressof(args)))..., nullptr};
    return to_status(tgpu_launch(kernel, &c, pointers));
}

template <auto Function, class Type = decltype(Function)> struct HostFunction;

} // namespace detail

template <class... Args> class TypedKernel;

// Owns a module: code for all devices of its vendor, loaded on each at first use.
class Module {
public:
    // A code object, PTX, cubin or, for host devices, a shared object.
    static Result<Module> try_load(const void *image, std::size_t bytes) noexcept {
        tgpu_module out = nullptr;
        const Status s = detail::to_status(tgpu_module_load(image, bytes, &out));
        if (s != Status::ok) {
            return s;
        }
        return Result<Module>(std::in_place, adopt(out));
    }
    static Module load(const void *image, std::size_t bytes) { return try_load(image, bytes).value(); }

    // HIP C++ source. If it does not compile, Error::last(Status::compile_failed).text() is the compiler's log.
    static Result<Module> try_compile(const char *source, const tgpu_compile_options *options = nullptr) noexcept {
        tgpu_module out = nullptr;
        const Status s = detail::to_status(tgpu_module_compile(source, options, &out));
        if (s != Status::ok) {
            return s;
        }
        return Result<Module>(std::in_place, adopt(out));
    }
    static Module compile(const char *source, const tgpu_compile_options *options = nullptr) {
        return try_compile(source, options).value();
    }

    // Builds and loads for a device now, not at first use.
    Status try_prepare(Device device) const noexcept {
        return detail::to_status(tgpu_module_prepare(handle(), device.index()));
    }
    void prepare(Device device) const { detail::check(try_prepare(device)); }

    struct Global {
        void *address;
        std::uint64_t bytes;
    };
    Result<Global> try_global(Device device, const char *name) const noexcept {
        Global out{};
        const tgpu_status s = tgpu_module_global_get(handle(), device.index(), name, &out.address, &out.bytes);
        return detail::result(s, out);
    }
    Global global(Device device, const char *name) const { return try_global(device, name).value(); }

    static Module adopt(tgpu_module handle) noexcept { return Module(handle); }
    tgpu_module release() noexcept { return owned_.release(); }
    tgpu_module handle() const noexcept { return owned_.get(); }
    explicit operator bool() const noexcept { return owned_.holds(); }

private:
    explicit Module(tgpu_module handle) noexcept : owned_(handle) {}
    detail::Owned<tgpu_module, tgpu_module_destroy> owned_;
};

// Owns a kernel whose parameter types are not known here: launch() hands each argument over as it is, so that its type must
// be the parameter's (3.0f for a float, not 3.0). Where the types can be named, TypedKernel checks them.
class Kernel {
public:
    static Result<Kernel> try_get(const Module &from, const char *name) noexcept {
        tgpu_kernel out = nullptr;
        const Status s = detail::to_status(tgpu_kernel_get(from.handle(), name, &out));
        if (s != Status::ok) {
            return s;
        }
        return Result<Kernel>(std::in_place, adopt(out));
    }
    static Kernel get(const Module &from, const char *name) { return try_get(from, name).value(); }
    // The same with parameter types: Kernel::get<float, const float *, float *>(module, "saxpy"). They are the caller's word.
    template <class First, class... Rest>
    static Result<TypedKernel<First, Rest...>> try_get(const Module &from, const char *name) noexcept;
    template <class First, class... Rest> static TypedKernel<First, Rest...> get(const Module &from, const char *name);

    // For host devices, from a C function that is called once per block and finds its arguments in an array:
    // Kernel::from_host<float, const float *>(function, data).
    template <class... Args>
    static Result<TypedKernel<Args...>> try_from_host(tgpu_host_kernel function, void *data = nullptr) noexcept;
    template <class... Args> static TypedKernel<Args...> from_host(tgpu_host_kernel function, void *data = nullptr);

    // For host devices, from a function `void f(const HostBlock &, Args...)`: Kernel::from_host<f>(). It must not throw.
    template <auto Function> static auto try_from_host() noexcept;
    template <auto Function> static auto from_host();

    template <class... Args> Status try_launch(const LaunchConfig &config, const Args &...args) const noexcept {
        static_assert((detail::is_kernel_arg<Args> && ...),
                      "kernel arguments are trivially copyable values and pointers: for a Buffer, pass its data()");
        return detail::launch(handle(), config, args...);
    }
    template <class... Args> void launch(const LaunchConfig &config, const Args &...args) const {
        detail::check(try_launch(config, args...));
    }

    // A one-dimensional shape that keeps the current device busy and has at least `items` threads.
    Result<LaunchConfig> try_suggest(std::uint64_t items) const noexcept {
        std::uint32_t grid = 1;
        std::uint32_t block = 1;
        const tgpu_status s = tgpu_kernel_suggest(handle(), items, &grid, &block);
        return detail::result(s, LaunchConfig{grid, block, 0, {}});
    }
    LaunchConfig suggest(std::uint64_t items) const { return try_suggest(items).value(); }

    Result<KernelInfo> try_info(Device device) const noexcept {
        KernelInfo out{};
        out.struct_size = sizeof out;
        const tgpu_status s = tgpu_kernel_info_get(handle(), device.index(), &out);
        return detail::result(s, out);
    }
    KernelInfo info(Device device) const { return try_info(device).value(); }

    static Kernel adopt(tgpu_kernel handle) noexcept { return Kernel(handle); }
    tgpu_kernel release() noexcept { return owned_.release(); }
    tgpu_kernel handle() const noexcept { return owned_.get(); }
    explicit operator bool() const noexcept { return owned_.holds(); }

private:
    explicit Kernel(tgpu_kernel handle) noexcept : owned_(handle) {}
    detail::Owned<tgpu_kernel, tgpu_kernel_destroy> owned_;
};

// A kernel with known parameter types: launch() is checked, and converts its arguments, like a call of a function
// `void kernel(Args...)`.
template <class... Args> class TypedKernel : public Kernel {
    static_assert((detail::is_kernel_arg<Args> && ...), "kernel parameters are trivially copyable values and pointers");

public:
    explicit TypedKernel(Kernel &&kernel) noexcept : Kernel(std::move(kernel)) {}

    Status try_launch(const LaunchConfig &config, Args... args) const noexcept {
        return detail::launch(handle(), config, args...);
    }
    void launch(const LaunchConfig &config, Args... args) const { detail::check(try_launch(config, args...)); }
};

template <class First, class... Rest>
Result<TypedKernel<First, Rest...>> Kernel::try_get(const Module &from, const char *name) noexcept {
    Result<Kernel> kernel = try_get(from, name);
    if (!kernel) {
        return kernel.status();
    }
    return Result<TypedKernel<First, Rest...>>(std::in_place, std::move(*kernel));
}
template <class First, class... Rest> TypedKernel<First, Rest...> Kernel::get(const Module &from, const char *name) {
    return try_get<First, Rest...>(from, name).value();
}

template <class... Args>
Result<TypedKernel<Args...>> Kernel::try_from_host(tgpu_host_kernel function, void *data) noexcept {
    const std::size_t sizes[] = {sizeof(Args)..., 0};
    tgpu_kernel out = nullptr;
    const Status s = detail::to_status(tgpu_kernel_from_host_fn(function, data, sizeof...(Args), sizes, &out));
    if (s != Status::ok) {
        return s;
    }
    return Result<TypedKernel<Args...>>(std::in_place, adopt(out));
}
template <class... Args> TypedKernel<Args...> Kernel::from_host(tgpu_host_kernel function, void *data) {
    return try_from_host<Args...>(function, data).value();
}

namespace detail {

// From `void f(const HostBlock &, Args...)`, known at compile time, makes the C function that unpacks the arguments.
template <auto Function, class Type> struct HostFunction {
    static_assert(sizeof(Type) == 0, "a host kernel is a function void f(const taskgpu::HostBlock &, Args...)");
};
template <auto Function, class... Args> struct HostFunction<Function, void (*)(const HostBlock &, Args...)> {
    static Result<TypedKernel<Args...>> kernel() noexcept { return Kernel::try_from_host<Args...>(&run); }

    // noexcept: an exception must not pass through the library; it ends the program here.
    static void run(const HostBlock *block, void *const *args, void *) noexcept {
        call(*block, args, std::index_sequence_for<Args...>{});
    }
    template <std::size_t... I>
    static void call(const HostBlock &block, [[maybe_unused]] void *const *args, std::index_sequence<I...>) {
        Function(block, *static_cast<const Args *>(args[I])...);
    }
};
template <auto Function, class... Args>
struct HostFunction<Function, void (*)(const HostBlock &, Args...) noexcept>
    : HostFunction<static_cast<void (*)(const HostBlock &, Args...)>(Function)> {};

} // namespace detail

template <auto Function> auto Kernel::try_from_host() noexcept { return detail::HostFunction<Function>::kernel(); }
template <auto Function> auto Kernel::from_host() { return try_from_host<Function>().value(); }

} // inline namespace
} // namespace taskgpu

#endif // TASKGPU_HPP
