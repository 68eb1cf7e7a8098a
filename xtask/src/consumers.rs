//! The installed package, used as others would: `tests/consumers`, the examples and the C tests under CTest, all of them
//! outside this tree and with spaces in every path.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::{self, entries, root};
use crate::package::{cmake, compile, configure, define, install};
use crate::test::{heading, quietly, Outcome, Tally, PATIENCE, PATIENCE_OF_CARGO};
use crate::{package, symbols, tools};

/// What the programs are built with.
const TOOLS: &[tools::Tool] = &[
    package::CMAKE,
    tools::Tool {
        program: "ninja",
        package: "ninja-build",
    },
    tools::Tool {
        program: "make",
        package: "make",
    },
    tools::Tool {
        program: "pkg-config",
        package: "pkg-config",
    },
];
const MAKE: &str = "Unix Makefiles";
const NINJA: &str = "Ninja";
/// Where distributions put libraries that are there for several processors.
const MULTIARCH: &str = "lib/x86_64-linux-gnu";
/// They have run before, by themselves, and take long.
const NOT_AGAIN: &str = "^threads-";
/// What a sources' copy leaves out.
const NO_SOURCES: &[&str] = &["target", ".git"];

pub fn run(tally: &mut Tally) {
    heading("the installed package");
    tally.add("tools", tools::require(TOOLS).map(|()| 1));
    tally.check();
    let place = Place::new();
    tally.add(
        "a place outside this tree",
        place.as_ref().map(|_| 1).map_err(Clone::clone),
    );
    tally.check();
    let place = place.expect("checked");
    tally.add(
        "the tree that is installed, with DESTDIR and without",
        place.layout(),
    );
    tally.check();
    for (name, outcome) in [
        ("CMake, Ninja", place.with_cmake(NINJA)),
        ("CMake, Makefiles", place.with_cmake(MAKE)),
        ("pkg-config", place.with_pkg_config()),
        ("examples", place.examples()),
        ("C tests under CTest", place.c_tests()),
        (
            "sources inside another project, vendored crates, no network",
            place.subproject(),
        ),
    ] {
        tally.add(name, outcome);
    }
    let _ = std::fs::remove_dir_all(&place.folder);
    tally.check();
}

struct Place {
    folder: PathBuf,
    /// The package, moved after the installation.
    prefix: PathBuf,
    /// The same with another layout.
    multiarch: PathBuf,
    /// tests/consumers, copied.
    consumers: PathBuf,
    /// Where the library's own CMake project is built.
    build: PathBuf,
}

impl Place {
    fn new() -> Result<Place, String> {
        let folder = std::env::temp_dir().join(format!("taskgpu consumers {}", std::process::id()));
        let consumers = folder.join("their projects");
        copy(&root().join("tests/consumers"), &consumers)?;
        Ok(Place {
            prefix: folder.join("moved prefix"),
            multiarch: folder.join("multi arch"),
            build: library::target().join("cmake"),
            consumers,
            folder,
        })
    }

    /// Installs into a staging folder and moves the tree from there, twice; `cargo xtask package` must do the same.
    fn layout(&self) -> Outcome {
        quietly(configure(&self.build).arg("-DTASKGPU_BUILD_TESTS=ON"), PATIENCE)?;
        quietly(&mut compile(&self.build), PATIENCE_OF_CARGO)?;
        let stage = self.folder.join("stage");
        quietly(
            install(&self.build, Path::new("/opt/task gpu")).env("DESTDIR", &stage),
            PATIENCE,
        )?;
        rename(&stage.join("opt/task gpu"), &self.prefix)?;
        same(&files(&self.prefix)?, &expected("lib"))?;

        let packaged = self.folder.join("packaged");
        quietly(&mut install(&self.build, &packaged), PATIENCE)?;
        same(&files(&packaged)?, &expected("lib"))?;

        let other = self.folder.join("other build");
        let mut second = configure(&other);
        second.args([
            &format!("-DCMAKE_INSTALL_LIBDIR={MULTIARCH}"),
            "-DCMAKE_INSTALL_PREFIX=/usr",
        ]);
        quietly(&mut second, PATIENCE)?;
        quietly(&mut compile(&other), PATIENCE_OF_CARGO)?;
        let mut second = cmake();
        second.arg("--install").arg(&other).env("DESTDIR", &stage);
        quietly(&mut second, PATIENCE)?;
        rename(&stage.join("usr"), &self.multiarch)?;
        same(&files(&self.multiarch)?, &expected(MULTIARCH))?;
        Ok(3)
    }

    fn with_cmake(&self, generator: &str) -> Outcome {
        let build = self.consumers.join(generator);
        let source = self.consumers.join("cmake");
        let tests = built_and_run(
            project(&source, &build, generator).arg(self.found_in(&self.prefix)),
            &build,
        )?;
        exports(&build.join("libplugin.so"))?;
        Ok(tests)
    }

