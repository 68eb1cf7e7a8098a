//! What every function of the runtime does before and after its own work: it is counted, the script may step in, and the
//! thread's last error is kept as the modelled version keeps it.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error;
use crate::ffi::{hipErrorInvalidValue, hipErrorUnknown, hipError_t, hipSuccess};
use crate::runtime::runtime;
use crate::script::Action;

/// What a function answers: a code is a failure.
pub type Hip<T> = Result<T, hipError_t>;

/// An exported function, and how often it was called.
pub struct Function {
    pub name: &'static str,
    calls: AtomicU64,
}

impl Function {
    pub const fn new(name: &'static str) -> Function {
        Function {
            name,
            calls: AtomicU64::new(0),
        }
    }

    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Counts a call: the first one is 1.
    pub fn count(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// One call, as its function sees it.
pub struct Call {
    /// The script wants success and a NULL pointer.
    null: bool,
}

impl Call {
    /// Hands a pointer out, or NULL where the script wants that.
    ///
    /// # Safety
    /// `out` is NULL or writable.
    pub unsafe fn give<T>(&self, out: *mut *mut T, pointer: *mut T) -> Hip<()> {
        let pointer = if self.null { std::ptr::null_mut() } else { pointer };
        // SAFETY: the caller's promise.
        unsafe { write(out, pointer) }
    }
}

/// Writes an output, which must not be NULL.
///
/// # Safety
/// `out` is NULL or writable.
pub unsafe fn write<T>(out: *mut T, value: T) -> Hip<()> {
    if out.is_null() {
        return Err(hipErrorInvalidValue);
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// What the script wants of this call, and which call it is.
fn script(function: &Function) -> Option<Action> {
    let nth = function.count();
    runtime().script.action(function.name, nth)
}

/// The work of a function, or what the script puts in its place.
pub fn carry_out(function: &Function, body: impl FnOnce(&Call) -> Hip<()>) -> hipError_t {
    let action = script(function);
    let call = Call {
        null: matches!(action, Some(Action::Null)),
    };
    let result = match action {
        Some(Action::Fail(code)) => Err(code),
        Some(Action::Abort) => std::process::abort(),
        Some(Action::Hang) => loop {
            std::thread::park();
        },
        Some(Action::Null) | None => {
            catch_unwind(AssertUnwindSafe(|| body(&call))).unwrap_or(Err(hipErrorUnknown))
        }
    };
    result.err().unwrap_or(hipSuccess)
}

/// The whole of a function that leaves its answer as the thread's last error.
pub fn run(function: &Function, body: impl FnOnce(&Call) -> Hip<()>) -> hipError_t {
    if runtime().empty {
        return body(&Call { null: false }).err().unwrap_or(hipSuccess);
    }
    let code = carry_out(function, body);
    error::leave_behind(code);
    code
}

/// Exports functions of the runtime. `$call` names what the body hands pointers out through.
macro_rules! entries {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($call:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block
    )*) => {
        entries!(@ run; $( $(#[$doc])* fn $name($call $(, $arg: $ty)*) $body )*);
    };
    (@ $how:ident; $(
        $(#[$doc:meta])*
        fn $name:ident($call:ident $(, $arg:ident: $ty:ty)* $(,)?) $body:block
    )*) => {
        mod functions_here {
            use crate::entry::Function;
            $(pub static $name: Function = Function::new(stringify!($name));)*
        }

        /// The functions of this file.
        pub static FUNCTIONS: &[&crate::entry::Function] = &[$(&functions_here::$name),*];

        $(
            $(#[$doc])*
            #[no_mangle]
            #[allow(unused_unsafe)]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> std::ffi::c_int {
                // SAFETY: what the pointers must be is the vendor's contract, which callers keep.
                crate::entry::$how(&functions_here::$name, move |$call: &crate::entry::Call| unsafe {
                    let _ = $call;
                    $body
                })
            }
        )*
    };
}
