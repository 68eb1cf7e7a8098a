//! Has the comparison of types and constants with the installed header written, where there is one.

use std::env;
use std::path::{Path, PathBuf};

/// Constants that the header does not have under that name: those of newer headers, and our own.
const NOT_IN_HEADER: [&str; 3] = ["ARCH_NAME", "ARCH_NAME_R0600", "ARCH_NAME_BYTES"];

fn main() {
    println!("cargo:rustc-check-cfg=cfg(has_header)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=HIP_PATH");
    let ffi = Path::new("../../src/backend/hip/ffi.rs");
    println!("cargo:rerun-if-changed={}", ffi.display());
    let roots = [
        env::var_os("HIP_PATH"),
        Some("/usr".into()),
        Some("/opt/rocm".into()),
    ];
    let include = roots
        .into_iter()
        .flatten()
        .map(|root| PathBuf::from(root).join("include"))
        .find(|folder| folder.join("hip/hip_runtime_api.h").is_file());
    let Some(include) = include else {
        println!("cargo:warning=no hip/hip_runtime_api.h: the HIP declarations are not compared with it");
        return;
    };
    println!("cargo:rustc-cfg=has_header");
    println!("cargo:rustc-env=HIP_INCLUDE={}", include.display());
    let mut test = ctest2::TestGenerator::new();
    test.include(&include)
        .define("__HIP_PLATFORM_AMD__", None)
        .flag("-Wno-deprecated-declarations")
        .header("stdint.h")
        .header("hip/hip_runtime_api.h")
        .header("hip/hiprtc.h")
        .type_name(|name, _, _| name.to_owned())
        .field_name(|_, field| field.trim_end_matches('_').to_owned())
        // The vendor's enums are unsigned, ours plain numbers.
        .skip_signededness(|_| true)
        // Opaque in our eyes: of these we know where one text lies, which tests/signatures.rs compares.
        .skip_type(|name| name.starts_with("hipDeviceProp_t"))
        .skip_const(|name| name.ends_with("_6") || NOT_IN_HEADER.contains(&name))
        .const_cname(|name| name.trim_end_matches("_5").to_owned())
        // A function pointer of ours is never NULL, and the tail of the pool's properties is one array here.
        .skip_field_type(|_, _| true);
    test.generate(ffi, "all.rs");
}
