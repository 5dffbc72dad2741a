//! What comes to a queue set, from the engine and by channels, in the order in which it was sent: each may have to wait for the other.
//!
//! What the engine says of a flow comes after what went past it before, so its channel is drained first; what a peer sent after
//! something that it handed to the engine comes after that, so completions are taken first.

use crate::channel::SlotUse;
use crate::leaving::{Attempt, GIVEN_BACK_WITHIN, VACATED_MAX, Yielding};
use crate::queue::Queue;
use crate::settling::Debt;
use crate::slots::SlotId;
use crate::socket::arrivals::Listener;
use crate::socket::direct::Direct;
use crate::socket::shared::is_single;
use crate::socket::stream::{Link, Stream};
use crate::sys;
use std::time::Duration;
use toe_abi::channel::ChannelEntry;
use toe_abi::entry::Completion;
use toe_base::FlowId;

/// Completions, or entries of one channel, that one drain takes before it gives others the lock.
const DRAIN_MAX: usize = 4096;

impl Queue {
    pub(crate) fn drain_completions(&mut self) -> usize {
        let mut taken = 0;
        while taken < DRAIN_MAX {
            match self.io.ring.pop_completion() {
                // An entry of an engine that is newer than this library has nothing to say to it.
                Some(Ok(completion)) => self.apply(completion),
                Some(Err(_)) => {}
                None => break,
            }
            taken += 1;
        }
        if self.io.ring.publish_head() {
            let _ = self.io.session.doorbell().ring_for_head();
        }
        taken
    }

    fn apply(&mut self, completion: Completion) {
        match completion {
            Completion::CommandResult { token, command, errno, id } => {
                self.on_result(token, command, errno, id)
            }
            Completion::Accepted { listener, flow } => self.on_accepted(listener, flow),
            Completion::Connected { flow, errno } => {
                let info = self.flow_info(flow);
                self.with_flow(flow, |_, stream| {
                    stream.read_addrs(&info);
                    stream.on_connected(errno);
                });
            }
            Completion::Data { flow, data } => {
                self.catch_up(flow);
                self.with_flow(flow, |_, s| s.on_data(data));
            }
            Completion::Sent { flow, len } => {
                self.with_flow(flow, |io, stream| stream.on_sent(&mut io.blocks, len));
            }
            Completion::PeerClosed { flow } => {
                self.catch_up(flow);
                self.with_flow(flow, |io, stream| {
                    stream.release_sender(io);
                    stream.on_peer_closed();
                });
            }
            Completion::Reset { flow, errno } => {
                self.catch_up(flow);
                self.with_flow(flow, |io, stream| stream.on_reset(Some(&mut io.blocks), errno));
            }
            Completion::Moved { flow } => self.on_moved(flow),
            Completion::ConnectionsWait { listener } => {
                self.with_listener(listener, Listener::on_connections_wait);
            }
            Completion::NothingWaits { listener, answer } => {
                self.with_listener(listener, |found| found.on_nothing_waits(answer));
            }
            Completion::Urgent { flow, distance } => {
                self.catch_up(flow);
                self.with_flow(flow, |_, stream| stream.on_urgent(distance));
            }
            Completion::WentOut { flow, len } => self.with_flow(flow, |_, s| s.on_went_out(len)),
            Completion::SoftError { flow, errno } => self.with_flow(flow, |_, s| s.on_soft_error(errno)),
            Completion::AnchorFree { anchor } => self.io.session.anchors().put(anchor),
            Completion::ConnectCredit { flow } => self.connect_credit.give(flow),
            Completion::AnchorShared { anchor } => drop(self.io.session.anchors().take_ending(anchor)),
            Completion::OfferChannel { .. }
            | Completion::Direct { .. }
            | Completion::Yield { .. }
            | Completion::ChannelClosed { .. } => self.apply_to_channels(completion),
        }
    }

    /// What the engine says of channels.
    pub(crate) fn apply_to_channels(&mut self, completion: Completion) {
        match completion {
            Completion::OfferChannel { channel } => self.open_channel(channel),
            Completion::Direct { flow, channel, slot, generation } => {
                let Some(at) = self.channel_at(channel) else { return };
                let comes_into_use = self.io.channels[at].end.open();
                self.go_direct(flow, at, slot, generation);
                if comes_into_use && let Some(at) = self.channel_at(channel) {
                    // This completion is dealt with: those that follow may come before an entry that says so.
                    let is_at_channels = std::mem::replace(&mut self.is_at_channels, true);
                    self.drain_channel(at);
                    self.is_at_channels = is_at_channels;
                }
            }
            Completion::Yield { flow } => match self.slot_id_of(flow) {
                Some(slot_id) => self.relinquish(slot_id),
                // The program has let go of it, but its descriptor lives on elsewhere.
                None => self.give_up(flow),
            },
            Completion::ChannelClosed { channel } => {
                if let Some(at) = self.channel_at(channel) {
                    self.drain_channel(at);
                    self.close_channel(at);
                    self.drop_unused_channel(channel);
                }
            }
            _ => {}
        }
    }

