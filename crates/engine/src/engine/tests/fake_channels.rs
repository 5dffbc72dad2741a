//! Channels as the engine's tests have them: the slots' words, no bytes.

use crate::SharedMemory;
use crate::kit::SharedWords;
use core::sync::atomic::AtomicU64;
use std::collections::HashMap;
use toe_base::{ChannelId, QueueSetId, SessionId};

#[derive(Debug, Default)]
pub(super) struct FakeChannels {
    /// Those whose memory there is.
    pub(super) open: HashMap<ChannelId, [(SessionId, QueueSetId); 2]>,
    words: SharedWords,
    /// No memory for more.
    pub(super) exhausted: bool,
}

impl FakeChannels {
    pub(super) fn open(&mut self, id: ChannelId, ends: [(SessionId, QueueSetId); 2]) -> bool {
        assert!(self.exhausted || self.open.insert(id, ends).is_none(), "a number is given once");
        !self.exhausted
    }

    pub(super) fn close(&mut self, id: ChannelId) {
        assert!(self.open.remove(&id).is_some(), "closed once");
        self.words.forget(SharedMemory::OfPair(id));
    }

    pub(super) fn word(&mut self, id: ChannelId, offset: u64) -> &AtomicU64 {
        assert!(self.open.contains_key(&id), "{id:?} has memory");
        self.words.of_leaving_hosts(SharedMemory::OfPair(id), offset)
    }
}
