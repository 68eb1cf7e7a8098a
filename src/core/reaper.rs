//! The reaper: what destroy calls leave behind is taken apart here, when the work that may use it has passed.
//!
//! One thread, started when the first thing is left. It never binds a device that nobody opened, and it looks
//! again after naps that grow, so that a long kernel costs it nothing.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_queue::SegQueue;
use once_cell::sync::OnceCell;

use crate::backend::{os, Addr, Fence, RawEvent, RawModule, RawStream, Status};

use super::device::{self, Device};
use super::event::Recorded;
use super::registry;
use super::stream::Stream;

/// Something to take apart.
pub(crate) enum Remains {
    /// Destroyed once it is idle.
    Stream { device: &'static Device, raw: RawStream },
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
}

static LEFT: SegQueue<Remains> = SegQueue::new();
static THREAD: OnceCell<std::thread::Thread> = OnceCell::new();

/// The thread waits until it is woken.
const ASLEEP: u8 = 0;
/// The thread works or naps; it will look by itself.
const AWAKE: u8 = 1;
static STATE: AtomicU8 = AtomicU8::new(AWAKE);
/// Looks at everything so far.
static ROUNDS: AtomicU64 = AtomicU64::new(0);

const SHORTEST_NAP: Duration = Duration::from_micros(200);
const LONGEST_NAP: Duration = Duration::from_millis(10);
const LONGEST_SETTLE: Duration = Duration::from_millis(100);
/// Naps without work before the thread sleeps until it is woken.
const LAST_NAPS: u32 = 5;

/// Leaves something to the reaper. Never blocks behind running work.
pub(crate) fn leave(remains: Remains) {
    if registry::forked() || registry::exiting() {
        return;
    }
    LEFT.push(remains);
    let thread = THREAD.get_or_init(|| {
        registry::helpers_started();
        let _signals = os::SignalsBlocked::new();
        let spawned = std::thread::Builder::new()
            .name("taskgpu-reaper".to_owned())
            .spawn(run);
        match spawned {
            Ok(handle) => handle.thread().clone(),
            // Without a thread the remains stay where they are: a leak, but nothing is used after its end.
            Err(_) => std::thread::current(),
        }
    });
    if STATE.swap(AWAKE, Ordering::SeqCst) == ASLEEP {
        thread.unpark();
    }
}

/// Lets the reaper look at everything left so far, once, without waiting for long. For threads that ran out of memory.
pub(crate) fn settle() {
    let Some(thread) = THREAD.get() else { return };
    if thread.id() == std::thread::current().id() {
        return;
    }
    let before = ROUNDS.load(Ordering::Acquire);
    let start = Instant::now();
    // Two rounds: the one under way may have looked before the last thing was left.
    while ROUNDS.load(Ordering::Acquire) < before + 2 && start.elapsed() < LONGEST_SETTLE {
        STATE.store(AWAKE, Ordering::SeqCst);
        thread.unpark();
        std::thread::sleep(SHORTEST_NAP);
    }
}

fn run() {
    let mut pending: Vec<Pending> = Vec::new();
    let mut nap = SHORTEST_NAP;
    let mut idle = 0;
    loop {
        if registry::exiting() {
            loop {
                std::thread::park();
            }
        }
        let mut worked = false;
        while let Some(remains) = LEFT.pop() {
            worked = true;
            pending.push(Pending::new(remains));
        }
        pending.retain_mut(|entry| !entry.try_finish());
        ROUNDS.fetch_add(1, Ordering::Release);
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

/// Remains and the points they wait for.
struct Pending {
    remains: Option<Remains>,
    fences: Vec<(Arc<Stream>, Fence)>,
    /// Streams that somebody is capturing: they take no fence before the capture has ended.
    unfenced: Vec<Arc<Stream>>,
}

impl Pending {
    fn new(remains: Remains) -> Pending {
        let unfenced = match &remains {
            Remains::Stream { .. } | Remains::Event { .. } => Vec::new(),
            Remains::Module { device, .. } | Remains::Memory { device, .. } => streams(device),
            Remains::HostMemory { .. } => device::all().iter().flat_map(streams).collect(),
        };
        Pending {
            remains: Some(remains),
            fences: Vec::new(),
            unfenced,
        }
    }

    /// Takes the remains apart if that does not have to wait. True when done.
    fn try_finish(&mut self) -> bool {
        let fences = &mut self.fences;
        self.unfenced.retain(
            |stream| match stream.device.backend.fence(stream.device.ordinal, stream.raw) {
                Ok(fence) => {
                    fences.push((Arc::clone(stream), fence));
                    false
                }
                Err(error) => error.status() == Status::Capturing,
            },
        );
        let mut waiting = Vec::new();
        for (stream, mut fence) in self.fences.drain(..) {
            let backend = stream.device.backend;
            // A fence in error will not get any further: the device is lost, and nothing runs on it.
            match backend.fence_reached(&mut fence) {
                Ok(false) => waiting.push((stream, fence)),
                Ok(true) | Err(_) => backend.fence_drop(fence),
            }
        }
        self.fences = waiting;
        if !self.fences.is_empty() || !self.unfenced.is_empty() {
            return false;
        }
        if let Some(Remains::Stream { device, raw }) = self.remains {
            if matches!(device.backend.stream_idle(device.ordinal, raw), Ok(false)) {
                return false;
            }
        }
        if let Some(Remains::Memory {
            after: Some(recorded),
            ..
        }) = &self.remains
        {
            if matches!(recorded.done(), Ok(false)) {
                return false;
            }
        }
        if let Some(remains) = self.remains.take() {
            finish(remains);
        }
        true
    }
}

/// The streams whose work, as queued now, may use what is left.
fn streams(device: &'static Device) -> Vec<Arc<Stream>> {
    match device.is_open() {
        true => device.streams(),
        false => Vec::new(),
    }
}

fn finish(remains: Remains) {
    // Failures have nobody to tell: the object is gone for its owner, and a lost device takes all it had with it.
    match remains {
        Remains::Stream { device, raw } => device.backend.stream_destroy(device.ordinal, raw),
        Remains::Event { device, raw } => device.backend.event_destroy(device.ordinal, raw),
        Remains::Module { device, raw } => device.backend.module_destroy(device.ordinal, raw),
        Remains::Memory { device, addr, .. } => drop(device.backend.free(device.ordinal, addr)),
        Remains::HostMemory { device, addr } => drop(device.backend.host_free(device.ordinal, addr)),
    }
}
