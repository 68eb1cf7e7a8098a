//! The faults that the variable `HIP_SHIM_SCRIPT` asks for.
//!
//! Statements between semicolons:
//!
//! ```text
//! hipMalloc=2                            every call answers 2
//! hipMallocAsync:3=2                     the third call does
//! hipMallocAsync:3+=2                    the third one and all later ones do
//! hipMalloc:1=null                       the first call answers success and NULL
//! hipStreamSynchronize hangs             every call never returns (hipStreamSynchronize:2 hangs: the second)
//! hipFree:2 aborts                       the second call ends the process
//! device 1 faults after 10 launches      ten launches on it work; when a stream gets to the eleventh, the device fails
//! device 1 faults with 700 after 0 launches
//! device 1 faults silently after 0 launches   the same, and callbacks that are queued are never called
//! device 1 aborts after 10 launches      the process ends instead, as older runtimes do it
//! priorities 0 to -1                     the range of priorities that the devices have
//! ```

use crate::ffi::{hipErrorLaunchFailure, hipError_t};

/// What happens in a call instead of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Fail(hipError_t),
    /// The work is done, and NULL handed out.
    Null,
    Hang,
    Abort,
}

/// Calls of one function and what happens in them.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    function: String,
    first: u64,
    last: u64,
    action: Action,
}

/// How a device fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Later calls answer this code. `silent`: queued callbacks are never called.
    Reported {
        code: hipError_t,
        silent: bool,
    },
    Abort,
}

/// A device that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub device: u32,
    pub after: u64,
    pub form: Form,
}

/// What the variable says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Script {
    rules: Vec<Rule>,
    pub faults: Vec<Fault>,
    /// Least and greatest priority.
    pub priorities: Option<(i32, i32)>,
}

impl Script {
    /// Reads a script, or says which statement makes no sense.
    pub fn read(text: &str) -> Result<Script, String> {
        let mut script = Script::default();
        for statement in text.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            script
                .add(statement)
                .ok_or_else(|| format!("\"{statement}\" is no statement of a script"))?;
        }
        Ok(script)
    }

    fn add(&mut self, statement: &str) -> Option<()> {
        let words: Vec<&str> = statement.split_whitespace().collect();
        match words[..] {
            ["device", device, ref rest @ .., "after", after, "launches" | "launch"] => {
                let form = match *rest {
                    ["aborts"] => Form::Abort,
                    ["faults"] => reported(hipErrorLaunchFailure, false),
                    ["faults", "silently"] => reported(hipErrorLaunchFailure, true),
                    ["faults", "with", code] => reported(code.parse().ok()?, false),
                    _ => return None,
                };
                self.faults.push(Fault {
                    device: device.parse().ok()?,
                    after: after.parse().ok()?,
                    form,
                });
            }
            ["priorities", least, "to", greatest] => {
                self.priorities = Some((least.parse().ok()?, greatest.parse().ok()?));
            }
            [calls, "hangs"] => self.rule(calls, Action::Hang)?,
            [calls, "aborts"] => self.rule(calls, Action::Abort)?,
            _ => {
                let (calls, answer) = statement.split_once('=')?;
                let action = match answer.trim() {
                    "null" => Action::Null,
                    code => Action::Fail(code.parse().ok()?),
                };
                self.rule(calls.trim(), action)?;
            }
        }
        Some(())
    }

    /// `function`, `function:N` or `function:N+`.
    fn rule(&mut self, calls: &str, action: Action) -> Option<()> {
        let (function, first, last) = match calls.split_once(':') {
            None => (calls, 1, u64::MAX),
            Some((function, which)) => match which.strip_suffix('+') {
                Some(first) => (function, first.parse().ok()?, u64::MAX),
                None => {
                    let nth = which.parse().ok()?;
                    (function, nth, nth)
                }
            },
        };
        if !function.starts_with("hip") || first == 0 {
            return None;
        }
        self.rules.push(Rule {
            function: function.to_owned(),
            first,
            last,
            action,
        });
        Some(())
    }

    /// What happens in the `nth` call of a function, if it is not its work.
    pub fn action(&self, function: &str, nth: u64) -> Option<Action> {
        let fits = |rule: &&Rule| rule.function == function && (rule.first..=rule.last).contains(&nth);
        self.rules.iter().find(fits).map(|rule| rule.action)
    }

    /// The functions that the rules name.
    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.function.as_str())
    }
}

fn reported(code: hipError_t, silent: bool) -> Form {
    Form::Reported { code, silent }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_picked_by_number() {
        let script =
            Script::read("hipMalloc:3=2; hipFree=1;hipEventQuery:2+=700 ; hipMalloc:5=null").unwrap();
        let fails = |function, nth| script.action(function, nth);
        assert_eq!(fails("hipMalloc", 2), None);
        assert_eq!(fails("hipMalloc", 3), Some(Action::Fail(2)));
        assert_eq!(fails("hipMalloc", 4), None);
        assert_eq!(fails("hipMalloc", 5), Some(Action::Null));
        assert_eq!(fails("hipFree", 1), Some(Action::Fail(1)));
        assert_eq!(fails("hipEventQuery", 1), None);
        assert_eq!(fails("hipEventQuery", 9), Some(Action::Fail(700)));
        assert_eq!(fails("hipMallocAsync", 3), None);
    }

    #[test]
    fn sentences_are_understood() {
        let script = Script::read(
            "hipStreamSynchronize hangs; hipFree:2 aborts; device 1 faults after 10 launches; \
             device 2 faults with 700 after 0 launches; device 3 faults silently after 1 launch; \
             device 0 aborts after 4 launches; priorities 0 to -1",
        )
        .unwrap();
        assert_eq!(script.action("hipStreamSynchronize", 1), Some(Action::Hang));
        assert_eq!(script.action("hipFree", 1), None);
        assert_eq!(script.action("hipFree", 2), Some(Action::Abort));
        assert_eq!(script.priorities, Some((0, -1)));
        let forms: Vec<_> = script
            .faults
            .iter()
            .map(|f| (f.device, f.after, f.form))
            .collect();
        assert_eq!(
            forms,
            [
                (1, 10, reported(719, false)),
                (2, 0, reported(700, false)),
                (3, 1, reported(719, true)),
                (0, 4, Form::Abort)
            ]
        );
    }

    #[test]
    fn nonsense_is_named() {
        for text in [
            "hipMalloc",
            "hipMalloc=two",
            "hipMalloc:0=2",
            "hipMalloc:x=2",
            "malloc=2",
            "device 1 faults",
            "device x faults after 1 launches",
            "device 1 sleeps after 1 launches",
            "priorities 1",
        ] {
            let why = Script::read(&format!("hipFree=1; {text}")).unwrap_err();
            assert!(why.contains(text), "{why}");
        }
        assert_eq!(Script::read(" ; ").unwrap(), Script::default());
    }
}
