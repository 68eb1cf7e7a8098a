//! `cargo xtask demo [FILE]`: the main job of the library, seen at work on this machine.
//!
//! Builds the library, compiles three of the C examples against it with the system's C compiler as a user would, and runs
//! them: `multi_device`, then `file_histogram` on FILE or on the sample, and `mandelbrot`. Their kernels are source: they run
//! on the machine's GPUs, or on four host devices where it has none.

use crate::library;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const USAGE: &str = "usage: cargo xtask demo [FILE]";
const PACKAGES: [&str; 2] = ["gcc", "libc6-dev"];

/// Runs the demo. The error is what a person has to read and do.
pub fn run(args: &[impl AsRef<str>]) -> Result<(), String> {
    let root = library::root();
    let file = match args {
        [] => root.join("examples/data/harbour.txt"),
        [file] if !file.as_ref().starts_with('-') => PathBuf::from(file.as_ref()),
        _ => return Err(USAGE.into()),
    };
    // Before a build that takes a while.
    std::fs::File::open(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let cc = c_compiler()?;

    println!("building the library");
    let lib = library::build()?;
    let out = root.join("target/demo");
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;

    let (kernel, picture) = (
        root.join("examples/kernels/mandelbrot.hip"),
        out.join("mandelbrot.ppm"),
    );
    let examples = [
        ("multi_device", vec![]),
        ("file_histogram", vec![&file]),
        ("mandelbrot", vec![&kernel, &picture]),
    ];
    for (example, arguments) in examples {
        let program = compile(&root, &cc, &lib, &out, example)?;
        println!("\n== {example}");
        let mut command = Command::new(&program);
        command.args(arguments);
        if std::env::var_os("TASKGPU_HOST_DEVICES").is_none() {
            command.env("TASKGPU_HOST_DEVICES", "4");
        }
        let status = command
            .status()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        if !status.success() {
            return Err(format!("{example} failed or computed something wrong: {status}"));
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("\nbusy: from a device's first to its last event. Host devices share the {cores} cores of this machine.");
    Ok(())
}

/// The C compiler: `$CC`, else `cc`. As root on Debian it is installed if it is missing.
fn c_compiler() -> Result<OsString, String> {
    let named = std::env::var_os("CC").filter(|cc| !cc.is_empty());
    let cc = named.clone().unwrap_or_else(|| "cc".into());
    if runs(&cc) {
        return Ok(cc);
    }
    let packages = PACKAGES.join(" ");
    if named.is_none() && Path::new("/etc/debian_version").exists() && is_root() {
        println!("no C compiler: installing {packages}");
        if apt_get(&["update", "-q"])
            && apt_get(&["install", "-q", "-y", PACKAGES[0], PACKAGES[1]])
            && runs(&cc)
        {
            return Ok(cc);
        }
        return Err(format!(
            "no C compiler, and `apt-get install {packages}` did not bring one"
        ));
    }
    Err(format!(
        "no C compiler: `{}` does not run. Install one (Debian, Ubuntu: `sudo apt-get install {packages}`; \
         Fedora: `sudo dnf install gcc`; Arch: `sudo pacman -S gcc`), or name yours with CC=...",
        cc.to_string_lossy()
    ))
}

fn apt_get(args: &[&str]) -> bool {
    Command::new("apt-get")
        .args(args)
        .status()
        .is_ok_and(|s| s.success())
}

fn runs(program: &OsStr) -> bool {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

fn is_root() -> bool {
    Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|o| o.stdout.trim_ascii() == b"0")
}

/// Compiles `examples/c/<example>.c` as a user would, and answers the program.
fn compile(root: &Path, cc: &OsStr, lib: &Path, out: &Path, example: &str) -> Result<PathBuf, String> {
    let program = out.join(example);
    let mut rpath = OsString::from("-Wl,-rpath,");
    rpath.push(lib);
    let status = Command::new(cc)
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-I"])
        .arg(root.join("include"))
        .arg(root.join(format!("examples/c/{example}.c")))
        .arg("-L")
        .arg(lib)
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
