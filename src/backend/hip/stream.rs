//! Streams, fences and callbacks.
//!
//! How raw streams are numbered, `common.rs` says. The legacy stream is NULL here, the only name that every version of the
//! runtime knows it by, and belongs to the device that is current.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::Arc;
use std::time::Instant;

use super::api::{call, Answer};
use super::device::{our_priority, Current, Device, Relaxed};
use super::event::create_native;
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use crate::backend::common::{
    handle, importable, imported, in_capture, is_legacy, is_own, legacy, nap, Importable, Queued,
};
use crate::backend::{
    Callback, Error, Fence, NativeHandle, NewStream, Patience, RawStream, Result, Status, StreamSpec,
};

/// The vendor's handle.
#[inline]
pub(super) fn native(stream: RawStream) -> hipStream_t {
    if is_legacy(stream) {
        null_mut()
    } else {
        handle(stream) as hipStream_t
    }
}

/// Makes the device current where a question about the stream needs it.
#[inline]
fn current_for(device: &Device, stream: RawStream) -> Result<Option<Current>> {
    if is_legacy(stream) {
        device.set_current().map(Some)
    } else {
        Ok(None)
    }
}

/// Creates a stream.
pub(super) fn create(device: &Device, spec: StreamSpec) -> Result<NewStream> {
    let _here = device.enter()?;
    let flags = if spec.legacy_order {
        hipStreamDefault
    } else {
        hipStreamNonBlocking
    };
    let mut stream = null_mut();
    // SAFETY: `stream` is writable; the device is current.
    let answer = unsafe {
        call!(
            device.api,
            hipStreamCreateWithPriority(&mut stream, flags, device.native_priority(spec.priority))
        )
    };
    device.given(answer, stream, || "cannot create a stream".into())?;
    with_priority(device, RawStream(stream as u64))
}

/// F18: a priority out of the range is clamped without a word, so the stream is asked.
fn with_priority(device: &Device, raw: RawStream) -> Result<NewStream> {
    let mut native_priority = 0;
    // Older runtimes refuse the question about the legacy stream, whose priority is the default.
    if !is_legacy(raw) {
        // SAFETY: `native_priority` is writable; the stream is live.
        let answer = unsafe {
            call!(
                device.api,
                hipStreamGetPriority(native(raw), &mut native_priority)
            )
        };
        device.check(answer, || "cannot ask for a stream's priority".into())?;
    }
    Ok(NewStream {
        raw,
        effective: our_priority(native_priority),
        native_priority,
    })
}

/// Wraps a stream of somebody else's.
pub(super) fn import(device: &Device, native: NativeHandle) -> Result<NewStream> {
    let value = native.value();
    device.open()?;
    if importable(value, "HIP")? == Importable::Legacy {
        return with_priority(device, legacy(device.ordinal));
    }
    let _here = device.enter()?;
    if let Some(owner) = owner(device, value)? {
        if owner != device.ordinal as c_int {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "the stream {value:#x} belongs to HIP device {owner}, not to device {}",
                    device.ordinal
                ),
            ));
        }
    }
    with_priority(device, imported(value))
}

/// The device of a stream. Runtimes before ROCm 5.6 tell it through another function; `None` where neither is there.
fn owner(device: &Device, value: u64) -> Result<Option<c_int>> {
    let stream = value as hipStream_t;
    let what = || format!("cannot import the stream {value:#x}");
    if let Some(ask) = device.api.hipStreamGetDevice {
        let mut owner = -1;
        let answer = Answer {
            // SAFETY: `owner` is writable; the caller vouches for the stream.
            code: unsafe { ask(stream, &mut owner) },
            function: "hipStreamGetDevice",
        };
        device.check(answer, what)?;
        return Ok(Some(owner));
    }
    let Some(ask) = device.api.hipGetStreamDeviceId else {
        return Ok(None);
    };
    // SAFETY: the caller vouches for the stream.
    match unsafe { ask(stream) } {
        owner if owner >= 0 => Ok(Some(owner)),
        _ => Err(Error::new(
            Status::InvalidArgument,
            format!("HIP device {}: {}: it is none", device.ordinal, what()),
        )),
    }
}

/// Destroys a stream of ours; an imported or legacy one is left alone.
pub(super) fn destroy(device: &Device, stream: RawStream) {
    if is_own(stream) {
        if let Ok(_here) = device.enter() {
            // SAFETY: a live stream of ours that nobody uses any more. The runtime lets its work finish. An answer
            // other than success leaves nothing to be done.
            let answer = unsafe { call!(device.api, hipStreamDestroy(native(stream))) };
            device.api.forget(answer.code);
        }
    }
}

