//! Host devices: the CPU, driven like a GPU. One pool of workers serves them all.

use super::{
    Addr, Args, Arrange, Backend, Callback, Code, CompileOptions, DeviceInfo, Error, EventState, Fence,
    FunctionInfo, Gate, HostKernel, HostSettings, NativeHandle, NewStream, Patience, Place, PointerFacts,
    Priority, RawEvent, RawFunction, RawModule, RawStream, Result, Shape, Status, StreamSpec,
};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

mod device;
mod event;
mod futex;
mod memory;
mod module;
mod pool;
mod source;
mod stream;
#[cfg(test)]
mod tests;
mod threads;
mod warm;
mod work;

use device::{lend, Device, Lent};
use event::{Event, Record};
use pool::{Pool, SHARED_BYTES};
use stream::Op;
pub use work::thread_is_inside_user_code as inside_user_code;

const MAX_DEVICES: u32 = 1024;
const MAX_THREADS: u32 = 1024;
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// How long the end of the process waits for blocks under way.
const EXIT_PATIENCE: Duration = Duration::from_millis(200);
const PAGE: u64 = 4096;

static BACKEND: OnceCell<&'static HostBackend> = OnceCell::new();

/// The process's host devices, set up by the first call.
pub fn load(settings: HostSettings) -> Result<&'static dyn Backend> {
    BACKEND
        .get_or_try_init(|| HostBackend::new(settings))
        .map(|backend| *backend as &dyn Backend)
}

/// True once a worker has been started.
pub fn fork_unsafe() -> bool {
    BACKEND.get().is_some_and(|backend| backend.fork_unsafe())
}

/// Stops the workers at the end of the process.
pub fn park_for_exit() {
    if let Some(backend) = BACKEND.get() {
        backend.park_for_exit();
    }
}

/// The host devices of a process.
pub struct HostBackend {
    devices: &'static [Device],
    pool: &'static Pool,
    /// Pinned memory: address to size.
    pinned: Mutex<HashMap<u64, u64>>,
}

impl HostBackend {
    /// Sets the devices up, for the rest of the process. Starts no thread.
    pub fn new(config: HostSettings) -> Result<&'static HostBackend> {
        let HostSettings {
            devices,
            threads,
            memory,
        } = config;
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("{devices} host devices; there must be from 1 to {MAX_DEVICES}"),
            ));
        }
        let capacity = if memory == 0 {
            machine_memory() / u64::from(devices)
        } else {
            memory
        };
        let mut list = Vec::new();
        list.try_reserve_exact(devices as usize).map_err(|_| {
            Error::new(
                Status::OutOfMemory,
                format!("no memory for {devices} host devices"),
            )
        })?;
        list.extend((0..devices).map(|ordinal| Device::new(ordinal, capacity)));
        // Workers and streams refer to them until the process ends.
        Ok(Box::leak(Box::new(HostBackend {
            devices: Vec::leak(list),
            pool: Box::leak(Box::new(Pool::new(threads)?)),
            pinned: Mutex::default(),
        })))
    }

    /// For the process's `atexit` handler: stops the workers at the next block or operation, for good, and waits
    /// at most 200 ms for that. Work is refused from now on, and waits for unfinished work end with an error.
    pub fn park_for_exit(&self) {
        self.pool.park_for_exit(EXIT_PATIENCE);
        for device in self.devices {
            for stream in device.all_streams() {
                stream.wake();
            }
        }
    }

    fn device(&self, device: u32) -> Result<&'static Device> {
        self.devices.get(device as usize).ok_or_else(|| {
            Error::new(
                Status::InvalidDevice,
                format!(
                    "no host device {device}; there are {}, counted from 0",
                    self.devices.len()
                ),
            )
        })
    }
}

fn machine_memory() -> u64 {
    // SAFETY: sysconf only answers numbers.
    let (pages, page) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    u64::try_from(pages)
        .unwrap_or(0)
        .saturating_mul(u64::try_from(page).unwrap_or(0))
}

fn stream_of(raw: RawStream) -> Result<Lent> {
    lend(raw).ok_or_else(|| Error::new(Status::InvalidHandle, format!("{:#x} is no stream", raw.0)))
}

