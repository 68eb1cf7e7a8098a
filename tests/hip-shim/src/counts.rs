//! What tests can ask about: calls, contexts, objects that live.

use std::ffi::{c_char, c_long, CStr};
use std::sync::atomic::{AtomicI64, Ordering};

use crate::entry::Function;
use crate::runtime::runtime;

/// A number that goes up and down.
pub struct Count(AtomicI64);

impl Count {
    pub const fn new() -> Count {
        Count(AtomicI64::new(0))
    }

    pub fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Streams that were created and not destroyed.
pub static STREAMS: Count = Count::new();
/// Events.
pub static EVENTS: Count = Count::new();
/// Modules that were loaded and not unloaded.
pub static MODULES: Count = Count::new();
/// Device memory that was allocated and not freed.
pub static ALLOCATIONS: Count = Count::new();
/// The same of pinned host memory.
pub static PINNED: Count = Count::new();
/// Host memory of callers that is registered.
pub static REGISTERED: Count = Count::new();
/// Memory pools.
pub static POOLS: Count = Count::new();
/// Markers that queries have put on streams.
pub static MARKERS: Count = Count::new();
/// Operations that became part of a capture.
pub static CAPTURED: Count = Count::new();
/// Captures that some call has spoilt.
pub static SPOILT: Count = Count::new();
/// Modules unloaded while their kernels ran or were queued.
pub static UNLOADED_IN_USE: Count = Count::new();
/// Times that pools gave memory back to the system because of their threshold.
pub static POOL_RELEASES: Count = Count::new();

static COUNTS: &[(&str, &Count)] = &[
    ("streams", &STREAMS),
    ("events", &EVENTS),
    ("modules", &MODULES),
    ("allocations", &ALLOCATIONS),
    ("pinned", &PINNED),
    ("registered", &REGISTERED),
    ("pools", &POOLS),
    ("markers", &MARKERS),
    ("captured", &CAPTURED),
    ("spoilt", &SPOILT),
    ("unloaded in use", &UNLOADED_IN_USE),
    ("pool releases", &POOL_RELEASES),
];

fn functions() -> impl Iterator<Item = &'static &'static Function> {
    [
        crate::capture::FUNCTIONS,
        crate::device::FUNCTIONS,
        crate::error::FUNCTIONS,
        crate::event::FUNCTIONS,
        crate::memory::FUNCTIONS,
        crate::module::FUNCTIONS,
        crate::pool::FUNCTIONS,
        crate::rtc::FUNCTIONS,
        crate::stream::FUNCTIONS,
        crate::stream::numbers::FUNCTIONS,
        crate::wait::FUNCTIONS,
    ]
    .into_iter()
    .flatten()
}

/// The exported function of that name.
pub fn function(name: &str) -> Option<&'static Function> {
    functions().copied().find(|function| function.name == name)
}

fn count(what: &str) -> Option<i64> {
    let devices = || runtime().devices.iter();
    if let Some(ordinal) = what.strip_prefix("context ") {
        let device = runtime().devices.get(ordinal.parse::<usize>().ok()?)?;
        return Some(i64::from(device.has_context()));
    }
    match what {
        "calls" => Some(functions().map(|function| function.calls() as i64).sum()),
        "contexts" => Some(devices().filter(|device| device.has_context()).count() as i64),
        _ => match COUNTS.iter().find(|(name, _)| *name == what) {
            Some((_, count)) => Some(count.get()),
            None => function(what).map(|function| function.calls() as i64),
        },
    }
}

/// A number that tests look at: `"calls"` of all functions; the calls of one, by its name; `"contexts"` that exist;
/// `"context N"`, whether device N has one; and the names of the list above. -1 for what is none of them.
///
/// # Safety
/// `what` is a text that ends with NUL.
#[no_mangle]
pub unsafe extern "C" fn hip_shim_count(what: *const c_char) -> c_long {
    // SAFETY: the caller's promise.
    let what = unsafe { CStr::from_ptr(what) };
    what.to_str().ok().and_then(count).unwrap_or(-1)
}
