//! Devices: the process's list, and which one is the task's.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_queue::SegQueue;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::backend::os::SignalFd;
use crate::backend::{Backend, Callback, DeviceInfo, Error, RawStream, Result, Status, StreamSpec};

use super::across::Staging;
use super::handle::Place;
use super::reaper::{self, Frees, Remains};
use super::registry::{self, runtime, Runtime};
use super::stream::{End, Lease, Stream, StreamKind};
use super::sync::{self, Predictor};
use super::task::{self, Task};

/// Streams the lease pool makes before it hands out ones that still drain.
const POOL_CAP: usize = 32;
/// How many returned streams a lease looks at to find an idle one.
const POOL_LOOK: usize = 8;

/// One device of the process's list.
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) ordinal: u32,
    pub(crate) backend: &'static dyn Backend,
    /// The backend's answer to [`Backend::binds`].
    binds: bool,
    info: OnceCell<DeviceInfo>,
    opened: OnceCell<()>,
    /// What ended the device for this process.
    lost: OnceCell<Error>,
    pool: Pool,
    /// Every stream of ours on the device, by its raw value.
    live: Mutex<HashMap<u64, Live>>,
    synchronizes: Predictor,
    /// Pinned memory for copies through the host, between uses.
    pub(crate) staging: Staging,
    /// What the reaper has to free of its memory.
    pub(crate) frees: Frees,
}

struct Live {
    id: u64,
    /// The stream and its imported twins.
    streams: Vec<Weak<Stream>>,
}

/// Streams waiting for their next task.
#[derive(Default)]
struct Pool {
    /// Where ended tasks leave their leases: pushing takes no lock and calls no vendor.
    returned: SegQueue<Lease>,
    /// The longest draining first.
    waiting: Mutex<VecDeque<Waiting>>,
    /// Streams the pool has made and not destroyed, lent ones too.
    made: AtomicU32,
}

/// A stream that may still have work.
struct Waiting {
    lease: Lease,
    end: End,
}

impl Waiting {
    /// A stream in error is not idle; it goes on draining.
    fn is_idle(&mut self) -> bool {
        if self.lease.is_known_idle() {
            return true;
        }
        let stream = self.lease.stream();
        matches!(self.end.reached(stream.device, stream.raw()), Ok(true))
    }

    fn into_lease(self) -> Lease {
        self.end.give_back(self.lease.stream().device);
        self.lease
    }
}

static NEXT_STREAM_ID: AtomicU64 = AtomicU64::new(1);

impl Device {
    pub(crate) fn new(index: u32, ordinal: u32, backend: &'static dyn Backend) -> Device {
        Device {
            index,
            ordinal,
            backend,
            binds: backend.binds(),
            info: OnceCell::new(),
            opened: OnceCell::new(),
            lost: OnceCell::new(),
            pool: Pool::default(),
            live: Mutex::new(HashMap::new()),
            synchronizes: Predictor::default(),
            staging: Staging::default(),
            frees: Frees::default(),
        }
    }

    pub(crate) fn info(&self) -> Result<&DeviceInfo> {
        self.info
            .get_or_try_init(|| {
                let _uncut = registry::uncut();
                self.backend.device_info(self.ordinal)
            })
            .map_err(|e| self.concern(e))
    }

    /// Makes the device usable. Cheap once it is.
    #[inline]
    pub(crate) fn open(&self) -> Result<()> {
        if self.opened.get().is_some() {
            return self.usable();
        }
        registry::used();
        self.opened
            .get_or_try_init(|| self.backend.open(self.ordinal))
            .map_err(|e| self.concern(e))?;
        Ok(())
    }

    pub(crate) fn is_open(&self) -> bool {
        self.opened.get().is_some()
    }

    /// Makes the device the thread's vendor device, if somebody has opened it.
    #[inline]
    pub(crate) fn bind_if_open(&self) -> Result<()> {
        match self.binds && self.is_open() {
            true => self.backend.bind(self.ordinal).map_err(|e| self.concern(e)),
            false => Ok(()),
        }
    }

