//! Eighth step: the FIN bit (RFC 9293 section 3.10.7.4). It counts once every octet before it is there.

use super::text;
use crate::record::Tcb;
use crate::state::{TcpEvent, TcpState};
use crate::{RxContext, timeout};

pub(super) fn process<H>(flow: &mut Tcb, cx: &mut RxContext<'_, H>) {
    if flow.rcv.fin != Some(flow.rcv.nxt) {
        return;
    }
    debug_assert!(!flow.rcv.fin_received && flow.state.accepts_text());
    flow.rcv.fin_received = true;
    // Nothing comes behind it, whatever the peer sent.
    flow.held.clear(&mut cx.tcp.held);
    flow.rcv.nxt = flow.rcv.nxt.plus(1);
    flow.rcv.edge = flow.rcv.edge.later(flow.rcv.nxt);
    flow.news.peer_closed = true;
    flow.state = flow.state.after(TcpEvent::Fin);
    if flow.state == TcpState::CloseWait {
        // What the program sends now, its FIN often, acknowledges this one.
        text::delay_ack(flow, cx.now);
    } else {
        flow.rcv.ack_now = true;
    }
    if flow.state == TcpState::TimeWait {
        timeout::start_time_wait(flow, cx.now);
    }
}
