//! One device: its primary context, our memory pool on it, and what is known about it.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use parking_lot::Mutex;

use super::api::{
    call, Answer, Api, CuContext, CuDevice, CuMemAccessDesc, CuMemLocation, CuMemPool, CuMemPoolProps,
    ATTR_CAPABILITY_MAJOR, ATTR_CAPABILITY_MINOR, ATTR_MAX_BLOCK_DIM_X, ATTR_MAX_GRID_DIM_X,
    ATTR_MAX_SHARED_PER_BLOCK, ATTR_MAX_SHARED_PER_BLOCK_OPTIN, ATTR_MAX_THREADS_PER_BLOCK,
    ATTR_MEMORY_POOLS_SUPPORTED, ATTR_MULTIPROCESSOR_COUNT, ATTR_WARP_SIZE, CAPTURE_MODE_RELAXED,
    MEMPOOL_ATTR_RELEASE_THRESHOLD, MEM_ACCESS_READ_WRITE, MEM_ALLOCATION_TYPE_PINNED,
    MEM_LOCATION_TYPE_DEVICE,
};
use super::codes::{is_sticky, PEER_ACCESS_ALREADY_ENABLED, SUCCESS};
use super::gate::Flag;
use crate::backend::{DeviceInfo, Error, Priority, Result, Status};

/// A device of the driver.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) api: &'static Api,
    pub(super) ordinal: u32,
    pub(super) cu: CuDevice,
    /// What the driver told without a context. The priority range is added once there is one.
    info: DeviceInfo,
    /// The primary context; NULL until `open`. Never released: other users of it may be in the middle of a call
    /// at exit.
    context: AtomicPtr<c_void>,
    opening: Mutex<()>,
    /// Our own pool; NULL where the device has none.
    pool: AtomicPtr<c_void>,
    least: AtomicI32,
    greatest: AtomicI32,
    /// The first code that said that the context is gone; 0 while it is well.
    lost: AtomicI32,
    /// Events for blocking waits, free to be recorded by the next one.
    pub(super) wait_events: SegQueue<usize>,
    /// Flags for gates, free to be used by the next one.
    pub(super) flags: Arc<SegQueue<Flag>>,
}

/// While it lives, the thread's current context is the device's and its calls count as safe beside a capture.
#[must_use]
pub(super) struct Entered<'a> {
    _current: Current<'a>,
    _relaxed: Relaxed,
}

/// While it lives, the thread's calls do not disturb a capture that another thread runs.
pub(super) struct Relaxed {
    api: &'static Api,
    before: c_int,
}

impl Relaxed {
    #[inline]
    pub(super) fn enter(api: &'static Api) -> Relaxed {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: `mode` is writable. The call needs no context.
        let answer = unsafe { call!(api, cuThreadExchangeStreamCaptureMode(&mut mode)) };
        Relaxed {
            api,
            before: if answer.code == SUCCESS {
                mode
            } else {
                CAPTURE_MODE_RELAXED
            },
        }
    }
}

impl Drop for Relaxed {
    #[inline]
    fn drop(&mut self) {
        if self.before != CAPTURE_MODE_RELAXED {
            // SAFETY: the field is writable and holds the mode that was in force before.
            let _ = unsafe { call!(self.api, cuThreadExchangeStreamCaptureMode(&mut self.before)) };
        }
    }
}

impl Device {
    /// Asks the driver about device `ordinal`. Creates no context.
    pub(super) fn new(api: &'static Api, ordinal: u32) -> Result<Device> {
        let mut cu = 0;
        // SAFETY: `cu` is writable.
        let answer = unsafe { call!(api, cuDeviceGet(&mut cu, ordinal as c_int)) };
        if answer.code != SUCCESS {
            return Err(api.failure(answer, &format!("cannot get CUDA device {ordinal}")));
        }
        let info = describe(api, ordinal, cu)?;
        Ok(Device {
            api,
            ordinal,
            cu,
            info,
            context: AtomicPtr::new(null_mut()),
            opening: Mutex::new(()),
            pool: AtomicPtr::new(null_mut()),
            least: AtomicI32::new(0),
            greatest: AtomicI32::new(0),
            lost: AtomicI32::new(0),
            wait_events: SegQueue::new(),
            flags: Arc::default(),
        })
    }

    pub(super) fn info(&self) -> DeviceInfo {
        let (least, greatest) = self.priorities();
        DeviceInfo {
            priority_least: least,
            priority_greatest: greatest,
            memory_pools: self.info.memory_pools && (self.context().is_null() || !self.pool().is_null()),
            ..self.info.clone()
        }
    }

