//! What `hipModuleLoadData` is given. It gets no length: a code object's own tables tell it.
//!
//! Two kinds of code object are ours. Both are ELF files for AMD's machine with one segment, whose contents begin with
//! sixteen bytes that say which kind it is.
//!
//! * *A table of C functions*, for tests: they are the kernels. After the sixteen bytes the number of kernels, then for each
//!   one 64 bytes of name, the function, a data pointer, the number of its arguments and the size of each. All numbers
//!   have 64 bits. `c-tests/work.h` makes them.
//! * *Source*, from our own `hiprtc`: compiled by the backend below once the device is known.

use std::ffi::c_void;

use taskgpu::backend::{CompileOptions, HostBlock, HostKernelFn};

use crate::entry::Hip;
use crate::ffi::{hipErrorInvalidImage, hipErrorInvalidValue};

const TABLE: &[u8; 16] = b"hip-shim kernels";
const SOURCE: &[u8; 16] = b"hip-shim source\0";
const ELF: &[u8] = b"\x7fELF";
const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SECTION_BYTES: usize = 64;
const AMD_MACHINE: u16 = 224;
const NAME_BYTES: usize = 64;
const MOST_KERNELS: u64 = 4096;
const MOST_ARGUMENTS: u64 = 256;

/// A C function as a kernel.
pub struct TableKernel {
    pub name: String,
    pub function: HostKernelFn,
    pub data: *mut c_void,
    pub arg_sizes: Vec<usize>,
}

/// What an image is.
pub enum Image<'a> {
    Table(Vec<TableKernel>),
    Source(String, CompileOptions),
    /// Something for the backend below.
    Other(&'a [u8]),
}

/// Reads little-endian numbers one after the other.
struct Reader {
    at: *const u8,
}

impl Reader {
    /// # Safety
    /// Enough bytes are readable.
    unsafe fn bytes(&mut self, count: usize) -> &'static [u8] {
        // SAFETY: the caller's promise. The result is only used while the image lives.
        let bytes = unsafe { std::slice::from_raw_parts(self.at, count) };
        self.at = self.at.wrapping_add(count);
        bytes
    }

    /// # Safety
    /// Eight bytes are readable.
    unsafe fn number(&mut self) -> u64 {
        // SAFETY: the caller's promise.
        u64::from_le_bytes(unsafe { self.bytes(8) }.try_into().expect("eight bytes"))
    }

    /// # Safety
    /// A number and as many bytes are readable.
    unsafe fn text(&mut self) -> String {
        // SAFETY: the caller's promise.
        String::from_utf8_lossy(unsafe {
            let length = self.number() as usize;
            self.bytes(length)
        })
        .into_owned()
    }
}

fn field(header: &[u8], at: usize, bytes: usize) -> usize {
    header[at..at + bytes]
        .iter()
        .rev()
        .fold(0, |v, &b| (v << 8) | usize::from(b))
}

/// Says what an image is.
///
/// # Safety
/// `image` is NULL, text that ends with NUL, or a whole ELF file.
pub unsafe fn read<'a>(image: *const c_void) -> Hip<Image<'a>> {
    let start = image.cast::<u8>();
    if start.is_null() {
        return Err(hipErrorInvalidValue);
    }
    // SAFETY: text of fewer bytes differs before its end.
    let is_elf = ELF
        .iter()
        .enumerate()
        .all(|(i, byte)| unsafe { *start.add(i) } == *byte);
    if !is_elf {
        // SAFETY: the caller's promise.
        let text = unsafe { std::ffi::CStr::from_ptr(start.cast()) };
        return Ok(Image::Other(text.to_bytes_with_nul()));
    }
    // SAFETY: an ELF file has a header.
    let header = unsafe { std::slice::from_raw_parts(start, HEADER_BYTES) };
    let (segments, segment_count) = (field(header, 32, 8), field(header, 56, 2));
    let (sections, section_count) = (field(header, 40, 8), field(header, 60, 2));
    let mut end = HEADER_BYTES.max(sections + SECTION_BYTES * section_count);
    for i in 0..segment_count {
        // SAFETY: the file is whole.
        let segment =
            unsafe { std::slice::from_raw_parts(start.add(segments + i * SEGMENT_BYTES), SEGMENT_BYTES) };
        let (offset, bytes) = (field(segment, 8, 8), field(segment, 32, 8));
        end = end.max(offset + bytes);
        if field(header, 18, 2) == usize::from(AMD_MACHINE) && bytes >= TABLE.len() {
            // SAFETY: the segment is in the file, and what it holds is as long as it says.
            let ours = unsafe { segment_of_ours(start.add(offset)) }?;
            if let Some(ours) = ours {
                return Ok(ours);
            }
        }
    }
    // SAFETY: the file is whole.
    Ok(Image::Other(unsafe { std::slice::from_raw_parts(start, end) }))
}

