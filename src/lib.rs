//! Task-local devices and streams over a C ABI.
//!
//! Three floors: [`capi`] is the door, [`core`] the rooms, [`backend`] the machines. `CONTRIBUTING.md` has the map.
#![deny(unsafe_op_in_unsafe_fn, missing_docs)]

pub mod backend;
pub mod capi;
pub mod core;