    /// Most bytes of shared memory of one block.
    pub(super) fn max_shared(&self) -> u64 {
        self.info.max_shared_per_block
    }

    /// Compute capability, as `sm_90`.
    pub(super) fn arch(&self) -> &str {
        &self.info.arch
    }

    /// The primary context; NULL before `open`.
    #[inline]
    pub(super) fn context(&self) -> CuContext {
        self.context.load(Ordering::Acquire)
    }

    /// Our memory pool; NULL where there is none.
    #[inline]
    pub(super) fn pool(&self) -> CuMemPool {
        self.pool.load(Ordering::Acquire)
    }

    /// The vendor's least and most urgent priority; both 0 before `open`.
    pub(super) fn priorities(&self) -> (i32, i32) {
        (
            self.least.load(Ordering::Acquire),
            self.greatest.load(Ordering::Acquire),
        )
    }

    /// The vendor's number for one of our priorities. NORMAL is what every other stream of the process has
    /// that names no priority (0), so that our streams and a framework's are equals by default.
    pub(super) fn native_priority(&self, priority: Priority) -> i32 {
        let (least, greatest) = self.priorities();
        match priority {
            Priority::Normal => 0.clamp(greatest.min(least), least.max(greatest)),
            Priority::Low => least,
            Priority::High => greatest,
        }
    }

    /// Our name for a number of the vendor's: what is more urgent than the default is HIGH.
    pub(super) fn our_priority(native: i32) -> Priority {
        match native {
            0 => Priority::Normal,
            n if n < 0 => Priority::High,
            _ => Priority::Low,
        }
    }

    /// Retains the primary context and makes the pool, once.
    pub(super) fn open(&self) -> Result<CuContext> {
        let context = self.context();
        if !context.is_null() {
            return Ok(context);
        }
        self.open_now()
    }

    #[cold]
    fn open_now(&self) -> Result<CuContext> {
        let _one = self.opening.lock();
        if !self.context().is_null() {
            return Ok(self.context());
        }
        let mut context = null_mut();
        let _relaxed = Relaxed::enter(self.api);
        // SAFETY: `context` is writable, `cu` a device of the driver.
        let answer = unsafe { call!(self.api, cuDevicePrimaryCtxRetain(&mut context, self.cu)) };
        self.check(answer, || "cannot open the device".into())?;
        let current = Current::push(self, context)?;
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are writable; the context is current.
        let answer = unsafe { call!(self.api, cuCtxGetStreamPriorityRange(&mut least, &mut greatest)) };
        self.check(answer, || "cannot ask for the range of stream priorities".into())?;
        self.least.store(least, Ordering::Release);
        self.greatest.store(greatest, Ordering::Release);
        if self.info.memory_pools {
            // Without a pool memory is still to be had, so a failure here fails nothing.
            self.pool
                .store(self.make_pool().unwrap_or(null_mut()), Ordering::Release);
        }
        drop(current);
        self.context.store(context, Ordering::Release);
        Ok(context)
    }

