//! Kernel source for host devices: HIP C++ becomes a shared object, with the system's C++ compiler.
//!
//! The source is preprocessed, looked through ([`scan`]), turned into C++ ([`rewrite`]) and compiled together with
//! `prelude.h`, which has what HIP C++ brings. Kernels with barriers become loops between them ([`regions`]), with those of
//! the functions that they call ([`inline`](mod@inline)), and although some threads leave early ([`masks`]).

mod compiler;
mod inline;
mod masks;
mod narrow;
mod object;
mod regions;
mod rewrite;
mod scan;
#[cfg(test)]
mod tests;

use crate::backend::cache::{self, Key};
use crate::backend::{os, CompileOptions, Error, Native, Result, Status};
use compiler::{compiler, Compiler, Folder, Run};
use inline::{inline, INLINE};
use rewrite::{quoted, rewrite, Unit, Way};
use scan::Source;
use std::ffi::OsString;
use std::path::Path;

const PRELUDE: &str = include_str!("prelude.h");
/// Where the user's text begins after preprocessing.
const MARK: &str = "#pragma taskgpu source\n";
/// Headers that a source may include: the prelude has what is in them.
const EMPTY_HEADERS: &[&str] = &[
    "hip/hip_runtime.h",
    "hip/hip_runtime_api.h",
    "hip/hip_vector_types.h",
    "hip/device_functions.h",
    "hip/math_functions.h",
    "cuda_runtime.h",
    "cuda_runtime_api.h",
    "cuda.h",
    "device_launch_parameters.h",
    "device_functions.h",
    "vector_types.h",
    "vector_functions.h",
    "math_functions.h",
];
/// Headers whose contents host devices do not have.
const REFUSED_HEADERS: &[(&str, &str)] = &[
    ("cooperative_groups.h", "cooperative groups"),
    ("hip/hip_cooperative_groups.h", "cooperative groups"),
    ("cuda_fp16.h", "half-precision numbers"),
    ("hip/hip_fp16.h", "half-precision numbers"),
    ("cuda_bf16.h", "bfloat16 numbers"),
    ("hip/hip_bf16.h", "bfloat16 numbers"),
    ("mma.h", "matrix instructions"),
    ("rocwmma/rocwmma.hpp", "matrix instructions"),
    ("curand_kernel.h", "the vendors' libraries"),
    ("hiprand/hiprand_kernel.h", "the vendors' libraries"),
];
/// Of every run: headers look at what these define.
const LANGUAGE: &[&str] = &[
    "-std=gnu++17",
    "-march=native",
    "-O3",
    "-fPIC",
    "-fno-exceptions",
    // Device code knows neither, and both keep compilers from making vectors.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
];
/// Of the run that makes code.
const CODE: &[&str] = &[
    "-shared",
    "-fvisibility=hidden",
    "-w",
    "-Wl,--as-needed",
    // So that it can be seen which variables a kernel uses.
    "-ffunction-sections",
    "-Wl,--emit-relocs",
];
/// Options that make something else than a module.
const NOT_FOR_MODULES: &[&str] = &["-c", "-S", "-E", "-o", "-M", "-MM", "-fsyntax-only"];

/// What source became.
#[derive(Debug)]
pub(super) struct Made {
    /// A shared object.
    pub(super) image: Vec<u8>,
    /// The caller's own files that the source has read.
    files: Vec<File>,
}

/// A file as it was.
#[derive(Debug, PartialEq, Eq)]
struct File {
    path: String,
    /// Its size and when it was written.
    state: String,
}

impl File {
    fn now(path: &str) -> File {
        use std::os::unix::fs::MetadataExt;
        let state = match std::fs::metadata(path) {
            Ok(m) => format!("{} {}.{:09}", m.size(), m.mtime(), m.mtime_nsec()),
            Err(_) => String::new(),
        };
        File {
            path: path.to_owned(),
            state,
        }
    }
}

impl Made {
    /// Whether the same source would become the same today.
    pub(super) fn is_fresh(&self) -> bool {
        self.files.iter().all(|file| *file == File::now(&file.path))
    }

    fn pack(&self) -> Vec<u8> {
        let files = self
            .files
            .iter()
            .flat_map(|file| [file.path.as_bytes(), file.state.as_bytes()]);
        let parts: Vec<&[u8]> = std::iter::once(self.image.as_slice()).chain(files).collect();
        cache::pack(&parts)
    }

    fn unpack(bytes: &[u8]) -> Option<Made> {
        let parts = cache::unpack(bytes)?;
        let (image, files) = parts.split_first()?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        let file = |pair: &[&[u8]]| {
            Some(File {
                path: text(pair[0])?,
                state: text(pair[1])?,
            })
        };
        Some(Made {
            image: image.to_vec(),
            files: files.chunks_exact(2).map(file).collect::<Option<_>>()?,
        })
    }
}

