//! Scopes: a device or stream for a while, and then exactly what was before.
//!
//! What a scope puts back is kept by its task, where no caller can damage it; the caller holds a number.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::backend::{Error, Result, Status};

use super::device::{self, Device};
use super::handle::StreamHandle;
use super::registry;
use super::stream;
use super::task::{self, Task};

/// A scope as its caller keeps it: the serial of its task, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope(pub [u64; 2]);

/// What one scope puts back: the device before and the one entered (in one word), and what was chosen on each.
type Saved = [u64; 3];

/// Scopes that a task keeps without a lock; deeper ones are rare.
const SHALLOW: usize = 8;

/// A task's open scopes. Only the thread that the task is current on looks at them.
#[derive(Default)]
pub(crate) struct Scopes {
    /// How many are open.
    depth: AtomicU64,
    /// Scopes opened so far: numbers are never given twice.
    opened: AtomicU64,
    shallow: [Frame; SHALLOW],
    deep: Mutex<Vec<(u64, Saved)>>,
}

#[derive(Default)]
struct Frame {
    number: AtomicU64,
    saved: [AtomicU64; 3],
}

impl Scopes {
    /// Forgets all scopes, for a new task.
    pub(crate) fn clear(&self) {
        self.depth.store(0, Ordering::Relaxed);
        self.opened.store(0, Ordering::Relaxed);
        self.deep.lock().clear();
    }

    #[inline]
    fn push(&self, saved: Saved) -> u64 {
        let number = self.opened.load(Ordering::Relaxed) + 1;
        let depth = self.depth.load(Ordering::Relaxed);
        self.opened.store(number, Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        match self.shallow.get(depth as usize) {
            Some(frame) => {
                frame.number.store(number, Ordering::Relaxed);
                for (word, value) in frame.saved.iter().zip(saved) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            None => self.push_deep(number, saved),
        }
        number
    }

    /// The innermost scope: its number and what it puts back.
    #[inline]
    fn innermost(&self) -> Option<(u64, Saved)> {
        let depth = self.depth.load(Ordering::Relaxed).checked_sub(1)?;
        match self.shallow.get(depth as usize) {
            Some(frame) => {
                let saved = [0, 1, 2].map(|i: usize| frame.saved[i].load(Ordering::Relaxed));
                Some((frame.number.load(Ordering::Relaxed), saved))
            }
            None => self.last_deep(),
        }
    }

    #[inline]
    fn pop(&self) {
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        if depth >= SHALLOW as u64 {
            self.pop_deep();
        }
    }

    // Out of the way: inlined, these would cost every shallow scope registers.

    #[cold]
    #[inline(never)]
    fn push_deep(&self, number: u64, saved: Saved) {
        self.deep.lock().push((number, saved));
    }

    #[cold]
    #[inline(never)]
    fn last_deep(&self) -> Option<(u64, Saved)> {
        self.deep.lock().last().copied()
    }

    #[cold]
    #[inline(never)]
    fn pop_deep(&self) {
        self.deep.lock().pop();
    }
}

/// Makes a device the task's until the scope is left.
#[inline]
pub fn enter_device(index: i32) -> Result<Scope> {
    let task = task::here()?;
    let device = device::by_index(index)?;
    device.bind_if_open()?;
    enter(task, device, None)
}

/// Makes a stream current for its device, and that device the task's, until the scope is left.
#[inline]
pub fn enter_stream(handle: StreamHandle) -> Result<Scope> {
    let task = task::here()?;
    let device = match handle.is_null() {
        true => device::of_task(task)?,
        false => stream::settable(task, handle)?,
    };
    device.bind_if_open()?;
    enter(task, device, Some(handle))
}

// For each of the two doors of its own.
#[inline(always)]
fn enter(task: &Task, device: &Device, stream: Option<StreamHandle>) -> Result<Scope> {
    let before = task.device()? as u32;
    let device = device.index;
    let chosen_before = task.chosen(before)?;
    let chosen_there = if device == before {
        chosen_before
    } else {
        task.chosen(device)?
    };
    if let Some(stream) = stream {
        task.choose(device, stream)?;
    }
    let devices = u64::from(before) << 32 | u64::from(device);
    let number = task
        .scopes()
        .push([devices, chosen_before.bits(), chosen_there.bits()]);
    task.set_device(device as i32);
    Ok(Scope([task.serial(), number]))
}

/// Puts back what was before the scope.
#[inline]
pub fn leave(scope: Scope) -> Result<()> {
    let task = task::here()?;
    let [serial, number] = scope.0;
    match task.scopes().innermost() {
        Some((innermost, saved)) if innermost == number && serial == task.serial() => put_back(task, saved),
        innermost => Err(mismatch(task, scope, innermost.map(|(number, _)| number))),
    }
}

#[inline]
fn put_back(task: &Task, [devices, chosen_before, chosen_there]: Saved) -> Result<()> {
    let (before, entered) = ((devices >> 32) as u32, devices as u32);
    if let Some(device) = registry::up().and_then(|runtime| runtime.devices.get(before as usize)) {
        device.bind_if_open()?;
    }
    if entered != before {
        task.choose(entered, StreamHandle::from_bits(chosen_there))?;
    }
    task.choose(before, StreamHandle::from_bits(chosen_before))?;
    task.set_device(before as i32);
    task.scopes().pop();
    Ok(())
}

#[cold]
fn mismatch(task: &Task, Scope([serial, number]): Scope, innermost: Option<u64>) -> Error {
    let text = match innermost {
        _ if serial != task.serial() => format!("the scope {number} was entered in another task"),
        None => format!("the scope {number} is not open; the task has no open scope"),
        Some(innermost) => {
            format!("the scope {number} is not the innermost open one of the task, which is {innermost}")
        }
    };
    Error::new(Status::ScopeMismatch, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_depth_comes_back_in_order() {
        let scopes = Scopes::default();
        let numbers: Vec<u64> = (0..40).map(|i| scopes.push([i, i + 1, i + 2])).collect();
        for (i, number) in numbers.iter().enumerate().rev() {
            let i = i as u64;
            assert_eq!(scopes.innermost(), Some((*number, [i, i + 1, i + 2])));
            scopes.pop();
        }
        assert_eq!(scopes.innermost(), None);
        assert!(
            scopes.push([0; 3]) > *numbers.last().unwrap(),
            "a number was given twice"
        );
    }
}
