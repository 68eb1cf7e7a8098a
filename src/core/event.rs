//! Events: points in streams.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::os::SignalFd;
use crate::backend::{Error, EventState, Patience, RawEvent, Result, Status};

use super::device::Device;
use super::handle::{EventHandle, Kind, Object, Objects, Place, StreamHandle, Table};
use super::reaper::{self, Remains};
use super::registry;
use super::stream::{self, Stream};
use super::sync::{self, Awaited, Predictor};
use super::task;

/// An event of a backend, destroyed with its last user.
pub(crate) struct Recorded {
    pub(crate) device: &'static Device,
    pub(crate) raw: RawEvent,
    /// The vendor's handle was given out, and goes on naming the caller's event.
    known: AtomicBool,
}

impl Recorded {
    pub(crate) fn create(device: &'static Device, timing: bool) -> Result<Recorded> {
        let raw = device
            .backend
            .event_create(device.ordinal, timing)
            .map_err(|e| device.concern(e))?;
        let known = AtomicBool::new(false);
        Ok(Recorded { device, raw, known })
    }

    /// Records it on a stream of the same device.
    pub(crate) fn record(&self, stream: &Stream) -> Result<()> {
        let Device { backend, ordinal, .. } = *self.device;
        stream
            .queue(|raw| backend.event_record(ordinal, self.raw, raw))
            .map_err(|e| stream.concern(e))
    }

    /// True when it has been reached.
    pub(crate) fn done(&self) -> Result<bool> {
        let state = self.device.backend.event_state(self.device.ordinal, self.raw);
        state
            .map(|state| state == EventState::Done)
            .map_err(|e| self.device.concern(e))
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        reaper::leave(Remains::Event {
            device: self.device,
            raw: self.raw,
        });
    }
}

impl Awaited for &Recorded {
    #[inline]
    fn reached(&mut self) -> Result<bool> {
        let state = self.device.backend.event_state(self.device.ordinal, self.raw)?;
        Ok(state == EventState::Done)
    }

    fn block(&mut self, patience: Patience) -> Result<bool> {
        self.device
            .backend
            .event_block(self.device.ordinal, self.raw, patience)
    }

    fn worth_polling(&self) -> Duration {
        self.device.backend.worth_polling()
    }
}

/// What a caller's handle names: the backend's event comes with the first record.
struct Event {
    timing: bool,
    last: Mutex<Option<Arc<Recorded>>>,
    waits: Predictor,
    place: Place<Event>,
}

static EVENTS: Objects<Event> = Table::new(Kind::Event);

impl Object for Event {
    type Words = ();

    fn table() -> &'static Objects<Event> {
        &EVENTS
    }

    fn place(&self) -> &Place<Event> {
        &self.place
    }
}

/// What an event recorded last, `None` if it never was.
pub(crate) fn recorded(handle: EventHandle) -> Result<Option<Arc<Recorded>>> {
    Ok(EVENTS.get(handle.bits())?.last.lock().clone())
}

/// Makes an event that belongs to no device yet.
pub fn create(timing: bool) -> Result<EventHandle> {
    task::allowed()?;
    reaper::keep_pace();
    let event = Event {
        timing,
        last: Mutex::new(None),
        waits: Predictor::default(),
        place: Place::take()?,
    };
    Ok(EventHandle::from_bits(EVENTS.insert(Arc::new(event))))
}

/// Ends an event's handle. Waits already queued for it still happen.
pub fn destroy(handle: EventHandle) -> Result<()> {
    if handle.is_null() || registry::forked() {
        return Ok(());
    }
    match EVENTS.remove(handle.bits()) {
        Some(_) => Ok(()),
        None => Err(EVENTS.invalid(handle.bits())),
    }
}

