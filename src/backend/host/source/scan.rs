//! A look at C++ source that has been preprocessed: its tokens, and the functions and variables of its namespaces.
//!
//! No C++ parser: it follows brackets and the few keywords that begin a scope. Where it misunderstands something, what
//! it leads to does not compile, and the plain way of building a module is taken (see [`super`]).

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An identifier or keyword.
    Word,
    /// A number, a string or a character.
    Literal,
    /// Anything else, one character each, except `::` and `->`.
    Mark,
    /// A whole line that begins with `#`.
    Directive,
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    start: usize,
    end: usize,
    /// For an opening bracket its partner's index, else 0.
    partner: usize,
}

/// A function of a namespace: a kernel, or something that kernels may call.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) name: String,
    /// The name with its namespaces.
    pub(super) path: String,
    /// A kernel.
    pub(super) global: bool,
    /// Known by its plain name.
    pub(super) extern_c: bool,
    /// A template, or an instance of one.
    pub(super) template: bool,
    /// Tokens before the parameters, without a leading `template <...>`.
    pub(super) head: Range<usize>,
    /// The bracket that opens the parameters.
    pub(super) params: usize,
    /// The brace that opens the body, if it has one here.
    pub(super) body: Option<usize>,
    /// Of which class it is a member: an index.
    pub(super) class: Option<usize>,
}

/// A class.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) name: String,
    /// The scopes around it.
    pub(super) path: String,
    /// The brace that opens it.
    pub(super) open: usize,
    /// No template, and nothing is inherited.
    pub(super) simple: bool,
}

/// A variable that lives on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) path: String,
}

/// Source text and what is in it.
pub(super) struct Source<'a> {
    text: &'a str,
    pub(super) tokens: Vec<Token>,
    pub(super) functions: Vec<Function>,
    pub(super) variables: Vec<Variable>,
    pub(super) classes: Vec<Class>,
    /// Functions of classes.
    pub(super) methods: Vec<Function>,
}

/// Words that take brackets in front of a function's name.
const TAKES_BRACKETS: &[&str] = &[
    "__launch_bounds__",
    "__attribute__",
    "__attribute",
    "__align__",
    "alignas",
    "decltype",
    "noexcept",
    "explicit",
    "requires",
    "sizeof",
    "static_assert",
    "_Static_assert",
    "asm",
    "__asm__",
];

