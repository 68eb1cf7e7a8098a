//! Scopes: a device or stream for a while, and then exactly what was before.

use crate::backend::{Error, Result, Status};

use super::device;
use super::handle::StreamHandle;
use super::stream;
use super::task::{self, Task};

/// A scope as its caller keeps it: what to put back, and which scope is around it.
///
/// Words: id, id of the scope around it, serial of the task, device before, stream chosen on that device before, device
/// entered, stream chosen there before, one unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope(pub [u64; 8]);

/// Makes a device the task's until the scope is left.
#[inline]
pub fn enter_device(index: i32) -> Result<Scope> {
    let task = task::here()?;
    let device = device::by_index(index)?;
    device.bind_if_open()?;
    enter(task, device.index, None)
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
    enter(task, device.index, Some(handle))
}

#[inline]
fn enter(task: &Task, device: u32, stream: Option<StreamHandle>) -> Result<Scope> {
    let before = task.device()? as u32;
    let chosen_before = task.chosen(before)?;
    let chosen_there = task.chosen(device)?;
    if let Some(stream) = stream {
        task.choose(device, stream)?;
    }
    let around = task.scope();
    let id = task.open_scope();
    task.set_device(device as i32);
    let (before, device) = (u64::from(before), u64::from(device));
    Ok(Scope([
        id,
        around,
        task.serial(),
        before,
        chosen_before.bits(),
        device,
        chosen_there.bits(),
        0,
    ]))
}

/// Puts back what was before the scope.
#[inline]
pub fn leave(scope: Scope) -> Result<()> {
    let task = task::here()?;
    let [id, around, serial, before, chosen_before, entered, chosen_there, _] = scope.0;
    let innermost = task.scope();
    if id != innermost || id == 0 || serial != task.serial() {
        return Err(mismatch(task, id, serial));
    }
    // The words are checked before they are used as indices: the caller may have damaged them.
    let before = device::by_index(i32::try_from(before).unwrap_or(-1))?;
    let entered = device::by_index(i32::try_from(entered).unwrap_or(-1))?;
    before.bind_if_open()?;
    task.choose(entered.index, StreamHandle::from_bits(chosen_there))?;
    task.choose(before.index, StreamHandle::from_bits(chosen_before))?;
    task.set_device(before.index as i32);
    task.close_scope(around);
    Ok(())
}

#[cold]
fn mismatch(task: &Task, id: u64, serial: u64) -> Error {
    let text = match task.scope() {
        _ if serial != task.serial() => format!("the scope {id} was entered in another task"),
        0 => format!("the scope {id} is not open; the task has no open scope"),
        innermost => {
            format!("the scope {id} is not the innermost open one of the task, which is {innermost}")
        }
    };
    Error::new(Status::ScopeMismatch, text)
}