    /// Takes what came through the channel that a flow uses, so that what the engine says of it comes after.
    pub(crate) fn catch_up(&mut self, flow: FlowId) {
        let direct = self.slot_id_of(flow).and_then(|slot_id| self.streams.get(slot_id)?.direct.as_ref());
        if let Some(at) = direct.map(|direct| direct.channel).and_then(|id| self.channel_at(id)) {
            self.drain_channel(at);
        }
    }

    pub(crate) fn drain_channel(&mut self, at: usize) -> usize {
        let mut taken = 0;
        while taken < DRAIN_MAX {
            let Some(channel) = self.io.channels.get_mut(at) else { return taken };
            match channel.next_entry() {
                Some(Ok(ChannelEntry::After { debt, .. })) => self.let_engine_be_first(at, debt),
                Some(Ok(entry)) => {
                    channel.leaving.note_life();
                    self.apply_entry(at, entry);
                }
                Some(Err(_)) => self.break_channel(at),
                None => break,
            }
            taken += 1;
        }
        if taken > 0
            && let Some(channel) = self.io.channels.get_mut(at)
        {
            channel.end.publish_head();
        }
        taken
    }

    /// What comes next was sent after something that the other session handed to the engine: that is taken in first.
    fn let_engine_be_first(&mut self, at: usize, debt: Debt) {
        self.io.session.settling().wait_for(debt, self.io.channels[at].peer.uid);
        // Within a drain of completions the rest follows, and must not come before the one that is looked at.
        if std::mem::take(&mut self.is_at_channels) {
            self.drain_completions();
            self.is_at_channels = true;
        }
    }

    fn apply_entry(&mut self, at: usize, entry: ChannelEntry) {
        let channel = &mut self.io.channels[at];
        if channel.is_broken {
            return;
        }
        let (slot, generation) = entry.slot();
        match channel.age(slot, generation) {
            std::cmp::Ordering::Less => return,
            std::cmp::Ordering::Greater => {
                if !channel.keep_early(entry) {
                    self.break_channel(at);
                    return;
                }
                // The other session knows it of the engine, which tells both in the same round: nothing that came later is to be
                // seen before it.
                let settled = self.io.session.settling().now();
                self.let_engine_be_first(at, settled);
                return;
            }
            std::cmp::Ordering::Equal => {}
        }
        let Some(slot_id) = channel.stream_of(slot) else {
            // Its stream has gone to another process since. The peer waits for nobody here: it is to go on by the engine. Nobody
            // waits in a slot of which the engine never told.
            if matches!(entry, ChannelEntry::Want { .. }) && generation != 0 {
                channel.tell_space(slot, generation);
            }
            return;
        };
        let Some(stream) = self.streams.get_mut(slot_id) else { return };
        if !stream.on_channel_entry(channel, entry) {
            self.break_channel(at);
        } else if stream.half_close.is_unwanted() {
            self.reset_stream(slot_id);
        } else if matches!(entry, ChannelEntry::Space { .. }) && stream.send.shortage.starved {
            self.starve(slot_id);
        }
    }

