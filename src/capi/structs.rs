//! The `struct_size` rule, written once: how structs of another version of the header are read and
//! written.

use super::invalid;
use crate::backend::Result;
use std::mem::{size_of, MaybeUninit};
use std::ptr;

/// No struct of any version is larger: beyond it, `struct_size` is garbage and nothing behind it is
/// read.
const MAX: usize = 4096;

/// A struct of the ABI that starts with `struct_size`.
///
/// # Safety
/// It is `repr(C)`, its first field is `struct_size: usize`, and every bit pattern is a valid
/// value.
pub(super) unsafe trait AbiStruct: Sized {
    /// The name in C, for messages.
    const NAME: &'static str;
}

/// Reads and checks the caller's `struct_size`.
///
/// # Safety
/// `p` is NULL or points to a readable `size_t`.
#[inline]
unsafe fn size_of_callers<T: AbiStruct>(p: *const T, name: &str) -> Result<usize> {
    if p.is_null() {
        return Err(super::null(name));
    }
    // SAFETY: not NULL, readable by the caller's promise, at whatever alignment.
    let size = unsafe { p.cast::<usize>().read_unaligned() };
    if !(size_of::<usize>()..=MAX).contains(&size) {
        return Err(bad_size::<T>(size, name));
    }
    Ok(size)
}

#[cold]
fn bad_size<T: AbiStruct>(size: usize, name: &str) -> crate::backend::Error {
    invalid(format!(
        "{name}->struct_size is {size}; it must be {} to {MAX}, and sizeof({}) is {} here",
        size_of::<usize>(),
        T::NAME,
        size_of::<T>()
    ))
}

/// Copies an input struct: shorter than ours means zeros for the rest, a longer one must have a
/// tail of zeros.
///
/// # Safety
/// `p` is NULL or points to a readable `size_t`, and if that is at most [`MAX`], to as many
/// readable bytes.
#[inline]
pub(super) unsafe fn read<T: AbiStruct>(p: *const T, name: &str) -> Result<T> {
    // SAFETY: the caller's promise.
    let size = unsafe { size_of_callers(p, name) }?;
    let mut ours = MaybeUninit::<T>::zeroed();
    // SAFETY: both sides have at least this many bytes, and one of them is a local of ours. All zeros and any bytes
    // of the caller are a valid `T` by the trait's promise.
    let ours = unsafe {
        ptr::copy_nonoverlapping(
            p.cast::<u8>(),
            ours.as_mut_ptr().cast::<u8>(),
            size.min(size_of::<T>()),
        );
        ours.assume_init()
    };
    if size > size_of::<T>() {
        // SAFETY: the caller has `size` readable bytes.
        let tail =
            unsafe { std::slice::from_raw_parts(p.cast::<u8>().add(size_of::<T>()), size - size_of::<T>()) };
        if let Some(at) = tail.iter().position(|&byte| byte != 0) {
            return Err(invalid(format!(
                "byte {} of {name} is not zero, but this library knows only the first {} bytes of {}: the program \
                 was built for a newer version than {}",
                size_of::<T>() + at,
                size_of::<T>(),
                T::NAME,
                env!("CARGO_PKG_VERSION")
            )));
        }
    }
    Ok(ours)
}

/// [`read`] for structs that may be left out: NULL is all defaults.
///
/// # Safety
/// As for [`read`].
#[inline]
pub(super) unsafe fn read_or_default<T: AbiStruct>(p: *const T, name: &str) -> Result<T> {
    if p.is_null() {
        // SAFETY: all zeros are a valid `T` by the trait's promise.
        return Ok(unsafe { MaybeUninit::<T>::zeroed().assume_init() });
    }
    // SAFETY: the caller's promise.
    unsafe { read(p, name) }
}

/// An output struct of the caller: its size is checked first, the struct is written last.
pub(super) struct OutStruct<T> {
    to: *mut T,
    size: usize,
}

impl<T: AbiStruct> OutStruct<T> {
    /// # Safety
    /// `p` is NULL or points to a readable `size_t`, and if that is at most [`MAX`], as many bytes
    /// may be written until the call returns.
    #[inline]
    pub(super) unsafe fn new(p: *mut T, name: &str) -> Result<OutStruct<T>> {
        // SAFETY: the caller's promise.
        let size = unsafe { size_of_callers(p.cast_const(), name) }?;
        Ok(OutStruct { to: p, size })
    }

