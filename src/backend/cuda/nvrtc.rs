//! The vendor's run-time compiler, found when the first source is compiled.

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::path::Path;
use std::ptr::{null, null_mut};

use super::api::table;
use crate::backend::cache::Compiled;
use crate::backend::dynamic::{file_of, open_library, symbol};
use crate::backend::{CompileOptions, Error, Native, Result, Status};

type Program = *mut c_void;

table! {
    /// The compiler's functions that we use.
    struct Functions;
    fn nvrtcVersion(*mut c_int, *mut c_int);
    fn nvrtcCreateProgram(
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
    );
    fn nvrtcDestroyProgram(*mut Program);
    fn nvrtcCompileProgram(Program, c_int, *const *const c_char);
    fn nvrtcGetPTXSize(Program, *mut usize);
    fn nvrtcGetPTX(Program, *mut c_char);
    fn nvrtcGetProgramLogSize(Program, *mut usize);
    fn nvrtcGetProgramLog(Program, *mut c_char);
    fn nvrtcAddNameExpression(Program, *const c_char);
    fn nvrtcGetLoweredName(Program, *const c_char, *mut *const c_char);
    optional
    fn nvrtcGetCUBINSize(Program, *mut usize);
    fn nvrtcGetCUBIN(Program, *mut c_char);
    fn nvrtcGetNumSupportedArchs(*mut c_int);
    fn nvrtcGetSupportedArchs(*mut c_int);
}

/// The compiler of one library file.
#[derive(Debug)]
pub(super) struct Nvrtc {
    functions: Functions,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Architectures it makes machine code for, as 90 for `sm_90`; empty where it does not tell.
    architectures: Vec<u32>,
    version: (i32, i32),
    path: String,
}

/// A source may say `#include <hip/hip_runtime.h>`: what that brings is built in here or has another spelling.
const HEADERS: [(&str, &str); 3] = [
    (
        "hip/hip_runtime.h",
        "#pragma once\n\
         #ifndef __HIP_PLATFORM_NVIDIA__\n#define __HIP_PLATFORM_NVIDIA__ 1\n#endif\n\
         #define hipThreadIdx_x threadIdx.x\n#define hipThreadIdx_y threadIdx.y\n#define hipThreadIdx_z threadIdx.z\n\
         #define hipBlockIdx_x blockIdx.x\n#define hipBlockIdx_y blockIdx.y\n#define hipBlockIdx_z blockIdx.z\n\
         #define hipBlockDim_x blockDim.x\n#define hipBlockDim_y blockDim.y\n#define hipBlockDim_z blockDim.z\n\
         #define hipGridDim_x gridDim.x\n#define hipGridDim_y gridDim.y\n#define hipGridDim_z gridDim.z\n\
         #define HIP_KERNEL_NAME(...) __VA_ARGS__\n\
         #define HIP_SYMBOL(x) x\n\
         #define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];\n",
    ),
    ("hip/hip_fp16.h", "#pragma once\n#include <cuda_fp16.h>\n"),
    ("hip/hip_bf16.h", "#pragma once\n#include <cuda_bf16.h>\n"),
];

/// Library names to try: the driver's own major version first, since code made by a newer compiler than the
/// driver may be refused by it.
fn names(driver_major: i32, roots: &[String]) -> Vec<String> {
    let mut sonames: Vec<(i32, &str)> = vec![
        (13, "libnvrtc.so.13"),
        (12, "libnvrtc.so.12"),
        (11, "libnvrtc.so.11.2"),
        (0, "libnvrtc.so"),
    ];
    sonames.sort_by_key(|(major, _)| match *major {
        m if m == driver_major => 0,
        0 => 3,
        m if m < driver_major => 1,
        _ => 2,
    });
    let mut all: Vec<String> = sonames.iter().map(|(_, name)| (*name).to_string()).collect();
    for root in roots {
        for folder in ["lib64", "lib"] {
            let folder = Path::new(root).join(folder);
            all.extend(
                sonames
                    .iter()
                    .map(|(_, name)| folder.join(name).to_string_lossy().into_owned()),
            );
        }
    }
    all
}

/// Where a toolkit may be installed, as its own variables or custom say.
fn roots() -> Vec<String> {
    let mut roots: Vec<String> = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(|v| std::env::var(v).ok())
        .filter(|v| !v.is_empty())
        .collect();
    roots.push("/usr/local/cuda".into());
    roots.dedup();
    roots
}

impl Nvrtc {
    pub(super) fn load(driver_version: i32) -> Result<Nvrtc> {
        Nvrtc::from_names(&names(driver_version / 1000, &roots()))
    }

