//! A stream's use of a channel: its bytes go from window to window, without the engine.
//!
//! Owned by [`crate::socket::stream`]; the channel itself is in [`crate::channel`]. Each direction starts when its sender
//! learns of the slot, and ends when anybody freezes it; before and after, the engine carries the stream. What goes
//! through the channel is one piece of the stream in each direction: the bytes that the engine carried before come
//! first ([`toe_abi::channel::ChannelEntry::Begin`] says how many), those that it carries after come last (the channel
//! is drained before an engine's completion for the flow is looked at).

use crate::channel::Channel;
use crate::send_memory::SendMemory;
use crate::slots::SlotId;
use crate::socket::carried::{Carried, LastSeen, add_carried};
use crate::socket::shortage::Shortage;
use std::collections::VecDeque;
use std::time::Duration;
use toe_abi::channel::{ALL_READ, ChannelEntry, Side};
use toe_abi::entry::MemRange;
use toe_abi::tcp_info::FlowDetail;
use toe_base::ChannelId;
use toe_ring::{ChannelMemory, Region};

/// Pieces that may wait unread. A peer that makes more, smaller ones than a sender would is broken.
pub const PIECES_MAX: usize = 1 << 14;
/// No `Begin` has come.
const NOT_BEGUN: i64 = i64::MAX;

/// The bytes of one direction that are in the channel, or were.
#[derive(Debug)]
pub struct Direct {
    pub channel: ChannelId,
    pub slot: u32,
    pub generation: u16,
    /// Where the stream is in its queue.
    pub slot_id: SlotId,
    memory: ChannelMemory,
    side: Side,
    /// Memory of the channel that holds what the peer has not read.
    pub send: SendMemory,
    /// Bytes that were sent and read by the peer.
    released: u64,
    sending: bool,
    pub(super) begun: bool,
    /// The peer knows that this side waits for room.
    want_sent: bool,
    /// It is for memory that it waits.
    wants_memory: bool,
    /// In the channel's list of streams with memory lent.
    pub lent: bool,
    /// Bytes whose entries have come.
    pub arrived: u64,
    /// Bytes that the program has read.
    pub read: u64,
    /// Entries with data that went and came, and when that was last seen to change: for TCP_INFO.
    pieces: [u32; 2],
    last_seen: [LastSeen; 2],
    /// Bytes that the engine carries before those of the channel.
    after: i64,
    /// What came while the engine still owed some of those.
    held: VecDeque<MemRange>,
    /// The peer waits for this many unread bytes to be half as many.
    wanted_at: Option<u64>,
    /// Bytes that will have come through the channel, once both directions have been ended.
    all: Option<u64>,
}

impl Direct {
    /// `limits`: the memory that the stream had for the engine, for SO_SNDBUF.
    pub fn new(
        channel: &Channel,
        slot: u32,
        generation: u16,
        slot_id: SlotId,
        limits: &SendMemory,
    ) -> Direct {
        Direct {
            channel: channel.id,
            slot,
            generation,
            slot_id,
            memory: channel.end.memory().clone(),
            side: channel.end.side(),
            send: limits.in_channel(),
            released: 0,
            sending: true,
            begun: false,
            want_sent: false,
            wants_memory: false,
            lent: false,
            arrived: 0,
            read: 0,
            pieces: [0; 2],
            last_seen: Default::default(),
            after: NOT_BEGUN,
            held: VecDeque::new(),
            wanted_at: None,
            all: None,
        }
    }

    /// Where the peer's bytes lie.
    pub fn region(&self) -> &Region {
        self.memory.region()
    }

    /// Whether bytes of the program go through the channel.
    pub fn is_sending(&self) -> bool {
        self.sending
    }

    /// The same for who would wait for the peer: whether it has been ended is looked for in the memory, and noted.
    pub fn is_still_sending(&mut self) -> bool {
        self.sending = self.sending && !self.memory.is_frozen(self.slot, self.side);
        self.sending
    }

    /// Takes back the memory of what the peer has read.
    pub fn reclaim(&mut self, channel: &mut Channel) {
        let read = self.memory.read(self.slot, self.side.other());
        let more = read.saturating_sub(self.released).min(u64::from(self.send.outstanding()));
        if more > 0 {
            self.released += more;
            self.send.release(&mut channel.blocks, more as u32);
        }
    }

    /// Memory for some of `want` bytes.
    pub fn reserve(&mut self, channel: &mut Channel, want: usize, chunk: u32) -> Option<MemRange> {
        // The peer's word is another core's line: it is looked at only when what is at hand does not do.
        if (self.send.at_hand() as usize) < want || (self.send.room() as usize) < want {
            self.reclaim(channel);
        }
        self.send.reserve(&mut channel.blocks, want, chunk)
    }

    /// Says that `bytes` will go through the channel; `after`: bytes that went by the engine before. `false`: the
    /// direction has been ended, and they will not. The ring has room for two entries.
    pub fn claim(&mut self, channel: &mut Channel, bytes: u32, after: u64) -> bool {
        let (slot, generation) = (self.slot, self.generation);
        if !self.begun {
            self.begun = true;
            channel.push(ChannelEntry::Begin { slot, generation, after });
        }
        self.sending = self.memory.add_sent(slot, self.side, bytes).is_ok();
        self.sending
    }

