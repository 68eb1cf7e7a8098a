//! What an operation does: kernels, copies, fills, cut into chunks that workers share.

use crate::backend::{Args, Error, HostBlock, HostKernel, HostKernelFn, Result, Shape, Status};
use std::cell::Cell;
use std::ffi::c_void;

/// Bytes of one chunk of a copy or fill: long enough to stream, short enough to give way soon.
const CHUNK_BYTES: u64 = 512 << 10;
/// Arguments up to this many words, with their pointer table, need no allocation.
const INLINE_WORDS: usize = 8;
/// The strictest alignment an argument can get.
const MAX_ALIGN: usize = 64;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// True while the calling thread runs a callback or a host kernel of the user's.
pub fn thread_is_inside_user_code() -> bool {
    INSIDE.with(Cell::get)
}

/// Marks the calling thread as inside user code while it lives.
pub struct Inside(bool);

impl Inside {
    /// Marks the thread.
    pub fn enter() -> Inside {
        Inside(INSIDE.with(|inside| inside.replace(true)))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|inside| inside.set(self.0));
    }
}

/// Storage with the strictest alignment, only ever read and written through pointers.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; MAX_ALIGN]);

/// The copied arguments: a table of offsets, which become pointers where the launch runs, and the values.
enum Buffer {
    Inline([u64; INLINE_WORDS]),
    Heap(Box<[Line]>),
}

impl Buffer {
    fn base(&mut self) -> *mut u8 {
        match self {
            Buffer::Inline(words) => words.as_mut_ptr().cast(),
            Buffer::Heap(lines) => lines.as_mut_ptr().cast(),
        }
    }
}

/// The core that the calling thread runs on; `u16::MAX` if that is not known.
pub fn current_core() -> u16 {
    // SAFETY: it only answers a number.
    u16::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(u16::MAX)
}

/// Where a worker runs blocks.
#[derive(Clone, Copy)]
pub struct Spot {
    /// The device they belong to.
    pub device: u32,
    /// Shared memory of the worker.
    pub shared: *mut c_void,
}

/// A kernel, its shape and its arguments.
pub struct Launch {
    function: HostKernelFn,
    data: u64,
    shape: Shape,
    arg_count: u16,
    /// The core that the launching thread ran on.
    core: u16,
    args: Buffer,
}

/// Sizes are multiples of their type's alignment, so the lowest set bit is alignment enough.
fn alignment(size: usize) -> usize {
    if size == 0 {
        1
    } else {
        (1 << size.trailing_zeros().min(MAX_ALIGN.trailing_zeros())).min(MAX_ALIGN)
    }
}

impl Launch {
    /// Copies the arguments.
    pub fn new(kernel: &HostKernel, shape: &Shape, args: Args<'_>) -> Result<Launch> {
        let sizes = kernel.arg_sizes();
        if args.is_null() && !sizes.is_empty() {
            return Err(Error::new(
                Status::InvalidArgument,
                format!(
                    "the kernel takes {} arguments and the launch gives none (NULL)",
                    sizes.len()
                ),
            ));
        }
        let arg_count = u16::try_from(sizes.len()).map_err(|_| {
            Error::new(
                Status::InvalidArgument,
                format!(
                    "the kernel takes {} arguments; the most is {}",
                    sizes.len(),
                    u16::MAX
                ),
            )
        })?;
        let table = sizes.len() * 8;
        let (mut end, mut strictest) = (table, 8);
        for &size in sizes {
            let align = alignment(size);
            strictest = strictest.max(align);
            end = end
                .checked_next_multiple_of(align)
                .and_then(|at| at.checked_add(size))
                .ok_or_else(too_big)?;
        }
        let mut buffer = if end <= INLINE_WORDS * 8 && strictest <= 8 {
            Buffer::Inline([0; INLINE_WORDS])
        } else {
            let lines = end.div_ceil(MAX_ALIGN);
            let mut heap = Vec::new();
            heap.try_reserve_exact(lines).map_err(|_| {
                Error::new(
                    Status::OutOfMemory,
                    format!("no host memory for {end} bytes of kernel arguments"),
                )
            })?;
            heap.resize(lines, Line([0; MAX_ALIGN]));
            Buffer::Heap(heap.into_boxed_slice())
        };
        let base = buffer.base();
        let mut at = table;
        for (i, &size) in sizes.iter().enumerate() {
            at = at.next_multiple_of(alignment(size));
            // SAFETY: whoever made `args` vouched for a pointer per argument and a value of its size behind it.
            // The buffer has room for the table and for `size` bytes from `at` on, computed the same way above.
            unsafe {
                base.cast::<u64>().add(i).write(at as u64);
                let value = *args.as_ptr().add(i);
                if size != 0 {
                    if value.is_null() {
                        return Err(Error::new(
                            Status::InvalidArgument,
                            format!(
                                "argument {i} of {} is NULL instead of pointing to {size} bytes",
                                sizes.len()
                            ),
                        ));
                    }
                    std::ptr::copy_nonoverlapping(value.cast::<u8>(), base.add(at), size);
                }
            }
            at += size;
        }
        Ok(Launch {
            function: kernel.function(),
            data: kernel.data() as u64,
            shape: *shape,
            arg_count,
            core: current_core(),
            args: buffer,
        })
    }

