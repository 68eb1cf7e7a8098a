//! The workers: one pool for all host devices.
//!
//! Ready work lies in one queue per priority. A worker takes the most urgent entry there is, and looks again
//! between operations and between blocks, so that urgent work overtakes as on a GPU.
//!
//! Who wakes whom: a *searching* worker is awake and looks for work. Whoever makes work ready wakes a sleeper
//! (or starts another worker) only if nobody searches. A worker that finds work and was the last to search looks
//! whether there is more and passes the wake-up on. A worker looks once more after it has listed itself as a
//! sleeper. Each of these pairs is a store, a full fence and a load on both sides, so no wake-up gets lost.
//!
//! A worker that ran a stream dry keeps it while it searches: the next operation reaches it without a detour
//! through the ready queue.

use super::event::{now_ns, Record};
use super::futex;
use super::stream::{exiting, Op, Stream};
use super::warm;
use super::work::{current_core, Inside, Spot, Work};
use crate::backend::{Error, Priority, Result, Status};
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes of dynamic shared memory of a block; each worker has its own.
pub const SHARED_BYTES: u64 = 64 << 10;

/// Most worker threads.
const MAX_THREADS: u32 = 4096;

/// Hint bits: ready queue `p` may hold something.
const READY: u32 = 0b111;
/// Hint bit: the process is going down, workers stop.
const EXIT: u32 = 0b1000;

/// How long a worker searches before it sleeps.
const SEARCH: Duration = Duration::from_micros(50);
/// Looks before the worker gives up the core between looks, about 1 us of them.
const RELAXED_LOOKS: u32 = 32;
/// Looks from one yield to the next after that.
const YIELD_EVERY: u32 = 8;
/// Launches in a row from the worker's own core after which it moves to another one.
const CROWDED: u32 = 32;
/// How long work runs before other work of the same priority gets a turn.
const SLICE_NS: u64 = 1_000_000;
/// Blocks between two looks at the clock while other work of the same priority waits.
const SLICE_LOOKS: u32 = 16;
/// Operations of one stream before other work of the same priority gets a turn.
const TURN: u32 = 64;
/// Blocks claimed at once at most.
const MAX_CHUNK: u64 = 512;

/// Something a worker can go on with.
enum Item {
    /// A stream to drive. The entry owns it.
    Stream(Arc<Stream>),
    /// Shared work with units left. At most one entry of each is queued.
    Job(Arc<Job>),
}

/// Work of a stream that several workers share. It owns the stream until its last unit is done.
struct Job {
    work: Work,
    stream: Arc<Stream>,
    units: u64,
    chunk: u64,
    /// Whether an entry of it is queued.
    queued: AtomicBool,
    /// Ranges that were claimed and given back.
    given_back: Mutex<Vec<(u64, u64)>>,
    any_given_back: AtomicBool,
    next: CachePadded<AtomicU64>,
    done: CachePadded<AtomicU64>,
}

impl Job {
    fn claim(&self) -> Option<(u64, u64)> {
        if self.any_given_back.load(Ordering::SeqCst) {
            let mut ranges = self.given_back.lock();
            if let Some(range) = ranges.pop() {
                self.any_given_back.store(!ranges.is_empty(), Ordering::SeqCst);
                return Some(range);
            }
        }
        if self.next.load(Ordering::Relaxed) >= self.units {
            return None;
        }
        let from = self.next.fetch_add(self.chunk, Ordering::Relaxed);
        (from < self.units).then(|| (from, self.units.min(from + self.chunk)))
    }

    fn give_back(&self, from: u64, to: u64) {
        let mut ranges = self.given_back.lock();
        ranges.push((from, to));
        self.any_given_back.store(true, Ordering::SeqCst);
    }

    /// How often it can be claimed, roughly; at least 1.
    fn remaining_chunks(&self) -> u64 {
        self.units
            .saturating_sub(self.next.load(Ordering::Relaxed))
            .div_ceil(self.chunk)
            .max(1)
    }

    fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.units || self.any_given_back.load(Ordering::SeqCst)
    }
}

/// What became of an operation.
enum Outcome {
    /// It is done and has to be counted; the worker still owns the stream.
    Done(Arc<Stream>),
    /// It is done and counted; the worker owns the stream again.
    Counted(Arc<Stream>),
    /// Somebody else owns the stream now.
    Gone,
}

