//! Eighth step: the FIN bit (RFC 9293 section 3.10.7.4). It counts once every byte before it is there.

use super::text;
use crate::record::{PeerFin, Tcb};
use crate::state::{TcpEvent, TcpState};
use crate::{RxContext, timeout};

pub(super) fn process<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>) {
    if tcb.rcv.fin != PeerFin::Seen(tcb.rcv.nxt) {
        return;
    }
    debug_assert!(tcb.state.accepts_text());
    tcb.rcv.fin = PeerFin::Received;
    // Nothing comes behind it, whatever the peer sent.
    tcb.receiving.held.clear(&mut cx.tcp.held);
    tcb.rcv.nxt = tcb.rcv.nxt.plus(1);
    tcb.rcv.edge = tcb.rcv.edge.later(tcb.rcv.nxt);
    tcb.status.events.peer_closed = true;
    tcb.state = tcb.state.after(TcpEvent::Fin);
    if tcb.state == TcpState::CloseWait {
        // What the program sends now, its FIN often, acknowledges this one.
        text::delay_ack(tcb, cx.now);
    } else {
        tcb.receiving.acks.now = true;
    }
    if tcb.state == TcpState::TimeWait {
        timeout::start_time_wait(tcb, cx.path, &mut cx.tcp.particulars, cx.now);
    }
}
