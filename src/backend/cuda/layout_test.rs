//! Our few declarations against those that `cudarc` generates from the vendor's header.

use std::mem::{offset_of, size_of};

use cudarc::driver::sys;

use super::api::*;

#[test]
fn structs_have_the_vendors_layout() {
    assert_eq!(size_of::<CuMemLocation>(), size_of::<sys::CUmemLocation>());
    assert_eq!(
        offset_of!(CuMemLocation, kind),
        offset_of!(sys::CUmemLocation, type_)
    );
    assert_eq!(
        size_of::<CuMemPoolProps>() - 64,
        offset_of!(sys::CUmemPoolProps, maxSize)
    );
    assert_eq!(size_of::<CuMemPoolProps>(), size_of::<sys::CUmemPoolProps>());
    assert_eq!(
        offset_of!(CuMemPoolProps, alloc_type),
        offset_of!(sys::CUmemPoolProps, allocType)
    );
    assert_eq!(
        offset_of!(CuMemPoolProps, handle_types),
        offset_of!(sys::CUmemPoolProps, handleTypes)
    );
    assert_eq!(
        offset_of!(CuMemPoolProps, location),
        offset_of!(sys::CUmemPoolProps, location)
    );
    assert_eq!(
        offset_of!(CuMemPoolProps, win32_security_attributes),
        offset_of!(sys::CUmemPoolProps, win32SecurityAttributes)
    );
    assert_eq!(size_of::<CuMemAccessDesc>(), size_of::<sys::CUmemAccessDesc>());
    assert_eq!(
        offset_of!(CuMemAccessDesc, flags),
        offset_of!(sys::CUmemAccessDesc, flags)
    );
    assert_eq!(size_of::<CuDevicePtr>(), size_of::<sys::CUdeviceptr>());
    assert_eq!(size_of::<CuDevice>(), size_of::<sys::CUdevice>());
    assert_eq!(size_of::<CuResult>(), size_of::<sys::CUresult>());
}

#[test]
fn constants_have_the_vendors_values() {
    use sys::CUdevice_attribute as Device;
    use sys::CUfunction_attribute as Function;
    use sys::CUjit_option as Jit;
    use sys::CUpointer_attribute as Pointer;
    let pairs: &[(i64, i64)] = &[
        (
            STREAM_DEFAULT.into(),
            sys::CUstream_flags::CU_STREAM_DEFAULT as i64,
        ),
        (
            STREAM_NON_BLOCKING.into(),
            sys::CUstream_flags::CU_STREAM_NON_BLOCKING as i64,
        ),
        (
            EVENT_BLOCKING_SYNC.into(),
            sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as i64,
        ),
        (
            EVENT_DISABLE_TIMING.into(),
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as i64,
        ),
        (
            CAPTURE_MODE_RELAXED.into(),
            sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as i64,
        ),
        (
            CAPTURE_STATUS_NONE.into(),
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as i64,
        ),
        (
            MEM_ALLOCATION_TYPE_PINNED.into(),
            sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as i64,
        ),
        (
            MEM_LOCATION_TYPE_DEVICE.into(),
            sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as i64,
        ),
        (
            MEM_ACCESS_READ_WRITE.into(),
            sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as i64,
        ),
        (
            MEMPOOL_ATTR_RELEASE_THRESHOLD.into(),
            sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as i64,
        ),
        (
            MEMORY_TYPE_HOST.into(),
            sys::CUmemorytype::CU_MEMORYTYPE_HOST as i64,
        ),
        (
            MEMORY_TYPE_DEVICE.into(),
            sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as i64,
        ),
        (
            MEMORY_TYPE_UNIFIED.into(),
            sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED as i64,
        ),
        (
            POINTER_MEMORY_TYPE.into(),
            Pointer::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as i64,
        ),
        (
            POINTER_DEVICE_ORDINAL.into(),
            Pointer::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as i64,
        ),
        (
            POINTER_RANGE_START.into(),
            Pointer::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as i64,
        ),
        (
            POINTER_RANGE_SIZE.into(),
            Pointer::CU_POINTER_ATTRIBUTE_RANGE_SIZE as i64,
        ),
        (JIT_INFO_LOG_BUFFER.into(), Jit::CU_JIT_INFO_LOG_BUFFER as i64),
        (
            JIT_INFO_LOG_BUFFER_SIZE.into(),
            Jit::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES as i64,
        ),
        (JIT_ERROR_LOG_BUFFER.into(), Jit::CU_JIT_ERROR_LOG_BUFFER as i64),
        (
            JIT_ERROR_LOG_BUFFER_SIZE.into(),
            Jit::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as i64,
        ),
        (
            FUNC_MAX_THREADS_PER_BLOCK.into(),
            Function::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as i64,
        ),
        (
            FUNC_SHARED_SIZE.into(),
            Function::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as i64,
        ),
        (
            FUNC_LOCAL_SIZE.into(),
            Function::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES as i64,
        ),
        (FUNC_NUM_REGS.into(), Function::CU_FUNC_ATTRIBUTE_NUM_REGS as i64),
        (
            FUNC_MAX_DYNAMIC_SHARED_SIZE.into(),
            Function::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as i64,
        ),
        (
            ATTR_MAX_THREADS_PER_BLOCK.into(),
            Device::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK as i64,
        ),
        (
            ATTR_MAX_BLOCK_DIM_X.into(),
            Device::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X as i64,
        ),
        (
            i64::from(ATTR_MAX_BLOCK_DIM_X) + 2,
            Device::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z as i64,
        ),
        (
            ATTR_MAX_GRID_DIM_X.into(),
            Device::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X as i64,
        ),
        (
            i64::from(ATTR_MAX_GRID_DIM_X) + 2,
            Device::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z as i64,
        ),
        (
            ATTR_MAX_SHARED_PER_BLOCK.into(),
            Device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK as i64,
        ),
        (
            ATTR_WARP_SIZE.into(),
            Device::CU_DEVICE_ATTRIBUTE_WARP_SIZE as i64,
        ),
        (
            ATTR_MULTIPROCESSOR_COUNT.into(),
            Device::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as i64,
        ),
        (
            ATTR_CAPABILITY_MAJOR.into(),
            Device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as i64,
        ),
        (
            ATTR_CAPABILITY_MINOR.into(),
            Device::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as i64,
        ),
        (
            ATTR_MAX_SHARED_PER_BLOCK_OPTIN.into(),
            Device::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as i64,
        ),
        (
            ATTR_MEMORY_POOLS_SUPPORTED.into(),
            Device::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as i64,
        ),
        (MEMHOSTALLOC_PORTABLE.into(), sys::CU_MEMHOSTALLOC_PORTABLE.into()),
        (
            MEMHOSTREGISTER_PORTABLE.into(),
            sys::CU_MEMHOSTREGISTER_PORTABLE.into(),
        ),
    ];
    assert_eq!(
        i64::from(STREAM_WAIT_VALUE_GEQ),
        sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as i64
    );
    for (i, (ours, theirs)) in pairs.iter().enumerate() {
        assert_eq!(ours, theirs, "pair {i}");
    }
}
