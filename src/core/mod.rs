//! The rooms: what devices, streams, events, tasks and memory are to a caller.
//!
//! Everything here is safe Rust and names no vendor. A function takes handles and plain values, decides, and
//! asks a [`Backend`](crate::backend::Backend). The door in [`capi`](crate::capi) turns the results into statuses.

mod across;
mod calls;
pub mod device;
mod environment;
pub mod error;
pub mod event;
pub mod handle;
pub mod kernel;
pub mod launch;
pub mod memory;
pub mod module;
mod reaper;
pub mod registry;
pub mod scope;
pub mod stream;
pub mod sync;
pub mod task;
