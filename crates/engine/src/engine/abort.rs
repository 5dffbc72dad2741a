//! Connections that end with RST, at once or behind what is to be sent yet. Called when a program lets go of a connection, and when a
//! segment or a timer ends it.

use super::Edit;
use crate::flow::record::{Abort, ResetNotice};
use crate::parts::Records;
use crate::work::Lone;
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant};
use toe_tcp::outgoing;
use toe_tcp::segment::Segment;
use toe_tcp::state::TcpState;

impl Records<'_> {
    /// Tells the peer with RST and ends the connection.
    pub(super) fn abort(&mut self, now: Instant, idx: Edit<'_>, errno: Errno) {
        let flow = self.flows.get(*idx);
        let mut reset = Segment::reset(outgoing::empty_seq(&flow.tcb), Some(flow.tcb.rcv.nxt));
        // RFC 7323 section 3.2.
        reset.timestamps = outgoing::timestamps(&flow.tcb, now);
        let (path, key) = (flow.conn.path, flow.conn.key);
        self.ip.send_alone(self.counters, now, path, Lone { key, segment: reset, traffic_class: 0 });
        self.closed(idx, errno);
    }

    /// Ends the connection with RST, behind what the peer takes at once, its end among it: of Linux it would have got that when it was
    /// sent, and may read it yet.
    pub(super) fn abort_behind_data(&mut self, now: Instant, idx: Edit<'_>) {
        let flow = self.flows.get_mut(idx);
        let end = flow.tcb.queue_end().plus(u32::from(flow.tcb.snd.fin.is_queued()));
        if flow.tcb.state.is_synchronized() && end.after(flow.tcb.snd.nxt) {
            flow.conn.abort = Abort::WhenIdle;
        } else {
            self.abort_unread(now, idx);
        }
    }

    /// A program that has the connection still, which it has shut in both directions, is told.
    fn abort_unread(&mut self, now: Instant, idx: Edit<'_>) {
        let errno = if self.flows.get(*idx).tcb.orphaned { Errno::OK } else { Errno::ECONNRESET };
        self.abort(now, idx, errno);
    }

    /// A flow had its turn to send and has nothing more to send now.
    pub(super) fn abort_if_due(&mut self, now: Instant, idx: FlowIdx) {
        if self.flows.is_used(idx) && self.flows.get(idx).conn.abort == Abort::WhenIdle {
            self.edit(idx, |records, idx| {
                records.flows.get_mut(idx).conn.abort = Abort::No;
                records.abort_unread(now, idx);
            });
        }
    }

    /// Bytes of the stream are lost: nobody may take what follows for the whole of it.
    pub(super) fn abort_with_hole(&mut self, now: Instant, idx: Edit<'_>) {
        let flow = self.flows.get_mut(idx);
        // Behind a hole there is no end, though the peer has said it.
        flow.tcb.status.events.peer_closed = false;
        if flow.tcb.state == TcpState::Closed {
            flow.report.reset.get_or_insert(ResetNotice { errno: Errno::ECONNRESET, notified: false });
        } else {
            self.abort(now, idx, Errno::ECONNRESET);
        }
    }
}
