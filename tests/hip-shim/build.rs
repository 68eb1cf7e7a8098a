//! The vendor's SONAME, and no exported name but the vendor's: the library under test has its own copies of the rest.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libamdhip64.so.6");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
