//! The runtime's functions, found one by one at run time.
//!
//! The copy that is in the process already comes first: a framework may have brought its own, and a second HIP runtime beside
//! it would not know its streams and memory. Then where `ROCM_PATH` and `HIP_PATH` point, then the loader's own path.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void, OsString};
use std::path::Path;

#[cfg(not(feature = "hip-link"))]
use libloading::os::unix::Library;

#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use crate::backend::dynamic::{self, file_of};
#[cfg(not(feature = "hip-link"))]
use crate::backend::dynamic::{mapped_files, open_library, open_mapped, symbol};
use crate::backend::{Error, Result, Status};

macro_rules! api {
    (required { $($required:tt)* } optional { $($optional:tt)* }) => {
        dynamic::table! {
            /// The runtime's functions that we use.
            struct Api;
            required { $($required)* }
            optional { $($optional)* }
        }
    };
}
hip_functions!(api);

/// Names of the runtime's library, newest first.
#[cfg(not(feature = "hip-link"))]
const LIBRARY_NAMES: [&str; 4] = [
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
];

/// Where a file of one of `names` may lie, in the order of the search: where the vendor's variables point, then anywhere the
/// loader looks.
pub(super) fn places(names: &[&str], variable: impl Fn(&str) -> Option<OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    for root in ["ROCM_PATH", "HIP_PATH"].into_iter().filter_map(variable) {
        if !root.is_empty() {
            let folder = Path::new(&root).join("lib");
            all.extend(names.iter().map(|name| folder.join(name).into_os_string()));
        }
    }
    all.extend(names.iter().map(OsString::from));
    all
}

impl Api {
    /// Finds the runtime and its functions. The library is never closed: it has threads and exit handlers of its own.
    #[cfg(not(feature = "hip-link"))]
    pub(super) fn load() -> Result<Api> {
        let library = match open_mapped(&mapped_files("libamdhip64")) {
            Some(library) => Ok(library),
            None => open_library(&places(&LIBRARY_NAMES, |name| std::env::var_os(name))),
        };
        Api::from_library(library.map_err(|words| Error::new(Status::NotSupported, words))?)
    }

    #[cfg(not(feature = "hip-link"))]
    pub(super) fn from_library(library: Library) -> Result<Api> {
        let table = Api::find(|name| symbol(&library, name)).map_err(too_old);
        std::mem::forget(library);
        table
    }

    /// The functions that this library was linked with; those that older runtimes lack are looked up by name.
    #[cfg(feature = "hip-link")]
    pub(super) fn load() -> Result<Api> {
        Api::find(|name| super::link::required(name).or_else(|| super::link::by_name(name))).map_err(too_old)
    }

    /// The file that the functions live in.
    pub(super) fn path(&self) -> String {
        file_of(self.hipGetDevice as *const c_void)
    }
}

#[cold]
fn too_old(missing: &'static str) -> Error {
    Error::new(
        Status::NotSupported,
        format!("the HIP runtime's library has no function {missing}: ROCm 5.2 or newer is needed"),
    )
}

/// What one vendor call answered, and which call it was.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Answer {
    pub(super) code: hipError_t,
    pub(super) function: &'static str,
}

/// Calls a function of the table; to be used inside `unsafe`.
macro_rules! call {
    ($api:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $crate::backend::hip::api::Answer { code: ($api.$name)($($arg),*), function: stringify!($name) }
    };
}
pub(super) use call;

#[cfg(all(test, not(feature = "hip-link")))]
mod tests {
    use super::*;

    #[test]
    fn the_vendors_variables_come_before_the_loaders_path() {
        let variable = |name: &str| match name {
            "ROCM_PATH" => Some(OsString::from("/opt/rocm")),
            "HIP_PATH" => Some(OsString::from("/opt/hip")),
            _ => None,
        };
        let all = places(&LIBRARY_NAMES, variable);
        assert_eq!(all.len(), 12);
        assert_eq!(all[0], "/opt/rocm/lib/libamdhip64.so.7");
        assert_eq!(all[3], "/opt/rocm/lib/libamdhip64.so");
        assert_eq!(all[4], "/opt/hip/lib/libamdhip64.so.7");
        assert_eq!(all[8], "libamdhip64.so.7");
        assert_eq!(places(&LIBRARY_NAMES, |_| Some(OsString::new())).len(), 4);
    }

    #[test]
    fn a_library_without_the_functions_is_refused_and_the_first_one_named() {
        let library = open_library(&["libc.so.6"]).expect("the C library");
        let e = Api::from_library(library).expect_err("not the runtime");
        assert_eq!(e.status(), Status::NotSupported);
        assert!(e.to_string().contains("hipRuntimeGetVersion"), "{e}");
    }
}
