//! Tasks: the state that follows whoever is running.
//!
//! A task is current on at most one thread, and only that thread reads or writes its device, streams, policy and
//! scopes. They are atomics all the same, so that the whole of it is safe Rust; on the hot path they cost what plain
//! memory costs. Tasks live in the slots of a table and are used again, never freed.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::backend::{self, os, Error, Result, Status};

use super::calls::{Call, Mark};
use super::device::{self, Device};
use super::event::Recorded;
use super::handle::{Kind, Slot, StreamHandle, Table, TaskHandle};
use super::registry::{self, runtime};
use super::scope::Scopes;
use super::stream::{self, Lease, Stream, StreamSlot};
use super::sync::WaitPolicy;

/// What a new task takes over from its creator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskOptions {
    /// The device.
    pub inherit_device: bool,
    /// The wait policy.
    pub inherit_wait_policy: bool,
    /// The order: its first lease on each device comes after what the creator's current stream there held.
    pub inherit_order: bool,
}

/// No device chosen yet.
const UNCHOSEN: i32 = -1;
/// Set in [`Task::holder`] once the handle was destroyed while the task was current.
const ENDING: u64 = 1 << 63;

/// The state of a task.
#[derive(Default)]
pub(crate) struct Task {
    /// The thread the task is current on, or the task's handle if it is current nowhere: who comes with the handle of
    /// an earlier task of the slot cannot take it, not even for a moment. 0 while the slot has no task.
    holder: AtomicU64,
    /// The thread whose own task this is, 0 for one that was created.
    owner: AtomicU64,
    device: AtomicI32,
    policy: AtomicI32,
    /// Tells this task from every other one, before and after it.
    serial: AtomicU64,
    scopes: Scopes,
    streams: OnceCell<Box<[TaskStream]>>,
    /// There is something in `order`.
    ordered: AtomicBool,
    cold: Mutex<Cold>,
}

/// A task's streams on one device.
#[derive(Default)]
struct TaskStream {
    /// What `tgpu_stream_set` chose, 0 for the lease.
    chosen: AtomicU64,
    /// The handle of the lease, 0 before its first use.
    lease: AtomicU64,
}

#[derive(Default)]
struct Cold {
    error: Option<Error>,
    /// For each device index, what the first lease there waits for.
    order: Vec<(u32, Arc<Recorded>)>,
}

type TaskSlot = Slot<Task>;

static TASKS: Table<Task> = Table::new(Kind::Task);
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);
/// Threads that have a task of their own.
static THREADS: AtomicU32 = AtomicU32::new(0);
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);
static THREAD_EXIT: os::ThreadExit = os::ThreadExit::new(thread_exit);

/// What a thread knows of itself.
#[derive(Clone, Copy)]
struct Here {
    /// The task that is current.
    task: &'static TaskSlot,
    /// The thread's own task.
    own: &'static TaskSlot,
    /// Where the thread says that it is inside a call.
    mark: &'static Mark,
}

/// The current stream as it was last looked up, and the slot that says whether it still lives. Only the thread that a
/// task is current on changes what its current device and stream are, so a copy in that thread is enough.
#[derive(Clone, Copy)]
struct Seen {
    handle: u64,
    slot: &'static StreamSlot,
}

thread_local! {
    /// Empty before a thread's first call, inside callbacks, and in a fork's child.
    static HERE: Cell<Option<Here>> = const { Cell::new(None) };
    /// Empty after every change of the task, its device or its streams.
    static SEEN: Cell<Option<Seen>> = const { Cell::new(None) };
    /// The current device as it was last looked up, `UNCHOSEN` after every change of the task or its device.
    static SEEN_DEVICE: Cell<i32> = const { Cell::new(UNCHOSEN) };
    /// This thread runs a callback of a caller.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// The calling task. The one check that every call which needs the runtime makes: it answers FORKED, IN_CALLBACK
/// and what keeps the runtime from starting.
#[inline]
pub(crate) fn here() -> Result<&'static Task> {
    match HERE.get() {
        Some(here) => Ok(&here.task.body),
        None => Ok(&arrive()?.task.body),
    }
}

