//! Modules, their functions, and the launch.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use taskgpu::backend::{
    Args, Code, EventState, HostBlock, HostKernel, HostKernelFn, RawEvent, RawFunction, RawModule, Shape,
};

use crate::capture;
use crate::counts::{MODULES, UNLOADED_IN_USE};
use crate::device::{current_open, Device};
use crate::entry::{write, Call, Hip};
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::handle::Table;
use crate::image::{self, Image, TableKernel};
use crate::runtime::{answer, runtime};
use crate::script::Form;
use crate::stream::{self, Stream};

/// What runs on after its module is gone reads memory that is not its own any more.
const USE_AFTER_UNLOAD: Form = Form::Reported {
    code: hipErrorIllegalAddress,
    silent: false,
};

static MODULES_TABLE: Table<Module> = Table::new();
static FUNCTIONS_TABLE: Table<Function> = Table::new();

/// A module on the device that was current when it was loaded.
struct Module {
    device: &'static Device,
    code: ModuleCode,
    functions: Mutex<HashMap<String, hipFunction_t>>,
    /// Behind its last launch on each stream. A fence would not do: one that is asked first now looks at work that came
    /// later.
    last: Mutex<HashMap<usize, (Arc<Stream>, RawEvent)>>,
}

enum ModuleCode {
    Table(Vec<TableKernel>),
    Backend(RawModule),
}

// SAFETY: the pointers in a table are handed back to the functions that it names, on whatever thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A function of a module. The module's end is the function's.
struct Function {
    module: Weak<Module>,
    device: &'static Device,
    code: FunctionCode,
}

enum FunctionCode {
    Host(HostKernel),
    Backend(RawFunction),
}

/// What a kernel of a table needs to run. Stays where it is for good: launches outlive everything else.
struct Target {
    device: &'static Device,
    function: HostKernelFn,
    data: *mut c_void,
}

/// Runs one block, unless the device has failed meanwhile: then nothing runs any more.
unsafe extern "C" fn run_block(block: *const HostBlock, args: *const *mut c_void, target: *mut c_void) {
    // SAFETY: `function_of` passed a target that is never freed.
    let target = unsafe { &*target.cast::<Target>() };
    if !target.device.failure.has_failed() {
        // SAFETY: the maker of the table vouches for the function.
        unsafe { (target.function)(block, args, target.data) };
    }
}

impl Function {
    fn code(&self) -> Code<'_> {
        match &self.code {
            FunctionCode::Host(kernel) => Code::Host(kernel),
            FunctionCode::Backend(raw) => Code::Function(*raw),
        }
    }
}

fn function(handle: hipFunction_t) -> Hip<Arc<Function>> {
    FUNCTIONS_TABLE.find(handle).ok_or(hipErrorInvalidHandle)
}

impl Module {
    fn function_of(self: &Arc<Self>, name: &str) -> Hip<hipFunction_t> {
        let mut functions = self.functions.lock();
        if let Some(known) = functions.get(name) {
            return Ok(*known);
        }
        let code =
            match &self.code {
                ModuleCode::Table(kernels) => {
                    let kernel = kernels.iter().find(|kernel| kernel.name == name);
                    let kernel = kernel.ok_or(hipErrorNotFound)?;
                    let target = Box::leak(Box::new(Target {
                        device: self.device,
                        function: kernel.function,
                        data: kernel.data,
                    }));
                    // SAFETY: `run_block` may run anywhere; the target stays.
                    FunctionCode::Host(unsafe {
                        HostKernel::from_caller(run_block, (&raw mut *target).cast(), &kernel.arg_sizes)
                    })
                }
                ModuleCode::Backend(raw) => FunctionCode::Backend(answer(
                    runtime().backend.module_function(self.device.ordinal, *raw, name),
                )?),
            };
        let handle = FUNCTIONS_TABLE.insert(Arc::new(Function {
            module: Arc::downgrade(self),
            device: self.device,
            code,
        }));
        functions.insert(name.to_owned(), handle);
        Ok(handle)
    }

    /// Remembers where the module was launched last.
    fn launched(&self, stream: &Arc<Stream>) {
        let (backend, ordinal) = (runtime().backend, stream.device.ordinal);
        let mut last = self.last.lock();
        let event = match last.get(&(Arc::as_ptr(stream) as usize)) {
            Some((_, event)) => *event,
            None => match backend.event_create(ordinal, false) {
                Ok(event) => event,
                Err(_) => return,
            },
        };
        last.insert(Arc::as_ptr(stream) as usize, (Arc::clone(stream), event));
        // One that fails is as good as reached: the device has failed.
        let _ = backend.event_record(ordinal, event, stream.raw);
    }

    /// True while a launch has not finished.
    fn in_use(&self) -> bool {
        let backend = runtime().backend;
        let mut in_use = false;
        for (_, (stream, event)) in self.last.lock().drain() {
            let ordinal = stream.device.ordinal;
            in_use |= !matches!(backend.event_state(ordinal, event), Ok(EventState::Done));
            backend.event_destroy(ordinal, event);
        }
        in_use
    }
}

