//! # Errors
//!
//! A call that fails answers a status, and leaves with the task what is needed to understand it: a
//! text that names the value and the limit, and where a vendor's runtime was asked, what it
//! answered, in which function, for which device and stream. tgpu_error_info_get copies that out;
//! nobody else's failure replaces it, since it belongs to the task and not to the thread or the
//! process.
//!
//! The last error stays until the next failure of the task. A success, TGPU_NOT_READY,
//! TGPU_ERROR_TIMEOUT, and all destroy and free calls leave it alone, so that cleaning up after a
//! failure does not lose it.
//!
//! Work runs after the call that queued it has returned, so a kernel that fails shows in a later
//! call. Such a fault takes the whole device with it: every call that needs it answers
//! TGPU_ERROR_DEVICE_LOST for the rest of the process, every wait for it ends, and the text lists
//! the streams with unfinished work and the kernels last launched there as candidates. Destroy and
//! free still answer.
//!
//! After a fork the child cannot use a runtime that its parent had in use, and is told
//! TGPU_ERROR_FORKED. Destroy and free calls answer TGPU_OK there and do nothing.

use super::structs::{AbiStruct, OutStruct};
use super::{fitting, guard_quiet, null, text_out, Out};
use crate::backend::Status;
use crate::core;
use std::ffi::{c_char, CStr};

/// What a call answers. Values are never renumbered, and later versions may add some.
pub type tgpu_status = i32;

/// Done.
pub const TGPU_OK: i32 = 0;
/// An answer, not an error: the work asked about has not finished.
pub const TGPU_NOT_READY: i32 = 1;
/// An argument is out of its range.
pub const TGPU_ERROR_INVALID_ARGUMENT: i32 = 2;
/// A handle is stale, destroyed, of another kind or never was one.
pub const TGPU_ERROR_INVALID_HANDLE: i32 = 3;
/// A device index outside the device list.
pub const TGPU_ERROR_INVALID_DEVICE: i32 = 4;
/// No device is present.
pub const TGPU_ERROR_NO_DEVICE: i32 = 5;
/// Device, pinned or host memory ran out.
pub const TGPU_ERROR_OUT_OF_MEMORY: i32 = 6;
/// The backend or the device cannot do this.
pub const TGPU_ERROR_NOT_SUPPORTED: i32 = 7;
/// No such name, pointer or entry.
pub const TGPU_ERROR_NOT_FOUND: i32 = 8;
/// The call is not allowed on this object.
pub const TGPU_ERROR_NOT_PERMITTED: i32 = 9;
/// The time was over first. The work goes on.
pub const TGPU_ERROR_TIMEOUT: i32 = 10;
/// The kernel source does not compile.
pub const TGPU_ERROR_COMPILE_FAILED: i32 = 11;
/// The image is no code for this device.
pub const TGPU_ERROR_INVALID_IMAGE: i32 = 12;
/// The vendor refused the launch.
pub const TGPU_ERROR_LAUNCH_FAILED: i32 = 13;
/// The device failed and is lost for this process.
pub const TGPU_ERROR_DEVICE_LOST: i32 = 14;
/// The stream is being captured into a graph, and the call would put hidden work into it.
pub const TGPU_ERROR_CAPTURING: i32 = 15;
/// The call was made inside a callback or a host kernel.
pub const TGPU_ERROR_IN_CALLBACK: i32 = 16;
/// The task is current on another thread.
pub const TGPU_ERROR_TASK_BUSY: i32 = 17;
/// The scope is not the innermost scope of the current task.
pub const TGPU_ERROR_SCOPE_MISMATCH: i32 = 18;
/// The process is the child of a fork after the runtime was in use.
pub const TGPU_ERROR_FORKED: i32 = 19;
/// An environment variable has a value that makes no sense.
pub const TGPU_ERROR_ENVIRONMENT: i32 = 20;
/// An answer of a vendor's runtime without a better name. See native_code.
pub const TGPU_ERROR_BACKEND: i32 = 21;
/// A bug of this library.
pub const TGPU_ERROR_INTERNAL: i32 = 22;

/// The last failure of a task.
#[repr(C)]
pub struct tgpu_error_info {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// What the call answered. TGPU_OK if the task has had no failure yet.
    pub status: tgpu_status,
    /// The device concerned, -1 if none.
    pub device: i32,
    /// The id of the stream concerned as tgpu_stream_info has it, 0 if none.
    pub stream_id: u64,
    /// The vendor's code, 0 if no vendor was asked.
    pub native_code: i64,
    /// The runtime that was asked, such as "hip", "cuda" or "host". Empty if none.
    pub backend: [c_char; 16],
    /// The vendor's name of its code. Empty if none.
    pub native_name: [c_char; 64],
    /// The vendor's function that answered it. Empty if none.
    pub function: [c_char; 64],
    /// What happened, with the value and the limit. tgpu_error_text gives it whole.
    pub text: [c_char; 512],
}

