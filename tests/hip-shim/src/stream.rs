//! Streams: they belong to the device that was current when they were created.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use taskgpu::backend::{EventState, NativeHandle, RawEvent, RawStream, Result};

use crate::capture::{self, Capture};
use crate::counts::{MARKERS, STREAMS};
use crate::device::{self, current_open, Device};
use crate::entry::{write, Hip};
use crate::event;
use crate::fault;
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::handle::Table;
use crate::order;
use crate::pool;
use crate::runtime::{answer, runtime};

/// The handle that names the legacy stream like NULL does.
const LEGACY: usize = 1;

static TABLE: Table<Stream> = Table::new();

/// A stream.
pub struct Stream {
    pub raw: RawStream,
    pub device: &'static Device,
    flags: c_uint,
    priority: c_int,
    pub is_legacy: bool,
    pub capture: Mutex<Capture>,
    /// The legacy stream's operations that this stream is behind.
    pub seen: AtomicU64,
    /// It has work that the legacy stream has not waited for.
    pub unseen: AtomicBool,
    /// Kernels were launched on it, and nothing behind them tells the host when they are done.
    unmarked: AtomicBool,
    mark: OnceLock<Hip<RawEvent>>,
    marker: OnceLock<Hip<RawEvent>>,
}

impl Stream {
    fn new(
        device: &'static Device,
        raw: RawStream,
        flags: c_uint,
        priority: c_int,
        is_legacy: bool,
    ) -> Arc<Stream> {
        let stream = Arc::new(Stream {
            raw,
            device,
            flags,
            priority,
            is_legacy,
            capture: Mutex::default(),
            seen: AtomicU64::new(0),
            unseen: AtomicBool::new(false),
            unmarked: AtomicBool::new(false),
            mark: OnceLock::new(),
            marker: OnceLock::new(),
        });
        device.enlist(&stream);
        stream
    }

    /// The legacy stream of a device.
    pub fn legacy(device: &'static Device) -> Hip<Arc<Stream>> {
        let backend = runtime().backend;
        let new = if runtime().orders_legacy() {
            backend.stream_create(device.ordinal, device::spec(0, true))
        } else {
            // SAFETY: NULL stands for the vendor's own legacy stream.
            let null = unsafe { NativeHandle::from_caller(std::ptr::null_mut()) };
            backend.stream_import(device.ordinal, null)
        };
        answer(new).map(|new| Stream::new(device, new.raw, hipStreamDefault, 0, true))
    }

    pub fn is_blocking(&self) -> bool {
        self.flags & hipStreamNonBlocking == 0
    }

    fn event<'a>(&self, slot: &'a OnceLock<Hip<RawEvent>>) -> &'a Hip<RawEvent> {
        slot.get_or_init(|| answer(runtime().backend.event_create(self.device.ordinal, false)))
    }

    /// What the legacy stream waits for.
    pub fn mark(&self) -> Hip<RawEvent> {
        *self.event(&self.mark)
    }

    /// Queues an operation, or adds it to the capture under way.
    pub fn queue(&self, operation: impl FnOnce() -> Result<()>) -> Hip<()> {
        self.device.failure.check()?;
        if capture::takes(self)? {
            return Ok(());
        }
        order::around(self, operation)
    }

    /// Says that a kernel was launched, or that something behind the last one tells when it is done.
    pub fn set_unmarked(&self, unmarked: bool) {
        self.unmarked.store(unmarked, Ordering::Relaxed);
    }

    /// Waits for what is queued now.
    pub fn wait(&self) -> Hip<()> {
        self.set_unmarked(false);
        let backend = runtime().backend;
        let mut fence = answer(backend.fence(self.device.ordinal, self.raw))?;
        let waited = fault::wait(self.device, |slice| backend.fence_block(&mut fence, Some(slice)));
        backend.fence_drop(fence);
        waited
    }

    /// Whether everything has finished. Puts a marker behind kernels that have nothing behind them, as the vendor does.
    fn idle(&self) -> Hip<bool> {
        self.device.failure.check()?;
        let (backend, ordinal) = (runtime().backend, self.device.ordinal);
        let idle = if self.unmarked.swap(false, Ordering::Relaxed) || self.is_legacy {
            let marker = (*self.event(&self.marker))?;
            MARKERS.up();
            order::around(self, || backend.event_record(ordinal, marker, self.raw))?;
            answer(backend.event_state(ordinal, marker))? == EventState::Done
        } else {
            answer(backend.stream_idle(ordinal, self.raw))?
        };
        self.device.failure.check()?;
        Ok(idle)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let backend = runtime().backend;
        for event in [&self.mark, &self.marker] {
            if let Some(Ok(event)) = event.get() {
                backend.event_destroy(self.device.ordinal, *event);
            }
        }
        backend.stream_destroy(self.device.ordinal, self.raw);
    }
}

/// The stream behind a handle. NULL is the legacy stream of the current device.
pub fn find(handle: hipStream_t) -> Hip<Arc<Stream>> {
    match handle as usize {
        0 | LEGACY => device::current()?.legacy(),
        _ => TABLE.find(handle).ok_or(hipErrorContextIsDestroyed),
    }
}

