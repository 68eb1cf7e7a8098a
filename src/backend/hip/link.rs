//! The functions as the linker found them, for sites where nothing may be loaded at run time (feature `hip-link`).
//!
//! Only the addresses are taken from `hip-sys`: its codes are Rust enums, in which a code of a newer runtime would be
//! undefined behaviour.

use std::ffi::{c_void, CStr};

use hip_sys::hiprt;

macro_rules! linked {
    (required { $(fn $name:ident($($arg:ty),* $(,)?) -> $ret:ty;)* } optional { $($optional:tt)* }) => {
        /// The address of a function that every runtime has.
        pub(super) fn required(name: &CStr) -> Option<*const c_void> {
            match name.to_bytes() {
                $(n if n == stringify!($name).as_bytes() => Some(hiprt::$name as *const c_void),)*
                _ => None,
            }
        }
    };
}
hip_functions!(linked);

/// The address of a function that the process may have.
pub(super) fn by_name(name: &CStr) -> Option<*const c_void> {
    // SAFETY: the name ends with NUL; the answer is only an address.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    Some(found.cast_const()).filter(|p| !p.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::hip::ffi;
    use std::mem::{offset_of, size_of};

    #[test]
    fn required_functions_come_from_the_linker_and_newer_ones_by_name() {
        let linked = required(c"hipGetDevice").expect("linked");
        assert_eq!(
            by_name(c"hipGetDevice"),
            Some(linked),
            "one runtime in the process"
        );
        assert!(required(c"hipDeviceGetUuid").is_none());
        assert!(by_name(c"hipDeviceGetUuid").is_some());
        assert!(by_name(c"hipNoSuchFunction").is_none());
    }

    #[test]
    fn the_crates_declarations_agree_with_ours() {
        assert_eq!(size_of::<hiprt::hipError_t>(), size_of::<ffi::hipError_t>());
        assert_eq!(
            size_of::<hiprt::hipMemPoolProps>(),
            size_of::<ffi::hipMemPoolProps>()
        );
        assert_eq!(
            offset_of!(hiprt::hipMemPoolProps, location),
            offset_of!(ffi::hipMemPoolProps, location)
        );
        assert_eq!(
            size_of::<hiprt::hipMemAccessDesc>(),
            size_of::<ffi::hipMemAccessDesc>()
        );
        assert_eq!(
            size_of::<hiprt::hipPointerAttribute_t>(),
            size_of::<ffi::hipPointerAttribute_t>()
        );
        assert_eq!(hiprt::hipError_t::hipErrorNotReady as i32, ffi::hipErrorNotReady);
        assert_eq!(
            hiprt::hipDeviceAttribute_t::hipDeviceAttributeCanUseStreamWaitValue as i32,
            ffi::hipDeviceAttributeCanUseStreamWaitValue
        );
        assert_eq!(
            hiprt::hipDeviceAttribute_t::hipDeviceAttributeMemoryPoolsSupported as i32,
            ffi::hipDeviceAttributeMemoryPoolsSupported
        );
    }
}