// SAFETY: repr(C), size first, numbers and arrays of them.
unsafe impl AbiStruct for tgpu_error_info {
    const NAME: &'static str = "tgpu_error_info";
}

/// The name and the sentence of each status, by its number.
static STATUSES: [(&CStr, &CStr); Status::ALL.len()] = [
    (c"TGPU_OK", c"The call succeeded."),
    (c"TGPU_NOT_READY", c"The work has not finished yet."),
    (
        c"TGPU_ERROR_INVALID_ARGUMENT",
        c"An argument is out of its range.",
    ),
    (
        c"TGPU_ERROR_INVALID_HANDLE",
        c"A handle is stale, destroyed, of another kind or never was one.",
    ),
    (
        c"TGPU_ERROR_INVALID_DEVICE",
        c"There is no device with this index.",
    ),
    (c"TGPU_ERROR_NO_DEVICE", c"There is no device."),
    (c"TGPU_ERROR_OUT_OF_MEMORY", c"Memory ran out."),
    (
        c"TGPU_ERROR_NOT_SUPPORTED",
        c"The backend or the device cannot do this.",
    ),
    (
        c"TGPU_ERROR_NOT_FOUND",
        c"There is no such name, pointer or entry.",
    ),
    (
        c"TGPU_ERROR_NOT_PERMITTED",
        c"The call is not allowed on this object.",
    ),
    (
        c"TGPU_ERROR_TIMEOUT",
        c"The time was over before the work was done.",
    ),
    (
        c"TGPU_ERROR_COMPILE_FAILED",
        c"The kernel source does not compile.",
    ),
    (
        c"TGPU_ERROR_INVALID_IMAGE",
        c"The image holds no code for this device.",
    ),
    (c"TGPU_ERROR_LAUNCH_FAILED", c"The launch was refused."),
    (
        c"TGPU_ERROR_DEVICE_LOST",
        c"The device has failed and is lost for this process.",
    ),
    (c"TGPU_ERROR_CAPTURING", c"The stream is being captured."),
    (
        c"TGPU_ERROR_IN_CALLBACK",
        c"The call is not allowed inside a callback or a host kernel.",
    ),
    (c"TGPU_ERROR_TASK_BUSY", c"The task is current on another thread."),
    (
        c"TGPU_ERROR_SCOPE_MISMATCH",
        c"The scope is not the innermost scope of the current task.",
    ),
    (
        c"TGPU_ERROR_FORKED",
        c"The process is the child of a fork and cannot use the runtime of its parent.",
    ),
    (
        c"TGPU_ERROR_ENVIRONMENT",
        c"An environment variable has a value that makes no sense.",
    ),
    (c"TGPU_ERROR_BACKEND", c"The vendor's runtime reported an error."),
    (c"TGPU_ERROR_INTERNAL", c"The library has a bug."),
];

fn words(status: tgpu_status) -> Option<&'static (&'static CStr, &'static CStr)> {
    STATUSES.get(usize::try_from(status).ok()?)
}

/// Names a status, for logs.
///
/// @param status  any number.
/// @return the constant's name such as "TGPU_ERROR_TIMEOUT", or "unknown status". Never NULL.
///
/// Ownership: the text is the library's and stays valid for the life of the process.
/// Threads: any thread, also in callbacks.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_status_name(status: tgpu_status) -> *const c_char {
    words(status).map_or(c"unknown status", |w| w.0).as_ptr()
}

/// Explains a status in one English sentence. What happened in one case is told by
/// tgpu_error_info_get.
///
/// @param status  any number.
/// @return the sentence. Never NULL.
///
/// Ownership: the text is the library's and stays valid for the life of the process.
/// Threads: any thread, also in callbacks.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_status_message(status: tgpu_status) -> *const c_char {
    words(status)
        .map_or(c"This version of the library does not know the status.", |w| w.1)
        .as_ptr()
}

