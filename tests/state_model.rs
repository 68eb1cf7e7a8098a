//! The rules of the state against a model: random calls on three threads, some with tasks swapped in, compared after
//! every call with a page of plain code that keeps the same books.

use std::sync::mpsc::{channel, Sender};

use proptest::prelude::*;
use taskgpu::backend::{Status, StreamSpec};
use taskgpu::core::handle::{StreamHandle, TaskHandle};
use taskgpu::core::scope::Scope;
use taskgpu::core::{device, scope, stream, task};

const DEVICES: usize = 3;
const THREADS: usize = 3;

/// One call, made on a thread. Numbers are reduced to what exists at that moment.
#[derive(Clone, Debug)]
enum Call {
    DeviceSet(i32),
    StreamCreate,
    StreamDestroy(usize),
    StreamSet(Option<usize>),
    EnterDevice(i32),
    EnterStream(Option<usize>),
    Leave(usize),
    TaskCreate { inherit: bool },
    TaskDestroy(usize),
    Swap(Option<usize>),
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        (-1..DEVICES as i32 + 1).prop_map(Call::DeviceSet),
        Just(Call::StreamCreate),
        (0usize..100).prop_map(Call::StreamDestroy),
        prop::option::of(0usize..100).prop_map(Call::StreamSet),
        (-1..DEVICES as i32 + 1).prop_map(Call::EnterDevice),
        prop::option::of(0usize..100).prop_map(Call::EnterStream),
        // Mostly the innermost scope (the last one entered), sometimes any.
        prop_oneof![Just(0usize), Just(0usize), 0usize..100].prop_map(Call::Leave),
        any::<bool>().prop_map(|inherit| Call::TaskCreate { inherit }),
        (0usize..100).prop_map(Call::TaskDestroy),
        prop::option::of(0usize..100).prop_map(Call::Swap),
    ]
}

#[derive(Clone, Default)]
struct TaskModel {
    device: usize,
    /// By device: the stream that was set, as an index into `Model::streams`.
    chosen: [Option<usize>; DEVICES],
    /// The lease of each device, once it was seen.
    lease: [Option<StreamHandle>; DEVICES],
    /// Open scopes, the innermost last.
    scopes: Vec<OpenScope>,
    handle: Option<TaskHandle>,
    holder: Option<usize>,
    destroyed: bool,
}

#[derive(Clone, Copy)]
struct OpenScope {
    /// Index into `Model::scopes`.
    number: usize,
    /// The device before, and what was chosen there.
    before: (usize, Option<usize>),
    /// The device entered, and what was chosen there.
    entered: (usize, Option<usize>),
}

struct StreamModel {
    handle: StreamHandle,
    device: usize,
    alive: bool,
}

#[derive(Default)]
struct Model {
    streams: Vec<StreamModel>,
    /// The first `THREADS` are the threads' own.
    tasks: Vec<TaskModel>,
    current: [usize; THREADS],
    /// Every scope ever entered: the library's value and the task.
    scopes: Vec<(Scope, usize)>,
}

/// Runs calls on a thread of its own.
struct Worker(Sender<Box<dyn FnOnce() + Send>>);

impl Worker {
    fn start() -> Worker {
        let (sender, jobs) = channel::<Box<dyn FnOnce() + Send>>();
        std::thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Worker(sender)
    }

    fn run<R: Send + 'static>(&self, call: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, result) = channel();
        self.0
            .send(Box::new(move || sender.send(call()).expect("the test waits")))
            .expect("the thread runs");
        result.recv().expect("the call returns")
    }
}

fn status<T>(result: &taskgpu::backend::Result<T>) -> Status {
    result
        .as_ref()
        .map_or_else(|error| error.status(), |_| Status::Ok)
}

