//! Which targets the compiler knows.
//!
//! The run-time compiler of ROCm 5.2 ends the whole process when it is told to compile for a target it does not know, such as
//! a newer device's, a misspelt one, or a known one with a feature it does not have (seen). Below it works `libamd_comgr`,
//! which answers whether it knows a target, and is asked first.

use std::ffi::OsString;
use std::ffi::{c_char, c_int, CString};

use crate::backend::dynamic::{mapped_files, open_library, open_mapped, symbol, table};

/// `amd_comgr_action_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ActionInfo {
    handle: u64,
}

table! {
    /// The functions that we use.
    struct Comgr;
    required {
        fn amd_comgr_create_action_info(*mut ActionInfo) -> c_int;
        fn amd_comgr_destroy_action_info(ActionInfo) -> c_int;
        fn amd_comgr_action_info_set_isa_name(ActionInfo, *const c_char) -> c_int;
    }
    optional {}
}

impl Comgr {
    /// Names of the library; what the runtime's version goes with comes first.
    pub(super) fn names(major: i32) -> [&'static str; 2] {
        match major {
            ..=6 => ["libamd_comgr.so.2", "libamd_comgr.so.3"],
            _ => ["libamd_comgr.so.3", "libamd_comgr.so.2"],
        }
    }

    /// Finds the library in the process, or else at `places`. It is never closed: the compiler works in it.
    pub(super) fn load(places: &[OsString]) -> Option<Comgr> {
        let library = open_mapped(&mapped_files("libamd_comgr")).or_else(|| open_library(places).ok())?;
        let found = Comgr::find(|name| symbol(&library, name)).ok();
        std::mem::forget(library);
        found
    }

    /// True if code can be made for `target`, such as `gfx90a` or `gfx90a:xnack-`.
    pub(super) fn knows(&self, target: &str) -> bool {
        let Ok(name) = CString::new(format!("amdgcn-amd-amdhsa--{target}")) else {
            return false;
        };
        let mut info = ActionInfo { handle: 0 };
        // SAFETY: `info` is writable.
        if unsafe { (self.amd_comgr_create_action_info)(&mut info) } != 0 {
            return false;
        }
        // SAFETY: a live object, which is destroyed after its one use; the name ends with NUL.
        unsafe {
            let known = (self.amd_comgr_action_info_set_isa_name)(info, name.as_ptr()) == 0;
            (self.amd_comgr_destroy_action_info)(info);
            known
        }
    }
}
