//! AMD devices, through the HIP runtime.
//!
//! The runtime's library is found at run time; nothing is linked, unless the feature `hip-link` asks for it.
//!
//! What the runtime needs to know on which device a call works: creating something, memory, modules, launches and everything on
//! the legacy stream work on the thread's current device, so it is made current and the former one put back. Questions about
//! a stream or an event find the device by themselves.
//!
//! The runtime keeps a last error for each thread. What our calls leave there is taken back: they hand it on themselves.
//!
//! Where a fault of a kernel ends the process (older runtimes do that), nothing here can help; where the runtime reports it,
//! all its calls answer with it from then on.

// The vendor's names are the ones to search for.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::time::Duration;

use crate::backend::cache::{self, Key};
use crate::backend::{
    Addr, Args, Arrange, Backend, Callback, Code, CompileOptions, DeviceInfo, Error, EventState, Fence,
    FunctionInfo, NativeHandle, NewStream, Patience, Place, PointerFacts, RawEvent, RawFunction, RawModule,
    RawStream, Result, Shape, Status, StreamSpec,
};

#[macro_use]
mod functions;

mod api;
mod codes;
mod device;
mod event;
#[allow(dead_code)] // tests/hip-shim and tests/hip-layout read the same file
mod ffi;
mod gate;
mod image;
#[cfg(feature = "hip-link")]
mod link;
mod memory;
mod module;
mod rtc;
#[cfg(test)]
mod rtc_test;
mod stream;
mod targets;

use api::{call, Api};
use device::Device;
use ffi::{hipErrorNoDevice, hipSuccess};
use rtc::Compiler;

/// The runtime has been asked for its devices.
static INITIALISED: AtomicBool = AtomicBool::new(false);
/// The first version whose memory kinds are numbered anew.
const VERSION_6: i32 = 60_000_000;

/// The devices that the HIP runtime shows.
#[derive(Debug)]
pub struct HipBackend {
    api: &'static Api,
    version: i32,
    devices: Box<[Device]>,
    compiler: OnceLock<Result<Compiler>>,
}

// SAFETY: the runtime's handles may be used from any thread, and all that changes is atomic or locked.
unsafe impl Send for HipBackend {}
// SAFETY: as above.
unsafe impl Sync for HipBackend {}

impl HipBackend {
    /// Finds the runtime and asks it for its devices, once in the process. Touches no device. Where there is no
    /// runtime, the error's text is the loader's own words; a runtime without devices is [`Status::NoDevice`].
    pub fn load() -> Result<&'static HipBackend> {
        static BACKEND: OnceLock<Result<HipBackend>> = OnceLock::new();
        BACKEND
            .get_or_init(|| HipBackend::start(Api::load()?))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// True once the runtime has been initialised in this process, with or without success: a child of `fork` cannot
    /// use it then.
    pub fn fork_unsafe() -> bool {
        INITIALISED.load(Ordering::Acquire)
    }

    fn start(api: Api) -> Result<HipBackend> {
        let api: &'static Api = Box::leak(Box::new(api));
        INITIALISED.store(true, Ordering::Release);
        let mut count = 0;
        // SAFETY: `count` is writable. This call and not `hipInit`, whose answer for "no device" is "invalid device".
        let answer = unsafe { call!(api, hipGetDeviceCount(&mut count)) };
        if answer.code == hipErrorNoDevice || answer.code == hipSuccess && count <= 0 {
            api.forget(answer.code);
            let e = Error::new(
                Status::NoDevice,
                format!("the HIP runtime ({}) sees no device", api.path()),
            );
            return Err(match answer.code {
                hipSuccess => e,
                _ => e.native(api.native(answer)),
            });
        }
        if answer.code != hipSuccess {
            return Err(api.failure(
                answer,
                &format!("the HIP runtime ({}) does not start", api.path()),
            ));
        }
        let mut version = 0;
        // SAFETY: `version` is writable.
        let answer = unsafe { call!(api, hipRuntimeGetVersion(&mut version)) };
        if answer.code != hipSuccess {
            return Err(api.failure(answer, "cannot ask for the HIP runtime's version"));
        }
        let devices = (0..count as u32)
            .map(|ordinal| Device::new(api, ordinal))
            .collect::<Result<_>>()?;
        Ok(HipBackend {
            api,
            version,
            devices,
            compiler: OnceLock::new(),
        })
    }

    /// The runtime numbers memory kinds as ROCm 6 and later do.
    fn kinds_of_6(&self) -> bool {
        self.version >= VERSION_6
    }

    #[inline]
    fn device(&self, device: u32) -> Result<&Device> {
        self.devices
            .get(device as usize)
            .ok_or_else(|| self.no_such_device(device))
    }

    #[cold]
    fn no_such_device(&self, device: u32) -> Error {
        Error::new(
            Status::InvalidDevice,
            format!(
                "HIP device {device} does not exist; there are {}",
                self.devices.len()
            ),
        )
    }
}

