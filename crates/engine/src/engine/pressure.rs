//! Where receive memory is scarce: who has most of it to spare gives it back. What came out of order goes (the peer sends it
//! again: RFC 2018 section 8), and a window's memory is cut down to what is in order and waits to be read. That is
//! never dropped. Linux: `tcp_prune_queue`, `tcp_collapse`, `tcp_prune_ofo_queue`.

use super::Edit;
use crate::counter::Counter;
use crate::parts::{FlowMemory, HostInterface};
use crate::work::UserIdx;
use toe_base::SessionId;
use toe_base::limits::RECEIVE_WINDOW_INITIAL;
use toe_tcp::pressure::Pressure;

/// Flows that give at a time, so that no segment costs much more than another.
const AT_ONCE: usize = 4;

impl FlowMemory<'_> {
    /// Text for a flow of `session` has come: it shall find memory, whatever others keep theirs for.
    pub(super) fn relieve(&mut self, session: SessionId) {
        for _ in 0..AT_ONCE {
            if !self.hostif.pressure(session).is_high() {
                return;
            }
            let Some(idx) = self.flows.reclaimables.take_largest(session) else { return };
            Edit::run(self, idx, prune, |memory, idx, _| memory.flows.note_reclaimable(*idx));
        }
    }

    /// To its peer it is as if what came out of order had been lost.
    pub(super) fn forget_out_of_order(&mut self, idx: Edit<'_>) {
        self.counters.add(Counter::PrunedOutOfOrder);
        let flow = self.flows.get_mut(idx);
        flow.tcb.receiving.held.clear(&mut self.tcp.held);
        if let Some(reports) = self.tcp.reports.taken_mut(&flow.tcb.receiving.acks.reports) {
            reports.up_to = flow.tcb.rcv.nxt;
        }
        flow.tcb.receiving.acks.duplicates = 0;
    }
}

fn prune(memory: &mut FlowMemory<'_>, idx: Edit<'_>) {
    let before = memory.flows.get(*idx).tcb.receiving.buffer.memory();
    if !memory.flows.get(*idx).tcb.receiving.held.is_empty() {
        memory.forget_out_of_order(idx);
    }
    let flow = memory.flows.get_mut(idx);
    let data_nxt = flow.tcb.data_nxt();
    flow.tcb.receiving.buffer.window_max = flow.tcb.receiving.buffer.window_max.min(RECEIVE_WINDOW_INITIAL);
    let arena = memory.hostif.sessions.arena(flow.tcb.receiving.buffer.session, flow.conn.user);
    flow.tcb.receiving.buffer.collapse(arena, data_nxt);
    if flow.tcb.receiving.buffer.memory() < before {
        memory.counters.add(Counter::CollapsedWindows);
    }
}

impl HostInterface {
    /// How scarce the memory of `session` is: its own, and what its user may have.
    pub(super) fn pressure(&mut self, session: SessionId) -> Pressure {
        Pressure::of(self.sessions.arena(session, UserIdx::NOBODY))
    }
}
