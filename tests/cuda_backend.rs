//! The CUDA backend on a real device. Without the driver every test says SKIPPED on standard error and passes;
//! with `TASKGPU_TEST_CUDA=required` a missing driver is a failure.
//!
//! What the driver itself thinks (its current context, its captures) is asked through the declarations of
//! `cudarc`, which are not ours.
#![cfg(target_os = "linux")]

use std::ffi::c_void;
use std::io::Write;
use std::process::Command;
use std::ptr::{null_mut, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{mpsc, Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use taskgpu::backend::cuda::CudaBackend;
use taskgpu::backend::{
    Addr, Args, Backend, Code, CompileOptions, Error, EventState, HostBlock, HostKernel, NativeHandle, Place,
    Priority, RawEvent, RawFunction, RawModule, RawStream, Result, Shape, Status, StreamSpec,
};

const PTX: &str = include_str!("cuda_kernels.ptx");
const DEV: u32 = 0;

/// Past libtest's capture, so that nobody takes a skipped test for one that ran.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// The device, for one test at a time: what one test does to a context would show in another.
struct Gpu {
    b: &'static CudaBackend,
    module: RawModule,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

fn backend(test: &str) -> Option<&'static CudaBackend> {
    match CudaBackend::load() {
        Ok(b) => Some(b),
        Err(e) if std::env::var("TASKGPU_TEST_CUDA").as_deref() == Ok("required") => panic!("{test}: {e}"),
        Err(e) => {
            say(&format!("SKIPPED {test}: no CUDA device: {e}"));
            None
        }
    }
}

fn gpu(test: &str) -> Option<Gpu> {
    let b = backend(test)?;
    let alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    b.open(DEV).expect("device 0 opens");
    let module = b.module_load(DEV, PTX.as_bytes()).expect("the test kernels load");
    Some(Gpu {
        b,
        module,
        _alone: alone,
    })
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.b.module_destroy(DEV, self.module);
    }
}

fn addr<T>(p: *const T) -> Addr {
    // SAFETY: every test waits for its work before the memory goes away.
    unsafe { Addr::from_caller(p.cast()) }
}

const ONE: Shape = Shape {
    grid: [1, 1, 1],
    block: [1, 1, 1],
    shared_bytes: 0,
};
/// A kernel's arguments as the addresses of its values.
macro_rules! args {
    ($($value:expr),*) => {
        &mut [$((&raw const $value).cast_mut().cast::<c_void>()),*]
    };
}

impl Gpu {
    /// Holds a stream back until the gate is opened.
    fn hold(&self, s: RawStream) -> taskgpu::backend::Gate {
        let mut gate = None;
        let arranged = self.b.stream_gate(
            DEV,
            s,
            Box::new(|g| {
                gate = Some(g);
                Ok(())
            }),
        );
        arranged.expect("a gate");
        gate.expect("a gate")
    }

    fn stream(&self) -> RawStream {
        self.b
            .stream_create(DEV, StreamSpec::default())
            .expect("a stream")
            .raw
    }

    fn kernel(&self, name: &str) -> RawFunction {
        self.b
            .module_function(DEV, self.module, name)
            .expect("a kernel of the test module")
    }

    fn run(&self, s: RawStream, name: &str, shape: Shape, args: &mut [*mut c_void]) -> Result<()> {
        // SAFETY: the tests give each kernel the arguments that it has.
        let args = unsafe { Args::from_caller(args.as_ptr()) };
        self.b
            .launch(DEV, s, Code::Function(self.kernel(name)), &shape, args)
    }

    fn spin(&self, s: RawStream, time: Duration) {
        let ns = time.as_nanos() as u64;
        self.run(s, "spin", ONE, args![ns]).expect("launch");
    }

    fn add(&self, s: RawStream, p: Addr, by: u32) {
        let p = p.value();
        self.run(s, "add", ONE, args![p, by]).expect("launch");
    }

    fn wait(&self, s: RawStream) {
        let mut fence = self.b.fence(DEV, s).expect("a fence");
        assert!(self.b.fence_block(&mut fence, None).expect("the work ends"));
        self.b.fence_drop(fence);
    }

    fn idle(&self, s: RawStream) -> bool {
        self.b.stream_idle(DEV, s).expect("an answer")
    }

    fn read<T: Copy + Default>(&self, s: RawStream, from: Addr, n: usize) -> Vec<T> {
        let mut out = vec![T::default(); n];
        let bytes = (n * size_of::<T>()) as u64;
        self.b
            .memcpy(
                DEV,
                s,
                addr(out.as_mut_ptr()),
                Place::Host,
                from,
                Place::Device(DEV),
                bytes,
            )
            .expect("copy");
        self.wait(s);
        out
    }

    fn write<T: Copy>(&self, s: RawStream, to: Addr, values: &[T]) {
        let bytes = size_of_val(values) as u64;
        self.b
            .memcpy(
                DEV,
                s,
                to,
                Place::Device(DEV),
                addr(values.as_ptr()),
                Place::Host,
                bytes,
            )
            .expect("copy");
        self.wait(s);
    }

    fn gate(&self, s: RawStream) -> Gate<'_> {
        let flag = self.b.host_alloc(DEV, 4).expect("pinned memory");
        let at = NonNull::new(flag.as_ptr().cast::<AtomicU32>()).expect("an address");
        // SAFETY: fresh memory of ours.
        unsafe { at.as_ref() }.store(0, Ordering::SeqCst);
        let p = flag.value();
        self.run(s, "gate", ONE, args![p]).expect("launch");
        Gate {
            gpu: self,
            stream: s,
            flag,
            at,
        }
    }
}

/// A kernel that runs until it is opened: what returns while it runs has not waited for it.
struct Gate<'a> {
    gpu: &'a Gpu,
    stream: RawStream,
    flag: Addr,
    at: NonNull<AtomicU32>,
}

impl Gate<'_> {
    fn open(&self) {
        // SAFETY: freed only in `drop`.
        unsafe { self.at.as_ref() }.store(1, Ordering::SeqCst);
    }

    fn shut(&self) -> bool {
        !self.gpu.idle(self.stream)
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.open();
        self.gpu.wait(self.stream);
        self.gpu.b.host_free(DEV, self.flag).expect("free");
    }
}

fn ok(code: sys::CUresult) {
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

fn current() -> sys::CUcontext {
    let mut c = null_mut();
    // SAFETY: `c` is writable.
    ok(unsafe { sys::cuCtxGetCurrent(&mut c) });
    c
}

fn primary() -> sys::CUcontext {
    let mut c = null_mut();
    // SAFETY: `c` is writable; device 0 exists. The extra reference stays until the end.
    ok(unsafe { sys::cuDevicePrimaryCtxRetain(&mut c, 0) });
    c
}

fn status<T>(r: Result<T>) -> Status {
    r.err().map_or(Status::Ok, |e| e.status())
}

/// Runs the test of this name once more, in a process of its own, with `TASKGPU_TEST_CHILD` set.
fn in_a_child(test: &str) -> std::process::Output {
    let me = std::env::current_exe().expect("the path of this program");
    let mut child = Command::new(me)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("TASKGPU_TEST_CHILD", test)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("a child process");
    let start = Instant::now();
    while child.try_wait().expect("a child process").is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().expect("a child process");
            let out = child.wait_with_output().expect("its output");
            panic!("{test} hangs in a child process:\n{}", text_of(&out));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

fn text_of(out: &std::process::Output) -> String {
    format!(
        "{}\n{}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

fn is_child(test: &str) -> bool {
    std::env::var("TASKGPU_TEST_CHILD").as_deref() == Ok(test)
}

fn must_pass(out: &std::process::Output) {
    assert!(
        out.status.success() && text_of(out).contains("CHILD DONE"),
        "{}",
        text_of(out)
    );
}

// ---- devices

#[test]
fn asking_about_devices_creates_no_context() {
    let name = "asking_about_devices_creates_no_context";
    if !is_child(name) {
        if backend(name).is_some() {
            must_pass(&in_a_child(name));
        }
        return;
    }
    let b = CudaBackend::load().expect("a driver");
    assert_eq!(b.name(), "cuda");
    assert!(b.device_count() > 0 && b.fork_unsafe());
    assert!(b.path().contains("libcuda"), "{}", b.path());
    assert!(b.version().contains('.'), "{}", b.version());
    for d in 0..b.device_count() {
        let info = b.device_info(d).expect("an answer");
        println!("device {d}: {info:?}");
        assert!(!info.name.is_empty() && info.arch.starts_with("sm_") && info.uuid != [0; 16]);
        assert!(info.total_memory > 1 << 28 && info.compute_units > 0 && info.warp_size == 32);
        assert!(info.max_threads_per_block >= 512 && info.max_block[0] >= 512 && info.max_grid[0] > 65_535);
        assert!(info.max_shared_per_block >= 48 * 1024 && info.hardware_queues > 0);
        assert_eq!(info.pci.matches(':').count(), 2, "{}", info.pci);
        for peer in 0..b.device_count() {
            let can = b.can_access_peer(d, peer).expect("an answer");
            assert!(d != peer || !can);
        }
        let (mut flags, mut active) = (0, 7);
        // SAFETY: both are writable.
        ok(unsafe { sys::cuDevicePrimaryCtxGetState(d as i32, &mut flags, &mut active) });
        assert_eq!(active, 0, "a context was created on device {d}");
    }
    assert!(current().is_null());
    println!("CHILD DONE");
}

#[test]
fn a_device_that_is_not_there_is_named_with_the_limit() {
    let Some(g) = gpu("a_device_that_is_not_there_is_named_with_the_limit") else {
        return;
    };
    let n = g.b.device_count();
    let e = g.b.open(n).expect_err("no such device");
    assert_eq!(e.status(), Status::InvalidDevice);
    assert!(e.to_string().contains(&n.to_string()), "{e}");
    assert_eq!(status(g.b.device_info(u32::MAX)), Status::InvalidDevice);
    assert_eq!(status(g.b.can_access_peer(0, n)), Status::InvalidDevice);
    assert_eq!(status(g.b.alloc(n, 1)), Status::InvalidDevice);
    assert_eq!(status(g.b.enable_peer(0, 0)), Status::InvalidArgument);
}

#[test]
fn bind_makes_the_primary_context_current_and_only_bind_does() {
    let Some(g) = gpu("bind_makes_the_primary_context_current_and_only_bind_does") else {
        return;
    };
    let b = g.b;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(current().is_null());
            b.open(DEV).expect("opens");
            assert!(current().is_null(), "open left a context current");
            b.bind(DEV).expect("binds");
            assert_eq!(current(), primary());
        });
    });
    assert_eq!(b.device_native(DEV).expect("a number"), 0);
    let (free, total) = b.memory(DEV).expect("an answer");
    assert!(free <= total && total > 1 << 28);
    b.device_synchronize(DEV).expect("an idle device");
    let info = b.device_info(DEV).expect("an answer");
    assert!(info.priority_greatest <= info.priority_least, "{info:?}");
}