impl<'a> Source<'a> {
    /// Looks through `text`, which has been preprocessed. `None` if its brackets do not match.
    pub(super) fn new(text: &'a str) -> Option<Source<'a>> {
        let mut source = Source {
            text,
            tokens: tokens(text),
            functions: Vec::new(),
            variables: Vec::new(),
            classes: Vec::new(),
            methods: Vec::new(),
        };
        source.match_brackets()?;
        source.scope(0..source.tokens.len(), "", false);
        Some(source)
    }

    /// A token's text; "" past the end.
    pub(super) fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |t| &self.text[t.start..t.end])
    }

    /// Where a token stands in the text.
    pub(super) fn span(&self, at: usize) -> Range<usize> {
        self.tokens[at].start..self.tokens[at].end
    }

    pub(super) fn is_word(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|t| t.kind == Kind::Word)
    }

    /// The bracket that closes what the one at `at` opens.
    pub(super) fn closing(&self, at: usize) -> usize {
        self.tokens[at].partner
    }

    /// True if one of the words stands among the tokens.
    pub(super) fn mentions(&self, range: Range<usize>, words: &[&str]) -> bool {
        range.into_iter().any(|i| words.contains(&self.text(i)))
    }

    /// The token after a `<...>` that begins at `at`; `None` if it is no list of template arguments.
    pub(super) fn after_angle(&self, at: usize, end: usize) -> Option<usize> {
        let mut depth = 0;
        let mut i = at;
        while i < end {
            match self.text(i) {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(i + 1);
                    }
                }
                "(" | "[" | "{" => i = self.closing(i),
                ";" => return None,
                _ => {}
            }
            i += 1;
        }
        None
    }

    /// Where a kernel is launched: `<<<`.
    pub(super) fn launch(&self) -> Option<usize> {
        let tokens = self.tokens.windows(3);
        let adjoin = |three: &[Token]| three[0].end == three[1].start && three[1].end == three[2].start;
        let is_launch = |(at, three): &(usize, &[Token])| {
            (*at..at + 3).all(|i| self.text(i) == "<") && adjoin(three) && three[0].kind == Kind::Mark
        };
        tokens
            .enumerate()
            .find(is_launch)
            .map(|(at, _)| self.tokens[at].start)
    }

    fn match_brackets(&mut self) -> Option<()> {
        let mut open = Vec::new();
        for i in 0..self.tokens.len() {
            if self.tokens[i].kind != Kind::Mark {
                continue;
            }
            let wanted = match self.text(i) {
                "(" | "[" | "{" => {
                    open.push(i);
                    continue;
                }
                ")" => "(",
                "]" => "[",
                "}" => "{",
                _ => continue,
            };
            let partner = open.pop().filter(|&p| self.text(p) == wanted)?;
            self.tokens[partner].partner = i;
        }
        open.is_empty().then_some(())
    }

    /// Goes through the declarations of a scope.
    fn scope(&mut self, range: Range<usize>, path: &str, extern_c: bool) {
        let mut at = range.start;
        while at < range.end {
            at = self.declaration(at, range.end, path, extern_c);
        }
    }

    /// Takes one declaration in. Answers where the next begins.
    fn declaration(&mut self, start: usize, end: usize, path: &str, extern_c: bool) -> usize {
        if self.tokens[start].kind == Kind::Directive || self.text(start) == ";" {
            return start + 1;
        }
        if ["public", "private", "protected"].contains(&self.text(start)) && self.text(start + 1) == ":" {
            return start + 2;
        }
        let (mut i, mut template) = (start, false);
        while self.text(i) == "template" && self.text(i + 1) == "<" {
            template = true;
            match self.after_angle(i + 1, end) {
                Some(after) => i = after,
                None => return end,
            }
        }
        let head = i;
        template |= self.text(head) == "template";
        let (mut params, mut name, mut value) = (None, None, false);
        while i < end {
            let text = self.text(i);
            match text {
                ";" => break,
                "=" if params.is_none() => value = true,
                "<" if i > head && self.is_word(i - 1) && !value && params.is_none() => {
                    if let Some(after) = self.after_angle(i, end) {
                        if self.text(after) == "(" {
                            (params, name) = (Some(after), Some(i - 1));
                        }
                        i = after;
                        continue;
                    }
                }
                "(" => {
                    if params.is_none()
                        && !value
                        && i > head
                        && self.is_word(i - 1)
                        && !TAKES_BRACKETS.contains(&self.text(i - 1))
                    {
                        (params, name) = (Some(i), Some(i - 1));
                    }
                    i = self.closing(i);
                }
                "[" => i = self.closing(i),
                "{" => match self.brace(head, i, params, value, path, extern_c) {
                    Brace::Inside => i = self.closing(i),
                    Brace::Ends => break,
                },
                _ => {}
            }
            i += 1;
        }
        match (params, name) {
            (Some(params), Some(name)) => {
                let body = (self.text(i) == "{").then_some(i);
                self.function(head, name, params, body, template, path, extern_c);
            }
            _ => self.declare_variables(head, i.min(end), path),
        }
        if self.text(i) == "{" {
            i = self.closing(i);
        }
        i + 1
    }

    /// Looks at a brace of a declaration that begins at `head`.
    fn brace(
        &mut self,
        head: usize,
        at: usize,
        params: Option<usize>,
        value: bool,
        path: &str,
        extern_c: bool,
    ) -> Brace {
        let inside = at + 1..self.closing(at);
        if params.is_some() {
            // The brace of a member in a constructor's list, or the body?
            let listed = self.text(at - 1) != ")" && self.mentions(head..at, &[":"]);
            return match listed && self.is_word(at - 1) {
                true => Brace::Inside,
                false => Brace::Ends,
            };
        }
        if value {
            return Brace::Inside;
        }
        if self.mentions(head..at, &["namespace"]) {
            let mut inner = path.to_owned();
            for i in head..at {
                if self.is_word(i) && !["inline", "namespace"].contains(&self.text(i)) {
                    inner.push_str(self.text(i));
                    inner.push_str("::");
                }
            }
            self.scope(inside, &inner, extern_c);
            return Brace::Ends;
        }
        if self.text(head) == "extern" && at == head + 2 {
            self.scope(inside, path, true);
            return Brace::Ends;
        }
        self.class(head, at, path);
        Brace::Inside
    }

    /// Looks at a class that opens at `at`, if one does.
    fn class(&mut self, head: usize, at: usize, path: &str) {
        let Some(word) = (head..at).find(|&i| ["struct", "class", "union"].contains(&self.text(i))) else {
            return;
        };
        let mut name = word + 1;
        while ["__attribute__", "alignas", "["].contains(&self.text(name)) {
            name = self.closing(name + usize::from(self.text(name) != "[")) + 1;
        }
        if !self.is_word(name) {
            return;
        }
        let class = Class {
            name: self.text(name).to_owned(),
            path: path.to_owned(),
            open: at,
            simple: name + 1 == at && (head == 0 || self.text(head - 1) != ">"),
        };
        let inner = format!("{path}{}::", class.name);
        let index = self.classes.len();
        self.classes.push(class);
        let outside = (
            std::mem::take(&mut self.functions),
            std::mem::take(&mut self.variables),
        );
        self.scope(at + 1..self.closing(at), &inner, false);
        let found = std::mem::replace(&mut self.functions, outside.0);
        self.variables = outside.1;
        self.methods.extend(found.into_iter().map(|mut method| {
            method.class = Some(index);
            method
        }));
    }

    #[allow(clippy::too_many_arguments)]
    fn function(
        &mut self,
        head: usize,
        name: usize,
        params: usize,
        body: Option<usize>,
        template: bool,
        path: &str,
        extern_c: bool,
    ) {
        let own = (head..name).any(|i| self.text(i) == "extern" && self.text(i + 1) == "\"C\"");
        self.functions.push(Function {
            name: self.text(name).to_owned(),
            path: format!("{path}{}", self.text(name)),
            global: self.mentions(head..params, &["__global__"]),
            extern_c: extern_c || own,
            template,
            head: head..params,
            params,
            body,
            class: None,
        });
    }

    fn declare_variables(&mut self, head: usize, end: usize, path: &str) {
        // Only outside of braces: a class may have functions for devices.
        let mut outside = Vec::new();
        let mut i = head;
        while i < end {
            if self.text(i) == "{" {
                i = self.closing(i);
            }
            outside.push(self.text(i));
            i += 1;
        }
        let on_device = ["__device__", "__constant__", "__managed__"];
        if !outside.iter().any(|word| on_device.contains(word)) || outside.contains(&"extern") {
            return;
        }
        let mut last = None;
        let mut i = head;
        while i <= end {
            match self.text(i) {
                "[" | "(" if last.is_some() => i = self.closing(i),
                "(" => i = self.closing(i),
                "<" => match self.after_angle(i, end) {
                    Some(after) => i = after - 1,
                    None => return,
                },
                // The members of a type that is declared with its variables.
                "{" if last.is_some_and(|at: usize| {
                    let class = |at: usize| ["struct", "class", "union", "enum"].contains(&self.text(at));
                    class(at) || (at > head && class(at - 1))
                }) =>
                {
                    i = self.closing(i);
                    last = None;
                }
                "=" | "{" => {
                    self.variable(last.take(), path);
                    while i < end && self.text(i) != "," {
                        if ["(", "[", "{"].contains(&self.text(i)) {
                            i = self.closing(i);
                        }
                        i += 1;
                    }
                }
                "," | ";" => self.variable(last.take(), path),
                _ if self.is_word(i) => last = Some(i),
                _ => {}
            }
            i += 1;
        }
    }

    fn variable(&mut self, name: Option<usize>, path: &str) {
        let Some(at) = name else { return };
        // A member of a class, or of a namespace, is defined outside with its whole name.
        let mut first = at;
        while first >= 2 && self.text(first - 1) == "::" && self.is_word(first - 2) {
            first -= 2;
        }
        let own: String = (first..=at).map(|i| self.text(i)).collect();
        self.variables.push(Variable {
            name: self.text(at).to_owned(),
            path: format!("{path}{own}"),
        });
    }
}

