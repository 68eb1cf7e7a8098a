//! Modules, their functions, and the launch.
//!
//! A raw module and a raw function are addresses of objects of ours that stay where they are until the module is
//! destroyed: a launch reads what it needs straight from there.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::api::{
    call, Answer, CuFunction, CuModule, FUNC_LOCAL_SIZE, FUNC_MAX_DYNAMIC_SHARED_SIZE,
    FUNC_MAX_THREADS_PER_BLOCK, FUNC_NUM_REGS, FUNC_SHARED_SIZE, JIT_ERROR_LOG_BUFFER,
    JIT_ERROR_LOG_BUFFER_SIZE, JIT_INFO_LOG_BUFFER, JIT_INFO_LOG_BUFFER_SIZE,
};
use super::codes::{is_sticky, status_of, NOT_FOUND, SUCCESS};
use super::device::Device;
use super::image::{inspect, Kind};
use super::stream::{context_for, native};
use crate::backend::common::Names;
use crate::backend::image::text_part;
use crate::backend::{
    Addr, Args, Code, Error, FunctionInfo, RawFunction, RawModule, RawStream, Result, Shape, Status,
};

/// Shared memory of a block, static and dynamic, that needs no asking.
const SHARED_WITHOUT_ASKING: u64 = 48 * 1024;
/// A module's kernels are loaded with it if they are no more than this: a library of thousands would take seconds and
/// device memory for kernels that nobody runs.
const LOADED_AT_ONCE: c_uint = 256;
/// The driver does not tell how many parameters the kernel has.
const UNKNOWN: u32 = u32::MAX;

/// A loaded module.
struct Module {
    native: CuModule,
    names: Names,
    functions: Mutex<HashMap<String, Box<Function>>>,
}

/// A kernel of a loaded module.
struct Function {
    native: CuFunction,
    /// Bytes of dynamic shared memory that a launch may ask for without further ado.
    shared_ready: AtomicU64,
    parameters: u32,
    static_shared: u64,
    name: String,
}

// SAFETY: the vendor's handles may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: as above; what changes is atomic.
unsafe impl Sync for Function {}

fn module_of<'a>(raw: RawModule) -> &'a Module {
    // SAFETY: made by `load`, and by the rules of the trait not destroyed while somebody uses it.
    unsafe { &*(raw.0 as *const Module) }
}

#[inline]
fn function_of<'a>(raw: RawFunction) -> &'a Function {
    // SAFETY: made by `function`; it lives as long as its module.
    unsafe { &*(raw.0 as *const Function) }
}

/// Loads PTX, a cubin or a fatbin. `names` are name expressions with their symbols.
pub(super) fn load(device: &Device, image: &[u8], names: Vec<(String, String)>) -> Result<RawModule> {
    let kind = inspect(image)?;
    let ended: Vec<u8>;
    let start = match kind {
        Kind::Ptx => {
            ended = [text_part(image), b"\0"].concat();
            ended.as_ptr()
        }
        Kind::Cubin | Kind::Fatbin => image.as_ptr(),
    };
    const LOG_BYTES: usize = 16 * 1024;
    let (mut errors, mut notes) = (vec![0u8; LOG_BYTES], vec![0u8; LOG_BYTES]);
    let mut keys = [
        JIT_ERROR_LOG_BUFFER,
        JIT_ERROR_LOG_BUFFER_SIZE,
        JIT_INFO_LOG_BUFFER,
        JIT_INFO_LOG_BUFFER_SIZE,
    ];
    let mut values: [*mut c_void; 4] = [
        errors.as_mut_ptr().cast(),
        LOG_BYTES as *mut c_void,
        notes.as_mut_ptr().cast(),
        LOG_BYTES as *mut c_void,
    ];
    let _here = device.enter()?;
    let mut module = null_mut();
    // SAFETY: the image is complete, as `inspect` has seen; four options with their values; the context is current.
    let answer = unsafe {
        call!(
            device.api,
            cuModuleLoadDataEx(
                &mut module,
                start.cast(),
                4,
                keys.as_mut_ptr(),
                values.as_mut_ptr()
            )
        )
    };
    if answer.code != SUCCESS {
        let log =
            String::from_utf8_lossy(&errors[..errors.iter().position(|&b| b == 0).unwrap_or(LOG_BYTES)])
                .trim_end()
                .to_string();
        return Err(not_loaded(device, answer, kind, image.len(), &log));
    }
    load_kernels(device, module);
    let module = Module {
        native: module,
        names: Names::new(names),
        functions: Mutex::default(),
    };
    Ok(RawModule(Box::into_raw(Box::new(module)) as u64))
}