/// Everything that creates or works somewhere, on success and on error.
fn every_call_keeps_the_context(g: &Gpu) {
    let b = g.b;
    let before = current();
    let same = |what: &str| assert_eq!(current(), before, "after {what}");
    let s = g.stream();
    same("stream_create");
    let e = b.event_create(DEV, true).expect("an event");
    same("event_create");
    let p = b.alloc(DEV, 1 << 20).expect("memory");
    same("alloc");
    let q = b.alloc_async(DEV, s, 1 << 20).expect("memory");
    same("alloc_async");
    let h = b.host_alloc(DEV, 4096).expect("memory");
    same("host_alloc");
    b.fill(DEV, s, p, &[1, 2, 3, 4, 5, 6, 7, 8], 1000).expect("fill");
    same("fill");
    b.memcpy(DEV, s, q, Place::Device(DEV), p, Place::Device(DEV), 8000)
        .expect("copy");
    b.memcpy(DEV, s, h, Place::Host, q, Place::Device(DEV), 4096)
        .expect("copy");
    same("memcpy");
    g.add(s, p, 1);
    same("launch");
    b.event_record(DEV, e, s).expect("record");
    b.stream_wait_event(DEV, s, e).expect("wait");
    same("event_record");
    let (tell, told) = mpsc::channel();
    b.stream_callback(
        DEV,
        s,
        Box::new(move |st| tell.send(st).expect("somebody listens")),
    )
    .expect("callback");
    same("stream_callback");
    g.wait(s);
    same("fence");
    assert_eq!(told.recv(), Ok(Status::Ok));
    assert!(b.event_block(DEV, e, None).expect("reached"));
    assert_eq!(b.event_state(DEV, e).expect("an answer"), EventState::Done);
    same("event_block");
    let m = b.module_load(DEV, PTX.as_bytes()).expect("a module");
    same("module_load");
    let f = b.module_function(DEV, m, "saxpy").expect("a kernel");
    b.module_global(DEV, m, "answer").expect("a variable");
    b.function_info(DEV, Code::Function(f)).expect("an answer");
    b.function_block_size(DEV, Code::Function(f), 0)
        .expect("an answer");
    same("module_function");
    b.memory(DEV).expect("an answer");
    b.device_synchronize(DEV).expect("idle");
    b.trim(DEV, u64::MAX).expect("trim");
    b.pointer_facts(p).expect("known");
    same("memory");
    // Errors.
    assert_eq!(status(b.alloc(DEV, 1 << 60)), Status::OutOfMemory);
    same("a failed alloc");
    assert_eq!(status(b.alloc_async(DEV, s, 1 << 60)), Status::OutOfMemory);
    same("a failed alloc_async");
    assert_eq!(status(b.host_alloc(DEV, 1 << 60)), Status::OutOfMemory);
    same("a failed host_alloc");
    assert_eq!(
        status(b.module_load(DEV, b".version 7.0\n.target sm_70\nnonsense")),
        Status::InvalidImage
    );
    same("a failed module_load");
    assert_eq!(status(b.module_function(DEV, m, "nothing")), Status::NotFound);
    same("a failed module_function");
    b.module_destroy(DEV, m);
    same("module_destroy");
    b.host_free(DEV, h).expect("free");
    b.free_async(DEV, s, q).expect("free");
    same("free_async");
    b.free(DEV, p).expect("free");
    same("free");
    b.event_destroy(DEV, e);
    b.stream_destroy(DEV, s);
    same("stream_destroy");
    let legacy = b
        .stream_import(DEV, handle(null_mut()))
        .expect("the legacy stream")
        .raw;
    let r = b.alloc_async(DEV, legacy, 4096).expect("memory");
    b.fill(DEV, legacy, r, &[0], 4096).expect("fill");
    g.add(legacy, r, 5);
    g.add(legacy, r, 6);
    assert_eq!(g.read::<u32>(legacy, r, 1), [11]);
    b.free_async(DEV, legacy, r).expect("free");
    assert!(!b.stream_capturing(DEV, legacy).expect("an answer"));
    same("the legacy stream");
}

fn handle(p: *mut c_void) -> NativeHandle {
    // SAFETY: the tests give live streams, special values and numbers that are refused unseen.
    unsafe { NativeHandle::from_caller(p) }
}

#[test]
fn f06_the_current_context_stays_whatever_it_is() {
    let Some(g) = gpu("f06_the_current_context_stays_whatever_it_is") else {
        return;
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(current().is_null());
            every_call_keeps_the_context(&g);
            // A context of somebody's own on the same device.
            let mut foreign = null_mut();
            // SAFETY: `foreign` is writable; the context is destroyed below.
            ok(unsafe { sys::cuCtxCreate_v2(&mut foreign, 0, 0) });
            assert_eq!(current(), foreign);
            every_call_keeps_the_context(&g);
            // A stream of that context is no stream of the device's primary one.
            let mut theirs = null_mut();
            // SAFETY: `theirs` is writable.
            ok(unsafe { sys::cuStreamCreate(&mut theirs, 1) });
            let e =
                g.b.stream_import(DEV, handle(theirs.cast()))
                    .expect_err("another context's");
            assert_eq!(e.status(), Status::NotSupported);
            assert!(e.to_string().contains("primary context"), "{e}");
            assert_eq!(current(), foreign);
            // Somebody pops it between our calls.
            let mut popped = null_mut();
            // SAFETY: as above; the context is current.
            unsafe {
                ok(sys::cuStreamDestroy_v2(theirs));
                ok(sys::cuCtxPopCurrent_v2(&mut popped));
            }
            assert_eq!(popped, foreign);
            every_call_keeps_the_context(&g);
            // SAFETY: nobody uses the context any more.
            ok(unsafe { sys::cuCtxDestroy_v2(foreign) });
            g.b.bind(DEV).expect("binds");
            every_call_keeps_the_context(&g);
        });
    });
}

// ---- streams

#[test]
fn f18_a_stream_says_what_priority_it_got() {
    let Some(g) = gpu("f18_a_stream_says_what_priority_it_got") else {
        return;
    };
    let info = g.b.device_info(DEV).expect("an answer");
    for priority in Priority::ALL {
        for legacy_order in [false, true] {
            let new =
                g.b.stream_create(
                    DEV,
                    StreamSpec {
                        priority,
                        legacy_order,
                    },
                )
                .expect("a stream");
            let native = g.b.stream_native(DEV, new.raw).expect("a handle");
            let (mut told, mut flags) = (99, 99);
            // SAFETY: both are writable; the stream is live.
            unsafe {
                ok(sys::cuStreamGetPriority(native.cast(), &mut told));
                ok(sys::cuStreamGetFlags(native.cast(), &mut flags));
            }
            assert_eq!(told, new.native_priority);
            assert_eq!(flags, u32::from(!legacy_order));
            let expected = match priority {
                Priority::Normal => 0,
                Priority::Low => info.priority_least,
                Priority::High => info.priority_greatest,
            };
            assert_eq!(new.native_priority, expected);
            if info.priority_greatest < 0 {
                assert_eq!(new.effective == Priority::High, priority == Priority::High);
            }
            g.b.stream_destroy(DEV, new.raw);
        }
    }
}

#[test]
fn streams_run_side_by_side_and_each_in_order() {
    let Some(g) = gpu("streams_run_side_by_side_and_each_in_order") else {
        return;
    };
    let (a, b) = (g.stream(), g.stream());
    let p = g.b.alloc(DEV, 8).expect("memory");
    g.b.fill(DEV, a, p, &[0], 8).expect("fill");
    // A kernel's first launch brings its code to the device and may wait for all that runs there.
    g.add(a, p, 0);
    g.wait(a);
    {
        let gate = g.gate(a);
        g.add(a, p, 1);
        g.add(b, addr((p.value() + 4) as *const u8), 7);
        g.wait(b);
        assert!(gate.shut() && !g.idle(a));
        assert_eq!(g.read::<u32>(b, p, 2), [0, 7], "work behind the gate ran");
    }
    assert_eq!(g.read::<u32>(b, p, 2), [1, 7]);
    assert!(g.idle(a) && g.idle(b));
    g.b.free(DEV, p).expect("free");
    g.b.stream_destroy(DEV, a);
    g.b.stream_destroy(DEV, b);
}

#[test]
fn work_goes_on_when_its_stream_is_destroyed() {
    let Some(g) = gpu("work_goes_on_when_its_stream_is_destroyed") else {
        return;
    };
    let s = g.stream();
    let p = g.b.alloc(DEV, 4).expect("memory");
    g.b.fill(DEV, s, p, &[0], 4).expect("fill");
    g.spin(s, Duration::from_millis(5));
    g.add(s, p, 3);
    g.b.stream_destroy(DEV, s);
    g.b.device_synchronize(DEV).expect("the device");
    let s = g.stream();
    assert_eq!(g.read::<u32>(s, p, 1), [3]);
    g.b.free(DEV, p).expect("free");
    g.b.stream_destroy(DEV, s);
}

#[test]
fn f09_imported_streams_have_an_identity_and_are_never_destroyed() {
    let Some(g) = gpu("f09_imported_streams_have_an_identity_and_are_never_destroyed") else {
        return;
    };
    let b = g.b;
    b.bind(DEV).expect("binds");
    let mut theirs = null_mut();
    // SAFETY: `theirs` is writable; the primary context is current.
    ok(unsafe { sys::cuStreamCreateWithPriority(&mut theirs, 1, -1) });
    let one = b
        .stream_import(DEV, handle(theirs.cast()))
        .expect("a live stream");
    let two = b
        .stream_import(DEV, handle(theirs.cast()))
        .expect("a live stream");
    assert_eq!(one.raw, two.raw);
    assert_eq!((one.effective, one.native_priority), (Priority::High, -1));
    assert_eq!(b.stream_native(DEV, one.raw).expect("a handle"), theirs.cast());
    let p = b.alloc_async(DEV, one.raw, 4).expect("memory");
    b.fill(DEV, one.raw, p, &[0], 4).expect("fill");
    g.add(one.raw, p, 9);
    assert_eq!(g.read::<u32>(one.raw, p, 1), [9]);
    b.free_async(DEV, one.raw, p).expect("free");
    b.stream_destroy(DEV, one.raw);
    // SAFETY: still live: forgetting an imported stream destroys nothing.
    unsafe {
        ok(sys::cuStreamSynchronize(theirs));
        ok(sys::cuStreamDestroy_v2(theirs));
    }
    let legacy = b
        .stream_import(DEV, handle(null_mut()))
        .expect("the legacy stream");
    let again = b
        .stream_import(DEV, handle(std::ptr::without_provenance_mut(1)))
        .expect("the legacy stream");
    assert_eq!(legacy.raw, again.raw);
    assert_eq!(b.stream_native(DEV, legacy.raw).expect("a handle") as usize, 1);
    b.stream_destroy(DEV, legacy.raw);
    for (value, answer) in [
        (2usize, Status::InvalidArgument),
        (3, Status::InvalidArgument),
        (0x1234_5679, Status::InvalidArgument),
    ] {
        let r = b.stream_import(DEV, handle(std::ptr::without_provenance_mut(value)));
        assert_eq!(status(r), answer, "{value}");
    }
    // Our own stream, handed back to us: forgetting the import leaves it alive.
    let own = g.stream();
    let native = b.stream_native(DEV, own).expect("a handle");
    let alias = b.stream_import(DEV, handle(native)).expect("a live stream").raw;
    b.stream_destroy(DEV, alias);
    g.wait(own);
    b.stream_destroy(DEV, own);
}

