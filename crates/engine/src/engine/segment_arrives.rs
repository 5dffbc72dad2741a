//! A segment at its connection: the TCP core takes it, and what it did to the connection is done for everybody else.

use super::Edit;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::flow::record::Flow;
use crate::parts::{FlowMemory, Records, TcpPlanes};
use crate::work::{Lone, Path, RxWork};
use toe_base::Instant;
use toe_tcp::RxContext;
use toe_tcp::memory::HostMemory;
use toe_tcp::record::{Particulars, Wait};
use toe_tcp::segment::{FlowEvent, Segment};
use toe_tcp::segment_arrives::segment_arrives;
use toe_tcp::state::TcpState;

impl<H: HostMemory> TcpPlanes<'_, H> {
    /// What a segment or a timer did to a flow, for everybody else.
    pub(super) fn apply(&mut self, idx: Edit<'_>, event: FlowEvent) {
        match event {
            FlowEvent::None | FlowEvent::Reject | FlowEvent::TimeWait => {}
            FlowEvent::Established => self.records.accepting(self.now, self.host).established(idx),
            FlowEvent::Closed(errno) => self.records.closed(idx, errno),
            FlowEvent::Abort(errno) => self.records.abort(self.now, idx, errno),
            FlowEvent::AbortBehindData => self.records.abort_behind_data(self.now, idx),
        }
    }

    pub(super) fn flow_receives(&mut self, idx: Edit<'_>, work: &RxWork<'_>) {
        let mut memory = self.records.memory();
        if work.rx.segment.len > 0 {
            memory.relieve(memory.flows.get(*idx).tcb.receiving.buffer.session);
        }
        let (flow, mut cx) = memory.receiving(self.now, idx, self.host);
        let before =
            (flow.tcb.state != TcpState::SynSent).then(|| (flow.tcb.data_una(), flow.tcb.data_nxt()));
        let event = segment_arrives(&mut flow.tcb, &mut cx, &work.rx);
        flow.tcb.status.traffic.note_received(self.now, work.rx.segment.len, flow.tcb.snd.mss);
        if work.rx.is_marked
            && let Some(Particulars { trouble, .. }) =
                cx.tcp.particulars.one_mut(&mut flow.tcb.setup.particulars)
        {
            trouble.received_marked = trouble.received_marked.wrapping_add(1);
        }
        if let Some((una, nxt)) = before {
            flow.tcb.status.traffic.acked += u64::from(flow.tcb.data_una().distance_from(una));
            flow.tcb.status.traffic.received += u64::from(flow.tcb.data_nxt().distance_from(nxt));
        }
        if flow.tcb.sending.queue.is_empty() {
            flow.tcb.status.traffic.limits.note(self.now, Wait::Nothing);
        }
        if before.is_none() && event == FlowEvent::Established {
            self.records.fast_open_answered(self.now, idx, &work.rx.segment);
        }
        if event == FlowEvent::Reject {
            self.records.reject(self.now, work.path, work.key, &work.rx.segment);
        }
        self.apply(idx, event);
        if work.path == Path::Local && work.rx.segment.len > 0 {
            self.local_unit_arrived(idx);
        }
    }
}

impl FlowMemory<'_> {
    /// A flow, and what the flow core needs besides to receive something for it.
    pub(super) fn receiving<'a, H: HostMemory>(
        &'a mut self,
        now: Instant,
        idx: Edit<'_>,
        host: &'a mut H,
    ) -> (&'a mut Flow, RxContext<'a, H>) {
        let pressure = self.hostif.pressure(self.flows.get(*idx).tcb.receiving.buffer.session);
        let (flow, path) = self.flows.with_path_mut(idx);
        let cx = RxContext {
            now,
            path,
            owner: flow.conn.tenancy.owner().session,
            pressure,
            arena: self.hostif.sessions.arena(flow.tcb.receiving.buffer.session, flow.conn.user),
            host,
            tcp: self.tcp,
        };
        (flow, cx)
    }
}

impl Records<'_> {
    /// Neither a connection nor a listener is there for a segment. Where the kernel has the address too and the segment
    /// is steered here no longer, it was under way when that changed: what would begin a connection comes, sent again, to whoever it is
    /// for now. What acknowledges something is of the connection that has just ended here: the kernel has had no part in it.
    pub(super) fn nobodys(&mut self, now: Instant, work: &RxWork<'_>) {
        self.counters.add(Counter::DropNoFlow);
        if work.rx.segment.ack.is_none() && self.listeners.find(work.key.scope, work.key.local).is_some() {
            // LISTEN answers ACKs with RST, and drops what has neither SYN nor ACK (RFC 9293 section 3.10.7.2).
            return;
        }
        let is_here = !self.ip.is_shared(work.path) || self.ip.is_steered(self.listeners, &work.key);
        if is_here || work.rx.segment.ack.is_some() {
            self.reject(now, work.path, work.key, &work.rx.segment);
        }
    }

    /// Answers a segment that belongs to no connection.
    fn reject(&mut self, now: Instant, path: Path, key: FlowKey, segment: &Segment) {
        let Some(reset) = segment.answering_reset() else { return };
        // Segments of nobody's come as fast as anybody likes; the answers need not.
        if path == Path::Local || self.peers.resets.allows(now) {
            self.ip.send_alone(self.counters, now, path, Lone { key, segment: reset, traffic_class: 0 });
        } else {
            self.counters.add(Counter::ResetsHeldBack);
        }
    }
}