/// A version as the runtime packs it: 10 million for the major, 100,000 for the minor number.
fn version_text(version: i32) -> String {
    format!(
        "HIP runtime {}.{}.{}",
        version / 10_000_000,
        version / 100_000 % 100,
        version % 100_000
    )
}

impl Backend for HipBackend {
    fn name(&self) -> &'static str {
        "hip"
    }

    fn version(&self) -> String {
        version_text(self.version)
    }

    fn path(&self) -> String {
        self.api.path()
    }

    fn device_count(&self) -> u32 {
        self.devices.len() as u32
    }

    fn device_info(&self, device: u32) -> Result<DeviceInfo> {
        Ok(self.device(device)?.info())
    }

    fn fork_unsafe(&self) -> bool {
        HipBackend::fork_unsafe()
    }

    fn open(&self, device: u32) -> Result<()> {
        self.device(device)?.open()
    }

    fn bind(&self, device: u32) -> Result<()> {
        let device = self.device(device)?;
        device.open()?;
        device.bind()
    }

    fn memory(&self, device: u32) -> Result<(u64, u64)> {
        memory::info(self.device(device)?)
    }

    fn device_synchronize(&self, device: u32) -> Result<()> {
        memory::synchronize(self.device(device)?)
    }

    fn can_access_peer(&self, device: u32, peer: u32) -> Result<bool> {
        let (device, peer) = (self.device(device)?, self.device(peer)?);
        if device.ordinal == peer.ordinal {
            return Ok(false);
        }
        let mut can = 0;
        let (from, to) = (device.ordinal as i32, peer.ordinal as i32);
        // SAFETY: `can` is writable.
        let answer = unsafe { call!(self.api, hipDeviceCanAccessPeer(&mut can, from, to)) };
        device.check(answer, || {
            format!("cannot ask about access to HIP device {}", peer.ordinal)
        })?;
        Ok(can != 0)
    }

    fn enable_peer(&self, device: u32, peer: u32) -> Result<()> {
        let (device, peer) = (self.device(device)?, self.device(peer)?);
        if device.ordinal == peer.ordinal {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("HIP device {} is no peer of itself", device.ordinal),
            ));
        }
        device.enable_peer(peer)
    }

    fn device_native(&self, device: u32) -> Result<u64> {
        Ok(self.device(device)?.ordinal.into())
    }

    fn stream_create(&self, device: u32, spec: StreamSpec) -> Result<NewStream> {
        stream::create(self.device(device)?, spec)
    }

    fn stream_import(&self, device: u32, native: NativeHandle) -> Result<NewStream> {
        stream::import(self.device(device)?, native)
    }

    fn stream_destroy(&self, device: u32, stream: RawStream) {
        if let Ok(device) = self.device(device) {
            stream::destroy(device, stream);
        }
    }

    fn stream_native(&self, _device: u32, stream: RawStream) -> Result<*mut c_void> {
        Ok(stream::native(stream))
    }

    fn stream_idle(&self, device: u32, stream: RawStream) -> Result<bool> {
        stream::idle(self.device(device)?, stream)
    }

    fn stream_capturing(&self, device: u32, stream: RawStream) -> Result<bool> {
        stream::capturing(self.device(device)?, stream)
    }

    fn stream_wait_event(&self, device: u32, stream: RawStream, event: RawEvent) -> Result<()> {
        event::wait(self.device(device)?, stream, event)
    }

    fn stream_callback(&self, device: u32, stream: RawStream, callback: Callback) -> Result<()> {
        stream::callback(self.device(device)?, stream, callback)
    }

    fn stream_gate(&self, device: u32, stream: RawStream, arrange: Arrange<'_>) -> Result<()> {
        gate::gate(self.device(device)?, stream, arrange)
    }

    fn fence(&self, device: u32, stream: RawStream) -> Result<Fence> {
        stream::fence(self.device(device)?, stream)
    }

    fn fence_reached(&self, fence: &mut Fence) -> Result<bool> {
        self.fence_poll(fence, 1)
    }

    fn fence_poll(&self, fence: &mut Fence, times: u32) -> Result<bool> {
        stream::fence_poll(self.device(fence.device)?, fence, times)
    }

    /// A wait that sleeps is woken by an interrupt of the device, as on other GPUs. Not measured on AMD's.
    fn worth_polling(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn fence_block(&self, fence: &mut Fence, patience: Patience) -> Result<bool> {
        stream::fence_block(self.device(fence.device)?, fence, patience)
    }

    fn fence_drop(&self, fence: Fence) {
        if let Ok(device) = self.device(fence.device) {
            stream::fence_drop(device, &fence);
        }
    }

    fn event_create(&self, device: u32, timing: bool) -> Result<RawEvent> {
        event::create(self.device(device)?, timing)
    }

    fn event_destroy(&self, device: u32, event: RawEvent) {
        if let Ok(device) = self.device(device) {
            event::destroy(device, event);
        }
    }

    fn event_record(&self, device: u32, event: RawEvent, stream: RawStream) -> Result<()> {
        event::record(self.device(device)?, event, stream)
    }

    fn event_state(&self, device: u32, event: RawEvent) -> Result<EventState> {
        event::state(self.device(device)?, event)
    }

    fn event_block(&self, device: u32, event: RawEvent, patience: Patience) -> Result<bool> {
        event::block(self.device(device)?, event, patience)
    }

    fn event_elapsed(&self, device: u32, start: RawEvent, end: RawEvent) -> Result<f64> {
        event::elapsed(self.device(device)?, start, end)
    }

    fn event_native(&self, _device: u32, event: RawEvent) -> Result<*mut c_void> {
        Ok(event::of(event).native())
    }

    fn alloc(&self, device: u32, bytes: u64) -> Result<Addr> {
        memory::alloc(self.device(device)?, bytes)
    }

    fn free(&self, device: u32, addr: Addr) -> Result<()> {
        memory::free(self.device(device)?, addr)
    }

    fn alloc_async(&self, device: u32, stream: RawStream, bytes: u64) -> Result<Addr> {
        memory::alloc_async(self.device(device)?, stream, bytes)
    }

    fn free_async(&self, device: u32, stream: RawStream, addr: Addr) -> Result<()> {
        memory::free_async(self.device(device)?, stream, addr)
    }

    fn trim(&self, device: u32, keep: u64) -> Result<()> {
        memory::trim(self.device(device)?, keep)
    }

    fn host_alloc(&self, device: u32, bytes: u64) -> Result<Addr> {
        memory::host_alloc(self.device(device)?, bytes)
    }

    fn host_free(&self, device: u32, addr: Addr) -> Result<()> {
        memory::host_free(self.device(device)?, addr)
    }

    fn host_register(&self, device: u32, addr: Addr, bytes: u64) -> Result<()> {
        memory::host_register(self.device(device)?, addr, bytes)
    }

    fn host_unregister(&self, device: u32, addr: Addr) -> Result<()> {
        memory::host_unregister(self.device(device)?, addr)
    }

    fn pointer_facts(&self, addr: Addr) -> Option<PointerFacts> {
        memory::facts(self, addr)
    }

    fn memcpy(
        &self,
        device: u32,
        stream: RawStream,
        dst: Addr,
        dst_place: Place,
        src: Addr,
        src_place: Place,
        bytes: u64,
    ) -> Result<()> {
        memory::copy(
            self,
            self.device(device)?,
            stream,
            dst,
            dst_place,
            src,
            src_place,
            bytes,
        )
    }

    fn fill(&self, device: u32, stream: RawStream, dst: Addr, pattern: &[u8], count: u64) -> Result<()> {
        memory::fill(self.device(device)?, stream, dst, pattern, count)
    }

    fn launch(
        &self,
        device: u32,
        stream: RawStream,
        code: Code<'_>,
        shape: &Shape,
        args: Args<'_>,
    ) -> Result<()> {
        module::launch(self.device(device)?, stream, code, shape, args)
    }

    fn module_load(&self, device: u32, image: &[u8]) -> Result<RawModule> {
        module::load(self.device(device)?, image, Vec::new())
    }

    fn module_compile(&self, device: u32, source: &str, options: &CompileOptions) -> Result<RawModule> {
        let device = self.device(device)?;
        let compiler = self
            .compiler
            .get_or_init(|| Compiler::load(self.api, self.version))
            .as_ref()
            .map_err(Clone::clone)?;
        let target = &compiler.key(device.arch());
        let key = Key {
            source,
            options,
            target,
        };
        let compiled = cache::compiled(&key, || compiler.compile(source, device.arch(), options))?;
        module::load(device, &compiled.image, compiled.names.clone())
    }

    fn module_destroy(&self, device: u32, module: RawModule) {
        if let Ok(device) = self.device(device) {
            module::destroy(device, module);
        }
    }

    fn module_function(&self, device: u32, module: RawModule, name: &str) -> Result<RawFunction> {
        module::function(self.device(device)?, module, name)
    }

    fn module_global(&self, device: u32, module: RawModule, name: &str) -> Result<(Addr, u64)> {
        module::global(self.device(device)?, module, name)
    }

    fn function_info(&self, device: u32, code: Code<'_>) -> Result<FunctionInfo> {
        module::info(self.device(device)?, code)
    }

    fn function_block_size(&self, device: u32, code: Code<'_>, shared_bytes: u64) -> Result<u32> {
        module::block_size(self.device(device)?, code, shared_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_the_vendor_writes_them() {
        assert_eq!(version_text(50_221_153), "HIP runtime 5.2.21153");
        assert_eq!(version_text(71_452_802), "HIP runtime 7.14.52802");
    }
}
