//! First step: is the segment within the window at all (RFC 9293 section 3.10.7.4), and is it not an old duplicate
//! (PAWS, RFC 7323 section 5)?

use super::step::{Step, answer_stray};
use super::{ack, text};
use crate::RxContext;
use crate::counter::Counter;
use crate::record::Tcb;
use crate::segment::{FlowEvent, Segment};
use crate::state::TcpState;
use toe_base::Instant;

/// RFC 7323 section 5.5: after 24 days without a segment the peer's clock may have gone half way round.
const PAWS_IDLE_MAX_US: u64 = 24 * 86_400 * 1_000_000;

pub(super) fn check<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    if is_old_duplicate(tcb, cx.now, segment) {
        cx.tcp.counters.add(Counter::DropOldTimestamp);
        answer_stray(tcb, cx, segment);
        return Step::Done(FlowEvent::None);
    }
    if tcb.ts_recent().is_some()
        && segment.timestamps.is_none()
        && !segment.flags.rst()
        && !segment.flags.syn()
    {
        // RFC 7323 section 3.2: silently. A SYN is answered as any other; a peer that has started anew learns by that.
        cx.tcp.counters.add(Counter::DropNoTimestamp);
        return Step::Done(FlowEvent::None);
    }
    // Once both SYNs are acknowledged no end sends a segment without ACK: one that comes is nobody's, and is dropped without an answer
    // wherever it lies, as Linux does.
    let opens_or_resets = segment.flags.rst() || segment.flags.syn();
    if segment.ack.is_none() && !opens_or_resets && tcb.state.is_synchronized() {
        cx.tcp.counters.add(Counter::DropUnacceptable);
        return Step::Done(FlowEvent::None);
    }
    if segment.is_acceptable((tcb.rcv.nxt, tcb.rcv.edge.later(tcb.rcv.nxt))) {
        return Step::Continue;
    }
    if tcb.state == TcpState::SynReceived && segment.flags.syn() && segment.seq == tcb.handshake.irs {
        return repeated_syn(tcb, cx, segment);
    }
    cx.tcp.counters.add(Counter::DropUnacceptable);
    text::note_duplicate(tcb, cx.tcp, segment);
    // A reset is never answered, or two ends would answer each other for ever.
    if segment.flags.rst() {
        return Step::Done(FlowEvent::None);
    }
    if !segment.flags.syn() {
        ack::process_stray(tcb, cx, segment);
    }
    answer_stray(tcb, cx, segment);
    Step::Done(FlowEvent::None)
}

/// The peer's SYN again. Alone, it says that our SYN-ACK was lost, so that goes again. With an ACK it is the peer's
/// half of a simultaneous open (RFC 9293 section 3.5, figure 7): its ACK counts, and a plain ACK completes it.
fn repeated_syn<H>(tcb: &mut Tcb, cx: &mut RxContext<'_, H>, segment: &Segment) -> Step {
    if segment.ack.is_none() {
        tcb.sending.board.mark_lost(&mut cx.tcp.sent, |_| true);
        return Step::Done(FlowEvent::None);
    }
    tcb.receiving.acks.now = true;
    match ack::process(tcb, cx, segment) {
        Step::Continue => Step::Done(FlowEvent::None),
        done => done,
    }
}

/// RFC 7323 section 5.
fn is_old_duplicate(tcb: &Tcb, now: Instant, segment: &Segment) -> bool {
    segment.is_old_duplicate(tcb.ts_recent()) && now.since_us(tcb.timers.heard) < PAWS_IDLE_MAX_US
}
