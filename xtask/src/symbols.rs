//! What the libraries export must be what the header declares, in both directions.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::library::{self, root};

pub fn run() -> Result<(), String> {
    let root = root();
    let folder = library::build()?;
    let path = root.join("include/taskgpu.h");
    let header = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let declared = functions(&header);
    if declared.is_empty() {
        return Err("include/taskgpu.h declares no function".to_owned());
    }
    let (shared, archive) = (folder.join("libtaskgpu.so"), folder.join("libtaskgpu.a"));
    compare("libtaskgpu.so", &declared, &exported(&shared)?)?;
    // The archive holds the standard library as well, so only names of ours are looked at there.
    let archived = defined(&readelf(&["--symbols", "--wide"], &archive)?)
        .into_iter()
        .filter(|name| name.starts_with("tgpu_"))
        .collect();
    compare("libtaskgpu.a", &declared, &archived)?;
    let dynamic = readelf(&["--dynamic", "--wide"], &shared)?;
    let soname = library::soname();
    if !dynamic
        .lines()
        .any(|line| line.contains("(SONAME)") && line.contains(&format!("[{soname}]")))
    {
        return Err(format!(
            "libtaskgpu.so: its SONAME is not {soname}; build.rs sets it"
        ));
    }
    if !dynamic
        .lines()
        .any(|line| line.contains("FLAGS_1") && line.contains("NODELETE"))
    {
        return Err("libtaskgpu.so: it is not linked with -z nodelete; build.rs does that".to_owned());
    }
    let floor = glibc(&readelf(&["--version-info", "--wide"], &shared)?);
    let promised = glibc(&std::fs::read_to_string(root.join("README.md")).unwrap_or_default());
    if floor > promised {
        return Err(format!(
            "libtaskgpu.so: it needs glibc {}.{}, newer than README.md promises ({}.{})",
            floor.0, floor.1, promised.0, promised.1
        ));
    }
    println!(
        "{} functions, declared and exported alike; SONAME {soname}, nodelete, glibc {}.{}",
        declared.len(),
        floor.0,
        floor.1
    );
    Ok(())
}

/// The names that a shared library exports.
pub fn exported(file: &Path) -> Result<BTreeSet<String>, String> {
    Ok(defined(&readelf(&["--dyn-syms", "--wide"], file)?))
}

/// What readelf prints about a file. Not `nm`: where clang is installed, that reads the bitcode in our objects with
/// clang's plugin, and finds nothing if the versions differ.
fn readelf(args: &[&str], file: &Path) -> Result<String, String> {
    let output = Command::new("readelf")
        .env("LC_ALL", "C")
        .args(args)
        .arg(file)
        .output()
        .map_err(|e| format!("readelf: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("readelf {}: {text}", file.display()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The newest version of glibc that a text names: as the version of a symbol, or as README.md writes it.
fn glibc(text: &str) -> (u32, u32) {
    let mut newest = (0, 0);
    for word in ["GLIBC_", "glibc "] {
        for (at, _) in text.match_indices(word) {
            let rest = &text[at + word.len()..];
            let end = rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(rest.len());
            let mut numbers = rest[..end].split('.').map(|number| number.parse().unwrap_or(0));
            newest = newest.max((numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)));
        }
    }
    newest
}

/// A header without its comments and what the preprocessor reads.
pub fn code(header: &str) -> String {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let text = text.replace("\\\n", " ");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The functions that a header declares: names of ours before a parenthesis, outside comments and macros.
pub fn functions(header: &str) -> BTreeSet<String> {
    let text = code(header);
    let mut names = BTreeSet::new();
    for (at, _) in text.match_indices('(') {
        let start = text[..at]
            .rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .map_or(0, |i| i + 1);
        if text[start..at].starts_with("tgpu_") {
            names.insert(text[start..at].to_owned());
        }
    }
    names
}

/// The global names that a symbol table defines: functions as themselves, anything else with its type, so that it
/// shows as a surprise.
fn defined(table: &str) -> BTreeSet<String> {
    let symbol = |line: &str| {
        let [_, _, _, kind, bind, _, section, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        let global = matches!(bind, "GLOBAL" | "WEAK" | "UNIQUE") && section != "UND";
        global.then(|| match kind {
            "FUNC" => name.to_owned(),
            kind => format!("{name} ({kind})"),
        })
    };
    table.lines().filter_map(symbol).collect()
}

fn compare(library: &str, declared: &BTreeSet<String>, exported: &BTreeSet<String>) -> Result<(), String> {
    let list = |names: Vec<&String>| names.iter().map(|name| format!("\n  {name}")).collect::<String>();
    let missing: Vec<_> = declared.difference(exported).collect();
    let extra: Vec<_> = exported.difference(declared).collect();
    let mut text = String::new();
    if !missing.is_empty() {
        text += &format!(
            "{library} does not export what the header declares:{}\n",
            list(missing)
        );
    }
    if !extra.is_empty() {
        text += &format!(
            "{library} exports what the header does not declare:{}\n",
            list(extra)
        );
    }
    if text.is_empty() {
        Ok(())
    } else {
        Err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn only_declarations_count() {
        let header = "/* tgpu_talk(1) */\n#define TGPU_X \\\n  tgpu_macro(1)\ntypedef void (*tgpu_callback)(void *data);\n\
                      tgpu_status tgpu_one(void);\nconst char *tgpu_two(int a,\n  int b);\n";
        assert_eq!(functions(header), set(&["tgpu_one", "tgpu_two"]));
    }

    #[test]
    fn the_newest_glibc_counts() {
        let table = "Name: GLIBC_2.34  Flags: none\nName: GLIBC_2.2.5\nName: GCC_4.2.0";
        assert_eq!(glibc(table), (2, 34));
        assert_eq!(glibc("with glibc 2.9 or newer"), (2, 9));
        assert_eq!(glibc(""), (0, 0));
    }

    #[test]
    fn both_directions_are_compared() {
        let table = "Symbol table '.symtab' contains 5 entries:
   Num:    Value          Size Type    Bind   Vis      Ndx Name
     1: 0000000000001000    16 FUNC    GLOBAL DEFAULT   12 tgpu_one
     2: 0000000000002000     8 OBJECT  GLOBAL DEFAULT   20 tgpu_data
     3: 0000000000001010    16 FUNC    LOCAL  DEFAULT   12 tgpu_local
     4: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND tgpu_used
";
        assert_eq!(defined(table), set(&["tgpu_one", "tgpu_data (OBJECT)"]));
        let declared = set(&["tgpu_one"]);
        assert!(compare("lib", &declared, &declared).is_ok());
        assert!(compare("lib", &declared, &set(&[]))
            .unwrap_err()
            .contains("does not export"));
        let error = compare("lib", &declared, &defined(table)).unwrap_err();
        assert!(
            error.contains("tgpu_data (OBJECT)") && !error.contains("tgpu_one"),
            "{error}"
        );
    }
}
