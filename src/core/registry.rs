//! The process: which backends there are, the device list, and the life around it (fork, exit).

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use once_cell::sync::OnceCell;

use crate::backend::{self, os, Backend, Error, HostSettings, Result, Status};

use super::device::Device;
use super::environment::{Backends, Environment, Level};
use super::task;

/// Most devices in the process's list.
const MAX_DEVICES: usize = 256;

/// How the search for one backend went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendReport {
    /// `"hip"`, `"cuda"` or `"host"`.
    pub name: String,
    /// Its devices are in the list, or could be.
    pub available: bool,
    /// Devices it brought into the list.
    pub device_count: u32,
    /// The runtime's version.
    pub version: String,
    /// Where the runtime was found.
    pub path: String,
    /// Why it is not available or not used.
    pub reason: String,
}

/// What every call needs.
pub(crate) struct Runtime {
    pub(crate) devices: Box<[Device]>,
    pub(crate) environment: Environment,
    /// The device a task starts on.
    pub(crate) default_device: AtomicI32,
    /// Spinning threads yield on a machine with few cores.
    pub(crate) scarce_cores: bool,
}

struct Probe {
    reports: Vec<BackendReport>,
    outcome: Result<Runtime>,
}

static PROBE: OnceCell<Probe> = OnceCell::new();
/// The handler of forks is installed.
static HOOKED: AtomicBool = AtomicBool::new(false);
/// The process is a fork's child and the runtime stayed with the parent.
static FORKED: AtomicBool = AtomicBool::new(false);
/// A helper thread of the core runs, which a fork's child would lack.
static HELPERS: AtomicBool = AtomicBool::new(false);
/// Something was made: locks have been taken that a fork may find taken.
static USED: AtomicBool = AtomicBool::new(false);
/// Threads inside an [`Uncut`] section.
static BUSY: AtomicU32 = AtomicU32::new(0);
static EXITING: AtomicBool = AtomicBool::new(false);

/// The runtime, brought up by the first call that needs it.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    probe()?.outcome.as_ref().map_err(Error::clone)
}

/// The runtime, if it is up. For calls that have found their task, and with it that they may go on.
#[inline]
pub(crate) fn up() -> Option<&'static Runtime> {
    match PROBE.get() {
        Some(Probe {
            outcome: Ok(runtime), ..
        }) => Some(runtime),
        _ => None,
    }
}

/// The runtime, if it is up and may be touched: destroy calls and helper threads bring nothing up.
pub(crate) fn present() -> Option<&'static Runtime> {
    if forked() {
        return None;
    }
    PROBE.get()?.outcome.as_ref().ok()
}

fn probe() -> Result<&'static Probe> {
    if forked() {
        return Err(forked_error());
    }
    if let Some(probe) = PROBE.get() {
        return Ok(probe);
    }
    // Before anything that a fork could cut in two. Several threads may come here; one handler or more is the same.
    if !HOOKED.load(Ordering::SeqCst) {
        os::at_fork_child(after_fork);
        HOOKED.store(true, Ordering::SeqCst);
    }
    let _uncut = uncut();
    Ok(PROBE.get_or_init(|| {
        os::at_exit(at_exit);
        search()
    }))
}

/// True in a fork's child that must not touch the runtime.
pub(crate) fn forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

#[cold]
pub(crate) fn forked_error() -> Error {
    Error::new(
        Status::Forked,
        "this process is the child of a fork made after devices were in use; runtimes and their threads stay with \
         the parent. Fork before the first use, or exec in the child",
    )
}

/// True where the user asked to see failures.
pub(crate) fn logs_errors() -> bool {
    present().is_some_and(|runtime| runtime.environment.log >= Level::Error)
}

/// True once the process has begun to exit.
pub(crate) fn exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Refuses what would call a library that the end of the process has taken apart already.
pub(crate) fn not_exiting() -> Result<()> {
    match exiting() {
        false => Ok(()),
        true => Err(Error::new(
            Status::NotPermitted,
            "the process is exiting: no more code is built for devices",
        )),
    }
}

