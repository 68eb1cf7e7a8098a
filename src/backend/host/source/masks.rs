//! Threads that do not take the way of the others: those that return before a barrier, go out of a loop that has
//! barriers, or do not meet a condition that has barriers behind it.
//!
//! A block then has a *mask* (`taskgpu::mask`): for each thread 0 while it runs, else a code that says why it is off.
//! A loop over the threads leaves out those that are off, and each statement with barriers takes back those that were off
//! for its sake when it ends. As long as no thread is off, the loops do not look.
//!
//! That is what the kernel means if no thread that is off has to be at a barrier where others are. One that has returned
//! has not, and one that meets no barrier behind the statement it has left neither: to the others at the barrier it
//! is as if it had ended. Any other one has to: a kernel that is right has none, since a barrier is one for all threads
//! of a block that have not ended. Their codes have the bit [`MEETS`], so that they are found at the barrier. Where it can
//! be told beforehand that threads differ so, the kernel is left to coroutines.

use super::regions::{Seen, Splitter, Statement};
use super::rewrite::Edits;
use super::scan::Kind;
use std::ops::Range;

/// The code of a thread that has returned.
const GONE: u8 = 1;
/// Of a code: whoever is off so comes to a barrier later.
const MEETS: u8 = 0x80;
/// The deepest nesting that has codes.
const DEEPEST: u8 = 30;

/// Where a statement with barriers stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// How many statements of loops and conditions with barriers it stands in, itself counted.
    depth: u8,
    /// Whether a barrier may follow when it has ended.
    pub(super) later: bool,
}

impl Place {
    fn code(self, what: u8, meets: bool) -> u8 {
        self.depth * 4 + what + if meets { MEETS } else { 0 }
    }

    /// Off until the loop's next round.
    pub(super) fn next_round(self) -> u8 {
        self.code(0, true)
    }

    /// Off until the loop has ended.
    pub(super) fn out(self) -> u8 {
        self.code(1, self.later)
    }

    /// Off while the others do what a condition has for those that meet it. `waits`: the else-branch has barriers.
    pub(super) fn unmet(self, waits: bool) -> u8 {
        self.code(2, self.later || waits)
    }

    /// Off while the others do what it has for those that do not.
    pub(super) fn met(self) -> u8 {
        self.code(3, self.later)
    }
}

/// A way out of a statement without barriers, past others with barriers.
#[derive(Clone, Copy)]
pub(super) struct Jump {
    at: usize,
    code: u8,
}

impl Statement {
    pub(super) fn waits(&self) -> bool {
        !matches!(
            self,
            Statement::Plain(_) | Statement::Declare(_) | Statement::Once(_)
        )
    }
}

/// What a `break` or `continue` belongs to, while a statement without barriers is looked through.
#[derive(Clone, Copy)]
struct Inside {
    /// The loop with barriers around it.
    around: Option<Place>,
    /// It stands in a loop of its own.
    in_loop: bool,
    /// It stands in a loop or switch of its own.
    in_switch: bool,
}

