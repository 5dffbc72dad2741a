//! Channels as the engine's tests have them: the slots' words in a map, no bytes.

use std::collections::HashMap;
use toe_abi::channel::Side;
use toe_base::{ChannelId, QueueSetId, SessionId};

/// One side's line of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    pub(super) sent: u64,
    pub(super) frozen: bool,
    pub(super) read: u64,
    pub(super) all_read: bool,
    pub(super) done: bool,
}

#[derive(Debug, Default)]
pub(super) struct FakeChannels {
    /// Those whose memory there is.
    pub(super) open: HashMap<ChannelId, [(SessionId, QueueSetId); 2]>,
    lines: HashMap<(ChannelId, u32), [Line; 2]>,
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
        self.lines.retain(|(channel, _), _| *channel != id);
    }

    pub(super) fn line(&mut self, id: ChannelId, slot: u32, side: Side) -> &mut Line {
        assert!(self.open.contains_key(&id), "{id:?} has memory");
        &mut self.lines.entry((id, slot)).or_default()[side.index()]
    }

    pub(super) fn reset(&mut self, id: ChannelId, slot: u32) {
        for side in [Side::Zero, Side::One] {
            *self.line(id, slot, side) = Line::default();
        }
    }

    pub(super) fn end(&mut self, id: ChannelId, slot: u32, side: Side) -> bool {
        let from = self.line(id, slot, side.other());
        from.frozen = true;
        let sent = from.sent;
        let own = self.line(id, slot, side);
        let unread = !own.all_read && own.read < sent;
        *own = Line { frozen: true, all_read: true, done: true, ..*own };
        unread
    }

    pub(super) fn is_done(&self, id: ChannelId, slot: u32, side: Side) -> bool {
        assert!(self.open.contains_key(&id), "{id:?} has memory");
        self.lines.get(&(id, slot)).is_none_or(|lines| lines[side.index()].done)
    }
}
