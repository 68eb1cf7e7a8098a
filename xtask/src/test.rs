//! `cargo xtask test`: everything that must hold, in groups. What fails is collected within a group, and ends the run
//! with it. The last line counts the tests.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::julia::Julia;
use crate::library::{self, root};
use crate::{abi, consumers, header, licences, shim, signatures, symbols, tools};

const USAGE: &str = "usage: cargo xtask test [--only NAME]";
/// A program that runs longer than this hangs. The programs themselves give up earlier, and say where.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// So does a build.
pub const PATIENCE_OF_CARGO: Duration = Duration::from_secs(1800);
/// What the static library needs besides itself: rustc lists them as its native static libraries, and a program that
/// lacks one does not link.
const SYSTEM_LIBRARIES: &[&str] = &["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"];
const STRICT: &[&str] = &["-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// Threads that keep each other busy take too long where only one of them runs at a time. The vendor's library is not
/// ours to judge. Code compiled for this very processor has
/// instructions that it does not know.
const NOT_UNDER_VALGRIND: &[&str] = &["threads", "hip", "module", "source", "cache"];
/// What programs are named like that have the HIP runtime of tests/hip-shim under them, and run nowhere else.
const ON_SHIM: &str = "hip_";
/// What several GPUs are tested with; host devices and those of tests/hip-shim must pass it too.
const SEVERAL_DEVICES: &str = "tests/gpu/multi.c";
/// These bring a runtime of their own, or watch the compiler of host devices.
const NOT_ON_SHIM: &[&str] = &["hip", "cache"];

/// What has been tried so far.
#[derive(Default)]
pub struct Tally {
    passed: usize,
    failed: usize,
    /// What failed, by name.
    names: Vec<String>,
    /// What could not be tried, and why.
    skipped: Vec<String>,
}

/// How many tests one step has run.
pub type Outcome = Result<usize, String>;

impl Tally {
    pub fn add(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Ok(tests) => {
                println!(
                    "ok      {name}{}",
                    if tests > 1 {
                        format!(": {tests}")
                    } else {
                        String::new()
                    }
                );
                self.passed += tests;
            }
            Err(text) => {
                println!("FAILED  {name}\n{text}");
                self.failed += 1;
                self.names.push(name.to_owned());
            }
        }
    }

    /// The end of a group: the end of the run, if something has failed.
    pub fn check(&self) {
        if self.failed > 0 {
            println!("\nfailed: {}", self.names.join(", "));
            self.count();
            // Not an error for the caller to print: the count is the last line.
            std::process::exit(1);
        }
    }

    fn skip(&mut self, what: &str, why: &str) {
        println!("NOT TESTED  {what}: {why}");
        self.skipped.push(format!("{what}: {why}"));
    }

    fn count(&self) {
        for what in &self.skipped {
            println!("\nNOT TESTED  {what}");
        }
        println!("\n{} passed, {} failed", self.passed, self.failed);
    }
}

pub fn run(args: &[&str]) -> Result<(), String> {
    let only = match args {
        [] => None,
        ["--only", name] => Some(*name),
        _ => return Err(USAGE.to_owned()),
    };
    let mut tally = Tally::default();
    heading("tools");
    tally.add("compilers", tools::require(tools::COMPILERS).map(|()| 1));
    tally.add("HIP runtime", tools::require(tools::HIP).map(|()| 1));
    tally.check();
    if only.is_none() {
        whole_tree(&mut tally);
    }
    heading("release build");
    let built = library::build();
    let folder = built.clone().unwrap_or_default();
    tally.add("shared and static library", built.map(|_| 1));
    tally.check();
    if only.is_none() {
        tally.add("they export what the header declares", symbols::run().map(|()| 1));
        tally.check();
    }
    if only == Some("package") {
        consumers::run(&mut tally);
    } else {
        c_programs(&mut tally, &folder, only)?;
    }
    if only.is_none() {
        linked_with_hip(&mut tally, &folder);
        consumers::run(&mut tally);
    }
    tally.count();
    Ok(())
}