    fn from_names(names: &[String]) -> Result<Nvrtc> {
        let library = open_library(names).map_err(|words| {
            // The same sentence about a dozen names helps nobody: the first one says it.
            let first = words.split("; ").next().unwrap_or_default().to_string();
            Error::new(
                Status::NotSupported,
                format!(
                    "source can be compiled only where the CUDA run-time compiler is found: looked for {} and below {}: {first}",
                    names.iter().filter(|n| !n.contains('/')).cloned().collect::<Vec<_>>().join(", "),
                    roots().join(", "),
                ),
            )
        })?;
        let old = |missing: &str| {
            Error::new(
                Status::NotSupported,
                format!("the CUDA run-time compiler has no function {missing}: it is too old"),
            )
        };
        let functions = Functions::find(|name| symbol(&library, name)).map_err(old)?;
        // SAFETY: the exported function has this signature.
        let error_string =
            unsafe { library.get::<unsafe extern "C" fn(c_int) -> *const c_char>(b"nvrtcGetErrorString\0") };
        let error_string = *error_string.map_err(|_| old("nvrtcGetErrorString"))?;
        // Never closed: it has threads and exit handlers of its own.
        std::mem::forget(library);
        let path = file_of(functions.nvrtcVersion as *const c_void);
        let mut version = (0, 0);
        // SAFETY: both are writable.
        let _ = unsafe { (functions.nvrtcVersion)(&mut version.0, &mut version.1) };
        let mut architectures = Vec::new();
        if let (Some(count), Some(get)) = (
            functions.nvrtcGetNumSupportedArchs,
            functions.nvrtcGetSupportedArchs,
        ) {
            let mut n = 0;
            // SAFETY: `n` is writable; then the list has room for as many numbers as the compiler said.
            unsafe {
                if count(&mut n) == 0 && n > 0 {
                    let mut list = vec![0 as c_int; n as usize];
                    if get(list.as_mut_ptr()) == 0 {
                        architectures = list.into_iter().filter_map(|a| u32::try_from(a).ok()).collect();
                    }
                }
            }
        }
        Ok(Nvrtc {
            functions,
            error_string,
            architectures,
            version,
            path,
        })
    }

    fn native(&self, code: c_int, function: &'static str) -> Native {
        // SAFETY: the function takes any code and gives a constant string.
        let name = unsafe { (self.error_string)(code) };
        let name = match name.is_null() {
            true => format!("NVRTC error {code}"),
            // SAFETY: a constant string of a library that is never closed.
            false => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
        };
        Native {
            backend: "cuda",
            code: i64::from(code),
            name: name.into(),
            function,
        }
    }

    /// The compiler's option for a device, and whether it makes machine code. `arch` is `sm_90` or alike.
    fn target(&self, arch: &str) -> (String, bool) {
        let number: u32 = arch.trim_start_matches("sm_").parse().unwrap_or(0);
        let machine_code =
            self.functions.nvrtcGetCUBIN.is_some() && self.functions.nvrtcGetCUBINSize.is_some();
        if self.architectures.is_empty() || self.architectures.contains(&number) {
            let form = if machine_code { "sm" } else { "compute" };
            return (format!("--gpu-architecture={form}_{number}"), machine_code);
        }
        // A device newer than the compiler: PTX for the newest it knows, finished by the driver.
        match self.architectures.iter().filter(|a| **a < number).max() {
            Some(older) => (format!("--gpu-architecture=compute_{older}"), false),
            None => (format!("--gpu-architecture=compute_{number}"), false),
        }
    }

