//! From preprocessed kernel source to C++ that the system's compiler takes.
//!
//! Every thread of a block has its own `threadIdx`. In a *fast* module it is a parameter that kernels, and functions
//! that need it, get in addition, so that a loop over the threads can be made of vector instructions. Where that does
//! not compile, for example since a class uses `threadIdx`, a *plain* module keeps the indices in thread-local
//! variables, which is slower and always works.
//!
//! Nothing here adds or removes a line: the compiler's messages name the user's own.

use super::regions;
use super::scan::{Function, Kind, Source};
use crate::backend::{Error, Result, Status};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

pub(super) const INDICES: &[&str] = &["threadIdx", "blockIdx", "blockDim", "gridDim"];
pub(super) const BARRIERS: &[&str] = &["__syncthreads"];
const PARAMETERS: &str =
    "const uint3 threadIdx, const uint3 blockIdx, const dim3 blockDim, const dim3 gridDim";
const ARGUMENTS: &str = "threadIdx, blockIdx, blockDim, gridDim";

/// What `__shared__` becomes. Vectors that lie in two lines of a cache take twice as long.
pub(super) const SHARED: &str = "static thread_local __attribute__((aligned(64)))";

/// How a module is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As [`Way::Regions`], with functions with barriers written out in the kernels that call them.
    Inlined,
    /// Indices are parameters, and kernels with barriers are cut into loops between them.
    Regions,
    /// Indices are parameters.
    Fast,
    /// Indices are thread-local variables.
    Plain,
}

impl Way {
    /// The fastest first.
    pub(super) const ALL: [Way; 4] = [Way::Inlined, Way::Regions, Way::Fast, Way::Plain];
}

/// Pieces of text to be replaced.
#[derive(Clone)]
pub(super) struct Edits<'a> {
    text: &'a str,
    list: Vec<(Range<usize>, String)>,
}

