//! Looking at an image before the driver sees it: the driver gets no length and would read past the end.

use crate::backend::{Error, Result, Status};

/// What an image is that the driver may load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// PTX text, to be handed over with a NUL at its end.
    Ptx,
    /// An ELF file for NVIDIA devices.
    Cubin,
    /// A bundle of the two.
    Fatbin,
}

const ELF_MACHINE_CUDA: u16 = 190;
const FATBIN_MAGIC: u32 = 0xBA55_ED50;
const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43B1;

fn le(image: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let part = image.get(at..at.checked_add(bytes)?)?;
    Some(part.iter().rev().fold(0, |v, &b| (v << 8) | u64::from(b)))
}

fn refuse(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Status::InvalidImage, text)
}

/// Says what `image` is, or why it is nothing a CUDA device can load.
pub(super) fn inspect(image: &[u8]) -> Result<Kind> {
    if image.is_empty() {
        return Err(refuse("the image is empty (0 bytes)"));
    }
    if image.starts_with(b"\x7fELF") {
        return elf(image);
    }
    if le(image, 0, 4) == Some(u64::from(FATBIN_MAGIC)) {
        return fatbin(image);
    }
    if le(image, 0, 4) == Some(u64::from(FATBIN_WRAPPER_MAGIC)) {
        return Err(refuse(
            "the image is a fatbin wrapper, which holds pointers; give the fatbin that its third field points to",
        ));
    }
    for (magic, what) in [
        (
            &b"__CLANG_OFFLOAD_BUNDLE__"[..],
            "a clang offload bundle, as made for AMD devices",
        ),
        (b"BC\xC0\xDE", "LLVM bitcode"),
        (b"!<arch>\n", "a static library"),
        (b"PK\x03\x04", "a zip file"),
        (b"\x1f\x8b", "gzip-compressed"),
        (b"MZ", "a Windows program"),
        (b"\x28\xB5\x2F\xFD", "zstd-compressed"),
    ] {
        if image.starts_with(magic) {
            return Err(refuse(format!("the image is {what}, not PTX, cubin or fatbin")));
        }
    }
    text(image)
}

