//! `cargo xtask package [FOLDER]`: the library as it is installed. CMake lays it out; this calls it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::{self, root};
use crate::tools::{self, Tool};

const USAGE: &str = "cargo xtask package [FOLDER]; FOLDER is target/package without one";

pub const CMAKE: Tool = Tool {
    program: "cmake",
    package: "cmake",
};

pub fn run(args: &[&str]) -> Result<(), String> {
    let folder = match args {
        [] => library::target().join("package"),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        _ => return Err(USAGE.to_owned()),
    };
    tools::require(&[CMAKE])?;
    let build = library::target().join("cmake");
    for mut step in [configure(&build), compile(&build), install(&build, &folder)] {
        // Its messages are no answer of ours: the folder alone is.
        let output = step.output().map_err(|error| format!("cmake: {error}"))?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            return Err(format!("{}\n{step:?} failed", String::from_utf8_lossy(&text)));
        }
    }
    println!("{}", folder.display());
    Ok(())
}

/// Prepares the build in a folder, with what cargo has built already.
pub fn configure(build: &Path) -> Command {
    let mut cmake = cmake();
    cmake.arg("-S").arg(root()).arg("-B").arg(build);
    cmake.arg(define("TASKGPU_CARGO_TARGET_DIR", &library::target()));
    if let Some(cargo) = std::env::var_os("CARGO") {
        cmake.arg(define("TASKGPU_CARGO", Path::new(&cargo)));
    }
    cmake
}

/// Builds what was configured in a folder.
pub fn compile(build: &Path) -> Command {
    let mut cmake = cmake();
    cmake.arg("--build").arg(build).args(["--parallel", "2"]);
    cmake
}

/// Installs what was built in a folder.
pub fn install(build: &Path, prefix: &Path) -> Command {
    let mut cmake = cmake();
    cmake.arg("--install").arg(build).arg("--prefix").arg(prefix);
    cmake
}

/// A setting for CMake.
pub fn define(name: &str, path: &Path) -> std::ffi::OsString {
    let mut text = std::ffi::OsString::from(format!("-D{name}="));
    text.push(path);
    text
}

/// CMake, without what a person has set for other projects and without the folders that cargo lets libraries be found in.
pub fn cmake() -> Command {
    let mut cmake = Command::new(CMAKE.program);
    for variable in [
        "CMAKE_PREFIX_PATH",
        "CMAKE_GENERATOR",
        "DESTDIR",
        "LD_LIBRARY_PATH",
    ] {
        cmake.env_remove(variable);
    }
    cmake
}