#[test]
fn streams_with_legacy_order_follow_the_legacy_stream_and_others_do_not() {
    let Some(g) = gpu("streams_with_legacy_order_follow_the_legacy_stream_and_others_do_not") else {
        return;
    };
    let legacy =
        g.b.stream_import(DEV, handle(null_mut()))
            .expect("the legacy stream")
            .raw;
    let spec = StreamSpec {
        legacy_order: true,
        ..StreamSpec::default()
    };
    let ordered = g.b.stream_create(DEV, spec).expect("a stream").raw;
    let free = g.stream();
    let p = g.b.alloc(DEV, 8).expect("memory");
    g.b.fill(DEV, free, p, &[0], 8).expect("fill");
    g.add(free, p, 0);
    g.wait(free);
    {
        let _gate = g.gate(legacy);
        g.add(ordered, p, 1);
        g.add(free, addr((p.value() + 4) as *const u8), 1);
        g.wait(free);
        assert_eq!(g.read::<u32>(free, p, 2), [0, 1]);
        assert!(!g.idle(ordered));
    }
    g.wait(ordered);
    assert_eq!(g.read::<u32>(free, p, 2), [1, 1]);
    for s in [ordered, free] {
        g.b.stream_destroy(DEV, s);
    }
    g.b.free(DEV, p).expect("free");
}

// ---- waiting

#[test]
fn a_fence_times_out_and_is_reached_later() {
    let Some(g) = gpu("a_fence_times_out_and_is_reached_later") else {
        return;
    };
    let s = g.stream();
    let gate = g.gate(s);
    let mut fence = g.b.fence(DEV, s).expect("a fence");
    assert!(!g.b.fence_reached(&mut fence).expect("an answer"));
    for patience in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(3)] {
        assert!(!g.b.fence_block(&mut fence, Some(patience)).expect("an answer"));
    }
    assert!(gate.shut());
    gate.open();
    assert!(g
        .b
        .fence_block(&mut fence, Some(Duration::from_secs(20)))
        .expect("an answer"));
    assert!(g.b.fence_block(&mut fence, None).expect("an answer"));
    assert!(g.b.fence_reached(&mut fence).expect("an answer"));
    g.b.fence_drop(fence);
    drop(gate);
    g.b.stream_destroy(DEV, s);
}

#[test]
fn a_polled_fence_ends_though_work_keeps_coming() {
    let Some(g) = gpu("a_polled_fence_ends_though_work_keeps_coming") else {
        return;
    };
    let (g, s) = (&g, g.stream());
    let stop = AtomicBool::new(false);
    let (ready, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        // Keeps three kernels queued at any moment: the stream is never idle.
        let feeder = scope.spawn(|| {
            let ring: Vec<RawEvent> = (0..4)
                .map(|_| g.b.event_create(DEV, false).expect("an event"))
                .collect();
            for i in 0.. {
                let event = ring[i % ring.len()];
                assert!(g.b.event_block(DEV, event, None).expect("reached"));
                g.spin(s, Duration::from_micros(500));
                g.b.event_record(DEV, event, s).expect("record");
                if i == ring.len() {
                    ready.send(()).expect("somebody listens");
                }
                if stop.load(Ordering::SeqCst) {
                    break;
                }
            }
            g.wait(s);
            ring.into_iter().for_each(|e| g.b.event_destroy(DEV, e));
        });
        begun.recv().expect("the feeder begins");
        let mut fence = g.b.fence(DEV, s).expect("a fence");
        let end = Instant::now() + Duration::from_secs(20);
        let mut reached = false;
        while !reached && Instant::now() < end {
            reached = g.b.fence_reached(&mut fence).expect("an answer");
        }
        let busy = !g.idle(s);
        stop.store(true, Ordering::SeqCst);
        g.b.fence_drop(fence);
        feeder.join().expect("no panic");
        assert!(reached, "the fence is never reached");
        assert!(busy, "the stream went idle, so this test has shown nothing");
    });
    g.b.stream_destroy(DEV, s);
}

#[test]
fn many_threads_sleep_and_wake() {
    let Some(g) = gpu("many_threads_sleep_and_wake") else {
        return;
    };
    let g = &g;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(move || {
                let s = g.stream();
                for _ in 0..50 {
                    g.spin(s, Duration::from_micros(300));
                    g.wait(s);
                    assert!(g.idle(s), "the wait returned early");
                }
                g.b.stream_destroy(DEV, s);
            });
        }
    });
}

#[test]
fn a_gate_holds_a_stream_back_until_it_is_opened_or_dropped() {
    let Some(g) = gpu("a_gate_holds_a_stream_back_until_it_is_opened_or_dropped") else {
        return;
    };
    let legacy =
        g.b.stream_import(DEV, handle(null_mut()))
            .expect("the legacy stream")
            .raw;
    let own = g.stream();
    let p = g.b.alloc(DEV, 4).expect("memory");
    g.b.fill(DEV, own, p, &[0], 4).expect("fill");
    g.wait(own);
    for (i, s) in [own, own, legacy, own].into_iter().enumerate() {
        let gate = g.hold(s);
        g.add(s, p, 1);
        let mut fence = g.b.fence(DEV, s).expect("a fence");
        let reached = g.b.fence_block(&mut fence, Some(Duration::from_millis(20)));
        assert!(!reached.expect("an answer"), "the gate {i} held nothing back");
        if i % 2 == 0 {
            std::thread::spawn(|| gate.open()).join().expect("no panic");
        } else {
            drop(gate);
        }
        assert!(g.b.fence_block(&mut fence, None).expect("reached"));
        g.b.fence_drop(fence);
        assert_eq!(g.read::<u32>(own, p, 1), [i as u32 + 1]);
    }
    // Many at once, opened last to first; the second time the flags are used ones.
    for round in 1..=2 {
        let mut gates: Vec<_> = (0..200).map(|_| g.hold(own)).collect();
        g.add(own, p, 100);
        while gates.len() > 1 {
            gates.pop().expect("more than one").open();
        }
        assert!(!g.idle(own));
        gates.into_iter().for_each(|gate| gate.open());
        assert_eq!(g.read::<u32>(own, p, 1), [4 + 100 * round]);
    }
    g.b.free(DEV, p).expect("free");
    g.b.stream_destroy(DEV, own);
}

#[test]
fn a_stream_is_not_held_before_somebody_has_the_gate() {
    let Some(g) = gpu("a_stream_is_not_held_before_somebody_has_the_gate") else {
        return;
    };
    let s = g.stream();
    let p = g.b.alloc(DEV, 4).expect("memory");
    g.b.fill(DEV, s, p, &[0], 4).expect("fill");
    let refused = g.b.stream_gate(
        DEV,
        s,
        Box::new(|_gate| Err(Error::new(Status::Internal, "nobody"))),
    );
    assert!(refused.is_err());
    let mut gate = None;
    let held = g.b.stream_gate(
        DEV,
        s,
        Box::new(|opens| {
            // Whatever waits for the device here, another thread's free of pinned memory say, comes back.
            g.b.device_synchronize(DEV)?;
            g.add(s, p, 1);
            g.wait(s);
            gate = Some(opens);
            Ok(())
        }),
    );
    held.expect("a held stream");
    assert!(!g.idle(s));
    drop(gate);
    assert_eq!(g.read::<u32>(s, p, 1), [1]);
    g.b.free(DEV, p).expect("free");
    g.b.stream_destroy(DEV, s);
}

// ---- events

#[test]
fn events_order_streams_and_tell_when_they_are_reached() {
    let Some(g) = gpu("events_order_streams_and_tell_when_they_are_reached") else {
        return;
    };
    let b = g.b;
    for timing in [false, true] {
        let (one, two) = (g.stream(), g.stream());
        let e = b.event_create(DEV, timing).expect("an event");
        assert_eq!(
            b.event_state(DEV, e).expect("an answer"),
            EventState::Done,
            "never recorded"
        );
        b.stream_wait_event(DEV, two, e).expect("no wait");
        let p = b.alloc(DEV, 4).expect("memory");
        b.fill(DEV, one, p, &[0], 4).expect("fill");
        let gate = g.gate(one);
        g.add(one, p, 1);
        b.event_record(DEV, e, one).expect("record");
        b.stream_wait_event(DEV, two, e).expect("wait");
        g.add(two, p, 10);
        assert_eq!(b.event_state(DEV, e).expect("an answer"), EventState::Pending);
        assert!(!b
            .event_block(DEV, e, Some(Duration::from_millis(2)))
            .expect("an answer"));
        assert!(!g.idle(two), "the second stream did not wait");
        let waiter = std::thread::scope(|scope| {
            let w = scope.spawn(|| b.event_block(DEV, e, None).expect("reached"));
            gate.open();
            w.join().expect("no panic")
        });
        assert!(waiter);
        assert_eq!(b.event_state(DEV, e).expect("an answer"), EventState::Done);
        assert_eq!(g.read::<u32>(two, p, 1), [11]);
        drop(gate);
        // A wait already queued outlives the event.
        let gate = g.gate(one);
        b.event_record(DEV, e, one).expect("record");
        b.stream_wait_event(DEV, two, e).expect("wait");
        g.add(two, p, 100);
        b.event_destroy(DEV, e);
        assert!(gate.shut(), "destroying the event waited");
        drop(gate);
        assert_eq!(g.read::<u32>(two, p, 1), [111]);
        b.free(DEV, p).expect("free");
        b.stream_destroy(DEV, one);
        b.stream_destroy(DEV, two);
    }
}

#[test]
fn elapsed_is_the_time_between_two_events() {
    let Some(g) = gpu("elapsed_is_the_time_between_two_events") else {
        return;
    };
    let b = g.b;
    let s = g.stream();
    let new = |timing| b.event_create(DEV, timing).expect("an event");
    let (start, end, plain) = (new(true), new(true), new(false));
    b.event_record(DEV, start, s).expect("record");
    g.spin(s, Duration::from_millis(20));
    b.event_record(DEV, end, s).expect("record");
    b.event_record(DEV, plain, s).expect("record");
    assert!(b.event_block(DEV, end, None).expect("reached"));
    let seconds = b.event_elapsed(DEV, start, end).expect("a time");
    assert!((0.019..10.0).contains(&seconds), "{seconds}");
    assert_eq!(
        status(b.event_elapsed(DEV, start, plain)),
        Status::InvalidArgument
    );
    assert_eq!(status(b.event_elapsed(DEV, plain, end)), Status::InvalidArgument);
    let gate = g.gate(s);
    b.event_record(DEV, end, s).expect("record");
    assert_eq!(status(b.event_elapsed(DEV, start, end)), Status::NotReady);
    drop(gate);
    for e in [start, end, plain] {
        b.event_destroy(DEV, e);
    }
    b.stream_destroy(DEV, s);
}

// ---- callbacks

#[test]
fn callbacks_run_once_in_order_and_later_work_waits() {
    let Some(g) = gpu("callbacks_run_once_in_order_and_later_work_waits") else {
        return;
    };
    let s = g.stream();
    let p = g.b.host_alloc(DEV, 4).expect("memory");
    // SAFETY: pinned memory of ours, freed at the end.
    let cell = unsafe { &*p.as_ptr().cast::<AtomicU32>() };
    cell.store(0, Ordering::SeqCst);
    let (tell, told) = mpsc::channel();
    for i in 0..500u32 {
        g.add(s, p, 1);
        let tell = tell.clone();
        let at = p.value();
        g.b.stream_callback(
            DEV,
            s,
            Box::new(move |status| {
                // SAFETY: as above.
                let cell = unsafe { &*(at as *const AtomicU32) };
                tell.send((i, status, cell.load(Ordering::SeqCst)))
                    .expect("somebody listens");
            }),
        )
        .expect("a callback");
    }
    drop(tell);
    for i in 0..500 {
        assert_eq!(
            told.recv(),
            Ok((i, Status::Ok, i + 1)),
            "before: all earlier work; after: none of the later"
        );
    }
    assert!(told.recv().is_err(), "a callback ran twice");
    g.wait(s);
    // A panic inside one is nobody else's.
    g.b.stream_callback(DEV, s, Box::new(|_| std::panic::panic_any("on purpose")))
        .expect("a callback");
    g.add(s, p, 1);
    g.wait(s);
    assert_eq!(cell.load(Ordering::SeqCst), 501);
    g.b.host_free(DEV, p).expect("free");
    g.b.stream_destroy(DEV, s);
}

