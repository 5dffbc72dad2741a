//! Eighth step: the FIN bit (RFC 9293 section 3.10.7.4). It counts once every octet before it is there.

use super::text;
use crate::flow::record::Flow;
use crate::flow::tcp::state::{TcpEvent, TcpState};
use crate::flow::tcp::{RxContext, timeout};

pub(super) fn process<H>(flow: &mut Flow, cx: &mut RxContext<'_, H>) {
    if flow.rcv.fin != Some(flow.rcv.nxt) {
        return;
    }
    debug_assert!(!flow.rcv.fin_received && flow.conn.state.accepts_text());
    flow.rcv.fin_received = true;
    // Nothing comes behind it, whatever the peer sent.
    flow.held.clear(cx.held);
    flow.rcv.nxt = flow.rcv.nxt.plus(1);
    flow.rcv.edge = flow.rcv.edge.later(flow.rcv.nxt);
    flow.report.peer_closed = true;
    flow.conn.state = flow.conn.state.after(TcpEvent::Fin);
    if flow.conn.state == TcpState::CloseWait {
        // What the program sends now, its FIN often, acknowledges this one.
        text::delay_ack(flow, cx.now);
    } else {
        flow.rcv.ack_now = true;
    }
    if flow.conn.state == TcpState::TimeWait {
        timeout::start_time_wait(flow, cx.now);
    }
}
