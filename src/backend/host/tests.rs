//! What must hold of host devices, through the trait.

use super::*;
use crate::backend::{HostBlock, HostKernel};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::Mutex as StdMutex;
use std::time::Instant;

/// Long enough for any machine; a wait that lasts longer hangs.
const HANG: Duration = Duration::from_secs(60);

fn host(devices: u32, threads: u32) -> &'static HostBackend {
    HostBackend::new(HostSettings {
        devices,
        threads,
        memory: 64 << 20,
    })
    .unwrap()
}

fn new_stream(b: &HostBackend, device: u32, priority: Priority) -> RawStream {
    b.stream_create(
        device,
        StreamSpec {
            priority,
            legacy_order: false,
        },
    )
    .unwrap()
    .raw
}

fn normal(b: &HostBackend) -> RawStream {
    new_stream(b, 0, Priority::Normal)
}

fn sync(b: &HostBackend, s: RawStream) {
    let mut fence = b.fence(0, s).unwrap();
    assert!(b.fence_block(&mut fence, Some(HANG)).unwrap(), "the stream hangs");
    b.fence_drop(fence);
}

type Body = Box<dyn Fn(&HostBlock, *const *mut c_void) + Send + Sync>;

unsafe extern "C" fn call_body(block: *const HostBlock, args: *const *mut c_void, data: *mut c_void) {
    // SAFETY: `kernel` passes a leaked body; the backend passes a live block.
    unsafe { (*data.cast::<Body>())(&*block, args) }
}

fn kernel(
    sizes: &[usize],
    body: impl Fn(&HostBlock, *const *mut c_void) + Send + Sync + 'static,
) -> HostKernel {
    let body: &'static mut Body = Box::leak(Box::new(Box::new(body)));
    // SAFETY: the body is Sync and never freed.
    unsafe { HostKernel::from_caller(call_body, (body as *mut Body).cast(), sizes) }
}

fn no_args() -> Args<'static> {
    // SAFETY: the kernels launched with it take no arguments.
    unsafe { Args::from_caller(std::ptr::null()) }
}

fn shape(blocks: u32) -> Shape {
    Shape {
        grid: [blocks, 1, 1],
        block: [1, 1, 1],
        shared_bytes: 0,
    }
}

fn run(b: &HostBackend, s: RawStream, blocks: u32, body: impl Fn(&HostBlock) + Send + Sync + 'static) {
    let k = kernel(&[], move |block, _| body(block));
    b.launch(0, s, Code::Host(&k), &shape(blocks), no_args()).unwrap();
}

/// A door that kernels wait at.
#[derive(Clone, Default)]
struct Gate(Arc<(AtomicBool, AtomicBool)>);

impl Gate {
    fn open(&self) {
        self.0 .0.store(true, SeqCst);
    }
    /// In a kernel: waits until the gate opens.
    fn pass(&self) {
        self.0 .1.store(true, SeqCst);
        until(|| self.0 .0.load(SeqCst));
    }
    /// Waits until a kernel stands at the gate.
    fn reached(&self) {
        until(|| self.0 .1.load(SeqCst));
    }
    fn block(&self, b: &HostBackend, s: RawStream) {
        let gate = self.clone();
        run(b, s, 1, move |_| gate.pass());
    }
}

fn until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "waited in vain");
        std::thread::yield_now();
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn addr<T>(p: *const T) -> Addr {
    // SAFETY: the tests keep the memory until the work is done.
    unsafe { Addr::from_caller(p.cast()) }
}

fn bytes_at(a: Addr, n: usize) -> Vec<u8> {
    // SAFETY: the tests ask for memory that they hold and nobody writes any more.
    unsafe { std::slice::from_raw_parts(a.as_ptr().cast::<u8>(), n).to_vec() }
}

#[test]
fn work_of_one_stream_runs_in_order() {
    for threads in [1, 2, 4] {
        let b = host(1, threads);
        let s = normal(b);
        let seen = Arc::new(StdMutex::new(Vec::new()));
        for i in 0..5000u32 {
            let seen = seen.clone();
            if i % 3 == 0 {
                b.stream_callback(0, s, Box::new(move |_| seen.lock().unwrap().push(i)))
                    .unwrap();
            } else if i % 3 == 1 {
                run(b, s, 1, move |_| seen.lock().unwrap().push(i));
            } else {
                // Many blocks: the first one to come notes it, and the stream must not go on before the last.
                let count = AtomicU32::new(0);
                run(b, s, 40, move |_| {
                    if count.fetch_add(1, SeqCst) == 39 {
                        seen.lock().unwrap().push(i);
                    }
                });
            }
        }
        sync(b, s);
        assert_eq!(*seen.lock().unwrap(), (0..5000).collect::<Vec<_>>());
        b.stream_destroy(0, s);
    }
}

#[test]
fn nothing_runs_inside_the_enqueueing_call() {
    let b = host(1, 1);
    let s = normal(b);
    assert!(!b.fork_unsafe());
    assert!(b.stream_idle(0, s).unwrap());
    let gate = Gate::default();
    gate.block(b, s);
    let me = std::thread::current().id();
    let other = Arc::new(AtomicBool::new(false));
    let seen = other.clone();
    run(b, s, 1, move |_| {
        assert!(inside_user_code());
        assert_eq!(std::thread::current().name(), Some("taskgpu-host"));
        seen.store(std::thread::current().id() != me, SeqCst);
    });
    assert!(!b.stream_idle(0, s).unwrap());
    assert!(b.fork_unsafe());
    assert!(!other.load(SeqCst));
    gate.open();
    sync(b, s);
    assert!(other.load(SeqCst));
    assert!(b.stream_idle(0, s).unwrap());
    assert!(!inside_user_code());
}

#[test]
fn streams_overlap() {
    let b = host(2, 2);
    let (s, t) = (normal(b), new_stream(b, 1, Priority::Normal));
    let (here, there) = (Gate::default(), Gate::default());
    let (h, u) = (here.clone(), there.clone());
    run(b, s, 1, move |_| {
        h.open();
        u.pass();
    });
    let k = kernel(&[], move |_, _| {
        there.open();
        here.pass();
    });
    b.launch(1, t, Code::Host(&k), &shape(1), no_args()).unwrap();
    sync(b, s);
    sync(b, t);
}

#[test]
fn blocks_of_one_kernel_overlap() {
    let b = host(1, 2);
    let s = normal(b);
    let inside = AtomicU32::new(0);
    // Each block waits for the other one: it takes two workers at the same time.
    run(b, s, 2, move |_| {
        inside.fetch_add(1, SeqCst);
        until(|| inside.load(SeqCst) == 2);
    });
    sync(b, s);
}

