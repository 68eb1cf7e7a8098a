//! The thread's last error, and the names of codes.

use std::cell::Cell;
use std::ffi::{c_char, CStr};

use crate::entry::Function;
use crate::ffi::*;
use crate::runtime::runtime;

thread_local! {
    static LAST: Cell<hipError_t> = const { Cell::new(hipSuccess) };
}

/// What a call leaves behind. Before 7.0 every answer replaces the last error, success and "not ready" too.
pub fn leave_behind(code: hipError_t) {
    if !runtime().keeps_errors() || (code != hipSuccess && code != hipErrorNotReady) {
        // A thread that is ending has no last error any more.
        let _ = LAST.try_with(|last| last.set(code));
    }
}

mod count_of {
    use super::Function;
    pub static hipGetLastError: Function = Function::new("hipGetLastError");
    pub static hipPeekAtLastError: Function = Function::new("hipPeekAtLastError");
    pub static hipGetErrorName: Function = Function::new("hipGetErrorName");
    pub static hipGetErrorString: Function = Function::new("hipGetErrorString");
}

/// The functions of this file.
pub static FUNCTIONS: &[&Function] = &[
    &count_of::hipGetLastError,
    &count_of::hipPeekAtLastError,
    &count_of::hipGetErrorName,
    &count_of::hipGetErrorString,
];

/// Takes the last error.
#[no_mangle]
pub unsafe extern "C" fn hipGetLastError() -> hipError_t {
    count_of::hipGetLastError.count();
    LAST.try_with(|last| last.replace(hipSuccess))
        .unwrap_or(hipSuccess)
}

/// Looks at it.
#[no_mangle]
pub unsafe extern "C" fn hipPeekAtLastError() -> hipError_t {
    count_of::hipPeekAtLastError.count();
    LAST.try_with(Cell::get).unwrap_or(hipSuccess)
}

macro_rules! names {
    ($($name:ident $text:literal)*) => {
        fn name_and_text(code: hipError_t) -> (&'static str, &'static str) {
            match code {
                $($name => (concat!(stringify!($name), "\0"), concat!($text, "\0")),)*
                _ => ("hipErrorUnknown\0", "unknown error\0"),
            }
        }
    };
}
names! {
    hipSuccess "no error"
    hipErrorInvalidValue "invalid argument"
    hipErrorOutOfMemory "out of memory"
    hipErrorNotInitialized "initialization error"
    hipErrorDeinitialized "driver shutting down"
    hipErrorInvalidConfiguration "invalid configuration argument"
    hipErrorInvalidSymbol "invalid device symbol"
    hipErrorInvalidDevicePointer "invalid device pointer"
    hipErrorInvalidMemcpyDirection "invalid copy direction for memcpy"
    hipErrorInsufficientDriver "driver version is insufficient for runtime version"
    hipErrorInvalidDeviceFunction "invalid device function"
    hipErrorNoDevice "no ROCm-capable device is detected"
    hipErrorInvalidDevice "invalid device ordinal"
    hipErrorInvalidImage "device kernel image is invalid"
    hipErrorInvalidContext "invalid device context"
    hipErrorNoBinaryForGpu "no kernel image is available for execution on the device"
    hipErrorECCNotCorrectable "uncorrectable ECC error encountered"
    hipErrorPeerAccessUnsupported "peer access is not supported between these two devices"
    hipErrorInvalidKernelFile "invalid kernel file"
    hipErrorInvalidSource "device kernel image is invalid"
    hipErrorFileNotFound "file not found"
    hipErrorSharedObjectSymbolNotFound "shared object symbol not found"
    hipErrorSharedObjectInitFailed "shared object initialization failed"
    hipErrorInvalidHandle "invalid resource handle"
    hipErrorIllegalState "the operation cannot be performed in the present state"
    hipErrorNotFound "named symbol not found"
    hipErrorNotReady "device not ready"
    hipErrorIllegalAddress "an illegal memory access was encountered"
    hipErrorLaunchOutOfResources "too many resources requested for launch"
    hipErrorLaunchTimeOut "the launch timed out and was terminated"
    hipErrorPeerAccessAlreadyEnabled "peer access is already enabled"
    hipErrorPeerAccessNotEnabled "peer access has not been enabled"
    hipErrorContextIsDestroyed "context is destroyed"
    hipErrorAssert "device-side assert triggered"
    hipErrorHostMemoryAlreadyRegistered "part or all of the requested memory range is already mapped"
    hipErrorHostMemoryNotRegistered "pointer does not correspond to a registered memory region"
    hipErrorLaunchFailure "unspecified launch failure"
    hipErrorCooperativeLaunchTooLarge "too many blocks in cooperative launch"
    hipErrorNotSupported "operation not supported"
    hipErrorStreamCaptureUnsupported "operation not permitted when stream is capturing"
    hipErrorStreamCaptureInvalidated "operation failed due to a previous error during capture"
    hipErrorStreamCaptureImplicit "operation would make the legacy stream depend on a capturing blocking stream"
    hipErrorCapturedEvent "operation not permitted on an event last recorded in a capturing stream"
    hipErrorStreamCaptureWrongThread "attempt to terminate a thread-local capture sequence from another thread"
    hipErrorRuntimeMemory "runtime memory call returned error"
    hipErrorRuntimeOther "runtime call other than memory returned error"
}

fn c_text(text: &'static str) -> *const c_char {
    CStr::from_bytes_until_nul(text.as_bytes()).map_or(std::ptr::null(), CStr::as_ptr)
}

/// The name of a code.
#[no_mangle]
pub unsafe extern "C" fn hipGetErrorName(code: hipError_t) -> *const c_char {
    count_of::hipGetErrorName.count();
    c_text(name_and_text(code).0)
}

/// Its words.
#[no_mangle]
pub unsafe extern "C" fn hipGetErrorString(code: hipError_t) -> *const c_char {
    count_of::hipGetErrorString.count();
    c_text(name_and_text(code).1)
}