/// # Safety
/// What begins with one of our marks is whole.
unsafe fn segment_of_ours<'a>(at: *const u8) -> Hip<Option<Image<'a>>> {
    let mut reader = Reader { at };
    // SAFETY: the caller's promise, here and below.
    let mark = unsafe { reader.bytes(TABLE.len()) };
    if mark == TABLE {
        return unsafe { read_table(&mut reader) }.map(Some);
    }
    if mark != SOURCE {
        return Ok(None);
    }
    let mut texts = || unsafe { (0..reader.number()).map(|_| reader.text()).collect::<Vec<_>>() };
    let (head, options, name_expressions) = (texts(), texts(), texts());
    let [text, name] = <[String; 2]>::try_from(head).map_err(|_| hipErrorInvalidImage)?;
    let options = CompileOptions {
        name,
        options,
        name_expressions,
    };
    Ok(Some(Image::Source(text, options)))
}

/// # Safety
/// The table is whole.
unsafe fn read_table<'a>(reader: &mut Reader) -> Hip<Image<'a>> {
    // SAFETY: the caller's promise, here and below.
    let count = unsafe { reader.number() };
    if count > MOST_KERNELS {
        return Err(hipErrorInvalidImage);
    }
    let mut kernels = Vec::new();
    for _ in 0..count {
        let name = unsafe { reader.bytes(NAME_BYTES) };
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let (function, data, arguments) = unsafe { (reader.number(), reader.number(), reader.number()) };
        if function == 0 || arguments > MOST_ARGUMENTS {
            return Err(hipErrorInvalidImage);
        }
        kernels.push(TableKernel {
            name: String::from_utf8_lossy(name).into_owned(),
            // SAFETY: the test that made the table put a kernel's address there.
            function: unsafe {
                std::mem::transmute::<
                    usize,
                    unsafe extern "C" fn(*const HostBlock, *const *mut c_void, *mut c_void),
                >(function as usize)
            },
            data: data as *mut c_void,
            arg_sizes: (0..arguments)
                .map(|_| unsafe { reader.number() } as usize)
                .collect(),
        });
    }
    Ok(Image::Table(kernels))
}

/// Makes a code object of source.
pub fn of_source(text: &str, options: &CompileOptions) -> Vec<u8> {
    let mut contents = SOURCE.to_vec();
    let head = [text.to_owned(), options.name.clone()];
    for texts in [&head[..], &options.options, &options.name_expressions] {
        contents.extend((texts.len() as u64).to_le_bytes());
        for text in texts {
            contents.extend((text.len() as u64).to_le_bytes());
            contents.extend(text.as_bytes());
        }
    }
    elf_with(&contents)
}

/// An ELF file for AMD's machine with one segment.
fn elf_with(contents: &[u8]) -> Vec<u8> {
    const PT_LOAD: u64 = 1;
    let mut file = vec![0u8; HEADER_BYTES + SEGMENT_BYTES];
    let mut put = |at: usize, value: u64, bytes: usize| {
        file[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes])
    };
    put(0, u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\x40"), 8); // 64 bits, little-endian, for the HSA runtime
    put(16, 3, 2); // a shared object
    put(18, AMD_MACHINE.into(), 2);
    put(20, 1, 4);
    put(32, HEADER_BYTES as u64, 8);
    put(48, 0x3f, 4); // gfx90a
    put(52, HEADER_BYTES as u64, 2);
    put(54, SEGMENT_BYTES as u64, 2);
    put(56, 1, 2);
    put(HEADER_BYTES, PT_LOAD, 4);
    put(HEADER_BYTES + 8, (HEADER_BYTES + SEGMENT_BYTES) as u64, 8);
    put(HEADER_BYTES + 32, contents.len() as u64, 8);
    put(HEADER_BYTES + 40, contents.len() as u64, 8);
    file.extend(contents);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_comes_back_whole() {
        let options = CompileOptions {
            name: "a.hip".to_owned(),
            options: vec!["-O3".to_owned(), String::new()],
            name_expressions: vec!["scale<float>".to_owned()],
        };
        let image = of_source("text \u{fc}", &options);
        // SAFETY: a whole file.
        match unsafe { read(image.as_ptr().cast()) } {
            Ok(Image::Source(text, read_options)) => {
                assert_eq!(text, "text \u{fc}");
                assert_eq!(read_options, options);
            }
            _ => panic!("no source"),
        }
    }

    #[test]
    fn what_is_not_ours_keeps_its_length() {
        let text = b"// some text\0 and more";
        // SAFETY: text that ends with NUL.
        assert!(matches!(
            unsafe { read(text.as_ptr().cast()) },
            Ok(Image::Other(b"// some text\0"))
        ));
        let file = elf_with(b"sixteen bytes at least, but not ours");
        // SAFETY: a whole file.
        assert!(matches!(unsafe { read(file.as_ptr().cast()) }, Ok(Image::Other(whole)) if whole == file));
        // SAFETY: NULL is answered.
        assert!(matches!(unsafe { read(std::ptr::null()) }, Err(code) if code == hipErrorInvalidValue));
    }
}
