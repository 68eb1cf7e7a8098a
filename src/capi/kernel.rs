//! # Kernels
//!
//! A kernel is a function that a launch runs on a device, once for each thread of each block of a
//! grid. On a GPU it comes from a module. On a host device it is a C function that is called once
//! for each *block*, and loops over the threads of its block itself; blocks run at the same time on
//! several threads and in any order, as they do on a GPU.

use super::device::tgpu_device;
use super::error::tgpu_status;
use super::handles::{tgpu_kernel, tgpu_module};
use super::module::module;
use super::structs::{AbiStruct, OutStruct};
use super::{guard, guard_ending, invalid, null, text_in, Out};
use crate::backend::{HostBlock, HostKernel, HostKernelFn};
use crate::core;
use crate::core::handle::KernelHandle;
use std::ffi::{c_char, c_void};
use std::mem::{align_of, offset_of, size_of};

/// Most arguments of a host kernel.
const MOST_ARGS: usize = 256;
/// Most bytes of all arguments of a host kernel together.
const MOST_ARG_BYTES: usize = 4096;

/// What a host kernel learns about the block it runs.
#[repr(C)]
pub struct tgpu_host_block {
    /// This block's index in x, y, z.
    pub index: [u32; 3],
    /// Blocks of the grid in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// The device's index among host devices: its ordinal in tgpu_device_info.
    pub device: i32,
    /// Memory of this block alone, aligned to 64 bytes, contents undefined. NULL if shared_bytes is
    /// 0.
    pub shared: *mut c_void,
    /// Bytes of dynamic shared memory, as the launch asked for.
    pub shared_bytes: u64,
}

// The floors below call the C function with their own struct.
const _: () = {
    assert!(size_of::<tgpu_host_block>() == size_of::<HostBlock>());
    assert!(align_of::<tgpu_host_block>() == align_of::<HostBlock>());
    assert!(offset_of!(tgpu_host_block, index) == offset_of!(HostBlock, index));
    assert!(offset_of!(tgpu_host_block, grid) == offset_of!(HostBlock, grid));
    assert!(offset_of!(tgpu_host_block, block) == offset_of!(HostBlock, block));
    assert!(offset_of!(tgpu_host_block, device) == offset_of!(HostBlock, device));
    assert!(offset_of!(tgpu_host_block, shared) == offset_of!(HostBlock, shared));
    assert!(offset_of!(tgpu_host_block, shared_bytes) == offset_of!(HostBlock, shared_bytes));
};

/// A kernel for host devices: a function that runs one block. args has a pointer to each argument's
/// value; data is what the kernel was made with. Several threads call it at the same time. It must
/// not wait for GPU work, throw an exception or jump out.
pub type tgpu_host_kernel =
    Option<unsafe extern "C" fn(block: *const tgpu_host_block, args: *const *mut c_void, data: *mut c_void)>;

/// Limits and costs of a kernel on a device.
#[repr(C)]
pub struct tgpu_kernel_info {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// Most threads of a block that it can run with.
    pub max_threads_per_block: u32,
    /// Registers of a thread. 0 on host devices.
    pub registers: u32,
    /// Threads that run in lock step there. 1 on host devices.
    pub warp_size: u32,
    /// Always 0.
    pub reserved: u32,
    /// Bytes of static shared memory of a block. 0 for a kernel that is a C function of the program.
    pub static_shared_bytes: u64,
    /// Bytes of local memory of a thread, where registers are spilled to.
    pub local_bytes: u64,
}

// SAFETY: repr(C), size first, numbers.
unsafe impl AbiStruct for tgpu_kernel_info {
    const NAME: &'static str = "tgpu_kernel_info";
}

#[inline(always)]
pub(super) fn kernel(k: tgpu_kernel) -> KernelHandle {
    KernelHandle::from_bits(k as u64)
}

