//! Vendors' libraries, found while the program runs.

use std::ffi::{c_char, c_int, c_void, CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// glibc's and musl's `RTLD_NOLOAD`: only a library that is mapped already.
const RTLD_NOLOAD: c_int = libc::RTLD_NOLOAD;

/// Opens the first of `names` that is in the process already.
pub(super) fn open_mapped(names: &[impl AsRef<OsStr>]) -> Option<Library> {
    names.iter().find_map(|name| {
        // SAFETY: with NOLOAD no initialisers run; the library is in use by this process already.
        unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) }.ok()
    })
}

/// Opens the first of `names` that the loader finds, a copy already in the process first. On failure, the
/// loader's own words about each.
pub(super) fn open_library(names: &[impl AsRef<OsStr>]) -> Result<Library, String> {
    if let Some(library) = open_mapped(names) {
        return Ok(library);
    }
    let mut words: Vec<String> = Vec::new();
    for name in names {
        // SAFETY: the vendor's library may be loaded at any time: that is how it is meant to be used.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(library),
            Err(e) => {
                let text = std::error::Error::source(&e).map_or_else(|| e.to_string(), |s| s.to_string());
                if !words.contains(&text) {
                    words.push(text);
                }
            }
        }
    }
    Err(words.join("; "))
}

/// The files in the process whose names begin with `stem`: a library that a framework brings along may have a name of its
/// own, such as `libamdhip64-1a2b3c.so`.
pub(super) fn mapped_files(stem: &str) -> Vec<OsString> {
    struct Search<'a> {
        stem: &'a [u8],
        found: Vec<OsString>,
    }
    unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: `data` is the search of the call below; the loader's entry is valid during this call.
        let (search, name) = unsafe { (&mut *data.cast::<Search<'_>>(), (*info).dlpi_name) };
        if !name.is_null() {
            // SAFETY: the loader's string, which ends with NUL.
            let path = unsafe { CStr::from_ptr(name) }.to_bytes();
            let file = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
            if file.starts_with(search.stem) {
                search.found.push(OsStr::from_bytes(path).to_owned());
            }
        }
        0
    }
    let mut search = Search {
        stem: stem.as_bytes(),
        found: Vec::new(),
    };
    // SAFETY: `look` gets the search back as its data, and does not outlive this call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// The address of an exported symbol.
pub(super) fn symbol(library: &Library, name: &CStr) -> Option<*const c_void> {
    // SAFETY: the symbol is not used as anything here; whoever does says what it is.
    let found = unsafe { library.get::<*const c_char>(name.to_bytes_with_nul()) }.ok()?;
    Some(found.as_raw_ptr().cast_const()).filter(|p| !p.is_null())
}

/// The file that holds `symbol`, as the loader names it, links followed.
pub(super) fn file_of(symbol: *const c_void) -> String {
    // SAFETY: all zero is a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable; `dladdr` accepts any address.
    if unsafe { libc::dladdr(symbol, &mut info) } == 0 || info.dli_fname.is_null() {
        return String::new();
    }
    // SAFETY: the loader's string lives as long as the library, which is never closed.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }
        .to_string_lossy()
        .into_owned();
    std::fs::canonicalize(&name).map_or(name, |p| p.to_string_lossy().into_owned())
}

/// A table of a library's functions: the fields are named as the functions are, an optional one is an `Option`.
macro_rules! table {
    (
        $(#[$doc:meta])* struct $table:ident;
        required { $(fn $name:ident($($arg:ty),* $(,)?) -> $ret:ty;)* }
        optional { $(fn $oname:ident($($oarg:ty),* $(,)?) -> $oret:ty;)* }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub(super) $oname: Option<unsafe extern "C" fn($($oarg),*) -> $oret>,)*
        }

        impl $table {
            /// Looks every function up. `Err` names the first required one that is missing.
            pub(super) fn find(
                look_up: impl Fn(&'static std::ffi::CStr) -> Option<*const std::ffi::c_void>,
            ) -> std::result::Result<$table, &'static str> {
                let named = |name: &'static str| {
                    std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).ok().and_then(&look_up)
                };
                Ok($table {
                    $($name: {
                        let found = named(concat!(stringify!($name), "\0")).ok_or(stringify!($name))?;
                        // SAFETY: the exported function of this name has this signature: see the notes on each
                        // backend in docs/ for how that was checked.
                        unsafe {
                            std::mem::transmute::<*const std::ffi::c_void, unsafe extern "C" fn($($arg),*) -> $ret>(found)
                        }
                    },)*
                    $($oname: named(concat!(stringify!($oname), "\0")).map(|found| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<*const std::ffi::c_void, unsafe extern "C" fn($($oarg),*) -> $oret>(found)
                        }
                    }),)*
                })
            }
        }
    };
}
pub(super) use table;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_in_the_process_is_found_by_the_start_of_its_name() {
        let files = mapped_files("libc.so");
        assert!(!files.is_empty(), "the C library is in every process");
        assert!(open_mapped(&files).is_some());
        assert!(mapped_files("libno-such-library").is_empty());
        assert!(open_mapped(&["libno-such-library.so"]).is_none());
    }

    #[test]
    fn symbols_are_found_and_their_file_named() {
        let library = open_library(&["libno-such-library.so", "libc.so.6"]).expect("the C library");
        let found = symbol(&library, c"getpid").expect("a function of the C library");
        assert!(file_of(found).contains("libc"), "{}", file_of(found));
        assert!(symbol(&library, c"no_such_function_anywhere").is_none());
        let words = open_library(&["libno-such-library.so"]).expect_err("no such library");
        assert!(
            words.contains("libno-such-library.so: cannot open shared object file"),
            "{words}"
        );
    }
}
