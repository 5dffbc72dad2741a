//! Channels: memory that two sessions share for connections between them ([`toe_abi::channel`]). The engine knows which
//! there are, who their ends are, and which connection has which slot; the memory itself is the daemon's.

use std::collections::{HashMap, VecDeque};
use toe_abi::channel::{SLOTS_MAX, Side};
use toe_base::{ChannelId, QueueSetId, SessionId};

/// Channels that one session may have. Connections to more sessions than that go through the engine.
pub const CHANNELS_PER_SESSION_MAX: usize = 32;
/// Slots looked at for one that both sides have let go of.
const RETIRED_LOOKS: usize = 8;

/// Whom a channel joins: a queue set of one session and one of another.
pub type Ends = [(SessionId, QueueSetId); 2];

/// A flow's place in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    pub channel: ChannelId,
    pub slot: u32,
    pub generation: u16,
    pub side: Side,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    generation: u16,
    /// Flows that have it.
    users: u8,
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    pub ends: Ends,
    ready: [bool; 2],
    open: [bool; 2],
    slots: Vec<Slot>,
    /// Slots that no flow has any more, the oldest first; the sides may still look at them.
    retired: VecDeque<u32>,
    users: u32,
}

impl Channel {
    /// Which end a session's queue set is.
    fn side_of(&self, session: SessionId) -> Option<Side> {
        match self.ends.iter().position(|end| end.0 == session)? {
            0 => Some(Side::Zero),
            _ => Some(Side::One),
        }
    }

    fn is_ready(&self) -> bool {
        self.ready == [true; 2] && self.open == [true; 2]
    }
}

/// All channels, by number.
#[derive(Debug, Default)]
pub struct Channels {
    table: HashMap<u32, Channel>,
    next: u32,
    /// Those that nothing refers to any more.
    finished: Vec<ChannelId>,
}

impl Channels {
    /// The channel between two queue sets, with its number and the side of the first.
    pub fn between(&self, ends: Ends) -> Option<(ChannelId, Side)> {
        let reversed = [ends[1], ends[0]];
        self.table.iter().filter(|(_, channel)| channel.open == [true; 2]).find_map(|(&id, channel)| {
            let side = if channel.ends == ends {
                Side::Zero
            } else if channel.ends == reversed {
                Side::One
            } else {
                return None;
            };
            Some((ChannelId(id), side))
        })
    }

    /// Whether a session has as many as it may.
    pub fn are_full(&self, session: SessionId) -> bool {
        self.table.values().filter(|channel| channel.side_of(session).is_some()).count()
            >= CHANNELS_PER_SESSION_MAX
    }

    /// A number for a new channel.
    pub fn next_id(&mut self) -> ChannelId {
        self.next = self.next.wrapping_add(1);
        ChannelId(self.next)
    }

    pub fn insert(&mut self, id: ChannelId, ends: Ends) {
        let channel = Channel {
            ends,
            ready: [false; 2],
            open: [true; 2],
            slots: Vec::new(),
            retired: VecDeque::new(),
            users: 0,
        };
        self.table.insert(id.0, channel);
    }

    /// A session has mapped its end. `false`: it has no such channel.
    pub fn set_ready(&mut self, id: ChannelId, session: SessionId) -> bool {
        let Some(channel) = self.table.get_mut(&id.0) else { return false };
        let Some(side) = channel.side_of(session) else { return false };
        channel.ready[side.index()] = true;
        true
    }

    pub fn is_ready(&self, id: ChannelId) -> bool {
        self.table.get(&id.0).is_some_and(Channel::is_ready)
    }

    /// Takes a slot for two flows. `is_done` says whether a side refers to a retired slot no more.
    pub fn take_slot(&mut self, id: ChannelId, is_done: impl Fn(u32, Side) -> bool) -> Option<(u32, u16)> {
        let channel = self.table.get_mut(&id.0)?;
        let mut found = None;
        for _ in 0..RETIRED_LOOKS.min(channel.retired.len()) {
            let slot = channel.retired.pop_front()?;
            if is_done(slot, Side::Zero) && is_done(slot, Side::One) {
                found = Some(slot);
                break;
            }
            channel.retired.push_back(slot);
        }
        let slot = match found {
            Some(slot) => slot,
            None if (channel.slots.len() as u32) < SLOTS_MAX => {
                channel.slots.push(Slot::default());
                channel.slots.len() as u32 - 1
            }
            None => return None,
        };
        let record = &mut channel.slots[slot as usize];
        record.generation = record.generation.wrapping_add(1);
        record.users = 2;
        channel.users += 2;
        Some((slot, record.generation))
    }

    /// A flow uses its slot no more.
    pub fn let_go(&mut self, direct: Direct) {
        let Some(channel) = self.table.get_mut(&direct.channel.0) else { return };
        let Some(slot) = channel.slots.get_mut(direct.slot as usize) else { return };
        slot.users = slot.users.saturating_sub(1);
        channel.users = channel.users.saturating_sub(1);
        if slot.users == 0 {
            channel.retired.push_back(direct.slot);
        }
        self.finish_if_unused(direct.channel);
    }

    /// A session is gone. Returns its channels with the ends that are left and are to be told.
    pub fn close_session(&mut self, session: SessionId) -> Vec<(ChannelId, Option<(SessionId, QueueSetId)>)> {
        let mut closed = Vec::new();
        for (&id, channel) in &mut self.table {
            let Some(side) = channel.side_of(session).filter(|side| channel.open[side.index()]) else {
                continue;
            };
            channel.open[side.index()] = false;
            let other = side.other().index();
            closed.push((ChannelId(id), channel.open[other].then_some(channel.ends[other])));
        }
        for (id, _) in &closed {
            self.finish_if_unused(*id);
        }
        closed.sort_by_key(|(id, _)| id.0);
        closed
    }

    fn finish_if_unused(&mut self, id: ChannelId) {
        if self.table.get(&id.0).is_some_and(|channel| channel.users == 0 && channel.open != [true; 2]) {
            self.table.remove(&id.0);
            self.finished.push(id);
        }
    }

    /// The next channel whose memory is needed no more.
    pub fn poll_finished(&mut self) -> Option<ChannelId> {
        self.finished.pop()
    }
}
