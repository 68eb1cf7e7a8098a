//! Kernels: functions that run on devices.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::backend::{Code, Error, FunctionInfo, HostKernel, RawFunction, Result, Status};

use super::calls::Call;
use super::device::{self, Device};
use super::handle::{Held, KernelHandle, Kind, ModuleHandle, Object, Objects, Place, Table};
use super::launch;
use super::module::{self, Module};
use super::registry::{self, runtime};
use super::task;

/// Where a kernel's code comes from.
enum Origin {
    /// A C function of the caller.
    Host(HostKernel),
    /// A function of a module; found on each device at its first launch there.
    Module {
        module: Arc<Module>,
        functions: Box<[OnceCell<RawFunction>]>,
    },
}

/// A kernel.
pub(crate) struct Kernel {
    origin: Origin,
    pub(crate) name: String,
    /// Unique in the process.
    pub(crate) number: u64,
    place: Place<Kernel>,
}

/// What launches read of a kernel.
#[derive(Default)]
pub(crate) struct Words {
    number: AtomicU64,
    /// By device index, the function there; 0 where none has been asked for. As long as the runtime has devices.
    functions: OnceCell<Box<[AtomicU64]>>,
}

impl Words {
    fn function(&self, device: &Device) -> Option<&AtomicU64> {
        self.functions.get()?.get(device.index as usize)
    }
}

static KERNELS: Objects<Kernel> = Table::new(Kind::Kernel);
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
/// So that a stream can remember what was launched last by number.
static BY_NUMBER: Mutex<Option<HashMap<u64, Weak<Kernel>>>> = Mutex::new(None);

impl Object for Kernel {
    type Words = Words;

    fn table() -> &'static Objects<Kernel> {
        &KERNELS
    }

    fn place(&self) -> &Place<Kernel> {
        &self.place
    }
}

impl Kernel {
    fn publish(origin: Origin, name: String) -> Result<KernelHandle> {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let place = Place::<Kernel>::take()?;
        let devices = &runtime()?.devices;
        let functions = place
            .functions
            .get_or_init(|| devices.iter().map(|_| AtomicU64::new(0)).collect());
        // Those of the slot's earlier kernel.
        functions.iter().for_each(|f| f.store(0, Ordering::Release));
        place.number.store(number, Ordering::Release);
        let kernel = Arc::new(Kernel {
            origin,
            name,
            number,
            place,
        });
        BY_NUMBER
            .lock()
            .get_or_insert_with(HashMap::new)
            .insert(number, Arc::downgrade(&kernel));
        Ok(KernelHandle::from_bits(KERNELS.insert(kernel)))
    }

    /// The code for a device.
    #[inline]
    pub(crate) fn on(&self, device: &'static Device) -> Result<Code<'_>> {
        match &self.origin {
            Origin::Host(kernel) => Ok(Code::Host(kernel)),
            Origin::Module { module, functions } => functions[device.index as usize]
                .get_or_try_init(|| {
                    let raw = module.on(device)?;
                    device
                        .backend
                        .module_function(device.ordinal, raw, &self.name)
                        .map_err(|e| device.concern(e))
                })
                .map(|function| {
                    if let Some(word) = self.place.function(device) {
                        word.store(function.value(), Ordering::Release);
                    }
                    Code::Function(*function)
                }),
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Some(names) = BY_NUMBER.lock().as_mut() {
            names.remove(&self.number);
        }
    }
}

/// The kernel behind a handle.
#[inline]
pub(crate) fn find(handle: KernelHandle) -> Result<Held<Kernel>> {
    KERNELS.get(handle.bits())
}

/// The function of a kernel on a device and the kernel's number, as [`Kernel::on`] but without a reference; `None` where
/// that has something to say or to do.
#[inline]
pub(crate) fn look(_call: &Call, handle: KernelHandle, device: &Device) -> Option<(RawFunction, u64)> {
    let (function, number) = KERNELS.slot(handle.bits())?.words(handle.bits(), |words| {
        let function = words
            .function(device)
            .map_or(0, |word| word.load(Ordering::Acquire));
        (function, words.number.load(Ordering::Acquire))
    })?;
    (function != 0).then_some((RawFunction(function), number))
}

/// The name of the kernel with this number, if it still exists.
pub(crate) fn name(number: u64) -> Option<String> {
    let kernel = BY_NUMBER.lock().as_ref()?.get(&number)?.upgrade();
    kernel.map(|kernel| kernel.name.clone())
}

/// Limits and costs of a kernel on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelReport {
    /// The backend's figures.
    pub info: FunctionInfo,
    /// Threads of the device that run in lock step.
    pub warp_size: u32,
}

/// A kernel of a module, by name or name expression.
pub fn get(module: ModuleHandle, name: &str) -> Result<KernelHandle> {
    let device = device::of_task(task::here()?)?;
    let module = Arc::clone(&*module::find(module)?);
    let raw = module.on(device)?;
    let function = device
        .backend
        .module_function(device.ordinal, raw, name)
        .map_err(|e| device.concern(e))?;
    let functions: Box<[OnceCell<RawFunction>]> =
        runtime()?.devices.iter().map(|_| OnceCell::new()).collect();
    let _ = functions[device.index as usize].set(function);
    Kernel::publish(Origin::Module { module, functions }, name.to_owned())
}

/// A kernel that is a C function; it runs on host devices.
pub fn from_host(kernel: HostKernel) -> Result<KernelHandle> {
    task::allowed()?;
    let name = format!("host function {:#x}", kernel.function() as usize);
    Kernel::publish(Origin::Host(kernel), name)
}

/// Ends a kernel's handle. Launches already queued still run.
pub fn destroy(kernel: KernelHandle) -> Result<()> {
    if kernel.is_null() || registry::forked() {
        return Ok(());
    }
    match KERNELS.remove(kernel.bits()) {
        Some(_) => Ok(()),
        None => Err(KERNELS.invalid(kernel.bits())),
    }
}

/// Limits and costs of a kernel on a device.
pub fn info(kernel: KernelHandle, index: i32) -> Result<KernelReport> {
    task::allowed()?;
    let kernel = find(kernel)?;
    let device = device::by_index(index)?;
    device.open()?;
    let info = device
        .backend
        .function_info(device.ordinal, kernel.on(device)?)
        .map_err(|e| device.concern(e))?;
    Ok(KernelReport {
        info,
        warp_size: device.info()?.warp_size,
    })
}

/// Blocks and threads of a block for `items` items in one dimension, one thread each, on the task's device.
pub fn suggest(kernel: KernelHandle, items: u64) -> Result<(u32, u32)> {
    let device = device::of_task(task::here()?)?;
    let kernel = find(kernel)?;
    device.open()?;
    let code = kernel.on(device)?;
    let block = device
        .backend
        .function_block_size(device.ordinal, code, 0)
        .map_err(|e| device.concern(launch::name("shape for", &kernel.name, e)))?
        .max(1);
    let blocks = items.div_ceil(u64::from(block)).max(1);
    let most = device.info()?.max_grid[0];
    match u32::try_from(blocks) {
        Ok(grid) if grid <= most => Ok((grid, block)),
        _ => Err(Error::new(
            Status::InvalidArgument,
            format!(
                "{items} items need {blocks} blocks of {block} threads; device {} takes {most} blocks",
                device.index
            ),
        )
        .on_device(device.index)),
    }
}
