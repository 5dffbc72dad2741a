//! Completions out: what the records say that their owners have not been told yet. Nothing is queued per event, so
//! events that come faster than the host reads them join into one completion, and memory stays bounded.

use super::Engine;
use crate::flow::carrier::Direct;
use crate::flow::record::{Flow, Unsent};
use crate::hostif::HostSide;
use crate::hostif::outbox::Place;
use std::collections::VecDeque;
use toe_abi::command::{
    FLOW_ECN, FLOW_RECEIVE_SHUT, FLOW_SACK, FLOW_SYN_DATA, FLOW_TIMESTAMPS, FLOW_WAITS_FOR_DATA,
    FLOW_WINDOW_SCALE, FlowInfo, WireAddr,
};
use toe_abi::entry::Completion;
use toe_base::{FlowId, FlowIdx, QueueSetId, SessionId};
use toe_tcp::fast_open;
use toe_tcp::send_queue::ExtentPool;
use toe_tcp::state::TcpState;
use zerocopy::IntoBytes;

/// What a queue set is to be told, which its driver puts into its `cpl`.
#[derive(Debug)]
pub struct CompletionBatch<'e> {
    pub completions: &'e [Completion],
    /// How many flows they are of, or of whose records.
    pub flows: usize,
    /// There is something, and no room.
    pub is_full: bool,
}

/// Whether the owner has something to be told.
pub(super) fn has_something(flow: &Flow, extents: &ExtentPool) -> bool {
    let Flow { conn, report, tcb } = flow;
    !conn.tenancy.owner().is_nobody()
        && (report.accepted.is_some()
            || report.connected.is_some()
            || report.direct
            || tcb.events.urgent
            || tcb.events.soft_error.is_some()
            || is_info_old(flow)
            || frees_enough(flow, extents)
            || report.unsent.is_some_and(|unsent| went_out(flow, unsent) > 0)
            || tcb.events.peer_closed && !report.peer_closed_told
            || report.reset.is_some() && !report.reset_told
            || has_end_to_tell(flow)
            || tcb.receive.published != tcb.data_nxt())
}

/// Tells of memory that is the owner's own again, and that its end is acknowledged. `false`: the ring is full.
fn tell_sent(flow: &mut Flow, id: FlowId, post: &mut impl FnMut(Completion) -> bool) -> bool {
    let (len, ends) = (flow.tcb.events.sent, has_end_to_tell(flow));
    if (len > 0 || ends) && !post(Completion::Sent { flow: id, len }) {
        return false;
    }
    flow.tcb.events.sent = 0;
    flow.report.tells_end &= !ends;
    true
}

/// Whether the owner waits to hear that its end is acknowledged, and it is.
fn has_end_to_tell(flow: &Flow) -> bool {
    let is_acknowledged =
        matches!(flow.tcb.state, TcpState::FinWait2 | TcpState::TimeWait | TcpState::Closed);
    flow.report.tells_end && is_acknowledged
}

/// Whether a third of the memory that the owner has in the queue is its own again, or all of it. Its program is woken at each
/// `Sent`, and one that waits for room has little to do for a segment's worth: Linux, too, wakes it for a third (`sk_stream_is_writeable`).
///
/// Less is told where no acknowledgement may follow that would make it more: nothing is on its way, or a timer had to expire.
fn frees_enough(flow: &Flow, extents: &ExtentPool) -> bool {
    let sent = flow.tcb.events.sent;
    let more_may_follow = flow.tcb.snd.una != flow.tcb.snd.nxt && flow.tcb.rtt.backoff == 0;
    sent > 0
        && (!more_may_follow
            || sent >= flow.tcb.send_queue.bytes_of(extents, flow.conn.tenancy.owner().session) / 2)
}

impl Engine {
    /// The next queue set that has something to be told, or had no room for it. `None`: those were all of this round.
    pub fn poll_queue_set(&mut self) -> Option<(SessionId, QueueSetId)> {
        self.outbox.next_place().map(|place| (place.session(), place.queue_set()))
    }

