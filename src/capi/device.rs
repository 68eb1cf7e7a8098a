//! # Devices
//!
//! The devices of all backends form one list, and a device is its index there: 0, 1, and so on.
//! Each task has a current device. What a task queues, allocates or creates without naming a stream
//! happens there. A task that has made no call yet is on the process's default device.
//! tgpu_device_set in one task never changes what another task sees, new or old; to drive several
//! devices, run one task for each.
//!
//! Counting and describing devices opens none of them. A device is opened, which costs memory and
//! time on GPUs, by the first call that uses it.
//!
//! Other libraries see the current device too: tgpu_device_set, scopes and a task swap make it the
//! thread's current device in the vendor's runtime, so that a vendor library called next works
//! there. Every other call leaves the thread's vendor device as it found it.

use super::error::{tgpu_status, TGPU_OK};
use super::structs::{AbiStruct, OutStruct};
use super::{check_fd, guard, text_out, Out};
use crate::core;
use std::ffi::{c_char, c_int};

/// A device: its index in the process's device list.
pub type tgpu_device = i32;

/// What a device is.
#[repr(C)]
pub struct tgpu_device_info {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// Its index in the process's device list.
    pub device: tgpu_device,
    /// Its index within its backend.
    pub ordinal: i32,
    /// "hip", "cuda" or "host".
    pub backend: [c_char; 16],
    /// The product's name.
    pub name: [c_char; 256],
    /// The architecture that code is compiled for, such as "gfx90a", "sm_90" or "x86_64".
    pub arch: [c_char; 64],
    /// Unique id. All zero where there is none.
    pub uuid: [u8; 16],
    /// PCI address, such as "0000:3b:00.0". Empty where there is none.
    pub pci: [c_char; 32],
    /// Bytes of device memory.
    pub total_memory: u64,
    /// Most bytes of shared memory of one block, static and dynamic together.
    pub max_shared_per_block: u64,
    /// Compute units, multiprocessors, or threads that run blocks on a host device.
    pub compute_units: u32,
    /// Threads that run in lock step. 1 on host devices.
    pub warp_size: u32,
    /// Most threads of one block, which is the product of its dimensions.
    pub max_threads_per_block: u32,
    /// Most threads of one block in x, y, z.
    pub max_block: [u32; 3],
    /// Most blocks of a grid in x, y, z.
    pub max_grid: [u32; 3],
    /// The vendor's number of its least urgent stream priority. CUDA tells it of a device in use only: this and the next
    /// are 0 before the first stream, memory or module of the device.
    pub priority_least: i32,
    /// The vendor's number of its most urgent stream priority.
    pub priority_greatest: i32,
    /// Hardware queues that run streams side by side; with more streams some share one. 0 if not
    /// told.
    pub hardware_queues: u32,
    /// 1 if stream-ordered allocation is native, 0 if it is emulated.
    pub memory_pools: i32,
}

// SAFETY: repr(C), size first, numbers and arrays of them.
unsafe impl AbiStruct for tgpu_device_info {
    const NAME: &'static str = "tgpu_device_info";
}

/// Counts the devices. Opens none of them.
///
/// @param out  receives the count. It does not change while the process lives.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL; the common statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_device_count(out: *mut i32) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::device::count()? as i32);
        Ok(())
    })
}

/// Gives the task's current device. Costs a few nanoseconds.
///
/// @param out  receives the device.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if out is NULL; the common statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_device_get(out: *mut tgpu_device) -> tgpu_status {
    // The common case needs no panic boundary.
    if let (Some(device), false) = (core::device::seen(), out.is_null()) {
        // SAFETY: the caller's pointer, not NULL.
        unsafe { out.write_unaligned(device as tgpu_device) };
        return TGPU_OK;
    }
    device_get_slowly(out)
}

/// Apart, so that the common case needs no stack frame.
#[cold]
#[inline(never)]
fn device_get_slowly(out: *mut tgpu_device) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::device::current()? as tgpu_device);
        Ok(())
    })
}

/// Makes a device the task's current device, and the thread's current device in the vendor's
/// runtime.
///
/// Opens the device on first use. The task's current streams of other devices stay as they are, and
/// are found again when it comes back.
///
/// @param d  the device.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device; the device statuses. On
///         failure the task stays where it was.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no; the first use of a GPU takes the time of opening it.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_device_set(d: tgpu_device) -> tgpu_status {
    guard(|| core::device::set(d))
}

/// Sets the device on which tasks start that have made no call yet. It is device 0 at first.
///
/// Process-wide: tasks that have made a call before keep their device.
///
/// @param d  the device. It is not opened.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device; the common statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_device_default_set(d: tgpu_device) -> tgpu_status {
    guard(|| core::device::default_set(d))
}