/// Creates a stream on the current device; a priority outside the range is clamped without a word.
unsafe fn create(
    call: &crate::entry::Call,
    out: *mut hipStream_t,
    flags: c_uint,
    priority: c_int,
) -> Hip<()> {
    if flags & !hipStreamNonBlocking != 0 || out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    let device = current_open()?;
    let (least, greatest) = device.priorities()?;
    let priority = priority.clamp(greatest, least);
    let legacy_order = flags & hipStreamNonBlocking == 0;
    let new = answer(
        runtime()
            .backend
            .stream_create(device.ordinal, device::spec(priority, legacy_order)),
    )?;
    let handle = TABLE.insert(Stream::new(device, new.raw, flags, priority, false));
    STREAMS.up();
    // SAFETY: `out` is the caller's.
    unsafe { call.give(out, handle) }
}

entries! {
    fn hipStreamCreateWithPriority(call, out: *mut hipStream_t, flags: c_uint, priority: c_int) {
        create(call, out, flags, priority)
    }

    fn hipStreamCreateWithFlags(call, out: *mut hipStream_t, flags: c_uint) {
        create(call, out, flags, 0)
    }

    /// Waits for the stream's work.
    fn hipStreamDestroy(call, handle: hipStream_t) {
        if handle as usize <= LEGACY {
            return Err(hipErrorInvalidHandle);
        }
        let stream = TABLE.take(handle).ok_or(hipErrorContextIsDestroyed)?;
        STREAMS.down();
        capture::forget(&stream);
        stream.wait()
    }

    /// Puts a marker on the stream, and says whether that has been reached.
    fn hipStreamQuery(call, handle: hipStream_t) {
        let stream = find(handle)?;
        capture::refuse(&stream)?;
        match stream.idle()? {
            true => Ok(()),
            false => Err(hipErrorNotReady),
        }
    }

    /// Of the legacy stream: of all blocking streams of the device.
    fn hipStreamSynchronize(call, handle: hipStream_t) {
        let stream = find(handle)?;
        capture::refuse(&stream)?;
        stream.wait()?;
        if stream.is_legacy {
            let others = stream.device.streams();
            others.iter().filter(|other| other.is_blocking()).try_for_each(|other| other.wait())?;
        }
        pool::release(stream.device);
        Ok(())
    }

    fn hipStreamGetPriority(call, handle: hipStream_t, priority: *mut c_int) {
        write(priority, find(handle)?.priority)
    }

    fn hipStreamGetFlags(call, handle: hipStream_t, flags: *mut c_uint) {
        write(flags, find(handle)?.flags)
    }

    fn hipStreamGetDevice(call, handle: hipStream_t, device: *mut hipDevice_t) {
        write(device, find(handle)?.device.ordinal as c_int)
    }

    fn hipStreamWaitEvent(call, handle: hipStream_t, event: hipEvent_t, flags: c_uint) {
        if flags != 0 {
            return Err(hipErrorInvalidValue);
        }
        let (stream, event) = (find(handle)?, event::find(event)?);
        if !event.is_recorded() {
            return Ok(());
        }
        stream.queue(|| runtime().backend.stream_wait_event(stream.device.ordinal, stream.raw, event.raw))
    }

    /// Called once, also if the device fails, and told of success in any case.
    fn hipStreamAddCallback(call, handle: hipStream_t, function: hipStreamCallback_t, data: *mut c_void, flags: c_uint) {
        let stream = find(handle)?;
        if flags != 0 {
            return Err(hipErrorInvalidValue);
        }
        let (queued, run) = stream.device.failure.expect(function, handle, data);
        let queueing = stream.queue(|| {
            runtime().backend.stream_callback(stream.device.ordinal, stream.raw, Box::new(move |_| run()))
        });
        if queueing.is_err() {
            stream.device.failure.take_back(&queued);
        }
        queueing
    }

    /// Not called at all if the device fails.
    fn hipLaunchHostFunc(call, handle: hipStream_t, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) {
        let stream = find(handle)?;
        let data = data as usize;
        stream.queue(|| {
            let failure = &stream.device.failure;
            let run = move |_| {
                if !failure.has_failed() {
                    // SAFETY: the caller vouches for function and data.
                    unsafe { function(data as *mut c_void) };
                }
            };
            runtime().backend.stream_callback(stream.device.ordinal, stream.raw, Box::new(run))
        })
    }
}

/// What answers something else than a code, and leaves no last error behind.
pub mod numbers {
    use super::{c_int, find, hipStream_t};

    entries! { @ carry_out;
        /// The name of `hipStreamGetDevice` before 5.6: answers the device, or -1.
        fn hipGetStreamDeviceId(call, handle: hipStream_t) {
            Err(find(handle).map_or(-1, |stream| stream.device.ordinal as c_int))
        }
    }
}
pub use numbers::hipGetStreamDeviceId;
