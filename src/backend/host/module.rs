//! Modules of host devices: shared objects with a table of kernels.

use super::source;
use super::threads::RUNTIME;
use crate::backend::cache::{Key, Memory};
use crate::backend::image::{self, Elf, Looks};
use crate::backend::{
    os, Addr, CompileOptions, Error, HostKernel, HostKernelFn, RawFunction, RawModule, Result, Status,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use once_cell::sync::Lazy;
use std::collections::HashMap;
use std::ffi::{c_char, c_void, CStr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

/// What ELF calls the processors of this machine.
const MACHINE: u16 = match () {
    () if cfg!(target_arch = "x86_64") => 62,
    () if cfg!(target_arch = "aarch64") => 183,
    () if cfg!(target_arch = "riscv64") => 243,
    () => 0,
};
const SHARED_OBJECT: u64 = 3;
/// The table of a module.
const SYMBOL: &str = "taskgpu_host_image";
const VERSION: u32 = 1;

/// A kernel of an image. `tgpu_host_entry`.
#[repr(C)]
struct Entry {
    name: *const c_char,
    function: Option<HostKernelFn>,
    arg_sizes: *const usize,
    arg_count: usize,
    max_threads: u32,
    /// 0 in modules from before there was this field, which needed none.
    static_shared_bytes: u32,
}

/// A variable of an image. `tgpu_host_variable`.
#[repr(C)]
struct Variable {
    name: *const c_char,
    address: *mut c_void,
    bytes: u64,
}

/// The table of an image. `tgpu_host_image`.
#[repr(C)]
struct Image {
    version: u32,
    reserved: u32,
    entries: *const Entry,
    entry_count: usize,
    variables: *const Variable,
    variable_count: usize,
}

/// A kernel of a loaded module.
pub(super) struct Function {
    pub(super) kernel: HostKernel,
    pub(super) max_threads: u32,
    pub(super) static_shared_bytes: u64,
}

/// A loaded shared object.
struct Object {
    functions: HashMap<String, Function>,
    variables: HashMap<String, (u64, u64)>,
    /// Last: what is above points into it.
    _library: Library,
}

/// A module as a device knows it.
struct Module {
    object: Arc<Object>,
}

fn module_of<'a>(raw: RawModule) -> &'a Module {
    // SAFETY: made by `publish`, and by the rules of the trait not destroyed while somebody uses it.
    unsafe { &*(raw.0 as *const Module) }
}

/// A kernel's code.
#[inline]
pub(super) fn function_of<'a>(raw: RawFunction) -> &'a Function {
    // SAFETY: made by `function`; it lives as long as its module.
    unsafe { &*(raw.0 as *const Function) }
}

fn publish(object: Arc<Object>) -> RawModule {
    RawModule(Box::into_raw(Box::new(Module { object })) as u64)
}

/// Loads a shared object that lies in memory.
pub(super) fn load(image: &[u8]) -> Result<RawModule> {
    Object::load(image).map(|object| publish(Arc::new(object)))
}

/// Source as it was compiled, for all host devices.
struct Built {
    made: source::Made,
    object: Arc<Object>,
    /// No module has been made of the object yet.
    unused: AtomicBool,
}

/// Compiles source, unless that was done before, and loads what it became.
pub(super) fn compile(source: &str, options: &CompileOptions) -> Result<RawModule> {
    static BUILT: Lazy<Memory<Built>> = Lazy::new(Memory::new);
    let key = Key {
        source,
        options,
        // There is one compiler and one kind of processor in a process.
        target: "",
    };
    let built = BUILT.get(
        &key,
        |built| built.made.is_fresh(),
        || {
            let made = source::make(source, options)?;
            let object = Arc::new(Object::load(&made.image)?);
            let unused = AtomicBool::new(true);
            Ok(Built { made, object, unused })
        },
    )?;
    // Modules do not see each other's variables.
    if built.object.variables.is_empty() || built.unused.swap(false, Ordering::Relaxed) {
        return Ok(publish(built.object.clone()));
    }
    load(&built.made.image)
}

pub(super) fn destroy(raw: RawModule) {
    // SAFETY: made by `publish`; the last use is over.
    drop(unsafe { Box::from_raw(raw.0 as *mut Module) });
}

/// Finds a kernel.
pub(super) fn function(raw: RawModule, name: &str) -> Result<RawFunction> {
    let functions = &module_of(raw).object.functions;
    functions
        .get(name)
        .map(|function| RawFunction(&raw const *function as u64))
        .ok_or_else(|| missing("kernel", name, functions.keys()))
}

/// Finds a variable.
pub(super) fn global(raw: RawModule, name: &str) -> Result<(Addr, u64)> {
    let variables = &module_of(raw).object.variables;
    variables
        .get(name)
        .map(|&(address, bytes)| (Addr::from_backend(address), bytes))
        .ok_or_else(|| missing("variable", name, variables.keys()))
}

#[cold]
fn missing<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> Error {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    let known = match known.len() {
        0 => "it has none".to_owned(),
        n => format!(
            "it has {}{}",
            known[..n.min(20)].join(", "),
            if n > 20 { ", ..." } else { "" }
        ),
    };
    Error::new(
        Status::NotFound,
        format!("the module has no {what} named {name:?}; a C++ name needs extern \"C\" or a name expression; {known}"),
    )
}

impl Object {
    fn load(image: &[u8]) -> Result<Object> {
        check(image)?;
        let refuse = |why: String| image::refuse(format!("the image cannot be loaded: {why}"));
        let file = in_memory(image).map_err(|e| {
            let status = os::shortage_or(Status::Backend, &e);
            Error::new(status, format!("no file in memory can be had for the image: {e}"))
        })?;
        let path = path_of(&file);
        // SAFETY: whoever hands over an image vouches for what its initialisers do; ours have none.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|e| refuse(e.to_string()))?;
        // SAFETY: the symbol is the table that its name stands for.
        let table =
            unsafe { library.get::<*const Image>(SYMBOL.as_bytes()) }.map_err(|e| refuse(e.to_string()))?;
        // SAFETY: as above; it is constant for as long as the library is loaded.
        let table = unsafe { &**table };
        if table.version != VERSION {
            return Err(refuse(format!(
                "its table has version {}; this library reads version {VERSION}",
                table.version
            )));
        }
        let data = (&raw const RUNTIME).cast::<c_void>().cast_mut();
        let (mut functions, mut variables) = (HashMap::new(), HashMap::new());
        // SAFETY: the table's counts, names and sizes are those of its arrays; its functions follow `HostKernelFn`.
        unsafe {
            for i in 0..table.entry_count {
                let entry = &*table.entries.add(i);
                let sizes: Vec<usize> = (0..entry.arg_count).map(|a| *entry.arg_sizes.add(a)).collect();
                let name = CStr::from_ptr(entry.name).to_string_lossy().into_owned();
                let code = entry
                    .function
                    .ok_or_else(|| refuse(format!("its kernel {name} has no function")))?;
                let function = Function {
                    kernel: HostKernel::from_caller(code, data, &sizes),
                    max_threads: entry.max_threads,
                    static_shared_bytes: entry.static_shared_bytes.into(),
                };
                functions.insert(name, function);
            }
            for i in 0..table.variable_count {
                let variable = &*table.variables.add(i);
                let name = CStr::from_ptr(variable.name).to_string_lossy().into_owned();
                variables.insert(name, (variable.address as u64, variable.bytes));
            }
        }
        Ok(Object {
            functions,
            variables,
            _library: library,
        })
    }
}

/// Says why an image is no module of this machine, before the loader runs anything of it.
fn check(image: &[u8]) -> Result<()> {
    let wanted = "shared objects with the symbol taskgpu_host_image";
    match image::look(image) {
        Looks::Elf => {}
        other => return Err(other.refuse(wanted)),
    }
    let elf = Elf::check(image, MACHINE, "a shared object", "this machine")?;
    match elf.kind() {
        SHARED_OBJECT if elf.exports(SYMBOL) => Ok(()),
        SHARED_OBJECT => Err(image::refuse(format!(
            "the image is a shared object without the symbol {SYMBOL}; host devices load {wanted}"
        ))),
        1 => Err(image::refuse(
            "the image is an object file; link it into a shared object (cc -shared)",
        )),
        kind => Err(image::refuse(format!(
            "the image is an ELF file of type {kind}; host devices load {wanted}"
        ))),
    }
}

/// A path of the file that has never been given before: the loader takes an equal path for the same library, and the
/// number of a descriptor comes back.
fn path_of(file: &OwnedFd) -> String {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let count = OPENED.fetch_add(1, Ordering::Relaxed);
    // Slashes and dots make no difference to the system: here they spell the count in binary.
    let digits = (0..64 - count.leading_zeros()).map(|bit| if count >> bit & 1 == 0 { "/" } else { "/." });
    format!("/proc/self/fd{}/{}", digits.collect::<String>(), file.as_raw_fd())
}

/// A file that is in memory only.
fn in_memory(contents: &[u8]) -> std::io::Result<OwnedFd> {
    use std::io::Write;
    // SAFETY: the name ends with a NUL.
    let fd = unsafe { libc::memfd_create(c"taskgpu-module".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a descriptor that has just been made, and that nobody else has.
    let mut file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.write_all(contents)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::image::tests::{elf_file, GARBAGE};

    fn why(image: &[u8]) -> String {
        let e = load(image).expect_err("an image that is none");
        assert_eq!(e.status(), Status::InvalidImage);
        e.to_string()
    }

    #[test]
    fn garbage_is_named_for_what_it_looks_like() {
        let others: &[(&[u8], &str)] = &[
            (b"__CLANG_OFFLOAD_BUNDLE__\x01", "AMD"),
            (b".version 7.0\n.target sm_70\n", "PTX"),
            (&[0x50, 0xED, 0x55, 0xBA, 1, 0], "fatbin"),
            (&elf_file(190, 4), "CUDA"),
            (&elf_file(MACHINE, 4), "type 0"),
            (&elf_file(MACHINE, 4)[..100], "cut short"),
        ];
        for (image, word) in GARBAGE.iter().chain(others) {
            let text = why(image);
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }

    #[test]
    fn only_what_has_a_table_is_loaded() {
        let image = source::make("extern \"C\" __global__ void k() {}", &CompileOptions::default())
            .expect("it compiles")
            .image;
        let module = load(&image).expect("it loads");
        assert!(function(module, "k").is_ok());
        let text = function(module, "other").expect_err("there is none").to_string();
        assert!(text.contains("other") && text.contains("it has k"), "{text}");
        destroy(module);
        // The same file without the name of its table.
        let at = image
            .windows(SYMBOL.len())
            .position(|w| w == SYMBOL.as_bytes())
            .expect("the name is there");
        let mut other = image.clone();
        other[at] = b'T';
        assert!(why(&other).contains("without the symbol"));
        for n in [64, image.len() / 2, image.len() - 1] {
            assert!(why(&image[..n]).contains("cut short"), "{n} bytes");
        }
    }

    #[test]
    fn the_module_that_the_manual_shows_is_loaded() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(root.join("docs/kernels.md")).expect("the page is there");
        let (_, rest) = page.split_once("```c\n").expect("it shows a module");
        let (shown, _) = rest.split_once("```").expect("the module ends");
        let folder = std::env::temp_dir().join(format!("taskgpu-module-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let old = "1024, 0}}";
        assert!(shown.contains(old), "the last field of its entry");
        for (code, bytes) in [(shown.to_owned(), 0), (shown.replace(old, "1024, 4096}}"), 4096)] {
            let (source, made) = (folder.join("module.c"), folder.join("module.so"));
            std::fs::write(&source, code).expect("the source is written");
            let built = std::process::Command::new("cc")
                .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
                .args([&root.join("include"), &source, std::path::Path::new("-o"), &made])
                .status();
            assert!(built.expect("cc runs").success());
            let module = load(&std::fs::read(&made).expect("the module")).expect("it loads");
            let twice = function_of(function(module, "twice").expect("it has the kernel"));
            assert_eq!((twice.max_threads, twice.static_shared_bytes), (1024, bytes));
            assert_eq!(twice.kernel.arg_sizes(), [8]);
            destroy(module);
        }
        std::fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
