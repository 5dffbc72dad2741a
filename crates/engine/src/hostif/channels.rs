//! Channels between pairs of queue sets and the slots in them, as plain data. Which connections use them is decided in
//! `engine/direct`; their memory is the driver's, who makes and closes it as a [`ChannelRequest`] says.

use crate::hostif::users::UserIdx;
use std::collections::{BTreeMap, VecDeque};
use toe_abi::channel::{SLOTS_MAX, Side};
use toe_base::{ChannelId, QueueSetId, SessionId};

/// Channels that one session may have.
pub const SESSION_CHANNELS_MAX: usize = 32;
/// And so many of them with sessions of one other user: however many he makes, there is room for others.
pub const SHARED_WITH_A_USER_MAX: usize = 24;
/// Retired slots that are looked at for one that both hosts are done with, before a fresh one is taken.
const RETIRED_LOOKED_AT: usize = 4;

/// A queue set that a channel ends at.
pub type End = (SessionId, QueueSetId);

/// What the driver is to do with the memory of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelRequest {
    /// To make it, so that both ends may fetch it; [`Side::Zero`] is the first. [`crate::ControlEvent::ChannelMade`] or
    /// [`crate::ControlEvent::ChannelRefused`] answers.
    Open { channel: ChannelId, ends: [End; 2] },
    /// Both ends have mapped it: nobody is to be able to punch holes into it any more. [`crate::ControlEvent::ChannelSettled`] says when.
    Settle(ChannelId),
    /// The engine needs it no more.
    Close(ChannelId),
}

#[derive(Debug)]
struct Slot {
    /// Which use of the slot this is.
    generation: u16,
    /// The sides whose flows refer to it.
    held: [bool; 2],
}

#[derive(Debug)]
struct Channel {
    ends: [End; 2],
    /// Who is charged for it.
    payer: UserIdx,
    /// The host has mapped it.
    ready: [bool; 2],
    /// Nobody can punch holes into its memory.
    settled: bool,
    /// The session has ended; its number may mean another one by now.
    gone: [bool; 2],
    slots: Vec<Slot>,
    /// Slots that no flow refers to, the longest unused first. A host may still: see [`Channels::take_slot`].
    retired: VecDeque<u32>,
}

/// A channel that a session has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub channel: ChannelId,
    /// The end that is still there.
    pub other: Option<End>,
    /// No flow refers to it: the record is gone, the memory may go, and this user is not charged any more.
    pub gone: Option<UserIdx>,
}

/// All channels of the engine.
#[derive(Debug, Default)]
pub struct Channels {
    table: BTreeMap<ChannelId, Channel>,
    /// Those of two live sessions.
    by_ends: BTreeMap<[End; 2], ChannelId>,
    /// How many each live session has, those included whose other end is gone.
    counts: BTreeMap<SessionId, usize>,
    next: u32,
    requests: VecDeque<ChannelRequest>,
}

impl Channels {
    /// The ends of a channel in their order: [`Side::Zero`] first.
    pub fn in_order(a: End, b: End) -> [End; 2] {
        if a < b { [a, b] } else { [b, a] }
    }

    /// The channel between two live sessions' queue sets.
    pub fn between(&self, ends: [End; 2]) -> Option<ChannelId> {
        self.by_ends.get(&ends).copied()
    }

    /// How many channels a live session has, those included whose other end is gone.
    pub fn count_of(&self, session: SessionId) -> usize {
        self.counts.get(&session).copied().unwrap_or(0)
    }

    /// One more, whose memory the driver is asked for. No channel had its number before.
    pub fn open(&mut self, ends: [End; 2], payer: UserIdx) -> ChannelId {
        let id = ChannelId(self.next);
        self.next = self.next.wrapping_add(1);
        for (session, _) in ends {
            *self.counts.entry(session).or_default() += 1;
        }
        let channel = Channel {
            ends,
            payer,
            ready: [false; 2],
            settled: false,
            gone: [false; 2],
            slots: Vec::new(),
            retired: VecDeque::new(),
        };
        self.table.insert(id, channel);
        self.by_ends.insert(ends, id);
        self.requests.push_back(ChannelRequest::Open { channel: id, ends });
        id
    }

    /// What the driver is to do next.
    pub fn poll(&mut self) -> Option<ChannelRequest> {
        self.requests.pop_front()
    }

    /// Whom a channel joins whose memory is there now. `None`: one of them has left meanwhile.
    pub fn made(&self, id: ChannelId) -> Option<[End; 2]> {
        self.table.get(&id).map(|channel| channel.ends)
    }

    /// There is no memory for it. Who was charged for it.
    pub fn refused(&mut self, id: ChannelId) -> Option<UserIdx> {
        let channel = self.table.remove(&id)?;
        self.by_ends.remove(&channel.ends);
        Some(self.forget(&channel))
    }

