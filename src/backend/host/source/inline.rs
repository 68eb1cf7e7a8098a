//! Functions with barriers, written where a kernel calls them: what a kernel waits for in a function of its own could not be
//! cut into loops otherwise.
//!
//! The text it makes means the same, thread by thread: parameters are variables that begin with the arguments, under names
//! that nobody else has, and the call becomes a variable with the result. Where that is not sure, the call is left
//! as it is, and its kernel with it. In particular:
//! - the call is evaluated before everything else of its statement. C++ leaves the order of operands open, and evaluates the
//!   right side of an assignment first; what it orders otherwise (`&&`, `||`, `?:`, commas, shifts, initializer lists,
//!   subscripts, steps such as `i++`) is not taken;
//! - a name of the function's body means there what it means where the function stands: none of them is declared by the
//!   kernel, or the function declares it before it uses it; both stand in the same namespace, and no function that the body
//!   names is declared again between the two;
//! - a reference becomes a pointer, which is the same, or the argument's own name, if its type is the parameter's exactly and
//!   the body does not have that name.

use super::regions::{Splitter, TYPES};
use super::rewrite::{Edits, Reach, BARRIERS};
use super::scan::{Class, Function, Kind, Source};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The most calls of one kernel.
const MOST_CALLS: usize = 64;
/// The most bytes by which they make it longer.
const MOST_TEXT: usize = 256 << 10;
/// The statement that a function with several ways out becomes: `taskgpu_inline (result) { body }`.
pub(super) const INLINE: &str = "taskgpu_inline";

/// The text with such calls written out, or `None` if there are none.
pub(super) fn inline(text: &str) -> Option<String> {
    let mut made: Option<String> = None;
    for which in 0.. {
        let before: &str = made.as_deref().unwrap_or(text);
        let mut after = before.to_owned();
        let mut calls = 0;
        let all = loop {
            let source = Source::new(&after)?;
            let mut kernels = source.functions.iter().filter(|f| f.global && f.body.is_some());
            let Some(kernel) = kernels.nth(which) else {
                return made.and_then(|text| without_methods(&text));
            };
            let Some(call) = Call::first(&source, kernel) else {
                break calls > 0;
            };
            let Some(new) = call.write(&after, calls) else {
                break false;
            };
            after = new;
            calls += 1;
            if calls > MOST_CALLS || after.len() > before.len() + MOST_TEXT {
                break false;
            }
        };
        if all {
            made = Some(after);
        }
    }
    made
}

/// The text without the bodies of functions of classes that have barriers: the indices of threads are no names in a class.
/// Where one is called nevertheless, the compiler says no.
fn without_methods(text: &str) -> Option<String> {
    let source = Source::new(text)?;
    let waiting = Reach::of(&source, BARRIERS, true);
    let mut edits = Edits::new(text);
    for method in source
        .methods
        .iter()
        .filter(|m| waiting.names.contains(m.name.as_str()))
    {
        if let Some(body) = method.body {
            edits.replace(
                source.span(body).start..source.span(source.closing(body)).end,
                "= delete;",
            );
        }
    }
    Some(edits.slice(0..text.len()))
}

/// A call of a function with barriers.
struct Call<'a> {
    source: &'a Source<'a>,
    kernel: &'a Function,
    /// Where the function's name stands.
    at: usize,
}

/// The object whose function is called.
struct Object<'a> {
    /// A variable, or a pointer to it.
    name: &'a str,
    pointer: bool,
    class: &'a Class,
    /// What the class has.
    members: HashSet<&'a str>,
}

/// A parameter of a function.
struct Parameter {
    name: usize,
    /// What stands before the name, without a default value.
    kind: Range<usize>,
    reference: bool,
    array: bool,
    default: Option<Range<usize>>,
}

/// A parameter of a template.
struct TemplateParameter {
    name: usize,
    /// For a value, its type.
    value: Option<Range<usize>>,
}

/// The statement before which a call is evaluated.
struct Place {
    range: Range<usize>,
    /// What it declares is seen by what follows.
    declares: bool,
}

