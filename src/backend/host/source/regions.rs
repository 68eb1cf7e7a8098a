//! Kernels with barriers, as loops over the threads between one barrier and the next.
//!
//! What lies between two barriers becomes a *region*: a loop over the threads of the block, of which compilers make
//! vector instructions. A variable that is used in more than one region gets a place for each thread (a *lane*), unless
//! it can be computed again where it is needed, or is the same for all threads.
//!
//! This reads statements, and no expressions. Where it is not sure ([`split`] answers `None`), the threads of a block
//! become coroutines instead; so they do where what it makes does not compile.

use super::inline::INLINE;
use super::masks::{Inside, Jump, Place};
use super::narrow::Narrowed;
use super::object;
use super::rewrite::{quoted, Edits, BARRIERS, INDICES, SHARED};
use super::scan::{Function, Kind, Source};
use std::collections::HashSet;
use std::ops::Range;

/// A statement.
#[derive(Debug)]
pub(super) enum Statement {
    /// Without a barrier.
    Plain(Range<usize>),
    /// Variables that the statements after it can use.
    Declare(Declaration),
    /// The same for all threads: types, constants, shared memory.
    Once(Range<usize>),
    Barrier(usize),
    /// What follows has barriers inside.
    Block(Range<usize>, Vec<Statement>),
    If {
        start: usize,
        constant: bool,
        condition: Range<usize>,
        then: Box<Statement>,
        otherwise: Option<Box<Statement>>,
        place: Place,
    },
    Loop {
        range: Range<usize>,
        first: Option<Box<Statement>>,
        condition: Range<usize>,
        step: Range<usize>,
        body: Box<Statement>,
        /// The condition stands behind the body.
        late: bool,
        place: Place,
    },
    /// A function's body, written where it is called: what it returns goes into a variable.
    Call {
        range: Range<usize>,
        value: Range<usize>,
        inner: Vec<Statement>,
        place: Place,
    },
}

#[derive(Debug)]
pub(super) struct Declaration {
    range: Range<usize>,
    specifiers: Range<usize>,
    pub(super) variables: Vec<Variable>,
}

#[derive(Debug)]
pub(super) struct Variable {
    /// Where its name stands.
    pub(super) name: usize,
    pub(super) declarator: Range<usize>,
    /// Where its initial value begins, with the `=` or bracket.
    pub(super) value: Option<usize>,
    reference: bool,
    array: bool,
}

/// What a region can see.
#[derive(Clone)]
pub(super) enum Seen {
    /// A name with a lane for each thread, and where the lanes are.
    Lanes(String, String),
    /// A name that is computed again, by this declaration. True if all threads compute the same.
    Again(String, String, bool),
    /// A name that is the same for all threads.
    Same(String),
}

impl Seen {
    pub(super) fn name(&self) -> &str {
        match self {
            Seen::Lanes(name, _) | Seen::Again(name, _, _) | Seen::Same(name) => name,
        }
    }
}

/// Conditions that keep threads inside their arrays: all threads of most blocks meet them.
pub(super) struct Guard {
    conditions: Vec<Condition>,
    /// What the conditions can see.
    seen: Vec<Seen>,
    /// Of whom they have to be asked.
    pub(super) ask: Ask,
    /// What is known to be a sum or product of indices, which grows with them.
    narrowed: Narrowed,
    /// Names of variables that are taken not to change, where they are declared. As constants they cannot.
    constants: Vec<usize>,
}

/// Which threads say whether conditions hold for all of a block. The names are those of the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The first and the last: what is compared grows from one thread to the next.
    Corners,
    /// Those along each axis: each condition looks at one of x, y and z.
    Axes,
    All,
}

impl Ask {
    pub(super) fn name(self) -> &'static str {
        match self {
            Ask::Corners => "taskgpu::ask::corners",
            Ask::Axes => "taskgpu::ask::axes",
            Ask::All => "taskgpu::ask::all",
        }
    }
}

struct Condition {
    range: Range<usize>,
    /// A thread for which it holds has nothing to do.
    leaves: bool,
}

impl Guard {
    /// Makes the kernel ask `taskgpu_sure` before each condition.
    pub(super) fn edit(&self, source: &Source<'_>, edits: &mut Edits<'_>) {
        for name in &self.constants {
            edits.insert(source.span(*name).start, "const ");
        }
        for condition in &self.conditions {
            let range = &condition.range;
            edits.insert(source.span(range.start).start, condition.before());
            edits.insert(source.span(range.end - 1).end, "))");
        }
    }

    /// A piece of the text whose conditions ask `taskgpu_sure`.
    fn slice(&self, splitter: &Splitter<'_>, range: Range<usize>) -> String {
        let inside = |c: &&Condition| range.contains(&c.range.start);
        let mut out = String::new();
        let mut at = range.start;
        for condition in self.conditions.iter().filter(inside) {
            out.push_str(&splitter.slice(at..condition.range.start));
            out.push_str(condition.before());
            out.push_str(&splitter.slice(condition.range.clone()));
            out.push_str("))");
            at = condition.range.end;
        }
        out.push_str(&splitter.slice(at..range.end));
        out
    }

    /// The body of a function that says whether a thread meets them all.
    fn body(&self, splitter: &Splitter<'_>) -> String {
        let mut out = bindings(&self.seen, false);
        if let (Ask::Corners, Some(check)) = (self.ask, self.narrowed.check(true)) {
            out.push_str(&format!("if (!({check})) return false;\n"));
        }
        for condition in &self.conditions {
            let not = if condition.leaves { "" } else { "!" };
            out.push_str(&format!(
                "if ({not}bool({})) return false;\n",
                splitter.slice(condition.range.clone())
            ));
        }
        out.push_str("return true;\n");
        out
    }
}

impl Condition {
    fn before(&self) -> &'static str {
        match self.leaves {
            true => "(!taskgpu_sure.yes && (",
            false => "(taskgpu_sure.yes || (",
        }
    }
}

/// The guard of a kernel without barriers, and the body of a function that says whether it holds for a thread.
pub(super) fn guard(source: &Source<'_>, function: &Function, edits: &Edits<'_>) -> Option<(Guard, String)> {
    let open = function.body?;
    let body = open + 1..source.closing(open);
    let splitter = Splitter::new(source, edits, body.clone());
    if source.mentions(body.clone(), NO_JUMPS) {
        return None;
    }
    let statements = splitter.statements(body)?;
    let mut seen = Vec::new();
    let mut constants = Vec::new();
    for at in splitter.parameters(function)? {
        let name = source.text(at).to_owned();
        seen.push(match splitter.is_changed(&name, &[], true) {
            true => Seen::Lanes(name, String::new()),
            false => {
                let array = source.text(at + 1) == "[";
                if !array && !splitter.is_const(function.params..at) {
                    constants.push(at);
                }
                Seen::Same(name)
            }
        });
    }
    let mut guard = splitter.guard(&statements, &seen);
    guard.constants.append(&mut constants);
    let text = guard.body(&splitter);
    (!guard.conditions.is_empty()).then_some((guard, text))
}

/// The most variables with a place for each thread: they are on the stack of a worker.
const MOST_LANES: usize = 256;
/// What a loop over threads does not run through from its top to its end.
const NO_JUMPS: &[&str] = &[
    "goto", "try", "co_await", "co_yield", "asm", "__asm__", "__asm", //
    // Marks in other words.
    "and_eq", "or_eq", "xor_eq", "bitand",
];
/// Words of types that need no declaration.
pub(super) const TYPES: &[&str] = &[
    "unsigned", "signed", "long", "short", "int", "char", "float", "double", "bool", "auto", "size_t",
];
/// Names of numbers.
const SCALARS: &[&str] = &[
    "uint",
    "uchar",
    "ushort",
    "ulong",
    "int8_t",
    "uint8_t",
    "int16_t",
    "uint16_t",
    "int32_t",
    "uint32_t",
    "int64_t",
    "uint64_t",
    "ptrdiff_t",
    "intptr_t",
    "uintptr_t",
];
/// What statements begin with that are no expressions.
const STATEMENTS: &[&str] = &[
    "{", ";", "if", "for", "while", "do", "switch", "case", "default", "return", "break", "continue",
];
const QUALIFIERS: &[&str] = &[
    "const", "volatile", "register", "typename", "struct", "class", "union",
];
/// Words that begin a statement which is no declaration.
const NO_TYPES: &[&str] = &[
    "return",
    "break",
    "continue",
    "goto",
    "case",
    "default",
    "delete",
    "throw",
    "new",
    "else",
    "sizeof",
    "this",
    "true",
    "false",
    "operator",
    "asm",
    "__asm__",
    "static",
    "extern",
    "thread_local",
];
/// Words behind which a class or its variable is declared.
const CLASSES: &[&str] = &["struct", "class", "union", "enum"];
const ONCE: &[&str] = &[
    "using",
    "typedef",
    "static_assert",
    "constexpr",
    "struct",
    "class",
    "union",
    "enum",
];

