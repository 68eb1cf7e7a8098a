//! Across backends: order and copies between devices whose runtimes do not know each other.
//!
//! Nothing here blocks and no thread waits: a stream is held back by a gate of its own backend, and a callback of the
//! other backend opens it, also when that device fails.

use parking_lot::Mutex;

use crate::backend::{Addr, Error, Result, Status};

use super::device::Device;
use super::event::Recorded;
use super::memory::{self, End};
use super::reaper::{self, Remains};
use super::stream::Stream;

/// Bytes that are staged at a time between two runtimes.
const STAGE: u64 = 64 << 20;
/// The smallest piece of staging memory.
const SMALLEST: u64 = 64 << 10;
/// Most bytes of staging memory that a device keeps for the next copy.
const KEPT: u64 = 2 * STAGE;

/// Pinned memory that waits for the next copy. Pinning takes longer than most copies, and unpinning waits for the device.
#[derive(Default)]
pub(crate) struct Staging(Mutex<Vec<(Addr, u64)>>);

impl Staging {
    /// A piece of a power of two, at least `bytes`, and its size.
    fn take(&self, device: &'static Device, bytes: u64) -> Result<(Addr, u64)> {
        let size = bytes.next_power_of_two().max(SMALLEST);
        let mut kept = self.0.lock();
        if let Some(at) = kept.iter().position(|(_, kept)| *kept == size) {
            return Ok(kept.swap_remove(at));
        }
        drop(kept);
        let addr = device
            .backend
            .host_alloc(device.ordinal, size)
            .map_err(|e| device.concern(e))?;
        Ok((addr, size))
    }

    /// Keeps a piece that nobody uses any more, or hands it back to be freed.
    pub(crate) fn keep(&self, addr: Addr, size: u64) -> Option<Addr> {
        let mut kept = self.0.lock();
        let bytes: u64 = kept.iter().map(|(_, size)| size).sum();
        if bytes + size > KEPT {
            return Some(addr);
        }
        kept.push((addr, size));
        None
    }
}

/// Lets later work on `stream` wait for what was recorded by another backend.
pub(crate) fn wait(stream: &Stream, recorded: &Recorded) -> Result<()> {
    stream.gate(|gate| {
        recorded.device.aside(|own| {
            own.wait_recorded(recorded)?;
            own.call_back(Box::new(move |_| gate.open()))
        })
    })
}

/// Runs `work` on a stream of `device`, of another backend, in the order of `stream`: after what that holds now, before
/// what comes later.
fn in_between(
    stream: &Stream,
    device: &'static Device,
    work: impl FnOnce(&Stream) -> Result<()>,
) -> Result<()> {
    let recorded = stream.record()?;
    stream.gate(|gate| {
        device.aside(|other| {
            other.wait_recorded(&recorded)?;
            work(other)?;
            other.call_back(Box::new(move |_| gate.open()))
        })
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

/// Copies in the order of `stream`, on a stream of `device` where its own backend cannot.
fn copy_by(stream: &Stream, device: &'static Device, dst: End, src: End, bytes: u64) -> Result<()> {
    if let Some(copied) = memory::copy_on(stream, dst, src, bytes) {
        return copied;
    }
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
    let (pinned, size) = pins.staging.take(pins, bytes)?;
    let middle = End {
        addr: Addr::from_backend(pinned.value()),
        device: None,
    };
    let copied =
        copy_by(stream, from, middle, src, bytes).and_then(|()| copy_by(stream, to, dst, middle, bytes));
    // Both copies are in the stream's order, so what it holds now covers the last use of the memory.
    reaper::leave(match stream.record() {
        Ok(after) => Remains::Staging {
            device: pins,
            addr: pinned,
            size,
            after,
        },
        Err(_) => Remains::HostMemory {
            device: pins,
            addr: pinned,
        },
    });
    copied
}

/// Fills memory of another backend's device.
pub(crate) fn fill(
    stream: &Stream,
    device: &'static Device,
    dst: Addr,
    pattern: &[u8],
    count: u64,
) -> Result<()> {
    in_between(stream, device, |other| {
        memory::fill_on(other, dst, pattern, count)
    })
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
