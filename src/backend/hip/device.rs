//! One device: how it is bound, our memory pool on it, and what is known about it.
//!
//! Much of the runtime works on the thread's current device. Others change that behind our back, so it is asked each time, and
//! put back when we are done.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;

use super::api::{call, Answer, Api};
use super::codes::is_sticky;
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use super::gate::Flag;
use crate::backend::common::Queued;
use crate::backend::{os, DeviceInfo, Error, Priority, Result, Status};

/// A device of the runtime.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) api: &'static Api,
    pub(super) ordinal: u32,
    /// What the runtime told without the device being touched.
    info: DeviceInfo,
    /// The device has been opened.
    open: AtomicBool,
    opening: Mutex<()>,
    /// Our own pool; NULL where the device has none.
    pool: AtomicPtr<c_void>,
    /// Streams can wait for a number in memory.
    pub(super) waits_for_values: bool,
    /// The first code that said that the device is gone; 0 while it is well. Callbacks still queued look at it.
    pub(super) lost: Arc<AtomicI32>,
    /// Callbacks that the runtime has not made yet.
    callbacks: Mutex<Vec<Weak<Queued>>>,
    /// Events for waits, free to be recorded by the next one.
    pub(super) wait_events: SegQueue<usize>,
    /// Flags for gates, free to be used by the next one.
    pub(super) flags: Arc<SegQueue<Flag>>,
}

/// While it lives, the device is the thread's current one and the thread's calls count as safe beside a capture.
#[must_use]
pub(super) struct Entered {
    _current: Current,
    _relaxed: Relaxed,
}

/// While it lives, the thread's calls do not disturb a capture that another thread runs.
pub(super) struct Relaxed {
    api: &'static Api,
    before: hipStreamCaptureMode,
}

impl Relaxed {
    #[inline]
    pub(super) fn enter(api: &'static Api) -> Relaxed {
        let mut mode = hipStreamCaptureModeRelaxed;
        // SAFETY: `mode` is writable. The mode is the thread's; no device is touched.
        let code = unsafe { (api.hipThreadExchangeStreamCaptureMode)(&mut mode) };
        Relaxed {
            api,
            before: match code {
                hipSuccess => mode,
                _ => hipStreamCaptureModeRelaxed,
            },
        }
    }
}

impl Drop for Relaxed {
    #[inline]
    fn drop(&mut self) {
        if self.before != hipStreamCaptureModeRelaxed {
            // SAFETY: the field is writable and holds the mode that was in force before.
            unsafe { (self.api.hipThreadExchangeStreamCaptureMode)(&mut self.before) };
        }
    }
}

/// While it lives, the device is the thread's current one.
#[must_use]
pub(super) struct Current {
    api: &'static Api,
    /// The device to put back.
    before: Option<c_int>,
}

impl Drop for Current {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the runtime named this device itself.
            unsafe { (self.api.hipSetDevice)(before) };
        }
    }
}

impl Device {
    /// Asks the runtime about device `ordinal` and leaves the device itself alone.
    pub(super) fn new(api: &'static Api, ordinal: u32) -> Result<Device> {
        Ok(Device {
            api,
            ordinal,
            info: describe(api, ordinal)?,
            open: AtomicBool::new(false),
            opening: Mutex::new(()),
            pool: AtomicPtr::new(null_mut()),
            waits_for_values: attribute(api, ordinal, hipDeviceAttributeCanUseStreamWaitValue) == Some(1),
            lost: Arc::default(),
            callbacks: Mutex::default(),
            wait_events: SegQueue::new(),
            flags: Arc::default(),
        })
    }

    pub(super) fn info(&self) -> DeviceInfo {
        DeviceInfo {
            memory_pools: self.info.memory_pools && (!self.is_open() || !self.pool().is_null()),
            ..self.info.clone()
        }
    }

    /// Most bytes of shared memory of one block.
    pub(super) fn max_shared(&self) -> u64 {
        self.info.max_shared_per_block
    }

