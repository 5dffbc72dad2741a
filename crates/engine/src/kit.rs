//! For tests, examples and measurements: hosts without memory, who are told things and touch nothing.

use crate::hostif::HostSide;
use std::collections::VecDeque;
use toe_abi::entry::Completion;
use toe_base::{QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;

/// See the module.
#[derive(Debug, Default)]
pub struct Memoryless {
    /// What was posted, and to whom.
    pub completions: VecDeque<(SessionId, Completion)>,
    /// Rings of these are full.
    pub full: Vec<SessionId>,
    /// How often the engine posted, or would have.
    pub posts: usize,
}

impl HostMemory for Memoryless {
    fn write(&mut self, _: SessionId, _: u64, _: &[u8]) {}
    fn read(&mut self, _: SessionId, _: u64, out: &mut [u8]) {
        out.fill(0);
    }
    fn copy(&mut self, _: (SessionId, u64), _: (SessionId, u64), _: u32) {}
}

impl HostSide for Memoryless {
    fn post(&mut self, session: SessionId, queue_set: QueueSetId, completion: Completion) -> bool {
        self.posts += 1;
        let fits = self.has_room(session, queue_set);
        if fits {
            self.completions.push_back((session, completion));
        }
        fits
    }
    fn has_room(&mut self, session: SessionId, _: QueueSetId) -> bool {
        !self.full.contains(&session)
    }
}