#[test]
fn urgent_streams_go_first() {
    let b = host(1, 1);
    let gate = Gate::default();
    gate.block(b, normal(b));
    gate.reached();
    let seen = Arc::new(StdMutex::new(Vec::new()));
    let order = [
        Priority::Low,
        Priority::Normal,
        Priority::High,
        Priority::Low,
        Priority::High,
        Priority::Normal,
    ];
    let streams: Vec<_> = order
        .iter()
        .map(|&p| {
            let s = new_stream(b, 0, p);
            let seen = seen.clone();
            run(b, s, 1, move |_| seen.lock().unwrap().push(p));
            s
        })
        .collect();
    gate.open();
    streams.iter().for_each(|&s| sync(b, s));
    use Priority::{High, Low, Normal};
    assert_eq!(*seen.lock().unwrap(), [High, High, Normal, Normal, Low, Low]);
}

#[test]
fn urgent_work_overtakes_between_blocks() {
    let b = host(1, 1);
    let low = new_stream(b, 0, Priority::Low);
    let gate = Gate::default();
    let ran = Arc::new(AtomicU32::new(0));
    let (g, r) = (gate.clone(), ran.clone());
    run(b, low, 1000, move |block| {
        if block.index[0] == 10 {
            g.pass();
        }
        r.fetch_add(1, SeqCst);
    });
    gate.reached();
    let mut urgent = Vec::new();
    for p in [Priority::Normal, Priority::High] {
        let s = new_stream(b, 0, p);
        let (r, at) = (ran.clone(), Arc::new(AtomicU32::new(u32::MAX)));
        let a = at.clone();
        run(b, s, 1, move |_| a.store(r.load(SeqCst), SeqCst));
        urgent.push((s, at));
    }
    gate.open();
    for (s, at) in urgent {
        sync(b, s);
        assert_eq!(
            at.load(SeqCst),
            11,
            "it had to wait for more than the block under way"
        );
    }
    sync(b, low);
    assert_eq!(ran.load(SeqCst), 1000);
}

#[test]
fn urgent_work_overtakes_between_operations() {
    let b = host(1, 1);
    let low = new_stream(b, 0, Priority::Low);
    let gate = Gate::default();
    gate.block(b, low);
    let ran = Arc::new(AtomicU32::new(0));
    for _ in 0..100 {
        let r = ran.clone();
        run(b, low, 1, move |_| {
            r.fetch_add(1, SeqCst);
        });
    }
    gate.reached();
    let high = new_stream(b, 0, Priority::High);
    let (r, at) = (ran.clone(), Arc::new(AtomicU32::new(u32::MAX)));
    let a = at.clone();
    run(b, high, 1, move |_| a.store(r.load(SeqCst), SeqCst));
    gate.open();
    sync(b, high);
    assert_eq!(at.load(SeqCst), 0);
    sync(b, low);
    assert_eq!(ran.load(SeqCst), 100);
}

#[test]
fn equal_streams_take_turns() {
    let b = host(1, 1);
    let (s, t) = (normal(b), normal(b));
    let gate = Gate::default();
    gate.block(b, s);
    let done = Arc::new(AtomicBool::new(false));
    let overtaken = Arc::new(AtomicU32::new(0));
    for _ in 0..2000 {
        let (d, o) = (done.clone(), overtaken.clone());
        run(b, s, 1, move |_| {
            if !d.load(SeqCst) {
                o.fetch_add(1, SeqCst);
            }
        });
    }
    gate.reached();
    let d = done.clone();
    run(b, t, 1, move |_| d.store(true, SeqCst));
    gate.open();
    sync(b, s);
    sync(b, t);
    assert!(
        overtaken.load(SeqCst) < 2000,
        "the second stream waited for all of the first"
    );
}

#[test]
fn equal_kernels_take_turns() {
    let b = host(1, 1);
    let (s, t) = (normal(b), normal(b));
    let gate = Gate::default();
    let (g, done) = (gate.clone(), Arc::new(AtomicBool::new(false)));
    let (d, overtaken) = (done.clone(), Arc::new(AtomicU32::new(0)));
    let o = overtaken.clone();
    // Longer than a turn many times over.
    run(b, s, 3000, move |block| {
        if block.index[0] == 0 {
            g.pass();
        }
        if !d.load(SeqCst) {
            o.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_micros(20));
        }
    });
    gate.reached();
    run(b, t, 2, move |_| done.store(true, SeqCst));
    gate.open();
    sync(b, t);
    sync(b, s);
    assert!(
        overtaken.load(SeqCst) < 3000,
        "the second kernel waited for all of the first"
    );
}

#[test]
fn every_block_runs_once_also_when_overtaken() {
    for threads in [1, 3] {
        let b = host(1, threads);
        let (low, high) = (new_stream(b, 0, Priority::Low), new_stream(b, 0, Priority::High));
        let runs: Arc<Vec<AtomicU32>> = Arc::new((0..60 * 7 * 5).map(|_| AtomicU32::new(0)).collect());
        for _ in 0..50 {
            let r = runs.clone();
            let k = kernel(&[], move |block, _| {
                let [x, y, z] = block.index;
                assert_eq!(
                    (block.grid, block.block, block.device),
                    ([60, 7, 5], [8, 4, 2], 0)
                );
                r[(x + 60 * (y + 7 * z)) as usize].fetch_add(1, SeqCst);
                std::hint::black_box((0..200).sum::<u32>());
            });
            let shape = Shape {
                grid: [60, 7, 5],
                block: [8, 4, 2],
                shared_bytes: 0,
            };
            b.launch(0, low, Code::Host(&k), &shape, no_args()).unwrap();
            for _ in 0..20 {
                run(b, high, 3, |_| {});
                std::thread::yield_now();
            }
        }
        sync(b, high);
        sync(b, low);
        assert!(runs.iter().all(|r| r.load(SeqCst) == 50));
    }
}

#[test]
fn arguments_are_copied_and_aligned() {
    let b = host(1, 2);
    let s = normal(b);
    let sizes = [1, 2, 4, 8, 16, 32, 64, 128, 3, 0, 300];
    let gate = Gate::default();
    gate.block(b, s);
    for count in 0..=sizes.len() {
        let sizes = &sizes[..count];
        let mut values: Vec<Vec<u8>> = sizes
            .iter()
            .enumerate()
            .map(|(i, &n)| (0..n).map(|j| (i * 31 + j) as u8).collect())
            .collect();
        let pointers: Vec<*mut c_void> = values.iter_mut().map(|v| v.as_mut_ptr().cast()).collect();
        let owned = sizes.to_vec();
        let k = kernel(sizes, move |_, args| {
            for (i, &n) in owned.iter().enumerate() {
                // SAFETY: the backend passes a pointer to each copied argument.
                let (p, got) = unsafe {
                    let p = *args.add(i);
                    (p as usize, std::slice::from_raw_parts(p.cast::<u8>(), n))
                };
                assert!(
                    n == 0 || p % (1 << n.trailing_zeros().min(6)) == 0,
                    "argument {i} at {p:#x}"
                );
                assert!(
                    got.iter().enumerate().all(|(j, &v)| v == (i * 31 + j) as u8),
                    "argument {i}"
                );
            }
        });
        for blocks in [1, 5] {
            // SAFETY: one pointer per argument, to values of the sizes the kernel was made with.
            let args = unsafe { Args::from_caller(pointers.as_ptr()) };
            b.launch(0, s, Code::Host(&k), &shape(blocks), args).unwrap();
        }
        values.iter_mut().flatten().for_each(|v| *v = 0xee);
    }
    gate.open();
    sync(b, s);
    let k = kernel(&[4], |_, _| {});
    assert_eq!(
        b.launch(0, s, Code::Host(&k), &shape(1), no_args())
            .unwrap_err()
            .status(),
        Status::InvalidArgument
    );
    let null = [std::ptr::null_mut::<c_void>()];
    // SAFETY: a NULL value is refused before it is read.
    let args = unsafe { Args::from_caller(null.as_ptr()) };
    let error = b.launch(0, s, Code::Host(&k), &shape(1), args).unwrap_err();
    assert!(error.to_string().contains("argument 0 of 1 is NULL"), "{error}");
}

