//! Connections between two sessions of this engine leave it: their bytes go through a channel, from program to
//! program (decision 0010). Here is decided which and when, and what happens to that when a flow ends or moves.
//!
//! The two records stay established and carry no more data; FIN, RST and timers are theirs as before.

use super::{Edit, Engine};
use crate::counter::{Counter, Counters};
use crate::flow::carrier::{Carrier, Direct, Earning};
use crate::flow::record::Flow;
use crate::flow::tenancy::{Notice, TenancyEvent};
use crate::hostif::channels::{Channels, End, SESSION_CHANNELS_MAX, SHARED_WITH_A_USER_MAX};
use crate::hostif::sessions::Sessions;
use crate::hostif::slots;
use crate::hostif::users::{Resource, UserIdx};
use crate::parts::{FlowMemory, HostInterface, Records, TcpPlanes};
use crate::store::FlowStore;
use crate::work::{CaptureRule, Owner, Path};
use toe_abi::attach::Unread;
use toe_abi::channel::Side;
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_base::{ChannelId, FlowId, FlowIdx, SessionId};
use toe_tcp::memory::HostMemory;
use toe_tcp::receive_buffer::Destination;
use toe_tcp::record::PeerFin;
use toe_tcp::send_queue::Extent;
use toe_tcp::state::TcpState;

/// Bytes that a session may give back unread with a flow: several windows.
const GIVEN_BACK_MAX: u32 = toe_base::limits::WINDOW_MAX;

/// Bytes of one direction that may be the engine's still when a channel begins. A channel holds all that [`GIVEN_BACK_MAX`] leaves beside
/// a near window, and until both hosts have heard of it some more come by the engine.
pub(super) const UNDER_WAY_MAX: u32 = toe_base::limits::RECEIVE_WINDOW_NEAR / 4 * 3;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Direct,
    /// The hosts have been offered a channel and have not both taken it yet.
    NotReady,
    /// They have, and it is about to be there, or too much is under way by the engine still.
    Settling,
    Refused,
}

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// A segment with payload went from one local flow to another. A connection that lasts is worth a channel.
    pub(super) fn local_unit_arrived(&mut self, idx: Edit<'_>) {
        if !self.direct {
            return;
        }
        let conn = &mut self.records.flows.get_mut(idx).conn;
        if conn.path != Path::Local || !conn.carrier.earning().is_some_and(Earning::unit) {
            return;
        }
        let key = conn.key;
        // What somebody watches stays where it can be seen.
        let watched = self.records.hostif.capture.is_on() && self.records.is_watched(&key);
        let attempt = if watched { Attempt::NotReady } else { self.go_direct(*idx) };
        let Some(earning) = self.records.flows.get_mut(idx).conn.carrier.earning() else { return };
        match attempt {
            Attempt::Direct => {}
            Attempt::NotReady => earning.not_ready(),
            Attempt::Settling => earning.next_unit(),
            Attempt::Refused => earning.refused(),
        }
    }

    fn go_direct(&mut self, idx: FlowIdx) -> Attempt {
        let key = self.records.flows.get(idx).conn.key;
        let Some(peer) = self.records.flows.find(&key.reversed()).filter(|peer| *peer != idx) else {
            return Attempt::Refused;
        };
        let (Some(own), Some(other)) = (
            self.records.hostif.direct_end(self.records.flows, idx),
            self.records.hostif.direct_end(self.records.flows, peer),
        ) else {
            return Attempt::Refused;
        };
        if !self.records.hostif.trust_each_other(own.0, other.0) {
            return Attempt::Refused;
        }
        let ends = Channels::in_order(own, other);
        let Some(channel) = self.records.hostif.channels.between(ends) else {
            return self.records.hostif.want_channel(ends);
        };
        if !self.records.hostif.channels.is_ready(channel) {
            return Attempt::NotReady;
        }
        if !self.records.hostif.channels.is_settled(channel) {
            return Attempt::Settling;
        }
        if under_way(self.records.flows, idx, peer).max(under_way(self.records.flows, peer, idx))
            > UNDER_WAY_MAX
        {
            // With the next unit there may be less.
            return Attempt::Settling;
        }
        let is_done = |slot, side| slots::is_done(self.host, (channel, slot), side);
        let taken = self.records.hostif.channels.take_slot(channel, is_done);
        let Some((slot, generation)) = taken else { return Attempt::Refused };
        slots::reset(self.host, (channel, slot));
        for (flow, end) in [(idx, own), (peer, other)] {
            let side = if end == ends[0] { Side::Zero } else { Side::One };
            self.edit(flow, |planes, idx| {
                let flow = planes.records.flows.get_mut(idx);
                flow.conn.carrier = Carrier::Channel(Direct { channel, slot, side, generation });
                flow.report.direct = true;
                // What follows by the channel never joins what is kept for it, and is not read before it.
                flow.tcb.release_corked();
            });
        }
        self.records.counters.add(Counter::DirectConnections);
        Attempt::Direct
    }
}

