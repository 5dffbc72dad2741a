//! Eighth step: the FIN bit (RFC 9293 section 3.10.7.4). It counts once every byte before it is there.

use super::text;
use crate::record::Tcb;
use crate::state::{TcpEvent, TcpState};
use crate::{RxContext, timeout};

pub(super) fn process<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>) {
    if tcb.rcv.fin != Some(tcb.rcv.nxt) {
        return;
    }
    debug_assert!(!tcb.rcv.fin_received && tcb.state.accepts_text());
    tcb.rcv.fin_received = true;
    // Nothing comes behind it, whatever the peer sent.
    tcb.held.clear(&mut cx.tcp.held);
    tcb.rcv.nxt = tcb.rcv.nxt.plus(1);
    tcb.rcv.edge = tcb.rcv.edge.later(tcb.rcv.nxt);
    tcb.events.peer_closed = true;
    tcb.state = tcb.state.after(TcpEvent::Fin);
    if tcb.state == TcpState::CloseWait {
        // What the program sends now, its FIN often, acknowledges this one.
        text::delay_ack(tcb, cx.now);
    } else {
        tcb.rcv.ack_now = true;
    }
    if tcb.state == TcpState::TimeWait {
        timeout::start_time_wait(tcb, &mut cx.tcp.particulars, cx.now);
    }
}