fn event_of(raw: RawEvent) -> Result<ManuallyDrop<Arc<Event>>> {
    if raw.0 == 0 {
        return Err(Error::new(Status::InvalidHandle, "0x0 is no event"));
    }
    // SAFETY: raw events are made by `event_create`, which keeps the Arc alive until `event_destroy`, and the trait
    // promises that nobody uses a raw event after that.
    Ok(ManuallyDrop::new(unsafe { Arc::from_raw(raw.0 as *const Event) }))
}

/// The number that a GPU runtime would give a priority.
fn native_priority(priority: Priority) -> i32 {
    match priority {
        Priority::High => -1,
        Priority::Normal => 0,
        Priority::Low => 1,
    }
}

/// What a kernel asks of a block.
#[derive(Clone, Copy)]
struct Needs {
    /// The most threads that it runs with.
    max_threads: u32,
    /// Bytes of shared memory that every block has.
    static_shared: u64,
}

/// A kernel's code, and what it needs.
#[inline]
fn kernel_of<'a>(code: Code<'a>) -> (&'a HostKernel, Needs) {
    match code {
        Code::Host(kernel) => {
            let needs = Needs {
                max_threads: MAX_THREADS,
                static_shared: 0,
            };
            (kernel, needs)
        }
        Code::Function(raw) => {
            let function = module::function_of(raw);
            let needs = Needs {
                max_threads: function.max_threads,
                static_shared: function.static_shared_bytes,
            };
            (&function.kernel, needs)
        }
    }
}

/// Refuses more shared memory than a block may have.
#[inline]
fn check_shared(dynamic: u64, needs: Needs) -> Result<()> {
    let static_shared = needs.static_shared;
    match dynamic.checked_add(static_shared) {
        Some(all) if all <= SHARED_BYTES => Ok(()),
        _ => Err(Error::new(
            Status::InvalidArgument,
            format!(
                "a block asks for {dynamic} bytes of dynamic and {static_shared} bytes of static shared memory; the limit \
                 of both together is {SHARED_BYTES}"
            ),
        )),
    }
}

fn check_shape(shape: &Shape, needs: Needs) -> Result<()> {
    let most = needs.max_threads;
    let within = |value: &[u32; 3], most: &[u32; 3]| value.iter().zip(most).all(|(v, m)| *v >= 1 && v <= m);
    if !within(&shape.grid, &MAX_GRID) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "a grid of {:?} blocks; each must be from 1 to {MAX_GRID:?}",
                shape.grid
            ),
        ));
    }
    let threads: u64 = shape.block.iter().map(|&n| u64::from(n)).product();
    if !within(&shape.block, &MAX_BLOCK) || threads > u64::from(most) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "a block of {:?} threads; each must be from 1 to {MAX_BLOCK:?} and all together at most {most}",
                shape.block
            ),
        ));
    }
    check_shared(shape.shared_bytes, needs)
}

