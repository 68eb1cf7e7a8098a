//! # Modules
//!
//! A module is code that holds kernels and global variables: a code object, PTX or a cubin, loaded
//! as it is, or source that is compiled at run time. It is loaded for the current device at once,
//! and for other devices when it is first used there. A kernel taken from a module works on every
//! device that the module can be loaded for.
//!
//! On host devices the system's C++ compiler compiles the source, and a ready module is a shared
//! object. They also take kernels that are C functions of the program, with
//! tgpu_kernel_from_host_fn and without a module.

use super::device::tgpu_device;
use super::error::tgpu_status;
use super::handles::tgpu_module;
use super::structs::{read_or_default, AbiStruct};
use super::{guard, guard_ending, invalid, null, text_in, Out};
use crate::backend::{CompileOptions, Result};
use crate::core;
use crate::core::handle::ModuleHandle;
use std::ffi::{c_char, c_void};

/// Most entries of one list of strings.
const MOST_STRINGS: usize = 4096;

/// How source is compiled.
#[repr(C)]
pub struct tgpu_compile_options {
    /// The size of the caller's struct in bytes.
    pub struct_size: usize,
    /// The name that messages of the compiler give the source. NULL for "kernel".
    pub name: *const c_char,
    /// Options for the compiler, one argument each. May be NULL if there are none.
    pub options: *const *const c_char,
    /// How many options, 4096 at most.
    pub option_count: usize,
    /// Template instances such as "`scale<float>`" that tgpu_kernel_get shall find by these names.
    /// May be NULL if there are none.
    pub name_expressions: *const *const c_char,
    /// How many name expressions, 4096 at most.
    pub name_expression_count: usize,
}

// SAFETY: repr(C), size first, numbers and raw pointers.
unsafe impl AbiStruct for tgpu_compile_options {
    const NAME: &'static str = "tgpu_compile_options";
}

pub(super) fn module(m: tgpu_module) -> ModuleHandle {
    ModuleHandle::from_bits(m as u64)
}

/// A list of C strings handed in.
///
/// # Safety
/// `list` is NULL or has `count` elements, each NULL or a text that ends with a NUL.
unsafe fn texts_in(
    list: *const *const c_char,
    count: usize,
    name: &str,
    count_name: &str,
) -> Result<Vec<String>> {
    if count > MOST_STRINGS {
        return Err(invalid(format!(
            "{count_name} is {count}; at most {MOST_STRINGS} are allowed"
        )));
    }
    if list.is_null() && count > 0 {
        return Err(invalid(format!("{name} is NULL, but {count_name} is {count}")));
    }
    let text = |i: usize| {
        // SAFETY: the caller's promise; i is below count.
        let text = unsafe { text_in(list.add(i).read_unaligned(), &format!("{name}[{i}]")) }?;
        Ok(text.to_owned())
    };
    (0..count).map(text).collect()
}

/// Loads ready code for the task's current device.
///
/// @param image  the whole file or section in memory: a code object, PTX text with its NUL, a cubin
///               or a fat binary; for a host device a shared object with a table, as
///               docs/kernels.md says. Code is trusted as a library is that a program links:
///               what is no code for the device is refused, but what is made to do harm can.
/// @param bytes  its size.
/// @param out    receives the module.
/// @return TGPU_OK; TGPU_ERROR_INVALID_IMAGE if it is no code for this device;
///         TGPU_ERROR_NOT_SUPPORTED if the device takes no images; TGPU_ERROR_INVALID_ARGUMENT if
///         image or out is NULL or bytes is 0 or more than an object in memory can have; the
///         device statuses, among them TGPU_ERROR_OUT_OF_MEMORY if there is no memory for a copy of
///         the image.
///
/// Ownership: the caller owns the module; tgpu_module_destroy gives it back. The image is copied.
/// Threads: any thread.
/// Blocks: no; loading takes its time, and may wait for running work on some GPUs.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_module_load(
    image: *const c_void,
    bytes: usize,
    out: *mut tgpu_module,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's pointer.
        let out = unsafe { Out::new(out, "out") }?;
        if image.is_null() {
            return Err(null("image"));
        }
        if bytes == 0 || bytes > isize::MAX as usize {
            return Err(invalid(format!(
                "bytes is {bytes}; it must be 1 to {}",
                isize::MAX
            )));
        }
        // SAFETY: the caller's image has as many bytes, read during the call.
        let image = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), bytes) };
        out.set(core::module::load(image)?.bits() as tgpu_module);
        Ok(())
    })
}