impl<'a> Edits<'a> {
    pub(super) fn new(text: &'a str) -> Edits<'a> {
        Edits {
            text,
            list: Vec::new(),
        }
    }

    /// Puts `new` in the place of a piece, and keeps the lines of what was there.
    pub(super) fn replace(&mut self, span: Range<usize>, new: impl Into<String>) {
        let mut new = new.into();
        new.extend(self.text[span.clone()].chars().filter(|c| *c == '\n'));
        self.list.push((span, new));
    }

    pub(super) fn insert(&mut self, at: usize, new: impl Into<String>) {
        self.list.push((at..at, new.into()));
    }

    /// A piece of the text as it becomes.
    pub(super) fn slice(&self, span: Range<usize>) -> String {
        let inside = |edit: &&(Range<usize>, String)| edit.0.start >= span.start && edit.0.end <= span.end;
        let mut list: Vec<_> = self.list.iter().filter(inside).collect();
        list.sort_by_key(|(at, _)| (at.start, at.end));
        let mut out = String::with_capacity(span.len() * 2);
        let mut at = span.start;
        for (edit, new) in list {
            // A piece inside one that is replaced goes with it.
            if edit.start >= at {
                out.push_str(&self.text[at..edit.start]);
                out.push_str(new);
                at = edit.end;
            }
        }
        out.push_str(&self.text[at..span.end]);
        out
    }
}

/// A module's C++.
pub(super) struct Unit {
    pub(super) text: String,
    /// Some kernel was cut into regions.
    pub(super) regions: bool,
}

/// Makes the module's C++ of user text and what was found in it.
pub(super) fn rewrite(text: &str, source: &Source<'_>, way: Way, expressions: &[String]) -> Result<Unit> {
    let barriers = Reach::of(source, BARRIERS, true);
    let indices = match way {
        Way::Inlined | Way::Regions | Way::Fast => Reach::of(source, INDICES, false).names,
        Way::Plain => HashSet::new(),
    };
    let mut edits = Edits::new(text);
    for at in 0..source.tokens.len() {
        if source.tokens[at].kind == Kind::Word {
            word(source, at, way, &mut edits);
            if indices.contains(source.text(at)) {
                call(source, at, &mut edits);
            }
        }
    }
    let mut split = HashSet::new();
    let mut guards = String::new();
    let mut guarded = HashMap::new();
    for function in source.functions.iter().filter(|f| f.global) {
        linkage(source, function, &mut edits);
        // Of overloaded kernels and instances of templates, all have to be of one form.
        let alone = source
            .functions
            .iter()
            .filter(|f| f.path == function.path)
            .count()
            == 1;
        if way == Way::Regions && alone && !barriers.elsewhere && barriers.reaches(source, function) {
            let bounds = launch_bounds(source, function);
            if let Some((body, block)) =
                function
                    .body
                    .zip(regions::split(source, function, &barriers.names, &edits, &bounds))
            {
                edits.replace(
                    source.span(function.params).end..source.span(source.closing(body)).end,
                    block,
                );
                split.insert(function.path.as_str());
                continue;
            }
        }
        let mut extra = Vec::new();
        // The guard is a function of its own, outside of all namespaces.
        let plain = alone && !function.template && function.path == function.name;
        if way != Way::Plain && plain && !barriers.elsewhere && !barriers.reaches(source, function) {
            if let Some((guard, body)) = regions::guard(source, function, &edits) {
                let open = function.params;
                let list = edits.slice(source.span(open).end..source.span(source.closing(open)).start);
                let name = format!("taskgpu_guard_{}", function.name);
                guards.push_str(&format!(
                    "\n# 1 {}\nstatic inline bool {name}({PARAMETERS}, {list}) {{{body}}}",
                    quoted(&format!("guard of {}", function.name))
                ));
                guarded.insert(function.path.as_str(), format!("&{name}, {}", guard.ask.name()));
                guard.edit(source, &mut edits);
                extra.push("const taskgpu::sure taskgpu_sure");
            }
        }
        head(source, function, way, &extra, &mut edits);
    }
    for function in source.functions.iter().filter(|f| !f.global) {
        if indices.contains(function.name.as_str()) {
            head(source, function, way, &[], &mut edits);
        }
    }
    let form = |kernel: &Function, called: &str| {
        let waits = |f: &Function| f.path == kernel.path && barriers.reaches(source, f);
        if let Some(guard) = guarded.get(kernel.path.as_str()) {
            return format!("guarded_loop<&{called}, {guard}>");
        }
        let form = if split.contains(kernel.path.as_str()) {
            "regions"
        } else if barriers.elsewhere || source.functions.iter().any(waits) {
            "threads"
        } else {
            "loop"
        };
        format!("{form}<&{called}>")
    };
    let mut out = edits.slice(0..text.len());
    out.push_str(&guards);
    out.push_str(&epilogue(source, &form, expressions)?);
    Ok(Unit {
        text: out,
        regions: !split.is_empty(),
    })
}

/// What leads to one of some words.
pub(super) struct Reach<'a> {
    /// Functions that mention one, or another such function. Kernels are not among them.
    pub(super) names: HashSet<&'a str>,
    /// A word stands where no function of a namespace is: in a class, for example.
    elsewhere: bool,
    words: &'static [&'static str],
}

impl<'a> Reach<'a> {
    /// `methods`: functions of classes count by their names.
    pub(super) fn of(source: &'a Source<'_>, words: &'static [&'static str], methods: bool) -> Reach<'a> {
        let mut reach = Reach {
            names: HashSet::new(),
            elsewhere: false,
            words,
        };
        let methods: &[Function] = if methods { &source.methods } else { &[] };
        let functions = || source.functions.iter().chain(methods);
        loop {
            let before = (reach.names.len(), reach.elsewhere);
            for function in functions().filter(|f| !f.global) {
                if reach.reaches(source, function) {
                    match function.is_called_by_name(source) {
                        true => _ = reach.names.insert(&function.name),
                        false => reach.elsewhere = true,
                    }
                }
            }
            if (reach.names.len(), reach.elsewhere) == before {
                break;
            }
        }
        let bodies: Vec<Range<usize>> = functions().filter_map(|f| f.whole(source)).collect();
        let declared: HashSet<usize> = functions().map(|f| f.params - 1).collect();
        reach.elsewhere |= (0..source.tokens.len()).any(|at| {
            reach.is_meant(source.text(at))
                && !declared.contains(&at)
                && !bodies.iter().any(|body| body.contains(&at))
        });
        reach
    }

    fn is_meant(&self, text: &str) -> bool {
        self.words.contains(&text) || self.names.contains(text)
    }

    fn reaches(&self, source: &Source<'_>, function: &Function) -> bool {
        let Some(mut body) = function.whole(source) else {
            return false;
        };
        body.any(|at| self.is_meant(source.text(at)))
    }
}

