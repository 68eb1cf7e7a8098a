//! Handles: numbers that name objects, checked on every use.
//!
//! A handle is 64 bits: kind (4), salt (12), generation (24), slot (24). The kind is never 0 or 15, so no handle
//! looks like a pointer, and 32 bits of one never look like a handle. Each slot remembers the one handle that is valid
//! for it; everything else (stale, destroyed twice, another copy's, garbage) differs from it.
//!
//! Slots are never freed, so looking at one is always allowed. An object hangs in its slot behind an
//! [`ArcSwapOption`]: reading it costs no shared counter, and whoever reads it while another thread destroys the
//! handle keeps the object alive until done.
//!
//! Beside it a slot has words for what the hottest calls need of the object. They are atomics that outlive it, so reading
//! them takes nothing else; who looks at the handle afterwards knows whether they are the object's. An object has its slot
//! for as long as it lives, its handle's end does not matter, so no object writes into another one's words.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use arc_swap::{ArcSwapOption, Guard};
use once_cell::sync::OnceCell;
use parking_lot::Mutex;

use super::registry;
use crate::backend::{Error, Result, Status};

/// What a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Stream = 1,
    Event = 2,
    Module = 3,
    Kernel = 4,
    Task = 5,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Stream, Kind::Event, Kind::Module, Kind::Kernel, Kind::Task];

    fn name(self) -> &'static str {
        match self {
            Kind::Stream => "stream",
            Kind::Event => "event",
            Kind::Module => "module",
            Kind::Kernel => "kernel",
            Kind::Task => "task",
        }
    }
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(u64);

        impl $name {
            /// No handle; where a call allows it, the current one.
            pub const NULL: $name = $name(0);

            /// From the number that a caller handed in. Any number is allowed.
            pub fn from_bits(bits: u64) -> $name {
                $name(bits)
            }

            /// The number for the caller.
            pub fn bits(self) -> u64 {
                self.0
            }

            /// True for [`NULL`](Self::NULL).
            pub fn is_null(self) -> bool {
                self.0 == 0
            }
        }
    };
}
handle!(
    /// Names a stream.
    StreamHandle
);
handle!(
    /// Names an event.
    EventHandle
);
handle!(
    /// Names a module.
    ModuleHandle
);
handle!(
    /// Names a kernel.
    KernelHandle
);
handle!(
    /// Names a task.
    TaskHandle
);

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
/// After the last generation.
const NO_GENERATION: u64 = u64::MAX;
/// The first chunk holds this many slots, each further one twice as many.
const FIRST_CHUNK: u64 = 64;
const CHUNKS: usize = (SLOT_BITS - FIRST_CHUNK.trailing_zeros()) as usize;

/// What tells this copy of the library from another one in the same process.
struct Salt {
    tag: u64,
    first_generation: u64,
}

fn salt() -> &'static Salt {
    static SALT: OnceCell<Salt> = OnceCell::new();
    SALT.get_or_init(|| {
        let random = RandomState::new().hash_one("taskgpu");
        Salt {
            tag: random & 0xfff,
            first_generation: (random >> 12) & GENERATION_MASK,
        }
    })
}

/// A place for one object after another.
pub(crate) struct Slot<B> {
    /// The valid handle; 0 while there is none.
    handle: AtomicU64,
    /// The generation of the next handle, [`NO_GENERATION`] if there is none; written by whoever holds the slot outside the
    /// free list.
    next: AtomicU64,
    index: u64,
    /// What hangs in the slot.
    pub(crate) body: B,
}

impl<B> Slot<B> {
    /// True while `bits` is the slot's valid handle.
    pub(crate) fn is(&self, bits: u64) -> bool {
        self.handle.load(Ordering::Acquire) == bits
    }

    /// The valid handle, 0 if there is none.
    pub(crate) fn handle(&self) -> u64 {
        self.handle.load(Ordering::Acquire)
    }

    /// Ends the handle. True for the one caller that ended it.
    pub(crate) fn end(&self, bits: u64) -> bool {
        bits != 0
            && self
                .handle
                .compare_exchange(bits, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
    }
}

/// All slots of one kind.
pub(crate) struct Table<B: 'static> {
    kind: Kind,
    chunks: [OnceCell<Box<[Slot<B>]>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    slots: Vec<u32>,
    /// Slots below this have been used. The first is never given: a handle whose lower half is all zeros would be equal to
    /// its upper half.
    used: u64,
}

impl<B: Default> Table<B> {
    pub(crate) const fn new(kind: Kind) -> Table<B> {
        Table {
            kind,
            chunks: [const { OnceCell::new() }; CHUNKS],
            free: Mutex::new(Free {
                slots: Vec::new(),
                used: 1,
            }),
        }
    }

