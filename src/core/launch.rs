//! Launches: the shape is checked here, before a vendor sees it.

use crate::backend::{Args, Code, DeviceInfo, Error, Result, Shape, Status};

use super::device::Device;
use super::handle::{KernelHandle, StreamHandle};
use super::kernel::{self, Kernel};
use super::stream;
use super::task;

/// Launches a kernel on a stream, on that stream's device.
#[inline]
pub fn launch(kernel: KernelHandle, stream: StreamHandle, shape: &Shape, args: Args<'_>) -> Result<()> {
    match again(kernel, stream, shape, args) {
        Some(result) => result,
        None => launch_referenced(kernel, stream, shape, args),
    }
}

/// Launches what has been launched before on that device: no references are counted. `None`, and nothing done, where
/// there is more to do or something to say.
#[inline]
fn again(kernel: KernelHandle, stream: StreamHandle, shape: &Shape, args: Args<'_>) -> Option<Result<()>> {
    let call = task::enter_call()?;
    let stream = stream::look(&call, stream)?;
    let device = stream.device;
    let (function, number) = kernel::look(&call, kernel, device)?;
    if !allowed(device.known_info()?, shape) {
        return None;
    }
    let code = Code::Function(function);
    let launched = stream.queue(|raw| device.backend.launch(device.ordinal, raw, code, shape, args));
    Some(launched.map(|()| stream.launched(number)).map_err(|error| {
        let kernel = kernel::name(number).unwrap_or_default();
        stream.concern(name("launch of", &kernel, error))
    }))
}

/// Launches with both objects kept alive meanwhile.
#[inline(never)]
fn launch_referenced(
    kernel: KernelHandle,
    stream: StreamHandle,
    shape: &Shape,
    args: Args<'_>,
) -> Result<()> {
    let stream = stream::resolve(task::here()?, stream)?;
    let kernel = kernel::find(kernel)?;
    let device = stream.device;
    if !allowed(device.info()?, shape) {
        return Err(refuse(&kernel, device, shape).on_stream(stream.id));
    }
    let code = kernel.on(device)?;
    stream
        .queue(|raw| device.backend.launch(device.ordinal, raw, code, shape, args))
        .map_err(|e| stream.concern(name("launch of", &kernel.name, e)))?;
    stream.launched(kernel.number);
    Ok(())
}

/// True for a shape within the limits of a device.
#[inline]
fn allowed(limits: &DeviceInfo, shape: &Shape) -> bool {
    let threads = shape.block.iter().map(|n| u64::from(*n)).product::<u64>();
    let within = |sizes: &[u32; 3], most: &[u32; 3]| (0..3).all(|i| sizes[i] != 0 && sizes[i] <= most[i]);
    // The product of three checked block dimensions cannot overflow: it is looked at only after them.
    within(&shape.grid, &limits.max_grid)
        && within(&shape.block, &limits.max_block)
        && threads <= u64::from(limits.max_threads_per_block)
        && shape.shared_bytes <= limits.max_shared_per_block
}

/// Says which number is wrong and what would be right.
#[cold]
fn refuse(kernel: &Kernel, device: &Device, shape: &Shape) -> Error {
    let limits = match device.info() {
        Ok(limits) => limits,
        Err(error) => return error,
    };
    let mut text = String::new();
    let dimensions = [
        ("grid", "blocks", &shape.grid, &limits.max_grid),
        ("block", "threads", &shape.block, &limits.max_block),
    ];
    for (what, unit, sizes, most) in dimensions {
        for (axis, (size, most)) in ["x", "y", "z"].iter().zip(sizes.iter().zip(most)) {
            if text.is_empty() && (*size == 0 || size > most) {
                text = format!("{what}.{axis} is {size} {unit}; it must be from 1 to {most}");
            }
        }
    }
    if text.is_empty() {
        let threads: u64 = shape.block.iter().map(|n| u64::from(*n)).product();
        let [x, y, z] = shape.block;
        text = if threads > u64::from(limits.max_threads_per_block) {
            format!(
                "a block of {x} x {y} x {z} has {threads} threads; the limit is {}",
                limits.max_threads_per_block
            )
        } else {
            format!(
                "a block asks for {} bytes of dynamic shared memory; the limit is {}",
                shape.shared_bytes, limits.max_shared_per_block
            )
        };
    }
    let text = format!("launch of {} on device {}: {text}", kernel.name, device.index);
    Error::new(Status::InvalidArgument, text).on_device(device.index)
}

/// Says in an error of the backend what was wanted of which kernel.
#[cold]
pub(super) fn name(what: &str, kernel: &str, error: Error) -> Error {
    let detail = error.detail();
    let mut named = Error::new(detail.status, format!("{what} {kernel}: {}", detail.text));
    if let Some(native) = &detail.native {
        named = named.native(native.clone());
    }
    named
}
