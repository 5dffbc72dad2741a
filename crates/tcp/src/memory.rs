//! The memory that a connection's bytes are in, as TCP reaches it.

use core::sync::atomic::{AtomicU8, AtomicU64};
use toe_base::{ChannelId, SessionId};

/// What came of [`HostMemory::give_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// The pages are gone; or there were none of which nobody needs anything.
    Now,
    /// They may go at any moment until the driver says that it is over: until then nothing may be written there.
    Later,
    /// They stay.
    Retained,
}

/// Memory of which hosts change words at the same time as the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedMemory {
    OfSession(SessionId),
    /// What two sessions share.
    OfPair(ChannelId),
}

/// The memory of the programs, by session. An implementation checks its own bounds and ignores what does not fit.
pub trait HostMemory {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]);
    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]);
    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32);
    /// The bytes where they are, for a link that takes them from there ([`FrameSink::gather`]) or puts them there; a driver without
    /// shared memory lends none.
    ///
    /// [`FrameSink::gather`]: toe_wire::link::FrameSink::gather
    fn lend(&self, _session: SessionId, _offset: u64, _len: u32) -> Option<&[AtomicU8]> {
        None
    }
    /// A word that hosts may change at the same time. `None`: there is no such memory, or nothing is written to it any more.
    fn word(&mut self, _memory: SharedMemory, _offset: u64) -> Option<&AtomicU64> {
        None
    }
    /// What is in the range means nothing to anybody any more: its pages may go back to the system.
    fn give_back(&mut self, _session: SessionId, _offset: u64, _len: u32) -> GivenBack {
        GivenBack::Retained
    }
}