/// The parameters and body of a kernel as a function that runs a whole block, or `None` if it has to be left as it is.
/// `waiting` are functions with barriers of their own.
pub(super) fn split(
    source: &Source<'_>,
    function: &Function,
    waiting: &HashSet<&str>,
    edits: &Edits<'_>,
    bounds: &str,
) -> Option<String> {
    let open = function.body?;
    let body = open + 1..source.closing(open);
    let mut splitter = Splitter::new(source, edits, body.clone());
    if splitter.names_references() {
        return None;
    }
    let forbidden = |at: usize| {
        let text = source.text(at);
        waiting.contains(text) || NO_JUMPS.contains(&text)
    };
    if body.clone().any(forbidden) {
        return None;
    }
    let mut statements = splitter.statements(body)?;
    splitter.place(&mut statements, 0, false)?;
    splitter.jumps = splitter.jumps(&statements, &Inside::default())?;
    // A mask is of use only where threads take ways of their own.
    if !splitter.leaves_early(&statements) {
        if let Some(text) = splitter.whole(function, bounds, &statements) {
            return Some(text);
        }
    }
    let edits = splitter.with_jumps(edits);
    let mut splitter = Splitter {
        edits: &edits,
        lanes: 0,
        sum: None,
        depth: 0,
        masked: true,
        ..splitter
    };
    splitter.whole(function, bounds, &statements)
}

pub(super) struct Splitter<'a> {
    pub(super) source: &'a Source<'a>,
    edits: &'a Edits<'a>,
    pub(super) body: Range<usize>,
    lanes: usize,
    /// The name of the constant that has the bytes of all lanes so far that are still there.
    sum: Option<String>,
    /// Ways out of statements, past barriers.
    pub(super) jumps: Vec<Jump>,
    /// Threads may be off.
    masked: bool,
    /// How many scopes are being written.
    depth: usize,
}

impl<'a> Splitter<'a> {
    pub(super) fn new(source: &'a Source<'a>, edits: &'a Edits<'a>, body: Range<usize>) -> Splitter<'a> {
        Splitter {
            source,
            edits,
            body,
            lanes: 0,
            sum: None,
            jumps: Vec::new(),
            masked: false,
            depth: 0,
        }
    }

    /// The parameters and body of the function that runs a whole block.
    fn whole(&mut self, function: &Function, bounds: &str, statements: &[Statement]) -> Option<String> {
        let body = self.body.clone();
        let parameters = self.parameters(function)?;
        let mut out = String::new();
        let open = self.source.span(function.params);
        let close = self.source.span(self.source.closing(function.params));
        let list = self.edits.slice(open.end..close.start);
        let comma = if parameters.is_empty() { "" } else { ", " };
        let list = if parameters.is_empty() { "" } else { list.as_str() };
        out.push_str(&format!(
            "const taskgpu::indices &taskgpu_in, taskgpu::bounds<{bounds}>{comma}{list}) {{ const uint3 threadIdx = {{0, 0, 0}}, \
             blockIdx = taskgpu_in.blockIdx; const dim3 blockDim = taskgpu_in.blockDim, gridDim = taskgpu_in.gridDim;\n"
        ));
        if self.masked {
            out.push_str(&format!(
                "taskgpu::mask taskgpu_mask(blockDim); const char *const taskgpu_kernel = {};\n",
                quoted(&function.name)
            ));
        }
        let mut seen = Vec::new();
        let mut constants = String::new();
        for at in parameters {
            let name = self.text(at).to_owned();
            // Members can be changed in more ways than are looked for.
            let members = body
                .clone()
                .any(|at| self.text(at) == name && self.text(at + 1) == ".");
            if members || self.is_changed(&name, &[], false) {
                let lanes = self.new_lanes(&name);
                out.push_str(&format!(
                    "taskgpu::lane<decltype({name})> {lanes}[taskgpu::most] __attribute__((aligned(64)));\n\
                     static_assert(taskgpu::plain<decltype({name})>, \"\");\n\
                     for (auto &taskgpu_one : {lanes}) taskgpu::assign(taskgpu::in(taskgpu_one), {name});\n"
                ));
                self.count(&lanes, &mut out);
                seen.push(Seen::Lanes(name, lanes));
            } else {
                // If it changes after all, this does not compile.
                out.push_str(&format!("const auto &taskgpu_{at}_same = {name};\n"));
                constants.push_str(&format!("const auto &{name} = taskgpu_{at}_same;\n"));
                seen.push(Seen::Same(name));
            }
        }
        out.push_str(&format!("{{\n{constants}"));
        self.scope(statements, body.end, &mut seen, &mut out)?;
        out.push_str("}}");
        (self.lanes <= MOST_LANES).then_some(out)
    }
}

