//! What source became, kept in memory and, with a folder, on disk: the same source is compiled once.
//!
//! An entry on disk holds its whole key, so that two sources never meet in one, and a checksum, so that a damaged entry is
//! none. Entries are written beside their place and moved there: processes may share the folder.

use crate::backend::{CompileOptions, Result};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Most entries in memory of one kind.
const MOST_ENTRIES: usize = 256;
const MAGIC: &[u8; 16] = b"taskgpu cache 1\n";

static FOLDER: OnceCell<PathBuf> = OnceCell::new();

/// Sets the folder for entries on disk. The first call counts.
pub fn set_folder(folder: PathBuf) {
    let _ = FOLDER.set(folder);
}

/// What is compiled, and for what.
#[derive(Clone, Copy)]
pub struct Key<'a> {
    /// The text.
    pub source: &'a str,
    /// How it is compiled.
    pub options: &'a CompileOptions,
    /// The backend, its compiler's version, and the architecture.
    pub target: &'a str,
}

impl Key<'_> {
    fn parts(&self) -> impl Iterator<Item = &str> {
        let CompileOptions {
            name,
            options,
            name_expressions,
        } = self.options;
        [self.target, name.as_str(), self.source]
            .into_iter()
            .chain(options.iter().map(String::as_str))
            .chain(name_expressions.iter().map(String::as_str))
    }

    fn hash(&self) -> u64 {
        self.parts().fold(0, |seed, part| hash(part.as_bytes(), seed))
    }

    /// The key as bytes: no other key has the same.
    fn bytes(&self) -> Vec<u8> {
        let count = self.options.options.len().to_string();
        let parts: Vec<&[u8]> = std::iter::once(count.as_str())
            .chain(self.parts())
            .map(str::as_bytes)
            .collect();
        pack(&parts)
    }
}

/// A 64-bit hash, much faster than one that withstands an attacker.
pub fn hash(bytes: &[u8], seed: u64) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |state: u64, word: u64| (state.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
    let chunks = bytes.chunks_exact(32);
    let rest = chunks.remainder();
    // Four states at a time: each waits for its own multiplication only.
    let mut states = [seed, seed ^ 1, seed ^ 2, seed ^ 3];
    for chunk in chunks {
        for (state, part) in states.iter_mut().zip(chunk.chunks_exact(8)) {
            *state = mix(*state, u64::from_le_bytes(part.try_into().unwrap_or_default()));
        }
    }
    for (i, part) in rest.chunks(8).enumerate() {
        states[i] = mix(states[i], word(part));
    }
    let all = mix(states.into_iter().fold(FACTOR, mix), bytes.len() as u64);
    all ^ all >> 29
}

/// Entries in memory.
pub struct Memory<T> {
    entries: Mutex<HashMap<u64, Vec<Entry<T>>>>,
    clock: AtomicU64,
}

struct Entry<T> {
    source: Box<str>,
    target: Box<str>,
    options: CompileOptions,
    used: u64,
    /// Whoever asks first builds; others that ask meanwhile wait for it.
    value: Arc<OnceCell<Arc<T>>>,
}

impl<T> Entry<T> {
    fn is(&self, key: &Key<'_>) -> bool {
        *self.source == *key.source && *self.target == *key.target && self.options == *key.options
    }
}

impl<T> Memory<T> {
    /// None yet.
    pub fn new() -> Memory<T> {
        Memory {
            entries: Mutex::default(),
            clock: AtomicU64::new(0),
        }
    }

    /// What the key stands for: the entry, if `fresh` says that it still holds, else what `build` makes.
    pub fn get(
        &self,
        key: &Key<'_>,
        fresh: impl Fn(&T) -> bool,
        build: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let hash = key.hash();
        let value = self.entry(hash, key, fresh);
        let result = value.get_or_try_init(|| build().map(Arc::new)).cloned();
        if result.is_err() {
            // Nobody waits for a failure: it may have been the machine's.
            self.entries
                .lock()
                .entry(hash)
                .or_default()
                .retain(|e| !Arc::ptr_eq(&e.value, &value));
        }
        result
    }

    fn entry(&self, hash: u64, key: &Key<'_>, fresh: impl Fn(&T) -> bool) -> Arc<OnceCell<Arc<T>>> {
        let used = self.clock.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.lock();
        let bucket = entries.entry(hash).or_default();
        if let Some(entry) = bucket.iter_mut().find(|e| e.is(key)) {
            entry.used = used;
            if entry.value.get().is_some_and(|value| !fresh(value)) {
                entry.value = Arc::default();
            }
            return entry.value.clone();
        }
        let value: Arc<OnceCell<Arc<T>>> = Arc::default();
        bucket.push(Entry {
            source: key.source.into(),
            target: key.target.into(),
            options: key.options.clone(),
            used,
            value: value.clone(),
        });
        if entries.values().map(Vec::len).sum::<usize>() > MOST_ENTRIES {
            let oldest = entries.values().flatten().map(|e| e.used).min();
            entries.retain(|_, bucket| {
                bucket.retain(|e| Some(e.used) != oldest);
                !bucket.is_empty()
            });
        }
        value
    }
}