    /// What there is for a queue set that [`Engine::poll_queue_set`] named and whose `cpl` has so much room, in its order. One with more
    /// to be told than room is named again, and one without any room in a later round.
    pub fn poll_completions<H: HostSide>(
        &mut self,
        (session, queue_set): (SessionId, QueueSetId),
        room: usize,
        host: &mut H,
    ) -> CompletionBatch<'_> {
        let place = Place::of(session, queue_set);
        let mut batch = core::mem::take(&mut self.outbox.batch);
        batch.clear();
        let mut post = |completion| {
            let fits = batch.len() < room;
            if fits {
                batch.push(completion);
            }
            fits
        };
        let (flows, is_all) = self.tell_queue_set(place, &mut post, host);
        let is_full = !is_all && room == 0;
        if is_full {
            self.outbox.stall(place);
        } else {
            self.outbox.has_room(place);
        }
        if !is_all {
            self.outbox.note(place);
        }
        self.outbox.batch = batch;
        CompletionBatch { completions: &self.outbox.batch, flows, is_full }
    }

    /// Tells a queue set what there is for it, as far as it has room: first what answers its host, then of its flows. How many flows were
    /// told something, and whether that was all.
    fn tell_queue_set<H: HostSide>(
        &mut self,
        place: Place,
        post: &mut impl FnMut(Completion) -> bool,
        host: &mut H,
    ) -> (usize, bool) {
        if let Some(session) = self.sessions.get_mut(place.session()) {
            let answers = session.answers.get_mut(place.queue_set().index());
            if answers.is_some_and(|answers| !post_all(answers, post)) {
                return (0, false);
            }
            session.flows.reuse(place.queue_set());
        }
        let mut told = 0;
        while let Some(idx) = self.outbox.next_flow(place) {
            if !self.flows.is_used(idx) || !has_something(self.flows.get(idx), &self.tcp.extents) {
                continue;
            }
            if !self.tell(idx, post, host) {
                self.outbox.put_back(place, idx);
                return (told, false);
            }
            told += 1;
            self.after(idx);
        }
        (told, true)
    }

    /// Tells a flow's owner everything, in the order that the contract gives. `false`: its ring is full.
    fn tell<H: HostSide>(
        &mut self,
        idx: FlowIdx,
        post: &mut impl FnMut(Completion) -> bool,
        host: &mut H,
    ) -> bool {
        let flow = self.flows.get_mut(idx);
        let owner = flow.conn.tenancy.owner();
        let waiting = self.sessions.get(owner.session).and_then(|s| s.answers.get(owner.queue_set.index()));
        if waiting.is_some_and(|a| !a.is_empty()) {
            // The answer that names the flow must come before what is said of it.
            return false;
        }
        let id = owner.flow_id;
        if is_info_old(flow) {
            self.tell_flow_info(idx, host);
        }
        let flow = self.flows.get_mut(idx);
        if let Some(listener) = flow.report.accepted {
            if !post(Completion::Accepted { listener, flow: id }) {
                return false;
            }
            flow.report.accepted = None;
        }
        if let Some(errno) = flow.report.connected {
            if !post(Completion::Connected { flow: id, errno }) {
                return false;
            }
            flow.report.connected = None;
        }
        if let Some(direct) = flow.conn.carrier.channel().filter(|_| flow.report.direct) {
            let Direct { channel, slot, generation, .. } = direct;
            if !post(Completion::Direct { flow: id, channel, slot, generation }) {
                return false;
            }
            flow.report.direct = false;
        }
        if !tell_data(flow, id, post) {
            return false;
        }
        if !tell_sent(flow, id, post) {
            return false;
        }
        if let Some(unsent) = flow.report.unsent {
            let len = went_out(flow, unsent);
            if len > 0 && !post(Completion::WentOut { flow: id, len }) {
                return false;
            }
            flow.report.unsent = Some(Unsent { told: unsent.told.plus(len), ..unsent });
        }
        if let Some(errno) = flow.tcb.events.soft_error {
            if !flow.tcb.orphaned && !post(Completion::SoftError { flow: id, errno }) {
                return false;
            }
            flow.tcb.events.soft_error = None;
        }
        if flow.tcb.events.peer_closed && !flow.report.peer_closed_told {
            if !flow.tcb.orphaned && !post(Completion::PeerClosed { flow: id }) {
                return false;
            }
            flow.report.peer_closed_told = true;
        }
        if let Some(errno) = flow.report.reset.filter(|_| !flow.report.reset_told) {
            if !post(Completion::Reset { flow: id, errno }) {
                return false;
            }
            flow.report.reset_told = true;
        }
        true
    }

    /// Writes the flow's information record, which its owner reads.
    pub(super) fn tell_flow_info<H: HostSide>(&mut self, idx: FlowIdx, host: &mut H) {
        let flow = self.flows.get_mut(idx);
        flow.report.state = flow.tcb.state;
        flow.report.published_error = flow.tcb.snd.soft_error;
        let owner = flow.conn.tenancy.owner();
        if owner.is_nobody() {
            return;
        }
        let waits = is_waiting(flow);
        let info = FlowInfo {
            local: WireAddr::from(flow.conn.key.local_addr()),
            remote: WireAddr::from(flow.conn.key.remote_addr()),
            mss: if waits {
                self.tcp.openings.one(&flow.tcb.fast_open.opening).room
            } else {
                flow.tcb.snd.mss
            },
            soft_error: flow.tcb.snd.soft_error.errno.0 as u8,
            soft_errors: flow.tcb.snd.soft_error.count,
            srtt_us: flow.tcb.rtt.srtt_us,
            rttvar_us: flow.tcb.rtt.rttvar_us,
            cwnd: flow.tcb.cc.cwnd,
            retransmits: self.tcp.troubles.one(&flow.tcb.traffic.trouble).retransmits,
            port: match flow.conn.path {
                crate::work::Path::Local => 255,
                crate::work::Path::Port { port, .. } => port.0,
            },
            state: flow.tcb.state.linux_number(),
            flags: flow_flags(flow),
            congestion: flow.tcb.cc.algorithm.name().number(),
        };
        if let Some(record) = self.sessions.get(owner.session) {
            host.write(owner.session, record.layout.flow_info(owner.flow_id.slot()), info.as_bytes());
        }
    }
}

