//! Memory, copies and fills.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};

use parking_lot::Mutex;
use taskgpu::backend::{Addr, Place};

use crate::capture;
use crate::counts::{ALLOCATIONS, PINNED, REGISTERED};
use crate::device::{by_ordinal, current_open, Device};
use crate::entry::{write, Call, Hip};
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::runtime::{answer, runtime};
use crate::stream;

/// Kinds of memory by the numbers of ROCm 5 and of ROCm 6.
const HOST_5: hipMemoryType = 0;
const DEVICE_5: hipMemoryType = 1;
const UNREGISTERED_6: hipMemoryType = 0;
const HOST_6: hipMemoryType = 1;
const DEVICE_6: hipMemoryType = 2;
const MANAGED_6: hipMemoryType = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Device,
    /// Of a device, and the host may touch it.
    Managed,
    Pinned,
    Registered,
}

impl Kind {
    fn is_on_device(self) -> bool {
        matches!(self, Kind::Device | Kind::Managed)
    }
}

#[derive(Clone, Copy)]
struct Block {
    bytes: u64,
    device: &'static Device,
    kind: Kind,
}

/// All memory by its address.
static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

/// The block that an address is in.
fn block_of(address: *const c_void) -> Option<(u64, Block)> {
    let address = address as u64;
    let blocks = BLOCKS.lock();
    let (base, block) = blocks.range(..=address).next_back()?;
    (address - base < block.bytes).then_some((*base, *block))
}

fn place(address: *const c_void) -> Place {
    match block_of(address) {
        Some((_, block)) if block.kind.is_on_device() => Place::Device(block.device.ordinal),
        _ => Place::Host,
    }
}

/// Puts device memory on the books.
pub fn enlist(address: Addr, bytes: usize, device: &'static Device) {
    enlist_as(Kind::Device, address, bytes, device);
}

fn enlist_as(kind: Kind, address: Addr, bytes: usize, device: &'static Device) {
    let block = Block {
        bytes: bytes as u64,
        device,
        kind,
    };
    BLOCKS.lock().insert(address.value(), block);
    ALLOCATIONS.up();
}

/// The device of memory that begins here.
pub fn device_of(address: *mut c_void) -> Hip<&'static Device> {
    match BLOCKS.lock().get(&(address as u64)) {
        Some(block) if block.kind.is_on_device() => Ok(block.device),
        _ => Err(hipErrorInvalidValue),
    }
}

/// Takes device memory off the books.
pub fn delist(address: *mut c_void) {
    if BLOCKS.lock().remove(&(address as u64)).is_some() {
        ALLOCATIONS.down();
    }
}

unsafe fn allocate(call: &Call, kind: Kind, out: *mut *mut c_void, bytes: usize) -> Hip<()> {
    if out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    capture::unsafe_call()?;
    let device = current_open()?;
    if bytes == 0 {
        // SAFETY: `out` is the caller's.
        return unsafe { write(out, std::ptr::null_mut()) };
    }
    let address = answer(runtime().backend.alloc(device.ordinal, bytes as u64))?;
    enlist_as(kind, address, bytes, device);
    // SAFETY: as above.
    unsafe { call.give(out, address.as_ptr()) }
}

/// An address of ours for the backend below.
pub fn addr(address: *const c_void) -> Addr {
    // SAFETY: the caller vouches for the memory until the work is done.
    unsafe { Addr::from_caller(address) }
}

unsafe fn pin(call: &Call, out: *mut *mut c_void, bytes: usize) -> Hip<()> {
    if out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    capture::unsafe_call()?;
    let device = current_open()?;
    if bytes == 0 {
        // SAFETY: `out` is the caller's.
        return unsafe { write(out, std::ptr::null_mut()) };
    }
    let address = answer(runtime().backend.host_alloc(device.ordinal, bytes as u64))?;
    let block = Block {
        bytes: bytes as u64,
        device,
        kind: Kind::Pinned,
    };
    BLOCKS.lock().insert(address.value(), block);
    PINNED.up();
    // SAFETY: as above.
    unsafe { call.give(out, address.as_ptr()) }
}