/// What is on disk for a key, in the folder that the user named.
pub fn read(key: &Key<'_>) -> Option<Vec<u8>> {
    read_in(FOLDER.get()?, &key.bytes())
}

/// Puts it there. Nobody is told where that fails: it will be compiled again.
pub fn write(key: &Key<'_>, value: &[u8]) {
    if let Some(folder) = FOLDER.get() {
        let _ = write_in(folder, &key.bytes(), value);
    }
}

fn place(folder: &Path, key: &[u8]) -> PathBuf {
    folder.join(format!("{:016x}{:016x}.taskgpu", hash(key, 1), hash(key, 2)))
}

fn read_in(folder: &Path, key: &[u8]) -> Option<Vec<u8>> {
    let file = std::fs::read(place(folder, key)).ok()?;
    let sum = file.get(16..24)?;
    let body = file.get(24..)?;
    let parts = unpack(body)?;
    let whole =
        file.starts_with(MAGIC) && sum == hash(body, 0).to_le_bytes() && parts.len() == 2 && parts[0] == key;
    whole.then(|| parts[1].to_vec())
}

fn write_in(folder: &Path, key: &[u8], value: &[u8]) -> std::io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(folder)?;
    let body = pack(&[key, value]);
    let place = place(folder, key);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let beside = place.with_extension(format!("{}-{number}.new", std::process::id()));
    let written = std::fs::write(
        &beside,
        [MAGIC, &hash(&body, 0).to_le_bytes()[..], &body].concat(),
    )
    .and_then(|()| std::fs::rename(&beside, &place));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Pieces as one, each with its length before it.
pub fn pack(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(&(part.len() as u64).to_le_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// The pieces again; `None` if that is not what `bytes` are.
pub fn unpack(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        parts.push(rest.get(..length)?);
        bytes = &rest[length..];
    }
    Some(parts)
}

/// What a vendor's compiler made of source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Code for a device.
    pub image: Vec<u8>,
    /// Name expressions and the symbols they became.
    pub names: Vec<(String, String)>,
}

impl Compiled {
    fn pack(&self) -> Vec<u8> {
        let names = self
            .names
            .iter()
            .flat_map(|(name, symbol)| [name.as_bytes(), symbol.as_bytes()]);
        let parts: Vec<&[u8]> = std::iter::once(self.image.as_slice()).chain(names).collect();
        pack(&parts)
    }

    fn unpack(bytes: &[u8]) -> Option<Compiled> {
        let parts = unpack(bytes)?;
        let (image, names) = parts.split_first()?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(Compiled {
            image: image.to_vec(),
            names: names
                .chunks_exact(2)
                .map(|pair| Some((text(pair[0])?, text(pair[1])?)))
                .collect::<Option<_>>()?,
        })
    }
}

/// What a vendor's compiler makes of source, or has made of it before.
pub fn compiled(key: &Key<'_>, build: impl Fn() -> Result<Compiled>) -> Result<Arc<Compiled>> {
    static COMPILED: once_cell::sync::Lazy<Memory<Compiled>> = once_cell::sync::Lazy::new(Memory::new);
    if may_include(key) {
        // Nobody tells what else the compiler read, and it may change.
        return build().map(Arc::new);
    }
    COMPILED.get(
        key,
        |_| true,
        || {
            if let Some(found) = read(key).and_then(|bytes| Compiled::unpack(&bytes)) {
                return Ok(found);
            }
            let made = build()?;
            write(key, &made.pack());
            Ok(made)
        },
    )
}