#[test]
fn shared_memory_belongs_to_one_block() {
    let b = host(1, 4);
    let s = normal(b);
    let k = kernel(&[], |block, _| {
        assert_eq!(block.shared as usize % 64, 0);
        // SAFETY: the block has `shared_bytes` bytes for itself alone.
        let mine =
            unsafe { std::slice::from_raw_parts_mut(block.shared.cast::<u8>(), block.shared_bytes as usize) };
        mine.fill(block.index[0] as u8);
        std::thread::yield_now();
        assert!(mine.iter().all(|&v| v == block.index[0] as u8));
    });
    let shape = Shape {
        grid: [200, 1, 1],
        block: [1, 1, 1],
        shared_bytes: SHARED_BYTES,
    };
    b.launch(0, s, Code::Host(&k), &shape, no_args()).unwrap();
    run(b, s, 2, |block| {
        assert!(block.shared.is_null() && block.shared_bytes == 0)
    });
    sync(b, s);
    let too_much = Shape {
        shared_bytes: SHARED_BYTES + 1,
        ..shape
    };
    let error = b.launch(0, s, Code::Host(&k), &too_much, no_args()).unwrap_err();
    assert!(
        error.to_string().contains("65537") && error.to_string().contains("65536"),
        "{error}"
    );
}

