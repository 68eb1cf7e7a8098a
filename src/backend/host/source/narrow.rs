//! Indices as signed numbers.
//!
//! `int i = first + threadIdx.x` is unsigned arithmetic, in which numbers may wrap around: neighbours in a block need not be
//! neighbours in an array, and compilers make no vectors of it. Where it is known that nothing wraps, the indices become
//! `int`s, and the same numbers come out.
//!
//! That is asked once for a block, of variables that are declared `int` and are sums and products of indices, of numbers
//! that are the same for all threads, and of other such variables. If none of these numbers is negative, every partial result
//! is at most the whole, and that grows with the indices; so if the whole of the last thread, computed exactly, is an `int`, then
//! each partial result of each thread is one. Signed, unsigned and wider arithmetic all give that result.
//!
//! Variables of other types stay what they are, but it is known of them too that they grow from one thread to the next.

use super::regions::Seen;
use super::rewrite::INDICES;
use super::scan::{Kind, Source};

/// Declarations whose indices can be signed.
pub(super) struct Narrowed {
    /// What each is, and what it becomes.
    changes: Vec<(String, String)>,
    /// What has to hold for the last thread.
    checks: Vec<Check>,
}

/// That a variable is what it would be without limits.
struct Check {
    name: String,
    text: String,
    /// Of a declaration that changes.
    changes: bool,
}

/// Words of types of whole numbers that are no smaller than `int`.
const WHOLE: &[&str] = &[
    "const", "auto", "unsigned", "int", "long", "size_t", "int32_t", "uint32_t", "int64_t", "uint64_t",
    "uint",
];

impl Narrowed {
    /// Those among what a region can see.
    pub(super) fn of(seen: &[Seen]) -> Narrowed {
        let mut made = Narrowed {
            changes: Vec::new(),
            checks: Vec::new(),
        };
        let mut names: Vec<&str> = Vec::new();
        for (at, one) in seen.iter().enumerate() {
            let hidden = seen[at + 1..].iter().any(|s| s.name() == one.name());
            if let (Seen::Again(name, declaration, false), false) = (one, hidden) {
                if made.add(name, declaration, &seen[..at], &names).is_some() {
                    names.push(name);
                }
            }
        }
        made
    }

    /// Takes a declaration, if it is of the right form. `names` are those taken before.
    fn add(&mut self, name: &str, declaration: &str, seen: &[Seen], names: &[&str]) -> Option<()> {
        let source = Source::new(declaration)?;
        let count = source.tokens.len();
        let start = (0..count).find(|&at| source.text(at) == "=")? + 1;
        let kind: Vec<&str> = (0..start.checked_sub(2)?).map(|at| source.text(at)).collect();
        if source.text(start - 2) != name || kind.is_empty() || !kind.iter().all(|word| WHOLE.contains(word))
        {
            return None;
        }
        let (mut exact, mut changed) = (String::new(), String::new());
        let mut whole = Vec::new();
        let mut indices = false;
        let mut at = start;
        while at + 1 < count {
            let text = source.text(at);
            match source.tokens[at].kind {
                Kind::Word if INDICES.contains(&text) && source.text(at + 1) == "." => {
                    let index = format!("{text}.{}", source.text(at + 2));
                    exact.push_str(&format!("(double){index}"));
                    changed.push_str(&format!("(int){index}"));
                    indices |= text == "threadIdx";
                    at += 2;
                }
                Kind::Word => {
                    // Brackets around a name alone may be those of a conversion.
                    let alone = source.text(at - 1) == "(" && source.text(at + 1) == ")";
                    let known = match seen.iter().rev().find(|s| s.name() == text) {
                        Some(Seen::Same(_) | Seen::Again(_, _, true)) => true,
                        _ => names.contains(&text),
                    };
                    if alone || !known || ["(", ".", "<", "["].contains(&source.text(at + 1)) {
                        return None;
                    }
                    indices |= names.contains(&text);
                    whole.push(format!("{text} >= 0"));
                    exact.push_str(&format!("(double){text}"));
                    changed.push_str(text);
                }
                Kind::Literal if text.bytes().all(|b| b.is_ascii_digit()) => {
                    exact.push_str(&format!("{text}.0"));
                    changed.push_str(text);
                }
                // A conversion to a whole number.
                Kind::Mark if text == "(" && is_type(&source, at + 1) => {
                    while source.text(at) != ")" {
                        changed.push_str(source.text(at));
                        changed.push(' ');
                        at += 1;
                    }
                    changed.push(')');
                    // No operand stands before it.
                    if ["*", "+"].contains(&source.text(at + 1)) {
                        return None;
                    }
                }
                Kind::Mark if ["+", "*", "(", ")"].contains(&text) => {
                    // `++` is a step, and a `*` without an operand before it looks into memory.
                    let after = ["+", "*", "(", "="].contains(&source.text(at - 1));
                    if after && ["+", "*"].contains(&text) {
                        return None;
                    }
                    exact.push_str(text);
                    changed.push_str(text);
                }
                _ => return None,
            }
            exact.push(' ');
            changed.push(' ');
            at += 1;
        }
        if !indices || source.text(at) != ";" {
            return None;
        }
        whole.push(format!("{exact} <= 2147483647.0"));
        let changes = matches!(kind[..], ["int"] | ["const", "int"] | ["int", "const"]);
        if changes {
            let head = format!("{} {name}", kind.join(" "));
            self.changes
                .push((declaration.to_owned(), format!("{head} = {changed};\n")));
        }
        self.checks.push(Check {
            name: name.to_owned(),
            text: whole.join(" && "),
            changes,
        });
        Some(())
    }

