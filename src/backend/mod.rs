//! The machines: one trait, three readings of it.
//!
//! A backend drives the devices of one vendor. It knows devices (by ordinal), streams, events, memory and
//! code. It knows nothing of tasks, handles or scopes. All its methods may be called from any thread at the
//! same time. Nothing here calls back into `core`.
//!
//! Rules every implementation keeps:
//! * It leaves the calling thread's current vendor device as it found it, on success and on error. Only
//!   [`Backend::bind`] changes it.
//! * It puts no work of its own on a caller's stream beyond what each method says.
//! * It leaves no expected vendor answer (not ready, peer already enabled) behind as the vendor's last error.
//! * Errors carry the vendor's code, name and function ([`Native`]), and a text with the value and the limit.
//!   A backend may name the device by ordinal in its text; the caller adds the index and the stream id.
//! * An object is used by nobody any more when its `_destroy` method is called.

use std::ffi::c_void;
use std::time::Duration;

mod cache;
mod common;
pub mod cuda;
mod dynamic;
mod error;
mod fill;
pub mod hip;
pub mod host;
mod image;
pub mod os;
mod types;

pub use error::{Detail, Error, Native, Result, Status};
pub use types::*;

/// The devices of one vendor.
pub trait Backend: Send + Sync + 'static {
    /// `"hip"`, `"cuda"` or `"host"`.
    fn name(&self) -> &'static str;

    /// The runtime's version and where it was found, for people.
    fn version(&self) -> String;

    /// The file the runtime was loaded from; empty for host devices.
    fn path(&self) -> String;

    /// How many devices there are. Creates no context.
    fn device_count(&self) -> u32;

    /// What a device is. Creates no context.
    fn device_info(&self, device: u32) -> Result<DeviceInfo>;

    /// True once a vendor runtime has been initialised in this process, or a worker thread started: a child
    /// of `fork` cannot use it then.
    fn fork_unsafe(&self) -> bool;

    /// Makes a device ready for use (retains its context). Called before anything below; repeats are cheap.
    fn open(&self, device: u32) -> Result<()>;

    /// False where the vendor has no notion of a thread's current device, so that nobody needs to call [`Backend::bind`].
    fn binds(&self) -> bool {
        true
    }

    /// Makes `device`, which is open, the calling thread's current vendor device.
    fn bind(&self, device: u32) -> Result<()>;

    /// Free and total bytes of device memory.
    fn memory(&self, device: u32) -> Result<(u64, u64)>;

    /// Waits for everything on the device, other people's streams included. Blocks.
    fn device_synchronize(&self, device: u32) -> Result<()>;

    /// Whether `device` can address memory of `peer` directly. A device is no peer of itself: `false`.
    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool>;

    /// Lets `device` address memory of `peer`, pools included. Already enabled is success.
    fn enable_peer(&self, device: u32, peer: u32) -> Result<()>;

    /// The vendor's number of the device (`CUdevice`, HIP ordinal).
    fn device_native(&self, device: u32) -> Result<u64>;

    /// Creates a stream.
    fn stream_create(&self, device: u32, spec: StreamSpec) -> Result<NewStream>;

    /// Wraps a vendor stream. The same native handle gives the same raw stream. Never destroyed by us.
    fn stream_import(&self, device: u32, native: NativeHandle) -> Result<NewStream>;

    /// Destroys a stream made by [`stream_create`](Backend::stream_create), or forgets an imported one. Work
    /// already queued finishes. May block until it has.
    fn stream_destroy(&self, device: u32, stream: RawStream);

    /// The vendor's handle.
    fn stream_native(&self, device: u32, stream: RawStream) -> Result<*mut c_void>;

    /// True when everything queued has finished. Leaves a capture alone (answers [`Status::Capturing`]).
    /// May be called from helper threads. On HIP this may enqueue a marker, so nobody polls with it.
    fn stream_idle(&self, device: u32, stream: RawStream) -> Result<bool>;

    /// True while somebody captures the stream into a graph.
    fn stream_capturing(&self, device: u32, stream: RawStream) -> Result<bool>;

    /// Later work on `stream` waits for the event's last record at the time of this call, which may have been
    /// made on another device of this backend.
    fn stream_wait_event(&self, device: u32, stream: RawStream, event: RawEvent) -> Result<()>;

    /// Calls `callback` exactly once after the work queued so far, also when the device fails; later work waits
    /// for it. On an error answered here, it is not called.
    fn stream_callback(&self, device: u32, stream: RawStream, callback: Callback) -> Result<()>;

    /// Holds later work on `stream` back until the gate is opened, by whatever thread, without a call into the
    /// vendor's runtime. How streams wait for what happens in another backend.
    ///
    /// `arrange` sees to it that the gate gets opened, and is called before the stream is held: a vendor call made while
    /// a stream is held can find the runtime locked by a thread that waits for the device to become idle.
    fn stream_gate(&self, device: u32, stream: RawStream, arrange: Arrange<'_>) -> Result<()> {
        let _ = (stream, arrange);
        Err(Error::new(
            Status::NotSupported,
            format!(
                "streams of {} device {device} cannot wait for another runtime's work",
                self.name()
            ),
        ))
    }

    /// Marks the point "everything queued so far", for a wait. Costs at most one event on the stream.
    fn fence(&self, device: u32, stream: RawStream) -> Result<Fence>;

    /// True when the fence has been reached. Cheap enough to spin on. [`Status::DeviceLost`] ends every wait.
    fn fence_reached(&self, fence: &mut Fence) -> Result<bool>;

    /// Asks up to `times` times in a row, and stops when the answer is yes. For backends that can ask again for less than
    /// they can ask once.
    fn fence_poll(&self, fence: &mut Fence, times: u32) -> Result<bool> {
        for _ in 0..times {
            if self.fence_reached(fence)? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }

    /// Waits up to this long are cheaper polled to their end than slept through: some forty times what going to sleep
    /// and being woken adds to a wait.
    fn worth_polling(&self) -> Duration {
        Duration::from_micros(100)
    }

    /// Sleeps until the fence is reached (`true`) or the patience is over (`false`).
    fn fence_block(&self, fence: &mut Fence, patience: Patience) -> Result<bool>;

    /// Gives the fence's resources back.
    fn fence_drop(&self, fence: Fence);

    /// Creates an event.
    fn event_create(&self, device: u32, timing: bool) -> Result<RawEvent>;

    /// Destroys an event. Never blocks; waits already queued for it still happen.
    fn event_destroy(&self, device: u32, event: RawEvent);

    /// Records the event on a stream of the same device, replacing an earlier record.
    fn event_record(&self, device: u32, event: RawEvent, stream: RawStream) -> Result<()>;

    /// Whether the last record has been reached. Cheap enough to spin on.
    fn event_state(&self, device: u32, event: RawEvent) -> Result<EventState>;

    /// Sleeps until the last record is reached (`true`) or the patience is over (`false`).
    fn event_block(&self, device: u32, event: RawEvent, patience: Patience) -> Result<bool>;

    /// Seconds between the last records of two events of one device, both reached and with timing.
    fn event_elapsed(&self, device: u32, start: RawEvent, end: RawEvent) -> Result<f64>;

    /// The vendor's handle.
    fn event_native(&self, device: u32, event: RawEvent) -> Result<*mut c_void>;

    /// Allocates device memory, usable at once by every stream. `bytes` is not 0.
    fn alloc(&self, device: u32, bytes: u64) -> Result<Addr>;

    /// Frees memory of [`alloc`](Backend::alloc) or [`alloc_async`](Backend::alloc_async) that no queued work uses
    /// any more. Blocks only where the vendor's own call does.
    fn free(&self, device: u32, addr: Addr) -> Result<()>;

    /// Allocates from our own pool in the order of `stream`.
    fn alloc_async(&self, device: u32, stream: RawStream, bytes: u64) -> Result<Addr>;

    /// Gives memory back to the pool after the work queued so far on `stream`, a stream of the same device.
    fn free_async(&self, device: u32, stream: RawStream, addr: Addr) -> Result<()>;

    /// Gives what the pool holds unused, above `keep` bytes, back to the device.
    fn trim(&self, device: u32, keep: u64) -> Result<()>;

    /// Allocates pinned host memory that every device of this backend can reach.
    fn host_alloc(&self, device: u32, bytes: u64) -> Result<Addr>;

    /// Frees pinned host memory that no queued work uses any more. Blocks only where the vendor's own call does.
    fn host_free(&self, device: u32, addr: Addr) -> Result<()>;

    /// Pins memory of the caller.
    fn host_register(&self, device: u32, addr: Addr, bytes: u64) -> Result<()>;

    /// Unpins it.
    fn host_unregister(&self, device: u32, addr: Addr) -> Result<()>;

    /// What the vendor knows about a pointer that is not in our own books; `None` if nothing.
    fn pointer_facts(&self, addr: Addr) -> Option<PointerFacts>;

    /// True where device memory is memory of the host, which needs no pinning to be reached.
    fn memory_is_host(&self) -> bool {
        false
    }

    /// Copies in the order of `stream`. Both places belong to this backend. Pageable host memory may block.
    #[allow(clippy::too_many_arguments)]
    fn memcpy(
        &self,
        device: u32,
        stream: RawStream,
        dst: Addr,
        dst_place: Place,
        src: Addr,
        src_place: Place,
        bytes: u64,
    ) -> Result<()>;

    /// Writes `count` copies of `pattern` (1, 2, 4, 8 or 16 bytes) from `dst` on, in the order of `stream`.
    fn fill(&self, device: u32, stream: RawStream, dst: Addr, pattern: &[u8], count: u64) -> Result<()>;

    /// Launches a kernel. Copies the arguments before it returns.
    fn launch(
        &self,
        device: u32,
        stream: RawStream,
        code: Code<'_>,
        shape: &Shape,
        args: Args<'_>,
    ) -> Result<()>;

    /// Loads a ready image for a device.
    fn module_load(&self, device: u32, image: &[u8]) -> Result<RawModule>;

    /// Compiles source for a device and loads it.
    fn module_compile(&self, device: u32, source: &str, options: &CompileOptions) -> Result<RawModule>;

    /// Unloads a module. May block behind running work.
    fn module_destroy(&self, device: u32, module: RawModule);

    /// Finds a kernel by name or name expression.
    fn module_function(&self, device: u32, module: RawModule, name: &str) -> Result<RawFunction>;

    /// Finds a global variable: its address and size in bytes.
    fn module_global(&self, device: u32, module: RawModule, name: &str) -> Result<(Addr, u64)>;

    /// Limits and costs of a kernel.
    fn function_info(&self, device: u32, code: Code<'_>) -> Result<FunctionInfo>;

    /// The block size (threads) that keeps the device busiest with `shared_bytes` of dynamic shared memory.
    fn function_block_size(&self, device: u32, code: Code<'_>, shared_bytes: u64) -> Result<u32>;
}

/// What host devices shall be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// How many.
    pub devices: u32,
    /// Worker threads for all of them; 0: one for each core.
    pub threads: u32,
    /// Bytes of memory of each; 0: the machine's memory shared out evenly.
    pub memory: u64,
}

/// Every backend, in the order of the device list.
pub const NAMES: &[&str] = &["hip", "cuda", "host"];

/// True for the backend that stands in where no GPU is found.
pub fn is_fallback(name: &str) -> bool {
    name == "host"
}

/// Brings a backend up, or says in the loader's or the vendor's own words why not.
pub fn load(name: &str, host: HostSettings) -> Result<&'static dyn Backend> {
    match name {
        "hip" => Ok(hip::HipBackend::load()?),
        "cuda" => Ok(cuda::CudaBackend::load()?),
        "host" => host::load(host),
        _ => Err(Error::new(
            Status::NotSupported,
            format!("this version has no {name} backend"),
        )),
    }
}

/// Keeps what is compiled in a folder as well. The first call counts.
pub fn set_cache_folder(folder: std::path::PathBuf) {
    cache::set_folder(folder);
}

/// True once any backend, in the device list or not, has initialised what a fork's child cannot use.
pub fn fork_unsafe() -> bool {
    hip::HipBackend::fork_unsafe() || cuda::CudaBackend::fork_unsafe() || host::fork_unsafe()
}

/// True while this thread runs a caller's function on behalf of a device.
pub fn inside_user_code() -> bool {
    host::inside_user_code()
}

/// Stops our threads at the end of the process, without waiting for long. Vendor runtimes are left alone.
pub fn park_for_exit() {
    host::park_for_exit();
}
