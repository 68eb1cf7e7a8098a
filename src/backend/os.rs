//! The operating system's part: what the core needs of it and Rust's library does not offer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Error, Result, Status};

/// A descriptor of our own that something is written to once, then closed.
#[derive(Debug)]
pub struct SignalFd {
    fd: libc::c_int,
    kind: FdKind,
}

/// How a descriptor is written to without blocking and without SIGPIPE. Found out when it is handed in, since the signal
/// itself shall take few system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FdKind {
    Socket,
    /// Raises no SIGPIPE: an eventfd, a file, a terminal.
    Quiet,
    /// A pipe.
    Pipe,
}

/// OUT_OF_MEMORY where the system lacks descriptors, processes or memory, which no argument is to blame for; else `other`.
pub fn shortage_or(other: Status, error: &std::io::Error) -> Status {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => Status::OutOfMemory,
        _ => other,
    }
}

impl SignalFd {
    /// Duplicates the caller's descriptor, so that closing the original does not hurt.
    pub fn dup(fd: i32) -> Result<SignalFd> {
        // SAFETY: fcntl with F_DUPFD_CLOEXEC takes any number and answers EBADF for a bad one.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            let why = std::io::Error::last_os_error();
            let status = shortage_or(Status::InvalidArgument, &why);
            return Err(Error::new(
                status,
                format!("the file descriptor {fd} cannot be duplicated: {why}"),
            ));
        }
        // SAFETY: an all-zero stat is a valid one, and the descriptor is ours.
        let mode = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::fstat(copy, &mut stat);
            stat.st_mode & libc::S_IFMT
        };
        let kind = match mode {
            libc::S_IFSOCK => FdKind::Socket,
            libc::S_IFIFO => FdKind::Pipe,
            _ => FdKind::Quiet,
        };
        let signal = SignalFd { fd: copy, kind };
        // SAFETY: the descriptor is ours; F_GETFL takes nothing more.
        let flags = unsafe { libc::fcntl(copy, libc::F_GETFL) };
        if flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_PATH != 0 {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("the file descriptor {fd} is not open for writing"),
            ));
        }
        Ok(signal)
    }

    /// Adds 1 (8 bytes, as an eventfd counts). Never blocks and raises no SIGPIPE: a full pipe or a reader
    /// that has gone loses the signal, as nobody could be told.
    pub fn signal(self) {
        let one = 1u64.to_ne_bytes();
        match self.kind {
            FdKind::Socket => {
                // SAFETY: `one` is 8 readable bytes and the descriptor is a socket of ours.
                unsafe {
                    libc::send(
                        self.fd,
                        one.as_ptr().cast(),
                        one.len(),
                        libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                    )
                };
            }
            FdKind::Quiet if self.writable() => {
                // SAFETY: `one` is 8 readable bytes and the descriptor is ours.
                unsafe { libc::write(self.fd, one.as_ptr().cast(), one.len()) };
            }
            FdKind::Pipe => self.write_without_sigpipe(&one),
            FdKind::Quiet => {}
        }
    }

    /// A pipe that is writable takes PIPE_BUF bytes and an eventfd one more increment, so a write does not block.
    fn writable(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.fd,
            events: libc::POLLOUT,
            revents: 0,
        };
        // SAFETY: one valid pollfd; a timeout of 0 does not block.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLOUT != 0 }
    }

    /// Writes to a pipe if that does not have to wait. Another writer may fill it between a look and a write, so the write
    /// itself says that it shall not wait; kernels before 6.4 do not know that of pipes.
    fn write_now(&self, bytes: &[u8; 8]) -> isize {
        let part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: one part of 8 readable bytes, and a descriptor of ours; -1 is where a pipe is.
        let wrote = unsafe { libc::pwritev2(self.fd, &part, 1, -1, libc::RWF_NOWAIT) };
        let why = std::io::Error::last_os_error().raw_os_error();
        if wrote < 0 && matches!(why, Some(libc::EOPNOTSUPP | libc::ENOSYS)) && self.writable() {
            // SAFETY: the same bytes and descriptor.
            return unsafe { libc::write(self.fd, bytes.as_ptr().cast(), bytes.len()) };
        }
        wrote
    }

    fn write_without_sigpipe(&self, bytes: &[u8; 8]) {
        // SAFETY: plain signal-set calls on zeroed sets of our own; SIGPIPE is blocked for this thread only, the
        // one that the write may raise is taken away again, and the old mask is put back.
        unsafe {
            let mut pipe: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut pipe);
            libc::sigaddset(&mut pipe, libc::SIGPIPE);
            libc::sigpending(&mut pending);
            let was_pending = libc::sigismember(&pending, libc::SIGPIPE) == 1;
            libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut old);
            let wrote = self.write_now(bytes);
            if wrote < 0
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::EPIPE)
                && !was_pending
            {
                let now = libc::timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                while libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now) == -1
                    && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
                {}
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        }
    }
}

impl Drop for SignalFd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is closed once.
        unsafe { libc::close(self.fd) };
    }
}