impl Function {
    /// Whoever calls it has its name: it is no constructor, for example.
    fn is_called_by_name(&self, source: &Source<'_>) -> bool {
        let special = |class: usize| {
            source.classes[class].name == self.name || source.mentions(self.head.clone(), &["operator", "~"])
        };
        !self.class.is_some_and(special)
    }

    /// Its parameters and body.
    fn whole(&self, source: &Source<'_>) -> Option<Range<usize>> {
        self.body.map(|body| self.params..source.closing(body))
    }
}

/// Takes out or translates what only compilers for devices know.
fn word(source: &Source<'_>, at: usize, way: Way, edits: &mut Edits<'_>) {
    let span = source.span(at);
    match source.text(at) {
        "__global__" | "__device__" | "__host__" | "__constant__" | "__managed__" | "__grid_constant__" => {
            edits.replace(span, "");
        }
        "__forceinline__" => edits.replace(span, "__attribute__((always_inline))"),
        // Headers of the system write __attribute__((__noinline__)).
        "__noinline__" if !["(", ","].contains(&source.text(at.wrapping_sub(1))) => {
            edits.replace(span, "__attribute__((noinline))");
        }
        "__launch_bounds__" if source.text(at + 1) == "(" => {
            edits.replace(span.start..source.span(source.closing(at + 1)).end, "");
        }
        "__shared__" => shared(source, at, edits),
        index if way == Way::Plain && INDICES.contains(&index) => {
            edits.insert(span.start, "taskgpu::at.");
        }
        _ => {}
    }
}

/// Shared memory: static in the worker's thread, which runs one block at a time, or the launch's own.
fn shared(source: &Source<'_>, at: usize, edits: &mut Edits<'_>) {
    let mut start = at;
    while start > 0
        && source.tokens[start - 1].kind != Kind::Directive
        && ![";", "{", "}", ")", ":"].contains(&source.text(start - 1))
    {
        start -= 1;
    }
    let mut end = at;
    while end < source.tokens.len() && source.text(end) != ";" {
        if ["(", "[", "{"].contains(&source.text(end)) {
            end = source.closing(end);
        }
        end += 1;
    }
    if end >= source.tokens.len() {
        return;
    }
    let statement = start..end;
    if !source.mentions(statement.clone(), &["extern"]) {
        for i in statement {
            if source.text(i) == "static" {
                edits.replace(source.span(i), "");
            }
        }
        edits.replace(source.span(at), SHARED);
        return;
    }
    // extern __shared__ type name[];
    let Some(bracket) = statement.clone().rev().find(|&i| source.text(i) == "[") else {
        return;
    };
    if source.closing(bracket) != bracket + 1 || bracket + 2 != end {
        return;
    }
    let name = bracket - 1;
    let mut kind = String::new();
    let mut i = start;
    while i < name {
        match source.text(i) {
            "extern" | "__shared__" => {}
            "__attribute__" | "alignas" => i = source.closing(i + 1),
            text => {
                kind.push_str(text);
                kind.push(' ');
            }
        }
        i += 1;
    }
    let name = source.text(name);
    edits.replace(
        source.span(start).start..source.span(end - 1).end,
        format!("{kind}*const {name} = taskgpu::dynamic_shared<{kind}>()"),
    );
}

/// Gives a function's call the indices.
fn call(source: &Source<'_>, at: usize, edits: &mut Edits<'_>) {
    if at > 0 && [".", "->"].contains(&source.text(at - 1))
        || source.functions.iter().any(|f| f.params == at + 1)
    {
        return;
    }
    let mut open = at + 1;
    if source.text(open) == "<" {
        match source.after_angle(open, source.tokens.len()) {
            Some(after) => open = after,
            None => return,
        }
    }
    if source.text(open) == "(" && !source.functions.iter().any(|f| f.params == open) {
        let comma = if source.closing(open) == open + 1 {
            ""
        } else {
            ", "
        };
        edits.insert(source.span(open).end, format!("{ARGUMENTS}{comma}"));
    }
}