    fn with_pkg_config(&self) -> Outcome {
        let folder = self.consumers.join("pkg-config");
        let make = |goal: &str| {
            let mut make = Command::new("make");
            make.arg("-C")
                .arg(&folder)
                .arg(goal)
                .env_remove("LD_LIBRARY_PATH");
            make.env(
                "PKG_CONFIG_PATH",
                self.multiarch.join(MULTIARCH).join("pkgconfig"),
            );
            quietly(&mut make, PATIENCE)
        };
        make("check")?;
        exports(&folder.join("plugin.so"))?;
        let libraries = self.multiarch.join(MULTIARCH);
        for name in shared_names() {
            rename(&libraries.join(&name), &self.folder.join(&name))?;
        }
        let archive = make("check-archive");
        for name in shared_names() {
            rename(&self.folder.join(&name), &libraries.join(&name))?;
        }
        archive.map(|_| 3)
    }

    fn examples(&self) -> Outcome {
        tools::require(tools::MPI)?;
        let folder = self.folder.join("their examples");
        copy(&root().join("examples"), &folder)?;
        let mut tests = 0;
        for language in ["c", "cpp", "mpi"] {
            let build = folder.join("build").join(language);
            let mut configure = project(&folder.join(language), &build, MAKE);
            tests += built_and_run(configure.arg(self.found_in(&self.multiarch)), &build)?;
        }
        Ok(tests)
    }

    /// In the library's own build; and one of them alone, with the installed package.
    fn c_tests(&self) -> Outcome {
        let tests = run_tests(&self.build, &["--exclude-regex", NOT_AGAIN])?;
        let build = self.folder.join("tests alone");
        let mut alone = project(&root().join("c-tests"), &build, NINJA);
        quietly(alone.arg(self.found_in(&self.prefix)), PATIENCE)?;
        quietly(
            compile(&build).args(["--target", "version-shared", "version-static"]),
            PATIENCE,
        )?;
        Ok(tests + run_tests(&build, &["--tests-regex", "^version-"])?)
    }

    /// The crates are copied beside the sources, and cargo gets a home without any. Not optimized: another such build
    /// would take minutes, and says nothing new.
    fn subproject(&self) -> Outcome {
        let source = self.folder.join("sources of taskgpu");
        std::fs::create_dir_all(&source).map_err(|error| format!("{}: {error}", source.display()))?;
        for entry in entries(&root())? {
            let name = entry.file_name().expect("it has a name").to_owned();
            if !NO_SOURCES.iter().any(|left_out| *left_out == name) {
                copy(&entry, &source.join(name))?;
            }
        }
        let crates = self.folder.join("vendored crates");
        let cargo = library::cargo();
        let mut vendor = Command::new(&cargo);
        vendor
            .current_dir(&source)
            .args(["vendor", "--quiet", "--locked"])
            .arg(&crates);
        quietly(&mut vendor, PATIENCE_OF_CARGO)?;
        let settings = self.folder.join("vendored.toml");
        let text = format!(
            "[source.crates-io]\nreplace-with = \"vendored\"\n[source.vendored]\ndirectory = {crates:?}\n\
             [profile.release]\nopt-level = 0\nlto = \"off\"\ncodegen-units = 16\ndebug = false\n"
        );
        std::fs::write(&settings, text).map_err(|error| format!("{}: {error}", settings.display()))?;
        let home = self.folder.join("cargo home");

        let mut tests = 0;
        let place = self.consumers.join("subproject");
        for (generator, way) in [(NINJA, "ON"), (MAKE, "OFF")] {
            let build = self.consumers.join(format!("subproject {way}"));
            let mut configure = project(&place, &build, generator);
            configure
                .arg(define("TASKGPU_SOURCE", &source))
                .arg(define("TASKGPU_CARGO", Path::new(&cargo)))
                .arg(define(
                    "TASKGPU_CARGO_TARGET_DIR",
                    &self.folder.join("cargo target"),
                ))
                .arg(format!("-DUSE_FETCHCONTENT={way}"))
                .arg(format!(
                    "-DTASKGPU_CARGO_ARGS=--locked;--offline;--config;{}",
                    settings.display()
                ))
                .env("CARGO_HOME", &home);
            quietly(&mut configure, PATIENCE)?;
            quietly(compile(&build).env("CARGO_HOME", &home), PATIENCE_OF_CARGO)?;
            tests += run_tests(&build, &[])?;
        }
        Ok(tests)
    }

    fn found_in(&self, prefix: &Path) -> std::ffi::OsString {
        define("CMAKE_PREFIX_PATH", prefix)
    }
}

/// CMake for a project.
fn project(source: &Path, build: &Path, generator: &str) -> Command {
    let mut cmake = cmake();
    cmake
        .args(["-G", generator, "-S"])
        .arg(source)
        .arg("-B")
        .arg(build);
    cmake
}

