//! Memory, copies and fills.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use super::api::{
    call, Answer, CuDevicePtr, CuStream, MEMHOSTALLOC_PORTABLE, MEMHOSTREGISTER_PORTABLE, MEMORY_TYPE_DEVICE,
    MEMORY_TYPE_HOST, MEMORY_TYPE_UNIFIED, POINTER_DEVICE_ORDINAL, POINTER_MEMORY_TYPE, POINTER_RANGE_SIZE,
    POINTER_RANGE_START,
};
use super::codes::{HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_CONTEXT, SUCCESS};
use super::device::{Device, Relaxed};
use super::stream::{callback, capturing, context_for, fence, fence_block, fence_drop, native};
use super::CudaBackend;
use crate::backend::common::{size, spot};
use crate::backend::fill::{check, plan, Plan, Step};
use crate::backend::{Addr, Error, Place, PointerFacts, RawStream, Result, Status};

/// Bytes at most that strided fills write: from there on copies are faster.
const SEED_BYTES: u64 = 256 * 1024;

/// F31: an answer of success with no memory is no success.
fn given(device: &Device, address: CuDevicePtr, bytes: u64) -> Result<Addr> {
    if address == 0 {
        return Err(Error::new(
            Status::OutOfMemory,
            format!(
                "CUDA device {}: the driver answered success and no memory for {bytes} bytes",
                device.ordinal
            ),
        ));
    }
    Ok(Addr::from_backend(address))
}

pub(super) fn info(device: &Device) -> Result<(u64, u64)> {
    let _here = device.enter()?;
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: both are writable; the context is current.
    let answer = unsafe { call!(device.api, cuMemGetInfo_v2(&mut free, &mut total)) };
    device.check(answer, || "cannot ask for the free memory".into())?;
    Ok((free as u64, total as u64))
}

pub(super) fn synchronize(device: &Device) -> Result<()> {
    let _here = device.enter()?;
    // SAFETY: the context is current.
    let answer = unsafe { call!(device.api, cuCtxSynchronize()) };
    device.check(answer, || "cannot wait for the device".into())
}

pub(super) fn alloc(device: &Device, bytes: u64) -> Result<Addr> {
    let _here = device.enter()?;
    let mut address = 0;
    let wanted = size(bytes)?;
    // SAFETY: `address` is writable; the context is current.
    let answer = unsafe { call!(device.api, cuMemAlloc_v2(&mut address, wanted)) };
    device.check(answer, || format!("cannot allocate {bytes} bytes"))?;
    given(device, address, bytes)
}

/// Frees memory whose use is over. For memory of the pool the vendor waits for nothing here, for other memory it may.
pub(super) fn free(device: &Device, addr: Addr) -> Result<()> {
    let _here = device.enter()?;
    // SAFETY: the context is current; the caller gives up the memory.
    let answer = unsafe { call!(device.api, cuMemFree_v2(addr.value())) };
    device.check(answer, || format!("cannot free {:#x}", addr.value()))
}

pub(super) fn alloc_async(device: &Device, stream: RawStream, bytes: u64) -> Result<Addr> {
    let (pool, Some(from_pool)) = (device.pool(), device.api.cuMemAllocFromPoolAsync) else {
        return alloc(device, bytes);
    };
    if pool.is_null() {
        return alloc(device, bytes);
    }
    let wanted = size(bytes)?;
    let mut address = 0;
    let mut ask = || Answer {
        // SAFETY: `address` is writable, pool and stream are live.
        code: unsafe { from_pool(&mut address, wanted, pool, native(stream)) },
        function: "cuMemAllocFromPoolAsync",
    };
    let context = context_for(device, stream)?;
    // Without this a capture of another thread's refuses the call and ends with it (seen with driver 580).
    let relaxed = Relaxed::enter(device.api);
    let mut answer = ask();
    drop(relaxed);
    if answer.code == INVALID_CONTEXT && context.is_none() {
        let _here = device.enter()?;
        answer = ask();
    }
    device.check(answer, || format!("cannot allocate {bytes} bytes from the pool"))?;
    given(device, address, bytes)
}

