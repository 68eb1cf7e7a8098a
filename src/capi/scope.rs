//! # Scopes
//!
//! A scope switches the task's device or stream for a while. Leaving it restores what was current
//! when it was entered: the device, and the current streams of that device and of the one that the
//! scope switched to. Scopes nest, and are left in the opposite order. A scope belongs to its task,
//! wherever that runs, and costs no allocation where less than nine are open at once.
//!
//! ```c
//! tgpu_scope scope;
//! if (tgpu_scope_enter_device(1, &scope) == TGPU_OK) {
//!   library_call_that_uses_the_current_device();
//!   tgpu_scope_leave(scope);
//! }
//! ```

use super::device::tgpu_device;
use super::error::tgpu_status;
use super::handles::tgpu_stream;
use super::stream::stream;
use super::{guard, Out};
use crate::core;
use crate::core::scope::Scope;

/// What leaving a scope needs to know. Passed by value; what it puts back is kept by the task.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tgpu_scope {
    /// Do not touch.
    pub opaque: [u64; 2],
}

/// Makes a device current as tgpu_device_set does, until the scope is left.
///
/// A GPU that nobody has used yet is not opened by this, and becomes the thread's vendor device with
/// its first use.
///
/// @param d    the device.
/// @param out  receives the scope.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device;
///         TGPU_ERROR_INVALID_ARGUMENT if out is NULL; the device statuses. On failure nothing
///         changes.
///
/// Ownership: the caller keeps the scope and leaves it once.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_scope_enter_device(d: tgpu_device, out: *mut tgpu_scope) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(tgpu_scope {
            opaque: core::scope::enter_device(d)?.0,
        });
        Ok(())
    })
}

/// Makes a stream and its device current as tgpu_stream_set does, until the scope is left.
///
/// @param s    the stream. NULL is the task's lease on the current device.
/// @param out  receives the scope.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if s is no live stream; TGPU_ERROR_NOT_PERMITTED if
///         it is leased to another task; TGPU_ERROR_INVALID_ARGUMENT
///         if out is NULL; the device statuses. On failure nothing changes.
///
/// Ownership: the caller keeps the scope and leaves it once; the stream must be kept alive until
/// then.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_scope_enter_stream(s: tgpu_stream, out: *mut tgpu_scope) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(tgpu_scope {
            opaque: core::scope::enter_stream(stream(s))?.0,
        });
        Ok(())
    })
}

/// Restores the device and stream that were current when the scope was entered.
///
/// @param scope  the innermost scope of the task.
/// @return TGPU_OK; TGPU_ERROR_SCOPE_MISMATCH if scope is not the innermost one of the current
///         task, was left before, never was a scope, or somebody wrote into it, and then nothing is
///         restored; the device statuses.
///
/// Ownership: the scope is used up.
/// Threads: any thread on which the task is current.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_scope_leave(scope: tgpu_scope) -> tgpu_status {
    guard(|| core::scope::leave(Scope(scope.opaque)))
}
