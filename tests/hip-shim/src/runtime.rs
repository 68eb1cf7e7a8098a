//! The runtime of the process: set up by its first call, from the environment.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

use taskgpu::backend::{self, os, Backend, Error, HostSettings, Status};

use crate::device::Device;
use crate::ffi::*;
use crate::script::Script;

/// Version 6.3, as `hipRuntimeGetVersion` numbers it.
const DEFAULT_VERSION: i32 = 60_300_000;
/// What changed with them.
const VERSION_6: i32 = 60_000_000;
const VERSION_7: i32 = 70_000_000;

/// The runtime.
pub struct Runtime {
    pub backend: &'static dyn Backend,
    pub devices: Box<[Device]>,
    pub script: Script,
    pub version: i32,
    /// Calls do no more than they must: for counting what lies above them.
    pub empty: bool,
}

impl Runtime {
    /// Kinds of memory are numbered as since ROCm 6, and a pointer nobody knows is a kind of its own.
    pub fn kinds_of_6(&self) -> bool {
        self.version >= VERSION_6
    }

    /// Only failures become the last error, and "not ready" is none.
    pub fn keeps_errors(&self) -> bool {
        self.version >= VERSION_7
    }

    /// The backend leaves the order of the legacy stream to us.
    pub fn orders_legacy(&self) -> bool {
        self.backend.name() == "host"
    }
}

/// The runtime, brought up by the first call.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(start)
}

fn start() -> Runtime {
    let script = std::env::var("HIP_SHIM_SCRIPT").unwrap_or_default();
    let script = Script::read(&script).unwrap_or_else(|why| wrong("HIP_SHIM_SCRIPT", &why));
    for name in script.functions() {
        if crate::counts::function(name).is_none() {
            wrong("HIP_SHIM_SCRIPT", &format!("there is no function {name}"));
        }
    }
    let name = std::env::var("HIP_SHIM_BACKEND").unwrap_or_else(|_| "host".to_owned());
    let count: u32 = number(&["HIP_SHIM_DEVICES"]).unwrap_or(4);
    // The devices are host devices: how many threads they have and how much memory is said as for the library's own.
    let settings = HostSettings {
        devices: count.max(1),
        threads: number(&["HIP_SHIM_THREADS", "TASKGPU_HOST_THREADS"]).unwrap_or(0),
        memory: number(&["HIP_SHIM_MEMORY", "TASKGPU_HOST_MEMORY"]).unwrap_or(0),
    };
    let backend = backend::load(&name, settings)
        .unwrap_or_else(|why| wrong("HIP_SHIM_BACKEND", &format!("{name}: {why}")));
    let devices = (0..count.min(backend.device_count()))
        .map(|ordinal| {
            Device::new(
                ordinal,
                script.faults.iter().find(|f| f.device == ordinal).copied(),
            )
        })
        .collect();
    HOME.store(std::process::id(), Ordering::Relaxed);
    os::at_exit(shut_down);
    Runtime {
        backend,
        devices,
        script,
        version: number(&["HIP_SHIM_VERSION"]).unwrap_or(DEFAULT_VERSION),
        empty: number(&["HIP_SHIM_EMPTY"]).unwrap_or(0) != 0,
    }
}

/// The first of these variables that is set.
fn number<N: FromStr>(names: &[&str]) -> Option<N>
where
    N::Err: Display,
{
    names.iter().find_map(|name| {
        let text = std::env::var(name).ok().filter(|text| !text.trim().is_empty())?;
        Some(
            text.trim()
                .parse()
                .unwrap_or_else(|why| wrong(name, &format!("{text}: {why}"))),
        )
    })
}

/// A test that asks for what cannot be had shall not go on with something else.
fn wrong(variable: &str, why: &str) -> ! {
    eprintln!("hip-shim: {variable}: {why}");
    std::process::abort()
}

/// The process that the runtime was brought up in. The threads stay with it when it forks.
static HOME: AtomicU32 = AtomicU32::new(0);

/// At the end of the process the runtime goes down before the program's own memory does: what runs is stopped, and calls
/// answer that.
extern "C" fn shut_down() {
    if HOME.load(Ordering::Relaxed) == std::process::id() {
        backend::park_for_exit();
    }
}

/// The code for a failure of the backend below.
pub fn code(error: &Error) -> hipError_t {
    if let (Status::DeviceLost | Status::LaunchFailed, Some(native)) =
        (error.status(), &error.detail().native)
    {
        // The two vendors number these alike.
        return native.code as hipError_t;
    }
    match error.status() {
        Status::NotReady => hipErrorNotReady,
        Status::InvalidArgument => hipErrorInvalidValue,
        Status::InvalidHandle => hipErrorInvalidHandle,
        Status::InvalidDevice => hipErrorInvalidDevice,
        Status::NoDevice => hipErrorNoDevice,
        Status::OutOfMemory => hipErrorOutOfMemory,
        Status::NotSupported => hipErrorNotSupported,
        Status::NotFound => hipErrorNotFound,
        Status::NotPermitted => hipErrorDeinitialized,
        Status::CompileFailed => hipErrorInvalidSource,
        Status::InvalidImage => hipErrorInvalidImage,
        Status::LaunchFailed | Status::DeviceLost => hipErrorLaunchFailure,
        Status::Capturing => hipErrorStreamCaptureUnsupported,
        _ => hipErrorUnknown,
    }
}

/// The answer of the backend below as ours.
pub fn answer<T>(result: taskgpu::backend::Result<T>) -> Result<T, hipError_t> {
    result.map_err(|error| code(&error))
}
