//! # Waiting
//!
//! How a call waits is the task's wait policy. TGPU_WAIT_AUTO, the default, polls briefly and then
//! sleeps; when to switch follows from what the waits for the stream have been like. It reaches the
//! latency of spinning on short work, and takes next to no processor time on long work.
//! TGPU_WAIT_SPIN polls until the end. TGPU_WAIT_BLOCK sleeps at once.
//!
//! No lock of the library is held while a call waits, a signal that interrupts a wait restarts it,
//! and every wait ends when the device fails. The calls that wait are tgpu_synchronize,
//! tgpu_device_synchronize, the calls with _synchronize in their names of the streams and events
//! sections, and tgpu_free.

use super::error::tgpu_status;
use super::{guard, invalid, Out};
use crate::core;
use crate::core::sync::WaitPolicy;

/// Wait policy: poll briefly, then sleep.
pub const TGPU_WAIT_AUTO: i32 = 0;
/// Wait policy: poll until the end. The lowest latency, and a processor core.
pub const TGPU_WAIT_SPIN: i32 = 1;
/// Wait policy: sleep at once. The least processor time.
pub const TGPU_WAIT_BLOCK: i32 = 2;

/// Waits until everything queued so far on the current stream of the task's current device is done.
///
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if the stream that was set has been destroyed since;
///         TGPU_ERROR_CAPTURING if it is being captured; the device statuses,
///         TGPU_ERROR_DEVICE_LOST also if the device fails during the wait.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: yes, by the task's wait policy.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_synchronize() -> tgpu_status {
    guard(core::sync::synchronize)
}

/// Sets how the task waits from now on. A task starts with what TASKGPU_WAIT says, else
/// TGPU_WAIT_AUTO.
///
/// @param policy  TGPU_WAIT_AUTO, TGPU_WAIT_SPIN or TGPU_WAIT_BLOCK.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if policy is none of them; the common statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_wait_policy_set(policy: i32) -> tgpu_status {
    guard(|| {
        let policy = WaitPolicy::from_code(policy).ok_or_else(|| {
            invalid(format!(
                "policy is {policy}; allowed are TGPU_WAIT_AUTO (0), TGPU_WAIT_SPIN (1) and TGPU_WAIT_BLOCK (2)"
            ))
        })?;
        core::sync::policy_set(policy)
    })
}

/// Gives the task's wait policy.
///
/// @param out  receives TGPU_WAIT_AUTO, TGPU_WAIT_SPIN or TGPU_WAIT_BLOCK.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL; the common statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_wait_policy_get(out: *mut i32) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::sync::policy()? as i32);
        Ok(())
    })
}
