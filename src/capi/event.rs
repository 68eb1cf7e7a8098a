//! # Events
//!
//! An event is a point in a stream. Recording it marks the point "everything queued so far";
//! streams and the host can wait for it, and two of them measure the time between. It belongs to no
//! device until it is recorded, then to the device of that stream; recording it again, there or
//! elsewhere, replaces the record. Those who already wait go on waiting for the old one. An event
//! that was never recorded has nothing to wait for: it counts as reached.
//!
//! ```c
//! // Work on b starts after what is queued on a now.
//! tgpu_event_record(e, a);
//! tgpu_stream_wait_event(b, e);
//! ```

use super::error::tgpu_status;
use super::handles::{tgpu_event, tgpu_stream};
use super::stream::{in_time, stream};
use super::structs::{read_or_default, AbiStruct};
use super::{check_fd, check_flags, guard, guard_answer, guard_ending, patience, Out};
use crate::backend::Status;
use crate::core;
use crate::core::handle::EventHandle;
use std::ffi::{c_int, c_void};

/// Flag of an event: it takes no time stamp, which is cheaper on GPUs.
pub const TGPU_EVENT_DISABLE_TIMING: u32 = 1u32;

/// What a new event shall be like.
#[repr(C)]
pub struct tgpu_event_options {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// 0 or TGPU_EVENT_DISABLE_TIMING.
    // A later field must not fall into the padding behind this one: old programs leave garbage there.
    pub flags: u32,
}

// SAFETY: repr(C), size first, numbers.
unsafe impl AbiStruct for tgpu_event_options {
    const NAME: &'static str = "tgpu_event_options";
}

#[inline(always)]
fn event(e: tgpu_event) -> EventHandle {
    EventHandle::from_bits(e as u64)
}

/// Creates an event. It belongs to no device yet.
///
/// @param options  NULL for an event that takes time stamps.
/// @param out      receives the event.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL, or options has a refused
///         struct_size or flag; TGPU_ERROR_OUT_OF_MEMORY; the common statuses.
///
/// Ownership: the caller owns the event; tgpu_event_destroy gives it back.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_event_create(
    options: *const tgpu_event_options,
    out: *mut tgpu_event,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says; the caller's pointer.
        let (options, out) = unsafe { (read_or_default(options, "options")?, Out::new(out, "out")?) };
        check_flags(
            options.flags,
            TGPU_EVENT_DISABLE_TIMING,
            "TGPU_EVENT_DISABLE_TIMING",
        )?;
        let timing = options.flags & TGPU_EVENT_DISABLE_TIMING == 0;
        out.set(core::event::create(timing)?.bits() as tgpu_event);
        Ok(())
    })
}

/// Destroys an event. The handle is invalid at once; waits already queued for it still happen.
///
/// @param e  the event. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if e is no live event; TGPU_ERROR_INTERNAL.
///
/// Ownership: the event is given back.
/// Threads: any thread, also in callbacks and finalizers.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_event_destroy(e: tgpu_event) -> tgpu_status {
    guard_ending(|| core::event::destroy(event(e)))
}

/// Marks the point that a stream's queue has reached now. Replaces an earlier record.
///
/// @param e  the event.
/// @param s  the stream, NULL for the current one.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if e is no live event or s no live stream; the device
///         statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_event_record(e: tgpu_event, s: tgpu_stream) -> tgpu_status {
    guard(|| core::event::record(event(e), stream(s)))
}

/// Asks whether an event's last record has been reached.
///
/// @param e  the event.
/// @return TGPU_OK if it has, or the event was never recorded; TGPU_NOT_READY if not;
///         TGPU_ERROR_INVALID_HANDLE if e is no live event; TGPU_ERROR_CAPTURING if it was recorded
///         into a capture; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_event_query(e: tgpu_event) -> tgpu_status {
    guard_answer(|| {
        Ok(if core::event::query(event(e))? {
            Status::Ok
        } else {
            Status::NotReady
        })
    })
}

/// Waits until an event's last record, as it is at the time of this call, has been reached.
///
/// @param e  the event.
/// @return TGPU_OK, at once if the event was never recorded; TGPU_ERROR_INVALID_HANDLE if e is no
///         live event; TGPU_ERROR_CAPTURING if it was recorded into a capture; the device statuses,
///         TGPU_ERROR_DEVICE_LOST also if the device fails during the wait.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: yes, by the task's wait policy.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_event_synchronize(e: tgpu_event) -> tgpu_status {
    guard(|| core::event::synchronize(event(e), None).map(|_| ()))
}

/// Waits until an event's last record has been reached, or some time has passed.
///
/// @param e   the event.
/// @param ns  nanoseconds to wait at most. UINT64_MAX is for ever.
/// @return TGPU_OK, at once if the event was never recorded; TGPU_ERROR_TIMEOUT if the time was
///         over first, and the work goes on; TGPU_ERROR_INVALID_HANDLE if e is no live event;
///         TGPU_ERROR_CAPTURING if it was recorded into a capture; the device statuses,
///         TGPU_ERROR_DEVICE_LOST also if the device fails during the wait.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: yes, by the task's wait policy, for at most about ns.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_event_synchronize_timeout(e: tgpu_event, ns: u64) -> tgpu_status {
    guard_answer(|| in_time(core::event::synchronize(event(e), patience(ns))))
}

/// Measures the time between the last records of two events of the same device.
///
/// @param start    the earlier event.
/// @param end      the later event.
/// @param seconds  receives the time in seconds; negative if end was reached first.
/// @return TGPU_OK; TGPU_NOT_READY if one of them has not been reached; TGPU_ERROR_INVALID_HANDLE
///         if one of them is no live event; TGPU_ERROR_INVALID_ARGUMENT if seconds is NULL, one was
///         made without timing or never recorded, or they were recorded on different devices; the
///         device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_event_elapsed(
    start: tgpu_event,
    end: tgpu_event,
    seconds: *mut f64,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(seconds, "seconds") }?;
        out.set(core::event::elapsed(event(start), event(end))?);
        Ok(())
    })
}

/// Adds 1 to an event descriptor when an event's last record is reached, so that a poll or epoll
/// loop can wait for it.
///
/// As tgpu_stream_signal_fd. If the event was never recorded or has been reached, the descriptor
/// gets its 1 at once.
///
/// @param e   the event.
/// @param fd  a descriptor open for writing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if e is no live event; TGPU_ERROR_INVALID_ARGUMENT if
///         fd is negative or not open for writing; TGPU_ERROR_CAPTURING if the event was recorded
///         into a capture; the device statuses.
///
/// Ownership: the descriptor is duplicated during the call, so the caller may close its own at
/// once.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_event_signal_fd(e: tgpu_event, fd: c_int) -> tgpu_status {
    guard(|| core::event::signal_fd(event(e), check_fd(fd)?))
}

/// Gives the vendor's handle of an event, for use with the vendor's libraries.
///
/// @param e    the event.
/// @param out  receives a hipEvent_t or a CUevent; for host devices a number without other use.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if e is no live event; TGPU_ERROR_INVALID_ARGUMENT if
///         out is NULL, or the event was never recorded and so belongs to no device yet; the device
///         statuses.
///
/// Ownership: stays ours: do not destroy it. It is valid until the event is recorded on another
/// device or destroyed.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_event_native(e: tgpu_event, out: *mut *mut c_void) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::event::native(event(e))?);
        Ok(())
    })
}