#[test]
fn shapes_out_of_range_are_refused() {
    let b = host(1, 1);
    let s = normal(b);
    let k = kernel(&[], |_, _| {});
    for (grid, block) in [
        ([0, 1, 1], [1, 1, 1]),
        ([1, 65536, 1], [1, 1, 1]),
        ([1 << 31, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [1, 0, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [1, 1, 65]),
        ([1, 1, 1], [64, 64, 1]),
    ] {
        let shape = Shape {
            grid,
            block,
            shared_bytes: 0,
        };
        let error = b.launch(0, s, Code::Host(&k), &shape, no_args()).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{shape:?}");
    }
}

#[test]
fn copies_and_fills_match_a_plain_loop() {
    for threads in [1, 3] {
        let b = host(2, threads);
        let s = normal(b);
        let mut seed = 7;
        for n in [0usize, 1, 15, 16, 17, 1000, (1 << 20) - 1, (3 << 20) + 5] {
            let source: Vec<u8> = (0..n).map(|_| random(&mut seed) as u8).collect();
            let d = b.alloc(0, n as u64 + 64).unwrap();
            let e = b.alloc(1, n as u64 + 64).unwrap();
            let mut back = vec![0u8; n];
            let (host, dev, peer) = (Place::Host, Place::Device(0), Place::Device(1));
            b.memcpy(0, s, d, dev, addr(source.as_ptr()), host, n as u64)
                .unwrap();
            b.memcpy(0, s, e, peer, d, dev, n as u64).unwrap();
            b.memcpy(0, s, addr(back.as_mut_ptr()), host, e, peer, n as u64)
                .unwrap();
            sync(b, s);
            assert!(back == source, "{n} bytes");
            for size in [1usize, 2, 4, 8, 16] {
                let pattern: Vec<u8> = (0..size).map(|i| 17 + i as u8).collect();
                for shift in [0u64, 1, 8] {
                    let at = addr((d.value() + shift) as *const u8);
                    let count = n / size;
                    b.fill(0, s, d, &[0xaa], n as u64 + 64).unwrap();
                    b.fill(0, s, at, &pattern, count as u64).unwrap();
                    sync(b, s);
                    let got = bytes_at(d, n + 64);
                    let inside = shift as usize..shift as usize + count * size;
                    let good = |(i, &v): (usize, &u8)| {
                        v == if inside.contains(&i) {
                            pattern[(i - inside.start) % size]
                        } else {
                            0xaa
                        }
                    };
                    assert!(
                        got.iter().enumerate().all(good),
                        "{n} bytes by {size} from {shift} on"
                    );
                }
            }
            b.free(0, d).unwrap();
            b.free(1, e).unwrap();
        }
        // Overlapping places, moved as if through a buffer.
        let n = 4 << 20;
        let mut data: Vec<u8> = (0..n + 1000).map(|_| random(&mut seed) as u8).collect();
        let mut expected = data.clone();
        expected.copy_within(0..n, 1000);
        let p = data.as_mut_ptr();
        b.memcpy(
            0,
            s,
            addr(p.wrapping_add(1000)),
            Place::Host,
            addr(p),
            Place::Host,
            n as u64,
        )
        .unwrap();
        sync(b, s);
        assert!(data == expected);
        for error in [
            b.fill(0, s, addr(p), &[1, 2, 3], 1).unwrap_err(),
            b.fill(0, s, addr(p), &[1, 2], u64::MAX).unwrap_err(),
            b.memcpy(0, s, addr(p), Place::Host, addr(p), Place::Host, u64::MAX)
                .unwrap_err(),
        ] {
            assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        }
    }
}

#[test]
fn waiting_streams_occupy_no_worker() {
    let b = host(2, 1);
    let gate = normal(b);
    let e = b.event_create(0, false).unwrap();
    assert_eq!(b.event_state(0, e).unwrap(), EventState::Done);
    let door = Gate::default();
    // A wait for an event never recorded does nothing.
    b.stream_wait_event(0, gate, e).unwrap();
    door.block(b, gate);
    b.event_record(0, e, gate).unwrap();
    assert_eq!(b.event_state(0, e).unwrap(), EventState::Pending);
    let ran = Arc::new(AtomicU32::new(0));
    let streams: Vec<_> = (0..100)
        .map(|i| {
            let s = new_stream(b, i % 2, Priority::ALL[i as usize % 3]);
            b.stream_wait_event(i % 2, s, e).unwrap();
            let r = ran.clone();
            run(b, s, 1, move |_| {
                r.fetch_add(1, SeqCst);
            });
            s
        })
        .collect();
    door.reached();
    assert_eq!(ran.load(SeqCst), 0);
    door.open();
    streams.iter().for_each(|&s| sync(b, s));
    assert_eq!(ran.load(SeqCst), 100);
    assert_eq!(b.event_state(0, e).unwrap(), EventState::Done);
    // And with the event still pending when the streams get to it, the only worker stays free for other work.
    let (door, never) = (normal(b), normal(b));
    let held = b.event_create(0, false).unwrap();
    let gate = Gate::default();
    let high = new_stream(b, 0, Priority::High);
    gate.block(b, high);
    gate.reached();
    b.event_record(0, held, high).unwrap();
    b.stream_wait_event(0, never, held).unwrap();
    run(b, never, 1, |_| {});
    run(b, door, 1, |_| {});
    gate.open();
    sync(b, door);
    sync(b, never);
}

#[test]
fn a_suspended_stream_lets_the_only_worker_run_what_it_waits_for() {
    let b = host(1, 1);
    let (first, second) = (normal(b), normal(b));
    let e = b.event_create(0, false).unwrap();
    let gate = Gate::default();
    gate.block(b, second);
    gate.reached();
    // `first` is taken up before `second` goes on: it must be put aside, or nothing would ever move again.
    let seen = Arc::new(StdMutex::new(Vec::new()));
    let early = new_stream(b, 0, Priority::High);
    let (x, y) = (seen.clone(), seen.clone());
    run(b, second, 1, move |_| x.lock().unwrap().push("second"));
    b.event_record(0, e, second).unwrap();
    b.stream_wait_event(0, early, e).unwrap();
    run(b, early, 1, move |_| y.lock().unwrap().push("early"));
    gate.open();
    sync(b, early);
    sync(b, first);
    assert_eq!(*seen.lock().unwrap(), ["second", "early"]);
}

#[test]
fn a_wait_captures_the_record_made_before_it() {
    let b = host(1, 2);
    let (s, t, u) = (normal(b), normal(b), normal(b));
    let e = b.event_create(0, true).unwrap();
    let (first, second) = (Gate::default(), Gate::default());
    first.block(b, s);
    b.event_record(0, e, s).unwrap();
    b.stream_wait_event(0, t, e).unwrap();
    second.block(b, s);
    b.event_record(0, e, s).unwrap();
    b.stream_wait_event(0, u, e).unwrap();
    first.open();
    // `t` waits for the first record only.
    sync(b, t);
    assert!(!b.stream_idle(0, u).unwrap());
    assert_eq!(b.event_state(0, e).unwrap(), EventState::Pending);
    assert!(!b.event_block(0, e, Some(Duration::from_millis(1))).unwrap());
    // Destroying it takes nothing away from waits already queued.
    b.event_destroy(0, e);
    second.open();
    sync(b, u);
    sync(b, s);
}

#[test]
fn events_measure_time() {
    let b = host(2, 2);
    let s = normal(b);
    let (from, to) = (b.event_create(0, true).unwrap(), b.event_create(0, true).unwrap());
    let plain = b.event_create(0, false).unwrap();
    let other = b.event_create(1, true).unwrap();
    let status = |x, y| b.event_elapsed(0, x, y).unwrap_err().status();
    assert_eq!(status(from, to), Status::InvalidArgument);
    b.event_record(0, from, s).unwrap();
    run(b, s, 1, |_| std::thread::sleep(Duration::from_millis(20)));
    let gate = Gate::default();
    gate.block(b, s);
    b.event_record(0, to, s).unwrap();
    b.event_record(0, plain, s).unwrap();
    assert_eq!(status(from, to), Status::NotReady);
    gate.open();
    assert!(b.event_block(0, to, Some(HANG)).unwrap());
    let seconds = b.event_elapsed(0, from, to).unwrap();
    assert!((0.02..60.0).contains(&seconds), "{seconds}");
    assert_eq!(b.event_elapsed(0, to, from).unwrap(), -seconds);
    assert_eq!(status(from, plain), Status::InvalidArgument);
    assert_eq!(status(from, other), Status::InvalidArgument);
    assert_eq!(
        b.event_record(0, other, s).unwrap_err().status(),
        Status::InvalidArgument
    );
    // Recording again replaces the time.
    sync(b, s);
    b.event_record(0, from, s).unwrap();
    sync(b, s);
    assert!(b.event_elapsed(0, from, to).unwrap() < 0.0);
}

#[test]
fn callbacks_run_once_in_order_and_later_work_waits() {
    let b = host(1, 3);
    let streams: Vec<_> = (0..20).map(|_| normal(b)).collect();
    let log: Vec<_> = streams
        .iter()
        .map(|_| Arc::new(StdMutex::new(Vec::new())))
        .collect();
    for i in 0..200u32 {
        for (s, log) in streams.iter().zip(&log) {
            let (x, y) = (log.clone(), log.clone());
            let body = move |status| {
                assert_eq!(status, Status::Ok);
                assert!(inside_user_code());
                x.lock().unwrap().push(2 * i);
            };
            b.stream_callback(0, *s, Box::new(body)).unwrap();
            run(b, *s, 1, move |_| y.lock().unwrap().push(2 * i + 1));
        }
    }
    for (s, log) in streams.iter().zip(&log) {
        sync(b, *s);
        assert_eq!(*log.lock().unwrap(), (0..400).collect::<Vec<_>>());
    }
    // A callback that panics takes neither the worker nor the stream along.
    let s = streams[0];
    b.stream_callback(0, s, Box::new(|_| std::panic::panic_any("on purpose")))
        .unwrap();
    let inside = Arc::new(AtomicU32::new(0));
    let i = inside.clone();
    run(b, s, 1, move |_| {
        i.store(1 + u32::from(inside_user_code()), SeqCst)
    });
    sync(b, s);
    assert_eq!(inside.load(SeqCst), 2);
}

#[test]
fn memory_has_a_capacity() {
    let b = HostBackend::new(HostSettings {
        devices: 2,
        threads: 1,
        memory: 1 << 20,
    })
    .unwrap();
    assert_eq!(b.memory(0).unwrap(), (1 << 20, 1 << 20));
    let all = b.alloc(0, 1 << 20).unwrap();
    assert_eq!(b.memory(0).unwrap(), (0, 1 << 20));
    let error = b.alloc(0, 1).unwrap_err();
    assert_eq!(error.status(), Status::OutOfMemory);
    assert_eq!(
        error.to_string(),
        "host device 0: 1 bytes asked for, 0 free of 1048576 in all"
    );
    // The other device has its own.
    let other = b.alloc(1, 1 << 20).unwrap();
    b.free(0, all).unwrap();
    assert_eq!(b.memory(0).unwrap().0, 1 << 20);
    assert_eq!(b.free(0, all).unwrap_err().status(), Status::InvalidArgument);
    assert_eq!(b.free(0, other).unwrap_err().status(), Status::InvalidArgument);
    b.free(1, other).unwrap();
    let s = normal(b);
    for bytes in [(1 << 20) + 1, 1 << 40, i64::MAX as u64, u64::MAX - 255, u64::MAX] {
        assert_eq!(
            b.alloc(0, bytes).unwrap_err().status(),
            Status::OutOfMemory,
            "{bytes}"
        );
        assert_eq!(
            b.alloc_async(0, s, bytes).unwrap_err().status(),
            Status::OutOfMemory,
            "{bytes}"
        );
    }
    for bytes in [1 << 60, u64::MAX - 4095, u64::MAX] {
        assert_eq!(
            b.host_alloc(0, bytes).unwrap_err().status(),
            Status::OutOfMemory,
            "{bytes}"
        );
    }
    // Where the capacity promises more than the system has, the system's refusal is answered.
    let vast = HostBackend::new(HostSettings {
        devices: 1,
        threads: 1,
        memory: u64::MAX,
    })
    .unwrap();
    for bytes in [1 << 62, u64::MAX - 4096] {
        assert_eq!(
            vast.alloc(0, bytes).unwrap_err().status(),
            Status::OutOfMemory,
            "{bytes}"
        );
    }
    assert_eq!(vast.memory(0).unwrap().0, u64::MAX / 256 * 256);
    for bytes in [1u64, 255, 256, 257, 100_000, 200_000] {
        let a = b.alloc(0, bytes).unwrap();
        assert_eq!(a.value() % 256, 0);
        // SAFETY: just allocated with that many bytes.
        unsafe { std::ptr::write_bytes(a.as_ptr().cast::<u8>(), 1, bytes as usize) };
        b.free(0, a).unwrap();
    }
    assert_eq!(b.memory(0).unwrap().0, 1 << 20);
}

#[test]
fn freed_memory_is_used_again_in_stream_order() {
    let b = HostBackend::new(HostSettings {
        devices: 1,
        threads: 2,
        memory: 1 << 20,
    })
    .unwrap();
    let (s, t) = (normal(b), normal(b));
    let half = 512 << 10;
    let gate = Gate::default();
    gate.block(b, s);
    let a = b.alloc_async(0, s, half).unwrap();
    b.free_async(0, s, a).unwrap();
    // Not reached yet: still in use for everybody else.
    assert_eq!(b.memory(0).unwrap().0, half);
    let other = b.alloc_async(0, t, half).unwrap();
    assert_ne!(other, a);
    assert_eq!(
        b.alloc_async(0, t, 256).unwrap_err().status(),
        Status::OutOfMemory
    );
    // On the same stream it may be taken at once.
    let again = b.alloc_async(0, s, half).unwrap();
    assert_eq!(again, a);
    run(b, s, 1, |_| {});
    let second = Gate::default();
    second.block(b, s);
    b.free_async(0, s, again).unwrap();
    gate.open();
    second.reached();
    // The stream has passed the first giving back, which the second allocation made void.
    assert_eq!(b.memory(0).unwrap().0, 0);
    assert_eq!(
        b.alloc_async(0, t, half).unwrap_err().status(),
        Status::OutOfMemory
    );
    second.open();
    sync(b, s);
    assert_eq!(b.memory(0).unwrap().0, half);
    assert_eq!(
        b.free_async(0, s, again).unwrap_err().status(),
        Status::InvalidArgument
    );
    // Reached: everybody may have it, from the pool.
    assert_eq!(b.alloc(0, half - 1000).unwrap(), a);
    b.free(0, a).unwrap();
    b.free(0, other).unwrap();
    assert_eq!(b.memory(0).unwrap().0, 1 << 20);
}

#[test]
fn the_pool_gives_way_and_can_be_trimmed() {
    let b = HostBackend::new(HostSettings {
        devices: 1,
        threads: 1,
        memory: 1 << 20,
    })
    .unwrap();
    let s = normal(b);
    let blocks: Vec<_> = (0..4).map(|_| b.alloc_async(0, s, 256 << 10).unwrap()).collect();
    blocks.iter().for_each(|&a| b.free_async(0, s, a).unwrap());
    sync(b, s);
    let device = b.device(0).unwrap();
    assert_eq!(device.memory.cached(), 1 << 20);
    b.trim(0, 600 << 10).unwrap();
    assert_eq!(device.memory.cached(), 512 << 10);
    // A block that fits none of the cached ones pushes them out.
    let big = b.alloc(0, 1 << 20).unwrap();
    assert_eq!(device.memory.cached(), 0);
    b.free(0, big).unwrap();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1000 {
        let a = b.alloc_async(0, s, 300_000).unwrap();
        seen.insert(a);
        b.free_async(0, s, a).unwrap();
    }
    assert!(
        seen.len() <= 2,
        "a steady loop went to the system {} times",
        seen.len()
    );
    sync(b, s);
    b.trim(0, 0).unwrap();
    assert_eq!((device.memory.cached(), b.memory(0).unwrap().0), (0, 1 << 20));
}

#[test]
fn ten_thousand_streams() {
    let b = host(1, 2);
    let ran = Arc::new(AtomicUsize::new(0));
    let r = ran.clone();
    let k = kernel(&[], move |_, _| {
        r.fetch_add(1, SeqCst);
    });
    let streams: Vec<_> = (0..10_000)
        .map(|i| new_stream(b, 0, Priority::ALL[i % 3]))
        .collect();
    for _ in 0..3 {
        for &s in &streams {
            b.launch(0, s, Code::Host(&k), &shape(1), no_args()).unwrap();
        }
    }
    streams[..5000].iter().for_each(|&s| b.stream_destroy(0, s));
    b.device_synchronize(0).unwrap();
    assert_eq!(ran.load(SeqCst), 30_000);
    streams[5000..].iter().for_each(|&s| b.stream_destroy(0, s));
    until(|| b.device(0).unwrap().all_streams().is_empty());
}

#[test]
fn waits_end_in_time() {
    let b = host(1, 1);
    let s = normal(b);
    let e = b.event_create(0, false).unwrap();
    let gate = Gate::default();
    gate.block(b, s);
    b.event_record(0, e, s).unwrap();
    let mut fence = b.fence(0, s).unwrap();
    for patience in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(5)] {
        let start = Instant::now();
        assert!(!b.fence_block(&mut fence, Some(patience)).unwrap());
        assert!(!b.event_block(0, e, Some(patience)).unwrap());
        assert!(start.elapsed() >= patience);
    }
    assert!(!b.fence_reached(&mut fence).unwrap());
    std::thread::scope(|scope| {
        for i in 0..8 {
            scope.spawn(move || {
                if i % 2 == 0 {
                    sync(b, s);
                } else {
                    // As long as a duration can be.
                    assert!(b.event_block(0, e, Some(Duration::MAX)).unwrap());
                }
            });
        }
        std::thread::sleep(Duration::from_millis(10));
        gate.open();
    });
    assert!(b.fence_reached(&mut fence).unwrap());
}

#[test]
fn a_fence_covers_what_was_queued_before_it_and_no_more() {
    let b = host(1, 1);
    let s = normal(b);
    run(b, s, 1, |_| {});
    let mut fence = b.fence(0, s).unwrap();
    let gate = Gate::default();
    gate.block(b, s);
    assert!(b.fence_block(&mut fence, Some(HANG)).unwrap());
    assert!(!b.stream_idle(0, s).unwrap());
    gate.open();
    sync(b, s);
}

#[test]
fn no_wake_up_gets_lost() {
    // Threads that pause for about as long as a worker searches before it sleeps, so that all the races between
    // going to sleep, searching and enqueueing happen.
    for workers in [1, 2] {
        let b = host(1, workers);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let s = new_stream(b, 0, Priority::ALL[thread as usize % 3]);
                    let e = b.event_create(0, false).unwrap();
                    let mut seed = 99 + thread;
                    for i in 0..1500u32 {
                        run(b, s, 1 + i % 3, |_| {});
                        if i % 5 == 0 {
                            b.event_record(0, e, s).unwrap();
                            assert!(b.event_block(0, e, Some(HANG)).unwrap(), "a wake-up got lost");
                        } else {
                            sync(b, s);
                        }
                        let pause = Instant::now();
                        let length = Duration::from_nanos(random(&mut seed) % 120_000);
                        while pause.elapsed() < length {
                            std::thread::yield_now();
                        }
                    }
                    b.event_destroy(0, e);
                    b.stream_destroy(0, s);
                });
            }
        });
    }
}