// ---- memory

#[test]
fn memory_comes_and_goes() {
    let Some(g) = gpu("memory_comes_and_goes") else {
        return;
    };
    let b = g.b;
    let s = g.stream();
    for bytes in [1u64, 3, 4096, 1 << 20, 100_000_001] {
        let p = b.alloc(DEV, bytes).expect("memory");
        let q = b.alloc_async(DEV, s, bytes).expect("memory");
        assert_ne!(p, q);
        b.fill(DEV, s, p, &[0xAB], bytes).expect("fill");
        b.memcpy(DEV, s, q, Place::Device(DEV), p, Place::Device(DEV), bytes)
            .expect("copy");
        let last = addr((q.value() + bytes - 1) as *const u8);
        assert_eq!(g.read::<u8>(s, last, 1), [0xAB]);
        b.free(DEV, p).expect("free");
        // Memory of the pool, freed the other way.
        b.free(DEV, q).expect("free");
    }
    let (_, total) = b.memory(DEV).expect("an answer");
    for r in [b.alloc(DEV, total * 2), b.alloc_async(DEV, s, total * 2)] {
        let e = r.expect_err("more than there is");
        assert_eq!(e.status(), Status::OutOfMemory);
        assert!(e.to_string().contains(&(total * 2).to_string()), "{e}");
        assert_eq!(
            e.detail().native.as_ref().map(|n| (n.code, &*n.name)),
            Some((2, "CUDA_ERROR_OUT_OF_MEMORY"))
        );
    }
    g.wait(s);
    b.stream_destroy(DEV, s);
}

#[test]
fn the_pool_is_ours_keeps_memory_and_gives_it_back_when_told() {
    let Some(g) = gpu("the_pool_is_ours_keeps_memory_and_gives_it_back_when_told") else {
        return;
    };
    let b = g.b;
    if !b.device_info(DEV).expect("an answer").memory_pools {
        return say("SKIPPED: the device has no memory pools");
    }
    let s = g.stream();
    b.trim(DEV, 0).expect("trim");
    let mut default = null_mut();
    // SAFETY: `default` is writable.
    ok(unsafe { sys::cuDeviceGetDefaultMemPool(&mut default, 0) });
    let bytes = 1u64 << 30;
    let p = b.alloc_async(DEV, s, bytes).expect("memory");
    let mut pool: sys::CUmemoryPool = null_mut();
    // SAFETY: the attribute is a pool handle.
    ok(unsafe {
        sys::cuPointerGetAttribute(
            (&raw mut pool).cast(),
            sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
            p.value(),
        )
    });
    assert!(!pool.is_null() && pool != default);
    b.free_async(DEV, s, p).expect("free");
    g.wait(s);
    b.device_synchronize(DEV).expect("idle");
    let (kept, _) = b.memory(DEV).expect("an answer");
    b.trim(DEV, 0).expect("trim");
    let (given, _) = b.memory(DEV).expect("an answer");
    assert!(
        given >= kept + bytes,
        "{kept} bytes free before, {given} after trim"
    );
    b.stream_destroy(DEV, s);
}

#[test]
fn stream_ordered_memory_is_in_the_order_of_the_stream() {
    let Some(g) = gpu("stream_ordered_memory_is_in_the_order_of_the_stream") else {
        return;
    };
    let b = g.b;
    let s = g.stream();
    let gate = g.gate(s);
    let sums = b.host_alloc(DEV, 4 * 100).expect("memory");
    for i in 0..100u32 {
        let p = b.alloc_async(DEV, s, 4096).expect("memory");
        b.fill(DEV, s, p, &i.to_le_bytes(), 1024).expect("fill");
        g.add(s, p, 1000);
        let to = addr((sums.value() + 4 * u64::from(i)) as *const u8);
        b.memcpy(DEV, s, to, Place::Host, p, Place::Device(DEV), 4)
            .expect("copy");
        b.free_async(DEV, s, p).expect("free");
    }
    assert!(gate.shut(), "one of the calls waited");
    gate.open();
    g.wait(s);
    // SAFETY: 400 bytes, written by now.
    let sums_read = unsafe { std::slice::from_raw_parts(sums.as_ptr().cast::<u32>(), 100) };
    assert!(
        sums_read.iter().copied().eq((0..100).map(|i| i + 1000)),
        "{sums_read:?}"
    );
    drop(gate);
    b.host_free(DEV, sums).expect("free");
    b.stream_destroy(DEV, s);
}

#[test]
fn what_a_pointer_is_is_known() {
    let Some(g) = gpu("what_a_pointer_is_is_known") else {
        return;
    };
    let b = g.b;
    let p = b.alloc(DEV, 1 << 20).expect("memory");
    let inside = b
        .pointer_facts(addr((p.value() + 12345) as *const u8))
        .expect("known");
    assert_eq!(inside.place, Place::Device(DEV));
    assert_eq!(inside.base, p.value());
    assert!(inside.size >= 1 << 20);
    let s = g.stream();
    let q = b.alloc_async(DEV, s, 1 << 20).expect("memory");
    assert_eq!(b.pointer_facts(q).expect("known").place, Place::Device(DEV));
    let h = b.host_alloc(DEV, 8192).expect("memory");
    let pinned = b
        .pointer_facts(addr((h.value() + 100) as *const u8))
        .expect("known");
    assert_eq!((pinned.place, pinned.base), (Place::Host, h.value()));
    let mine = vec![0u8; 1 << 20];
    assert_eq!(b.pointer_facts(addr(mine.as_ptr())), None);
    assert_eq!(b.pointer_facts(addr(16 as *const u8)), None);
    b.host_register(DEV, addr(mine.as_ptr()), 1 << 20)
        .expect("register");
    assert_eq!(
        b.pointer_facts(addr(mine.as_ptr())).expect("known").place,
        Place::Host
    );
    let twice = b
        .host_register(DEV, addr(mine.as_ptr()), 1 << 20)
        .expect_err("twice");
    assert_eq!(twice.status(), Status::InvalidArgument);
    assert!(twice.to_string().contains("already"), "{twice}");
    b.host_unregister(DEV, addr(mine.as_ptr())).expect("unregister");
    let never = b
        .host_unregister(DEV, addr(mine.as_ptr()))
        .expect_err("not registered");
    assert_eq!(never.status(), Status::InvalidArgument);
    b.free_async(DEV, s, q).expect("free");
    b.free(DEV, p).expect("free");
    b.host_free(DEV, h).expect("free");
    g.wait(s);
    b.stream_destroy(DEV, s);
}

#[test]
fn every_kind_of_copy() {
    let Some(g) = gpu("every_kind_of_copy") else {
        return;
    };
    let b = g.b;
    let legacy = b
        .stream_import(DEV, handle(null_mut()))
        .expect("the legacy stream")
        .raw;
    let own = g.stream();
    for s in [own, legacy] {
        for n in [1usize, 5, 4097, 3_000_001] {
            let from: Vec<u8> = (0..n).map(|i| (i * 7 + 3) as u8).collect();
            let mut back = vec![0u8; n];
            let bytes = n as u64;
            let (p, q) = (
                b.alloc(DEV, bytes).expect("memory"),
                b.alloc(DEV, bytes).expect("memory"),
            );
            let (h, k) = (
                b.host_alloc(DEV, bytes).expect("memory"),
                b.host_alloc(DEV, bytes).expect("memory"),
            );
            let dev = Place::Device(DEV);
            let copy =
                |dst, dst_place, src, src_place| b.memcpy(DEV, s, dst, dst_place, src, src_place, bytes);
            // Pageable, device, device, pinned, pinned, pageable, pageable.
            copy(p, dev, addr(from.as_ptr()), Place::Host).expect("host to device");
            copy(q, dev, p, dev).expect("device to device");
            copy(h, Place::Host, q, dev).expect("device to pinned");
            copy(k, Place::Host, h, Place::Host).expect("pinned to pinned");
            copy(addr(back.as_mut_ptr()), Place::Host, k, Place::Host).expect("pinned to pageable");
            g.wait(s);
            assert_eq!(back, from);
            let mut last = vec![0u8; n];
            copy(
                addr(last.as_mut_ptr()),
                Place::Host,
                addr(back.as_ptr()),
                Place::Host,
            )
            .expect("pageable to pageable");
            g.wait(s);
            assert_eq!(last, from);
            b.memcpy(DEV, s, p, dev, q, dev, 0).expect("nothing to do");
            for m in [p, q] {
                b.free(DEV, m).expect("free");
            }
            for m in [h, k] {
                b.host_free(DEV, m).expect("free");
            }
        }
    }
    b.stream_destroy(DEV, own);
}

#[test]
fn copies_between_devices() {
    let Some(g) = gpu("copies_between_devices") else {
        return;
    };
    let b = g.b;
    if b.device_count() < 2 {
        return say("SKIPPED copies_between_devices: one device only");
    }
    b.open(1).expect("opens");
    let bytes = 5_000_001u64;
    let here = g.stream();
    let there = b.stream_create(1, StreamSpec::default()).expect("a stream").raw;
    let from: Vec<u8> = (0..bytes).map(|i| (i * 11) as u8).collect();
    for enabled in [false, true] {
        if enabled {
            for (d, peer) in [(0, 1), (1, 0)] {
                if b.can_access_peer(d, peer).expect("an answer") {
                    b.enable_peer(d, peer).expect("peer access");
                    b.enable_peer(d, peer).expect("twice is fine");
                }
            }
        }
        for s in [(0, here), (1, there)] {
            let p = b.alloc(0, bytes).expect("memory");
            let q = b.alloc_async(1, there, bytes).expect("memory");
            let e = b.event_create(1, false).expect("an event");
            b.event_record(1, e, there).expect("record");
            b.stream_wait_event(s.0, s.1, e)
                .expect("wait for the other device");
            g.write(here, p, &from);
            b.memcpy(s.0, s.1, q, Place::Device(1), p, Place::Device(0), bytes)
                .expect("copy");
            let mut back = vec![0u8; bytes as usize];
            let to = addr(back.as_mut_ptr());
            b.memcpy(s.0, s.1, to, Place::Host, q, Place::Device(1), bytes)
                .expect("copy");
            let mut fence = b.fence(s.0, s.1).expect("a fence");
            b.fence_block(&mut fence, None).expect("done");
            b.fence_drop(fence);
            assert_eq!(back, from);
            b.event_destroy(1, e);
            b.free(0, p).expect("free");
            b.free(1, q).expect("free");
        }
    }
    b.stream_destroy(0, here);
    b.stream_destroy(1, there);
}