/// Describes a device. Does not open it.
///
/// @param d    the device.
/// @param out  receives the facts.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device;
///         TGPU_ERROR_INVALID_ARGUMENT if out is NULL or its struct_size is refused;
///         TGPU_ERROR_BACKEND; the common statuses.
///
/// Ownership: the caller gets a copy.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_device_info_get(d: tgpu_device, out: *mut tgpu_device_info) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's struct has as many bytes as its struct_size says.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let report = core::device::info(d)?;
        out.write(|to| {
            let info = &report.info;
            to.device = report.index as tgpu_device;
            to.ordinal = report.ordinal as i32;
            text_out(report.backend, &mut to.backend);
            text_out(&info.name, &mut to.name);
            text_out(&info.arch, &mut to.arch);
            to.uuid = info.uuid;
            text_out(&info.pci, &mut to.pci);
            to.total_memory = info.total_memory;
            to.max_shared_per_block = info.max_shared_per_block;
            to.compute_units = info.compute_units;
            to.warp_size = info.warp_size;
            to.max_threads_per_block = info.max_threads_per_block;
            to.max_block = info.max_block;
            to.max_grid = info.max_grid;
            to.priority_least = info.priority_least;
            to.priority_greatest = info.priority_greatest;
            to.hardware_queues = info.hardware_queues;
            to.memory_pools = i32::from(info.memory_pools);
        });
        Ok(())
    })
}

/// Tells how much memory of a device is free. On a GPU other processes count, and what our pools
/// hold unused does not count as free; on a host device it does.
///
/// @param d            the device. Opened if it was not.
/// @param free_bytes   receives the bytes that are free now.
/// @param total_bytes  receives the bytes that there are.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device;
///         TGPU_ERROR_INVALID_ARGUMENT if an output is NULL; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_device_memory(
    d: tgpu_device,
    free_bytes: *mut u64,
    total_bytes: *mut u64,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointers.
        let (free_out, total_out) = unsafe {
            (
                Out::new(free_bytes, "free_bytes")?,
                Out::new(total_bytes, "total_bytes")?,
            )
        };
        let (free, total) = core::device::memory(d)?;
        free_out.set(free);
        total_out.set(total);
        Ok(())
    })
}

/// Waits until everything on the task's current device is done, the streams of other tasks and
/// other libraries included.
///
/// To wait for one's own work only, tgpu_synchronize is cheaper and holds nobody up.
///
/// @return TGPU_OK; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: yes, as TGPU_WAIT_AUTO for our streams, then as the vendor's runtime waits.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_device_synchronize() -> tgpu_status {
    guard(core::device::synchronize)
}

/// Adds 1 to an event descriptor after everything queued so far on this library's streams of the
/// task's current device, those of other tasks included, so that a poll or epoll loop can wait for
/// it.
///
/// As tgpu_stream_signal_fd. What other libraries have queued on streams of their own does not
/// count: tgpu_device_synchronize waits for that.
///
/// @param fd  a descriptor open for writing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_ARGUMENT if fd is negative or not open for writing;
///         TGPU_ERROR_CAPTURING if one of the streams is being captured; the device statuses.
///
/// Ownership: the descriptor is duplicated during the call, so the caller may close its own at
/// once.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_device_signal_fd(fd: c_int) -> tgpu_status {
    guard(|| core::device::signal_fd(check_fd(fd)?))
}

/// Tells whether a device can be given direct access to the memory of another one.
///
/// @param d     the device that would read and write.
/// @param peer  the device that owns the memory.
/// @param out   receives 1 or 0. It is 0 for a device and itself, and for devices of different
///              backends.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if d or peer does not exist;
///         TGPU_ERROR_INVALID_ARGUMENT if out is NULL; TGPU_ERROR_BACKEND; the common statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_device_can_access_peer(
    d: tgpu_device,
    peer: tgpu_device,
    out: *mut i32,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(i32::from(core::device::can_access_peer(d, peer)?));
        Ok(())
    })
}

/// Lets kernels and copies of a device reach the memory of another one directly, for the life of
/// the process.
///
/// One direction only. Our memory pools of the peer are opened as well. Copies with tgpu_memcpy
/// work without this call too.
///
/// @param d     the device that reads and writes.
/// @param peer  the device that owns the memory.
/// @return TGPU_OK, also if it was enabled before; TGPU_ERROR_INVALID_DEVICE if d or peer does not
///         exist; TGPU_ERROR_NOT_SUPPORTED if d cannot access peer; TGPU_ERROR_INVALID_ARGUMENT if
///         they are the same; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_device_enable_peer(d: tgpu_device, peer: tgpu_device) -> tgpu_status {
    guard(|| core::device::enable_peer(d, peer))
}

/// Gives the vendor's own number of a device, for use with the vendor's libraries: a HIP device
/// index, a CUdevice. For a host device, its index among host devices.
///
/// @param d    the device.
/// @param out  receives the number.
/// @return TGPU_OK; TGPU_ERROR_INVALID_DEVICE if there is no such device;
///         TGPU_ERROR_INVALID_ARGUMENT if out is NULL; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_device_native(d: tgpu_device, out: *mut u64) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(core::device::native(d)?);
        Ok(())
    })
}