// ---- reading
impl Splitter<'_> {
    pub(super) fn text(&self, at: usize) -> &str {
        self.source.text(at)
    }

    fn has_barrier(&self, range: Range<usize>) -> bool {
        self.source.mentions(range, BARRIERS)
    }

    fn statements(&self, range: Range<usize>) -> Option<Vec<Statement>> {
        let mut list = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let (statement, next) = self.statement(at, range.end)?;
            list.push(statement);
            at = next;
        }
        Some(list)
    }

    /// Reads one statement, and answers where the next begins.
    fn statement(&self, start: usize, end: usize) -> Option<(Statement, usize)> {
        let mut at = start;
        while at < end && self.source.tokens[at].kind == Kind::Directive {
            at += 1;
        }
        if at >= end {
            return Some((Statement::Plain(start..end), end));
        }
        let (statement, next) = self.bare_statement(at, end)?;
        if !self.has_barrier(at..next) && !matches!(statement, Statement::Declare(_) | Statement::Once(_)) {
            return Some((Statement::Plain(start..next), next));
        }
        Some((statement, next))
    }

    pub(super) fn bare_statement(&self, at: usize, end: usize) -> Option<(Statement, usize)> {
        match self.text(at) {
            "{" => {
                let close = self.source.closing(at);
                let inside = at + 1..close;
                let inner = if self.has_barrier(inside.clone()) {
                    self.statements(inside)?
                } else {
                    Vec::new()
                };
                Some((Statement::Block(at..close + 1, inner), close + 1))
            }
            "if" => self.read_if(at, end),
            "for" => self.read_for(at, end),
            "while" => {
                let (condition, after) = self.brackets(at + 1)?;
                let (body, next) = self.statement(after, end)?;
                Some((self.endless(at..next, condition, body, false), next))
            }
            "do" => {
                let (body, after) = self.statement(at + 1, end)?;
                let (condition, next) = self.brackets(after + 1)?;
                let next = next + usize::from(self.text(next) == ";");
                (self.text(after) == "while").then(|| (self.endless(at..next, condition, body, true), next))
            }
            "switch" => {
                let (_, after) = self.brackets(at + 1)?;
                let (_, next) = self.statement(after, end)?;
                (!self.has_barrier(at..next)).then_some((Statement::Plain(at..next), next))
            }
            "case" | "default" => {
                // Inside a switch, which has no barriers: only its end is looked for.
                let colon = (at..end).find(|&i| self.text(i) == ":")?;
                Some((Statement::Plain(at..colon + 1), colon + 1))
            }
            INLINE => {
                let (value, after) = self.brackets(at + 1)?;
                let close = self.source.closing(after);
                let call = Statement::Call {
                    range: at..close + 1,
                    value,
                    inner: self.statements(after + 1..close)?,
                    place: Place::default(),
                };
                Some((call, close + 1))
            }
            "else" => None,
            _ => self.read_simple(at, end),
        }
    }

    /// What is in the brackets that open at `at`, and where it goes on behind them.
    pub(super) fn brackets(&self, at: usize) -> Option<(Range<usize>, usize)> {
        (self.text(at) == "(").then(|| {
            let close = self.source.closing(at);
            (at + 1..close, close + 1)
        })
    }

    fn endless(
        &self,
        range: Range<usize>,
        condition: Range<usize>,
        body: Statement,
        late: bool,
    ) -> Statement {
        Statement::Loop {
            first: None,
            step: range.end..range.end,
            range,
            condition,
            body: Box::new(body),
            late,
            place: Place::default(),
        }
    }

    fn read_if(&self, at: usize, end: usize) -> Option<(Statement, usize)> {
        let constant = self.text(at + 1) == "constexpr";
        let (condition, after) = self.brackets(at + 1 + usize::from(constant))?;
        let (then, mut next) = self.statement(after, end)?;
        let mut otherwise = None;
        if next < end && self.text(next) == "else" {
            let (statement, after) = self.statement(next + 1, end)?;
            otherwise = Some(Box::new(statement));
            next = after;
        }
        if self.has_barrier(condition.clone()) || condition.clone().any(|i| self.text(i) == ";") {
            return (!self.has_barrier(at..next)).then_some((Statement::Plain(at..next), next));
        }
        Some((
            Statement::If {
                start: at,
                constant,
                condition,
                then: Box::new(then),
                otherwise,
                place: Place::default(),
            },
            next,
        ))
    }

    fn read_for(&self, at: usize, end: usize) -> Option<(Statement, usize)> {
        let (head, after) = self.brackets(at + 1)?;
        let (body, next) = self.statement(after, end)?;
        if !self.has_barrier(at..next) {
            return Some((Statement::Plain(at..next), next));
        }
        let parts = self.split_at(head.clone(), ";");
        let [first, condition, step] = &parts[..] else {
            return None;
        };
        if self.has_barrier(head) {
            return None;
        }
        let first = match first.is_empty() {
            true => None,
            // With its semicolon.
            false => Some(Box::new(self.read_simple(first.start, first.end + 1)?.0)),
        };
        Some((
            Statement::Loop {
                range: at..next,
                first,
                condition: condition.clone(),
                step: step.clone(),
                body: Box::new(body),
                late: false,
                place: Place::default(),
            },
            next,
        ))
    }

    /// Cuts tokens at a mark that stands outside of brackets.
    pub(super) fn split_at(&self, range: Range<usize>, mark: &str) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let (mut start, mut at) = (range.start, range.start);
        while at < range.end {
            match self.text(at) {
                "(" | "[" | "{" => at = self.source.closing(at),
                // A template's arguments, if a call or a scope follows.
                "<" if at > range.start && self.source.is_word(at - 1) => {
                    let after = self.source.after_angle(at, range.end);
                    if let Some(after) = after.filter(|&after| ["(", "::", "{"].contains(&self.text(after))) {
                        at = after - 1;
                    }
                }
                text if text == mark => {
                    parts.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        parts.push(start..range.end);
        parts
    }

    /// Reads what ends with a semicolon.
    fn read_simple(&self, at: usize, end: usize) -> Option<(Statement, usize)> {
        let stop = self.split_at(at..end, ";").first()?.end;
        if stop >= end {
            return None;
        }
        let range = at..stop + 1;
        let statement = if BARRIERS.contains(&self.text(at)) {
            (stop == at + 3).then_some(Statement::Barrier(at))?
        } else if self.has_barrier(range.clone()) {
            return None;
        } else if ONCE.contains(&self.text(at)) || self.source.mentions(range.clone(), &["__shared__"]) {
            if CLASSES.contains(&self.text(at)) && !self.is_type_alone(range.clone()) {
                return None;
            }
            Statement::Once(range)
        } else {
            match self.declaration(range.clone()) {
                Some(declaration) => Statement::Declare(declaration),
                // It has to be an expression: see `expression`. This would be one too, with another meaning.
                None if TYPES.contains(&self.text(at)) || QUALIFIERS.contains(&self.text(at)) => return None,
                None => Statement::Plain(range),
            }
        };
        Some((statement, stop + 1))
    }

    /// Whether what begins with `struct` or the like declares a type and no variable.
    fn is_type_alone(&self, range: Range<usize>) -> bool {
        let mut at = range.start + 1;
        at += usize::from(CLASSES.contains(&self.text(at)));
        at += usize::from(self.source.is_word(at));
        if self.text(at) == ":" {
            at = (at..range.end).find(|&i| self.text(i) == "{").unwrap_or(at);
        }
        if self.text(at) == "{" {
            at = self.source.closing(at) + 1;
        }
        at + 1 == range.end
    }

    /// The name of what a declaration puts into shared memory, if that is one array.
    fn shared_array(&self, range: Range<usize>) -> Option<&str> {
        let plain = self.source.mentions(range.clone(), &["__shared__"])
            && !self.source.mentions(range.clone(), &["extern", "{", "="])
            && self.split_at(range.clone(), ",").len() == 1;
        let mut at = range.start;
        while plain && at < range.end && self.text(at) != "[" {
            at = match self.text(at) {
                "(" => self.source.closing(at),
                _ => at,
            } + 1;
        }
        (plain && at < range.end && self.source.is_word(at - 1)).then(|| self.text(at - 1))
    }

    /// Reads a declaration of variables; `None` if it is none.
    pub(super) fn declaration(&self, range: Range<usize>) -> Option<Declaration> {
        let mut at = range.start;
        let mut has_type = false;
        loop {
            let text = self.text(at);
            if QUALIFIERS.contains(&text) {
                at += 1;
            } else if TYPES.contains(&text) {
                has_type = true;
                at += 1;
            } else if !has_type && self.source.is_word(at) && !NO_TYPES.contains(&text) {
                has_type = true;
                at = self.after_path(at, range.end);
            } else {
                break;
            }
        }
        if !has_type {
            return None;
        }
        let specifiers = range.start..at;
        let mut variables = Vec::new();
        for declarator in self.split_at(at..range.end - 1, ",") {
            let mut i = declarator.start;
            let mut reference = false;
            while ["*", "&", "const", "volatile", "__restrict__", "__restrict"].contains(&self.text(i)) {
                reference |= self.text(i) == "&";
                i += 1;
            }
            let name = i;
            if name >= declarator.end || !self.source.is_word(name) {
                return None;
            }
            i += 1;
            let array = self.text(i) == "[";
            while self.text(i) == "[" {
                i = self.source.closing(i) + 1;
            }
            let value = match self.text(i) {
                _ if i >= declarator.end => None,
                "=" | "(" | "{" => Some(i),
                _ => return None,
            };
            variables.push(Variable {
                name,
                declarator,
                value,
                reference,
                array,
            });
        }
        Some(Declaration {
            range,
            specifiers,
            variables,
        })
    }

    /// Behind a name such as `a::b<c>::d`.
    fn after_path(&self, at: usize, end: usize) -> usize {
        let mut i = at + 1;
        loop {
            if self.text(i) == "<" {
                match self.source.after_angle(i, end) {
                    Some(after) => i = after,
                    None => return i,
                }
            } else if self.text(i) == "::" && self.source.is_word(i + 1) {
                i += 2;
            } else {
                return i;
            }
        }
    }

    pub(super) fn start(&self, statement: Option<&Statement>) -> Option<usize> {
        statement.map(|statement| match statement {
            Statement::Plain(range) | Statement::Once(range) | Statement::Block(range, _) => range.start,
            Statement::Declare(declaration) => declaration.range.start,
            Statement::Barrier(at) => *at,
            Statement::If { start, .. } => *start,
            Statement::Loop { range, .. } | Statement::Call { range, .. } => range.start,
        })
    }

    /// Where the names of the parameters stand; `None` if one is not understood.
    pub(super) fn parameters(&self, function: &Function) -> Option<Vec<usize>> {
        let inside = function.params + 1..self.source.closing(function.params);
        if inside.is_empty() || (inside.len() == 1 && self.text(inside.start) == "void") {
            return Some(Vec::new());
        }
        self.split_at(inside, ",")
            .into_iter()
            .map(|part| {
                let end = part
                    .clone()
                    .find(|&i| ["=", "["].contains(&self.text(i)))
                    .unwrap_or(part.end);
                let name = end.checked_sub(1).filter(|name| *name > part.start)?;
                let simple =
                    self.source.is_word(name) && !part.clone().any(|i| ["(", "."].contains(&self.text(i)));
                simple.then_some(name)
            })
            .collect()
    }
}

// ---- what becomes of a variable
impl Splitter<'_> {
    /// Whether a type of the source is a reference, which its variables do not show.
    fn names_references(&self) -> bool {
        let end = |at: usize| (at..self.source.tokens.len()).find(|&i| self.text(i) == ";");
        (0..self.source.tokens.len()).any(|at| {
            ["typedef", "using"].contains(&self.text(at))
                && end(at).is_some_and(|end| self.source.mentions(at..end, &["&"]))
        })
    }

    /// Whether the name behind these tokens is that of a constant.
    fn is_const(&self, before: Range<usize>) -> bool {
        let own = before
            .clone()
            .rev()
            .find(|&i| ["*", ",", "("].contains(&self.text(i)))
            .map_or(before.start, |i| i + 1);
        self.source.mentions(own..before.end, &["const", "constexpr"])
    }

    fn is_declared_const(&self, declaration: &Declaration, variable: &Variable) -> bool {
        let own = variable.declarator.start..variable.name;
        let pointer = own.clone().any(|i| self.text(i) == "*");
        self.is_const(own) || (!pointer && self.source.mentions(declaration.specifiers.clone(), &["const"]))
    }

    /// Declares a variable that does not change, as a constant: what changes it in a way that is not seen here does not
    /// compile then.
    fn constant(&self, declaration: &Declaration, variable: &Variable) -> String {
        let known = self.is_declared_const(declaration, variable);
        format!(
            "{}{}{}{};\n",
            self.slice(declaration.specifiers.clone()),
            self.slice(variable.declarator.start..variable.name),
            if known { "" } else { "const " },
            self.slice(variable.name..variable.declarator.end)
        )
    }

    /// Whether the address of a variable may be known where it is no longer visible.
    fn may_escape(&self, declaration: &Declaration, variable: &Variable) -> bool {
        let name = self.text(variable.name);
        let scalar = self.is_scalar(declaration, variable);
        let (mut dimensions, mut i) = (0, variable.name + 1);
        while self.text(i) == "[" {
            (dimensions, i) = (dimensions + 1, self.source.closing(i) + 1);
        }
        let escapes = |at: usize| {
            if self.text(at) != name || variable.declarator.contains(&at) || self.is_member(at) {
                return false;
            }
            let (mut found, mut i) = (0, at + 1);
            while self.text(i) == "[" && found < dimensions {
                (found, i) = (found + 1, self.source.closing(i) + 1);
            }
            // Also of `&(name)`, of a choice, and of what a function of it gives.
            let mut first = at;
            while self.before(first, 1) == "(" {
                first -= 1;
            }
            let called = !scalar && self.text(i) == "." && self.text(i + 2) == "(";
            found < dimensions
                || called
                || (self.before(first, 1) == "&" && self.before(first, 2) != "&")
                || (["?", ":"].contains(&self.before(first, 1))
                    && [":", ")", ";", ","].contains(&self.text(i)))
                || self.may_be_bound(at, i - 1)
        };
        self.body.clone().any(escapes)
    }

    fn is_member(&self, at: usize) -> bool {
        self.before(at, 1) == "."
            || self.before(at, 1) == "::"
            || (self.before(at, 1) == ">" && self.before(at, 2) == "-")
    }

    /// Whether something may give a variable of this name another value: not counting where it is declared, nor what is in
    /// `except`. `whole`: its members and elements count as well.
    pub(super) fn is_changed(&self, name: &str, except: &[Range<usize>], whole: bool) -> bool {
        self.body.clone().any(|at| {
            self.text(at) == name
                && !except.iter().any(|range| range.contains(&at))
                && self.changes(at, whole)
        })
    }

    fn changes(&self, at: usize, whole: bool) -> bool {
        let text = |i: usize| self.text(i);
        if [".", "->", "::"].contains(&self.before(at, 1)) {
            return false;
        }
        if whole && [".", "["].contains(&text(at + 1)) {
            return true;
        }
        // Brackets around the name alone mean nothing.
        let (mut first, mut last) = (at, at);
        while self.before(first, 1) == "("
            && text(last + 1) == ")"
            && !self.ends_operand(first.saturating_sub(2))
            && self.before(first, 2) != ">"
        {
            (first, last) = (first - 1, last + 1);
        }
        let before = |n: usize| self.before(first, n);
        let (one, two, three) = (text(last + 1), text(last + 2), text(last + 3));
        let assigned = match one {
            "=" => two != "=",
            "+" | "-" => two == "=" || two == one,
            "*" | "/" | "%" | "|" | "^" | "&" => two == "=",
            "<" | ">" => two == one && three == "=",
            _ => false,
        };
        let stepped = (before(1) == "+" && before(2) == "+") || (before(1) == "-" && before(2) == "-");
        // Behind the brackets of a conversion it looks like an operator.
        let address = before(1) == "&" && before(2) != "&";
        // What a choice gives is the variable itself.
        let chosen = ["?", ":"].contains(&before(1)) && [":", ")", ";", ","].contains(&one);
        // A reference: `T &r = x`, `T &r(x)`, `auto &[a, b] = x`, `for (T &r : x)`.
        let bound =
            before(3) == "&" && self.source.is_word(first - 2) && ["=", "(", "{"].contains(&before(1));
        let taken_apart = whole && (before(1) == ":" || (before(1) == "=" && before(2) == "]"));
        // `(T &)x`
        let converted = before(1) == ")" && before(2) == "&";
        assigned
            || stepped
            || address
            || chosen
            || bound
            || converted
            || taken_apart
            || self.may_be_bound(first, last)
    }

    fn before(&self, at: usize, n: usize) -> &str {
        at.checked_sub(n).map_or("", |i| self.text(i))
    }

    /// Whether a token ends something that can stand before an operator or a bracket: a value, or a function's name.
    fn ends_operand(&self, at: usize) -> bool {
        matches!(self.source.tokens[at].kind, Kind::Word | Kind::Literal)
            && !["return", "case", "else", "do"].contains(&self.text(at))
            || [")", "]"].contains(&self.text(at))
    }

    /// Whether a name, with the brackets around it, stands alone as an argument of something that may take a reference.
    fn may_be_bound(&self, first: usize, last: usize) -> bool {
        let alone =
            ["(", ",", "{"].contains(&self.text(first - 1)) && [")", ",", "}"].contains(&self.text(last + 1));
        if !alone {
            return false;
        }
        let opens = |i: &usize| ["(", "{"].contains(&self.text(*i)) && self.source.closing(*i) > last;
        let Some(open) = (self.body.start..first).rev().find(opens) else {
            return false;
        };
        // Members of what is made so may be references.
        if self.text(open) == "{" {
            return true;
        }
        let mut callee = open - 1;
        if self.text(callee) == ">" {
            match (self.body.start..callee).rev().find(|&i| self.text(i) == "<") {
                Some(angle) if (angle + 1..callee).all(|i| TYPES.contains(&self.text(i))) => {
                    callee = angle - 1
                }
                // It may say that the parameter is a reference.
                _ => return true,
            }
        }
        let name = self.text(callee);
        if !self.source.is_word(callee) {
            return true;
        }
        let plain = ["if", "while", "for", "switch", "return", "sizeof", "static_cast"];
        if plain.contains(&name) || TYPES.contains(&name) {
            return false;
        }
        if [".", "->"].contains(&self.text(callee - 1)) || ["swap", "exchange", "tie", "ref"].contains(&name)
        {
            return true;
        }
        // A function of the source says what it takes.
        let mut functions = self.source.functions.iter().filter(|f| f.name == name).peekable();
        if functions.peek().is_some() {
            return functions.any(|f| (f.params..self.source.closing(f.params)).any(|i| self.text(i) == "&"));
        }
        // One of the C library takes values: the source does nothing with it but call it.
        let elsewhere = |i: usize| {
            let declared = i > 0 && self.source.is_word(i - 1) && !NO_TYPES.contains(&self.text(i - 1));
            self.text(i) == name && (declared || self.text(i + 1) != "(")
        };
        (0..self.source.tokens.len()).any(elsewhere)
    }

    /// Whether an expression depends on nothing but what is named in it, and all threads agree on: `Some(true)`; or each
    /// thread for itself: `Some(false)`. `None` if it may depend on memory, or on variables that change.
    fn value_of(&self, range: Range<usize>, seen: &[Seen]) -> Option<bool> {
        let mut same = true;
        for at in range.clone() {
            let text = self.text(at);
            let next = self.text(at + 1);
            match self.source.tokens[at].kind {
                Kind::Literal => {}
                Kind::Directive => return None,
                Kind::Mark => match text {
                    "&" if next == text || (at > range.start && self.text(at - 1) == text) => {}
                    "[" | "->" | "&" => return None,
                    "*" => {
                        let operand = at > range.start
                            && (matches!(self.source.tokens[at - 1].kind, Kind::Word | Kind::Literal)
                                || (self.text(at - 1) == ")" && !self.may_convert(range.start, at - 1)));
                        if !operand {
                            return None;
                        }
                    }
                    "=" if next != "=" && !["=", "<", ">", "!"].contains(&self.text(at - 1)) => return None,
                    "+" | "-" if next == text => return None,
                    _ => {}
                },
                Kind::Word => {
                    // What a function gives may come from anywhere.
                    let called = match next {
                        "(" => true,
                        "<" => self
                            .source
                            .after_angle(at + 1, range.end)
                            .is_some_and(|after| self.text(after) == "("),
                        _ => false,
                    };
                    let harmless = ["min", "max", "static_cast"].contains(&text) || TYPES.contains(&text);
                    if called && !harmless {
                        return None;
                    }
                    if next == "::" || self.before(at, 1) == "::" {
                        return None;
                    }
                    if at > range.start && self.text(at - 1) == "." {
                        continue;
                    }
                    if text == "threadIdx" {
                        same = false;
                        continue;
                    }
                    if INDICES.contains(&text) || harmless {
                        continue;
                    }
                    match seen.iter().rev().find(|s| s.name() == text) {
                        Some(Seen::Lanes(..)) => return None,
                        Some(Seen::Again(_, _, all)) => same &= all,
                        Some(Seen::Same(_)) => {}
                        // Not a variable of the kernel.
                        None if self.is_fixed(text) => {}
                        None => return None,
                    }
                }
            }
        }
        Some(same)
    }

    /// Whether brackets that close at `close` may have a type inside: what follows `(int)` or `(T *)` is no second operand.
    fn may_convert(&self, start: usize, close: usize) -> bool {
        let open = (start..close)
            .rev()
            .find(|&i| self.text(i) == "(" && self.source.closing(i) == close);
        open.is_none_or(|open| {
            let of_type =
                |i: usize| self.source.is_word(i) || ["*", "::", "<", ">", ","].contains(&self.text(i));
            !self.ends_operand(open.saturating_sub(1)) && (open + 1..close).all(of_type)
        })
    }

    /// Whether a name is a constant or a type: all that the source declares under it is.
    fn is_fixed(&self, name: &str) -> bool {
        let words = ["true", "false", "nullptr", "sizeof", "const", "warpSize"];
        if words.contains(&name) || SCALARS.contains(&name) {
            return true;
        }
        let makes = [
            "const",
            "constexpr",
            "using",
            "typedef",
            "struct",
            "class",
            "enum",
            "template",
            "typename",
        ];
        let mut found = false;
        for at in (1..self.source.tokens.len()).filter(|&at| self.text(at) == name) {
            let begins = |i: &usize| [";", "{", "}"].contains(&self.text(*i));
            let start = (0..at).rev().find(begins).map_or(0, |i| i + 1);
            let listed = ["{", ","].contains(&self.text(at - 1))
                && self.before(start, 1) == "{"
                && self.source.mentions(start.saturating_sub(5)..start, &["enum"]);
            let word = self.source.is_word(at - 1)
                && !["const", "volatile", "return", "case", "else", "sizeof"].contains(&self.text(at - 1))
                || [">", "*", "&"].contains(&self.text(at - 1)) && self.source.is_word(at - 2);
            let declared = word && ["=", ";", ",", ">", "[", "{", "(", ")", ":"].contains(&self.text(at + 1));
            if self
                .source
                .mentions(start..at, &["__shared__", "__device__", "extern"])
                && !self.source.mentions(start..at, &makes)
                || declared && !self.source.mentions(start..at, &makes)
            {
                return false;
            }
            // A pointer to constants is none.
            found |= listed || (declared && self.source.is_word(at - 1));
        }
        found && !self.source.variables.iter().any(|v| v.name == name)
    }

    /// Whether a name that is declared is one of those by which a variable is computed again.
    fn hides(&self, name: &str, seen: &[Seen]) -> bool {
        let used = |one: &Seen| match one {
            Seen::Again(own, declaration, _) => {
                own != name
                    && Source::new(declaration).is_none_or(|source| {
                        (1..source.tokens.len()).any(|at| {
                            let member = [".", "->"].contains(&source.text(at - 1));
                            source.text(at) == name && !member
                        })
                    })
            }
            _ => false,
        };
        seen.iter().any(used)
    }

    /// Whether a variable may be changed after it is declared. Arrays and objects can be in too many ways.
    fn may_change(&self, declaration: &Declaration, variable: &Variable) -> bool {
        let auto = self.source.mentions(declaration.specifiers.clone(), &["auto"]);
        variable.array
            || !(auto || self.is_scalar(declaration, variable))
            || self.is_changed(
                self.text(variable.name),
                std::slice::from_ref(&variable.declarator),
                false,
            )
    }

    fn new_lanes(&mut self, name: &str) -> String {
        self.lanes += 1;
        format!("taskgpu_{name}_{}", self.lanes)
    }

    /// Adds lanes to those that a worker's stack must have room for.
    fn count(&mut self, lanes: &str, out: &mut String) {
        let before = self.sum.take().unwrap_or_else(|| "0".to_owned());
        let sum = format!("taskgpu_{}_bytes", self.lanes);
        out.push_str(&format!(
            "constexpr size_t {sum} = {before} + sizeof {lanes};\nstatic_assert({sum} <= taskgpu::most_bytes, \"\");\n"
        ));
        self.sum = Some(sum);
    }
}

