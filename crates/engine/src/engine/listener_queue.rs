//! A listener counts the connections that are half open, knows in which order they came, and lets one complete its handshake when there
//! is room. Whoever ends a connection takes it out of here.

use super::{Edit, Engine};
use crate::control::listen::{Listener, Listeners};
use crate::control::listener_idx::ListenerIdx;
use crate::flow::record::Flow;
use crate::flow::tenancy::{QueuePosition, Tenancy, TenancyEvent};
use crate::parts::Records;
use crate::store::FlowStore;
use toe_base::FlowIdx;
use toe_tcp::segment::Segment;
use toe_tcp::state::TcpState;

/// Of all records, those that connections may have that are not open yet.
const HALF_OPEN_ONE_IN: usize = 4;

impl Records<'_> {
    /// A flow that its listener still counts is going away.
    pub(super) fn forget_in_listener(&mut self, idx: Edit<'_>) {
        let flow = self.flows.get_mut(idx);
        // An owner that has been told of it may still take it, and finds it reset.
        let Some(listener_idx) = flow.conn.tenancy.listener() else { return };
        if matches!(flow.conn.tenancy, Tenancy::HalfOpen { .. }) {
            self.listeners.uncount_half_open(self.flows, listener_idx, idx);
            self.flows.get_mut(idx).conn.tenancy.apply(TenancyEvent::Forgotten);
            return;
        }
        flow.conn.tenancy.apply(TenancyEvent::Forgotten);
        let Some(listener) = self.listeners.get_mut(listener_idx) else { return };
        if let Some(at) = listener.queue.waiting.iter().position(|w| *w == *idx) {
            listener.queue.waiting.remove(at);
        } else {
            listener.queue.handed -= 1;
        }
        self.call_next_in_line(listener_idx);
    }

    /// There is a place at a listener that was full: who has waited longest for one gets the SYN-ACK again, whose answer
    /// completes the connection. Linux leaves that to time-outs, and resets who has no luck at any of them.
    pub(super) fn call_next_in_line(&mut self, listener: ListenerIdx) {
        let Some(listener) = self.listeners.get_mut(listener).filter(|listener| !listener.queue.is_full())
        else {
            return;
        };
        let Some(idx) = listener.queue.line.pop_front() else { return };
        let call = |Records { flows, tcp, .. }: &mut Records<'_>, idx: Edit<'_>| {
            let flow = flows.get_mut(idx);
            flow.conn.tenancy.set_in_line(false);
            flow.tcb.sending.board.mark_lost(&mut tcp.sent, |_| true);
        };
        Edit::run(self, idx, call, |records, idx, ()| {
            records.ip.schedule(records.flows.get(*idx), *idx);
        });
    }

    /// Whether the program has too many connections to take before another one can be completed. Then the segment is
    /// dropped, and the connection stands in line for the next place.
    pub(super) fn must_wait_for_accept(&mut self, idx: FlowIdx, segment: &Segment) -> bool {
        let Flow { conn, tcb, .. } = self.flows.get(idx);
        let Tenancy::HalfOpen { listener, in_line } = conn.tenancy else { return false };
        if tcb.state != TcpState::SynReceived
            || segment.ack.is_none()
            || segment.flags.rst()
            || tcb.handshake.fast_open.early
        {
            return false;
        }
        let Some(listener) = self.listeners.get_mut(listener).filter(|listener| listener.queue.is_full())
        else {
            return false;
        };
        if !in_line {
            listener.queue.line.push_back(idx);
            let stand =
                |records: &mut Self, idx: Edit<'_>| records.flows.get_mut(idx).conn.tenancy.set_in_line(true);
            Edit::run(self, idx, stand, |_, _, _| {});
        }
        true
    }
}

impl Engine {}

impl Listeners {
    /// Whether another connection may have a record before it is open, by its listener and by the engine.
    pub(super) fn has_room_for_half_open(&self, flows: &FlowStore, listener: &Listener) -> bool {
        listener.queue.has_room_for_half_open() && self.half_open < flows.max() / HALF_OPEN_ONE_IN
    }

    /// A connection is open, or gone before it was.
    pub(super) fn uncount_half_open(&mut self, flows: &mut FlowStore, listener: ListenerIdx, idx: Edit<'_>) {
        self.half_open -= 1;
        let was_in_line = flows.get_mut(idx).conn.tenancy.set_in_line(false);
        if let Some(listener) = self.get_mut(listener) {
            listener.queue.half_open -= 1;
            if was_in_line {
                listener.queue.line.retain(|other| *other != *idx);
            }
        }
    }

    /// A connection that was handed out but not taken waits again, before all that came later.
    pub(super) fn return_to_listener(&mut self, flows: &mut FlowStore, idx: Edit<'_>) {
        let flow = flows.get_mut(idx);
        flow.report.take_accepted();
        flow.tcb.status.events.sent = 0;
        flow.tcb.status.events.sent_behind = 0;
        let Tenancy::Queued(QueuePosition { listener, number }) = flow.conn.tenancy else { return };
        let Some(listener) = listener.and_then(|l| self.get_mut(l)) else { return };
        listener.queue.handed -= 1;
        let later =
            |waiting: &FlowIdx| flows.get(*waiting).conn.tenancy.arrival().is_some_and(|n| n > number);
        let at = listener.queue.waiting.iter().position(later).unwrap_or(listener.queue.waiting.len());
        listener.queue.waiting.insert(at, *idx);
    }

    pub(super) fn count_half_open(&mut self, listener: ListenerIdx) {
        self.half_open += 1;
        if let Some(listener) = self.get_mut(listener) {
            listener.queue.half_open += 1;
        }
    }
}
