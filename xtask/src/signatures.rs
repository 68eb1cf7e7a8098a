//! `cargo xtask julia --check`: what the Julia package believes about the C interface must be what the header declares,
//! name by name and type by type. Nothing else would notice: a call with a wrong type goes wrong only when it is made.

use std::collections::BTreeMap;

use crate::library::root;
use crate::symbols;

const HEADER: &str = "include/taskgpu.h";
const JULIA: &str = "bindings/julia/TaskGPU/src/api.jl";
/// A host kernel is never a Julia function, so Julia never sees what it is told.
const NOT_IN_JULIA: &[&str] = &["tgpu_host_block"];

/// What has a name in the interface, and what it is, spelled as in Julia: the value of a constant, the fields of a
/// struct, the types of a function's arguments and of its result.
type Interface = BTreeMap<String, Vec<String>>;

pub fn run() -> Result<(), String> {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).map_err(|e| format!("{name}: {e}"));
    let (header, julia) = (of_header(&read(HEADER)?)?, of_julia(&read(JULIA)?)?);
    compare(&header, &julia)?;
    println!("{} declarations, the same in C and Julia", header.len());
    Ok(())
}

fn compare(header: &Interface, julia: &Interface) -> Result<(), String> {
    let shown = |entry: Option<&Vec<String>>| entry.map_or("nothing".to_owned(), |entry| entry.join(", "));
    let names = header
        .keys()
        .chain(julia.keys().filter(|name| !header.contains_key(*name)));
    let differences: String = names
        .map(|name| (name, header.get(name), julia.get(name)))
        .filter(|(_, header, julia)| header != julia)
        .map(|(name, header, julia)| {
            format!(
                "{name}\n  {HEADER}: {}\n  {JULIA}: {}\n",
                shown(header),
                shown(julia)
            )
        })
        .collect();
    match differences.is_empty() {
        true => Ok(()),
        false => Err(differences),
    }
}

fn of_header(header: &str) -> Result<Interface, String> {
    let mut interface = Interface::new();
    for line in header.lines() {
        // Only plain numbers: what a macro computes has no counterpart.
        let Some((name, value)) = line
            .strip_prefix("#define TGPU_")
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let (digits, julia) = match value.strip_suffix('u') {
            Some(digits) => (digits, "UInt32"),
            None => (value, "Int32"),
        };
        let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if number && !name.starts_with("VERSION_") {
            interface.insert(format!("TGPU_{name}"), vec![format!("{julia}({digits})")]);
        }
    }
    let code = symbols::code(header);
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("typedef struct ") {
        functions_of_header(before, &mut interface)?;
        let (head, tail) = after.split_once(';').ok_or("a typedef without an end")?;
        let Some((name, _)) = head.split_once('{') else {
            rest = tail; // a handle
            continue;
        };
        let name = name.trim();
        let end = format!("}} {name};");
        let (fields, tail) = after
            .split_once(&end)
            .ok_or(format!("{name}: the struct has no end"))?;
        let fields = fields.split_once('{').map_or("", |(_, fields)| fields);
        let fields: Result<Vec<String>, String> = fields
            .split(';')
            .filter(|field| !field.trim().is_empty())
            .map(|field| {
                let (kind, name, count) = declarator(field)?;
                let kind = count.map_or(kind.clone(), |count| format!("NTuple{{{count},{kind}}}"));
                Ok(format!("{name}::{kind}"))
            })
            .collect();
        if !NOT_IN_JULIA.contains(&name) {
            interface.insert(name.to_owned(), fields?);
        }
        rest = tail;
    }
    functions_of_header(rest, &mut interface)?;
    Ok(interface)
}

fn functions_of_header(code: &str, interface: &mut Interface) -> Result<(), String> {
    for statement in code.split(';') {
        let Some((head, arguments)) = statement.split_once('(') else {
            continue;
        };
        if statement.contains("typedef") || !head.contains("tgpu_") {
            continue;
        }
        let (result, name, _) = declarator(head)?;
        let arguments = arguments.trim().trim_end_matches(')').trim();
        let mut types = Vec::new();
        if arguments != "void" {
            for argument in arguments.split(',') {
                types.push(declarator(argument)?.0);
            }
        }
        types.push(result);
        interface.insert(name, types);
    }
    Ok(())
}

/// The type as Julia spells it, the name and the count of elements of `const type *name[count]`.
fn declarator(text: &str) -> Result<(String, String, Option<String>), String> {
    let text = text.trim();
    let (text, count) = match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        Some((text, count)) => (text, Some(count.to_owned())),
        None => (text, None),
    };
    let start = text
        .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .map_or(0, |at| at + 1);
    let (kind, name) = text.split_at(start);
    if kind.trim().is_empty() || name.is_empty() {
        return Err(format!("\"{text}\" is not a type and a name"));
    }
    Ok((julia_type(kind), name.to_owned(), count))
}

