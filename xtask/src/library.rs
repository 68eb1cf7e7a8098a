//! The library as it is shipped: optimized across crates, with the names that programs link and load.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the project.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the project")
        .to_owned()
}

/// Builds the shared and the static library and answers the folder they are in.
///
/// As cmake/build.cmake does, so that neither has to build what the other has built. The crate types are named: together
/// with an `rlib`, as `cargo build` makes it, cargo leaves link-time optimization out, and calls then cost twice as much.
pub fn build() -> Result<PathBuf, String> {
    let cargo = cargo();
    let status = Command::new(&cargo)
        .current_dir(root())
        .args([
            "rustc",
            "--quiet",
            "--release",
            "--package",
            "taskgpu",
            "--lib",
            "--crate-type",
            "staticlib,cdylib",
        ])
        .status()
        .map_err(|error| format!("{}: {error}", cargo.to_string_lossy()))?;
    if !status.success() {
        return Err("the library did not build".to_owned());
    }
    let folder = target().join("release");
    link_soname(&folder)?;
    Ok(folder)
}

/// The cargo that runs this, or else the one that is found.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The files and folders in a folder.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Programs ask the loader for the SONAME; cargo writes only the plain name.
pub fn link_soname(folder: &Path) -> Result<(), String> {
    let soname = folder.join(soname());
    match std::fs::remove_file(&soname) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{}: {error}", soname.display()))
        }
        _ => {}
    }
    std::os::unix::fs::symlink("libtaskgpu.so", &soname)
        .map_err(|error| format!("{}: {error}", soname.display()))
}

/// The name in the shared library that the loader looks for.
pub fn soname() -> String {
    format!("libtaskgpu.so.{}", minor_version())
}

/// The two numbers of the version that promise an ABI.
pub fn minor_version() -> String {
    let version = version();
    version
        .rsplit_once('.')
        .map_or(version.clone(), |(minor, _)| minor.to_owned())
}

/// The version of the library.
pub fn version() -> String {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap_or_default();
    let version = manifest.lines().find_map(|line| {
        line.strip_prefix("version = \"")?
            .strip_suffix('"')
            .map(str::to_owned)
    });
    version.unwrap_or_else(|| "0.0.0".to_owned())
}
