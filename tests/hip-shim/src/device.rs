//! Devices, and which one is the thread's current one.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use taskgpu::backend::{DeviceInfo, StreamSpec};

use crate::capture;
use crate::entry::{write, Hip};
use crate::fault::Failure;
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::order::Order;
use crate::pool;
use crate::runtime::{answer, runtime};
use crate::script::{Fault, Form};
use crate::stream::Stream;

/// The target that devices claim to be.
const ARCH: &[u8] = b"gfx90a:sramecc+:xnack-";
/// Sizes of the vendor's two structs of properties, and where the target's name is in each.
const PROPERTIES_5: (usize, usize) = (792, 396);
const PROPERTIES_6: (usize, usize) = (1472, 1160);
/// Bytes of a device's name.
const NAME_BYTES: usize = 256;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// One device.
pub struct Device {
    pub ordinal: u32,
    context: AtomicBool,
    opened: OnceLock<Hip<()>>,
    info: OnceLock<Hip<DeviceInfo>>,
    fault: Option<Fault>,
    launches: AtomicU64,
    pub failure: Failure,
    legacy: OnceLock<Hip<Arc<Stream>>>,
    pub order: Mutex<Order>,
    peers: Mutex<Vec<u32>>,
    streams: Mutex<Vec<Weak<Stream>>>,
}

impl Device {
    pub fn new(ordinal: u32, fault: Option<Fault>) -> Device {
        Device {
            ordinal,
            context: AtomicBool::new(false),
            opened: OnceLock::new(),
            info: OnceLock::new(),
            fault,
            launches: AtomicU64::new(0),
            failure: Failure::default(),
            legacy: OnceLock::new(),
            order: Mutex::default(),
            peers: Mutex::default(),
            streams: Mutex::default(),
        }
    }

    pub fn has_context(&self) -> bool {
        self.context.load(Ordering::Relaxed)
    }

    /// Does what needs a context: opens it if there is none.
    pub fn open(&self) -> Hip<()> {
        self.context.store(true, Ordering::Relaxed);
        *self
            .opened
            .get_or_init(|| answer(runtime().backend.open(self.ordinal)))
    }

    fn info(&self) -> Hip<&DeviceInfo> {
        self.info
            .get_or_init(|| answer(runtime().backend.device_info(self.ordinal)))
            .as_ref()
            .map_err(|code| *code)
    }

    /// Least and greatest priority. The vendor tells them without a context; CUDA, which may be below, does not.
    pub fn priorities(&self) -> Hip<(i32, i32)> {
        if let Some(range) = runtime().script.priorities {
            return Ok(range);
        }
        let range = |info: &DeviceInfo| (info.priority_least, info.priority_greatest);
        let known = range(self.info()?);
        if known != (0, 0) {
            return Ok(known);
        }
        self.open()?;
        answer(runtime().backend.device_info(self.ordinal)).map(|info| range(&info))
    }

    /// Counts a launch: the one with which the device fails is told so.
    pub fn count_launch(&self) -> Option<Form> {
        let before = self.launches.fetch_add(1, Ordering::Relaxed);
        self.fault
            .filter(|fault| fault.after == before)
            .map(|fault| fault.form)
    }

    /// Puts a stream on the books.
    pub fn enlist(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock();
        streams.retain(|other| other.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// All streams with work or a handle.
    pub fn streams(&self) -> Vec<Arc<Stream>> {
        self.streams.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// The legacy stream.
    pub fn legacy(&'static self) -> Hip<Arc<Stream>> {
        let make = || {
            self.open()?;
            Stream::legacy(self)
        };
        self.legacy.get_or_init(make).clone()
    }

    /// Waits for all its streams.
    pub fn wait(&self) -> Hip<()> {
        self.streams().iter().try_for_each(|stream| stream.wait())
    }
}

/// A device by number.
pub fn by_ordinal(ordinal: c_int) -> Hip<&'static Device> {
    let devices = &runtime().devices;
    if devices.is_empty() {
        return Err(hipErrorNoDevice);
    }
    usize::try_from(ordinal)
        .ok()
        .and_then(|ordinal| devices.get(ordinal))
        .ok_or(hipErrorInvalidDevice)
}

/// The thread's current device.
pub fn current() -> Hip<&'static Device> {
    by_ordinal(CURRENT.try_with(Cell::get).unwrap_or(0) as c_int)
}

/// The thread's current device, with its context open and the device in order.
pub fn current_open() -> Hip<&'static Device> {
    let device = current()?;
    device.open()?;
    device.failure.check()?;
    Ok(device)
}

