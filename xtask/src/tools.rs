//! The tools that the chores need: looked for, installed where that is possible, or named.

use std::path::Path;
use std::process::{Command, Stdio};

/// A program, and the Debian package that has it.
pub struct Tool {
    pub program: &'static str,
    pub package: &'static str,
}

/// Compilers and what looks at their output.
pub const COMPILERS: &[Tool] = &[
    Tool {
        program: "cc",
        package: "gcc",
    },
    Tool {
        program: "c++",
        package: "g++",
    },
    Tool {
        program: "clang",
        package: "clang",
    },
    Tool {
        program: "clang++",
        package: "clang",
    },
    Tool {
        program: "readelf",
        package: "binutils",
    },
];

/// What the MPI example is built and run with.
pub const MPI: &[Tool] = &[
    Tool {
        program: "mpicc",
        package: "libopenmpi-dev",
    },
    Tool {
        program: "mpirun",
        package: "openmpi-bin",
    },
];

/// A Python with NumPy: the one on the PATH, or Debian's.
pub fn python() -> Result<&'static str, String> {
    const DEBIANS: &str = "/usr/bin/python3";
    let has_numpy = |python: &&str| {
        let import = Command::new(python).args(["-c", "import numpy"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    if let Some(python) = ["python3", DEBIANS].into_iter().find(has_numpy) {
        return Ok(python);
    }
    install(&["python3-numpy"])?;
    Some(DEBIANS)
        .filter(has_numpy)
        .ok_or_else(|| format!("{DEBIANS} does not find NumPy, though python3-numpy is installed"))
}

/// AMD's HIP runtime, its compiler and its headers, which need no GPU for what is tested of them. Files, not programs.
pub const HIP: &[Tool] = &[Tool {
    program: "/usr/include/hip/hip_runtime_api.h",
    package: "libamdhip64-dev",
}];

/// True if `program` can be found on the PATH, or is a file where its path says.
pub fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Sees to it that every tool is there: installs what is missing on Debian as root, else says what to install.
pub fn require(tools: &[Tool]) -> Result<(), String> {
    let missing = |tools: &[Tool]| -> Vec<&'static str> {
        let mut packages: Vec<_> = tools
            .iter()
            .filter(|tool| !found(tool.program))
            .map(|tool| tool.package)
            .collect();
        packages.dedup();
        packages
    };
    let packages = missing(tools);
    if packages.is_empty() {
        return Ok(());
    }
    install(&packages)?;
    match missing(tools)[..] {
        [] => Ok(()),
        ref still => Err(format!(
            "still missing after the installation: {}",
            still.join(", ")
        )),
    }
}

/// Installs Debian packages.
pub fn install(packages: &[&str]) -> Result<(), String> {
    let list = packages.join(" ");
    let by_hand = format!("install these packages (names of Debian's) and run this again: {list}");
    if !Path::new("/etc/debian_version").exists() || !is_root() {
        return Err(by_hand);
    }
    println!("installing {list}");
    for arguments in [
        vec!["update", "-qq"],
        [
            vec!["install", "-y", "-qq", "--no-install-recommends"],
            packages.to_vec(),
        ]
        .concat(),
    ] {
        let status = Command::new("apt-get")
            .args(&arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("apt-get {} failed; {by_hand}", arguments.join(" ")));
        }
    }
    Ok(())
}

pub fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
