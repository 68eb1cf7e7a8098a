//! A stream that was destroyed still runs what it holds, and memory that this may use is not freed before.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use taskgpu::backend::{Args, HostBlock, HostKernel, Shape, StreamSpec};
use taskgpu::core::{device, kernel, launch, memory, stream};

/// 0: the kernel has not begun, 1: it runs, 2: it shall end.
static STATE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn run_until_told(_: *const HostBlock, _: *const *mut c_void, _: *mut c_void) {
    STATE.store(1, Ordering::SeqCst);
    while STATE.load(Ordering::SeqCst) != 2 {
        std::thread::yield_now();
    }
}

#[test]
fn deferred_frees_wait_for_the_work_of_destroyed_streams() {
    std::env::set_var("TASKGPU_BACKENDS", "host");
    // SAFETY: the function and its arguments (none) are valid for the whole test.
    let (slow, none) = unsafe {
        let kernel = HostKernel::from_caller(run_until_told, std::ptr::null_mut(), &[]);
        (
            kernel::from_host(kernel).unwrap(),
            Args::from_caller(std::ptr::null()),
        )
    };
    let stream = stream::create(StreamSpec::default()).unwrap();
    let (before, _) = device::memory(0).unwrap();
    let device = memory::malloc(1 << 20).unwrap();
    let pinned = memory::host_malloc(1 << 20).unwrap();
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
    };
    launch::launch(slow, stream, &shape, none).unwrap();
    while STATE.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    stream::destroy(stream).unwrap();
    memory::free_deferred(device).unwrap();
    memory::host_free(pinned).unwrap();
    // Time for the reaper to look many times; a free that comes too early is seen here.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(100) {
        assert!(
            device::memory(0).unwrap().0 < before,
            "freed while a kernel may still use it"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    STATE.store(2, Ordering::SeqCst);
    let start = Instant::now();
    while device::memory(0).unwrap().0 != before {
        assert!(start.elapsed() < Duration::from_secs(60), "never freed");
        std::thread::sleep(Duration::from_millis(1));
    }
}