/// The same check for calls that do not look at the task.
pub(crate) fn allowed() -> Result<()> {
    here().map(|_| ())
}

/// The current stream where that takes no more than a look at what was seen last.
#[inline]
pub(crate) fn seen_stream() -> Option<StreamHandle> {
    let (bits, slot) = seen_slot()?;
    slot.is(bits).then(|| StreamHandle::from_bits(bits))
}

/// The current stream's handle and slot, if it has been asked for since something changed; not whether it lives.
#[inline]
pub(crate) fn seen_slot() -> Option<(u64, &'static StreamSlot)> {
    SEEN.get().map(|Seen { handle, slot }| (handle, slot))
}

/// Begins a call that counts no references, if the thread has a task: the rest is [`here`]'s to say.
#[inline]
pub(crate) fn enter_call() -> Option<Call> {
    HERE.get().map(|here| here.mark.enter())
}

/// The current device where that takes no more than a look at what was seen last.
#[inline]
pub(crate) fn seen_device() -> Option<u32> {
    u32::try_from(SEEN_DEVICE.get()).ok()
}

/// Remembers the current stream, which lives in `slot`.
pub(crate) fn see_stream(handle: StreamHandle, slot: &'static StreamSlot) {
    SEEN.set(Some(Seen {
        handle: handle.bits(),
        slot,
    }));
}

/// Says that another task, device or stream is current now.
#[inline]
fn changed() {
    SEEN.set(None);
    SEEN_DEVICE.set(UNCHOSEN);
}

/// The calling task, if the thread has one already.
#[inline]
pub(crate) fn present() -> Option<&'static Task> {
    HERE.get().map(|here| &here.task.body)
}

/// For calls that take locks and that a fork would not know of by anything else: of threads without a task, as finalizers
/// run on, and before anything was made.
#[inline]
pub(crate) fn uncut() -> Option<registry::Uncut> {
    (HERE.get().is_none() || !registry::is_used()).then(registry::uncut)
}

/// Answers FORKED and IN_CALLBACK where the runtime must not be touched.
pub(crate) fn outside() -> Result<()> {
    if registry::forked() {
        return Err(registry::forked_error());
    }
    if IN_CALLBACK.get() || backend::inside_user_code() {
        return Err(Error::new(
            Status::InCallback,
            "this call needs the runtime and was made inside a callback or a host kernel; only destroy calls, \
             tgpu_free_deferred and calls that look at errors are allowed there",
        ));
    }
    Ok(())
}

#[cold]
#[inline(never)]
fn arrive() -> Result<Here> {
    outside()?;
    runtime()?;
    let _uncut = registry::uncut();
    let own = TASKS.take()?;
    THREADS.fetch_add(1, Ordering::SeqCst);
    let thread = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
    own.body.reset(runtime()?.environment.wait);
    own.body.owner.store(thread, Ordering::Relaxed);
    own.body.holder.store(thread, Ordering::Relaxed);
    TASKS.publish(own);
    let mark = Mark::take();
    let here = Here { task: own, own, mark };
    HERE.set(Some(here));
    THREAD_EXIT.arm();
    Ok(here)
}

/// Runs a caller's function as a callback: calls that need the runtime are answered IN_CALLBACK inside.
pub(crate) fn in_callback<R>(function: impl FnOnce() -> R) -> R {
    changed();
    struct Restore(Option<Here>, bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            HERE.set(self.0);
            IN_CALLBACK.set(self.1);
        }
    }
    let _restore = Restore(HERE.take(), IN_CALLBACK.replace(true));
    function()
}

/// In a fork's child: the thread's task stayed with the parent.
pub(crate) fn forget_thread() {
    changed();
    HERE.set(None);
}

extern "C" fn thread_exit() {
    let Some(Here { task, own, mark }) = HERE.take() else {
        return;
    };
    changed();
    if registry::forked() || registry::exiting() {
        return;
    }
    let _uncut = registry::uncut();
    let thread = own.body.owner.load(Ordering::Relaxed);
    if !std::ptr::eq(task, own) {
        let_go(task, thread);
    }
    own.end(own.handle());
    finish(own);
    mark.give_back();
    THREADS.fetch_sub(1, Ordering::SeqCst);
}