    pub fn settled(&mut self, id: ChannelId) {
        self.table.get_mut(&id).into_iter().for_each(|channel| channel.settled = true);
    }

    pub fn is_settled(&self, id: ChannelId) -> bool {
        self.table.get(&id).is_some_and(|channel| channel.settled)
    }

    /// The live sessions that a live session has channels with.
    pub fn peers_of(&self, session: SessionId) -> impl Iterator<Item = SessionId> {
        let pairs = self.by_ends.keys().map(|[(a, _), (b, _)]| (*a, *b));
        pairs
            .filter(move |(a, b)| [*a, *b].contains(&session))
            .map(move |(a, b)| if a == session { b } else { a })
    }

    /// The session has mapped the channel. `false`: it is not an end of it.
    pub fn mark_ready(&mut self, id: ChannelId, session: SessionId) -> bool {
        let Some(channel) = self.table.get_mut(&id) else { return false };
        let Some(side) = channel.live_side(session) else { return false };
        let before = core::mem::replace(&mut channel.ready[side.index()], true);
        if !before && channel.ready == [true; 2] {
            // It is to be over when a connection wants the channel.
            self.requests.push_back(ChannelRequest::Settle(id));
        }
        true
    }

    /// Whether connections may use it: both ends are there and have it mapped.
    pub fn is_ready(&self, id: ChannelId) -> bool {
        self.table.get(&id).is_some_and(|c| c.ready == [true; 2] && c.gone == [false; 2])
    }

    /// A slot for a new connection, held by both sides, and the number of this use. One that was used before only
    /// once both hosts are done with it, as `is_done` says.
    pub fn take_slot(
        &mut self,
        id: ChannelId,
        mut is_done: impl FnMut(u32, Side) -> bool,
    ) -> Option<(u32, u16)> {
        let channel = self.table.get_mut(&id)?;
        let slot = channel.reusable(&mut is_done).or_else(|| {
            let fresh = u32::try_from(channel.slots.len()).ok().filter(|fresh| *fresh < SLOTS_MAX)?;
            channel.slots.push(Slot { generation: 0, held: [false; 2] });
            Some(fresh)
        })?;
        let record = channel.slots.get_mut(slot as usize)?;
        // 0 is that of a slot that was never used.
        record.generation = record.generation.wrapping_add(1).max(1);
        record.held = [true; 2];
        Some((slot, record.generation))
    }

    /// The flow of `side` refers to the slot no more. If the channel is gone with it, who was charged for that.
    pub fn let_go(&mut self, id: ChannelId, slot: u32, side: Side) -> Option<UserIdx> {
        let channel = self.table.get_mut(&id)?;
        if let Some(record) = channel.slots.get_mut(slot as usize).filter(|s| s.held[side.index()]) {
            record.held[side.index()] = false;
            if record.held == [false; 2] {
                channel.retired.push_back(slot);
            }
        }
        self.remove_if_unused(id)
    }

    /// A session ends, and has let go of its slots.
    pub fn leave(&mut self, session: SessionId) -> Vec<Left> {
        let mine = self.table.iter_mut().filter_map(|(id, channel)| {
            let side = channel.live_side(session)?;
            channel.gone[side.index()] = true;
            self.by_ends.remove(&channel.ends);
            let other = side.other();
            Some((*id, (!channel.gone[other.index()]).then_some(channel.ends[other.index()])))
        });
        let mine: Vec<_> = mine.collect();
        self.counts.remove(&session);
        let left = |(channel, other)| Left { channel, other, gone: self.remove_if_unused(channel) };
        mine.into_iter().map(left).collect()
    }

    fn remove_if_unused(&mut self, id: ChannelId) -> Option<UserIdx> {
        self.table
            .get(&id)
            .filter(|channel| channel.gone != [false; 2] && channel.retired.len() == channel.slots.len())?;
        let channel = self.table.remove(&id)?;
        self.requests.push_back(ChannelRequest::Close(id));
        Some(self.forget(&channel))
    }

    fn forget(&mut self, channel: &Channel) -> UserIdx {
        for ((session, _), gone) in channel.ends.iter().zip(channel.gone) {
            if let Some(count) = self.counts.get_mut(session).filter(|_| !gone) {
                *count -= 1;
            }
        }
        channel.payer
    }

    /// Channels there are, dead ones that flows still refer to included.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// What flows must refer to, in order.
    pub fn held(&self) -> Vec<(ChannelId, u32, Side, u16)> {
        let slots = self.table.iter().flat_map(|(id, channel)| {
            channel.slots.iter().enumerate().map(move |(at, slot)| (*id, at as u32, slot))
        });
        let sides = slots.flat_map(|(id, at, slot)| {
            let held = [Side::Zero, Side::One].into_iter().filter(|side| slot.held[side.index()]);
            held.map(move |side| (id, at, side, slot.generation))
        });
        sides.collect()
    }
}

