//! Channels as the engine sees them: the words of each slot, without bytes. The programs of these worlds send through the
//! engine all the same.

use crate::checkers::{Checker, Verdict};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use toe_abi::channel::{ChannelLayout, FROZEN, SLOT_LEN, Side};
use toe_base::ChannelId;
use toe_engine::SharedMemory;
use toe_engine::kit::SharedWords;

/// Every channel's slots.
#[derive(Debug, Default)]
pub struct Channels {
    open: BTreeSet<ChannelId>,
    words: SharedWords,
}

impl Channels {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn open(&mut self, id: ChannelId, verdict: &mut Verdict) {
        if !self.open.insert(id) {
            verdict.fail(Checker::Memory, format!("channel {} was opened twice", id.0));
        }
    }

    pub fn close(&mut self, id: ChannelId, verdict: &mut Verdict) {
        if !self.open.remove(&id) {
            verdict.fail(Checker::Memory, format!("channel {} was closed, which was not open", id.0));
        }
        self.words.forget(SharedMemory::OfPair(id));
    }

    pub fn word(&mut self, id: ChannelId, offset: u64, verdict: &mut Verdict) -> Option<&AtomicU64> {
        if !self.open.contains(&id) {
            verdict.fail(Checker::Memory, format!("channel {} is used, which is not open", id.0));
            return None;
        }
        let word = self.words.of_leaving_hosts(SharedMemory::OfPair(id), offset);
        if (offset - ChannelLayout::line(0, Side::Zero)).is_multiple_of(SLOT_LEN / 2) {
            // Its programs send nothing here, and end each direction before anybody asks.
            word.fetch_or(FROZEN, Ordering::Relaxed);
        }
        Some(word)
    }
}
