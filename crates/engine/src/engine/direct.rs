//! Connections between two sessions leave the engine: once one has shown that it is used, its octets go from window to
//! window through a channel ([`toe_abi::channel`]). Set-up, tear-down and death stay here.

use super::Engine;
use crate::counter::Counter;
use crate::flow::tcp::state::TcpState;
use crate::hostif::HostSide;
use crate::hostif::channels::{Direct, Ends};
use crate::work::Path;
use toe_abi::channel::Side;
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, ChannelId, FlowId, FlowIdx, SessionId};

/// Units with data that a flow has sent when it is first considered; a short connection never pays for a slot.
const FIRST_TRY: u8 = 2;
/// After so many units it is not considered any more.
const LAST_TRY: u8 = 128;
/// User id that may read every process's memory anyway.
const ROOT: u32 = 0;

impl Engine {
    /// A flow has sent a unit with data over [`Path::Local`].
    pub(super) fn count_local_unit<H: HostSide>(&mut self, idx: FlowIdx, host: &mut H) {
        let conn = &mut self.flows.get_mut(idx).conn;
        if conn.local_units > LAST_TRY || conn.direct.is_some() {
            return;
        }
        conn.local_units += 1;
        if conn.local_units >= FIRST_TRY && conn.local_units.is_power_of_two() {
            self.try_direct(idx, host);
        }
    }

    fn try_direct<H: HostSide>(&mut self, idx: FlowIdx, host: &mut H) {
        let Some(peer) = self.index.get(&self.flows.get(idx).conn.key.reversed()) else { return };
        if !self.may_go_direct(idx) || !self.may_go_direct(peer) {
            return;
        }
        let end = |idx| {
            let owner = self.flows.get(idx).conn.owner;
            (owner.session, owner.queue_set)
        };
        let ends = [end(idx), end(peer)];
        if !self.trust_each_other(ends) {
            return;
        }
        let Some((channel, side)) = self.channels.between(ends) else {
            self.offer_channel(ends, host);
            self.consider_again(idx);
            return;
        };
        if !self.channels.is_ready(channel) {
            self.consider_again(idx);
            return;
        }
        let is_done = |slot, side| host.channel_is_done(channel, slot, side);
        let Some((slot, generation)) = self.channels.take_slot(channel, is_done) else { return };
        let direct = Direct { channel, slot, generation, side };
        host.channel_reset(direct);
        self.counters.add(Counter::DirectFlows);
        for (idx, side) in [(idx, side), (peer, side.other())] {
            let flow = self.flows.get_mut(idx);
            flow.conn.direct = Some(Direct { side, ..direct });
            flow.report.direct = true;
            self.reports.push(idx);
        }
    }

    /// The channel is about to be ready: the next unit tries again.
    fn consider_again(&mut self, idx: FlowIdx) {
        let conn = &mut self.flows.get_mut(idx).conn;
        if conn.channel_waits < u8::MAX {
            conn.channel_waits += 1;
            // One less than a power of two.
            conn.local_units = FIRST_TRY - 1;
        }
    }

    fn may_go_direct(&self, idx: FlowIdx) -> bool {
        let flow = self.flows.get(idx);
        let conn = &flow.conn;
        conn.path == Path::Local
            && conn.state == TcpState::Established
            && conn.accepted
            && !conn.app_closed
            && !conn.no_direct
            && conn.direct.is_none()
            && !flow.snd.fin_queued
            && self.sessions.get(conn.owner.session).is_some_and(|session| session.open)
    }

    /// Two sessions of one user, or one of root's: root may look into any process, so a channel shows nobody anything
    /// new.
    fn trust_each_other(&self, ends: Ends) -> bool {
        let uid = |at: usize| self.sessions.get(ends[at].0).map(|session| session.uid);
        let (Some(a), Some(b)) = (uid(0), uid(1)) else { return false };
        self.config.direct && ends[0].0 != ends[1].0 && (a == b || a == ROOT || b == ROOT)
    }

