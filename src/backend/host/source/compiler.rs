//! The system's C++ compiler: which one it is, and how it is run.

use crate::backend::{os, Error, Result, Status};
use once_cell::sync::OnceCell;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Tried in this order where CXX does not say which.
const NAMES: [&str; 3] = ["c++", "g++", "clang++"];

/// A compiler that runs.
#[derive(Debug)]
pub(super) struct Compiler {
    /// The program and what CXX has behind it.
    words: Vec<OsString>,
    /// What it says about itself.
    pub(super) version: String,
}

/// What a run of the compiler gave.
pub(super) struct Run {
    pub(super) success: bool,
    pub(super) code: i32,
    pub(super) output: Vec<u8>,
    pub(super) messages: String,
}

/// The machine's compiler, found when it is first needed.
pub(super) fn compiler() -> Result<&'static Compiler> {
    static FOUND: OnceCell<Compiler> = OnceCell::new();
    FOUND.get_or_try_init(|| Compiler::find(std::env::var_os("CXX").as_deref()))
}

impl Compiler {
    /// The one that CXX names, or the first that runs.
    pub(super) fn find(cxx: Option<&OsStr>) -> Result<Compiler> {
        let named: Vec<OsString> = cxx
            .map(|cxx| cxx.as_bytes())
            .unwrap_or_default()
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(|word| OsString::from_vec(word.to_vec()))
            .collect();
        let candidates: Vec<Vec<OsString>> = match named.is_empty() {
            true => NAMES.iter().map(|name| vec![OsString::from(name)]).collect(),
            false => vec![named],
        };
        let mut tried = Vec::new();
        for words in candidates {
            let mut candidate = Compiler {
                words,
                version: String::new(),
            };
            match candidate.run(&["--version".into()], Path::new("/dev/null")) {
                Ok(run) if run.success => {
                    candidate.version = String::from_utf8_lossy(&run.output).into_owned();
                    return Ok(candidate);
                }
                Ok(run) => tried.push(format!("{} --version ends with {}", candidate.name(), run.code)),
                Err(why) if os::shortage_or(Status::Ok, &why) != Status::Ok => {
                    return Err(candidate.not_started(&why))
                }
                Err(why) => tried.push(format!("{}: {why}", candidate.name())),
            }
        }
        Err(Error::new(
            Status::NotSupported,
            format!(
                "host devices need a C++ compiler to build modules from source, and there is none ({}); install g++ or \
                 clang (on Debian and Ubuntu: apt-get install g++), or set CXX to the compiler",
                tried.join("; ")
            ),
        ))
    }

    /// The first line of what it says about itself.
    pub(super) fn title(&self) -> &str {
        self.version.lines().next().unwrap_or_default()
    }

    fn name(&self) -> String {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    /// The error where it does not even start.
    pub(super) fn not_started(&self, why: &std::io::Error) -> Error {
        let status = os::shortage_or(Status::Backend, why);
        Error::new(
            status,
            format!("the compiler {} does not run: {why}", self.name()),
        )
    }

    /// Runs it. `made` is the file that it shall make.
    pub(super) fn run(&self, arguments: &[OsString], made: &Path) -> std::io::Result<Run> {
        let child = Command::new(&self.words[0])
            .args(&self.words[1..])
            .args(arguments)
            // Messages that programs can read.
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        match child.wait_with_output() {
            Ok(output) => Ok(Run {
                success: output.status.success(),
                code: output.status.code().unwrap_or(-1),
                output: output.stdout,
                messages: String::from_utf8_lossy(&output.stderr).into_owned(),
            }),
            // The program ignores SIGCHLD: nobody learns how a child ended, but what it made is there.
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Run {
                success: made.exists(),
                code: -1,
                output: Vec::new(),
                messages: String::new(),
            }),
            Err(error) => Err(error),
        }
    }
}

/// A folder of our own for a while.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes one, which only this user can look into.
    pub(super) fn new() -> Result<Folder> {
        let pattern = std::env::temp_dir().join("taskgpu-XXXXXX");
        let refuse = |why: String| {
            Error::new(
                Status::Backend,
                format!("no folder {} can be made: {why}", pattern.display()),
            )
        };
        let bytes = CString::new(pattern.as_os_str().as_bytes()).map_err(|e| refuse(e.to_string()))?;
        let mut bytes = bytes.into_bytes_with_nul();
        // SAFETY: the text ends with a NUL, and is written in place.
        if unsafe { libc::mkdtemp(bytes.as_mut_ptr().cast()) }.is_null() {
            return Err(refuse(std::io::Error::last_os_error().to_string()));
        }
        bytes.pop();
        Ok(Folder(PathBuf::from(OsString::from_vec(bytes))))
    }

    /// A path in it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it.
    pub(super) fn write(&self, name: &str, contents: &str) -> Result<()> {
        let path = self.path(name);
        let write = || {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(&path, contents)
        };
        write().map_err(|e| {
            let status = os::shortage_or(Status::Backend, &e);
            Error::new(status, format!("{} cannot be written: {e}", path.display()))
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_is_named_with_what_to_install() {
        let e = Compiler::find(Some(OsStr::new("/no/such/compiler -flag"))).expect_err("there is none");
        assert_eq!(e.status(), Status::NotSupported);
        for word in [
            "/no/such/compiler -flag",
            "No such file",
            "apt-get install g++",
            "CXX",
        ] {
            assert!(e.to_string().contains(word), "{word:?} is not in {e}");
        }
        let e = Compiler::find(Some(OsStr::new("false"))).expect_err("no compiler");
        assert!(e.to_string().contains("false --version ends with 1"), "{e}");
    }

    #[test]
    fn cxx_may_have_options_and_an_empty_one_counts_as_unset() {
        let plain = Compiler::find(Some(OsStr::new("  "))).expect("the tests need a compiler");
        let found = Compiler::find(Some(OsStr::new("c++ -O0"))).expect("the tests need a compiler");
        assert_eq!(found.words, ["c++", "-O0"]);
        assert_eq!(found.version, plain.version);
    }

    #[test]
    fn a_folder_goes_with_what_is_in_it() {
        let folder = Folder::new().expect("a folder");
        folder.write("a/b.h", "text").expect("a file in it");
        let path = folder.path("a/b.h");
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "text");
        drop(folder);
        assert!(!path.exists());
    }
}
