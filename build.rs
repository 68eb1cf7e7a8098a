//! Sets what cargo does not set for a `cdylib`: its SONAME, and that it stays mapped after `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets the version");
        let minor = std::env::var("CARGO_PKG_VERSION_MINOR").expect("cargo sets the version");
        // Cargo hands these arguments on to a library that has this crate inside, which has a name of its own.
        println!("cargo:rerun-if-env-changed=TASKGPU_SONAME");
        let name = std::env::var("TASKGPU_SONAME").unwrap_or(format!("libtaskgpu.so.{major}.{minor}"));
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
        // Threads of ours and destructors of theirs may still run: unmapping would crash them.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
