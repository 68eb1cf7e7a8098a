//! Streams: work in order. Owned by the caller, leased to a task, or imported from a vendor's program.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::os::SignalFd;
use crate::backend::{
    Callback, Error, Fence, Gate, NativeHandle, NewStream, Patience, Priority, RawStream, Result, Status,
    StreamSpec,
};

use super::across;
use super::calls::Call;
use super::device::{self, Device};
use super::event::{self, Recorded};
use super::handle::{EventHandle, Held, Home, Kind, Object, Objects, Place, StreamHandle, Table};
use super::kernel;
use super::reaper::{self, Remains};
use super::registry;
use super::sync::{self, Awaited, Predictor, WaitPolicy};
use super::task::{self, Task};

/// Who a stream belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum StreamKind {
    /// To one task, until it ends.
    Leased = 0,
    /// To the caller, until destroyed.
    Owned = 1,
    /// To somebody who uses the vendor's runtime directly.
    Imported = 2,
}

/// Everything that was queued through us has finished.
const NONE: u64 = 0;
/// There may be unfinished work. Greater numbers: the same, and the look of that number is about to find out.
const SOME: u64 = 1;

/// A stream of a device.
pub(crate) struct Stream {
    pub(crate) device: &'static Device,
    raw: RawStream,
    pub(crate) id: u64,
    kind: StreamKind,
    priority: Priority,
    effective: Priority,
    native_priority: i32,
    waits: Predictor,
    place: Place<Stream>,
}

/// What launches read and write of a stream.
#[derive(Default)]
pub(crate) struct Words {
    raw: AtomicU64,
    id: AtomicU64,
    device: AtomicU32,
    leased: AtomicU8,
    /// What is known about unfinished work.
    work: AtomicU64,
    /// The number of the last look whether there is any.
    looks: AtomicU64,
    /// The vendor's handle was given out: others may queue work.
    shared: AtomicBool,
    /// The number of the kernel last launched, for the text after a device was lost.
    last_kernel: AtomicU64,
}

/// Where a stream's handle is checked.
pub(crate) type StreamSlot = Home<Stream>;

static STREAMS: Objects<Stream> = Table::new(Kind::Stream);

impl Object for Stream {
    type Words = Words;

    fn table() -> &'static Objects<Stream> {
        &STREAMS
    }

    fn place(&self) -> &Place<Stream> {
        &self.place
    }
}

impl Words {
    /// Queues work.
    #[inline]
    fn queue<T>(&self, raw: RawStream, work: impl FnOnce(RawStream) -> T) -> T {
        let queued = work(raw);
        // Afterwards: a look that does not see this work has begun before it was queued, and said so before.
        self.work.store(SOME, Ordering::Release);
        queued
    }

    /// Says that somebody is about to look whether everything queued so far has finished. Gives the look's number.
    fn begin_look(&self) -> u64 {
        let number = SOME + 1 + self.looks.fetch_add(1, Ordering::Relaxed);
        if self.work.load(Ordering::Relaxed) != NONE {
            self.work.store(number, Ordering::SeqCst);
        }
        number
    }

    /// Remembers that a look found everything finished, if nothing was queued since it began.
    fn found_idle(&self, number: u64) {
        // Fails where something was queued, and where a later look has begun, which sees more.
        let _ = self
            .work
            .compare_exchange(number, NONE, Ordering::Release, Ordering::Relaxed);
    }

    /// True where no work is unfinished and the vendor need not be asked, who may put something on the stream to find out.
    fn known_idle(&self) -> bool {
        self.work.load(Ordering::Acquire) == NONE && !self.shared.load(Ordering::Relaxed)
    }
}

impl Stream {
    pub(crate) fn new(
        place: Place<Stream>,
        device: &'static Device,
        new: NewStream,
        id: u64,
        kind: StreamKind,
        priority: Priority,
    ) -> Stream {
        place.raw.store(new.raw.value(), Ordering::Release);
        place.id.store(id, Ordering::Release);
        place.device.store(device.index, Ordering::Release);
        place
            .leased
            .store(u8::from(kind == StreamKind::Leased), Ordering::Release);
        place.work.store(NONE, Ordering::Release);
        place
            .shared
            .store(kind == StreamKind::Imported, Ordering::Release);
        place.last_kernel.store(0, Ordering::Release);
        Stream {
            device,
            raw: new.raw,
            id,
            kind,
            priority,
            effective: new.effective,
            native_priority: new.native_priority,
            waits: Predictor::default(),
            place,
        }
    }

