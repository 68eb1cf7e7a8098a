//! Types, sizes, offsets and constants against the vendor's installed header.
#![cfg(has_header)]
#![allow(bad_style, unused, unused_macros, clippy::all)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use hip_layout::ffi::*;

include!(concat!(env!("OUT_DIR"), "/all.rs"));

#[test]
fn our_types_and_constants_are_the_headers() {
    main();
}
