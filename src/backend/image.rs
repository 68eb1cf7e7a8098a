//! What bytes look like that somebody wants to load: each backend takes some of it and refuses the rest in words.

use crate::backend::{Error, Result, Status};
use std::borrow::Cow;

const FATBIN_MAGIC: u32 = 0xBA55_ED50;
const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// Sections with all symbols, and with references.
const SYMTAB: u64 = 2;
const RELA: u64 = 4;
/// A section without bytes in the file.
const NOBITS: u64 = 8;
/// The section with the symbols that others may use.
const DYNSYM: u64 = 11;

/// What an image looks like from its first bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looks {
    /// An ELF file: see [`Elf`].
    Elf,
    /// A bundle for NVIDIA devices.
    Fatbin,
    /// PTX text.
    Ptx,
    /// A bundle for AMD devices.
    Bundle,
    /// Other text, which begins like this.
    Text(String),
    /// Nothing that holds code for a device: "an HTML page".
    Other(Cow<'static, str>),
}

/// The refusal of an image.
pub fn refuse(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Status::InvalidImage, text)
}

/// Looks at an image.
pub fn look(image: &[u8]) -> Looks {
    if image.is_empty() {
        return Looks::Other("empty (0 bytes)".into());
    }
    if image.starts_with(b"\x7fELF") {
        return Looks::Elf;
    }
    match le(image, 0, 4).map(|magic| magic as u32) {
        Some(FATBIN_MAGIC) => return Looks::Fatbin,
        Some(FATBIN_WRAPPER_MAGIC) => {
            return Looks::Other(
                "a fatbin wrapper, which holds pointers; give the fatbin that its third field points to"
                    .into(),
            );
        }
        _ => {}
    }
    for (magic, what) in [
        (&b"BC\xC0\xDE"[..], "LLVM bitcode"),
        (b"!<arch>\n", "a static library"),
        (b"PK\x03\x04", "a zip file"),
        (b"\x1f\x8b", "gzip-compressed"),
        (b"MZ", "a Windows program"),
        (b"\x28\xB5\x2F\xFD", "zstd-compressed"),
    ] {
        if image.starts_with(magic) {
            return Looks::Other(what.into());
        }
    }
    if image.starts_with(b"__CLANG_OFFLOAD_BUNDLE__") || image.starts_with(b"CCOB") {
        return Looks::Bundle;
    }
    text(image)
}

impl Looks {
    /// Refuses the image where something else is `wanted`: "PTX, cubin or fatbin".
    pub fn refuse(&self, wanted: &str) -> Error {
        let what = match self {
            Looks::Elf => "an ELF file".into(),
            Looks::Fatbin => "a fatbin, as made for NVIDIA devices".into(),
            Looks::Ptx => "PTX text, as made for NVIDIA devices".into(),
            Looks::Bundle => "a clang offload bundle, as made for AMD devices".into(),
            Looks::Text(first) => Cow::from(format!("text that begins with {first:?}")),
            Looks::Other(what) => what.clone(),
        };
        refuse(format!("the image is {what}; this device loads {wanted}"))
    }
}

/// Text up to the first NUL.
pub fn text_part(image: &[u8]) -> &[u8] {
    &image[..image.iter().position(|&b| b == 0).unwrap_or(image.len())]
}

fn text(image: &[u8]) -> Looks {
    let body = text_part(image);
    let printable = |b: &u8| b.is_ascii_graphic() || b" \t\r\n\x0b\x0c".contains(b) || *b >= 0x80;
    let head = &body[..body.len().min(4096)];
    if head.is_empty()
        || !head.iter().all(printable)
        || std::str::from_utf8(head).is_err_and(|e| e.error_len().is_some())
    {
        let first: Vec<String> = image.iter().take(8).map(|b| format!("{b:02x}")).collect();
        return Looks::Other(format!("{} bytes that begin with {}", image.len(), first.join(" ")).into());
    }
    let text = String::from_utf8_lossy(body);
    let code = without_comments(&text);
    if code.contains(".version") && code.contains(".target") {
        return Looks::Ptx;
    }
    let trimmed = text.trim_start();
    let start = trimmed.get(..64).unwrap_or(trimmed).to_ascii_lowercase();
    if start.starts_with("<!doctype html") || start.starts_with("<html") {
        Looks::Other("an HTML page (was a download answered with an error page?)".into())
    } else if start.starts_with("version https://git-lfs") {
        Looks::Other("a Git LFS pointer, not the file it stands for".into())
    } else if text.contains("__global__") {
        Looks::Other("source text, which is compiled instead of loaded".into())
    } else {
        Looks::Text(trimmed.chars().take_while(|c| *c != '\n').take(60).collect())
    }
}

