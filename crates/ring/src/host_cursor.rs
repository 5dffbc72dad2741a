//! The host's ends of the rings. They take the engine at its word, as a driver does its device, but do not panic if
//! it is wrong: a senseless head just means "full".
//!
//! Built by [`crate::queue_set::HostQueueSet`]; used by the host library only. Not for the engine's side.

use crate::region::{OutOfRange, Region};
use crate::ring::Ring;
use crate::sync::Words;
use toe_abi::entry::RawEntry;

/// The ring holds as many untaken entries as fit. Ring the doorbell if wanted and try again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Puts entries into `cmd`, `snd` or `rcv`.
#[derive(Debug)]
pub struct HostProducer<M = Region> {
    ring: Ring<M>,
    tail: u32,
    /// The engine's head when it was last looked up; read again only when the ring seems full.
    seen_head: u32,
}

impl<M: Words> HostProducer<M> {
    pub fn new(memory: M, entries: u64, capacity: u32, head_register: u64) -> Result<Self, OutOfRange> {
        Ok(HostProducer { ring: Ring::new(memory, entries, capacity, head_register)?, tail: 0, seen_head: 0 })
    }

    fn room_by_copy(&self) -> u32 {
        self.ring.capacity().saturating_sub(self.tail.wrapping_sub(self.seen_head))
    }

    /// Entries that can be pushed now. Looks at the engine's head only when the copy of it says that fewer than
    /// `wanted` fit.
    pub fn room(&mut self, wanted: u32) -> u32 {
        if self.room_by_copy() < wanted {
            self.seen_head = self.ring.read_head();
        }
        self.room_by_copy()
    }

    /// The place that the next entry will get, and so the number of its argument block. Write the block only while
    /// [`HostProducer::room`] is not zero: until then the engine may still read the old one.
    pub fn next_slot(&self) -> u32 {
        self.ring.slot(self.tail)
    }

    /// How many were published, ever, modulo 2^32.
    pub fn count(&self) -> u32 {
        self.tail
    }

    /// Publishes one entry. The engine may take it at once.
    pub fn push(&mut self, entry: RawEntry) -> Result<(), Full> {
        if self.room(1) == 0 {
            return Err(Full);
        }
        self.ring.store(self.tail, entry);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Publishes as many of `entries` as fit, in order; returns how many.
    pub fn push_batch(&mut self, entries: &[RawEntry]) -> usize {
        let fit = self.room(u32::try_from(entries.len()).unwrap_or(u32::MAX)) as usize;
        for entry in entries.iter().take(fit) {
            self.ring.store(self.tail, *entry);
            self.tail = self.tail.wrapping_add(1);
        }
        fit.min(entries.len())
    }

    /// Whether the engine has taken every entry (by its head register).
    pub fn is_drained(&mut self) -> bool {
        self.seen_head = self.ring.read_head();
        self.seen_head == self.tail
    }

    /// As if `index` entries had passed already.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.tail, self.seen_head) = (index, index);
    }
}

/// Takes entries out of `cpl`.
#[derive(Debug)]
pub struct HostConsumer<M = Region> {
    ring: Ring<M>,
    head: u32,
    published: u32,
}

impl<M: Words> HostConsumer<M> {
    pub fn new(memory: M, entries: u64, capacity: u32, head_register: u64) -> Result<Self, OutOfRange> {
        Ok(HostConsumer { ring: Ring::new(memory, entries, capacity, head_register)?, head: 0, published: 0 })
    }

    /// The next entry. Its place is the engine's again after [`HostConsumer::publish_head`], once a batch.
    pub fn pop(&mut self) -> Option<RawEntry> {
        let entry = self.ring.load(self.head)?;
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// Whether an entry waits.
    pub fn has_entry(&self) -> bool {
        self.ring.is_due(self.head)
    }

    /// Gives the places of all popped entries back; `false` when there was nothing to give. Call it once a batch,
    /// then [`crate::HostDoorbell::ring_for_head`].
    pub fn publish_head(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        self.ring.publish_head(self.head);
        self.published = self.head;
        true
    }
}
