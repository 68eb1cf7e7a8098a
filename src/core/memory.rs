//! Memory: whose it is, how large it is, and which device an access belongs to.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::backend::{Addr, Error, Place, Result, Status};

use super::across;
use super::device::{self, Device};
use super::handle::StreamHandle;
use super::reaper::{self, Remains};
use super::registry;
use super::stream::{self, Stream};
use super::task;

/// What a pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum PointerKind {
    /// Device memory.
    Device = 1,
    /// Pinned host memory.
    HostPinned = 2,
    /// Host memory of the caller, pinned by registering it.
    HostRegistered = 3,
}

/// What is known about a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerReport {
    /// What it is.
    pub kind: PointerKind,
    /// The device it lies on, or that it was pinned for.
    pub device: u32,
    /// The first byte of the allocation.
    pub base: u64,
    /// Bytes of the allocation.
    pub size: u64,
}

/// An allocation in our books.
#[derive(Clone, Copy)]
struct Block {
    size: u64,
    kind: PointerKind,
    device: &'static Device,
    /// From the pool, so that it can be given back in a stream's order.
    pooled: bool,
}

/// Every allocation of ours, by its first byte.
static BOOKS: RwLock<BTreeMap<u64, Block>> = RwLock::new(BTreeMap::new());

type Hook = Arc<dyn Fn(u32, u64) + Send + Sync>;
static HOOKS: Mutex<Vec<Hook>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread is looking for memory already: a hook that allocates does not start another search.
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
}

/// The allocation that `addr` lies in, with its first byte.
fn find(addr: Addr) -> Option<(u64, Block)> {
    let books = BOOKS.read();
    let (base, block) = books.range(..=addr.value()).next_back()?;
    (addr.value() - base < block.size).then_some((*base, *block))
}

fn enter(addr: Addr, block: Block) {
    BOOKS.write().insert(addr.value(), block);
}

/// Takes an allocation out of the books, if `addr` is its first byte and `fits` it.
fn strike(addr: Addr, what: &str, fits: impl Fn(&Block) -> bool) -> Result<Block> {
    let mut books = BOOKS.write();
    match books.get(&addr.value()) {
        Some(block) if fits(block) => {
            let block = *block;
            books.remove(&addr.value());
            Ok(block)
        }
        _ => {
            drop(books);
            Err(not_ours(addr, what))
        }
    }
}

#[cold]
fn not_ours(addr: Addr, what: &str) -> Error {
    let text = match find(addr) {
        Some((base, block)) if base != addr.value() => format!(
            "{:#x} is no start of {what}: it lies {} bytes inside the {} bytes at {base:#x}",
            addr.value(),
            addr.value() - base,
            block.size
        ),
        Some((_, block)) => {
            let kind = match block.kind {
                PointerKind::Device => "device memory",
                PointerKind::HostPinned => "pinned host memory",
                PointerKind::HostRegistered => "registered host memory",
            };
            format!("{:#x} is {kind}, not {what}", addr.value())
        }
        None => format!(
            "{:#x} is no {what} of this library, or was freed already",
            addr.value()
        ),
    };
    Error::new(Status::InvalidArgument, text)
}

/// Allocates; when memory has run out, waits for what is running, empties the pool, asks the hooks, and gives up.
fn with_reclaim(
    device: &'static Device,
    bytes: u64,
    what: &str,
    attempt: impl Fn() -> Result<Addr>,
) -> Result<Addr> {
    let attempt = || match attempt() {
        // A vendor's success with a NULL pointer is no success.
        Ok(addr) if addr.is_null() => Err(Error::new(
            Status::OutOfMemory,
            format!("the runtime gave no memory for {bytes} bytes"),
        )),
        other => other,
    };
    let mut failure = match attempt() {
        Err(error) if error.status() == Status::OutOfMemory => error,
        other => return other.map_err(|e| device.concern(e)),
    };
    if !RECLAIMING.replace(true) {
        struct Done;
        impl Drop for Done {
            fn drop(&mut self) {
                RECLAIMING.set(false);
            }
        }
        let _done = Done;
        let steps: [&dyn Fn(); 3] = [
            &|| {
                // A device in error has its own text, from the attempt that follows.
                let _ = device.wait_for_all();
                reaper::settle(device);
            },
            &|| drop(device.backend.trim(device.ordinal, 0)),
            &|| {
                let hooks = HOOKS.lock().clone();
                for hook in hooks {
                    hook(device.index, bytes);
                }
                let _ = device.backend.trim(device.ordinal, 0);
            },
        ];
        for step in steps {
            step();
            match attempt() {
                Err(error) if error.status() == Status::OutOfMemory => failure = error,
                other => return other.map_err(|e| device.concern(e)),
            }
        }
    }
    let known = match device.backend.memory(device.ordinal) {
        Ok((free, total)) => format!("; {free} of {total} bytes are free"),
        Err(_) => String::new(),
    };
    let text = format!(
        "no {bytes} bytes of {what} on device {}{known}: {}",
        device.index,
        failure.detail().text
    );
    let mut error = Error::new(Status::OutOfMemory, text);
    if let Some(native) = &failure.detail().native {
        error = error.native(native.clone());
    }
    Err(error.on_device(device.index))
}

