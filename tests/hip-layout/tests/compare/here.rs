// Included once for each version of the bindings, which are called `other` there.

use std::mem::{offset_of, size_of};

use hip_layout::ffi;

macro_rules! constants {
    ($($ours:ident $theirs:ident;)*) => {
        $(assert_eq!(i64::from(ffi::$ours), i64::from(other::$theirs), stringify!($ours));)*
    };
}

#[test]
fn constants_have_the_same_values() {
    constants! {
        hipSuccess hipError_t_hipSuccess;
        hipErrorInvalidValue hipError_t_hipErrorInvalidValue;
        hipErrorOutOfMemory hipError_t_hipErrorOutOfMemory;
        hipErrorNotInitialized hipError_t_hipErrorNotInitialized;
        hipErrorDeinitialized hipError_t_hipErrorDeinitialized;
        hipErrorInvalidConfiguration hipError_t_hipErrorInvalidConfiguration;
        hipErrorInvalidSymbol hipError_t_hipErrorInvalidSymbol;
        hipErrorInvalidDevicePointer hipError_t_hipErrorInvalidDevicePointer;
        hipErrorInvalidMemcpyDirection hipError_t_hipErrorInvalidMemcpyDirection;
        hipErrorInsufficientDriver hipError_t_hipErrorInsufficientDriver;
        hipErrorInvalidDeviceFunction hipError_t_hipErrorInvalidDeviceFunction;
        hipErrorNoDevice hipError_t_hipErrorNoDevice;
        hipErrorInvalidDevice hipError_t_hipErrorInvalidDevice;
        hipErrorInvalidImage hipError_t_hipErrorInvalidImage;
        hipErrorInvalidContext hipError_t_hipErrorInvalidContext;
        hipErrorNoBinaryForGpu hipError_t_hipErrorNoBinaryForGpu;
        hipErrorECCNotCorrectable hipError_t_hipErrorECCNotCorrectable;
        hipErrorPeerAccessUnsupported hipError_t_hipErrorPeerAccessUnsupported;
        hipErrorInvalidKernelFile hipError_t_hipErrorInvalidKernelFile;
        hipErrorInvalidSource hipError_t_hipErrorInvalidSource;
        hipErrorFileNotFound hipError_t_hipErrorFileNotFound;
        hipErrorSharedObjectSymbolNotFound hipError_t_hipErrorSharedObjectSymbolNotFound;
        hipErrorSharedObjectInitFailed hipError_t_hipErrorSharedObjectInitFailed;
        hipErrorInvalidHandle hipError_t_hipErrorInvalidHandle;
        hipErrorIllegalState hipError_t_hipErrorIllegalState;
        hipErrorNotFound hipError_t_hipErrorNotFound;
        hipErrorNotReady hipError_t_hipErrorNotReady;
        hipErrorIllegalAddress hipError_t_hipErrorIllegalAddress;
        hipErrorLaunchOutOfResources hipError_t_hipErrorLaunchOutOfResources;
        hipErrorLaunchTimeOut hipError_t_hipErrorLaunchTimeOut;
        hipErrorPeerAccessAlreadyEnabled hipError_t_hipErrorPeerAccessAlreadyEnabled;
        hipErrorPeerAccessNotEnabled hipError_t_hipErrorPeerAccessNotEnabled;
        hipErrorContextIsDestroyed hipError_t_hipErrorContextIsDestroyed;
        hipErrorAssert hipError_t_hipErrorAssert;
        hipErrorHostMemoryAlreadyRegistered hipError_t_hipErrorHostMemoryAlreadyRegistered;
        hipErrorHostMemoryNotRegistered hipError_t_hipErrorHostMemoryNotRegistered;
        hipErrorLaunchFailure hipError_t_hipErrorLaunchFailure;
        hipErrorCooperativeLaunchTooLarge hipError_t_hipErrorCooperativeLaunchTooLarge;
        hipErrorNotSupported hipError_t_hipErrorNotSupported;
        hipErrorStreamCaptureUnsupported hipError_t_hipErrorStreamCaptureUnsupported;
        hipErrorStreamCaptureInvalidated hipError_t_hipErrorStreamCaptureInvalidated;
        hipErrorStreamCaptureImplicit hipError_t_hipErrorStreamCaptureImplicit;
        hipErrorCapturedEvent hipError_t_hipErrorCapturedEvent;
        hipErrorStreamCaptureWrongThread hipError_t_hipErrorStreamCaptureWrongThread;
        hipErrorUnknown hipError_t_hipErrorUnknown;
        hipErrorRuntimeMemory hipError_t_hipErrorRuntimeMemory;
        hipErrorRuntimeOther hipError_t_hipErrorRuntimeOther;
        hipStreamDefault hipStreamDefault;
        hipStreamNonBlocking hipStreamNonBlocking;
        hipEventBlockingSync hipEventBlockingSync;
        hipEventDisableTiming hipEventDisableTiming;
        hipHostMallocPortable hipHostMallocPortable;
        hipHostRegisterPortable hipHostRegisterPortable;
        hipMallocSignalMemory hipMallocSignalMemory;
        hipStreamWaitValueGte hipStreamWaitValueGte;
        hipStreamCaptureModeRelaxed hipStreamCaptureMode_hipStreamCaptureModeRelaxed;
        hipStreamCaptureStatusNone hipStreamCaptureStatus_hipStreamCaptureStatusNone;
        hipMemcpyHostToHost hipMemcpyKind_hipMemcpyHostToHost;
        hipMemcpyHostToDevice hipMemcpyKind_hipMemcpyHostToDevice;
        hipMemcpyDeviceToHost hipMemcpyKind_hipMemcpyDeviceToHost;
        hipMemcpyDeviceToDevice hipMemcpyKind_hipMemcpyDeviceToDevice;
        hipMemcpyDefault hipMemcpyKind_hipMemcpyDefault;
        hipMemoryTypeUnregistered_6 hipMemoryType_hipMemoryTypeUnregistered;
        hipMemoryTypeHost_6 hipMemoryType_hipMemoryTypeHost;
        hipMemoryTypeDevice_6 hipMemoryType_hipMemoryTypeDevice;
        hipMemoryTypeManaged_6 hipMemoryType_hipMemoryTypeManaged;
        hipMemoryTypeArray_6 hipMemoryType_hipMemoryTypeArray;
        hipMemoryTypeUnified_6 hipMemoryType_hipMemoryTypeUnified;
        hipMemAllocationTypePinned hipMemAllocationType_hipMemAllocationTypePinned;
        hipMemHandleTypeNone hipMemAllocationHandleType_hipMemHandleTypeNone;
        hipMemLocationTypeDevice hipMemLocationType_hipMemLocationTypeDevice;
        hipMemAccessFlagsProtReadWrite hipMemAccessFlags_hipMemAccessFlagsProtReadWrite;
        hipMemPoolAttrReleaseThreshold hipMemPoolAttr_hipMemPoolAttrReleaseThreshold;
        hipDeviceAttributeMaxBlockDimX hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimX;
        hipDeviceAttributeMaxBlockDimY hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimY;
        hipDeviceAttributeMaxBlockDimZ hipDeviceAttribute_t_hipDeviceAttributeMaxBlockDimZ;
        hipDeviceAttributeMaxGridDimX hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimX;
        hipDeviceAttributeMaxGridDimY hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimY;
        hipDeviceAttributeMaxGridDimZ hipDeviceAttribute_t_hipDeviceAttributeMaxGridDimZ;
        hipDeviceAttributeMaxThreadsPerBlock hipDeviceAttribute_t_hipDeviceAttributeMaxThreadsPerBlock;
        hipDeviceAttributeMultiprocessorCount hipDeviceAttribute_t_hipDeviceAttributeMultiprocessorCount;
        hipDeviceAttributeMaxSharedMemoryPerBlock hipDeviceAttribute_t_hipDeviceAttributeMaxSharedMemoryPerBlock;
        hipDeviceAttributeWarpSize hipDeviceAttribute_t_hipDeviceAttributeWarpSize;
        hipDeviceAttributeMemoryPoolsSupported hipDeviceAttribute_t_hipDeviceAttributeMemoryPoolsSupported;
        hipDeviceAttributeCanUseStreamWaitValue hipDeviceAttribute_t_hipDeviceAttributeCanUseStreamWaitValue;
        HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK hipFunction_attribute_HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES hipFunction_attribute_HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES hipFunction_attribute_HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
        HIP_FUNC_ATTRIBUTE_NUM_REGS hipFunction_attribute_HIP_FUNC_ATTRIBUTE_NUM_REGS;
        HIPRTC_SUCCESS hiprtcResult_HIPRTC_SUCCESS;
        HIPRTC_ERROR_OUT_OF_MEMORY hiprtcResult_HIPRTC_ERROR_OUT_OF_MEMORY;
        HIPRTC_ERROR_INVALID_OPTION hiprtcResult_HIPRTC_ERROR_INVALID_OPTION;
        HIPRTC_ERROR_COMPILATION hiprtcResult_HIPRTC_ERROR_COMPILATION;
    }
}

