//! # taskgpu: the C interface
//!
//! One library for task-local device and stream state, kernel launch and synchronization, on AMD
//! GPUs, on NVIDIA GPUs and, with no GPU at all, on the CPU. The vendors' runtimes are looked for
//! when the program runs, so that one binary serves all three and starts on a machine that has none
//! of them.
//!
//! The model in three sentences. The current device and the current stream are properties of the
//! current task, and switching either affects only the task that switches. A task is the calling
//! thread, until a program makes tasks of its own and swaps them between threads. Work on one
//! stream runs in order, work on different streams may overlap, and everything is asynchronous to
//! the host until somebody waits.
//!
//! A complete program. It doubles 1024 numbers on the current device, which must be a host device
//! since the kernel is a C function (cc double.c -ltaskgpu, run with TASKGPU_BACKENDS=host):
//!
//! ```c
//! #include <stdio.h>
//! #include <taskgpu.h>
//!
//! static void twice(const tgpu_host_block *b, void *const *args, void *data) {
//!   float *x = *(float *const *)args[0]; // runs once per block of the grid
//!   for (uint32_t i = 0; i < b->block[0]; i++) x[b->index[0] * b->block[0] + i] *= 2.0f;
//!   (void)data;
//! }
//! int main(void) {
//!   static float host[1024] = {1.0f, 2.0f, 3.0f};
//!   const size_t arg_sizes[1] = {sizeof(void *)};
//!   tgpu_launch_config shape = TGPU_LAUNCH_CONFIG_INIT; // stream NULL: the current one
//!   tgpu_kernel kernel = NULL;
//!   void *x = NULL, *args[1] = {&x};
//!   shape.grid[0] = 8, shape.block[0] = 128;
//!   if (tgpu_kernel_from_host_fn(twice, NULL, 1, arg_sizes, &kernel) ||
//!       tgpu_malloc(sizeof host, &x) || tgpu_memcpy(x, host, sizeof host, NULL) ||
//!       tgpu_launch(kernel, &shape, args) || tgpu_memcpy(host, x, sizeof host, NULL) ||
//!       tgpu_synchronize()) {
//!     tgpu_error_info why = TGPU_ERROR_INFO_INIT;
//!     tgpu_error_info_get(&why);
//!     return fprintf(stderr, "%s: %s\n", tgpu_status_name(why.status), why.text), 1;
//!   }
//!   printf("%g %g %g\n", host[0], host[1], host[2]); // 2 4 6
//!   return tgpu_free(x) || tgpu_kernel_destroy(kernel);
//! }
//! ```
//!
//! Conventions, said once:
//!
//! - *Parameters.* The object a call is about comes first, inputs before outputs. Outputs are
//!   written only when the call answers TGPU_OK. A NULL output pointer is
//!   TGPU_ERROR_INVALID_ARGUMENT unless the call says that it may be NULL.
//! - *Answers.* Nearly every call returns a tgpu_status. The set is open: later versions may add
//!   values, so treat one you do not know as an error. TGPU_NOT_READY and TGPU_ERROR_TIMEOUT are
//!   answers rather than failures: the work goes on. Every other status than TGPU_OK leaves its
//!   details with the task, see Errors.
//! - *Ownership.* What a create, load, compile, import or malloc call hands out is the caller's, to
//!   be given back once by the matching destroy or free call. Pointers handed in are read during
//!   the call only, except for the memory of copies and fills, which must stay valid until that
//!   work is done, and for the functions and data pointers of callbacks, host kernels and hooks.
//! - *Handles.* A handle is a number dressed as a pointer to an incomplete struct. A stale, doubly
//!   destroyed or made-up handle is answered TGPU_ERROR_INVALID_HANDLE on any thread. NULL as a
//!   stream means the current stream of the task's current device.
//! - *Threads.* Every call may be made from any thread at any time. What it acts on is the task
//!   that is current on that thread.
//! - *Callbacks.* In a callback and in a host kernel, calls that need the runtime answer
//!   TGPU_ERROR_IN_CALLBACK. The calls that are allowed there say so. They are also fit for
//!   finalizers: they never wait, and they leave the state and the last error of the task alone.
//! - *Sizes.* Sizes are bytes unless a name says otherwise. A size of zero is fine and does
//!   nothing.
//! - *Structs.* Every struct that may grow starts with `struct_size`. Start from its
//!   `TGPU_..._INIT` macro, or set `struct_size` to the size of the struct and the rest to zero.
//!   Inputs: a struct shorter than this library's stands for zeros in the rest, and zero is the
//!   default of every field added later; a longer one is refused if a byte that this library does
//!   not know is not zero. Outputs: what fits is written, the rest of the caller's struct is set to
//!   zero, and `struct_size` stays as the caller set it. A struct_size below that of size_t or
//!   above 4096 is refused with TGPU_ERROR_INVALID_ARGUMENT.
//! - *Enums and flags.* Enums are int32_t and their default is 0. Flags are uint32_t. A value or a
//!   bit that is not listed is refused with TGPU_ERROR_INVALID_ARGUMENT.
//! - *Strings.* Strings are UTF-8 and end with a NUL. Those in fixed arrays are cut at a character
//!   boundary.
//!
//! Under each function: what it does, its parameters, its statuses, then what changes hands
//! (Ownership), where it may be called (Threads), whether it waits for work (Blocks) and the first
//! version that has it (Since). Two groups of statuses come back so often that they are named as
//! groups:
//!
//! - the *common statuses*: TGPU_ERROR_ENVIRONMENT if a TASKGPU_ variable makes no sense,
//!   TGPU_ERROR_NO_DEVICE if there is no device, TGPU_ERROR_FORKED in the child of a fork,
//!   TGPU_ERROR_IN_CALLBACK in a callback or host kernel, TGPU_ERROR_INTERNAL for a bug of this
//!   library;
//! - the *device statuses*: the common ones, TGPU_ERROR_OUT_OF_MEMORY if opening the device or the
//!   call's own bookkeeping ran out of memory, TGPU_ERROR_DEVICE_LOST if the device has failed,
//!   TGPU_ERROR_BACKEND for an answer of the vendor's runtime that has no better name,
//!   TGPU_ERROR_NOT_PERMITTED for new work on a host device while the process exits, and for waits
//!   that would not end then.
//!
//! Environment variables, read once, by the first call that needs the runtime:
//!
//! - TASKGPU_BACKENDS: "auto" (the default: GPUs if there are any, else host devices) or a list
//!   such as "hip,host";
//! - TASKGPU_VISIBLE_DEVICES: the devices to use and their order, as indices or UUID prefixes;
//! - TASKGPU_HOST_DEVICES: how many host devices there are (1), TASKGPU_HOST_THREADS: how many
//!   threads run their kernels, TASKGPU_HOST_MEMORY: bytes of memory of each;
//! - TASKGPU_WAIT: the wait policy tasks start with, "auto", "spin" or "block";
//! - TASKGPU_LOG: what is written to the standard error, "off" (the default), "error" for every
//!   failure, or "info" for that and how the search for backends went.
// The documentation of this module is the manual that `cargo xtask header` writes into include/taskgpu.h, in C's
// terms: the safety of a call is what its `Ownership:` line and its parameters say.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