/// Words that no declaration gives another meaning.
const KEYWORDS: &[&str] = &[
    "return",
    "if",
    "else",
    "for",
    "while",
    "do",
    "switch",
    "case",
    "default",
    "break",
    "continue",
    "const",
    "volatile",
    "void",
    "sizeof",
    "true",
    "false",
    "nullptr",
    "typename",
    "__shared__",
    "__restrict__",
    "__device__",
    "__host__",
    "__forceinline__",
    "inline",
    "static",
    "static_cast",
    "reinterpret_cast",
    "const_cast",
    "struct",
    "class",
    "union",
    "typedef",
    "using",
    "constexpr",
    "extern",
    "threadIdx",
    "blockIdx",
    "blockDim",
    "gridDim",
    "__attribute__",
    "operator",
    "template",
];
/// Words behind which no name is declared.
const NO_DECLARATION: &[&str] = &[
    "return",
    "else",
    "case",
    "do",
    "new",
    "delete",
    "const",
    "volatile",
    "register",
    "typename",
    "extern",
    "static",
    "inline",
    "constexpr",
    "thread_local",
    "typedef",
    "__shared__",
];
/// Words before the type of what a function returns.
const NO_RESULT: &[&str] = &[
    "__device__",
    "__host__",
    "__forceinline__",
    "__noinline__",
    "inline",
    "__inline__",
    "__inline",
    "static",
    "constexpr",
    "extern",
    "\"C\"",
];
/// What a body with a meaning of its own has.
const NOT_MOVED: &[&str] = &[
    "goto",
    "try",
    "asm",
    "__asm__",
    "static",
    "thread_local",
    "this",
    "__func__",
    "__FUNCTION__",
    "__PRETTY_FUNCTION__",
    "co_await",
    "co_yield",
    "co_return",
    "enum",
    "alloca",
    "__builtin_alloca",
    "va_list",
];

impl<'a> Call<'a> {
    /// The first in a kernel's body.
    fn first(source: &'a Source<'a>, kernel: &'a Function) -> Option<Call<'a>> {
        let waiting = Reach::of(source, BARRIERS, true).names;
        let open = kernel.body?;
        // A kernel has the name of a class's function for something else, unless it names the object or the class.
        let means = |at: usize| {
            let name = source.text(at);
            waiting.contains(name)
                && (source.functions.iter().any(|f| f.name == name)
                    || [".", "->", "::"].contains(&source.text(at - 1)))
        };
        let at = (open..source.closing(open)).find(|&at| means(at))?;
        Some(Call { source, kernel, at })
    }

    fn text(&self, at: usize) -> &'a str {
        self.source.text(at)
    }