/// Allocates device memory on the task's device. 0 bytes give NULL.
pub fn malloc(bytes: u64) -> Result<Addr> {
    let device = device::of_task(task::here()?)?;
    if bytes == 0 {
        return Ok(Addr::from_backend(0));
    }
    device.open()?;
    reaper::keep_pace();
    let addr = with_reclaim(device, bytes, "device memory", || {
        device.backend.alloc(device.ordinal, bytes)
    })?;
    enter(
        addr,
        Block {
            size: bytes,
            kind: PointerKind::Device,
            device,
            pooled: false,
        },
    );
    Ok(addr)
}

/// Frees device memory after waiting for its device.
pub fn free(addr: Addr) -> Result<()> {
    if addr.is_null() || registry::forked() {
        return Ok(());
    }
    task::allowed()?;
    let block = strike(addr, "device memory", |block| block.kind == PointerKind::Device)?;
    let device = block.device;
    // Our own streams first and in the task's way: the vendor's wait would burn a core.
    let waited = device.wait_for_all();
    device
        .backend
        .free(device.ordinal, addr)
        .map_err(|e| device.concern(e))
        .and(waited)
}

/// Allocates device memory in the order of a stream, on that stream's device. 0 bytes give NULL.
pub fn malloc_async(bytes: u64, stream: StreamHandle) -> Result<Addr> {
    let stream = stream::resolve(task::here()?, stream)?;
    if bytes == 0 {
        return Ok(Addr::from_backend(0));
    }
    let device = stream.device;
    let addr = with_reclaim(device, bytes, "device memory", || {
        stream.queue(|raw| device.backend.alloc_async(device.ordinal, raw, bytes))
    })
    .map_err(|e| e.on_stream(stream.id))?;
    enter(
        addr,
        Block {
            size: bytes,
            kind: PointerKind::Device,
            device,
            pooled: true,
        },
    );
    Ok(addr)
}

/// Frees device memory after the work queued so far on a stream.
pub fn free_async(addr: Addr, stream: StreamHandle) -> Result<()> {
    if addr.is_null() || registry::forked() {
        return Ok(());
    }
    let stream = stream::resolve(task::here()?, stream)?;
    let block = strike(addr, "device memory", |block| block.kind == PointerKind::Device)?;
    // A failure puts the block back: it is still the caller's.
    free_in_order(addr, &block, &stream).inspect_err(|_| enter(addr, block))
}

fn free_in_order(addr: Addr, block: &Block, stream: &Stream) -> Result<()> {
    let owner = block.device;
    let foreign = owner.index != stream.device.index;
    if !block.pooled {
        let after = foreign.then(|| stream.record()).transpose()?;
        reaper::leave(Remains::Memory {
            device: owner,
            addr,
            after,
        });
        return Ok(());
    }
    if !foreign {
        return stream
            .queue(|raw| owner.backend.free_async(owner.ordinal, raw, addr))
            .map_err(|e| stream.concern(e));
    }
    let recorded = stream.record()?;
    owner.aside(|own| {
        own.wait_recorded(&recorded)?;
        own.queue(|raw| owner.backend.free_async(owner.ordinal, raw, addr))
            .map_err(|e| own.concern(e))
    })
}

/// Frees device memory after everything queued on its device now. Never blocks; for finalizers.
pub fn free_deferred(addr: Addr) -> Result<()> {
    if addr.is_null() || registry::forked() {
        return Ok(());
    }
    let block = strike(addr, "device memory", |block| block.kind == PointerKind::Device)?;
    reaper::leave(Remains::Memory {
        device: block.device,
        addr,
        after: None,
    });
    Ok(())
}

/// Allocates pinned host memory. 0 bytes give NULL.
pub fn host_malloc(bytes: u64) -> Result<Addr> {
    let device = device::of_task(task::here()?)?;
    if bytes == 0 {
        return Ok(Addr::from_backend(0));
    }
    device.open()?;
    reaper::keep_pace();
    let attempt = || device.backend.host_alloc(device.ordinal, bytes);
    let addr = with_reclaim(device, bytes, "pinned host memory", attempt)?;
    enter(
        addr,
        Block {
            size: bytes,
            kind: PointerKind::HostPinned,
            device,
            pooled: false,
        },
    );
    Ok(addr)
}