    /// A pool of our own: what others set on the default one is no business of ours, nor ours of theirs.
    fn make_pool(&self) -> Option<CuMemPool> {
        let (create, set) = (self.api.cuMemPoolCreate?, self.api.cuMemPoolSetAttribute?);
        self.api.cuMemAllocFromPoolAsync?;
        self.api.cuMemFreeAsync?;
        let properties = CuMemPoolProps {
            alloc_type: MEM_ALLOCATION_TYPE_PINNED,
            handle_types: 0,
            location: self.location(),
            win32_security_attributes: null_mut(),
            reserved: [0; 64],
        };
        let mut pool = null_mut();
        // SAFETY: `pool` is writable, `properties` complete.
        if unsafe { create(&mut pool, &properties) } != SUCCESS || pool.is_null() {
            return None;
        }
        let mut keep = u64::MAX;
        // SAFETY: the attribute is a 64-bit number. Should it be refused, memory goes back to the device at each
        // synchronization: slower and still right.
        let _ = unsafe { set(pool, MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut keep).cast()) };
        Some(pool)
    }

    fn location(&self) -> CuMemLocation {
        CuMemLocation {
            kind: MEM_LOCATION_TYPE_DEVICE,
            id: self.cu,
        }
    }

    /// Makes the device's context current for good. A look is cheaper than setting anew what is current already.
    #[inline]
    pub(super) fn bind(&self) -> Result<()> {
        let context = self.open()?;
        let mut current = null_mut();
        // SAFETY: `current` is writable.
        let answer = unsafe { call!(self.api, cuCtxGetCurrent(&mut current)) };
        if answer.code == SUCCESS && current == context {
            return Ok(());
        }
        // SAFETY: the context is retained for good.
        let answer = unsafe { call!(self.api, cuCtxSetCurrent(context)) };
        self.check(answer, || "cannot make the device current".into())
    }

    /// Makes the device's context current until the result is dropped.
    pub(super) fn enter(&self) -> Result<Entered<'_>> {
        let context = self.open()?;
        let relaxed = Relaxed::enter(self.api);
        Ok(Entered {
            _current: Current::push(self, context)?,
            _relaxed: relaxed,
        })
    }

    /// Lets this device reach the memory of `peer`, pools included.
    pub(super) fn enable_peer(&self, peer: &Device) -> Result<()> {
        let peer_context = peer.open()?;
        {
            let _here = self.enter()?;
            // SAFETY: both contexts are retained for good.
            let answer = unsafe { call!(self.api, cuCtxEnablePeerAccess(peer_context, 0)) };
            if answer.code != PEER_ACCESS_ALREADY_ENABLED {
                self.check(answer, || {
                    format!(
                        "cannot enable access to the memory of CUDA device {}",
                        peer.ordinal
                    )
                })?;
            }
        }
        let pool = peer.pool();
        if let (false, Some(set)) = (pool.is_null(), self.api.cuMemPoolSetAccess) {
            let access = CuMemAccessDesc {
                location: self.location(),
                flags: MEM_ACCESS_READ_WRITE,
            };
            let _there = peer.enter()?;
            // SAFETY: one descriptor; the pool is never destroyed.
            let code = unsafe { set(pool, &access, 1) };
            self.check(
                Answer {
                    code,
                    function: "cuMemPoolSetAccess",
                },
                || {
                    format!(
                        "cannot enable access to the memory pool of CUDA device {}",
                        peer.ordinal
                    )
                },
            )?;
        }
        Ok(())
    }

    /// Turns the vendor's answer into ours. `what` says what was tried, as the start of a sentence.
    #[inline]
    pub(super) fn check(&self, answer: Answer, what: impl FnOnce() -> String) -> Result<()> {
        if answer.code == SUCCESS {
            Ok(())
        } else {
            Err(self.failure(answer, &what()))
        }
    }

    /// The failure that `answer` is, with the device named in the text.
    #[cold]
    pub(super) fn failure(&self, answer: Answer, what: &str) -> Error {
        if !is_sticky(answer.code) {
            return self
                .api
                .failure(answer, &format!("CUDA device {}: {what}", self.ordinal));
        }
        let first = match self
            .lost
            .compare_exchange(0, answer.code, Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => answer.code,
            Err(first) => first,
        };
        let text = format!(
            "CUDA device {} failed and is lost for this process: {} ({}); seen when it was tried: {what}",
            self.ordinal,
            self.api.code_text(first),
            self.api.code_name(first)
        );
        Error::new(Status::DeviceLost, text).native(self.api.native(answer))
    }
}

/// Keeps a context pushed, if it had to be.
struct Current<'a> {
    api: &'a Api,
    pushed: bool,
}

impl<'a> Current<'a> {
    /// Asks what is current each time: others change it behind our back.
    fn push(device: &'a Device, context: CuContext) -> Result<Current<'a>> {
        let mut before = null_mut();
        // SAFETY: `before` is writable.
        let answer = unsafe { call!(device.api, cuCtxGetCurrent(&mut before)) };
        if answer.code == SUCCESS && before == context {
            return Ok(Current {
                api: device.api,
                pushed: false,
            });
        }
        // SAFETY: the context is retained for good.
        let answer = unsafe { call!(device.api, cuCtxPushCurrent_v2(context)) };
        device.check(answer, || "cannot make the device current".into())?;
        Ok(Current {
            api: device.api,
            pushed: true,
        })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = null_mut();
            // SAFETY: `popped` is writable; what is popped is what `push` pushed.
            let _ = unsafe { call!(self.api, cuCtxPopCurrent_v2(&mut popped)) };
        }
    }
}

/// The driver's text in a buffer of ours.
fn text(buffer: &[u8]) -> String {
    String::from_utf8_lossy(&buffer[..buffer.iter().position(|&b| b == 0).unwrap_or(buffer.len())])
        .into_owned()
}