    /// The target for the compiler, as `gfx90a:sramecc+:xnack-`.
    pub(super) fn arch(&self) -> &str {
        &self.info.arch
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Our memory pool; NULL where there is none.
    #[inline]
    pub(super) fn pool(&self) -> hipMemPool_t {
        self.pool.load(Ordering::Acquire)
    }

    /// The vendor's number for one of our priorities. NORMAL is what every other stream of the process has
    /// that names no priority (0), so that our streams and a framework's are equals by default.
    pub(super) fn native_priority(&self, priority: Priority) -> i32 {
        let (least, greatest) = (self.info.priority_least, self.info.priority_greatest);
        match priority {
            Priority::Normal => 0.clamp(greatest.min(least), least.max(greatest)),
            Priority::Low => least,
            Priority::High => greatest,
        }
    }

    /// Makes the pool, once.
    #[inline]
    pub(super) fn open(&self) -> Result<()> {
        if self.is_open() {
            return Ok(());
        }
        self.open_now()
    }

    #[cold]
    fn open_now(&self) -> Result<()> {
        let _one = self.opening.lock();
        if self.is_open() {
            return Ok(());
        }
        let _relaxed = Relaxed::enter(self.api);
        let _current = self.set_current()?;
        if self.info.memory_pools {
            // Without a pool memory is still to be had, so a failure here fails nothing.
            self.pool
                .store(self.make_pool().unwrap_or(null_mut()), Ordering::Release);
        }
        self.open.store(true, Ordering::Release);
        Ok(())
    }

    /// A pool of our own: what others set on the default one is no business of ours, nor ours of theirs.
    fn make_pool(&self) -> Option<hipMemPool_t> {
        let (create, set) = (self.api.hipMemPoolCreate?, self.api.hipMemPoolSetAttribute?);
        self.api.hipMallocFromPoolAsync?;
        self.api.hipFreeAsync?;
        let properties = hipMemPoolProps {
            allocType: hipMemAllocationTypePinned,
            handleTypes: hipMemHandleTypeNone,
            location: self.location(),
            win32SecurityAttributes: null_mut(),
            reserved: [0; 64],
        };
        let mut pool = null_mut();
        // SAFETY: `pool` is writable, `properties` complete.
        let code = unsafe { create(&mut pool, &properties) };
        if code != hipSuccess || pool.is_null() {
            self.api.forget(code);
            return None;
        }
        let mut keep = u64::MAX;
        // SAFETY: the attribute is a 64-bit number. Should it be refused, memory goes back to the system at each
        // synchronization: slower and still right.
        let code = unsafe { set(pool, hipMemPoolAttrReleaseThreshold, (&raw mut keep).cast()) };
        self.api.forget(code);
        Some(pool)
    }

    fn location(&self) -> hipMemLocation {
        hipMemLocation {
            type_: hipMemLocationTypeDevice,
            id: self.ordinal as c_int,
        }
    }

    /// Makes the device current until the result is dropped. Asks what is current each time.
    #[inline]
    pub(super) fn set_current(&self) -> Result<Current> {
        let mut now = -1;
        // SAFETY: `now` is writable.
        let answer = unsafe { call!(self.api, hipGetDevice(&mut now)) };
        if answer.code == hipSuccess && now == self.ordinal as c_int {
            return Ok(Current {
                api: self.api,
                before: None,
            });
        }
        self.replace_current(answer, now)
    }

    fn replace_current(&self, asked: Answer, now: c_int) -> Result<Current> {
        self.check(asked, || "cannot ask which device is current".into())?;
        // SAFETY: a device of the runtime's.
        let answer = unsafe { call!(self.api, hipSetDevice(self.ordinal as c_int)) };
        self.check(answer, || "cannot make the device current".into())?;
        Ok(Current {
            api: self.api,
            before: Some(now),
        })
    }

    /// Makes the device current, for good.
    pub(super) fn bind(&self) -> Result<()> {
        let mut current = self.set_current()?;
        current.before = None;
        Ok(())
    }

    /// Opens the device and makes it current, and calls safe beside a capture, until the result is dropped.
    #[inline]
    pub(super) fn enter(&self) -> Result<Entered> {
        self.open()?;
        Ok(Entered {
            _current: self.set_current()?,
            _relaxed: Relaxed::enter(self.api),
        })
    }

    /// Lets this device reach the memory of `peer`, pools included.
    pub(super) fn enable_peer(&self, peer: &Device) -> Result<()> {
        peer.open()?;
        let what = || {
            format!(
                "cannot enable access to the memory of HIP device {}",
                peer.ordinal
            )
        };
        {
            let _here = self.enter()?;
            // SAFETY: a device of the runtime's.
            let answer = unsafe { call!(self.api, hipDeviceEnablePeerAccess(peer.ordinal as c_int, 0)) };
            match answer.code {
                // F35.
                hipErrorPeerAccessAlreadyEnabled => self.api.forget(answer.code),
                _ => self.check(answer, what)?,
            }
        }
        let pool = peer.pool();
        if let (false, Some(set)) = (pool.is_null(), self.api.hipMemPoolSetAccess) {
            let access = hipMemAccessDesc {
                location: self.location(),
                flags: hipMemAccessFlagsProtReadWrite,
            };
            let _there = peer.enter()?;
            let answer = Answer {
                // SAFETY: one descriptor; the pool is never destroyed.
                code: unsafe { set(pool, &access, 1) },
                function: "hipMemPoolSetAccess",
            };
            self.check(answer, what)?;
        }
        Ok(())
    }

    /// Turns the vendor's answer into ours. `what` says what was tried, as the start of a sentence.
    #[inline]
    pub(super) fn check(&self, answer: Answer, what: impl FnOnce() -> String) -> Result<()> {
        if answer.code == hipSuccess {
            Ok(())
        } else {
            Err(self.failure(answer, &what()))
        }
    }

    /// The same for a call that hands out an object: success without one is no success.
    pub(super) fn given(
        &self,
        answer: Answer,
        object: *mut c_void,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        if answer.code == hipSuccess && object.is_null() {
            return Err(Error::new(
                Status::Backend,
                format!(
                    "HIP device {}: {}: the runtime answered success and NULL",
                    self.ordinal,
                    what()
                ),
            )
            .native(self.api.native(answer)));
        }
        self.check(answer, what)
    }

    /// Puts a callback on the books that is about to be queued.
    pub(super) fn expect(&self, queued: &Arc<Queued>) {
        let mut callbacks = self.callbacks.lock();
        if callbacks.len() == callbacks.capacity() {
            callbacks.retain(|other| other.strong_count() > 0);
        }
        callbacks.push(Arc::downgrade(queued));
    }

    /// Makes the callbacks that wait for a lost device: some runtimes forget them. On a thread of their own, since whoever finds
    /// the device lost may hold what they wait for.
    #[cold]
    pub(super) fn call_back_lost(&self) {
        let callbacks = std::mem::take(&mut *self.callbacks.lock());
        if callbacks.is_empty() {
            return;
        }
        let _signals = os::SignalsBlocked::new();
        // Without a thread they are left to the runtime.
        let _ = std::thread::Builder::new()
            .name("taskgpu-lost".to_owned())
            .spawn(move || {
                for queued in callbacks.iter().filter_map(Weak::upgrade) {
                    queued.run(Status::DeviceLost);
                }
            });
    }

    /// The failure that `answer` is, with the device named in the text.
    #[cold]
    pub(super) fn failure(&self, answer: Answer, what: &str) -> Error {
        if !is_sticky(answer.code) {
            return self
                .api
                .failure(answer, &format!("HIP device {}: {what}", self.ordinal));
        }
        let first = match self
            .lost
            .compare_exchange(0, answer.code, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => {
                self.call_back_lost();
                answer.code
            }
            Err(first) => first,
        };
        let text = format!(
            "HIP device {} failed and is lost for this process: {} ({}); seen when it was tried: {what}",
            self.ordinal,
            self.api.code_text(first),
            self.api.code_name(first)
        );
        Error::new(Status::DeviceLost, text).native(self.api.native(answer))
    }
}

/// Our name for a priority of the vendor's: what is more urgent than the default is HIGH.
pub(super) fn our_priority(native: i32) -> Priority {
    match native {
        0 => Priority::Normal,
        n if n < 0 => Priority::High,
        _ => Priority::Low,
    }
}

/// The runtime's text in a buffer of ours.
fn text(buffer: &[u8]) -> String {
    String::from_utf8_lossy(&buffer[..buffer.iter().position(|&b| b == 0).unwrap_or(buffer.len())])
        .into_owned()
}

/// How many hardware queues streams are spread over: four unless the vendor's variable says otherwise.
fn hardware_queues(variable: Option<&str>) -> u32 {
    variable
        .and_then(|v| v.trim().parse().ok())
        .filter(|n| *n > 0)
        .unwrap_or(4)
}

fn attribute(api: &Api, ordinal: u32, number: hipDeviceAttribute_t) -> Option<i32> {
    let mut value = 0;
    // SAFETY: `value` is writable. An attribute this runtime does not know is an error and leaves it 0.
    let code = unsafe { (api.hipDeviceGetAttribute)(&mut value, number, ordinal as c_int) };
    api.forget(code);
    (code == hipSuccess).then_some(value)
}

/// The target's name. No attribute tells it, only the structs do; of these we read nothing else.
fn arch(api: &Api, ordinal: u32) -> Result<String> {
    // More than twice what the larger one takes.
    let mut buffer = vec![0u64; 4096 / 8];
    let (answer, at) = match (api.hipGetDevicePropertiesR0600, api.hipGetDeviceProperties) {
        (Some(ask), _) => (
            Answer {
                // SAFETY: the buffer has room for the struct, and its alignment.
                code: unsafe { ask(buffer.as_mut_ptr().cast(), ordinal as c_int) },
                function: "hipGetDevicePropertiesR0600",
            },
            ARCH_NAME_R0600,
        ),
        (None, Some(ask)) => (
            Answer {
                // SAFETY: as above.
                code: unsafe { ask(buffer.as_mut_ptr().cast(), ordinal as c_int) },
                function: "hipGetDeviceProperties",
            },
            ARCH_NAME,
        ),
        (None, None) => return Err(Error::new(
            Status::NotSupported,
            "the HIP runtime's library has neither hipGetDevicePropertiesR0600 nor hipGetDeviceProperties",
        )),
    };
    if answer.code != hipSuccess {
        return Err(api.failure(
            answer,
            &format!("cannot ask for the target of HIP device {ordinal}"),
        ));
    }
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
    Ok(text(&bytes[at..at + ARCH_NAME_BYTES]))
}

fn describe(api: &Api, ordinal: u32) -> Result<DeviceInfo> {
    let device = ordinal as c_int;
    let positive =
        |number| attribute(api, ordinal, number).map_or(0, |v| u32::try_from(v).unwrap_or_default());
    let mut name = [0u8; 256];
    // SAFETY: the buffer has the size that is passed.
    let answer = unsafe { call!(api, hipDeviceGetName(name.as_mut_ptr().cast(), 256, device)) };
    if answer.code != hipSuccess {
        return Err(api.failure(
            answer,
            &format!("cannot ask for the name of HIP device {ordinal}"),
        ));
    }
    let mut total = 0usize;
    // SAFETY: `total` is writable.
    let answer = unsafe { call!(api, hipDeviceTotalMem(&mut total, device)) };
    if answer.code != hipSuccess {
        return Err(api.failure(
            answer,
            &format!("cannot ask for the memory of HIP device {ordinal}"),
        ));
    }
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both are writable. The range is the runtime's, the same for all devices, and is told without touching one.
    let answer = unsafe { call!(api, hipDeviceGetStreamPriorityRange(&mut least, &mut greatest)) };
    if answer.code != hipSuccess {
        return Err(api.failure(answer, "cannot ask for the range of stream priorities"));
    }
    let mut pci = [0u8; 32];
    // SAFETY: the buffer has the size that is passed. A device without an address leaves it empty.
    let code = unsafe { (api.hipDeviceGetPCIBusId)(pci.as_mut_ptr().cast(), 32, device) };
    if code != hipSuccess {
        api.forget(code);
        pci[0] = 0;
    }
    let mut uuid = hipUUID { bytes: [0; 16] };
    if let Some(ask) = api.hipDeviceGetUuid {
        // SAFETY: `uuid` is writable.
        let code = unsafe { ask(&mut uuid, device) };
        if code != hipSuccess {
            api.forget(code);
            uuid.bytes = [0; 16];
        }
    }
    Ok(DeviceInfo {
        name: text(&name),
        arch: arch(api, ordinal)?,
        uuid: uuid.bytes.map(|b| b as u8),
        pci: text(&pci).to_ascii_lowercase(),
        total_memory: total as u64,
        compute_units: positive(hipDeviceAttributeMultiprocessorCount),
        warp_size: positive(hipDeviceAttributeWarpSize),
        max_threads_per_block: positive(hipDeviceAttributeMaxThreadsPerBlock),
        max_block: [
            positive(hipDeviceAttributeMaxBlockDimX),
            positive(hipDeviceAttributeMaxBlockDimY),
            positive(hipDeviceAttributeMaxBlockDimZ),
        ],
        max_grid: [
            positive(hipDeviceAttributeMaxGridDimX),
            positive(hipDeviceAttributeMaxGridDimY),
            positive(hipDeviceAttributeMaxGridDimZ),
        ],
        max_shared_per_block: positive(hipDeviceAttributeMaxSharedMemoryPerBlock).into(),
        priority_least: least,
        priority_greatest: greatest,
        hardware_queues: hardware_queues(std::env::var("GPU_MAX_HW_QUEUES").ok().as_deref()),
        memory_pools: attribute(api, ordinal, hipDeviceAttributeMemoryPoolsSupported) == Some(1)
            && api.hipMemPoolCreate.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_budget_follows_the_vendors_variable_where_it_makes_sense() {
        for (value, queues) in [
            (None, 4),
            (Some("1"), 1),
            (Some(" 8 "), 8),
            (Some("0"), 4),
            (Some("-1"), 4),
            (Some("many"), 4),
        ] {
            assert_eq!(hardware_queues(value), queues, "{value:?}");
        }
    }

    #[test]
    fn numbers_of_the_vendor_have_our_names() {
        assert_eq!(our_priority(0), Priority::Normal);
        assert_eq!(our_priority(-1), Priority::High);
        assert_eq!(our_priority(1), Priority::Low);
    }
}