fn elf(image: &[u8]) -> Result<Kind> {
    let cut = || {
        refuse(format!(
            "the image is a cubin cut short: {} bytes are less than its tables say",
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
    if machine != ELF_MACHINE_CUDA {
        let whose = match machine {
            62 => "x86-64 processors",
            183 => "Arm processors",
            224 => "AMD GPUs",
            243 => "RISC-V processors",
            _ => "another machine",
        };
        return Err(refuse(format!(
            "the image is an ELF file for {whose} (machine {machine}), not for CUDA devices (190)"
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
    Ok(Kind::Cubin)
}

fn fatbin(image: &[u8]) -> Result<Kind> {
    let header = le(image, 6, 2);
    let body = le(image, 8, 8);
    match (header, body) {
        (Some(header), Some(body)) if header.checked_add(body).is_some_and(|n| n <= image.len() as u64) => {
            Ok(Kind::Fatbin)
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

/// Text up to the first NUL, which is all that the driver would read.
pub(super) fn ptx_text(image: &[u8]) -> &[u8] {
    &image[..image.iter().position(|&b| b == 0).unwrap_or(image.len())]
}

fn text(image: &[u8]) -> Result<Kind> {
    let body = ptx_text(image);
    let printable = |b: &u8| b.is_ascii_graphic() || b" \t\r\n\x0b\x0c".contains(b) || *b >= 0x80;
    let head = &body[..body.len().min(4096)];
    if head.is_empty() || !head.iter().all(printable) {
        let first: Vec<String> = image.iter().take(8).map(|b| format!("{b:02x}")).collect();
        return Err(refuse(format!(
            "the image is no PTX, cubin or fatbin: {} bytes that begin with {}",
            image.len(),
            first.join(" ")
        )));
    }
    let text = String::from_utf8_lossy(body);
    let code = without_comments(&text);
    if code.contains(".version") && code.contains(".target") {
        return Ok(Kind::Ptx);
    }
    let start = text
        .trim_start()
        .get(..64)
        .unwrap_or(text.trim_start())
        .to_ascii_lowercase();
    Err(refuse(
        if start.starts_with("<!doctype html") || start.starts_with("<html") {
            "the image is an HTML page, not PTX, cubin or fatbin; was a download answered with an error page?"
                .into()
        } else if start.starts_with("version https://git-lfs") {
            "the image is a Git LFS pointer, not the file it stands for".into()
        } else if text.contains("__global__") {
            "the image is source text; compile it instead of loading it".into()
        } else {
            let first: String = text
                .trim_start()
                .chars()
                .take_while(|c| *c != '\n')
                .take(60)
                .collect();
            format!("the image is text, but no PTX: it has no .version and .target directive and begins with {first:?}")
        },
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn why(image: &[u8]) -> String {
        let e = inspect(image).expect_err("an image that is none");
        assert_eq!(e.status(), Status::InvalidImage);
        e.to_string()
    }

    /// A 64-bit ELF header for `machine` with one section of `section` bytes after the tables.
    fn elf_file(machine: u16, section: u64) -> Vec<u8> {
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

    #[test]
    fn what_can_be_loaded_is_known() {
        assert_eq!(
            inspect(b"//\n.version 7.0\n.target sm_70\n.address_size 64\n").expect("PTX"),
            Kind::Ptx
        );
        assert_eq!(
            inspect(b".version 7.0\n.target sm_70\n\0\0garbage").expect("PTX"),
            Kind::Ptx
        );
        assert_eq!(inspect(&elf_file(190, 100)).expect("cubin"), Kind::Cubin);
        let mut fat = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 8, 0, 0, 0, 0, 0, 0, 0];
        fat.extend_from_slice(&[0; 8]);
        assert_eq!(inspect(&fat).expect("fatbin"), Kind::Fatbin);
    }

    #[test]
    fn garbage_is_named_for_what_it_looks_like() {
        for (image, word) in [
            (&b""[..], "empty"),
            (b"<!DOCTYPE html><html>404</html>", "HTML"),
            (b"  \n<HTML><body>", "HTML"),
            (b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
            (b"extern \"C\" __global__ void k() {}", "source"),
            (b"hello world", "hello world"),
            (b"__CLANG_OFFLOAD_BUNDLE__\x01", "AMD"),
            (b"BC\xC0\xDE rest", "bitcode"),
            (b"PK\x03\x04", "zip"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"MZ\x90", "Windows"),
            (b"!<arch>\n", "static library"),
            (b"\x01\x02\x03\x04\x05", "01 02 03 04 05"),
            (b"\0\0\0\0", "00 00 00 00"),
            (b"\x7fELF", "cut short"),
            (b"// .version 7.0 .target sm_70\n", "no .version"),
            (b"/* .version 7.0 */ .target", "no .version"),
            (&0x4662_43B1u32.to_le_bytes(), "wrapper"),
        ] {
            let text = why(image);
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }

    #[test]
    fn elf_files_of_other_machines_are_named() {
        for (machine, word) in [(62, "x86-64"), (183, "Arm"), (224, "AMD"), (8, "machine 8")] {
            let text = why(&elf_file(machine, 4));
            assert!(text.contains(word), "{text}");
        }
        let mut small = elf_file(190, 4);
        small[4] = 1;
        assert!(why(&small).contains("64-bit"));
    }

    #[test]
    fn every_cut_of_a_cubin_or_fatbin_is_refused() {
        let whole = elf_file(190, 100);
        for n in 4..whole.len() {
            assert!(inspect(&whole[..n]).is_err(), "{n} of {} bytes", whole.len());
        }
        let mut fat = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 100, 0, 0, 0, 0, 0, 0, 0];
        fat.resize(116, 1);
        for n in 4..fat.len() {
            assert!(inspect(&fat[..n]).is_err(), "{n} bytes");
        }
        fat[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(why(&fat).contains("cut short"));
    }
}
