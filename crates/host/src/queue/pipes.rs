//! The channels of a queue set: when they are opened, broken and closed, and what becomes of the streams that use them then. What
//! comes by them is taken in [`super::incoming`].

use crate::channel::{Channel, SPARE_MAX};
use crate::queue::Queue;
use crate::slots::SlotId;
use crate::socket::direct::Direct;
use crate::socket::stream::Stream;
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::ChannelId;

impl Queue {
    pub(crate) fn channel_at(&self, id: ChannelId) -> Option<usize> {
        self.io.channels.iter().position(|channel| channel.id == id)
    }

    pub(super) fn open_channel(&mut self, id: ChannelId) {
        if self.channel_at(id).is_some() || crate::sys::is_filtered() {
            return;
        }
        // Without the channel everything goes on through the engine.
        let Ok(channel) = Channel::open(self.io.session, id) else { return };
        if self.distrusted.contains(channel.peer) {
            self.io.session.own_fds().disown(channel.wake_fd);
            return;
        }
        self.io.channels.push(Box::new(channel));
        self.io.command(Command::ChannelReady { channel: id });
    }

    /// The other session is gone, and the engine has ended its directions: what waited for its word goes on.
    pub(super) fn close_channel(&mut self, at: usize) {
        let channel = &mut self.io.channels[at];
        channel.closed = true;
        for used in channel.slots.clone() {
            let Some(stream) = used.stream.and_then(|slot_id| self.streams.get_mut(slot_id)) else {
                continue;
            };
            if let Some(direct) = stream.direct.as_mut() {
                direct.on_space(channel);
            }
            stream.on_supply();
        }
    }

    pub(super) fn drop_unused_channel(&mut self, id: ChannelId) {
        let Some(at) = self.channel_at(id) else { return };
        let channel = &self.io.channels[at];
        // What came early belongs to connections that the engine is about to tell of.
        if channel.closed && channel.users == 0 && channel.early.is_empty() && !self.io.session.is_foreign() {
            self.io.session.own_fds().disown(channel.wake_fd);
            self.io.channels.swap_remove(at);
        }
    }

    /// The stream is gone, and with it all that it had in the channel.
    pub(crate) fn end_direct(&mut self, direct: &mut Direct) {
        let Some(at) = self.channel_at(direct.channel) else { return };
        let channel = &mut self.io.channels[at];
        direct.send.memory.release_all(&mut channel.blocks);
        if !self.io.session.is_foreign() {
            direct.leave();
            direct.done();
        }
        channel.forget_slot(direct.slot, direct.generation);
        channel.users -= 1;
        self.drop_unused_channel(direct.channel);
    }

    /// The stream in `slot_id` has to wait for a ring, perhaps: then so have the others that use it, and are not told that they are writable.
    /// Unless they are more than the ring has spare entries: all would be woken for a few.
    pub(crate) fn starve_siblings(&mut self, slot_id: SlotId) {
        let Some(id) = self.streams.get(slot_id).map(Stream::channel) else { return };
        let mut siblings: Vec<SlotId> = if let Some(id) = id {
            let Some(channel) = self.io.channel(id) else { return };
            if channel.is_short() { channel.streams().collect() } else { Vec::new() }
        } else if self.io.is_short() {
            self.streams.iter().map(|(slot_id, _)| slot_id).collect()
        } else {
            Vec::new()
        };
        if siblings.len() > SPARE_MAX as usize {
            return;
        }
        siblings.retain(|slot_id| match self.streams.get_mut(*slot_id) {
            Some(stream) => stream.channel() == id && stream.starve_if_it_has_room(),
            None => false,
        });
        siblings.into_iter().for_each(|slot_id| _ = self.starve(slot_id));
    }

    /// The other end broke the contract: all connections over the channel are reset, and nothing more is taken from it.
    pub(super) fn break_channel(&mut self, at: usize) {
        let channel = &mut self.io.channels[at];
        channel.is_broken = true;
        channel.owing.clear();
        self.reset_channel(at);
    }

    /// All connections over the channel are reset. Of others what comes is heard: the other end may have been stopped for a while.
    pub(crate) fn reset_channel(&mut self, at: usize) {
        let channel = &mut self.io.channels[at];
        channel.early.clear();
        let streams: Vec<SlotId> = channel.slots.iter().filter_map(|used| used.stream).collect();
        streams.into_iter().for_each(|slot_id| self.reset_stream(slot_id));
    }

    /// Ends a connection whose bytes are lost.
    pub(crate) fn reset_stream(&mut self, slot_id: SlotId) {
        let Some(stream) = self.streams.get_mut(slot_id) else { return };
        if let Some(direct) = &mut stream.direct {
            direct.let_go();
        }
        if !stream.link.is_closed() && stream.custody.let_go() {
            let flow = stream.flow;
            stream.on_reset(Some(&mut self.io.blocks), Errno::ECONNRESET);
            self.io.command(Command::Close { flow, abort: true });
        }
    }

    /// Sends what found no room in the channels' rings.
    pub(crate) fn retry_channels(&mut self) {
        self.io.channels.iter_mut().for_each(|channel| channel.tell_pending_space());
    }
}
