//! Modules: code that belongs to no device, built for each one on first use.

use std::sync::Arc;

use once_cell::sync::OnceCell;

use crate::backend::{Addr, CompileOptions, Error, RawModule, Result, Status};

use super::device::{self, Device};
use super::handle::{Held, Kind, ModuleHandle, Object, Objects, Place, Table};
use super::reaper::{self, Remains};
use super::registry::{self, runtime};
use super::task;

/// What a module is built from.
enum Origin {
    Image(Vec<u8>),
    Source { text: String, options: CompileOptions },
}

/// Code and what it was built into.
pub(crate) struct Module {
    origin: Origin,
    /// By device index. Whoever asks first builds; others that ask meanwhile wait for it.
    built: Box<[OnceCell<RawModule>]>,
    place: Place<Module>,
}

static MODULES: Objects<Module> = Table::new(Kind::Module);

impl Object for Module {
    type Words = ();

    fn table() -> &'static Objects<Module> {
        &MODULES
    }

    fn place(&self) -> &Place<Module> {
        &self.place
    }
}

impl Module {
    fn new(origin: Origin) -> Result<Module> {
        let built = runtime()?.devices.iter().map(|_| OnceCell::new()).collect();
        let place = Place::take()?;
        Ok(Module { origin, built, place })
    }

    /// The module as the device's backend knows it, built now if it was not.
    pub(crate) fn on(&self, device: &'static Device) -> Result<RawModule> {
        let build = || {
            // Compilers crash when they are called after their own handlers at exit (seen with NVRTC 13.0).
            registry::not_exiting()?;
            device.open()?;
            let Device { backend, ordinal, .. } = *device;
            match &self.origin {
                Origin::Image(image) => backend.module_load(ordinal, image),
                Origin::Source { text, options } => backend.module_compile(ordinal, text, options),
            }
            .map_err(|e| device.concern(e))
        };
        self.built[device.index as usize].get_or_try_init(build).copied()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        for (device, built) in device::all().iter().zip(&self.built) {
            if let Some(raw) = built.get() {
                reaper::leave(Remains::Module { device, raw: *raw });
            }
        }
    }
}

/// The module behind a handle.
pub(crate) fn find(handle: ModuleHandle) -> Result<Held<Module>> {
    MODULES.get(handle.bits())
}

fn make(origin: Origin) -> Result<ModuleHandle> {
    let device = device::of_task(task::here()?)?;
    reaper::keep_pace();
    let module = Module::new(origin)?;
    module.on(device)?;
    Ok(ModuleHandle::from_bits(MODULES.insert(Arc::new(module))))
}

/// Takes ready code, loaded for the task's device at once.
pub fn load(image: &[u8]) -> Result<ModuleHandle> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(image.len()).map_err(|_| {
        Error::new(
            Status::OutOfMemory,
            format!("no memory for a copy of the image of {} bytes", image.len()),
        )
    })?;
    copy.extend_from_slice(image);
    make(Origin::Image(copy))
}

/// Takes source, compiled for the task's device at once.
pub fn compile(source: &str, options: CompileOptions) -> Result<ModuleHandle> {
    make(Origin::Source {
        text: source.to_owned(),
        options,
    })
}

/// Builds a module for a device now rather than at its first use.
pub fn prepare(module: ModuleHandle, index: i32) -> Result<()> {
    task::allowed()?;
    let module = find(module)?;
    module.on(device::by_index(index)?).map(|_| ())
}

/// A global variable of a module on a device: its address and size in bytes.
pub fn global(module: ModuleHandle, index: i32, name: &str) -> Result<(Addr, u64)> {
    task::allowed()?;
    let module = find(module)?;
    let device = device::by_index(index)?;
    let raw = module.on(device)?;
    device
        .backend
        .module_global(device.ordinal, raw, name)
        .map_err(|e| device.concern(e))
}

/// Ends a module's handle. Kernels taken from it go on working; it is unloaded after the last of them.
pub fn destroy(module: ModuleHandle) -> Result<()> {
    if module.is_null() || registry::forked() {
        return Ok(());
    }
    match MODULES.remove(module.bits()) {
        Some(_) => Ok(()),
        None => Err(MODULES.invalid(module.bits())),
    }
}