    /// Fills the struct, of which all bytes are zero before, and hands over as much as the caller
    /// has room for. The rest of the caller's struct is zeroed; its `struct_size` stays.
    pub(super) fn write(self, fill: impl FnOnce(&mut T)) {
        let mut ours = MaybeUninit::<T>::zeroed();
        // SAFETY: all zeros are a valid `T` by the trait's promise.
        fill(unsafe { ours.assume_init_mut() });
        let head = size_of::<usize>();
        let known = self.size.min(size_of::<T>());
        // SAFETY: `new` was promised `size` bytes to write to, of which `struct_size` is skipped; `known` is at least
        // that and at most the size of either side.
        unsafe {
            let to = self.to.cast::<u8>();
            ptr::copy_nonoverlapping(ours.as_ptr().cast::<u8>().add(head), to.add(head), known - head);
            ptr::write_bytes(to.add(known), 0, self.size - known);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Thing {
        struct_size: usize,
        a: u32,
        b: u32,
        c: u64,
    }
    // SAFETY: repr(C), size first, plain numbers.
    unsafe impl AbiStruct for Thing {
        const NAME: &'static str = "tgpu_thing";
    }
    const SIZE: usize = size_of::<Thing>();
    const WORD: usize = size_of::<usize>();

    /// Bytes at an odd address, the first of them a `struct_size`, the rest `fill`.
    struct Bytes(Vec<u8>);

    impl Bytes {
        fn new(struct_size: usize, room: usize, fill: u8) -> Bytes {
            let mut bytes = vec![fill; room + 1];
            bytes[1..=WORD].copy_from_slice(&struct_size.to_ne_bytes());
            Bytes(bytes)
        }
        fn ptr(&mut self) -> *mut Thing {
            self.0[1..].as_mut_ptr().cast()
        }
        fn read(&mut self) -> Result<Thing> {
            // SAFETY: every test has as many bytes as its struct_size says, or a size that is refused.
            unsafe { read(self.ptr(), "options") }
        }
        fn write(&mut self) -> Result<()> {
            // SAFETY: as in `read`.
            let out = unsafe { OutStruct::new(self.ptr(), "out") }?;
            out.write(|t| {
                assert_eq!((t.struct_size, t.a, t.b, t.c), (0, 0, 0, 0));
                (t.a, t.b, t.c) = (0x0101_0101, 0x0202_0202, 0x0303_0303_0303_0303);
            });
            Ok(())
        }
        fn body(&self) -> &[u8] {
            &self.0[1 + WORD..]
        }
        fn size(&self) -> usize {
            usize::from_ne_bytes(self.0[1..=WORD].try_into().unwrap())
        }
    }

    fn text<T>(result: Result<T>) -> String {
        let e = result.err().expect("must be refused");
        assert_eq!(e.status(), crate::backend::Status::InvalidArgument);
        e.to_string()
    }

    #[test]
    fn the_same_size_is_copied() {
        let t = Bytes::new(SIZE, SIZE, 7).read().unwrap();
        assert_eq!(
            (t.struct_size, t.a, t.b, t.c),
            (SIZE, 0x0707_0707, 0x0707_0707, 0x0707_0707_0707_0707)
        );
    }

    #[test]
    fn a_shorter_input_reads_zeros_for_the_rest() {
        for size in WORD..SIZE {
            // The vector ends where struct_size says: Miri or a sanitizer would see a read beyond it.
            let t = Bytes::new(size, size, 0xff).read().unwrap();
            let expected = |at: usize, len: usize| {
                (0..len)
                    .map(|i| if at + i < size { 0xff_u64 << (8 * i) } else { 0 })
                    .sum::<u64>()
            };
            assert_eq!(t.struct_size, size);
            assert_eq!(u64::from(t.a), expected(WORD, 4), "a, size {size}");
            assert_eq!(u64::from(t.b), expected(WORD + 4, 4), "b, size {size}");
            assert_eq!(t.c, expected(WORD + 8, 8), "c, size {size}");
        }
    }

    #[test]
    fn a_longer_input_must_end_in_zeros() {
        for size in [SIZE + 1, SIZE + 9, MAX] {
            let mut bytes = Bytes::new(size, size, 0);
            assert!(bytes.read().is_ok());
            for at in [SIZE, size - 1] {
                bytes.0[1 + at] = 1;
                let text = text(bytes.read());
                assert!(
                    text.starts_with(&format!("byte {at} of options is not zero")),
                    "{text}"
                );
                assert!(
                    text.contains(&format!("the first {SIZE} bytes of tgpu_thing")),
                    "{text}"
                );
                bytes.0[1 + at] = 0;
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused_before_anything_behind_is_read() {
        for size in [0, 1, WORD - 1, MAX + 1, usize::MAX] {
            // Only the size itself is there.
            let mut bytes = Bytes::new(size, WORD, 0);
            let expected = format!(
                "->struct_size is {size}; it must be {WORD} to 4096, and sizeof(tgpu_thing) is {SIZE}"
            );
            assert!(text(bytes.read()).contains(&expected));
            assert!(text(bytes.write()).contains(&expected));
        }
    }

    #[test]
    fn null_is_named_or_means_defaults() {
        let none = ptr::null_mut::<Thing>();
        // SAFETY: NULL is allowed.
        unsafe {
            assert_eq!(text(read(none, "config")), "config is NULL");
            assert_eq!(text(OutStruct::new(none, "out")), "out is NULL");
            let t = read_or_default(none, "options").unwrap();
            assert_eq!((t.struct_size, t.a, t.b, t.c), (0, 0, 0, 0));
            let mut bytes = Bytes::new(SIZE, SIZE, 7);
            assert_eq!(read_or_default(bytes.ptr(), "options").unwrap().a, 0x0707_0707);
            let mut bytes = Bytes::new(0, WORD, 0);
            assert!(text(read_or_default(bytes.ptr(), "options")).starts_with("options->struct_size is 0"));
        }
    }

    #[test]
    fn an_output_gets_what_fits_and_zeros_behind() {
        for size in WORD..SIZE + 40 {
            // Eight bytes more than the struct has: they must stay.
            let mut bytes = Bytes::new(size, size + 8, 0xee);
            bytes.write().unwrap();
            assert_eq!(bytes.size(), size);
            let whole = [[1u8; 4].as_slice(), &[2; 4], &[3; 8]].concat();
            for (i, &byte) in bytes.body().iter().enumerate() {
                let expected = if WORD + i >= size {
                    0xee
                } else {
                    whole.get(i).copied().unwrap_or(0)
                };
                assert_eq!(byte, expected, "byte {} of size {size}", WORD + i);
            }
        }
        let mut bytes = Bytes::new(MAX, MAX, 0xee);
        bytes.write().unwrap();
        assert!(bytes.body()[SIZE - WORD..].iter().all(|&b| b == 0));
    }
}
