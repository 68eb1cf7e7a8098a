//! The memory of a host device: a capacity, books of what is in use, and a pool of freed blocks.
//!
//! A block is *live*, *pending* (given back in the order of a stream that has not got there yet) or *cached*
//! (free, kept for the next allocation). Live and pending blocks count as used. All three together never exceed
//! the capacity.

use crate::backend::{Addr, Error, Result, Status};
use parking_lot::Mutex;
use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Sizes are multiples of this, and so are addresses.
const GRAIN: u64 = 256;
/// From this size on memory comes in pages of its own.
const PAGES_FROM: u64 = 128 << 10;
/// From this size on huge pages are asked for.
const HUGE_FROM: u64 = 4 << 20;

#[derive(Default)]
struct Books {
    /// Address to size.
    live: HashMap<u64, u64>,
    /// (stream, size, token) to address.
    pending: BTreeMap<(u64, u64, u64), u64>,
    /// (size, address).
    cache: BTreeSet<(u64, u64)>,
    used: u64,
    cached: u64,
    tokens: u64,
}

/// The memory of one device.
pub struct Memory {
    ordinal: u32,
    capacity: u64,
    books: Mutex<Books>,
}

impl Memory {
    /// Memory of at most `capacity` bytes.
    pub fn new(ordinal: u32, capacity: u64) -> Memory {
        Memory {
            ordinal,
            capacity: capacity / GRAIN * GRAIN,
            books: Mutex::default(),
        }
    }

    /// All bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes not in use.
    pub fn free_bytes(&self) -> u64 {
        self.capacity - self.books.lock().used
    }

    /// Bytes that the pool holds unused.
    #[cfg(test)]
    pub fn cached(&self) -> u64 {
        self.books.lock().cached
    }

    /// Takes a block; with a stream, also one given back in that stream's order before.
    pub fn take(&self, bytes: u64, stream: Option<u64>) -> Result<Addr> {
        let Some(size) = bytes.max(1).checked_next_multiple_of(GRAIN) else {
            return Err(self.full(bytes, self.free_bytes()));
        };
        // A little waste is better than a new block.
        let most = size.saturating_add(size / 4);
        let evicted;
        {
            let mut books = self.books.lock();
            if let Some(stream) = stream {
                let fit = books
                    .pending
                    .range((stream, size, 0)..=(stream, most, u64::MAX))
                    .next();
                if let Some((&key, &address)) = fit {
                    books.pending.remove(&key);
                    books.live.insert(address, key.1);
                    return Ok(Addr::from_backend(address));
                }
            }
            if let Some(&(found, address)) = books.cache.range((size, 0)..=(most, u64::MAX)).next() {
                books.cache.remove(&(found, address));
                books.cached -= found;
                books.used += found;
                books.live.insert(address, found);
                return Ok(Addr::from_backend(address));
            }
            let free = self.capacity - books.used;
            if size > free {
                return Err(self.full(bytes, free));
            }
            evicted = books.evict(free - size);
            books.used += size;
        }
        give_to_os(&evicted);
        let address = os_alloc(size, GRAIN).or_else(|| {
            // The machine itself is full: what the cache holds may be enough.
            let evicted = self.books.lock().evict(0);
            give_to_os(&evicted);
            os_alloc(size, GRAIN)
        });
        let mut books = self.books.lock();
        let Some(address) = address else {
            books.used -= size;
            let free = self.capacity - books.used;
            drop(books);
            return Err(Error::new(
                Status::OutOfMemory,
                format!(
                    "host device {}: the system refused {bytes} bytes ({free} of {} are free on the device)",
                    self.ordinal, self.capacity
                ),
            ));
        };
        books.live.insert(address, size);
        Ok(Addr::from_backend(address))
    }

    #[cold]
    fn full(&self, bytes: u64, free: u64) -> Error {
        Error::new(
            Status::OutOfMemory,
            format!(
                "host device {}: {bytes} bytes asked for, {free} free of {} in all",
                self.ordinal, self.capacity
            ),
        )
    }

    #[cold]
    fn unknown(&self, addr: Addr) -> Error {
        Error::new(
            Status::InvalidArgument,
            format!(
                "no memory of host device {} begins at {:#x}",
                self.ordinal,
                addr.value()
            ),
        )
    }

    /// Gives a block back to the system.
    pub fn put(&self, addr: Addr) -> Result<()> {
        let size = self
            .books
            .lock()
            .live
            .remove(&addr.value())
            .ok_or_else(|| self.unknown(addr))?;
        os_free(addr.value(), size, GRAIN);
        self.books.lock().used -= size;
        Ok(())
    }

    /// Gives a block back in the order of a stream: answers what [`released`](Memory::released) has to be told there.
    pub fn put_pending(&self, addr: Addr, stream: u64) -> Result<(u64, u64)> {
        let mut books = self.books.lock();
        let size = books
            .live
            .remove(&addr.value())
            .ok_or_else(|| self.unknown(addr))?;
        books.tokens += 1;
        let token = books.tokens;
        books.pending.insert((stream, size, token), addr.value());
        Ok((size, token))
    }

    /// The stream has reached a giving back. If it has not taken the block again, everybody may.
    pub fn released(&self, stream: u64, size: u64, token: u64) {
        let mut books = self.books.lock();
        if let Some(address) = books.pending.remove(&(stream, size, token)) {
            books.used -= size;
            books.cached += size;
            books.cache.insert((size, address));
        }
    }

    /// Gives cached blocks to the system until at most `keep` bytes are left.
    pub fn trim(&self, keep: u64) {
        let evicted = self.books.lock().evict(keep);
        give_to_os(&evicted);
    }
}

impl Books {
    /// Takes blocks out of the cache, large ones first, until at most `keep` bytes are left.
    fn evict(&mut self, keep: u64) -> Vec<(u64, u64)> {
        let mut evicted = Vec::new();
        while self.cached > keep {
            let Some((size, address)) = self.cache.pop_last() else {
                break;
            };
            self.cached -= size;
            evicted.push((size, address));
        }
        evicted
    }
}

fn give_to_os(blocks: &[(u64, u64)]) {
    for &(size, address) in blocks {
        os_free(address, size, GRAIN);
    }
}

fn layout(size: u64, align: u64) -> Option<Layout> {
    Layout::from_size_align(usize::try_from(size).ok()?, align as usize).ok()
}

/// Memory of the system. `size` is not 0, `align` at most a page.
pub fn os_alloc(size: u64, align: u64) -> Option<u64> {
    let layout = layout(size, align)?;
    if size < PAGES_FROM {
        // SAFETY: the size is not 0.
        let p = unsafe { std::alloc::alloc(layout) };
        return (!p.is_null()).then_some(p as u64);
    }
    // SAFETY: a new private anonymous mapping touches nobody's memory; the advice concerns only that mapping.
    unsafe {
        let p = libc::mmap(
            std::ptr::null_mut(),
            layout.size(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        );
        if p == libc::MAP_FAILED {
            return None;
        }
        if size >= HUGE_FROM {
            libc::madvise(p, layout.size(), libc::MADV_HUGEPAGE);
        }
        Some(p as u64)
    }
}

/// Gives memory of [`os_alloc`] back.
pub fn os_free(address: u64, size: u64, align: u64) {
    let Some(layout) = layout(size, align) else { return };
    // SAFETY: callers pass what `os_alloc` was asked for and answered, and take it off their books first.
    unsafe {
        if size < PAGES_FROM {
            std::alloc::dealloc(address as *mut u8, layout);
        } else {
            libc::munmap(address as *mut libc::c_void, layout.size());
        }
    }
}
