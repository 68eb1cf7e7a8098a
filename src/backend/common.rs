//! What the backends of vendors have in common: how raw streams are numbered, what a queued callback holds, how long a nap
//! is, and what they refuse in the same words.

use std::collections::HashMap;
use std::ffi::CString;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Callback, Error, Place, RawStream, Result, Status};

// ---- Raw streams. One is the vendor's handle itself, so that a launch has nothing to look up. Two kinds differ: an imported
// one carries a mark in bits that a vendor pointer has 0, and a device's legacy stream, which the vendor calls the same on
// every device, is a small number made of the device.

/// Bits that are 0 in a pointer of the vendor's.
pub(super) const TAG_BITS: u64 = 7;
const TAG_IMPORTED: u64 = 2;
/// Below it no pointer lies: these numbers are legacy streams.
pub(super) const FIRST_POINTER: u64 = 0x1_0000;
/// `cudaStreamLegacy` and `hipStreamLegacy`. So is NULL.
pub(super) const STREAM_LEGACY: u64 = 1;
/// `cudaStreamPerThread` and `hipStreamPerThread`.
pub(super) const STREAM_PER_THREAD: u64 = 2;

/// The raw stream of a device's legacy stream.
pub(super) fn legacy(ordinal: u32) -> RawStream {
    RawStream((u64::from(ordinal) << 4) | STREAM_LEGACY)
}

/// True for a device's legacy stream, which vendor calls find through what is current on the thread.
#[inline]
pub(super) fn is_legacy(stream: RawStream) -> bool {
    stream.0 < FIRST_POINTER
}

/// The raw stream of somebody else's stream.
pub(super) fn imported(handle: u64) -> RawStream {
    RawStream(handle | TAG_IMPORTED)
}

/// True for a stream that is ours to destroy.
pub(super) fn is_own(stream: RawStream) -> bool {
    !is_legacy(stream) && stream.0 & TAG_BITS == 0
}

/// The vendor's handle of a stream that is not a legacy one.
#[inline]
pub(super) fn handle(stream: RawStream) -> u64 {
    stream.0 & !TAG_BITS
}

/// What a handle to be imported is; refuses what none can be.
pub(super) fn importable(value: u64, vendor: &str) -> Result<Importable> {
    match value {
        0 | STREAM_LEGACY => Ok(Importable::Legacy),
        STREAM_PER_THREAD => Err(Error::new(
            Status::InvalidArgument,
            "the per-thread default stream (2) is another stream on every thread and cannot be imported",
        )),
        _ if value < FIRST_POINTER || value & TAG_BITS != 0 => Err(Error::new(
            Status::InvalidArgument,
            format!("{value:#x} is no {vendor} stream"),
        )),
        _ => Ok(Importable::Stream),
    }
}

/// A vendor's handle that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Importable {
    /// The device's legacy stream.
    Legacy,
    /// A pointer of the vendor's.
    Stream,
}

/// The refusal to put work of ours into somebody's capture.
#[cold]
pub(super) fn in_capture(what: &str) -> Error {
    Error::new(
        Status::Capturing,
        format!("the stream is being captured: {what} would end the capture or become part of it"),
    )
}

/// What a queued callback holds. Two owners: the vendor and the call that queues it, which may have to take it back.
pub(super) struct Queued(Mutex<Option<Callback>>);

impl Queued {
    pub(super) fn new(callback: Callback) -> Arc<Queued> {
        Arc::new(Queued(Mutex::new(Some(callback))))
    }

    /// The callback, for whoever comes first.
    pub(super) fn take(&self) -> Option<Callback> {
        self.0.lock().take()
    }

    /// Calls it, unless it was taken.
    pub(super) fn run(&self, status: Status) {
        if let Some(callback) = self.take() {
            // A panic must not cross into the vendor's code; whoever made the callback has its own way to report it.
            let _ = catch_unwind(AssertUnwindSafe(move || callback(status)));
        }
    }
}