/// The text with `//` and `/* */` comments left out.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            out.push('/');
            1
        };
        rest = &rest[skip..];
    }
    out.push_str(rest);
    out
}

/// A little-endian number of some bytes.
pub fn le(image: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let part = image.get(at..at.checked_add(bytes)?)?;
    Some(part.iter().rev().fold(0, |v, &b| (v << 8) | u64::from(b)))
}

/// Refuses a fatbin that is shorter than its header says.
pub fn check_fatbin(image: &[u8]) -> Result<()> {
    let (header, body) = (le(image, 6, 2), le(image, 8, 8));
    match (header, body) {
        (Some(header), Some(body)) if header.checked_add(body).is_some_and(|n| n <= image.len() as u64) => {
            Ok(())
        }
        (Some(header), Some(body)) => Err(refuse(format!(
            "the image is a fatbin cut short: {} bytes, and its header says {}",
            image.len(),
            u128::from(header) + u128::from(body)
        ))),
        _ => Err(refuse(format!(
            "the image is a fatbin cut short: {} bytes",
            image.len()
        ))),
    }
}

/// A 64-bit little-endian ELF file that has all the bytes its tables say.
pub struct Elf<'a> {
    image: &'a [u8],
}

/// A part of an ELF file.
pub struct Section {
    /// Where its name begins among the names of sections.
    pub name: u64,
    kind: u64,
    flags: u64,
    /// Where it lies once it is loaded.
    pub address: u64,
    /// Where it lies in the file.
    pub offset: u64,
    bytes: u64,
    link: u64,
    /// The number of the section that it is about.
    pub info: u64,
}

impl Section {
    /// Its contents are references from another section.
    pub fn has_references(&self) -> bool {
        self.kind == RELA
    }

    /// It is there once the file is loaded.
    pub fn in_memory(&self) -> bool {
        self.flags & 2 != 0
    }

    /// It is code.
    pub fn has_code(&self) -> bool {
        self.flags & 4 != 0
    }
}

/// A symbol of an ELF file.
pub struct Symbol<'a> {
    /// Its name in the object.
    pub name: &'a str,
    /// 1 for variables, 2 for functions, 6 for variables of each thread.
    pub kind: u64,
    /// Its address.
    pub value: u64,
    /// Its bytes.
    pub size: u64,
    /// The number of its section.
    pub section: usize,
}