/// Declarations of what a thread sees. `lanes`: with the variables that have a place for each thread.
fn bindings(seen: &[Seen], lanes: bool) -> String {
    let mut shadowed = HashSet::new();
    let mut list = Vec::new();
    for one in seen.iter().rev() {
        // Of two with one name, the inner is meant.
        if shadowed.insert(one.name()) {
            match one {
                Seen::Lanes(name, place) if lanes => {
                    list.push(format!("auto &{name} = taskgpu::in({place}[taskgpu_lane]);\n"));
                }
                Seen::Again(_, declaration, _) => list.push(declaration.clone()),
                Seen::Lanes(..) | Seen::Same(_) => {}
            }
        }
    }
    list.into_iter().rev().collect()
}

/// Which of x, y and z of a thread a text may look at, as bits.
fn axes(text: &str, seen: &[Seen]) -> u8 {
    let mut words = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty());
    let mut found = 0;
    while let Some(word) = words.next() {
        if word == "threadIdx" {
            found |= match words.next() {
                Some("x") => 1,
                Some("y") => 2,
                Some("z") => 4,
                _ => 7,
            };
        } else if let Some(at) = seen.iter().rposition(|s| s.name() == word) {
            if let Seen::Again(_, declaration, _) = &seen[at] {
                found |= axes(declaration, &seen[..at]);
            }
        }
    }
    found
}