    /// Whether a variable grows from one thread to the next where the check holds.
    pub(super) fn grows(&self, name: &str) -> bool {
        self.checks.iter().any(|check| check.name == name)
    }

    /// What has to hold for the last thread, of those that are changed or of all; `None` if there are none.
    pub(super) fn check(&self, all: bool) -> Option<String> {
        // One may be made of those before it.
        let last = self.checks.iter().rposition(|check| all || check.changes)?;
        let texts: Vec<&str> = self.checks[..=last]
            .iter()
            .map(|check| check.text.as_str())
            .collect();
        Some(texts.join(" && "))
    }

    /// A text in which they are.
    pub(super) fn apply(&self, mut text: String) -> String {
        for (old, new) in &self.changes {
            text = text.replace(old, new);
        }
        text
    }
}

/// Whether a type of whole numbers stands before a closing bracket.
fn is_type(source: &Source<'_>, at: usize) -> bool {
    let end =
        (at..source.tokens.len()).find(|&i| !WHOLE.contains(&source.text(i)) || source.text(i) == "auto");
    end.is_some_and(|end| end > at && source.text(end) == ")")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn narrowed(declaration: &str) -> Option<String> {
        let seen = [
            Seen::Same("n".to_owned()),
            Seen::Lanes("v".to_owned(), String::new()),
            Seen::Again("i".to_owned(), declaration.to_owned(), false),
        ];
        let made = Narrowed::of(&seen);
        made.check(false)
            .map(|check| made.apply(declaration.to_owned()) + &check)
    }

    #[test]
    fn sums_and_products_of_indices_are_signed() {
        assert_eq!(
            narrowed("int i = n + blockIdx.x * 16 + threadIdx.x;\n").as_deref(),
            Some(
                "int i = n + (int)blockIdx.x * 16 + (int)threadIdx.x ;\n\
                 n >= 0 && (double)n + (double)blockIdx.x * 16.0 + (double)threadIdx.x  <= 2147483647.0"
            )
        );
        assert_eq!(
            narrowed("int const i = (size_t)blockIdx.x * (unsigned long)(n + 2) + threadIdx.x;\n").as_deref(),
            Some(
                "int const i = ( size_t ) (int)blockIdx.x * ( unsigned long ) ( n + 2 ) + (int)threadIdx.x ;\n\
                 n >= 0 &&  (double)blockIdx.x *  ( (double)n + 2.0 ) + (double)threadIdx.x  <= 2147483647.0"
            )
        );
        for other in [
            // Of another type, or with another result if it is signed.
            "unsigned i = n + threadIdx.x;\n",
            "long i = n + threadIdx.x;\n",
            "int i = threadIdx.x - n;\n",
            "int i = threadIdx.x / 2;\n",
            "int i = ~threadIdx.x + n;\n",
            "int i = threadIdx.x + 5u;\n",
            "int i = threadIdx.x + 07 + 0x10;\n",
            "int i = (n) + threadIdx.x;\n",
            "int i = n(threadIdx.x);\n",
            "int i = (int)*n + threadIdx.x;\n",
            "int i = (short)threadIdx.x;\n",
            "int i = (char)n * threadIdx.x;\n",
            "int i = n * *threadIdx.x;\n",
            // Of what is not known.
            "int i = v + threadIdx.x;\n",
            "int i = other + threadIdx.x;\n",
            // Without a thread's index there is nothing to gain.
            "int i = n + blockIdx.x;\n",
        ] {
            assert_eq!(narrowed(other), None, "{other}");
        }
    }
}