impl Records<'_> {
    /// [`crate::ControlEvent::Captures`].
    pub(super) fn set_captures(&mut self, rules: Box<[CaptureRule]>) {
        let before = core::mem::replace(&mut self.hostif.capture.rules, rules);
        if self.hostif.capture.rules.len() < before.len() {
            // One that ends wants nothing new.
            return;
        }
        let direct: Vec<FlowIdx> = self
            .flows
            .indices()
            .filter(|idx| self.flows.get(*idx).conn.carrier.channel().is_some())
            .collect();
        for idx in direct {
            let key = self.flows.get(idx).conn.key;
            let peer = self.flows.find(&key.reversed());
            // One end that gives it up is enough.
            let asked = peer.is_some_and(|peer| self.flows.get(peer).conn.tenancy.notice() == Notice::Yield);
            if !asked && self.is_watched(&key) {
                self.edit(idx, |records, idx| records.memory().ask_to_yield(idx));
            }
        }
    }
}

impl FlowMemory<'_> {
    /// Another session shows the descriptor of a flow that uses a channel. What has come through that only its owner
    /// knows, so the owner is asked to give the flow up.
    pub(super) fn ask_to_yield(&mut self, idx: Edit<'_>) {
        let flow = self.flows.get_mut(idx);
        let owner = flow.conn.tenancy.owner();
        if flow.conn.tenancy.notice() != Notice::Yield {
            flow.conn.tenancy.apply(TenancyEvent::Notified(Notice::Yield));
            self.counters.add(Counter::Yields);
            self.hostif.answer(owner.session, owner.queue_set, Completion::Yield { flow: owner.flow_id });
        }
    }
}

/// Bytes from one end to the other that the receiving program has not read yet.
fn under_way(flows: &FlowStore, from: FlowIdx, to: FlowIdx) -> u32 {
    let (from, to) = (&flows.get(from).tcb, &flows.get(to).tcb);
    from.data_una().plus(from.sending.queue.len()).distance_from(to.receiving.buffer.consumed)
}

/// Which connection a session gives back, and what goes along to the engine. EINVAL: it has no such flow, or those bytes are not its own.
pub(super) fn given_to_engine(
    engine: &Engine,
    session: SessionId,
    id: FlowId,
    given: Unread,
) -> Result<(FlowIdx, Destination), Errno> {
    let record = engine.hostif.sessions.get(session).ok_or(Errno::EINVAL)?;
    let (idx, layout) = (record.flows.get(id).ok_or(Errno::EINVAL)?, record.layout);
    let data = given.data;
    let lies_there =
        data.len == 0 || data.lies_in(layout.send_offset(), layout.send_len) && data.len <= GIVEN_BACK_MAX;
    let Flow { conn, tcb, .. } = engine.flows.get(idx);
    if !lies_there
        || given.credit > data.len.min(tcb.receiving.buffer.announced())
        || conn.tenancy.hold().is_none()
    {
        return Err(Errno::EINVAL);
    }
    let unread = (data.len > 0).then_some(Extent { session, range: data });
    Ok((idx, Destination { session: SessionId(0), unread, credit: given.credit }))
}