/// Whether the source may read files that are not the compiler's own.
fn may_include(key: &Key<'_>) -> bool {
    let options = [
        "-I",
        "--include-path",
        "-include",
        "--pre-include",
        "-isystem",
        "-iquote",
    ];
    let given =
        |option: &String| options.iter().any(|flag| option.starts_with(flag)) || option.starts_with('@');
    key.options.options.iter().any(given)
        || key.source.lines().any(|line| {
            let line = line.trim_start().strip_prefix('#').map(str::trim_start);
            line.is_some_and(|line| line.starts_with("include") && !line.contains('<'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Error, Status};
    use std::sync::atomic::AtomicU32;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("taskgpu-cache-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn options(list: &[&str], names: &[&str]) -> CompileOptions {
        let owned = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        CompileOptions {
            name: "k".into(),
            options: owned(list),
            name_expressions: owned(names),
        }
    }

    #[test]
    fn keys_that_differ_in_anything_differ() {
        let all = [
            ("s", options(&[], &[]), "t"),
            ("s2", options(&[], &[]), "t"),
            ("s", options(&[], &[]), "t2"),
            ("s", options(&["a"], &[]), "t"),
            ("s", options(&[], &["a"]), "t"),
            ("s", options(&["a", "b"], &[]), "t"),
            ("s", options(&["a"], &["b"]), "t"),
            ("s", options(&["ab"], &[]), "t"),
        ];
        let keys: Vec<Vec<u8>> = all
            .iter()
            .map(|(source, options, target)| {
                Key {
                    source,
                    options,
                    target,
                }
                .bytes()
            })
            .collect();
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|other| other != key), "key {i}");
        }
    }

    #[test]
    fn hashes_of_similar_bytes_differ() {
        let mut seen = std::collections::HashSet::new();
        for length in 0..100 {
            assert!(seen.insert(hash(&vec![0; length], 0)), "{length} zeros");
            for at in 0..length {
                let mut bytes = vec![0; length];
                bytes[at] = 1;
                assert!(seen.insert(hash(&bytes, 0)), "{length} bytes, a one at {at}");
            }
        }
    }

    #[test]
    fn eight_threads_build_once() {
        let memory = Memory::new();
        let builds = AtomicU32::new(0);
        let options = options(&[], &[]);
        let key = Key {
            source: "s",
            options: &options,
            target: "t",
        };
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    let value = memory.get(
                        &key,
                        |_| true,
                        || {
                            builds.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(std::time::Duration::from_millis(20));
                            Ok(7)
                        },
                    );
                    assert_eq!(*value.expect("it is built"), 7);
                });
            }
        });
        assert_eq!(builds.into_inner(), 1);
    }

    #[test]
    fn failures_and_stale_entries_are_built_again() {
        let memory = Memory::new();
        let options = options(&[], &[]);
        let key = Key {
            source: "s",
            options: &options,
            target: "t",
        };
        let failed = memory.get(&key, |_| true, || Err(Error::new(Status::CompileFailed, "no")));
        assert!(failed.is_err());
        let get = |fresh: bool, value: i32| *memory.get(&key, |_| fresh, || Ok(value)).expect("a value");
        assert_eq!(get(true, 1), 1);
        assert_eq!(get(true, 2), 1);
        assert_eq!(get(false, 3), 3);
    }

    #[test]
    fn the_oldest_entry_goes_when_there_are_too_many() {
        let memory = Memory::new();
        let options = options(&[], &[]);
        let get = |source: &str, value: usize| {
            let key = Key {
                source,
                options: &options,
                target: "t",
            };
            *memory.get(&key, |_| true, || Ok(value)).expect("a value")
        };
        for i in 0..=MOST_ENTRIES {
            get(&i.to_string(), i);
            get("0", 0);
        }
        assert_eq!(get("0", 99), 0, "used all the time");
        assert_eq!(get("1", 99), 99, "the oldest");
        assert_eq!(get("3", 99), 3);
    }

    #[test]
    fn an_entry_on_disk_is_found_by_its_key_alone() {
        let folder = folder("found");
        assert_eq!(read_in(&folder, b"key"), None);
        write_in(&folder, b"key", b"value").expect("it is written");
        assert_eq!(read_in(&folder, b"key").as_deref(), Some(&b"value"[..]));
        assert_eq!(read_in(&folder, b"kez"), None);
        // Another key at the same place, as if the hashes were the same.
        std::fs::rename(place(&folder, b"key"), place(&folder, b"kez")).expect("renamed");
        assert_eq!(read_in(&folder, b"kez"), None);
        let left: Vec<_> = std::fs::read_dir(&folder).expect("the folder").collect();
        assert_eq!(left.len(), 1, "nothing is left beside the entry");
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn every_damage_of_an_entry_is_seen() {
        let folder = folder("damage");
        write_in(&folder, b"key", b"some value").expect("it is written");
        let path = place(&folder, b"key");
        let whole = std::fs::read(&path).expect("it is there");
        for at in 0..whole.len() {
            std::fs::write(&path, &whole[..at]).expect("written");
            assert_eq!(read_in(&folder, b"key"), None, "cut at {at}");
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(read_in(&folder, b"key"), None, "damaged at {at}");
        }
        write_in(&folder, b"key", b"some value").expect("written again");
        assert!(read_in(&folder, b"key").is_some());
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn what_a_compiler_made_survives() {
        let made = Compiled {
            image: vec![1, 2, 3],
            names: vec![("f<int>".into(), "_Z1f".into()), ("g".into(), String::new())],
        };
        assert_eq!(Compiled::unpack(&made.pack()), Some(made));
        assert_eq!(Compiled::unpack(b"123"), None);
    }

    #[test]
    fn source_that_reads_other_files_is_not_kept() {
        let none = options(&["-DN=1"], &[]);
        let path = options(&["-I", "/usr/include"], &[]);
        for (source, options, expected) in [
            ("int x;\n#include <hip/hip_runtime.h>\n", &none, false),
            ("int x;\n  # include \"mine.h\"\n", &none, true),
            ("#include MINE\n", &none, true),
            ("int x;", &path, true),
        ] {
            let key = Key {
                source,
                options,
                target: "t",
            };
            assert_eq!(may_include(&key), expected, "{source:?}");
        }
    }
}
