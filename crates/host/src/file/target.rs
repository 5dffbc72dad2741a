//! A file in memory as the place where received octets go, straight from where the engine or the peer has put them. Nothing is waited for
//! there, as it is done under the stream's lock.

use super::memory::Memory;
use crate::errno::from_os;
use crate::socket::slices::{Octets, Target};
use rustix::fd::BorrowedFd;
use rustix::io::Errno as Os;
use toe_abi::errno::Errno;
use toe_transfer::Straight;

/// Most octets in one go: others have their turn at the lock.
const AT_ONCE: usize = 256 << 10;

#[derive(Debug)]
pub struct FileTarget<'a> {
    file: BorrowedFd<'a>,
    /// Of the next octet; `None`: where the file stands.
    position: Option<u64>,
    left: usize,
    taken: usize,
    memory: Memory,
    /// Why it takes no more; `None` in it: the next octets have to be waited for.
    stopped: Option<Option<Errno>>,
}

impl<'a> FileTarget<'a> {
    /// Up to `length` octets, from `position` on.
    pub fn new(file: BorrowedFd<'a>, position: Option<u64>, length: usize) -> FileTarget<'a> {
        FileTarget { file, position, left: length, taken: 0, memory: Memory::default(), stopped: None }
    }

    /// What came of it, and of what the connection said.
    pub fn how_it_went(&self, said: Result<usize, Errno>) -> Straight {
        Straight { said, taken: self.taken, file: self.stopped }
    }

    fn is_at_hand(&mut self, len: usize) -> bool {
        match self.position.map_or_else(|| rustix::fs::tell(self.file), Ok) {
            Ok(at) => self.memory.has(self.file, at, len, self.left),
            Err(_) => false,
        }
    }
}

impl Target for FileTarget<'_> {
    fn left(&self) -> usize {
        self.left
    }

    fn most_at_once(&self) -> usize {
        AT_ONCE
    }

    fn take(&mut self, octets: Octets<'_>, max: usize) -> Result<usize, Errno> {
        let max = max.min(self.left);
        if max == 0 || self.stopped.is_some() {
            return Ok(0);
        }
        if !self.is_at_hand(max) {
            self.stopped = Some(None);
            return Ok(0);
        }
        let outcome = match (octets, self.position) {
            (Octets::Shared(region, from), at) => region.write_file(from, max, self.file, at, false),
            (Octets::Own(octets), Some(at)) => {
                rustix::io::pwrite(self.file, &octets[..max.min(octets.len())], at)
            }
            (Octets::Own(octets), None) => rustix::io::write(self.file, &octets[..max.min(octets.len())]),
        };
        match outcome {
            Ok(put) if put > 0 => {
                self.position = self.position.map(|at| at + put as u64);
                self.left -= put;
                self.taken += put;
                return Ok(put);
            }
            Ok(_) => self.stopped = Some(Some(Errno::ENOSPC)),
            Err(Os::INTR | Os::AGAIN) => self.stopped = Some(None),
            Err(error) => self.stopped = Some(Some(from_os(error))),
        }
        Ok(0)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }
}