#[test]
fn fills_of_every_size_at_every_address() {
    let Some(g) = gpu("fills_of_every_size_at_every_address") else {
        return;
    };
    let b = g.b;
    let s = g.stream();
    let room = 48 << 20;
    let p = b.alloc(DEV, room).expect("memory");
    let pattern: Vec<u8> = (1..=16).collect();
    for size in [1usize, 2, 4, 8, 16] {
        for (align, count) in [
            (0u64, 1u64),
            (0, 3),
            (1, 7),
            (2, 1001),
            (4, 40_001),
            (8, 16_385),
            (3, 33_333),
            (0, 1_000_003),
            (12, 2_000_001),
        ] {
            let pattern = &pattern[..size];
            let total = size as u64 * count;
            let all = total + align + 64;
            assert!(all <= room);
            b.fill(DEV, s, p, &[0xEE], all).expect("fill");
            b.fill(DEV, s, addr((p.value() + align) as *const u8), pattern, count)
                .expect("fill");
            let got = g.read::<u8>(s, p, all as usize);
            let (before, rest) = got.split_at(align as usize);
            let (body, after) = rest.split_at(total as usize);
            assert!(
                before.iter().chain(after).all(|x| *x == 0xEE),
                "size {size}, {count} at +{align}: written outside"
            );
            assert!(
                body.chunks(size).all(|c| c == pattern),
                "size {size}, {count} at +{align}"
            );
        }
    }
    b.fill(DEV, s, p, &[1, 2], 0).expect("nothing to do");
    assert_eq!(status(b.fill(DEV, s, p, &[1, 2, 3], 1)), Status::InvalidArgument);
    assert_eq!(
        status(b.fill(DEV, s, p, &[1, 2, 3, 4], u64::MAX)),
        Status::InvalidArgument
    );
    // Pinned host memory is memory too.
    let h = b.host_alloc(DEV, 1 << 20).expect("memory");
    b.fill(DEV, s, h, &pattern, (1 << 20) / 16).expect("fill");
    g.wait(s);
    // SAFETY: pinned memory of ours, written by now.
    let got = unsafe { std::slice::from_raw_parts(h.as_ptr().cast::<u8>(), 1 << 20) };
    assert!(got.chunks(16).all(|c| c == pattern));
    b.host_free(DEV, h).expect("free");
    b.free(DEV, p).expect("free");
    b.stream_destroy(DEV, s);
}

// ---- modules and launches

#[test]
fn saxpy_computes_what_a_plain_loop_does() {
    let Some(g) = gpu("saxpy_computes_what_a_plain_loop_does") else {
        return;
    };
    let s = g.stream();
    let n = 1_000_003u32;
    let xs: Vec<f32> = (0..n).map(|i| (i % 1000) as f32 * 0.5).collect();
    let ys: Vec<f32> = (0..n).map(|i| (i % 77) as f32).collect();
    let (x, y) = (
        g.b.alloc(DEV, 4 * u64::from(n)).expect("memory"),
        g.b.alloc(DEV, 4 * u64::from(n)).expect("memory"),
    );
    g.write(s, x, &xs);
    g.write(s, y, &ys);
    let (a, px, py) = (2.5f32, x.value(), y.value());
    let block =
        g.b.function_block_size(DEV, Code::Function(g.kernel("saxpy")), 0)
            .expect("a size");
    assert!(block > 0 && block <= 1024);
    let shape = Shape {
        grid: [n.div_ceil(block), 1, 1],
        block: [block, 1, 1],
        shared_bytes: 0,
    };
    g.run(s, "saxpy", shape, args![a, px, py, n]).expect("launch");
    let got = g.read::<f32>(s, y, n as usize);
    for i in 0..n as usize {
        assert_eq!(got[i], a.mul_add(xs[i], ys[i]), "element {i}");
    }
    for m in [x, y] {
        g.b.free(DEV, m).expect("free");
    }
    g.b.stream_destroy(DEV, s);
}

#[test]
fn a_wrong_launch_is_refused_with_words() {
    let Some(g) = gpu("a_wrong_launch_is_refused_with_words") else {
        return;
    };
    let s = g.stream();
    let f = Code::Function(g.kernel("saxpy"));
    // SAFETY: refused before they are read.
    let none = unsafe { Args::from_caller(std::ptr::null()) };
    let e = g.b.launch(DEV, s, f, &ONE, none).expect_err("no arguments");
    assert_eq!(e.status(), Status::InvalidArgument);
    assert!(
        e.to_string().contains("saxpy") && e.to_string().contains('4'),
        "{e}"
    );
    let (a, n) = (1f32, 0u32);
    let e = g.run(
        s,
        "saxpy",
        ONE,
        &mut [
            (&raw const a).cast_mut().cast(),
            null_mut(),
            null_mut(),
            (&raw const n).cast_mut().cast(),
        ],
    );
    let e = e.expect_err("NULL entries");
    assert!(e.to_string().contains("entry 1"), "{e}");
    g.b.launch(DEV, s, Code::Function(g.kernel("empty")), &ONE, none)
        .expect("a kernel without parameters");
    let limit = g.b.device_info(DEV).expect("an answer").max_threads_per_block;
    let big = Shape {
        block: [limit, 2, 1],
        ..ONE
    };
    let e =
        g.b.launch(DEV, s, Code::Function(g.kernel("empty")), &big, none)
            .expect_err("too many threads");
    assert_eq!(e.status(), Status::LaunchFailed);
    assert!(e.to_string().contains(&limit.to_string()), "{e}");
    unsafe extern "C" fn nothing(_: *const HostBlock, _: *const *mut c_void, _: *mut c_void) {}
    // SAFETY: never called.
    let host = unsafe { HostKernel::from_caller(nothing, null_mut(), &[]) };
    for e in [
        g.b.launch(DEV, s, Code::Host(&host), &ONE, none)
            .expect_err("a host kernel"),
        g.b.function_info(DEV, Code::Host(&host))
            .expect_err("a host kernel"),
        g.b.function_block_size(DEV, Code::Host(&host), 0)
            .expect_err("a host kernel"),
    ] {
        assert_eq!(e.status(), Status::NotSupported);
        assert!(e.to_string().contains("host device"), "{e}");
    }
    // Nothing of that has hurt the device.
    g.wait(s);
    g.b.stream_destroy(DEV, s);
}

#[test]
fn shared_memory_up_to_the_limit_and_no_further() {
    let Some(g) = gpu("shared_memory_up_to_the_limit_and_no_further") else {
        return;
    };
    let s = g.stream();
    let out = g.b.alloc(DEV, 4).expect("memory");
    let limit = g.b.device_info(DEV).expect("an answer").max_shared_per_block;
    for bytes in [4, 48 * 1024, 48 * 1024 + 16, limit] {
        g.b.fill(DEV, s, out, &[0], 4).expect("fill");
        let (p, n) = (out.value(), bytes as u32);
        g.run(
            s,
            "last_shared",
            Shape {
                shared_bytes: bytes,
                ..ONE
            },
            args![p, n],
        )
        .expect("launch");
        assert_eq!(g.read::<u32>(s, out, 1), [4711], "{bytes} bytes of {limit}");
    }
    let (p, n) = (out.value(), 4u32);
    for bytes in [limit + 1, u64::from(u32::MAX) + 5] {
        let e = g
            .run(
                s,
                "last_shared",
                Shape {
                    shared_bytes: bytes,
                    ..ONE
                },
                args![p, n],
            )
            .expect_err("too much");
        assert_eq!(e.status(), Status::InvalidArgument);
        assert!(
            e.to_string().contains(&limit.to_string()) && e.to_string().contains(&bytes.to_string()),
            "{e}"
        );
    }
    g.b.free(DEV, out).expect("free");
    g.b.stream_destroy(DEV, s);
}

#[test]
fn modules_functions_and_variables() {
    let Some(g) = gpu("modules_functions_and_variables") else {
        return;
    };
    let b = g.b;
    let s = g.stream();
    let (at, bytes) = b.module_global(DEV, g.module, "answer").expect("a variable");
    assert_eq!(bytes, 4);
    assert_eq!(g.read::<u32>(s, at, 1), [42]);
    assert_eq!(g.kernel("saxpy"), g.kernel("saxpy"));
    let info = b
        .function_info(DEV, Code::Function(g.kernel("saxpy")))
        .expect("an answer");
    assert!(
        info.max_threads_per_block >= 256 && info.registers > 0,
        "{info:?}"
    );
    for e in [
        b.module_function(DEV, g.module, "no_such_kernel")
            .expect_err("not there"),
        b.module_global(DEV, g.module, "no_such_kernel")
            .map(|_| g.kernel("empty"))
            .expect_err("not there"),
    ] {
        assert_eq!(e.status(), Status::NotFound);
        assert!(e.to_string().contains("no_such_kernel"), "{e}");
    }
    assert_eq!(
        status(b.module_function(DEV, g.module, "a\0b")),
        Status::InvalidArgument
    );
    for image in [&b""[..], b"<html>", b"\x7fELF\x02\x01", b"garbage", &[0u8; 1000]] {
        assert_eq!(status(b.module_load(DEV, image)), Status::InvalidImage);
    }
    let broken = PTX.replace(
        "st.global.f32 [%d5], %f3;",
        "st.global.f32 [%d5], %no_such_register;",
    );
    let e = b.module_load(DEV, broken.as_bytes()).expect_err("broken PTX");
    assert_eq!(e.status(), Status::InvalidImage);
    assert!(
        e.to_string().contains("no_such_register"),
        "the compiler's words are missing: {e}"
    );
    let newer = PTX.replace(".version 7.0", ".version 99.0");
    assert_eq!(status(b.module_load(DEV, newer.as_bytes())), Status::InvalidImage);
    b.stream_destroy(DEV, s);
}

#[test]
fn source_is_compiled_and_its_templates_found_by_name() {
    let Some(g) = gpu("source_is_compiled_and_its_templates_found_by_name") else {
        return;
    };
    let b = g.b;
    let source = "#include <hip/hip_runtime.h>\n\
        __device__ int table[3] = {5, 6, 7};\n\
        template <class T> __global__ void scale(T *p, T by, unsigned n) {\n\
            unsigned i = hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x;\n\
            if (i < n) p[i] *= by;\n\
        }\n\
        extern \"C\" __global__ void set(int *p) { *p = 7; }\n";
    let options = CompileOptions {
        name: "scale.hip".into(),
        options: vec!["--std=c++17".into()],
        name_expressions: vec!["scale<float>".into(), "scale<int>".into(), "&table".into()],
    };
    let m = match b.module_compile(DEV, source, &options) {
        Err(e) if e.status() == Status::NotSupported => {
            return say(&format!(
                "SKIPPED source_is_compiled_and_its_templates_found_by_name: {e}"
            ))
        }
        other => other.expect("compiles"),
    };
    let s = g.stream();
    let p = b.alloc(DEV, 4 * 1000).expect("memory");
    let launch = |name: &str, args: &mut [*mut c_void]| {
        let f = b.module_function(DEV, m, name).expect("a kernel");
        // SAFETY: the arguments that the kernel has.
        let args = unsafe { Args::from_caller(args.as_ptr()) };
        b.launch(
            DEV,
            s,
            Code::Function(f),
            &Shape {
                grid: [8, 1, 1],
                block: [128, 1, 1],
                shared_bytes: 0,
            },
            args,
        )
        .expect("launch");
    };
    let (at, n) = (p.value(), 1000u32);
    g.write(s, p, &vec![1.5f32; 1000]);
    let by = 3f32;
    launch("scale<float>", args![at, by, n]);
    assert_eq!(g.read::<f32>(s, p, 1000), vec![4.5f32; 1000]);
    g.write(s, p, &vec![2i32; 1000]);
    let by = 21i32;
    launch("scale<int>", args![at, by, n]);
    assert_eq!(g.read::<i32>(s, p, 1000), vec![42; 1000]);
    launch("set", args![at]);
    assert_eq!(g.read::<i32>(s, p, 1), [7]);
    let (table, bytes) = b.module_global(DEV, m, "&table").expect("a variable");
    assert_eq!(bytes, 12);
    assert_eq!(g.read::<i32>(s, table, 3), [5, 6, 7]);
    let e = b
        .module_function(DEV, m, "scale<double>")
        .expect_err("not asked for");
    assert!(
        e.status() == Status::NotFound && e.to_string().contains("scale<float>"),
        "{e}"
    );
    b.free(DEV, p).expect("free");
    b.module_destroy(DEV, m);
    let e = b
        .module_compile(DEV, "__global__ void k() { nothing_known = 1; }", &options)
        .expect_err("broken");
    assert_eq!(e.status(), Status::CompileFailed);
    assert!(
        e.to_string().contains("nothing_known") && e.to_string().contains("scale.hip"),
        "{e}"
    );
    b.stream_destroy(DEV, s);
}