    /// The text of the token before one.
    fn before(&self, at: usize) -> &'a str {
        at.checked_sub(1).map_or("", |at| self.text(at))
    }

    /// The whole text, with the call written out. `number` is one that no other call of the kernel has.
    fn write(&self, text: &str, number: usize) -> Option<String> {
        let source = self.source;
        let edits = Edits::new(text);
        let open = self.kernel.body?;
        let around = Splitter::new(source, &edits, open + 1..source.closing(open));
        let (callee, object) = self.callee(&around)?;
        let callee_open = callee.body?;
        let inner = Splitter::new(source, &edits, callee_open + 1..source.closing(callee_open));

        let (whole, explicit, arguments) = self.parts(&around, object.is_some())?;
        let statement = self.statement(&around, open + 1..source.closing(open), &whole)?;
        let parameters = self.parameters(&inner, callee)?;
        let templates = self.templates(&inner, callee)?;
        if arguments.len() > parameters.len() || (templates.is_empty() && !explicit.is_empty()) {
            return None;
        }
        self.check_names(&around, &inner, callee, &parameters, &templates, object.as_ref())?;

        let mut made = Made {
            call: self,
            text,
            number,
            callee,
            names: HashMap::new(),
            access: "->",
            out: String::new(),
        };
        let before_kernel = made.templates(&templates, &explicit, &arguments)?;
        let shared = made.shared(&inner, &parameters, &templates)?;
        let result = self.result(callee)?;
        let value = made.unique("result");
        if let Some(tokens) = &result {
            let kind: Vec<&str> = tokens.iter().map(|&at| made.word(at)).collect();
            made.out.push_str(&format!("{} {value};\n", kind.join(" ")));
        }
        made.out.push_str("{\n");
        if let Some(object) = &object {
            made.members(object);
        }
        made.parameters(&inner, &parameters, &arguments)?;
        made.body(&inner, &shared, result.is_some().then_some(value.as_str()))?;
        made.out.push_str("}\n");

        // The statement, with the variable in the call's place.
        let span = |range: &Range<usize>| source.span(range.start).start..source.span(range.end - 1).end;
        let (all, call) = (span(&statement.range), span(&whole));
        let alone = statement.range.start == whole.start && statement.range.end == whole.end + 1;
        let rest = match (&result, alone) {
            (_, true) => String::new(),
            (Some(_), false) => format!(
                "{}{value}{}",
                &text[all.start..call.start],
                &text[call.end..all.end]
            ),
            (None, false) => return None,
        };
        let kernel = source
            .span(self.template_of(self.kernel).unwrap_or(self.kernel.head.start))
            .start;
        let body = source.span(open).end;
        let (opening, closing) = if statement.declares { ("", "") } else { ("{", "}") };
        let mut hoisted = String::new();
        for (name, declaration) in &shared.hoisted {
            // A former call may have brought it.
            if !source.mentions(open..source.closing(open), &[name]) {
                hoisted.push_str(declaration);
            }
        }
        Some(
            [
                &text[..kernel],
                &before_kernel,
                &text[kernel..body],
                &hoisted,
                &text[body..all.start],
                "\n",
                opening,
                &made.out,
                &rest,
                closing,
                "\n",
                &text[all.end..],
            ]
            .concat(),
        )
    }

    /// The one function of that name that has a body, and for one of a class the object.
    fn callee(&self, around: &Splitter<'_>) -> Option<(&'a Function, Option<Object<'a>>)> {
        let name = self.text(self.at);
        let all = || {
            self.source
                .functions
                .iter()
                .chain(&self.source.methods)
                .filter(|f| f.name == name)
        };
        let callee = all().find(|f| f.body.is_some())?;
        let object = match callee.class {
            Some(class) => Some(self.object(around, callee, &self.source.classes[class])?),
            None => None,
        };
        let space = |f: &Function| f.path.len() - f.name.len();
        let of_kernel = &self.kernel.path[..space(self.kernel)];
        let near = match &object {
            Some(object) => object.class.path == of_kernel,
            None => callee.path[..space(callee)] == *of_kernel,
        };
        // A declaration before it says the same again.
        let same = |f: &Function| {
            f.path == callee.path
                && f.params <= callee.params
                && (f.body.is_none() || f.params == callee.params)
        };
        let fits = near && all().all(same) && !callee.global && callee.params < self.kernel.params;
        fits.then_some((callee, object))
    }

    /// The object of a call `object.function(...)` or `pointer->function(...)`.
    fn object(&self, around: &Splitter<'_>, callee: &Function, class: &'a Class) -> Option<Object<'a>> {
        let source = self.source;
        let pointer = self.before(self.at) == "->";
        let name = self.at.checked_sub(2).filter(|&at| source.is_word(at))?;
        let plain = [".", "->"].contains(&self.before(self.at))
            && ![".", "->", "::", "&", "*"].contains(&self.before(name))
            && class.simple
            && !callee.template;
        let name = self.text(name);
        // It is the same object until the function ends.
        let mut declared = around.declared(around.body.clone());
        declared.retain(|&at| self.text(at) == name);
        let declared: Vec<Range<usize>> = declared.into_iter().map(|at| at..at + 1).collect();
        let kept = declared.len() <= 1 && !around.is_changed(name, &declared, true);
        if !plain || name == "this" || (pointer && !kept) {
            return None;
        }
        // What is not understood may be a name.
        let mut members = HashSet::new();
        let inside = class.open + 1..source.closing(class.open);
        let mut at = inside.start;
        while at < inside.end {
            if ["public", "private", "protected"].contains(&self.text(at)) {
                at += 2;
                continue;
            }
            let stop = around.split_at(at..inside.end, ";").first()?.end;
            at = match source.methods.iter().find(|m| m.head.start == at) {
                Some(method) => {
                    let kinds = ["friend", "static", "virtual", "operator", "constexpr", "="];
                    let end = method.body.map_or(stop, |body| source.closing(body));
                    if method.template || source.mentions(at..method.body.unwrap_or(end), &kinds) {
                        return None;
                    }
                    members.insert(self.text(method.params - 1));
                    end + 1
                }
                None => {
                    let kinds = [
                        "static",
                        "typedef",
                        "using",
                        "constexpr",
                        "friend",
                        "mutable",
                        "enum",
                        "{",
                    ];
                    let declaration = around.declaration(at..stop + 1)?;
                    if stop >= inside.end || source.mentions(at..stop, &kinds) {
                        return None;
                    }
                    members.extend(declaration.variables.iter().map(|v| self.text(v.name)));
                    stop + 1
                }
            };
        }
        Some(Object {
            name,
            pointer,
            class,
            members,
        })
    }

    /// The tokens of the call, the arguments of the template, and those of the function.
    fn parts(
        &self,
        around: &Splitter<'_>,
        member: bool,
    ) -> Option<(Range<usize>, String, Vec<Range<usize>>)> {
        let source = self.source;
        if [".", "->", "::"].contains(&self.before(self.at)) != member {
            return None;
        }
        let mut open = self.at + 1;
        let mut explicit = String::new();
        if self.text(open) == "<" {
            let after = source.after_angle(open, source.tokens.len())?;
            explicit = around.slice(open..after);
            open = after;
        }
        if self.text(open) != "(" {
            return None;
        }
        let close = source.closing(open);
        let arguments = match open + 1 == close {
            true => Vec::new(),
            false => around.split_at(open + 1..close, ","),
        };
        let start = if member { self.at - 2 } else { self.at };
        Some((start..close + 1, explicit, arguments))
    }

    /// The statement with the call, if the call may be evaluated before the rest of it.
    fn statement(&self, around: &Splitter<'_>, range: Range<usize>, call: &Range<usize>) -> Option<Place> {
        let has = |range: &Range<usize>| range.contains(&call.start);
        let mut at = range.start;
        while at < range.end {
            let (next, place) = match self.text(at) {
                "{" => {
                    let inside = at + 1..self.source.closing(at);
                    if has(&inside) {
                        return self.statement(around, inside, call);
                    }
                    (inside.end + 1, None)
                }
                "if" if self.text(at + 1) == "(" => {
                    let (condition, after) = around.brackets(at + 1)?;
                    let mut place = None;
                    if has(&condition) {
                        let (_, end) = around.bare_statement(at, range.end)?;
                        self.is_first(condition, call)?;
                        place = Some((at..end, false));
                    }
                    (after, place)
                }
                "if" | "for" | "while" | "switch" | INLINE => {
                    let open = at + 1 + usize::from(self.text(at + 1) == "constexpr");
                    let (head, after) = around.brackets(open)?;
                    if has(&head) {
                        return None;
                    }
                    (after, None)
                }
                "do" | "else" => (at + 1, None),
                "case" | "default" => ((at..range.end).find(|&i| self.text(i) == ":")? + 1, None),
                _ if self.source.tokens[at].kind == Kind::Directive => (at + 1, None),
                _ => {
                    let stop = around.split_at(at..range.end, ";").first()?.end;
                    if stop >= range.end {
                        return None;
                    }
                    let mut place = None;
                    if has(&(at..stop)) {
                        place = Some((at..stop + 1, self.simple(around, at..stop, range.start, call)?));
                    }
                    (stop + 1, place)
                }
            };
            if let Some((range, declares)) = place {
                return Some(Place { range, declares });
            }
            at = next;
        }
        None
    }

    /// Whether a statement that ends with a semicolon declares something; `None` if the call has to stay where it is.
    fn simple(
        &self,
        around: &Splitter<'_>,
        range: Range<usize>,
        first: usize,
        call: &Range<usize>,
    ) -> Option<bool> {
        if range == *call {
            return Some(false);
        }
        if self.text(range.start) == "return" {
            self.is_first(range.start + 1..range.end, call)?;
            return Some(false);
        }
        if let Some(declaration) = around.declaration(range.start..range.end + 1) {
            let kept = [
                "static",
                "extern",
                "constexpr",
                "thread_local",
                "__shared__",
                "typedef",
                "using",
            ];
            let variable = declaration.variables.first()?;
            let value = variable.value?;
            let inside = match self.text(value) {
                "=" => value + 1..variable.declarator.end,
                "(" => value + 1..self.source.closing(value),
                _ => return None,
            };
            // It must not be the only statement of a branch.
            let before = range.start - 1;
            let listed = range.start == first
                || ["{", "}", ";"].contains(&self.text(before))
                || self.source.tokens[before].kind == Kind::Directive;
            if self.source.mentions(range, &kept) || !inside.contains(&call.start) || !listed {
                return None;
            }
            self.is_first(inside, call)?;
            return Some(true);
        }
        // An assignment, to something that cannot be a declaration's name.
        let mut at = range.start;
        while self.text(at) == "*" {
            at += 1;
        }
        if !self.source.is_word(at) {
            return None;
        }
        at += 1;
        loop {
            match self.text(at) {
                "." | "->" | "::" if self.source.is_word(at + 1) => at += 2,
                "[" => at = self.source.closing(at) + 1,
                _ => break,
            }
        }
        if ["+", "-", "*", "/", "%", "&", "|", "^"].contains(&self.text(at)) {
            at += 1;
        }
        if self.text(at) != "=" || self.text(at + 1) == "=" {
            return None;
        }
        self.is_first(at + 1..range.end, call)?;
        Some(false)
    }

    /// Whether the call may be evaluated before everything else of an expression.
    fn is_first(&self, range: Range<usize>, call: &Range<usize>) -> Option<()> {
        if !range.contains(&call.start) {
            return None;
        }
        let others = || range.clone().filter(|at| !call.contains(at));
        let words = [
            "sizeof",
            "decltype",
            "typeof",
            "__typeof__",
            "alignof",
            "noexcept",
            "typeid",
            "new",
            "delete",
            "throw",
            "and",
            "or",
        ];
        let mut groups = Vec::new();
        for at in others() {
            let (text, next) = (self.text(at), self.text(at + 1));
            let twice = text == next && ["&", "|", "<", ">", "+", "-"].contains(&text);
            let assigns = text == "=" && next != "=" && !["=", "<", ">", "!"].contains(&self.before(at));
            if twice || assigns || ["?", "{", ";"].contains(&text) || words.contains(&text) {
                return None;
            }
            while groups.last().is_some_and(|&open| self.source.closing(open) < at) {
                groups.pop();
            }
            match text {
                // Of arguments, which have no order.
                "," if !groups
                    .last()
                    .is_some_and(|&open: &usize| self.source.is_word(open - 1)) =>
                {
                    return None
                }
                "(" | "[" => groups.push(at),
                _ => {}
            }
            // What it stands in: brackets of a function's arguments, or of nothing.
            let around =
                ["(", "["].contains(&text) && at < call.start && self.source.closing(at) > call.start;
            let before = self.before(at);
            let member = at > 1 && self.source.is_word(at - 1) && self.text(at - 2) == "->";
            if around && (text == "[" || member || [")", "]", ">", "}"].contains(&before)) {
                return None;
            }
        }
        Some(())
    }

    /// The parameters, if all are understood.
    fn parameters(&self, inner: &Splitter<'_>, callee: &Function) -> Option<Vec<Parameter>> {
        let inside = callee.params + 1..self.source.closing(callee.params);
        if inside.is_empty() || (inside.len() == 1 && self.text(inside.start) == "void") {
            return Some(Vec::new());
        }
        let read = |part: Range<usize>| {
            let equals = part.clone().find(|&i| self.text(i) == "=");
            let end = equals.unwrap_or(part.end);
            let bracket = (part.start..end).find(|&i| self.text(i) == "[");
            let array = bracket.is_some();
            if bracket.is_some_and(|b| self.source.closing(b) + 1 != end) {
                return None;
            }
            let name = bracket.unwrap_or(end).checked_sub(1)?;
            let reference = name > part.start && self.text(name - 1) == "&";
            let kind = part.start..if reference { name - 1 } else { name };
            let odd = self.source.mentions(kind.clone(), &["(", ".", "&", "auto"])
                || TYPES.contains(&self.text(name))
                || (reference && array);
            (!kind.is_empty() && !odd && self.source.is_word(name)).then_some(Parameter {
                name,
                kind,
                reference,
                array,
                default: equals.map(|at| at + 1..part.end),
            })
        };
        inner.split_at(inside, ",").into_iter().map(read).collect()
    }

    /// Where the word `template` of a function stands.
    fn template_of(&self, function: &Function) -> Option<usize> {
        let head = function.head.start;
        let at = (0..head)
            .rev()
            .take(256)
            .find(|&at| self.text(at) == "template")?;
        (self.source.after_angle(at + 1, head + 1) == Some(head)).then_some(at)
    }

    /// The parameters of the template that a function is.
    fn templates(&self, inner: &Splitter<'_>, callee: &Function) -> Option<Vec<TemplateParameter>> {
        if !callee.template {
            return Some(Vec::new());
        }
        let at = self.template_of(callee)?;
        let read = |part: Range<usize>| {
            let end = part.clone().find(|&i| self.text(i) == "=").unwrap_or(part.end);
            let name = end
                .checked_sub(1)
                .filter(|&name| name > part.start && self.source.is_word(name))?;
            let class = ["class", "typename"].contains(&self.text(part.start));
            let odd = self
                .source
                .mentions(part.clone(), &["(", ".", "template", "auto"])
                || (class && name != part.start + 1);
            (!odd && !TYPES.contains(&self.text(name))).then_some(TemplateParameter {
                name,
                value: (!class).then_some(part.start..name),
            })
        };
        inner
            .split_at(at + 2..callee.head.start - 1, ",")
            .into_iter()
            .map(read)
            .collect()
    }

    /// The tokens of the type that a function returns; none of `void`.
    fn result(&self, callee: &Function) -> Option<Option<Vec<usize>>> {
        let mut tokens = Vec::new();
        let mut at = callee.head.start;
        while at < callee.params - 1 {
            match self.text(at) {
                "__attribute__" | "__launch_bounds__" => at = self.source.closing(at + 1),
                "[" => at = self.source.closing(at),
                "auto" | "decltype" | "&" | "operator" => return None,
                word if NO_RESULT.contains(&word) => {}
                _ => tokens.push(at),
            }
            at += 1;
        }
        let pointer = tokens.iter().any(|&at| self.text(at) == "*");
        if !pointer {
            tokens.retain(|&at| self.text(at) != "const");
        }
        // What stands behind the parameters may be the type as well.
        let body = callee.body?;
        let plain = self.source.closing(callee.params) + 1 == body && !tokens.is_empty();
        let void = tokens.len() == 1 && self.text(tokens[0]) == "void";
        plain.then_some((!void).then_some(tokens))
    }

    /// Whether the names in the function mean the same where it is called.
    fn check_names(
        &self,
        around: &Splitter<'_>,
        inner: &Splitter<'_>,
        callee: &Function,
        parameters: &[Parameter],
        templates: &[TemplateParameter],
        object: Option<&Object<'_>>,
    ) -> Option<()> {
        let source = self.source;
        let body = callee.body?;
        let whole = callee.head.start..source.closing(body);
        let odd = |at: usize| {
            let text = self.text(at);
            let shared = text == "static" && [self.text(at + 1), self.before(at)].contains(&"__shared__");
            let this = text == "this" && object.is_some() && self.text(at + 1) == "->";
            (NOT_MOVED.contains(&text) && !shared && !this)
                || (text == callee.name && at + 1 != callee.params)
        };
        if (body..whole.end).any(odd) {
            return None;
        }
        // The kernel's names.
        let open = self.kernel.body?;
        let first = self.template_of(self.kernel).unwrap_or(self.kernel.params);
        let bindings = |at: usize| {
            self.text(at) == "auto"
                && (self.text(at + 1) == "[" || (self.text(at + 1) == "&" && self.text(at + 2) == "["))
        };
        if (open..source.closing(open)).any(|at| bindings(at) || self.text(at) == "enum") {
            return None;
        }
        let mut taken: HashSet<&str> = HashSet::new();
        for at in first + 1..source.closing(open) {
            let before = at - 1;
            let typed = source.is_word(before) && !NO_DECLARATION.contains(&self.text(before));
            if source.is_word(at) && typed {
                taken.insert(self.text(at));
            }
        }
        for name in self.parameter_names(around, self.kernel)? {
            taken.insert(name);
        }
        taken.extend(
            around
                .declared(open + 1..source.closing(open))
                .into_iter()
                .map(|at| self.text(at)),
        );
        // The function's.
        let own = inner.declared(body + 1..whole.end);
        if let Some(object) = object {
            let hidden = |at: &usize| object.members.contains(self.text(*at));
            if own.iter().any(hidden) || source.mentions(whole.clone(), &[object.name]) {
                return None;
            }
        }
        let mut renamed: Vec<&str> = parameters.iter().map(|p| self.text(p.name)).collect();
        renamed.extend(templates.iter().map(|t| self.text(t.name)));
        if own.iter().any(|&at| renamed.contains(&self.text(at))) {
            return None;
        }
        // Behind its block a name means something else again.
        let scopes: Vec<(&str, Range<usize>)> = own
            .iter()
            .map(|&at| (self.text(at), at..self.end_of_scope(at, body)))
            .collect();
        for at in whole.clone() {
            let text = self.text(at);
            let member = [".", "->", "::"].contains(&self.before(at))
                || object.is_some_and(|object| object.members.contains(text));
            if !source.is_word(at) || member || renamed.contains(&text) {
                continue;
            }
            let again = |f: &Function| f.name == text && f.params > callee.params;
            let fixed = TYPES.contains(&text) || KEYWORDS.contains(&text);
            let known = || {
                scopes
                    .iter()
                    .any(|(name, scope)| *name == text && scope.contains(&at))
            };
            if (!fixed && taken.contains(text) && !known()) || source.functions.iter().any(again) {
                return None;
            }
        }
        Some(())
    }

    /// Where at the earliest the scope of a name ends that is declared at `at`, in the function's body that opens at `body`.
    fn end_of_scope(&self, at: usize, body: usize) -> usize {
        let closing = |i: usize| self.source.closing(i);
        let open = (body..at)
            .rev()
            .find(|&i| ["{", "("].contains(&self.text(i)) && closing(i) > at)
            .unwrap_or(body);
        if self.text(open) == "{" {
            return closing(open);
        }
        // Of a loop or branch: with its one statement.
        let mut end = closing(open) + 1;
        while end < closing(body) && ![";", "{"].contains(&self.text(end)) {
            end = match self.text(end) {
                "(" => closing(end),
                _ => end,
            } + 1;
        }
        match self.text(end) {
            "{" => closing(end),
            _ => end,
        }
    }

    fn parameter_names(&self, around: &Splitter<'_>, kernel: &Function) -> Option<Vec<&'a str>> {
        let names = around.parameters(kernel)?;
        Some(names.into_iter().map(|at| self.source.text(at)).collect())
    }

    /// Whether the kernel has a shared array of this name.
    fn is_shared(&self, name: &str) -> bool {
        let Some(open) = self.kernel.body else {
            return false;
        };
        (open..self.source.closing(open)).any(|at| {
            let start = (open..at)
                .rev()
                .find(|&i| [";", "{", "}"].contains(&self.text(i)));
            self.text(at) == name
                && self.text(at + 1) == "["
                && start.is_some_and(|start| self.source.mentions(start..at, &["__shared__"]))
        })
    }
}