/// What a brace means for the declaration it stands in.
enum Brace {
    /// It goes on behind the closing one.
    Inside,
    /// It ends with the closing one.
    Ends,
}

fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    let mut line_start = true;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        if byte == b'\n' {
            line_start = true;
            at += 1;
            continue;
        }
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let kind = if byte == b'#' && line_start {
            at = end_of_line(bytes, at);
            // Where a line comes from: the preprocessor puts that between any two tokens.
            if text[start..at].starts_with("# ") && !text[start..at].starts_with("# pragma") {
                line_start = false;
                continue;
            }
            Kind::Directive
        } else if let Some(end) = literal(bytes, at) {
            at = end;
            Kind::Literal
        } else if is_word_byte(byte) {
            at = word_end(bytes, at);
            Kind::Word
        } else if text[at..].starts_with("//") {
            at = end_of_line(bytes, at);
            continue;
        } else if text[at..].starts_with("/*") {
            at = text[at..].find("*/").map_or(bytes.len(), |n| at + n + 2);
            continue;
        } else {
            at += match &bytes[at..] {
                [b':', b':', ..] | [b'-', b'>', ..] => 2,
                _ => 1,
            };
            Kind::Mark
        };
        line_start = false;
        tokens.push(Token {
            kind,
            start,
            end: at,
            partner: 0,
        });
    }
    tokens
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

fn word_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|b| !is_word_byte(*b))
        .map_or(bytes.len(), |n| at + n)
}

/// The end of a line, with those that a backslash joins to it.
fn end_of_line(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && !(bytes[at] == b'\n' && bytes[at - 1] != b'\\') {
        at += 1;
    }
    at
}

