//! # Backends
//!
//! A backend drives the devices of one vendor's runtime, or the CPU as host devices. The runtimes
//! are looked for at the first call that needs a device; a missing one is no error. When the
//! devices that you expect are not in the list, ask here why: the answer is the loader's own words.

use super::error::tgpu_status;
use super::structs::{AbiStruct, OutStruct};
use super::{guard, invalid, text_out};
use crate::core;
use std::ffi::c_char;

/// One runtime that was looked for.
#[repr(C)]
pub struct tgpu_backend_info {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// 1 if its devices are in the list or could be, 0 if not.
    pub available: i32,
    /// Devices that it brought into the list.
    pub device_count: i32,
    /// "hip", "cuda" or "host".
    pub name: [c_char; 16],
    /// The version of the runtime and driver. Empty if it was not loaded.
    pub version: [c_char; 64],
    /// The file it was loaded from. Empty if it was not loaded, and for host devices.
    pub path: [c_char; 256],
    /// Why it is not available or not used. Empty if it is used.
    pub reason: [c_char; 512],
}

// SAFETY: repr(C), size first, numbers and arrays of them.
unsafe impl AbiStruct for tgpu_backend_info {
    const NAME: &'static str = "tgpu_backend_info";
}

/// Tells about one of the runtimes that were looked for, found or not.
///
/// @param index  0 for the first one, and so on until TGPU_ERROR_NOT_FOUND.
/// @param out    receives the facts.
/// @return TGPU_OK; TGPU_ERROR_NOT_FOUND past the last one; TGPU_ERROR_INVALID_ARGUMENT if index is
///         negative, out is NULL or its struct_size is refused; the common statuses except
///         TGPU_ERROR_NO_DEVICE.
///
/// Ownership: the caller gets a copy.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_backend_info_get(index: i32, out: *mut tgpu_backend_info) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let index =
            usize::try_from(index).map_err(|_| invalid(format!("index is {index}; it must be 0 or more")))?;
        let report = core::registry::backend_report(index)?;
        out.write(|info| {
            info.available = i32::from(report.available);
            info.device_count = report.device_count as i32;
            text_out(&report.name, &mut info.name);
            text_out(&report.version, &mut info.version);
            text_out(&report.path, &mut info.path);
            text_out(&report.reason, &mut info.reason);
        });
        Ok(())
    })
}