impl<'a> Elf<'a> {
    /// A file that was just made here.
    pub fn new(image: &'a [u8]) -> Elf<'a> {
        Elf { image }
    }

    /// Checks the file. `machine` is the number that its code must be for, `what` and `devices` name it in a refusal:
    /// "a cubin", "CUDA devices".
    pub fn check(image: &'a [u8], machine: u16, what: &str, devices: &str) -> Result<Elf<'a>> {
        let cut = || {
            refuse(format!(
                "the image is {what} cut short: {} bytes are less than its tables say",
                image.len()
            ))
        };
        if image.get(4) != Some(&2) || image.get(5) != Some(&1) {
            return Err(match image.get(4..6) {
                None => cut(),
                Some(_) => refuse("the image is an ELF file, but not a 64-bit little-endian one"),
            });
        }
        let found = le(image, 18, 2).ok_or_else(cut)? as u16;
        if found != machine {
            return Err(refuse(format!(
                "the image is an ELF file for {} (machine {found}), not for {devices} ({machine})",
                machine_name(found)
            )));
        }
        let elf = Elf { image };
        elf.is_whole().filter(|whole| *whole).ok_or_else(cut)?;
        Ok(elf)
    }

    fn field(&self, at: u64, bytes: usize) -> Option<u64> {
        le(self.image, usize::try_from(at).ok()?, bytes)
    }

    fn holds(&self, start: u64, bytes: u64) -> bool {
        start
            .checked_add(bytes)
            .is_some_and(|end| end <= self.image.len() as u64)
    }

    fn is_whole(&self) -> Option<bool> {
        let (programs, program_size, program_count) =
            (self.field(32, 8)?, self.field(54, 2)?, self.field(56, 2)?);
        let (sections, section_size, section_count) = self.sections()?;
        if (section_count > 0 && (section_size < 64 || !self.holds(sections, section_size * section_count)))
            || (program_count > 0
                && (program_size < 56 || !self.holds(programs, program_size * program_count)))
        {
            return Some(false);
        }
        for at in (0..section_count).map(|i| sections + i * section_size) {
            let (kind, start, bytes) = (
                self.field(at + 4, 4)?,
                self.field(at + 24, 8)?,
                self.field(at + 32, 8)?,
            );
            if kind != NOBITS && kind != 0 && !self.holds(start, bytes) {
                return Some(false);
            }
        }
        for at in (0..program_count).map(|i| programs + i * program_size) {
            if !self.holds(self.field(at + 8, 8)?, self.field(at + 32, 8)?) {
                return Some(false);
            }
        }
        Some(true)
    }

    /// All sections, in the order of their numbers.
    pub fn all_sections(&self) -> Option<Vec<Section>> {
        let (start, size, count) = self.sections()?;
        (0..count)
            .map(|i| {
                let at = start + i * size;
                Some(Section {
                    name: self.field(at, 4)?,
                    kind: self.field(at + 4, 4)?,
                    flags: self.field(at + 8, 8)?,
                    address: self.field(at + 16, 8)?,
                    offset: self.field(at + 24, 8)?,
                    bytes: self.field(at + 32, 8)?,
                    link: self.field(at + 40, 4)?,
                    info: self.field(at + 44, 4)?,
                })
            })
            .collect()
    }

    /// What is in the section of this name, if there is one.
    pub fn section_named(&self, name: &str) -> Option<&'a [u8]> {
        let wanted = [name.as_bytes(), b"\0"].concat();
        let sections = self.all_sections()?;
        let names = sections.get(self.field(62, 2)? as usize)?.offset;
        let section = sections.iter().find(|section| {
            let at = usize::try_from(names + section.name).ok();
            at.and_then(|at| self.image.get(at..))
                .is_some_and(|rest| rest.starts_with(&wanted))
        })?;
        let start = usize::try_from(section.offset).ok()?;
        self.image
            .get(start..start.checked_add(usize::try_from(section.bytes).ok()?)?)
    }

    /// All symbols, also those for nobody else, in the order of their numbers.
    pub fn symbols(&self) -> Option<Vec<Symbol<'a>>> {
        let sections = self.all_sections()?;
        let table = sections.iter().find(|section| section.kind == SYMTAB)?;
        let names = sections.get(table.link as usize)?.offset;
        (0..table.bytes / 24)
            .map(|i| {
                let at = table.offset + i * 24;
                let name = self
                    .image
                    .get(usize::try_from(names + self.field(at, 4)?).ok()?..)?;
                Some(Symbol {
                    name: std::str::from_utf8(text_part(name)).ok()?,
                    kind: self.field(at + 4, 1)? & 15,
                    value: self.field(at + 8, 8)?,
                    size: self.field(at + 16, 8)?,
                    section: self.field(at + 6, 2)? as usize,
                })
            })
            .collect()
    }

    /// What a section of references has: an address each, the number of the symbol there, and how far behind it.
    pub fn references(&self, section: &Section) -> Option<Vec<(u64, usize, i64)>> {
        (0..section.bytes / 24)
            .map(|i| {
                let at = section.offset + i * 24;
                let symbol = self.field(at + 12, 4)? as usize;
                Some((self.field(at, 8)?, symbol, self.field(at + 16, 8)? as i64))
            })
            .collect()
    }

    /// Where the sections are described, the bytes of each description, and how many there are.
    fn sections(&self) -> Option<(u64, u64, u64)> {
        Some((self.field(40, 8)?, self.field(58, 2)?, self.field(60, 2)?))
    }

    /// The kind of file: 1 an object file, 2 a program, 3 a shared object.
    pub fn kind(&self) -> u64 {
        self.field(16, 2).unwrap_or(0)
    }

    /// Whether the file has a symbol of this name for others.
    pub fn exports(&self, name: &str) -> bool {
        self.find_export(name).unwrap_or(false)
    }

    fn find_export(&self, name: &str) -> Option<bool> {
        let (sections, size, count) = self.sections()?;
        let table = (0..count)
            .map(|i| sections + i * size)
            .find(|at| self.field(at + 4, 4) == Some(DYNSYM))?;
        let names = sections + self.field(table + 40, 4)? * size;
        let names = self.field(names + 24, 8)?;
        let (start, bytes) = (self.field(table + 24, 8)?, self.field(table + 32, 8)?);
        let wanted = [name.as_bytes(), b"\0"].concat();
        for symbol in (start..start + bytes).step_by(24) {
            let at = usize::try_from(names + self.field(symbol, 4)?).ok()?;
            // A symbol that is only needed has section 0.
            if self.field(symbol + 6, 2)? != 0 && self.image.get(at..)?.starts_with(&wanted) {
                return Some(true);
            }
        }
        Some(false)
    }
}