    /// What it compiles for, as a part of a cache's key.
    pub(super) fn key(&self, arch: &str) -> String {
        let (major, minor) = self.version;
        format!(
            "cuda {} {arch} {major}.{minor} {}",
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
        let title = if options.name.is_empty() {
            "source"
        } else {
            &options.name
        };
        let (c_source, c_title) = (c(source, "the source")?, c(title, "the source's name")?);
        let mut arguments = Vec::new();
        let own_target = options.options.iter().any(|o| {
            ["-arch", "--gpu-architecture", "-gencode", "--gpu-code"]
                .iter()
                .any(|flag| o.starts_with(flag))
        });
        let mut machine_code = options.options.iter().any(|o| o.contains("sm_"));
        if !own_target {
            let (target, is_machine_code) = self.target(arch);
            arguments.push(c(&target, "an option")?);
            machine_code = is_machine_code;
        }
        for option in &options.options {
            arguments.push(c(option, "an option")?);
        }
        // After the caller's own folders, so that his come first.
        for root in roots() {
            let folder = Path::new(&root).join("include");
            if folder.is_dir() {
                arguments.push(c(&format!("--include-path={}", folder.display()), "an option")?);
            }
        }
        let names: Vec<CString> = options
            .name_expressions
            .iter()
            .map(|name| c(name, "a name expression"))
            .collect::<Result<_>>()?;
        let headers: Vec<(CString, CString)> = HEADERS
            .iter()
            .map(|(name, text)| Ok((c(name, "")?, c(text, "")?)))
            .collect::<Result<_>>()?;
        let header_names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let header_texts: Vec<*const c_char> = headers.iter().map(|(_, text)| text.as_ptr()).collect();
        let argument_list: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect();

        let mut job = Job {
            functions: &self.functions,
            program: null_mut(),
        };
        // SAFETY: all strings end with NUL and outlive the call; the lists have as many entries as said.
        let code = unsafe {
            (self.functions.nvrtcCreateProgram)(
                &mut job.program,
                c_source.as_ptr(),
                c_title.as_ptr(),
                headers.len() as c_int,
                header_texts.as_ptr(),
                header_names.as_ptr(),
            )
        };
        self.must(code, "nvrtcCreateProgram", || {
            format!("{title}: the compiler takes no source")
        })?;
        for (name, text) in names.iter().zip(&options.name_expressions) {
            // SAFETY: a live program and a string that ends with NUL.
            let code = unsafe { (self.functions.nvrtcAddNameExpression)(job.program, name.as_ptr()) };
            self.must(code, "nvrtcAddNameExpression", || {
                format!("{title}: no name expression: {text}")
            })?;
        }
        // SAFETY: a live program; as many options as said.
        let code = unsafe {
            (self.functions.nvrtcCompileProgram)(
                job.program,
                argument_list.len() as c_int,
                argument_list.as_ptr(),
            )
        };
        self.must(code, "nvrtcCompileProgram", || {
            format!(
                "{title}: compilation for {arch} failed (NVRTC {}.{}, {}):\n{}",
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
                    unsafe { (self.functions.nvrtcGetLoweredName)(job.program, name.as_ptr(), &mut symbol) };
                self.must(code, "nvrtcGetLoweredName", || {
                    format!("{title}: no symbol for the name expression {text}")
                })?;
                // SAFETY: on success a string that lives as long as the program.
                Ok((
                    text.clone(),
                    unsafe { CStr::from_ptr(symbol) }.to_string_lossy().into_owned(),
                ))
            })
            .collect::<Result<Vec<_>>>()?;
        let code_of = match (
            machine_code,
            self.functions.nvrtcGetCUBINSize,
            self.functions.nvrtcGetCUBIN,
        ) {
            (true, Some(size), Some(get)) => self.output(&job, size, get, "nvrtcGetCUBIN")?,
            _ => Vec::new(),
        };
        let image = match code_of.is_empty() {
            false => code_of,
            true => self.output(
                &job,
                self.functions.nvrtcGetPTXSize,
                self.functions.nvrtcGetPTX,
                "nvrtcGetPTX",
            )?,
        };
        Ok(Compiled {
            image,
            names: lowered,
        })
    }

    fn must(&self, code: c_int, function: &'static str, text: impl FnOnce() -> String) -> Result<()> {
        match code {
            0 => Ok(()),
            // NVRTC_ERROR_OUT_OF_MEMORY
            1 => Err(Error::new(Status::OutOfMemory, text()).native(self.native(code, function))),
            _ => Err(Error::new(Status::CompileFailed, text()).native(self.native(code, function))),
        }
    }

    fn output(
        &self,
        job: &Job<'_>,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
        function: &'static str,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: a compiled program; `bytes` is writable.
        let code = unsafe { size(job.program, &mut bytes) };
        self.must(code, function, || {
            "the compiler does not say how long its output is".into()
        })?;
        let mut image = vec![0u8; bytes];
        if bytes > 0 {
            // SAFETY: the buffer is as long as the compiler asked for.
            let code = unsafe { get(job.program, image.as_mut_ptr().cast()) };
            self.must(code, function, || {
                "the compiler does not hand its output over".into()
            })?;
        }
        Ok(image)
    }
}

/// A program that is destroyed at the end.
struct Job<'a> {
    functions: &'a Functions,
    program: Program,
}

impl Job<'_> {
    /// All that the compiler had to say.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: a live program; `bytes` is writable.
        if unsafe { (self.functions.nvrtcGetProgramLogSize)(self.program, &mut bytes) } != 0 || bytes == 0 {
            return String::new();
        }
        let mut text = vec![0u8; bytes];
        // SAFETY: the buffer is as long as the compiler asked for.
        if unsafe { (self.functions.nvrtcGetProgramLog)(self.program, text.as_mut_ptr().cast()) } != 0 {
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
            let _ = unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.program) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_own_version_is_looked_for_first() {
        assert_eq!(names(12, &[])[0], "libnvrtc.so.12");
        assert_eq!(names(12, &[])[1], "libnvrtc.so.11.2");
        assert_eq!(names(13, &[])[..2], ["libnvrtc.so.13", "libnvrtc.so.12"]);
        assert_eq!(names(13, &[]).last().map(String::as_str), Some("libnvrtc.so"));
        assert!(names(13, &["/opt/cuda".into()]).contains(&"/opt/cuda/lib64/libnvrtc.so.13".to_string()));
    }

