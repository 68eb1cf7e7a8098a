//! Across backends: order and copies between devices whose runtimes do not know each other.
//!
//! Nothing here blocks and no thread waits: a stream is held back by a gate of its own backend, and a callback of the
//! other backend opens it, also when that device fails.

use crate::backend::{Addr, Error, Result, Status};

use super::device::Device;
use super::event::Recorded;
use super::memory::{self, End};
use super::reaper::{self, Remains};
use super::stream::Stream;

/// Bytes that are staged at a time between two runtimes.
const STAGE: u64 = 64 << 20;

/// Lets later work on `stream` wait for what was recorded by another backend.
pub(crate) fn wait(stream: &Stream, recorded: &Recorded) -> Result<()> {
    let gate = stream.gate()?;
    recorded.device.aside(|own| {
        own.wait_recorded(recorded)?;
        own.call_back(Box::new(move |_| gate.open()))
    })
}

/// Runs `work` on a stream of `device` in the order of `stream`: after what that holds now, before what comes later.
fn in_between(
    stream: &Stream,
    device: &'static Device,
    work: impl FnOnce(&Stream) -> Result<()>,
) -> Result<()> {
    let recorded = stream.record()?;
    let gate = stream.gate()?;
    device.aside(|other| {
        other.wait_recorded(&recorded)?;
        work(other)?;
        other.call_back(Box::new(move |_| gate.open()))
    })
}

/// Copies where the stream's own backend does not reach both ends.
pub(crate) fn copy(stream: &Stream, dst: End, src: End, bytes: u64) -> Result<()> {
    // A backend that reaches both ends does the copy for the stream.
    for device in [dst.device, src.device].into_iter().flatten() {
        if dst.place(device).is_some() && src.place(device).is_some() {
            return copy_by(stream, device, dst, src, bytes);
        }
    }
    let (Some(to), Some(from)) = (dst.device, src.device) else {
        return Err(unreachable(stream));
    };
    let mut done = 0;
    while done < bytes {
        let part = STAGE.min(bytes - done);
        stage(stream, (to, dst.after(done)), (from, src.after(done)), part)?;
        done += part;
    }
    Ok(())
}

/// Copies on a stream of `device`, in the order of `stream`.
fn copy_by(stream: &Stream, device: &'static Device, dst: End, src: End, bytes: u64) -> Result<()> {
    in_between(stream, device, |other| {
        memory::copy_on(other, dst, src, bytes).unwrap_or_else(|| Err(unreachable(stream)))
    })
}

/// Copies one part through pinned host memory.
fn stage(
    stream: &Stream,
    (to, dst): (&'static Device, End),
    (from, src): (&'static Device, End),
    bytes: u64,
) -> Result<()> {
    // Pinned for the GPU of the two: to the CPU all memory is the same.
    let pins = if from.backend.memory_is_host() { to } else { from };
    let pinned = pins
        .backend
        .host_alloc(pins.ordinal, bytes)
        .map_err(|e| pins.concern(e))?;
    let middle = End {
        addr: Addr::from_backend(pinned.value()),
        device: None,
    };
    let copied =
        copy_by(stream, from, middle, src, bytes).and_then(|()| copy_by(stream, to, dst, middle, bytes));
    // Both copies are held in the stream's order, so what is queued now covers the last use of the memory.
    reaper::leave(Remains::HostMemory {
        device: pins,
        addr: pinned,
    });
    copied
}

#[cold]
fn unreachable(stream: &Stream) -> Error {
    Error::new(
        Status::NotSupported,
        format!(
            "stream {} of device {} ({}) and the devices of the copy have no memory in common",
            stream.id,
            stream.device.index,
            stream.device.backend.name()
        ),
    )
}