use crate::backend::{Error, Result, Status};
use std::any::Any;
use std::ffi::{c_char, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};

pub mod backend;
pub mod device;
pub mod error;
pub mod event;
pub mod handles;
pub mod kernel;
pub mod launch;
pub mod memory;
pub mod module;
pub mod scope;
pub mod stream;
pub mod sync;
pub mod task;
pub mod version;

#[cfg(test)]
mod layout_tests;
mod structs;

use error::tgpu_status;

/// The panic boundary: runs the body of a call, records its failure as the task's last error, and
/// gives its status.
#[inline(always)]
fn guard(body: impl FnOnce() -> Result<()>) -> tgpu_status {
    guard_answer(|| body().map(|()| Status::Ok))
}

/// [`guard`] for calls with an answer other than done: not ready, timeout. Answers are not
/// recorded.
#[inline(always)]
fn guard_answer(body: impl FnOnce() -> Result<Status>) -> tgpu_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status.code(),
        Ok(Err(error)) => failed(error),
        Err(payload) => failed(panic_error(payload)),
    }
}

/// [`guard`] for calls that never overwrite the task's last error: destroy, free, and reading the
/// error itself.
#[inline(always)]
fn guard_quiet(body: impl FnOnce() -> Result<()>) -> tgpu_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok.code(),
        Ok(Err(error)) => error.status().code(),
        Err(payload) => panic_error(payload).status().code(),
    }
}

/// [`guard_quiet`] for destroy and free, which take locks, and may be all that a thread ever calls.
#[inline(always)]
fn guard_ending(body: impl FnOnce() -> Result<()>) -> tgpu_status {
    let _uncut = crate::core::task::uncut();
    guard_quiet(body)
}

