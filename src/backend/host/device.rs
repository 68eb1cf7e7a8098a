//! A host device: its memory and the books of its streams.

use super::memory::Memory;
use super::stream::Stream;
use crate::backend::{Priority, RawStream};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock, Weak};

/// Set in the raw form of an imported stream. Streams are aligned, so the bit is free.
const IMPORTED: u64 = 1;

/// One device.
pub struct Device {
    /// Its number.
    pub ordinal: u32,
    /// Its memory.
    pub memory: Memory,
    /// Every stream that exists, by address, destroyed ones with work left included.
    streams: Mutex<HashMap<usize, Weak<Stream>>>,
    /// Imported streams, and how often each was imported.
    imports: Mutex<HashMap<usize, (Arc<Stream>, usize)>>,
    legacy: OnceLock<Arc<Stream>>,
}

/// A stream lent by its raw form for the length of a call.
pub type Lent = ManuallyDrop<Arc<Stream>>;

/// The stream behind a raw form. None: the value cannot be one.
pub fn lend(raw: RawStream) -> Option<Lent> {
    let pointer = (raw.0 & !IMPORTED) as *const Stream;
    if pointer.is_null() {
        return None;
    }
    // SAFETY: raw streams are made by `Device::create` and `Device::import` alone, each of which keeps the Arc alive
    // until `Device::destroy`, and the trait promises that nobody uses a raw stream after that.
    Some(ManuallyDrop::new(unsafe { Arc::from_raw(pointer) }))
}

impl Device {
    /// A device without streams.
    pub fn new(ordinal: u32, capacity: u64) -> Device {
        Device {
            ordinal,
            memory: Memory::new(ordinal, capacity),
            streams: Mutex::default(),
            imports: Mutex::default(),
            legacy: OnceLock::new(),
        }
    }

    fn make(&'static self, priority: Priority) -> Arc<Stream> {
        let stream = Arc::new(Stream::new(self, priority));
        self.streams
            .lock()
            .insert(Arc::as_ptr(&stream) as usize, Arc::downgrade(&stream));
        stream
    }

    /// Creates a stream.
    pub fn create(&'static self, priority: Priority) -> RawStream {
        RawStream(Arc::into_raw(self.make(priority)) as u64)
    }

    /// Imports a stream by its address, or the legacy stream. `None`: no such stream.
    pub fn import(&'static self, native: u64) -> Option<(RawStream, Priority)> {
        let stream = match native {
            0 | 1 => self.legacy.get_or_init(|| self.make(Priority::Normal)).clone(),
            _ => {
                let found = self
                    .streams
                    .lock()
                    .get(&(native as usize))
                    .and_then(Weak::upgrade)?;
                let known = found.named() || self.imports.lock().contains_key(&(native as usize));
                known.then_some(found)?
            }
        };
        let address = Arc::as_ptr(&stream) as usize;
        let priority = stream.priority();
        self.imports.lock().entry(address).or_insert((stream, 0)).1 += 1;
        Some((RawStream(address as u64 | IMPORTED), priority))
    }

    /// Destroys a created stream or forgets an imported one. Queued work keeps what it needs.
    pub fn destroy(&self, raw: RawStream) {
        if raw.0 & IMPORTED != 0 {
            let address = (raw.0 & !IMPORTED) as usize;
            let mut imports = self.imports.lock();
            let last = imports.get_mut(&address).is_some_and(|(_, count)| {
                *count -= 1;
                *count == 0
            });
            let forgotten = last.then(|| imports.remove(&address));
            // Outside the lock: the last one takes the stream off the books.
            drop(imports);
            drop(forgotten);
        } else if let Some(lent) = lend(raw) {
            lent.unname();
            drop(ManuallyDrop::into_inner(lent));
        }
    }

    /// Takes a stream that ends off the books.
    pub fn forget_stream(&self, address: usize) {
        self.streams.lock().remove(&address);
    }

    /// Every stream there is.
    pub fn all_streams(&self) -> Vec<Arc<Stream>> {
        // Collected under the lock and dropped outside: the last Arc of a stream takes the lock.
        self.streams.lock().values().filter_map(Weak::upgrade).collect()
    }
}
