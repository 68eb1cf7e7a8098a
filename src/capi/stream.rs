//! # Streams
//!
//! A stream is a queue of work of one device. Its work runs in order; work of different streams may
//! overlap.
//!
//! Each task has, for each device, one current stream: a *lease*, taken at first use from a pool
//! and not shared with any other task while the task lives. A program that only wants its tasks not
//! to get in each other's way needs to create no streams. NULL as a stream means the current stream
//! of the task's current device, wherever the pointers of the call live. A call that names a stream
//! runs on that stream's device, whatever the task's current device is, and changes nothing about
//! the task.
//!
//! tgpu_stream_set makes another stream current for its device, and makes that device current.
//! tgpu_stream_set(NULL) goes back to the lease. A lease ends with its task, and its handle is
//! TGPU_ERROR_INVALID_HANDLE from then on: to wait for the work of a task that may be gone, record
//! an event. If a stream is destroyed while it is some task's current stream, that task is answered
//! TGPU_ERROR_INVALID_HANDLE until it sets another one or NULL.
//!
//! While somebody captures a stream into a graph of the vendor's runtime, calls that would put
//! hidden work into the capture answer TGPU_ERROR_CAPTURING.

use super::error::{tgpu_status, TGPU_OK};
use super::handles::{tgpu_event, tgpu_stream};
use super::structs::{read_or_default, AbiStruct, OutStruct};
use super::{check_fd, check_flags, guard, guard_answer, guard_ending, invalid, null, patience, Out};
use crate::backend::{NativeHandle, Priority, Result, Status, StreamSpec};
use crate::capi::device::tgpu_device;
use crate::core;
use crate::core::handle::{EventHandle, StreamHandle};
use std::ffi::{c_int, c_void};

/// Priority of a stream: neither of the other two.
pub const TGPU_PRIORITY_NORMAL: i32 = 0;
/// Priority of a stream: after everything else.
pub const TGPU_PRIORITY_LOW: i32 = 1;
/// Priority of a stream: before everything else.
pub const TGPU_PRIORITY_HIGH: i32 = 2;

/// Flag of a stream: ordered with the vendor's legacy default stream. Host devices have none and
/// ignore it.
pub const TGPU_STREAM_LEGACY_ORDER: u32 = 1u32;

/// Kind of a stream: lent to a task from the pool. It may not be destroyed.
pub const TGPU_STREAM_LEASED: i32 = 0;
/// Kind of a stream: made by tgpu_stream_create.
pub const TGPU_STREAM_OWNED: i32 = 1;
/// Kind of a stream: somebody else's, made known by tgpu_stream_import.
pub const TGPU_STREAM_IMPORTED: i32 = 2;

/// What a new stream shall be like.
#[repr(C)]
pub struct tgpu_stream_options {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// TGPU_PRIORITY_NORMAL, TGPU_PRIORITY_LOW or TGPU_PRIORITY_HIGH.
    pub priority: i32,
    /// 0 or TGPU_STREAM_LEGACY_ORDER.
    pub flags: u32,
}

// SAFETY: repr(C), size first, numbers.
unsafe impl AbiStruct for tgpu_stream_options {
    const NAME: &'static str = "tgpu_stream_options";
}

/// What a stream is.
#[repr(C)]
pub struct tgpu_stream_info {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// The device whose work it queues.
    pub device: tgpu_device,
    /// The priority that was asked for, TGPU_PRIORITY_NORMAL and so on.
    pub priority: i32,
    /// The priority that the vendor's runtime says it got: devices have fewer levels, or none.
    pub effective_priority: i32,
    /// The same as the vendor's number.
    pub native_priority: i32,
    /// TGPU_STREAM_LEASED, TGPU_STREAM_OWNED or TGPU_STREAM_IMPORTED.
    pub kind: i32,
    /// 1 while somebody captures it into a graph, else 0.
    pub capturing: i32,
    /// Unique in the process and never used again. The same for one native stream imported twice.
    pub id: u64,
}