#[test]
fn no_wake_up_gets_lost_with_nobody_else_to_make_up_for_it() {
    let b = host(1, 1);
    let s = normal(b);
    let mut seed = 5;
    for _ in 0..10_000 {
        run(b, s, 1, |_| {});
        sync(b, s);
        // Around the moment at which the worker gives up searching.
        let length = Duration::from_nanos(40_000 + random(&mut seed) % 30_000);
        let pause = Instant::now();
        while pause.elapsed() < length {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn random_work_of_many_threads_matches_a_sequential_model() {
    const CELLS: usize = 64;
    for workers in [1, 2, 5] {
        let b = host(2, workers);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    let mut seed = 0x9e37_79b9 + 77 * thread + u64::from(workers);
                    // Each thread has its own streams and memory; what it does is ordered by events throughout, so
                    // doing it at once, one thing after the other, is the model.
                    let streams: Vec<_> = (0..6)
                        .map(|i| new_stream(b, i % 2, Priority::ALL[i as usize / 2]))
                        .collect();
                    let events: Vec<_> = (0..2).map(|d| b.event_create(d, true).unwrap()).collect();
                    let mut model = [0u64; CELLS];
                    let cells: Arc<Vec<AtomicU64>> =
                        Arc::new((0..CELLS).map(|_| AtomicU64::new(0)).collect());
                    let base = cells.as_ptr() as u64;
                    let at = |i: usize| addr((base + 8 * i as u64) as *const u8);
                    let mut expected_log = Vec::new();
                    let log = Arc::new(StdMutex::new(Vec::new()));
                    let c = cells.clone();
                    let mix = kernel(&[8, 8], move |block, args| {
                        // SAFETY: the kernel is launched with two u64.
                        let (from, times) =
                            unsafe { (*(*args).cast::<u64>(), *(*args.add(1)).cast::<u64>()) };
                        let cell = &c[(from as usize + block.index[0] as usize) % CELLS];
                        // Not atomic on purpose: blocks touch different cells and operations are ordered.
                        let value = cell.load(std::sync::atomic::Ordering::Relaxed);
                        cell.store(
                            value.wrapping_mul(3).wrapping_add(times),
                            std::sync::atomic::Ordering::Relaxed,
                        );
                    });
                    let mut previous: Option<usize> = None;
                    for step in 0..1500u64 {
                        let pick = random(&mut seed) as usize % streams.len();
                        let (s, device) = (streams[pick], pick as u32 % 2);
                        if let Some(p) = previous.filter(|&p| p != pick) {
                            let e = events[p % 2];
                            b.event_record(p as u32 % 2, e, streams[p]).unwrap();
                            b.stream_wait_event(device, s, e).unwrap();
                        }
                        previous = Some(pick);
                        match random(&mut seed) % 8 {
                            0..=2 => {
                                let blocks = [1, 1, 2, 7, 33, 64][random(&mut seed) as usize % 6];
                                let (mut from, mut times) = (random(&mut seed) % 64, step);
                                let pointers: [*mut c_void; 2] =
                                    [(&mut from as *mut u64).cast(), (&mut times as *mut u64).cast()];
                                // SAFETY: two pointers to u64, as the kernel was made.
                                let args = unsafe { Args::from_caller(pointers.as_ptr()) };
                                b.launch(device, s, Code::Host(&mix), &shape(blocks), args)
                                    .unwrap();
                                for i in 0..blocks as usize {
                                    let cell = &mut model[(from as usize + i) % CELLS];
                                    *cell = cell.wrapping_mul(3).wrapping_add(step);
                                }
                            }
                            3 => {
                                let (from, n) = (random(&mut seed) as usize % 32, random(&mut seed) % 32);
                                b.memcpy(
                                    device,
                                    s,
                                    at(32),
                                    Place::Host,
                                    at(from.min(31)),
                                    Place::Host,
                                    n * 8,
                                )
                                .unwrap();
                                model.copy_within(from.min(31)..from.min(31) + n as usize, 32);
                            }
                            4 => {
                                let (from, n) = (random(&mut seed) as usize % 32, random(&mut seed) % 32);
                                b.fill(device, s, at(from), &step.to_le_bytes(), n).unwrap();
                                model[from..from + n as usize].fill(step);
                            }
                            5 => {
                                let log = log.clone();
                                b.stream_callback(
                                    device,
                                    s,
                                    Box::new(move |_| log.lock().unwrap().push(step)),
                                )
                                .unwrap();
                                expected_log.push(step);
                            }
                            6 => {
                                let bytes = 1 + random(&mut seed) % 4000;
                                let a = b.alloc_async(device, s, bytes).unwrap();
                                b.fill(device, s, a, &[step as u8], bytes).unwrap();
                                b.memcpy(
                                    device,
                                    s,
                                    at(0),
                                    Place::Host,
                                    a,
                                    Place::Device(device),
                                    bytes.min(8),
                                )
                                .unwrap();
                                b.free_async(device, s, a).unwrap();
                                let mut first = model[0].to_le_bytes();
                                first[..bytes.min(8) as usize].fill(step as u8);
                                model[0] = u64::from_le_bytes(first);
                            }
                            _ => {
                                if random(&mut seed) % 4 == 0 {
                                    sync(b, s);
                                    let now: Vec<_> = cells.iter().map(|c| c.load(SeqCst)).collect();
                                    assert_eq!(now, model, "thread {thread}, step {step}");
                                }
                            }
                        }
                    }
                    streams.iter().for_each(|&s| sync(b, s));
                    let end: Vec<_> = cells.iter().map(|c| c.load(SeqCst)).collect();
                    assert_eq!(end, model);
                    assert_eq!(*log.lock().unwrap(), expected_log);
                    events
                        .iter()
                        .enumerate()
                        .for_each(|(d, &e)| b.event_destroy(d as u32, e));
                    streams
                        .iter()
                        .enumerate()
                        .for_each(|(i, &s)| b.stream_destroy(i as u32 % 2, s));
                });
            }
        });
        for device in 0..2 {
            let (free, total) = b.memory(device).unwrap();
            assert_eq!(free, total, "memory of device {device} leaked");
        }
    }
}

