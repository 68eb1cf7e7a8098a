//! What can go wrong, in the words of every floor: a [`Status`] and the details behind it.

use std::borrow::Cow;
use std::fmt;

/// The answer of a call. The numbers are the ABI's and never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// An answer, not an error: the work asked about has not finished.
    NotReady = 1,
    /// An argument is out of its range.
    InvalidArgument = 2,
    /// A handle is stale, destroyed, of another kind or never was one.
    InvalidHandle = 3,
    /// A device index outside the device list.
    InvalidDevice = 4,
    /// No device is present.
    NoDevice = 5,
    /// Device, pinned or host memory ran out.
    OutOfMemory = 6,
    /// The backend or device cannot do this.
    NotSupported = 7,
    /// No such name, pointer or entry.
    NotFound = 8,
    /// The call is not allowed on this object.
    NotPermitted = 9,
    /// The time was over first; the work goes on.
    Timeout = 10,
    /// The kernel source does not compile.
    CompileFailed = 11,
    /// The image is no code for this device.
    InvalidImage = 12,
    /// The vendor refused the launch.
    LaunchFailed = 13,
    /// The device failed and is lost for this process.
    DeviceLost = 14,
    /// The stream is being captured; the call would put hidden work into the capture.
    Capturing = 15,
    /// The call was made inside a callback or a host kernel.
    InCallback = 16,
    /// The task is current on another thread.
    TaskBusy = 17,
    /// The scope is not the innermost scope of the calling task.
    ScopeMismatch = 18,
    /// The process is the child of a `fork` after the runtime was in use.
    Forked = 19,
    /// An environment variable has a value that makes no sense.
    Environment = 20,
    /// A vendor code without a better name; see the native code.
    Backend = 21,
    /// A bug of this library.
    Internal = 22,
}

impl Status {
    /// Every status, in the order of its number.
    pub const ALL: [Status; 23] = [
        Status::Ok,
        Status::NotReady,
        Status::InvalidArgument,
        Status::InvalidHandle,
        Status::InvalidDevice,
        Status::NoDevice,
        Status::OutOfMemory,
        Status::NotSupported,
        Status::NotFound,
        Status::NotPermitted,
        Status::Timeout,
        Status::CompileFailed,
        Status::InvalidImage,
        Status::LaunchFailed,
        Status::DeviceLost,
        Status::Capturing,
        Status::InCallback,
        Status::TaskBusy,
        Status::ScopeMismatch,
        Status::Forked,
        Status::Environment,
        Status::Backend,
        Status::Internal,
    ];

    /// The number of the ABI.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The status with this number, if there is one.
    pub fn from_code(code: i32) -> Option<Status> {
        usize::try_from(code)
            .ok()
            .and_then(|i| Status::ALL.get(i).copied())
    }
}

/// What a vendor's runtime said, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Native {
    /// Which runtime: `"hip"`, `"cuda"`, `"host"`.
    pub backend: &'static str,
    /// The vendor's code.
    pub code: i64,
    /// The vendor's name of that code, for instance `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: Cow<'static, str>,
    /// The vendor's function that answered it.
    pub function: &'static str,
}

/// The details of a failure. Boxed inside [`Error`], so that a `Result` stays one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// What the caller is answered.
    pub status: Status,
    /// One or more sentences for a person, naming the value and the limit.
    pub text: Cow<'static, str>,
    /// What the vendor said, if a vendor was asked.
    pub native: Option<Native>,
    /// The index of the device in the process's device list, if one is concerned.
    pub device: Option<u32>,
    /// The unique id of the stream, if one is concerned.
    pub stream_id: Option<u64>,
}

/// A failure: a [`Status`] plus what a person needs to understand it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Detail>);

/// The result of nearly everything below the door.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure with a text of our own.
    #[cold]
    pub fn new(status: Status, text: impl Into<Cow<'static, str>>) -> Error {
        Error(Box::new(Detail {
            status,
            text: text.into(),
            native: None,
            device: None,
            stream_id: None,
        }))
    }

    /// Adds what the vendor said.
    #[cold]
    pub fn native(mut self, native: Native) -> Error {
        self.0.native = Some(native);
        self
    }

    /// Names the device (its index in the process's list) unless one is named already.
    #[cold]
    pub fn on_device(mut self, device: u32) -> Error {
        self.0.device.get_or_insert(device);
        self
    }

    /// Names the stream by its unique id unless one is named already.
    #[cold]
    pub fn on_stream(mut self, id: u64) -> Error {
        self.0.stream_id.get_or_insert(id);
        self
    }

    /// The status.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// All details.
    pub fn detail(&self) -> &Detail {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.text)?;
        if let Some(n) = &self.0.native {
            write!(
                f,
                " [{}: {} answered {} ({})]",
                n.backend, n.function, n.name, n.code
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
