//! What comes through a channel, put in order with what the engine brings. The channel's bytes are one piece of the stream: those that
//! the engine carried before come first ([`toe_abi::channel::ChannelEntry::Begin`] says how many), those that it carries after come last.

use crate::socket::carried::CarriedCount;
use std::collections::VecDeque;
use toe_abi::entry::MemRange;

/// No `Begin` has come.
const NOT_BEGUN: i64 = i64::MAX;

/// The receiving half of a stream's use of a channel.
#[derive(Debug)]
pub struct DirectRecv {
    /// Bytes whose entries have come.
    pub arrived: u64,
    /// Bytes that the program has read.
    pub read: u64,
    pub(super) tally: CarriedCount,
    /// Bytes that the engine carries before those of the channel.
    after: i64,
    /// What came while the engine still owed some of those.
    held: VecDeque<MemRange>,
    /// The peer waits for this many unread bytes to be half as many.
    wanted_at: Option<u64>,
    /// Bytes that will have come through the channel, once both directions have been ended.
    all: Option<u64>,
}

impl Default for DirectRecv {
    fn default() -> DirectRecv {
        DirectRecv {
            arrived: 0,
            read: 0,
            tally: CarriedCount::default(),
            after: NOT_BEGUN,
            held: VecDeque::new(),
            wanted_at: None,
            all: None,
        }
    }
}

impl DirectRecv {
    /// `Begin`: so many bytes of the engine come before.
    pub fn on_begin(&mut self, after: u64) {
        if self.after == NOT_BEGUN {
            self.after = i64::try_from(after).unwrap_or(NOT_BEGUN);
        }
    }

    /// Bytes came; `engine_arrived` of the engine's were there. Gives back what is in order now.
    pub fn on_data(&mut self, data: MemRange, engine_arrived: i64) -> Option<MemRange> {
        self.arrived += u64::from(data.len);
        self.tally.count();
        if self.held.is_empty() && self.has_all_of_engine(engine_arrived) {
            return Some(data);
        }
        self.held.push_back(data);
        None
    }

    /// The peer says that no more bytes come. Whether all that came before is in order; else the end has its place behind it, as a piece
    /// without bytes.
    pub fn on_end(&mut self, engine_arrived: i64) -> bool {
        let is_next = self.has_all_of_engine(engine_arrived) && self.held.is_empty();
        if !is_next {
            self.held.push_back(MemRange { offset: 0, len: 0 });
        }
        is_next
    }

    /// Whether the engine has brought all of its bytes that come before the channel's, if the peer has said how many those are.
    pub fn has_all_of_engine(&self, engine_arrived: i64) -> bool {
        engine_arrived >= self.after
    }

    /// What has come in order now that `engine_arrived` bytes of the engine's are there; a piece without bytes is the end.
    pub fn next_in_order(&mut self, engine_arrived: i64) -> Option<MemRange> {
        if self.has_all_of_engine(engine_arrived) { self.held.pop_front() } else { None }
    }

    /// How many of `len` bytes that the engine brings, after `engine_arrived`, belong before those of the channel; `None`
    /// when it is all of them or none.
    pub fn split(&self, engine_arrived: i64, len: u32) -> Option<u32> {
        let before = u32::try_from(self.after.saturating_sub(engine_arrived)).ok()?;
        (before > 0 && before < len).then_some(before)
    }

    /// Pieces that are still out of order.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether some of what came is still out of order.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Bytes that come before the end of what is here, beyond those in order.
    pub fn early_bytes(&self, engine_arrived: i64) -> u64 {
        if self.held.is_empty() {
            return 0;
        }
        let held: u64 = self.held.iter().map(|data| u64::from(data.len)).sum();
        // What a peer says comes before may be any number.
        held.saturating_add_signed(self.after.saturating_sub(engine_arrived).max(0))
    }

    /// Bytes that came and that the program has not read.
    pub fn unread(&self) -> u64 {
        self.arrived - self.read
    }

    /// Whether all that will ever come through the channel is here.
    pub fn is_complete(&self) -> bool {
        self.all.is_some_and(|all| self.arrived >= all)
    }

    /// The peer waits for room.
    pub(super) fn on_want(&mut self) {
        self.wanted_at = Some(self.unread());
    }

    /// Whether there is room that the peer waits for. It is to be told, once.
    pub(super) fn take_answer(&mut self) -> bool {
        let has_room = self.wanted_at.is_some_and(|then| self.unread() <= then / 2);
        if has_room {
            self.wanted_at = None;
        }
        has_room
    }

    /// Both directions have been ended: `all` bytes will have come. The first answer counts: the peer could change it.
    pub(super) fn end(&mut self, all: u64) -> u64 {
        *self.all.get_or_insert(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(offset: u64, len: u32) -> MemRange {
        MemRange { offset, len }
    }

    #[test]
    fn what_comes_before_the_engines_bytes_is_held_until_they_are_here() {
        let mut recv = DirectRecv::default();
        assert!(recv.on_data(data(0, 4), 0).is_none(), "the peer has not said how many come before");
        recv.on_begin(10);
        recv.on_begin(0);
        assert_eq!(recv.split(6, 8), Some(4));
        assert_eq!((recv.split(6, 4), recv.split(10, 8)), (None, None));
        assert_eq!((recv.held(), recv.early_bytes(6)), (1, 8));
        assert!(!recv.on_end(10), "the end has its place behind what is held");
        assert!(recv.next_in_order(9).is_none());
        assert_eq!(recv.next_in_order(10), Some(data(0, 4)));
        assert_eq!(recv.next_in_order(10).map(|end| end.len), Some(0));
        assert!(recv.on_end(10) && !recv.is_holding());
        assert_eq!(recv.on_data(data(4, 4), 10), Some(data(4, 4)));
    }

    #[test]
    fn the_peer_is_told_of_room_once_and_when_half_is_read() {
        let mut recv = DirectRecv::default();
        recv.on_data(data(0, 8), 0);
        assert!(!recv.take_answer(), "it has not asked");
        recv.on_want();
        recv.read = 3;
        assert!(!recv.take_answer());
        recv.read = 4;
        assert!(recv.take_answer() && !recv.take_answer());
    }

    #[test]
    fn how_many_come_is_what_was_said_first() {
        let mut recv = DirectRecv::default();
        assert!(!recv.is_complete());
        assert_eq!((recv.end(5), recv.end(9)), (5, 5));
        recv.on_data(data(0, 5), 0);
        assert!(recv.is_complete());
    }
}