#[test]
fn cubin_and_fatbin_made_by_the_vendors_compiler_load() {
    let Some(g) = gpu("cubin_and_fatbin_made_by_the_vendors_compiler_load") else {
        return;
    };
    let dir = std::env::temp_dir().join(format!("taskgpu-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let source = dir.join("k.cu");
    std::fs::write(
        &source,
        "extern \"C\" __global__ void set(int *p, int v) { *p = v; }\n",
    )
    .expect("a file");
    let arch = g.b.device_info(DEV).expect("an answer").arch;
    let s = g.stream();
    let p = g.b.alloc(DEV, 4).expect("memory");
    for (i, kind) in ["-cubin", "-fatbin", "-ptx"].iter().enumerate() {
        let out = dir.join(format!("out{i}"));
        let made = Command::new("nvcc")
            .arg(kind)
            .arg(format!("-arch={arch}"))
            .arg("-o")
            .arg(&out)
            .arg(&source)
            .status();
        if !made.as_ref().is_ok_and(|st| st.success()) {
            say(&format!(
                "SKIPPED {kind} in cubin_and_fatbin_made_by_the_vendors_compiler_load: nvcc: {made:?}"
            ));
            continue;
        }
        let image = std::fs::read(&out).expect("the compiler's output");
        let m = g.b.module_load(DEV, &image).expect("loads");
        let f = g.b.module_function(DEV, m, "set").expect("a kernel");
        let (at, v) = (p.value(), 100 + i as i32);
        let list: &mut [*mut c_void] = args![at, v];
        // SAFETY: the arguments that the kernel has.
        let args = unsafe { Args::from_caller(list.as_ptr()) };
        g.b.launch(DEV, s, Code::Function(f), &ONE, args).expect("launch");
        assert_eq!(g.read::<i32>(s, p, 1), [v]);
        g.b.module_destroy(DEV, m);
        // PTX is text without a length: what is left of it may well be a whole, smaller program.
        let cuts = if *kind == "-ptx" {
            vec![]
        } else {
            vec![image.len() / 2, image.len() - 1]
        };
        for cut in cuts {
            assert_eq!(
                status(
                    g.b.module_load(DEV, &image[..cut])
                        .map(|m| g.b.module_destroy(DEV, m))
                ),
                Status::InvalidImage,
                "{kind} cut to {cut} bytes"
            );
        }
    }
    g.b.free(DEV, p).expect("free");
    g.b.stream_destroy(DEV, s);
    let _ = std::fs::remove_dir_all(&dir);
}

#[test]
fn sixteen_threads_launch_on_streams_of_their_own() {
    let Some(g) = gpu("sixteen_threads_launch_on_streams_of_their_own") else {
        return;
    };
    let p = g.b.alloc(DEV, 4).expect("memory");
    let s = g.stream();
    g.b.fill(DEV, s, p, &[0], 4).expect("fill");
    g.wait(s);
    let g = &g;
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(move || {
                let s = g.stream();
                for i in 0..2000 {
                    g.add(s, p, 1);
                    if i % 500 == 0 {
                        let q = g.b.alloc_async(DEV, s, 1000).expect("memory");
                        g.b.free_async(DEV, s, q).expect("free");
                        g.wait(s);
                    }
                }
                g.wait(s);
                g.b.stream_destroy(DEV, s);
            });
        }
    });
    assert_eq!(g.read::<u32>(s, p, 1), [16 * 2000]);
    g.b.free(DEV, p).expect("free");
    g.b.stream_destroy(DEV, s);
}

#[test]
fn nothing_waits_behind_a_running_kernel_that_need_not() {
    let Some(g) = gpu("nothing_waits_behind_a_running_kernel_that_need_not") else {
        return;
    };
    let b = g.b;
    let (busy, s) = (g.stream(), g.stream());
    let h = b.host_alloc(DEV, 4096).expect("memory");
    let q = b.alloc_async(DEV, s, 4096).expect("memory");
    let event = b.event_create(DEV, false).expect("an event");
    g.b.fill(DEV, s, q, &[0], 4096).expect("fill");
    g.add(s, q, 0);
    g.wait(s);
    let gate = g.gate(busy);
    let mut blocked = Vec::new();
    let mut step = |what: &str, f: &mut dyn FnMut()| {
        if !gate.shut() {
            return; // Something before has waited until the gate's ten seconds were over.
        }
        f();
        if !gate.shut() {
            blocked.push(what.to_string());
        }
    };
    let mut more = None;
    step("stream_create", &mut || more = Some(g.stream()));
    step("event_create", &mut || {
        b.event_destroy(DEV, b.event_create(DEV, true).expect("an event"))
    });
    step("event_record", &mut || {
        b.event_record(DEV, event, busy).expect("record")
    });
    step("fill", &mut || {
        b.fill(DEV, s, q, &[1, 2, 3, 4, 5, 6, 7, 8], 512).expect("fill")
    });
    step("memcpy", &mut || {
        b.memcpy(DEV, s, h, Place::Host, q, Place::Device(DEV), 4096)
            .expect("copy")
    });
    step("launch", &mut || g.add(s, q, 1));
    step("alloc_async", &mut || {
        let p = b.alloc_async(DEV, s, 1 << 16).expect("memory");
        b.free_async(DEV, s, p).expect("free");
    });
    step("free_async behind the kernel", &mut || {
        b.free_async(DEV, busy, q).expect("free")
    });
    step("callback", &mut || {
        b.stream_callback(DEV, busy, Box::new(|_| {})).expect("callback")
    });
    step("wait for another stream", &mut || g.wait(s));
    step("memory", &mut || {
        b.memory(DEV).expect("an answer");
    });
    step("pointer_facts", &mut || {
        b.pointer_facts(h).expect("known");
    });
    step("event_destroy", &mut || b.event_destroy(DEV, event));
    // Not promised, but good to know.
    let (mut device_memory, mut host_memory, mut module) = (None, None, None);
    let look = |what: &str, f: &mut dyn FnMut()| {
        if gate.shut() {
            f();
            say(&format!(
                "behind a running kernel: {what} {}",
                if gate.shut() { "does not wait" } else { "WAITS" }
            ));
        }
    };
    let unused = b.alloc_async(DEV, s, 4096).expect("memory");
    g.wait(s);
    look("the end of a kernel launched for the first time", &mut || {
        g.run(s, "empty", ONE, &mut []).expect("launch");
        g.wait(s);
    });
    look("free of memory of the pool", &mut || {
        b.free(DEV, unused).expect("free")
    });
    look("alloc", &mut || device_memory = b.alloc(DEV, 4096).ok());
    look("host_alloc", &mut || host_memory = b.host_alloc(DEV, 4096).ok());
    look("module_load", &mut || {
        module = b.module_load(DEV, PTX.as_bytes()).ok()
    });
    look("stream_destroy", &mut || {
        b.stream_destroy(DEV, more.take().expect("a stream"))
    });
    drop(gate);
    assert!(blocked.is_empty(), "waited behind a kernel: {blocked:?}");
    device_memory
        .into_iter()
        .for_each(|p| b.free(DEV, p).expect("free"));
    host_memory
        .into_iter()
        .for_each(|p| b.host_free(DEV, p).expect("free"));
    module.into_iter().for_each(|m| b.module_destroy(DEV, m));
    more.into_iter().for_each(|s| b.stream_destroy(DEV, s));
    b.host_free(DEV, h).expect("free");
    b.stream_destroy(DEV, busy);
    b.stream_destroy(DEV, s);
}

// ---- captures

/// Runs `f` while another thread has a stream in a capture of the strictest mode; true if the capture survives.
fn beside_a_capture(g: &Gpu, f: impl FnOnce()) -> bool {
    g.b.bind(DEV).expect("binds");
    let begun = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicBool::new(false));
    let (b, kernel) = (g.b, g.kernel("empty"));
    let theirs = g.stream();
    let native = b.stream_native(DEV, theirs).expect("a handle") as usize;
    std::thread::scope(|scope| {
        let capture = scope.spawn({
            let (begun, done) = (Arc::clone(&begun), Arc::clone(&done));
            move || {
                let s = native as sys::CUstream;
                // SAFETY: no arguments.
                let none = unsafe { Args::from_caller(std::ptr::null()) };
                // SAFETY: a live stream.
                ok(unsafe {
                    sys::cuStreamBeginCapture_v2(s, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
                });
                b.launch(DEV, theirs, Code::Function(kernel), &ONE, none)
                    .expect("launch into the capture");
                begun.store(true, Ordering::SeqCst);
                while !done.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                let mut graph = null_mut();
                // SAFETY: `graph` is writable; this thread began the capture.
                let ended = unsafe { sys::cuStreamEndCapture(s, &mut graph) };
                if !graph.is_null() {
                    // SAFETY: a live graph of ours.
                    unsafe { sys::cuGraphDestroy(graph) };
                }
                ended == sys::CUresult::CUDA_SUCCESS
            }
        });
        while !begun.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        done.store(true, Ordering::SeqCst);
        let survived = capture.join().expect("the capturing thread");
        g.b.stream_destroy(DEV, theirs);
        if let Err(panic) = caught {
            std::panic::resume_unwind(panic);
        }
        survived
    })
}