#[test]
fn many_threads_share_one_stream() {
    let b = host(1, 2);
    let s = normal(b);
    let sums = Arc::new(AtomicU64::new(0));
    let last: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (sums, last) = (sums.clone(), last.clone());
            scope.spawn(move || {
                for i in 1..=3000u64 {
                    let (counted, last) = (sums.clone(), last.clone());
                    let body = move |_| {
                        // What one thread queues runs in its order, one at a time.
                        assert_eq!(last[thread].swap(i, SeqCst), i - 1);
                        let now = counted.load(std::sync::atomic::Ordering::Relaxed);
                        counted.store(now + i, std::sync::atomic::Ordering::Relaxed);
                    };
                    b.stream_callback(0, s, Box::new(body)).unwrap();
                    if i % 64 == 0 {
                        sync(b, s);
                        assert!(
                            last_at_least(&sums, i),
                            "a fence did not cover the thread's own work"
                        );
                    }
                }
            });
        }
    });
    sync(b, s);
    assert_eq!(sums.load(SeqCst), 4 * 3000 * 3001 / 2);
    fn last_at_least(sums: &AtomicU64, i: u64) -> bool {
        sums.load(SeqCst) >= i * (i + 1) / 2
    }
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let b = host(1, 2);
    let ran = Arc::new(AtomicU32::new(0));
    let gate = Gate::default();
    let s = normal(b);
    gate.block(b, s);
    for _ in 0..100 {
        let r = ran.clone();
        run(b, s, 4, move |_| {
            r.fetch_add(1, SeqCst);
        });
    }
    // What it waits for is destroyed as well.
    let t = normal(b);
    let e = b.event_create(0, false).unwrap();
    b.event_record(0, e, s).unwrap();
    b.stream_wait_event(0, t, e).unwrap();
    let r = ran.clone();
    run(b, t, 1, move |_| {
        r.fetch_add(1000, SeqCst);
    });
    b.event_destroy(0, e);
    b.stream_destroy(0, s);
    b.stream_destroy(0, t);
    gate.open();
    until(|| ran.load(SeqCst) == 1400);
    until(|| b.device(0).unwrap().all_streams().is_empty());
}

