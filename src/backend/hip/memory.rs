//! Memory, copies and fills.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::api::{call, Answer};
use super::device::{Device, Relaxed};
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use super::stream::{fence, fence_block, fence_drop, native};
use super::HipBackend;
use crate::backend::common::{size, spot};
use crate::backend::fill::{check, plan, Plan, Step};
use crate::backend::{Addr, Error, Place, PointerFacts, RawStream, Result, Status};

/// F31: an answer of success with no memory is no success. The runtime's own pool gives it when memory has run out.
fn given(device: &Device, address: *mut c_void, bytes: u64) -> Result<Addr> {
    if address.is_null() {
        return Err(Error::new(
            Status::OutOfMemory,
            format!(
                "HIP device {}: the runtime answered success and no memory for {bytes} bytes",
                device.ordinal
            ),
        ));
    }
    Ok(Addr::from_backend(address as u64))
}

pub(super) fn info(device: &Device) -> Result<(u64, u64)> {
    let _here = device.enter()?;
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: both are writable; the device is current.
    let answer = unsafe { call!(device.api, hipMemGetInfo(&mut free, &mut total)) };
    device.check(answer, || "cannot ask for the free memory".into())?;
    Ok((free as u64, total as u64))
}

pub(super) fn synchronize(device: &Device) -> Result<()> {
    let _here = device.enter()?;
    // SAFETY: the device is current.
    let answer = unsafe { call!(device.api, hipDeviceSynchronize()) };
    device.check(answer, || "cannot wait for the device".into())
}

pub(super) fn alloc(device: &Device, bytes: u64) -> Result<Addr> {
    let _here = device.enter()?;
    let mut address = null_mut();
    let wanted = size(bytes)?;
    // SAFETY: `address` is writable; the device is current.
    let answer = unsafe { call!(device.api, hipMalloc(&mut address, wanted)) };
    device.check(answer, || format!("cannot allocate {bytes} bytes"))?;
    given(device, address, bytes)
}

/// Frees memory whose use is over. The vendor waits for the device.
pub(super) fn free(device: &Device, addr: Addr) -> Result<()> {
    let _here = device.enter()?;
    // SAFETY: the device is current; the caller gives up the memory.
    let answer = unsafe { call!(device.api, hipFree(addr.as_ptr())) };
    device.check(answer, || format!("cannot free {:#x}", addr.value()))
}

pub(super) fn alloc_async(device: &Device, stream: RawStream, bytes: u64) -> Result<Addr> {
    let Some(from_pool) = device
        .api
        .hipMallocFromPoolAsync
        .filter(|_| !device.pool().is_null())
    else {
        return alloc(device, bytes);
    };
    let wanted = size(bytes)?;
    let _here = device.enter()?;
    let mut address = null_mut();
    let answer = Answer {
        // SAFETY: `address` is writable, pool and stream are live.
        code: unsafe { from_pool(&mut address, wanted, device.pool(), native(stream)) },
        function: "hipMallocFromPoolAsync",
    };
    device.check(answer, || format!("cannot allocate {bytes} bytes from the pool"))?;
    given(device, address, bytes)
}

pub(super) fn free_async(device: &Device, stream: RawStream, addr: Addr) -> Result<()> {
    let Some(free_ordered) = device.api.hipFreeAsync.filter(|_| !device.pool().is_null()) else {
        // No pools on this device: the order is kept by waiting.
        let mut mark = fence(device, stream)?;
        let waited = fence_block(device, &mut mark, None);
        fence_drop(device, &mark);
        waited?;
        return free(device, addr);
    };
    let _here = device.enter()?;
    let answer = Answer {
        // SAFETY: the caller gives up the memory; the stream is live.
        code: unsafe { free_ordered(addr.as_ptr(), native(stream)) },
        function: "hipFreeAsync",
    };
    device.check(answer, || {
        format!("cannot free {:#x} in the order of a stream", addr.value())
    })
}

pub(super) fn trim(device: &Device, keep: u64) -> Result<()> {
    let Some(trim_to) = device.api.hipMemPoolTrimTo.filter(|_| !device.pool().is_null()) else {
        return Ok(());
    };
    let _here = device.enter()?;
    let answer = Answer {
        // SAFETY: the pool is never destroyed.
        code: unsafe { trim_to(device.pool(), usize::try_from(keep).unwrap_or(usize::MAX)) },
        function: "hipMemPoolTrimTo",
    };
    device.check(answer, || format!("cannot trim the pool to {keep} bytes"))
}

