//! # Version
//!
//! The macros say which header a program was compiled with, the functions which library it runs
//! with. Within one minor version the ABI only grows, so that a program runs with any library of
//! the same minor version that is not older than its header. TGPU_ABI_VERSION counts the
//! incompatible steps.

use std::ffi::c_char;

/// The ABI that this header describes.
pub const TGPU_ABI_VERSION: u32 = 1;

const fn number(text: &str) -> u32 {
    let bytes = text.as_bytes();
    let (mut i, mut value) = (0, 0);
    while i < bytes.len() {
        assert!(bytes[i].is_ascii_digit());
        value = value * 10 + (bytes[i] - b'0') as u32;
        i += 1;
    }
    value
}

const VERSION: u32 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
    + number(env!("CARGO_PKG_VERSION_PATCH"));

/// Gives the version of the library in the form of TGPU_VERSION.
///
/// @return major * 1000000 + minor * 1000 + patch.
///
/// Ownership: nothing changes hands.
/// Threads: any thread, also in callbacks.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_version() -> u32 {
    VERSION
}

/// Gives the ABI that the library implements, to be compared with TGPU_ABI_VERSION by programs that
/// load it at run time.
///
/// @return the ABI version.
///
/// Ownership: nothing changes hands.
/// Threads: any thread, also in callbacks.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_abi_version() -> u32 {
    TGPU_ABI_VERSION
}

/// Gives the version of the library for people, such as "0.1.0".
///
/// @return the text, never NULL.
///
/// Ownership: the text is the library's and stays valid for the life of the process.
/// Threads: any thread, also in callbacks.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_and_text_agree() {
        // SAFETY: a text of ours, ended by a NUL.
        let text = unsafe { std::ffi::CStr::from_ptr(tgpu_version_string()) }
            .to_str()
            .unwrap();
        let v = tgpu_version();
        assert_eq!(
            text,
            format!("{}.{}.{}", v / 1_000_000, v / 1_000 % 1_000, v % 1_000)
        );
        assert_eq!(text, env!("CARGO_PKG_VERSION"));
    }
}
