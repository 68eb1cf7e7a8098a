//! # Launch
//!
//! A launch queues a kernel on a stream. It runs on that stream's device, whatever device is
//! current. The grid is so many blocks, each block so many threads, in up to three dimensions.
//!
//! ```c
//! tgpu_launch_config config = TGPU_LAUNCH_CONFIG_INIT;
//! tgpu_kernel_suggest(kernel, n, &config.grid[0], &config.block[0]);
//! tgpu_launch(kernel, &config, TGPU_ARGS(&x, &n)); // the address of the value of each argument
//! ```

use super::error::tgpu_status;
use super::guard;
use super::handles::{tgpu_kernel, tgpu_stream};
use super::kernel::kernel;
use super::stream::stream;
use super::structs::{read, AbiStruct};
use crate::backend::{Args, Shape};
use crate::core;
use std::ffi::c_void;

/// The shape of a launch, and where it runs.
#[repr(C)]
pub struct tgpu_launch_config {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// Blocks in x, y, z. None may be 0.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z. None may be 0.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block. With the kernel's static shared memory at most the
    /// max_shared_per_block of the device.
    pub shared_bytes: u64,
    /// The stream, NULL for the current one.
    pub stream: tgpu_stream,
}

// SAFETY: repr(C), size first, numbers and a raw pointer.
unsafe impl AbiStruct for tgpu_launch_config {
    const NAME: &'static str = "tgpu_launch_config";
}

/// Queues a kernel. Its arguments are copied before the call returns.
///
/// @param k       the kernel. Its module is loaded for the stream's device if it was not.
/// @param config  the shape and the stream.
/// @param args    a pointer to the value of each argument. May be NULL for a kernel without
///                arguments.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if k is no live kernel or the stream no live stream;
///         TGPU_ERROR_INVALID_ARGUMENT if config is NULL or has a refused struct_size, a dimension
///         is 0, a dimension, the threads of a block or the shared bytes are above what the device
///         or the kernel allows, or args is NULL and the kernel is known to take some;
///         TGPU_ERROR_NOT_SUPPORTED if the kernel cannot run on that device;
///         TGPU_ERROR_INVALID_IMAGE, TGPU_ERROR_COMPILE_FAILED or TGPU_ERROR_NOT_FOUND if its
///         module gives no such kernel there; TGPU_ERROR_LAUNCH_FAILED if the vendor refused; the
///         device statuses.
///
/// Ownership: config, args and the values may go at once. Memory that pointers among the values
/// name must stay valid until the kernel is done.
/// Threads: any thread.
/// Blocks: no; a GPU's runtime may hold the caller up while its queue is full.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_launch(
    k: tgpu_kernel,
    config: *const tgpu_launch_config,
    args: *const *mut c_void,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says, and its args point to a value of each
        // argument, during the call.
        let (config, args) = unsafe { (read(config, "config")?, Args::from_caller(args)) };
        let shape = Shape {
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
        };
        core::launch::launch(kernel(k), stream(config.stream), &shape, args)
    })
}