/// The end of the number, string or character that begins at `at`, if one does.
fn literal(bytes: &[u8], at: usize) -> Option<usize> {
    let number = bytes[at].is_ascii_digit()
        || (bytes[at] == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit));
    if number {
        let mut end = at + 1;
        while let Some(byte) = bytes.get(end) {
            let sign = matches!(byte, b'+' | b'-') && matches!(bytes[end - 1], b'e' | b'E' | b'p' | b'P');
            let separator = *byte == b'\'' && bytes.get(end + 1).is_some_and(u8::is_ascii_alphanumeric);
            if !(is_word_byte(*byte) || *byte == b'.' || sign || separator) {
                break;
            }
            end += 1;
        }
        return Some(end);
    }
    let prefix = bytes[at..]
        .iter()
        .take(3)
        .take_while(|b| b"uUL8R".contains(b))
        .count();
    let quote = at + prefix;
    match bytes.get(quote) {
        Some(b'"') if prefix > 0 && bytes[quote - 1] == b'R' => {
            let open = quote + 1 + bytes[quote + 1..].iter().position(|b| *b == b'(')?;
            let end = [b")", &bytes[quote + 1..open], b"\""].concat();
            let found = bytes[open..].windows(end.len()).position(|w| w == end)?;
            Some(open + found + end.len())
        }
        Some(mark @ (b'"' | b'\'')) => {
            let mut end = quote + 1;
            while end < bytes.len() && bytes[end] != *mark && bytes[end] != b'\n' {
                end += 1 + usize::from(bytes[end] == b'\\');
            }
            Some((end + 1).min(bytes.len()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(source: &Source<'_>) -> Vec<String> {
        source
            .functions
            .iter()
            .map(|f| {
                let mark = |yes, mark| if yes { mark } else { "" };
                format!(
                    "{}{}{}{}{}",
                    mark(f.global, "kernel "),
                    mark(f.extern_c, "C "),
                    mark(f.template, "template "),
                    f.path,
                    mark(f.body.is_some(), " {}")
                )
            })
            .collect()
    }

    #[test]
    fn literals_and_comments_hide_what_is_in_them() {
        let text = "a /* { */ \"}{\\\"\" 'x' '{' 1'000.5e-3f R\"x( \" }{ )x\" u8\"s\" // }\n# 1 \"f\" {\n#pragma p {\nb";
        let source = Source::new(text).expect("its brackets match");
        let seen: Vec<&str> = (0..source.tokens.len()).map(|i| source.text(i)).collect();
        assert_eq!(
            seen,
            [
                "a",
                "\"}{\\\"\"",
                "'x'",
                "'{'",
                "1'000.5e-3f",
                "R\"x( \" }{ )x\"",
                "u8\"s\"",
                "#pragma p {",
                "b"
            ]
        );
        assert!(Source::new("int f( { ) }").is_none());
        assert!(Source::new("{").is_none());
        assert!(Source::new("}").is_none());
    }

    #[test]
    fn functions_are_found_with_their_scopes() {
        let text = r#"
            extern "C" __global__ void plain(float *x) { if (x) { x[0] = 1; } }
            extern "C" { __global__ __launch_bounds__(N * 2) void bound(int); static int helper() { return 1; } }
            namespace a::b { namespace { template <class T, int N = (1 > 0)> __global__ void scale(T *p, T by) { *p *= by; } } }
            template <> __global__ void a::b::scale<float>(float *p, float by) { }
            template __global__ void a::b::scale<double>(double *, double);
            struct S { int m() { return 1; } int v; } s = {f(2)};
            enum E { one, two };
            constexpr int table[] = {1, 2, 3};
            std::enable_if<(2 > 1), int>::type __device__ picky(int a = g(3)) noexcept { return a; }
            auto lambda = [](int x) { return x; };
            static_assert(sizeof(int) == 4, "int");
        "#;
        let source = Source::new(text).expect("its brackets match");
        assert_eq!(
            named(&source),
            [
                "kernel C plain {}",
                "kernel C bound",
                "C helper {}",
                "kernel template a::b::scale {}",
                "kernel template scale {}",
                "kernel template scale",
                "picky {}"
            ]
        );
    }

    #[test]
    fn device_variables_are_found() {
        let text = "__device__ int counter; __constant__ float c[4 * N] = {1, 2}, *d = nullptr; int host;\n\
                    extern __device__ int elsewhere; namespace n { __device__ std::pair<int, float> p{1, 2}; }\n\
                    __device__ int f(int x) { return x; } static __device__ unsigned long long a, b;\n\
                    struct S { __device__ S() {} int x; };";
        let source = Source::new(text).expect("its brackets match");
        let names: Vec<&str> = source.variables.iter().map(|v| v.path.as_str()).collect();
        assert_eq!(names, ["counter", "c", "d", "n::p", "a", "b"]);
    }
}
