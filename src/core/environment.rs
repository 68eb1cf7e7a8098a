//! The environment variables, read once. A value that makes no sense is an error, never ignored.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use crate::backend::{Error, Result, Status};

use super::sync::WaitPolicy;

/// Most host devices of one process.
const MAX_HOST_DEVICES: u32 = 64;
/// Most worker threads of host devices.
const MAX_HOST_THREADS: u32 = 1024;

/// Which backends bring devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backends {
    /// GPUs if there are any, else host devices.
    Auto,
    /// These, in this order.
    List(Vec<String>),
}

/// What the user set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    pub(crate) backends: Backends,
    /// Indices or UUID prefixes, as written.
    pub(crate) visible: Option<Vec<String>>,
    pub(crate) host_devices: u32,
    /// 0: one for each core.
    pub(crate) host_threads: u32,
    /// Bytes for each host device; 0: the machine's memory shared out evenly.
    pub(crate) host_memory: u64,
    pub(crate) wait: WaitPolicy,
    pub(crate) log: Level,
    /// Where compiled modules are kept. Absolute: the program may go elsewhere.
    pub(crate) cache_folder: Option<PathBuf>,
}

/// How much is written to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Off,
    /// Every failure that becomes a task's last error.
    Error,
    /// And how the search for backends went.
    Info,
}

impl Environment {
    /// Reads the variables through `get`; a variable that is unset or empty has its default.
    pub(crate) fn read(
        get: impl Fn(&str) -> Option<std::ffi::OsString>,
        known: &[&str],
    ) -> Result<Environment> {
        let text = |name: &'static str| -> Result<Option<String>> {
            match get(name).map(std::ffi::OsString::into_string) {
                None => Ok(None),
                Some(Ok(value)) if value.trim().is_empty() => Ok(None),
                Some(Ok(value)) => Ok(Some(value.trim().to_owned())),
                Some(Err(raw)) => Err(nonsense(name, &raw.to_string_lossy(), "text in UTF-8")),
            }
        };
        let backends = match text("TASKGPU_BACKENDS")? {
            None => Backends::Auto,
            Some(value) if value == "auto" => Backends::Auto,
            Some(value) => {
                let mut list: Vec<String> = Vec::new();
                for name in value.split(',').map(str::trim) {
                    if !known.contains(&name) || list.iter().any(|seen| seen == name) {
                        let wanted = format!("auto, or a list of some of {}, each once", known.join(", "));
                        return Err(nonsense("TASKGPU_BACKENDS", &value, &wanted));
                    }
                    list.push(name.to_owned());
                }
                Backends::List(list)
            }
        };
        let visible = text("TASKGPU_VISIBLE_DEVICES")?
            .map(|value| value.split(',').map(|entry| entry.trim().to_owned()).collect());
        Ok(Environment {
            backends,
            visible,
            host_devices: number(
                "TASKGPU_HOST_DEVICES",
                text("TASKGPU_HOST_DEVICES")?,
                1,
                MAX_HOST_DEVICES,
            )?
            .unwrap_or(1),
            host_threads: number(
                "TASKGPU_HOST_THREADS",
                text("TASKGPU_HOST_THREADS")?,
                1,
                MAX_HOST_THREADS,
            )?
            .unwrap_or(0),
            host_memory: number("TASKGPU_HOST_MEMORY", text("TASKGPU_HOST_MEMORY")?, 1, 1 << 48)?
                .unwrap_or(0),
            wait: choice(
                "TASKGPU_WAIT",
                text("TASKGPU_WAIT")?,
                &[
                    ("auto", WaitPolicy::Auto),
                    ("spin", WaitPolicy::Spin),
                    ("block", WaitPolicy::Block),
                ],
            )?,
            log: choice(
                "TASKGPU_LOG",
                text("TASKGPU_LOG")?,
                &[
                    ("off", Level::Off),
                    ("error", Level::Error),
                    ("info", Level::Info),
                ],
            )?,
            cache_folder: folder("TASKGPU_CACHE_DIR", get("TASKGPU_CACHE_DIR"))?,
        })
    }
}

#[cold]
fn nonsense(name: &str, value: &str, wanted: &str) -> Error {
    Error::new(
        Status::Environment,
        format!("{name} is \"{value}\"; it must be {wanted}"),
    )
}