/// In a fork's child: this is the only thread now. True if others had tasks.
pub(crate) fn forget_other_threads() -> bool {
    let own = u32::from(HERE.get().is_some());
    THREADS.swap(own, Ordering::SeqCst) > own
}

/// Makes a task nobody's current one, and ends it if its handle was destroyed meanwhile.
fn let_go(slot: &'static TaskSlot, thread: u64) {
    // A handle that ends between these two is left to whoever ended it.
    if slot
        .body
        .holder
        .compare_exchange(thread, slot.handle(), Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        finish(slot);
    }
}

/// Gives everything back that a task held. Nobody can reach the task any more.
#[cold]
#[inline(never)]
fn finish(slot: &'static TaskSlot) {
    let task = &slot.body;
    if let (Some(streams), Some(runtime)) = (task.streams.get(), registry::present()) {
        for (stream, device) in streams.iter().zip(&runtime.devices) {
            stream.chosen.store(0, Ordering::Relaxed);
            if let Some(lease) = Lease::end(StreamHandle::from_bits(stream.lease.swap(0, Ordering::Relaxed)))
            {
                device.take_back(lease);
            }
        }
    }
    *task.cold.lock() = Cold::default();
    task.holder.store(0, Ordering::Release);
    TASKS.give_back(slot);
}

