//! A real Julia for the tests, beside the system and without touching it.
//!
//! Debian 11 is the last Debian with a Julia. Its package runs on later ones, but needs that suite's own libunwind:
//! with a newer one every exception through compiled code crashes. So Julia and all that it links with are unpacked
//! into a folder of the build, from the mirror that the machine uses already.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::root;

const SUITE: &str = "bullseye";
/// The parts of a process that exist once and only grow: the machine's own are taken.
const OF_THE_MACHINE: &[&str] = &["libc6", "libcrypt1", "libgcc-s1", "libstdc++6"];
const LIBRARY_FOLDERS: [&str; 3] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/julia",
    "lib/x86_64-linux-gnu",
];

/// A Julia to run.
pub struct Julia {
    program: PathBuf,
    /// Where its libraries are. Empty for one that finds them itself.
    libraries: Vec<PathBuf>,
    depot: PathBuf,
}

impl Julia {
    /// The one that the variable JULIA names, else Debian's, fetched into `folder` if it is not there yet.
    pub fn get(folder: &Path) -> Result<Julia, String> {
        let depot = folder.join("depot");
        if let Some(program) = std::env::var_os("JULIA").filter(|program| !program.is_empty()) {
            return Ok(Julia {
                program: program.into(),
                libraries: Vec::new(),
                depot,
            });
        }
        let unpacked = folder.join("root");
        if !unpacked.is_dir() {
            fetch(folder, &unpacked)?;
        }
        Ok(Julia {
            program: unpacked.join("usr/bin/julia"),
            libraries: LIBRARY_FOLDERS.map(|name| unpacked.join(name)).to_vec(),
            depot,
        })
    }

    /// Julia with the package at hand, and with nothing of the user's.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let mut project = std::ffi::OsString::from("--project=");
        project.push(root().join("bindings/julia/TaskGPU"));
        command
            .arg("--startup-file=no")
            .arg(project)
            .env("JULIA_DEPOT_PATH", &self.depot);
        if !self.libraries.is_empty() {
            let path = std::env::join_paths(&self.libraries).expect("no colon in a build folder");
            command.env("LD_LIBRARY_PATH", path);
        }
        command
    }
}

/// Downloads and unpacks Julia. Leaves nothing at `unpacked` if something fails.
fn fetch(folder: &Path, unpacked: &Path) -> Result<(), String> {
    println!("fetching Julia from Debian's {SUITE} into {}", folder.display());
    let apt = folder.join("apt");
    let (lists, archives, parts) = (apt.join("lists"), apt.join("archives"), apt.join("sources"));
    for path in [&lists.join("partial"), &archives.join("partial"), &parts] {
        std::fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let (name, text) = source()?;
    write(&parts.join(name), &text)?;
    let user = if crate::tools::is_root() {
        "APT::Sandbox::User=root"
    } else {
        "APT::Sandbox::User="
    };
    let options = [
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        format!("Dir::Etc::SourceParts={}", parts.display()),
        format!("Dir::State::Lists={}", lists.display()),
        // As if nothing were installed: then all that Julia links with is fetched, in the versions it was built for.
        "Dir::State::Status=/dev/null".to_owned(),
        format!("Dir::Cache::Archives={}", archives.display()),
        "Dir::Cache::pkgcache=".to_owned(),
        "Dir::Cache::srcpkgcache=".to_owned(),
        "APT::Install-Recommends=false".to_owned(),
        "Debug::NoLocking=true".to_owned(),
        user.to_owned(),
    ];
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        for option in &options {
            command.args(["-o", option]);
        }
        command.arg("-qq").args(arguments);
        run(&mut command)
    };
    apt_get(&["update", "--error-on=any"])?;
    apt_get(&["install", "--yes", "--download-only", "julia"])?;

    let unfinished = folder.join("unfinished");
    let _ = std::fs::remove_dir_all(&unfinished);
    let entries = std::fs::read_dir(&archives).map_err(|error| format!("{}: {error}", archives.display()))?;
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let package = name.split('_').next().unwrap_or_default();
        if name.ends_with(".deb") && !OF_THE_MACHINE.contains(&package) {
            run(Command::new("dpkg")
                .arg("--extract")
                .arg(entry.path())
                .arg(&unfinished))?;
        }
    }
    std::fs::rename(&unfinished, unpacked).map_err(|error| format!("{}: {error}", unpacked.display()))?;
    let _ = std::fs::remove_dir_all(&apt);
    Ok(())
}

