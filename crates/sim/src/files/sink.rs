//! A file or a pipe that is written to: what it has, and why it takes no more.

use crate::random::Random;
use std::collections::BTreeSet;
use toe_abi::errno::Errno;

const PAGE: usize = 4096;
/// What is where nobody has written.
pub(super) const UNTOUCHED: u8 = 0xfe;

/// What kind of thing it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    /// It takes bytes straight from where they were received, but for those that it would have to wait for.
    Straight,
    /// It takes whole blocks only, which these are not; by another descriptor it takes anything.
    Blocks,
    /// The same, and there is no other.
    OnlyBlocks,
    Pipe,
}

#[derive(Debug)]
pub(super) struct Sink {
    pub(super) kind: Kind,
    pub(super) bytes: Vec<u8>,
    /// Where it stands.
    pub(super) stands: usize,
    capacity: usize,
    broken: Option<usize>,
    swapped: BTreeSet<usize>,
    calm: bool,
}

impl Sink {
    pub(super) fn new(random: &mut Random) -> Sink {
        let kind = random.pick(&[
            Kind::File,
            Kind::Straight,
            Kind::Straight,
            Kind::Blocks,
            Kind::OnlyBlocks,
            Kind::Pipe,
        ]);
        let calm = random.one_in(3);
        let capacity = if calm { 1 << 20 } else { random.any_size(1 << 20) as usize };
        let broken = (!calm && random.one_in(4)).then(|| random.below(1 << 20) as usize);
        let swapped = (0..random.below(40)).map(|_| random.below(256) as usize).collect();
        Sink { kind, bytes: Vec::new(), stands: 0, capacity, broken, swapped, calm }
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind != Kind::Pipe
    }

    /// Writes here, or where it stands; `is_past`: by another descriptor.
    pub(super) fn write(
        &mut self,
        at: Option<u64>,
        bytes: &[u8],
        is_past: bool,
        random: &mut Random,
    ) -> Result<usize, Errno> {
        if !self.calm && random.one_in(20) {
            return Err(if self.kind == Kind::Pipe && random.one_in(2) {
                Errno::EAGAIN
            } else {
                Errno::EINTR
            });
        }
        if matches!(self.kind, Kind::Blocks | Kind::OnlyBlocks) && !is_past {
            return Err(Errno::EINVAL);
        }
        let mut most = bytes.len();
        if !self.calm && random.one_in(4) {
            most = 1 + random.below(most as u32) as usize;
        }
        let written = self.put(at.map_or(self.stands, |at| at as usize), &bytes[..most])?;
        if at.is_none() {
            self.stands += written;
        }
        Ok(written)
    }

    fn put(&mut self, from: usize, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(broken) = self.broken
            && (from..from + bytes.len()).contains(&broken)
        {
            return Err(Errno::EIO);
        }
        let written = bytes.len().min(self.capacity.saturating_sub(from));
        if written == 0 {
            return Err(Errno::ENOSPC);
        }
        if self.bytes.len() < from + written {
            self.bytes.resize(from + written, UNTOUCHED);
        }
        self.bytes[from..from + written].copy_from_slice(&bytes[..written]);
        Ok(written)
    }

    /// Takes bytes without waiting; `Err(None)`: they would have to be waited for.
    pub(super) fn take(&mut self, at: Option<usize>, bytes: &[u8]) -> Result<usize, Option<Errno>> {
        let from = at.unwrap_or(self.stands);
        if let Some(page) =
            (from / PAGE..=(from + bytes.len() - 1) / PAGE).find(|page| self.swapped.contains(page))
        {
            // The next one who waits has it read.
            self.swapped.remove(&page);
            return Err(None);
        }
        let taken = self.put(from, bytes).map_err(Some)?;
        if at.is_none() {
            self.stands += taken;
        }
        Ok(taken)
    }
}