    fn go_direct(&mut self, flow: FlowId, at: usize, slot: u32, generation: u16) {
        let is_free = |stream: &Stream| {
            stream.direct.is_none() && stream.link == Link::Open && !stream.custody.has_let_go()
        };
        let slot_id = self.slot_id_of(flow);
        let found = slot_id.and_then(|slot_id| Some((slot_id, self.streams.get_mut(slot_id)?)));
        let Some((slot_id, stream)) = found.filter(|(_, stream)| is_free(stream)) else {
            // The program has let go of it meanwhile; the engine ends this side when it hears of that.
            let channel = &mut self.io.channels[at];
            channel.forget_slot(slot, generation);
            channel.end.memory().set_done(slot, channel.end.side());
            return;
        };
        let is_single = stream.custody.socket().is_some_and(is_single);
        let direct = Direct::new(&self.io.channels[at], slot, generation, slot_id, &stream.send.memory);
        stream.direct = Some(Box::new(direct));
        let channel = &mut self.io.channels[at];
        // A sender that waited for the engine has room now, and nobody else will tell it.
        let is_short = channel.is_short();
        if is_short {
            stream.send.shortage.retry_soon();
            stream.publish(0);
        } else {
            stream.on_supply();
        }
        channel.users += 1;
        channel.set_use(slot, SlotUse { generation, stream: Some(slot_id), owes_space: false });
        let early: Vec<ChannelEntry> = channel.early.extract_if(.., |entry| entry.slot().0 == slot).collect();
        for entry in early.into_iter().filter(|entry| entry.slot().1 == generation) {
            self.apply_entry(at, entry);
        }
        if self.io.channels[at].is_broken {
            // It goes on through the engine, unless something was sent already that nobody hears.
            if !self.leave(slot_id) {
                self.reset_stream(slot_id);
            }
        } else if !is_single || self.distrusted.contains(self.io.channels[at].peer) {
            // Another process may come to have it, which the channel would not follow.
            self.leave(slot_id);
        }
        if is_short {
            self.starve(slot_id);
        }
    }

    /// Ends a stream's use of its channel: what comes after goes through the engine. `true`: what came before is all
    /// here. Otherwise it will be, or the connection is reset.
    pub(crate) fn leave(&mut self, slot_id: SlotId) -> bool {
        let Some(direct) = self.streams.get_mut(slot_id).and_then(|stream| stream.direct.as_mut()) else {
            return true;
        };
        direct.leave();
        let channel = direct.channel;
        let Some(at) = self.channel_at(channel) else { return true };
        self.drain_channel(at);
        let has_left = self.has_left(slot_id);
        if !has_left {
            self.io.channels[at].leaving.add(slot_id);
        }
        has_left
    }

    /// Gives a stream back to the engine, with what the program has not read; whoever shows the descriptor next gets it.
    /// What it is still owed comes first: then every drain tries again ([`Queue::retry_yields`]), also when the program has
    /// let go of its descriptor meanwhile, because the bytes here are those of whoever has another.
    pub(crate) fn relinquish(&mut self, slot_id: SlotId) {
        let attempt = self.try_to_relinquish(slot_id);
        let is_done = attempt == Attempt::Done;
        let Some(stream) = self.streams.get_mut(slot_id) else { return };
        // One that was listed and is done leaves the list with the next look at it.
        let was_listed = std::mem::replace(&mut stream.custody.yields, !is_done);
        if !is_done && !was_listed {
            let peer = self.channel_of(slot_id).map(|channel| channel.peer);
            let is_distrusted = peer.is_some_and(|peer| self.distrusted.contains(peer));
            let within = if is_distrusted { Duration::ZERO } else { GIVEN_BACK_WITHIN };
            let until = (attempt == Attempt::Early).then(|| sys::now() + within);
            self.yielding.push(Yielding { slot_id, until });
        }
        self.let_go_if_nobodys(slot_id, is_done);
    }

    pub(super) fn try_to_relinquish(&mut self, slot_id: SlotId) -> Attempt {
        let has_left = self.leave(slot_id);
        let Some(stream) = self.streams.get_mut(slot_id) else { return Attempt::Done };
        if !stream.can_be_given_back() {
            let flow = stream.flow;
            self.give_up(flow);
            return Attempt::Done;
        }
        // Bytes that come before some of those in the channel may still be the engine's, and it brings them only while its
        // window has room, which a program that does not read never makes.
        let is_holding = stream.direct.as_ref().is_some_and(|direct| direct.recv.is_holding());
        // No more than its peer can have sent by the engine: beyond, there is no end to it.
        let may_vacate = is_holding && stream.recv.unread() < VACATED_MAX;
        if may_vacate && stream.lenders(&mut self.io, slot_id, |recv, from| recv.vacate_window(from)).is_ok()
        {
            self.io.ring();
        }
        if is_holding || !has_left {
            return Attempt::Early;
        }
        let private = stream.recv.received.private();
        let block = self.io.blocks.take_whole(private);
        let attempt = if block.is_none() && private > 0 {
            Attempt::NoMemory
        } else {
            // Credit that the engine does not know of would bring bytes a second time.
            self.settle_pending();
            self.io.ring();
            self.hand_over(slot_id, block)
        };
        block.into_iter().for_each(|block| self.io.blocks.give_back(block));
        attempt
    }
}
