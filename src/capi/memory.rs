//! # Memory
//!
//! Device memory belongs to one device and is reached by kernels that run there. tgpu_malloc gives
//! memory that every stream may use at once, and tgpu_free waits for the device, so that nothing
//! can still be using it. tgpu_malloc_async and tgpu_free_async are ordered like work on a stream:
//! they take memory from a pool and give it back without waiting for anything. tgpu_free_deferred
//! is for finalizers. Any free call takes memory of either kind, from any task and thread, whatever
//! device is current.
//!
//! Pinned host memory is reached by the host and by all devices of the backend, and makes copies
//! fast and asynchronous.
//!
//! Copies and fills are queued on a stream like kernels. The memory they name must stay valid until
//! they are done. A copy to or from ordinary host memory may wait for earlier work of its stream.
//! Data moves between devices only by tgpu_memcpy.
//!
//! When memory runs out, the library waits for the device, gives back what its pools hold unused,
//! calls the reclaim hooks, and tries again, before it answers TGPU_ERROR_OUT_OF_MEMORY.

use super::device::tgpu_device;
use super::error::tgpu_status;
use super::handles::tgpu_stream;
use super::stream::stream;
use super::structs::{AbiStruct, OutStruct};
use super::{guard, guard_ending, invalid, null, Out};
use crate::backend::{Addr, Result};
use crate::core;
use std::ffi::c_void;
use std::ptr;

/// Kind of a pointer: not known, as in a struct that has not been filled.
pub const TGPU_POINTER_UNKNOWN: i32 = 0;
/// Kind of a pointer: memory of a device.
pub const TGPU_POINTER_DEVICE: i32 = 1;
/// Kind of a pointer: pinned host memory.
pub const TGPU_POINTER_HOST_PINNED: i32 = 2;
/// Kind of a pointer: host memory of the program that was pinned with tgpu_host_register.
pub const TGPU_POINTER_HOST_REGISTERED: i32 = 3;

/// What a pointer points into.
#[repr(C)]
pub struct tgpu_pointer_info {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// TGPU_POINTER_DEVICE, TGPU_POINTER_HOST_PINNED or TGPU_POINTER_HOST_REGISTERED.
    pub kind: i32,
    /// The device that owns the memory, or for host memory the one that was current when it was
    /// pinned.
    pub device: tgpu_device,
    /// The first byte of the allocation. The pointer itself if that is not known.
    pub base: *mut c_void,
    /// Bytes of the allocation. 0 if that is not known.
    pub size: u64,
}

// SAFETY: repr(C), size first, numbers and a raw pointer.
unsafe impl AbiStruct for tgpu_pointer_info {
    const NAME: &'static str = "tgpu_pointer_info";
}

/// A function of the program that frees memory when an allocation finds none: data is what it was
/// added with, device the device that ran out, bytes_needed what was asked for. It may call
/// everything here, and must not throw an exception or jump out.
pub type tgpu_reclaim_hook =
    Option<unsafe extern "C" fn(data: *mut c_void, device: tgpu_device, bytes_needed: u64)>;

/// An address that the caller vouches for: the memory stays valid until the work with it is done,
/// as the conventions of the header demand.
///
/// # Safety
/// That.
#[inline(always)]
unsafe fn addr(p: *const c_void) -> Addr {
    // SAFETY: the caller's promise.
    unsafe { Addr::from_caller(p) }
}

/// Refuses NULL where there is something to access.
fn check_memory(p: *const c_void, size: u64, name: &str) -> Result<()> {
    if p.is_null() && size > 0 {
        return Err(null(name));
    }
    Ok(())
}

/// Allocates memory on the task's current device.
///
/// @param bytes  how much.
/// @param out    receives the pointer, aligned to 256 bytes at least; NULL if bytes is 0.
/// @return TGPU_OK; TGPU_ERROR_OUT_OF_MEMORY if the device has not that much left;
///         TGPU_ERROR_INVALID_ARGUMENT if out is NULL; the device statuses.
///
/// Ownership: the caller owns the memory; tgpu_free, tgpu_free_async or tgpu_free_deferred gives it
/// back.
/// Threads: any thread.
/// Blocks: only when memory has run out.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_malloc(bytes: u64, out: *mut *mut c_void) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::memory::malloc(bytes)?.as_ptr());
        Ok(())
    })
}

