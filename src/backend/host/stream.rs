//! Streams: in-order queues without a thread of their own.
//!
//! A stream is *idle* or *owned*. Exactly one owner exists at a time: an entry of the pool's ready queues, a
//! worker, a parallel operation under way, or the waiter list of an event. The enqueuer that finds the stream
//! idle makes it owned and hands it to the pool. Every owner holds an `Arc`, so queued work keeps its stream.

use super::device::Device;
use super::event::Record;
use super::futex;
use super::pool::Pool;
use super::warm;
use super::work::{Copy, Fill, Launch};
use crate::backend::{Callback, Error, Patience, Priority, Result, Status};
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// One piece of queued work.
pub enum Op {
    /// Runs a kernel.
    Launch(Launch),
    /// Copies memory.
    Copy(Copy),
    /// Fills memory.
    Fill(Fill),
    /// Marks an event's record as reached.
    Record(Arc<Record>),
    /// Waits for an event's record.
    Wait(Arc<Record>),
    /// Calls a function of the user's.
    Callback(Callback),
    /// Makes a block that was given back in this stream's order usable by everybody.
    Release {
        /// Bytes of the block.
        size: u64,
        /// Which giving back it was.
        token: u64,
    },
}

// Up to this size a move is a few stores, above it a call of memcpy.
const _: () = assert!(size_of::<Op>() <= 128);

const IDLE: u32 = 0;
const OWNED: u32 = 1;

/// What enqueuers write; the owner touches it only when it takes or leaves the stream.
struct Front {
    enqueued: AtomicU64,
    state: AtomicU32,
    priority: Priority,
}

/// What sleeping waiters write.
struct Sleepers {
    /// The lowest mark somebody sleeps for.
    wake_at: AtomicU64,
    /// Changes with every wake-up.
    generation: AtomicU32,
    device: &'static Device,
    priority: Priority,
    /// Still has a handle made by `stream_create`; imports are checked against it.
    named: AtomicBool,
}

/// An in-order queue. Lines that different sides write are kept apart: a round trip costs few transfers.
pub struct Stream {
    front: CachePadded<Front>,
    /// Operations finished; only the owner writes it.
    completed: CachePadded<AtomicU64>,
    sleepers: CachePadded<Sleepers>,
    queue: SegQueue<Op>,
}

impl Stream {
    /// An empty stream. The caller puts it into the device's books.
    pub fn new(device: &'static Device, priority: Priority) -> Stream {
        Stream {
            front: CachePadded::new(Front {
                enqueued: AtomicU64::new(0),
                state: AtomicU32::new(IDLE),
                priority,
            }),
            completed: CachePadded::new(AtomicU64::new(0)),
            sleepers: CachePadded::new(Sleepers {
                wake_at: AtomicU64::new(u64::MAX),
                generation: AtomicU32::new(0),
                device,
                priority,
                named: AtomicBool::new(true),
            }),
            queue: SegQueue::new(),
        }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &'static Device {
        self.sleepers.device
    }

    /// Its priority.
    pub fn priority(&self) -> Priority {
        self.sleepers.priority
    }

    /// Whether `stream_destroy` has not been called for it yet.
    pub fn named(&self) -> bool {
        self.sleepers.named.load(Ordering::Acquire)
    }

    /// Takes the name away: the stream cannot be imported any more.
    pub fn unname(&self) {
        self.sleepers.named.store(false, Ordering::Release);
    }

    /// To be called first by what is going to [`push`](Stream::push): refuses work that nobody would run.
    pub fn prepare(&self, pool: &'static Pool) -> Result<()> {
        if self.front.state.load(Ordering::Relaxed) == IDLE {
            warm::fetch(self);
            pool.warm(self.front.priority);
        }
        pool.accepts_work()
    }

    /// Queues an operation; something runs it later on another thread.
    pub fn enqueue(self: &Arc<Self>, pool: &'static Pool, op: Op) -> Result<()> {
        self.prepare(pool)?;
        self.push(pool, op);
        Ok(())
    }

    /// [`enqueue`](Stream::enqueue) after [`prepare`](Stream::prepare).
    pub fn push(self: &Arc<Self>, pool: &'static Pool, op: Op) {
        // Counted before it is queued: a mark taken after this call covers the operation wherever concurrent
        // enqueuers put it in the queue.
        self.front.enqueued.fetch_add(1, Ordering::Relaxed);
        self.queue.push(op);
        // Against `leave`: either we see IDLE, or the leaving owner sees our operation.
        fence(Ordering::SeqCst);
        if self.front.state.load(Ordering::Relaxed) == IDLE && self.claim() {
            pool.schedule_stream(self.clone(), self.front.priority);
        }
    }

    fn claim(&self) -> bool {
        self.front
            .state
            .compare_exchange(IDLE, OWNED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// The owner leaves. False: new work came meanwhile, and the caller still is the owner.
    #[must_use]
    pub fn leave(&self) -> bool {
        self.front.state.store(IDLE, Ordering::Release);
        fence(Ordering::SeqCst);
        self.queue.is_empty() || !self.claim()
    }

    /// The owner looks for work.
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The owner takes the next operation.
    pub fn pop(&self) -> Option<Op> {
        self.queue.pop()
    }

    /// The owner has finished one operation.
    pub fn complete(&self) {
        let done = self.completed.load(Ordering::Relaxed) + 1;
        self.completed.store(done, Ordering::Release);
        // Against `block`: either we see the sleeper's mark, or it sees our count.
        fence(Ordering::SeqCst);
        if done >= self.sleepers.wake_at.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Wakes everybody who sleeps here; they look again and sleep on if they must.
    #[cold]
    pub fn wake(&self) {
        self.sleepers.wake_at.store(u64::MAX, Ordering::SeqCst);
        self.sleepers.generation.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.sleepers.generation);
    }

    /// The mark of everything queued so far.
    pub fn mark(&self) -> u64 {
        self.front.enqueued.load(Ordering::Relaxed)
    }

    /// Whether everything up to `mark` has finished.
    pub fn reached(&self, mark: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= mark
    }

    /// Sleeps until `mark` is reached (`true`) or the patience is over (`false`).
    pub fn block(&self, pool: &Pool, mark: u64, patience: Patience) -> Result<bool> {
        if self.reached(mark) {
            return Ok(true);
        }
        let deadline = futex::deadline(patience);
        loop {
            // The generation is read first: a wake-up after this line ends the sleep below at once.
            let generation = self.sleepers.generation.load(Ordering::SeqCst);
            self.sleepers.wake_at.fetch_min(mark, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if self.reached(mark) {
                return Ok(true);
            }
            if pool.exiting() {
                return Err(exiting());
            }
            if deadline.is_some_and(|d| std::time::Instant::now() >= d) {
                return Ok(false);
            }
            futex::wait(&self.sleepers.generation, generation, deadline);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.device().forget_stream(self as *const Stream as usize);
    }
}

/// What calls are answered once the process is going down.
#[cold]
pub fn exiting() -> Error {
    Error::new(
        Status::NotPermitted,
        "the process is exiting: host devices run no more work",
    )
}