#[test]
fn f39_somebodys_capture_in_another_thread_survives_our_calls() {
    let Some(g) = gpu("f39_somebodys_capture_in_another_thread_survives_our_calls") else {
        return;
    };
    let b = g.b;
    let s = g.stream();
    let busy = g.stream();
    let event = b.event_create(DEV, true).expect("an event");
    b.event_record(DEV, event, s).expect("record");
    let p = b.alloc(DEV, 1 << 16).expect("memory");
    let h = b.host_alloc(DEV, 1 << 16).expect("memory");
    let g = &g;
    let cell: Mutex<Vec<Addr>> = Mutex::new(Vec::new());
    let keep = |a: Addr| cell.lock().expect("no panic").push(a);
    let take = || cell.lock().expect("no panic").pop().expect("one kept");
    // (what, must the capture survive, the call)
    type Call<'a> = (&'static str, bool, Box<dyn Fn() + 'a>);
    let calls: Vec<Call<'_>> = vec![
        ("nothing", true, Box::new(|| {})),
        ("stream_idle", true, Box::new(|| assert!(g.idle(s)))),
        (
            "fence_reached",
            true,
            Box::new(|| {
                let mut f = b.fence(DEV, s).expect("a fence");
                while !b.fence_reached(&mut f).expect("an answer") {}
                b.fence_drop(f);
            }),
        ),
        (
            "fence_block",
            true,
            Box::new(|| {
                g.spin(busy, Duration::from_millis(2));
                g.wait(busy);
            }),
        ),
        (
            "fence_block with a limit",
            true,
            Box::new(|| {
                g.spin(busy, Duration::from_millis(2));
                let mut f = b.fence(DEV, busy).expect("a fence");
                while !b
                    .fence_block(&mut f, Some(Duration::from_millis(1)))
                    .expect("an answer")
                {}
                b.fence_drop(f);
            }),
        ),
        (
            "event_state",
            true,
            Box::new(|| assert_eq!(b.event_state(DEV, event).expect("an answer"), EventState::Done)),
        ),
        (
            "event_block",
            true,
            Box::new(|| assert!(b.event_block(DEV, event, None).expect("an answer"))),
        ),
        (
            "event_elapsed",
            true,
            Box::new(|| assert!(b.event_elapsed(DEV, event, event).is_ok())),
        ),
        (
            "event_create and destroy",
            true,
            Box::new(|| b.event_destroy(DEV, b.event_create(DEV, true).expect("an event"))),
        ),
        (
            "stream_create and destroy",
            true,
            Box::new(|| b.stream_destroy(DEV, g.stream())),
        ),
        (
            "launch and fill",
            true,
            Box::new(|| {
                g.add(s, p, 1);
                b.fill(DEV, s, p, &[1, 2, 3, 4, 5, 6, 7, 8], 100).expect("fill");
            }),
        ),
        (
            "memcpy, pinned",
            true,
            Box::new(|| {
                b.memcpy(DEV, s, h, Place::Host, p, Place::Device(DEV), 1 << 16)
                    .expect("copy")
            }),
        ),
        (
            "memcpy, pageable",
            true,
            Box::new(|| assert_eq!(g.read::<u8>(s, p, 9000).len(), 9000)),
        ),
        (
            "alloc",
            true,
            Box::new(|| keep(b.alloc(DEV, 1 << 22).expect("memory"))),
        ),
        ("free", true, Box::new(|| b.free(DEV, take()).expect("free"))),
        (
            "host_alloc",
            true,
            Box::new(|| keep(b.host_alloc(DEV, 1 << 16).expect("memory"))),
        ),
        (
            "host_free",
            true,
            Box::new(|| b.host_free(DEV, take()).expect("free")),
        ),
        (
            "alloc_async and free_async",
            true,
            Box::new(|| {
                let q = b.alloc_async(DEV, s, 1 << 26).expect("memory");
                b.free_async(DEV, s, q).expect("free");
            }),
        ),
        ("trim", true, Box::new(|| b.trim(DEV, 0).expect("trim"))),
        ("memory", true, Box::new(|| assert!(b.memory(DEV).is_ok()))),
        (
            "pointer_facts",
            true,
            Box::new(|| assert!(b.pointer_facts(p).is_some())),
        ),
        (
            "callback",
            true,
            Box::new(|| {
                let (tell, told) = mpsc::channel();
                b.stream_callback(
                    DEV,
                    s,
                    Box::new(move |st| tell.send(st).expect("somebody listens")),
                )
                .expect("callback");
                assert_eq!(told.recv(), Ok(Status::Ok));
            }),
        ),
        (
            "module_load, a kernel, its first launch, unload",
            true,
            Box::new(|| {
                let m = b.module_load(DEV, PTX.as_bytes()).expect("a module");
                let f = b.module_function(DEV, m, "empty").expect("a kernel");
                // SAFETY: no arguments.
                let none = unsafe { Args::from_caller(std::ptr::null()) };
                b.launch(DEV, s, Code::Function(f), &ONE, none).expect("launch");
                g.wait(s);
                b.module_destroy(DEV, m);
            }),
        ),
        (
            "device_synchronize",
            false,
            Box::new(|| {
                let r = b.device_synchronize(DEV);
                say(&format!("  device_synchronize beside a capture: {:?}", status(r)));
            }),
        ),
    ];
    let mut broken = Vec::new();
    for (what, must, f) in &calls {
        let survived = beside_a_capture(g, f);
        if !survived {
            say(&format!("beside a capture: {what} ENDS it"));
        }
        if *must && !survived {
            broken.push(*what);
        }
    }
    assert!(
        broken.is_empty(),
        "these calls destroyed a capture in another thread: {broken:?}"
    );
    g.wait(s);
    b.event_destroy(DEV, event);
    let _ = b.free(DEV, p);
    b.host_free(DEV, h).expect("free");
    b.stream_destroy(DEV, s);
    b.stream_destroy(DEV, busy);
}

#[test]
fn a_stream_in_a_capture_answers_capturing_and_the_capture_survives() {
    let Some(g) = gpu("a_stream_in_a_capture_answers_capturing_and_the_capture_survives") else {
        return;
    };
    let b = g.b;
    b.bind(DEV).expect("binds");
    let s = g.stream();
    let native: sys::CUstream = b.stream_native(DEV, s).expect("a handle").cast();
    let event = b.event_create(DEV, false).expect("an event");
    let mut before = b.fence(DEV, s).expect("a fence of before");
    // SAFETY: a live stream.
    ok(unsafe {
        sys::cuStreamBeginCapture_v2(native, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
    });
    assert!(b.stream_capturing(DEV, s).expect("an answer"));
    g.run(s, "empty", ONE, &mut []).expect("launch into the capture");
    assert_eq!(status(b.stream_idle(DEV, s)), Status::Capturing);
    assert_eq!(status(b.fence(DEV, s)), Status::Capturing);
    assert_eq!(status(b.fence_reached(&mut before)), Status::Capturing);
    assert_eq!(status(b.fence_block(&mut before, None)), Status::Capturing);
    assert_eq!(
        status(b.fence_block(&mut before, Some(Duration::from_millis(1)))),
        Status::Capturing
    );
    let ran = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ran);
    let refused = b.stream_callback(DEV, s, Box::new(move |_| seen.store(true, Ordering::SeqCst)));
    assert_eq!(status(refused), Status::Capturing);
    // Recording is what a capture is made of; asking about that record is not.
    b.event_record(DEV, event, s).expect("record into the capture");
    assert_eq!(status(b.event_state(DEV, event)), Status::Capturing);
    assert_eq!(status(b.event_block(DEV, event, None)), Status::Capturing);
    let mut graph = null_mut();
    // SAFETY: `graph` is writable; this thread began the capture.
    ok(unsafe { sys::cuStreamEndCapture(native, &mut graph) });
    let mut run = null_mut();
    // SAFETY: the graph is complete and destroyed last.
    unsafe {
        ok(sys::cuGraphInstantiateWithFlags(&mut run, graph, 0));
        ok(sys::cuGraphLaunch(run, native));
    }
    g.wait(s);
    assert!(!b.stream_capturing(DEV, s).expect("an answer"));
    assert!(!ran.load(Ordering::SeqCst), "a refused callback ran");
    b.event_record(DEV, event, s).expect("record");
    assert!(
        b.event_block(DEV, event, None).expect("reached"),
        "the event is usable again"
    );
    b.fence_drop(before);
    // SAFETY: nobody uses them any more.
    unsafe {
        ok(sys::cuGraphExecDestroy(run));
        ok(sys::cuGraphDestroy(graph));
    }
    b.event_destroy(DEV, event);
    b.stream_destroy(DEV, s);
}

// ---- faults, fork, exit: each in a process of its own

fn lost(e: &Error) -> bool {
    e.status() == Status::DeviceLost
}

#[test]
fn f25_a_fault_ends_every_wait_and_fires_every_callback() {
    let name = "f25_a_fault_ends_every_wait_and_fires_every_callback";
    if !is_child(name) {
        if backend(name).is_some() {
            must_pass(&in_a_child(name));
        }
        return;
    }
    let g = gpu(name).expect("a device");
    let g = &g;
    let b = g.b;
    let (guilty, innocent) = (g.stream(), g.stream());
    let event = b.event_create(DEV, false).expect("an event");
    let memory = b.alloc(DEV, 4096).expect("memory");
    let counts: Vec<Arc<AtomicU32>> = (0..3).map(|_| Arc::default()).collect();
    let (tell, told) = mpsc::channel();
    let callback = |s: RawStream, i: usize| {
        let (count, tell) = (Arc::clone(&counts[i]), tell.clone());
        let f = Box::new(move |st| {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = tell.send((i, st));
        });
        b.stream_callback(DEV, s, f)
    };
    g.kernel("fault");
    g.kernel("spin");
    callback(innocent, 0).expect("a callback before anything");
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok((0, Status::Ok)));
    g.spin(guilty, Duration::from_millis(100));
    g.run(guilty, "fault", ONE, &mut []).expect("launch");
    b.event_record(DEV, event, guilty).expect("record");
    callback(guilty, 1).expect("a callback behind the fault");
    g.spin(innocent, Duration::from_millis(300));
    callback(innocent, 2).expect("a callback on another stream");
    std::thread::scope(|scope| {
        let waits: Vec<(&str, std::thread::ScopedJoinHandle<'_, Error>)> = vec![
            (
                "fence_block for ever",
                scope.spawn(move || {
                    let mut f = b.fence(DEV, guilty).expect("a fence");
                    let e = b.fence_block(&mut f, None).expect_err("a fault");
                    b.fence_drop(f);
                    e
                }),
            ),
            (
                "fence_block with a limit",
                scope.spawn(move || {
                    let mut f = b.fence(DEV, guilty).expect("a fence");
                    b.fence_block(&mut f, Some(Duration::from_secs(30)))
                        .expect_err("a fault")
                }),
            ),
            (
                "polling",
                scope.spawn(move || {
                    let mut f = b.fence(DEV, guilty).expect("a fence");
                    loop {
                        match b.fence_reached(&mut f) {
                            Ok(false) => std::thread::yield_now(),
                            Ok(true) => panic!("the fence was reached"),
                            Err(e) => break e,
                        }
                    }
                }),
            ),
            (
                "event_block for ever",
                scope.spawn(move || b.event_block(DEV, event, None).expect_err("a fault")),
            ),
            (
                "event_block with a limit",
                scope.spawn(move || {
                    b.event_block(DEV, event, Some(Duration::from_secs(30)))
                        .expect_err("a fault")
                }),
            ),
        ];
        for (what, handle) in waits {
            let e = handle.join().expect("no panic");
            println!("{what}: {e}");
            assert!(lost(&e), "{what}: {e}");
            assert!(e.to_string().contains("illegal memory access"), "{what}: {e}");
        }
    });
    for _ in 0..2 {
        let (i, st) = told
            .recv_timeout(Duration::from_secs(20))
            .expect("every callback fires");
        println!("callback {i}: {st:?}");
        assert!(i == 2 || st == Status::DeviceLost);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(
        counts.iter().all(|c| c.load(Ordering::SeqCst) == 1),
        "a callback fired twice: {counts:?}"
    );
    // From here on everything that needs the device says so, and nothing hangs or crashes.
    let refused = Arc::new(AtomicBool::new(false));
    let again = b.stream_callback(
        DEV,
        innocent,
        Box::new({
            let refused = Arc::clone(&refused);
            move |_| refused.store(true, Ordering::SeqCst)
        }),
    );
    for (what, r) in [
        ("alloc", b.alloc(DEV, 16).map(drop)),
        ("alloc_async", b.alloc_async(DEV, innocent, 16).map(drop)),
        (
            "stream_create",
            b.stream_create(DEV, StreamSpec::default()).map(drop),
        ),
        ("event_create", b.event_create(DEV, true).map(drop)),
        ("launch", g.run(innocent, "fault", ONE, &mut [])),
        ("fill", b.fill(DEV, innocent, memory, &[1], 16)),
        ("memory", b.memory(DEV).map(drop)),
        ("device_synchronize", b.device_synchronize(DEV)),
        ("stream_idle", b.stream_idle(DEV, innocent).map(drop)),
        ("event_record", b.event_record(DEV, event, innocent)),
        ("event_state", b.event_state(DEV, event).map(drop)),
        ("free", b.free(DEV, memory)),
        ("callback", again),
    ] {
        match r {
            Ok(()) => panic!("{what} works on a lost device"),
            Err(e) => {
                println!("{what}: {e}");
                assert!(lost(&e), "{what}: {e}");
            }
        }
    }
    assert!(
        !refused.load(Ordering::SeqCst),
        "a callback was refused and called"
    );
    b.event_destroy(DEV, event);
    b.stream_destroy(DEV, guilty);
    b.stream_destroy(DEV, innocent);
    println!("CHILD DONE");
}