    fn offer_channel<H: HostSide>(&mut self, ends: Ends, host: &mut H) {
        if ends.iter().any(|end| self.channels.are_full(end.0)) {
            return;
        }
        let id = self.channels.next_id();
        if !host.open_channel(id, ends) {
            return;
        }
        self.counters.add(Counter::ChannelsOpened);
        self.channels.insert(id, ends);
        for (session, queue_set) in ends {
            self.answer(session, queue_set, Completion::OfferChannel { channel: id });
        }
    }

    /// A session has mapped a channel.
    pub(super) fn channel_ready(&mut self, session: SessionId, id: ChannelId) {
        if !self.channels.set_ready(id, session) {
            self.counters.add(Counter::StaleEntries);
        }
    }

    /// The flow's octets go through the channel no more. Returns whether some were left unread at its side.
    pub(super) fn end_direct<H: HostSide>(&mut self, idx: FlowIdx, gone: bool, host: &mut H) -> bool {
        let flow = self.flows.get_mut(idx);
        let Some(direct) = flow.conn.direct.take() else { return false };
        flow.conn.no_direct = true;
        let untold = core::mem::take(&mut flow.report.direct);
        let unread = host.channel_end(direct, gone || untold);
        self.channels.let_go(direct);
        unread
    }

    /// The session is gone: the other ends of its channels hear of that.
    pub(super) fn close_channels_of(&mut self, session: SessionId) {
        for (channel, left) in self.channels.close_session(session) {
            if let Some((session, queue_set)) = left {
                self.answer(session, queue_set, Completion::ChannelClosed { channel });
            }
        }
    }

    pub(super) fn close_finished_channels<H: HostSide>(&mut self, host: &mut H) {
        while let Some(id) = self.channels.poll_finished() {
            host.close_channel(id);
        }
    }

    /// Whether a flow must be given up by its owner before another session can have it; then the owner is asked.
    pub(super) fn must_be_yielded(&mut self, idx: FlowIdx) -> bool {
        let flow = self.flows.get_mut(idx);
        let owner = flow.conn.owner;
        if owner.is_nobody() || (flow.conn.direct.is_none() && !flow.conn.carried) {
            return false;
        }
        if !core::mem::replace(&mut flow.conn.yielding, true) {
            self.counters.add(Counter::Yields);
            self.answer(owner.session, owner.queue_set, Completion::Yield { flow: owner.flow_id });
        }
        true
    }

    /// A session gives a flow back; `unread`: with octets that it had received and not read, which the daemon keeps for
    /// whoever claims the flow. Returns the flow's anchor. EINVAL: it has no such flow, or nobody could claim it.
    pub fn relinquish<H: HostSide>(
        &mut self,
        session: SessionId,
        flow: FlowId,
        unread: bool,
        host: &mut H,
    ) -> Result<AnchorHandle, Errno> {
        let idx = self.sessions.get(session).and_then(|s| s.flows.get(flow)).ok_or(Errno::EINVAL)?;
        let conn = &self.flows.get(idx).conn;
        let anchor = conn.anchor.filter(|_| conn.accepted && !conn.app_closed).ok_or(Errno::EINVAL)?;
        self.end_direct(idx, false, host);
        if !self.stage_send_data(idx, host) || !self.move_receive_memory(idx, SessionId(0), host) {
            return Err(Errno::ENOMEM);
        }
        let flow = self.flows.get_mut(idx);
        let owner = flow.conn.owner;
        flow.conn.yielding = false;
        flow.conn.carried |= unread;
        flow.conn.unread_elsewhere |= unread;
        let sent = flow.report.sent.saturating_add(flow.report.sent_behind);
        if sent > 0 {
            self.answer(owner.session, owner.queue_set, Completion::Sent { flow: owner.flow_id, len: sent });
        }
        self.disown(idx);
        self.after(idx);
        Ok(anchor)
    }

    /// The other side of a flow's channel, for tests and reports.
    pub fn is_direct(&self, session: SessionId, flow: FlowId) -> Option<Side> {
        let idx = self.sessions.get(session)?.flows.get(flow)?;
        self.flows.get(idx).conn.direct.map(|direct| direct.side)
    }
}
