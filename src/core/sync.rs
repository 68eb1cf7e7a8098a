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

/// AUTO sleeps if that makes a wait longer by no more than one part in this many. What sleeping costs is the backend's to
/// say: it takes ten times as long to be woken by a GPU's driver as by a thread of this process.
const WORTH_A_SLEEP: u32 = 50;
/// AUTO polls at least this many times what a sleep costs: work that is nearly done shall not pay for one.
const GLANCE: u32 = 2;
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 32;

/// What the waits for one thing have been like: a running mean, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Predictor {
    mean: AtomicU64,
}

impl Predictor {
    /// How long the next wait polls before it sleeps. Of a wait that is expected to be short, all: up to the length from
    /// which on a sleep hardly makes it longer. Of a long one no more than a glance: the processor is worth more then.
    fn polling(&self, sleep_cost: Duration) -> Duration {
        let short = sleep_cost * WORTH_A_SLEEP;
        match Duration::from_nanos(self.mean.load(Ordering::Relaxed)) {
            mean if mean <= short => short,
            _ => sleep_cost * GLANCE,
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
    /// Looks up to `polls` times in a row; true once it has happened.
    fn poll(&mut self, polls: u32) -> Result<bool>;
    /// Sleeps until it has happened (`true`) or the patience is over (`false`).
    fn block(&mut self, patience: Patience) -> Result<bool>;
}

/// Waits until `awaited` has happened (`true`) or `patience` is over (`false`). Holds no lock.
pub(crate) fn wait(
    awaited: &mut impl Awaited,
    policy: WaitPolicy,
    predictor: &Predictor,
    sleep_cost: Duration,
    patience: Patience,
) -> Result<bool> {
    if awaited.poll(1)? {
        return Ok(true);
    }
    let start = Instant::now();
    let polling = match policy {
        WaitPolicy::Auto => Some(predictor.polling(sleep_cost)),
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

    /// Happens at the `looks`-th look, or when blocked on.
    struct After {
        looks: u32,
        blocked: u32,
    }

    impl Awaited for After {
        fn poll(&mut self, polls: u32) -> Result<bool> {
            self.looks = self.looks.saturating_sub(polls);
            Ok(self.looks == 0)
        }

        fn block(&mut self, patience: Patience) -> Result<bool> {
            self.blocked += 1;
            Ok(patience != Some(Duration::ZERO))
        }
    }

    const COST: Duration = Duration::from_micros(3);
    const SHORT: Duration = Duration::from_micros(150);
    const LOOK: Duration = Duration::from_micros(6);

    #[test]
    fn spin_never_sleeps_and_block_never_polls() {
        let predictor = Predictor::default();
        let mut spun = After {
            looks: 1_000_000,
            blocked: 0,
        };
        assert!(wait(&mut spun, WaitPolicy::Spin, &predictor, COST, None).unwrap());
        assert_eq!(spun.blocked, 0);
        let mut slept = After {
            looks: u32::MAX,
            blocked: 0,
        };
        assert!(wait(&mut slept, WaitPolicy::Block, &predictor, COST, None).unwrap());
        assert_eq!((slept.blocked, slept.looks), (1, u32::MAX - 1));
    }

    #[test]
    fn auto_glances_only_after_long_waits_and_polls_again_after_short_ones() {
        let predictor = Predictor::default();
        assert_eq!(predictor.polling(COST), SHORT);
        predictor.learn(Duration::from_millis(10));
        assert_eq!(predictor.polling(COST), LOOK);
        for _ in 0..10 {
            predictor.learn(Duration::from_micros(1));
        }
        assert_eq!(predictor.polling(COST), SHORT);
    }

    #[test]
    fn auto_polls_where_a_sleep_would_show_and_sleeps_where_it_would_not() {
        // Whatever a sleep costs, steady waits that are polled to their end are those that it would lengthen by more than
        // one part in fifty.
        for cost in [1u64, 2, 20, 300].map(Duration::from_micros) {
            for parts in [1, 10, 40, 49, 51, 100, 1000] {
                let predictor = Predictor::default();
                (0..20).for_each(|_| predictor.learn(cost * parts));
                let polled_to_the_end = predictor.polling(cost) >= cost * parts;
                assert_eq!(polled_to_the_end, parts < WORTH_A_SLEEP, "{parts} times {cost:?}");
            }
        }
    }

    #[test]
    fn a_mix_of_short_waits_is_polled_to_the_end() {
        let predictor = Predictor::default();
        let cost = Duration::from_micros(20);
        for i in 0..1000u64 {
            let wait = Duration::from_micros(20 + i * 7919 % 980);
            assert!(predictor.polling(cost) >= wait, "wait {i} of {wait:?} sleeps");
            predictor.learn(wait);
        }
    }

    #[test]
    fn a_timeout_ends_every_policy() {
        for policy in [WaitPolicy::Auto, WaitPolicy::Spin, WaitPolicy::Block] {
            let mut never = After {
                looks: u32::MAX,
                blocked: 0,
            };
            let patience = Some(Duration::ZERO);
            assert!(!wait(&mut never, policy, &Predictor::default(), COST, patience).unwrap());
        }
    }
}