/// Fills a struct of properties, of which the callers that matter read two texts.
unsafe fn properties(out: *mut c_void, device: c_int, (bytes, arch_at): (usize, usize)) -> Hip<()> {
    let info = by_ordinal(device)?.info()?;
    if out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    // SAFETY: the caller's struct has that many bytes.
    let all = unsafe {
        out.cast::<u8>().write_bytes(0, bytes);
        std::slice::from_raw_parts_mut(out.cast::<u8>(), bytes)
    };
    let name = &info.name.as_bytes()[..info.name.len().min(NAME_BYTES - 1)];
    all[..name.len()].copy_from_slice(name);
    all[arch_at..arch_at + ARCH.len()].copy_from_slice(ARCH);
    Ok(())
}

/// Writes a text of at most `room` bytes, the NUL included.
unsafe fn write_text(out: *mut c_char, room: c_int, text: &str) -> Hip<()> {
    let room = usize::try_from(room)
        .ok()
        .filter(|room| *room > 0 && !out.is_null());
    let room = room.ok_or(hipErrorInvalidValue)?;
    let bytes = &text.as_bytes()[..text.len().min(room - 1)];
    // SAFETY: the caller's buffer has that room.
    unsafe {
        out.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len());
        out.add(bytes.len()).write(0);
    }
    Ok(())
}

fn attribute(info: &DeviceInfo, attribute: hipDeviceAttribute_t) -> Hip<u32> {
    Ok(match attribute {
        hipDeviceAttributeMaxBlockDimX => info.max_block[0],
        hipDeviceAttributeMaxBlockDimY => info.max_block[1],
        hipDeviceAttributeMaxBlockDimZ => info.max_block[2],
        hipDeviceAttributeMaxGridDimX => info.max_grid[0],
        hipDeviceAttributeMaxGridDimY => info.max_grid[1],
        hipDeviceAttributeMaxGridDimZ => info.max_grid[2],
        hipDeviceAttributeMaxThreadsPerBlock => info.max_threads_per_block,
        hipDeviceAttributeMultiprocessorCount => info.compute_units,
        hipDeviceAttributeMaxSharedMemoryPerBlock => {
            u32::try_from(info.max_shared_per_block).unwrap_or(i32::MAX as u32)
        }
        hipDeviceAttributeWarpSize => info.warp_size,
        hipDeviceAttributeMemoryPoolsSupported => info.memory_pools.into(),
        hipDeviceAttributeCanUseStreamWaitValue => 1,
        _ => return Err(hipErrorInvalidValue),
    })
}

