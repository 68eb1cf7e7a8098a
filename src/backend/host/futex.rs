//! The kernel's futex: sleeping on a word, and waking those who sleep on it.

use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// Sleeps while `word` is `expected`, until woken or `deadline`. May return for no reason: callers loop.
pub fn wait(word: &AtomicU32, expected: u32, deadline: Option<Instant>) {
    let mut spec = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let timeout: *const libc::timespec = match deadline {
        None => std::ptr::null(),
        Some(at) => {
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            spec.tv_sec = libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX);
            spec.tv_nsec = libc::c_long::from(left.subsec_nanos() as i32);
            &spec
        }
    };
    // SAFETY: `word` is a live, aligned 32-bit word, and `timeout` is null or points to a live timespec.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            expected,
            timeout,
            std::ptr::null::<u32>(),
            0u32,
        );
    }
}

fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: waking touches no memory; the word only names the sleepers.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count,
        );
    }
}

/// Wakes one sleeper.
pub fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all sleepers.
pub fn wake_all(word: &AtomicU32) {
    wake(word, i32::MAX);
}

/// When a wait of this patience ends; `None` is never.
pub fn deadline(patience: Option<Duration>) -> Option<Instant> {
    patience.and_then(|p| Instant::now().checked_add(p))
}
