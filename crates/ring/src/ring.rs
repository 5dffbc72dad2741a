//! Where a ring lies and how an index maps to a place and an epoch: the arithmetic that all four ring ends share.
//!
//! A ring is a power of two of 16-byte entries and a *head register*, where the consumer says how many entries it
//! has taken. Indices are free-running 32-bit counts: an entry's place is the index modulo the ring's size, its lap
//! the quotient. The ring starts zeroed, so the epoch bit of a first lap is 1, of a second 0, and so on. A power of
//! two laps make 2^32 indices, so the epoch carries on correctly when an index wraps.

use crate::region::OutOfRange;
use crate::sync::{Ordering, Words};
use toe_abi::entry::RawEntry;
use toe_abi::region::ENTRY_LEN;

/// A ring in shared memory, checked to lie in it.
#[derive(Clone, Debug)]
pub struct Ring<M> {
    memory: M,
    entries: u64,
    head_register: u64,
    capacity: u32,
}

impl<M: Words> Ring<M> {
    /// The ring of `capacity` entries at `entries`, whose consumer's head is at `head_register` (byte offsets).
    pub fn new(memory: M, entries: u64, capacity: u32, head_register: u64) -> Result<Ring<M>, OutOfRange> {
        let fits = capacity.is_power_of_two()
            && capacity <= 1 << 31
            && memory.spans(entries, u64::from(capacity) * ENTRY_LEN)
            && memory.spans(head_register, 8);
        if fits { Ok(Ring { memory, entries, head_register, capacity }) } else { Err(OutOfRange) }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Entries that the ring holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The entry's place in the ring, also the number of its argument block.
    pub fn slot(&self, index: u32) -> u32 {
        index & (self.capacity - 1)
    }

    fn offset(&self, index: u32) -> u64 {
        self.entries + u64::from(self.slot(index)) * ENTRY_LEN
    }

    /// The epoch bit of the lap that `index` is in.
    fn epoch(&self, index: u32) -> bool {
        (index >> self.capacity.trailing_zeros()) & 1 == 0
    }

    /// Producer: stores the entry that belongs at `index`. Word 1 goes first; word 0, which carries the epoch bit,
    /// goes last with release, so that whoever sees the bit sees the whole entry and all that it refers to.
    pub(crate) fn store(&self, index: u32, entry: RawEntry) {
        let at = self.offset(index);
        let entry = entry.with_epoch(self.epoch(index));
        self.memory.store_u64(at + 8, entry.word1, Ordering::Relaxed);
        self.memory.store_u64(at, entry.word0, Ordering::Release);
    }

    /// Consumer: the entry at `index`, if it is there. Each word is read once; the caller has a copy that nobody can
    /// change.
    pub(crate) fn load(&self, index: u32) -> Option<RawEntry> {
        let at = self.offset(index);
        let word0 = self.memory.load_u64(at, Ordering::Acquire);
        let due = RawEntry { word0, word1: 0 }.epoch() == self.epoch(index);
        due.then(|| RawEntry { word0, word1: self.memory.load_u64(at + 8, Ordering::Relaxed) })
    }

    /// Consumer: whether the entry at `index` is there.
    pub(crate) fn is_due(&self, index: u32) -> bool {
        let word0 = self.memory.load_u64(self.offset(index), Ordering::Acquire);
        RawEntry { word0, word1: 0 }.epoch() == self.epoch(index)
    }

    /// Consumer: says that all entries before `head` were taken. Release: the reads of those entries come before.
    pub(crate) fn publish_head(&self, head: u32) {
        self.memory.store_u32(self.head_register, head, Ordering::Release);
    }

    /// Producer: the head that the consumer last published. Acquire: places before it may be written again.
    pub(crate) fn read_head(&self) -> u32 {
        self.memory.load_u32(self.head_register, Ordering::Acquire)
    }
}