impl Channel {
    /// The side of a session that has not ended.
    fn live_side(&self, session: SessionId) -> Option<Side> {
        let is_it = |side: &Side| self.ends[side.index()].0 == session && !self.gone[side.index()];
        [Side::Zero, Side::One].into_iter().find(is_it)
    }

    /// A retired slot that both hosts are done with; those of a host that takes its time go to the end of the line.
    fn reusable(&mut self, is_done: &mut impl FnMut(u32, Side) -> bool) -> Option<u32> {
        let all_used = self.slots.len() as u32 >= SLOTS_MAX;
        let look_at = if all_used { self.retired.len() } else { RETIRED_LOOKED_AT.min(self.retired.len()) };
        for _ in 0..look_at {
            let slot = self.retired.pop_front()?;
            if is_done(slot, Side::Zero) && is_done(slot, Side::One) {
                return Some(slot);
            }
            self.retired.push_back(slot);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [End; 2] = [(SessionId(1), QueueSetId(0)), (SessionId(2), QueueSetId(3))];

    fn ready() -> (Channels, ChannelId) {
        let mut channels = Channels::default();
        let id = channels.open(ENDS, UserIdx(1));
        assert_eq!(channels.poll(), Some(ChannelRequest::Open { channel: id, ends: ENDS }));
        assert_eq!(channels.made(id), Some(ENDS));
        assert!(channels.mark_ready(id, SessionId(1)) && !channels.is_ready(id));
        assert!(!channels.mark_ready(id, SessionId(3)), "no end of it");
        assert!(channels.mark_ready(id, SessionId(2)) && channels.is_ready(id));
        assert_eq!((channels.poll(), channels.is_settled(id)), (Some(ChannelRequest::Settle(id)), false));
        channels.settled(id);
        assert!(channels.is_settled(id));
        (channels, id)
    }

    #[test]
    fn a_slot_is_used_again_only_when_both_flows_and_both_hosts_are_done() {
        let (mut channels, id) = ready();
        assert_eq!(channels.take_slot(id, |_, _| true), Some((0, 1)));
        channels.let_go(id, 0, Side::One);
        assert_eq!(channels.take_slot(id, |_, _| true), Some((1, 1)), "a flow refers to slot 0");
        channels.let_go(id, 0, Side::Zero);
        channels.let_go(id, 0, Side::Zero);
        assert_eq!(channels.take_slot(id, |_, side| side == Side::One), Some((2, 1)), "a host is not done");
        assert_eq!(channels.take_slot(id, |_, _| true), Some((0, 2)));
        assert_eq!(channels.take_slot(id, |_, _| true), Some((3, 1)), "let go twice, retired once");
    }

    #[test]
    fn no_more_slots_than_there_are() {
        let (mut channels, id) = ready();
        for slot in 0..SLOTS_MAX {
            assert_eq!(channels.take_slot(id, |_, _| true), Some((slot, 1)));
        }
        assert_eq!(channels.take_slot(id, |_, _| true), None);
        for slot in 0..SLOTS_MAX {
            channels.let_go(id, slot, Side::Zero);
            channels.let_go(id, slot, Side::One);
        }
        let last = SLOTS_MAX - 1;
        assert_eq!(channels.take_slot(id, |slot, _| slot == last), Some((last, 2)));
    }

    #[test]
    fn a_channel_outlives_its_sessions_while_flows_refer_to_it() {
        let (mut channels, id) = ready();
        channels.take_slot(id, |_, _| true);
        assert_eq!(channels.let_go(id, 0, Side::Zero), None);
        let left = channels.leave(SessionId(1));
        assert_eq!(left, [Left { channel: id, other: Some(ENDS[1]), gone: None }]);
        assert_eq!(channels.between(ENDS), None, "a session may have the number anew");
        assert!(!channels.mark_ready(id, SessionId(1)));
        assert_eq!((channels.count_of(SessionId(1)), channels.count_of(SessionId(2))), (0, 1));
        assert_eq!(channels.let_go(id, 0, Side::One), Some(UserIdx(1)), "that was the last");
        assert_eq!(ENDS.map(|(session, _)| channels.count_of(session)), [0, 0]);
        assert!(channels.is_empty());
        assert_eq!((channels.poll(), channels.poll()), (Some(ChannelRequest::Close(id)), None));
    }

    #[test]
    fn one_without_memory_was_never_there() {
        let mut channels = Channels::default();
        let id = channels.open(ENDS, UserIdx(1));
        channels.poll();
        assert_eq!((channels.refused(id), channels.refused(id)), (Some(UserIdx(1)), None));
        assert_eq!((channels.between(ENDS), channels.poll(), channels.made(id)), (None, None, None));
        assert_eq!(ENDS.map(|(session, _)| channels.count_of(session)), [0, 0]);
    }
}