    /// Names the stream and its device in an error of the backend.
    #[cold]
    pub(crate) fn concern(&self, error: Error) -> Error {
        self.device.concern(error).on_stream(self.id)
    }

    /// The stream for the backend, to look at it.
    pub(crate) fn raw(&self) -> RawStream {
        self.raw
    }

    /// Queues work.
    #[inline]
    pub(crate) fn queue<T>(&self, work: impl FnOnce(RawStream) -> T) -> T {
        self.place.queue(self.raw, work)
    }

    /// True where the stream is known to have no unfinished work, without a question to anybody.
    pub(crate) fn is_known_idle(&self) -> bool {
        self.place.known_idle()
    }

    /// True when everything queued has finished.
    fn idle(&self) -> Result<bool> {
        let Device { backend, ordinal, .. } = *self.device;
        if self.is_known_idle() {
            return Ok(true);
        }
        let look = self.place.begin_look();
        let idle = backend
            .stream_idle(ordinal, self.raw)
            .map_err(|e| self.concern(e))?;
        if idle {
            self.place.found_idle(look);
        }
        Ok(idle)
    }

    /// False for a stream that somebody else made and may destroy.
    pub(crate) fn is_ours(&self) -> bool {
        self.kind != StreamKind::Imported
    }

    pub(crate) fn launched(&self, kernel: u64) {
        self.place.last_kernel.store(kernel, Ordering::Relaxed);
    }

    /// The name of the kernel last launched.
    pub(crate) fn last_kernel(&self) -> Option<String> {
        kernel::name(self.place.last_kernel.load(Ordering::Relaxed))
    }

    /// Waits for everything queued so far; `false` if `patience` was over first.
    pub(crate) fn wait(&self, policy: WaitPolicy, patience: Patience) -> Result<bool> {
        if patience == Some(Duration::ZERO) {
            // There is no time for anything to happen: a question, which puts no event of a wait on the stream.
            return self.idle();
        }
        self.point()?.wait(policy, patience)
    }

    /// The end of what is queued now, to be waited for.
    pub(crate) fn point(&self) -> Result<Point<'_>> {
        let Device { backend, ordinal, .. } = *self.device;
        let look = self.place.begin_look();
        let fence = backend.fence(ordinal, self.raw).map_err(|e| self.concern(e))?;
        let reach = Reach {
            stream: self,
            fence: Some(fence),
        };
        Ok(Point { reach, look })
    }

    /// Lets later work wait for what was recorded.
    pub(crate) fn wait_recorded(&self, recorded: &Recorded) -> Result<()> {
        let Device { backend, ordinal, .. } = *self.device;
        if !device::same_backend(self.device, recorded.device) {
            return across::wait(self, recorded);
        }
        self.queue(|raw| backend.stream_wait_event(ordinal, raw, recorded.raw))
            .map_err(|e| self.concern(e))
    }

    /// Holds later work back until the gate is opened that `arrange` gets first.
    pub(crate) fn gate(&self, arrange: impl FnOnce(Gate) -> Result<()>) -> Result<()> {
        let Device { backend, ordinal, .. } = *self.device;
        self.queue(|raw| backend.stream_gate(ordinal, raw, Box::new(arrange)))
            .map_err(|e| self.concern(e))
    }

    /// Records a new event without timing.
    pub(crate) fn record(&self) -> Result<Arc<Recorded>> {
        let recorded = Recorded::create(self.device, false)?;
        recorded.record(self)?;
        Ok(Arc::new(recorded))
    }

    /// Calls `callback` once after the work queued so far, as a callback: the runtime is out of its reach.
    pub(crate) fn call_back(&self, callback: Callback) -> Result<()> {
        let Device { backend, ordinal, .. } = *self.device;
        let guarded: Callback = Box::new(move |status| task::in_callback(|| callback(status)));
        self.queue(|raw| backend.stream_callback(ordinal, raw, guarded))
            .map_err(|e| self.concern(e))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.device.delist(self.raw);
        // Not at once: a call in progress may have found it and counts no reference.
        reaper::leave(Remains::RawStream {
            device: self.device,
            raw: self.raw,
        });
    }
}

/// The end of what a stream holds, for those who look at it from time to time: a fence, once there is one. The stream itself
/// is not asked again and again, since that may put something on it each time.
#[derive(Default)]
pub(crate) struct End(Option<Fence>);

