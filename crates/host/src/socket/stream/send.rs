//! Writing: what the program gives goes to the engine, or to the peer's memory.

use super::{Attempt, DRAINED, Link, OUT, Stream};
use crate::queue::QueueIo;
use crate::socket::direct::Direct;
use crate::socket::flags::SendFlags;
use crate::socket::shortage::Shortage;
use crate::socket::slices::{Room, Source};
use toe_abi::channel::ChannelEntry;
use toe_abi::entry::{MemRange, Send};
use toe_abi::errno::Errno;
use toe_base::ChannelId;

impl Stream {
    /// There may be memory or room again. Who waits looks anew; to sets it is an event only where there was none.
    pub fn on_supply(&mut self) {
        self.send.shortage = Shortage::default();
        let had_room = self.custody.socket().is_some_and(|socket| socket.ready_now() & OUT != 0);
        self.publish(match (self.send.has_room(self.direct.as_deref()), had_room) {
            (true, false) => OUT,
            (true, true) => DRAINED,
            (false, _) => 0,
        });
    }

    /// Memory of the channel came back without a word of the peer.
    pub fn on_reclaimed(&mut self) {
        if self.send.shortage.draining
            && self.direct.as_ref().is_some_and(|direct| direct.send.memory.is_writable())
        {
            self.send.shortage.draining = false;
        }
        let has_room = self.send.has_room(self.direct.as_deref());
        let is_event = has_room && self.custody.socket().is_some_and(|socket| socket.ready_now() & OUT == 0);
        self.publish(if is_event { OUT } else { 0 });
    }

    /// The same of bytes as they are.
    pub(super) fn send_bytes(
        &mut self,
        io: &mut QueueIo,
        from: &mut impl Source,
        flags: SendFlags,
    ) -> Result<Attempt, Errno> {
        if self.link != Link::Open && !self.link.waits_for_bytes() {
            return Ok(Attempt::Wait);
        }
        let in_syn = self.link.syn_room();
        let mut sent = self.send.send_direct(self.direct.as_deref_mut(), io, from, flags.urgent)?;
        let through_engine = self.direct.as_ref().is_none_or(|direct| !direct.send.is_open());
        while through_engine
            && from.left() > 0
            && self.send.memory.room() > 0
            && self.send.unsent.has_room_behind(0)
        {
            if io.ring.send_room(1) == 0 {
                self.send.shortage.starved = true;
                break;
            }
            let most = in_syn.unwrap_or_else(|| from.piece(self.send.memory.outstanding()));
            let Some(piece) = self.send.memory.reserve(&mut io.blocks, from.left(), most) else {
                self.send.shortage = Shortage::of_memory(self.send.memory.outstanding());
                break;
            };
            match from.check_next(piece.len as usize) {
                Ok(_) => {}
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(errno),
            }
            let len = from.put(Room::Shared(&io.region, piece.offset), piece.len as usize)? as u32;
            if len == 0 {
                break;
            }
            let data = MemRange { offset: piece.offset, len };
            // "More follows" only when it does: what is held back for it would otherwise wait for room that the same held
            // bytes take up.
            let follows = match from.follows() {
                true if in_syn.is_none() => {
                    self.send.memory.has_room_behind(len) && self.send.unsent.has_room_behind(len)
                }
                _ => flags.more || self.send.corked,
            };
            // A call that only a part is taken of has not come to its last byte.
            let is_last = !from.follows();
            let (urgent, end_of_record) = (flags.urgent && is_last, flags.end_of_record && is_last);
            if !io.send(Send { flow: self.flow, data, more: follows, urgent, end_of_record }) {
                self.send.shortage.starved = true;
                break;
            }
            self.send.memory.commit(len);
            self.send.unsent.given(len);
            self.send.to_engine += u64::from(len);
            sent += len as usize;
            io.ring();
            if self.link.let_syn_go() {
                // The SYN takes these with it; the others wait until the peer has answered.
                break;
            }
        }
        if through_engine {
            self.send.memory.look_at_share(&io.blocks);
            self.send.shortage.starved = self.send.shortage.starved || io.is_short();
        }
        self.publish(0);
        Ok(if sent > 0 { Attempt::Done(sent) } else { Attempt::Wait })
    }

