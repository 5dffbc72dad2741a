//! Connections that end with RST, at once or behind what is to be sent yet. Called when a program lets go of a connection, and when a
//! segment or a timer ends it.

use super::Engine;
use crate::control::icmp;
use crate::flow::tcp::output;
use crate::flow::tcp::state::TcpState;
use crate::hostif::HostSide;
use toe_abi::errno::Errno;
use toe_base::{FlowIdx, Instant};

impl Engine {
    /// Tells the peer with RST and ends the connection.
    pub(super) fn abort(&mut self, now: Instant, idx: FlowIdx, errno: Errno) {
        let flow = self.flows.get(idx);
        let mut reset = icmp::reset(output::empty_seq(flow), Some(flow.rcv.nxt));
        // RFC 7323 section 3.2.
        reset.timestamps = output::timestamps(flow, now);
        let (path, key) = (flow.conn.path, flow.conn.key);
        self.send_reset(now, path, key, reset);
        self.closed(idx, errno);
    }

    /// Ends the connection with RST, behind what the peer takes at once: of Linux it would have got that when it was
    /// sent, and may read it yet.
    pub(super) fn abort_behind_data(&mut self, now: Instant, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        if flow.conn.state.is_synchronized() && flow.queue_end().after(flow.snd.nxt) {
            flow.conn.abort_when_idle = true;
        } else {
            self.abort_unread(now, idx);
        }
    }

    /// `Command::Disconnect`: as Linux's, it resets the peer, unless both ends have said their last.
    pub(super) fn disconnect<H: HostSide>(&mut self, now: Instant, idx: FlowIdx, host: &mut H) {
        self.let_go_of_channel(idx, host);
        let flow = self.flows.get(idx);
        let is_all_sent = !flow.queue_end().after(flow.snd.nxt);
        match flow.conn.state {
            TcpState::Closed | TcpState::TimeWait => {}
            TcpState::SynSent => self.closed(idx, Errno::ECONNRESET),
            TcpState::Closing | TcpState::LastAck if is_all_sent => self.closed(idx, Errno::OK),
            // What Linux would have sent by then goes out first.
            _ => self.abort_behind_data(now, idx),
        }
        self.after(idx);
    }

    /// A program that has the connection still, which it has shut in both directions, is told.
    fn abort_unread(&mut self, now: Instant, idx: FlowIdx) {
        let errno = if self.flows.get(idx).conn.app_closed { Errno::OK } else { Errno::ECONNRESET };
        self.abort(now, idx, errno);
    }

    /// A flow had its turn to send and has nothing more to send now.
    pub(super) fn abort_if_due(&mut self, now: Instant, idx: FlowIdx) {
        if self.flows.is_used(idx) && self.flows.get(idx).conn.abort_when_idle {
            self.flows.get_mut(idx).conn.abort_when_idle = false;
            self.abort_unread(now, idx);
            self.after(idx);
        }
    }

    /// Octets of the stream are lost: nobody may take what follows for the whole of it.
    pub(super) fn abort_with_hole(&mut self, now: Instant, idx: FlowIdx) {
        let flow = self.flows.get_mut(idx);
        if flow.conn.state == TcpState::Closed {
            flow.report.reset.get_or_insert(Errno::ECONNRESET);
        } else {
            self.abort(now, idx, Errno::ECONNRESET);
        }
    }
}