/// Loads the kernels of a module now. The driver puts that off until a kernel is first asked for, and what is loaded then
/// waits for what the device runs at that moment, and holds up streams that have nothing to do with it.
fn load_kernels(device: &Device, module: CuModule) {
    let (Some(ask_count), Some(list), Some(load_now)) = (
        device.api.cuModuleGetFunctionCount,
        device.api.cuModuleEnumerateFunctions,
        device.api.cuFuncLoad,
    ) else {
        return;
    };
    let mut count: c_uint = 0;
    // SAFETY: `count` is writable; the module is live and its context current.
    if unsafe { ask_count(&mut count, module) } != SUCCESS || count > LOADED_AT_ONCE {
        return;
    }
    let mut kernels = vec![null_mut(); count as usize];
    // SAFETY: room for `count` handles.
    if unsafe { list(kernels.as_mut_ptr(), count, module) } != SUCCESS {
        return;
    }
    for kernel in kernels.into_iter().filter(|kernel| !kernel.is_null()) {
        // SAFETY: a kernel of a live module. Should it not load, whoever asks for it is told.
        let _ = unsafe { load_now(kernel) };
    }
}

#[cold]
fn not_loaded(device: &Device, answer: Answer, kind: Kind, bytes: usize, log: &str) -> Error {
    let what = match kind {
        Kind::Ptx => "PTX",
        Kind::Cubin => "a cubin",
        Kind::Fatbin => "a fatbin",
    };
    let mut text = format!(
        "CUDA device {}: {what} of {bytes} bytes cannot be loaded on {}: {}",
        device.ordinal,
        device.arch(),
        device.api.code_text(answer.code)
    );
    if !log.is_empty() {
        text.push('\n');
        text.push_str(log);
    }
    if is_sticky(answer.code) {
        return device.failure(answer, &text);
    }
    let status = match status_of(answer.code) {
        // What the driver calls an invalid value here is the image.
        Status::InvalidArgument | Status::NotFound => Status::InvalidImage,
        other => other,
    };
    Error::new(status, text).native(device.api.native(answer))
}

pub(super) fn destroy(device: &Device, raw: RawModule) {
    // SAFETY: made by `load`; the last use is over.
    let module = unsafe { Box::from_raw(raw.0 as *mut Module) };
    if let Ok(_here) = device.enter() {
        // SAFETY: a live module of this context, which is current.
        let _ = unsafe { call!(device.api, cuModuleUnload(module.native)) };
    }
}

/// Finds a kernel.
pub(super) fn function(device: &Device, raw: RawModule, name: &str) -> Result<RawFunction> {
    let module = module_of(raw);
    let c = module.names.symbol(name)?;
    let mut functions = module.functions.lock();
    if let Some(known) = functions.get(name) {
        return Ok(RawFunction(&raw const **known as u64));
    }
    let _here = device.enter()?;
    let mut found = null_mut();
    // SAFETY: `found` is writable, the name ends with NUL, the module is live and its context current.
    let answer = unsafe {
        call!(
            device.api,
            cuModuleGetFunction(&mut found, module.native, c.as_ptr())
        )
    };
    if answer.code == NOT_FOUND {
        return Err(Error::new(Status::NotFound, module.names.missing("kernel", name))
            .native(device.api.native(answer)));
    }
    device.check(answer, || format!("cannot get the kernel {name:?}"))?;
    if let Some(load_now) = device.api.cuFuncLoad {
        // Where `load_kernels` has not: otherwise the first launch does it.
        // SAFETY: a live function of the current context.
        let code = unsafe { load_now(found) };
        device.check(
            Answer {
                code,
                function: "cuFuncLoad",
            },
            || format!("cannot load the kernel {name:?}"),
        )?;
    }
    let static_shared = attribute(device, found, FUNC_SHARED_SIZE, name)?.into();
    let function = Box::new(Function {
        native: found,
        shared_ready: AtomicU64::new(SHARED_WITHOUT_ASKING.saturating_sub(static_shared)),
        parameters: count_parameters(device, found),
        static_shared,
        name: name.to_string(),
    });
    let address = &raw const *function as u64;
    functions.insert(name.to_string(), function);
    Ok(RawFunction(address))
}

