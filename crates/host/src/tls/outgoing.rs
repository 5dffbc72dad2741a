//! Records that are sent: a source's octets are read into memory of the process, sealed there, and wait until the stream has taken
//! them.

use super::keys::Keys;
use super::{DATA, PLAIN_MAX};
use crate::socket::slices::{Room, Source};
use toe_abi::errno::Errno;

/// Records in one go: what others may have to wait for the stream's lock.
pub const AT_ONCE: usize = 4;

#[derive(Debug)]
pub struct Outgoing {
    keys: Keys,
    /// Octets of a record that the program has not ended (MSG_MORE).
    open: Vec<u8>,
    /// Records that the stream has not taken, from `at` on. They are sent as they are, whatever comes: their numbers are used.
    sealed: Vec<u8>,
    at: usize,
}

impl Outgoing {
    pub fn new(keys: Keys) -> Outgoing {
        Outgoing { keys, open: Vec::new(), sealed: Vec::new(), at: 0 }
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

    /// Octets that the records of `plain` octets more have.
    pub fn sealed_len(&self, plain: usize) -> usize {
        let plain = (plain + self.open.len()).min(AT_ONCE * PLAIN_MAX);
        plain + plain.div_ceil(PLAIN_MAX) * self.keys.overhead()
    }

    pub fn overhead(&self) -> usize {
        self.keys.overhead()
    }

    /// Sealed, and not taken.
    pub fn waiting(&self) -> &[u8] {
        &self.sealed[self.at..]
    }

    pub fn taken(&mut self, octets: usize) {
        self.at += octets;
        if self.at >= self.sealed.len() {
            self.at = 0;
            self.sealed.clear();
            // Of many connections few send at a time.
            self.sealed.shrink_to(0);
        }
    }

    /// Seals what there is of `from`, as far as the records fit into `budget` octets; with `more`, a last one that is not full stays open.
    /// Returns how many octets of `from` were taken. An error: none were.
    pub fn fill(
        &mut self,
        from: &mut impl Source,
        kind: u8,
        budget: usize,
        more: bool,
    ) -> Result<usize, Errno> {
        let mut taken = 0;
        self.sealed.reserve(budget.min(self.sealed_len(from.left())));
        while let Some(most) = budget.checked_sub(self.sealed.len() + self.keys.overhead()) {
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

    /// One record of up to `most` octets. `None`: there was nothing to make it of.
    fn fill_one(
        &mut self,
        from: &mut impl Source,
        kind: u8,
        most: usize,
        more: bool,
    ) -> Result<Option<usize>, Errno> {
        let start = self.sealed.len();
        let body = start + self.keys.before();
        self.sealed.resize(body, 0);
        let held = self.open.len().min(most);
        self.sealed.extend_from_slice(&self.open[..held]);
        let at = self.sealed.len();
        let got = self.read(from, (most - held).min(from.left()));
        let got = got.inspect_err(|_| self.sealed.truncate(start))?;
        self.sealed.truncate(at + got);
        let len = held + got;
        if len == 0 {
            self.sealed.truncate(start);
            return Ok(None);
        }
        self.open.drain(..held);
        if more && from.left() == 0 && self.open.is_empty() && len < PLAIN_MAX {
            self.open.extend_from_slice(&self.sealed[body..]);
            self.sealed.truncate(start);
            return Ok(Some(got));
        }
        if let Err(errno) = self.keys.seal(kind, &mut self.sealed, start) {
            self.sealed.truncate(start);
            return Err(errno);
        }
        Ok(Some(got))
    }

    fn read(&mut self, from: &mut impl Source, want: usize) -> Result<usize, Errno> {
        if want == 0 {
            return Ok(0);
        }
        from.check_next(want)?;
        let at = self.sealed.len();
        self.sealed.resize(at + want, 0);
        from.put(Room::Own(&mut self.sealed[at..]), want)
    }

    /// Ends the open record, as far as it fits into `budget` octets.
    pub fn end_record(&mut self, budget: usize) -> Result<(), Errno> {
        self.fill(&mut super::typed::Nothing, DATA, budget, false).map(|_| ())
    }
}