impl Model {
    fn step(&mut self, workers: &[Worker], thread: usize, call: Call) {
        let worker = &workers[thread];
        let now = self.current[thread];
        match call {
            Call::DeviceSet(index) => {
                let got = worker.run(move || device::set(index));
                match usize::try_from(index) {
                    Ok(index) if index < DEVICES => {
                        assert_eq!(status(&got), Status::Ok);
                        self.tasks[now].device = index;
                    }
                    _ => assert_eq!(status(&got), Status::InvalidDevice),
                }
            }
            Call::StreamCreate => {
                let handle = worker.run(|| stream::create(StreamSpec::default())).unwrap();
                self.streams.push(StreamModel {
                    handle,
                    device: self.tasks[now].device,
                    alive: true,
                });
            }
            Call::StreamDestroy(pick) if !self.streams.is_empty() => {
                let pick = pick % self.streams.len();
                let handle = self.streams[pick].handle;
                let got = worker.run(move || stream::destroy(handle));
                let alive = std::mem::replace(&mut self.streams[pick].alive, false);
                assert_eq!(
                    status(&got),
                    if alive { Status::Ok } else { Status::InvalidHandle }
                );
            }
            Call::StreamSet(pick) => {
                let pick = self.pick(pick);
                let handle = self.handle(pick);
                let got = worker.run(move || stream::set(handle));
                let task = &mut self.tasks[now];
                match pick.map(|pick| (pick, &self.streams[pick])) {
                    None => task.chosen[task.device] = None,
                    Some((_, stream)) if !stream.alive => {
                        assert_eq!(status(&got), Status::InvalidHandle);
                        return;
                    }
                    Some((pick, stream)) => {
                        task.device = stream.device;
                        task.chosen[stream.device] = Some(pick);
                    }
                }
                assert_eq!(status(&got), Status::Ok);
            }
            Call::EnterDevice(index) => {
                let got = worker.run(move || scope::enter_device(index));
                match usize::try_from(index) {
                    Ok(index) if index < DEVICES => {
                        let chosen = self.tasks[now].chosen[index];
                        self.entered(now, got.unwrap(), index, chosen);
                    }
                    _ => assert_eq!(status(&got), Status::InvalidDevice),
                }
            }
            Call::EnterStream(pick) => {
                let pick = self.pick(pick);
                let handle = self.handle(pick);
                let got = worker.run(move || scope::enter_stream(handle));
                match pick.map(|pick| &self.streams[pick]) {
                    Some(stream) if !stream.alive => assert_eq!(status(&got), Status::InvalidHandle),
                    stream => {
                        let device = stream.map_or(self.tasks[now].device, |stream| stream.device);
                        self.entered(now, got.unwrap(), device, pick);
                    }
                }
            }
            Call::Leave(back) if !self.scopes.is_empty() => {
                let number = self.scopes.len() - 1 - back % self.scopes.len();
                let (scope, _) = self.scopes[number];
                let got = worker.run(move || scope::leave(scope));
                let task = &mut self.tasks[now];
                match task.scopes.last().copied() {
                    Some(open) if open.number == number => {
                        assert_eq!(status(&got), Status::Ok);
                        task.chosen[open.entered.0] = open.entered.1;
                        task.chosen[open.before.0] = open.before.1;
                        task.device = open.before.0;
                        task.scopes.pop();
                    }
                    _ => assert_eq!(status(&got), Status::ScopeMismatch),
                }
            }
            Call::TaskCreate { inherit } => {
                let options = task::TaskOptions {
                    inherit_device: inherit,
                    ..Default::default()
                };
                let handle = worker.run(move || task::create(options)).unwrap();
                let device = if inherit { self.tasks[now].device } else { 0 };
                self.tasks.push(TaskModel {
                    handle: Some(handle),
                    device,
                    ..Default::default()
                });
            }
            Call::TaskDestroy(pick) => {
                let pick = pick % self.tasks.len();
                let Some(handle) = self.tasks[pick].handle else {
                    return;
                };
                let got = worker.run(move || task::destroy(handle));
                let expected = match (pick < THREADS, self.tasks[pick].destroyed) {
                    (true, _) => Status::NotPermitted,
                    (_, true) => Status::InvalidHandle,
                    _ => Status::Ok,
                };
                assert_eq!(status(&got), expected);
                self.tasks[pick].destroyed |= expected == Status::Ok;
            }
            Call::Swap(pick) => {
                let next = pick.map(|pick| pick % self.tasks.len()).unwrap_or(thread);
                let Some(handle) = self.tasks[next].handle else {
                    return;
                };
                let null = pick.is_none();
                let got = worker.run(move || task::swap(if null { TaskHandle::NULL } else { handle }));
                let task = &self.tasks[next];
                let expected = if task.destroyed {
                    Status::InvalidHandle
                } else if next < THREADS && next != thread {
                    Status::NotPermitted
                } else if task.holder.is_some_and(|holder| holder != thread) {
                    Status::TaskBusy
                } else {
                    Status::Ok
                };
                assert_eq!(status(&got), expected, "swap to {next} on {thread}");
                if let Ok(previous) = got {
                    let before = &mut self.tasks[now];
                    let expected = if before.destroyed {
                        TaskHandle::NULL
                    } else {
                        before.handle.unwrap()
                    };
                    assert_eq!(previous, expected);
                    if now >= THREADS {
                        before.holder = None;
                    }
                    if next >= THREADS {
                        self.tasks[next].holder = Some(thread);
                    }
                    self.current[thread] = next;
                }
            }
            Call::StreamDestroy(_) | Call::Leave(_) => {}
        }
    }

