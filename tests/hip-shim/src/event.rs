//! Events: they belong to the device that was current when they were created.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use taskgpu::backend::{EventState, RawEvent};

use crate::capture;
use crate::counts::EVENTS;
use crate::device::{current_open, Device};
use crate::entry::{write, Hip};
use crate::fault;
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::handle::Table;
use crate::pool;
use crate::runtime::{answer, runtime};
use crate::stream;

static TABLE: Table<Event> = Table::new();

/// An event.
pub struct Event {
    pub raw: RawEvent,
    device: &'static Device,
    timing: bool,
    recorded: AtomicBool,
    /// Its last record is part of a capture.
    captured: AtomicBool,
}

impl Event {
    pub fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::Acquire)
    }

    /// Refuses to be asked about while a capture has it, and in the middle of one.
    fn may_be_asked(&self) -> Hip<()> {
        capture::unsafe_call()?;
        match self.captured.load(Ordering::Acquire) {
            true => {
                capture::spoil_all();
                Err(hipErrorCapturedEvent)
            }
            false => self.device.failure.check(),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        runtime().backend.event_destroy(self.device.ordinal, self.raw);
    }
}

/// The event behind a handle.
pub fn find(handle: hipEvent_t) -> Hip<Arc<Event>> {
    TABLE.find(handle).ok_or(hipErrorInvalidHandle)
}

entries! {
    fn hipEventCreateWithFlags(call, out: *mut hipEvent_t, flags: c_uint) {
        if flags & !(hipEventBlockingSync | hipEventDisableTiming) != 0 || out.is_null() {
            return Err(hipErrorInvalidValue);
        }
        let device = current_open()?;
        let timing = flags & hipEventDisableTiming == 0;
        let event = Event {
            raw: answer(runtime().backend.event_create(device.ordinal, timing))?,
            device,
            timing,
            recorded: AtomicBool::new(false),
            captured: AtomicBool::new(false),
        };
        EVENTS.up();
        call.give(out, TABLE.insert(Arc::new(event)))
    }

    fn hipEventDestroy(call, handle: hipEvent_t) {
        let event = TABLE.take(handle).ok_or(hipErrorContextIsDestroyed)?;
        EVENTS.down();
        drop(event);
        Ok(())
    }

    /// On a stream of the event's own device.
    fn hipEventRecord(call, handle: hipEvent_t, stream: hipStream_t) {
        let (event, stream) = (find(handle)?, stream::find(stream)?);
        if event.device.ordinal != stream.device.ordinal {
            return Err(hipErrorInvalidHandle);
        }
        let mut captured = true;
        stream.queue(|| {
            captured = false;
            runtime().backend.event_record(event.device.ordinal, event.raw, stream.raw)
        })?;
        stream.set_unmarked(false);
        event.captured.store(captured, Ordering::Release);
        event.recorded.store(true, Ordering::Release);
        Ok(())
    }

    fn hipEventQuery(call, handle: hipEvent_t) {
        let event = find(handle)?;
        event.may_be_asked()?;
        let state = answer(runtime().backend.event_state(event.device.ordinal, event.raw))?;
        event.device.failure.check()?;
        match state {
            EventState::Done => Ok(()),
            EventState::Pending => Err(hipErrorNotReady),
        }
    }

    fn hipEventSynchronize(call, handle: hipEvent_t) {
        let event = find(handle)?;
        event.may_be_asked()?;
        let device = event.device;
        fault::wait(device, |slice| runtime().backend.event_block(device.ordinal, event.raw, Some(slice)))?;
        pool::release(device);
        Ok(())
    }

    fn hipEventElapsedTime(call, milliseconds: *mut f32, start: hipEvent_t, end: hipEvent_t) {
        let (start, end) = (find(start)?, find(end)?);
        let device = start.device;
        if device.ordinal != end.device.ordinal
            || !(start.timing && end.timing)
            || !(start.is_recorded() && end.is_recorded())
        {
            return Err(hipErrorInvalidHandle);
        }
        device.failure.check()?;
        let seconds = answer(runtime().backend.event_elapsed(device.ordinal, start.raw, end.raw))?;
        write(milliseconds, (seconds * 1e3) as f32)
    }
}
