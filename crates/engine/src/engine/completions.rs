//! Completions out: what the records say that their owners have not been told yet. Nothing is queued per event, so
//! events that come faster than the host reads them join into one completion, and memory stays bounded.

use super::notify::{has_end_to_tell, has_something, is_info_old, went_out};
use super::{Edit, Engine};
use crate::flow::carrier::Direct;
use crate::flow::record::{Flow, OpenNotice};
use crate::hostif::outbox::Place;
use crate::parts::{FlowMemory, Records};
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_base::{FlowId, QueueSetId, SessionId};
use toe_tcp::memory::HostMemory;

/// What a queue set is to be told, which its driver puts into its `cpl`.
#[derive(Debug)]
pub struct CompletionBatch<'e> {
    pub completions: &'e [Completion],
    /// How many flows they are of, or of whose records.
    pub flows: usize,
    /// There is something, and no room.
    pub is_full: bool,
}

/// Tells of memory that is the owner's own again, and that its end is acknowledged. `false`: the ring is full.
fn tell_sent(flow: &mut Flow, id: FlowId, post: &mut impl FnMut(Completion) -> bool) -> bool {
    let (len, ends) = (flow.tcb.status.events.sent, has_end_to_tell(flow));
    if (len > 0 || ends) && !post(Completion::Sent { flow: id, len }) {
        return false;
    }
    flow.tcb.status.events.sent = 0;
    flow.report.tells_end &= !ends;
    true
}

impl Engine {
    /// The next queue set that has something to be told, or had no room for it. `None`: those were all of this round.
    pub fn poll_queue_set(&mut self) -> Option<(SessionId, QueueSetId)> {
        self.hostif.outbox.next_place().map(|place| (place.session(), place.queue_set()))
    }

    /// What there is for a queue set that [`Engine::poll_queue_set`] named and whose `cpl` has so much room, in its order. One with more
    /// to be told than room is named again, and one without any room in a later round.
    pub fn poll_completions<H: HostMemory>(
        &mut self,
        (session, queue_set): (SessionId, QueueSetId),
        room: usize,
        host: &mut H,
    ) -> CompletionBatch<'_> {
        let place = Place::of(session, queue_set);
        let mut batch = core::mem::take(&mut self.hostif.outbox.batch);
        batch.clear();
        let mut post = |completion| {
            let fits = batch.len() < room;
            if fits {
                batch.push(completion);
            }
            fits
        };
        let (flows, is_all) = self.records().tell_queue_set(place, &mut post, host);
        let is_full = !is_all && room == 0;
        if is_full {
            self.hostif.outbox.stall(place);
        } else {
            self.hostif.outbox.has_room(place);
        }
        if !is_all {
            self.hostif.outbox.note(place);
        }
        self.hostif.outbox.batch = batch;
        CompletionBatch { completions: &self.hostif.outbox.batch, flows, is_full }
    }
}

impl Records<'_> {
    /// Tells a queue set what there is for it, as far as it has room: first what answers its host, then of its flows. How many flows were
    /// told something, and whether that was all.
    fn tell_queue_set<H: HostMemory>(
        &mut self,
        place: Place,
        post: &mut impl FnMut(Completion) -> bool,
        host: &mut H,
    ) -> (usize, bool) {
        if let Some(session) = self.hostif.sessions.get_mut(place.session()) {
            let queue_set = session.queue_sets.get_mut(place.queue_set().index());
            let is_all = queue_set.is_none_or(|of| of.tell_answers(post));
            session.reuse_slots(place.queue_set());
            if !is_all {
                return (0, false);
            }
        }
        let mut told = 0;
        while let Some(idx) = self.hostif.outbox.next_flow(place) {
            if !self.flows.is_used(idx) || !has_something(self.flows.get(idx), &self.tcp.extents) {
                continue;
            }
            let tell = |records: &mut Self, idx: Edit<'_>| records.memory().tell(idx, post, host);
            let is_all = Edit::run(self, idx, tell, |records, idx, is_all| match is_all {
                true => records.settle(idx),
                false => records.hostif.outbox.put_back(place, *idx),
            });
            if !is_all {
                return (told, false);
            }
            told += 1;
        }
        (told, true)
    }
}