    /// The core that the launching thread ran on.
    pub fn core(&self) -> u16 {
        self.core
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u64 {
        // At most 2^31 * 2^16 * 2^16 by the limits of the device, which keeps clear of 2^64.
        self.shape.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// Turns the offsets into pointers. Once, where the launch stays until it has run.
    pub fn settle(&mut self) {
        let count = self.arg_count as usize;
        let base = self.args.base();
        for i in 0..count {
            // SAFETY: the table's `count` entries were written by `new` and lie within the buffer.
            unsafe { *base.cast::<u64>().add(i) += base as u64 };
        }
    }

    /// Runs blocks from `from` until `to`, asking before each whether to stop. Answers the first not run.
    pub fn run(&self, from: u64, to: u64, place: Spot, mut stop: impl FnMut() -> bool) -> u64 {
        let args = match &self.args {
            Buffer::Inline(words) => words.as_ptr().cast::<*mut c_void>(),
            Buffer::Heap(lines) => lines.as_ptr().cast::<*mut c_void>(),
        };
        let [gx, gy, _] = self.shape.grid;
        let mut block = HostBlock {
            index: [
                (from % u64::from(gx)) as u32,
                (from / u64::from(gx) % u64::from(gy)) as u32,
                (from / u64::from(gx) / u64::from(gy)) as u32,
            ],
            grid: self.shape.grid,
            block: self.shape.block,
            device: place.device as i32,
            shared: if self.shape.shared_bytes == 0 {
                std::ptr::null_mut()
            } else {
                place.shared
            },
            shared_bytes: self.shape.shared_bytes,
        };
        let _inside = Inside::enter();
        let mut at = from;
        while at < to && !stop() {
            // SAFETY: whoever made the kernel vouched for calls with `data` from any thread, for any block; the
            // table holds a pointer to a copy of each argument.
            unsafe { (self.function)(&block, args, self.data as *mut c_void) };
            at += 1;
            block.index[0] += 1;
            if block.index[0] == gx {
                block.index[0] = 0;
                block.index[1] += 1;
                if block.index[1] == gy {
                    block.index[1] = 0;
                    block.index[2] += 1;
                }
            }
        }
        at
    }
}

#[cold]
fn too_big() -> Error {
    Error::new(
        Status::InvalidArgument,
        "the kernel's arguments together exceed the address space",
    )
}

/// A copy.
pub struct Copy {
    dst: u64,
    src: u64,
    bytes: u64,
}

impl Copy {
    /// A copy; its places were vouched for by whoever made the addresses.
    pub fn new(dst: u64, src: u64, bytes: u64) -> Result<Copy> {
        if dst.checked_add(bytes).is_none() || src.checked_add(bytes).is_none() {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("a copy of {bytes} bytes from {src:#x} to {dst:#x} exceeds the address space"),
            ));
        }
        Ok(Copy { dst, src, bytes })
    }

    /// Chunks that may be copied in any order.
    pub fn chunks(&self) -> u64 {
        // Overlapping places have to be moved in one piece.
        if self.dst.abs_diff(self.src) < self.bytes || self.bytes < 2 * CHUNK_BYTES {
            1
        } else {
            self.bytes.div_ceil(CHUNK_BYTES)
        }
    }