/// Shared memory of a function.
struct Shared {
    /// Declarations that the body goes without.
    left_out: Vec<Range<usize>>,
    /// The same at the top of the kernel, by name, since each call means the same memory.
    hoisted: Vec<(String, String)>,
}

/// What a call becomes.
struct Made<'a> {
    call: &'a Call<'a>,
    text: &'a str,
    number: usize,
    callee: &'a Function,
    /// What the function's names become.
    names: HashMap<&'a str, String>,
    /// What stands between an object and its members.
    access: &'static str,
    out: String,
}

impl<'a> Made<'a> {
    /// A name that nothing else has.
    fn unique(&self, what: &str) -> String {
        format!("taskgpu_{what}_{}_{}", self.number, self.callee.name)
    }

    fn word(&self, at: usize) -> &str {
        let text = self.call.text(at);
        let member = [".", "->", "::"].contains(&self.call.before(at));
        match self.names.get(text) {
            Some(new) if !member && self.call.source.is_word(at) => new,
            _ => text,
        }
    }

    /// A piece of the function's text under the new names.
    fn piece(&self, range: Range<usize>) -> String {
        let mut out = String::from("\n");
        let mut end = None;
        for at in range {
            let span = self.call.source.span(at);
            if let Some(end) = end {
                out.push_str(&self.text[end..span.start]);
            }
            // `this->x` of an object that has a name is `name.x`.
            match self.call.text(at) {
                "->" if self.call.before(at) == "this" => out.push_str(self.access),
                _ => out.push_str(self.word(at)),
            }
            end = Some(span.end);
        }
        out.push('\n');
        out
    }