    /// Names the device in an error of its backend, and what was running when the device was lost.
    #[cold]
    pub(crate) fn concern(&self, error: Error) -> Error {
        if error.status() != Status::DeviceLost {
            return error.on_device(self.index);
        }
        let lost = self.lost.get_or_init(|| {
            let detail = error.detail();
            let text = format!(
                "device {} is lost: {}. {}",
                self.index,
                detail.text,
                self.candidates()
            );
            let lost = Error::new(Status::DeviceLost, text).on_device(self.index);
            match &detail.native {
                Some(native) => lost.native(native.clone()),
                None => lost,
            }
        });
        lost.clone()
    }

    /// True for a device that no call has found lost.
    #[inline]
    pub(crate) fn is_well(&self) -> bool {
        self.lost.get().is_none()
    }

    /// What the device is, if somebody has asked before.
    #[inline]
    pub(crate) fn known_info(&self) -> Option<&DeviceInfo> {
        self.info.get()
    }

    /// Refuses a device that a call has found lost: whatever its runtime answers now, its results are not to be trusted.
    #[inline]
    pub(crate) fn usable(&self) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// The streams that had unfinished work and what was launched last on each: one of them is the culprit.
    fn candidates(&self) -> String {
        let mut parts = Vec::new();
        for stream in self.streams() {
            let kernel = stream.last_kernel();
            if !matches!(self.backend.stream_idle(self.ordinal, stream.raw()), Ok(true)) {
                let kernel = kernel.as_deref().unwrap_or("no kernel");
                parts.push(format!("stream {} (last launched: {kernel})", stream.id));
            }
        }
        match parts.is_empty() {
            true => "No stream of this library had unfinished work".to_owned(),
            false => format!("Unfinished: {}", parts.join(", ")),
        }
    }

    /// All our streams of the device.
    pub(crate) fn streams(&self) -> Vec<Arc<Stream>> {
        let live = self.live.lock();
        live.values()
            .filter_map(|entry| entry.streams.iter().find_map(Weak::upgrade))
            .collect()
    }

    /// Makes a stream on the device.
    pub(crate) fn create_stream(&'static self, spec: StreamSpec, kind: StreamKind) -> Result<Arc<Stream>> {
        self.open()?;
        reaper::keep_pace();
        let place = Place::take()?;
        let new = self
            .backend
            .stream_create(self.ordinal, spec)
            .map_err(|e| self.concern(e))?;
        Ok(self.enlist(
            |id| Stream::new(place, self, new, id, kind, spec.priority),
            new.raw,
        ))
    }

    /// Gives a stream its id and remembers it: one native stream keeps one id however often it is imported.
    pub(crate) fn enlist(&self, make: impl FnOnce(u64) -> Stream, raw: RawStream) -> Arc<Stream> {
        let mut live = self.live.lock();
        let entry = live.entry(raw.value()).or_insert_with(|| Live {
            id: NEXT_STREAM_ID.fetch_add(1, Ordering::Relaxed),
            streams: Vec::new(),
        });
        let stream = Arc::new(make(entry.id));
        entry.streams.retain(|other| other.strong_count() > 0);
        entry.streams.push(Arc::downgrade(&stream));
        stream
    }

    /// Forgets a stream whose last user has gone.
    pub(crate) fn delist(&self, raw: RawStream) {
        let mut live = self.live.lock();
        if let Some(entry) = live.get_mut(&raw.value()) {
            entry.streams.retain(|other| other.strong_count() > 0);
            if entry.streams.is_empty() {
                live.remove(&raw.value());
            }
        }
    }

    /// A stream for one task alone.
    pub(crate) fn lease(&'static self) -> Result<Lease> {
        if let Some(lease) = self.pooled(POOL_CAP) {
            return Ok(lease);
        }
        self.pool.made.fetch_add(1, Ordering::Relaxed);
        self.create_stream(StreamSpec::default(), StreamKind::Leased)
            .map(Lease::new)
            .inspect_err(|_| {
                self.pool.made.fetch_sub(1, Ordering::Relaxed);
            })
    }

