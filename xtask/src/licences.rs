//! `cargo xtask licences [--check]`: the notices of the crates that are linked into the library, gathered from the crates
//! themselves into LICENSES-THIRD-PARTY, which is installed with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::library::{self, root};

const FILE: &str = "LICENSES-THIRD-PARTY";
const USAGE: &str = "usage: cargo xtask licences [--check]";
/// How the names of files with notices begin.
const NOTICES: &[&str] = &[
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
];
const RULE: &str = "================================================================================";
/// The platform of README.md. What other platforms alone need is not linked.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// What the text begins with.
const HEAD: &str =
    "The libraries of taskgpu contain the Rust crates below, each with its licence. Where a crate offers a
choice, any of its licences may be chosen. Rust's own library is contained as well: it is offered
under MIT or Apache-2.0, its copyright is of The Rust Project contributors, and the notices of its
parts are installed beside this file as LICENSES-RUST-LIBRARY.html, as they came with the compiler.

Written by `cargo xtask licences`.
";

pub fn run(args: &[&str]) -> Result<(), String> {
    let path = root().join(FILE);
    let text = notices(&linked(&metadata()?)?)?;
    match args {
        [] => std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display())),
        ["--check"] if std::fs::read_to_string(&path).unwrap_or_default() == text => Ok(()),
        ["--check"] => Err(format!(
            "{FILE} is not what the crates say: `cargo xtask licences` writes it"
        )),
        _ => Err(USAGE.to_owned()),
    }
}

/// A crate that is linked into the library.
#[derive(Debug)]
struct Crate {
    name: String,
    licence: String,
    repository: String,
    folder: PathBuf,
}

fn metadata() -> Result<Value, String> {
    let output = Command::new(library::cargo())
        .current_dir(root())
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .args(["--filter-platform", PLATFORM])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

/// Follows the dependencies that are neither for building nor for tests, and checks that none wants a newer Rust than
/// we promise.
fn linked(metadata: &Value) -> Result<Vec<Crate>, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let by_id = |values: &Value| -> BTreeMap<String, Value> {
        let entries = list(values).into_iter();
        entries.map(|value| (text(&value["id"]), value)).collect()
    };
    let packages = by_id(&metadata["packages"]);
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let ours = packages
        .values()
        .find(|package| package["name"] == "taskgpu")
        .ok_or("cargo metadata does not know taskgpu")?;
    let promised = rust_version(ours);

    let mut seen = BTreeSet::new();
    let mut next = vec![text(&ours["id"])];
    let mut crates = Vec::new();
    while let Some(id) = next.pop() {
        let package = packages
            .get(&id)
            .ok_or_else(|| format!("cargo metadata lacks {id}"))?;
        let runs_in_the_compiler = list(&package["targets"])
            .iter()
            .any(|target| list(&target["kind"]).contains(&"proc-macro".into()));
        if runs_in_the_compiler || !seen.insert(id.clone()) {
            continue;
        }
        if rust_version(package) > promised {
            return Err(format!(
                "{} needs Rust {}, newer than the {} of Cargo.toml",
                text(&package["name"]),
                text(&package["rust_version"]),
                text(&ours["rust_version"])
            ));
        }
        if package["name"] != "taskgpu" {
            let manifest = text(&package["manifest_path"]);
            crates.push(Crate {
                name: format!("{} {}", text(&package["name"]), text(&package["version"])),
                licence: text(&package["license"]),
                repository: text(&package["repository"]),
                folder: Path::new(&manifest)
                    .parent()
                    .map(Path::to_owned)
                    .unwrap_or_default(),
            });
        }
        for dependency in list(&nodes[&id]["deps"]) {
            let is_linked = |kind: &Value| kind["kind"].is_null();
            if list(&dependency["dep_kinds"]).iter().any(is_linked) {
                next.push(text(&dependency["pkg"]));
            }
        }
    }
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(crates)
}

/// Its numbers, to compare; zeros if the package does not say.
fn rust_version(package: &Value) -> [u32; 3] {
    let text = package["rust_version"].as_str().unwrap_or_default();
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// Each text once, after the crates that have it.
fn notices(crates: &[Crate]) -> Result<String, String> {
    let mut texts: Vec<(String, Vec<&str>)> = Vec::new();
    let mut out = HEAD.to_owned();
    out.push('\n');
    for it in crates {
        let mut found = files(&it.folder)?;
        if found.is_empty() {
            // It was published without them: those of its repository are in the crates that were published beside it.
            let beside = crates
                .iter()
                .filter(|other| !it.repository.is_empty() && other.repository == it.repository);
            for other in beside {
                found.extend(files(&other.folder)?);
            }
        }
        if found.is_empty() {
            return Err(format!(
                "{} has no file with its licence ({}), nor has another crate of its repository",
                it.name,
                it.folder.display()
            ));
        }
        writeln!(out, "  {}: {}", it.name, it.licence).expect("a string");
        for path in found {
            let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            let text = tidy(&String::from_utf8_lossy(&bytes));
            match texts.iter_mut().find(|(known, _)| *known == text) {
                Some((_, names)) => names.push(&it.name),
                None => texts.push((text, vec![&it.name])),
            }
        }
    }
    for (text, names) in texts {
        write!(out, "\n{RULE}\n{}\n{RULE}\n\n{text}", names.join(", ")).expect("a string");
    }
    Ok(out)
}

/// Blanks at the ends and the kind of line ends make no other text.
fn tidy(text: &str) -> String {
    let lines: String = text
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    format!("{}\n", lines.trim_matches('\n'))
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = library::entries(folder)?;
    files.retain(|path| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .to_uppercase();
        path.is_file() && NOTICES.iter().any(|start| name.starts_with(start))
    });
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, rust: &str, kind: &str) -> Value {
        json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "rust_version": rust,
               "manifest_path": format!("/{name}/Cargo.toml"), "targets": [{"kind": [kind]}]})
    }

    fn graph(newest: &str) -> Value {
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [package("taskgpu", "1.85", "lib"), package("a", newest, "lib"), package("b", "1.9", "lib"),
                         package("test", "1.99", "lib"), package("macro", "1.99", "proc-macro")],
            "resolve": {"nodes": [
                {"id": "taskgpu", "deps": [needs("a", Value::Null), needs("test", json!("dev")),
                                           needs("macro", Value::Null)]},
                {"id": "a", "deps": [needs("b", Value::Null)]},
                {"id": "b", "deps": []}
            ]}
        })
    }

    #[test]
    fn what_is_linked_is_found_through_others() {
        let crates = linked(&graph("1.60")).unwrap();
        let names: Vec<&str> = crates.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["a 1.0.0", "b 1.0.0"]);
    }

    #[test]
    fn a_crate_that_needs_a_newer_rust_is_named() {
        assert!(linked(&graph("1.85.0")).is_ok());
        assert!(linked(&graph("1.86")).unwrap_err().contains("a needs Rust 1.86"));
    }

    #[test]
    fn texts_that_differ_in_blanks_only_are_one() {
        assert_eq!(tidy("\r\n a \r\nb\n\n"), tidy("\n a\nb"));
    }
}
