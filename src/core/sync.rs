//! Waiting: the one place that polls, sleeps and counts the time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::backend::{Patience, Result};

use super::registry;
use super::stream;
use super::task;

/// How a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum WaitPolicy {
    /// Poll as long as it pays, then sleep.
    #[default]
    Auto = 0,
    /// Poll to the end: the lowest latency, a whole core.
    Spin = 1,
    /// Sleep at once.
    Block = 2,
}

impl WaitPolicy {
    /// The policy with this number of the ABI.
    pub fn from_code(code: i32) -> Option<WaitPolicy> {
        [WaitPolicy::Auto, WaitPolicy::Spin, WaitPolicy::Block]
            .into_iter()
            .find(|policy| *policy as i32 == code)
    }
}

/// Sets how the calling task waits.
pub fn policy_set(policy: WaitPolicy) -> Result<()> {
    task::here()?.set_wait_policy(policy);
    Ok(())
}

/// How the calling task waits.
pub fn policy() -> Result<WaitPolicy> {
    Ok(task::here()?.wait_policy())
}

/// Waits for the current stream of the calling task.
pub fn synchronize() -> Result<()> {
    stream::synchronize(super::handle::StreamHandle::NULL, None).map(|_| ())
}

/// The least time AUTO polls, so that work that is nearly done does not cost a sleep.
const GLANCE: Duration = Duration::from_micros(5);
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 32;

/// What the waits for one thing have been like: a running mean, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Predictor {
    mean: AtomicU64,
}

impl Predictor {
    /// How long to poll in the next wait: to the end, if it is likely to be `worth` that, else for a glance.
    fn polling(&self, worth: Duration) -> Duration {
        match Duration::from_nanos(self.mean.load(Ordering::Relaxed)) {
            mean if mean <= worth => worth,
            _ => GLANCE,
        }
    }

    /// Learns from a wait. Halves the weight of the past, so that four waits change its mind.
    fn learn(&self, waited: Duration) {
        let waited = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX).min(1 << 60);
        let mean = self.mean.load(Ordering::Relaxed);
        self.mean.store(mean / 2 + waited / 2, Ordering::Relaxed);
    }
}

/// Something that is waited for.
pub(crate) trait Awaited {
    /// True once it has happened. Cheap enough to call in a loop.
    fn reached(&mut self) -> Result<bool>;
    /// The same, asked up to `times` times in a row.
    fn poll(&mut self, times: u32) -> Result<bool> {
        for _ in 0..times {
            if self.reached()? {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        Ok(false)
    }
    /// Up to which length polling beats sleeping.
    fn worth_polling(&self) -> Duration;
    /// Sleeps until it has happened (`true`) or the patience is over (`false`).
    fn block(&mut self, patience: Patience) -> Result<bool>;
}

/// Waits until `awaited` has happened (`true`) or `patience` is over (`false`). Holds no lock.
pub(crate) fn wait(
    awaited: &mut impl Awaited,
    policy: WaitPolicy,
    predictor: &Predictor,
    patience: Patience,
) -> Result<bool> {
    if awaited.reached()? {
        return Ok(true);
    }
    let start = Instant::now();
    let polling = match policy {
        WaitPolicy::Auto => Some(predictor.polling(awaited.worth_polling())),
        WaitPolicy::Spin => None,
        WaitPolicy::Block => Some(Duration::ZERO),
    };
    let done = poll_then_block(awaited, start, polling, patience)?;
    if done && policy == WaitPolicy::Auto {
        predictor.learn(start.elapsed());
    }
    Ok(done)
}

/// Polls for `polling` (`None`: to the end), then blocks.
fn poll_then_block(
    awaited: &mut impl Awaited,
    start: Instant,
    polling: Option<Duration>,
    patience: Patience,
) -> Result<bool> {
    let scarce = registry::present().is_some_and(|runtime| runtime.scarce_cores);
    if polling != Some(Duration::ZERO) {
        loop {
            if awaited.poll(POLLS_PER_LOOK)? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if patience.is_some_and(|patience| waited >= patience) {
                return Ok(false);
            }
            if polling.is_some_and(|polling| waited >= polling) {
                break;
            }
            if scarce {
                std::thread::yield_now();
            }
        }
    }
    awaited.block(patience.map(|patience| patience.saturating_sub(start.elapsed())))
}

/// Runs a vendor's own blocking wait and remembers how long it took.
pub(crate) fn timed<T>(predictor: &Predictor, wait: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = wait();
    predictor.learn(start.elapsed());
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORTH: Duration = Duration::from_micros(100);

    /// Happens at the `polls`-th look, or when blocked on.
    struct After {
        polls: u32,
        blocked: u32,
    }

    impl Awaited for After {
        fn reached(&mut self) -> Result<bool> {
            self.polls = self.polls.saturating_sub(1);
            Ok(self.polls == 0)
        }

        fn block(&mut self, patience: Patience) -> Result<bool> {
            self.blocked += 1;
            Ok(patience != Some(Duration::ZERO))
        }

        fn worth_polling(&self) -> Duration {
            WORTH
        }
    }

    #[test]
    fn spin_never_sleeps_and_block_never_polls() {
        let predictor = Predictor::default();
        let mut spun = After {
            polls: 1_000_000,
            blocked: 0,
        };
        assert!(wait(&mut spun, WaitPolicy::Spin, &predictor, None).unwrap());
        assert_eq!(spun.blocked, 0);
        let mut slept = After {
            polls: u32::MAX,
            blocked: 0,
        };
        assert!(wait(&mut slept, WaitPolicy::Block, &predictor, None).unwrap());
        assert_eq!((slept.blocked, slept.polls), (1, u32::MAX - 1));
    }

    #[test]
    fn auto_glances_only_after_long_waits_and_polls_again_after_short_ones() {
        let predictor = Predictor::default();
        assert_eq!(predictor.polling(WORTH), WORTH);
        predictor.learn(Duration::from_millis(10));
        assert_eq!(predictor.polling(WORTH), GLANCE);
        for _ in 0..10 {
            predictor.learn(Duration::from_micros(1));
        }
        assert_eq!(predictor.polling(WORTH), WORTH);
    }

    #[test]
    fn a_timeout_ends_every_policy() {
        for policy in [WaitPolicy::Auto, WaitPolicy::Spin, WaitPolicy::Block] {
            let mut never = After {
                polls: u32::MAX,
                blocked: 0,
            };
            let patience = Some(Duration::ZERO);
            assert!(!wait(&mut never, policy, &Predictor::default(), patience).unwrap());
        }
    }
}
