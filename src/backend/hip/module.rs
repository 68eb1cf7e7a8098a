//! Modules, their functions, and the launch.
//!
//! A raw module and a raw function are addresses of objects of ours that stay where they are until the module is
//! destroyed: a launch reads what it needs straight from there.

use std::collections::HashMap;
use std::ffi::c_uint;
use std::ptr::null_mut;

use parking_lot::Mutex;

use super::api::{call, Answer};
use super::codes::{is_sticky, status_of};
use super::device::Device;
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use super::image::inspect;
use super::stream::native;
use crate::backend::common::Names;
use crate::backend::{
    Addr, Args, Code, Error, FunctionInfo, RawFunction, RawModule, RawStream, Result, Shape, Status,
};

/// Most threads of a grid along each axis: the runtime counts them with 32 bits.
const MOST_THREADS: u64 = u32::MAX as u64;

/// A loaded module.
struct Module {
    native: hipModule_t,
    names: Names,
    functions: Mutex<HashMap<String, Box<Function>>>,
    /// The runtime goes on reading from where it was given the image.
    _image: Box<[u64]>,
}

/// A kernel of a loaded module.
struct Function {
    native: hipFunction_t,
    static_shared: u64,
    /// Most bytes of dynamic shared memory of a block.
    most_shared: u64,
    name: String,
}

// SAFETY: the vendor's handles may be used from any thread; nothing changes.
unsafe impl Send for Function {}
// SAFETY: as above.
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

/// A copy at an address that all the numbers in an image are aligned for.
fn aligned(image: &[u8]) -> Box<[u64]> {
    image
        .chunks(8)
        .map(|part| {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            u64::from_ne_bytes(word)
        })
        .collect()
}

/// Loads a code object or an offload bundle. `names` are name expressions with their symbols.
pub(super) fn load(device: &Device, image: &[u8], names: Vec<(String, String)>) -> Result<RawModule> {
    inspect(image)?;
    let kept = aligned(image);
    let _here = device.enter()?;
    let mut module = null_mut();
    // SAFETY: `module` is writable; the image is complete, as `inspect` has seen, and kept; the device is current.
    let answer = unsafe { call!(device.api, hipModuleLoadData(&mut module, kept.as_ptr().cast())) };
    if answer.code != hipSuccess {
        return Err(not_loaded(device, answer, image.len()));
    }
    device.given(answer, module, || "cannot load an image".into())?;
    let module = Module {
        native: module,
        names: Names::new(names),
        functions: Mutex::default(),
        _image: kept,
    };
    Ok(RawModule(Box::into_raw(Box::new(module)) as u64))
}

#[cold]
fn not_loaded(device: &Device, answer: Answer, bytes: usize) -> Error {
    let e = device.failure(
        answer,
        &format!("an image of {bytes} bytes cannot be loaded on {}", device.arch()),
    );
    match e.status() {
        // What the runtime calls an invalid value or a missing file here is the image.
        Status::InvalidArgument | Status::NotFound => {
            Error::new(Status::InvalidImage, e.detail().text.clone()).native(device.api.native(answer))
        }
        _ => e,
    }
}

