//! `cargo xtask abi [--write]`: the interface against the one that was released with this minor version, which is in `abi/`.
//!
//! The library's own debug information describes Rust. So the header is compiled as C, each function with an empty body:
//! the library exports what the header declares, as `cargo xtask symbols` sees to. `abidw` describes the result and
//! `abidiff` compares it. Both leave out constants, which are listed beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::library::{self, root};
use crate::symbols;
use crate::test::{quietly, read, PATIENCE};
use crate::tools::{self, Tool};

const USAGE: &str = "usage: cargo xtask abi [--write]";
const TOOLS: &[Tool] = &[
    Tool {
        program: "cc",
        package: "gcc",
    },
    Tool {
        program: "abidiff",
        package: "abigail-tools",
    },
];
/// What makes the description the same wherever it is made.
const STABLE: &[&str] = &[
    "--no-corpus-path",
    "--no-comp-dir-path",
    "--no-show-locs",
    "--type-id-style",
    "hash",
];

pub fn run(args: &[&str]) -> Result<(), String> {
    tools::require(TOOLS)?;
    let header = read(&root().join("include/taskgpu.h"))?;
    let released = Released::of_this_version();
    match args {
        ["--write"] => released.write(&header),
        [] => released.compare(&header),
        _ => Err(USAGE.to_owned()),
    }
}

/// The files of the last release of a minor version.
struct Released {
    description: PathBuf,
    constants: PathBuf,
}

impl Released {
    fn of_this_version() -> Released {
        let file = |ending: &str| root().join(format!("abi/{}.{ending}", library::minor_version()));
        Released {
            description: file("abi"),
            constants: file("constants"),
        }
    }

    fn write(&self, header: &str) -> Result<(), String> {
        let made = describe(&stub(header, &BTreeMap::new()))?;
        let lines: String = constants(header)
            .iter()
            .map(|(name, value)| format!("{name} {value}\n"))
            .collect();
        fs::create_dir_all(root().join("abi")).map_err(|error| format!("abi: {error}"))?;
        fs::write(&self.constants, lines)
            .map_err(|error| format!("{}: {error}", self.constants.display()))?;
        fs::copy(&made, &self.description)
            .map(|_| ())
            .map_err(|error| format!("{}: {error}", self.description.display()))
    }

    fn compare(&self, header: &str) -> Result<(), String> {
        let missing = |text: String| {
            format!("{text}\nnothing to compare with: at a release, `cargo xtask abi --write` makes it")
        };
        let old = read(&self.constants).map_err(missing)?;
        renumbered(&old, &constants(header))?;
        let fields = fields_of(&read(&self.description).map_err(missing)?);
        let made = describe(&stub(header, &fields))?;
        let mut abidiff = Command::new("abidiff");
        // What is new breaks nothing.
        abidiff.arg("--no-added-syms").arg(&self.description).arg(&made);
        quietly(&mut abidiff, PATIENCE)
            .map(|_| ())
            .map_err(|text| format!("the ABI has changed within a minor version:\n{text}"))
    }
}

/// Compiles C, and describes what it exports. Answers the file with the description.
fn describe(source: &str) -> Result<PathBuf, String> {
    let folder = library::target().join("abi");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (file, library) = (folder.join("stub.c"), folder.join("stub.so"));
    let description = folder.join("stub.abi");
    fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut cc = Command::new("cc");
    // Named without its folder, which the description would repeat.
    cc.current_dir(&folder).arg("stub.c");
    cc.args(["-std=c11", "-w", "-g", "-shared", "-fPIC"]);
    cc.arg(format!("-Wl,-soname,{}", library::soname()));
    quietly(cc.arg("-o").arg(&library), PATIENCE)?;
    let mut abidw = Command::new("abidw");
    abidw
        .args(STABLE)
        .arg("--out-file")
        .arg(&description)
        .arg(&library);
    quietly(&mut abidw, PATIENCE)?;
    Ok(description)
}

/// The header as C, with a body for each function. A struct that tells its size may have grown at its end: it is cut to
/// the `fields` that it had, so that any other change of it shows. (abidiff could be told to overlook members at the end,
/// but then overlooks every other change of that struct as well.)
fn stub(header: &str, fields: &BTreeMap<String, usize>) -> String {
    let code = symbols::code(header).replace("extern \"C\" {", "");
    // The brace that closes what was just opened no more.
    let mut rest = code.trim_end().trim_end_matches('}');
    let mut out = "#include <stddef.h>\n#include <stdint.h>\n".to_owned();
    while let Some((statement, after)) = rest.split_once(';') {
        if let Some((head, first)) = statement.split_once('{') {
            let (body, end) = after.split_once('}').unwrap_or((after, ""));
            let (name, next) = end.split_once(';').unwrap_or((end, ""));
            let mut members: Vec<&str> = [first].into_iter().chain(body.split(';')).collect();
            members.retain(|member| !member.trim().is_empty());
            if let (Some(count), true) = (fields.get(name.trim()), first.contains("struct_size")) {
                members.truncate(*count);
            }
            out.push_str(&format!("{head}{{{};}}{name};\n", members.join(";")));
            rest = next;
            continue;
        }
        let is_function = !statement.trim_start().starts_with("typedef") && statement.contains('(');
        out.push_str(statement);
        out.push_str(match is_function {
            true => " { __builtin_trap(); }\n",
            false => ";\n",
        });
        rest = after;
    }
    out
}

