//! What the driver's codes mean in our words.

use std::borrow::Cow;
use std::ffi::{c_char, CStr};

use super::api::{Answer, Api, CuResult};
use crate::backend::{Error, Native, Status};

pub(super) const SUCCESS: CuResult = 0;
pub(super) const OUT_OF_MEMORY: CuResult = 2;
pub(super) const NO_DEVICE: CuResult = 100;
pub(super) const INVALID_CONTEXT: CuResult = 201;
pub(super) const NOT_FOUND: CuResult = 500;
pub(super) const NOT_READY: CuResult = 600;
pub(super) const PEER_ACCESS_ALREADY_ENABLED: CuResult = 704;
pub(super) const HOST_MEMORY_ALREADY_REGISTERED: CuResult = 712;
pub(super) const HOST_MEMORY_NOT_REGISTERED: CuResult = 713;
pub(super) const LAUNCH_OUT_OF_RESOURCES: CuResult = 701;

/// True for codes after which the context answers nothing else any more: "the process must be terminated and
/// relaunched" in `cuda.h`, or the context is gone.
pub(super) fn is_sticky(code: CuResult) -> bool {
    matches!(
        code,
        214   // ECC_UNCORRECTABLE
        | 220 // NVLINK_UNCORRECTABLE
        | 226 // CONTAINED
        | 700 // ILLEGAL_ADDRESS
        | 702 // LAUNCH_TIMEOUT
        | 709 // CONTEXT_IS_DESTROYED
        | 710 // ASSERT
        | 714
            ..=719 // HARDWARE_STACK_ERROR .. LAUNCH_FAILED
        | 721 // TENSOR_MEMORY_LEAK
        | 806 // MPS_RPC_FAILURE
        | 810 // MPS_CLIENT_TERMINATED
        | 911 // EXTERNAL_DEVICE
        | 999 // UNKNOWN
    )
}

/// The status for a code that needs no look at the call it came from.
pub(super) fn status_of(code: CuResult) -> Status {
    match code {
        SUCCESS => Status::Ok,
        code if is_sticky(code) => Status::DeviceLost,
        1 => Status::InvalidArgument,
        OUT_OF_MEMORY => Status::OutOfMemory,
        NO_DEVICE => Status::NoDevice,
        101 => Status::InvalidDevice,
        200 | 209 | 218 | 221 | 222 | 223 | 300 => Status::InvalidImage,
        217 | 225 | 801 | 804 | 811 | 812 => Status::NotSupported,
        400 => Status::InvalidHandle,
        NOT_FOUND | 302 => Status::NotFound,
        NOT_READY => Status::NotReady,
        LAUNCH_OUT_OF_RESOURCES | 98 | 703 | 720 | 912 => Status::LaunchFailed,
        HOST_MEMORY_ALREADY_REGISTERED | HOST_MEMORY_NOT_REGISTERED => Status::InvalidArgument,
        800 => Status::NotPermitted,
        900..=908 => Status::Capturing,
        _ => Status::Backend,
    }
}

impl Api {
    fn words(
        &self,
        ask: unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult,
        code: CuResult,
    ) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: `text` is writable; the function takes any code.
        if unsafe { ask(code, &mut text) } != SUCCESS || text.is_null() {
            return String::new();
        }
        // SAFETY: on success it is a constant string of the driver's library, which is never closed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// The vendor's name of a code.
    pub(super) fn code_name(&self, code: CuResult) -> String {
        match self.words(self.cuGetErrorName, code) {
            name if name.is_empty() => format!("CUDA error {code}"),
            name => name,
        }
    }

    /// The vendor's sentence about a code.
    pub(super) fn code_text(&self, code: CuResult) -> String {
        match self.words(self.cuGetErrorString, code) {
            text if text.is_empty() => "an error this driver has no words for".into(),
            text => text,
        }
    }

    /// What `answer` is in the vendor's words, for an [`Error`].
    pub(super) fn native(&self, answer: Answer) -> Native {
        Native {
            backend: "cuda",
            code: i64::from(answer.code),
            name: Cow::Owned(self.code_name(answer.code)),
            function: answer.function,
        }
    }

    /// The failure that `answer` is. `what` says what was tried, as the start of a sentence.
    #[cold]
    pub(super) fn failure(&self, answer: Answer, what: &str) -> Error {
        let text = format!("{what}: {}", self.code_text(answer.code));
        Error::new(status_of(answer.code), text).native(self.native(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_faults_mean_the_device_is_lost() {
        for code in [
            214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999,
        ] {
            assert_eq!(status_of(code), Status::DeviceLost, "{code}");
        }
    }

    #[test]
    fn answers_that_leave_the_device_usable_do_not() {
        let cases = [
            (0, Status::Ok),
            (1, Status::InvalidArgument),
            (2, Status::OutOfMemory),
            (100, Status::NoDevice),
            (101, Status::InvalidDevice),
            (209, Status::InvalidImage),
            (218, Status::InvalidImage),
            (222, Status::InvalidImage),
            (217, Status::NotSupported),
            (400, Status::InvalidHandle),
            (500, Status::NotFound),
            (600, Status::NotReady),
            (701, Status::LaunchFailed),
            (720, Status::LaunchFailed),
            (801, Status::NotSupported),
            (900, Status::Capturing),
            (901, Status::Capturing),
            (906, Status::Capturing),
            (907, Status::Capturing),
        ];
        for (code, status) in cases {
            assert_eq!(status_of(code), status, "{code}");
        }
    }

    #[test]
    fn a_code_of_a_newer_driver_is_a_vendor_code_and_nothing_worse() {
        assert_eq!(status_of(12345), Status::Backend);
        assert_eq!(status_of(-7), Status::Backend);
    }
}