/// How many hardware queues streams are spread over: the vendor documents 8 unless the variable says 1 to 32.
fn hardware_queues(variable: Option<&str>) -> u32 {
    variable
        .and_then(|v| v.trim().parse().ok())
        .filter(|n| (1..=32).contains(n))
        .unwrap_or(8)
}

fn describe(api: &'static Api, ordinal: u32, cu: CuDevice) -> Result<DeviceInfo> {
    let attribute = |number: c_int| -> Option<i32> {
        let mut value = 0;
        // SAFETY: `value` is writable. An attribute this driver does not know is an error and leaves it 0.
        (unsafe { (api.cuDeviceGetAttribute)(&mut value, number, cu) } == SUCCESS).then_some(value)
    };
    let positive = |number: c_int| attribute(number).and_then(|v| u32::try_from(v).ok()).unwrap_or(0);
    let triple = |first: c_int| [positive(first), positive(first + 1), positive(first + 2)];
    let mut name = [0u8; 256];
    // SAFETY: the buffer has the size that is passed.
    let answer = unsafe { call!(api, cuDeviceGetName(name.as_mut_ptr().cast(), 256, cu)) };
    if answer.code != SUCCESS {
        return Err(api.failure(
            answer,
            &format!("cannot ask for the name of CUDA device {ordinal}"),
        ));
    }
    let mut total = 0usize;
    // SAFETY: `total` is writable.
    let answer = unsafe { call!(api, cuDeviceTotalMem_v2(&mut total, cu)) };
    if answer.code != SUCCESS {
        return Err(api.failure(
            answer,
            &format!("cannot ask for the memory of CUDA device {ordinal}"),
        ));
    }
    let mut pci = [0u8; 32];
    // SAFETY: the buffer has the size that is passed. A virtual device without an address leaves it empty.
    if unsafe { (api.cuDeviceGetPCIBusId)(pci.as_mut_ptr().cast(), 32, cu) } != SUCCESS {
        pci[0] = 0;
    }
    let mut uuid = [0u8; 16];
    // The second form tells parts of one device (MIG) apart.
    let ask = api.cuDeviceGetUuid_v2.unwrap_or(api.cuDeviceGetUuid);
    // SAFETY: `uuid` is writable.
    if unsafe { ask(&mut uuid, cu) } != SUCCESS {
        uuid = [0; 16];
    }
    let shared = match positive(ATTR_MAX_SHARED_PER_BLOCK_OPTIN) {
        0 => positive(ATTR_MAX_SHARED_PER_BLOCK),
        n => n,
    };
    Ok(DeviceInfo {
        name: text(&name),
        arch: format!(
            "sm_{}{}",
            positive(ATTR_CAPABILITY_MAJOR),
            positive(ATTR_CAPABILITY_MINOR)
        ),
        uuid,
        pci: text(&pci).to_ascii_lowercase(),
        total_memory: total as u64,
        compute_units: positive(ATTR_MULTIPROCESSOR_COUNT),
        warp_size: positive(ATTR_WARP_SIZE),
        max_threads_per_block: positive(ATTR_MAX_THREADS_PER_BLOCK),
        max_block: triple(ATTR_MAX_BLOCK_DIM_X),
        max_grid: triple(ATTR_MAX_GRID_DIM_X),
        max_shared_per_block: u64::from(shared),
        priority_least: 0,
        priority_greatest: 0,
        hardware_queues: hardware_queues(std::env::var("CUDA_DEVICE_MAX_CONNECTIONS").ok().as_deref()),
        memory_pools: attribute(ATTR_MEMORY_POOLS_SUPPORTED) == Some(1) && api.cuMemPoolCreate.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_budget_follows_the_vendors_variable_where_it_makes_sense() {
        for (value, queues) in [
            (None, 8),
            (Some("1"), 1),
            (Some(" 32 "), 32),
            (Some("33"), 8),
            (Some("0"), 8),
            (Some("-1"), 8),
            (Some("many"), 8),
        ] {
            assert_eq!(hardware_queues(value), queues, "{value:?}");
        }
    }

    #[test]
    fn numbers_of_the_vendor_have_our_names() {
        assert_eq!(Device::our_priority(0), Priority::Normal);
        assert_eq!(Device::our_priority(-1), Priority::High);
        assert_eq!(Device::our_priority(-5), Priority::High);
        assert_eq!(Device::our_priority(1), Priority::Low);
    }
}