/// True while the stream is captured, by asking, which a capture does not mind.
pub(super) fn capturing(device: &Device, stream: RawStream) -> Result<bool> {
    let _current = current_for(device, stream)?;
    let mut status = hipStreamCaptureStatusNone;
    // SAFETY: `status` is writable; the stream is live.
    let answer = unsafe { call!(device.api, hipStreamIsCapturing(native(stream), &mut status)) };
    match answer.code {
        // The legacy stream takes part in every capture of a stream that is ordered with it.
        hipErrorStreamCaptureImplicit => {
            device.api.forget(answer.code);
            Ok(true)
        }
        _ => {
            device.check(answer, || "cannot ask whether a stream is captured".into())?;
            Ok(status != hipStreamCaptureStatusNone)
        }
    }
}

pub(super) fn refuse_capture(device: &Device, stream: RawStream, what: &str) -> Result<()> {
    if capturing(device, stream)? {
        return Err(in_capture(what));
    }
    Ok(())
}

/// True when everything queued has finished. The runtime may put a marker on the stream to find out, so that this is asked
/// where somebody wants to know once, and never in a loop.
pub(super) fn idle(device: &Device, stream: RawStream) -> Result<bool> {
    // A query would destroy the capture that it asks about.
    refuse_capture(device, stream, "a query")?;
    let _current = current_for(device, stream)?;
    let _relaxed = Relaxed::enter(device.api);
    // SAFETY: the stream is live.
    let answer = unsafe { call!(device.api, hipStreamQuery(native(stream))) };
    if answer.code == hipErrorNotReady {
        // F27.
        device.api.forget(answer.code);
        return Ok(false);
    }
    device.check(answer, || "cannot ask whether a stream is idle".into())?;
    Ok(true)
}

/// A queued callback, and where it sees whether the device is gone: the runtime reports success in any case (its
/// `ihipStreamCallback`).
struct Callout {
    queued: Arc<Queued>,
    lost: Arc<AtomicI32>,
}

/// Called on a thread of the runtime's.
unsafe extern "C" fn run_callback(_stream: hipStream_t, code: hipError_t, data: *mut c_void) {
    // SAFETY: `data` came from `Box::into_raw` in `callback`; the runtime calls once.
    let callout = unsafe { Box::from_raw(data.cast::<Callout>()) };
    let well = code == hipSuccess && callout.lost.load(Ordering::Relaxed) == 0;
    callout
        .queued
        .run(if well { Status::Ok } else { Status::DeviceLost });
}

/// Queues a callback. `hipStreamAddCallback`, since every version exports it (`hipLaunchHostFunc` came with ROCm 5.3) and it
/// is told of a failure, should a runtime know of one.
pub(super) fn callback(device: &Device, stream: RawStream, callback: Callback) -> Result<()> {
    refuse_capture(device, stream, "a callback")?;
    let _current = device.set_current()?;
    let queued = Queued::new(callback);
    let data = Box::into_raw(Box::new(Callout {
        queued: Arc::clone(&queued),
        lost: Arc::clone(&device.lost),
    }));
    device.expect(&queued);
    // SAFETY: `run_callback` takes `data` as it is handed over here.
    let answer = unsafe {
        call!(
            device.api,
            hipStreamAddCallback(native(stream), run_callback, data.cast(), 0)
        )
    };
    if answer.code == hipSuccess {
        if device.lost.load(Ordering::Relaxed) != 0 {
            // Perhaps too late for those who called back what was there when the device was found lost.
            device.call_back_lost();
        }
        return Ok(());
    }
    // An error may be an older one of the device's and the callback queued all the same. Whoever takes it out first
    // decides; the runtime's share of the shell stays, since it may still come.
    match queued.take() {
        Some(_) => Err(device.failure(answer, "cannot queue a callback")),
        None => Ok(()),
    }
}

// ---- Fences. The mark: 0 fresh; else an event of ours.

/// Marks "everything queued so far". Puts nothing on the stream yet.
pub(super) fn fence(device: &Device, stream: RawStream) -> Result<Fence> {
    refuse_capture(device, stream, "a wait")?;
    Ok(Fence {
        device: device.ordinal,
        stream,
        mark: 0,
    })
}

fn mark_event(fence: &Fence) -> Option<hipEvent_t> {
    (fence.mark != 0).then_some(fence.mark as hipEvent_t)
}

