//! The engine's ends of the rings. The host is hostile: it may put anything anywhere at any time.
//!
//! The engine's index is its own and is never read back from shared memory. An entry is copied once and only the copy
//! is used. The one thing taken from the host, the head of `cpl`, is checked against what it can be. Built by
//! [`crate::queue_set::EngineQueueSet`]; used by the daemon only.

use crate::region::{OutOfRange, Region};
use crate::ring::Ring;
use crate::sync::Words;
use toe_abi::entry::RawEntry;

/// Takes entries out of `cmd`, `snd` or `rcv`.
#[derive(Debug)]
pub struct EngineConsumer<M = Region> {
    ring: Ring<M>,
    head: u32,
    published: u32,
}

impl<M: Words> EngineConsumer<M> {
    pub fn new(memory: M, entries: u64, capacity: u32, head_register: u64) -> Result<Self, OutOfRange> {
        Ok(EngineConsumer {
            ring: Ring::new(memory, entries, capacity, head_register)?,
            head: 0,
            published: 0,
        })
    }

    /// The next entry, copied. A host can make this go on for ever by writing ahead of itself, so every loop over it
    /// has a budget.
    pub fn pop(&mut self) -> Option<RawEntry> {
        let entry = self.ring.load(self.head)?;
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// The same, if `may` take this one.
    pub fn pop_if(&mut self, may: impl FnOnce(RawEntry) -> bool) -> Option<RawEntry> {
        let entry = self.ring.load(self.head).filter(|entry| may(*entry))?;
        self.head = self.head.wrapping_add(1);
        Some(entry)
    }

    /// How many wait now.
    pub fn waiting(&self) -> u32 {
        (0..self.ring.capacity()).take_while(|n| self.ring.is_due(self.head.wrapping_add(*n))).count() as u32
    }

    /// How many were taken, ever, modulo 2^32.
    pub fn count(&self) -> u32 {
        self.head
    }

    /// Like [`EngineConsumer::pop`], with the place of the entry, which is the number of its argument block. Copy
    /// the block before [`EngineConsumer::publish_head`].
    pub fn pop_with_slot(&mut self) -> Option<(RawEntry, u32)> {
        let slot = self.ring.slot(self.head);
        self.pop().map(|entry| (entry, slot))
    }

    /// Whether an entry waits.
    pub fn has_entry(&self) -> bool {
        self.ring.is_due(self.head)
    }

    /// Gives the places of all popped entries back to the host; once a batch.
    pub fn publish_head(&mut self) {
        if self.head != self.published {
            self.ring.publish_head(self.head);
            self.published = self.head;
        }
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// As if `index` entries had passed already.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn start_at(&mut self, index: u32) {
        (self.head, self.published) = (index, index);
    }
}

/// Why an entry could not be put into `cpl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The host has not taken enough yet; try again later.
    Full,
    /// The host's head register holds a value that it cannot have: fence the session.
    BadHead(u32),
}

/// Puts entries into `cpl`.
#[derive(Debug)]
pub struct EngineProducer<M = Region> {
    ring: Ring<M>,
    tail: u32,
    /// The host's last valid head; read again only when the ring seems full. Always within `capacity` before `tail`.
    seen_head: u32,
}

impl<M: Words> EngineProducer<M> {
    pub fn new(memory: M, entries: u64, capacity: u32, head_register: u64) -> Result<Self, OutOfRange> {
        Ok(EngineProducer {
            ring: Ring::new(memory, entries, capacity, head_register)?,
            tail: 0,
            seen_head: 0,
        })
    }

    fn used(&self) -> u32 {
        self.tail.wrapping_sub(self.seen_head)
    }

    /// Takes over the host's head if it is one that the host can have: not behind what it said before, not beyond
    /// what was posted.
    fn refresh(&mut self) -> Result<(), PushError> {
        let head = self.ring.read_head();
        if head.wrapping_sub(self.seen_head) > self.used() {
            return Err(PushError::BadHead(head));
        }
        self.seen_head = head;
        Ok(())
    }

    /// Posts one entry. The host may take it at once.
    pub fn push(&mut self, entry: RawEntry) -> Result<(), PushError> {
        if self.used() >= self.ring.capacity() {
            self.refresh()?;
            if self.used() >= self.ring.capacity() {
                return Err(PushError::Full);
            }
        }
        self.ring.store(self.tail, entry);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Entries that can be posted now. Looks at the host's head only when its copy says that fewer than `wanted` fit.
    pub fn room(&mut self, wanted: u32) -> Result<u32, PushError> {
        if self.ring.capacity() - self.used() < wanted {
            self.refresh()?;
        }
        Ok(self.ring.capacity() - self.used())
    }

    /// Whether no entry fits, by the host's register now.
    pub fn is_full(&mut self) -> Result<bool, PushError> {
        if self.used() >= self.ring.capacity() {
            self.refresh()?;
        }
        Ok(self.used() >= self.ring.capacity())
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn tail(&self) -> u32 {
        self.tail
    }
}
