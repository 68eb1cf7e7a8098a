//! Gates: how a stream waits for what happens outside of this driver.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use super::api::{Answer, STREAM_WAIT_VALUE_GEQ};
use super::codes::SUCCESS;
use super::device::{Device, Relaxed};
use super::memory::host_alloc;
use super::stream::{context_for, native, refuse_capture};
use crate::backend::{Arrange, Error, Gate, RawStream, Result, Status};

/// A number in pinned memory that streams wait for. It only grows, so that a flag can serve the next gate though a
/// stream may not have looked at it since it was set for the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
    cell: &'static AtomicU32,
    value: u32,
}

/// Flags in one piece of pinned memory.
const FLAGS_AT_ONCE: usize = 1024;

fn free_flag(device: &Device) -> Result<Flag> {
    if let Some(flag) = device.flags.pop() {
        return Ok(flag);
    }
    let bytes = FLAGS_AT_ONCE * size_of::<AtomicU32>();
    let memory = host_alloc(device, bytes as u64)?;
    // SAFETY: fresh pinned memory of that size, which is kept for good: a stream may look at it at any time.
    let cells: &'static [AtomicU32] = unsafe {
        memory.as_ptr().write_bytes(0, bytes);
        std::slice::from_raw_parts(memory.as_ptr().cast(), FLAGS_AT_ONCE)
    };
    for cell in &cells[1..] {
        device.flags.push(Flag { cell, value: 0 });
    }
    Ok(Flag {
        cell: &cells[0],
        value: 0,
    })
}

/// Holds later work on the stream back until the gate is opened, which is one store to memory.
///
/// The driver holds a lock while `cuMemFreeHost` and its like wait for the device: a stream that is held meanwhile must
/// need no further call to be let go.
pub(super) fn gate(device: &Device, stream: RawStream, arrange: Arrange<'_>) -> Result<()> {
    let wait = device
        .api
        .cuStreamWaitValue32_v2
        .or(device.api.cuStreamWaitValue32);
    let Some(wait) = wait else {
        return Err(Error::new(
            Status::NotSupported,
            "this CUDA driver cannot make a stream wait for a number in memory",
        ));
    };
    refuse_capture(device, stream, "a wait for another runtime's work")?;
    let flag = free_flag(device)?;
    let value = flag.value.wrapping_add(1);
    let free = Arc::clone(&device.flags);
    arrange(Gate::new(move || {
        flag.cell.store(value, Ordering::SeqCst);
        free.push(Flag { value, ..flag });
    }))?;
    let _context = context_for(device, stream)?;
    let _relaxed = Relaxed::enter(device.api);
    // SAFETY: the stream is live; the flag is in pinned memory that is never freed.
    let code = unsafe {
        wait(
            native(stream),
            from_ref(flag.cell) as u64,
            value,
            STREAM_WAIT_VALUE_GEQ,
        )
    };
    if code != SUCCESS {
        let answer = Answer {
            code,
            function: "cuStreamWaitValue32",
        };
        return Err(device.failure(answer, "cannot make a stream wait for a number in memory"));
    }
    Ok(())
}