    /// Publishes `data`, which was reserved, claimed and filled.
    pub fn publish(&mut self, channel: &mut Channel, data: MemRange) {
        self.send.commit(data.len);
        self.pieces[0] = self.pieces[0].wrapping_add(1);
        channel.push(ChannelEntry::Data { slot: self.slot, generation: self.generation, data });
    }

    /// After a send, before which it `was_starved`: the peer is asked to tell of room where there is too little for the next one. `true`:
    /// the stream is to be told without its word, when there is room in the ring.
    pub fn ask_for_room(&mut self, channel: &mut Channel, was_starved: bool, now: Shortage) -> bool {
        self.send.look_at_share(&channel.blocks);
        // Who waits for the ring already is told when it has enough: until then each call would look at the peer's word.
        let is_short = now.starved || channel.is_short();
        let lacks_memory = now.draining || !self.send.is_writable();
        // The peer tells when it has read. Where it takes the entries and does not read, the next drains find out. For the ring
        // the first one that finds it short asks: what is left of it is for bytes.
        let asks = lacks_memory || (is_short && !was_starved);
        let is_sent = !asks || self.want(channel, lacks_memory);
        is_short || !is_sent
    }

    /// Asks the peer to tell when there is room, unless it was asked. `false`: the ring is full. `memory`: it is that which is
    /// waited for, not the ring alone.
    pub fn want(&mut self, channel: &mut Channel, memory: bool) -> bool {
        self.wants_memory |= memory;
        let (slot, generation) = (self.slot, self.generation);
        if !self.want_sent {
            self.want_sent = channel.push(ChannelEntry::Want { slot, generation });
            // It may have read everything and sleep.
            channel.end.wake_peer();
        }
        self.want_sent
    }

    /// The peer says that there is room.
    pub fn on_space(&mut self, channel: &mut Channel) {
        self.want_sent = false;
        if std::mem::take(&mut self.wants_memory) {
            self.send.grow();
        }
        self.reclaim(channel);
    }

    /// `Begin`: so many bytes of the engine come before.
    pub fn on_begin(&mut self, after: u64) {
        if self.after == NOT_BEGUN {
            self.after = i64::try_from(after).unwrap_or(NOT_BEGUN);
        }
    }

    /// Bytes came; `engine_arrived` of the engine's were there. Gives back what is in order now.
    pub fn on_data(&mut self, data: MemRange, engine_arrived: i64) -> Option<MemRange> {
        self.arrived += u64::from(data.len);
        self.pieces[1] = self.pieces[1].wrapping_add(1);
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

    /// Adds what went through the channel to what the engine counts of the connection.
    pub fn add_to(&mut self, detail: FlowDetail, now: Duration) -> FlowDetail {
        let sent = self.released + u64::from(self.send.outstanding());
        let [out, into] = self.pieces;
        let out = Carried { bytes: sent, pieces: out };
        let mut sum = add_carried(detail, out, Carried { bytes: self.arrived, pieces: into });
        let [sent_seen, arrived_seen] = &mut self.last_seen;
        let sent_ago = sent_seen.ago_ms(sent, now).unwrap_or(u32::MAX);
        let arrived_ago = arrived_seen.ago_ms(self.arrived, now).unwrap_or(u32::MAX);
        sum.last_data_sent = sum.last_data_sent.min(sent_ago);
        sum.last_data_recv = sum.last_data_recv.min(arrived_ago);
        sum.last_ack_recv = sum.last_ack_recv.min(sent_ago);
        sum
    }

    /// The program has read `bytes` more.
    pub fn on_read(&mut self, channel: Option<&mut Channel>, bytes: usize) {
        self.read += bytes as u64;
        self.memory.set_read(self.slot, self.side, self.read);
        if let Some(channel) = channel {
            self.answer_want(channel);
        }
    }

    /// The peer waits for room.
    pub fn on_want(&mut self, channel: &mut Channel) {
        self.wanted_at = Some(self.unread());
        self.answer_want(channel);
    }

    /// Tells the peer of room that it waits for, if there is enough.
    pub fn answer_want(&mut self, channel: &mut Channel) {
        let (slot, generation) = (self.slot, self.generation);
        if self.wanted_at.is_none_or(|then| self.unread() > then / 2) {
            return;
        }
        self.wanted_at = None;
        channel.tell_space(slot, generation);
    }

    /// Ends both directions. Returns how many bytes will have come through the channel.
    pub fn leave(&mut self) -> u64 {
        self.sending = false;
        self.memory.freeze(self.slot, self.side);
        let all = self.memory.freeze(self.slot, self.side.other());
        // The first answer counts: the peer could change it.
        *self.all.get_or_insert(all)
    }

    /// Whether all that will ever come through the channel is here.
    pub fn is_complete(&self) -> bool {
        self.all.is_some_and(|all| self.arrived >= all)
    }

    /// The program lets go: ends both directions and says that nothing will be read any more. Returns whether bytes were
    /// left unread.
    pub fn let_go(&mut self) -> bool {
        let unread = self.leave() > self.read;
        self.memory.set_read(self.slot, self.side, ALL_READ);
        unread
    }

    /// This side refers to the slot no more: it may be used for another connection.
    pub fn done(&self) {
        self.memory.set_done(self.slot, self.side);
    }
}
