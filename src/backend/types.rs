//! The vocabulary that the floors share: addresses, raw vendor objects, shapes, priorities.
//!
//! A value that only the caller can vouch for (an address, a C function, a vendor handle) becomes one of
//! these types through an `unsafe` constructor at the door. From there on it is passed around safely.

use std::ffi::c_void;
use std::time::Duration;

/// Memory of the caller or of a device, vouched for by whoever made this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr(u64);

impl Addr {
    /// Takes a pointer from the caller.
    ///
    /// # Safety
    /// The memory a call names with this address and a size stays valid for that access until the work is done.
    pub unsafe fn from_caller(p: *const c_void) -> Addr {
        Addr(p as u64)
    }

    /// An address that a backend has just allocated. Only backends make these.
    pub(crate) fn from_backend(value: u64) -> Addr {
        Addr(value)
    }

    /// The number, for bookkeeping and messages.
    pub fn value(self) -> u64 {
        self.0
    }

    /// The pointer, for the caller or a vendor call. Reading through it is the reader's business.
    pub fn as_ptr(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// True for NULL.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// Where one end of a copy lies, as the backend that carries it out sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ordinary or pinned host memory.
    Host,
    /// Memory of this device (an ordinal of the same backend).
    Device(u32),
}

macro_rules! raw {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) u64);

        impl $name {
            /// The backend's own number for it; never 0 except where the vendor's handle is NULL.
            pub fn value(self) -> u64 {
                self.0
            }
        }
    };
}
raw!(
    /// A stream as its backend knows it.
    RawStream
);
raw!(
    /// An event as its backend knows it.
    RawEvent
);
raw!(
    /// A loaded module as its backend knows it.
    RawModule
);
raw!(
    /// A function of a loaded module as its backend knows it.
    RawFunction
);

/// A vendor's handle that a caller handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NativeHandle(u64);

impl NativeHandle {
    /// Takes a vendor handle from the caller.
    ///
    /// # Safety
    /// It is a live handle of that vendor's runtime, or one of its special values, and outlives our use of it.
    pub unsafe fn from_caller(p: *mut c_void) -> NativeHandle {
        NativeHandle(p as u64)
    }

    /// The number.
    pub fn value(self) -> u64 {
        self.0
    }
}

/// How urgent a stream's work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(i32)]
pub enum Priority {
    /// The default.
    #[default]
    Normal = 0,
    /// After everything else.
    Low = 1,
    /// Before everything else.
    High = 2,
}

impl Priority {
    /// All three, in the order of their numbers.
    pub const ALL: [Priority; 3] = [Priority::Normal, Priority::Low, Priority::High];

    /// The priority with this number of the ABI.
    pub fn from_code(code: i32) -> Option<Priority> {
        usize::try_from(code)
            .ok()
            .and_then(|i| Priority::ALL.get(i).copied())
    }
}

/// What a new stream shall be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSpec {
    /// The priority asked for.
    pub priority: Priority,
    /// Ordered with the vendor's legacy default stream. Host devices have none and ignore it.
    pub legacy_order: bool,
}

/// A stream just created or imported.
#[derive(Clone, Copy, Debug)]
pub struct NewStream {
    /// The stream.
    pub raw: RawStream,
    /// The priority that the vendor says it got, in our terms.
    pub effective: Priority,
    /// The same as the vendor's number.
    pub native_priority: i32,
}

/// What a device is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The product's name.
    pub name: String,
    /// `gfx90a`, `sm_90`, `x86_64`, ...
    pub arch: String,
    /// Unique id; all zero where the vendor has none.
    pub uuid: [u8; 16],
    /// PCI address as `0000:3b:00.0`; empty where there is none.
    pub pci: String,
    /// Bytes of device memory.
    pub total_memory: u64,
    /// Compute units, multiprocessors or worker threads.
    pub compute_units: u32,
    /// Threads that run in lock step; 1 on host devices.
    pub warp_size: u32,
    /// Most threads of one block (the product of its dimensions).
    pub max_threads_per_block: u32,
    /// Most threads of one block in each dimension.
    pub max_block: [u32; 3],
    /// Most blocks of a grid in each dimension.
    pub max_grid: [u32; 3],
    /// Most bytes of shared memory of one block, static and dynamic together.
    pub max_shared_per_block: u64,
    /// The vendor's number of its least urgent priority.
    pub priority_least: i32,
    /// The vendor's number of its most urgent priority.
    pub priority_greatest: i32,
    /// Hardware queues that run streams side by side; above it streams share one. 0: not told.
    pub hardware_queues: u32,
    /// Stream-ordered allocation is native.
    pub memory_pools: bool,
}

/// A point in a stream that somebody waits for: everything queued before [`Backend::fence`](super::Backend::fence).
#[derive(Debug)]
pub struct Fence {
    /// The device (ordinal of the backend).
    pub device: u32,
    /// The stream.
    pub stream: RawStream,
    /// The backend's own mark: a sequence number, an event, or 0 while none was needed.
    pub mark: u64,
}