    /// Gives the members of the class the names that they have outside.
    fn members(&mut self, object: &Object<'a>) {
        let Object { name, class, .. } = object;
        let (star, access) = if object.pointer { ("*", "->") } else { ("", ".") };
        self.out.push_str(&format!(
            "sizeof(taskgpu::bound<{}{star}, decltype(({name}))>);\n",
            class.name
        ));
        for &member in &object.members {
            self.names.insert(member, format!("{name}{access}{member}"));
        }
        self.access = access;
        // Nobody asks for the address itself.
        self.names.insert("this", (*name).to_owned());
    }

    /// Gives the parameters of the template their values, and answers what has to be declared before the kernel for that:
    /// the compiler finds them itself.
    fn templates(
        &mut self,
        templates: &[TemplateParameter],
        explicit: &str,
        arguments: &[Range<usize>],
    ) -> Option<String> {
        if templates.is_empty() {
            return Some(String::new());
        }
        let call = self.call;
        let at = call.template_of(self.callee)?;
        let (types, deduce) = (self.unique("types"), self.unique("deduce"));
        let list = self.piece(at..self.callee.head.start);
        let parameters = self.piece(self.callee.params..call.source.closing(self.callee.params) + 1);
        let given: Vec<String> = arguments.iter().map(|a| self.piece(a.clone())).collect();
        self.out.push_str(&format!(
            "typedef decltype({deduce}{explicit}({})) {types}_given;\n",
            given.join(",")
        ));
        let (mut names, mut members) = (Vec::new(), String::new());
        for one in templates {
            let name = call.text(one.name);
            let new = self.unique(name);
            match &one.value {
                None => {
                    members.push_str(&format!("typedef {name} {new};\n"));
                    self.out
                        .push_str(&format!("typedef typename {types}_given::{new} {new};\n"));
                }
                Some(kind) => {
                    members.push_str(&format!(
                        "static constexpr {} {new} = {name};\n",
                        self.piece(kind.clone())
                    ));
                    // Its type may be one of those before it.
                    let kind =
                        format!("constexpr decltype({types}_given::{new}) {new} = {types}_given::{new};\n");
                    self.out.push_str(&kind);
                }
            }
            names.push((name, new));
        }
        let given: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let before = format!(
            "\n{list} struct {types} {{ {members} }};\n{list} {types}<{}> {deduce}{parameters};\n",
            given.join(", ")
        );
        self.names.extend(names);
        Some(before)
    }

