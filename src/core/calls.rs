//! Calls in progress.
//!
//! A launch takes what it needs from the slots of its handles and counts no references: atomic operations of that kind
//! would be most of what a launch costs above the vendor's. Instead its thread says that it is inside a call, by a plain
//! store to a word of its own, and whoever is about to destroy a native object whose handle has ended first waits until
//! the calls have ended that were in progress then. This is known as read-copy-update with quiescent states.
//!
//! Why it is right: the thread says so first and looks at the handle second. The other side ends the handle first, then
//! puts a barrier into every thread of the process, then looks at the words. Either the thread's store came before the
//! barrier and is seen, or its look at the handle comes after the barrier and finds the handle ended.

use std::sync::atomic::{compiler_fence, fence, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use crate::backend::os;

/// A thread's word, which is kept on a cache line of its own.
#[derive(Debug)]
pub(crate) struct Mark {
    /// Odd inside a call.
    count: AtomicU64,
    /// The system puts no barriers into other threads, so that every call makes one itself.
    fences: bool,
}

/// Every mark ever made. A thread that ends leaves its mark to a later one.
static MARKS: Mutex<Vec<&'static Mark>> = Mutex::new(Vec::new());
static UNUSED: Mutex<Vec<&'static Mark>> = Mutex::new(Vec::new());

/// True where the system can put a barrier into every thread. Asked once, before the first mark.
fn barriers() -> bool {
    static BARRIERS: OnceCell<bool> = OnceCell::new();
    *BARRIERS.get_or_init(os::barriers_register)
}

impl Mark {
    /// For a thread that makes its first call.
    pub(crate) fn take() -> &'static Mark {
        let unused = UNUSED.lock().pop();
        unused.unwrap_or_else(|| {
            let mark: &Mark = Box::leak(Box::new(CachePadded::new(Mark {
                count: AtomicU64::new(0),
                fences: !barriers(),
            })));
            MARKS.lock().push(mark);
            mark
        })
    }

    /// For a thread that ends.
    pub(crate) fn give_back(&'static self) {
        UNUSED.lock().push(self);
    }

    /// Says that the calling thread, whose mark this is, is inside a call until the answer is dropped.
    #[inline]
    pub(crate) fn enter(&'static self) -> Call {
        let count = self.count.load(Ordering::Relaxed);
        if count & 1 != 0 {
            // A vendor's tool calls back in the middle of a launch, and its caller launches.
            return Call(None);
        }
        self.count.store(count + 1, Ordering::Relaxed);
        match self.fences {
            false => compiler_fence(Ordering::SeqCst),
            true => fence(Ordering::SeqCst),
        }
        Call(Some(self))
    }
}

/// A call in progress: native objects whose handles are found valid during it live until it ends.
#[derive(Debug)]
pub(crate) struct Call(Option<&'static Mark>);

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if let Some(mark) = self.0 {
            let count = mark.count.load(Ordering::Relaxed);
            mark.count.store(count + 1, Ordering::Release);
        }
    }
}

/// The calls that were in progress at one moment.
#[derive(Debug)]
pub(crate) struct Earlier(Vec<(&'static Mark, u64)>);

impl Earlier {
    /// Those in progress now. Handles that ended before are valid in none that begins later.
    pub(crate) fn now() -> Earlier {
        match barriers() {
            true => os::barrier_everywhere(),
            false => fence(Ordering::SeqCst),
        }
        let marks = MARKS.lock();
        Earlier(
            marks
                .iter()
                .map(|mark| (*mark, mark.count.load(Ordering::Acquire)))
                .filter(|(_, count)| count & 1 != 0)
                .collect(),
        )
    }

    /// True when all of them have ended.
    pub(crate) fn over(&mut self) -> bool {
        self.0
            .retain(|(mark, count)| mark.count.load(Ordering::Acquire) == *count);
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn who_looks_waits_for_the_call_in_progress_and_for_no_later_one() {
        let mark = Mark::take();
        let call = mark.enter();
        let inner = mark.enter();
        let of_mine = |earlier: &Earlier| earlier.0.iter().any(|(other, _)| std::ptr::eq(*other, mark));
        let mut earlier = Earlier::now();
        assert!(of_mine(&earlier));
        drop(inner);
        assert!(!earlier.over(), "the inner call ended the outer one");
        drop(call);
        let later = mark.enter();
        earlier.over();
        assert!(!of_mine(&earlier));
        drop(later);
        assert!(!of_mine(&Earlier::now()));
        mark.give_back();
    }

    #[test]
    fn nothing_is_taken_apart_under_a_call_that_found_it() {
        // A stand-in for a handle and its native object: the object is "destroyed" by writing 0 after the grace.
        static HANDLE: AtomicU64 = AtomicU64::new(1);
        static OBJECT: AtomicU64 = AtomicU64::new(1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mark = Mark::take();
                    while !stop.load(Ordering::Relaxed) {
                        let call = mark.enter();
                        let handle = HANDLE.load(Ordering::Acquire);
                        for round in 0..if handle == 0 { 0 } else { 200 } {
                            assert!(OBJECT.load(Ordering::Relaxed) >= handle, "destroyed in use");
                            if round == 100 {
                                std::thread::yield_now();
                            }
                        }
                        drop(call);
                    }
                    mark.give_back();
                });
            }
            for generation in 2..5_000 {
                HANDLE.store(0, Ordering::Release);
                let mut earlier = Earlier::now();
                while !earlier.over() {
                    std::thread::yield_now();
                }
                OBJECT.store(0, Ordering::Relaxed);
                std::thread::yield_now();
                OBJECT.store(generation, Ordering::Relaxed);
                HANDLE.store(generation, Ordering::Release);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
