//! The vendor's types and constants, under the vendor's names.
//!
//! `tests/hip-layout` compares all of it with the installed `hip/hip_runtime_api.h`. Its tool reads an older Rust, so this
//! file holds nothing but plain declarations. What the vendor calls an enum is a plain number here: a value of a newer
//! runtime is then just one we have no better name for.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub type hipError_t = c_int;
pub type hipDevice_t = c_int;
pub type hipDeviceptr_t = *mut c_void;
pub type hipStream_t = *mut c_void;
pub type hipEvent_t = *mut c_void;
pub type hipModule_t = *mut c_void;
pub type hipFunction_t = *mut c_void;
pub type hipMemPool_t = *mut c_void;
pub type hipDeviceAttribute_t = c_int;
pub type hipFunction_attribute = c_int;
pub type hipMemcpyKind = c_int;
pub type hipMemoryType = c_int;
pub type hipMemAllocationType = c_int;
pub type hipMemAllocationHandleType = c_int;
pub type hipMemLocationType = c_int;
pub type hipMemAccessFlags = c_int;
pub type hipMemPoolAttr = c_int;
pub type hipStreamCaptureMode = c_int;
pub type hipStreamCaptureStatus = c_int;
pub type hiprtcResult = c_int;
pub type hiprtcProgram = *mut c_void;
/// A function the runtime calls when a stream gets to it, with the status of the work before.
pub type hipStreamCallback_t = unsafe extern "C" fn(hipStream_t, hipError_t, *mut c_void);
/// What `hipGetDeviceProperties` fills, of which we read one text: its other fields are asked for one by one.
pub type hipDeviceProp_t = c_void;
/// What `hipGetDevicePropertiesR0600` fills, since ROCm 6.
pub type hipDeviceProp_tR0600 = c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipUUID {
    pub bytes: [c_char; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipMemLocation {
    pub type_: hipMemLocationType,
    pub id: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipMemAccessDesc {
    pub location: hipMemLocation,
    pub flags: hipMemAccessFlags,
}

/// Its tail has gained fields over time, all 0 for "default".
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipMemPoolProps {
    pub allocType: hipMemAllocationType,
    pub handleTypes: hipMemAllocationHandleType,
    pub location: hipMemLocation,
    pub win32SecurityAttributes: *mut c_void,
    pub reserved: [u8; 64],
}

/// The first field is called `type` since ROCm 6, and its numbers are others.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipPointerAttribute_t {
    pub memoryType: hipMemoryType,
    pub device: c_int,
    pub devicePointer: *mut c_void,
    pub hostPointer: *mut c_void,
    pub isManaged: c_int,
    pub allocationFlags: c_uint,
}

pub const hipSuccess: hipError_t = 0;
pub const hipErrorInvalidValue: hipError_t = 1;
pub const hipErrorOutOfMemory: hipError_t = 2;
pub const hipErrorNotInitialized: hipError_t = 3;
pub const hipErrorDeinitialized: hipError_t = 4;
pub const hipErrorInvalidConfiguration: hipError_t = 9;
pub const hipErrorInvalidSymbol: hipError_t = 13;
pub const hipErrorInvalidDevicePointer: hipError_t = 17;
pub const hipErrorInvalidMemcpyDirection: hipError_t = 21;
pub const hipErrorInsufficientDriver: hipError_t = 35;
pub const hipErrorInvalidDeviceFunction: hipError_t = 98;
pub const hipErrorNoDevice: hipError_t = 100;
pub const hipErrorInvalidDevice: hipError_t = 101;
pub const hipErrorInvalidImage: hipError_t = 200;
pub const hipErrorInvalidContext: hipError_t = 201;
pub const hipErrorNoBinaryForGpu: hipError_t = 209;
pub const hipErrorECCNotCorrectable: hipError_t = 214;
pub const hipErrorPeerAccessUnsupported: hipError_t = 217;
pub const hipErrorInvalidKernelFile: hipError_t = 218;
pub const hipErrorInvalidSource: hipError_t = 300;
pub const hipErrorFileNotFound: hipError_t = 301;
pub const hipErrorSharedObjectSymbolNotFound: hipError_t = 302;
pub const hipErrorSharedObjectInitFailed: hipError_t = 303;
pub const hipErrorInvalidHandle: hipError_t = 400;
pub const hipErrorIllegalState: hipError_t = 401;
pub const hipErrorNotFound: hipError_t = 500;
pub const hipErrorNotReady: hipError_t = 600;
pub const hipErrorIllegalAddress: hipError_t = 700;
pub const hipErrorLaunchOutOfResources: hipError_t = 701;
pub const hipErrorLaunchTimeOut: hipError_t = 702;
pub const hipErrorPeerAccessAlreadyEnabled: hipError_t = 704;
pub const hipErrorPeerAccessNotEnabled: hipError_t = 705;
pub const hipErrorContextIsDestroyed: hipError_t = 709;
pub const hipErrorAssert: hipError_t = 710;
pub const hipErrorHostMemoryAlreadyRegistered: hipError_t = 712;
pub const hipErrorHostMemoryNotRegistered: hipError_t = 713;
pub const hipErrorLaunchFailure: hipError_t = 719;
pub const hipErrorCooperativeLaunchTooLarge: hipError_t = 720;
pub const hipErrorNotSupported: hipError_t = 801;
pub const hipErrorStreamCaptureUnsupported: hipError_t = 900;
pub const hipErrorStreamCaptureInvalidated: hipError_t = 901;
pub const hipErrorStreamCaptureImplicit: hipError_t = 906;
pub const hipErrorCapturedEvent: hipError_t = 907;
pub const hipErrorStreamCaptureWrongThread: hipError_t = 908;
pub const hipErrorUnknown: hipError_t = 999;
pub const hipErrorRuntimeMemory: hipError_t = 1052;
pub const hipErrorRuntimeOther: hipError_t = 1053;

pub const hipStreamDefault: c_uint = 0;
pub const hipStreamNonBlocking: c_uint = 1;
pub const hipEventBlockingSync: c_uint = 1;
pub const hipEventDisableTiming: c_uint = 2;
pub const hipHostMallocPortable: c_uint = 1;
pub const hipHostRegisterPortable: c_uint = 1;
pub const hipMallocSignalMemory: c_uint = 2;
pub const hipStreamWaitValueGte: c_uint = 0;

pub const hipStreamCaptureModeRelaxed: hipStreamCaptureMode = 2;
pub const hipStreamCaptureStatusNone: hipStreamCaptureStatus = 0;

pub const hipMemcpyHostToHost: hipMemcpyKind = 0;
pub const hipMemcpyHostToDevice: hipMemcpyKind = 1;
pub const hipMemcpyDeviceToHost: hipMemcpyKind = 2;
pub const hipMemcpyDeviceToDevice: hipMemcpyKind = 3;
pub const hipMemcpyDefault: hipMemcpyKind = 4;

/// Memory kinds as ROCm 5 numbers them.
pub const hipMemoryTypeHost_5: hipMemoryType = 0;
pub const hipMemoryTypeDevice_5: hipMemoryType = 1;
pub const hipMemoryTypeArray_5: hipMemoryType = 2;
pub const hipMemoryTypeUnified_5: hipMemoryType = 3;
/// Memory kinds as ROCm 6 and later number them.
pub const hipMemoryTypeUnregistered_6: hipMemoryType = 0;
pub const hipMemoryTypeHost_6: hipMemoryType = 1;
pub const hipMemoryTypeDevice_6: hipMemoryType = 2;
pub const hipMemoryTypeManaged_6: hipMemoryType = 3;
pub const hipMemoryTypeArray_6: hipMemoryType = 10;
pub const hipMemoryTypeUnified_6: hipMemoryType = 11;

pub const hipMemAllocationTypePinned: hipMemAllocationType = 1;
pub const hipMemHandleTypeNone: hipMemAllocationHandleType = 0;
pub const hipMemLocationTypeDevice: hipMemLocationType = 1;
pub const hipMemAccessFlagsProtReadWrite: hipMemAccessFlags = 3;
pub const hipMemPoolAttrReleaseThreshold: hipMemPoolAttr = 4;

pub const hipDeviceAttributeMaxBlockDimX: hipDeviceAttribute_t = 26;
pub const hipDeviceAttributeMaxBlockDimY: hipDeviceAttribute_t = 27;
pub const hipDeviceAttributeMaxBlockDimZ: hipDeviceAttribute_t = 28;
pub const hipDeviceAttributeMaxGridDimX: hipDeviceAttribute_t = 29;
pub const hipDeviceAttributeMaxGridDimY: hipDeviceAttribute_t = 30;
pub const hipDeviceAttributeMaxGridDimZ: hipDeviceAttribute_t = 31;
pub const hipDeviceAttributeMaxThreadsPerBlock: hipDeviceAttribute_t = 56;
pub const hipDeviceAttributeMultiprocessorCount: hipDeviceAttribute_t = 63;
pub const hipDeviceAttributeMaxSharedMemoryPerBlock: hipDeviceAttribute_t = 74;
pub const hipDeviceAttributeWarpSize: hipDeviceAttribute_t = 87;
pub const hipDeviceAttributeMemoryPoolsSupported: hipDeviceAttribute_t = 88;
pub const hipDeviceAttributeCanUseStreamWaitValue: hipDeviceAttribute_t = 10013;

/// Where `gcnArchName` lies in the two structs, and how long it is.
pub const ARCH_NAME: usize = 396;
pub const ARCH_NAME_R0600: usize = 1160;
pub const ARCH_NAME_BYTES: usize = 256;

pub const HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: hipFunction_attribute = 0;
pub const HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: hipFunction_attribute = 1;
pub const HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: hipFunction_attribute = 3;
pub const HIP_FUNC_ATTRIBUTE_NUM_REGS: hipFunction_attribute = 4;

pub const HIPRTC_SUCCESS: hiprtcResult = 0;
pub const HIPRTC_ERROR_OUT_OF_MEMORY: hiprtcResult = 1;
pub const HIPRTC_ERROR_INVALID_OPTION: hiprtcResult = 5;
pub const HIPRTC_ERROR_COMPILATION: hiprtcResult = 6;