/// What a thread brings on itself, by a fault in code of the caller's that it runs. Blocked, it would end the process
/// without asking the handler that the program may have.
const FAULTS: [libc::c_int; 6] = [
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Blocks all signals but faults on the calling thread while it lives; a thread started meanwhile has them blocked for
/// good.
pub struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    /// Blocks them now.
    #[allow(clippy::new_without_default)]
    pub fn new() -> SignalsBlocked {
        // SAFETY: both sets are live; sigfillset initialises the one, the faults are signals, and pthread_sigmask writes
        // the other.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            for fault in FAULTS {
                libc::sigdelset(&mut all, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            SignalsBlocked(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was written by pthread_sigmask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// Calls `handler` in the child of every later `fork`, on its only thread.
pub fn at_fork_child(handler: extern "C" fn()) {
    // SAFETY: the handler is a plain function that stays mapped (the library is linked nodelete).
    unsafe { libc::pthread_atfork(None, None, Some(as_unsafe(handler))) };
}

/// Calls `handler` when the process exits normally.
pub fn at_exit(handler: extern "C" fn()) {
    // SAFETY: as for `at_fork_child`.
    unsafe { libc::atexit(handler) };
}

fn as_unsafe(handler: extern "C" fn()) -> unsafe extern "C" fn() {
    handler
}

/// Commands of membarrier(2), which the libc crate does not name.
const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// How long stores are given where membarrier(2) is refused after it was granted.
const WITHOUT_BARRIER: Duration = Duration::from_millis(20);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Gets ready for [`barrier_everywhere`]; false where the system offers none (before Linux 4.14, in some sandboxes).
pub fn barriers_register() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED)
}

/// A full memory barrier in every running thread of the process. Only after [`barriers_register`] answered true.
pub fn barrier_everywhere() {
    let done = membarrier(MEMBARRIER_PRIVATE_EXPEDITED)
        // A fork's child may have to say again that it wants them.
        || (barriers_register() && membarrier(MEMBARRIER_PRIVATE_EXPEDITED));
    if !done {
        // A sandbox that was entered meanwhile. Processors write their stores out within microseconds, and a thread that
        // is interrupted has written its own out.
        std::thread::sleep(WITHOUT_BARRIER);
    }
}

/// Calls a function when a thread that asked for it exits.
///
/// A POSIX key rather than a Rust thread-local with a destructor: it runs after the C++ `thread_local`s of the
/// program (whose destructors may still call us), can be armed again when they do, and does not run for the
/// main thread at `exit`, so that `atexit` handlers find their task as they left it.
pub struct ThreadExit {
    /// The key plus one; 0 until it was made, `usize::MAX` where none could be had.
    key: AtomicUsize,
    handler: extern "C" fn(),
}

extern "C" fn run_handler(value: *mut libc::c_void) {
    // SAFETY: `arm` stored the address of a `ThreadExit` with static lifetime.
    let hook = unsafe { &*value.cast::<ThreadExit>() };
    (hook.handler)();
}

impl ThreadExit {
    /// A hook that is not armed anywhere yet.
    pub const fn new(handler: extern "C" fn()) -> ThreadExit {
        ThreadExit {
            key: AtomicUsize::new(0),
            handler,
        }
    }

    /// Arms it for the calling thread. Where the process has no key left, threads keep their state until
    /// the process ends.
    pub fn arm(&'static self) {
        let mut key = self.key.load(Ordering::Acquire);
        if key == 0 {
            let mut fresh: libc::pthread_key_t = 0;
            // SAFETY: `fresh` is writable and the destructor stays mapped.
            let made = unsafe { libc::pthread_key_create(&mut fresh, Some(run_handler)) } == 0;
            let mine = if made { fresh as usize + 1 } else { usize::MAX };
            match self
                .key
                .compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => key = mine,
                Err(other) => {
                    if made {
                        // SAFETY: the key was just made here and used nowhere.
                        unsafe { libc::pthread_key_delete(fresh) };
                    }
                    key = other;
                }
            }
        }
        if key != usize::MAX {
            let this: *const ThreadExit = self;
            // SAFETY: the key is live; the value is only ever read back as this static.
            unsafe { libc::pthread_setspecific((key - 1) as libc::pthread_key_t, this.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe() -> (i32, i32) {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        (ends[0], ends[1])
    }

    #[test]
    fn a_bad_descriptor_is_named() {
        let error = SignalFd::dup(-7).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.to_string().contains("-7"), "{error}");
    }

    #[test]
    fn a_closed_reader_raises_no_sigpipe() {
        let (reader, writer) = pipe();
        // SAFETY: both ends are ours; SIGPIPE gets its deadly default back, which Rust's runtime had ignored.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            libc::close(reader);
        }
        SignalFd::dup(writer).unwrap().signal();
        // SAFETY: our own descriptor.
        unsafe { libc::close(writer) };
    }

    #[test]
    fn a_full_pipe_does_not_block() {
        let (reader, writer) = pipe();
        let block = [0u8; 4096];
        // SAFETY: our own descriptor, made non-blocking only while it is filled to the brim.
        unsafe {
            libc::fcntl(writer, libc::F_SETFL, libc::O_NONBLOCK);
            while libc::write(writer, block.as_ptr().cast(), block.len()) > 0 {}
            libc::fcntl(writer, libc::F_SETFL, 0);
        }
        SignalFd::dup(writer).unwrap().signal();
        // SAFETY: our own descriptors.
        unsafe {
            libc::close(reader);
            libc::close(writer);
        }
    }
}
