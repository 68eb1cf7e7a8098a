//! Looking at an image before a vendor sees it: vendors get no length and would read past the end.

use std::borrow::Cow;

use super::{Error, Result, Status};

/// What images a backend takes, in words for its refusals.
#[derive(Debug)]
pub(super) struct Wanted {
    /// All forms, such as "PTX, cubin or fatbin".
    pub(super) forms: &'static str,
    /// The form that is an ELF file.
    pub(super) elf: &'static str,
    /// That file's machine number, and what it stands for.
    pub(super) machine: u16,
    pub(super) devices: &'static str,
    /// The form that is text, and what marks it; empty where there is none.
    pub(super) text: &'static str,
}

/// The little-endian number at `at`.
pub(super) fn le(image: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let part = image.get(at..at.checked_add(bytes)?)?;
    Some(part.iter().rev().fold(0, |v, &b| (v << 8) | u64::from(b)))
}

pub(super) fn refuse(text: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Status::InvalidImage, text)
}

/// Refuses what is empty or begins like another form of file.
pub(super) fn refuse_others(image: &[u8], wanted: &Wanted) -> Result<()> {
    if image.is_empty() {
        return Err(refuse("the image is empty (0 bytes)"));
    }
    for (magic, what) in [
        (
            &b"__CLANG_OFFLOAD_BUNDLE__"[..],
            "a clang offload bundle, as made for AMD devices",
        ),
        (b"\x50\xED\x55\xBA", "a fatbin, as made for CUDA devices"),
        (b"BC\xC0\xDE", "LLVM bitcode"),
        (b"!<arch>\n", "a static library"),
        (b"PK\x03\x04", "a zip file"),
        (b"\x1f\x8b", "gzip-compressed"),
        (b"MZ", "a Windows program"),
        (b"\x28\xB5\x2F\xFD", "zstd-compressed"),
    ] {
        if image.starts_with(magic) {
            return Err(refuse(format!("the image is {what}, not {}", wanted.forms)));
        }
    }
    Ok(())
}

/// Refuses an ELF file that is not whole, or for another machine.
pub(super) fn check_elf(image: &[u8], wanted: &Wanted) -> Result<()> {
    let cut = || {
        refuse(format!(
            "the image is a {} cut short: {} bytes are less than its tables say",
            wanted.elf,
            image.len()
        ))
    };
    if image.get(4) != Some(&2) || image.get(5) != Some(&1) {
        return Err(match image.get(4..6) {
            None => cut(),
            Some(_) => refuse("the image is an ELF file, but not a 64-bit little-endian one"),
        });
    }
    let machine = le(image, 18, 2).ok_or_else(cut)? as u16;
    if machine != wanted.machine {
        let whose = match machine {
            62 => "x86-64 processors",
            183 => "Arm processors",
            190 => "CUDA devices",
            224 => "AMD GPUs",
            243 => "RISC-V processors",
            _ => "another machine",
        };
        return Err(refuse(format!(
            "the image is an ELF file for {whose} (machine {machine}), not for {} ({})",
            wanted.devices, wanted.machine
        )));
    }
    let len = image.len() as u64;
    let inside = |start: u64, bytes: u64| start.checked_add(bytes).is_some_and(|end| end <= len);
    let field = |at, bytes| le(image, at, bytes).ok_or_else(cut);
    let (ph, sh) = (field(32, 8)?, field(40, 8)?);
    let (ph_size, ph_count) = (field(54, 2)?, field(56, 2)?);
    let (sh_size, sh_count) = (field(58, 2)?, field(60, 2)?);
    if (sh_count > 0 && (sh_size < 64 || !inside(sh, sh_size * sh_count)))
        || (ph_count > 0 && (ph_size < 56 || !inside(ph, ph_size * ph_count)))
    {
        return Err(cut());
    }
    const NOBITS: u64 = 8;
    for i in 0..sh_count {
        let at = (sh + i * sh_size) as usize;
        let (kind, start, bytes) = (field(at + 4, 4)?, field(at + 24, 8)?, field(at + 32, 8)?);
        if kind != NOBITS && kind != 0 && !inside(start, bytes) {
            return Err(cut());
        }
    }
    for i in 0..ph_count {
        let at = (ph + i * ph_size) as usize;
        if !inside(field(at + 8, 8)?, field(at + 32, 8)?) {
            return Err(cut());
        }
    }
    Ok(())
}

/// Text up to the first NUL, which is all that a vendor would read.
pub(super) fn text_of(image: &[u8]) -> &[u8] {
    &image[..image.iter().position(|&b| b == 0).unwrap_or(image.len())]
}

/// True where the beginning can be read by a person.
pub(super) fn is_text(image: &[u8]) -> bool {
    let printable = |b: &u8| b.is_ascii_graphic() || b" \t\r\n\x0b\x0c".contains(b) || *b >= 0x80;
    let body = text_of(image);
    let head = &body[..body.len().min(4096)];
    !head.is_empty() && head.iter().all(printable)
}

/// The refusal of what is no image, named for what it looks like.
pub(super) fn nonsense(image: &[u8], wanted: &Wanted) -> Error {
    if !is_text(image) {
        let first: Vec<String> = image.iter().take(8).map(|b| format!("{b:02x}")).collect();
        return refuse(format!(
            "the image is no {}: {} bytes that begin with {}",
            wanted.forms,
            image.len(),
            first.join(" ")
        ));
    }
    let text = String::from_utf8_lossy(text_of(image));
    let start = text
        .trim_start()
        .get(..64)
        .unwrap_or(text.trim_start())
        .to_ascii_lowercase();
    if start.starts_with("<!doctype html") || start.starts_with("<html") {
        return refuse(format!(
            "the image is an HTML page, not {}; was a download answered with an error page?",
            wanted.forms
        ));
    }
    if start.starts_with("version https://git-lfs") {
        return refuse("the image is a Git LFS pointer, not the file it stands for");
    }
    if text.contains("__global__") {
        return refuse("the image is source text; compile it instead of loading it");
    }
    let first: String = text
        .trim_start()
        .chars()
        .take_while(|c| *c != '\n')
        .take(60)
        .collect();
    refuse(match wanted.text {
        "" => format!(
            "the image is text, not {}, and begins with {first:?}",
            wanted.forms
        ),
        text => format!("the image is text, but no {text} and begins with {first:?}"),
    })
}

#[cfg(test)]
pub(super) mod tests {

    /// A 64-bit ELF header for `machine` with one section of `section` bytes after the tables.
    pub(in crate::backend) fn elf_file(machine: u16, section: u64) -> Vec<u8> {
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

    /// What every backend must say of files that are no images for it.
    pub(in crate::backend) fn check_refusals(why: impl Fn(&[u8]) -> String, own_machine: u16) {
        for (image, word) in [
            (&b""[..], "empty"),
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
            (b"\x7fELF", "cut short"),
        ] {
            let text = why(image);
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
        for (machine, word) in [
            (62, "x86-64"),
            (183, "Arm"),
            (190, "CUDA"),
            (224, "AMD"),
            (8, "machine 8"),
        ] {
            if machine != own_machine {
                let text = why(&elf_file(machine, 4));
                assert!(text.contains(word), "{text}");
            }
        }
        let mut small = elf_file(own_machine, 4);
        small[4] = 1;
        assert!(why(&small).contains("64-bit"));
        let whole = elf_file(own_machine, 100);
        for n in 4..whole.len() {
            assert!(
                why(&whole[..n]).contains("cut short"),
                "{n} of {} bytes",
                whole.len()
            );
        }
    }
}