/// Posts answers, as long as there is room. `false`: some are left.
fn post_all(answers: &mut VecDeque<Completion>, post: &mut impl FnMut(Completion) -> bool) -> bool {
    while let Some(answer) = answers.front() {
        if !post(*answer) {
            return false;
        }
        answers.pop_front();
    }
    true
}

/// Bytes that have gone out and are to be told of.
fn went_out(flow: &Flow, unsent: Unsent) -> u32 {
    let end = flow.tcb.queue_end();
    let out = flow.tcb.snd.nxt.earlier(end);
    let is_low = u64::from(end.distance_from(out)) * 2 < u64::from(unsent.low_water);
    if is_low && out.after(unsent.told) { out.distance_from(unsent.told) } else { 0 }
}

/// Whether the flow information record shows what is no longer so, of what a program must not find old.
fn is_info_old(flow: &Flow) -> bool {
    flow.report.state != flow.tcb.state || flow.report.published_error != flow.tcb.snd.soft_error
}

/// Whether a SYN is to have the bytes that the program sends first.
fn is_waiting(flow: &Flow) -> bool {
    flow.tcb.state == TcpState::SynSent && fast_open::waits(&flow.tcb)
}

fn flow_flags(flow: &Flow) -> u8 {
    let open = flow.tcb.snd.syn_acked;
    let scales = flow.tcb.snd.scale.shift() != 0 || flow.tcb.rcv.scale.shift() != 0;
    let flags = [
        (flow.tcb.options.receive_shut, FLOW_RECEIVE_SHUT),
        (open && flow.tcb.rcv.ts_recent.is_some(), FLOW_TIMESTAMPS),
        (open && flow.tcb.snd.sack_permitted, FLOW_SACK),
        (open && scales, FLOW_WINDOW_SCALE),
        (open && flow.tcb.ecn.on, FLOW_ECN),
        (flow.tcb.fast_open.taken, FLOW_SYN_DATA),
        (is_waiting(flow), FLOW_WAITS_FOR_DATA),
    ];
    flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
}

/// What the peer has sent: its data, and before it where the urgent byte is. `false`: there was no more room.
fn tell_data(flow: &mut Flow, id: FlowId, post: &mut impl FnMut(Completion) -> bool) -> bool {
    if flow.tcb.orphaned {
        flow.tcb.receive.published = flow.tcb.data_nxt();
        flow.tcb.events.urgent = false;
    }
    if flow.tcb.events.urgent {
        let urgent = flow.tcb.rcv.up;
        // Before its data: a host that has the byte knows what it is.
        let ahead = urgent.distance_from(flow.tcb.receive.published);
        if urgent.at_or_after(flow.tcb.receive.published) && !post(Completion::Urgent { flow: id, ahead }) {
            return false;
        }
        flow.tcb.events.urgent = false;
    }
    while let Some(data) = flow.tcb.receive.next_to_publish(flow.tcb.data_nxt()) {
        if !post(Completion::Data { flow: id, data }) {
            return false;
        }
        flow.tcb.receive.published = flow.tcb.receive.published.plus(data.len);
    }
    true
}