/// Records the fence's one event, if it has none yet.
fn mark_with_event(device: &Device, fence: &mut Fence) -> Result<hipEvent_t> {
    if let Some(event) = mark_event(fence) {
        return Ok(event);
    }
    refuse_capture(device, fence.stream, "a wait")?;
    let event = match device.wait_events.pop() {
        Some(event) => event as hipEvent_t,
        None => create_native(device, "cannot create an event to wait with")?,
    };
    let recorded = device.set_current().and_then(|_current| {
        // SAFETY: stream and event are live and of one device, which is current.
        let answer = unsafe { call!(device.api, hipEventRecord(event, native(fence.stream))) };
        device.check(answer, || "cannot record an event to wait with".into())
    });
    if let Err(e) = recorded {
        device.wait_events.push(event as usize);
        return Err(e);
    }
    fence.mark = event as u64;
    Ok(event)
}

/// Asks up to `times` times in a row whether the fence has been reached. The event is recorded by the first question.
pub(super) fn fence_poll(device: &Device, fence: &mut Fence, times: u32) -> Result<bool> {
    let event = mark_with_event(device, fence)?;
    event_reached(device, event, times)
}

/// Sleeps until the fence is reached or the patience is over.
pub(super) fn fence_block(device: &Device, fence: &mut Fence, patience: Patience) -> Result<bool> {
    let event = mark_with_event(device, fence)?;
    block_on(device, event, patience)
}

/// Gives the fence's event back. It may be recorded anew even if it was never reached.
pub(super) fn fence_drop(device: &Device, fence: &Fence) {
    if let Some(event) = mark_event(fence) {
        device.wait_events.push(event as usize);
    }
}

/// Whether an event's last record has been reached, asked up to `times` times in a row.
#[inline]
pub(super) fn event_reached(device: &Device, event: hipEvent_t, times: u32) -> Result<bool> {
    let _relaxed = Relaxed::enter(device.api);
    for _ in 0..times {
        // SAFETY: the event is live.
        let answer = unsafe { call!(device.api, hipEventQuery(event)) };
        if answer.code != hipErrorNotReady {
            device.check(answer, || "cannot ask whether an event has been reached".into())?;
            return Ok(true);
        }
        std::hint::spin_loop();
    }
    // F27.
    device.api.forget(hipErrorNotReady);
    Ok(false)
}

/// Sleeps until an event is reached, or the patience is over. The vendor has no wait with a limit: with one, it is polled
/// with naps.
pub(super) fn block_on(device: &Device, event: hipEvent_t, patience: Patience) -> Result<bool> {
    let Some(patience) = patience else {
        let _relaxed = Relaxed::enter(device.api);
        // SAFETY: the event is live. The call ends with an error when the device fails and the runtime reports it.
        let answer = unsafe { call!(device.api, hipEventSynchronize(event)) };
        device.check(answer, || "cannot wait for an event".into())?;
        return Ok(true);
    };
    let start = Instant::now();
    loop {
        if event_reached(device, event, 1)? {
            return Ok(true);
        }
        let waited = start.elapsed();
        let Some(left) = patience.checked_sub(waited).filter(|d| !d.is_zero()) else {
            return Ok(false);
        };
        std::thread::sleep(nap(waited).min(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_legacy_stream_is_null_and_others_are_themselves() {
        assert!(native(legacy(3)).is_null());
        assert_eq!(native(imported(0x7f00_1234_5670)) as u64, 0x7f00_1234_5670);
    }

    #[test]
    fn a_callback_hears_of_a_failure_that_the_runtime_keeps_to_itself() {
        for (code, lost, status) in [
            (0, 0, Status::Ok),
            (719, 0, Status::DeviceLost),
            (0, 700, Status::DeviceLost),
        ] {
            let (tell, told) = std::sync::mpsc::channel();
            let queued = Queued::new(Box::new(move |s| tell.send(s).expect("the test listens")));
            let data = Box::into_raw(Box::new(Callout {
                queued: Arc::clone(&queued),
                lost: Arc::new(AtomicI32::new(lost)),
            }));
            // SAFETY: as the runtime would call it.
            unsafe { run_callback(null_mut(), code, data.cast()) };
            assert_eq!(told.recv(), Ok(status));
            assert!(
                queued.take().is_none(),
                "the call that queued it cannot run it again"
            );
            assert_eq!(Arc::strong_count(&queued), 1);
        }
    }
}