pub(super) fn destroy(device: &Device, raw: RawModule) {
    // SAFETY: made by `load`; the last use is over.
    let module = unsafe { Box::from_raw(raw.0 as *mut Module) };
    if let Ok(_here) = device.enter() {
        // SAFETY: a live module of this device, which is current. The runtime does not wait for kernels of it, so by the
        // rules of the trait they have run.
        let answer = unsafe { call!(device.api, hipModuleUnload(module.native)) };
        device.api.forget(answer.code);
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
    // SAFETY: `found` is writable, the name ends with NUL, the module is live and its device current.
    let answer = unsafe {
        call!(
            device.api,
            hipModuleGetFunction(&mut found, module.native, c.as_ptr())
        )
    };
    refuse_missing(device, answer, || module.names.missing("kernel", name))?;
    device.given(answer, found, || format!("cannot get the kernel {name:?}"))?;
    let static_shared = attribute(device, found, HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, name)?.into();
    let function = Box::new(Function {
        native: found,
        static_shared,
        most_shared: device.max_shared().saturating_sub(static_shared),
        name: name.to_string(),
    });
    let address = &raw const *function as u64;
    functions.insert(name.to_string(), function);
    Ok(RawFunction(address))
}

/// Says in our words that a module has nothing of that name.
fn refuse_missing(device: &Device, answer: Answer, text: impl FnOnce() -> String) -> Result<()> {
    if status_of(answer.code) != Status::NotFound {
        return Ok(());
    }
    device.api.forget(answer.code);
    Err(Error::new(Status::NotFound, text()).native(device.api.native(answer)))
}

fn attribute(
    device: &Device,
    function: hipFunction_t,
    number: hipFunction_attribute,
    name: &str,
) -> Result<u32> {
    let mut value = 0;
    // SAFETY: `value` is writable; the function is live and its device current.
    let answer = unsafe { call!(device.api, hipFuncGetAttribute(&mut value, number, function)) };
    device.check(answer, || format!("cannot ask about the kernel {name:?}"))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Finds a variable.
pub(super) fn global(device: &Device, raw: RawModule, name: &str) -> Result<(Addr, u64)> {
    let module = module_of(raw);
    let c = module.names.symbol(name)?;
    let _here = device.enter()?;
    let (mut address, mut bytes) = (null_mut(), 0usize);
    // SAFETY: both are writable, the name ends with NUL, the module is live and its device current.
    let answer = unsafe {
        call!(
            device.api,
            hipModuleGetGlobal(&mut address, &mut bytes, module.native, c.as_ptr())
        )
    };
    refuse_missing(device, answer, || module.names.missing("variable", name))?;
    device.given(answer, address, || format!("cannot get the variable {name:?}"))?;
    Ok((Addr::from_backend(address as u64), bytes as u64))
}

#[cold]
fn host_kernel(device: &Device) -> Error {
    Error::new(
        Status::NotSupported,
        format!(
            "a kernel made from a host function runs on host devices only; HIP device {} needs one from a module",
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

/// Launches a kernel: no lock, no allocation, one vendor call besides the look at the current device, without which the runtime
/// refuses a stream of another one.
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
    if shape.shared_bytes > function.most_shared {
        return Err(too_much_shared(device, function, shape.shared_bytes));
    }
    if (0..3).any(|axis| threads_along(shape, axis) > MOST_THREADS) {
        return Err(too_many_threads(device, shape));
    }
    let _current = device.set_current()?;
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    // SAFETY: function and stream are live and of one device, which is current. The caller vouches for the arguments, which
    // the runtime copies before it returns.
    let answer = unsafe {
        call!(
            device.api,
            hipModuleLaunchKernel(
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
    if answer.code == hipSuccess {
        return Ok(());
    }
    Err(refused(device, function, shape, args, answer))
}

/// Threads of the whole grid along an axis.
#[inline]
fn threads_along(shape: &Shape, axis: usize) -> u64 {
    u64::from(shape.grid[axis]) * u64::from(shape.block[axis])
}

#[cold]
fn too_many_threads(device: &Device, shape: &Shape) -> Error {
    let axis = (0..3).max_by_key(|&axis| threads_along(shape, axis)).unwrap_or(0);
    Error::new(
        Status::InvalidArgument,
        format!(
            "{} blocks of {} threads in {} are {} threads; HIP device {} takes up to {MOST_THREADS} along each axis",
            shape.grid[axis],
            shape.block[axis],
            ["x", "y", "z"][axis],
            threads_along(shape, axis),
            device.ordinal
        ),
    )
}

#[cold]
fn too_much_shared(device: &Device, function: &Function, bytes: u64) -> Error {
    Error::new(
        Status::InvalidArgument,
        format!(
            "{bytes} bytes of dynamic shared memory; HIP device {} gives the kernel {:?}, which has {} of its own, up to {}",
            device.ordinal, function.name, function.static_shared, function.most_shared
        ),
    )
}

/// The device is current.
#[cold]
fn refused(device: &Device, function: &Function, shape: &Shape, args: Args<'_>, answer: Answer) -> Error {
    let what = format!(
        "cannot launch the kernel {:?} with {:?} blocks of {:?} threads and {} bytes of dynamic shared memory",
        function.name, shape.grid, shape.block, shape.shared_bytes
    );
    let limit = attribute(
        device,
        function.native,
        HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        &function.name,
    );
    let threads: u64 = shape.block.iter().map(|n| u64::from(*n)).product();
    let too_large = matches!(limit, Ok(limit) if threads > u64::from(limit));
    // A block above the kernel's own bounds is answered with the code that otherwise says that a kernel has failed.
    if is_sticky(answer.code) && !(too_large && answer.code == hipErrorLaunchFailure) {
        return device.failure(answer, &what);
    }
    device.api.forget(answer.code);
    let mut text = format!(
        "HIP device {}: {what}: {}",
        device.ordinal,
        device.api.code_text(answer.code)
    );
    if let Ok(limit) = limit {
        text.push_str(&format!("; this kernel runs with up to {limit} threads a block"));
    }
    let status = match status_of(answer.code) {
        status @ (Status::Capturing | Status::OutOfMemory) => status,
        // The shape was held against the limits before: what is left is the arguments.
        Status::InvalidArgument => {
            text.push_str(match args.is_null() {
                true => "; the array of arguments is NULL",
                false => "; an entry of the array of arguments may be NULL",
            });
            Status::InvalidArgument
        }
        _ => Status::LaunchFailed,
    };
    Error::new(status, text).native(device.api.native(answer))
}

/// Limits and costs of a kernel.
pub(super) fn info(device: &Device, code: Code<'_>) -> Result<FunctionInfo> {
    let function = module_kernel(device, code)?;
    let _here = device.enter()?;
    let ask = |number| attribute(device, function.native, number, &function.name);
    Ok(FunctionInfo {
        max_threads_per_block: ask(HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        registers: ask(HIP_FUNC_ATTRIBUTE_NUM_REGS)?,
        static_shared_bytes: function.static_shared,
        local_bytes: ask(HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?.into(),
    })
}

/// The block size that keeps the device busiest.
pub(super) fn block_size(device: &Device, code: Code<'_>, shared_bytes: u64) -> Result<u32> {
    let function = module_kernel(device, code)?;
    if shared_bytes > function.most_shared {
        return Err(too_much_shared(device, function, shared_bytes));
    }
    let _here = device.enter()?;
    let (mut blocks, mut threads) = (0, 0);
    // SAFETY: both are writable; the function is live and its device current.
    let answer = unsafe {
        call!(
            device.api,
            hipModuleOccupancyMaxPotentialBlockSize(
                &mut blocks,
                &mut threads,
                function.native,
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
            format!(
                "the kernel {:?} fits the device with no block size and {shared_bytes} bytes of shared memory",
                function.name
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_image_has_every_byte_in_its_place() {
        let image: Vec<u8> = (0..21).collect();
        let kept = aligned(&image);
        let bytes: Vec<u8> = kept.iter().flat_map(|w| w.to_ne_bytes()).collect();
        assert_eq!(bytes[..21], image);
        assert_eq!(bytes.len(), 24);
        assert!(aligned(&[]).is_empty());
    }
}