#[cold]
#[inline(never)]
fn failed(error: Error) -> tgpu_status {
    let status = error.status();
    if !matches!(status, Status::NotReady | Status::Timeout) {
        // A thread that is exiting may have no place left for the error; the status still gets out.
        let _ = catch_unwind(AssertUnwindSafe(|| crate::core::error::record(&error)));
    }
    status.code()
}

#[cold]
#[inline(never)]
fn panic_error(payload: Box<dyn Any + Send>) -> Error {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => format!("internal error, please report it: {text}"),
        (_, Some(text)) => format!("internal error, please report it: {text}"),
        _ => "internal error, please report it".to_owned(),
    };
    // Dropping a payload runs code of whoever panicked, which may panic in turn.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
    Error::new(Status::Internal, text)
}

#[cold]
fn invalid(text: String) -> Error {
    Error::new(Status::InvalidArgument, text)
}

#[cold]
fn null(name: &str) -> Error {
    invalid(format!("{name} is NULL"))
}

/// Where a result goes: checked first, written last.
struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// `p` is NULL or may be written with a `T` until the call returns.
    #[inline(always)]
    unsafe fn new(p: *mut T, name: &'static str) -> Result<Out<T>> {
        if p.is_null() {
            return Err(null(name));
        }
        Ok(Out(p))
    }

    #[inline(always)]
    fn set(self, value: T) {
        // SAFETY: not NULL, and the caller of `new` promised that it may be written.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// A C string handed in.
///
/// # Safety
/// `p` is NULL or points to bytes that end with a NUL and stay as they are for `'a`.
unsafe fn text_in<'a>(p: *const c_char, name: &str) -> Result<&'a str> {
    if p.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(p) };
    bytes.to_str().map_err(|e| {
        invalid(format!(
            "{name} is not valid UTF-8 from byte {} on",
            e.valid_up_to()
        ))
    })
}

