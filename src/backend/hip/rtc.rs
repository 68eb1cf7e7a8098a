//! The vendor's run-time compiler, found when the first source is compiled. It works without a device.

use std::ffi::OsString;
use std::ffi::{c_char, c_int, CStr, CString};
use std::path::Path;
use std::ptr::{null, null_mut};

use parking_lot::Mutex;

use super::api::{places, Api};
#[allow(clippy::wildcard_imports)]
use super::ffi::*;
use super::targets::Comgr;
use crate::backend::cache::Compiled;
use crate::backend::dynamic::{self, file_of, mapped_files, open_library, open_mapped, symbol};
use crate::backend::{CompileOptions, Error, Native, Result, Status};

macro_rules! functions {
    (required { $($required:tt)* } optional {}) => {
        dynamic::table! {
            /// The compiler's functions that we use.
            struct Functions;
            required { $($required)* }
            optional {}
        }
    };
}
hiprtc_functions!(functions);

/// The compiler of one library file.
#[derive(Debug)]
pub(super) struct Compiler {
    functions: Functions,
    targets: Option<Comgr>,
    version: (i32, i32),
    path: String,
}

/// The compiler of ROCm 5.2 crashes when two threads use it (seen).
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Options that name the target.
const TARGET_OPTIONS: [&str; 2] = ["--offload-arch=", "--gpu-architecture="];

impl Compiler {
    /// Finds the compiler that goes with the runtime: in the runtime's own library, as with ROCm 5.2, else in `libhiprtc`.
    pub(super) fn load(api: &Api, version: i32) -> Result<Compiler> {
        let major = version / 10_000_000;
        let runtime = api.path();
        let folder = Path::new(&runtime).parent().unwrap_or(Path::new("/"));
        let near = |names: &[&str]| -> Vec<OsString> {
            let beside = names.iter().map(|name| folder.join(name).into_os_string());
            beside
                .chain(places(names, |name| std::env::var_os(name)))
                .collect()
        };
        let targets = Comgr::load(&near(&Comgr::names(major)));
        if let Some(library) = open_mapped(&[&runtime]) {
            let found = Functions::find(|name| symbol(&library, name));
            std::mem::forget(library);
            if let Ok(functions) = found {
                return Ok(Compiler::new(functions, targets));
            }
        }
        let own = format!("libhiprtc.so.{major}");
        let names = [own.as_str(), "libhiprtc.so"];
        let library = match open_mapped(&mapped_files("libhiprtc.so")) {
            Some(library) => Ok(library),
            None => open_library(&near(&names)),
        };
        let library = library.map_err(|words| {
            missing(&format!(
                "neither {runtime} nor {} beside it or in the loader's path has it: {words}",
                names.join(" or ")
            ))
        })?;
        let functions = Functions::find(|name| symbol(&library, name))
            .map_err(|name| missing(&format!("its library has no function {name}")));
        // Never closed: it has threads and exit handlers of its own.
        std::mem::forget(library);
        Ok(Compiler::new(functions?, targets))
    }

    fn new(functions: Functions, targets: Option<Comgr>) -> Compiler {
        let mut version = (0, 0);
        // SAFETY: both are writable.
        let _ = unsafe { (functions.hiprtcVersion)(&mut version.0, &mut version.1) };
        Compiler {
            path: file_of(functions.hiprtcVersion as *const std::ffi::c_void),
            functions,
            targets,
            version,
        }
    }

    fn native(&self, code: hiprtcResult, function: &'static str) -> Native {
        // SAFETY: the function takes any code and gives a constant string.
        let name = unsafe { (self.functions.hiprtcGetErrorString)(code) };
        let name = match name.is_null() {
            true => format!("hipRTC error {code}"),
            // SAFETY: a constant string of a library that is never closed.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        Native {
            backend: "hip",
            code: i64::from(code),
            name: name.into(),
            function,
        }
    }

    /// Refuses a target that would take the process down. Where the compiler's library of targets is not found, only what the
    /// device is goes: the runtime that drives it knows it.
    fn check_target(&self, target: &str, arch: &str) -> Result<()> {
        let (known, why) = match &self.targets {
            Some(comgr) => (comgr.knows(target), "does not know it"),
            None => (target == arch, "cannot be asked whether it knows it"),
        };
        if known {
            return Ok(());
        }
        Err(Error::new(
            Status::NotSupported,
            format!(
                "source cannot be compiled for {target:?}: the HIP run-time compiler {}.{} ({}) {why}",
                self.version.0, self.version.1, self.path
            ),
        ))
    }

    /// What it compiles for, as a part of a cache's key.
    pub(super) fn key(&self, arch: &str) -> String {
        let (major, minor) = self.version;
        format!(
            "hip {} {arch} {major}.{minor} {}",
            env!("CARGO_PKG_VERSION"),
            self.path
        )
    }

