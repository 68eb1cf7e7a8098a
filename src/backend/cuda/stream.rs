//! Streams, fences and callbacks.
//!
//! How raw streams are numbered, `common.rs` says.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Instant;

use super::api::{
    call, CuContext, CuEvent, CuResult, CuStream, CAPTURE_STATUS_NONE, EVENT_BLOCKING_SYNC,
    EVENT_DISABLE_TIMING, STREAM_DEFAULT, STREAM_NON_BLOCKING,
};
use super::codes::{status_of, NOT_READY, SUCCESS};
use super::device::{Device, Entered, Relaxed};
use crate::backend::common::{
    handle, importable, imported, in_capture, is_legacy, is_own, legacy, nap, Importable, Queued,
    STREAM_LEGACY,
};
use crate::backend::{
    Callback, Error, Fence, NativeHandle, NewStream, Patience, RawStream, Result, Status, StreamSpec,
};

/// The vendor's handle.
#[inline]
pub(super) fn native(stream: RawStream) -> CuStream {
    if is_legacy(stream) {
        STREAM_LEGACY as CuStream
    } else {
        handle(stream) as CuStream
    }
}

/// Makes the context current where the stream needs it; for other streams nothing is done.
#[inline]
pub(super) fn context_for(device: &Device, stream: RawStream) -> Result<Option<Entered<'_>>> {
    if is_legacy(stream) {
        device.enter().map(Some)
    } else {
        Ok(None)
    }
}

/// Creates a stream.
pub(super) fn create(device: &Device, spec: StreamSpec) -> Result<NewStream> {
    let _here = device.enter()?;
    let flags = if spec.legacy_order {
        STREAM_DEFAULT
    } else {
        STREAM_NON_BLOCKING
    };
    let mut stream = null_mut();
    // SAFETY: `stream` is writable; the context is current.
    let answer = unsafe {
        call!(
            device.api,
            cuStreamCreateWithPriority(&mut stream, flags, device.native_priority(spec.priority))
        )
    };
    device.check(answer, || "cannot create a stream".into())?;
    with_priority(device, RawStream(stream as u64))
}

fn with_priority(device: &Device, raw: RawStream) -> Result<NewStream> {
    let mut native_priority = 0;
    // SAFETY: `native_priority` is writable; the stream is live.
    let answer = unsafe { call!(device.api, cuStreamGetPriority(native(raw), &mut native_priority)) };
    device.check(answer, || "cannot ask for a stream's priority".into())?;
    Ok(NewStream {
        raw,
        effective: Device::our_priority(native_priority),
        native_priority,
    })
}

/// Wraps a stream of somebody else's.
pub(super) fn import(device: &Device, native: NativeHandle) -> Result<NewStream> {
    let value = native.value();
    if importable(value, "CUDA")? == Importable::Legacy {
        let _here = device.enter()?;
        return with_priority(device, legacy(device.ordinal));
    }
    let _here = device.enter()?;
    let mut owner: CuContext = null_mut();
    // SAFETY: `owner` is writable; the caller vouches for the stream.
    let answer = unsafe { call!(device.api, cuStreamGetCtx(value as CuStream, &mut owner)) };
    device.check(answer, || format!("cannot import the stream {value:#x}"))?;
    if owner != device.context() {
        return Err(foreign(device, value, owner));
    }
    with_priority(device, imported(value))
}

#[cold]
fn foreign(device: &Device, stream: u64, owner: CuContext) -> Error {
    let mut ordinal = -1;
    // SAFETY: `owner` is a live context, as the driver has just said; push and pop are a pair.
    unsafe {
        if (device.api.cuCtxPushCurrent_v2)(owner) == SUCCESS {
            (device.api.cuCtxGetDevice)(&mut ordinal);
            (device.api.cuCtxPopCurrent_v2)(&mut null_mut());
        }
    }
    if ordinal >= 0 && ordinal != device.cu {
        return Error::new(
            Status::InvalidDevice,
            format!(
                "the stream {stream:#x} belongs to CUDA device {ordinal}, not to device {}",
                device.ordinal
            ),
        );
    }
    Error::new(
        Status::NotSupported,
        format!(
            "the stream {stream:#x} belongs to a context of its own on CUDA device {}; only streams of the primary context can be imported",
            device.ordinal
        ),
    )
}

/// Destroys a stream of ours; an imported or legacy one is left alone.
pub(super) fn destroy(device: &Device, stream: RawStream) {
    if is_own(stream) {
        let _relaxed = Relaxed::enter(device.api);
        // SAFETY: a live stream of ours that nobody uses any more. The driver lets its work finish. An answer
        // other than success leaves nothing to be done.
        let _ = unsafe { call!(device.api, cuStreamDestroy_v2(native(stream))) };
    }
}

