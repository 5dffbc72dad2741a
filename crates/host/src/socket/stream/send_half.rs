//! The sending half of a stream: the memory that it sends from, and what it lacks.

use super::unsent::Unsent;
use crate::queue::QueueIo;
use crate::send_memory::SendMemory;
use crate::socket::direct::Direct;
use crate::socket::shortage::Shortage;
use crate::socket::slices::{Room, Source};
use crate::socket::zerocopy::ZeroCopy;
use toe_abi::channel::ChannelEntry;
use toe_abi::errno::Errno;
use toe_base::limits::RECEIVE_WINDOW_INITIAL;

/// What goes to the peer.
#[derive(Debug, Default)]
pub struct SendHalf {
    /// Memory that the engine sends from. That of a channel is [`Direct`]'s.
    pub memory: SendMemory,
    /// Bytes that were sent through the engine, ever.
    pub(super) to_engine: u64,
    pub(super) unsent: Unsent,
    /// TCP_CORK: behind all that is sent there is more to come.
    pub corked: bool,
    pub shortage: Shortage,
    pub zerocopy: ZeroCopy,
}

impl SendHalf {
    pub(super) fn has_room(&self, direct: Option<&Direct>) -> bool {
        self.has_memory(direct) && (self.unsent.is_low() || direct.is_some_and(|d| d.send.is_open()))
    }

    pub(super) fn has_memory(&self, direct: Option<&Direct>) -> bool {
        let memory = match direct {
            Some(direct) if direct.send.is_open() => &direct.send.memory,
            _ => &self.memory,
        };
        self.shortage.is_none() && memory.is_writable()
    }

    /// Whether a send needs nothing from the engine. For room in the channel's ring it looks itself.
    pub fn sends_directly(&self, direct: Option<&Direct>) -> bool {
        let direct = direct.filter(|direct| direct.send.is_open());
        !self.shortage.draining && direct.is_some_and(|direct| direct.send.memory.is_writable())
    }

    /// Sends through the channel while that is open: as much as there is room for. Records need no end there, as there are no
    /// segments.
    pub(super) fn send_direct(
        &mut self,
        direct: Option<&mut Direct>,
        io: &mut QueueIo,
        from: &mut impl Source,
        urgent: bool,
    ) -> Result<usize, Errno> {
        let Some(direct) = direct.filter(|direct| direct.send.is_open()) else { return Ok(0) };
        let mut debt = io.session.settling().debt();
        let Some(channel) = io.channel(direct.channel) else { return Ok(0) };
        let (mut sent, was_starved) = (0, self.shortage.starved);
        while from.left() > 0 {
            // One for the bytes, perhaps one for `Begin`, one for `After`, one for `Urgent`, one for `Want`.
            if channel.end.room(5) < 5 {
                // A peer that is gone makes no room: then the rest goes by the engine.
                self.shortage.starved = direct.is_still_sending();
                break;
            }
            let most = from.piece(direct.send.memory.outstanding());
            let Some(mut piece) = direct.reserve(channel, from.left(), most) else {
                self.shortage = Shortage::of_memory(direct.send.memory.outstanding());
                break;
            };
            // What is counted is copied in whole.
            let is_certain = match from.check_next(piece.len as usize) {
                Ok(is_certain) => is_certain,
                Err(_) if sent > 0 => break,
                Err(errno) => return Err(errno),
            };
            if !is_certain {
                let room = Room::Shared(channel.end.memory().region(), piece.offset);
                piece.len = from.put(room, piece.len as usize)? as u32;
                if piece.len == 0 {
                    break;
                }
            }
            // Counted before it is copied, where that can be: the locked addition would wait for the copy to reach the peer's cache.
            if !direct.claim(channel, piece.len, self.to_engine) {
                if !is_certain {
                    from.take_back(piece.len as usize);
                }
                break;
            }
            if is_certain {
                let room = Room::Shared(channel.end.memory().region(), piece.offset);
                from.put(room, piece.len as usize)?;
            }
            sent += piece.len as usize;
            let (slot, generation) = (direct.slot, direct.generation);
            if let Some(debt) = debt.take() {
                channel.push(ChannelEntry::After { slot, generation, debt });
            }
            direct.publish(channel, piece);
            if urgent && !from.follows() {
                channel.push(ChannelEntry::Urgent { slot, generation });
            }
        }
        if direct.send.memory.outstanding() > 0 {
            direct.lend(channel);
        }
        if direct.send.is_open() {
            self.shortage.starved = direct.ask_for_room(channel, was_starved, self.shortage);
        }
        if sent > 0 {
            channel.end.wake_peer();
        }
        Ok(sent)
    }

    /// SO_SNDBUF.
    pub fn set_limit(&mut self, direct: Option<&mut Direct>, bytes: u32) {
        self.memory.set_limit(bytes);
        if let Some(direct) = direct {
            direct.send.memory.set_limit_in_channel(bytes);
        }
    }

    /// Bytes sent and not yet acknowledged. Those in a channel are in the peer's reach as if they had been; beyond what a
    /// peer takes unread of TCP they count until it has read.
    pub fn outstanding(&self, direct: Option<&mut Direct>, io: &mut QueueIo) -> u32 {
        let direct = direct.map_or(0, |direct| {
            if let Some(channel) = io.channel(direct.channel) {
                direct.reclaim(channel);
            }
            direct.send.memory.outstanding().saturating_sub(RECEIVE_WINDOW_INITIAL)
        });
        self.memory.outstanding() + direct
    }

    /// Whether what a starved stream waited for is there: room in the ring that its bytes take, and memory if it has none.
    pub(super) fn has_supply(&self, direct: Option<&mut Direct>, io: &mut QueueIo) -> bool {
        if let Some(direct) = direct.filter(|direct| direct.send.is_open())
            && direct.is_still_sending()
            && let Some(channel) = io.channel(direct.channel)
        {
            return channel.has_supply_for(&direct.send.memory);
        }
        io.has_supply_for(&self.memory)
    }
}