#[test]
fn streams_are_imported_by_their_native_handle() {
    let b = host(2, 1);
    let native = |value: u64| {
        // SAFETY: host devices check the handle against their live streams.
        unsafe { NativeHandle::from_caller(value as *mut c_void) }
    };
    let s = new_stream(b, 0, Priority::High);
    let handle = native(b.stream_native(0, s).unwrap() as u64);
    let one = b.stream_import(0, handle).unwrap();
    assert_eq!((one.effective, one.native_priority), (Priority::High, -1));
    assert_eq!(b.stream_import(0, handle).unwrap().raw, one.raw);
    assert_eq!(b.stream_native(0, one.raw).unwrap() as u64, handle.value());
    // The same queue, whichever name is used.
    let gate = Gate::default();
    gate.block(b, s);
    assert!(!b.stream_idle(0, one.raw).unwrap());
    gate.open();
    sync(b, one.raw);
    // Forgetting both imports leaves the stream alone.
    b.stream_destroy(0, one.raw);
    b.stream_destroy(0, one.raw);
    run(b, s, 1, |_| {});
    sync(b, s);
    // An import keeps the stream usable.
    let one = b.stream_import(0, handle).unwrap();
    b.stream_destroy(0, s);
    run(b, one.raw, 1, |_| {});
    sync(b, one.raw);
    b.stream_destroy(0, one.raw);
    let status = |device, value| b.stream_import(device, native(value)).unwrap_err().status();
    assert_eq!(status(0, handle.value()), Status::InvalidArgument);
    let t = normal(b);
    let other = b.stream_native(0, t).unwrap() as u64;
    assert_eq!(status(1, other), Status::InvalidArgument);
    assert_eq!(status(0, 0xdead_beef), Status::InvalidArgument);
    assert_eq!(status(0, other + 1), Status::InvalidArgument);
    assert_eq!(status(0, 2), Status::InvalidArgument);
    assert_eq!(status(7, 0), Status::InvalidDevice);
    // The legacy stream, one for each device.
    let legacy = b.stream_import(0, native(0)).unwrap().raw;
    assert_eq!(b.stream_import(0, native(1)).unwrap().raw, legacy);
    assert_ne!(b.stream_import(1, native(0)).unwrap().raw, legacy);
    let gate = Gate::default();
    gate.block(b, legacy);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| b.device_synchronize(0).unwrap());
        gate.reached();
        std::thread::sleep(Duration::from_millis(10));
        assert!(!waiter.is_finished());
        gate.open();
    });
    b.stream_destroy(0, legacy);
    assert_eq!(b.stream_import(0, native(1)).unwrap().raw, legacy);
}

#[test]
fn an_idle_stream_that_is_destroyed_is_gone() {
    let b = host(1, 2);
    for i in 0..2000 {
        let s = normal(b);
        run(b, s, 1, |_| {});
        if i % 2 == 0 {
            sync(b, s);
        }
        b.stream_destroy(0, s);
    }
    until(|| b.device(0).unwrap().all_streams().is_empty());
}