    /// The function's shared memory. `None` if it cannot be told whether two calls mean the same.
    fn shared(
        &mut self,
        inner: &Splitter<'_>,
        parameters: &[Parameter],
        templates: &[TemplateParameter],
    ) -> Option<Shared> {
        let call = self.call;
        let mut shared = Shared {
            left_out: Vec::new(),
            hoisted: Vec::new(),
        };
        let body = inner.body.clone();
        for at in body.clone().filter(|&at| call.text(at) == "__shared__") {
            let start = (body.start..at)
                .rev()
                .find(|&i| [";", "{", "}"].contains(&call.text(i)))
                .map_or(body.start, |i| i + 1);
            let end = (at..body.end).find(|&i| call.text(i) == ";")? + 1;
            if call.source.mentions(start..end, &["extern"]) {
                continue;
            }
            let depends = |i: usize| {
                let text = call.text(i);
                parameters.iter().any(|p| call.text(p.name) == text)
                    || templates.iter().any(|t| call.text(t.name) == text)
                    || inner
                        .declared(body.clone())
                        .iter()
                        .any(|&d| call.text(d) == text && d < start)
            };
            let name =
                (at + 1..end).find(|&i| call.source.is_word(i) && ["[", ";"].contains(&call.text(i + 1)))?;
            let (open, close) = (call.kernel.body?, call.source.closing(call.kernel.body?));
            if (start..end).any(depends) {
                // In place: there must be no other call.
                let this = |i: usize| {
                    call.text(i) == self.callee.name
                        || call.text(i).ends_with(&format!("_{}", self.callee.name))
                };
                if (open..close).filter(|&i| this(i)).count() > 1 {
                    return None;
                }
                continue;
            }
            let old = call.text(name);
            let again = body.clone().any(|i| {
                i != name && call.text(i) == old && call.source.is_word(i - 1) && call.text(i - 1) != "return"
            });
            // One declarator, one meaning of its name.
            if again || inner.split_at(at..end, ",").len() != 1 {
                return None;
            }
            let new = format!("taskgpu_shared_{old}_of_{}", self.callee.name);
            self.names.insert(old, new.clone());
            shared.hoisted.push((new, self.piece(start..end)));
            shared.left_out.push(start..end);
        }
        Some(shared)
    }

