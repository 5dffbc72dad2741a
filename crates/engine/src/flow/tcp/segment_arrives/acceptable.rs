//! First step: is the segment within the window at all (RFC 9293 section 3.10.7.4), and is it not an old duplicate
//! (PAWS, RFC 7323 section 5)?

use super::{Step, drop_with_ack};
use crate::counter::Counter;
use crate::flow::record::Flow;
use crate::flow::tcp::RxContext;
use crate::flow::tcp::state::TcpState;
use crate::work::{FlowEvent, Segment};

pub(super) fn check<H>(flow: &mut Flow, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    if is_old_duplicate(flow, segment) {
        return drop_with_ack(flow, cx, Counter::DropOldTimestamp);
    }
    if is_acceptable(flow, segment) {
        return Step::Continue;
    }
    if flow.conn.state == TcpState::SynReceived && segment.syn && segment.seq == flow.rcv.irs {
        return repeated_syn(flow, segment);
    }
    cx.counters.add(Counter::DropUnacceptable);
    // A reset is never answered, or two ends would answer each other for ever.
    if !segment.rst {
        flow.rcv.ack_now = true;
    }
    Step::Done(FlowEvent::None)
}

/// The peer's SYN again. Alone, it says that our SYN-ACK was lost, so that goes again. With an ACK it is the peer's
/// half of a simultaneous open, and a plain ACK completes it (RFC 9293 section 3.5, figure 7).
fn repeated_syn(flow: &mut Flow, segment: &Segment) -> Step {
    if segment.ack.is_none() {
        flow.snd.nxt = flow.snd.iss;
    } else {
        flow.rcv.ack_now = true;
    }
    Step::Done(FlowEvent::None)
}

/// RFC 7323 section 5.3, R1. Resets are exempt.
fn is_old_duplicate(flow: &Flow, segment: &Segment) -> bool {
    match (flow.rcv.ts_recent, segment.timestamps) {
        (Some(recent), Some((value, _))) => !segment.rst && (value.wrapping_sub(recent) as i32) < 0,
        _ => false,
    }
}

/// Table 6 of RFC 9293, with its allowance for a closed window: what starts at `rcv.nxt` still brings an ACK or RST
/// (its text does not fit, and is cut off later).
fn is_acceptable(flow: &Flow, segment: &Segment) -> bool {
    let nxt = flow.rcv.nxt;
    let edge = flow.rcv.edge.later(nxt);
    let first = segment.seq;
    if first == nxt {
        return true;
    }
    if edge == nxt {
        return false;
    }
    let inside = |seq: toe_base::SeqNum| seq.at_or_after(nxt) && seq.before(edge);
    let len = segment.seq_len();
    inside(first) || (len > 0 && inside(first.plus(len - 1)))
}
