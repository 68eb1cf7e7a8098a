//! Looking at an image before the runtime sees it: the runtime gets no length and would read past the end.

use crate::backend::image::{le, look, refuse, Elf, Looks};
use crate::backend::Result;

const ELF_MACHINE_AMD: u16 = 224;
const BUNDLE_MAGIC: &[u8] = b"__CLANG_OFFLOAD_BUNDLE__";
const COMPRESSED_MAGIC: &[u8] = b"CCOB";
const WRAPPER_MAGIC: u32 = 0x4849_5046;

/// Refuses what no AMD GPU can load, or what is not whole.
pub(super) fn inspect(image: &[u8]) -> Result<()> {
    if image.starts_with(COMPRESSED_MAGIC) {
        return compressed(image);
    }
    if le(image, 0, 4) == Some(u64::from(WRAPPER_MAGIC)) {
        return Err(refuse(
            "the image is a fat binary's wrapper, which holds pointers; give the bundle that its third field points to",
        ));
    }
    match look(image) {
        Looks::Elf => Elf::check(image, ELF_MACHINE_AMD, "a code object", "AMD GPUs").map(|_| ()),
        Looks::Bundle => bundle(image),
        other => Err(other.refuse("code objects or offload bundles")),
    }
}

/// Every entry of a bundle must lie inside it.
fn bundle(image: &[u8]) -> Result<()> {
    let cut = || {
        refuse(format!(
            "the image is an offload bundle cut short: {} bytes are less than its table says",
            image.len()
        ))
    };
    let field = |at: u64| {
        usize::try_from(at)
            .ok()
            .and_then(|at| le(image, at, 8))
            .ok_or_else(cut)
    };
    let len = image.len() as u64;
    let mut at = BUNDLE_MAGIC.len() as u64;
    let count = field(at)?;
    at += 8;
    for _ in 0..count {
        let (offset, bytes, name) = (field(at)?, field(at + 8)?, field(at + 16)?);
        let inside = |end: Option<u64>| end.filter(|end| *end <= len).ok_or_else(cut);
        inside(offset.checked_add(bytes))?;
        at = inside((at + 24).checked_add(name))?;
    }
    Ok(())
}

/// A compressed bundle says how long it is from its second version on.
fn compressed(image: &[u8]) -> Result<()> {
    let said = match le(image, 4, 2) {
        Some(2) => le(image, 8, 4),
        Some(3) => le(image, 8, 8),
        Some(other) => {
            return Err(refuse(format!(
                "the image is a compressed offload bundle of version {other}; known are 2 and 3"
            )))
        }
        None => None,
    };
    match said {
        Some(said) if said <= image.len() as u64 => Ok(()),
        _ => Err(refuse(format!(
            "the image is a compressed offload bundle cut short: {} bytes",
            image.len()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::image::tests::{elf_file, GARBAGE};
    use crate::backend::Status;

    fn why(image: &[u8]) -> String {
        let e = inspect(image).expect_err("an image that is none");
        assert_eq!(e.status(), Status::InvalidImage);
        e.to_string()
    }

    fn bundle_of(object: &[u8]) -> Vec<u8> {
        let name = b"hipv4-amdgcn-amd-amdhsa--gfx90a";
        let mut f = BUNDLE_MAGIC.to_vec();
        let offset = (f.len() + 32 + name.len()) as u64;
        for number in [1, offset, object.len() as u64, name.len() as u64] {
            f.extend_from_slice(&number.to_le_bytes());
        }
        f.extend_from_slice(name);
        f.extend_from_slice(object);
        f
    }

    #[test]
    fn what_can_be_loaded_is_known() {
        inspect(&elf_file(224, 100)).expect("a code object");
        inspect(&bundle_of(&elf_file(224, 100))).expect("a bundle");
        inspect(b"CCOB\x02\0\x01\0\x0c\0\0\0").expect("a compressed bundle");
    }

    #[test]
    fn garbage_is_named_for_what_it_looks_like() {
        let others: &[(&[u8], &str)] = &[
            (&WRAPPER_MAGIC.to_le_bytes(), "wrapper"),
            (b"\x50\xED\x55\xBA", "NVIDIA"),
            (b"CCOB\x09\0", "version 9"),
            (b"CCOB\x02\0\x01\0\xff\0\0\0", "cut short"),
            (b"CCOB", "cut short"),
            (&elf_file(62, 4), "x86-64"),
        ];
        for (image, word) in GARBAGE.iter().chain(others) {
            let text = why(image);
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }

    #[test]
    fn every_cut_of_a_bundle_is_refused() {
        let whole = bundle_of(&elf_file(224, 100));
        for n in BUNDLE_MAGIC.len()..whole.len() {
            assert!(why(&whole[..n]).contains("cut short"), "{n} bytes");
        }
        let mut wild = whole;
        wild[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(why(&wild).contains("cut short"));
        wild[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(why(&wild).contains("cut short"));
    }
}