fn machine_name(machine: u16) -> &'static str {
    match machine {
        3 => "32-bit x86 processors",
        62 => "x86-64 processors",
        183 => "Arm processors",
        190 => "CUDA devices",
        224 => "AMD GPUs",
        243 => "RISC-V processors",
        _ => "another machine",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A 64-bit ELF header for `machine` with one section of `section` bytes after the tables.
    pub(crate) fn elf_file(machine: u16, section: u64) -> Vec<u8> {
        let mut f = vec![0u8; 64 + 64];
        f[..6].copy_from_slice(b"\x7fELF\x02\x01");
        f[18..20].copy_from_slice(&machine.to_le_bytes());
        f[40..48].copy_from_slice(&64u64.to_le_bytes());
        f[58..60].copy_from_slice(&64u16.to_le_bytes());
        f[60..62].copy_from_slice(&1u16.to_le_bytes());
        f[64 + 4] = 1;
        f[64 + 24..64 + 32].copy_from_slice(&128u64.to_le_bytes());
        f[64 + 32..64 + 40].copy_from_slice(&section.to_le_bytes());
        f.resize(128 + section as usize, 0xAB);
        f
    }

    /// Images that no backend takes, and a word that a refusal must have.
    pub(crate) const GARBAGE: &[(&[u8], &str)] = &[
        (b"", "empty"),
        (b"<!DOCTYPE html><html>404</html>", "HTML"),
        (b"  \n<HTML><body>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        (b"extern \"C\" __global__ void k() {}", "source"),
        (b"hello world", "hello world"),
        (b"BC\xC0\xDE rest", "bitcode"),
        (b"PK\x03\x04", "zip"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"MZ\x90", "Windows"),
        (b"!<arch>\n", "static library"),
        (b"\x01\x02\x03\x04\x05", "01 02 03 04 05"),
        (b"\0\0\0\0", "00 00 00 00"),
        (b"\xf0\x9d\xff\xfe\xfd\xc0", "f0 9d ff fe"),
        (b"\x7fELF", "cut short"),
        (b"\x7fELF\x01\x01\x01\0\0\0", "64-bit"),
    ];

    #[test]
    fn what_devices_load_is_known() {
        assert_eq!(
            look(b"//\n.version 7.0\n.target sm_70\n.address_size 64\n"),
            Looks::Ptx
        );
        assert_eq!(look(b".version 7.0\n.target sm_70\n\0\0garbage"), Looks::Ptx);
        assert_eq!(look(&elf_file(190, 100)), Looks::Elf);
        assert_eq!(look(&FATBIN_MAGIC.to_le_bytes()), Looks::Fatbin);
        assert_eq!(look(b"__CLANG_OFFLOAD_BUNDLE__\x01"), Looks::Bundle);
        assert_eq!(look(b"CCOB\x02\0"), Looks::Bundle);
        assert_eq!(
            look(b"/* .version 7.0 */ .target"),
            Looks::Text("/* .version 7.0 */ .target".into())
        );
    }

    #[test]
    fn elf_files_of_other_machines_are_named() {
        for (machine, word) in [
            (3, "32-bit"),
            (62, "x86-64"),
            (183, "Arm"),
            (224, "AMD"),
            (8, "machine 8"),
        ] {
            let file = elf_file(machine, 4);
            let e = Elf::check(&file, 190, "a cubin", "CUDA devices")
                .err()
                .expect("another machine");
            assert!(e.to_string().contains(word), "{e}");
        }
    }

    #[test]
    fn every_cut_is_seen() {
        let whole = elf_file(190, 100);
        assert!(Elf::check(&whole, 190, "a cubin", "CUDA devices").is_ok());
        for n in 4..whole.len() {
            assert!(
                Elf::check(&whole[..n], 190, "a cubin", "CUDA devices").is_err(),
                "{n} of {} bytes",
                whole.len()
            );
        }
        let mut fat = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 100, 0, 0, 0, 0, 0, 0, 0];
        fat.resize(116, 1);
        assert!(check_fatbin(&fat).is_ok());
        for n in 4..fat.len() {
            assert!(check_fatbin(&fat[..n]).is_err(), "{n} bytes");
        }
        fat[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(check_fatbin(&fat)
            .expect_err("no such length")
            .to_string()
            .contains("cut short"));
    }

    #[test]
    fn exported_symbols_are_found() {
        let file = std::fs::read("/proc/self/exe").expect("this test's own file");
        let machine = le(&file, 18, 2).expect("a header") as u16;
        let elf = Elf::check(&file, machine, "a program", "this machine").expect("it runs");
        assert!(!elf.exports("taskgpu_host_image"));
    }
}
