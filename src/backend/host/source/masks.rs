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
#[derive(Clone)]
pub(super) struct Jump {
    at: usize,
    code: u8,
    /// Others may come to a barrier before the thread is on again.
    ahead: bool,
    /// The variable that gets what is returned.
    value: Option<Range<usize>>,
}

impl Statement {
    pub(super) fn waits(&self) -> bool {
        !matches!(
            self,
            Statement::Plain(_) | Statement::Declare(_) | Statement::Once(_)
        )
    }
}

/// Where a jump stands.
#[derive(Clone, Default)]
pub(super) struct Inside {
    /// The loop with barriers around it, and whether there are barriers in the rest of its round.
    around: Option<(Place, bool)>,
    /// The function around it that is written out, its variable, and whether there are barriers in its rest.
    call: Option<(Place, Range<usize>, bool)>,
    /// It stands in a loop without barriers.
    in_loop: bool,
    /// It stands in a loop or switch without barriers.
    in_switch: bool,
}

impl Inside {
    /// With what follows a statement.
    fn before(&self, rest: &[Statement]) -> Inside {
        let waits = rest.iter().any(Statement::waits);
        let mut inside = self.clone();
        if let Some((_, ahead)) = &mut inside.around {
            *ahead |= waits;
        }
        if let Some((_, _, ahead)) = &mut inside.call {
            *ahead |= waits;
        }
        inside
    }
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
                Statement::Call { inner, place, .. } => {
                    *place = here;
                    self.place(inner, here.depth, later)?;
                }
                _ => {}
            }
        }
        (depth <= DEEPEST).then_some(())
    }

    /// The jumps of some statements; `None` if one is not understood.
    pub(super) fn jumps(&self, statements: &[Statement], inside: &Inside) -> Option<Vec<Jump>> {
        let mut found = Vec::new();
        for (at, statement) in statements.iter().enumerate() {
            let mut inside = inside.before(&statements[at + 1..]);
            match statement {
                Statement::Plain(range) => self.jumps_of(range.clone(), &inside, &mut found)?,
                Statement::Block(_, inner) => found.extend(self.jumps(inner, &inside)?),
                Statement::If { then, otherwise, .. } => {
                    for branch in std::iter::once(then).chain(otherwise) {
                        found.extend(self.jumps(std::slice::from_ref(branch), &inside)?);
                    }
                }
                Statement::Loop { body, place, .. } => {
                    inside.around = Some((*place, false));
                    if let Some((_, _, ahead)) = &mut inside.call {
                        *ahead = true;
                    }
                    found.extend(self.jumps(std::slice::from_ref(body), &inside)?);
                }
                Statement::Call {
                    value, inner, place, ..
                } => {
                    let inside = Inside {
                        call: Some((*place, value.clone(), false)),
                        ..Inside::default()
                    };
                    found.extend(self.jumps(inner, &inside)?);
                }
                Statement::Declare(_) | Statement::Once(_) | Statement::Barrier(_) => {}
            }
        }
        Some(found)
    }

    fn jumps_of(&self, range: Range<usize>, inside: &Inside, found: &mut Vec<Jump>) -> Option<()> {
        let mut at = range.start;
        while at < range.end {
            match self.text(at) {
                "return" => found.push(match &inside.call {
                    Some((place, value, ahead)) => Jump {
                        at,
                        code: place.out(),
                        ahead: *ahead,
                        value: Some(value.clone()),
                    },
                    // With a value it would be no kernel's.
                    None if self.text(at + 1) != ";" => return None,
                    None => Jump {
                        at,
                        code: GONE,
                        ahead: false,
                        value: None,
                    },
                }),
                "break" if !inside.in_switch => found.push(Jump {
                    at,
                    code: inside.around?.0.out(),
                    ahead: true,
                    value: None,
                }),
                "continue" if !inside.in_loop => found.push(Jump {
                    at,
                    code: inside.around?.0.next_round(),
                    ahead: inside.around?.1,
                    value: None,
                }),
                word @ ("for" | "while" | "do" | "switch") => {
                    let (_, next) = self.bare_statement(at, range.end)?;
                    let inner = Inside {
                        in_loop: inside.in_loop || word != "switch",
                        in_switch: true,
                        ..inside.clone()
                    };
                    self.jumps_of(at + 1..next, &inner, found)?;
                    at = next;
                    continue;
                }
                _ => at = self.behind_own(at, range.end),
            }
            at += 1;
        }
        Some(())
    }

    /// The tokens `return` of a function's body.
    pub(super) fn returns(&self, range: Range<usize>) -> Vec<usize> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            if self.text(at) == "return" {
                found.push(at);
            }
            at = self.behind_own(at, range.end) + 1;
        }
        found
    }

    /// The last token of a lambda or class that begins at `at`, else `at`: what it has inside belongs to functions of its own.
    fn behind_own(&self, at: usize, end: usize) -> usize {
        match self.text(at) {
            "[" if !self.is_subscript(at) => self.behind_lambda(at, end),
            "struct" | "class" | "union" => self.behind_class(at, end),
            _ => at,
        }
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
            let leave = format!("taskgpu_mask.leave(taskgpu_lane, {})", jump.code);
            let span = self.source.span(jump.at);
            match jump.value.as_ref().filter(|value| !value.is_empty()) {
                Some(value) => {
                    let end = self.end_of_simple(jump.at);
                    edits.replace(span, format!("return (void)({} = ", self.text(value.start)));
                    edits.insert(self.source.span(end).start, format!("), {leave}"));
                }
                None => edits.replace(span, format!("return {leave}")),
            }
        }
        edits
    }

    /// The semicolon of a statement.
    fn end_of_simple(&self, at: usize) -> usize {
        self.split_at(at..self.body.end, ";")[0].end
    }

    /// Where variables are declared.
    pub(super) fn declared(&self, range: Range<usize>) -> Vec<usize> {
        let mut found = Vec::new();
        for at in range.clone() {
            let before = self.text(at - 1);
            let head =
                before == "(" && ["for", "if", "while", "switch"].contains(&self.text(at.saturating_sub(2)));
            let begins = at == range.start
                || head
                || ["{", "}", ";", ")", "else"].contains(&before)
                || self.source.tokens[at - 1].kind == Kind::Directive;
            if !begins {
                continue;
            }
            let mut end = at;
            while end < range.end && ![";", ":", ")", "}"].contains(&self.text(end)) {
                if ["(", "[", "{"].contains(&self.text(end)) {
                    end = self.source.closing(end);
                }
                end += 1;
            }
            if let Some(declaration) = self.declaration(at..end + 1) {
                found.extend(declaration.variables.iter().map(|v| v.name));
            }
        }
        found
    }

    /// Whether there are jumps among some tokens.
    pub(super) fn has_jumps(&self, range: Range<usize>) -> bool {
        self.jumps.iter().any(|jump| range.contains(&jump.at))
    }

    /// Whether it is known that only some threads take a jump of a statement, and then have to be where others are.
    pub(super) fn parts_threads(&self, range: Range<usize>, seen: &[Seen]) -> bool {
        let meets = |jump: &Jump| range.contains(&jump.at) && jump.code & MEETS != 0 && jump.ahead;
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