    /// An idle stream of the pool; once `cap` streams exist, the one that has been draining longest.
    fn pooled(&self, cap: usize) -> Option<Lease> {
        let mut waiting = self.pool.waiting.lock();
        while let Some(lease) = self.pool.returned.pop() {
            let end = End::default();
            waiting.push_back(Waiting { lease, end });
        }
        let idle = (0..waiting.len().min(POOL_LOOK)).find(|i| waiting[*i].is_idle());
        let made = self.pool.made.load(Ordering::Relaxed) as usize;
        let chosen = match idle {
            Some(i) => waiting.remove(i),
            None if made >= cap => waiting.pop_front(),
            None => None,
        };
        if waiting.len() > cap {
            // A burst of tasks made more streams than the pool keeps.
            let surplus: Vec<_> = waiting.drain(cap..).collect();
            drop(waiting);
            for waiting in surplus {
                self.retire(waiting.into_lease());
            }
        }
        chosen.map(Waiting::into_lease)
    }

    /// Takes a lease back from a task that has ended. Takes no lock, calls no vendor.
    pub(crate) fn take_back(&self, lease: Lease) {
        match lease.used_up() {
            false => self.pool.returned.push(lease),
            true => self.retire(lease),
        }
    }

    /// Gives a stream of the pool up for good.
    fn retire(&self, lease: Lease) {
        self.pool.made.fetch_sub(1, Ordering::Relaxed);
        if let Some(stream) = lease.into_stream() {
            reaper::leave(Remains::of(stream));
        }
    }

    /// Runs `work` on a pooled stream, for what belongs on no caller's stream. The stream drains in the pool.
    pub(crate) fn aside<R>(&'static self, work: impl FnOnce(&Stream) -> Result<R>) -> Result<R> {
        let lease = self.lease()?;
        let result = work(&lease.stream());
        self.take_back(lease);
        result
    }

    /// Waits for our streams of the device with the task's policy, then lets the vendor wait for the others'.
    pub(crate) fn wait_for_all(&'static self) -> Result<()> {
        if !self.is_open() {
            return Ok(());
        }
        for stream in self.streams() {
            stream.wait(sync::WaitPolicy::Auto, None)?;
        }
        sync::timed(&self.synchronizes, || {
            self.backend.device_synchronize(self.ordinal)
        })
        .map_err(|e| self.concern(e))
    }

    /// Runs `callback` after what our streams of the device hold now.
    fn after_all(&'static self, callback: Callback) -> Result<()> {
        let streams = self.streams();
        for stream in &streams {
            let capturing = self.backend.stream_capturing(self.ordinal, stream.raw());
            if capturing.map_err(|e| stream.concern(e))? {
                let text = format!("stream {} is being captured", stream.id);
                return Err(stream.concern(Error::new(Status::Capturing, text)));
            }
        }
        self.aside(|behind| {
            for stream in streams.iter().filter(|stream| stream.id != behind.id) {
                behind.wait_recorded(&*stream.record()?)?;
            }
            behind.call_back(callback)
        })
    }
}

/// The device with this index.
#[inline]
pub(crate) fn by_index(index: i32) -> Result<&'static Device> {
    match registry::up().and_then(|runtime| runtime.devices.get(index as u32 as usize)) {
        Some(device) => Ok(device),
        None => no_such(index),
    }
}

#[cold]
#[inline(never)]
fn no_such(index: i32) -> Result<&'static Device> {
    let devices = &runtime()?.devices;
    match devices.get(usize::try_from(index).unwrap_or(usize::MAX)) {
        Some(device) => Ok(device),
        None => Err(Error::new(
            Status::InvalidDevice,
            format!(
                "there is no device {index}; the devices are 0 to {}",
                devices.len() - 1
            ),
        )),
    }
}

/// The device an index of our own books names.
pub(crate) fn known(runtime: &'static Runtime, index: u32) -> &'static Device {
    &runtime.devices[index as usize]
}

/// The calling task's device.
pub(crate) fn of_task(task: &Task) -> Result<&'static Device> {
    by_index(task.device()?)
}