/// Frees device memory after waiting for everything queued on its device.
///
/// @param p  what an allocation call gave. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if p is no device memory of ours, points inside an
///         allocation or was freed before; TGPU_ERROR_IN_CALLBACK in a callback or host kernel;
///         TGPU_ERROR_DEVICE_LOST or TGPU_ERROR_BACKEND if the vendor says so, and the memory is
///         given up all the same; TGPU_ERROR_INTERNAL.
///
/// Ownership: the memory is given back.
/// Threads: any thread.
/// Blocks: yes, until the device is idle.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_free(p: *mut c_void) -> tgpu_status {
    // SAFETY: looked up in our books, never accessed.
    guard_ending(|| core::memory::free(unsafe { addr(p) }))
}

/// Allocates memory from a pool of a stream's device, in the order of the stream.
///
/// The stream may use the memory from now on. Another stream must first wait for a point of this
/// one after the call.
///
/// @param bytes  how much.
/// @param s      the stream, NULL for the current one.
/// @param out    receives the pointer, aligned to 256 bytes at least; NULL if bytes is 0.
/// @return TGPU_OK; TGPU_ERROR_OUT_OF_MEMORY if the device has not that much left;
///         TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_INVALID_ARGUMENT if out is
///         NULL; TGPU_ERROR_CAPTURING if s is being captured; the device statuses.
///
/// Ownership: the caller owns the memory; tgpu_free_async, tgpu_free or tgpu_free_deferred gives it
/// back.
/// Threads: any thread.
/// Blocks: only when memory has run out.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_malloc_async(bytes: u64, s: tgpu_stream, out: *mut *mut c_void) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::memory::malloc_async(bytes, stream(s))?.as_ptr());
        Ok(())
    })
}

/// Frees device memory after the work queued so far on a stream.
///
/// The stream may be one of another device: then the free is ordered after it by an event.
///
/// @param p  what an allocation call gave. NULL is OK and does nothing.
/// @param s  the stream that used the memory last, NULL for the current one.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if p is no device memory of ours, points inside an
///         allocation or was freed before; TGPU_ERROR_INVALID_HANDLE if s is no live stream;
///         TGPU_ERROR_CAPTURING if s is being captured; TGPU_ERROR_NOT_SUPPORTED if s is another
///         backend's and the memory's device cannot wait for it; the device statuses.
///
/// Ownership: the memory is given back if the answer is TGPU_OK.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_free_async(p: *mut c_void, s: tgpu_stream) -> tgpu_status {
    // SAFETY: looked up in our books, never accessed.
    guard_ending(|| core::memory::free_async(unsafe { addr(p) }, stream(s)))
}

/// Frees device memory later, after everything queued now on its device: the call for finalizers.
///
/// Uses no stream and no task. The memory is taken back by a thread of the library.
///
/// @param p  what an allocation call gave. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if p is no device memory of ours, points inside an
///         allocation or was freed before; TGPU_ERROR_INTERNAL.
///
/// Ownership: the memory is given back; p must not be used for new work from now on.
/// Threads: any thread, also in callbacks and finalizers.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_free_deferred(p: *mut c_void) -> tgpu_status {
    // SAFETY: looked up in our books, never accessed.
    guard_ending(|| core::memory::free_deferred(unsafe { addr(p) }))
}

/// Allocates pinned host memory that all devices of the current device's backend can reach.
///
/// @param bytes  how much.
/// @param out    receives the pointer; NULL if bytes is 0.
/// @return TGPU_OK; TGPU_ERROR_OUT_OF_MEMORY if there is not that much to be had;
///         TGPU_ERROR_INVALID_ARGUMENT if out is NULL; the device statuses.
///
/// Ownership: the caller owns the memory; tgpu_host_free gives it back.
/// Threads: any thread.
/// Blocks: only when memory has run out.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_host_malloc(bytes: u64, out: *mut *mut c_void) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::memory::host_malloc(bytes)?.as_ptr());
        Ok(())
    })
}

