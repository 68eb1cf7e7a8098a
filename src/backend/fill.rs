//! How a pattern is written with the fills that vendors have: 1, 2 and 4 bytes, contiguous or at a stride.
//!
//! A pattern of 8 or 16 bytes, or one at an address its size does not divide, is written lane by lane at the
//! stride of the pattern (no buffer is needed whose lifetime somebody would have to mind), at most up to a
//! seed; copies that double the written part do the rest at the speed of the memory.

use super::{Error, Result, Status};

/// One vendor call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `elements` elements of `width` bytes, contiguous.
    Linear { width: u8, value: u32, elements: u64 },
    /// `rows` elements of `width` bytes, `pitch` bytes apart, from `offset` on.
    Lane {
        width: u8,
        value: u32,
        offset: u64,
        pitch: u64,
        rows: u64,
    },
    /// The first `bytes` bytes are copied to `to`.
    Copy { to: u64, bytes: u64 },
}

/// What has to be called for a fill. Steps run in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    One(Step),
    Many(Vec<Step>),
}

/// The smallest power of two bytes after which the pattern repeats.
fn period(pattern: &[u8]) -> usize {
    let mut p = 1;
    while p < pattern.len() && !pattern.chunks(p).all(|c| c == &pattern[..p]) {
        p *= 2;
    }
    p
}

fn value(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |v, &b| (v << 8) | u32::from(b))
}

/// Refuses what cannot be planned.
pub(super) fn check(dst: u64, pattern: &[u8], count: u64) -> Result<()> {
    if !matches!(pattern.len(), 1 | 2 | 4 | 8 | 16) {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "a pattern of {} bytes; it may have 1, 2, 4, 8 or 16",
                pattern.len()
            ),
        ));
    }
    let end = (pattern.len() as u64)
        .checked_mul(count)
        .and_then(|n| dst.checked_add(n));
    if end.is_none() {
        return Err(Error::new(
            Status::InvalidArgument,
            format!(
                "{count} patterns of {} bytes reach past the end of all memory",
                pattern.len()
            ),
        ));
    }
    Ok(())
}

/// Plans a fill of `count` patterns at address `dst` that [`check`] has let pass; `count` is not 0. Lanes write `seed`
/// bytes at most, and one pattern at least: from there on copies are faster.
pub(super) fn plan(dst: u64, pattern: &[u8], count: u64, seed: u64) -> Plan {
    let total = pattern.len() as u64 * count;
    let p = period(pattern);
    let pitch = p as u64;
    if p <= 4 && dst % pitch == 0 {
        return Plan::One(Step::Linear {
            width: p as u8,
            value: value(&pattern[..p]),
            elements: total / pitch,
        });
    }
    let width = [4, 2, 1]
        .into_iter()
        .find(|&w| dst % w as u64 == 0 && p % w == 0)
        .unwrap_or(1);
    let rows = (total / pitch).min((seed / pitch).max(1));
    let mut steps: Vec<Step> = (0..p)
        .step_by(width)
        .map(|at| Step::Lane {
            width: width as u8,
            value: value(&pattern[at..at + width]),
            offset: at as u64,
            pitch,
            rows,
        })
        .collect();
    let mut done = rows * pitch;
    while done < total {
        let bytes = done.min(total - done);
        steps.push(Step::Copy { to: done, bytes });
        done += bytes;
    }
    Plan::Many(steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEED: u64 = 256 * 1024;

    /// Carries a plan out on ordinary memory.
    fn run(dst: u64, plan: &Plan, memory: &mut [u8]) {
        let steps = match plan {
            Plan::One(s) => std::slice::from_ref(s),
            Plan::Many(v) => v,
        };
        for step in steps {
            match *step {
                Step::Linear {
                    width,
                    value,
                    elements,
                } => {
                    assert_eq!(
                        dst % u64::from(width),
                        0,
                        "the driver refuses a misaligned address"
                    );
                    for i in 0..elements as usize {
                        let w = usize::from(width);
                        memory[i * w..i * w + w].copy_from_slice(&value.to_le_bytes()[..w]);
                    }
                }
                Step::Lane {
                    width,
                    value,
                    offset,
                    pitch,
                    rows,
                } => {
                    assert_eq!((dst + offset) % u64::from(width), 0);
                    assert_eq!(pitch % u64::from(width), 0);
                    for i in 0..rows {
                        let (at, w) = ((offset + i * pitch) as usize, usize::from(width));
                        memory[at..at + w].copy_from_slice(&value.to_le_bytes()[..w]);
                    }
                }
                Step::Copy { to, bytes } => {
                    assert!(to >= bytes, "source and destination overlap");
                    memory.copy_within(0..bytes as usize, to as usize);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_plan_writes_the_pattern_and_nothing_else(
            log in 0usize..5, bytes in prop::array::uniform16(0u8..3), align in 0u64..16, count in 1u64..40_000,
            seed in prop::sample::select(&[0, SEED][..]),
        ) {
            let pattern = &bytes[..1 << log];
            let total = pattern.len() * count as usize;
            let mut memory = vec![0xEE; total + 64];
            run(0x1000 + align, &plan(0x1000 + align, pattern, count, seed), &mut memory);
            for (i, chunk) in memory[..total].chunks(pattern.len()).enumerate() {
                prop_assert_eq!(chunk, pattern, "pattern {}", i);
            }
            prop_assert!(memory[total..].iter().all(|&b| b == 0xEE), "written past the end");
        }
    }

    #[test]
    fn patterns_that_repeat_cost_one_call() {
        assert_eq!(
            plan(0x100, &[7; 16], 3, SEED),
            Plan::One(Step::Linear {
                width: 1,
                value: 7,
                elements: 48
            })
        );
        assert_eq!(
            plan(0x100, &[1, 2, 1, 2], 3, SEED),
            Plan::One(Step::Linear {
                width: 2,
                value: 0x0201,
                elements: 6
            })
        );
    }

    #[test]
    fn sixteen_bytes_aligned_cost_four_lanes() {
        let pattern: Vec<u8> = (0..16).collect();
        match plan(0x100, &pattern, 5, SEED) {
            Plan::Many(steps) => {
                assert_eq!(steps.len(), 4);
                assert_eq!(
                    steps[1],
                    Step::Lane {
                        width: 4,
                        value: 0x07060504,
                        offset: 4,
                        pitch: 16,
                        rows: 5
                    }
                );
            }
            one => panic!("{one:?}"),
        }
    }

    #[test]
    fn a_huge_fill_takes_few_calls() {
        let pattern: Vec<u8> = (0..16).collect();
        for (seed, most) in [(SEED, 32), (0, 48)] {
            match plan(0x100, &pattern, (140 << 30) / 16, seed) {
                Plan::Many(steps) => assert!(steps.len() < most, "{}", steps.len()),
                one => panic!("{one:?}"),
            }
        }
    }
}
