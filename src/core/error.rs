//! The last failure of each task.

use std::cell::RefCell;

use crate::backend::{Error, Status};

use super::registry;
use super::task;

thread_local! {
    /// The last failure of a thread that has no task: the runtime could not start, the process is a fork's child,
    /// or the thread runs a callback.
    static ORPHAN: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Makes `error` the calling task's last failure. Answers that are no failures are not kept.
#[cold]
pub fn record(error: &Error) {
    if matches!(error.status(), Status::Ok | Status::NotReady | Status::Timeout) {
        return;
    }
    if registry::logs_errors() {
        eprintln!("taskgpu: {error}");
    }
    match task::present() {
        Some(task) => task.set_last_error(error.clone()),
        // A thread past its thread-local storage has nobody left to tell.
        None => drop(ORPHAN.try_with(|last| last.replace(Some(error.clone())))),
    }
}

/// The calling task's last failure.
pub fn last() -> Option<Error> {
    match task::present() {
        Some(task) => task.last_error(),
        None => ORPHAN.try_with(|last| last.borrow().clone()).ok().flatten(),
    }
}
