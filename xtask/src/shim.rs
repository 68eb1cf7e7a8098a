//! The HIP runtime that the tests bring along (tests/hip-shim): how it is built, where it lies, and which tests of the core
//! say nothing about it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::{self, root};

/// The names that programs know the runtime's library by.
pub const NAMES: [&str; 2] = ["libamdhip64.so.6", "libamdhip64.so"];

/// Tests of the core that are about host devices alone, by the reason. What HIP does in their place is in c-tests/hip_*.c.
pub const HOST_ONLY: &[(&str, &[&str])] = &[
    (
        "there are no host devices",
        &[
            "host_devices_are_available_and_used",
            "what_was_not_asked_for_says_so",
            "an_empty_variable_is_as_good_as_none",
            "host_devices_sets_how_many_there_are",
        ],
    ),
    (
        "a count starts the vendor's runtime, which no child of a fork can use",
        &[
            "F10_a_process_that_only_counted_may_fork",
            "a_process_that_only_asked_may_fork",
            "F10_a_grandchild_after_a_count_may_work_too",
        ],
    ),
    (
        "no call of a GPU's runtime starts threads for it",
        &["no_thread_to_be_had_is_answered_and_made_up_for_later"],
    ),
    (
        "no kernel of a GPU calls the library, and only one made of a host function has data",
        &[
            "F29_inside_a_kernel_calls_are_refused_and_cleaning_up_is_fine",
            "a_kernel_gets_its_data_pointer",
        ],
    ),
    (
        "a GPU's kernels raise no signals",
        &["a_handler_of_the_program_sees_a_kernels_fault"],
    ),
];

/// Builds the runtime and answers the folder that `ROCM_PATH` is to name.
///
/// In a target folder of its own: it is built of the same crate as the library under test, in another way. It lies where
/// nobody finds it by chance, under the vendor's names.
pub fn build() -> Result<PathBuf, String> {
    let target = root().join("target/hip-shim");
    let built = Command::new(library::cargo())
        .current_dir(root())
        .args([
            "build",
            "--quiet",
            "--release",
            "--package",
            "hip-shim",
            "--target-dir",
        ])
        .arg(&target)
        // Linked object by object, so that only the vendor's names are exported.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("TASKGPU_SONAME", NAMES[0])
        .status()
        .map_err(|error| format!("cargo: {error}"))?;
    if !built.success() {
        return Err("tests/hip-shim did not build".to_owned());
    }
    let rocm = target.join("rocm");
    let folder = rocm.join("lib");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for name in NAMES {
        replace(&target.join("release/libhip_shim.so"), &folder.join(name))?;
    }
    Ok(rocm)
}

/// Puts a link to `file` where another one may be in use.
fn replace(file: &Path, link: &Path) -> Result<(), String> {
    let fresh = link.with_extension("new");
    let _ = std::fs::remove_file(&fresh);
    std::fs::hard_link(file, &fresh)
        .and_then(|()| std::fs::rename(&fresh, link))
        .map_err(|error| format!("{}: {error}", link.display()))
}

/// The value of `TASKGPU_TEST_SKIP` that leaves out the tests of host devices.
pub fn skip() -> String {
    let names: Vec<&str> = HOST_ONLY.iter().flat_map(|(_, tests)| *tests).copied().collect();
    format!(" {} ", names.join(" "))
}