fn copy(
    to: *mut c_void,
    to_place: Place,
    from: *const c_void,
    from_place: Place,
    bytes: usize,
    on: hipStream_t,
) -> Hip<()> {
    let stream = stream::find(on)?;
    if bytes == 0 {
        return Ok(());
    }
    if to.is_null() || from.is_null() {
        return Err(hipErrorInvalidValue);
    }
    stream.queue(|| {
        runtime().backend.memcpy(
            stream.device.ordinal,
            stream.raw,
            addr(to),
            to_place,
            addr(from),
            from_place,
            bytes as u64,
        )
    })
}

fn fill(to: *mut c_void, pattern: &[u8], count: usize, on: hipStream_t) -> Hip<()> {
    let stream = stream::find(on)?;
    if count == 0 {
        return Ok(());
    }
    let inside = block_of(to).is_some_and(|(base, block)| {
        let end = (to as u64).checked_add((count as u64).saturating_mul(pattern.len() as u64));
        end.is_some_and(|end| end <= base + block.bytes)
    });
    if !inside {
        return Err(hipErrorInvalidValue);
    }
    stream.queue(|| {
        runtime()
            .backend
            .fill(stream.device.ordinal, stream.raw, addr(to), pattern, count as u64)
    })
}

entries! {
    /// No bytes are a NULL pointer.
    fn hipMalloc(call, out: *mut *mut c_void, bytes: usize) {
        allocate(call, Kind::Device, out, bytes)
    }

    /// Our backend calls it nowhere; other libraries in the process do.
    fn hipMallocManaged(call, out: *mut *mut c_void, bytes: usize, flags: c_uint) {
        let _ = flags;
        allocate(call, Kind::Managed, out, bytes)
    }

    /// Waits for the memory's device.
    fn hipFree(call, address: *mut c_void) {
        if address.is_null() {
            return Ok(());
        }
        capture::unsafe_call()?;
        let device = device_of(address)?;
        device.wait()?;
        delist(address);
        answer(runtime().backend.free(device.ordinal, addr(address)))
    }

    fn hipHostMalloc(call, out: *mut *mut c_void, bytes: usize, flags: c_uint) {
        let _ = flags;
        pin(call, out, bytes)
    }

    /// Memory that streams can wait for a number in.
    fn hipExtMallocWithFlags(call, out: *mut *mut c_void, bytes: usize, flags: c_uint) {
        match (flags, bytes) {
            (hipMallocSignalMemory, 8) => pin(call, out, bytes),
            _ => Err(hipErrorInvalidValue),
        }
    }

    /// Waits for the device it was allocated for.
    fn hipHostFree(call, address: *mut c_void) {
        if address.is_null() {
            return Ok(());
        }
        capture::unsafe_call()?;
        let device = match BLOCKS.lock().get(&(address as u64)) {
            Some(block) if block.kind == Kind::Pinned => block.device,
            _ => return Err(hipErrorInvalidValue),
        };
        device.wait()?;
        BLOCKS.lock().remove(&(address as u64));
        PINNED.down();
        answer(runtime().backend.host_free(device.ordinal, addr(address)))
    }

    fn hipHostRegister(call, address: *mut c_void, bytes: usize, flags: c_uint) {
        let _ = flags;
        if address.is_null() || bytes == 0 {
            return Err(hipErrorInvalidValue);
        }
        let device = current_open()?;
        let mut blocks = BLOCKS.lock();
        let end = (address as u64).checked_add(bytes as u64).ok_or(hipErrorInvalidValue)?;
        let before = blocks.range(..end).next_back();
        if before.is_some_and(|(base, block)| base + block.bytes > address as u64) {
            return Err(hipErrorHostMemoryAlreadyRegistered);
        }
        answer(runtime().backend.host_register(device.ordinal, addr(address), bytes as u64))?;
        let block = Block { bytes: bytes as u64, device, kind: Kind::Registered };
        blocks.insert(address as u64, block);
        REGISTERED.up();
        Ok(())
    }

    fn hipHostUnregister(call, address: *mut c_void) {
        let mut blocks = BLOCKS.lock();
        let device = match blocks.get(&(address as u64)) {
            Some(block) if block.kind == Kind::Registered => block.device,
            _ => return Err(hipErrorHostMemoryNotRegistered),
        };
        answer(runtime().backend.host_unregister(device.ordinal, addr(address)))?;
        blocks.remove(&(address as u64));
        REGISTERED.down();
        Ok(())
    }

    /// A pointer nobody knows is an error before ROCm 6, and a kind of its own since. So is managed memory, which was the
    /// host's before.
    fn hipPointerGetAttributes(call, out: *mut hipPointerAttribute_t, address: *const c_void) {
        let six = runtime().kinds_of_6();
        let found = block_of(address);
        let kind = match found.map(|(_, block)| block.kind) {
            None if six => UNREGISTERED_6,
            None => return Err(hipErrorInvalidValue),
            Some(Kind::Device) => if six { DEVICE_6 } else { DEVICE_5 },
            Some(Kind::Managed) if six => MANAGED_6,
            Some(_) => if six { HOST_6 } else { HOST_5 },
        };
        let on_device = matches!(found, Some((_, block)) if block.kind == Kind::Device);
        write(out, hipPointerAttribute_t {
            memoryType: kind,
            device: found.map_or(-1, |(_, block)| block.device.ordinal as c_int),
            devicePointer: if found.is_some() { address.cast_mut() } else { std::ptr::null_mut() },
            hostPointer: if on_device { std::ptr::null_mut() } else { address.cast_mut() },
            isManaged: found.is_some_and(|(_, block)| block.kind == Kind::Managed).into(),
            allocationFlags: 0,
        })
    }

    fn hipMemGetAddressRange(call, base_out: *mut hipDeviceptr_t, bytes: *mut usize, address: hipDeviceptr_t) {
        let (base, block) = block_of(address).ok_or(hipErrorNotFound)?;
        if !base_out.is_null() {
            base_out.write(base as *mut c_void);
        }
        if !bytes.is_null() {
            bytes.write(block.bytes as usize);
        }
        Ok(())
    }

    fn hipMemcpyAsync(call, to: *mut c_void, from: *const c_void, bytes: usize, kind: hipMemcpyKind, on: hipStream_t) {
        if !(hipMemcpyHostToHost..=hipMemcpyDefault).contains(&kind) {
            return Err(hipErrorInvalidMemcpyDirection);
        }
        let (to_place, from_place) = (place(to), place(from));
        // Memory that the runtime knows may be called a device's, pinned memory too.
        let claimed = |claim: bool, address| !claim || block_of(address).is_some();
        if !claimed(matches!(kind, hipMemcpyHostToDevice | hipMemcpyDeviceToDevice), to)
            || !claimed(matches!(kind, hipMemcpyDeviceToHost | hipMemcpyDeviceToDevice), from)
        {
            return Err(hipErrorInvalidValue);
        }
        copy(to, to_place, from, from_place, bytes, on)
    }

    fn hipMemcpyPeerAsync(call, to: *mut c_void, to_device: c_int, from: *const c_void, from_device: c_int, bytes: usize, on: hipStream_t) {
        let (to_place, from_place) = (place(to), place(from));
        let on_device = |place, device: &Device| place == Place::Device(device.ordinal);
        if !on_device(to_place, by_ordinal(to_device)?) || !on_device(from_place, by_ordinal(from_device)?) {
            return Err(hipErrorInvalidValue);
        }
        copy(to, to_place, from, from_place, bytes, on)
    }

    fn hipMemsetD8Async(call, to: hipDeviceptr_t, value: c_uchar, count: usize, on: hipStream_t) {
        fill(to, &[value], count, on)
    }

    fn hipMemsetD16Async(call, to: hipDeviceptr_t, value: c_ushort, count: usize, on: hipStream_t) {
        fill(to, &value.to_ne_bytes(), count, on)
    }

    fn hipMemsetD32Async(call, to: hipDeviceptr_t, value: c_int, count: usize, on: hipStream_t) {
        fill(to, &value.to_ne_bytes(), count, on)
    }
}
