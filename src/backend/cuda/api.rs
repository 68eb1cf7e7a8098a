//! The driver API's functions, found one by one in `libcuda.so.1` at run time.
//!
//! The table is our own and small: see `docs/notes-cuda.md` for why. Names are the exported ones, with the
//! version suffix that `cuda.h` of CUDA 11.2 to 13 maps the plain names to. Vendor codes stay plain numbers,
//! so that a code of a newer driver is just one we have no better name for.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::backend::dynamic::{file_of, open_library, symbol};
use crate::backend::{Error, Result, Status};

/// What a vendor function answers; 0 is success.
pub(super) type CuResult = c_int;
/// A device as the driver numbers it.
pub(super) type CuDevice = c_int;
/// Address of device memory.
pub(super) type CuDevicePtr = u64;
/// Opaque vendor objects.
pub(super) type CuContext = *mut c_void;
pub(super) type CuStream = *mut c_void;
pub(super) type CuEvent = *mut c_void;
pub(super) type CuModule = *mut c_void;
pub(super) type CuFunction = *mut c_void;
pub(super) type CuMemPool = *mut c_void;
/// A function the driver calls when a stream gets to it; the second argument is the status of the work before.
pub(super) type CuStreamCallback = unsafe extern "C" fn(CuStream, CuResult, *mut c_void);

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CuMemLocation {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `CUmemPoolProps`. Its tail has gained fields over time, all 0 for "default".
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CuMemPoolProps {
    pub(super) alloc_type: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: CuMemLocation,
    pub(super) win32_security_attributes: *mut c_void,
    pub(super) reserved: [u8; 64],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CuMemAccessDesc {
    pub(super) location: CuMemLocation,
    pub(super) flags: c_int,
}

pub(super) const STREAM_DEFAULT: c_uint = 0;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// Goes on once the number at the address has reached the value, wrapping around allowed for.
pub(super) const STREAM_WAIT_VALUE_GEQ: c_uint = 0;
pub(super) const EVENT_BLOCKING_SYNC: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const CAPTURE_MODE_RELAXED: c_int = 2;
pub(super) const CAPTURE_STATUS_NONE: c_int = 0;
pub(super) const MEM_ALLOCATION_TYPE_PINNED: c_int = 1;
pub(super) const MEM_LOCATION_TYPE_DEVICE: c_int = 1;
pub(super) const MEM_ACCESS_READ_WRITE: c_int = 3;
pub(super) const MEMPOOL_ATTR_RELEASE_THRESHOLD: c_int = 4;
pub(super) const MEMHOSTALLOC_PORTABLE: c_uint = 1;
pub(super) const MEMHOSTREGISTER_PORTABLE: c_uint = 1;
pub(super) const POINTER_MEMORY_TYPE: c_int = 2;
pub(super) const POINTER_DEVICE_ORDINAL: c_int = 9;
pub(super) const POINTER_RANGE_START: c_int = 11;
pub(super) const POINTER_RANGE_SIZE: c_int = 12;
pub(super) const MEMORY_TYPE_HOST: c_uint = 1;
pub(super) const MEMORY_TYPE_DEVICE: c_uint = 2;
pub(super) const MEMORY_TYPE_UNIFIED: c_uint = 4;
pub(super) const JIT_INFO_LOG_BUFFER: c_int = 3;
pub(super) const JIT_INFO_LOG_BUFFER_SIZE: c_int = 4;
pub(super) const JIT_ERROR_LOG_BUFFER: c_int = 5;
pub(super) const JIT_ERROR_LOG_BUFFER_SIZE: c_int = 6;
pub(super) const FUNC_MAX_THREADS_PER_BLOCK: c_int = 0;
pub(super) const FUNC_SHARED_SIZE: c_int = 1;
pub(super) const FUNC_LOCAL_SIZE: c_int = 3;
pub(super) const FUNC_NUM_REGS: c_int = 4;
pub(super) const FUNC_MAX_DYNAMIC_SHARED_SIZE: c_int = 8;
pub(super) const ATTR_MAX_THREADS_PER_BLOCK: c_int = 1;
pub(super) const ATTR_MAX_BLOCK_DIM_X: c_int = 2;
pub(super) const ATTR_MAX_GRID_DIM_X: c_int = 5;
pub(super) const ATTR_MAX_SHARED_PER_BLOCK: c_int = 8;
pub(super) const ATTR_WARP_SIZE: c_int = 10;
pub(super) const ATTR_MULTIPROCESSOR_COUNT: c_int = 16;
pub(super) const ATTR_CAPABILITY_MAJOR: c_int = 75;
pub(super) const ATTR_CAPABILITY_MINOR: c_int = 76;
pub(super) const ATTR_MAX_SHARED_PER_BLOCK_OPTIN: c_int = 97;
pub(super) const ATTR_MEMORY_POOLS_SUPPORTED: c_int = 115;

/// Where the driver's library is looked for, in this order. A soname that is mapped already is found whatever
/// its folder; the last one is where Windows Subsystem for Linux puts it.
pub(super) const LIBRARY_NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

macro_rules! table {
    (
        $(#[$doc:meta])* struct $table:ident;
        $(fn $name:ident($($arg:ty),* $(,)?);)*
        optional
        $(fn $oname:ident($($oarg:ty),* $(,)?);)*
    ) => {
        $crate::backend::dynamic::table! {
            $(#[$doc])* struct $table;
            required { $(fn $name($($arg),*) -> std::ffi::c_int;)* }
            optional { $(fn $oname($($oarg),*) -> std::ffi::c_int;)* }
        }
    };
}
pub(super) use table;

table! {
    /// The driver API's functions that we use.
    struct Api;
    fn cuInit(c_uint);
    fn cuDriverGetVersion(*mut c_int);
    fn cuGetErrorName(CuResult, *mut *const c_char);
    fn cuGetErrorString(CuResult, *mut *const c_char);
    fn cuDeviceGet(*mut CuDevice, c_int);
    fn cuDeviceGetCount(*mut c_int);
    fn cuDeviceGetName(*mut c_char, c_int, CuDevice);
    fn cuDeviceGetUuid(*mut [u8; 16], CuDevice);
    fn cuDeviceTotalMem_v2(*mut usize, CuDevice);
    fn cuDeviceGetAttribute(*mut c_int, c_int, CuDevice);
    fn cuDeviceGetPCIBusId(*mut c_char, c_int, CuDevice);
    fn cuDeviceCanAccessPeer(*mut c_int, CuDevice, CuDevice);
    fn cuDevicePrimaryCtxRetain(*mut CuContext, CuDevice);
    fn cuCtxGetCurrent(*mut CuContext);
    fn cuCtxSetCurrent(CuContext);
    fn cuCtxPushCurrent_v2(CuContext);
    fn cuCtxPopCurrent_v2(*mut CuContext);
    fn cuCtxGetDevice(*mut CuDevice);
    fn cuCtxSynchronize();
    fn cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    fn cuCtxEnablePeerAccess(CuContext, c_uint);
    fn cuMemGetInfo_v2(*mut usize, *mut usize);
    fn cuMemAlloc_v2(*mut CuDevicePtr, usize);
    fn cuMemFree_v2(CuDevicePtr);
    fn cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    fn cuMemFreeHost(*mut c_void);
    fn cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    fn cuMemHostUnregister(*mut c_void);
    fn cuMemcpyAsync(CuDevicePtr, CuDevicePtr, usize, CuStream);
    fn cuMemcpyHtoDAsync_v2(CuDevicePtr, *const c_void, usize, CuStream);
    fn cuMemcpyDtoHAsync_v2(*mut c_void, CuDevicePtr, usize, CuStream);
    fn cuMemcpyDtoDAsync_v2(CuDevicePtr, CuDevicePtr, usize, CuStream);
    fn cuMemcpyPeerAsync(CuDevicePtr, CuContext, CuDevicePtr, CuContext, usize, CuStream);
    fn cuMemsetD8Async(CuDevicePtr, u8, usize, CuStream);
    fn cuMemsetD16Async(CuDevicePtr, u16, usize, CuStream);
    fn cuMemsetD32Async(CuDevicePtr, c_uint, usize, CuStream);
    fn cuMemsetD2D8Async(CuDevicePtr, usize, u8, usize, usize, CuStream);
    fn cuMemsetD2D16Async(CuDevicePtr, usize, u16, usize, usize, CuStream);
    fn cuMemsetD2D32Async(CuDevicePtr, usize, c_uint, usize, usize, CuStream);
    fn cuPointerGetAttributes(c_uint, *mut c_int, *mut *mut c_void, CuDevicePtr);
    fn cuStreamCreateWithPriority(*mut CuStream, c_uint, c_int);
    fn cuStreamDestroy_v2(CuStream);
    fn cuStreamQuery(CuStream);
    fn cuStreamWaitEvent(CuStream, CuEvent, c_uint);
    fn cuStreamGetPriority(CuStream, *mut c_int);
    fn cuStreamGetCtx(CuStream, *mut CuContext);
    fn cuStreamIsCapturing(CuStream, *mut c_int);
    fn cuStreamAddCallback(CuStream, CuStreamCallback, *mut c_void, c_uint);
    fn cuThreadExchangeStreamCaptureMode(*mut c_int);
    fn cuEventCreate(*mut CuEvent, c_uint);
    fn cuEventDestroy_v2(CuEvent);
    fn cuEventRecord(CuEvent, CuStream);
    fn cuEventQuery(CuEvent);
    fn cuEventSynchronize(CuEvent);
    fn cuEventElapsedTime(*mut f32, CuEvent, CuEvent);
    fn cuModuleLoadDataEx(*mut CuModule, *const c_void, c_uint, *mut c_int, *mut *mut c_void);
    fn cuModuleUnload(CuModule);
    fn cuModuleGetFunction(*mut CuFunction, CuModule, *const c_char);
    fn cuModuleGetGlobal_v2(*mut CuDevicePtr, *mut usize, CuModule, *const c_char);
    fn cuFuncGetAttribute(*mut c_int, c_int, CuFunction);
    fn cuFuncSetAttribute(CuFunction, c_int, c_int);
    fn cuOccupancyMaxPotentialBlockSize(*mut c_int, *mut c_int, CuFunction, *const c_void, usize, c_int);
    fn cuLaunchKernel(
        CuFunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CuStream,
        *mut *mut c_void, *mut *mut c_void,
    );
    optional
    fn cuDeviceGetUuid_v2(*mut [u8; 16], CuDevice);
    fn cuMemPoolCreate(*mut CuMemPool, *const CuMemPoolProps);
    fn cuMemPoolSetAttribute(CuMemPool, c_int, *mut c_void);
    fn cuMemPoolSetAccess(CuMemPool, *const CuMemAccessDesc, usize);
    fn cuMemPoolTrimTo(CuMemPool, usize);
    fn cuMemAllocFromPoolAsync(*mut CuDevicePtr, usize, CuMemPool, CuStream);
    fn cuMemFreeAsync(CuDevicePtr, CuStream);
    fn cuFuncGetParamInfo(CuFunction, usize, *mut usize, *mut usize);
    fn cuFuncLoad(CuFunction);
    fn cuModuleGetFunctionCount(*mut c_uint, CuModule);
    fn cuModuleEnumerateFunctions(*mut CuFunction, c_uint, CuModule);
    fn cuStreamWaitValue32_v2(CuStream, CuDevicePtr, u32, c_uint);
    fn cuStreamWaitValue32(CuStream, CuDevicePtr, u32, c_uint);
}

impl Api {
    /// Finds the driver's library and its functions. The library is never closed: the driver's threads run in it.
    pub(super) fn load(names: &[&str]) -> Result<Api> {
        let library = open_library(names).map_err(|words| Error::new(Status::NotSupported, words))?;
        let table = Api::find(|name| symbol(&library, name)).map_err(|missing| {
            Error::new(
                Status::NotSupported,
                format!("the CUDA driver's library has no function {missing}: CUDA 11.2 or newer is needed"),
            )
        });
        std::mem::forget(library);
        table
    }

    /// The file that the functions live in.
    pub(super) fn path(&self) -> String {
        file_of(self.cuInit as *const c_void)
    }
}

/// What one vendor call answered, and which call it was.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Answer {
    pub(super) code: CuResult,
    pub(super) function: &'static str,
}

/// Calls a function of the table; to be used inside `unsafe`.
macro_rules! call {
    ($api:expr, $name:ident($($arg:expr),* $(,)?)) => {
        $crate::backend::cuda::api::Answer { code: ($api.$name)($($arg),*), function: stringify!($name) }
    };
}
pub(super) use call;
