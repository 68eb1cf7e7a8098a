//! Events. A raw event is the address of an [`Event`] of ours.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use super::api::call;
use super::device::{Device, Relaxed};
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use super::stream::{block_on, capturing, event_reached, native};
use crate::backend::common::in_capture;
use crate::backend::{Error, EventState, Patience, RawEvent, RawStream, Result, Status};

/// How every event is created. A wait for one sleeps only if this is its one flag: the runtime compares the flags and does
/// not look for the bit (`Event::synchronize` of its sources), so events without timing are told apart here.
pub(super) const FLAGS: std::ffi::c_uint = hipEventBlockingSync;

/// An event, and what the runtime does not tell about it.
#[derive(Debug)]
pub(super) struct Event {
    native: hipEvent_t,
    timing: bool,
    /// Its last record became part of a capture. To ask the runtime about it then would destroy the capture.
    captured: AtomicBool,
}

/// The event behind a raw one.
#[inline]
pub(super) fn of<'a>(raw: RawEvent) -> &'a Event {
    // SAFETY: made by `create`, and by the rules of the trait not destroyed while somebody uses it.
    unsafe { &*(raw.0 as *const Event) }
}

impl Event {
    /// The vendor's handle.
    pub(super) fn native(&self) -> hipEvent_t {
        self.native
    }

    fn refuse_captured(&self, what: &str) -> Result<()> {
        if self.captured.load(Ordering::Acquire) {
            return Err(in_capture(what));
        }
        Ok(())
    }
}

/// A new event of the vendor's. It belongs to the device that is current while it is created.
pub(super) fn create_native(device: &Device, what: &str) -> Result<hipEvent_t> {
    let _here = device.enter()?;
    let mut event = null_mut();
    // SAFETY: `event` is writable; the device is current.
    let answer = unsafe { call!(device.api, hipEventCreateWithFlags(&mut event, FLAGS)) };
    device.given(answer, event, || what.into())?;
    Ok(event)
}

pub(super) fn create(device: &Device, timing: bool) -> Result<RawEvent> {
    let event = Box::new(Event {
        native: create_native(device, "cannot create an event")?,
        timing,
        captured: AtomicBool::new(false),
    });
    Ok(RawEvent(Box::into_raw(event) as u64))
}

pub(super) fn destroy(device: &Device, raw: RawEvent) {
    // SAFETY: made by `create`; the last use is over.
    let event = unsafe { Box::from_raw(raw.0 as *mut Event) };
    if let Ok(_here) = device.enter() {
        // SAFETY: a live event of ours. Waits already queued keep what they need of it.
        let answer = unsafe { call!(device.api, hipEventDestroy(event.native)) };
        device.api.forget(answer.code);
    }
}

pub(super) fn record(device: &Device, raw: RawEvent, stream: RawStream) -> Result<()> {
    let event = of(raw);
    let captured = capturing(device, stream)?;
    let _current = device.set_current()?;
    // SAFETY: event and stream are live and of one device, which is current.
    let answer = unsafe { call!(device.api, hipEventRecord(event.native, native(stream))) };
    device.check(answer, || "cannot record an event".into())?;
    event.captured.store(captured, Ordering::Release);
    Ok(())
}

pub(super) fn wait(device: &Device, stream: RawStream, raw: RawEvent) -> Result<()> {
    let _current = device.set_current()?;
    // SAFETY: event and stream are live; they may be of different devices.
    let answer = unsafe { call!(device.api, hipStreamWaitEvent(native(stream), of(raw).native, 0)) };
    device.check(answer, || "cannot make a stream wait for an event".into())
}

pub(super) fn state(device: &Device, raw: RawEvent) -> Result<EventState> {
    let event = of(raw);
    event.refuse_captured("a query of an event recorded there")?;
    Ok(if event_reached(device, event.native, 1)? {
        EventState::Done
    } else {
        EventState::Pending
    })
}

pub(super) fn block(device: &Device, raw: RawEvent, patience: Patience) -> Result<bool> {
    let event = of(raw);
    event.refuse_captured("a wait for an event recorded there")?;
    block_on(device, event.native, patience)
}

pub(super) fn elapsed(device: &Device, start: RawEvent, end: RawEvent) -> Result<f64> {
    for (event, which) in [(of(start), "start"), (of(end), "end")] {
        event.refuse_captured("a look at an event recorded there")?;
        if !event.timing {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("the {which} event was created without timing"),
            ));
        }
    }
    let mut milliseconds = 0f32;
    let _relaxed = Relaxed::enter(device.api);
    // SAFETY: `milliseconds` is writable; both events are live.
    let answer = unsafe {
        call!(
            device.api,
            hipEventElapsedTime(&mut milliseconds, of(start).native, of(end).native)
        )
    };
    if answer.code == hipErrorNotReady {
        device.api.forget(answer.code);
        return Err(Error::new(
            Status::NotReady,
            "the events have not been reached yet",
        ));
    }
    device.check(answer, || "cannot ask for the time between two events".into())?;
    Ok(f64::from(milliseconds) * 1e-3)
}
