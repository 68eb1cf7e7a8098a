//! How much static shared memory the kernels of a module need. The compiler knows only after it has instantiated
//! templates and dropped what nobody uses: a kernel needs what its code, and the code that it refers to, has of it.

use crate::backend::image::Elf;
use std::collections::HashSet;

/// The table of kernels in `prelude.h`, and what one of them has there.
const ENTRIES: &str = "_ZL15taskgpu_entries";
const ENTRY_BYTES: u64 = 40;
const ENTRY_RUN: u64 = 8;
const ENTRY_SHARED: u64 = 36;
/// What compilers put beside a variable to know whether it is initialised, and the prelude's own variables.
const NOT_THE_USERS: [&str; 4] = ["_ZGV", "__tls_guard", "_ZN7taskgpu", "_ZZN7taskgpu"];
/// The notes of shared memory that is on stacks.
const ON_STACKS: &str = ".taskgpu_shared";
/// Kinds of symbols.
const OBJECT: u64 = 1;
const FUNCTION: u64 = 2;
const THREAD_LOCAL: u64 = 6;
/// Where x86 counts from in code: the end of the four bytes that it relocates.
const COUNTED_FROM: i64 = if cfg!(target_arch = "x86_64") { 4 } else { 0 };

/// A place that refers to a symbol, or to something so many bytes behind it.
struct Reference {
    at: u64,
    symbol: usize,
    addend: i64,
    in_code: bool,
}

/// A statement that makes no code, but a note for [`note_shared_bytes`] that the code around it has an array in shared
/// memory on its stack: an address in that code, the bytes, and the array's number.
pub(super) fn note(array: &str, number: usize) -> String {
    format!(
        "__asm__ __volatile__(\"1:\\n.pushsection {ON_STACKS},\\\"\\\"\\n.quad 1b, %c0, {number}\\n.popsection\" : : \
         \"i\"(sizeof({array})));\n"
    )
}

/// Writes the sizes into the table of a module that was linked with its references kept. `None` if it was not.
pub(super) fn note_shared_bytes(image: &mut [u8]) -> Option<()> {
    let found = find(&Elf::new(image))?;
    for (at, bytes) in found {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        image.get_mut(at..at + 4)?.copy_from_slice(&bytes.to_le_bytes());
    }
    Some(())
}

/// Where in the file each kernel's size belongs, and what it is.
fn find(elf: &Elf<'_>) -> Option<Vec<(usize, u64)>> {
    let symbols = elf.symbols()?;
    let sections = elf.all_sections()?;
    let mut references = Vec::new();
    for section in sections.iter().filter(|section| section.has_references()) {
        let target = sections.get(section.info as usize)?;
        if target.in_memory() {
            let list = elf.references(section)?.into_iter();
            references.extend(list.map(|(at, symbol, addend)| Reference {
                at,
                symbol,
                addend,
                in_code: target.has_code(),
            }));
        }
    }
    references.sort_by_key(|reference| reference.at);
    let mut places: Vec<usize> = (0..symbols.len())
        .filter(|&i| [OBJECT, FUNCTION].contains(&symbols[i].kind) && symbols[i].size > 0)
        .collect();
    places.sort_by_key(|&i| symbols[i].value);
    // What a reference means: of local symbols only the section's own is left, and a distance.
    let meant = |reference: &Reference| {
        let symbol = symbols.get(reference.symbol)?;
        if symbol.size > 0 {
            return Some(reference.symbol);
        }
        let from = if reference.in_code { COUNTED_FROM } else { 0 };
        let address = symbol.value.wrapping_add_signed(reference.addend + from);
        let behind = places.partition_point(|&i| symbols[i].value <= address);
        let place = places[..behind].last().copied()?;
        (address - symbols[place].value < symbols[place].size).then_some(place)
    };
    let within = |from: u64, bytes: u64| {
        let first = references.partition_point(|reference| reference.at < from);
        references[first..]
            .iter()
            .take_while(move |reference| reference.at < from + bytes)
    };
    // By [`note`]. Code that the compiler has doubled has notes of the same variable.
    let on_stacks: Vec<[u64; 3]> = elf
        .section_named(ON_STACKS)
        .unwrap_or_default()
        .chunks_exact(24)
        .map(|note| [0, 8, 16].map(|i| u64::from_le_bytes(note[i..i + 8].try_into().expect("eight bytes"))))
        .collect();
    let shared_bytes = |run: usize| {
        let mut seen = HashSet::from([run]);
        let mut open = vec![run];
        let mut bytes = 0;
        let mut counted = HashSet::new();
        while let Some(at) = open.pop() {
            let symbol = &symbols[at];
            if symbol.kind == THREAD_LOCAL {
                if !NOT_THE_USERS.iter().any(|start| symbol.name.starts_with(start)) {
                    bytes += symbol.size;
                }
                continue;
            }
            bytes += on_stacks
                .iter()
                .filter(|[at, _, number]| {
                    (symbol.value..symbol.value + symbol.size).contains(at) && counted.insert(*number)
                })
                .map(|[_, bytes, _]| bytes)
                .sum::<u64>();
            open.extend(
                within(symbol.value, symbol.size)
                    .filter_map(meant)
                    .filter(|next| seen.insert(*next)),
            );
        }
        bytes
    };
    let table = symbols.iter().find(|symbol| symbol.name == ENTRIES)?;
    let section = sections.get(table.section)?;
    // The last entry is empty.
    (0..(table.size / ENTRY_BYTES).checked_sub(1)?)
        .map(|i| {
            let entry = table.value + i * ENTRY_BYTES;
            let run = within(entry + ENTRY_RUN, 8).find_map(meant)?;
            let at = section.offset + (entry + ENTRY_SHARED - section.address);
            Some((usize::try_from(at).ok()?, shared_bytes(run)))
        })
        .collect()
}