/// Frees pinned host memory once the work queued so far has passed.
///
/// @param p  what tgpu_host_malloc gave. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if p did not come from tgpu_host_malloc or was
///         freed before; TGPU_ERROR_INTERNAL.
///
/// Ownership: the memory is given back; the host must not touch it any more.
/// Threads: any thread, also in callbacks and finalizers.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_host_free(p: *mut c_void) -> tgpu_status {
    // SAFETY: looked up in our books, never accessed.
    guard_ending(|| core::memory::host_free(unsafe { addr(p) }))
}

/// Pins host memory of the program, so that copies with it are as fast as with memory of
/// tgpu_host_malloc.
///
/// @param p      the first byte.
/// @param bytes  how much. 0 is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if p is NULL and bytes is not 0, the range wraps
///         around, or it overlaps one that is pinned already; TGPU_ERROR_OUT_OF_MEMORY if no more
///         may be pinned; TGPU_ERROR_NOT_SUPPORTED if the device cannot; the device statuses.
///
/// Ownership: the memory stays the caller's and must not be freed before tgpu_host_unregister.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_host_register(p: *mut c_void, bytes: u64) -> tgpu_status {
    guard(|| {
        check_memory(p, bytes, "p")?;
        // SAFETY: the caller keeps the memory until it is unregistered.
        core::memory::host_register(unsafe { addr(p) }, bytes)
    })
}

/// Undoes tgpu_host_register, after the work that uses the memory is done.
///
/// @param p  the pointer that was registered. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if p is not registered; the device statuses.
///
/// Ownership: the memory was and stays the caller's.
/// Threads: any thread.
/// Blocks: until the work that the backend knows to use the memory is done.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_host_unregister(p: *mut c_void) -> tgpu_status {
    // SAFETY: looked up in our books, never accessed.
    guard(|| core::memory::host_unregister(unsafe { addr(p) }))
}

/// Copies between any two places: host and device, two devices, two hosts. The ranges must not
/// overlap.
///
/// Ordered on the stream only. A copy between two devices goes directly where the vendor can, else
/// through host memory; it enables no peer access by itself.
///
/// @param dst    where to.
/// @param src    where from.
/// @param bytes  how much. 0 is OK and does nothing.
/// @param s      the stream, NULL for the current one.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if dst or src is NULL and bytes is not 0, or one of
///         them is ours and the range goes beyond its end; TGPU_ERROR_INVALID_HANDLE if s is no
///         live stream; TGPU_ERROR_NOT_SUPPORTED if there is no way between the two devices;
///         TGPU_ERROR_CAPTURING if the copy must be staged and s is being captured; the device
///         statuses.
///
/// Ownership: both ranges must stay valid, and src unchanged, until the copy is done.
/// Threads: any thread.
/// Blocks: no; ordinary host memory may wait for earlier work of the stream.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_memcpy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: u64,
    s: tgpu_stream,
) -> tgpu_status {
    guard(|| {
        check_memory(dst, bytes, "dst")?;
        check_memory(src, bytes, "src")?;
        // SAFETY: the caller keeps both ranges valid until the copy is done.
        let (dst, src) = unsafe { (addr(dst), addr(src)) };
        core::memory::memcpy(dst, src, bytes, stream(s))
    })
}

/// Sets bytes of device memory or pinned host memory to one value, in the order of a stream.
///
/// @param dst    the first byte.
/// @param byte   the value.
/// @param bytes  how many. 0 is OK and does nothing.
/// @param s      the stream, NULL for the current one.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if dst is NULL and bytes is not 0, is no memory of
///         a device or pinned memory, or the range goes beyond its end; TGPU_ERROR_INVALID_HANDLE
///         if s is no live stream; the device statuses.
///
/// Ownership: the range must stay valid until the work is done.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_memset(dst: *mut c_void, byte: u8, bytes: u64, s: tgpu_stream) -> tgpu_status {
    guard(|| {
        check_memory(dst, bytes, "dst")?;
        // SAFETY: the caller keeps the range valid until the work is done.
        core::memory::fill(unsafe { addr(dst) }, &[byte], bytes, stream(s))
    })
}