/// A folder that is there or can be made later.
fn folder(name: &'static str, value: Option<std::ffi::OsString>) -> Result<Option<PathBuf>> {
    let Some(value) = value.filter(|value| !value.to_string_lossy().trim().is_empty()) else {
        return Ok(None);
    };
    let wrong = || {
        nonsense(
            name,
            &value.to_string_lossy(),
            "a folder, or a path where one can be made",
        )
    };
    let path = std::path::absolute(&value).map_err(|_| wrong())?;
    // Of what is there, the last must be a folder.
    let there = path.ancestors().find(|part| part.symlink_metadata().is_ok());
    match there.is_some_and(std::path::Path::is_dir) {
        true => Ok(Some(path)),
        false => Err(wrong()),
    }
}

fn number<N>(name: &'static str, value: Option<String>, least: N, most: N) -> Result<Option<N>>
where
    N: FromStr + PartialOrd + Display,
{
    let Some(value) = value else { return Ok(None) };
    match value.parse::<N>() {
        Ok(number) if number >= least && number <= most => Ok(Some(number)),
        _ => Err(nonsense(
            name,
            &value,
            &format!("a whole number from {least} to {most}"),
        )),
    }
}

/// The value's meaning; the first choice where there is none.
fn choice<C: Copy>(name: &'static str, value: Option<String>, choices: &[(&str, C)]) -> Result<C> {
    let Some(value) = value else {
        return Ok(choices[0].1);
    };
    choices
        .iter()
        .find(|(word, _)| *word == value)
        .map(|(_, meaning)| *meaning)
        .ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            nonsense(name, &value, &format!("one of {}", words.join(", ")))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Environment> {
        let get = |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into());
        Environment::read(get, &["hip", "cuda", "host"])
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        let environment = read(&[]).unwrap();
        assert_eq!(environment.backends, Backends::Auto);
        assert_eq!(
            (
                environment.host_devices,
                environment.host_threads,
                environment.host_memory
            ),
            (1, 0, 0)
        );
        assert_eq!(read(&[("TASKGPU_HOST_DEVICES", " ")]).unwrap(), environment);
    }

    #[test]
    fn nonsense_names_the_variable_the_value_and_what_is_wanted() {
        for (name, value, wanted) in [
            ("TASKGPU_BACKENDS", "vulkan", "hip, cuda, host"),
            ("TASKGPU_BACKENDS", "host,host", "each once"),
            ("TASKGPU_BACKENDS", "host,", "list"),
            ("TASKGPU_HOST_DEVICES", "0", "from 1 to 64"),
            ("TASKGPU_HOST_DEVICES", "-3", "from 1 to 64"),
            ("TASKGPU_HOST_DEVICES", "65", "from 1 to 64"),
            ("TASKGPU_HOST_DEVICES", "99999999999999999999", "from 1 to 64"),
            ("TASKGPU_HOST_THREADS", "many", "from 1 to 1024"),
            ("TASKGPU_HOST_MEMORY", "1.5", "whole number"),
            ("TASKGPU_WAIT", "sleep", "auto, spin, block"),
            ("TASKGPU_LOG", "loud", "off, error, info"),
            ("TASKGPU_CACHE_DIR", "/dev/null", "a folder"),
            ("TASKGPU_CACHE_DIR", "/dev/null/cache", "a folder"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert_eq!(error.status(), Status::Environment);
            let text = error.to_string();
            for part in [name, value, wanted] {
                assert!(text.contains(part), "{text:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn the_cache_folder_need_not_be_there_yet() {
        assert_eq!(read(&[]).unwrap().cache_folder, None);
        let environment = read(&[("TASKGPU_CACHE_DIR", "no/such/folder")]).unwrap();
        let folder = environment.cache_folder.expect("it is set");
        assert!(
            folder.is_absolute() && folder.ends_with("no/such/folder"),
            "{folder:?}"
        );
    }

    #[test]
    fn a_list_keeps_its_order() {
        let environment = read(&[("TASKGPU_BACKENDS", "hip, host"), ("TASKGPU_WAIT", "block")]).unwrap();
        assert_eq!(
            environment.backends,
            Backends::List(vec!["hip".into(), "host".into()])
        );
        assert_eq!(environment.wait, WaitPolicy::Block);
    }
}
