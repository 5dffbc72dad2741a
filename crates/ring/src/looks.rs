//! How far the engine is ([`toe_abi::looks`]): written by the daemon, read by each host that is about to say "nothing", or to hand out
//! what came past the engine.
//!
//! | host | engine |
//! |---|---|
//! | 1. store entries (release) | 1. store the count of looks |
//! | 2. fence, sequentially consistent | 2. fence, sequentially consistent |
//! | 3. load the count | 3. look at every ring |
//!
//! As in [`crate::doorbell`]: either the host sees the count of the look before this one, and two more are enough, or this look finds the
//! entries.

use crate::memory_file::memory_file;
use crate::region::Region;
use crate::sync::{Ordering, Words, fence};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;
use rustix::io::Result;
use toe_abi::looks::{LOOKS, LOOKS_LEN, SLEEP};

/// The engine's side.
#[derive(Debug)]
pub struct EngineLooks {
    region: Region,
    file: OwnedFd,
    count: u64,
    sleeps: u32,
}

impl EngineLooks {
    /// Asleep until it looks for the first time.
    pub fn new() -> Result<EngineLooks> {
        let file = memory_file(LOOKS_LEN)?;
        let region = Region::map_watched(&file, LOOKS_LEN)?;
        region.store_u32(SLEEP, 1, Ordering::Release);
        // What is mapped stays writable. Nobody else can map it for writing, or take the page out of it.
        rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(EngineLooks { region, file, count: 0, sleeps: 0 })
    }

    /// A whole look is over; the next one may begin.
    pub fn done(&mut self) {
        look_done(&self.region, &mut self.count);
    }

    /// Another sleep is about to be announced to the hosts.
    pub fn begin_sleep(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.wake();
    }

    /// The engine sleeps: it has told every host that it is to be woken, and has looked again after that.
    pub fn sleep(&self) {
        self.region.store_u32(SLEEP, self.sleeps << 1 | 1, Ordering::Release);
    }

    /// It is awake. Before hosts are told that they need not wake it.
    pub fn wake(&self) {
        self.region.store_u32(SLEEP, self.sleeps << 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

impl AsFd for EngineLooks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

pub(crate) fn look_done(memory: &impl Words, count: &mut u64) {
    *count += 1;
    memory.store_u64(LOOKS, *count, Ordering::Release);
    fence(Ordering::SeqCst);
}

/// The host's side.
#[derive(Clone, Debug)]
pub struct HostLooks(Region);

impl HostLooks {
    /// EINVAL: it can shrink.
    pub fn map(file: impl AsFd) -> Result<HostLooks> {
        Region::map_to_read(file, LOOKS_LEN).map(HostLooks)
    }

    /// Whole looks so far.
    pub fn count(&self) -> u64 {
        self.0.load_u64(LOOKS, Ordering::Acquire)
    }

    /// The same, after entries were published.
    pub fn count_after_entries(&self) -> u64 {
        count_after_entries(&self.0)
    }

    /// The number of the sleep that is announced, for who has found that the engine is to be rung.
    pub fn sleep_to_end(&self) -> u32 {
        fence(Ordering::SeqCst);
        self.0.load_u32(SLEEP, Ordering::Acquire) >> 1
    }

    /// The number of the sleep in which the engine is; `None`: it is awake.
    pub fn asleep(&self) -> Option<u32> {
        let word = self.0.load_u32(SLEEP, Ordering::Acquire);
        (word & 1 != 0).then_some(word >> 1)
    }
}

pub(crate) fn count_after_entries(memory: &impl Words) -> u64 {
    fence(Ordering::SeqCst);
    memory.load_u64(LOOKS, Ordering::Acquire)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn hosts_see_looks_and_sleep_and_can_write_neither() {
        let mut engine = EngineLooks::new().expect("memory");
        let host = HostLooks::map(&engine).expect("the same memory");
        assert_eq!((host.asleep(), host.count()), (Some(0), 0));
        engine.wake();
        engine.done();
        engine.done();
        assert_eq!((host.asleep(), host.count_after_entries()), (None, 2));
        engine.begin_sleep();
        assert_eq!((host.asleep(), host.sleep_to_end()), (None, 1));
        engine.sleep();
        assert_eq!(host.asleep(), Some(1));
        assert_eq!(Region::map(&engine, LOOKS_LEN).err(), Some(Errno::PERM), "not for writing");
        assert_eq!(rustix::io::pwrite(&engine, &[0], 0).err(), Some(Errno::PERM));
    }
}
