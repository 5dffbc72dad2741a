//! Records that are sent: a source's bytes are read into memory of the process, sealed there, and wait until the stream has taken
//! them.

use super::keys::Keys;
use super::record_type::{DATA, PLAIN_MAX};
use crate::socket::slices::{Room, Source};
use core::ops::Range;
use toe_abi::errno::Errno;

/// Records in one go: what others may have to wait for the stream's lock.
pub const AT_ONCE: usize = 4;

#[derive(Debug)]
pub struct Outgoing {
    keys: Keys,
    /// Bytes of a record that the program has not ended (MSG_MORE).
    open: Vec<u8>,
    /// Where records are made: of many connections few send at a time, so there is none where none wait ([`Outgoing::borrow`]).
    memory: Vec<u8>,
    /// Records that the stream has not taken. They are sent as they are, whatever comes: their numbers are used.
    waiting: Range<usize>,
}

impl Outgoing {
    pub fn new(keys: Keys) -> Outgoing {
        Outgoing { keys, open: Vec::new(), memory: Vec::new(), waiting: 0..0 }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The records that follow have another key; none is open.
    pub fn rekey(&mut self, keys: Keys) {
        self.keys = keys;
    }

    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Bytes that the records of `plain` bytes more have.
    pub fn sealed_len(&self, plain: usize) -> usize {
        let plain = (plain + self.open.len()).min(AT_ONCE * PLAIN_MAX);
        plain + plain.div_ceil(PLAIN_MAX) * self.keys.overhead()
    }

    pub fn overhead(&self) -> usize {
        self.keys.overhead()
    }

    /// Sealed, and not taken.
    pub fn waiting(&self) -> &[u8] {
        &self.memory[self.waiting.clone()]
    }

    pub fn taken(&mut self, bytes: usize) {
        self.waiting.start += bytes;
        if self.waiting.is_empty() {
            self.waiting = 0..0;
        }
    }

    /// Makes its records in `memory` from now on, unless some wait in its own.
    pub fn borrow(&mut self, memory: &mut Vec<u8>) {
        if self.memory.is_empty() {
            core::mem::swap(&mut self.memory, memory);
        }
    }

    /// Gives it back, unless records wait in it.
    pub fn give_back(&mut self, memory: &mut Vec<u8>) {
        if self.waiting.is_empty() {
            let own = core::mem::take(&mut self.memory);
            if own.len() > memory.len() {
                *memory = own;
            }
        }
    }

    /// Seals what there is of `from`, as far as the records fit into `budget` bytes; with `more`, a last one that is not full stays open.
    /// Returns how many bytes of `from` were taken. An error: none were.
    pub fn fill(
        &mut self,
        from: &mut impl Source,
        kind: u8,
        budget: usize,
        more: bool,
    ) -> Result<usize, Errno> {
        let mut taken = 0;
        while let Some(most) = budget.checked_sub(self.waiting.end + self.keys.overhead()) {
            let most = most.min(PLAIN_MAX);
            if most == 0 {
                break;
            }
            match self.fill_one(from, kind, most, more) {
                Ok(None) => break,
                Ok(Some(got)) => taken += got,
                Err(_) if taken > 0 => break,
                Err(errno) => return Err(errno),
            }
            if from.left() == 0 && (more || !self.is_open()) {
                break;
            }
        }
        Ok(taken)
    }

    /// One record of up to `most` bytes. `None`: there was nothing to make it of.
    fn fill_one(
        &mut self,
        from: &mut impl Source,
        kind: u8,
        most: usize,
        more: bool,
    ) -> Result<Option<usize>, Errno> {
        let start = self.waiting.end;
        let body = start + self.keys.before();
        self.has_memory(start + most + self.keys.overhead());
        let held = self.open.len().min(most);
        self.memory[body..body + held].copy_from_slice(&self.open[..held]);
        let got = self.read(from, body + held, (most - held).min(from.left()))?;
        let len = held + got;
        if len == 0 {
            return Ok(None);
        }
        self.open.drain(..held);
        if more && from.left() == 0 && self.open.is_empty() && len < PLAIN_MAX {
            self.open.extend_from_slice(&self.memory[body..body + len]);
            return Ok(Some(got));
        }
        self.waiting.end += self.keys.seal(kind, &mut self.memory[start..], len)?;
        Ok(Some(got))
    }

    /// There are so many bytes to make records in.
    fn has_memory(&mut self, bytes: usize) {
        if self.memory.len() < bytes {
            let most = AT_ONCE * (PLAIN_MAX + self.keys.overhead());
            self.memory.resize(bytes.max(most), 0);
        }
    }

    /// Reads up to `want` bytes to where they are sealed.
    fn read(&mut self, from: &mut impl Source, at: usize, want: usize) -> Result<usize, Errno> {
        if want == 0 {
            return Ok(0);
        }
        from.check_next(want)?;
        from.put(Room::Own(&mut self.memory[at..at + want]), want)
    }

    /// Ends the open record, as far as it fits into `budget` bytes.
    pub fn end_record(&mut self, budget: usize) -> Result<(), Errno> {
        self.fill(&mut Nothing, DATA, budget, false).map(|_| ())
    }
}

/// A source without bytes.
#[derive(Debug)]
struct Nothing;

impl Source for Nothing {
    fn left(&self) -> usize {
        0
    }

    fn check_next(&self, _: usize) -> Result<bool, Errno> {
        Ok(true)
    }

    fn put(&mut self, _: Room<'_>, _: usize) -> Result<usize, Errno> {
        Ok(0)
    }

    fn take_back(&mut self, _: usize) {}
}