// ---- conditions that most blocks meet
impl Splitter<'_> {
    /// The conditions at the top of some statements: each thread computes them, from what does not change.
    fn guard(&self, statements: &[Statement], seen: &[Seen]) -> Guard {
        let mut guard = Guard {
            conditions: Vec::new(),
            seen: seen.to_vec(),
            ask: Ask::All,
            narrowed: Narrowed::of(&[]),
            constants: Vec::new(),
        };
        let mut axes = true;
        for statement in statements {
            match statement {
                Statement::Declare(declaration) => {
                    // A condition before it would mean another variable.
                    let hides = |v: &Variable| guard.seen.iter().any(|s| s.name() == self.text(v.name));
                    if declaration.variables.iter().any(hides) {
                        break;
                    }
                    self.see(declaration, &mut guard);
                }
                Statement::Plain(range) => {
                    // A second copy of these would be another variable.
                    if self.source.mentions(range.clone(), &["static", "__shared__"]) {
                        guard.conditions.clear();
                        break;
                    }
                    if let Some(condition) = self.guarding(range.clone(), &guard.seen) {
                        axes &= self.is_of_axes(&condition, &guard.seen);
                        guard.conditions.push(condition);
                    }
                    // What follows is not computed by every thread.
                    if self.source.mentions(range.clone(), &["return"]) {
                        break;
                    }
                }
                _ => {}
            }
        }
        guard.narrowed = Narrowed::of(&guard.seen);
        let corners = guard.conditions.iter().all(|c| self.is_of_corners(c, &guard));
        guard.ask = match (corners, axes) {
            (true, _) => Ask::Corners,
            (false, true) => Ask::Axes,
            (false, false) => Ask::All,
        };
        guard
    }

    /// Whether a condition is made of comparisons of something that grows from one thread to the next with something that is
    /// the same for all: what the first and the last say, all say.
    fn is_of_corners(&self, condition: &Condition, guard: &Guard) -> bool {
        let (between, other) = if condition.leaves { ("|", "&") } else { ("&", "|") };
        let range = condition.range.clone();
        if range.clone().any(|at| [other, "?"].contains(&self.text(at))) {
            return false;
        }
        let compares = |part: &Range<usize>| {
            let operator = self.text(part.start + 1);
            let bound = part.start + 2 + usize::from(self.text(part.start + 2) == "=");
            let plain = |at: usize| {
                self.source.tokens[at].kind != Kind::Mark || ["+", "-", "*", "."].contains(&self.text(at))
            };
            guard.narrowed.grows(self.text(part.start))
                && ["<", ">"].contains(&operator)
                && bound < part.end
                && (bound..part.end).all(plain)
                && self.value_of(bound..part.end, &guard.seen) == Some(true)
        };
        // Between two marks is an empty part.
        let parts = self.split_at(range, between);
        parts.iter().filter(|part| !part.is_empty()).all(compares)
    }

    /// Whether a condition is made of parts that each look at no more than one of x, y and z.
    fn is_of_axes(&self, condition: &Condition, seen: &[Seen]) -> bool {
        let between = if condition.leaves { "|" } else { "&" };
        let range = condition.range.clone();
        let binds_less = |text: &str| text == "?" || (text == "|" && !condition.leaves);
        let whole = range.clone().any(|at| binds_less(self.text(at)));
        let parts = match whole {
            true => vec![range],
            // Between the two marks is an empty part.
            false => self.split_at(range, between),
        };
        parts
            .into_iter()
            .all(|part| axes(&self.slice(part), seen).count_ones() <= 1)
    }

    /// Adds variables to what conditions can see.
    fn see(&self, declaration: &Declaration, guard: &mut Guard) {
        for variable in &declaration.variables {
            let name = self.text(variable.name).to_owned();
            let changes = self.may_change(declaration, variable);
            let same = variable
                .value
                .filter(|_| !changes && !variable.reference)
                .and_then(|value| self.value_of(value + 1..variable.declarator.end, &guard.seen));
            guard.seen.push(match same {
                Some(same) => {
                    let one = self.constant(declaration, variable);
                    Seen::Again(name, one, same)
                }
                None => Seen::Lanes(name, String::new()),
            });
        }
        // `const` in front is for all of a declaration, in front of a name for a pointer.
        let first = guard.seen.len() - declaration.variables.len();
        let pointer =
            |variable: &Variable| (variable.declarator.start..variable.name).any(|i| self.text(i) == "*");
        let all = guard.seen[first..].iter().all(|s| matches!(s, Seen::Again(..)))
            && !declaration.variables.iter().any(pointer);
        for (variable, seen) in declaration.variables.iter().zip(&guard.seen[first..]) {
            let fixed = matches!(seen, Seen::Again(..)) && !self.is_declared_const(declaration, variable);
            match pointer(variable) {
                true if fixed => guard.constants.push(variable.name),
                false if fixed && all => {
                    guard.constants.push(declaration.specifiers.start);
                    break;
                }
                _ => {}
            }
        }
    }

    /// The condition of a statement, if it looks like one that keeps threads inside of something: it depends on the
    /// thread and on what the launch gave.
    fn guarding(&self, range: Range<usize>, seen: &[Seen]) -> Option<Condition> {
        let mut start = range.start;
        while start < range.end && self.source.tokens[start].kind == Kind::Directive {
            start += 1;
        }
        let mut leaves = false;
        let condition = match self.text(start) {
            "if" => {
                let (condition, after) = self.brackets(start + 1)?;
                let body: Vec<&str> = (after..range.end).map(|at| self.text(at)).collect();
                leaves = [&["return", ";"][..], &["{", "return", ";", "}"]].contains(&&body[..]);
                condition
            }
            "for" | "while" | "do" | "switch" | "{" | "case" | "default" => return None,
            _ => {
                let question = self.split_at(start..range.end, "?").first()?.end;
                let assigns = |at: &usize| {
                    self.text(*at) == "="
                        && self.text(at + 1) != "="
                        && !["=", "<", ">", "!"].contains(&self.text(at - 1))
                };
                let after = (start..question).rev().find(assigns)? + 1;
                (question < range.end).then_some(after..question)?
            }
        };
        let known = |at: usize| {
            let text = self.text(at);
            let member = at > condition.start && self.text(at - 1) == ".";
            self.source.tokens[at].kind != Kind::Word
                || member
                || INDICES.contains(&text)
                || TYPES.contains(&text)
                || seen.iter().any(|s| s.name() == text)
        };
        let given = |at: usize| {
            let found = seen.iter().rev().find(|s| s.name() == self.text(at));
            matches!(found, Some(Seen::Same(_)))
        };
        let equality = |at: usize| self.text(at) == "=" && self.text(at + 1) == "=";
        let fits = self.value_of(condition.clone(), seen) == Some(false)
            && condition.clone().all(known)
            && condition.clone().any(given)
            && !condition.clone().any(equality);
        fits.then_some(Condition {
            range: condition,
            leaves,
        })
    }
}

