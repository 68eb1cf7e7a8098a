//! Streams that wait for a number in memory. A thread looks at the numbers, and opens the gates that hold the streams.

use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use taskgpu::backend::Gate;

use crate::device::Device;
use crate::entry::Hip;
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::runtime::runtime;
use crate::stream;

/// How long the thread naps between two looks.
const NAP: Duration = Duration::from_micros(50);

/// One number that is waited for.
struct Watch {
    device: &'static Device,
    at: *const AtomicU32,
    value: u32,
    mask: u32,
    gate: Gate,
}

// SAFETY: the number is memory that all threads may read, and it is read atomically.
unsafe impl Send for Watch {}

impl Watch {
    /// True when the wait is over; also when the device is.
    fn is_over(&self) -> bool {
        // SAFETY: the caller keeps the memory until the stream has gone past.
        let now = unsafe { &*self.at }.load(Ordering::Acquire);
        (now & self.mask).wrapping_sub(self.value) as i32 >= 0 || self.device.failure.has_failed()
    }
}

static WATCHES: Mutex<Vec<Watch>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();

fn look() {
    loop {
        let mut watches = WATCHES.lock();
        while watches.is_empty() {
            MORE.wait(&mut watches);
        }
        let (over, pending) = watches.drain(..).partition(Watch::is_over);
        *watches = pending;
        drop(watches);
        let over: Vec<Watch> = over;
        over.into_iter().for_each(|watch| watch.gate.open());
        std::thread::sleep(NAP);
    }
}

fn watch(watch: Watch) {
    static THREAD: OnceLock<()> = OnceLock::new();
    THREAD.get_or_init(|| {
        std::thread::spawn(look);
    });
    WATCHES.lock().push(watch);
    MORE.notify_one();
}

fn word(at: *mut c_void) -> Hip<*const AtomicU32> {
    match at.is_null() || at as usize % align_of::<AtomicU32>() != 0 {
        true => Err(hipErrorInvalidValue),
        false => Ok(at.cast_const().cast()),
    }
}

entries! {
    /// Later work of the stream waits until the number is at least the value.
    fn hipStreamWaitValue32(call, handle: hipStream_t, at: *mut c_void, value: u32, flags: c_uint, mask: u32) {
        if flags != hipStreamWaitValueGte {
            return Err(hipErrorNotSupported);
        }
        let (stream, at) = (stream::find(handle)?, word(at)?);
        let device = stream.device;
        stream.queue(|| {
            let arrange = |gate| {
                watch(Watch { device, at, value, mask, gate });
                Ok(())
            };
            runtime().backend.stream_gate(device.ordinal, stream.raw, Box::new(arrange))
        })
    }
}