pub fn heading(text: &str) {
    println!("\n== {text}");
}

/// What cargo and the header's generator check.
fn whole_tree(tally: &mut Tally) {
    heading("format, lints, documentation");
    tally.add("cargo fmt", cargo(&["fmt", "--all", "--check"], &[]).map(|_| 1));
    let clippy = [
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    tally.add("cargo clippy", cargo(&clippy, &[]).map(|_| 1));
    let warnings = [("RUSTDOCFLAGS", "-D warnings")];
    let doc = ["doc", "--quiet", "--workspace", "--no-deps"];
    tally.add("cargo doc", cargo(&doc, &warnings).map(|_| 1));
    tally.check();

    heading("headers");
    tally.add(
        "taskgpu.h is what src/capi says, and compiles alone in every C and C++ standard",
        header::run(&["--check"]).map(|()| 1),
    );
    tally.add(
        "taskgpu.hpp compiles alone in C++17 and C++20, with and without exceptions",
        cpp_header(),
    );
    tally.add(
        "the ABI is that of the last release of this minor version, or more",
        abi::run(&[]).map(|()| 1),
    );
    tally.add(
        "the Julia package declares what taskgpu.h does",
        signatures::run().map(|()| 1),
    );
    tally.add(
        "every function of taskgpu.h is called in a C test",
        every_function_is_called(),
    );
    tally.add(
        "the field failures are tested where c-tests/README.md says",
        field_failures(),
    );
    tally.check();

    heading("licences");
    tally.add(
        "LICENSES-THIRD-PARTY has what is linked in, and nothing of it needs a newer Rust than Cargo.toml says",
        licences::run(&["--check"]).map(|()| 1),
    );
    tally.check();

    heading("Rust tests");
    tally.add(
        "cargo test",
        cargo(&["test", "--quiet", "--workspace"], &[]).and_then(|text| rust_tests(&text)),
    );
    tally.check();
}

fn cargo(args: &[&str], environment: &[(&str, &str)]) -> Result<String, String> {
    let mut command = Command::new(library::cargo());
    command
        .current_dir(root())
        .args(args)
        .envs(environment.iter().copied());
    quietly(&mut command, PATIENCE_OF_CARGO)
}

/// The sum of the lines "test result: ok. N passed; ...".
fn rust_tests(text: &str) -> Outcome {
    let count = |line: &str| {
        line.strip_prefix("test result: ok. ")?
            .split(' ')
            .next()?
            .parse::<usize>()
            .ok()
    };
    match text.lines().filter_map(count).sum() {
        0 => Err("no test was run".to_owned()),
        tests => Ok(tests),
    }
}

fn cpp_header() -> Outcome {
    let mut tests = 0;
    for compiler in ["g++", "clang++"] {
        for standard in ["-std=c++17", "-std=c++20"] {
            for exceptions in ["-fexceptions", "-fno-exceptions"] {
                let mut command = Command::new(compiler);
                command
                    .args(STRICT)
                    .args([standard, exceptions, "-fsyntax-only", "-x", "c++", "-include"])
                    .arg(root().join("include/taskgpu.hpp"))
                    .arg("/dev/null");
                quietly(&mut command, PATIENCE)?;
                tests += 1;
            }
        }
    }
    Ok(tests)
}

/// A function that no C test mentions is one that nobody has tried from C.
fn every_function_is_called() -> Outcome {
    let header = read(&root().join("include/taskgpu.h"))?;
    let mut called = BTreeSet::new();
    for source in [sources("c-tests", "c")?, sources("c-tests", "h")?].concat() {
        called.extend(words(&read(&source)?).map(str::to_owned));
    }
    let declared = symbols::functions(&header);
    let missing: Vec<&String> = declared.iter().filter(|name| !called.contains(*name)).collect();
    match missing[..] {
        [] => Ok(1),
        _ => Err(format!("no test in c-tests calls {missing:?}")),
    }
}

/// Compares the table of field failures with the tests that have a row in their names.
fn field_failures() -> Outcome {
    let tests = [sources("c-tests", "c")?, sources("c-tests", "cpp")?].concat();
    let table = read(&root().join("c-tests/README.md"))?;
    let rows = table.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| F")?.split(" | ");
        let row = format!("F{}", cells.next()?);
        Some((row, cells.nth(1)?.to_owned()))
    });
    let mut count = 0;
    for (row, named) in rows {
        count += 1;
        let prefix = format!("{row}_");
        for test in &tests {
            let is_there = words(&read(test)?).any(|word| word.starts_with(&prefix));
            let is_named = named.contains(&format!("`{}`", stem(test)));
            match (is_there, is_named) {
                (true, false) => return Err(format!("{row}: the table does not name {}", stem(test))),
                (false, true) => return Err(format!("{row}: {} has no test of that name", stem(test))),
                _ => {}
            }
        }
    }
    match count {
        39 => Ok(1),
        _ => Err(format!("the table has {count} rows; there are 39")),
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

pub fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A program to build and to run.
struct Program {
    name: String,
    build: Option<Command>,
    run: Command,
    /// What its output says.
    outcome: fn(&str) -> Outcome,
}

impl Program {
    /// Says where the HIP runtime is.
    fn with_rocm(mut self, rocm: &Path) -> Program {
        self.run.env("ROCM_PATH", rocm);
        self
    }
}

fn c_programs(tally: &mut Tally, folder: &Path, only: Option<&str>) -> Result<(), String> {
    let target = folder.join("../c-tests");
    std::fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let place = Place {
        folder,
        target: &target,
    };
    let wanted = |program: &Program| only.is_none_or(|only| program.name.contains(only));
    let named =
        |language: &str| only.is_none_or(|only| only.starts_with(language) || language.starts_with(only));
    let any = Cell::new(false);
    let group = |tally: &mut Tally, text: &str, programs: Vec<Program>| {
        let programs: Vec<Program> = programs.into_iter().filter(wanted).collect();
        if !programs.is_empty() {
            any.set(true);
            heading(text);
            build_and_run(tally, programs);
            tally.check();
        }
    };
    group(
        tally,
        "C and C++ tests, shared and static library",
        place.tests()?,
    );
    let on_shim = place.on_shim()?;
    if on_shim.iter().any(wanted) {
        let built = shim::build();
        let rocm = built.clone().unwrap_or_default();
        heading("the HIP runtime of the tests");
        tally.add("tests/hip-shim", built.map(|_| 1));
        tally.check();
        for (why, tests) in shim::HOST_ONLY {
            println!("not tried on it, since {why}: {}", tests.join(", "));
        }
        let programs = on_shim.into_iter().map(|program| program.with_rocm(&rocm));
        group(tally, "C and C++ tests on four HIP devices", programs.collect());
    }
    group(tally, "examples", place.examples("example", "C++ example")?);
    if named("Julia") {
        match Julia::get(&folder.join("../julia")) {
            Ok(julia) => group(tally, "Julia", place.julia(&julia)?),
            Err(why) => {
                any.set(true);
                tally.skip("Julia", &why);
            }
        }
    }
    if named("Python") {
        group(tally, "Python", place.python()?);
    }
    if named("MPI") {
        tools::require(tools::MPI)?;
        group(tally, "MPI", place.mpi()?);
    }
    if named("guides") {
        let (programs, missing) = place.guides()?;
        group(tally, "programs of README.md and docs/languages", programs);
        for (program, tool) in missing {
            tally.skip(&program, &format!("there is no {tool}"));
        }
    }
    // It finds what no answer shows. It is no part of a usual installation, so it is not asked for.
    if tools::found("valgrind") {
        group(tally, "C tests under valgrind", place.under_valgrind()?);
    }
    match (any.get(), only) {
        (false, Some(name)) => Err(format!("no program is named like \"{name}\"")),
        _ => Ok(()),
    }
}

/// The library for sites where nothing may be loaded: AMD's runtime is linked. `c-tests/hip.c` runs with it as it was built.
fn linked_with_hip(tally: &mut Tally, folder: &Path) {
    heading("with the HIP runtime linked (feature hip-link)");
    let feature = ["--features", "hip-link"];
    let path = [("HIP_PATH", "/usr")];
    let clippy = [
        &["clippy", "--quiet", "--all-targets"],
        &feature[..],
        &["--", "-D", "warnings"],
    ]
    .concat();
    tally.add("cargo clippy", cargo(&clippy, &path).map(|_| 1));
    let tests = [&["test", "--quiet", "--lib"], &feature[..], &["backend::hip"]].concat();
    tally.add(
        "cargo test",
        cargo(&tests, &path).and_then(|text| rust_tests(&text)),
    );
    let target = folder.join("../hip-link");
    let place = target.to_string_lossy();
    let build = [
        &[
            "rustc",
            "--quiet",
            "--lib",
            "--crate-type",
            "cdylib",
            "--target-dir",
            &place,
        ],
        &feature[..],
    ]
    .concat();
    let linked = target.join("debug");
    let built = cargo(&build, &path).and_then(|_| {
        library::link_soname(&linked)?;
        let needed = Command::new("readelf")
            .arg("-dW")
            .arg(linked.join("libtaskgpu.so"))
            .output();
        let needed = needed.map_err(|error| format!("readelf: {error}"))?.stdout;
        let asks = |line: &str| line.contains("NEEDED") && line.contains("libamdhip64.so");
        match String::from_utf8_lossy(&needed).lines().any(asks) {
            true => Ok(1),
            false => Err("the shared library does not ask for libamdhip64.so".to_owned()),
        }
    });
    tally.add("the shared library needs the runtime", built);
    tally.check();
    for (scenario, backends) in [("only_hip", "hip"), ("hip_and_host", "hip,host")] {
        let mut run = Command::new(folder.join("../c-tests/hip-shared"));
        run.arg(scenario)
            .env("LD_LIBRARY_PATH", &linked)
            .env("TASKGPU_BACKENDS", backends)
            .env("TASKGPU_HOST_DEVICES", "2");
        tally.add(
            &format!("hip ({scenario}, linked)"),
            quietly(&mut run, PATIENCE).map(|_| 1),
        );
    }
    tally.check();
}

/// Pages, or sections of them, with a program in a language. All of them double 1, 2 and 3, and say so.
const GUIDES: &[(&str, &str)] = &[
    ("README.md: A program", "c"),
    ("README.md: A program", "cpp"),
    ("README.md: Four languages", "c"),
    ("README.md: Four languages", "cpp"),
    ("README.md: Four languages", "julia"),
    ("README.md: Four languages", "python"),
    ("docs/languages/c.md", "c"),
    ("docs/languages/cpp.md", "cpp"),
    ("docs/languages/julia.md", "julia"),
    ("docs/languages/python.md", "python"),
    ("docs/languages/go.md", "go"),
    ("docs/languages/fortran.md", "fortran"),
];

/// Programs of guides, and those that cannot be run, with the tool that they lack.
type Guides = (Vec<Program>, Vec<(String, &'static str)>);

/// Where the libraries are and the programs go.
struct Place<'a> {
    folder: &'a Path,
    target: &'a Path,
}

impl Place<'_> {
    fn program(&self, source: &Path, kind: &str, compiler: &str, flags: &[&str]) -> Program {
        let stem = stem(source);
        let binary = self.binary(&stem, kind);
        let mut build = Command::new(compiler);
        build
            .args(STRICT)
            .args(flags)
            .arg("-I")
            .arg(root().join("include"))
            .arg(source)
            .arg("-o")
            .arg(&binary);
        match kind.contains("static") {
            true => build.arg(self.folder.join("libtaskgpu.a")).args(SYSTEM_LIBRARIES),
            false => {
                let mut rpath = OsString::from("-Wl,-rpath,");
                rpath.push(self.folder);
                // A test that loads the library by itself is not linked with it.
                build
                    .arg("-L")
                    .arg(self.folder)
                    .args(["-Wl,--as-needed", "-ltaskgpu"]);
                build.arg(rpath).args(["-lpthread", "-ldl", "-lm"])
            }
        };
        Program {
            name: format!("{stem} ({kind})"),
            build: Some(build),
            run: self.environment(Command::new(binary)),
            outcome: tests_run,
        }
    }

    fn binary(&self, stem: &str, kind: &str) -> PathBuf {
        self.target
            .join(format!("{stem}-{}", kind.replace([' ', ',', '+'], "-")))
    }

    /// What a test expects of the user's variables, it sets itself.
    fn environment(&self, mut run: Command) -> Command {
        run.current_dir(root());
        for (name, _) in std::env::vars_os() {
            let outside = name.to_string_lossy();
            if outside.starts_with("TASKGPU_") || outside.starts_with("HIP_SHIM_") {
                run.env_remove(&name);
            }
        }
        run.env("TASKGPU_BACKENDS", "host")
            .env("TASKGPU_HOST_DEVICES", "4")
            .env("TASKGPU_LIBRARY", self.folder.join(library::soname()));
        run
    }

    fn tests(&self) -> Result<Vec<Program>, String> {
        let mut programs = Vec::new();
        let mut add = |source: &Path, kind: &str, compiler: &str, flags: &[&str]| {
            programs.push(self.program(source, kind, compiler, flags));
        };
        for source in sources("c-tests", "c")? {
            if !stem(&source).starts_with(ON_SHIM) {
                add(&source, "shared", "cc", &["-std=c11"]);
                add(&source, "static", "cc", &["-std=c11"]);
            }
        }
        for source in sources("c-tests", "cpp")? {
            add(&source, "C++17, shared", "g++", &["-std=c++17"]);
            add(&source, "C++20, shared", "clang++", &["-std=c++20"]);
            add(&source, "C++17, static", "g++", &["-std=c++17"]);
            add(
                &source,
                "no exceptions, shared",
                "g++",
                &["-std=c++20", "-fno-exceptions"],
            );
        }
        add(&root().join(SEVERAL_DEVICES), "shared", "cc", &["-std=c11"]);
        Ok(programs)
    }

    /// The tests of the core again with the HIP runtime of the tests under them, and those that are about it.
    fn on_shim(&self) -> Result<Vec<Program>, String> {
        let mut programs = Vec::new();
        for source in sources("c-tests", "c")? {
            let stem = stem(&source);
            if NOT_ON_SHIM.contains(&&*stem) {
                continue;
            }
            programs.push(self.program(&source, "shared, HIP", "cc", &["-std=c11"]));
            if stem.starts_with(ON_SHIM) {
                programs.push(self.program(&source, "static, HIP", "cc", &["-std=c11"]));
            }
        }
        for source in sources("c-tests", "cpp")? {
            programs.push(self.program(&source, "C++17, shared, HIP", "g++", &["-std=c++17"]));
        }
        programs.push(self.program(&root().join(SEVERAL_DEVICES), "shared, HIP", "cc", &["-std=c11"]));
        programs.extend(self.examples("example, HIP", "C++ example, HIP")?);
        for program in &mut programs {
            program
                .run
                .env("TASKGPU_BACKENDS", "hip")
                .env("HIP_SHIM_DEVICES", "4")
                .env("TASKGPU_TEST_HIP_SHIM", "1")
                .env("TASKGPU_TEST_SKIP", shim::skip());
        }
        Ok(programs)
    }

    /// The same programs for every kind of device.
    fn examples(&self, c: &str, cpp: &str) -> Result<Vec<Program>, String> {
        let mut programs = Vec::new();
        for source in sources("examples/c", "c")? {
            programs.push(self.program(&source, c, "cc", &["-std=c11", "-O2"]));
        }
        for source in sources("examples/cpp", "cpp")? {
            programs.push(self.program(&source, cpp, "c++", &["-std=c++17", "-O2"]));
        }
        for program in &mut programs {
            if program.name.starts_with("file_histogram") {
                program.run.arg("examples/data/harbour.txt");
            } else if program.name.starts_with("mandelbrot") {
                let kernel = "examples/kernels/mandelbrot.hip";
                let picture = self.binary(
                    "mandelbrot",
                    if program.name.contains("HIP") {
                        "HIP.ppm"
                    } else {
                        "host.ppm"
                    },
                );
                program.run.arg(kernel).arg(picture);
            }
        }
        Ok(programs)
    }

    /// The Julia package's own tests, with several threads and with one.
    fn julia(&self, julia: &Julia) -> Result<Vec<Program>, String> {
        // Compiled once, before two of them start.
        let mut compile = self.environment(julia.command());
        quietly(compile.args(["-e", "using TaskGPU"]), PATIENCE)?;
        let kernels = self.target.join("julia-kernels.so");
        let mut build = Command::new("cc");
        build
            .args(STRICT)
            .args(["-std=c11", "-shared", "-fPIC", "-I"])
            .arg(root().join("include"))
            .arg(root().join("bindings/julia/TaskGPU/test/kernels.c"))
            .arg("-o")
            .arg(&kernels);
        quietly(&mut build, PATIENCE)?;
        let program = |threads: &str| {
            let mut run = self.environment(julia.command());
            run.arg(root().join("bindings/julia/TaskGPU/test/runtests.jl"))
                .env("JULIA_NUM_THREADS", threads)
                .env("TASKGPU_TEST_KERNELS", &kernels);
            Program {
                name: format!("Julia (JULIA_NUM_THREADS={threads})"),
                build: None,
                run,
                outcome: tests_run,
            }
        };
        let mut programs = vec![program("4"), program("1")];
        for (page, language) in GUIDES.iter().filter(|(_, language)| *language == "julia") {
            let mut run = self.environment(julia.command());
            run.arg(self.guide(page, language)?);
            programs.push(Program {
                name: format!("Julia ({page})"),
                build: None,
                run,
                outcome: doubled,
            });
        }
        Ok(programs)
    }

    fn python(&self) -> Result<Vec<Program>, String> {
        let python = tools::python()?;
        let programs = sources("examples/python", "py")?
            .into_iter()
            .filter_map(|source| {
                let stem = source.file_stem()?.to_string_lossy().into_owned();
                let mut run = self.environment(Command::new(python));
                run.arg(&source).env("PYTHONDONTWRITEBYTECODE", "1");
                // The layer itself is no program.
                (stem != "taskgpu").then_some(Program {
                    name: format!("Python ({stem})"),
                    build: None,
                    run,
                    outcome: tests_run,
                })
            });
        Ok(programs.collect())
    }

    fn mpi(&self) -> Result<Vec<Program>, String> {
        let sources = sources("examples/mpi", "c")?;
        let programs = sources.into_iter().map(|source| {
            let mut program = self.program(&source, "MPI", "mpicc", &["-std=c11", "-O2"]);
            if !source.ends_with("test_local_rank.c") {
                let binary = program.run.get_program().to_owned();
                // Four ranks, however few cores there are.
                program.run = self.environment(Command::new("mpirun"));
                program.run.args(["-n", "4", "--oversubscribe"]);
                if tools::is_root() {
                    program.run.arg("--allow-run-as-root");
                }
                program.run.arg(binary);
            }
            program.name = format!(
                "MPI ({})",
                source.file_stem().unwrap_or_default().to_string_lossy()
            );
            program
        });
        Ok(programs.collect())
    }

    /// The programs that README.md and the pages on languages show, except Julia's, and those that lack a tool.
    fn guides(&self) -> Result<Guides, String> {
        let (mut programs, mut missing) = (Vec::new(), Vec::new());
        for (page, language) in GUIDES.iter().filter(|(_, language)| *language != "julia") {
            let name = format!("guides ({language} of {page})");
            let source = self.guide(page, language)?;
            let binary = source.with_extension("");
            let mut program = match *language {
                "c" => self.program(&source, "guide", "cc", &["-std=c11"]),
                "cpp" => self.program(&source, "guide", "c++", &["-std=c++17"]),
                "python" => {
                    let mut run = self.environment(Command::new(tools::python()?));
                    run.arg(&source)
                        .env("PYTHONPATH", root().join("examples/python"))
                        .env("PYTHONDONTWRITEBYTECODE", "1");
                    Program {
                        name: String::new(),
                        build: None,
                        run,
                        outcome: tests_run,
                    }
                }
                _ => {
                    let tool = if *language == "go" { "go" } else { "gfortran" };
                    if !tools::found(tool) {
                        missing.push((name, tool));
                        continue;
                    }
                    let folder = self.folder.display();
                    let link = format!("-L{folder} -ltaskgpu -Wl,-rpath,{folder}");
                    let mut build = Command::new(tool);
                    match tool {
                        "go" => build
                            .env("CGO_CFLAGS", format!("-I{}", root().join("include").display()))
                            .env("CGO_LDFLAGS", link)
                            .env("GOCACHE", self.target.join("go"))
                            .args(["build", "-o"])
                            .arg(&binary)
                            .arg(&source),
                        _ => build
                            .args(["-Wall", "-Werror"])
                            .arg("-J")
                            .arg(self.target)
                            .arg(&source)
                            .arg("-o")
                            .arg(&binary)
                            .args(link.split(' ')),
                    };
                    Program {
                        name: String::new(),
                        build: Some(build),
                        run: self.environment(Command::new(&binary)),
                        outcome: tests_run,
                    }
                }
            };
            program.name = name;
            program.outcome = doubled;
            programs.push(program);
        }
        Ok((programs, missing))
    }

    /// The first program in `language` that a page shows, as a file.
    fn guide(&self, page: &str, language: &str) -> Result<PathBuf, String> {
        let (path, section) = page.split_once(": ").unwrap_or((page, ""));
        let text = read(&root().join(path))?;
        let (_, text) = text
            .split_once(&format!("# {section}"))
            .ok_or(format!("{path} has no section \"{section}\""))?;
        let program = text
            .split_once(&format!("```{language}\n"))
            .and_then(|(_, rest)| rest.split_once("```"))
            .ok_or(format!("{page} has no program in {language}"))?
            .0;
        let ending = match language {
            "julia" => "jl",
            "python" => "py",
            "fortran" => "f90",
            other => other,
        };
        let path = self.target.join(format!(
            "guide-{}.{ending}",
            page.replace(['/', '.', ':', ' '], "-")
        ));
        std::fs::write(&path, program).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    /// The C tests again, as they were built before.
    fn under_valgrind(&self) -> Result<Vec<Program>, String> {
        let mut programs = Vec::new();
        for source in sources("c-tests", "c")? {
            let stem = stem(&source);
            let binary = self.binary(&stem, "shared");
            if NOT_UNDER_VALGRIND.contains(&&*stem) || !binary.exists() {
                continue;
            }
            let mut run = self.environment(Command::new("valgrind"));
            run.args([
                "--quiet",
                "--fair-sched=yes",
                "--error-exitcode=9",
                "--leak-check=full",
                "--show-leak-kinds=definite",
                "--errors-for-leak-kinds=definite",
            ])
            .arg(binary)
            .env("TASKGPU_TEST_VALGRIND", "1");
            programs.push(Program {
                name: format!("{stem} (valgrind)"),
                build: None,
                run,
                outcome: tests_run,
            });
        }
        Ok(programs)
    }
}

/// A file's name without what says its kind.
fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn sources(folder: &str, extension: &str) -> Result<Vec<PathBuf>, String> {
    let folder = root().join(folder);
    let mut paths = library::entries(&folder)?;
    paths.retain(|path| path.extension().is_some_and(|end| end == extension));
    paths.sort();
    Ok(paths)
}

/// Two at a time, as the smallest machine has cores. A line for each as it ends.
fn build_and_run(tally: &mut Tally, programs: Vec<Program>) {
    let queue: Mutex<VecDeque<Program>> = Mutex::new(programs.into());
    let tally = Mutex::new(tally);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| loop {
                let next = queue.lock().expect("no test panics").pop_front();
                let Some(Program {
                    name,
                    build,
                    mut run,
                    outcome,
                }) = next
                else {
                    return;
                };
                let built = build.map_or(Ok(String::new()), |mut build| quietly(&mut build, PATIENCE));
                let outcome = built
                    .and_then(|_| quietly(&mut run, PATIENCE))
                    .and_then(|text| outcome(&text));
                tally.lock().expect("no test panics").add(&name, outcome);
            });
        }
    });
}

