//! A stream's use of a channel: its bytes go from window to window, without the engine.
//!
//! Owned by [`crate::socket::stream`]; the channel itself is in [`crate::channel`]. Each direction starts when its sender
//! learns of the slot, and ends when anybody freezes it; before and after, the engine carries the stream. What goes
//! through the channel is one piece of the stream in each direction: the bytes that the engine carried before come
//! first ([`toe_abi::channel::ChannelEntry::Begin`] says how many), those that it carries after come last (the channel
//! is drained before an engine's completion for the flow is looked at).

pub mod recv;
pub mod send;

use crate::channel::Channel;
use crate::send_memory::SendMemory;
use crate::slots::SlotId;
use crate::socket::carried::add_carried;
use crate::socket::shortage::Shortage;
use recv::DirectRecv;
use send::DirectSend;
use std::time::Duration;
use toe_abi::channel::{ALL_READ, ChannelEntry, Side};
use toe_abi::entry::MemRange;
use toe_abi::tcp_info::FlowDetail;
use toe_base::ChannelId;
use toe_ring::{ChannelMemory, Region};

/// Pieces that may wait unread. A peer that makes more, smaller ones than a sender would is broken.
pub const PIECES_MAX: usize = 1 << 14;

/// A stream's use of it.
#[derive(Debug)]
pub struct Direct {
    pub channel: ChannelId,
    pub slot: u32,
    pub generation: u16,
    /// Where the stream is in its queue.
    pub slot_id: SlotId,
    memory: ChannelMemory,
    side: Side,
    pub send: DirectSend,
    pub recv: DirectRecv,
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
            send: DirectSend::new(limits.in_channel()),
            recv: DirectRecv::default(),
        }
    }

    /// Where the peer's bytes lie.
    pub fn region(&self) -> &Region {
        self.memory.region()
    }

    /// The same for who would wait for the peer: whether it has been ended is looked for in the memory, and noted.
    pub fn is_still_sending(&mut self) -> bool {
        if self.send.is_open() && self.memory.is_frozen(self.slot, self.side) {
            self.send.end();
        }
        self.send.is_open()
    }

    /// Takes back the memory of what the peer has read.
    pub fn reclaim(&mut self, channel: &mut Channel) {
        self.send.on_read(self.memory.read(self.slot, self.side.other()), &mut channel.blocks);
    }

    /// Notes that the stream has memory of the channel.
    pub fn lend(&mut self, channel: &mut Channel) {
        if !self.send.lent {
            self.send.lent = true;
            channel.lent.push_back(self.slot_id);
        }
    }

    /// Memory for some of `want` bytes.
    pub fn reserve(&mut self, channel: &mut Channel, want: usize, chunk: u32) -> Option<MemRange> {
        // The peer's word is another core's line: it is looked at only when what is at hand does not do.
        if (self.send.memory.at_hand() as usize) < want || (self.send.memory.room() as usize) < want {
            self.reclaim(channel);
        }
        self.send.memory.reserve(&mut channel.blocks, want, chunk)
    }

    /// Says that `bytes` will go through the channel; `after`: bytes that went by the engine before. `false`: the
    /// direction has been ended, and they will not. The ring has room for two entries.
    pub fn claim(&mut self, channel: &mut Channel, bytes: u32, after: u64) -> bool {
        let (slot, generation) = (self.slot, self.generation);
        if self.send.begin() {
            channel.push(ChannelEntry::Begin { slot, generation, after });
        }
        let is_open = self.memory.add_sent(slot, self.side, bytes).is_ok();
        if !is_open {
            self.send.end();
        }
        is_open
    }

    /// Publishes `data`, which was reserved, claimed and filled.
    pub fn publish(&mut self, channel: &mut Channel, data: MemRange) {
        self.send.memory.commit(data.len);
        self.send.tally.count();
        channel.push(ChannelEntry::Data { slot: self.slot, generation: self.generation, data });
    }

    /// After a send, before which it `was_starved`: the peer is asked to tell of room where there is too little for the next one. `true`:
    /// the stream is to be told without its word, when there is room in the ring.
    pub fn ask_for_room(&mut self, channel: &mut Channel, was_starved: bool, now: Shortage) -> bool {
        self.send.memory.look_at_share(&channel.blocks);
        // Who waits for the ring already is told when it has enough: until then each call would look at the peer's word.
        let is_short = now.starved || channel.is_short();
        let lacks_memory = now.draining || !self.send.memory.is_writable();
        // The peer tells when it has read. Where it takes the entries and does not read, the next drains find out. For the ring
        // the first one that finds it short asks: what is left of it is for bytes.
        let asks = lacks_memory || (is_short && !was_starved);
        let is_sent = !asks || self.want(channel, lacks_memory);
        is_short || !is_sent
    }

    /// Asks the peer to tell when there is room, unless it was asked. `false`: the ring is full. `memory`: it is that which is
    /// waited for, not the ring alone.
    pub fn want(&mut self, channel: &mut Channel, memory: bool) -> bool {
        self.send.wait.is_for_memory |= memory;
        let (slot, generation) = (self.slot, self.generation);
        if !self.send.wait.is_asked {
            self.send.wait.is_asked = channel.push(ChannelEntry::Want { slot, generation });
            // It may have read everything and sleep.
            channel.end.wake_peer();
        }
        self.send.wait.is_asked
    }

    /// The peer says that there is room.
    pub fn on_space(&mut self, channel: &mut Channel) {
        if std::mem::take(&mut self.send.wait).is_for_memory {
            self.send.memory.grow();
        }
        self.reclaim(channel);
    }

    /// Adds what went through the channel to what the engine counts of the connection.
    pub fn add_to(&mut self, detail: FlowDetail, now: Duration) -> FlowDetail {
        let (sent, arrived) = (self.send.sent(), self.recv.arrived);
        let mut sum = add_carried(detail, self.send.tally.of(sent), self.recv.tally.of(arrived));
        let sent_ago = self.send.tally.ago_ms(sent, now).unwrap_or(u32::MAX);
        let arrived_ago = self.recv.tally.ago_ms(arrived, now).unwrap_or(u32::MAX);
        sum.last_data_sent = sum.last_data_sent.min(sent_ago);
        sum.last_data_recv = sum.last_data_recv.min(arrived_ago);
        sum.last_ack_recv = sum.last_ack_recv.min(sent_ago);
        sum
    }

    /// The program has read `bytes` more.
    pub fn on_read(&mut self, channel: Option<&mut Channel>, bytes: usize) {
        self.recv.read += bytes as u64;
        self.memory.set_read(self.slot, self.side, self.recv.read);
        if let Some(channel) = channel {
            self.answer_want(channel);
        }
    }

    /// The peer waits for room.
    pub fn on_want(&mut self, channel: &mut Channel) {
        self.recv.on_want();
        self.answer_want(channel);
    }

    /// Tells the peer of room that it waits for, if there is enough.
    pub fn answer_want(&mut self, channel: &mut Channel) {
        if self.recv.take_answer() {
            channel.tell_space(self.slot, self.generation);
        }
    }

    /// Ends both directions. Returns how many bytes will have come through the channel.
    pub fn leave(&mut self) -> u64 {
        self.send.end();
        self.memory.freeze(self.slot, self.side);
        self.recv.end(self.memory.freeze(self.slot, self.side.other()))
    }

    /// The program lets go: ends both directions and says that nothing will be read any more. Returns whether bytes were
    /// left unread.
    pub fn let_go(&mut self) -> bool {
        let unread = self.leave() > self.recv.read;
        self.memory.set_read(self.slot, self.side, ALL_READ);
        unread
    }

    /// This side refers to the slot no more: it may be used for another connection.
    pub fn done(&self) {
        self.memory.set_done(self.slot, self.side);
    }
}