pub(super) fn free_async(device: &Device, stream: RawStream, addr: Addr) -> Result<()> {
    let Some(free_ordered) = device.api.cuMemFreeAsync.filter(|_| !device.pool().is_null()) else {
        // No pools on this device: the order is kept by waiting.
        let mut mark = fence(device, stream)?;
        let waited = fence_block(device, &mut mark, None);
        fence_drop(device, &mark);
        waited?;
        return free(device, addr);
    };
    let ask = || Answer {
        // SAFETY: the caller gives up the memory; the stream is live.
        code: unsafe { free_ordered(addr.value(), native(stream)) },
        function: "cuMemFreeAsync",
    };
    let context = context_for(device, stream)?;
    let relaxed = Relaxed::enter(device.api);
    let mut answer = ask();
    drop(relaxed);
    if answer.code == INVALID_CONTEXT && context.is_none() {
        let _here = device.enter()?;
        answer = ask();
    }
    device.check(answer, || {
        format!("cannot free {:#x} in the order of a stream", addr.value())
    })
}

pub(super) fn trim(device: &Device, keep: u64) -> Result<()> {
    let (pool, Some(trim_to)) = (device.pool(), device.api.cuMemPoolTrimTo) else {
        return Ok(());
    };
    if pool.is_null() {
        return Ok(());
    }
    let _here = device.enter()?;
    // SAFETY: the pool is never destroyed.
    let code = unsafe { trim_to(pool, usize::try_from(keep).unwrap_or(usize::MAX)) };
    device.check(
        Answer {
            code,
            function: "cuMemPoolTrimTo",
        },
        || format!("cannot trim the pool to {keep} bytes"),
    )
}

pub(super) fn host_alloc(device: &Device, bytes: u64) -> Result<Addr> {
    let _here = device.enter()?;
    let mut p = null_mut();
    let wanted = size(bytes)?;
    // SAFETY: `p` is writable; the context is current.
    let answer = unsafe { call!(device.api, cuMemHostAlloc(&mut p, wanted, MEMHOSTALLOC_PORTABLE)) };
    device.check(answer, || {
        format!("cannot allocate {bytes} bytes of pinned host memory")
    })?;
    given(device, p as u64, bytes)
}

pub(super) fn host_free(device: &Device, addr: Addr) -> Result<()> {
    let _here = device.enter()?;
    // SAFETY: the context is current; the caller gives up the memory.
    let answer = unsafe { call!(device.api, cuMemFreeHost(addr.as_ptr())) };
    device.check(answer, || {
        format!("cannot free the pinned host memory at {:#x}", addr.value())
    })
}

