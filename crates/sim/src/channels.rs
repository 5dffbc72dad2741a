//! Channels as the engine sees them: the words of each slot, without bytes. The programs of these worlds send through the
//! engine all the same.

use crate::checkers::{Checker, Verdict};
use std::collections::BTreeMap;
use toe_abi::channel::Side;
use toe_base::ChannelId;
use toe_engine::SlotAct;

/// One side's line of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    sent: u64,
    read: u64,
    all_read: bool,
    done: bool,
}

/// Every channel's slots; those without a line have not been used.
#[derive(Debug, Default)]
pub struct Channels {
    open: BTreeMap<u32, BTreeMap<u32, [Line; 2]>>,
}

impl Channels {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn open(&mut self, id: ChannelId, verdict: &mut Verdict) {
        if self.open.insert(id.0, BTreeMap::new()).is_some() {
            verdict.fail(Checker::Memory, format!("channel {} was opened twice", id.0));
        }
    }

    pub fn close(&mut self, id: ChannelId, verdict: &mut Verdict) {
        if self.open.remove(&id.0).is_none() {
            verdict.fail(Checker::Memory, format!("channel {} was closed, which was not open", id.0));
        }
    }

    fn lines(&mut self, id: ChannelId, slot: u32, verdict: &mut Verdict) -> Option<&mut [Line; 2]> {
        let Some(slots) = self.open.get_mut(&id.0) else {
            verdict.fail(Checker::Memory, format!("channel {} is used, which is not open", id.0));
            return None;
        };
        Some(slots.entry(slot).or_default())
    }

    pub fn slot(&mut self, (id, slot): (ChannelId, u32), act: SlotAct, verdict: &mut Verdict) -> bool {
        match act {
            SlotAct::Reset => {
                self.lines(id, slot, verdict).into_iter().for_each(|lines| *lines = Default::default());
                true
            }
            SlotAct::End { side, .. } => self.end(id, slot, side, verdict),
            SlotAct::IsDone(side) => self.is_done(id, slot, side),
            SlotAct::IsLeft { .. } => true,
        }
    }

    /// Whether bytes were on their way to `side` that its program had not read.
    fn end(&mut self, id: ChannelId, slot: u32, side: Side, verdict: &mut Verdict) -> bool {
        let Some(lines) = self.lines(id, slot, verdict) else { return false };
        let sent = lines[side.other().index()].sent;
        let own = &mut lines[side.index()];
        let unread = !own.all_read && own.read < sent;
        (own.all_read, own.done) = (true, true);
        unread
    }

    fn is_done(&self, id: ChannelId, slot: u32, side: Side) -> bool {
        let lines = self.open.get(&id.0).and_then(|slots| slots.get(&slot));
        lines.is_none_or(|lines| lines[side.index()].done)
    }
}