/// How much of `text` fits into `room` bytes without splitting a character.
fn fitting(text: &str, room: usize) -> &str {
    let mut end = text.len().min(room);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Writes `text` into a fixed array: cut to fit, ended by a NUL. A NUL inside, which would end it
/// early for a C reader, becomes a space.
fn text_out(text: &str, to: &mut [c_char]) {
    let text = fitting(text, to.len() - 1);
    to.fill(0);
    for (to, byte) in to.iter_mut().zip(text.bytes()) {
        *to = if byte == 0 { b' ' } else { byte } as c_char;
    }
}

/// Refuses flag bits that do not exist.
fn check_flags(flags: u32, allowed: u32, names: &str) -> Result<()> {
    if flags & !allowed != 0 {
        return Err(invalid(format!(
            "flags is {flags:#x}; allowed are the bits {allowed:#x} ({names})"
        )));
    }
    Ok(())
}

/// Nanoseconds of a C caller as the floors below take them: `UINT64_MAX` is forever.
fn patience(ns: u64) -> crate::backend::Patience {
    (ns != u64::MAX).then(|| std::time::Duration::from_nanos(ns))
}

/// A file descriptor handed in. Whether it is open is found out where it is duplicated.
fn check_fd(fd: i32) -> Result<i32> {
    if fd < 0 {
        return Err(invalid(format!("fd is {fd}; a file descriptor is 0 or more")));
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_text() -> String {
        crate::core::error::last()
            .map(|e| e.detail().text.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn a_panic_becomes_internal_with_its_text() {
        let status = guard(|| panic!("the sky fell on {}", 7));
        assert_eq!(status, error::TGPU_ERROR_INTERNAL);
        assert_eq!(last_text(), "internal error, please report it: the sky fell on 7");
        let status = guard(|| panic!("plain"));
        assert_eq!(status, error::TGPU_ERROR_INTERNAL);
        assert_eq!(last_text(), "internal error, please report it: plain");
        let status = guard(|| std::panic::panic_any(5));
        assert_eq!(status, error::TGPU_ERROR_INTERNAL);
        assert_eq!(last_text(), "internal error, please report it");
    }

    #[test]
    fn a_panicking_payload_stays_inside() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("in drop");
            }
        }
        assert_eq!(guard(|| std::panic::panic_any(Bomb)), error::TGPU_ERROR_INTERNAL);
    }

    #[test]
    fn failures_are_recorded_and_answers_are_not() {
        assert_eq!(
            guard(|| Err(invalid("first".into()))),
            error::TGPU_ERROR_INVALID_ARGUMENT
        );
        assert_eq!(last_text(), "first");
        assert_eq!(guard(|| Ok(())), error::TGPU_OK);
        assert_eq!(guard_answer(|| Ok(Status::NotReady)), error::TGPU_NOT_READY);
        assert_eq!(guard_answer(|| Ok(Status::Timeout)), error::TGPU_ERROR_TIMEOUT);
        assert_eq!(
            guard(|| Err(Error::new(Status::NotReady, "pending"))),
            error::TGPU_NOT_READY
        );
        assert_eq!(
            guard(|| Err(Error::new(Status::Timeout, "late"))),
            error::TGPU_ERROR_TIMEOUT
        );
        assert_eq!(last_text(), "first");
    }

    #[test]
    fn quiet_calls_leave_the_last_error_alone() {
        assert_eq!(
            guard(|| Err(invalid("mine".into()))),
            error::TGPU_ERROR_INVALID_ARGUMENT
        );
        let status = guard_quiet(|| Err(Error::new(Status::InvalidHandle, "other")));
        assert_eq!(status, error::TGPU_ERROR_INVALID_HANDLE);
        assert_eq!(guard_quiet(|| panic!("other")), error::TGPU_ERROR_INTERNAL);
        assert_eq!(guard_quiet(|| Ok(())), error::TGPU_OK);
        assert_eq!(last_text(), "mine");
    }

    #[test]
    fn strings_are_cut_between_characters() {
        let cut = |text: &str| {
            let mut buf = [0x55 as c_char; 6];
            text_out(text, &mut buf);
            buf.map(|c| c as u8)
        };
        assert_eq!(&cut(""), b"\0\0\0\0\0\0");
        assert_eq!(&cut("abc"), b"abc\0\0\0");
        assert_eq!(&cut("abcde"), b"abcde\0");
        assert_eq!(&cut("abcdef"), b"abcde\0");
        // Two bytes each: the third would be split.
        assert_eq!(&cut("äöü"), "äö\0\0".as_bytes());
        // Four bytes from the third on.
        assert_eq!(&cut("ab\u{1F600}"), b"ab\0\0\0\0");
        assert_eq!(&cut("a\0b"), b"a b\0\0\0");
        let mut one = [0x55 as c_char; 1];
        text_out("ä", &mut one);
        assert_eq!(one, [0]);
    }

    #[test]
    fn strings_in_are_checked() {
        // SAFETY: NULL is allowed, and the literals end with a NUL.
        unsafe {
            assert_eq!(
                text_in(std::ptr::null(), "name").unwrap_err().to_string(),
                "name is NULL"
            );
            assert_eq!(text_in(c"k\xc3\xa4se".as_ptr(), "name").unwrap(), "käse");
            let e = text_in(c"ab\xffc".as_ptr(), "name").unwrap_err();
            assert_eq!(e.to_string(), "name is not valid UTF-8 from byte 2 on");
            assert_eq!(e.status(), Status::InvalidArgument);
        }
    }

    #[test]
    fn outputs_may_be_misaligned_and_not_null() {
        let mut bytes = [0u8; 9];
        // SAFETY: 8 bytes from the second on may be written.
        let out = unsafe { Out::<u64>::new(bytes.as_mut_ptr().add(1).cast(), "out") }.unwrap();
        out.set(u64::MAX);
        assert_eq!(bytes, [0, 255, 255, 255, 255, 255, 255, 255, 255]);
        // SAFETY: NULL is allowed.
        let e = unsafe { Out::<u64>::new(std::ptr::null_mut(), "out") }
            .err()
            .unwrap();
        assert_eq!(e.to_string(), "out is NULL");
    }

    #[test]
    fn flags_name_the_value_and_the_allowed_bits() {
        assert!(check_flags(0, 1, "X").is_ok());
        assert!(check_flags(5, 7, "X").is_ok());
        let e = check_flags(9, 1, "TGPU_X").unwrap_err();
        assert_eq!(e.to_string(), "flags is 0x9; allowed are the bits 0x1 (TGPU_X)");
    }

    #[test]
    fn the_longest_time_is_forever() {
        assert_eq!(patience(u64::MAX), None);
        assert_eq!(patience(0), Some(std::time::Duration::ZERO));
        assert_eq!(patience(1_500), Some(std::time::Duration::from_nanos(1_500)));
    }
}