/// Finds a kernel of a module by name, on the task's current device. It works on others too.
///
/// @param m     the module.
/// @param name  the function's name as the image has it, or a name expression that the module was
///              compiled with.
/// @param out   receives the kernel.
/// @return TGPU_OK; TGPU_ERROR_NOT_FOUND if the module has no such kernel;
///         TGPU_ERROR_INVALID_HANDLE if m is no live module; TGPU_ERROR_INVALID_IMAGE or
///         TGPU_ERROR_COMPILE_FAILED if the module is no code for the current device;
///         TGPU_ERROR_NOT_SUPPORTED if that takes no modules; TGPU_ERROR_INVALID_ARGUMENT if name
///         or out is NULL or name is not UTF-8; the device statuses.
///
/// Ownership: the caller owns the kernel; tgpu_kernel_destroy gives it back. It outlives its
/// module's handle.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_kernel_get(
    m: tgpu_module,
    name: *const c_char,
    out: *mut tgpu_kernel,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's text ends with a NUL, and its pointer may be written.
        let (name, out) = unsafe { (text_in(name, "name")?, Out::new(out, "out")?) };
        out.set(core::kernel::get(module(m), name)?.bits() as tgpu_kernel);
        Ok(())
    })
}

/// Makes a kernel for host devices of a C function.
///
/// @param fn         the function, called once for each block.
/// @param data       handed to it with each call.
/// @param n_args     how many arguments a launch passes, 256 at most.
/// @param arg_sizes  bytes of each argument, 4096 together at most. A launch copies as many from
///                   where its args point to. May be NULL if n_args is 0.
/// @param out        receives the kernel. It runs on every host device.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if fn or out is NULL, arg_sizes is NULL and n_args
///         is not 0, or there are too many arguments or bytes of them; TGPU_ERROR_OUT_OF_MEMORY;
///         the common statuses.
///
/// Ownership: the caller owns the kernel; tgpu_kernel_destroy gives it back. fn and data must stay
/// valid until the launches are done. arg_sizes is copied.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_kernel_from_host_fn(
    r#fn: tgpu_host_kernel,
    data: *mut c_void,
    n_args: usize,
    arg_sizes: *const usize,
    out: *mut tgpu_kernel,
) -> tgpu_status {
    guard(|| {
        let function = r#fn.ok_or_else(|| null("fn"))?;
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        if n_args > MOST_ARGS {
            return Err(invalid(format!(
                "n_args is {n_args}; a host kernel takes at most {MOST_ARGS}"
            )));
        }
        if arg_sizes.is_null() && n_args > 0 {
            return Err(invalid(format!("arg_sizes is NULL, but n_args is {n_args}")));
        }
        // SAFETY: the caller's array has n_args elements.
        let sizes: Vec<usize> = (0..n_args)
            .map(|i| unsafe { arg_sizes.add(i).read_unaligned() })
            .collect();
        let total = sizes.iter().fold(0_usize, |sum, &size| sum.saturating_add(size));
        if total > MOST_ARG_BYTES {
            return Err(invalid(format!(
                "arg_sizes add up to {total} bytes; at most {MOST_ARG_BYTES} are allowed"
            )));
        }
        // SAFETY: the two function types differ in the name of the block's struct only, whose layouts are the same (above).
        // The caller vouches for function and data as its documentation says.
        let host = unsafe {
            let function = std::mem::transmute::<
                unsafe extern "C" fn(*const tgpu_host_block, *const *mut c_void, *mut c_void),
                HostKernelFn,
            >(function);
            HostKernel::from_caller(function, data, &sizes)
        };
        out.set(core::kernel::from_host(host)?.bits() as tgpu_kernel);
        Ok(())
    })
}

/// Destroys a kernel. The handle is invalid at once; launches already queued finish.
///
/// @param k  the kernel. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if k is no live kernel; TGPU_ERROR_INTERNAL.
///
/// Ownership: the kernel is given back.
/// Threads: any thread, also in callbacks and finalizers.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_kernel_destroy(k: tgpu_kernel) -> tgpu_status {
    guard_ending(|| core::kernel::destroy(kernel(k)))
}