/// Whether an event's last record has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventState {
    /// Reached.
    Done,
    /// Recorded and not yet reached.
    Pending,
}

/// A shape: blocks of the grid, threads of a block, and shared memory. Checked against the device's limits before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in x, y, z; none is 0.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z; none is 0.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u64,
}

/// The arguments of one launch: an array of pointers to the values, as `tgpu_launch` takes it.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    ptr: *const *mut c_void,
    life: std::marker::PhantomData<&'a ()>,
}

impl<'a> Args<'a> {
    /// Takes the array from the caller; NULL is an empty one.
    ///
    /// # Safety
    /// `ptr` is NULL or points to one readable pointer for each argument of the kernel that is launched with
    /// it, each pointing to a value of that argument's size, for the lifetime `'a`.
    pub unsafe fn from_caller(ptr: *const *mut c_void) -> Args<'a> {
        Args {
            ptr,
            life: std::marker::PhantomData,
        }
    }

    /// The array.
    pub fn as_ptr(self) -> *const *mut c_void {
        self.ptr
    }

    /// True where the caller gave no array.
    pub fn is_null(self) -> bool {
        self.ptr.is_null()
    }
}

/// What a host kernel learns about the block it runs. Part of the ABI (`tgpu_host_block`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HostBlock {
    /// This block's index in x, y, z.
    pub index: [u32; 3],
    /// Blocks of the grid in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Index of the device in the backend.
    pub device: i32,
    /// `shared_bytes` bytes for this block alone, aligned to 64, contents undefined; NULL if 0.
    pub shared: *mut c_void,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u64,
}

/// The C function of a host kernel, called once per block.
pub type HostKernelFn =
    unsafe extern "C" fn(block: *const HostBlock, args: *const *mut c_void, data: *mut c_void);

/// A kernel that is a C function of the caller's program.
#[derive(Clone, Debug)]
pub struct HostKernel {
    function: HostKernelFn,
    data: u64,
    arg_sizes: std::sync::Arc<[usize]>,
}

impl HostKernel {
    /// Takes the function from the caller.
    ///
    /// # Safety
    /// `function` may be called with `data` from any thread, for any block, at the same time, as long as a
    /// launch of it can be running.
    pub unsafe fn from_caller(function: HostKernelFn, data: *mut c_void, arg_sizes: &[usize]) -> HostKernel {
        HostKernel {
            function,
            data: data as u64,
            arg_sizes: arg_sizes.into(),
        }
    }

    /// The function.
    pub fn function(&self) -> HostKernelFn {
        self.function
    }

    /// The caller's data pointer.
    pub fn data(&self) -> *mut c_void {
        self.data as *mut c_void
    }

    /// Bytes of each argument.
    pub fn arg_sizes(&self) -> &[usize] {
        &self.arg_sizes
    }
}

/// What a launch runs.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// A C function, on host devices only.
    Host(&'a HostKernel),
    /// A function of a module loaded on the stream's device.
    Function(RawFunction),
}

/// Limits and costs of a kernel on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Most threads of a block that this kernel can run with.
    pub max_threads_per_block: u32,
    /// Registers of a thread; 0 where the notion does not exist.
    pub registers: u32,
    /// Bytes of static shared memory of a block.
    pub static_shared_bytes: u64,
    /// Bytes of local (spill) memory of a thread.
    pub local_bytes: u64,
}

/// What a pointer is, where a backend knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerFacts {
    /// Device memory of this ordinal, or host memory.
    pub place: Place,
    /// The first byte of the allocation, where known, else the pointer itself.
    pub base: u64,
    /// Bytes from `base`, where known, else 0.
    pub size: u64,
}

/// How a module's source is compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompileOptions {
    /// The name that compile errors give the source.
    pub name: String,
    /// Options for the compiler, one argument each.
    pub options: Vec<String>,
    /// Template instances to make available by name.
    pub name_expressions: Vec<String>,
}

/// A function to be called once, with the status of the work before it.
pub type Callback = Box<dyn FnOnce(super::Status) + Send>;

/// What holds a stream back. Opens once: when told to or, so that nothing waits forever, when it is dropped.
pub struct Gate(Option<Box<dyn FnOnce() + Send>>);

impl Gate {
    /// A gate that `open` opens. It must neither block nor call a vendor's runtime.
    pub fn new(open: impl FnOnce() + Send + 'static) -> Gate {
        Gate(Some(Box::new(open)))
    }

    /// Lets the stream go on.
    pub fn open(self) {
        drop(self);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            open();
        }
    }
}

/// Hands a gate to whoever is going to open it.
pub type Arrange<'a> = Box<dyn FnOnce(Gate) -> super::Result<()> + 'a>;

/// How long a blocking wait may last; `None` is forever.
pub type Patience = Option<Duration>;
