//! Looking at an image before the driver sees it: the driver gets no length and would read past the end.

use crate::backend::image::{check_elf, is_text, le, nonsense, refuse, refuse_others, text_of, Wanted};
use crate::backend::Result;

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

const WANTED: Wanted = Wanted {
    forms: "PTX, cubin or fatbin",
    elf: "cubin",
    machine: 190,
    devices: "CUDA devices",
    text: "PTX: it has no .version and .target directive",
};
const FATBIN_MAGIC: u32 = 0xBA55_ED50;
const FATBIN_WRAPPER_MAGIC: u32 = 0x4662_43B1;

/// Says what `image` is, or why it is nothing a CUDA device can load.
pub(super) fn inspect(image: &[u8]) -> Result<Kind> {
    if image.starts_with(b"\x7fELF") {
        return check_elf(image, &WANTED).map(|()| Kind::Cubin);
    }
    if le(image, 0, 4) == Some(u64::from(FATBIN_MAGIC)) {
        return fatbin(image);
    }
    if le(image, 0, 4) == Some(u64::from(FATBIN_WRAPPER_MAGIC)) {
        return Err(refuse(
            "the image is a fatbin wrapper, which holds pointers; give the fatbin that its third field points to",
        ));
    }
    refuse_others(image, &WANTED)?;
    if is_text(image) {
        let code = without_comments(&String::from_utf8_lossy(text_of(image)));
        if code.contains(".version") && code.contains(".target") {
            return Ok(Kind::Ptx);
        }
    }
    Err(nonsense(image, &WANTED))
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
    use crate::backend::image::tests::{check_refusals, elf_file};
    use crate::backend::Status;

    fn why(image: &[u8]) -> String {
        let e = inspect(image).expect_err("an image that is none");
        assert_eq!(e.status(), Status::InvalidImage);
        e.to_string()
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
        check_refusals(why, 190);
        for (image, word) in [
            (&b"__CLANG_OFFLOAD_BUNDLE__\x01"[..], "AMD"),
            (b"// .version 7.0 .target sm_70\n", "no .version"),
            (b"/* .version 7.0 */ .target", "no .version"),
            (&0x4662_43B1u32.to_le_bytes(), "wrapper"),
        ] {
            let text = why(image);
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }

    #[test]
    fn every_cut_of_a_fatbin_is_refused() {
        let mut fat = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 100, 0, 0, 0, 0, 0, 0, 0];
        fat.resize(116, 1);
        for n in 4..fat.len() {
            assert!(inspect(&fat[..n]).is_err(), "{n} bytes");
        }
        fat[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(why(&fat).contains("cut short"));
    }
}
