//! Second and fourth step: RST and SYN (RFC 9293 section 3.10.7.4). What could be a blind attack is answered with a
//! challenge ACK instead of believed (RFC 5961 sections 3 and 4).

use super::{Step, challenge};
use crate::flow::record::Flow;
use crate::flow::tcp::RxContext;
use crate::flow::tcp::state::TcpState;
use crate::work::{FlowEvent, Segment};
use toe_abi::errno::Errno;

pub(super) fn check_rst<H>(flow: &mut Flow, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    if !segment.rst {
        return Step::Continue;
    }
    if segment.seq != flow.rcv.nxt {
        return challenge(flow, cx);
    }
    let errno = match flow.conn.state {
        TcpState::SynReceived if !flow.fast_open.early => Errno::ECONNREFUSED,
        // The peer has everything. In CLOSING and LAST_ACK it may not, which the RFC keeps to itself, and Linux tells.
        TcpState::TimeWait => Errno::OK,
        TcpState::CloseWait => Errno::EPIPE,
        _ => Errno::ECONNRESET,
    };
    flow.conn.state = TcpState::Closed;
    Step::Done(FlowEvent::Closed(errno))
}

pub(super) fn check_syn<H>(flow: &mut Flow, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    if !segment.syn {
        return Step::Continue;
    }
    let is_nobodys = flow.conn.listener.is_some() && !flow.fast_open.early;
    if flow.conn.state == TcpState::SynReceived && is_nobodys {
        // Back to LISTEN, as if the first SYN had never come. What a program may have by Fast Open has come.
        flow.conn.state = TcpState::Closed;
        return Step::Done(FlowEvent::Closed(Errno::OK));
    }
    challenge(flow, cx)
}