/// Compiles source into an image, or finds what it became before.
pub(super) fn make(source: &str, options: &CompileOptions) -> Result<Made> {
    if let Some(at) = source.find('\0') {
        return Err(Error::new(
            Status::InvalidArgument,
            format!("the source has a NUL character at byte {at}"),
        ));
    }
    let target = &target(compiler()?);
    let key = Key {
        source,
        options,
        target,
    };
    let before = cache::read(&key).and_then(|bytes| Made::unpack(&bytes));
    if let Some(made) = before.filter(Made::is_fresh) {
        return Ok(made);
    }
    let (made, _) = build(&Way::ALL, source, options)?;
    cache::write(&key, &made.pack());
    Ok(made)
}

/// What code is made by, and for: a part of a cache's key.
fn target(compiler: &Compiler) -> String {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut lines: Vec<&str> = processor
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .lines()
        .filter(|line| {
            ["model name", "flags", "Features", "CPU part", "isa"]
                .iter()
                .any(|name| line.starts_with(name))
        })
        .collect();
    let own = format!("{:016x}", cache::hash(PRELUDE.as_bytes(), 0));
    lines.extend(["host", env!("CARGO_PKG_VERSION"), &own, &compiler.version]);
    lines.join("\n")
}

/// Compiles source in the first way that works.
fn build(ways: &[Way], source: &str, options: &CompileOptions) -> Result<(Made, Way)> {
    let given = translate(&options.options)?;
    let job = Job {
        title: if options.name.is_empty() {
            "kernel"
        } else {
            &options.name
        },
        compiler: compiler()?,
        folder: Folder::new()?,
        given,
    };
    let text = job.preprocess(source)?;
    let (before, text) = text.split_once(MARK).ok_or_else(|| {
        Error::new(
            Status::Internal,
            "the compiler's preprocessor dropped the mark of the source",
        )
    })?;
    let Some(source) = Source::new(text) else {
        // Brackets do not match: the compiler says where.
        return Err(job.failed(&job.compile(&[before, text].concat())?));
    };
    if let Some(at) = source.launch() {
        return Err(Error::new(
            Status::CompileFailed,
            format!(
                "{}: error: launches inside kernels (<<< >>>) are not supported on host devices",
                users_place(&text[..at], job.title)
            ),
        ));
    }
    let mut tried = None;
    for &way in ways {
        let unit = match way {
            Way::Inlined => match inlined(text, &options.name_expressions) {
                Some(unit) => unit,
                None => continue,
            },
            _ => rewrite(text, &source, way, &options.name_expressions)?,
        };
        if way == Way::Regions && !unit.regions && ways.len() > 1 {
            continue;
        }
        let run = job.compile(&[before, &unit.text].concat())?;
        if run.success {
            let made = Made {
                image: job.image()?,
                files: job.files(text),
            };
            return Ok((made, way));
        }
        tried = Some(run);
    }
    Err(tried.map_or_else(
        || Error::new(Status::Internal, "nothing was compiled"),
        |run| job.failed(&run),
    ))
}

/// The module's C++ with functions with barriers written out, if there are any and all their kernels are cut into regions.
fn inlined(text: &str, expressions: &[String]) -> Option<Unit> {
    let text = inline(text)?;
    let source = Source::new(&text)?;
    let unit = rewrite(&text, &source, Way::Regions, expressions).ok()?;
    (unit.regions && !unit.text.contains(INLINE)).then_some(unit)
}

/// One compilation.
struct Job<'a> {
    title: &'a str,
    compiler: &'static Compiler,
    folder: Folder,
    given: Vec<OsString>,
}