/// True while the stream is captured, by asking, which a capture does not mind.
pub(super) fn capturing(device: &Device, stream: RawStream) -> Result<bool> {
    let _context = context_for(device, stream)?;
    let mut status = CAPTURE_STATUS_NONE;
    // SAFETY: `status` is writable; the stream is live.
    let answer = unsafe { call!(device.api, cuStreamIsCapturing(native(stream), &mut status)) };
    match status_of(answer.code) {
        // The legacy stream takes part in every capture of a stream that is ordered with it.
        Status::Capturing => Ok(true),
        _ => {
            device.check(answer, || "cannot ask whether a stream is captured".into())?;
            Ok(status != CAPTURE_STATUS_NONE)
        }
    }
}

pub(super) fn refuse_capture(device: &Device, stream: RawStream, what: &str) -> Result<()> {
    if capturing(device, stream)? {
        return Err(in_capture(what));
    }
    Ok(())
}

/// True when everything queued has finished.
pub(super) fn idle(device: &Device, stream: RawStream) -> Result<bool> {
    query(device, stream, 1)
}

/// Asks up to `times` times in a row whether everything queued has finished.
fn query(device: &Device, stream: RawStream, times: u32) -> Result<bool> {
    // A query would destroy the capture that it asks about.
    refuse_capture(device, stream, "a query")?;
    let _context = context_for(device, stream)?;
    let _relaxed = Relaxed::enter(device.api);
    for _ in 0..times {
        // SAFETY: the stream is live.
        let answer = unsafe { call!(device.api, cuStreamQuery(native(stream))) };
        if answer.code != NOT_READY {
            device.check(answer, || "cannot ask whether a stream is idle".into())?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Called on a thread of the driver's, also when the device failed.
unsafe extern "C" fn run_callback(_stream: CuStream, code: CuResult, data: *mut c_void) {
    // SAFETY: `data` came from `Arc::into_raw` in `callback`; the driver calls once.
    let queued = unsafe { Arc::from_raw(data.cast::<Queued>()) };
    queued.run(match status_of(code) {
        Status::Ok => Status::Ok,
        _ => Status::DeviceLost,
    });
}

/// Queues a callback. `cuStreamAddCallback` and not `cuLaunchHostFunc`: the latter stays silent when the device
/// fails (seen with driver 580), and a waiter would sleep for ever.
pub(super) fn callback(device: &Device, stream: RawStream, callback: Callback) -> Result<()> {
    refuse_capture(device, stream, "a callback")?;
    let _context = context_for(device, stream)?;
    let queued = Queued::new(callback);
    let data = Arc::into_raw(Arc::clone(&queued)).cast_mut().cast();
    // SAFETY: `run_callback` takes `data` as it is handed over here.
    let answer = unsafe {
        call!(
            device.api,
            cuStreamAddCallback(native(stream), run_callback, data, 0)
        )
    };
    if answer.code == SUCCESS {
        return Ok(());
    }
    // An error may be an older one of the device's and the callback queued all the same. Whoever takes it out first
    // decides; the driver's share of the shell stays, since it may still come.
    if queued.take().is_some() {
        return Err(device.failure(answer, "cannot queue a callback"));
    }
    Ok(())
}

// ---- Fences. The mark: 0 fresh; odd: polls so far, times two, plus one; else an event of ours.

/// Polls of the stream itself before an event is recorded: from then on somebody who keeps queueing work cannot
/// make this wait last for ever.
const POLLS_WITHOUT_EVENT: u64 = 4096;

/// Marks "everything queued so far". Puts nothing on the stream yet.
pub(super) fn fence(device: &Device, stream: RawStream) -> Result<Fence> {
    refuse_capture(device, stream, "a wait")?;
    Ok(Fence {
        device: device.ordinal,
        stream,
        mark: 0,
    })
}

fn mark_event(fence: &Fence) -> Option<CuEvent> {
    (fence.mark != 0 && fence.mark & 1 == 0).then_some(fence.mark as CuEvent)
}

/// Records the fence's one event, if it has none yet.
fn mark_with_event(device: &Device, fence: &mut Fence) -> Result<CuEvent> {
    if let Some(event) = mark_event(fence) {
        return Ok(event);
    }
    refuse_capture(device, fence.stream, "a wait")?;
    let event = match device.wait_events.pop() {
        Some(event) => event as CuEvent,
        None => {
            let _here = device.enter()?;
            let mut event = null_mut();
            // SAFETY: `event` is writable; the context is current.
            let answer = unsafe {
                call!(
                    device.api,
                    cuEventCreate(&mut event, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING)
                )
            };
            device.check(answer, || "cannot create an event to wait with".into())?;
            event
        }
    };
    let _context = context_for(device, fence.stream)?;
    // SAFETY: stream and event are live and of one context.
    let answer = unsafe { call!(device.api, cuEventRecord(event, native(fence.stream))) };
    if let Err(e) = device.check(answer, || "cannot record an event to wait with".into()) {
        device.wait_events.push(event as usize);
        return Err(e);
    }
    fence.mark = event as u64;
    Ok(event)
}

/// True when the fence has been reached.
pub(super) fn fence_reached(device: &Device, fence: &mut Fence) -> Result<bool> {
    fence_poll(device, fence, 1)
}

/// Asks up to `times` times in a row. What surrounds a question (is the stream captured, is the thread's capture mode
/// relaxed) costs half as much as the question, and is done once for all of them.
pub(super) fn fence_poll(device: &Device, fence: &mut Fence, times: u32) -> Result<bool> {
    if let Some(event) = mark_event(fence) {
        for _ in 0..times {
            if event_reached(device, event)? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    if query(device, fence.stream, times)? {
        return Ok(true);
    }
    if fence.mark >> 1 >= POLLS_WITHOUT_EVENT {
        mark_with_event(device, fence)?;
    } else {
        fence.mark = (fence.mark | 1) + 2 * u64::from(times);
    }
    Ok(false)
}

/// Sleeps until the fence is reached or the patience is over.
pub(super) fn fence_block(device: &Device, fence: &mut Fence, patience: Patience) -> Result<bool> {
    // Often the work is done by now, and no event is needed.
    if mark_event(fence).is_none() && idle(device, fence.stream)? {
        return Ok(true);
    }
    let event = mark_with_event(device, fence)?;
    block_on(device, event, patience)
}

/// Gives the fence's event back. It may be recorded anew even if it was never reached.
pub(super) fn fence_drop(device: &Device, fence: &Fence) {
    if let Some(event) = mark_event(fence) {
        device.wait_events.push(event as usize);
    }
}

/// Whether an event's last record has been reached.
#[inline]
pub(super) fn event_reached(device: &Device, event: CuEvent) -> Result<bool> {
    let _relaxed = Relaxed::enter(device.api);
    // SAFETY: the event is live.
    let answer = unsafe { call!(device.api, cuEventQuery(event)) };
    if answer.code == NOT_READY {
        return Ok(false);
    }
    device.check(answer, || "cannot ask whether an event has been reached".into())?;
    Ok(true)
}

/// Sleeps until an event made with `EVENT_BLOCKING_SYNC` is reached, or the patience is over. The vendor has no
/// wait with a limit: with one, it is polled with naps of a sixteenth of the time waited so far.
pub(super) fn block_on(device: &Device, event: CuEvent, patience: Patience) -> Result<bool> {
    let Some(patience) = patience else {
        let _relaxed = Relaxed::enter(device.api);
        // SAFETY: the event is live. The call ends with an error when the device fails.
        let answer = unsafe { call!(device.api, cuEventSynchronize(event)) };
        device.check(answer, || "cannot wait for an event".into())?;
        return Ok(true);
    };
    let start = Instant::now();
    loop {
        if event_reached(device, event)? {
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
    fn the_legacy_stream_has_the_vendors_number() {
        assert_eq!(native(legacy(3)) as u64, STREAM_LEGACY);
        assert_eq!(native(imported(0x7f00_1234_5670)) as u64, 0x7f00_1234_5670);
    }

    #[test]
    fn a_callback_hears_of_failure_and_success_once() {
        for (code, status) in [
            (0, Status::Ok),
            (719, Status::DeviceLost),
            (4, Status::DeviceLost),
        ] {
            let (tell, told) = std::sync::mpsc::channel();
            let callback: Callback = Box::new(move |s| tell.send(s).expect("the test listens"));
            let queued = Queued::new(callback);
            let data = Arc::into_raw(Arc::clone(&queued)).cast_mut().cast();
            // SAFETY: as the driver would call it.
            unsafe { run_callback(null_mut(), code, data) };
            assert_eq!(told.recv(), Ok(status));
            assert!(
                queued.take().is_none(),
                "the call that queued it cannot run it again"
            );
            assert_eq!(Arc::strong_count(&queued), 1);
        }
    }
}