fn count_parameters(device: &Device, function: CuFunction) -> u32 {
    let Some(ask) = device.api.cuFuncGetParamInfo else {
        return UNKNOWN;
    };
    // A kernel's parameters take 32,764 bytes at most.
    for i in 0..=32_764u32 {
        let (mut offset, mut bytes) = (0usize, 0usize);
        // SAFETY: both are writable. Past the last parameter the answer is "invalid value".
        match unsafe { ask(function, i as usize, &mut offset, &mut bytes) } {
            SUCCESS => {}
            1 => return i,
            _ => return UNKNOWN,
        }
    }
    UNKNOWN
}

fn attribute(device: &Device, function: CuFunction, number: c_int, name: &str) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `value` is writable; the function is live.
    let answer = unsafe { call!(device.api, cuFuncGetAttribute(&mut value, number, function)) };
    device.check(answer, || format!("cannot ask about the kernel {name:?}"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Finds a variable.
pub(super) fn global(device: &Device, raw: RawModule, name: &str) -> Result<(Addr, u64)> {
    let module = module_of(raw);
    let c = module.names.symbol(name)?;
    let _here = device.enter()?;
    let (mut address, mut bytes) = (0, 0usize);
    // SAFETY: both are writable, the name ends with NUL, the module is live and its context current.
    let answer = unsafe {
        call!(
            device.api,
            cuModuleGetGlobal_v2(&mut address, &mut bytes, module.native, c.as_ptr())
        )
    };
    if answer.code == NOT_FOUND {
        return Err(
            Error::new(Status::NotFound, module.names.missing("variable", name))
                .native(device.api.native(answer)),
        );
    }
    device.check(answer, || format!("cannot get the variable {name:?}"))?;
    Ok((Addr::from_backend(address), bytes as u64))
}

#[cold]
fn host_kernel(device: &Device) -> Error {
    Error::new(
        Status::NotSupported,
        format!(
            "a kernel made from a host function runs on host devices only; CUDA device {} needs one from a module",
            device.ordinal
        ),
    )
}

fn module_kernel<'a>(device: &Device, code: Code<'_>) -> Result<&'a Function> {
    match code {
        Code::Function(raw) => Ok(function_of(raw)),
        Code::Host(_) => Err(host_kernel(device)),
    }
}

/// Launches a kernel: no lock, no allocation, no look at the context, one vendor call.
#[inline]
pub(super) fn launch(
    device: &Device,
    stream: RawStream,
    code: Code<'_>,
    shape: &Shape,
    args: Args<'_>,
) -> Result<()> {
    let Code::Function(raw) = code else {
        return Err(host_kernel(device));
    };
    let function = function_of(raw);
    check_args(function, args)?;
    if shape.shared_bytes > function.shared_ready.load(Ordering::Relaxed) {
        opt_in(device, function, shape.shared_bytes)?;
    }
    let _context = context_for(device, stream)?;
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    // SAFETY: function and stream are live and of one device. The caller vouches for the arguments, which the
    // driver copies before it returns. The bytes of shared memory were held against the device's limit.
    let answer = unsafe {
        call!(
            device.api,
            cuLaunchKernel(
                function.native,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shape.shared_bytes as c_uint,
                native(stream),
                args.as_ptr().cast_mut(),
                null_mut(),
            )
        )
    };
    if answer.code == SUCCESS {
        return Ok(());
    }
    Err(refused(device, function, shape, answer))
}

/// The driver reads through every entry without a look.
#[inline]
fn check_args(function: &Function, args: Args<'_>) -> Result<()> {
    if function.parameters == UNKNOWN || function.parameters == 0 {
        return Ok(());
    }
    if args.is_null() {
        return Err(no_args(function, None));
    }
    for i in 0..function.parameters as usize {
        // SAFETY: the caller vouches for one readable pointer for each argument.
        if unsafe { (*args.as_ptr().add(i)).is_null() } {
            return Err(no_args(function, Some(i)));
        }
    }
    Ok(())
}