    /// Declares the parameters, or puts the arguments in their place.
    fn parameters(
        &mut self,
        inner: &Splitter<'_>,
        parameters: &[Parameter],
        arguments: &[Range<usize>],
    ) -> Option<()> {
        let call = self.call;
        let shaped = ["sizeof", "decltype", "typeof", "__typeof__", "typeid"];
        let shaped = call.source.mentions(inner.body.clone(), &shaped);
        let mut names = Vec::new();
        for (i, parameter) in parameters.iter().enumerate() {
            let name = call.text(parameter.name);
            let kind = self.piece(parameter.kind.clone());
            let given = match (arguments.get(i), &parameter.default) {
                // Names of the kernel.
                (Some(range), _) => format!(
                    "\n{}\n",
                    &self.text[call.source.span(range.start).start..call.source.span(range.end - 1).end]
                ),
                (None, Some(range)) => self.piece(range.clone()),
                (None, None) => return None,
            };
            let alone = arguments
                .get(i)
                .filter(|range| range.len() == 1 && call.source.is_word(range.start));
            // A name that the body does not have for something else.
            let argument = alone.map(|range| call.text(range.start)).filter(|argument| {
                !shaped && (*argument == name || !call.source.mentions(inner.body.clone(), &[argument]))
            });
            let star = if parameter.array { "*" } else { "" };
            let pointer = parameter.array || call.text(parameter.kind.end - 1) == "*";
            let new = self.unique(name);
            let new = match argument {
                Some(argument) if parameter.reference => {
                    self.out.push_str(&format!(
                        "sizeof(taskgpu::bound<{kind}, decltype(({argument}))>);\n"
                    ));
                    argument.to_owned()
                }
                Some(argument)
                    if pointer && call.is_shared(argument) && !inner.is_changed(name, &[], false) =>
                {
                    self.out.push_str(&format!(
                        "sizeof(taskgpu::decays<{kind}{star}, decltype(({argument}))>);\n"
                    ));
                    argument.to_owned()
                }
                _ if parameter.reference => {
                    self.out.push_str(&format!("{kind} *{new} = &({given});\n"));
                    format!("(*{new})")
                }
                _ => {
                    self.out.push_str(&format!("{kind} {star}{new} = {given};\n"));
                    new
                }
            };
            names.push((name, new));
        }
        self.names.extend(names);
        Some(())
    }

