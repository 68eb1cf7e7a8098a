//! NVIDIA devices, through the CUDA driver API.
//!
//! The driver's library is found at run time; nothing is linked. Every device is used through its *primary*
//! context, the one that the CUDA runtime and the frameworks on top of it use, so that memory, streams and
//! modules are common property.
//!
//! What the driver needs to know on which context a call works: calls on an explicit stream find it through the
//! stream, whatever is current on the thread, or nothing (seen with driver 580). What creates something, and
//! everything on the legacy stream, works on the current context: there the primary context is pushed and popped.
//! Pushing, unlike setting, leaves a third party's stack of contexts as it was.
//!
//! The driver keeps no "last error": an answer is given once, to the call that it belongs to.

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

mod api;
mod codes;
mod device;
mod event;
mod gate;
mod image;
#[cfg(test)]
mod layout_test;
mod memory;
mod module;
mod nvrtc;
mod stream;

use api::{call, Api, LIBRARY_NAMES};
use codes::{NO_DEVICE, SUCCESS};
use device::Device;
use nvrtc::Nvrtc;

/// `cuInit` has been called.
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// The devices that the CUDA driver shows.
#[derive(Debug)]
pub struct CudaBackend {
    api: &'static Api,
    driver_version: i32,
    devices: Box<[Device]>,
    compiler: OnceLock<Result<Nvrtc>>,
}

// SAFETY: the driver's handles may be used from any thread, and all that changes is atomic or locked.
unsafe impl Send for CudaBackend {}
// SAFETY: as above.
unsafe impl Sync for CudaBackend {}

impl CudaBackend {
    /// Finds the driver and asks it for its devices, once in the process. Creates no context. Where there is no
    /// driver, the error's text is the loader's own words; a driver without devices is [`Status::NoDevice`].
    pub fn load() -> Result<&'static CudaBackend> {
        static BACKEND: OnceLock<Result<CudaBackend>> = OnceLock::new();
        BACKEND
            .get_or_init(|| CudaBackend::start(&LIBRARY_NAMES))
            .as_ref()
            .map_err(Clone::clone)
    }

    /// True once the driver has been initialised in this process, with or without success: a child of `fork` cannot
    /// use it then.
    pub fn fork_unsafe() -> bool {
        INITIALISED.load(Ordering::Acquire)
    }

    fn start(names: &[&str]) -> Result<CudaBackend> {
        let api: &'static Api = Box::leak(Box::new(Api::load(names)?));
        INITIALISED.store(true, Ordering::Release);
        // SAFETY: the flags must be 0.
        let answer = unsafe { call!(api, cuInit(0)) };
        let none = || {
            Error::new(
                Status::NoDevice,
                format!("the CUDA driver ({}) sees no device", api.path()),
            )
        };
        match answer.code {
            SUCCESS => {}
            NO_DEVICE => return Err(none().native(api.native(answer))),
            _ => {
                return Err(api.failure(
                    answer,
                    &format!("the CUDA driver ({}) does not start", api.path()),
                ))
            }
        }
        let (mut version, mut count) = (0, 0);
        // SAFETY: `version` is writable.
        let answer = unsafe { call!(api, cuDriverGetVersion(&mut version)) };
        if answer.code != SUCCESS {
            return Err(api.failure(answer, "cannot ask for the CUDA driver's version"));
        }
        // SAFETY: `count` is writable.
        let answer = unsafe { call!(api, cuDeviceGetCount(&mut count)) };
        if answer.code != SUCCESS {
            return Err(api.failure(answer, "cannot count the CUDA devices"));
        }
        if count <= 0 {
            return Err(none());
        }
        let devices = (0..count as u32)
            .map(|ordinal| Device::new(api, ordinal))
            .collect::<Result<_>>()?;
        Ok(CudaBackend {
            api,
            driver_version: version,
            devices,
            compiler: OnceLock::new(),
        })
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
                "CUDA device {device} does not exist; there are {}",
                self.devices.len()
            ),
        )
    }
}

impl Backend for CudaBackend {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn version(&self) -> String {
        format!(
            "CUDA driver API {}.{}",
            self.driver_version / 1000,
            self.driver_version % 1000 / 10
        )
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
        CudaBackend::fork_unsafe()
    }

    fn open(&self, device: u32) -> Result<()> {
        self.device(device)?.open().map(|_| ())
    }

    fn bind(&self, device: u32) -> Result<()> {
        let device = self.device(device)?;
        let context = device.open()?;
        // Looking costs a third of setting.
        let mut current = std::ptr::null_mut();
        // SAFETY: `current` is writable.
        if unsafe { (self.api.cuCtxGetCurrent)(&mut current) } == SUCCESS && current == context {
            return Ok(());
        }
        // SAFETY: the context is retained for good.
        let answer = unsafe { call!(self.api, cuCtxSetCurrent(context)) };
        device.check(answer, || "cannot make the device current".into())
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
        // SAFETY: `can` is writable.
        let answer = unsafe { call!(self.api, cuDeviceCanAccessPeer(&mut can, device.cu, peer.cu)) };
        device.check(answer, || {
            format!("cannot ask about access to CUDA device {}", peer.ordinal)
        })?;
        Ok(can != 0)
    }

    fn enable_peer(&self, device: u32, peer: u32) -> Result<()> {
        let (device, peer) = (self.device(device)?, self.device(peer)?);
        if device.ordinal == peer.ordinal {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("CUDA device {} is no peer of itself", device.ordinal),
            ));
        }
        device.enable_peer(peer)
    }

    fn device_native(&self, device: u32) -> Result<u64> {
        Ok(self.device(device)?.cu as u64)
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
        stream::fence_reached(self.device(fence.device)?, fence)
    }

    fn fence_poll(&self, fence: &mut Fence, times: u32) -> Result<bool> {
        stream::fence_poll(self.device(fence.device)?, fence, times)
    }

    /// A wait that sleeps is 25 to 150 us longer (seen on H200s with driver 580, in virtual machines).
    fn worth_polling(&self) -> Duration {
        Duration::from_millis(2)
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
        memory::fill(self, self.device(device)?, stream, dst, pattern, count)
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
            .get_or_init(|| Nvrtc::load(self.driver_version))
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
    fn a_missing_driver_is_told_in_the_loaders_words() {
        let e = CudaBackend::start(&["libno-such-driver.so.1"]).expect_err("no such library");
        assert_eq!(e.status(), Status::NotSupported);
        assert!(
            e.to_string()
                .contains("libno-such-driver.so.1: cannot open shared object file"),
            "{e}"
        );
    }

    #[test]
    fn a_library_without_the_functions_is_refused_and_the_first_one_named() {
        let e = CudaBackend::start(&["libc.so.6"]).expect_err("not the driver");
        assert_eq!(e.status(), Status::NotSupported);
        assert!(e.to_string().contains("cuInit"), "{e}");
    }
}