/// [`crate::Change::Relinquish`].
pub(super) fn give_back<H: HostMemory>(
    engine: &mut Engine,
    session: SessionId,
    id: FlowId,
    given: Unread,
    host: &mut H,
) -> Result<(), Errno> {
    let (idx, staging) = given_to_engine(engine, session, id, given)?;
    let conn = &engine.flows.get(idx).conn;
    let owner = conn.tenancy.hold().ok_or(Errno::EINVAL)?.owner;
    // A host that has not looked at its completions does not know of the channel yet, and of what came through it.
    let is_left = |of: Direct| slots::is_left(host, (of.channel, of.slot), of.side, given.by_pipe);
    let knows = conn.carrier.channel().is_none_or(is_left);
    if !knows || engine.hostif.sessions.answers_are_full(session, owner.queue_set) {
        return Err(Errno::EAGAIN);
    }
    engine.edit(idx, |engine, idx| {
        let has_room = engine.records().memory().stage_send_data(idx, session, host)
            && engine.hostif.move_options(&mut engine.flows, idx, Owner::default(), host);
        if !has_room || !engine.records().memory().move_receive_memory(idx, session, staging, host) {
            engine.hostif.move_options(&mut engine.flows, idx, owner, host);
            return Err(Errno::ENOMEM);
        }
        // What came through it and was not read has been given back.
        engine.hostif.let_go_of_channel(&mut engine.flows, idx, host);
        engine.hostif.return_send_memory(&engine.flows, *idx);
        engine.hostif.disown(&mut engine.flows, idx);
        engine.flows.get_mut(idx).conn.carrier.stay_with_engine();
        Ok(())
    })
}

/// A connection of which neither side has begun to end, in the hands of a program.
fn may_be_direct(flow: &Flow) -> bool {
    let Flow { conn, tcb, .. } = flow;
    tcb.state == TcpState::Established
        && conn.path == Path::Local
        && conn.tenancy.notice() == Notice::None
        && conn.tenancy.hold().is_some()
        && matches!(conn.carrier, Carrier::Engine(_))
        && !tcb.orphaned
        && !tcb.snd.fin.is_queued()
        && tcb.rcv.fin == PeerFin::None
}

/// Whether one of two sessions of different users has as many channels with the other's as it may.
fn is_shared_out(channels: &Channels, sessions: &Sessions, ends: [End; 2]) -> bool {
    let uid = |session: SessionId| sessions.get(session).map(|session| session.cred.uid);
    let has_many = |session: SessionId, other: SessionId| {
        let is_others = |peer: &SessionId| uid(*peer) == uid(other);
        channels.count_of(session) >= SHARED_WITH_A_USER_MAX
            && channels.peers_of(session).filter(is_others).count() >= SHARED_WITH_A_USER_MAX
    };
    let [a, b] = ends.map(|(session, _)| session);
    uid(a) != uid(b) && (has_many(a, b) || has_many(b, a))
}

impl HostInterface {
    /// Where a flow's bytes would leave or enter the engine, if it may have a channel at all.
    fn direct_end(&self, flows: &FlowStore, idx: FlowIdx) -> Option<End> {
        let flow = flows.get(idx);
        let owner = flow.conn.tenancy.owner();
        let open = !owner.is_nobody() && self.sessions.get(owner.session).is_some_and(|s| s.is_open());
        // Another process that has a copy may want to go on, and its owner may be at something else for long.
        let is_alone = flow.conn.tenancy.lifetime().is_some_and(|lifetime| self.anchors.is_single(lifetime));
        (open && is_alone && may_be_direct(flow)).then_some((owner.session, owner.queue_set))
    }