#[test]
fn the_exit_of_the_process_stops_work_at_a_boundary() {
    let b = host(1, 2);
    let (s, t, done) = (normal(b), normal(b), normal(b));
    let (e, reached) = (
        b.event_create(0, false).unwrap(),
        b.event_create(0, false).unwrap(),
    );
    run(b, done, 1, |_| {});
    b.event_record(0, reached, done).unwrap();
    let mut finished = b.fence(0, done).unwrap();
    assert!(b.fence_block(&mut finished, Some(HANG)).unwrap());
    let gate = Gate::default();
    let ran = Arc::new(AtomicU32::new(0));
    let (g, r) = (gate.clone(), ran.clone());
    run(b, s, 100_000, move |block| {
        if block.index[0] == 0 {
            g.pass();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
        r.fetch_add(1, SeqCst);
    });
    b.event_record(0, e, s).unwrap();
    b.stream_wait_event(0, t, e).unwrap();
    run(b, t, 1, |_| {});
    gate.reached();
    let mut fence = b.fence(0, s).unwrap();
    std::thread::scope(|scope| {
        let not_permitted = |r: Result<bool>| assert_eq!(r.unwrap_err().status(), Status::NotPermitted);
        scope.spawn(move || not_permitted(b.event_block(0, e, None)));
        scope.spawn(move || not_permitted(b.fence_block(&mut b.fence(0, t).unwrap(), None)));
        scope.spawn(move || {
            assert_eq!(
                b.device_synchronize(0).unwrap_err().status(),
                Status::NotPermitted
            )
        });
        std::thread::sleep(Duration::from_millis(20));
        let g = gate.clone();
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            g.open();
        });
        b.park_for_exit();
    });
    // The workers stand still.
    let now = ran.load(SeqCst);
    assert!(now < 100_000);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(ran.load(SeqCst), now);
    let k = kernel(&[], |_, _| {});
    let refused = [
        b.launch(0, s, Code::Host(&k), &shape(1), no_args()).unwrap_err(),
        b.event_record(0, e, s).unwrap_err(),
        b.stream_wait_event(0, s, e).unwrap_err(),
        b.stream_callback(0, s, Box::new(|_| ())).unwrap_err(),
        b.fence_reached(&mut fence).unwrap_err(),
        b.fence_block(&mut fence, None).unwrap_err(),
        b.event_state(0, e).unwrap_err(),
        b.event_block(0, e, None).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.status(), Status::NotPermitted, "{error}");
    }
    // What has finished is answered as ever.
    assert!(b.fence_reached(&mut finished).unwrap());
    assert!(b.fence_block(&mut finished, None).unwrap());
    assert!(b.event_block(0, reached, None).unwrap());
    b.event_destroy(0, e);
    b.stream_destroy(0, s);
    b.stream_destroy(0, t);
    // Twice does no harm.
    b.park_for_exit();
}

#[test]
fn an_exit_before_any_work_and_from_inside_a_callback() {
    let b = host(1, 1);
    b.park_for_exit();
    let s = normal(b);
    assert_eq!(
        b.stream_callback(0, s, Box::new(|_| ())).unwrap_err().status(),
        Status::NotPermitted
    );
    assert!(!b.fork_unsafe());
    let b = host(1, 1);
    let s = normal(b);
    let took = Arc::new(StdMutex::new(None));
    let t = took.clone();
    let body = move |_| {
        let start = Instant::now();
        b.park_for_exit();
        *t.lock().unwrap() = Some(start.elapsed());
    };
    b.stream_callback(0, s, Box::new(body)).unwrap();
    until(|| took.lock().unwrap().is_some());
}

#[test]
fn workers_leave_signals_to_the_program() {
    let b = host(1, 1);
    let s = normal(b);
    let blocked = Arc::new(AtomicU32::new(0));
    let seen = blocked.clone();
    run(b, s, 1, move |_| {
        // SAFETY: asking only: the new set is null and the old one is live.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut set);
            set
        };
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGUSR1,
            libc::SIGCHLD,
            libc::SIGALRM,
        ] {
            // SAFETY: the set was written above.
            seen.fetch_add(unsafe { libc::sigismember(&set, signal) } as u32, SeqCst);
        }
    });
    sync(b, s);
    assert_eq!(blocked.load(SeqCst), 5);
}

#[test]
fn what_host_devices_are_and_are_not() {
    let b = host(3, 2);
    assert_eq!((b.name(), b.path().as_str(), b.device_count()), ("host", "", 3));
    let info = b.device_info(2).unwrap();
    assert_eq!(
        (info.name.as_str(), info.arch.as_str()),
        ("Host device 2", std::env::consts::ARCH)
    );
    assert_eq!(
        (info.compute_units, info.warp_size, info.total_memory),
        (2, 1, 64 << 20)
    );
    assert_eq!(&info.uuid, b"taskgpu-host\0\0\0\x02");
    let error = b.device_info(3).unwrap_err();
    assert_eq!(error.status(), Status::InvalidDevice);
    assert!(
        error.to_string().contains("no host device 3; there are 3"),
        "{error}"
    );
    assert!(b.can_access_peer(0, 1).unwrap() && !b.can_access_peer(1, 1).unwrap());
    b.enable_peer(0, 1).unwrap();
    b.enable_peer(0, 1).unwrap();
    assert_eq!(b.enable_peer(1, 1).unwrap_err().status(), Status::InvalidArgument);
    assert_eq!(b.enable_peer(1, 9).unwrap_err().status(), Status::InvalidDevice);
    assert_eq!(b.module_load(0, &[]).unwrap_err().status(), Status::InvalidImage);
    let error = b
        .module_compile(0, "#error no", &CompileOptions::default())
        .unwrap_err();
    assert_eq!(error.status(), Status::CompileFailed);
    let k = kernel(&[], |_, _| {});
    assert_eq!(
        b.function_info(0, Code::Host(&k)).unwrap().max_threads_per_block,
        1024
    );
    assert_eq!(b.function_block_size(0, Code::Host(&k), 0).unwrap(), 1024);
    let too_much = b.function_block_size(0, Code::Host(&k), 1 << 20).unwrap_err();
    assert_eq!(too_much.status(), Status::InvalidArgument);
    let byte = 0u8;
    b.host_register(0, addr(&byte), 1).unwrap();
    assert_eq!(
        b.host_register(0, addr(&byte), u64::MAX).unwrap_err().status(),
        Status::InvalidArgument
    );
    for (devices, threads) in [(0, 1), (1025, 1), (u32::MAX, 1), (1, 4097), (1, u32::MAX)] {
        let error = HostBackend::new(HostSettings {
            devices,
            threads,
            memory: 0,
        })
        .err()
        .unwrap();
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    }
    // Nothing above needed a worker.
    assert!(!b.fork_unsafe());
}

#[test]
fn a_stream_imported_twice_outlives_its_first_import_and_its_original() {
    let b = host(1, 1);
    let original = normal(b);
    let native = b.stream_native(0, original).unwrap();
    // SAFETY: a live stream of this backend.
    let handle = unsafe { NativeHandle::from_caller(native) };
    let first = b.stream_import(0, handle).unwrap().raw;
    let second = b.stream_import(0, handle).unwrap().raw;
    assert_eq!(first, second);
    b.stream_destroy(0, first);
    b.stream_destroy(0, original);
    sync(b, second);
    b.stream_destroy(0, second);
    assert!(b.stream_import(0, handle).is_err());
}