    #[test]
    fn a_missing_compiler_is_told_in_the_loaders_words() {
        let e = Nvrtc::from_names(&["libno-such-compiler.so.1".into()]).expect_err("no such library");
        assert_eq!(e.status(), Status::NotSupported);
        assert!(
            e.to_string()
                .contains("libno-such-compiler.so.1: cannot open shared object file"),
            "{e}"
        );
    }

    /// The real compiler needs no device. `None` where it is not installed.
    fn compiler() -> Option<Nvrtc> {
        match Nvrtc::load(13000) {
            Ok(found) => Some(found),
            Err(e) => {
                eprintln!("SKIPPED, no CUDA run-time compiler: {e}");
                None
            }
        }
    }

    #[test]
    fn source_becomes_machine_code_or_ptx() {
        let Some(nvrtc) = compiler() else { return };
        let source = "#include <hip/hip_runtime.h>\n\
            template <class T> __global__ void scale(T *p, T by) { p[hipBlockIdx_x * hipBlockDim_x + hipThreadIdx_x] *= by; }\n\
            extern \"C\" __global__ void plain(int *p) { *p = 7; }\n";
        let options = CompileOptions {
            name_expressions: vec!["scale<float>".into()],
            ..Default::default()
        };
        let machine = nvrtc.compile(source, "sm_90", &options).expect("compiles");
        assert_eq!(
            super::super::image::inspect(&machine.image).expect("an image"),
            super::super::image::Kind::Cubin
        );
        assert_eq!(machine.names.len(), 1);
        assert!(machine.names[0].1.starts_with("_Z"), "{:?}", machine.names);
        for cut in [64, machine.image.len() / 2, machine.image.len() - 1] {
            assert!(
                super::super::image::inspect(&machine.image[..cut]).is_err(),
                "cut at {cut}"
            );
        }
        let newer = nvrtc
            .compile(source, "sm_990", &options)
            .expect("compiles for a device of the future");
        assert_eq!(
            super::super::image::inspect(&newer.image).expect("an image"),
            super::super::image::Kind::Ptx
        );
        let own = CompileOptions {
            options: vec!["--gpu-architecture=compute_80".into()],
            ..options
        };
        let own = nvrtc
            .compile(source, "sm_90", &own)
            .expect("compiles for what the caller says");
        let text = String::from_utf8_lossy(&own.image).into_owned();
        assert!(text.contains(".target sm_80"), "{text}");
    }

    #[test]
    fn a_broken_source_gives_the_whole_log() {
        let Some(nvrtc) = compiler() else { return };
        let mut source = String::new();
        for i in 0..60 {
            source.push_str(&format!(
                "extern \"C\" __global__ void k{i}() {{ undeclared_{i} = 1; }}\n"
            ));
        }
        let options = CompileOptions {
            name: "broken.hip".into(),
            ..Default::default()
        };
        let e = nvrtc
            .compile(&source, "sm_90", &options)
            .expect_err("does not compile");
        assert_eq!(e.status(), Status::CompileFailed);
        let text = e.to_string();
        assert!(
            text.contains("broken.hip(1)") && text.contains("undeclared_0") && text.contains("undeclared_59"),
            "{text}"
        );
        assert_eq!(e.detail().native.as_ref().map(|n| n.code), Some(6));
    }

    #[test]
    fn bad_options_and_names_are_refused_with_words() {
        let Some(nvrtc) = compiler() else { return };
        let bad = CompileOptions {
            options: vec!["--no-such-option".into()],
            ..Default::default()
        };
        let e = nvrtc.compile("", "sm_90", &bad).expect_err("no such option");
        assert!(e.to_string().contains("no-such-option"), "{e}");
        let bad = CompileOptions {
            name_expressions: vec!["nothing<int>".into()],
            ..Default::default()
        };
        let e = nvrtc.compile("", "sm_90", &bad).expect_err("no such template");
        assert!(e.to_string().contains("nothing"), "{e}");
        let e = nvrtc
            .compile("a\0b", "sm_90", &CompileOptions::default())
            .expect_err("NUL");
        assert_eq!(e.status(), Status::InvalidArgument);
    }
}