/// How long to sleep between two questions whether something has happened: a sixteenth of the time waited so far.
pub(super) fn nap(waited: Duration) -> Duration {
    (waited / 16).clamp(Duration::from_micros(50), Duration::from_millis(1))
}

/// A module's name expressions and the symbols they stand for.
#[derive(Debug)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    pub(super) fn new(names: Vec<(String, String)>) -> Names {
        Names(names.into_iter().collect())
    }

    /// What the vendor knows `name` by.
    pub(super) fn symbol(&self, name: &str) -> Result<CString> {
        CString::new(self.0.get(name).map_or(name, String::as_str)).map_err(|_| {
            Error::new(
                Status::InvalidArgument,
                format!("the name {name:?} has a NUL character"),
            )
        })
    }

    /// Says that there is no `what` (kernel, variable) of that name, and which names might have been meant.
    #[cold]
    pub(super) fn missing(&self, what: &str, name: &str) -> String {
        let mut known: Vec<&str> = self.0.keys().map(String::as_str).collect();
        known.sort_unstable();
        let hint = match known.is_empty() {
            true => "; a C++ name needs extern \"C\" or a name expression".into(),
            false => format!("; its name expressions are {}", known.join(", ")),
        };
        format!("the module has no {what} named {name:?}{hint}")
    }
}

/// Bytes as the vendor counts them.
pub(super) fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| {
        Error::new(
            Status::OutOfMemory,
            format!(
                "{bytes} bytes are more than this process can address ({})",
                usize::MAX
            ),
        )
    })
}

/// A place, for messages.
pub(super) fn spot(place: Place) -> String {
    match place {
        Place::Host => "host".into(),
        Place::Device(d) => format!("device {d}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_streams_give_the_vendors_handle_back() {
        assert_eq!(handle(RawStream(0x7f00_1234_5670)), 0x7f00_1234_5670);
        assert_eq!(handle(imported(0x7f00_1234_5670)), 0x7f00_1234_5670);
        assert!(is_own(RawStream(0x7f00_1234_5670)) && !is_own(imported(0x7f00_1234_5670)));
        for device in [0, 1, 7, 255] {
            assert!(is_legacy(legacy(device)) && !is_own(legacy(device)));
            assert_ne!(legacy(device), legacy(device + 1));
        }
        assert!(!is_legacy(RawStream(0x55d0_0000_0000)));
    }

    #[test]
    fn what_can_be_imported_is_known() {
        assert_eq!(importable(0, "X"), Ok(Importable::Legacy));
        assert_eq!(importable(1, "X"), Ok(Importable::Legacy));
        assert_eq!(importable(0x7f00_1234_5670, "X"), Ok(Importable::Stream));
        for (value, status) in [
            (2, Status::InvalidArgument),
            (3, Status::InvalidArgument),
            (0xfff8, Status::InvalidArgument),
            (0x7f00_1234_5671, Status::InvalidArgument),
        ] {
            assert_eq!(
                importable(value, "X").map_err(|e| e.status()),
                Err(status),
                "{value:#x}"
            );
        }
    }

    #[test]
    fn naps_grow_with_the_wait_and_stay_short() {
        assert_eq!(nap(Duration::ZERO), Duration::from_micros(50));
        assert_eq!(nap(Duration::from_millis(8)), Duration::from_micros(500));
        assert_eq!(nap(Duration::from_secs(5)), Duration::from_millis(1));
    }

    #[test]
    fn a_callback_runs_once_or_is_taken_back() {
        let (tell, told) = std::sync::mpsc::channel();
        let queued = Queued::new(Box::new(move |s| tell.send(s).expect("the test listens")));
        queued.run(Status::DeviceLost);
        queued.run(Status::Ok);
        assert_eq!(told.iter().collect::<Vec<_>>(), [Status::DeviceLost]);
        let queued = Queued::new(Box::new(|_| panic!("caught")));
        queued.run(Status::Ok);
        assert!(queued.take().is_none());
    }
}