    /// Whether all that was sent has been acknowledged ([`SendHalf::outstanding`]). If not, the stream is told of what changes that.
    pub fn is_acknowledged(&mut self, io: &mut QueueIo) -> bool {
        let is_acknowledged = self.send.outstanding(self.direct.as_deref_mut(), io) == 0;
        if !is_acknowledged
            && self.send.memory.outstanding() == 0
            && let Some(direct) = &mut self.direct
            && let Some(channel) = io.channel(direct.channel)
            && !direct.want(channel, true)
        {
            self.send.shortage.retry_soon();
        }
        is_acknowledged
    }

    /// The channel through which its bytes go; `None`: the engine takes them.
    pub fn channel(&self) -> Option<ChannelId> {
        self.direct.as_ref().filter(|direct| direct.send.is_open()).map(|direct| direct.channel)
    }

    /// The ring that it would use has become short. `true`: it is to be told when there is room again.
    pub fn starve_if_it_has_room(&mut self) -> bool {
        let is_hit = self.link == Link::Open && !self.send.shortage.starved;
        if is_hit {
            self.send.shortage.starved = true;
            self.publish(0);
        }
        is_hit
    }

    /// The peer will say no more of room: what waited for its word goes on.
    pub fn release_sender(&mut self, io: &mut QueueIo) {
        if let Some(direct) = &mut self.direct
            && let Some(channel) = io.channel(direct.channel)
        {
            direct.on_space(channel);
            self.on_supply();
        }
    }

    /// TCP_NOTSENT_LOWAT.
    pub fn set_unsent_low_water(&mut self, bytes: u32) {
        self.send.unsent.set_low_water(bytes);
        self.publish(if self.send.has_room(self.direct.as_deref()) { OUT } else { 0 });
    }

    /// So many bytes have gone out.
    pub fn on_went_out(&mut self, bytes: u32) {
        let had_room = self.send.has_room(self.direct.as_deref());
        self.send.unsent.went_out(bytes);
        self.publish(if !had_room && self.send.has_room(self.direct.as_deref()) { OUT } else { 0 });
    }
}

impl QueueIo {
    /// Whether the end of one that is being closed can be told through a channel: bytes that the engine may still bring would be
    /// answered by a reset.
    pub fn may_tell_close(&self, stream: &Stream) -> bool {
        let has_all = |direct: &Direct| direct.recv.has_all_of_engine(stream.recv.from_engine);
        may_tell_end(stream) && stream.direct.as_deref().is_some_and(has_all)
    }

    /// Tells the stream's peer that there are no more bytes, so that it need not wait for the engine to say so. Of a ring that is full the
    /// engine alone tells.
    pub fn tell_end(&mut self, stream: &mut Stream, abort: bool) {
        let debt = self.session.settling().debt();
        let Some(direct) = &mut stream.direct else { return };
        let (slot, generation) = (direct.slot, direct.generation);
        let Some(channel) = self.channel(direct.channel) else { return };
        if channel.end.room(3) < 3 {
            return;
        }
        if let Some(debt) = debt {
            channel.push(ChannelEntry::After { slot, generation, debt });
        }
        if direct.send.begin() {
            channel.push(ChannelEntry::Begin { slot, generation, after: stream.send.to_engine });
        }
        channel.push(ChannelEntry::End { slot, generation, abort });
        channel.end.wake_peer();
    }
}

/// The peer is asked to tell of memory, if that is what is missing. `false`: the ring is full.
pub(super) fn ask_for_memory(direct: Option<&mut Direct>, io: &mut QueueIo) -> bool {
    let Some(direct) = direct.filter(|direct| direct.send.is_open()) else { return true };
    let Some(channel) = io.channel(direct.channel) else { return true };
    direct.send.memory.is_writable() || direct.want(channel, true)
}

/// Whether the end can be told through a channel: the last bytes have gone there.
pub(super) fn may_tell_end(stream: &Stream) -> bool {
    stream.channel().is_some() && stream.ulp.tls.is_none()
}