unsafe fn load(call: &Call, out: *mut hipModule_t, data: *const c_void) -> Hip<()> {
    if out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    capture::unsafe_call()?;
    let device = current_open()?;
    let backend = runtime().backend;
    // SAFETY: the caller's image.
    let code = match unsafe { image::read(data) }? {
        Image::Table(kernels) => ModuleCode::Table(kernels),
        Image::Source(text, options) => {
            ModuleCode::Backend(answer(backend.module_compile(device.ordinal, &text, &options))?)
        }
        Image::Other(bytes) => ModuleCode::Backend(answer(backend.module_load(device.ordinal, bytes))?),
    };
    let module = Module {
        device,
        code,
        functions: Mutex::default(),
        last: Mutex::default(),
    };
    MODULES.up();
    // SAFETY: `out` is the caller's.
    unsafe { call.give(out, MODULES_TABLE.insert(Arc::new(module))) }
}

entries! {
    fn hipModuleLoadData(call, out: *mut hipModule_t, data: *const c_void) {
        load(call, out, data)
    }

    /// Does not wait for kernels of the module: those still queued make the device fail.
    fn hipModuleUnload(call, handle: hipModule_t) {
        let module = MODULES_TABLE.take(handle).ok_or(hipErrorInvalidHandle)?;
        MODULES.down();
        for function in module.functions.lock().values() {
            FUNCTIONS_TABLE.take(*function);
        }
        let device = module.device;
        if device.failure.has_failed() {
            return device.failure.check();
        }
        if module.in_use() {
            UNLOADED_IN_USE.up();
            device.failure.strike(USE_AFTER_UNLOAD);
            return Ok(());
        }
        if let ModuleCode::Backend(raw) = module.code {
            runtime().backend.module_destroy(device.ordinal, raw);
        }
        Ok(())
    }

    fn hipModuleGetFunction(call, out: *mut hipFunction_t, handle: hipModule_t, name: *const c_char) {
        let module = MODULES_TABLE.find(handle).ok_or(hipErrorInvalidHandle)?;
        if out.is_null() || name.is_null() {
            return Err(hipErrorInvalidValue);
        }
        let name = CStr::from_ptr(name).to_str().map_err(|_| hipErrorNotFound)?;
        call.give(out, module.function_of(name)?)
    }

    fn hipModuleGetGlobal(call, address: *mut hipDeviceptr_t, bytes: *mut usize, handle: hipModule_t, name: *const c_char) {
        let module = MODULES_TABLE.find(handle).ok_or(hipErrorInvalidHandle)?;
        if name.is_null() {
            return Err(hipErrorInvalidValue);
        }
        let name = CStr::from_ptr(name).to_str().map_err(|_| hipErrorNotFound)?;
        let ModuleCode::Backend(raw) = module.code else {
            return Err(hipErrorNotFound);
        };
        let found = answer(runtime().backend.module_global(module.device.ordinal, raw, name))?;
        if !address.is_null() {
            address.write(found.0.as_ptr());
        }
        if !bytes.is_null() {
            bytes.write(found.1 as usize);
        }
        Ok(())
    }

    fn hipFuncGetAttribute(call, value: *mut c_int, attribute: hipFunction_attribute, handle: hipFunction_t) {
        let function = function(handle)?;
        let info = answer(runtime().backend.function_info(function.device.ordinal, function.code()))?;
        let number = match attribute {
            HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => info.max_threads_per_block.into(),
            HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => info.static_shared_bytes,
            HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES => info.local_bytes,
            HIP_FUNC_ATTRIBUTE_NUM_REGS => info.registers.into(),
            _ => return Err(hipErrorInvalidValue),
        };
        write(value, c_int::try_from(number).unwrap_or(c_int::MAX))
    }

    fn hipModuleOccupancyMaxPotentialBlockSize(call, grid: *mut c_int, block: *mut c_int, handle: hipFunction_t, shared: usize, limit: c_int) {
        let function = function(handle)?;
        let device = function.device.ordinal;
        let size = answer(runtime().backend.function_block_size(device, function.code(), shared as u64))?;
        let size = if limit > 0 { size.min(limit as u32) } else { size };
        write(grid, 1)?;
        write(block, size as c_int)
    }

    /// On a stream of the function's device, which must be the current one.
    fn hipModuleLaunchKernel(
        call,
        handle: hipFunction_t,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint,
        on: hipStream_t,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        if runtime().empty {
            return Ok(());
        }
        let (function, stream) = (function(handle)?, stream::find(on)?);
        let (device, ordinal) = (stream.device, stream.device.ordinal);
        if ordinal != function.device.ordinal || ordinal != current_open()?.ordinal {
            return Err(hipErrorInvalidHandle);
        }
        if !extra.is_null() {
            return Err(hipErrorNotSupported);
        }
        let shape = Shape {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes: shared.into(),
        };
        if shape.grid.contains(&0) || shape.block.contains(&0) {
            return Err(hipErrorInvalidConfiguration);
        }
        let backend = runtime().backend;
        let arguments = Args::from_caller(arguments.cast_const());
        stream.queue(|| match device.count_launch() {
            Some(form) => backend.stream_callback(ordinal, stream.raw, Box::new(move |_| device.failure.strike(form))),
            None => backend.launch(ordinal, stream.raw, function.code(), &shape, arguments),
        })?;
        stream.set_unmarked(true);
        if let Some(module) = function.module.upgrade() {
            module.launched(&stream);
        }
        Ok(())
    }
}