#[test]
fn structs_have_the_same_layout() {
    assert_eq!(size_of::<ffi::hipError_t>(), size_of::<other::hipError_t>());
    assert_eq!(size_of::<ffi::hipDevice_t>(), size_of::<other::hipDevice_t>());
    assert_eq!(
        size_of::<ffi::hipDeviceptr_t>(),
        size_of::<other::hipDeviceptr_t>()
    );
    assert_eq!(size_of::<ffi::hipStream_t>(), size_of::<other::hipStream_t>());
    assert_eq!(size_of::<ffi::hipUUID>(), size_of::<other::hipUUID>());
    assert_eq!(
        size_of::<ffi::hipMemLocation>(),
        size_of::<other::hipMemLocation>()
    );
    assert_eq!(
        size_of::<ffi::hipMemAccessDesc>(),
        size_of::<other::hipMemAccessDesc>()
    );
    assert_eq!(
        offset_of!(ffi::hipMemAccessDesc, flags),
        offset_of!(other::hipMemAccessDesc, flags)
    );
    assert_eq!(
        size_of::<ffi::hipMemPoolProps>(),
        size_of::<other::hipMemPoolProps>()
    );
    assert_eq!(
        offset_of!(ffi::hipMemPoolProps, location),
        offset_of!(other::hipMemPoolProps, location)
    );
    assert_eq!(
        offset_of!(ffi::hipMemPoolProps, win32SecurityAttributes),
        offset_of!(other::hipMemPoolProps, win32SecurityAttributes)
    );
    assert_eq!(
        size_of::<ffi::hipPointerAttribute_t>(),
        size_of::<other::hipPointerAttribute_t>()
    );
    assert_eq!(
        offset_of!(ffi::hipPointerAttribute_t, memoryType),
        offset_of!(other::hipPointerAttribute_t, type_)
    );
    assert_eq!(
        offset_of!(ffi::hipPointerAttribute_t, device),
        offset_of!(other::hipPointerAttribute_t, device)
    );
    assert_eq!(
        offset_of!(ffi::hipPointerAttribute_t, devicePointer),
        offset_of!(other::hipPointerAttribute_t, devicePointer)
    );
    assert_eq!(
        ffi::ARCH_NAME_R0600,
        offset_of!(other::hipDeviceProp_tR0600, gcnArchName)
    );
    assert!(
        size_of::<other::hipDeviceProp_tR0600>() <= 4096,
        "the room that is given for it"
    );
}
