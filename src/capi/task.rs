//! # Tasks
//!
//! Every thread has a task of its own, from its first call to its end. Threads that each do one
//! thing need nothing from this section.
//!
//! A language runtime, a fiber library or an executor that runs many tasks on a few threads makes a
//! tgpu_task for each of its tasks, and swaps it in whenever that task starts to run on a thread.
//! The device, the streams, the wait policy, the scopes and the last error then follow the task
//! instead of the thread:
//!
//! ```c
//! tgpu_task before;
//! tgpu_task_swap(mine, &before); // this thread now acts for mine
//! run_until_it_yields();
//! tgpu_task_swap(before, NULL);
//! ```
//!
//! A swap takes nanoseconds; it binds a device that is already open and opens none. A task can be
//! current on one thread at a time: a second one is answered TGPU_ERROR_TASK_BUSY. A thread that
//! ends with a task swapped in gives it back first.

use super::error::tgpu_status;
use super::handles::tgpu_task;
use super::structs::{read_or_default, AbiStruct};
use super::{check_flags, guard, guard_ending, Out};
use crate::core;
use crate::core::handle::TaskHandle;
use crate::core::task::TaskOptions;

/// Flag of a task: it starts on its creator's current device.
pub const TGPU_TASK_INHERIT_DEVICE: u32 = 1u32;
/// Flag of a task: it starts with its creator's wait policy.
pub const TGPU_TASK_INHERIT_WAIT_POLICY: u32 = 2u32;
/// Flag of a task: on each device, its first work comes after what its creator's current stream
/// there holds at the creation.
pub const TGPU_TASK_INHERIT_ORDER: u32 = 4u32;

/// What a new task shall be like.
#[repr(C)]
pub struct tgpu_task_options {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// 0 or a sum of TGPU_TASK_INHERIT_DEVICE, TGPU_TASK_INHERIT_WAIT_POLICY and
    /// TGPU_TASK_INHERIT_ORDER.
    // A later field must not fall into the padding behind this one: old programs leave garbage there.
    pub flags: u32,
}

// SAFETY: repr(C), size first, numbers.
unsafe impl AbiStruct for tgpu_task_options {
    const NAME: &'static str = "tgpu_task_options";
}

/// Creates a task. It is current nowhere until it is swapped in.
///
/// @param options  NULL for a task that inherits nothing and starts on the process's default
///                 device.
/// @param out      receives the task.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL, or options has a refused
///         struct_size or flag; TGPU_ERROR_CAPTURING if order is inherited from a stream that is
///         being captured; the device statuses.
///
/// Ownership: the caller owns the task; tgpu_task_destroy gives it back.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_task_create(
    options: *const tgpu_task_options,
    out: *mut tgpu_task,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says; the caller's pointer.
        let (options, out) = unsafe { (read_or_default(options, "options")?, Out::new(out, "out")?) };
        check_flags(
            options.flags,
            TGPU_TASK_INHERIT_DEVICE | TGPU_TASK_INHERIT_WAIT_POLICY | TGPU_TASK_INHERIT_ORDER,
            "TGPU_TASK_INHERIT_DEVICE, TGPU_TASK_INHERIT_WAIT_POLICY, TGPU_TASK_INHERIT_ORDER",
        )?;
        let options = TaskOptions {
            inherit_device: options.flags & TGPU_TASK_INHERIT_DEVICE != 0,
            inherit_wait_policy: options.flags & TGPU_TASK_INHERIT_WAIT_POLICY != 0,
            inherit_order: options.flags & TGPU_TASK_INHERIT_ORDER != 0,
        };
        out.set(core::task::create(options)?.bits() as tgpu_task);
        Ok(())
    })
}

/// Destroys a task. Its leases end and their work finishes.
///
/// The handle is invalid at once. A task that is current on a thread keeps its state until it is
/// swapped out there.
///
/// @param t  the task. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if t is no live task; TGPU_ERROR_NOT_PERMITTED if it
///         is a thread's own task; TGPU_ERROR_INTERNAL.
///
/// Ownership: the task is given back.
/// Threads: any thread, also in callbacks and finalizers.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_task_destroy(t: tgpu_task) -> tgpu_status {
    guard_ending(|| core::task::destroy(TaskHandle::from_bits(t as u64)))
}

/// Gives the task that is current on the calling thread: the one swapped in last, else the thread's
/// own.
///
/// @param out  receives the task, never NULL.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL; TGPU_ERROR_INVALID_HANDLE if the
///         current task has been destroyed since it was swapped in; the common statuses.
///
/// Ownership: none of the caller's. A thread's own task ends with its thread and can be swapped in
/// on that thread only.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_task_current(out: *mut tgpu_task) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::task::current()?.bits() as tgpu_task);
        Ok(())
    })
}

/// Makes another task current on the calling thread.
///
/// @param next      the task. NULL is the thread's own task.
/// @param previous  receives the task that was current before, to be swapped back in later; NULL if
///                  that one was destroyed while it was current. May be NULL.
/// @return TGPU_OK, also if next is current here already; TGPU_ERROR_INVALID_HANDLE if it is no
///         live task; TGPU_ERROR_TASK_BUSY if it is current on another thread;
///         TGPU_ERROR_NOT_PERMITTED if it is another thread's own task; the common statuses;
///         TGPU_ERROR_DEVICE_LOST or TGPU_ERROR_BACKEND if its device cannot be bound. On failure
///         nothing changes.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_task_swap(next: tgpu_task, previous: *mut tgpu_task) -> tgpu_status {
    guard(|| {
        let before = core::task::swap(TaskHandle::from_bits(next as u64))?;
        if !previous.is_null() {
            // SAFETY: the caller's pointer, not NULL.
            unsafe { Out::new(previous, "previous") }?.set(before.bits() as tgpu_task);
        }
        Ok(())
    })
}