/// Compiles source for the task's current device, and for others when it is first used there.
///
/// @param source   the text.
/// @param options  NULL for none.
/// @param out      receives the module.
/// @return TGPU_OK; TGPU_ERROR_COMPILE_FAILED if it does not compile, and tgpu_error_text gives the
///         compiler's log; TGPU_ERROR_NOT_SUPPORTED if the device has no compiler;
///         TGPU_ERROR_INVALID_ARGUMENT if source or out is NULL, a text is not UTF-8, an entry of a
///         list is NULL, a count is above 4096, or the struct_size of options is refused; the
///         device statuses.
///
/// Ownership: the caller owns the module; tgpu_module_destroy gives it back. All texts are copied.
/// Threads: any thread.
/// Blocks: no; compiling takes its time.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_module_compile(
    source: *const c_char,
    options: *const tgpu_compile_options,
    out: *mut tgpu_module,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's texts end with a NUL, its lists are as long as it says, its struct has as many bytes as
        // its struct_size says, and its pointer may be written.
        let (source, options, out) = unsafe {
            let given = read_or_default(options, "options")?;
            let name = if given.name.is_null() {
                "kernel"
            } else {
                text_in(given.name, "name")?
            };
            let options = CompileOptions {
                name: name.to_owned(),
                options: texts_in(given.options, given.option_count, "options", "option_count")?,
                name_expressions: texts_in(
                    given.name_expressions,
                    given.name_expression_count,
                    "name_expressions",
                    "name_expression_count",
                )?,
            };
            (text_in(source, "source")?, options, Out::new(out, "out")?)
        };
        out.set(core::module::compile(source, options)?.bits() as tgpu_module);
        Ok(())
    })
}

/// Builds and loads a module for a device now, instead of when it is first used there.
///
/// @param m  the module.
/// @param d  the device.
/// @return TGPU_OK, also if it is loaded there already; TGPU_ERROR_INVALID_HANDLE if m is no live
///         module; TGPU_ERROR_INVALID_DEVICE if there is no such device; TGPU_ERROR_INVALID_IMAGE
///         or TGPU_ERROR_COMPILE_FAILED if it is no code for that device; TGPU_ERROR_NOT_SUPPORTED
///         if the device takes no modules; the device statuses.
///
/// Ownership: nothing changes hands.
/// Threads: any thread.
/// Blocks: no; building takes its time.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_module_prepare(m: tgpu_module, d: tgpu_device) -> tgpu_status {
    guard(|| core::module::prepare(module(m), d))
}

/// Finds a global variable of a module on a device.
///
/// @param m      the module. It is loaded for the device if it was not.
/// @param d      the device.
/// @param name   the variable's name as the image has it, or a name expression.
/// @param out    receives its address on that device.
/// @param bytes  receives its size.
/// @return TGPU_OK; TGPU_ERROR_NOT_FOUND if there is no such variable; TGPU_ERROR_INVALID_HANDLE if
///         m is no live module; TGPU_ERROR_INVALID_DEVICE if there is no such device;
///         TGPU_ERROR_INVALID_IMAGE or TGPU_ERROR_COMPILE_FAILED if the module is no code for that
///         device; TGPU_ERROR_NOT_SUPPORTED if the device takes no modules;
///         TGPU_ERROR_INVALID_ARGUMENT if name or an output is NULL or name is not UTF-8; the
///         device statuses.
///
/// Ownership: the variable is the module's and lives as long as the module or a kernel taken from
/// it.
/// Threads: any thread.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub unsafe extern "C" fn tgpu_module_global_get(
    m: tgpu_module,
    d: tgpu_device,
    name: *const c_char,
    out: *mut *mut c_void,
    bytes: *mut u64,
) -> tgpu_status {
    guard(|| {
        // SAFETY: the caller's text ends with a NUL, and its pointers may be written.
        let (name, out, size_out) = unsafe {
            (
                text_in(name, "name")?,
                Out::new(out, "out")?,
                Out::new(bytes, "bytes")?,
            )
        };
        let (addr, size) = core::module::global(module(m), d, name)?;
        out.set(addr.as_ptr());
        size_out.set(size);
        Ok(())
    })
}

/// Destroys a module. The handle is invalid at once; kernels taken from it go on working, and it is
/// unloaded after the last of them.
///
/// @param m  the module. NULL is OK and does nothing.
/// @return TGPU_OK; TGPU_ERROR_INVALID_HANDLE if m is no live module; TGPU_ERROR_INTERNAL.
///
/// Ownership: the module is given back.
/// Threads: any thread, also in callbacks and finalizers.
/// Blocks: no.
/// Since: 0.1.
#[no_mangle]
pub extern "C" fn tgpu_module_destroy(m: tgpu_module) -> tgpu_status {
    guard_ending(|| core::module::destroy(module(m)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_strings_are_checked() {
        let list = [
            c"-O2".as_ptr(),
            c"-g".as_ptr(),
            std::ptr::null(),
            c"\xff".as_ptr(),
        ];
        // SAFETY: the list has as many elements as each call says, or the call is refused before it is read.
        let read = |count| unsafe { texts_in(list.as_ptr(), count, "options", "option_count") };
        assert_eq!(read(0).unwrap(), Vec::<String>::new());
        assert_eq!(read(2).unwrap(), ["-O2", "-g"]);
        assert_eq!(read(3).unwrap_err().to_string(), "options[2] is NULL");
        assert_eq!(
            read(4097).unwrap_err().to_string(),
            "option_count is 4097; at most 4096 are allowed"
        );
        // SAFETY: as above; NULL is allowed.
        unsafe {
            let e = texts_in(list[3..].as_ptr(), 1, "options", "option_count").unwrap_err();
            assert_eq!(e.to_string(), "options[0] is not valid UTF-8 from byte 0 on");
            let e = texts_in(std::ptr::null(), 1, "options", "option_count").unwrap_err();
            assert_eq!(e.to_string(), "options is NULL, but option_count is 1");
            assert!(texts_in(std::ptr::null(), 0, "options", "option_count")
                .unwrap()
                .is_empty());
        }
    }
}