fn built_and_run(configure: &mut Command, build: &Path) -> Outcome {
    quietly(configure, PATIENCE)?;
    quietly(&mut compile(build), PATIENCE)?;
    run_tests(build, &[])
}

/// Runs CTest and answers how many tests have passed.
fn run_tests(build: &Path, which: &[&str]) -> Outcome {
    let mut ctest = Command::new("ctest");
    ctest.arg("--test-dir").arg(build).args(which);
    ctest.args(["--output-on-failure", "--no-tests=error", "--parallel", "2"]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("TASKGPU_") || text == "LD_LIBRARY_PATH" {
            ctest.env_remove(&name);
        }
    }
    if tools::is_root() {
        // Open MPI's mpirun asks for both.
        ctest.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
        ctest.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    }
    count(&quietly(&mut ctest, PATIENCE)?)
}

/// Some versions say in between that none has failed.
fn count(text: &str) -> Outcome {
    let line = |line: &str| {
        line.strip_prefix("100% tests passed")?
            .rsplit_once(" out of ")?
            .1
            .parse()
            .ok()
    };
    text.lines()
        .find_map(line)
        .ok_or_else(|| format!("CTest does not say that all have passed:\n{text}"))
}

/// A plugin that has the archive inside exports what it says, and nothing of Rust's or ours.
fn exports(plugin: &Path) -> Result<(), String> {
    let exported = symbols::exported(plugin)?;
    let expected = ["plugin_choose", "plugin_device", "plugin_query"].map(str::to_owned);
    // What every shared library of some linkers has.
    let usual = |name: &String| !name.starts_with('_');
    let exported: BTreeSet<String> = exported.into_iter().filter(usual).collect();
    same(&exported, &expected.into()).map_err(|text| format!("{}: {text}", plugin.display()))
}

fn shared_names() -> [String; 3] {
    [
        "libtaskgpu.so".to_owned(),
        library::soname(),
        format!("libtaskgpu.so.{}", library::version()),
    ]
}

/// Everything that is installed, with the folder of the libraries.
fn expected(libraries: &str) -> BTreeSet<String> {
    let [plain, soname, file] = shared_names();
    let mut files: BTreeSet<String> = [
        "include/taskgpu.h",
        "include/taskgpu.hpp",
        "share/doc/taskgpu/LICENSE-APACHE",
        "share/doc/taskgpu/LICENSE-MIT",
        "share/doc/taskgpu/LICENSES-THIRD-PARTY",
        "share/doc/taskgpu/LICENSES-RUST-LIBRARY.html",
    ]
    .map(str::to_owned)
    .into();
    files.extend(
        [
            &format!("{plain} -> {soname}"),
            &format!("{soname} -> {file}"),
            &file,
            "libtaskgpu.a",
            "cmake/taskgpu/taskgpu-config.cmake",
            "cmake/taskgpu/taskgpu-config-version.cmake",
            "cmake/taskgpu/taskgpu-targets.cmake",
            "pkgconfig/taskgpu.pc",
            "pkgconfig/taskgpu-static.pc",
        ]
        .map(|name| format!("{libraries}/{name}")),
    );
    files
}

fn same(are: &BTreeSet<String>, must: &BTreeSet<String>) -> Result<(), String> {
    let list = |names: Vec<&String>| names.iter().map(|name| format!("\n  {name}")).collect::<String>();
    match are == must {
        true => Ok(()),
        false => Err(format!(
            "too many:{}\nmissing:{}",
            list(are.difference(must).collect()),
            list(must.difference(are).collect())
        )),
    }
}

/// The files of a tree, links with what they say.
fn files(folder: &Path) -> Result<BTreeSet<String>, String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in entries(&next)? {
            let name = path
                .strip_prefix(folder)
                .expect("it is in there")
                .display()
                .to_string();
            match (std::fs::read_link(&path), path.is_dir()) {
                (Ok(to), _) => _ = found.insert(format!("{name} -> {}", to.display())),
                (Err(_), true) => folders.push(path),
                (Err(_), false) => _ = found.insert(name),
            }
        }
    }
    Ok(found)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    }
    quietly(Command::new("cp").arg("-R").arg(from).arg(to), PATIENCE).map(|_| ())
}

fn rename(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::rename(from, to).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_have_passed_are_counted() {
        assert_eq!(
            count("1/2 Test\n\n100% tests passed, 0 tests failed out of 12\n\nTotal"),
            Ok(12)
        );
        assert_eq!(count("100% tests passed out of 2"), Ok(2));
        assert!(count("50% tests passed, 1 tests failed out of 2").is_err());
        assert!(count("").is_err());
    }

    #[test]
    fn what_is_missing_and_what_is_too_much_is_named() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert!(same(&set(&["a"]), &set(&["a"])).is_ok());
        let text = same(&set(&["a", "b"]), &set(&["b", "c"])).unwrap_err();
        assert_eq!(text, "too many:\n  a\nmissing:\n  c");
    }
}