pub(super) fn host_alloc(device: &Device, bytes: u64) -> Result<Addr> {
    let _here = device.enter()?;
    let mut p = null_mut();
    let wanted = size(bytes)?;
    // SAFETY: `p` is writable; the device is current.
    let answer = unsafe { call!(device.api, hipHostMalloc(&mut p, wanted, hipHostMallocPortable)) };
    device.check(answer, || {
        format!("cannot allocate {bytes} bytes of pinned host memory")
    })?;
    given(device, p, bytes)
}

pub(super) fn host_free(device: &Device, addr: Addr) -> Result<()> {
    let _here = device.enter()?;
    // SAFETY: the device is current; the caller gives up the memory.
    let answer = unsafe { call!(device.api, hipHostFree(addr.as_ptr())) };
    device.check(answer, || {
        format!("cannot free the pinned host memory at {:#x}", addr.value())
    })
}

pub(super) fn host_register(device: &Device, addr: Addr, bytes: u64) -> Result<()> {
    let _here = device.enter()?;
    let wanted = size(bytes)?;
    // SAFETY: the device is current; the caller vouches for the memory.
    let answer = unsafe {
        call!(
            device.api,
            hipHostRegister(addr.as_ptr(), wanted, hipHostRegisterPortable)
        )
    };
    device.check(answer, || match answer.code {
        hipErrorHostMemoryAlreadyRegistered => {
            format!(
                "the {bytes} bytes at {:#x} are registered already, or some of them",
                addr.value()
            )
        }
        _ => format!(
            "cannot register {bytes} bytes of host memory at {:#x}",
            addr.value()
        ),
    })
}

pub(super) fn host_unregister(device: &Device, addr: Addr) -> Result<()> {
    let _here = device.enter()?;
    // SAFETY: the device is current.
    let answer = unsafe { call!(device.api, hipHostUnregister(addr.as_ptr())) };
    device.check(answer, || match answer.code {
        hipErrorHostMemoryNotRegistered => {
            format!("the host memory at {:#x} is not registered", addr.value())
        }
        _ => format!("cannot unregister the host memory at {:#x}", addr.value()),
    })
}

/// What a memory kind's number means: ROCm 6 numbered them anew. `None` for memory that the runtime does not know, which
/// since then is an answer of success.
fn place(kinds_of_6: bool, kind: hipMemoryType, ordinal: c_int) -> Option<Place> {
    let device = u32::try_from(ordinal).map_or(Place::Host, Place::Device);
    match (kinds_of_6, kind) {
        (false, hipMemoryTypeHost_5) | (true, hipMemoryTypeHost_6) => Some(Place::Host),
        (false, hipMemoryTypeDevice_5 | hipMemoryTypeArray_5 | hipMemoryTypeUnified_5)
        | (
            true,
            hipMemoryTypeDevice_6 | hipMemoryTypeManaged_6 | hipMemoryTypeArray_6 | hipMemoryTypeUnified_6,
        ) => Some(device),
        _ => None,
    }
}

/// What the runtime knows about a pointer.
pub(super) fn facts(backend: &HipBackend, addr: Addr) -> Option<PointerFacts> {
    let api = backend.api;
    let mut facts = hipPointerAttribute_t {
        memoryType: -1,
        device: -1,
        devicePointer: null_mut(),
        hostPointer: null_mut(),
        isManaged: 0,
        allocationFlags: 0,
    };
    let _relaxed = Relaxed::enter(api);
    // SAFETY: `facts` is writable; any address may be asked about.
    let code = unsafe { (api.hipPointerGetAttributes)(&mut facts, addr.as_ptr()) };
    if code != hipSuccess {
        api.forget(code);
        return None;
    }
    let place = place(backend.kinds_of_6(), facts.memoryType, facts.device)?;
    let (mut base, mut bytes) = (null_mut(), 0usize);
    // SAFETY: both are writable.
    let code = unsafe { (api.hipMemGetAddressRange)(&mut base, &mut bytes, addr.as_ptr()) };
    api.forget(code);
    match (code, place) {
        (hipSuccess, _) if !base.is_null() => Some(PointerFacts {
            place,
            base: base as u64,
            size: bytes as u64,
        }),
        // Host memory without a device's address for it is any memory of the process: some runtimes call that success.
        (_, Place::Host) if facts.devicePointer.is_null() => None,
        _ => Some(PointerFacts {
            place,
            base: addr.value(),
            size: 0,
        }),
    }
}

