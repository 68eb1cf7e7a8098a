//! The run-time compiler. Without a device nothing can be compiled here: the code object holds the source, which the
//! backend below compiles when it is loaded. To find errors at once, it is compiled for the first device and thrown away.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, CStr, CString};
use std::sync::Arc;

use parking_lot::Mutex;
use taskgpu::backend::CompileOptions;

use crate::device::by_ordinal;
use crate::entry::{write, Hip};
#[allow(clippy::wildcard_imports)]
use crate::ffi::*;
use crate::handle::Table;
use crate::image;
use crate::runtime::runtime;

const HIPRTC_ERROR_INVALID_INPUT: hiprtcResult = 3;
const HIPRTC_ERROR_INVALID_PROGRAM: hiprtcResult = 4;
const HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION: hiprtcResult = 8;
const HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID: hiprtcResult = 10;

static PROGRAMS: Table<Program> = Table::new();

/// A program.
struct Program {
    source: String,
    name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    names: Vec<String>,
    lowered: HashMap<String, CString>,
    code: Option<Vec<u8>>,
    log: Vec<u8>,
}

fn find(program: hiprtcProgram) -> Hip<Arc<Program>> {
    PROGRAMS.find(program).ok_or(HIPRTC_ERROR_INVALID_PROGRAM)
}

unsafe fn text(text: *const c_char) -> Hip<String> {
    if text.is_null() {
        return Err(HIPRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: the caller's text ends with NUL.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map(str::to_owned)
        .map_err(|_| HIPRTC_ERROR_INVALID_INPUT)
}

/// Compiles for the first device, for the errors.
fn check(source: &str, options: &CompileOptions) -> Result<(), String> {
    let backend = runtime().backend;
    let device = by_ordinal(0).map_err(|_| "no device".to_owned())?;
    let compiled = backend
        .open(device.ordinal)
        .and_then(|()| backend.module_compile(device.ordinal, source, options));
    match compiled {
        Ok(module) => {
            backend.module_destroy(device.ordinal, module);
            Ok(())
        }
        Err(why) => Err(why.detail().text.to_string()),
    }
}

/// Copies out what the caller has made room for.
unsafe fn copy_out(bytes: &[u8], out: *mut c_char) -> Hip<()> {
    if out.is_null() {
        return Err(HIPRTC_ERROR_INVALID_INPUT);
    }
    // SAFETY: the caller has asked for the size.
    unsafe { out.cast::<u8>().copy_from(bytes.as_ptr(), bytes.len()) };
    Ok(())
}

entries! { @ carry_out;
    fn hiprtcVersion(call, major: *mut c_int, minor: *mut c_int) {
        let version = runtime().version;
        write(major, version / 10_000_000)?;
        write(minor, version / 100_000 % 100)
    }

    fn hiprtcCreateProgram(
        call,
        out: *mut hiprtcProgram,
        source: *const c_char,
        name: *const c_char,
        header_count: c_int,
        headers: *mut *const c_char,
        header_names: *mut *const c_char,
    ) {
        let _ = (headers, header_names);
        if header_count != 0 {
            return Err(HIPRTC_ERROR_INVALID_INPUT);
        }
        let program = Program {
            source: text(source)?,
            name: if name.is_null() { String::new() } else { text(name)? },
            state: Mutex::default(),
        };
        call.give(out, PROGRAMS.insert(Arc::new(program)))
    }

    fn hiprtcDestroyProgram(call, program: *mut hiprtcProgram) {
        if program.is_null() {
            return Err(HIPRTC_ERROR_INVALID_INPUT);
        }
        PROGRAMS.take(*program).ok_or(HIPRTC_ERROR_INVALID_PROGRAM)?;
        write(program, std::ptr::null_mut())
    }

    fn hiprtcAddNameExpression(call, program: hiprtcProgram, name: *const c_char) {
        find(program)?.state.lock().names.push(text(name)?);
        Ok(())
    }

    fn hiprtcCompileProgram(call, program: hiprtcProgram, count: c_int, options: *mut *const c_char) {
        let program = find(program)?;
        let mut state = program.state.lock();
        let count = usize::try_from(count).map_err(|_| HIPRTC_ERROR_INVALID_INPUT)?;
        let mut all = Vec::new();
        for i in 0..count {
            let option = text(*options.add(i))?;
            // The target is the backend's to know.
            if !option.starts_with("--offload-arch=") && !option.starts_with("--gpu-architecture=") {
                all.push(option);
            }
        }
        let options = CompileOptions {
            name: program.name.clone(),
            options: all,
            name_expressions: state.names.clone(),
        };
        match check(&program.source, &options) {
            Ok(()) => {
                state.code = Some(image::of_source(&program.source, &options));
                state.lowered = state.names.iter().filter_map(|name| {
                    // The backend below finds a function by its name expression.
                    Some((name.clone(), CString::new(name.as_bytes()).ok()?))
                }).collect();
                state.log = b"\0".to_vec();
                Ok(())
            }
            Err(why) => {
                state.code = None;
                state.log = [why.as_bytes(), b"\0"].concat();
                Err(HIPRTC_ERROR_COMPILATION)
            }
        }
    }

    fn hiprtcGetCodeSize(call, program: hiprtcProgram, bytes: *mut usize) {
        let program = find(program)?;
        let state = program.state.lock();
        write(bytes, state.code.as_ref().ok_or(HIPRTC_ERROR_INVALID_PROGRAM)?.len())
    }

    fn hiprtcGetCode(call, program: hiprtcProgram, out: *mut c_char) {
        let program = find(program)?;
        let state = program.state.lock();
        copy_out(state.code.as_ref().ok_or(HIPRTC_ERROR_INVALID_PROGRAM)?, out)
    }

    fn hiprtcGetProgramLogSize(call, program: hiprtcProgram, bytes: *mut usize) {
        write(bytes, find(program)?.state.lock().log.len())
    }

    fn hiprtcGetProgramLog(call, program: hiprtcProgram, out: *mut c_char) {
        copy_out(&find(program)?.state.lock().log, out)
    }

    /// The text lives as long as the program.
    fn hiprtcGetLoweredName(call, program: hiprtcProgram, name: *const c_char, out: *mut *const c_char) {
        let program = find(program)?;
        let state = program.state.lock();
        if state.code.is_none() {
            return Err(HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION);
        }
        let lowered = state.lowered.get(&text(name)?).ok_or(HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID)?;
        write(out, lowered.as_ptr())
    }
}

/// The words for a result.
#[no_mangle]
pub unsafe extern "C" fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char {
    match result {
        HIPRTC_SUCCESS => c"HIPRTC_SUCCESS",
        HIPRTC_ERROR_OUT_OF_MEMORY => c"HIPRTC_ERROR_OUT_OF_MEMORY",
        HIPRTC_ERROR_INVALID_INPUT => c"HIPRTC_ERROR_INVALID_INPUT",
        HIPRTC_ERROR_INVALID_PROGRAM => c"HIPRTC_ERROR_INVALID_PROGRAM",
        HIPRTC_ERROR_INVALID_OPTION => c"HIPRTC_ERROR_INVALID_OPTION",
        HIPRTC_ERROR_COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION => {
            c"HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION"
        }
        HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID => c"HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    }
    .as_ptr()
}