/// A device and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Index in the process's list.
    pub index: u32,
    /// Index within the backend.
    pub ordinal: u32,
    /// The backend's name.
    pub backend: &'static str,
    /// The device itself.
    pub info: DeviceInfo,
}

/// How many devices the process has. Creates no context.
pub fn count() -> Result<u32> {
    task::allowed()?;
    Ok(runtime()?.devices.len() as u32)
}

/// The calling task's device where that takes no more than a look: nothing has changed since it was last asked.
#[inline]
pub fn seen() -> Option<u32> {
    task::seen_device()
}

/// The calling task's device.
pub fn current() -> Result<u32> {
    task::here()?.see_device()
}

/// Makes a device the calling task's, and the thread's vendor device.
pub fn set(index: i32) -> Result<()> {
    let task = task::here()?;
    let device = by_index(index)?;
    device.open()?;
    device.bind_if_open()?;
    task.set_device(index);
    Ok(())
}

/// The device that a task starts on which has made no call yet.
pub fn default_set(index: i32) -> Result<()> {
    task::allowed()?;
    by_index(index)?;
    runtime()?.default_device.store(index, Ordering::Relaxed);
    Ok(())
}

/// What a device is.
pub fn info(index: i32) -> Result<DeviceReport> {
    task::allowed()?;
    let device = by_index(index)?;
    Ok(DeviceReport {
        index: device.index,
        ordinal: device.ordinal,
        backend: device.backend.name(),
        info: device.info()?.clone(),
    })
}

/// Free and total bytes of a device's memory.
pub fn memory(index: i32) -> Result<(u64, u64)> {
    task::allowed()?;
    let device = by_index(index)?;
    device.open()?;
    device
        .backend
        .memory(device.ordinal)
        .map_err(|e| device.concern(e))
}

/// Waits for everything on the task's device, other libraries' work included.
pub fn synchronize() -> Result<()> {
    of_task(task::here()?)?.wait_for_all()
}

/// Adds 1 to a descriptor after everything queued so far on our streams of the task's device.
pub fn signal_fd(fd: i32) -> Result<()> {
    let device = of_task(task::here()?)?;
    let fd = SignalFd::dup(fd)?;
    match device.is_open() {
        true => device.after_all(Box::new(move |_| fd.signal())),
        false => {
            fd.signal();
            Ok(())
        }
    }
}

/// Whether `index` can reach memory of `peer` directly.
pub fn can_access_peer(index: i32, peer: i32) -> Result<bool> {
    task::allowed()?;
    let (device, peer) = (by_index(index)?, by_index(peer)?);
    if !same_backend(device, peer) || device.index == peer.index {
        return Ok(false);
    }
    device
        .backend
        .can_access_peer(device.ordinal, peer.ordinal)
        .map_err(|e| device.concern(e))
}

/// Lets `index` reach memory of `peer` directly.
pub fn enable_peer(index: i32, peer: i32) -> Result<()> {
    task::allowed()?;
    let (device, peer) = (by_index(index)?, by_index(peer)?);
    if device.index == peer.index {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("device {index} is no peer of itself"),
        ));
    }
    if !same_backend(device, peer) {
        return Err(Error::new(
            Status::NotSupported,
            format!(
                "device {index} ({}) cannot reach memory of device {} ({})",
                device.backend.name(),
                peer.index,
                peer.backend.name()
            ),
        ));
    }
    device.open()?;
    peer.open()?;
    device
        .backend
        .enable_peer(device.ordinal, peer.ordinal)
        .map_err(|e| device.concern(e))
}

/// The vendor's number of a device.
pub fn native(index: i32) -> Result<u64> {
    task::allowed()?;
    let device = by_index(index)?;
    device
        .backend
        .device_native(device.ordinal)
        .map_err(|e| device.concern(e))
}

/// True where two devices belong to one backend.
pub(crate) fn same_backend(a: &Device, b: &Device) -> bool {
    std::ptr::addr_eq(a.backend, b.backend)
}

/// Every device, for helper threads; none where the runtime must not be touched.
pub(crate) fn all() -> &'static [Device] {
    registry::present().map_or(&[], |runtime| &runtime.devices)
}
