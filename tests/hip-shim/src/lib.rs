//! A HIP runtime to run on where no AMD GPU is at hand: a `libamdhip64.so` that exports the functions our HIP backend
//! calls, and carries them out on a backend of taskgpu's own, host devices or CUDA.
//!
//! It models what HIP does and a caller must survive. README.md has the variables that set it up. It is a second copy of
//! taskgpu's backends in the process of the tests, with its own workers; it shares nothing with the copy under test.
#![deny(unsafe_op_in_unsafe_fn)]
// The names are the vendor's.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

#[allow(dead_code)]
#[path = "../../../src/backend/hip/ffi.rs"]
mod ffi;
#[macro_use]
#[path = "../../../src/backend/hip/functions.rs"]
mod functions;
#[macro_use]
mod entry;

mod capture;
mod counts;
mod device;
mod error;
mod event;
mod fault;
mod handle;
mod image;
mod memory;
mod module;
mod order;
mod pool;
mod rtc;
mod runtime;
mod script;
mod stream;
mod wait;

/// The proof that every function of the list is here with exactly the signature that the backend calls it with.
mod signatures {
    #[allow(clippy::wildcard_imports)]
    use crate::ffi::*;
    use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

    macro_rules! same {
        (required { $(fn $a:ident($($at:ty),* $(,)?) -> $ar:ty;)* } optional { $(fn $b:ident($($bt:ty),* $(,)?) -> $br:ty;)* }) => {
            $(const _: unsafe extern "C" fn($($at),*) -> $ar = crate::all::$a;)*
            $(const _: unsafe extern "C" fn($($bt),*) -> $br = crate::all::$b;)*
        };
    }
    hip_functions!(same);
    hiprtc_functions!(same);
}

/// Every function, wherever it is.
mod all {
    pub use crate::capture::*;
    pub use crate::device::*;
    pub use crate::error::*;
    pub use crate::event::*;
    pub use crate::memory::*;
    pub use crate::module::*;
    pub use crate::pool::*;
    pub use crate::rtc::*;
    pub use crate::stream::*;
    pub use crate::wait::*;
}
