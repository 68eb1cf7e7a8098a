//! Events. Each record makes a new state, so that a wait captures the record made last before it.

use super::futex;
use super::pool::Pool;
use super::stream::{exiting, Stream};
use crate::backend::{EventState, Patience, Result};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

const PENDING: u32 = 0;
/// Pending, and a thread sleeps on the state.
const SLEEPER: u32 = 1;
const DONE: u32 = 2;

/// One record of an event.
#[derive(Default)]
pub struct Record {
    state: AtomicU32,
    /// CLOCK_MONOTONIC in nanoseconds, where the event has timing.
    time: AtomicU64,
    timing: bool,
    /// Streams that this record owns until it is reached.
    waiters: Mutex<Vec<Arc<Stream>>>,
}

impl Record {
    /// Whether it has been reached.
    pub fn done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// The stream that carries it has got here.
    pub fn reach(&self, pool: &'static Pool) {
        if self.timing {
            self.time.store(now_ns(), Ordering::Relaxed);
        }
        if self.state.swap(DONE, Ordering::AcqRel) == SLEEPER {
            futex::wake_all(&self.state);
        }
        // After the swap: who takes the lock later sees DONE and does not queue up.
        let waiters = std::mem::take(&mut *self.waiters.lock());
        for stream in waiters {
            // The wait it is suspended in is over.
            stream.complete();
            let priority = stream.priority();
            pool.schedule_stream(stream, priority);
        }
    }

    /// Hands an owned stream over until the record is reached; answers it if that is so already.
    pub fn suspend(&self, stream: Arc<Stream>) -> Option<Arc<Stream>> {
        if self.done() {
            return Some(stream);
        }
        let mut waiters = self.waiters.lock();
        if self.done() {
            return Some(stream);
        }
        waiters.push(stream);
        None
    }

    /// Wakes its sleepers because the process is exiting.
    pub fn disturb(&self) {
        let _ = self
            .state
            .compare_exchange(SLEEPER, PENDING, Ordering::AcqRel, Ordering::Acquire);
        futex::wake_all(&self.state);
    }

    fn block(self: &Arc<Self>, pool: &Pool, patience: Patience) -> Result<bool> {
        let deadline = futex::deadline(patience);
        let _listed = pool.list_sleeper(self.clone());
        loop {
            let seen = self
                .state
                .compare_exchange(PENDING, SLEEPER, Ordering::AcqRel, Ordering::Acquire);
            if seen == Err(DONE) {
                return Ok(true);
            }
            if pool.exiting() {
                return Err(exiting());
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Ok(false);
            }
            futex::wait(&self.state, SLEEPER, deadline);
        }
    }
}

/// An event: its last record.
pub struct Event {
    /// The device it may be recorded on.
    pub device: u32,
    /// Whether its records carry a time.
    pub timing: bool,
    current: Mutex<Option<Arc<Record>>>,
}

impl Event {
    /// An event never recorded.
    pub fn new(device: u32, timing: bool) -> Event {
        Event {
            device,
            timing,
            current: Mutex::new(None),
        }
    }

    /// Makes a fresh record the current one and hands it to `queue`.
    pub fn renew(&self, queue: impl FnOnce(Arc<Record>)) {
        let mut current = self.current.lock();
        let mut record = current.take().unwrap_or_default();
        match Arc::get_mut(&mut record) {
            // Nobody else looks at the old one any more: use its memory again.
            Some(ours) => (ours.state, ours.timing) = (AtomicU32::new(PENDING), self.timing),
            None => {
                record = Arc::new(Record {
                    timing: self.timing,
                    ..Record::default()
                })
            }
        }
        *current = Some(record.clone());
        queue(record);
    }

    /// The last record, if there is one.
    pub fn last(&self) -> Option<Arc<Record>> {
        self.current.lock().clone()
    }

    /// Whether the last record has been reached; so it is with none.
    pub fn state(&self) -> EventState {
        match &*self.current.lock() {
            Some(record) if !record.done() => EventState::Pending,
            _ => EventState::Done,
        }
    }

    /// Sleeps until the last record is reached.
    pub fn block(&self, pool: &Pool, patience: Patience) -> Result<bool> {
        match self.last() {
            Some(record) if !record.done() => record.block(pool, patience),
            _ => Ok(true),
        }
    }

    /// The time of the last record: `None` if never recorded, `Some(None)` if not reached yet.
    pub fn time(&self) -> Option<Option<u64>> {
        let current = self.current.lock();
        let record = current.as_ref()?;
        Some(record.done().then(|| record.time.load(Ordering::Relaxed)))
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let mut spec = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `spec` is a live timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut spec) };
    spec.tv_sec as u64 * 1_000_000_000 + spec.tv_nsec as u64
}
