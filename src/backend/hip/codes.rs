//! What the runtime's codes mean in our words, and whose the last error is.

use std::borrow::Cow;
use std::ffi::{c_char, CStr};

use super::api::{Answer, Api};
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use crate::backend::{Error, Native, Status};

/// True for codes after which the device answers nothing else any more.
pub(super) fn is_sticky(code: hipError_t) -> bool {
    matches!(
        code,
        hipErrorDeinitialized
            | hipErrorECCNotCorrectable
            | hipErrorIllegalAddress
            | hipErrorLaunchTimeOut
            | hipErrorAssert
            | 714
            ..=719 // a hardware fault .. hipErrorLaunchFailure
            | hipErrorUnknown
            | hipErrorRuntimeMemory
            | hipErrorRuntimeOther
    )
}

/// The status for a code that needs no look at the call it came from.
pub(super) fn status_of(code: hipError_t) -> Status {
    match code {
        hipSuccess => Status::Ok,
        code if is_sticky(code) => Status::DeviceLost,
        hipErrorInvalidValue
        | hipErrorInvalidDevicePointer
        | hipErrorInvalidMemcpyDirection
        | hipErrorHostMemoryAlreadyRegistered
        | hipErrorHostMemoryNotRegistered => Status::InvalidArgument,
        hipErrorOutOfMemory => Status::OutOfMemory,
        hipErrorNoDevice | hipErrorInsufficientDriver | hipErrorNotInitialized => Status::NoDevice,
        hipErrorInvalidDevice => Status::InvalidDevice,
        hipErrorInvalidImage
        | hipErrorNoBinaryForGpu
        | hipErrorInvalidKernelFile
        | hipErrorInvalidSource
        | hipErrorFileNotFound
        | hipErrorSharedObjectInitFailed => Status::InvalidImage,
        hipErrorPeerAccessUnsupported | hipErrorNotSupported => Status::NotSupported,
        // The second one is how the runtime answers a stream or event that it does not know: no context of its ever ends.
        hipErrorInvalidHandle | hipErrorContextIsDestroyed => Status::InvalidHandle,
        hipErrorNotFound | hipErrorInvalidSymbol | hipErrorSharedObjectSymbolNotFound => Status::NotFound,
        hipErrorNotReady => Status::NotReady,
        hipErrorInvalidConfiguration
        | hipErrorInvalidDeviceFunction
        | hipErrorLaunchOutOfResources
        | hipErrorCooperativeLaunchTooLarge => Status::LaunchFailed,
        hipErrorStreamCaptureUnsupported..=hipErrorStreamCaptureWrongThread => Status::Capturing,
        _ => Status::Backend,
    }
}

/// A constant text of the runtime's.
fn words(text: *const c_char) -> Option<String> {
    // SAFETY: a string of a library that is never closed.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

impl Api {
    /// The vendor's name of a code.
    pub(super) fn code_name(&self, code: hipError_t) -> String {
        // SAFETY: the function takes any code.
        words(unsafe { (self.hipGetErrorName)(code) }).unwrap_or_else(|| format!("HIP error {code}"))
    }

    /// The vendor's sentence about a code.
    pub(super) fn code_text(&self, code: hipError_t) -> String {
        // SAFETY: the function takes any code.
        words(unsafe { (self.hipGetErrorString)(code) })
            .unwrap_or_else(|| "an error this runtime has no words for".into())
    }

    /// What `answer` is in the vendor's words, for an [`Error`].
    pub(super) fn native(&self, answer: Answer) -> Native {
        Native {
            backend: "hip",
            code: i64::from(answer.code),
            name: Cow::Owned(self.code_name(answer.code)),
            function: answer.function,
        }
    }

    /// Clears the thread's last error if it is `code`, which a call of ours has just been answered and which is dealt with:
    /// nobody shall find it later and take it for his own. An error that others left is none of ours and stays, as far as
    /// the runtime kept it (before ROCm 7 each call overwrites it, also with success).
    #[inline]
    pub(super) fn forget(&self, code: hipError_t) {
        if code != hipSuccess {
            // SAFETY: both take nothing and work on any thread.
            unsafe {
                if (self.hipPeekAtLastError)() == code {
                    (self.hipGetLastError)();
                }
            }
        }
    }

    /// The failure that `answer` is. `what` says what was tried, as the start of a sentence.
    #[cold]
    pub(super) fn failure(&self, answer: Answer, what: &str) -> Error {
        let text = format!("{what}: {}", self.code_text(answer.code));
        if !is_sticky(answer.code) {
            self.forget(answer.code);
        }
        Error::new(status_of(answer.code), text).native(self.native(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_faults_mean_the_device_is_lost() {
        for code in [4, 214, 700, 702, 710, 714, 718, 719, 999, 1052, 1053] {
            assert_eq!(status_of(code), Status::DeviceLost, "{code}");
        }
    }

    #[test]
    fn answers_that_leave_the_device_usable_do_not() {
        let cases = [
            (0, Status::Ok),
            (1, Status::InvalidArgument),
            (2, Status::OutOfMemory),
            (9, Status::LaunchFailed),
            (17, Status::InvalidArgument),
            (98, Status::LaunchFailed),
            (100, Status::NoDevice),
            (101, Status::InvalidDevice),
            (200, Status::InvalidImage),
            (209, Status::InvalidImage),
            (217, Status::NotSupported),
            (400, Status::InvalidHandle),
            (500, Status::NotFound),
            (709, Status::InvalidHandle),
            (600, Status::NotReady),
            (701, Status::LaunchFailed),
            (712, Status::InvalidArgument),
            (713, Status::InvalidArgument),
            (801, Status::NotSupported),
            (900, Status::Capturing),
            (907, Status::Capturing),
        ];
        for (code, status) in cases {
            assert_eq!(status_of(code), status, "{code}");
        }
    }

    #[test]
    fn a_code_of_a_newer_runtime_is_a_vendor_code_and_nothing_worse() {
        assert_eq!(status_of(12345), Status::Backend);
        assert_eq!(status_of(-7), Status::Backend);
    }
}