/// Frees pinned host memory once everything queued now has passed. Never blocks.
pub fn host_free(addr: Addr) -> Result<()> {
    if addr.is_null() || registry::forked() {
        return Ok(());
    }
    let block = strike(addr, "pinned host memory", |block| {
        block.kind == PointerKind::HostPinned
    })?;
    reaper::leave(Remains::HostMemory {
        device: block.device,
        addr,
    });
    Ok(())
}

/// Pins memory of the caller.
pub fn host_register(addr: Addr, bytes: u64) -> Result<()> {
    let device = device::of_task(task::here()?)?;
    if bytes == 0 {
        return Ok(());
    }
    range(addr, bytes)?;
    device.open()?;
    let mut books = BOOKS.write();
    let clash = books.range(..addr.value() + bytes).next_back();
    if let Some((base, block)) = clash.filter(|(base, block)| **base + block.size > addr.value()) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "the {bytes} bytes at {:#x} overlap the {} bytes at {base:#x}, which this library knows already",
                addr.value(),
                block.size
            ),
        ));
    }
    device
        .backend
        .host_register(device.ordinal, addr, bytes)
        .map_err(|e| device.concern(e))?;
    let block = Block {
        size: bytes,
        kind: PointerKind::HostRegistered,
        device,
        pooled: false,
    };
    books.insert(addr.value(), block);
    Ok(())
}

/// Unpins it. May block behind running work.
pub fn host_unregister(addr: Addr) -> Result<()> {
    if addr.is_null() || registry::forked() {
        return Ok(());
    }
    task::allowed()?;
    let _uncut = task::uncut();
    let fits = |block: &Block| block.kind == PointerKind::HostRegistered;
    let device = strike(addr, "registered host memory", fits)?.device;
    device
        .backend
        .host_unregister(device.ordinal, addr)
        .map_err(|e| device.concern(e))
}

/// Refuses NULL and what runs over the end of the address space.
fn range(addr: Addr, bytes: u64) -> Result<()> {
    if addr.is_null() {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("NULL is no address of {bytes} bytes"),
        ));
    }
    if addr.value().checked_add(bytes).is_none() {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "{bytes} bytes at {:#x} run over the end of the address space",
                addr.value()
            ),
        ));
    }
    Ok(())
}

/// What an access does with memory that is the caller's own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    /// It may reach any of it, and so beyond what was registered.
    Copy,
    /// It must stay in what was registered.
    Fill,
}

/// Whose memory an access of `bytes` at `addr` is, from the books or from a vendor; `None` if nobody knows it.
fn owner(addr: Addr, bytes: u64, access: Access) -> Result<Option<(PointerKind, &'static Device)>> {
    range(addr, bytes)?;
    if let Some((base, block)) = find(addr) {
        let left = base + block.size - addr.value();
        let callers = block.kind == PointerKind::HostRegistered && access == Access::Copy;
        if bytes > left && !callers {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "{bytes} bytes at {:#x} run over the end of the allocation, where {left} of its {} bytes are left",
                    addr.value(),
                    block.size
                ),
            ));
        }
        return Ok(Some((block.kind, block.device)));
    }
    Ok(foreign(addr).map(|report| (report.kind, report.device)))
}

struct Foreign {
    kind: PointerKind,
    device: &'static Device,
    base: u64,
    size: u64,
}

/// What the vendors know about memory that is not in our books.
fn foreign(addr: Addr) -> Option<Foreign> {
    let devices = device::all();
    for (i, device) in devices.iter().enumerate() {
        if devices[..i]
            .iter()
            .any(|earlier| device::same_backend(earlier, device))
        {
            continue;
        }
        let Some(facts) = device.backend.pointer_facts(addr) else {
            continue;
        };
        let (kind, ordinal) = match facts.place {
            Place::Host => (PointerKind::HostPinned, device.ordinal),
            Place::Device(ordinal) => (PointerKind::Device, ordinal),
        };
        // Memory of a device that is not in the list is no device memory of ours.
        let owner = devices
            .iter()
            .find(|d| device::same_backend(d, device) && d.ordinal == ordinal);
        if let Some(owner) = owner {
            return Some(Foreign {
                kind,
                device: owner,
                base: facts.base,
                size: facts.size,
            });
        }
    }
    None
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) addr: Addr,
    /// The device whose memory it is; `None` for host memory, pinned or not.
    pub(crate) device: Option<&'static Device>,
}

impl End {
    fn new(addr: Addr, bytes: u64) -> Result<End> {
        // Host memory that nobody has pinned is the caller's word.
        let device = match owner(addr, bytes, Access::Copy)? {
            Some((PointerKind::Device, device)) => Some(device),
            _ => None,
        };
        Ok(End { addr, device })
    }