impl Task {
    fn reset(&self, policy: WaitPolicy) {
        self.owner.store(0, Ordering::Relaxed);
        self.device.store(UNCHOSEN, Ordering::Relaxed);
        self.policy.store(policy as i32, Ordering::Relaxed);
        self.serial
            .store(NEXT_SERIAL.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.scopes.clear();
        self.ordered.store(false, Ordering::Relaxed);
    }

    /// The device; chosen now, if no call has chosen it before.
    #[inline]
    pub(crate) fn device(&self) -> Result<i32> {
        match self.device.load(Ordering::Relaxed) {
            UNCHOSEN => self.start_device(),
            device => Ok(device),
        }
    }

    /// The device, remembered for the next look.
    pub(crate) fn see_device(&self) -> Result<u32> {
        let device = self.device()?;
        SEEN_DEVICE.set(device);
        Ok(device as u32)
    }

    #[cold]
    #[inline(never)]
    fn start_device(&self) -> Result<i32> {
        let default = runtime()?.default_device.load(Ordering::Relaxed);
        self.device.store(default, Ordering::Relaxed);
        Ok(default)
    }

    #[inline]
    pub(crate) fn set_device(&self, device: i32) {
        changed();
        self.device.store(device, Ordering::Relaxed);
    }

    pub(crate) fn wait_policy(&self) -> WaitPolicy {
        WaitPolicy::from_code(self.policy.load(Ordering::Relaxed)).unwrap_or_default()
    }

    pub(crate) fn set_wait_policy(&self, policy: WaitPolicy) {
        self.policy.store(policy as i32, Ordering::Relaxed);
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial.load(Ordering::Relaxed)
    }

    /// The open scopes.
    pub(crate) fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    pub(crate) fn set_last_error(&self, error: Error) {
        self.cold.lock().error = Some(error);
    }

    pub(crate) fn last_error(&self) -> Option<Error> {
        self.cold.lock().error.clone()
    }

    // Scopes look here four times: worth the code.
    #[inline(always)]
    fn stream(&self, device: u32) -> Result<&TaskStream> {
        match self
            .streams
            .get()
            .and_then(|streams| streams.get(device as usize))
        {
            Some(stream) => Ok(stream),
            None => self.make_streams(device),
        }
    }

    #[cold]
    #[inline(never)]
    fn make_streams(&self, device: u32) -> Result<&TaskStream> {
        let count = runtime()?.devices.len();
        let streams = self
            .streams
            .get_or_init(|| (0..count).map(|_| TaskStream::default()).collect());
        Ok(&streams[device as usize])
    }

    /// What was set on a device: a stream's handle, or NULL for the lease.
    #[inline]
    pub(crate) fn chosen(&self, device: u32) -> Result<StreamHandle> {
        Ok(StreamHandle::from_bits(
            self.stream(device)?.chosen.load(Ordering::Relaxed),
        ))
    }

    /// The handle of the lease on a device, NULL before its first use.
    pub(crate) fn leased(&self, device: u32) -> Result<StreamHandle> {
        Ok(StreamHandle::from_bits(
            self.stream(device)?.lease.load(Ordering::Relaxed),
        ))
    }

    /// Makes a stream current for its device, NULL the lease.
    #[inline]
    pub(crate) fn choose(&self, device: u32, stream: StreamHandle) -> Result<()> {
        changed();
        self.stream(device)?
            .chosen
            .store(stream.bits(), Ordering::Relaxed);
        Ok(())
    }

    /// The handle of the current stream of the task's device, alive or not.
    #[inline]
    pub(crate) fn current_stream(&self) -> Result<StreamHandle> {
        let device = self.device()? as u32;
        let stream = self.stream(device)?;
        match stream.chosen.load(Ordering::Relaxed) {
            0 => match stream.lease.load(Ordering::Relaxed) {
                0 => self.take_lease(device),
                lease => Ok(StreamHandle::from_bits(lease)),
            },
            chosen => Ok(StreamHandle::from_bits(chosen)),
        }
    }

    fn take_lease(&self, index: u32) -> Result<StreamHandle> {
        let device = device::known(runtime()?, index);
        let lease = device.lease()?;
        if let Err(error) = self.keep_order(device, &lease.stream()) {
            device.take_back(lease);
            return Err(error);
        }
        let handle = lease.begin();
        self.stream(index)?.lease.store(handle.bits(), Ordering::Relaxed);
        Ok(handle)
    }

    /// Lets a first lease wait for what the task's creator had queued.
    fn keep_order(&self, device: &'static Device, lease: &Stream) -> Result<()> {
        if !self.ordered.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut cold = self.cold.lock();
        for (index, recorded) in &cold.order {
            if *index == device.index {
                lease.wait_recorded(recorded)?;
            }
        }
        cold.order.retain(|(index, _)| *index != device.index);
        Ok(())
    }

    /// The streams that are current now, one for each device that has one, with the device's index.
    fn current_streams(&self) -> Vec<(u32, StreamHandle)> {
        let Some(streams) = self.streams.get() else {
            return Vec::new();
        };
        let current = streams
            .iter()
            .map(|stream| match stream.chosen.load(Ordering::Relaxed) {
                0 => stream.lease.load(Ordering::Relaxed),
                chosen => chosen,
            });
        (0..)
            .zip(current)
            .filter(|(_, bits)| *bits != 0)
            .map(|(i, b)| (i, StreamHandle::from_bits(b)))
            .collect()
    }
}

/// Makes a task that is current nowhere.
pub fn create(options: TaskOptions) -> Result<TaskHandle> {
    let creator = here()?;
    registry::used();
    let mut order = Vec::new();
    if options.inherit_order {
        for (device, handle) in creator.current_streams() {
            order.push((device, stream::record_now(handle)?));
        }
    }
    let slot = TASKS.take()?;
    let task = &slot.body;
    task.reset(runtime()?.environment.wait);
    if options.inherit_device {
        task.device.store(creator.device()?, Ordering::Relaxed);
    }
    if options.inherit_wait_policy {
        task.policy
            .store(creator.policy.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    task.ordered.store(!order.is_empty(), Ordering::Relaxed);
    task.cold.lock().order = order;
    let handle = TASKS.publish(slot);
    task.holder.store(handle, Ordering::Release);
    Ok(TaskHandle::from_bits(handle))
}

/// Ends a task's handle at once and its state as soon as it is current nowhere.
pub fn destroy(task: TaskHandle) -> Result<()> {
    if task.is_null() || registry::forked() {
        return Ok(());
    }
    let slot = TASKS
        .find(task.bits())
        .ok_or_else(|| TASKS.invalid(task.bits()))?;
    if slot.body.owner.load(Ordering::Relaxed) != 0 {
        return Err(Error::new(
            Status::NotPermitted,
            format!(
                "the task {:#x} is a thread's own; it ends with its thread",
                task.bits()
            ),
        ));
    }
    if !slot.end(task.bits()) {
        return Err(TASKS.invalid(task.bits()));
    }
    let holder = slot.body.holder.fetch_or(ENDING, Ordering::AcqRel);
    // 0: let go after the handle had ended.
    if holder == task.bits() || holder == 0 {
        finish(slot);
    }
    Ok(())
}

/// The calling task.
pub fn current() -> Result<TaskHandle> {
    here()?;
    let here = HERE.get().map_or(0, |here| here.task.handle());
    match here {
        0 => Err(Error::new(
            Status::InvalidHandle,
            "the current task was destroyed; it ends when it is swapped out",
        )),
        bits => Ok(TaskHandle::from_bits(bits)),
    }
}

/// Makes `next` the calling thread's current task, NULL the thread's own one, and gives the one before. The one before
/// is NULL if it was destroyed while it was current.
pub fn swap(next: TaskHandle) -> Result<TaskHandle> {
    let Here {
        task: before,
        own,
        mark,
    } = match HERE.get() {
        Some(here) => here,
        None => arrive()?,
    };
    let thread = own.body.owner.load(Ordering::Relaxed);
    let slot = match next.is_null() {
        true => own,
        false => TASKS
            .find(next.bits())
            .ok_or_else(|| TASKS.invalid(next.bits()))?,
    };
    let previous = TaskHandle::from_bits(before.handle());
    if std::ptr::eq(slot, before) {
        return Ok(previous);
    }
    let owner = slot.body.owner.load(Ordering::Relaxed);
    if owner != 0 && owner != thread {
        return Err(Error::new(
            Status::NotPermitted,
            format!(
                "the task {:#x} is another thread's own; it can only run there",
                next.bits()
            ),
        ));
    }
    if owner == 0 {
        take_hold(slot, next, thread)?;
    }
    // Bound before anything is given up: where that fails, nothing has changed.
    let device = slot.body.device.load(Ordering::Relaxed);
    if let Some(device) = registry::up().and_then(|runtime| runtime.devices.get(device as u32 as usize)) {
        if let Err(error) = device.bind_if_open() {
            if owner == 0 {
                let_go(slot, thread);
            }
            return Err(error);
        }
    }
    if !std::ptr::eq(before, own) {
        let_go(before, thread);
    }
    changed();
    HERE.set(Some(Here {
        task: slot,
        own,
        mark,
    }));
    Ok(previous)
}

/// Makes a created task this thread's, if it is nobody's.
fn take_hold(slot: &'static TaskSlot, task: TaskHandle, thread: u64) -> Result<()> {
    match slot
        .body
        .holder
        .compare_exchange(task.bits(), thread, Ordering::AcqRel, Ordering::Acquire)
    {
        Ok(_) => Ok(()),
        Err(holder) if holder & ENDING != 0 || !slot.is(task.bits()) => Err(TASKS.invalid(task.bits())),
        Err(_) => Err(Error::new(
            Status::TaskBusy,
            format!(
                "the task {:#x} is current on another thread; swap it out there first",
                task.bits()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_late_with_an_old_handle_is_in_nobodys_way() {
        let old = create(TaskOptions::default()).unwrap();
        let slot = TASKS.find(old.bits()).unwrap();
        destroy(old).unwrap();
        let (stop, both) = (AtomicBool::new(false), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            // As threads do that found the old task just before it was destroyed.
            let late = scope.spawn(|| {
                both.wait();
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(
                        take_hold(slot, old, u64::MAX >> 1).unwrap_err().status(),
                        Status::InvalidHandle
                    );
                }
            });
            both.wait();
            let swapped: Result<()> = (0..1_000_000).try_for_each(|_| {
                let task = create(TaskOptions::default())?;
                swap(task)?;
                swap(TaskHandle::NULL)?;
                destroy(task)
            });
            stop.store(true, Ordering::Relaxed);
            late.join().unwrap();
            swapped.unwrap();
        });
    }
}