/// How many tests a program has run: its last line says so. One that says nothing is one test.
fn tests_run(text: &str) -> Outcome {
    let count = |line: &str| line.strip_suffix(" passed, 0 failed")?.parse::<usize>().ok();
    match text.lines().last().and_then(count) {
        Some(0) => Err("it ran no test".to_owned()),
        Some(tests) => Ok(tests),
        None => Ok(1),
    }
}

/// The programs of the guides print what they have doubled.
fn doubled(text: &str) -> Outcome {
    let numbers: Vec<f32> = text.split_whitespace().flat_map(str::parse).collect();
    match numbers[..] {
        [2.0, 4.0, 6.0] => Ok(1),
        _ => Err(format!("it prints \"{text}\" instead of 2 4 6")),
    }
}

/// Runs a command and answers what it prints, which is shown only where it fails or hangs.
pub fn quietly(command: &mut Command, patience: Duration) -> Result<String, String> {
    let shown = format!("{command:?}");
    let output = std::env::temp_dir().join(format!(
        "taskgpu-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let file = std::fs::File::create(&output).map_err(|error| format!("{}: {error}", output.display()))?;
    let both = file.try_clone().map_err(|error| error.to_string())?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(both)
        .spawn()
        .map_err(|error| format!("{shown}: {error}"))?;
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status.to_string(),
            None if start.elapsed() > patience => {
                let _ = child.kill();
                let _ = child.wait();
                break format!("still running after {} s", patience.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = std::fs::read(&output).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim_end().to_owned();
    let _ = std::fs::remove_file(&output);
    match status.as_str() {
        "exit status: 0" => Ok(text),
        _ => Err(format!("{text}\n{shown}: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_counted_by_what_was_printed() {
        assert_eq!(
            rust_tests("\ntest result: ok. 3 passed; 0 failed; x\n\ntest result: ok. 40 passed; 0\n"),
            Ok(43)
        );
        assert!(rust_tests("test result: ok. 0 passed; 0 failed").is_err());
        assert_eq!(tests_run("ok a\nok b\n2 passed, 0 failed"), Ok(2));
        assert_eq!(tests_run("hello"), Ok(1));
        assert!(tests_run("0 passed, 0 failed").is_err());
        assert_eq!(doubled("2.0 4. 6"), Ok(1));
        assert!(doubled("2 4 5").is_err() && doubled("").is_err() && doubled("2 4 6 8").is_err());
    }

    #[test]
    fn what_a_failing_command_printed_is_shown() {
        let text = quietly(Command::new("sh").args(["-c", "echo why; exit 3"]), PATIENCE).unwrap_err();
        assert!(
            text.starts_with("why\n") && text.ends_with("exit status: 3"),
            "{text}"
        );
        let text = quietly(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap_err();
        assert!(text.contains("still running"), "{text}");
    }
}