    fn locate(index: u64) -> (usize, usize) {
        let shifted = index + FIRST_CHUNK;
        let chunk = shifted.ilog2() - FIRST_CHUNK.ilog2();
        (chunk as usize, (shifted - (FIRST_CHUNK << chunk)) as usize)
    }

    /// The slot that `bits` points at, valid or not.
    #[inline]
    pub(crate) fn slot(&'static self, bits: u64) -> Option<&'static Slot<B>> {
        let (chunk, offset) = Self::locate(bits & SLOT_MASK);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// The slot, if `bits` is its valid handle.
    #[inline]
    pub(crate) fn find(&'static self, bits: u64) -> Option<&'static Slot<B>> {
        self.slot(bits).filter(|slot| bits != 0 && slot.is(bits))
    }

    /// Takes a slot out of the free list. Its handle becomes valid with [`publish`](Table::publish).
    pub(crate) fn take(&'static self) -> Result<&'static Slot<B>> {
        if self.kind != Kind::Task {
            registry::used();
        }
        let mut free = self.free.lock();
        let index = match free.slots.pop() {
            Some(index) => u64::from(index),
            None if free.used <= SLOT_MASK - FIRST_CHUNK => {
                free.used += 1;
                free.used - 1
            }
            None => {
                return Err(Error::new(
                    Status::OutOfMemory,
                    format!(
                        "no more than {} {}s can exist at once",
                        free.used - 1,
                        self.kind.name()
                    ),
                ))
            }
        };
        drop(free);
        let (chunk, offset) = Self::locate(index);
        let slots = self.chunks[chunk].get_or_init(|| {
            let first = (FIRST_CHUNK << chunk) - FIRST_CHUNK;
            (first..first + (FIRST_CHUNK << chunk))
                .map(|index| Slot {
                    handle: AtomicU64::new(0),
                    next: AtomicU64::new(salt().first_generation),
                    index,
                    body: B::default(),
                })
                .collect()
        });
        Ok(&slots[offset])
    }

    /// Makes the slot's next handle valid and gives it.
    pub(crate) fn publish(&self, slot: &'static Slot<B>) -> u64 {
        let salt = salt();
        let generation = slot.next.load(Ordering::Relaxed);
        let next = match (generation + 1) & GENERATION_MASK {
            next if next == salt.first_generation => NO_GENERATION,
            next => next,
        };
        slot.next.store(next, Ordering::Relaxed);
        let bits = (self.kind as u64) << 60
            | salt.tag << (SLOT_BITS + GENERATION_BITS)
            | generation << SLOT_BITS
            | slot.index;
        slot.handle.store(bits, Ordering::Release);
        bits
    }

    /// True for a slot that has given its last handle.
    pub(crate) fn used_up(&self, slot: &'static Slot<B>) -> bool {
        slot.next.load(Ordering::Relaxed) == NO_GENERATION
    }

    /// Puts a slot without a valid handle back. One whose generations are used up is retired instead.
    pub(crate) fn give_back(&self, slot: &'static Slot<B>) {
        if !self.used_up(slot) {
            self.free.lock().slots.push(slot.index as u32);
        }
    }

    /// Why `bits` names nothing here.
    #[cold]
    pub(crate) fn invalid(&self, bits: u64) -> Error {
        let name = self.kind.name();
        let kind = bits >> 60;
        let text = if bits == 0 {
            format!("NULL is no {name}")
        } else if kind == self.kind as u64 && (bits >> 48) & 0xfff == salt().tag {
            match self.kind {
                Kind::Stream => {
                    format!("the stream {bits:#x} was destroyed, or was leased to a task that has ended")
                }
                _ => format!("the {name} {bits:#x} was destroyed"),
            }
        } else if let Some(other) = Kind::ALL
            .iter()
            .find(|k| **k as u64 == kind && **k != self.kind && (bits >> 48) & 0xfff == salt().tag)
        {
            format!("{bits:#x} is the handle of a {}, not of a {name}", other.name())
        } else {
            format!("{bits:#x} is no {name} of this library")
        };
        Error::new(Status::InvalidHandle, text)
    }
}

/// What a handle can name by way of a slot.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// What the hottest calls need of it.
    type Words: Default + Send + Sync;

    /// Where its handles are.
    fn table() -> &'static Objects<Self>;

    /// Its slot.
    fn place(&self) -> &Place<Self>;
}

/// What a slot holds of an object.
pub(crate) struct Body<T: Object> {
    object: ArcSwapOption<T>,
    pub(crate) words: T::Words,
}

impl<T: Object> Default for Body<T> {
    fn default() -> Body<T> {
        Body {
            object: ArcSwapOption::empty(),
            words: T::Words::default(),
        }
    }
}

/// A table whose slots hold shared objects.
pub(crate) type Objects<T> = Table<Body<T>>;
/// A slot of such a table.
pub(crate) type Home<T> = Slot<Body<T>>;

impl<T: Object> Home<T> {
    /// What `read` takes from the words, if they are those of the object that `bits` names. Words are stored with
    /// [`Ordering::Release`] before a handle is published, so loads with [`Ordering::Acquire`] that find another object's
    /// also find the handle ended, which is looked at after them.
    #[inline]
    pub(crate) fn words<R>(&'static self, bits: u64, read: impl FnOnce(&'static T::Words) -> R) -> Option<R> {
        let found = read(&self.body.words);
        (bits != 0 && self.is(bits)).then_some(found)
    }
}

/// An object's slot, for as long as the object lives.
pub(crate) struct Place<T: Object>(&'static Home<T>);

impl<T: Object> Place<T> {
    /// For an object about to be made.
    pub(crate) fn take() -> Result<Place<T>> {
        T::table().take().map(Place)
    }

    pub(crate) fn home(&self) -> &'static Home<T> {
        self.0
    }
}

impl<T: Object> std::ops::Deref for Place<T> {
    type Target = T::Words;

    #[inline]
    fn deref(&self) -> &T::Words {
        &self.0.body.words
    }
}

impl<T: Object> Drop for Place<T> {
    fn drop(&mut self) {
        T::table().give_back(self.0);
    }
}

impl<T: Object> Objects<T> {
    /// Gives an object its handle.
    pub(crate) fn insert(&'static self, object: Arc<T>) -> u64 {
        self.publish(self.put(object))
    }

    /// Puts an object into its slot, without a handle.
    pub(crate) fn put(&'static self, object: Arc<T>) -> &'static Home<T> {
        let home = object.place().home();
        home.body.object.store(Some(object));
        home
    }

    /// The object behind a handle.
    #[inline]
    pub(crate) fn get(&'static self, bits: u64) -> Result<Held<T>> {
        if let Some(slot) = self.slot(bits) {
            // The object first, the handle second: an object is put in before its handle is published and
            // replaced only after that handle has ended, so a handle still valid now vouches for what was read.
            let object = slot.body.object.load();
            if object.is_some() && bits != 0 && slot.is(bits) {
                return Ok(Held(object));
            }
        }
        Err(self.invalid(bits))
    }

    /// What hangs in a slot, with or without a valid handle.
    pub(crate) fn held(&self, slot: &'static Home<T>) -> Held<T> {
        Held(slot.body.object.load())
    }

    /// Takes out what hangs in a slot whose handle has ended.
    pub(crate) fn take_out(&self, slot: &'static Home<T>) -> Option<Arc<T>> {
        slot.body.object.swap(None)
    }

    /// Ends a handle and gives what it named. The slot is free again when that is dropped.
    pub(crate) fn remove(&'static self, bits: u64) -> Option<Arc<T>> {
        let slot = self.slot(bits)?;
        slot.end(bits).then(|| self.take_out(slot))?
    }
}

/// An object in use: it lives on even if its handle is destroyed now. Cheap to take; not to be stored.
pub(crate) struct Held<T>(Guard<Option<Arc<T>>>);

impl<T> std::ops::Deref for Held<T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        self.0.as_ref().expect("Objects::get holds only what it found")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A type with a table of its own, which holds a `$value`.
    macro_rules! object {
        ($name:ident, $table:ident, $kind:ident, $value:ty) => {
            struct $name {
                value: $value,
                place: Place<$name>,
            }

            static $table: Objects<$name> = Table::new(Kind::$kind);

            impl Object for $name {
                type Words = ();

                fn table() -> &'static Objects<$name> {
                    &$table
                }

                fn place(&self) -> &Place<$name> {
                    &self.place
                }
            }

            #[allow(dead_code)]
            impl $name {
                fn insert(value: $value) -> u64 {
                    let place = Place::take().unwrap();
                    $table.insert(Arc::new($name { value, place }))
                }
            }
        };
    }

    object!(Text, TABLE, Event, String);

    #[test]
    fn a_handle_finds_its_object_until_it_is_removed_once() {
        let bits = Text::insert("a".into());
        assert_eq!(TABLE.get(bits).unwrap().value, "a");
        assert_eq!(
            TABLE.remove(bits).map(|text| text.value.clone()).as_deref(),
            Some("a")
        );
        assert!(TABLE.remove(bits).is_none());
        assert_eq!(
            TABLE.get(bits).map(|_| ()).unwrap_err().status(),
            Status::InvalidHandle
        );
    }

    #[test]
    fn no_changed_bit_and_no_half_of_a_handle_is_valid() {
        let bits = Text::insert("b".into());
        for bit in 0..64 {
            let other = bits ^ (1 << bit);
            // Another live test's handle may differ in one slot bit only; it is a valid handle then.
            if (0..24).contains(&bit) && TABLE.get(other).is_ok() {
                continue;
            }
            assert!(TABLE.get(other).is_err(), "bit {bit}");
        }
        assert!(TABLE.get(bits & 0xffff_ffff).is_err());
        assert!(TABLE.get(bits as u32 as i32 as i64 as u64).is_err());
        let top = bits >> 48;
        assert!(top != 0 && top != 0xffff);
        TABLE.remove(bits);
    }

    #[test]
    fn a_slot_is_retired_before_its_generation_wraps() {
        object!(Small, SMALL, Module, u8);
        let first = Small::insert(0);
        let slot = SMALL.find(first).unwrap();
        SMALL.remove(first);
        // As if all generations but the last had been used.
        slot.next.store(
            salt().first_generation.wrapping_sub(1) & GENERATION_MASK,
            Ordering::Relaxed,
        );
        let last = Small::insert(1);
        assert_eq!(SMALL.get(last).unwrap().value, 1);
        assert_eq!(last & SLOT_MASK, first & SLOT_MASK);
        SMALL.remove(last);
        let next = Small::insert(2);
        assert_ne!(
            next & SLOT_MASK,
            first & SLOT_MASK,
            "the slot came back and would repeat handles"
        );
    }

    #[test]
    fn a_place_that_was_given_no_handle_is_given_again() {
        object!(Unborn, UNBORN, Event, ());
        let first = Place::<Unborn>::take().unwrap().home().index;
        for _ in 0..3 {
            let place = Place::<Unborn>::take().unwrap();
            assert_eq!(place.home().index, first);
            assert!(!UNBORN.used_up(place.home()));
        }
        let bits = Unborn::insert(());
        UNBORN.get(bits).unwrap().value
    }

    #[test]
    fn slots_of_every_chunk_are_reachable() {
        object!(Many, MANY, Kernel, usize);
        let handles: Vec<u64> = (0..5000).map(Many::insert).collect();
        for (i, bits) in handles.iter().enumerate() {
            assert_eq!(MANY.get(*bits).unwrap().value, i);
        }
    }

    #[test]
    fn readers_never_see_an_object_under_another_handle() {
        object!(Race, RACE, Stream, u64);
        let insert = || {
            let place = Place::<Race>::take().unwrap();
            let value = place.home().next.load(Ordering::Relaxed);
            RACE.insert(Arc::new(Race { value, place }))
        };
        let current = AtomicU64::new(insert());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let bits = current.load(Ordering::Acquire);
                        if let Ok(object) = RACE.get(bits) {
                            // The object holds the generation it was published with.
                            assert_eq!(object.value, (bits >> SLOT_BITS) & GENERATION_MASK);
                            assert_eq!(object.place.home().index, bits & SLOT_MASK);
                        }
                    }
                });
            }
            for _ in 1..50_000 {
                RACE.remove(current.load(Ordering::Relaxed));
                current.store(insert(), Ordering::Release);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