impl FlowMemory<'_> {
    /// Tells a flow's owner everything, in the order that the contract gives. `false`: its ring is full.
    pub(super) fn tell<H: HostMemory>(
        &mut self,
        idx: Edit<'_>,
        post: &mut impl FnMut(Completion) -> bool,
        host: &mut H,
    ) -> bool {
        let flow = self.flows.get_mut(idx);
        let owner = flow.conn.tenancy.owner();
        let waiting = self.hostif.sessions.get(owner.session).and_then(|s| s.answers(owner.queue_set));
        if waiting.is_some_and(|a| !a.is_empty()) {
            // The answer that names the flow must come before what is said of it.
            return false;
        }
        let id = owner.flow_id;
        if is_info_old(flow) {
            self.tell_flow_info(idx, host);
        }
        let flow = self.flows.get_mut(idx);
        let opened = match flow.report.opened {
            OpenNotice::None => None,
            OpenNotice::Accepted(listener) => Some(Completion::Accepted { listener, flow: id }),
            OpenNotice::Connected(errno) => Some(Completion::Connected { flow: id, errno }),
        };
        if let Some(opened) = opened {
            if !post(opened) {
                return false;
            }
            flow.report.opened = OpenNotice::None;
        }
        if let Some(direct) = flow.conn.carrier.channel().filter(|_| flow.report.direct) {
            let Direct { channel, slot, generation, .. } = direct;
            if !post(Completion::Direct { flow: id, channel, slot, generation }) {
                return false;
            }
            flow.report.direct = false;
        }
        if !tell_data(flow, id, post) || !tell_sent(flow, id, post) {
            return false;
        }
        let len = went_out(flow);
        if len > 0 {
            if !post(Completion::WentOut { flow: id, len }) {
                return false;
            }
            flow.report.unsent.notified = flow.report.unsent.notified.plus(len);
        }
        let errno = flow.tcb.status.events.soft_error;
        if !errno.is_ok() {
            if !flow.tcb.orphaned && !post(Completion::SoftError { flow: id, errno }) {
                return false;
            }
            flow.tcb.status.events.soft_error = Errno::OK;
        }
        if flow.tcb.status.events.peer_closed && !flow.report.peer_closed_notified {
            if !flow.tcb.orphaned && !post(Completion::PeerClosed { flow: id }) {
                return false;
            }
            flow.report.peer_closed_notified = true;
        }
        if let Some(reset) = flow.report.reset.as_mut().filter(|reset| !reset.notified) {
            if !post(Completion::Reset { flow: id, errno: reset.errno }) {
                return false;
            }
            reset.notified = true;
        }
        true
    }
}

/// What the peer has sent: its data, and before it where the urgent byte is. `false`: there was no more room.
fn tell_data(flow: &mut Flow, id: FlowId, post: &mut impl FnMut(Completion) -> bool) -> bool {
    if flow.tcb.orphaned {
        flow.tcb.receiving.buffer.published = flow.tcb.data_nxt();
        flow.tcb.status.events.urgent = false;
    }
    if flow.tcb.status.events.urgent {
        let urgent = flow.tcb.rcv.up;
        // Before its data: a host that has the byte knows what it is.
        let ahead = urgent.distance_from(flow.tcb.receiving.buffer.published);
        if urgent.at_or_after(flow.tcb.receiving.buffer.published)
            && !post(Completion::Urgent { flow: id, distance: ahead })
        {
            return false;
        }
        flow.tcb.status.events.urgent = false;
    }
    while let Some(data) = flow.tcb.receiving.buffer.next_to_publish(flow.tcb.data_nxt()) {
        if !post(Completion::Data { flow: id, data }) {
            return false;
        }
        flow.tcb.receiving.buffer.published = flow.tcb.receiving.buffer.published.plus(data.len);
    }
    true
}
