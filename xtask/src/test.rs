//! `cargo xtask test`: everything that must hold, in one run.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::library::{self, root};
use crate::{header, symbols, tools};

const USAGE: &str = "usage: cargo xtask test [--only NAME]";
/// A program that runs longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(300);
/// What the static library needs besides itself.
const SYSTEM_LIBRARIES: &[&str] = &["-lpthread", "-ldl", "-lm", "-lgcc_s", "-lc"];
const STRICT: &[&str] = &["-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// What has been tried so far.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
}

impl Tally {
    fn add(&mut self, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => {
                println!("ok      {name}");
                self.passed += 1;
            }
            Err(text) => {
                println!("FAILED  {name}\n{text}");
                self.failed.push(name.to_owned());
            }
        }
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
    tools::require(tools::COMPILERS)?;
    if only.is_none() {
        whole_tree(&mut tally);
    }
    heading("release build");
    let folder = library::build()?;
    if only.is_none() {
        tally.add("exported symbols equal the header's functions", symbols::run());
    }
    heading("C and C++ programs");
    let programs = programs(&folder, only)?;
    if let (Some(name), true) = (only, programs.is_empty()) {
        return Err(format!("no program is named like \"{name}\""));
    }
    for (name, result) in build_and_run(programs) {
        tally.add(&name, result);
    }
    if !tally.failed.is_empty() {
        println!("\nfailed: {}", tally.failed.join(", "));
    }
    println!("\n{} passed, {} failed", tally.passed, tally.failed.len());
    match tally.failed.is_empty() {
        true => Ok(()),
        false => Err("cargo xtask test: not everything holds".to_owned()),
    }
}

fn heading(text: &str) {
    println!("\n== {text}");
}

/// What cargo and the header's generator check.
fn whole_tree(tally: &mut Tally) {
    heading("format, lints, documentation");
    tally.add("cargo fmt", cargo(&["fmt", "--all", "--check"], &[]));
    tally.add(
        "cargo clippy",
        cargo(
            &[
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ],
            &[],
        ),
    );
    let warnings = [("RUSTDOCFLAGS", "-D warnings")];
    tally.add(
        "cargo doc",
        cargo(&["doc", "--quiet", "--workspace", "--no-deps"], &warnings),
    );
    heading("header");
    tally.add(
        "include/taskgpu.h is what src/capi says, in every C and C++ standard",
        header::run(&["--check"]),
    );
    tally.add("include/taskgpu.hpp alone, in C++17 and C++20", cpp_header());
    heading("Rust tests");
    tally.add("cargo test", cargo(&["test", "--quiet", "--workspace"], &[]));
}

fn cargo(args: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root())
        .args(args)
        .envs(environment.iter().copied());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo {}: {status}", args.join(" "))),
        Err(error) => Err(format!("cargo: {error}")),
    }
}

fn cpp_header() -> Result<(), String> {
    for compiler in ["g++", "clang++"] {
        for standard in ["-std=c++17", "-std=c++20"] {
            for exceptions in ["-fexceptions", "-fno-exceptions"] {
                let mut command = Command::new(compiler);
                command
                    .args(STRICT)
                    .args([standard, exceptions, "-fsyntax-only", "-x", "c++", "-include"]);
                command.arg(root().join("include/taskgpu.hpp")).arg("/dev/null");
                quietly(&mut command)?;
            }
        }
    }
    Ok(())
}

/// A program to build and to run.
struct Program {
    name: String,
    build: Command,
    run: Command,
}

/// Every C and C++ test, against the shared and the static library, and every example.
fn programs(folder: &Path, only: Option<&str>) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    let target = folder.join("../c-tests");
    std::fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let mut add = |source: &Path, kind: &str, compiler: &str, flags: &[&str]| {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let name = format!("{stem} ({kind})");
        if only.is_some_and(|only| !name.contains(only)) {
            return;
        }
        let binary = target.join(format!("{stem}-{}", kind.replace([' ', ',', '+'], "-")));
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
            true => build.arg(folder.join("libtaskgpu.a")).args(SYSTEM_LIBRARIES),
            false => {
                let mut rpath = OsString::from("-Wl,-rpath,");
                rpath.push(folder);
                build
                    .arg("-L")
                    .arg(folder)
                    .arg("-ltaskgpu")
                    .arg(rpath)
                    .args(["-lpthread", "-ldl", "-lm"])
            }
        };
        let mut run = Command::new(binary);
        run.current_dir(root())
            .env("TASKGPU_BACKENDS", "host")
            .env("TASKGPU_HOST_DEVICES", "4");
        // What a test expects of an exported variable, it sets itself.
        for variable in [
            "TASKGPU_VISIBLE_DEVICES",
            "TASKGPU_WAIT",
            "TASKGPU_HOST_MEMORY",
            "TASKGPU_HOST_THREADS",
        ] {
            run.env_remove(variable);
        }
        if stem == "file_histogram" {
            run.arg("examples/data/harbour.txt");
        }
        programs.push(Program { name, build, run });
    };
    for source in sources("c-tests", "c")? {
        add(&source, "shared", "cc", &["-std=c11"]);
        add(&source, "static", "cc", &["-std=c11"]);
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
    for source in sources("examples/c", "c")? {
        add(&source, "example", "cc", &["-std=c11", "-O2"]);
    }
    for source in sources("examples/cpp", "cpp")? {
        add(&source, "C++ example", "c++", &["-std=c++17", "-O2"]);
    }
    Ok(programs)
}

fn sources(folder: &str, extension: &str) -> Result<Vec<PathBuf>, String> {
    let folder = root().join(folder);
    let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == extension));
    paths.sort();
    Ok(paths)
}

/// Two at a time, as the smallest machine has cores. Results come in the order of the programs.
fn build_and_run(programs: Vec<Program>) -> Vec<(String, Result<(), String>)> {
    let queue: Mutex<VecDeque<(usize, Program)>> = Mutex::new(programs.into_iter().enumerate().collect());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| loop {
                let next = queue.lock().expect("no test panics").pop_front();
                let Some((
                    number,
                    Program {
                        name,
                        mut build,
                        mut run,
                    },
                )) = next
                else {
                    return;
                };
                let result = quietly(&mut build).and_then(|()| quietly(&mut run));
                results
                    .lock()
                    .expect("no test panics")
                    .push((number, name, result));
            });
        }
    });
    let mut results = results.into_inner().expect("no test panics");
    results.sort_by_key(|(number, ..)| *number);
    results
        .into_iter()
        .map(|(_, name, result)| (name, result))
        .collect()
}

/// Runs a command; what it prints is only shown where it fails or hangs.
fn quietly(command: &mut Command) -> Result<(), String> {
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
            None if start.elapsed() > PATIENCE => {
                let _ = child.kill();
                let _ = child.wait();
                break format!("still running after {} s", PATIENCE.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let text = std::fs::read(&output).unwrap_or_default();
    let _ = std::fs::remove_file(&output);
    match status.as_str() {
        "exit status: 0" => Ok(()),
        _ => Err(format!(
            "{}\n{shown}: {status}",
            String::from_utf8_lossy(&text).trim_end()
        )),
    }
}