/// Says that a helper thread of the core is about to start.
pub(crate) fn helpers_started() {
    HELPERS.store(true, Ordering::SeqCst);
}

/// Says that more is being done than asking questions.
#[inline]
pub(crate) fn used() {
    if !is_used() {
        USED.store(true, Ordering::SeqCst);
    }
}

/// True once more was done than asking questions.
#[inline]
pub(crate) fn is_used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// A short section of a thread that may go on while another one forks, in calls that only ask questions.
pub(crate) struct Uncut(());

pub(crate) fn uncut() -> Uncut {
    BUSY.fetch_add(1, Ordering::SeqCst);
    Uncut(())
}

impl Drop for Uncut {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

extern "C" fn after_fork() {
    // Threads that the child lacks may have been in the middle of a call, with locks held or waiting for one.
    let others = task::forget_other_threads();
    let cut = BUSY.swap(0, Ordering::SeqCst) > 0 || others && USED.load(Ordering::SeqCst);
    let live = cut
        || HELPERS.load(Ordering::SeqCst)
        || PROBE
            .get()
            .and_then(|probe| probe.outcome.as_ref().ok())
            .is_some_and(|runtime| runtime.devices.iter().any(|device| device.backend.fork_unsafe()))
        || backend::fork_unsafe();
    if live {
        FORKED.store(true, Ordering::SeqCst);
        task::forget_thread();
    }
}

extern "C" fn at_exit() {
    EXITING.store(true, Ordering::SeqCst);
    // A fork's child has no workers, and its locks may have been taken by threads that stayed with the parent.
    if !forked() {
        backend::park_for_exit();
    }
}

fn search() -> Probe {
    let mut reports = Vec::new();
    let outcome = bring_up(&mut reports);
    if let Ok(runtime) = &outcome {
        if runtime.environment.log >= Level::Info {
            for report in &reports {
                let BackendReport {
                    name,
                    device_count,
                    version,
                    path,
                    reason,
                    ..
                } = report;
                eprintln!("taskgpu: backend {name}: {device_count} devices {version} {path} {reason}");
            }
        }
    }
    Probe { reports, outcome }
}

fn bring_up(reports: &mut Vec<BackendReport>) -> Result<Runtime> {
    let environment = Environment::read(|name| std::env::var_os(name), backend::NAMES)?;
    let settings = HostSettings {
        devices: environment.host_devices,
        threads: environment.host_threads,
        memory: environment.host_memory,
    };
    if let Some(folder) = &environment.cache_folder {
        backend::set_cache_folder(folder.clone());
    }
    let wanted: Vec<&str> = match &environment.backends {
        Backends::Auto => backend::NAMES.to_vec(),
        Backends::List(names) => names.iter().map(String::as_str).collect(),
    };
    let auto = environment.backends == Backends::Auto;
    let mut found: Vec<(&'static dyn Backend, u32)> = Vec::new();
    for name in backend::NAMES {
        if !wanted.contains(name) {
            let reason = "not in TASKGPU_BACKENDS".to_owned();
            reports.push(BackendReport {
                name: (*name).to_owned(),
                reason,
                ..Default::default()
            });
        }
    }
    for name in &wanted {
        let mut report = BackendReport {
            name: (*name).to_owned(),
            ..Default::default()
        };
        if auto && backend::is_fallback(name) && !found.is_empty() {
            report.available = true;
            report.reason = "not used: there are GPUs".to_owned();
            reports.push(report);
            continue;
        }
        match backend::load(name, settings) {
            Ok(backend) => {
                report.available = true;
                report.version = backend.version();
                report.path = backend.path();
                let count = backend.device_count();
                if count == 0 {
                    report.reason = "no device".to_owned();
                }
                found.extend((0..count).map(|ordinal| (backend, ordinal)));
            }
            Err(error) => report.reason = error.to_string(),
        }
        reports.push(report);
    }
    reports.sort_by_key(|report| backend::NAMES.iter().position(|name| *name == report.name));
    // Before the choice among them: where there are none, the reasons say more than an index that is too large.
    if found.is_empty() {
        let reasons: Vec<String> = reports
            .iter()
            .filter(|report| wanted.contains(&report.name.as_str()))
            .map(|report| format!("{}: {}", report.name, report.reason))
            .collect();
        return Err(Error::new(
            Status::NoDevice,
            format!("no device was found ({})", reasons.join("; ")),
        ));
    }
    let found = match &environment.visible {
        Some(visible) => select(&found, visible)?,
        None => found,
    };
    for report in reports.iter_mut() {
        report.device_count = found
            .iter()
            .filter(|(backend, _)| backend.name() == report.name)
            .count() as u32;
    }
    if found.len() > MAX_DEVICES {
        return Err(Error::new(
            Status::NotSupported,
            format!(
                "{} devices were found; a process can have {MAX_DEVICES}",
                found.len()
            ),
        ));
    }
    let devices = found
        .into_iter()
        .enumerate()
        .map(|(index, (backend, ordinal))| Device::new(index as u32, ordinal, backend))
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Runtime {
        devices,
        environment,
        default_device: AtomicI32::new(0),
        scarce_cores: cores <= 4,
    })
}

/// The devices that `TASKGPU_VISIBLE_DEVICES` names, in its order.
fn select(
    found: &[(&'static dyn Backend, u32)],
    visible: &[String],
) -> Result<Vec<(&'static dyn Backend, u32)>> {
    let mut chosen = Vec::new();
    for entry in visible {
        let nonsense = |why: String| {
            Error::new(
                Status::Environment,
                format!(
                    "TASKGPU_VISIBLE_DEVICES is \"{}\"; \"{entry}\" {why}",
                    visible.join(",")
                ),
            )
        };
        // A short run of digits is an index; a UUID prefix that is all digits can be told apart by its length.
        let index = match entry.parse::<usize>() {
            Ok(index) if entry.len() < 8 => {
                if index >= found.len() {
                    return Err(nonsense(format!("is no index from 0 to {}", found.len() - 1)));
                }
                index
            }
            _ => {
                let prefix = entry
                    .trim_start_matches("GPU-")
                    .replace('-', "")
                    .to_ascii_lowercase();
                if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(nonsense(
                        "is neither a device index nor the start of a UUID".to_owned(),
                    ));
                }
                let mut matching = Vec::new();
                for (index, (backend, ordinal)) in found.iter().enumerate() {
                    if hex(&backend.device_info(*ordinal)?.uuid).starts_with(&prefix) {
                        matching.push(index);
                    }
                }
                match matching[..] {
                    [index] => index,
                    [] => return Err(nonsense("is the start of no device's UUID".to_owned())),
                    _ => {
                        return Err(nonsense(format!(
                            "is the start of {} devices' UUIDs",
                            matching.len()
                        )))
                    }
                }
            }
        };
        let device = found[index];
        if chosen.iter().any(|(backend, ordinal): &(&dyn Backend, u32)| {
            backend.name() == device.0.name() && *ordinal == device.1
        }) {
            return Err(nonsense("names a device twice".to_owned()));
        }
        chosen.push(device);
    }
    Ok(chosen)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How the search for the `index`-th backend went. Starts the search if none was made. Where there is no device it
/// says why; where a variable makes no sense nothing does.
pub fn backend_report(index: usize) -> Result<BackendReport> {
    task::outside()?;
    let Probe { reports, outcome } = probe()?;
    if let Err(error) = outcome {
        if error.status() != Status::NoDevice {
            return Err(error.clone());
        }
    }
    reports.get(index).cloned().ok_or_else(|| {
        Error::new(
            Status::NotFound,
            format!(
                "there is no backend {index}; the last one is {}",
                reports.len().wrapping_sub(1) as isize
            ),
        )
    })
}