#[cold]
fn no_args(function: &Function, missing: Option<usize>) -> Error {
    let text = match missing {
        None => format!(
            "the kernel {:?} takes {} argument(s), and the argument array is NULL",
            function.name, function.parameters
        ),
        Some(i) => format!(
            "the kernel {:?} takes {} argument(s), and entry {i} of the argument array is NULL",
            function.name, function.parameters
        ),
    };
    Error::new(Status::InvalidArgument, text)
}

#[cold]
fn refused(device: &Device, function: &Function, shape: &Shape, answer: Answer) -> Error {
    let what = format!(
        "cannot launch the kernel {:?} with {:?} blocks of {:?} threads and {} bytes of dynamic shared memory",
        function.name, shape.grid, shape.block, shape.shared_bytes
    );
    if is_sticky(answer.code) {
        return device.failure(answer, &what);
    }
    let mut text = format!(
        "CUDA device {}: {what}: {}",
        device.ordinal,
        device.api.code_text(answer.code)
    );
    if let Ok(limit) = device.enter().and_then(|_here| {
        attribute(
            device,
            function.native,
            FUNC_MAX_THREADS_PER_BLOCK,
            &function.name,
        )
    }) {
        text.push_str(&format!("; this kernel runs with up to {limit} threads a block"));
    }
    let status = match status_of(answer.code) {
        status @ (Status::Capturing | Status::OutOfMemory) => status,
        _ => Status::LaunchFailed,
    };
    Error::new(status, text).native(device.api.native(answer))
}

/// Above 48 KiB of shared memory a kernel has to be asked for: once, for all that it can get.
#[cold]
fn opt_in(device: &Device, function: &Function, bytes: u64) -> Result<()> {
    let limit = device.max_shared().saturating_sub(function.static_shared);
    if bytes > limit {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "{bytes} bytes of dynamic shared memory; CUDA device {} gives the kernel {:?} up to {limit} beside its {} static ones",
                device.ordinal, function.name, function.static_shared
            ),
        ));
    }
    let _here = device.enter()?;
    // SAFETY: the function is live and its context current.
    let answer = unsafe {
        call!(
            device.api,
            cuFuncSetAttribute(function.native, FUNC_MAX_DYNAMIC_SHARED_SIZE, limit as c_int)
        )
    };
    device.check(answer, || {
        format!(
            "cannot ask for {limit} bytes of shared memory for the kernel {:?}",
            function.name
        )
    })?;
    function.shared_ready.store(limit, Ordering::Relaxed);
    Ok(())
}

/// Limits and costs of a kernel.
pub(super) fn info(device: &Device, code: Code<'_>) -> Result<FunctionInfo> {
    let function = module_kernel(device, code)?;
    let _here = device.enter()?;
    let ask = |number| attribute(device, function.native, number, &function.name);
    Ok(FunctionInfo {
        max_threads_per_block: ask(FUNC_MAX_THREADS_PER_BLOCK)?,
        registers: ask(FUNC_NUM_REGS)?,
        static_shared_bytes: ask(FUNC_SHARED_SIZE)?.into(),
        local_bytes: ask(FUNC_LOCAL_SIZE)?.into(),
    })
}

/// The block size that keeps the device busiest.
pub(super) fn block_size(device: &Device, code: Code<'_>, shared_bytes: u64) -> Result<u32> {
    let function = module_kernel(device, code)?;
    if shared_bytes > function.shared_ready.load(Ordering::Relaxed) {
        opt_in(device, function, shared_bytes)?;
    }
    let _here = device.enter()?;
    let (mut blocks, mut threads) = (0, 0);
    // SAFETY: both are writable; the function is live and its context current; without a callback the size is fixed.
    let answer = unsafe {
        call!(
            device.api,
            cuOccupancyMaxPotentialBlockSize(
                &mut blocks,
                &mut threads,
                function.native,
                null(),
                shared_bytes as usize,
                0
            )
        )
    };
    device.check(answer, || {
        format!(
            "cannot ask for the best block size of the kernel {:?}",
            function.name
        )
    })?;
    u32::try_from(threads).ok().filter(|n| *n > 0).ok_or_else(|| {
        Error::new(
            Status::LaunchFailed,
            format!("the kernel {:?} fits the device with no block size and {shared_bytes} bytes of shared memory", function.name),
        )
    })
}