    /// Copies one of `chunks` chunks.
    pub fn run(&self, chunk: u64, chunks: u64) {
        let (from, length) = part(chunk, chunks, self.bytes);
        // SAFETY: the makers of the addresses vouched for `bytes` readable and writable bytes until the work is done.
        unsafe {
            std::ptr::copy(
                (self.src + from) as *const u8,
                (self.dst + from) as *mut u8,
                length as usize,
            );
        }
    }
}

/// A fill.
pub struct Fill {
    dst: u64,
    bytes: u64,
    /// The pattern repeated to 16 bytes, which every chunk starts with anew.
    pattern: [u8; 16],
    single: bool,
}

impl Fill {
    /// A fill with a pattern of 1, 2, 4, 8 or 16 bytes.
    pub fn new(dst: u64, pattern: &[u8], count: u64) -> Result<Fill> {
        let size = pattern.len();
        if !matches!(size, 1 | 2 | 4 | 8 | 16) {
            return Err(Error::new(
                Status::InvalidArgument,
                format!("a pattern of {size} bytes; it must have 1, 2, 4, 8 or 16"),
            ));
        }
        let bytes = count
            .checked_mul(size as u64)
            .filter(|b| dst.checked_add(*b).is_some())
            .ok_or_else(|| {
                Error::new(
                    Status::InvalidArgument,
                    format!("a fill of {count} times {size} bytes at {dst:#x} exceeds the address space"),
                )
            })?;
        let pattern: [u8; 16] = std::array::from_fn(|i| pattern[i % size]);
        Ok(Fill {
            dst,
            bytes,
            single: pattern.iter().all(|b| *b == pattern[0]),
            pattern,
        })
    }

    /// Chunks that may be filled in any order.
    pub fn chunks(&self) -> u64 {
        if self.bytes < 2 * CHUNK_BYTES {
            1
        } else {
            self.bytes.div_ceil(CHUNK_BYTES)
        }
    }

    /// Fills one of `chunks` chunks.
    pub fn run(&self, chunk: u64, chunks: u64) {
        let (from, length) = part(chunk, chunks, self.bytes);
        let at = (self.dst + from) as *mut u8;
        let length = length as usize;
        // SAFETY: the maker of the address vouched for `bytes` writable bytes until the work is done.
        unsafe {
            if self.single {
                std::ptr::write_bytes(at, self.pattern[0], length);
                return;
            }
            let whole = length / 16;
            for i in 0..whole {
                at.cast::<[u8; 16]>().add(i).write_unaligned(self.pattern);
            }
            std::ptr::copy_nonoverlapping(self.pattern.as_ptr(), at.add(whole * 16), length % 16);
        }
    }
}

/// Where chunk `chunk` of `chunks` begins and how long it is.
fn part(chunk: u64, chunks: u64, bytes: u64) -> (u64, u64) {
    if chunks == 1 {
        return (0, bytes);
    }
    let from = chunk * CHUNK_BYTES;
    (from, CHUNK_BYTES.min(bytes - from))
}

/// Work that several workers do together.
pub enum Work {
    /// One unit is a block.
    Launch(Launch),
    /// One unit is a chunk.
    Copy(Copy),
    /// One unit is a chunk.
    Fill(Fill),
}

impl Work {
    /// Units that may run in any order, at the same time.
    pub fn units(&self) -> u64 {
        match self {
            Work::Launch(launch) => launch.blocks(),
            Work::Copy(copy) => copy.chunks(),
            Work::Fill(fill) => fill.chunks(),
        }
    }

    /// Prepares it where it stays until it has run.
    pub fn settle(&mut self) {
        if let Work::Launch(launch) = self {
            launch.settle();
        }
    }

    /// Runs units from `from` until `to`, asking before each whether to stop. Answers the first not run.
    pub fn run(&self, from: u64, to: u64, place: Spot, mut stop: impl FnMut() -> bool) -> u64 {
        if let Work::Launch(launch) = self {
            return launch.run(from, to, place, stop);
        }
        let units = self.units();
        let mut at = from;
        while at < to && !stop() {
            match self {
                Work::Copy(copy) => copy.run(at, units),
                Work::Fill(fill) => fill.run(at, units),
                Work::Launch(_) => unreachable!("handled above"),
            }
            at += 1;
        }
        at
    }
}