// SAFETY: repr(C), size first, numbers.
unsafe impl AbiStruct for tgpu_stream_info {
    const NAME: &'static str = "tgpu_stream_info";
}

/// A function of the program, called once. data is what it was given with; status is TGPU_OK, or
/// why the work before it did not get done. It must not wait for GPU work, throw an exception or
/// jump out.
pub type tgpu_callback = Option<unsafe extern "C" fn(data: *mut c_void, status: tgpu_status)>;

/// The handle behind what C passes as a stream.
#[inline(always)]
pub(super) fn stream(s: tgpu_stream) -> StreamHandle {
    StreamHandle::from_bits(s as u64)
}

/// Creates a stream on the task's current device. The task's current stream stays what it is.
///
/// @param options  NULL for a stream of normal priority.
/// @param out      receives the stream.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL, or options has a refused
///         struct_size, priority or flag; the device statuses.
///
/// Ownership: the caller owns the stream; tgpu_stream_destroy gives it back.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_stream_create(
    options: *const tgpu_stream_options,
    out: *mut tgpu_stream,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says; the caller's pointer.
        let (options, out) = unsafe { (read_or_default(options, "options")?, Out::new(out, "out")?) };
        check_flags(
            options.flags,
            TGPU_STREAM_LEGACY_ORDER,
            "TGPU_STREAM_LEGACY_ORDER",
        )?;
        let priority = Priority::from_code(options.priority).ok_or_else(|| {
            invalid(format!(
                "priority is {}; allowed are TGPU_PRIORITY_NORMAL (0), TGPU_PRIORITY_LOW (1) and TGPU_PRIORITY_HIGH (2)",
                options.priority
            ))
        })?;
        let spec = StreamSpec {
            priority,
            legacy_order: options.flags & TGPU_STREAM_LEGACY_ORDER != 0,
        };
        out.set(core::stream::create(spec)?.bits() as tgpu_stream);
        Ok(())
    })
}

/// Destroys a stream of tgpu_stream_create, or forgets one of tgpu_stream_import.
///
/// The handle is invalid at once; work already queued finishes.
///
/// @param s  the stream. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_NOT_PERMITTED if
///         it is a lease; TGPU_ERROR_INTERNAL.
///
/// Ownership: the stream is given back. An imported native stream stays its owner's and is not
/// touched.
/// Threads: any thread, also in callbacks and finalizers.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_destroy(s: tgpu_stream) -> tgpu_status {
    guard_ending(|| core::stream::destroy(stream(s)))
}

/// Gives the current stream of the task's current device. Costs a few nanoseconds.
///
/// @param out  receives the stream, never NULL.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL; TGPU_ERROR_INVALID_HANDLE if the
///         stream that was set has been destroyed since; the device statuses.
///
/// Ownership: none of the caller's; a lease is valid while the task lives.
/// Threads: any thread.
/// Blocks: no; at first use of a device in a task, a stream is leased or created.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_stream_get(out: *mut tgpu_stream) -> tgpu_status {
    // The common case needs no panic boundary.
    if let (Some(stream), false) = (core::stream::seen(), out.is_null()) {
        // SAFETY: the caller's pointer, not NULL.
        unsafe { out.write_unaligned(stream.bits() as tgpu_stream) };
        return TGPU_OK;
    }
    stream_get_slowly(out)
}

/// Apart, so that the common case needs no stack frame.
#[cold]
#[inline(never)]
fn stream_get_slowly(out: *mut tgpu_stream) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::stream::current()?.bits() as tgpu_stream);
        Ok(())
    })
}

/// Makes a stream the task's current stream of its device, and its device the task's current
/// device.
///
/// No order is made between the old and the new stream: for that, call tgpu_stream_wait_stream.
///
/// @param s  the stream. NULL goes back to the task's lease on the current device.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_NOT_PERMITTED if
///         it is leased to another task; the device statuses. On failure nothing changes.
///
/// Ownership: nothing changes hands; the stream must be kept alive while it is current.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_set(s: tgpu_stream) -> tgpu_status {
    guard(|| core::stream::set(stream(s)))
}