// ---- writing
impl Splitter<'_> {
    pub(super) fn slice(&self, range: Range<usize>) -> String {
        if range.is_empty() {
            return String::new();
        }
        let text = self
            .edits
            .slice(self.source.span(range.start).start..self.source.span(range.end - 1).end);
        format!("\n{text}\n")
    }

    /// Writes the statements of a scope that ends with token `end`.
    fn scope(
        &mut self,
        statements: &[Statement],
        end: usize,
        seen: &mut Vec<Seen>,
        out: &mut String,
    ) -> Option<()> {
        out.push_str("{\n");
        self.depth += 1;
        let known = seen.len();
        let sum = self.sum.clone();
        let mut at = 0;
        while at < statements.len() {
            let run = statements[at..]
                .iter()
                .take_while(|s| matches!(s, Statement::Plain(_) | Statement::Declare(_)))
                .count();
            if run > 0 {
                let after = self.start(statements.get(at + run)).unwrap_or(end);
                self.region(&statements[at..at + run], after..end, seen, out)?;
                at += run;
                continue;
            }
            self.control(&statements[at], seen, out)?;
            at += 1;
        }
        seen.truncate(known);
        self.sum = sum;
        self.depth -= 1;
        out.push_str("}\n");
        Some(())
    }

    fn nested(&mut self, statement: &Statement, seen: &mut Vec<Seen>, out: &mut String) -> Option<()> {
        match statement {
            Statement::Block(range, inner) if self.has_barrier(range.clone()) => {
                self.scope(inner, range.end - 1, seen, out)
            }
            other => self.scope(std::slice::from_ref(other), self.end_of(other), seen, out),
        }
    }

    fn end_of(&self, statement: &Statement) -> usize {
        match statement {
            Statement::Plain(range) | Statement::Once(range) | Statement::Block(range, _) => range.end,
            Statement::Declare(declaration) => declaration.range.end,
            Statement::Barrier(at) => at + 4,
            Statement::If { then, otherwise, .. } => self.end_of(otherwise.as_deref().unwrap_or(then)),
            Statement::Loop { range, .. } | Statement::Call { range, .. } => range.end,
        }
    }

    /// Writes a statement that has barriers inside.
    fn control(&mut self, statement: &Statement, seen: &mut Vec<Seen>, out: &mut String) -> Option<()> {
        match statement {
            Statement::Plain(_) | Statement::Declare(_) => return None,
            Statement::Barrier(_) => {
                if self.masked {
                    out.push_str("taskgpu_mask.meet(taskgpu_kernel);\n");
                }
            }
            Statement::Once(range) => {
                let named = |at: &usize| ["=", ";", "{", "[", ":"].contains(&self.text(at + 1));
                if range
                    .clone()
                    .filter(named)
                    .any(|at| self.hides(self.text(at), seen))
                {
                    return None;
                }
                let text = self.slice(range.clone());
                // A block's own shared memory can be on the stack: compilers know that nobody else has its address.
                match self.shared_array(range.clone()).filter(|_| self.depth == 1) {
                    Some(name) => {
                        out.push_str(&text.replacen(SHARED, "__attribute__((aligned(64)))", 1));
                        out.push_str(&object::note(name, range.start));
                    }
                    None => out.push_str(&text),
                }
            }
            Statement::Block(range, inner) => self.scope(inner, range.end - 1, seen, out)?,
            Statement::If {
                constant,
                condition,
                then,
                otherwise,
                place,
                ..
            } => {
                let same = self.value_of(condition.clone(), seen) == Some(true);
                let apart = !*constant && (!same || self.may_trap(condition.clone()));
                let waits = otherwise.as_ref().is_some_and(|s| s.waits());
                let (unmet, met) = (place.unmet(waits), place.met());
                if *constant {
                    out.push_str(&format!("if constexpr ({})", self.slice(condition.clone())));
                } else {
                    let meets = (then.waits() && (place.later || waits)) || (waits && place.later);
                    let go = self.condition(condition.clone(), unmet, meets, seen, out)?;
                    out.push_str(&format!("if ({go})"));
                }
                self.nested(then, seen, out)?;
                if let Some(otherwise) = otherwise {
                    match apart {
                        true => out.push_str(&format!("if (taskgpu_mask.turn({unmet}, {met}))")),
                        false => out.push_str("else "),
                    }
                    self.nested(otherwise, seen, out)?;
                }
                if apart {
                    let off = if otherwise.is_some() { met } else { unmet };
                    out.push_str(&format!("taskgpu_mask.back({off});\n"));
                }
                if !*constant {
                    out.push_str("}\n");
                }
            }
            Statement::Loop {
                range,
                first,
                condition,
                step,
                body,
                late,
                place,
            } => {
                let known = seen.len();
                let sum = self.sum.clone();
                let common = self.common_loop(range, first.as_deref(), condition, step, seen);
                if let Some(head) = &common {
                    out.push_str(head);
                } else {
                    out.push_str("{\n");
                    if let Some(first) = first {
                        self.region(std::slice::from_ref(first), condition.start..range.end, seen, out)?;
                    }
                    out.push_str("for (;;) {\n");
                    if !*late && !condition.is_empty() {
                        let go = self.condition(condition.clone(), place.out(), place.later, seen, out)?;
                        out.push_str(&format!("if (!({go})) break; }}\n"));
                    }
                }
                self.nested(body, seen, out)?;
                if self.masked {
                    out.push_str(&format!(
                        "taskgpu_mask.back({});\nif (taskgpu_mask.all) break;\n",
                        place.next_round()
                    ));
                }
                if common.is_some() {
                    out.push_str("}\n");
                } else {
                    if !step.is_empty() {
                        let step = format!("{};", self.slice(step.clone()));
                        self.for_running(&step, seen, out);
                    }
                    if *late {
                        let go = self.condition(condition.clone(), place.out(), place.later, seen, out)?;
                        out.push_str(&format!("if (!({go})) break; }}\n"));
                    }
                    out.push('}');
                }
                out.push_str("}\n");
                if self.masked {
                    out.push_str(&format!("taskgpu_mask.back({});\n", place.out()));
                }
                seen.truncate(known);
                self.sum = sum;
            }
            Statement::Call {
                range, inner, place, ..
            } => {
                self.scope(inner, range.end - 1, seen, out)?;
                if self.masked {
                    out.push_str(&format!("taskgpu_mask.back({});\n", place.out()));
                }
            }
        }
        Some(())
    }

    /// The head of a loop whose variable is the same for all threads, if it is.
    fn common_loop(
        &self,
        range: &Range<usize>,
        first: Option<&Statement>,
        condition: &Range<usize>,
        step: &Range<usize>,
        seen: &mut Vec<Seen>,
    ) -> Option<String> {
        let Some(Statement::Declare(declaration)) = first else {
            return None;
        };
        if [&declaration.range, condition, step]
            .into_iter()
            .any(|range| self.may_trap(range.clone()))
        {
            return None;
        }
        let known = seen.len();
        for variable in &declaration.variables {
            let name = self.text(variable.name);
            let elsewhere = [variable.declarator.clone(), step.clone()];
            let value = variable.value? + 1..variable.declarator.end;
            let simple = !variable.reference && !variable.array && self.text(variable.value?) == "=";
            if !simple
                || self.hides(name, seen)
                || self.value_of(value, seen) != Some(true)
                || self.is_changed_in(range.clone(), name, &elsewhere)
            {
                seen.truncate(known);
                return None;
            }
            seen.push(Seen::Same(name.to_owned()));
        }
        // A step changes the loop's own variables by what is the same for all.
        let names: Vec<String> = seen[known..].iter().map(|s| s.name().to_owned()).collect();
        let harmless = step.clone().all(|at| {
            let text = self.text(at);
            match self.source.tokens[at].kind {
                Kind::Word => {
                    names.iter().any(|n| n == text) || self.value_of(at..at + 1, seen) == Some(true)
                }
                Kind::Mark => !["[", "->", "("].contains(&text),
                Kind::Literal => true,
                Kind::Directive => false,
            }
        });
        if !harmless || self.value_of(condition.clone(), seen) != Some(true) {
            seen.truncate(known);
            return None;
        }
        // Inside, its variables are constants: what changes them in a way that is not seen here does not compile.
        let (mut outer, mut inner) = (String::new(), String::new());
        for name in names {
            outer.push_str(&format!(
                "const auto taskgpu_{}_{name}_same = {name};\n",
                range.start
            ));
            inner.push_str(&format!(
                "const auto {name} = taskgpu_{}_{name}_same;\n",
                range.start
            ));
        }
        Some(format!(
            "for ({}{};{}) {{\n{outer}{{\n{inner}",
            self.slice(declaration.range.clone()),
            self.slice(condition.clone()),
            self.slice(step.clone())
        ))
    }

    /// Whether an expression must not be computed where all threads may be off: what it divides by may be zero then.
    fn may_trap(&self, range: Range<usize>) -> bool {
        let divides = |at: usize| {
            let divisor = at + 1 + usize::from(self.text(at + 1) == "=");
            let fixed = self.source.tokens[divisor].kind == Kind::Literal && self.text(divisor) != "0";
            ["/", "%"].contains(&self.text(at)) && !fixed
        };
        self.masked && range.into_iter().any(divides)
    }

    fn is_changed_in(&self, range: Range<usize>, name: &str, except: &[Range<usize>]) -> bool {
        range.into_iter().any(|at| {
            self.text(at) == name && !except.iter().any(|e| e.contains(&at)) && self.changes(at, false)
        })
    }

    /// Opens a block and answers an expression in it: whether there are threads that meet a condition with barriers behind
    /// it. Those that do not are off with a code from then on. `meets`: they have to be at a barrier at which others are.
    fn condition(
        &mut self,
        range: Range<usize>,
        code: u8,
        meets: bool,
        seen: &[Seen],
        out: &mut String,
    ) -> Option<String> {
        match self.value_of(range.clone(), seen) {
            Some(true) if !self.may_trap(range.clone()) => {
                out.push_str("{\n");
                for one in seen {
                    if let Seen::Again(_, declaration, true) = one {
                        out.push_str(declaration);
                    }
                }
                return Some(self.slice(range));
            }
            // Some threads of most blocks meet it and some do not.
            Some(false) if meets => return None,
            _ if !self.masked => return None,
            _ => {}
        }
        out.push_str("{\n");
        let text = format!("taskgpu_mask.met[taskgpu_lane] = bool({});", self.slice(range));
        self.for_running(&text, seen, out);
        Some(format!("taskgpu_mask.go({code})"))
    }

    /// Writes a loop over the threads that are not off.
    fn for_running(&self, body: &str, seen: &[Seen], out: &mut String) {
        if !self.masked {
            self.for_lanes(body, seen, out);
            return;
        }
        out.push_str("if (!taskgpu_mask.some) {\n");
        self.for_lanes(body, seen, out);
        out.push_str("} else {\n");
        self.for_lanes(
            &format!("if (taskgpu_mask.off[taskgpu_lane]) return;\n{body}"),
            seen,
            out,
        );
        out.push_str("}\n");
    }

    /// Writes a loop over the threads.
    fn for_lanes(&self, body: &str, seen: &[Seen], out: &mut String) {
        out.push_str(
            "taskgpu::for_lanes(blockDim, [&](const uint3 threadIdx, size_t taskgpu_lane) __attribute__((always_inline)) {\n",
        );
        out.push_str(&bindings(seen, true));
        out.push_str(&format!("{{{body}}}\n}});\n"));
    }

    /// Writes statements without barriers as one loop over the threads. `later` is what can still see their variables.
    fn region(
        &mut self,
        statements: &[Statement],
        later: Range<usize>,
        seen: &mut Vec<Seen>,
        out: &mut String,
    ) -> Option<()> {
        let before = seen.clone();
        let guard = self.guard(statements, seen);
        let mut body = String::new();
        for statement in statements {
            match statement {
                Statement::Plain(range) => {
                    if self.masked && self.parts_threads(range.clone(), seen) {
                        return None;
                    }
                    body.push_str(&self.expression(range.clone(), &guard));
                }
                Statement::Declare(declaration) => {
                    self.declare(declaration, later.clone(), seen, &mut body, out)?;
                }
                _ => return None,
            }
        }
        let range = self.start(statements.first())?..self.end_of(statements.last()?);
        // Two copies of a variable that is one for all threads would be two.
        let single = self.source.mentions(range.clone(), &["static", "__shared__"]);
        let mut all = String::new();
        if guard.conditions.is_empty() {
            self.for_lanes(&body, &before, &mut all);
        } else {
            let fits = match guard.narrowed.check(false) {
                Some(check) if guard.ask != Ask::Corners => format!(
                    "taskgpu::for_last(blockDim, [&](const uint3 threadIdx) __attribute__((always_inline)) {{\n{}return {check};\n}}) && ",
                    bindings(&guard.seen, false)
                ),
                _ => String::new(),
            };
            all.push_str(&format!(
                "if ({fits}taskgpu::holds<{}>(blockDim, [&](const uint3 threadIdx) __attribute__((always_inline)) {{\n{}}})) {{\n\
                 constexpr taskgpu::sure taskgpu_sure = {{true}};\n",
                guard.ask.name(),
                guard.body(self)
            ));
            let mut sure = String::new();
            self.for_lanes(&body, &before, &mut sure);
            all.push_str(&guard.narrowed.apply(sure));
            all.push_str("} else {\nconstexpr taskgpu::sure taskgpu_sure = {false};\n");
            self.for_lanes(&body, &before, &mut all);
            all.push_str("}\n");
        }
        if !self.masked {
            out.push_str(&all);
            return Some(());
        }
        if !single {
            out.push_str(&format!("if (!taskgpu_mask.some) {{\n{all}}} else "));
        }
        out.push_str("{\nconstexpr taskgpu::sure taskgpu_sure = {false};\n");
        let running = format!("if (taskgpu_mask.off[taskgpu_lane]) return;\n{body}");
        self.for_lanes(&running, &before, out);
        out.push_str("}\n");
        if self.has_jumps(range) {
            out.push_str("taskgpu_mask.look();\n");
        }
        Some(())
    }

    /// A statement. What is no declaration that is understood must be an expression, and only that compiles in brackets:
    /// the names of others would be forgotten.
    fn expression(&self, range: Range<usize>, guard: &Guard) -> String {
        let start = range
            .clone()
            .find(|&at| self.source.tokens[at].kind != Kind::Directive)
            .unwrap_or(range.end);
        let statement =
            start == range.end || STATEMENTS.contains(&self.text(start)) || self.text(range.end - 1) != ";";
        if statement {
            return guard.slice(self, range);
        }
        let before = match start > range.start {
            true => guard.slice(self, range.start..start),
            false => String::new(),
        };
        format!("{before}({});\n", guard.slice(self, start..range.end - 1))
    }

    fn declare(
        &mut self,
        declaration: &Declaration,
        later: Range<usize>,
        seen: &mut Vec<Seen>,
        body: &mut String,
        out: &mut String,
    ) -> Option<()> {
        let specifiers = self.slice(declaration.specifiers.clone());
        for variable in &declaration.variables {
            let name = self.text(variable.name).to_owned();
            let one = format!("{specifiers}{};\n", self.slice(variable.declarator.clone()));
            if self.hides(&name, seen) {
                return None;
            }
            let escapes = self.may_escape(declaration, variable);
            if !later.clone().any(|at| self.text(at) == name) && !escapes {
                // Its name may be another's as well, which is meant from now on by nobody.
                body.push_str(&one);
                if variable.reference || !self.is_scalar(declaration, variable) {
                    // What a destructor does would be done too soon.
                    body.push_str(&format!(
                        "static_assert(taskgpu::plain<decltype({name})>, \"\");\n"
                    ));
                }
                continue;
            }
            if variable
                .value
                .is_some_and(|value| self.has_lambda(value..variable.declarator.end))
            {
                // It may know the addresses of anything.
                return None;
            }
            let changes = self.may_change(declaration, variable);
            let value = variable.value.map(|value| value..variable.declarator.end);
            let again = value
                .clone()
                .filter(|value| !changes && !escapes && !variable.reference && !self.may_trap(value.clone()))
                .and_then(|value| self.value_of(value.start + 1..value.end, seen));
            if let Some(same) = again {
                let one = self.constant(declaration, variable);
                body.push_str(&one);
                // Outside of the loops over threads it has a type, and a value if it is the same for all.
                out.push_str(&one);
                seen.push(Seen::Again(name, one, same));
                continue;
            }
            if variable.reference {
                return None;
            }
            if !self.is_scalar(declaration, variable) && self.may_know_themselves() {
                return None;
            }
            let lanes = self.new_lanes(&name);
            let span = |splitter: &Self, range: Range<usize>| splitter.slice(range);
            let is_auto = self.source.mentions(declaration.specifiers.clone(), &["auto"]);
            let declarator_end = variable.value.unwrap_or(variable.declarator.end);
            if is_auto {
                let value = value.clone()?;
                if self.text(value.start) != "=" {
                    return None;
                }
                out.push_str(&format!(
                    "taskgpu::lane<decltype(taskgpu::decayed({}))> {lanes}[taskgpu::most] __attribute__((aligned(64)));\n",
                    span(self, value.start + 1..value.end)
                ));
            } else {
                out.push_str(&format!(
                    "typedef {specifiers}{}{lanes}_type{};\nstatic_assert(__is_trivially_copyable({lanes}_type), \"\");\ntaskgpu::lane<{lanes}_type> {lanes}[taskgpu::most] __attribute__((aligned(64)));\n",
                    span(self, variable.declarator.start..variable.name),
                    span(self, variable.name + 1..declarator_end)
                ));
            }
            self.count(&lanes, out);
            out.push_str(&format!(
                "auto &{name} = taskgpu::in({lanes}[0]);\nstatic_assert(taskgpu::plain<decltype({name})>, \"\");\n"
            ));
            body.push_str(&format!("auto &{name} = taskgpu::in({lanes}[taskgpu_lane]);\n"));
            // Objects have a value without one.
            let value = match value {
                None if !self.is_scalar(declaration, variable) => Some(declarator_end..declarator_end),
                value => value,
            };
            if let Some(value) = value {
                body.push_str(&format!(
                    "{{{specifiers}{}{lanes}_value{}{};\ntaskgpu::assign({name}, {lanes}_value);}}\n",
                    span(self, variable.declarator.start..variable.name),
                    span(self, variable.name + 1..value.start),
                    span(self, value)
                ));
            }
            seen.push(Seen::Lanes(name, lanes));
        }
        Some(())
    }

    /// Whether objects of the source's classes may have their own addresses in them, which a copy would not be at.
    fn may_know_themselves(&self) -> bool {
        let address = |at: usize| match self.text(at) {
            "this" => {
                self.before(at, 1) != "*"
                    && (self.text(at + 1), self.text(at + 2)) != ("-", ">")
                    && self.text(at + 1) != "->"
            }
            "&" => {
                ["(", ",", "=", "{", "return"].contains(&self.before(at, 1)) && self.source.is_word(at + 1)
            }
            _ => false,
        };
        (0..self.source.tokens.len()).any(|at| {
            let class = CLASSES.contains(&self.text(at)) && self.text(at) != "enum";
            let open =
                (at..self.source.tokens.len()).find(|&i| ["{", ";", "(", ")", ">"].contains(&self.text(i)));
            class
                && open.is_some_and(|open| {
                    self.text(open) == "{" && (open..self.source.closing(open)).any(address)
                })
        })
    }

    /// Whether an expression makes a function object.
    fn has_lambda(&self, range: Range<usize>) -> bool {
        range
            .into_iter()
            .any(|at| self.text(at) == "[" && !self.ends_operand(at - 1))
    }

    /// A number or pointer, whose members nobody can change.
    fn is_scalar(&self, declaration: &Declaration, variable: &Variable) -> bool {
        let pointer = (variable.declarator.start..variable.name).any(|i| self.text(i) == "*");
        pointer
            || declaration.specifiers.clone().all(|i| {
                (TYPES.contains(&self.text(i)) && self.text(i) != "auto")
                    || SCALARS.contains(&self.text(i))
                    || ["const", "volatile", "register"].contains(&self.text(i))
            })
    }
}
