//! Sets what cargo does not set for a `cdylib`: its SONAME, and that it stays mapped after `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets the version");
        let minor = std::env::var("CARGO_PKG_VERSION_MINOR").expect("cargo sets the version");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtaskgpu.so.{major}.{minor}");
        // Threads of ours and destructors of theirs may still run: unmapping would crash them.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
