//! Devices that fail while they work, and what becomes of those who wait for them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::Device;
use crate::entry::Hip;
use crate::ffi::{hipStreamCallback_t, hipStream_t, hipSuccess};
use crate::runtime::answer;
use crate::script::Form;

/// How long a wait lasts before it looks whether the device has failed.
const SLICE: Duration = Duration::from_millis(1);
/// Callbacks on the books before those that were called are taken off.
const MANY: usize = 256;

/// Whether and how a device has failed.
#[derive(Default)]
pub struct Failure {
    code: AtomicI32,
    silent: AtomicBool,
    callbacks: Mutex<Vec<Arc<Queued>>>,
}

/// A callback that waits for its stream: called by the stream or, if the device fails before, because of that.
pub struct Queued(Mutex<Option<Waiting>>);

struct Waiting {
    function: hipStreamCallback_t,
    stream: hipStream_t,
    data: *mut c_void,
}

// SAFETY: the caller hands function, stream and data over to be used on a thread of ours.
unsafe impl Send for Waiting {}

impl Queued {
    /// The code is success in any case, as the vendor's is.
    fn call(&self) {
        let waiting = self.0.lock().take();
        if let Some(Waiting {
            function,
            stream,
            data,
        }) = waiting
        {
            // SAFETY: the caller of hipStreamAddCallback vouches for it; it is called once.
            unsafe { function(stream, hipSuccess, data) };
        }
    }
}

impl Failure {
    /// The code, if the device has failed.
    pub fn check(&self) -> Hip<()> {
        match self.code.load(Ordering::Acquire) {
            hipSuccess => Ok(()),
            code => Err(code),
        }
    }

    pub fn has_failed(&self) -> bool {
        self.check().is_err()
    }

    /// The device fails now.
    pub fn strike(&'static self, form: Form) {
        let Form::Reported { code, silent } = form else {
            std::process::abort();
        };
        self.silent.store(silent, Ordering::Release);
        self.code.store(code, Ordering::Release);
        let waiting = std::mem::take(&mut *self.callbacks.lock());
        if !silent {
            // On a thread of their own: they may wait for what the calling one does next.
            std::thread::spawn(move || waiting.iter().for_each(|queued| queued.call()));
        }
    }

    /// Puts a callback on the books, and answers what its stream shall do when it gets there.
    pub fn expect(
        &'static self,
        function: hipStreamCallback_t,
        stream: hipStream_t,
        data: *mut c_void,
    ) -> (Arc<Queued>, impl FnOnce() + Send) {
        let waiting = Waiting {
            function,
            stream,
            data,
        };
        let queued = Arc::new(Queued(Mutex::new(Some(waiting))));
        let mut all = self.callbacks.lock();
        if all.len() >= MANY {
            all.retain(|other| other.0.lock().is_some());
        }
        all.push(Arc::clone(&queued));
        let ours = Arc::clone(&queued);
        let call = move || {
            if !(self.has_failed() && self.silent.load(Ordering::Acquire)) {
                ours.call();
            }
        };
        (queued, call)
    }

    /// Takes a callback back that could not be queued.
    pub fn take_back(&self, queued: &Arc<Queued>) {
        queued.0.lock().take();
        self.callbacks.lock().retain(|other| !Arc::ptr_eq(other, queued));
    }
}

/// Waits with `block` until that says yes, or the device fails.
pub fn wait(device: &Device, mut block: impl FnMut(Duration) -> taskgpu::backend::Result<bool>) -> Hip<()> {
    loop {
        device.failure.check()?;
        if answer(block(SLICE))? {
            return device.failure.check();
        }
    }
}
