//! Threads of a block that wait for each other: coroutines, one for each, run in turn by the worker.

use corosensei::stack::{Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::RefCell;
use std::ffi::c_void;

/// Bytes of a thread's stack, of which only what is used takes memory.
const STACK_BYTES: usize = 256 << 10;
const PAGE: usize = 4096;

/// What kernels built from source may call. `taskgpu::runtime` in `source/prelude.h`.
#[repr(C)]
pub struct Runtime {
    run: unsafe extern "C-unwind" fn(u32, ThreadFn, *mut c_void),
    barrier: unsafe extern "C-unwind" fn(*const c_void),
}

type ThreadFn = unsafe extern "C-unwind" fn(job: *mut c_void, at: u32, this: *const c_void);

/// The one there is.
pub static RUNTIME: Runtime = Runtime { run, barrier };

/// Memory of a stack, with a page below it that cannot be touched.
struct ThreadStack(usize);

impl ThreadStack {
    fn new() -> ThreadStack {
        // SAFETY: a mapping of its own.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                STACK_BYTES + PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK,
                -1,
                0,
            )
        };
        if p == libc::MAP_FAILED {
            // The block is under way, and nobody can be told.
            eprintln!("taskgpu: no memory for the stack of a thread that waits at a barrier");
            std::process::abort();
        }
        // SAFETY: the lowest page of the mapping. Where the system has no more mappings to give, it stays as it is.
        unsafe { libc::mprotect(p, PAGE, libc::PROT_NONE) };
        ThreadStack(p as usize)
    }
}

// SAFETY: the memory is ours until the end of the process, aligned to pages, and ends in a guard page.
unsafe impl Stack for ThreadStack {
    fn base(&self) -> StackPointer {
        StackPointer::new(self.0 + PAGE + STACK_BYTES).expect("a mapping is not at 0")
    }

    fn limit(&self) -> StackPointer {
        StackPointer::new(self.0).expect("a mapping is not at 0")
    }
}

impl Drop for ThreadStack {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing runs on it any more.
        unsafe { libc::munmap(self.0 as *mut c_void, STACK_BYTES + PAGE) };
    }
}

thread_local! {
    /// Stacks that no thread runs on.
    static IDLE: RefCell<Vec<ThreadStack>> = const { RefCell::new(Vec::new()) };
}

type Thread = Coroutine<(), (), (), ThreadStack>;

/// Calls `thread(job, i, this)` for each i below `count`.
///
/// # Safety
/// As the prelude does it: the function may be called with `job`, and its caller's frames hold nothing to be dropped.
unsafe extern "C-unwind" fn run(count: u32, thread: ThreadFn, job: *mut c_void) {
    let mut idle = IDLE.take();
    let mut waiting: Vec<Thread> = Vec::with_capacity(count as usize);
    for at in 0..count {
        let stack = idle.pop().unwrap_or_else(ThreadStack::new);
        let mut one: Thread = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            // SAFETY: the caller's promise.
            unsafe { thread(job, at, (&raw const *yielder).cast()) };
        });
        match one.resume(()) {
            CoroutineResult::Yield(()) => waiting.push(one),
            // A thread that never waits leaves its stack to the next one.
            CoroutineResult::Return(()) => idle.push(one.into_stack()),
        }
    }
    while !waiting.is_empty() {
        let mut ended = false;
        for one in &mut waiting {
            ended |= matches!(one.resume(()), CoroutineResult::Return(()));
        }
        if ended {
            for i in (0..waiting.len()).rev() {
                if waiting[i].done() {
                    // The order of the others stays.
                    idle.push(waiting.remove(i).into_stack());
                }
            }
        }
    }
    IDLE.set(idle);
}

/// Lets the other threads of the block come as far.
///
/// # Safety
/// `this` is what `run` gave the calling thread.
unsafe extern "C-unwind" fn barrier(this: *const c_void) {
    // SAFETY: the caller's promise; the yielder lives as long as its thread.
    unsafe { &*this.cast::<Yielder<(), ()>>() }.suspend(());
}