/// Copies out the details of the task's last failure.
///
/// Never fails into the error it reads: a refused argument of this call is not recorded.
///
/// @param out  receives the details. If the task has had no failure yet, status is TGPU_OK, device
///             is -1 and the rest is empty.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL or its struct_size is refused;
///         TGPU_ERROR_INTERNAL.
///
/// Ownership: the caller gets a copy.
/// Threads: any thread, also in callbacks.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_error_info_get(out: *mut tgpu_error_info) -> tgpu_status {
    guard_quiet(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let last = core::error::last();
        out.write(|info| {
            info.device = -1;
            let Some(error) = last else { return };
            let detail = error.detail();
            info.status = detail.status.code();
            info.device = detail.device.map_or(-1, |d| d as i32);
            info.stream_id = detail.stream_id.unwrap_or(0);
            if let Some(native) = &detail.native {
                info.native_code = native.code;
                text_out(native.backend, &mut info.backend);
                text_out(&native.name, &mut info.native_name);
                text_out(native.function, &mut info.function);
            }
            text_out(&error.to_string(), &mut info.text);
        });
        Ok(())
    })
}

/// Copies out the whole text of the task's last failure, however long: a compiler's log, say.
///
/// The text ends with what the vendor's runtime answered, if one was asked. Like
/// tgpu_error_info_get, this call does not record its own refusals. To learn the length first, pass
/// NULL and 0.
///
/// @param buf       receives the text, cut at a character boundary if it does not fit, always ended
///                  by a NUL. May be NULL if capacity is 0.
/// @param capacity  bytes that buf has room for.
/// @param needed    receives the bytes of the whole text with its NUL: 1 if the task has had no
///                  failure yet.
/// @return TGPU_OK, also if the text was cut; TGPU_ERROR_INVALID_ARGUMENT if needed is NULL, or buf
///         is NULL and capacity is not 0; TGPU_ERROR_INTERNAL.
///
/// Ownership: the caller gets a copy.
/// Threads: any thread, also in callbacks.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_error_text(
    buf: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> tgpu_status {
    guard_quiet(|| {
        if buf.is_null() && capacity > 0 {
            return Err(null("buf"));
        }
        // SAFETY: the caller's pointer.
        let needed = unsafe { Out::new(needed, "needed") }?;
        let text = core::error::last().map_or(String::new(), |error| error.to_string());
        if capacity > 0 {
            let fits = fitting(&text, capacity - 1);
            for (i, byte) in fits.bytes().chain(std::iter::once(0)).enumerate() {
                // A NUL inside would end the text early for a C reader.
                let byte = if byte == 0 && i < fits.len() { b' ' } else { byte };
                // SAFETY: buf has room for `capacity` bytes, and these are at most that with their NUL.
                unsafe { buf.add(i).write(byte as c_char) };
            }
        }
        needed.set(text.len() + 1);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Error, Native};

    fn text(p: *const c_char) -> &'static str {
        // SAFETY: the functions under test answer texts of ours, ended by a NUL.
        unsafe { CStr::from_ptr(p) }.to_str().unwrap()
    }

    fn field(bytes: &[c_char]) -> String {
        let bytes: Vec<u8> = bytes.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
        String::from_utf8(bytes).unwrap()
    }

    fn fresh() -> tgpu_error_info {
        // SAFETY: all zeros are valid.
        let mut info: tgpu_error_info = unsafe { std::mem::zeroed() };
        info.struct_size = size_of::<tgpu_error_info>();
        info
    }

    #[test]
    fn constants_are_the_numbers_of_the_floors_below() {
        let constants = [
            TGPU_OK,
            TGPU_NOT_READY,
            TGPU_ERROR_INVALID_ARGUMENT,
            TGPU_ERROR_INVALID_HANDLE,
            TGPU_ERROR_INVALID_DEVICE,
            TGPU_ERROR_NO_DEVICE,
            TGPU_ERROR_OUT_OF_MEMORY,
            TGPU_ERROR_NOT_SUPPORTED,
            TGPU_ERROR_NOT_FOUND,
            TGPU_ERROR_NOT_PERMITTED,
            TGPU_ERROR_TIMEOUT,
            TGPU_ERROR_COMPILE_FAILED,
            TGPU_ERROR_INVALID_IMAGE,
            TGPU_ERROR_LAUNCH_FAILED,
            TGPU_ERROR_DEVICE_LOST,
            TGPU_ERROR_CAPTURING,
            TGPU_ERROR_IN_CALLBACK,
            TGPU_ERROR_TASK_BUSY,
            TGPU_ERROR_SCOPE_MISMATCH,
            TGPU_ERROR_FORKED,
            TGPU_ERROR_ENVIRONMENT,
            TGPU_ERROR_BACKEND,
            TGPU_ERROR_INTERNAL,
        ];
        assert_eq!(constants.to_vec(), Status::ALL.map(Status::code).to_vec());
        for (status, code) in Status::ALL.iter().zip(constants) {
            // InvalidHandle -> INVALID_HANDLE
            let name: String = format!("{status:?}")
                .chars()
                .flat_map(|c| [c.is_uppercase().then_some('_'), Some(c.to_ascii_uppercase())])
                .flatten()
                .collect();
            let prefix = if code <= TGPU_NOT_READY {
                "TGPU"
            } else {
                "TGPU_ERROR"
            };
            assert_eq!(text(tgpu_status_name(code)), format!("{prefix}{name}"));
            assert!(text(tgpu_status_message(code)).ends_with('.'));
        }
    }

    #[test]
    fn unknown_statuses_have_words_too() {
        for status in [-1, 23, i32::MIN, i32::MAX] {
            assert_eq!(text(tgpu_status_name(status)), "unknown status");
            assert!(!text(tgpu_status_message(status)).is_empty());
        }
    }

    #[test]
    fn a_fresh_thread_has_no_error() {
        std::thread::spawn(|| {
            let mut info = fresh();
            info.text[0] = b'x' as c_char;
            let (mut buf, mut needed) = ([b'x' as c_char; 4], 0);
            // SAFETY: locals of the right sizes.
            unsafe {
                assert_eq!(tgpu_error_info_get(&mut info), TGPU_OK);
                assert_eq!(tgpu_error_text(buf.as_mut_ptr(), buf.len(), &mut needed), TGPU_OK);
            }
            assert_eq!(
                (info.status, info.device, info.stream_id, info.native_code),
                (TGPU_OK, -1, 0, 0)
            );
            assert_eq!(
                (field(&info.text), field(&info.backend)),
                (String::new(), String::new())
            );
            assert_eq!((buf[0], needed), (0, 1));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn details_come_out_and_long_texts_whole() {
        let long = "ä".repeat(400);
        let error = Error::new(Status::OutOfMemory, long.clone())
            .on_device(3)
            .on_stream(9)
            .native(Native {
                backend: "host",
                code: -12,
                name: "ENOMEM".into(),
                function: "mmap",
            });
        core::error::record(&error);
        let mut info = fresh();
        let mut needed = 0;
        // SAFETY: a local, and NULL with a capacity of 0.
        unsafe {
            assert_eq!(tgpu_error_info_get(&mut info), TGPU_OK);
            assert_eq!(tgpu_error_text(std::ptr::null_mut(), 0, &mut needed), TGPU_OK);
        }
        assert_eq!(
            (info.status, info.device, info.stream_id),
            (TGPU_ERROR_OUT_OF_MEMORY, 3, 9)
        );
        assert_eq!((info.native_code, field(&info.backend)), (-12, "host".to_owned()));
        assert_eq!(
            (field(&info.native_name), field(&info.function)),
            ("ENOMEM".to_owned(), "mmap".to_owned())
        );
        assert_eq!(field(&info.text), "ä".repeat(255));

        let whole = format!("{long} [host: mmap answered ENOMEM (-12)]");
        assert_eq!(needed, whole.len() + 1);
        let mut buf = vec![b'x' as c_char; needed + 1];
        // SAFETY: the buffer has `needed` bytes.
        unsafe { assert_eq!(tgpu_error_text(buf.as_mut_ptr(), needed, &mut needed), TGPU_OK) };
        assert_eq!(field(&buf), whole);
        assert_eq!(buf[needed], b'x' as c_char);
        for capacity in [1, 2, 3, 4] {
            let mut buf = [b'x' as c_char; 5];
            // SAFETY: the buffer is longer than `capacity`.
            unsafe { assert_eq!(tgpu_error_text(buf.as_mut_ptr(), capacity, &mut needed), TGPU_OK) };
            assert_eq!(field(&buf), "ä".repeat((capacity - 1) / 2));
            assert_eq!(buf[capacity], b'x' as c_char);
            assert_eq!(needed, whole.len() + 1);
        }
    }

    #[test]
    fn refusals_of_reading_the_error_do_not_replace_it() {
        core::error::record(&Error::new(Status::NotFound, "keep me"));
        let mut info = fresh();
        info.struct_size = 5000;
        // SAFETY: NULL and the size are refused before anything is written.
        unsafe {
            assert_eq!(
                tgpu_error_info_get(std::ptr::null_mut()),
                TGPU_ERROR_INVALID_ARGUMENT
            );
            assert_eq!(tgpu_error_info_get(&mut info), TGPU_ERROR_INVALID_ARGUMENT);
            assert_eq!(
                tgpu_error_text(std::ptr::null_mut(), 1, &mut 0),
                TGPU_ERROR_INVALID_ARGUMENT
            );
            assert_eq!(
                tgpu_error_text(std::ptr::null_mut(), 0, std::ptr::null_mut()),
                TGPU_ERROR_INVALID_ARGUMENT
            );
        }
        assert_eq!(core::error::last().unwrap().detail().text, "keep me");
    }
}