/// The machine's own source of Debian packages, with the suite that has Julia: a file name for apt, and its text.
fn source() -> Result<(&'static str, String), String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.ok_or("/etc/os-release names no release of Debian")?;
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let found = match file.extension().and_then(|end| end.to_str()) {
            Some("list") => line_for_suite(&text, codename).map(|text| ("julia.list", text)),
            Some("sources") => stanza_for_suite(&text, codename).map(|text| ("julia.sources", text)),
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Err(format!(
        "no source of packages in /etc/apt has the suite {codename}"
    ))
}

/// `deb [options] mirror suite components`, one a line.
fn line_for_suite(text: &str, codename: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("deb ")?.trim_start();
        let (options, rest) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (options, rest) = rest.split_once(']')?;
                (format!("[{options}] "), rest)
            }
            None => (String::new(), rest),
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let ours = words.len() > 2 && words[1] == codename && words[2..].contains(&"main");
        ours.then(|| format!("deb {options}{} {SUITE} main\n", words[0]))
    })
}

/// Fields `Name: value`, one a line, in stanzas with empty lines between them.
fn stanza_for_suite(text: &str, codename: &str) -> Option<String> {
    let has = |stanza: &str, field: &str, word: &str| {
        stanza.lines().any(|line| {
            line.strip_prefix(field)
                .is_some_and(|value| value.split_whitespace().any(|w| w == word))
        })
    };
    let stanza = text.split("\n\n").find(|stanza| {
        has(stanza, "Types:", "deb") && has(stanza, "Suites:", codename) && has(stanza, "Components:", "main")
    })?;
    let replaced = |line: &str| match line.split_once(':').map(|(field, _)| field) {
        Some("Types") => "Types: deb\n".to_owned(),
        Some("Suites") => format!("Suites: {SUITE}\n"),
        Some("Components") => "Components: main\n".to_owned(),
        _ => format!("{line}\n"),
    };
    Some(stanza.lines().map(replaced).collect())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{shown}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{shown}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_machines_own() {
        let text = "# deb http://old bookworm main\ndeb-src http://a bookworm main\n\
            deb http://security bookworm-security main\ndeb [signed-by=/k.gpg arch=amd64] http://mirror bookworm contrib main\n";
        let expected = "deb [signed-by=/k.gpg arch=amd64] http://mirror bullseye main\n";
        assert_eq!(line_for_suite(text, "bookworm").as_deref(), Some(expected));
        assert_eq!(
            line_for_suite("deb http://m/ bookworm main", "bookworm").as_deref(),
            Some("deb http://m/ bullseye main\n")
        );
        assert_eq!(line_for_suite(text, "trixie"), None);
    }

    #[test]
    fn stanzas_keep_their_mirror_and_key() {
        let text = "Types: deb\nURIs: http://security\nSuites: bookworm-security\nComponents: main\n\n\
            Types: deb deb-src\n# why\nURIs: http://mirror\nSuites: bookworm bookworm-updates\nComponents: main contrib\n\
            Signed-By: /k.gpg\n";
        let expected =
            "Types: deb\n# why\nURIs: http://mirror\nSuites: bullseye\nComponents: main\nSigned-By: /k.gpg\n";
        assert_eq!(stanza_for_suite(text, "bookworm").as_deref(), Some(expected));
        assert_eq!(stanza_for_suite(text, "trixie"), None);
    }
}
