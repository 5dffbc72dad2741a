//! Second and fourth step: RST and SYN (RFC 9293 section 3.10.7.4). What could be a blind attack is answered with a
//! challenge ACK instead of believed (RFC 5961 sections 3 and 4).

use super::step::{Step, challenge};
use crate::RxContext;
use crate::record::Tcb;
use crate::segment::{FlowEvent, Segment};
use crate::state::{TcpEvent, TcpState};
use toe_abi::errno::Errno;

pub(super) fn check_rst<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    if !segment.flags.rst() {
        return Step::Continue;
    }
    if segment.seq != tcb.rcv.nxt {
        return challenge(tcb, cx);
    }
    let errno = match tcb.state {
        TcpState::SynReceived if !tcb.handshake.fast_open.early => Errno::ECONNREFUSED,
        TcpState::CloseWait => Errno::EPIPE,
        // In CLOSING and LAST_ACK the peer may not have everything, which the RFC keeps to itself, and Linux tells.
        _ => Errno::ECONNRESET,
    };
    tcb.state = tcb.state.after(TcpEvent::Reset);
    Step::Done(FlowEvent::Closed(errno))
}

pub(super) fn check_syn<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    if !segment.flags.syn() {
        return Step::Continue;
    }
    let is_nobodys = tcb.handshake.fast_open.was_passive && !tcb.handshake.fast_open.early;
    if tcb.state == TcpState::SynReceived && is_nobodys {
        // Back to LISTEN, as if the first SYN had never come. What a program may have by Fast Open has come.
        tcb.state = tcb.state.after(TcpEvent::Delete);
        return Step::Done(FlowEvent::Closed(Errno::OK));
    }
    challenge(tcb, cx)
}