entries! {
    fn hipInit(call, flags: c_uint) {
        match flags {
            0 => by_ordinal(0).map(drop),
            _ => Err(hipErrorInvalidValue),
        }
    }

    fn hipRuntimeGetVersion(call, version: *mut c_int) {
        write(version, runtime().version)
    }

    fn hipDriverGetVersion(call, version: *mut c_int) {
        write(version, runtime().version)
    }

    fn hipGetDeviceCount(call, count: *mut c_int) {
        let devices = runtime().devices.len();
        write(count, devices as c_int)?;
        match devices {
            0 => Err(hipErrorNoDevice),
            _ => Ok(()),
        }
    }

    fn hipGetDevice(call, device: *mut c_int) {
        write(device, current()?.ordinal as c_int)
    }

    /// Opens no context: that is left to the first call that needs one.
    fn hipSetDevice(call, device: c_int) {
        let device = by_ordinal(device)?;
        CURRENT.with(|current| current.set(device.ordinal));
        Ok(())
    }

    fn hipDeviceGet(call, device: *mut hipDevice_t, ordinal: c_int) {
        write(device, by_ordinal(ordinal)?.ordinal as c_int)
    }

    fn hipDeviceGetName(call, name: *mut c_char, room: c_int, device: hipDevice_t) {
        write_text(name, room, &by_ordinal(device)?.info()?.name)
    }

    fn hipDeviceTotalMem(call, bytes: *mut usize, device: hipDevice_t) {
        write(bytes, by_ordinal(device)?.info()?.total_memory as usize)
    }

    fn hipDeviceGetAttribute(call, value: *mut c_int, number: hipDeviceAttribute_t, device: c_int) {
        let value_is = attribute(by_ordinal(device)?.info()?, number)?;
        write(value, c_int::try_from(value_is).unwrap_or(c_int::MAX))
    }

    fn hipDeviceGetPCIBusId(call, text: *mut c_char, room: c_int, device: c_int) {
        let device = by_ordinal(device)?;
        write_text(text, room, &format!("0000:{:02x}:00.0", device.ordinal + 1))
    }

    fn hipDeviceGetUuid(call, uuid: *mut hipUUID, device: hipDevice_t) {
        let bytes = by_ordinal(device)?.info()?.uuid.map(|byte| byte as c_char);
        write(uuid, hipUUID { bytes })
    }

    fn hipGetDeviceProperties(call, properties_out: *mut c_void, device: c_int) {
        properties(properties_out, device, PROPERTIES_5)
    }

    fn hipGetDevicePropertiesR0600(call, properties_out: *mut c_void, device: c_int) {
        properties(properties_out, device, PROPERTIES_6)
    }

    fn hipDeviceCanAccessPeer(call, can: *mut c_int, device: c_int, peer: c_int) {
        let (device, peer) = (by_ordinal(device)?, by_ordinal(peer)?);
        let yes = device.ordinal != peer.ordinal
            && answer(runtime().backend.can_access_peer(device.ordinal, peer.ordinal))?;
        write(can, yes.into())
    }

    /// From the current device to the peer; a second time is an error.
    fn hipDeviceEnablePeerAccess(call, peer: c_int, flags: c_uint) {
        let (device, peer) = (current_open()?, by_ordinal(peer)?);
        if flags != 0 {
            return Err(hipErrorInvalidValue);
        }
        if device.ordinal == peer.ordinal {
            return Err(hipErrorInvalidDevice);
        }
        peer.open()?;
        let mut peers = device.peers.lock();
        if peers.contains(&peer.ordinal) {
            return Err(hipErrorPeerAccessAlreadyEnabled);
        }
        answer(runtime().backend.enable_peer(device.ordinal, peer.ordinal))?;
        peers.push(peer.ordinal);
        Ok(())
    }

    fn hipDeviceGetStreamPriorityRange(call, least: *mut c_int, greatest: *mut c_int) {
        let range = current()?.priorities()?;
        write(least, range.0)?;
        write(greatest, range.1)
    }

    fn hipDeviceSynchronize(call) {
        let device = current_open()?;
        capture::unsafe_call()?;
        device.wait()?;
        pool::release(device);
        Ok(())
    }

    fn hipMemGetInfo(call, free: *mut usize, total: *mut usize) {
        let device = current_open()?;
        let (free_bytes, total_bytes) = answer(runtime().backend.memory(device.ordinal))?;
        write(free, free_bytes as usize)?;
        write(total, total_bytes as usize)
    }
}

/// What a stream of the backend below is made from.
pub fn spec(priority: i32, legacy_order: bool) -> StreamSpec {
    use taskgpu::backend::Priority;
    StreamSpec {
        priority: match priority {
            0 => Priority::Normal,
            urgent if urgent < 0 => Priority::High,
            _ => Priority::Low,
        },
        legacy_order,
    }
}