impl Job<'_> {
    fn preprocess(&self, source: &str) -> Result<String> {
        self.folder.write("taskgpu/prelude.h", PRELUDE)?;
        for name in EMPTY_HEADERS {
            self.folder.write(&format!("include/{name}"), "#pragma once\n")?;
        }
        for (name, what) in REFUSED_HEADERS {
            let text = format!("#error {what} are not supported on host devices\n");
            self.folder.write(&format!("include/{name}"), &text)?;
        }
        // Found beside the unit: an #include cannot name every folder.
        let title = quoted(self.title);
        let unit = format!("#include \"taskgpu/prelude.h\"\n{MARK}#line 1 {title}\n{source}\n");
        self.folder.write("unit.cpp", &unit)?;
        let made = self.folder.path("unit.ii");
        let mut arguments = words(LANGUAGE);
        // Before the caller's own folders: a vendor's headers would not compile here.
        arguments.extend([OsString::from("-I"), self.folder.path("include").into()]);
        arguments.extend(self.given.iter().cloned());
        arguments.extend(words(&["-E", "-x", "c++", "-o"]));
        arguments.extend([made.clone().into(), self.folder.path("unit.cpp").into()]);
        let run = self.run(&arguments, &made)?;
        if !run.success {
            return Err(self.failed(&run));
        }
        let text = std::fs::read(&made).map_err(|e| {
            let status = os::shortage_or(Status::Backend, &e);
            Error::new(status, format!("{} cannot be read: {e}", made.display()))
        })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn compile(&self, unit: &str) -> Result<Run> {
        self.folder.write("unit.ii", unit)?;
        let made = self.folder.path("module.so");
        let mut arguments = words(LANGUAGE);
        arguments.extend(words(CODE));
        arguments.extend(self.given.iter().cloned());
        arguments.extend(words(&["-x", "c++-cpp-output", "-o"]));
        arguments.extend([made.clone().into(), self.folder.path("unit.ii").into()]);
        self.run(&arguments, &made)
    }

    fn run(&self, arguments: &[OsString], made: &Path) -> Result<Run> {
        self.compiler
            .run(arguments, made)
            .map_err(|e| self.compiler.not_started(&e))
    }

    /// The caller's own files that preprocessed text comes from. Those of the system belong to the compiler.
    fn files(&self, text: &str) -> Vec<File> {
        let own = self.folder.path("").to_string_lossy().into_owned();
        let mut paths: Vec<String> = Vec::new();
        // # 1 "path" 1: a file begins. A 3 behind it: it is the system's.
        for (path, flags) in text
            .lines()
            .filter_map(|line| unquoted(line.strip_prefix("# 1 \"")?))
        {
            let flags: Vec<&str> = flags.trim_start().split(' ').collect();
            if flags.contains(&"1")
                && !flags.contains(&"3")
                && !path.starts_with(&own)
                && !paths.contains(&path)
            {
                paths.push(path);
            }
        }
        paths.iter().map(|path| File::now(path)).collect()
    }

    /// The shared object, with all that its table has to say.
    fn image(&self) -> Result<Vec<u8>> {
        let made = self.folder.path("module.so");
        let refuse = |why: &dyn std::fmt::Display| {
            Error::new(
                Status::Backend,
                format!("{} cannot be read: {why}", made.display()),
            )
        };
        let mut image = std::fs::read(&made).map_err(|e| refuse(&e))?;
        object::note_shared_bytes(&mut image).ok_or_else(|| {
            refuse(
                &"the linker has not kept its symbols and relocations; is there an option that strips them?",
            )
        })?;
        Ok(image)
    }

    /// The compiler's own words.
    fn failed(&self, run: &Run) -> Error {
        let text = format!(
            "{}: compilation for host devices failed ({}):\n{}",
            self.title,
            self.compiler.title(),
            run.messages.trim_end()
        );
        Error::new(Status::CompileFailed, text).native(Native {
            backend: "host",
            code: run.code.into(),
            name: format!("exit status {}", run.code).into(),
            function: "the C++ compiler",
        })
    }
}

/// The user's file and line at the end of some preprocessed text.
fn users_place(text: &str, title: &str) -> String {
    let (mut file, mut line) = (title.to_owned(), 1);
    for one in text.split_inclusive('\n') {
        // # 7 "file": the next line is the file's seventh.
        let marker = one.strip_prefix("# ").and_then(|rest| rest.split_once(" \""));
        match marker.and_then(|(number, rest)| Some((number.parse().ok()?, unquoted(rest)?.0))) {
            Some((number, named)) => (file, line) = (named, number),
            None => line += usize::from(one.ends_with('\n')),
        }
    }
    format!("{file}:{line}")
}

/// The rest of a string of C++ up to its end, and what is behind that.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut inside = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((inside, &text[at + 1..])),
            '\\' => inside.push(chars.next()?.1),
            c => inside.push(c),
        }
    }
    None
}

fn words(list: &[&str]) -> Vec<OsString> {
    list.iter().map(OsString::from).collect()
}

/// The caller's options in the words of this compiler.
fn translate(options: &[String]) -> Result<Vec<OsString>> {
    let mut out = Vec::new();
    for option in options {
        if option.contains('\0') {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("the option {option:?} has a NUL character"),
            ));
        }
        let is = |flag: &&str| {
            option == *flag || (*flag == "-o" && option.starts_with("-o") && !option.starts_with("-openmp"))
        };
        if let Some(flag) = NOT_FOR_MODULES.iter().find(|flag| is(flag)) {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("the option {option} ({flag}) asks for something else than a module"),
            ));
        }
        let addressed_to_others = [
            "--gpu-architecture",
            "-arch",
            "--offload-arch",
            "--amdgpu-target",
            "--maxrregcount",
            "-maxrregcount",
            "--generate-line-info",
            "-lineinfo",
            "--device-debug",
            "-default-device",
            "--default-device",
        ];
        // A module is gone with the process, and it is the symbols that say what a kernel needs.
        let strips = ["-s", "-Wl,-s", "-Wl,-S", "-Wl,--strip-all", "-Wl,--strip-debug"];
        if strips.contains(&option.as_str())
            || addressed_to_others.iter().any(|flag| option.starts_with(flag))
        {
            continue;
        }
        let renamed = match option.split_once('=') {
            Some(("--define-macro", value)) => format!("-D{value}"),
            Some(("--undefine-macro", value)) => format!("-U{value}"),
            Some(("--include-path", value)) => format!("-I{value}"),
            Some(("--pre-include", value)) => format!("-include{value}"),
            _ if option == "--use_fast_math" || option == "-use_fast_math" => "-ffast-math".to_owned(),
            _ => option.clone(),
        };
        out.push(renamed.into());
    }
    Ok(out)
}