impl End {
    /// True when everything has passed that the stream held at the first question.
    pub(crate) fn reached(&mut self, device: &Device, raw: RawStream) -> Result<bool> {
        let fence = match self.0.take() {
            Some(fence) => fence,
            None => device.backend.fence(device.ordinal, raw)?,
        };
        device.backend.fence_reached(self.0.insert(fence))
    }

    pub(crate) fn give_back(self, device: &Device) {
        if let Some(fence) = self.0 {
            device.backend.fence_drop(fence);
        }
    }
}

/// A fence that is waited for.
struct Reach<'a> {
    stream: &'a Stream,
    fence: Option<Fence>,
}

impl Awaited for Reach<'_> {
    #[inline]
    fn reached(&mut self) -> Result<bool> {
        self.fence
            .as_mut()
            .map_or(Ok(true), |fence| self.stream.device.backend.fence_reached(fence))
    }

    #[inline]
    fn poll(&mut self, times: u32) -> Result<bool> {
        let backend = self.stream.device.backend;
        self.fence
            .as_mut()
            .map_or(Ok(true), |fence| backend.fence_poll(fence, times))
    }

    fn worth_polling(&self) -> Duration {
        self.stream.device.backend.worth_polling()
    }

    fn block(&mut self, patience: Patience) -> Result<bool> {
        self.fence.as_mut().map_or(Ok(true), |fence| {
            self.stream.device.backend.fence_block(fence, patience)
        })
    }
}

impl Drop for Reach<'_> {
    fn drop(&mut self) {
        if let Some(fence) = self.fence.take() {
            self.stream.device.backend.fence_drop(fence);
        }
    }
}

/// A point in a stream's queue.
pub(crate) struct Point<'a> {
    reach: Reach<'a>,
    look: u64,
}

impl Point<'_> {
    /// Waits until it is passed, but no longer than `patience`; false if that ran out.
    pub(crate) fn wait(&mut self, policy: WaitPolicy, patience: Patience) -> Result<bool> {
        let stream = self.reach.stream;
        let passed =
            sync::wait(&mut self.reach, policy, &stream.waits, patience).map_err(|e| stream.concern(e))?;
        if passed {
            stream.place.found_idle(self.look);
        }
        Ok(passed)
    }
}

/// The stream behind a handle that is not NULL.
#[inline]
pub(crate) fn find(handle: StreamHandle) -> Result<Held<Stream>> {
    STREAMS.get(handle.bits())
}

/// A stream that a call in progress may queue work on, whatever becomes of its handle meanwhile.
pub(crate) struct Found<'a> {
    pub(crate) device: &'static Device,
    pub(crate) id: u64,
    raw: RawStream,
    words: &'static Words,
    _call: &'a Call,
}

impl Found<'_> {
    /// Queues work.
    #[inline]
    pub(crate) fn queue<T>(&self, work: impl FnOnce(RawStream) -> T) -> T {
        self.words.queue(self.raw, work)
    }

    #[inline]
    pub(crate) fn launched(&self, kernel: u64) {
        self.words.last_kernel.store(kernel, Ordering::Relaxed);
    }

    /// Names the stream and its device in an error of the backend.
    #[cold]
    pub(crate) fn concern(&self, error: Error) -> Error {
        self.device.concern(error).on_stream(self.id)
    }
}

/// The stream a call names, as [`resolve`] but without a reference; `None` where [`resolve`] has something to say or to do.
#[inline]
pub(crate) fn look<'a>(call: &'a Call, handle: StreamHandle) -> Option<Found<'a>> {
    let (bits, slot) = match handle.is_null() {
        false => (handle.bits(), STREAMS.slot(handle.bits())?),
        true => task::seen_slot()?,
    };
    let (raw, id, index, words) = slot.words(bits, |words| {
        let (raw, id) = (
            words.raw.load(Ordering::Acquire),
            words.id.load(Ordering::Acquire),
        );
        (RawStream(raw), id, words.device.load(Ordering::Acquire), words)
    })?;
    let device = registry::up()?.devices.get(index as usize)?;
    device.is_well().then_some(Found {
        device,
        id,
        raw,
        words,
        _call: call,
    })
}