/// Fills device memory or pinned host memory with copies of a pattern, in the order of a stream.
///
/// @param dst           the first byte, aligned to pattern_size.
/// @param pattern       one element, read during the call. May be NULL if count is 0.
/// @param pattern_size  its bytes: 1, 2, 4, 8 or 16.
/// @param count         how many elements. 0 is OK and does nothing.
/// @param s             the stream, NULL for the current one.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if pattern_size is none of them, dst or pattern is
///         NULL and count is not 0, dst is not aligned, is no memory of a device or pinned memory,
///         or the range goes beyond its end; TGPU_ERROR_INVALID_HANDLE if s is no live stream; the
///         device statuses.
///
/// Ownership: the range must stay valid until the work is done; the pattern may go at once.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_fill(
    dst: *mut c_void,
    pattern: *const c_void,
    pattern_size: u64,
    count: u64,
    s: tgpu_stream,
) -> tgpu_status {
    guard(|| {
        if !matches!(pattern_size, 1 | 2 | 4 | 8 | 16) {
            return Err(invalid(format!(
                "pattern_size is {pattern_size}; allowed are 1, 2, 4, 8 and 16"
            )));
        }
        check_memory(dst, count, "dst")?;
        check_memory(pattern, count, "pattern")?;
        let mut element = [0_u8; 16];
        let element = &mut element[..pattern_size as usize];
        if count > 0 {
            // SAFETY: the caller's pattern has pattern_size bytes, and so has the local.
            unsafe { ptr::copy_nonoverlapping(pattern.cast::<u8>(), element.as_mut_ptr(), element.len()) };
        }
        // SAFETY: the caller keeps the range valid until the work is done.
        core::memory::fill(unsafe { addr(dst) }, element, count, stream(s))
    })
}

/// Tells what a pointer points into.
///
/// @param p    any pointer; it is not followed.
/// @param out  receives the facts.
/// @return TGPU_OK; TGPU_ERROR_NOT_FOUND if it is neither our memory nor known to a vendor's
///         runtime, as is ordinary host memory; TGPU_ERROR_INVALID_ARGUMENT if out is NULL or its
///         struct_size is refused; the common statuses.
///
/// Ownership: the caller gets a copy.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_pointer_info_get(p: *const c_void, out: *mut tgpu_pointer_info) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says.
        let out = unsafe { OutStruct::new(out, "out") }?;
        // SAFETY: looked up, never accessed.
        let report = core::memory::pointer_info(unsafe { addr(p) })?;
        out.write(|info| {
            info.kind = report.kind as i32;
            info.device = report.device as tgpu_device;
            info.base = report.base as *mut c_void;
            info.size = report.size;
        });
        Ok(())
    })
}

/// Gives memory that our pool of a device holds unused back to the device.
///
/// @param d           the device.
/// @param keep_bytes  what the pool may keep.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no; memory whose free has not been reached by its stream stays.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_memory_trim(d: tgpu_device, keep_bytes: u64) -> tgpu_status {
    guard(|| core::memory::trim(d, keep_bytes))
}

/// Adds a function that is called when an allocation finds no memory, before it answers
/// TGPU_ERROR_OUT_OF_MEMORY.
///
/// Process-wide: for a garbage collector to run, or a cache to let go. The thread whose allocation
/// failed calls all hooks in the order they were added, with no lock held, then tries again once.
/// An allocation inside a hook calls no hooks. There is no call to remove a hook.
///
/// @param fn    the function.
/// @param data  handed to it.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if fn is NULL; the common statuses.
///
/// Ownership: fn and data must stay valid for the life of the process. fn may be called by several
/// threads at the same time.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_memory_reclaim_hook_add(
    r#fn: tgpu_reclaim_hook,
    data: *mut c_void,
) -> tgpu_status {
    guard(|| {
        let function = r#fn.ok_or_else(|| null("fn"))?;
        // A number and not a pointer, since other threads call the hook.
        let data = data as usize;
        let hook = move |device: u32, bytes: u64| {
            // SAFETY: the caller keeps function and data valid for ever, for any thread.
            unsafe { function(data as *mut c_void, device as tgpu_device, bytes) }
        };
        core::memory::reclaim_hook_add(Box::new(hook))
    })
}