    fn pick(&self, pick: Option<usize>) -> Option<usize> {
        pick.filter(|_| !self.streams.is_empty())
            .map(|pick| pick % self.streams.len())
    }

    fn handle(&self, pick: Option<usize>) -> StreamHandle {
        pick.map_or(StreamHandle::NULL, |pick| self.streams[pick].handle)
    }

    fn entered(&mut self, now: usize, scope: Scope, device: usize, chosen: Option<usize>) {
        let task = &mut self.tasks[now];
        let before = task.device;
        task.scopes.push(OpenScope {
            number: self.scopes.len(),
            before: (before, task.chosen[before]),
            entered: (device, task.chosen[device]),
        });
        task.chosen[device] = chosen;
        task.device = device;
        self.scopes.push((scope, now));
    }

    /// Every thread sees what the model says of its current task.
    fn compare(&mut self, workers: &[Worker]) {
        for (thread, worker) in workers.iter().enumerate() {
            let (device, stream) = worker.run(|| (device::current(), stream::current()));
            let device = device.unwrap() as usize;
            let task = &mut self.tasks[self.current[thread]];
            assert_eq!(device, task.device, "device of thread {thread}");
            match task.chosen[device] {
                Some(pick) if self.streams[pick].alive => {
                    assert_eq!(stream.unwrap(), self.streams[pick].handle)
                }
                Some(_) => assert_eq!(status(&stream), Status::InvalidHandle),
                None => {
                    let stream = stream.unwrap();
                    assert_eq!(
                        stream,
                        *task.lease[device].get_or_insert(stream),
                        "the lease changed"
                    );
                }
            }
        }
        let mut leases: Vec<u64> = Vec::new();
        for task in self.tasks.iter().filter(|task| !task.destroyed) {
            leases.extend(task.lease.iter().flatten().map(|lease| lease.bits()));
        }
        let count = leases.len();
        leases.sort_unstable();
        leases.dedup();
        assert_eq!(leases.len(), count, "F13: two live tasks share a lease");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_on_any_threads_leave_the_state_the_rules_say(
        calls in prop::collection::vec((0..THREADS, call()), 1..80)
    ) {
        std::env::set_var("TASKGPU_BACKENDS", "host");
        std::env::set_var("TASKGPU_HOST_DEVICES", DEVICES.to_string());
        let workers: Vec<Worker> = (0..THREADS).map(|_| Worker::start()).collect();
        let mut model = Model::default();
        for (thread, worker) in workers.iter().enumerate() {
            let handle = worker.run(task::current).unwrap();
            model.tasks.push(TaskModel { handle: Some(handle), ..Default::default() });
            model.current[thread] = thread;
        }
        for (thread, call) in calls {
            model.step(&workers, thread, call);
            model.compare(&workers);
        }
    }
}