pub(super) fn host_register(device: &Device, addr: Addr, bytes: u64) -> Result<()> {
    let _here = device.enter()?;
    let wanted = size(bytes)?;
    // SAFETY: the context is current; the caller vouches for the memory.
    let answer = unsafe {
        call!(
            device.api,
            cuMemHostRegister_v2(addr.as_ptr(), wanted, MEMHOSTREGISTER_PORTABLE)
        )
    };
    device.check(answer, || match answer.code {
        HOST_MEMORY_ALREADY_REGISTERED => {
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
    // SAFETY: the context is current.
    let answer = unsafe { call!(device.api, cuMemHostUnregister(addr.as_ptr())) };
    device.check(answer, || match answer.code {
        HOST_MEMORY_NOT_REGISTERED => format!("the host memory at {:#x} is not registered", addr.value()),
        _ => format!("cannot unregister the host memory at {:#x}", addr.value()),
    })
}

/// What the driver knows about a pointer.
pub(super) fn facts(backend: &CudaBackend, addr: Addr) -> Option<PointerFacts> {
    let (mut kind, mut ordinal, mut base, mut bytes): (c_uint, c_int, u64, usize) = (0, -1, 0, 0);
    let mut wanted = [
        POINTER_MEMORY_TYPE,
        POINTER_DEVICE_ORDINAL,
        POINTER_RANGE_START,
        POINTER_RANGE_SIZE,
    ];
    let mut out: [*mut c_void; 4] = [
        (&raw mut kind).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut base).cast(),
        (&raw mut bytes).cast(),
    ];
    let mut ask = || {
        // SAFETY: four attributes, each with room for its type. A pointer the driver does not know gives zeros.
        unsafe {
            (backend.api.cuPointerGetAttributes)(4, wanted.as_mut_ptr(), out.as_mut_ptr(), addr.value())
        }
    };
    let _relaxed = Relaxed::enter(backend.api);
    let mut code = ask();
    if code == INVALID_CONTEXT {
        let open = backend.devices.iter().find(|d| !d.context().is_null())?;
        let _there = open.enter().ok()?;
        code = ask();
    }
    if code != SUCCESS {
        return None;
    }
    let place = match kind {
        MEMORY_TYPE_HOST => Place::Host,
        MEMORY_TYPE_DEVICE | MEMORY_TYPE_UNIFIED => u32::try_from(ordinal).map_or(Place::Host, Place::Device),
        _ => return None,
    };
    Some(match base {
        0 => PointerFacts {
            place,
            base: addr.value(),
            size: 0,
        },
        _ => PointerFacts {
            place,
            base,
            size: bytes as u64,
        },
    })
}

#[allow(clippy::too_many_arguments)]
pub(super) fn copy(
    backend: &CudaBackend,
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
    let hosts = (dst_place, src_place) == (Place::Host, Place::Host);
    if hosts && is_pinned(backend, dst) && is_pinned(backend, src) && !capturing(device, stream)? {
        return copy_on_host(device, stream, dst, src, count);
    }
    let (to, from, on) = (dst.value(), src.value(), native(stream));
    let _context = context_for(device, stream)?;
    let api = device.api;
    let answer = match (dst_place, src_place) {
        (Place::Device(a), Place::Device(b)) if a == device.ordinal && b == device.ordinal => {
            // SAFETY: the caller vouches for both ranges until the work is done.
            unsafe { call!(api, cuMemcpyDtoDAsync_v2(to, from, count, on)) }
        }
        (Place::Device(a), Place::Device(b)) => {
            let (to_context, from_context) = (backend.device(a)?.open()?, backend.device(b)?.open()?);
            // SAFETY: as above; both contexts are retained for good.
            unsafe {
                call!(
                    api,
                    cuMemcpyPeerAsync(to, to_context, from, from_context, count, on)
                )
            }
        }
        // SAFETY: as above.
        (Place::Device(_), Place::Host) => unsafe {
            call!(api, cuMemcpyHtoDAsync_v2(to, src.as_ptr(), count, on))
        },
        // SAFETY: as above.
        (Place::Host, Place::Device(_)) => unsafe {
            call!(api, cuMemcpyDtoHAsync_v2(dst.as_ptr(), from, count, on))
        },
        // SAFETY: as above.
        (Place::Host, Place::Host) => unsafe { call!(api, cuMemcpyAsync(to, from, count, on)) },
    };
    device.check(answer, || {
        format!(
            "cannot copy {bytes} bytes from {from:#x} ({}) to {to:#x} ({})",
            spot(src_place),
            spot(dst_place)
        )
    })
}

/// Whether the driver knows host memory. A stream needs not come to a standstill for it: unlike other host memory it is
/// not read or written during the call by the copies before and behind it.
fn is_pinned(backend: &CudaBackend, addr: Addr) -> bool {
    facts(backend, addr).is_some_and(|facts| facts.place == Place::Host)
}

/// The driver's copy from host to host waits for what is queued before it, of pinned memory too ("API synchronization
/// behavior" in its reference), so its thread for callbacks copies. In a capture the driver's own is recorded: a graph may
/// run it more than once.
fn copy_on_host(device: &Device, stream: RawStream, dst: Addr, src: Addr, count: usize) -> Result<()> {
    let (to, from) = (dst.value(), src.value());
    let copy = move |status| {
        if status == Status::Ok {
            // SAFETY: the caller of the copy vouches for both ranges until the work is done.
            unsafe { std::ptr::copy(from as *const u8, to as *mut u8, count) };
        }
    };
    callback(device, stream, Box::new(copy))
}

/// As in [`copy_on_host`]: strided fills and copies of pinned memory wait for what is queued before them.
fn fill_on_host(device: &Device, stream: RawStream, dst: Addr, pattern: &[u8], count: u64) -> Result<()> {
    let (to, pattern) = (dst.value(), pattern.to_vec());
    let fill = move |status| {
        if status == Status::Ok {
            for at in 0..count as usize {
                // SAFETY: the caller of the fill vouches for the whole range until the work is done.
                unsafe {
                    let to = (to as *mut u8).add(at * pattern.len());
                    std::ptr::copy_nonoverlapping(pattern.as_ptr(), to, pattern.len());
                }
            }
        }
    };
    callback(device, stream, Box::new(fill))
}

pub(super) fn fill(
    backend: &CudaBackend,
    device: &Device,
    stream: RawStream,
    dst: Addr,
    pattern: &[u8],
    count: u64,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    check(dst.value(), pattern, count)?;
    let _context = context_for(device, stream)?;
    let on = native(stream);
    let steps = plan(dst.value(), pattern, count, SEED_BYTES);
    if matches!(steps, Plan::Many(_)) && is_pinned(backend, dst) && !capturing(device, stream)? {
        return fill_on_host(device, stream, dst, pattern, count);
    }
    let answer = match steps {
        Plan::One(step) => run(device, on, dst.value(), step),
        Plan::Many(steps) => steps
            .into_iter()
            .map(|step| run(device, on, dst.value(), step))
            .find(|answer| answer.code != SUCCESS)
            .unwrap_or(Answer {
                code: SUCCESS,
                function: "",
            }),
    };
    device.check(answer, || {
        format!(
            "cannot write {count} patterns of {} bytes to {:#x}",
            pattern.len(),
            dst.value()
        )
    })
}

fn run(device: &Device, on: CuStream, dst: u64, step: Step) -> Answer {
    let api = device.api;
    // SAFETY: every step stays inside the range that the caller vouches for.
    unsafe {
        match step {
            Step::Linear {
                width: 1,
                value,
                elements,
            } => {
                call!(api, cuMemsetD8Async(dst, value as u8, elements as usize, on))
            }
            Step::Linear {
                width: 2,
                value,
                elements,
            } => {
                call!(api, cuMemsetD16Async(dst, value as u16, elements as usize, on))
            }
            Step::Linear { value, elements, .. } => {
                call!(api, cuMemsetD32Async(dst, value, elements as usize, on))
            }
            Step::Lane {
                width: 1,
                value,
                offset,
                pitch,
                rows,
            } => {
                call!(
                    api,
                    cuMemsetD2D8Async(dst + offset, pitch as usize, value as u8, 1, rows as usize, on)
                )
            }
            Step::Lane {
                width: 2,
                value,
                offset,
                pitch,
                rows,
            } => {
                call!(
                    api,
                    cuMemsetD2D16Async(dst + offset, pitch as usize, value as u16, 1, rows as usize, on)
                )
            }
            Step::Lane {
                value,
                offset,
                pitch,
                rows,
                ..
            } => {
                call!(
                    api,
                    cuMemsetD2D32Async(dst + offset, pitch as usize, value, 1, rows as usize, on)
                )
            }
            Step::Copy { to, bytes } => call!(api, cuMemcpyDtoDAsync_v2(dst + to, dst, bytes as usize, on)),
        }
    }
}
