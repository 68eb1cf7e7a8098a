//! The vendor's functions that we call, with their signatures: one list for the table that is filled at run time, for the
//! comparison with the vendor's header, and for the runtime that the tests bring along.

/// Hands the runtime's functions to the macro `$with`. Without those of the first list the backend does not start; without
/// one of the second a feature is missing.
macro_rules! hip_functions {
    ($with:ident) => {
        $with! {
            required {
                fn hipRuntimeGetVersion(*mut c_int) -> hipError_t;
                fn hipGetErrorName(hipError_t) -> *const c_char;
                fn hipGetErrorString(hipError_t) -> *const c_char;
                fn hipGetLastError() -> hipError_t;
                fn hipPeekAtLastError() -> hipError_t;
                fn hipGetDeviceCount(*mut c_int) -> hipError_t;
                fn hipGetDevice(*mut c_int) -> hipError_t;
                fn hipSetDevice(c_int) -> hipError_t;
                fn hipDeviceGetName(*mut c_char, c_int, hipDevice_t) -> hipError_t;
                fn hipDeviceTotalMem(*mut usize, hipDevice_t) -> hipError_t;
                fn hipDeviceGetAttribute(*mut c_int, hipDeviceAttribute_t, c_int) -> hipError_t;
                fn hipDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> hipError_t;
                fn hipDeviceCanAccessPeer(*mut c_int, c_int, c_int) -> hipError_t;
                fn hipDeviceEnablePeerAccess(c_int, c_uint) -> hipError_t;
                fn hipDeviceGetStreamPriorityRange(*mut c_int, *mut c_int) -> hipError_t;
                fn hipDeviceSynchronize() -> hipError_t;
                fn hipMemGetInfo(*mut usize, *mut usize) -> hipError_t;
                fn hipMalloc(*mut *mut c_void, usize) -> hipError_t;
                fn hipFree(*mut c_void) -> hipError_t;
                fn hipHostMalloc(*mut *mut c_void, usize, c_uint) -> hipError_t;
                fn hipHostFree(*mut c_void) -> hipError_t;
                fn hipHostRegister(*mut c_void, usize, c_uint) -> hipError_t;
                fn hipHostUnregister(*mut c_void) -> hipError_t;
                fn hipPointerGetAttributes(*mut hipPointerAttribute_t, *const c_void) -> hipError_t;
                fn hipMemGetAddressRange(*mut hipDeviceptr_t, *mut usize, hipDeviceptr_t) -> hipError_t;
                fn hipMemcpyAsync(*mut c_void, *const c_void, usize, hipMemcpyKind, hipStream_t) -> hipError_t;
                fn hipMemcpyPeerAsync(*mut c_void, c_int, *const c_void, c_int, usize, hipStream_t) -> hipError_t;
                fn hipMemsetD8Async(hipDeviceptr_t, c_uchar, usize, hipStream_t) -> hipError_t;
                fn hipMemsetD16Async(hipDeviceptr_t, c_ushort, usize, hipStream_t) -> hipError_t;
                fn hipMemsetD32Async(hipDeviceptr_t, c_int, usize, hipStream_t) -> hipError_t;
                fn hipStreamCreateWithPriority(*mut hipStream_t, c_uint, c_int) -> hipError_t;
                fn hipStreamDestroy(hipStream_t) -> hipError_t;
                fn hipStreamQuery(hipStream_t) -> hipError_t;
                fn hipStreamGetPriority(hipStream_t, *mut c_int) -> hipError_t;
                fn hipStreamWaitEvent(hipStream_t, hipEvent_t, c_uint) -> hipError_t;
                fn hipStreamIsCapturing(hipStream_t, *mut hipStreamCaptureStatus) -> hipError_t;
                fn hipStreamAddCallback(hipStream_t, hipStreamCallback_t, *mut c_void, c_uint) -> hipError_t;
                fn hipThreadExchangeStreamCaptureMode(*mut hipStreamCaptureMode) -> hipError_t;
                fn hipEventCreateWithFlags(*mut hipEvent_t, c_uint) -> hipError_t;
                fn hipEventDestroy(hipEvent_t) -> hipError_t;
                fn hipEventRecord(hipEvent_t, hipStream_t) -> hipError_t;
                fn hipEventQuery(hipEvent_t) -> hipError_t;
                fn hipEventSynchronize(hipEvent_t) -> hipError_t;
                fn hipEventElapsedTime(*mut f32, hipEvent_t, hipEvent_t) -> hipError_t;
                fn hipModuleLoadData(*mut hipModule_t, *const c_void) -> hipError_t;
                fn hipModuleUnload(hipModule_t) -> hipError_t;
                fn hipModuleGetFunction(*mut hipFunction_t, hipModule_t, *const c_char) -> hipError_t;
                fn hipModuleGetGlobal(*mut hipDeviceptr_t, *mut usize, hipModule_t, *const c_char) -> hipError_t;
                fn hipFuncGetAttribute(*mut c_int, hipFunction_attribute, hipFunction_t) -> hipError_t;
                fn hipModuleOccupancyMaxPotentialBlockSize(*mut c_int, *mut c_int, hipFunction_t, usize, c_int) -> hipError_t;
                fn hipModuleLaunchKernel(hipFunction_t, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, hipStream_t, *mut *mut c_void, *mut *mut c_void) -> hipError_t;
            }
            optional {
                fn hipGetDeviceProperties(*mut hipDeviceProp_t, c_int) -> hipError_t;
                fn hipGetDevicePropertiesR0600(*mut hipDeviceProp_tR0600, c_int) -> hipError_t;
                fn hipDeviceGetUuid(*mut hipUUID, hipDevice_t) -> hipError_t;
                fn hipStreamGetDevice(hipStream_t, *mut hipDevice_t) -> hipError_t;
                fn hipGetStreamDeviceId(hipStream_t) -> c_int;
                fn hipExtMallocWithFlags(*mut *mut c_void, usize, c_uint) -> hipError_t;
                fn hipStreamWaitValue32(hipStream_t, *mut c_void, u32, c_uint, u32) -> hipError_t;
                fn hipMemPoolCreate(*mut hipMemPool_t, *const hipMemPoolProps) -> hipError_t;
                fn hipMemPoolSetAttribute(hipMemPool_t, hipMemPoolAttr, *mut c_void) -> hipError_t;
                fn hipMemPoolSetAccess(hipMemPool_t, *const hipMemAccessDesc, usize) -> hipError_t;
                fn hipMemPoolTrimTo(hipMemPool_t, usize) -> hipError_t;
                fn hipMallocFromPoolAsync(*mut *mut c_void, usize, hipMemPool_t, hipStream_t) -> hipError_t;
                fn hipFreeAsync(*mut c_void, hipStream_t) -> hipError_t;
            }
        }
    };
}