fn julia_type(c: &str) -> String {
    let stars = c.matches('*').count();
    let words: Vec<&str> = c
        .split(|c: char| c.is_whitespace() || c == '*')
        .filter(|word| !word.is_empty())
        .collect();
    // Text that is read is a Cstring; a buffer that is written is an array of characters.
    let is_text = words.starts_with(&["const", "char"]) && stars > 0;
    let base = words
        .into_iter()
        .find(|word| *word != "const")
        .unwrap_or_default();
    let (base, stars) = match base {
        "char" if is_text => ("Cstring", stars - 1),
        "char" => ("Cchar", stars),
        "void" => ("Cvoid", stars),
        "int" => ("Cint", stars),
        "double" => ("Cdouble", stars),
        "size_t" => ("Csize_t", stars),
        "int32_t" => ("Int32", stars),
        "uint32_t" => ("UInt32", stars),
        "int64_t" => ("Int64", stars),
        "uint64_t" => ("UInt64", stars),
        "uint8_t" => ("UInt8", stars),
        ours => (ours, stars),
    };
    format!("{}{base}{}", "Ptr{".repeat(stars), "}".repeat(stars))
}

fn of_julia(source: &str) -> Result<Interface, String> {
    let mut interface = Interface::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if let Some((name, value)) = line
            .strip_prefix("const TGPU_")
            .and_then(|rest| rest.split_once(" = "))
        {
            interface.insert(format!("TGPU_{name}"), vec![value.to_owned()]);
        } else if let Some(name) = line.strip_prefix("struct ") {
            let fields = lines.by_ref().take_while(|line| *line != "end");
            // Keywords of Julia are written var"so".
            let fields = fields.map(|line| line.trim().replace("var\"", "").replace("\"::", "::"));
            interface.insert(name.to_owned(), fields.collect());
        } else if let Some(start) = line
            .strip_prefix("@call ")
            .or_else(|| line.strip_prefix("@plain "))
        {
            let mut text = start.to_owned();
            while !text.contains(")::") {
                text += lines.next().ok_or(format!("{text}: no result"))?.trim();
            }
            let (name, rest) = text.split_once('(').ok_or(format!("{text}: no arguments"))?;
            let (arguments, result) = rest.rsplit_once(")::").ok_or(format!("{text}: no result"))?;
            let mut types = Vec::new();
            for argument in arguments.split(',').map(str::trim).filter(|a| !a.is_empty()) {
                let kind = argument
                    .split_once("::")
                    .ok_or(format!("{name}: {argument} has no type"))?;
                types.push(kind.1.to_owned());
            }
            types.push(result.to_owned());
            interface.insert(name.to_owned(), types);
        }
    }
    Ok(interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: &str = "#define TGPU_OK 0\n#define TGPU_FLAG 4u\n#define TGPU_VERSION_MAJOR 0\n\
        #define TGPU_X_INIT { 0 }\nstruct tgpu_stream_s;\ntypedef struct tgpu_stream_s *tgpu_stream;\n\
        typedef void (*tgpu_callback)(void *data);\n\
        typedef struct tgpu_x {\n  /** a; b */\n  size_t struct_size;\n  char function[16];\n  const char *const *list;\n} tgpu_x;\n\
        tgpu_status tgpu_one(tgpu_stream s,\n    const tgpu_x *options, void **out);\nconst char *tgpu_two(void);\n\
        tgpu_status tgpu_three(char *buf, size_t n, void *const *args);\n";
    const J: &str = "const TGPU_OK = Int32(0)\nconst TGPU_FLAG = UInt32(4)\n\
        struct tgpu_x\n    struct_size::Csize_t\n    var\"function\"::NTuple{16,Cchar}\n    list::Ptr{Cstring}\nend\n\
        @call tgpu_one(\n    s::tgpu_stream, options::Ptr{tgpu_x},\n    out::Ptr{Ptr{Cvoid}}\n)::tgpu_status\n\
        @plain tgpu_two()::Cstring\n\
        @call tgpu_three(buf::Ptr{Cchar}, n::Csize_t, args::Ptr{Ptr{Cvoid}})::tgpu_status\n";

    fn check(julia: &str) -> Result<(), String> {
        compare(&of_header(C).unwrap(), &of_julia(julia).unwrap())
    }

    #[test]
    fn the_same_interface_is_accepted() {
        assert_eq!(check(J), Ok(()));
        assert_eq!(of_header(C).unwrap().len(), 6);
    }

    #[test]
    fn each_difference_is_named() {
        for (right, wrong, named) in [
            ("n::Csize_t", "n::UInt32", "tgpu_three"),
            ("out::Ptr{Ptr{Cvoid}}", "out::Ptr{Cvoid}", "tgpu_one"),
            ("tgpu_two()::Cstring", "tgpu_two()::tgpu_status", "tgpu_two"),
            (", out::Ptr{Ptr{Cvoid}}", "", "tgpu_one"),
            ("UInt32(4)", "UInt32(8)", "TGPU_FLAG"),
            ("NTuple{16,Cchar}", "NTuple{8,Cchar}", "tgpu_x"),
            (
                "    list::Ptr{Cstring}\n",
                "    list::Ptr{Cstring}\n    more::Int32\n",
                "tgpu_x",
            ),
            ("@plain tgpu_two()::Cstring\n", "", "tgpu_two"),
            (
                "@plain tgpu_two",
                "@plain tgpu_four()::Int32\n@plain tgpu_two",
                "tgpu_four",
            ),
        ] {
            let changed = J.replace(",\n    out", ", out").replace(right, wrong);
            let error = check(&changed).expect_err(wrong);
            assert!(error.starts_with(named), "{wrong}: {error}");
            assert_eq!(error.matches("\n  include").count(), 1, "{error}");
        }
    }
}