/// Set-up that never changes, and counts that seldom do.
struct Static {
    threads: u32,
    /// Most workers that may search at the same time without having been woken for it.
    max_searching: u32,
    cores: libc::cpu_set_t,
    started: AtomicU32,
    halted: AtomicU32,
}

/// The workers and what they share.
pub struct Pool {
    hints: CachePadded<AtomicU32>,
    searching: CachePadded<AtomicU32>,
    fixed: CachePadded<Static>,
    ready: [SegQueue<Item>; 3],
    sleepers: AtomicU32,
    /// Sleeping workers, the one asleep last on top: its caches are the warmest.
    idle: Mutex<Vec<usize>>,
    /// For each worker: 1 while it sleeps.
    beds: Box<[CachePadded<AtomicU32>]>,
    starting: Mutex<()>,
    /// Records that threads sleep on, to be woken at exit.
    event_sleepers: Mutex<Vec<Arc<Record>>>,
}

/// Index of the ready queue, and its bit in the hints: the most urgent first.
fn rank(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

impl Pool {
    /// A pool without a thread yet. `threads` 0: as many as the process has cores.
    pub fn new(threads: u32) -> Result<Pool> {
        if threads > MAX_THREADS {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("{threads} worker threads; the most is {MAX_THREADS}"),
            ));
        }
        let (cores, count) = process_cores();
        let threads = if threads == 0 { count } else { threads };
        let mut beds = Vec::new();
        beds.try_reserve_exact(threads as usize).map_err(|_| {
            Error::new(
                Status::OutOfMemory,
                format!("no memory for {threads} worker threads"),
            )
        })?;
        beds.resize_with(threads as usize, CachePadded::default);
        Ok(Pool {
            hints: CachePadded::default(),
            searching: CachePadded::default(),
            fixed: CachePadded::new(Static {
                threads,
                max_searching: count - 1,
                cores,
                started: AtomicU32::new(0),
                halted: AtomicU32::new(0),
            }),
            ready: std::array::from_fn(|_| SegQueue::new()),
            sleepers: AtomicU32::new(0),
            idle: Mutex::new(Vec::with_capacity(threads as usize)),
            beds: beds.into_boxed_slice(),
            starting: Mutex::new(()),
            event_sleepers: Mutex::new(Vec::new()),
        })
    }

    /// Workers there are at most.
    pub fn threads(&self) -> u32 {
        self.fixed.threads
    }

    /// Whether a worker has been started.
    pub fn started(&self) -> bool {
        self.fixed.started.load(Ordering::Relaxed) != 0
    }

    /// Whether the process is going down.
    pub fn exiting(&self) -> bool {
        self.hints.load(Ordering::SeqCst) & EXIT != 0
    }

    /// Refuses work where nobody would run it.
    pub fn accepts_work(&'static self) -> Result<()> {
        if self.hints.load(Ordering::Relaxed) & EXIT != 0 {
            return Err(exiting());
        }
        if !self.started() {
            self.start(true)?;
        }
        Ok(())
    }

    /// Lists a record that the caller is about to sleep on, until the answer is dropped.
    pub fn list_sleeper(&self, record: Arc<Record>) -> impl Drop + '_ {
        struct Listed<'a>(&'a Pool, Arc<Record>);
        impl Drop for Listed<'_> {
            fn drop(&mut self) {
                let mut list = self.0.event_sleepers.lock();
                if let Some(at) = list.iter().position(|r| Arc::ptr_eq(r, &self.1)) {
                    list.swap_remove(at);
                }
            }
        }
        self.event_sleepers.lock().push(record.clone());
        Listed(self, record)
    }

    /// Fetches what scheduling a stream of this priority is going to touch.
    pub fn warm(&self, priority: Priority) {
        warm::fetch(&self.hints);
        warm::fetch(&self.searching);
        warm::fetch(&self.fixed);
        warm::fetch(&self.sleepers);
        warm::fetch(&self.idle);
        // Most likely the one to be woken.
        self.beds.first().into_iter().for_each(warm::fetch);
        warm::fetch(&self.ready[rank(priority)]);
    }

    /// Hands an owned stream to the workers. Its priority comes along: the caller has it at hand.
    pub fn schedule_stream(&'static self, stream: Arc<Stream>, priority: Priority) {
        self.schedule(rank(priority), Item::Stream(stream), 1);
    }

    /// Queues an entry that `wanted` workers could go on with.
    fn schedule(&'static self, rank: usize, item: Item, wanted: u32) {
        self.ready[rank].push(item);
        // Against `any_ready` of a worker about to sleep or to stop searching, and against `settle_hint`.
        fence(Ordering::SeqCst);
        if self.hints.load(Ordering::Relaxed) & (1 << rank) == 0 {
            self.hints.fetch_or(1 << rank, Ordering::SeqCst);
        }
        self.notify(wanted);
    }

    /// Sees to it that up to `wanted` workers look at the ready queues from now on, at least one of them.
    fn notify(&'static self, wanted: u32) {
        for _ in 0..wanted {
            if self.searching.load(Ordering::SeqCst) >= wanted {
                return;
            }
            if self.sleepers.load(Ordering::SeqCst) != 0 && self.wake_sleeper(wanted) {
                continue;
            }
            // Without another thread the work still runs, only later.
            if self.fixed.started.load(Ordering::Relaxed) >= self.fixed.threads || self.start(false).is_err()
            {
                return;
            }
        }
    }

    fn wake_sleeper(&self, wanted: u32) -> bool {
        let mut idle = self.idle.lock();
        if self.searching.load(Ordering::SeqCst) >= wanted {
            return true;
        }
        let Some(worker) = idle.pop() else { return false };
        self.sleepers.store(idle.len() as u32, Ordering::SeqCst);
        // Searching on its behalf until it is awake, so that nobody wakes a second one for the same work.
        self.searching.fetch_add(1, Ordering::SeqCst);
        drop(idle);
        self.beds[worker].store(0, Ordering::Release);
        futex::wake_one(&self.beds[worker]);
        true
    }

    /// Starts a worker: the first, or one more.
    #[cold]
    fn start(&'static self, first: bool) -> Result<()> {
        let _one_at_a_time = self.starting.lock();
        let started = self.fixed.started.load(Ordering::Relaxed);
        if (first && started > 0) || started >= self.fixed.threads {
            return Ok(());
        }
        let worker = Worker::new(self, started as usize)?;
        self.searching.fetch_add(1, Ordering::SeqCst);
        let spawned = {
            let _signals = crate::backend::os::SignalsBlocked::new();
            std::thread::Builder::new()
                .name("taskgpu-host".into())
                .stack_size(8 << 20)
                .spawn(move || worker.main())
        };
        match spawned {
            Ok(_) => {
                self.fixed.started.store(started + 1, Ordering::SeqCst);
                Ok(())
            }
            Err(error) => {
                self.searching.fetch_sub(1, Ordering::SeqCst);
                Err(Error::new(
                    Status::OutOfMemory,
                    format!("cannot start a worker thread: {error}"),
                ))
            }
        }
    }

    fn any_ready(&self) -> bool {
        self.ready.iter().any(|queue| !queue.is_empty())
    }

    /// Clears the hint of an empty queue. True: it is not empty after all.
    fn settle_hint(&self, rank: usize) -> bool {
        self.hints.fetch_and(!(1 << rank), Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.ready[rank].is_empty() {
            return false;
        }
        self.hints.fetch_or(1 << rank, Ordering::SeqCst);
        true
    }

    fn pop_ready(&self) -> Option<Item> {
        let hints = self.hints.load(Ordering::Relaxed);
        if hints & READY == 0 {
            return None;
        }
        for (rank, queue) in self.ready.iter().enumerate() {
            if hints & (1 << rank) == 0 {
                continue;
            }
            loop {
                if let Some(item) = queue.pop() {
                    return Some(item);
                }
                if !self.settle_hint(rank) {
                    break;
                }
            }
        }
        None
    }

    /// Whether a ready queue among those of `mask` holds something.
    fn has_ready(&self, mask: u32) -> bool {
        let hints = self.hints.load(Ordering::Relaxed) & mask;
        (0..self.ready.len())
            .any(|rank| hints & (1 << rank) != 0 && (!self.ready[rank].is_empty() || self.settle_hint(rank)))
    }

    /// The last of the searching workers passes the search on if there is something left to find.
    fn stop_searching(&'static self) {
        if self.searching.fetch_sub(1, Ordering::SeqCst) == 1 {
            fence(Ordering::SeqCst);
            if self.any_ready() {
                self.notify(1);
            }
        }
    }

    fn try_search(&self) -> bool {
        let max = self.fixed.max_searching;
        self.searching
            .fetch_update(Ordering::SeqCst, Ordering::Relaxed, |n| {
                (n < max).then_some(n + 1)
            })
            .is_ok()
    }

    /// Stops the workers at the next boundary, for good, and waits a bounded time for what they are in. After
    /// this no work is accepted. Sleepers are woken to find that out.
    pub fn park_for_exit(&self, limit: Duration) {
        let ours = u32::from(super::inside_user_code());
        self.hints.fetch_or(EXIT, Ordering::SeqCst);
        for record in self.event_sleepers.lock().iter() {
            record.disturb();
        }
        let deadline = Instant::now() + limit;
        let fixed = &self.fixed;
        while fixed.halted.load(Ordering::SeqCst) + self.sleepers.load(Ordering::SeqCst) + ours
            < fixed.started.load(Ordering::SeqCst)
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// The end of a worker: it holds still while the process goes down.
    #[cold]
    fn halt(&self) -> ! {
        let halted = &self.fixed.halted;
        halted.fetch_add(1, Ordering::SeqCst);
        let still = AtomicU32::new(0);
        loop {
            futex::wait(&still, 0, None);
        }
    }
}

/// One worker thread.
struct Worker {
    pool: &'static Pool,
    index: usize,
    shared: *mut c_void,
    /// The core that the last launch came from.
    launcher: Cell<u16>,
    /// How many launches in a row came from our own core.
    crowded: Cell<u32>,
}

// SAFETY: `shared` is memory that belongs to the worker alone; it is made before the thread and moves with it.
unsafe impl Send for Worker {}

impl Worker {
    fn new(pool: &'static Pool, index: usize) -> Result<Worker> {
        let shared = super::memory::os_alloc(SHARED_BYTES, 64).ok_or_else(|| {
            Error::new(
                Status::OutOfMemory,
                format!("no memory for a worker's {SHARED_BYTES} bytes of shared memory"),
            )
        })?;
        Ok(Worker {
            pool,
            index,
            shared: shared as *mut c_void,
            launcher: Cell::new(u16::MAX),
            crowded: Cell::new(0),
        })
    }

    fn main(self) {
        let pool = self.pool;
        // SAFETY: the set is a live, initialised cpu_set_t. If the kernel refuses, the inherited cores stay.
        unsafe {
            // The starting thread may be pinned to one core; a worker of everybody's must not share its fate.
            libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &pool.fixed.cores);
        }
        // Whoever started or woke us has counted us as searching.
        let mut searching = true;
        let mut held: Option<Arc<Stream>> = None;
        let mut looks = 0;
        let mut since = None;
        loop {
            if pool.hints.load(Ordering::Relaxed) & EXIT != 0 {
                pool.halt();
            }
            let mut found = pool.pop_ready();
            if found.is_some() {
                if let Some(stream) = held.take() {
                    self.let_go(stream);
                }
            } else if held.as_ref().is_some_and(|stream| stream.has_work()) {
                found = held.take().map(Item::Stream);
            }
            if let Some(item) = found {
                if searching {
                    searching = false;
                    pool.stop_searching();
                }
                held = match item {
                    Item::Stream(stream) => self.drive(stream),
                    Item::Job(job) => {
                        job.queued.store(false, Ordering::SeqCst);
                        self.work_on(&job).and_then(|stream| self.drive(stream))
                    }
                };
                if held.is_some() {
                    self.make_room();
                }
                continue;
            }
            if !searching && pool.try_search() {
                searching = true;
                looks = 0;
                since = None;
                continue;
            }
            if searching && self.keep_looking(&mut looks, &mut since) {
                continue;
            }
            if let Some(stream) = held.take() {
                if !stream.leave() {
                    held = Some(stream);
                    continue;
                }
            }
            searching = self.sleep(searching);
            looks = 0;
            since = None;
        }
    }

    /// Lets the thread that launches go on if it shares our core: it cannot while we look for its next launch. The
    /// kernel may leave two such threads together for seconds, next to an idle core, so in the end we move.
    fn make_room(&self) {
        let launcher = self.launcher.replace(u16::MAX);
        if launcher == u16::MAX || launcher != current_core() {
            self.crowded.set(0);
            return;
        }
        self.crowded.set(self.crowded.get() + 1);
        if self.crowded.get() == CROWDED {
            leave_core(launcher);
            self.crowded.set(0);
        } else {
            std::thread::yield_now();
        }
    }

    /// Passes a little time. False when the search has lasted long enough.
    fn keep_looking(&self, looks: &mut u32, since: &mut Option<Instant>) -> bool {
        if self.pool.fixed.max_searching == 0 {
            return false;
        }
        *looks += 1;
        if *looks < RELAXED_LOOKS {
            std::hint::spin_loop();
            return true;
        }
        if *looks % YIELD_EVERY == 0 {
            let start = since.get_or_insert_with(Instant::now);
            if start.elapsed() >= SEARCH {
                return false;
            }
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
        true
    }

    /// Sleeps until somebody wakes this worker to search. False: it found a reason not to sleep.
    fn sleep(&self, searching: bool) -> bool {
        let pool = self.pool;
        let bed = &pool.beds[self.index];
        {
            let mut idle = pool.idle.lock();
            bed.store(1, Ordering::Relaxed);
            idle.push(self.index);
            pool.sleepers.store(idle.len() as u32, Ordering::SeqCst);
            if searching {
                pool.searching.fetch_sub(1, Ordering::SeqCst);
            }
        }
        fence(Ordering::SeqCst);
        if pool.any_ready() || pool.exiting() {
            let mut idle = pool.idle.lock();
            if let Some(at) = idle.iter().position(|&worker| worker == self.index) {
                idle.remove(at);
                pool.sleepers.store(idle.len() as u32, Ordering::SeqCst);
                return false;
            }
        }
        while bed.load(Ordering::Acquire) == 1 {
            futex::wait(bed, 1, None);
        }
        true
    }

    /// Gives an owned stream up, to the ready queue if it has work.
    fn let_go(&self, stream: Arc<Stream>) {
        if !stream.leave() {
            let priority = stream.priority();
            self.pool.schedule_stream(stream, priority);
        }
    }

    /// Runs a stream's operations. Answers the stream, still owned, once it is dry.
    fn drive(&self, mut stream: Arc<Stream>) -> Option<Arc<Stream>> {
        let pool = self.pool;
        let rank = rank(stream.priority());
        let (more_urgent, same) = ((1 << rank) - 1, 1 << rank);
        let mut turn = TURN;
        let mut started = 0;
        loop {
            let hints = pool.hints.load(Ordering::Relaxed);
            if hints & (more_urgent | same | EXIT) != 0 {
                if hints & EXIT != 0 {
                    pool.halt();
                }
                turn -= 1;
                let over = turn == 0 || {
                    let now = now_ns();
                    if started == 0 {
                        started = now;
                    }
                    now - started > SLICE_NS
                };
                if pool.has_ready(if over { more_urgent | same } else { more_urgent }) {
                    self.let_go(stream);
                    return None;
                }
                if over {
                    turn = TURN;
                    started = 0;
                }
            }
            let Some(op) = stream.pop() else {
                return Some(stream);
            };
            match self.execute(stream, op) {
                Outcome::Done(ours) => {
                    stream = ours;
                    stream.complete();
                }
                Outcome::Counted(ours) => stream = ours,
                Outcome::Gone => return None,
            }
        }
    }

    fn spot(&self, stream: &Stream) -> Spot {
        Spot {
            device: stream.device().ordinal,
            shared: self.shared,
        }
    }

    fn execute(&self, stream: Arc<Stream>, op: Op) -> Outcome {
        match op {
            Op::Launch(mut launch) => {
                self.launcher.set(launch.core());
                if launch.blocks() != 1 {
                    return self.share(stream, Work::Launch(launch));
                }
                launch.settle();
                launch.run(0, 1, self.spot(&stream), || false);
            }
            Op::Copy(copy) => {
                if copy.chunks() != 1 {
                    return self.share(stream, Work::Copy(copy));
                }
                copy.run(0, 1);
            }
            Op::Fill(fill) => {
                if fill.chunks() != 1 {
                    return self.share(stream, Work::Fill(fill));
                }
                fill.run(0, 1);
            }
            Op::Record(record) => record.reach(self.pool),
            Op::Wait(record) => match record.suspend(stream) {
                Some(ours) => return Outcome::Done(ours),
                None => return Outcome::Gone,
            },
            Op::Callback(callback) => {
                let _inside = Inside::enter();
                // A callback that panics has been called; the worker and the stream go on.
                let _ = catch_unwind(AssertUnwindSafe(|| callback(Status::Ok)));
            }
            Op::Release { size, token } => {
                stream
                    .device()
                    .memory
                    .released(Arc::as_ptr(&stream) as u64, size, token);
            }
        }
        Outcome::Done(stream)
    }

    /// Makes the work available to all workers and takes part in it.
    fn share(&self, stream: Arc<Stream>, work: Work) -> Outcome {
        let units = work.units();
        let chunk = match &work {
            Work::Launch(_) => (units / (u64::from(self.pool.threads()) * 16)).clamp(1, MAX_CHUNK),
            Work::Copy(_) | Work::Fill(_) => 1,
        };
        let mut job = Arc::new(Job {
            work,
            stream,
            units,
            chunk,
            queued: AtomicBool::new(false),
            given_back: Mutex::new(Vec::new()),
            any_given_back: AtomicBool::new(false),
            next: CachePadded::new(AtomicU64::new(0)),
            done: CachePadded::new(AtomicU64::new(0)),
        });
        Arc::get_mut(&mut job)
            .expect("nobody else has it yet")
            .work
            .settle();
        match self.work_on(&job) {
            Some(stream) => Outcome::Counted(stream),
            None => Outcome::Gone,
        }
    }

    fn offer(&self, rank: usize, job: &Arc<Job>) {
        if !job.queued.load(Ordering::SeqCst) && !job.queued.swap(true, Ordering::SeqCst) {
            // Two at a time, each of which wakes two more: all are awake after few wake-ups in a row.
            let wanted = job.remaining_chunks().min(2) as u32;
            self.pool.schedule(rank, Item::Job(job.clone()), wanted);
        }
    }

    /// Runs units of shared work. Answers the stream, owned and counted, to whoever finishes the last one.
    fn work_on(&self, job: &Arc<Job>) -> Option<Arc<Stream>> {
        let pool = self.pool;
        let rank = rank(job.stream.priority());
        let (more_urgent, same) = ((1 << rank) - 1, 1u32 << rank);
        let mut looks = 0u32;
        let mut started = 0;
        let mut stop = || {
            let hints = pool.hints.load(Ordering::Relaxed);
            if hints & (more_urgent | same | EXIT) == 0 {
                return false;
            }
            if hints & EXIT != 0 {
                pool.halt();
            }
            looks = looks.wrapping_add(1);
            if hints & same != 0 && looks % SLICE_LOOKS == 1 {
                let now = now_ns();
                if started == 0 {
                    started = now;
                } else if now - started > SLICE_NS {
                    return pool.has_ready(more_urgent | same);
                }
            }
            hints & more_urgent != 0 && pool.has_ready(more_urgent)
        };
        while let Some((from, to)) = job.claim() {
            if pool.threads() > 1 && job.has_more() {
                self.offer(rank, job);
            }
            let at = job.work.run(from, to, self.spot(&job.stream), &mut stop);
            if at < to {
                job.give_back(at, to);
                self.offer(rank, job);
            }
            let ran = at - from;
            if ran > 0 && job.done.fetch_add(ran, Ordering::AcqRel) + ran == job.units {
                job.stream.complete();
                return Some(job.stream.clone());
            }
            if at < to {
                return None;
            }
        }
        None
    }
}

/// The cores of the process (those of its main thread) and how many they are, at least 1.
fn process_cores() -> (libc::cpu_set_t, u32) {
    // SAFETY: an all-zero cpu_set_t is an empty set, and the kernel writes at most the size it is given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = std::mem::size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(libc::getpid(), size, &mut set) != 0 {
            // More cores than the set has room for, or no such thread: ask for what the standard library knows.
            let count = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
            return (set, count);
        }
        (set, u32::try_from(libc::CPU_COUNT(&set)).unwrap_or(1).max(1))
    }
}

/// Moves the calling thread to another of its cores, if it has others. Where it may run stays the same.
#[cold]
fn leave_core(core: u16) {
    let size = std::mem::size_of::<libc::cpu_set_t>();
    // SAFETY: the sets are live and the kernel writes at most the size it is given; the core is below the number of
    // cores that a set holds, as checked.
    unsafe {
        let mut before: libc::cpu_set_t = std::mem::zeroed();
        if usize::from(core) >= size * 8 || libc::sched_getaffinity(0, size, &mut before) != 0 {
            return;
        }
        let mut others = before;
        libc::CPU_CLR(usize::from(core), &mut others);
        if libc::CPU_COUNT(&others) > 0 && libc::sched_setaffinity(0, size, &others) == 0 {
            libc::sched_setaffinity(0, size, &before);
        }
    }
}