/// The same for the run-time compiler. ROCm 5.2 has it inside the runtime's library, newer ones in `libhiprtc`.
macro_rules! hiprtc_functions {
    ($with:ident) => {
        $with! {
            required {
                fn hiprtcVersion(*mut c_int, *mut c_int) -> hiprtcResult;
                fn hiprtcGetErrorString(hiprtcResult) -> *const c_char;
                fn hiprtcCreateProgram(*mut hiprtcProgram, *const c_char, *const c_char, c_int, *mut *const c_char, *mut *const c_char) -> hiprtcResult;
                fn hiprtcDestroyProgram(*mut hiprtcProgram) -> hiprtcResult;
                fn hiprtcCompileProgram(hiprtcProgram, c_int, *mut *const c_char) -> hiprtcResult;
                fn hiprtcGetCodeSize(hiprtcProgram, *mut usize) -> hiprtcResult;
                fn hiprtcGetCode(hiprtcProgram, *mut c_char) -> hiprtcResult;
                fn hiprtcGetProgramLogSize(hiprtcProgram, *mut usize) -> hiprtcResult;
                fn hiprtcGetProgramLog(hiprtcProgram, *mut c_char) -> hiprtcResult;
                fn hiprtcAddNameExpression(hiprtcProgram, *const c_char) -> hiprtcResult;
                fn hiprtcGetLoweredName(hiprtcProgram, *const c_char, *mut *const c_char) -> hiprtcResult;
            }
            optional {}
        }
    };
}
