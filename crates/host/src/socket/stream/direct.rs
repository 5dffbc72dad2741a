//! What comes for a stream by its channel.

use crate::channel::Channel;
use crate::send_memory::SEND_LIMIT_MAX;
use crate::socket::direct::PIECES_MAX;
use crate::socket::received::Source;
use crate::socket::stream::{IN, Link, Stream};
use toe_abi::channel::ChannelEntry;
use toe_abi::entry::MemRange;
use toe_abi::errno::Errno;

impl Stream {
    /// What the peer put into the channel for this stream. `false`: it broke the contract.
    pub(crate) fn on_channel_entry(&mut self, channel: &mut Channel, entry: ChannelEntry) -> bool {
        let pieces = self.recv.received.pieces();
        let Some(direct) = &mut self.direct else { return true };
        match entry {
            // For all connections: see `let_engine_be_first`.
            ChannelEntry::After { .. } => true,
            ChannelEntry::Begin { after, .. } => {
                direct.recv.on_begin(after);
                true
            }
            ChannelEntry::Data { data, .. } => {
                let is_sane = channel.end.is_peer_data(data)
                    && direct.recv.unread() <= u64::from(SEND_LIMIT_MAX)
                    && pieces + direct.recv.held() < PIECES_MAX;
                if is_sane {
                    self.on_direct_data(data);
                }
                is_sane
            }
            ChannelEntry::Urgent { .. } => {
                self.on_direct_urgent();
                true
            }
            ChannelEntry::End { abort, .. } => {
                let is_sane = pieces + direct.recv.held() < PIECES_MAX;
                crate::socket::stream::direct::on_peer_end(self, abort && is_sane);
                is_sane
            }
            ChannelEntry::Want { .. } => {
                direct.on_want(channel);
                true
            }
            ChannelEntry::Space { .. } => {
                direct.on_space(channel);
                // What was sent after the peer was asked may still be too much: it is asked again, when the ring has no room
                // for that with the next drains.
                let is_settled = direct.send.memory.is_writable() || direct.want(channel, true);
                if is_settled && !channel.is_short() {
                    self.on_supply();
                } else {
                    self.send.shortage.retry_soon();
                    self.publish(0);
                }
                true
            }
        }
    }

    /// Bytes came through the channel.
    pub fn on_direct_data(&mut self, data: MemRange) {
        let Some(direct) = &mut self.direct else { return };
        let in_order = direct.recv.on_data(data, self.recv.from_engine);
        if let Some(data) = in_order.filter(|_| !self.custody.has_let_go()) {
            self.half_close.on_direct_data();
            self.recv.received.append(Source::Channel, data);
            self.publish(if self.recv.unread() >= self.recv.low_water { IN } else { 0 });
        }
    }
}

/// The peer has told its end. The engine will, too.
pub fn on_peer_end(stream: &mut Stream, abort: bool) {
    let is_heard = stream.link == Link::Open && !stream.custody.has_let_go();
    let Some(direct) = stream.direct.as_mut().filter(|_| is_heard) else { return };
    if !abort {
        if direct.recv.on_end(stream.recv.from_engine) {
            stream.on_peer_closed();
        }
    } else if stream.send.memory.outstanding() == 0 {
        // Else the engine has memory of this side, and is the one to give it back.
        stream.on_reset(None, Errno::ECONNRESET);
    }
}