impl Backend for HostBackend {
    fn name(&self) -> &'static str {
        "host"
    }

    fn version(&self) -> String {
        format!(
            "{}, built in, {} worker threads",
            env!("CARGO_PKG_VERSION"),
            self.pool.threads()
        )
    }

    fn path(&self) -> String {
        String::new()
    }

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn device_info(&self, device: u32) -> Result<DeviceInfo> {
        let memory = &self.device(device)?.memory;
        let mut uuid = *b"taskgpu-host\0\0\0\0";
        uuid[12..].copy_from_slice(&device.to_be_bytes());
        Ok(DeviceInfo {
            name: format!("Host device {device}"),
            arch: std::env::consts::ARCH.into(),
            uuid,
            pci: String::new(),
            total_memory: memory.capacity(),
            compute_units: self.pool.threads(),
            warp_size: 1,
            max_threads_per_block: MAX_THREADS,
            max_block: MAX_BLOCK,
            max_grid: MAX_GRID,
            max_shared_per_block: SHARED_BYTES,
            priority_least: native_priority(Priority::Low),
            priority_greatest: native_priority(Priority::High),
            hardware_queues: self.pool.threads(),
            memory_pools: true,
        })
    }

    fn fork_unsafe(&self) -> bool {
        self.pool.started()
    }

    fn open(&self, device: u32) -> Result<()> {
        self.device(device).map(drop)
    }

    fn binds(&self) -> bool {
        false
    }

    fn bind(&self, device: u32) -> Result<()> {
        self.device(device).map(drop)
    }

    fn memory(&self, device: u32) -> Result<(u64, u64)> {
        let memory = &self.device(device)?.memory;
        Ok((memory.free_bytes(), memory.capacity()))
    }

    fn device_synchronize(&self, device: u32) -> Result<()> {
        // The marks first: work that comes in while we wait does not prolong the wait.
        let streams = self.device(device)?.all_streams();
        let marked: Vec<_> = streams
            .into_iter()
            .map(|stream| (stream.mark(), stream))
            .collect();
        for (mark, stream) in marked {
            stream.block(self.pool, mark, None)?;
        }
        Ok(())
    }

    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool> {
        self.device(device)?;
        self.device(peer)?;
        Ok(device != peer)
    }

    fn enable_peer(&self, device: u32, peer: u32) -> Result<()> {
        if self.can_access_peer(device, peer)? {
            Ok(())
        } else {
            Err(Error::new(
                Status::InvalidArgument,
                format!("host device {device} is no peer of itself"),
            ))
        }
    }

    fn device_native(&self, device: u32) -> Result<u64> {
        self.device(device).map(|d| u64::from(d.ordinal))
    }

    fn stream_create(&self, device: u32, spec: StreamSpec) -> Result<NewStream> {
        let raw = self.device(device)?.create(spec.priority);
        Ok(NewStream {
            raw,
            effective: spec.priority,
            native_priority: native_priority(spec.priority),
        })
    }

    fn stream_import(&self, device: u32, native: NativeHandle) -> Result<NewStream> {
        let value = native.value();
        if value == 2 {
            return Err(Error::new(
                Status::InvalidArgument,
                "the per-thread default stream (handle 2) cannot be imported: it is another one on each thread",
            ));
        }
        let (raw, effective) = self.device(device)?.import(value).ok_or_else(|| {
            Error::new(
                Status::InvalidArgument,
                format!("{value:#x} is no live stream of host device {device}"),
            )
        })?;
        Ok(NewStream {
            raw,
            effective,
            native_priority: native_priority(effective),
        })
    }

    fn stream_destroy(&self, device: u32, stream: RawStream) {
        if let Ok(device) = self.device(device) {
            device.destroy(stream);
        }
    }

    fn stream_native(&self, _device: u32, stream: RawStream) -> Result<*mut c_void> {
        Ok(Arc::as_ptr(&*stream_of(stream)?) as *mut c_void)
    }

    fn stream_idle(&self, _device: u32, stream: RawStream) -> Result<bool> {
        let stream = stream_of(stream)?;
        Ok(stream.reached(stream.mark()))
    }

    fn stream_capturing(&self, _device: u32, stream: RawStream) -> Result<bool> {
        stream_of(stream).map(|_| false)
    }

    fn stream_wait_event(&self, _device: u32, stream: RawStream, event: RawEvent) -> Result<()> {
        match event_of(event)?.last() {
            Some(record) if !record.done() => stream_of(stream)?.enqueue(self.pool, Op::Wait(record)),
            _ => Ok(()),
        }
    }

    fn stream_callback(&self, _device: u32, stream: RawStream, callback: Callback) -> Result<()> {
        stream_of(stream)?.enqueue(self.pool, Op::Callback(callback))
    }

    fn stream_gate(&self, _device: u32, stream: RawStream, arrange: Arrange<'_>) -> Result<()> {
        let (pool, record) = (self.pool, Arc::new(Record::default()));
        let opens = record.clone();
        arrange(Gate::new(move || opens.reach(pool)))?;
        stream_of(stream)?.enqueue(pool, Op::Wait(record))
    }

    fn fence(&self, device: u32, stream: RawStream) -> Result<Fence> {
        Ok(Fence {
            device,
            stream,
            mark: stream_of(stream)?.mark(),
        })
    }

    fn fence_reached(&self, fence: &mut Fence) -> Result<bool> {
        if stream_of(fence.stream)?.reached(fence.mark) {
            Ok(true)
        } else if self.pool.exiting() {
            Err(stream::exiting())
        } else {
            Ok(false)
        }
    }

    fn fence_block(&self, fence: &mut Fence, patience: Patience) -> Result<bool> {
        stream_of(fence.stream)?.block(self.pool, fence.mark, patience)
    }

    fn fence_drop(&self, _fence: Fence) {}

    fn event_create(&self, device: u32, timing: bool) -> Result<RawEvent> {
        self.device(device)?;
        Ok(RawEvent(
            Arc::into_raw(Arc::new(Event::new(device, timing))) as u64
        ))
    }

    fn event_destroy(&self, _device: u32, event: RawEvent) {
        if let Ok(event) = event_of(event) {
            drop(ManuallyDrop::into_inner(event));
        }
    }

    fn event_record(&self, _device: u32, event: RawEvent, stream: RawStream) -> Result<()> {
        let (event, stream) = (event_of(event)?, stream_of(stream)?);
        if event.device != stream.device().ordinal {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "an event of host device {} cannot be recorded on a stream of host device {}",
                    event.device,
                    stream.device().ordinal
                ),
            ));
        }
        stream.prepare(self.pool)?;
        event.renew(|record| stream.push(self.pool, Op::Record(record)));
        Ok(())
    }

    fn event_state(&self, _device: u32, event: RawEvent) -> Result<EventState> {
        let state = event_of(event)?.state();
        if state == EventState::Pending && self.pool.exiting() {
            return Err(stream::exiting());
        }
        Ok(state)
    }

    fn event_block(&self, _device: u32, event: RawEvent, patience: Patience) -> Result<bool> {
        event_of(event)?.block(self.pool, patience)
    }

    fn event_elapsed(&self, _device: u32, start: RawEvent, end: RawEvent) -> Result<f64> {
        let (start, end) = (event_of(start)?, event_of(end)?);
        if start.device != end.device {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "the events belong to two host devices, {} and {}",
                    start.device, end.device
                ),
            ));
        }
        let time = |event: &Event, which: &str| {
            if !event.timing {
                return Err(Error::new(
                    Status::InvalidArgument,
                    format!("the {which} event has no timing"),
                ));
            }
            event
                .time()
                .ok_or_else(|| {
                    Error::new(
                        Status::InvalidArgument,
                        format!("the {which} event was never recorded"),
                    )
                })?
                .ok_or_else(|| Error::new(Status::NotReady, format!("the {which} event is pending")))
        };
        let (from, to) = (time(&start, "start")?, time(&end, "end")?);
        Ok((to as i64 - from as i64) as f64 * 1e-9)
    }

    fn event_native(&self, _device: u32, event: RawEvent) -> Result<*mut c_void> {
        event_of(event).map(|e| Arc::as_ptr(&*e) as *mut c_void)
    }

    fn alloc(&self, device: u32, bytes: u64) -> Result<Addr> {
        self.device(device)?.memory.take(bytes, None)
    }

    fn free(&self, device: u32, addr: Addr) -> Result<()> {
        self.device(device)?.memory.put(addr)
    }

    fn alloc_async(&self, device: u32, stream: RawStream, bytes: u64) -> Result<Addr> {
        let stream = stream_of(stream)?;
        self.device(device)?
            .memory
            .take(bytes, Some(Arc::as_ptr(&stream) as u64))
    }

    fn free_async(&self, device: u32, stream: RawStream, addr: Addr) -> Result<()> {
        let stream = stream_of(stream)?;
        if stream.device().ordinal != device {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "memory of host device {device} cannot be given back on a stream of host device {}",
                    stream.device().ordinal
                ),
            ));
        }
        stream.prepare(self.pool)?;
        let memory = &self.device(device)?.memory;
        let (size, token) = memory.put_pending(addr, Arc::as_ptr(&stream) as u64)?;
        stream.push(self.pool, Op::Release { size, token });
        Ok(())
    }

    fn trim(&self, device: u32, keep: u64) -> Result<()> {
        self.device(device)?.memory.trim(keep);
        Ok(())
    }

    fn host_alloc(&self, device: u32, bytes: u64) -> Result<Addr> {
        self.device(device)?;
        let refused = || {
            Error::new(
                Status::OutOfMemory,
                format!("no {bytes} bytes of pinned host memory"),
            )
        };
        let size = bytes.max(1).checked_next_multiple_of(PAGE).ok_or_else(refused)?;
        let address = memory::os_alloc(size, PAGE).ok_or_else(refused)?;
        self.pinned.lock().insert(address, size);
        Ok(Addr::from_backend(address))
    }

    fn host_free(&self, device: u32, addr: Addr) -> Result<()> {
        self.device(device)?;
        let unknown = || {
            Error::new(
                Status::InvalidArgument,
                format!("no pinned host memory begins at {:#x}", addr.value()),
            )
        };
        let size = self.pinned.lock().remove(&addr.value()).ok_or_else(unknown)?;
        memory::os_free(addr.value(), size, PAGE);
        Ok(())
    }

    fn host_register(&self, device: u32, addr: Addr, bytes: u64) -> Result<()> {
        self.device(device)?;
        if addr.is_null() || addr.value().checked_add(bytes).is_none() {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "{bytes} bytes at {:#x} are no memory of the program",
                    addr.value()
                ),
            ));
        }
        // Workers reach all memory of the process as it is.
        Ok(())
    }

    fn host_unregister(&self, device: u32, _addr: Addr) -> Result<()> {
        self.device(device).map(drop)
    }

    fn pointer_facts(&self, _addr: Addr) -> Option<PointerFacts> {
        None
    }

    fn memory_is_host(&self) -> bool {
        true
    }

    fn memcpy(
        &self,
        _device: u32,
        stream: RawStream,
        dst: Addr,
        _dst_place: Place,
        src: Addr,
        _src_place: Place,
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let copy = work::Copy::new(dst.value(), src.value(), bytes)?;
        stream_of(stream)?.enqueue(self.pool, Op::Copy(copy))
    }

    fn fill(&self, _device: u32, stream: RawStream, dst: Addr, pattern: &[u8], count: u64) -> Result<()> {
        let fill = work::Fill::new(dst.value(), pattern, count)?;
        if count == 0 {
            return Ok(());
        }
        stream_of(stream)?.enqueue(self.pool, Op::Fill(fill))
    }

    fn launch(
        &self,
        _device: u32,
        stream: RawStream,
        code: Code<'_>,
        shape: &Shape,
        args: Args<'_>,
    ) -> Result<()> {
        let (kernel, needs) = kernel_of(code);
        let stream = stream_of(stream)?;
        stream.prepare(self.pool)?;
        check_shape(shape, needs)?;
        let launch = work::Launch::new(kernel, shape, args)?;
        stream.push(self.pool, Op::Launch(launch));
        Ok(())
    }

    fn module_load(&self, device: u32, image: &[u8]) -> Result<RawModule> {
        self.device(device)?;
        module::load(image)
    }

    fn module_compile(&self, device: u32, source: &str, options: &CompileOptions) -> Result<RawModule> {
        self.device(device)?;
        module::compile(source, options)
    }

    fn module_destroy(&self, _device: u32, module: RawModule) {
        module::destroy(module);
    }

    fn module_function(&self, _device: u32, module: RawModule, name: &str) -> Result<RawFunction> {
        module::function(module, name)
    }

    fn module_global(&self, _device: u32, module: RawModule, name: &str) -> Result<(Addr, u64)> {
        module::global(module, name)
    }

    fn function_info(&self, device: u32, code: Code<'_>) -> Result<FunctionInfo> {
        self.device(device)?;
        let (_, needs) = kernel_of(code);
        Ok(FunctionInfo {
            max_threads_per_block: needs.max_threads,
            registers: 0,
            static_shared_bytes: needs.static_shared,
            local_bytes: 0,
        })
    }

    fn function_block_size(&self, device: u32, code: Code<'_>, shared_bytes: u64) -> Result<u32> {
        self.device(device)?;
        let (_, needs) = kernel_of(code);
        check_shared(shared_bytes, needs)?;
        // A block is one call of a function that loops over its threads: the longer the loop, the less the call costs.
        Ok(needs.max_threads)
    }
}
