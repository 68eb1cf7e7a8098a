//! `cargo xtask demo [FILE]`: the main job of the library, seen at work on this machine.
//!
//! Builds the library, compiles two of the C examples against it with the system's C compiler as a user would, and runs
//! them: `multi_device` on four devices, then `file_histogram` on FILE or on the sample.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const USAGE: &str = "usage: cargo xtask demo [FILE]";
const INSTALL: &[&str] = &["gcc", "libc6-dev"];

/// Runs the demo. The error is what a person has to read and do.
pub fn run(args: &[String]) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("xtask lies outside the workspace")?;
    let file = match args {
        [] => root.join("examples/data/harbour.txt"),
        [file] if !file.starts_with('-') => PathBuf::from(file),
        _ => return Err(USAGE.into()),
    };
    // Before a build that takes a while.
    std::fs::File::open(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let cc = c_compiler()?;

    println!("building the library (release)");
    let library = build(root)?;
    let out = library.with_file_name("demo");
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    link(&library, &out.join("libtaskgpu.so"))?;
    link(&library, &out.join(soname(root)?))?;

    for (example, argument) in [("multi_device", None), ("file_histogram", Some(&file))] {
        let program = compile(root, &cc, &out, example)?;
        println!("\n== {example}");
        let mut command = Command::new(&program);
        command.args(argument);
        // The examples' kernels are C functions, which only host devices run.
        for (name, value) in [("TASKGPU_BACKENDS", "host"), ("TASKGPU_HOST_DEVICES", "4")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        let status = command
            .status()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        if !status.success() {
            return Err(format!("{example} failed or computed something wrong: {status}"));
        }
    }
    Ok(())
}

/// The C compiler: `$CC`, else `cc`. As root on Debian it is installed if it is missing.
fn c_compiler() -> Result<OsString, String> {
    let cc = std::env::var_os("CC")
        .filter(|cc| !cc.is_empty())
        .unwrap_or_else(|| "cc".into());
    if runs(&cc, "--version") {
        return Ok(cc);
    }
    let name = cc.to_string_lossy().into_owned();
    let packages = INSTALL.join(" ");
    if name == "cc" && Path::new("/etc/debian_version").exists() && is_root() {
        println!("no C compiler: installing {packages}");
        let apt = |args: &[&str]| {
            Command::new("apt-get")
                .args(args)
                .status()
                .is_ok_and(|s| s.success())
        };
        if apt(&["update", "-q"])
            && apt(&[&["install", "-q", "-y", "--no-install-recommends"], INSTALL].concat())
            && runs(&cc, "--version")
        {
            return Ok(cc);
        }
        return Err(format!(
            "no C compiler, and `apt-get install {packages}` did not bring one"
        ));
    }
    Err(format!(
        "no C compiler: `{name}` does not run. Install one (Debian, Ubuntu: `sudo apt-get install {packages}`; \
         Fedora: `sudo dnf install gcc`; Arch: `sudo pacman -S gcc`), or name yours with CC=..."
    ))
}

fn runs(program: &OsString, argument: &str) -> bool {
    let quiet = Command::new(program)
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    quiet.is_ok_and(|s| s.success())
}

fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|o| o.stdout.trim_ascii() == b"0")
}

/// Builds the shared library and answers where cargo put it.
fn build(root: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(&cargo)
        .current_dir(root)
        .args([
            "build",
            "--release",
            "--lib",
            "--package",
            "taskgpu",
            "--message-format=json-render-diagnostics",
        ])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("{}: {e}", cargo.to_string_lossy()))?;
    if !output.status.success() {
        return Err(format!("the library does not build: {}", output.status));
    }
    // One JSON object a line; the paths of an artifact are plain strings in it.
    let messages = String::from_utf8_lossy(&output.stdout);
    let library = messages.split('"').find(|s| s.ends_with("/libtaskgpu.so"));
    library
        .map(PathBuf::from)
        .ok_or_else(|| "cargo built no libtaskgpu.so".into())
}

/// The name that programs linked with the library look for: the SONAME that build.rs sets.
fn soname(root: &Path) -> Result<String, String> {
    let path = root.join("Cargo.toml");
    let manifest = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let package = manifest.split("[package]").nth(1).unwrap_or_default();
    let version = package
        .lines()
        .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    let mut parts = version.unwrap_or_default().split('.');
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) => Ok(format!("libtaskgpu.so.{major}.{minor}")),
        _ => Err(format!("{}: no version in [package]", path.display())),
    }
}

fn link(target: &Path, at: &Path) -> Result<(), String> {
    match std::fs::remove_file(at) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(format!("{}: {e}", at.display())),
        _ => {}
    }
    std::os::unix::fs::symlink(target, at).map_err(|e| format!("{}: {e}", at.display()))
}

/// Compiles `examples/c/<example>.c` as a user would, and answers the program.
fn compile(root: &Path, cc: &OsString, out: &Path, example: &str) -> Result<PathBuf, String> {
    let header = root.join("include/taskgpu.h");
    if !header.exists() {
        return Err(format!(
            "{} is missing: `cargo xtask header` writes it",
            header.display()
        ));
    }
    let program = out.join(example);
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(out);
    let status = Command::new(cc)
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-I"])
        .arg(root.join("include"))
        .arg(root.join(format!("examples/c/{example}.c")))
        .arg("-L")
        .arg(out)
        .arg(rpath)
        .args(["-ltaskgpu", "-lpthread", "-o"])
        .arg(&program)
        .status()
        .map_err(|e| format!("{}: {e}", cc.to_string_lossy()))?;
    if status.success() {
        Ok(program)
    } else {
        Err(format!("examples/c/{example}.c does not compile: {status}"))
    }
}
