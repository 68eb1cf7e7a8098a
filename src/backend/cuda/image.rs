//! Looking at an image before the driver sees it: the driver gets no length and would read past the end.

use crate::backend::image::{check_fatbin, look, refuse, Elf, Looks};
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

const ELF_MACHINE_CUDA: u16 = 190;

/// Says what `image` is, or why it is nothing a CUDA device can load.
pub(super) fn inspect(image: &[u8]) -> Result<Kind> {
    match look(image) {
        Looks::Ptx => Ok(Kind::Ptx),
        Looks::Elf => Elf::check(image, ELF_MACHINE_CUDA, "a cubin", "CUDA devices").map(|_| Kind::Cubin),
        Looks::Fatbin => check_fatbin(image).map(|()| Kind::Fatbin),
        Looks::Text(first) => Err(refuse(format!(
            "the image is text, but no PTX: it has no .version and .target directive and begins with {first:?}"
        ))),
        other => Err(other.refuse("PTX, cubin or fatbin")),
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

    #[test]
    fn what_can_be_loaded_is_known() {
        assert_eq!(
            inspect(b".version 7.0\n.target sm_70\n\0\0garbage").expect("PTX"),
            Kind::Ptx
        );
        assert_eq!(inspect(&elf_file(190, 100)).expect("cubin"), Kind::Cubin);
        let mut fat = vec![0x50, 0xED, 0x55, 0xBA, 1, 0, 16, 0, 8, 0, 0, 0, 0, 0, 0, 0];
        fat.extend_from_slice(&[0; 8]);
        assert_eq!(inspect(&fat).expect("fatbin"), Kind::Fatbin);
        assert!(inspect(&fat[..20]).is_err());
    }

    #[test]
    fn garbage_is_named_for_what_it_looks_like() {
        let others: &[(&[u8], &str)] = &[
            (b"__CLANG_OFFLOAD_BUNDLE__\x01", "AMD"),
            (b"// .version 7.0 .target sm_70\n", "no .version"),
            (b"/* .version 7.0 */ .target", "no .version"),
            (&[0xB1, 0x43, 0x62, 0x46], "wrapper"),
            (&elf_file(62, 4), "x86-64"),
        ];
        for (image, word) in GARBAGE.iter().chain(others) {
            let text = why(image);
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }
}