    /// Tells an owner that is about to lose the flow of the memory that is its own again.
    pub(super) fn return_send_memory(&mut self, flows: &FlowStore, idx: FlowIdx) {
        let flow = flows.get(idx);
        let owner = flow.conn.tenancy.owner();
        let len = flow.tcb.status.events.sent.saturating_add(flow.tcb.status.events.sent_behind);
        if len > 0 {
            self.answer(owner.session, owner.queue_set, Completion::Sent { flow: owner.flow_id, len });
        }
    }

    /// The flow uses its channel no more. Returns whether bytes that its program has not read are lost with it.
    pub(super) fn let_go_of_channel<H: HostMemory>(
        &mut self,
        flows: &mut FlowStore,
        idx: Edit<'_>,
        host: &mut H,
    ) -> bool {
        let flow = flows.get_mut(idx);
        let Some(Direct { channel, slot, side, .. }) = flow.conn.carrier.leave_channel() else {
            return false;
        };
        if flow.conn.tenancy.notice() == Notice::Yield {
            flow.conn.tenancy.apply(TenancyEvent::Notified(Notice::None));
        }
        let untold = core::mem::take(&mut flow.report.direct);
        let owner = flow.conn.tenancy.owner().session;
        // A host that lives and knows of the slot says itself when it looks at it no more.
        let gone = untold || !self.sessions.get(owner).is_some_and(|session| session.is_open());
        let unread = slots::end(host, (channel, slot), side, gone);
        let payer = self.channels.let_go(channel, slot, side);
        self.give(payer, Resource::Channels);
        unread
    }

    /// Two ends of a channel write into one memory, so they must be of one user, or one of root's.
    fn trust_each_other(&self, a: SessionId, b: SessionId) -> bool {
        match (self.uid_of(a), self.uid_of(b)) {
            (Some(a_uid), Some(b_uid)) => a != b && (a_uid == b_uid || a_uid == 0 || b_uid == 0),
            _ => false,
        }
    }

    fn uid_of(&self, session: SessionId) -> Option<u32> {
        self.sessions.get(session).map(|session| session.cred.uid)
    }

    fn want_channel(&mut self, ends: [End; 2]) -> Attempt {
        // A host that takes no completions gets no more of them; one with many channels has memory mapped for each.
        let has_room = |(session, queue_set): End| {
            self.channels.count_of(session) < SESSION_CHANNELS_MAX
                && !self.sessions.answers_are_full(session, queue_set)
        };
        if !ends.into_iter().all(has_room) || is_shared_out(&self.channels, &self.sessions, ends) {
            return Attempt::Refused;
        }
        // Where one of the two is root's, the other one's user wanted it as much.
        let payer = ends.map(|(session, _)| session).into_iter().max_by_key(|session| self.uid_of(*session));
        let payer = payer.map_or(UserIdx::NOBODY, |session| self.sessions.user_of(session));
        if self.sessions.users_mut().take(payer, Resource::Channels, 1).is_err() {
            return Attempt::Refused;
        }
        self.channels.open(ends, payer);
        Attempt::NotReady
    }

    /// Its memory is there: both ends may fetch it.
    pub(super) fn offer_channel(&mut self, counters: &mut Counters, channel: ChannelId) {
        let Some(ends) = self.channels.made(channel) else { return };
        counters.add(Counter::ChannelsOpened);
        for (session, queue_set) in ends {
            self.answer(session, queue_set, Completion::OfferChannel { channel });
        }
    }

    /// The session has ended, and its flows have let go.
    pub(super) fn leave_channels(&mut self, session: SessionId) {
        for left in self.channels.leave(session) {
            if let Some((other, queue_set)) = left.other {
                self.answer(other, queue_set, Completion::ChannelClosed { channel: left.channel });
            }
            self.give(left.gone, Resource::Channels);
        }
    }
}