    /// Compiles `source` for devices of `arch`.
    pub(super) fn compile(&self, source: &str, arch: &str, options: &CompileOptions) -> Result<Compiled> {
        let c = |text: &str, what: &str| {
            CString::new(text).map_err(|e| {
                Error::new(
                    Status::InvalidArgument,
                    format!("{what} has a NUL character at byte {}", e.nul_position()),
                )
            })
        };
        let title = match options.name.as_str() {
            "" => "source",
            name => name,
        };
        c(source, "the source")?;
        // The compiler names a file of its own in its messages, unless the source says otherwise.
        let named = title
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', " ");
        let c_source = c(&format!("#line 1 \"{named}\"\n{source}"), "the source's name")?;
        let c_title = c(title, "the source's name")?;
        let _one = ONE_AT_A_TIME.lock();
        let mut arguments = Vec::new();
        let own_targets: Vec<&str> = options
            .options
            .iter()
            .filter_map(|option| TARGET_OPTIONS.iter().find_map(|flag| option.strip_prefix(flag)))
            .collect();
        if own_targets.is_empty() {
            self.check_target(arch, arch)?;
            arguments.push(c(&format!("{}{arch}", TARGET_OPTIONS[0]), "an option")?);
        }
        for target in own_targets {
            self.check_target(target, arch)?;
        }
        for option in &options.options {
            arguments.push(c(option, "an option")?);
        }
        let names: Vec<CString> = options
            .name_expressions
            .iter()
            .map(|name| c(name, "a name expression"))
            .collect::<Result<_>>()?;
        let mut argument_list: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect();

        let mut job = Job {
            functions: &self.functions,
            program: null_mut(),
        };
        // SAFETY: the strings end with NUL and outlive the call; there are no headers.
        let code = unsafe {
            (self.functions.hiprtcCreateProgram)(
                &mut job.program,
                c_source.as_ptr(),
                c_title.as_ptr(),
                0,
                null_mut(),
                null_mut(),
            )
        };
        self.must(code, "hiprtcCreateProgram", || {
            format!("{title}: the compiler takes no source")
        })?;
        for (name, text) in names.iter().zip(&options.name_expressions) {
            // SAFETY: a live program and a string that ends with NUL.
            let code = unsafe { (self.functions.hiprtcAddNameExpression)(job.program, name.as_ptr()) };
            self.must(code, "hiprtcAddNameExpression", || {
                format!("{title}: no name expression: {text}")
            })?;
        }
        // SAFETY: a live program; as many options as said.
        let code = unsafe {
            (self.functions.hiprtcCompileProgram)(
                job.program,
                argument_list.len() as c_int,
                argument_list.as_mut_ptr(),
            )
        };
        self.must(code, "hiprtcCompileProgram", || {
            format!(
                "{title}: compilation for {arch} failed (hipRTC {}.{}, {}):\n{}",
                self.version.0,
                self.version.1,
                self.path,
                job.log()
            )
        })?;
        let lowered = names
            .iter()
            .zip(&options.name_expressions)
            .map(|(name, text)| {
                let mut symbol = null();
                // SAFETY: a compiled program; the expression was added before.
                let code =
                    unsafe { (self.functions.hiprtcGetLoweredName)(job.program, name.as_ptr(), &mut symbol) };
                self.must(code, "hiprtcGetLoweredName", || {
                    format!("{title}: no symbol for the name expression {text}")
                })?;
                if symbol.is_null() {
                    return Err(Error::new(
                        Status::CompileFailed,
                        format!("{title}: no symbol for the name expression {text}"),
                    ));
                }
                // SAFETY: on success a string that lives as long as the program.
                let symbol = unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned();
                Ok((text.clone(), symbol))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Compiled {
            image: self.image(&job)?,
            names: lowered,
        })
    }

    fn must(&self, code: hiprtcResult, function: &'static str, text: impl FnOnce() -> String) -> Result<()> {
        let status = match code {
            HIPRTC_SUCCESS => return Ok(()),
            HIPRTC_ERROR_OUT_OF_MEMORY => Status::OutOfMemory,
            _ => Status::CompileFailed,
        };
        Err(Error::new(status, text()).native(self.native(code, function)))
    }

    fn image(&self, job: &Job<'_>) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: a compiled program; `bytes` is writable.
        let code = unsafe { (self.functions.hiprtcGetCodeSize)(job.program, &mut bytes) };
        self.must(code, "hiprtcGetCodeSize", || {
            "the compiler does not say how long its output is".into()
        })?;
        let mut image = vec![0u8; bytes];
        if bytes > 0 {
            // SAFETY: the buffer is as long as the compiler asked for.
            let code = unsafe { (self.functions.hiprtcGetCode)(job.program, image.as_mut_ptr().cast()) };
            self.must(code, "hiprtcGetCode", || {
                "the compiler does not hand its output over".into()
            })?;
        }
        Ok(image)
    }
}

#[cold]
fn missing(why: &str) -> Error {
    Error::new(
        Status::NotSupported,
        format!("source can be compiled only where the HIP run-time compiler is found: {why}"),
    )
}

/// A program that is destroyed at the end.
struct Job<'a> {
    functions: &'a Functions,
    program: hiprtcProgram,
}

impl Job<'_> {
    /// All that the compiler had to say.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: a live program; `bytes` is writable.
        if unsafe { (self.functions.hiprtcGetProgramLogSize)(self.program, &mut bytes) } != 0 || bytes == 0 {
            return String::new();
        }
        let mut text = vec![0u8; bytes];
        // SAFETY: the buffer is as long as the compiler asked for.
        if unsafe { (self.functions.hiprtcGetProgramLog)(self.program, text.as_mut_ptr().cast()) } != 0 {
            return String::new();
        }
        String::from_utf8_lossy(&text)
            .trim_end_matches(['\0', '\n'])
            .to_string()
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: a live program that nobody uses any more.
            let _ = unsafe { (self.functions.hiprtcDestroyProgram)(&mut self.program) };
        }
    }
}