#[test]
fn f10_the_parent_goes_on_after_a_fork() {
    let name = "f10_the_parent_goes_on_after_a_fork";
    if !is_child(name) {
        if backend(name).is_some() {
            must_pass(&in_a_child(name));
        }
        return;
    }
    let g = gpu(name).expect("a device");
    assert!(g.b.fork_unsafe());
    let s = g.stream();
    g.spin(s, Duration::from_millis(50));
    // SAFETY: the child calls nothing but `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!g.b.fork_unsafe())) };
    }
    let mut ended = -1;
    // SAFETY: `ended` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut ended, 0) }, child);
    assert_eq!(ended, 0);
    g.wait(s);
    g.b.stream_destroy(DEV, s);
    println!("CHILD DONE");
}

#[test]
fn f16_exit_with_work_queued_is_clean() {
    let name = "f16_exit_with_work_queued_is_clean";
    if !is_child(name) {
        if backend(name).is_some() {
            must_pass(&in_a_child(name));
        }
        return;
    }
    let g = gpu(name).expect("a device");
    let s = g.stream();
    g.spin(s, Duration::from_millis(200));
    g.b.alloc_async(DEV, s, 1 << 20).expect("memory");
    g.b.stream_callback(DEV, s, Box::new(|_| {})).expect("a callback");
    g.b.event_record(DEV, g.b.event_create(DEV, true).expect("an event"), s)
        .expect("record");
    println!("CHILD DONE");
    std::mem::forget(g);
    std::process::exit(0);
}

// ---- figures, on request: `cuda_backend --ignored --nocapture figures`

#[test]
#[ignore = "prints figures"]
fn figures() {
    let Some(g) = gpu("figures") else { return };
    let b = g.b;
    println!("{} at {}", b.version(), b.path());
    println!("{:?}", b.device_info(DEV).expect("an answer"));
    let s = g.stream();
    let native: sys::CUstream = b.stream_native(DEV, s).expect("a handle").cast();
    fn per(n: u32, mut f: impl FnMut()) -> String {
        for _ in 0..n / 10 + 1 {
            f();
        }
        let mut v: Vec<f64> = (0..7)
            .map(|_| {
                let t = Instant::now();
                for _ in 0..n {
                    f();
                }
                t.elapsed().as_secs_f64() / f64::from(n) * 1e9
            })
            .collect();
        v.sort_by(f64::total_cmp);
        format!("{:10.1} ns   ({:.1} .. {:.1})", v[3], v[0], v[6])
    }
    let show = |what: &str, text: String| println!("{what:<56} {text}");
    // SAFETY: raw calls on live objects, for comparison.
    unsafe {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut least, mut greatest) = (0, 0);
                println!(
                    "no context current: cuCtxGetStreamPriorityRange answers {:?} {least} {greatest}",
                    sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest)
                );
                let mut p = 0;
                println!(
                    "no context current: cuMemAllocAsync on a stream answers {:?}",
                    sys::cuMemAllocAsync(&mut p, 64, b.stream_native(DEV, s).expect("a handle").cast())
                );
                println!(
                    "no context current: cuMemFreeAsync answers {:?}",
                    sys::cuMemFreeAsync(p, b.stream_native(DEV, s).expect("a handle").cast())
                );
                let mut e = null_mut();
                println!(
                    "no context current: cuEventCreate answers {:?}",
                    sys::cuEventCreate(&mut e, 2)
                );
            });
        });
        let mut pool = null_mut();
        ok(sys::cuDeviceGetDefaultMemPool(&mut pool, 0));
        let mut keep = u64::MAX;
        ok(sys::cuMemPoolSetAttribute(
            pool,
            sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut keep).cast(),
        ));
        for round in ["no context current", "primary context current"] {
            println!("-- {round}");
            let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            show(
                "cuThreadExchangeStreamCaptureMode",
                per(100_000, || ok(sys::cuThreadExchangeStreamCaptureMode(&mut mode))),
            );
            let mut cap = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            show(
                "cuStreamIsCapturing",
                per(100_000, || ok(sys::cuStreamIsCapturing(native, &mut cap))),
            );
            show(
                "cuStreamQuery (idle)",
                per(100_000, || ok(sys::cuStreamQuery(native))),
            );
            let mut fence = b.fence(DEV, s).expect("a fence");
            show(
                "ours: fence",
                per(100_000, || b.fence_drop(b.fence(DEV, s).expect("a fence"))),
            );
            show(
                "ours: fence_reached (idle)",
                per(100_000, || {
                    assert!(b.fence_reached(&mut fence).expect("an answer"))
                }),
            );
            let e = b.event_create(DEV, false).expect("an event");
            let ne: sys::CUevent = b.event_native(DEV, e).expect("a handle").cast();
            b.event_record(DEV, e, s).expect("record");
            g.wait(s);
            show("cuEventQuery (done)", per(100_000, || ok(sys::cuEventQuery(ne))));
            show(
                "ours: event_state (done)",
                per(100_000, || {
                    assert_eq!(b.event_state(DEV, e).expect("an answer"), EventState::Done)
                }),
            );
            show("cuEventRecord", per(5_000, || ok(sys::cuEventRecord(ne, native))));
            g.wait(s);
            show(
                "ours: event_record",
                per(5_000, || b.event_record(DEV, e, s).expect("record")),
            );
            g.wait(s);
            show(
                "cuMemAllocAsync + cuMemFreeAsync 4 KiB",
                per(5_000, || {
                    let mut p = 0;
                    if sys::cuMemAllocFromPoolAsync(&mut p, 4096, pool, native) == sys::CUresult::CUDA_SUCCESS
                    {
                        ok(sys::cuMemFreeAsync(p, native));
                    }
                }),
            );
            g.wait(s);
            show(
                "ours: alloc_async + free_async 4 KiB",
                per(5_000, || {
                    let p = b.alloc_async(DEV, s, 4096).expect("memory");
                    b.free_async(DEV, s, p).expect("free");
                }),
            );
            g.wait(s);
            show(
                "ours: stream_create + destroy",
                per(300, || b.stream_destroy(DEV, g.stream())),
            );
            show(
                "ours: event_create + destroy",
                per(3000, || {
                    b.event_destroy(DEV, b.event_create(DEV, false).expect("an event"))
                }),
            );
            b.event_destroy(DEV, e);
            b.bind(DEV).expect("binds");
        }
        let mut module = null_mut();
        let image = std::ffi::CString::new(PTX).expect("no NUL");
        ok(sys::cuModuleLoadData(&mut module, image.as_ptr().cast()));
        let mut raw = null_mut();
        ok(sys::cuModuleGetFunction(&mut raw, module, c"add".as_ptr()));
        let f = Code::Function(g.kernel("add"));
        let p = b.alloc(DEV, 4).expect("memory");
        let (at, by) = (p.value(), 1u32);
        let list: &mut [*mut c_void] = args![at, by];
        let raw_launch = |list: &mut [*mut c_void]| {
            ok(sys::cuLaunchKernel(
                raw,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                native,
                list.as_mut_ptr(),
                null_mut(),
            ))
        };
        let our_launch = |list: &mut [*mut c_void]| {
            b.launch(DEV, s, f, &ONE, Args::from_caller(list.as_ptr()))
                .expect("launch")
        };
        for _ in 0..3 {
            // Host time alone: bursts that fit the queue, each drained outside the clock.
            for (what, launch) in [
                (
                    "cuLaunchKernel, host time in bursts of 200",
                    &raw_launch as &dyn Fn(&mut [*mut c_void]),
                ),
                ("ours: launch, host time in bursts of 200", &our_launch),
            ] {
                let mut v = Vec::new();
                for _ in 0..301 {
                    let t = Instant::now();
                    for _ in 0..200 {
                        launch(list);
                    }
                    v.push(t.elapsed().as_secs_f64() / 200.0 * 1e9);
                    ok(sys::cuStreamSynchronize(native));
                }
                v.sort_by(f64::total_cmp);
                show(
                    what,
                    format!("{:10.1} ns   ({:.1} .. {:.1})", v[150], v[15], v[285]),
                );
            }
        }
        show(
            "launch + cuStreamQuery spin",
            per(3_000, || {
                raw_launch(list);
                while sys::cuStreamQuery(native) != sys::CUresult::CUDA_SUCCESS {}
            }),
        );
        show(
            "ours: launch + fence_reached spin",
            per(3_000, || {
                our_launch(list);
                let mut fence = b.fence(DEV, s).expect("a fence");
                while !b.fence_reached(&mut fence).expect("an answer") {}
                b.fence_drop(fence);
            }),
        );
        show(
            "ours: launch + fence_block",
            per(1_000, || {
                our_launch(list);
                g.wait(s);
            }),
        );
        static DONE: AtomicBool = AtomicBool::new(false);
        unsafe extern "C" fn set(_: *mut c_void) {
            DONE.store(true, Ordering::Release);
        }
        unsafe extern "C" fn set_old(_: sys::CUstream, _: sys::CUresult, _: *mut c_void) {
            DONE.store(true, Ordering::Release);
        }
        let round = |queue: &dyn Fn()| {
            per(1_000, || {
                DONE.store(false, Ordering::Release);
                raw_launch(&mut [
                    (&raw const at).cast_mut().cast(),
                    (&raw const by).cast_mut().cast(),
                ]);
                queue();
                while !DONE.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            })
        };
        for _ in 0..3 {
            show(
                "launch + cuLaunchHostFunc round trip",
                round(&|| ok(sys::cuLaunchHostFunc(native, Some(set), null_mut()))),
            );
            show(
                "launch + cuStreamAddCallback round trip",
                round(&|| ok(sys::cuStreamAddCallback(native, Some(set_old), null_mut(), 0))),
            );
            show(
                "launch + our callback round trip",
                round(&|| {
                    b.stream_callback(DEV, s, Box::new(|_| DONE.store(true, Ordering::Release)))
                        .expect("callback")
                }),
            );
        }
        b.free(DEV, p).expect("free");
        ok(sys::cuModuleUnload(module));
    }
    b.stream_destroy(DEV, s);
}