impl Splitter<'_> {
    /// Fills in where each statement stands. `None` if they are nested too deeply.
    pub(super) fn place(&self, statements: &mut [Statement], depth: u8, later: bool) -> Option<()> {
        for at in 0..statements.len() {
            let (before, rest) = statements.split_at_mut(at + 1);
            let later = later || rest.iter().any(Statement::waits);
            let here = Place {
                depth: depth + 1,
                later,
            };
            match &mut before[at] {
                Statement::Block(_, inner) => self.place(inner, depth, later)?,
                Statement::If {
                    then,
                    otherwise,
                    place,
                    ..
                } => {
                    *place = here;
                    self.place(std::slice::from_mut(then), here.depth, later)?;
                    if let Some(otherwise) = otherwise {
                        self.place(std::slice::from_mut(otherwise), here.depth, later)?;
                    }
                }
                Statement::Loop { body, place, .. } => {
                    *place = here;
                    // Behind its last barrier is its first.
                    self.place(std::slice::from_mut(body), here.depth, true)?;
                }
                _ => {}
            }
        }
        (depth <= DEEPEST).then_some(())
    }

    /// The jumps of some statements; `None` if one is not understood.
    pub(super) fn jumps(&self, statements: &[Statement], around: Option<Place>) -> Option<Vec<Jump>> {
        let mut found = Vec::new();
        for statement in statements {
            match statement {
                Statement::Plain(range) => {
                    let inside = Inside {
                        around,
                        in_loop: false,
                        in_switch: false,
                    };
                    self.jumps_of(range.clone(), inside, &mut found)?;
                }
                Statement::Block(_, inner) => found.extend(self.jumps(inner, around)?),
                Statement::If { then, otherwise, .. } => {
                    for branch in std::iter::once(then).chain(otherwise) {
                        found.extend(self.jumps(std::slice::from_ref(branch), around)?);
                    }
                }
                Statement::Loop { body, place, .. } => {
                    found.extend(self.jumps(std::slice::from_ref(body), Some(*place))?);
                }
                Statement::Declare(_) | Statement::Once(_) | Statement::Barrier(_) => {}
            }
        }
        Some(found)
    }

    fn jumps_of(&self, range: Range<usize>, inside: Inside, found: &mut Vec<Jump>) -> Option<()> {
        let mut at = range.start;
        while at < range.end {
            match self.text(at) {
                "return" => {
                    // With a value it would be a function's.
                    if self.text(at + 1) != ";" {
                        return None;
                    }
                    found.push(Jump { at, code: GONE });
                }
                "break" if !inside.in_switch => found.push(Jump {
                    at,
                    code: inside.around?.out(),
                }),
                "continue" if !inside.in_loop => found.push(Jump {
                    at,
                    code: inside.around?.next_round(),
                }),
                word @ ("for" | "while" | "do" | "switch") => {
                    let (_, next) = self.bare_statement(at, range.end)?;
                    let inner = Inside {
                        in_loop: inside.in_loop || word != "switch",
                        in_switch: true,
                        ..inside
                    };
                    self.jumps_of(at + 1..next, inner, found)?;
                    at = next;
                    continue;
                }
                // What a function of its own has inside is not the kernel's.
                "[" if !self.is_subscript(at) => at = self.behind_lambda(at, range.end),
                "struct" | "class" | "union" => at = self.behind_class(at, range.end),
                _ => {}
            }
            at += 1;
        }
        Some(())
    }

    /// Whether a bracket follows what has elements.
    fn is_subscript(&self, at: usize) -> bool {
        at.checked_sub(1).is_some_and(|before| {
            [")", "]"].contains(&self.text(before))
                || (matches!(self.source.tokens[before].kind, Kind::Word | Kind::Literal)
                    && !["return", "case", "else", "do"].contains(&self.text(before)))
        })
    }

    /// The last token of a lambda that begins at `at`; that of the bracket if it is something else.
    fn behind_lambda(&self, at: usize, end: usize) -> usize {
        let close = self.source.closing(at);
        let mut i = close + 1;
        while i < end {
            match self.text(i) {
                "(" => i = self.source.closing(i),
                "{" => return self.source.closing(i),
                ";" | "," | ")" | "}" => break,
                _ => {}
            }
            i += 1;
        }
        close
    }

    /// The last token of a class that is defined at `at`, or `at`.
    fn behind_class(&self, at: usize, end: usize) -> usize {
        let stop = (at..end).find(|&i| ["{", ";", "(", "=", ",", ")"].contains(&self.text(i)));
        match stop {
            Some(i) if self.text(i) == "{" => self.source.closing(i),
            _ => at,
        }
    }

    /// The text with each jump as an end of a thread's part in a loop over the threads.
    pub(super) fn with_jumps<'e>(&self, edits: &Edits<'e>) -> Edits<'e> {
        let mut edits = edits.clone();
        for jump in &self.jumps {
            edits.replace(
                self.source.span(jump.at),
                format!("return taskgpu_mask.leave(taskgpu_lane, {})", jump.code),
            );
        }
        edits
    }

    /// Whether there are jumps among some tokens.
    pub(super) fn has_jumps(&self, range: Range<usize>) -> bool {
        self.jumps.iter().any(|jump| range.contains(&jump.at))
    }

    /// Whether it is known that only some threads take a jump of a statement, and then have to be where others are.
    pub(super) fn parts_threads(&self, range: Range<usize>, seen: &[Seen]) -> bool {
        let meets = |jump: &Jump| range.contains(&jump.at) && jump.code & MEETS != 0;
        let differs = |at: usize| {
            let text = self.text(at);
            let of_thread = match seen.iter().rev().find(|s| s.name() == text) {
                Some(Seen::Again(_, _, same)) => !same,
                _ => false,
            };
            text == "threadIdx" || of_thread
        };
        self.jumps.iter().any(meets) && range.clone().any(differs)
    }

    /// Whether a return stands where others may still come to a barrier. `statements` are all there are.
    pub(super) fn leaves_early(&self, statements: &[Statement]) -> bool {
        let last = statements.iter().rposition(Statement::waits);
        let tail = last.and_then(|at| self.start(statements.get(at + 1)));
        self.jumps
            .iter()
            .any(|jump| jump.code != GONE || tail.is_none_or(|tail| jump.at < tail))
    }
}
