//! The reaper: what destroy calls leave behind is taken apart here, when the work that may use it has passed.
//!
//! One thread, started when the first thing is left. It never binds a device that nobody opened, and it looks
//! again after naps that grow, so that a long kernel costs it nothing.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use once_cell::sync::OnceCell;

use crate::backend::{os, Addr, Error, Fence, RawEvent, RawModule, RawStream, Result, Status};

use super::calls::Earlier;
use super::device::{self, Device};
use super::event::Recorded;
use super::registry;
use super::stream::{End, Stream};

/// Something to take apart.
pub(crate) enum Remains {
    /// Destroyed once nobody else has it and its work has passed. Kept whole until then, since that may use what is left
    /// meanwhile.
    Stream { stream: Arc<Stream>, end: End },
    /// A stream whose last user has gone: ours after its work, or somebody else's, whose work is none of our business.
    RawStream { device: &'static Device, raw: RawStream },
    /// Destroyed at once: waits queued for it still happen.
    Event { device: &'static Device, raw: RawEvent },
    /// Unloaded once everything queued on the device now has passed.
    Module { device: &'static Device, raw: RawModule },
    /// Freed once everything queued on the device now, and what was recorded elsewhere, has passed.
    Memory {
        device: &'static Device,
        addr: Addr,
        after: Option<Arc<Recorded>>,
    },
    /// Freed once everything queued now on any device has passed.
    HostMemory { device: &'static Device, addr: Addr },
    /// Pinned memory that a copy went through: kept for the next one once what was recorded has passed.
    Staging {
        device: &'static Device,
        addr: Addr,
        size: u64,
        after: Arc<Recorded>,
    },
}

/// Whose work, as queued when the reaper looks, has to pass first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Nothing,
    /// That of the device with this index.
    Device(u32),
    All,
}

impl Remains {
    /// A stream that has no owner any more.
    pub(crate) fn of(stream: Arc<Stream>) -> Remains {
        let end = End::default();
        Remains::Stream { stream, end }
    }

    fn behind(&self) -> Behind {
        match self {
            Remains::Stream { .. }
            | Remains::RawStream { .. }
            | Remains::Event { .. }
            | Remains::Staging { .. } => Behind::Nothing,
            Remains::Module { device, .. } | Remains::Memory { device, .. } => Behind::Device(device.index),
            Remains::HostMemory { .. } => Behind::All,
        }
    }

    /// The device whose memory it is.
    fn frees(&self) -> Option<&'static Device> {
        match self {
            Remains::Memory { device, .. } | Remains::HostMemory { device, .. } => Some(device),
            _ => None,
        }
    }

    /// True where nothing of their own keeps them.
    fn ready(&mut self) -> bool {
        match self {
            // Who found it before its handle ended may still queue on it, and its end comes after that.
            Remains::Stream { stream, end } => {
                Arc::strong_count(stream) == 1 && passed(end.reached(stream.device, stream.raw()))
            }
            Remains::Memory {
                after: Some(recorded),
                ..
            }
            | Remains::Staging { after: recorded, .. } => passed(recorded.done()),
            _ => true,
        }
    }
}

/// Memory of a device that was left to the reaper, in pieces.
#[derive(Default)]
pub(crate) struct Frees {
    left: AtomicU64,
    done: AtomicU64,
}

static LEFT: SegQueue<Remains> = SegQueue::new();
static THREAD: OnceCell<std::thread::Thread> = OnceCell::new();

/// The thread waits until it is woken.
const ASLEEP: u8 = 0;
/// The thread works or naps; it will look by itself.
const AWAKE: u8 = 1;
static STATE: AtomicU8 = AtomicU8::new(AWAKE);

const SHORTEST_NAP: Duration = Duration::from_micros(200);
const LONGEST_NAP: Duration = Duration::from_millis(10);
const LONGEST_SETTLE: Duration = Duration::from_millis(100);
/// More than this left and not looked at yet is a backlog.
const BACKLOG: usize = 1024;
/// So is more than this that has been looked at and waits for work: that may take its time, so it may be more.
const LONG_BACKLOG: usize = 16 * BACKLOG;
/// What waits for work, as of the last look.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Naps without work before the thread sleeps until it is woken.
const LAST_NAPS: u32 = 5;

/// Leaves something to the reaper. Never blocks behind running work.
pub(crate) fn leave(remains: Remains) {
    if registry::forked() || registry::exiting() {
        return;
    }
    if let Some(device) = remains.frees() {
        device.frees.left.fetch_add(1, Ordering::Relaxed);
    }
    LEFT.push(remains);
    let started = THREAD.get_or_try_init(|| {
        registry::helpers_started();
        let _signals = os::SignalsBlocked::new();
        std::thread::Builder::new()
            .name("taskgpu-reaper".to_owned())
            .spawn(run)
            .map(|handle| handle.thread().clone())
    });
    // Where no thread is to be had the remains stay where they are, until something more is left and one is.
    let Ok(thread) = started else { return };
    if STATE.swap(AWAKE, Ordering::SeqCst) == ASLEEP {
        thread.unpark();
    }
}

/// Waits until the reaper has freed what was left so far of the device's memory, but not for long: it may be behind work of
/// other threads. For those who ran out of memory.
pub(crate) fn settle(device: &Device) {
    let Some(thread) = THREAD.get() else { return };
    if thread.id() == std::thread::current().id() {
        return;
    }
    let left = device.frees.left.load(Ordering::Relaxed);
    let start = Instant::now();
    while device.frees.done.load(Ordering::Acquire) < left && start.elapsed() < LONGEST_SETTLE {
        STATE.store(AWAKE, Ordering::SeqCst);
        thread.unpark();
        std::thread::sleep(SHORTEST_NAP);
    }
}

/// Pauses the caller for a moment where things are left faster than they are taken apart. For those who make what is left
/// later: threads that make and destroy in a loop would fill the memory with remains.
pub(crate) fn keep_pace() {
    let backlog = LEFT.len() > BACKLOG || WAITING.load(Ordering::Relaxed) > LONG_BACKLOG;
    if backlog && !registry::forked() && !registry::exiting() {
        std::thread::sleep(SHORTEST_NAP);
    }
}

fn run() {
    let mut pending: Vec<Batch> = Vec::new();
    let mut nap = SHORTEST_NAP;
    let mut idle = 0;
    loop {
        if registry::exiting() {
            loop {
                std::thread::park();
            }
        }
        // Not until it is empty: others may leave more for as long as this thread takes it.
        let left: Vec<Remains> = (0..LEFT.len()).map_while(|_| LEFT.pop()).collect();
        let worked = !left.is_empty();
        pending.extend(batches(left));
        // A panic is a bug; it costs what its batch holds, and not all that is left from then on.
        let over = |batch: &mut Batch| catch_unwind(AssertUnwindSafe(|| batch.try_finish())).unwrap_or(true);
        pending.retain_mut(|batch| !over(batch));
        WAITING.store(
            pending.iter().map(|batch| batch.remains.len()).sum(),
            Ordering::Relaxed,
        );
        nap = if worked {
            SHORTEST_NAP
        } else {
            (nap * 2).min(LONGEST_NAP)
        };
        idle = if worked || !pending.is_empty() {
            0
        } else {
            idle + 1
        };
        if worked && !LEFT.is_empty() {
            continue;
        }
        if idle < LAST_NAPS {
            std::thread::park_timeout(nap);
            continue;
        }
        STATE.store(ASLEEP, Ordering::SeqCst);
        // Whoever pushed before the store saw AWAKE and woke nobody; whoever pushes after it unparks.
        if LEFT.is_empty() {
            std::thread::park();
        }
        STATE.store(AWAKE, Ordering::SeqCst);
        idle = 0;
    }
}

/// Remains that wait for the same streams, and the points they wait for. One by one, a thousand frees on a device with a
/// thousand streams would wait for a million points.
struct Batch {
    behind: Behind,
    /// Calls that may still queue work on what is left or with it. `None` once they have ended and the streams are listed.
    earlier: Option<Earlier>,
    remains: Vec<Remains>,
    /// Streams that have not been marked yet: one that somebody is capturing takes no mark.
    unmarked: Vec<Arc<Stream>>,
    marks: Vec<Mark>,
}

/// Everything that is in `left` was left before the calls in progress are listed here, and the streams after them.
fn batches(left: Vec<Remains>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for remains in left {
        let behind = remains.behind();
        match batches.iter_mut().find(|batch| batch.behind == behind) {
            Some(batch) => batch.remains.push(remains),
            None => batches.push(Batch {
                behind,
                earlier: Some(Earlier::now()),
                remains: vec![remains],
                unmarked: Vec::new(),
                marks: Vec::new(),
            }),
        }
    }
    batches
}

/// The point that a stream had reached in its queue when the reaper looked.
enum Mark {
    Fence(Arc<Stream>, Fence),
    /// On a stream that its owner may destroy at any moment, an event of our own.
    Event(Arc<Recorded>),
}

impl Mark {
    fn new(stream: &Arc<Stream>) -> Result<Mark> {
        let Device { backend, ordinal, .. } = *stream.device;
        match stream.is_ours() {
            true => Ok(Mark::Fence(
                Arc::clone(stream),
                backend.fence(ordinal, stream.raw())?,
            )),
            false if backend.stream_capturing(ordinal, stream.raw())? => {
                Err(Error::new(Status::Capturing, "the stream is being captured"))
            }
            false => Ok(Mark::Event(stream.record()?)),
        }
    }

    /// True when it has been passed and given back.
    fn passed(&mut self) -> bool {
        match self {
            Mark::Event(recorded) => passed(recorded.done()),
            Mark::Fence(stream, fence) => passed(stream.device.backend.fence_reached(fence)),
        }
    }

    fn give_back(self) {
        if let Mark::Fence(stream, fence) = self {
            stream.device.backend.fence_drop(fence);
        }
    }
}

/// True for work that has passed, and for work that will not get any further: on a lost device nothing runs. False where it
/// cannot be told now.
fn passed(state: Result<bool>) -> bool {
    state.unwrap_or_else(|error| !matches!(error.status(), Status::Capturing | Status::OutOfMemory))
}

impl Batch {
    /// Takes apart what does not have to wait. True when nothing is left.
    fn try_finish(&mut self) -> bool {
        if let Some(earlier) = &mut self.earlier {
            if !earlier.over() {
                return false;
            }
            // Not before: a stream that such a call has queued on is known to have work when the call has ended.
            self.earlier = None;
            self.unmarked = streams(self.behind);
        }
        let marks = &mut self.marks;
        self.unmarked.retain(|stream| match Mark::new(stream) {
            Ok(mark) => {
                marks.push(mark);
                false
            }
            Err(error) => !passed(Err(error)),
        });
        let (done, waiting) = self
            .marks
            .drain(..)
            .map(|mut mark| (mark.passed(), mark))
            .partition::<Vec<_>, _>(|m| m.0);
        done.into_iter().for_each(|(_, mark)| mark.give_back());
        self.marks = waiting.into_iter().map(|(_, mark)| mark).collect();
        if !self.marks.is_empty() || !self.unmarked.is_empty() {
            return false;
        }
        for mut remains in std::mem::take(&mut self.remains) {
            match remains.ready() {
                true => finish(remains),
                false => self.remains.push(remains),
            }
        }
        self.remains.is_empty()
    }
}

/// The streams whose work, as queued now, may use what is left. Streams that were destroyed are among them until
/// their own work has passed.
fn streams(behind: Behind) -> Vec<Arc<Stream>> {
    device::all()
        .iter()
        .filter(|device| match behind {
            Behind::Nothing => false,
            Behind::Device(index) => device.index == index,
            Behind::All => true,
        })
        .filter(|device| device.is_open())
        .flat_map(Device::streams)
        .filter(|stream| !stream.is_known_idle())
        .collect()
}

fn finish(remains: Remains) {
    let frees = remains.frees();
    // Failures have nobody to tell: the object is gone for its owner, and a lost device takes all it had with it.
    match remains {
        Remains::Stream { stream, end } => end.give_back(stream.device),
        Remains::RawStream { device, raw } => device.backend.stream_destroy(device.ordinal, raw),
        Remains::Event { device, raw } => device.backend.event_destroy(device.ordinal, raw),
        Remains::Module { device, raw } => device.backend.module_destroy(device.ordinal, raw),
        Remains::Memory { device, addr, .. } => drop(device.backend.free(device.ordinal, addr)),
        Remains::HostMemory { device, addr } => drop(device.backend.host_free(device.ordinal, addr)),
        Remains::Staging {
            device, addr, size, ..
        } => {
            if let Some(addr) = device.staging.keep(addr, size) {
                drop(device.backend.host_free(device.ordinal, addr));
            }
        }
    }
    if let Some(device) = frees {
        device.frees.done.fetch_add(1, Ordering::Release);
    }
}
