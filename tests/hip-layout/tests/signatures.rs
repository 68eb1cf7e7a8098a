//! The functions' signatures against the vendor's installed header: a C compiler has to accept a pointer of our type for each
//! of them.
#![cfg(has_header)]

use std::path::PathBuf;
use std::process::Command;

use hip_layout::{ffi, Signature, HIP, HIPRTC};

/// In newer headers than ROCm 5.2's; `other_bindings.rs` compares these.
const NEWER: [&str; 2] = ["hipGetDevicePropertiesR0600", "hipStreamGetDevice"];

/// One of our types as C spells it.
fn c_type(rust: &str) -> String {
    let rust = rust.replace(' ', "");
    if let Some(target) = rust.strip_prefix("*mut") {
        return format!("{} *", c_type(target));
    }
    if let Some(target) = rust.strip_prefix("*const") {
        return format!("{} const *", c_type(target));
    }
    match rust.as_str() {
        "c_void" => "void",
        "c_char" => "char",
        "c_uchar" => "unsigned char",
        "c_ushort" => "unsigned short",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "u32" => "uint32_t",
        "usize" => "size_t",
        "f32" => "float",
        vendor => vendor,
    }
    .to_owned()
}

fn source(functions: &[Signature]) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdint.h>\n#include <hip/hip_runtime_api.h>\n#include <hip/hiprtc.h>\n",
    );
    for (name, arguments, answer) in functions {
        let arguments: Vec<String> = arguments.iter().map(|a| c_type(a)).collect();
        let arguments = if arguments.is_empty() {
            "void".to_owned()
        } else {
            arguments.join(", ")
        };
        text.push_str(&format!(
            "{} (*check_{name})({arguments}) = {name};\n",
            c_type(answer)
        ));
    }
    text.push_str(&format!(
        "_Static_assert(offsetof(hipDeviceProp_t, gcnArchName) == {}, \"where the target's name lies\");\n\
         _Static_assert(sizeof(((hipDeviceProp_t *)0)->gcnArchName) == {}, \"how long it is\");\n",
        ffi::ARCH_NAME,
        ffi::ARCH_NAME_BYTES
    ));
    text
}

/// What the compiler says, if it does not accept the text.
fn compile(text: &str, name: &str) -> Result<(), String> {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, text).expect("a file of the test's");
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-fsyntax-only",
            "-Werror",
            "-Wno-deprecated-declarations",
        ])
        .args(["-D__HIP_PLATFORM_AMD__", "-I", env!("HIP_INCLUDE")])
        .arg(&file)
        .output()
        .expect("cc");
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn our_signatures_are_the_headers() {
    let ours: Vec<Signature> = HIP
        .iter()
        .chain(HIPRTC)
        .filter(|(name, _, _)| !NEWER.contains(name))
        .copied()
        .collect();
    assert!(ours.len() > 60);
    if let Err(text) = compile(&source(&ours), "signatures.c") {
        panic!("{text}");
    }
}

#[test]
fn a_wrong_signature_would_be_seen() {
    for wrong in [
        ("hipSetDevice", &["c_uint"][..], "hipError_t"),
        ("hipSetDevice", &["c_int"], "c_int"),
        ("hipMalloc", &["*mut c_void", "usize"], "hipError_t"),
        ("hipFree", &[], "hipError_t"),
    ] {
        let text = compile(&source(&[wrong]), "wrong.c").expect_err("a wrong signature");
        assert!(text.contains(wrong.0), "{text}");
    }
}