/// How many fields each struct of a description has.
fn fields_of(description: &str) -> BTreeMap<String, usize> {
    let mut fields = BTreeMap::new();
    for part in description.split("<class-decl name='").skip(1) {
        let name = part.split('\'').next().unwrap_or_default();
        let body = part.split("</class-decl>").next().unwrap_or_default();
        fields.insert(name.to_owned(), body.matches("<data-member ").count());
    }
    fields
}

/// The constants of a header, by name. The version's change with each, and INIT macros follow the structs.
fn constants(header: &str) -> BTreeMap<String, String> {
    let constant = |line: &str| {
        let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
        let is_ours =
            name.starts_with("TGPU_") && !name.starts_with("TGPU_VERSION") && !name.ends_with("_INIT");
        is_ours.then(|| (name.to_owned(), value.trim().to_owned()))
    };
    header.lines().filter_map(constant).collect()
}

/// Every constant that was there must have the value that it had.
fn renumbered(old: &str, new: &BTreeMap<String, String>) -> Result<(), String> {
    let mut text = String::new();
    for (name, was) in old.lines().filter_map(|line| line.split_once(' ')) {
        match new.get(name) {
            Some(is) if is == was => {}
            Some(is) => text += &format!("{name} was {was} and is {is}\n"),
            None => text += &format!("{name} is gone\n"),
        }
    }
    match text.is_empty() {
        true => Ok(()),
        false => Err(format!("constants have changed within a minor version:\n{text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "#ifdef __cplusplus\nextern \"C\" {\n#endif\n#define TGPU_A 1\n#define TGPU_B 2u\n\
        #define TGPU_VERSION_MAJOR 0\n#define TGPU_INFO_INIT { 1 }\nstruct tgpu_x_s;\n\
        typedef struct tgpu_x_s *tgpu_x;\ntypedef void (*tgpu_callback)(void *data);\n\
        typedef struct tgpu_info {\n  size_t struct_size; /* ; */\n  int a;\n  char b[4];\n} tgpu_info;\n\
        typedef struct tgpu_block {\n  int a;\n  int b;\n} tgpu_block;\nint tgpu_do(tgpu_x x,\n  int a);\n\
        #ifdef __cplusplus\n}\n#endif\n";

    /// The source without blanks.
    fn squeezed(fields: &[(&str, usize)]) -> String {
        let fields = fields
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect();
        stub(HEADER, &fields).split_whitespace().collect()
    }

    #[test]
    fn functions_get_bodies_and_nothing_else_changes() {
        assert_eq!(
            squeezed(&[]),
            "#include<stddef.h>#include<stdint.h>structtgpu_x_s;typedefstructtgpu_x_s*tgpu_x;\
             typedefvoid(*tgpu_callback)(void*data);typedefstructtgpu_info{size_tstruct_size;inta;charb[4];}tgpu_info;\
             typedefstructtgpu_block{inta;intb;}tgpu_block;inttgpu_do(tgpu_xx,inta){__builtin_trap();}"
        );
    }

    #[test]
    fn only_structs_that_tell_their_size_may_grow() {
        let source = squeezed(&[("tgpu_info", 2), ("tgpu_block", 1)]);
        assert!(source.contains("{size_tstruct_size;inta;}tgpu_info;"), "{source}");
        assert!(source.contains("{inta;intb;}tgpu_block;"), "{source}");
    }

    #[test]
    fn fields_are_counted() {
        let text = "<class-decl name='a' id='1'>\n<data-member access='public'>\n</data-member>\n\
                    <data-member access='public'>\n</data-member>\n</class-decl>\n<class-decl name='b' id='2'/>";
        let fields: Vec<_> = fields_of(text).into_iter().collect();
        assert_eq!(fields, [("a".to_owned(), 2), ("b".to_owned(), 0)]);
    }

    #[test]
    fn a_constant_keeps_its_value() {
        let new = constants(HEADER);
        assert_eq!(new.len(), 2);
        assert!(renumbered("TGPU_A 1\n", &new).is_ok());
        assert_eq!(
            renumbered("TGPU_A 1\nTGPU_B 3u\nTGPU_C 1\n", &new).unwrap_err(),
            "constants have changed within a minor version:\nTGPU_B was 3u and is 2u\nTGPU_C is gone\n"
        );
    }
}