/// The stream a call names: NULL is the current stream of the task's device.
#[inline]
pub(crate) fn resolve(task: &Task, handle: StreamHandle) -> Result<Held<Stream>> {
    let stream = match handle.is_null() {
        false => find(handle)?,
        true => find(task.current_stream()?).map_err(|error| current_is_gone(task, error))?,
    };
    stream.device.usable().map_err(|e| e.on_stream(stream.id))?;
    Ok(stream)
}

#[cold]
fn current_is_gone(task: &Task, error: Error) -> Error {
    let device = task.device().unwrap_or_default();
    Error::new(
        error.status(),
        format!(
            "the current stream of the task on device {device} is no more: {}. Set another one, or NULL for the \
             task's own",
            error.detail().text
        ),
    )
    .on_device(device as u32)
}

/// A pooled stream: a slot that holds it, and gives it a new handle for each task. Filling and emptying a slot costs
/// more than all the rest of a lease, and is done once.
pub(crate) struct Lease(&'static StreamSlot);

impl Lease {
    /// Of a stream that was just made.
    pub(crate) fn new(stream: Arc<Stream>) -> Lease {
        Lease(STREAMS.put(stream))
    }

    pub(crate) fn stream(&self) -> Held<Stream> {
        STREAMS.held(self.0)
    }

    /// True where the stream is known to have no unfinished work, without a question to anybody.
    pub(crate) fn is_known_idle(&self) -> bool {
        self.0.body.words.known_idle()
    }

    /// Lends it: from now on it has a handle.
    pub(crate) fn begin(self) -> StreamHandle {
        StreamHandle::from_bits(STREAMS.publish(self.0))
    }

    /// Ends the handle.
    pub(crate) fn end(handle: StreamHandle) -> Option<Lease> {
        let slot = STREAMS.find(handle.bits())?;
        slot.end(handle.bits()).then_some(Lease(slot))
    }

    /// True for one that can be lent no more: its slot has given all its handles.
    pub(crate) fn used_up(&self) -> bool {
        STREAMS.used_up(self.0)
    }

    /// Takes the stream out for good.
    pub(crate) fn into_stream(self) -> Option<Arc<Stream>> {
        STREAMS.take_out(self.0)
    }
}

/// Records what a stream holds now.
pub(crate) fn record_now(handle: StreamHandle) -> Result<Arc<Recorded>> {
    find(handle)?.record()
}

/// The device of a stream that may become a task's current one: any but another task's lease.
#[inline]
pub(crate) fn settable(task: &Task, handle: StreamHandle) -> Result<&'static Device> {
    let bits = handle.bits();
    let read = |words: &Words| {
        let (leased, id) = (
            words.leased.load(Ordering::Acquire),
            words.id.load(Ordering::Acquire),
        );
        (words.device.load(Ordering::Acquire), leased, id)
    };
    let found = STREAMS.slot(bits).and_then(|slot| slot.words(bits, read));
    let (index, leased, id) = found.ok_or_else(|| STREAMS.invalid(bits))?;
    if leased != 0 && task.leased(index)? != handle {
        return Err(Error::new(
            Status::NotPermitted,
            format!("stream {id} is leased to another task; no two tasks share a lease"),
        )
        .on_stream(id));
    }
    device::by_index(index as i32)
}

/// What a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamReport {
    /// Its device.
    pub device: u32,
    /// The priority asked for.
    pub priority: Priority,
    /// The priority it got.
    pub effective: Priority,
    /// The same as the vendor's number.
    pub native_priority: i32,
    /// Who it belongs to.
    pub kind: StreamKind,
    /// Somebody captures it into a graph.
    pub capturing: bool,
    /// Unique in the process.
    pub id: u64,
}

/// Makes a stream on the calling task's device.
pub fn create(spec: StreamSpec) -> Result<StreamHandle> {
    let device = device::of_task(task::here()?)?;
    let stream = device.create_stream(spec, StreamKind::Owned)?;
    Ok(StreamHandle::from_bits(STREAMS.insert(stream)))
}

/// Ends a stream's handle; the stream itself ends when its work has.
pub fn destroy(handle: StreamHandle) -> Result<()> {
    if handle.is_null() || registry::forked() {
        return Ok(());
    }
    let stream = find(handle)?;
    if stream.kind == StreamKind::Leased {
        return Err(Error::new(
            Status::NotPermitted,
            format!(
                "stream {} is leased to a task and goes back when the task ends",
                stream.id
            ),
        )
        .on_stream(stream.id));
    }
    match STREAMS.remove(handle.bits()) {
        Some(stream) => {
            if stream.is_ours() {
                reaper::leave(Remains::of(stream));
            }
            Ok(())
        }
        None => Err(STREAMS.invalid(handle.bits())),
    }
}