/// Asks whether everything queued on a stream so far is done.
///
/// @param s  the stream, NULL for the current one.
/// @return TGPU_OK if it is; TGPU_NOT_READY if not; TGPU_ERROR_INVALID_HANDLE if s is no live
///         stream; TGPU_ERROR_CAPTURING if it is being captured; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_query(s: tgpu_stream) -> tgpu_status {
    guard_answer(|| {
        Ok(if core::stream::query(stream(s))? {
            Status::Ok
        } else {
            Status::NotReady
        })
    })
}

/// Waits until everything queued on a stream so far is done.
///
/// @param s  the stream, NULL for the current one.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_CAPTURING if it is
///         being captured; the device statuses, TGPU_ERROR_DEVICE_LOST also if the device fails
///         during the wait.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: yes, by the task's wait policy.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_synchronize(s: tgpu_stream) -> tgpu_status {
    guard(|| core::stream::synchronize(stream(s), None).map(|_| ()))
}

/// Waits until everything queued on a stream so far is done, or some time has passed.
///
/// @param s   the stream, NULL for the current one.
/// @param ns  nanoseconds to wait at most. UINT64_MAX is for ever.
/// @return TGPU_OK; TGPU_ERROR_TIMEOUT if the time was over first, and the work goes on;
///         TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_CAPTURING if it is being
///         captured; the device statuses, TGPU_ERROR_DEVICE_LOST also if the device fails during
///         the wait.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: yes, by the task's wait policy, for at most about ns.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_synchronize_timeout(s: tgpu_stream, ns: u64) -> tgpu_status {
    guard_answer(|| in_time(core::stream::synchronize(stream(s), patience(ns))))
}

/// What a wait with a time limit answers.
pub(super) fn in_time(done: Result<bool>) -> Result<Status> {
    Ok(if done? { Status::Ok } else { Status::Timeout })
}

/// Makes later work of a stream wait for an event's last record, as it is at the time of this call.
///
/// The two may belong to different devices. Between devices of different backends, a host device's
/// stream may wait for any event; for a GPU's stream see the statuses. An event that was never
/// recorded is not waited for.
///
/// @param s  the stream that waits, NULL for the current one.
/// @param e  the event.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream or e no live event;
///         TGPU_ERROR_NOT_SUPPORTED if the event is another backend's and the device cannot wait
///         for it; TGPU_ERROR_CAPTURING if the wait would put hidden work into a capture; the
///         device statuses.
///
/// Ownership: nothing changes hands; the event may be destroyed or recorded again at once.
/// Threads: any thread.
/// Blocks: no; the stream waits, the caller does not.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_wait_event(s: tgpu_stream, e: tgpu_event) -> tgpu_status {
    guard(|| core::stream::wait_event(stream(s), EventHandle::from_bits(e as u64)))
}

/// Makes later work of a stream wait for everything queued on another one so far.
///
/// The same as recording an event on the other stream and waiting for it.
///
/// @param s      the stream that waits, NULL for the current one.
/// @param other  the stream that is waited for, NULL for the current one. The same stream twice is
///               OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if either is no live stream; TGPU_ERROR_NOT_SUPPORTED
///         if other is another backend's and the device cannot wait for it; TGPU_ERROR_CAPTURING if
///         either is being captured; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no; the stream waits, the caller does not.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_wait_stream(s: tgpu_stream, other: tgpu_stream) -> tgpu_status {
    guard(|| core::stream::wait_stream(stream(s), stream(other)))
}

/// Describes a stream.
///
/// @param s    the stream, NULL for the current one.
/// @param out  receives the facts.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_INVALID_ARGUMENT
///         if out is NULL or its struct_size is refused; the device statuses.
///
/// Ownership: the caller gets a copy.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_stream_info_get(s: tgpu_stream, out: *mut tgpu_stream_info) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let report = core::stream::info(stream(s))?;
        out.write(|info| {
            info.device = report.device as tgpu_device;
            info.priority = report.priority as i32;
            info.effective_priority = report.effective as i32;
            info.native_priority = report.native_priority;
            info.kind = report.kind as i32;
            info.capturing = i32::from(report.capturing);
            info.id = report.id;
        });
        Ok(())
    })
}