/// Gives a function's declaration the parameters that it gets in addition.
fn head(source: &Source<'_>, function: &Function, way: Way, extra: &[&str], edits: &mut Edits<'_>) {
    let open = function.params;
    let void = source.text(open + 1) == "void" && source.text(open + 2) == ")";
    let none = void || source.text(open + 1) == ")";
    if void {
        edits.replace(source.span(open + 1), "");
    }
    let mut list = Vec::new();
    if way != Way::Plain {
        list.push(PARAMETERS.to_owned());
    }
    if function.global {
        list.push(format!("taskgpu::bounds<{}>", launch_bounds(source, function)));
    }
    list.extend(extra.iter().map(|one| (*one).to_owned()));
    let comma = if none { "" } else { ", " };
    edits.insert(source.span(open).end, format!("{}{comma}", list.join(", ")));
}

/// What is inline is compiled only where it is used: as part of a loop over threads.
fn linkage(source: &Source<'_>, function: &Function, edits: &mut Edits<'_>) {
    let head = function.head.clone();
    if !function.template && !source.mentions(head.clone(), &["inline", "__inline__"]) {
        if let Some(at) = head.into_iter().find(|&i| source.text(i) == "__global__") {
            edits.insert(source.span(at).end, " inline");
        }
    }
}

/// The most threads of a block, as the kernel's head says it; "0" if it does not.
fn launch_bounds<'a>(source: &Source<'a>, function: &Function) -> String {
    for at in function.head.clone() {
        if source.text(at) == "__launch_bounds__" && source.text(at + 1) == "(" {
            let inside = at + 2..source.closing(at + 1);
            let end = inside
                .clone()
                .find(|&i| source.text(i) == ",")
                .unwrap_or(inside.end);
            let most: Vec<&str> = (inside.start..end).map(|i| source.text(i)).collect();
            return format!("(int)({})", most.join(" "));
        }
    }
    "0".to_owned()
}

/// A name in a string or line directive of C++.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The table that says what the module has.
fn epilogue(
    source: &Source<'_>,
    form: &dyn Fn(&Function, &str) -> String,
    expressions: &[String],
) -> Result<String> {
    let mut entries = String::new();
    let mut variables = String::new();
    let mut entry = |function: &Function, called: &str, name: &str| {
        let form = form(function, called);
        entries.push_str(&format!(
            "\n# 1 {}\ntaskgpu::entry_of<taskgpu::{form}>({}),",
            quoted(&format!("kernel {name}")),
            quoted(name)
        ));
    };
    let kernels: Vec<&Function> = source
        .functions
        .iter()
        .filter(|f| f.global && f.body.is_some())
        .collect();
    for kernel in kernels.iter().filter(|f| f.extern_c && !f.template) {
        entry(kernel, &format!("::{}", kernel.path), &kernel.name);
    }
    let mut variable = |path: &str, name: &str| {
        variables.push_str(&format!(
            "\n# 1 {}\n{{{}, (void *)&{path}, sizeof({path})}},",
            quoted(&format!("variable {name}")),
            quoted(name)
        ));
    };
    for found in &source.variables {
        variable(&format!("::{}", found.path), &found.name);
    }
    for expression in expressions {
        let called = expression.trim().trim_start_matches('&').trim_start();
        let base = called
            .split('<')
            .next()
            .unwrap_or(called)
            .trim()
            .trim_start_matches("::");
        let last = base.rsplit("::").next().unwrap_or(base).trim();
        let kernel = kernels
            .iter()
            .find(|f| f.path == base)
            .or_else(|| kernels.iter().find(|f| f.name == last));
        if let Some(kernel) = kernel {
            entry(kernel, called, expression);
        } else if source.variables.iter().any(|v| v.name == last) {
            variable(called, expression);
        } else {
            return Err(Error::new(
                Status::CompileFailed,
                format!("the source has no kernel or variable for the name expression {expression:?}"),
            ));
        }
    }
    // An array must not be empty. In a namespace of ours, expressions would find our names.
    Ok(format!(
        "\n# 1 \"taskgpu\"\nstatic constexpr taskgpu::entry taskgpu_entries[] = {{{entries}\n# 1 \"taskgpu\"\n{{}}}};\n\
         static const taskgpu::variable taskgpu_variables[] = {{{variables}\n# 1 \"taskgpu\"\n{{}}}};\n\
         extern \"C\" __attribute__((visibility(\"default\"))) const taskgpu::image taskgpu_host_image = {{\n\
         1, 0, taskgpu_entries, sizeof taskgpu_entries / sizeof *taskgpu_entries - 1,\n\
         taskgpu_variables, sizeof taskgpu_variables / sizeof *taskgpu_variables - 1}};\n"
    ))
}