/// Marks the point "everything queued so far" of a stream, replacing an earlier mark.
pub fn record(handle: EventHandle, stream: StreamHandle) -> Result<()> {
    let stream = stream::resolve(task::here()?, stream)?;
    let event = EVENTS.get(handle.bits())?;
    // The lock is held over the vendor's call, which only enqueues: two threads that record one event must leave
    // the mark that was made last.
    let mut last = event.last.lock();
    if let Some(recorded) = last.as_ref() {
        // Who waits holds the mark it waits for, and must not be made to wait for this one.
        let unwatched = Arc::strong_count(recorded) == 1 || recorded.known.load(Ordering::Relaxed);
        if recorded.device.index == stream.device.index && unwatched {
            return recorded.record(&stream);
        }
    }
    let recorded = Recorded::create(stream.device, event.timing)?;
    recorded.record(&stream)?;
    *last = Some(Arc::new(recorded));
    Ok(())
}

/// True when the last mark has been reached, or none was made.
pub fn query(handle: EventHandle) -> Result<bool> {
    task::allowed()?;
    recorded(handle)?.map_or(Ok(true), |recorded| recorded.done())
}

/// Waits for the last mark, in the task's way; `false` if `patience` was over first.
pub fn synchronize(handle: EventHandle, patience: Patience) -> Result<bool> {
    let task = task::here()?;
    let event = EVENTS.get(handle.bits())?;
    let Some(recorded) = event.last.lock().clone() else {
        return Ok(true);
    };
    sync::wait(&mut &*recorded, task.wait_policy(), &event.waits, patience)
        .map_err(|e| recorded.device.concern(e))
}

/// Seconds from one event's mark to another's.
pub fn elapsed(start: EventHandle, end: EventHandle) -> Result<f64> {
    task::allowed()?;
    let start = timed(start, "start")?;
    let end = timed(end, "end")?;
    if start.device.index != end.device.index {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "the start event was recorded on device {} and the end event on device {}; clocks of two devices \
                 cannot be compared",
                start.device.index, end.device.index
            ),
        ));
    }
    if !start.done()? || !end.done()? {
        return Err(Error::new(Status::NotReady, "an event has not been reached yet"));
    }
    let Device { backend, ordinal, .. } = *start.device;
    backend
        .event_elapsed(ordinal, start.raw, end.raw)
        .map_err(|e| start.device.concern(e))
}

fn timed(handle: EventHandle, which: &str) -> Result<Arc<Recorded>> {
    let event = EVENTS.get(handle.bits())?;
    if !event.timing {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "the {which} event {:#x} was created without timing",
                handle.bits()
            ),
        ));
    }
    let last = event.last.lock().clone();
    last.ok_or_else(|| {
        Error::new(
            Status::InvalidArgument,
            format!("the {which} event {:#x} was never recorded", handle.bits()),
        )
    })
}

/// Adds 1 to a descriptor when the last mark has been reached; at once if none was made.
pub fn signal_fd(handle: EventHandle, fd: i32) -> Result<()> {
    task::allowed()?;
    let recorded = recorded(handle)?;
    let fd = SignalFd::dup(fd)?;
    match recorded {
        None => fd.signal(),
        // On a stream of its own: behind somebody's work the signal would come late.
        Some(recorded) => recorded.device.aside(|stream| {
            stream.wait_recorded(&recorded)?;
            stream.call_back(Box::new(move |_| fd.signal()))
        })?,
    }
    Ok(())
}

/// The vendor's handle of the last mark.
pub fn native(handle: EventHandle) -> Result<*mut c_void> {
    task::allowed()?;
    let event = EVENTS.get(handle.bits())?;
    let last = event.last.lock();
    let Some(recorded) = last.as_ref() else {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "the event {:#x} has no vendor's event before it is recorded",
                handle.bits()
            ),
        ));
    };
    recorded.known.store(true, Ordering::Relaxed);
    recorded
        .device
        .backend
        .event_native(recorded.device.ordinal, recorded.raw)
        .map_err(|e| recorded.device.concern(e))
}