    /// The end as `by`'s backend sees it; `None` if that cannot reach it.
    pub(crate) fn place(&self, by: &Device) -> Option<Place> {
        match self.device {
            Some(device) if device::same_backend(device, by) => Some(Place::Device(device.ordinal)),
            // Not even memory of the CPU as a device: to a vendor it is pageable memory, which is read when the copy is
            // queued and not when its turn has come.
            Some(_) => None,
            None => Some(Place::Host),
        }
    }

    /// The end `bytes` further on.
    pub(crate) fn after(&self, bytes: u64) -> End {
        End {
            addr: Addr::from_backend(self.addr.value() + bytes),
            device: self.device,
        }
    }
}

/// Copies on a stream whose backend reaches both ends; `None` if it does not.
pub(crate) fn copy_on(stream: &Stream, dst: End, src: End, bytes: u64) -> Option<Result<()>> {
    let Device { backend, ordinal, .. } = *stream.device;
    let (to, from) = (dst.place(stream.device)?, src.place(stream.device)?);
    let copied = stream.queue(|raw| backend.memcpy(ordinal, raw, dst.addr, to, src.addr, from, bytes));
    Some(copied.map_err(|e| stream.concern(e)))
}

/// Copies in the order of a stream, between any two places.
pub fn memcpy(dst: Addr, src: Addr, bytes: u64, stream: StreamHandle) -> Result<()> {
    let stream = stream::resolve(task::here()?, stream)?;
    if bytes == 0 {
        return Ok(());
    }
    let (dst, src) = (End::new(dst, bytes)?, End::new(src, bytes)?);
    copy_on(&stream, dst, src, bytes).unwrap_or_else(|| across::copy(&stream, dst, src, bytes))
}

/// Writes `count` copies of `pattern` (1, 2, 4, 8 or 16 bytes) in the order of a stream.
pub fn fill(dst: Addr, pattern: &[u8], count: u64, stream: StreamHandle) -> Result<()> {
    let stream = stream::resolve(task::here()?, stream)?;
    let size = pattern.len() as u64;
    if !matches!(size, 1 | 2 | 4 | 8 | 16) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("a pattern has 1, 2, 4, 8 or 16 bytes, not {size}"),
        ));
    }
    if count == 0 {
        return Ok(());
    }
    let Some(bytes) = count.checked_mul(size) else {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("{count} patterns of {size} bytes are more than any memory holds"),
        ));
    };
    if dst.value() % size != 0 {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("{:#x} is not aligned to the pattern's {size} bytes", dst.value()),
        ));
    }
    match owner(dst, bytes, Access::Fill)? {
        None => Err(not_ours(dst, "device or pinned memory")),
        Some((_, device)) if !device::same_backend(device, stream.device) => {
            across::fill(&stream, device, dst, pattern, count)
        }
        Some(_) => fill_on(&stream, dst, pattern, count),
    }
}

/// Fills memory of the stream's own backend.
pub(crate) fn fill_on(stream: &Stream, dst: Addr, pattern: &[u8], count: u64) -> Result<()> {
    let Device { backend, ordinal, .. } = *stream.device;
    stream
        .queue(|raw| backend.fill(ordinal, raw, dst, pattern, count))
        .map_err(|e| stream.concern(e))
}

/// What is known about a pointer.
pub fn pointer_info(addr: Addr) -> Result<PointerReport> {
    task::allowed()?;
    let _uncut = task::uncut();
    if let Some((base, block)) = find(addr) {
        return Ok(PointerReport {
            kind: block.kind,
            device: block.device.index,
            base,
            size: block.size,
        });
    }
    match foreign(addr) {
        Some(Foreign {
            kind,
            device,
            base,
            size,
        }) => Ok(PointerReport {
            kind,
            device: device.index,
            base,
            size,
        }),
        None => Err(Error::new(
            Status::NotFound,
            format!(
                "{:#x} is in no memory that this library or a vendor knows",
                addr.value()
            ),
        )),
    }
}

/// Gives what the pool holds unused, above `keep` bytes, back to the device.
pub fn trim(index: i32, keep: u64) -> Result<()> {
    task::allowed()?;
    let device = device::by_index(index)?;
    device.open()?;
    device
        .backend
        .trim(device.ordinal, keep)
        .map_err(|e| device.concern(e))
}

/// Adds a function that is asked to give memory up (device index, bytes needed) when it has run out.
pub fn reclaim_hook_add(hook: Box<dyn Fn(u32, u64) + Send + Sync>) -> Result<()> {
    task::allowed()?;
    registry::used();
    HOOKS.lock().push(Arc::from(hook));
    Ok(())
}
