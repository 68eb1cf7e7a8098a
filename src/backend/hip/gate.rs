//! Gates: how a stream waits for what happens outside of this runtime.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::api::Answer;
use super::device::Device;
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use super::stream::{native, refuse_capture};
use crate::backend::{Arrange, Error, Gate, RawStream, Result, Status};

/// A number in signal memory that streams wait for. It only grows, so that a flag can serve the next gate though a stream may
/// not have looked at it since it was set for the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    cell: &'static AtomicU64,
    value: u32,
}

fn unable(device: &Device) -> Error {
    Error::new(
        Status::NotSupported,
        format!(
            "HIP device {} or its runtime cannot make a stream wait for a number in memory",
            device.ordinal
        ),
    )
}

/// The runtime hands out memory that its streams can wait on in pieces of 8 bytes, which the host writes to as well.
fn free_flag(device: &Device) -> Result<Flag> {
    if let Some(flag) = device.flags.pop() {
        return Ok(flag);
    }
    let allocate = device.api.hipExtMallocWithFlags.ok_or_else(|| unable(device))?;
    let _here = device.enter()?;
    let mut p = null_mut();
    let answer = Answer {
        // SAFETY: `p` is writable; the device is current.
        code: unsafe { allocate(&mut p, size_of::<AtomicU64>(), hipMallocSignalMemory) },
        function: "hipExtMallocWithFlags",
    };
    device.given(answer, p, || "cannot allocate memory to wait on".into())?;
    // SAFETY: fresh memory of that size, which is kept for good: a stream may look at it at any time.
    let cell: &'static AtomicU64 = unsafe {
        p.cast::<u64>().write(0);
        &*p.cast::<AtomicU64>()
    };
    Ok(Flag { cell, value: 0 })
}

/// Holds later work on the stream back until the gate is opened, which is one store to memory.
pub(super) fn gate(device: &Device, stream: RawStream, arrange: Arrange<'_>) -> Result<()> {
    let wait = device
        .api
        .hipStreamWaitValue32
        .filter(|_| device.waits_for_values)
        .ok_or_else(|| unable(device))?;
    refuse_capture(device, stream, "a wait for another runtime's work")?;
    let flag = free_flag(device)?;
    let value = flag.value + 1;
    let free = Arc::clone(&device.flags);
    arrange(Gate::new(move || {
        flag.cell.store(value.into(), Ordering::SeqCst);
        // The comparison knows no wrapping around: a flag that has counted to the end has done its service.
        if value < u32::MAX {
            free.push(Flag { value, ..flag });
        }
    }))?;
    let _here = device.enter()?;
    let answer = Answer {
        // SAFETY: the stream is live; the flag's memory is never freed.
        code: unsafe {
            wait(
                native(stream),
                from_ref(flag.cell).cast_mut().cast(),
                value,
                hipStreamWaitValueGte,
                u32::MAX,
            )
        },
        function: "hipStreamWaitValue32",
    };
    device.check(answer, || {
        "cannot make a stream wait for a number in memory".into()
    })
}