/// Tells the limits and costs of a kernel on a device.
///
/// @param k    the kernel. Its module is loaded for the device if it was not.
/// @param d    the device.
/// @param out  receives the facts.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if k is no live kernel; TGPU_ERROR_INVALID_DEVICE if
///         there is no such device; TGPU_ERROR_NOT_SUPPORTED if the kernel cannot run there;
///         TGPU_ERROR_INVALID_IMAGE, TGPU_ERROR_COMPILE_FAILED or TGPU_ERROR_NOT_FOUND if its
///         module gives no such kernel there; TGPU_ERROR_INVALID_ARGUMENT if out is NULL or its
///         struct_size is refused; the device statuses.
///
/// Ownership: the caller gets a copy.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_kernel_info_get(
    k: tgpu_kernel,
    d: tgpu_device,
    out: *mut tgpu_kernel_info,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let report = core::kernel::info(kernel(k), d)?;
        out.write(|to| {
            to.max_threads_per_block = report.info.max_threads_per_block;
            to.registers = report.info.registers;
            to.warp_size = report.warp_size;
            to.static_shared_bytes = report.info.static_shared_bytes;
            to.local_bytes = report.info.local_bytes;
        });
        Ok(())
    })
}

/// Suggests a shape in x for so many items on the task's current device, from what keeps it
/// busiest.
///
/// @param k      the kernel.
/// @param items  how many threads have something to do. 0 suggests one block.
/// @param grid   receives blocks; grid * block is at least items.
/// @param block  receives threads of a block.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if k is no live kernel; TGPU_ERROR_NOT_SUPPORTED if
///         the kernel cannot run there; TGPU_ERROR_INVALID_IMAGE, TGPU_ERROR_COMPILE_FAILED or
///         TGPU_ERROR_NOT_FOUND if its module gives no such kernel there;
///         TGPU_ERROR_INVALID_ARGUMENT if an output is NULL, the items do not fit into one grid, or
///         the kernel has more static shared memory than a block may; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_kernel_suggest(
    k: tgpu_kernel,
    items: u64,
    grid: *mut u32,
    block: *mut u32,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointers.
        let (grid_out, block_out) = unsafe { (Out::new(grid, "grid")?, Out::new(block, "block")?) };
        let (grid, block) = core::kernel::suggest(kernel(k), items)?;
        grid_out.set(grid);
        block_out.set(block);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::error::{TGPU_ERROR_INVALID_ARGUMENT, TGPU_OK};

    unsafe extern "C" fn nothing(_: *const tgpu_host_block, _: *const *mut c_void, _: *mut c_void) {}

    fn refused(function: tgpu_host_kernel, n_args: usize, sizes: *const usize) -> String {
        let untouched = 8 as tgpu_kernel;
        let mut k = untouched;
        // SAFETY: each test has as many sizes as it says, or a count that is refused first.
        let status =
            unsafe { tgpu_kernel_from_host_fn(function, std::ptr::null_mut(), n_args, sizes, &mut k) };
        assert_eq!(status, TGPU_ERROR_INVALID_ARGUMENT);
        assert_eq!(k, untouched);
        core::error::last().unwrap().to_string()
    }

    #[test]
    fn host_kernels_have_limits_that_are_named() {
        let sizes = [2048, 2048, 1, usize::MAX];
        assert_eq!(refused(None, 1, sizes.as_ptr()), "fn is NULL");
        assert_eq!(
            refused(Some(nothing), 257, sizes.as_ptr()),
            "n_args is 257; a host kernel takes at most 256"
        );
        assert_eq!(
            refused(Some(nothing), 2, std::ptr::null()),
            "arg_sizes is NULL, but n_args is 2"
        );
        assert_eq!(
            refused(Some(nothing), 3, sizes.as_ptr()),
            "arg_sizes add up to 4097 bytes; at most 4096 are allowed"
        );
        assert!(refused(Some(nothing), 4, sizes.as_ptr()).contains(&usize::MAX.to_string()));
        // SAFETY: NULL is refused.
        let status = unsafe {
            tgpu_kernel_from_host_fn(
                Some(nothing),
                std::ptr::null_mut(),
                0,
                std::ptr::null(),
                std::ptr::null_mut(),
            )
        };
        assert_eq!(status, TGPU_ERROR_INVALID_ARGUMENT);
        assert_eq!(core::error::last().unwrap().to_string(), "out is NULL");
        assert_eq!(tgpu_kernel_destroy(std::ptr::null_mut()), TGPU_OK);
    }
}
