//! `cargo xtask gpu [FOLDER]`: gathers what a machine with an NVIDIA GPU needs to test and measure what was built here.
//! That machine needs cc, and neither Rust nor a registry.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::library::{self, root};
use crate::shim;

const USAGE: &str = "cargo xtask gpu [FOLDER]; FOLDER is target/gpu without one";

pub fn run(args: &[&str]) -> Result<(), String> {
    let folder = match args {
        [] => root().join("target/gpu"),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        _ => return Err(USAGE.to_owned()),
    };
    let release = library::build()?;
    std::fs::create_dir_all(folder.join("include")).map_err(|e| format!("{}: {e}", folder.display()))?;
    for header in ["taskgpu.h", "taskgpu.hpp"] {
        copy(
            &root().join("include").join(header),
            &folder.join("include").join(header),
        )?;
    }
    copy(&release.join("libtaskgpu.so"), &folder.join("libtaskgpu.so"))?;
    copy(&test_program("cuda_backend")?, &folder.join("cuda_backend"))?;
    for file in ["libtaskgpu.so", "cuda_backend"] {
        // Only to have less to carry.
        let _ = Command::new("strip").arg(folder.join(file)).status();
    }
    // The HIP path of the library runs on the same GPUs by way of the HIP runtime of the tests.
    let rocm = shim::build()?;
    std::fs::create_dir_all(folder.join("rocm/lib")).map_err(|e| format!("{}: {e}", folder.display()))?;
    for name in shim::NAMES {
        copy(&rocm.join("lib").join(name), &folder.join("rocm/lib").join(name))?;
        let _ = Command::new("strip")
            .arg(folder.join("rocm/lib").join(name))
            .status();
    }
    let folder = folder.display();
    println!("on the machine with the GPU, in a copy of this tree:");
    println!("  bash tests/gpu/run.sh {folder}      every test");
    println!(
        "  SUITE_BACKEND=hip bash tests/gpu/suite.sh {folder}    the C tests through the library's HIP side"
    );
    println!(
        "  bash benches/gpu/run.sh {folder}    the table of docs/performance.md; needs nvcc and PyTorch"
    );
    println!("  bash tests/gpu/multi.sh {folder}    what needs two GPUs or more, and its figures");
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to)
        .map(|_| ())
        .map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

/// Builds a file of tests/ and answers where the program is.
fn test_program(name: &str) -> Result<PathBuf, String> {
    let built = Command::new(library::cargo())
        .current_dir(root())
        .args([
            "test",
            "--release",
            "--no-run",
            "--message-format=json",
            "--test",
            name,
        ])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    String::from_utf8_lossy(&built.stdout)
        .lines()
        .filter_map(|line| line.split("\"executable\":\"").nth(1)?.split('"').next())
        .next_back()
        .map(PathBuf::from)
        .ok_or_else(|| format!("tests/{name}.rs did not build"))
}