/// The current stream where that takes no more than a look: it has been asked for before, and it lives.
#[inline]
pub fn seen() -> Option<StreamHandle> {
    task::seen_stream()
}

/// The current stream of the calling task's device.
pub fn current() -> Result<StreamHandle> {
    let task = task::here()?;
    let handle = task.current_stream()?;
    match STREAMS.find(handle.bits()) {
        Some(slot) => {
            task::see_stream(handle, slot);
            Ok(handle)
        }
        None => Err(current_is_gone(task, STREAMS.invalid(handle.bits()))),
    }
}

/// Makes a stream current for its device and that device the task's; NULL goes back to the task's own stream.
pub fn set(handle: StreamHandle) -> Result<()> {
    let task = task::here()?;
    if handle.is_null() {
        return task.choose(task.device()? as u32, handle);
    }
    let device = settable(task, handle)?;
    device.bind_if_open()?;
    task.choose(device.index, handle)?;
    task.set_device(device.index as i32);
    Ok(())
}

/// True when everything queued has finished.
pub fn query(handle: StreamHandle) -> Result<bool> {
    resolve(task::here()?, handle)?.idle()
}

/// Waits for everything queued so far, in the task's way; `false` if `patience` was over first.
pub fn synchronize(handle: StreamHandle, patience: Patience) -> Result<bool> {
    let task = task::here()?;
    resolve(task, handle)?.wait(task.wait_policy(), patience)
}

/// Lets later work on a stream wait for an event's last record.
pub fn wait_event(handle: StreamHandle, event: EventHandle) -> Result<()> {
    let stream = resolve(task::here()?, handle)?;
    match event::recorded(event)? {
        Some(recorded) => stream.wait_recorded(&recorded),
        None => Ok(()),
    }
}

/// Lets later work on a stream wait for everything queued so far on another one.
pub fn wait_stream(handle: StreamHandle, other: StreamHandle) -> Result<()> {
    let task = task::here()?;
    let (stream, other) = (resolve(task, handle)?, resolve(task, other)?);
    if stream.id == other.id {
        return Ok(());
    }
    stream.wait_recorded(&*other.record()?)
}

/// What a stream is.
pub fn info(handle: StreamHandle) -> Result<StreamReport> {
    let stream = resolve(task::here()?, handle)?;
    let Device {
        backend,
        ordinal,
        index,
        ..
    } = *stream.device;
    Ok(StreamReport {
        device: index,
        priority: stream.priority,
        effective: stream.effective,
        native_priority: stream.native_priority,
        kind: stream.kind,
        capturing: backend
            .stream_capturing(ordinal, stream.raw)
            .map_err(|e| stream.concern(e))?,
        id: stream.id,
    })
}

/// Takes a vendor's stream in.
pub fn import(index: i32, native: NativeHandle) -> Result<StreamHandle> {
    task::allowed()?;
    let device = device::by_index(index)?;
    device.open()?;
    let place = Place::take()?;
    let new = device
        .backend
        .stream_import(device.ordinal, native)
        .map_err(|e| device.concern(e))?;
    let stream = device.enlist(
        |id| Stream::new(place, device, new, id, StreamKind::Imported, new.effective),
        new.raw,
    );
    Ok(StreamHandle::from_bits(STREAMS.insert(stream)))
}

/// The vendor's handle.
pub fn native(handle: StreamHandle) -> Result<*mut c_void> {
    let stream = resolve(task::here()?, handle)?;
    stream.place.shared.store(true, Ordering::Relaxed);
    stream
        .device
        .backend
        .stream_native(stream.device.ordinal, stream.raw)
        .map_err(|e| stream.concern(e))
}

/// Calls `callback` once after the work queued so far; later work waits for it.
pub fn add_callback(handle: StreamHandle, callback: Callback) -> Result<()> {
    resolve(task::here()?, handle)?.call_back(callback)
}

/// Adds 1 to a descriptor after the work queued so far.
pub fn signal_fd(handle: StreamHandle, fd: i32) -> Result<()> {
    let stream = resolve(task::here()?, handle)?;
    let fd = SignalFd::dup(fd)?;
    stream.call_back(Box::new(move |_| fd.signal()))
}
