//! The legacy stream's order: its work waits for what is queued on the device's blocking streams, and their later work
//! waits for it. Host devices know no legacy stream, so it is made of events here.

use std::sync::atomic::Ordering;

use taskgpu::backend::{RawEvent, Result};

use crate::entry::Hip;
use crate::runtime::{answer, runtime};
use crate::stream::Stream;

/// How far a device's legacy stream has come.
#[derive(Default)]
pub struct Order {
    /// Goes up with each operation of the legacy stream.
    epoch: u64,
    /// Recorded behind the last one.
    mark: Option<RawEvent>,
}

/// Queues an operation on a stream, with the order that the stream has with others.
pub fn around(stream: &Stream, operation: impl FnOnce() -> Result<()>) -> Hip<()> {
    let runtime = runtime();
    if !runtime.orders_legacy() || !stream.is_blocking() {
        return answer(operation());
    }
    let (backend, ordinal) = (runtime.backend, stream.device.ordinal);
    let mut order = stream.device.order.lock();
    if !stream.is_legacy {
        if stream.seen.swap(order.epoch, Ordering::Relaxed) != order.epoch {
            if let Some(mark) = order.mark {
                answer(backend.stream_wait_event(ordinal, stream.raw, mark))?;
            }
        }
        stream.unseen.store(true, Ordering::Relaxed);
        return answer(operation());
    }
    for other in stream.device.streams() {
        if other.is_blocking() && other.unseen.swap(false, Ordering::Relaxed) {
            let mark = other.mark()?;
            answer(backend.event_record(ordinal, mark, other.raw))?;
            answer(backend.stream_wait_event(ordinal, stream.raw, mark))?;
        }
    }
    answer(operation())?;
    let mark = match order.mark {
        Some(mark) => mark,
        None => answer(backend.event_create(ordinal, false))?,
    };
    order.mark = Some(mark);
    order.epoch += 1;
    answer(backend.event_record(ordinal, mark, stream.raw))
}