#[allow(clippy::too_many_arguments)]
pub(super) fn copy(
    backend: &HipBackend,
    device: &Device,
    stream: RawStream,
    dst: Addr,
    dst_place: Place,
    src: Addr,
    src_place: Place,
    bytes: u64,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let count = size(bytes)?;
    let (to, from, on, api) = (dst.as_ptr(), src.as_ptr(), native(stream), device.api);
    let peers = match (dst_place, src_place) {
        (Place::Device(a), Place::Device(b)) if a != b => {
            for ordinal in [a, b] {
                backend.device(ordinal)?.open()?;
            }
            Some((a as c_int, b as c_int))
        }
        _ => None,
    };
    let _current = device.set_current()?;
    let answer = match peers {
        // SAFETY: the caller vouches for both ranges until the work is done; both devices are the runtime's.
        Some((a, b)) => unsafe { call!(api, hipMemcpyPeerAsync(to, a, from, b, count, on)) },
        None => {
            let kind = match (dst_place, src_place) {
                (Place::Device(_), Place::Device(_)) => hipMemcpyDeviceToDevice,
                (Place::Device(_), Place::Host) => hipMemcpyHostToDevice,
                (Place::Host, Place::Device(_)) => hipMemcpyDeviceToHost,
                (Place::Host, Place::Host) => hipMemcpyHostToHost,
            };
            // SAFETY: as above.
            unsafe { call!(api, hipMemcpyAsync(to, from, count, kind, on)) }
        }
    };
    device.check(answer, || {
        format!(
            "cannot copy {bytes} bytes from {:#x} ({}) to {:#x} ({})",
            src.value(),
            spot(src_place),
            dst.value(),
            spot(dst_place)
        )
    })
}

/// The runtime's fills of 16 and 32 bits know no stride: a pattern's lanes are written once, and copied from there on.
const SEED_BYTES: u64 = 0;

pub(super) fn fill(device: &Device, stream: RawStream, dst: Addr, pattern: &[u8], count: u64) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    check(dst.value(), pattern, count)?;
    let _current = device.set_current()?;
    let steps = match plan(dst.value(), pattern, count, SEED_BYTES) {
        Plan::One(step) => vec![step],
        Plan::Many(steps) => steps,
    };
    for step in steps {
        let answer = run(device, native(stream), dst, step);
        device.check(answer, || {
            format!(
                "cannot write {count} patterns of {} bytes to {:#x}",
                pattern.len(),
                dst.value()
            )
        })?;
    }
    Ok(())
}

fn run(device: &Device, on: hipStream_t, dst: Addr, step: Step) -> Answer {
    let api = device.api;
    let (width, value, to, elements) = match step {
        Step::Linear {
            width,
            value,
            elements,
        } => (width, value, dst.as_ptr(), elements as usize),
        // One row, as planned with this seed.
        Step::Lane {
            width, value, offset, ..
        } => (width, value, dst.as_ptr().wrapping_byte_add(offset as usize), 1),
        Step::Copy { to, bytes } => {
            let end = dst.as_ptr().wrapping_byte_add(to as usize);
            // SAFETY: both ranges are inside the one that the caller vouches for.
            return unsafe {
                call!(
                    api,
                    hipMemcpyAsync(end, dst.as_ptr(), bytes as usize, hipMemcpyDefault, on)
                )
            };
        }
    };
    // SAFETY: every step stays inside the range that the caller vouches for.
    unsafe {
        match width {
            1 => call!(api, hipMemsetD8Async(to, value as u8, elements, on)),
            2 => call!(api, hipMemsetD16Async(to, value as u16, elements, on)),
            _ => call!(api, hipMemsetD32Async(to, value as c_int, elements, on)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_kinds_are_read_as_the_runtimes_version_numbers_them() {
        let device = Some(Place::Device(2));
        for (kind, of_5, of_6) in [
            (0, Some(Place::Host), None),
            (1, device, Some(Place::Host)),
            (2, device, device),
            (3, device, device),
            (10, None, device),
            (11, None, device),
            (-1, None, None),
            (77, None, None),
        ] {
            assert_eq!(place(false, kind, 2), of_5, "ROCm 5, {kind}");
            assert_eq!(place(true, kind, 2), of_6, "ROCm 6, {kind}");
        }
        assert_eq!(place(true, hipMemoryTypeDevice_6, -1), Some(Place::Host));
    }
}