/// Makes a stream of the vendor's runtime known, so that work of this library can be queued on it.
///
/// The vendor's special value for its legacy default stream, NULL or 1, is taken as that stream;
/// the one for the per-thread default stream is refused. A pointer that is no stream at all cannot
/// be told from one, and is as bad as it is in the vendor's own calls.
///
/// @param d       the device that the stream belongs to.
/// @param native  a hipStream_t, a CUstream, or for host devices what tgpu_stream_native gave.
/// @param out     receives the stream.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device;
///         TGPU_ERROR_INVALID_ARGUMENT if out is NULL or native is the per-thread default stream,
///         another device's stream or, where that can be told, no stream; TGPU_ERROR_NOT_SUPPORTED
///         if the backend has no such stream; the device statuses.
///
/// Ownership: the caller owns the handle; tgpu_stream_destroy gives it back. The native stream
/// stays its owner's, and must outlive the handle and the work queued through it.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_stream_import(
    d: tgpu_device,
    native: *mut c_void,
    out: *mut tgpu_stream,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer; the caller vouches for the vendor's handle.
        let (out, native) = unsafe { (Out::new(out, "out")?, NativeHandle::from_caller(native)) };
        out.set(core::stream::import(d, native)?.bits() as tgpu_stream);
        Ok(())
    })
}

/// Gives the vendor's handle of a stream, for use with the vendor's libraries.
///
/// @param s    the stream, NULL for the current one.
/// @param out  receives a hipStream_t or a CUstream; for host devices a value that
///             tgpu_stream_import takes.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_INVALID_ARGUMENT
///         if out is NULL; the device statuses.
///
/// Ownership: stays ours: do not destroy it. It is valid as long as the stream.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_stream_native(s: tgpu_stream, out: *mut *mut c_void) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::stream::native(stream(s))?);
        Ok(())
    })
}

/// Calls a function after the work queued on a stream so far.
///
/// It is called exactly once, on a thread of the library's or the vendor's, also when the device
/// fails; if this call itself fails, never. Later work of the stream waits for it. Inside, calls
/// that need the runtime answer TGPU_ERROR_IN_CALLBACK; destroy calls and tgpu_free_deferred are
/// fine.
///
/// @param s     the stream, NULL for the current one.
/// @param fn    the function.
/// @param data  handed to it.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_INVALID_ARGUMENT
///         if fn is NULL; TGPU_ERROR_CAPTURING if s is being captured; the device statuses.
///
/// Ownership: fn and data must stay valid until the function has returned.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_stream_add_callback(
    s: tgpu_stream,
    r#fn: tgpu_callback,
    data: *mut c_void,
) -> tgpu_status {
    guard(|| {
        let function = r#fn.ok_or_else(|| null("fn"))?;
        // A number and not a pointer, since it goes to another thread.
        let data = data as usize;
        let call = move |status: Status| {
            // SAFETY: the caller keeps function and data valid until it has returned, and this runs once.
            unsafe { function(data as *mut c_void, status.code()) }
        };
        core::stream::add_callback(stream(s), Box::new(call))
    })
}

/// Adds 1 to an event descriptor after the work queued on a stream so far, so that a poll or epoll
/// loop can wait for it.
///
/// 8 bytes, the number 1 in the machine's byte order, are written without blocking and without
/// SIGPIPE, also when the device fails. Made for an eventfd; a pipe or a socket gets the same
/// bytes.
///
/// @param s   the stream, NULL for the current one.
/// @param fd  a descriptor open for writing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_INVALID_ARGUMENT
///         if fd is negative or not open for writing; TGPU_ERROR_CAPTURING if s is being captured;
///         the device statuses.
///
/// Ownership: the descriptor is duplicated during the call, so the caller may close its own at
/// once.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_stream_signal_fd(s: tgpu_stream, fd: c_int) -> tgpu_status {
    guard(|| core::stream::signal_fd(stream(s), check_fd(fd)?))
}