    /// The body. What it returns becomes the value of a variable.
    fn body(&mut self, inner: &Splitter<'_>, shared: &Shared, value: Option<&str>) -> Option<()> {
        let body = inner.body.clone();
        let returns = inner.returns(body.clone());
        // The body without its shared memory.
        let before = |made: &mut Made<'_>, end: usize| {
            let mut start = body.start;
            for range in &shared.left_out {
                if range.end <= end {
                    let piece = made.piece(start..range.start);
                    made.out.push_str(&piece);
                    start = range.end;
                }
            }
            let piece = made.piece(start..end);
            made.out.push_str(&piece);
        };
        let Some(&last) = returns.last() else {
            before(self, body.end);
            return Some(());
        };
        // At the end it is no way out.
        let end = inner.split_at(last..body.end, ";").first()?.end;
        let listed = last == body.start || ["{", "}", ";"].contains(&self.call.text(last - 1));
        if returns.len() == 1 && listed && end + 1 == body.end {
            before(self, last);
            if let (Some(value), true) = (value, last + 1 < end) {
                let given = self.piece(last + 1..end);
                self.out.push_str(&format!("{value} = {given};\n"));
            }
            return (value.is_some() || last + 1 == end).then_some(());
        }
        self.out
            .push_str(&format!("{INLINE} ({}) {{\n", value.unwrap_or_default()));
        before(self, body.end);
        self.out.push_str("}\n");
        Some(())
    }
}
