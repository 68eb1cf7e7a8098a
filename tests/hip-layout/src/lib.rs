//! The HIP backend's own declarations, for the comparisons in `tests/`.
#![allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals)]

#[path = "../../../src/backend/hip/ffi.rs"]
pub mod ffi;

#[macro_use]
#[path = "../../../src/backend/hip/functions.rs"]
mod functions;

/// A function's name, the types of its arguments, and of its answer, as written.
pub type Signature = (&'static str, &'static [&'static str], &'static str);

macro_rules! list {
    (
        required { $(fn $name:ident($($arg:ty),* $(,)?) -> $ret:ty;)* }
        optional { $(fn $oname:ident($($oarg:ty),* $(,)?) -> $oret:ty;)* }
    ) => {
        &[
            $((stringify!($name), &[$(stringify!($arg)),*], stringify!($ret)),)*
            $((stringify!($oname), &[$(stringify!($oarg)),*], stringify!($oret)),)*
        ]
    };
}

/// The runtime's functions.
pub const HIP: &[Signature] = hip_functions!(list);
/// The run-time compiler's.
pub const HIPRTC: &[Signature] = hiprtc_functions!(list);
